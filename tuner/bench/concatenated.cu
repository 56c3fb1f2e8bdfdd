// A product of floats as one product of halves or bfloat16s that is several times as long along k: what goes before and
// after it. An element is a sum of TERMS 16-bit numbers; PRODUCTS of their products count, the smallest first, and product t
// is op(A)'s term TERM_OF_A[t] times op(B)'s term TERM_OF_B[t]. With halves, rows of op(A) and columns of op(B) are
// scaled by powers of two first.
//
// Given by name before this text: TERMS, PRODUCTS, TERMS_OF_A and TERMS_OF_B (lists), HALF (1 for halves, 0 for bfloat16s),
// A_BY_ROW and B_BY_ROW (whether a row of op(A), a column of op(B), is a row as stored).

using Term = unsigned short;
using Index = long long;

constexpr int ROWS    = 64;   // of a CTA's tile of a stored matrix
constexpr int COLS    = 128;  // 4 for each lane of a warp
constexpr int THREADS = 256;
constexpr int WARPS   = THREADS / 32;
constexpr int TOP     = 14;   // the largest magnitude of a row becomes 2^14 to 2^15: halves end at 2^16

// ---- Instructions (PTX) -----------------------------------------------------------------------------------------

// The nearest half or bfloat16 to a float, and the float that a half is: its bits.
__device__ __forceinline__ unsigned short to_f16(float x)
{
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
__device__ __forceinline__ unsigned short to_bf16(float x)
{
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
__device__ __forceinline__ float from_f16(unsigned short bits)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

// The kernels are launched so that they may start while the one before them runs (PDL): waits for what came before.
__device__ __forceinline__ void griddepcontrol_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- The kernel -------------------------------------------------------------------------------------------------

#if HALF
__device__ __forceinline__ Term to_term(float x) { return to_f16(x); }
__device__ __forceinline__ float from_term(Term bits) { return from_f16(bits); }
#else
__device__ __forceinline__ Term to_term(float x) { return to_bf16(x); }
__device__ __forceinline__ float from_term(Term bits) { return __uint_as_float(unsigned(bits) << 16); }
#endif

// A stored matrix, and the CTA's tile of it.
struct Tile {
    const float* X;
    Index ld;
    int rows, cols, row0, col0;
    bool vectors;  // rows begin at multiples of 16 bytes

    __device__ __forceinline__ Tile(const float* X, int ld, int rows, int cols, int tile)
        : X(X), ld(ld), rows(rows), cols(cols), row0(tile / ((cols + COLS - 1) / COLS) * ROWS),
          col0(tile % ((cols + COLS - 1) / COLS) * COLS),
          vectors(ld % 4 == 0 && reinterpret_cast<size_t>(X) % 16 == 0)
    {
    }

    // Elements col to col + 3 of a row; 0 outside the matrix.
    __device__ __forceinline__ float4 four(int row, int col) const
    {
        const float* const from = X + row * ld + col;
        if (row >= rows || col >= cols) return make_float4(0, 0, 0, 0);
        if (vectors && col + 4 <= cols) return *reinterpret_cast<const float4*>(from);
        return make_float4(from[0], col + 1 < cols ? from[1] : 0, col + 2 < cols ? from[2] : 0,
                           col + 3 < cols ? from[3] : 0);
    }
};

__device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// The largest magnitudes of the tile's rows or columns, as bits, which are ordered like the numbers.
template <bool BY_ROW>
__device__ __forceinline__ void largest_of(const Tile& tile, unsigned* most, unsigned (*shared)[COLS])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, col = tile.col0 + 4 * lane;
    unsigned of_col[4] = {0, 0, 0, 0};
    #pragma unroll
    for (int r = 0; r < ROWS / WARPS; ++r) {
        const int row = tile.row0 + r * WARPS + warp;
        const float4 x = tile.four(row, col);
        const unsigned bits[4] = {magnitude(x.x), magnitude(x.y), magnitude(x.z), magnitude(x.w)};
        if constexpr (BY_ROW) {
            unsigned found = max(max(bits[0], bits[1]), max(bits[2], bits[3]));
            #pragma unroll
            for (int step = 16; step; step /= 2) found = max(found, __shfl_xor_sync(~0u, found, step));
            if (lane == 0 && row < tile.rows) atomicMax(most + row, found);
        } else {
            #pragma unroll
            for (int e = 0; e < 4; ++e) of_col[e] = max(of_col[e], bits[e]);
        }
    }
    if constexpr (!BY_ROW) {
        #pragma unroll
        for (int e = 0; e < 4; ++e) shared[warp][4 * lane + e] = of_col[e];
        __syncthreads();
        const int own = threadIdx.x;
        if (own < COLS && tile.col0 + own < tile.cols) {
            unsigned found = 0;
            for (int w = 0; w < WARPS; ++w) found = max(found, shared[w][own]);
            atomicMax(most + tile.col0 + own, found);
        }
    }
}

// Exponent of the power of two that a row with this largest magnitude is multiplied by.
__device__ __forceinline__ int exponent_of(unsigned most)
{
    return most ? TOP + 127 - int(max(most >> 23, 1u)) : 0;
}

__device__ __forceinline__ float power_of_two(int e) { return __uint_as_float(unsigned(e + 127) << 23); }

// Splits the tile; copy t of its terms is t * stride elements behind the first.
template <bool BY_ROW>
__device__ __forceinline__ void split(
    const Tile& tile, const unsigned* most, Term* out, int out_ld, Index stride, const int (&term_of)[PRODUCTS])
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, col = tile.col0 + 4 * lane;
    #pragma unroll
    for (int r = 0; r < ROWS / WARPS; ++r) {
        const int row = tile.row0 + r * WARPS + warp;
        if (row >= tile.rows || col >= tile.cols) continue;
        const float4 x = tile.four(row, col);
        float rest[4] = {x.x, x.y, x.z, x.w};
        struct alignas(8) Four { Term x[4]; } terms[TERMS];
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
#if HALF
            // In two steps, as one power may be past the range of floats.
            const int power = exponent_of(BY_ROW ? most[row] : col + e < tile.cols ? most[col + e] : 0);
            rest[e] *= power_of_two(power / 2);
            rest[e] *= power_of_two(power - power / 2);
#endif
            #pragma unroll
            for (int term = 0; term < TERMS; ++term) {
                terms[term].x[e] = to_term(rest[e]);
                rest[e] -= from_term(terms[term].x[e]);
            }
        }
        #pragma unroll
        for (int t = 0; t < PRODUCTS; ++t)
            *reinterpret_cast<Four*>(out + t * stride + Index(row) * out_ld + col) = terms[term_of[t]];
    }
}

