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
