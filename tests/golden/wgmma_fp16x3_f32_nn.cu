// gemm_wgmma_f32_nn_64x64x64_a62cab1f
// Float by products of half-precision limbs on the tensor cores, wgmma.
//
//   C = alpha * op(A) * op(B) + beta * C in float; where alpha is 0, A and B are not read, where beta is 0, C is not
//
//   storage    row-major: A m x k, B k x n, C m x n; lda, ldb, ldc from row to row
//   accuracy   normwise
//   limbs      the kernel gemm_wgmma_f32_nn_64x64x64_a62cab1f_limbs comes first: it writes each element of A and B
//              as a sum of 2 numbers of 16 bits to memory that this one is given, 4 bytes an element with m, n
//              and k rounded up to 64, 64, 64, and 4 bytes for each row of op(A) and column of op(B)
//   sizes      any m, n > 0 and k >= 0; pointers and leading dimensions aligned to one element
//   launch     ceil(m / 64) * ceil(n / 64) CTAs along x,
//              (256, 1, 1) threads, 65568 bytes of shared memory, given at launch
//
// Written by tilewright from templates/wgmma.cu.jinja, digest 6d744bc0364b91ec. To write it again:
//   tilewright emit --dtype float --trans nn --accuracy normwise --config "wgmma:64x64,stages=2"
// SPDX-License-Identifier: MIT

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#error "wgmma needs sm_90 or newer"
#endif

//                   BLOCK_N          Each CTA computes a tile of C, each warpgroup 64 rows of it, by instructions
//                 +---------+        that multiply 64 x 16 by 16 x BLOCK_N limbs, all in shared memory.
//         BLOCK_K |         | op(B)
//                 +---------+        A warpgroup of its own copies tiles of all limbs to STAGES buffers, each a run
//       BLOCK_K        v             of memory. Each limb of a tile is used for all its products, the smallest
//       +-----+   +---------+        first over all of a promotion interval.
// BLOCK |     | > |warpgroup|  C
//    _M |     |   +---------+        Every PROMOTE steps of k what the tensor cores have added up is added to sums
//       |     |   |warpgroup|        in float: they cut their own sums off, which grows with the sum. Meanwhile
//       +-----+   +---------+        they work for the other warpgroups.
//        op(A)                       A row or column that limbs cannot hold is multiplied in float, as it is.

namespace {

using T = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int BLOCK_M    = 64;     // rows of C that a CTA computes
constexpr int BLOCK_N    = 64;     // columns of C that a CTA computes
constexpr int BLOCK_K    = 64;     // steps of k that a tile covers: 128 bytes of a limb
constexpr int LIMBS      = 2;      // limbs of an element: halves
constexpr int PROMOTE    = 64;     // steps of k that the tensor cores add up
constexpr int STAGES     = 2;      // tiles that shared memory holds at a time
constexpr int VEC_C      = 1;      // elements of C that one store moves
constexpr int SMEM_BYTES = 65568;  // shared memory of a CTA

constexpr int WARP_M   = 16;                   // rows of C that a warp computes
constexpr int WARP_N   = BLOCK_N;              // columns of C that a warp computes
constexpr int THREADS  = 2 * BLOCK_M;          // threads that multiply, a warpgroup for 64 rows
constexpr int THREAD_N = BLOCK_N / 4;          // columns of C that a thread holds: two of every 8
constexpr int THREAD_M = 2;                    // rows of C that a thread holds, 8 apart
constexpr int ACC      = THREAD_M * THREAD_N;  // elements of C that a thread holds

static_assert(BLOCK_M % 64 == 0 && BLOCK_N % 8 == 0, "a CTA's tile is made of whole instructions");
static_assert(BLOCK_K % PROMOTE == 0 && PROMOTE % 16 == 0, "sums are promoted after whole steps");

// Programmatic dependent launch (PDL): waits for what earlier kernels of the stream wrote; lets the next one start.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }
#else
__device__ __forceinline__ void griddepcontrol_wait() {}
__device__ __forceinline__ void launch_dependents() {}
#endif

template <int COUNT>
struct alignas(COUNT * sizeof(T)) Vector { T x[COUNT]; };

// An mbarrier in shared memory. Each of its phases takes some arrivals, and the bytes that those announce.
struct Barrier {
    unsigned long long state;

#ifndef TILEWRIGHT_HOST
    __device__ __forceinline__ unsigned address() const { return unsigned(__cvta_generic_to_shared(this)); }
#endif

