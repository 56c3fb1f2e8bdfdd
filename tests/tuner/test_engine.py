"""The parts of a run: candidates, first guesses, equal machine code, duels, recordings and replays."""

import math
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import faults
import pytest
from quick import TYPICAL
from stored import INFO, make
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
from tilewright.runtime.store.record import Measurement, Record, Status
from tilewright.runtime.store.store import Store
from tilewright.tuner.choose.forecast import Forecast
from tilewright.tuner.choose.host import host_us
from tilewright.tuner.choose.shortlist import ENTRIES, shortlist
from tilewright.tuner.measure import ratios
from tilewright.tuner.measure.evaluate import Bench, Duel, InProcess, Side, Tried
from tilewright.tuner.plan import GUESSES, Plan, planned
from tilewright.tuner.recording.files import read_cache_file, t4_path
from tilewright.tuner.recording.points import config_of
from tilewright.tuner.recording.replay import replay
from tilewright.tuner.result import Progress
from tilewright.tuner.run import Run
from tilewright.tuner.search.ahead import InOrder
from tilewright.tuner.search.candidates import candidates, read_spaces
from tilewright.tuner.search.neighbours import neighbours
from tilewright.tuner.settings import EFFORTS
from tilewright.tuner.tune import tune
from variants import variant

PROBLEM = Problem(24, 20, 16)


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
    listed = candidates(Forecast(problem, INFO), spaces)
    combinations = sum(math.prod(len(values) for values in choices.on(INFO).values()) for choices in spaces)
    assert len(listed.configs) + sum(count for _, count in listed.pruned) == combinations
    assert len(set(listed.configs)) == len(listed.configs)
    assert all(serves(config, problem, INFO) for config in listed.configs)
    assert all(reason and count > 0 for reason, count in listed.pruned)
    for config, point in [*zip(listed.configs, listed.space.points, strict=True)][::37]:
        assert config_of(dict(listed.space.values(point))) == config


# First guesses


def plan_of(info: DeviceInfo, problem: Problem, store: Store, sampler: str = "random") -> Plan:
    """The plan of a search where no space is named."""
    return planned(problem, info, store, (), (), None, sampler, 0, 5)


def order_of(info: DeviceInfo, problem: Problem, store: Store, sampler: str = "random") -> list[Config]:
    """The first configs that a sampler without outcomes chooses, in order."""
    search = plan_of(info, problem, store, sampler).search
    configs = [search.ask() for _ in range(GUESSES)]
    search.close()
    return [config for config in configs if config is not None]


@pytest.mark.parametrize("sampler", ["random", "local"])
def test_a_search_begins_with_the_shortlist_in_turn_with_its_kinds(sampler: str, tmp_path: Path) -> None:
    problem, store = Problem(2048, 2048, 2048), Store(tmp_path)
    ranked = [choice.config for choice in shortlist(problem, INFO, tuple(store.records()), ENTRIES)]
    begin = order_of(INFO, problem, store, sampler)
    assert len(set(begin)) == len(begin) == GUESSES
    assert begin[0] == ranked[0]
    assert {config.family for config in begin[:8]} == {config.family for config in ranked}
    kinds = [{(c.cta_tile[:2], c.split_ctas, c.stream_ctas_per_sm > 0) for c in each[:24]} for each in (begin, ranked)]
    assert len(kinds[0]) > len(kinds[1])


def test_a_search_of_listed_variants_may_go_on_to_neighbours(tmp_path: Path) -> None:
    problem, store = Problem(2048, 2048, 2048), Store(tmp_path)
    listed = plan_of(INFO, problem, store).listed
    assert listed is not None
    ranked = [choice.config for choice in shortlist(problem, INFO, tuple(store.records()), ENTRIES)]
    assert set(ranked) <= listed
    values = {choices.family: choices.on(INFO) for choices in read_spaces()}
    first = next(config for config in ranked if config.family == "simt")
    adjacent = neighbours(first, Forecast(problem, INFO), values["simt"])
    assert adjacent
    assert set(adjacent) <= listed
    assert not set(adjacent) <= set(ranked)


