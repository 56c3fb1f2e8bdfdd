"""`tilewright emit`: kernels as files for another project."""

import itertools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from ..codegen.bundle import Served
from ..codegen.config import Config
from ..codegen.emit import Layout, emit
from ..codegen.emitted import Emitted
from ..codegen.errors import ConfigError, check
from ..codegen.plain import plain
from ..codegen.problem import Problem
from ..runtime.store.store import Store
from ..tuner.bench.suites import suite_problems
from ..tuner.choose.shortlist import look_up
from . import options
from .commands import GPUS
from .tables import counted

_PLAIN_SHAPE = "1024x768x512"
"""Default shape of a plain program."""
_NO_GPU = f"there is no GPU here to emit for; name one by --arch ({GPUS}) or --device-key"


def emit_command(
    shapes: tuple[str, ...],
    suite: str | None,
    dtypes: tuple[str, ...],
    trans: tuple[str, ...],
    accuracy: str,
    batch: int,
    arches: tuple[str, ...],
    keys: tuple[str, ...],
    device: str,
    configs: tuple[Config, ...],
    name: str | None,
    is_plain: bool,
    output: Path,
    overwrite: bool,
    store: Path | None,
    **layout: bool,
) -> None:
    """Write the files and list them; `layout` has the options that are fields of Layout."""
    if is_plain:
        others = {"suite": suite, "arch": arches, "device-key": keys, "batch": batch > 1, **layout}
        for other in (each.replace("_", "-") for each, value in others.items() if value):
            raise ConfigError(f"--plain excludes --{other}; leave out one")
        check(len(configs) == 1, "--plain needs one variant; name it by --config")
        problem = _only_problem(shapes or (_PLAIN_SHAPE,), dtypes, trans, accuracy)
        _write(plain(problem, configs[0], "matmul" if name is None else name), output, overwrite)
        return
    is_named = bool(shapes or configs) or suite is not None
    check(is_named, "emit needs a shape or a variant; name it by --shape, --suite or --config")
    shelf = Store(store)
    # A variant's text serves every shape. If none is named, it is emitted for the smallest that every edge allows.
    if configs and not shapes and suite is None:
        for config in configs:
            check(not config.fixed_sizes, f"{config} is for one shape: name it by --shape")
        shapes = tuple("x".join(map(str, config.multiples)) for config in configs)
    problems: dict[Problem, None] = {}
    for dtype, each_trans in itertools.product(dtypes, trans):
        kind = dtype, each_trans, accuracy
        problems |= dict.fromkeys(Problem.parse(shape, *kind, batch=batch) for shape in shapes)
        problems |= dict.fromkeys(suite_problems(suite, *kind, batch) if suite is not None else ())
    layout["batched"] = layout["batched"] or any(problem.batch > 1 for problem in problems)
    check(
        not configs or len(problems) == len(configs),
        f"--config names {counted(len(configs), 'variant')} for {counted(len(problems), 'product')}; name a different "
        "--shape for each, in order, and one --dtype and --trans",
    )
    served: list[Served] = []
    infos, notes = options.targets(arches, keys, device, shelf)
    check(not any(info.arch.is_host for info in infos), _NO_GPU)
    check(
        len({info.arch for info in infos}) == len(infos),
        "--device-key must name devices of different architectures; leave out all but one of each",
    )
    for info in infos:
        if configs:
            served += [Served(problem, config, info) for problem, config in zip(problems, configs, strict=True)]
        else:
            served += [shelf.served(info, problem, look_up, layout["batched"]) for problem in problems]
    # The command that writes the files again needs these options beside those that emit() knows.
    options_again: dict[str, Sequence[str]] = {"--device-key": keys, "--store": [store.as_posix()] if store else []}
    if suite is not None:
        batches = [str(batch)] if batch > 1 else []
        products = {"--suite": [suite], "--shape": shapes, "--dtype": dtypes, "--trans": trans, "--batch": batches}
        options_again = {**products, **options_again}
    _write(emit(served, name, Layout(**layout), _text_of(options_again)), output, overwrite)
    for note in () if configs else notes:  # notes are about the records that choose
        click.echo(f"note: {note}", err=True)
    for each in served:
        click.echo(f"{each.problem} for {each.target.arch.name}: {each.config} ({each.provenance})")


def _write(bundle: Emitted, output: Path, overwrite: bool) -> None:
    for path in bundle.write(output, overwrite=overwrite):
        click.echo(f"wrote {path}")


def _only_problem(shapes: Sequence[str], dtypes: Sequence[str], trans: Sequence[str], accuracy: str) -> Problem:
    """The problem of a plain program. Raises ConfigError where the options name several."""
    count = len(shapes) * len(dtypes) * len(trans)
    check(count == 1, f"--plain is for one product, got {count}; name one --shape, --dtype and --trans")
    return Problem.parse(shapes[0], dtypes[0], trans[0], accuracy)


def _text_of(options: Mapping[str, Sequence[str]]) -> str:
    """Options of a command with their values, as a comment of C may have them."""
    text = " ".join(f"{name} {shlex.quote(value)}" for name, values in options.items() for value in values)
    return "".join(letter if letter.isprintable() else "?" for letter in text)
