// gemm_wgmma_f32_nn_64x64x64_17b2e955
// Float by products of half-precision terms on the tensor cores, wgmma.
//
//   C = alpha * op(A) * op(B) + beta * C in float; where alpha is 0, A and B are not read, where beta is 0, C is not
//
//   storage    row-major: A m x k, B k x n, C m x n; lda, ldb, ldc from row to row
//   accuracy   normwise
//   terms      the kernel split_fp16x3_nn_blocked64_cluster8 comes first: it writes each element of A and B
//              as a sum of 2 numbers of 16 bits to memory that this one is given, 4 bytes an element with m, n
//              and k rounded up to 64, 64, 64, and 4 bytes for each row of op(A) and column of op(B)
//   sizes      any m, n > 0 and k >= 0; pointers and leading dimensions aligned to one element
//   launch     ceil(m / 64) * ceil(n / 64) CTAs along x,
//              (256, 1, 1) threads, 65568 bytes of shared memory, given at launch
//
// Written by tilewright from templates/wgmma.cu.jinja, digest bf131f000a10c4f4. To write it again:
//   tilewright emit --dtype float --trans nn --accuracy normwise --config "wgmma:64x64x64,stages=2"
// SPDX-License-Identifier: MIT

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#error "wgmma needs sm_90 or newer"
#endif

//                    kBlockN         Each CTA computes a tile of C, each warpgroup 64 rows of it, by instructions
//                  +---------+       that multiply 64 x 16 by 16 x kBlockN terms, all in shared memory.
//          kBlockK |         | op(B)
//                  +---------+       A warpgroup of its own copies tiles of all terms to kStages buffers, each a run
//        kBlockK        v            of memory. Each term of a tile is used for all its products, the smallest
//        +-----+   +---------+       first.
// kBlock |     | > |warpgroup|  C
//      M |     |   +---------+       Every kPromote steps of k what the tensor cores have added up is added to sums
//        |     |   |warpgroup|       in float: they cut their own sums off, which grows with the sum. Meanwhile
//        +-----+   +---------+       they work for the other warpgroups.
//         op(A)                      A row or column that terms cannot hold is multiplied in float, as it is.

namespace {

using Elem = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int kBlockM    = 64;     // rows of C that a CTA computes
constexpr int kBlockN    = 64;     // columns of C that a CTA computes
constexpr int kBlockK    = 64;     // steps of k that a tile covers: 128 bytes of a term
constexpr int kTerms     = 2;      // terms of an element: halves
constexpr int kPromote   = 64;     // steps of k that the tensor cores add up
constexpr int kStages    = 2;      // tiles that shared memory holds at a time
constexpr int kSmemBytes = 65568;  // shared memory of a CTA

constexpr int kWarpM   = 16;                   // rows of C that a warp computes
constexpr int kWarpN   = kBlockN;              // columns of C that a warp computes
constexpr int kThreads = 2 * kBlockM;          // threads that multiply, a warpgroup for 64 rows
constexpr int kThreadN = kBlockN / 4;          // columns of C that a thread holds: two of every 8
constexpr int kThreadM = 2;                    // rows of C that a thread holds, 8 apart
constexpr int kAcc     = kThreadM * kThreadN;  // elements of C that a thread holds
constexpr int kOut     = kAcc;                 // those it writes in the end

static_assert(kBlockM % 64 == 0 && kBlockN % 8 == 0, "a CTA's tile is made of whole instructions");
constexpr int kDepth = kBlockK > kPromote ? kBlockK : kPromote;  // steps of k of whole tiles and whole intervals
constexpr int kTiles = kDepth / kBlockK;
constexpr int kStep  = kBlockK < kPromote ? kBlockK : kPromote;  // steps of k that are started together
static_assert(kDepth % kStep == 0 && kStep % 16 == 0, "sums are promoted after whole steps");
static_assert(kTiles < kStages, "a stage is filled while an interval is multiplied");

// ---- Instructions (PTX) -----------------------------------------------------------------------------------------

// Programmatic dependent launch (PDL): waits for what earlier kernels of the stream wrote; lets the next one start.
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }

// An mbarrier: made for so many arrivals a phase; an arrival; an arrival that has the phase wait for bytes.
__device__ __forceinline__ void mbarrier_init(void* barrier, unsigned count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;"
                 ::"r"(unsigned(__cvta_generic_to_shared(barrier))), "r"(count) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(void* barrier)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];"
                 ::"r"(unsigned(__cvta_generic_to_shared(barrier))) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive_expect(void* barrier, unsigned bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                 ::"r"(unsigned(__cvta_generic_to_shared(barrier))), "r"(bytes) : "memory");
}

// Waits some time for the end of the phase of this parity, and says whether it has ended. Parity is 0 for the first
// phase; what is before the first counts as ended, with parity 1.
__device__ __forceinline__ unsigned mbarrier_try_wait(void* barrier, unsigned parity)
{
    unsigned ended;
    asm volatile("{ .reg .pred ended;\n"
                 "mbarrier.try_wait.parity.shared.b64 ended, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, ended; }"
                 : "=r"(ended)
                 : "r"(unsigned(__cvta_generic_to_shared(barrier))), "r"(parity)
                 : "memory");
    return ended;
}

// Copies see the mbarriers that this thread has made, and threads do so after the CTA's barrier.
__device__ __forceinline__ void fence_mbarrier_init()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Starts to copy so many bytes, a multiple of 16, from global to shared memory. They arrive at the mbarrier.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, unsigned bytes, void* barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(unsigned(__cvta_generic_to_shared(to))), "l"(__cvta_generic_to_global(from)), "r"(bytes),
                 "r"(unsigned(__cvta_generic_to_shared(barrier)))
                 : "memory");
}

