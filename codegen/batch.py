"""Batches: products of one shape in one launch, and the distances between their matrices."""

import enum
import math
import struct
from dataclasses import dataclass

from .problem import Problem

BATCH_BYTES = 128
"""Bytes of the argument `Batch` of a batched kernel."""
_POINTERS = 7
"""Pointers among a batched kernel's arguments for which `Batch` has steps."""


class Batching(enum.StrEnum):
    """The batches that a kernel's text serves."""

    NONE = ""
    """One product, which needs no argument `Batch`."""
    STEPS = "steps"
    """Matrices at regular distances."""
    POINTERS = "pointers"
    """Matrices at regular distances, or at the addresses in arrays."""
    RAGGED_M = "ragged_m"
    """Groups of the rows of A and C, which follow each other, and matrices of B at regular distances."""
    RAGGED_K = "ragged_k"
    """Groups along the k of A and B, which follow each other, and matrices of C at regular distances."""

    @classmethod
    def of(cls, problem: Problem) -> "Batching":
        """The batches that the library's kernel for a problem serves."""
        if problem.ragged:
            return cls(f"ragged_{problem.ragged}")
        return cls.STEPS if problem.batch > 1 else cls.NONE


Steps = tuple[int, int]
"""Elements from a product's matrix to the next one's along the outer and along the inner dimension of a batch."""
NO_STEPS: Steps = (0, 0)
"""The steps of a matrix that all products share."""


@dataclass(frozen=True, slots=True)
class Strides:
    """The distances between the matrices of a batch."""

    inner: int
    """Products along the inner dimension."""
    a: Steps
    b: Steps
    c: Steps

    @classmethod
    def dense(cls, problem: Problem) -> "Strides":
        """The distances between matrices that follow each other without gaps."""
        sizes = math.prod(problem.stored_a), math.prod(problem.stored_b), problem.m * problem.n
        stacked = {"": "abc", "m": "b", "k": "c"}[problem.ragged]  # in the other operands groups follow each other
        steps = (size * (name in stacked) for name, size in zip("abc", sizes))
        return cls(problem.batch, *((problem.batch * step, step) for step in steps))

    @property
    def steps(self) -> tuple[Steps, Steps, Steps]:
        """The steps of A, B and C."""
        return self.a, self.b, self.c

    def is_dense(self, problem: Problem) -> bool:
        """Whether the matrices of each operand follow each other without gaps."""
        dense = Strides.dense(problem)
        return self.inner == dense.inner and [at for _, at in self.steps] == [at for _, at in dense.steps]

    def following(self, size: int) -> Steps:
        """The steps of a buffer that holds `size` elements for each product, one product after the other."""
        return self.inner * size, size

    def argument(self, batch: int, *steps: Steps) -> bytes:
        """The argument `Batch` of a kernel for `batch` products. `steps` belong to the kernel's pointers, in the order
        of its arguments and in elements of each pointer's type."""
        rest = [NO_STEPS] * (_POINTERS - len(steps))
        outer, inner = zip(*steps, *rest)
        return struct.pack(f"=II{2 * _POINTERS}q", batch, self.inner, *outer, *inner).ljust(BATCH_BYTES, b"\0")
