"""The files that another project checks in, from shapes and the kernels that serve them."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from . import source
from .bundle import AS_GIVEN, Bundle, Served, bundled
from .emitted import Emitted, sealed
from .environment import rendered
from .errors import check, check_comment, check_type
from .problem import NORMWISE_ROUNDINGS, Grade, Problem
from .reserved import refuse

COUNTER_BYTES = 16384
"""Bytes of counters at the start of an emitted bundle's workspace: a counter for each tile of C that CTAs share."""

_SIZES = (
    "MOST_ALONG_Y", "MOST_LIMITED", "MOST_PAD_CTAS", "PACKED_BYTES", "PACK_THREADS", "PACK_TILE", "PAD_THREADS",
    "SMEM_STEP", "TERM_HELD", "TERM_ROWS", "TERM_THREADS",
)  # fmt: skip
"""Constants of launches that the emitted launcher needs too; templates name them in small letters."""
_INTERFACE_VERSION = 1
"""Version of the declarations in an emitted header; it grows when they change."""
_STORED = {
    "n": {"a": "m x k", "b": "k x n", "lda": "k", "ldb": "n", "word": "as it is"},
    "t": {"a": "k x m, read transposed", "b": "n x k, read transposed", "lda": "m", "ldb": "k", "word": "transposed"},
}
"""Words of a header on operands that are read as stored (`n`) or transposed (`t`)."""
_STATUSES = (
    ("SUCCESS", "done, or queued"),
    ("INVALID_SIZE", "a size or count is negative"),
    ("INVALID_LD", "lda, ldb or ldc is below 1 or the length of a stored row"),
    ("NULL_POINTER", "a matrix that would be read or written, or a description, is null"),
    ("MISALIGNED", "a matrix does not begin at a whole element, or the workspace at 256 bytes"),
    ("TOO_LARGE", "a size or leading dimension is above 2^31 - 1, or there are too many tiles of C"),
    ("WORKSPACE_TOO_SMALL", "the workspace is smaller than the product needs"),
    ("UNSUPPORTED_DEVICE", "the kernels are for other architectures, or the driver lacks tensor maps"),
    ("CAPTURING", "this call needs a workspace: capture _run, which is given one"),
)
_BATCH_STATUSES = (("INVALID_STRIDE", "the matrices of C overlap each other"),)
"""Statuses of a bundle that serves batches, which follow the others."""
_CUDA_SINCE = {"sm_90a": "12.0", "sm_100": "12.8", "sm_120": "12.8"}
"""The first CUDA whose nvcc knows an architecture; for the others 11.8, which the launches need."""
_COMMENT = {".txt": "#", ".in": "#"}


@dataclass(frozen=True, slots=True)
class Layout:
    """The files and functions of a bundle."""

    main: bool = False
    """Add a program that tests and times every kernel."""
    split: bool = False
    """A file for the kernels of each config, not one for all."""
    header_only: bool = False
    """One header with everything in it."""
    cmake: bool = False
    """Add CMakeLists.txt and a pkg-config file."""
    batched: bool = False
    """Add functions for batches of products; then every kernel serves batches."""


def emit(
    served: Served | Sequence[Served], name: str | None = None, layout: Layout = Layout(), options: str = ""
) -> Emitted:
    """The kernels of shapes as `<name>.cu` and `<name>.h`, and the other files that `layout` asks for.

    The functions have C linkage and serve every shape: one of `served` by its own kernel, others by the kernel of the
    nearest shape or a general one.

    Args:
        served: a shape and its kernel, or several.
        name: name of the functions and files; None for one that follows from the product (`default_name`) and from
            `layout.batched`.
        layout: which files to make.
        options: further options of the command that writes the files again, for their banner.

    Returns:
        Filenames and texts; `.write(folder)` writes them.

    Raises:
        ConfigError: a name that C, C++, the C library, other systems or the files themselves use; a config that cannot
            serve its problem, or that was chosen for the processor; a shape that comes twice; a problem with a
            batch but no `Layout(batched=True)`, whose functions serve batches of any number.
        ArgumentTypeError: arguments of other types.
    """
    check_type("served", served, (Served, Sequence), "a Served or several")
    served = (served,) if isinstance(served, Served) else tuple(served)
    for each in served:
        check_type("served", each, Served, "a Served or several")
    check_type("name", name, (str, type(None)), "text")
    check_type("layout", layout, Layout, "a Layout")
    check_comment("options", options)
    more_files = [each for each in ("split", "main", "cmake") if getattr(layout, each)]
    check(not (layout.header_only and more_files), f"header_only is one file: leave out {', '.join(more_files)}")
    if name is None:
        name = default_name([each.problem for each in served]) + "_batched" * layout.batched
    refuse(name)
    bundle = bundled(served, layout.split, layout.batched)
    if layout.header_only:
        arches = " and ".join(arch.name for arch in bundle.arches)
        check(len(bundle.arches) == 1, f"header_only is for one architecture, got {arches}: name one")
        many = f"header_only holds one kernel and the general one, got {len(served)} products: name one"
        check(len(served) == 1 or len(bundle.kernels) <= 2, many)
    values = _values(served, bundle, layout, _command(served, name, layout, options))
    templates = _templates(bundle, layout)
    kernel_names = {name for text in bundle.texts for name in text.names}
    check(name not in kernel_names, f"name must differ from the kernel's, got {name!r}")
    texts = [_text(each, "the_name", values) for each in templates if each.pattern.endswith((".cu", ".cuh", ".h"))]
    words = {word for text in texts for word in _words(text)}
    check(name not in words, f"name must not be a word within the emitted files, got {name!r}")
    return Emitted(tuple((each.filename(name), sealed(_text(each, name, values))) for each in templates))


