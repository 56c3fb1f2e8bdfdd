"""Recordings are read back as they were written, and a file that was cut off gives the rows that it holds."""

import gzip
import itertools
import json
import math
import os
import re
import sys
import time
import tracemalloc
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tilewright.codegen.errors import ConfigError
from tilewright.tuner.recording import files
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.recording.files import Recording, read_cache_file, write_cache_file, write_t4
from tilewright.tuner.search.space import Dimension

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "benchmarks" / "results" / "nvidia-h200" / "recordings"
DIMENSIONS = (Dimension("TILE", (16, 32, 64)), Dimension("ORDER", ("row", "column")))
RECORDING = Recording(
    device_name="a device",
    kernel_name="gemm",
    problem_size=(64, 32, 16),
    dimensions=DIMENSIONS,
    entries={
        (0, 0): Entry("ok", 12.5, (12.0, 13.0), 0.5, 0.25, 0.125),
        (2, 1): Entry("ok", 7.25, (7.25,), 0.5),
        (1, 0): Entry("compile_error", compile_s=0.75, reason="too much shared memory"),
        (1, 1): Entry("pruned", reason="TILE must divide M"),
        (0, 1): Entry("timeout", compile_s=0.5, bench_s=2.0, reason="did not end in 2 s"),
        (2, 0): Entry("wrong_result", compile_s=0.5, verify_s=0.5, reason="row 3"),
    },
)


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_what_was_written_is_read_back(tmp_path: Path, name: str) -> None:
    write_cache_file(tmp_path / name, RECORDING)
    read = read_cache_file(tmp_path / name)
    assert dict(read.entries) == dict(RECORDING.entries)
    assert list(read.entries) == list(RECORDING.entries)
    assert (read.device_name, read.kernel_name) == ("a device", "gemm")
    assert (read.problem_size, read.dimensions) == ((64, 32, 16), DIMENSIONS)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def one_line(document: dict[str, Any], **more: Any) -> str:
    """A document as one line, as other programs write it."""
    return json.dumps({**document, "cache": {**document["cache"], **more}})


OPEN: dict[str, Callable[[str], str]] = {
    "as Kernel Tuner opens it": lambda text: text[:-3] + ",",
    "without its brackets": lambda text: text[:-3],
    "without one bracket": lambda text: text.rstrip()[:-1].rstrip() + "\n",
    "one line": lambda text: one_line(json.loads(text)),
    "one line, open": lambda text: one_line(json.loads(text))[:-2],
    "one line, open, with a comma": lambda text: one_line(json.loads(text))[:-2] + ",\n",
    "indented, open": lambda text: json.dumps(json.loads(text), indent=4).rstrip("}\n ") + "}",
    "one line that Kernel Tuner went on with": lambda text: (
        (
            one_line({**json.loads(text), "cache": dict(list(json.loads(text)["cache"].items())[:2])})[:-2]
            + ",\n"
            + ",\n".join(text.removesuffix("}\n}").splitlines()[-4:])
        ).replace(",,", ",")
        + ","
    ),
}


