"""The store: what it keeps, its layers, look-up order and export."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored import CONFIGS, DEVICE, INFO, PROBLEM, make, path_of, ship
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.errors import ConfigError, StoreError
from tilewright.codegen.families import complete, default_config
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime.store.record import Record, Status
from tilewright.runtime.store.store import Store, StoreWarning, distance


@pytest.fixture
def store(tmp_path: Path) -> Store:
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    return Store(tmp_path / "store", shipped)


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
    assert store.lookup(INFO, PROBLEM).origin == "estimated, from 1000x768x512"


def test_the_model_picks_among_what_was_tuned_elsewhere(store: Store) -> None:
    """For a transpose or a GPU without records: the best of all, in its own type, as the shape and the GPU allow."""
    large = "simt:block_m=128,block_n=128,thread_m=8,thread_n=8,block_k=16,cp_async=1"
    store.keep(make(1.0, Problem(4096, 4096, 4096), complete(Config.parse(f"{large},edge=exact,vec_b=4"))))
    store.keep(make(1.0, Problem(64, 64, 64), CONFIGS[0]))
    store.keep(make(1.0, Problem(64, 64, 64, DType.DOUBLE), complete(Config.parse("dmma"))))
    found = store.lookup(INFO, Problem(2048, 2048, 2047, trans_b=True))
    assert (found.origin, found.record) == ("estimated, from 4096x4096x4096", None)
    assert found.config == complete(Config.parse(f"{large},edge=bounds,vec_c=4"))  # stored rows of 2047 elements
    older = replace(INFO, name="Tesla T4", arch=ARCHES["sm_75"])  # has no cp.async
    found = store.lookup(older, Problem(2048, 2048, 2048))
    assert (found.origin, found.config["tile_width"]) == ("estimated, from 64x64x64", 4)
    host = replace(INFO, name="host", arch=ARCHES["host"])
    assert store.lookup(host, Problem(2048, 2048, 2048)).origin == "default"  # the model knows nothing of processors
    assert store.lookup(INFO, Problem(0, 64, 0, trans_a=True)).origin == "default"


def test_exact_edges_give_way_to_guarded_ones(store: Store) -> None:
    exact = complete(Config("tiled", (("tile_width", 32), ("edge", "exact"))))
    guarded = complete(Config("tiled", (("tile_width", 32), ("edge", "bounds"))))
    store.keep(make(1.0, Problem(1024, 1024, 1024), exact))
    store.keep(make(1.0, Problem(64, 64, 64), CONFIGS[1]))
    for m, config in ((2048, exact), (1025, guarded)):
        found = store.lookup(INFO, Problem(m, 1024, 1024))
        assert (found.origin, found.config) == ("nearest 1024x1024x1024", config)


def test_vectors_become_what_the_shape_allows(store: Store) -> None:
    text = "simt:block_m=64,block_n=96,block_k=16,thread_m=8,thread_n=8,cp_async=1,stages=3,edge=bounds"
    store.keep(make(1.0, Problem(1023, 769, 511), complete(Config.parse(text))))
    assert (found := store.lookup(INFO, Problem(1024, 768, 512))).origin == "nearest 1023x769x511"
    assert found.config == complete(Config.parse(f"{text},vec_b=4,vec_c=4"))  # A is turned element by element
    assert store.lookup(INFO, Problem(1024, 766, 512)).config == complete(Config.parse(f"{text},vec_b=2,vec_c=2"))


def test_a_config_that_cannot_serve_is_passed_over(store: Store) -> None:
    double_only = complete(Config.parse("dmma:edge=bounds"))
    store.keep(make(1.0, Problem(1024, 1024, 1024), double_only))
    store.keep(make(1.0, Problem(64, 64, 64), CONFIGS[1]))
    assert store.lookup(INFO, Problem(1025, 1024, 1024)).origin == "nearest 64x64x64"


@given(st.lists(st.integers(0, 2**31 - 1), min_size=6, max_size=6))
def test_any_two_shapes_have_a_distance(sizes: list[int]) -> None:
    (m, n, k), (p, q, r) = sizes[:3], sizes[3:]
    one, other = Problem(m, n, k), Problem(p, q, r)
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
