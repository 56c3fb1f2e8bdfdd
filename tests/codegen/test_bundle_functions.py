"""Functions of emitted files at work without a GPU: calls, workspaces, threads, graphs, and which kernel a shape and a
device get (support/fake_cuda)."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from bundles import SHARED_K, TESTED, Row, passes, program, run, served
from emit_texts import TMA
from emitted_on_host import COMPILER, Program, built, built_once
from targets import TYPICAL
from tilewright.codegen.bundle import Served
from tilewright.codegen.emit import Layout, emit
from tilewright.codegen.emitted import Emitted
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")

CONCURRENT = Path(__file__).parents[1] / "support" / "concurrent.cu"

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

DESCRIBE = """
    for (int i = 1; i + 2 < argc; i += 3) {
        gemm_description found;
        const int status = gemm_describe(atoi(argv[i]), atoi(argv[i + 1]), atoi(argv[i + 2]), &found);
        printf("%d %s %lldx%lldx%lld %g\\n", status, found.config, (long long)found.m, (long long)found.n,
               (long long)found.k, found.recorded_us);
    }
    return 0;
"""

COUNTED = """
    const auto count = [&](const char* function, const auto& call) {
        for (int i = 0; i < 3; ++i) {
            fake::calls.clear();
            expect(call() == GEMM_SUCCESS && right(c), function);
        }
        for (const auto& [name, times] : fake::calls) printf("%s %s %ld\\n", function, name.c_str(), times);
    };
    expect(gemm_workspace_init(workspace, bytes, stream) == GEMM_SUCCESS && gemm_init() == GEMM_SUCCESS, "init");
    count("run", [&] { return gemm_run(a, k, b, n, c, n, m, n, k, 1, 0, workspace, bytes, stream); });
    count("plain", [&] { return gemm(a, k, b, n, c, n, m, n, k, 1, 0, stream); });
    return 0;
"""
SIMPLE_CALLS = """
    cudaStream_t other;
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaFree(workspace);
    const long before = fake::allocated;
    for (cudaStream_t each : {stream, other, stream, (cudaStream_t)nullptr, other}) {
        expect(gemm(a, k, b, n, c, n, m, n, k, 1, 0, each) == 0 && right(c), "call");
    }
    expect(fake::allocated == before + 3, "one a stream");
    expect(gemm(a, k, b, n, d, n, 64, n, 100, 1, 0, stream) == 0, "a shape that wants more");
    expect(gemm(a, k, b, n, c, n, m, n, k, 1, 0, stream) == 0 && right(c), "counters are clean after growing");
    expect(fake::allocated == before + 3, "what is too small goes");
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    expect(gemm(a, k, b, n, c, n, m, n, k, 1, 0, stream) == GEMM_CAPTURING, "a capture is refused");
    expect(gemm_release() == 0 && fake::allocated == before, "released");
    return 0;
