"""Emitted files that compilers compile, build systems build and GPUs run."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import tilewright
from emitted import FAKE, KERNELS, SERVED, SHARED_K, TMA, run
from emitted import passes as compiled
from quick import TYPICAL
from tilewright.codegen.bundle import Served
from tilewright.codegen.emit import Layout, emit
from tilewright.codegen.emitted import Emitted
from tilewright.codegen.families import family_named, parse
from tilewright.codegen.leaf import Edge
from tilewright.codegen.problem import Grade, Problem
from tilewright.runtime.device.detect import choose
from variants import ODD, RAGGED, WHOLE, dtypes, edges, product_families

NVCC, CMAKE = shutil.which("nvcc"), shutil.which("cmake")
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
needs_sanitizer = pytest.mark.skipif(
    shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not installed"
)
STRICT = (
    "-Werror", "all-warnings", "-Xcompiler",
    "-Wall,-Wextra,-Wshadow,-Wconversion,-Wsign-conversion,-Wfloat-equal,-Werror",
)  # fmt: skip
"""Options that turn the warnings of nvcc and of the host compiler into errors."""
UNTUNED = ("-O0", "-Xcicc", "-O0", "-Xptxas", "-O0")
"""Options that leave code for the GPU unoptimized too. Warnings are the same, and compiling takes half the time."""
CONCURRENT = Path(__file__).parents[1] / "support" / "concurrent.cu"


@cache
def bundle(
    kernels: tuple[tuple[str, str, str], ...],
    transes: tuple[str, ...] = ("nn",),
    arch: str = "sm_90a",
    name: str = "gemm",
) -> Emitted:
    """A bundle of kernels with its self-test. A kernel is a config, a shape that says how edges are treated, and a
    type; it serves a smaller shape of its own."""
    rows = []
    for trans in transes:
        for number, (text, shape, dtype) in zip(count(1), kernels):
            config = parse(text)
            exact = config.edge_of(Problem.parse(shape)) is Edge.EXACT
            m, n, k = config.multiples if exact else (65, 36, 24) if shape == ODD else (68, 36, 24)
            deep = 2 if config.accuracy is Grade.IEEE else 16  # the elementwise grade needs a long k
            small = f"{number * m}x{n}x{deep * k}"
            rows.append(Served(Problem.parse(small, dtype, trans, config.accuracy), config, TYPICAL[arch]))
    return emit(rows, name, Layout(main=True))


def sources(paths: Sequence[Path]) -> list[Path]:
    return [path for path in paths if path.suffix == ".cu"]


def build(folder: Path, files: Emitted, *flags: str, arch: str = "sm_90a") -> Path:
    program = folder / "program"
    compiled("nvcc", "-std=c++17", f"-arch={arch}", *(flags or ("-O3",)), *sources(files.write(folder)), "-o", program)
    return program


@pytest.mark.parametrize("compiler", [("gcc", "-std=c11"), ("g++", "-x", "c++", "-std=c++17")], ids=lambda c: c[0])
@pytest.mark.parametrize("text", ["tiled:16,edge=pad", "naive:", SHARED_K])
def test_header_is_c_and_cplusplus(tmp_path: Path, compiler: tuple[str, ...], text: str) -> None:
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"{compiler[0]} is not installed")
    emit(Served(Problem.parse("1024x768x512"), parse(text), TYPICAL["sm_90a"]), "gemm").write(tmp_path)
    (tmp_path / "user.c").write_text(
        '#include "gemm.h"\n#include "gemm.h"\n'
        "int use(float* x, cudaStream_t stream)\n{\n    gemm_description d;\n"
        "    return gemm(x, 1, x, 1, x, 1, 1, 1, 1, 1, 0, stream) == GEMM_SUCCESS && gemm_describe(1, 1, 1, &d) == 0;\n"
        "}\n"
    )
    flags = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only")
    compiled(*compiler, *flags, f"-I{FAKE}", tmp_path / "user.c")


def one_unit(folder: Path, files: Sequence[Path]) -> Path:
    """A file that includes all these files: CUDA's headers take as long to compile as the kernels of a file."""
    unit = folder / "all.cu"
    unit.write_text("".join(f'#include "{file.name}"\n' for file in files))
    return unit


@pytest.mark.slow
@needs_nvcc
def test_every_family_and_edge_compiles_without_a_warning(tmp_path: Path) -> None:
    files = []
    for family in product_families():
        dtype = dtypes(family_named(family))[-1].value
        kernels = tuple((*kernel, dtype) for kernel in KERNELS if kernel[0].startswith(f"{family}:"))
        assert len(kernels) >= len(edges(family))
        files.append(bundle(kernels, ("tt",), name=f"gemm_{family}").write(tmp_path)[0])
    unit = one_unit(tmp_path, files)
    compiled("nvcc", "-arch=sm_90a", *UNTUNED, *STRICT, "-c", "-o", tmp_path / "all.o", unit)


