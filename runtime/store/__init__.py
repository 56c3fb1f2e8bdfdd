"""Records of tuned kernels and their store."""
