"""A rival of kernels of split terms: the vendor's library computes a float product as one longer product of halves or
bfloat16s. Anyone can build it in an afternoon."""

from dataclasses import dataclass
from pathlib import Path

from ...codegen.problem import Grade, Problem
from ...codegen.source import KernelSource, LaunchConfig
from ...runtime.device.cache import compile_cached
from ...runtime.device.protocol import Device, Elements, Launcher, Operand

_TEXT = Path(__file__).with_name("concatenated.cu")
_TILE, _THREADS = (64, 128), 256
"""Tile and threads of a CTA, as in concatenated.cu."""
_ALIGNED = 8
"""Number of elements, 16 bytes, to which copies of terms are aligned: with less alignment cuBLAS is slower."""


@dataclass(frozen=True, slots=True)
class _Scheme:
    """Pairs of split terms that are multiplied."""

    multiplied: Elements
    terms: int
    """Number of terms of an element."""
    of_a: tuple[int, ...]
    """The term of A in each product, the smallest products first, so that sums round less."""
    of_b: tuple[int, ...]
    """The term of B in each product."""


SCHEMES = {
    Grade.NORMWISE: _Scheme(Elements.HALF, 2, (1, 0, 0), (0, 1, 0)),
    Grade.ELEMENTWISE: _Scheme(Elements.BFLOAT16, 3, (2, 1, 0, 1, 0, 0), (0, 1, 2, 0, 1, 0)),
}
"""Schemes by grade of accuracy: three products of two halves, and six products of three bfloat16s."""


class Concatenated:
    """C = alpha op(A) op(B) + beta C for finite float operands by one product that is `products` times as long along k.

    For halves, each row of op(A) and column of op(B) is scaled by a power of two: a kernel before the product finds the
    largest magnitudes, and one after it takes the scales off C. bfloat16s have the range of floats and need neither.
    All memory is allocated here, except for a beta other than 0. Sums stay within the tensor cores, so that errors grow
    with k. Raises the errors of compiling, loading and allocating, and DeviceError where the library is missing.
    """

    def __init__(self, device: Device, problem: Problem, grade: Grade) -> None:
        scheme = SCHEMES[grade]
        self.products = len(scheme.of_a)
        """Number of products of terms, and of copies of each operand."""
        self._device, self._problem = device, problem
        self._scaled = scheme.multiplied is Elements.HALF
        depth = -(-problem.k // _ALIGNED) * _ALIGNED
        self._operands, self._strides = list[Operand](), list[int]()
        for stored, trans, along_k in (
            (problem.stored_a, problem.trans_a, not problem.trans_a),
            (problem.stored_b, problem.trans_b, problem.trans_b),
        ):
            # The copies lie side by side where k runs along stored rows, else one below the other.
            rows, cols = (stored[0], self.products * depth) if along_k else (self.products * depth, stored[1])
            ld = -(-cols // _ALIGNED) * _ALIGNED
            memory = device.allocate(2 * rows * ld)
            device.zero(memory, 2 * rows * ld, device.stream())  # the padding of k stays 0
            self._operands.append(Operand(memory.pointer, rows, cols, ld, trans, memory))
            self._strides.append(depth if along_k else depth * ld)
        longer = Problem(problem.m, problem.n, self.products * depth, problem.dtype, problem.trans_a, problem.trans_b)
        self._product = device.vendor(longer, scheme.multiplied)
        self._most_bytes = 4 * (problem.m + problem.n)
        self._most = device.allocate(self._most_bytes)
        self._apart: Operand | None = None
        self._largest, self._split, self._finish = self._kernels(scheme)

    def _kernels(self, scheme: _Scheme) -> list[Launcher]:
        problem, device = self._problem, self._device
        names = "concatenated_largest", "concatenated_split", "concatenated_finish"
        defined = {
            "TERMS": scheme.terms,
            "PRODUCTS": self.products,
            "TERMS_OF_A": ", ".join(map(str, scheme.of_a)),
            "TERMS_OF_B": ", ".join(map(str, scheme.of_b)),
            "HALF": int(self._scaled),
            "A_BY_ROW": str(not problem.trans_a).lower(),
            "B_BY_ROW": str(problem.trans_b).lower(),
        }
        text = "".join(f"#define {name} {value}\n" for name, value in defined.items()) + _TEXT.read_text()
        binary = compile_cached(device.compiler, KernelSource(names[1], text))
        both = _tiles(*problem.stored_a) + _tiles(*problem.stored_b)
        grids = both, both, _tiles(problem.m, problem.n)
        codes = "QiiiQ" * 2, "QiiiQQiQ" * 2, "QiQiiiQQff"
        return [
            device.load(binary, name).bound(LaunchConfig((grid, 1, 1), (_THREADS, 1, 1)), code)
            for name, grid, code in zip(names, grids, codes)
        ]

    @property
    def _most_at(self) -> tuple[int, int]:
        """Addresses of the largest magnitudes of the rows of op(A) and of the columns of op(B)."""
        return self._most.pointer, self._most.pointer + 4 * self._problem.m

    def split(self, a: Operand, b: Operand) -> None:
        """Launch the kernels that come before the product on the current stream, for largest magnitudes and for terms.
        Raises LaunchError."""
        stream = self._device.stream()
        floats = [(each.pointer, each.ld, each.rows, each.cols, at) for each, at in zip((a, b), self._most_at)]
        if self._scaled:
            self._device.zero(self._most, self._most_bytes, stream)
            self._largest(stream, *floats[0], *floats[1])
        copies = [(each.pointer, each.ld, stride) for each, stride in zip(self._operands, self._strides)]
        self._split(stream, *floats[0], *copies[0], *floats[1], *copies[1])

    def multiply(self, c: Operand, alpha: float = 1.0, beta: float = 0.0) -> None:
        """Launch the long product alone on the current stream. Raises LaunchError."""
        a, b = self._operands
        self._product(a, b, c, alpha, beta)

    def launch(self, a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
        """Launch one product on the current stream, with all kernels before and after. Raises LaunchError."""
        self.split(a, b)
        if not self._scaled:
            self.multiply(c, alpha, beta)
            return
        target = c if beta == 0 else self._memory_apart(c)
        self.multiply(target)
        m, n = self._problem.m, self._problem.n
        self._finish(
            self._device.stream(), target.pointer, target.ld, c.pointer, c.ld, m, n, *self._most_at, alpha, beta
        )

    def _memory_apart(self, c: Operand) -> Operand:
        """Memory for the product apart from C, which beta still needs."""
        if self._apart is None:
            memory = self._device.allocate(4 * c.rows * c.cols)
            self._apart = Operand(memory.pointer, c.rows, c.cols, c.cols, False, memory)
        return self._apart


def _tiles(rows: int, cols: int) -> int:
    """Number of CTAs for a matrix."""
    return -(-rows // _TILE[0]) * -(-cols // _TILE[1])