// A barrier of the CTA by number, of which it has 16, for kCount of its threads. __syncthreads() takes number 0.
template <int kBarrier, int kCount>
__device__ __forceinline__ void sync_constant()
{
    asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kCount) : "memory");
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // only sm_90a has these instructions, sm_90 does not
// Registers and shared memory are as the instructions that follow expect them.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// A warpgroup starts to add to 64 x kBlockN sums, or with `fresh` to 0, the product of 64 x 16 halves of A and
// 16 x kBlockN of B. `a` and `b` are matrix descriptors, which tell where in shared memory they lie. Lane 4g + t of
// warp w holds rows 16w + g and 16w + g + 8 of C, of each 8 columns 2t and 2t + 1: those of the first row come first.
__device__ __forceinline__ void wgmma_f16(float (&acc)[kAcc], unsigned long long a, unsigned long long b, bool fresh)
{
    asm volatile(
        "{ .reg .pred add;\n"
        "setp.ne.b32 add, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        " %0, %1, %2, %3, %4, %5, %6, %7,"
        " %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23,"
        " %24, %25, %26, %27, %28, %29, %30, %31 },"
        " %32, %33, add, 1, 1, 0, 0; }"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[16]), "+f"(acc[17]), "+f"(acc[2]), "+f"(acc[3]),
          "+f"(acc[18]), "+f"(acc[19]), "+f"(acc[4]), "+f"(acc[5]), "+f"(acc[20]), "+f"(acc[21]),
          "+f"(acc[6]), "+f"(acc[7]), "+f"(acc[22]), "+f"(acc[23]), "+f"(acc[8]), "+f"(acc[9]),
          "+f"(acc[24]), "+f"(acc[25]), "+f"(acc[10]), "+f"(acc[11]), "+f"(acc[26]), "+f"(acc[27]),
          "+f"(acc[12]), "+f"(acc[13]), "+f"(acc[28]), "+f"(acc[29]), "+f"(acc[14]), "+f"(acc[15]),
          "+f"(acc[30]), "+f"(acc[31])
        : "l"(a), "l"(b), "r"(int(!fresh)));
}

// Commit what this warpgroup has started as a group, and wait for all but the last kPending groups.
__device__ __forceinline__ void commit_wgmma() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_wgmma(float (&acc)[kAcc])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
    if constexpr (kPending == 0) {
        #pragma unroll
        for (int e = 0; e < kAcc; ++e) asm volatile("" : "+f"(acc[e])::"memory");  // not read before
    }
}
#else
__device__ __forceinline__ void wgmma_fence() {}
__device__ __forceinline__ void wgmma_f16(float (&)[kAcc], unsigned long long, unsigned long long, bool) { __trap(); }
__device__ __forceinline__ void commit_wgmma() {}
template <int> __device__ __forceinline__ void wait_wgmma(float (&)[kAcc]) {}
#endif

// ---- The kernel -------------------------------------------------------------------------------------------------

template <int kCount>
struct alignas(kCount * sizeof(Elem)) Vector { Elem x[kCount]; };

// An mbarrier in shared memory. Each of its phases takes some arrivals, and the bytes that those announce.
using Barrier = unsigned long long;

// Each element of A and B is a sum of kTerms terms, with a power of two for each row of op(A) and column of op(B). All
// of one term come before those of the next; 64 steps of k of all rows of op(A), or columns of op(B), before the next
// 64. These 128 bytes of a row lie side by side, in pieces of 16 bytes, of which piece i of row r is at i ^ (r % 8):
// a tile is one run of memory, as the tensor cores read it. Exponents of the rows, then of the columns, follow the
// terms. Past the matrix terms are 0.
using Term = unsigned short;  // the bits of a half or bfloat16
constexpr int kSpecial = 1 << 20;  // the exponent of a row or column that terms cannot hold

struct Terms {
    Index rows, cols, depth;  // m, n and k rounded up to whole tiles
    char* memory;

    // Where step p of row i lies, of `rows` rows of `depth` steps.
    static __device__ __forceinline__ Index place(Index i, int p, Index rows, Index depth)
    {
        return (p / 64 * rows + i) * 64 + (p % 64 / 8 ^ int(i % 8)) * 8 + p % 8;
    }

    __device__ __forceinline__ Term* a() const { return reinterpret_cast<Term*>(memory); }
    __device__ __forceinline__ Term* b() const { return a() + kTerms * rows * depth; }
    __device__ __forceinline__ int* exponents() const { return reinterpret_cast<int*>(b() + kTerms * cols * depth); }
    __device__ __forceinline__ int* col_exponents() const { return exponents() + rows; }
};

constexpr int kSizeA = kBlockM * kBlockK, kSizeB = kBlockN * kBlockK;  // elements of a term of a tile
constexpr int kStage = kTerms * (kSizeA + kSizeB);  // of a stage: terms of a tile of op(A), then those of op(B)
static_assert(kStages * (kStage * sizeof(Term) + 2 * sizeof(Barrier)) <= kSmemBytes, "the stages fit");

// A matrix descriptor tells wgmma where rows of kBlockK terms lie in shared memory. It holds the address in bits 0 to
// 13, the leading byte offset in bits 16 to 29 and the stride byte offset in bits 32 to 45, each in units of 16 bytes,
// and the swizzle mode in bits 62 and 63.
constexpr int kRowBytes = kBlockK * int(sizeof(Term));
static_assert(kRowBytes == 128 || kRowBytes == 64, "a swizzle mode has spans as long as a row");
constexpr unsigned long long kSwizzleMode  = kRowBytes == 128 ? 1 : 2;  // swizzled in spans of 128 or of 64 bytes
constexpr unsigned long long kStrideBytes  = 8 * kRowBytes;             // from one group of 8 rows to the next
constexpr unsigned long long kLeadingBytes = 16;                        // without a meaning where rows are swizzled
constexpr unsigned long long kLayout = kSwizzleMode << 62 | kStrideBytes / 16 << 32 | kLeadingBytes / 16 << 16;

