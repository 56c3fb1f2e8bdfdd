// gemm_mma_f32_nn_64x64x32_fe8e0a12
// Float by products of half-precision terms on the tensor cores, mma.sync.
//
//   C = alpha * op(A) * op(B) + beta * C in float; where alpha is 0, A and B are not read, where beta is 0, C is not
//
//   storage    row-major: A m x k, B k x n, C m x n; lda, ldb, ldc from row to row
//   accuracy   elementwise
//   terms      the kernel split_bf16x6_nn_rows comes first: it writes each element of A and B
//              as a sum of 3 numbers of 16 bits to memory that this one is given, 6 bytes an element with m, n
//              and k rounded up to 64, 64, 32, and 4 bytes for each row of op(A) and column of op(B)
//   sizes      any m, n > 0 and k >= 0; pointers, leading dimensions and rows of A, B, C aligned to 1, 1, 2 elements
//   launch     ceil(m / 64) * ceil(n / 64) CTAs along x,
//              (128, 1, 1) threads, 73728 bytes of shared memory, given at launch
//
// Written by tilewright from templates/mma.cu.jinja, digest d42f5ed6238a0b06. To write it again:
//   tilewright emit --dtype float --trans nn --accuracy elementwise --config "mma:64x64x32,warp=32,scheme=bf16x6,promote=32,evict_first,raster=4"
// SPDX-License-Identifier: MIT

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "mma on halves and bfloat16s needs sm_80 or newer"
#endif

//                    kBlockN         Each CTA computes a tile of C, each warp of it kWarpM x kWarpN, by
//                  +---------+       instructions that multiply 16 x 16 by 16 x 8 terms.
//          kBlockK |         | op(B)
//                  +---------+       Tiles of the terms of op(A) and op(B) pass along k through kStages buffers in
//        kBlockK        v            shared memory, copied by cp.async while others are multiplied. Each term of
//        +-----+   +----+----+       a tile is used for all its products, the smallest first.
// kBlock |     | > |warp|warp|  C
//      M |     |   +----+----+       Every kPromote steps of k what the tensor cores have added up is added to sums
//        |     |   |warp|warp|       in float: they cut their own sums off, which grows with the sum.
//        +-----+   +----+----+
//         op(A)                      A row or column that terms cannot hold is multiplied in float, as it is.

namespace {

using Elem = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int kBlockM    = 64;     // rows of C that a CTA computes
constexpr int kBlockN    = 64;     // columns of C that a CTA computes
constexpr int kBlockK    = 32;     // steps of k that a tile covers
constexpr int kWarpM     = 32;     // rows of C that a warp computes
constexpr int kWarpN     = 32;     // columns of C that a warp computes
constexpr int kTerms     = 3;      // terms of an element: bfloat16s
constexpr int kPromote   = 32;     // steps of k that the tensor cores add up
constexpr int kLeastK    = 128;    // steps of k with fewer of which products are in float, to keep the bound
constexpr int kStages    = 3;      // tiles that shared memory holds at a time
constexpr int kRaster    = 4;      // rows of tiles of a rasterisation group
constexpr int kMinCtas   = 1;      // CTAs of an SM that the registers must allow
constexpr int kSmemBytes = 73728;  // shared memory of a CTA

constexpr int kWarpsM  = kBlockM / kWarpM;        // warps along the rows of C
constexpr int kWarpsN  = kBlockN / kWarpN;        // warps along the columns of C
constexpr int kThreads = 32 * kWarpsM * kWarpsN;  // threads that multiply
constexpr int kThreadM = kWarpM / 8;              // rows of C that a thread holds: one of every 8
constexpr int kThreadN = kWarpN / 4;              // columns of C that a thread holds: two of every 8
constexpr int kMmasM   = kWarpM / 16;             // instructions of a warp along the rows of C
constexpr int kMmasN   = kWarpN / 8;              // and along its columns
constexpr int kSteps   = kBlockK / 16;            // steps of an instruction in a tile
constexpr int kAcc     = kThreadM * kThreadN;     // elements of C that a thread holds

static_assert(kBlockM % kWarpM == 0 && kBlockN % kWarpN == 0, "a CTA's tile is made of whole warp tiles");
static_assert(kWarpM % 16 == 0 && kWarpN % 16 == 0, "a warp tile is made of whole instructions, two by two along B");
static_assert(kBlockK % kPromote == 0 && kPromote % 16 == 0, "sums are promoted after whole steps");

// ---- Instructions (PTX) -----------------------------------------------------------------------------------------

// Programmatic dependent launch (PDL): waits for what earlier kernels of the stream wrote; lets the next one start.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }
#else
__device__ __forceinline__ void griddepcontrol_wait() {}
__device__ __forceinline__ void launch_dependents() {}
#endif

// Start to copy from global to shared memory, 16 bytes past L1, or kBytes bytes: zeros where `inside` is false, with
// nothing read.
__device__ __forceinline__ void cp_async_16(void* to, const void* from, bool inside)
{
    const unsigned address = unsigned(__cvta_generic_to_shared(to));
    const int bytes = inside ? 16 : 0;  // that are read: zeros follow
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes));
}
template <int kBytes>
__device__ __forceinline__ void cp_async(void* to, const void* from, bool inside)
{
    const unsigned address = unsigned(__cvta_generic_to_shared(to));
    const int bytes = inside ? kBytes : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 ::"r"(address), "l"(from), "n"(kBytes), "r"(bytes));
}