"""
MORE_TILES = """
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
WORKSPACES = """
    char* longer = nullptr;
    cudaMalloc((void**)&longer, bytes + 512);
    const auto status_with = [&](void* memory, size_t size) {
        return gemm_run(a, k, b, n, c, n, m, n, k, 1, 0, memory, size, stream);
    };
    fake::calls.clear();
    for (int askew : {1, 4, 16, 128, 255, 257}) {
        expect(status_with(longer + askew, bytes) == GEMM_MISALIGNED, "one that is not aligned is refused");
    }
    expect(status_with(longer, bytes - 1) == GEMM_WORKSPACE_TOO_SMALL, "a byte too few");
    expect(status_with(nullptr, bytes) == GEMM_WORKSPACE_TOO_SMALL, "none");
    expect(fake::calls.count("cudaLaunchKernelExC") == 0, "nothing is launched");
    expect(gemm_workspace_init(longer + 256, bytes, stream) == 0, "init");
    expect(status_with(longer + 256, bytes) == GEMM_SUCCESS && right(c), "one that is aligned");
    return 0;
"""
TOO_OLD = """
    fake::capability = 75;  // without cp.async
    expect(gemm_run(a, k, b, n, c, n, m, n, k, 1, 0, workspace, bytes, stream) == GEMM_UNSUPPORTED_DEVICE, "run");
    expect(gemm_init() == GEMM_UNSUPPORTED_DEVICE, "init");
    puts(gemm_status_string(GEMM_UNSUPPORTED_DEVICE));
    puts(gemm_status_string(GEMM_CUDA_ERROR + cudaErrorNoDevice));
    puts(gemm_status_string(77));
    return 0;
"""
TOO_MANY_TILES = """
    const int64_t most = 2147483647;
    expect(gemm_can_implement(most, most, 5, most, most, most) == GEMM_TOO_LARGE, "can_implement");
    expect(gemm_workspace_size(most, most, 5) == 0, "workspace_size");
    fake::calls.clear();
    const size_t all = ~size_t(0);
    expect(gemm_run(a, 5, b, most, c, most, most, most, 5, 1, 0, workspace, all, stream) == GEMM_TOO_LARGE, "run");
    expect(fake::calls.count("cudaMemsetAsync") == 0, "nothing is queued");
    return 0;
"""
CAPTURED = """
    expect(gemm_init() == 0 && gemm_workspace_init(workspace, bytes, stream) == 0, "init");
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    expect(gemm_run(a, k, b, n, c, n, m, n, k, 1, 0, workspace, bytes, stream) == 0, "nothing is left to be loaded");
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&ready, graph, 0);
    expect(cudaGraphLaunch(ready, stream) == 0 && right(c), "replayed");
    return 0;
"""
UNALIGNED = """
    const size_t more = 1 << 22;  // a kernel of the bundle that needs more than the function says would fit
    void* large = nullptr;
    cudaMalloc(&large, more);
    expect(gemm_workspace_init(large, more, stream) == 0, "init");
    expect(gemm_workspace_init(workspace, bytes, stream) == 0, "init");
    float *x, *y;
    for (float** each : {&x, &y}) cudaMalloc((void**)each, m * k * 4 + 4096);
    for (int i = 0; i < m * k; ++i) x[i] = 1.0f / float(i % 97 + 1), y[i + 1] = 1.0f / float(i % 89 + 1);
    expect(gemm_run(x, k, y + 1, n, c, n, m, n, k, 1, 0, workspace, bytes, stream) == 0, "of the size that it says");
    expect(gemm_run(x, k, y + 1, n, d, n, m, n, k, 1, 0, large, more, stream) == 0, "larger");
    for (int i = 0; i < m * n; ++i) expect(c[i] == d[i], "the same bits");
    return 0;
"""
HEADER = """
    expect(gemm_workspace_init(workspace, bytes, stream) == 0, "init");
    expect(gemm_run(a, k, b, n, c, n, m, n, k, 1, 0, workspace, bytes, stream) == 0 && right(c), "run");
    expect(gemm(a, k, b, n, d, n, m, n, k, 1, 0, stream) == 0 && right(d) && gemm_release() == 0, "call");
    return 0;
"""


def tuned() -> list[Served]:
    """Shapes with their times."""
    return [
        Served(Problem.parse(shape), parse(text), TYPICAL["sm_90a"], recorded_us=us, origin="tuned")
        for shape, text, us in (
            ("100", "tiled:16", 1.5),
            ("1020", "simt:64x64x16", 46.0),
            ("4096x16x4096", "skinny:4x4x4", 20.0),
            ("2048", "simt:64x64x16", 325.0),
        )
    ]


def near() -> list[Served]:
    """Shapes far from each other; one's kernel leaves most others to the general one."""
    texts = {"40": "tiled:8", "40001": "tiled:16"}
    return [Served(Problem.parse(shape), parse(text), TYPICAL["sm_90a"]) for shape, text in texts.items()]


def timed(recorded_us: float) -> Served:
    return Served(Problem(24, 16, 32), parse("tiled:16"), TYPICAL["sm_90a"], recorded_us=recorded_us, origin='"tuned"')


RECORDED_US = {"long_time": 1e9, "short_time": 1e-3}


PREPARED = {
    "packed": "simt:pack_a,pack_b",
    "padded": "tiled:16,edge=pad",
    "terms": "mma:64x64x32,warp=32x32",
}
"""Kernels that others go before."""


