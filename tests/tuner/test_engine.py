"""The parts of a run: candidates, guesses, machine code told apart, recording, replay."""

import math
import time
from dataclasses import replace
from pathlib import Path

import faults
import pytest
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.errors import ConfigError, ShapeError, TuningError
from tilewright.codegen.legality import serves
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import KernelSource
from tilewright.runtime.check.verify import Verdict, Verifier
from tilewright.runtime.device.cache import compile_cached
from tilewright.runtime.device.detect import choose, compiler_for
from tilewright.runtime.device.elf import code_digest
from tilewright.runtime.device.protocol import Binary, Device, DeviceInfo, Launch
from tilewright.runtime.store.record import Record, Status
from tilewright.runtime.store.store import Store
from tilewright.tuner.measure.evaluate import Bench, Duel, Side, Tried
from tilewright.tuner.recording.files import read_cache_file, t4_path
from tilewright.tuner.recording.replay import replay
from tilewright.tuner.result import EFFORTS, Progress
from tilewright.tuner.search.candidates import candidates, read_spaces
from tilewright.tuner.search.ranked import ranked, recorded
from tilewright.tuner.tune import tune
from variants import variant

PROBLEM = Problem(24, 20, 16)
ARCH = ARCHES["sm_90a"]
INFO = DeviceInfo("NVIDIA X", "cuda:0", ARCH, 132, 1980.0, 1 << 37, 60 << 20, 4800.0, "CUDA 13.0")


class Counting(Progress):
    def __init__(self) -> None:
        self.records: list[Record] = []

    def tried(self, tried: Tried, best: Record | None) -> None:
        self.records.append(tried.record)


# Candidates


@pytest.mark.parametrize("shape", ["1024x768x512", "1000", "100", "1x4096x4096", "1023x769x511"])
def test_candidates_are_what_the_constraints_allow_and_every_rejection_has_a_reason(shape: str) -> None:
    problem = Problem.parse(shape)
    spaces = tuple(choices for choices in read_spaces() if choices.family in ("naive", "tiled"))
    found = candidates(problem, INFO, spaces)
    everything = sum(math.prod(len(values) for _, values in choices.parameters) for choices in spaces)
    assert len(found.configs) + sum(count for _, count in found.pruned) == everything
    assert len(set(found.configs)) == len(found.configs)
    assert all(serves(config, problem, ARCH) for config in found.configs)
    assert all(reason and count > 0 for reason, count in found.pruned)
    for config in found.configs[::37]:
        point = found.point_of(config)
        assert point is not None
        assert found.config_at(point) == config


# First guesses


def test_guesses_begin_with_each_family_and_prefer_large_tiles_on_a_gpu() -> None:
    problem = Problem(2048, 2048, 2048)
    spaces = tuple(choices for choices in read_spaces() if choices.family in ("naive", "tiled"))
    order = ranked(problem, INFO, candidates(problem, INFO, spaces).configs)
    assert [config.family for config in order[:2]] == ["naive", "tiled"]
    assert order[2].cta_tile == (32, 32, 32)
    assert len(set(order)) == len(order)


def test_recorded_winners_of_near_shapes_come_first() -> None:
    info = choose("host").info
    tune(PROBLEM, device="host", trials=3, seconds=30)
    near = recorded(Problem(26, 20, 16), info, Store().records())
    best = Store().best(info.key, PROBLEM)
    assert best is not None
    assert near[0] == best.config
    assert best.config not in recorded(Problem(26, 20, 16, DType.DOUBLE), info, Store().records())


# Machine code


def test_the_same_code_under_two_names_is_one() -> None:
    """The unroll factor 16 and 32 of a loop of 16 give the same instructions; another width does not."""
    compiler = compiler_for(choose("host").info)

    def digest(text: str) -> str:
        source = render(PROBLEM, variant(text), ARCHES["host"])
        return code_digest(compile_cached(compiler, source).image, source)

    assert digest("naive:unroll=1") == digest("naive:unroll=1")
    assert digest("tiled:8") != digest("tiled:16")
    assert digest("tiled:16") != digest("tiled:16,edge=pad")


