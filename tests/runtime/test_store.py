"""The store: the records that it keeps, its layers, and the order of look-ups."""

import errno
import os
import shutil
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from stored import CONFIGS, DEVICE, INFO, PROBLEM, make, path_of, ship
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.errors import StoreError
from tilewright.codegen.families import default_config
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.reading import read_plain
from tilewright.runtime import file_lock
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.runtime.store import store as store_module
from tilewright.runtime.store.codec import of_line
from tilewright.runtime.store.lookup import LookupResult
from tilewright.runtime.store.record import FIRST_USE, Record, Status
from tilewright.runtime.store.store import Store, StoreWarning
from tilewright.tuner.choose.shortlist import look_up
from variants import variant

pytestmark = pytest.mark.fast


@pytest.fixture
def store(tmp_path: Path) -> Store:
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    return Store(tmp_path / "store", shipped)


def test_a_stored_record_is_read_by_the_next_store(store: Store) -> None:
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
    assert store.best(DEVICE, PROBLEM) == make(12.0)


def test_an_outdated_one_can_be_replaced_by_a_slower_one(store: Store) -> None:
    store.keep(make(10.0))
    assert store.keep(make(12.0, config=CONFIGS[1]), replace=True)
    assert store.best(DEVICE, PROBLEM) == make(12.0, config=CONFIGS[1])


def test_a_record_that_lost_a_duel_gives_way_whatever_its_time(store: Store) -> None:
    store.keep(make(10.0))
    assert not store.keep(make(12.0, config=CONFIGS[1]), beaten=[CONFIGS[2]])
    assert store.keep(make(12.0, config=CONFIGS[1]), beaten=[CONFIGS[2], CONFIGS[0]])
    assert store.best(DEVICE, PROBLEM) == make(12.0, config=CONFIGS[1])


def test_a_record_is_forgotten(store: Store) -> None:
    other = Problem(5, 6, 7)
    assert not store.forget(DEVICE, PROBLEM)
    assert not store.root.exists()  # no folder is made to forget nothing
    ship(store, make(20.0, config=CONFIGS[1]))
    store.keep(make(10.0))
    store.keep(make(1.0, other))
    assert store.best(DEVICE, PROBLEM) == make(10.0)
    assert store.forget(DEVICE, PROBLEM)
    assert store.best(DEVICE, PROBLEM) == make(20.0, config=CONFIGS[1])  # what ships stays
    assert store.both()[0] == (make(1.0, other),)
    assert not store.forget(DEVICE, PROBLEM)


def test_no_record_is_removed_while_another_process_writes_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_lock, "LOCK_SECONDS", 0.05)
    store.keep(make(10.0))
    lock = FileLock(store.root / "locks" / f"{path_of(store).stem}.lock")
    with lock, pytest.raises(StoreError, match="another process holds its lock"):
        store.forget(DEVICE, PROBLEM)
    assert store.best(DEVICE, PROBLEM) == make(10.0)
    assert store.forget(DEVICE, PROBLEM)


