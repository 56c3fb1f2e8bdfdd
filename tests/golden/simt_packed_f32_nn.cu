// gemm_simt_f32_nn_64x64x16_3d322194
// Register tiles fed from shared memory, by the ordinary multiply-add.
//
//   C = alpha * op(A) * op(B) + beta * C in float; where alpha is 0, A and B are not read, where beta is 0, C is not
//
//   storage    row-major: A m x k, B k x n, C m x n; lda, ldb, ldc from row to row
//   copies     the kernel pack_ab_f32_nn comes first: it copies A and B
//              to rows of m and n elements, one a step of k, at multiples of 128 bytes; this one is given the copies
//   sizes      any m, n > 0 and k >= 0; pointers and leading dimensions aligned to one element
//   launch     ceil(m / 64) * ceil(n / 64) CTAs along x, (64, 1, 1) threads, 26112 bytes of static shared memory
//
// Written by tilewright from templates/simt.cu.jinja, digest 9fe398054f9ca120. To write it again:
//   tilewright emit --dtype float --trans nn --config "simt:64x64x16,pack_a,pack_b"
// SPDX-License-Identifier: MIT

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "cp.async needs sm_80 or newer"
#endif

//                    kBlockN         Each CTA computes a tile of C, each warp of it kWarpM x kWarpN, each
//                  +---------+       thread kThreadM x kThreadN in registers: chunks of up to 16 bytes that
//          kBlockK |         | op(B) alternate with those of the warp's other lanes.
//                  +---------+
//        kBlockK        v            Tiles of op(A) and op(B) pass along k through kStages buffers in shared
//        +-----+   +----+----+       memory. While one is multiplied the next are on their way:
// kBlock |     | > |warp|warp|  C    cp.async copies them asynchronously.
//      M |     |   +----+----+
//        |     |   |warp|warp|       One barrier a tile: then the next tile is whole, and the one before may
//        +-----+   +----+----+       be overwritten.
//         op(A)

namespace {

using Elem = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int kBlockM    = 64;     // rows of C that a CTA computes
constexpr int kBlockN    = 64;     // columns of C that a CTA computes
constexpr int kBlockK    = 16;     // steps of k that a tile covers
constexpr int kThreadM   = 8;      // rows of C that a thread computes
constexpr int kThreadN   = 8;      // columns of C that a thread computes
constexpr int kLanesM    = 8;      // lanes of a warp along the rows of C
constexpr int kStages    = 3;      // tiles that shared memory holds at a time
constexpr int kMinCtas   = 1;      // CTAs of an SM that the registers must allow
constexpr int kSmemBytes = 26112;  // shared memory of a CTA

constexpr int kLanesN  = 32 / kLanesM;            // lanes of a warp along the columns of C
constexpr int kWarpM   = kLanesM * kThreadM;      // rows of C that a warp computes
constexpr int kWarpN   = kLanesN * kThreadN;      // columns of C that a warp computes
constexpr int kWarpsM  = kBlockM / kWarpM;        // warps along the rows of C
constexpr int kWarpsN  = kBlockN / kWarpN;        // warps along the columns of C
constexpr int kThreads = 32 * kWarpsM * kWarpsN;  // threads that multiply
constexpr int kWide    = 16 / int(sizeof(Elem));  // elements of the widest load
constexpr int kStep    = 1;                       // steps of k that a thread reads at once
constexpr int kSteps   = kBlockK / kStep;         // such steps of a thread in a tile
constexpr int kAcc     = kThreadM * kThreadN;     // accumulators of a thread

static_assert(kBlockM % kWarpM == 0 && kBlockN % kWarpN == 0, "a CTA's tile is made of whole warp tiles");
static_assert(kWarpM % kWide == 0 && kWarpN % kWide == 0, "a warp tile is made of vectors of 16 bytes");
static_assert(kBlockK % (kStep * 2) == 0, "an even number of steps of k in a tile");

// ---- Instructions (PTX) -----------------------------------------------------------------------------------------

// Programmatic dependent launch (PDL): waits for what earlier kernels of the stream wrote; lets the next one start.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }
#else
__device__ __forceinline__ void griddepcontrol_wait() {}
__device__ __forceinline__ void launch_dependents() {}
#endif

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

// How a tile of one operand lies in shared memory, and comes from there to the registers.
//
//   kExtent  rows of op(A), or columns of op(B), in a tile: its other side is kBlockK
//   kCount   those of one thread
//   kLanes   lanes of a warp that share out a warp tile's
//   kAlongK  in global memory a row of the operand runs along k
template <int kExtent, int kCount, int kLanes, bool kAlongK>
struct Operand {
    static constexpr int kPitch = kExtent + kWide;                  // 16 spare bytes: rows shift banks
    static constexpr int kSize = kBlockK * kPitch;                   // of a tile in shared memory
    static constexpr int kChunk = kCount < kWide ? kCount : kWide;  // neighbours read at once

