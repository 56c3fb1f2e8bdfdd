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
// Written by tilewright from templates/simt.cu.jinja, digest 6dc86265c2a45ad1. To write it again:
//   tilewright emit --dtype float --trans nn --config "simt:32x32x64,thread=4,slices=4,load=tma,k_inner_a,split_k=3"
// SPDX-License-Identifier: MIT

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#error "TMA needs sm_90 or newer"
#endif

//                    kBlockN         Each CTA computes a tile of C, each warp of it kWarpM x kWarpN, each
//                  +---------+       thread kThreadM x kThreadN in registers: chunks of up to 16 bytes that
//          kBlockK |         | op(B) alternate with those of the warp's other lanes.
//                  +---------+
//        kBlockK        v            Tiles of op(A) and op(B) pass along k through kStages buffers in shared
//        +-----+   +----+----+       memory. While one is multiplied the next are on their way:
// kBlock |     | > |warp|warp|  C    a thread of one warp more starts copies of whole tiles by TMA.
//      M |     |   +----+----+
//        |     |   |warp|warp|       A warp waits until a tile has come, and tells when it has read it. When
//        +-----+   +----+----+       all have, its buffer is filled again. The CTA has no barrier there.
//         op(A)

namespace {

using Elem = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int kBlockM    = 32;     // rows of C that a CTA computes
constexpr int kBlockN    = 32;     // columns of C that a CTA computes
constexpr int kBlockK    = 64;     // steps of k that a tile covers
constexpr int kThreadM   = 4;      // rows of C that a thread computes
constexpr int kThreadN   = 4;      // columns of C that a thread computes
constexpr int kLanesM    = 8;      // lanes of a warp along the rows of C
constexpr int kSlices    = 4;      // groups of warps that share the k of each tile
constexpr int kStages    = 3;      // tiles that shared memory holds at a time
constexpr int kSplitK    = 3;      // CTAs that share the k of a tile of C
constexpr int kMinCtas   = 1;      // CTAs of an SM that the registers must allow
constexpr int kSmemBytes = 53760;  // shared memory of a CTA

constexpr int kLanesN       = 32 / kLanesM;               // lanes of a warp along the columns of C
constexpr int kWarpM        = kLanesM * kThreadM;         // rows of C that a warp computes
constexpr int kWarpN        = kLanesN * kThreadN;         // columns of C that a warp computes
constexpr int kWarpsM       = kBlockM / kWarpM;           // warps along the rows of C
constexpr int kWarpsN       = kBlockN / kWarpN;           // warps along the columns of C
constexpr int kSliceThreads = 32 * kWarpsM * kWarpsN;     // threads of a slice
constexpr int kThreads      = kSlices * kSliceThreads;    // threads that multiply
constexpr int kWide         = 16 / int(sizeof(Elem));     // elements of the widest load
constexpr int kStep         = kWide;                      // steps of k that a thread reads at once
constexpr int kSteps        = kBlockK / kSlices / kStep;  // such steps of a thread in a tile
constexpr int kAcc          = kThreadM * kThreadN;        // accumulators of a thread
constexpr int kOut          = kAcc / kSlices;             // those it writes in the end

static_assert(kBlockM % kWarpM == 0 && kBlockN % kWarpN == 0, "a CTA's tile is made of whole warp tiles");
static_assert(kWarpM % kWide == 0 && kWarpN % kWide == 0, "a warp tile is made of vectors of 16 bytes");
static_assert(kBlockK % (kSlices * kStep * 2) == 0, "an even number of steps of k in a tile");

// ---- Instructions (PTX) -----------------------------------------------------------------------------------------

// Programmatic dependent launch (PDL): waits for what earlier kernels of the stream wrote; lets the next one start.
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }

// An mbarrier: made for so many arrivals a phase; an arrival; an arrival that has the phase wait for bytes.
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

// Copies see the mbarriers that this thread has made, and threads do so after the CTA's barrier.
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

// Adds to a counter that CTAs share, and gives its value before. Writes that this thread has made or seen are visible
// to threads that see the new count, and writes of others before they counted are visible to this one.
__device__ __forceinline__ unsigned count(unsigned* counter, unsigned by)
{
    unsigned before;
    asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(by) : "memory");
    return before;
}

