// gemm_simt_f32_nn_bm64_bn64_bk32_tm8_tn8_l8_s3_c1_va1_vb1_vc1_ka0_kb0_p1_w4_ap_z2_x1_g1_r1_ebounds
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
//   alignment  every pointer and leading dimension to one element, 4 bytes
//   grid       ceil(m / 64) * ceil(n / 64) * 2 blocks along x
//   block      (256, 1, 1): 256 threads
//   shared     65536 bytes, given at launch
//   cluster    (2, 1, 1): blocks that share a tile of C
//
// Written by tilewright from templates/simt.cu.jinja, digest f1b24a3fd5948537. To write it again:
//   tilewright emit --dtype float --trans nn --config
//       "simt:bulk=0, block_m=64, block_n=64, block_k=32, thread_m=8, thread_n=8, lanes_m=8,
//        stages=3, cp_async=1, pack_a=0, pack_b=0, vec_a=1, vec_b=1, vec_c=1, a_k_inner=0,
//        b_k_inner=0, prefetch=1, rows_first=0, slices=4, apart=1, split_k=2, cluster=1, tail=1,
//        stream_k=0, group_m=1, min_blocks=1, staged_c=0, stream_c=0, atomic=0, warm_l2=0,
//        copy_groups=1, edge=bounds"

namespace {

using T = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int BLOCK_M    = 64;     // rows of C a block computes
constexpr int BLOCK_N    = 64;     // columns of C a block computes
constexpr int BLOCK_K    = 32;     // steps of k that a tile covers
constexpr int THREAD_M   = 8;      // rows of C a thread computes
constexpr int THREAD_N   = 8;      // columns of C a thread computes
constexpr int LANES_M    = 8;      // lanes of a warp along the rows of C
constexpr int STAGES     = 3;      // tiles that shared memory holds at a time
constexpr int CP_ASYNC   = 1;      // 1 = cp.async fills shared memory, 0 = tiles pass through registers
constexpr int PACK_A     = 0;      // 1 = A is copied to aligned rows first, k x m
constexpr int PACK_B     = 0;      // 1 = B is copied to aligned rows first, k x n
constexpr int VEC_A      = 1;      // elements of A that one copy moves
constexpr int VEC_B      = 1;      // elements of B that one copy moves
constexpr int VEC_C      = 1;      // elements of C that one store moves
constexpr int A_K_INNER  = 0;      // 1 = k stays innermost in the tiles of A, 0 = m is
constexpr int B_K_INNER  = 0;      // 1 = k stays innermost in the tiles of B, 0 = n is
constexpr int PREFETCH   = 1;      // 1 = registers hold the operands of the next step too
constexpr int SLICES     = 4;      // groups of warps that share out the k of each tile
constexpr int APART      = 1;      // 1 = each copies its own steps of k, and waits for its own threads alone
constexpr int SPLIT_K    = 2;      // blocks that share out k
constexpr int CLUSTER    = 1;      // 1 = they form a cluster, and add up in each other's shared memory
constexpr int TAIL       = 1;      // they share out the last one of so many parts of the tiles of C
constexpr int STREAM_K   = 0;      // blocks that share out evenly the k of tiles left over, 0 = none
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
constexpr int SLICE_K       = BLOCK_K / SLICES;        // steps of k that a slice copies of a tile
constexpr int SUMS          = THREAD_M * THREAD_N;     // sums of a thread

static_assert(BLOCK_M % WARP_M == 0,
              "block_m 64 is a multiple of the rows of a warp, thread_m 8 * lanes_m 8");
static_assert(BLOCK_N % WARP_N == 0,
              "block_n 64 is a multiple of the columns of a warp, thread_n 8 * 32 / lanes_m 8");
static_assert(WARP_M % WIDE == 0 && WARP_N % WIDE == 0,
              "the rows of a warp, thread_m 8 * lanes_m 8, and its columns are whole vectors of 16 bytes");
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
              "vec_c 1 is at most 16 bytes and divides the stored rows of C");
static_assert(VEC_C <= WIDE && THREAD_N % VEC_C == 0 && !(B_K_INNER && VEC_C > 1),
              "vec_c 1 is at most the neighbours in a row of C that a thread computes");
