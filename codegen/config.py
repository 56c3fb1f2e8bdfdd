"""A config: one variant of one family, as a frozen dataclass of small groups, and its text form.

`simt:128x256x8,thread=16x8,stream_k=1` names the tile and what differs from the defaults, and parses back.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, Self

from .cost import Cost
from .errors import ConfigError, nearest_of
from .fit import FOLLOWING, Fit, FitRule, fit_of
from .leaf import Edge, EdgePolicy, Leaf, Mode, Value
from .legality import Rule
from .mechanisms.split import Reduce, Split
from .problem import DType, Grade, Problem
from .source import LaunchConfig, TensorBox
from .target import Target
from .text import text_of

MAX_STATIC_SMEM_BYTES = 49152
"""Shared memory that every device lets a kernel declare; a kernel that needs more is given it at launch."""


class Config:
    """The base of the families' configs: names, text, and the facts of a launch.

    A family is a frozen dataclass derived from this one. Its fields are groups (dataclasses of `option`s) and options.
    """

    __slots__ = ()

    family: ClassVar[str]
    """Word that users type."""
    title: ClassVar[str]
    """One line on how it works."""
    template: ClassVar[str]
    """File under templates/."""
    plain: ClassVar[str] = ""
    """File under templates/ with a kernel for a person who reads it, and a program around it; empty where none is."""
    order: ClassVar[int]
    """Place among the families: simple ones come first, and win ties."""
    tensor_cores: ClassVar[bool] = False
    """Whether its multiply-adds run on the tensor cores."""
    batches_alone: ClassVar[bool] = False
    """Whether the family serves batches alone, and no single product."""
    fixed_sizes: ClassVar[bool] = False
    """Whether m, n and k are constants of the kernel's text, which then serves products of that shape alone."""
    fit_rules: ClassVar[tuple[FitRule, ...]] = ()
    """Rules on vectors, which must also divide the rows that they copy or store."""
    joined: ClassVar[tuple[tuple[str, tuple[str, ...]], ...]] = ()
    """Parameters that text writes together: a key (empty for the tile) and names; `thread=16x8`."""
    rules: ClassVar[tuple[Rule[Any], ...]] = ()
    """Rules that a config of the family must keep, beside those that all families share and `fit_rules`."""
    pdl: ClassVar[bool] = False
    """Whether the next kernel on the stream may come up while this one ends (programmatic dependent launch)."""
    substitutes: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """Typed values that replace a config's own, tried in turn, on a device that lacks what the config needs."""

    split: Split = Split()
    edge: EdgePolicy = EdgePolicy.FIT

    # --- names and text

    @classmethod
    @cache
    def leaves(cls) -> tuple[Leaf, ...]:
        """Every parameter, in the order of the fields."""
        leaves = []
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            inner = dataclasses.fields(field.type) if dataclasses.is_dataclass(field.type) else (field,)
            for each in inner:
                group = "" if each is field else field.name
                choices, meaning = each.metadata["choices"], each.metadata["meaning"]
                leaves.append(Leaf(each.name, group, choices, each.default, meaning))
        assert len({leaf.name for leaf in leaves}) == len(leaves), f"{cls.__name__}: a name is used twice"
        return tuple(leaves)

    @classmethod
    def leaf(cls, name: str) -> Leaf:
        """The parameter called `name`. Raises ConfigError listing the known ones."""
        for leaf in cls.leaves():
            if leaf.name == name:
                return leaf
        if name.partition("_")[0] in FOLLOWING:
            reason = "vectors and edges follow from the problem; leave it out"
            raise ConfigError(f"{cls.family} has no parameter {name!r}: {reason}")
        names = [leaf.name for leaf in cls.leaves()]
        raise ConfigError(f"{cls.family} has the parameters {', '.join(names)}, got {name!r}{nearest_of(name, names)}")

    @classmethod
    def of(cls, values: Mapping[str, Value] | Iterable[tuple[str, Value]]) -> Self:
        """The config with these plain values, defaults elsewhere. Raises ConfigError."""
        typed = {name: cls.leaf(name).typed(value) for name, value in dict(values).items()}
        return cls.build(typed)

    @classmethod
    def build(cls, typed: Mapping[str, Any]) -> Self:
        """The config with these typed values, which are not checked, and defaults elsewhere."""
        groups = {}
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            if dataclasses.is_dataclass(field.type):
                kind: Any = field.type
                groups[field.name] = _group(kind, tuple(map(typed.get, *_options(kind))))
            elif field.name in typed:
                groups[field.name] = typed[field.name]
        return cls(**groups)

    def get(self, name: str) -> Any:
        """The typed value of a parameter, for text, JSON and search spaces; code reads fields."""
        return self._typed(self.leaf(name))

    @property
    def typed(self) -> dict[str, Any]:
        """The typed values of all parameters by name."""
        values: dict[str, Any] = {}
        kind: Any = type(self)
        for name, names, values_of in _fields(kind):
            group = getattr(self, name)
            values.update([(name, group)] if names is None else zip(names, values_of(group)))
        return values

    def _typed(self, leaf: Leaf) -> Any:
        return getattr(getattr(self, leaf.group) if leaf.group else self, leaf.name)

    @property
    def values(self) -> tuple[tuple[str, Value], ...]:
        """Names and plain values of all parameters."""
        return tuple([(leaf.name, leaf.plain(self._typed(leaf))) for leaf in self.leaves()])

    @property
    def changes(self) -> tuple[tuple[str, Value], ...]:
        """Names and plain values of the parameters that are not at their defaults; texts and files have only these."""
        typed = ((leaf, self._typed(leaf)) for leaf in self.leaves())
        return tuple([(leaf.name, leaf.plain(value)) for leaf, value in typed if value != leaf.default])

    def changed(self, **values: Any) -> Self:
        """The config with other typed values of some parameters."""
        kind: Any = type(self)
        fields = []
        for name, names, values_of in _fields(kind):
            group: Any = getattr(self, name)
            if names is None:
                group = values.get(name, group)
            elif not values.keys().isdisjoint(names):
                group_kind: Any = type(group)
                group = _group(group_kind, tuple(map(values.get, names, values_of(group))))
            fields.append(group)
        changed: Self = kind(*fields)
        return changed

    @property
    def canonical(self) -> tuple[Any, ...]:
        """Sort key: families in their order, then each parameter's place among its choices, the default first."""
        typed = ((leaf, self._typed(leaf)) for leaf in self.leaves())
        places = (0 if value == leaf.default else 1 + leaf.choices.index(value) for leaf, value in typed)
        return (self.order, self.family, *places)

    @property
    def digest(self) -> str:
        """8 hexadecimal digits of the SHA-256 of the values that are not at their defaults: names kernels."""
        text = f"{self.family}:" + ",".join(f"{name}={value}" for name, value in self.changes)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def __str__(self) -> str:
        return text_of(self)

    # --- facts of a launch; a family overrides those that differ

    @property
    def block(self) -> tuple[int, int, int]:
        """Threads of a CTA as (x, y, z)."""
        raise NotImplementedError

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        x, y, z = self.block
        return x * y * z

    @property
    def min_ctas(self) -> int:
        """CTAs that the registers must allow on an SM."""
        return 1

    @property
    def cta_tile(self) -> tuple[int, int, int]:
        """Rows and columns of C that a CTA computes, and the steps of k that one of its tiles of A and B covers."""
        raise NotImplementedError

    @property
    def accuracy(self) -> Grade:
        """The finest grade of accuracy that the kernel keeps."""
        return Grade.IEEE

    @property
    def multiples(self) -> tuple[int, int, int]:
        """Numbers that divide m, n and k where tiles divide the problem; padding rounds up to multiples of them."""
        return self.cta_tile

    # --- fit

    def fit(self, problem: Problem, aligned: bool = True) -> Fit | None:
        """The instance of the kernel for a problem, with vectors as wide as its rows allow. Operands that are not
        `aligned` get vectors of one element. None where the config cannot serve such operands."""
        return fit_of(problem, self if aligned else self.unaligned, aligned)

    @property
    def unaligned(self) -> Self:
        """The config for operands that are not aligned, of any shape: this one, or one without the parts that need
        aligned rows."""
        return self

    def suited(self, problem: Problem) -> Self:
        """The config as it suits a problem for which it was not chosen: without steps that pay only for other sizes or
        alignments and were measured to cost time for this one."""
        return self

    def varied(self, fit: Fit, problem: Problem) -> dict[str, int]:
        """Values, by name, of the text's constants or template parameters that differ between fits of a config."""
        return {"kGuarded": fit.guarded}

    def edge_of(self, problem: Problem) -> Edge:
        """Edge of the kernel for a problem's matrices."""
        if self.edge is EdgePolicy.PAD:
            return Edge.PAD
        sizes = zip((problem.m, problem.n, problem.k), self.multiples)
        fits = self.edge is EdgePolicy.FIT and all(size % multiple == 0 for size, multiple in sizes)
        fits = fits and not problem.ragged  # a group may have any length
        return Edge.EXACT if fits else Edge.BOUNDS

    def widest_vectors(self, problem: Problem, aligned: bool) -> tuple[int, int, int]:
        """Elements of the widest vectors of A, B and C that stored rows allow, 1 where operands are not `aligned`."""
        return 1, 1, 1

    @property
    def reuse(self) -> tuple[int, int]:
        """Number of times that a CTA uses an element of A, and of B, that it loads from global memory."""
        return self.cta_tile[1], self.cta_tile[0]

    def loaded_elements(self, problem: Problem) -> float:
        """Elements of A and B that the CTAs load from global memory for all products of a problem."""
        reuse_a, reuse_b = self.reuse
        return problem.flops / 2 * (1 / reuse_a + 1 / reuse_b)

    def for_target(self, target: Target) -> Self:
        """The config without the features that help only on other devices."""
        return self

    def smem_bytes(self, dtype: DType) -> int:
        """Shared memory of a CTA in bytes."""
        return 0

    def registers(self, fit: Fit, dtype: DType) -> int:
        """Registers of a thread, estimated from above: at most 255, and for all of a CTA at most those of an SM."""
        raise NotImplementedError

    def cost(self, dtype: DType, fit: Fit) -> Cost:
        """Figures of an instance's inner loop, for a model of the device."""
        return Cost()

    @property
    def k_innermost(self) -> tuple[int, int]:
        """Place of k in shared memory, for A and for B if its stored rows run along k: 1 where k is innermost, 0 where
        cp.async has to transpose, -1 where the order makes no difference."""
        return -1, -1

    @property
    def streamed(self) -> tuple[int, int, int]:
        """Three numbers for an operand that threads read straight from memory: the lanes of a warp that share its k,
        first for A and then for B, else 0; and the steps of k of the other operand that a CTA holds at a time."""
        return 0, 0, 0

    @property
    def sides(self) -> tuple[Self, ...]:
        """The config for each choice of C's short side; the config alone in a family without a short side."""
        return (self,)

    @property
    def packs(self) -> tuple[bool, bool]:
        """Whether A, and whether B, is first copied to aligned rows of k."""
        return (False, False)

    @property
    def terms(self) -> int:
        """Terms of half the bits into which each element of A and B is first split; 0 where no element is split."""
        return 0

    @property
    def term_format(self) -> str:
        """Name of the terms' type and number of products; empty where no element is split."""
        return ""

    @property
    def term_k(self) -> int:
        """Number to whose multiples k is rounded up where elements are split."""
        return self.cta_tile[2]

    @property
    def term_blocked(self) -> int:
        """Steps of k in a block of terms, which holds all rows of an operand; 0 where terms lie row by row."""
        return 0

    @property
    def term_ctas(self) -> int:
        """CTAs of a cluster that share the k of the rows that it splits; 1 without clusters."""
        return 1

    @property
    def products(self) -> int:
        """Products that the kernel's instructions compute for one product of elements."""
        return 1

    def boxes(self, problem: Problem) -> tuple[TensorBox, ...]:
        """Boxes of A and of B that a TMA copy brings; none for a kernel without TMA."""
        return ()

    @property
    def producer_threads(self) -> int:
        """Threads at the end of a CTA that copy and do not multiply."""
        return 0

    @property
    def split_ctas(self) -> int:
        """CTAs that share the k of a tile of C."""
        return self.split.parts if self.split.mode is Mode.SPLIT_K else 1

    @property
    def cooperative_ctas(self) -> int:
        """CTAs that share a tile of C and add up a part of it each; 1 where the last CTA to arrive adds up all."""
        return 1

    @property
    def clustered(self) -> bool:
        """Whether CTAs that share a tile of C form a cluster and add up in each other's shared memory."""
        return self.split.reduce is Reduce.CLUSTER

    @property
    def stream_ctas_per_sm(self) -> int:
        """CTAs of each SM that share the remainder of the last wave (stream-K); 0 where none do."""
        return self.split.parts if self.split.mode is Mode.STREAM_K else 0

    @property
    def persistent_tiles(self) -> int:
        """Tiles of C that a CTA computes one after the other."""
        return self.split.parts if self.split.mode is Mode.PERSISTENT else 1

    @property
    def has_workspace(self) -> bool:
        """Whether CTAs add up in a workspace."""
        return self.stream_ctas_per_sm > 0 or (self.split_ctas > 1 and not self.clustered)

    @property
    def serves_groups(self) -> bool:
        """Whether there is a kernel of the config for ragged batches."""
        return False

    def tiles(self, problem: Problem) -> int:
        """Tiles of C. For a batch that is ragged along m they are the most that its groups of rows can have."""
        tile_m, tile_n, _ = self.cta_tile
        rows = problem.m + tile_m - 1
        if problem.ragged == "m":  # each group, and the rows behind the last one, may end within a tile
            rows = problem.m + min(problem.m, problem.batch + 1) * (tile_m - 1)
        return rows // tile_m * -(-problem.n // tile_n)

    def expected_row_tiles(self, problem: Problem) -> int:
        """Row tiles that a batch of groups of rows is expected to need. The last tile of a group is half empty on
        average, and a group with rows has at least one tile."""
        tile_m, groups = self.cta_tile[0], min(problem.batch, problem.m)
        return max(1, groups, round((problem.m + groups * (tile_m - 1) / 2) / tile_m))

    def working_ctas(self, problem: Problem, sm_count: int) -> int:
        """CTAs that are expected to have work at a time in a batch of groups of rows, whose grid has as many CTAs as
        the groups can need at most. 0 for any other problem, as every CTA of its grid has work."""
        if problem.ragged != "m":
            return 0
        tiles = self.expected_row_tiles(problem) * -(-problem.n // self.cta_tile[1])
        return self.stream_ctas_per_sm * sm_count or tiles * self.split_ctas

    def ctas_along_x(self, problem: Problem, sm_count: int) -> int:
        """CTAs along x of the grid on a device of `sm_count` SMs: those of one product, or of all groups of rows."""
        tiles, stream = self.tiles(problem), self.stream_ctas_per_sm * sm_count
        if stream:
            return stream + tiles - (tiles if tiles < stream else tiles % stream)
        return -(-tiles // self.persistent_tiles) * self.split_ctas

    def counters(self, problem: Problem, sm_count: int) -> int:
        """Counters at which CTAs that share tiles of C meet, on a device of `sm_count` SMs."""
        if not self.has_workspace:
            return 0
        return self.stream_ctas_per_sm * sm_count or self.tiles(problem)

    def workspace_bytes(self, problem: Problem, sm_count: int) -> int:
        """Bytes of the workspace on a device of `sm_count` SMs: partial tiles, then counters of 4 bytes, which are zero
        before the first launch. 0 without a workspace."""
        tile_m, tile_n, _ = self.cta_tile
        tiles = 2 if self.stream_ctas_per_sm else self.split_ctas
        return self.counters(problem, sm_count) * (tiles * tile_m * tile_n * problem.dtype.size_bytes + 4)

    @property
    def cta_products(self) -> int:
        """Products of a batch that a CTA computes; 0 where each product has CTAs of its own."""
        return 0

    def launch_config(self, problem: Problem, sm_count: int) -> LaunchConfig:
        """Grid and block. The CTAs of a product lie along x, where no dimension of C meets a limit, and the products of
        a batch along y and z."""
        smem = self.smem_bytes(problem.dtype)
        static = smem if smem <= MAX_STATIC_SMEM_BYTES else 0
        launch = LaunchConfig((self.ctas_along_x(problem, sm_count), 1, 1), self.block, smem - static, static)
        return launch.batched(problem.planes)


@cache
def _options(group: Any) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Names and defaults of a group's parameters."""
    fields = dataclasses.fields(group)
    return tuple(field.name for field in fields), tuple(field.default for field in fields)


@cache
def _fields(config: Any) -> tuple[tuple[str, tuple[str, ...] | None, Callable[[Any], tuple[Any, ...]]], ...]:
    """Each field of a family, with its parameters if it is a group, else None, and a function that reads them."""
    kinds: list[tuple[str, Any]] = [(each.name, each.type) for each in dataclasses.fields(config)]
    grouped = {name for name, kind in kinds if dataclasses.is_dataclass(kind)}
    groups = {name: _options(kind)[0] for name, kind in kinds if name in grouped}
    return tuple((name, groups.get(name), _reader(groups.get(name, ()))) for name, _ in kinds)


def _reader(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    read: Any = attrgetter(*names) if names else lambda group: ()
    return read if len(names) != 1 else lambda group: (read(group),)


@cache
def _group(group: Any, values: tuple[Any, ...]) -> Any:
    """The group with these values. Equal groups are one object, as lists of configs are long."""
    return group(*values)
