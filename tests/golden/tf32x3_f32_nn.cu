// gemm_tf32x3_f32_nn_64x64x32_20b9e806
// Float by products of TF32 terms on the tensor cores, split as fragments are read.
//
//   C = alpha * op(A) * op(B) + beta * C in float; where alpha is 0, A and B are not read, where beta is 0, C is not
//
//   storage    row-major: A m x k, B k x n, C m x n; lda, ldb, ldc from row to row
//   accuracy   elementwise
//   sizes      any m, n > 0 and k >= 0; pointers, leading dimensions and rows of A, B, C aligned to 4, 4, 2 elements
//   launch     ceil(m / 64) * ceil(n / 64) CTAs along x, (128, 1, 1) threads, 49152 bytes of static shared memory
//
// Written by tilewright from templates/tf32x3.cu.jinja, digest e84e2af209751b1b. To write it again:
//   tilewright emit --dtype float --trans nn --accuracy elementwise --config "tf32x3:64x64x32"
// SPDX-License-Identifier: MIT

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "mma on TF32 needs sm_80 or newer"
#endif

//                    kBlockN         Each CTA computes a tile of C, each warp of it kWarpM x kWarpN, by
//                  +---------+       instructions that multiply 16 x 8 by 8 x 8 TF32 numbers, the fragments of
//          kBlockK |         | op(B) which lie in registers of all lanes of the warp.
//                  +---------+
//        kBlockK        v            Tiles of op(A) and op(B) pass along k through kStages buffers in shared
//        +-----+   +----+----+       memory. While one is multiplied the next are on their way: cp.async
// kBlock |     | > |warp|warp|  C    copies them asynchronously, as they lie in global memory.
//      M |     |   +----+----+
//        |     |   |warp|warp|       Elements are split as they are read: into a TF32 number and what is left of
//        +-----+   +----+----+       it, so that three products of such make one of floats. Every kPromote steps
//         op(A)                      of k what the tensor cores have added up is added to sums in float: they cut
//                                    their own sums off, which grows with the sum.
//
// A warp tile with an infinity, a NaN or a magnitude that terms cannot hold is computed once more in float.