@pytest.mark.slow
@needs_nvcc
def test_every_kernel_alone_compiles_without_a_warning(tmp_path: Path) -> None:
    """The launcher of a single kernel has only the functions that it needs: none is missing, and none is unused."""
    files = []
    for number, (text, shape) in enumerate([*KERNELS, (TMA["nn"], WHOLE)]):
        dtype = "double" if text.startswith("dmma") else "float"
        problem = Problem.parse(shape, dtype, accuracy=parse(text).accuracy)
        files.append(emit(Served(problem, parse(text), TYPICAL["sm_90a"]), f"gemm_{number}").write(tmp_path)[0])
    unit = one_unit(tmp_path, files)
    done = run("nvcc", "-arch=sm_90a", "-O3", *STRICT, "-c", "-o", tmp_path / "all.o", unit)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Performance Loss" not in done.stderr, done.stderr  # a message of the assembler where it serializes wgmma


@pytest.mark.slow
@needs_nvcc
def test_kernels_fed_by_tma_compile_without_a_warning(tmp_path: Path) -> None:
    rows = [Served(Problem.parse("1024x768x512", "float", t), parse(TMA[t]), TYPICAL["sm_90a"]) for t in TMA]
    paths = emit(rows, layout=Layout(main=True)).write(tmp_path)
    compiled("nvcc", "-arch=sm_90a", *UNTUNED, "-std=c++17", "-t2", *STRICT, "-c", "-odir", tmp_path, *sources(paths))


@pytest.mark.slow
@needs_nvcc
def test_kernels_of_batches_compile_without_a_warning(tmp_path: Path) -> None:
    files: list[Path] = []
    small = [("small:4x3x2", "7x5x9"), ("small:8x2x2,load=cp_async", "8x6x4")]
    others = [("naive:8x32,edge=pad", ODD), *KERNELS[-9:], ("wgmma:64x64x64", ODD)]
    for number, (text, shape) in enumerate([*others, *small]):
        dtype = "double" if text.startswith("dmma") else "float"
        problem = Problem.parse(shape, dtype, accuracy=parse(text).accuracy)
        row = Served(problem, parse(text), TYPICAL["sm_90a"])
        files += sources(emit(row, f"gemm_{number}", Layout(main=number == 0, batched=True)).write(tmp_path))
    compiled("nvcc", "-arch=sm_90a", *UNTUNED, *STRICT, "-c", "-o", tmp_path / "all.o", one_unit(tmp_path, files))


@pytest.mark.slow
@needs_nvcc
def test_two_files_link_and_may_be_one_unit(tmp_path: Path) -> None:
    texts = {"gemm_one": SHARED_K, "gemm_two": SHARED_K, "gemm_three": "tiled:16,edge=pad"}
    problem = Problem.parse("1024x768x512")
    one, *_ = [
        emit(Served(problem, parse(text), TYPICAL["sm_90a"]), name).write(tmp_path)[0] for name, text in texts.items()
    ]
    user = tmp_path / "user.cu"
    calls = " + ".join(f"{name}(0, 1, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0)" for name in texts)
    included = "".join(f'#include "{file}"\n' for file in ("gemm_two.cu", "gemm_three.cu", "gemm_one.h"))
    user.write_text(f"{included}int main() {{ return {calls}; }}\n")
    compiled("nvcc", "-arch=sm_90a", *UNTUNED, "-t2", *STRICT, user, one, "-o", tmp_path / "program")
    assert run(tmp_path / "program").returncode == 0  # the sizes are 0: no GPU is needed


@needs_nvcc
def test_an_older_target_stops_at_one_error(tmp_path: Path) -> None:
    texts = ("simt:64x64x16", SHARED_K, "simt:split_k=2,reduce=cluster")
    path = bundle(tuple((text, RAGGED, "float") for text in texts)).write(tmp_path)[0]
    done = run("nvcc", "-arch=sm_75", "-c", "-o", tmp_path / "gemm.o", path)
    assert done.returncode != 0
    assert re.findall(r"error: *#error .*", done.stderr) == ['error: #error "a cluster needs sm_90 or newer"']


