// gemm_simt_f32_nn_bm64_bn64_bk32_tm4_tn4_l8_s2_c0_va1_vb1_vc4_ka0_kb0_p0_w2_z16_x0_g1_r1_ebounds
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
//   grid       ceil(m / 64) * ceil(n / 64) * 16 blocks along x
//   block      (512, 1, 1): 512 threads
//   shared     34816 bytes, static
//   workspace  16384 bytes a block, then 4 each 16 blocks,
//              which must be 0 and are left 0
//
// Written by tilewright from templates/simt.cu.jinja, digest 67f0282ef6882656. To write it again:
//   tilewright emit --dtype float --trans nn --config
//       "simt:bulk=0, block_m=64, block_n=64, block_k=32, thread_m=4, thread_n=4, lanes_m=8,
//        stages=2, cp_async=0, pack_a=0, pack_b=0, vec_a=1, vec_b=1, vec_c=4, a_k_inner=0,
//        b_k_inner=0, prefetch=0, rows_first=0, slices=2, apart=0, split_k=16, cluster=0, tail=1,
//        stream_k=0, group_m=1, min_blocks=1, staged_c=0, stream_c=0, atomic=0, warm_l2=0,
//        copy_groups=1, edge=bounds"

namespace {

using T = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int BLOCK_M    = 64;     // rows of C a block computes
constexpr int BLOCK_N    = 64;     // columns of C a block computes
constexpr int BLOCK_K    = 32;     // steps of k that a tile covers
constexpr int THREAD_M   = 4;      // rows of C a thread computes
constexpr int THREAD_N   = 4;      // columns of C a thread computes
constexpr int LANES_M    = 8;      // lanes of a warp along the rows of C
constexpr int STAGES     = 2;      // tiles that shared memory holds at a time
constexpr int CP_ASYNC   = 0;      // 1 = cp.async fills shared memory, 0 = tiles pass through registers
constexpr int PACK_A     = 0;      // 1 = A is copied to aligned rows first, k x m
constexpr int PACK_B     = 0;      // 1 = B is copied to aligned rows first, k x n
constexpr int VEC_A      = 1;      // elements of A that one copy moves
constexpr int VEC_B      = 1;      // elements of B that one copy moves
constexpr int VEC_C      = 4;      // elements of C that one store moves
constexpr int A_K_INNER  = 0;      // 1 = k stays innermost in the tiles of A, 0 = m is
constexpr int B_K_INNER  = 0;      // 1 = k stays innermost in the tiles of B, 0 = n is
constexpr int PREFETCH   = 0;      // 1 = registers hold the operands of the next step too
constexpr int SLICES     = 2;      // groups of warps that share out the k of each tile
constexpr int APART      = 0;      // 1 = each copies its own steps of k, and waits for its own threads alone
constexpr int SPLIT_K    = 16;     // blocks that share out k
constexpr int CLUSTER    = 0;      // 1 = they form a cluster, and add up in each other's shared memory
constexpr int TAIL       = 1;      // they share out the last one of so many parts of the tiles of C
constexpr int STREAM_K   = 0;      // blocks that share out evenly the k of tiles left over, 0 = none
constexpr int GROUP_M    = 1;      // tiles that blocks go down before they go right
constexpr int MIN_BLOCKS = 1;      // blocks that the registers must allow on a multiprocessor
constexpr int STAGED_C   = 0;      // 1 = sums pass through shared memory, so that lanes write neighbours in C
constexpr int ATOMIC     = 0;      // 1 = they add up in one tile by atomics: never quite the same bits again
constexpr int WARM_L2    = 0;      // 1 = a block asks for its first tiles while earlier kernels end
constexpr int THREADS    = 512;    // threads of a block
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
constexpr int SHARERS       = 16;                      // blocks that add up a part of a tile each

static_assert(BLOCK_M % WARP_M == 0,
              "block_m 64 is a multiple of the rows of a warp, thread_m 4 * lanes_m 8");
static_assert(BLOCK_N % WARP_N == 0,
              "block_n 64 is a multiple of the columns of a warp, thread_n 4 * 32 / lanes_m 8");
static_assert(WARP_M % WIDE == 0 && WARP_N % WIDE == 0,
              "the rows of a warp, thread_m 4 * lanes_m 8, and its columns are whole vectors of 16 bytes");
static_assert(CP_ASYNC || STAGES == 2,
              "tiles that pass through registers use two stages, not 2");
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
              "block_k 32 is whole steps for each of 2 slices, an even number of them with prefetch 0");
