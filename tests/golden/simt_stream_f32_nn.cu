// gemm_simt_f32_nn_bm64_bn64_bk16_tm4_tn4_l8_s3_c1_va1_vb1_vc4_ka0_kb0_p0_w1_z1_x0_q264_g1_r1_ebounds
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
//   alignment  A, B and C to 1, 1, 4 elements of 4 bytes: pointer, leading dimension and stored row
//   grid       264 blocks along x, and one for each of the ceil(m / 64) * ceil(n / 64) tiles of C but what is
//              over when they are dealt out to 264
//   block      (256, 1, 1): 256 threads
//   shared     26112 bytes, static
//   workspace  32768 bytes for each of 264 blocks, then 4 for each, which must be 0 and are left 0
//
// Written by tilewright from templates/simt.cu.jinja, digest 76110ce73b83367e. To write it again:
//   tilewright emit --dtype float --trans nn --config
//       "simt:bulk=0, block_m=64, block_n=64, block_k=16, thread_m=4, thread_n=4, lanes_m=8,
//        stages=3, cp_async=1, pack_a=0, pack_b=0, vec_a=1, vec_b=1, vec_c=4, a_k_inner=0,
//        b_k_inner=0, prefetch=0, rows_first=0, slices=1, apart=0, split_k=1, cluster=0, tail=1,
//        stream_k=264, group_m=1, min_blocks=1, staged_c=0, stream_c=0, atomic=0, warm_l2=0,
//        copy_groups=1, edge=bounds"

namespace {

using T = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int BLOCK_M    = 64;     // rows of C a block computes
constexpr int BLOCK_N    = 64;     // columns of C a block computes
constexpr int BLOCK_K    = 16;     // steps of k that a tile covers
constexpr int THREAD_M   = 4;      // rows of C a thread computes
constexpr int THREAD_N   = 4;      // columns of C a thread computes
constexpr int LANES_M    = 8;      // lanes of a warp along the rows of C
constexpr int STAGES     = 3;      // tiles that shared memory holds at a time
constexpr int CP_ASYNC   = 1;      // 1 = cp.async fills shared memory, 0 = tiles pass through registers
constexpr int PACK_A     = 0;      // 1 = A is copied to aligned rows first, k x m
constexpr int PACK_B     = 0;      // 1 = B is copied to aligned rows first, k x n
constexpr int VEC_A      = 1;      // elements of A that one copy moves
constexpr int VEC_B      = 1;      // elements of B that one copy moves
constexpr int VEC_C      = 4;      // elements of C that one store moves
constexpr int A_K_INNER  = 0;      // 1 = k stays innermost in the tiles of A, 0 = m is
constexpr int B_K_INNER  = 0;      // 1 = k stays innermost in the tiles of B, 0 = n is
constexpr int PREFETCH   = 0;      // 1 = registers hold the operands of the next step too
constexpr int SLICES     = 1;      // groups of warps that share out the k of each tile
constexpr int APART      = 0;      // 1 = each copies its own steps of k, and waits for its own threads alone
constexpr int SPLIT_K    = 1;      // blocks that share out k
constexpr int CLUSTER    = 0;      // 1 = they form a cluster, and add up in each other's shared memory
constexpr int TAIL       = 1;      // they share out the last one of so many parts of the tiles of C
constexpr int STREAM_K   = 264;    // blocks that share out evenly the k of tiles left over, 0 = none
constexpr int GROUP_M    = 1;      // tiles that blocks go down before they go right
constexpr int MIN_BLOCKS = 1;      // blocks that the registers must allow on a multiprocessor
constexpr int STAGED_C   = 0;      // 1 = sums pass through shared memory, so that lanes write neighbours in C
constexpr int ATOMIC     = 0;      // 1 = they add up in one tile by atomics: never quite the same bits again
constexpr int WARM_L2    = 0;      // 1 = a block asks for its first tiles while earlier kernels end
constexpr int THREADS    = 256;    // threads of a block
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
              "block_m 64 is a multiple of the rows of a warp, thread_m 4 * lanes_m 8");
static_assert(BLOCK_N % WARP_N == 0,
              "block_n 64 is a multiple of the columns of a warp, thread_n 4 * 32 / lanes_m 8");
