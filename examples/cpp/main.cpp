// Multiplies a block of a larger matrix in place of copying it out: the leading dimension does the work. Then the same
// from a CUDA graph.
#include "my_gemm.h"

#include <cstdio>
#include <cuda_runtime.h>
#include <vector>

namespace {

// Ends the program with one line where CUDA failed.
bool failed(cudaError_t error, const char* what)
{
    if (error == cudaSuccess) return false;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    return true;
}

bool failed(int status, const char* what)
{
    if (status == MY_GEMM_SUCCESS) return false;
    std::fprintf(stderr, "%s: %s\n", what, my_gemm_status_string(status));
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
    cudaStream_t stream = nullptr;
    if (failed(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream")) return 2;

    // Once: kernels are loaded, and a workspace is made for this stream, if the kernel needs one.
    if (failed(my_gemm_init(), "my_gemm_init")) return 2;
    const std::size_t bytes = my_gemm_workspace_size(m, n, k);
    void* workspace = nullptr;
    if (bytes && failed(cudaMalloc(&workspace, bytes), "cudaMalloc")) return 2;
    if (failed(my_gemm_workspace_init(workspace, bytes, stream), "my_gemm_workspace_init")) return 2;

    // As often as there is work: nothing is allocated, nothing waits.
    const float* device_a = device_big + std::size_t(first_row) * pitch + first_col;
    const auto product = [&] {
        return my_gemm_run(
            device_a, pitch, device_b, n, device_c, n, m, n, k, 1.0f, 0.0f, workspace, bytes, stream);
    };
    if (failed(product(), "my_gemm_run")) return 1;

    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    if (failed(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture")) return 2;
    if (failed(product(), "my_gemm_run")) return 1;
    if (failed(cudaStreamEndCapture(stream, &graph), "capture")) return 2;
    if (failed(cudaGraphInstantiate(&ready, graph, 0), "graph")) return 2;
    if (failed(cudaMemsetAsync(device_c, 0xFF, c.size() * sizeof(float), stream), "clear")) return 2;
    if (failed(cudaGraphLaunch(ready, stream), "graph")) return 2;
    if (failed(cudaStreamSynchronize(stream), "my_gemm")) return 1;
    if (failed(cudaMemcpy(c.data(), device_c, c.size() * sizeof(float), cudaMemcpyDeviceToHost), "my_gemm")) return 1;

    // The numbers are small integers, so that the sums are exact.
    int wrong = 0;
    for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) {
            float sum = 0;
            for (int p = 0; p < k; ++p) sum += float((i % 7 - p % 5) * (p % 3 - j % 4));
            wrong += c[std::size_t(i) * n + j] != sum;
        }
    }
    my_gemm_description description;
    my_gemm_describe(m, n, k, &description);
    std::printf("%d x %d x %d by %s: %d of %d elements wrong\n", m, n, k, description.kernel, wrong, m * n);
    return wrong == 0 ? 0 : 1;
}
