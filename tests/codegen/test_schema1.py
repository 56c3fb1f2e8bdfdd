"""Records of schema 1, as the version before wrote them: every shipped one means the kernel that it meant then."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.families import family_named
from tilewright.codegen.legality import rejections
from tilewright.codegen.removed import same_today
from tilewright.codegen.schema1 import from_schema_1
from tilewright.runtime.store.codec import dumps, key_digest, loads
from tilewright.runtime.store.store import Store, StoreWarning

pytestmark = pytest.mark.fast

SHIPPED: list[dict[str, Any]] = json.loads(
    gzip.decompress((Path(__file__).parent.parent / "data/schema1.json.gz").read_bytes())
)
"""Documents, and what the version that wrote them launched for them on 132 SMs."""


def _packs_the_last_wave(shipped: dict[str, Any]) -> bool:
    """What version 1 called a tail is a parameter of no family any more, unless it was one CTA a tile."""
    values = dict(json.loads(shipped["document"])["record"]["config"]["values"])
    return values.get("tail", 1) != 1


REMOVED = [each for each in SHIPPED if _packs_the_last_wave(each)]
KEPT = [each for each in SHIPPED if each not in REMOVED]


def test_there_are_72_of_them_and_few_are_gone() -> None:
    assert (len(SHIPPED), len(REMOVED)) == (72, 5)


def removed_since(shipped: dict[str, Any]) -> str:
    """What a document names that was removed after schema 2 was written first."""
    config = json.loads(shipped["document"])["record"]["config"]
    values, family = dict(config["values"]), config["family"]
    held = family in ("dmma", "skinny") and values["min_blocks"] > 1
    told = [f"min_ctas={values['min_blocks']}"] if held else []
    return ", ".join(told + ["fragments=ahead"] * (family == "dmma" and values["prefetch"] == 1))


@pytest.mark.parametrize("shipped", KEPT, ids=lambda each: each["name"])
def test_a_shipped_record_is_launched_as_it_was(shipped: dict[str, Any]) -> None:
    record = loads(shipped["document"].encode())
    problem, config = record.problem, record.config
    launch = config.launch_config(problem, 132)
    assert list(rejections(problem, config, ARCHES["sm_90a"])) == []
    assert (list(launch.grid), list(launch.block)) == (shipped["grid"], shipped["block"])
    assert config.smem_bytes(problem.dtype) == shipped["smem_bytes"]
    assert config.workspace_bytes(problem, 132) == shipped["workspace_bytes"]
    assert list(config.alignment) == shipped["alignment"]
    assert dict(record.versions).get("removed", "") == record.removed == removed_since(shipped)
    again = loads(dumps(record))
    assert again == record
    assert json.loads(dumps(record))["schema"] == 2


@pytest.mark.parametrize("shipped", REMOVED, ids=lambda each: each["name"])
def test_split_k_of_the_last_wave_is_gone_and_told(shipped: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="tail was removed: tune the problem again"):
        loads(shipped["document"].encode())


def test_a_store_of_the_version_before_is_read_and_kept_as_schema_2(tmp_path: Path) -> None:
    store = Store(tmp_path, shipped=tmp_path / "none")
    folder = tmp_path / "records"
    folder.mkdir()
    for each in SHIPPED:
        key = json.loads(each["document"])["key"]
        problem = loads(KEPT[0]["document"].encode()).problem.__class__(**key["problem"])
        (folder / f"{key_digest(key['device'], problem)}.json").write_text(each["document"])
    with pytest.warns(StoreWarning, match="tail was removed"):
        found = list(store.records())
    assert len(found) == len(KEPT)
    first = next(record for record in found if not record.removed)
    assert store.keep(first, replace=True)
    path = folder / f"{key_digest(first.device, first.problem)}.json"
    assert json.loads(path.read_bytes())["schema"] == 2
    assert store.best(first.device, first.problem) == first
    assert len(list(folder.iterdir())) == len(SHIPPED)  # what cannot be read stays where it is


def test_a_record_that_cannot_be_read_is_set_aside_not_overwritten(tmp_path: Path) -> None:
    store = Store(tmp_path, shipped=tmp_path / "none")
    gone, kept = REMOVED[0]["document"], loads(KEPT[0]["document"].encode())
    (tmp_path / "records").mkdir()
    path = tmp_path / "records" / f"{key_digest(kept.device, kept.problem)}.json"
    path.write_text(gone)
    assert store.keep(kept)
    assert path.with_name(path.name + ".unknown").read_text() == gone


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("simt", [("atomic", 1)], "atomic was removed"),
        ("dmma", [("pack_a", 1)], "pack_a was removed from dmma"),
        ("dmma", [("mma_k", 16)], "mma_k must be one of 8, 4, got 16"),
        ("dmma", [("prefetch", 1), ("min_blocks", 2)], "dmma has no min_ctas=2, fragments=ahead any more: tune the pr"),
        ("simt", [("speed", 1)], "simt has no parameter 'speed'"),
        ("fast", [], "family must be one of naive, tiled, simt, skinny, dmma, mma, wgmma, tf32x3, got 'fast'"),
        ("simt", [("split_k", 2), ("stream_k", 132)], "stream_k and split_k exclude each other"),
        ("simt", [("rows_first", 7)], "rows_first must be 0 to 1, got 7"),
    ],
)
def test_what_no_version_can_run_is_refused(family: str, values: list[tuple[str, int]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        same_today(family_named(family), from_schema_1(family, values))