def test_a_search_for_the_processor_begins_with_the_fastest_of_its_model(tmp_path: Path) -> None:
    info = choose("host")
    listed = plan_of(info, PROBLEM, Store(tmp_path)).listed
    assert listed is not None
    begin = order_of(info, PROBLEM, Store(tmp_path))
    times = {config: host_us(PROBLEM, config) for config in listed}
    assert min(times, key=lambda config: (times[config], config.canonical)) in begin[:12]
    assert {config.family for config in begin[:8]} >= {"naive", "tiled", "simt", "skinny"}


def test_a_sampler_that_grows_its_search_has_no_list_and_takes_no_spaces(tmp_path: Path) -> None:
    plan = plan_of(INFO, PROBLEM, Store(tmp_path), "local")
    assert (plan.sampler, plan.listed, plan.pruned) == ("local", None, ())
    assert plan.chooses(variant("naive:1x8,unroll=1"))
    spaces = faults.small_space(tmp_path / "spaces", 8, 16)
    text = f"sampler local searches all values of the families' parameters, and spaces is {str(spaces)!r}: leave spaces"
    with pytest.raises(ConfigError, match=re.escape(text)):
        planned(PROBLEM, INFO, Store(tmp_path), (), (), spaces, "local", 0, 5)
    for sampler, folder, expected in ((None, None, "local"), (None, spaces, "gp"), ("random", spaces, "random")):
        plan = planned(PROBLEM, INFO, Store(tmp_path), (), (), folder, sampler, 0, 5)
        plan.search.close()
        assert plan.sampler == expected
        assert (plan.listed is None) == (expected == "local")


def test_variants_that_a_user_names_are_tried_in_their_order_and_then_those_that_the_library_would_run(
    tmp_path: Path,
) -> None:
    store, named = Store(tmp_path), tuple(map(variant, ("tiled:16", "tiled:8")))
    own = variant("simt:64x48x8,thread=4x4")
    store.keep(make(1.0, PROBLEM, own))
    plan = planned(PROBLEM, INFO, store, (), named, None, None, 0, 5)
    configs = [*iter(plan.search.ask, None)]
    assert configs == [*named, *plan.first]
    assert own in plan.first
    assert (plan.sampler, plan.listed, plan.own, dict(plan.earlier)) == ("", frozenset(named), own, {})
    assert (plan.chooses(named[0]), plan.chooses(own)) == (True, False)
    assert not list(tmp_path.rglob("*.jsonl"))


def test_the_record_of_a_near_shape_is_tried_first(tmp_path: Path) -> None:
    store, problem, tuned = Store(tmp_path), Problem(1026, 768, 512), variant("simt:64x48x8,thread=4x4")
    before = order_of(INFO, problem, store)
    assert tuned not in before
    store.keep(make(1.0, Problem(1024, 768, 512), tuned), replace=True)
    assert order_of(INFO, problem, store)[0] == tuned
    assert tuned not in order_of(INFO, replace(problem, dtype=DType.DOUBLE), store)


# Machine code


def test_the_same_code_under_two_names_is_one() -> None:
    """The unroll factor 16 and 32 of a loop of 16 give the same instructions; another width does not."""
    compiler = compiler_for(choose("host"))

    def digest(text: str) -> str:
        source = render(PROBLEM, variant(text), TYPICAL["host"])
        return code_digest(compile_cached(compiler, source).image, source)

    assert digest("naive:unroll=1") == digest("naive:unroll=1")
    assert digest("tiled:8") != digest("tiled:16")
    assert digest("tiled:16") != digest("tiled:16,edge=pad")


def test_identical_binaries_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two unroll factors get the same text except for the name. The second takes the times of the first."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    spaces = tmp_path / "spaces"
    spaces.mkdir()
    (spaces / "tiled.toml").write_text(
        "family = 'tiled'\n[parameters]\ntile_width = [8]\nedge = ['fit']\nskew = [0]\nunroll = [2, 4]\n"
    )
    info = choose("host")
    sources = [render(PROBLEM, variant(f"tiled:8,unroll={unroll}"), info) for unroll in (2, 4)]
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
    """A side that is 100 times as slow. On a busy processor any variant of a tiny product may be the fastest."""
    times = side.measurement
    samples = tuple(100 * each for each in times.samples_us)
    return replace(side, measurement=replace(times, samples_us=samples, median_us=100 * times.median_us))


