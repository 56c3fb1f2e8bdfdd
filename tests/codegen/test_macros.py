"""Macros of a program that includes an emitted file do not replace its names: kernels have no names in capitals."""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from emitted import COMPILER, FAKE, HEADERS, KERNELS, TMA, one_unit, passes, served
from machine_code import labelled
from quick import TYPICAL, together
from tilewright.codegen.emit import Layout, emit
from tilewright.codegen.emitted import Emitted
from tilewright.codegen.families import family_named, parse
from tilewright.codegen.plain import plain
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import KernelSource
from variants import ODD, dtypes, product_families

NVCC = shutil.which("nvcc")
needs_host = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")

MACROS = {
    "windows.h": "IN= OUT= OPTIONAL= CONST=const VOID=void BOOL=int TRUE=1 FALSE=0 ERROR=0 near= far= small=char "
    "interface=struct",
    "sizes": "A=1 B=2 C=3 D=4 K=5 M=6 N=7 P=8 Q=9 T=10 X=11 Y=12 THREADS=256 VEC=4 STAGES=3 PITCH=5 SIZE=6 COUNT=7 "
    "STEP=8 EXTENT=9 BLOCK_M=128 BLOCK_N=64 BLOCK_K=8 WARP_M=32 BYTES=16 LANES=32 ROWS=3 COLS=4 TILE=16 GROUP=2 PART=1 "
    "DEPTH=9 WIDTH=10",
    "names": "ACC=acc WIDE=wide KERNEL=kernel GUARDED=0 ALONG_K=1 TERMS=2 EPS=1e-6 PI=3.14159 DEBUG=1 LINE=__LINE__ "
    "MAX_DEVICES=8",
}
"""Macros by their origin."""
DEFINES = "".join(
    f"#define {name} {value}\n"
    for text in MACROS.values()
    for name, _, value in (each.partition("=") for each in text.split())
)
USED_BY_EMITTED = "".join(
    f"#include <{name}>\n"
    for name in ("atomic", "cfloat", "climits", "cmath", "cstddef", "cstdint", "cstdio", "mutex", "pthread.h")
)
"""Headers of the system that emitted files include. They are read before the macros, which might break them."""
OURS = frozenset({"TILEWRIGHT_HOST"})
"""Macros that the text of a kernel reads; all others begin with an underscore."""
IN_SMALL_LETTERS = "near|far|small|interface|huge|pascal|cdecl|boolean|hyper|unix|linux|major|minor"
"""Pattern of macros of windows.h and of the C library in small letters."""

BUNDLES: dict[str, list[tuple[str, str, str, str]]] = {
    "float": [
        ("naive:", "64", "float", "nn"),
        ("tiled:16,edge=pad", "65", "float", "nn"),
        ("simt:64x64x8,thread=4x4,pack_a,pack_b,split_k=4", "513", "float", "nn"),
        ("simt:stream_k=1", "1024", "float", "nn"),
        ("skinny:4x4x4,load=cp_async,stages=4", "16x4096x4096", "float", "nn"),
        (TMA["nn"], "1028", "float", "nn"),
    ],
    "double": [
        ("dmma:persistent=4", "1024", "double", "nt"),
        ("dmma:64x64x16,split_k=3,reduce=cluster", "511", "double", "nt"),
        ("simt:64x64x8,thread=4x4,pack_a,pack_b,split_k=4", "513", "double", "nt"),
    ],
    "normwise": [
        ("mma:", "1021", "float", "tn"),
        ("wgmma:", "2048", "float", "tn"),
    ],
    "elementwise": [("tf32x3:split_k=3,promote=16", "1023", "float", "nn")],
}
"""Kernels of all families, by the accuracy and the type of a bundle."""


