"""The options of tune, bench and emit that name the work: suites, ranges and variants."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import faults
import pytest
from commands import Run
from stored import CONFIGS, make
from tilewright.cli import commands, options, trials, values
from tilewright.cli import tune as cli
from tilewright.cli.trials import TrialsFile
from tilewright.codegen.config import Config
from tilewright.codegen.errors import TuningError
from tilewright.codegen.families import families, parse
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.detect import choose
from tilewright.runtime.store.record import Accuracy, Record, Status
from tilewright.runtime.store.store import Store
from tilewright.tuner.measure.evaluate import Phases, Tried

QUICK = ("--device", "host", "--trials", "1", "--seconds", "20", "--keep", "1")
HOST = choose("host").key
ALIGNED = "simt:32x32x32,thread=4,load=tma,stages=2,k_inner_a"
"""A config that serves only rows of whole vectors."""
BAD = [
    (("--m", "256:4096"), "'256:4096' is not START:STOP:STEP"),
    (("--m", "0"), "'0' is not START:STOP:STEP"),
    (("--m", "9:8:1"), "'9:8:1' is not"),
    (("--n", "1:8:0"), "'1:8:0' is not"),
    (("--k", "many"), "'many' is not"),
    (("--m", "5", "--k", "5"), "--m, --n and --k go together; add --n"),
    (("--m", "1:1000:1", "--n", "1:1000:1", "--k", "5"), "make 1,000,000 shapes, 10,000 are taken at most"),
    (("--suite", "{folder}/suite.json"), "suite.json: entry 2: dtype must be float or double, got 'half'"),
    (("--shape", "5", "--config", "tiled:7"), "got 7"),
    (("--shape", "5", "--config", ""), "config ''"),
]


def problems_of(**fields: Any) -> list[str]:
    unset: dict[str, Any] = dict.fromkeys(commands.PROBLEMS)
    kind = {"dtype": "float", "trans": "nn", "accuracy": "ieee", "batch": 1}
    problems = options.problems_of(**unset | {"shapes": ()} | kind | fields)
    return [str(problem) for problem in problems]


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


class TestProblems:
    """The problems that options name, and their order."""

    def test_ranges_include_both_ends_and_are_combined(self) -> None:
        sizes = values.sizes
        problems = problems_of(m=sizes("256:768:256"), n=sizes("5"), k=sizes("1:4:2"), dtype="double", trans="tn")
        assert problems == [f"{m}x5x{k} double tn" for m in (256, 512, 768) for k in (1, 3)]

    def test_a_suite_then_ranges_then_shapes_each_once(self, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_text("m,n,k,trans\n7,7,7,tt\n2,3,4,\n")
        one = range(2, 3)
        problems = problems_of(suite=str(tmp_path / "a.csv"), m=one, n=one, k=one, shapes=("5", "2x3x4", "5"))
        assert problems == ["7x7x7 float tt", "2x3x4 float nn", "2x2x2 float nn", "5x5x5 float nn"]

    @pytest.mark.parametrize("command", ["tune", "bench"])
    @pytest.mark.parametrize(("arguments", "words"), BAD, ids=lambda value: " ".join(value) if value else "")
    def test_bad_input_is_answered_in_one_line(
        self, run: Run, tmp_path: Path, command: str, arguments: tuple[str, ...], words: str
    ) -> None:
        (tmp_path / "suite.json").write_text('["5", {"m": 1, "n": 2, "k": 3, "dtype": "half"}]')
        ran = run(command, "--device", "host", *(each.format(folder=tmp_path) for each in arguments))
        assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert words in ran.err

    def test_a_variant_that_cannot_serve_is_refused_before_anything_is_tried(self, run: Run) -> None:
        command = ("--device", "host", "--shape", "16", "--shape", "5", "--config", ALIGNED)
        ran = run("tune", *command)
        assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
        assert f"{ALIGNED} cannot serve 5x5x5 float nn on host" in ran.err
        assert "TMA copies rows that are aligned to 16 bytes" in ran.err
        ran = run("tune", *command[:4], "--config", "tiled:16", "--trials", "5")
        assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
        ran = run("bench", "--config", "tiled:16", "--tune", "--shape", "5")
        assert (ran.status, ran.err) == (2, "tilewright: --config and --tune exclude each other; leave out one\n")

    def test_emit_takes_the_types_and_transposes_of_a_suite(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "suite.json").write_text('["5", {"m": 1, "n": 2, "k": 3, "dtype": "double", "trans": "nt"}]')
        command = ("emit", "--suite", str(tmp_path / "suite.json"), "--trans", "tn", "--arch", "sm_80")
        ran = run(*command, "-o", str(tmp_path / "out"))
        assert ran.status == 0, ran.err
        assert [line.split(" for ")[0] for line in ran.out.splitlines() if " for sm_80: " in line] == [
            "5x5x5 float tn",
            "1x2x3 double nt",
        ]


class TestSuites:
    """Several shapes in one run."""

    def test_each_with_its_type_and_a_table_of_all(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "s.csv").write_text("m,n,k,dtype,trans\n8,9,7,double,tn\n6,5,4,,\n")
        files = ("--json", str(tmp_path / "r.json"), "--csv", str(tmp_path / "t.csv"))
        ran = run("tune", *QUICK, "--suite", str(tmp_path / "s.csv"), *files, "--seed", "7")
        assert ran.status == 0, ran.err
        assert ran.out.startswith("2 shapes, at most 20 s each\nshape 1 of 2\n")
        lines = ran.out[ran.out.index("2 of 2 shapes\n") :].splitlines()
        assert lines[3].split()[:3] == ["8x9x7", "double", "tn"]
        assert lines[4].split()[:3] == ["6x5x4", "float", "nn"]
        results = json.loads((tmp_path / "r.json").read_text())
        assert [(each["seed"], each["sampler"], each["kept"]) for each in results] == [(7, "local", True)] * 2
        rows = rows_of(tmp_path / "t.csv")
        assert [(row["m"], row["dtype"], row["trans"], row["status"]) for row in rows] == [
            ("8", "double", "tn", "ok"),
            ("6", "float", "nn", "ok"),
        ]
        for row, each in zip(rows, results):
            assert row["config"] == str(parse(row["config"]))
            assert each["best"]["config"]["family"] in (row["family"], "naive")  # every duel has the naive kernel
        ran = run("bench", "--device", "host", "--seconds", "0.01", "--suite", str(tmp_path / "s.csv"))
        assert ran.status == 0, ran.err
        assert "double and float on host" in ran.out
        assert "8x9x7 double tn" in ran.out
        ran = run("tune", *QUICK, "--suite", str(tmp_path / "s.csv"), "--shape", "3", "--skip-tuned")
        assert ran.out.startswith("2 of 3 shapes have a record of host")
        assert "8x9x7" not in ran.out
        again = run("tune", *QUICK, "--suite", str(tmp_path / "s.csv"), "--csv", str(tmp_path / "t.csv"))
        assert again.status == 0, again.err
        before, rows = rows, rows_of(tmp_path / "t.csv")
        for old, new in zip(before, rows):
            for name in ("status", "config", "error_over_bound"):
                assert new[name] == old[name] != ""
            assert float(new["us"]) == pytest.approx(float(old["us"]))
            assert float(new["time_s"]) > 0
        assert [(row["m"], row["status"], row["reason"]) for row in rows] == [
            ("8", "ok", "tried by an earlier run"),
            ("6", "ok", "tried by an earlier run"),
        ]

    def test_a_shape_that_fails_stops_no_other(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        real = cli.tune

        def fails(problem: Problem, **arguments: Any) -> Any:
            if problem.m == 6:
                raise TuningError(f"no variant of {problem} works")
            return real(problem, **arguments)

        monkeypatch.setattr(cli, "tune", fails)
        ran = run("tune", *QUICK, "--m", "6:7:1", "--n", "4", "--k", "4")
        assert (ran.status, ran.err) == (1, "tilewright: no variant of 6x4x4 float nn works\n")
        assert "1 of 2 shapes\n" in ran.out
        assert [record.problem.shape for record in Store().layers()[0]] == ["7x4x4"]


class TestNamedVariants:
    """Only the variants that `--config` names are tried."""

    def test_one_that_wins_is_kept(self, run: Run, own_folders: Path) -> None:
        ran = run("tune", "--device", "host", "--shape", "40", "--config", "naive:8x32", "--config", "tiled:8")
        assert ran.status == 0, ran.err
        assert "kept: from now on the library runs it for this shape" in ran.out
        assert "tried 3 variants" in ran.out  # with the default, which ran so far
        assert [str(record.config) for record in Store().layers()[0]] == ["naive:8x32"]
        assert not (own_folders / "trials").exists()

    def test_one_that_loses_leaves_the_record_as_it_is(self, run: Run, tmp_path: Path) -> None:
        file, table = tmp_path / "r.json", tmp_path / "t.csv"
        record = make(20.0, Problem(40, 40, 40), parse("naive:8x32"), HOST)
        Store().keep(record)
        command = ("tune", "--device", "host", "--shape", "40", "--config", "tiled:4,unroll=1")
        ran = run(*command, "--json", str(file), "--csv", str(table))
        assert ran.status == 0, ran.err
        assert "nothing is kept: the winner is what the library runs for this shape already" in ran.out
        assert Store().layers()[0] == (record,)
        (result,) = json.loads(file.read_text())
        assert (result["kept"], result["best"]["config"]["family"]) == (False, "naive")
        rows = {row["config"]: row for row in rows_of(table)}
        assert set(rows) == {"tiled:4,unroll=1", "naive:8x32"}
        assert rows["tiled:4,unroll=1"]["tile_width"] == "4"
        assert rows["tiled:4,unroll=1"]["batch"] == "1"
        assert rows["tiled:4,unroll=1"]["block_m"] == ""
        assert float(rows["tiled:4,unroll=1"]["us"]) > 0

    def test_a_stored_record_gives_way_to_a_slower_one_only_by_replace(self, run: Run, tmp_path: Path) -> None:
        """The stored variant takes part even where neither the space nor --config names it."""
        Store().keep(make(20.0, Problem(40, 40, 40), parse("naive:8x32"), HOST))
        spaces = ("--spaces", str(faults.small_space(tmp_path / "spaces", 4)))
        command = ("tune", "--device", "host", "--shape", "40", "--no-isolation")
        ran = run(*command, *spaces)
        assert ran.status == 0, ran.err
        assert "winner: naive:8x32\n" in ran.out
        assert "it was stored for this shape already, and stays" in ran.out
        assert [record.config.family for record in Store().both()[0]] == ["naive"]
        for more in (spaces, ("--config", "tiled:4,unroll=1")):
            ran = run(*command, *more, "--replace")
            assert ran.status == 0, ran.err
            assert "winner: tiled:4" in ran.out
            assert [record.config.family for record in Store().both()[0]] == ["tiled"]

    def test_one_that_does_not_work_is_reported_with_its_reason(
        self, run: Run, monkeypatch: pytest.MonkeyPatch, own_folders: Path
    ) -> None:
        from tilewright.tuner.measure.evaluate import Bench

        real = Bench.try_variant

        def wrong(self: Bench, config: Config, stop_above_us: float) -> Tried:
            tried = real(self, config, stop_above_us)
            record = Record(tried.record.problem, HOST, config, Status.WRONG_RESULT, "C[1, 2] is NaN")
            return Tried(record, Phases()) if config == CONFIGS[0] else tried

        monkeypatch.setattr(Bench, "try_variant", wrong)
        ran = run("tune", "--device", "host", "--shape", "5", "--config", str(CONFIGS[0]), "--no-isolation")
        assert (ran.status, ran.err.count("\n")) == (1, 1)
        assert "no variant of 5x5x5 float nn works on host" in ran.err
        assert "1 wrong_result" in ran.err
        assert ran.err.endswith("; C[1, 2] is NaN\n")
        assert not (own_folders / "records").exists()

    def test_bench_times_it_in_place_of_the_record(self, run: Run, tmp_path: Path) -> None:
        file = tmp_path / "b.json"
        shapes = ("--shape", "16", "--shape", "5x6x7", "--config", ALIGNED)
        ran = run("bench", "--device", "host", "--seconds", "0.01", *shapes, "--json", str(file))
        assert ran.status == 0, ran.err
        good, bad = json.loads(file.read_text())["rows"]
        assert (good["status"], good["config"], good["origin"]) == ("ok", ALIGNED, "as given")
        assert (bad["status"], bad["config"]) == ("pruned", ALIGNED)
        assert "TMA copies rows that are aligned to 16 bytes" in bad["reason"]


class TestSeed:
    """A seed gives the same random numbers again."""

    def test_a_search_of_a_recording_can_be_repeated(self, run: Run) -> None:
        folder = Path(cli.__file__).resolve().parent.parent / "benchmarks" / "results" / "nvidia-h200" / "recordings"
        command = ("tune", "--device", f"replay:{folder / 'float-16x4096x4096.json.gz'}", "--trials", "20")
        first, again, other = (run(*command, "--sampler", "random", "--seed", seed).out for seed in ("1", "1", "2"))
        assert first == again != other

    def test_tune_receives_the_seed(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        arguments: dict[str, Any] = {}

        def note(problem: Problem, **options: Any) -> Any:
            arguments.update(options)
            raise TuningError("noted")

        monkeypatch.setattr(cli, "tune", note)
        assert run("tune", *QUICK, "--shape", "5", "--seed", "12").status == 1
        assert arguments["seed"] == 12
        assert run("tune", *QUICK, "--shape", "5", "--seed", "-1").status == 2


class TestTrialsFile:
    """Comma-separated values of every trial."""

    def test_the_text_of_a_reason_is_data(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        file = TrialsFile(path)
        for reason in ("=cmd|' /C calc'!A0", "+1", "-1", "@x", "\x1b[2J", "a\nb"):
            record = Record(Problem(5, 6, 7), "@key", CONFIGS[0], Status.COMPILE_ERROR, reason)
            file.tried(Tried(record, Phases(1.5)))
        lines = path.read_text().splitlines()
        assert len(lines) == 7  # a trial has its line as soon as it has ended
        assert "\x1b" not in path.read_text()
        rows = rows_of(path)
        assert [row["reason"] for row in rows] == [
            "'=cmd|' /C calc'!A0", "'+1", "'-1", "'@x", "\\x1b[2J", "a\\nb",
        ]  # fmt: skip
        assert {row["device"] for row in rows} == {"'@key"}
        assert {row["compile_s"] for row in rows} == {"1.5"}
        assert {row["us"] for row in rows} == {""}

    def test_the_columns_are_those_of_every_family(self, tmp_path: Path) -> None:
        file = TrialsFile(tmp_path / "t.csv")
        good = make(12.5, Problem(5, 6, 7), CONFIGS[1])
        file.tried(Tried(good, Phases()))
        (row,) = rows_of(tmp_path / "t.csv")
        assert {leaf.name for kind in families().values() for leaf in kind.leaves()} < row.keys()
        assert (row["us"], row["error_over_bound"], row["status"]) == ("12.5", "0.5", "ok")
        for name, value in CONFIGS[1].values:
            assert row[name] == str(value)
        assert good.accuracy == Accuracy(0.5, 0, 0)

    def test_a_full_disk_costs_the_file_alone(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = TrialsFile(tmp_path / "t.csv")

        def full(*arguments: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(trials, "_append", full)
        tried = Tried(make(12.5), Phases())
        file.tried(tried)
        file.tried(tried)
        assert capsys.readouterr().err == f"note: {tmp_path / 't.csv'} ends here: No space left on device\n"
