// gemm_dmma_f64_nn_bm64_bn64_bk16_wm32_wn32_mk8_s3_va1_vb1_vc1_p0_w1_z8_x0_g1_r1_ebounds
// Warp tiles fed from shared memory, by the fp64 tensor cores.
//
//   C = alpha * op(A) * op(B) + beta * C      double, every matrix row-major
//
//   op(A) is m x k; A is stored m x k, lda elements from row to row
//   op(B) is k x n; B is stored k x n, ldb elements from row to row
//   C is m x n, ldc elements from row to row; it is not read where beta is 0
//   A and B are not read where alpha is 0
//
//   sizes      any m, n > 0 and k >= 0
//   alignment  every pointer and leading dimension to one element, 8 bytes
//   grid       ceil(m / 64) * ceil(n / 64) * 8 blocks along x
//   block      (128, 1, 1): 128 threads
//   shared     49152 bytes, static
//   workspace  32768 bytes a block, then 4 each 8 blocks,
//              which must be 0 and are left 0
//
// Written by tilewright from templates/dmma.cu.jinja, digest 801bfb0df9334407. To write it again:
//   tilewright emit --dtype double --trans nn --config
//       "dmma:block_m=64, block_n=64, block_k=16, warp_m=32, warp_n=32, mma_k=8, stages=3,
//        pack_a=0, pack_b=0, vec_a=1, vec_b=1, vec_c=1, prefetch=0, slices=1, split_k=8, cluster=0,
//        tail=1, stream_k=0, group_m=1, min_blocks=1, staged_c=0, stream_c=0, atomic=0, warm_l2=0,
//        copy_groups=1, persistent=1, edge=bounds"

