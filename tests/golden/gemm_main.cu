// gemm_main.cu: tests the function against a plain loop on the processor, then times it.
//
// Written by tilewright, file digest 7e8892d8d74ad8b6. To write it again:
//   tilewright emit --shape 1024x768x512 --dtype float --trans nn --arch sm_90a --name gemm --main --config "tiled:16,edge=pad"
// SPDX-License-Identifier: MIT
//
//   nvcc -O3 -arch=sm_90a gemm.cu gemm_main.cu -o gemm_main
//   ./gemm_main [M N K]
//
// Every element must meet |error| <= gamma(k + 2) |alpha| |A| |B| + gamma(2) |beta| |C|, with
// gamma(i) = i u / (1 - i u) and u = 2^-24, which holds for any order of the sums.
// Exit status: 0 right, 1 wrong, 2 could not run.

#include "gemm.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <limits>
#include <random>
#include <vector>

namespace {

using T = float;
using Wide = double;  // of the reference, with more digits than T

constexpr bool TRANS_A = false;
constexpr bool TRANS_B = false;
constexpr int REPEATS = 20;          // timed calls
constexpr double MOST_STEPS = 1e9;   // of the plain loop; above it some rows of C are left out
constexpr T POISON = std::numeric_limits<T>::quiet_NaN();  // marks what must not be read, or must be written
constexpr T CANARY = T(-12345);                            // marks what must not be written

void require(cudaError_t error, const char* what)
{
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "gemm_main: %s: %s\n", what, cudaGetErrorString(error));
    std::exit(2);
}

// A dense row-major matrix of random numbers in [-1, 1).
std::vector<T> random_matrix(int rows, int cols, unsigned seed)
{
    std::mt19937 generator(seed);
    std::vector<T> matrix(std::size_t(rows) * cols);
    for (T& x : matrix) x = T(generator()) / T(2147483648.0) - T(1);
    return matrix;
}

// A matrix on the device, as it is stored: `padding` elements follow each row, the last one too.
struct DeviceMatrix {
    int rows, cols, ld;
    T* data = nullptr;

    DeviceMatrix(int rows, int cols, int padding) : rows(rows), cols(cols), ld(std::max(1, cols + padding))
    {
        require(cudaMalloc(&data, std::max<std::size_t>(1, size()) * sizeof(T)), "no device memory");
    }
    ~DeviceMatrix() { cudaFree(data); }
    DeviceMatrix(const DeviceMatrix&) = delete;
    DeviceMatrix& operator=(const DeviceMatrix&) = delete;

    std::size_t size() const { return std::size_t(rows) * ld; }

    // Fills it with `dense`, transposed if asked, and the padding with `mark`.
    void store(const std::vector<T>& dense, bool transposed, T mark)
    {
        std::vector<T> stored(size(), mark);
        for (int i = 0; i < rows; ++i) {
            for (int j = 0; j < cols; ++j) {
                stored[std::size_t(i) * ld + j] =
                    transposed ? dense[std::size_t(j) * rows + i] : dense[std::size_t(i) * cols + j];
            }
        }
        const std::size_t bytes = size() * sizeof(T);
        require(cudaMemcpy(data, stored.data(), bytes, cudaMemcpyHostToDevice), "copy to the device");
    }

    std::vector<T> fetch() const
    {
        std::vector<T> stored(size());
        const std::size_t bytes = size() * sizeof(T);
        require(cudaMemcpy(stored.data(), data, bytes, cudaMemcpyDeviceToHost), "copy to the host");
        return stored;
    }
};

// op(A) op(B) by a plain loop, and |op(A)| |op(B)|, for some rows of C.
struct Reference {
    std::vector<int> rows;
    std::vector<Wide> product;
    std::vector<double> magnitude;

