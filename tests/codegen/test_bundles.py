"""Emitted files that run without a GPU (support/fake_cuda): self-tests, calls, workspaces, threads and graphs, and the
kernels that shapes and devices get."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from emitted import COMPILER, SHARED_K, TESTED, Program, Row, built, built_once, passes, program, run, served
from emitted import TMA as BY_TMA
from quick import TYPICAL
from tilewright.codegen.bundle import Served
from tilewright.codegen.emit import Layout, emit
from tilewright.codegen.emitted import Emitted
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem

# ---- Self-tests -------------------------------------------------------------------------------------------------


CTAS = "simt:32x32x8,thread=4x4"
TMA = "simt:32x16x64,load=tma,stages=3,thread=4,slices=2,split_k=2,k_inner_a=1"
ALONE: dict[str, Row] = {
    "naive": ("naive:8x32", "40x24x56", "double", "tt"),
    "tiled": ("tiled:16", "33x17x40", "float", "nn"),
    "pad": ("tiled:16,edge=pad", "33x17x40", "float", "nt"),
    "exact": ("tiled:8", "24x16x32", "double", "nn"),
    "vectors": ("simt:64x64x16", "64x68x72", "float", "tn"),
    "split-K": (f"{CTAS},split_k=3", "64x40x100", "float", "tn"),
    "cooperative split-K": ("simt:64x64x16,thread=4,slices=2,split_k=12", "97x65x193", "float", "nn"),
    "cluster": ("simt:64x64x32,thread=4,slices=2,split_k=2,reduce=cluster", "97x65x193", "float", "nn"),
    "stream-K": ("simt:32x32x8,thread=4x4,stream_k=1", "128x96x64", "float", "nn"),
    "packed": ("simt:pack_a,pack_b", "66x70x40", "float", "nn"),
    "packed with split-K": ("simt:pack_a,split_k=2", "66x71x40", "float", "tt"),
    "TMA": (TMA, "64x48x192", "float", "nn"),
    "skinny": ("skinny:4x4x4,split_k=2", "70x4x200", "float", "nn"),
    "terms": ("mma:64x64x32,warp=32x32", "66x66x100", "float", "tn"),
    "terms by wgmma": ("wgmma:64x64x64,stages=2", "66x70x200", "float", "nt"),
    "TF32 terms": ("tf32x3:32x64x32,promote=16,split_k=2", "66x66x101", "float", "nn"),
    "dmma": ("dmma:persistent=4", "130x132x40", "double", "nn"),
    "dmma stream-K": ("dmma:stream_k=1", "130x71x97", "double", "nn"),
}
"""A kernel of each kind, which is emitted alone."""
SMALL: dict[str, Row] = {
    "small": ("small:4x3x2,block_threads=64", "7x5x9", "float", "tn"),
    "small of one part": ("small:4x4x6,block_threads=64", "4x6x8", "float", "nn"),
    "small by cp.async": ("small:8x2x3,load=cp_async,block_threads=96", "5x7x4", "double", "nt"),
}
"""Kernels of which a CTA computes several products of a batch. A product has parts for several threads, or one part."""
BATCHED = ("pad", "stream-K", "packed", "packed with split-K", "skinny", "terms", "terms by wgmma", *SMALL)
"""Kernels for each way to hold the matrices of a batch in a workspace, and kernels of small matrices."""
SEVERAL: tuple[Row, ...] = (
    ("tiled:16", "33x17x40", "float", "nn"),
    (SHARED_K, "64x40x100", "float", "nn"),
    ("simt:32x32x8,thread=4x4,stream_k=1", "128x96x64", "float", "nn"),
    (TMA, "64x48x192", "float", "nn"),
    ("simt:pack_a,pack_b", "66x70x40", "float", "nt"),
    ("dmma:stream_k=1", "130x71x97", "double", "nn"),
    ("skinny:4x4x4,split_k=2", "70x4x200", "double", "nt"),
)
"""Kernels of all kinds for one bundle, which use one workspace in turn."""


NAMES = {kind: f"gemm_{number}" for number, kind in enumerate(ALONE | SMALL)}
"""Names under which these kernels are emitted. They differ, because one program holds all."""


@pytest.fixture(scope="session")
def each_alone(shared_folder: Path) -> Path:
    """One program of all bundles: of one kernel each, for batches, for calls of many products, and with kernels of all
    kinds. They share most of the text that takes long to compile."""

    def programs() -> dict[str, Program]:
        rows = ALONE | SMALL
        shapes = [(SMALL["small"][0], shape, "float", "nn") for shape in ("8x6x4", "4x4x4")]
        return {
            **{kind: program([row], NAMES[kind]) for kind, row in ALONE.items()},
            **{f"{kind} batched": program([rows[kind]], f"{NAMES[kind]}_batched", ALL_BATCHED) for kind in BATCHED},
            "many": program([("naive:1x32", "1x1x1", "float", "nn")], "many", ALL_BATCHED, MANY),
            "placed": program([(SHARED_K, "64x64x96", "float", "nn")], "placed", ALL_BATCHED, STEPS),
            "mixed": program([*shapes, SPLIT], "mixed", ALL_BATCHED),
            "routes": program(shapes[:1], "routes", ALL_BATCHED, ROUTES),
            "whole": program(SEVERAL, "whole_bundle"),
        }

    return built_once(programs, shared_folder / "each_alone", "-O0")


@pytest.fixture
def split_bundle(tmp_path: Path) -> Path:
    """The program of a bundle with kernels of all kinds, each in a file of its own."""
    return built({"split": program(SEVERAL, "split_bundle", Layout(main=True, split=True))}, tmp_path, "-O0")


ALL_BATCHED = Layout(main=True, batched=True)


ROUTES = r"""
    for (auto& [function, kernel] : fake::kernels) {
        kernel.prepare = [own = function](const cudaLaunchConfig_t& launch, void**) -> fake::Work {
            const auto is = [&](int row) { return routes_impl::f32_nn_shapes[row].kernel->function == own; };
            printf(" %s %ux%u", is(0) ? "dense" : is(1) ? "any" : "general", launch.gridDim.x, launch.gridDim.y);
            return [] { return static_cast<const char*>(nullptr); };
        };
    }
    const auto place = [](int bit) { return reinterpret_cast<float*>(1ll << bit); };
    float *const a = place(40), *const b = place(41), *const c = place(42);
    const auto batch = [](float* x, long ldx, long step, float* y, long step_y, float* z, long ldz, long step_z,
                          long count, float alpha = 1, long k = 4) {
        const int status = routes_run_batched(
            x, ldx, step, y, 6, step_y, z, ldz, step_z, 8, 6, k, count, alpha, 0, nullptr, 0, nullptr);
        printf("%s", status ? " refused" : "");
    };
    batch(a, 4, 32, b, 24, c, 6, 48, 9), batch(a, 4, 32, b, 24, c, 6, 48, 300000), printf("\n");
    batch(a, 4, 36, b, 24, c, 6, 48, 9), batch(a, 4, 32, b, 0, c, 6, 48, 9), batch(a, 4, 32, b, 24, c, 6, 52, 9);
    batch(a, 5, 32, b, 24, c, 6, 48, 9), batch(a, 4, 32, b, 24, c, 8, 64, 9), printf("\n");
    batch(a + 1, 4, 32, b, 24, c, 6, 48, 9), batch(a, 4, 32, b + 2, 24, c, 6, 48, 9), printf("\n");
    batch(a, 4, 7, b, 7, c, 6, 7, 1), batch(nullptr, 4, 7, nullptr, 7, c, 6, 48, 9, 0), printf("\n");
    batch(a, 4, 24, b, 18, c, 6, 48, 9, 1, 3), printf("\n");
    float **const as = reinterpret_cast<float**>(a), **const cs = reinterpret_cast<float**>(c);
    for (const int count : {1, 9}) routes_run_pointers(as, 4, as, 6, cs, 6, 8, 6, 4, count, 1, 0, nullptr, 0, nullptr);
    routes_run(a, 4, b, 6, c, 6, 8, 6, 4, 1, 0, nullptr, 0, nullptr);
    routes_description description;
    routes_describe(8, 6, 4, &description);
    printf("\n%d %zu %zu\n", description.kernel == routes_impl::f32_nn_shapes[0].kernel->name,
           routes_workspace_size(8, 6, 4), routes_workspace_size_batched(8, 6, 4, 9));
    return 0;
