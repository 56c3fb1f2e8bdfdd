"""Emitted files at work without a GPU: their own functions, dispatch and self-test, on a runtime that runs kernels on
the processor (support/fake_cuda)."""

import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from emitted_on_host import COMPILER, built
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.bundle import Served
from tilewright.codegen.emit import Layout, emit
from tilewright.codegen.emitted import Emitted
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")

CONCURRENT = Path(__file__).parents[1] / "support" / "concurrent.cu"

Row = tuple[str, str, str, str]
"""Config, shape, dtype and transposes."""

CTAS = "simt:32x32x8,thread=4x4"
SHARED_K = f"{CTAS},split_k=3,vec=1x4x4"
TMA = "simt:32x16x64,load=tma,stages=3,vec=4x4x1,thread=4,slices=2,split_k=2,k_inner_a=1"
ALONE: dict[str, Row] = {
    "naive": ("naive:8x32", "40x24x56", "double", "tt"),
    "tiled": ("tiled:16", "33x17x40", "float", "nn"),
    "pad": ("tiled:16,edge=pad", "33x17x40", "float", "nt"),
    "pad with split-K": ("simt:64x64x16,edge=pad,split_k=2", "70x65x40", "double", "tn"),
    "exact": ("tiled:8,edge=exact", "24x16x32", "double", "nn"),
    "vectors": ("simt:64x64x16,vec=4x2x4", "64x68x72", "float", "tn"),
    "split-K": (f"{CTAS},split_k=3,vec=4", "64x40x100", "float", "tn"),
    "cooperative split-K": ("simt:64x64x16,thread=4,slices=2,split_k=12", "96x64x192", "float", "nn"),
    "cluster": ("simt:64x64x32,thread=4,slices=2,split_k=2,reduce=cluster", "96x64x192", "float", "nn"),
    "stream-K": ("simt:32x32x8,thread=4x4,edge=exact,stream_k=1", "128x96x64", "float", "nn"),
    "packed": ("simt:pack_a,pack_b,vec=2", "66x70x40", "float", "nn"),
    "packed with split-K": ("simt:pack_a,vec=4x1x1,split_k=2", "66x70x40", "float", "tt"),
    "TMA": (TMA, "64x48x192", "float", "nn"),
    "skinny": ("skinny:4x4x4,split_k=2", "70x4x200", "float", "nn"),
    "limbs": ("mma:64x64x32,warp=32x32,vec_c=2", "130x66x300", "float", "tn"),
    "limbs by wgmma": ("wgmma:64x64x64,stages=2", "66x70x200", "float", "nt"),
    "TF32 limbs": ("tf32x3:32x64x32,promote=16,vec=1x2x2,split_k=2", "130x66x300", "float", "nn"),
    "dmma": ("dmma:persistent=4,vec=2", "130x132x40", "double", "nn"),
    "dmma stream-K": ("dmma:stream_k=1", "130x70x96", "double", "nn"),
}
SEVERAL: tuple[Row, ...] = (
    ("tiled:16", "33x17x40", "float", "nn"),
    (SHARED_K, "64x40x100", "float", "nn"),
    ("simt:32x32x8,thread=4x4,edge=exact,stream_k=1", "128x96x64", "float", "nn"),
    (TMA, "64x48x192", "float", "nn"),
    ("simt:pack_a,pack_b,vec=2", "66x70x40", "float", "nt"),
    ("dmma:stream_k=1", "130x70x96", "double", "nn"),
    ("skinny:4x4x4,split_k=2", "70x4x200", "double", "nt"),
)
"""Kernels of every kind in one bundle: they use one workspace in turn."""


def served(rows: Sequence[Row], *arches: str) -> list[Served]:
    names = arches or ("sm_90a",)
    return [
        Served(Problem.parse(shape, dtype, trans, parse(text).accuracy), parse(text), ARCHES[arch], sm_count=5)
        for arch in names
        for text, shape, dtype, trans in rows
    ]


TESTED = Layout(main=True)


@cache
def files(rows: tuple[Row, ...], layout: Layout = TESTED) -> Emitted:
    return emit(served(rows), "gemm", layout)


def program(emitted: Emitted, folder: Path, main: str = "", *flags: str) -> Path:
    """The bundle with a main program of its own, or with its self-test."""
    text = f"#include <cstdio>\nint main(int argc, char** argv)\n{{\n    register_kernels();\n{main}}}\n"
    return built(
        emitted, "gemm", text if main else text.replace("}\n", "    return self_test(argc, argv);\n}\n"), folder, *flags
    )


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


def passes(*command: str | Path) -> str:
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# The self-test


