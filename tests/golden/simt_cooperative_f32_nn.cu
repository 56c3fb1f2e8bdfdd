// gemm_simt_f32_nn_64x64x32_ef7f59d1
// Register tiles fed from shared memory, by the ordinary multiply-add.
//
//   C = alpha * op(A) * op(B) + beta * C in float; where alpha is 0, A and B are not read, where beta is 0, C is not
//
//   storage    row-major: A m x k, B k x n, C m x n; lda, ldb, ldc from row to row
//   sizes      any m, n > 0 and k >= 0; pointers, leading dimensions and rows of A, B, C aligned to 1, 1, 4 elements
//   launch     ceil(m / 64) * ceil(n / 64) * 16 CTAs along x, (512, 1, 1) threads, 34816 bytes of static shared memory
//   workspace  16384 bytes a CTA
//   counters   one each 16 CTAs, which must be 0 and are left 0
//
// Written by tilewright from templates/simt.cu.jinja, digest 58f131ffcfacb721. To write it again:
//   tilewright emit --dtype float --trans nn --config "simt:64x64x32,thread=4,slices=2,load=registers,stages=2,vec=1x1x4,split_k=16"
// SPDX-License-Identifier: MIT

//                   BLOCK_N          Each CTA computes a tile of C, each warp of it WARP_M x WARP_N, each
//                 +---------+        thread THREAD_M x THREAD_N in registers: chunks of up to 16 bytes that
//         BLOCK_K |         | op(B)  alternate with those of the warp's other lanes.
//                 +---------+
//       BLOCK_K        v             Tiles of op(A) and op(B) pass along k through STAGES buffers in shared
//       +-----+   +----+----+        memory. While one is multiplied the next are on their way:
// BLOCK |     | > |warp|warp|  C     loaded to registers before the multiplication, stored after it.
//    _M |     |   +----+----+
//       |     |   |warp|warp|        One barrier a tile: then the next tile is whole, and the one before may
//       +-----+   +----+----+        be overwritten.
//        op(A)

