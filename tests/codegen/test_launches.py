"""The library and emitted functions launch with the same grid, block, shared memory, workspace and arguments."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from emitted import COMPILER
from recorded_launches import GPU, Answer, Question, by_bundles, by_library
from stored import shipped
from tilewright.codegen.bundle import Served, general_fit
from tilewright.codegen.config import Config
from tilewright.codegen.families import parse
from tilewright.codegen.fit import Fit
from tilewright.codegen.leaf import Edge
from tilewright.codegen.legality import fitted, serves
from tilewright.codegen.problem import DType, Grade, Problem
from tilewright.codegen.source import MOST_LIMITED

SM_COUNTS = (84, 108, 132, 148, 170)
"""SMs of the devices in slow tests."""
FEW_SM_COUNTS = (108, 132)
"""SMs of the devices in other tests."""
PADDED = [
    ("naive:8x32,edge=pad", "1001x333x77", "float", "tn"),
    ("tiled:16,edge=pad", "65x70001x3", "double", "nt"),
]
"""Kernels with padded operands, which no record has."""
COARSEST = {DType.FLOAT: Grade.NORMWISE, DType.DOUBLE: Grade.IEEE}
"""The accuracy that every kernel of a type reaches."""
LEAST_SHAPES = 6
"""Least number of shapes of a record. Shapes that its config cannot serve are left out."""


def shapes(problem: Problem, config: Config, number: int) -> Iterator[tuple[Problem, Config]]:
    """The shape of a record, a larger one with the same instance, and others with guarded edges: odd, tiny, with more
    tiles than a workspace has counters, with k = 0, and two that are long and narrow. One of these has as many tiles
    as the largest grid that a launch spreads evenly over the SMs, the other as stream-K has CTAs.

    `number` varies the shapes, because a bundle has one kernel for each shape.
    """
    m, n, k = problem.m, problem.n, problem.k
    tile_m, tile_n, _ = config.cta_tile
    limited, streaming = GPU.sm_count * MOST_LIMITED, GPU.sm_count * max(1, config.stream_ctas_per_sm)
    step_m, step_n, step_k = (max(4, each) if config.edge_of(problem) is Edge.EXACT else 4 for each in config.multiples)
    general = config.unaligned
    instances = (
        (config, m, n, k),
        (config, m + step_m, n + 3 * step_n, k + 5 * step_k),
        (general, m + 1, n + 3, k + 5),
        (general, 1 + number % 3, 1 + number // 3 % 3, 1 + number // 9),
        (general, tile_m * limited, 1, k + 33 + number),
        (general, 1, tile_n * streaming, k + 65 + number),
        (general, 20003 + number, 10007, k + 9),
        (general, m + 2, n + 1 + number, 0),
    )
    for each, *sizes in instances:
        other = replace(problem, **dict(zip("mnk", sizes)))
        if serves(each, other, GPU):
            yield other, each


def bundles(sm_counts: Sequence[int]) -> dict[str, list[Served]]:
    """Bundles by name, which serve the shapes of every record.

    Functions of a bundle leave out the code that none of its kernels needs. So each bundle holds the kernels of one
    device's records that share out work in one way, and two more bundles, one for each type, hold kernels of all kinds.
    Stream-K is emitted for a number of SMs.
    """
    rows_of: dict[str, dict[Problem, Served]] = defaultdict(dict)
    numbers, kinds = Counter[str](), set[object]()
    devices = sorted({record.device for record in shipped().values()})
    for record in shipped().values():
        problem, config = record.problem, record.config
        way = f"d{devices.index(record.device)}_{problem.accuracy}_{config.split.mode}"
        emitted_for = sm_counts if config.stream_ctas_per_sm else (GPU.sm_count,)
        for other, each in shapes(problem, config, numbers[problem.kind]):
            for sm_count in emitted_for:
                rows_of[f"{way}_{sm_count}"].setdefault(other, Served(other, each, replace(GPU, sm_count=sm_count)))
        numbers[problem.kind] += 1
        # A bundle has one accuracy, and every kernel of a type keeps this one.
        coarse = replace(problem, accuracy=COARSEST[problem.dtype])
        kind, rows = (way, config.family, config.packs), rows_of[f"mixed_{problem.dtype.value}"]
        if kind not in kinds and coarse not in rows:
            kinds.add(kind)
            rows[coarse] = Served(coarse, config, GPU)
    for text, shape, dtype, trans in PADDED:
        problem = Problem.parse(shape, dtype, trans, COARSEST[DType.parse(dtype)])
        rows_of[f"mixed_{dtype}"][problem] = Served(problem, parse(text), GPU)
    return {name: list(rows.values()) for name, rows in rows_of.items()}


def compared(name: str, rows: Sequence[Served], sm_counts: Sequence[int]) -> Iterator[tuple[Question, int]]:
    """The questions to a bundle, each with the bytes of workspace that its functions should return. The general kernel,
    which serves misaligned matrices, may need more than the kernel of the shape."""
    counters_first = any(row.config.has_workspace for row in rows)
    general = dict[str, Fit]()
    for kind in {row.problem.kind: row.problem for row in rows}.values():
        configs = [row.config for row in rows if row.problem.kind == kind.kind]
        general[kind.kind] = general_fit(configs, kind, GPU)
    for row in rows:
        other, fit = general[row.problem.kind], fitted(row.problem, row.config, row.target)
        for sm_count in (row.target.sm_count,) if row.config.stream_ctas_per_sm else sm_counts:
            work = by_library(row.problem, fit, sm_count, counters_first)
            needed = work.workspace_bytes
            if other.has_memory:
                needed = max(needed, by_library(row.problem, other, sm_count, counters_first).workspace_bytes)
            yield Question(name, row.problem, sm_count, work), needed


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is installed")
@pytest.mark.parametrize(
    "sm_counts", [FEW_SM_COUNTS, pytest.param(SM_COUNTS, marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_the_library_and_emitted_functions_launch_the_same(tmp_path: Path, sm_counts: Sequence[int]) -> None:
    bundled = bundles(sm_counts)
    pairs = [pair for name, rows in bundled.items() for pair in compared(name, rows, sm_counts)]
    answers = by_bundles(bundled, [question for question, _ in pairs], tmp_path)
    different = [
        f"{question}\n{answer}\nneeds {needed} bytes"
        for (question, needed), answer in zip(pairs, answers, strict=True)
        if answer != Answer(0, question.expected, needed, needed)
    ]
    assert not different, "\n".join((f"{len(different)} of {len(pairs)} differ, the first:", *different[:2]))

    works = [question.expected for question, _ in pairs]
    names = {launched.kernel.partition("_")[0] for work in works for launched in work.launches}
    assert names == {"gemm", "pack", "pad", "split"}
    assert {work.clears for work in works} == {0, 1}
    rows = Counter((row.problem.kind, row.config) for served in bundled.values() for row in served)
    for record in shipped().values():
        kind, config = record.problem.kind, record.config
        assert sum(rows[kind, each] for each in {config, config.unaligned}) >= LEAST_SHAPES, record.problem