static_assert(!(CP_ASYNC && !TRANS_A && !A_K_INNER) || VEC_A == 1,
              "cp.async transposes A element by element: vec_a 1 is 1");
static_assert(!(CP_ASYNC && TRANS_B && !B_K_INNER) || VEC_B == 1,
              "cp.async transposes B element by element: vec_b 1 is 1");
static_assert(BLOCK_K % (SLICES * STEP * (1 + PREFETCH)) == 0,
              "block_k 32 is whole steps for each of 4 slices, an even number of them with prefetch 1");
static_assert(THREAD_M * THREAD_N % (SLICES * VEC_C) == 0,
              "thread_m 8 * thread_n 8 sums are whole vectors for each of 4 slices");
static_assert(THREAD_M * THREAD_N * BLOCK_K <= 2560 * SLICES,
              "a thread has at most 2560 multiply-adds in a tile: they are unrolled");
static_assert(!APART || SLICES > 1,
              "only one of several slices can go apart, not with slices 4");
static_assert(!CLUSTER || (2 <= SPLIT_K && SPLIT_K <= 8),
              "a cluster has 2 to 8 blocks, not 2");
static_assert(TAIL == 1 || (SPLIT_K > 1 && !CLUSTER),
              "tail 1 is for blocks that share out k, not 2, and add up in device memory, cluster 1");
static_assert(!STREAM_K || SPLIT_K == 1,
              "stream_k 0 shares out k by itself: split_k is 1, and warm_l2 0");
static_assert((!PACK_A || TRANS_A) && (!PACK_B || !TRANS_B),
              "operands are padded or packed, not both: edge bounds");
static_assert(!STAGED_C || !CLUSTER,
              "blocks of a cluster write their own sums: others still read their shared memory");
static_assert(!WARM_L2 || (!PACK_A && !PACK_B),
              "packed operands are written by the kernel before: none are asked for with warm_l2 0");
static_assert(!ATOMIC || SPLIT_K > 1,
              "sums are added by atomics where blocks share out k: split_k 2 is above 1");
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

// Slices go apart: each copies its own steps of every tile to shared memory of its own, and waits for its own
// threads alone.
static_assert(SLICE_K % VEC_A == 0 && SLICE_K % VEC_B == 0, "a slice copies whole vectors");

// Which thread of its slice a thread is.
__device__ __forceinline__ unsigned rank_in_slice() { return threadIdx.x % SLICE_THREADS; }

// Where the slice's steps begin in each tile.
__device__ __forceinline__ int slice_begin() { return threadIdx.x / SLICE_THREADS * SLICE_K; }

// The barrier of a slice. A block has 16 by number, of which __syncthreads() takes the first.
static_assert(SLICES <= 15, "each slice has a barrier");
__device__ __forceinline__ void sync_slice()
{
    const int barrier = 1 + int(threadIdx.x / SLICE_THREADS);
#ifdef TILEWRIGHT_HOST
    tilewright_host::sync_named(barrier, SLICE_THREADS);
#else
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(SLICE_THREADS) : "memory");
#endif
}

// How many threads share out rows of `per_row` vectors: the most that take whole rows or whole parts of one.
__host__ __device__ constexpr int copiers(int per_row)
{
    int count = SLICE_THREADS;
    while (count % per_row != 0 && per_row % count != 0) --count;
    return count;
}