static_assert(THREAD_M * THREAD_N % (SLICES * VEC_C) == 0,
              "thread_m 4 * thread_n 4 sums are whole vectors for each of 2 slices");
static_assert(THREAD_M * THREAD_N * BLOCK_K <= 2560 * SLICES,
              "a thread has at most 2560 multiply-adds in a tile: they are unrolled");
static_assert(!APART || SLICES > 1,
              "only one of several slices can go apart, not with slices 2");
static_assert(!CLUSTER || (2 <= SPLIT_K && SPLIT_K <= 8),
              "a cluster has 2 to 8 blocks, not 16");
static_assert(TAIL == 1 || (SPLIT_K > 1 && !CLUSTER),
              "tail 1 is for blocks that share out k, not 16, and add up in device memory, cluster 0");
static_assert(!STREAM_K || SPLIT_K == 1,
              "stream_k 0 shares out k by itself: split_k is 1, and warm_l2 0");
static_assert((!PACK_A || TRANS_A) && (!PACK_B || !TRANS_B),
              "operands are padded or packed, not both: edge bounds");
static_assert(!STAGED_C || !CLUSTER,
              "blocks of a cluster write their own sums: others still read their shared memory");
static_assert(!WARM_L2 || (!PACK_A && !PACK_B),
              "packed operands are written by the kernel before: none are asked for with warm_l2 0");
static_assert(!ATOMIC || SPLIT_K > 1,
              "sums are added by atomics where blocks share out k: split_k 16 is above 1");
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

    Vector<VEC> staged[COPIES];  // a tile on its way

    // Starts to load the next tile.
    __device__ __forceinline__ void load(int k_left)
    {
        #pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            staged[i] = {};
            if (copies(i) && copied(i, k_left)) staged[i] = *reinterpret_cast<const Vector<VEC>*>(from(i));
        }
        advance();
    }

    // Puts it down as `tile`.
    __device__ __forceinline__ void store(T* tile) const
    {
        #pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            if (!copies(i)) continue;
            T* to = tile + place + place_of(row_of(i), col_of(i));
            if constexpr (TURNED) {
                #pragma unroll
                for (int e = 0; e < VEC; ++e) to[e * PITCH] = staged[i].x[e];
            } else {
                *reinterpret_cast<Vector<VEC>*>(to) = staged[i];
            }
        }
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

constexpr int PIECE    = SHARE % WIDE == 0 ? WIDE : SHARE % 2 == 0 ? 2 : 1;  // sums that lie side by side
constexpr int TILE     = THREADS * SHARE / PIECE;                            // pieces of a tile
constexpr int PART     = TILE / SHARERS;                                     // of what a block adds up
constexpr int OWN      = (PART + THREADS - 1) / THREADS;                     // of what a thread adds up
static_assert(TILE % SHARERS == 0, "parts are alike");

// How many threads add up a piece: all that there are for it, if they share out the blocks evenly.
__host__ __device__ constexpr int threads_of_piece()
{
    int threads = THREADS / PART < SPLIT_K ? THREADS / PART : SPLIT_K;
    while (threads > 1 && SPLIT_K % threads != 0) --threads;
    return threads > 1 ? threads : 1;
}
constexpr int TOGETHER = threads_of_piece();
constexpr int TERMS    = SPLIT_K / TOGETHER;  // blocks for each of them
constexpr int WORDS    = OWN * PIECE * int(sizeof(T)) / 4;
constexpr int AHEAD    = WORDS > 32 ? 1 : 64 / WORDS;  // of them read at a time: more would take registers

// The word of a tile of C: how many blocks have put down their sums, in its lowest 8 bits, then a bit for
// each part of the tile that is left to the last of them, and from GONE on how many will not look again.
constexpr unsigned GONE = 1u << 24;
__device__ __forceinline__ unsigned came(unsigned word) { return word % 256; }
__device__ __forceinline__ unsigned left_to_last(unsigned word) { return word / 256 % 65536; }

