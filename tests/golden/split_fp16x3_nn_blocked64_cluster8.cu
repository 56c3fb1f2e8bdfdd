// split_fp16x3_nn_blocked64_cluster8
// Splits each element of A and B into a sum of 2 halves.
// SPDX-License-Identifier: MIT

namespace {

using Elem = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int kTerms     = 2;     // terms of an element
constexpr int kTermWarps = 4;     // warps of a CTA that splits
constexpr int kTermHeld  = 2048;  // steps of k that a warp holds of a row of op(A) or column of op(B) stored along k
constexpr int kTermRows  = 32;    // rows of op(A) or columns of op(B), stored across k, that a warp holds
constexpr int kTermK     = 64;    // steps of k that it holds of them
static_assert(kTermRows == 32 && kTermK % 32 == 0, "what a warp holds is turned in shared memory by 32 lanes");
constexpr int kTermParts = 8;     // CTAs of a cluster, which share the k of such rows

// ---- Instructions (PTX) -----------------------------------------------------------------------------------------

// Programmatic dependent launch (PDL): waits for what earlier kernels of the stream wrote; lets the next one start.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }
#else
__device__ __forceinline__ void griddepcontrol_wait() {}
__device__ __forceinline__ void launch_dependents() {}
#endif

// The nearest halves to two floats, side by side, the first one low; the low and the high one of two as a float.
__device__ __forceinline__ unsigned to_f16x2(float low, float high)
{
    unsigned bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
__device__ __forceinline__ float low_f16(unsigned bits)
{
    float x;
    asm("{ .reg .f16 low, high; mov.b32 { low, high }, %1; cvt.f32.f16 %0, low; }" : "=f"(x) : "r"(bits));
    return x;
}
__device__ __forceinline__ float high_f16(unsigned bits)
{
    float x;
    asm("{ .reg .f16 low, high; mov.b32 { low, high }, %1; cvt.f32.f16 %0, high; }" : "=f"(x) : "r"(bits));
    return x;
}

// The larger number, or NaN where one of them is.
__device__ __forceinline__ float max_nan(float x, float y)
{
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(y));
    return larger;
}

// Writes eight numbers of 16 bits, two in each of `x`, to global memory at once: of an assignment the compiler often
// makes four writes.
__device__ __forceinline__ void store_eight(unsigned short* to, const unsigned (&x)[4])
{
    asm volatile("st.global.v4.b32 [%0], { %1, %2, %3, %4 };"
                 :: "l"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}

// Where CTA `rank` of the cluster has what lies at `place` in this CTA's shared memory.
template <typename Element>
__device__ __forceinline__ const Element* peer(const Element* place, int rank)
{
    const Element* address;
    asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(place), "r"(rank));
    return address;
}

// The barrier of a cluster, in two halves: a thread that has waited sees what others wrote before they arrived.
__device__ __forceinline__ void arrive_cluster() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void wait_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// ---- The kernel -------------------------------------------------------------------------------------------------

template <int kCount>
struct alignas(kCount * sizeof(Elem)) Vector { Elem x[kCount]; };

// Each element of A and B is a sum of kTerms terms, with a power of two for each row of op(A) and column of op(B). All
// of one term come before those of the next; 64 steps of k of all rows of op(A), or columns of op(B), before the next
// 64. These 128 bytes of a row lie side by side, in pieces of 16 bytes, of which piece i of row r is at i ^ (r % 8):
// a tile is one run of memory, as the tensor cores read it. Exponents of the rows, then of the columns, follow the
// terms. Past the matrix terms are 0.
using Term = unsigned short;  // the bits of a half or bfloat16
constexpr int kSpecial = 1 << 20;  // the exponent of a row or column that terms cannot hold

struct Terms {
    Index rows, cols, depth;  // m, n and k rounded up to whole tiles
    char* memory;

    // Where step p of row i lies, of `rows` rows of `depth` steps.
    static __device__ __forceinline__ Index place(Index i, int p, Index rows, Index depth)
    {
        return (p / 64 * rows + i) * 64 + (p % 64 / 8 ^ int(i % 8)) * 8 + p % 8;
    }

    __device__ __forceinline__ Term* a() const { return reinterpret_cast<Term*>(memory); }
    __device__ __forceinline__ Term* b() const { return a() + kTerms * rows * depth; }
    __device__ __forceinline__ int* row_exponents() const
    {
        return reinterpret_cast<int*>(b() + kTerms * cols * depth);
    }
    __device__ __forceinline__ int* col_exponents() const { return row_exponents() + rows; }
};

// The largest magnitude of some numbers, as bits, which are ordered like the numbers.
struct Span {
    unsigned most;

