// my_gemm.cu: kernels and the functions that launch them. my_gemm.h says how to call them.
//
// Written by tilewright, file digest e29ba7aa3fab8d53. To write it with kernels that are looked up:
//   tilewright emit --shape 300x200x100 --shape 1024x16x512 --dtype float --trans nn --arch sm_90a --name my_gemm --cmake
// SPDX-License-Identifier: MIT

#include "my_gemm.h"

#include <atomic>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>
#ifdef _WIN32
#include <mutex>
#else
#include <pthread.h>
#endif

namespace my_gemm_impl {

// One kernel, and how it is launched.
struct Kernel {
    const char* name;
    const char* config;
    const void* function;
    int tile_m, tile_n;             // rows and columns of C that a CTA computes
    int block_x, block_y;           // threads of a CTA
    int static_smem, dynamic_smem;  // bytes of shared memory: declared, and given at launch
    int align_a, align_b, align_c;  // elements: pointer, leading dimension and stored row are multiples of them
    bool limited;                   // whether CTAs of an SM are kept to as many as there have to be
    mutable std::atomic<std::uint64_t> ready{0};  // a bit for each device on which it may have its shared memory
};

// A shape and the kernel that serves it.
struct Shape {
    int m, n, k;
    float log_m, log_n, log_k;  // to base 2
    const Kernel* kernel;
    const char* origin;
    double recorded_us, error_over_bound;
};

// All that serves products of one type, with the same transposes, on one architecture and later ones.
struct Product {
    bool trans_a, trans_b;
    const Shape* shapes;
    int count;
    const Shape* fallback;  // which serves whatever those do not
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

namespace my_gemm_impl {
namespace k0 {

//            n                     Each CTA computes one tile of C, TILE_WIDTH wide and high, one element a
//         +-----+                  thread, in phases along k:
//       k | | | |  op(B)
//         +-----+                    load      a tile of op(A) and one of op(B), one element of each a thread
//     k      v                       barrier   the tiles are whole
//   +---+ +-----+                    multiply  a row of the one with a column of the other
// m |-->| |  x  |  C                 barrier   the tiles may be overwritten
//   +---+ +-----+
//   op(A)

namespace {

using T = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int TILE_WIDTH = 16;  // rows and columns of the tiles of A, B and C
constexpr int UNROLL     = 8;   // steps of a phase's multiply loop unrolled

// ---- Instructions (PTX) -----------------------------------------------------------------------------------------

// Programmatic dependent launch (PDL): waits for what earlier kernels of the stream wrote.
__device__ __forceinline__ void griddepcontrol_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- The kernel -------------------------------------------------------------------------------------------------

// What C becomes: alpha * product + beta * C, where C is read only if it counts.
__device__ __forceinline__ T blend(T product, const T* c, T alpha, T beta)
{
    return beta == T(0) ? alpha * product : alpha * product + beta * *c;
}

constexpr bool GUARDED = true;  // tiles may reach beyond the matrices

}  // namespace

static __global__ void __launch_bounds__(TILE_WIDTH * TILE_WIDTH) gemm_tiled_f32_nn_16x16x16_489e88e4(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, T* __restrict__ C, int ldc,
    int m, int n, int k, T alpha, T beta)
{
    __shared__ T a_tile[TILE_WIDTH][TILE_WIDTH];  // a_tile[i][p] = op(A)(row0 + i, p0 + p)
    __shared__ T b_tile[TILE_WIDTH][TILE_WIDTH];  // b_tile[p][j] = op(B)(p0 + p, col0 + j)

    griddepcontrol_wait();
    const int tx = threadIdx.x;
    const int ty = threadIdx.y;

    // The CTA's tile of C, and this thread's element. CTAs go along the rows of C first.
    const unsigned tiles_n = unsigned(n - 1) / TILE_WIDTH + 1;
    const Index row0 = Index(blockIdx.x / tiles_n) * TILE_WIDTH;
    const Index col0 = Index(blockIdx.x % tiles_n) * TILE_WIDTH;
    const Index row = row0 + ty;
    const Index col = col0 + tx;

    // Neighbouring threads load neighbouring addresses: along k or across it, as the operand is stored.
    const int a_i = ty, a_p = tx;
    const int b_p = ty, b_j = tx;
    const bool a_inside = row0 + a_i < m;
    const bool b_inside = col0 + b_j < n;
    const Index a_step = 1;  // one step along k
    const Index b_step = ldb;
    const T* a = A + (row0 + a_i) * lda + a_p * a_step;
    const T* b = B + col0 + b_j + b_p * b_step;

    T acc = 0;
    const Index depth = alpha == T(0) ? 0 : k;
    for (Index p0 = 0; p0 < depth; p0 += TILE_WIDTH) {
        a_tile[a_i][a_p] = !GUARDED || (a_inside && p0 + a_p < depth) ? *a : T(0);
        b_tile[b_p][b_j] = !GUARDED || (b_inside && p0 + b_p < depth) ? *b : T(0);
        a += TILE_WIDTH * a_step;
        b += TILE_WIDTH * b_step;
        __syncthreads();

        #pragma unroll UNROLL
        for (int p = 0; p < TILE_WIDTH; ++p) acc += a_tile[ty][p] * b_tile[p][tx];
        __syncthreads();
    }

    if (!GUARDED || (row < m && col < n)) {
        T* c = C + row * ldc + col;
        *c = blend(acc, c, alpha, beta);
    }
}

static const Kernel KERNEL = {
    "gemm_tiled_f32_nn_16x16x16_489e88e4",
    "tiled:16",
    reinterpret_cast<const void*>(gemm_tiled_f32_nn_16x16x16_489e88e4),
    16, 16,  // tile
    16, 16,  // threads
    2048, 0,  // shared memory
    1, 1, 1,  // vectors of A, B and C
    false,  // CTAs of an SM limited
};

}  // namespace k0
}  // namespace my_gemm_impl

namespace my_gemm_impl {
namespace k1 {

namespace {

using T = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int BLOCK_S    = 4;     // elements of the short side of C that a CTA computes
constexpr int THREAD_L   = 4;     // elements of its long side that a thread computes
constexpr int THREAD_K   = 4;     // steps of k that a thread loads at a time
constexpr int LANES_K    = 1;     // lanes of a warp that share k
constexpr int WARPS_L    = 1;     // warps along the long side
constexpr int WARPS_K    = 4;     // warps that share k
constexpr int RESIDENT_K = 256;   // steps of k of the small operand in shared memory at a time
constexpr int SMEM_BYTES = 8192;  // shared memory of a CTA

constexpr int THREADS = 32 * WARPS_L * WARPS_K;
constexpr int WIDE    = 16 / int(sizeof(T));  // elements of the widest load
constexpr int LANES_L = 32 / LANES_K;         // lanes of a warp along the long side of C
constexpr int WARP_L  = LANES_L * THREAD_L;   // elements of the long side that a warp computes
constexpr int TILE_L  = WARPS_L * WARP_L;     // that a CTA computes
constexpr int WARP_K  = LANES_K * THREAD_K;   // steps of k that a warp loads at a time
constexpr int TILE_K  = WARPS_K * WARP_K;     // that a CTA loads at a time
constexpr int NEXT_K  = LANES_L;              // from a lane to the one that has the next steps of k
constexpr int SMALL_READ = THREAD_K * BLOCK_S < WIDE ? THREAD_K * BLOCK_S : WIDE;  // of the small operand at once

static_assert(RESIDENT_K % TILE_K == 0, "whole rounds of the main loop");

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

// ---- The kernel -------------------------------------------------------------------------------------------------

// What C becomes: alpha * product + beta * C, where C is read only if it counts.
__device__ __forceinline__ T blend(T product, const T* c, T alpha, T beta)
{
    return beta == T(0) ? alpha * product : alpha * product + beta * *c;
}

template <int COUNT>
struct alignas(COUNT * sizeof(T)) Vector { T x[COUNT]; };

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

