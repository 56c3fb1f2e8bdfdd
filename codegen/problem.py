"""What is asked: a matrix product and its element type."""

import enum
import operator
import re
from dataclasses import dataclass, replace

from .errors import ArgumentTypeError, ShapeError, check

INT_MAX = 2**31 - 1
NORMWISE_ROUNDINGS = 256
"""Units of roundoff that `normwise` allows at least, however short k is: docs/accuracy.md has the sum."""
_SHAPE = re.compile(r"(\d{1,10})(?:x(\d{1,10})x(\d{1,10}))?")


class DType(enum.Enum):
    """Element type of A, B and C. The value is the name in C."""

    FLOAT = "float"
    DOUBLE = "double"

    @property
    def size_bytes(self) -> int:
        """Bytes of one element."""
        return 4 if self is DType.FLOAT else 8

    @property
    def code(self) -> str:
        """Short form used in kernel names: f32 or f64."""
        return "f32" if self is DType.FLOAT else "f64"

    @property
    def numpy_name(self) -> str:
        """Name of the NumPy dtype: float32 or float64."""
        return "float32" if self is DType.FLOAT else "float64"

    @property
    def unit_roundoff(self) -> float:
        """u, half the distance between 1 and the next number: 2^-24 or 2^-53."""
        return 2.0**-24 if self is DType.FLOAT else 2.0**-53

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number of the type."""
        return 2.0**-149 if self is DType.FLOAT else 5e-324

    @classmethod
    def parse(cls, name: object) -> "DType":
        """The dtype called `name`: float, float32, f32, double, float64 or f64, a DType, or the type of that name of
        NumPy, CuPy or torch.

        Raises ArgumentTypeError (a TypeError) for anything else, Python's own `float` among it, which is a double.
        """
        if isinstance(name, cls):
            return name
        # np.float32 has a __name__; NumPy's dtypes tell byte order in their text, torch's begin with their library.
        text = name.__name__ if isinstance(name, type) and name is not float else str(name).removeprefix("torch.")
        for dtype in cls:
            if text in (dtype.value, dtype.code, dtype.numpy_name):
                return dtype
        raise ArgumentTypeError(f"dtype must be float or double, got {name!r}")


class Grade(enum.StrEnum):
    """How accurate a product has to be, the finest first: docs/accuracy.md has the bounds."""

    IEEE = "ieee"
    """Every product and every sum is rounded as the type says."""
    ELEMENTWISE = "elementwise"
    """The bound of `ieee`, element by element, whatever the arithmetic."""
    NORMWISE = "normwise"
    """A bound on each element by the norms of its row of A and its column of B."""

    def keeps(self, asked: "Grade") -> bool:
        """Whether what is this accurate is accurate enough for who asks for `asked`."""
        return _GRADES.index(self) <= _GRADES.index(asked)

    @classmethod
    def parse(cls, name: object) -> "Grade":
        """The grade called `name`, or the Grade itself. Raises ArgumentTypeError (a TypeError)."""
        for grade in cls:
            if isinstance(name, str) and name == grade.value:
                return grade
        raise ArgumentTypeError(f"accuracy must be {', '.join(cls)}, got {name!r}")


_GRADES = tuple(Grade)


@dataclass(frozen=True, slots=True)
class Problem:
    """C = alpha * op(A) * op(B) + beta * C, all row-major.

    op(A) is m x k and op(B) is k x n; A is stored k x m if `trans_a`, B n x k if `trans_b`.
    Raises ArgumentTypeError (a TypeError) if a dimension is not an integer, ShapeError (a ValueError) if it is
    negative or above 2^31 - 1, ConfigError (a ValueError) for a double that need not be `ieee`.
    """

    m: int
    """Rows of C."""
    n: int
    """Columns of C."""
    k: int
    """Inner dimension."""
    dtype: DType = DType.FLOAT
    """Element type of A, B and C."""
    trans_a: bool = False
    """op(A) is the transpose of A as stored."""
    trans_b: bool = False
    """op(B) is the transpose of B as stored."""
    accuracy: Grade = Grade.IEEE
    """How accurate C has to be."""

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            value = getattr(self, name)
            try:
                index = None if isinstance(value, bool) else operator.index(value)
            except TypeError:  # an array of several, or of floats, has an __index__ too
                index = None
            if index is None:
                raise ArgumentTypeError(f"{name} must be an integer, got {value!r}")
            object.__setattr__(self, name, index)
            check(0 <= getattr(self, name) <= INT_MAX, f"{name} must be in 0..2^31-1, got {value}", ShapeError)
        object.__setattr__(self, "dtype", DType.parse(self.dtype))
        for name in ("trans_a", "trans_b"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentTypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        object.__setattr__(self, "accuracy", Grade.parse(self.accuracy))
        known = self.accuracy is Grade.IEEE or self.dtype is DType.FLOAT
        check(known, f"accuracy {self.accuracy} is for float; {self.dtype.value} is always {Grade.IEEE}")

    @classmethod
    def parse(
        cls, shape: str, dtype: object = DType.FLOAT, trans: str = "nn", accuracy: object = Grade.IEEE
    ) -> "Problem":
        """The problem a user writes as `1024x768x512` (M x N x K) or `1000` (a cube).

        trans is `nn`, `nt`, `tn` or `tt`: A first, then B. Raises ShapeError, ArgumentTypeError or ConfigError.
        """
        match = _SHAPE.fullmatch(shape.strip().lower()) if isinstance(shape, str) else None
        if match is None:
            raise ShapeError(f"shape must be MxNxK or one number, got {shape!r}")
        m, n, k = (int(group or match[1]) for group in match.groups())
        check(trans in ("nn", "nt", "tn", "tt"), f"trans must be nn, nt, tn or tt, got {trans!r}", ShapeError)
        return cls(m, n, k, DType.parse(dtype), trans[0] == "t", trans[1] == "t", Grade.parse(accuracy))

    @property
    def trans(self) -> str:
        """nn, nt, tn or tt."""
        return ("t" if self.trans_a else "n") + ("t" if self.trans_b else "n")

    @property
    def kind(self) -> str:
        """All but the sizes, in words: `float nn`, and the accuracy where it is not `ieee`."""
        more = "" if self.accuracy is Grade.IEEE else f" {self.accuracy}"
        return f"{self.dtype.value} {self.trans}{more}"

    @property
    def shape(self) -> str:
        """`MxNxK`."""
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def transposed(self) -> "Problem":
        """The problem of C^T = op(B)^T op(A)^T: its A is stored as B is here, its B as A."""
        return replace(self, m=self.n, n=self.m, trans_a=not self.trans_b, trans_b=not self.trans_a)

    @property
    def flops(self) -> int:
        """Floating-point operations of the product: 2 m n k."""
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Least bytes of device memory moved: A and B read once, C written once."""
        return (self.m * self.k + self.k * self.n + self.m * self.n) * self.dtype.size_bytes

    @property
    def stored_a(self) -> tuple[int, int]:
        """Rows and columns of A as stored."""
        return (self.k, self.m) if self.trans_a else (self.m, self.k)

    @property
    def stored_b(self) -> tuple[int, int]:
        """Rows and columns of B as stored."""
        return (self.n, self.k) if self.trans_b else (self.k, self.n)

    def __str__(self) -> str:
        return f"{self.shape} {self.kind}"
