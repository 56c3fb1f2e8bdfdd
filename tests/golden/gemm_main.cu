// gemm_main.cu: tests every kernel of gemm on the GPU against plain loops on the processor, then times it.
//
// Written by tilewright, file digest 0bdcdddf102d4955. To write it again:
//   tilewright emit --shape 1021x767x509 --dtype float --trans nn --arch sm_90a --name gemm --cmake --config "tiled:16" --main
// SPDX-License-Identifier: MIT
//
//   nvcc -O3 -std=c++17 -arch=sm_90a gemm*.cu -o gemm_main       (-DWITH_CUBLAS -lcublas times cuBLAS too)
//   ./gemm_main [--tolerance 0.1] [--no-checks] [--no-times] [M N K]
//
// Small integers must come out exactly. Other numbers must meet the bound of the header.
// M N K tests another shape than those that kernels were chosen for.
// Exit status: 0 right, 1 wrong or (with --tolerance) slower than recorded by more than so much, 2 could not run.

#include "gemm.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>
#ifdef WITH_CUBLAS
#include <cublas_v2.h>
#endif

namespace gemm_test {
namespace {

constexpr bool NORMWISE = false;     // whether the bound counts in norms of rows and columns
constexpr double MOST_STEPS = 3e8;   // of a plain loop; above it some rows of C are left out
constexpr double ROTATED_L2 = 2.5;   // inputs that are rotated over are so many times the L2 cache
constexpr int MOST_SETS = 2048;      // of inputs
constexpr double GRAPH_US = 500;     // longer products are not timed from a graph
constexpr double BATCH_S = 0.02;     // timed for so long
constexpr double MOST_HOLD_US = 2e4; // for which the device is held back before what is timed

struct Sizes {
    int m, n, k;
};

// The functions for one type and its transposes.
template <typename T>
struct Functions {
    const char* name;
    bool trans_a, trans_b;
    int (*call)(const T*, int64_t, const T*, int64_t, T*, int64_t, int64_t, int64_t, int64_t, T, T, cudaStream_t);
    int (*run)(
        const T*, int64_t, const T*, int64_t, T*, int64_t, int64_t, int64_t, int64_t, T, T, void*, size_t,
        cudaStream_t);
    int (*can_implement)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);
    size_t (*workspace_size)(int64_t, int64_t, int64_t);
    int (*describe)(int64_t, int64_t, int64_t, gemm_description*);
};

constexpr std::size_t area(int rows, int cols) { return std::size_t(rows) * std::size_t(cols); }

template <typename T>
bool same(T x, T y) { return x <= y && y <= x; }

void require(cudaError_t error, const char* what)
{
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "gemm_main: %s: %s\n", what, cudaGetErrorString(error));
    std::exit(2);
}

void require_done(int status, const char* what)
{
    if (status == GEMM_SUCCESS) return;
    std::fprintf(stderr, "gemm_main: %s: %s\n", what, gemm_status_string(status));
    std::exit(2);
}

// Memory of the device.
struct Memory {
    char* data = nullptr;

    explicit Memory(std::size_t bytes)
    {
        require(cudaMalloc(reinterpret_cast<void**>(&data), bytes ? bytes : 1), "no device memory");
    }
    ~Memory() { cudaFree(data); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
};

struct Workspace : Memory {
    std::size_t bytes;

    explicit Workspace(std::size_t size) : Memory(size), bytes(size)
    {
        require_done(gemm_workspace_init(data, bytes, nullptr), "gemm_workspace_init");
        require(cudaDeviceSynchronize(), "gemm_workspace_init");
    }
};

template <typename T>
std::vector<T> random_matrix(int rows, int cols, unsigned seed, bool integers)
{
    std::mt19937 generator(seed);
    std::vector<T> matrix(area(rows, cols));
    std::uniform_real_distribution<T> real(-1, 1);  // all bits: fewer take less power
    for (T& x : matrix) x = integers ? T(int(generator() % 7) - 3) : real(generator);
    return matrix;
}

// A matrix on the device as it is stored: `padding` elements follow each row, `skip` elements come first.
template <typename T>
struct Matrix {
    int rows, cols, ld, skip;
    Memory memory;

    Matrix(int height, int width, int padding, int first)
        : rows(height), cols(width), ld(std::max(1, width + padding)), skip(first),
          memory((size() + std::size_t(first)) * sizeof(T))
    {
    }

