"""The contents of a bundle of emitted files: its kernels, the shape that each serves, and the facts of its launches."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from .arch import Arch
from .batch import Batching
from .config import Config
from .errors import check, check_comment, check_type
from .families import default_config
from .fit import Fit
from .leaf import Edge
from .legality import fitted, require, serves
from .problem import DType, Problem
from .render import instances, kernel_name
from .source import KernelSource, LaunchConfig, TensorBox
from .target import Target

_NEEDS = re.compile(r'#if defined\(__CUDA_ARCH__\) && __CUDA_ARCH__ < (\d+)\n#error "[^"\n]*"\n#endif\n')
AS_GIVEN = "as given"
"""The origin of a config that the caller named and no look-up chose."""
_Kind = tuple[Arch, DType, str, Config, bool, str]
"""Key of kernels that share one text: the architecture, dtype, transposes, config, whether they pad, and the shape
where it is part of the text."""
_Group = tuple[tuple[DType, str], Arch]
"""Key of shapes that one function serves on one architecture: their dtype and transposes, and the architecture."""
NEAR = 8
"""Factor of m, n and k up to which a shape's kernel serves other shapes too; a general kernel serves the rest."""
_ODD = 1021, 1019, 1013
"""A shape that no tile or vector divides."""
_PRODUCTS = 2
"""Products of the batch that stands for all batches: their kernels are the same."""


