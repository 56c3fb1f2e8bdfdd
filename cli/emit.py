"""`tilewright emit`: kernels as files for another project."""

import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from ..codegen.bundle import Served
from ..codegen.config import Config
from ..codegen.emit import Layout, emit
from ..codegen.errors import check
from ..codegen.plain import plain
from ..codegen.problem import Problem
from ..runtime.store.store import Store
from ..tuner.bench.suites import suite_problems
from ..tuner.choose.shortlist import look_up
from .commands import GPUS
from .tables import counted
from .targets import targets

_PLAIN_SHAPE = "1024x768x512"
"""Shape of a plain program where none is named."""
_NO_GPU = f"there is no GPU here to emit for; name one by --arch ({GPUS}) or --device-key"


def emit_command(
    shapes: tuple[str, ...],
    suite: str | None,
    dtypes: tuple[str, ...],
    trans: tuple[str, ...],
    accuracy: str,
    arches: tuple[str, ...],
    keys: tuple[str, ...],
    device: str,
    configs: tuple[Config, ...],
    name: str | None,
    is_plain: bool,
    main: bool,
    split: bool,
    header_only: bool,
    cmake: bool,
    output: Path,
    overwrite: bool,
    store: Path | None,
) -> None:
    """Write the files and say which."""
    if is_plain:
        others = {"suite": suite, "arch": arches, "device-key": keys, "main": main, "split": split}
        others |= {"header-only": header_only, "cmake": cmake}
        for other in (each for each, value in others.items() if value):
            raise click.UsageError(f"--plain excludes --{other}; leave out one")
        _write_plain(shapes, dtypes, trans, accuracy, configs, name, output, overwrite)
        return
    if not shapes and suite is None and not configs:
        raise click.UsageError("emit needs a shape or a variant; name it by --shape, --suite or --config")
    kept = Store(store)
    # The text serves every shape; where none is named, the smallest that every edge allows.
    if configs and not shapes and suite is None:
        shapes = tuple("x".join(map(str, config.multiples)) for config in configs)
    problems: dict[Problem, None] = {}
    for dtype, turned in itertools.product(dtypes, trans):
        problems |= dict.fromkeys(Problem.parse(shape, dtype, turned, accuracy) for shape in shapes)
        problems |= dict.fromkeys(suite_problems(suite, dtype, turned, accuracy) if suite is not None else ())
    check(
        not configs or len(problems) == len(configs),
        f"--config names {counted(len(configs), 'variant')} for {counted(len(problems), 'product')}; name a different "
        "--shape for each, in order, and one --dtype and --trans",
    )
    served: list[Served] = []
    found, notes = targets(arches, keys, device, kept)
    check(not any(info.arch.is_host for info in found), _NO_GPU)
    check(
        len({info.arch for info in found}) == len(found),
        "--device-key must name devices of different architectures; leave out all but one of each",
    )
    for info in found:
        if configs:
            served += [Served(problem, config, info) for problem, config in zip(problems, configs, strict=True)]
        else:
            served += [kept.lookup(info, problem, look_up).served(problem, info) for problem in problems]
    layout = Layout(main=main, split=split, header_only=header_only, cmake=cmake)
    for path in emit(served, name, layout, _again(suite, shapes, dtypes, trans, keys, store)).write(
        output, overwrite=overwrite
    ):
        click.echo(f"wrote {path}")
    for note in () if configs else notes:  # they say whose records choose
        click.echo(f"note: {note}", err=True)
    for each in served:
        click.echo(f"{each.problem} for {each.target.arch.name}: {each.config} ({each.told})")


def _write_plain(
    shapes: Sequence[str],
    dtypes: Sequence[str],
    trans: Sequence[str],
    accuracy: str,
    configs: Sequence[Config],
    name: str | None,
    output: Path,
    overwrite: bool,
) -> None:
    """Write one readable file."""
    if len(configs) != 1:
        raise click.UsageError("--plain needs one variant; name it by --config")
    count = len(shapes or (_PLAIN_SHAPE,)) * len(dtypes) * len(trans)
    check(count == 1, f"--plain is for one product, got {count}; name one --shape, --dtype and --trans")
    problem = Problem.parse(shapes[0] if shapes else _PLAIN_SHAPE, dtypes[0], trans[0], accuracy)
    for path in plain(problem, configs[0], "matmul" if name is None else name).write(output, overwrite=overwrite):
        click.echo(f"wrote {path}")


def _again(
    suite: str | None,
    shapes: Sequence[str],
    dtypes: Sequence[str],
    trans: Sequence[str],
    keys: Sequence[str],
    store: Path | None,
) -> str:
    """More of the command that writes the files again than they tell themselves."""
    given: dict[str, Sequence[str]] = {"--device-key": keys, "--store": [store.as_posix()] if store else []}
    if suite is not None:
        given = {"--suite": [suite], "--shape": shapes, "--dtype": dtypes, "--trans": trans, **given}
    text = " ".join(f"{name} {shlex.quote(value)}" for name, values in given.items() for value in values)
    return "".join(letter if letter.isprintable() else "?" for letter in text)  # it goes into a comment of C
