"""Reports: what they say of a variant, of parameters and of journals agrees with figures worked out by hand."""

import itertools
import math
import os
import random
import re
from dataclasses import replace
from datetime import datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import tilewright
from stored import DEVICE, INFO, PROBLEM, make
from tilewright.codegen.config import Config
from tilewright.codegen.errors import StoreError
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem
from tilewright.runtime.check.roofline import rates_of
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.device.protocol import Binary
from tilewright.runtime.store.store import Store
from tilewright.tuner.bench.plot import Marks, Palette
from tilewright.tuner.bench.report import bench_closing, bench_json
from tilewright.tuner.bench.rows import BenchResult
from tilewright.tuner.bench.stored import read_bench
from tilewright.tuner.choose.forecast import Forecast
from tilewright.tuner.recording.files import Entry, Recording, read_cache_file, write_cache_file
from tilewright.tuner.recording.journal import Journal, journals_of, read_journal
from tilewright.tuner.recording.points import config_of
from tilewright.tuner.report.benched import commands_of
from tilewright.tuner.report.charts import Dot, chart, dots
from tilewright.tuner.report.counters import readable
from tilewright.tuner.report.drawn import roofline
from tilewright.tuner.report.importance import FEWEST, importances
from tilewright.tuner.report.tuning import Tuning, tuning_of
from tilewright.tuner.report.variant import floors, intensity, l2_gbs, reasons, resources
from tilewright.tuner.search.candidates import candidates, read_spaces
from tilewright.tuner.search.space import Dimension

ROOT = Path(tilewright.__file__).resolve().parent
RESULTS = ROOT / "benchmarks/results/nvidia-h200"
H200 = KNOWN[DEVICE]
WINNER = parse("simt:64x96x32,slices=4,slice_barriers,stages=2,l2_prefetch")


def test_resources_of_a_compiled_kernel() -> None:
    used = resources(PROBLEM, WINNER, H200, Binary(b"", registers=122, frame_bytes=8))
    assert (used.ctas, used.threads, used.smem_bytes) == (128, 384, 98304)
    assert dict(used.limits) == {"CTA slots": 32, "warps": 5, "registers": 1, "shared memory": 2}
    assert (used.registers, used.spill_bytes, used.concurrent) == (122, 8, 1)
    assert used.limited_by == "registers"
    assert used.occupancy == 12 / 64
    assert used.waves == 128 / 132


def test_resources_without_a_compiler_are_those_of_the_config() -> None:
    used = resources(PROBLEM, WINNER, H200)
    assert (used.registers, used.spill_bytes) == (WINNER.registers(WINNER.fit(PROBLEM), PROBLEM.dtype), None)


