"""Products from operands to a launch: kernels, arguments, matmul and load."""