// The descriptor of rows that begin at `place`, and that of what lies so many terms further. 16 steps of k begin 32
// bytes behind the 16 before them, though rows are swizzled: the tensor cores swizzle the address that they add up to.
__device__ __forceinline__ unsigned long long descriptor_of(const Term* place)
{
    return kLayout | unsigned(__cvta_generic_to_shared(place)) / 16;
}
__device__ __forceinline__ unsigned long long further(unsigned long long descriptor, int terms)
{
    return descriptor + unsigned(terms) * sizeof(Term) / 16;  // no carry: a CTA has less than 2^18 bytes
}

// The lane's number along the rows of C.
__device__ __forceinline__ int lane_m(int lane) { return lane / 4; }

// Where in the warp tile the i-th row of lanes `along_m` is, and a lane's j-th column.
__device__ __forceinline__ int row_of(int i, int along_m) { return along_m + 8 * i; }
__device__ __forceinline__ int col_of(int j, int lane) { return lane % 4 * 2 + j / 2 * 8 + j % 2; }

// The next stage, and the parity of the phase of its barrier.
struct Turn {
    int stage;
    unsigned parity;

    __device__ __forceinline__ void next()
    {
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// One thread copies the tiles of k of a tile of C.
__device__ __forceinline__ void produce(
    Term* stages, Barrier* full, Barrier* empty, Turn& turn, const Terms& from, Index row0, Index col0, int tiles)
{
    #pragma unroll 1
    for (int each = 0; each < tiles; ++each) {
        while (!mbarrier_try_wait(&empty[turn.stage], turn.parity)) {}  // by all warps
        Barrier& barrier = full[turn.stage];
        mbarrier_arrive_expect(&barrier, kStage * sizeof(Term));
        Term* to = stages + turn.stage * kStage;
        #pragma unroll
        for (int term = 0; term < kTerms; ++term, to += kSizeA) {
            const Index at = term * from.rows * from.depth + Terms::place(row0, each * kBlockK, from.rows, from.depth);
            copy_bulk(to, from.a() + at, kSizeA * sizeof(Term), &barrier);
        }
        #pragma unroll
        for (int term = 0; term < kTerms; ++term, to += kSizeB) {
            const Index at = term * from.cols * from.depth + Terms::place(col0, each * kBlockK, from.cols, from.depth);
            copy_bulk(to, from.b() + at, kSizeB * sizeof(Term), &barrier);
        }
        turn.next();
    }
}

// Starts all products of the terms over kStep steps of k, where `begins` to sums of 0: the smallest first, for what
// they add would be cut off beside the largest. The steps begin `first` terms behind the descriptors `a` and `b`.
__device__ __forceinline__ void start_products(
    Elem (&acc)[kAcc], unsigned long long a, unsigned long long b, int first, bool begins)
{
    #pragma unroll
    for (int order = kTerms - 1; order >= 0; --order) {
        #pragma unroll
        for (int term = 0; term <= order; ++term) {
            #pragma unroll
            for (int p = 0; p < kStep; p += 16) {
                const bool fresh = begins && order == kTerms - 1 && term == 0 && p == 0;
                const unsigned long long a_rows = further(a, first + term * kSizeA + p);
                const unsigned long long b_rows = further(b, first + (order - term) * kSizeB + p);
                wgmma_f16(acc, a_rows, b_rows, fresh);
            }
        }
    }
}

// The products of a tile of C, promoted, by a warpgroup whose rows begin at `first_row` of the tile.
__device__ __forceinline__ void multiply(
    Elem (&sums)[kAcc], const Term* stages, Barrier* full, Barrier* empty, Turn& turn, int first_row, int tiles)
{
    Elem acc[kAcc];
    const unsigned long long a = descriptor_of(stages + first_row * kBlockK);
    const unsigned long long b = descriptor_of(stages + kTerms * kSizeA);
    const bool gives_back = threadIdx.x % 32 == 0;
    #pragma unroll 1
    for (int each = 0; each < tiles; each += kTiles) {
        #pragma unroll
        for (int step = 0; step < kDepth; step += kStep) {
            const bool begins = step % kPromote == 0, ends = (step + kStep) % kPromote == 0;  // an interval
            const bool read = (step + kStep) % kBlockK == 0;                                  // the last of a tile
            const int first = turn.stage * kStage + step % kBlockK;
            if (step % kBlockK == 0) while (!mbarrier_try_wait(&full[turn.stage], turn.parity)) {}
            wgmma_fence();
            start_products(acc, a, b, first, begins);
            commit_wgmma();
            if (!begins) {  // the interval has several tiles: the one before can be filled again
                wait_wgmma<1>(acc);
                if (gives_back) mbarrier_arrive(&empty[(turn.stage == 0 ? kStages : turn.stage) - 1]);
            }
            if (ends) {
                wait_wgmma<0>(acc);
                if (read && gives_back) mbarrier_arrive(&empty[turn.stage]);
                #pragma unroll
                for (int e = 0; e < kAcc; ++e) sums[e] += acc[e];
            }
            if (read) turn.next();
        }
    }
}

// Whether a row or column of a warp tile has an exponent of a larger magnitude.
__device__ __forceinline__ bool beyond(int magnitude, const int* row_exponents, const int* col_exponents, int lane)
{
    bool larger = abs(row_exponents[lane % kWarpM]) > magnitude;
    #pragma unroll
    for (int each = 0; each < kWarpN; each += 32) larger |= abs(col_exponents[each + lane]) > magnitude;
    return __any_sync(~0u, larger);
}

// A warp tile from A and B as they are, in float: for infinities, NaN and what else terms cannot hold. Slow, and rare.
__device__ __forceinline__ void multiply_plainly(
    Elem (&sums)[kAcc], const Elem* matrix_a, int lda, const Elem* matrix_b, int ldb, Index row, Index col, int m,
    int n, int depth, int lane)
{
    const Elem* a[kThreadM];
    #pragma unroll
    for (int i = 0; i < kThreadM; ++i) {
        const Index at = min(row + row_of(i, lane_m(lane)), Index(m - 1));  // what lies outside is not stored
        a[i] = matrix_a + at * lda;
    }
    const int last = int(min(n - 1 - col, Index(kWarpN - 1)));  // column of the warp tile; negative where it has none
    const Elem* b = matrix_b + col;
    #pragma unroll 1
    for (int p = 0; p < depth; ++p) {
        Elem x[kThreadM];
        #pragma unroll
        for (int i = 0; i < kThreadM; ++i) {
            x[i] = *a[i];
            a[i] += 1;
        }
        #pragma unroll
        for (int j = 0; j < kThreadN; ++j) {
            const Elem y = b[min(col_of(j, lane), last)];
            #pragma unroll
            for (int i = 0; i < kThreadM; ++i) sums[i * kThreadN + j] += x[i] * y;
        }
        b += ldb;
    }
}

constexpr int kSmallPower = 63;  // magnitude of exponents two of which make a factor that is a normal number

// Takes the powers of two off that rows of op(A) and columns of op(B) were scaled by: exact, or rounded once where the
// result is subnormal. kFar: not all exponents are near.
template <bool kFar>
__device__ __forceinline__ void unscale(
    Elem (&sums)[kAcc], const int* row_exponents, const int* col_exponents, int lane)
{
    struct alignas(8) Pair { int x[2]; };  // neighbours
    #pragma unroll
    for (int j = 0; j < kThreadN; j += 2) {
        const Pair of_cols = *reinterpret_cast<const Pair*>(col_exponents + col_of(j, lane));
        #pragma unroll
        for (int e = 0; e < 2 * kThreadM; ++e) {
            const int power = -(row_exponents[row_of(e / 2, lane_m(lane))] + of_cols.x[e % 2]);
            Elem& sum = sums[e / 2 * kThreadN + j + e % 2];
            if constexpr (kFar) sum = ldexpf(sum, power);
            else sum *= __uint_as_float(unsigned(127 + power) << 23);
        }
    }
}

// Accumulators of a warp pass through shared memory, so that neighbouring lanes write neighbours in a row of C.
//
// A thread's i-th row of accumulators and those of the warp's other lanes are kBand rows of C. They lie there as in C,
// kPitch elements apart. Lanes read neighbours and never meet in a bank. Lanes that write at the same time fill kRun
// elements of each of kWrittenRows rows: where a row is as wide as all banks or wider, the next one begins kRun
// elements further on, so that these never meet either. Narrower rows lie side by side, and there two to four may.
constexpr int kBanks       = 128 / int(sizeof(Elem));  // elements that all banks hold side by side
constexpr int kNeighbours  = 2;  // of a row of C in a lane
constexpr int kWrittenRows = 4;
constexpr int kRun         = kBanks / kWrittenRows;
constexpr int kBand        = 32 * kThreadN / kWarpN;
constexpr int kPitch       = kWarpN % kBanks == 0 ? kWarpN + kRun : kWarpN;
constexpr int kRoom        = kSmemBytes / int(sizeof(Elem));  // elements of shared memory

// How many of a thread's rows pass at a time: as many as fit, where addresses take few registers.
__host__ __device__ constexpr int passing_rows()
{
    int rows = kThreadM;
    while (rows > 1 && (kThreadM % rows != 0 || rows * kThreadN > 16
                        || kThreads / 32 * rows * kBand * kPitch > kRoom)) --rows;
    return rows;
}
constexpr int kPassing = passing_rows();
constexpr int kPass    = kPassing * kThreadN;  // accumulators of a thread that pass at a time
static_assert(kThreads / 32 * kPassing * kBand * kPitch <= kRoom, "they fit");

// The element of its band that a lane has in the end as accumulator `s`: the vectors of a row go round the lanes.
template <int kVecC>
__device__ __forceinline__ int exchanged(int s, int lane)
{
    return (s % kThreadN / kVecC * 32 + lane) * kVecC + s % kVecC;
}

// Where in shared memory row `row` begins of the band of accumulator `s`.
__device__ __forceinline__ int band_place(int s, int row) { return (s / kThreadN % kPassing * kBand + row) * kPitch; }

// Exchanges kPass accumulators, from `begin` on, for the elements that exchanged() tells. `out` begins with accumulator
// `first` of the thread. Shared memory holds nothing else any more.
template <int kVecC>
__device__ __forceinline__ void exchange(Elem (&out)[kOut], int begin, int first, Elem* shared, int lane)
{
    constexpr int kWidth = kOut % kNeighbours == 0 ? kNeighbours : kVecC;
    Elem* const mine = shared + threadIdx.x % kThreads / 32 * kPassing * kBand * kPitch;
    if (begin > 0) __syncwarp();  // the last ones were read
    #pragma unroll
    for (int e = begin; e < begin + kPass; e += kWidth) {
        Vector<kWidth> group;
        #pragma unroll
        for (int v = 0; v < kWidth; ++v) group.x[v] = out[e + v];
        Elem* const to = mine + band_place(first + e, lane_m(lane)) + col_of((first + e) % kThreadN, lane);
        *reinterpret_cast<Vector<kWidth>*>(to) = group;
    }
    __syncwarp();
    #pragma unroll
    for (int e = begin; e < begin + kPass; e += kVecC) {
        const int at = exchanged<kVecC>(first + e, lane);
        const Elem* const from = mine + band_place(first + e, at / kWarpN) + at % kWarpN;
        const auto group = *reinterpret_cast<const Vector<kVecC>*>(from);
        #pragma unroll
        for (int v = 0; v < kVecC; ++v) out[e + v] = group.x[v];
    }
}

// Writes kPass accumulators of a thread, kVecC elements of a row of C at a time, once exchange() has passed them:
// they begin with `begin` of `out`, and that begins with accumulator `first` of the thread.
// `c` is where the warp tile begins; `rows` and `cols` are left of C from there.
template <int kVecC, bool kGuarded>
__device__ __forceinline__ void store(
    Elem (&out)[kOut], int begin, int first, Elem* c, int ldc, int rows, int cols, int lane, Elem alpha, Elem beta)
{
    const auto row_at = [&](int e) {
        return row_of((first + e) / kThreadN, exchanged<kVecC>(first + e, lane) / kWarpN);
    };
    const auto col_at = [&](int e) { return exchanged<kVecC>(first + e, lane) % kWarpN; };
    const auto inside = [&](int e) {
        if constexpr (!kGuarded) return true;
        else return row_at(e) < rows && col_at(e) < cols;
    };
    const auto place_of = [&](int e) {
        return reinterpret_cast<Vector<kVecC>*>(c + Index(row_at(e)) * ldc + col_at(e));
    };
    #pragma unroll
    for (int e = begin; e < begin + kPass; ++e) out[e] *= alpha;
    // All is read before any of it is written, else each read would wait for the write before it.
    if (beta != Elem(0)) {
        #pragma unroll
        for (int e = begin; e < begin + kPass; e += kVecC) {
            if (inside(e)) {
                const Vector<kVecC> old = *place_of(e);
                #pragma unroll
                for (int v = 0; v < kVecC; ++v) out[e + v] += beta * old.x[v];
            }
            if ((e + kVecC) % kThreadN == 0) asm volatile("" ::: "memory");  // a row's reads at a time
        }
    }
    #pragma unroll
    for (int e = begin; e < begin + kPass; e += kVecC) {
        Vector<kVecC> value;
        #pragma unroll
        for (int v = 0; v < kVecC; ++v) value.x[v] = out[e + v];
        if (inside(e)) *place_of(e) = value;
    }
}

constexpr int kVecC     = 1;     // elements of C that one store moves
constexpr bool kGuarded = true;  // tiles may reach beyond the matrices

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads + 128, 1) gemm_wgmma_f32_nn_64x64x64_17b2e955(
    const Elem* __restrict__ matrix_a, int lda, const Elem* __restrict__ matrix_b, int ldb,
    Elem* __restrict__ matrix_c, int ldc, int m, int n, int k, Elem alpha, Elem beta, char* terms)
{
    extern __shared__ __align__(1024) Elem shared[];
    Term* const stages = reinterpret_cast<Term*>(shared);
    Barrier* const full = reinterpret_cast<Barrier*>(stages + kStages * kStage);
    Barrier* const empty = full + kStages;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int warp_m = warp * kWarpM, warp_n = 0;
    const unsigned tiles_n = unsigned(n - 1) / kBlockN + 1;
    const unsigned tile_m = blockIdx.x / tiles_n, tile_n = blockIdx.x % tiles_n;
    const Index row0 = Index(tile_m) * kBlockM, col0 = Index(tile_n) * kBlockN;
    const int depth = alpha == Elem(0) ? 0 : k;  // A and B are not read where alpha is 0
    const int tiles = int((unsigned(depth) + kBlockK - 1) / kBlockK);
    const int copied = (tiles + kTiles - 1) / kTiles * kTiles;  // tiles of k, of whole intervals
    const Index whole_m = (Index(m) + kBlockM - 1) / kBlockM * kBlockM;
    const Index whole_n = (Index(n) + kBlockN - 1) / kBlockN * kBlockN;
    const Terms from = {whole_m, whole_n, (Index(k) + 63) / 64 * 64, terms};
    if (threadIdx.x == 0) {
        #pragma unroll
        for (int stage = 0; stage < kStages; ++stage) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], kThreads / 32);
        }
        fence_mbarrier_init();
        fence_proxy_async();
    }
    griddepcontrol_wait();
    launch_dependents();
    __syncthreads();  // the barriers are ready

    if (threadIdx.x >= kThreads) {
        Turn turn = {0, 1};
        if (threadIdx.x == kThreads) produce(stages, full, empty, turn, from, row0, col0, copied);
    } else {
        Turn turn = {0, 0};
        const int first_row = warp / 4 * 64;  // of the warpgroup
        const int* const row_exponents = from.exponents() + row0 + warp_m;
        const int* const col_exponents = from.col_exponents() + col0;
        // Read while the first tiles are copied.
        const bool is_far = depth > 0 && beyond(kSmallPower, row_exponents, col_exponents, lane);
        const bool plainly = is_far && beyond(kSpecial - 1, row_exponents, col_exponents, lane);
        Elem sums[kAcc] = {};
        multiply(sums, stages, full, empty, turn, first_row, copied);
        if (plainly) {
            #pragma unroll
            for (int e = 0; e < kAcc; ++e) sums[e] = 0;
            multiply_plainly(sums, matrix_a, lda, matrix_b, ldb, row0 + warp_m, col0, m, n, depth, lane);
        } else if (is_far) {
            unscale<true>(sums, row_exponents, col_exponents, lane);
        } else if (depth > 0) {
            unscale<false>(sums, row_exponents, col_exponents, lane);
        }

        const Index row = row0 + warp_m, col = col0 + warp_n;
        const int rows = int(min(m - row, Index(kWarpM))), cols = int(min(n - col, Index(kWarpN)));
        sync_constant<15, kThreads>();  // no thread reads what shared memory held
        #pragma unroll
        for (int begin = 0; begin < kOut; begin += kPass) {
            exchange<kVecC>(sums, begin, 0, shared, lane);
            store<kVecC, kGuarded>(sums, begin, 0, matrix_c + row * ldc + col, ldc, rows, cols, lane, alpha, beta);
        }
    }
}

