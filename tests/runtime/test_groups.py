"""Grouped products: `tilewright.grouped_matmul` on the host device, what it refuses, planted faults, and on a GPU."""

from typing import Any

import numpy as np
import pytest
import tilewright
from faults import holds_in_a_process
from products import SCALARS, QuickDevice, check_groups
from quick import TYPICAL
from tilewright.codegen.errors import ArgumentTypeError, ConfigError, LayoutError, ShapeError
from tilewright.codegen.families import parse
from tilewright.codegen.legality import rejections, serves
from tilewright.codegen.problem import Problem, Ragged
from tilewright.codegen.source import KernelSource
from tilewright.runtime.device.cache import compile_cached
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.product.kernel import Kernel, prepare
from tilewright.tuner.choose.shortlist import look_up

HERE: dict[str, Any] = {"device": "host"}
ENDS = [0, 3, 3, 40, 41, 77]
ROWS = 90
WITHIN = f"offsets must not decrease, and lie from 0 to {ROWS}"


def whole(*shape: int, seed: int = 0, kind: Any = np.float32) -> Any:
    """An array of small whole numbers, whose products are exact."""
    return np.random.default_rng(seed + sum(shape)).integers(-4, 5, shape).astype(kind)


def expected(a: Any, b: Any, ends: list[int]) -> Any:
    """The grouped products, one after the other."""
    groups = list(zip([0, *ends[:-1]], ends))
    if b.ndim == 2:
        return np.array([a[:, begin:end] @ b[begin:end] for begin, end in groups])
    result = np.zeros((len(a), b.shape[2]), a.dtype)
    for matrix, (begin, end) in zip(b, groups):
        result[begin:end] = a[begin:end] @ matrix
    return result


def operands(ragged: str, kind: Any = np.float32) -> tuple[Any, Any]:
    """Operands of groups that end at ENDS."""
    if ragged == "m":
        return whole(ROWS, 20, kind=kind), whole(len(ENDS), 20, 12, kind=kind)
    return whole(20, ROWS, kind=kind), whole(ROWS, 12, kind=kind)


def offsets_of(ends: list[int]) -> Any:
    """The offsets of groups."""
    return np.array(ends, np.int32)


@pytest.mark.parametrize("ragged", ["m", "k"])
class TestProducts:
    @pytest.mark.parametrize("kind", [np.float32, np.float64])
    def test_in_every_layout(self, ragged: str, kind: Any) -> None:
        """Operands row by row, column by column and as parts of others, twice each, as the second call has a plan."""
        a, b = operands(ragged, kind)
        for of_a in (a, np.asfortranarray(a), np.pad(a, 3)[3:-3, 3:-3]):
            for of_b in (b, np.swapaxes(np.ascontiguousarray(np.swapaxes(b, -1, -2)), -1, -2)):
                for _ in range(2):
                    result = tilewright.grouped_matmul(of_a, of_b, offsets_of(ENDS), **HERE)
                    assert np.array_equal(result, expected(a, b, ENDS))

    def test_factors_and_out(self, ragged: str) -> None:
        a, b = operands(ragged)
        out = whole(*expected(a, b, ENDS).shape)
        before = out.copy()
        result = tilewright.grouped_matmul(a, b, offsets_of(ENDS), out=out, alpha=2, beta=-1, **HERE)
        assert result is out
        assert np.array_equal(out, 2 * expected(a, b, ENDS) - before)
        with pytest.raises(ShapeError, match="so out must be given"):
            tilewright.grouped_matmul(a, b, offsets_of(ENDS), beta=1.0, **HERE)

    def test_offsets_may_change_between_calls(self, ragged: str) -> None:
        a, b = operands(ragged)
        offsets = offsets_of(ENDS)
        for ends in ([0] * 6, [90] * 6, [15, 30, 45, 60, 75, 90]):
            offsets[:] = ends
            assert np.array_equal(tilewright.grouped_matmul(a, b, offsets, **HERE), expected(a, b, ends))

    def test_no_groups_no_rows_and_one_group(self, ragged: str) -> None:
        a, b = operands(ragged)
        none = b[:0] if ragged == "m" else b
        result = tilewright.grouped_matmul(a, none, offsets_of([]), **HERE)
        assert result.shape == ((ROWS, 12) if ragged == "m" else (0, 20, 12))
        assert not result.any()
        out = whole(*result.shape)
        assert np.array_equal(
            tilewright.grouped_matmul(a, none, offsets_of([]), out=out.copy(), beta=2.0, **HERE), 2 * out
        )
        empty = (a[:0], b) if ragged == "m" else (a[:, :0], b[:0])
        assert not tilewright.grouped_matmul(*empty, offsets_of([0] * 6), **HERE).any()
        one = b[:1] if ragged == "m" else b
        assert np.array_equal(tilewright.grouped_matmul(a, one, offsets_of([50]), **HERE), expected(a, one, [50]))

    def test_a_stack_that_repeats_one_matrix(self, ragged: str) -> None:
        a, b = operands(ragged)
        b = np.broadcast_to(b[0], b.shape) if ragged == "m" else b
        assert np.array_equal(tilewright.grouped_matmul(a, b, offsets_of(ENDS), **HERE), expected(a, b, ENDS))

    def test_operands_with_steps_are_copied_if_needed(self, ragged: str) -> None:
        a, b = operands(ragged)
        twice = np.repeat(a, 2, axis=1)[:, ::2]
        with pytest.raises(LayoutError, match="a must have"):
            tilewright.grouped_matmul(twice, b, offsets_of(ENDS), **HERE)
        result = tilewright.grouped_matmul(twice, b, offsets_of(ENDS), copy="if-needed", **HERE)
        assert np.array_equal(result, expected(a, b, ENDS))

    def test_grades(self, ragged: str) -> None:
        a, b = operands(ragged)
        result = tilewright.grouped_matmul(a, b, offsets_of(ENDS), accuracy="normwise", **HERE)
        assert np.array_equal(result, expected(a, b, ENDS))


