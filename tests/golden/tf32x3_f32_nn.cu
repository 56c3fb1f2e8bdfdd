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
// Written by tilewright from templates/tf32x3.cu.jinja, digest a2ec2df8c3a976dd. To write it again:
//   tilewright emit --dtype float --trans nn --accuracy elementwise --config "tf32x3:64x64x32"
// SPDX-License-Identifier: MIT

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "mma on TF32 needs sm_80 or newer"
#endif

//                   BLOCK_N          Each CTA computes a tile of C, each warp of it WARP_M x WARP_N, by
//                 +---------+        instructions that multiply 16 x 8 by 8 x 8 TF32 numbers, the fragments of
//         BLOCK_K |         | op(B)  which lie in registers of all lanes of the warp.
//                 +---------+
//       BLOCK_K        v             Tiles of op(A) and op(B) pass along k through STAGES buffers in shared
//       +-----+   +----+----+        memory. While one is multiplied the next are on their way: cp.async
// BLOCK |     | > |warp|warp|  C     copies them behind the threads' backs, as they lie in global memory.
//    _M |     |   +----+----+
//       |     |   |warp|warp|        Elements are split as they are read: into a TF32 number and what is left of
//       +-----+   +----+----+        it, so that three products of such make one of floats. Every PROMOTE steps
//        op(A)                       of k what the tensor cores have added up is added to sums in float: they cut
//                                    their own sums off, which grows with the sum.
//
// A warp tile with an infinity, a NaN or a magnitude that terms cannot hold is computed once more in float.

namespace {

using T = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int BLOCK_M    = 64;     // rows of C that a CTA computes
constexpr int BLOCK_N    = 64;     // columns of C that a CTA computes
constexpr int BLOCK_K    = 32;     // steps of k that a tile covers
constexpr int WARP_M     = 32;     // rows of C that a warp computes
constexpr int WARP_N     = 32;     // columns of C that a warp computes
constexpr int MMA_M      = 16;     // rows of C of one instruction, which takes 8 steps of k
constexpr int PROMOTE    = 32;     // steps of k that the tensor cores add up
constexpr int LEAST_K    = 192;    // steps of k with fewer of which products are in float, to keep the bound
constexpr int STAGES     = 3;      // tiles that shared memory holds at a time
constexpr int SMEM_BYTES = 49152;  // shared memory of a CTA

constexpr int WARPS_M  = BLOCK_M / WARP_M;         // warps along the rows of C
constexpr int WARPS_N  = BLOCK_N / WARP_N;         // warps along the columns of C
constexpr int THREADS  = 32 * WARPS_M * WARPS_N;   // threads that multiply
constexpr int THREAD_M = WARP_M / 8;               // rows of C that a thread holds: one of every 8
constexpr int THREAD_N = WARP_N / 4;               // columns of C that a thread holds: two of every 8
constexpr int MMAS_M   = WARP_M / MMA_M;           // instructions of a warp along the rows of C
constexpr int STEP     = 8;                        // steps of k whose fragments are read at once
constexpr int LANE_K   = STEP / 4;                 // of those a lane's own, of each row or column
constexpr int STEPS    = BLOCK_K / STEP;           // such steps of a warp in a tile
constexpr int READS    = THREAD_M + THREAD_N / 2;  // groups of fragments of a step
constexpr int ACC      = THREAD_M * THREAD_N;      // accumulators of a thread

static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0, "a CTA's tile is made of whole warp tiles");
static_assert(WARP_M % MMA_M == 0 && WARP_N % 8 == 0, "a warp tile is made of whole instructions");
static_assert(BLOCK_K % STEP == 0, "whole steps of k in a tile");

// ---- Instructions (PTX) -----------------------------------------------------------------------------------------

// Programmatic dependent launch (PDL): waits for what earlier kernels of the stream wrote; lets the next one start.
__device__ __forceinline__ void griddepcontrol_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void launch_dependents()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Start to copy from global to shared memory, 16 bytes past L1, or BYTES bytes: zeros where `inside` is false, with
// nothing read.
__device__ __forceinline__ void cp_async_16(void* to, const void* from, bool inside)
{
    const unsigned address = unsigned(__cvta_generic_to_shared(to));
    const int bytes = inside ? 16 : 0;  // that are read: zeros follow
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes));
}
template <int BYTES>
__device__ __forceinline__ void cp_async(void* to, const void* from, bool inside)
{
    const unsigned address = unsigned(__cvta_generic_to_shared(to));
    const int bytes = inside ? BYTES : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 ::"r"(address), "l"(from), "n"(BYTES), "r"(bytes));
}

