// gemm_skinny_f32_nn_n0_c4_sp4_d4_v1_l1_wl1_wk4_a1_s4_y256_z1_r1_wa_ebounds
// A short side of C: the large operand streams through registers once, the small one waits in shared memory.
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
//   grid       ceil(m / 4) * ceil(n / 128) blocks along x
//   block      (128, 1, 1): 128 threads
//   shared     36992 bytes, static
//
// Written by tilewright from templates/skinny.cu.jinja, digest 11a070f0ea04c6db. To write it again:
//   tilewright emit --dtype float --trans nn --config
//       "skinny:short_n=0, count=4, span=4, depth=4, vec=1, lanes_k=1, warps_l=1, warps_k=4,
//        cp_async=1, stages=4, staged=256, split_k=1, min_blocks=1, warm_l2=1, edge=bounds"

namespace {

using T = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int SHORT_N    = 0;      // 1 = the columns of C are the short side, 0 = its rows are
constexpr int COUNT      = 4;      // elements of the short side a block computes
constexpr int SPAN       = 4;      // elements of the long side that a thread computes
constexpr int DEPTH      = 4;      // steps of k that a thread loads at a time
constexpr int VEC        = 1;      // elements of the large operand that one load moves
constexpr int LANES_K    = 1;      // lanes of a warp that share out k
constexpr int WARPS_L    = 1;      // warps along the long side
constexpr int WARPS_K    = 4;      // warps that share out k
constexpr int CP_ASYNC   = 1;      // 1 = cp.async keeps several parts on their way, 0 = one fills registers
constexpr int STAGES     = 4;      // parts of the large operand on their way at a time
constexpr int STAGED     = 256;    // steps of k of the small operand held at a time
constexpr int SPLIT_K    = 1;      // blocks that share out k
constexpr int MIN_BLOCKS = 1;      // blocks that the registers must allow on a multiprocessor
constexpr int THREADS    = 128;    // threads of a block
constexpr bool TRANS_A   = false;  // A is stored k x m
constexpr bool TRANS_B   = false;  // B is stored n x k
constexpr bool GUARD     = true;   // loads and stores outside the matrices are left out

constexpr int WIDE    = 16 / int(sizeof(T));  // elements of the widest load
constexpr int LANES_L = 32 / LANES_K;         // lanes of a warp along the long side of C
constexpr int WARP_L  = LANES_L * SPAN;       // elements of the long side that a warp computes
constexpr int TILE_L  = WARPS_L * WARP_L;     // that a block computes
constexpr int WARP_K  = LANES_K * DEPTH;      // steps of k that a warp loads at a time
constexpr int TILE_K  = WARPS_K * WARP_K;     // that a block loads at a time
constexpr int LOADS   = SPAN * DEPTH / VEC;   // loads of a thread for them
constexpr int WARM_TILES = 2;                 // parts asked for before the kernels before this one have ended
constexpr int NEXT_K  = LANES_L;              // from a lane to the one that has the next steps of k
constexpr int SMALL_READ = DEPTH * COUNT < WIDE ? DEPTH * COUNT : WIDE;  // of the small operand at once

static_assert(VEC <= WIDE,
              "vec 1 is at most 16 bytes and divides the stored rows of the large operand");
static_assert(SPAN * DEPTH % VEC == 0,
              "vec 1 divides span 4, or depth 4 where stored rows of the large operand run along k");
static_assert(STAGED % (TILE_K * (1 + CP_ASYNC)) == 0,
              "staged 256 is a multiple of the steps of k that a block loads, twice those with cp.async");
static_assert(SPAN * DEPTH <= 64,
              "a thread loads at most 64 elements at a time");
static_assert((STAGES == 1) == !CP_ASYNC,
              "cp.async has an even number of stages, registers have one: not 4");
static_assert(THREADS <= 1024,
              "a block has at most as many threads as the device allows");
static_assert(THREADS == 32 * WARPS_L * WARPS_K, "every warp has its part");

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

// What C becomes: alpha * product + beta * C, where C is read only if it counts.
__device__ __forceinline__ T blend(T product, const T* c, T alpha, T beta)
{
    return beta == T(0) ? alpha * product : alpha * product + beta * *c;
}

template <int COUNT>
struct alignas(COUNT * sizeof(T)) Vector {
    T x[COUNT];
};

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

// A thread's lane along the long side of C and along k, and its warp along k.
__device__ __forceinline__ int lane_l() { return threadIdx.x % LANES_L; }
__device__ __forceinline__ int lane_k() { return threadIdx.x % 32 / LANES_L; }
__device__ __forceinline__ int warp_k() { return threadIdx.x / (32 * WARPS_L); }

// The large operand, whose stored rows run along C: each lies at one step of k. A thread loads SPAN / VEC
// vectors of DEPTH rows at a time, LANES_L * VEC elements apart in each.
struct Large {
    static constexpr int VECTORS = SPAN / VEC;                    // of a row
    static constexpr int TOGETHER = SMALL_READ > COUNT ? SMALL_READ / COUNT : 1;  // rows side by side