    static __device__ __forceinline__ Span none() { return {0}; }
    __device__ __forceinline__ void add(Elem x)
    {
        most = __float_as_uint(max_nan(__uint_as_float(most), fabsf(x)));  // NaN where one of them is
    }
    __device__ __forceinline__ void add(const Span& other) { most = max(most, other.most); }
    // Adds those of the lanes whose numbers differ in these bits, of which the last is `last`.
    __device__ __forceinline__ void add_lanes(int first, int last)
    {
        #pragma unroll
        for (int other = first; other <= last; other *= 2) {
            Span theirs = none();
            theirs.most = __shfl_xor_sync(~0u, most, other);
            add(theirs);
        }
    }

    // Exponent of the power of two that a row with such magnitudes is multiplied by.
    // Halves hold 2^15, and 24 bits of a number of 2^-14 or more.
    static constexpr int kTop = 14;
    __device__ __forceinline__ int exponent() const
    {
        return most == 0 || most >= 0x7f800000u ? 0 : min(127, kTop - ilogbf(__uint_as_float(most)));
    }
    // Whether terms cannot hold it.
    __device__ __forceinline__ bool special() const { return most >= 0x7f800000u; }
    __device__ __forceinline__ int stored_exponent() const { return special() ? kSpecial : exponent(); }
    __device__ __forceinline__ Elem scale() const { return __uint_as_float(unsigned(exponent() + 127) << 23); }
};

// Warps that share k, each with so many steps of it at a time: a power of two, at most `most`.
__device__ __forceinline__ int sharing(Index depth, int steps, int most)
{
    int count = 1;
    while (count < most && count * steps < depth) count *= 2;
    return count;
}

// The elements that a lane holds, in eights of neighbours along k.
constexpr int kEights = 8;
using Held = Elem[kEights][8];

// Scales eight neighbours along k, splits them and writes the terms.
__device__ __forceinline__ void write(
    const Elem (&x)[8], Elem scale, Term* terms, Index row, int p, Index rows, Index depth)
{
    unsigned pairs[kTerms][4];
    #pragma unroll
    for (int e = 0; e < 8; e += 2) {
        Elem low = x[e] * scale, high = x[e + 1] * scale;
        #pragma unroll
        for (int term = 0; term < kTerms; ++term) {
            const unsigned both = to_f16x2(low, high);
            pairs[term][e / 2] = both;
            low -= low_f16(both);
            high -= high_f16(both);
        }
    }
    Term* const to = terms + Terms::place(row, p, rows, depth);
    #pragma unroll
    for (int term = 0; term < kTerms; ++term) store_eight(to + term * rows * depth, pairs[term]);
}

// Clusters that split so many rows of op(A) or columns of op(B), stored along k.
__device__ __forceinline__ Index clusters_along(Index rows, Index depth)
{
    const int each = kTermParts * kTermWarps / sharing(depth, kTermHeld, kTermWarps);
    return (rows + each - 1) / each;
}

// Clusters that split so many rows of op(A) or columns of op(B), stored across k.
__device__ __forceinline__ Index clusters_across(Index rows, Index depth)
{
    const int each = kTermParts * kTermWarps / sharing(depth, kTermK, kTermParts * kTermWarps) * kTermRows;
    return (rows + each - 1) / each;
}

// A cluster of A or of B, and which of these it is.
struct Unit {
    bool of_a;
    Index index;
};

// The work of cluster `at` of the grid. Clusters of A and of B take turns until one operand has no more: rows along
// k are read and written while Clusters whose warps share k wait for each other.
__device__ __forceinline__ Unit unit_of(Index at, Index of_a, Index of_b)
{
    const Index both = min(of_a, of_b);
    if (at < 2 * both) return {at % 2 == 1, at / 2};
    return {of_a > of_b, at - both};
}

// Reads eight neighbours that are aligned to 16 bytes.
__device__ __forceinline__ void read_eight(Elem (&x)[8], const Elem* from)
{
    #pragma unroll
    for (int e = 0; e < 8; e += 4) {
        const auto four = *reinterpret_cast<const Vector<4>*>(from + e);
        #pragma unroll
        for (int each = 0; each < 4; ++each) x[e + each] = four.x[each];
    }
}

// Reads what a lane has of a row over kTermHeld steps of k from `begin` on: steps 256i + 8lane and the 7 after it,
// zeros outside the matrix.
__device__ __forceinline__ void read_along(Held& x, const Elem* row, bool inside, int begin, int k, Elem* turned)
{
    const int lane = threadIdx.x % 32;
    if (reinterpret_cast<unsigned long long>(row) % 16 == 0) {
        #pragma unroll
        for (int i = 0; i < kEights; ++i) {
            const int p = begin + 256 * i + 8 * lane;
            if (inside && p + 8 <= k) {
                read_eight(x[i], row + p);
            } else {
                #pragma unroll
                for (int e = 0; e < 8; ++e) x[i][e] = inside && p + e < k ? row[p + e] : Elem(0);
            }
        }
    } else {  // neighbouring lanes read neighbours
        Elem mixed[8 * kEights];
        #pragma unroll
        for (int j = 0; j < 8 * kEights; ++j) {
            const int p = begin + 32 * j + lane;
            mixed[j] = inside && p < k ? row[p] : Elem(0);
        }
        #pragma unroll
        for (int first = 0; first < kEights; first += 4) {
            __syncwarp();
            #pragma unroll
            for (int j = 0; j < 32; ++j) turned[32 * j + lane] = mixed[8 * first + j];
            __syncwarp();
            #pragma unroll
            for (int i = 0; i < 4; ++i) read_eight(x[first + i], turned + 256 * i + 8 * lane);
        }
    }
}

// Splits the rows of op(A) or columns of op(B) of a CTA, of `extent`, stored along k. Warps that share one are of one
// CTA.
__device__ __forceinline__ void split_along(
    const Elem* matrix_x, int ld, Index cta, int extent, int k, Term* terms, Index rows, Index depth,
    int* exponents, Span* spans, Elem* turned)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int count = sharing(depth, kTermHeld, kTermWarps), part = warp % count, apart = count * kTermHeld;
    const Index row = cta * (kTermWarps / count) + warp / count;
    const bool inside = row < extent;
    const Elem* const from = matrix_x + row * ld;
    Held x;
    Span span = Span::none();
    Index begin = part * kTermHeld;
    for (; begin < depth; begin += apart) {
        read_along(x, from, inside, int(begin), k, turned);
        #pragma unroll
        for (int e = 0; e < 8 * kEights; ++e) span.add(x[e / 8][e % 8]);
    }
    span.add_lanes(1, 16);
    if (count > 1) {
        if (lane == 0) spans[warp] = span;
        __syncthreads();
        for (int each = 0; each < count; ++each) span.add(spans[warp - part + each]);
    }
    if (row >= rows) return;  // past the last tile
    if (part == 0 && lane == 0) exponents[row] = span.stored_exponent();

