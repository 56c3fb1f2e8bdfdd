"""`tilewright explain`: of devices that are not here, and of the processor."""

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from commands import Run
from rich.console import Console
from stored import make
from tilewright.cli.explain import show_explained
from tilewright.codegen.families import parse
from tilewright.codegen.problem import DType, Problem
from tilewright.runtime.check.roofline import bounds_of, floor_us
from tilewright.runtime.device.detect import choose
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.runtime.product.vendor import Handover
from tilewright.runtime.store.store import Store
from tilewright.tuner.search.candidates import candidates, read_spaces
from tilewright.tuner.search.explain import explain
from tilewright.tuner.search.ranked import beyond_advice

H200 = KNOWN["nvidia-h200"]
FEW = 'family = "tiled"\n[parameters]\ntile_width = [8, 16]\nunroll = [1]\n'
ON_H200 = ("--device-key", "nvidia-h200")


@pytest.mark.parametrize("info", [H200, KNOWN["nvidia-a10"], choose("host").info], ids=lambda info: info.name)
def test_every_line_fits_and_no_number_is_cut(info: DeviceInfo) -> None:
    found = explain(Problem(1000, 1024, 512, DType.DOUBLE), info, Store())
    assert len(found.left_out) > 12
    for width in (80, 120):
        screen = Console(width=width, file=StringIO(), force_interactive=False)
        show_explained(screen, found)
        assert isinstance(screen.file, StringIO)
        text = screen.file.getvalue()
        assert max(map(len, text.splitlines())) <= width
        words = set(re.split(r"\s+", text))
        assert {f"{each.combinations:,}" for each in found.left_out[:12]} <= words
        assert f"search: {sum(count for _, count in found.tried):,} variants, " in text
        more = sum(each.combinations for each in found.left_out[12:])
        assert f"and {len(found.left_out) - 12} more reasons, {more:,} combinations; --json has all" in text
        assert ("expected us" in text) is not info.arch.is_host
        assert str(found.found.config) in "".join(line.strip() for line in text.splitlines())


@pytest.fixture
def few(tmp_path: Path) -> tuple[str, ...]:
    """An option that leaves little to list."""
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / "tiled.toml").write_text(FEW)
    return ("--spaces", str(tmp_path / "few"))


