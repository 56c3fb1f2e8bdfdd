// gemm.cu: a kernel and the function that launches it. gemm.h says how to call it.
//
// Written by tilewright, file digest 4e392e152e2a9988. To write it again:
//   tilewright emit --shape 1024x768x512 --dtype float --trans nn
//       --config "tiled:tile_width=16,edge=pad,skew=0,unroll=8" --arch sm_90a --name gemm

#include "gemm.h"

#include <climits>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

// gemm_tiled_f32_nn_tw16_epad_s0_u8
// Square tiles of A and B in shared memory, one thread an element of C.
//
//   C = alpha * op(A) * op(B) + beta * C      float, every matrix row-major
//
//   op(A) is m x k; A is stored m x k, lda elements from row to row
//   op(B) is k x n; B is stored k x n, ldb elements from row to row
//   C is m x n, ldc elements from row to row; it is not read where beta is 0
//   A and B are not read where alpha is 0
//
//   sizes      m, n and k as padded: m to a multiple of 16, n of 16, k of 16;
//              A and B lie in buffers of the padded sizes, their frames zeroed by the kernel
//            gemm_tiled_f32_nn_tw16_epad_s0_u8_frame
//   alignment  every pointer and leading dimension to one element, 4 bytes
//   grid       ceil(m / 16) * ceil(n / 16) blocks along x
//   block      (16, 16, 1): 256 threads
//   shared     2048 bytes, static
//
// Written by tilewright from templates/tiled.cu.jinja, digest ae181792fcc6967f. To write it again:
//   tilewright emit --config "tiled:tile_width=16,edge=pad,skew=0,unroll=8" --dtype float --trans nn

namespace {

using T = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int TILE_WIDTH = 16;     // rows and columns of the tiles of A, B and C
constexpr int SKEW       = 0;      // unused elements after each row of a tile, against bank conflicts
constexpr int UNROLL     = 8;      // steps of a phase's multiply loop unrolled
constexpr int THREADS    = 256;    // threads of a block
constexpr bool TRANS_A   = false;  // A is stored k x m
constexpr bool TRANS_B   = false;  // B is stored n x k
constexpr bool GUARD     = false;  // loads and stores outside the matrices are left out

static_assert(UNROLL <= TILE_WIDTH, "unroll 8 is at most tile_width 16");
static_assert(THREADS <= 1024, "a block has at most as many threads as the device allows");

// Waits for the kernels before this one and what they wrote: in every thread, before it touches a matrix.
// Where the launch asks for it (programmatic dependent launch), this kernel comes up while the last one ends.
__device__ __forceinline__ void wait_for_previous()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// What C becomes: alpha * product + beta * C, where C is read only if it counts.
__device__ __forceinline__ T blend(T product, const T* c, T alpha, T beta)
{
    return beta == T(0) ? alpha * product : alpha * product + beta * *c;
}

}  // namespace

//            n                     Each block computes one tile of C, TILE_WIDTH wide and high, one element a
//         +-----+                  thread, in phases along k:
//       k | | | |  op(B)
//         +-----+                    load      a tile of op(A) and one of op(B), one element of each a thread
//     k      v                       barrier   the tiles are whole
//   +---+ +-----+                    multiply  a row of the one with a column of the other
// m |-->| |  x  |  C                 barrier   the tiles may be overwritten
//   +---+ +-----+
//   op(A)
static __global__ void __launch_bounds__(THREADS)
gemm_tiled_f32_nn_tw16_epad_s0_u8(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, T* __restrict__ C, int ldc,
    int m, int n, int k, T alpha, T beta)
{
    __shared__ T a_tile[TILE_WIDTH][TILE_WIDTH + SKEW];  // a_tile[i][p] = op(A)(row0 + i, p0 + p)
    __shared__ T b_tile[TILE_WIDTH][TILE_WIDTH + SKEW];  // b_tile[p][j] = op(B)(p0 + p, col0 + j)

    wait_for_previous();
    const int tx = threadIdx.x;
    const int ty = threadIdx.y;

    // The block's tile of C, and this thread's element. Blocks go along the rows of C first.
    const unsigned blocks_n = unsigned(n - 1) / TILE_WIDTH + 1;
    const Index row0 = Index(blockIdx.x / blocks_n) * TILE_WIDTH;
    const Index col0 = Index(blockIdx.x % blocks_n) * TILE_WIDTH;
    const Index row = row0 + ty;
    const Index col = col0 + tx;

    // Neighbouring threads load neighbouring addresses: along k or across it, as the operand is stored.
    const int a_i = TRANS_A ? tx : ty;
    const int a_p = TRANS_A ? ty : tx;
    const int b_p = TRANS_B ? tx : ty;
    const int b_j = TRANS_B ? ty : tx;
    const bool a_inside = !GUARD || row0 + a_i < m;
    const bool b_inside = !GUARD || col0 + b_j < n;
    const Index a_step = TRANS_A ? lda : 1;  // one step along k
    const Index b_step = TRANS_B ? 1 : ldb;
    const T* a = A + (TRANS_A ? row0 + a_i : (row0 + a_i) * lda) + a_p * a_step;
    const T* b = B + (TRANS_B ? (col0 + b_j) * ldb : col0 + b_j) + b_p * b_step;

    T sum = 0;
    const Index depth = alpha == T(0) ? 0 : k;
    for (Index p0 = 0; p0 < depth; p0 += TILE_WIDTH) {
        a_tile[a_i][a_p] = a_inside && (!GUARD || p0 + a_p < depth) ? *a : T(0);
        b_tile[b_p][b_j] = b_inside && (!GUARD || p0 + b_p < depth) ? *b : T(0);
        a += TILE_WIDTH * a_step;
        b += TILE_WIDTH * b_step;
        __syncthreads();

        #pragma unroll UNROLL
        for (int p = 0; p < TILE_WIDTH; ++p) {
            sum += a_tile[ty][p] * b_tile[p][tx];
        }
        __syncthreads();
    }

    if (!GUARD || (row < m && col < n)) {
        T* c = C + row * ldc + col;
        *c = blend(sum, c, alpha, beta);
    }
}

