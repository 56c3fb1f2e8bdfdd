"""Records that name what families lost since: read with what stands for it, and measured before they are believed."""

import errno
import gzip
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tilewright
from commands import Run, caller
from stored import make, path_of, ship, signed
from tilewright.cli.options import untuned
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.errors import ConfigError, StoreError
from tilewright.codegen.families import families, parse
from tilewright.codegen.legality import serves
from tilewright.codegen.problem import Problem
from tilewright.codegen.removed import same_today, without_removed
from tilewright.codegen.render import render
from tilewright.runtime.check.verify import Verdict, Verifier
from tilewright.runtime.device.detect import choose
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.store.codec import dumps, key_digest, loads
from tilewright.runtime.store.record import Record
from tilewright.runtime.store.store import Store
from tilewright.runtime.store.versions import versions_of
from tilewright.tuner.search.nearest import nearest

H200 = KNOWN["nvidia-h200"]
BEFORE: dict[str, bytes] = {
    each["name"]: each["document"].encode()
    for each in json.loads(gzip.decompress((Path(__file__).parents[1] / "data/schema2.json.gz").read_bytes()))
}
"""Documents as the version wrote them that had these parameters."""
AHEAD, MIN_CTAS = "fragments=ahead", "min_ctas=2"
TODAY = {
    "35x700x2048-double": (AHEAD, "dmma:48x16x32,warp=16,slices=2,stages=5,vec=2,split_k=6"),
    # A slice has one step of k in a tile, or a CTA several tiles of C and no registers left.
    "4096x16x4096-double": (
        AHEAD,
        "dmma:32x16x64,warp=32x16,slices=8,stages=5,vec=2,fragments=single,l2_prefetch,edge=exact",
    ),
    "8192x8192x16-double": (
        AHEAD,
        "dmma:64x128x16,warp=32x64,vec=2,fragments=single,persistent=4,shared,evict_first,raster=4,edge=exact",
    ),
    "700x700x700-double": (MIN_CTAS, "dmma:64x64x16,stages=4,vec=2,split_k=2,reduce=cluster"),
    "1x4096x4096-float": (
        MIN_CTAS,
        "skinny:1x4x4,lanes_k=4,warps=1x8,load=cp_async,stages=4,vec_large=4,resident_k=4096,l2_prefetch,edge=exact",
    ),
    "1x4096x4096-double": (
        MIN_CTAS,
        "skinny:1x4x1,lanes_k=4,warps=1x16,load=cp_async,stages=4,vec_large=2,resident_k=4096,l2_prefetch,edge=exact",
    ),
    # These name min_ctas=1, which did nothing.
    "1024x768x512-double": ("", "dmma:96x64x16,warp=48x32,stages=4,vec=2"),
    "64x4096x4096-double": ("", "dmma:64x64x32,slices=2,stages=4,vec=2,split_k=2,reduce=cluster,edge=exact"),
}
"""What each names that is gone, and its config today."""


def field(name: str, field_name: str) -> Any:
    return json.loads(BEFORE[name])["record"][field_name]


@pytest.mark.parametrize("name", BEFORE)
def test_a_record_of_the_version_before_is_read(name: str) -> None:
    record, (removed, text) = loads(BEFORE[name]), TODAY[name]
    assert (record.removed, str(record.config)) == (removed, text)
    assert serves(record.config, record.problem, ARCHES["sm_90a"])
    versions = [tuple(pair) for pair in field(name, "versions")]
    assert list(record.versions) == [*versions, *([("removed", removed)] if removed else [])]
    assert record.measurement is not None
    assert list(record.measurement.samples_us) == field(name, "measurement")["samples_us"]
    assert loads(dumps(record)) == record


@pytest.fixture
def before(tmp_path: Path) -> Store:
    """A user's store, as the version before left it."""
    store = Store(tmp_path / "store", tmp_path / "none")
    store.make()
    (store.root / "records").mkdir()
    for document in BEFORE.values():
        record = loads(document)
        path_of(store, record.problem, record.device).write_bytes(document)
    return store


def test_a_store_of_the_version_before_is_read_and_stays_as_it_is(before: Store) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = list(before.records())
    assert sorted(str(record.config) for record in found) == sorted(text for _, text in TODAY.values())
    for document in BEFORE.values():
        record = loads(document)
        assert before.best(record.device, record.problem) == record
        served = before.lookup(H200, record.problem, nearest).served(record.problem, H200)
        assert served.config == record.config
        # An emitted file does not tell times of another kernel.
        assert (served.recorded_us, served.error == 0) == ((0.0, True) if record.removed else (record.median_us, False))
        assert path_of(before, record.problem, record.device).read_bytes() == document


def test_what_replaces_it_sets_the_measured_one_aside(before: Store) -> None:
    document = BEFORE["700x700x700-double"]
    record = loads(document)
    path = path_of(before, record.problem, record.device)
    measured = make(2 * record.median_us, record.problem, parse("tiled:16"))
    assert before.keep(measured)  # though it is slower than the kernel that is gone
    assert path.with_name(path.name + ".removed").read_bytes() == document
    assert before.best(record.device, record.problem) == measured
    assert not before.keep(record)


