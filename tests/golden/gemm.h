// gemm.h: matrix products on NVIDIA GPUs in C and C++.
//
// Written by tilewright, file digest 9b83b280e18495c8. To write it again:
//   tilewright emit --shape 1021x767x509 --dtype float --trans nn --arch sm_90a --name gemm --cmake --config "tiled:16"
// SPDX-License-Identifier: MIT
//
// Compile, with CUDA 12.0 or newer, and link with the CUDA runtime and -lm. For a program in C or Fortran, which has no
// C++ runtime, compile with -Xcompiler=-fno-exceptions,-fno-threadsafe-statics beside:
//   nvcc -O3 -std=c++17 -arch=sm_90a -c gemm.cu
#ifndef TILEWRIGHT_GEMM_H
#define TILEWRIGHT_GEMM_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

// C = alpha * op(A) * op(B) + beta * C
//
//   functions        elements  A is stored               B is stored
//   gemm*            float     m x k                     k x n
//
// op(A) is m x k, op(B) is k x n; C is m x n and overlaps neither A nor B. Every matrix is row-major in memory that the
// GPU can reach. lda, ldb and ldc count elements from the start of one row to the start of the next, at least 1 and the
// length of a stored row; what lies between two rows is neither read nor written. alpha = 0 or k = 0 reads neither A
// nor B, beta = 0 does not read C: they may be null or hold NaN.
//
//     float *a, *b, *c;  // on the device; m x k, k x n and m x n
//     int status = gemm(a, k, b, n, c, n, m, n, k, 1, 0, stream);
//     if (status != GEMM_SUCCESS) puts(gemm_status_string(status));
//
//   sizes      m, n, k from 0 to 2^31 - 1, leading dimensions up to 2^31 - 1; _can_implement says where tiles of C or
//              copies of operands would be too many
//   alignment  of A, B and C to one element
//   workspace  none: gemm_workspace_size is always 0
//   threads    every function but _release may be called from any number of threads at once
//   streams    calls on different streams run side by side, each with a workspace of its own where it needs one
//   devices    work goes to the current device, which the stream must belong to
//   capture    gemm_run can be captured into a CUDA graph, after gemm_init on the device: it allocates nothing,
//              waits for nothing and adds kernel nodes alone; graphs that may run at once
//              want a workspace each
//   version    files that are written again for the same types and transposes may have other kernels, times, workspace
//              sizes and last bits of results. Declarations stay, but for fields that may follow the last one of a
//              description: then GEMM_VERSION grows
//   accuracy   |error| <= gamma(k + 2) |alpha| |A| |B| + gamma(2) |beta| |C| + (k + 4) d, gamma(i) = i u / (1 - i u),
//              with the unit roundoff u and the smallest subnormal d of the type; every run gives the same bits
//
// Shapes that kernels were chosen for. Another shape gets the kernel of the nearest one that can serve it:
//
//   1021x767x509           float  nn  sm_90a  as given

#define GEMM_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

// Statuses, which every function returns but for sizes and names. GEMM_CUDA_ERROR + e is what the CUDA runtime
// answered, an earlier failure on the device included.
enum {
    GEMM_SUCCESS = 0,              // done, or queued
    GEMM_INVALID_SIZE = 1,         // a size or count is negative
    GEMM_INVALID_LD = 2,           // lda, ldb or ldc is below 1 or the length of a stored row
    GEMM_NULL_POINTER = 3,         // a matrix that would be read or written, or a description, is null
    GEMM_MISALIGNED = 4,           // a matrix does not begin at a whole element, or the workspace at 256 bytes
    GEMM_TOO_LARGE = 5,            // a size or leading dimension is above 2^31 - 1, or there are too many tiles of C
    GEMM_WORKSPACE_TOO_SMALL = 6,  // the workspace is smaller than the product needs
    GEMM_UNSUPPORTED_DEVICE = 7,   // the kernels are for other architectures, or the driver lacks tensor maps
    GEMM_CAPTURING = 8,            // this call needs a workspace: capture _run, which is given one
    GEMM_CUDA_ERROR = 1000
};

const char* gemm_status_string(int status);

// Has all kernels ready on the current device. Calls do so themselves when they first need one; while a graph is
// captured they must not have to.
int gemm_init(void);

// Frees the workspaces that functions without one keep; no work of theirs may be queued, no thread may be in them.
int gemm_release(void);

// Makes new memory a workspace: clears the counters at its start, by which CTAs wait for each other. Every product
// leaves them 0, so that once is enough, whatever shapes follow. Without it results are wrong.
int gemm_workspace_init(void* workspace, size_t workspace_bytes, cudaStream_t stream);

typedef struct gemm_description {
    const char* kernel;        // as a profiler shows it; null, as the two that follow, where m or n is 0
    const char* config;        // all its parameters that are not at their defaults
    const char* origin;        // where it was tuned, or how else it was chosen, for the shape that follows
    int64_t m, n, k;           // 0 for the general kernel
    double recorded_us;        // of one product, measured when it was tuned; 0 where it was not, or for another shape
    double error_over_bound;   // the largest error seen then, over the bound above
    size_t workspace_bytes;
} gemm_description;

// ---- float, A as it is, B as it is ----

// GEMM_SUCCESS where such a product can be computed, else why not. Calls nothing of CUDA.
int gemm_can_implement(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc);

// Bytes that gemm_run needs for such a product on any device. Calls nothing of CUDA.
size_t gemm_workspace_size(int64_t m, int64_t n, int64_t k);

// Queues the product. The workspace is used until it is done, by one stream at a time; gemm_workspace_init
// made it one. It may be null where gemm_workspace_size is 0.
int gemm_run(
    const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t m, int64_t n, int64_t k,
    float alpha, float beta, void* workspace, size_t workspace_bytes, cudaStream_t stream);

// Queues the product with a workspace that it keeps for each stream until gemm_release. A product that needs one
// cannot be captured: GEMM_CAPTURING. With CUDA 11 cudaStreamPerThread wants _run and a workspace a thread.
int gemm(
    const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t m, int64_t n, int64_t k,
    float alpha, float beta, cudaStream_t stream);

// Describes the kernel that such a product gets where its operands lie as vectors want it, on the current device where
// there are kernels for several architectures.
int gemm_describe(int64_t m, int64_t n, int64_t k, gemm_description* description);

#ifdef __cplusplus
}
#endif

#endif
