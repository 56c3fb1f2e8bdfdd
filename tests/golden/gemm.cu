// gemm.cu: a kernel and the function that launches it. gemm.h says how to call it.
//
// Written by tilewright, file digest da13678c50f7d637. To write it again:
//   tilewright emit --shape 1024x768x512 --dtype float --trans nn --arch sm_90a --name gemm --config "tiled:16,edge=pad"
// SPDX-License-Identifier: MIT

#include "gemm.h"

#include <climits>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

namespace gemm_impl {

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

// Programmatic dependent launch (PDL): waits for what earlier kernels of the stream wrote.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
__device__ __forceinline__ void griddepcontrol_wait() {}
#endif

// What C becomes: alpha * product + beta * C, where C is read only if it counts.
__device__ __forceinline__ T blend(T product, const T* c, T alpha, T beta)
{
    return beta == T(0) ? alpha * product : alpha * product + beta * *c;
}

}  // namespace

static __global__ void __launch_bounds__(TILE_WIDTH * TILE_WIDTH) gemm_tiled_f32_nn_16x16x16_238dcd83(
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
    const Index a_step = 1;  // one step along k
    const Index b_step = ldb;
    const T* a = A + (row0 + a_i) * lda + a_p * a_step;
    const T* b = B + col0 + b_j + b_p * b_step;

    T acc = 0;
    const Index depth = alpha == T(0) ? 0 : k;
    for (Index p0 = 0; p0 < depth; p0 += TILE_WIDTH) {
        a_tile[a_i][a_p] = *a;
        b_tile[b_p][b_j] = *b;
        a += TILE_WIDTH * a_step;
        b += TILE_WIDTH * b_step;
        __syncthreads();

        #pragma unroll UNROLL
        for (int p = 0; p < TILE_WIDTH; ++p) acc += a_tile[ty][p] * b_tile[p][tx];
        __syncthreads();
    }

    T* c = C + row * ldc + col;
    *c = blend(acc, c, alpha, beta);
}

