// gemm_skinny_f64_tt_n0_c4_sp4_d4_v1_l1_wl1_wk4_a0_s1_y256_z1_r1_ebounds
// A short side of C: the large operand streams through registers once, the small one waits in shared memory.
//
//   C = alpha * op(A) * op(B) + beta * C      double, every matrix row-major
//
//   op(A) is m x k; A is stored k x m and read transposed, lda elements from row to row
//   op(B) is k x n; B is stored n x k and read transposed, ldb elements from row to row
//   C is m x n, ldc elements from row to row; it is not read where beta is 0
//   A and B are not read where alpha is 0
//
//   sizes      any m, n > 0 and k >= 0
//   alignment  every pointer and leading dimension to one element, 8 bytes
//   grid       ceil(m / 4) * ceil(n / 128) blocks along x
//   block      (128, 1, 1): 128 threads
//   shared     16384 bytes, static
//
// Written by tilewright from templates/skinny.cu.jinja, digest 03153e84feac584e. To write it again:
//   tilewright emit --dtype double --trans tt --config
//       "skinny:short_n=0, count=4, span=4, depth=4, vec=1, lanes_k=1, warps_l=1, warps_k=4,
//        cp_async=0, stages=1, staged=256, split_k=1, min_blocks=1, warm_l2=0, edge=bounds"

namespace {

using T = double;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int SHORT_N    = 0;     // 1 = the columns of C are the short side, 0 = its rows are
constexpr int COUNT      = 4;     // elements of the short side a block computes
constexpr int SPAN       = 4;     // elements of the long side that a thread computes
constexpr int DEPTH      = 4;     // steps of k that a thread loads at a time
constexpr int VEC        = 1;     // elements of the large operand that one load moves
constexpr int LANES_K    = 1;     // lanes of a warp that share out k
constexpr int WARPS_L    = 1;     // warps along the long side
constexpr int WARPS_K    = 4;     // warps that share out k
constexpr int CP_ASYNC   = 0;     // 1 = cp.async keeps several parts on their way, 0 = one fills registers
constexpr int STAGES     = 1;     // parts of the large operand on their way at a time
constexpr int STAGED     = 256;   // steps of k of the small operand held at a time
constexpr int SPLIT_K    = 1;     // blocks that share out k
constexpr int MIN_BLOCKS = 1;     // blocks that the registers must allow on a multiprocessor
constexpr int THREADS    = 128;   // threads of a block
constexpr bool TRANS_A   = true;  // A is stored k x m
constexpr bool TRANS_B   = true;  // B is stored n x k
constexpr bool GUARD     = true;  // loads and stores outside the matrices are left out

constexpr int WIDE    = 16 / int(sizeof(T));  // elements of the widest load
constexpr int LANES_L = 32 / LANES_K;         // lanes of a warp along the long side of C
constexpr int WARP_L  = LANES_L * SPAN;       // elements of the long side that a warp computes
constexpr int TILE_L  = WARPS_L * WARP_L;     // that a block computes
constexpr int WARP_K  = LANES_K * DEPTH;      // steps of k that a warp loads at a time
constexpr int TILE_K  = WARPS_K * WARP_K;     // that a block loads at a time
constexpr int LOADS   = SPAN * DEPTH / VEC;   // loads of a thread for them
constexpr int NEXT_K  = 1;                    // from a lane to the one that has the next steps of k

static_assert(VEC <= WIDE,
              "vec 1 is at most 16 bytes and divides the stored rows of the large operand");
static_assert(SPAN * DEPTH % VEC == 0,
              "vec 1 divides span 4, or depth 4 where stored rows of the large operand run along k");
static_assert(STAGED % (TILE_K * (1 + CP_ASYNC)) == 0,
              "staged 256 is a multiple of the steps of k that a block loads, twice those with cp.async");
static_assert(SPAN * DEPTH <= 64,
              "a thread loads at most 64 elements at a time");
static_assert((STAGES == 1) == !CP_ASYNC,
              "cp.async has an even number of stages, registers have one: not 1");
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

// A thread's lane along the long side of C and along k, and its warp along k.
__device__ __forceinline__ int lane_l() { return threadIdx.x % 32 / LANES_K; }
__device__ __forceinline__ int lane_k() { return threadIdx.x % LANES_K; }
__device__ __forceinline__ int warp_k() { return threadIdx.x / (32 * WARPS_L); }

// The large operand, whose stored rows run along k: each makes one row or column of C. A thread loads
// DEPTH / VEC vectors of SPAN rows at a time, LANES_K * VEC elements apart in each.
struct Large {
    const T* next;  // what this thread loads first of the next steps of k
    int ld;
    int k_left;     // steps of k from there to the end of the block's
    int l_left;     // rows of the tile from there to the end of the matrix

    // How many steps of the warp lie before a thread's i-th, and rows of it before its j-th.
    static __device__ constexpr int step_of(int i) { return i / VEC * LANES_K * VEC + i % VEC; }
    static __device__ constexpr int row_of(int j) { return j * LANES_L; }

    // Which of the tile's rows a thread's j-th is.
    static __device__ __forceinline__ int owned(int j)
    {
        return threadIdx.x / 32 % WARPS_L * WARP_L + lane_l() + row_of(j);
    }