namespace {

using T = double;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int BLOCK_M    = 64;     // rows of C a block computes
constexpr int BLOCK_N    = 64;     // columns of C a block computes
constexpr int BLOCK_K    = 16;     // steps of k that a tile covers
constexpr int WARP_M     = 32;     // rows of C a warp computes
constexpr int WARP_N     = 32;     // columns of C a warp computes
constexpr int MMA_K      = 8;      // steps of k of one instruction: 16x8 elements of C, with 4 of them 8x8
constexpr int STAGES     = 3;      // tiles that shared memory holds at a time
constexpr int PACK_A     = 0;      // 1 = A is copied to aligned rows first, k x m
constexpr int PACK_B     = 0;      // 1 = B is copied to aligned rows first, k x n
constexpr int VEC_A      = 1;      // elements of A that one copy moves
constexpr int VEC_B      = 1;      // elements of B that one copy moves
constexpr int VEC_C      = 1;      // elements of C that one store moves
constexpr int PREFETCH   = 0;      // operands are read: 0 = in time, 1 = ahead, 2 = ahead, beside others
constexpr int SLICES     = 1;      // groups of warps that share out the k of each tile
constexpr int SPLIT_K    = 8;      // blocks that share out k
constexpr int CLUSTER    = 0;      // 1 = they form a cluster, and add up in each other's shared memory
constexpr int TAIL       = 1;      // they share out the last one of so many parts of the tiles of C
constexpr int STREAM_K   = 0;      // blocks that share out evenly the k of tiles left over, 0 = none
constexpr int GROUP_M    = 1;      // tiles that blocks go down before they go right
constexpr int MIN_BLOCKS = 1;      // blocks that the registers must allow on a multiprocessor
constexpr int STAGED_C   = 0;      // 1 = sums pass through shared memory, so that lanes write neighbours in C
constexpr int ATOMIC     = 0;      // 1 = they add up in one tile by atomics: never quite the same bits again
constexpr int WARM_L2    = 0;      // 1 = a block asks for its first tiles while earlier kernels end
constexpr int THREADS    = 128;    // threads of a block
constexpr bool TRANS_A   = false;  // A is stored k x m
constexpr bool TRANS_B   = false;  // B is stored n x k
constexpr bool GUARD     = true;   // loads and stores outside the matrices are left out

constexpr int WARPS_M       = BLOCK_M / WARP_M;         // warps of a slice along the rows of C
constexpr int WARPS_N       = BLOCK_N / WARP_N;         // warps of a slice along the columns of C
constexpr int SLICE_THREADS = 32 * WARPS_M * WARPS_N;   // threads of a slice
constexpr int THREAD_M      = WARP_M / 8;               // rows of C a thread holds: one of every 8
constexpr int THREAD_N      = WARP_N / 4;               // columns of C a thread holds: two of every 8
constexpr int MMA_M         = MMA_K == 4 ? 8 : 16;      // rows of C of one instruction
constexpr int GROUPS_A      = WARP_M / MMA_M;           // instructions of a warp along the rows of C
constexpr int STEP          = MMA_K == 16 ? 16 : 8;     // steps of k whose operands are read at once
constexpr int OWN_K         = STEP / 4;                 // of those a thread's own, of each row or column
constexpr int STEPS         = BLOCK_K / SLICES / STEP;  // such steps of a warp in a tile
constexpr int SUMS          = THREAD_M * THREAD_N;      // sums of a thread
constexpr int SHARE         = SUMS / SLICES;            // those it writes in the end
constexpr int WIDE          = 2;                        // elements of the widest load
constexpr int SHARERS       = 8;                        // blocks that add up a part of a tile each

static_assert(BLOCK_M % WARP_M == 0,
              "block_m 64 is a multiple of warp_m 32");
static_assert(BLOCK_N % WARP_N == 0,
              "block_n 64 is a multiple of warp_n 32");
static_assert(THREAD_M * THREAD_N <= 64,
              "a thread holds at most 64 elements of C");
static_assert(BLOCK_K % (SLICES * STEP) == 0,
              "block_k 16 is whole steps for each of 1 slices");
static_assert(PREFETCH < 2 || STEPS % 2 == 0,
              "prefetch 2 takes an even number of steps of k for each slice");
static_assert(THREAD_M * THREAD_N % (SLICES * VEC_C) == 0,
              "the sums of a thread are whole vectors for each of 1 slices");
static_assert(!CLUSTER || (2 <= SPLIT_K && SPLIT_K <= 8),
              "a cluster has 2 to 8 blocks, not 8");
static_assert(TAIL == 1 || (SPLIT_K > 1 && !CLUSTER),
              "tail 1 is for blocks that share out k, not 8, and add up in device memory, cluster 0");
static_assert(!STREAM_K || SPLIT_K == 1,
              "stream_k 0 shares out k by itself: split_k is 1, and warm_l2 0");
static_assert((!PACK_A || TRANS_A) && (!PACK_B || !TRANS_B),
              "operands are padded or packed, not both: edge bounds");
static_assert(!STAGED_C || !CLUSTER,
              "blocks of a cluster write their own sums: others still read their shared memory");
static_assert(!WARM_L2 || (!PACK_A && !PACK_B),
              "packed operands are written by the kernel before: none are asked for with warm_l2 0");
static_assert(!ATOMIC || SPLIT_K > 1,
              "sums are added by atomics where blocks share out k: split_k 8 is above 1");
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

// How one operand comes to shared memory, its rows as they lie in global memory, and from there to registers.
//
//   EXTENT   rows of op(A), or columns of op(B), in a tile: its other side is BLOCK_K
//   VEC      elements that one copy moves
//   ALONG_K  a row of the operand runs along k
//
// Lane 4g + t reads the g-th row or column of each group of 8, at k = t, t + 4 and so on. No two lanes of a
// read meet in a bank: the chunks of four elements of a row are swapped, differently from row to row, or rows
// have four spare elements where they are too short for that.
template <int EXTENT, int VEC, bool ALONG_K>
struct Tile {
    static constexpr int WIDTH = ALONG_K ? BLOCK_K : EXTENT;  // of a tile in global memory
    static constexpr int HEIGHT = ALONG_K ? EXTENT : BLOCK_K;
    static constexpr int PER_ROW = WIDTH / VEC;
    static constexpr int VECTORS = HEIGHT * PER_ROW;
    static constexpr int COPIES = (VECTORS + THREADS - 1) / THREADS;  // of each thread
    static constexpr int SPARE = EXTENT % 16 ? 4 : 0;                 // elements of a row across k
    static constexpr int PITCH = ALONG_K ? BLOCK_K : EXTENT + SPARE;  // from row to row in shared memory
    static constexpr int SIZE = BLOCK_K * (EXTENT + SPARE);           // of a tile in shared memory
    static constexpr int BASES = ALONG_K ? 4 : SPARE ? 1 : 2;  // places from which a lane's lie a fixed way
    static constexpr bool ONE_OUTER = ALONG_K ? COPIES == 1 : PER_ROW <= THREADS;  // of all copies
    static_assert(COPIES <= 32, "a bit for each copy");

