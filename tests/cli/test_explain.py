"""`tilewright explain` for devices that this machine lacks, and for the processor."""

import itertools
import json
import re
from collections import Counter
from dataclasses import replace
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
from tilewright.runtime.product.vendor import VendorFallback
from tilewright.runtime.store.store import LookupResult, Store
from tilewright.tuner.bench.report import figure
from tilewright.tuner.choose.shortlist import ENTRIES, shortlist
from tilewright.tuner.explain import Explained, explain
from tilewright.tuner.plan import planned

H200 = KNOWN["nvidia-h200"]
FEW = 'family = "tiled"\n[parameters]\ntile_width = [8, 16]\nunroll = [1]\n'
ON_H200 = ("--device-key", "nvidia-h200")


PROBLEMS = {
    "4096": (),
    "1000x1000x1100": (),
    "1300x900x700": (DType.DOUBLE, "tt"),
    "777": (DType.FLOAT, "tn", "normwise"),
    "8x4096x4096": (DType.FLOAT, "nt"),
    "1x4096x4096": (DType.DOUBLE,),
    "64x48x32": (DType.FLOAT, "nn", "elementwise"),
    "4096x4096x16": (DType.DOUBLE, "nt"),
    "3x5x100000": (DType.FLOAT, "tn"),
    "16384x16384x1024": (DType.FLOAT, "tt", "normwise"),
    "1": (),
    "12345x23x7777": (DType.FLOAT, "tn"),
}
SLOW = [pytest.param(KNOWN[key], marks=pytest.mark.slow) for key in ("nvidia-a10", "nvidia-geforce-rtx-4090")]
DEVICES = [H200, *SLOW, choose("host")]


def shown(explanation: Explained, width: int) -> list[str]:
    """The lines of a screen that shows an explanation."""
    screen = Console(width=width, file=StringIO(), force_interactive=False)
    show_explained(screen, explanation)
    assert isinstance(screen.file, StringIO)
    return screen.file.getvalue().splitlines()


def rows_of(lines: list[str]) -> list[str]:
    """First lines of the table's rows: each begins with the expected time, and lines that continue it are indented."""
    (rule,) = [place for place, line in enumerate(lines) if line.startswith("-----------")]
    rows = list(itertools.takewhile(bool, lines[rule + 1 :]))
    return [row for row in rows if row[: len("expected us")].strip()]


@pytest.mark.parametrize("info", DEVICES, ids=lambda info: info.name)
def test_an_explanation_fits_a_screen_and_no_number_is_cut(info: DeviceInfo) -> None:
    store = Store()
    for shape, kind in PROBLEMS.items():
        explanation = explain(Problem.parse(shape, *kind), info, store)
        lines = shown(explanation, 80)
        assert len(lines) <= 40, explanation.problem
        for width in (80, 120):
            lines = shown(explanation, width)
            assert max(map(len, lines)) <= width
            text, joined = " ".join(" ".join(lines).split()), "".join(line.strip() for line in lines)
            variants = sum(count for _, count in explanation.variants)
            assert f"search: {variants:,} variants, {explanation.variants[0][1]:,} {explanation.variants[0][0]}" in text
            assert str(explanation.lookup.config) in joined
            assert explanation.why in text
            rows = rows_of(lines)
            assert len(rows) == min(10, len(explanation.choices)), explanation.problem
            for row, choice in zip(rows, explanation.choices):
                assert choice.expected_us is not None
                assert row.split()[0] == figure(choice.expected_us)
            assert len({required for _, required in explanation.unable}) == sum(
                " that " in line for line in after(lines)
            )


def after(lines: list[str]) -> list[str]:
    """The paragraph after the table, which names the families that cannot run."""
    begin = [place for place, line in enumerate(lines) if line.startswith("cannot run: ")]
    return lines[begin[0] :] if begin else []