__device__ __forceinline__ int tiles_of(int rows, int cols)
{
    return (rows + ROWS - 1) / ROWS * ((cols + COLS - 1) / COLS);
}

// The largest magnitudes of rows of op(A) and columns of op(B); `most` is 0 before. A CTA a tile, those of A first.
extern "C" __global__ void __launch_bounds__(THREADS) concatenated_largest(
    const float* __restrict__ A, int lda, int rows_a, int cols_a, unsigned* __restrict__ most_a,
    const float* __restrict__ B, int ldb, int rows_b, int cols_b, unsigned* __restrict__ most_b)
{
    __shared__ unsigned shared[WARPS][COLS];
    griddepcontrol_wait();
    const int of_a = tiles_of(rows_a, cols_a), tile = blockIdx.x;
    if (tile < of_a)
        largest_of<A_BY_ROW>(Tile(A, lda, rows_a, cols_a, tile), most_a, shared);
    else
        largest_of<B_BY_ROW>(Tile(B, ldb, rows_b, cols_b, tile - of_a), most_b, shared);
}

// Writes the copies of the terms of both matrices. A CTA a tile, those of A first.
extern "C" __global__ void __launch_bounds__(THREADS) concatenated_split(
    const float* __restrict__ A, int lda, int rows_a, int cols_a, const unsigned* __restrict__ most_a,
    Term* __restrict__ out_a, int out_lda, Index stride_a,
    const float* __restrict__ B, int ldb, int rows_b, int cols_b, const unsigned* __restrict__ most_b,
    Term* __restrict__ out_b, int out_ldb, Index stride_b)
{
    constexpr int TERM_OF_A[PRODUCTS] = {TERMS_OF_A}, TERM_OF_B[PRODUCTS] = {TERMS_OF_B};
    griddepcontrol_wait();
    const int of_a = tiles_of(rows_a, cols_a), tile = blockIdx.x;
    if (tile < of_a)
        split<A_BY_ROW>(Tile(A, lda, rows_a, cols_a, tile), most_a, out_a, out_lda, stride_a, TERM_OF_A);
    else
        split<B_BY_ROW>(Tile(B, ldb, rows_b, cols_b, tile - of_a), most_b, out_b, out_ldb, stride_b, TERM_OF_B);
}

// C = alpha * product with the scales taken off + beta * C; `product` may be C itself. A CTA a tile.
extern "C" __global__ void __launch_bounds__(THREADS) concatenated_finish(
    const float* product, int product_ld, float* C, int ldc, int m, int n, const unsigned* __restrict__ most_a,
    const unsigned* __restrict__ most_b, float alpha, float beta)
{
    griddepcontrol_wait();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Tile tile(product, product_ld, m, n, blockIdx.x);
    const bool vectors = tile.vectors && ldc % 4 == 0 && reinterpret_cast<size_t>(C) % 16 == 0;
    const int col = tile.col0 + 4 * lane;
    if (col >= n) return;
    int powers[4];
    #pragma unroll
    for (int e = 0; e < 4; ++e) powers[e] = exponent_of(most_b[min(col + e, n - 1)]);
    #pragma unroll
    for (int r = 0; r < ROWS / WARPS; ++r) {
        const int row = tile.row0 + r * WARPS + warp;
        if (row >= m) continue;
        const float4 x = tile.four(row, col);
        float found[4] = {x.x, x.y, x.z, x.w};
        float* const to = C + Index(row) * ldc + col;
        const int power = exponent_of(most_a[row]);
        #pragma unroll
        for (int e = 0; e < 4; ++e) {
            found[e] = ldexpf(alpha * found[e], -power - powers[e]);
            if (beta != 0 && col + e < n) found[e] += beta * to[e];
        }
        if (vectors && col + 4 <= n) {
            *reinterpret_cast<float4*>(to) = make_float4(found[0], found[1], found[2], found[3]);
        } else {
            #pragma unroll
            for (int e = 0; e < 4; ++e)
                if (col + e < n) to[e] = found[e];
        }
    }
}
