"""The output of `tune` and `bench` at 80 and 120 columns, from results made up here."""

import json
import re
import shlex
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from stored import INFO, make
from tilewright.cli.bench import show_bench
from tilewright.cli.progress import BenchShown, TuneShown
from tilewright.cli.result import ResultsFile, result_json, show_result
from tilewright.cli.show import show_records
from tilewright.cli.tables import new_console, say, shortened, table, wrapped
from tilewright.codegen.config import Config
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.detect import choose
from tilewright.runtime.store.record import Accuracy, Measurement, Record, Status
from tilewright.runtime.store.store import Store
from tilewright.tuner.bench.report import Column
from tilewright.tuner.bench.rows import BenchResult, BenchRow, Rival, Setting
from tilewright.tuner.measure.decide import NAIVE, Contender
from tilewright.tuner.measure.evaluate import Phases, Tried
from tilewright.tuner.result import Result
from tilewright.tuner.settings import Budget

pytestmark = pytest.mark.fast

PROBLEM = Problem(4096, 4096, 4096)
WIDTHS = pytest.mark.parametrize("width", [80, 120])
CONFIGS = sorted(
    {record.config for record in Store(Path("nowhere")).records() if record.device == "nvidia-h200"},
    key=lambda c: len(str(c)),
)
"""Configs that ship; the last one has the longest text."""


def console(width: int) -> Console:
    return Console(width=width, file=StringIO(), force_interactive=False)


