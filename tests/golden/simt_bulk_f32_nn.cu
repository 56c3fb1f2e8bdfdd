// gemm_simt_f32_nn_bu_bm32_bn32_bk64_tm4_tn4_l8_s3_c1_va4_vb4_vc1_ka1_kb0_p1_w4_z3_x0_g1_r1_ebounds
// Register tiles fed from shared memory, by the ordinary multiply-add.
//
//   C = alpha * op(A) * op(B) + beta * C      float, every matrix row-major
//
//   op(A) is m x k; A is stored m x k, lda elements from row to row
//   op(B) is k x n; B is stored k x n, ldb elements from row to row
//   C is m x n, ldc elements from row to row; it is not read where beta is 0
//   A and B are not read where alpha is 0
//
//   sizes      any m, n > 0 and k >= 0
//   alignment  A, B and C to 4, 4, 1 elements of 4 bytes: pointer, leading dimension and stored row
//   grid       ceil(m / 32) * ceil(n / 32) * 3 blocks along x
//   block      (288, 1, 1): 288 threads
//   shared     53760 bytes, given at launch
//   workspace  4096 bytes a block, then 4 each 3 blocks,
//              which must be 0 and are left 0
//
// Written by tilewright from templates/simt.cu.jinja, digest a6f30f57a5d28e9e. To write it again:
//   tilewright emit --dtype float --trans nn --config
//       "simt:bulk=1, block_m=32, block_n=32, block_k=64, thread_m=4, thread_n=4, lanes_m=8,
//        stages=3, cp_async=1, pack_a=0, pack_b=0, vec_a=4, vec_b=4, vec_c=1, a_k_inner=1,
//        b_k_inner=0, prefetch=1, rows_first=0, slices=4, apart=0, split_k=3, cluster=0, tail=1,
//        stream_k=0, group_m=1, min_blocks=1, staged_c=0, stream_c=0, atomic=0, warm_l2=0,
//        copy_groups=1, edge=bounds"

