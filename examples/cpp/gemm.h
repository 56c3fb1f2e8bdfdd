// gemm.h: matrix product on an NVIDIA GPU, float, chosen for m = 300, n = 200, k = 100.
//
// Written by tilewright, file digest dbf5f9e700c6d801. To write it again:
//   tilewright emit --shape 300x200x100 --dtype float --trans nn --arch sm_90a --name gemm --config "tiled:16"
// SPDX-License-Identifier: MIT
//
// Compile, with CUDA 11.8 or newer, and link with the CUDA runtime alone:
//   nvcc -O3 -arch=sm_90a -c gemm.cu
#ifndef TILEWRIGHT_GEMM_H
#define TILEWRIGHT_GEMM_H

#ifdef __cplusplus
extern "C" {
#endif

// C = alpha * op(A) * op(B) + beta * C
//
//   op(A) is m x k; A is stored m x k, lda >= max(1, k)
//   op(B) is k x n; B is stored k x n, ldb >= max(1, n)
//   C is m x n, ldc >= max(1, n), and overlaps neither A nor B
//
// Every matrix is row-major in memory that the GPU can reach. lda, ldb and ldc count elements from the start
// of one row to the start of the next; what lies between two rows is neither read nor written.
//
//   sizes      any m, n, k >= 0
//   alignment  A, B and C to one element, 4 bytes; no demand on lda, ldb and ldc
//   empty      m = 0 or n = 0 does nothing; k = 0 or alpha = 0 gives C = beta * C and reads neither A nor B,
//              which may then be null; beta = 0 does not read C
//   stream     a cudaStream_t of the current device, or null for the default stream; the call returns once
//              the work is queued, and the matrices must live until it is done
//
// Returns a cudaError_t:
//   cudaSuccess                    queued, or nothing to do
//   cudaErrorInvalidValue          a negative size, or a null matrix that would be read or written
//   cudaErrorInvalidPitchValue     lda, ldb or ldc below the width of a stored row
//   cudaErrorMisalignedAddress     a matrix that does not start at a multiple of 4 bytes
//   cudaErrorInvalidConfiguration  2^31 CTAs or more, each 16 x 16 elements of C
//   any other                      what the CUDA runtime answered, an earlier failure on the device included
int gemm(
    const float* A, int lda, const float* B, int ldb, float* C, int ldc,
    int m, int n, int k, float alpha, float beta, void* stream);

#ifdef __cplusplus
}
#endif

#endif