namespace {

using Elem = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int kBlockM    = 64;     // rows of C that a CTA computes
constexpr int kBlockN    = 64;     // columns of C that a CTA computes
constexpr int kBlockK    = 32;     // steps of k that a tile covers
constexpr int kWarpM     = 32;     // rows of C that a warp computes
constexpr int kWarpN     = 32;     // columns of C that a warp computes
constexpr int kMmaM      = 16;     // rows of C of one instruction, which takes 8 steps of k
constexpr int kPromote   = 32;     // steps of k that the tensor cores add up
constexpr int kLeastK    = 192;    // steps of k with fewer of which products are in float, to keep the bound
constexpr int kStages    = 3;      // tiles that shared memory holds at a time
constexpr int kSmemBytes = 49152;  // shared memory of a CTA

constexpr int kWarpsM  = kBlockM / kWarpM;         // warps along the rows of C
constexpr int kWarpsN  = kBlockN / kWarpN;         // warps along the columns of C
constexpr int kThreads = 32 * kWarpsM * kWarpsN;   // threads that multiply
constexpr int kThreadM = kWarpM / 8;               // rows of C of a thread: one of every 8
constexpr int kThreadN = kWarpN / 4;               // columns of C of a thread: two of every 8
constexpr int kMmasM   = kWarpM / kMmaM;           // instructions of a warp along the rows of C
constexpr int kStep    = 8;                        // steps of k whose fragments are read at once
constexpr int kLaneK   = kStep / 4;                // of those a lane's own, of each row or column
constexpr int kSteps   = kBlockK / kStep;          // such steps of a warp in a tile
constexpr int kReads   = kThreadM + kThreadN / 2;  // groups of fragments of a step
constexpr int kAcc     = kThreadM * kThreadN;      // accumulators of a thread

static_assert(kBlockM % kWarpM == 0 && kBlockN % kWarpN == 0, "a CTA's tile is made of whole warp tiles");
static_assert(kWarpM % kMmaM == 0 && kWarpN % 8 == 0, "a warp tile is made of whole instructions");
static_assert(kBlockK % kStep == 0, "whole steps of k in a tile");

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

// A warp adds to 16 x 8 of C, in float, the product of 16 x 8 of A and 8 x 8 of B, which are TF32 numbers. Lane 4g + t
// holds a0 = A(g, t), a1 = A(g + 8, t), a2 and a3 the same at t + 4, b0 = B(t, g), b1 = B(t + 4, g), c0 = C(g, 2t),
// c1 = C(g, 2t + 1), c2 and c3 the same of row g + 8. The tensor cores do not round their sums, they cut off.
__device__ __forceinline__ void mma_tf32_m16n8k8(
    float& c0, float& c1, float& c2, float& c3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
    unsigned b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{ %0, %1, %2, %3 }, { %4, %5, %6, %7 }, { %8, %9 }, { %0, %1, %2, %3 };"
        : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
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

// How a tile of one operand lies in shared memory, its rows as in global memory, and comes from there to registers.
//
//   kExtent  rows of op(A), or columns of op(B), in a tile: its other side is kBlockK
//   kAlongK  a row of the operand runs along k
//
// Lane 4g + t reads the g-th row or column of each group of 8, at k = 2t and 2t + 1: the instruction sums over k in
// any order, and neighbours along k come by one load. No two lanes of a read meet in a bank: rows are swizzled by
// chunks of eight elements, or have four spare elements where they are too short for that.
template <int kExtent, bool kAlongK>
struct Operand {
    static constexpr int kSpare = kExtent % 32 ? 4 : 0;                  // elements of a row across k
    static constexpr int kPitch = kAlongK ? kBlockK : kExtent + kSpare;  // from row to row in shared memory
    static constexpr int kSize = kBlockK * (kExtent + kSpare);           // of a tile in shared memory
    // Places from which a lane's lie a fixed way.
    static constexpr int kBases = kAlongK ? (kBlockK < 32 ? kBlockK / 8 : 4) : kSpare ? 1 : 4;

    // The swizzle of a row: the columns of its elements, exclusive-or'ed with it, are their places.
    static __device__ constexpr int swizzle(int row)
    {
        if (kAlongK) return kBlockK == 8 ? 0 : kBlockK == 16 ? row / 2 % 2 * 8 : row % 4 * 8;
        return kSpare ? 0 : row / 2 % 4 * 8;
    }

    // Where element (row, col) of the stored tile is, and what lies so much further in `tile` than another place. The
    // bits of a thread's first row and those of `row`, so much further, are apart, so the swizzles add up.
    static __device__ constexpr int place_of(int row, int col) { return row * kPitch + (col ^ swizzle(row)); }
    static __device__ __forceinline__ Elem* further(Elem* tile, int place, int row, int col)
    {
        return tile + (place ^ swizzle(row)) + row * kPitch + col;
    }

    // Where a lane reads of `tile`, for a warp tile that begins at `first`, and at `p` along k.
    static __device__ __forceinline__ void find(
        const Elem* (&places)[kBases], const Elem* tile, int first, int p, int lane)
    {
        const int outer = first + lane / 4, k = p + lane % 4 * 2;
        #pragma unroll
        for (int b = 0; b < kBases; ++b) {
            // Steps of k eight apart lie in other chunks, and so do groups of 8.
            constexpr int kPeriod = 8 * kBases;
            const int along =
                (p + 8 * b) / kPeriod * kPeriod + ((p + 8 * b) % kPeriod ^ swizzle(lane / 4)) + lane % 4 * 2;
            const int across = (outer + 8 * b) ^ swizzle(k);
            places[b] = tile + (kAlongK ? outer * kPitch + along : k * kPitch + across);
        }
    }

    // Reads a lane's fragment of the i-th group of 8, kStep steps of k from `p` on, in the stage at `stage`.
    static __device__ __forceinline__ void read(
        Elem (&fragment)[kLaneK], const Elem* const (&places)[kBases], int stage, int p, int i)
    {
        if constexpr (kAlongK) {
            const Elem* place = places[p / 8 % kBases] + stage + p / (8 * kBases) * (8 * kBases) + i * 8 * kPitch;
            const auto pair = *reinterpret_cast<const Vector<2>*>(place);
            fragment[0] = pair.x[0];
            fragment[1] = pair.x[1];
        } else {
            #pragma unroll
            for (int e = 0; e < kLaneK; ++e) {
                fragment[e] = places[i % kBases][stage + (p + e) * kPitch + i / kBases * kBases * 8];
            }
        }
    }
};

using TileA = Operand<kBlockM, true>;
using TileB = Operand<kBlockN, false>;

// How tiles of one operand, kExtent by kBlockK, come to shared memory, where they lie as Tile says. kAlongK: stored
// rows run along k. A copy moves kVec elements. kGuarded: a tile may reach beyond the matrix.
template <typename Tile, int kExtent, bool kAlongK, int kVec, bool kGuarded>
struct Copies {
    static constexpr int kPerRow = (kAlongK ? kBlockK : kExtent) / kVec;  // vectors of a row in global memory
    static constexpr int kCopies = (kExtent * kBlockK / kVec + kThreads - 1) / kThreads;  // of each thread
    static constexpr bool kOneOuter = kAlongK ? kCopies == 1 : kPerRow <= kThreads;  // row or column of all copies
    static_assert(kCopies <= 32, "a bit for each copy");

    const Elem* source;         // what this thread copies first of the next tile
    int ld;
    int place;                  // where that goes in a tile in shared memory
    unsigned k;                 // its place along k; beyond any k where no copy lies inside the matrix
    unsigned outer_inside = 0;  // bit i: copy i lies inside, k left aside

    // The operand X from its row or column `outer` on, of which `outer_left` are left, and from `k_begin` on.
    __device__ __forceinline__ Copies(const Elem* matrix_x, int ld, Index outer, Index k_begin, int outer_left) : ld(ld)
    {
        const int row = threadIdx.x / kPerRow, col = threadIdx.x % kPerRow * kVec;
        source = matrix_x + ((kAlongK ? outer : k_begin) + row) * ld + (kAlongK ? k_begin : outer) + col;
        place = Tile::place_of(row, col);
        k = kAlongK ? col : row;
        if constexpr (kOneOuter) {
            if ((kAlongK ? row : col) >= outer_left) k = 1u << 31;
        } else {
            #pragma unroll
            for (int i = 0; i < kCopies; ++i) {
                outer_inside |= unsigned((kAlongK ? row + row_of(i) : col + col_of(i)) < outer_left) << i;
            }
        }
    }

    // How much further copy i lies than copy 0. Neighbouring threads copy neighbouring vectors.
    static __device__ constexpr int row_of(int i) { return i * kThreads / kPerRow; }
    static __device__ constexpr int col_of(int i) { return i * kThreads % kPerRow * kVec; }
    __device__ __forceinline__ const Elem* from(int i) const { return source + Index(row_of(i)) * ld + col_of(i); }
    __device__ __forceinline__ void advance() { source += kAlongK ? Index(kBlockK) : Index(kBlockK) * ld; }

    // Where it goes in `tile`.
    __device__ __forceinline__ Elem* to(Elem* tile, int i) const
    {
        return Tile::further(tile, place, row_of(i), col_of(i));
    }

    // Whether this thread has a copy i: some threads may have none, some the last one not.
    static __device__ __forceinline__ bool has_copy(int i)
    {
        constexpr int kVectors = kExtent * kBlockK / kVec;
        return (i + 1) * kThreads <= kVectors || i * kThreads + int(threadIdx.x) < kVectors;
    }

    // Whether copy i lies inside the matrix; `k_left` is what is left of k, this tile included.
    __device__ __forceinline__ bool inside(int i, int k_left) const
    {
        if constexpr (!kGuarded) return true;
        else return (kOneOuter || outer_inside >> i & 1) && k + (kAlongK ? col_of(i) : row_of(i)) < unsigned(k_left);
    }

    // Starts to copy the next tile to `tile`.
    __device__ __forceinline__ void start(Elem* tile, int k_left)
    {
        #pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            if (has_copy(i)) copy_async<kVec * sizeof(Elem)>(to(tile, i), from(i), inside(i, k_left));
        }
        advance();
    }
};

constexpr int kStage = TileA::kSize + TileB::kSize;  // elements of a stage: a tile of op(A), then one of op(B)
static_assert(kStages * kStage * sizeof(Elem) <= kSmemBytes, "the stages fit");

// How tiles of op(A) and op(B) come: copied while the kStages - 1 before them are multiplied.
template <typename CopyA, typename CopyB>
struct Pipeline {
    CopyA& a;
    CopyB& b;
    int& k_left;  // of the next tile to be copied

