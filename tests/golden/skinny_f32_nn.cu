// gemm_skinny_f32_nn_4x128x16_14745326
// A short side of C: the large operand streams through registers once, the small one waits in shared memory.
//
//   C = alpha * op(A) * op(B) + beta * C in float; where alpha is 0, A and B are not read, where beta is 0, C is not
//
//   storage    row-major: A m x k, B k x n, C m x n; lda, ldb, ldc from row to row
//   sizes      any m, n > 0 and k >= 0; pointers and leading dimensions aligned to one element
//   launch     ceil(m / 4) * ceil(n / 128) CTAs along x, (128, 1, 1) threads, 36992 bytes of static shared memory
//
// Written by tilewright from templates/skinny.cu.jinja, digest ece1489ddc4b504a. To write it again:
//   tilewright emit --dtype float --trans nn --config "skinny:4x4x4,load=cp_async,stages=4,l2_prefetch"
// SPDX-License-Identifier: MIT

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "cp.async needs sm_80 or newer"
#endif

//  long side ->                     The large operand passes through registers once, kStages parts of it on
//        +-------------------+      their way at a time. Its stored rows run along C: the lanes of a warp lie
//      k | warps: kWarpsK    |      side by side in a row, kLanesL of them, and rows go to the others.
//        | CTAs: kSplitK     |
//        +-------------------+      The small operand waits in shared memory, kResidentK steps of k at a time.
//
// Everything that shares out k adds up in a fixed order at the end: lanes, warps, then CTAs.

namespace {

using Elem = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int kBlockS    = 4;      // elements of the short side of C that a CTA computes
constexpr int kThreadL   = 4;      // elements of its long side that a thread computes
constexpr int kThreadK   = 4;      // steps of k that a thread loads at a time
constexpr int kLanesK    = 1;      // lanes of a warp that share k
constexpr int kWarpsL    = 1;      // warps along the long side
constexpr int kWarpsK    = 4;      // warps that share k
constexpr int kStages    = 4;      // parts of the large operand on their way at a time
constexpr int kResidentK = 256;    // steps of k of the small operand in shared memory at a time
constexpr int kSmemBytes = 36992;  // shared memory of a CTA

constexpr int kThreads = 32 * kWarpsL * kWarpsK;
constexpr int kWide    = 16 / int(sizeof(Elem));  // elements of the widest load
constexpr int kLanesL  = 32 / kLanesK;            // lanes of a warp along the long side of C
constexpr int kWarpL   = kLanesL * kThreadL;      // elements of the long side that a warp computes
constexpr int kTileL   = kWarpsL * kWarpL;        // that a CTA computes
constexpr int kWarpK   = kLanesK * kThreadK;      // steps of k that a warp loads at a time
constexpr int kTileK   = kWarpsK * kWarpK;        // that a CTA loads at a time
constexpr int kPrefetchTiles = 2;                 // tiles of k prefetched to L2 before earlier kernels have ended
constexpr int kNextK   = kLanesL;                 // from a lane to the one that has the next steps of k
constexpr int kSmallRead = kThreadK * kBlockS < kWide ? kThreadK * kBlockS : kWide;  // of the small operand at once

static_assert(kResidentK % (2 * kTileK) == 0, "whole rounds of the main loop");

// ---- Instructions (PTX) -----------------------------------------------------------------------------------------

// Programmatic dependent launch (PDL): waits for what earlier kernels of the stream wrote; lets the next one start.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }
#else
__device__ __forceinline__ void griddepcontrol_wait() {}
__device__ __forceinline__ void launch_dependents() {}
#endif

// Asks for a cache line: it comes to L2 and no nearer, where later writes of earlier kernels replace it.
__device__ __forceinline__ void prefetch_line(const void* x) { asm volatile("prefetch.global.L2 [%0];" ::"l"(x)); }

// Start to copy from global to shared memory, 16 bytes past L1, or kBytes bytes: zeros where `inside` is false, with
// nothing read.
__device__ __forceinline__ void cp_async_16(void* to, const void* from, bool inside)
{
    const unsigned address = unsigned(__cvta_generic_to_shared(to));
    const int bytes = inside ? 16 : 0;  // that are read: zeros follow
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes));
}
template <int kBytes>
__device__ __forceinline__ void cp_async(void* to, const void* from, bool inside)
{
    const unsigned address = unsigned(__cvta_generic_to_shared(to));
    const int bytes = inside ? kBytes : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 ::"r"(address), "l"(from), "n"(kBytes), "r"(bytes));
}

