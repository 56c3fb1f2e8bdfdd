// gemm_simt_f32_nn_32x32x64_62a9c598
// Register tiles fed from shared memory, by the ordinary multiply-add.
//
//   C = alpha * op(A) * op(B) + beta * C in float; where alpha is 0, A and B are not read, where beta is 0, C is not
//
//   storage    row-major: A m x k, B k x n, C m x n; lda, ldb, ldc from row to row
//   sizes      any m, n > 0 and k >= 0; pointers, leading dimensions and rows of A, B, C aligned to 4, 4, 4 elements
//   launch     ceil(m / 32) * ceil(n / 32) * 3 CTAs along x,
//              (288, 1, 1) threads, 53760 bytes of shared memory, given at launch
//   workspace  4096 bytes a CTA
//   counters   one each 3 CTAs, which must be 0 and are left 0
//
// Written by tilewright from templates/simt.cu.jinja, digest 8ba385d4bed2f482. To write it again:
//   tilewright emit --dtype float --trans nn --config "simt:32x32x64,thread=4,slices=4,load=tma,k_inner_a,split_k=3"
// SPDX-License-Identifier: MIT

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#error "TMA needs sm_90 or newer"
#endif

//                   BLOCK_N          Each CTA computes a tile of C, each warp of it WARP_M x WARP_N, each
//                 +---------+        thread THREAD_M x THREAD_N in registers: chunks of up to 16 bytes that
//         BLOCK_K |         | op(B)  alternate with those of the warp's other lanes.
//                 +---------+
//       BLOCK_K        v             Tiles of op(A) and op(B) pass along k through STAGES buffers in shared
//       +-----+   +----+----+        memory. While one is multiplied the next are on their way:
// BLOCK |     | > |warp|warp|  C     a thread of one warp more starts copies of whole tiles by TMA.
//    _M |     |   +----+----+
//       |     |   |warp|warp|        A warp waits until a tile has come, and tells when it has read it. When
//       +-----+   +----+----+        all have, its buffer is filled again. The CTA has no barrier there.
//        op(A)

namespace {

using T = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int BLOCK_M    = 32;     // rows of C that a CTA computes
constexpr int BLOCK_N    = 32;     // columns of C that a CTA computes
constexpr int BLOCK_K    = 64;     // steps of k that a tile covers
constexpr int THREAD_M   = 4;      // rows of C that a thread computes
constexpr int THREAD_N   = 4;      // columns of C that a thread computes
constexpr int LANES_M    = 8;      // lanes of a warp along the rows of C
constexpr int SLICES     = 4;      // groups of warps that share the k of each tile
constexpr int STAGES     = 3;      // tiles that shared memory holds at a time
constexpr int SPLIT_K    = 3;      // CTAs that share the k of a tile of C
constexpr int MIN_CTAS   = 1;      // CTAs of an SM that the registers must allow
constexpr int SMEM_BYTES = 53760;  // shared memory of a CTA

constexpr int LANES_N       = 32 / LANES_M;             // lanes of a warp along the columns of C
constexpr int WARP_M        = LANES_M * THREAD_M;       // rows of C that a warp computes
constexpr int WARP_N        = LANES_N * THREAD_N;       // columns of C that a warp computes
constexpr int WARPS_M       = BLOCK_M / WARP_M;         // warps along the rows of C
constexpr int WARPS_N       = BLOCK_N / WARP_N;         // warps along the columns of C
constexpr int SLICE_THREADS = 32 * WARPS_M * WARPS_N;   // threads of a slice
constexpr int THREADS       = SLICES * SLICE_THREADS;   // threads that multiply
constexpr int WIDE          = 16 / int(sizeof(T));      // elements of the widest load
constexpr int STEP          = WIDE;                     // steps of k that a thread reads at once
constexpr int STEPS         = BLOCK_K / SLICES / STEP;  // such steps of a thread in a tile
constexpr int ACC           = THREAD_M * THREAD_N;      // accumulators of a thread
constexpr int OUT           = ACC / SLICES;             // those it writes in the end

static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0, "a CTA's tile is made of whole warp tiles");
static_assert(WARP_M % WIDE == 0 && WARP_N % WIDE == 0, "a warp tile is made of vectors of 16 bytes");
static_assert(BLOCK_K % (SLICES * STEP * 2) == 0, "an even number of steps of k in a tile");

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

// An mbarrier: made for so many arrivals a phase; an arrival; an arrival that makes the phase wait for so many bytes
// more.
__device__ __forceinline__ void mbarrier_init(void* barrier, unsigned count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;"
                 ::"r"(unsigned(__cvta_generic_to_shared(barrier))), "r"(count) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(void* barrier)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];"
                 ::"r"(unsigned(__cvta_generic_to_shared(barrier))) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect(void* barrier, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                 ::"r"(unsigned(__cvta_generic_to_shared(barrier))), "r"(bytes) : "memory");
}

