"""Self-tests of emitted files without a GPU, on a runtime that runs kernels on the processor (support/fake_cuda)."""

import re
from pathlib import Path

import pytest
from bundles import SHARED_K, Row, passes, program, run
from emitted_on_host import COMPILER, Program, built, built_once
from tilewright.codegen.emit import Layout
from tilewright.codegen.emitted import Emitted

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")

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
    "terms": ("mma:64x64x32,warp=32x32", "130x66x300", "float", "tn"),
    "terms by wgmma": ("wgmma:64x64x64,stages=2", "66x70x200", "float", "nt"),
    "TF32 terms": ("tf32x3:32x64x32,promote=16,split_k=2", "130x66x301", "float", "nn"),
    "dmma": ("dmma:persistent=4", "130x132x40", "double", "nn"),
    "dmma stream-K": ("dmma:stream_k=1", "130x71x97", "double", "nn"),
}
SEVERAL: tuple[Row, ...] = (
    ("tiled:16", "33x17x40", "float", "nn"),
    (SHARED_K, "64x40x100", "float", "nn"),
    ("simt:32x32x8,thread=4x4,stream_k=1", "128x96x64", "float", "nn"),
    (TMA, "64x48x192", "float", "nn"),
    ("simt:pack_a,pack_b", "66x70x40", "float", "nt"),
    ("dmma:stream_k=1", "130x71x97", "double", "nn"),
    ("skinny:4x4x4,split_k=2", "70x4x200", "double", "nt"),
)
"""Kernels of every kind in one bundle: they use one workspace in turn."""


NAMES = {kind: f"gemm_{number}" for number, kind in enumerate(ALONE)}
"""Under which each is emitted: all of them are one program."""


LAYOUTS = {"whole": Layout(main=True), "split": Layout(main=True, split=True)}


@pytest.fixture(scope="session")
def each_alone(shared_folder: Path) -> Path:
    """The program of all that are alone in their files."""

    def programs() -> dict[str, Program]:
        return {kind: program([row], NAMES[kind]) for kind, row in ALONE.items()}

    return built_once(programs, shared_folder / "each_alone", "-O0")


@pytest.mark.parametrize("name", ALONE)
def test_every_kind_of_kernel_passes_its_self_test(each_alone: Path, name: str) -> None:
    told = passes(each_alone, name, "--no-times")
    assert len(re.findall(rf"^{NAMES[name]} +\d+x\d+x\d+ +ok ", told, re.MULTILINE)) == 1
    assert "WRONG" not in told


@pytest.mark.parametrize("layout", ["whole", pytest.param("split", marks=pytest.mark.slow)])
def test_a_bundle_of_all_kinds_passes_its_self_test(shared_folder: Path, layout: str) -> None:
    def programs() -> dict[str, Program]:
        return {layout: program(SEVERAL, f"{layout}_bundle", LAYOUTS[layout])}

    told = passes(built_once(programs, shared_folder / f"{layout}_bundle", "-O0"), layout)
    line = r"^\w+_bundle_f\d\d_n\w +(\d+x\d+x\d+) +ok +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +- +-"
    rows = re.findall(line, told, re.MULTILINE)
    assert sorted(shape for shape, *_ in rows) == sorted(shape for _, shape, _, _ in SEVERAL)
    assert all(float(time) > 0 for _, *times in rows for time in times)


def test_any_other_shape_can_be_tested(each_alone: Path) -> None:
    for shape in ("1x1x1", "65x33x17", "64x128x40"):
        assert shape in passes(each_alone, "vectors", "--no-times", *shape.split("x"))
    assert run(each_alone, "vectors", "1", "2").returncode == 2
    done = run(each_alone, "vectors", "1", "2", "x")
    told = f"{NAMES['vectors']}_main: a size must be 1 to 2147483647, got x\n"
    assert (done.returncode, done.stderr) == (2, told)


FAULTS = {
    "a dropped term": ("tiled", r"p < kTileWidth; \+\+p", "p < kTileWidth - 1; ++p"),
    "a store outside": ("tiled", r"row < m && col < n", "row < m && col < n + 1"),
    "C read at beta 0": ("tiled", r"beta == Elem\(0\) \? alpha \* product :", ""),
    "beta forgotten": ("tiled", r"\+ beta \* \*c", ""),
    "swapped operands": ("tiled", r"b_tile\[p\]\[tx\]", "b_tile[tx][p]"),
    "an empty product launched": ("tiled", r" \|\| !sizes\[0\][^)]*\)( return status;\n +call\.r)", r")\1"),
    "a null C not refused": ("tiled", r"if \(!call\.c \|\| ", "if ("),
    "alignment not looked at": ("vectors", r"if \(address & [^\n]*return false;", ""),
    "general kernel for nothing": ("exact", r"call.size\[i\] % kernel.multiple\[i\]\)", "false)"),
    "counters where partial tiles are": ("split-K", r"\(call.need \? counter_bytes : 0\)", "0"),
    "too few CTAs": ("cluster", r"= tiles \* kernel.split_ctas;", "= tiles * (kernel.split_ctas - 1);"),
    "copies over partial tiles": ("packed with split-K", r"memory \+= step->bytes\(", "(void)step->bytes("),
    "one copy over the other": ("packed", r"memory \+= ld \* call", "ctas += 0 * call"),
    "rows of a box for its columns": ("TMA", r"\{box_cols, box_rows\}", "{box_rows, box_cols}"),
    "padding not zeroed": ("pad", r": Elem\(0\);(\n        \}\n    \}\n\})", r": to[row * ld_to + col];\1"),
    "C left in its buffer": ("pad", r"&& step->end &&", "&& !step->end &&"),
    "no room for partial tiles": ("stream-K", r"stream_ctas \? 2 :", "stream_ctas ? 1 :"),
}  # fmt: skip


SANITIZED = "no room for partial tiles", "alignment not looked at"
"""Checks that a GPU would make by itself, or memcheck."""
SANITIZERS = "-fsanitize=address,alignment", "-fno-sanitize-recover=all"


def broken(what: str) -> Program:
    """The files with that fault, under a name of their own."""
    kind, pattern, replacement = FAULTS[what]
    whole = program([ALONE[kind]], f"faulty_{[*FAULTS].index(what)}")
    (code_name, code), *rest = whole.files.files
    text, count = re.subn(pattern, replacement, code, count=1)
    assert count == 1
    return Program(Emitted(((code_name, text), *rest)), whole.name)


@pytest.mark.slow
@pytest.mark.parametrize("what", [what for what in FAULTS if what not in SANITIZED])
def test_the_self_test_catches_faults(shared_folder: Path, what: str) -> None:
    def programs() -> dict[str, Program]:
        return {each: broken(each) for each in FAULTS if each not in SANITIZED}

    tested = built_once(programs, shared_folder / "faults", "-O0")
    shape = ("23", "17", "30") if what == "general kernel for nothing" else ()
    done = run(tested, what, "--no-times", *shape)
    assert done.returncode != 0, done.stdout


@pytest.mark.slow
def test_sanitizers_catch_other_faults_and_let_the_unfaulted_pass(tmp_path: Path) -> None:
    programs = {what: broken(what) for what in SANITIZED}
    unfaulted = {kind: program([ALONE[kind]], NAMES[kind]) for kind, *_ in (FAULTS[what] for what in SANITIZED)}
    tested = built(programs | unfaulted, tmp_path, "-O0", *SANITIZERS)
    for what in programs:
        assert run(tested, what, "--no-times").returncode != 0, what
    for kind in unfaulted:
        passes(tested, kind, "--no-times")