namespace {

using T = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int BLOCK_M    = 64;     // rows of C that a CTA computes
constexpr int BLOCK_N    = 64;     // columns of C that a CTA computes
constexpr int BLOCK_K    = 32;     // steps of k that a tile covers
constexpr int THREAD_M   = 4;      // rows of C that a thread computes
constexpr int THREAD_N   = 4;      // columns of C that a thread computes
constexpr int LANES_M    = 8;      // lanes of a warp along the rows of C
constexpr int SLICES     = 2;      // groups of warps that share the k of each tile
constexpr int STAGES     = 2;      // tiles that shared memory holds at a time
constexpr int VEC_A      = 1;      // elements of A that one copy moves
constexpr int VEC_B      = 1;      // elements of B that one copy moves
constexpr int VEC_C      = 4;      // elements of C that one store moves
constexpr int SPLIT_K    = 16;     // CTAs that share the k of a tile of C
constexpr int REDUCERS   = 16;     // of those, the ones that add up a part of the tile each
constexpr int MIN_CTAS   = 1;      // CTAs of an SM that the registers must allow
constexpr int SMEM_BYTES = 34816;  // shared memory of a CTA

constexpr int LANES_N       = 32 / LANES_M;             // lanes of a warp along the columns of C
constexpr int WARP_M        = LANES_M * THREAD_M;       // rows of C that a warp computes
constexpr int WARP_N        = LANES_N * THREAD_N;       // columns of C that a warp computes
constexpr int WARPS_M       = BLOCK_M / WARP_M;         // warps along the rows of C
constexpr int WARPS_N       = BLOCK_N / WARP_N;         // warps along the columns of C
constexpr int SLICE_THREADS = 32 * WARPS_M * WARPS_N;   // threads of a slice
constexpr int THREADS       = SLICES * SLICE_THREADS;   // threads that multiply
constexpr int WIDE          = 16 / int(sizeof(T));      // elements of the widest load
constexpr int STEP          = 1;                        // steps of k that a thread reads at once
constexpr int STEPS         = BLOCK_K / SLICES / STEP;  // such steps of a thread in a tile
constexpr int ACC           = THREAD_M * THREAD_N;      // accumulators of a thread
constexpr int OUT           = ACC / SLICES;             // those it writes in the end

static_assert(BLOCK_M % WARP_M == 0 && BLOCK_N % WARP_N == 0, "a CTA's tile is made of whole warp tiles");
static_assert(WARP_M % WIDE == 0 && WARP_N % WIDE == 0, "a warp tile is made of vectors of 16 bytes");
static_assert(BLOCK_K % (SLICES * STEP * 2) == 0, "an even number of steps of k in a tile");
static_assert(THREAD_N % VEC_C == 0, "a thread stores whole vectors");

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

// Where the slice of a thread begins in the steps of k of each tile.
__device__ __forceinline__ int slice_k() { return threadIdx.x / SLICE_THREADS * (BLOCK_K / SLICES); }

// How one operand comes to shared memory, and from there to the registers.
//
//   EXTENT   rows of op(A), or columns of op(B), in a tile: its other side is BLOCK_K
//   COUNT    those of one thread
//   LANES    lanes of a warp that share out a warp tile's
//   VEC      elements that one copy moves
//   ALONG_K  in global memory a row of the operand runs along k
template <int EXTENT, int COUNT, int LANES, int VEC, bool ALONG_K>
struct Operand {
    static constexpr int PER_ROW = (ALONG_K ? BLOCK_K : EXTENT) / VEC;  // vectors of a row in global memory
    static constexpr int COPIES = EXTENT * BLOCK_K / VEC / THREADS;  // of each thread
    static constexpr bool ONE_OUTER = ALONG_K ? COPIES == 1 : PER_ROW <= THREADS;  // row or column of all copies
    static_assert(COPIES <= 32, "a bit for each copy");
    static constexpr int PITCH = EXTENT + WIDE;                // 16 spare bytes: rows shift banks
    static constexpr int SIZE = BLOCK_K * PITCH;                // of a tile in shared memory
    static constexpr int CHUNK = COUNT < WIDE ? COUNT : WIDE;  // neighbours read at once

    const T* source;            // what this thread copies first of the next tile
    int ld;
    int place;                  // where that goes in a tile in shared memory
    unsigned k;                 // its place along k; beyond any k where no copy lies inside the matrix
    unsigned outer_inside = 0;  // bit i: copy i lies inside, k left aside

    // The operand X from its row or column `outer` on, of which `outer_left` are left, and from `k_begin` on.
    __device__ __forceinline__ Operand(const T* X, int ld, Index outer, Index k_begin, int outer_left) : ld(ld)
    {
        const int row = threadIdx.x / PER_ROW, col = threadIdx.x % PER_ROW * VEC;
        source = X + ((ALONG_K ? outer : k_begin) + row) * ld + (ALONG_K ? k_begin : outer) + col;
        place = place_of(row, col);
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

    // Whether copy i lies inside the matrix; `k_left` is what is left of k, this tile included.
    __device__ __forceinline__ bool inside(int i, int k_left) const
    {
        return (ONE_OUTER || outer_inside >> i & 1) && k + (ALONG_K ? col_of(i) : row_of(i)) < unsigned(k_left);
    }

    static __device__ constexpr int place_of(int r, int c) { return ALONG_K ? c * PITCH + r : r * PITCH + c; }
    Vector<VEC> loaded[COPIES];  // a tile on its way

    // Starts to load the next tile.
    __device__ __forceinline__ void load(int k_left)
    {
        #pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            loaded[i] = {};
            if (inside(i, k_left)) loaded[i] = *reinterpret_cast<const Vector<VEC>*>(from(i));
        }
        advance();
    }

    // Puts it into shared memory as `tile`.
    __device__ __forceinline__ void store(T* tile) const
    {
        #pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            T* to = tile + place + place_of(row_of(i), col_of(i));
            if constexpr (ALONG_K) {
                #pragma unroll
                for (int e = 0; e < VEC; ++e) to[e * PITCH] = loaded[i].x[e];
            } else {
                *reinterpret_cast<Vector<VEC>*>(to) = loaded[i];
            }
        }
    }

