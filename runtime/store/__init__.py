"""Records of tuned kernels and where they are kept."""
