"""What a bundle of emitted kernels holds: which shape goes to which kernel, and what its launches need."""

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from .arch import Arch
from .config import Config
from .errors import check, check_comment, check_type
from .families import default_config
from .leaf import Edge
from .legality import serves
from .problem import DType, Problem
from .render import render
from .source import KernelSource, LaunchConfig, TensorBox

_NEEDS = re.compile(r'#if defined\(__CUDA_ARCH__\) && __CUDA_ARCH__ < (\d+)\n#error "[^"\n]*"\n#endif\n')
AS_GIVEN = "as given"
"""The origin of a config that nothing chose."""
_ODD = 1021, 1019, 1013
"""A shape that no tile or vector divides."""


@dataclass(frozen=True, slots=True)
class Served:
    """A shape of a bundle and the kernel that serves it. Raises ArgumentTypeError, and ShapeError for a text that is no
    shape."""

    problem: Problem
    """The shape, its dtype and transposes; "1024x768x512" or three numbers name one in float without transposes."""
    config: Config
    """The kernel's config, such as `load(...).config`."""
    arch: Arch
    """The generation of GPU it is for, such as `load(...).device.arch`."""
    sm_count: int = 132
    """SMs of the device that it is for: so many CTAs, or a multiple, share the k of the last wave with stream-K."""
    origin: str = AS_GIVEN
    """Where the config is from, for a person."""
    recorded_us: float = 0.0
    """Microseconds of one product when it was tuned for just this shape, 0 where it was not."""
    error: float = 0.0
    """The largest error seen then, over its bound."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "problem", Problem.parse(self.problem))
        check_type("config", self.config, Config, "a Config, such as load(...).config")
        check_type("arch", self.arch, Arch, "an Arch, such as load(...).device.arch")
        check_type("origin", self.origin, str, "text")
        check_comment("origin", self.origin)

    @property
    def logs(self) -> str:
        """Logarithms of m, n and k to base 2 as C has them, -1 for 0."""
        sizes = self.problem.m, self.problem.n, self.problem.k
        return "".join(f"{math.log2(size) if size else -1:.4f}f, " for size in sizes)

    @property
    def told(self) -> str:
        """Origin and time."""
        return f"{self.origin}, {self.recorded_us:,.2f} us" if self.recorded_us else self.origin


@dataclass(frozen=True, slots=True)
class Part:
    """One kernel of a bundle."""

    label: str
    """Namespace of its own."""
    source: KernelSource
    code: str
    """Its text as it stands in the file."""
    config: Config
    arch: Arch
    launch: LaunchConfig
    boxes: tuple[TensorBox, ...]
    stream_ctas: int
    """CTAs that share the remainder of the last wave, 0 without stream-K."""
    along: tuple[bool, bool]
    """Whether A and B are stored along k."""

    @property
    def alignment(self) -> tuple[int, int, int]:
        """Elements of which pointers, leading dimensions and rows of A, B and C as given are multiples."""
        return (1, 1, 1) if self.config.edge is Edge.PAD else self.config.alignment

    @property
    def multiples(self) -> tuple[int, int, int]:
        """What m, n and k as given must be multiples of."""
        return self.config.multiples if self.config.edge is Edge.EXACT else (1, 1, 1)

    @property
    def limited(self) -> bool:
        """Whether CTAs of an SM are kept to as many as there have to be."""
        return self.config.pdl and "griddepcontrol" in self.arch.instructions

    @property
    def universal(self) -> bool:
        """Whether it serves operands of any size and alignment."""
        return self.alignment == self.multiples == (1, 1, 1)

    @property
    def has_memory(self) -> bool:
        """Whether launches work in memory of their own."""
        config = self.config
        return config.has_workspace or any(config.packs) or config.edge is Edge.PAD or config.limbs > 0


@dataclass(frozen=True, slots=True)
class Uses:
    """What any kernel of a bundle needs of the code that launches them; what none does is left out of the text."""

    vectors: bool
    exact: bool
    fallback: bool
    fallback_memory: bool
    several: bool
    smem: bool
    limits: bool
    pdl: bool
    workspace: bool
    split: bool
    stream_k: bool
    persistent: bool
    pack: bool
    pad: bool
    limbs: bool
    tma: bool

    @property
    def copies(self) -> bool:
        """Copies of operands."""
        return self.pack or self.pad or self.limbs

    @property
    def memory(self) -> bool:
        """Anything in a workspace."""
        return self.workspace or self.copies


@dataclass(frozen=True, slots=True)
class Row:
    """A shape and the namespace of its kernel."""

    served: Served
    label: str


@dataclass(frozen=True, slots=True)
class OnArch:
    """What serves one kind of product on one architecture and later ones."""

    label: str
    arch: Arch
    shapes: tuple[Row, ...]
    fallback: str
    """Namespace of the kernel that serves whatever the others do not."""

    @property
    def capability(self) -> int:
        """Such as 90."""
        return 10 * self.arch.capability[0] + self.arch.capability[1]


@dataclass(frozen=True, slots=True)
class Product:
    """Products of one type with the same transposes: one set of functions."""

    name: str
    """How its functions begin; @ stands for the bundle's name."""
    label: str
    dtype: DType
    trans: str
    arches: tuple[OnArch, ...]
    """By capability."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Kernels that have a file of their own."""

    label: str
    arch: Arch
    kernels: tuple[Part, ...]

    @property
    def needs(self) -> tuple[str, ...]:
        """The lines that stop a compiler for an older architecture."""
        return needs_of(self.kernels)