def test_a_full_disk_leaves_it_where_it_was(before: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    document = BEFORE["700x700x700-double"]
    record = loads(document)

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    files = sorted((before.root / "records").iterdir())
    with pytest.raises(StoreError, match="No space left on device"):
        before.keep(make(2 * record.median_us, record.problem, parse("tiled:16")))
    assert sorted((before.root / "records").iterdir()) == files
    assert before.best(record.device, record.problem) == record


def test_what_was_measured_comes_before_a_shipped_one_that_was_not(tmp_path: Path) -> None:
    (tmp_path / "shipped").mkdir()
    store, record = Store(tmp_path / "store", tmp_path / "shipped"), loads(BEFORE["4096x16x4096-double"])
    ship(store, record)
    assert store.best(record.device, record.problem) == record
    measured = replace(make(1.1 * record.median_us, record.problem, record.config), versions=(("generator", "today"),))
    assert store.keep(measured)
    assert list(store.records()) == [store.best(record.device, record.problem)] == [measured]


def test_listings_tell_no_times_of_another_kernel(
    before: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tilewright.runtime.store.store.resources", SimpleNamespace(files=lambda package: tmp_path))
    (tmp_path / "tuned").mkdir()  # nothing ships
    run: Run = caller(capsys)
    lines = run("show", "--store", str(before.root), "--shape", "700x700x700", "--dtype", "double").out.splitlines()
    (line,) = (line for line in lines if "700x700x700" in line)
    assert line.split()[:4] == ["700x700x700", "double", "nn", "dmma:64x64x16,stages=4,vec=2,split_k=2,reduce=cluster"]
    rows = run("show", "--store", str(before.root), "--shape", "700x700x700", "--dtype", "double", "--csv").out
    assert rows.splitlines()[1].startswith("nvidia-h200,700x700x700,double,nn,ieee,,,,,")
    shapes = [loads(document).problem for document in BEFORE.values()]
    assert untuned(shapes, H200, before.root) == [each for each, gone in zip(shapes, TODAY.values()) if gone[0]]
    options = ("--device-key", "nvidia-h200", "--shape", "700x700x700", "--dtype", "double")
    told = run("explain", "--store", str(before.root), *options).out
    assert "not measured since min_ctas=2 was removed; its first use does that" in told
    assert "measured: " not in told


# ---- At the first use, which the processor can tell as well ---------------------------------------------------------

PROBLEM = Problem.parse("40x48x32", "double")


def stored(values: dict[str, Any]) -> tuple[Path, bytes]:
    """A record of the processor in the test's own store, as the version before wrote it."""
    tilewright.clear()
    record = replace(
        make(5.0, PROBLEM, parse("dmma:16x16x16,warp=16"), choose("host").info.key),
        versions=(("compiler", "old"), ("driver", "old"), ("generator", "old")),
        digest="old",
        vendor_us=10.0,
        ratio_vendor=2.0,
        ratio_interval=(1.9, 2.1),
    )
    document = json.loads(dumps(record))
    document["record"]["config"].update(values)
    path = Store().root / "records" / f"{key_digest(record.device, PROBLEM)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(signed(document))
    return path, path.read_bytes()


def load() -> Any:
    return tilewright.load(40, 48, 32, dtype="double", device="host")


def kept() -> Record:
    record = Store().best(choose("host").info.key, PROBLEM)
    assert record is not None
    return record


@pytest.mark.parametrize("values", [{"fragments": "ahead", "min_ctas": 1}, {"min_ctas": 3}, {"min_ctas": 1}])
def test_it_is_checked_and_measured_once(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    path, document = stored(values)
    same = values == {"min_ctas": 1}
    assert bool(kept().removed) is not same
    kernel = load()
    assert (kernel.origin, str(kernel.config)) == ("exact", "dmma:16x16x16,warp=16")
    record = kept()
    assert (record.versions, record.removed) == (versions_of(kernel.device, HostDevice().compiler), "")
    assert (record.median_us == 5.0) is same
    assert (record.ratio_vendor, record.ratio_interval) == ((2.0, (1.9, 2.1)) if same else (None, None))
    assert (record.digest, record.vendor_us) == (render(PROBLEM, record.config, kernel.device.arch).digest, 10.0)
    aside = path.with_name(path.name + ".removed")
    assert (aside.read_bytes() == document) if not same else not aside.exists()

    tilewright.clear()
    monkeypatch.setattr("tilewright.runtime.product.gemm.Verifier", None)
    assert load().origin == "exact"


def test_one_that_is_wrong_now_stays_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    path, document = stored({"fragments": "ahead"})
    wrong: Callable[..., Verdict] = lambda verifier, kernel: Verdict(kept().accuracy, "error 3 times its bound")  # type: ignore[arg-type] # noqa: E731
    monkeypatch.setattr(Verifier, "check", wrong)
    with pytest.warns(UserWarning, match=r"no longer works here \(error 3 times its bound\)"):
        assert load().origin == "default"
    assert path.read_bytes() == document


# ---- What is no version's --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_ctas": "2\n[bold]"}, "got 'min_ctas'"),
        ({"min_ctas": True}, "got 'min_ctas'"),
        ({"min_ctas": None}, "got 'min_ctas'"),
        ({"fragments": ["ahead"]}, "fragments must be one of double, single"),
        ({"fragments": "behind"}, "fragments must be one of double, single, got 'behind'"),
        ({"fragments": "ahead", "speed": 1}, "got 'speed'"),
    ],
)
def test_other_values_are_refused_as_ever(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loads(stored(values)[1])


def test_of_simt_they_are_not_gone() -> None:
    values = {"min_ctas": 2, "fragments": "single"}
    kind = families()["simt"]
    assert without_removed(kind, values) == ([values], "")
    assert str(same_today(kind, values)) == "simt:64x64x16,fragments=single,min_ctas=2"


def test_a_damaged_problem_beside_it_is_damage() -> None:
    document = json.loads(stored({"fragments": "ahead"})[1])
    document["record"]["problem"]["m"] = "many"
    with pytest.raises(StoreError, match=r"record\.problem\.m must be int"):
        loads(signed(document))
