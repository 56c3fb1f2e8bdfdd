// gemm_skinny_f32_nn_4x128x16_14745326
// A short side of C: the large operand streams through registers once, the small one waits in shared memory.
//
//   C = alpha * op(A) * op(B) + beta * C in float; where alpha is 0, A and B are not read, where beta is 0, C is not
//
//   storage    row-major: A m x k, B k x n, C m x n; lda, ldb, ldc from row to row
//   sizes      any m, n > 0 and k >= 0; pointers and leading dimensions aligned to one element
//   launch     ceil(m / 4) * ceil(n / 128) CTAs along x, (128, 1, 1) threads, 36992 bytes of static shared memory
//
// Written by tilewright from templates/skinny.cu.jinja, digest 4441fa82ba4a1e36. To write it again:
//   tilewright emit --dtype float --trans nn --config "skinny:4x4x4,load=cp_async,stages=4,l2_prefetch"
// SPDX-License-Identifier: MIT

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "cp.async needs sm_80 or newer"
#endif

//  long side ->                     The large operand passes through registers once, STAGES parts of it on
//        +-------------------+      their way at a time. Its stored rows run along C: the lanes of a warp lie
//      k | warps: WARPS_K    |      side by side in a row, LANES_L of them, and rows go to the others.
//        | CTAs: SPLIT_K     |
//        +-------------------+      The small operand waits in shared memory, RESIDENT_K steps of k at a time.
//
// Everything that shares out k adds up in a fixed order at the end: lanes, warps, then CTAs.

namespace {

using T = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int BLOCK_S    = 4;      // elements of the short side of C that a CTA computes
constexpr int THREAD_L   = 4;      // elements of its long side that a thread computes
constexpr int THREAD_K   = 4;      // steps of k that a thread loads at a time
constexpr int LANES_K    = 1;      // lanes of a warp that share k
constexpr int WARPS_L    = 1;      // warps along the long side
constexpr int WARPS_K    = 4;      // warps that share k
constexpr int STAGES     = 4;      // parts of the large operand on their way at a time
constexpr int RESIDENT_K = 256;    // steps of k of the small operand in shared memory at a time
constexpr int SMEM_BYTES = 36992;  // shared memory of a CTA

constexpr int THREADS = 32 * WARPS_L * WARPS_K;
constexpr int WIDE    = 16 / int(sizeof(T));  // elements of the widest load
constexpr int LANES_L = 32 / LANES_K;         // lanes of a warp along the long side of C
constexpr int WARP_L  = LANES_L * THREAD_L;   // elements of the long side that a warp computes
constexpr int TILE_L  = WARPS_L * WARP_L;     // that a CTA computes
constexpr int WARP_K  = LANES_K * THREAD_K;   // steps of k that a warp loads at a time
constexpr int TILE_K  = WARPS_K * WARP_K;     // that a CTA loads at a time
constexpr int PREFETCH_TILES = 2;             // tiles of k prefetched to L2 before earlier kernels have ended
constexpr int NEXT_K  = LANES_L;              // from a lane to the one that has the next steps of k
constexpr int SMALL_READ = THREAD_K * BLOCK_S < WIDE ? THREAD_K * BLOCK_S : WIDE;  // of the small operand at once

static_assert(RESIDENT_K % (2 * TILE_K) == 0, "whole rounds of the main loop");

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

// Asks for a cache line: it comes to L2 and no nearer, where later writes of earlier kernels replace it.
__device__ __forceinline__ void prefetch_line(const void* x) { asm volatile("prefetch.global.L2 [%0];" ::"l"(x)); }

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

// ---- The kernel -------------------------------------------------------------------------------------------------

// What C becomes: alpha * product + beta * C, where C is read only if it counts.
__device__ __forceinline__ T blend(T product, const T* c, T alpha, T beta)
{
    return beta == T(0) ? alpha * product : alpha * product + beta * *c;
}

template <int COUNT>
struct alignas(COUNT * sizeof(T)) Vector { T x[COUNT]; };

// Starts to copy BYTES bytes from global to shared memory: zeros where `inside` is false, with nothing read.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool inside)
{
    if constexpr (BYTES == 16) cp_async_16(to, from, inside);  // past L1: no other thread of the CTA reads them
    else cp_async<BYTES>(to, from, inside);
}

// A thread's lane along the long side of C and along k, and its warp along k.
__device__ __forceinline__ int lane_l() { return threadIdx.x % LANES_L; }
__device__ __forceinline__ int lane_k() { return threadIdx.x % 32 / LANES_L; }
__device__ __forceinline__ int warp_k() { return threadIdx.x / (32 * WARPS_L); }

// The small operand lies in shared memory as RESIDENT_K rows of BLOCK_S: those of a step of k side by side.
constexpr int SMALL_PITCH = BLOCK_S <= WIDE ? BLOCK_S : BLOCK_S + WIDE;  // WIDE spare ones: rows shift banks
__device__ __forceinline__ int small_place(int s, int k) { return k * SMALL_PITCH + s; }

// The large operand, whose stored rows run along C: each lies at one step of k. A thread loads THREAD_L / VEC
// vectors of THREAD_K rows at a time, LANES_L * VEC elements apart in each.
template <int VEC, bool GUARDED>
struct Large {
    static constexpr int LOADS = THREAD_L * THREAD_K / VEC;  // of a thread for TILE_K steps of k
    static constexpr int VECTORS = THREAD_L / VEC;           // of a row
    static constexpr int READ_ROWS = SMALL_READ > BLOCK_S ? SMALL_READ / BLOCK_S : 1;  // rows side by side
    static_assert(THREAD_L % VEC == 0, "a thread loads whole vectors");