@dataclass(frozen=True, slots=True)
class Served:
    """A shape of a bundle and the kernel that serves it. Raises ArgumentTypeError, and ShapeError for a text that is no
    shape."""

    problem: Problem
    """The shape, its dtype and transposes; "1024x768x512" or three numbers name one in float without transposes. If it
    has a batch, the config was chosen for that batch."""
    config: Config
    """The kernel's config, such as `load(...).config`."""
    target: Target
    """The kernel's device, such as `load(...).device`. The kernel runs on its architecture and later ones; stream-K
    shares the last wave among its SMs."""
    origin: str = AS_GIVEN
    """Origin of the config, for a person."""
    recorded_us: float = 0.0
    """Microseconds that were measured when this very shape was tuned; 0 if it was not."""
    error: float = 0.0
    """The largest error that was measured in that tuning, over its bound."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "problem", Problem.parse(self.problem))
        check_type("config", self.config, Config, "a Config, such as load(...).config")
        check_type("target", self.target, Target, "a Target, such as load(...).device")
        check_type("origin", self.origin, str, "text")
        check_comment("origin", self.origin)

    @property
    def provenance(self) -> str:
        """Origin and time."""
        return f"{self.origin}, {self.recorded_us:,.2f} us" if self.recorded_us else self.origin


@dataclass(frozen=True, slots=True)
class Part:
    """One kernel of a bundle and how it is launched: an instance of a config's text."""

    problem: Problem
    """A problem that the kernel serves, for its dtype and transposes."""
    fit: Fit
    arch: Arch
    stream_ctas: int
    """CTAs that share the remainder of the last wave, 0 without stream-K."""
    space: str
    """Namespace of the kernel's text."""
    row: str
    """Name of the kernel's row in that namespace."""

    @property
    def label(self) -> str:
        """Qualified name of the kernel's row."""
        return f"{self.space}::{self.row}"

    @property
    def launch(self) -> LaunchConfig:
        """Threads and shared memory of a CTA."""
        return self.config.launch_config(self.problem, 1)

    @property
    def boxes(self) -> tuple[TensorBox, ...]:
        """Boxes of A and B that one TMA copy brings."""
        return self.config.boxes(self.problem)

    def numbers(self, preparation: str) -> tuple[tuple[str, str], ...]:
        """Values of the kernel's row from the tile on: lines of C and a comment on each. `preparation` is a pointer, in
        C, to the kernel that prepares the operands."""
        config, launch, problem = self.config, self.launch, self.problem
        multiples = config.multiples if self.pads else self.fit.multiples
        pdl = "griddepcontrol" in self.arch.instructions
        limited = config.pdl and pdl  # the launch limits the CTAs of an SM to as many as are needed
        resources = launch.static_smem_bytes, launch.dynamic_smem_bytes, pdl, limited
        elements = math.prod(problem.stored_a), math.prod(problem.stored_b), problem.m * problem.n
        only_step = elements if self.fit.dense else (0, 0, 0)
        requirements = self.fit.alignment, multiples, self.sizes, only_step
        split = config.split_ctas, config.persistent_tiles, self.stream_ctas, config.cta_products
        boxes = self.boxes or 2 * (TensorBox(0, 0, False),)
        box_sizes, swizzles = tuple((box.rows, box.cols) for box in boxes), tuple(3 * box.swizzled for box in boxes)
        terms = config.terms, config.term_k, config.term_ctas
        operands = config.has_workspace, self.pads, config.packs, *terms, box_sizes, swizzles
        return (
            (_values(config.cta_tile, launch.block[:2], *resources), "tile, threads, shared memory, PDL"),
            (_values(*requirements), "alignment, multiples, only sizes and steps"),
            (f"{_values(*split)}, {preparation}", "split-K, tiles of a CTA, stream-K, products of a CTA, preparation"),
            (_values(*operands), "sums, padding, packing, split terms, TMA"),
        )

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The m, n and k that the kernel serves alone, 0 where it serves any."""
        problem = self.problem
        return (problem.m, problem.n, problem.k) if self.config.fixed_sizes else (0, 0, 0)

    @property
    def config(self) -> Config:
        """The config of which the kernel is an instance."""
        return self.fit.config

    @property
    def pads(self) -> bool:
        """Whether the kernel works on padded copies of the matrices."""
        return self.fit.edge is Edge.PAD

    @property
    def serves(self) -> str:
        """Operands that the kernel serves, in words."""
        if self.universal:
            return "any size and alignment"
        multiples, aligned = self.fit.multiples, max(self.fit.alignment)
        only = f"m, n, k of {', '.join(map(str, self.sizes))} alone" if self.config.fixed_sizes else ""
        exact = f"m, n, k in multiples of {', '.join(map(str, multiples))}" if max(multiples) > 1 else ""
        gaps = "matrices without gaps" if self.fit.dense else ""
        vectors = f"aligned to {aligned} elements" if aligned > 1 else ""
        return "; ".join(filter(None, (only, exact, gaps, vectors)))

    @property
    def universal(self) -> bool:
        """Whether the kernel serves operands of any size and alignment."""
        return self.fit.alignment == self.fit.multiples == (1, 1, 1) and not self.config.fixed_sizes


@dataclass(frozen=True, slots=True)
class Text:
    """Kernels of one config, in a namespace of its own."""

    label: str
    """Name of the namespace."""
    code: str
    """Text of the kernels as the file has it."""
    arch: Arch
    kernels: tuple[tuple[Part, KernelSource], ...]
    """Launches and the sources of their kernels; several launches may share one kernel."""
    preparation: KernelSource | None
    """The kernel that prepares the operands of these kernels, as the file has it, in a namespace of its own name."""

    @property
    def name(self) -> str:
        """Name of the text among those of the same architecture."""
        return self.label.removesuffix(f"_{self.arch.name}")

    @property
    def first(self) -> str:
        """Pointer to the kernel that prepares the operands of these kernels, in C."""
        first = self.preparation
        return f"reinterpret_cast<const void*>({first.name}::{first.name})" if first else "nullptr"

    @property
    def needs(self) -> "re.Match[str] | None":
        """Match of the lines that stop a compiler for an older architecture than group 1; None without such lines."""
        return _NEEDS.search(self.kernels[0][1].code)

    @property
    def capability(self) -> int:
        """Compute capability that the text needs, such as 90; 0 where any will do."""
        return int(self.needs[1]) // 10 if self.needs else 0

    @property
    def names(self) -> set[str]:
        """Names of the text's kernels and of the one that prepares their operands."""
        own = {source.name.partition("<")[0] for _, source in self.kernels}
        return own | ({self.preparation.name} if self.preparation else set())


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Several texts, and the lines that a file has once for all of them."""

    texts: tuple[Text, ...]

    @property
    def needs(self) -> tuple[str, ...]:
        """The lines that stop a compiler for an architecture older than the kernels need: one `#error` for all."""
        needs = max(self.texts, key=lambda text: text.capability).needs
        return tuple(needs[0].splitlines()) if needs else ()

    @property
    def preparations(self) -> tuple[KernelSource, ...]:
        """The kernels that prepare operands, each once."""
        return tuple(dict.fromkeys(text.preparation for text in self.texts if text.preparation))


@dataclass(frozen=True, slots=True)
class Uses:
    """Needs of a bundle's kernels, on which the text of its header and its self-test depends."""

    vectors: bool
    """Whether a kernel needs aligned operands."""
    general: bool
    """Whether a kernel leaves shapes or alignments to a general one."""
    several: bool
    """Whether a product has several shapes."""
    sums: bool
    """Whether the CTAs of a kernel add up in the workspace."""
    memory: bool
    """Whether a kernel needs a workspace."""


