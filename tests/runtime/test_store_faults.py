"""The store on disks that refuse, with writers that fight or are killed, and with damaged or foreign files."""

import errno
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from stored import CONFIGS, DEVICE, INFO, PROBLEM, make, path_of, ship, signed, unranked
from tilewright.codegen.errors import StoreError, StoreVersionError
from tilewright.codegen.problem import Problem
from tilewright.runtime.store.codec import SCHEMA, dumps, key_digest, loads
from tilewright.runtime.store.record import Record, Status
from tilewright.runtime.store.store import Store, StoreWarning


@pytest.fixture
def store(tmp_path: Path) -> Store:
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    return Store(tmp_path / "store", shipped)


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
        assert store.lookup(INFO, PROBLEM, unranked).origin == "default"
    assert (tmp_path / "file").read_text() == "x"


def test_a_lock_held_for_ever_is_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from filelock import FileLock
    from tilewright.runtime import file_lock

    monkeypatch.setattr(file_lock, "LOCK_SECONDS", 0.05)
    store.keep(make(10.0))
    with (
        FileLock(store.root / "locks" / f"{path_of(store).stem}.lock"),
        pytest.raises(StoreError, match="another process holds its lock"),
    ):
        store.keep(make(5.0))
    assert store.best(DEVICE, PROBLEM) == make(10.0)


# --- other processes -------------------------------------------------------------------------------------------

WRITERS = """
import itertools, os, random, signal, sys, time
from dataclasses import replace
from pathlib import Path
from tilewright.codegen.families import family_named
from tilewright.codegen.problem import Problem
from tilewright.runtime.store.codec import loads
from tilewright.runtime.store.store import Store

root, example, plan = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
store = Store(root, root / "none")
record = loads(example.read_bytes())
naive = family_named("naive")
values = itertools.product(*(leaf.choices for leaf in naive.leaves()))
configs = [naive.build(dict(zip((leaf.name for leaf in naive.leaves()), chosen))) for chosen in values]

def start(first, count):
    if (process := os.fork()):
        return process
    for step in range(count):
        # All writers fight over problem 1; each has problems of its own beside.
        for m, median in ((1, 1000.0 - (step * 7 + first) % 1000), (first + step, 5.0)):
            config = configs[(first + step) % len(configs)]
            measurement = replace(record.measurement, samples_us=(median,) * 50, median_us=median)
            store.keep(replace(record, problem=Problem(m, 1, 1), config=config, measurement=measurement))
            os.write(1, f"{m} {median}\\n".encode())
    os._exit(0)

if plan == "together":
    writers = [start(first, 50) for first in (100, 200, 300, 400)]
    sys.exit(sum(os.waitpid(writer, 0)[1] for writer in writers))
chance = random.Random(1)
for number in range(1, 16):
    before = os.fstat(1).st_size
    writer = start(1000 * number, 1000)
    while os.fstat(1).st_size == before:  # a busy processor may let it wait
        time.sleep(0.001)
    time.sleep(chance.uniform(0.01, 0.15))
    os.kill(writer, signal.SIGKILL)
    assert os.waitpid(writer, 0)[1] == signal.SIGKILL
"""


def _run_writers(store: Store, plan: str) -> list[tuple[int, float]]:
    """Sizes and times of the records that writers kept. Meanwhile a reader without a lock must meet no damaged file."""
    example, log = store.root.parent / "example.json", store.root.parent / "log"
    example.write_bytes(dumps(make(1.0)))
    command = [sys.executable, "-c", WRITERS, str(store.root), str(example), plan]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out) as process, warnings.catch_warnings():
        warnings.simplefilter("error")
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            list(store.records())
        process.kill()
    assert process.returncode == 0
    return [(int(m), float(median)) for m, median in map(str.split, log.read_text().splitlines())]


def test_four_writers_lose_nothing(store: Store) -> None:
    written = _run_writers(store, "together")
    assert len(written) == 400
    medians_us = {record.problem.m: record.median_us for record in store.records()}
    assert medians_us.keys() == {1} | {first + step for first in (100, 200, 300, 400) for step in range(50)}
    assert medians_us[1] == min(median for m, median in written if m == 1)
    assert not list((store.root / "records").glob(".*"))


