"""Write the golden files again: `python tests/golden/regenerate.py`. Read the difference before committing."""

from pathlib import Path

from tilewright.codegen.arch import arch_named
from tilewright.codegen.config import Config
from tilewright.codegen.emit import emit
from tilewright.codegen.families import FAMILIES, complete, rejections
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests/golden", "examples/cpp")
VARIANTS = (
    ("exact", "float", "nn"),
    ("bounds", "float", "nn"),
    ("pad", "float", "nn"),
    ("bounds", "double", "tt"),
)
SPECIAL = (
    ("cluster", "simt:slices=2,split_k=4,cluster=1,vec_c=4", "float"),
    ("cluster", "dmma:split_k=3,cluster=1", "double"),
    (
        "apart",
        "simt:block_k=32,thread_m=8,thread_n=8,cp_async=1,stages=3,prefetch=1,slices=4,apart=1,split_k=2,cluster=1",
        "float",
    ),
    ("packed", "simt:pack_a=1,pack_b=1,vec_a=4,vec_b=4,cp_async=1,stages=3,split_k=4,tail=8", "float"),
    ("atomic", "simt:split_k=12,atomic=1", "float"),
    ("shared", "simt:block_k=32,slices=2,split_k=16,vec_c=4", "float"),
    ("shared", "dmma:split_k=8", "double"),
    ("staged", "simt:staged_c=1", "float"),
    ("staged", "dmma:staged_c=1", "double"),
    ("warm", "simt:cp_async=1,stages=3,warm_l2=1", "float"),
    ("rows", "simt:thread_m=16,thread_n=8,lanes_m=4,rows_first=1,cp_async=1,stages=3,prefetch=1", "float"),
    (
        "uneven",
        "simt:block_m=40,block_n=80,block_k=16,thread_m=10,thread_n=5,lanes_m=4,cp_async=1,stages=3,prefetch=1,slices=2",
        "float",
    ),
    ("spread", "simt:block_k=16,thread_m=8,thread_n=8,cp_async=1,stages=3,prefetch=1,copy_groups=4", "float"),
    ("streamed", "simt:vec_c=4,stream_c=1", "float"),
    (
        "bulk",
        "simt:bulk=1,block_m=32,block_n=32,block_k=64,stages=3,cp_async=1,vec_a=4,vec_b=4,a_k_inner=1,prefetch=1,"
        "slices=4,split_k=3",
        "float",
    ),
    ("streamed", "dmma:vec_c=2,staged_c=1,stream_c=1", "double"),
    ("spread", "dmma:stages=3,prefetch=2,copy_groups=2", "double"),
    ("persistent", "dmma:stages=3,prefetch=2,staged_c=1,persistent=4", "double"),
    ("stream", "simt:block_k=16,cp_async=1,stages=3,vec_c=4,stream_k=264", "float"),
    ("stream", "dmma:stages=3,prefetch=2,copy_groups=2,group_m=4,stream_k=132", "double"),
    ("warm", "skinny:cp_async=1,stages=4,warm_l2=1", "float"),
)
"""Name, config and type of what the defaults leave out."""


def golden_files() -> dict[str, str]:
    """Every golden file, by its path from the root, and what it should hold."""
    arch = arch_named("sm_90a")
    golden, example = FOLDERS
    files = {}
    for family in FAMILIES:
        for edge, dtype, trans in VARIANTS:
            config = complete(Config.parse(f"{family}:edge={edge}"))
            problem = Problem.parse("1024x768x512", dtype, trans)
            if list(rejections(problem, config, arch)):
                problem = Problem.parse("1024x768x512", "double", trans)  # a family for double alone
            source = render(problem, config, arch)
            files[f"{golden}/{family}_{edge}_{problem.dtype.code}_{trans}.cu"] = source.code
    for name, text, dtype in SPECIAL:
        problem = Problem.parse("1024x768x512", dtype)
        source = render(problem, complete(Config.parse(text)), arch)
        files[f"{golden}/{text.partition(':')[0]}_{name}_{problem.dtype.code}_nn.cu"] = source.code
    problem = Problem.parse("1024x768x512")
    for name, text in emit(problem, Config.parse("tiled:edge=pad"), arch, main=True).files:
        files[f"{golden}/{name}"] = text
    for name, text in emit(Problem.parse("300x200x100"), Config.parse("tiled"), arch).files:
        files[f"{example}/{name}"] = text
    return files


def present() -> set[str]:
    """The golden files that lie there now, by their paths from the root."""
    folders = (ROOT / folder for folder in FOLDERS)
    paths = (path for folder in folders for path in folder.iterdir() if path.suffix in (".cu", ".h"))
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


if __name__ == "__main__":
    main()