    std::size_t size() const { return area(rows, ld); }
    T* data() const { return reinterpret_cast<T*>(memory.data) + skip; }

    // Fills it with `dense`, transposed if asked, and what lies between rows with `mark`.
    void store(const std::vector<T>& dense, bool transposed, T mark)
    {
        std::vector<T> stored(size(), mark);
        for (int i = 0; i < rows; ++i) {
            for (int j = 0; j < cols; ++j) {
                const std::size_t place = transposed ? area(j, rows) + std::size_t(i) : area(i, cols) + std::size_t(j);
                stored[area(i, ld) + std::size_t(j)] = dense[place];
            }
        }
        require(cudaMemcpy(data(), stored.data(), size() * sizeof(T), cudaMemcpyHostToDevice), "copy to the device");
    }

    std::vector<T> fetch() const
    {
        std::vector<T> stored(size());
        require(cudaMemcpy(stored.data(), data(), size() * sizeof(T), cudaMemcpyDeviceToHost), "copy to the host");
        return stored;
    }
};

// op(A) op(B) by a plain loop, and |op(A)| |op(B)| or the products of norms, for some rows of C.
template <typename T>
struct Reference {
    using Wide = std::conditional_t<sizeof(T) == 4, double, long double>;
    std::vector<int> rows;
    std::vector<Wide> product;
    std::vector<double> magnitude;