    Reference(const std::vector<T>& a, const std::vector<T>& b, int m, int n, int k)
    {
        const double row_steps = double(n) * std::max(k, 100);
        const int count = int(std::min<double>(m, std::max(2.0, MOST_STEPS / row_steps)));
        for (int r = 0; r < count; ++r) rows.push_back(int((long long)r * (m - 1) / std::max(1, count - 1)));
        product.resize(std::size_t(count) * n);
        magnitude.resize(product.size());
        for (int r = 0; r < count; ++r) {
            Wide* sum = &product[std::size_t(r) * n];
            double* total = &magnitude[std::size_t(r) * n];
            for (int p = 0; p < k; ++p) {
                const T x = a[std::size_t(rows[r]) * k + p];
                const T* row = &b[std::size_t(p) * n];
                for (int j = 0; j < n; ++j) {
                    sum[j] += Wide(x) * row[j];
                    total[j] += std::fabs(double(x) * row[j]);
                }
            }
        }
    }
};

double gamma_bound(double i)
{
    constexpr double u = std::numeric_limits<T>::epsilon() / 2;
    return i * u / (1 - i * u);
}

struct Shape {
    int m, n, k;
};

// One call against the reference. Returns the largest error over its bound: 1 or less is right, NaN is wrong.
double error_over_bound(
    const Shape& shape, const Reference& reference, const std::vector<T>& a, const std::vector<T>& b,
    const std::vector<T>& c, int padding, T alpha, T beta)
{
    const int m = shape.m, n = shape.n, k = shape.k;
    DeviceMatrix A(TRANS_A ? k : m, TRANS_A ? m : k, padding);
    DeviceMatrix B(TRANS_B ? n : k, TRANS_B ? k : n, padding);
    DeviceMatrix C(m, n, padding);
    const bool reads_ab = k > 0 && alpha != T(0);
    if (reads_ab) {
        A.store(a, TRANS_A, POISON);
        B.store(b, TRANS_B, POISON);
    }
    C.store(beta == T(0) ? std::vector<T>(c.size(), POISON) : c, false, CANARY);

    const int error = gemm(
        reads_ab ? A.data : nullptr, A.ld, reads_ab ? B.data : nullptr, B.ld, C.data, C.ld,
        m, n, k, alpha, beta, nullptr);
    require(cudaError_t(error), "gemm");
    require(cudaDeviceSynchronize(), "running gemm");

    const std::vector<T> result = C.fetch();
    double worst = 0;
    for (int i = 0; i < m; ++i) {
        for (int j = n; j < C.ld; ++j) {
            if (result[std::size_t(i) * C.ld + j] != CANARY) return INFINITY;
        }
    }
    for (std::size_t r = 0; r < reference.rows.size(); ++r) {
        const std::size_t i = reference.rows[r];
        for (int j = 0; j < n; ++j) {
            const Wide before = beta == T(0) ? 0 : c[i * n + j];
            const Wide exact = Wide(alpha) * reference.product[r * n + j] + Wide(beta) * before;
            const double bound =
                gamma_bound(k + 2.0) * std::fabs(double(alpha)) * reference.magnitude[r * n + j]
                + gamma_bound(2) * std::fabs(double(beta) * double(before))
                + (k + 4.0) * double(std::numeric_limits<T>::denorm_min());
            const double off = double(std::fabs(Wide(result[i * C.ld + j]) - exact));
            if (!(off <= bound)) return std::isnan(off) ? double(NAN) : off / bound;
            worst = std::max(worst, off / bound);
        }
    }
    return worst;
}

bool check(const char* what, bool right)
{
    if (!right) std::printf("%-36s WRONG\n", what);
    return right;
}

// What must be refused, and what must be done without a launch.
bool check_arguments(const Shape& shape)
{
    const int n = shape.n, k = shape.k;
    const int lda = TRANS_A ? shape.m : k, ldb = TRANS_B ? k : n;
    DeviceMatrix X(1, 1, 0);
    T* const x = X.data;
    const auto succeeds = [&](const T* A, int lda, T* C, int ldc, int m) {
        return gemm(A, lda, x, ldb, C, ldc, m, n, k, 1, 0, nullptr) == cudaSuccess;
    };
    bool right = check("a negative size is refused", !succeeds(x, lda, x, n, -1));
    right &= check("lda below the width is refused", !succeeds(x, lda - 1, x, n, shape.m));
    right &= check("ldc below the width is refused", !succeeds(x, lda, x, n - 1, shape.m));
    right &= check("a null A is refused", !succeeds(nullptr, lda, x, n, shape.m));
    right &= check("a null C is refused", !succeeds(x, lda, nullptr, n, shape.m));
    right &= check("m = 0 does nothing", succeeds(nullptr, lda, nullptr, n, 0));
    return right;
}