// The copies that a thread starts before commit_copies() are a group. wait_copies<kPending>() waits for all of its
// groups but the last kPending. Other threads see what arrived after a barrier.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- The kernel -------------------------------------------------------------------------------------------------

// The new element of C, alpha * product + beta * C. C is read only if beta is not 0.
__device__ __forceinline__ Elem blend(Elem product, const Elem* c, Elem alpha, Elem beta)
{
    return beta == Elem(0) ? alpha * product : alpha * product + beta * *c;
}

template <int kCount>
struct alignas(kCount * sizeof(Elem)) Vector { Elem x[kCount]; };

// Starts to copy kBytes bytes from global to shared memory: zeros where `inside` is false, with nothing read.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool inside)
{
    if constexpr (kBytes == 16) cp_async_16(to, from, inside);  // past L1: no other thread of the CTA reads them
    else cp_async<kBytes>(to, from, inside);
}

// A thread's lane along the long side of C and along k, and its warp along k.
__device__ __forceinline__ int lane_l() { return threadIdx.x % kLanesL; }
__device__ __forceinline__ int lane_k() { return threadIdx.x % 32 / kLanesL; }
__device__ __forceinline__ int warp_k() { return threadIdx.x / (32 * kWarpsL); }

// The small operand lies in shared memory as kResidentK rows of kBlockS: those of a step of k side by side.
constexpr int kSmallPitch = kBlockS <= kWide ? kBlockS : kBlockS + kWide;  // kWide spare ones: rows shift banks
__device__ __forceinline__ int small_place(int s, int k) { return k * kSmallPitch + s; }

// The large operand, whose stored rows run along C: each lies at one step of k. A thread loads kThreadL / kVec
// vectors of kThreadK rows at a time, kLanesL * kVec elements apart in each.
template <int kVec, bool kGuarded>
struct Large {
    static constexpr int kLoads = kThreadL * kThreadK / kVec;  // of a thread for kTileK steps of k
    static constexpr int kVectors = kThreadL / kVec;           // of a row
    static constexpr int kReadRows = kSmallRead > kBlockS ? kSmallRead / kBlockS : 1;  // rows side by side
    static_assert(kThreadL % kVec == 0, "a thread loads whole vectors");

    const Elem* next;  // what this thread loads first of the next rows
    int ld;
    int k_left;        // steps of k from there to the end of the CTA's
    int l_left;        // columns of the tile from there to the end of the matrix

    // How many rows of the warp lie before a thread's i-th, and columns of it before its j-th.
    static __device__ constexpr int row_of(int i) { return i / kReadRows * kLanesK * kReadRows + i % kReadRows; }
    static __device__ constexpr int col_of(int j) { return j / kVec * kLanesL * kVec + j % kVec; }

    // The column of the CTA's part of C that is a thread's j-th.
    static __device__ __forceinline__ int owned(int j)
    {
        return threadIdx.x / 32 % kWarpsL * kWarpL + lane_l() * kVec + col_of(j);
    }

    // Where the first row of a thread lies among the kTileK of a tile.
    static __device__ __forceinline__ int first() { return warp_k() * kWarpK + lane_k() * kReadRows; }

    // The operand X from column `l` and row `k` on.
    __device__ __forceinline__ Large(const Elem* matrix_x, int ld, Index l, Index k, int l_left, int k_left)
        : next(matrix_x + (k + first()) * ld + l + owned(0)), ld(ld),
          k_left(k_left - first()), l_left(l_left - owned(0))
    {
    }