    Reference(const std::vector<T>& a, const std::vector<T>& b, const Sizes& sizes)
    {
        const auto [m, n, k] = sizes;
        const double row_steps = double(n) * std::max(k, 100);
        const int count = int(std::min<double>(m, std::max(2.0, MOST_STEPS / row_steps)));
        for (int r = 0; r < count; ++r) rows.push_back(int(int64_t(r) * (m - 1) / std::max(1, count - 1)));
        product.resize(area(count, n));
        magnitude.resize(product.size());
        for (int r = 0; r < count; ++r) {
            Wide* sum = product.data() + area(r, n);
            double* total = magnitude.data() + area(r, n);
            double of_row = 0;  // squares of its elements, added up
            for (int p = 0; p < k; ++p) {
                const T x = a[area(rows[std::size_t(r)], k) + std::size_t(p)];
                const T* row = b.data() + area(p, n);
                of_row += double(x) * x;
                for (int j = 0; j < n; ++j) {
                    sum[j] += Wide(x) * row[j];
                    total[j] += NORMWISE ? double(row[j]) * row[j] : std::fabs(double(x) * row[j]);
                }
            }
            for (int j = 0; NORMWISE && j < n; ++j) total[j] = std::sqrt(of_row * total[j]);
        }
    }
};

// How the operands of one check lie, and its factors.
struct Way {
    const char* what;
    bool integers, no_k;
    double alpha, beta;
    int padding;  // elements behind each row
    int skip_a = 0, skip_b = 0, skip_c = 0;  // and before the first one
};

// One call against the reference. Returns the largest error over its bound: 1 or less is right, NaN is wrong; for
// integers any error at all is wrong.
template <typename T>
double error_over_bound(
    const Functions<T>& functions, const Sizes& sizes, const Reference<T>& reference, const std::vector<T>& a,
    const std::vector<T>& b, const std::vector<T>& c, const Way& way, const Workspace& workspace)
{
    using Wide = typename Reference<T>::Wide;
    const T poison = std::numeric_limits<T>::quiet_NaN();  // marks what must not be read, or must be written
    const T canary = T(-12345);                            // marks what must not be written
    const int m = sizes.m, n = sizes.n, k = way.no_k ? 0 : sizes.k;
    const T alpha = T(way.alpha), beta = T(way.beta);
    Matrix<T> A(functions.trans_a ? k : m, functions.trans_a ? m : k, way.padding, way.skip_a);
    Matrix<T> B(functions.trans_b ? n : k, functions.trans_b ? k : n, way.padding, way.skip_b);
    Matrix<T> C(m, n, way.padding, way.skip_c);
    const bool reads_ab = k > 0 && !same(alpha, T(0)), reads_c = !same(beta, T(0));
    if (reads_ab) {
        A.store(a, functions.trans_a, poison);
        B.store(b, functions.trans_b, poison);
    }
    C.store(reads_c ? c : std::vector<T>(c.size(), poison), false, canary);

    require_done(
        functions.run(
            reads_ab ? A.data() : nullptr, A.ld, reads_ab ? B.data() : nullptr, B.ld, C.data(), C.ld, m, n, k, alpha,
            beta, workspace.data, workspace.bytes, nullptr),
        functions.name);
    require(cudaDeviceSynchronize(), functions.name);

    const std::vector<T> result = C.fetch();
    for (int i = 0; i < m; ++i) {
        for (int j = n; j < C.ld; ++j) {
            if (!same(result[area(i, C.ld) + std::size_t(j)], canary)) return INFINITY;
        }
    }
    constexpr double u = std::numeric_limits<T>::epsilon() / 2;
    const auto gamma_bound = [&](double i) { return i * u / (1 - i * u); };
    double worst = 0;
    for (std::size_t r = 0; r < reference.rows.size(); ++r) {
        const int i = reference.rows[r];
        for (int j = 0; j < n; ++j) {
            const std::size_t place = r * std::size_t(n) + std::size_t(j);
            const Wide before = reads_c ? c[area(i, n) + std::size_t(j)] : 0;
            const Wide product = reads_ab ? reference.product[place] : Wide(0);
            const Wide exact = Wide(alpha) * product + Wide(beta) * before;
            const double off = double(std::fabs(Wide(result[area(i, C.ld) + std::size_t(j)]) - exact));
            if (way.integers) {
                if (!same(off, 0.0)) return INFINITY;
                continue;
            }
            const double magnitude = reads_ab ? reference.magnitude[place] : 0.0;
            const double roundings = std::max(k + 2.0, NORMWISE ? 256.0 : 0.0);
            const double bound = gamma_bound(roundings) * std::fabs(double(alpha)) * magnitude
                               + gamma_bound(2) * std::fabs(double(beta) * double(before))
                               + (k + 4.0) * double(std::numeric_limits<T>::denorm_min());
            if (!(off <= bound)) return std::isnan(off) ? double(NAN) : off / bound;
            worst = std::max(worst, off / bound);
        }
    }
    return worst;
}

bool passes(bool right, const char* name, const char* what)
{
    if (!right) std::printf("%s: %s: WRONG\n", name, what);
    return right;
}

// Checks arguments that must be refused, and products that must be done without a launch.
template <typename T>
bool check_arguments(const Functions<T>& functions, const Sizes& sizes, const Workspace& workspace)
{
    const int64_t n = sizes.n, k = sizes.k, big = int64_t(1) << 31;
    const int64_t lda = functions.trans_a ? sizes.m : k, ldb = functions.trans_b ? k : n;
    Memory memory(256);
    T* const x = reinterpret_cast<T*>(memory.data);
    const auto status_of = [&](const T* A, int64_t given_lda, T* C, int64_t ldc, int64_t m) {
        return functions.run(
            A, given_lda, x, ldb, C, ldc, m, n, k, 1, 0, workspace.data, workspace.bytes, nullptr);
    };
    const auto check = [&](int status, int expected, const char* what) {
        return passes(status == expected, functions.name, what);
    };
    const T* const odd = reinterpret_cast<const T*>(memory.data + 1);
    bool right = check(status_of(x, lda, x, n, -1), GEMM_INVALID_SIZE, "a negative size is refused");
    right &= check(status_of(x, lda - 1, x, n, sizes.m), GEMM_INVALID_LD, "lda below the width is refused");
    right &= check(status_of(x, lda, x, n - 1, sizes.m), GEMM_INVALID_LD, "ldc below the width is refused");
    right &= check(status_of(x, big, x, n, sizes.m), GEMM_TOO_LARGE, "lda above 2^31 - 1 is refused");
    right &= check(status_of(nullptr, lda, x, n, sizes.m), GEMM_NULL_POINTER, "a null A is refused");
    right &= check(status_of(x, lda, nullptr, n, sizes.m), GEMM_NULL_POINTER, "a null C is refused");
    right &= check(status_of(odd, lda, x, n, sizes.m), GEMM_MISALIGNED, "an odd address is refused");
    right &= check(status_of(nullptr, lda, nullptr, n, 0), GEMM_SUCCESS, "m = 0 does nothing");
    if (functions.workspace_size(sizes.m, n, k)) {
        const int none = functions.run(x, lda, x, ldb, x, n, sizes.m, n, k, 1, 0, nullptr, 0, nullptr);
        right &= check(none, GEMM_WORKSPACE_TOO_SMALL, "a missing workspace is refused");
    }
    right &= check(functions.can_implement(sizes.m, n, k, lda, ldb, n), GEMM_SUCCESS, "can_implement");
    right &= check(functions.can_implement(sizes.m, n, k, lda - 1, ldb, n), GEMM_INVALID_LD, "can_implement");
    return right;
}

// Every way of calling, with the workspace left clean.
template <typename T>
bool check_results(const Functions<T>& functions, const Sizes& sizes)
{
    const auto [m, n, k] = sizes;
    const Workspace workspace(std::max(functions.workspace_size(m, n, k), functions.workspace_size(m, n, 0)));
    const int vector = 16 / int(sizeof(T));
    const Way ways[] = {
        {"integers", true, false, 1, 0, 0},
        {"integers, padded rows, beta", true, false, -2, 1, vector},
        {"random numbers", false, false, 1, 0, 0},
        {"alpha, beta, padded rows", false, false, -0.75, 0.5, vector},
        {"odd leading dimensions", false, false, 1.5, 1, 7},
        {"misaligned A", false, false, 1, 0, 0, 1, 0, 0},
        {"misaligned B", false, false, 1, 0, 0, 0, 1, 0},
        {"misaligned C", false, false, 1, 1, 0, 0, 0, 1},
        {"alpha = 0", false, false, 0, -2, 0},
        {"alpha = beta = 0", false, false, 0, 0, 3},
        {"k = 0", false, true, 1, 0.5, 0},
    };
    bool right = check_arguments(functions, sizes, workspace);
    for (const bool integers : {true, false}) {
        const std::vector<T> a = random_matrix<T>(m, k, 1, integers);  // op(A), op(B) and C, dense
        const std::vector<T> b = random_matrix<T>(k, n, 2, integers);
        const std::vector<T> c = random_matrix<T>(m, n, 3, integers);
        const Reference<T> reference(a, b, sizes);
        for (const Way& way : ways) {
            if (way.integers != integers) continue;
            const double ratio = error_over_bound(functions, sizes, reference, a, b, c, way, workspace);
            right &= passes(ratio <= 1, functions.name, way.what);
        }
    }
    return right;
}

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double median(std::vector<double> values)
{
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// Operands of many products of one shape, to be used in turn: what a product reads is then not in the L2 cache.
template <typename T>
struct Inputs {
    Sizes sizes;
    int lda, ldb;
    std::size_t sets, elements[3];
    Memory a, b, c;
    std::size_t next = 0;

    static int wanted(const Sizes& shape, int l2_bytes)
    {
        const double bytes = sizeof(T)
            * (double(shape.m) * shape.k + double(shape.k) * shape.n + double(shape.m) * shape.n);
        return int(std::max(1.0, std::min<double>(MOST_SETS, std::ceil(ROTATED_L2 * l2_bytes / std::max(1.0, bytes)))));
    }

    Inputs(const Functions<T>& functions, const Sizes& shape, int l2_bytes)
        : sizes(shape), lda(std::max(1, functions.trans_a ? shape.m : shape.k)),
          ldb(std::max(1, functions.trans_b ? shape.k : shape.n)), sets(std::size_t(wanted(shape, l2_bytes))),
          elements{area(shape.m, shape.k), area(shape.k, shape.n), area(shape.m, shape.n)},
          a(sets * elements[0] * sizeof(T)), b(sets * elements[1] * sizeof(T)), c(sets * elements[2] * sizeof(T))
    {
        const std::size_t most = std::max(elements[0], elements[1]);
        const std::vector<T> numbers = random_matrix<T>(1, int(std::min<std::size_t>(most, 1 << 26)), 4, false);
        for (std::size_t set = 0; set < sets; ++set) {  // never zeros: they run faster than data
            fill(a, set, elements[0], numbers);
            fill(b, set, elements[1], numbers);
        }
    }

    static void fill(const Memory& memory, std::size_t set, std::size_t count, const std::vector<T>& numbers)
    {
        for (std::size_t done = 0; done < count; done += numbers.size()) {
            const std::size_t part = std::min(numbers.size(), count - done);
            T* const to = reinterpret_cast<T*>(memory.data) + set * count + done;
            require(cudaMemcpy(to, numbers.data(), part * sizeof(T), cudaMemcpyHostToDevice), "copy to the device");
        }
    }

    template <typename Product>
    void launch(const Product& product)
    {
        const std::size_t set = next;
        next = (next + 1) % sets;
        product(
            reinterpret_cast<T*>(a.data) + set * elements[0], reinterpret_cast<T*>(b.data) + set * elements[1],
            reinterpret_cast<T*>(c.data) + set * elements[2]);
    }
};

struct Times {
    double graph_us, eager_us, single_us, host_us;
};

__global__ void empty_kernel() {}

// Keeps a stream busy for so long.
__global__ void hold_device([[maybe_unused]] unsigned long long nanoseconds)
{
#ifdef __CUDA_ARCH__
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < nanoseconds);
#endif
}

// Two events of a stream, and what lies between them. With `hold_us` the stream is held back so long, or longer, until
// all between them is queued, so that the device does not wait for the processor, as when the records were made.
struct Stopwatch {
    cudaStream_t stream;
    double hold_us;
    cudaEvent_t start, stop;