namespace {

using T = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int BLOCK_M    = 32;     // rows of C a block computes
constexpr int BLOCK_N    = 32;     // columns of C a block computes
constexpr int BLOCK_K    = 64;     // steps of k that a tile covers
constexpr int THREAD_M   = 4;      // rows of C a thread computes
constexpr int THREAD_N   = 4;      // columns of C a thread computes
constexpr int LANES_M    = 8;      // lanes of a warp along the rows of C
constexpr int STAGES     = 3;      // tiles that shared memory holds at a time
constexpr int CP_ASYNC   = 1;      // 1 = cp.async fills shared memory, 0 = tiles pass through registers
constexpr int PACK_A     = 0;      // 1 = A is copied to aligned rows first, k x m
constexpr int PACK_B     = 0;      // 1 = B is copied to aligned rows first, k x n
constexpr int VEC_A      = 4;      // elements of A that one copy moves
constexpr int VEC_B      = 4;      // elements of B that one copy moves
constexpr int VEC_C      = 1;      // elements of C that one store moves
constexpr int A_K_INNER  = 1;      // 1 = k stays innermost in the tiles of A, 0 = m is
constexpr int B_K_INNER  = 0;      // 1 = k stays innermost in the tiles of B, 0 = n is
constexpr int PREFETCH   = 1;      // 1 = registers hold the operands of the next step too
constexpr int SLICES     = 4;      // groups of warps that share out the k of each tile
constexpr int APART      = 0;      // 1 = each copies its own steps of k, and waits for its own threads alone
constexpr int SPLIT_K    = 3;      // blocks that share out k
constexpr int CLUSTER    = 0;      // 1 = they form a cluster, and add up in each other's shared memory
constexpr int TAIL       = 1;      // they share out the last one of so many parts of the tiles of C
constexpr int STREAM_K   = 0;      // blocks that share out evenly the k of tiles left over, 0 = none
constexpr int GROUP_M    = 1;      // tiles that blocks go down before they go right
constexpr int MIN_BLOCKS = 1;      // blocks that the registers must allow on a multiprocessor
constexpr int STAGED_C   = 0;      // 1 = sums pass through shared memory, so that lanes write neighbours in C
constexpr int ATOMIC     = 0;      // 1 = they add up in one tile by atomics: never quite the same bits again
constexpr int WARM_L2    = 0;      // 1 = a block asks for its first tiles while earlier kernels end
constexpr int THREADS    = 256;    // threads of a block that multiply
constexpr bool TRANS_A   = false;  // A is stored k x m
constexpr bool TRANS_B   = false;  // B is stored n x k
constexpr bool GUARD     = true;   // loads and stores outside the matrices are left out

constexpr int LANES_N       = 32 / LANES_M;            // lanes of a warp along the columns of C
constexpr int WARP_M        = LANES_M * THREAD_M;      // rows of C a warp computes
constexpr int WARP_N        = LANES_N * THREAD_N;      // columns of C a warp computes
constexpr int WARPS_M       = BLOCK_M / WARP_M;        // warps of a slice along the rows of C
constexpr int WARPS_N       = BLOCK_N / WARP_N;        // warps of a slice along the columns of C
constexpr int SLICE_THREADS = 32 * WARPS_M * WARPS_N;  // threads of a slice
constexpr int WIDE          = 16 / int(sizeof(T));     // elements of the widest load
constexpr int STEP          = A_K_INNER || B_K_INNER ? WIDE : 1;  // steps of k that a thread reads at once
constexpr int STEPS         = BLOCK_K / SLICES / STEP;  // such steps of a thread in a tile
constexpr int SUMS          = THREAD_M * THREAD_N;     // sums of a thread
constexpr int SHARE         = SUMS / SLICES;           // those it writes in the end

static_assert(BLOCK_M % WARP_M == 0,
              "block_m 32 is a multiple of the rows of a warp, thread_m 4 * lanes_m 8");
static_assert(BLOCK_N % WARP_N == 0,
              "block_n 32 is a multiple of the columns of a warp, thread_n 4 * 32 / lanes_m 8");
static_assert(WARP_M % WIDE == 0 && WARP_N % WIDE == 0,
              "the rows of a warp, thread_m 4 * lanes_m 8, and its columns are whole vectors of 16 bytes");
static_assert(CP_ASYNC || STAGES == 2,
              "tiles that pass through registers use two stages, not 3");
static_assert(!TRANS_A || !A_K_INNER,
              "k is innermost in the tiles of A only if stored rows of A run along k");
static_assert(TRANS_B || !B_K_INNER,
              "k is innermost in the tiles of B only if stored rows of B run along k");
static_assert(VEC_A <= WIDE,
              "vec_a 4 is at most 16 bytes and divides the stored rows of A");
static_assert(VEC_B <= WIDE,
              "vec_b 4 is at most 16 bytes and divides the stored rows of B");
static_assert(VEC_C <= WIDE,
              "vec_c 1 is at most 16 bytes and divides the stored rows of C");
static_assert(VEC_C <= WIDE && THREAD_N % VEC_C == 0 && !(B_K_INNER && VEC_C > 1),
              "vec_c 1 is at most the neighbours in a row of C that a thread computes");
static_assert(!(CP_ASYNC && !TRANS_A && !A_K_INNER) || VEC_A == 1,
              "cp.async transposes A element by element: vec_a 4 is 1");
static_assert(!(CP_ASYNC && TRANS_B && !B_K_INNER) || VEC_B == 1,
              "cp.async transposes B element by element: vec_b 4 is 1");
static_assert(BLOCK_K % (SLICES * STEP * (1 + PREFETCH)) == 0,
              "block_k 64 is whole steps for each of 4 slices, an even number of them with prefetch 1");
static_assert(THREAD_M * THREAD_N % (SLICES * VEC_C) == 0,
              "thread_m 4 * thread_n 4 sums are whole vectors for each of 4 slices");
static_assert(THREAD_M * THREAD_N * BLOCK_K <= 2560 * SLICES,
              "a thread has at most 2560 multiply-adds in a tile: they are unrolled");
static_assert(!APART || SLICES > 1,
              "only one of several slices can go apart, not with slices 4");
static_assert(!CLUSTER || (2 <= SPLIT_K && SPLIT_K <= 8),
              "a cluster has 2 to 8 blocks, not 3");
static_assert(TAIL == 1 || (SPLIT_K > 1 && !CLUSTER),
              "tail 1 is for blocks that share out k, not 3, and add up in device memory, cluster 0");
static_assert(!STREAM_K || SPLIT_K == 1,
              "stream_k 0 shares out k by itself: split_k is 1, and warm_l2 0");
static_assert((!PACK_A || TRANS_A) && (!PACK_B || !TRANS_B),
              "operands are padded or packed, not both: edge bounds");
static_assert(!STAGED_C || !CLUSTER,
              "blocks of a cluster write their own sums: others still read their shared memory");
static_assert(!WARM_L2 || (!PACK_A && !PACK_B),
              "packed operands are written by the kernel before: none are asked for with warm_l2 0");
static_assert(!ATOMIC || SPLIT_K > 1,
              "sums are added by atomics where blocks share out k: split_k 3 is above 1");
static_assert(!ATOMIC || !CLUSTER,
              "blocks of a cluster add up in shared memory, not by atomics");
static_assert(!ATOMIC || TAIL == 1,
              "sums are added by atomics where all tiles of C are shared, tail 1 is 1");
static_assert(THREADS <= 1024,
              "a block has at most as many threads as the device allows");
static_assert(THREADS == SLICES * SLICE_THREADS, "every warp has its part of the tile");

// Waits for the kernels before this one and what they wrote: in every thread, before it touches a matrix.
// Where the launch asks for it (programmatic dependent launch), this kernel comes up while the last one ends.
__device__ __forceinline__ void wait_for_previous()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel come up as soon as blocks of this one end, where its launch asks for that.
__device__ __forceinline__ void let_next_come()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// What tells the device where a matrix is and what a copy brings of it: CUDA's CUtensorMap.
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

// A barrier in shared memory. Each of its phases takes some arrivals, and the bytes that those announce.
struct Barrier {
    unsigned long long state;

#ifndef TILEWRIGHT_HOST
    __device__ __forceinline__ unsigned address() const { return unsigned(__cvta_generic_to_shared(this)); }
#endif