// The copies that a thread starts before commit_copies() are a group. wait_copies<kPending>() waits for all of its
// groups but the last kPending. Other threads see what arrived after a barrier.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// A warp reads four 8 x 8 matrices of 16-bit numbers from shared memory, of which lanes 8 apart name the rows: lane
// 4g + t gets elements 2t and 2t + 1 of row g of each.
__device__ __forceinline__ void load_matrices(unsigned (&x)[4], const void* row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 { %0, %1, %2, %3 }, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(unsigned(__cvta_generic_to_shared(row))));
}

// A warp adds to 16 x 8 of C, in float, the product of 16 x 16 bfloat16s of A and 16 x 8 of B, two in each number.
// Lane 4g + t holds a[0] = A(g, 2t) and A(g, 2t + 1), a[1] the same of row g + 8, a[2] and a[3] both at 2t + 8,
// b0 = B(2t, g) and B(2t + 1, g), b1 the same at 2t + 8, c0 = C(g, 2t), c1 = C(g, 2t + 1), c2 and c3 the same of row
// g + 8. The tensor cores do not round their sums, they cut off.
__device__ __forceinline__ void mma_bf16_m16n8k16(
    float& c0, float& c1, float& c2, float& c3, const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{ %0, %1, %2, %3 }, { %4, %5, %6, %7 }, { %8, %9 }, { %0, %1, %2, %3 };"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- The kernel -------------------------------------------------------------------------------------------------

template <int kCount>
struct alignas(kCount * sizeof(Elem)) Vector { Elem x[kCount]; };

// Starts to copy kBytes bytes from global to shared memory: zeros where `inside` is false, with nothing read.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool inside)
{
    if constexpr (kBytes == 16) cp_async_16(to, from, inside);  // past L1: no other thread of the CTA reads them
    else cp_async<kBytes>(to, from, inside);
}

// Each element of A and B is a sum of kTerms terms, with a power of two for each row of op(A) and column of op(B). All
// of row i of op(A), or of column j of op(B), lie side by side along k, all of one term before those of the next;
// exponents of the rows, then of the columns, follow them. Past the matrix terms are 0.
using Term = unsigned short;  // the bits of a half or bfloat16
constexpr int kSpecial = 1 << 20;  // the exponent of a row or column that terms cannot hold

struct Terms {
    Index rows, cols, depth;  // m, n and k rounded up to whole tiles
    char* memory;

    __device__ __forceinline__ Term* a() const { return reinterpret_cast<Term*>(memory); }
    __device__ __forceinline__ Term* b() const { return a() + kTerms * rows * depth; }
    __device__ __forceinline__ int* exponents() const { return reinterpret_cast<int*>(b() + kTerms * cols * depth); }
    __device__ __forceinline__ int* col_exponents() const { return exponents() + rows; }
};

// Where piece `piece` of 16 bytes lies in row `row` of a tile. Rows are swizzled, so that the 8 rows that ldmatrix
// reads at a time meet in no bank, nor do those that neighbouring threads write.
constexpr int kPieces = kBlockK / 8;  // of a row
__device__ __forceinline__ int swizzled(int row, int piece) { return piece ^ (row / (8 / kPieces) % kPieces); }

// A tile of one operand: kExtent rows of op(A) or columns of op(B), kBlockK steps of k of each, term after term.
template <int kExtent>
struct Operand {
    static constexpr int kRows = kThreads / kPieces;     // that all threads copy at once
    static constexpr int kTermSize = kExtent * kBlockK;  // elements of a term of a tile
    static constexpr int kSize = kTerms * kTermSize;
    static_assert(kExtent % kRows == 0 && kRows % 8 == 0, "threads copy equally often, rows that are swizzled alike");

    const Term* source;  // what this thread copies first of the next tile
    Index term_size;     // elements of a term of the whole operand
    Index depth;         // from row to row
    int place;           // where its first copy goes

    __device__ __forceinline__ Operand(const Term* terms, Index rows, Index depth, Index first)
        : term_size(rows * depth), depth(depth)
    {
        const int row = threadIdx.x / kPieces, piece = threadIdx.x % kPieces;
        source = terms + (first + row) * depth + piece * 8;
        place = row * kBlockK + swizzled(row, piece) * 8;
    }

    // Starts to copy the next tile.
    __device__ __forceinline__ void start(Term* tile)
    {
        #pragma unroll
        for (int term = 0; term < kTerms; ++term) {
            #pragma unroll
            for (int row = 0; row < kExtent; row += kRows) {
                copy_async<16>(
                    tile + term * kTermSize + place + row * kBlockK, source + term * term_size + row * depth, true);
            }
        }
        source += kBlockK;
    }
};

using TileA = Operand<kBlockM>;
using TileB = Operand<kBlockN>;
constexpr int kStage = TileA::kSize + TileB::kSize;  // elements of a stage: a tile of op(A), then one of op(B)
static_assert(kStages * kStage * sizeof(Term) <= kSmemBytes, "the stages fit");

// Adds the products of a term of op(A) and a term of op(B) over 16 steps of k. A warp does it together.
__device__ __forceinline__ void multiply(
    Elem (&acc)[kAcc], const unsigned (&a)[kMmasM][4], const unsigned (&b)[kMmasN / 2][4])
{
    #pragma unroll
    for (int i = 0; i < kMmasM; ++i) {
        #pragma unroll
        for (int j = 0; j < kMmasN; ++j) {
            Elem *const upper = acc + 2 * i * kThreadN + 2 * j, *const lower = upper + kThreadN;
            const auto& of_b = b[j / 2];
            mma_bf16_m16n8k16(
                upper[0], upper[1], lower[0], lower[1], a[i], of_b[j % 2 * 2], of_b[j % 2 * 2 + 1]);
        }
    }
}

// The lane's number along the rows of C.
__device__ __forceinline__ int lane_m(int lane) { return lane / 4; }

// Where in the warp tile the i-th row of lanes `along_m` is, and a lane's j-th column.
__device__ __forceinline__ int row_of(int i, int along_m) { return along_m + 8 * i; }
__device__ __forceinline__ int col_of(int j, int lane) { return lane % 4 * 2 + j / 2 * 8 + j % 2; }

// A warp tile from A and B as they are, in float: for infinities, NaN and what else terms cannot hold. Slow, and rare.
__device__ __forceinline__ void multiply_plainly(
    Elem (&sums)[kAcc], const Elem* matrix_a, int lda, const Elem* matrix_b, int ldb, Index row, Index col, int m,
    int n, int depth, int lane)
{
    const Elem* a[kThreadM];
    #pragma unroll
    for (int i = 0; i < kThreadM; ++i) {
        const Index at = min(row + row_of(i, lane_m(lane)), Index(m - 1));  // what lies outside is not stored
        a[i] = matrix_a + at * lda;
    }
    const int last = int(min(n - 1 - col, Index(kWarpN - 1)));  // column of the warp tile; negative where it has none
    const Elem* b = matrix_b + col;
    #pragma unroll 1
    for (int p = 0; p < depth; ++p) {
        Elem x[kThreadM];
        #pragma unroll
        for (int i = 0; i < kThreadM; ++i) {
            x[i] = *a[i];
            a[i] += 1;
        }
        #pragma unroll
        for (int j = 0; j < kThreadN; ++j) {
            const Elem y = b[min(col_of(j, lane), last)];
            #pragma unroll
            for (int i = 0; i < kThreadM; ++i) sums[i * kThreadN + j] += x[i] * y;
        }
        b += ldb;
    }
}

constexpr int kSmallPower = 63;  // magnitude of exponents two of which make a factor that is a normal number

// Takes the powers of two off that rows of op(A) and columns of op(B) were scaled by: exact, or rounded once where the
// result is subnormal. kFar: not all exponents are near.
template <bool kFar>
__device__ __forceinline__ void unscale(
    Elem (&sums)[kAcc], const int* row_exponents, const int* col_exponents, int lane)
{
    struct alignas(8) Pair { int x[2]; };  // neighbours
    #pragma unroll
    for (int j = 0; j < kThreadN; j += 2) {
        const Pair of_cols = *reinterpret_cast<const Pair*>(col_exponents + col_of(j, lane));
        #pragma unroll
        for (int e = 0; e < 2 * kThreadM; ++e) {
            const int power = -(row_exponents[row_of(e / 2, lane_m(lane))] + of_cols.x[e % 2]);
            Elem& sum = sums[e / 2 * kThreadN + j + e % 2];
            if constexpr (kFar) sum = ldexpf(sum, power);
            else sum *= __uint_as_float(unsigned(127 + power) << 23);
        }
    }
}

// Writes a vector evict-first: nothing reads C soon.
template <int kN>
__device__ __forceinline__ void store_evict_first(Vector<kN>* place, const Vector<kN>& value)
{
    if constexpr (sizeof(value) == 16) {
        __stcs(reinterpret_cast<float4*>(place), reinterpret_cast<const float4&>(value));
    } else if constexpr (sizeof(value) == 8) {
        __stcs(reinterpret_cast<float2*>(place), reinterpret_cast<const float2&>(value));
    } else {
        __stcs(reinterpret_cast<float*>(place), reinterpret_cast<const float&>(value));
    }
}

// Writes accumulators of a thread, kVecC elements of a row of C at a time: those from `first` on, row after row.
// `c` is where the warp tile begins; `rows` and `cols` are left of C from there.
template <int kVecC, bool kGuarded>
__device__ __forceinline__ void store(
    Elem (&out)[kAcc], int first, Elem* c, int ldc, int rows, int cols, int lane, Elem alpha, Elem beta)
{
    // Where the vector belongs that begins with out[e]; null outside of C.
    const auto place_of = [&](int e) -> Vector<kVecC>* {
        const int row = row_of((first + e) / kThreadN, lane_m(lane));
        const int col = col_of((first + e) % kThreadN, lane);
        if constexpr (kGuarded) if (row >= rows || col >= cols) return nullptr;
        return reinterpret_cast<Vector<kVecC>*>(c + Index(row) * ldc + col);
    };
    #pragma unroll
    for (int e = 0; e < kAcc; ++e) out[e] *= alpha;
    // All is read before any of it is written, else each read would wait for the write before it; but not all at a
    // time, which would take as many registers again.
    if (beta != Elem(0)) {
        #pragma unroll
        for (int e = 0; e < kAcc; e += kVecC) {
            if (const Vector<kVecC>* place = place_of(e)) {
                const Vector<kVecC> old = *place;
                #pragma unroll
                for (int v = 0; v < kVecC; ++v) out[e + v] += beta * old.x[v];
            }
            if ((e + kVecC) % kThreadN == 0) asm volatile("" ::: "memory");  // a row's reads at a time
        }
    }
    #pragma unroll
    for (int e = 0; e < kAcc; e += kVecC) {
        if (Vector<kVecC>* place = place_of(e)) {
            Vector<kVecC> value;
            #pragma unroll
            for (int v = 0; v < kVecC; ++v) value.x[v] = out[e + v];
            store_evict_first(place, value);
        }
    }
}

constexpr int kVecC     = 2;     // elements of C that one store moves
constexpr bool kGuarded = true;  // tiles may reach beyond the matrices

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, kMinCtas) gemm_mma_f32_nn_64x64x32_fe8e0a12(
    const Elem* __restrict__ matrix_a, int lda, const Elem* __restrict__ matrix_b, int ldb,
    Elem* __restrict__ matrix_c, int ldc, int m, int n, int k, Elem alpha, Elem beta, char* terms)
{
    extern __shared__ __align__(16) Elem shared[];
    Term* const stages = reinterpret_cast<Term*>(shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_m = warp / kWarpsN * kWarpM, warp_n = warp % kWarpsN * kWarpN;
    const unsigned tiles_n = unsigned(n - 1) / kBlockN + 1;
    // Tiles of C are counted down kRaster rows of them, then one to the right: CTAs that run at the same time share
    // more of A and B in the L2 cache than along a row of tiles.
    const unsigned tiles_m = unsigned(m - 1) / kBlockM + 1;
    const unsigned top = blockIdx.x / (kRaster * tiles_n) * kRaster;  // first row of tiles of the group
    const unsigned height = min(unsigned(kRaster), tiles_m - top);
    const unsigned tile_m = top + blockIdx.x % (kRaster * tiles_n) % height;
    const unsigned tile_n = blockIdx.x % (kRaster * tiles_n) / height;
    const Index row0 = Index(tile_m) * kBlockM, col0 = Index(tile_n) * kBlockN;
    const int depth = alpha == Elem(0) ? 0 : k;  // A and B are not read where alpha is 0
    const int tiles = int((unsigned(depth) + kBlockK - 1) / kBlockK);

    const Index whole_m = (Index(m) + kBlockM - 1) / kBlockM * kBlockM;
    const Index whole_n = (Index(n) + kBlockN - 1) / kBlockN * kBlockN;
    const Terms from = {whole_m, whole_n, (Index(k) + 31) / 32 * 32, terms};
    TileA a(from.a(), from.rows, from.depth, row0);
    TileB b(from.b(), from.cols, from.depth, col0);
    const int *const row_exponents = from.exponents() + row0, *const col_exponents = from.col_exponents() + col0;
    griddepcontrol_wait();
    launch_dependents();

    const auto fetch = [&](int stage) {
        a.start(stages + stage * kStage);
        b.start(stages + stage * kStage + TileA::kSize);
    };
    #pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) {
        if (stage < tiles) fetch(stage);
        commit_copies();  // an empty group counts too
    }

    // Meanwhile: do terms hold all rows and columns of the tile?
    bool special = depth < kLeastK, is_far = false;
    for (int each = threadIdx.x; depth > 0 && each < kBlockM + kBlockN; each += kThreads) {
        const int exponent = each < kBlockM ? row_exponents[each] : col_exponents[each - kBlockM];
        special |= exponent == kSpecial;
        is_far |= abs(exponent) > kSmallPower;
    }
    is_far = __syncthreads_or(is_far);
    Elem sums[kAcc] = {};
    if (__syncthreads_or(special)) {
        wait_copies<0>();
        multiply_plainly(sums, matrix_a, lda, matrix_b, ldb, row0 + warp_m, col0 + warp_n, m, n, depth, lane);
    } else {
        const int a_row = warp_m + lane % 16, a_piece = swizzled(a_row, lane / 16);
        const int b_row = warp_n + lane / 16 * 8 + lane % 8, b_piece = swizzled(b_row, lane / 8 % 2);
        Elem acc[kAcc] = {};
        const auto promote = [&] {
            #pragma unroll
            for (int e = 0; e < kAcc; ++e) {
                sums[e] += acc[e];
                acc[e] = 0;
            }
        };
        int reading = 0, writing = kStages - 1;  // stages
        #pragma unroll 1
        for (int each = 0; each < tiles; ++each) {
            // The oldest tile on its way has come, and no thread reads the one before it any more.
            wait_copies<kStages - 2>();
            __syncthreads();
            if (each + kStages - 1 < tiles) fetch(writing);
            commit_copies();
            const Term* const a_tile = stages + reading * kStage + a_row * kBlockK;
            const Term* const b_tile = stages + reading * kStage + TileA::kSize + b_row * kBlockK;
            #pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                unsigned a_terms[kTerms][kMmasM][4], b_terms[kTerms][kMmasN / 2][4];
                #pragma unroll
                for (int term = 0; term < kTerms; ++term) {
                    const int a_at = term * TileA::kTermSize + (a_piece ^ 2 * step) * 8;
                    const int b_at = term * TileB::kTermSize + (b_piece ^ 2 * step) * 8;
                    #pragma unroll
                    for (int i = 0; i < kMmasM; ++i) {
                        load_matrices(a_terms[term][i], a_tile + a_at + i * 16 * kBlockK);
                    }
                    #pragma unroll
                    for (int j = 0; j < kMmasN / 2; ++j) {
                        load_matrices(b_terms[term][j], b_tile + b_at + j * 16 * kBlockK);
                    }
                }
                // The smallest products first: what they add would be cut off beside the largest.
                #pragma unroll
                for (int order = kTerms - 1; order >= 0; --order) {
                    #pragma unroll
                    for (int term = 0; term <= order; ++term) {
                        multiply(acc, a_terms[term], b_terms[order - term]);
                    }
                }
                if ((step + 1) % (kPromote / 16) == 0) promote();
            }
            reading = reading == kStages - 1 ? 0 : reading + 1;
            writing = writing == kStages - 1 ? 0 : writing + 1;
        }
        if (is_far) unscale<true>(sums, row_exponents + warp_m, col_exponents + warp_n, lane);
        else if (depth > 0) unscale<false>(sums, row_exponents + warp_m, col_exponents + warp_n, lane);
    }

    const Index row = row0 + warp_m, col = col0 + warp_n;
    const int rows = int(min(m - row, Index(kWarpM))), cols = int(min(n - col, Index(kWarpN)));
    store<kVecC, kGuarded>(sums, 0, matrix_c + row * ldc + col, ldc, rows, cols, lane, alpha, beta);
}