def all_programs() -> dict[str, Program]:
    """The kernels that this file runs; one text is compiled for all."""

    def renamed(main: str, name: str) -> str:
        return re.sub(r"\bGEMM", name.upper(), re.sub(r"\bgemm", name, main))

    problem = Problem.parse("64x40x100")
    two = [Served(problem, parse("tiled:16"), TYPICAL["sm_80"]), Served(problem, parse(SHARED_K), TYPICAL["sm_90a"])]
    mains = {"simple calls": SIMPLE_CALLS, "more tiles": MORE_TILES, "too old": TOO_OLD}
    mains |= {"too many tiles": TOO_MANY_TILES, "workspaces": WORKSPACES}
    capability = '    fake::capability = atoi(getenv("CAPABILITY"));\n'
    header = emit(served([SPLIT]), "whole_header", Layout(header_only=True))
    arches, bare = Program(emit(two, "two_arches"), "two_arches"), Program(emit(near(), "near_shapes"), "near_shapes")
    prepared = {
        kind: program([(text, "64x40x100", "float", "nn")], f"captured_{kind}") for kind, text in PREPARED.items()
    }
    fed = program([(TMA["nn"], "64x40x100", "float", "nn")], "fed_by_tma")
    split = program([SPLIT], "gemm")
    counted = {"no workspace": bare, "split-K": split, **prepared, "TMA": fed, "two arches": arches}
    return {
        **{label: replace(split, main=CALLS + main) for label, main in mains.items()},
        **{kind: Program(emit(timed(us), kind, TESTED), kind) for kind, us in RECORDED_US.items()},
        **{kind: replace(each, main=renamed(CALLS + CAPTURED, each.name)) for kind, each in prepared.items()},
        **{f"count {kind}": replace(each, main=renamed(CALLS + COUNTED, each.name)) for kind, each in counted.items()},
        "unaligned": program(
            [("simt:64x64x16", "64x40x100", "float", "nn"), (SHARED_K, "65x39x99", "float", "nn")],
            "near_by",
            main=renamed(CALLS + UNALIGNED, "near_by"),
        ),
        "tuned": Program(emit(tuned(), "tuned_shapes"), "tuned_shapes", renamed(DESCRIBE, "tuned_shapes")),
        "near": replace(bare, main=renamed(DESCRIBE, bare.name)),
        "arches": replace(arches, main=capability + renamed(DESCRIBE, arches.name)),
        "header": Program(header, "whole_header", renamed(CALLS + HEADER, "whole_header")),
    }


@pytest.fixture(scope="session")
def functions(shared_folder: Path) -> Path:
    return built_once(all_programs, shared_folder / "functions", "-O0")


@pytest.mark.parametrize(("recorded", "status"), [("long_time", 0), ("short_time", 1)])
def test_slower_than_recorded_is_a_failure_where_a_tolerance_is_given(
    functions: Path, recorded: str, status: int
) -> None:
    assert run(functions, recorded).returncode == 0
    done = run(functions, recorded, "--tolerance", "0.1")
    assert done.returncode == status
    assert ("SLOWER" in done.stdout) == bool(status)
    for bad in ("a tenth", "-1", "0.1x", "nan"):
        done = run(functions, recorded, "--tolerance", bad)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"--tolerance must be a number of at least 0, got {bad}" in done.stderr


RUN_CALLS = {
    "no workspace": {"cudaLaunchKernelExC": 1},
    "split-K": {"cudaLaunchKernelExC": 1},
    "packed": {"cudaLaunchKernelExC": 2},
    "padded": {"cudaLaunchKernelExC": 3},
    "terms": {"cudaLaunchKernelExC": 2},
    "TMA": {"cudaLaunchKernelExC": 1, "cuTensorMapEncodeTiled": 2},
    "two arches": {"cudaLaunchKernelExC": 1},
}
"""Calls of CUDA by a warm `_run` of each kind of kernel, besides one that finds the current device."""
STREAM_CALLS = {"cudaGetDevice": 2, "cudaStreamIsCapturing": 1, "cudaStreamGetId": 1}
"""Calls by which the function without a workspace finds that of a stream; one for the device is that of `_run`."""


@pytest.mark.parametrize("kind", RUN_CALLS)
def test_a_warm_call_calls_cuda_so_often(functions: Path, kind: str) -> None:
    """A launcher that calls less often lowers these numbers."""
    counts: dict[str, dict[str, int]] = {}
    for line in passes(functions, f"count {kind}").splitlines():
        function, name, count = line.split()
        counts.setdefault(function, {})[name] = int(count)
    run = {"cudaGetDevice": 1} | RUN_CALLS[kind]
    assert counts == {"run": run, "plain": run if kind == "no workspace" else run | STREAM_CALLS}