    // Starts to copy the next tile to `stage`.
    __device__ __forceinline__ void fetch(Elem* stage) const
    {
        a.start(stage, k_left);
        b.start(stage + TileA::kSize, k_left);
        advance();
    }

    // Goes on to the next tile to be copied.
    __device__ __forceinline__ void advance() const
    {
        k_left -= kBlockK;
    }
};

// Ends the copies of a tile, of which there may be none, to the stage that begins at `writing`: the next one is filled
// after it.
__device__ __forceinline__ void commit_tile(int& writing)
{
    commit_copies();  // an empty group counts too
    writing = writing == (kStages - 1) * kStage ? 0 : writing + kStage;
}

// Waits for the oldest tile on its way, and until no thread reads the one before it any more.
__device__ __forceinline__ void wait_tile()
{
    wait_copies<kStages - 2>();
    __syncthreads();
}

// A lane's fragments of some groups as sums of two TF32 numbers, of 11 bits each: the element rounded, and what is left
// of it, which the tensor cores cut off by at most a bit.
template <int kGroups>
struct Terms {
    unsigned high[kGroups][kLaneK], low[kGroups][kLaneK];
};

// Splits fragments. An infinity, a NaN and a number that is rounded up to infinity leave terms whose products are NaN.
// `least` keeps the bits of the least magnitude but 0: it shows numbers that are too small for low terms. The smallest
// subnormal is taken off to tell 0 from others: 0 becomes a negative number, as bits a large one.
constexpr unsigned kTiny = 24u << 23;  // the bits of 2^-103: from there on low terms count only where they are normal
template <int kGroups>
__device__ __forceinline__ Terms<kGroups> split_fragment(const Elem (&fragment)[kGroups][kLaneK], unsigned& least)
{
    Terms<kGroups> terms;
    #pragma unroll
    for (int i = 0; i < kGroups; ++i) {
        #pragma unroll
        for (int e = 0; e < kLaneK; ++e) {
            const unsigned bits = __float_as_uint(fragment[i][e]), high = (bits + 0x1000u) & 0xffffe000u;
            terms.high[i][e] = high;
            terms.low[i][e] = __float_as_uint(fragment[i][e] - __uint_as_float(high));
            least = min(least, __float_as_uint(fabsf(fragment[i][e]) - __uint_as_float(1)));
        }
    }
    return terms;
}

// Adds to a 16 x 8 tile of sums, which begins with `upper` and `lower`, the product of 16 rows of op(A) and 8 columns
// of op(B) over 8 steps of k. A warp does it together: of each row and column a lane holds its two steps of k.
__device__ __forceinline__ void mma(
    Elem* upper, Elem* lower, const unsigned (&a)[kLaneK], const unsigned (&a_below)[kLaneK],
    const unsigned (&b)[kLaneK])
{
    mma_tf32_m16n8k8(
        upper[0], upper[1], lower[0], lower[1], a[0], a_below[0], a[1], a_below[1], b[0], b[1]);
}

// Adds the products of terms of groups 2i, 2i + 1 of op(A) and j of op(B) but that of the low ones, the smallest first:
// what they add would be cut off beside the largest.
__device__ __forceinline__ void multiply(
    Elem (&sums)[kAcc], const Terms<kThreadM>& a, const Terms<kThreadN / 2>& b, int i, int j)
{
    Elem* const upper = sums + 2 * i * kThreadN + 2 * j;
    mma(upper, upper + kThreadN, a.low[2 * i], a.low[2 * i + 1], b.high[j]);
    mma(upper, upper + kThreadN, a.high[2 * i], a.high[2 * i + 1], b.low[j]);
    mma(upper, upper + kThreadN, a.high[2 * i], a.high[2 * i + 1], b.high[j]);
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
            *place = value;
        }
    }
}