def test_least_times() -> None:
    limits_us = {floor.by.split(" of ")[-1].split(",")[0]: floor.us for floor in floors(PROBLEM, WINNER, H200)}
    flops = 2 * 1024 * 768 * 512
    assert limits_us["arithmetic"] == pytest.approx(flops / 66.9e6)
    # The busiest SM has one of the 128 tiles, and a 132nd of the rate.
    assert limits_us["the busiest SM"] == pytest.approx(flops / 128 * 132 / 66.9e6)
    assert limits_us["device memory"] == pytest.approx(4 * (1024 * 512 + 512 * 768 + 1024 * 768) / 4.43e6)
    loaded = 4 * (1024 * 768 * 512 * (1 / 96 + 1 / 64) + 1024 * 768)
    assert limits_us["the L2 cache"] == pytest.approx(loaded / (48 * 132 * 1980))
    assert intensity(PROBLEM, WINNER) == pytest.approx(flops / loaded)
    times = [floor.us for floor in floors(PROBLEM, WINNER, H200)]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("text", "ctas", "smem_bytes", "busiest", "loaded"),
    [
        ("simt:16x16x8,thread=2x4,load=registers,stages=2", 2000, 2 * 2 * 8 * (16 + 4) * 4, 16, 2 * 16 * 16 * 2000),
        ("small:16x2x2", 125, 16 * (3 * (16 * 17 + 1) * 4 + 3 * 8), 16, 2 * 16 * 16 * 2000),
        ("small:8x2x2", 250, 8 * (3 * (16 * 17 + 1) * 4 + 3 * 8), 16, 2 * 16 * 16 * 2000),
        ("naive:8x32", 2000 * 2, 0, 31, 2 * 16**3 * 2000),
    ],
)
def test_a_batch_takes_resources_and_times_of_all_its_products(
    text: str, ctas: int, smem_bytes: int, busiest: int, loaded: int
) -> None:
    """The busiest SM computes `busiest` products of 16x16x16, with the elements beyond C."""
    problem, config = Problem(16, 16, 16, batch=2000), parse(text)
    used = resources(problem, config, H200)
    assert (used.ctas, used.smem_bytes) == (ctas, smem_bytes)
    assert dict(used.limits)["shared memory"] == H200.arch.smem_per_sm_bytes // (smem_bytes + 1024)
    limits_us = {floor.by.split(" of ")[-1].split(",")[0]: floor.us for floor in floors(problem, config, H200)}
    assert limits_us["the busiest SM"] == pytest.approx(busiest * 2 * 16**3 * 132 / 66.9e6)
    assert limits_us["the busiest SM"] >= limits_us["arithmetic"] == pytest.approx(2000 * 2 * 16**3 / 66.9e6)
    assert intensity(problem, config) == pytest.approx(problem.flops / (4 * (loaded + 2000 * 16 * 16)))


@pytest.mark.parametrize(
    ("shape", "us", "sentence"),
    [
        (
            "1024x768x512",
            25.0,
            "Arithmetic of the busiest SM alone takes 12.41 us, 50% of the measured 25.00 us, and no other limit takes "
            "longer. The other 50% goes to what no limit counts: the launch, first loads, barriers, instructions "
            "beside the multiply-adds, and the last stores.",
        ),
        ("1024x768x512", 14.0, "takes 12.41 us, 89% of the measured 14.00 us: this is what limits the variant."),
        ("1024x768x512", 14.9, "takes 12.41 us, 83% of the measured 14.90 us, and no other limit"),
        ("1024x768x512", 20.0, "4 SMs have none."),
        ("8192x96x512", 20.0, "all run at once, and 4 SMs have none."),
        ("64x12672x512", 20.0, "make 1.00 waves: all run at once."),
        ("128x12672x512", 40.0, "make 2.00 waves: the last one is full."),
        ("64x19008x512", 40.0, "make 1.50 waves: the last one is 50% full."),
        (
            "64x12672x512",
            40.0,
            "An SM has room for 1 CTA at a time, limited by registers: 12 of 64 warps, 19% occupancy.",
        ),
    ],
)
def test_reasons(shape: str, us: float, sentence: str) -> None:
    problem = Problem.parse(shape)
    used = resources(problem, WINNER, H200)
    text = " ".join(reasons(used, floors(problem, WINNER, H200), us, H200))
    assert sentence in text


def test_the_documented_sentence_on_the_limit_is_that_of_the_shipped_record() -> None:
    h100 = KNOWN["nvidia-h100-80gb-hbm3"]
    record = Store().best(h100.key, PROBLEM)
    assert record is not None
    used, limits = resources(PROBLEM, record.config, h100), floors(PROBLEM, record.config, h100)
    (quoted,) = re.findall(r"^> (.*\.)$", (ROOT / "docs/report.md").read_text(), re.MULTILINE)
    assert reasons(used, limits, record.median_us, h100)[0].startswith(quoted)


def test_the_parameter_that_matters_is_the_most_important() -> None:
    pytest.importorskip("optuna")
    rng = random.Random(1)
    times: list[tuple[Config, float]] = []
    for width in (4, 8, 16, 32):
        for unroll in (1, 2, 4, 8):
            for edge in ("fit", "pad"):
                config = parse(f"tiled:{width},unroll={unroll},edge={edge}")
                times.append((config, 1000 / width + rng.random()))
    parameters = importances(times)
    assert parameters[0].name == "tile_width"
    assert parameters[0].pedanova > 0.6
    assert math.isclose(sum(each.pedanova for each in parameters), 1.0)
    assert [value for value, _ in parameters[0].best_us] == [32, 16, 8, 4]
    assert {each.name for each in parameters} == {"tile_width", "unroll", "edge"}
    assert importances(times[: FEWEST - 1]) == ()
    assert importances([times[0]] * FEWEST) == ()