// The copies that a thread starts before commit_copies() are a group. wait_copies<PENDING>() waits for all of its
// groups but the last PENDING. Other threads see what arrived after a barrier.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
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

template <int COUNT>
struct alignas(COUNT * sizeof(T)) Vector { T x[COUNT]; };

// Starts to copy BYTES bytes from global to shared memory: zeros where `inside` is false, with nothing read.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool inside)
{
    if constexpr (BYTES == 16) cp_async_16(to, from, inside);  // past L1: no other thread of the CTA reads them
    else cp_async<BYTES>(to, from, inside);
}

// How a tile of one operand lies in shared memory, its rows as in global memory, and comes from there to registers.
//
//   EXTENT   rows of op(A), or columns of op(B), in a tile: its other side is BLOCK_K
//   ALONG_K  a row of the operand runs along k
//
// Lane 4g + t reads the g-th row or column of each group of 8, at k = 2t and 2t + 1: the instruction sums over k in
// any order, and neighbours along k come by one load. No two lanes of a read meet in a bank: rows are swizzled by
// chunks of eight elements, or have four spare elements where they are too short for that.
template <int EXTENT, bool ALONG_K>
struct Operand {
    static constexpr int SPARE = EXTENT % 32 ? 4 : 0;                 // elements of a row across k
    static constexpr int PITCH = ALONG_K ? BLOCK_K : EXTENT + SPARE;  // from row to row in shared memory
    static constexpr int SIZE = BLOCK_K * (EXTENT + SPARE);           // of a tile in shared memory
    // Places from which a lane's lie a fixed way.
    static constexpr int BASES = ALONG_K ? (BLOCK_K < 32 ? BLOCK_K / 8 : 4) : SPARE ? 1 : 4;

    // What is exclusive-or'ed to the columns of a row's elements to give their places.
    static __device__ constexpr int swizzle(int row)
    {
        if (ALONG_K) return BLOCK_K == 8 ? 0 : BLOCK_K == 16 ? row / 2 % 2 * 8 : row % 4 * 8;
        return SPARE ? 0 : row / 2 % 4 * 8;
    }

    // Where element (row, col) of the stored tile is, and what lies so much further in `tile` than another place. The
    // bits of a thread's first row and those of `row`, so much further, are apart, so the swizzles add up.
    static __device__ constexpr int place_of(int row, int col) { return row * PITCH + (col ^ swizzle(row)); }
    static __device__ __forceinline__ T* further(T* tile, int place, int row, int col)
    {
        return tile + (place ^ swizzle(row)) + row * PITCH + col;
    }

    // Where a lane reads of `tile`, for a warp tile that begins at `first`, and at `p` along k.
    static __device__ __forceinline__ void find(const T* (&places)[BASES], const T* tile, int first, int p, int lane)
    {
        const int outer = first + lane / 4, k = p + lane % 4 * 2;
        #pragma unroll
        for (int b = 0; b < BASES; ++b) {
            // Steps of k eight apart lie in other chunks, and so do groups of 8.
            constexpr int PERIOD = 8 * BASES;
            const int along = (p + 8 * b) / PERIOD * PERIOD + ((p + 8 * b) % PERIOD ^ swizzle(lane / 4)) + lane % 4 * 2;
            const int across = (outer + 8 * b) ^ swizzle(k);
            places[b] = tile + (ALONG_K ? outer * PITCH + along : k * PITCH + across);
        }
    }

    // Reads a lane's fragment of the i-th group of 8, STEP steps of k from `p` on, in the stage at `stage`.
    static __device__ __forceinline__ void read(
        T (&fragment)[LANE_K], const T* const (&places)[BASES], int stage, int p, int i)
    {
        if constexpr (ALONG_K) {
            const T* place = places[p / 8 % BASES] + stage + p / (8 * BASES) * (8 * BASES) + i * 8 * PITCH;
            const auto pair = *reinterpret_cast<const Vector<2>*>(place);
            fragment[0] = pair.x[0];
            fragment[1] = pair.x[1];
        } else {
            #pragma unroll
            for (int e = 0; e < LANE_K; ++e) {
                fragment[e] = places[i % BASES][stage + (p + e) * PITCH + i / BASES * BASES * 8];
            }
        }
    }
};