class TestRefused:
    @pytest.mark.parametrize(
        ("of_a", "of_b", "words"),
        [
            ((90,), (6, 20, 12), "a and b must have 2 and 3 dimensions for groups of rows of a, or 2 and 2"),
            ((2, 90, 20), (6, 20, 12), "a and b must have 2 and 3 dimensions"),
            ((90, 20), (5, 20, 12), "b must have a matrix for each of the 6 offsets, got 5 matrices"),
            ((90, 20), (6, 21, 12), "inner dimensions differ: a is 90x20, b is 6x21x12"),
            ((20, 90), (91, 12), "inner dimensions differ: a is 20x90, b is 91x12"),
        ],
    )
    def test_shapes(self, of_a: Any, of_b: Any, words: str) -> None:
        with pytest.raises(ShapeError, match=words):
            tilewright.grouped_matmul(whole(*of_a), whole(*of_b), offsets_of(ENDS), **HERE)

    def test_shapes_of_no_groups(self) -> None:
        for shape, words in (((0, 21, 12), "inner dimensions differ"), ((2, 20, 12), "each of the 0 offsets")):
            with pytest.raises(ShapeError, match=words):
                tilewright.grouped_matmul(whole(90, 20), whole(*shape), offsets_of([]), **HERE)

    @pytest.mark.parametrize(
        ("offsets", "error", "words"),
        [
            (ENDS, ArgumentTypeError, r"offsets must be a NumPy, CuPy or torch array, got list: .*dtype='int32'\)"),
            (np.array(ENDS), ArgumentTypeError, "offsets must be int32, got int64: convert them before"),
            (np.array([ENDS], np.int32), ShapeError, r"offsets must have one dimension.*got shape \(1, 6\)"),
            (np.repeat(offsets_of(ENDS), 2)[::2], LayoutError, "offsets must lie without gaps"),
            (offsets_of([0, 3, 2, 4, 5, 6]), ShapeError, f"{WITHIN}, got 2 after 3"),
            (offsets_of([-1, 3, 3, 4, 5, 6]), ShapeError, f"{WITHIN}, got -1 after 0"),
            (offsets_of([0, 3, 3, 4, 5, 91]), ShapeError, f"{WITHIN}, got 91 after 5"),
        ],
    )
    def test_offsets(self, offsets: Any, error: type[Exception], words: str) -> None:
        a, b = operands("m")
        for _ in range(2):
            with pytest.raises(error, match=words):
                tilewright.grouped_matmul(a, b, offsets, **HERE)
            tilewright.grouped_matmul(a, b, offsets_of(ENDS), **HERE)  # from now on there is a plan

    def test_outs(self) -> None:
        a, b = operands("m")
        with pytest.raises(ShapeError, match="out must be 90x12, got shape"):
            tilewright.grouped_matmul(a, b, offsets_of(ENDS), out=whole(12, 90), **HERE)
        with pytest.raises(LayoutError, match="out must lie row by row"):
            tilewright.grouped_matmul(a, b, offsets_of(ENDS), out=whole(12, 90).T, **HERE)
        with pytest.raises(LayoutError, match="out overlaps a"):
            tilewright.grouped_matmul(a, b, offsets_of(ENDS), out=a[:, :12], **HERE)
        memory = np.zeros(ROWS * 12 + 3, np.int32)
        memory[-6:] = ENDS
        over = memory.view(np.float32)[: ROWS * 12].reshape(ROWS, 12)
        for _ in range(2):
            with pytest.raises(LayoutError, match="out overlaps offsets"):
                tilewright.grouped_matmul(a, b, memory[-6:], out=over, **HERE)

    def test_a_name_that_is_no_argument(self) -> None:
        with pytest.raises(ArgumentTypeError, match="takes no argument vendor="):
            tilewright.grouped_matmul(*operands("m"), offsets_of(ENDS), vendor="never")

    @pytest.mark.parametrize("text", ["simt:pack_a=1", "skinny:", "tiled:32", "small:1x2x2", "simt:load=tma"])
    def test_configs(self, text: str) -> None:
        problem = Problem(64, 64, 64, batch=4, ragged="m")
        assert not serves(parse(text), problem, TYPICAL["sm_90a"])
        assert list(rejections(problem, parse(text), TYPICAL["sm_90a"]))


