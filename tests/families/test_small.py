"""The small family: batches of small matrices on the host device, planted faults, and rules."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from faults import holds_in_a_process
from products import SCALARS, TRANS, QuickDevice, check_batch, exact, integers
from quick import TYPICAL, compile_together
from search_spaces import H200
from tilewright.codegen.config import MAX_STATIC_SMEM_BYTES
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.families import parse
from tilewright.codegen.legality import rejections
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import KernelSource
from tilewright.runtime.check.verify import Verifier
from tilewright.runtime.device.cache import compile_cached
from tilewright.runtime.product.kernel import Kernel, prepare

CONFIGS = (
    ("small:4x1x1,block_threads=64", (3, 3, 3)),
    ("small:8x2x3,block_threads=64", (5, 7, 4)),
    ("small:2x4x4,block_threads=128", (17, 9, 12)),
    ("small:1x1x2,block_threads=64", (1, 6, 33)),
    ("small:16x3x3,block_threads=512", (3, 3, 3)),
    ("small:4x1x1,load=cp_async,block_threads=64", (3, 3, 3)),
    ("small:2x5x2,load=cp_async,block_threads=96", (5, 7, 4)),
    ("small:1x7x7,load=cp_async,block_threads=64", (17, 9, 12)),
    ("small:8x1x6,load=cp_async,block_threads=64", (1, 6, 33)),
    ("small:1x13x4,load=cp_async,block_threads=64", (15, 20, 7)),
)
"""Configs and sizes. Tiles of threads divide C or not, and a thread has one tile, several or less than one. Runs begin
anywhere in a vector, and rows of a thread lie together or apart."""
ANYWHERE = (1, 2, 3), (0, 1, 2), (3, 3, 1)
"""Elements from aligned addresses to where A, B and C begin."""
BEHIND = 4096
"""Number of elements after C that must not be written."""
OUTSIDE = 77.0
"""Value of the elements around C."""


def run(kernel: Kernel, alpha: float, beta: float, starts: Sequence[int] = (0, 0, 0)) -> bool:
    """Whether the products of matrices without gaps are right to the bit, and nothing around C was written. A and B
    are NaN where alpha is 0, and C where beta is. A, B and C begin `starts` elements after an aligned address."""
    problem, one = kernel.problem, replace(kernel.problem, batch=1)
    operands = [integers(one, seed % 7) for seed in range(problem.batch)]

    def laid(number: int, poison: bool, around: float = np.nan) -> Any:
        flat = np.concatenate([each[number].ravel() for each in operands])
        whole = np.full(flat.size + starts[number] + BEHIND + 64, around, flat.dtype)
        first = -whole.ctypes.data % 64 // flat.itemsize + starts[number]
        part = whole[first : first + flat.size]
        part[:] = np.nan if poison else flat
        return whole, part

    (_, a), (_, b) = (laid(number, alpha == 0) for number in range(2))
    whole, c = laid(2, beta == 0, OUTSIDE)
    lds = problem.stored_a[1], problem.stored_b[1], problem.n
    kernel.laid(*lds)(0, False, *(each.ctypes.data for each in (a, b, c)), alpha, beta)
    expected = np.concatenate([exact(one, *each, alpha, beta).ravel() for each in operands])
    right = np.array_equal(c, expected)
    c[:] = OUTSIDE
    return right and bool((whole == OUTSIDE).all())


@pytest.mark.parametrize(("text", "shape"), CONFIGS)
def test_products_of_every_layout(text: str, shape: tuple[int, int, int]) -> None:
    """Batches of about as many products as a CTA has, without gaps, with gaps and repeated operands, aligned or not."""
    config, device = parse(text), QuickDevice()
    kinds = [(dtype, trans) for dtype in ("float", "double") for trans in TRANS][:: 3 if math.prod(shape) > 300 else 1]
    problems = [Problem(*shape, dtype, trans=trans, batch=6) for dtype, trans in kinds]
    compile_together([(problem, config) for problem in problems])
    for turn, problem in enumerate(problems):
        each = config.tile.matrices  # type: ignore[attr-defined]
        for batch in {2, each - 1, each, each + 1, 3 * each + 1} - {0, 1}:
            kernel = prepare(device, replace(problem, batch=batch), config)
            alpha, beta = SCALARS[(turn + batch) % 4]
            assert run(kernel, alpha, beta), (problem, batch)
        kernel = prepare(device, problem, config)
        for starts in ANYWHERE:
            assert run(kernel, 1.0, 2.0, starts), starts
        assert not kernel._unaligned or not config.whole_runs, "whole runs begin anywhere"  # type: ignore[attr-defined]
        check_batch(kernel, *SCALARS[turn % 4])
        assert kernel._unaligned is not None


def test_accuracy() -> None:
    problem = Problem(24, 20, 48, "float", batch=9)
    device = QuickDevice()
    verdict = Verifier(device, problem).check(prepare(device, problem, parse("small:4x4x4")).launch)
    assert verdict.reason == ""
    assert 0 < verdict.accuracy.worst <= 4 / (problem.k + 2) ** 0.5


def test_infinities_stay_in_their_products() -> None:
    problem, device = Problem(4, 4, 4, batch=5), QuickDevice()
    kernel = prepare(device, problem, parse("small:2x2x2,block_threads=64"))
    a, b, c = (np.ones((5, 4, 4), np.float32) for _ in range(3))
    a[2, 1, 3], b[3, 0, 0] = np.inf, np.nan
    kernel.laid(4, 4, 4)(0, False, *(each.ctypes.data for each in (a, b, c)), 1.0, 0.0)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(c, a @ b, equal_nan=True)


THROUGH_REGISTERS = "small:4x2x2,block_threads=64"
AS_A_RUN = "small:1x2x2,load=cp_async,block_threads=64"
FAULTS = (
    ("guard of the last CTA lost", "int(min(Index(batch.count) - first, Index(kMatrices)))", "kMatrices"),
    ("products of the first CTA for all", "Index(blockIdx.x) * kMatrices", "Index(0) * kMatrices"),
    ("barrier before the products lost", "        __syncthreads();\n        for (int each", "        for (int each"),
    ("barrier after the products lost", "acc);\n        }\n        __syncthreads();", "acc);\n        }"),
    ("matrices too near in shared memory", "kMatrix = (kRows * kRow) | 1;", "kMatrix = kRows * kRow - 1;"),
    ("last step of k dropped", "p < kK; ++p", "p < kK - 1; ++p"),
    ("rows beyond C", "r < kM)", "r <= kM)"),
    ("rest of a run lost", "e = vectors * kRun + threadIdx.x; e < count", "e = count; e < count"),
    ("A and B read where alpha is 0", "if (alpha != Elem(0)) {", "if (true) {"),
    ("C read where beta is 0", "beta == Elem(0) ? alpha * product : ", ""),
    ("inner step for the outer one", "batch.outer_step[x] +", "batch.inner_step[x] +"),
    ("gaps ignored", "* ldc + within % kN", "* kN + within % kN"),
)
"""Faults: changes of the text, each of which the products above must catch."""
FAULTS_OF_RUNS = (
    ("skew of A by the number of its elements", "skew_of<kRun>(a_run)", "int(first * TileA::kElements % kRun)"),
    ("skew of C by the number of its elements", "skew_of<kRun>(c_run)", "int(first * TileC::kElements % kRun)"),
    ("skew of the first run for all", "skew_of<kRun>(b_run)", "skew_of<kRun>(matrix_b)"),
    ("copied from the first element", "shared -= skew, from -= skew, ", ""),
    ("skew of A for B", "shared + kRunA + b_skew", "shared + kRunA + a_skew"),
    ("elements behind a run lost", ", count += skew;", ";"),
    ("rest of A and B lost", "e = vectors * kVec + threadIdx.x; e < count", "e = count; e < count"),
    ("elements before the first vector of C lost", "threadIdx.x; e < count; e += kThreads) {\n            const int at",
     "threadIdx.x; e < count - head; e += kThreads) {\n            const int at"),
    ("vectors of C from its first element", "c = c_tiles + head;", "c = c_tiles;"),
    ("copies not awaited", "wait_copies<0>();", ""),
    ("barrier before the products lost", "        __syncthreads();\n        if (works)", "        if (works)"),
    ("C put over A and B that are read", "b_tiles);\n        }\n        __syncthreads();", "b_tiles);\n        }"),
    ("rows read at whole steps alone", "if (a_steps == a_tiles && b_steps == b_tiles) ", "if (true) "),
    ("barrier before C is stored lost", "acc);\n    __syncthreads();", "acc);"),
    ("threads beyond the products", "threadIdx.x < products * ThreadPart::kParts", "true"),
    ("rows of other threads", "kFirstStep = TileA::kRow % 2 ? kThreadM : 1", "kFirstStep = 1"),
    ("gaps ignored", "* ldc + within % kN", "* kN + within % kN"),
)  # fmt: skip
"""Faults in the text of kernels that copy whole runs."""
ALL_FAULTS = [
    pytest.param(text, old, new, id=f"{text.partition(',')[0][6:]} {name}")
    for text, faults in ((THROUGH_REGISTERS, FAULTS), (AS_A_RUN, FAULTS_OF_RUNS))
    for name, old, new in faults
]


@pytest.mark.parametrize(("text", "old", "new"), ALL_FAULTS)
def test_faults_are_caught(text: str, old: str, new: str) -> None:
    assert not holds_in_a_process(lambda: right(text, old, new))


@pytest.mark.parametrize("text", [THROUGH_REGISTERS, AS_A_RUN])
def test_the_text_without_a_fault_passes(text: str) -> None:
    assert holds_in_a_process(lambda: right(text, "kThreads", "kThreads"))
    assert holds_in_a_process(lambda: right(text, "ldc", "ldc"))


def right(text: str, old: str, new: str) -> bool:
    """Whether products are right with a change of the text. A change in a line for gaps is made in the instance for
    matrices with gaps, any other in the instance for matrices without, and one of reads in vectors with k = 8."""
    gaps, depth = any(word in old for word in ("ldc", "outer_step")), 8 if "a_steps" in old else 3
    problem, config, device = Problem(5, 7, depth, batch=10), parse(text), QuickDevice()
    plain = prepare(device, problem, config, aligned=not gaps)
    assert old in plain.source.code
    changed = KernelSource(plain.source.name, plain.source.code.replace(old, new))
    kernel = Kernel(device, problem, plain.fit, changed, compile_cached(device.compiler, changed))
    if gaps:
        return passes(kernel)
    return all(run(kernel, *each) for each in SCALARS) and all(run(kernel, 1.0, 0.0, starts) for starts in ANYWHERE)


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("k", "trans", "width"), [(8, "nn", 4), (6, "nn", 2), (8, "tt", 4), (7, "nn", 0), (8, "tn", 0)]
)
def test_rows_along_k_are_read_in_vectors(k: int, trans: str, width: int) -> None:
    """Vectors are as wide as the length of rows allows. Single elements of rows of 4, 8 or 32 lie in few banks."""
    from cupy_backends.cuda.libs import nvrtc

    source = render(Problem(9, 7, k, trans=trans, batch=1000), parse("small:4x2x2,load=cp_async"), H200)
    program = nvrtc.createProgram(source.code, "small.cu", (), ())
    nvrtc.compileProgram(program, ("-arch=compute_90", "-std=c++17"))
    product = nvrtc.getPTX(program).decode().partition("cp.async.wait_group")[2].partition("st.shared")[0]
    assert max((each for each in (2, 4) if f"ld.shared.v{each}.f32" in product), default=0) == width


@pytest.mark.parametrize(
    ("k", "trans", "starts"),
    [
        (6, "nn", (0, 0, 0)), (7, "nn", (0, 0, 0)), (6, "tt", (0, 0, 0)), (8, "nt", (0, 0, 0)), (7, "tn", (0, 0, 0)),
        (8, "nn", (0, 1, 3)), (8, "tt", (1, 0, 3)),
    ],
)  # fmt: skip
def test_rows_at_whole_steps_are_read_in_vectors(k: int, trans: str, starts: Sequence[int]) -> None:
    """Products are right without the text for rows elsewhere, which reads single elements, where the operand whose rows
    run along k begins at an aligned address."""
    problem, device = Problem(5, 7, k, trans=trans, batch=10), QuickDevice()
    plain = prepare(device, problem, parse(AS_A_RUN))
    code = plain.source.code.replace("else part.template multiply<1>(acc, a_tiles, b_tiles);", "")
    assert code != plain.source.code
    source = KernelSource(plain.source.name, code)
    assert run(Kernel(device, problem, plain.fit, source, compile_cached(device.compiler, source)), 1.0, 0.0, starts)


def passes(kernel: Kernel) -> bool:
    """Whether products of matrices with gaps are right."""
    try:
        for alpha, beta in SCALARS:
            check_batch(kernel, alpha, beta)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "shape", "batch", "reason"),
    [
        ("small:", "8", 1, "there is a batch of products"),
        ("small:1x1x1", "129", 2, "each of m, n and k is 1 to 128"),
        ("small:4x1x1", "4x4x0", 2, "each of m, n and k is 1 to 128"),
        ("small:4x8x1", "4", 2, "a thread computes 8 rows and 1 columns, and C has as many"),
        ("small:16x2x2", "128", 2, "shared memory holds the matrices of 16 products"),
        ("small:4x12x8", "16", 2, "a thread holds at most 80 elements of C"),
        ("small:4x2x2,load=cp_async,block_threads=64", "9", 2, "and 64 threads all parts of 4 products"),
    ],
)
@pytest.mark.fast
def test_impossible_configs_are_refused(text: str, shape: str, batch: int, reason: str) -> None:
    reasons = list(rejections(Problem.parse(shape, batch=batch), parse(text), TYPICAL["sm_90a"]))
    assert any(reason in each for each in reasons), reasons


@pytest.mark.fast
def test_a_config_without_a_batch_is_refused_in_one_line() -> None:
    with pytest.raises(
        ConfigError, match="small:16x2x2 cannot serve 8x8x8 float nn on host; required: there is a batch"
    ):
        prepare(QuickDevice(), Problem(8, 8, 8), parse("small:"))


def test_shared_memory_counts_the_distances_to_the_matrices() -> None:
    """The instance for any distances holds them in static memory, which counts besides the memory of matrices."""
    problem, config, target = Problem(2, 2, 2, batch=600), parse("small:512x2x2,block_threads=512"), TYPICAL["sm_90a"]
    launch = config.launch_config(problem, target.sm_count)
    declared = 3 * 512 * 8
    assert launch.static_smem_bytes == declared
    assert launch.dynamic_smem_bytes <= MAX_STATIC_SMEM_BYTES < launch.dynamic_smem_bytes + declared
    for less in (0, 1):
        limit = launch.dynamic_smem_bytes + declared + target.arch.smem_reserved_bytes - less
        small = replace(target, arch=replace(target.arch, smem_per_sm_bytes=limit))
        reasons = list(rejections(problem, config, small))
        assert [("and the distances to them" in reason) for reason in reasons] == [True] * less