    const T* next;  // what this thread loads first of the next rows
    int ld;
    int k_left;     // steps of k from there to the end of the block's
    int l_left;     // columns of the tile from there to the end of the matrix

    // How many rows of the warp lie before a thread's i-th, and columns of it before its j-th.
    static __device__ constexpr int row_of(int i) { return i / TOGETHER * LANES_K * TOGETHER + i % TOGETHER; }
    static __device__ constexpr int col_of(int j) { return j / VEC * LANES_L * VEC + j % VEC; }

    // Which of the block's columns of C a thread's j-th is.
    static __device__ __forceinline__ int owned(int j)
    {
        return threadIdx.x / 32 % WARPS_L * WARP_L + lane_l() * VEC + col_of(j);
    }

    // Where the first row of a thread lies among the TILE_K of a tile.
    static __device__ __forceinline__ int first() { return warp_k() * WARP_K + lane_k() * TOGETHER; }

    // The operand X from column `l` and row `k` on.
    __device__ __forceinline__ Large(const T* X, int ld, Index l, Index k, int l_left, int k_left)
        : next(X + (k + first()) * ld + l + owned(0)), ld(ld),
          k_left(k_left - first()), l_left(l_left - owned(0))
    {
    }

    // Starts to copy this thread's part of the next TILE_K rows to `slots`; what lies outside becomes 0.
    __device__ __forceinline__ void start(T* slots)
    {
        #pragma unroll
        for (int i = 0; i < DEPTH; ++i) {
            #pragma unroll
            for (int v = 0; v < VECTORS; ++v) {
                const T* from = next + Index(row_of(i)) * ld + col_of(v * VEC);
                const bool inside = ((GUARD ? row_of(i) : 0) < k_left) & (!GUARD || col_of(v * VEC) < l_left);
                copy_async<VEC * sizeof(T)>(slots + (i * VECTORS + v) * THREADS * VEC, from, inside);
            }
        }
        next += Index(TILE_K) * ld;
        k_left -= TILE_K;
    }

    // Asks for this thread's part of the first tiles: it comes to the L2 cache and no nearer, where what
    // earlier kernels write meanwhile replaces it.
    __device__ __forceinline__ void ask() const
    {
        #pragma unroll
        for (int tile = 0; tile < WARM_TILES; ++tile) {
            #pragma unroll
            for (int i = 0; i < DEPTH; ++i) {
                #pragma unroll
                for (int v = 0; v < VECTORS; ++v) {
                    const int step = tile * TILE_K + row_of(i);
                    if (step >= k_left || col_of(v * VEC) >= l_left) continue;
#if defined(__CUDA_ARCH__)
                    asm volatile("prefetch.global.L2 [%0];" ::"l"(next + Index(step) * ld + col_of(v * VEC)));
#endif
                }
            }
        }
    }
};

// The small operand lies in shared memory as STAGED rows of COUNT: those of a step of k side by side.
constexpr int SMALL_PITCH = COUNT <= WIDE ? COUNT : COUNT + WIDE;  // WIDE spare ones: rows shift banks
__device__ __forceinline__ int small_place(int s, int k) { return k * SMALL_PITCH + s; }

// Adds the products of a loaded part and of the small operand, of which `small` is this thread's first row.
__device__ __forceinline__ void multiply(
    T (&sum)[COUNT][SPAN], const Vector<VEC> (&part)[LOADS], const T* small)
{
    constexpr int TOGETHER = Large::TOGETHER;
    #pragma unroll
    for (int i = 0; i < DEPTH; i += TOGETHER) {
        // All lanes that share a step of k read the same: a broadcast.
        Vector<SMALL_READ> factor[TOGETHER * COUNT / SMALL_READ];
        #pragma unroll
        for (int f = 0; f < TOGETHER * COUNT / SMALL_READ; ++f) {
            const T* from = small + Large::row_of(i) * SMALL_PITCH + f * SMALL_READ;
            factor[f] = *reinterpret_cast<const Vector<SMALL_READ>*>(from);
        }
        #pragma unroll
        for (int t = 0; t < TOGETHER; ++t) {
            #pragma unroll
            for (int s = 0; s < COUNT; ++s) {
                const int place = t * COUNT + s;
                #pragma unroll
                for (int j = 0; j < SPAN; ++j) {
                    const T one = part[(i + t) * Large::VECTORS + j / VEC].x[j % VEC];
                    sum[s][j] += one * factor[place / SMALL_READ].x[place % SMALL_READ];
                }
            }
        }
    }
}

// Puts the small operand Y down in shared memory: COUNT times STAGED steps of k, 0 outside the matrix.
__device__ __forceinline__ void put_small(T* shared, const T* Y, int ld, int s_left, int k_left)
{
    // A warp takes 16 bytes along the short side by as many steps of k as it has lanes left: few conflicts of
    // banks, and whole sectors of memory where rows run along k.
    constexpr int SIDE = COUNT < WIDE ? COUNT : WIDE;
    constexpr bool K_INNER = SHORT_N ? TRANS_B : !TRANS_A;  // stored rows of Y run along k
    #pragma unroll 2
    for (int first = 0; first < COUNT * STAGED; first += THREADS) {
        const unsigned i = first + threadIdx.x;
        if (COUNT * STAGED % THREADS && i >= COUNT * STAGED) break;
        const int k = i / SIDE % STAGED;
        const int s = i / (SIDE * STAGED) * SIDE + i % SIDE;
        const T* from = Y + (K_INNER ? Index(s) * ld + k : Index(k) * ld + s);
        const bool inside = (!GUARD || s < s_left) & (k < k_left);
        copy_async<sizeof(T)>(shared + small_place(s, k), from, inside);
    }
}

// How many of the COUNT short rows are added up over the warps at a time: as many as fit in shared memory.
__host__ __device__ constexpr int fitting_rows()
{
    int rows = COUNT;
    while (rows > 1 && WARPS_K * TILE_L * rows > (COUNT * STAGED > 4096 ? COUNT * STAGED : 4096)) rows /= 2;
    return rows;
}
constexpr int ROWS = fitting_rows();
constexpr int PART = ROWS * TILE_L;                     // elements of the block's part of C that they make up
constexpr int SLOT_PITCH = SHORT_N ? ROWS + 1 : TILE_L; // of a warp's sums in shared memory
constexpr int SLOT = SHORT_N ? TILE_L * SLOT_PITCH : ROWS * SLOT_PITCH;

// Where an element of C lies in the block's part. They are numbered so that neighbours lie side by side in C,
// ROWS of the short side after ROWS.
struct Place {
    int s, l;  // along the short side and the long one