"""
"""Calls of batches of small matrices that print the launched kernel and its grid: without gaps; with gaps, steps of 0
and padded rows; at misaligned addresses; of one product or without A and B; of another k; at addresses in arrays."""


MANY = r"""
    const int count = 65537;
    std::vector<float> a(count), b(2 * count), c(count, -1.f);
    for (int i = 0; i < count; ++i) a[size_t(i)] = float(i), b[size_t(2 * i)] = float(i % 3);
    const auto run = [&](float* first_c, long ldc, long stride_c, long batch, long m = 1) {
        return many_run_batched(
            a.data(), 1, 1, b.data(), 1, 2, first_c, ldc, stride_c, m, 1, 1, batch, 1, 0, nullptr, 0, nullptr);
    };
    printf("%d", run(c.data(), 1, 1, count));
    for (int i = 0; i < count; ++i) {
        if (c[size_t(i)] != float(i) * float(i % 3)) return printf(" wrong at %d", i), 1;
    }
    // Backwards, one C for all, one product whose stride does not matter, side by side in rows, too many.
    printf(" %d", run(c.data() + 2, 1, -1, 3));
    printf(" %d", run(c.data(), 1, 0, 3));
    printf(" %d", run(c.data(), 1, -9223372036854775807 - 1, 1));
    printf(" %d %d", run(c.data(), 3, 1, 3, 2), run(c.data(), 2, 1, 3, 2));
    printf(" %d", run(c.data(), 1, 1, 1l << 31));
    return 0;