    __device__ __forceinline__ void init(unsigned count)
    {
#ifdef TILEWRIGHT_HOST
        tilewright_host::init_barrier(this, count);
#else
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address()), "r"(count) : "memory");
#endif
    }

    __device__ __forceinline__ void arrive()
    {
#ifdef TILEWRIGHT_HOST
        tilewright_host::arrive_barrier(this);
#else
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(address()) : "memory");
#endif
    }

    // Arrives, and makes the phase wait for so many bytes more.
    __device__ __forceinline__ void expect(unsigned bytes)
    {
#ifdef TILEWRIGHT_HOST
        tilewright_host::arrive_barrier(this, bytes);
#else
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
#endif
    }

    // Waits for the end of the phase of this parity, which is 0 for the first. What is before the first counts as
    // ended, with parity 1.
    __device__ __forceinline__ void wait(unsigned parity)
    {
#ifdef TILEWRIGHT_HOST
        tilewright_host::wait_barrier(this, parity);
#else
        unsigned ended = 0;
        while (!ended) {
            asm volatile("{ .reg .pred ended;\n"
                         "mbarrier.try_wait.parity.shared.b64 ended, [%1], %2;\n"
                         "selp.u32 %0, 1, 0, ended; }"
                         : "=r"(ended)
                         : "r"(address()), "r"(parity)
                         : "memory");
        }
#endif
    }
};

// Starts to copy so many bytes, a multiple of 16, from global to shared memory. They arrive at the barrier.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, unsigned bytes, Barrier& barrier)
{
#ifdef TILEWRIGHT_HOST
    tilewright_host::copy_bulk(to, from, bytes, &barrier);
#else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(unsigned(__cvta_generic_to_shared(to))), "l"(__cvta_generic_to_global(from)), "r"(bytes),
                 "r"(barrier.address())
                 : "memory");
#endif
}

// Each element of A and B is a sum of LIMBS limbs, with a power of two for each row of op(A) and column of op(B). All
// of one limb come before those of the next; 64 steps of k of all rows of op(A), or columns of op(B), before the next
// 64. These 128 bytes of a row lie side by side, in pieces of 16 bytes, of which piece i of row r is at i ^ (r % 8): a
// tile is one run of memory, as the tensor cores read it. Exponents of the rows, then of the columns, follow the limbs.
// All sizes are whole tiles: past the matrix limbs are 0.
using Limb = unsigned short;  // the bits of a half or bfloat16
constexpr int SPECIAL = 1 << 20;  // the exponent of a row or column that limbs cannot hold

struct Limbs {
    Index rows, cols, depth;  // m, n and k rounded up
    char* memory;

    __device__ __forceinline__ Limbs(char* memory, int m, int n, int k)
        : rows((Index(m) + BLOCK_M - 1) / BLOCK_M * BLOCK_M), cols((Index(n) + BLOCK_N - 1) / BLOCK_N * BLOCK_N),
          depth((Index(k) + BLOCK_K - 1) / BLOCK_K * BLOCK_K), memory(memory)
    {
    }

    // Where step p of row i lies, of `rows` rows of `depth` steps.
    static __device__ __forceinline__ Index place(Index i, int p, Index rows, Index depth)
    {
        return (p / 64 * rows + i) * 64 + (p % 64 / 8 ^ int(i % 8)) * 8 + p % 8;
    }

