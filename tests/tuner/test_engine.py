"""The parts of a run: candidates, guesses, machine code told apart, the thread that asks ahead, recording, replay."""

import math
import threading
import time
from dataclasses import replace
from pathlib import Path

import faults
import pytest
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.errors import ConfigError, ShapeError, TuningError
from tilewright.codegen.families import complete, rejections
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import KernelSource
from tilewright.runtime.device.cache import compile_cached
from tilewright.runtime.device.detect import choose, compiler_for
from tilewright.runtime.device.elf import code_digest
from tilewright.runtime.device.protocol import Binary, DeviceInfo
from tilewright.runtime.store.record import Record, Status
from tilewright.runtime.store.store import Store
from tilewright.tuner.measure.evaluate import Bench, Duel, Tried
from tilewright.tuner.recording.files import read_cache_file
from tilewright.tuner.recording.replay import replay, t4_path
from tilewright.tuner.result import EFFORTS, Silent
from tilewright.tuner.search.ahead import AskAhead
from tilewright.tuner.search.candidates import candidates, read_spaces, with_atomics
from tilewright.tuner.search.ranked import ranked, recorded
from tilewright.tuner.search.sampler import ExhaustiveSampler, RandomSampler
from tilewright.tuner.search.space import Dimension, Point, Space
from tilewright.tuner.tune import tune
from variants import settled

PROBLEM = Problem(24, 20, 16)
ARCH = ARCHES["sm_90a"]
INFO = DeviceInfo("NVIDIA X", "cuda:0", ARCH, 132, 1980.0, 1 << 37, 60 << 20, 4800.0, "CUDA 13.0")


class Counting(Silent):
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
    assert all(not list(rejections(problem, config, ARCH)) for config in found.configs)
    assert all(reason and count > 0 for reason, count in found.pruned)
    for config in found.configs[::37]:
        point = found.point_of(config)
        assert point is not None
        assert found.config_at(point) == config


def test_tiles_that_leave_multiprocessors_idle_are_not_tried() -> None:
    spaces = settled("simt")
    found = candidates(Problem(1024, 768, 512), INFO, spaces)
    tilings = {tuple(config.number(name) for name in ("block_m", "block_n", "split_k")) for config in found.configs}
    assert (96, 64, 1) in tilings  # 11 x 12 tiles, one for each of 132
    assert (256, 256, 1) not in tilings  # 12 tiles
    assert 10 < len(tilings) <= 64
    # A large result keeps every multiprocessor busy with any tile: what the cache gives decides.
    large = candidates(Problem(8192, 8192, 8192), INFO, spaces)
    assert {config["split_k"] for config in large.configs} == {1}
    assert min(config.number("block_m") * config.number("block_n") for config in large.configs) >= 2048


def test_atomics_are_searched_only_where_asked_for() -> None:
    spaces = (*settled("naive"), *settled("simt", block_m=(16, 32), block_n=(32, 64)))
    assert with_atomics(with_atomics(spaces)) == with_atomics(spaces)
    problem = Problem(64, 64, 65536)
    for widened, tried in ((spaces, {0}), (with_atomics(spaces), {0, 1})):
        found = [c for c in candidates(problem, INFO, widened).configs if c.family == "simt"]
        assert {config["split_k"] for config in found} & {16, 24, 32, 64}
        assert {config["atomic"] for config in found} == tried
        assert all(config.number("split_k") > 1 for config in found if config["atomic"] == 1)