static_assert(WARP_M % WIDE == 0 && WARP_N % WIDE == 0,
              "the rows of a warp, thread_m 4 * lanes_m 8, and its columns are whole vectors of 16 bytes");
static_assert(CP_ASYNC || STAGES == 2,
              "tiles that pass through registers use two stages, not 3");
static_assert(!TRANS_A || !A_K_INNER,
              "k is innermost in the tiles of A only if stored rows of A run along k");
static_assert(TRANS_B || !B_K_INNER,
              "k is innermost in the tiles of B only if stored rows of B run along k");
static_assert(VEC_A <= WIDE,
              "vec_a 1 is at most 16 bytes and divides the stored rows of A");
static_assert(VEC_B <= WIDE,
              "vec_b 1 is at most 16 bytes and divides the stored rows of B");
static_assert(VEC_C <= WIDE,
              "vec_c 4 is at most 16 bytes and divides the stored rows of C");
static_assert(VEC_C <= WIDE && THREAD_N % VEC_C == 0 && !(B_K_INNER && VEC_C > 1),
              "vec_c 4 is at most the neighbours in a row of C that a thread computes");
static_assert(!(CP_ASYNC && !TRANS_A && !A_K_INNER) || VEC_A == 1,
              "cp.async transposes A element by element: vec_a 1 is 1");
static_assert(!(CP_ASYNC && TRANS_B && !B_K_INNER) || VEC_B == 1,
              "cp.async transposes B element by element: vec_b 1 is 1");
static_assert(BLOCK_K % (SLICES * STEP * (1 + PREFETCH)) == 0,
              "block_k 16 is whole steps for each of 1 slices, an even number of them with prefetch 0");
static_assert(THREAD_M * THREAD_N % (SLICES * VEC_C) == 0,
              "thread_m 4 * thread_n 4 sums are whole vectors for each of 1 slices");
static_assert(THREAD_M * THREAD_N * BLOCK_K <= 2560 * SLICES,
              "a thread has at most 2560 multiply-adds in a tile: they are unrolled");
static_assert(!APART || SLICES > 1,
              "only one of several slices can go apart, not with slices 1");
static_assert(!CLUSTER || (2 <= SPLIT_K && SPLIT_K <= 8),
              "a cluster has 2 to 8 blocks, not 1");
static_assert(TAIL == 1 || (SPLIT_K > 1 && !CLUSTER),
              "tail 1 is for blocks that share out k, not 1, and add up in device memory, cluster 0");
static_assert(!STREAM_K || SPLIT_K == 1,
              "stream_k 264 shares out k by itself: split_k is 1, and warm_l2 0");
static_assert((!PACK_A || TRANS_A) && (!PACK_B || !TRANS_B),
              "operands are padded or packed, not both: edge bounds");
static_assert(!STAGED_C || !CLUSTER,
              "blocks of a cluster write their own sums: others still read their shared memory");
static_assert(!WARM_L2 || (!PACK_A && !PACK_B),
              "packed operands are written by the kernel before: none are asked for with warm_l2 0");
static_assert(!ATOMIC || SPLIT_K > 1,
              "sums are added by atomics where blocks share out k: split_k 1 is above 1");
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

// Starts to copy BYTES bytes from global to shared memory: zeros where `inside` is false, with nothing read.
// The copies that a thread starts before commit_copies() are a group; wait_copies<PENDING>() waits for all of
// its groups but the last PENDING. Other threads see what arrived after a barrier.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool inside)
{
#ifdef TILEWRIGHT_HOST
    tilewright_host::copy_async(to, inside ? from : nullptr, BYTES);
#else
    const unsigned address = unsigned(__cvta_generic_to_shared(to));
    const int bytes = inside ? BYTES : 0;
    if constexpr (BYTES == 16) {  // past L1: no other thread of the block reads them
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                     ::"r"(address), "l"(from), "r"(bytes));
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     ::"r"(address), "l"(from), "n"(BYTES), "r"(bytes));
    }
#endif
}