    // Split and written, what was read last first.
    const Elem scale = span.scale();
    bool there = true;
    for (begin -= apart; begin >= 0; begin -= apart) {
        if (!there) read_along(x, from, inside, int(begin), k, turned);
        there = false;
        #pragma unroll
        for (int i = 0; i < kEights; ++i) {
            const int p = int(begin) + 256 * i + 8 * lane;
            if (p < depth) write(x[i], scale, terms, row, p, rows, depth);
        }
    }
}

// Reads what a lane has of kTermRows rows over kTermK steps of k from `begin` on: of row 8i + lane / 4 steps
// 32h + lane % 4 * 8 and the 7 after it, zeros outside the matrix.
__device__ __forceinline__ void read_across(
    Held& x, const Elem* matrix_x, int ld, Index first, int extent, int begin, int k, Elem* turned)
{
    const int lane = threadIdx.x % 32;
    const Elem* const source = matrix_x + Index(begin) * ld + first + lane;
    Elem column[kTermK];
    if (first + kTermRows <= extent && begin + kTermK <= k) {
        #pragma unroll
        for (int j = 0; j < kTermK; ++j) column[j] = source[Index(j) * ld];
    } else {
        #pragma unroll
        for (int j = 0; j < kTermK; ++j) {
            column[j] = first + lane < extent && begin + j < k ? source[Index(j) * ld] : Elem(0);
        }
    }
    #pragma unroll
    for (int h = 0; h < kTermK / 32; ++h) {
        __syncwarp();
        #pragma unroll
        for (int j = 0; j < 32; ++j) turned[33 * lane + j] = column[32 * h + j];
        __syncwarp();
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            #pragma unroll
            for (int e = 0; e < 8; ++e) x[4 * h + i][e] = turned[33 * (8 * i + lane / 4) + lane % 4 * 8 + e];
        }
    }
}