@pytest.mark.parametrize("way", OPEN)
def test_a_file_that_is_still_open_is_whole(tmp_path: Path, way: str) -> None:
    path = tmp_path / "run.json"
    write_cache_file(path, RECORDING)
    path.write_text(OPEN[way](path.read_text()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(read_cache_file(path).entries.items()) == list(RECORDING.entries.items())


@pytest.mark.parametrize(
    ("damage", "rows", "where"),
    [
        (lambda text: one_line(json.loads(text))[:-40], 5, "1, in line 1"),
        (lambda text: one_line(json.loads(text), **{"9,row": {"TILE": 9, "ORDER": "row", "time": 1}}), 6, "1"),
        (lambda text: one_line(json.loads(text))[:-40] + '\n"x": 1,', 5, "2, in lines 1-2"),
    ],
    ids=["cut off", "a value that is no choice", "and a row without values"],
)
def test_rows_of_one_line_are_dropped_one_by_one(
    tmp_path: Path, damage: Callable[[str], str], rows: int, where: str
) -> None:
    path = tmp_path / "run.json"
    write_cache_file(path, RECORDING)
    path.write_text(damage(path.read_text()))
    with pytest.warns(UserWarning, match=rf"is damaged: rows dropped: {where}$"):
        read = read_cache_file(path)
    assert list(read.entries.items()) == list(RECORDING.entries.items())[:rows]


def test_one_long_line_is_read_in_time_linear_in_its_size(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_cache_file(path, RECORDING)
    text = one_line(json.loads(path.read_text()))[:-2]
    path.write_text(text + ', "x": 1' * 300_000 + ', "' + '\\"' * 300_000)
    begin = time.perf_counter()
    with pytest.warns(UserWarning, match="rows dropped: 2, in line 1$"):
        assert dict(read_cache_file(path).entries) == dict(RECORDING.entries)
    assert time.perf_counter() - begin < 10


def test_the_same_recording_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        write_cache_file(tmp_path / name, RECORDING)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_times_are_milliseconds_and_failures_words_of_the_format(tmp_path: Path) -> None:
    write_cache_file(tmp_path / "run.json", RECORDING)
    cache = json.loads((tmp_path / "run.json").read_text())["cache"]
    assert cache["16,row"]["time"] == 0.0125
    assert cache["16,row"]["compile_time"] == 500.0
    assert cache["32,row"]["time"] == "CompilationFailedConfig"
    assert cache["32,column"]["time"] == "InvalidConfig"
    assert cache["16,column"]["time"] == "RuntimeFailedConfig"


@pytest.mark.parametrize(("cut", "rows", "line"), [(1, 6, 0), (2, 6, 0), (3, 6, 0), (40, 5, 32), (400, 3, 30)])
def test_a_file_cut_off_gives_its_whole_rows(tmp_path: Path, cut: int, rows: int, line: int) -> None:
    path = tmp_path / "run.json"
    write_cache_file(path, RECORDING)
    path.write_text(path.read_text()[:-cut])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read = dict(read_cache_file(path).entries)
    assert read == dict(list(RECORDING.entries.items())[:rows])
    assert [str(w.message) for w in caught] == ([f"{path} is damaged: rows dropped: 1, in line {line}"] if line else [])


def test_a_damaged_file_is_read_in_time_linear_in_its_size(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_cache_file(path, RECORDING)
    lines = path.read_text().split("\n")
    first = next(place for place, line in enumerate(lines) if line.startswith('"16,row"'))
    torn = [lines[first][:-20], "\x00" * 50, '"16,row": {"TILE": 16, ', '"x": 1,', '"x": ' + "[" * 1200]
    path.write_text("\n".join([*lines[: first + 1], *torn * 4000, *lines[first + 1 :]]))
    begin = time.perf_counter()
    with pytest.warns(UserWarning, match=f"rows dropped: 20000, in lines {first + 2}-{first + 20001}$"):
        read = read_cache_file(path)
    assert dict(read.entries) == dict(RECORDING.entries)
    assert time.perf_counter() - begin < 10


def test_a_gzip_cut_off_gives_its_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "run.json.gz"
    write_cache_file(path, RECORDING)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.warns(UserWarning, match="rows dropped"):
        assert (0, 0) in read_cache_file(path).entries


def test_a_gzip_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 20)
    (tmp_path / "run.json.gz").write_bytes(gzip.compress(bytes((1 << 20) + 1)))
    with pytest.raises(ConfigError, match="unpacks to more than 1 MB"):
        read_cache_file(tmp_path / "run.json.gz")


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_of_many_short_values_is_refused_before_it_is_parsed(tmp_path: Path, packed: bool) -> None:
    text = b'{"cache": [' + b"{}," * (files.MOST_VALUES // 2 + 1) + b"{}]}"
    path = tmp_path / ("bomb.json.gz" if packed else "bomb.json")
    path.write_bytes(gzip.compress(text) if packed else text)
    del text
    tracemalloc.start()
    with pytest.raises(ConfigError, match=r"bomb\.json.*: it holds more than 8,000,000 values"):
        read_cache_file(path)
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most_bytes < 100 << 20  # a few copies of the text; its values would be three times as large


ODD = [
    '"time": true',
    '"time": []',
    '"time": 1e999',
    '"time": 1' + "0" * 400,
    '"time": 1e30',
    '"time": 1.0, "times": ["x"]',
    '"time": 1.0, "times": 5',
    '"time": 1.0, "compile_time": "long"',
    '"time": 1.0, "compile_time": -1e9',
    '"time": "RuntimeFailedConfig", "status": "fine"',
    '"time": 1.0, "TILE": [16]',
    '"time": 1.0, "TILE": 17',
]


@pytest.mark.parametrize("fields", ODD)
def test_a_row_of_wrong_types_or_numbers_is_dropped_and_reported(tmp_path: Path, fields: str) -> None:
    path = tmp_path / "run.json"
    write_cache_file(path, RECORDING)
    lines = path.read_text().split("\n")
    row = next(place for place, line in enumerate(lines) if line.startswith('"64,column"'))
    lines[row] = '"64,column": {"TILE": 64, "ORDER": "column", ' + fields + "},"
    path.write_text("\n".join(lines))
    with pytest.warns(UserWarning, match=rf"run\.json is damaged: rows dropped: 1, in line {row + 1}$"):
        read = read_cache_file(path)
    assert dict(read.entries) == {point: entry for point, entry in RECORDING.entries.items() if point != (2, 1)}


def test_blank_lines_before_the_rows_take_no_time(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{" + "\n" * 1_000_000)
    begin = time.perf_counter()
    with pytest.raises(ConfigError, match=r"run\.json"):
        read_cache_file(tmp_path / "run.json")
    assert time.perf_counter() - begin < 5


HEADS = [
    ("tune_params_keys", 5),
    ("tune_params_keys", ["TILE", "TILE"]),
    ("tune_params_keys", [["TILE"], "ORDER"]),
    ("tune_params_keys", ["TILE", "ORDER", "x" * 50]),
    ("tune_params", []),
    ("tune_params", {"TILE": 5, "ORDER": ["row"]}),
    ("tune_params", {"TILE": [], "ORDER": ["row"]}),
    ("tune_params", {"TILE": list(range(40_000)), "ORDER": ["row"]}),
    ("cache", []),
    ("cache", 5),
    ("problem_size", [[]]),
    ("problem_size", [float("inf")]),
]


@pytest.mark.parametrize(("name", "value"), HEADS, ids=lambda value: str(value)[:40])
def test_a_document_of_wrong_types_is_refused_in_one_line(tmp_path: Path, name: str, value: object) -> None:
    path = tmp_path / "run.json"
    write_cache_file(path, RECORDING)
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(ConfigError, match=r"run\.json: ") as caught:
        read_cache_file(path)
    assert "\n" not in str(caught.value)


def test_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name in ("pipe.json", "zero.json"):
        with pytest.raises(ConfigError, match=rf"cannot read the recording .*{name}: not a regular file"):
            read_cache_file(tmp_path / name)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"cache": {}}', '{"cache": {"1": {}}}', "\x00"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"run\.json"):
        read_cache_file(path)
    with pytest.raises(ConfigError, match=r"missing\.json"):
        read_cache_file(tmp_path / "missing.json")


def test_a_whole_document_of_another_kind_is_refused_at_once(tmp_path: Path) -> None:
    write_t4(tmp_path / "run.json", RECORDING)
    text = json.loads((tmp_path / "run.json").read_text())
    text["results"] *= 2000  # read line by line, this would take minutes
    (tmp_path / "run.json").write_text(json.dumps(text, indent=1))
    with pytest.raises(ConfigError, match="not a Kernel Tuner cache file"):
        read_cache_file(tmp_path / "run.json")


def test_the_space_has_the_points_that_are_not_pruned() -> None:
    space = RECORDING.space()
    assert len(space) == 5
    assert (1, 1) not in space.points
    assert RECORDING.best_us == 7.25


Restrictions = list[tuple[tuple[str, ...], Callable[..., bool]]]


def compiled(document: dict[str, Any]) -> Restrictions:
    """Names and function of each restriction, as Kernel Tuner makes them from its text."""
    names = document["tune_params_keys"]
    functions = []
    for text in document["restrictions"]:
        used = tuple(name for name in names if name in text.partition(" in ")[0].strip("()").split(", "))
        functions.append((used, eval(f"lambda {', '.join(used)}: {text}")))
    return functions


def walk(document: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Prefixes of values that all restrictions on their names allow: the steps of a constraint solver."""
    names = document["tune_params_keys"]
    checks = [
        [(tuple(map(names.index, used)), f) for used, f in compiled(document) if used[-1] == name] for name in names
    ]
    prefixes: list[tuple[Any, ...]] = [()]
    while prefixes:
        prefix = prefixes.pop()
        yield prefix
        if len(prefix) < len(names):
            longer = (*((*prefix, value) for value in document["tune_params"][names[len(prefix)]]),)
            prefixes += [each for each in longer if all(f(*(each[i] for i in used)) for used, f in checks[len(prefix)])]


def rows_of(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in document["tune_params_keys"]) for row in document["cache"].values()]


def test_a_space_of_1e11_combinations_is_walked_in_some_thousand_steps(tmp_path: Path) -> None:
    """Kernel Tuner walks the space like `walk`, and does not end without the restrictions."""
    recording = read_cache_file(RECORDINGS / "double-1024x768x512.json.gz")
    entries = dict(itertools.islice(recording.entries.items(), 0, None, 20))
    write_cache_file(tmp_path / "run.json", replace(recording, entries=entries))
    document = json.loads((tmp_path / "run.json").read_text())
    assert math.prod(map(len, document["tune_params"].values())) > 10**11
    prefixes = list(itertools.islice(walk(document), 50_000))
    assert len(prefixes) < 50_000
    complete = [prefix for prefix in prefixes if len(prefix) == len(document["tune_params_keys"])]
    assert sorted(complete, key=str) == sorted(rows_of(document), key=str)


@pytest.mark.parametrize(
    "path", [p for p in sorted(RECORDINGS.glob("*.json.gz")) if ".t4." not in p.name], ids=lambda path: path.stem
)
def test_committed_recordings_have_restrictions(path: Path) -> None:
    with gzip.open(path, "rt") as file:
        header = json.loads("".join(itertools.takewhile(lambda line: not line.startswith('"cache"'), file)) + '"": {}}')
    used = header["restrictions"][-1].partition(" in ")[0]
    assert used == f"({''.join(f'{name}, ' for name in header['tune_params_keys'])})"


DIMENSION = st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True).flatmap(
    lambda numbers: st.lists(st.sampled_from(["absent", "in", "A1"]), max_size=1).map(lambda w: (*w, *sorted(numbers)))
)
ENTRY = st.one_of(
    st.builds(lambda us, s: Entry("ok", us / 8, (us / 8, us / 4), s / 8), st.integers(1, 10**6), st.integers(0, 99)),
    st.builds(Entry, st.sampled_from(["pruned", "compile_error", "crashed", "timeout"]), reason=st.text(max_size=5)),
)


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    dimensions = tuple(Dimension(f"A{n}", c) for n, c in enumerate(draw(st.lists(DIMENSION, min_size=1, max_size=4))))
    points = st.tuples(*(st.integers(0, len(d.choices) - 1) for d in dimensions))
    return Recording("a device", "a kernel", (3, 2), dimensions, draw(st.dictionaries(points, ENTRY, min_size=1)))


@settings(max_examples=40, deadline=None)
@given(recordings())
def test_any_recording_comes_back_and_its_restrictions_allow_its_points_alone(
    tmp_path_factory: pytest.TempPathFactory, recording: Recording
) -> None:
    path, copy = (tmp_path_factory.getbasetemp() / name for name in ("any.json", "again.json"))
    write_cache_file(path, recording)
    read = read_cache_file(path)
    write_cache_file(copy, read)
    assert copy.read_bytes() == path.read_bytes()
    for point, entry in recording.entries.items():  # milliseconds and back may cost the last bit of a time
        assert read.entries[point].packed() == {**entry.packed(), "time_us": pytest.approx(entry.time_us)}
    assert (read.dimensions, read.problem_size) == (recording.dimensions, recording.problem_size)
    document = json.loads(path.read_text())
    complete = [each for each in walk(document) if len(each) == len(recording.dimensions)]
    assert sorted(complete, key=str) == sorted(rows_of(document), key=str)


def test_a_file_may_go_without_restrictions(tmp_path: Path) -> None:
    write_cache_file(tmp_path / "run.json", RECORDING)
    document = json.loads((tmp_path / "run.json").read_text())
    del document["restrictions"]
    (tmp_path / "run.json").write_text(json.dumps(document))
    assert dict(read_cache_file(tmp_path / "run.json").entries) == dict(RECORDING.entries)


def test_names_that_python_does_not_allow_have_no_restrictions() -> None:
    for name in ("block size", "in", ""):
        odd = Recording("", "", (), (Dimension(name, (1, 2)), DIMENSIONS[1]), {(0, 0): Entry("ok", 1.0)})
        assert files.restrictions(odd) == []


def test_the_documented_lines_hand_a_recording_to_kernel_tuner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kernel Tuner and its dependencies are too heavy for these tests, so that a fake function stands for it."""
    received: dict[str, Any] = {}

    def tune_kernel(*, kernel_source: str, arguments: list[Any], **rest: Any) -> Any:
        received.update(rest)
        return [{"time": 0.5}, {"time": "RuntimeFailedConfig", "__error__": "RuntimeFailedConfig"}], {}

    module = types.ModuleType("kernel_tuner")
    module.tune_kernel = tune_kernel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kernel_tuner", module)
    monkeypatch.chdir(tmp_path)
    part = Recording(*("a device", "gemm", (64, 32, 16)), DIMENSIONS, dict(list(RECORDING.entries.items())[:2]))
    write_cache_file(Path("run.json"), part)
    (lines,) = re.findall(r"^```py\n([^`]*kernel_tuner[^`]*)^```$", (ROOT / "docs" / "tuning.md").read_text(), re.M)
    exec(lines, {})
    assert capsys.readouterr().out == "0.5 ms\n"
    header = json.loads(Path("run.json").read_text())
    assert {name: received[name] for name in received.keys() & header.keys()} == {
        name: header[name] for name in ("kernel_name", "problem_size", "tune_params", "restrictions")
    } | {"cache": "run.json"}
    assert received["simulation_mode"] is True
    assert len(received["restrictions"]) == 1


def test_a_replay_charges_what_was_recorded() -> None:
    assert RECORDING.entries[0, 0].charged_s == 0.875


def test_t4_names_the_kind_of_each_failure(tmp_path: Path) -> None:
    write_t4(tmp_path / "run.json.gz", RECORDING)
    document = json.loads(gzip.decompress((tmp_path / "run.json.gz").read_bytes()))
    assert document["schema_version"] == "1.0.0"
    results = document["results"]
    kinds = ["correct", "correct", "compile", "constraints", "timeout", "correctness"]
    assert [result["invalidity"] for result in results] == kinds
    assert results[0]["measurements"] == [{"name": "time", "value": 0.0125, "unit": "ms"}]
    times = {"compilation": 500.0, "compilation_time": 500.0, "benchmark": 125.0, "validation": 250.0}
    assert results[0]["times"] == {**times, "runtimes": [0.012, 0.013], "framework": 0.0, "search_algorithm": 0.0}
    assert results[0]["configuration"] == {"TILE": 16, "ORDER": "row"}
    assert [result["correctness"] for result in results] == [1.0, 1.0, 1.0, 1.0, 1.0, 0.0]