    const T* next;  // what this thread loads first of the next rows
    int ld;
    int k_left;     // steps of k from there to the end of the CTA's
    int l_left;     // columns of the tile from there to the end of the matrix

    // How many rows of the warp lie before a thread's i-th, and columns of it before its j-th.
    static __device__ constexpr int row_of(int i) { return i / READ_ROWS * LANES_K * READ_ROWS + i % READ_ROWS; }
    static __device__ constexpr int col_of(int j) { return j / VEC * LANES_L * VEC + j % VEC; }

    // Which of the CTA's columns of C a thread's j-th is.
    static __device__ __forceinline__ int owned(int j)
    {
        return threadIdx.x / 32 % WARPS_L * WARP_L + lane_l() * VEC + col_of(j);
    }

    // Where the first row of a thread lies among the TILE_K of a tile.
    static __device__ __forceinline__ int first() { return warp_k() * WARP_K + lane_k() * READ_ROWS; }

    // The operand X from column `l` and row `k` on.
    __device__ __forceinline__ Large(const T* X, int ld, Index l, Index k, int l_left, int k_left)
        : next(X + (k + first()) * ld + l + owned(0)), ld(ld),
          k_left(k_left - first()), l_left(l_left - owned(0))
    {
    }

    // Starts to copy this thread's part of the next TILE_K steps; what lies outside is 0.
    __device__ __forceinline__ void start(T* slots)
    {
        #pragma unroll
        for (int i = 0; i < THREAD_K; ++i) {
            #pragma unroll
            for (int j = 0; j < VECTORS; ++j) {
                const T* from = next + Index(row_of(i)) * ld + col_of(j * VEC);
                const bool inside = GUARDED ? (row_of(i) < k_left) & (col_of(j * VEC) < l_left) : 0 < k_left;
                copy_async<VEC * sizeof(T)>(slots + (i * VECTORS + j) * THREADS * VEC, from, inside);
            }
        }
        next += Index(TILE_K) * ld;
        k_left -= TILE_K;
    }

    // Prefetches this thread's part of the first tiles.
    __device__ __forceinline__ void prefetch() const
    {
        #pragma unroll
        for (int tile = 0; tile < PREFETCH_TILES; ++tile) {
            #pragma unroll
            for (int i = 0; i < THREAD_K; ++i) {
                #pragma unroll
                for (int j = 0; j < VECTORS; ++j) {
                    const int step = tile * TILE_K + row_of(i);
                    if (step >= k_left || col_of(j * VEC) >= l_left) continue;
                    prefetch_line(next + Index(step) * ld + col_of(j * VEC));
                }
            }
        }
    }