    const T* source;      // what this thread copies first of the next tile
    int ld;
    int place;            // where that goes in a tile in shared memory
    unsigned k;           // its place along k; beyond any k where no copy lies inside the matrix
    unsigned inside = 0;  // bit i: copy i lies inside, k left aside

    // How much further copy i lies than copy 0. Neighbouring threads copy neighbouring vectors.
    static __device__ constexpr int row_of(int i) { return i * THREADS / PER_ROW; }
    static __device__ constexpr int col_of(int i) { return i * THREADS % PER_ROW * VEC; }

    // What is exclusive-or'ed to the columns of a row's elements to give their places.
    static __device__ constexpr int swap(int row)
    {
        if (ALONG_K) return BLOCK_K == 8 ? row / 2 % 2 * 4 : row % 4 * 4;
        return SPARE ? 0 : row % 4 * 4;
    }

    // The operand X from its row or column `outer` on, of which `outer_left` are left, and from `k_begin` on.
    __device__ __forceinline__ Tile(const T* X, int ld, Index outer, Index k_begin, int outer_left) : ld(ld)
    {
        const int row = threadIdx.x / PER_ROW;
        const int col = threadIdx.x % PER_ROW * VEC;
        source = X + ((ALONG_K ? outer : k_begin) + row) * ld + (ALONG_K ? k_begin : outer) + col;
        place = row * PITCH + (col ^ swap(row));
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

    // Whether this thread has a copy i: the last one may not be there for every thread.
    static __device__ __forceinline__ bool copies(int i)
    {
        return (i + 1) * THREADS <= VECTORS || i * THREADS + int(threadIdx.x) < VECTORS;
    }

    // Whether copy i lies inside the matrix; `k_left` is what is left of k, this tile included.
    __device__ __forceinline__ bool copied(int i, int k_left) const
    {
        if (!GUARD) return true;
        return (ONE_OUTER || inside >> i & 1) && k + (ALONG_K ? col_of(i) : row_of(i)) < unsigned(k_left);
    }

    // Where copy i comes from, and where it goes in `tile`.
    __device__ __forceinline__ const T* from(int i) const
    {
        return source + Index(row_of(i)) * ld + col_of(i);
    }
    __device__ __forceinline__ T* to(T* tile, int i) const
    {
        // The bits of a thread's first row and those of row_of(i) are apart, so the swaps add up.
        return tile + (place ^ swap(row_of(i))) + row_of(i) * PITCH + col_of(i);
    }

    __device__ __forceinline__ void advance() { source += ALONG_K ? Index(BLOCK_K) : Index(BLOCK_K) * ld; }

    // Starts to copy the next tile to `tile`.
    __device__ __forceinline__ void start(T* tile, int k_left)
    {
        #pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            if (copies(i)) copy_async<VEC * sizeof(T)>(to(tile, i), from(i), copied(i, k_left));
        }
        advance();
    }

    // Where a lane reads of `tile`, for a warp whose share begins at `first`, and at `p` along k.
    static __device__ __forceinline__ void find(
        const T* (&places)[BASES], const T* tile, int first, int p, int lane)
    {
        const int outer = first + lane / 4, k = p + lane % 4;
        #pragma unroll
        for (int b = 0; b < BASES; ++b) {
            // Steps of k four apart lie in other chunks, and so does every other group of 8.
            const int along = (p + 4 * b) / 16 * 16 + ((p + 4 * b) % 16 ^ swap(lane / 4)) + lane % 4;
            const int across = (outer + 8 * b) ^ swap(lane % 4);
            places[b] = tile + (ALONG_K ? outer * PITCH + along : k * PITCH + across);
        }
    }

