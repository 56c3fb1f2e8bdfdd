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
// Written by tilewright from templates/wgmma.cu.jinja, digest 34239497fca12e7a. To write it again:
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
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ __forceinline__ void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }
#else
__device__ __forceinline__ void griddepcontrol_wait() {}
__device__ __forceinline__ void launch_dependents() {}
#endif

// An mbarrier: made for so many arrivals a phase; an arrival; an arrival that makes the phase wait for so many bytes
// more.
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

// The mbarriers that this thread has made are seen by copies that arrive at them, and by threads after the CTA's
// barrier.
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
struct Barrier {
    unsigned long long state;

    __device__ __forceinline__ void init(unsigned count) { mbarrier_init(this, count); }
    __device__ __forceinline__ void arrive() { mbarrier_arrive(this); }

    // Arrives, and makes the phase wait for so many bytes more.
    __device__ __forceinline__ void expect(unsigned bytes) { mbarrier_arrive_expect(this, bytes); }

    // Waits for the end of the phase of this parity.
    __device__ __forceinline__ void wait(unsigned parity)
    {
        while (!mbarrier_try_wait(this, parity)) {}
    }
};

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

    __device__ __forceinline__ Terms(char* memory, int m, int n, int k)
        : rows((Index(m) + kBlockM - 1) / kBlockM * kBlockM), cols((Index(n) + kBlockN - 1) / kBlockN * kBlockN),
          depth((Index(k) + 63) / 64 * 64), memory(memory)
    {
    }

    // Where step p of row i lies, of `rows` rows of `depth` steps.
    static __device__ __forceinline__ Index place(Index i, int p, Index rows, Index depth)
    {
        return (p / 64 * rows + i) * 64 + (p % 64 / 8 ^ int(i % 8)) * 8 + p % 8;
    }

    __device__ __forceinline__ Term* a() const { return reinterpret_cast<Term*>(memory); }
    __device__ __forceinline__ Term* b() const { return a() + kTerms * rows * depth; }
    __device__ __forceinline__ int* row_exponents() const
    {
        return reinterpret_cast<int*>(b() + kTerms * cols * depth);
    }
    __device__ __forceinline__ int* col_exponents() const { return row_exponents() + rows; }
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
        empty[turn.stage].wait(turn.parity);  // by all warps
        Barrier& barrier = full[turn.stage];
        barrier.expect(kStage * sizeof(Term));
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
// they add would be cut off beside the largest. `a` and `b` are descriptors, and the steps begin `first` terms behind
// them.
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
            if (step % kBlockK == 0) full[turn.stage].wait(turn.parity);
            wgmma_fence();
            start_products(acc, a, b, first, begins);
            commit_wgmma();
            if (!begins) {  // the interval has several tiles: the one before can be filled again
                wait_wgmma<1>(acc);
                if (gives_back) empty[(turn.stage == 0 ? kStages : turn.stage) - 1].arrive();
            }
            if (ends) {
                wait_wgmma<0>(acc);
                if (read && gives_back) empty[turn.stage].arrive();
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

// A barrier of all threads that multiply: the producer is not among them. Turns take the first ones.
__device__ __forceinline__ void sync_multiplying() { sync_constant<15, kThreads>(); }

// A warp tile from A and B as they are, every product and sum in float: for infinities, NaN and what else terms cannot
// hold. Slow, and rare.
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
    const Terms from(terms, m, n, k);
    if (threadIdx.x == 0) {
        #pragma unroll
        for (int stage = 0; stage < kStages; ++stage) {
            full[stage].init(1);
            empty[stage].init(kThreads / 32);
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
        const int* const row_exponents = from.row_exponents() + row0 + warp_m;
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
        sync_multiplying();  // no thread reads what shared memory held
        #pragma unroll
        for (int begin = 0; begin < kOut; begin += kPass) {
            exchange<kVecC>(sums, begin, 0, shared, lane);
            store<kVecC, kGuarded>(sums, begin, 0, matrix_c + row * ldc + col, ldc, rows, cols, lane, alpha, beta);
        }
    }
}
