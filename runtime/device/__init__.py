"""Devices: the protocol, NVIDIA GPUs, the processor, compilers and their cache."""
