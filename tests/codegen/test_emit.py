"""Emitted files: their text, how they are written, what a compiler says, and what they compute on a GPU."""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.emit import Emitted, emit
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.families import families, family_named, parse
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from variants import dtypes

NVCC = shutil.which("nvcc")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
STRICT = ("-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror")
EDGES = ("exact", "bounds", "pad")
KERNELS = [f"{family}:edge={edge}" for family in families() for edge in EDGES]
KERNELS += [
    "simt:64x64x8,thread=4,load=registers,stages=2,fragments=single",
    "simt:split_k=3,l2_prefetch,min_ctas=2",
    "simt:pack_a,pack_b,vec=2",
    "simt:64x64x32,slices=4,slice_barriers,split_k=2,reduce=cluster",
    "simt:edge=exact,stream_k=1",
    "simt:64x64x16,thread=4,slices=2,split_k=12",
    "dmma:persistent=4",
    "dmma:stream_k=1",
]
SERVED = [(text, dtype.value) for text in KERNELS for dtype in dtypes(family_named(text.partition(":")[0]))]
"""Every kernel in every type that its family computes in."""
TMA = {
    trans: "simt:32x16x64,load=tma,stages=3,vec=4x4x1,thread=4,slices=2,split_k=2,"
    f"k_inner_a={int(trans[0] == 'n')},k_inner_b={int(trans[1] == 't')}"
    for trans in ("nn", "nt", "tn", "tt")
}
"""A kernel fed by TMA for each of the transposes: k lies in its tiles as it does in memory."""


@cache
def emitted(
    text: str = "tiled:16", name: str = "gemm", main: bool = True, dtype: str = "", trans: str = "nn"
) -> Emitted:
    dtype = dtype or dtypes(family_named(text.partition(":")[0]))[0].value
    return emit(Problem.parse("1024x768x512", dtype, trans), parse(text), ARCHES["sm_90a"], name, main)


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


def compiled(*command: str | Path) -> None:
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr


# Text


def test_files_are_named_after_the_function() -> None:
    assert [name for name, _ in emitted(name="mul", main=False).files] == ["mul.cu", "mul.h"]
    assert [name for name, _ in emitted(name="mul").files] == ["mul.cu", "mul.h", "mul_main.cu"]


def test_self_test_changes_nothing_in_the_other_files() -> None:
    assert emitted(main=True).files[:2] == emitted(main=False).files


@pytest.mark.parametrize("text", KERNELS)
def test_kernel_is_in_the_file_under_its_own_name_and_known_there_alone(text: str) -> None:
    config = parse(text)
    kernel = render(Problem.parse("1024x768x512", dtypes(type(config))[0]), config, ARCHES["sm_90a"])
    code = dict(emitted(text).files)["gemm.cu"]
    body = kernel.code.replace('extern "C" __global__', "static __global__")
    assert body[body.index("namespace {") :] in code
    assert code.count('extern "C"') == 1


NEEDS = {
    "naive:": 0,
    "tiled:16": 0,
    "simt:load=registers,stages=2,fragments=single": 0,
    "simt:": 80,
    "simt:split_k=2,reduce=cluster": 90,
    TMA["nn"]: 90,
    "skinny:": 0,
    "skinny:load=cp_async,stages=2": 80,
    "dmma:mma_k=4": 80,
    "dmma:": 90,
}
"""The oldest architecture that can run a kernel; 0 where all can."""


@pytest.mark.parametrize(("text", "arch"), NEEDS.items())
def test_an_architecture_below_what_the_kernel_needs_is_an_error(text: str, arch: int) -> None:
    errors = re.findall(
        r'#if defined\(__CUDA_ARCH__\) && __CUDA_ARCH__ < (\d+)0\n#error "(.+) needs sm_(\d+) or newer"\n#endif',
        dict(emitted(text).files)["gemm.cu"],
    )
    assert [(below, named) for below, _, named in errors] == [(str(arch), str(arch))] * bool(arch)