constexpr int kVecA     = 4;     // elements of A that one copy moves
constexpr int kVecB     = 4;     // elements of B that one copy moves
constexpr int kVecC     = 2;     // elements of C that one store moves
constexpr bool kGuarded = true;  // tiles may reach beyond the matrices

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1) gemm_tf32x3_f32_nn_64x64x32_20b9e806(
    const Elem* __restrict__ matrix_a, int lda, const Elem* __restrict__ matrix_b, int ldb,
    Elem* __restrict__ matrix_c, int ldc, int m, int n, int k, Elem alpha, Elem beta)
{
    using CopyA = Copies<TileA, kBlockM, true, kVecA, kGuarded>;
    using CopyB = Copies<TileB, kBlockN, false, kVecB, kGuarded>;
    __shared__ __align__(16) Elem shared[kSmemBytes / sizeof(Elem)];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_m = warp / kWarpsN % kWarpsM * kWarpM, warp_n = warp % kWarpsN * kWarpN;
    const unsigned tiles_n = unsigned(n - 1) / kBlockN + 1;
    const unsigned tile_m = blockIdx.x / tiles_n, tile_n = blockIdx.x % tiles_n;
    const Index row0 = Index(tile_m) * kBlockM, col0 = Index(tile_n) * kBlockN;
    const int depth = alpha == Elem(0) ? 0 : k;  // A and B are not read where alpha is 0
    const int tiles = int((unsigned(depth) + kBlockK - 1) / kBlockK);
    CopyA a(matrix_a, lda, row0, 0, int(min(m - row0, Index(kBlockM))));
    CopyB b(matrix_b, ldb, col0, 0, int(min(n - col0, Index(kBlockN))));
    int k_left = depth;  // of the next tile to be fetched
    Elem acc[kAcc] = {};
    int reading = 0;  // where the stage begins that is multiplied
    Elem a_fragment[2][kThreadM][kLaneK];
    Elem b_fragment[2][kThreadN / 2][kLaneK];
    const Elem *a_places[TileA::kBases], *b_places[TileB::kBases];
    TileA::find(a_places, shared, warp_m, 0, lane);
    TileB::find(b_places, shared + TileA::kSize, warp_n, 0, lane);
    griddepcontrol_wait();
    launch_dependents();

    int writing = (kStages - 1) * kStage;  // where the stage begins that is filled next
    const Pipeline<CopyA, CopyB> pipeline = {a, b, k_left};
    #pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) {
        if (stage < tiles) pipeline.fetch(shared + stage * kStage);
        commit_copies();
    }
    wait_tile();

    // Read a group's fragments of one step to one of the buffers.
    const auto read_a = [&](int p, int i, int to) {
        TileA::read(a_fragment[to][i], a_places, reading, p * kStep, i);
    };
    const auto read_b = [&](int p, int j, int to) {
        TileB::read(b_fragment[to][j], b_places, reading, p * kStep, j);
    };
    const auto read_all = [&](int step) {
        #pragma unroll
        for (int i = 0; i < kThreadM; ++i) read_a(step, i, 0);
        #pragma unroll
        for (int j = 0; j < kThreadN / 2; ++j) read_b(step, j, 0);
    };
    // Reads the fragments of the next step that go with the `place`-th instruction of a step: one group, and with the
    // last instruction all that are left. Groups of B come first: registers then take them that no instruction has
    // used for some time, else the read would wait for it.
    const auto read_next = [&](int step, int place) {
        constexpr int kLastPlace = kMmasM * (kThreadN / 2) - 1;
        #pragma unroll
        for (int read = place; read < kReads; read += place == kLastPlace ? 1 : kReads) {
            if (read < kThreadN / 2) read_b((step + 1) % kSteps, read, (step + 1) % 2);
            else read_a((step + 1) % kSteps, read - kThreadN / 2, (step + 1) % 2);
        }
    };
    // Goes on to the next tile.
    const auto next_tile = [&] {
        wait_tile();
        reading = reading == (kStages - 1) * kStage ? 0 : reading + kStage;
    };

    read_all(0);

    Elem partial[kAcc] = {};  // what the tensor cores have added up since promote()
    unsigned least = ~0u;     // magnitude of A and B but 0, its bits
    const auto promote = [&] {
        #pragma unroll
        for (int e = 0; e < kAcc; ++e) {
            acc[e] += partial[e];
            partial[e] = 0;
        }
    };
    #pragma unroll 1
    for (int each = 0; each < tiles; ++each) {
        // The stage that was multiplied last is filled again: no thread reads it any more.
        if (each + kStages - 1 < tiles) pipeline.fetch(shared + writing);
        commit_tile(writing);

        #pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            if (step == kSteps - 1) next_tile();
            const auto a_terms = split_fragment(a_fragment[step % 2], least);
            const auto b_terms = split_fragment(b_fragment[step % 2], least);
            #pragma unroll
            for (int i = 0; i < kMmasM; ++i) {
                #pragma unroll
                for (int j = 0; j < kThreadN / 2; ++j) {
                    multiply(partial, a_terms, b_terms, i, j);
                    read_next(step, i * (kThreadN / 2) + j);
                }
            }
            if ((step + 1) % (kPromote / kStep) == 0) promote();
        }
    }

    // Once more in float where terms do not hold the operands: then a sum is not finite, or a magnitude is tiny.
    bool special = depth < kLeastK || least < kTiny;
    #pragma unroll
    for (int e = 0; e < kAcc; ++e) special |= !(fabsf(acc[e]) < 1.7014118e38f);  // 2^127: no NaN, nor near infinity
    if (__any_sync(~0u, special)) {
        #pragma unroll
        for (int e = 0; e < kAcc; ++e) acc[e] = 0;
        multiply_plainly(
            acc, matrix_a, lda, matrix_b, ldb,
            row0 + warp_m, col0 + warp_n, m, n, depth, lane);
    }
    const Index row = row0 + warp_m, col = col0 + warp_n;
    const int rows = int(min(m - row, Index(kWarpM))), cols = int(min(n - col, Index(kWarpN)));
    store<kVecC, kGuarded>(acc, 0, matrix_c + row * ldc + col, ldc, rows, cols, lane, alpha, beta);
}