// ---- The kernel -------------------------------------------------------------------------------------------------

template <int kCount>
struct alignas(kCount * sizeof(Elem)) Vector { Elem x[kCount]; };

// Where the slice of a thread begins in the steps of k of each tile.
__device__ __forceinline__ int slice_k() { return threadIdx.x / kSliceThreads * (kBlockK / kSlices); }

// An mbarrier in shared memory. Each of its phases takes some arrivals, and the bytes that those announce.
using Barrier = unsigned long long;

// A tensor map, CUDA's CUtensorMap: it tells the TMA where a matrix is and which box of it a copy brings.
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

// How one operand comes to shared memory, and from there to the registers.
//
//   kExtent  rows of op(A), or columns of op(B), in a tile: its other side is kBlockK
//   kCount   those of one thread
//   kLanes   lanes of a warp that share out a warp tile's
//   kKInner  rows run along k in memory, and in shared memory, 128 bytes of each before the next row's
template <int kExtent, int kCount, int kLanes, bool kKInner>
struct Operand {
    static constexpr int kPitch = kKInner ? 8 * kWide : kExtent;  // of a row in shared memory: 128 bytes, or all
    static constexpr int kSize = kExtent * kBlockK;               // of a tile there
    static constexpr int kChunk = kKInner ? 1 : kCount < kWide ? kCount : kWide;  // neighbours read at once

    const Elem* tile;  // in the first stage: where a thread's fragments begin, its step of k left aside
    int step;          // where its first step of k is in a row of 128 bytes, swizzled as that row is

    // For a warp tile that begins at `first`, from step `k` on. A thread owns chunks of kChunk neighbours, kLanes
    // chunks apart, so that the lanes of a warp together read without gaps.
    __device__ __forceinline__ Operand(const Elem* stage, int first, int lane, int k)
    {
        if constexpr (kKInner) {
            tile = stage + (k / kPitch * kExtent + first + lane) * kPitch;
            step = k % kPitch ^ (first + lane) % 8 * kWide;
        } else {
            tile = stage + k * kPitch + first + lane * kChunk;
            step = 0;
        }
    }

    // The row or column of the warp tile that is a thread's i-th.
    static __device__ __forceinline__ int owned(int i, int lane)
    {
        return (i / kChunk * kLanes + lane) * kChunk + i % kChunk;
    }

    // Reads a thread's fragment of kStep rows of shared memory, from row `p` on.
    static __device__ __forceinline__ void read_rows(Elem (&fragment)[kStep][kCount], const Elem* from, int p)
    {
        #pragma unroll
        for (int e = 0; e < kStep; ++e) {
            #pragma unroll
            for (int i = 0; i < kCount; i += kChunk) {
                const auto chunk = *reinterpret_cast<const Vector<kChunk>*>(from + (p + e) * kPitch + i * kLanes);
                #pragma unroll
                for (int c = 0; c < kChunk; ++c) fragment[e][i + c] = chunk.x[c];
            }
        }
    }

    // Starts to copy a tile: from row or column `outer` of the operand, and from step `k` on.
    static __device__ __forceinline__ void copy(Elem* to, const TensorMap& map, int outer, int k, Barrier& barrier)
    {
        if constexpr (kKInner) {
            #pragma unroll
            for (int row = 0; row < kBlockK; row += kPitch) {
                copy_box(to + row * kExtent, &map, k + row, outer, &barrier);
            }
        } else {
            copy_box(to, &map, outer, k, &barrier);
        }
    }

    // Reads a thread's fragment of kStep steps of k, from `p` after its first one on, of the stage that begins
    // `stage` elements after the first.
    __device__ __forceinline__ void read(Elem (&fragment)[kStep][kCount], int stage, int p) const
    {
        if constexpr (kKInner) {
            #pragma unroll
            for (int i = 0; i < kCount; ++i) {
                // A thread's first step is a multiple of its steps of a tile, or of kPitch: no carry.
                const int at = (step ^ i * kLanes % 8 * kWide) ^ p % kPitch;
                const Elem* from = tile + stage + (p / kPitch * kExtent + i * kLanes) * kPitch + at;
                const auto along = *reinterpret_cast<const Vector<kStep>*>(from);
                #pragma unroll
                for (int e = 0; e < kStep; ++e) fragment[e][i] = along.x[e];
            }
        } else {
            read_rows(fragment, tile + stage, p);
        }
    }
};