// The parts of the tile that this block adds up, a bit for each: its own once the sums of all are there. One
// that waits too long for blocks that do not run yet leaves its part to the last of them, so that none waits
// for ever.
__device__ __forceinline__ unsigned parts_to_add(unsigned* word, int split, unsigned* found)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        const unsigned own = split < SHARERS ? 1u << split : 0;
        unsigned parts = own, seen = count(word, 1);
        if (came(seen) == SPLIT_K - 1) {
            parts |= left_to_last(seen);
        } else if (own) {
#ifndef TILEWRIGHT_HOST
            constexpr int PATIENCE = 1 << 18;  // clocks
            const long long since = clock64();
            while (came(seen) < SPLIT_K && clock64() - since < PATIENCE) {
                seen = counted(word);
            }
#endif
            if (came(seen) < SPLIT_K && came(count(word, 256 * own)) < SPLIT_K) parts = 0;
        }
        *found = parts;
    }
    __syncthreads();
    return *found;
}

// Thread 0 counts its block among those that will not look at the word again, and gets what the word was, the
// others 0. Not by an `if`: what a branch of the text makes is waited for where it ends.
__device__ __forceinline__ unsigned look_away(unsigned* word)
{
    unsigned before = 0;
#ifdef TILEWRIGHT_HOST
    if (threadIdx.x == 0) before = atomicAdd(word, GONE);
#else
    asm volatile("{\n\t"
                 ".reg .pred first;\n\t"
                 "setp.eq.u32 first, %1, 0;\n\t"
                 "@first atom.relaxed.gpu.add.u32 %0, [%2], %3;\n\t"
                 "}" : "+r"(before) : "r"(threadIdx.x), "l"(word), "n"(GONE));
#endif
    return before;
}

