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
from .fit import Fit
from .leaf import Edge
from .legality import fitted, serves
from .problem import DType, Problem
from .render import instances
from .source import KernelSource, LaunchConfig, TensorBox
from .target import Target

_NEEDS = re.compile(r'#if defined\(__CUDA_ARCH__\) && __CUDA_ARCH__ < (\d+)\n#error "[^"\n]*"\n#endif\n')
AS_GIVEN = "as given"
"""The origin of a config that nothing chose."""
_Kind = tuple[Arch, DType, str, Config, bool]
"""Key of kernels that share one text: the architecture, dtype, transposes, config, and whether they pad."""
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
    target: Target
    """The device it is for, such as `load(...).device`. The kernel runs on its architecture and later ones; stream-K
    shares the last wave among its SMs."""
    origin: str = AS_GIVEN
    """Where the config is from, for a person."""
    recorded_us: float = 0.0
    """Microseconds of one product when it was tuned for just this shape, 0 where it was not."""
    error: float = 0.0
    """The largest error seen then, over its bound."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "problem", Problem.parse(self.problem))
        check_type("config", self.config, Config, "a Config, such as load(...).config")
        check_type("target", self.target, Target, "a Target, such as load(...).device")
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
    """One kernel of a bundle and how it is launched: an instance of a config's text."""

    problem: Problem
    """A problem that it serves, for its dtype and transposes."""
    fit: Fit
    arch: Arch
    stream_ctas: int
    """CTAs that share the remainder of the last wave, 0 without stream-K."""
    space: str
    """Namespace of its text."""
    row: str
    """Name of its facts there."""

    @property
    def label(self) -> str:
        """Where its facts are."""
        return f"{self.space}::{self.row}"

    @property
    def launch(self) -> LaunchConfig:
        """Threads and shared memory of its CTAs."""
        return self.config.launch_config(self.problem, 1)

    @property
    def boxes(self) -> tuple[TensorBox, ...]:
        """Boxes of A and B that one TMA copy brings."""
        return self.config.boxes(self.problem)

    @property
    def along(self) -> tuple[bool, bool]:
        """Whether A and B are stored along k."""
        return not self.problem.trans_a, self.problem.trans_b

    @property
    def config(self) -> Config:
        """The config of which it is an instance."""
        return self.fit.config

    @property
    def pads(self) -> bool:
        """Whether it works in padded copies of the matrices."""
        return self.fit.edge is Edge.PAD

    @property
    def limited(self) -> bool:
        """Whether CTAs of an SM are kept to as many as there have to be."""
        return self.config.pdl and "griddepcontrol" in self.arch.instructions

    @property
    def universal(self) -> bool:
        """Whether it serves operands of any size and alignment."""
        return self.fit.alignment == self.fit.multiples == (1, 1, 1)


@dataclass(frozen=True, slots=True)
class Preparation:
    """A kernel that comes before others, in a namespace of its own."""

    label: str
    """Name of the namespace."""
    name: str
    """Name of the kernel."""
    code: str
    """As it stands in the file."""

    @property
    def function(self) -> str:
        """The kernel's name from outside the namespace."""
        return f"{self.label}::{self.name}"


@dataclass(frozen=True, slots=True)
class Text:
    """Kernels of one config, in a namespace of its own."""

    label: str
    code: str
    """As it stands in the file."""
    arch: Arch
    kernels: tuple[tuple[Part, KernelSource], ...]
    """Some launches may differ though the kernel is the same."""
    preparation: Preparation | None
    """The kernel that comes before each of them."""

    @property
    def needs(self) -> "re.Match[str] | None":
        """The lines that stop a compiler for an older architecture, and the one that it needs."""
        return _NEEDS.search(self.kernels[0][1].code)

    @property
    def capability(self) -> int:
        """Compute capability that the text needs, such as 90; 0 where any will do."""
        return int(self.needs[1]) // 10 if self.needs else 0

    @property
    def names(self) -> set[str]:
        """Names of its kernels and of the one that comes before them."""
        own = {source.name.partition("<")[0] for _, source in self.kernels}
        return own | ({self.preparation.name} if self.preparation else set())


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
    terms: bool
    tma: bool

    @property
    def copies(self) -> bool:
        """Copies of operands."""
        return self.pack or self.pad or self.terms

    @property
    def memory(self) -> bool:
        """Anything in a workspace."""
        return self.workspace or self.copies


@dataclass(frozen=True, slots=True)
class Row:
    """A shape and where the facts of its kernel are."""

    served: Served
    label: str