@dataclass(frozen=True, slots=True)
class Row:
    """A shape, and the label of the row with the facts of its kernel."""

    served: Served
    label: str


@dataclass(frozen=True, slots=True)
class OnArch:
    """Shapes and kernels of one kind of product on one architecture and later ones."""

    label: str
    arch: Arch
    shapes: tuple[Row, ...]
    """A row for each instance of a shape's kernel, the most demanding instance first."""
    general: str
    """Label of the general kernel's row; empty where the kernels of the shapes serve everything."""
    older: str
    """Label of the same products for the next older architecture; empty for the oldest."""
    devices: str
    """Lowest and highest compute capability of the devices that these kernels serve, in C."""

    @property
    def kind(self) -> str:
        """Transposes and bytes of an element, in C."""
        problem = self.shapes[0].served.problem
        return _values(problem.trans_a, problem.trans_b, problem.dtype.size_bytes)

    @property
    def served(self) -> tuple[Served, ...]:
        """The shapes, each once."""
        return tuple(dict.fromkeys(row.served for row in self.shapes))

    @property
    def reach(self) -> int:
        """Factor of m, n and k up to which a shape's kernel serves another; 0 for any."""
        return NEAR if self.general and len(self.served) > 1 else 0


@dataclass(frozen=True, slots=True)
class Product:
    """Products of one type with the same transposes: one set of functions."""

    name: str
    """Prefix of the functions' names; @ stands for the bundle's name."""
    label: str
    dtype: DType
    trans: str
    arches: tuple[OnArch, ...]
    """Architectures in rising order of capability."""

    @property
    def tested(self) -> tuple[tuple[int, int, int], ...]:
        """Sizes (m, n, k) that the self-test computes: those of each shape once, with 16 in place of 0."""
        problems = (each.problem for arch in self.arches for each in arch.served)
        return tuple(dict.fromkeys((each.m or 16, each.n or 16, each.k or 16) for each in problems))


@dataclass(frozen=True, kw_only=True)
class Unit(Texts):
    """Kernels that have a file of their own."""

    label: str
    arch: Arch


@dataclass(frozen=True, kw_only=True)
class Bundle(Texts):
    """All products, kernels and files of a bundle."""

    products: tuple[Product, ...]
    units: tuple[Unit, ...]

    @property
    def kernels(self) -> tuple[Part, ...]:
        """Kernels of all texts."""
        return tuple(part for text in self.texts for part, _ in text.kernels)

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Types of the products, each once."""
        return tuple(dict.fromkeys(each.dtype for each in self.products))

    @property
    def arches(self) -> tuple[Arch, ...]:
        """Architectures of the kernels, each once, the oldest first."""
        return tuple(sorted({each.arch for each in self.kernels}, key=lambda arch: arch.capability))

    @property
    def capability(self) -> int:
        """Compute capability that all kernels together need, such as 90; 0 where any will do."""
        return max(text.capability for text in self.texts)

    @cached_property
    def uses(self) -> Uses:
        """Needs of the bundle's kernels."""
        rows = [arch for product in self.products for arch in product.arches]
        return Uses(
            vectors=any(each.fit.alignment != (1, 1, 1) for each in self.kernels),
            general=any(arch.general for arch in rows),
            several=any(len(arch.shapes) > 1 for arch in rows),
            sums=any(each.config.has_workspace for each in self.kernels),
            memory=any(each.fit.has_memory for each in self.kernels),
        )

    @property
    def steps(self) -> tuple[str, ...]:
        """Sections of the launcher that some kernel needs beside its own launch, in the order of a call."""
        needs = {
            "sum": lambda each: each.config.has_workspace,
            "pad": lambda each: each.pads,
            "pack": lambda each: any(each.config.packs),
            "tma": lambda each: bool(each.boxes),
            "term": lambda each: each.config.terms > 0,
        }
        return tuple(step for step, needed in needs.items() if any(map(needed, self.kernels)))