def test_a_record_that_cannot_be_removed_is_an_error_in_one_line(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    store.keep(make(10.0))
    monkeypatch.setattr(Path, "unlink", denied)
    with pytest.raises(StoreError, match=rf"cannot remove {path_of(store)}: Permission denied"):
        store.forget(DEVICE, PROBLEM)


def test_a_failure_is_not_kept(store: Store) -> None:
    failed = Record(PROBLEM, DEVICE, CONFIGS[0], Status.TIMEOUT, "took 10 s")
    assert not store.keep(failed)
    assert not store.root.exists()


def test_a_record_that_could_not_be_read_again_is_not_written(store: Store) -> None:
    store.keep(make(10.0))
    with pytest.raises(StoreError):
        store.keep(replace(make(1.0), vendor_us=float("nan")))
    with pytest.raises(StoreError, match="too large"):
        store.keep(replace(make(1.0), reason="x" * (1 << 20)))
    assert store.best(DEVICE, PROBLEM) == make(10.0)


# --- layers and look-up ----------------------------------------------------------------------------------------


def test_the_users_record_counts_unless_the_shipped_one_is_much_faster(store: Store) -> None:
    """The two were measured on different GPUs, and the user's tuning had the shipped one in its duel."""
    shipped = make(10.0, config=CONFIGS[1])
    ship(store, shipped)
    assert store.best(DEVICE, PROBLEM) == shipped
    store.keep(make(11.01))
    assert store.best(DEVICE, PROBLEM) == shipped
    assert list(store.records()) == [shipped]
    store.keep(make(10.99))
    assert store.best(DEVICE, PROBLEM) == make(10.99)
    assert list(store.records()) == [make(10.99)]
    assert store.both() == ((make(10.99),), (shipped,))


def test_only_lines_of_the_problem_are_read_of_shipped_records(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """To read all lines takes as long as hundreds of products."""
    for record in (make(12.0), make(10.0), make(11.0, problem=Problem(9, 9, 9))):
        ship(store, record)
    read = list[bytes]()

    def counted(line: bytes) -> Record:
        read.append(line)
        return of_line(line)

    monkeypatch.setattr(store_module, "of_line", counted)
    assert store.best(DEVICE, PROBLEM) == make(10.0)
    assert len(read) == 2
    assert store.best(DEVICE, Problem(8, 9, 9)) is None
    assert store.best(DEVICE, Problem(9, 9, 9)) == make(11.0, problem=Problem(9, 9, 9))
    assert len(read) == 3


def test_a_record_of_a_first_use_counts_only_if_it_is_faster(store: Store) -> None:
    shipped = make(10.0, config=CONFIGS[1])
    ship(store, shipped)
    store.keep(replace(make(10.01), effort=FIRST_USE))
    assert store.best(DEVICE, PROBLEM) == shipped
    assert list(store.records()) == [shipped]


def test_records_of_one_device_and_of_all(store: Store) -> None:
    cube, tall = Problem(64, 64, 64), Problem(128, 64, 64)
    for record in (make(3.0, tall), make(2.0, cube), make(5.0, cube, device="host-x"), make(4.0, cube, CONFIGS[1])):
        store.keep(record)
    ship(store, make(7.0, PROBLEM))
    ship(store, make(8.0, PROBLEM, device="amd-x"), "amd-x")
    mine = [make(2.0, cube), make(3.0, tall), make(7.0, PROBLEM)]
    assert [record for record in store.records() if record.device == DEVICE] == mine
    assert list(store.records()) == [make(8.0, PROBLEM, device="amd-x"), make(5.0, cube, device="host-x"), *mine]
    assert [record for record in store.records() if record.device == "nothing"] == []


def test_the_exact_record_then_the_ranking_then_the_default(store: Store) -> None:
    seen: list[tuple[Record, ...]] = []

    def ranking(problem: Problem, info: DeviceInfo, records: tuple[Record, ...]) -> LookupResult | None:
        seen.append(records)
        return LookupResult(records[0].config, "first") if records else None

    result = store.lookup(INFO, PROBLEM, ranking)
    assert (result.origin, result.config, result.record) == ("default", default_config(PROBLEM, INFO), None)
    records = make(5.0, Problem(64, 64, 64), CONFIGS[1], "another"), make(1.0, Problem(64, 64, 64), CONFIGS[0])
    for record in records:
        store.keep(record)
    assert store.lookup(INFO, PROBLEM, ranking) == LookupResult(CONFIGS[1], "first")
    assert seen == [(), records]
    for exact in (CONFIGS[2], variant("tiled:32")):
        store.keep(make(9.0, PROBLEM, exact), replace=True)
        assert store.lookup(INFO, PROBLEM, ranking) == LookupResult(exact, "exact", make(9.0, PROBLEM, exact))
    store.keep(make(9.0, PROBLEM, variant("dmma")), replace=True)  # it cannot serve float
    assert store.lookup(INFO, PROBLEM, ranking).origin == "first"


def test_another_device_type_or_transpose_is_never_nearest(store: Store) -> None:
    store.keep(make(1.0, replace(PROBLEM, m=1000), device="nvidia-h100"))
    store.keep(make(1.0, replace(PROBLEM, m=1000, dtype=DType.DOUBLE)))
    store.keep(make(1.0, replace(PROBLEM, m=1000, trans_a=True)))
    store.keep(make(1.0, replace(PROBLEM, m=1000, trans_b=True)))
    assert store.lookup(INFO, PROBLEM, look_up).origin == "predicted"


def test_a_config_that_cannot_serve_is_passed_over(store: Store) -> None:
    store.keep(make(1.0, Problem(1024, 1024, 1024), variant("simt:128x128x16,thread=8x8,load=cp_async")))
    store.keep(make(1.0, Problem(64, 64, 64), CONFIGS[1]))
    older = replace(INFO, arch=ARCHES["sm_75"])  # has no cp.async
    for m, info, origin in ((1025, INFO, "1024x1024x1024"), (1025, older, "64x64x64"), (0, older, "64x64x64")):
        assert store.lookup(info, Problem(m, 1024, 1024), look_up).taken_from == origin


# --- records that were read before ------------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read, while every file counts as settled."""
    names: list[str] = []

    def noted(path: Path, limit_bytes: int) -> bytes:
        names.append(path.name)
        return read_plain(path, limit_bytes)

    monkeypatch.setattr(store_module, "read_plain", noted)
    monkeypatch.setattr(store_module, "_SETTLED_NS", -(10**12))
    return names


def test_files_are_read_once_by_all_stores_of_a_process(store: Store, reads: list[str]) -> None:
    problems = [Problem(m, 64, 64) for m in (32, 64, 96)]
    for problem in problems:
        store.keep(make(10.0, problem))
    assert len(list(Store(store.root).records())) > 3
    reads.clear()
    for m in (33, 65):
        Store(store.root).lookup(INFO, Problem(m, 64, 64), look_up)
    assert [Store(store.root).best(DEVICE, problem) for problem in problems] == [make(10.0, each) for each in problems]
    assert reads == []


@pytest.mark.usefixtures("reads")
def test_files_of_a_large_store_are_read_once_too(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    monkeypatch.setattr(store_module, "_read_anew", lambda path: (read.append(path), make(10.0))[1])
    folder = store.root / "records"
    folder.mkdir(parents=True)
    for number in range(5000):
        (folder / f"{number:064x}.json").touch()
    for _ in range(2):
        list(store.records())
    assert len(read) == 5000


def test_a_look_up_of_another_shape_looks_at_no_file_until_one_is_written(
    store: Store, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[object] = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: (listed.append(path), listdir(path))[1])

    def taken_from(m: int) -> str:
        return Store(store.root).lookup(INFO, Problem(m, 64, 64), look_up).taken_from

    store.keep(make(10.0, Problem(32, 64, 64)))
    assert taken_from(33) == "32x64x64"
    listed.clear()
    assert [taken_from(m) for m in (33, 34, 36)] == ["32x64x64"] * 3
    assert listed == []
    time.sleep(0.02)  # times of files are coarse
    store.keep(make(10.0, Problem(37, 64, 64)))
    assert taken_from(36) == "37x64x64"
    assert len(listed) == 1
    path_of(store, Problem(37, 64, 64)).unlink()
    assert taken_from(36) == "32x64x64"
    shutil.rmtree(store.root)
    assert taken_from(36) != "32x64x64"


def test_a_file_that_changed_is_read_again(store: Store, reads: list[str]) -> None:
    store.keep(make(10.0))
    assert store.best(DEVICE, PROBLEM) == make(10.0)
    path = path_of(store)
    assert store.keep(make(9.0))  # another file
    assert (store.best(DEVICE, PROBLEM), next(iter(store.records()))) == (make(9.0), make(9.0))
    data = path.read_bytes()
    time.sleep(0.02)
    path.write_bytes(data.replace(b'"median_us"', b'"median_uS"'))  # in place, and no longer a record
    with pytest.warns(StoreWarning, match="is damaged"):
        assert store.best(DEVICE, PROBLEM) is None
    assert list(store.records()) == []
    path.write_bytes(data)
    assert [record.median_us for record in store.records()] == [9.0]
    path.unlink()
    assert list(store.records()) == []


def test_a_file_that_was_just_written_may_change_within_its_time(
    store: Store, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_SETTLED_NS", 10**12)
    store.keep(make(10.0))
    reads.clear()
    for _ in range(2):
        assert store.best(DEVICE, PROBLEM) == make(10.0)
    assert len(reads) == 2


# --- shipped records -------------------------------------------------------------------------------------------


def test_an_unusable_shipped_record_is_passed_over(store: Store) -> None:
    with ship(store, make(5.0)).open("ab") as file:
        file.write(b'{"problem":{"m":1024,"n":768,"k":512},\n')
    ship(store, make(3.0, device="other"))
    with pytest.warns(StoreWarning) as caught:
        assert store.best(DEVICE, PROBLEM) == make(5.0)
    first, second = (str(each.message) for each in caught)
    assert "nvidia-h200.jsonl, line 2: not JSON" in first
    assert "nvidia-h200.jsonl, line 3: of another device" in second
    assert store.best(DEVICE, PROBLEM) == make(5.0)  # it warns once


def test_the_package_ships_nothing_damaged() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(Store(Path("/nonexistent")).records())