    // Where the first step of a thread lies among the TILE_K of a tile.
    static __device__ __forceinline__ int first() { return warp_k() * WARP_K + lane_k() * VEC; }

    // The operand X from row `l` and step `k` on.
    __device__ __forceinline__ Large(const T* X, int ld, Index l, Index k, int l_left, int k_left)
        : next(X + (l + owned(0)) * ld + k + first()), ld(ld),
          k_left(k_left - first()), l_left(l_left - owned(0))
    {
    }

    // Starts to load this thread's part of the next TILE_K steps; what lies outside is 0.
    __device__ __forceinline__ void load(Vector<VEC> (&part)[LOADS])
    {
        #pragma unroll
        for (int i = 0; i < DEPTH; i += VEC) {
            #pragma unroll
            for (int j = 0; j < SPAN; ++j) {
                const T* from = next + Index(row_of(j)) * ld + step_of(i);
                const bool inside = ((GUARD ? step_of(i) : 0) < k_left) & (!GUARD || row_of(j) < l_left);
                part[i / VEC * SPAN + j] = {};
                if (inside) part[i / VEC * SPAN + j] = *reinterpret_cast<const Vector<VEC>*>(from);
            }
        }
        next += TILE_K;
        k_left -= TILE_K;
    }
};

// The small operand lies in shared memory as COUNT rows of STAGED steps of k.
constexpr int SMALL_PITCH = STAGED + 8;  // 8 spare ones: rows shift banks
__device__ __forceinline__ int small_place(int s, int k) { return s * SMALL_PITCH + k; }

// Adds the products of a loaded part and of the small operand, of which `small` is this thread's first step.
__device__ __forceinline__ void multiply(
    T (&sum)[COUNT][SPAN], const Vector<VEC> (&part)[LOADS], const T* small)
{
    #pragma unroll
    for (int i = 0; i < DEPTH; i += VEC) {
        #pragma unroll
        for (int s = 0; s < COUNT; ++s) {
            const T* from = small + s * SMALL_PITCH + Large::step_of(i);
            const auto factor = *reinterpret_cast<const Vector<VEC>*>(from);
            #pragma unroll
            for (int e = 0; e < VEC; ++e) {
                #pragma unroll
                for (int j = 0; j < SPAN; ++j) sum[s][j] += part[i / VEC * SPAN + j].x[e] * factor.x[e];
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
    #pragma unroll 4
    for (int first = 0; first < COUNT * STAGED; first += THREADS) {
        const unsigned i = first + threadIdx.x;
        if (COUNT * STAGED % THREADS && i >= COUNT * STAGED) break;
        const int k = i / SIDE % STAGED;
        const int s = i / (SIDE * STAGED) * SIDE + i % SIDE;
        const T* from = Y + (K_INNER ? Index(s) * ld + k : Index(k) * ld + s);
        const bool inside = (!GUARD || s < s_left) & (k < k_left);
        shared[small_place(s, k)] = inside ? *from : T(0);
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

//  k ->  +-------------------+      The large operand passes through registers once, STAGES parts of it on
//        | lanes: LANES_K    |      their way at a time. Its stored rows run along k: LANES_K lanes of a warp
//   long | warps: WARPS_K    |      lie side by side in a row, and other rows go to the other lanes.
//   side | blocks: SPLIT_K   |
//        +-------------------+      The small operand waits in shared memory, STAGED steps of k at a time.
//
// Everything that shares out k adds up in a fixed order at the end: lanes, warps, then blocks.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
gemm_skinny_f64_tt_n0_c4_sp4_d4_v1_l1_wl1_wk4_a0_s1_y256_z1_r1_ebounds(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, T* __restrict__ C, int ldc,
    int m, int n, int k, T alpha, T beta)
{
    __shared__ __align__(16) T shared[16384 / sizeof(T)];

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
    const T* const small = A + k_begin * lda + s0;
    const Index small_step = lda;  // from one step of k to the next
    const int small_ld = lda;

    T* const staged = shared;  // the small operand
    // Puts down what the tiles from `tile` on need of the small operand.
    const auto stage_small = [&](unsigned tile) {
        const T* from = small + Index(tile) * TILE_K * small_step;
        put_small(staged, from, small_ld, s_left, k_left - int(tile * TILE_K));
    };

    Vector<VEC> part[LOADS];
    wait_for_previous();
    let_next_come();
    large.load(part);
    stage_small(0);
    __syncthreads();

    T sum[COUNT][SPAN] = {};
    #pragma unroll 1
    for (unsigned begin = 0; begin < tiles; begin += STAGED / TILE_K) {
        if (begin) {
            __syncthreads();  // no thread reads what was staged before
            stage_small(begin);
            __syncthreads();
        }

        const T* factors = staged + small_place(0, Large::first());
        const unsigned end = min(tiles, begin + STAGED / TILE_K);
        #pragma unroll 1
        for (unsigned tile = begin; tile < end; ++tile) {
            multiply(sum, part, factors);
            large.load(part);
            factors += small_place(0, TILE_K);
        }
    }

    const Result result = {C + s0 * ldc + l0, ldc, s_left, l_left, alpha, beta};
    add_lanes(sum);
    add_warps(sum, shared, [&](int e, T total) { result.write(e, total); });
}