class TestLookUp:
    """Which record is taken, and why."""

    @pytest.fixture(autouse=True)
    def options(self, few: tuple[str, ...]) -> None:
        self.few = few

    def told(self, run: Run, *arguments: str) -> dict[str, Any]:
        ran = run("explain", *arguments, *self.few, "--json")
        assert ran.status == 0, ran.err
        (found,) = json.loads(ran.out)
        lookup: dict[str, Any] = found["lookup"]
        return lookup

    def test_of_a_tuned_shape(self, run: Run) -> None:
        lookup = self.told(run, "--shape", "4096", *ON_H200)
        assert lookup["origin"] == "exact"
        assert lookup["why"] == "there is a record of exactly this product on nvidia-h200"
        out = " ".join(run("explain", "--shape", "4096", *ON_H200, *self.few).out.split())
        record = Store().best("nvidia-h200", Problem(4096, 4096, 4096))
        assert record is not None
        assert f"measured: {record.median_us:,.0f} us, " in out
        assert re.search(r"x the vendor's library; the model expects [\d,.]+ us", out)

    def test_of_a_near_one(self, run: Run) -> None:
        lookup = self.told(run, "--shape", "1000x1000x1100", *ON_H200)
        assert (lookup["origin"], lookup["from"]) == ("predicted", "1000x1000x1000")
        assert "there is no record of this product on nvidia-h200; of the " in lookup["why"]
        assert "0.14 doublings of m, n and k away" in lookup["why"]

    def test_what_goes_to_the_vendors_library(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.told(run, "--shape", "4096", *ON_H200)["vendor"] is None
        with monkeypatch.context() as patched:
            handover = Handover(12.5, 1.25, "what a test says")
            patched.setattr("tilewright.tuner.search.explain.untimed", lambda info, found: handover)
            vendor = self.told(run, "--shape", "4096", *ON_H200)["vendor"]
            out = " ".join(run("explain", "--shape", "4096", *ON_H200, *self.few).out.split())
        assert vendor == {"expected_us": 12.5, "regret": 1.25, "why": "what a test says"}
        assert "vendor: its library serves instead, unless vendor='never', by what a test says" in out
        at_first_use = "vendor: its library is timed beside this at first use, and serves where it is faster"
        for shape, device, timed in (("1300x900x700", ON_H200, True), ("4096", ON_H200, False), ("24", (), False)):
            out = " ".join(run("explain", "--shape", shape, *device, *self.few).out.split())
            assert (at_first_use in out) == timed

    def test_of_another_device(self, run: Run) -> None:
        lookup = self.told(run, "--shape", "1024", "--arch", "sm_86")
        assert lookup["origin"] == "predicted"
        assert re.search(r"about [\d.]+ us; how good that is was not measured on such a device", lookup["why"])
        why = self.told(run, "--shape", "1300x900x700", "--trans", "tt", *ON_H200)["why"]
        assert re.search(r"takes about [\d.]+ us, and at most [\d.]+ times the best for nine of ten", why)

    def test_of_a_device_with_the_same_sms(self, run: Run) -> None:
        for shape, same in (("1024x768x512", "it is as tuned on"), ("1000x760x500", "as tuned for 1024x768x512 on")):
            lookup = self.told(run, "--shape", shape, "--device-key", "nvidia-h100-80gb-hbm3")
            assert (lookup["origin"], lookup["from"]) == ("predicted", "1024x768x512 on nvidia-h200")
            assert lookup["why"].endswith(f"{same} nvidia-h200, which has the same SMs")

    def test_where_nothing_helps(self, run: Run) -> None:
        lookup = self.told(run, "--shape", "7", "--device", "host")
        assert lookup["origin"] == "default"
        assert lookup["why"].endswith("and none of another that would help")

    def test_where_the_record_of_the_shape_does_not_serve_it(self, run: Run, own_folders: Path) -> None:
        Store().keep(make(1.0, Problem(33, 33, 33), parse("dmma"), "nvidia-a10"))
        lookup = self.told(run, "--shape", "33", "--device-key", "nvidia-a10")
        assert lookup["why"].startswith("the record of this product does not serve it (")
        assert "the tensor cores multiply double) on nvidia-a10, and none of another that would help" in lookup["why"]


def test_the_bound_is_the_roofline() -> None:
    for problem, by in (
        (Problem(4096, 4096, 4096), "arithmetic"),
        (Problem(1, 4096, 4096, DType.DOUBLE), "memory"),
        (Problem(8, 8, 8), "launch"),
    ):
        first, *others = bounds_of(H200, problem)
        assert (first.by, first.us) == (by, floor_us(H200, problem))
        assert all(first.us >= each.us for each in others)


def test_counts_are_those_of_the_search_and_rules_have_their_step(run: Run) -> None:
    problem = Problem(100, 100, 100, DType.DOUBLE)
    (told,) = json.loads(run("explain", "--shape", "100", "--dtype", "double", *ON_H200, "--json").out)
    record = Store().best("nvidia-h200", problem)
    assert record is not None
    found = candidates(problem, H200, read_spaces(), beyond_advice(problem, H200, [record]))
    assert sum(told["variants"].values()) == len(found.configs)
    assert [(each["reason"], each["combinations"]) for each in told["left_out"]] == list(found.pruned)
    steps = {each["reason"]: each["by"] for each in told["left_out"]}
    assert steps["block_m is a multiple of the rows of a warp"] == "legal"
    assert steps["evict-first stores are for a large C of few steps of k, or any of very few"] == "policy"
    assert steps["block tiles can be shared out evenly among the SMs"] == "model"
    expected = [each["expected_us"] for each in told["guesses"]]
    assert expected == sorted(expected)
    guessed = {each["config"]: each["by"] for each in told["guesses"]}
    assert guessed[str(record.config)] == "record"
    assert {*guessed.values()} == {"record", "predicted", "model"}


def test_where_nothing_is_left_out_there_is_no_table_of_it(run: Run, tmp_path: Path) -> None:
    (tmp_path / "naive.toml").write_text('family = "naive"\n[parameters]\nedge = ["bounds"]\n')
    ran = run("explain", "--shape", "64", "--device", "host", "--spaces", str(tmp_path))
    assert (ran.status, ran.err) == (0, "")
    assert "search: 1 variants, 1 naive; 1 of them first" in ran.out
    assert "left out" not in ran.out


def test_a_folder_of_spaces_is_what_would_be_tried(run: Run, few: tuple[str, ...]) -> None:
    (told,) = json.loads(run("explain", "--shape", "64", "--arch", "sm_80", *few, "--json").out)
    assert told["variants"] == {"tiled": 2}


def test_a_device_of_the_users_own_is_named_with_its_architecture(run: Run, few: tuple[str, ...]) -> None:
    Store().keep(make(5.0, Problem(24, 20, 16), device="nvidia-abacus"))
    ran = run("explain", "--shape", "24x20x16", "--device-key", "nvidia-abacus")
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "name its architecture by --arch" in ran.err
    ran = run("explain", "--shape", "24x20x16", "--device-key", "nvidia-abacus", "--arch", "sm_86", *few)
    assert "there is a record of exactly this product on nvidia-abacus" in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "explain needs a shape; name it by --shape"),
        (("--shape", "0x1x1"), "nothing to tune in 0x1x1 float nn"),
        (("--shape", "99999", "--dtype", "double", "--arch", "sm_75"), "needs 240 GB, Tesla T4 has 16 GB"),
        (("--shape", "5", "--arch", "sm_20"), "'sm_20'"),
        (("--shape", "5", "--device-key", "abacus"), "got 'abacus'"),
    ],
)
def test_bad_input_is_answered_in_one_line(run: Run, arguments: tuple[str, ...], words: str) -> None:
    ran = run("explain", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert words in ran.err.splitlines()[-1]


def test_the_bound_is_that_of_the_accuracy(run: Run, few: tuple[str, ...]) -> None:
    told, of = {}, ("explain", "--shape", "8192", *ON_H200, *few)
    for accuracy in ("ieee", "elementwise", "normwise"):
        (found,) = json.loads(run(*of, "--accuracy", accuracy, "--json").out)
        told[accuracy] = found["bounds_us"]["arithmetic"]
    assert told["ieee"] == pytest.approx(2 * 8192**3 / 66_900e3)
    assert told["elementwise"] == pytest.approx(2 * told["normwise"])
    assert told["normwise"] == pytest.approx(3 * 8192**3 / (2048 * 132 * 1980))
    screen = run(*of, "--accuracy", "normwise").out
    assert "float by 3 products of halves" in " ".join(screen.split())
