"""The store: layers, look-up order, and what it does when files, disks and other processes misbehave."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.errors import ConfigError, StoreError, StoreVersionError
from tilewright.codegen.families import complete, default_config
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime import record_json
from tilewright.runtime.device import DeviceInfo
from tilewright.runtime.record import Accuracy, Measurement, Record, Status
from tilewright.runtime.record_json import dumps, key_digest, loads
from tilewright.runtime.store import Store, StoreWarning, distance

DEVICE = "nvidia-h200"
PROBLEM = Problem(1024, 768, 512)
INFO = DeviceInfo("NVIDIA H200", "cuda:0", ARCHES["sm_90a"], 132, 1980.0, 1 << 37, 1 << 25, 4800.0, "CUDA 13.0")
CONFIGS = [complete(Config("tiled", (("tile_width", width), ("unroll", 1)))) for width in (4, 8, 16, 32)]


def make(median_us: float, problem: Problem = PROBLEM, config: Config = CONFIGS[0], device: str = DEVICE) -> Record:
    measurement = Measurement((median_us,), median_us, 0.0)
    return Record(problem, device, config, Status.OK, "", measurement, Accuracy(0.5, 0, 0))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    return Store(tmp_path / "store", shipped)


def path_of(store: Store, problem: Problem = PROBLEM, device: str = DEVICE) -> Path:
    return store.root / "records" / f"{key_digest(device, problem)}.json"


def ship(store: Store, record: Record, folder: str = DEVICE, name: str = "some.json") -> Path:
    path = store.root.parent / "shipped" / folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(dumps(record))
    return path


def signed(document: dict[str, Any]) -> bytes:
    document.pop("checksum", None)
    return json.dumps({**document, "checksum": record_json._sha256(document)}).encode()


# --- keeping ---------------------------------------------------------------------------------------------------


def test_a_kept_record_is_found_by_the_next_store(store: Store) -> None:
    assert store.best(DEVICE, PROBLEM) is None
    assert store.keep(make(10.0))
    assert Store(store.root).best(DEVICE, PROBLEM) == make(10.0)
    assert [path.name for path in (store.root / "records").iterdir()] == [path_of(store).name]


def test_reading_makes_no_folder(store: Store) -> None:
    assert store.best(DEVICE, PROBLEM) is None
    assert list(store.records()) == []
    assert not store.root.exists()


def test_the_better_one_stays(store: Store) -> None:
    assert store.keep(make(10.0, config=CONFIGS[0]))
    assert not store.keep(make(11.0, config=CONFIGS[1]))
    assert not store.keep(make(10.0, config=CONFIGS[1]))
    assert store.keep(make(9.0, config=CONFIGS[2]))
    assert store.best(DEVICE, PROBLEM) == make(9.0, config=CONFIGS[2])


def test_a_newer_time_of_the_same_config_replaces(store: Store) -> None:
    store.keep(make(10.0))
    assert store.keep(make(12.0))
    short = replace(make(13.0), config=Config("tiled", (("tile_width", 4), ("unroll", 1))))
    assert store.keep(short)  # the same config with its defaults left out
    assert store.best(DEVICE, PROBLEM) == make(13.0)


def test_an_outdated_one_can_be_replaced_by_a_slower_one(store: Store) -> None:
    store.keep(make(10.0))
    assert store.keep(make(12.0, config=CONFIGS[1]), replace=True)
    assert store.best(DEVICE, PROBLEM) == make(12.0, config=CONFIGS[1])


def test_a_failure_is_not_kept(store: Store) -> None:
    failed = Record(PROBLEM, DEVICE, CONFIGS[0], Status.TIMEOUT, "took 10 s")
    assert not store.keep(failed)
    assert not store.root.exists()


def test_what_could_not_be_read_again_is_not_written(store: Store) -> None:
    store.keep(make(10.0))
    with pytest.raises(ConfigError):
        store.keep(replace(make(1.0), config=Config("fused", ())))
    with pytest.raises(StoreError):
        store.keep(replace(make(1.0), vendor_us=float("nan")))
    with pytest.raises(StoreError, match="too large"):
        store.keep(replace(make(1.0), reason="x" * (1 << 20)))
    assert store.best(DEVICE, PROBLEM) == make(10.0)


# --- layers and look-up ----------------------------------------------------------------------------------------


def test_the_better_of_both_layers(store: Store) -> None:
    ship(store, make(10.0, config=CONFIGS[1]))
    assert store.best(DEVICE, PROBLEM) == make(10.0, config=CONFIGS[1])
    store.keep(make(11.0))
    assert store.best(DEVICE, PROBLEM) == make(10.0, config=CONFIGS[1])
    store.keep(make(10.0))
    assert store.best(DEVICE, PROBLEM) == make(10.0)  # the user's own in a tie
    assert list(store.records()) == [make(10.0)]


def test_records_of_one_device_and_of_all(store: Store) -> None:
    cube, tall = Problem(64, 64, 64), Problem(128, 64, 64)
    for record in (make(3.0, tall), make(2.0, cube), make(5.0, cube, device="host-x"), make(4.0, cube, CONFIGS[1])):
        store.keep(record)
    ship(store, make(7.0, PROBLEM))
    ship(store, make(8.0, PROBLEM, device="amd-x"), "amd-x")
    mine = [make(2.0, cube), make(3.0, tall), make(7.0, PROBLEM)]
    assert list(store.records(DEVICE)) == mine
    assert list(store.records()) == [make(8.0, PROBLEM, device="amd-x"), make(5.0, cube, device="host-x"), *mine]
    assert list(store.records("nothing")) == []


def test_exact_then_nearest_then_default(store: Store) -> None:
    found = store.lookup(INFO, PROBLEM)
    assert (found.origin, found.config, found.record) == ("default", default_config(PROBLEM, INFO.arch), None)

    far, near = Problem(64, 64, 64), Problem(1000, 800, 500)
    store.keep(make(1.0, far, CONFIGS[0]))
    store.keep(make(5.0, near, CONFIGS[1]))
    found = store.lookup(INFO, PROBLEM)
    assert (found.origin, found.config) == ("nearest 1000x800x500", CONFIGS[1])
    assert found.record == make(5.0, near, CONFIGS[1])

    ship(store, make(9.0, PROBLEM, CONFIGS[2]))
    found = Store(store.root, store.root.parent / "shipped").lookup(INFO, PROBLEM)
    assert (found.origin, found.config) == ("exact", CONFIGS[2])


def test_another_device_type_or_transpose_is_never_nearest(store: Store) -> None:
    store.keep(make(1.0, replace(PROBLEM, m=1000), device="nvidia-h100"))
    store.keep(make(1.0, replace(PROBLEM, m=1000, dtype=DType.DOUBLE)))
    store.keep(make(1.0, replace(PROBLEM, m=1000, trans_a=True)))
    store.keep(make(1.0, replace(PROBLEM, m=1000, trans_b=True)))
    assert store.lookup(INFO, PROBLEM).origin == "default"


def test_a_config_that_cannot_serve_is_passed_over(store: Store) -> None:
    exact = complete(Config("tiled", (("tile_width", 32), ("edge", "exact"))))
    store.keep(make(1.0, Problem(1024, 1024, 1024), exact))
    store.keep(make(1.0, Problem(64, 64, 64), CONFIGS[1]))
    assert store.lookup(INFO, Problem(1025, 1024, 1024)).origin == "nearest 64x64x64"
    assert store.lookup(INFO, Problem(2048, 1024, 1024)).origin == "nearest 1024x1024x1024"


@given(st.lists(st.integers(0, 2**31 - 1), min_size=6, max_size=6))
def test_any_two_shapes_have_a_distance(sizes: list[int]) -> None:
    one, other = Problem(*sizes[:3]), Problem(*sizes[3:])
    assert distance(one, other) == distance(other, one) >= 0
    assert (distance(one, other) == 0) == (one == other)


def test_shapes_of_zero_are_looked_up(store: Store) -> None:
    store.keep(make(1.0, Problem(64, 64, 64)))
    assert store.lookup(INFO, Problem(0, 64, 0)).origin == "nearest 64x64x64"


# --- shipped records -------------------------------------------------------------------------------------------


def test_export_makes_what_ships(store: Store, tmp_path: Path) -> None:
    double = Problem(100, 200, 300, DType.DOUBLE, trans_b=True)
    store.keep(make(1.0))
    store.keep(make(2.0, double))
    store.keep(make(3.0, device="other"))
    ship(store, make(0.5, Problem(8, 8, 8)))
    files = store.export(DEVICE, tmp_path / "tuned")
    assert [file.name for file in files] == ["100x200x300-double-nt.json", "1024x768x512-float-nn.json"]
    assert {file.parent for file in files} == {tmp_path / "tuned" / DEVICE}
    assert "\n" in files[0].read_text().strip()
    again = Store(tmp_path / "empty", tmp_path / "tuned")
    assert list(again.records()) == [make(2.0, double), make(1.0)]


@pytest.mark.parametrize("key", ["", "..", "../x", "a/b", "/etc", "A", "a b", "a\0", "-a", "a\n"])
def test_export_refuses_what_is_no_device_key(store: Store, key: str, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    with pytest.raises(StoreError, match="key of a device"):
        store.export(key, tmp_path / "tuned")
    assert set(tmp_path.iterdir()) == before


def test_an_unusable_shipped_record_is_passed_over(store: Store) -> None:
    ship(store, make(5.0))
    ship(store, make(4.0), name="damaged.json").write_bytes(b"{")
    ship(store, make(3.0, device="other"), name="foreign.json")
    with pytest.warns(StoreWarning) as caught:
        assert store.best(DEVICE, PROBLEM) == make(5.0)
    assert len(caught) == 2
    assert store.best(DEVICE, PROBLEM) == make(5.0)  # told once


def test_the_package_ships_nothing_damaged() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(Store(Path("/nonexistent")).records())


# --- damaged files ---------------------------------------------------------------------------------------------


def _flip(data: bytes) -> bytes:
    at = data.index(b"median_us") + 14
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _changed(data: bytes, **changes: Any) -> bytes:
    return signed({**json.loads(data), **changes})


def _retimed(data: bytes, text: str) -> bytes:
    document = json.loads(data)
    document["record"]["measurement"]["median_us"] = float(text)
    return json.dumps(document).encode()


DAMAGE = {
    "truncated": lambda data: data[: len(data) // 2],
    "one byte short": lambda data: data[:-3],
    "one bit flipped": _flip,
    "empty": lambda data: b"",
    "not JSON": lambda data: b"hello",
    "not text": lambda data: b"\xff\x00" * 50,
    "another kind of JSON": lambda data: b"[1, 2]",
    "checksum of another": lambda data: data.replace(b"nvidia-h200", b"nvidia-h100"),
    "no checksum": lambda data: json.dumps({k: v for k, v in json.loads(data).items() if k != "checksum"}).encode(),
    "schema 0": lambda data: _changed(data, schema=0),
    "no schema": lambda data: _changed(data, schema=None),
    "huge": lambda data: data + b" " * (1 << 20),
    "wrong types": lambda data: _changed(data, record="text"),
    "unknown field": lambda data: _changed(data, more=1),
    "NaN time": lambda data: _retimed(data, "nan"),
    "negative time": lambda data: signed(json.loads(_retimed(data, "-1.0"))),
    "another's record": lambda data: dumps(make(1.0, Problem(8, 8, 8))),
    "a failure": lambda data: dumps(Record(PROBLEM, DEVICE, CONFIGS[0], Status.TIMEOUT, "slow")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_set_aside_and_the_next_layer_used(store: Store, damage: str) -> None:
    ship(store, make(20.0, config=CONFIGS[3]))
    store.keep(make(10.0))
    path = path_of(store)
    path.write_bytes(bad := DAMAGE[damage](path.read_bytes()))
    with pytest.warns(StoreWarning, match="set aside") as caught:
        found = store.lookup(INFO, PROBLEM)
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    assert found.record == make(20.0, config=CONFIGS[3])
    assert not path.exists()
    assert path.with_name(path.name + ".corrupt").read_bytes() == bad
    assert store.keep(make(30.0))


def test_an_earlier_corrupt_file_is_not_overwritten(store: Store) -> None:
    for text in (b"one", b"two", b"three"):
        store.keep(make(10.0))
        path_of(store).write_bytes(text)
        with pytest.warns(StoreWarning):
            assert store.best(DEVICE, PROBLEM) is None
    kept = sorted(path.read_bytes() for path in path_of(store).parent.glob("*.corrupt"))
    assert kept == [b"one", b"three", b"two"]


def test_a_damaged_file_in_a_listing_hides_no_other(store: Store) -> None:
    other = make(1.0, Problem(8, 8, 8))
    store.keep(make(10.0))
    store.keep(other)
    path_of(store).write_bytes(b"")
    with pytest.warns(StoreWarning):
        assert list(store.records()) == [other]
    assert list(store.records()) == [other]


def test_a_writer_sets_a_damaged_file_aside_too(store: Store) -> None:
    store.keep(make(10.0))
    path_of(store).write_bytes(b"{}")
    with pytest.warns(StoreWarning):
        assert store.keep(make(99.0))
    assert store.best(DEVICE, PROBLEM) == make(99.0)
    assert path_of(store).with_name(path_of(store).name + ".corrupt").read_bytes() == b"{}"


def test_a_newer_schema_is_left_untouched(store: Store) -> None:
    store.keep(make(10.0))
    other = make(1.0, Problem(8, 8, 8))
    store.keep(other)
    path = path_of(store)
    path.write_bytes(newer := _changed(path.read_bytes(), schema=2, record={"what": "ever"}))
    for action in (
        lambda: store.best(DEVICE, PROBLEM),
        lambda: store.lookup(INFO, PROBLEM),
        lambda: store.keep(make(1.0)),
        lambda: store.keep(make(1.0), replace=True),
    ):
        with pytest.raises(StoreVersionError, match=path.name):
            action()
    with pytest.warns(StoreWarning, match="newer tilewright"):
        assert list(store.records()) == [other]
    assert path.read_bytes() == newer
    assert len(list(path.parent.iterdir())) == 2


def _of_unknown_family(store: Store) -> bytes:
    store.keep(make(10.0))
    document = json.loads(path_of(store).read_bytes())
    document["record"]["config"] = {"family": "fused", "values": [["warp_m", 4]]}
    path_of(store).write_bytes(data := signed(document))
    return data


def test_an_unknown_family_is_passed_over_and_left_alone(store: Store) -> None:
    data = _of_unknown_family(store)
    with pytest.warns(StoreWarning, match="family must be one of") as caught:
        assert store.best(DEVICE, PROBLEM) is None
    assert path_of(store).name in str(caught[0].message)
    assert path_of(store).read_bytes() == data
    assert len(list(path_of(store).parent.iterdir())) == 1


def test_an_unknown_family_is_not_lost_when_this_version_keeps_its_own(store: Store) -> None:
    data = _of_unknown_family(store)
    assert store.keep(make(50.0))
    assert store.best(DEVICE, PROBLEM) == make(50.0)
    assert path_of(store).with_name(path_of(store).name + ".unknown").read_bytes() == data


# --- links and names -------------------------------------------------------------------------------------------


def test_a_link_in_place_of_a_record_is_never_followed(store: Store, tmp_path: Path) -> None:
    store.keep(make(10.0))
    target = tmp_path / "target.json"
    target.write_bytes(dumps(make(1.0, config=CONFIGS[1])))
    before = target.read_bytes()
    for action in (lambda: store.best(DEVICE, PROBLEM), lambda: store.keep(make(20.0))):
        path_of(store).unlink(missing_ok=True)
        path_of(store).symlink_to(target)
        with pytest.warns(StoreWarning, match="not a regular file"):
            action()
        assert target.read_bytes() == before
    assert store.best(DEVICE, PROBLEM) == make(20.0)
    assert path_of(store).is_file()
    assert not path_of(store).is_symlink()


def test_a_link_in_place_of_a_lock_is_never_followed(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (store.root / "locks").mkdir(parents=True)
    (store.root / "locks" / f"{path_of(store).stem}.lock").symlink_to(target)
    with pytest.raises(StoreError):
        store.keep(make(10.0))
    assert target.read_text() == "precious"


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_does_not_stop_or_block(store: Store, kind: str) -> None:
    path_of(store).parent.mkdir(parents=True)
    if kind == "folder":
        path_of(store).mkdir()
    else:
        os.mkfifo(path_of(store))
    with pytest.warns(StoreWarning, match="not a regular file"):
        assert store.keep(make(10.0))
    assert store.best(DEVICE, PROBLEM) == make(10.0)


HOSTILE = [
    "../../escape",
    "/etc/passwd",
    "a/../../b",
    "..",
    "",
    "x" * 5000,
    "nul\0",
    "new\nline",
    "\ud800",
    "~root",
    "%s{x}",
]


@pytest.mark.parametrize("key", HOSTILE)
def test_hostile_device_keys_stay_inside(store: Store, key: str, tmp_path: Path) -> None:
    record = make(10.0, device=key)
    assert store.keep(record)
    assert store.best(key, PROBLEM) == record
    assert list(store.records(key)) == [record]
    assert path_of(store, device=key).is_file()
    outside = [path for path in tmp_path.rglob("*") if store.root not in (path, *path.parents)]
    assert outside == [tmp_path / "shipped"]


def test_a_shipped_folder_is_found_by_name_not_by_path(store: Store) -> None:
    ship(store, make(1.0, device="../nvidia-h200"))
    assert store.best("../nvidia-h200", PROBLEM) is None
    assert store.best(f"../shipped/{DEVICE}", PROBLEM) is None
    assert store.best("", PROBLEM) is None


# --- disks that refuse -----------------------------------------------------------------------------------------


def _writes(flags: int) -> bool:
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


def _read_only(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if _writes(flags) and str(path).startswith(str(root)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *rest, **more)

    def refuse_two(source: Any, target: Any, **more: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(source))

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "replace", refuse_two)
    monkeypatch.setattr(os, "rename", refuse_two)


def test_a_read_only_store_can_be_read_and_says_so_when_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.keep(make(10.0))
    _read_only(monkeypatch, store.root)
    with pytest.raises(StoreError) as caught:
        store.keep(make(5.0))
    assert str(store.root) in str(caught.value)
    assert "Read-only file system" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert store.best(DEVICE, PROBLEM) == make(10.0)


def test_a_damaged_file_of_a_read_only_store_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ship(store, make(20.0))
    store.keep(make(10.0))
    path_of(store).write_bytes(b"bad")
    _read_only(monkeypatch, store.root)
    with pytest.warns(StoreWarning, match="stays where it is"):
        assert store.best(DEVICE, PROBLEM) == make(20.0)
    assert path_of(store).read_bytes() == b"bad"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(store: Store) -> None:
    store.keep(make(10.0))
    (store.root / "records").chmod(0o500)
    try:
        with pytest.raises(StoreError, match="Permission denied"):
            store.keep(make(5.0))
        assert store.best(DEVICE, PROBLEM) == make(10.0)
    finally:
        (store.root / "records").chmod(0o700)


def test_a_file_that_cannot_be_read_is_passed_over_but_not_overwritten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(store, make(20.0))
    store.keep(make(10.0))
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if Path(path) == path_of(store):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, flags, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.warns(StoreWarning, match="Input/output error"):
            assert store.best(DEVICE, PROBLEM) == make(20.0)
        with pytest.raises(StoreError, match="cannot read"):
            store.keep(make(5.0))
    assert store.best(DEVICE, PROBLEM) == make(10.0)


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_leaves_the_old_record(store: Store, step: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store.keep(make(10.0))
    before = path_of(store).read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    real = os.fdopen

    @contextmanager
    def fill(descriptor: int, mode: str, **more: Any) -> Iterator[Any]:
        with real(descriptor, mode, **more) as file:
            if "w" in mode:
                file.write(b'{"sch')  # half of it arrives
                file.flush()
                fail()
            yield file

    with monkeypatch.context() as patch:
        patch.setattr(os, *(("fdopen", fill) if step == "write" else (step, fail)))
        with pytest.raises(StoreError) as caught:
            store.keep(make(5.0))
    assert str(path_of(store)) in str(caught.value)
    assert os.strerror(code) in str(caught.value)
    assert [path.read_bytes() for path in path_of(store).parent.iterdir()] == [before]
    assert store.keep(make(5.0))


def test_a_store_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = Store(tmp_path / "file", tmp_path / "none")
    with pytest.raises(StoreError, match=str(tmp_path / "file")):
        store.keep(make(1.0))
    with pytest.warns(StoreWarning):
        assert store.lookup(INFO, PROBLEM).origin == "default"
    assert (tmp_path / "file").read_text() == "x"


def test_a_lock_held_for_ever_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from filelock import FileLock
    from tilewright.runtime import store as module

    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.05)
    store.keep(make(10.0))
    with (
        FileLock(store.root / "locks" / f"{path_of(store).stem}.lock"),
        pytest.raises(StoreError, match="another process holds its lock"),
    ):
        store.keep(make(5.0))
    assert store.best(DEVICE, PROBLEM) == make(10.0)


# --- other processes -------------------------------------------------------------------------------------------

WRITER = """
import itertools, sys
from dataclasses import replace
from pathlib import Path
from tilewright.codegen.config import Config
from tilewright.codegen.families import FAMILIES
from tilewright.codegen.problem import Problem
from tilewright.runtime.record_json import loads
from tilewright.runtime.store import Store