__device__ __forceinline__ void commit_copies()
{
#ifdef TILEWRIGHT_HOST
    tilewright_host::commit_copies();
#else
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

template <int PENDING>
__device__ __forceinline__ void wait_copies()
{
#ifdef TILEWRIGHT_HOST
    tilewright_host::wait_copies(PENDING);
#else
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

template <int COUNT>
struct alignas(COUNT * sizeof(T)) Vector {
    T x[COUNT];
};

// How many threads share out rows of `per_row` vectors: the most that take whole rows or whole parts of one.
__host__ __device__ constexpr int copiers(int per_row)
{
    int count = THREADS;
    while (count % per_row != 0 && per_row % count != 0) --count;
    return count;
}

// How one operand comes to shared memory, and from there to the registers.
//
//   EXTENT   rows of op(A), or columns of op(B), in a tile: its other side is BLOCK_K
//   COUNT    those of one thread
//   LANES    lanes of a warp that share out a warp's
//   VEC      elements that one copy moves
//   ALONG_K  in global memory a row of the operand runs along k
//   K_INNER  in shared memory too; otherwise a tile has BLOCK_K rows there
template <int EXTENT, int COUNT, int LANES, int VEC, bool ALONG_K, bool K_INNER>
struct Operand {
    static constexpr int WIDTH = ALONG_K ? BLOCK_K : EXTENT;  // of a tile in global memory
    static constexpr int HEIGHT = ALONG_K ? EXTENT : BLOCK_K;
    static constexpr int PER_ROW = WIDTH / VEC;
    static constexpr int VECTORS = HEIGHT * PER_ROW;
    static constexpr int COPIERS = copiers(PER_ROW);  // threads that copy: theirs lie a fixed way apart
    static constexpr int COPIES = (VECTORS + COPIERS - 1) / COPIERS;  // of each of them
    static constexpr int PITCH = (K_INNER ? BLOCK_K : EXTENT) + WIDE;  // 16 spare bytes: rows shift banks
    static constexpr int SIZE = (K_INNER ? EXTENT : BLOCK_K) * PITCH;  // of a tile in shared memory
    static constexpr int CHUNK = K_INNER ? 1 : COUNT < WIDE ? COUNT : WIDE;  // neighbours read at once
    static constexpr bool TURNED = ALONG_K && !K_INNER;
    static_assert(ALONG_K || !K_INNER, "k can be kept innermost only where it is");
    static_assert(COPIES <= 32, "a bit for each copy");

    static constexpr bool ONE_OUTER = ALONG_K ? COPIES == 1 : PER_ROW <= COPIERS;  // of all copies

    const T* source;      // what this thread copies first of the next tile
    int ld;
    int place;            // where that goes in a tile in shared memory
    unsigned k;           // its place along k; beyond any k where no copy lies inside the matrix
    unsigned inside = 0;  // bit i: copy i lies inside, k left aside

    // How much further copy i lies than copy 0. Neighbouring threads copy neighbouring vectors.
    static __device__ constexpr int row_of(int i) { return i * COPIERS / PER_ROW; }
    static __device__ constexpr int col_of(int i) { return i * COPIERS % PER_ROW * VEC; }
    static __device__ constexpr int place_of(int row, int col)
    {
        return TURNED ? col * PITCH + row : row * PITCH + col;
    }

    // The operand X from its row or column `outer` on, of which `outer_left` are left, and from `k_begin` on.
    __device__ __forceinline__ Operand(const T* X, int ld, Index outer, Index k_begin, int outer_left)
        : ld(ld)
    {
        const int row = threadIdx.x / PER_ROW;
        const int col = threadIdx.x % PER_ROW * VEC;
        source = X + ((ALONG_K ? outer : k_begin) + row) * ld + (ALONG_K ? k_begin : outer) + col;
        place = place_of(row, col);
        k = ALONG_K ? col : row;
        if constexpr (ONE_OUTER) {
            if ((ALONG_K ? row : col) >= outer_left) k = 1u << 31;
        } else {
            #pragma unroll
            for (int i = 0; i < COPIES; ++i) {
                inside |= unsigned((ALONG_K ? row + row_of(i) : col + col_of(i)) < outer_left) << i;
            }
        }
    }

    // Whether this thread has a copy i: some threads may have none, some the last one not.
    static __device__ __forceinline__ bool copies(int i)
    {
        const bool copier = COPIERS == THREADS || threadIdx.x < COPIERS;
        return copier && ((i + 1) * COPIERS <= VECTORS || i * COPIERS + int(threadIdx.x) < VECTORS);
    }

    // Whether copy i lies inside the matrix; `k_left` is what is left of k, this tile included.
    __device__ __forceinline__ bool copied(int i, int k_left) const
    {
        if (!GUARD) return true;
        return (ONE_OUTER || inside >> i & 1) && k + (ALONG_K ? col_of(i) : row_of(i)) < unsigned(k_left);
    }

    __device__ __forceinline__ const T* from(int i) const
    {
        return source + Index(row_of(i)) * ld + col_of(i);
    }

    __device__ __forceinline__ void advance() { source += ALONG_K ? Index(BLOCK_K) : Index(BLOCK_K) * ld; }

    // Where copy i goes in `tile`.
    __device__ __forceinline__ T* to(T* tile, int i) const
    {
        return tile + place + place_of(row_of(i), col_of(i));
    }

    // Starts to copy the next tile to `tile`.
    __device__ __forceinline__ void start(T* tile, int k_left)
    {
        #pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            if (copies(i)) copy_async<VEC * sizeof(T)>(to(tile, i), from(i), copied(i, k_left));
        }
        advance();
    }

    // Where a thread's share of a tile begins, for a warp whose share begins at `first`. A thread owns chunks
    // of CHUNK neighbours, LANES chunks apart, so that the lanes of a warp together read without gaps.
    static __device__ __forceinline__ int share(int first, int lane)
    {
        return K_INNER ? (first + lane) * PITCH : first + lane * CHUNK;
    }

    // Which row or column of the warp's share a thread's i-th is.
    static __device__ __forceinline__ int owned(int i, int lane)
    {
        return (i / CHUNK * LANES + lane) * CHUNK + i % CHUNK;
    }

    // Reads the share of a tile from STEP steps of k, from `p` on.
    static __device__ __forceinline__ void read(T (&fragment)[STEP][COUNT], const T* share, int p)
    {
        if constexpr (K_INNER) {
            #pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const auto along = *reinterpret_cast<const Vector<STEP>*>(share + i * LANES * PITCH + p);
                #pragma unroll
                for (int e = 0; e < STEP; ++e) fragment[e][i] = along.x[e];
            }
        } else {
            #pragma unroll
            for (int e = 0; e < STEP; ++e) {
                #pragma unroll
                for (int i = 0; i < COUNT; i += CHUNK) {
                    const T* from = share + (p + e) * PITCH + i * LANES;
                    const auto chunk = *reinterpret_cast<const Vector<CHUNK>*>(from);
                    #pragma unroll
                    for (int c = 0; c < CHUNK; ++c) fragment[e][i + c] = chunk.x[c];
                }
            }
        }
    }
};

