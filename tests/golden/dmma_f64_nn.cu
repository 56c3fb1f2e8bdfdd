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
// Written by tilewright from templates/dmma.cu.jinja, digest b3b1352771f1cb64. To write it again:
//   tilewright emit --dtype double --trans nn --config "dmma:64x64x16,fragments=single,split_k=3,reduce=cluster"
// SPDX-License-Identifier: MIT

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#error "a cluster needs sm_90 or newer"
#endif

//                    kBlockN         Each CTA computes a tile of C, each warp of it kWarpM x kWarpN, by
//                  +---------+       instructions that multiply kMmaM x kMmaK by kMmaK x 8 elements, the
//          kBlockK |         | op(B) fragments of which lie in registers of all lanes of the warp.
//                  +---------+
//        kBlockK        v            Tiles of op(A) and op(B) pass along k through kStages buffers in shared
//        +-----+   +----+----+       memory. While one is multiplied the next are on their way: cp.async
// kBlock |     | > |warp|warp|  C    copies them asynchronously, as they lie in global memory.
//      M |     |   +----+----+
//        |     |   |warp|warp|       One barrier a tile: then the next tile is whole, and the one before may
//        +-----+   +----+----+       be overwritten.
//         op(A)

namespace {

using Elem = double;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int kBlockM    = 64;     // rows of C that a CTA computes
constexpr int kBlockN    = 64;     // columns of C that a CTA computes
constexpr int kBlockK    = 16;     // steps of k that a tile covers
constexpr int kWarpM     = 32;     // rows of C that a warp computes
constexpr int kWarpN     = 32;     // columns of C that a warp computes
constexpr int kMmaM      = 16;     // rows of C of one instruction, which takes 8 steps of k
constexpr int kSlices    = 1;      // groups of warps that share the k of each tile
constexpr int kStages    = 3;      // tiles that shared memory holds at a time
constexpr int kSplitK    = 3;      // CTAs that share the k of a tile of C
constexpr int kSmemBytes = 49152;  // shared memory of a CTA

constexpr int kWarpsM       = kBlockM / kWarpM;         // warps along the rows of C
constexpr int kWarpsN       = kBlockN / kWarpN;         // warps along the columns of C
constexpr int kSliceThreads = 32 * kWarpsM * kWarpsN;   // threads of a slice
constexpr int kThreads      = kSlices * kSliceThreads;  // threads that multiply
constexpr int kThreadM      = kWarpM / 8;               // rows of C of a thread: one of every 8
constexpr int kThreadN      = kWarpN / 4;               // columns of C of a thread: two of every 8
constexpr int kMmasM        = kWarpM / kMmaM;           // instructions of a warp along the rows of C
constexpr int kStep         = 8;                        // steps of k whose fragments are read at once
constexpr int kLaneK        = kStep / 4;                // of those a lane's own, of each row or column
constexpr int kSteps        = kBlockK / kStep;          // such steps of a warp in a tile
constexpr int kAcc          = kThreadM * kThreadN;      // accumulators of a thread
constexpr int kWide         = 2;                        // elements of the widest load

static_assert(kBlockM % kWarpM == 0 && kBlockN % kWarpN == 0, "a CTA's tile is made of whole warp tiles");
static_assert(kWarpM % kMmaM == 0 && kWarpN % 8 == 0, "a warp tile is made of whole instructions");
static_assert(kBlockK % kStep == 0, "whole steps of k in a tile");

// ---- Instructions (PTX) -----------------------------------------------------------------------------------------

// Programmatic dependent launch (PDL): waits for what earlier kernels of the stream wrote; lets the next one start.
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }

// Start to copy from global to shared memory, 16 bytes past L1, or kBytes bytes: zeros where `inside` is false, with
// nothing read.
__device__ __forceinline__ void cp_async_16(void* to, const void* from, bool inside)
{
    const unsigned address = unsigned(__cvta_generic_to_shared(to));
    const int bytes = inside ? 16 : 0;  // that are read: zeros follow
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes));
}
template <int kBytes>
__device__ __forceinline__ void cp_async(void* to, const void* from, bool inside)
{
    const unsigned address = unsigned(__cvta_generic_to_shared(to));
    const int bytes = inside ? kBytes : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 ::"r"(address), "l"(from), "n"(kBytes), "r"(bytes));
}

