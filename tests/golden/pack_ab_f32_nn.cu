// pack_ab_f32_nn
// Copies A and B to rows of one step of k, at multiples of 128 bytes.
// SPDX-License-Identifier: MIT

namespace {

using T = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int PACK_TILE    = 64;   // rows and columns that a CTA copies
constexpr int PACK_THREADS = 256;  // threads of such a CTA

// ---- Instructions (PTX) -----------------------------------------------------------------------------------------

// Programmatic dependent launch (PDL): waits for what earlier kernels of the stream wrote; lets the next one start.
__device__ __forceinline__ void griddepcontrol_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void launch_dependents()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// ---- The kernel -------------------------------------------------------------------------------------------------

// A CTA's tile of one operand: TRANSPOSE where stored rows of it run along k. `extent` is its other side.
template <bool TRANSPOSE>
__device__ __forceinline__ void pack_tile(
    const T* X, int ld, T* copy, int copy_ld, int extent, int k, unsigned tile, T (*turned)[PACK_TILE + 1])
{
    constexpr int LANES = 32, ROWS = PACK_THREADS / LANES;  // rows that the CTA copies at once
    const unsigned across = unsigned(copy_ld - 1) / PACK_TILE + 1;
    const int outer = int(tile % across) * PACK_TILE, p = int(tile / across) * PACK_TILE;
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
    const int first_row = TRANSPOSE ? outer : p, first_col = TRANSPOSE ? p : outer;  // of the tile, as stored
    const int rows = TRANSPOSE ? extent : k, cols = TRANSPOSE ? k : extent;
    T part[PACK_TILE / ROWS][PACK_TILE / LANES];
    #pragma unroll
    for (int r = 0; r < PACK_TILE / ROWS; ++r) {
        #pragma unroll
        for (int c = 0; c < PACK_TILE / LANES; ++c) {
            const int i = first_row + row + r * ROWS, j = first_col + lane + c * LANES;
            part[r][c] = i < rows && j < cols ? X[Index(i) * ld + j] : T(0);
        }
    }
    if constexpr (TRANSPOSE) {
        #pragma unroll
        for (int r = 0; r < PACK_TILE / ROWS; ++r) {
            #pragma unroll
            for (int c = 0; c < PACK_TILE / LANES; ++c) turned[row + r * ROWS][lane + c * LANES] = part[r][c];
        }
        __syncthreads();
    }
    #pragma unroll
    for (int r = 0; r < PACK_TILE / ROWS; ++r) {
        #pragma unroll
        for (int c = 0; c < PACK_TILE / LANES; ++c) {
            const int i = p + row + r * ROWS, j = outer + lane + c * LANES;
            const T value = TRANSPOSE ? turned[lane + c * LANES][row + r * ROWS] : part[r][c];
            if (i < k && j < copy_ld) copy[Index(i) * copy_ld + j] = value;
        }
    }
}

}  // namespace

// Copies A and B to k rows, as the product reads them, with zeros from the end of the matrix to the
// end of the row. A CTA copies PACK_TILE x PACK_TILE elements.
extern "C" __global__ void __launch_bounds__(PACK_THREADS) pack_ab_f32_nn(
    const T* __restrict__ A, int lda, T* __restrict__ packed_a, int packed_lda,
    const T* __restrict__ B, int ldb, T* __restrict__ packed_b, int packed_ldb,
    int m, int n, int k)
{
    __shared__ T turned[PACK_TILE][PACK_TILE + 1];  // one spare column: a column is read without conflicts
    griddepcontrol_wait();
    launch_dependents();
    const unsigned tiles_a = (unsigned(packed_lda - 1) / PACK_TILE + 1) * (unsigned(k - 1) / PACK_TILE + 1);
    if (blockIdx.x >= tiles_a) {
        pack_tile<false>(B, ldb, packed_b, packed_ldb, n, k, blockIdx.x - tiles_a, turned);
        return;
    }
    pack_tile<true>(A, lda, packed_a, packed_lda, m, k, blockIdx.x, turned);
}