class _Parts:
    """The kernels of a bundle under construction, by the text that they share."""

    def __init__(self, several: bool) -> None:
        self._several = several
        self._texts: dict[_Kind, dict[tuple[Fit, int], Part]] = {}

    def of(self, problem: Problem, fit: Fit, target: Target) -> Part:
        """The kernel for an instance; equal instances get the same object."""
        pads, config = fit.edge is Edge.PAD, fit.config
        shape = problem.shape if config.fixed_sizes else ""
        parts = self._texts.setdefault((target.arch, problem.dtype, problem.trans, config, pads, shape), {})
        space = kernel_name(config, problem.dtype, problem.trans).partition("_")[2]
        space += "_pad" * pads + f"_of_{shape}" * bool(shape) + f"_{target.arch.name}" * self._several
        stream_ctas = config.stream_ctas_per_sm * target.sm_count
        row = f"row_{len(parts)}" if parts else "row"
        return parts.setdefault((fit, stream_ctas), Part(problem, fit, target.arch, stream_ctas, space, row))

    def texts(self) -> tuple[Text, ...]:
        """The texts of all kernels."""
        texts = [_text([*parts.values()]) for parts in self._texts.values()]
        # The first text keeps its figure; a file of more than two texts has none.
        figures = 0 if len(texts) > 2 else 1
        others = [replace(text, code=text.code[text.code.index("namespace {") :]) for text in texts[figures:]]
        return (*texts[:figures], *others)


def bundled(served: Sequence[Served], split: bool, batched: bool) -> Bundle:
    """A bundle of these shapes, with a file for each text if `split`, for batches of products if `batched`. Raises
    ConfigError."""
    for each in served:
        remedy = "pass Layout(batched=True) (--batched)"
        check(batched or each.problem.batch == 1, f"{each.problem} is a batch: {remedy}, or leave batch out")
        alone = f"{each.config} is for batches: {remedy}, or name another family"
        check(batched or not each.config.batches_alone, alone)
        if each.problem.batch > 1:
            require(each.problem, each.config, each.target)
    if batched:
        served = [_of_any_batch(each) for each in served]
    groups, arches = _grouped(served)
    several = len(arches) > 1
    parts = _Parts(several)
    rows = {
        key: [(row, parts.of(row.problem, fit, row.target)) for row in group for fit in _fits(row)]
        for key, group in groups.items()
    }
    generals: dict[_Group, str] = {}
    if not all(part.universal for group in rows.values() for _, part in group):
        for key, group in groups.items():
            first = group[0]
            fit = general_fit([row.config for row in group], first.problem, first.target)
            generals[key] = parts.of(_odd(first.problem), fit, first.target).label
    texts = parts.texts()
    oldest = max(text.capability for text in texts)
    kinds = list(dict.fromkeys(kind for kind, _ in groups))
    suffixes = [len({kind[place] for kind in kinds}) > 1 for place in (0, 1)]
    products = []
    for dtype, trans in kinds:
        label, on_arches = f"{dtype.code}_{trans}", list[OnArch]()
        for arch in arches:
            key = (dtype, trans), arch
            devices = _devices(arch) if several else f"{oldest}, INT_MAX"
            older = on_arches[-1].label if on_arches else ""
            shapes = tuple(Row(row, part.label) for row, part in rows[key])
            name = f"{label}_{arch.name}" if several else label
            on_arches.append(OnArch(name, arch, shapes, generals.get(key, ""), older, devices))
        suffix = "".join(f"_{word}" for word, used in zip((dtype.code, trans), suffixes) if used)
        products.append(Product(f"@{suffix}", on_arches[-1].label, dtype, trans, tuple(on_arches)))
    units: tuple[Unit, ...] = ()
    if split:
        prefixes = {arch: arch.name if several else "kernel" for arch in arches}
        units = tuple(Unit(label=f"{prefixes[text.arch]}_{text.name}", arch=text.arch, texts=(text,)) for text in texts)
    elif several:
        of_arches = {arch: tuple(text for text in texts if text.arch == arch) for arch in arches}
        units = tuple(Unit(label=arch.name, arch=arch, texts=each) for arch, each in of_arches.items())
    return Bundle(products=tuple(products), texts=texts, units=units)


def _of_any_batch(served: Served) -> Served:
    """The shape with a kernel for batches of any number. The time of a batch becomes part of the origin's text, as the
    emitted functions report times of single products."""
    batch, problem = served.problem.batch, replace(served.problem, batch=_PRODUCTS)
    if batch == 1:
        return replace(served, problem=problem)
    return replace(served, problem=problem, origin=f"for batches of {batch:,}: {served.provenance}", recorded_us=0.0)