// Waits some time for the end of the phase of this parity, and says whether it has ended. Parity is 0 for the first
// phase; what is before the first counts as ended, with parity 1.
__device__ __forceinline__ unsigned mbarrier_try_wait(void* barrier, unsigned parity)
{
    unsigned ended;
    asm volatile("{ .reg .pred ended;\n"
                 "mbarrier.try_wait.parity.shared.b64 ended, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, ended; }"
                 : "=r"(ended)
                 : "r"(unsigned(__cvta_generic_to_shared(barrier))), "r"(parity)
                 : "memory");
    return ended;
}

// The mbarriers that this thread has made are seen by copies that arrive at them, and by threads after the CTA's
// barrier.
__device__ __forceinline__ void fence_mbarrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Starts to copy a box by the tensor memory accelerator (TMA): that of the tensor map `map` from row `row` and column
// `col` of the stored matrix on, zeros outside of it. Its bytes arrive at the mbarrier.
__device__ __forceinline__ void copy_box(void* to, const void* map, int col, int row, void* barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, { %2, %3 }], [%4];"
                 ::"r"(unsigned(__cvta_generic_to_shared(to))), "l"(map), "r"(col), "r"(row),
                 "r"(unsigned(__cvta_generic_to_shared(barrier)))
                 : "memory");
}

// Adds to a counter that CTAs share, and gives what it was. What this thread has written or seen is there for those
// who see the new count, and what others had before they counted is there for this one.
__device__ __forceinline__ unsigned count(unsigned* counter, unsigned by)
{
    unsigned before;
    asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(by) : "memory");
    return before;
}

// ---- The kernel -------------------------------------------------------------------------------------------------

template <int COUNT>
struct alignas(COUNT * sizeof(T)) Vector { T x[COUNT]; };

// Where the slice of a thread begins in the steps of k of each tile.
__device__ __forceinline__ int slice_k() { return threadIdx.x / SLICE_THREADS * (BLOCK_K / SLICES); }

// An mbarrier in shared memory. Each of its phases takes some arrivals, and the bytes that those announce.
struct Barrier {
    unsigned long long state;

    __device__ __forceinline__ void init(unsigned count) { mbarrier_init(this, count); }
    __device__ __forceinline__ void arrive() { mbarrier_arrive(this); }

    // Arrives, and makes the phase wait for so many bytes more.
    __device__ __forceinline__ void expect(unsigned bytes) { mbarrier_arrive_expect(this, bytes); }

    // Waits for the end of the phase of this parity.
    __device__ __forceinline__ void wait(unsigned parity)
    {
        while (!mbarrier_try_wait(this, parity)) {}
    }
};

// What tells the TMA where a matrix is and which box of it a copy brings: CUDA's CUtensorMap.
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

// How one operand comes to shared memory, and from there to the registers.
//
//   EXTENT   rows of op(A), or columns of op(B), in a tile: its other side is BLOCK_K
//   COUNT    those of one thread
//   LANES    lanes of a warp that share out a warp tile's
//   K_INNER  rows run along k in memory, and in shared memory, 128 bytes of each before the next row's
template <int EXTENT, int COUNT, int LANES, bool K_INNER>
struct Operand {
    static constexpr int PITCH = K_INNER ? 8 * WIDE : EXTENT;  // of a row in shared memory: 128 bytes, or all
    static constexpr int SIZE = EXTENT * BLOCK_K;              // of a tile there
    static constexpr int CHUNK = K_INNER ? 1 : COUNT < WIDE ? COUNT : WIDE;  // neighbours read at once

    const T* tile;  // in the first stage: where a thread's fragments begin, its step of k left aside
    int step;       // where its first step of k is in a row of 128 bytes, swizzled as that row is

    // For a warp tile that begins at `first`, from step `k` on. A thread owns chunks of CHUNK neighbours, LANES
    // chunks apart, so that the lanes of a warp together read without gaps.
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

    // Which row or column of the warp tile a thread's i-th is.
    static __device__ __forceinline__ int owned(int i, int lane)
    {
        return (i / CHUNK * LANES + lane) * CHUNK + i % CHUNK;
    }

