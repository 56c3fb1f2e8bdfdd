// gemm_dmma_f64_nn_64x64x16_65130a2d
// Warp tiles fed from shared memory, by the fp64 tensor cores.
//
//   C = alpha * op(A) * op(B) + beta * C in double; where alpha is 0, A and B are not read, where beta is 0, C is not
//
//   storage    row-major: A m x k, B k x n, C m x n; lda, ldb, ldc from row to row
//   sizes      any m, n > 0 and k >= 0; pointers and leading dimensions aligned to one element
//   launch     ceil(m / 64) * ceil(n / 64) * 3 CTAs along x in clusters of 3,
//              (128, 1, 1) threads, 49152 bytes of static shared memory
//
// Written by tilewright from templates/dmma.cu.jinja, digest c8c0d05d5ca3d52a. To write it again:
//   tilewright emit --dtype double --trans nn --config "dmma:64x64x16,fragments=single,split_k=3,reduce=cluster"
// SPDX-License-Identifier: MIT

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#error "a cluster needs sm_90 or newer"
#endif

//                   BLOCK_N          Each CTA computes a tile of C, each warp of it WARP_M x WARP_N, by
//                 +---------+        instructions that multiply MMA_M x MMA_K by MMA_K x 8 elements, the
//         BLOCK_K |         | op(B)  fragments of which lie in registers of all lanes of the warp.
//                 +---------+
//       BLOCK_K        v             Tiles of op(A) and op(B) pass along k through STAGES buffers in shared
//       +-----+   +----+----+        memory. While one is multiplied the next are on their way: cp.async
// BLOCK |     | > |warp|warp|  C     copies them behind the threads' backs, as they lie in global memory.
//    _M |     |   +----+----+
//       |     |   |warp|warp|        One barrier a tile: then the next tile is whole, and the one before may
//       +-----+   +----+----+        be overwritten.
//        op(A)

namespace {

using T = double;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int BLOCK_M    = 64;     // rows of C that a CTA computes
constexpr int BLOCK_N    = 64;     // columns of C that a CTA computes
constexpr int BLOCK_K    = 16;     // steps of k that a tile covers
constexpr int WARP_M     = 32;     // rows of C that a warp computes
constexpr int WARP_N     = 32;     // columns of C that a warp computes
constexpr int MMA_M      = 16;     // rows of C of one instruction, which takes 8 steps of k
constexpr int SLICES     = 1;      // groups of warps that share the k of each tile
constexpr int STAGES     = 3;      // tiles that shared memory holds at a time
constexpr int SPLIT_K    = 3;      // CTAs that share the k of a tile of C
constexpr int SMEM_BYTES = 49152;  // shared memory of a CTA

constexpr int WARPS_M       = BLOCK_M / WARP_M;        // warps along the rows of C
constexpr int WARPS_N       = BLOCK_N / WARP_N;        // warps along the columns of C
constexpr int SLICE_THREADS = 32 * WARPS_M * WARPS_N;  // threads of a slice
constexpr int THREADS       = SLICES * SLICE_THREADS;  // threads that multiply
constexpr int THREAD_M      = WARP_M / 8;              // rows of C that a thread holds: one of every 8
constexpr int THREAD_N      = WARP_N / 4;              // columns of C that a thread holds: two of every 8
constexpr int MMAS_M        = WARP_M / MMA_M;          // instructions of a warp along the rows of C
constexpr int STEP          = 8;                       // steps of k whose fragments are read at once
constexpr int LANE_K        = STEP / 4;                // of those a lane's own, of each row or column
constexpr int STEPS         = BLOCK_K / STEP;          // such steps of a warp in a tile
constexpr int ACC           = THREAD_M * THREAD_N;     // accumulators of a thread
constexpr int WIDE          = 2;                       // elements of the widest load

static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0, "a CTA's tile is made of whole warp tiles");
static_assert(WARP_M % MMA_M == 0 && WARP_N % 8 == 0, "a warp tile is made of whole instructions");
static_assert(BLOCK_K % STEP == 0, "whole steps of k in a tile");

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