root, example, first, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
store = Store(root, root / "none")
record = loads(example.read_bytes())
names = [parameter.name for parameter in FAMILIES["naive"].parameters]
values = itertools.product(*(parameter.choices for parameter in FAMILIES["naive"].parameters))
configs = [Config("naive", tuple(zip(names, chosen))) for chosen in values]
print("ready", flush=True)
sys.stdin.readline()
for step in range(count):
    # All writers fight over problem 1; each has problems of its own beside.
    for m, median in ((1, 1000.0 - (step * 7 + first) % 1000), (first + step, 5.0)):
        config = configs[(first + step) % len(configs)]
        measurement = replace(record.measurement, samples_us=(median,) * 50, median_us=median)
        store.keep(replace(record, problem=Problem(m, 1, 1), config=config, measurement=measurement))
        print(m, median, flush=True)
"""


def _writer(store: Store, first: int, count: int) -> subprocess.Popen[str]:
    example = store.root.parent / "example.json"
    example.write_bytes(dumps(make(1.0)))
    command = [sys.executable, "-c", WRITER, str(store.root), str(example), str(first), str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _start(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.stdin.write("go\n")
    process.stdin.flush()


def test_four_writers_lose_nothing(store: Store) -> None:
    writers = [_writer(store, first, 50) for first in (100, 200, 300, 400)]
    for writer in writers:
        _start(writer)
    lines = [line.split() for writer in writers for line in writer.communicate(timeout=60)[0].splitlines()]
    assert [writer.returncode for writer in writers] == [0] * 4
    found = {record.problem.m: record.median_us for record in store.records()}
    assert found.keys() == {1} | {first + step for first in (100, 200, 300, 400) for step in range(50)}
    told = [float(median) for m, median in lines if m == "1"]
    assert len(told) == 200
    assert found[1] == min(told)
    assert not list((store.root / "records").glob(".*"))


def test_killed_writers_lose_nothing(store: Store) -> None:
    chance = random.Random(1)
    told: set[int] = set()
    for number in range(15):
        first = 1000 * (number + 1)
        with _writer(store, first, 1000) as writer:
            _start(writer)
            time.sleep(chance.uniform(0.0, 0.15))
            writer.send_signal(signal.SIGKILL)
            assert writer.stdout is not None
            # The last line may be half a line; what was told in full was kept.
            told |= {int(line.split()[0]) for line in writer.stdout if line.endswith("\n") and line.split()[0] != "1"}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert told <= {record.problem.m for record in store.records()}
    assert len(told) > 15
    for path in (store.root / "records").glob("[!.]*.json"):
        loads(path.read_bytes())
    # The next writer of a record takes away what a killed one left of it.
    sizes = [1, *(1000 * (number + 1) + step for number in range(15) for step in range(1000))]
    problems = {key_digest(DEVICE, problem): problem for problem in (Problem(m, 1, 1) for m in sizes)}
    for path in (store.root / "records").glob(".*"):
        assert store.keep(make(0.1, problems[path.name[1:65]]))
        assert not path.exists()
