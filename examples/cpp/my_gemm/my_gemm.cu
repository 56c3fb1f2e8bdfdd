// my_gemm.cu: kernels and the functions that launch them. my_gemm.h says how to call them.
//
// Written by tilewright, file digest f84972dc75bfb34c. To write it with kernels that are looked up:
//   tilewright emit --shape 300x200x100 --shape 1024x16x512 --dtype float --trans nn --arch sm_90a --name my_gemm --cmake
// SPDX-License-Identifier: MIT

#include "my_gemm.h"

#include <atomic>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

namespace my_gemm_impl {

using Index = long long;  // sizes, strides and counts: a matrix may hold more than 2^31 elements
using Sizes = Index[3];   // m, n and k

// One kernel and how it is launched.
struct Kernel {
    const char *name, *config;
    const void* function;
    int tile[3], block[2];              // m, n and k of a CTA's tiles; threads of a CTA
    int static_smem, dynamic_smem;      // bytes of shared memory: declared, and passed at launch
    bool pdl, spread;                   // whether PDL launches it, and on as many SMs as there are CTAs
    int align[3], multiple[3];          // elements that rows of A, B, C, and that m, n, k are multiples of
    int only[3], only_step[3];          // the only m, n, k, and elements to the next A, B, C, that it serves, or 0
    int split_ctas, persistent_tiles;   // CTAs that share a tile of C; tiles of C that a CTA computes
    unsigned stream_ctas, products;     // CTAs that share the last wave (stream-K); products of a CTA, or 0
    const void* preparation;            // kernel that copies operands first, or null
    bool sums, pads, packs[2];          // whether CTAs add up in the workspace, all is padded, A and B are packed
    int terms, term_k, term_ctas;       // terms of an element, multiple that k is rounded up to, CTAs of a cluster
    unsigned box[2][2], swizzle[2];     // rows and columns of A and of B that a TMA copy brings; CUtensorMapSwizzle
    mutable std::atomic<std::uint64_t> ready{0}, waits{0};  // bits for devices: loaded there; waits by PDL
};

// A shape and the kernel that was chosen for it.
struct Shape {
    int size[3];  // m, n and k
    const Kernel* kernel;
    const char* origin;
    double recorded_us, error_over_bound;
};

// Products of one type, with the same transposes, on one architecture and later ones.
struct Product {
    bool trans_a, trans_b;
    int element, first, last;  // bytes of an element; compute capabilities, such as 90
    const Shape* shapes;
    int count, reach;          // shapes; the factor of m, n and k up to which their kernels serve others, 0 for any
    const Shape* general;      // it serves what the shapes do not
    const Product* older;      // the same for an older architecture
};

}  // namespace my_gemm_impl

// Device code follows: warnings of the host's compiler, which reads it too, do not apply.
#ifdef __GNUC__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wfloat-equal"
#endif