// Adds up the sums of the SPLIT_K blocks that share a tile of C, always in the same order, so that every run
// gives the same bits. Each block writes its own to the workspace. The first SHARERS of them add up a part of
// the tile each, once all are there, and hand on pieces of it: `write(sums, thread, e)`, where they are those
// of a block's thread from sum `e` of its share on.
//
// The workspace holds a tile for each block, then a word for each tile of C, 0 before and after.
template <typename Write>
__device__ __forceinline__ void share_out(T (&share)[SHARE], T* workspace, T* shared, Write write)
{
    using Piece = Vector<PIECE>;
    const int split = int(blockIdx.x % SPLIT_K);
    unsigned* const word = reinterpret_cast<unsigned*>(workspace + Index(gridDim.x) * THREADS * SHARE)
                         + blockIdx.x / SPLIT_K;
    Piece* const tiles = reinterpret_cast<Piece*>(workspace) + Index(blockIdx.x - split) * TILE;
    Piece* const lines = reinterpret_cast<Piece*>(shared) + 1;  // it holds nothing else any more

    #pragma unroll
    for (int g = 0; g < SHARE / PIECE; ++g) {
        Vector<PIECE> group;
        #pragma unroll
        for (int e = 0; e < PIECE; ++e) group.x[e] = share[g * PIECE + e];
        tiles[split * TILE + g * THREADS + threadIdx.x] = group;
    }
    const unsigned parts = parts_to_add(word, split, reinterpret_cast<unsigned*>(shared));
    const unsigned before = look_away(word);  // not waited for till the end

    const int line = TOGETHER > 1 ? threadIdx.x / PART : 0;  // of the blocks
    const int first = int(threadIdx.x) - line * PART;        // of the thread's pieces
    #pragma unroll 1
    for (int part = 0; part < SHARERS; ++part) {
        if (!(parts >> part & 1)) continue;
        Piece total[OWN] = {};
        #pragma unroll AHEAD
        for (int term = 0; term < (line < TOGETHER ? TERMS : 0); ++term) {
            const int from = line * TERMS + term;
            #pragma unroll
            for (int i = 0; i < OWN; ++i) {
                if (OWN * THREADS > PART && TOGETHER == 1 && first + i * THREADS >= PART) break;
                const Piece piece = tiles[from * TILE + part * PART + first + i * THREADS];
                #pragma unroll
                for (int e = 0; e < PIECE; ++e) total[i].x[e] += piece.x[e];
            }
        }
        if constexpr (TOGETHER > 1) {
            __syncthreads();
            if (line < TOGETHER) lines[threadIdx.x] = total[0];
            __syncthreads();
            if (line > 0) continue;
            #pragma unroll
            for (int other = 1; other < TOGETHER; ++other) {
                const Piece piece = lines[other * PART + first];
                #pragma unroll
                for (int e = 0; e < PIECE; ++e) total[0].x[e] += piece.x[e];
            }
        }
        #pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const int at = part * PART + first + i * THREADS;
            if (OWN * THREADS > PART && first + i * THREADS >= PART) break;
            write(total[i].x, at % THREADS, at / THREADS * PIECE);
        }
    }
    if (before / GONE == SPLIT_K - 1) *word = 0;
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
    T (&share)[PIECE], int first, T* c, int ldc, int rows, int cols, int lane,
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
    for (int e = 0; e < PIECE; ++e) share[e] *= alpha;
    // All of C is read before any of it is written, else each read would wait for the write before it; but
    // not all at a time, which would take as many registers again.
    if (beta != T(0)) {
        #pragma unroll
        for (int e = 0; e < PIECE; e += VEC_C) {
            if (const Vector<VEC_C>* place = place_of(e)) {
                const auto old = *place;
                #pragma unroll
                for (int v = 0; v < VEC_C; ++v) share[e + v] += beta * old.x[v];
            }
            if ((e + VEC_C) % THREAD_N == 0) asm volatile("" ::: "memory");  // a row's reads at a time
        }
    }
    #pragma unroll
    for (int e = 0; e < PIECE; e += VEC_C) {
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
// BLOCK |     | > |warp|warp|  C     loaded to registers before the multiplication, put down after it.
//    _M |     |   +----+----+
//       |     |   |warp|warp|        One barrier a tile: then the next tile is whole, and the one before may
//       +-----+   +----+----+        be overwritten.
//        op(A)
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
gemm_simt_f32_nn_bm64_bn64_bk32_tm4_tn4_l8_s2_c0_va1_vb1_vc4_ka0_kb0_p0_w2_z16_x0_g1_r1_ebounds(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, T* __restrict__ C, int ldc,
    int m, int n, int k, T alpha, T beta, T* __restrict__ workspace)
{
    __shared__ __align__(16) T shared[34816 / sizeof(T)];

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
    TileA a(A, lda, row0, k_begin, int(min(m - row0, Index(BLOCK_M))));
    TileB b(B, ldb, col0, k_begin, int(min(n - col0, Index(BLOCK_N))));
    int k_left = depth - int(k_begin);  // of the next tile to be fetched

    T sum[SUMS] = {};
    T a_part[1][STEP][THREAD_M];
    T b_part[1][STEP][THREAD_N];
    const T* a_share = shared + TileA::share(warp_m, lane_m(lane));
    const T* b_share = shared + TileA::SIZE + TileB::share(warp_n, lane_n(lane));
    a_share += slice_begin() * (A_K_INNER ? 1 : TileA::PITCH);
    b_share += slice_begin() * (B_K_INNER ? 1 : TileB::PITCH);
    int reading = 0;  // where the stage begins that is multiplied
    wait_for_previous();
    let_next_come();

    // Starts to load the next tile to registers.
    const auto fetch = [&] {
        a.load(k_left);
        b.load(k_left);
        k_left -= BLOCK_K;
    };
    // Puts it down in `stage`.
    const auto put = [&](T* stage) {
        a.store(stage);
        b.store(stage + TileA::SIZE);
    };
    if (tiles > 0) {
        fetch();
        put(shared);
    }
    __syncthreads();

    #pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
        const bool more = tile + 1 < tiles;
        if (more) fetch();

        #pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            TileA::read(a_part[0], a_share + reading, step * STEP);
            TileB::read(b_part[0], b_share + reading, step * STEP);
            multiply(sum, a_part[0], b_part[0]);
        }

        reading = STAGE - reading;
        if (more) put(shared + reading);
        __syncthreads();
    }

    T share[SHARE];
    add_slices(share, sum, shared);
    // A piece is written as the thread would write it that had these sums of its block's.
    share_out(share, workspace, shared, [&](T (&piece)[PIECE], int thread, int e) {
        const int of = thread / 32;
        const Index row = row0 + of / WARPS_N % WARPS_M * WARP_M, col = col0 + of % WARPS_N * WARP_N;
        const int rows = int(min(m - row, Index(WARP_M))), cols = int(min(n - col, Index(WARP_N)));
        store(piece, thread / SLICE_THREADS * SHARE + e, C + row * ldc + col, ldc, rows, cols, thread % 32,
              alpha, beta);
    });
}
