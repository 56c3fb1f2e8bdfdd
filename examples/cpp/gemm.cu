// gemm.cu: a kernel and the function that launches it. gemm.h says how to call it.
//
// Written by tilewright, file digest b0b6f2ff72489a66. To write it again:
//   tilewright emit --shape 300x200x100 --dtype float --trans nn
//       --config "tiled:tile_width=16,edge=bounds,skew=0,unroll=8" --arch sm_90a --name gemm

#include "gemm.h"

#include <climits>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

// gemm_tiled_f32_nn_tw16_ebounds_s0_u8
// Square tiles of A and B in shared memory, one thread an element of C.
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
//   grid       ceil(m / 16) * ceil(n / 16) blocks along x
//   block      (16, 16, 1): 256 threads
//   shared     2048 bytes, static
//
// Written by tilewright from templates/tiled.cu.jinja, digest ec0d97331114328f. To write it again:
//   tilewright emit --config "tiled:tile_width=16,edge=bounds,skew=0,unroll=8" --dtype float --trans nn

namespace {

using T = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int TILE_WIDTH = 16;     // rows and columns of the tiles of A, B and C
constexpr int SKEW       = 0;      // unused elements after each row of a tile, against bank conflicts
constexpr int UNROLL     = 8;      // steps of a phase's multiply loop unrolled
constexpr int THREADS    = 256;    // threads of a block
constexpr bool TRANS_A   = false;  // A is stored k x m
constexpr bool TRANS_B   = false;  // B is stored n x k
constexpr bool GUARD     = true;   // loads and stores outside the matrices are left out

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
gemm_tiled_f32_nn_tw16_ebounds_s0_u8(
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
        &launch, gemm_tiled_f32_nn_tw16_ebounds_s0_u8, A, lda, B, ldb, C, ldc, m, n, k, alpha, beta);
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

    return launch_product(
        A, lda, B, ldb, C, ldc, m, n, k, alpha, beta, static_cast<cudaStream_t>(stream));
}