// The copies that a thread starts before commit_copies() are a group. wait_copies<kPending>() waits for all of its
// groups but the last kPending. Other threads see what arrived after a barrier.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
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
    const Element* address;
    asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(place), "r"(rank));
    return address;
}

// The barrier of a cluster, in two halves: a thread that has waited sees what others wrote before they arrived.
__device__ __forceinline__ void arrive_cluster() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void wait_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// ---- The kernel -------------------------------------------------------------------------------------------------

template <int kCount>
struct alignas(kCount * sizeof(Elem)) Vector { Elem x[kCount]; };

// Starts to copy kBytes bytes from global to shared memory: zeros where `inside` is false, with nothing read.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool inside)
{
    if constexpr (kBytes == 16) cp_async_16(to, from, inside);  // past L1: no other thread of the CTA reads them
    else cp_async<kBytes>(to, from, inside);
}

// How a tile of one operand lies in shared memory, its rows as in global memory, and comes from there to registers.
//
//   kExtent  rows of op(A), or columns of op(B), in a tile: its other side is kBlockK
//   kAlongK  a row of the operand runs along k
//
// Lane 4g + t reads the g-th row or column of each group of 8, at k = t, t + 4 and so on. No two lanes of a
// read meet in a bank: rows are swizzled by chunks of four elements, or have four spare elements where they are too
// short for that.
template <int kExtent, bool kAlongK>
struct Operand {
    static constexpr int kSpare = kExtent % 16 ? 4 : 0;                  // elements of a row across k
    static constexpr int kPitch = kAlongK ? kBlockK : kExtent + kSpare;  // from row to row in shared memory
    static constexpr int kSize = kBlockK * (kExtent + kSpare);           // of a tile in shared memory
    static constexpr int kBases = kAlongK ? 4 : kSpare ? 1 : 2;  // places from which a lane's lie a fixed way

    // The swizzle of a row: the columns of its elements, exclusive-or'ed with it, are their places.
    static __device__ constexpr int swizzle(int row)
    {
        if (kAlongK) return kBlockK == 8 ? row / 2 % 2 * 4 : row % 4 * 4;
        return kSpare ? 0 : row % 4 * 4;
    }

    // Where element (row, col) of the stored tile is, and what lies so much further in `tile` than another place. The
    // bits of a thread's first row and those of `row`, so much further, are apart, so the swizzles add up.
    static __device__ constexpr int place_of(int row, int col) { return row * kPitch + (col ^ swizzle(row)); }
    static __device__ __forceinline__ Elem* further(Elem* tile, int place, int row, int col)
    {
        return tile + (place ^ swizzle(row)) + row * kPitch + col;
    }

    // Where a lane reads of `tile`, for a warp tile that begins at `first`, and at `p` along k.
    static __device__ __forceinline__ void find(
        const Elem* (&places)[kBases], const Elem* tile, int first, int p, int lane)
    {
        const int outer = first + lane / 4, k = p + lane % 4;
        #pragma unroll
        for (int b = 0; b < kBases; ++b) {
            // Steps of k four apart lie in other chunks, and so does every other group of 8.
            const int along = (p + 4 * b) / 16 * 16 + ((p + 4 * b) % 16 ^ swizzle(lane / 4)) + lane % 4;
            const int across = (outer + 8 * b) ^ swizzle(lane % 4);
            places[b] = tile + (kAlongK ? outer * kPitch + along : k * kPitch + across);
        }
    }

    // Reads a lane's fragment of the i-th group of 8, kStep steps of k from `p` on, in the stage at `stage`.
    static __device__ __forceinline__ void read(
        Elem (&fragment)[kLaneK], const Elem* const (&places)[kBases], int stage, int p, int i)
    {
        #pragma unroll
        for (int e = 0; e < kLaneK; ++e) {
            const int at = p + 4 * e;
            fragment[e] = kAlongK ? places[at / 4 % kBases][stage + at / 16 * 16 + i * 8 * kPitch]
                                  : places[i % kBases][stage + at * kPitch + i / kBases * kBases * 8];
        }
    }
};

