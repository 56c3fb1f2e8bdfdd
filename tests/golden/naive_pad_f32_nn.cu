// gemm_naive_f32_nn_bm8_bn32_epad_u4
// One thread an element of C, straight from global memory.
//
//   C = alpha * op(A) * op(B) + beta * C      float, every matrix row-major
//
//   op(A) is m x k; A is stored m x k, lda elements from row to row
//   op(B) is k x n; B is stored k x n, ldb elements from row to row
//   C is m x n, ldc elements from row to row; it is not read where beta is 0
//   A and B are not read where alpha is 0
//
//   sizes      m, n and k as padded: m to a multiple of 8, n of 32, k of 1;
//              A and B lie in buffers of the padded sizes, their frames zeroed by the kernel
//            gemm_naive_f32_nn_bm8_bn32_epad_u4_frame
//   alignment  every pointer and leading dimension to one element, 4 bytes
//   grid       ceil(m / 8) * ceil(n / 32) blocks along x
//   block      (32, 8, 1): 256 threads
//   shared     0 bytes, static
//
// Written by tilewright from templates/naive.cu.jinja, digest b01eab561e06394a. To write it again:
//   tilewright emit --config "naive:block_m=8,block_n=32,edge=pad,unroll=4" --dtype float --trans nn

namespace {

using T = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int BLOCK_M  = 8;      // rows of C a block computes
constexpr int BLOCK_N  = 32;     // columns of C a block computes
constexpr int UNROLL   = 4;      // steps of k unrolled
constexpr int THREADS  = 256;    // threads of a block
constexpr bool TRANS_A = false;  // A is stored k x m
constexpr bool TRANS_B = false;  // B is stored n x k
constexpr bool GUARD   = false;  // loads and stores outside the matrices are left out

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

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_naive_f32_nn_bm8_bn32_epad_u4(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, T* __restrict__ C, int ldc,
    int m, int n, int k, T alpha, T beta)
{
    wait_for_previous();

    // This thread's element of C. Blocks go along the rows of C first.
    const unsigned blocks_n = unsigned(n - 1) / BLOCK_N + 1;
    const Index row = Index(blockIdx.x / blocks_n) * BLOCK_M + threadIdx.y;
    const Index col = Index(blockIdx.x % blocks_n) * BLOCK_N + threadIdx.x;
    if (GUARD && (row >= m || col >= n)) return;

    const Index a_step = TRANS_A ? lda : 1;  // from op(A)(row, p) to op(A)(row, p + 1)
    const Index b_step = TRANS_B ? 1 : ldb;  // from op(B)(p, col) to op(B)(p + 1, col)
    const T* a = A + (TRANS_A ? row : row * lda);
    const T* b = B + (TRANS_B ? col * ldb : col);

    T sum = 0;
    const int depth = alpha == T(0) ? 0 : k;
    #pragma unroll UNROLL
    for (int p = 0; p < depth; ++p) {
        sum += *a * *b;
        a += a_step;
        b += b_step;
    }

    T* c = C + row * ldc + col;
    *c = blend(sum, c, alpha, beta);
}

// Zeroes what lies outside the rows x cols matrix in its padded buffer X, and touches nothing inside: the
// strip to the right of the matrix first, then the rows below it. Any grid and block along x.
extern "C" __global__ void gemm_naive_f32_nn_bm8_bn32_epad_u4_frame(
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