    __device__ __forceinline__ Limb* a() const { return reinterpret_cast<Limb*>(memory); }
    __device__ __forceinline__ Limb* b() const { return a() + LIMBS * rows * depth; }
    __device__ __forceinline__ int* row_exponents() const { return reinterpret_cast<int*>(b() + LIMBS * cols * depth); }
    __device__ __forceinline__ int* col_exponents() const { return row_exponents() + rows; }
};

constexpr int SIZE_A = BLOCK_M * BLOCK_K, SIZE_B = BLOCK_N * BLOCK_K;  // elements of a limb of a tile
constexpr int STAGE = LIMBS * (SIZE_A + SIZE_B);  // of a stage: limbs of a tile of op(A), then those of op(B)
static_assert(STAGES * (STAGE * sizeof(Limb) + 2 * sizeof(Barrier)) <= SMEM_BYTES, "the stages fit");

// What tells wgmma where rows of 128 bytes lie, with their pieces swapped, 1024 bytes from one group of 8 rows to the
// next. 16 steps of k begin 32 bytes behind the 16 before them.
[[maybe_unused]] __device__ __forceinline__ unsigned long long descriptor(const Limb* rows)
{
    constexpr unsigned long long SWIZZLE_128B = 1ull << 62, GROUPS_APART = (1024ull >> 4) << 32, UNUSED = 1ull << 16;
    return SWIZZLE_128B | GROUPS_APART | UNUSED | (unsigned(__cvta_generic_to_shared(rows)) & 0x3ffff) >> 4;
}

// Registers and shared memory are as the instructions that follow expect them.
__device__ __forceinline__ void wgmma_fence()
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // else for sm_90, which lacks it, or for the host
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Starts to add to 64 x BLOCK_N sums, or with `fresh` to 0, the product of 64 rows of op(A) and BLOCK_N columns of
// op(B) over 16 steps of k. A warpgroup does it together: lane 4g + t of warp w holds rows 16w + g and 16w + g + 8 of
// C, of each 8 columns 2t and 2t + 1.
__device__ __forceinline__ void wgmma(T (&acc)[ACC], const Limb* a, const Limb* b, bool fresh)
{
#ifdef TILEWRIGHT_HOST
    tilewright_host::wgmma_start<true, BLOCK_N>(acc, a, b, fresh);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile(
        "{ .reg .pred add;\n"
        "setp.ne.b32 add, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        " %0, %1, %2, %3, %4, %5, %6, %7,"
        " %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23,"
        " %24, %25, %26, %27, %28, %29, %30, %31 },"
        " %32, %33, add, 1, 1, 0, 0; }"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[16]), "+f"(acc[17]),
 "+f"(acc[2]), "+f"(acc[3]), "+f"(acc[18]), "+f"(acc[19]),
 "+f"(acc[4]), "+f"(acc[5]), "+f"(acc[20]), "+f"(acc[21]),
 "+f"(acc[6]), "+f"(acc[7]), "+f"(acc[22]), "+f"(acc[23]),
 "+f"(acc[8]), "+f"(acc[9]), "+f"(acc[24]), "+f"(acc[25]),
 "+f"(acc[10]), "+f"(acc[11]), "+f"(acc[26]), "+f"(acc[27]),
 "+f"(acc[12]), "+f"(acc[13]), "+f"(acc[28]), "+f"(acc[29]),
 "+f"(acc[14]), "+f"(acc[15]), "+f"(acc[30]), "+f"(acc[31])
: "l"(descriptor(a)), "l"(descriptor(b)), "r"(int(!fresh)));
#else
    __trap();  // compiled for sm_90: only sm_90a has it
#endif
}

// Waits for all that this warpgroup has started.
__device__ __forceinline__ void wait_wgmma(T (&acc)[ACC])
{
#ifdef TILEWRIGHT_HOST
    tilewright_host::wgmma_wait();
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
    #pragma unroll
    for (int e = 0; e < ACC; ++e) asm volatile("" : "+f"(acc[e])::"memory");  // not read before
#endif
}

