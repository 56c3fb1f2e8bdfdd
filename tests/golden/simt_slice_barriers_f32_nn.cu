// gemm_simt_f32_nn_64x64x32_17af6a63
// Register tiles fed from shared memory, by the ordinary multiply-add.
//
//   C = alpha * op(A) * op(B) + beta * C in float; where alpha is 0, A and B are not read, where beta is 0, C is not
//
//   storage    row-major: A m x k, B k x n, C m x n; lda, ldb, ldc from row to row
//   sizes      any m, n > 0 and k >= 0; pointers and leading dimensions aligned to one element
//   launch     ceil(m / 64) * ceil(n / 64) * 2 CTAs along x,
//              (256, 1, 1) threads, 65536 bytes of shared memory, given at launch
//   workspace  16384 bytes a CTA
//   counters   one each 2 CTAs, which must be 0 and are left 0
//
// Written by tilewright from templates/simt.cu.jinja, digest 19621e1e942a47e3. To write it again:
//   tilewright emit --dtype float --trans nn --config "simt:64x64x32,slices=4,slice_barriers,split_k=2"
// SPDX-License-Identifier: MIT

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "cp.async needs sm_80 or newer"
#endif

//                   BLOCK_N          Each CTA computes a tile of C, each warp of it WARP_M x WARP_N, each
//                 +---------+        thread THREAD_M x THREAD_N in registers: chunks of up to 16 bytes that
//         BLOCK_K |         | op(B)  alternate with those of the warp's other lanes.
//                 +---------+
//       BLOCK_K        v             Tiles of op(A) and op(B) pass along k through STAGES buffers in shared
//       +-----+   +----+----+        memory. While one is multiplied the next are on their way:
// BLOCK |     | > |warp|warp|  C     cp.async copies them behind the threads' backs.
//    _M |     |   +----+----+
//       |     |   |warp|warp|        One named barrier a tile for each slice: then its steps of the next are
//       +-----+   +----+----+        there, and those of the one before may be overwritten. While a slice
//        op(A)                       waits for that, others multiply: they need not be at the same tile.

namespace {

using T = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int BLOCK_M    = 64;     // rows of C that a CTA computes
constexpr int BLOCK_N    = 64;     // columns of C that a CTA computes
constexpr int BLOCK_K    = 32;     // steps of k that a tile covers
constexpr int THREAD_M   = 8;      // rows of C that a thread computes
constexpr int THREAD_N   = 8;      // columns of C that a thread computes
constexpr int LANES_M    = 8;      // lanes of a warp along the rows of C
constexpr int SLICES     = 4;      // groups of warps that share the k of each tile
constexpr int STAGES     = 3;      // tiles that shared memory holds at a time
constexpr int SPLIT_K    = 2;      // CTAs that share the k of a tile of C
constexpr int MIN_CTAS   = 1;      // CTAs of an SM that the registers must allow
constexpr int SMEM_BYTES = 65536;  // shared memory of a CTA

constexpr int LANES_N       = 32 / LANES_M;             // lanes of a warp along the columns of C
constexpr int WARP_M        = LANES_M * THREAD_M;       // rows of C that a warp computes
constexpr int WARP_N        = LANES_N * THREAD_N;       // columns of C that a warp computes
constexpr int WARPS_M       = BLOCK_M / WARP_M;         // warps along the rows of C
constexpr int WARPS_N       = BLOCK_N / WARP_N;         // warps along the columns of C
constexpr int SLICE_THREADS = 32 * WARPS_M * WARPS_N;   // threads of a slice
constexpr int THREADS       = SLICES * SLICE_THREADS;   // threads that multiply
constexpr int WIDE          = 16 / int(sizeof(T));      // elements of the widest load
constexpr int STEP          = 1;                        // steps of k that a thread reads at once
constexpr int STEPS         = BLOCK_K / SLICES / STEP;  // such steps of a thread in a tile
constexpr int SLICE_K       = BLOCK_K / SLICES;         // steps of k that a slice copies of a tile
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

// A barrier of the CTA by number, of which it has 16, for COUNT of its threads. __syncthreads() takes number 0.
template <int COUNT>
__device__ __forceinline__ void sync_named(int barrier)
{
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(COUNT) : "memory");
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

// Starts to copy BYTES bytes from global to shared memory: zeros where `inside` is false, with nothing read.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool inside)
{
    if constexpr (BYTES == 16) cp_async_16(to, from, inside);  // past L1: no other thread of the CTA reads them
    else cp_async<BYTES>(to, from, inside);
}

// Where the slice of a thread begins in the steps of k of each tile.
__device__ __forceinline__ int slice_k() { return threadIdx.x / SLICE_THREADS * (BLOCK_K / SLICES); }

// Which thread of its slice a thread is.
__device__ __forceinline__ unsigned slice_thread() { return threadIdx.x % SLICE_THREADS; }

// The named barrier of a slice. A CTA has 16, of which __syncthreads() takes the first.
static_assert(SLICES <= 15, "each slice has a named barrier");
__device__ __forceinline__ void sync_slice()
{
    sync_named<SLICE_THREADS>(1 + int(threadIdx.x / SLICE_THREADS));
}

// How a tile of one operand lies in shared memory, and comes from there to the registers.
//
//   EXTENT   rows of op(A), or columns of op(B), in a tile: its other side is SLICE_K
//   COUNT    those of one thread
//   LANES    lanes of a warp that share out a warp tile's
//   ALONG_K  in global memory a row of the operand runs along k
template <int EXTENT, int COUNT, int LANES, bool ALONG_K>
struct Operand {
    static constexpr int PITCH = EXTENT + WIDE;                // 16 spare bytes: rows shift banks
    static constexpr int SIZE = SLICE_K * PITCH;                // of a tile in shared memory
    static constexpr int CHUNK = COUNT < WIDE ? COUNT : WIDE;  // neighbours read at once

