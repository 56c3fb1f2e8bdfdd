// gemm_tiled_f64_tt_16x16x16_489e88e4
// Square tiles of A and B in shared memory, one thread an element of C.
//
//   C = alpha * op(A) * op(B) + beta * C in double; where alpha is 0, A and B are not read, where beta is 0, C is not
//
//   storage    row-major: A k x m, read transposed, B n x k, read transposed, C m x n; lda, ldb, ldc from row to row
//   sizes      any m, n > 0 and k >= 0; pointers and leading dimensions aligned to one element
//   launch     ceil(m / 16) * ceil(n / 16) CTAs along x, (16, 16, 1) threads, 4096 bytes of static shared memory
//
// Written by tilewright from templates/tiled.cu.jinja, digest 1d08448d9e54b2a2. To write it again:
//   tilewright emit --dtype double --trans tt --config "tiled:16"
// SPDX-License-Identifier: MIT

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

using Elem = double;
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

extern "C" __global__ void __launch_bounds__(kTileWidth * kTileWidth) gemm_tiled_f64_tt_16x16x16_489e88e4(
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
    const int a_i = tx, a_p = ty;
    const int b_p = tx, b_j = ty;
    const bool a_inside = row0 + a_i < m;
    const bool b_inside = col0 + b_j < n;
    const Index a_step = lda;  // one step along k
    const Index b_step = 1;
    const Elem* a = matrix_a + row0 + a_i + a_p * a_step;
    const Elem* b = matrix_b + (col0 + b_j) * ldb + b_p * b_step;

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
