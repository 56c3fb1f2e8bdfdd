"""Products of NumPy arrays: `python examples/library.py`. With CuPy arrays the same calls run on the GPU."""

import numpy as np
import tilewright


def main() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((60, 48), np.float32), rng.random((48, 72), np.float32)

    # One call: the kernel is looked up and compiled at the first product of a shape, and kept.
    c = tilewright.matmul(a, b)
    print("largest difference from NumPy:", abs(c - a @ b).max())

    # Transposed views, parts of larger arrays and padded rows are used where they lie.
    board = np.zeros((100, 100), np.float32)
    tilewright.matmul(b.T, a.T, out=board[10:82, 20:80], alpha=2.0)
    print("the same, transposed, twice, in a larger array:", np.allclose(board[10:82, 20:80], 2 * c.T))

    # A kernel of its own: says where its config comes from, and can be called again and again.
    kernel = tilewright.load("60x72x48", dtype="float")
    print(f"config {kernel.config}, {kernel.origin}, on {kernel.device.name}")
    kernel(a, b, out=c, alpha=1.0, beta=1.0)  # c = a @ b + c
    print("added to what was there:", np.allclose(c, 2 * (a @ b)))


if __name__ == "__main__":
    main()
