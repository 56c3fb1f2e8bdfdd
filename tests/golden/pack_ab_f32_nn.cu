// pack_ab_f32_nn
// Copies A and B to rows of one step of k, at multiples of 128 bytes.
// SPDX-License-Identifier: MIT

namespace {

using Elem = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int kPackTile    = 64;   // rows and columns that a CTA copies
constexpr int kPackThreads = 256;  // threads of such a CTA

// ---- Instructions (PTX) -----------------------------------------------------------------------------------------

// Programmatic dependent launch (PDL): waits for what earlier kernels of the stream wrote; lets the next one start.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }
#else
__device__ __forceinline__ void griddepcontrol_wait() {}
__device__ __forceinline__ void launch_dependents() {}
#endif

// ---- The kernel -------------------------------------------------------------------------------------------------

// A CTA's tile of one operand: kTranspose where stored rows of it run along k. `extent` is its other side.
template <bool kTranspose>
__device__ __forceinline__ void pack_tile(
    const Elem* matrix_x, int ld, Elem* copy, int copy_ld, int extent, int k,
    unsigned tile, Elem (*turned)[kPackTile + 1])
{
    constexpr int kLanes = 32, kRows = kPackThreads / kLanes;  // rows that the CTA copies at once
    const unsigned across = unsigned(copy_ld - 1) / kPackTile + 1;
    const int outer = int(tile % across) * kPackTile, p = int(tile / across) * kPackTile;
    const int lane = threadIdx.x % kLanes, row = threadIdx.x / kLanes;
    const int first_row = kTranspose ? outer : p, first_col = kTranspose ? p : outer;  // of the tile, as stored
    const int rows = kTranspose ? extent : k, cols = kTranspose ? k : extent;
    Elem part[kPackTile / kRows][kPackTile / kLanes];
    #pragma unroll
    for (int r = 0; r < kPackTile / kRows; ++r) {
        #pragma unroll
        for (int c = 0; c < kPackTile / kLanes; ++c) {
            const int i = first_row + row + r * kRows, j = first_col + lane + c * kLanes;
            part[r][c] = i < rows && j < cols ? matrix_x[Index(i) * ld + j] : Elem(0);
        }
    }
    if constexpr (kTranspose) {
        #pragma unroll
        for (int r = 0; r < kPackTile / kRows; ++r) {
            #pragma unroll
            for (int c = 0; c < kPackTile / kLanes; ++c) turned[row + r * kRows][lane + c * kLanes] = part[r][c];
        }
        __syncthreads();
    }
    #pragma unroll
    for (int r = 0; r < kPackTile / kRows; ++r) {
        #pragma unroll
        for (int c = 0; c < kPackTile / kLanes; ++c) {
            const int i = p + row + r * kRows, j = outer + lane + c * kLanes;
            const Elem value = kTranspose ? turned[lane + c * kLanes][row + r * kRows] : part[r][c];
            if (i < k && j < copy_ld) copy[Index(i) * copy_ld + j] = value;
        }
    }
}

}  // namespace

// Copies A and B to k rows, as the product reads them, with zeros from the end of the matrix to the
// end of the row. A CTA copies kPackTile x kPackTile elements.
extern "C" __global__ void __launch_bounds__(kPackThreads) pack_ab_f32_nn(
    const Elem* __restrict__ matrix_a, int lda, Elem* __restrict__ packed_a, int packed_lda,
    const Elem* __restrict__ matrix_b, int ldb, Elem* __restrict__ packed_b, int packed_ldb,
    int m, int n, int k)
{
    __shared__ Elem turned[kPackTile][kPackTile + 1];  // one spare column: a column is read without conflicts
    griddepcontrol_wait();
    launch_dependents();
    const unsigned tiles_a = (unsigned(packed_lda - 1) / kPackTile + 1) * (unsigned(k - 1) / kPackTile + 1);
    if (blockIdx.x >= tiles_a) {
        pack_tile<false>(matrix_b, ldb, packed_b, packed_ldb, n, k, blockIdx.x - tiles_a, turned);
        return;
    }
    pack_tile<true>(matrix_a, lda, packed_a, packed_lda, m, k, blockIdx.x, turned);
}