class TestProblem:
    def test_work_of_all_groups(self) -> None:
        rows, along = (Problem(90, 12, 20, batch=6, ragged=each) for each in ("m", "k"))
        assert rows.flops == along.flops == 2 * 90 * 12 * 20
        assert rows.bytes == 4 * (90 * 20 + 6 * 20 * 12 + 90 * 12)
        assert along.bytes == 4 * (90 * 20 + 20 * 12 + 6 * 90 * 12)
        assert str(rows) == "90x12x20 float nn batch 6 of groups along m"
        assert (rows.even, along.even) == (Problem(90, 12, 20), Problem(90, 12, 4, batch=6))

    def test_no_other_function_takes_groups(self) -> None:
        problem = Problem(90, 12, 20, batch=6, ragged="m")
        for take in (tilewright.load, tilewright.prepare, tilewright.emit, tilewright.tune):
            with pytest.raises(ConfigError, match=r"only tilewright\.grouped_matmul multiplies groups: pass its sizes"):
                take(problem)  # type: ignore[operator]

    def test_a_dimension_that_does_not_exist(self) -> None:
        with pytest.raises(ArgumentTypeError, match="ragged must be 'm', 'k' or empty, got 'n'"):
            Problem(1, 1, 1, ragged="n")  # type: ignore[arg-type]

    @pytest.mark.parametrize("ragged", ["m", "k"])
    def test_a_look_up_finds_a_config_that_serves(self, ragged: Ragged) -> None:
        for key, dtype in (("sm_90a", "float"), ("sm_90a", "double"), ("sm_80", "float")):
            problem = Problem(512, 1024, 768, dtype, batch=8, ragged=ragged)
            choice = look_up(problem, TYPICAL[key], ())  # type: ignore[arg-type]
            assert choice is None or serves(choice.config, problem, TYPICAL[key])


FAULTS = (
    ("one group of rows a warp", "first += 32", "first += 64", "m"),
    ("rows behind the last offset left away", "number <= groups) {", "number < groups) {", "m"),
    ("rows of no group multiplied", "if (group.number == batch.count) k = 0;", "", "m"),
    ("CTAs of groups before", "cta - before - ", "cta - ", "m"),
    ("rows of the group before", "m = group.rows;", "m = group.rows + 1;", "m"),
    ("a group without its beginning", "Index(group.begin) * ldc", "Index(0) * ldc", "m"),
    ("a matrix for all groups", "group.number * batch", "0 * batch", "m"),
    ("tiles of the last group alone", "if (lane >= by) up_to", "if (lane > by) up_to", "m"),
    ("end of a group taken for its beginning", "offsets[group - 1]", "offsets[group]", "k"),
    ("steps of all groups", "offset_of(offsets, product + 1, k) - begin", "k - begin", "k"),
    ("A from the first step on", "matrix_a += Index(begin);", "", "k"),
    ("B from the first step on", "matrix_b += Index(begin) * ldb;", "", "k"),
)
"""Faults to plant in the text, which products must notice: name, old and new text, dimension of the groups."""


@pytest.mark.parametrize(("old", "new", "ragged"), [each[1:] for each in FAULTS], ids=[each[0] for each in FAULTS])
def test_faults_are_noticed(old: str, new: str, ragged: Ragged) -> None:
    assert not holds_in_a_process(lambda: right(old, new, ragged))