using TileA = Operand<kBlockM, kThreadM, kLanesM, true>;
using TileB = Operand<kBlockN, kThreadN, kLanesN, false>;
constexpr int kStage = TileA::kSize + TileB::kSize;  // elements of a stage: a tile of op(A), then one of op(B)
static_assert(kStages * kStage * sizeof(Elem) + 2 * kStages * sizeof(Barrier) <= kSmemBytes, "the stages fit");

// The barriers of the stages, which lie behind them: a stage is full once a tile has come, and empty once it was read.
__device__ __forceinline__ void init_barriers(Barrier* full, Barrier* empty)
{
    if (threadIdx.x == 0) {
        #pragma unroll
        for (int stage = 0; stage < kStages; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], kThreads / 32);
        }
        fence_mbarrier_init();
        fence_proxy_async();
    }
    __syncthreads();
}

// The producer warp: one thread of it copies every tile of op(A) and op(B).
__device__ __forceinline__ void produce(
    Elem* shared, Barrier* full, Barrier* empty, const TensorMap& map_a, const TensorMap& map_b,
    Index row0, Index col0, Index k_begin, int tiles)
{
    if (threadIdx.x % 32 == 0) {
        int stage = 0;
        unsigned parity = 1;
        #pragma unroll 1
        for (int each = 0; each < tiles; ++each) {
            while (!mbarrier_try_wait(&empty[stage], parity)) {}  // by all warps
            mbarrier_arrive_expect(&full[stage], kStage * sizeof(Elem));
            const int k_at = int(k_begin) + each * kBlockK;
            TileA::copy(shared + stage * kStage, map_a, int(row0), k_at, full[stage]);
            TileB::copy(shared + stage * kStage + TileA::kSize, map_b, int(col0), k_at, full[stage]);
            if (++stage == kStages) {
                stage = 0;
                parity ^= 1;
            }
        }
    }
}

// How the other warps read them.
struct Pipeline {
    Barrier *full, *empty;
    int& stage;
    unsigned& parity;  // of its phase
    int& reading;      // where it begins

    // This warp has read its fragments of a tile: goes on to the next one, if there is `more`.
    __device__ __forceinline__ void next(bool more) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(&empty[stage]);
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
        reading = stage * kStage;
        if (more) while (!mbarrier_try_wait(&full[stage], parity)) {}
    }
};

// Adds the outer products of two fragments, column after column up and down: neighbours in time share an operand.
__device__ __forceinline__ void outer_product(
    Elem (&acc)[kAcc], const Elem (&a)[kStep][kThreadM], const Elem (&b)[kStep][kThreadN])
{
    #pragma unroll
    for (int e = 0; e < kStep; ++e) {
        #pragma unroll
        for (int j = 0; j < kThreadN; ++j) {
            #pragma unroll
            for (int on = 0; on < kThreadM; ++on) {
                const int i = j % 2 ? kThreadM - 1 - on : on;
                acc[i * kThreadN + j] += a[e][i] * b[e][j];
            }
        }
    }
}

// The lane's number along the rows of C, and along the columns. The lowest bit counts along n, the next
// ones along m, the rest along n again: then lanes i and i^1 read the same of A, i and i^2 the same of B, and a
// 16-byte read of a warp passes in two goes.
__device__ __forceinline__ int lane_m(int lane) { return lane / 2 % kLanesM; }
__device__ __forceinline__ int lane_n(int lane) { return lane / (2 * kLanesM) * 2 + lane % 2; }

// Where in the warp tile the i-th row of lanes `along_m` is, and a lane's j-th column.
__device__ __forceinline__ int row_of(int i, int along_m) { return TileA::owned(i, along_m); }
__device__ __forceinline__ int col_of(int j, int lane) { return TileB::owned(j, lane_n(lane)); }