// Start to copy from global to shared memory, 16 bytes past L1, or BYTES bytes: zeros where `inside` is false, with
// nothing read.
__device__ __forceinline__ void cp_async_16(void* to, const void* from, bool inside)
{
    const unsigned address = unsigned(__cvta_generic_to_shared(to));
    const int bytes = inside ? 16 : 0;  // that are read: zeros follow
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes));
}
template <int BYTES>
__device__ __forceinline__ void cp_async(void* to, const void* from, bool inside)
{
    const unsigned address = unsigned(__cvta_generic_to_shared(to));
    const int bytes = inside ? BYTES : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 ::"r"(address), "l"(from), "n"(BYTES), "r"(bytes));
}

// The copies that a thread starts before commit_copies() are a group. wait_copies<PENDING>() waits for all of its
// groups but the last PENDING. Other threads see what arrived after a barrier.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// A warp adds to 16 x 8 of C the product of 16 x 8 of A and 8 x 8 of B. Lane 4g + t holds a0 = A(g, t),
// a1 = A(g + 8, t), a2 and a3 the same at t + 4, b0 = B(t, g), b1 = B(t + 4, g), c0 = C(g, 2t), c1 = C(g, 2t + 1), c2
// and c3 the same of row g + 8.
__device__ __forceinline__ void mma_f64_m16n8k8(
    double& c0, double& c1, double& c2, double& c3, double a0, double a1, double a2, double a3, double b0, double b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
        "{ %0, %1, %2, %3 }, { %4, %5, %6, %7 }, { %8, %9 }, { %0, %1, %2, %3 };"
        : "+d"(c0), "+d"(c1), "+d"(c2), "+d"(c3)
        : "d"(a0), "d"(a1), "d"(a2), "d"(a3), "d"(b0), "d"(b1));
}

// Where CTA `rank` of the cluster has what lies at `place` in this CTA's shared memory.
template <typename Element>
__device__ __forceinline__ const Element* peer(const Element* place, int rank)
{
    const Element* found;
    asm("mapa.u64 %0, %1, %2;" : "=l"(found) : "l"(place), "r"(rank));
    return found;
}

// The barrier of a cluster, in two halves: a thread that has waited sees what others wrote before they arrived.
__device__ __forceinline__ void arrive_cluster() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void wait_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// ---- The kernel -------------------------------------------------------------------------------------------------

template <int COUNT>
struct alignas(COUNT * sizeof(T)) Vector { T x[COUNT]; };

// Starts to copy BYTES bytes from global to shared memory: zeros where `inside` is false, with nothing read.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool inside)
{
    if constexpr (BYTES == 16) cp_async_16(to, from, inside);  // past L1: no other thread of the CTA reads them
    else cp_async<BYTES>(to, from, inside);
}

// How a tile of one operand lies in shared memory, its rows as in global memory, and comes from there to registers.
//
//   EXTENT   rows of op(A), or columns of op(B), in a tile: its other side is BLOCK_K
//   ALONG_K  a row of the operand runs along k
//
// Lane 4g + t reads the g-th row or column of each group of 8, at k = t, t + 4 and so on. No two lanes of a
// read meet in a bank: rows are swizzled by chunks of four elements, or have four spare elements where they are too
// short for that.
template <int EXTENT, bool ALONG_K>
struct Operand {
    static constexpr int SPARE = EXTENT % 16 ? 4 : 0;                 // elements of a row across k
    static constexpr int PITCH = ALONG_K ? BLOCK_K : EXTENT + SPARE;  // from row to row in shared memory
    static constexpr int SIZE = BLOCK_K * (EXTENT + SPARE);           // of a tile in shared memory
    static constexpr int BASES = ALONG_K ? 4 : SPARE ? 1 : 2;  // places from which a lane's lie a fixed way

    // What is exclusive-or'ed to the columns of a row's elements to give their places.
    static __device__ constexpr int swizzle(int row)
    {
        if (ALONG_K) return BLOCK_K == 8 ? row / 2 % 2 * 4 : row % 4 * 4;
        return SPARE ? 0 : row % 4 * 4;
    }

    // Where element (row, col) of the stored tile is, and what lies so much further in `tile` than another place. The
    // bits of a thread's first row and those of `row`, so much further, are apart, so the swizzles add up.
    static __device__ constexpr int place_of(int row, int col) { return row * PITCH + (col ^ swizzle(row)); }
    static __device__ __forceinline__ T* further(T* tile, int place, int row, int col)
    {
        return tile + (place ^ swizzle(row)) + row * PITCH + col;
    }