def test_every_candidates_point_reads_back_as_its_config() -> None:
    listed = candidates(Forecast(PROBLEM, INFO), read_spaces())
    pairs = list(zip(listed.space.points, listed.configs, strict=True))
    for point, config in random.Random(2).sample(pairs, 500):
        assert config_of(dict(listed.space.values(point))) == config


@pytest.mark.parametrize(("renamed", "unknown"), [("", 0), ("mma_k", 177)])
def test_trials_of_a_recording_with_an_unknown_parameter_are_counted(
    tmp_path: Path, renamed: str, unknown: int
) -> None:
    recording = read_cache_file(RESULTS / "recordings/double-1024x768x512.json.gz")
    dimensions = tuple(replace(each, name="other") if each.name == renamed else each for each in recording.dimensions)
    file = tmp_path / "recording.json"
    write_cache_file(file, replace(recording, dimensions=dimensions))
    tuning = tuning_of(Store(tmp_path), None, None, file, None)
    assert sum(trial.config is None for trial in tuning.trials) == unknown < len(tuning.trials)
    line = f"{unknown} trials are of variants that this version does not have: listed, and not drawn."
    assert (line in tuning.sources) == (unknown > 0)
    assert tuning.info == H200
    assert all(trial.variant.startswith(trial.config.family) for trial in tuning.trials if trial.config)


def test_trials_of_unknown_variants_are_listed_and_counted(tmp_path: Path) -> None:
    names = {"family": ("dmma",), "fragments": ("ahead", "double"), "speed": ("absent", 2), "split_k": (1, 2)}
    points = tuple(itertools.product((0,), (0, 1), (0, 1), (0, 1)))
    entries = {point: Entry("ok", 10.0 + place, (), error=0.25) for place, point in enumerate(points)}
    dimensions = tuple(Dimension(*each) for each in names.items())
    file = tmp_path / "recording.json"
    write_cache_file(file, Recording(H200.name, "gemm double nn", (1024, 1024, 1024), dimensions, entries))
    tuning = tuning_of(Store(tmp_path, tmp_path / "none"), None, None, file, None)
    assert (tuning.record, tuning.winner[1:]) == (None, ("dmma:fragments=ahead,split_k=1", 10.0))
    assert [trial.entry.time_us for trial in tuning.trials] == [10.0 + place for place in range(8)]
    assert [trial.config for trial in tuning.trials] == [
        *[None] * 4,
        parse("dmma"),
        parse("dmma:split_k=2"),
        None,
        None,
    ]
    assert tuning.trials[2].variant == "dmma:fragments=ahead,speed=2,split_k=1"
    assert tuning.sources[-1].startswith("6 trials are of variants that this version does not have")


OK, LATE = Entry("ok", 10.0, error=0.25), Entry("timeout", None, reason="did not end in 2 s")


def journal(folder: Path, versions: tuple[tuple[str, str], ...], time_us: float, problem: Problem = PROBLEM) -> Path:
    file = Journal.of(folder, problem, DEVICE, versions)
    file.add(parse("tiled:8"), replace(OK, time_us=time_us), datetime.now())
    file.add(parse("tiled:16"), LATE, datetime.now())
    os.utime(file.path, (time_us, time_us))
    return file.path


def outcomes(recording: Recording) -> dict[Config, Entry]:
    return {config_of(recording.values(point)): entry for point, entry in recording.entries.items()}