def test_identical_binaries_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two unroll factors are given the same text but for the name; the second takes the first one's times."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    spaces = tmp_path / "spaces"
    spaces.mkdir()
    (spaces / "tiled.toml").write_text(
        "family = 'tiled'\n[parameters]\ntile_width = [8]\nedge = ['bounds']\nskew = [0]\nunroll = [2, 4]\n"
    )
    info = choose("host").info
    sources = [render(PROBLEM, variant(f"tiled:8,unroll={unroll}"), info.arch) for unroll in (2, 4)]
    body = "namespace {" + sources[0].code.partition("namespace {")[2]

    class Same(faults.Altering):
        def build(self, source: KernelSource, folder: str) -> Binary:
            return self._real.build(replace(source, code=body.replace(sources[0].name, source.name)), folder)

    for source in sources:
        compile_cached(Same(compiler_for(info), str), source)
    counting = Counting()
    tune(PROBLEM, device="host", sampler="exhaustive", spaces=spaces, progress=counting)
    first, second = counting.records
    assert first.config != second.config
    assert first.measurement == second.measurement


# Runs


def test_a_run_resumes_where_it_stopped_and_repeats_nothing() -> None:
    first, second = Counting(), Counting()
    tune(PROBLEM, device="host", trials=4, seconds=40, progress=first)
    result = tune(PROBLEM, device="host", trials=7, seconds=40, progress=second)
    assert (len(first.records), len(second.records)) == (4, 3)
    assert (result.trials, result.resumed) == (7, 4)
    assert result.guessed_us == min(record.median_us for record in (*first.records, *second.records))
    tried = [record.config for record in (*first.records, *second.records)]
    assert len(set(tried)) == 7


def slowed(side: Side) -> Side:
    """By far: on a busy processor the fastest of tiny products is anybody's guess."""
    times = side.measurement
    samples = tuple(100 * each for each in times.samples_us)
    return replace(side, measurement=replace(times, samples_us=samples, median_us=100 * times.median_us))


