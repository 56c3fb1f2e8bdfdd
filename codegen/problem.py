"""The problem: a matrix product and its element type."""

import enum
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol, SupportsIndex, Union

from .errors import ArgumentTypeError, ShapeError, check, nearest_of

INT_MAX = 2**31 - 1
NORMWISE_ROUNDINGS = 256
"""Least number of unit roundoffs that `normwise` allows, however short k is: docs/experiments/errors.md derives it."""
_SHAPE = re.compile(r"(\d{1,10})(?:x(\d{1,10})x(\d{1,10}))?")

Trans = Literal["nn", "nt", "tn", "tt"]
"""Transposes of A and B as stored, A first."""
TRANS: tuple[Trans, ...] = ("nn", "nt", "tn", "tt")
Ragged = Literal["", "m", "k"]
"""The dimension in which the products of a batch differ; empty where all have one shape."""


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
        shown = repr(name) if isinstance(name, str) or name is float else text
        remedy = ": Python's float has 64 bits, which is 'double' here" if name is float else ""
        raise ArgumentTypeError(f"dtype must be float or double, got {shown}{remedy}")


class SizedElement(Protocol):
    """A dtype or an element type of NumPy, CuPy or torch, as type checkers see it."""

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""


DTypeName = Literal["float", "double", "float32", "float64", "f32", "f64"]
DTypeLike = DType | DTypeName | SizedElement | type[SizedElement]
"""Everything that names an element type: a word, a DType, or a type or dtype object of NumPy, CuPy or torch."""


class Grade(enum.StrEnum):
    """The accuracy of a product, the finest first: docs/accuracy.md has the bounds."""

    IEEE = "ieee"
    """Every product and every sum is rounded as the type says."""
    ELEMENTWISE = "elementwise"
    """The bound of `ieee`, element by element, whatever the arithmetic."""
    NORMWISE = "normwise"
    """A bound on each element by the norms of its row of A and its column of B."""

    def keeps(self, required: "Grade") -> bool:
        """Whether a result of this grade is accurate enough where `required` is asked for."""
        return _GRADES.index(self) <= _GRADES.index(required)

    @classmethod
    def parse(cls, name: object) -> "Grade":
        """The grade called `name`, or the Grade itself. Raises ArgumentTypeError (a TypeError)."""
        for grade in cls:
            if isinstance(name, str) and name == grade.value:
                return grade
        what = "accuracy must be ieee (the default), elementwise, or normwise (the fastest)"
        raise ArgumentTypeError(f"{what}, got {name!r}{nearest_of(name, [grade.value for grade in cls])}")


_GRADES = tuple(Grade)
GradeLike = Grade | Literal["ieee", "elementwise", "normwise"]
"""Everything that names a grade of accuracy."""
Sizes = tuple[SupportsIndex, SupportsIndex, SupportsIndex]
"""(m, n, k)."""
Shape = Union[str, Sizes, Sequence[SupportsIndex], "Problem"]
"""Everything that names a shape: "1024x768x512" (M x N x K), "1024" for a cube, three whole numbers, or a Problem."""