using TileA = Operand<kBlockM, true>;
using TileB = Operand<kBlockN, false>;

// How tiles of one operand, kExtent by kBlockK, come to shared memory, where they lie as Tile says. kAlongK: stored
// rows run along k. A copy moves kVec elements. kGuarded: a tile may reach beyond the matrix.
template <typename Tile, int kExtent, bool kAlongK, int kVec, bool kGuarded>
struct Copies {
    static constexpr int kPerRow = (kAlongK ? kBlockK : kExtent) / kVec;  // vectors of a row in global memory
    static constexpr int kCopies = (kExtent * kBlockK / kVec + kThreads - 1) / kThreads;  // of each thread
    static constexpr bool kOneOuter = kAlongK ? kCopies == 1 : kPerRow <= kThreads;  // row or column of all copies
    static_assert(kCopies <= 32, "a bit for each copy");

    const Elem* source;         // what this thread copies first of the next tile
    int ld;
    int place;                  // where that goes in a tile in shared memory
    unsigned k;                 // its place along k; beyond any k where no copy lies inside the matrix
    unsigned outer_inside = 0;  // bit i: copy i lies inside, k left aside

    // The operand X from its row or column `outer` on, of which `outer_left` are left, and from `k_begin` on.
    __device__ __forceinline__ Copies(const Elem* matrix_x, int ld, Index outer, Index k_begin, int outer_left) : ld(ld)
    {
        const int row = threadIdx.x / kPerRow, col = threadIdx.x % kPerRow * kVec;
        source = matrix_x + ((kAlongK ? outer : k_begin) + row) * ld + (kAlongK ? k_begin : outer) + col;
        place = Tile::place_of(row, col);
        k = kAlongK ? col : row;
        if constexpr (kOneOuter) {
            if ((kAlongK ? row : col) >= outer_left) k = 1u << 31;
        } else {
            #pragma unroll
            for (int i = 0; i < kCopies; ++i) {
                outer_inside |= unsigned((kAlongK ? row + row_of(i) : col + col_of(i)) < outer_left) << i;
            }
        }
    }

    // How much further copy i lies than copy 0. Neighbouring threads copy neighbouring vectors.
    static __device__ constexpr int row_of(int i) { return i * kThreads / kPerRow; }
    static __device__ constexpr int col_of(int i) { return i * kThreads % kPerRow * kVec; }
    __device__ __forceinline__ const Elem* from(int i) const { return source + Index(row_of(i)) * ld + col_of(i); }
    __device__ __forceinline__ void advance() { source += kAlongK ? Index(kBlockK) : Index(kBlockK) * ld; }

    // Where it goes in `tile`.
    __device__ __forceinline__ Elem* to(Elem* tile, int i) const
    {
        return Tile::further(tile, place, row_of(i), col_of(i));
    }

    // Whether this thread has a copy i: some threads may have none, some the last one not.
    static __device__ __forceinline__ bool has_copy(int i)
    {
        constexpr int kVectors = kExtent * kBlockK / kVec;
        return (i + 1) * kThreads <= kVectors || i * kThreads + int(threadIdx.x) < kVectors;
    }

    // Whether copy i lies inside the matrix; `k_left` is what is left of k, this tile included.
    __device__ __forceinline__ bool inside(int i, int k_left) const
    {
        if constexpr (!kGuarded) return true;
        else return (kOneOuter || outer_inside >> i & 1) && k + (kAlongK ? col_of(i) : row_of(i)) < unsigned(k_left);
    }

    // Starts to copy the next tile to `tile`.
    __device__ __forceinline__ void start(Elem* tile, int k_left)
    {
        #pragma unroll
        for (int i = 0; i < kCopies; ++i) {
            if (has_copy(i)) copy_async<kVec * sizeof(Elem)>(to(tile, i), from(i), inside(i, k_left));
        }
        advance();
    }
};

constexpr int kStage = TileA::kSize + TileB::kSize;  // elements of a stage: a tile of op(A), then one of op(B)
static_assert(kStages * kStage * sizeof(Elem) <= kSmemBytes, "the stages fit");

