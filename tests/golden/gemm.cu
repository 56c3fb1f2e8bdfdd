// gemm.cu: kernels and the functions that launch them. gemm.h says how to call them.
//
// Written by tilewright, file digest 21a4db3cac37d0f5. To write it again:
//   tilewright emit --shape 1021x767x509 --dtype float --trans nn --arch sm_90a --name gemm --cmake --config "tiled:16"
// SPDX-License-Identifier: MIT

#include "gemm.h"

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

namespace gemm_impl {

// One kernel, and how it is launched.
struct Kernel {
    const char* name;
    const char* config;
    const void* function;
    int tile_m, tile_n;             // rows and columns of C that a CTA computes
    int block_x, block_y;           // threads of a CTA
};

// A shape and the kernel that serves it.
struct Shape {
    int m, n, k;
    const Kernel* kernel;
    const char* origin;
    double recorded_us, error_over_bound;
};

// All that serves products of one type, with the same transposes, on one architecture and later ones.
struct Product {
    bool trans_a, trans_b;
    const Shape* shapes;
    int count;
};

}  // namespace gemm_impl

// Device code follows: warnings of the host's compiler, which reads it too, do not apply.
#ifdef __GNUC__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wfloat-equal"
#endif

namespace gemm_impl {
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
};

}  // namespace k0
}  // namespace gemm_impl

#ifdef __GNUC__
#pragma GCC diagnostic pop
#endif

namespace gemm_impl {
namespace {

using Index = long long;  // sizes: a matrix may hold more than 2^31 elements

const Shape F32_NN_SHAPES[] = {
    // m, n, k, kernel, origin, recorded microseconds and error over its bound
    {1021, 767, 509, &k0::KERNEL, "as given", 0, 0},
};
const Product F32_NN = {
    false, false, F32_NN_SHAPES, 1};

constexpr int MAX_DEVICES = 64;

constexpr Index ceil_div(Index size, Index step) { return (size + step - 1) / step; }

template <typename T>
bool is_zero(T x) { return std::fpclassify(x) == FP_ZERO; }

int status_of(cudaError_t error) { return error == cudaSuccess ? GEMM_SUCCESS : GEMM_CUDA_ERROR + int(error); }

// What is asked of a device once.
struct Device {
    std::atomic<bool> known{false};
    int number = 0, capability = 0;
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
    if (number >= MAX_DEVICES) return GEMM_UNSUPPORTED_DEVICE;
    Device& device = devices[number];
    *found = &device;
    if (device.known.load(std::memory_order_acquire)) return GEMM_SUCCESS;