using TileA = Operand<BLOCK_M, THREAD_M, LANES_M, VEC_A, !TRANS_A, A_K_INNER != 0>;
using TileB = Operand<BLOCK_N, THREAD_N, LANES_N, VEC_B, TRANS_B, B_K_INNER != 0>;
constexpr int STAGE = TileA::SIZE + TileB::SIZE;  // elements of a stage: a tile of op(A), then one of op(B)

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

// Reads a counter that blocks share: what they wrote before they counted is there then.
__device__ __forceinline__ unsigned counted(const unsigned* counter)
{
#ifdef TILEWRIGHT_HOST
    return *counter;
#else
    unsigned seen;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    return seen;
#endif
}

// Which block computes what. All tiles of k of all tiles of C stand in a row. Those of the first tiles of C,
// as many as are left over when each of STREAM_K blocks has as many as the others, are shared out evenly by
// the first STREAM_K blocks: a part is the end of one tile of C and the beginning of the next. The tiles of C
// that follow have a block each.
struct Stream {
    unsigned shared;  // tiles of C that blocks share
    unsigned tiles;   // of k, of each tile of C; 1 where there are none, so that C is written

    __device__ __forceinline__ Stream(unsigned parts, int depth)
        : shared(parts < STREAM_K ? parts : parts % STREAM_K),
          tiles(depth > 0 ? (unsigned(depth) + BLOCK_K - 1) / BLOCK_K : 1) {}