// How tiles of op(A) and op(B) come: copied while the kStages - 1 before them are multiplied.
template <typename CopyA, typename CopyB>
struct Pipeline {
    CopyA& a;
    CopyB& b;
    int& k_left;  // of the next tile to be copied

    // Starts to copy the next tile to `stage`.
    __device__ __forceinline__ void fetch(Elem* stage) const
    {
        a.start(stage, k_left);
        b.start(stage + TileA::kSize, k_left);
        advance();
    }

    // Goes on to the next tile to be copied.
    __device__ __forceinline__ void advance() const
    {
        k_left -= kBlockK;
    }
};

// Ends the copies of a tile, of which there may be none, to the stage that begins at `writing`: the next one is filled
// after it.
__device__ __forceinline__ void commit_tile(int& writing)
{
    commit_copies();  // an empty group counts too
    writing = writing == (kStages - 1) * kStage ? 0 : writing + kStage;
}

// Waits for the oldest tile on its way, and until no thread reads the one before it any more.
__device__ __forceinline__ void wait_tile()
{
    wait_copies<kStages - 2>();
    __syncthreads();
}

// Adds to tile (i, j) of the accumulators, kMmaM x 8 of C, the product of kMmaM rows of A and 8 columns of B over a
// step. A warp does it together.
__device__ __forceinline__ void mma(
    Elem (&acc)[kAcc], const Elem (&a)[kThreadM][kLaneK], const Elem (&b)[kThreadN / 2][kLaneK], int i, int j)
{
    static_assert(kLaneK == 2, "a lane's elements of a step are those of one instruction");
    Elem *const upper = acc + 2 * i * kThreadN + 2 * j, *const lower = upper + kThreadN;
    const Elem (&a_upper)[kLaneK] = a[2 * i], (&a_lower)[kLaneK] = a[2 * i + 1];
    mma_f64_m16n8k8(
        upper[0], upper[1], lower[0], lower[1], a_upper[0], a_lower[0], a_upper[1], a_lower[1], b[j][0], b[j][1]);
}

// The lane's number along the rows of C.
__device__ __forceinline__ int lane_m(int lane) { return lane / 4; }

// Where in the warp tile the i-th row of lanes `along_m` is, and a lane's j-th column.
__device__ __forceinline__ int row_of(int i, int along_m) { return along_m + 8 * i; }
__device__ __forceinline__ int col_of(int j, int lane) { return lane % 4 * 2 + j / 2 * 8 + j % 2; }

// Every slice of every CTA of the cluster writes a part of the tile in the end, in groups of neighbours: as wide as a
// load can be, but so that none is left without where there are accumulators enough.
constexpr int kWriters = kSplitK * kSlices;
template <int kVecC>
__host__ __device__ constexpr int group_width()
{
    int width = kWide;
    while (width > kVecC && (kAcc % width != 0 || kAcc / width < kWriters)) width /= 2;
    return width;
}

// How many accumulators a thread writes, or fewer.
template <int kVecC>
__host__ __device__ constexpr int share()
{
    return (kAcc / group_width<kVecC>() + kWriters - 1) / kWriters * group_width<kVecC>();
}