// split_bf16x6_nn_rows
// Splits each element of A and B into a sum of 3 bfloat16s.
// SPDX-License-Identifier: MIT

namespace {

using Elem = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int kTerms     = 3;     // terms of an element
constexpr int kTermWarps = 4;     // warps of a CTA that splits
constexpr int kTermHeld  = 2048;  // steps of k that a warp holds of a row of op(A) or column of op(B) stored along k
constexpr int kTermRows  = 32;    // rows of op(A) or columns of op(B), stored across k, that a warp holds
constexpr int kTermK     = 64;    // steps of k that it holds of them
static_assert(kTermRows == 32 && kTermK % 32 == 0, "what a warp holds is turned in shared memory by 32 lanes");

// ---- Instructions (PTX) -----------------------------------------------------------------------------------------

// Programmatic dependent launch (PDL): waits for what earlier kernels of the stream wrote; lets the next one start.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }
#else
__device__ __forceinline__ void griddepcontrol_wait() {}
__device__ __forceinline__ void launch_dependents() {}
#endif

// The nearest bfloat16s to two floats, side by side, the first one low.
__device__ __forceinline__ unsigned to_bf16x2(float low, float high)
{
    unsigned bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

// The larger number, or NaN where one of them is.
__device__ __forceinline__ float max_nan(float x, float y)
{
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(y));
    return larger;
}

// Writes eight numbers of 16 bits, two in each of `x`, to global memory at once: an assignment may become four writes.
__device__ __forceinline__ void store_eight(unsigned short* to, const unsigned (&x)[4])
{
    asm volatile("st.global.v4.b32 [%0], { %1, %2, %3, %4 };"
                 :: "l"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}

// ---- The kernel -------------------------------------------------------------------------------------------------

template <int kCount>
struct alignas(kCount * sizeof(Elem)) Vector { Elem x[kCount]; };

// Each element of A and B is a sum of kTerms terms, with a power of two for each row of op(A) and column of op(B). All
// of row i of op(A), or of column j of op(B), lie side by side along k, all of one term before those of the next;
// exponents of the rows, then of the columns, follow them. Past the matrix terms are 0.
using Term = unsigned short;  // the bits of a half or bfloat16
constexpr int kSpecial = 1 << 20;  // the exponent of a row or column that terms cannot hold

struct Terms {
    Index rows, cols, depth;  // m, n and k rounded up to whole tiles
    char* memory;

    // Where step p of row i lies, of `rows` rows of `depth` steps.
    static __device__ __forceinline__ Index place(Index i, int p, Index rows, Index depth)
    {
        return i * depth + p;
    }

    __device__ __forceinline__ Term* a() const { return reinterpret_cast<Term*>(memory); }
    __device__ __forceinline__ Term* b() const { return a() + kTerms * rows * depth; }
    __device__ __forceinline__ int* exponents() const { return reinterpret_cast<int*>(b() + kTerms * cols * depth); }
    __device__ __forceinline__ int* col_exponents() const { return exponents() + rows; }
};

// The low and the high one of two bfloat16s side by side, as a float.
__device__ __forceinline__ Elem low_bf16(unsigned bits) { return __uint_as_float(bits << 16); }
__device__ __forceinline__ Elem high_bf16(unsigned bits) { return __uint_as_float(bits & 0xffff0000u); }

// The largest and the smallest magnitude of some numbers, as bits, which are ordered like the numbers; zeros aside.
struct Span {
    unsigned most;
    unsigned least;  // one less: 0 is none

    static __device__ __forceinline__ Span none() { return {0, ~0u}; }
    __device__ __forceinline__ void add(Elem x)
    {
        most = __float_as_uint(max_nan(__uint_as_float(most), fabsf(x)));  // NaN where one of them is
        least = min(least, (__float_as_uint(x) & 0x7fffffffu) - 1);
    }
    __device__ __forceinline__ void add(const Span& other)
    {
        most = max(most, other.most);
        least = min(least, other.least);
    }
    // Adds those of the lanes whose numbers differ in these bits, of which the last is `last`.
    __device__ __forceinline__ void add_lanes(int first, int last)
    {
        #pragma unroll
        for (int other = first; other <= last; other *= 2) {
            add(Span{__shfl_xor_sync(~0u, most, other), __shfl_xor_sync(~0u, least, other)});
        }
    }

    // Exponent of the power of two that a row with such magnitudes is multiplied by.
    // Products of the largest numbers stay far below overflow over any k, and terms of the smallest are normal.
    static constexpr int kTop = 40;
    __device__ __forceinline__ int exponent() const
    {
        return most == 0 || most >= 0x7f800000u ? 0 : min(127, kTop - ilogbf(__uint_as_float(most)));
    }
    // Whether terms cannot hold it.
    __device__ __forceinline__ bool special() const
    {
        // A number that is 2^80 times smaller than the largest may have a term that no bfloat16 holds.
        return most >= 0x7f800000u || (most > 0 && ilogbf(__uint_as_float(least + 1)) + exponent() < -kTop);
    }
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
            const unsigned both = to_bf16x2(low, high);
            pairs[term][e / 2] = both;
            low -= low_bf16(both);
            high -= high_bf16(both);
        }
    }
    Term* const to = terms + Terms::place(row, p, rows, depth);
    #pragma unroll
    for (int term = 0; term < kTerms; ++term) store_eight(to + term * rows * depth, pairs[term]);
}