    // Starts to copy this thread's part of the next kTileK steps; what lies outside is 0.
    __device__ __forceinline__ void start(Elem* slots)
    {
        #pragma unroll
        for (int i = 0; i < kThreadK; ++i) {
            #pragma unroll
            for (int j = 0; j < kVectors; ++j) {
                const Elem* from = next + Index(row_of(i)) * ld + col_of(j * kVec);
                const bool inside = kGuarded ? (row_of(i) < k_left) & (col_of(j * kVec) < l_left) : 0 < k_left;
                copy_async<kVec * sizeof(Elem)>(slots + (i * kVectors + j) * kThreads * kVec, from, inside);
            }
        }
        next += Index(kTileK) * ld;
        k_left -= kTileK;
    }

    // Prefetches this thread's part of the first tiles.
    __device__ __forceinline__ void prefetch() const
    {
        #pragma unroll
        for (int tile = 0; tile < kPrefetchTiles; ++tile) {
            #pragma unroll
            for (int i = 0; i < kThreadK; ++i) {
                #pragma unroll
                for (int j = 0; j < kVectors; ++j) {
                    const int step = tile * kTileK + row_of(i);
                    if (step >= k_left || col_of(j * kVec) >= l_left) continue;
                    prefetch_line(next + Index(step) * ld + col_of(j * kVec));
                }
            }
        }
    }

    // Adds the products of a loaded part and of the small operand, of which `small_at` is this thread's first row.
    static __device__ __forceinline__ void outer_product(
        Elem (&acc)[kBlockS][kThreadL], const Vector<kVec> (&part)[kLoads], const Elem* small_at)
    {
        #pragma unroll
        for (int i = 0; i < kThreadK; i += kReadRows) {
            // All lanes that share a step of k read the same: a broadcast.
            Vector<kSmallRead> factor[kReadRows * kBlockS / kSmallRead];
            #pragma unroll
            for (int f = 0; f < kReadRows * kBlockS / kSmallRead; ++f) {
                const Elem* from = small_at + row_of(i) * kSmallPitch + f * kSmallRead;
                factor[f] = *reinterpret_cast<const Vector<kSmallRead>*>(from);
            }
            #pragma unroll
            for (int t = 0; t < kReadRows; ++t) {
                #pragma unroll
                for (int s = 0; s < kBlockS; ++s) {
                    const int place = t * kBlockS + s;
                    #pragma unroll
                    for (int j = 0; j < kThreadL; ++j) {
                        const Elem one = part[(i + t) * kVectors + j / kVec].x[j % kVec];
                        acc[s][j] += one * factor[place / kSmallRead].x[place % kSmallRead];
                    }
                }
            }
        }
    }
};

// Puts the small operand Y down in shared memory: kBlockS times kResidentK steps of k, 0 outside the matrix.
template <bool kGuarded>
__device__ __forceinline__ void load_small(Elem* shared, const Elem* matrix_y, int ld, int s_left, int k_left)
{
    // A warp takes 16 bytes along the short side by as many steps of k as it has lanes left: few conflicts of
    // banks, and whole sectors of memory where rows run along k.
    constexpr int kSide = kBlockS < kWide ? kBlockS : kWide;
    #pragma unroll 2
    for (int first = 0; first < kBlockS * kResidentK; first += kThreads) {
        const unsigned i = first + threadIdx.x;
        if (kBlockS * kResidentK % kThreads && i >= kBlockS * kResidentK) break;
        const int k = i / kSide % kResidentK;
        const int s = i / (kSide * kResidentK) * kSide + i % kSide;
        const Elem* from = matrix_y + Index(s) * ld + k;
        const bool inside = kGuarded ? (s < s_left) & (k < k_left) : k < k_left;
        copy_async<sizeof(Elem)>(shared + small_place(s, k), from, inside);
    }
}