    // Where a block's part begins.
    __device__ __forceinline__ unsigned begin(unsigned block) const
    {
        if (block >= STREAM_K) return (block - STREAM_K + shared) * tiles;
        return unsigned(Index(shared) * tiles * block / STREAM_K);
    }
};

// Adds up the sums of the blocks that share a tile of C, always in the order of k, so that every run gives
// the same bits. Those of `block` are of `part` tiles of k from the `at`-th of the row on. A block writes its
// own to the workspace, and the last one to come adds them up. True in that block.
//
// What begins a tile of C is what its block computes last, and what ends it another's first: so the former
// mostly comes when all else is there, and need not be written.
//
// The workspace holds two tiles for each of STREAM_K blocks, one for sums that begin a tile of C and one for
// others, then a counter for each tile of C: how many of its tiles of k have come, 0 before and after.
__device__ __forceinline__ bool add_stream(
    T (&share)[SHARE], T* workspace, T* shared,
    const Stream& stream, unsigned block, unsigned at, unsigned part)
{
    constexpr int WIDTH = SHARE % WIDE == 0 ? WIDE : SHARE % 2 == 0 ? 2 : 1;
    using Group = Vector<WIDTH>;              // what a thread writes at a time
    constexpr int GROUPS = SHARE / WIDTH;     // of a thread
    constexpr int TILE = THREADS * GROUPS;    // of a block
    const unsigned tile = at / stream.tiles;  // of C
    const unsigned begin = tile * stream.tiles, end = begin + stream.tiles;
    T* const behind = workspace + Index(2 * STREAM_K) * THREADS * SHARE;
    unsigned* const counter = reinterpret_cast<unsigned*>(behind) + tile;
    bool* const last = reinterpret_cast<bool*>(shared);  // which holds nothing else any more
    const auto place = [&](unsigned of, bool begins) {
        return reinterpret_cast<Group*>(workspace) + Index(2 * of + !begins) * TILE + threadIdx.x;
    };

    __syncthreads();
    if (threadIdx.x == 0) {
        *last = at == begin && counted(counter) == stream.tiles - part;
        if (*last) *counter = 0;
    }
    __syncthreads();
    unsigned from = block;  // whose part the tile begins in
    if (!*last) {
        Group* const mine = place(block, at == begin);
        #pragma unroll
        for (int g = 0; g < SHARE / WIDTH; ++g) {
            Vector<WIDTH> group;
            #pragma unroll
            for (int e = 0; e < WIDTH; ++e) group.x[e] = share[g * WIDTH + e];
            mine[g * THREADS] = group;
        }
        if (!arrives_last(counter, last, part, stream.tiles)) return false;
        while (stream.begin(from) > begin) --from;
        const Group* const theirs = place(from, true);
        #pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const Group group = theirs[g * THREADS];
            #pragma unroll
            for (int e = 0; e < WIDTH; ++e) share[g * WIDTH + e] = group.x[e];
        }
    }
    #pragma unroll 1
    for (unsigned each = from + 1; stream.begin(each) < end; ++each) {
        if (stream.begin(each) == stream.begin(each + 1)) continue;  // it has no part
        const Group* const theirs = place(each, false);
        #pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const Group group = theirs[g * THREADS];
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
    T beta)
{
    // Where the vector belongs that begins with sum e of the share; null outside of C.
    const auto place_of = [&](int e) -> Vector<VEC_C>* {
        const int row = row_of((first + e) / THREAD_N, lane_m(lane));
        const int col = col_of((first + e) % THREAD_N, lane);
        if (GUARD && (row >= rows || col >= cols)) return nullptr;
        return reinterpret_cast<Vector<VEC_C>*>(c + Index(row) * ldc + col);
    };
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
// BLOCK |     | > |warp|warp|  C     cp.async copies them behind the threads' backs.
//    _M |     |   +----+----+
//       |     |   |warp|warp|        One barrier a tile: then the next tile is whole, and the one before may
//       +-----+   +----+----+        be overwritten.
//        op(A)
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
gemm_simt_f32_nn_bm64_bn64_bk16_tm4_tn4_l8_s3_c1_va1_vb1_vc4_ka0_kb0_p0_w1_z1_x0_q264_g1_r1_ebounds(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, T* __restrict__ C, int ldc,
    int m, int n, int k, T alpha, T beta, T* __restrict__ workspace)
{
    __shared__ __align__(16) T shared[26112 / sizeof(T)];

    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int warp_m = warp / WARPS_N % WARPS_M * WARP_M;
    const int warp_n = warp % WARPS_N * WARP_N;

    wait_for_previous();
    let_next_come();

    // The block's part of the row of all tiles of k. Tiles of C go down GROUP_M, then one to the right:
    // blocks that run at a time share more of A and B in the cache than along a row of C.
    const unsigned blocks_n = unsigned(n - 1) / BLOCK_N + 1;
    const int depth = alpha == T(0) ? 0 : k;
    const Stream stream((unsigned(m - 1) / BLOCK_M + 1) * blocks_n, depth);
    const unsigned number = blockIdx.x;
    unsigned at = stream.begin(number);
    const unsigned end = stream.begin(number + 1);
    #pragma unroll 1
    while (at < end) {
        const unsigned block = at / stream.tiles;
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

        const unsigned first_tile = at % stream.tiles;
        const unsigned part = min(end - at, stream.tiles - first_tile);
        const int tiles = depth > 0 ? int(part) : 0;
        const Index k_begin = Index(first_tile) * BLOCK_K;
        at += part;
        __syncthreads();  // no thread reads what shared memory held
        TileA a(A, lda, row0, k_begin, int(min(m - row0, Index(BLOCK_M))));
        TileB b(B, ldb, col0, k_begin, int(min(n - col0, Index(BLOCK_N))));
        int k_left = depth - int(k_begin);  // of the next tile to be fetched

        T sum[SUMS] = {};
        T a_part[1][STEP][THREAD_M];
        T b_part[1][STEP][THREAD_N];
        const T* a_share = shared + TileA::share(warp_m, lane_m(lane));
        const T* b_share = shared + TileA::SIZE + TileB::share(warp_n, lane_n(lane));
        int reading = 0;  // where the stage begins that is multiplied

        int writing = (STAGES - 1) * STAGE;  // where the stage begins that is filled next
        // Starts to copy the next tile to `stage`.
        const auto fetch = [&](T* stage) {
            a.start(stage, k_left);
            b.start(stage + TileA::SIZE, k_left);
            k_left -= BLOCK_K;
        };
        // Goes on to the stage that is filled next.
        const auto end_fetch = [&] {
            commit_copies();  // an empty group counts too
            writing = writing == (STAGES - 1) * STAGE ? 0 : writing + STAGE;
        };
        // Waits for the oldest tile on its way, and until no thread reads the one before it any more.
        const auto settle = [&] {
            wait_copies<STAGES - 2>();
            __syncthreads();
        };
        #pragma unroll
        for (int stage = 0; stage < STAGES - 1; ++stage) {
            if (stage < tiles) fetch(shared + stage * STAGE);
            commit_copies();
        }
        settle();

        #pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile) {
            // The stage that was multiplied last is filled again: no thread reads it any more.
            if (tile + STAGES - 1 < tiles) fetch(shared + writing);
            end_fetch();

            #pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                TileA::read(a_part[0], a_share + reading, step * STEP);
                TileB::read(b_part[0], b_share + reading, step * STEP);
                multiply(sum, a_part[0], b_part[0]);
            }

            settle();
            reading = reading == (STAGES - 1) * STAGE ? 0 : reading + STAGE;
        }

        // Scaled before they go anywhere: what is made here may lie in neighbouring registers, as vectors
        // want it. The sums of the loop would meet operands in a bank of registers there.
        #pragma unroll
        for (int e = 0; e < SUMS; ++e) sum[e] *= alpha;

        T (&share)[SHARE] = sum;
        const int first = 0;  // of the thread's sums, row after row
        const bool whole = part == stream.tiles;
        if (!whole && !add_stream(share, workspace, shared, stream, number, at - part, part)) continue;

        const Index row = row0 + warp_m, col = col0 + warp_n;
        const int rows = int(min(m - row, Index(WARP_M))), cols = int(min(n - col, Index(WARP_N)));
        store(share, first, C + row * ldc + col, ldc, rows, cols, lane, beta);
    }
}