@pytest.mark.parametrize("name", ALONE)
def test_every_kind_of_kernel_passes_its_self_test(tmp_path: Path, name: str) -> None:
    told = passes(program(files((ALONE[name],)), tmp_path), "--no-times")
    assert len(re.findall(r"^gemm +\d+x\d+x\d+ +ok ", told, re.MULTILINE)) == 1
    assert "WRONG" not in told


@pytest.mark.parametrize("layout", [Layout(main=True), Layout(main=True, split=True)], ids=["one file", "split"])
def test_a_bundle_of_all_kinds_passes_its_self_test(tmp_path: Path, layout: Layout) -> None:
    told = passes(program(files(SEVERAL, layout), tmp_path, "", "-O0"))
    line = r"^(gemm_f\d\d_n\w) +(\d+x\d+x\d+) +ok +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +- +-"
    rows = re.findall(line, told, re.MULTILINE)
    assert sorted(shape for _, shape, *_ in rows) == sorted(shape for _, shape, _, _ in SEVERAL)
    assert all(float(time) > 0 for _, _, *times in rows for time in times)


def test_any_other_shape_can_be_tested(tmp_path: Path) -> None:
    tested = program(files((ALONE["vectors"],)), tmp_path)
    for shape in ("1x1x1", "65x33x17", "64x128x40"):
        assert shape in passes(tested, "--no-times", *shape.split("x"))
    assert run(tested, "1", "2").returncode == 2
    done = run(tested, "1", "2", "x")
    assert (done.returncode, done.stderr) == (2, "gemm_main: a size must be 1 to 2147483647, got x\n")


@pytest.mark.parametrize(("recorded_us", "status"), [(1e9, 0), (1e-3, 1)])
def test_slower_than_recorded_is_a_failure_where_a_tolerance_is_given(
    tmp_path: Path, recorded_us: float, status: int
) -> None:
    row = Served(Problem(24, 16, 32), parse("tiled:16"), ARCHES["sm_90a"], recorded_us=recorded_us, origin="tuned")
    tested = program(emit(row, "gemm", Layout(main=True)), tmp_path)
    assert run(tested).returncode == 0
    done = run(tested, "--tolerance", "0.1")
    assert done.returncode == status
    assert ("SLOWER" in done.stdout) == bool(status)


FAULTS = {
    "a dropped term": ("tiled", r"p < TILE_WIDTH; \+\+p", "p < TILE_WIDTH - 1; ++p"),
    "a store outside": ("tiled", r"row < m && col < n", "row < m && col < n + 1"),
    "C read at beta 0": ("tiled", r"beta == T\(0\) \? alpha \* product :", ""),
    "beta forgotten": ("tiled", r"\+ beta \* \*c", ""),
    "swapped operands": ("tiled", r"b_tile\[p\]\[tx\]", "b_tile[tx][p]"),
    "an empty product launched": ("tiled", r" \|\| m == 0 \|\| n == 0\)( return status;\n    const bool)", r")\1"),
    "a null C not refused": ("tiled", r"if \(!C \|\| ", "if ("),
    "alignment not looked at": ("vectors", r"suits\(kernel.align_c, C, ldc, n\)", "true"),
    "general kernel for nothing": ("exact", r"sizes.m % kernel.multiple_m [^;{]*\{", "sizes.k < 0) {"),
    "counters where partial tiles are": ("split-K", r"workspace \+ \(need.total[^;]*;", "workspace;"),
    "too few CTAs": ("cluster", r"= tiles \* kernel.split_ctas", "= tiles * (kernel.split_ctas - 1)"),
    "copies over partial tiles": ("packed with split-K", r"at \+ need.sums;", "at;"),
    "one copy over the other": ("packed", r"copy_b \+= std::size_t\(ld_a\) \* call->k;", "(void)copy_b;"),
    "rows of a box for its columns": ("TMA", r"\{box.cols, box.rows\}", "{box.rows, box.cols}"),
    "padding not zeroed": ("pad", r"padding == 0\) return", "padding != -1) return"),
    "no room for partial tiles": ("stream-K", r"2 \* kernel.stream_ctas", "kernel.stream_ctas"),
}  # fmt: skip


SANITIZED = {
    "no room for partial tiles": ("-fsanitize=address",),
    "alignment not looked at": ("-fsanitize=alignment", "-fno-sanitize-recover=all"),
}
"""What a GPU would tell by itself, or memcheck."""


@pytest.mark.slow
@pytest.mark.parametrize("what", FAULTS)
def test_the_self_test_catches_faults(tmp_path: Path, what: str) -> None:
    name, pattern, replacement = FAULTS[what]
    (code_name, code), *rest = files((ALONE[name],)).files
    broken, count = re.subn(pattern, replacement, code, count=1)
    assert count == 1
    sanitized = SANITIZED.get(what, ())
    shape = ("23", "17", "30") if what == "general kernel for nothing" else ()
    done = run(program(Emitted(((code_name, broken), *rest)), tmp_path, "", *sanitized), "--no-times", *shape)
    assert done.returncode != 0, done.stdout


