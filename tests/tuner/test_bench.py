"""Timing lists of shapes: rows, failures, means, and reports of them."""

import json
import math
import pickle
import signal
import time
import warnings
from dataclasses import replace
from pathlib import Path

import fake_vendor
import faults
import pytest
from stored import INFO, make
from tilewright.codegen.errors import ConfigError, DeviceError, ShapeError
from tilewright.codegen.problem import Grade, Problem
from tilewright.runtime.check.timing import TimingPlan
from tilewright.runtime.device.detect import choose
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.protocol import Operand
from tilewright.runtime.store.record import Status
from tilewright.runtime.store.store import Store
from tilewright.runtime.store.versions import versions_of
from tilewright.tuner.bench import contest, errors, rivals
from tilewright.tuner.bench import plot as bench_plot
from tilewright.tuner.bench.plot import check_plot, plot
from tilewright.tuner.bench.report import bench_closing, bench_columns, bench_json, bench_markdown
from tilewright.tuner.bench.rows import BenchResult, BenchRow, KindError, Rival, Setting
from tilewright.tuner.bench.run import bench
from tilewright.tuner.bench.stored import read_bench
from tilewright.tuner.measure import ratios
from tilewright.tuner.report.benched import benched

FAULTY = "tiled:8,unroll=4"
KEYS = (
    "m n k dtype ours_us cublas_us cublaslt_us floor_us ratio_cublas ratio_cublaslt error_over_bound "
    "cublas_error_over_bound config"
).split()


def row(shape: str = "100", cublas: float = 2.0, cublaslt: float | None = 0.5) -> BenchRow:
    libraries = [
        Rival(
            "cublas", 10 * cublas, cublas, (cublas - 0.1, cublas + 0.1), 0.25, 20.0, 5.0,
            between_us=5.5 * cublas, between_ratio=cublas / 2, between_interval=(cublas / 2 - 0.1, cublas / 2 + 0.1),
            eager_ratio=cublas / 4,
        )
    ]  # fmt: skip
    if cublaslt:
        libraries.append(Rival("cublaslt", 10 * cublaslt, cublaslt, (cublaslt, cublaslt), 0.25, 20.0, 5.0))
    return BenchRow(
        Problem.parse(shape), "naive:unroll=4", "exact", ours_us=10.0, floor_us=2.5, error_over_bound=0.5,
        eager_us=12.0, fixed_us=8.0, between_us=11.0, between_kernel_us=2.0,
        aa_interval=(0.99, 1.005), rounds=9, rivals=tuple(libraries),
    )  # fmt: skip


def result(*rows: BenchRow, stopped: str = "") -> BenchResult:
    setting = Setting(("cublas", "cublaslt"), (("compiler", "nvrtc 13"), ("cublas", "cuBLAS 13.1.0")))
    return BenchResult(INFO, setting, "2026-01-02T03:04:05+00:00", len(rows), rows, stopped)


CRASHED = BenchRow(Problem(7, 7, 7), "naive:unroll=4", "default", Status.CRASHED, "ended by SIGSEGV")


class Quiet:
    """A BenchProgress that collects results, and interrupts after a number of them."""

    def __init__(self, interrupt_after: int = 1000) -> None:
        self.seen: list[BenchResult] = []
        self._after = interrupt_after

    def opened(self, result: BenchResult) -> None:
        self.seen.append(result)

    def begun(self, problem: Problem) -> None:
        if len(self.seen) > self._after:
            signal.raise_signal(signal.SIGINT)

    def measured(self, result: BenchResult) -> None:
        self.seen.append(result)