    // Where element (row, col) of the stored tile is, and what lies so much further in `t` than another place.
    static __device__ constexpr int place_of(int r, int c) { return ALONG_K ? c * PITCH + r : r * PITCH + c; }
    static __device__ __forceinline__ T* further(T* t, int place, int r, int c) { return t + place + place_of(r, c); }

    // Where a thread's fragments of a tile begin, for a warp tile that begins at `first`. A thread owns chunks of
    // CHUNK neighbours, LANES chunks apart, so that the lanes of a warp together read without gaps.
    static __device__ constexpr int fragment(int first, int lane) { return first + lane * CHUNK; }

    // Which row or column of the warp tile a thread's i-th is.
    static __device__ __forceinline__ int owned(int i, int lane)
    {
        return (i / CHUNK * LANES + lane) * CHUNK + i % CHUNK;
    }

    // Reads a thread's fragment of STEP rows of shared memory, from row `p` on.
    static __device__ __forceinline__ void read(T (&fragment)[STEP][COUNT], const T* from, int p)
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
};

using TileA = Operand<BLOCK_M, THREAD_M, LANES_M, true>;
using TileB = Operand<BLOCK_N, THREAD_N, LANES_N, false>;

// How tiles of one operand, EXTENT by SLICE_K, come to shared memory, where they lie as Tile says. ALONG_K: stored rows
// run along k. A copy moves VEC elements. GUARDED: a tile may reach beyond the matrix.
template <typename Tile, int EXTENT, bool ALONG_K, int VEC, bool GUARDED>
struct Copies {
    static constexpr int PER_ROW = (ALONG_K ? SLICE_K : EXTENT) / VEC;  // vectors of a row in global memory
    static constexpr int COPIES = (EXTENT * SLICE_K / VEC + SLICE_THREADS - 1) / SLICE_THREADS;  // of each thread
    static constexpr bool ONE_OUTER = ALONG_K ? COPIES == 1 : PER_ROW <= SLICE_THREADS;  // row or column of all copies
    static_assert(COPIES <= 32, "a bit for each copy");

    const T* source;            // what this thread copies first of the next tile
    int ld;
    int place;                  // where that goes in a tile in shared memory
    unsigned k;                 // its place along k; beyond any k where no copy lies inside the matrix
    unsigned outer_inside = 0;  // bit i: copy i lies inside, k left aside