// split_fp16x3_nn_blocked64_cluster8
// Splits each element of A and B into a sum of 2 halves.
// SPDX-License-Identifier: MIT

namespace {

using Elem = float;
using Index = long long;  // offsets: a matrix may hold more than 2^31 elements

constexpr int kTerms     = 2;     // terms of an element
constexpr int kTermWarps = 4;     // warps of a CTA that splits
constexpr int kTermHeld  = 2048;  // steps of k that a warp holds of a row of op(A) or column of op(B) stored along k
constexpr int kTermRows  = 32;    // rows of op(A) or columns of op(B), stored across k, that a warp holds
constexpr int kTermK     = 64;    // steps of k that it holds of them
static_assert(kTermRows == 32 && kTermK % 32 == 0, "what a warp holds is turned in shared memory by 32 lanes");
constexpr int kTermParts = 8;     // CTAs of a cluster, which share the k of such rows

// ---- Instructions (PTX) -----------------------------------------------------------------------------------------

// Programmatic dependent launch (PDL): waits for what earlier kernels of the stream wrote; lets the next one start.
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }

// The nearest halves to two floats, side by side, the first one low; the low and the high one of two as a float.
__device__ __forceinline__ unsigned to_f16x2(float low, float high)
{
    unsigned bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
__device__ __forceinline__ float low_f16(unsigned bits)
{
    float x;
    asm("{ .reg .f16 low, high; mov.b32 { low, high }, %1; cvt.f32.f16 %0, low; }" : "=f"(x) : "r"(bits));
    return x;
}
__device__ __forceinline__ float high_f16(unsigned bits)
{
    float x;
    asm("{ .reg .f16 low, high; mov.b32 { low, high }, %1; cvt.f32.f16 %0, high; }" : "=f"(x) : "r"(bits));
    return x;
}

// The larger number, or NaN where one of them is.
__device__ __forceinline__ float max_nan(float x, float y)
{
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(x), "f"(y));
    return larger;
}