def names_hit(text: str) -> set[str]:
    """Names in a text, outside comments and strings, that macros of other programs may replace."""
    code = re.sub(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', " ", text, flags=re.DOTALL)
    return set(re.findall(rf"(?<!\w)(?:[A-Z][A-Z0-9_]*|{IN_SMALL_LETTERS})(?!\w)", code)) - OURS


@cache
def sources() -> list[KernelSource]:
    """Kernels of shipped records and drawn ones of each family, with the kernels that prepare their operands."""
    kernels = [source for _, source in labelled().values()]
    return [*dict.fromkeys([*kernels, *filter(None, (each.preparation for each in kernels))])]


# ---- Texts -----------------------------------------------------------------------------------------------------------


@pytest.mark.fast
@pytest.mark.parametrize("family", product_families())
def test_no_kernel_has_a_name_that_macros_hit(family: str) -> None:
    of_family = [each for each in sources() if each.name.startswith(f"gemm_{family}_")]
    assert len(of_family) > 1
    hits = {each.name: names for each in of_family if (names := names_hit(each.code))}
    assert hits == {}


@pytest.mark.fast
def test_no_kernel_that_prepares_operands_has_a_name_that_macros_hit() -> None:
    first = {each.name: each.code for each in sources() if not each.name.startswith("gemm_")}
    padded = render(Problem.parse(ODD), parse("naive:,edge=pad"), TYPICAL["sm_90a"]).preparation
    assert padded is not None
    first[padded.name] = padded.code
    assert {name.partition("_")[0] for name in first} == {"pack", "pad", "split"}
    assert {name: names for name, code in first.items() if (names := names_hit(code))} == {}


@pytest.mark.fast
@pytest.mark.parametrize(
    "config", ["naive:8x16", "naive:,edge=bounds", "naive:,edge=pad", "tiled:16", "tiled:8,skew=1"]
)
def test_no_plain_kernel_has_a_name_that_macros_hit(config: str) -> None:
    ((_, text),) = plain(Problem.parse("64x48x32"), parse(config), "product").files
    assert names_hit(text) == set()


@pytest.mark.fast
@pytest.mark.parametrize(("text", "names"), [
    ("constexpr int THREADS = 1;  // STAGES", {"THREADS"}),
    ('asm("OUT"); /* IN */ int kOut, a_B, B_, far_off, x = 0xFF, y = 1E3;', {"B_"}),
    ("template <typename T> void f(T near);", {"T", "near"}),
    ("#ifdef TILEWRIGHT_HOST\n#if __CUDA_ARCH__ < 900", set()),
])  # fmt: skip
def test_names_are_found_in_code_alone(text: str, names: set[str]) -> None:
    assert names_hit(text) == names


# ---- Compilers -------------------------------------------------------------------------------------------------------


def host_compiles(text: str, folder: Path) -> None:
    """Fail unless the text compiles after the macros. Headers that it includes are read before them."""
    path = folder / "unit.cpp"
    path.write_text(f"#include <cuda_runtime.h>\n{USED_BY_EMITTED}{DEFINES}{text}")
    command = [str(COMPILER), "-std=c++20", "-fsyntax-only", "-pthread", "-Wno-unknown-pragmas"]
    done = subprocess.run(
        [*command, f"-I{FAKE}", f"-I{HEADERS}", f"-I{folder}", path], capture_output=True, text=True, check=False
    )
    errors = [line for line in done.stderr.splitlines() if "error:" in line or "in expansion of macro" in line]
    assert done.returncode == 0, "\n".join(errors[:20] or [done.stderr[-4000:]])


@needs_host
def test_kernels_compile_behind_macros_on_the_processor(tmp_path: Path) -> None:
    rows = [(text, shape, trans) for text, shape in KERNELS for trans in ("nn", "tt")]
    rows += [(text, "1028", trans) for trans, text in TMA.items()]
    texts = {}
    for text, shape, trans in rows:
        config = parse(text)
        for dtype in dtypes(family_named(config.family)):
            source = render(Problem.parse(shape, dtype, trans, config.accuracy), config, TYPICAL["sm_90a"])
            texts[source.name] = source
    text = together(list(texts.values())).code
    host_compiles(re.sub(r"^TILEWRIGHT_EXPORT.*$", "", text, flags=re.MULTILINE), tmp_path)


@pytest.mark.nvrtc
@pytest.mark.parametrize("text", [*dict.fromkeys(text for rows in BUNDLES.values() for text, *_ in rows)])
def test_kernels_compile_behind_macros_for_a_gpu(text: str, tmp_path: Path) -> None:
    from tilewright.runtime.device.cuda import NvrtcCompiler

    config = parse(text)
    problem = Problem.parse("1024", dtypes(family_named(config.family))[-1], "nn", config.accuracy)
    source = render(problem, config, TYPICAL["sm_90a"])
    for each in filter(None, (source, source.preparation)):
        NvrtcCompiler("sm_90a").build(KernelSource(each.name, DEFINES + each.code), str(tmp_path))


@cache
def emitted(kind: str, header_only: bool) -> Emitted:
    """A bundle as a file for nvcc, or its last kernel as a header."""
    rows = BUNDLES[kind]
    return emit(served(rows[-1:] if header_only else rows), "gemm", Layout(header_only=header_only))


@needs_host
@pytest.mark.parametrize("header_only", [False, True], ids=["cu", "header-only"])
@pytest.mark.parametrize("kind", BUNDLES)
def test_a_bundle_compiles_behind_macros_on_the_processor(kind: str, header_only: bool, tmp_path: Path) -> None:
    files = emitted(kind, header_only)
    files.write(tmp_path)
    text, _, _ = one_unit(files, "gemm").partition("static void register_kernels_of_")
    host_compiles(text, tmp_path)


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("header_only", [False, True], ids=["cu", "header-only"])
@pytest.mark.parametrize("kind", BUNDLES)
def test_a_bundle_compiles_behind_macros_with_nvcc(kind: str, header_only: bool, tmp_path: Path) -> None:
    paths = emitted(kind, header_only).write(tmp_path)
    (included,) = (path.name for path in paths if path.suffix == (".cuh" if header_only else ".cu"))
    user = tmp_path / "user.cu"  # nvcc reads CUDA's own headers before the first line
    user.write_text(f'{USED_BY_EMITTED}{DEFINES}#include "{included}"\n')
    options = ("-std=c++17", "-arch=sm_90a", "-O0", "-Xcicc", "-O0", "-Xptxas", "-O0")
    passes("nvcc", *options, "-c", user, "-o", tmp_path / "user.o")