def test_the_journal_of_the_records_versions_comes_first(tmp_path: Path) -> None:
    ours, theirs = (("compiler", "1"),), (("compiler", "2"),)
    same, newer = journal(tmp_path, ours, 10.0), journal(tmp_path, theirs, 20.0)
    journal(tmp_path, ours, 30.0, Problem(1, 2, 3))
    (tmp_path / "x.jsonl").write_text("no journal\n")
    assert journals_of(tmp_path, DEVICE, PROBLEM, ours) == [(same, True), (newer, False)]
    assert journals_of(tmp_path, DEVICE, PROBLEM, theirs) == [(newer, True), (same, False)]
    recording = read_journal(same)
    assert [*outcomes(recording).items()] == [(parse("tiled:8"), OK), (parse("tiled:16"), LATE)]
    assert (recording.kernel_name, recording.problem_size) == ("gemm float nn", (1024, 768, 512))
    ((name, date),) = recording.environment
    assert name == "date"
    assert abs(datetime.now() - datetime.fromisoformat(date)) < timedelta(minutes=10)


def test_a_journal_has_the_same_outcomes_for_a_report_as_for_a_search(tmp_path: Path) -> None:
    """The first trial of a config counts where two processes tried it, and damaged lines are dropped."""
    path = journal(tmp_path, (), 10.0)
    with path.open("a") as file:
        for config, time_us in (("tiled:8", 99.0), ("tiled:9", 1.0), ("tiled:4", 1e-300), ("dmma:speed=2", 1.0)):
            file.write(f'{{"config":"{config}","time_us":{time_us},"status":"ok"}}\n')
    reported = outcomes(read_journal(path))
    with pytest.warns(UserWarning, match="trials dropped: 3"):
        searched = Journal(path, f"1024x768x512-float-nn {DEVICE} {path.stem}")
    assert [*reported.items()] == [*searched.entries.items()]
    assert reported[parse("tiled:8")].time_us == 10.0


def test_an_empty_journal_is_read(tmp_path: Path) -> None:
    recording = read_journal(Journal.of(tmp_path, PROBLEM, DEVICE, ()).path)
    assert (dict(recording.entries), recording.problem) == ({}, PROBLEM)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no journal",
        "[]",
        '{"format":"tilewright trials 3","study":"8x8x8-float-nn host x"}',
        '{"format":"tilewright trials 2","study":"8x8x8-float-nn"}',
        '{"format":"tilewright trials 2"}',
        '{"format":"tilewright trials 1","study":"8x8x8-float-nn host x","dimensions":[["x",[1,2]]]}',
    ],
    ids=lambda text: text[:60],
)
def test_a_file_that_is_no_journal_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.jsonl").write_text(text + "\n")
    with pytest.raises(StoreError, match=r"^cannot read the journal .*x\.jsonl: .*"):
        read_journal(tmp_path / "x.jsonl")


def test_a_tuning_of_the_store_has_its_record_and_its_journal(tmp_path: Path) -> None:
    store = Store(tmp_path, tmp_path / "none")
    store.keep(make(9.0, config=parse("tiled:8")))
    (tmp_path / "trials").mkdir()
    journal(tmp_path / "trials", (), 10.0)
    tuning = tuning_of(store, PROBLEM, None, None, None)
    assert tuning.winner == (parse("tiled:8"), "tiled:8", 9.0)
    assert [(trial.variant, trial.entry.status) for trial in tuning.trials] == [
        ("tiled:8", "ok"),
        ("tiled:16", "timeout"),
    ]


def test_errors_of_trials_are_recorded(tmp_path: Path) -> None:
    dimensions = (Dimension("family", ("tiled",)),)
    recording = Recording("x", "gemm float nn", (1, 2, 3), dimensions, {(0,): Entry("ok", 1.0, (1.0,), error=0.125)})
    write_cache_file(tmp_path / "r.json", recording)
    assert read_cache_file(tmp_path / "r.json").entries == recording.entries