@pytest.mark.slow
@needs_nvcc
def test_self_test_links_and_says_what_is_missing_without_a_gpu(tmp_path: Path) -> None:
    program = build(tmp_path, bundle((("tiled:16,edge=pad", RAGGED, "float"),)), *UNTUNED, *STRICT)
    done = run(program, "1", "2")
    usage = f"usage: {program} [--tolerance 0.1] [--no-checks] [--no-times] [M N K]\n"
    assert (done.returncode, done.stderr) == (2, usage)
    done = run("env", "CUDA_VISIBLE_DEVICES=", program)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"gemm_main: no GPU to run on: .+\n", done.stderr)


@pytest.mark.slow
@needs_nvcc
@pytest.mark.skipif(CMAKE is None, reason="CMake is not installed")
def test_example_project_builds_and_says_what_is_missing_without_a_gpu(tmp_path: Path) -> None:
    example = tmp_path / "cpp"
    shutil.copytree(Path(__file__).parents[2] / "examples" / "cpp", example)
    compiled("cmake", "-S", example, "-B", tmp_path / "build")
    compiled("cmake", "--build", tmp_path / "build")
    done = run("env", "CUDA_VISIBLE_DEVICES=", tmp_path / "build" / "example")
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr


@pytest.mark.slow
@needs_nvcc
@pytest.mark.skipif(CMAKE is None, reason="CMake is not installed")
def test_a_bundle_is_a_package_that_others_find(tmp_path: Path) -> None:
    rows = [
        Served(Problem.parse("64"), parse("tiled:16"), TYPICAL["sm_80"]),
        Served(Problem.parse("64"), parse("tiled:16"), TYPICAL["sm_90a"]),
    ]
    emit(rows, "mul", Layout(main=True, cmake=True)).write(tmp_path / "mul")
    warnings = "-DCMAKE_CUDA_FLAGS=-Werror all-warnings -Xcompiler -Wall,-Wextra"
    compiled("cmake", "-S", tmp_path / "mul", "-B", tmp_path / "made", warnings, "-DMUL_TEST=ON")
    compiled("cmake", "--build", tmp_path / "made", "-j2")
    compiled("cmake", "--install", tmp_path / "made", "--prefix", tmp_path / "prefix")
    user = tmp_path / "user"
    user.mkdir()
    (user / "main.cpp").write_text("#include <mul.h>\nint main() { return mul(0, 1, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0); }\n")
    (user / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(user LANGUAGES CXX)\nfind_package(mul 1.0 REQUIRED)\n"
        "foreach(kind mul mul_shared)\nadd_executable(with_${kind} main.cpp)\n"
        "target_link_libraries(with_${kind} mul::${kind})\nendforeach()\n"
    )
    compiled("cmake", "-S", user, "-B", tmp_path / "using", f"-DCMAKE_PREFIX_PATH={tmp_path / 'prefix'}")
    compiled("cmake", "--build", tmp_path / "using")
    if shutil.which("pkg-config"):
        (pc,) = (tmp_path / "prefix").rglob("mul.pc")
        flags = compiled("env", f"PKG_CONFIG_PATH={pc.parent}", "pkg-config", "--cflags", "--libs", "mul")
        assert "-lmul" in flags
        included = [Path(flag[2:]).resolve() for flag in flags.split() if flag.startswith("-I")]
        assert tmp_path.resolve() / "prefix" / "include" in included


# On a GPU


def own_arch() -> str:
    """The architecture of the GPU. nvcc's `native` would be sm_90, but wgmma needs sm_90a."""
    return choose("cuda").arch.name


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.parametrize("family", product_families())
def test_self_tests_pass(tmp_path: Path, family: str) -> None:
    texts = tuple(each for each in SERVED if each[0].startswith(f"{family}:"))
    program = build(tmp_path, bundle(texts, ("nn", "nt", "tn", "tt")), arch=own_arch())
    compiled(program, "--no-times")
    for shape in ("129x65x33", "1x1x1", "1x300x7", "64x32x128"):
        compiled(program, "--no-times", *shape.split("x"))


@pytest.mark.gpu
@needs_nvcc
@needs_sanitizer
@pytest.mark.parametrize("family", product_families())
def test_sanitizers_find_nothing(tmp_path: Path, family: str) -> None:
    texts = tuple(each for each in SERVED if each[0].startswith(f"{family}:"))
    program = build(tmp_path, bundle(texts, ("nt",)), "-O3", "-lineinfo", arch=own_arch())
    sanitized(program, "--no-times")


def sanitized(*command: str | Path) -> None:
    for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
        done = run("compute-sanitizer", "--tool", tool, "--error-exitcode", "99", *command)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards", done.stdout), done.stdout