// Adds up the accumulators of the slices, slice after slice, and leaves each slice kOut of them: all threads have some
// to write then. Through shared memory that holds nothing else any more.
__device__ __forceinline__ void reduce_slices(Elem (&out)[kOut], Elem (&acc)[kAcc], Elem* shared)
{
    Elem* const mine = shared + threadIdx.x % kSliceThreads;
    const int slice = threadIdx.x / kSliceThreads;
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < kAcc; ++e) mine[(slice * kAcc + e) * kSliceThreads] = acc[e];
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < kOut; ++e) {
        out[e] = 0;
        #pragma unroll
        for (int from = 0; from < kSlices; ++from) {
            out[e] += mine[(from * kAcc + slice * kOut + e) * kSliceThreads];
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

constexpr int kPartial  = kOut % kWide == 0 ? kWide : kOut % 2 == 0 ? 2 : 1;  // accumulators that lie side by side
constexpr int kPartials = kOut / kPartial;                                    // such vectors of a thread

// Adds up the accumulators of the kSplitK CTAs that share a tile of C, always in the same order, so that every run
// gives the same bits. Each CTA writes its own to the workspace, and the last one adds them up. True in that CTA.
//
// The workspace holds a tile for each CTA. There is a counter for each tile of C, 0 before and after.
__device__ __forceinline__ bool reduce_split_k(Elem (&out)[kOut], Elem* workspace, unsigned* counters, Elem* shared)
{
    constexpr int kTile = kThreads * kPartials;  // vectors of a CTA
    constexpr int kWords = kOut * int(sizeof(Elem)) / 4;
    constexpr int kAhead = kWords > 32 ? 1 : 64 / kWords;  // CTAs' read at a time: more would take registers
    const int split = int(blockIdx.x % kSplitK);
    Vector<kPartial>* const tiles =
        reinterpret_cast<Vector<kPartial>*>(workspace) + Index(blockIdx.x - split) * kTile + threadIdx.x;
    bool* const last = reinterpret_cast<bool*>(shared);  // which holds nothing else any more

    #pragma unroll
    for (int g = 0; g < kPartials; ++g) {
        Vector<kPartial> partial;
        #pragma unroll
        for (int e = 0; e < kPartial; ++e) partial.x[e] = out[g * kPartial + e];
        tiles[Index(split) * kTile + g * kThreads] = partial;
    }
    if (!arrives_last(counters + blockIdx.x / kSplitK, last, 1, kSplitK)) return false;

    #pragma unroll
    for (int e = 0; e < kOut; ++e) out[e] = 0;
    #pragma unroll kAhead
    for (int each = 0; each < kSplitK; ++each) {
        #pragma unroll
        for (int g = 0; g < kPartials; ++g) {
            const Vector<kPartial> partial = tiles[Index(each) * kTile + g * kThreads];
            #pragma unroll
            for (int e = 0; e < kPartial; ++e) out[g * kPartial + e] += partial.x[e];
        }
    }
    return true;
}

// Writes accumulators of a thread, kVecC elements of a row of C at a time: those from `first` on, row after row.
// `c` is where the warp tile begins; `rows` and `cols` are left of C from there.
template <int kVecC, bool kGuarded>
__device__ __forceinline__ void store(
    Elem (&out)[kOut], int first, Elem* c, int ldc, int rows, int cols, int lane, Elem alpha, Elem beta)
{
    // Where the vector belongs that begins with out[e]; null outside of C.
    const auto place_of = [&](int e) -> Vector<kVecC>* {
        const int row = row_of((first + e) / kThreadN, lane_m(lane));
        const int col = col_of((first + e) % kThreadN, lane);
        if constexpr (kGuarded) if (row >= rows || col >= cols) return nullptr;
        return reinterpret_cast<Vector<kVecC>*>(c + Index(row) * ldc + col);
    };
    #pragma unroll
    for (int e = 0; e < kOut; ++e) out[e] *= alpha;
    // All is read before any of it is written, else each read would wait for the write before it; but not all at a
    // time, which would take as many registers again.
    if (beta != Elem(0)) {
        #pragma unroll
        for (int e = 0; e < kOut; e += kVecC) {
            if (const Vector<kVecC>* place = place_of(e)) {
                const Vector<kVecC> old = *place;
                #pragma unroll
                for (int v = 0; v < kVecC; ++v) out[e + v] += beta * old.x[v];
            }
            if ((e + kVecC) % kThreadN == 0) asm volatile("" ::: "memory");  // a row's reads at a time
        }
    }
    #pragma unroll
    for (int e = 0; e < kOut; e += kVecC) {
        if (Vector<kVecC>* place = place_of(e)) {
            Vector<kVecC> value;
            #pragma unroll
            for (int v = 0; v < kVecC; ++v) value.x[v] = out[e + v];
            *place = value;
        }
    }
}

constexpr int kVecC     = 4;     // elements of C that one store moves
constexpr bool kGuarded = true;  // tiles may reach beyond the matrices

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads + 32, kMinCtas) gemm_simt_f32_nn_32x32x64_62a9c598(
    const Elem* __restrict__ matrix_a, int lda, const Elem* __restrict__ matrix_b, int ldb,
    Elem* __restrict__ matrix_c, int ldc, int m, int n, int k, Elem alpha, Elem beta,
    Elem* __restrict__ workspace, unsigned* counters,
    const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b)
{
    static_assert(kThreadN % kVecC == 0, "a thread stores whole vectors");
    extern __shared__ __align__(1024) Elem shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_m = warp / kWarpsN % kWarpsM * kWarpM, warp_n = warp % kWarpsN * kWarpN;
    const unsigned tiles_n = unsigned(n - 1) / kBlockN + 1;
    const unsigned tile = blockIdx.x / kSplitK;
    const unsigned tile_m = tile / tiles_n, tile_n = tile % tiles_n;
    const Index row0 = Index(tile_m) * kBlockM, col0 = Index(tile_n) * kBlockN;
    const int depth = alpha == Elem(0) ? 0 : k;  // A and B are not read where alpha is 0
    const int all_tiles = int((unsigned(depth) + kBlockK - 1) / kBlockK);
    const int split = int(blockIdx.x % kSplitK), over = all_tiles % kSplitK;  // the first take one more
    const int first_tile = all_tiles / kSplitK * split + min(split, over);
    const int tiles = all_tiles / kSplitK + (split < over);
    const Index k_begin = Index(first_tile) * kBlockK;
    Elem acc[kAcc] = {};
    int reading = 0;  // where the stage begins that is multiplied
    const TileA a(shared, warp_m, lane_m(lane), slice_k());
    const TileB b(shared + TileA::kSize, warp_n, lane_n(lane), slice_k());
    Barrier* const full = reinterpret_cast<Barrier*>(shared + kStages * kStage);
    Barrier* const empty = full + kStages;
    init_barriers(full, empty);
    Elem a_fragment[2][kStep][kThreadM], b_fragment[2][kStep][kThreadN];
    griddepcontrol_wait();
    launch_dependents();

    if (threadIdx.x >= kThreads) {
        produce(shared, full, empty, map_a, map_b, row0, col0, k_begin, tiles);
        return;
    }
    int stage = 0;
    unsigned parity = 0;
    const Pipeline pipeline = {full, empty, stage, parity, reading};
    if (tiles > 0) while (!mbarrier_try_wait(&full[0], 0)) {}
    a.read(a_fragment[0], 0, 0);
    b.read(b_fragment[0], 0, 0);

    #pragma unroll 1
    for (int each = 0; each < tiles; ++each) {

        // The next step's fragments are read before this one's are multiplied, at last those of the next tile.
        #pragma unroll
        for (int step = 0; step < kSteps - 1; ++step) {
            a.read(a_fragment[(step + 1) % 2], reading, (step + 1) * kStep);
            b.read(b_fragment[(step + 1) % 2], reading, (step + 1) * kStep);
            outer_product(acc, a_fragment[step % 2], b_fragment[step % 2]);
        }
        pipeline.next(each + 1 < tiles);
        a.read(a_fragment[0], reading, 0);
        b.read(b_fragment[0], reading, 0);
        outer_product(acc, a_fragment[1], b_fragment[1]);
    }

    Elem out[kOut];
    reduce_slices(out, acc, shared);
    const int first = threadIdx.x / kSliceThreads * kOut;  // of the thread's accumulators, row after row
    if (!reduce_split_k(out, workspace, counters, shared)) return;
    const Index row = row0 + warp_m, col = col0 + warp_n;
    const int rows = int(min(m - row, Index(kWarpM))), cols = int(min(n - col, Index(kWarpN)));
    store<kVecC, kGuarded>(out, first, matrix_c + row * ldc + col, ldc, rows, cols, lane, alpha, beta);
}