    // Adds the products of a loaded part and of the small operand, of which `small` is this thread's first row.
    static __device__ __forceinline__ void outer_product(
        T (&acc)[BLOCK_S][THREAD_L], const Vector<VEC> (&part)[LOADS], const T* small)
    {
        #pragma unroll
        for (int i = 0; i < THREAD_K; i += READ_ROWS) {
            // All lanes that share a step of k read the same: a broadcast.
            Vector<SMALL_READ> factor[READ_ROWS * BLOCK_S / SMALL_READ];
            #pragma unroll
            for (int f = 0; f < READ_ROWS * BLOCK_S / SMALL_READ; ++f) {
                const T* from = small + row_of(i) * SMALL_PITCH + f * SMALL_READ;
                factor[f] = *reinterpret_cast<const Vector<SMALL_READ>*>(from);
            }
            #pragma unroll
            for (int t = 0; t < READ_ROWS; ++t) {
                #pragma unroll
                for (int s = 0; s < BLOCK_S; ++s) {
                    const int place = t * BLOCK_S + s;
                    #pragma unroll
                    for (int j = 0; j < THREAD_L; ++j) {
                        const T one = part[(i + t) * VECTORS + j / VEC].x[j % VEC];
                        acc[s][j] += one * factor[place / SMALL_READ].x[place % SMALL_READ];
                    }
                }
            }
        }
    }
};

// Puts the small operand Y down in shared memory: BLOCK_S times RESIDENT_K steps of k, 0 outside the matrix.
template <bool GUARDED>
__device__ __forceinline__ void load_small(T* shared, const T* Y, int ld, int s_left, int k_left)
{
    // A warp takes 16 bytes along the short side by as many steps of k as it has lanes left: few conflicts of
    // banks, and whole sectors of memory where rows run along k.
    constexpr int SIDE = BLOCK_S < WIDE ? BLOCK_S : WIDE;
    #pragma unroll 2
    for (int first = 0; first < BLOCK_S * RESIDENT_K; first += THREADS) {
        const unsigned i = first + threadIdx.x;
        if (BLOCK_S * RESIDENT_K % THREADS && i >= BLOCK_S * RESIDENT_K) break;
        const int k = i / SIDE % RESIDENT_K;
        const int s = i / (SIDE * RESIDENT_K) * SIDE + i % SIDE;
        const T* from = Y + Index(s) * ld + k;
        const bool inside = GUARDED ? (s < s_left) & (k < k_left) : k < k_left;
        copy_async<sizeof(T)>(shared + small_place(s, k), from, inside);
    }
}

// How many of the BLOCK_S short rows are added up over the warps at a time: as many as fit in shared memory.
__host__ __device__ constexpr int fitting_rows()
{
    int rows = BLOCK_S;
    while (rows > 1 && WARPS_K * TILE_L * rows > (BLOCK_S * RESIDENT_K > 4096 ? BLOCK_S * RESIDENT_K : 4096)) rows /= 2;
    return rows;
}
constexpr int ROWS = fitting_rows();
constexpr int PART = ROWS * TILE_L;                     // elements of the CTA's tile of C that they make up
constexpr int WARP_PITCH = TILE_L; // of a warp's accumulators in shared memory
constexpr int WARP_ACC = ROWS * WARP_PITCH;

// Where an element of C lies in the CTA's part. They are numbered so that neighbours lie side by side in C,
// ROWS of the short side after ROWS.
struct Place {
    int s, l;  // along the short side and the long one

    explicit __device__ __forceinline__ Place(int e)
        : s(e / PART * ROWS + e % PART / TILE_L),
          l(e % TILE_L)
    {
    }

    static __device__ __forceinline__ int slot(int s, int l)
    {
        return s % ROWS * WARP_PITCH + l;
    }
};

// The tile of C that a CTA makes.
template <bool GUARDED>
struct Result {
    T* c;          // its first element
    int ldc;
    int s_left, l_left;  // to the edges of C
    T alpha, beta;

