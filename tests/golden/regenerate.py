"""Write the golden files again: `python tests/golden/regenerate.py`. Read the difference before committing."""

import sys
from pathlib import Path

from tilewright.cli.commands import commands
from tilewright.codegen.arch import arch_named
from tilewright.codegen.bundle import Served
from tilewright.codegen.emit import Layout, emit
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Grade, Problem
from tilewright.codegen.render import render

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests/golden", "examples/cpp/sgemm")
PLAIN = "simt:64x64x8,thread=4x4,load=registers,stages=2,fragments=single"
WIDE = "simt:64x64x32,thread=8x8"
KERNELS = {
    "naive_bounds": "naive:8x32",
    "naive_pad": "naive:8x32,edge=pad",
    "tiled_bounds": "tiled:16",
    "simt_bounds": PLAIN,
    "simt_exact": f"{PLAIN},edge=exact",
    "simt_cp_async": "simt:64x64x16",
    "simt_cluster": f"{PLAIN},slices=2,split_k=4,reduce=cluster,vec_c=4",
    "simt_slice_barriers": f"{WIDE},slices=4,slice_barriers,split_k=2",
    "simt_packed": "simt:64x64x8,thread=4x4,pack_a,pack_b,vec=4x4x1,split_k=4",
    "simt_cooperative": "simt:64x64x32,thread=4x4,load=registers,stages=2,slices=2,split_k=16,vec_c=4",
    "simt_shared_epilogue": f"{PLAIN},shared",
    "simt_non_power_of_two": "simt:40x80x16,thread=10x5,lanes_m=4,slices=2",
    "simt_interleave": "simt:64x64x16,interleave=4",
    "simt_tma": "simt:32x32x64,thread=4x4,load=tma,vec=4x4x1,k_inner_a,slices=4,split_k=3",
    "simt_stream_k": "simt:64x64x16,thread=4x4,fragments=single,vec_c=4,stream_k=2",
    "skinny_bounds": "skinny:4x4x4",
    "skinny_l2_prefetch": "skinny:4x4x4,load=cp_async,stages=4,l2_prefetch",
    "mma_fp16x3": "mma:64x64x32,warp=32x32",
    "mma_bf16x6": "mma:64x64x32,warp=32x32,scheme=bf16x6,promote=32,vec_c=2,evict_first,raster=4",
    "wgmma_fp16x3": "wgmma:64x64x64,stages=2",
    "wgmma_bf16x6": "wgmma:128x96x64,scheme=bf16x6,stages=2,promote=32,vec_c=2,raster=4",
    "tf32x3": "tf32x3:64x64x32,vec=4x4x2",
    "dmma_bounds": "dmma:64x64x16,fragments=single",
    "dmma_cluster": "dmma:64x64x16,fragments=single,split_k=3,reduce=cluster",
    "dmma_evict_first": "dmma:64x64x16,fragments=single,vec_c=2,shared,evict_first",
    "dmma_fitted": "dmma:64x72x16,warp=16x72,fragments=single",
    "dmma_interleave": "dmma:64x64x16,interleave=2",
    "dmma_persistent": "dmma:64x64x16,shared,persistent=4",
    "dmma_stream_k": "dmma:64x64x32,interleave=2,raster=4,stream_k=1",
}
"""A kernel for each mechanism, on square tiles as plain as can be otherwise."""


ALL_MECHANISMS = ("naive_pad", "simt_exact", "simt_cluster", "simt_packed", "simt_tma", "simt_stream_k")


def example_shapes() -> list[Served]:
    """What the example in C++ multiplies: kernels of two kinds, plain enough to be read."""
    arch = arch_named("sm_90a")
    return [
        Served(Problem.parse("300x200x100"), parse("tiled:16"), arch),
        Served(Problem.parse("1024x16x512"), parse("skinny:4x4x4"), arch),
    ]


def help_screens() -> str:
    """The help of every command, as a terminal of 80 columns shows it."""
    columns = 80 - 2  # click leaves two free
    parent = commands.make_context("tilewright", [], resilient_parsing=True, terminal_width=columns)
    screens = [commands.get_help(parent)]
    for name, command in sorted(commands.commands.items()):
        screens.append(command.get_help(command.make_context(name, [], parent, resilient_parsing=True)))
    return "\n\n".join(screens) + "\n"


def golden_files() -> dict[str, str]:
    """Every golden file, by its path from the root, and what it should hold."""
    arch = arch_named("sm_90a")
    golden, example = FOLDERS
    files = {}
    for name, text in KERNELS.items():
        config = parse(text)
        dtype = "double" if config.tensor_cores and config.accuracy is Grade.IEEE else "float"
        problem = Problem.parse("1024x768x512", dtype, accuracy=config.accuracy)
        files[f"{golden}/{name}_{problem.dtype.code}_nn.cu"] = render(problem, config, arch).code
    problem = Problem.parse("1024x768x512", "double", "tt")
    files[f"{golden}/tiled_bounds_f64_tt.cu"] = render(problem, parse("tiled:16"), arch).code
    # What launches and tests kernels, at its shortest and with what a kernel of each kind needs.
    tiled = Served(Problem.parse("1024x768x512"), parse("tiled:16"), arch)
    for name, text in emit(tiled, layout=Layout(main=True, cmake=True)).files:
        files[f"{golden}/{name}"] = text
    files[f"{golden}/help.txt"] = help_screens()
    rows = [Served(Problem.parse(str(64 * 2**i)), parse(KERNELS[name]), arch) for i, name in enumerate(ALL_MECHANISMS)]
    files[f"{golden}/bundle.cu"] = dict(emit(rows, "bundle", Layout(split=True)).files)["bundle.cu"]
    for name, text in emit(example_shapes(), "sgemm", Layout(cmake=True)).files:
        files[f"{example}/{name}"] = text
    return files


def present() -> set[str]:
    """The golden files that lie there now, by their paths from the root."""
    folders = (ROOT / folder for folder in FOLDERS)
    paths = (path for folder in folders for path in folder.iterdir() if path.suffix in (".cu", ".h", ".txt", ".in"))
    return {path.relative_to(ROOT).as_posix() for path in paths}


def main() -> None:
    """Write what changed and remove what is golden no more."""
    files = golden_files()
    for name in sorted(present() - set(files)):
        print("remove", name)
        (ROOT / name).unlink()
    for name, text in files.items():
        path = ROOT / name
        if not path.exists() or path.read_bytes() != text.encode():
            print("write ", name)
            path.write_bytes(text.encode())
    write_look_ups()


def write_look_ups() -> None:
    """Write the golden look-ups where more than noise changed, with a summary."""
    sys.path.append(str(ROOT / "tests" / "support"))
    from look_ups import GOLDEN, LookUps, changes, look_ups

    path, current = ROOT / GOLDEN, look_ups()
    summary = changes(LookUps.parse(path.read_text()), current) if path.exists() else "there were none"
    if summary:
        print("write ", GOLDEN, summary, sep="\n")
        path.write_text(str(current))


if __name__ == "__main__":
    main()
