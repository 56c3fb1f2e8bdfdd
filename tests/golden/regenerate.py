"""Write the golden files and the generated pages of docs/reference again: `python tests/golden/regenerate.py`.

Read the difference before committing.
"""

import sys
from pathlib import Path

from tilewright.cli.commands import commands
from tilewright.codegen.bundle import Served
from tilewright.codegen.emit import Layout, emit
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Grade, Problem
from tilewright.codegen.render import render
from tilewright.runtime.device.known import target_named

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests/golden", "examples/cpp/my_gemm")
RAGGED, ODD = "1020x764x516", "1021x767x509"
"""Shapes that tiles do not divide, with rows that vectors divide and with odd rows."""
KERNELS = {
    "naive": ("naive:8x32", ODD),
    "naive_pad": ("naive:8x32,edge=pad", ODD),
    "simt_packed": ("simt:64x64x16,pack_a,pack_b", ODD),
    "simt_tma": ("simt:32x32x64,thread=4x4,load=tma,k_inner_a,slices=4,split_k=3", RAGGED),
    "simt_slice_barriers": ("simt:64x64x32,slices=4,slice_barriers,split_k=2", ODD),
    "simt_stream_k": ("simt:64x64x16,thread=4x4,fragments=single,interleave=2,stream_k=2", ODD),
    "skinny": ("skinny:4x4x4,load=cp_async,stages=4,l2_prefetch", ODD),
    "dmma": ("dmma:64x64x16,fragments=single,split_k=3,reduce=cluster", ODD),
    "tf32x3": ("tf32x3:64x64x32", RAGGED),
    "mma_bf16x6": ("mma:64x64x32,warp=32x32,scheme=bf16x6,promote=32,evict_first,raster=4", RAGGED),
    "wgmma_fp16x3": ("wgmma:64x64x64,stages=2", ODD),
}
"""Configs and shapes of the golden kernels, one or more of each family. The file of a kernel also holds the kernel that
prepares its operands. The machine code of many more kernels is in machine_code.tsv."""
ALL_MECHANISMS = (
    ("naive:8x32,edge=pad", "65"),
    ("simt:64x64x8,thread=4x4,load=registers,stages=2,fragments=single", "128"),
    ("simt:64x64x8,thread=4x4,load=registers,stages=2,fragments=single,slices=2,split_k=4,reduce=cluster", "257"),
    ("simt:64x64x8,thread=4x4,pack_a,pack_b,split_k=4", "513"),
    (KERNELS["simt_tma"][0], "1028"),
    (KERNELS["simt_stream_k"][0], "2049"),
)
"""Configs and shapes of a bundle whose functions launch kernels of each kind."""


def example_shapes() -> list[Served]:
    """Kernels of the example in C++: of two kinds, and simple enough to be read."""
    arch = target_named("sm_90a")
    return [
        Served(Problem.parse("300x200x100"), parse("tiled:16"), arch),
        Served(Problem.parse("1024x16x512"), parse("skinny:4x4x4"), arch),
    ]


def help_screens() -> str:
    """Help of every command, as a terminal of 80 columns shows it."""
    columns = 80 - 2  # click leaves two free
    parent = commands.make_context("tilewright", [], resilient_parsing=True, terminal_width=columns)
    screens = [commands.get_help(parent)]
    for name, command in sorted(commands.commands.items()):
        screens.append(command.get_help(command.make_context(name, [], parent, resilient_parsing=True)))
    return "\n\n".join(screens) + "\n"


def golden_files() -> dict[str, str]:
    """Texts that the golden files should have, by path from the root."""
    arch = target_named("sm_90a")
    golden, example = FOLDERS
    files = {}
    for name, (text, shape) in KERNELS.items():
        config = parse(text)
        dtype = "double" if config.tensor_cores and config.accuracy is Grade.IEEE else "float"
        problem = Problem.parse(shape, dtype, accuracy=config.accuracy)
        source = render(problem, config, arch)
        texts = [source.code, *([source.preparation.code] if source.preparation else [])]
        files[f"{golden}/{name}_{problem.dtype.code}_nn.cu"] = "\n".join(texts)
    problem = Problem.parse(ODD, "double", "tt")
    files[f"{golden}/tiled_f64_tt.cu"] = render(problem, parse("tiled:16"), arch).code
    # These are the functions that launch and test kernels: for a simple kernel, and for kernels of all kinds.
    tiled = Served(Problem.parse(ODD), parse("tiled:16"), arch)
    for name, text in emit(tiled, "gemm", Layout(main=True, cmake=True)).files:
        files[f"{golden}/{name}"] = text
    files[f"{golden}/help.txt"] = help_screens()
    rows = [Served(Problem.parse(shape), parse(text), arch) for text, shape in ALL_MECHANISMS]
    files[f"{golden}/bundle.cu"] = dict(emit(rows, "bundle", Layout(split=True)).files)["bundle.cu"]
    for name, text in emit(example_shapes(), "my_gemm", Layout(cmake=True)).files:
        files[f"{example}/{name}"] = text
    return files


def present() -> set[str]:
    """Paths of the golden files that exist, from the root."""
    folders = (ROOT / folder for folder in FOLDERS)
    paths = (path for folder in folders for path in folder.iterdir() if path.suffix in (".cu", ".h", ".txt", ".in"))
    return {path.relative_to(ROOT).as_posix() for path in paths}


def main() -> None:
    """Write the files that changed and remove those that are no longer golden."""
    files = golden_files()
    for name in sorted(present() - set(files)):
        print("remove", name)
        (ROOT / name).unlink()
    for name, text in files.items():
        path = ROOT / name
        if not path.exists() or path.read_bytes() != text.encode():
            print("write ", name)
            path.write_bytes(text.encode())
    sys.path.append(str(ROOT / "tests" / "support"))
    write_pages()
    write_look_ups()


def write_pages() -> None:
    """Write the pages of the reference that changed."""
    from pages import reference_pages

    for name, text in reference_pages().items():
        path = ROOT / name
        if not path.exists() or path.read_text() != text:
            print("write ", name)
            path.write_text(text)


def write_look_ups() -> None:
    """Write the golden look-ups where more than noise changed, with a summary."""
    from look_ups import GOLDEN, LookUps, changes, look_ups

    path, current = ROOT / GOLDEN, look_ups()
    summary = changes(LookUps.parse(path.read_text()), current) if path.exists() else "there were none"
    if summary:
        print("write ", GOLDEN, summary, sep="\n")
        path.write_text(str(current))


if __name__ == "__main__":
    main()