    explicit __device__ __forceinline__ Place(int e)
        : s(e / PART * ROWS + (SHORT_N ? e % ROWS : e % PART / TILE_L)),
          l(SHORT_N ? e % PART / ROWS : e % TILE_L)
    {
    }

    static __device__ __forceinline__ int slot(int s, int l)
    {
        return SHORT_N ? l * SLOT_PITCH + s % ROWS : s % ROWS * SLOT_PITCH + l;
    }
};

// The part of C that a block makes.
struct Result {
    T* c;          // its first element
    int ldc;
    int s_left, l_left;  // to the edges of C
    T alpha, beta;

    __device__ __forceinline__ void write(int e, T sum) const
    {
        const Place at(e);
        if (GUARD && (at.s >= s_left || at.l >= l_left)) return;
        T* to = c + (SHORT_N ? Index(at.l) * ldc + at.s : Index(at.s) * ldc + at.l);
        *to = blend(sum, to, alpha, beta);
    }
};

// Adds up the sums of the lanes that share a row or column of C: all of them get the same.
__device__ __forceinline__ void add_lanes(T (&sum)[COUNT][SPAN])
{
    #pragma unroll
    for (int apart = 1; apart < LANES_K; apart *= 2) {
        #pragma unroll
        for (int s = 0; s < COUNT; ++s) {
            #pragma unroll
            for (int j = 0; j < SPAN; ++j) {
                sum[s][j] += __shfl_xor_sync(0xffffffffu, sum[s][j], apart * NEXT_K);
            }
        }
    }
}

// Adds up the sums of the warps that share C, warp after warp, and hands on each: `take(element, total)`.
template <typename Take>
__device__ __forceinline__ void add_warps(T (&sum)[COUNT][SPAN], T* shared, Take take)
{
    #pragma unroll
    for (int first = 0; first < COUNT; first += ROWS) {
        __syncthreads();  // shared memory holds nothing that is still read
        if (lane_k() == 0) {
            #pragma unroll
            for (int s = first; s < first + ROWS; ++s) {
                #pragma unroll
                for (int j = 0; j < SPAN; ++j) {
                    shared[warp_k() * SLOT + Place::slot(s, Large::owned(j))] = sum[s][j];
                }
            }
        }
        __syncthreads();
        #pragma unroll
        for (int e = 0; e < PART; e += THREADS) {
            const int mine = e + threadIdx.x;
            if (PART % THREADS && mine >= PART) break;
            const Place at(mine);
            T total = 0;
            #pragma unroll
            for (int warp = 0; warp < WARPS_K; ++warp) total += shared[warp * SLOT + Place::slot(at.s, at.l)];
            take(first * TILE_L + mine, total);
        }
    }
}

}  // namespace