def _grouped(served: Sequence[Served]) -> tuple[dict[_Group, list[Served]], list[Arch]]:
    """The shapes of each type, transposes and architecture, and the architectures, the oldest first."""
    check(bool(served), "a bundle wants at least one shape")
    grades = dict.fromkeys(each.problem.accuracy for each in served)
    check(len(grades) == 1, f"a bundle has one accuracy for all shapes, got {' and '.join(grades)}")
    groups: dict[_Group, list[Served]] = {}
    for each in served:
        host = "was chosen for the processor: load it for a GPU, or emit a config for one (tilewright.emit)"
        arch = each.target.arch
        check(not arch.is_host, f"{each.config} {host}")
        rows = groups.setdefault(((each.problem.dtype, each.problem.trans), arch), [])
        text = f"{replace(each.problem, batch=1)} is given twice for {arch.name}: leave one out"
        check(all(row.problem != each.problem for row in rows), f"{text}, as a shape has one kernel for every batch")
        rows.append(each)
    arches = sorted({arch for _, arch in groups}, key=lambda arch: arch.capability)
    kinds = dict.fromkeys(kind for kind, _ in groups)
    for dtype, trans in kinds:
        missing = [arch.name for arch in arches if ((dtype, trans), arch) not in groups]
        check(not missing, f"{dtype.value} {trans} has no shape for {', '.join(missing)}")
    return {(kind, arch): groups[kind, arch] for kind in kinds for arch in arches}, arches


def _fits(row: Served) -> list[Fit]:
    """The instances that serve a shape before the general kernel does. If the first is for matrices without gaps, one
    for any distances follows."""
    fit = fitted(row.problem, row.config, row.target)
    return [fit, *([fitted(row.problem, row.config, row.target, aligned=False)] if fit.dense else [])]


def _devices(arch: Arch) -> str:
    """Lowest and highest compute capability of devices that kernels for an architecture serve, in C."""
    capability = 10 * arch.capability[0] + arch.capability[1]
    return f"{capability}, {capability if arch.name.endswith('a') else 'INT_MAX'}"  # later devices lack parts of sm_90a


def general_fit(configs: Iterable[Config], problem: Problem, target: Target) -> Fit:
    """The instance that serves products of any size and alignment. Among the configs' instances, one without memory of
    its own comes first, then one whose tile is nearest to 64 by 64. The default config stands in for configs that serve
    their shape alone, and where no instance is legal."""
    odd = _odd(problem)
    default = default_config(odd, target)
    serving = dict.fromkeys(default if config.fixed_sizes else config for config in configs)
    fits = [config.fit(odd, aligned=False) for config in serving]
    legal = [fit for fit in fits if fit and serves(fit.config, odd, target)]

    def order(fit: Fit) -> tuple[object, ...]:
        sides = sum(abs(math.log2(side) - 6) for side in fit.config.cta_tile[:2])
        return fit.has_memory, sides, fit.config.canonical

    return min(legal, key=order, default=None) or fitted(odd, default, target, aligned=False)


def _values(*values: object) -> str:
    """Numbers, truth values and tuples of them, as C initialises a struct with them."""
    return ", ".join(f"{{{_values(*each)}}}" if isinstance(each, tuple) else str(each).lower() for each in values)


def _odd(problem: Problem) -> Problem:
    m, n, k = _ODD
    return replace(problem, m=m, n=n, k=k)


def _text(parts: Sequence[Part]) -> Text:
    """The text of kernels of one config."""
    fits = list(dict.fromkeys(part.fit for part in parts))
    batched = Batching.POINTERS if parts[0].problem.batch > 1 else Batching.NONE
    sources = dict(zip(fits, instances(parts[0].problem, fits, batched)))
    kernels = tuple((part, sources[part.fit]) for part in parts)
    first = sources[fits[0]]
    preparation = replace(first.preparation, code=_within_file(first.preparation)) if first.preparation else None
    return Text(parts[0].space, _NEEDS.sub("", _within_file(first)), parts[0].arch, kernels, preparation)


def _within_file(source: KernelSource) -> str:
    """The text without its banner, with a kernel that is static in its file."""
    return source.code.partition("\n\n")[2].replace('extern "C" __global__', "static __global__")