// CTAs that split so many rows of op(A) or columns of op(B): up to kMost warps share the k of kRows of them.
template <int kRows, int kSteps, int kMost>
__device__ __forceinline__ Index ctas_for(Index rows, Index depth)
{
    const int each = kTermWarps / sharing(depth, kSteps, kMost) * kRows;
    return (rows + each - 1) / each;
}

// A CTA of A or of B, and which of these it is.
struct Unit {
    bool of_a;
    Index index;
};

// The work of CTA `at` of the grid. CTAs of A and of B take turns until one operand has no more: rows along
// k are read and written while CTAs whose warps share k wait for each other.
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

// Splits the rows of op(A) or columns of op(B) of a CTA, of `extent`, stored along k. A CTA's warps may share one.
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

// Splits the rows of op(A) or columns of op(B) of a CTA, of `extent`, stored across k. Warps share
// kTermRows of them; where k is short, some warps have others.
__device__ __forceinline__ void split_across(
    const Elem* matrix_x, int ld, Index cta, int extent, int k, Term* terms, Index rows, Index depth,
    int* exponents, Span (&spans)[kTermWarps + 1][kTermRows], Elem* turned)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int count = sharing(depth, kTermK, kTermWarps), apart = count * kTermK;
    const int part = warp % count;
    const Index first = (cta * (kTermWarps / count) + warp / count) * kTermRows;
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
    for (int each = 0; each < count; ++each) span.add(spans[warp - part + each][lane]);
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
}

}  // namespace