// Adds up the accumulators of all slices of the cluster's CTAs, which leave them in their shared memory: it holds
// nothing else any more. Gives a thread the kOut of them that it writes, and says which is the first. A CTA begins with
// its own, so that not all read from one, and goes on in the same order in every run. It may end after the cluster's
// next wait: others read from it till then.
template <int kVecC, int kOut>
__device__ __forceinline__ int reduce_cluster(Elem (&out)[kOut], const Elem (&acc)[kAcc], Elem* shared)
{
    constexpr int kGroup = group_width<kVecC>(), kGroups = kAcc / kGroup;  // accumulators of a group, a thread's groups
    Elem* const mine = shared + threadIdx.x % kSliceThreads * kGroup;
    const int slice = threadIdx.x / kSliceThreads;
    const int split = int(blockIdx.x % kSplitK);
    const int first = (split * kSlices + slice) * (kOut / kGroup);
    __syncthreads();
    #pragma unroll
    for (int g = 0; g < kGroups; ++g) {
        Vector<kGroup> group;
        #pragma unroll
        for (int e = 0; e < kGroup; ++e) group.x[e] = acc[g * kGroup + e];
        *reinterpret_cast<Vector<kGroup>*>(mine + (slice * kGroups + g) * kSliceThreads * kGroup) = group;
    }
    arrive_cluster();
    wait_cluster();
    #pragma unroll
    for (int e = 0; e < kOut; ++e) out[e] = 0;
    #pragma unroll
    for (int other = 0; other < kSplitK; ++other) {
        const Elem* from = peer(mine, (split + other) % kSplitK);
        #pragma unroll
        for (int part = 0; part < kSlices; ++part) {
            #pragma unroll
            for (int g = 0; g < kOut / kGroup; ++g) {
                if (kOut * kWriters != kAcc && first + g >= kGroups) break;
                const Elem* place = from + (part * kGroups + first + g) * kSliceThreads * kGroup;
                const auto group = *reinterpret_cast<const Vector<kGroup>*>(place);
                #pragma unroll
                for (int e = 0; e < kGroup; ++e) out[g * kGroup + e] += group.x[e];
            }
        }
    }
    arrive_cluster();
    return first * kGroup;
}

// Writes accumulators of a thread, kVecC elements of a row of C at a time: those from `first` on, row after row.
// `c` is where the warp tile begins; `rows` and `cols` are left of C from there.
template <int kVecC, bool kGuarded, int kCount>
__device__ __forceinline__ void store(
    Elem (&out)[kCount], int first, Elem* c, int ldc, int rows, int cols, int lane, Elem alpha, Elem beta)
{
    // Where the vector belongs that begins with out[e]; null outside of C.
    const auto place_of = [&](int e) -> Vector<kVecC>* {
        if (kCount * kWriters != kAcc && first + e >= kAcc) return nullptr;
        const int row = row_of((first + e) / kThreadN, lane_m(lane));
        const int col = col_of((first + e) % kThreadN, lane);
        if constexpr (kGuarded) if (row >= rows || col >= cols) return nullptr;
        return reinterpret_cast<Vector<kVecC>*>(c + Index(row) * ldc + col);
    };
    #pragma unroll
    for (int e = 0; e < kCount; ++e) out[e] *= alpha;
    // All is read before any of it is written, else each read would wait for the write before it; but not all at a
    // time, which would take as many registers again.
    if (beta != Elem(0)) {
        #pragma unroll
        for (int e = 0; e < kCount; e += kVecC) {
            if (const Vector<kVecC>* place = place_of(e)) {
                const Vector<kVecC> old = *place;
                #pragma unroll
                for (int v = 0; v < kVecC; ++v) out[e + v] += beta * old.x[v];
            }
            if ((e + kVecC) % kThreadN == 0) asm volatile("" ::: "memory");  // a row's reads at a time
        }
    }
    #pragma unroll
    for (int e = 0; e < kCount; e += kVecC) {
        if (Vector<kVecC>* place = place_of(e)) {
            Vector<kVecC> value;
            #pragma unroll
            for (int v = 0; v < kVecC; ++v) value.x[v] = out[e + v];
            *place = value;
        }
    }
}

constexpr int kVecA     = 1;     // elements of A that one copy moves
constexpr int kVecB     = 1;     // elements of B that one copy moves
constexpr int kVecC     = 1;     // elements of C that one store moves
constexpr bool kGuarded = true;  // tiles may reach beyond the matrices

}  // namespace