@dataclass(frozen=True, slots=True)
class Problem:
    """C = alpha * op(A) * op(B) + beta * C, all row-major, or a batch of such products of one shape.

    op(A) is m x k and op(B) is k x n; A is stored k x m if `trans_a`, B n x k if `trans_b`. `trans`, such as "nt", says
    both at once. In a `ragged` batch m or k is the sum over all products, whose groups follow each other. Groups along
    m are rows of op(A) and C, each with a matrix B of its own. Groups along k are columns of op(A) and rows of op(B),
    each with a C of its own.
    Raises ArgumentTypeError (a TypeError) if a dimension is not an integer, and ShapeError (a ValueError) if it is
    negative or above 2^31 - 1, or if the batch is 0. Raises ConfigError (a ValueError) for a double with another
    accuracy than `ieee` and for a `trans` that contradicts `trans_a` or `trans_b`.
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
    """Accuracy that C must have."""
    batch: int = 1
    """Products of this shape that one launch computes, each with matrices of its own."""
    ragged: str = ""
    """`m` or `k` where the products are groups along that dimension; each call passes their lengths."""

    def __init__(
        self, m: SupportsIndex, n: SupportsIndex, k: SupportsIndex, dtype: DTypeLike = DType.FLOAT,
        trans_a: bool | None = None, trans_b: bool | None = None, accuracy: GradeLike = Grade.IEEE, *,
        trans: Trans | None = None, batch: SupportsIndex = 1, ragged: Ragged = "",
    ) -> None:  # fmt: skip
        for name, value in (("m", m), ("n", n), ("k", k)):
            object.__setattr__(self, name, _size(name, value))
        object.__setattr__(self, "dtype", DType.parse(dtype))
        flags = _flags(trans, trans_a, trans_b)
        object.__setattr__(self, "trans_a", flags[0])
        object.__setattr__(self, "trans_b", flags[1])
        object.__setattr__(self, "accuracy", Grade.parse(accuracy))
        graded = self.accuracy is Grade.IEEE or self.dtype is DType.FLOAT
        text = f"accuracy {self.accuracy} is for float; {self.dtype.value} is always {Grade.IEEE}"
        check(graded, f"{text}: leave accuracy out, or multiply floats")
        object.__setattr__(self, "batch", _size("batch", batch, 1))
        check(ragged in ("", "m", "k"), f"ragged must be 'm', 'k' or empty, got {ragged!r}", ArgumentTypeError)
        object.__setattr__(self, "ragged", ragged)

    @classmethod
    def parse(
        cls, shape: Shape, dtype: Any = None, trans: Any = None, accuracy: Any = None, *, trans_a: bool | None = None,
        trans_b: bool | None = None, batch: SupportsIndex | None = None,
    ) -> "Problem":  # fmt: skip
        """The problem that a shape names, in each way that the library and the command line take one.

        Args:
            shape: `1024x768x512` (M x N x K), `1000` (a cube), three whole numbers, or a Problem, which is returned.
            dtype: element type; None for float, or for what the Problem says.
            trans: nn, nt, tn or tt, A first, then B; None for nn, or for what the Problem says.
            accuracy: ieee, elementwise or normwise; None for ieee, or for what the Problem says.
            trans_a: whether A is stored k x m, in place of `trans`.
            trans_b: whether B is stored n x k, in place of `trans`.
            batch: products of the shape; None for one, or for what the Problem says.

        Raises:
            ShapeError: a text that is no shape, or a size that is out of range.
            ArgumentTypeError: anything else that is no shape, no dtype or no accuracy.
            ConfigError: arguments that contradict each other, such as a Problem in float and dtype="double", or a
                ragged Problem, which `tilewright.grouped_matmul` alone serves.
        """
        if isinstance(shape, Problem):
            text = f"{shape} is ragged, and only tilewright.grouped_matmul multiplies groups"
            check(not shape.ragged, f"{text}: pass its sizes and batch, for equal products")
            shape._check_agreement(dtype, trans, accuracy, trans_a, trans_b, batch)
            return shape
        m, n, k = _sizes(shape)
        dtype, batch = DType.FLOAT if dtype is None else dtype, 1 if batch is None else batch
        accuracy = Grade.IEEE if accuracy is None else accuracy
        return cls(m, n, k, dtype, trans_a, trans_b, accuracy, trans=trans, batch=batch)

    @classmethod
    def parse_all(cls, shapes: Sequence[Shape], **words: Any) -> "list[Problem]":
        """The problems that several shapes name, each as `parse` reads it. If only some of the shapes are Problems, the
        words are for the others; if all are, the words must agree with them."""
        for_problems = {} if any(not isinstance(each, Problem) for each in shapes) else words
        return [cls.parse(each, **(for_problems if isinstance(each, Problem) else words)) for each in shapes]

    def _check_agreement(
        self, dtype: object, trans: object, accuracy: object, trans_a: bool | None, trans_b: bool | None, batch: object
    ) -> None:
        """Raise ConfigError for an argument that contradicts this problem; None never does."""
        if trans is not None:
            _flags(trans, trans_a, trans_b)
        arguments: tuple[tuple[str, object, Callable[[Any], object]], ...] = (
            ("dtype", dtype, DType.parse),
            ("accuracy", accuracy, Grade.parse),
            ("trans", trans, str),
            ("trans_a", trans_a, partial(_flag, "trans_a")),
            ("trans_b", trans_b, partial(_flag, "trans_b")),
            ("batch", batch, partial(_size, "batch", least=1)),
        )
        for name, argument, read in arguments:
            own: Any = getattr(self, name)
            value: Any = own if argument is None else read(argument)
            word, own_word = (each.value if isinstance(each, enum.Enum) else each for each in (value, own))
            text = f"{name} is {word!r}, and the Problem {self} beside it has {name} {own_word!r}"
            check(value == own, f"{text}: leave {name} out, or pass the shape as {self.shape!r}")

    @property
    def trans(self) -> str:
        """nn, nt, tn or tt."""
        return ("t" if self.trans_a else "n") + ("t" if self.trans_b else "n")

    @property
    def kind(self) -> str:
        """All but the sizes, in words: `float nn`, the accuracy where it is not `ieee`, and the batch where there is
        one."""
        more = "" if self.accuracy is Grade.IEEE else f" {self.accuracy}"
        batch = "" if self.batch == 1 else f" batch {self.batch}"
        groups = f" of groups along {self.ragged}" if self.ragged else ""
        return f"{self.dtype.value} {self.trans}{more}{batch}{groups}"

    @property
    def shape(self) -> str:
        """`MxNxK`."""
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def title(self) -> str:
        """The sizes for a table: `MxNxK`, and `MxNxK x200` for a batch of 200."""
        return self.shape if self.batch == 1 else f"{self.shape} x{self.batch}"

    @property
    def transposed(self) -> "Problem":
        """The problem of C^T = op(B)^T op(A)^T: its A is stored as B is here, its B as A."""
        return replace(self, m=self.n, n=self.m, trans_a=not self.trans_b, trans_b=not self.trans_a)

    @property
    def even(self) -> "Problem":
        """The problem that stands for a ragged one in predictions. Groups of rows become one product, as the tiles of
        all groups are shared out together; groups along k become a batch of products of the mean k."""
        if not self.ragged:
            return self
        whole = replace(self, ragged="")
        return replace(whole, batch=1) if self.ragged == "m" else replace(whole, k=-(-self.k // self.batch))

    @property
    def planes(self) -> int:
        """Products that lie along y and z of the grid with CTAs of their own: all of a batch, but 1 for groups of rows,
        whose CTAs follow each other along x."""
        return 1 if self.ragged == "m" else self.batch

    @property
    def flops(self) -> int:
        """Floating-point operations of all products: 2 m n k each."""
        return 2 * self.m * self.n * self.k * (1 if self.ragged else self.batch)

    @property
    def bytes(self) -> int:
        """Least bytes of device memory moved: A and B read once, C written once."""
        along = {"": (self.batch, self.batch, self.batch), "m": (1, self.batch, 1), "k": (1, 1, self.batch)}[
            self.ragged
        ]
        sizes = self.m * self.k, self.k * self.n, self.m * self.n
        return sum(count * size for count, size in zip(along, sizes)) * self.dtype.size_bytes

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


def _size(name: str, value: object, least: int = 0) -> int:
    """A dimension, or a number of products, as a number from `least` on. Raises ArgumentTypeError and ShapeError."""
    try:
        index = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:  # an array of several, or of floats, has an __index__ too
        index = None
    if index is None:
        raise ArgumentTypeError(f"{name} must be an integer, got {value!r}")
    check(least <= index <= INT_MAX, f"{name} must be in {least}..2^31-1, got {value}", ShapeError)
    return index


def _sizes(shape: object) -> Sequence[Any]:
    """The three sizes of a shape that is no Problem. Raises ShapeError or ArgumentTypeError."""
    if isinstance(shape, str):
        match = _SHAPE.fullmatch(shape.strip().lower())
        if match is None:
            raise ShapeError(f"shape must be MxNxK or one number, got {shape!r}")
        return [int(group or match[1]) for group in match.groups()]
    if not isinstance(shape, Sequence) or isinstance(shape, bytes):
        raise ArgumentTypeError(f"shape must be 'MxNxK', (m, n, k) or a Problem, got {shape!r}")
    check(len(shape) == 3, f"shape must have three sizes, (m, n, k), got {shape!r}", ShapeError)
    return shape


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{name} must be True or False, got {value!r}")
    return value


def _flags(trans: object, trans_a: object, trans_b: object) -> tuple[bool, bool]:
    """Whether A and B are stored transposed, by `trans` or one by one. Raises ShapeError, ArgumentTypeError and
    ConfigError."""
    check(trans is None or trans in TRANS, f"trans must be nn, nt, tn or tt, got {trans!r}", ShapeError)
    flags = [False, False] if trans is None else [letter == "t" for letter in str(trans)]
    for index, (name, value) in enumerate((("trans_a", trans_a), ("trans_b", trans_b))):
        if value is not None:
            agrees = trans is None or flags[index] == _flag(name, value)
            check(agrees, f"trans is {trans!r} and {name} is {value!r}, which contradict each other: leave {name} out")
            flags[index] = _flag(name, value)
    return flags[0], flags[1]