def test_where_there_is_no_room_fewer_of_the_shortlist_are_shown() -> None:
    explanation = explain(Problem(64, 64, 64), H200, Store())
    longest = parse("simt:80x64x16,thread=10x8,lanes_m=4,slices=4,order=rows,stages=4,interleave=2,shared,l2_prefetch")
    choices = tuple(replace(explanation.choices[0], config=longest, expected_us=float(us)) for us in range(1, 30))
    unable = tuple((f"family{place}", f"{place} " + "word " * 20 + "end") for place in range(6))
    lines = shown(
        replace(explanation, lookup=LookupResult(parse("naive"), "default"), choices=choices, unable=unable), 80
    )
    assert len(lines) <= 40
    rows = rows_of(lines)
    assert 0 < len(rows) < 10
    assert sum("l2_prefetch" in line for line in lines) == len(rows)  # each row to its end
    assert "family5 requires that 5 word" in " ".join(lines)


def test_families_with_the_same_unmet_requirement_share_a_line(run: Run) -> None:
    ran = run("explain", "--shape", "100", "--dtype", "double", "--device-key", "nvidia-a10")
    assert "cannot run: mma, tf32x3 and wgmma require that floats are split into terms\n" in ran.out
    (document,) = json.loads(run("explain", "--shape", "64", "--arch", "sm_75", "--json").out)
    assert {each["family"]: each["why"] for each in document["unable"]}["dmma"].startswith("dmma requires that ")
    screen = run("explain", "--shape", "64", "--arch", "sm_75").out
    assert "cannot run: dmma requires that " in screen


def test_a_family_without_a_variant_that_can_run_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "naive.toml").write_text('family = "naive"\n[parameters]\nedge = ["bounds"]\n')
    (tmp_path / "tiled.toml").write_text('family = "tiled"\n[parameters]\ntile_width = [8]\nunroll = [32]\n')
    ran = run("explain", "--shape", "64", "--arch", "sm_80", "--spaces", str(tmp_path))
    assert "cannot run: no variant in the space of tiled serves it\n" in ran.out


@pytest.fixture
def few(tmp_path: Path) -> tuple[str, ...]:
    """An option that names a space of two variants."""
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / "tiled.toml").write_text(FEW)
    return ("--spaces", str(tmp_path / "few"))