using TileA = Operand<BLOCK_M, true>;
using TileB = Operand<BLOCK_N, false>;

// How tiles of one operand, EXTENT by BLOCK_K, come to shared memory, where they lie as Tile says. ALONG_K: stored rows
// run along k. A copy moves VEC elements. GUARDED: a tile may reach beyond the matrix.
template <typename Tile, int EXTENT, bool ALONG_K, int VEC, bool GUARDED>
struct Copies {
    static constexpr int PER_ROW = (ALONG_K ? BLOCK_K : EXTENT) / VEC;  // vectors of a row in global memory
    static constexpr int COPIES = (EXTENT * BLOCK_K / VEC + THREADS - 1) / THREADS;  // of each thread
    static constexpr bool ONE_OUTER = ALONG_K ? COPIES == 1 : PER_ROW <= THREADS;  // row or column of all copies
    static_assert(COPIES <= 32, "a bit for each copy");

    const T* source;            // what this thread copies first of the next tile
    int ld;
    int place;                  // where that goes in a tile in shared memory
    unsigned k;                 // its place along k; beyond any k where no copy lies inside the matrix
    unsigned outer_inside = 0;  // bit i: copy i lies inside, k left aside

    // The operand X from its row or column `outer` on, of which `outer_left` are left, and from `k_begin` on.
    __device__ __forceinline__ Copies(const T* X, int ld, Index outer, Index k_begin, int outer_left) : ld(ld)
    {
        const int row = threadIdx.x / PER_ROW, col = threadIdx.x % PER_ROW * VEC;
        source = X + ((ALONG_K ? outer : k_begin) + row) * ld + (ALONG_K ? k_begin : outer) + col;
        place = Tile::place_of(row, col);
        k = ALONG_K ? col : row;
        if constexpr (ONE_OUTER) {
            if ((ALONG_K ? row : col) >= outer_left) k = 1u << 31;
        } else {
            #pragma unroll
            for (int i = 0; i < COPIES; ++i) {
                outer_inside |= unsigned((ALONG_K ? row + row_of(i) : col + col_of(i)) < outer_left) << i;
            }
        }
    }

    // How much further copy i lies than copy 0. Neighbouring threads copy neighbouring vectors.
    static __device__ constexpr int row_of(int i) { return i * THREADS / PER_ROW; }
    static __device__ constexpr int col_of(int i) { return i * THREADS % PER_ROW * VEC; }
    __device__ __forceinline__ const T* from(int i) const { return source + Index(row_of(i)) * ld + col_of(i); }
    __device__ __forceinline__ void advance() { source += ALONG_K ? Index(BLOCK_K) : Index(BLOCK_K) * ld; }

    // Where it goes in `tile`.
    __device__ __forceinline__ T* to(T* tile, int i) const { return Tile::further(tile, place, row_of(i), col_of(i)); }

    // Whether this thread has a copy i: some threads may have none, some the last one not.
    static __device__ __forceinline__ bool has_copy(int i)
    {
        constexpr int VECTORS = EXTENT * BLOCK_K / VEC;
        return (i + 1) * THREADS <= VECTORS || i * THREADS + int(threadIdx.x) < VECTORS;
    }

    // Whether copy i lies inside the matrix; `k_left` is what is left of k, this tile included.
    __device__ __forceinline__ bool inside(int i, int k_left) const
    {
        if constexpr (!GUARDED) return true;
        else return (ONE_OUTER || outer_inside >> i & 1) && k + (ALONG_K ? col_of(i) : row_of(i)) < unsigned(k_left);
    }

    // Starts to copy the next tile to `tile`.
    __device__ __forceinline__ void start(T* tile, int k_left)
    {
        #pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            if (has_copy(i)) copy_async<VEC * sizeof(T)>(to(tile, i), from(i), inside(i, k_left));
        }
        advance();
    }
};

constexpr int STAGE = TileA::SIZE + TileB::SIZE;  // elements of a stage: a tile of op(A), then one of op(B)
static_assert(STAGES * STAGE * sizeof(T) <= SMEM_BYTES, "the stages fit");