@pytest.mark.gpu
@needs_nvcc
def test_tma_copies_and_the_general_kernel_pass_the_self_test(tmp_path: Path) -> None:
    rows = [Served(Problem.parse("128x64x256", "float", t), parse(TMA[t]), TYPICAL["sm_90a"]) for t in TMA]
    program = build(tmp_path, emit(rows, layout=Layout(main=True)), "-O3", "-lineinfo", arch=own_arch())
    compiled(program)
    for shape in ("132x68x260", "129x65x33", "4x4x4", "36x16x1000"):
        compiled(program, "--no-times", *shape.split("x"))
    if shutil.which("compute-sanitizer"):
        sanitized(program, "--no-times", "68", "36", "200")


BATCHED_CALL = r"""
#include <cstdio>
#include <cstdlib>

#include <cuda_runtime.h>

#include "gemm.h"

int main(int argc, char** argv)  // m, n, k, batch; A and B come from stdin, C goes to the file of the last argument
{
    if (argc != 6) return 2;
    const long m = atol(argv[1]), n = atol(argv[2]), k = atol(argv[3]), batch = atol(argv[4]);
    const size_t counts[] = {size_t(batch * m * k), size_t(batch * k * n), size_t(batch * m * n)};
    float* matrices[3];
    for (int i = 0; i < 3; ++i) {
        if (cudaMallocManaged(reinterpret_cast<void**>(&matrices[i]), counts[i] * sizeof(float))) return 2;
        if (i < 2 && fread(matrices[i], sizeof(float), counts[i], stdin) != counts[i]) return 2;
    }
    const size_t bytes = gemm_workspace_size_batched(m, n, k, batch);
    void* workspace = nullptr;
    if (bytes && cudaMalloc(&workspace, bytes)) return 2;
    if (gemm_workspace_init(workspace, bytes, nullptr)) return 2;
    const int status = gemm_run_batched(
        matrices[0], k, m * k, matrices[1], n, k * n, matrices[2], n, m * n, m, n, k, batch, 1, 0, workspace, bytes,
        nullptr);
    if (status || cudaDeviceSynchronize()) return puts(gemm_status_string(status)), 1;
    FILE* const file = fopen(argv[5], "wb");
    return !file || fwrite(matrices[2], sizeof(float), counts[2], file) != counts[2] || fclose(file);
}
"""
"""A program that computes a batch by the emitted `gemm_run_batched`."""


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.parametrize(("shape", "batch"), [("16", 10000), ("33x17x9", 5000), ("100x3x100", 128), ("256", 20)])
def test_batches_have_the_bits_of_the_library(tmp_path: Path, shape: str, batch: int) -> None:
    """Both run the kernel that the library looks up for the stack: for the first stack, one of small matrices."""
    problem = Problem.parse(shape)
    m, n, k = problem.m, problem.n, problem.k
    kernel = tilewright.load(m, n, k, batch=batch, device="cuda", vendor="never")
    files = emit(Served(problem, kernel.config, kernel.device), "gemm", Layout(main=True, batched=True))
    assert "WRONG" not in compiled(build(tmp_path, files, arch=own_arch()), "--no-times")
    (tmp_path / "call.cu").write_text(BATCHED_CALL)
    caller = tmp_path / "call"
    compiled("nvcc", "-O3", "-std=c++17", f"-arch={own_arch()}", tmp_path / "gemm.cu", f"{caller}.cu", "-o", caller)
    generator = np.random.default_rng(1)
    a, b = (generator.uniform(-1, 1, (batch, *each)).astype(np.float32) for each in ((m, k), (k, n)))
    command = [caller, *map(str, (m, n, k, batch)), tmp_path / "c"]
    done = subprocess.run(command, input=a.tobytes() + b.tobytes(), capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    expected = tilewright.matmul(a, b, device="cuda", vendor="never")
    assert (tmp_path / "c").read_bytes() == expected.tobytes()


@pytest.mark.gpu
@needs_nvcc
@pytest.mark.parametrize("text", [SHARED_K, "simt:32x32x8,thread=4x4,stream_k=1", "simt:pack_a,split_k=2"])
def test_threads_devices_and_graphs(tmp_path: Path, text: str) -> None:
    files = emit(Served(Problem.parse("64x40x100"), parse(text), TYPICAL["sm_90a"]), "gemm")
    files.write(tmp_path)
    program = tmp_path / "program"
    flags = ("-O3", "-std=c++17", "-lineinfo", f"-arch={own_arch()}", f"-I{tmp_path}")
    compiled("nvcc", *flags, tmp_path / "gemm.cu", CONCURRENT, "-o", program)
    assert "10000 calls each" in compiled(program, "10000")
    if shutil.which("compute-sanitizer"):
        sanitized(program, "20")