    // Where element (row, col) of the stored tile is, and what lies so much further in `t` than another place.
    static __device__ constexpr int place_of(int r, int c) { return kAlongK ? c * kPitch + r : r * kPitch + c; }
    static __device__ __forceinline__ Elem* further(Elem* t, int place, int r, int c)
    {
        return t + place + place_of(r, c);
    }

    // Where a thread's fragments of a tile begin, for a warp tile that begins at `first`. A thread owns chunks of
    // kChunk neighbours, kLanes chunks apart, so that the lanes of a warp together read without gaps.
    static __device__ constexpr int fragment(int first, int lane) { return first + lane * kChunk; }

    // The row or column of the warp tile that is a thread's i-th.
    static __device__ __forceinline__ int owned(int i, int lane)
    {
        return (i / kChunk * kLanes + lane) * kChunk + i % kChunk;
    }

    // Reads a thread's fragment of kStep rows of shared memory, from row `p` on.
    static __device__ __forceinline__ void read(Elem (&fragment)[kStep][kCount], const Elem* from, int p)
    {
        #pragma unroll
        for (int e = 0; e < kStep; ++e) {
            #pragma unroll
            for (int i = 0; i < kCount; i += kChunk) {
                const auto chunk = *reinterpret_cast<const Vector<kChunk>*>(from + (p + e) * kPitch + i * kLanes);
                #pragma unroll
                for (int c = 0; c < kChunk; ++c) fragment[e][i + c] = chunk.x[c];
            }
        }
    }
};

using TileA = Operand<kBlockM, kThreadM, kLanesM, false>;
using TileB = Operand<kBlockN, kThreadN, kLanesN, false>;

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

// Adds the outer products of two fragments, column after column up and down: neighbours in time share an operand.
__device__ __forceinline__ void outer_product(
    Elem (&acc)[kAcc], const Elem (&a)[kStep][kThreadM], const Elem (&b)[kStep][kThreadN])
{
    #pragma unroll
    for (int e = 0; e < kStep; ++e) {
        #pragma unroll
        for (int j = 0; j < kThreadN; ++j) {
            #pragma unroll
            for (int on = 0; on < kThreadM; ++on) {
                const int i = j % 2 ? kThreadM - 1 - on : on;
                acc[i * kThreadN + j] += a[e][i] * b[e][j];
            }
        }
    }
}

// The lane's number along the rows of C, and along the columns. The lowest bit counts along n, the next
// ones along m, the rest along n again: then lanes i and i^1 read the same of A, i and i^2 the same of B, and a
// 16-byte read of a warp passes in two goes.
__device__ __forceinline__ int lane_m(int lane) { return lane / 2 % kLanesM; }
__device__ __forceinline__ int lane_n(int lane) { return lane / (2 * kLanesM) * 2 + lane % 2; }

// Where in the warp tile the i-th row of lanes `along_m` is, and a lane's j-th column.
__device__ __forceinline__ int row_of(int i, int along_m) { return TileA::owned(i, along_m); }
__device__ __forceinline__ int col_of(int j, int lane) { return TileB::owned(j, lane_n(lane)); }

// Writes accumulators of a thread, kVecC elements of a row of C at a time: those from `first` on, row after row.
// `c` is where the warp tile begins; `rows` and `cols` are left of C from there.
template <int kVecC, bool kGuarded>
__device__ __forceinline__ void store(
    Elem (&out)[kAcc], int first, Elem* c, int ldc, int rows, int cols, int lane, Elem beta)
{
    // Where the vector belongs that begins with out[e]; null outside of C.
    const auto place_of = [&](int e) -> Vector<kVecC>* {
        const int row = row_of((first + e) / kThreadN, lane_m(lane));
        const int col = col_of((first + e) % kThreadN, lane);
        if constexpr (kGuarded) if (row >= rows || col >= cols) return nullptr;
        return reinterpret_cast<Vector<kVecC>*>(c + Index(row) * ldc + col);
    };
    // All is read before any of it is written, else each read would wait for the write before it; but not all at a
    // time, which would take as many registers again.
    if (beta != Elem(0)) {
        #pragma unroll
        for (int e = 0; e < kAcc; e += kVecC) {
            if (const Vector<kVecC>* place = place_of(e)) {
                const Vector<kVecC> old = *place;
                #pragma unroll
                for (int v = 0; v < kVecC; ++v) out[e + v] += beta * old.x[v];
            }
            if ((e + kVecC) % kThreadN == 0) asm volatile("" ::: "memory");  // a row's reads at a time
        }
    }
    #pragma unroll
    for (int e = 0; e < kAcc; e += kVecC) {
        if (Vector<kVecC>* place = place_of(e)) {
            Vector<kVecC> value;
            #pragma unroll
            for (int v = 0; v < kVecC; ++v) value.x[v] = out[e + v];
            *place = value;
        }
    }
}

constexpr int kVecA     = 4;     // elements of A that one copy moves
constexpr int kVecB     = 4;     // elements of B that one copy moves
constexpr int kVecC     = 1;     // elements of C that one store moves
constexpr bool kGuarded = true;  // tiles may reach beyond the matrices

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, kMinCtas) gemm_simt_f32_nn_64x64x16_3d322194(
    const Elem* __restrict__ matrix_a, int lda, const Elem* __restrict__ matrix_b, int ldb,
    Elem* __restrict__ matrix_c, int ldc, int m, int n, int k, Elem alpha, Elem beta)
{
    static_assert(kThreadN % kVecC == 0, "a thread stores whole vectors");
    using CopyA = Copies<TileA, kBlockM, false, kVecA, kGuarded>;
    using CopyB = Copies<TileB, kBlockN, false, kVecB, kGuarded>;
    __shared__ __align__(16) Elem shared[kSmemBytes / sizeof(Elem)];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_m = warp / kWarpsN % kWarpsM * kWarpM, warp_n = warp % kWarpsN * kWarpN;
    const unsigned tiles_n = unsigned(n - 1) / kBlockN + 1;
    const unsigned tile_m = blockIdx.x / tiles_n, tile_n = blockIdx.x % tiles_n;
    const Index row0 = Index(tile_m) * kBlockM, col0 = Index(tile_n) * kBlockN;
    const int depth = alpha == Elem(0) ? 0 : k;  // A and B are not read where alpha is 0
    const int tiles = int((unsigned(depth) + kBlockK - 1) / kBlockK);
    CopyA a(matrix_a, lda, row0, 0, int(min(m - row0, Index(kBlockM))));
    CopyB b(matrix_b, ldb, col0, 0, int(min(n - col0, Index(kBlockN))));
    int k_left = depth;  // of the next tile to be fetched
    Elem acc[kAcc] = {};
    int reading = 0;  // where the stage begins that is multiplied
    Elem a_fragment[2][kStep][kThreadM], b_fragment[2][kStep][kThreadN];
    const Elem* a_from = shared + TileA::fragment(warp_m, lane_m(lane));
    const Elem* b_from = shared + TileA::kSize + TileB::fragment(warp_n, lane_n(lane));
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
    TileA::read(a_fragment[0], a_from, 0);
    TileB::read(b_fragment[0], b_from, 0);

    #pragma unroll 1
    for (int each = 0; each < tiles; ++each) {
        // The stage that was multiplied last is filled again: no thread reads it any more.
        if (each + kStages - 1 < tiles) pipeline.fetch(shared + writing);
        commit_tile(writing);

        // The next step's fragments are read before this one's are multiplied, at last those of the next tile.
        #pragma unroll
        for (int step = 0; step < kSteps - 1; ++step) {
            TileA::read(a_fragment[(step + 1) % 2], a_from + reading, (step + 1) * kStep);
            TileB::read(b_fragment[(step + 1) % 2], b_from + reading, (step + 1) * kStep);
            outer_product(acc, a_fragment[step % 2], b_fragment[step % 2]);
        }
        wait_tile();
        reading = reading == (kStages - 1) * kStage ? 0 : reading + kStage;
        TileA::read(a_fragment[0], a_from + reading, 0);
        TileB::read(b_fragment[0], b_from + reading, 0);
        outer_product(acc, a_fragment[1], b_fragment[1]);
    }

    // Scaled before they go anywhere: the products may lie in neighbouring registers, as vectors want it. The
    // accumulators of the loop would meet operands in a bank of registers there.
    #pragma unroll
    for (int e = 0; e < kAcc; ++e) acc[e] *= alpha;

    const Index row = row0 + warp_m, col = col0 + warp_n;
    const int rows = int(min(m - row, Index(kWarpM))), cols = int(min(n - col, Index(kWarpN)));
    store<kVecC, kGuarded>(acc, 0, matrix_c + row * ldc + col, ldc, rows, cols, lane, beta);
}

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
