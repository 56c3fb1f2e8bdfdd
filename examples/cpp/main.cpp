// Multiplies a block of a larger matrix in place of copying it out: the leading dimension does the work.
#include "gemm.h"

#include <cstdio>
#include <cuda_runtime.h>
#include <vector>

namespace {

// Ends the program with one line where CUDA or gemm failed.
bool failed(int error, const char* what)
{
    if (error == cudaSuccess) return false;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(cudaError_t(error)));
    return true;
}

}  // namespace

int main()
{
    int devices = 0;
    if (failed(cudaGetDeviceCount(&devices), "no CUDA device")) return 2;

    // A is m x k and lies in the middle of a matrix whose rows hold `pitch` numbers.
    const int m = 300, n = 200, k = 100, pitch = 512, first_row = 20, first_col = 30;
    std::vector<float> big(std::size_t(first_row + m) * pitch, -1.0f), b(std::size_t(k) * n), c(std::size_t(m) * n);
    for (int i = 0; i < m; ++i) {
        for (int p = 0; p < k; ++p) big[std::size_t(first_row + i) * pitch + first_col + p] = float(i % 7 - p % 5);
    }
    for (int p = 0; p < k; ++p) {
        for (int j = 0; j < n; ++j) b[std::size_t(p) * n + j] = float(p % 3 - j % 4);
    }

    float *device_big = nullptr, *device_b = nullptr, *device_c = nullptr;
    if (failed(cudaMalloc(&device_big, big.size() * sizeof(float)), "cudaMalloc")) return 2;
    if (failed(cudaMalloc(&device_b, b.size() * sizeof(float)), "cudaMalloc")) return 2;
    if (failed(cudaMalloc(&device_c, c.size() * sizeof(float)), "cudaMalloc")) return 2;
    cudaMemcpy(device_big, big.data(), big.size() * sizeof(float), cudaMemcpyHostToDevice);
    cudaMemcpy(device_b, b.data(), b.size() * sizeof(float), cudaMemcpyHostToDevice);

    const float* device_a = device_big + std::size_t(first_row) * pitch + first_col;
    if (failed(gemm(device_a, pitch, device_b, n, device_c, n, m, n, k, 1.0f, 0.0f, nullptr), "gemm")) return 1;
    if (failed(cudaMemcpy(c.data(), device_c, c.size() * sizeof(float), cudaMemcpyDeviceToHost), "gemm")) return 1;

    // The numbers are small integers, so that the sums are exact.
    int wrong = 0;
    for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int p = 0; p < k; ++p) sum += float((i % 7 - p % 5) * (p % 3 - j % 4));
            wrong += c[std::size_t(i) * n + j] != sum;
        }
    }
    cudaFree(device_big);
    cudaFree(device_b);
    cudaFree(device_c);
    std::printf("%d x %d x %d: %d of %d elements wrong\n", m, n, k, wrong, m * n);
    return wrong == 0 ? 0 : 1;
}