    // Reads a thread's fragment of STEP rows of shared memory, from row `p` on.
    static __device__ __forceinline__ void read_rows(T (&fragment)[STEP][COUNT], const T* from, int p)
    {
        #pragma unroll
        for (int e = 0; e < STEP; ++e) {
            #pragma unroll
            for (int i = 0; i < COUNT; i += CHUNK) {
                const auto chunk = *reinterpret_cast<const Vector<CHUNK>*>(from + (p + e) * PITCH + i * LANES);
                #pragma unroll
                for (int c = 0; c < CHUNK; ++c) fragment[e][i + c] = chunk.x[c];
            }
        }
    }

    // Starts to copy a tile: from row or column `outer` of the operand, and from step `k` on.
    static __device__ __forceinline__ void copy(T* to, const TensorMap& map, int outer, int k, Barrier& barrier)
    {
        if constexpr (K_INNER) {
            #pragma unroll
            for (int row = 0; row < BLOCK_K; row += PITCH) {
                copy_box(to + row * EXTENT, &map, k + row, outer, &barrier);
            }
        } else {
            copy_box(to, &map, outer, k, &barrier);
        }
    }

    // Reads a thread's fragment of STEP steps of k, from `p` after its first one on, of the stage that begins
    // `stage` elements after the first.
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
            read_rows(fragment, tile + stage, p);
        }
    }
};

using TileA = Operand<BLOCK_M, THREAD_M, LANES_M, true>;
using TileB = Operand<BLOCK_N, THREAD_N, LANES_N, false>;
constexpr int STAGE = TileA::SIZE + TileB::SIZE;  // elements of a stage: a tile of op(A), then one of op(B)
static_assert(STAGES * STAGE * sizeof(T) + 2 * STAGES * sizeof(Barrier) <= SMEM_BYTES, "the stages fit");

// The barriers of the stages, which lie behind them: a stage is filled with a tile, and emptied of the one before.
__device__ __forceinline__ void init_barriers(Barrier* filled, Barrier* emptied)
{
    if (threadIdx.x == 0) {
        #pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) {
            filled[stage].init(1);
            emptied[stage].init(THREADS / 32);
        }
        fence_mbarrier_init();
        fence_proxy_async();
    }
    __syncthreads();
}

// The producer warp: one thread of it copies every tile of op(A) and op(B).
__device__ __forceinline__ void produce(
    T* shared, Barrier* filled, Barrier* emptied, const TensorMap& map_a, const TensorMap& map_b,
    Index row0, Index col0, Index k_begin, int tiles)
{
    if (threadIdx.x % 32 == 0) {
        int stage = 0;
        unsigned parity = 1;
        #pragma unroll 1
        for (int each = 0; each < tiles; ++each) {
            emptied[stage].wait(parity);  // by all warps
            filled[stage].expect(STAGE * sizeof(T));
            const int k_at = int(k_begin) + each * BLOCK_K;
            TileA::copy(shared + stage * STAGE, map_a, int(row0), k_at, filled[stage]);
            TileB::copy(shared + stage * STAGE + TileA::SIZE, map_b, int(col0), k_at, filled[stage]);
            if (++stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
    }
}

// How the other warps read them.
struct Pipeline {
    Barrier *filled, *emptied;
    int& stage;
    unsigned& parity;  // of its phase
    int& reading;      // where it begins

    // This warp has read its fragments of a tile: goes on to the next one, if there is `more`.
    __device__ __forceinline__ void next(bool more) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0) emptied[stage].arrive();
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
        reading = stage * STAGE;
        if (more) filled[stage].wait(parity);
    }
};

// Adds the outer products of two fragments, column after column up and down: neighbours in time share an operand.
__device__ __forceinline__ void outer_product(
    T (&acc)[ACC], const T (&a)[STEP][THREAD_M], const T (&b)[STEP][THREAD_N])
{
    #pragma unroll
    for (int e = 0; e < STEP; ++e) {
        #pragma unroll
        for (int j = 0; j < THREAD_N; ++j) {
            #pragma unroll
            for (int on = 0; on < THREAD_M; ++on) {
                const int i = j % 2 ? THREAD_M - 1 - on : on;
                acc[i * THREAD_N + j] += a[e][i] * b[e][j];
            }
        }
    }
}

// Which lane of a warp a lane is along the rows of C, and along the columns. The lowest bit counts along n, the next
// ones along m, the rest along n again: then lanes i and i^1 read the same of A, i and i^2 the same of B, and a
// 16-byte read of a warp passes in two goes.
__device__ __forceinline__ int lane_m(int lane) { return lane / 2 % LANES_M; }
__device__ __forceinline__ int lane_n(int lane) { return lane / (2 * LANES_M) * 2 + lane % 2; }