// Splits A and B into terms, as the product reads them: `rows`, `cols` and `depth` are m, n and k in its whole tiles.
extern "C" __global__ void __launch_bounds__(32 * kTermWarps, 4)
split_bf16x6_nn_rows(
    const Elem* __restrict__ matrix_a, int lda, const Elem* __restrict__ matrix_b, int ldb, char* __restrict__ terms,
    int m, int n, int k, unsigned rows, unsigned cols, unsigned depth)
{
    __shared__ Span spans[kTermWarps + 1][kTermRows];
    __shared__ __align__(16) Elem turned[kTermWarps][33 * kTermRows];
    const Terms to = {rows, cols, depth, terms};
    Elem* const own = turned[threadIdx.x / 32];
    const Index of_a = ctas_for<1, kTermHeld, kTermWarps>(to.rows, to.depth);
    const Index of_b = ctas_for<kTermRows, kTermK, kTermWarps>(to.cols, to.depth);
    const Unit unit = unit_of(blockIdx.x, of_a, of_b);
    griddepcontrol_wait();
    launch_dependents();
    if (unit.of_a) {
        split_along(matrix_a, lda, unit.index, m, k, to.a(), to.rows, to.depth, to.exponents(), spans[0], own);
    } else {
        split_across(matrix_b, ldb, unit.index, n, k, to.b(), to.cols, to.depth, to.col_exponents(), spans, own);
    }
}