class TestMeans:
    """Geometric means over the rows that count."""

    def test_over_the_rows_that_are_ok(self) -> None:
        measured = result(row(cublas=2.0), CRASHED, row("200", cublas=8.0, cublaslt=None))
        assert measured.geomean("cublas") == pytest.approx(4.0)
        assert measured.geomean("cublaslt") == pytest.approx(0.5)
        assert measured.geomean("numpy") is None
        assert measured.geomean("cublas", "between_ratio") == pytest.approx(2.0)
        assert measured.geomean("cublas", "eager_ratio") == pytest.approx(1.0)
        assert measured.geomean("cublaslt", "between_ratio") is None
        assert measured.geomean_floor == pytest.approx(0.25)
        assert measured.worst_aa == pytest.approx(1 / 0.99 - 1)

    def test_of_nothing(self) -> None:
        assert result(CRASHED).geomean("cublas") is None
        assert result().worst_aa is None

    def test_rows_that_are_left_out_are_reported(self) -> None:
        lines = bench_closing(result(row(), CRASHED, row("200", cublaslt=None), stopped="interrupt"))
        assert "7x7x7: crashed, ended by SIGSEGV" in lines
        assert "1 of 3 rows failed and are left out of the geometric mean" in lines
        assert "the geometric mean of cuBLASLt is over the 1 of 2 rows in which it ran" in lines
        assert lines[-1] == "3 of 3 shapes; ended by interrupt"

    def test_means_of_all_kinds_are_reported(self) -> None:
        whole, short = row(cublaslt=None), row("200", cublas=8.0, cublaslt=None)
        template = "geometric means, cuBLAS: 4.000 back to back, {} with another library's kernel in between, 1.000 in"
        assert bench_closing(result(whole, short))[0] == template.format("2.000") + " eager calls"
        lacking = replace(short, rivals=(replace(short.rivals[0], between_ratio=None, between_interval=None),))
        lines = bench_closing(result(whole, lacking))
        assert lines[0] == template.format("1.000") + " eager calls"
        assert "cuBLAS with a kernel in between: 1 of 2 rows, the others are too short" in lines
        assert not any("too short" in line for line in bench_closing(result(row())))  # cuBLASLt has no such time


def noisy(shape: str, cublas: float = 2.0) -> BenchRow:
    """A row whose kernel differs by 11% from itself, at one end of the interval."""
    return replace(row(shape, cublas=cublas), aa_interval=(0.98, 1.11))