def default_name(problems: Sequence[Problem]) -> str:
    """The default name of a bundle, which differs between products, so that a program can have several bundles. One
    product gives `gemm_f32_nn_1024x768x512`, with the accuracy where it is not `ieee`; several give `gemm_` and a hash
    of 8 digits."""
    first, several = problems[0] if problems else None, len(set(problems)) > 1
    if first is None or several:
        return f"gemm_{hashlib.sha256(' '.join(map(str, problems)).encode()).hexdigest()[:8]}"
    grade = "" if first.accuracy is Grade.IEEE else f"_{first.accuracy}"
    return f"gemm_{first.dtype.code}_{first.trans}_{first.shape}{grade}"


@dataclass(frozen=True, slots=True)
class _File:
    """One file of a bundle."""

    pattern: str
    template: str
    own: Mapping[str, object] = field(default_factory=dict)

    def filename(self, name: str) -> str:
        return self.pattern.replace("@", name)


def _templates(bundle: Bundle, layout: Layout) -> tuple[_File, ...]:
    if layout.header_only:
        return (_File("@.cuh", "emit/bundle.cu.jinja"),)
    files = [_File("@.cu", "emit/bundle.cu.jinja"), _File("@.h", "emit/header.h.jinja")]
    if bundle.units:
        files.append(_File("@_impl.h", "emit/impl.h.jinja"))
        files += [_File(f"@_{unit.label}.cu", "emit/unit.cu.jinja", {"unit": unit}) for unit in bundle.units]
    if layout.main:
        files.append(_File("@_main.cu", "emit/selftest.cu.jinja"))
    if layout.cmake:
        files.append(_File("CMakeLists.txt", "emit/CMakeLists.txt.jinja"))
        files.append(_File("@.pc.in", "emit/pkgconfig.pc.jinja"))
    return tuple(files)


def _values(served: Sequence[Served], bundle: Bundle, layout: Layout, command: str) -> dict[str, Any]:
    """Values that all templates are rendered with, beside the bundle's name."""
    statuses = _STATUSES + (_BATCH_STATUSES if layout.batched else ())
    return {
        "products": bundle.products,
        "texts": bundle.texts,
        "preparations": bundle.preparations,
        "kernels": bundle.kernels,
        "units": bundle.units,
        "uses": bundle.uses,
        "needs": bundle.needs,
        "several_arches": len(bundle.arches) > 1,
        "capability": bundle.capability,
        "dtypes": bundle.dtypes,
        # A batch of this size has CTAs with all of their products, and one CTA with fewer.
        "checked_batch": max(3, *(2 * each.config.cta_products + 1 for each in bundle.kernels)),
        "header_only": layout.header_only,
        "batched": layout.batched,
        "main": layout.main,
        "linked": bool(bundle.units),
        "version": _INTERFACE_VERSION,
        "stored": _STORED,
        "statuses": statuses,
        "codes": {word: code for code, (word, _) in enumerate(statuses)},
        "width": max(len(word) for word, _ in statuses) + 6,
        "includes": _includes(bundle),
        "arches": _arch_files(bundle),
        "cuda": max(_CUDA_SINCE.get(arch.name, "11.8") for arch in bundle.arches),
        "command": command,
        "again": _is_given(served) or all(each.origin != AS_GIVEN for each in served),
        "counter_bytes": COUNTER_BYTES if bundle.uses.sums else 0,
        "sections": _sections(bundle, layout.batched),
        "steps": ", ".join(f"&{step}_step" for step in bundle.steps),
        "normwise": served[0].problem.accuracy is Grade.NORMWISE,
        "normwise_roundings": NORMWISE_ROUNDINGS,
        **{name.lower(): getattr(source, name) for name in _SIZES},
        "digest": "@file digest@",
    }