def text(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def contender(config: Config | None, us: float, ratio: float) -> Contender:
    measured = Measurement((us,), us, 0.0123 * us, end_to_end_us=9876.5)
    between = us + 0.75, ratio * 0.98, (ratio * 0.98 - 0.01, ratio * 0.98 + 0.01)
    return Contender(config, measured, Accuracy(0.034, 0, 0), ratio, (ratio - 0.01, ratio + 0.01), *between)


def result(**changes: Any) -> Result:
    winner = CONFIGS[-1]
    usual = Result(
        problem=PROBLEM,
        device=INFO,
        best=make(2554.0, PROBLEM, winner),
        contenders=(
            contender(winner, 2554.0, 1.052),
            contender(CONFIGS[0], 2600.25, 1.034),
            contender(None, 2687.9, 1.0),
            contender(NAIVE, 123456.7, 0.02177),
        ),
        trials=612,
        resumed=12,
        statuses=(("ok", 580), ("compile_error", 12), ("wrong_result", 8)),
        pruned=(("too large", 1234567),),
        phases=Phases(61.2, 7.1, 20.3),
        sampler_s=3.4,
        seconds=44.9,
        busy_share=0.97,
        idle_s=1.2,
        compilers=14,
        guessed_us=2611.0,
        stopped="seconds",
    )
    return replace(usual, **changes)


class TestTune:
    """Screens at the end of `tune`."""

    @WIDTHS
    def test_the_winner_and_its_figures(self, width: int) -> None:
        screen = console(width)
        show_result(screen, result(), None)
        lines = text(screen).splitlines()
        assert max(map(len, lines)) <= width
        whole = "".join(line.strip() for line in lines)
        assert whole.startswith(f"winner: {CONFIGS[-1]}2,554 us, 53,813 GFLOP/s, ")
        assert re.search(r"% of the bound, 1\.052 x cuBLAS \(1\.042\.\.1\.062\)", text(screen))
        between = "2,555 us, 1.031 x cuBLAS (1.021..1.041), 1.018 x the next variant with another library's kernel"
        assert f"{between} between two products" in " ".join(text(screen).split())

    def test_without_a_kernel_in_between_no_such_time_is_shown(self) -> None:
        screen = console(120)
        nothing: dict[str, Any] = {f"between_{what}": None for what in ("us", "ratio", "interval")}
        show_result(screen, result(contenders=tuple(replace(each, **nothing) for each in result().contenders)), None)
        assert "between" not in text(screen)

    @pytest.mark.parametrize(
        ("gain", "saving"),
        [(0.00217, "0.22%"), (0.0, "0.00%"), (-0.0, "0.00%"), (-1e-12, "0.00%"), (None, "ended by gain")],
    )
    def test_the_expected_gain_is_shown(self, gain: float | None, saving: str) -> None:
        screen = console(120)
        show_result(screen, result(stopped="gain", expected_gain=gain), None)
        words = " ".join(text(screen).split())
        assert saving in words
        assert (f"ended: the next 40 variants are expected to save {saving}" in words) == (gain is not None)

    @WIDTHS
    def test_a_duel_that_was_too_noisy_says_so_and_shows_no_ratio(self, width: int) -> None:
        screen = console(width)
        none: dict[str, Any] = dict.fromkeys(("ratio_vendor", "interval", "between_ratio", "between_interval"))
        contenders = tuple(replace(each, **none) for each in result().contenders)
        show_result(screen, result(contenders=contenders, aa_spread=37.93), None)
        output = " ".join(text(screen).split())
        assert "too noisy for a ratio to cuBLAS (A/A within 3793%)" in output
        assert "1.052" not in output
        assert max(map(len, text(screen).splitlines())) <= width

    @WIDTHS
    def test_the_table_cuts_no_number(self, width: int) -> None:
        screen = console(width)
        show_result(screen, result(), None)
        table = text(screen).split("\n\n")[1].splitlines()
        headings = table[0].split()
        assert {"us", "GFLOP/s", "cuBLAS", "variant"} <= set(headings)
        assert "between" in headings
        assert ("spread" in headings, "interval" in headings, "err/bound" in headings) == (width == 120,) * 3
        numbers = ["2,554", "2,600", "2,688", "123,457", "53,813", "52,856", "51,132", "1,113", "1.052", "0.02177"]
        numbers += ["1.031", "0.02133"]
        numbers += ["1.2%", "0.034", "48.34", "0.01177..0.03177", "1.042..1.062"] if width == 120 else []
        assert set(numbers) <= set("\n".join(table).split())
        for config in (CONFIGS[-1], CONFIGS[0], NAIVE):
            assert str(config) in "".join(line.split()[-1] for line in table)
        assert "…" not in text(screen)

    @WIDTHS
    def test_where_accuracy_is_named_errors_stand_beside_speeds(self, width: int) -> None:
        screen = console(width)
        show_result(screen, result(problem=Problem.parse("4096", accuracy="normwise")), None)
        lines = text(screen).partition("to use it")[0].splitlines()  # commands stay on one line
        assert max(map(len, lines)) <= width
        assert "; error 0.034 of the bound of normwise, cuBLAS 0.034" in " ".join(text(screen).split())
        assert "err/bound" in text(screen).split("\n\n")[1].splitlines()[0].split()

    def test_what_the_run_did_and_how_to_use_its_winner(self) -> None:
        screen = console(200)
        show_result(screen, result(), None)
        assert max(map(len, text(screen).split("tried ")[1].splitlines())) <= 120
        for words in (
            "tried 600 variants in 44.9 s, 13.4 a second: 580 ok, 12 compile_error, 8 wrong_result; ended by seconds",
            "seconds: compile 61.2, verify 7.1, time 20.3, sampler 3.4, idle 1.2; 14 compile processes, "
            "measuring 97% of the time after 10 s",
            "the best of the first 16 guesses took 2,611 us",
            "tilewright emit --shape 4096x4096x4096 --dtype float --device cuda:0 -o out",
            'tilewright.load("4096x4096x4096", dtype="float", device="cuda:0")',
        ):
            assert words in " ".join(text(screen).split())

    def test_the_commands_name_the_transposes_and_the_store(self) -> None:
        screen = console(120)
        show_result(screen, result(problem=Problem(8, 9, 7, trans_a=True)), Path("a 'store'"))
        emit, *python = text(screen).splitlines()[-3:]
        words = shlex.split(emit)
        assert words[words.index("--trans") + 1] == "tn"
        assert words[words.index("--store") + 1] == "a 'store'"
        code = shlex.split("\n".join(python))[-1]
        compile(code, "code", "exec")
        assert """trans="tn", device="cuda:0", store="a 'store'")""" in code

    @WIDTHS
    def test_what_becomes_of_named_variants(self, width: int) -> None:
        for named, words in (((), ""), (CONFIGS[-1:], "  kept: from now on "), (CONFIGS[:1], "  nothing is kept: ")):
            screen = console(width)
            show_result(screen, result(named=tuple(named)), None)
            lines = [line for line in text(screen).splitlines() if "kept: " in line]
            assert [line.startswith(words) for line in lines] == ([True] if words else [])
            assert ("guesses" in text(screen)) == (not named)  # only a search has guesses
            assert max(map(len, text(screen).splitlines())) <= width

    @WIDTHS
    def test_the_table_of_several_shapes(self, width: int) -> None:
        screen = console(width)
        records = [make(us, Problem(4096, 4096, size), CONFIGS[-1]) for us, size in ((2554.0, 4096), (123456.7, 65536))]
        show_records(screen, [("2 of 3 shapes", records)])
        title, head, _, *lines = text(screen).splitlines()
        assert title == "2 of 3 shapes"
        assert head.split()[-1] == "variant"
        assert lines[1].split()[:4] == ["4096x4096x65536", "float", "nn", "123,457"]
        assert max(map(len, (head, *lines))) <= width
        assert "err/bound" not in head

    @WIDTHS
    def test_records_of_a_coarser_accuracy_show_their_errors(self, width: int) -> None:
        screen = console(width)
        problems = [Problem.parse("4096", accuracy=grade) for grade in ("ieee", "elementwise")]
        show_records(screen, [("2 of 2 shapes", [make(2554.0, problem, CONFIGS[0]) for problem in problems])])
        lines = text(screen).splitlines()
        place = lines.index("2 of 2 shapes, elementwise")
        assert ["err/bound" in lines[head] for head in (1, place + 1)] == [False, True]
        assert ["0.5" in lines[row].split() for row in (3, place + 3)] == [False, True]
        assert max(map(len, lines)) <= width

    def test_no_command_for_a_gpu_is_shown_for_the_processor(self) -> None:
        screen = console(80)
        show_result(screen, result(device=choose("host"), guessed_us=None, busy_share=None), None)
        assert "emit" not in text(screen)
        assert "(for a GPU, tune on that GPU)" in text(screen)
        assert "x NumPy" in text(screen)


def test_each_result_of_a_list_is_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is whole after each result, and no earlier result is encoded again."""
    seeds, documents = [], []

    def encoded(single: Result) -> dict[str, Any]:
        seeds.append(single.seed)
        documents.append(result_json(single))  # it holds the time of writing
        return documents[-1]

    monkeypatch.setattr("tilewright.cli.result.result_json", encoded)
    results = [result(seed=seed) for seed in range(3)]
    file = ResultsFile(tmp_path / "results.json")
    for each in results:
        file.add(each)
        assert (tmp_path / "results.json").read_text() == json.dumps(documents, indent=1) + "\n"
    assert seeds == [0, 1, 2]


class TestProgress:
    """Progress of a run, in lines or drawn on a terminal."""

    @WIDTHS
    def test_lines_of_a_tuning(self, width: int) -> None:
        screen = console(width)
        shown = TuneShown(screen)
        shown.started(PROBLEM, INFO, len(CONFIGS), Budget(600, 45.0), 3)
        failed = Tried(Record(PROBLEM, "key", CONFIGS[0], Status.COMPILE_ERROR, "it has no end"), Phases())
        shown.tried(failed, make(2554.0, PROBLEM, CONFIGS[-1]))
        shown.duelling(tuple(CONFIGS[:5]))
        lines = text(screen).splitlines()
        assert max(map(len, lines)) <= width
        whole = " ".join(text(screen).split())
        assert f"4/{len(CONFIGS)} trials, 45 s left; failed: 1 compile_error; best: 2,554 us, 53,813 GFLOP/s, " in whole
        assert f"{len(CONFIGS)} variants; 3 tried before; at most 600 trials and 45 s" in whole
        assert lines[-1] == "timing the best 5 side by side with the vendor's library"

    @WIDTHS
    def test_lines_of_a_tuning_that_has_no_list(self, width: int) -> None:
        screen = console(width)
        shown = TuneShown(screen)
        shown.started(PROBLEM, INFO, None, Budget(600, 45.0), 0)
        tried = Tried(make(2554.0, PROBLEM, CONFIGS[-1]), Phases())
        shown.tried(tried, make(2554.0, PROBLEM, CONFIGS[-1]))
        assert max(map(len, text(screen).splitlines())) <= width
        whole = " ".join(text(screen).split())
        assert f"{PROBLEM} on {INFO.name}: at most 600 trials and 45 s" in whole
        assert "1/600 trials, 45 s left; failed: none; best: 2,554 us" in whole

    @WIDTHS
    def test_lines_of_a_bench(self, width: int, tmp_path: Path) -> None:
        screen = console(width)
        shown = BenchShown(screen, tmp_path / "run.json")
        shown.opened(bench_result(rows=()))
        shown.measured(bench_result())
        assert text(screen).splitlines()[1:] == ["2/2 7x7x7: crashed, ended by SIGSEGV"]
        assert (tmp_path / "run.json").exists()
        shown.measured(bench_result(rows=(ROW,)))
        assert text(screen).splitlines()[-1] == "1/2 4096x4096x4096: 2,554 us, 1.052 x cuBLAS, 0.9870 x cuBLASLt"

    @WIDTHS
    def test_drawn_on_a_terminal(self, width: int) -> None:
        screen = Console(width=width, file=StringIO(), force_terminal=True, force_interactive=True)
        shown = BenchShown(screen)
        with shown.drawn():
            shown.opened(bench_result(rows=()))
            shown.begun(PROBLEM)
            shown.measured(bench_result(rows=(ROW,)))
        plain = re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", text(screen))
        assert "4096x4096x4096, 0 s so far, about 0 s left\n" in plain
        assert "1/2 4096x4096x4096: 2,554 us, 1.052 x cuBLAS" in plain
        assert max(map(len, re.split(r"[\r\n]", plain))) <= width


ROW = BenchRow(
    PROBLEM,
    str(CONFIGS[-1]),
    "predicted",
    taken_from="4096x4096x8192",
    ours_us=2554.0,
    floor_us=2054.4,
    error_over_bound=0.034,
    aa_interval=(0.999, 1.001),
    rounds=9,
    rivals=(
        Rival("cublas", 2687.9, 1.052, (1.051, 1.053), 0.25, 20.0, 5.0, 2688.9, 1.049, (1.047, 1.051), 0.9123),
        Rival("cublaslt", 2520.8, 0.987, (0.985, 0.989), 0.25, 20.0, 5.0, 2521.8, 0.9861, (0.982, 0.988), 0.8123),
    ),
)
CRASHED = BenchRow(Problem(7, 7, 7), str(NAIVE), "default", Status.CRASHED, "ended by SIGSEGV")


def bench_result(rows: tuple[BenchRow, ...] = (ROW, CRASHED)) -> BenchResult:
    return BenchResult(INFO, Setting(("cublas", "cublaslt"), ()), "2026-01-02T03:04:05+00:00", 2, rows)


class TestBench:
    """Screens at the end of `bench`."""

    @pytest.mark.parametrize(
        ("width", "more"),
        [
            (80, {"of floor", "A/A"}),
            (120, {"of floor", "config from", "interval"}),
            (160, {"of floor", "config from", "TFLOP/s", "interval", "err/bound", "A/A", "cuBLAS err"}),
            (210, {"of floor", "config from", "TFLOP/s", "interval", "err/bound", "A/A", "cuBLAS err", "eager"}),
        ],
    )
    def test_as_many_columns_as_there_is_room_for(self, width: int, more: set[str]) -> None:
        screen = console(width)
        show_bench(screen, bench_result())
        lines = text(screen).splitlines()
        assert max(map(len, lines)) <= width
        assert lines[0] == "float on NVIDIA H200"
        assert set(re.split("  +", lines[1])) == {"M x N x K", "us", "x cuBLAS", "x cuBLASLt", "between"} | more
        numbers = ["4096x4096x4096", "2,554", "1.052", "0.9870", "80.4%", "1.049", "0.9861"]
        numbers += ["1.051..1.053", "0.9850..0.9890"] if width > 80 else []
        numbers += ["53.81"] if width > 120 else []
        numbers += ["1.047..1.051", "0.9820..0.9880", "0.9123", "0.8123"] if width > 160 else []
        assert set(numbers) <= set(lines[3].split())
        if width > 80:
            origin = " ".join(line[lines[1].index("config from") :].strip() for line in lines[3:5])
            assert origin.startswith("predicted (from 4096x4096x8192)")
        means = next(line for line in lines if line.startswith("geometric mean"))
        assert [mean for mean in means.split()[2:] if mean not in ("0.9123", "0.8123")] == [
            "80.4%", "1.052", "1.049", "0.9870", "0.9861",
        ]  # fmt: skip
        whole = " ".join(text(screen).split())
        for words in ("cuBLAS: 1.052 back to back, 1.049", "cuBLASLt: 0.9870 back to back, 0.9861"):
            assert f"geometric means, {words} with another library's kernel in between, 0." in whole
        assert lines.index(means) > next(place for place, line in enumerate(lines) if "crashed" in line)
        assert "7x7x7: crashed, ended by SIGSEGV" in lines

    @pytest.mark.parametrize("shape", ["4096", "16384"])
    @pytest.mark.parametrize(("grade", "key", "title"), [
        ("normwise", "hgemm3k", "HGEMM 3k"), ("elementwise", "bgemm6k", "BF16 6k"),
    ])  # fmt: skip
    def test_where_accuracy_is_named_errors_stand_beside_speeds(
        self, shape: str, grade: str, key: str, title: str
    ) -> None:
        keys = "cublas", "cublaslt", key, "tf32"
        rivals = (*ROW.rivals, *(replace(ROW.rivals[0], key=key) for key in keys[2:]))
        row = replace(ROW, problem=Problem.parse(shape, accuracy=grade), rivals=rivals)
        bench = replace(bench_result((row,)), setting=Setting(keys, ()))
        screens = {}
        for width in (80, 120, 270):
            screens[width] = screen = console(width)
            show_bench(screen, bench)
            assert max(map(len, text(screen).splitlines())) <= width
        headings = {width: re.split("  +", text(screen).splitlines()[1]) for width, screen in screens.items()}
        least = ["M x N x K", "us", "err/bound", "x cuBLAS", f"x {title}", "x TF32 (coarser)"]
        assert set(least) <= set(headings[80])
        assert {*least, "cuBLAS err", f"{title} err", "TF32 err"} <= set(headings[120])
        assert {*least, "x cuBLASLt", "TFLOP/s", "between", "cuBLAS err"} <= set(headings[270])
        errors = f"largest errors over their bounds, random data: ours 0.034, cuBLAS 0.25, cuBLASLt 0.25, {title} 0.25"
        assert f"{errors}, TF32 (coarser) 0.25" in " ".join(text(screens[270]).split())


class TestTables:
    """Tables and text that every screen is made of."""

    def test_where_there_is_no_room_lines_are_long_and_whole(self) -> None:
        head, row = table([Column("us", ["123,456.7"]), Column("x", ["1.234"], 1)], 5)
        assert (head.plain, row.plain) == ("       us\n---------", "123,456.7")

    def test_text_breaks_at_blanks_and_between_settings(self) -> None:
        assert wrapped("took 45,123 us, tiled:8,edge=pad", 12) == ["took 45,123", "us, tiled:8,", "edge=pad"]
        assert wrapped("x" * 5, 2) == ["xx", "xx", "x"]
        assert shortened("tiled:8,edge=pad,skew=1", 20) == "tiled:8,edge=pad,..."
        assert shortened("tiled:8,edge=pad", 16) == "tiled:8,edge=pad"

    def test_nothing_that_a_terminal_would_obey(self) -> None:
        screen = Console(width=80, file=StringIO(), force_terminal=True, color_system=None)
        say(screen, "\x1b[2J[bold]\r\n\x9b")
        assert text(screen) == "\\x1b[2J[bold]\\r\\n\\x9b\n"

    def test_columns_are_honoured_in_a_pipe(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        assert new_console().width == 80
        monkeypatch.delenv("COLUMNS")
        assert new_console().width == 120