// Writes eight numbers of 16 bits, two in each of `x`, to global memory at once: an assignment may become four writes.
__device__ __forceinline__ void store_eight(unsigned short* to, const unsigned (&x)[4])
{
    asm volatile("st.global.v4.b32 [%0], { %1, %2, %3, %4 };"
                 :: "l"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
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

// Each element of A and B is a sum of kTerms terms, with a power of two for each row of op(A) and column of op(B). All
// of one term come before those of the next; 64 steps of k of all rows of op(A), or columns of op(B), before the next
// 64. These 128 bytes of a row lie side by side, in pieces of 16 bytes, of which piece i of row r is at i ^ (r % 8):
// a tile is one run of memory, as the tensor cores read it. Exponents of the rows, then of the columns, follow the
// terms. Past the matrix terms are 0.
using Term = unsigned short;  // the bits of a half or bfloat16
constexpr int kSpecial = 1 << 20;  // the exponent of a row or column that terms cannot hold

struct Terms {
    Index rows, cols, depth;  // m, n and k rounded up to whole tiles
    char* memory;

    // Where step p of row i lies, of `rows` rows of `depth` steps.
    static __device__ __forceinline__ Index place(Index i, int p, Index rows, Index depth)
    {
        return (p / 64 * rows + i) * 64 + (p % 64 / 8 ^ int(i % 8)) * 8 + p % 8;
    }

    __device__ __forceinline__ Term* a() const { return reinterpret_cast<Term*>(memory); }
    __device__ __forceinline__ Term* b() const { return a() + kTerms * rows * depth; }
    __device__ __forceinline__ int* exponents() const { return reinterpret_cast<int*>(b() + kTerms * cols * depth); }
    __device__ __forceinline__ int* col_exponents() const { return exponents() + rows; }
};

// The largest magnitude of some numbers, as bits, which are ordered like the numbers.
struct Span {
    unsigned most;

    static __device__ __forceinline__ Span none() { return {0}; }
    __device__ __forceinline__ void add(Elem x)
    {
        most = __float_as_uint(max_nan(__uint_as_float(most), fabsf(x)));  // NaN where one of them is
    }
    __device__ __forceinline__ void add(const Span& other) { most = max(most, other.most); }
    // Adds those of the lanes whose numbers differ in these bits, of which the last is `last`.
    __device__ __forceinline__ void add_lanes(int first, int last)
    {
        #pragma unroll
        for (int other = first; other <= last; other *= 2) {
            add(Span{__shfl_xor_sync(~0u, most, other)});
        }
    }

    // Exponent of the power of two that a row with such magnitudes is multiplied by.
    // Halves hold 2^15, and 24 bits of a number of 2^-14 or more.
    static constexpr int kTop = 14;
    __device__ __forceinline__ int exponent() const
    {
        return most == 0 || most >= 0x7f800000u ? 0 : min(127, kTop - ilogbf(__uint_as_float(most)));
    }
    // Whether terms cannot hold it.
    __device__ __forceinline__ bool special() const { return most >= 0x7f800000u; }
    __device__ __forceinline__ int stored_exponent() const { return special() ? kSpecial : exponent(); }
    __device__ __forceinline__ Elem scale() const { return __uint_as_float(unsigned(exponent() + 127) << 23); }
};

// Warps that share k, each with so many steps of it at a time: a power of two, at most `most`.
__device__ __forceinline__ int sharing(Index depth, int steps, int most)
{
    int count = 1;
    while (count < most && count * steps < depth) count *= 2;
    return count;
}

// The elements that a lane holds, in eights of neighbours along k.
constexpr int kEights = 8;
using Held = Elem[kEights][8];

// Scales eight neighbours along k, splits them and writes the terms.
__device__ __forceinline__ void write(
    const Elem (&x)[8], Elem scale, Term* terms, Index row, int p, Index rows, Index depth)
{
    unsigned pairs[kTerms][4];
    #pragma unroll
    for (int e = 0; e < 8; e += 2) {
        Elem low = x[e] * scale, high = x[e + 1] * scale;
        #pragma unroll
        for (int term = 0; term < kTerms; ++term) {
            const unsigned both = to_f16x2(low, high);
            pairs[term][e / 2] = both;
            low -= low_f16(both);
            high -= high_f16(both);
        }
    }
    Term* const to = terms + Terms::place(row, p, rows, depth);
    #pragma unroll
    for (int term = 0; term < kTerms; ++term) store_eight(to + term * rows * depth, pairs[term]);
}

// Clusters that split so many rows of op(A) or columns of op(B): up to kMost warps share the k of kRows of them.
template <int kRows, int kSteps, int kMost>
__device__ __forceinline__ Index clusters_for(Index rows, Index depth)
{
    const int each = kTermParts * kTermWarps / sharing(depth, kSteps, kMost) * kRows;
    return (rows + each - 1) / each;
}

// A cluster of A or of B, and which of these it is.
struct Unit {
    bool of_a;
    Index index;
};

// The work of cluster `at` of the grid. Clusters of A and of B take turns until one operand has no more: rows along
// k are read and written while clusters whose warps share k wait for each other.
__device__ __forceinline__ Unit unit_of(Index at, Index of_a, Index of_b)
{
    const Index both = min(of_a, of_b);
    if (at < 2 * both) return {at % 2 == 1, at / 2};
    return {of_a > of_b, at - both};
}

// Reads eight neighbours that are aligned to 16 bytes.
__device__ __forceinline__ void read_eight(Elem (&x)[8], const Elem* from)
{
    #pragma unroll
    for (int e = 0; e < 8; e += 4) {
        const auto four = *reinterpret_cast<const Vector<4>*>(from + e);
        #pragma unroll
        for (int each = 0; each < 4; ++each) x[e + each] = four.x[each];
    }
}

// Reads what a lane has of a row over kTermHeld steps of k from `begin` on: steps 256i + 8lane and the 7 after it,
// zeros outside the matrix.
__device__ __forceinline__ void read_along(Held& x, const Elem* row, bool inside, int begin, int k, Elem* turned)
{
    const int lane = threadIdx.x % 32;
    if (reinterpret_cast<unsigned long long>(row) % 16 == 0) {
        #pragma unroll
        for (int i = 0; i < kEights; ++i) {
            const int p = begin + 256 * i + 8 * lane;
            if (inside && p + 8 <= k) {
                read_eight(x[i], row + p);
            } else {
                #pragma unroll
                for (int e = 0; e < 8; ++e) x[i][e] = inside && p + e < k ? row[p + e] : Elem(0);
            }
        }
    } else {  // neighbouring lanes read neighbours
        Elem mixed[8 * kEights];
        #pragma unroll
        for (int j = 0; j < 8 * kEights; ++j) {
            const int p = begin + 32 * j + lane;
            mixed[j] = inside && p < k ? row[p] : Elem(0);
        }
        #pragma unroll
        for (int first = 0; first < kEights; first += 4) {
            __syncwarp();
            #pragma unroll
            for (int j = 0; j < 32; ++j) turned[32 * j + lane] = mixed[8 * first + j];
            __syncwarp();
            #pragma unroll
            for (int i = 0; i < 4; ++i) read_eight(x[first + i], turned + 256 * i + 8 * lane);
        }
    }
}

// Splits the rows of op(A) or columns of op(B) of a CTA, of `extent`, stored along k. A CTA's warps may share one.
__device__ __forceinline__ void split_along(
    const Elem* matrix_x, int ld, Index cta, int extent, int k, Term* terms, Index rows, Index depth,
    int* exponents, Span* spans, Elem* turned)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int count = sharing(depth, kTermHeld, kTermWarps), part = warp % count, apart = count * kTermHeld;
    const Index row = cta * (kTermWarps / count) + warp / count;
    const bool inside = row < extent;
    const Elem* const from = matrix_x + row * ld;
    Held x;
    Span span = Span::none();
    Index begin = part * kTermHeld;
    for (; begin < depth; begin += apart) {
        read_along(x, from, inside, int(begin), k, turned);
        #pragma unroll
        for (int e = 0; e < 8 * kEights; ++e) span.add(x[e / 8][e % 8]);
    }
    span.add_lanes(1, 16);
    if (count > 1) {
        if (lane == 0) spans[warp] = span;
        __syncthreads();
        for (int each = 0; each < count; ++each) span.add(spans[warp - part + each]);
    }
    if (row >= rows) return;  // past the last tile
    if (part == 0 && lane == 0) exponents[row] = span.stored_exponent();

    // Split and written, what was read last first.
    const Elem scale = span.scale();
    bool there = true;
    for (begin -= apart; begin >= 0; begin -= apart) {
        if (!there) read_along(x, from, inside, int(begin), k, turned);
        there = false;
        #pragma unroll
        for (int i = 0; i < kEights; ++i) {
            const int p = int(begin) + 256 * i + 8 * lane;
            if (p < depth) write(x[i], scale, terms, row, p, rows, depth);
        }
    }
}

// Reads what a lane has of kTermRows rows over kTermK steps of k from `begin` on: of row 8i + lane / 4 steps
// 32h + lane % 4 * 8 and the 7 after it, zeros outside the matrix.
__device__ __forceinline__ void read_across(
    Held& x, const Elem* matrix_x, int ld, Index first, int extent, int begin, int k, Elem* turned)
{
    const int lane = threadIdx.x % 32;
    const Elem* const source = matrix_x + Index(begin) * ld + first + lane;
    Elem column[kTermK];
    if (first + kTermRows <= extent && begin + kTermK <= k) {
        #pragma unroll
        for (int j = 0; j < kTermK; ++j) column[j] = source[Index(j) * ld];
    } else {
        #pragma unroll
        for (int j = 0; j < kTermK; ++j) {
            column[j] = first + lane < extent && begin + j < k ? source[Index(j) * ld] : Elem(0);
        }
    }
    #pragma unroll
    for (int h = 0; h < kTermK / 32; ++h) {
        __syncwarp();
        #pragma unroll
        for (int j = 0; j < 32; ++j) turned[33 * lane + j] = column[32 * h + j];
        __syncwarp();
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            #pragma unroll
            for (int e = 0; e < 8; ++e) x[4 * h + i][e] = turned[33 * (8 * i + lane / 4) + lane % 4 * 8 + e];
        }
    }
}