def test_a_recording_keeps_the_date_and_versions_of_its_run(tmp_path: Path) -> None:
    environment = (("date", "2026-11-21T23:10:07+00:00"), ("driver", "CUDA 13.0"), ("compiler", "nvrtc 13.0 -arch=x"))
    recording = replace(Recording.of(PROBLEM, "NVIDIA H200", {parse("tiled:8"): OK}), environment=environment)
    write_cache_file(tmp_path / "r.json", recording)
    assert read_cache_file(tmp_path / "r.json").environment == environment
    tuning = tuning_of(Store(tmp_path, tmp_path / "none"), None, None, tmp_path / "r.json", None)
    end = "r.json; 2026-11-21 23:10 UTC; driver CUDA 13.0; compiler nvrtc 13.0 -arch=x."
    assert tuning.sources == (f"Trials: a recording of NVIDIA H200, {end}",)


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_a_published_bench_is_read_as_it_was_written(name: str) -> None:
    path = RESULTS / f"{name}.json"
    assert bench_json(read_bench(path)).splitlines() == pytest.approx(path.read_text().splitlines())


def test_a_bench_that_ended_early_names_its_number_of_shapes(tmp_path: Path) -> None:
    whole = read_bench(RESULTS / "float32.json")
    early = replace(whole, rows=whole.rows[:2], wanted=len(whole.rows), stopped="interrupt")
    (tmp_path / "b.json").write_text(bench_json(early))
    assert bench_closing(read_bench(tmp_path / "b.json"))[-1] == f"2 of {len(whole.rows)} shapes; ended by interrupt"


def test_a_page_of_very_many_trials_stays_small(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from tilewright.tuner.report.page import tuning_page

    names = [Dimension(f"parameter_{number}", tuple(range(6000))) for number in range(20)]
    points = [tuple([number] * 20) for number in range(6000)]
    entries = {
        point: Entry("crashed", reason="x" * 500) if point[0] % 3 else Entry("ok", 10.0 + point[0], (1.0,), error=0.5)
        for point in points
    }
    write_cache_file(
        tmp_path / "r.json",
        Recording("NVIDIA H200", "gemm float nn", (64, 64, 64), tuple(names), entries),
    )
    tuning = tuning_of(Store(tmp_path, tmp_path / "none"), None, None, tmp_path / "r.json", None)
    page = tuning_page(tuning, "again")
    assert page.count("<tr>") > 1000
    assert len(page.encode()) < 2_000_000


def roofline_of(tuning: Tuning) -> str:
    """The roofline's markup for a wide screen; empty where there is none."""
    rates = rates_of(H200)
    assert rates is not None
    figure = roofline(tuning, H200, rates)
    return dict(figure.svgs)["wide"] if figure else ""


def test_a_roofline_of_one_variant_has_all_roofs_within() -> None:
    """The axes include the bend of each roof, and have numbers, also where only the shipped record is drawn."""
    pytest.importorskip("matplotlib")
    tuning = tuning_of(Store(), PROBLEM, DEVICE, None, None)
    assert tuning.trials == ()
    svg = roofline_of(tuning)
    assert f"<title>the winner: {tuning.winner[2]:.2f} us, {tuning.winner[1]}</title>" in svg
    ticks = {float(text.replace(",", "")) for text in re.findall(r">([\d.,]+)</text>", svg)}
    memory_bend, cache_bend = (66_900 / rate for rate in (4_430, l2_gbs(H200)))
    assert min(ticks) <= cache_bend < memory_bend <= max(tick for tick in ticks if tick < 1000)
    assert len([tick for tick in ticks if tick > 1000]) >= 4


def test_a_roofline_leaves_out_a_winner_that_this_version_does_not_have(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    dimensions = (Dimension("family", ("tiled", "unheard-of")), Dimension("tile_width", (8, 16)))
    entries = {(1, 0): Entry("ok", 5.0), (0, 0): Entry("ok", 9.0), (0, 1): Entry("ok", 7.0)}
    write_cache_file(tmp_path / "r.json", Recording("NVIDIA H200", "gemm float nn", (64, 64, 64), dimensions, entries))
    tuning = tuning_of(Store(tmp_path, tmp_path / "none"), None, None, tmp_path / "r.json", None)
    assert tuning.winner[0] is None
    titles = re.findall(r"<title>([^<]*)</title>", roofline_of(tuning))
    assert sorted(titles) == ["trial 2: 9.000 us, tiled:8", "trial 3: 7.000 us, tiled:16"]
    assert roofline_of(replace(tuning, trials=tuning.trials[:1])) == ""


def charted(points: list[Dot]) -> list[str]:
    """Tooltips of the dots of a chart on a wide screen."""

    def draw(axes: Any, palette: Palette, narrow: bool) -> Marks:
        axes.set(xlim=(0, 200), ylim=(0, 200))
        return dots(axes, points, 0, "a dot")

    wide, narrow = (svg for _, svg in chart("x", "A chart", draw).svgs)
    assert "<title>" not in narrow
    assert "<b>" not in wide
    assert wide.count("<use") >= wide.count("<title>")
    return [unescape(text) for text in re.findall(r"<use [^>]*><title>(.*?)</title></use>", wide, re.DOTALL)]


def test_each_dot_has_its_tooltip() -> None:
    pytest.importorskip("matplotlib")
    words = ["<b>&\"'", "1.23456 x #000001", 'url(#a) id="b" href="#c"', "xlink:href \n  DejaVu Sans", "5"]
    points = [(20.0 * place, 150.0 - place, text) for place, text in enumerate(words)]
    assert charted(points) == words
    assert charted([*points, (0.0, 150.0, "beneath")]) == [f"{words[0]}, and 1 more here", *words[1:]]


def test_very_many_dots_become_fewer() -> None:
    pytest.importorskip("matplotlib")
    texts = charted([(2.0 * x, 2.0 * y, "a dot") for x in range(100) for y in range(100)])
    assert 1000 < len(texts) <= 2000
    assert sum(int((re.findall(r"[\d,]+(?= more)", text) or ["0"])[0]) + 1 for text in texts) == 10_000


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        ("122,740,425,531.91", "byte/s", "122.7 GB/s"),
        ("3,351,000,000,000", "byte/second", "3.351 TB/s"),
        ("98,304", "byte/block", "98.30 KB per CTA"),
        ("512", "byte", "512.0 B"),
        ("0", "byte/block", "0 byte/block"),
        ("1,754,871,794.87", "hz", "1.755 GHz"),
        ("1,754,871,794.87", "cycle/second", "1.755 GHz"),
        ("21,504", "ns", "21.50 us"),
        ("0.0000215", "second", "21.50 us"),
        ("21.5", "us", "21.50 us"),
        ("18.70", "%", "18.70 %"),
        ("128", "register/thread", "128 register/thread"),
        ("PreferNone", "", "PreferNone "),
    ],
)
def test_counters_have_units_that_a_person_reads(value: str, unit: str, text: str) -> None:
    assert " ".join(readable(value, unit)) == text


