// gemm_naive_f32_nn_8x32x1_3c31a9df
// One thread an element of C, straight from global memory.
//
//   C = alpha * op(A) * op(B) + beta * C in float; where alpha is 0, A and B are not read, where beta is 0, C is not
//
//   storage    row-major: A m x k, B k x n, C m x n; lda, ldb, ldc from row to row
//   sizes      any m, n > 0 and k >= 0; pointers and leading dimensions aligned to one element
//   launch     ceil(m / 8) * ceil(n / 32) CTAs along x, (32, 8, 1) threads, 0 bytes of static shared memory
//
// Written by tilewright from templates/naive.cu.jinja, digest 068ce58e67bd66a4. To write it again:
//   tilewright emit --dtype float --trans nn --config "naive:8x32"
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

constexpr bool kGuarded = true;  // tiles may reach beyond the matrices

}  // namespace

extern "C" __global__ void __launch_bounds__(kBlockM * kBlockN) gemm_naive_f32_nn_8x32x1_3c31a9df(
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
