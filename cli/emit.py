"""`tilewright emit`: kernels as files for another project."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from ..codegen.arch import ARCHES, Arch, arch_named
from ..codegen.bundle import Served
from ..codegen.emit import Layout, emit
from ..codegen.errors import check
from ..codegen.families import parse
from ..codegen.problem import Problem
from ..runtime.device.known import KNOWN, typical
from ..runtime.device.protocol import DeviceInfo
from ..runtime.store.store import Store
from ..tuner.bench.suites import suite_shapes
from ..tuner.search.nearest import nearest
from . import options

_NO_GPU = "there is no GPU here to emit for: name one by --arch ({}) or --device-key"


@click.command("emit")
@click.option("--shape", "shapes", multiple=True, help="MxNxK, or one number for a cube; may be repeated.")
@click.option("--suite", help="The shapes of a suite: its file, or the name of one that ships.")
@click.option("--dtype", "dtypes", multiple=True, default=["float"], help="float or double; may be repeated.")
@click.option("--trans", multiple=True, default=["nn"], type=options.TRANS, help="Transposes; may be repeated.")
@click.option("--arch", "arches", multiple=True, help=f"For these: {', '.join(a for a in ARCHES if a != 'host')}.")
@click.option("--device-key", "keys", multiple=True, help="For these devices, as `tilewright show` has them.")
@options.device
@click.option("--config", "config_text", help="Emit this variant, family:tile,name=value, instead of the tuned one.")
@click.option("--name", default="gemm", show_default=True, help="Name of the functions and of the files.")
@click.option("--main", is_flag=True, help="Add a program that tests and times every kernel.")
@click.option("--split", is_flag=True, help="One file for each kernel.")
@click.option("--header-only", is_flag=True, help="One header with everything in it, for one kernel.")
@click.option("--cmake", is_flag=True, help="Add CMakeLists.txt and a pkg-config file.")
@click.option("-o", "--output", type=options.FOLDER, default=Path(), help="Folder.")
@click.option("--overwrite", is_flag=True, help="Overwrite files that were edited by hand.")
@options.store
@options.debug
def emit_command(
    shapes: tuple[str, ...],
    suite: str | None,
    dtypes: tuple[str, ...],
    trans: tuple[str, ...],
    arches: tuple[str, ...],
    keys: tuple[str, ...],
    device: str,
    config_text: str | None,
    name: str,
    main: bool,
    split: bool,
    header_only: bool,
    cmake: bool,
    output: Path,
    overwrite: bool,
    store: Path | None,
) -> None:
    """Write tuned kernels as C++ files for another project.

    \b
    tilewright emit --shape 1024x768x512 -o out
    tilewright emit --name sgemm --suite public --arch sm_90a --cmake --main -o out
    tilewright emit --config tiled:32,edge=pad --arch sm_80 --name my_gemm -o out
    """
    if suite is not None:
        shapes += suite_shapes(suite)
    if not shapes and config_text is None:
        raise click.UsageError("emit needs --shape, --suite or --config")
    kept = Store(store)
    config = parse(config_text) if config_text is not None else None
    # The text serves every shape; where none is named, the smallest that every edge allows.
    shapes = shapes or ("x".join(map(str, config.multiples)) if config else "1",)
    problems = [Problem.parse(shape, dtype, t) for dtype in dtypes for t in trans for shape in shapes]
    problems = list(dict.fromkeys(problems))
    check(config is None or len(problems) == 1, "--config is for one --shape, --dtype and --trans")
    served: list[Served] = []
    targets, notes = _targets(arches, keys, device, kept)
    for info in targets:
        for problem in problems:
            if config is not None:
                served.append(Served(problem, config, info.arch, info.sm_count))
            else:
                served.append(kept.lookup(info, problem, nearest).served(problem, info))
    layout = Layout(main=main, split=split, header_only=header_only, cmake=cmake)
    for path in emit(served, name, layout, _again(suite, keys)).write(output, overwrite=overwrite):
        click.echo(f"wrote {path}")
    for note in notes:
        click.echo(f"note: {note}", err=True)
    for each in served:
        click.echo(f"{each.problem} for {each.arch.name}: {each.config} ({each.told})")


def _targets(
    arches: Sequence[str], keys: Sequence[str], device: str, store: Store
) -> tuple[list[DeviceInfo], list[str]]:
    """The devices to emit for, one an architecture, and what to tell of the choice. Raises ConfigError, DeviceError."""
    if not arches and not keys:
        info = options.chosen(device)
        check(not info.arch.is_host, _NO_GPU.format(", ".join(name for name in ARCHES if name != "host")))
        return [info], []
    recorded: dict[str, int] = {}
    for record in store.records():
        recorded[record.device] = recorded.get(record.device, 0) + 1
    rows = [arch_named(arch) for arch in arches]
    check(all(not row.is_host for row in rows), "--arch names a GPU's architecture, got 'host'")
    found = [_keyed(key, tuple(recorded), [row.name for row in rows]) for key in keys]
    notes = []
    for row in dict.fromkeys(rows):
        if all(info.arch != row for info in found):
            info, note = _of_arch(row, recorded)
            found.append(info)
            notes.append(note)
    check(len({info.arch for info in found}) == len(found), "--device-key names one device of an architecture")
    return found, notes


def _keyed(key: str, recorded: Sequence[str], arches: Sequence[str]) -> DeviceInfo:
    if key in KNOWN:
        return KNOWN[key]
    known = ", ".join(sorted({*recorded, *KNOWN} - {key for key in recorded if key.startswith("host")}))
    check(key in recorded, f"--device-key must be one of {known}, got {key!r}")
    check(len(arches) == 1, f"what {key} is like is not known here: name its architecture by --arch")
    return replace(typical(arch_named(arches[0])), name=key)


def _of_arch(arch: Arch, recorded: dict[str, int]) -> tuple[DeviceInfo, str]:
    """The device of an architecture that has most records, else the one that stands for it, and which that is."""
    having = [info for info in KNOWN.values() if info.arch == arch and info.key in recorded]
    if not having:
        info = typical(arch)
        return info, f"nothing was tuned for {arch.name}: a model chooses as for {info.key}"
    having.sort(key=lambda info: -recorded[info.key])
    others = ", ".join(info.key for info in having[1:])
    more = f" (--device-key names another: {others})" if others else ""
    return having[0], f"{arch.name}: records of {having[0].key}{more}"


def _again(suite: str | None, keys: Sequence[str]) -> str:
    """More of the command that writes the files again than they tell themselves."""
    return " ".join([*([f"--suite {suite}"] if suite else []), *(f"--device-key {key}" for key in keys)])