// How many of the kBlockS short rows are added up over the warps at a time: as many as fit in shared memory.
__host__ __device__ constexpr int fitting_rows()
{
    int rows = kBlockS;
    while (rows > 1 && kWarpsK * kTileL * rows > (kBlockS * kResidentK > 4096 ? kBlockS * kResidentK : 4096)) rows /= 2;
    return rows;
}
constexpr int kRows = fitting_rows();
constexpr int kPart = kRows * kTileL;                     // elements of the CTA's tile of C that they make up
constexpr int kWarpPitch = kTileL; // of a warp's accumulators in shared memory
constexpr int kWarpAcc = kRows * kWarpPitch;

// Where an element of C lies in the CTA's part. They are numbered so that neighbours lie side by side in C,
// kRows of the short side after kRows.
struct Place {
    int s, l;  // along the short side and the long one

    explicit __device__ __forceinline__ Place(int e)
        : s(e / kPart * kRows + e % kPart / kTileL),
          l(e % kTileL)
    {
    }

    static __device__ __forceinline__ int slot(int s, int l)
    {
        return s % kRows * kWarpPitch + l;
    }
};

// The tile of C that a CTA makes.
template <bool kGuarded>
struct Result {
    Elem* c;          // its first element
    int ldc;
    int s_left, l_left;  // to the edges of C
    Elem alpha, beta;

    __device__ __forceinline__ void write(int e, Elem acc) const
    {
        const Place at(e);
        if (kGuarded && (at.s >= s_left || at.l >= l_left)) return;
        Elem* to = c + Index(at.s) * ldc + at.l;
        *to = blend(acc, to, alpha, beta);
    }
};

// Adds up the accumulators of the lanes that share a row or column of C: all of them get the same.
__device__ __forceinline__ void reduce_lanes(Elem (&acc)[kBlockS][kThreadL])
{
    #pragma unroll
    for (int distance = 1; distance < kLanesK; distance *= 2) {
        #pragma unroll
        for (int s = 0; s < kBlockS; ++s) {
            #pragma unroll
            for (int j = 0; j < kThreadL; ++j) {
                acc[s][j] += __shfl_xor_sync(0xffffffffu, acc[s][j], distance * kNextK);
            }
        }
    }
}

// Adds up the accumulators of the warps that share C, warp after warp, and hands on each: `take(element, total)`.
template <typename Loads, typename Take>
__device__ __forceinline__ void reduce_warps(Elem (&acc)[kBlockS][kThreadL], Elem* shared, Take take)
{
    #pragma unroll
    for (int first = 0; first < kBlockS; first += kRows) {
        __syncthreads();  // shared memory holds nothing that is still read
        if (lane_k() == 0) {
            #pragma unroll
            for (int s = first; s < first + kRows; ++s) {
                #pragma unroll
                for (int j = 0; j < kThreadL; ++j) {
                    shared[warp_k() * kWarpAcc + Place::slot(s, Loads::owned(j))] = acc[s][j];
                }
            }
        }
        __syncthreads();
        #pragma unroll
        for (int e = 0; e < kPart; e += kThreads) {
            const int mine = e + threadIdx.x;
            if (kPart % kThreads && mine >= kPart) break;
            const Place at(mine);
            Elem total = 0;
            #pragma unroll
            for (int warp = 0; warp < kWarpsK; ++warp) total += shared[warp * kWarpAcc + Place::slot(at.s, at.l)];
            take(first * kTileL + mine, total);
        }
    }
}