// Splits the rows of op(A) or columns of op(B) of a cluster, of `extent`, stored across k. Warps share
// kTermRows of them; where k is short, some warps have others.
__device__ __forceinline__ void split_across(
    const Elem* matrix_x, int ld, Index cluster, int extent, int k, Term* terms, Index rows, Index depth,
    int* exponents, Span (&spans)[kTermWarps + 1][kTermRows], Elem* turned)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int count = sharing(depth, kTermK, kTermParts * kTermWarps), apart = count * kTermK;
    const int rank = blockIdx.x % kTermParts, member = rank * kTermWarps + warp, part = member % count;
    const Index first = (cluster * (kTermParts * kTermWarps / count) + member / count) * kTermRows;
    Held x;
    Span mine[4] = {Span::none(), Span::none(), Span::none(), Span::none()};
    Index begin = part * kTermK;
    for (; begin < depth; begin += apart) {
        read_across(x, matrix_x, ld, first, extent, int(begin), k, turned);
        #pragma unroll
        for (int e = 0; e < 8 * kEights; ++e) mine[e / 8 % 4].add(x[e / 8][e % 8]);
    }
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        mine[i].add_lanes(1, 2);
        if (lane % 4 == 0) spans[warp][8 * i + lane / 4] = mine[i];
    }
    __syncthreads();
    Span span = Span::none();  // of a row for each lane
    const bool shared = count > kTermWarps;  // by CTAs
    if (shared) {
        if (warp == 0) {
            #pragma unroll
            for (int each = 0; each < kTermWarps; ++each) span.add(spans[each][lane]);
            spans[kTermWarps][lane] = span;
        }
        arrive_cluster();
        wait_cluster();
        if (warp == 0) {
            const int ctas = count / kTermWarps;
            for (int each = rank / ctas * ctas; each < (rank / ctas + 1) * ctas; ++each) {
                const Span& own = spans[kTermWarps][lane];
                span.add(Span{*peer(&own.most, each)});
            }
            spans[0][lane] = span;
        }
        arrive_cluster();
        __syncthreads();
        span = spans[0][lane];
    } else {
        for (int each = 0; each < count; ++each) span.add(spans[warp - part + each][lane]);
    }
    if (first < rows) {
        if (part == 0) exponents[first + lane] = span.stored_exponent();
        const Elem all = span.scale();
        Elem scale[4];
        #pragma unroll
        for (int i = 0; i < 4; ++i) scale[i] = __shfl_sync(~0u, all, 8 * i + lane / 4);

        // Split and written, what was read last first.
        bool there = true;
        for (begin -= apart; begin >= 0; begin -= apart) {
            if (!there) read_across(x, matrix_x, ld, first, extent, int(begin), k, turned);
            there = false;
            #pragma unroll
            for (int e = 0; e < kEights; ++e) {
                const int p = int(begin) + 32 * (e / 4) + lane % 4 * 8;
                if (p < depth) write(x[e], scale[e % 4], terms, first + 8 * (e % 4) + lane / 4, p, rows, depth);
            }
        }
    }
    if (shared) wait_cluster();  // others read what is this CTA's till then
}

}  // namespace