@pytest.mark.parametrize("ragged", ["m", "k"])
def test_the_text_without_a_fault_passes(ragged: Ragged) -> None:
    assert holds_in_a_process(lambda: right("kBlockM", "kBlockM", ragged))


def right(old: str, new: str, ragged: Ragged) -> bool:
    """Whether products of more groups than a warp has lanes are right with a change of the text."""
    ends = [1, 3, 3, 40, 41, *[41] * 30, 77]
    shape = (ROWS, 24, 20) if ragged == "m" else (24, 20, ROWS)
    problem, device = Problem(*shape, batch=len(ends), ragged=ragged), QuickDevice()
    plain = prepare(device, problem, parse("simt:32x32x8,thread=4"), aligned=False)
    assert old in plain.source.code
    changed = KernelSource(plain.source.name, plain.source.code.replace(old, new))
    kernel = Kernel(device, problem, plain.fit, changed, compile_cached(device.compiler, changed))
    try:
        for alpha, beta in SCALARS:
            check_groups(kernel, ends, alpha, beta)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("ragged", ["m", "k"])
def test_offsets_that_do_not_rise_write_nothing_outside(ragged: Ragged) -> None:
    """A kernel cannot refuse such offsets, but stays within C, which lies between pages that nobody may touch."""
    shape = (ROWS, 24, 20) if ragged == "m" else (24, 20, ROWS)
    device = QuickDevice(alignment=4)
    for ends in ([9, 3, 400, -7, 2**31 - 1, -(2**31)], [2**31 - 1] * 6, [-5] * 6, [90, 0, 90, 0, 90, 0]):
        problem = Problem(*shape, batch=6, ragged=ragged)
        kernel = prepare(device, problem, parse("simt:32x32x8,thread=4"), aligned=False)
        stacked = {"m": (1, 6, 1), "k": (1, 1, 6)}[ragged]
        shapes = problem.stored_a, problem.stored_b, (problem.m, problem.n)
        memory = [device.allocate(4 * count * rows * cols) for count, (rows, cols) in zip(stacked, shapes)]
        offsets = np.array(ends, np.int32)
        kernel.laid(*(cols for _, cols in shapes))(
            0, False, *(each.pointer for each in memory), 1.0, 0.0, offsets.ctypes.data
        )


@pytest.mark.gpu
class TestOnAGpu:
    @pytest.mark.parametrize("ragged", ["m", "k"])
    @pytest.mark.parametrize("dtype", ["float", "double"])
    def test_products_of_the_configs_that_are_looked_up(self, ragged: Ragged, dtype: str) -> None:
        device, ends = open_device(choose("cuda")), [0, 7, 40, 41, 200, *[200] * 40, 712, 1000]
        shape = (1100, 264, 328) if ragged == "m" else (264, 328, 1100)
        for trans in ("nn", "nt", "tn", "tt"):
            problem = Problem(*shape, dtype, trans=trans, batch=len(ends), ragged=ragged)  # type: ignore[arg-type]
            choice = look_up(problem, device.info, ())
            assert choice is not None
            kernel = prepare(device, problem, choice.config)
            for alpha, beta in SCALARS:
                check_groups(kernel, ends, alpha, beta, 4)
            check_groups(kernel, ends, 1.0, 0.0, 3)

    def test_offsets_change_between_replays_of_a_graph(self) -> None:
        cupy: Any = pytest.importorskip("cupy")
        a, b = (cupy.asarray(each) for each in operands("m"))
        offsets, out = cupy.asarray(offsets_of(ENDS)), cupy.empty((ROWS, 12), "float32")
        tilewright.grouped_matmul(a, b, offsets, out=out)
        with cupy.cuda.Stream(non_blocking=True) as stream:
            stream.begin_capture()
            tilewright.grouped_matmul(a, b, offsets, out=out)
            graph = stream.end_capture()
        for ends in (ENDS, [0] * 6, [15, 30, 45, 60, 75, 90]):
            offsets[:] = cupy.asarray(offsets_of(ends))
            graph.launch()
            cupy.cuda.Device().synchronize()
            assert np.array_equal(cupy.asnumpy(out), expected(cupy.asnumpy(a), cupy.asnumpy(b), ends))

    def test_arrays_of_the_processor(self) -> None:
        a, b = operands("m")
        assert np.array_equal(tilewright.grouped_matmul(a, b, offsets_of(ENDS), device="cuda"), expected(a, b, ENDS))