constexpr int kVec      = 1;     // elements of the large operand that one load moves
constexpr bool kGuarded = true;  // tiles may reach beyond the matrices

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1) gemm_skinny_f32_nn_4x128x16_14745326(
    const Elem* __restrict__ matrix_a, int lda, const Elem* __restrict__ matrix_b, int ldb,
    Elem* __restrict__ matrix_c, int ldc, int m, int n, int k, Elem alpha, Elem beta)
{
    using Loads = Large<kVec, kGuarded>;
    __shared__ __align__(16) Elem shared[kSmemBytes / sizeof(Elem)];

    // The CTA's tile of C: kTileL along the long side, kBlockS along the short one.
    const int length = n, width = m;
    const unsigned tiles_l = unsigned(length - 1) / kTileL + 1;
    const unsigned tile = blockIdx.x;
    const Index l0 = Index(tile % tiles_l) * kTileL;
    const Index s0 = Index(tile / tiles_l) * kBlockS;
    const int l_left = int(min(length - l0, Index(kTileL)));
    const int s_left = int(min(width - s0, Index(kBlockS)));

    // The steps of k that this CTA covers.
    const int depth = alpha == Elem(0) ? 0 : k;
    const unsigned all_tiles = (unsigned(depth) + kTileK - 1) / kTileK;
    const unsigned tiles = all_tiles;
    const Index k_begin = 0;
    const int k_left = int(min(depth - k_begin, Index(tiles) * kTileK));

    Loads large(matrix_b, ldb, l0, k_begin, l_left, k_left);
    const Elem* const small_at = matrix_a + s0 * lda + k_begin;
    const Index small_step = 1;  // from one step of k to the next
    const int small_ld = lda;

    // Each thread copies to slots of its own what it alone reads: nobody has to wait for another.
    constexpr int kStage = Loads::kLoads * kVec * kThreads;  // elements that a CTA loads at a time
    Elem* const slots = shared + threadIdx.x * kVec;
    Elem* const resident = shared + kStages * kStage;    // the small operand
    // Puts down what the tiles from `tile` on need of the small operand.
    const auto stage_small = [&](unsigned tile) {
        const Elem* from = small_at + Index(tile) * kTileK * small_step;
        load_small<kGuarded>(resident, from, small_ld, s_left, k_left - int(tile * kTileK));
    };

    Vector<kVec> part[Loads::kLoads];
    large.prefetch();
    griddepcontrol_wait();
    launch_dependents();
    stage_small(0);
    commit_copies();
    #pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
        large.start(slots + stage * kStage);
        commit_copies();
    }
    wait_copies<kStages>();  // the small operand's
    int oldest = 0;          // where the part lies that comes next
    __syncthreads();

    Elem acc[kBlockS][kThreadL] = {};
    #pragma unroll 1
    for (unsigned begin = 0; begin < tiles; begin += kResidentK / kTileK) {
        if (begin) {
            __syncthreads();  // no thread reads what was resident before
            stage_small(begin);
            commit_copies();
            wait_copies<0>();
            __syncthreads();
        }

        const Elem* factors = resident + small_place(0, Loads::first());
        const unsigned end = min(tiles, begin + kResidentK / kTileK);
        #pragma unroll 1
        for (unsigned tile = begin; tile < end; tile += 2) {
            // The oldest part goes to registers, and one to come takes its room at once: 0 past the end.
            #pragma unroll
            for (int i = 0; i < 2; ++i) {
                wait_copies<kStages - 1>();
                Elem* const slot = slots + oldest + i * kStage;
                #pragma unroll
                for (int v = 0; v < Loads::kLoads; ++v) {
                    part[v] = *reinterpret_cast<const Vector<kVec>*>(slot + v * kThreads * kVec);
                }
                large.start(slot);
                commit_copies();
                Loads::outer_product(acc, part, factors + small_place(0, i * kTileK));
            }
            oldest = oldest == (kStages - 2) * kStage ? 0 : oldest + 2 * kStage;
            factors += small_place(0, 2 * kTileK);
        }
    }

    const Result<kGuarded> result = {matrix_c + s0 * ldc + l0, ldc, s_left, l_left, alpha, beta};
    wait_copies<0>();  // those past the end
    reduce_lanes(acc);
    reduce_warps<Loads>(acc, shared, [&](int e, Elem total) { result.write(e, total); });
}