BENCH = read_bench(RESULTS / "float32.json")
ONE = BENCH.rows[0]
MIXED = (ONE, replace(ONE, problem=Problem.parse("8", "double", "tn")), replace(ONE, problem=Problem.parse("9")))
BATCHES = tuple(replace(ONE, problem=Problem.parse(shape, batch=7)) for shape in ("4", "9"))


@pytest.mark.parametrize(
    ("result", "commands"),
    [
        (BENCH, ["--suite public --dtype float"]),
        (replace(BENCH, turn_seconds=0.5), ["--suite public --dtype float --turns 0.5"]),
        (
            replace(BENCH, rows=MIXED),
            ["--shape 1024x768x512 --shape 9x9x9 --dtype float", "--shape 8x8x8 --dtype double --trans tn"],
        ),
        (
            replace(BENCH, rows=BATCHES),
            ["--shape 4x4x4 --shape 9x9x9 --dtype float --batch 7"],
        ),
        (
            replace(
                BENCH, rows=tuple(replace(ONE, config=text, origin="as given") for text in ("tiled:8", "tiled:16"))
            ),
            ["--shape 1024x768x512 --dtype float --config tiled:8 --config tiled:16"],
        ),
    ],
    ids=["suite", "turns", "kinds", "batches", "configs"],
)
def test_commands_measure_a_bench_again(result: BenchResult, commands: list[str]) -> None:
    assert [*commands_of(result, Path("a b.json"))] == [
        f"tilewright bench {options} --json 'a b.json'" for options in commands
    ]