    // Where a thread's fragments of a tile begin, for a warp tile that begins at `first`. A thread owns chunks of
    // CHUNK neighbours, LANES chunks apart, so that the lanes of a warp together read without gaps.
    static __device__ constexpr int fragment(int first, int lane) { return first + lane * CHUNK; }

    // Which row or column of the warp tile a thread's i-th is.
    static __device__ __forceinline__ int owned(int i, int lane)
    {
        return (i / CHUNK * LANES + lane) * CHUNK + i % CHUNK;
    }

    // Reads a thread's fragment of STEP rows of shared memory, from row `p` on.
    static __device__ __forceinline__ void read(T (&fragment)[STEP][COUNT], const T* from, int p)
    {
        #pragma unroll
        for (int e = 0; e < STEP; ++e) {
            #pragma unroll
            for (int i = 0; i < COUNT; i += CHUNK) {
                const auto chunk = *reinterpret_cast<const Vector<CHUNK>*>(from + (p + e) * PITCH + i * LANES);
                #pragma unroll
                for (int c = 0; c < CHUNK; ++c) fragment[e][i + c] = chunk.x[c];
            }
        }
    }
};

using TileA = Operand<BLOCK_M, THREAD_M, LANES_M, VEC_A, true>;
using TileB = Operand<BLOCK_N, THREAD_N, LANES_N, VEC_B, false>;
constexpr int STAGE = TileA::SIZE + TileB::SIZE;  // elements of a stage: a tile of op(A), then one of op(B)
static_assert(STAGES * STAGE * sizeof(T) <= SMEM_BYTES, "the stages fit");

// Adds the outer products of two fragments, column after column up and down: neighbours in time share an operand.
__device__ __forceinline__ void outer_product(
    T (&acc)[ACC], const T (&a)[STEP][THREAD_M], const T (&b)[STEP][THREAD_N])
{
    #pragma unroll
    for (int e = 0; e < STEP; ++e) {
        #pragma unroll
        for (int j = 0; j < THREAD_N; ++j) {
            #pragma unroll
            for (int on = 0; on < THREAD_M; ++on) {
                const int i = j % 2 ? THREAD_M - 1 - on : on;
                acc[i * THREAD_N + j] += a[e][i] * b[e][j];
            }
        }
    }
}

// Which lane of a warp a lane is along the rows of C, and along the columns. The lowest bit counts along n, the next
// ones along m, the rest along n again: then lanes i and i^1 read the same of A, i and i^2 the same of B, and a
// 16-byte read of a warp passes in two goes.
__device__ __forceinline__ int lane_m(int lane) { return lane / 2 % LANES_M; }
__device__ __forceinline__ int lane_n(int lane) { return lane / (2 * LANES_M) * 2 + lane % 2; }

// Where in the warp tile the i-th row of lanes `along_m` is, and a lane's j-th column.
__device__ __forceinline__ int row_of(int i, int along_m) { return TileA::owned(i, along_m); }
__device__ __forceinline__ int col_of(int j, int lane) { return TileB::owned(j, lane_n(lane)); }

// Adds up the accumulators of the slices, slice after slice, and leaves each slice OUT of them: all threads have some
// to write then. Through shared memory that holds nothing else any more.
__device__ __forceinline__ void reduce_slices(T (&out)[OUT], T (&acc)[ACC], T* shared)
{
    T* const mine = shared + threadIdx.x % SLICE_THREADS;
    const int slice = threadIdx.x / SLICE_THREADS;
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < ACC; ++e) mine[(slice * ACC + e) * SLICE_THREADS] = acc[e];
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < OUT; ++e) {
        out[e] = 0;
        #pragma unroll
        for (int from = 0; from < SLICES; ++from) {
            out[e] += mine[(from * ACC + slice * OUT + e) * SLICE_THREADS];
        }
    }
}