    __device__ __forceinline__ void init(unsigned count)
    {
#ifdef TILEWRIGHT_HOST
        tilewright_host::init_barrier(this, count);
#else
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address()), "r"(count) : "memory");
#endif
    }

    __device__ __forceinline__ void arrive()
    {
#ifdef TILEWRIGHT_HOST
        tilewright_host::arrive_barrier(this);
#else
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(address()) : "memory");
#endif
    }

    // Arrives, and makes the phase wait for so many bytes more.
    __device__ __forceinline__ void expect(unsigned bytes)
    {
#ifdef TILEWRIGHT_HOST
        tilewright_host::arrive_barrier(this, bytes);
#else
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                     ::"r"(address()), "r"(bytes)
                     : "memory");
#endif
    }

    // Waits for the end of the phase of this parity, which is 0 for the first. What is before the first
    // counts as ended, with parity 1.
    __device__ __forceinline__ void wait(unsigned parity)
    {
#ifdef TILEWRIGHT_HOST
        tilewright_host::wait_barrier(this, parity);
#else
        unsigned ended = 0;
        while (!ended) {
            asm volatile("{ .reg .pred ended;\n"
                         "mbarrier.try_wait.parity.shared.b64 ended, [%1], %2;\n"
                         "selp.u32 %0, 1, 0, ended; }"
                         : "=r"(ended)
                         : "r"(address()), "r"(parity)
                         : "memory");
        }
#endif
    }
};

// Lets copies see barriers that this thread has made; other threads see them after the block's barrier.
__device__ __forceinline__ void publish_barriers()
{
#ifndef TILEWRIGHT_HOST
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Starts to copy what a map describes, from row `row` and column `col` of the stored matrix on. What lies
// outside of it becomes 0. Its bytes arrive at the barrier.
__device__ __forceinline__ void copy_tensor(T* to, const TensorMap& map, int col, int row, Barrier& barrier)
{
#ifdef TILEWRIGHT_HOST
    tilewright_host::copy_tensor(to, &map, col, row, &barrier);
#else
    const unsigned address = unsigned(__cvta_generic_to_shared(to));
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, { %2, %3 }], [%4];"
                 ::"r"(address), "l"(&map), "r"(col), "r"(row), "r"(barrier.address())
                 : "memory");
#endif
}

template <int COUNT>
struct alignas(COUNT * sizeof(T)) Vector {
    T x[COUNT];
};

