"""From a kernel to the files that another project checks in."""

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from .arch import Arch
from .config import Config
from .environment import environment, tidy
from .errors import check, check_type
from .problem import Problem
from .render import render
from .reserved import PREFIXES, RESERVED
from .source import MOST_LIMITED, PACKED_BYTES, SMEM_STEP, KernelSource, identifier

_PLACEHOLDER = "@file digest@"
_MARK = re.compile(r"^// Written by tilewright, file digest ([0-9a-f]{16})\.", re.MULTILINE)
_FILENAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\.(?:cu|h)")
_MARK_WITHIN = 1000
"""Letters from the start of a file in which its mark is looked for."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """The files that serve one kernel to C and C++. Raises ConfigError for a filename with a folder in it."""

    files: tuple[tuple[str, str], ...]
    """Filenames and texts: the kernel and its launcher, the header, and the self-test if it was asked for."""

    def __post_init__(self) -> None:
        for filename, _ in self.files:
            check(bool(_FILENAME.fullmatch(filename)), f"not the name of an emitted file: {filename!r}")

    def write(self, folder: Path, overwrite: bool = False) -> tuple[Path, ...]:
        """Write the files into `folder`, which is made if need be, and return their paths.

        Raises ConfigError, with nothing written, if a file there is not tilewright's or was edited since,
        unless `overwrite`; and OSError if the folder cannot be written to.
        """
        paths = tuple(folder / filename for filename, _ in self.files)
        for path in paths:
            check(not path.is_dir(), f"{path} is a folder")
            if not overwrite and (path.exists() or path.is_symlink()):
                check(_is_untouched(path), f"{path} is not tilewright's or was edited since: not overwritten")
        folder.mkdir(parents=True, exist_ok=True)
        for path, (_, text) in zip(paths, self.files, strict=True):
            _replace(path, text)
        return paths


def emit(problem: Problem, config: Config, arch: Arch, name: str = "gemm", main: bool = False) -> Emitted:
    """The kernel of a config as `<name>.cu` and `<name>.h`, and its self-test `<name>_main.cu` if `main`.

    The function `name` has C linkage, checks its arguments and serves every shape that the edge allows; the
    header says how it is called. Raises ConfigError for a name that C, C++, the C library or the files
    themselves use, and for a config that cannot serve the problem, ArgumentTypeError for other types.
    """
    check_type("problem", problem, Problem, "a Problem")
    check_type("config", config, Config, "a Config, such as load(...).config")
    check_type("arch", arch, Arch, "an Arch, such as load(...).device.arch")
    check_type("name", name, str, "text")
    source = render(problem, config, arch)
    identifier(name)
    taken = name in RESERVED or name.startswith(PREFIXES)
    check(not taken, f"name must not be one of C, the C library or CUDA, got {name!r}")
    check(name not in (source.name, source.frame, source.pack), f"name must differ from the kernel's, got {name!r}")
    values = _values(problem, config, arch, source)
    check(name not in _words(values), f"name must not be a word within the emitted files, got {name!r}")
    templates = _TEMPLATES if main else _TEMPLATES[:2]
    return Emitted(tuple((f"{name}{end}", _sealed(template, name, values)) for end, template in templates))


_TEMPLATES = (
    (".cu", "emit/launcher.cu.jinja"),
    (".h", "emit/header.h.jinja"),
    ("_main.cu", "emit/selftest.cu.jinja"),
)


def _values(problem: Problem, config: Config, arch: Arch, source: KernelSource) -> dict[str, object]:
    """What the templates are rendered from, the name left out."""
    multiples = config.multiples
    sizes = (problem.m, problem.n, problem.k)
    aligned = config.alignment == (1, 1, 1)
    scalar = None if aligned else render(problem, config.scalar(), arch)
    return {
        "problem": problem,
        "config": config,
        "arch": arch,
        "source": _internal(source),
        "scalar": scalar and _internal(scalar, head=False),
        "launch": config.launch_config(problem, 1),
        "scalar_launch": config.scalar().launch_config(problem, 1),
        "boxes": config.boxes(problem),
        "most_limited": MOST_LIMITED,
        "smem_step": SMEM_STEP,
        "packed_elements": PACKED_BYTES // problem.dtype.size_bytes,
        "dtype": problem.dtype,
        "trans": problem.trans,
        # The self-test wants something to compute even where the problem is empty.
        "shape": tuple(size or multiple for size, multiple in zip(sizes, multiples, strict=True)),
    }


def _internal(source: KernelSource, head: bool = True) -> KernelSource:
    """The kernel known to its file alone, without the banner and, unless `head`, without the figure below it."""
    text = source.code.partition("\n\n")[2]
    text = text if head else text[text.index("namespace {") :]
    return replace(source, code=text.replace('extern "C" __global__', "static __global__"))


def _rendered(template: str, name: str, values: Mapping[str, object]) -> str:
    own = {"name": name, "main": template == _TEMPLATES[2][1], "digest": _PLACEHOLDER}
    return tidy(environment().get_template(template).render(values, **own))


def _words(values: Mapping[str, object]) -> set[str]:
    """Every word of the files that would hide the function, or that it would hide."""
    text = "".join(_rendered(template, "the_name", values) for _, template in _TEMPLATES)
    return set(re.findall(r"\w+", re.sub(r'//.*|"[^"\n]*"', " ", text)))


def _sealed(template: str, name: str, values: Mapping[str, object]) -> str:
    """A file's text with its digest filled in."""
    text = _rendered(template, name, values)
    return text.replace(_PLACEHOLDER, _digest(text), 1)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_untouched(path: Path) -> bool:
    """Whether tilewright wrote the file at `path` and nobody changed it since; a link never is."""
    if path.is_symlink():
        return False
    try:
        text = path.read_text(encoding="utf-8")  # reads the CRLF that a checkout may have made as LF
    except UnicodeDecodeError:
        return False
    mark = _MARK.search(text, 0, _MARK_WITHIN)
    if mark is None:
        return False
    return mark[1] == _digest(text[: mark.start(1)] + _PLACEHOLDER + text[mark.end(1) :])


def _replace(path: Path, text: str) -> None:
    """Write beside `path` and rename: a link there is replaced, never followed."""
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(aside, 0o644)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