// Adds to a counter that CTAs share, and gives what it was. What this thread has written or seen is there for those
// who see the new count, and what others had before they counted is there for this one.
__device__ __forceinline__ unsigned count(unsigned* counter, unsigned by)
{
#ifdef TILEWRIGHT_HOST
    return atomicAdd(counter, by);
#else
    unsigned before;
    asm volatile("atom.acq_rel.gpu.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(by) : "memory");
    return before;
#endif
}

// Reads a counter that CTAs share: what they wrote before they counted is there then.
__device__ __forceinline__ unsigned load_acquire(const unsigned* counter)
{
#ifdef TILEWRIGHT_HOST
    return *counter;
#else
    unsigned seen;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    return seen;
#endif
}

constexpr int PIECE    = OUT % WIDE == 0 ? WIDE : OUT % 2 == 0 ? 2 : 1;  // accumulators that lie side by side
constexpr int TILE     = THREADS * OUT / PIECE;                          // pieces of a tile
constexpr int PART     = TILE / REDUCERS;                                // that a CTA adds up
constexpr int OWN      = (PART + THREADS - 1) / THREADS;                 // that a thread adds up
static_assert(TILE % REDUCERS == 0, "parts are alike");

// How many threads add up a piece: all that there are for it, if they share out the CTAs evenly.
__host__ __device__ constexpr int threads_of_piece()
{
    int threads = THREADS / PART < SPLIT_K ? THREADS / PART : SPLIT_K;
    while (threads > 1 && SPLIT_K % threads != 0) --threads;
    return threads > 1 ? threads : 1;
}
constexpr int ADDERS   = threads_of_piece();
constexpr int TERMS    = SPLIT_K / ADDERS;  // CTAs for each of them
constexpr int WORDS    = OWN * PIECE * int(sizeof(T)) / 4;
constexpr int AHEAD    = WORDS > 32 ? 1 : 64 / WORDS;  // of them read at a time: more would take registers

// The word of a tile of C: how many CTAs have written their accumulators, in its lowest 8 bits, then a bit for each
// part of the tile that is left to the last of them, and from GONE on how many will not look again.
constexpr unsigned GONE = 1u << 24;
__device__ __forceinline__ unsigned came(unsigned word) { return word % 256; }
__device__ __forceinline__ unsigned left_to_last(unsigned word) { return word / 256 % 65536; }

// The parts of the tile that this CTA adds up, a bit for each: its own once the accumulators of all are there. One
// that waits too long for CTAs that do not run yet leaves its part to the last of them, so that none waits for ever.
__device__ __forceinline__ unsigned parts_to_add(unsigned* word, int split, unsigned* found)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        const unsigned own = split < REDUCERS ? 1u << split : 0;
        unsigned parts = own, seen = count(word, 1);
        if (came(seen) == SPLIT_K - 1) {
            parts |= left_to_last(seen);
        } else if (own) {
#ifndef TILEWRIGHT_HOST
            constexpr int PATIENCE = 1 << 18;  // clocks
            const long long since = clock64();
            while (came(seen) < SPLIT_K && clock64() - since < PATIENCE) {
                seen = load_acquire(word);
            }
#endif
            if (came(seen) < SPLIT_K && came(count(word, 256 * own)) < SPLIT_K) parts = 0;
        }
        *found = parts;
    }
    __syncthreads();
    return *found;
}

// Thread 0 counts its CTA among those that will not look at the word again, and gets what the word was, the others
// 0. Not by an `if`: what a branch of the text makes is waited for where it ends.
__device__ __forceinline__ unsigned look_away(unsigned* word)
{
    unsigned before = 0;
#ifdef TILEWRIGHT_HOST
    if (threadIdx.x == 0) before = atomicAdd(word, GONE);
#else
    asm volatile("{\n\t"
                 ".reg .pred first;\n\t"
                 "setp.eq.u32 first, %1, 0;\n\t"
                 "@first atom.relaxed.gpu.add.u32 %0, [%2], %3;\n\t"
                 "}" : "+r"(before) : "r"(threadIdx.x), "l"(word), "n"(GONE));
#endif
    return before;
}