// How one operand comes to shared memory, and from there to the registers.
//
//   EXTENT   rows of op(A), or columns of op(B), in a tile: its other side is BLOCK_K
//   COUNT    those of one thread
//   LANES    lanes of a warp that share out a warp's
//   K_INNER  rows run along k in memory, and in shared memory, 128 bytes of each before the next row's
template <int EXTENT, int COUNT, int LANES, bool K_INNER>
struct Operand {
    static constexpr int PITCH = K_INNER ? 8 * WIDE : EXTENT;  // of a row in shared memory: 128 bytes, or all
    static constexpr int SIZE = EXTENT * BLOCK_K;              // of a tile there
    static constexpr int CHUNK = K_INNER ? 1 : COUNT < WIDE ? COUNT : WIDE;  // neighbours read at once

    const T* tile;  // in the first stage: where a thread's share begins, its step of k left aside
    int step;       // where its first step of k is in a row of 128 bytes, pieces swapped as in that row

    // For a warp whose share begins at `first`. A thread owns chunks of CHUNK neighbours, LANES chunks apart,
    // so that the lanes of a warp together read without gaps.
    __device__ __forceinline__ Operand(const T* stage, int first, int lane, int k)
    {
        if constexpr (K_INNER) {
            tile = stage + (k / PITCH * EXTENT + first + lane) * PITCH;
            step = k % PITCH ^ (first + lane) % 8 * WIDE;
        } else {
            tile = stage + k * PITCH + first + lane * CHUNK;
            step = 0;
        }
    }

    // Which row or column of the warp's share a thread's i-th is.
    static __device__ __forceinline__ int owned(int i, int lane)
    {
        return (i / CHUNK * LANES + lane) * CHUNK + i % CHUNK;
    }

    // Starts to copy a tile: from row or column `outer` of the operand, and from step `k` on.
    static __device__ __forceinline__ void copy(
        T* to, const TensorMap& map, int outer, int k, Barrier& barrier)
    {
        if constexpr (K_INNER) {
            #pragma unroll
            for (int row = 0; row < BLOCK_K; row += PITCH) {
                copy_tensor(to + row * EXTENT, map, k + row, outer, barrier);
            }
        } else {
            copy_tensor(to, map, outer, k, barrier);
        }
    }

    // Reads the share from STEP steps of k, from `p` after the thread's first one on, of the stage that
    // begins `stage` elements after the first.
    __device__ __forceinline__ void read(T (&fragment)[STEP][COUNT], int stage, int p) const
    {
        if constexpr (K_INNER) {
            #pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                // A thread's first step is a multiple of its steps of a tile, or of PITCH: no carry.
                const int at = (step ^ i * LANES % 8 * WIDE) ^ p % PITCH;
                const T* from = tile + stage + (p / PITCH * EXTENT + i * LANES) * PITCH + at;
                const auto along = *reinterpret_cast<const Vector<STEP>*>(from);
                #pragma unroll
                for (int e = 0; e < STEP; ++e) fragment[e][i] = along.x[e];
            }
        } else {
            #pragma unroll
            for (int e = 0; e < STEP; ++e) {
                #pragma unroll
                for (int i = 0; i < COUNT; i += CHUNK) {
                    const T* from = tile + stage + (p + e) * PITCH + i * LANES;
                    const auto chunk = *reinterpret_cast<const Vector<CHUNK>*>(from);
                    #pragma unroll
                    for (int c = 0; c < CHUNK; ++c) fragment[e][i + c] = chunk.x[c];
                }
            }
        }
    }
};

using TileA = Operand<BLOCK_M, THREAD_M, LANES_M, A_K_INNER != 0>;
using TileB = Operand<BLOCK_N, THREAD_N, LANES_N, B_K_INNER != 0>;
constexpr int STAGE = TileA::SIZE + TileB::SIZE;  // elements of a stage: a tile of op(A), then one of op(B)

// Where a thread's slice of each tile begins along k.
__device__ __forceinline__ int slice_begin() { return threadIdx.x / SLICE_THREADS * (BLOCK_K / SLICES); }

// Adds the slices' sums up, slice after slice, and leaves each slice its share of them: all threads have sums
// to write then. Through shared memory that holds nothing else any more.
__device__ __forceinline__ void add_slices(T (&share)[SHARE], T (&sum)[SUMS], T* shared)
{
    T* const mine = shared + threadIdx.x % SLICE_THREADS;
    const int slice = threadIdx.x / SLICE_THREADS;
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < SUMS; ++e) mine[(slice * SUMS + e) * SLICE_THREADS] = sum[e];
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < SHARE; ++e) {
        share[e] = 0;
        #pragma unroll
        for (int from = 0; from < SLICES; ++from) {
            share[e] += mine[(from * SUMS + slice * SHARE + e) * SLICE_THREADS];
        }
    }
}