@pytest.mark.parametrize("text", [*KERNELS, TMA["nn"]])
def test_text_has_one_banner_and_nothing_that_the_kernel_lacks(text: str) -> None:
    config = parse(text)
    for name, code in emitted(text).files:
        assert code.count("SPDX-License-Identifier: MIT") == 1
        assert len(re.findall(r"Written by tilewright|To write it again", code)) == 2
        (written,) = re.findall(r'--config "([^"]*)"', code)
        assert parse(written) == config
        # What the preprocessor defines, other files would see.
        assert re.findall(r"#define (\w+)", code) == (["TILEWRIGHT_GEMM_H"] if name.endswith(".h") else [])
    kernel = re.sub(r"//.*", "", dict(emitted(text).files)["gemm.cu"])
    features = {
        "slice": config.family == "simt" and config.get("slices") > 1,
        "SPLIT_K": config.split_ctas > 1,
        "stream": config.stream_ctas_per_sm > 0,
        "cluster": config.clustered,
        "tensor_map": bool(config.producer_threads),
        "workspace": config.has_workspace,
    }
    asserts = "\n".join(re.findall(r"static_assert\(.*", kernel))
    for word, present in features.items():
        assert present or word not in asserts, word
        assert present or word not in ("SPLIT_K", "tensor_map") or word not in kernel, word
    constants = set(re.findall(r"\b([A-Z][A-Z0-9]*_?[A-Z0-9_]*)\b *=", kernel))
    for name in constants:
        assert len(re.findall(rf"\b{name}\b", kernel)) > 1, name


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_header_declares_the_function(dtype: str) -> None:
    header = dict(emitted(dtype=dtype).files)["gemm.h"]
    declaration = re.sub(r"\s+", " ", header[header.index("int gemm(") :])
    assert declaration.startswith(
        f"int gemm( const {dtype}* A, int lda, const {dtype}* B, int ldb, {dtype}* C, int ldc, "
        f"int m, int n, int k, {dtype} alpha, {dtype} beta, void* stream);"
    )


def test_same_input_gives_the_same_bytes() -> None:
    assert emitted("tiled:16,edge=pad") == emitted.__wrapped__("tiled:16,edge=pad")


def test_empty_problem_gets_a_self_test_with_work_to_do() -> None:
    files = dict(emit(Problem(0, 5, 0), parse("tiled:16"), ARCHES["host"], main=True).files)
    assert "Shape shape = {16, 5, 16};" in files["gemm_main.cu"]
    assert "-arch=native" in files["gemm.h"]


@pytest.mark.parametrize("name", ["", "1a", "a b", "../a", "a/b", "int", "é", "a" * 65, 'a"', "a\n"])
def test_name_that_is_no_identifier_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name must"):
        emitted(name=name)


@pytest.mark.parametrize(
    "name",
    (
        "main malloc sqrtf memcpy index read errno cudaMalloc _a __a math stdio cuda_runtime float4 dim3 INT_MAX "
        "T Index A lda blend TILE_WIDTH std random_matrix require"
    ).split(),
)
def test_name_that_would_clash_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^name must .*got '{name}'$"):
        emitted(name=name)


@pytest.mark.parametrize("name", ["gemm", "sgemm", "matmul", "my_project_gemm_1024", "Gemm", "dgemm_"])
def test_usual_names_are_free(name: str) -> None:
    for text in (KERNELS[-1], "tiled:16,edge=pad", "simt:pack_a,pack_b,vec=2", TMA["nn"]):
        emitted(text, name, main=False)


def test_the_name_of_the_kernel_is_taken() -> None:
    kernel = render(Problem.parse("1024x768x512"), parse("tiled:16"), ARCHES["sm_90a"]).name
    with pytest.raises(ConfigError, match=rf"name must differ from the kernel's, got '{kernel}'"):
        emitted(name=kernel)


def test_config_that_cannot_serve_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"multiples of \(16, 16, 16\)"):
        emit(Problem.parse("100"), parse("tiled:16,edge=exact"), ARCHES["sm_90a"])


# Files


def test_files_are_written_and_written_again(tmp_path: Path) -> None:
    files = emitted()
    paths = files.write(tmp_path / "new" / "folder")
    assert [(path.name, path.read_bytes().decode()) for path in paths] == list(files.files)
    assert files.write(tmp_path / "new" / "folder") == paths
    assert sorted(path.name for path in paths[0].parent.iterdir()) == ["gemm.cu", "gemm.h", "gemm_main.cu"]


def test_own_untouched_files_are_replaced_by_another_kernel(tmp_path: Path) -> None:
    emitted("naive:").write(tmp_path)
    (path, *_) = emitted("tiled:16").write(tmp_path)
    assert "TILE_WIDTH" in path.read_text()