@pytest.mark.parametrize("kind", PREPARED)
def test_after_init_the_first_call_can_be_captured(functions: Path, kind: str) -> None:
    passes(functions, kind)


def test_a_simple_call_keeps_a_workspace_for_each_stream(functions: Path) -> None:
    passes(functions, "simple calls")


def test_threads_devices_and_graphs(tmp_path: Path) -> None:
    concurrent = CONCURRENT.read_text().replace("int main(int argc", "int concurrent(int argc")
    (first, code), *rest = program([SPLIT], "gemm").files.files
    main = "    fake::calls.clear();\n    return concurrent(argc, argv);\n"
    unit = Program(Emitted(((first, code + concurrent), *rest)), "gemm", main)
    tested = built({"threads": unit}, tmp_path, "-fsanitize=thread")
    assert "4 threads on 2 devices, 60 calls each" in passes(tested, "threads", "60")


def test_more_tiles_than_counters_are_cleared_by_the_call(functions: Path) -> None:
    assert passes(functions, "more tiles") == "1\n"


def test_more_tiles_than_a_grid_has_ctas_are_refused(functions: Path) -> None:
    passes(functions, "too many tiles")
    most = str(2**31 - 1)
    assert passes(functions, "tuned", most, most, "5") == "5 (null) 0x0x0 0\n"


def test_a_workspace_that_does_not_do_is_refused(functions: Path) -> None:
    passes(functions, "workspaces")


def test_a_device_that_is_too_old_is_told(functions: Path) -> None:
    told = passes(functions, "too old").splitlines()
    assert "other architectures" in told[0]
    assert told[1:] == ["no CUDA-capable device is detected", "no such status"]


def test_a_tuned_shape_gets_its_kernel_and_another_that_of_the_nearest(functions: Path) -> None:
    asked = (
        "100 100 100 128 90 100 1020 1020 1020 1024 1024 960 1025 1023 1024 4000 12 4096 2048 2048 2048 2049 2048 2048"
    )
    told = passes(functions, "tuned", *asked.split()).splitlines()
    assert told == [
        "0 tiled:16 100x100x100 1.5",
        "0 tiled:16 100x100x100 0",
        "0 simt:64x64x16 1020x1020x1020 46",
        "0 simt:64x64x16 1020x1020x1020 0",
        "0 simt:64x64x16 0x0x0 0",  # rows of 1023 elements suit no vector of 4, and no other shape is near
        "0 skinny:4x4x4 4096x16x4096 0",
        "0 simt:64x64x16 2048x2048x2048 325",
        "0 simt:64x64x16 1020x1020x1020 0",  # 2049 is no multiple of 64
    ]


def test_a_shape_is_near_within_a_factor_of_8(functions: Path) -> None:
    told = passes(functions, "near", *"320 320 320 328 320 320 5 320 40 4000 40 40 0 40 40".split()).splitlines()
    assert told == ["0 tiled:8 40x40x40 0"] + 3 * ["0 tiled:16 0x0x0 0"] + ["0 (null) 0x0x0 0"]


@pytest.mark.parametrize(
    ("capability", "config"), [(80, "tiled:16"), (86, "tiled:16"), (90, SHARED_K), (75, ""), (120, "tiled:16")]
)
def test_each_device_gets_the_kernels_of_its_architecture(functions: Path, capability: int, config: str) -> None:
    told = passes("env", f"CAPABILITY={capability}", functions, "arches", "64", "40", "100")
    assert told.split()[1:2] == ([str(parse(config))] if config else ["(null)"])
    assert told.startswith("7" if capability == 75 else "0")


def test_bits_do_not_depend_on_the_size_of_a_workspace(functions: Path) -> None:
    passes(functions, "unaligned")


def test_a_header_holds_everything(functions: Path) -> None:
    emitted = emit(served([SPLIT]), "whole_header", Layout(header_only=True))
    assert [name for name, _ in emitted.files] == ["whole_header.cuh"]
    passes(functions, "header")