namespace my_gemm_impl::tiled_f32_nn_16x16x16_489e88e4 {

// gemm_tiled_f32_nn_16x16x16_489e88e4: any size and alignment.

//            n                     Each CTA computes one tile of C, kTileWidth wide and high, one element a
//         +-----+                  thread, in phases along k:
//       k | | | |  op(B)
//         +-----+                    load      a tile of op(A) and one of op(B), one element of each a thread
//     k      v                       barrier   the tiles are whole
//   +---+ +-----+                    multiply  a row of the one with a column of the other
// m |-->| |  x  |  C                 barrier   the tiles may be overwritten
//   +---+ +-----+
//   op(A)

namespace {

using Elem = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int kTileWidth = 16;  // rows and columns of the tiles of A, B and C
constexpr int kUnroll    = 8;   // steps of a phase's multiply loop unrolled

// ---- Instructions (PTX) -----------------------------------------------------------------------------------------

// Programmatic dependent launch (PDL): waits for what earlier kernels of the stream wrote.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
__device__ __forceinline__ void griddepcontrol_wait() {}
#endif

// ---- The kernel -------------------------------------------------------------------------------------------------

// The new element of C, alpha * product + beta * C. C is read only if beta is not 0.
__device__ __forceinline__ Elem blend(Elem product, const Elem* c, Elem alpha, Elem beta)
{
    return beta == Elem(0) ? alpha * product : alpha * product + beta * *c;
}

constexpr bool kGuarded = true;  // tiles may reach beyond the matrices

}  // namespace

static __global__ void __launch_bounds__(kTileWidth * kTileWidth) gemm_tiled_f32_nn_16x16x16_489e88e4(
    const Elem* __restrict__ matrix_a, int lda, const Elem* __restrict__ matrix_b, int ldb,
    Elem* __restrict__ matrix_c, int ldc, int m, int n, int k, Elem alpha, Elem beta)
{
    __shared__ Elem a_tile[kTileWidth][kTileWidth];  // a_tile[i][p] = op(A)(row0 + i, p0 + p)
    __shared__ Elem b_tile[kTileWidth][kTileWidth];  // b_tile[p][j] = op(B)(p0 + p, col0 + j)

    griddepcontrol_wait();
    const int tx = threadIdx.x;
    const int ty = threadIdx.y;

    // The CTA's tile of C, and this thread's element. CTAs go along the rows of C first.
    const unsigned tiles_n = unsigned(n - 1) / kTileWidth + 1;
    const Index row0 = Index(blockIdx.x / tiles_n) * kTileWidth;
    const Index col0 = Index(blockIdx.x % tiles_n) * kTileWidth;
    const Index row = row0 + ty;
    const Index col = col0 + tx;

    // Neighbouring threads load neighbouring addresses: along k or across it, as the operand is stored.
    const int a_i = ty, a_p = tx;
    const int b_p = ty, b_j = tx;
    const bool a_inside = row0 + a_i < m;
    const bool b_inside = col0 + b_j < n;
    const Index a_step = 1;  // one step along k
    const Index b_step = ldb;
    const Elem* a = matrix_a + (row0 + a_i) * lda + a_p * a_step;
    const Elem* b = matrix_b + col0 + b_j + b_p * b_step;

    Elem acc = 0;
    const Index depth = alpha == Elem(0) ? 0 : k;
    for (Index p0 = 0; p0 < depth; p0 += kTileWidth) {
        a_tile[a_i][a_p] = !kGuarded || (a_inside && p0 + a_p < depth) ? *a : Elem(0);
        b_tile[b_p][b_j] = !kGuarded || (b_inside && p0 + b_p < depth) ? *b : Elem(0);
        a += kTileWidth * a_step;
        b += kTileWidth * b_step;
        __syncthreads();

        #pragma unroll kUnroll
        for (int p = 0; p < kTileWidth; ++p) acc += a_tile[ty][p] * b_tile[p][tx];
        __syncthreads();
    }

    if (!kGuarded || (row < m && col < n)) {
        Elem* c = matrix_c + row * ldc + col;
        *c = blend(acc, c, alpha, beta);
    }
}

const Kernel row = {
    "gemm_tiled_f32_nn_16x16x16_489e88e4",
    "tiled:16",
    reinterpret_cast<const void*>(gemm_tiled_f32_nn_16x16x16_489e88e4),
    {16, 16, 16}, {16, 16}, 2048, 0, true, false,  // tile, threads, shared memory, PDL
    {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0},  // alignment, multiples, only sizes and steps
    1, 1, 0, 0, nullptr,  // split-K, tiles of a CTA, stream-K, products of a CTA, preparation
    false, false, {false, false}, 0, 16, 1, {{0, 0}, {0, 0}}, {0, 0},  // sums, padding, packing, split terms, TMA
};

}  // namespace my_gemm_impl::tiled_f32_nn_16x16x16_489e88e4

