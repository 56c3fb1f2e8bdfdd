// gemm_naive_f32_nn_8x32x1_f553edf1
// One thread an element of C, straight from global memory.
//
//   C = alpha * op(A) * op(B) + beta * C in float; where alpha is 0, A and B are not read, where beta is 0, C is not
//
//   storage    row-major: A m x k, B k x n, C m x n; lda, ldb, ldc from row to row
//   sizes      m a multiple of 8, n of 32, k of 1; pointers and leading dimensions aligned to one element
//              A and B in buffers to which the kernel pad_f32 has copied them
//   launch     ceil(m / 8) * ceil(n / 32) CTAs along x, (32, 8, 1) threads, 0 bytes of static shared memory
//
// Written by tilewright from templates/naive.cu.jinja, digest ca461b3aca743e44. To write it again:
//   tilewright emit --dtype float --trans nn --config "naive:8x32,edge=pad"
// SPDX-License-Identifier: MIT

//            n
//         +-----+                  Each thread computes one element of C: a row of op(A) times a column of
//       k |  |  |  op(B)           op(B), straight from global memory.
//         +-----+
//     k      v
//   +---+ +-----+
// m |-->| |  x  |  C
//   +---+ +-----+
//   op(A)

namespace {

using Elem = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int kBlockM = 8;   // rows of C that a CTA computes
constexpr int kBlockN = 32;  // columns of C that a CTA computes
constexpr int kUnroll = 4;   // steps of k unrolled

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

constexpr bool kGuarded = false;  // tiles may reach beyond the matrices

}  // namespace

extern "C" __global__ void __launch_bounds__(kBlockM * kBlockN) gemm_naive_f32_nn_8x32x1_f553edf1(
    const Elem* __restrict__ matrix_a, int lda, const Elem* __restrict__ matrix_b, int ldb,
    Elem* __restrict__ matrix_c, int ldc, int m, int n, int k, Elem alpha, Elem beta)
{
    griddepcontrol_wait();

    // This thread's element of C. CTAs go along the rows of C first.
    const unsigned tiles_n = unsigned(n - 1) / kBlockN + 1;
    const Index row = Index(blockIdx.x / tiles_n) * kBlockM + threadIdx.y;
    const Index col = Index(blockIdx.x % tiles_n) * kBlockN + threadIdx.x;
    if (kGuarded && (row >= m || col >= n)) return;

    const Elem* a = matrix_a + row * lda;
    const Elem* b = matrix_b + col;

    Elem acc = 0;
    const int depth = alpha == Elem(0) ? 0 : k;
    #pragma unroll kUnroll
    for (int p = 0; p < depth; ++p) {
        acc += *a * *b;
        a += 1;
        b += Index(ldb);
    }

    Elem* c = matrix_c + row * ldc + col;
    *c = blend(acc, c, alpha, beta);
}

// pad_f32
// Copies matrices to larger buffers, with zeros around them, and C back.
// SPDX-License-Identifier: MIT

namespace {

using Elem = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

// ---- Instructions (PTX) -----------------------------------------------------------------------------------------

// Programmatic dependent launch (PDL): waits for what earlier kernels of the stream wrote.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
__device__ __forceinline__ void griddepcontrol_wait() {}
#endif

// ---- The kernel -------------------------------------------------------------------------------------------------

}  // namespace

// Copies the rows x cols matrix X into the larger P, with zeros around it, and likewise Y into Q where Q is not null:
// then every other CTA does. A warp takes a row at a time. Any number of CTAs, even with two matrices, of whole warps.
extern "C" __global__ void pad_f32(
    const Elem* __restrict__ matrix_x, int ldx, int rows_x, int cols_x,
    Elem* __restrict__ matrix_p, int ldp, int rows_p, int cols_p,
    const Elem* __restrict__ matrix_y, int ldy, int rows_y, int cols_y,
    Elem* __restrict__ matrix_q, int ldq, int rows_q, int cols_q)
{
    griddepcontrol_wait();
    const int matrices = matrix_q ? 2 : 1, warps = blockDim.x / 32;
    const bool second = blockIdx.x % matrices;
    const Elem* const from = second ? matrix_y : matrix_x;
    Elem* const to = second ? matrix_q : matrix_p;
    const Index ld_from = second ? ldy : ldx, ld_to = second ? ldq : ldp;
    const int rows = second ? rows_y : rows_x, cols = second ? cols_y : cols_x;
    const int all_rows = second ? rows_q : rows_p, all_cols = second ? cols_q : cols_p;
    const Index first = Index(blockIdx.x / matrices) * warps + threadIdx.x / 32;
    for (Index row = first; row < all_rows; row += Index(gridDim.x / matrices) * warps) {
        for (Index col = threadIdx.x % 32; col < all_cols; col += 32) {
            to[row * ld_to + col] = row < rows && col < cols ? from[row * ld_from + col] : Elem(0);
        }
    }
}