    explicit Stopwatch(cudaStream_t queue, double least_us = 0) : stream(queue), hold_us(least_us)
    {
        require(cudaEventCreate(&start), "cudaEventCreate");
        require(cudaEventCreate(&stop), "cudaEventCreate");
    }
    ~Stopwatch() { cudaEventDestroy(start), cudaEventDestroy(stop); }
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;

    template <typename Work>
    double operator()(const Work& work)
    {
        while (true) {
            const auto begin = Clock::now();
            if (hold_us > 0) hold();
            require(cudaEventRecord(start, stream), "cudaEventRecord");
            work();
            require(cudaEventRecord(stop, stream), "cudaEventRecord");
            const double queued_us = 1e6 * seconds_since(begin);
            require(cudaEventSynchronize(stop), "timing");
            float time_ms = 0;
            require(cudaEventElapsedTime(&time_ms, start, stop), "cudaEventElapsedTime");
            if (queued_us <= hold_us || hold_us <= 0 || hold_us >= MOST_HOLD_US) return 1e3 * time_ms;
            hold_us *= 2;
        }
    }

    void hold() const
    {
        unsigned long long nanoseconds = static_cast<unsigned long long>(1000 * hold_us);
        void* arguments[] = {&nanoseconds};
        cudaLaunchConfig_t config = {};
        config.gridDim = config.blockDim = dim3(1, 1, 1);
        config.stream = stream;
        require(
            cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(hold_device), arguments), "hold_device");
    }
};