    const Locked locked(asking);
    if (device.known.load(std::memory_order_relaxed)) return GEMM_SUCCESS;  // another thread asked meanwhile
    const auto ask = [&](int* answer, cudaDeviceAttr attribute) {
        if (error == cudaSuccess) error = cudaDeviceGetAttribute(answer, attribute, number);
    };
    ask(&major, cudaDevAttrComputeCapabilityMajor);
    ask(&minor, cudaDevAttrComputeCapabilityMinor);
    device.number = number;
    device.capability = 10 * major + minor;
    device.known.store(error == cudaSuccess, std::memory_order_release);
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

// The kernel for a product, if it suits.
template <typename Suits>
const Shape* chosen(const Product& product, const Sizes&, Suits suits)
{
    if (suits(*product.shapes->kernel)) return product.shapes;
    return nullptr;
}

// The same for operands that lie as vectors want it.
const Shape* chosen(const Product& product, const Sizes& sizes)
{
    return chosen(product, sizes, [&](const Kernel& kernel) {
        return serves(kernel, sizes);
    });
}

// ---- Launches ------------------------------------------------------------------------------------------------------

int start(
    const void* function, Index ctas, int block_x, int block_y, const void** arguments,
    cudaStream_t stream, const Device& device)
{
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(unsigned(ctas));
    launch.blockDim = dim3(unsigned(block_x), unsigned(block_y));
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

// Queues the main kernel.
template <typename T>
int launch_main(
    const Kernel& kernel, const Device& device, Call<T> call)
{
    const Index ctas = ctas_of(kernel, {call.m, call.n, call.k});
    const void* arguments[11] = {
        &call.A, &call.lda, &call.B, &call.ldb, &call.C, &call.ldc, &call.m, &call.n, &call.k, &call.alpha, &call.beta};
    return start(
        kernel.function, ctas, kernel.block_x, kernel.block_y, arguments,
        call.stream, device);
}

// ---- What the functions of the header do ---------------------------------------------------------------------------

// Whether sizes and leading dimensions make sense.
int sizes_status(const Product& product, const Sizes& sizes, Index lda, Index ldb, Index ldc)
{
    const auto [m, n, k] = sizes;
    if (m < 0 || n < 0 || k < 0) return GEMM_INVALID_SIZE;
    const Index width_a = product.trans_a ? m : k, width_b = product.trans_b ? k : n;
    if (lda < 1 || ldb < 1 || ldc < 1 || lda < width_a || ldb < width_b || ldc < n) return GEMM_INVALID_LD;
    for (const Index size : {m, n, k, lda, ldb, ldc}) {
        if (size > INT_MAX) return GEMM_TOO_LARGE;
    }
    return GEMM_SUCCESS;
}

int can_implement(const Product& product, const Sizes& sizes, Index lda, Index ldb, Index ldc)
{
    const int status = sizes_status(product, sizes, lda, ldb, ldc);
    if (status != GEMM_SUCCESS || sizes.m == 0 || sizes.n == 0) return status;
    return chosen(product, sizes) ? GEMM_SUCCESS : GEMM_TOO_LARGE;
}

template <typename T>
bool odd(const T* X) { return reinterpret_cast<std::uintptr_t>(X) % sizeof(T) != 0; }

template <typename T>
int run(
    const Product& product, const T* A, Index lda, const T* B, Index ldb, T* C, Index ldc, Index m, Index n, Index k,
    T alpha, T beta, void*, std::size_t, cudaStream_t stream)
{
    const Device* device = nullptr;
    const Sizes sizes = {m, n, k};
    const int status = sizes_status(product, sizes, lda, ldb, ldc);
    if (status != GEMM_SUCCESS || m == 0 || n == 0) return status;
    const bool reads_ab = k > 0 && !is_zero(alpha);
    if (!C || (reads_ab && (!A || !B))) return GEMM_NULL_POINTER;
    if (odd(C) || (reads_ab && (odd(A) || odd(B)))) return GEMM_MISALIGNED;

    const Shape* shape = chosen(product, sizes);
    if (!shape) return GEMM_TOO_LARGE;
    const Kernel& kernel = *shape->kernel;
    const int known = current_device(&device);
    if (known != GEMM_SUCCESS) return known;
    const Call<T> call = {
        A, B, C, int(lda), int(ldb), int(ldc), int(m), int(n), int(k), alpha, beta, stream};
    return launch_main(kernel, *device, call);
}

// Has the kernels of a product ready on a device, so that no call has to load or set anything.
int init_product(const Product& product, [[maybe_unused]] const Device& device)
{
    const auto load = [&](const void* function) {
        cudaFuncAttributes attributes;
        return status_of(cudaFuncGetAttributes(&attributes, function));
    };
    const auto init_kernel = [&](const Kernel& kernel) {
        int status = load(kernel.function);
        return status;
    };
    int status = GEMM_SUCCESS;
    for (int i = 0; i < product.count && status == GEMM_SUCCESS; ++i) {
        status = init_kernel(*product.shapes[i].kernel);
    }
    return status;
}

int describe(const Product& product, const Sizes& sizes, gemm_description* description)
{
    if (!description) return GEMM_NULL_POINTER;
    *description = {};
    const auto [m, n, k] = sizes;
    const Index lda = product.trans_a ? m : k, ldb = product.trans_b ? k : n;
    const int status = can_implement(product, sizes, lda > 0 ? lda : 1, ldb > 0 ? ldb : 1, n > 0 ? n : 1);
    if (status != GEMM_SUCCESS || m == 0 || n == 0) return status;
    const Shape& shape = *chosen(product, sizes);
    const bool same = shape.m == m && shape.n == n && shape.k == k;
    description->kernel = shape.kernel->name;
    description->config = shape.kernel->config;
    description->origin = shape.origin;
    description->m = shape.m, description->n = shape.n, description->k = shape.k;
    description->recorded_us = same ? shape.recorded_us : 0;
    description->error_over_bound = same ? shape.error_over_bound : 0;
    return GEMM_SUCCESS;
}

}  // namespace
}  // namespace gemm_impl

// A bundle of the same name in another shared object of a program does not take the place of this one.
#ifdef __ELF__
#pragma GCC visibility push(protected)
#endif

extern "C" int gemm_init(void)
{
    using namespace gemm_impl;
    const Device* device = nullptr;
    int status = current_device(&device);
    if (status == GEMM_SUCCESS) status = init_product(F32_NN, *device);
    return status;
}

extern "C" int gemm_release(void)
{
    return GEMM_SUCCESS;
}

extern "C" int gemm_workspace_init(void* workspace, size_t workspace_bytes, cudaStream_t stream)
{
    (void)workspace, (void)workspace_bytes, (void)stream;  // these kernels count nothing
    return GEMM_SUCCESS;
}

extern "C" const char* gemm_status_string(int status)
{
    switch (status) {
    case GEMM_SUCCESS: return "done, or queued";
    case GEMM_INVALID_SIZE: return "m, n or k is negative";
    case GEMM_INVALID_LD: return "lda, ldb or ldc is below 1 or the length of a stored row";
    case GEMM_NULL_POINTER: return "a matrix that would be read or written is null";
    case GEMM_MISALIGNED: return "a matrix does not begin at a whole element, or the workspace at 256 bytes";
    case GEMM_TOO_LARGE: return "a size or leading dimension is above 2^31 - 1, or there are too many tiles of C";
    case GEMM_WORKSPACE_TOO_SMALL: return "the workspace is smaller than the product needs";
    case GEMM_UNSUPPORTED_DEVICE: return "the kernels are for other architectures, or the driver lacks tensor maps";
    case GEMM_CAPTURING: return "this call needs a workspace: capture _run, which is given one";
    default:
        if (status <= GEMM_CUDA_ERROR) return "no such status";
        return cudaGetErrorString(cudaError_t(status - GEMM_CUDA_ERROR));
    }
}

extern "C" int gemm_can_implement(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc)
{
    return gemm_impl::can_implement(gemm_impl::F32_NN, {m, n, k}, lda, ldb, ldc);
}

extern "C" size_t gemm_workspace_size(int64_t m, int64_t n, int64_t k)
{
    (void)m, (void)n, (void)k;  // no kernel needs one
    return 0;
}

extern "C" int gemm_run(
    const float* A, int64_t lda, const float* B, int64_t ldb, float* C, int64_t ldc, int64_t m, int64_t n, int64_t k,
    float alpha, float beta, void* workspace, size_t workspace_bytes, cudaStream_t stream)
{
    return gemm_impl::run(
        gemm_impl::F32_NN, A, lda, B, ldb, C, ldc, m, n, k, alpha, beta, workspace, workspace_bytes,
        stream);
}

extern "C" int gemm(
    const float* A, int64_t lda, const float* B, int64_t ldb, float* C, int64_t ldc, int64_t m, int64_t n, int64_t k,
    float alpha, float beta, cudaStream_t stream)
{
    return gemm_run(A, lda, B, ldb, C, ldc, m, n, k, alpha, beta, nullptr, 0, stream);
}

extern "C" int gemm_describe(int64_t m, int64_t n, int64_t k, gemm_description* description)
{
    return gemm_impl::describe(gemm_impl::F32_NN, {m, n, k}, description);
}

#ifdef __ELF__
#pragma GCC visibility pop
#endif