// Splits the rows of op(A) or columns of op(B) of a cluster, of `extent`, stored across k. Warps share
// kTermRows of them; where k is short, some warps have others.
__device__ __forceinline__ void split_across(
    const Elem* matrix_x, int ld, Index cluster, int extent, int k, Term* terms, Index rows, Index depth,
    int* exponents, Span (&spans)[kTermWarps + 1][kTermRows], Elem* turned)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int count = sharing(depth, kTermK, kTermParts * kTermWarps), apart = count * kTermK;
    const int rank = blockIdx.x % kTermParts, member = rank * kTermWarps + warp, part = member % count;
    const Index first = (cluster * (kTermParts * kTermWarps / count) + member / count) * kTermRows;
    Held x;
    Span mine[4] = {Span::none(), Span::none(), Span::none(), Span::none()};
    Index begin = part * kTermK;
    for (; begin < depth; begin += apart) {
        read_across(x, matrix_x, ld, first, extent, int(begin), k, turned);
        #pragma unroll
        for (int e = 0; e < 8 * kEights; ++e) mine[e / 8 % 4].add(x[e / 8][e % 8]);
    }
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        mine[i].add_lanes(1, 2);
        if (lane % 4 == 0) spans[warp][8 * i + lane / 4] = mine[i];
    }
    __syncthreads();
    Span span = Span::none();  // of a row for each lane
    const bool shared = count > kTermWarps;  // by CTAs
    if (shared) {
        if (warp == 0) {
            #pragma unroll
            for (int each = 0; each < kTermWarps; ++each) span.add(spans[each][lane]);
            spans[kTermWarps][lane] = span;
        }
        arrive_cluster();
        wait_cluster();
        if (warp == 0) {
            const int ctas = count / kTermWarps;
            for (int each = rank / ctas * ctas; each < (rank / ctas + 1) * ctas; ++each) {
                Span theirs = Span::none();
                theirs.most = *peer(&spans[kTermWarps][lane].most, each);
                span.add(theirs);
            }
            spans[0][lane] = span;
        }
        arrive_cluster();
        __syncthreads();
        span = spans[0][lane];
    } else {
        for (int each = 0; each < count; ++each) span.add(spans[warp - part + each][lane]);
    }
    if (first < rows) {
        if (part == 0) exponents[first + lane] = span.stored_exponent();
        const Elem all = span.scale();
        Elem scale[4];
        #pragma unroll
        for (int i = 0; i < 4; ++i) scale[i] = __shfl_sync(~0u, all, 8 * i + lane / 4);

        // Split and written, what was read last first.
        bool there = true;
        for (begin -= apart; begin >= 0; begin -= apart) {
            if (!there) read_across(x, matrix_x, ld, first, extent, int(begin), k, turned);
            there = false;
            #pragma unroll
            for (int e = 0; e < kEights; ++e) {
                const int p = int(begin) + 32 * (e / 4) + lane % 4 * 8;
                if (p < depth) write(x[e], scale[e % 4], terms, first + 8 * (e % 4) + lane / 4, p, rows, depth);
            }
        }
    }
    if (shared) wait_cluster();  // others read what is this CTA's till then
}

}  // namespace

// Splits A and B into terms, as the product reads them: `rows`, `cols` and `depth` are m, n and k rounded up to its
// whole tiles.
extern "C" __global__ void __cluster_dims__(kTermParts, 1, 1) __launch_bounds__(32 * kTermWarps, 4)
split_fp16x3_nn_blocked64_cluster8(
    const Elem* __restrict__ matrix_a, int lda, const Elem* __restrict__ matrix_b, int ldb, char* __restrict__ terms,
    int m, int n, int k, unsigned rows, unsigned cols, unsigned depth)
{
    __shared__ Span spans[kTermWarps + 1][kTermRows];
    __shared__ __align__(16) Elem turned[kTermWarps][33 * kTermRows];
    const Terms to = {rows, cols, depth, terms};
    Elem* const own = turned[threadIdx.x / 32];
    const Index of_a = clusters_along(to.rows, to.depth), of_b = clusters_across(to.cols, to.depth);
    const Unit unit = unit_of(blockIdx.x / kTermParts, of_a, of_b);
    const Index cta = unit.index * kTermParts + blockIdx.x % kTermParts;  // of rows along k
    griddepcontrol_wait();
    launch_dependents();
    if (unit.of_a) {
        split_along(matrix_a, lda, cta, m, k, to.a(), to.rows, to.depth, to.row_exponents(), spans[0], own);
    } else {
        split_across(matrix_b, ldb, unit.index, n, k, to.b(), to.cols, to.depth, to.col_exponents(), spans, own);
    }
}