    // Starts to load this thread's part of the next TILE_K steps; what lies outside is 0.
    __device__ __forceinline__ void load(Vector<VEC> (&part)[LOADS])
    {
        #pragma unroll
        for (int i = 0; i < THREAD_K; ++i) {
            #pragma unroll
            for (int j = 0; j < VECTORS; ++j) {
                const T* from = next + Index(row_of(i)) * ld + col_of(j * VEC);
                const bool inside = GUARDED ? (row_of(i) < k_left) & (col_of(j * VEC) < l_left) : 0 < k_left;
                part[i * VECTORS + j] = {};
                if (inside) part[i * VECTORS + j] = *reinterpret_cast<const Vector<VEC>*>(from);
            }
        }
        next += Index(TILE_K) * ld;
        k_left -= TILE_K;
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
    #pragma unroll 4
    for (int first = 0; first < BLOCK_S * RESIDENT_K; first += THREADS) {
        const unsigned i = first + threadIdx.x;
        if (BLOCK_S * RESIDENT_K % THREADS && i >= BLOCK_S * RESIDENT_K) break;
        const int k = i / SIDE % RESIDENT_K;
        const int s = i / (SIDE * RESIDENT_K) * SIDE + i % SIDE;
        const T* from = Y + Index(s) * ld + k;
        const bool inside = GUARDED ? (s < s_left) & (k < k_left) : k < k_left;
        shared[small_place(s, k)] = inside ? *from : T(0);
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

constexpr int VEC      = 4;     // elements of the large operand that one load moves
constexpr bool GUARDED = true;  // tiles may reach beyond the matrices

}  // namespace

static __global__ void __launch_bounds__(THREADS, 1) gemm_skinny_f32_nn_4x128x16_1b8415c9(
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

    T* const resident = shared;  // the small operand
    // Puts down what the tiles from `tile` on need of the small operand.
    const auto stage_small = [&](unsigned tile) {
        const T* from = small + Index(tile) * TILE_K * small_step;
        load_small<GUARDED>(resident, from, small_ld, s_left, k_left - int(tile * TILE_K));
    };

    Vector<VEC> part[Loads::LOADS];
    griddepcontrol_wait();
    launch_dependents();
    large.load(part);
    stage_small(0);
    __syncthreads();

    T acc[BLOCK_S][THREAD_L] = {};
    #pragma unroll 1
    for (unsigned begin = 0; begin < tiles; begin += RESIDENT_K / TILE_K) {
        if (begin) {
            __syncthreads();  // no thread reads what was resident before
            stage_small(begin);
            __syncthreads();
        }

        const T* factors = resident + small_place(0, Loads::first());
        const unsigned end = min(tiles, begin + RESIDENT_K / TILE_K);
        #pragma unroll 1
        for (unsigned tile = begin; tile < end; ++tile) {
            Loads::outer_product(acc, part, factors);
            large.load(part);
            factors += small_place(0, TILE_K);
        }
    }

    const Result<GUARDED> result = {C + s0 * ldc + l0, ldc, s_left, l_left, alpha, beta};
    reduce_lanes(acc);
    reduce_warps<Loads>(acc, shared, [&](int e, T total) { result.write(e, total); });
}

static const Kernel KERNEL = {
    "gemm_skinny_f32_nn_4x128x16_1b8415c9",
    "skinny:4x4x4",
    reinterpret_cast<const void*>(gemm_skinny_f32_nn_4x128x16_1b8415c9),
    4, 128,  // tile
    128, 1,  // threads
    8192, 0,  // shared memory
    1, 4, 1,  // vectors of A, B and C
    true,  // CTAs of an SM limited
};

}  // namespace k1
}  // namespace my_gemm_impl

#ifdef __GNUC__
#pragma GCC diagnostic pop
#endif

namespace my_gemm_impl {
namespace {

using Index = long long;  // sizes: a matrix may hold more than 2^31 elements

const Shape F32_NN_SHAPES[] = {
    // m, n, k, their logarithms to base 2, kernel, origin, recorded microseconds and error over its bound
    {300, 200, 100, 8.2288f, 7.6439f, 6.6439f, &k0::KERNEL, "as given", 0, 0},
    {1024, 16, 512, 10.0000f, 4.0000f, 9.0000f, &k1::KERNEL, "as given", 0, 0},
};
const Shape F32_NN_GENERAL = {0, 0, 0, 0, 0, 0, &k0::KERNEL, "general", 0, 0};
const Product F32_NN = {
    false, false, F32_NN_SHAPES, 2, &F32_NN_GENERAL};

constexpr int MAX_DEVICES = 64;

constexpr Index ceil_div(Index size, Index step) { return (size + step - 1) / step; }

template <typename T>
bool is_zero(T x) { return std::fpclassify(x) == FP_ZERO; }

int status_of(cudaError_t error) { return error == cudaSuccess ? MY_GEMM_SUCCESS : MY_GEMM_CUDA_ERROR + int(error); }

// What is asked of a device once.
struct Device {
    std::atomic<bool> known{false};
    int number = 0, capability = 0;
    int sm_count = 0, smem_per_sm = 0, smem_reserved = 0;
    int smem_per_cta = 0;
};

Device devices[MAX_DEVICES];

// A lock that needs no C++ runtime, which programs in C and Fortran do not link.
#ifdef _WIN32
struct Mutex {
    std::mutex held;
    void lock() { held.lock(); }
    void unlock() { held.unlock(); }
};
#else
struct Mutex {
    pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
    void lock() { pthread_mutex_lock(&held); }
    void unlock() { pthread_mutex_unlock(&held); }
};
#endif
struct Locked {
    Mutex& mutex;
    explicit Locked(Mutex& given) : mutex(given) { mutex.lock(); }
    ~Locked() { mutex.unlock(); }
};
Mutex asking;

// The current device.
int current_device(const Device** found)
{
    int number = 0, major = 0, minor = 0;
    cudaError_t error = cudaGetDevice(&number);
    if (error != cudaSuccess) return status_of(error);
    if (number >= MAX_DEVICES) return MY_GEMM_UNSUPPORTED_DEVICE;
    Device& device = devices[number];
    *found = &device;
    if (device.known.load(std::memory_order_acquire)) return MY_GEMM_SUCCESS;

    const Locked locked(asking);
    if (device.known.load(std::memory_order_relaxed)) return MY_GEMM_SUCCESS;  // another thread asked meanwhile
    const auto ask = [&](int* answer, cudaDeviceAttr attribute) {
        if (error == cudaSuccess) error = cudaDeviceGetAttribute(answer, attribute, number);
    };
    ask(&major, cudaDevAttrComputeCapabilityMajor);
    ask(&minor, cudaDevAttrComputeCapabilityMinor);
    ask(&device.sm_count, cudaDevAttrMultiProcessorCount);
    ask(&device.smem_per_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    ask(&device.smem_reserved, cudaDevAttrReservedSharedMemoryPerBlock);
    ask(&device.smem_per_cta, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    device.number = number;
    device.capability = 10 * major + minor;
    device.known.store(error == cudaSuccess, std::memory_order_release);
    return status_of(error);
}

// Lets a kernel have as much shared memory as any launch of it may ask for. Once for each device: a limit that calls
// set as they need it could be lowered by one between another's setting and its launch.
int allow_smem(const Kernel& kernel, const Device& device)
{
    const std::uint64_t bit = std::uint64_t(1) << device.number;
    if (kernel.ready.load(std::memory_order_acquire) & bit) return MY_GEMM_SUCCESS;
    cudaFuncAttributes found;  // nvcc may give a kernel more than it declares, so that what a launch gives is aligned
    cudaError_t error = cudaFuncGetAttributes(&found, kernel.function);
    if (error == cudaSuccess) {
        error = cudaFuncSetAttribute(
            kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
            device.smem_per_cta - int(found.sharedSizeBytes));
    }
    if (error == cudaSuccess) kernel.ready.fetch_or(bit, std::memory_order_release);
    return status_of(error);
}

// ---- Which kernel --------------------------------------------------------------------------------------------------

struct Sizes {
    Index m, n, k;
};

Index tiles_of(const Kernel& kernel, const Sizes& sizes)  // of C
{
    return ceil_div(sizes.m, kernel.tile_m) * ceil_div(sizes.n, kernel.tile_n);
}

// CTAs of the main kernel; 0 where there would be too many.
Index ctas_of(const Kernel& kernel, const Sizes& sizes)
{
    const Index tiles = tiles_of(kernel, sizes);
    return tiles <= INT_MAX ? tiles : 0;
}

// Whether a kernel can compute a product of this size, however the operands lie.
bool serves(const Kernel& kernel, const Sizes& sizes)
{
    return ctas_of(kernel, sizes) > 0;
}

// Whether rows of `width` elements, `ld` apart, suit vectors of `count` elements.
bool rows_suit(int count, Index ld, Index width) { return ld % count == 0 && width % count == 0; }

// Whether the stored rows of a product do, if leading dimensions are multiples of vectors.
bool rows_suit(const Kernel& kernel, const Product& product, const Sizes& sizes)
{
    return rows_suit(kernel.align_a, 0, product.trans_a ? sizes.m : sizes.k)
        && rows_suit(kernel.align_b, 0, product.trans_b ? sizes.k : sizes.n) && rows_suit(kernel.align_c, 0, sizes.n);
}

// Whether sizes are within a factor of 8.
bool is_near(Index size, Index other) { return size <= 8 * other && other <= 8 * size; }

// The kernel of the shape itself, else that of the nearest shape: the fewest doublings of m, n and k away, if
// one is near.
// Only a kernel that `suits` counts.
template <typename Suits>
const Shape* chosen(const Product& product, const Sizes& sizes, Suits suits)
{
    for (int i = 0; i < product.count; ++i) {
        const Shape& shape = product.shapes[i];
        const bool same = shape.m == sizes.m && shape.n == sizes.n && shape.k == sizes.k;
        if (same && suits(*shape.kernel)) return &shape;
    }
    const auto log2_of = [](Index size) { return size > 0 ? std::log2(float(size)) : -1.0f; };
    const float log_m = log2_of(sizes.m), log_n = log2_of(sizes.n), log_k = log2_of(sizes.k);
    const Shape* best = nullptr;
    float least = INFINITY;
    for (int i = 0; i < product.count; ++i) {
        const Shape& shape = product.shapes[i];
        if (!is_near(shape.m, sizes.m) || !is_near(shape.n, sizes.n) || !is_near(shape.k, sizes.k)) continue;
        const float doublings =
            std::fabs(shape.log_m - log_m) + std::fabs(shape.log_n - log_n) + std::fabs(shape.log_k - log_k);
        if (doublings < least && suits(*shape.kernel)) {
            least = doublings;
            best = &shape;
        }
    }
    if (!best && suits(*product.fallback->kernel)) best = product.fallback;
    return best;
}

// The same for operands that lie as vectors want it.
const Shape* chosen(const Product& product, const Sizes& sizes)
{
    return chosen(product, sizes, [&](const Kernel& kernel) {
        return serves(kernel, sizes) && rows_suit(kernel, product, sizes);
    });
}

// ---- Launches ------------------------------------------------------------------------------------------------------

int start(
    const void* function, Index ctas, int block_x, int block_y, int smem_bytes, const void** arguments,
    cudaStream_t stream, const Device& device)
{
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(unsigned(ctas));
    launch.blockDim = dim3(unsigned(block_x), unsigned(block_y));
    launch.dynamicSmemBytes = std::size_t(smem_bytes);
    launch.stream = stream;

    // It comes up while the kernel before it ends, and waits by itself before it touches memory.
    cudaLaunchAttribute pdl = {};
    pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    pdl.val.programmaticStreamSerializationAllowed = 1;
    launch.attrs = &pdl;
    launch.numAttrs = device.capability >= 90 ? 1 : 0;
    return status_of(cudaLaunchKernelExC(&launch, function, const_cast<void**>(arguments)));
}

// A product whose sizes are above 0 and fit in int, with all that was checked.
template <typename T>
struct Call {
    const T *A, *B;
    T* C;
    int lda, ldb, ldc, m, n, k;
    T alpha, beta;
    cudaStream_t stream;
};

// So much shared memory for a CTA that an SM holds no more of them than it has to: those that start while another
// kernel ends would crowd on the first SMs that are free.
int limited_smem(const Kernel& kernel, const Device& device, Index ctas)
{
    const Index each = device.capability >= 90 ? ceil_div(ctas, device.sm_count) : INT_MAX;
    if (!kernel.limited || each > 16) return kernel.dynamic_smem;
    const int just_fits = device.smem_per_sm / int(each + 1) - device.smem_reserved;  // one CTA more
    const int least = just_fits / 128 * 128 + 128;
    const int more = (least < device.smem_per_cta ? least : device.smem_per_cta) - kernel.static_smem;
    return more > kernel.dynamic_smem ? more : kernel.dynamic_smem;
}

// Queues the main kernel.
template <typename T>
int launch_main(
    const Kernel& kernel, const Device& device, Call<T> call)
{
    const Index ctas = ctas_of(kernel, {call.m, call.n, call.k});
    const int status = allow_smem(kernel, device);
    if (status != MY_GEMM_SUCCESS) return status;
    const void* arguments[11] = {
        &call.A, &call.lda, &call.B, &call.ldb, &call.C, &call.ldc, &call.m, &call.n, &call.k, &call.alpha, &call.beta};
    return start(
        kernel.function, ctas, kernel.block_x, kernel.block_y, limited_smem(kernel, device, ctas), arguments,
        call.stream, device);
}

// ---- What the functions of the header do ---------------------------------------------------------------------------

// Whether sizes and leading dimensions make sense.
int sizes_status(const Product& product, const Sizes& sizes, Index lda, Index ldb, Index ldc)
{
    const auto [m, n, k] = sizes;
    if (m < 0 || n < 0 || k < 0) return MY_GEMM_INVALID_SIZE;
    const Index width_a = product.trans_a ? m : k, width_b = product.trans_b ? k : n;
    if (lda < 1 || ldb < 1 || ldc < 1 || lda < width_a || ldb < width_b || ldc < n) return MY_GEMM_INVALID_LD;
    for (const Index size : {m, n, k, lda, ldb, ldc}) {
        if (size > INT_MAX) return MY_GEMM_TOO_LARGE;
    }
    return MY_GEMM_SUCCESS;
}

int can_implement(const Product& product, const Sizes& sizes, Index lda, Index ldb, Index ldc)
{
    const int status = sizes_status(product, sizes, lda, ldb, ldc);
    if (status != MY_GEMM_SUCCESS || sizes.m == 0 || sizes.n == 0) return status;
    return chosen(product, sizes) ? MY_GEMM_SUCCESS : MY_GEMM_TOO_LARGE;
}

template <typename T>
bool odd(const T* X) { return reinterpret_cast<std::uintptr_t>(X) % sizeof(T) != 0; }

template <typename T>
bool suits(int count, const T* X, Index ld, Index width)
{
    return reinterpret_cast<std::uintptr_t>(X) % (std::size_t(count) * sizeof(T)) == 0 && rows_suit(count, ld, width);
}

template <typename T>
int run(
    const Product& product, const T* A, Index lda, const T* B, Index ldb, T* C, Index ldc, Index m, Index n, Index k,
    T alpha, T beta, void*, std::size_t, cudaStream_t stream)
{
    const Device* device = nullptr;
    const Sizes sizes = {m, n, k};
    const int status = sizes_status(product, sizes, lda, ldb, ldc);
    if (status != MY_GEMM_SUCCESS || m == 0 || n == 0) return status;
    const bool reads_ab = k > 0 && !is_zero(alpha);
    if (!C || (reads_ab && (!A || !B))) return MY_GEMM_NULL_POINTER;
    if (odd(C) || (reads_ab && (odd(A) || odd(B)))) return MY_GEMM_MISALIGNED;

    const auto lies_well = [&](const Kernel& kernel) {
        return suits(kernel.align_c, C, ldc, n)
            && (!reads_ab
                || (suits(kernel.align_a, A, lda, product.trans_a ? m : k)
                    && suits(kernel.align_b, B, ldb, product.trans_b ? k : n)))
            && serves(kernel, sizes);
    };
    const Shape* shape = chosen(product, sizes, lies_well);
    if (!shape) return MY_GEMM_TOO_LARGE;
    const Kernel& kernel = *shape->kernel;
    const int known = current_device(&device);
    if (known != MY_GEMM_SUCCESS) return known;
    const Call<T> call = {
        A, B, C, int(lda), int(ldb), int(ldc), int(m), int(n), int(k), alpha, beta, stream};
    return launch_main(kernel, *device, call);
}

// Has the kernels of a product ready on a device, so that no call has to load or set anything.
int init_product(const Product& product, const Device& device)
{
    const auto init_kernel = [&](const Kernel& kernel) {
        int status = allow_smem(kernel, device);
        return status;
    };
    int status = init_kernel(*product.fallback->kernel);
    for (int i = 0; i < product.count && status == MY_GEMM_SUCCESS; ++i) {
        status = init_kernel(*product.shapes[i].kernel);
    }
    return status;
}

int describe(const Product& product, const Sizes& sizes, my_gemm_description* description)
{
    if (!description) return MY_GEMM_NULL_POINTER;
    *description = {};
    const auto [m, n, k] = sizes;
    const Index lda = product.trans_a ? m : k, ldb = product.trans_b ? k : n;
    const int status = can_implement(product, sizes, lda > 0 ? lda : 1, ldb > 0 ? ldb : 1, n > 0 ? n : 1);
    if (status != MY_GEMM_SUCCESS || m == 0 || n == 0) return status;
    const Shape& shape = *chosen(product, sizes);
    const bool same = shape.m == m && shape.n == n && shape.k == k;
    description->kernel = shape.kernel->name;
    description->config = shape.kernel->config;
    description->origin = shape.origin;
    description->m = shape.m, description->n = shape.n, description->k = shape.k;
    description->recorded_us = same ? shape.recorded_us : 0;
    description->error_over_bound = same ? shape.error_over_bound : 0;
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
    using namespace my_gemm_impl;
    const Device* device = nullptr;
    int status = current_device(&device);
    if (status == MY_GEMM_SUCCESS) status = init_product(F32_NN, *device);
    return status;
}

extern "C" int my_gemm_release(void)
{
    return MY_GEMM_SUCCESS;
}

extern "C" int my_gemm_workspace_init(void* workspace, size_t workspace_bytes, cudaStream_t stream)
{
    (void)workspace, (void)workspace_bytes, (void)stream;  // these kernels count nothing
    return MY_GEMM_SUCCESS;
}

extern "C" const char* my_gemm_status_string(int status)
{
    switch (status) {
    case MY_GEMM_SUCCESS: return "done, or queued";
    case MY_GEMM_INVALID_SIZE: return "m, n or k is negative";
    case MY_GEMM_INVALID_LD: return "lda, ldb or ldc is below 1 or the length of a stored row";
    case MY_GEMM_NULL_POINTER: return "a matrix that would be read or written is null";
    case MY_GEMM_MISALIGNED: return "a matrix does not begin at a whole element, or the workspace at 256 bytes";
    case MY_GEMM_TOO_LARGE: return "a size or leading dimension is above 2^31 - 1, or there are too many tiles of C";
    case MY_GEMM_WORKSPACE_TOO_SMALL: return "the workspace is smaller than the product needs";
    case MY_GEMM_UNSUPPORTED_DEVICE: return "the kernels are for other architectures, or the driver lacks tensor maps";
    case MY_GEMM_CAPTURING: return "this call needs a workspace: capture _run, which is given one";
    default:
        if (status <= MY_GEMM_CUDA_ERROR) return "no such status";
        return cudaGetErrorString(cudaError_t(status - MY_GEMM_CUDA_ERROR));
    }
}

extern "C" int my_gemm_can_implement(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc)
{
    return my_gemm_impl::can_implement(my_gemm_impl::F32_NN, {m, n, k}, lda, ldb, ldc);
}

extern "C" size_t my_gemm_workspace_size(int64_t m, int64_t n, int64_t k)
{
    (void)m, (void)n, (void)k;  // no kernel needs one
    return 0;
}

extern "C" int my_gemm_run(
    const float* A, int64_t lda, const float* B, int64_t ldb, float* C, int64_t ldc, int64_t m, int64_t n, int64_t k,
    float alpha, float beta, void* workspace, size_t workspace_bytes, cudaStream_t stream)
{
    return my_gemm_impl::run(
        my_gemm_impl::F32_NN, A, lda, B, ldb, C, ldc, m, n, k, alpha, beta, workspace, workspace_bytes,
        stream);
}

extern "C" int my_gemm(
    const float* A, int64_t lda, const float* B, int64_t ldb, float* C, int64_t ldc, int64_t m, int64_t n, int64_t k,
    float alpha, float beta, cudaStream_t stream)
{
    return my_gemm_run(A, lda, B, ldb, C, ldc, m, n, k, alpha, beta, nullptr, 0, stream);
}

extern "C" int my_gemm_describe(int64_t m, int64_t n, int64_t k, my_gemm_description* description)
{
    return my_gemm_impl::describe(my_gemm_impl::F32_NN, {m, n, k}, description);
}

#ifdef __ELF__
#pragma GCC visibility pop
#endif