namespace my_gemm_impl::skinny_f32_nn_4x128x16_1b8415c9 {

// gemm_skinny_f32_nn_4x128x16_1b8415c9: aligned to 4 elements.

namespace {

using Elem = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int kBlockS    = 4;     // elements of the short side of C that a CTA computes
constexpr int kThreadL   = 4;     // elements of its long side that a thread computes
constexpr int kThreadK   = 4;     // steps of k that a thread loads at a time
constexpr int kLanesK    = 1;     // lanes of a warp that share k
constexpr int kWarpsL    = 1;     // warps along the long side
constexpr int kWarpsK    = 4;     // warps that share k
constexpr int kResidentK = 256;   // steps of k of the small operand in shared memory at a time
constexpr int kSmemBytes = 8192;  // shared memory of a CTA

constexpr int kThreads = 32 * kWarpsL * kWarpsK;
constexpr int kWide    = 16 / int(sizeof(Elem));  // elements of the widest load
constexpr int kLanesL  = 32 / kLanesK;            // lanes of a warp along the long side of C
constexpr int kWarpL   = kLanesL * kThreadL;      // elements of the long side that a warp computes
constexpr int kTileL   = kWarpsL * kWarpL;        // that a CTA computes
constexpr int kWarpK   = kLanesK * kThreadK;      // steps of k that a warp loads at a time
constexpr int kTileK   = kWarpsK * kWarpK;        // that a CTA loads at a time
constexpr int kNextK   = kLanesL;                 // from a lane to the one that has the next steps of k
constexpr int kSmallRead = kThreadK * kBlockS < kWide ? kThreadK * kBlockS : kWide;  // of the small operand at once

static_assert(kResidentK % kTileK == 0, "whole rounds of the main loop");

// ---- Instructions (PTX) -----------------------------------------------------------------------------------------

// Programmatic dependent launch (PDL): waits for what earlier kernels of the stream wrote; lets the next one start.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }
#else
__device__ __forceinline__ void griddepcontrol_wait() {}
__device__ __forceinline__ void launch_dependents() {}
#endif

// ---- The kernel -------------------------------------------------------------------------------------------------

// The new element of C, alpha * product + beta * C. C is read only if beta is not 0.
__device__ __forceinline__ Elem blend(Elem product, const Elem* c, Elem alpha, Elem beta)
{
    return beta == Elem(0) ? alpha * product : alpha * product + beta * *c;
}

template <int kCount>
struct alignas(kCount * sizeof(Elem)) Vector { Elem x[kCount]; };

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