// How one operand comes to shared memory, and from there to the registers.
//
//   EXTENT   rows of op(A), or columns of op(B), in a tile: its other side is SLICE_K
//   COUNT    those of one thread
//   LANES    lanes of a warp that share out a warp's
//   VEC      elements that one copy moves
//   ALONG_K  in global memory a row of the operand runs along k
//   K_INNER  in shared memory too; otherwise a tile has SLICE_K rows there
template <int EXTENT, int COUNT, int LANES, int VEC, bool ALONG_K, bool K_INNER>
struct Operand {
    static constexpr int WIDTH = ALONG_K ? SLICE_K : EXTENT;  // of a tile in global memory
    static constexpr int HEIGHT = ALONG_K ? EXTENT : SLICE_K;
    static constexpr int PER_ROW = WIDTH / VEC;
    static constexpr int VECTORS = HEIGHT * PER_ROW;
    static constexpr int COPIERS = copiers(PER_ROW);  // threads that copy: theirs lie a fixed way apart
    static constexpr int COPIES = (VECTORS + COPIERS - 1) / COPIERS;  // of each of them
    static constexpr int PITCH = (K_INNER ? SLICE_K : EXTENT) + WIDE;  // 16 spare bytes: rows shift banks
    static constexpr int SIZE = (K_INNER ? EXTENT : SLICE_K) * PITCH;  // of a tile in shared memory
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
        k_begin += slice_begin();  // of the tiles a slice has no more
        const int row = rank_in_slice() / PER_ROW;
        const int col = rank_in_slice() % PER_ROW * VEC;
        source = X + ((ALONG_K ? outer : k_begin) + row) * ld + (ALONG_K ? k_begin : outer) + col;
        place = place_of(row, col);
        k = slice_begin() + (ALONG_K ? col : row);
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
        const bool copier = COPIERS == SLICE_THREADS || rank_in_slice() < COPIERS;
        return copier && ((i + 1) * COPIERS <= VECTORS || i * COPIERS + int(rank_in_slice()) < VECTORS);
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
constexpr int STAGE = TileA::SIZE + TileB::SIZE;  // elements of a slice's stage: of op(A), then op(B)

// Where block `rank` of the cluster has what lies at `place` in this block's shared memory.
__device__ __forceinline__ const T* peer(const T* place, int rank)
{
#ifdef TILEWRIGHT_HOST
    return tilewright_host::peer(place, unsigned(rank));
#else
    const T* found;
    asm("mapa.u64 %0, %1, %2;" : "=l"(found) : "l"(place), "r"(rank));
    return found;
#endif
}

// The barrier of a cluster, in two halves: a thread that has waited sees what others wrote before they
// arrived.
__device__ __forceinline__ void arrive_cluster()
{
#ifdef TILEWRIGHT_HOST
    tilewright_host::arrive_cluster();
#else
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_cluster()
{
#ifdef TILEWRIGHT_HOST
    tilewright_host::wait_cluster();
#else
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// Every slice of every block of the cluster writes a share of the tile in the end, in groups of neighbours:
// as wide as a load can be, but so that no slice is left without where there are sums enough.
constexpr int SHARERS = SPLIT_K * SLICES;
__host__ __device__ constexpr int group_width()
{
    int width = WIDE;
    while (width > VEC_C && (SUMS % width != 0 || SUMS / width < SHARERS)) width /= 2;
    return width;
}
constexpr int GROUP  = group_width();                             // sums of a group
constexpr int GROUPS = SUMS / GROUP;                              // of a thread
constexpr int SHARE  = (GROUPS + SHARERS - 1) / SHARERS * GROUP;  // sums that a thread writes, or fewer

// Adds up the sums of all slices of the cluster's blocks, which leave them in their shared memory: it holds
// nothing else any more. Gives a thread its share of what its sums have become, and says which of them is
// the first. A block begins with its own, so that not all read from one, and goes on in the same order in
// every run. It may end after the cluster's next wait: others read from it till then.
__device__ __forceinline__ int add_cluster(T (&share)[SHARE], const T (&sum)[SUMS], T* shared)
{
    T* const mine = shared + threadIdx.x % SLICE_THREADS * GROUP;
    const int slice = threadIdx.x / SLICE_THREADS;
    const int split = int(blockIdx.x % SPLIT_K);
    const int first = (split * SLICES + slice) * (SHARE / GROUP);
    __syncthreads();
    #pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        Vector<GROUP> group;
        #pragma unroll
        for (int e = 0; e < GROUP; ++e) group.x[e] = sum[g * GROUP + e];
        *reinterpret_cast<Vector<GROUP>*>(mine + (slice * GROUPS + g) * SLICE_THREADS * GROUP) = group;
    }
    arrive_cluster();
    wait_cluster();
    #pragma unroll
    for (int e = 0; e < SHARE; ++e) share[e] = 0;
    #pragma unroll
    for (int other = 0; other < SPLIT_K; ++other) {
        const T* from = peer(mine, (split + other) % SPLIT_K);
        #pragma unroll
        for (int part = 0; part < SLICES; ++part) {
            #pragma unroll
            for (int g = 0; g < SHARE / GROUP; ++g) {
                if (SHARE * SHARERS != SUMS && first + g >= GROUPS) break;
                const T* place = from + (part * GROUPS + first + g) * SLICE_THREADS * GROUP;
                const auto group = *reinterpret_cast<const Vector<GROUP>*>(place);
                #pragma unroll
                for (int e = 0; e < GROUP; ++e) share[g * GROUP + e] += group.x[e];
            }
        }
    }
    arrive_cluster();
    return first * GROUP;
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
        if (SHARE * SHARERS != SUMS && first + e >= SUMS) return nullptr;
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
//       |     |   |warp|warp|        One barrier a tile for each slice: then its steps of the next are there,
//       +-----+   +----+----+        and those of the one before may be overwritten. While a slice waits for
//        op(A)                       that, others multiply: they need not be at the same tile.
extern "C" __global__ void __cluster_dims__(SPLIT_K, 1, 1) __launch_bounds__(THREADS, MIN_BLOCKS)
gemm_simt_f32_nn_bm64_bn64_bk32_tm8_tn8_l8_s3_c1_va1_vb1_vc1_ka0_kb0_p1_w4_ap_z2_x1_g1_r1_ebounds(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, T* __restrict__ C, int ldc,
    int m, int n, int k, T alpha, T beta)
{
    extern __shared__ __align__(16) T shared[];

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
    T* const own = shared + threadIdx.x / SLICE_THREADS * (STAGES * STAGE);  // the slice's stages
    TileA a(A, lda, row0, k_begin, int(min(m - row0, Index(BLOCK_M))));
    TileB b(B, ldb, col0, k_begin, int(min(n - col0, Index(BLOCK_N))));
    int k_left = depth - int(k_begin);  // of the next tile to be fetched

    T sum[SUMS] = {};
    T a_part[2][STEP][THREAD_M];
    T b_part[2][STEP][THREAD_N];
    const T* a_share = own + TileA::share(warp_m, lane_m(lane));
    const T* b_share = own + TileA::SIZE + TileB::share(warp_n, lane_n(lane));
    int reading = 0;  // where the stage begins that is multiplied
    wait_for_previous();
    let_next_come();

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
        sync_slice();
    };
    #pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < tiles) fetch(own + stage * STAGE);
        commit_copies();
    }
    settle();
    TileA::read(a_part[0], a_share, 0);
    TileB::read(b_part[0], b_share, 0);

    #pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
        // The stage that was multiplied last is filled again: no thread reads it any more.
        if (tile + STAGES - 1 < tiles) fetch(own + writing);
        end_fetch();

        // The next step's operands are read before this one's are multiplied, at last those of the next tile.
        #pragma unroll
        for (int step = 0; step < STEPS - 1; ++step) {
            TileA::read(a_part[(step + 1) % 2], a_share + reading, (step + 1) * STEP);
            TileB::read(b_part[(step + 1) % 2], b_share + reading, (step + 1) * STEP);
            multiply(sum, a_part[step % 2], b_part[step % 2]);
        }

        settle();
        reading = reading == (STAGES - 1) * STAGE ? 0 : reading + STAGE;
        TileA::read(a_part[0], a_share + reading, 0);
        TileB::read(b_part[0], b_share + reading, 0);
        multiply(sum, a_part[1], b_part[1]);
    }

    // Scaled before they go anywhere: what is made here may lie in neighbouring registers, as vectors
    // want it. The sums of the loop would meet operands in a bank of registers there.
    #pragma unroll
    for (int e = 0; e < SUMS; ++e) sum[e] *= alpha;

    T share[SHARE];
    const int first = add_cluster(share, sum, shared);  // of the thread's sums, row after row

    const Index row = row0 + warp_m, col = col0 + warp_n;
    const int rows = int(min(m - row, Index(WARP_M))), cols = int(min(n - col, Index(WARP_N)));
    store(share, first, C + row * ldc + col, ldc, rows, cols, lane, beta);
    wait_cluster();
}