// Least times of a call, measured with a kernel that does nothing: from event to event of one call on an idle device,
// and the processor's time.
struct Least {
    double single_us, host_us;
};

Least empty_call()
{
    Stopwatch elapsed_us(nullptr);
    const auto call = [] {
        cudaLaunchConfig_t config = {};
        config.gridDim = config.blockDim = dim3(1, 1, 1);
        require(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(empty_kernel), nullptr), "empty kernel");
    };
    std::vector<double> samples, batches;
    for (int i = 0; i < 100; ++i) samples.push_back(elapsed_us(call));
    for (int batch = 0; batch < 5; ++batch) {
        const auto begin = Clock::now();
        for (int i = 0; i < 200; ++i) call();
        batches.push_back(1e6 * seconds_since(begin) / 200);
        require(cudaStreamSynchronize(nullptr), "timing");
    }
    return {median(samples), *std::min_element(batches.begin(), batches.end())};
}

// Microseconds of one product: of those that follow each other in a replayed graph (by themselves, if they are long),
// of eager calls that follow each other, from event to event of a single call, and of the processor's time a call.
template <typename T, typename Product>
Times timed(Inputs<T>& inputs, cudaStream_t stream, const Product& product)
{
    Stopwatch elapsed_us(stream), held_us(stream, 50);
    const auto once = [&] { inputs.launch(product); };
    const auto warm_since = Clock::now();
    do {  // idle clocks are a fraction of loaded ones
        for (int i = 0; i < 10; ++i) once();
        require(cudaStreamSynchronize(stream), "warming up");
    } while (seconds_since(warm_since) < 0.1);

    Times times = {};
    std::vector<double> samples;
    for (int i = 0; i < 50 && (i < 5 || seconds_since(warm_since) < 0.3); ++i) samples.push_back(elapsed_us(once));
    times.single_us = median(samples);

    double least = INFINITY;
    const int calls = times.single_us < GRAPH_US ? 200 : 4;
    samples.clear();
    for (int batch = 0; batch < 5; ++batch) {
        const double batch_us = elapsed_us([&] {
            const auto begin = Clock::now();
            for (int i = 0; i < calls; ++i) once();
            least = std::min(least, 1e6 * seconds_since(begin) / calls);
        });
        samples.push_back(batch_us / calls);
    }
    times.eager_us = median(samples);
    times.host_us = least;

    const int launches = int(inputs.sets * ((20 + inputs.sets - 1) / inputs.sets));
    samples.clear();
    const auto since = Clock::now();
    if (times.single_us < GRAPH_US) {
        cudaGraph_t graph;
        cudaGraphExec_t ready;
        require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
        for (int i = 0; i < launches; ++i) once();
        require(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
        require(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
        const auto replay = [&] { require(cudaGraphLaunch(ready, stream), "cudaGraphLaunch"); };
        replay();
        do {
            samples.push_back(held_us(replay) / launches);
        } while (samples.size() < 5 || seconds_since(since) < BATCH_S);
        require(cudaGraphExecDestroy(ready), "cudaGraphExecDestroy");
        require(cudaGraphDestroy(graph), "cudaGraphDestroy");
    } else {
        do samples.push_back(held_us(once));
        while (samples.size() < 5 || seconds_since(since) < BATCH_S);
    }
    times.graph_us = median(samples);
    return times;
}
#ifdef WITH_CUBLAS

// cuBLAS counts in columns: read its way, a row-major C is C^T = op(B)^T op(A)^T.
cublasStatus_t cublas_gemm(
    cublasHandle_t handle, cublasOperation_t b, cublasOperation_t a, const Sizes& sizes, const float* B, int ldb,
    const float* A, int lda, float* C)
{
    const float one = 1, zero = 0;
    return cublasSgemm(handle, b, a, sizes.n, sizes.m, sizes.k, &one, B, ldb, A, lda, &zero, C, sizes.n);
}

template <typename T>
double cublas_us(const Functions<T>& functions, Inputs<T>& inputs, cudaStream_t stream)
{
    constexpr std::size_t BYTES = 32 << 20;
    const Memory workspace(BYTES);
    cublasHandle_t handle;
    if (cublasCreate(&handle) || cublasSetStream(handle, stream) || cublasSetWorkspace(handle, workspace.data, BYTES)) {
        std::fprintf(stderr, "gemm_main: cuBLAS does not start\n");
        std::exit(2);
    }
    const auto operation = [](bool trans) { return trans ? CUBLAS_OP_T : CUBLAS_OP_N; };
    const Times times = timed(inputs, stream, [&](const T* A, const T* B, T* C) {
        const cublasStatus_t status = cublas_gemm(
            handle, operation(functions.trans_b), operation(functions.trans_a), inputs.sizes, B, inputs.ldb, A,
            inputs.lda, C);
        if (status) std::fprintf(stderr, "gemm_main: cuBLAS answers %d\n", int(status)), std::exit(2);
    });
    cublasDestroy(handle);
    return times.graph_us;
}
#endif

struct Options {
    double tolerance = INFINITY;
    bool checks = true, times = true;
    Sizes other = {0, 0, 0};  // a shape instead of those that kernels were chosen for
    int l2_bytes = 0;
};

// Checks and times one shape: one line. False where it is wrong, or slower than is tolerated.
template <typename T>
bool test_shape(const Functions<T>& functions, const Sizes& sizes, const Options& options)
{
    gemm_description description;
    require_done(functions.describe(sizes.m, sizes.n, sizes.k, &description), functions.name);
    const bool right = !options.checks || check_results(functions, sizes);
    char shape[40];
    std::snprintf(shape, sizeof shape, "%dx%dx%d", sizes.m, sizes.n, sizes.k);
    std::printf("%-12s %-18s %-5s", functions.name, shape, !options.checks ? "-" : right ? "ok" : "WRONG");
    bool fast = true;
    if (options.times) {
        cudaStream_t stream;
        require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
        Inputs<T> inputs(functions, sizes, options.l2_bytes);
        const Workspace workspace(functions.workspace_size(sizes.m, sizes.n, sizes.k));
        const Times times = timed(inputs, stream, [&](const T* A, const T* B, T* C) {
            const int status = functions.run(
                A, inputs.lda, B, inputs.ldb, C, sizes.n, sizes.m, sizes.n, sizes.k, 1, 0, workspace.data,
                workspace.bytes, stream);
            if (status != GEMM_SUCCESS) require_done(status, functions.name);
        });
        std::printf(
            " %10.2f %10.2f %10.2f %8.2f", times.graph_us, times.eager_us, times.single_us, times.host_us);
        if (description.recorded_us > 0) {
            const double ratio = times.graph_us / description.recorded_us;
            fast = ratio <= 1 + options.tolerance;
            std::printf(" %10.2f %6.3f%s", description.recorded_us, ratio, fast ? "" : " SLOWER");
        } else {
            std::printf(" %10s %6s", "-", "-");
        }
#ifdef WITH_CUBLAS
        std::printf(" %10.2f", cublas_us(functions, inputs, stream));
#endif
        require(cudaStreamDestroy(stream), "cudaStreamDestroy");
    }
    std::printf("  %s\n", description.config);
    std::fflush(stdout);
    return right && fast;
}

template <typename T>
bool test(const Functions<T>& functions, std::vector<Sizes> shapes, const Options& options)
{
    if (options.other.m) shapes = {options.other};
    bool good = true;
    for (const Sizes& sizes : shapes) good &= test_shape(functions, sizes, options);
    return good;
}

// A size from the command line; ends the program for anything but 1 to 2^31 - 1.
int parse_size(const char* text)
{
    char* end = nullptr;
    const long size = std::strtol(text, &end, 10);
    if (end == text || *end != '\0' || size < 1 || size > 2147483647L) {
        std::fprintf(stderr, "gemm_main: a size must be 1 to 2147483647, got %s\n", text);
        std::exit(2);
    }
    return int(size);
}

double parse_tolerance(const char* text)
{
    char* end = nullptr;
    const double tolerance = std::strtod(text, &end);
    if (end == text || *end != '\0' || !(tolerance >= 0)) {
        std::fprintf(stderr, "gemm_main: --tolerance must be a number of at least 0, got %s\n", text);
        std::exit(2);
    }
    return tolerance;
}

}  // namespace
}  // namespace gemm_test

