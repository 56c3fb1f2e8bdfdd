// gemm_naive_f32_nn_8x32x1_3c31a9df
// One thread an element of C, straight from global memory.
//
//   C = alpha * op(A) * op(B) + beta * C in float; where alpha is 0, A and B are not read, where beta is 0, C is not
//
//   storage    row-major: A m x k, B k x n, C m x n; lda, ldb, ldc from row to row
//   sizes      any m, n > 0 and k >= 0; pointers and leading dimensions aligned to one element
//   launch     ceil(m / 8) * ceil(n / 32) CTAs along x, (32, 8, 1) threads, 0 bytes of static shared memory
//
// Written by tilewright from templates/naive.cu.jinja, digest 912b92fb7acbc5ea. To write it again:
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

using T = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int BLOCK_M = 8;   // rows of C that a CTA computes
constexpr int BLOCK_N = 32;  // columns of C that a CTA computes
constexpr int UNROLL  = 4;   // steps of k unrolled

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

extern "C" __global__ void __launch_bounds__(BLOCK_M * BLOCK_N) gemm_naive_f32_nn_8x32x1_3c31a9df(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, T* __restrict__ C, int ldc,
    int m, int n, int k, T alpha, T beta)
{
    griddepcontrol_wait();

    // This thread's element of C. CTAs go along the rows of C first.
    const unsigned tiles_n = unsigned(n - 1) / BLOCK_N + 1;
    const Index row = Index(blockIdx.x / tiles_n) * BLOCK_M + threadIdx.y;
    const Index col = Index(blockIdx.x % tiles_n) * BLOCK_N + threadIdx.x;
    if (GUARDED && (row >= m || col >= n)) return;

    const T* a = A + row * lda;
    const T* b = B + col;

    T acc = 0;
    const int depth = alpha == T(0) ? 0 : k;
    #pragma unroll UNROLL
    for (int p = 0; p < depth; ++p) {
        acc += *a * *b;
        a += 1;
        b += Index(ldb);
    }

    T* c = C + row * ldc + col;
    *c = blend(acc, c, alpha, beta);
}