"""
"""Calls with more products than a grid has CTAs along y, and with several strides of C."""


STEPS = r"""
    const void* launched = nullptr;
    for (auto& [function, kernel] : fake::kernels) {
        kernel.prepare = [&launched, own = function](const cudaLaunchConfig_t&, void** arguments) -> fake::Work {
            printf("%s", launched && launched != own ? "other" : "same");
            launched = launched ? launched : own;
            for (int i : {11, 12}) printf(" %lld", *static_cast<long long*>(arguments[i]) - (1ll << 43));
            const auto& batch = *static_cast<placed_impl::Batch*>(arguments[13]);
            for (int i = 0; i < 5; ++i) printf(" %lld", batch.step[i]);
            printf(" %u %u\n", batch.count, batch.arrays);
            return [] { return static_cast<const char*>(nullptr); };
        };
    }
    placed_init();
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);  // nothing is cleared
    const auto place = [](int bit) { return reinterpret_cast<float*>(1ll << bit); };
    const auto room = [](long batch) { return placed_workspace_size_batched(64, 64, 96, batch); };
    for (const long batch : {3, 3000}) {
        placed_run_batched(
            place(40), 96, 8192, place(41), 64, 8192, place(42), 64, 4096, 64, 64, 96, batch, 1, 0, place(43),
            room(batch), stream);
    }
    float** const arrays = reinterpret_cast<float**>(1ll << 40);
    for (const float alpha : {1, 0}) {
        float** const read = alpha ? arrays : nullptr;
        placed_run_pointers(
            read, 96, read, 64, arrays, 64, 64, 64, 96, 3, alpha, 0, place(43), room(3), stream);
    }
    return 0;