// Zeroes what lies outside the rows x cols matrix in its padded buffer X, and touches nothing inside: the
// strip to the right of the matrix first, then the rows below it. Any number of CTAs and threads along x.
static __global__ void gemm_tiled_f32_nn_16x16x16_238dcd83_frame(
    T* __restrict__ X, int ld, int rows, int cols, int padded_rows, int padded_cols)
{
    griddepcontrol_wait();
    const Index strip = padded_cols - cols;
    const Index right = rows * strip;
    const Index total = right + Index(padded_rows - rows) * padded_cols;
    const Index stride = Index(gridDim.x) * blockDim.x;
    for (Index i = Index(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += stride) {
        if (i < right) {
            X[i / strip * ld + cols + i % strip] = T(0);
        } else {
            const Index below = i - right;
            X[(rows + below / padded_cols) * ld + below % padded_cols] = T(0);
        }
    }
}

namespace {

constexpr Index ceil_div(Index size, int step) { return (size + step - 1) / step; }

bool misaligned(const void* matrix) { return reinterpret_cast<std::uintptr_t>(matrix) % sizeof(T) != 0; }

// Queues the kernel, for sizes above 0 and arguments that have been checked.
cudaError_t launch_product(
    const T* A, int lda, const T* B, int ldb, T* C, int ldc,
    int m, int n, int k, T alpha, T beta, cudaStream_t stream)
{
    const Index ctas = ceil_div(m, 16) * ceil_div(n, 16);
    if (ctas > INT_MAX) return cudaErrorInvalidConfiguration;

    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(unsigned(ctas));
    launch.blockDim = dim3(16, 16, 1);
    launch.stream = stream;

    // It comes up while the kernel before it ends, and waits by itself before it touches memory.
    cudaLaunchAttribute pdl = {};
    pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    pdl.val.programmaticStreamSerializationAllowed = 1;
    launch.attrs = &pdl;
    launch.numAttrs = 1;
    return cudaLaunchKernelEx(
        &launch, gemm_tiled_f32_nn_16x16x16_238dcd83, A, lda, B, ldb, C, ldc, m, n, k, alpha, beta);
}

constexpr int MULTIPLE_M    = 16;     // what m is padded to
constexpr int MULTIPLE_N    = 16;     // what n is padded to
constexpr int MULTIPLE_K    = 16;     // what k is padded to
constexpr int ALIGNMENT     = 256;    // bytes, of each matrix in the workspace
constexpr int FRAME_THREADS = 256;    // threads of a CTA of the kernel that zeroes it
constexpr int FRAME_CTAS  = 65536;  // most CTAs of it

// Copies the rows x cols matrix X into its padded buffer and zeroes the padding around it.
cudaError_t copy_padded(
    T* buffer, int padded_rows, int padded_cols, const T* X, int ld, int rows, int cols, cudaStream_t stream)
{
    const cudaError_t error = cudaMemcpy2DAsync(
        buffer, sizeof(T) * padded_cols, X, sizeof(T) * ld, sizeof(T) * cols, rows,
        cudaMemcpyDeviceToDevice, stream);
    const Index padding = Index(padded_rows) * padded_cols - Index(rows) * cols;
    if (error != cudaSuccess || padding == 0) return error;

    const Index ctas = ceil_div(padding, FRAME_THREADS);
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(unsigned(ctas < FRAME_CTAS ? ctas : FRAME_CTAS));
    launch.blockDim = dim3(FRAME_THREADS);
    launch.stream = stream;
    return cudaLaunchKernelEx(
        &launch, gemm_tiled_f32_nn_16x16x16_238dcd83_frame,
        buffer, padded_cols, rows, cols, padded_rows, padded_cols);
}

// The matrices in their padded sizes, within the workspace.
struct Padded {
    int m, n, k;
    T *A, *B, *C;
};

// Copies the operands in, multiplies, and copies C out.
cudaError_t run_padded(
    const Padded& padded, const T* A, int lda, const T* B, int ldb, T* C, int ldc,
    int m, int n, int k, T alpha, T beta, cudaStream_t stream)
{
    const int rows_a = padded.m, cols_a = padded.k;
    const int rows_b = padded.k, cols_b = padded.n;
    cudaError_t error = cudaSuccess;
    if (padded.k > 0) {
        error = copy_padded(padded.A, rows_a, cols_a, A, lda, m, k, stream);
        if (error != cudaSuccess) return error;
        error = copy_padded(padded.B, rows_b, cols_b, B, ldb, k, n, stream);
        if (error != cudaSuccess) return error;
    }
    if (beta != T(0)) {
        error = copy_padded(padded.C, padded.m, padded.n, C, ldc, m, n, stream);
        if (error != cudaSuccess) return error;
    }
    error = launch_product(
        padded.A, cols_a, padded.B, cols_b, padded.C, padded.n,
        padded.m, padded.n, padded.k, alpha, beta, stream);
    if (error != cudaSuccess) return error;
    return cudaMemcpy2DAsync(
        C, sizeof(T) * ldc, padded.C, sizeof(T) * padded.n, sizeof(T) * n, m,
        cudaMemcpyDeviceToDevice, stream);
}

// The product by way of padded copies, which live in a workspace from the stream's memory pool.
cudaError_t padded_product(
    const T* A, int lda, const T* B, int ldb, T* C, int ldc,
    int m, int n, int k, T alpha, T beta, cudaStream_t stream)
{
    if (alpha == T(0)) k = 0;  // neither A nor B is read
    const Index padded_m = ceil_div(m, MULTIPLE_M) * MULTIPLE_M;
    const Index padded_n = ceil_div(n, MULTIPLE_N) * MULTIPLE_N;
    const Index padded_k = ceil_div(k, MULTIPLE_K) * MULTIPLE_K;
    if (padded_m > INT_MAX || padded_n > INT_MAX || padded_k > INT_MAX) return cudaErrorInvalidValue;

    // Each matrix has fewer than 2^62 elements, so that the sum of three does not overflow.
    constexpr std::size_t step = ALIGNMENT / sizeof(T);
    const std::size_t size_a = (std::size_t(padded_m) * padded_k + step - 1) / step * step;
    const std::size_t size_b = (std::size_t(padded_k) * padded_n + step - 1) / step * step;
    const std::size_t size_c = std::size_t(padded_m) * padded_n;
    if (size_a + size_b + size_c > SIZE_MAX / sizeof(T)) return cudaErrorMemoryAllocation;

    T* workspace = nullptr;
    cudaError_t error = cudaMallocAsync(&workspace, sizeof(T) * (size_a + size_b + size_c), stream);
    if (error != cudaSuccess) return error;

    const Padded padded = {
        int(padded_m), int(padded_n), int(padded_k),
        workspace, workspace + size_a, workspace + size_a + size_b};
    error = run_padded(padded, A, lda, B, ldb, C, ldc, m, n, k, alpha, beta, stream);
    const cudaError_t freed = cudaFreeAsync(workspace, stream);
    return error != cudaSuccess ? error : freed;
}

}  // namespace
}  // namespace gemm_impl

extern "C" int gemm(
    const float* A, int lda, const float* B, int ldb, float* C, int ldc,
    int m, int n, int k, float alpha, float beta, void* stream)
{
    using namespace gemm_impl;
    if (m < 0 || n < 0 || k < 0) return cudaErrorInvalidValue;
    const int width_a = k;  // of a row as stored
    const int width_b = n;
    if (lda < 1 || ldb < 1 || ldc < 1) return cudaErrorInvalidPitchValue;
    if (lda < width_a || ldb < width_b || ldc < n) return cudaErrorInvalidPitchValue;
    if (m == 0 || n == 0) return cudaSuccess;

    const bool reads_ab = k > 0 && alpha != T(0);
    if (C == nullptr || (reads_ab && (A == nullptr || B == nullptr))) return cudaErrorInvalidValue;
    if (misaligned(C) || (reads_ab && (misaligned(A) || misaligned(B)))) return cudaErrorMisalignedAddress;

    return padded_product(
        A, lda, B, ldb, C, ldc, m, n, k, alpha, beta, static_cast<cudaStream_t>(stream));
}
