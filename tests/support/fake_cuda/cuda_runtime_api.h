/* As much of the CUDA runtime's C interface as emitted headers need. */
#pragma once

typedef struct CUstream_st* cudaStream_t;