"""
"""Calls of batches whose launches print the offsets of partial tiles and counters, and the argument `Batch`."""
PARTS = 4 * 3 * 32 * 32
"""Number of elements in the partial tiles of a product of `STEPS`."""


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
def test_each_product_has_partial_tiles_and_counters_of_its_own(each_alone: Path) -> None:
    """Launches are compared, as results do not depend on this: the processor runs one product after the other. 3,000
    products have more counters than a workspace has at its start. Matrices at addresses in arrays get the general
    kernel."""
    assert passes(each_alone, "placed").splitlines() == [
        f"same 16384 0 8192 8192 4096 {PARTS} 4 3 0",
        f"same {16384 + 3000 * 256} 16384 8192 8192 4096 {PARTS} 64 3000 0",
        f"other 16384 0 0 0 0 {PARTS} 4 3 7",
        f"other 16384 0 0 0 0 {PARTS} 4 3 4",
    ]


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
@pytest.mark.parametrize("name", BATCHED)
def test_batches_pass_the_self_test(each_alone: Path, name: str) -> None:
    output = passes(each_alone, f"{name} batched", "--no-times")
    assert len(re.findall(rf"^{NAMES[name]}_batched +\d+x\d+x\d+ +ok ", output, re.MULTILINE)) == 1
    assert "WRONG" not in output


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
def test_small_kernels_pass_the_self_test_beside_others(each_alone: Path) -> None:
    """Two shapes have texts of their own for one config, and any other shape gets the general kernel."""
    output = passes(each_alone, "mixed", "--no-times")
    assert re.findall(r"^mixed +(\d+x\d+x\d+) +ok ", output, re.MULTILINE) == ["8x6x4", "4x4x4", "64x40x100"]
    assert " ok " in passes(each_alone, "mixed", "--no-times", "8", "6", "5")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
def test_small_matrices_get_the_kernel_for_their_layout(each_alone: Path) -> None:
    """A CTA computes 4 products, but a CTA of the general kernel computes one."""
    assert passes(each_alone, "routes").splitlines() == [
        " dense 3x1 dense 75000x1",
        5 * " any 3x1",
        2 * " any 3x1",
        " dense 1x1 dense 3x1",
        " general 1x9",
        " any 1x1 any 3x1 dense 1x1",
        "1 0 0",
    ]


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
def test_a_batch_has_more_products_than_a_grid_has_ctas_along_y(each_alone: Path) -> None:
    assert passes(each_alone, "many") == "0 0 9 0 0 9 5"


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
@pytest.mark.parametrize("name", ALONE)
def test_every_kind_of_kernel_passes_its_self_test(each_alone: Path, name: str) -> None:
    output = passes(each_alone, name, "--no-times")
    assert len(re.findall(rf"^{NAMES[name]} +\d+x\d+x\d+ +ok ", output, re.MULTILINE)) == 1
    assert "WRONG" not in output


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
@pytest.mark.parametrize(
    ("layout", "built_as"), [("whole", "each_alone"), pytest.param("split", "split_bundle", marks=pytest.mark.slow)]
)
def test_a_bundle_of_all_kinds_passes_its_self_test(request: pytest.FixtureRequest, layout: str, built_as: str) -> None:
    output = passes(request.getfixturevalue(built_as), layout)
    line = r"^\w+_bundle_f\d\d_n\w +(\d+x\d+x\d+) +ok +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +- +-"
    rows = re.findall(line, output, re.MULTILINE)
    assert sorted(shape for shape, *_ in rows) == sorted(shape for _, shape, _, _ in SEVERAL)
    assert all(float(time) > 0 for _, *times in rows for time in times)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
def test_any_other_shape_can_be_tested(each_alone: Path) -> None:
    for shape in ("1x1x1", "65x33x17", "64x128x40"):
        assert shape in passes(each_alone, "vectors", "--no-times", *shape.split("x"))
    assert run(each_alone, "vectors", "1", "2").returncode == 2
    done = run(each_alone, "vectors", "1", "2", "x")
    message = f"{NAMES['vectors']}_main: a size must be 1 to 2147483647, got x\n"
    assert (done.returncode, done.stderr) == (2, message)


FAULTS = {
    "a dropped term": ("tiled", r"p < kTileWidth; \+\+p", "p < kTileWidth - 1; ++p"),
    "a store outside": ("tiled", r"row < m && col < n", "row < m && col < n + 1"),
    "C read at beta 0": ("tiled", r"beta == Elem\(0\) \? alpha \* product :", ""),
    "beta forgotten": ("tiled", r"\+ beta \* \*c", ""),
    "swapped operands": ("tiled", r"b_tile\[p\]\[tx\]", "b_tile[tx][p]"),
    "an empty product launched": ("tiled", r" \|\| !sizes\[0\][^)]*\)( return status;\n +call\.r)", r")\1"),
    "a null C not refused": ("tiled", r"if \(!c \|\| ", "if ("),
    "alignment not checked": ("vectors", r"if \(address & [^\n]*return false;", ""),
    "specialized kernel for any shape": ("exact", r"call.size\[i\] % kernel.multiple\[i\] != 0\)", "false)"),
    "counters where partial tiles are": ("split-K", r"\(call.need \? counter_bytes : 0\)", "0"),
    "too few CTAs": ("cluster", r"\) \* kernel.split_ctas;", ") * (kernel.split_ctas - 1);"),
    "copies over partial tiles": ("packed with split-K", r"memory \+= step->bytes\(", "memory += 0 * step->bytes("),
    "one copy over the other": ("packed", r"memory \+= ld \* call", "ctas += 0 * call"),
    "rows of a box for its columns": ("TMA", r"\{box_cols, box_rows\}", "{box_rows, box_cols}"),
    "padding not zeroed": ("pad", r": Elem\(0\);(\n        \}\n    \}\n\})", r": to[row * ld_to + col];\1"),
    "C left in its buffer": ("pad", r"&& step->end &&", "&& !step->end &&"),
    "no room for partial tiles": ("stream-K", r"stream_ctas \? 2 :", "stream_ctas ? 1 :"),
    "CTAs of all products for each": ("small", r"kernel.products \? 1 :", "false ? 1 :"),
    "no CTA for the last products": ("small", r"ceil_div\(call.batch.count, (kernel.*)\);", r"call.batch.count / \1;"),
    "CTAs of one product": ("small of one part", r"if \(kernel.products\) return.*", ""),
    "gaps not checked": ("small", r"step != kernel.only_step\[i\] &&", "false &&"),
    "padded rows not checked": ("small", r"ld != width \|\| ", ""),
    "an array taken for a matrix": ("small", r"call.batch.arrays \? -1 : ", ""),
    "addresses not read": ("small", r"if \(batch.arrays >> x & 1\) starts", "if (false) starts"),
    "addresses from another matrix": ("small by cp.async", r"- matrices\[x\]", "- matrices[2]"),
    "another shape": ("small", r"call.size\[i\] != kernel.only\[i\]", "false"),
    "a missing workspace not refused": ("batched stream-K", r"\(call.need > room \|\| !call.workspace\)", "false"),
    "a workspace for one product": ("batched packed with split-K", r"\+= own \* call.batch.count;", "+= own;"),
    "vectors at addresses in arrays": ("batched vectors", r"call.batch.arrays \? -1 : ", ""),
    "one packed matrix for all": ("batched packed", r"= call.batch.step\[i\] = own;", "= call.batch.step[i] = 0;"),
    "one padded matrix for all": ("batched pad", r"call.batch.step\[i\] = own;", "call.batch.step[i] = 0;"),
    "terms of one product for all": ("batched terms", r"= term_bytes\(\*call.kernel, call\);", "= 0;"),
    "one product a launch": ("batched skinny", r", unsigned\(ceil_div\(call.planes, along_z\)\), ", ", 1, "),
}  # fmt: skip


SANITIZED = (
    "no room for partial tiles",
    "alignment not checked",
    "a workspace for one product",
    "vectors at addresses in arrays",
)
"""Faults that a GPU by itself, or memcheck on it, would report."""
SANITIZERS = "-fsanitize=address,alignment", "-fno-sanitize-recover=all"


def unfaulted(kind: str, name: str) -> Program:
    """The files of a kind of kernel. They serve batches if `kind` says so or the kernel serves nothing else."""
    kernel = kind.removeprefix("batched ")
    layout = ALL_BATCHED if kernel in SMALL or kernel != kind else TESTED
    return program([(ALONE | SMALL)[kernel]], name, layout)


def broken(fault: str) -> Program:
    """The files with a fault, under a name of their own."""
    kind, pattern, replacement = FAULTS[fault]
    whole = unfaulted(kind, f"faulty_{[*FAULTS].index(fault)}")
    (code_name, code), *rest = whole.files.files
    text, count = re.subn(pattern, replacement, code, count=1)
    assert count == 1
    return Program(Emitted(((code_name, text), *rest)), whole.name)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
@pytest.mark.slow
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in SANITIZED])
def test_the_self_test_catches_faults(shared_folder: Path, fault: str) -> None:
    def programs() -> dict[str, Program]:
        return {each: broken(each) for each in FAULTS if each not in SANITIZED}

    tested = built_once(programs, shared_folder / "faults", "-O0")
    shape = ("23", "17", "30") if fault == "specialized kernel for any shape" else ()
    done = run(tested, fault, "--no-times", *shape)
    assert done.returncode != 0, done.stdout


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
@pytest.mark.slow
def test_sanitizers_catch_other_faults_and_let_the_unfaulted_pass(tmp_path: Path) -> None:
    programs = {fault: broken(fault) for fault in SANITIZED}
    kinds = [FAULTS[fault][0] for fault in SANITIZED]
    right = {kind: unfaulted(kind, f"right_{number}") for number, kind in enumerate(kinds)}
    tested = built(programs | right, tmp_path, "-O0", *SANITIZERS)
    for fault in programs:
        assert run(tested, fault, "--no-times").returncode != 0, fault
    for kind in right:
        passes(tested, kind, "--no-times")


# ---- Functions: calls, workspaces, threads, graphs --------------------------------------------------------------


CONCURRENT = Path(__file__).parents[1] / "support" / "concurrent.cu"

CALLS = r"""
    const int m = 64, n = 40, k = 100;
    float *a, *b, *c, *d;
    for (float** each : {&a, &b, &c, &d}) cudaMalloc((void**)each, m * k * 4 + 4096);
    for (int i = 0; i < m * k; ++i) a[i] = float(i % 7 - 3);
    for (int i = 0; i < k * n; ++i) b[i] = float(i % 5 - 2);
    const auto right = [&](const float* result) {
        for (int i = 0; i < m; ++i) {
            for (int j = 0; j < n; ++j) {
                float sum = 0;
                for (int p = 0; p < k; ++p) sum += a[i * k + p] * b[p * n + j];
                if (result[i * n + j] != sum) return false;
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
        gemm_description kernel;
        const int status = gemm_describe(atoi(argv[i]), atoi(argv[i + 1]), atoi(argv[i + 2]), &kernel);
        printf("%d %s %lldx%lldx%lld %g\\n", status, kernel.config, (long long)kernel.m, (long long)kernel.n,
               (long long)kernel.k, kernel.recorded_us);
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
    expect(fake::allocated == before + 3, "one for each stream");
    expect(gemm(a, k, b, n, d, n, 64, n, 100, 1, 0, stream) == 0, "a shape that needs more");
    expect(gemm(a, k, b, n, c, n, m, n, k, 1, 0, stream) == 0 && right(c), "counters are clean after growing");
    expect(fake::allocated == before + 3, "a workspace that is too small is freed");
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
    expect(gemm_run(a, k, b, n, c, n, m, n, k, 1, 0, workspace, bytes, stream) == 0, "all kernels are loaded");
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&ready, graph, 0);
    expect(cudaGraphLaunch(ready, stream) == 0 && right(c), "replayed");
    return 0;
"""
UNALIGNED = """
    const size_t more = 1 << 22;  // enough for kernels of the bundle that need more than the function returns
    void* large = nullptr;
    cudaMalloc(&large, more);
    expect(gemm_workspace_init(large, more, stream) == 0, "init");
    expect(gemm_workspace_init(workspace, bytes, stream) == 0, "init");
    float *x, *y;
    for (float** each : {&x, &y}) cudaMalloc((void**)each, m * k * 4 + 4096);
    for (int i = 0; i < m * k; ++i) x[i] = 1.0f / float(i % 97 + 1), y[i + 1] = 1.0f / float(i % 89 + 1);
    expect(gemm_run(x, k, y + 1, n, c, n, m, n, k, 1, 0, workspace, bytes, stream) == 0, "of the announced size");
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
    """Tuned shapes with their recorded times."""
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
    """Two shapes so far from each other that most shapes are near neither and get the general kernel."""
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
"""Kernels whose operands another kernel prepares."""


def all_programs() -> dict[str, Program]:
    """All programs of the tests of functions, which are compiled together."""

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
    fed = program([(BY_TMA["nn"], "64x40x100", "float", "nn")], "fed_by_tma")
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


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
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
"""Number of calls of CUDA by a warm `_run` of each kind of kernel, without the call that gets the current device."""
STREAM_CALLS = {"cudaGetDevice": 2, "cudaStreamIsCapturing": 1, "cudaStreamGetId": 1}
"""Number of calls by the function that keeps a workspace for each stream; one cudaGetDevice is that of `_run`."""


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
@pytest.mark.parametrize("kind", RUN_CALLS)
def test_number_of_calls_of_cuda_by_a_warm_call(functions: Path, kind: str) -> None:
    """A launcher that calls less often lowers these numbers."""
    counts: dict[str, dict[str, int]] = {}
    for line in passes(functions, f"count {kind}").splitlines():
        function, name, count = line.split()
        counts.setdefault(function, {})[name] = int(count)
    run = {"cudaGetDevice": 1} | RUN_CALLS[kind]
    assert counts == {"run": run, "plain": run if kind == "no workspace" else run | STREAM_CALLS}


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
@pytest.mark.parametrize("kind", PREPARED)
def test_after_init_the_first_call_can_be_captured(functions: Path, kind: str) -> None:
    passes(functions, kind)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
def test_a_simple_call_keeps_a_workspace_for_each_stream(functions: Path) -> None:
    passes(functions, "simple calls")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
def test_threads_devices_and_graphs(tmp_path: Path) -> None:
    concurrent = CONCURRENT.read_text().replace("int main(int argc", "int concurrent(int argc")
    (first, code), *rest = program([SPLIT], "gemm").files.files
    main = "    fake::calls.clear();\n    return concurrent(argc, argv);\n"
    unit = Program(Emitted(((first, code + concurrent), *rest)), "gemm", main)
    tested = built({"threads": unit}, tmp_path, "-fsanitize=thread")
    assert "4 threads on 2 devices, 60 calls each" in passes(tested, "threads", "60")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
def test_more_tiles_than_counters_are_cleared_by_the_call(functions: Path) -> None:
    assert passes(functions, "more tiles") == "1\n"


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
def test_more_tiles_than_a_grid_has_ctas_are_refused(functions: Path) -> None:
    passes(functions, "too many tiles")
    most = str(2**31 - 1)
    assert passes(functions, "tuned", most, most, "5") == "5 (null) 0x0x0 0\n"


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
def test_an_unsuitable_workspace_is_refused(functions: Path) -> None:
    passes(functions, "workspaces")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
def test_a_device_that_is_too_old_has_a_status_and_a_message(functions: Path) -> None:
    lines = passes(functions, "too old").splitlines()
    assert "other architectures" in lines[0]
    assert lines[1:] == ["no CUDA-capable device is detected", "no such status"]


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
def test_a_tuned_shape_gets_its_kernel_and_another_shape_the_kernel_of_the_nearest(functions: Path) -> None:
    sizes = (
        "100 100 100 128 90 100 1020 1020 1020 1024 1024 960 1025 1023 1024 4000 12 4096 2048 2048 2048 2049 2048 2048"
    )
    lines = passes(functions, "tuned", *sizes.split()).splitlines()
    assert lines == [
        "0 tiled:16 100x100x100 1.5",
        "0 tiled:16 100x100x100 0",
        "0 simt:64x64x16 1020x1020x1020 46",
        "0 simt:64x64x16 1020x1020x1020 0",
        "0 simt:64x64x16 0x0x0 0",  # rows of 1023 elements suit no vector of 4, and no other shape is near
        "0 skinny:4x4x4 4096x16x4096 0",
        "0 simt:64x64x16 2048x2048x2048 325",
        "0 simt:64x64x16 1020x1020x1020 0",  # 2049 is no multiple of 64
    ]


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
def test_a_shape_is_near_within_a_factor_of_8(functions: Path) -> None:
    lines = passes(functions, "near", *"320 320 320 328 320 320 5 320 40 4000 40 40 0 40 40".split()).splitlines()
    assert lines == ["0 tiled:8 40x40x40 0"] + 3 * ["0 tiled:16 0x0x0 0"] + ["0 (null) 0x0x0 0"]


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
@pytest.mark.parametrize(
    ("capability", "config"), [(80, "tiled:16"), (86, "tiled:16"), (90, SHARED_K), (75, ""), (120, "tiled:16")]
)
def test_each_device_gets_the_kernels_of_its_architecture(functions: Path, capability: int, config: str) -> None:
    line = passes("env", f"CAPABILITY={capability}", functions, "arches", "64", "40", "100")
    assert line.split()[1:2] == ([str(parse(config))] if config else ["(null)"])
    assert line.startswith("7" if capability == 75 else "0")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
def test_bits_do_not_depend_on_the_size_of_a_workspace(functions: Path) -> None:
    passes(functions, "unaligned")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
def test_a_header_holds_everything(functions: Path) -> None:
    emitted = emit(served([SPLIT]), "whole_header", Layout(header_only=True))
    assert [name for name, _ in emitted.files] == ["whole_header.cuh"]
    passes(functions, "header")