// How tiles of op(A) and op(B) come: copied while the STAGES - 1 before them are multiplied.
template <typename CopyA, typename CopyB>
struct Pipeline {
    CopyA& a;
    CopyB& b;
    int& k_left;  // of the next tile to be copied

    // Starts to copy the next tile to `stage`.
    __device__ __forceinline__ void fetch(T* stage) const
    {
        a.start(stage, k_left);
        b.start(stage + TileA::SIZE, k_left);
        advance();
    }

    // Goes on to the next tile to be copied.
    __device__ __forceinline__ void advance() const
    {
        k_left -= BLOCK_K;
    }
};

// Ends the copies of a tile, of which there may be none, to the stage that begins at `writing`: the next one is filled
// after it.
__device__ __forceinline__ void commit_tile(int& writing)
{
    commit_copies();  // an empty group counts too
    writing = writing == (STAGES - 1) * STAGE ? 0 : writing + STAGE;
}

// Waits for the oldest tile on its way, and until no thread reads the one before it any more.
__device__ __forceinline__ void wait_tile()
{
    wait_copies<STAGES - 2>();
    __syncthreads();
}

// A lane's fragments of some groups as sums of two TF32 numbers, of 11 bits each: the element rounded, and what is left
// of it, which the tensor cores cut off by at most a bit.
template <int GROUPS>
struct Terms {
    unsigned high[GROUPS][LANE_K], low[GROUPS][LANE_K];
};

