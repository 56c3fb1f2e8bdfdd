"""Recordings: what was written is read back, and a file that was cut off gives what it holds."""

import gzip
import json
import os
import time
import tracemalloc
import warnings
from pathlib import Path

import pytest
from tilewright.codegen.errors import ConfigError
from tilewright.tuner.recording import files
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.recording.files import Recording, read_cache_file, write_cache_file, write_t4
from tilewright.tuner.search.space import Dimension

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


@pytest.mark.parametrize(("cut", "rows", "line"), [(1, 6, 0), (2, 6, 0), (3, 6, 0), (40, 5, 31), (400, 3, 29)])
def test_a_file_cut_off_gives_its_whole_rows(tmp_path: Path, cut: int, rows: int, line: int) -> None:
    path = tmp_path / "run.json"
    write_cache_file(path, RECORDING)
    path.write_text(path.read_text()[:-cut])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        read = dict(read_cache_file(path).entries)
    assert read == dict(list(RECORDING.entries.items())[:rows])
    assert [str(w.message) for w in told] == ([f"{path} is damaged: rows dropped: 1, in line {line}"] if line else [])


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
    assert most_bytes < 100 << 20  # the text, some times over; its values would be three times as much


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
def test_a_row_of_wrong_types_or_numbers_is_dropped_and_told(tmp_path: Path, fields: str) -> None:
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
def test_a_document_of_wrong_types_is_one_line(tmp_path: Path, name: str, value: object) -> None:
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
    text["results"] *= 2000  # taken apart line by line, this would take minutes
    (tmp_path / "run.json").write_text(json.dumps(text, indent=1))
    with pytest.raises(ConfigError, match="not a Kernel Tuner cache file"):
        read_cache_file(tmp_path / "run.json")


def test_the_space_holds_what_may_be_tried() -> None:
    space = RECORDING.space()
    assert len(space) == 5
    assert (1, 1) not in space
    assert RECORDING.best_us == 7.25


def test_a_replay_charges_what_was_recorded() -> None:
    assert RECORDING.entries[0, 0].charged_s == 0.875


def test_t4_names_what_failed(tmp_path: Path) -> None:
    write_t4(tmp_path / "run.json.gz", RECORDING)
    document = json.loads(gzip.decompress((tmp_path / "run.json.gz").read_bytes()))
    assert document["schema_version"] == "1.0.0"
    results = document["results"]
    kinds = ["correct", "correct", "compile", "constraints", "timeout", "correctness"]
    assert [result["invalidity"] for result in results] == kinds
    assert results[0]["measurements"] == [{"name": "time", "value": 0.0125, "unit": "ms"}]
    assert results[0]["configuration"] == {"TILE": 16, "ORDER": "row"}
    assert [result["correctness"] for result in results] == [1.0, 1.0, 1.0, 1.0, 1.0, 0.0]