@dataclass(frozen=True)
class Bundle:
    """All of it."""

    products: tuple[Product, ...]
    kernels: tuple[Part, ...]
    units: tuple[Unit, ...]

    @property
    def needs(self) -> tuple[str, ...]:
        """The lines that stop a compiler for an older architecture."""
        return needs_of(self.kernels)

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Each type once."""
        return tuple(dict.fromkeys(each.dtype for each in self.products))

    @property
    def arches(self) -> tuple[Arch, ...]:
        """Each architecture once, the oldest first."""
        return tuple(sorted({each.arch for each in self.kernels}, key=lambda arch: arch.capability))

    @property
    def capability(self) -> int:
        """Of the oldest device that all kernels run on, such as 90; 0 where any does."""
        return max(map(_needed, self.kernels))

    @cached_property
    def uses(self) -> Uses:
        """What launches of its kernels need."""
        every, modes = self.kernels, [each.config for each in self.kernels]
        rows = [arch for product in self.products for arch in product.arches]
        general = {arch.fallback for arch in rows}
        limits, fallback = any(each.limited for each in every), not all(each.universal for each in every)
        return Uses(
            vectors=any(each.alignment != (1, 1, 1) for each in every),
            exact=any(each.multiples != (1, 1, 1) for each in every),
            fallback=fallback,
            fallback_memory=fallback and any(each.label in general and each.has_memory for each in every),
            several=any(len(arch.shapes) > 1 for arch in rows),
            smem=limits or any(each.launch.dynamic_smem_bytes for each in every),
            limits=limits,
            pdl=any("griddepcontrol" in each.arch.instructions for each in every),
            workspace=any(config.has_workspace for config in modes),
            split=any(config.split_ctas > 1 for config in modes),
            stream_k=any(each.stream_ctas for each in every),
            persistent=any(config.persistent_tiles > 1 for config in modes),
            pack=any(any(config.packs) for config in modes),
            pad=any(config.edge is Edge.PAD for config in modes),
            limbs=any(config.limbs for config in modes),
            tma=any(each.boxes for each in every),
        )


def bundled(served: Sequence[Served], split: bool) -> Bundle:
    """A bundle of these shapes, with a file for each kernel if `split`. Raises ConfigError."""
    check(bool(served), "a bundle wants at least one shape")
    grades = dict.fromkeys(each.problem.accuracy for each in served)
    check(len(grades) == 1, f"a bundle has one accuracy for all shapes, got {' and '.join(grades)}")
    groups: dict[tuple[DType, str], dict[Arch, list[Served]]] = {}
    for each in served:
        host = "was chosen for the processor: load it for a GPU, or emit a config for one (tilewright.emit)"
        check(not each.arch.is_host, f"{each.config} {host}")
        rows = groups.setdefault((each.problem.dtype, each.problem.trans), {}).setdefault(each.arch, [])
        check(all(row.problem != each.problem for row in rows), f"{each.problem} is given twice for {each.arch.name}")
        rows.append(each)
    arches = sorted({each.arch for each in served}, key=lambda arch: arch.capability)
    several = len(arches) > 1
    for (dtype, trans), by_arch in groups.items():
        missing = [arch.name for arch in arches if arch not in by_arch]
        check(not missing, f"{dtype.value} {trans} has no shape for {', '.join(missing)}")
    parts: dict[tuple[Arch, DType, str, Config, int], Part] = {}

    def part_of(problem: Problem, config: Config, arch: Arch, sm_count: int) -> Part:
        stream_ctas = config.stream_ctas_per_sm * sm_count
        key = arch, problem.dtype, problem.trans, config, stream_ctas
        if key not in parts:
            parts[key] = _part(f"k{len(parts)}", problem, config, arch, stream_ctas)
        return parts[key]

    products = []
    for (dtype, trans), by_arch in groups.items():
        label = f"{dtype.code}_{trans}".upper()
        on = []
        for arch in arches:
            rows = by_arch[arch]
            shapes = tuple(Row(row, part_of(row.problem, row.config, arch, row.sm_count).label) for row in rows)
            general = general_config([row.config for row in rows], rows[0].problem, arch)
            fallback = part_of(_odd(rows[0].problem), general, arch, rows[0].sm_count)
            on.append(OnArch(f"{label}_{arch.name}".upper() if several else label, arch, shapes, fallback.label))
        types, kinds = {dtype for dtype, _ in groups}, {trans for _, trans in groups}
        suffix = (f"_{dtype.code}" if len(types) > 1 else "") + (f"_{trans}" if len(kinds) > 1 else "")
        products.append(Product(f"@{suffix}", label, dtype, trans, tuple(on)))
    kernels = _used(tuple(parts.values()), products)
    # One figure is help, a figure for each of many kernels is not.
    plain = kernels[1:] if len(kernels) == 2 else kernels if len(kernels) > 2 else ()
    kernels = tuple(replace(each, code=_without_figure(each.code)) if each in plain else each for each in kernels)
    units: tuple[Unit, ...] = ()
    if split:
        units = tuple(
            Unit(f"{each.arch.name}_{each.label}" if several else each.label, each.arch, (each,)) for each in kernels
        )
    elif several:
        units = tuple(Unit(arch.name, arch, tuple(k for k in kernels if k.arch == arch)) for arch in arches)
    return Bundle(tuple(products), kernels, units)


def general_config(configs: Iterable[Config], problem: Problem, arch: Arch) -> Config:
    """A config that serves products of any size and alignment: of these without vectors and with guarded edges, one
    that needs no memory and whose tile is nearest to 64 by 64; for one config just that."""
    odd = _odd(problem)
    twins = [config.scalar().changed(edge=Edge.BOUNDS) for config in dict.fromkeys(configs)]
    legal = [twin for twin in twins if serves(twin, odd, arch) and twin.alignment == (1, 1, 1)]

    def order(twin: Config) -> tuple[object, ...]:
        memory = twin.has_workspace or any(twin.packs) or twin.limbs > 0
        sides = sum(abs(math.log2(side) - 6) for side in twin.cta_tile[:2])
        return memory, sides, twin.canonical

    return min(legal, key=order, default=None) or default_config(odd, arch)


def needs_of(kernels: Sequence[Part]) -> tuple[str, ...]:
    """The lines that stop a compiler for an architecture older than these kernels need: one `#error` for all."""
    strictest = max(kernels, key=_needed)
    found = _NEEDS.search(strictest.source.code)
    return tuple(found[0].splitlines()) if found else ()


def _needed(kernel: Part) -> int:
    """Capability that a kernel needs, such as 90; 0 where it needs none."""
    found = _NEEDS.search(kernel.source.code)
    return int(found[1]) // 10 if found else 0


def _odd(problem: Problem) -> Problem:
    m, n, k = _ODD
    return dataclasses.replace(problem, m=m, n=n, k=k)


def _part(label: str, problem: Problem, config: Config, arch: Arch, stream_ctas: int) -> Part:
    source = render(problem, config, arch)
    # Without its banner, known to its file alone.
    text = source.code.partition("\n\n")[2].replace('extern "C" __global__', "static __global__")
    code = _NEEDS.sub("", text)
    launch, along = config.launch_config(problem, 1), (not problem.trans_a, problem.trans_b)
    return Part(label, source, code, config, arch, launch, config.boxes(problem), stream_ctas, along)


def _without_figure(code: str) -> str:
    return code[code.index("namespace {") :]


def _used(kernels: tuple[Part, ...], products: Sequence[Product]) -> tuple[Part, ...]:
    """Those that some shape goes to; the general ones where any kernel leaves something to them."""
    rows = {row.label for product in products for arch in product.arches for row in arch.shapes}
    if all(each.universal for each in kernels if each.label in rows):
        return tuple(each for each in kernels if each.label in rows)
    return kernels