    // Reads a lane's share of the i-th group from STEP steps of k, from `p` on, in the stage at `stage`.
    static __device__ __forceinline__ void read(
        T (&fragment)[OWN_K], const T* const (&places)[BASES], int stage, int p, int i)
    {
        #pragma unroll
        for (int e = 0; e < OWN_K; ++e) {
            const int at = p + 4 * e;
            fragment[e] = ALONG_K ? places[at / 4 % BASES][stage + at / 16 * 16 + i * 8 * PITCH]
                                  : places[i % BASES][stage + at * PITCH + i / BASES * BASES * 8];
        }
    }
};

using TileA = Tile<BLOCK_M, VEC_A, !TRANS_A>;
using TileB = Tile<BLOCK_N, VEC_B, TRANS_B>;
constexpr int STAGE = TileA::SIZE + TileB::SIZE;  // elements of a stage: a tile of op(A), then one of op(B)

// Adds to part (i, j) of the sums, MMA_M x 8 of C, the product of MMA_M rows of A and 8 columns of B over
// STEP steps of k. A warp does it together. Of each 8 x 4 of A, 4 x 8 of B and 8 x 8 of C lane 4g + t holds
// A(g, t), B(t, g), C(g, 2t) and C(g, 2t + 1).
__device__ __forceinline__ void multiply(
    T (&sum)[SUMS], const T (&a)[THREAD_M][OWN_K], const T (&b)[THREAD_N / 2][OWN_K],
    int i, int j)
{
    const int upper = 2 * i * THREAD_N + 2 * j, lower = upper + THREAD_N;
#ifdef TILEWRIGHT_HOST
    struct Fragment {
        T upper[OWN_K], lower[OWN_K], b[OWN_K];
    };
    struct Sums {
        T x[4];
    };
    Fragment mine;
    for (int p = 0; p < OWN_K; ++p) {
        mine.upper[p] = a[2 * i][p];
        mine.lower[p] = a[2 * i + 1][p];
        mine.b[p] = b[j][p];
    }
    const int g = int(tilewright_host::lane()) / 4, t = int(tilewright_host::lane()) % 4;
    const Sums made = tilewright_host::warp_collective(~0u, mine, [=](auto of) {
        Sums more = {};
        for (int p = 0; p < OWN_K; ++p) {
            for (int each = 0; each < 4; ++each) {
                const Fragment& row = of(4 * g + each);
                const Fragment &left = of(8 * t + each), &right = of(8 * t + 4 + each);
                more.x[0] += row.upper[p] * left.b[p];
                more.x[1] += row.upper[p] * right.b[p];
                more.x[2] += row.lower[p] * left.b[p];
                more.x[3] += row.lower[p] * right.b[p];
            }
        }
        return more;
    });
    sum[upper] += made.x[0];
    sum[upper + 1] += made.x[1];
    sum[lower] += made.x[2];
    sum[lower + 1] += made.x[3];
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
        "{ %0, %1, %2, %3 }, { %4, %5, %6, %7 }, { %8, %9 }, { %0, %1, %2, %3 };"
        : "+d"(sum[upper]), "+d"(sum[upper + 1]), "+d"(sum[lower]), "+d"(sum[lower + 1])
        : "d"(a[2 * i][0]), "d"(a[2 * i + 1][0]), "d"(a[2 * i][1]), "d"(a[2 * i + 1][1]),
          "d"(b[j][0]), "d"(b[j][1]));
#endif
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

// Which lane of a warp a lane is along the rows of C.
__device__ __forceinline__ int lane_m(int lane) { return lane / 4; }

// Where in the warp's part of C the i-th row of lanes `along_m` is, and a lane's j-th column.
__device__ __forceinline__ int row_of(int i, int along_m) { return along_m + 8 * i; }
__device__ __forceinline__ int col_of(int j, int lane) { return lane % 4 * 2 + j / 2 * 8 + j % 2; }

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

//                   BLOCK_N          Each block computes a tile of C, each warp of it WARP_M x WARP_N, by
//                 +---------+        instructions that multiply MMA_M x MMA_K by MMA_K x 8 elements, the
//         BLOCK_K |         | op(B)  fragments of which are spread over the registers of the warp's lanes.
//                 +---------+
//       BLOCK_K        v             Tiles of op(A) and op(B) pass along k through STAGES buffers in shared
//       +-----+   +----+----+        memory. While one is multiplied the next are on their way: cp.async
// BLOCK |     | > |warp|warp|  C     copies them behind the threads' backs, as they lie in global memory.
//    _M |     |   +----+----+
//       |     |   |warp|warp|        One barrier a tile: then the next tile is whole, and the one before may
//       +-----+   +----+----+        be overwritten.
//        op(A)
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
gemm_dmma_f64_nn_bm64_bn64_bk16_wm32_wn32_mk8_s3_va1_vb1_vc1_p0_w1_z8_x0_g1_r1_ebounds(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, T* __restrict__ C, int ldc,
    int m, int n, int k, T alpha, T beta, T* __restrict__ workspace)
{
    __shared__ __align__(16) T shared[49152 / sizeof(T)];

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
    T a_part[1][THREAD_M][OWN_K];
    T b_part[1][THREAD_N / 2][OWN_K];
    const T *a_places[TileA::BASES], *b_places[TileB::BASES];
    TileA::find(a_places, shared, warp_m, 0, lane);
    TileB::find(b_places, shared + TileA::SIZE, warp_n, 0, lane);
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
        __syncthreads();
    };
    #pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < tiles) fetch(shared + stage * STAGE);
        commit_copies();
    }
    settle();

    // Read a group's operands of one step to one of the buffers.
    const auto read_a = [&](int step, int i, int buffer) {
        TileA::read(a_part[buffer][i], a_places, reading, step * STEP, i);
    };
    const auto read_b = [&](int step, int j, int buffer) {
        TileB::read(b_part[buffer][j], b_places, reading, step * STEP, j);
    };

    const auto read_all = [&](int step) {
        #pragma unroll
        for (int i = 0; i < THREAD_M; ++i) read_a(step, i, 0);
        #pragma unroll
        for (int j = 0; j < THREAD_N / 2; ++j) read_b(step, j, 0);
    };
    // Goes on to the next tile.
    const auto turn = [&] {
        settle();
        reading = reading == (STAGES - 1) * STAGE ? 0 : reading + STAGE;
    };

    if constexpr (PREFETCH != 0) read_all(0);

    #pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
        // The stage that was multiplied last is filled again: no thread reads it any more.
        if (tile + STAGES - 1 < tiles) fetch(shared + writing);
        end_fetch();

        #pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if constexpr (PREFETCH == 0) read_all(step);
            if (PREFETCH && step == STEPS - 1) turn();
            #pragma unroll
            for (int i = 0; i < GROUPS_A; ++i) {
                #pragma unroll
                for (int j = 0; j < THREAD_N / 2; ++j) {
                    multiply(sum, a_part[0], b_part[0], i, j);
                    // What was multiplied for the last time gives way to the next step's.
                    if (PREFETCH && i == GROUPS_A - 1) read_b((step + 1) % STEPS, j, 0);
                }
                #pragma unroll
                for (int h = 0; h < MMA_M / 8; ++h) {
                    if (PREFETCH) read_a((step + 1) % STEPS, i * (MMA_M / 8) + h, 0);
                }
            }
        }
        if constexpr (PREFETCH == 0) turn();
    }

    T (&share)[SHARE] = sum;
    // A piece is written as the thread would write it that had these sums of its block's.
    share_out(share, workspace, shared, [&](T (&piece)[PIECE], int thread, int e) {
        const int of = thread / 32;
        const Index row = row0 + of / WARPS_N % WARPS_M * WARP_M, col = col0 + of % WARPS_N * WARP_N;
        const int rows = int(min(m - row, Index(WARP_M))), cols = int(min(n - col, Index(WARP_N)));
        store(piece, thread / SLICE_THREADS * SHARE + e, C + row * ldc + col, ldc, rows, cols, thread % 32,
              alpha, beta);
    });
}