//  long side ->                     The large operand passes through registers once, STAGES parts of it on
//        +-------------------+      their way at a time. Its stored rows run along C: the lanes of a warp lie
//      k | warps: WARPS_K    |      side by side in a row, LANES_L of them, and rows go to the others.
//        | blocks: SPLIT_K   |
//        +-------------------+      The small operand waits in shared memory, STAGED steps of k at a time.
//
// Everything that shares out k adds up in a fixed order at the end: lanes, warps, then blocks.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
gemm_skinny_f32_nn_n0_c4_sp4_d4_v1_l1_wl1_wk4_a1_s4_y256_z1_r1_wa_ebounds(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, T* __restrict__ C, int ldc,
    int m, int n, int k, T alpha, T beta)
{
    __shared__ __align__(16) T shared[36992 / sizeof(T)];

    // The block's part of C: TILE_L along the long side, COUNT along the short one.
    const int length = n, width = m;
    const unsigned blocks_l = unsigned(length - 1) / TILE_L + 1;
    const unsigned block = blockIdx.x / SPLIT_K;
    const Index l0 = Index(block % blocks_l) * TILE_L;
    const Index s0 = Index(block / blocks_l) * COUNT;
    const int l_left = int(min(length - l0, Index(TILE_L)));
    const int s_left = int(min(width - s0, Index(COUNT)));

    // What this block covers of k.
    const int depth = alpha == T(0) ? 0 : k;
    const unsigned all_tiles = (unsigned(depth) + TILE_K - 1) / TILE_K;
    const unsigned split = blockIdx.x % SPLIT_K;
    const unsigned first_tile = unsigned(Index(all_tiles) * split / SPLIT_K);
    const unsigned tiles = unsigned(Index(all_tiles) * (split + 1) / SPLIT_K) - first_tile;
    const Index k_begin = Index(first_tile) * TILE_K;
    const int k_left = int(min(depth - k_begin, Index(tiles) * TILE_K));

    Large large(B, ldb, l0, k_begin, l_left, k_left);
    const T* const small = A + s0 * lda + k_begin;
    const Index small_step = 1;  // from one step of k to the next
    const int small_ld = lda;

    // Each thread copies to slots of its own what it alone reads: nobody has to wait for another.
    constexpr int STAGE = LOADS * VEC * THREADS;  // elements that a block loads at a time
    T* const slots = shared + threadIdx.x * VEC;
    T* const staged = shared + STAGES * STAGE;    // the small operand
    // Puts down what the tiles from `tile` on need of the small operand.
    const auto stage_small = [&](unsigned tile) {
        const T* from = small + Index(tile) * TILE_K * small_step;
        put_small(staged, from, small_ld, s_left, k_left - int(tile * TILE_K));
    };

    Vector<VEC> part[LOADS];
    large.ask();
    wait_for_previous();
    let_next_come();
    stage_small(0);
    commit_copies();
    #pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) {
        large.start(slots + stage * STAGE);
        commit_copies();
    }
    wait_copies<STAGES>();  // the small operand's
    int oldest = 0;         // where the part lies that comes next
    __syncthreads();

    T sum[COUNT][SPAN] = {};
    #pragma unroll 1
    for (unsigned begin = 0; begin < tiles; begin += STAGED / TILE_K) {
        if (begin) {
            __syncthreads();  // no thread reads what was staged before
            stage_small(begin);
            commit_copies();
            wait_copies<0>();
            __syncthreads();
        }

        const T* factors = staged + small_place(0, Large::first());
        const unsigned end = min(tiles, begin + STAGED / TILE_K);
        #pragma unroll 1
        for (unsigned tile = begin; tile < end; tile += 2) {
            // The oldest part goes to registers, and one to come takes its room at once: 0 past the end.
            #pragma unroll
            for (int i = 0; i < 2; ++i) {
                wait_copies<STAGES - 1>();
                T* const slot = slots + oldest + i * STAGE;
                #pragma unroll
                for (int v = 0; v < LOADS; ++v) {
                    part[v] = *reinterpret_cast<const Vector<VEC>*>(slot + v * THREADS * VEC);
                }
                large.start(slot);
                commit_copies();
                multiply(sum, part, factors + small_place(0, i * TILE_K));
            }
            oldest = oldest == (STAGES - 2) * STAGE ? 0 : oldest + 2 * STAGE;
            factors += small_place(0, 2 * TILE_K);
        }
    }

    const Result result = {C + s0 * ldc + l0, ldc, s_left, l_left, alpha, beta};
    wait_copies<0>();  // those past the end
    add_lanes(sum);
    add_warps(sum, shared, [&](int e, T total) { result.write(e, total); });
}