class TestLookUp:
    """The record that a product gets, and the reason."""

    @pytest.fixture(autouse=True)
    def options(self, few: tuple[str, ...]) -> None:
        self.few = few

    def lookup_of(self, run: Run, *arguments: str) -> dict[str, Any]:
        ran = run("explain", *arguments, *self.few, "--json")
        assert ran.status == 0, ran.err
        (document,) = json.loads(ran.out)
        lookup: dict[str, Any] = document["lookup"]
        return lookup

    def test_of_a_tuned_shape(self, run: Run) -> None:
        lookup = self.lookup_of(run, "--shape", "4096", *ON_H200)
        assert lookup["origin"] == "exact"
        assert lookup["why"] == "there is a record of exactly this product on nvidia-h200"
        ran = run("explain", "--shape", "4096", *ON_H200, *self.few)
        record = Store().best("nvidia-h200", Problem(4096, 4096, 4096))
        assert record is not None
        assert f"  measured: {record.median_us:,.0f} us, " in ran.out
        (document,) = json.loads(run("explain", "--shape", "4096", *ON_H200, *self.few, "--json").out)
        ratio = lookup["expected_us"] / record.median_us
        assert document["expected_over_measured"] == ratio
        assert ratio != 1
        assert f"expected: {lookup['expected_us']:,.0f} us, {ratio:.4g} times what was measured" in ran.out
        assert "near records" not in ran.out

    def test_of_a_near_one(self, run: Run) -> None:
        lookup = self.lookup_of(run, "--shape", "1000x1000x1100", *ON_H200)
        assert (lookup["origin"], lookup["from"]) == ("predicted", "1000x1000x1000")
        assert lookup["why"] == (
            "there is no record of this product on nvidia-h200; the nearest one that serves it was tuned for "
            "1000x1000x1000, 0.14 doublings of m, n and k away"
        )
        out = " ".join(run("explain", "--shape", "1000x1000x1100", *ON_H200, *self.few).out.split())
        assert f"expected: {figure(lookup['expected_us'])} us, " in out
        assert "near records, doublings away: 1000x1000x1000 (0.14), " in out

    def test_of_batches(self, run: Run) -> None:
        tuned = Problem(16, 16, 16, batch=100_000)
        config = parse("small:4x4x4,block_threads=64")
        Store().keep(make(9.0, tuned, config, "nvidia-h100-80gb-hbm3"))
        Store().keep(make(2.0, replace(tuned, batch=1_000), config, "nvidia-h100-80gb-hbm3"))
        begin = "there is no record of this product on nvidia-h100-80gb-hbm3; "
        for batch, tuned_for, why in (
            (90_000, 100_000, "that of 100,000 products serves it, as both batches fill the device"),
            (1_100, 1_000, "the nearest one that serves it was tuned for 16x16x16 x1000, 0.14 doublings of m, n, k and "
             "the batch away"),
        ):  # fmt: skip
            options = "--shape", "16", "--batch", str(batch), "--device-key", "nvidia-h100-80gb-hbm3"
            lookup = self.lookup_of(run, *options)
            assert (lookup["origin"], lookup["from"]) == ("predicted", f"16x16x16 x{tuned_for}")
            assert lookup["why"] == begin + why

    def test_what_goes_to_the_vendors_library(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.lookup_of(run, "--shape", "4096", *ON_H200)["vendor"] is None
        with monkeypatch.context() as patched:
            handover = VendorFallback(12.5, 1.25, "what a test says")
            patched.setattr("tilewright.tuner.explain.untimed", lambda info, lookup: handover)
            vendor = self.lookup_of(run, "--shape", "4096", *ON_H200)["vendor"]
            out = " ".join(run("explain", "--shape", "4096", *ON_H200, *self.few).out.split())
        assert vendor == {"expected_us": 12.5, "regret": 1.25, "why": "what a test says"}
        assert "vendor: its library serves instead, unless vendor='never', by what a test says" in out
        at_first_use = "vendor: its library is timed beside this at first use, the faster one serves"
        for shape, device, timed in (("1300x900x700", ON_H200, True), ("4096", ON_H200, False), ("24", (), False)):
            out = " ".join(run("explain", "--shape", shape, *device, *self.few).out.split())
            assert (at_first_use in out) == timed

    def test_of_another_device(self, run: Run) -> None:
        lookup = self.lookup_of(run, "--shape", "1024", "--arch", "sm_86")
        assert lookup["origin"] == "predicted"
        assert re.search(
            r"by what was measured on other devices it takes about [\d.]+ us, and what it costs not to tune was not "
            r"measured here$",
            lookup["why"],
        )
        why = self.lookup_of(run, "--shape", "1300x900x700", "--trans", "tt", *ON_H200)["why"]
        assert re.search(r"it takes about [\d.]+ us, and not to tune costs at most \d+% for nine of ten shapes$", why)

    def test_of_a_device_with_the_same_sms(self, run: Run) -> None:
        for shape, same in (
            ("1024x768x512", "it runs as tuned on"),
            ("1000x760x500", "it runs as tuned for 1024x768x512 on"),
        ):
            options = "--shape", shape, "--trans", "nt", "--device-key", "nvidia-h100-80gb-hbm3"
            lookup = self.lookup_of(run, *options)
            assert (lookup["origin"], lookup["from"]) == ("predicted", "1024x768x512 on nvidia-h200")
            assert lookup["why"].endswith(f"{same} nvidia-h200, which has the same SMs")

    def test_of_a_finer_accuracy(self, run: Run) -> None:
        options = "--shape", "128x12288x4096", "--accuracy", "normwise", "--device-key", "nvidia-h100-80gb-hbm3"
        lookup = self.lookup_of(run, *options)
        faster = "the record of this product in elementwise is faster than its own on nvidia-h100-80gb-hbm3"
        assert (lookup["origin"], lookup["why"]) == ("exact", faster)

    def test_where_nothing_helps(self, run: Run) -> None:
        lookup = self.lookup_of(run, "--shape", "7", "--device", "host")
        assert lookup["origin"] == "default"
        assert lookup["why"].endswith("and no other record that helps")

    def test_where_the_record_of_the_shape_does_not_serve_it(self, run: Run, own_folders: Path) -> None:
        Store().keep(make(1.0, Problem(33, 33, 33), parse("dmma"), "nvidia-a10"))
        lookup = self.lookup_of(run, "--shape", "33", "--device-key", "nvidia-a10")
        assert lookup["why"].startswith(
            "the record of this product on nvidia-a10 does not serve it, as it requires that the tensor cores multiply "
            "double"
        )


def test_the_bound_is_the_roofline() -> None:
    for problem, by in (
        (Problem(4096, 4096, 4096), "arithmetic"),
        (Problem(1, 4096, 4096, DType.DOUBLE), "memory"),
        (Problem(8, 8, 8), "launch"),
    ):
        first, *others = bounds_of(H200, problem)
        assert (first.by, first.us) == (by, floor_us(H200, problem))
        assert all(first.us >= each.us for each in others)


def test_counts_are_those_of_the_search_and_configs_those_of_the_shortlist(run: Run) -> None:
    problem, store = Problem(100, 100, 100, DType.DOUBLE), Store()
    (document,) = json.loads(run("explain", "--shape", "100", "--dtype", "double", *ON_H200, "--json").out)
    record = store.best("nvidia-h200", problem)
    assert record is not None
    plan = planned(problem, H200, store, (), (), None, "random", 0, 5)
    plan.search.close()
    assert plan.listed is not None
    assert document["variants"] == Counter(config.family for config in plan.listed)
    assert document["lookup"]["config"] == str(record.config)
    ranked = shortlist(problem, H200, tuple(store.records()), ENTRIES)
    assert ranked[0].config == record.config
    assert [each["config"] for each in document["shortlist"]] == [str(choice.config) for choice in ranked[1:]]
    expected = [each["expected_us"] for each in document["shortlist"]]
    assert expected == sorted(expected)
    assert {each["by"] for each in document["shortlist"]} == {"learned", "near record"}
    elsewhere = ("explain", "--shape", "100", "--dtype", "double", "--device-key", "nvidia-a10")
    (other,) = json.loads(run(*elsewhere, "--json").out)
    assert "learned elsewhere" in {each["by"] for each in other["shortlist"]}
    methods = [row.split()[2] for row in rows_of(run(*elsewhere).out.splitlines())]
    assert "elsewhere" in methods
    assert "learned" not in methods
    assert {each["tuned_for"] is None for each in document["shortlist"] if each["by"] == "learned"} == {True}
    assert all(" on nvidia-" in each["tuned_for"] for each in document["shortlist"] if each["by"] == "near record")


def test_a_space_of_one_variant(run: Run, tmp_path: Path) -> None:
    (tmp_path / "naive.toml").write_text('family = "naive"\n[parameters]\nedge = ["bounds"]\n')
    ran = run("explain", "--shape", "64", "--device", "host", "--spaces", str(tmp_path))
    assert (ran.status, ran.err) == (0, "")
    assert "search: 1 variant, 1 naive\n" in ran.out
    assert "cannot run" not in ran.out


def test_variants_are_those_of_the_folder_of_spaces(run: Run, few: tuple[str, ...]) -> None:
    (document,) = json.loads(run("explain", "--shape", "64", "--arch", "sm_80", *few, "--json").out)
    assert document["variants"] == {"tiled": 2}


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
    arithmetic_us, command = {}, ("explain", "--shape", "8192", *ON_H200, *few)
    for accuracy in ("ieee", "elementwise", "normwise"):
        (document,) = json.loads(run(*command, "--accuracy", accuracy, "--json").out)
        arithmetic_us[accuracy] = document["bounds_us"]["arithmetic"]
    assert arithmetic_us["ieee"] == pytest.approx(2 * 8192**3 / 66_900e3)
    assert arithmetic_us["elementwise"] == pytest.approx(2 * arithmetic_us["normwise"])
    assert arithmetic_us["normwise"] == pytest.approx(3 * 8192**3 / (2048 * 132 * 1980))
    screen = run(*command, "--accuracy", "normwise").out
    assert "float by 3 products of halves" in " ".join(screen.split())