// Which lane of a warp a lane is along the rows of C.
__device__ __forceinline__ int lane_m(int lane) { return lane / 4; }

// Where in the warp tile the i-th row of lanes `along_m` is, and a lane's j-th column.
__device__ __forceinline__ int row_of(int i, int along_m) { return along_m + 8 * i; }
__device__ __forceinline__ int col_of(int j, int lane) { return lane % 4 * 2 + j / 2 * 8 + j % 2; }

// One thread copies the tiles of k of the CTA's tile of C.
__device__ __forceinline__ void produce(
    Limb* stages, Barrier* filled, Barrier* emptied, const Limbs& from, Index row0, Index col0, int tiles)
{
    int stage = 0;
    unsigned parity = 1;
    #pragma unroll 1
    for (int each = 0; each < tiles; ++each) {
        emptied[stage].wait(parity);  // by all warps
        filled[stage].expect(STAGE * sizeof(Limb));
        Limb* to = stages + stage * STAGE;
        #pragma unroll
        for (int limb = 0; limb < LIMBS; ++limb, to += SIZE_A) {
            const Index at = limb * from.rows * from.depth + Limbs::place(row0, each * BLOCK_K, from.rows, from.depth);
            copy_bulk(to, from.a() + at, SIZE_A * sizeof(Limb), filled[stage]);
        }
        #pragma unroll
        for (int limb = 0; limb < LIMBS; ++limb, to += SIZE_B) {
            const Index at = limb * from.cols * from.depth + Limbs::place(col0, each * BLOCK_K, from.cols, from.depth);
            copy_bulk(to, from.b() + at, SIZE_B * sizeof(Limb), filled[stage]);
        }
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
}

// A warp tile from A and B as they are, every product and sum in float: for infinities, NaN and what else limbs cannot
// hold. Slow, and rare.
__device__ __forceinline__ void multiply_plainly(
    T (&sums)[ACC], const T* A, int lda, const T* B, int ldb, Index row, Index col, int m, int n, int depth, int lane)
{
    const T* a[THREAD_M];
    #pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        const Index at = min(row + row_of(i, lane_m(lane)), Index(m - 1));  // what lies outside is not stored
        a[i] = A + at * lda;
    }
    const int last = int(min(n - 1 - col, Index(WARP_N - 1)));  // column of the warp tile; negative where it has none
    const T* b = B + col;
    #pragma unroll 1
    for (int p = 0; p < depth; ++p) {
        T x[THREAD_M];
        #pragma unroll
        for (int i = 0; i < THREAD_M; ++i) {
            x[i] = *a[i];
            a[i] += 1;
        }
        #pragma unroll
        for (int j = 0; j < THREAD_N; ++j) {
            const T y = b[min(col_of(j, lane), last)];
            #pragma unroll
            for (int i = 0; i < THREAD_M; ++i) sums[i * THREAD_N + j] += x[i] * y;
        }
        b += ldb;
    }
}

// Takes the powers of two off that rows of op(A) and columns of op(B) were scaled by: exact, or rounded once where the
// result is subnormal.
__device__ __forceinline__ void unscale(T (&sums)[ACC], const int* row_exponents, const int* col_exponents, int lane)
{
    #pragma unroll
    for (int i = 0; i < THREAD_M; ++i) {
        const int of_row = row_exponents[row_of(i, lane_m(lane))];
        #pragma unroll
        for (int j = 0; j < THREAD_N; ++j) {
            const int e = -(of_row + col_exponents[col_of(j, lane)]);
            T& sum = sums[i * THREAD_N + j];
            if (-126 <= e && e <= 127) sum *= __uint_as_float(unsigned(e + 127) << 23);
            else sum = ldexpf(sum, e);
        }
    }
}