    // Where a lane reads of `tile`, for a warp tile that begins at `first`, and at `p` along k.
    static __device__ __forceinline__ void find(const T* (&places)[BASES], const T* tile, int first, int p, int lane)
    {
        const int outer = first + lane / 4, k = p + lane % 4;
        #pragma unroll
        for (int b = 0; b < BASES; ++b) {
            // Steps of k four apart lie in other chunks, and so does every other group of 8.
            const int along = (p + 4 * b) / 16 * 16 + ((p + 4 * b) % 16 ^ swizzle(lane / 4)) + lane % 4;
            const int across = (outer + 8 * b) ^ swizzle(lane % 4);
            places[b] = tile + (ALONG_K ? outer * PITCH + along : k * PITCH + across);
        }
    }

    // Reads a lane's fragment of the i-th group of 8, STEP steps of k from `p` on, in the stage at `stage`.
    static __device__ __forceinline__ void read(
        T (&fragment)[LANE_K], const T* const (&places)[BASES], int stage, int p, int i)
    {
        #pragma unroll
        for (int e = 0; e < LANE_K; ++e) {
            const int at = p + 4 * e;
            fragment[e] = ALONG_K ? places[at / 4 % BASES][stage + at / 16 * 16 + i * 8 * PITCH]
                                  : places[i % BASES][stage + at * PITCH + i / BASES * BASES * 8];
        }
    }
};

using TileA = Operand<BLOCK_M, true>;
using TileB = Operand<BLOCK_N, false>;

// How tiles of one operand, EXTENT by BLOCK_K, come to shared memory, where they lie as Tile says. ALONG_K: stored rows
// run along k. A copy moves VEC elements. GUARDED: a tile may reach beyond the matrix.
template <typename Tile, int EXTENT, bool ALONG_K, int VEC, bool GUARDED>
struct Copies {
    static constexpr int PER_ROW = (ALONG_K ? BLOCK_K : EXTENT) / VEC;  // vectors of a row in global memory
    static constexpr int COPIES = (EXTENT * BLOCK_K / VEC + THREADS - 1) / THREADS;  // of each thread
    static constexpr bool ONE_OUTER = ALONG_K ? COPIES == 1 : PER_ROW <= THREADS;  // row or column of all copies
    static_assert(COPIES <= 32, "a bit for each copy");

    const T* source;            // what this thread copies first of the next tile
    int ld;
    int place;                  // where that goes in a tile in shared memory
    unsigned k;                 // its place along k; beyond any k where no copy lies inside the matrix
    unsigned outer_inside = 0;  // bit i: copy i lies inside, k left aside

    // The operand X from its row or column `outer` on, of which `outer_left` are left, and from `k_begin` on.
    __device__ __forceinline__ Copies(const T* X, int ld, Index outer, Index k_begin, int outer_left) : ld(ld)
    {
        const int row = threadIdx.x / PER_ROW, col = threadIdx.x % PER_ROW * VEC;
        source = X + ((ALONG_K ? outer : k_begin) + row) * ld + (ALONG_K ? k_begin : outer) + col;
        place = Tile::place_of(row, col);
        k = ALONG_K ? col : row;
        if constexpr (ONE_OUTER) {
            if ((ALONG_K ? row : col) >= outer_left) k = 1u << 31;
        } else {
            #pragma unroll
            for (int i = 0; i < COPIES; ++i) {
                outer_inside |= unsigned((ALONG_K ? row + row_of(i) : col + col_of(i)) < outer_left) << i;
            }
        }
    }

    // How much further copy i lies than copy 0. Neighbouring threads copy neighbouring vectors.
    static __device__ constexpr int row_of(int i) { return i * THREADS / PER_ROW; }
    static __device__ constexpr int col_of(int i) { return i * THREADS % PER_ROW * VEC; }
    __device__ __forceinline__ const T* from(int i) const { return source + Index(row_of(i)) * ld + col_of(i); }
    __device__ __forceinline__ void advance() { source += ALONG_K ? Index(BLOCK_K) : Index(BLOCK_K) * ld; }

    // Where it goes in `tile`.
    __device__ __forceinline__ T* to(T* tile, int i) const { return Tile::further(tile, place, row_of(i), col_of(i)); }

    // Whether this thread has a copy i: some threads may have none, some the last one not.
    static __device__ __forceinline__ bool has_copy(int i)
    {
        constexpr int VECTORS = EXTENT * BLOCK_K / VEC;
        return (i + 1) * THREADS <= VECTORS || i * THREADS + int(threadIdx.x) < VECTORS;
    }