// The median time of a call in microseconds, by events.
double median_us(const Shape& shape, const std::vector<T>& a, const std::vector<T>& b)
{
    const int m = shape.m, n = shape.n, k = shape.k;
    DeviceMatrix A(TRANS_A ? k : m, TRANS_A ? m : k, 0);
    DeviceMatrix B(TRANS_B ? n : k, TRANS_B ? k : n, 0);
    DeviceMatrix C(m, n, 0);
    A.store(a, TRANS_A, POISON);
    B.store(b, TRANS_B, POISON);

    cudaEvent_t start, stop;
    require(cudaEventCreate(&start), "cudaEventCreate");
    require(cudaEventCreate(&stop), "cudaEventCreate");
    std::vector<float> times_ms;
    for (int i = -3; i < REPEATS; ++i) {  // three calls warm up
        require(cudaEventRecord(start), "cudaEventRecord");
        const int error = gemm(A.data, A.ld, B.data, B.ld, C.data, C.ld, m, n, k, 1, 0, nullptr);
        require(cudaError_t(error), "gemm");
        require(cudaEventRecord(stop), "cudaEventRecord");
        require(cudaEventSynchronize(stop), "timing gemm");
        float time_ms = 0;
        require(cudaEventElapsedTime(&time_ms, start, stop), "cudaEventElapsedTime");
        if (i >= 0) times_ms.push_back(time_ms);
    }
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    std::sort(times_ms.begin(), times_ms.end());
    return 1000.0 * times_ms[times_ms.size() / 2];
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

}  // namespace

int main(int argc, char** argv)
{
    if (argc != 1 && argc != 4) {
        std::fprintf(stderr, "usage: %s [M N K]\n", argv[0]);
        return 2;
    }
    Shape shape = {1024, 768, 512};
    if (argc == 4) shape = {parse_size(argv[1]), parse_size(argv[2]), parse_size(argv[3])};
    const int m = shape.m, n = shape.n, k = shape.k;
    int devices = 0;
    require(cudaGetDeviceCount(&devices), "no GPU to run on");
    cudaDeviceProp device;
    require(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
    require(cudaSetDevice(0), "cudaSetDevice");

    const std::vector<T> a = random_matrix(m, k, 1);  // op(A), op(B) and C, dense
    const std::vector<T> b = random_matrix(k, n, 2);
    const std::vector<T> c = random_matrix(m, n, 3);
    const Reference reference(a, b, m, n, k);
    std::printf("gemm %d x %d x %d float on %s, %zu of %d rows checked\n",
                m, n, k, device.name, reference.rows.size(), m);

    bool right = check_arguments(shape);
    const auto run = [&](int depth, T alpha, T beta, int padding) {
        const Shape part = {m, n, depth};
        const double ratio = depth == k
            ? error_over_bound(part, reference, a, b, c, padding, alpha, beta)
            : error_over_bound(part, Reference({}, {}, m, n, depth), {}, {}, c, padding, alpha, beta);
        std::printf("k %d  alpha %5.2f  beta %5.2f  ld +%d  error/bound %.3g  %s\n", depth, double(alpha),
                    double(beta), padding, ratio, ratio <= 1 ? "ok" : "WRONG");
        right = right && ratio <= 1;
    };
    run(k, 1, 0, 0);
    run(k, 1, 0, 7);
    run(k, T(-0.75), T(0.5), 0);
    run(k, T(1.5), 1, 1);
    run(k, 0, T(-2), 0);
    run(k, 0, 0, 3);
    run(0, 1, T(0.5), 0);
    if (!right) return 1;

    const double time_us = median_us(shape, a, b);
    std::printf("%.2f us, %.1f GFLOP/s (median of %d calls)\n", time_us, 2e-3 * m * n * k / time_us, REPEATS);
    return 0;
}