# The functions

CALLS = r"""
    const int m = 64, n = 40, k = 100;
    float *a, *b, *c, *d;
    for (float** each : {&a, &b, &c, &d}) cudaMalloc((void**)each, m * k * 4 + 4096);
    for (int i = 0; i < m * k; ++i) a[i] = float(i % 7 - 3);
    for (int i = 0; i < k * n; ++i) b[i] = float(i % 5 - 2);
    const auto right = [&](const float* found) {
        for (int i = 0; i < m; ++i) {
            for (int j = 0; j < n; ++j) {
                float sum = 0;
                for (int p = 0; p < k; ++p) sum += a[i * k + p] * b[p * n + j];
                if (found[i * n + j] != sum) return false;
            }
        }
        return true;
    };
    const auto expect = [](bool good, const char* what) { if (!good) printf("WRONG: %s\n", what), exit(1); };
    const size_t bytes = gemm_workspace_size(m, n, k);
    void* workspace = nullptr;
    cudaMalloc(&workspace, bytes);
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
"""
SPLIT: Row = (SHARED_K, "64x40x100", "float", "nn")


def test_a_call_launches_and_does_nothing_else(tmp_path: Path) -> None:
    main = """
    expect(gemm_workspace_init(workspace, bytes, stream) == 0 && gemm_init() == 0, "init");
    fake::calls.clear();
    for (int i = 0; i < 3; ++i) {
        expect(gemm_run(a, k, b, n, c, n, m, n, k, 1, 0, workspace, bytes, stream) == GEMM_SUCCESS && right(c), "run");
    }
    for (const auto& [name, count] : fake::calls) printf("%s %ld\\n", name.c_str(), count);
    return 0;
"""
    told = passes(program(files((SPLIT,)), tmp_path, CALLS + main))
    assert dict(line.split() for line in told.splitlines()) == {"cudaGetDevice": "3", "cudaLaunchKernelExC": "3"}


def test_a_simple_call_keeps_a_workspace_for_each_stream(tmp_path: Path) -> None:
    main = """
    cudaStream_t other;
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaFree(workspace);
    const long before = fake::allocated;
    for (cudaStream_t each : {stream, other, stream, (cudaStream_t)nullptr, other}) {
        expect(gemm(a, k, b, n, c, n, m, n, k, 1, 0, each) == 0 && right(c), "call");
    }
    expect(fake::allocated == before + 3, "one a stream");
    expect(gemm(a, k, b, n, d, n, 640, n, 10, 1, 0, stream) == 0, "a shape that wants more");
    expect(gemm(a, k, b, n, c, n, m, n, k, 1, 0, stream) == 0 && right(c), "counters are clean after growing");
    expect(fake::allocated == before + 3, "what is too small goes");
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    expect(gemm(a, k, b, n, c, n, m, n, k, 1, 0, stream) == GEMM_CAPTURING, "a capture is refused");
    expect(gemm_release() == 0 && fake::allocated == before, "released");
    return 0;
""".replace("640, n, 10", "64, n, 100")
    passes(program(files((SPLIT,)), tmp_path, CALLS + main))


def test_threads_devices_and_graphs(tmp_path: Path) -> None:
    concurrent = CONCURRENT.read_text().replace("int main(int argc", "int concurrent(int argc")
    (first, code), *rest = files((SPLIT,)).files
    unit = Emitted(((first, code + concurrent), *rest))
    main = "    fake::calls.clear();\n    return concurrent(argc, argv);\n"
    assert "4 threads on 2 devices, 60 calls each" in passes(program(unit, tmp_path, main, "-fsanitize=thread"), "60")


def test_more_tiles_than_counters_are_cleared_by_the_call(tmp_path: Path) -> None:
    main = """
    const int big = 1056, depth = 8;  // 33 x 33 tiles of C, more than half as many as there are counters
    float *x, *y, *z;
    for (float** each : {&x, &y, &z}) cudaMalloc((void**)each, size_t(4) * 4 * big * big);
    for (int i = 0; i < 2 * big * depth; ++i) x[i] = 1, y[i] = 1;
    const int rows = 4 * big, columns = big;
    const size_t room = gemm_workspace_size(rows, columns, depth);
    void* much = nullptr;
    cudaMalloc(&much, room);
    expect(gemm_workspace_init(much, room, stream) == 0, "init");
    for (int i = 0; i < 4 * big * depth; ++i) x[i] = 1;
    fake::calls.clear();
    expect(gemm_run(x, depth, y, columns, z, columns, rows, columns, depth, 1, 0, much, room, stream) == 0, "run");
    for (size_t i = 0; i < size_t(rows) * columns; ++i) expect(z[i] == depth, "every element");
    printf("%ld\\n", fake::calls["cudaMemsetAsync"]);
    expect(gemm_run(a, k, b, n, c, n, m, n, k, 1, 0, much, room, stream) == 0 && right(c), "a small one after it");
    return 0;
"""
    told = passes(program(files((SPLIT,)), tmp_path, CALLS + main, "-O2"))
    assert told == "1\n"