def test_killed_writers_lose_nothing(store: Store) -> None:
    written = _run_writers(store, "killed")
    assert len({m // 1000 for m, _ in written}) > 10
    medians_us = {record.problem.m: record.median_us for record in store.records()}
    assert {m for m, _ in written} <= medians_us.keys()
    assert medians_us[1] <= min(median for m, median in written if m == 1)
    for path in (store.root / "records").glob("[!.]*"):
        loads(path.read_bytes())
    # The next writer of a record removes the files that a killed one left.
    sizes = [1, *(1000 * number + step for number in range(1, 16) for step in range(1000))]
    problems = {key_digest(DEVICE, problem): problem for problem in (Problem(m, 1, 1) for m in sizes)}
    for path in (store.root / "records").glob(".*"):
        assert store.keep(make(0.1, problems[path.name[1:65]]))
        assert not path.exists()


# ---- Files that are damaged, newer, foreign, or no files at all -------------------------------------------------


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


@pytest.mark.fast
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_set_aside_and_the_next_layer_used(store: Store, damage: str) -> None:
    ship(store, make(20.0, config=CONFIGS[3]))
    store.keep(make(10.0))
    path = path_of(store)
    path.write_bytes(bad := DAMAGE[damage](path.read_bytes()))
    with pytest.warns(StoreWarning, match="set aside") as caught:
        lookup = store.lookup(INFO, PROBLEM, unranked)
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)
    assert lookup.record == make(20.0, config=CONFIGS[3])
    assert not path.exists()
    assert path.with_name(path.name + ".corrupt").read_bytes() == bad
    assert store.keep(make(30.0))


@pytest.mark.fast
def test_an_earlier_corrupt_file_is_not_overwritten(store: Store) -> None:
    for text in (b"one", b"two", b"three"):
        store.keep(make(10.0))
        path_of(store).write_bytes(text)
        with pytest.warns(StoreWarning):
            assert store.best(DEVICE, PROBLEM) is None
    contents = sorted(path.read_bytes() for path in path_of(store).parent.glob("*.corrupt"))
    assert contents == [b"one", b"three", b"two"]


@pytest.mark.fast
def test_a_damaged_file_in_a_listing_hides_no_other(store: Store) -> None:
    other = make(1.0, Problem(8, 8, 8))
    store.keep(make(10.0))
    store.keep(other)
    path_of(store).write_bytes(b"")
    with pytest.warns(StoreWarning):
        assert list(store.records()) == [other]
    assert list(store.records()) == [other]


@pytest.mark.fast
def test_a_writer_sets_a_damaged_file_aside_too(store: Store) -> None:
    store.keep(make(10.0))
    path_of(store).write_bytes(b"{}")
    with pytest.warns(StoreWarning):
        assert store.keep(make(99.0))
    assert store.best(DEVICE, PROBLEM) == make(99.0)
    assert path_of(store).with_name(path_of(store).name + ".corrupt").read_bytes() == b"{}"


@pytest.mark.fast
def test_a_newer_schema_is_left_untouched(store: Store) -> None:
    store.keep(make(10.0))
    other = make(1.0, Problem(8, 8, 8))
    store.keep(other)
    path = path_of(store)
    path.write_bytes(newer := _changed(path.read_bytes(), schema=SCHEMA + 1, record={"what": "ever"}))
    for action in (
        lambda: store.best(DEVICE, PROBLEM),
        lambda: store.lookup(INFO, PROBLEM, unranked),
        lambda: store.keep(make(1.0)),
        lambda: store.keep(make(1.0), replace=True),
    ):
        with pytest.raises(StoreVersionError, match=path.name):
            action()
    with pytest.warns(StoreWarning, match="newer tilewright"):
        assert list(store.records()) == [other]
    assert path.read_bytes() == newer
    assert len(list(path.parent.iterdir())) == 2


FORMAT_1 = "a record of format 1, which this version does not read: tune the shape again, or use it with the version"
UNREAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown family": ({"config": {"family": "fused", "warp_m": 4}}, "of no known family: 'fused'"),
    "older format": ({"schema": 1, "config": {"family": "simt", "values": [["stage", 2]]}}, FORMAT_1),
}
"""Changes that make a record unreadable for this version, and the words of the warning."""
unread = pytest.mark.parametrize("kind", UNREAD)