@pytest.mark.parametrize(
    ("text", "listed"),
    [("naive:1x8,unroll=1", True), ("simt:96x16x8", False)],
)
def test_a_stored_config_meets_its_successor(text: str, listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stored config is in the duel though it is slow, such as `naive` with CTAs of eight threads, and though no space
    lists it, such as `simt` with a block of 96 rows on the processor."""
    first = tune(PROBLEM, device="host", trials=4, seconds=40, isolation=False)
    slow = variant(text)
    forecast = Forecast(PROBLEM, choose("host"))
    assert (slow in candidates(forecast, read_spaces()).configs) == listed
    Store().keep(replace(first.best, config=slow), replace=True)
    duelled: list[Config] = []
    original = Bench.duel

    def noted(self: Bench, configs: tuple[Config, ...], rounds: int, seconds: float = 0.0, brief: bool = False) -> Duel:
        duelled.extend(configs)
        sides = original(self, configs, rounds, seconds, brief)
        return tuple(slowed(side) if side.config == slow else side for side in sides)

    monkeypatch.setattr(Bench, "duel", noted)
    result = tune(PROBLEM, device="host", trials=12, seconds=40, isolation=False, keep=1)
    assert slow in duelled
    assert slow != result.best.config
    assert len(duelled) <= 3  # the fastest of the search, the stored config and the default


def test_a_named_variant_that_is_tied_with_what_is_stored_leaves_it_there(monkeypatch: pytest.MonkeyPatch) -> None:
    stored, named = variant("tiled:16"), variant("naive:8x32")
    assert named.canonical < stored.canonical
    first = tune(PROBLEM, device="host", trials=2, seconds=40, isolation=False)
    Store().keep(replace(first.best, config=stored), replace=True)
    original = Bench.duel

    def tied(self: Bench, configs: tuple[Config, ...], rounds: int, seconds: float = 0.0, brief: bool = False) -> Duel:
        sides = original(self, configs, rounds, seconds, brief)
        times = sides[0].measurement
        samples_us = times.samples_us
        return tuple(replace(side, measurement=times, again_us=side.again_us and samples_us) for side in sides)

    monkeypatch.setattr(Bench, "duel", tied)
    result = tune(PROBLEM, device="host", seconds=40, isolation=False, configs=[named])
    assert (result.best.config, result.kept) == (stored, False)


@pytest.mark.parametrize("wrong", [1, 9])
def test_a_contender_that_is_wrong_on_the_data_of_the_duel_is_left_out(
    wrong: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The `wrong` fastest contenders fail. The others decide, so that no measurement is lost."""
    duelled: list[Config] = []

    class Fresh(Verifier):
        def __init__(self, device: Device, problem: Problem, seed: int = 1) -> None:
            super().__init__(device, problem, seed)
            self.remaining = wrong if seed != 1 else 0

        def check(self, launch: Launch) -> Verdict:
            self.remaining -= 1
            return replace(super().check(launch), reason="a race" if self.remaining >= 0 else "")

    class Duelling(Counting):
        def duelling(self, configs: tuple[Config, ...]) -> None:
            duelled.extend(configs)

    monkeypatch.setattr("tilewright.tuner.measure.evaluate.Verifier", Fresh)
    spaces = faults.small_space(tmp_path / "spaces", 4, 8, 16)
    options = {"device": "host", "seconds": 40.0, "isolation": False, "spaces": spaces, "progress": Duelling()}
    if wrong > 4:  # all contenders: three variants, the default and the vendor's library
        with pytest.raises(ConfigError, match="is wrong on fresh data: a race"):
            tune(PROBLEM, **options)  # type: ignore[arg-type]
        return
    with pytest.warns(UserWarning, match="left out of the final comparison, as wrong on fresh data: ") as caught:
        result = tune(PROBLEM, **options)  # type: ignore[arg-type]
    assert str(duelled[0]) in str(caught[0].message)
    assert {contender.config for contender in result.contenders} == {*duelled[1:], variant("naive:8x32"), None}
    assert result.best.config in duelled[1:]


OWN, SHIPPED = variant("simt:96x16x8"), variant("naive:4x32")


def keep_own(config: Config = OWN, us: float = 50.0) -> Record:
    """Keep a record of the user's own in the store."""
    record = make(us, PROBLEM, config, choose("host").key)
    assert Store().keep(record)
    return record


def timed_in_duels(monkeypatch: pytest.MonkeyPatch, **us: float) -> list[set[Config | None]]:
    """Let duels take these microseconds for the families, and a second for others; returns the configs of each duel."""
    duels: list[set[Config | None]] = []
    original = Bench.duel

    def timed(self: Bench, configs: tuple[Config, ...], rounds: int, seconds: float = 0.0, brief: bool = False) -> Duel:
        sides = original(self, configs, 1, seconds, brief)
        duels.append({side.config for side in sides})
        times = [us.get(side.config.family, 1e6) if side.config else 1e3 for side in sides]
        return tuple(replace(side, measurement=Measurement((t,), t, 0.0)) for side, t in zip(sides, times))

    monkeypatch.setattr(Bench, "duel", timed)
    return duels


class TestStoredConfig:
    """A stored config is in every duel, and gives way only to one that is faster there."""

    OPTIONS = MappingProxyType({"device": "host", "seconds": 40.0, "isolation": False})

    @pytest.fixture(params=["spaces", "configs"])
    def searched(self, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
        """Options of a search of tiled variants alone, by a space or by their names."""
        tiled = [variant(f"tiled:{width},unroll=4") for width in (4, 8)]
        spaces = faults.small_space(tmp_path / "spaces", 4, 8)
        return {**self.OPTIONS, **({"spaces": spaces} if request.param == "spaces" else {"configs": tiled})}

    @pytest.mark.parametrize("replaced", [False, True])
    def test_a_faster_one_stays_whatever_is_searched(
        self, searched: dict[str, Any], replaced: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keep_own()
        duels = timed_in_duels(monkeypatch, simt=100.0, tiled=800.0)
        result = tune(PROBLEM, **searched, keep=1, replace=replaced)
        assert OWN in duels[0]
        assert result.best.config.family == ("tiled" if replaced else "simt")
        assert OWN in {contender.config for contender in result.contenders if contender.stored}
        (own,) = Store().both()[0]
        assert own.config == result.best.config
        assert result.kept == (replaced or "spaces" in searched)

    def test_a_slower_one_gives_way(self, searched: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        """The time in its record does not count."""
        keep_own(us=0.001)
        timed_in_duels(monkeypatch, simt=100.0, tiled=90.0)
        result = tune(PROBLEM, **searched)
        assert (result.best.config.family, result.kept) == ("tiled", True)
        assert [each.config for each in Store().both()[0]] == [result.best.config]

    def test_it_is_no_trial_of_a_search_that_leaves_it_out(self, tmp_path: Path) -> None:
        keep_own()
        watching, file = Counting(), tmp_path / "run.json"
        spaces = faults.small_space(tmp_path / "spaces", 4, 8)
        result = tune(PROBLEM, **self.OPTIONS, spaces=spaces, progress=watching, record=file)
        tried = {record.config for record in watching.records}
        assert tried == {variant(f"tiled:{width},unroll=4") for width in (4, 8)}
        assert result.trials == len(read_cache_file(file).entries) == 2

    def test_the_shipped_config_is_in_the_duel_beside_the_users_own(
        self, searched: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own = keep_own()
        shipped = make(40.0, PROBLEM, SHIPPED, own.device)
        monkeypatch.setattr(Store, "both", lambda self: ((own,), (shipped,)))
        duels = timed_in_duels(monkeypatch, simt=100.0, tiled=800.0, naive=50.0)
        result = tune(PROBLEM, **searched, keep=1)
        assert {OWN, SHIPPED} <= duels[0]
        assert result.best.config == SHIPPED

    @pytest.mark.parametrize("interrupted", [False, True])
    def test_it_meets_the_best_of_earlier_runs_though_nothing_more_is_tried(
        self, interrupted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The trials are used up, or Ctrl-C comes before the first one ends."""
        spaces = faults.small_space(tmp_path / "spaces", 4, 8)
        tune(PROBLEM, **self.OPTIONS, spaces=spaces, trials=1)
        Store().keep(make(1e9, PROBLEM, OWN, choose("host").key), replace=True)
        duels = timed_in_duels(monkeypatch, simt=100.0, tiled=800.0)
        results, calls = InProcess.results, list[float]()

        def later(self: InProcess, timeout_s: float, stop_above_us: float) -> list[Tried]:
            calls.append(timeout_s)
            if interrupted and len(calls) == 1:
                signal.raise_signal(signal.SIGINT)
                return []
            return results(self, timeout_s, stop_above_us)

        monkeypatch.setattr(InProcess, "results", later)
        result = tune(PROBLEM, **self.OPTIONS, spaces=spaces, trials=5 if interrupted else 1)
        assert (result.best.config, result.trials) == (OWN, 1)
        assert OWN in duels[0]
        assert result.stopped == ("interrupt" if interrupted else "trials")

    def test_little_time_for_the_duel_leaves_it_in(self) -> None:
        configs = [variant(f"tiled:{width}") for width in (4, 8, 16)]
        plan = Plan(InOrder(configs), "", {}, 3, (OWN,), (OWN,), listed=frozenset(configs))
        run = Run(plan, EFFORTS["quick"], Progress(), times={OWN: 9e6, **dict.fromkeys(configs, 1e6)})
        assert set(run._finalists(1e9)[0]) == {*configs, OWN}
        chosen, rounds = run._finalists(0.0)
        assert (len(chosen), OWN in chosen, rounds) == (2, True, 1)

    def test_one_that_does_not_work_gives_way(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
        keep_own(faults.plant("host", PROBLEM, "tiled:16", "return;"), us=0.001)
        result = tune(PROBLEM, **self.OPTIONS, spaces=faults.small_space(tmp_path / "spaces", 8))
        assert result.kept
        assert [each.config for each in Store().both()[0]] == [result.best.config]

    @pytest.mark.parametrize(("us", "replaced"), [(700.0, False), (700.0, True), (900.0, False)])
    def test_one_that_was_kept_meanwhile_stays_unless_it_is_slower(
        self, us: float, replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A record that another process kept was in no duel, so that the times decide."""
        timed_in_duels(monkeypatch, tiled=800.0)
        duel, outdone = Bench.duel, us < 800 and not replaced

        def kept_meanwhile(*arguments: Any, **options: Any) -> Duel:
            keep_own(us=us)
            return duel(*arguments, **options)

        monkeypatch.setattr(Bench, "duel", kept_meanwhile)
        spaces = faults.small_space(tmp_path / "spaces", 4, 8)
        result = tune(PROBLEM, **self.OPTIONS, spaces=spaces, replace=replaced)
        assert (result.outdone, result.kept) == (outdone, not outdone)
        assert [each.config.family for each in Store().both()[0]] == ["simt" if outdone else "tiled"]


def test_a_duel_that_was_too_noisy_keeps_the_record_without_a_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ratios, "NOISY", -1.0)
    result = tune(PROBLEM, device="host", trials=1, seconds=40, isolation=False)
    (record,) = Store().both()[0]
    assert record == result.best
    assert record.median_us > 0
    assert (record.ratio_vendor, record.ratio_interval) == (None, None)
    assert result.aa_spread is not None
    assert result.aa_spread >= 0


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
    faulty = faults.plant("host", PROBLEM, "tiled:8,unroll=4", "alpha *= Elem(2);")
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
        replayed = replay(recording, sampler=sampler)
        assert replayed.share == 1.0
        assert replayed.stopped == "space"
        assert len(replayed.trials) == 4
        assert replayed.charged_s > 0
    assert result.best.config.get("tile_width") in (4, 16, 32)
    with pytest.raises(TuningError, match="nothing worked"):
        replay(recording, sampler="exhaustive", trials=4, seconds=-1.0)