int main(int argc, char** argv)
{
    using namespace gemm_test;
    Options options;
    int sizes = 0, given[3] = {};
    for (int i = 1; i < argc; ++i) {
        if (!std::strcmp(argv[i], "--tolerance") && i + 1 < argc) options.tolerance = parse_tolerance(argv[++i]);
        else if (!std::strcmp(argv[i], "--no-checks")) options.checks = false;
        else if (!std::strcmp(argv[i], "--no-times")) options.times = false;
        else if (sizes < 3 && argv[i][0] != '-') given[sizes++] = parse_size(argv[i]);
        else sizes = 4;
    }
    if (sizes != 0 && sizes != 3) {
        std::fprintf(stderr, "usage: %s [--tolerance 0.1] [--no-checks] [--no-times] [M N K]\n", argv[0]);
        return 2;
    }
    options.other = {given[0], given[1], given[2]};
    int devices = 0;
    require(cudaGetDeviceCount(&devices), "no GPU to run on");
    cudaDeviceProp device;
    require(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
    require(cudaSetDevice(0), "cudaSetDevice");
    require_done(gemm_init(), "gemm_init");
    options.l2_bytes = device.l2CacheSize;
    std::printf("%s, CUDA %d.%d; microseconds\n", device.name, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (options.times) {
        const Least least = empty_call();
        std::printf("a call of an empty kernel: single %.2f, host %.2f\n", least.single_us, least.host_us);
    }
    std::printf("%-12s %-18s %-5s", "function", "shape", "");
    if (options.times) {
        std::printf(" %10s %10s %10s %8s %10s %6s", "graph", "eager", "single", "host", "recorded", "ratio");
    }
#ifdef WITH_CUBLAS
    if (options.times) std::printf(" %10s", "cuBLAS");
#endif
    std::printf("  config\n");

    bool good = true;
    good &= test<float>(
        {"gemm", false, false, gemm, gemm_run, gemm_can_implement,
         gemm_workspace_size, gemm_describe},
        {
            {1021, 767, 509},
        },
        options);
    require_done(gemm_release(), "gemm_release");
    return good ? 0 : 1;
}