// Adds to a counter that blocks share, and gives what it was. What this thread has written or seen is there
// for those who see the new count, and what others had before they counted is there for this one.
__device__ __forceinline__ unsigned count(unsigned* counter, unsigned by)
{
#ifdef TILEWRIGHT_HOST
    return atomicAdd(counter, by);
#else
    unsigned before;
    asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(by) : "memory");
    return before;
#endif
}

// Counts this block's part of `all` once all of its threads have come. True in the last block, which sees
// what the others wrote before. The counter is 0 before and after. One thread orders memory for all of its
// block: the barriers pass on to it what they wrote, and to them what it may see.
__device__ __forceinline__ bool arrives_last(unsigned* counter, bool* last, unsigned part, unsigned all)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        *last = count(counter, part) == all - part;
        if (*last) *counter = 0;
    }
    __syncthreads();
    return *last;
}

// Adds up the sums of the SPLIT_K blocks that share a tile of C, always in the same order, so that every
// run gives the same bits. Each block writes its own to the workspace, and the last one adds them up. True
// in that block.
//
// The workspace holds a tile for each block, then a counter for each tile of C, 0 before and after.
__device__ __forceinline__ bool add_splits(T (&share)[SHARE], T* workspace, T* shared)
{
    constexpr int WIDTH = SHARE % WIDE == 0 ? WIDE : SHARE % 2 == 0 ? 2 : 1;
    using Group = Vector<WIDTH>;              // what a thread writes at a time
    constexpr int GROUPS = SHARE / WIDTH;     // of a thread
    constexpr int TILE = THREADS * GROUPS;    // of a block
    constexpr int WORDS = SHARE * int(sizeof(T)) / 4;
    constexpr int AHEAD = WORDS > 32 ? 1 : 64 / WORDS;  // splits read at a time: more would take registers
    const unsigned place = blockIdx.x, places = gridDim.x;
    const int split = int(place % SPLIT_K);
    unsigned* const counters = reinterpret_cast<unsigned*>(workspace + Index(places) * THREADS * SHARE);
    Group* const tiles = reinterpret_cast<Group*>(workspace) + Index(place - split) * TILE + threadIdx.x;
    bool* const last = reinterpret_cast<bool*>(shared);  // which holds nothing else any more

    #pragma unroll
    for (int g = 0; g < SHARE / WIDTH; ++g) {
        Vector<WIDTH> group;
        #pragma unroll
        for (int e = 0; e < WIDTH; ++e) group.x[e] = share[g * WIDTH + e];
        tiles[Index(split) * TILE + g * THREADS] = group;
    }
    if (!arrives_last(counters + place / SPLIT_K, last, 1, SPLIT_K)) return false;

    #pragma unroll
    for (int e = 0; e < SHARE; ++e) share[e] = 0;
    #pragma unroll AHEAD
    for (int each = 0; each < SPLIT_K; ++each) {
        #pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const Group group = tiles[Index(each) * TILE + g * THREADS];
            #pragma unroll
            for (int e = 0; e < WIDTH; ++e) share[g * WIDTH + e] += group.x[e];
        }
    }
    return true;
}

// Adds the products of two fragments, column after column up and down: neighbours in time share an operand.
__device__ __forceinline__ void multiply(
    T (&sum)[SUMS], const T (&a)[STEP][THREAD_M], const T (&b)[STEP][THREAD_N])
{
    #pragma unroll
    for (int e = 0; e < STEP; ++e) {
        #pragma unroll
        for (int j = 0; j < THREAD_N; ++j) {
            #pragma unroll
            for (int up = 0; up < THREAD_M; ++up) {
                const int i = j % 2 ? THREAD_M - 1 - up : up;
                sum[i * THREAD_N + j] += a[e][i] * b[e][j];
            }
        }
    }
}

// Which lane of a warp a lane is along the rows of C, and along the columns. The lowest bit counts along n,
// the next ones along m, the rest along n again: then lanes i and i^1 read the same of A, i and i^2 the same
// of B, and a 16-byte read of a warp passes in two goes.
__device__ __forceinline__ int lane_m(int lane) { return lane / 2 % LANES_M; }
__device__ __forceinline__ int lane_n(int lane) { return lane / (2 * LANES_M) * 2 + lane % 2; }