def test_line_ends_of_a_checkout_are_no_edit(tmp_path: Path) -> None:
    (path, *_) = emitted().write(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    emitted().write(tmp_path)


@pytest.mark.parametrize("edit", ["foreign", "edited", "digest", "binary", "empty"])
@pytest.mark.parametrize("which", ["gemm.cu", "gemm.h", "gemm_main.cu"])
def test_foreign_and_edited_files_stay_and_nothing_else_is_written(tmp_path: Path, edit: str, which: str) -> None:
    (tmp_path / which).write_text(dict(emitted().files)[which])
    text = (tmp_path / which).read_text()
    content = {
        "foreign": b"int main() {}\n",
        "edited": (text + "// mine\n").encode(),
        "digest": re.sub(r"(file digest )\w", r"\1z", text).encode(),
        "binary": b"\xff\x00\xfe",
        "empty": b"",
    }[edit]
    (tmp_path / which).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{which} is not tilewright's or was edited since: not overwritten"):
        emitted().write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [which]
    assert (tmp_path / which).read_bytes() == content
    emitted().write(tmp_path, overwrite=True)
    assert (tmp_path / which).read_text() == text


@pytest.mark.parametrize("exists", [True, False])
def test_link_is_replaced_at_most_and_never_followed(tmp_path: Path, exists: bool) -> None:
    outside = tmp_path / "outside.cu"
    if exists:
        outside.write_text(emitted().files[0][1])
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "gemm.cu").symlink_to(outside)
    with pytest.raises(ConfigError, match="not overwritten"):
        emitted("naive:").write(folder)
    emitted("naive:").write(folder, overwrite=True)
    assert not (folder / "gemm.cu").is_symlink()
    assert outside.exists() == exists
    assert not exists or outside.read_text() == emitted().files[0][1]


@pytest.mark.parametrize("name", ["../a.cu", "/a.cu", "a/b.cu", "a.py", ".cu", "a.cu\n", "", "..", "con.h.sh"])
def test_filename_with_a_folder_does_not_come_to_be(name: str) -> None:
    with pytest.raises(ConfigError, match="not the name of an emitted file"):
        Emitted(((name, ""),))


def test_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gemm.h").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        emitted().write(tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["gemm.h"]


def test_file_in_the_place_of_the_folder_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        emitted().write(tmp_path / "file")


# Compilers


@pytest.mark.parametrize("compiler", [("gcc", "-std=c99"), ("g++", "-x", "c++", "-std=c++11")], ids=lambda c: c[0])
@pytest.mark.parametrize("text", ["tiled:16,edge=pad", "naive:edge=exact"])
def test_header_is_c_and_cplusplus(tmp_path: Path, compiler: tuple[str, ...], text: str) -> None:
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"{compiler[0]} is not installed")
    emitted(text, dtype="double").write(tmp_path)
    (tmp_path / "user.c").write_text('#include "gemm.h"\n#include "gemm.h"\nint (*use)(void) = (int (*)(void))gemm;\n')
    flags = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-Wno-cast-function-type", "-fsyntax-only")
    compiled(*compiler, *flags, tmp_path / "user.c")


@needs_nvcc
@pytest.mark.parametrize("family", families())
def test_every_family_and_edge_compiles_without_a_warning(tmp_path: Path, family: str) -> None:
    paths = []
    for text in KERNELS:
        if text.startswith(f"{family}:"):
            name = re.sub(r"\W+", "_", text)[:60]
            paths.append(emitted(text, name, main=False, dtype="double", trans="tt").write(tmp_path)[0])
    assert len(paths) >= len(EDGES)
    compiled("nvcc", "-arch=sm_90a", "-O1", "-t2", *STRICT, "-c", "-odir", tmp_path, *paths)


@needs_nvcc
def test_kernels_fed_by_tma_compile_without_a_warning(tmp_path: Path) -> None:
    paths = [emitted(text, f"gemm_{t}", main=False, trans=t).write(tmp_path)[0] for t, text in TMA.items()]
    compiled("nvcc", "-arch=sm_90a", "-O1", "-t2", *STRICT, "-c", "-odir", tmp_path, *paths)


@needs_nvcc
def test_two_files_link_and_may_be_one_unit(tmp_path: Path) -> None:
    texts = {"gemm_one": "simt:split_k=2", "gemm_two": "simt:split_k=2", "gemm_three": "tiled:16,edge=pad"}
    one, *_ = [emitted(text, name, main=False).write(tmp_path)[0] for name, text in texts.items()]
    user = tmp_path / "user.cu"
    calls = " + ".join(f"{name}(0, 1, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0)" for name in texts)
    included = "".join(f'#include "{file}"\n' for file in ("gemm_two.cu", "gemm_three.cu", "gemm_one.h"))
    user.write_text(f"{included}int main() {{ return {calls}; }}\n")
    compiled("nvcc", "-arch=sm_90a", "-O1", "-t2", *STRICT, user, one, "-o", tmp_path / "program")
    assert run(tmp_path / "program").returncode == 0  # the sizes are 0: no GPU is needed