@dataclass(frozen=True, slots=True)
class OnArch:
    """What serves one kind of product on one architecture and later ones."""

    label: str
    arch: Arch
    shapes: tuple[Row, ...]
    fallback: str
    """Where the facts of the kernel are that serves whatever the others do not."""

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
    texts: tuple[Text, ...]

    @property
    def needs(self) -> tuple[str, ...]:
        """The lines that stop a compiler for an older architecture."""
        return needs_of(self.texts)

    @property
    def preparations(self) -> tuple[Preparation, ...]:
        """The kernels that come before these, each once."""
        return preparations_of(self.texts)


@dataclass(frozen=True)
class Bundle:
    """All of it."""

    products: tuple[Product, ...]
    texts: tuple[Text, ...]
    units: tuple[Unit, ...]

    @property
    def kernels(self) -> tuple[Part, ...]:
        """Kernels of all texts."""
        return tuple(part for text in self.texts for part, _ in text.kernels)

    @property
    def needs(self) -> tuple[str, ...]:
        """The lines that stop a compiler for an older architecture."""
        return needs_of(self.texts)

    @property
    def preparations(self) -> tuple[Preparation, ...]:
        """The kernels that come before others, each once."""
        return preparations_of(self.texts)

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
        """Compute capability that all kernels together need, such as 90; 0 where any will do."""
        return max(text.capability for text in self.texts)

    @cached_property
    def uses(self) -> Uses:
        """What launches of its kernels need."""
        every, modes = self.kernels, [each.config for each in self.kernels]
        rows = [arch for product in self.products for arch in product.arches]
        general = {arch.fallback for arch in rows}
        limits, fallback = any(each.limited for each in every), not all(each.universal for each in every)
        return Uses(
            vectors=any(each.fit.alignment != (1, 1, 1) for each in every),
            exact=any(each.fit.multiples != (1, 1, 1) for each in every),
            fallback=fallback,
            fallback_memory=fallback and any(each.label in general and each.fit.has_memory for each in every),
            several=any(len(arch.shapes) > 1 for arch in rows),
            smem=limits or any(each.launch.dynamic_smem_bytes for each in every),
            limits=limits,
            pdl=any("griddepcontrol" in each.arch.instructions for each in every),
            workspace=any(config.has_workspace for config in modes),
            split=any(config.split_ctas > 1 for config in modes),
            stream_k=any(each.stream_ctas for each in every),
            persistent=any(config.persistent_tiles > 1 for config in modes),
            pack=any(any(config.packs) for config in modes),
            pad=any(each.pads for each in every),
            terms=any(config.terms for config in modes),
            tma=any(each.boxes for each in every),
        )


def bundled(served: Sequence[Served], split: bool) -> Bundle:
    """A bundle of these shapes, with a file for each text if `split`. Raises ConfigError."""
    check(bool(served), "a bundle wants at least one shape")
    grades = dict.fromkeys(each.problem.accuracy for each in served)
    check(len(grades) == 1, f"a bundle has one accuracy for all shapes, got {' and '.join(grades)}")
    groups: dict[tuple[DType, str], dict[Arch, list[Served]]] = {}
    for each in served:
        host = "was chosen for the processor: load it for a GPU, or emit a config for one (tilewright.emit)"
        arch = each.target.arch
        check(not arch.is_host, f"{each.config} {host}")
        rows = groups.setdefault((each.problem.dtype, each.problem.trans), {}).setdefault(arch, [])
        check(all(row.problem != each.problem for row in rows), f"{each.problem} is given twice for {arch.name}")
        rows.append(each)
    arches = sorted({each.target.arch for each in served}, key=lambda arch: arch.capability)
    several = len(arches) > 1
    for (dtype, trans), by_arch in groups.items():
        missing = [arch.name for arch in arches if arch not in by_arch]
        check(not missing, f"{dtype.value} {trans} has no shape for {', '.join(missing)}")
    parts: dict[_Kind, dict[tuple[Fit, int], Part]] = {}

    def part_of(problem: Problem, fit: Fit, target: Target) -> Part:
        kind = target.arch, problem.dtype, problem.trans, fit.config, fit.edge is Edge.PAD
        of_text = parts.setdefault(kind, {})
        space, stream_ctas = f"k{list(parts).index(kind)}", fit.config.stream_ctas_per_sm * target.sm_count
        row = f"KERNEL_{len(of_text)}" if of_text else "KERNEL"
        return of_text.setdefault((fit, stream_ctas), Part(problem, fit, target.arch, stream_ctas, space, row))

    def part_for(row: Served) -> Part:
        return part_of(row.problem, fitted(row.problem, row.config, row.target), row.target)

    products = []
    for (dtype, trans), by_arch in groups.items():
        label = f"{dtype.code}_{trans}".upper()
        on = []
        for arch in arches:
            rows = by_arch[arch]
            shapes = tuple(Row(row, part_for(row).label) for row in rows)
            general = general_fit([row.config for row in rows], rows[0].problem, rows[0].target)
            fallback = part_of(_odd(rows[0].problem), general, rows[0].target)
            on.append(OnArch(f"{label}_{arch.name}".upper() if several else label, arch, shapes, fallback.label))
        types, kinds = {dtype for dtype, _ in groups}, {trans for _, trans in groups}
        suffix = (f"_{dtype.code}" if len(types) > 1 else "") + (f"_{trans}" if len(kinds) > 1 else "")
        products.append(Product(f"@{suffix}", label, dtype, trans, tuple(on)))
    labels: dict[str, str] = {}
    texts = tuple(_text(each, labels) for each in _used([tuple(each.values()) for each in parts.values()], products))
    # One figure is help, a figure for each of many kernels is not.
    plain = texts[1:] if len(texts) == 2 else texts if len(texts) > 2 else ()
    texts = tuple(replace(each, code=_without_figure(each.code)) if each in plain else each for each in texts)
    units: tuple[Unit, ...] = ()
    if split:
        units = tuple(
            Unit(f"{each.arch.name}_{each.label}" if several else each.label, each.arch, (each,)) for each in texts
        )
    elif several:
        units = tuple(Unit(arch.name, arch, tuple(each for each in texts if each.arch == arch)) for arch in arches)
    return Bundle(tuple(products), texts, units)