// Splits fragments. An infinity, a NaN and what is rounded up to infinity leave terms whose products are NaN. What is
// too small for low terms is told by `least`, which keeps the bits of the least magnitude but 0. To tell 0 from others
// the smallest subnormal is taken off: that leaves a negative number, as bits a large one.
constexpr unsigned TINY = 24u << 23;  // the bits of 2^-103: from there on low terms count only where they are normal
template <int GROUPS>
__device__ __forceinline__ Terms<GROUPS> split_fragment(const T (&fragment)[GROUPS][LANE_K], unsigned& least)
{
    Terms<GROUPS> terms;
    #pragma unroll
    for (int i = 0; i < GROUPS; ++i) {
        #pragma unroll
        for (int e = 0; e < LANE_K; ++e) {
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
    T* upper, T* lower, const unsigned (&a)[LANE_K], const unsigned (&a_below)[LANE_K], const unsigned (&b)[LANE_K])
{
    mma_tf32_m16n8k8(
        upper[0], upper[1], lower[0], lower[1], a[0], a_below[0], a[1], a_below[1], b[0], b[1]);
}

// Adds the products of terms of groups 2i, 2i + 1 of op(A) and j of op(B) but that of the low ones, the smallest first:
// what they add would be cut off beside the largest.
__device__ __forceinline__ void multiply(
    T (&sums)[ACC], const Terms<THREAD_M>& a, const Terms<THREAD_N / 2>& b, int i, int j)
{
    T* const upper = sums + 2 * i * THREAD_N + 2 * j;
    mma(upper, upper + THREAD_N, a.low[2 * i], a.low[2 * i + 1], b.high[j]);
    mma(upper, upper + THREAD_N, a.high[2 * i], a.high[2 * i + 1], b.low[j]);
    mma(upper, upper + THREAD_N, a.high[2 * i], a.high[2 * i + 1], b.high[j]);
}

// Which lane of a warp a lane is along the rows of C.
__device__ __forceinline__ int lane_m(int lane) { return lane / 4; }

// Where in the warp tile the i-th row of lanes `along_m` is, and a lane's j-th column.
__device__ __forceinline__ int row_of(int i, int along_m) { return along_m + 8 * i; }
__device__ __forceinline__ int col_of(int j, int lane) { return lane % 4 * 2 + j / 2 * 8 + j % 2; }

// A warp tile from A and B as they are, every product and sum in float: for infinities, NaN and what else terms cannot
// hold. Slow, and rare.
__device__ __forceinline__ void multiply_plainly(
    T (&sums)[ACC], const T* A, int lda, const T* B, int ldb, Index row, Index col, int m, int n, int depth, int lane)
{
    const T* a[THREAD_M];
    #pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        const Index at = min(row + row_of(i, lane_m(lane)), Index(m - 1));  // what lies outside is not stored
        a[i] = A + at * lda;
    }
    const int last = int(min(n - 1 - col, Index(WARP_N - 1)));  // column of the warp tile; negative where it has none
    const T* b = B + col;
    #pragma unroll 1
    for (int p = 0; p < depth; ++p) {
        T x[THREAD_M];
        #pragma unroll
        for (int i = 0; i < THREAD_M; ++i) {
            x[i] = *a[i];
            a[i] += 1;
        }
        #pragma unroll
        for (int j = 0; j < THREAD_N; ++j) {
            const T y = b[min(col_of(j, lane), last)];
            #pragma unroll
            for (int i = 0; i < THREAD_M; ++i) sums[i * THREAD_N + j] += x[i] * y;
        }
        b += ldb;
    }
}

// Writes accumulators of a thread, VEC_C elements of a row of C at a time: those from `first` on, row after row.
// `c` is where the warp tile begins; `rows` and `cols` are left of C from there.
template <int VEC_C, bool GUARDED>
__device__ __forceinline__ void store(
    T (&out)[ACC], int first, T* c, int ldc, int rows, int cols, int lane, T alpha, T beta)
{
    // Where the vector belongs that begins with out[e]; null outside of C.
    const auto place_of = [&](int e) -> Vector<VEC_C>* {
        const int row = row_of((first + e) / THREAD_N, lane_m(lane));
        const int col = col_of((first + e) % THREAD_N, lane);
        if constexpr (GUARDED) if (row >= rows || col >= cols) return nullptr;
        return reinterpret_cast<Vector<VEC_C>*>(c + Index(row) * ldc + col);
    };
    #pragma unroll
    for (int e = 0; e < ACC; ++e) out[e] *= alpha;
    // All is read before any of it is written, else each read would wait for the write before it; but not all at a
    // time, which would take as many registers again.
    if (beta != T(0)) {
        #pragma unroll
        for (int e = 0; e < ACC; e += VEC_C) {
            if (const Vector<VEC_C>* place = place_of(e)) {
                const Vector<VEC_C> old = *place;
                #pragma unroll
                for (int v = 0; v < VEC_C; ++v) out[e + v] += beta * old.x[v];
            }
            if ((e + VEC_C) % THREAD_N == 0) asm volatile("" ::: "memory");  // a row's reads at a time
        }
    }
    #pragma unroll
    for (int e = 0; e < ACC; e += VEC_C) {
        if (Vector<VEC_C>* place = place_of(e)) {
            Vector<VEC_C> value;
            #pragma unroll
            for (int v = 0; v < VEC_C; ++v) value.x[v] = out[e + v];
            *place = value;
        }
    }
}

constexpr int VEC_A    = 4;     // elements of A that one copy moves
constexpr int VEC_B    = 4;     // elements of B that one copy moves
constexpr int VEC_C    = 2;     // elements of C that one store moves
constexpr bool GUARDED = true;  // tiles may reach beyond the matrices

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1) gemm_tf32x3_f32_nn_64x64x32_20b9e806(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, T* __restrict__ C, int ldc,
    int m, int n, int k, T alpha, T beta)
{
    using CopyA = Copies<TileA, BLOCK_M, true, VEC_A, GUARDED>;
    using CopyB = Copies<TileB, BLOCK_N, false, VEC_B, GUARDED>;
    __shared__ __align__(16) T shared[SMEM_BYTES / sizeof(T)];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_m = warp / WARPS_N % WARPS_M * WARP_M, warp_n = warp % WARPS_N * WARP_N;
    const unsigned tiles_n = unsigned(n - 1) / BLOCK_N + 1;
    const unsigned tile_m = blockIdx.x / tiles_n, tile_n = blockIdx.x % tiles_n;
    const Index row0 = Index(tile_m) * BLOCK_M, col0 = Index(tile_n) * BLOCK_N;
    const int depth = alpha == T(0) ? 0 : k;  // A and B are not read where alpha is 0
    const int tiles = int((unsigned(depth) + BLOCK_K - 1) / BLOCK_K);
    CopyA a(A, lda, row0, 0, int(min(m - row0, Index(BLOCK_M))));
    CopyB b(B, ldb, col0, 0, int(min(n - col0, Index(BLOCK_N))));
    int k_left = depth;  // of the next tile to be fetched
    T acc[ACC] = {};
    int reading = 0;  // where the stage begins that is multiplied
    T a_fragment[2][THREAD_M][LANE_K];
    T b_fragment[2][THREAD_N / 2][LANE_K];
    const T *a_places[TileA::BASES], *b_places[TileB::BASES];
    TileA::find(a_places, shared, warp_m, 0, lane);
    TileB::find(b_places, shared + TileA::SIZE, warp_n, 0, lane);
    griddepcontrol_wait();
    launch_dependents();

    int writing = (STAGES - 1) * STAGE;  // where the stage begins that is filled next
    const Pipeline<CopyA, CopyB> pipeline = {a, b, k_left};
    #pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < tiles) pipeline.fetch(shared + stage * STAGE);
        commit_copies();
    }
    wait_tile();

    // Read a group's fragments of one step to one of the buffers.
    const auto read_a = [&](int p, int i, int to) {
        TileA::read(a_fragment[to][i], a_places, reading, p * STEP, i);
    };
    const auto read_b = [&](int p, int j, int to) {
        TileB::read(b_fragment[to][j], b_places, reading, p * STEP, j);
    };
    const auto read_all = [&](int step) {
        #pragma unroll
        for (int i = 0; i < THREAD_M; ++i) read_a(step, i, 0);
        #pragma unroll
        for (int j = 0; j < THREAD_N / 2; ++j) read_b(step, j, 0);
    };
    // Reads the fragments of the next step that go with the `place`-th instruction of a step: one group, and with the
    // last instruction all that are left. Groups of B come first: registers then take them that no instruction has
    // used for some time, else the read would wait for it.
    const auto read_next = [&](int step, int place) {
        constexpr int LAST_PLACE = MMAS_M * (THREAD_N / 2) - 1;
        #pragma unroll
        for (int read = place; read < READS; read += place == LAST_PLACE ? 1 : READS) {
            if (read < THREAD_N / 2) read_b((step + 1) % STEPS, read, (step + 1) % 2);
            else read_a((step + 1) % STEPS, read - THREAD_N / 2, (step + 1) % 2);
        }
    };
    // Goes on to the next tile.
    const auto next_tile = [&] {
        wait_tile();
        reading = reading == (STAGES - 1) * STAGE ? 0 : reading + STAGE;
    };

    read_all(0);

    T partial[ACC] = {};   // what the tensor cores have added up since promote()
    unsigned least = ~0u;  // magnitude of A and B but 0, its bits
    const auto promote = [&] {
        #pragma unroll
        for (int e = 0; e < ACC; ++e) {
            acc[e] += partial[e];
            partial[e] = 0;
        }
    };
    #pragma unroll 1
    for (int each = 0; each < tiles; ++each) {
        // The stage that was multiplied last is filled again: no thread reads it any more.
        if (each + STAGES - 1 < tiles) pipeline.fetch(shared + writing);
        commit_tile(writing);

        #pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (step == STEPS - 1) next_tile();
            const auto a_terms = split_fragment(a_fragment[step % 2], least);
            const auto b_terms = split_fragment(b_fragment[step % 2], least);
            #pragma unroll
            for (int i = 0; i < MMAS_M; ++i) {
                #pragma unroll
                for (int j = 0; j < THREAD_N / 2; ++j) {
                    multiply(partial, a_terms, b_terms, i, j);
                    read_next(step, i * (THREAD_N / 2) + j);
                }
            }
            if ((step + 1) % (PROMOTE / STEP) == 0) promote();
        }
    }

    // Once more in float where terms do not hold the operands: then a sum is not finite, or a magnitude is tiny.
    bool special = depth < LEAST_K || least < TINY;
    #pragma unroll
    for (int e = 0; e < ACC; ++e) special |= !(fabsf(acc[e]) < 1.7014118e38f);  // 2^127: not NaN, nor near infinity
    if (__any_sync(~0u, special)) {
        #pragma unroll
        for (int e = 0; e < ACC; ++e) acc[e] = 0;
        multiply_plainly(acc, A, lda, B, ldb,
                         row0 + warp_m, col0 + warp_n, m, n, depth, lane);
    }
    const Index row = row0 + warp_m, col = col0 + warp_n;
    const int rows = int(min(m - row, Index(WARP_M))), cols = int(min(n - col, Index(WARP_N)));
    store<VEC_C, GUARDED>(acc, 0, C + row * ldc + col, ldc, rows, cols, lane, alpha, beta);
}