    // Whether copy i lies inside the matrix; `k_left` is what is left of k, this tile included.
    __device__ __forceinline__ bool inside(int i, int k_left) const
    {
        if constexpr (!GUARDED) return true;
        else return (ONE_OUTER || outer_inside >> i & 1) && k + (ALONG_K ? col_of(i) : row_of(i)) < unsigned(k_left);
    }

    // Starts to copy the next tile to `tile`.
    __device__ __forceinline__ void start(T* tile, int k_left)
    {
        #pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            if (has_copy(i)) copy_async<VEC * sizeof(T)>(to(tile, i), from(i), inside(i, k_left));
        }
        advance();
    }
};

constexpr int STAGE = TileA::SIZE + TileB::SIZE;  // elements of a stage: a tile of op(A), then one of op(B)
static_assert(STAGES * STAGE * sizeof(T) <= SMEM_BYTES, "the stages fit");

// How tiles of op(A) and op(B) come: copied while the STAGES - 1 before them are multiplied.
template <typename CopyA, typename CopyB>
struct Pipeline {
    CopyA& a;
    CopyB& b;
    int& k_left;  // of the next tile to be copied

    // Starts to copy the next tile to `stage`.
    __device__ __forceinline__ void fetch(T* stage) const
    {
        a.start(stage, k_left);
        b.start(stage + TileA::SIZE, k_left);
        advance();
    }

    // Goes on to the next tile to be copied.
    __device__ __forceinline__ void advance() const
    {
        k_left -= BLOCK_K;
    }
};

// Ends the copies of a tile, of which there may be none, to the stage that begins at `writing`: the next one is filled
// after it.
__device__ __forceinline__ void commit_tile(int& writing)
{
    commit_copies();  // an empty group counts too
    writing = writing == (STAGES - 1) * STAGE ? 0 : writing + STAGE;
}

// Waits for the oldest tile on its way, and until no thread reads the one before it any more.
__device__ __forceinline__ void wait_tile()
{
    wait_copies<STAGES - 2>();
    __syncthreads();
}

// Adds to tile (i, j) of the accumulators, MMA_M x 8 of C, the product of MMA_M rows of A and 8 columns of B over a
// step. A warp does it together.
__device__ __forceinline__ void mma(
    T (&acc)[ACC], const T (&a)[THREAD_M][LANE_K], const T (&b)[THREAD_N / 2][LANE_K], int i, int j)
{
    static_assert(LANE_K == 2, "a lane's elements of a step are those of one instruction");
    T *const upper = acc + 2 * i * THREAD_N + 2 * j, *const lower = upper + THREAD_N;
    const T (&a_upper)[LANE_K] = a[2 * i], (&a_lower)[LANE_K] = a[2 * i + 1];
    mma_f64_m16n8k8(
        upper[0], upper[1], lower[0], lower[1], a_upper[0], a_lower[0], a_upper[1], a_lower[1], b[j][0], b[j][1]);
}

// Which lane of a warp a lane is along the rows of C.
__device__ __forceinline__ int lane_m(int lane) { return lane / 4; }

// Where in the warp tile the i-th row of lanes `along_m` is, and a lane's j-th column.
__device__ __forceinline__ int row_of(int i, int along_m) { return along_m + 8 * i; }
__device__ __forceinline__ int col_of(int j, int lane) { return lane % 4 * 2 + j / 2 * 8 + j % 2; }

// Every slice of every CTA of the cluster writes a part of the tile in the end, in groups of neighbours: as wide as a
// load can be, but so that none is left without where there are accumulators enough.
constexpr int WRITERS = SPLIT_K * SLICES;
template <int VEC_C>
__host__ __device__ constexpr int group_width()
{
    int width = WIDE;
    while (width > VEC_C && (ACC % width != 0 || ACC / width < WRITERS)) width /= 2;
    return width;
}

// How many accumulators a thread writes, or fewer.
template <int VEC_C>
__host__ __device__ constexpr int share()
{
    return (ACC / group_width<VEC_C>() + WRITERS - 1) / WRITERS * group_width<VEC_C>();
}