def test_a_device_that_is_too_old_is_told(tmp_path: Path) -> None:
    main = """
    fake::capability = 75;  // without cp.async
    expect(gemm_run(a, k, b, n, c, n, m, n, k, 1, 0, workspace, bytes, stream) == GEMM_UNSUPPORTED_DEVICE, "run");
    expect(gemm_init() == GEMM_UNSUPPORTED_DEVICE, "init");
    puts(gemm_status_string(GEMM_UNSUPPORTED_DEVICE));
    puts(gemm_status_string(GEMM_CUDA_ERROR + cudaErrorNoDevice));
    puts(gemm_status_string(77));
    return 0;
"""
    told = passes(program(files((SPLIT,)), tmp_path, CALLS + main)).splitlines()
    assert "later architecture" in told[0]
    assert told[1:] == ["no CUDA-capable device is detected", "no such status"]


DESCRIBE = """
    for (int i = 1; i + 2 < argc; i += 3) {
        gemm_description found;
        const int status = gemm_describe(atoi(argv[i]), atoi(argv[i + 1]), atoi(argv[i + 2]), &found);
        printf("%d %s %lldx%lldx%lld %g\\n", status, found.config, (long long)found.m, (long long)found.n,
               (long long)found.k, found.recorded_us);
    }
    return 0;
"""


def test_a_tuned_shape_gets_its_kernel_and_another_that_of_the_nearest(tmp_path: Path) -> None:
    rows = [
        Served(Problem.parse(shape), parse(text), ARCHES["sm_90a"], recorded_us=us, origin="tuned")
        for shape, text, us in (
            ("100", "tiled:16", 1.5),
            ("1024", "simt:64x64x16,vec=1x4x4", 46.0),
            ("4096x16x4096", "skinny:4x4x4", 20.0),
            ("2048", "simt:64x64x16,edge=exact,vec=1x4x4", 325.0),
        )
    ]
    asked = (
        "100 100 100 128 90 100 1024 1024 1024 1024 1024 960 1025 1023 1024 4000 12 4096 2048 2048 2048 2049 2048 2048"
    )
    told = passes(program(emit(rows), tmp_path, DESCRIBE), *asked.split()).splitlines()
    assert told == [
        "0 tiled:16 100x100x100 1.5",
        "0 tiled:16 100x100x100 0",
        "0 simt:64x64x16,vec=1x4x4 1024x1024x1024 46",
        "0 simt:64x64x16,vec=1x4x4 1024x1024x1024 0",
        "0 simt:64x64x16 0x0x0 0",  # rows of 1023 elements suit no vector of 4, and no other shape is near
        "0 skinny:4x4x4 4096x16x4096 0",
        "0 simt:64x64x16,vec=1x4x4,edge=exact 2048x2048x2048 325",
        "0 simt:64x64x16,vec=1x4x4 1024x1024x1024 0",  # 2049 is no multiple of 64
    ]


@pytest.mark.parametrize(("capability", "config"), [(80, "tiled:16"), (86, "tiled:16"), (90, SHARED_K), (75, "")])
def test_each_device_gets_the_kernels_of_its_architecture(tmp_path: Path, capability: int, config: str) -> None:
    problem = Problem.parse("64x40x100")
    rows = [Served(problem, parse("tiled:16"), ARCHES["sm_80"]), Served(problem, parse(SHARED_K), ARCHES["sm_90a"])]
    main = f"    fake::capability = {capability};\n{DESCRIBE}"
    told = passes(program(emit(rows), tmp_path, main), "64", "40", "100")
    assert told.split()[1:2] == ([str(parse(config))] if config else ["(null)"])
    assert told.startswith("7" if capability == 75 else "0")


def test_a_header_holds_everything(tmp_path: Path) -> None:
    emitted = emit(served([SPLIT]), "gemm", Layout(header_only=True))
    assert [name for name, _ in emitted.files] == ["gemm.cuh"]
    main = """
    expect(gemm_workspace_init(workspace, bytes, stream) == 0, "init");
    expect(gemm_run(a, k, b, n, c, n, m, n, k, 1, 0, workspace, bytes, stream) == 0 && right(c), "run");
    expect(gemm(a, k, b, n, d, n, m, n, k, 1, 0, stream) == 0 && right(d) && gemm_release() == 0, "call");
    return 0;
"""
    passes(program(emitted, tmp_path, CALLS + main))