extern "C" __global__ void __cluster_dims__(kSplitK, 1, 1) __launch_bounds__(kThreads, 1)
gemm_dmma_f64_nn_64x64x16_65130a2d(
    const Elem* __restrict__ matrix_a, int lda, const Elem* __restrict__ matrix_b, int ldb,
    Elem* __restrict__ matrix_c, int ldc, int m, int n, int k, Elem alpha, Elem beta)
{
    using CopyA = Copies<TileA, kBlockM, true, kVecA, kGuarded>;
    using CopyB = Copies<TileB, kBlockN, false, kVecB, kGuarded>;
    __shared__ __align__(16) Elem shared[kSmemBytes / sizeof(Elem)];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_m = warp / kWarpsN % kWarpsM * kWarpM, warp_n = warp % kWarpsN * kWarpN;
    const unsigned tiles_n = unsigned(n - 1) / kBlockN + 1;
    const unsigned tile = blockIdx.x / kSplitK;
    const unsigned tile_m = tile / tiles_n, tile_n = tile % tiles_n;
    const Index row0 = Index(tile_m) * kBlockM, col0 = Index(tile_n) * kBlockN;
    const int depth = alpha == Elem(0) ? 0 : k;  // A and B are not read where alpha is 0
    const int all_tiles = int((unsigned(depth) + kBlockK - 1) / kBlockK);
    const int split = int(blockIdx.x % kSplitK), over = all_tiles % kSplitK;  // the first take one more
    const int first_tile = all_tiles / kSplitK * split + min(split, over);
    const int tiles = all_tiles / kSplitK + (split < over);
    const Index k_begin = Index(first_tile) * kBlockK;
    CopyA a(matrix_a, lda, row0, k_begin, int(min(m - row0, Index(kBlockM))));
    CopyB b(matrix_b, ldb, col0, k_begin, int(min(n - col0, Index(kBlockN))));
    int k_left = depth - int(k_begin);  // of the next tile to be fetched
    Elem acc[kAcc] = {};
    int reading = 0;  // where the stage begins that is multiplied
    Elem a_fragment[1][kThreadM][kLaneK];
    Elem b_fragment[1][kThreadN / 2][kLaneK];
    const Elem *a_places[TileA::kBases], *b_places[TileB::kBases];
    TileA::find(a_places, shared, warp_m, 0, lane);
    TileB::find(b_places, shared + TileA::kSize, warp_n, 0, lane);
    griddepcontrol_wait();
    launch_dependents();

    int writing = (kStages - 1) * kStage;  // where the stage begins that is filled next
    const Pipeline<CopyA, CopyB> pipeline = {a, b, k_left};
    #pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) {
        if (stage < tiles) pipeline.fetch(shared + stage * kStage);
        commit_copies();
    }
    wait_tile();

    // Read a group's fragments of one step to one of the buffers.
    const auto read_a = [&](int p, int i, int to) {
        TileA::read(a_fragment[to][i], a_places, reading, p * kStep, i);
    };
    const auto read_b = [&](int p, int j, int to) {
        TileB::read(b_fragment[to][j], b_places, reading, p * kStep, j);
    };
    const auto read_all = [&](int step) {
        #pragma unroll
        for (int i = 0; i < kThreadM; ++i) read_a(step, i, 0);
        #pragma unroll
        for (int j = 0; j < kThreadN / 2; ++j) read_b(step, j, 0);
    };
    // Goes on to the next tile.
    const auto next_tile = [&] {
        wait_tile();
        reading = reading == (kStages - 1) * kStage ? 0 : reading + kStage;
    };

    #pragma unroll 1
    for (int each = 0; each < tiles; ++each) {
        // The stage that was multiplied last is filled again: no thread reads it any more.
        if (each + kStages - 1 < tiles) pipeline.fetch(shared + writing);
        commit_tile(writing);

        #pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            read_all(step);
            #pragma unroll
            for (int i = 0; i < kMmasM; ++i) {
                #pragma unroll
                for (int j = 0; j < kThreadN / 2; ++j) mma(acc, a_fragment[0], b_fragment[0], i, j);
            }
        }
        next_tile();
    }

    Elem out[share<kVecC>()];
    const int first = reduce_cluster<kVecC>(out, acc, shared);  // of the thread's accumulators, row after row
    const Index row = row0 + warp_m, col = col0 + warp_n;
    const int rows = int(min(m - row, Index(kWarpM))), cols = int(min(n - col, Index(kWarpN)));
    store<kVecC, kGuarded>(out, first, matrix_c + row * ldc + col, ldc, rows, cols, lane, alpha, beta);
    wait_cluster();
}