    // Starts to load this thread's part of the next kTileK steps; what lies outside is 0.
    __device__ __forceinline__ void load(Vector<kVec> (&part)[kLoads])
    {
        #pragma unroll
        for (int i = 0; i < kThreadK; ++i) {
            #pragma unroll
            for (int j = 0; j < kVectors; ++j) {
                const Elem* from = next + Index(row_of(i)) * ld + col_of(j * kVec);
                const bool inside = kGuarded ? (row_of(i) < k_left) & (col_of(j * kVec) < l_left) : 0 < k_left;
                part[i * kVectors + j] = {};
                if (inside) part[i * kVectors + j] = *reinterpret_cast<const Vector<kVec>*>(from);
            }
        }
        next += Index(kTileK) * ld;
        k_left -= kTileK;
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
    #pragma unroll 4
    for (int first = 0; first < kBlockS * kResidentK; first += kThreads) {
        const unsigned i = first + threadIdx.x;
        if (kBlockS * kResidentK % kThreads && i >= kBlockS * kResidentK) break;
        const int k = i / kSide % kResidentK;
        const int s = i / (kSide * kResidentK) * kSide + i % kSide;
        const Elem* from = matrix_y + Index(s) * ld + k;
        const bool inside = kGuarded ? (s < s_left) & (k < k_left) : k < k_left;
        shared[small_place(s, k)] = inside ? *from : Elem(0);
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

constexpr int kVec      = 4;     // elements of the large operand that one load moves
constexpr bool kGuarded = true;  // tiles may reach beyond the matrices

}  // namespace

static __global__ void __launch_bounds__(kThreads, 1) gemm_skinny_f32_nn_4x128x16_1b8415c9(
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

    Elem* const resident = shared;  // the small operand
    // Puts down what the tiles from `tile` on need of the small operand.
    const auto stage_small = [&](unsigned tile) {
        const Elem* from = small_at + Index(tile) * kTileK * small_step;
        load_small<kGuarded>(resident, from, small_ld, s_left, k_left - int(tile * kTileK));
    };

    Vector<kVec> part[Loads::kLoads];
    griddepcontrol_wait();
    launch_dependents();
    large.load(part);
    stage_small(0);
    __syncthreads();

    Elem acc[kBlockS][kThreadL] = {};
    #pragma unroll 1
    for (unsigned begin = 0; begin < tiles; begin += kResidentK / kTileK) {
        if (begin) {
            __syncthreads();  // no thread reads what was resident before
            stage_small(begin);
            __syncthreads();
        }

        const Elem* factors = resident + small_place(0, Loads::first());
        const unsigned end = min(tiles, begin + kResidentK / kTileK);
        #pragma unroll 1
        for (unsigned tile = begin; tile < end; ++tile) {
            Loads::outer_product(acc, part, factors);
            large.load(part);
            factors += small_place(0, kTileK);
        }
    }

    const Result<kGuarded> result = {matrix_c + s0 * ldc + l0, ldc, s_left, l_left, alpha, beta};
    reduce_lanes(acc);
    reduce_warps<Loads>(acc, shared, [&](int e, Elem total) { result.write(e, total); });
}

const Kernel row = {
    "gemm_skinny_f32_nn_4x128x16_1b8415c9",
    "skinny:4x4x4",
    reinterpret_cast<const void*>(gemm_skinny_f32_nn_4x128x16_1b8415c9),
    {4, 128, 16}, {128, 1}, 8192, 0, true, true,  // tile, threads, shared memory, PDL
    {1, 4, 1}, {1, 1, 1}, {0, 0, 0}, {0, 0, 0},  // alignment, multiples, only sizes and steps
    1, 1, 0, 0, nullptr,  // split-K, tiles of a CTA, stream-K, products of a CTA, preparation
    false, false, {false, false}, 0, 16, 1, {{0, 0}, {0, 0}}, {0, 0},  // sums, padding, packing, split terms, TMA
};

}  // namespace my_gemm_impl::skinny_f32_nn_4x128x16_1b8415c9

#ifdef __GNUC__
#pragma GCC diagnostic pop
#endif

namespace my_gemm_impl {
namespace {

const Shape f32_nn_shapes[] = {
    // m, n and k, kernel, origin, recorded microseconds and error over its bound
    {{300, 200, 100}, &tiled_f32_nn_16x16x16_489e88e4::row, "as given", 0, 0},
    {{1024, 16, 512}, &skinny_f32_nn_4x128x16_1b8415c9::row, "as given", 0, 0},
};
const Shape f32_nn_general = {{}, &tiled_f32_nn_16x16x16_489e88e4::row, "general", 0, 0};
const Product f32_nn = {  // transposes, bytes of an element, capabilities, shapes, general kernel
    false, false, 4, 0, INT_MAX, f32_nn_shapes, 2, 8, &f32_nn_general, nullptr};

// ---- Devices and launches ------------------------------------------------------------------------------------------

constexpr int max_devices = 64;
constexpr Index ceil_div(Index size, Index step) { return (size + step - 1) / step; }
int status_of(cudaError_t error) { return error == cudaSuccess ? MY_GEMM_SUCCESS : MY_GEMM_CUDA_ERROR + int(error); }

// Attributes of a device, read once. Threads that read at the same time store the same values.
struct Device {
    std::atomic<int> sm_count{0}, smem_per_sm{0}, smem_per_cta{0}, smem_reserved{0}, capability{0};
};
Device devices[max_devices];

int current_device(const Device** current)
{
    int number = 0;
    cudaError_t error = cudaGetDevice(&number);
    if (error != cudaSuccess) return status_of(error);
    if (number >= max_devices) return MY_GEMM_UNSUPPORTED_DEVICE;
    Device& device = devices[number];
    *current = &device;
    if (device.capability.load(std::memory_order_acquire)) return MY_GEMM_SUCCESS;
    const auto ask = [&](cudaDeviceAttr attribute) {
        int value = 0;
        if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, attribute, number);
        return value;
    };
    device.sm_count = ask(cudaDevAttrMultiProcessorCount);
    device.smem_per_sm = ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    device.smem_per_cta = ask(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    device.smem_reserved = ask(cudaDevAttrReservedSharedMemoryPerBlock);
    const int capability = 10 * ask(cudaDevAttrComputeCapabilityMajor) + ask(cudaDevAttrComputeCapabilityMinor);
    if (error == cudaSuccess) device.capability.store(capability, std::memory_order_release);
    return status_of(error);
}

// Loads a kernel, and lets it have as much shared memory as any launch may pass, once for each device: a limit that
// calls set as they need it could be lowered by one between another's setting and its launch.
int make_ready(const Kernel& kernel, const Device& device)
{
    const std::uint64_t bit = std::uint64_t(1) << (&device - devices);
    if (kernel.ready.load(std::memory_order_acquire) & bit) return MY_GEMM_SUCCESS;
    cudaFuncAttributes facts;  // nvcc may declare more shared memory than the text, to align what a launch passes
    cudaError_t error = kernel.preparation ? cudaFuncGetAttributes(&facts, kernel.preparation) : cudaSuccess;
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&facts, kernel.function);
    if (kernel.pdl && facts.ptxVersion >= 90) kernel.waits.fetch_or(bit);  // code for older devices does not wait
    if (error == cudaSuccess && (kernel.dynamic_smem || kernel.spread)) {
        const int most = device.smem_per_cta - int(facts.sharedSizeBytes);
        error = cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    }
    if (error == cudaSuccess) kernel.ready.fetch_or(bit, std::memory_order_release);
    return status_of(error);
}

// The products of a call, which kernels for batches get as their last argument.
struct alignas(64) Batch {
    unsigned count = 1, inner = 1;           // products, all of them along the inner dimension
    Index outer_step[7] = {}, step[7] = {};  // elements from a product's matrix to the next, for each pointer argument
    unsigned arrays = 0, pointers = 3;       // bits of pointers at arrays of addresses; pointers that have a step
};

// A product on its way to the device.
struct Call {
    const void* matrix[3] = {};  // A, B and C
    const void *alpha = nullptr, *beta = nullptr;  // one element each
    bool reads_ab = true, reads_c = true;
    cudaStream_t stream = nullptr;
    void* workspace = nullptr;
    std::size_t workspace_bytes = 0;
    int size[3] = {}, ld[3] = {}, width[3] = {};  // m, n, k; leading dimensions and elements of a row of A, B, C
    const Product* product = nullptr;
    const Device* device = nullptr;
    const Kernel* kernel = nullptr;   // the kernel that was chosen,
    Index ctas = 0, planes = 1, need = 0;  // its CTAs along x, along y and z, and its bytes of the workspace
    const void* more[8] = {};  // arguments of the kernel that follow alpha and beta, and what they point at:
    int count = 0;
    void *sums = nullptr, *counters = nullptr, *terms = nullptr;
    alignas(64) std::uint64_t map[2][16] = {};  // tensor maps of A and B
    Batch batch = {};
};

Index tiles_of(const Kernel& kernel, const Call& call)  // of C
{
    return ceil_div(call.size[0], kernel.tile[0]) * ceil_div(call.size[1], kernel.tile[1]);
}

// CTAs of a kernel for each product, or for all; 0 where there would be too many, or a counter of tiles would overflow.
Index ctas_of(const Kernel& kernel, const Call& call)
{
    if (kernel.products) return ceil_div(call.batch.count, kernel.products);
    const Index tiles = tiles_of(kernel, call), stream = kernel.stream_ctas;
    if (tiles > INT_MAX || (stream && tiles * ceil_div(call.size[2], kernel.tile[2]) > UINT_MAX)) return 0;
    const Index own = ceil_div(tiles, kernel.persistent_tiles) * kernel.split_ctas;
    const Index ctas = stream ? stream + tiles / stream * stream : own;
    return ctas <= INT_MAX ? ctas : 0;
}

// Bytes of shared memory to pass. CTAs that start while another kernel ends would crowd on the first SMs that are free:
// as much is passed as keeps one CTA more than there have to be off an SM.
int smem_of(const Kernel& kernel, const Device& device, Index ctas)
{
    if (!kernel.spread || device.capability < 90 || ctas > Index(16) * device.sm_count) return kernel.dynamic_smem;
    const int too_many = device.smem_per_sm / ((int(ctas) - 1) / device.sm_count + 2) - device.smem_reserved;
    const int least = too_many / 128 * 128 + 128, most = device.smem_per_cta;
    const int more = (least < most ? least : most) - kernel.static_smem;
    return more > kernel.dynamic_smem ? more : kernel.dynamic_smem;
}

int start(const Call& call, const void* function, Index ctas, dim3 block, int smem_bytes, const void** arguments)
{
    cudaLaunchAttribute pdl = {};  // the kernel starts while the one before it ends, and waits before it reads memory
    pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    pdl.val.programmaticStreamSerializationAllowed = 1;
    const bool uses_pdl = call.kernel->waits.load(std::memory_order_relaxed) >> (call.device - devices) & 1;
    const Index along_z = ceil_div(call.planes, 65535);
    const dim3 grid(unsigned(ctas), unsigned(ceil_div(call.planes, along_z)), unsigned(along_z));
    const cudaLaunchConfig_t launch = {grid, block, std::size_t(smem_bytes), call.stream, &pdl, uses_pdl ? 1u : 0u};
    return status_of(cudaLaunchKernelExC(&launch, function, const_cast<void**>(arguments)));
}

// Queues the kernel of a call alone.
int launch(const Call& call)
{
    const void* arguments[12 + sizeof call.more / sizeof *call.more] = {
        &call.matrix[0], &call.ld[0], &call.matrix[1], &call.ld[1], &call.matrix[2], &call.ld[2],
        &call.size[0], &call.size[1], &call.size[2], call.alpha, call.beta};
    for (int i = 0; i < call.count; ++i) arguments[11 + i] = call.more[i];
    arguments[11 + call.count] = &call.batch;  // where a kernel has this parameter
    const auto& [x, y] = call.kernel->block;
    const int smem_bytes = smem_of(*call.kernel, *call.device, call.ctas * call.planes);
    return start(call, call.kernel->function, call.ctas, {unsigned(x), unsigned(y)}, smem_bytes, arguments);
}

Index bytes_of_steps(const Kernel&, const Call&) { return 0; }
int launch_with_steps(const Call& call) { return launch(call); }

// ---- Products ------------------------------------------------------------------------------------------------------

// Whether a kernel can compute a product, as its operands lie, with at most so many bytes of a workspace: then the call
// gets it.
bool suits(const Kernel& kernel, Call& call, Index most_bytes = LLONG_MAX)
{
    for (int i = call.reads_ab ? 0 : 2; i < 3; ++i) {
        const auto address = reinterpret_cast<std::uintptr_t>(call.matrix[i]);
        const int align = kernel.align[i];  // a power of two
        if (address & unsigned(align * call.product->element - 1)) return false;
        const Index ld = call.ld[i], width = call.width[i], step = call.batch.arrays ? -1 : call.batch.step[i];
        const bool gaps = ld != width || (step != kernel.only_step[i] && (step || call.batch.count > 1));
        if (kernel.only_step[i] ? ld && gaps : (ld | width | step) & (align - 1)) return false;  // -1 fits no vector
    }
    for (int i = 0; i < 3 && !kernel.pads; ++i) {
        if (kernel.only[i] ? call.size[i] != kernel.only[i] : call.size[i] % kernel.multiple[i] != 0) return false;
    }
    const Index ctas = ctas_of(kernel, call), bytes = ctas ? bytes_of_steps(kernel, call) : -1;
    if (bytes < 0 || bytes > most_bytes) return false;
    call.kernel = &kernel, call.ctas = ctas, call.need = bytes, call.planes = kernel.products ? 1 : call.batch.count;
    return true;
}

// Gives a call the current device and its products: those of the latest architecture that serves it.
int find_product(Call& call, const Product& newest)
{
    if (const int status = current_device(&call.device); status != MY_GEMM_SUCCESS) return status;
    const int capability = call.device->capability;
    const Product*& product = call.product = &newest;
    while (product && (capability < product->first || product->last < capability)) product = product->older;
    return product ? MY_GEMM_SUCCESS : MY_GEMM_UNSUPPORTED_DEVICE;
}

// Puts m, n and k into a call, and lda, ldb and ldc if they are given, where they make sense.
int take_sizes(Call& call, const Product& product, const Sizes& sizes, const Index* lds)
{
    const auto& [m, n, k] = sizes;
    if (m < 0 || n < 0 || k < 0) return MY_GEMM_INVALID_SIZE;
    const Index widths[3] = {product.trans_a ? m : k, product.trans_b ? k : n, n};
    for (int i = 0; i < 3; ++i) {
        if (lds && (lds[i] < 1 || lds[i] < widths[i])) return MY_GEMM_INVALID_LD;
        if (sizes[i] > INT_MAX || (lds && lds[i] > INT_MAX)) return MY_GEMM_TOO_LARGE;
        call.size[i] = int(sizes[i]), call.width[i] = int(widths[i]), call.ld[i] = lds ? int(lds[i]) : 0;
    }
    call.product = &product;
    return MY_GEMM_SUCCESS;
}

// The shape whose kernel computes a product, which the call gets: the shape itself, else the nearest, by the ratios of
// m, n and k, else the general one; null where no kernel suits.
const Shape* choose(Call& call, Index most_bytes = LLONG_MAX)
{
    const Product& product = *call.product;
    const Shape* const end = product.shapes + product.count;
    const auto [m, n, k] = call.size;
    for (const Shape* shape = product.shapes; shape < end; ++shape) {
        const bool same = shape->size[0] == m && shape->size[1] == n && shape->size[2] == k;
        if (same && suits(*shape->kernel, call, most_bytes)) return shape;
    }
    const Shape* best = nullptr;
    float least = INFINITY;
    for (const Shape* shape = product.shapes; shape < end; ++shape) {
        float ratios = 1, largest = 0;
        for (int i = 0; i < 3; ++i) {
            const float x = float(shape->size[i]), y = call.size[i] ? float(call.size[i]) : 0.5f;
            const float ratio = x > y ? x / y : y / x;
            ratios *= ratio;
            largest = ratio > largest ? ratio : largest;
        }
        if (ratios >= least || (product.reach && largest > float(product.reach))) continue;
        if (suits(*shape->kernel, call, most_bytes)) least = ratios, best = shape;
    }
    if (!best && product.general && suits(*product.general->kernel, call, most_bytes)) best = product.general;
    return best;
}

std::size_t workspace_size(const Product&, const Sizes&, unsigned = 1) { return 0; }
int workspace_init(void*, std::size_t, cudaStream_t) { return MY_GEMM_SUCCESS; }
int check_workspace(const Call&, const Product&) { return MY_GEMM_SUCCESS; }
int release() { return MY_GEMM_SUCCESS; }
int run(const Product& newest, const Sizes& sizes, const Sizes& lds, Call call);
constexpr auto* run_simple = run;

// ---- Functions of the header ---------------------------------------------------------------------------------------

int can_implement(const Product& product, const Sizes& sizes, const Sizes& lds)
{
    Call call;
    const int status = take_sizes(call, product, sizes, lds);
    if (status != MY_GEMM_SUCCESS || !sizes[0] || !sizes[1]) return status;
    for (int& ld : call.ld) ld = 0;  // as any vector wants them
    while (call.product && !choose(call)) call.product = call.product->older;
    return call.product ? MY_GEMM_SUCCESS : MY_GEMM_TOO_LARGE;
}

int run(const Product& newest, const Sizes& sizes, const Sizes& lds, Call call)
{
    int status = take_sizes(call, newest, sizes, lds);
    if (status != MY_GEMM_SUCCESS || !sizes[0] || !sizes[1]) return status;
    call.reads_ab = call.reads_ab && sizes[2] > 0;
    const auto& [a, b, c] = call.matrix;
    if (!c || (call.reads_ab && (!a || !b))) return MY_GEMM_NULL_POINTER;
    const auto odd = [&](const void* x) { return reinterpret_cast<std::uintptr_t>(x) % unsigned(newest.element) != 0; };
    if (odd(c) || (call.reads_ab && (odd(a) || odd(b)))) return MY_GEMM_MISALIGNED;
    status = find_product(call, newest);
    if (status != MY_GEMM_SUCCESS) return status;
    if (!choose(call)) return MY_GEMM_TOO_LARGE;
    status = check_workspace(call, newest);
    if (status == MY_GEMM_SUCCESS) status = make_ready(*call.kernel, *call.device);
    return status == MY_GEMM_SUCCESS ? launch_with_steps(call) : status;
}

// Makes the kernels of a product ready on the current device, so that no call has to load or set anything.
int init(const Product& newest)
{
    Call call;
    int status = find_product(call, newest);
    const Shape* const general = status == MY_GEMM_SUCCESS ? call.product->general : nullptr;
    if (general) status = make_ready(*general->kernel, *call.device);
    for (int i = 0; status == MY_GEMM_SUCCESS && i < call.product->count; ++i) {
        status = make_ready(*call.product->shapes[i].kernel, *call.device);
    }
    return status;
}

int describe(const Product& newest, const Sizes& sizes, my_gemm_description* description)
{
    if (!description) return MY_GEMM_NULL_POINTER;
    *description = {};
    Call call;
    int status = take_sizes(call, newest, sizes, nullptr);
    if (status == MY_GEMM_SUCCESS && newest.older) status = find_product(call, newest);
    if (status != MY_GEMM_SUCCESS || !sizes[0] || !sizes[1]) return status;
    const Shape* const shape = choose(call);
    if (!shape) return MY_GEMM_TOO_LARGE;
    const auto [m, n, k] = shape->size;
    const bool same = m == sizes[0] && n == sizes[1] && k == sizes[2];
    *description = {
        shape->kernel->name, shape->kernel->config, shape->origin, m, n, k, same ? shape->recorded_us : 0,
        same ? shape->error_over_bound : 0, workspace_size(newest, sizes)};
    return MY_GEMM_SUCCESS;
}

}  // namespace
}  // namespace my_gemm_impl

// A bundle of the same name in another shared object of a program does not take the place of this one.
#ifdef __ELF__
#pragma GCC visibility push(protected)
#endif

extern "C" int my_gemm_init(void)
{
    int status = my_gemm_impl::init(my_gemm_impl::f32_nn);
    return status;
}

extern "C" int my_gemm_release(void) { return my_gemm_impl::release(); }

extern "C" int my_gemm_workspace_init(void* workspace, size_t workspace_bytes, cudaStream_t stream)
{
    return my_gemm_impl::workspace_init(workspace, workspace_bytes, stream);
}

extern "C" const char* my_gemm_status_string(int status)
{
    switch (status) {
    case MY_GEMM_SUCCESS: return "done, or queued";
    case MY_GEMM_INVALID_SIZE: return "a size or count is negative";
    case MY_GEMM_INVALID_LD: return "lda, ldb or ldc is below 1 or the length of a stored row";
    case MY_GEMM_NULL_POINTER: return "a matrix that would be read or written, or a description, is null";
    case MY_GEMM_MISALIGNED: return "a matrix does not begin at a whole element, or the workspace at 256 bytes";
    case MY_GEMM_TOO_LARGE: return "a size or leading dimension is above 2^31 - 1, or there are too many tiles of C";
    case MY_GEMM_WORKSPACE_TOO_SMALL: return "the workspace is smaller than the product needs";
    case MY_GEMM_UNSUPPORTED_DEVICE: return "the kernels are for other architectures, or the driver lacks tensor maps";
    case MY_GEMM_CAPTURING: return "this call needs a workspace: capture _run, which is given one";
    }
    if (status <= MY_GEMM_CUDA_ERROR || status > MY_GEMM_CUDA_ERROR + 65535) return "no such status";
    return cudaGetErrorString(cudaError_t(status - MY_GEMM_CUDA_ERROR));
}

extern "C" int my_gemm_can_implement(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc)
{
    return my_gemm_impl::can_implement(my_gemm_impl::f32_nn, {m, n, k}, {lda, ldb, ldc});
}

extern "C" size_t my_gemm_workspace_size(int64_t m, int64_t n, int64_t k)
{
    return my_gemm_impl::workspace_size(my_gemm_impl::f32_nn, {m, n, k});
}

extern "C" int my_gemm_run(
    const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t m, int64_t n, int64_t k,
    float alpha, float beta, void* workspace, size_t workspace_bytes, cudaStream_t stream)
{
    return my_gemm_impl::run(
        my_gemm_impl::f32_nn, {m, n, k}, {lda, ldb, ldc},
        {{a, b, c}, &alpha, &beta, std::fpclassify(alpha) != FP_ZERO, std::fpclassify(beta) != FP_ZERO, stream,
         workspace, workspace_bytes});
}

extern "C" int my_gemm(
    const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t m, int64_t n, int64_t k,
    float alpha, float beta, cudaStream_t stream)
{
    return my_gemm_impl::run_simple(
        my_gemm_impl::f32_nn, {m, n, k}, {lda, ldb, ldc},
        {{a, b, c}, &alpha, &beta, std::fpclassify(alpha) != FP_ZERO, std::fpclassify(beta) != FP_ZERO, stream});
}

extern "C" int my_gemm_describe(int64_t m, int64_t n, int64_t k, my_gemm_description* description)
{
    return my_gemm_impl::describe(my_gemm_impl::f32_nn, {m, n, k}, description);
}

#ifdef __ELF__
#pragma GCC visibility pop
#endif