    // The operand X from its row or column `outer` on, of which `outer_left` are left, and from `k_begin` on.
    __device__ __forceinline__ Copies(const T* X, int ld, Index outer, Index k_begin, int outer_left) : ld(ld)
    {
        k_begin += slice_k();  // of the tiles a slice has no more
        const int row = slice_thread() / PER_ROW, col = slice_thread() % PER_ROW * VEC;
        source = X + ((ALONG_K ? outer : k_begin) + row) * ld + (ALONG_K ? k_begin : outer) + col;
        place = Tile::place_of(row, col);
        k = slice_k() + (ALONG_K ? col : row);
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
    static __device__ constexpr int row_of(int i) { return i * SLICE_THREADS / PER_ROW; }
    static __device__ constexpr int col_of(int i) { return i * SLICE_THREADS % PER_ROW * VEC; }
    __device__ __forceinline__ const T* from(int i) const { return source + Index(row_of(i)) * ld + col_of(i); }
    __device__ __forceinline__ void advance() { source += ALONG_K ? Index(BLOCK_K) : Index(BLOCK_K) * ld; }

    // Where it goes in `tile`.
    __device__ __forceinline__ T* to(T* tile, int i) const { return Tile::further(tile, place, row_of(i), col_of(i)); }

    // Whether this thread has a copy i: some threads may have none, some the last one not.
    static __device__ __forceinline__ bool has_copy(int i)
    {
        constexpr int VECTORS = EXTENT * SLICE_K / VEC;
        return (i + 1) * SLICE_THREADS <= VECTORS || i * SLICE_THREADS + int(slice_thread()) < VECTORS;
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

constexpr int STAGE = TileA::SIZE + TileB::SIZE;  // elements of a slice's stage: a tile of op(A), then one of op(B)
static_assert(SLICES * STAGES * STAGE * sizeof(T) <= SMEM_BYTES, "the stages fit");

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
    sync_slice();
}

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

constexpr int VEC_A    = 1;     // elements of A that one copy moves
constexpr int VEC_B    = 1;     // elements of B that one copy moves
constexpr int VEC_C    = 1;     // elements of C that one store moves
constexpr bool GUARDED = true;  // tiles may reach beyond the matrices

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, MIN_CTAS) gemm_simt_f32_nn_64x64x32_17af6a63(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, T* __restrict__ C, int ldc,
    int m, int n, int k, T alpha, T beta, T* __restrict__ workspace, unsigned* counters)
{
    static_assert(THREAD_N % VEC_C == 0, "a thread stores whole vectors");
    using CopyA = Copies<TileA, BLOCK_M, true, VEC_A, GUARDED>;
    using CopyB = Copies<TileB, BLOCK_N, false, VEC_B, GUARDED>;
    extern __shared__ __align__(16) T shared[];
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
    T* const stages = shared + threadIdx.x / SLICE_THREADS * (STAGES * STAGE);  // the slice's
    CopyA a(A, lda, row0, k_begin, int(min(m - row0, Index(BLOCK_M))));
    CopyB b(B, ldb, col0, k_begin, int(min(n - col0, Index(BLOCK_N))));
    int k_left = depth - int(k_begin);  // of the next tile to be fetched
    T acc[ACC] = {};
    int reading = 0;  // where the stage begins that is multiplied
    T a_fragment[2][STEP][THREAD_M], b_fragment[2][STEP][THREAD_N];
    const T* a_from = stages + TileA::fragment(warp_m, lane_m(lane));
    const T* b_from = stages + TileA::SIZE + TileB::fragment(warp_n, lane_n(lane));
    griddepcontrol_wait();
    launch_dependents();

    int writing = (STAGES - 1) * STAGE;  // where the stage begins that is filled next
    const Pipeline<CopyA, CopyB> pipeline = {a, b, k_left};
    #pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < tiles) pipeline.fetch(stages + stage * STAGE);
        commit_copies();
    }
    wait_tile();
    TileA::read(a_fragment[0], a_from, 0);
    TileB::read(b_fragment[0], b_from, 0);

    #pragma unroll 1
    for (int each = 0; each < tiles; ++each) {
        // The stage that was multiplied last is filled again: no thread reads it any more.
        if (each + STAGES - 1 < tiles) pipeline.fetch(stages + writing);
        commit_tile(writing);

        // The next step's fragments are read before this one's are multiplied, at last those of the next tile.
        #pragma unroll
        for (int step = 0; step < STEPS - 1; ++step) {
            TileA::read(a_fragment[(step + 1) % 2], a_from + reading, (step + 1) * STEP);
            TileB::read(b_fragment[(step + 1) % 2], b_from + reading, (step + 1) * STEP);
            outer_product(acc, a_fragment[step % 2], b_fragment[step % 2]);
        }
        wait_tile();
        reading = reading == (STAGES - 1) * STAGE ? 0 : reading + STAGE;
        TileA::read(a_fragment[0], a_from + reading, 0);
        TileB::read(b_fragment[0], b_from + reading, 0);
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