// Adds up the accumulators of all slices of the cluster's CTAs, which leave them in their shared memory: it holds
// nothing else any more. Gives a thread the OUT of them that it writes, and says which is the first. A CTA begins with
// its own, so that not all read from one, and goes on in the same order in every run. It may end after the cluster's
// next wait: others read from it till then.
template <int VEC_C, int OUT>
__device__ __forceinline__ int reduce_cluster(T (&out)[OUT], const T (&acc)[ACC], T* shared)
{
    constexpr int GROUP = group_width<VEC_C>(), GROUPS = ACC / GROUP;  // accumulators of a group, groups of a thread
    T* const mine = shared + threadIdx.x % SLICE_THREADS * GROUP;
    const int slice = threadIdx.x / SLICE_THREADS;
    const int split = int(blockIdx.x % SPLIT_K);
    const int first = (split * SLICES + slice) * (OUT / GROUP);
    __syncthreads();
    #pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        Vector<GROUP> group;
        #pragma unroll
        for (int e = 0; e < GROUP; ++e) group.x[e] = acc[g * GROUP + e];
        *reinterpret_cast<Vector<GROUP>*>(mine + (slice * GROUPS + g) * SLICE_THREADS * GROUP) = group;
    }
    arrive_cluster();
    wait_cluster();
    #pragma unroll
    for (int e = 0; e < OUT; ++e) out[e] = 0;
    #pragma unroll
    for (int other = 0; other < SPLIT_K; ++other) {
        const T* from = peer(mine, (split + other) % SPLIT_K);
        #pragma unroll
        for (int part = 0; part < SLICES; ++part) {
            #pragma unroll
            for (int g = 0; g < OUT / GROUP; ++g) {
                if (OUT * WRITERS != ACC && first + g >= GROUPS) break;
                const T* place = from + (part * GROUPS + first + g) * SLICE_THREADS * GROUP;
                const auto group = *reinterpret_cast<const Vector<GROUP>*>(place);
                #pragma unroll
                for (int e = 0; e < GROUP; ++e) out[g * GROUP + e] += group.x[e];
            }
        }
    }
    arrive_cluster();
    return first * GROUP;
}

// Writes accumulators of a thread, VEC_C elements of a row of C at a time: those from `first` on, row after row.
// `c` is where the warp tile begins; `rows` and `cols` are left of C from there.
template <int VEC_C, bool GUARDED, int COUNT>
__device__ __forceinline__ void store(
    T (&out)[COUNT], int first, T* c, int ldc, int rows, int cols, int lane, T alpha, T beta)
{
    // Where the vector belongs that begins with out[e]; null outside of C.
    const auto place_of = [&](int e) -> Vector<VEC_C>* {
        if (COUNT * WRITERS != ACC && first + e >= ACC) return nullptr;
        const int row = row_of((first + e) / THREAD_N, lane_m(lane));
        const int col = col_of((first + e) % THREAD_N, lane);
        if constexpr (GUARDED) if (row >= rows || col >= cols) return nullptr;
        return reinterpret_cast<Vector<VEC_C>*>(c + Index(row) * ldc + col);
    };
    #pragma unroll
    for (int e = 0; e < COUNT; ++e) out[e] *= alpha;
    // All is read before any of it is written, else each read would wait for the write before it; but not all at a
    // time, which would take as many registers again.
    if (beta != T(0)) {
        #pragma unroll
        for (int e = 0; e < COUNT; e += VEC_C) {
            if (const Vector<VEC_C>* place = place_of(e)) {
                const Vector<VEC_C> old = *place;
                #pragma unroll
                for (int v = 0; v < VEC_C; ++v) out[e + v] += beta * old.x[v];
            }
            if ((e + VEC_C) % THREAD_N == 0) asm volatile("" ::: "memory");  // a row's reads at a time
        }
    }
    #pragma unroll
    for (int e = 0; e < COUNT; e += VEC_C) {
        if (Vector<VEC_C>* place = place_of(e)) {
            Vector<VEC_C> value;
            #pragma unroll
            for (int v = 0; v < VEC_C; ++v) value.x[v] = out[e + v];
            *place = value;
        }
    }
}

constexpr int VEC_A    = 1;     // elements of A that one copy moves
constexpr int VEC_B    = 1;     // elements of B that one copy moves
constexpr int VEC_C    = 1;     // elements of C that one store moves
constexpr bool GUARDED = true;  // tiles may reach beyond the matrices

}  // namespace