class TestNoise:
    """A row whose kernel differs too much from itself has no ratio."""

    def test_beyond_a_tenth_in_either_direction(self) -> None:
        for spread, has_ratio in (((0.95, 1.099), True), ((0.95, 1.101), False), ((0.9, 1.0), False), (None, True)):
            changed = replace(row(), aa_interval=spread)
            assert changed.noisy is not has_ratio
            assert [rival.ratio is not None for rival in changed.rivals] == [has_ratio] * 2
            assert [rival.us for rival in changed.rivals] == [20.0, 5.0]

    def test_means_leave_noisy_rows_out_and_say_so(self) -> None:
        measured = result(row(cublas=2.0), noisy("200", cublas=50.0), row("300", cublas=8.0, cublaslt=None))
        assert measured.geomean("cublas") == pytest.approx(4.0)
        lines = bench_closing(measured)
        remedy = "no ratio is kept; measure with nothing else running, or in longer turns (--turns 0.5)"
        assert f"too noisy, a kernel over 10% from itself (A/A): 200x200x200; {remedy}" in lines
        assert "the geometric mean of cuBLASLt is over the 1 of 2 rows in which it ran" in lines
        assert not any("cuBLAS is over" in line or "too short" in line for line in lines)
        columns = {column.heading: list(map(str, column.cells)) for column in bench_columns(measured)}
        assert columns["x cuBLAS"] == ["2.000", "too noisy", "8.000", "4.000"]
        assert columns["x cuBLASLt"] == ["0.5000", "too noisy", "", "0.5000"]

    def test_files_have_no_ratio_of_noisy_rows_and_are_read_back(self, tmp_path: Path) -> None:
        file, measured = tmp_path / "b.json", result(row(), noisy("200"))
        stack = replace(row(), problem=replace(row().problem, batch=50))
        file.write_text(bench_json(result(stack)))
        assert read_bench(file).rows[0].problem == stack.problem
        file.write_text(bench_json(measured))
        quiet, loud = json.loads(file.read_text())["rows"]
        names = [name for name in quiet if name.startswith("ratio_")]
        assert {loud[name] for name in names} == {None}
        assert loud["cublas_us"] == quiet["cublas_us"] == 20.0
        back = read_bench(file)
        assert [rival.ratio for rival in back.rows[1].rivals] == [None, None]
        assert back.geomean("cublas") == pytest.approx(2.0)
        document = json.loads(file.read_text())
        document["rows"][1] |= {"ratio_cublas": 74.89, "ratio_cublas_interval": [68.32, 91.37]}  # by an older version
        file.write_text(json.dumps(document))
        assert read_bench(file) == back

    def test_pages_and_plots_do_without_ratios(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        measured = result(noisy("200"))
        assert not any(line.startswith("geometric means") for line in bench_closing(measured))
        assert "| too noisy |" in bench_markdown(measured)
        page = benched(measured, Path("b.json"), "b")
        assert page.charts
        assert not any("geometric mean" in what for _, what, _ in page.figures if "limit" not in what)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            plot(measured, tmp_path / "plot.svg")
        assert "<svg" in (tmp_path / "plot.svg").read_text()


class TestReports:
    """JSON, Markdown and plot. Tests of the command line hold the table on the screen."""

    def test_json_has_the_agreed_keys(self) -> None:
        data = json.loads(bench_json(result(row(), CRASHED)))
        assert {"device", "versions", "method", "rows", "geomean_ratio_cublas", "geomean_ratio_cublaslt"} <= set(data)
        assert data["device"] == "NVIDIA H200"
        assert all(set(KEYS) <= set(each) for each in data["rows"])
        first, failed = data["rows"]
        assert [first[key] for key in KEYS] == [
            100, 100, 100, "float", 10.0, 20.0, 5.0, 2.5, 2.0, 0.5, 0.5, 0.25, "naive:unroll=4",
        ]  # fmt: skip
        assert (failed["status"], failed["reason"], failed["ours_us"]) == ("crashed", "ended by SIGSEGV", None)
        assert data["geomean_ratio_cublas"] == pytest.approx(2.0)
        keys = ("between_us", "between_kernel_us", "cublas_between_us", "cublaslt_between_us")
        assert [first[key] for key in keys] == [11.0, 2.0, 11.0, None]
        assert (first["ratio_cublas_between"], first["ratio_cublas_between_interval"]) == (1.0, [0.9, 1.1])
        assert (first["ratio_cublas_eager"], failed["ratio_cublas_between"]) == (0.5, None)
        assert (data["geomean_ratio_cublas_between"], data["geomean_ratio_cublas_eager"]) == (1.0, 0.5)
        assert data["geomean_ratio_cublaslt_between"] is None
        stack = replace(row(), problem=replace(row().problem, batch=50))
        assert [each.get("batch") for each in json.loads(bench_json(result(row(), stack)))["rows"]] == [None, 50]

    def test_handovers_of_matmul_are_reported(self) -> None:
        handed_over = replace(row("200", cublas=0.5), handed_over=True, origin="predicted", taken_from="300x300x300")
        measured = result(row(cublas=2.0), handed_over, CRASHED)
        line = "matmul takes cuBLAS itself for 1 of 2 shapes: 1.414 x cuBLAS in the mean, 1.000 at least"
        assert line in bench_closing(measured)
        columns = {column.heading: list(map(str, column.cells)) for column in bench_columns(measured)}
        assert columns["matmul"] == ["ours", "cuBLAS", "", "1.414"]
        assert columns["config from"][1] == "predicted (from 300x300x300)"
        document = json.loads(bench_json(measured))
        assert document["geomean_ratio_cublas_used"] == pytest.approx(2**0.5)
        assert [(each.get("used"), each.get("from")) for each in document["rows"]][1:] == [
            ("cublas", "300x300x300"), (None, None),
        ]  # fmt: skip
        assert "matmul" not in {column.heading for column in bench_columns(result(row(), CRASHED))}

    def test_clocks_that_were_held_back_are_reported(self) -> None:
        slowed = replace(row(), held_back=True, clock_mhz=1800.0)
        measured = result(row("200"), slowed)
        heading = "clocks held back for power or heat, "
        (text,) = [line for line in bench_closing(measured) if "clocks" in line]
        assert text == heading + "all at one, --turns 0.5 for their own: 100x100x100 1800 MHz"
        in_turns = replace(measured, turn_seconds=0.5)
        (text,) = [line for line in bench_closing(in_turns) if "clocks" in line]
        assert text == heading + "each at its own: 100x100x100 1800 MHz"
        assert "each contender runs 0.5 s in its turn" in bench_markdown(in_turns)
        assert "turn" not in bench_markdown(measured).split("|")[0]
        document = json.loads(bench_json(in_turns))
        assert (document["turn_seconds"], document["rows"][1]["held_back"]) == (0.5, True)

    def test_markdown_has_whole_tables(self) -> None:
        text = bench_markdown(result(row(), CRASHED, row("200", cublaslt=None)))
        tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
        assert [len(table) for table in tables] == [6, 4]
        for table in tables:
            assert len({line.count("|") for line in table}) == 1
        assert "**geometric mean**" in tables[0][-1]
        assert "| x cuBLAS | interval | between | interval | eager |" in tables[0][0]
        assert "| 2.000 | 1.900..2.100 | 1.000 | 0.9000..1.100 | 0.5000 |" in tables[0][2]
        assert "| ours | ours between | ours eager | ours fixed | cuBLAS |" in tables[1][0]
        assert "`naive:unroll=4`" in tables[1][-1]

    @pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
    def test_plot(self, tmp_path: Path, suffix: str) -> None:
        pytest.importorskip("matplotlib")
        path = tmp_path / f"plot.{suffix}"
        plot(result(row(), CRASHED, row("200", cublaslt=None)), path)
        start = path.read_bytes()[:500]
        assert {"svg": b"<svg", "png": b"PNG", "pdf": b"%PDF"}[suffix] in start

    def test_plot_has_both_means(self, tmp_path: Path) -> None:
        matplotlib = pytest.importorskip("matplotlib")
        with matplotlib.rc_context({"svg.fonttype": "none"}):
            plot(result(row(), CRASHED, row("200", cublaslt=None)), tmp_path / "plot.svg")
        text = (tmp_path / "plot.svg").read_text()
        for label in ("cuBLAS, geometric mean 2.000", "cuBLAS, a kernel in between 1.000", "cuBLASLt, geometric mean"):
            assert label in text
        assert "cuBLASLt, a kernel" not in text

    def test_plot_needs_a_known_suffix_and_matplotlib(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ConfigError, match=r"--plot must be a file ending in \.svg, \.png, \.pdf, got 'x.gif'"):
            check_plot(Path("x.gif"))
        monkeypatch.setattr(bench_plot.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(DeviceError, match=r"pip install 'tilewright\[plot\]'"):
            check_plot(Path("x.svg"))


@pytest.fixture
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which nothing is too noisy, whatever else it does."""
    monkeypatch.setattr(ratios, "NOISY", math.inf)


class TestContest:
    """One row is measured in this process."""

    def test_ours_and_numpy(self, quiet_machine: None) -> None:
        measured = contest.contest(HostDevice(), Problem(9, 8, 7), ("numpy",), None, 0.01)
        assert (measured.status, measured.origin, measured.rounds) == (Status.OK, "default", 7)
        assert measured.ours_us is not None
        assert measured.error_over_bound is not None
        assert 0 < measured.error_over_bound <= 1
        assert measured.floor_us is None
        numpy = measured.rival("numpy")
        assert numpy is not None
        assert numpy.ratio is not None
        assert numpy.interval is not None
        assert numpy.interval[0] <= numpy.ratio <= numpy.interval[1]
        assert measured.aa_interval is not None
        assert numpy.eager_ratio is not None
        assert numpy.eager_ratio > 0
        assert (measured.between_us, measured.between_kernel_us, numpy.between_ratio) == (None, None, None)

    def test_the_fastest_of_cublaslt_that_works(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fake = fake_vendor.install(monkeypatch)
        measured = contest.contest(HostDevice(), Problem(9, 8, 7), ("numpy", "cublaslt"), None, 0.01)
        assert [rival.key for rival in measured.rivals] == ["numpy", "cublaslt"]
        assert fake.ran.count(13) == 1
        assert measured.notes == ()

    def test_as_on_a_gpu_with_rotated_and_fixed_inputs(
        self, quiet_machine: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_vendor.install(monkeypatch)
        device = HostDevice()
        plan = TimingPlan(0.01, 50.0, 200.0, 0.01, 3, 12, 3000 / device.info.l2_bytes, 9, between=True)
        monkeypatch.setattr(contest.TimingPlan, "of", lambda device: plan)
        measured = contest.contest(device, Problem(9, 8, 7), ("numpy", "cublaslt"), None, 60.0)
        assert (measured.status, measured.rounds) == (Status.OK, 12)
        assert measured.fixed_us is not None
        assert all(rival.fixed_us is not None for rival in measured.rivals)
        assert None not in (measured.between_us, measured.between_kernel_us)
        for rival in measured.rivals:
            # NumPy may be too quick for a time of its own, and then has none.
            assert (rival.between_ratio is None) == (rival.between_interval is None) == (rival.between_us is None)
        assert pickle.loads(pickle.dumps(measured)) == measured  # as a worker sends it

    def test_clocks_that_are_held_back_are_noted(self) -> None:
        class Held(HostDevice):
            share = 0.5

            def held_back(self) -> bool:
                return True

            def clock_mhz(self) -> float | None:
                return self.share * self.info.clock_mhz

        hardly = Held()
        hardly.share = 0.98
        for device, expected in ((HostDevice(), False), (hardly, False), (Held(), True)):
            assert contest.contest(device, Problem(9, 8, 7), ("numpy",), None, 0.01).held_back is expected

    def test_each_contender_runs_for_its_turn(self, quiet_machine: None) -> None:
        begin = time.perf_counter()
        measured = contest.contest(HostDevice(), Problem(9, 8, 7), ("numpy",), None, 0.01, turn_seconds=0.06)
        assert time.perf_counter() - begin > 7 * 3 * 0.06
        assert (measured.status, measured.rounds) == (Status.OK, 7)
        (numpy,) = measured.rivals
        assert numpy.ratio is not None
        assert numpy.interval is not None
        assert numpy.interval[0] <= numpy.ratio <= numpy.interval[1]

    def test_a_kernel_that_is_far_from_itself_leaves_no_ratio(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Times stay, and NumPy is timed all the same."""
        monkeypatch.setattr(ratios, "NOISY", -1.0)
        measured = contest.contest(HostDevice(), Problem(9, 8, 7), ("numpy",), None, 0.01)
        assert measured.ours_us is not None
        (numpy,) = measured.rivals
        assert numpy.us > 0
        assert numpy.eager_us > 0
        values = (numpy.ratio, numpy.interval, numpy.between_ratio, numpy.between_interval, numpy.eager_ratio)
        assert values == (None,) * 5

    def test_a_rival_that_cannot_run_is_a_note(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fake_vendor.install(monkeypatch), "matmul", _refuse)
        measured = contest.contest(HostDevice(), Problem(9, 8, 7), ("numpy", "cublaslt"), None, 0.01)
        assert measured.ok
        assert [rival.key for rival in measured.rivals] == ["numpy"]
        assert measured.notes == ("cuBLASLt could not run: cuBLASLt: not supported",)

    def test_a_wrong_kernel_is_not_timed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
        problem = Problem(24, 20, 16)
        measured = contest.contest(HostDevice(), problem, ("numpy",), _store_of(tmp_path, problem, "return;"), 0.01)
        assert (measured.status, measured.ours_us, measured.rivals) == (Status.WRONG_RESULT, None, ())
        assert "unwritten" in measured.reason


def _refuse(*arguments: object) -> None:
    raise fake_vendor.FakeError("not supported")


def _store_of(folder: Path, problem: Problem, statement: str) -> Path:
    """A store whose record for a problem is a kernel that runs `statement` first."""
    config = faults.plant("host", problem, FAULTY, statement)
    info = choose("host")
    record = make(1.0, problem, config, info.key)
    versions = versions_of(info, HostDevice().compiler)
    assert Store(folder / "faulty").keep(replace(record, versions=versions))
    return folder / "faulty"


class TestRuns:
    """A list of shapes is measured in a worker process."""

    def test_rows_come_in_order(self) -> None:
        quiet = Quiet()
        measured = bench([Problem(8, 8, 8), Problem(9, 5, 3)], quiet, device="host", seconds=0.01)
        assert [each.problem.shape for each in measured.rows] == ["8x8x8", "9x5x3"]
        assert all(each.ok for each in measured.rows)
        assert [len(each.rows) for each in quiet.seen] == [0, 1, 2]
        assert measured.setting.rivals == ("numpy",)
        assert dict(measured.setting.versions)["numpy"].startswith("NumPy ")

    def test_a_crash_costs_one_row(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
        bad = Problem(24, 20, 16)
        store = _store_of(tmp_path, bad, "*(volatile int*)(1 << 12) = 1;")
        # The others have another dtype, so that no look-up takes the faulty record for them.
        after = Problem.parse("8", "double")
        measured = bench([after, bad, after], Quiet(), device="host", store=store, seconds=0.01)
        assert [each.status for each in measured.rows] == [Status.OK, Status.CRASHED, Status.OK]
        assert "SIGSEGV" in measured.rows[1].reason
        assert measured.stopped == ""

    def test_an_interrupt_ends_with_what_is_done(self) -> None:
        measured = bench([Problem(8, 8, 8)] * 5, Quiet(interrupt_after=2), device="host", seconds=0.01)
        assert (len(measured.rows), measured.stopped, measured.wanted) == (2, "interrupt", 5)

    def test_nothing_to_time(self) -> None:
        with pytest.raises(ShapeError, match="nothing to time in 0x3x3"):
            bench([Problem(0, 3, 3)], Quiet(), device="host")

    @pytest.mark.gpu
    def test_on_a_gpu(self) -> None:
        measured = bench([Problem(1000, 1000, 1000), Problem(512, 512, 512)], Quiet(), device="cuda", seconds=0.5)
        assert [each.status for each in measured.rows] == [Status.OK] * 2
        for each in measured.rows:
            assert {rival.key for rival in each.rivals} >= {"cublas"}
            assert each.floor_share is not None
            assert 0 < each.floor_share < 1.02
            assert all(rival.ratio is not None and 0.05 < rival.ratio < 20 for rival in each.rivals)
            assert each.fixed_us is not None
            assert each.eager_us is not None
            assert each.eager_us > each.fixed_us
            assert each.between_us is not None
            assert each.ours_us is not None
            assert 0.9 < each.between_us / each.ours_us < 3
            for rival in each.rivals:
                assert rival.between_ratio is not None
                assert 0.05 < rival.between_ratio < 20


class TestGraded:
    """Products of other grades than `ieee` have more rivals, and errors beside speeds."""

    def measured(self, grade: str, rival: str, shape: str = "70x40x300") -> BenchRow:
        problem = Problem.parse(shape, "float", "nt", grade)
        return contest.contest(HostDevice(), problem, ("numpy", rival, "tf32"), None, 0.01)

    @pytest.mark.parametrize(("grade", "rival"), [("normwise", "hgemm3k"), ("elementwise", "bgemm6k")])
    def test_the_long_product_is_a_rival_and_errors_are_reported(self, grade: str, rival: str) -> None:
        measured = self.measured(grade, rival)
        assert (measured.status, measured.reason) == (Status.OK, "")
        assert [each.key for each in measured.rivals] == ["numpy", rival]
        assert measured.notes == ("TF32 (coarser) could not run: NumPy has no TF32",)
        assert len(measured.error_kinds) == 6 * 3
        document = json.loads(bench_json(result(measured)))
        kinds = document["rows"][0]["error_kinds"]
        assert list(kinds) == ["normal", "uniform", "wide", "graded", "huge", "cancelling"]
        assert all(set(each) == {"ours", "numpy", rival} for each in kinds.values())
        assert all(0 < each["ours"]["elementwise"] < 302 for each in kinds.values())
        assert "in units of u = 2^-24" in document["method"]
        assert pickle.loads(pickle.dumps(measured)) == measured

    def test_rivals_of_other_grades_are_left_out(self) -> None:
        problem = Problem(9, 8, 7)
        measured = contest.contest(HostDevice(), problem, ("numpy", "hgemm3k", "tf32"), None, 0.01)
        assert ([each.key for each in measured.rivals], measured.notes, measured.error_kinds) == (["numpy"], (), ())
        document = json.loads(bench_json(result(measured)))
        assert "error_kinds" not in document["rows"][0]
        assert "coarser" not in document

    def test_a_kernel_that_breaks_its_promise_on_some_data_is_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        broken = tuple(replace(each, normwise=float("nan")) for each in errors.error_kinds(
            HostDevice(), Problem(4, 4, 4), {"ours": HostDevice().vendor(Problem(4, 4, 4))}
        ))  # fmt: skip
        monkeypatch.setattr(contest, "error_kinds", lambda *arguments: broken)
        measured = self.measured("normwise", "hgemm3k")
        assert (measured.status, measured.reason) == (
            Status.WRONG_RESULT, "on normal data the error is nan u, its bound 302 u",
        )  # fmt: skip
        assert json.loads(bench_json(result(measured)))["rows"][0]["error_kinds"]["normal"]["ours"]["normwise"] is None

    def test_every_contender_multiplies_operands_that_repeat_a_block(self) -> None:
        problem, shapes = Problem.parse("600x300x20", "float", "tn", "normwise"), list[tuple[int, ...]]()
        vendor = HostDevice().vendor(problem)

        def launch(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
            shapes.append((a.rows, a.cols, b.rows, b.cols, c.rows, c.cols))
            vendor(a, b, c, alpha, beta)

        def wrong(a: Operand, b: Operand, c: Operand, alpha: float, beta: float) -> None:
            vendor(a, b, c, alpha, beta)
            c.owner.array("float32", (600, 300))[599, 40] += 1e4  # type: ignore[attr-defined]

        measured = errors.error_kinds(HostDevice(), problem, {"ours": launch, "numpy": wrong})
        assert shapes == [(20, 600, 20, 300, 600, 300)] * 6
        assert all(each.elementwise < 22 for each in measured if each.contender == "ours")
        assert all(each.elementwise > 22 for each in measured if each.contender == "numpy")
        assert errors.broken_promise(problem, measured, "ours") == ""
        assert "on normal data" in errors.broken_promise(problem, measured, "numpy")

    def test_errors_are_written_and_read_back(self, tmp_path: Path) -> None:
        first = replace(row(), problem=Problem.parse("4096", accuracy="normwise"))
        more = (*first.rivals, replace(first.rivals[0], key="hgemm3k"), replace(first.rivals[0], key="tf32"))
        kinds = (KindError("uniform", "ours", 10.49, 7.854), KindError("uniform", "cublas", 5.97, 4.465))
        measured = result(replace(first, rivals=more, error_kinds=kinds))
        setting = replace(measured.setting, rivals=("cublas", "cublaslt", "hgemm3k", "tf32"))
        measured = replace(measured, setting=setting)
        document = json.loads(bench_json(measured))
        assert document["coarser"] == ["tf32"]
        assert document["rows"][0]["error_kinds"] == {
            "uniform": {
                "ours": {"elementwise": 10.49, "normwise": 7.854},
                "cublas": {"elementwise": 5.97, "normwise": 4.465},
            }
        }
        assert (document["rows"][0]["ratio_hgemm3k"], document["geomean_ratio_tf32"]) == (2.0, pytest.approx(2.0))
        line = "worst errors in u times norms of row and column, ours (theirs): uniform 7.9 (4.5)"
        assert line in bench_closing(measured)
        text = bench_markdown(measured)
        assert r"| M x N x K | data | ours, u \|A\|\|B\| | ours, u by norms | cuBLAS, u \|A\|\|B\| |" in text
        assert "| 4096x4096x4096 | uniform | 10.5 | 7.85 | 5.97 | 4.46 |" in text
        (tmp_path / "b.json").write_text(bench_json(measured))
        back = read_bench(tmp_path / "b.json")
        assert back.rows[0].error_kinds == kinds
        assert set(back.setting.rivals) == set(measured.setting.rivals)
        assert benched(back, Path("b.json"), "b").charts

    def test_rivals_by_device_and_grade(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fake_vendor.install(monkeypatch)
        monkeypatch.setattr(rivals.metadata, "version", lambda name: "1.0")

        class Gpu(HostDevice):
            info = INFO

        keys = rivals.setting(Gpu(), [Grade.ELEMENTWISE, Grade.IEEE, Grade.NORMWISE]).rivals
        assert keys == ("cublas", "cublaslt", "bgemm6k", "tf32", "hgemm3k")
        assert rivals.setting(Gpu(), [Grade.IEEE]).rivals == ("cublas", "cublaslt")
        assert rivals.setting(HostDevice(), [Grade.NORMWISE]).rivals == ("numpy",)

    @pytest.mark.gpu
    @pytest.mark.parametrize(("grade", "key"), [("normwise", "hgemm3k"), ("elementwise", "bgemm6k")])
    def test_on_a_gpu(self, grade: str, key: str) -> None:
        shapes = [Problem.parse(shape, accuracy=grade) for shape in ("1024", "1000x520x1032")]
        measured = bench(shapes, Quiet(), device="cuda", seconds=0.5)
        for each in measured.rows:
            assert (each.status, each.reason) == (Status.OK, "")
            assert {rival.key for rival in each.rivals} >= {"cublas", key, "tf32"}
            ours, theirs = each.rival("tf32"), each.rival("cublas")
            assert ours is not None
            assert theirs is not None
            assert (ours.error_over_bound or 0) > 20 * (theirs.error_over_bound or 1)
            assert len(each.error_kinds) == 6 * (1 + len(each.rivals))
