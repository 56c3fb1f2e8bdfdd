// A program, `concurrent CALLS`, that calls an emitted `gemm` (float, nn, a kernel with a workspace) from several threads,
// on several devices and in several graphs at a time. Its exit status is 1 where a result is wrong.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

#include "gemm.h"

namespace {

constexpr int M = 64, N = 40, K = 100;

void expect(bool good, const char* what)
{
    if (good) return;
    std::printf("WRONG: %s\n", what);
    std::exit(1);
}

// Operands of small integers and memory for C, on the current device, which the processor reads too.
struct Operands {
    float *a, *b, *c;

    Operands()
    {
        for (float** each : {&a, &b, &c}) {
            expect(cudaMallocManaged(reinterpret_cast<void**>(each), M * K * sizeof(float)) == cudaSuccess, "memory");
        }
        for (int i = 0; i < M * K; ++i) a[i] = float(i % 7 - 3);
        for (int i = 0; i < K * N; ++i) b[i] = float(i % 5 - 2);
        clear();
    }
    void clear() { for (int i = 0; i < M * N; ++i) c[i] = -12345; }
    bool right(int rows) const
    {
        for (int i = 0; i < rows; ++i) {
            for (int j = 0; j < N; ++j) {
                float sum = 0;
                for (int p = 0; p < K; ++p) sum += a[i * K + p] * b[p * N + j];
                if (c[i * N + j] != sum) return false;
            }
        }
        return true;
    }
};

// Multiplies `rows` rows in each of `calls` calls. Every twentieth result is checked, and the last.
void call(int device, int rows, int calls, std::atomic<int>* wrong)
{
    cudaStream_t stream;
    if (cudaSetDevice(device) || cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) ++*wrong;
    Operands operands;
    for (int i = 0; i < calls; ++i) {
        if (gemm(operands.a, K, operands.b, N, operands.c, N, rows, N, K, 1, 0, stream)) ++*wrong;
        if (i % 20 != 19 && i + 1 != calls) continue;
        if (cudaStreamSynchronize(stream) || !operands.right(rows)) ++*wrong;
        operands.clear();
    }
}

void graphs()
{
    cudaStream_t stream, other;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    expect(gemm_init() == GEMM_SUCCESS, "gemm_init");
    const size_t bytes = gemm_workspace_size(M, N, K);
    Operands operands[2];
    cudaGraph_t captured[2], parent;
    cudaGraphExec_t ready[3];
    for (int i = 0; i < 2; ++i) {
        void* workspace = nullptr;
        cudaMalloc(&workspace, bytes);
        expect(gemm_workspace_init(workspace, bytes, stream) == GEMM_SUCCESS, "gemm_workspace_init");
        cudaStreamSynchronize(stream);
        const Operands& own = operands[i];
        expect(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess, "capturing");
        expect(gemm(own.a, K, own.b, N, own.c, N, M, N, K, 1, 0, stream) == GEMM_CAPTURING, "the simple call refuses");
        expect(gemm_run(own.a, K, own.b, N, own.c, N, M, N, K, 1, 0, workspace, bytes, stream) == 0, "gemm_run captured");
        expect(cudaStreamEndCapture(stream, &captured[i]) == cudaSuccess, "captured");
        expect(cudaGraphInstantiate(&ready[i], captured[i], 0) == cudaSuccess, "ready");
    }
    expect(cudaGraphCreate(&parent, 0) == cudaSuccess, "parent");
    for (cudaGraph_t each : captured) {
        cudaGraphNode_t node;
        expect(cudaGraphAddChildGraphNode(&node, parent, nullptr, 0, each) == cudaSuccess, "child");
    }
    expect(cudaGraphInstantiate(&ready[2], parent, 0) == cudaSuccess, "parent ready");
    for (int turn = 0; turn < 20; ++turn) {
        for (Operands& each : operands) each.clear();
        if (turn % 2) {
            cudaGraphLaunch(ready[2], stream);
        } else {  // both at a time
            cudaGraphLaunch(ready[0], stream);
            cudaGraphLaunch(ready[1], other);
        }
        cudaStreamSynchronize(stream);
        cudaStreamSynchronize(other);
        expect(operands[0].right(M) && operands[1].right(M), "products of graphs");
    }
}

}  // namespace

int main(int argc, char** argv)
{
    const int calls = argc > 1 ? std::atoi(argv[1]) : 40;
    int devices = 0;
    expect(cudaGetDeviceCount(&devices) == cudaSuccess, "devices");
    graphs();
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2 * (devices < 2 ? devices : 2); ++i) threads.emplace_back(call, i / 2, M - 9 * i, calls, &wrong);
    for (std::thread& each : threads) each.join();
    expect(wrong == 0, "calls of threads");
    expect(gemm_release() == GEMM_SUCCESS, "gemm_release");
    std::printf("%zu threads on %d devices, %d calls each\n", threads.size(), devices < 2 ? devices : 2, calls);
    return 0;
}