def _arch_files(bundle: Bundle) -> list[dict[str, Any]]:
    """The architectures, with the target that CMake builds and the files of kernels, one by one and as one pattern. @
    stands for the bundle's name."""
    architectures = []
    for arch in bundle.arches:
        files = [f"@_{unit.label}.cu" for unit in bundle.units if unit.arch == arch] or ["@.cu"]
        pattern = f"@_{arch.name if len(bundle.arches) > 1 else 'kernel'}_*.cu"
        number = arch.name.removeprefix("sm_")
        built = f"{number}-real" if number.endswith("a") else number  # else PTX as well, which serves later devices
        architectures.append({"name": arch.name, "built": built, "files": files, "every": pattern})
    return architectures


def _sections(bundle: Bundle, batched: bool) -> list[str]:
    """The sections of the launcher in order. Each is a file in templates/emit/launcher."""
    steps = ["step", *bundle.steps, "steps"] if bundle.steps else ["no_steps"]
    choice = "nearest" if bundle.uses.several else "one_shape"
    memory, last = "memory" if bundle.uses.memory else "no_memory", ["batches"] if batched else []
    return ["device", *steps, "launch", choice, memory, "functions", *last]


def _includes(bundle: Bundle) -> list[str]:
    memory = ("cstdlib", "thread") if bundle.uses.memory else ()
    return [*sorted(("atomic", "climits", "cmath", "cstddef", "cstdint", *memory)), "cuda_runtime.h"]


def _is_given(served: Sequence[Served]) -> bool:
    """Whether there is one shape with one config that no look-up chose, so that a command can name both."""
    return len({(each.problem, each.config) for each in served}) == 1 and all(s.origin == AS_GIVEN for s in served)


def _command(served: Sequence[Served], name: str, layout: Layout, options: str) -> str:
    """The command that writes the files again."""
    options_of: dict[str, list[str]] = {"shape": [], "dtype": [], "trans": [], "arch": []}
    for each in served:
        problem = each.problem
        values = (problem.shape, problem.dtype.value, problem.trans, each.target.arch.name)
        for option, value in zip(options_of, values):
            options_of[option].append(value)
    if "--suite" in options:  # a suite may set types and transposes; `options` has those that the user set
        options_of = {"arch": options_of["arch"]}
    words = [f"--{option} {value}" for option, values in options_of.items() for value in dict.fromkeys(values)]
    batches = dict.fromkeys(each.problem.batch for each in served)
    words += [f"--batch {batch}" for batch in batches if batch > 1 and "--suite" not in options]
    words += [f"--accuracy {each}" for each in dict.fromkeys(s.problem.accuracy for s in served) if each != Grade.IEEE]
    words += [options] if options else []
    words.append(f"--name {name}")
    switches = ("split", "header_only", "cmake", "batched")
    words += [f"--{switch.replace('_', '-')}" for switch in switches if getattr(layout, switch)]
    # A command without configs looks them up again, with their origins and times.
    if _is_given(served):
        words.append(f'--config "{served[0].config}"')
    return " ".join(("tilewright emit", *words))


def _text(file: _File, name: str, values: Mapping[str, Any]) -> str:
    prefix, filename = name.upper(), file.filename(name)
    mark = _COMMENT.get(filename[filename.rfind(".") :], "//")
    command = values["command"] + (" --main" if "selftest" in file.template else "")
    own = {"name": name, "prefix": prefix, "filename": filename, "mark": mark, "command": command}
    products = [replace(each, name=each.name.replace("@", name)) for each in values["products"]]
    return rendered(file.template, **{**values, **own, **file.own, "products": products})


def _words(text: str) -> set[str]:
    """Every word of a file that would hide a function of the same name, or be hidden by it."""
    return set(re.findall(r"\w+", re.sub(r'//.*|"[^"\n]*"', " ", text)))