extern "C" __global__ void __cluster_dims__(SPLIT_K, 1, 1) __launch_bounds__(THREADS, 1)
gemm_dmma_f64_nn_64x64x16_65130a2d(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, T* __restrict__ C, int ldc,
    int m, int n, int k, T alpha, T beta)
{
    using CopyA = Copies<TileA, BLOCK_M, true, VEC_A, GUARDED>;
    using CopyB = Copies<TileB, BLOCK_N, false, VEC_B, GUARDED>;
    __shared__ __align__(16) T shared[SMEM_BYTES / sizeof(T)];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_m = warp / WARPS_N % WARPS_M * WARP_M, warp_n = warp % WARPS_N * WARP_N;
    const unsigned tiles_n = unsigned(n - 1) / BLOCK_N + 1;
    const unsigned tile = blockIdx.x / SPLIT_K;
    const unsigned tile_m = tile / tiles_n, tile_n = tile % tiles_n;
    const Index row0 = Index(tile_m) * BLOCK_M, col0 = Index(tile_n) * BLOCK_N;
    const int depth = alpha == T(0) ? 0 : k;  // A and B are not read where alpha is 0
    const int all_tiles = int((unsigned(depth) + BLOCK_K - 1) / BLOCK_K);
    const int split = int(blockIdx.x % SPLIT_K), over = all_tiles % SPLIT_K;  // the first take one more
    const int first_tile = all_tiles / SPLIT_K * split + min(split, over);
    const int tiles = all_tiles / SPLIT_K + (split < over);
    const Index k_begin = Index(first_tile) * BLOCK_K;
    CopyA a(A, lda, row0, k_begin, int(min(m - row0, Index(BLOCK_M))));
    CopyB b(B, ldb, col0, k_begin, int(min(n - col0, Index(BLOCK_N))));
    int k_left = depth - int(k_begin);  // of the next tile to be fetched
    T acc[ACC] = {};
    int reading = 0;  // where the stage begins that is multiplied
    T a_fragment[1][THREAD_M][LANE_K];
    T b_fragment[1][THREAD_N / 2][LANE_K];
    const T *a_places[TileA::BASES], *b_places[TileB::BASES];
    TileA::find(a_places, shared, warp_m, 0, lane);
    TileB::find(b_places, shared + TileA::SIZE, warp_n, 0, lane);
    griddepcontrol_wait();
    launch_dependents();

    int writing = (STAGES - 1) * STAGE;  // where the stage begins that is filled next
    const Pipeline<CopyA, CopyB> pipeline = {a, b, k_left};
    #pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < tiles) pipeline.fetch(shared + stage * STAGE);
        commit_copies();
    }
    wait_tile();

    // Read a group's fragments of one step to one of the buffers.
    const auto read_a = [&](int p, int i, int to) {
        TileA::read(a_fragment[to][i], a_places, reading, p * STEP, i);
    };
    const auto read_b = [&](int p, int j, int to) {
        TileB::read(b_fragment[to][j], b_places, reading, p * STEP, j);
    };
    const auto read_all = [&](int step) {
        #pragma unroll
        for (int i = 0; i < THREAD_M; ++i) read_a(step, i, 0);
        #pragma unroll
        for (int j = 0; j < THREAD_N / 2; ++j) read_b(step, j, 0);
    };
    // Goes on to the next tile.
    const auto next_tile = [&] {
        wait_tile();
        reading = reading == (STAGES - 1) * STAGE ? 0 : reading + STAGE;
    };

    #pragma unroll 1
    for (int each = 0; each < tiles; ++each) {
        // The stage that was multiplied last is filled again: no thread reads it any more.
        if (each + STAGES - 1 < tiles) pipeline.fetch(shared + writing);
        commit_tile(writing);

        #pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            read_all(step);
            #pragma unroll
            for (int i = 0; i < MMAS_M; ++i) {
                #pragma unroll
                for (int j = 0; j < THREAD_N / 2; ++j) mma(acc, a_fragment[0], b_fragment[0], i, j);
            }
        }
        next_tile();
    }

    T out[share<VEC_C>()];
    const int first = reduce_cluster<VEC_C>(out, acc, shared);  // of the thread's accumulators, row after row
    const Index row = row0 + warp_m, col = col0 + warp_n;
    const int rows = int(min(m - row, Index(WARP_M))), cols = int(min(n - col, Index(WARP_N)));
    store<VEC_C, GUARDED>(out, first, C + row * ldc + col, ldc, rows, cols, lane, alpha, beta);
    wait_cluster();
}