    __device__ __forceinline__ void write(int e, T acc) const
    {
        const Place at(e);
        if (GUARDED && (at.s >= s_left || at.l >= l_left)) return;
        T* to = c + Index(at.s) * ldc + at.l;
        *to = blend(acc, to, alpha, beta);
    }
};

// Adds up the accumulators of the lanes that share a row or column of C: all of them get the same.
__device__ __forceinline__ void reduce_lanes(T (&acc)[BLOCK_S][THREAD_L])
{
    #pragma unroll
    for (int distance = 1; distance < LANES_K; distance *= 2) {
        #pragma unroll
        for (int s = 0; s < BLOCK_S; ++s) {
            #pragma unroll
            for (int j = 0; j < THREAD_L; ++j) {
                acc[s][j] += __shfl_xor_sync(0xffffffffu, acc[s][j], distance * NEXT_K);
            }
        }
    }
}

// Adds up the accumulators of the warps that share C, warp after warp, and hands on each: `take(element, total)`.
template <typename Loads, typename Take>
__device__ __forceinline__ void reduce_warps(T (&acc)[BLOCK_S][THREAD_L], T* shared, Take take)
{
    #pragma unroll
    for (int first = 0; first < BLOCK_S; first += ROWS) {
        __syncthreads();  // shared memory holds nothing that is still read
        if (lane_k() == 0) {
            #pragma unroll
            for (int s = first; s < first + ROWS; ++s) {
                #pragma unroll
                for (int j = 0; j < THREAD_L; ++j) {
                    shared[warp_k() * WARP_ACC + Place::slot(s, Loads::owned(j))] = acc[s][j];
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
            for (int warp = 0; warp < WARPS_K; ++warp) total += shared[warp * WARP_ACC + Place::slot(at.s, at.l)];
            take(first * TILE_L + mine, total);
        }
    }
}

constexpr int VEC      = 1;     // elements of the large operand that one load moves
constexpr bool GUARDED = true;  // tiles may reach beyond the matrices

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1) gemm_skinny_f32_nn_4x128x16_14745326(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, T* __restrict__ C, int ldc,
    int m, int n, int k, T alpha, T beta)
{
    using Loads = Large<VEC, GUARDED>;
    __shared__ __align__(16) T shared[SMEM_BYTES / sizeof(T)];

    // The CTA's tile of C: TILE_L along the long side, BLOCK_S along the short one.
    const int length = n, width = m;
    const unsigned tiles_l = unsigned(length - 1) / TILE_L + 1;
    const unsigned tile = blockIdx.x;
    const Index l0 = Index(tile % tiles_l) * TILE_L;
    const Index s0 = Index(tile / tiles_l) * BLOCK_S;
    const int l_left = int(min(length - l0, Index(TILE_L)));
    const int s_left = int(min(width - s0, Index(BLOCK_S)));

    // What this CTA covers of k.
    const int depth = alpha == T(0) ? 0 : k;
    const unsigned all_tiles = (unsigned(depth) + TILE_K - 1) / TILE_K;
    const unsigned tiles = all_tiles;
    const Index k_begin = 0;
    const int k_left = int(min(depth - k_begin, Index(tiles) * TILE_K));

    Loads large(B, ldb, l0, k_begin, l_left, k_left);
    const T* const small = A + s0 * lda + k_begin;
    const Index small_step = 1;  // from one step of k to the next
    const int small_ld = lda;

    // Each thread copies to slots of its own what it alone reads: nobody has to wait for another.
    constexpr int STAGE = Loads::LOADS * VEC * THREADS;  // elements that a CTA loads at a time
    T* const slots = shared + threadIdx.x * VEC;
    T* const resident = shared + STAGES * STAGE;    // the small operand
    // Puts down what the tiles from `tile` on need of the small operand.
    const auto stage_small = [&](unsigned tile) {
        const T* from = small + Index(tile) * TILE_K * small_step;
        load_small<GUARDED>(resident, from, small_ld, s_left, k_left - int(tile * TILE_K));
    };

    Vector<VEC> part[Loads::LOADS];
    large.prefetch();
    griddepcontrol_wait();
    launch_dependents();
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

    T acc[BLOCK_S][THREAD_L] = {};
    #pragma unroll 1
    for (unsigned begin = 0; begin < tiles; begin += RESIDENT_K / TILE_K) {
        if (begin) {
            __syncthreads();  // no thread reads what was resident before
            stage_small(begin);
            commit_copies();
            wait_copies<0>();
            __syncthreads();
        }

        const T* factors = resident + small_place(0, Loads::first());
        const unsigned end = min(tiles, begin + RESIDENT_K / TILE_K);
        #pragma unroll 1
        for (unsigned tile = begin; tile < end; tile += 2) {
            // The oldest part goes to registers, and one to come takes its room at once: 0 past the end.
            #pragma unroll
            for (int i = 0; i < 2; ++i) {
                wait_copies<STAGES - 1>();
                T* const slot = slots + oldest + i * STAGE;
                #pragma unroll
                for (int v = 0; v < Loads::LOADS; ++v) {
                    part[v] = *reinterpret_cast<const Vector<VEC>*>(slot + v * THREADS * VEC);
                }
                large.start(slot);
                commit_copies();
                Loads::outer_product(acc, part, factors + small_place(0, i * TILE_K));
            }
            oldest = oldest == (STAGES - 2) * STAGE ? 0 : oldest + 2 * STAGE;
            factors += small_place(0, 2 * TILE_K);
        }
    }

    const Result<GUARDED> result = {C + s0 * ldc + l0, ldc, s_left, l_left, alpha, beta};
    wait_copies<0>();  // those past the end
    reduce_lanes(acc);
    reduce_warps<Loads>(acc, shared, [&](int e, T total) { result.write(e, total); });
}