def general_fit(configs: Iterable[Config], problem: Problem, target: Target) -> Fit:
    """The instance that serves products of any size and alignment: of those of these configs one that needs no memory
    and whose tile is nearest to 64 by 64; for one config its own."""
    odd = _odd(problem)
    fits = [config.fit(odd, aligned=False) for config in dict.fromkeys(configs)]
    legal = [fit for fit in fits if fit and serves(fit.config, odd, target)]

    def order(fit: Fit) -> tuple[object, ...]:
        sides = sum(abs(math.log2(side) - 6) for side in fit.config.cta_tile[:2])
        return fit.has_memory, sides, fit.config.canonical

    default = default_config(odd, target)
    return min(legal, key=order, default=None) or fitted(odd, default, target, aligned=False)


def needs_of(texts: Sequence[Text]) -> tuple[str, ...]:
    """The lines that stop a compiler for an architecture older than these kernels need: one `#error` for all."""
    needs = max(texts, key=lambda text: text.capability).needs
    return tuple(needs[0].splitlines()) if needs else ()


def preparations_of(texts: Sequence[Text]) -> tuple[Preparation, ...]:
    """The kernels that come before those of some texts, each once."""
    return tuple(dict.fromkeys(text.preparation for text in texts if text.preparation))


def _odd(problem: Problem) -> Problem:
    m, n, k = _ODD
    return dataclasses.replace(problem, m=m, n=n, k=k)


def _text(parts: Sequence[Part], labels: dict[str, str]) -> Text:
    """The text of kernels of one config. `labels` are the namespaces of preparations by name, and gain those that are
    new."""
    fits = list(dict.fromkeys(part.fit for part in parts))
    sources = dict(zip(fits, instances(parts[0].problem, fits)))
    kernels = tuple((part, sources[part.fit]) for part in parts)
    preparation, first = None, sources[fits[0]].preparation
    if first is not None:
        label = labels.setdefault(first.name, f"p{len(labels)}")
        preparation = Preparation(label, first.name, _within_file(first))
    return Text(parts[0].space, _NEEDS.sub("", _within_file(sources[fits[0]])), parts[0].arch, kernels, preparation)


def _within_file(source: KernelSource) -> str:
    """The text without its banner, its kernel known to its file alone."""
    return source.code.partition("\n\n")[2].replace('extern "C" __global__', "static __global__")


def _without_figure(code: str) -> str:
    return code[code.index("namespace {") :]


def _used(texts: Sequence[tuple[Part, ...]], products: Sequence[Product]) -> Sequence[tuple[Part, ...]]:
    """The kernels of each text that some shape goes to; the general ones where any kernel leaves something to them."""
    rows = {row.label for product in products for arch in product.arches for row in arch.shapes}
    if not all(part.universal for parts in texts for part in parts if part.label in rows):
        return texts
    used = [tuple(part for part in parts if part.label in rows) for parts in texts]
    return [parts for parts in used if parts]