// Where in the warp's part of C the i-th row of lanes `along_m` is, and a lane's j-th column.
__device__ __forceinline__ int row_of(int i, int along_m) { return TileA::owned(i, along_m); }
__device__ __forceinline__ int col_of(int j, int lane) { return TileB::owned(j, lane_n(lane)); }

// Writes a thread's share of C, VEC_C elements of a row at a time: the sums from `first` on, row after row.
// `c` is where the warp's part begins; `rows` and `cols` are left of C from there.
__device__ __forceinline__ void store(
    T (&share)[SHARE], int first, T* c, int ldc, int rows, int cols, int lane,
    T alpha, T beta)
{
    // Where the vector belongs that begins with sum e of the share; null outside of C.
    const auto place_of = [&](int e) -> Vector<VEC_C>* {
        const int row = row_of((first + e) / THREAD_N, lane_m(lane));
        const int col = col_of((first + e) % THREAD_N, lane);
        if (GUARD && (row >= rows || col >= cols)) return nullptr;
        return reinterpret_cast<Vector<VEC_C>*>(c + Index(row) * ldc + col);
    };
    #pragma unroll
    for (int e = 0; e < SHARE; ++e) share[e] *= alpha;
    // All of C is read before any of it is written, else each read would wait for the write before it; but
    // not all at a time, which would take as many registers again.
    if (beta != T(0)) {
        #pragma unroll
        for (int e = 0; e < SHARE; e += VEC_C) {
            if (const Vector<VEC_C>* place = place_of(e)) {
                const auto old = *place;
                #pragma unroll
                for (int v = 0; v < VEC_C; ++v) share[e + v] += beta * old.x[v];
            }
            if ((e + VEC_C) % THREAD_N == 0) asm volatile("" ::: "memory");  // a row's reads at a time
        }
    }
    #pragma unroll
    for (int e = 0; e < SHARE; e += VEC_C) {
        if (Vector<VEC_C>* place = place_of(e)) {
            Vector<VEC_C> made;
            #pragma unroll
            for (int v = 0; v < VEC_C; ++v) made.x[v] = share[e + v];
            *place = made;
        }
    }
}

}  // namespace