// Writes accumulators of a thread, VEC_C elements of a row of C at a time: those from `first` on, row after row.
// `c` is where the warp tile begins; `rows` and `cols` are left of C from there.
__device__ __forceinline__ void store(
    T (&out)[ACC], int first, T* c, int ldc, int rows, int cols, int lane, T alpha, T beta)
{
    // Where the vector belongs that begins with out[e]; null outside of C.
    const auto place_of = [&](int e) -> Vector<VEC_C>* {
        const int row = row_of((first + e) / THREAD_N, lane_m(lane));
        const int col = col_of((first + e) % THREAD_N, lane);
        if (row >= rows || col >= cols) return nullptr;
        return reinterpret_cast<Vector<VEC_C>*>(c + Index(row) * ldc + col);
    };
    #pragma unroll
    for (int e = 0; e < ACC; ++e) out[e] *= alpha;
    // All is read before any of it is written, else each read would wait for the write before it; but not all at a
    // time, which would take as many registers again.
    if (beta != T(0)) {
        #pragma unroll
        for (int e = 0; e < ACC; e += VEC_C) {
            if (const Vector<VEC_C>* place = place_of(e)) {
                const Vector<VEC_C> old = *place;
                #pragma unroll
                for (int v = 0; v < VEC_C; ++v) out[e + v] += beta * old.x[v];
            }
            if ((e + VEC_C) % THREAD_N == 0) asm volatile("" ::: "memory");  // a row's reads at a time
        }
    }
    #pragma unroll
    for (int e = 0; e < ACC; e += VEC_C) {
        if (Vector<VEC_C>* place = place_of(e)) {
            Vector<VEC_C> value;
            #pragma unroll
            for (int v = 0; v < VEC_C; ++v) value.x[v] = out[e + v];
            *place = value;
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS + 128, 1) gemm_wgmma_f32_nn_64x64x64_a62cab1f(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, T* __restrict__ C, int ldc,
    int m, int n, int k, T alpha, T beta, char* limbs)
{
    extern __shared__ __align__(1024) T shared[];
    Limb* const stages = reinterpret_cast<Limb*>(shared);
    Barrier* const filled = reinterpret_cast<Barrier*>(stages + STAGES * STAGE);
    Barrier* const emptied = filled + STAGES;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_m = warp * WARP_M, warp_n = 0;
    const unsigned tiles_n = unsigned(n - 1) / BLOCK_N + 1;
    const unsigned tile_m = blockIdx.x / tiles_n, tile_n = blockIdx.x % tiles_n;
    const Index row0 = Index(tile_m) * BLOCK_M, col0 = Index(tile_n) * BLOCK_N;
    const int depth = alpha == T(0) ? 0 : k;  // A and B are not read where alpha is 0
    const int tiles = int((unsigned(depth) + BLOCK_K - 1) / BLOCK_K);

    const Limbs from(limbs, m, n, k);
    const int *const row_exponents = from.row_exponents() + row0, *const col_exponents = from.col_exponents() + col0;
    if (threadIdx.x == 0) {
        #pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) {
            filled[stage].init(1);
            emptied[stage].init(THREADS / 32);
        }
#ifndef TILEWRIGHT_HOST
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");  // the copies see them, and
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");        // threads after the CTA's barrier
#endif
    }
    griddepcontrol_wait();
    launch_dependents();

    // Do limbs hold all rows and columns of the tile?
    bool special = false;
    for (int each = threadIdx.x; depth > 0 && each < BLOCK_M + BLOCK_N; each += THREADS + 128) {
        special |= (each < BLOCK_M ? row_exponents[each] : col_exponents[each - BLOCK_M]) == SPECIAL;
    }
    special = __syncthreads_or(special);  // and the barriers are ready

    if (threadIdx.x >= THREADS) {
        if (threadIdx.x == THREADS && !special) produce(stages, filled, emptied, from, row0, col0, tiles);
    } else {
        T sums[ACC] = {};
        if (special) {
            multiply_plainly(sums, A, lda, B, ldb, row0 + warp_m, col0, m, n, depth, lane);
        } else {
            T acc[ACC];
            const int first_row = warp / 4 * 64;  // of the warpgroup
            int stage = 0;
            unsigned parity = 0;
            #pragma unroll 1
            for (int each = 0; each < tiles; ++each) {
                filled[stage].wait(parity);
                const Limb* const a = stages + stage * STAGE + first_row * BLOCK_K;
                const Limb* const b = stages + stage * STAGE + LIMBS * SIZE_A;
                #pragma unroll
                for (int begin = 0; begin < BLOCK_K; begin += PROMOTE) {
                    wgmma_fence();
                    // The smallest products first: what they add would be cut off beside the largest.
                    #pragma unroll
                    for (int order = LIMBS - 1; order >= 0; --order) {
                        #pragma unroll
                        for (int limb = 0; limb <= order; ++limb) {
                            #pragma unroll
                            for (int p = begin; p < begin + PROMOTE; p += 16) {
                                const bool fresh = order == LIMBS - 1 && limb == 0 && p == begin;
                                wgmma(acc, a + limb * SIZE_A + p, b + (order - limb) * SIZE_B + p, fresh);
                            }
                        }
                    }
                    wait_wgmma(acc);
                    if (begin + PROMOTE == BLOCK_K && lane == 0) emptied[stage].arrive();
                    #pragma unroll
                    for (int e = 0; e < ACC; ++e) sums[e] += acc[e];
                }
                if (++stage == STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            }
            if (depth > 0) unscale(sums, row_exponents + warp_m, col_exponents, lane);
        }

        const Index row = row0 + warp_m, col = col0 + warp_n;
        const int rows = int(min(m - row, Index(WARP_M))), cols = int(min(n - col, Index(WARP_N)));
        store(sums, 0, C + row * ldc + col, ldc, rows, cols, lane, alpha, beta);
    }
}

namespace {

constexpr int LIMB_ROWS    = 16;   // rows of op(A) or columns of op(B) that a CTA splits
constexpr int LIMB_THREADS = 256;  // threads of such a CTA
constexpr int LIMB_K       = 128;  // steps of k that it splits at a time
constexpr int LIMB_GROUP   = LIMB_THREADS / LIMB_ROWS;  // threads of a row

// The nearest number of the limb's type, and back.
__device__ __forceinline__ Limb to_limb(T x)
{
#ifdef TILEWRIGHT_HOST
    return tilewright_host::to_half(x);
#else
    Limb bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
#endif
}
__device__ __forceinline__ T from_limb(Limb bits)
{
#ifdef TILEWRIGHT_HOST
    return tilewright_host::from_half(bits);
#else
    T x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
#endif
}

// 2^e, a normal number.
__device__ __forceinline__ T power_of_two(int e) { return __uint_as_float(unsigned(e + 127) << 23); }

// Splits LIMB_ROWS rows of op(A) or columns of op(B) from `first` on, of `extent`. ALONG_K: stored rows run along k.
template <bool ALONG_K>
__device__ __forceinline__ void split(
    const T* X, int ld, Index first, int extent, int k, Limb* limbs, Index rows, Index depth, int* exponents,
    unsigned (*most)[LIMB_GROUP + 1], unsigned (*least)[LIMB_GROUP + 1], T (*tile)[LIMB_ROWS + 1])
{
    // Neighbouring threads read neighbours in a stored row.
    const int row = ALONG_K ? threadIdx.x / LIMB_GROUP : threadIdx.x % LIMB_ROWS;
    const int p0 = ALONG_K ? threadIdx.x % LIMB_GROUP : threadIdx.x / LIMB_ROWS;
    const Index step = ALONG_K ? 1 : ld;
    const bool inside = first + row < extent;
    const T* const source = X + (ALONG_K ? (first + row) * ld : first + row);

    // The largest and the smallest magnitude of each row, as bits, which are ordered like the numbers; zeros aside.
    unsigned high = 0, low = ~0u;
    if (inside) {
        #pragma unroll 8
        for (int p = p0; p < k; p += LIMB_GROUP) {
            const unsigned bits = __float_as_uint(source[p * step]) & 0x7fffffffu;
            high = max(high, bits);
            low = min(low, bits - 1);
        }
    }
    most[row][p0] = high;
    least[row][p0] = low;
    __syncthreads();
    const int r = threadIdx.x / LIMB_GROUP, lane = threadIdx.x % LIMB_GROUP;  // from here on rows lie as limbs do
    high = 0;
    low = ~0u;
    #pragma unroll
    for (int each = 0; each < LIMB_GROUP; ++each) {
        high = max(high, most[r][each]);
        low = min(low, least[r][each]);
    }
    // Halves hold 2^15, and 24 bits of a number of 2^-14 or more.
    constexpr int TOP = 14;
    const int exponent = high == 0 || high >= 0x7f800000u ? 0 : TOP - ilogbf(__uint_as_float(high));
    const bool special = high >= 0x7f800000u;
    if (lane == 0) exponents[first + r] = special ? SPECIAL : exponent;
    const T scale = power_of_two(exponent / 2), scale_more = power_of_two(exponent - exponent / 2);

    // Blocks of k: read, turned in shared memory, scaled, split and written.
    constexpr int READS = LIMB_K / LIMB_GROUP;
    T next[READS];
    const auto read = [&](int begin) {
        #pragma unroll
        for (int e = 0; e < READS; ++e) {
            const int p = begin + p0 + e * LIMB_GROUP;
            next[e] = inside && p < k ? source[p * step] : T(0);
        }
    };
    read(0);
    for (int begin = 0; begin < depth; begin += LIMB_K) {
        #pragma unroll
        for (int e = 0; e < READS; ++e) tile[p0 + e * LIMB_GROUP][row] = next[e];
        __syncthreads();
        if (begin + LIMB_K < depth) read(begin + LIMB_K);
        #pragma unroll
        for (int p = 4 * lane; p < LIMB_K; p += 4 * LIMB_GROUP) {
            struct alignas(8) Four { Limb x[4]; };
            Four found[LIMBS];
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                T rest = tile[p + e][r] * scale * scale_more;
                #pragma unroll
                for (int limb = 0; limb < LIMBS; ++limb) {
                    found[limb].x[e] = to_limb(rest);
                    rest -= from_limb(found[limb].x[e]);
                }
            }
            if (begin + p < depth) {
                #pragma unroll
                for (int limb = 0; limb < LIMBS; ++limb) {
                    Limb* const to = limbs + limb * rows * depth + Limbs::place(first + r, begin + p, rows, depth);
                    *reinterpret_cast<Four*>(to) = found[limb];
                }
            }
        }
        __syncthreads();
    }
}

}  // namespace

// Splits A and B into limbs, as the kernel above reads them.
extern "C" __global__ void __launch_bounds__(LIMB_THREADS) gemm_wgmma_f32_nn_64x64x64_a62cab1f_limbs(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, char* __restrict__ limbs, int m, int n, int k)
{
    __shared__ unsigned most[LIMB_ROWS][LIMB_GROUP + 1], least[LIMB_ROWS][LIMB_GROUP + 1];
    __shared__ T tile[LIMB_K][LIMB_ROWS + 1];
    griddepcontrol_wait();
    launch_dependents();
    const Limbs to(limbs, m, n, k);
    const Index first = Index(blockIdx.x) * LIMB_ROWS;
    if (first < to.rows) {
        split<true>(A, lda, first, m, k, to.a(), to.rows, to.depth, to.row_exponents(), most, least, tile);
    } else {
        split<false>(
            B, ldb, first - to.rows, n, k, to.b(), to.cols, to.depth, to.col_exponents(), most, least, tile);
    }
}