def _unread(store: Store, kind: str) -> bytes:
    store.keep(make(10.0))
    document, changes = json.loads(path_of(store).read_bytes()), UNREAD[kind][0]
    document["record"]["config"] = changes["config"]
    path_of(store).write_bytes(data := signed(document | {"schema": changes.get("schema", document["schema"])}))
    return data


@pytest.mark.fast
@unread
def test_a_record_of_another_version_is_passed_over_and_left_alone(store: Store, kind: str) -> None:
    ship(store, make(20.0, config=CONFIGS[3]))
    data = _unread(store, kind)
    seen = set[str]()
    for read in (lambda: store.best(DEVICE, PROBLEM), lambda: next(store.records())):
        with pytest.warns(StoreWarning, match=UNREAD[kind][1]) as caught:
            assert read() == make(20.0, config=CONFIGS[3])
        seen |= {str(each.message) for each in caught}
    (text,) = seen  # so that Python prints it once
    assert text.startswith(f"{path_of(store)}: ")
    assert "\n" not in text
    assert path_of(store).read_bytes() == data
    assert len(list(path_of(store).parent.iterdir())) == 1


@pytest.mark.fast
def test_users_are_warned_once_of_one_fault(store: Store) -> None:
    store.keep(make(10.0))
    path = path_of(store)
    path.write_bytes(signed(json.loads(path.read_bytes().replace(b'"tiled"', b'"tinted"'))))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        for _ in range(2):
            store.lookup(INFO, PROBLEM, unranked)
            list(store.records())
    assert [str(each.message).endswith("passed over") for each in seen] == [True]


@pytest.mark.fast
@unread
def test_an_unread_record_is_not_lost_when_this_version_keeps_its_own(store: Store, kind: str) -> None:
    data = _unread(store, kind)
    aside = path_of(store).with_name(path_of(store).name + ".unknown")
    with pytest.warns(StoreWarning, match=f"does not read; set aside as {aside.name}$"):
        assert store.keep(make(50.0))
    assert store.best(DEVICE, PROBLEM) == make(50.0)
    assert aside.read_bytes() == data


@pytest.mark.fast
@unread
def test_an_unread_record_stays_on_a_full_disk(store: Store, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _unread(store, kind)

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match="No space left on device"):
        store.keep(make(50.0))
    assert [path.read_bytes() for path in path_of(store).parent.iterdir()] == [data]
    assert path_of(store).read_bytes() == data


# --- links and names -------------------------------------------------------------------------------------------


@pytest.mark.fast
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


@pytest.mark.fast
def test_a_link_in_place_of_a_lock_is_never_followed(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (store.root / "locks").mkdir(parents=True)
    (store.root / "locks" / f"{path_of(store).stem}.lock").symlink_to(target)
    with pytest.raises(StoreError):
        store.keep(make(10.0))
    assert target.read_text() == "precious"


@pytest.mark.fast
@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_folder_or_pipe_in_place_of_a_record_does_not_block(store: Store, kind: str) -> None:
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


@pytest.mark.fast
@pytest.mark.parametrize("key", HOSTILE)
def test_hostile_device_keys_stay_inside(store: Store, key: str, tmp_path: Path) -> None:
    record = make(10.0, device=key)
    assert store.keep(record)
    assert store.best(key, PROBLEM) == record
    assert [record for record in store.records() if record.device == key] == [record]
    assert path_of(store, device=key).is_file()
    outside = [path for path in tmp_path.rglob("*") if store.root not in (path, *path.parents)]
    assert outside == [tmp_path / "shipped"]


@pytest.mark.fast
def test_a_shipped_folder_is_found_by_name_not_by_path(store: Store) -> None:
    ship(store, make(1.0, device="../nvidia-h200"))
    assert store.best("../nvidia-h200", PROBLEM) is None
    assert store.best(f"../shipped/{DEVICE}", PROBLEM) is None
    assert store.best("", PROBLEM) is None