//                   BLOCK_N          Each block computes a tile of C, each warp of it WARP_M x WARP_N, each
//                 +---------+        thread THREAD_M x THREAD_N in registers: chunks of up to 16 bytes that
//         BLOCK_K |         | op(B)  alternate with those of the warp's other lanes.
//                 +---------+
//       BLOCK_K        v             Tiles of op(A) and op(B) pass along k through STAGES buffers in shared
//       +-----+   +----+----+        memory. While one is multiplied the next are on their way:
// BLOCK |     | > |warp|warp|  C     a thread of one warp more starts copies of whole tiles.
//    _M |     |   +----+----+
//       |     |   |warp|warp|        A warp waits until a tile has come, and tells when it has read it. When
//       +-----+   +----+----+        all have, its buffer is filled again. The block has no barrier there.
//        op(A)
extern "C" __global__ void __launch_bounds__(THREADS + 32, MIN_BLOCKS)
gemm_simt_f32_nn_bu_bm32_bn32_bk64_tm4_tn4_l8_s3_c1_va4_vb4_vc1_ka1_kb0_p1_w4_z3_x0_g1_r1_ebounds(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, T* __restrict__ C, int ldc,
    int m, int n, int k, T alpha, T beta, T* __restrict__ workspace,
    const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b)
{
    extern __shared__ __align__(1024) T shared[];

    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int warp_m = warp / WARPS_N % WARPS_M * WARP_M;
    const int warp_n = warp % WARPS_N * WARP_N;

    // The block's tile of C. Blocks go down GROUP_M tiles, then one to the right: those that run at a time
    // share more of A and B in the cache than a row of tiles would.
    const unsigned blocks_n = unsigned(n - 1) / BLOCK_N + 1;
    const unsigned block = blockIdx.x / SPLIT_K;
    unsigned tile_m = block / blocks_n, tile_n = block % blocks_n;
    if constexpr (GROUP_M > 1) {
        const unsigned blocks_m = unsigned(m - 1) / BLOCK_M + 1;
        const unsigned top = block / (GROUP_M * blocks_n) * GROUP_M;  // first row of tiles of the group
        const unsigned height = min(unsigned(GROUP_M), blocks_m - top);
        tile_m = top + block % (GROUP_M * blocks_n) % height;
        tile_n = block % (GROUP_M * blocks_n) / height;
    }
    const Index row0 = Index(tile_m) * BLOCK_M;
    const Index col0 = Index(tile_n) * BLOCK_N;

    // What this block covers of k.
    const int depth = alpha == T(0) ? 0 : k;
    const int all_tiles = int((unsigned(depth) + BLOCK_K - 1) / BLOCK_K);
    const int split = int(blockIdx.x % SPLIT_K), over = all_tiles % SPLIT_K;  // the first take one more
    const int first_tile = all_tiles / SPLIT_K * split + min(split, over);
    const int tiles = all_tiles / SPLIT_K + (split < over);
    const Index k_begin = Index(first_tile) * BLOCK_K;
    const TileA a(shared, warp_m, lane_m(lane), slice_begin());
    const TileB b(shared + TileA::SIZE, warp_n, lane_n(lane), slice_begin());

    T sum[SUMS] = {};
    T a_part[2][STEP][THREAD_M];
    T b_part[2][STEP][THREAD_N];
    int reading = 0;  // where the stage begins that is multiplied
    static_assert(STAGES * STAGE * sizeof(T) + 2 * STAGES * sizeof(Barrier) <= 53760, "they fit");
    Barrier* const filled = reinterpret_cast<Barrier*>(shared + STAGES * STAGE);  // with a tile
    Barrier* const emptied = filled + STAGES;                                     // of the tile before
    if (threadIdx.x == 0) {
        #pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) {
            filled[stage].init(1);
            emptied[stage].init(THREADS / 32);
        }
        publish_barriers();
    }
    __syncthreads();
    wait_for_previous();
    let_next_come();

    if (threadIdx.x >= THREADS) {
        if (lane == 0) {
            int stage = 0;
            unsigned parity = 1;
            #pragma unroll 1
            for (int tile = 0; tile < tiles; ++tile) {
                emptied[stage].wait(parity);  // by all warps
                filled[stage].expect(STAGE * sizeof(T));
                const int k_at = int(k_begin) + tile * BLOCK_K;
                TileA::copy(shared + stage * STAGE, map_a, int(row0), k_at, filled[stage]);
                TileB::copy(shared + stage * STAGE + TileA::SIZE, map_b, int(col0), k_at, filled[stage]);
                if (++stage == STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            }
        }
#ifdef TILEWRIGHT_HOST
        tilewright_host::leave_barriers();
#endif
        return;
    }

    int stage = 0;
    unsigned parity = 0;
    // This warp has read its part of a tile: goes on to the next one, if there is `more`.
    const auto turn = [&](bool more) {
        __syncwarp();
        if (lane == 0) emptied[stage].arrive();
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
        reading = stage * STAGE;
        if (more) filled[stage].wait(parity);
    };
    if (tiles > 0) filled[0].wait(0);
    a.read(a_part[0], 0, 0);
    b.read(b_part[0], 0, 0);

    #pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {

        // The next step's operands are read before this one's are multiplied, at last those of the next tile.
        #pragma unroll
        for (int step = 0; step < STEPS - 1; ++step) {
            a.read(a_part[(step + 1) % 2], reading, (step + 1) * STEP);
            b.read(b_part[(step + 1) % 2], reading, (step + 1) * STEP);
            multiply(sum, a_part[step % 2], b_part[step % 2]);
        }

        turn(tile + 1 < tiles);
        a.read(a_part[0], reading, 0);
        b.read(b_part[0], reading, 0);
        multiply(sum, a_part[1], b_part[1]);
    }

    T share[SHARE];
    add_slices(share, sum, shared);
    const int first = threadIdx.x / SLICE_THREADS * SHARE;  // of the thread's sums, row after row
    if (!add_splits(share, workspace, shared)) return;

    const Index row = row0 + warp_m, col = col0 + warp_n;
    const int rows = int(min(m - row, Index(WARP_M))), cols = int(min(n - col, Index(WARP_N)));
    store(share, first, C + row * ldc + col, ldc, rows, cols, lane, alpha, beta);
}