@needs_nvcc
def test_self_test_links_and_says_what_is_missing_without_a_gpu(tmp_path: Path) -> None:
    program = build(tmp_path, emitted("tiled:16,edge=pad"), *STRICT)
    done = run(program, "1", "2")
    assert (done.returncode, done.stderr) == (2, f"usage: {program} [M N K]\n")
    done = run(program, "1", "2", "x")
    assert (done.returncode, done.stderr) == (2, "gemm_main: a size must be 1 to 2147483647, got x\n")
    done = run("env", "CUDA_VISIBLE_DEVICES=", program)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"gemm_main: no GPU to run on: .+\n", done.stderr)


@needs_nvcc
def test_example_project_builds_and_says_what_is_missing_without_a_gpu(tmp_path: Path) -> None:
    example = tmp_path / "cpp"
    shutil.copytree(Path(__file__).parents[2] / "examples" / "cpp", example)
    compiled("make", "-C", example, "ARCH=sm_90a")
    done = run("env", "CUDA_VISIBLE_DEVICES=", example / "example")
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr


def build(folder: Path, files: Emitted, *flags: str, arch: str = "sm_90a") -> Path:
    sources = [path for path in files.write(folder) if path.suffix == ".cu"]
    compiled("nvcc", "-O3", f"-arch={arch}", *flags, *sources, "-o", folder / "program")
    return folder / "program"


# On a GPU


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.parametrize("trans", ["nn", "tt", "nt", "tn"])
@pytest.mark.parametrize(("text", "dtype"), SERVED)
def test_self_test_passes(tmp_path: Path, text: str, dtype: str, trans: str) -> None:
    program = build(tmp_path, emitted(text, dtype=dtype, trans=trans), arch="native")
    shapes = ["128x128x32", "64x384x96"] if "exact" in text else ["129x65x33", "1x1x1", "1x300x7", "64x32x128"]
    for shape in shapes:
        done = run(program, *shape.split("x"))
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"[\d.]+ us, [\d.]+ GFLOP/s", done.stdout)


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not installed")
@pytest.mark.parametrize(("text", "dtype"), SERVED)
def test_sanitizers_find_nothing(tmp_path: Path, text: str, dtype: str) -> None:
    program = build(tmp_path, emitted(text, dtype=dtype, trans="nt"), "-lineinfo", arch="native")
    shape = ("64", "128", "32") if "exact" in text else ("65", "33", "17")
    for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
        done = run("compute-sanitizer", "--tool", tool, "--error-exitcode", "99", program, *shape)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards", done.stdout), done.stdout


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.parametrize("trans", TMA)
def test_tma_copies_and_their_scalar_form_pass_the_self_test(tmp_path: Path, trans: str) -> None:
    program = build(tmp_path, emitted(TMA[trans], trans=trans), arch="native")
    for shape in ("128x64x256", "132x68x260", "129x65x33", "4x4x4", "36x16x1000"):
        done = run(program, *shape.split("x"))
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not installed")
def test_sanitizers_find_nothing_in_tma_copies(tmp_path: Path) -> None:
    program = build(tmp_path, emitted(TMA["nt"], trans="nt"), "-lineinfo", arch="native")
    for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
        done = run("compute-sanitizer", "--tool", tool, "--error-exitcode", "99", program, "68", "36", "200")
        assert done.returncode == 0, done.stdout + done.stderr


BREAKS = {
    "a dropped term": (r"p < TILE_WIDTH; \+\+p", "p < TILE_WIDTH - 1; ++p"),
    "a store outside": (r"row < m && col < n", "row < m && col < n + 1"),
    "C read at beta 0": (r"beta == T\(0\) \? alpha \* product :", ""),
    "beta forgotten": (r"\+ beta \* \*c", ""),
    "swapped operands": (r"b_tile\[p\]\[tx\]", "b_tile[tx][p]"),
    "an empty product refused": (r"if \(m == 0 [^\n]*", ""),
}


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.parametrize("what", BREAKS)
def test_self_test_catches_a_broken_kernel(tmp_path: Path, what: str) -> None:
    (code_name, code), *rest = emitted().files
    pattern, replacement = BREAKS[what]
    broken, count = re.subn(pattern, replacement, code, count=1)
    assert count == 1
    program = build(tmp_path, Emitted(((code_name, broken), *rest)), arch="native")
    done = run(program, "129", "65", "33")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG" in done.stdout