// Adds up the accumulators of the SPLIT_K CTAs that share a tile of C, always in the same order, so that every run
// gives the same bits. Each CTA writes its own to the workspace. The first REDUCERS of them add up a part of the
// tile each, once all are there, and hand on pieces of it: `write(piece, thread, e)`, where they are those of a CTA's
// thread from its e-th on.
//
// The workspace holds a tile for each CTA. There is a counter, its word, for each tile of C, 0 before and after.
template <typename Write>
__device__ __forceinline__ void reduce_cooperative(
    T (&out)[OUT], T* workspace, unsigned* counters, T* shared, Write write)
{
    using Piece = Vector<PIECE>;
    const int split = int(blockIdx.x % SPLIT_K);
    unsigned* const word = counters + blockIdx.x / SPLIT_K;
    Piece* const tiles = reinterpret_cast<Piece*>(workspace) + Index(blockIdx.x - split) * TILE;
    Piece* const lines = reinterpret_cast<Piece*>(shared) + 1;  // it holds nothing else any more

    #pragma unroll
    for (int g = 0; g < OUT / PIECE; ++g) {
        Piece piece;
        #pragma unroll
        for (int e = 0; e < PIECE; ++e) piece.x[e] = out[g * PIECE + e];
        tiles[split * TILE + g * THREADS + threadIdx.x] = piece;
    }
    const unsigned parts = parts_to_add(word, split, reinterpret_cast<unsigned*>(shared));
    const unsigned before = look_away(word);  // not waited for till the end

    const int line = ADDERS > 1 ? threadIdx.x / PART : 0;  // of the CTAs
    const int first = int(threadIdx.x) - line * PART;        // of the thread's pieces
    #pragma unroll 1
    for (int part = 0; part < REDUCERS; ++part) {
        if (!(parts >> part & 1)) continue;
        Piece total[OWN] = {};
        #pragma unroll AHEAD
        for (int term = 0; term < (line < ADDERS ? TERMS : 0); ++term) {
            const int from = line * TERMS + term;
            #pragma unroll
            for (int i = 0; i < OWN; ++i) {
                if (OWN * THREADS > PART && ADDERS == 1 && first + i * THREADS >= PART) break;
                const Piece piece = tiles[from * TILE + part * PART + first + i * THREADS];
                #pragma unroll
                for (int e = 0; e < PIECE; ++e) total[i].x[e] += piece.x[e];
            }
        }
        if constexpr (ADDERS > 1) {
            __syncthreads();
            if (line < ADDERS) lines[threadIdx.x] = total[0];
            __syncthreads();
            if (line > 0) continue;
            #pragma unroll
            for (int other = 1; other < ADDERS; ++other) {
                const Piece piece = lines[other * PART + first];
                #pragma unroll
                for (int e = 0; e < PIECE; ++e) total[0].x[e] += piece.x[e];
            }
        }
        #pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const int at = part * PART + first + i * THREADS;
            if (OWN * THREADS > PART && first + i * THREADS >= PART) break;
            write(total[i].x, at % THREADS, at / THREADS * PIECE);
        }
    }
    if (before / GONE == SPLIT_K - 1) *word = 0;
}