// Where in the warp tile the i-th row of lanes `along_m` is, and a lane's j-th column.
__device__ __forceinline__ int row_of(int i, int along_m) { return TileA::owned(i, along_m); }
__device__ __forceinline__ int col_of(int j, int lane) { return TileB::owned(j, lane_n(lane)); }

// Adds up the accumulators of the slices, slice after slice, and leaves each slice OUT of them: all threads have some
// to write then. Through shared memory that holds nothing else any more.
__device__ __forceinline__ void reduce_slices(T (&out)[OUT], T (&acc)[ACC], T* shared)
{
    T* const mine = shared + threadIdx.x % SLICE_THREADS;
    const int slice = threadIdx.x / SLICE_THREADS;
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < ACC; ++e) mine[(slice * ACC + e) * SLICE_THREADS] = acc[e];
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < OUT; ++e) {
        out[e] = 0;
        #pragma unroll
        for (int from = 0; from < SLICES; ++from) {
            out[e] += mine[(from * ACC + slice * OUT + e) * SLICE_THREADS];
        }
    }
}

// Counts `part` of `all` for this CTA once all of its threads have come. True in the last CTA, which sees what the
// others wrote before. The counter is 0 before and after. One thread orders memory for all of its CTA: the
// barriers pass on to it what they wrote, and to them what it may see.
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

constexpr int PARTIAL  = OUT % WIDE == 0 ? WIDE : OUT % 2 == 0 ? 2 : 1;  // accumulators that lie side by side
constexpr int PARTIALS = OUT / PARTIAL;                                  // such vectors of a thread

// Adds up the accumulators of the SPLIT_K CTAs that share a tile of C, always in the same order, so that every run
// gives the same bits. Each CTA writes its own to the workspace, and the last one adds them up. True in that CTA.
//
// The workspace holds a tile for each CTA. There is a counter for each tile of C, 0 before and after.
__device__ __forceinline__ bool reduce_split_k(T (&out)[OUT], T* workspace, unsigned* counters, T* shared)
{
    constexpr int TILE = THREADS * PARTIALS;  // vectors of a CTA
    constexpr int WORDS = OUT * int(sizeof(T)) / 4;
    constexpr int AHEAD = WORDS > 32 ? 1 : 64 / WORDS;  // CTAs' read at a time: more would take registers
    const int split = int(blockIdx.x % SPLIT_K);
    Vector<PARTIAL>* const tiles =
        reinterpret_cast<Vector<PARTIAL>*>(workspace) + Index(blockIdx.x - split) * TILE + threadIdx.x;
    bool* const last = reinterpret_cast<bool*>(shared);  // which holds nothing else any more

    #pragma unroll
    for (int g = 0; g < PARTIALS; ++g) {
        Vector<PARTIAL> partial;
        #pragma unroll
        for (int e = 0; e < PARTIAL; ++e) partial.x[e] = out[g * PARTIAL + e];
        tiles[Index(split) * TILE + g * THREADS] = partial;
    }
    if (!arrives_last(counters + blockIdx.x / SPLIT_K, last, 1, SPLIT_K)) return false;

    #pragma unroll
    for (int e = 0; e < OUT; ++e) out[e] = 0;
    #pragma unroll AHEAD
    for (int each = 0; each < SPLIT_K; ++each) {
        #pragma unroll
        for (int g = 0; g < PARTIALS; ++g) {
            const Vector<PARTIAL> partial = tiles[Index(each) * TILE + g * THREADS];
            #pragma unroll
            for (int e = 0; e < PARTIAL; ++e) out[g * PARTIAL + e] += partial.x[e];
        }
    }
    return true;
}

// Writes accumulators of a thread, VEC_C elements of a row of C at a time: those from `first` on, row after row.
// `c` is where the warp tile begins; `rows` and `cols` are left of C from there.
template <int VEC_C, bool GUARDED>
__device__ __forceinline__ void store(
    T (&out)[OUT], int first, T* c, int ldc, int rows, int cols, int lane, T alpha, T beta)
{
    // Where the vector belongs that begins with out[e]; null outside of C.
    const auto place_of = [&](int e) -> Vector<VEC_C>* {
        const int row = row_of((first + e) / THREAD_N, lane_m(lane));
        const int col = col_of((first + e) % THREAD_N, lane);
        if constexpr (GUARDED) if (row >= rows || col >= cols) return nullptr;
        return reinterpret_cast<Vector<VEC_C>*>(c + Index(row) * ldc + col);
    };
    #pragma unroll
    for (int e = 0; e < OUT; ++e) out[e] *= alpha;
    // All is read before any of it is written, else each read would wait for the write before it; but not all at a
    // time, which would take as many registers again.
    if (beta != T(0)) {
        #pragma unroll
        for (int e = 0; e < OUT; e += VEC_C) {
            if (const Vector<VEC_C>* place = place_of(e)) {
                const Vector<VEC_C> old = *place;
                #pragma unroll
                for (int v = 0; v < VEC_C; ++v) out[e + v] += beta * old.x[v];
            }
            if ((e + VEC_C) % THREAD_N == 0) asm volatile("" ::: "memory");  // a row's reads at a time
        }
    }
    #pragma unroll
    for (int e = 0; e < OUT; e += VEC_C) {
        if (Vector<VEC_C>* place = place_of(e)) {
            Vector<VEC_C> value;
            #pragma unroll
            for (int v = 0; v < VEC_C; ++v) value.x[v] = out[e + v];
            *place = value;
        }
    }
}