// Splits A and B into terms, as the product reads them: `rows`, `cols` and `depth` are m, n and k in its whole tiles.
extern "C" __global__ void __cluster_dims__(kTermParts, 1, 1) __launch_bounds__(32 * kTermWarps, 4)
split_fp16x3_nn_blocked64_cluster8(
    const Elem* __restrict__ matrix_a, int lda, const Elem* __restrict__ matrix_b, int ldb, char* __restrict__ terms,
    int m, int n, int k, unsigned rows, unsigned cols, unsigned depth)
{
    __shared__ Span spans[kTermWarps + 1][kTermRows];
    __shared__ __align__(16) Elem turned[kTermWarps][33 * kTermRows];
    const Terms to = {rows, cols, depth, terms};
    Elem* const own = turned[threadIdx.x / 32];
    const Index of_a = clusters_for<1, kTermHeld, kTermWarps>(to.rows, to.depth);
    const Index of_b = clusters_for<kTermRows, kTermK, kTermParts * kTermWarps>(to.cols, to.depth);
    const Unit unit = unit_of(blockIdx.x / kTermParts, of_a, of_b);
    const Index cta = unit.index * kTermParts + blockIdx.x % kTermParts;  // of rows along k
    griddepcontrol_wait();
    launch_dependents();
    if (unit.of_a) {
        split_along(matrix_a, lda, cta, m, k, to.a(), to.rows, to.depth, to.exponents(), spans[0], own);
    } else {
        split_across(matrix_b, ldb, unit.index, n, k, to.b(), to.cols, to.depth, to.col_exponents(), spans, own);
    }
}
