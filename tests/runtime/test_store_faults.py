"""The store on disks that refuse, and with writers that fight or are killed."""

import errno
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
from stored import DEVICE, INFO, PROBLEM, make, path_of, ship, unranked
from tilewright.codegen.errors import StoreError
from tilewright.codegen.problem import Problem
from tilewright.runtime.store.codec import dumps, key_digest, loads
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
    from tilewright.runtime.store import store as module

    monkeypatch.setattr(module, "_LOCK_SECONDS", 0.05)
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
    """Records that the writers say they kept. Meanwhile a reader without any lock must never meet a damaged file."""
    example, said = store.root.parent / "example.json", store.root.parent / "said"
    example.write_bytes(dumps(make(1.0)))
    command = [sys.executable, "-c", WRITERS, str(store.root), str(example), plan]
    with said.open("wb") as out, subprocess.Popen(command, stdout=out) as process, warnings.catch_warnings():
        warnings.simplefilter("error")
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            list(store.records())
        process.kill()
    assert process.returncode == 0
    return [(int(m), float(median)) for m, median in map(str.split, said.read_text().splitlines())]


def test_four_writers_lose_nothing(store: Store) -> None:
    said = _run_writers(store, "together")
    assert len(said) == 400
    found = {record.problem.m: record.median_us for record in store.records()}
    assert found.keys() == {1} | {first + step for first in (100, 200, 300, 400) for step in range(50)}
    assert found[1] == min(median for m, median in said if m == 1)
    assert not list((store.root / "records").glob(".*"))


def test_killed_writers_lose_nothing(store: Store) -> None:
    said = _run_writers(store, "killed")
    assert len({m // 1000 for m, _ in said}) > 10
    found = {record.problem.m: record.median_us for record in store.records()}
    assert {m for m, _ in said} <= found.keys()
    assert found[1] <= min(median for m, median in said if m == 1)
    for path in (store.root / "records").glob("[!.]*"):
        loads(path.read_bytes())
    # The next writer of a record takes away what a killed one left of it.
    sizes = [1, *(1000 * number + step for number in range(1, 16) for step in range(1000))]
    problems = {key_digest(DEVICE, problem): problem for problem in (Problem(m, 1, 1) for m in sizes)}
    for path in (store.root / "records").glob(".*"):
        assert store.keep(make(0.1, problems[path.name[1:65]]))
        assert not path.exists()
