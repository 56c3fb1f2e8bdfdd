"""`tilewright emit`: a kernel as files for another project."""

from pathlib import Path

import click

from ..codegen.arch import ARCHES, arch_named
from ..codegen.emit import emit
from ..codegen.families import parse
from ..codegen.problem import Problem
from ..runtime.store.store import Store
from ..tuner.search.nearest import nearest
from . import options


@click.command("emit")
@click.option("--shape", help="MxNxK, or one number for a cube; not needed where --config says what to emit.")
@options.dtype
@options.trans
@options.device
@click.option("--arch", help=f"Emit for this generation instead: {', '.join(a for a in ARCHES if a != 'host')}.")
@click.option("--config", "config_text", help="Emit this variant, family:tile,name=value, instead of the tuned one.")
@click.option("--name", default="gemm", show_default=True, help="Name of the function and of the files.")
@click.option("--main", "with_main", is_flag=True, help="Add a self-test program.")
@click.option("-o", "--output", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Folder.")
@click.option("--overwrite", is_flag=True, help="Overwrite files that were edited by hand.")
@options.store
@options.debug
def emit_command(
    shape: str | None,
    dtype: str,
    trans: str,
    device: str,
    arch: str | None,
    config_text: str | None,
    name: str,
    with_main: bool,
    output: Path,
    overwrite: bool,
    store: Path | None,
) -> None:
    """Write the tuned kernel as a .cu and .h pair for another project.

    \b
    tilewright emit --shape 1024x768x512 -o out
    tilewright emit --config tiled:32,edge=pad --arch sm_80 --name my_gemm --main -o out
    """
    if shape is None and config_text is None:
        raise click.UsageError("emit needs --shape, --config or both")
    info = options.chosen(device)
    if config_text:
        config, origin = parse(config_text), "as given"
        # The text serves many shapes; where none is named, the smallest that every edge allows.
        shape = shape or "x".join(map(str, config.multiples))
    problem = Problem.parse(shape or "1", dtype, trans)
    if not config_text:
        found = Store(store).lookup(info, problem, nearest)
        config, origin = found.config, found.origin
    row = arch_named(arch) if arch else info.arch
    for path in emit(problem, config, row, name=name, main=with_main).write(output, overwrite=overwrite):
        click.echo(f"wrote {path}")
    click.echo(f"config {config} ({origin}, {info.name})")