// Zeroes what lies outside the rows x cols matrix in its padded buffer X, and touches nothing inside: the
// strip to the right of the matrix first, then the rows below it. Any grid and block along x.
static __global__ void gemm_tiled_f32_nn_tw16_epad_s0_u8_frame(
    T* __restrict__ X, int ld, int rows, int cols, int padded_rows, int padded_cols)
{
    wait_for_previous();
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

constexpr int PER_BLOCK_M = 16;  // rows of C a block computes
constexpr int PER_BLOCK_N = 16;  // columns of C a block computes

constexpr Index ceil_div(Index size, int step) { return (size + step - 1) / step; }

bool misaligned(const void* matrix) { return reinterpret_cast<std::uintptr_t>(matrix) % sizeof(T) != 0; }

// Queues the kernel, for sizes above 0 and arguments that have been checked.
cudaError_t launch_product(
    const T* A, int lda, const T* B, int ldb, T* C, int ldc,
    int m, int n, int k, T alpha, T beta, cudaStream_t stream)
{
    const Index blocks = ceil_div(m, PER_BLOCK_M) * ceil_div(n, PER_BLOCK_N);
    if (blocks > INT_MAX) return cudaErrorInvalidConfiguration;

    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(unsigned(blocks));
    launch.blockDim = dim3(16, 16, 1);
    launch.stream = stream;

    // It comes up while the kernel before it ends, and waits by itself before it touches memory.
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    launch.attrs = &overlap;
    launch.numAttrs = 1;
    return cudaLaunchKernelEx(
        &launch, gemm_tiled_f32_nn_tw16_epad_s0_u8, A, lda, B, ldb, C, ldc, m, n, k, alpha, beta);
}

constexpr int MULTIPLE_M    = 16;     // what m is padded to
constexpr int MULTIPLE_N    = 16;     // what n is padded to
constexpr int MULTIPLE_K    = 16;     // what k is padded to
constexpr int ALIGNMENT     = 256;    // bytes, of each matrix in the workspace
constexpr int FRAME_THREADS = 256;    // threads of a block of the frame kernel
constexpr int FRAME_BLOCKS  = 65536;  // most blocks of it

// Copies the rows x cols matrix X into its padded buffer and zeroes the frame around it.
cudaError_t copy_framed(
    T* buffer, int padded_rows, int padded_cols, const T* X, int ld, int rows, int cols, cudaStream_t stream)
{
    const cudaError_t error = cudaMemcpy2DAsync(
        buffer, sizeof(T) * padded_cols, X, sizeof(T) * ld, sizeof(T) * cols, rows,
        cudaMemcpyDeviceToDevice, stream);
    const Index frame = Index(padded_rows) * padded_cols - Index(rows) * cols;
    if (error != cudaSuccess || frame == 0) return error;

    const Index blocks = ceil_div(frame, FRAME_THREADS);
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(unsigned(blocks < FRAME_BLOCKS ? blocks : FRAME_BLOCKS));
    launch.blockDim = dim3(FRAME_THREADS);
    launch.stream = stream;
    return cudaLaunchKernelEx(
        &launch, gemm_tiled_f32_nn_tw16_epad_s0_u8_frame,
        buffer, padded_cols, rows, cols, padded_rows, padded_cols);
}

// The matrices in their padded sizes, within the workspace.
struct Padded {
    int m, n, k;
    T *A, *B, *C;
};

// Copies the operands in, multiplies, and copies the part of C that is wanted out.
cudaError_t run_padded(
    const Padded& padded, const T* A, int lda, const T* B, int ldb, T* C, int ldc,
    int m, int n, int k, T alpha, T beta, cudaStream_t stream)
{
    const int rows_a = TRANS_A ? padded.k : padded.m, cols_a = TRANS_A ? padded.m : padded.k;
    const int rows_b = TRANS_B ? padded.n : padded.k, cols_b = TRANS_B ? padded.k : padded.n;
    cudaError_t error = cudaSuccess;
    if (padded.k > 0) {
        error = copy_framed(padded.A, rows_a, cols_a, A, lda, TRANS_A ? k : m, TRANS_A ? m : k, stream);
        if (error != cudaSuccess) return error;
        error = copy_framed(padded.B, rows_b, cols_b, B, ldb, TRANS_B ? n : k, TRANS_B ? k : n, stream);
        if (error != cudaSuccess) return error;
    }
    if (beta != T(0)) {
        error = copy_framed(padded.C, padded.m, padded.n, C, ldc, m, n, stream);
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

extern "C" int gemm(
    const T* A, int lda, const T* B, int ldb, T* C, int ldc,
    int m, int n, int k, T alpha, T beta, void* stream)
{
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