def test_shipped_spaces_hold_only_known_values(tmp_path: Path) -> None:
    assert {choices.family for choices in read_spaces()} >= {"naive", "tiled"}
    file = tmp_path / "bad.toml"
    for text, named in (
        ("family = 'nosuch'\n[parameters]\n", "nosuch"),
        ("family = 'tiled'\n", "parameters"),
        ("family = 'tiled'\n[parameters]\ntile_width = 16\n", "tile_width"),
        ("family = 'tiled'\n[parameters]\ntile_width = [17]\n", "17"),
        ("family = 'tiled'\n[parameters]\nwidth = [16]\n", "width"),
        ("family = ", "bad.toml"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=named):
            read_spaces(tmp_path)
    with pytest.raises(ConfigError, match="no space files"):
        read_spaces(tmp_path / "..")


def test_nothing_left_is_an_error_with_the_reasons(tmp_path: Path) -> None:
    (tmp_path / "tiled.toml").write_text("family = 'tiled'\n[parameters]\nedge = ['exact']\n")
    with pytest.raises(ConfigError, match="multiples of 16"):
        candidates(Problem(17, 16, 16), INFO, read_spaces(tmp_path))


# First guesses


def test_guesses_begin_with_each_family_and_prefer_large_tiles_on_a_gpu() -> None:
    problem = Problem(2048, 2048, 2048)
    spaces = tuple(choices for choices in read_spaces() if choices.family in ("naive", "tiled"))
    order = ranked(problem, INFO, candidates(problem, INFO, spaces).configs)
    assert [config.family for config in order[:2]] == ["naive", "tiled"]
    assert order[2]["tile_width"] == 32
    assert len(set(order)) == len(order)


def test_recorded_winners_of_near_shapes_come_first() -> None:
    info = choose("host").info
    tune(PROBLEM, device="host", trials=3, seconds=30)
    near = recorded(Problem(26, 20, 16), info, Store())
    best = Store().best(info.key, PROBLEM)
    assert best is not None
    assert near[0] == best.config
    assert best.config not in recorded(Problem(26, 20, 16, DType.DOUBLE), info, Store())


# Machine code


def test_the_same_code_under_two_names_is_one() -> None:
    """The unroll factor 16 and 32 of a loop of 16 give the same instructions; another width does not."""
    compiler = compiler_for(choose("host").info)

    def digest(text: str) -> str:
        source = render(PROBLEM, Config.parse(text), ARCHES["host"])
        return code_digest(compile_cached(compiler, source).image, source)

    assert digest("naive:unroll=1") == digest("naive:unroll=1")
    assert digest("tiled:tile_width=8,unroll=8") != digest("tiled:tile_width=16,unroll=8")
    assert digest("tiled:edge=bounds") != digest("tiled:edge=pad")


def test_the_same_code_under_two_names_is_one_on_a_gpu() -> None:
    pytest.importorskip("cupy")
    from tilewright.runtime.device.cuda import NvrtcCompiler

    def digest(text: str) -> str:
        source = render(Problem(32, 32, 32), Config.parse(text), ARCH)
        return code_digest(compile_cached(NvrtcCompiler("sm_90a"), source).image, source)

    # With edges exact the guard is gone, and pad differs by its frame kernel alone.
    assert digest("tiled:edge=exact,unroll=16") == digest("tiled:edge=exact,unroll=16")
    assert digest("tiled:edge=exact,unroll=16") != digest("tiled:edge=exact,unroll=1")
    assert digest("tiled:edge=exact") != digest("tiled:edge=pad")


def test_identical_binaries_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two unroll factors are given the same text but for the name; the second takes the first one's times."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    spaces = tmp_path / "spaces"
    spaces.mkdir()
    (spaces / "tiled.toml").write_text(
        "family = 'tiled'\n[parameters]\ntile_width = [8]\nedge = ['bounds']\nskew = [0]\nunroll = [2, 4]\n"
    )
    info = choose("host").info
    sources = [
        render(PROBLEM, Config.parse(f"tiled:tile_width=8,edge=bounds,skew=0,unroll={unroll}"), info.arch)
        for unroll in (2, 4)
    ]
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


# Asking ahead


class Slow(RandomSampler):
    """A model that takes its time, and notes which thread it runs in."""

    threads: set[str]

    def choose(self) -> Point:
        self.threads.add(threading.current_thread().name)
        time.sleep(0.05)
        return super().choose()


def space_of(count: int) -> Space:
    return Space((Dimension("x", tuple(range(count))),), tuple((i,) for i in range(count)))


def test_asking_ahead_overlaps_and_repeats_nothing() -> None:
    slow = Slow(space_of(12), seed=0)
    slow.threads = set()
    ahead = AskAhead(slow)
    begin = time.perf_counter()
    seen = []
    while (point := ahead.ask()) is not None:
        seen.append(point)
        time.sleep(0.05)  # measuring
        ahead.tell(point, 1.0 + point[0])
    assert sorted(seen) == [(i,) for i in range(12)]
    assert slow.threads == {"sampler"}
    assert time.perf_counter() - begin < 12 * 0.1
    assert ahead.ask() is None
    assert len(ahead.history) == 12


def test_an_error_in_the_model_reaches_the_caller() -> None:
    class Broken(ExhaustiveSampler):
        def choose(self) -> Point:
            raise ConfigError("the model broke")

    with pytest.raises(ConfigError, match="the model broke"):
        AskAhead(Broken(space_of(3))).ask()


# Runs


def test_a_run_resumes_where_it_stopped_and_repeats_nothing() -> None:
    first, second = Counting(), Counting()
    tune(PROBLEM, device="host", trials=4, seconds=40, progress=first)
    result = tune(PROBLEM, device="host", trials=7, seconds=40, progress=second)
    assert (len(first.records), len(second.records)) == (4, 3)
    assert (result.trials, result.resumed) == (7, 4)
    tried = [record.config for record in (*first.records, *second.records)]
    assert len(set(tried)) == 7


@pytest.mark.parametrize(
    ("text", "listed"),
    [("naive:block_m=1,block_n=8,edge=bounds,unroll=1", True), ("simt:block_m=96,block_n=16,thread_n=4", False)],
)
def test_what_the_store_holds_meets_its_successor(text: str, listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow it was in the search, as `naive` with blocks of eight threads, and even where no space lists it, as
    on the processor what is no power of two."""
    first = tune(PROBLEM, device="host", trials=4, seconds=40, isolation=False)
    slow = complete(Config.parse(text))
    assert (slow in candidates(PROBLEM, choose("host").info, read_spaces()).configs) == listed
    Store().keep(replace(first.best, config=slow), replace=True)
    met: list[Config] = []
    original = Bench.duel

    def noted(self: Bench, configs: tuple[Config, ...], rounds: int, seconds: float = 0.0) -> Duel:
        met.extend(configs)
        return original(self, configs, rounds, seconds)

    monkeypatch.setattr(Bench, "duel", noted)
    result = tune(PROBLEM, device="host", trials=12, seconds=40, isolation=False, keep=1)
    assert slow in met
    assert slow != result.best.config
    assert len(met) <= 3  # the fastest of the search, what the store held, the default


def test_what_the_store_holds_stays_out_where_it_is_not_asked_for(tmp_path: Path) -> None:
    """Of a search of spaces that the user names, and of one for results that repeat to the bit."""
    info, atomic = choose("host").info, "simt:block_m=16,block_n=16,thread_m=2,thread_n=4,split_k=2,atomic=1"
    first = tune(PROBLEM, device="host", trials=2, seconds=40, isolation=False)
    for text, options in (
        ("simt:block_m=96,block_n=16,thread_n=4", {"spaces": faults.small_space(tmp_path / "spaces", 4, 8)}),
        (atomic, {}),
        (atomic, {"nondeterministic": True}),
    ):
        config, watching = complete(Config.parse(text)), Counting()
        assert not list(rejections(PROBLEM, config, info.arch))
        Store().keep(replace(first.best, config=config), replace=True)
        tune(PROBLEM, device="host", trials=5, seconds=40, isolation=False, progress=watching, **options)
        assert (config in {record.config for record in watching.records}) == bool(options.get("nondeterministic"))


def test_budgets_are_hard() -> None:
    begin = time.monotonic()
    result = tune(PROBLEM, device="host", trials=10_000, seconds=8.0)
    assert time.monotonic() - begin < 10.0
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
    faulty = faults.plant("host", PROBLEM, "tiled:tile_width=8,edge=bounds,skew=0,unroll=4", "alpha *= T(2);")
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
    assert statuses[faulty.number("tile_width")] == Status.WRONG_RESULT.value
    for sampler in ("random", "exhaustive", "tpe"):
        found = replay(recording, sampler=sampler)
        assert found.share == 1.0
        assert found.stopped == "space"
        assert len(found.trials) == 4
        assert found.charged_s > 0
    assert result.best.config["tile_width"] in (4, 16, 32)
    with pytest.raises(TuningError, match="nothing worked"):
        replay(recording, sampler="exhaustive", trials=4, seconds=-1.0)
