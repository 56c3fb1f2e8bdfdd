"""Generator and autotuner of tiled CUDA matrix-multiplication kernels."""