@pytest.mark.parametrize(
    ("text", "listed"),
    [("naive:1x8,unroll=1", True), ("simt:96x16x8", False)],
)
def test_what_the_store_holds_meets_its_successor(text: str, listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow it was in the search, as `naive` with CTAs of eight threads, and even where no space lists it, as
    on the processor what is no power of two."""
    first = tune(PROBLEM, device="host", trials=4, seconds=40, isolation=False)
    slow = variant(text)
    assert (slow in candidates(PROBLEM, choose("host").info, read_spaces()).configs) == listed
    Store().keep(replace(first.best, config=slow), replace=True)
    met: list[Config] = []
    original = Bench.duel

    def noted(self: Bench, configs: tuple[Config, ...], rounds: int, seconds: float = 0.0) -> Duel:
        met.extend(configs)
        sides = original(self, configs, rounds, seconds)
        return tuple(slowed(side) if side.config == slow else side for side in sides)

    monkeypatch.setattr(Bench, "duel", noted)
    result = tune(PROBLEM, device="host", trials=12, seconds=40, isolation=False, keep=1)
    assert slow in met
    assert slow != result.best.config
    assert len(met) <= 3  # the fastest of the search, what the store held, the default


def test_a_named_variant_that_is_tied_with_what_is_stored_leaves_it_there(monkeypatch: pytest.MonkeyPatch) -> None:
    stored, named = variant("tiled:16"), variant("naive:8x32")
    assert named.canonical < stored.canonical
    first = tune(PROBLEM, device="host", trials=2, seconds=40, isolation=False)
    Store().keep(replace(first.best, config=stored), replace=True)
    original = Bench.duel

    def tied(self: Bench, configs: tuple[Config, ...], rounds: int, seconds: float = 0.0) -> Duel:
        sides = original(self, configs, rounds, seconds)
        return tuple(replace(side, measurement=sides[0].measurement) for side in sides)

    monkeypatch.setattr(Bench, "duel", tied)
    result = tune(PROBLEM, device="host", seconds=40, isolation=False, configs=[named])
    assert (result.best.config, result.kept) == (stored, False)


@pytest.mark.parametrize("wrong", [1, 9])
def test_who_is_wrong_on_the_data_of_the_duel_is_left_out_of_it(
    wrong: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many of the contenders, the fastest first: the others decide, else all that was measured would be lost."""
    met: list[Config] = []

    class Fresh(Verifier):
        def __init__(self, device: Device, problem: Problem, seed: int = 1) -> None:
            super().__init__(device, problem, seed)
            self.left = wrong if seed != 1 else 0

        def check(self, launch: Launch) -> Verdict:
            self.left -= 1
            return replace(super().check(launch), reason="a race" if self.left >= 0 else "")

    class Met(Counting):
        def duelling(self, configs: tuple[Config, ...]) -> None:
            met.extend(configs)

    monkeypatch.setattr("tilewright.tuner.measure.evaluate.Verifier", Fresh)
    spaces = faults.small_space(tmp_path / "spaces", 4, 8, 16)
    given = {"device": "host", "seconds": 40.0, "isolation": False, "spaces": spaces, "progress": Met()}
    if wrong > 4:  # three, the default and the vendor's library
        with pytest.raises(ConfigError, match="is wrong on fresh data: a race"):
            tune(PROBLEM, **given)  # type: ignore[arg-type]
        return
    with pytest.warns(UserWarning, match="left out of the final comparison, as wrong on fresh data: ") as told:
        result = tune(PROBLEM, **given)  # type: ignore[arg-type]
    assert str(met[0]) in str(told[0].message)
    assert {contender.config for contender in result.contenders} == {*met[1:], variant("naive:8x32"), None}
    assert result.best.config in met[1:]


def test_what_the_store_holds_stays_out_of_a_search_of_spaces_that_the_user_names(tmp_path: Path) -> None:
    first = tune(PROBLEM, device="host", trials=2, seconds=40, isolation=False)
    config, watching = variant("simt:96x16x8"), Counting()
    assert serves(config, PROBLEM, choose("host").info.arch)
    Store().keep(replace(first.best, config=config), replace=True)
    spaces = faults.small_space(tmp_path / "spaces", 4, 8)
    tune(PROBLEM, device="host", trials=5, seconds=40, isolation=False, progress=watching, spaces=spaces)
    assert config not in {record.config for record in watching.records}


def test_budgets_are_hard() -> None:
    begin = time.monotonic()
    result = tune(PROBLEM, device="host", trials=10_000, seconds=4.0)
    assert time.monotonic() - begin < 6.0
    assert result.stopped == "seconds"
    assert EFFORTS["quick"].seconds < EFFORTS["normal"].seconds < EFFORTS["full"].seconds


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ShapeError, match="0"):
        tune(Problem(0, 4, 4), device="host")
    for wrong, named in (
        ({"effort": "huge"}, "huge"),
        ({"trials": 0}, "trials"),
        ({"seconds": -1.0}, "seconds"),
        ({"sampler": "guess"}, "guess"),
    ):
        with pytest.raises(ConfigError, match=named):
            tune(PROBLEM, device="host", **wrong)  # type: ignore[arg-type]


def test_recording_holds_failures_and_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    faulty = faults.plant("host", PROBLEM, "tiled:8,unroll=4", "alpha *= T(2);")
    spaces = faults.small_space(tmp_path / "spaces", 4, 8, 16, 32)
    file = tmp_path / "run.json.gz"
    result = tune(PROBLEM, device="host", sampler="exhaustive", spaces=spaces, record=file)
    recording = read_cache_file(file)
    assert t4_path(file).exists()
    assert recording.problem_size == (24, 20, 16)
    statuses = {
        dict(recording.space().values(point))["tile_width"]: entry.status for point, entry in recording.entries.items()
    }
    assert statuses == {4: "ok", 8: "wrong_result", 16: "ok", 32: "ok"}
    assert statuses[faulty.get("tile_width")] == Status.WRONG_RESULT.value
    for sampler in ("random", "exhaustive", "tpe"):
        found = replay(recording, sampler=sampler)
        assert found.share == 1.0
        assert found.stopped == "space"
        assert len(found.trials) == 4
        assert found.charged_s > 0
    assert result.best.config.get("tile_width") in (4, 16, 32)
    with pytest.raises(TuningError, match="nothing worked"):
        replay(recording, sampler="exhaustive", trials=4, seconds=-1.0)