constexpr int VEC_C    = 4;     // elements of C that one store moves
constexpr bool GUARDED = true;  // tiles may reach beyond the matrices

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS + 32, MIN_CTAS) gemm_simt_f32_nn_32x32x64_62a9c598(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, T* __restrict__ C, int ldc,
    int m, int n, int k, T alpha, T beta, T* __restrict__ workspace, unsigned* counters,
    const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b)
{
    static_assert(THREAD_N % VEC_C == 0, "a thread stores whole vectors");
    extern __shared__ __align__(1024) T shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_m = warp / WARPS_N % WARPS_M * WARP_M, warp_n = warp % WARPS_N * WARP_N;
    const unsigned tiles_n = unsigned(n - 1) / BLOCK_N + 1;
    const unsigned tile = blockIdx.x / SPLIT_K;
    const unsigned tile_m = tile / tiles_n, tile_n = tile % tiles_n;
    const Index row0 = Index(tile_m) * BLOCK_M, col0 = Index(tile_n) * BLOCK_N;
    const int depth = alpha == T(0) ? 0 : k;  // A and B are not read where alpha is 0
    const int all_tiles = int((unsigned(depth) + BLOCK_K - 1) / BLOCK_K);
    const int split = int(blockIdx.x % SPLIT_K), over = all_tiles % SPLIT_K;  // the first take one more
    const int first_tile = all_tiles / SPLIT_K * split + min(split, over);
    const int tiles = all_tiles / SPLIT_K + (split < over);
    const Index k_begin = Index(first_tile) * BLOCK_K;
    T acc[ACC] = {};
    int reading = 0;  // where the stage begins that is multiplied
    const TileA a(shared, warp_m, lane_m(lane), slice_k());
    const TileB b(shared + TileA::SIZE, warp_n, lane_n(lane), slice_k());
    Barrier* const filled = reinterpret_cast<Barrier*>(shared + STAGES * STAGE);
    Barrier* const emptied = filled + STAGES;
    init_barriers(filled, emptied);
    T a_fragment[2][STEP][THREAD_M], b_fragment[2][STEP][THREAD_N];
    griddepcontrol_wait();
    launch_dependents();

    if (threadIdx.x >= THREADS) {
        produce(shared, filled, emptied, map_a, map_b, row0, col0, k_begin, tiles);
        return;
    }
    int stage = 0;
    unsigned parity = 0;
    const Pipeline pipeline = {filled, emptied, stage, parity, reading};
    if (tiles > 0) filled[0].wait(0);
    a.read(a_fragment[0], 0, 0);
    b.read(b_fragment[0], 0, 0);

    #pragma unroll 1
    for (int each = 0; each < tiles; ++each) {

        // The next step's fragments are read before this one's are multiplied, at last those of the next tile.
        #pragma unroll
        for (int step = 0; step < STEPS - 1; ++step) {
            a.read(a_fragment[(step + 1) % 2], reading, (step + 1) * STEP);
            b.read(b_fragment[(step + 1) % 2], reading, (step + 1) * STEP);
            outer_product(acc, a_fragment[step % 2], b_fragment[step % 2]);
        }
        pipeline.next(each + 1 < tiles);
        a.read(a_fragment[0], reading, 0);
        b.read(b_fragment[0], reading, 0);
        outer_product(acc, a_fragment[1], b_fragment[1]);
    }

    T out[OUT];
    reduce_slices(out, acc, shared);
    const int first = threadIdx.x / SLICE_THREADS * OUT;  // of the thread's accumulators, row after row
    if (!reduce_split_k(out, workspace, counters, shared)) return;
    const Index row = row0 + warp_m, col = col0 + warp_n;
    const int rows = int(min(m - row, Index(WARP_M))), cols = int(min(n - col, Index(WARP_N)));
    store<VEC_C, GUARDED>(out, first, C + row * ldc + col, ldc, rows, cols, lane, alpha, beta);
}