// Writes accumulators of a thread, VEC_C elements of a row of C at a time: those from `first` on, row after row.
// `c` is where the warp tile begins; `rows` and `cols` are left of C from there.
__device__ __forceinline__ void store(
    T (&out)[PIECE], int first, T* c, int ldc, int rows, int cols, int lane, T alpha, T beta)
{
    // Where the vector belongs that begins with out[e]; null outside of C.
    const auto place_of = [&](int e) -> Vector<VEC_C>* {
        const int row = row_of((first + e) / THREAD_N, lane_m(lane));
        const int col = col_of((first + e) % THREAD_N, lane);
        if (row >= rows || col >= cols) return nullptr;
        return reinterpret_cast<Vector<VEC_C>*>(c + Index(row) * ldc + col);
    };
    #pragma unroll
    for (int e = 0; e < PIECE; ++e) out[e] *= alpha;
    // All is read before any of it is written, else each read would wait for the write before it; but not all at a
    // time, which would take as many registers again.
    if (beta != T(0)) {
        #pragma unroll
        for (int e = 0; e < PIECE; e += VEC_C) {
            if (const Vector<VEC_C>* place = place_of(e)) {
                const Vector<VEC_C> old = *place;
                #pragma unroll
                for (int v = 0; v < VEC_C; ++v) out[e + v] += beta * old.x[v];
            }
            if ((e + VEC_C) % THREAD_N == 0) asm volatile("" ::: "memory");  // a row's reads at a time
        }
    }
    #pragma unroll
    for (int e = 0; e < PIECE; e += VEC_C) {
        if (Vector<VEC_C>* place = place_of(e)) {
            Vector<VEC_C> value;
            #pragma unroll
            for (int v = 0; v < VEC_C; ++v) value.x[v] = out[e + v];
            *place = value;
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, MIN_CTAS) gemm_simt_f32_nn_64x64x32_ef7f59d1(
    const T* __restrict__ A, int lda, const T* __restrict__ B, int ldb, T* __restrict__ C, int ldc,
    int m, int n, int k, T alpha, T beta, T* __restrict__ workspace, unsigned* counters)
{
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
    TileA a(A, lda, row0, k_begin, int(min(m - row0, Index(BLOCK_M))));
    TileB b(B, ldb, col0, k_begin, int(min(n - col0, Index(BLOCK_N))));
    int k_left = depth - int(k_begin);  // of the next tile to be fetched
    T acc[ACC] = {};
    int reading = 0;  // where the stage begins that is multiplied
    T a_fragment[2][STEP][THREAD_M], b_fragment[2][STEP][THREAD_N];
    const T* a_from = shared + TileA::fragment(warp_m, lane_m(lane));
    const T* b_from = shared + TileA::SIZE + TileB::fragment(warp_n, lane_n(lane));
    a_from += slice_k() * TileA::PITCH;
    b_from += slice_k() * TileB::PITCH;
    griddepcontrol_wait();
    launch_dependents();

    // fetch() starts to load the next tile to registers, put() stores it to a stage.
    const auto fetch = [&] { a.load(k_left); b.load(k_left); k_left -= BLOCK_K; };
    const auto put = [&](T* stage) { a.store(stage); b.store(stage + TileA::SIZE); };
    if (tiles > 0) { fetch(); put(shared); }
    __syncthreads();
    TileA::read(a_fragment[0], a_from, 0);
    TileB::read(b_fragment[0], b_from, 0);

    #pragma unroll 1
    for (int each = 0; each < tiles; ++each) {
        const bool more = each + 1 < tiles;
        if (more) fetch();

        // The next step's fragments are read before this one's are multiplied, at last those of the next tile.
        #pragma unroll
        for (int step = 0; step < STEPS - 1; ++step) {
            TileA::read(a_fragment[(step + 1) % 2], a_from + reading, (step + 1) * STEP);
            TileB::read(b_fragment[(step + 1) % 2], b_from + reading, (step + 1) * STEP);
            outer_product(acc, a_fragment[step % 2], b_fragment[step % 2]);
        }
        reading = STAGE - reading;
        if (more) put(shared + reading);
        __syncthreads();
        TileA::read(a_fragment[0], a_from + reading, 0);
        TileB::read(b_fragment[0], b_from + reading, 0);
        outer_product(acc, a_fragment[1], b_fragment[1]);
    }

    T out[OUT];
    reduce_slices(out, acc, shared);
    // A piece is written as the thread would write it that had these accumulators of its CTA's.
    reduce_cooperative(out, workspace, counters, shared, [&](T (&piece)[PIECE], int thread, int e) {
        const int warp = thread / 32;
        const Index row = row0 + warp / WARPS_N % WARPS_M * WARP_M, col = col0 + warp % WARPS_N * WARP_N;
        const int rows = int(min(m - row, Index(WARP_M))), cols = int(min(n - col, Index(WARP_N)));
        store(piece, thread / SLICE_THREADS * OUT + e, C + row * ldc + col, ldc, rows, cols, thread % 32, alpha, beta);
    });
}
