"""Verification and timing of kernels."""
