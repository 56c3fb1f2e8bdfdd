"""`tilewright show`: a line for each record, JSON and CSV."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Run
from stored import CONFIGS, make
from tilewright.cli import tables
from tilewright.cli.show import record_lines, records_csv
from tilewright.codegen.problem import Grade, Problem
from tilewright.runtime.store.record import Record
from tilewright.runtime.store.store import Store
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.recording.files import Recording, write_cache_file
from tilewright.tuner.search.space import Dimension

pytestmark = pytest.mark.fast

MINE = "host-abacus"


@pytest.fixture
def store(own_folders: Path) -> Store:
    """The user's store, with two records of one device and one of a GPU that has shipped records."""
    store = Store()
    for shape, dtype, us, config in (("1024x768x512", "float", 1234.5, 0), ("5x6x7", "double", 5.0, 1)):
        assert store.keep(make(us, Problem.parse(shape, dtype), CONFIGS[config], MINE))
    assert store.keep(make(0.5, Problem.parse("1024x768x512"), CONFIGS[2], "nvidia-h200"))
    return store


@pytest.mark.parametrize("width", [80, 120])
def test_a_line_for_each_record_own_first(run: Run, store: Store, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ran = run("show", "--shipped")
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= width
    assert all(lines[place - 1] == "" for place, line in enumerate(lines) if place and ", shipped with" in line)
    grades = "", ", elementwise", ", normwise"
    devices = "nvidia-h100-80gb-hbm3", "nvidia-h200"
    shipping = [f"{device}, shipped with tilewright{grade}" for device in devices for grade in grades]
    headings = [f"{MINE}, your own", "nvidia-h200, your own", *shipping]
    places = [lines.index(heading) for heading in headings]
    assert places == sorted(places)
    mine = " ".join(lines[lines.index(f"{MINE}, your own") + 4].split())
    assert mine.startswith("1024x768x512 float nn 1,234 652.3 tiled:")
    own, shipped = store.layers()

    def order(record: Record) -> tuple[str, int]:
        return record.device, [*Grade].index(record.problem.accuracy)

    rest = [line for begin, end in zip(places[2:], (*places[3:], -1)) for line in lines[begin + 3 : end] if line]
    assert len(rest) == len(shipped)
    for line, record in zip(rest, sorted(shipped, key=order)):
        shape, dtype, trans, *figures, variant = line.split()
        assert (shape, dtype, trans) == (record.problem.shape, record.problem.dtype.value, record.problem.trans)
        assert str(record.config).startswith(variant.removesuffix(",..."))
        us, gflops, *others = figures
        assert float(us.replace(",", "")) == pytest.approx(record.median_us, rel=1e-3)
        assert float(gflops.replace(",", "")) == pytest.approx(record.gflops, rel=1e-3)
        assert record.accuracy is not None
        if record.problem.accuracy is not Grade.IEEE:
            assert float(others.pop(0)) == pytest.approx(record.accuracy.worst, rel=0.05)  # shown with two digits
        assert list(map(float, others)) in ([], [pytest.approx(record.ratio_vendor, rel=1e-3)])
        assert others or width == 80
    assert {record.problem.shape for record in own} == {"1024x768x512", "5x6x7"}


def test_a_line_counts_the_shipped_records(run: Run, store: Store) -> None:
    own, shipped = store.layers()
    ran = run("show")
    *_, last = ran.out.splitlines()
    assert last == f"shipped with tilewright: {len(shipped)} records; show --shipped lists them"
    assert len(ran.out.splitlines()) == len(own) + 3 * len({record.device for record in own}) + 1 + 1  # a blank line
    assert run("show", "--device-key", MINE).out.count("\n") == 2 + 3
    cubes = sum(record.problem.shape == "512x512x512" for record in shipped)
    text = f"nothing of your own is stored yet\nshipped with tilewright: {cubes} records; show --shipped lists them\n"
    assert run("show", "--shape", "512").out == text
    listed = run("show", "--shape", "512", "--shipped").out
    assert listed.count("512x512x512 ") == cubes > 1
    assert "show --shipped" not in listed


def test_filters(run: Run, store: Store) -> None:
    options = "--shape", "1024x768x512", "--dtype", "float", "--trans", "nn", "--accuracy", "ieee"
    records = json.loads(run("show", "--json", *options).out)
    assert [each["device"] for each in records] == [MINE, "nvidia-h200", "nvidia-h100-80gb-hbm3"]
    assert [each["measurement"]["median_us"] for each in records[:2]] == [1234.5, 0.5]
    records = json.loads(run("show", "--json", "--device-key", MINE, "--dtype", "double").out)
    assert [[each["problem"][name] for name in "mnk"] for each in records] == [[5, 6, 7]]
    records = json.loads(run("show", "--json", "--device-key", "nvidia-h200", "--trans", "nt").out)
    assert {(each["problem"]["trans_a"], each["problem"]["trans_b"]) for each in records} == {(False, True)}
    ran = run("show", "--device-key", MINE, "--shape", "5x6x8", "--dtype", "double", "--trans", "nt")
    assert (ran.status, ran.err) == (0, "")
    options = "--shape 5x6x8 --dtype double --trans nt"
    message = f"nothing is stored for 5x6x8 double nt on {MINE} yet; tilewright tune {options} makes a start\n"
    assert ran.out == message


def test_json_and_csv_hold_the_same(run: Run, store: Store) -> None:
    records = json.loads(run("show", "--json").out)
    rows = list(csv.DictReader(io.StringIO(run("show", "--csv").out)))
    assert [row["device"] for row in rows] == [each["device"] for each in records]
    assert (rows[0]["shape"], rows[0]["dtype"], rows[0]["trans"]) == ("5x6x7", "double", "nn")
    assert float(rows[1]["us"]) == records[1]["measurement"]["median_us"] == 1234.5
    assert rows[0]["config"] == str(CONFIGS[1])
    for batch in (5, 50):
        Store().keep(make(1.0, Problem(4, 4, 4, batch=batch)))
    rows = list(csv.DictReader(io.StringIO(run("show", "--csv", "--shape", "4").out)))
    assert sorted(row["batch"] for row in rows) == ["5", "50"]


@pytest.mark.parametrize(
    "name", ["=1+1", "+x", "-x", "@x", "\x1b[2J", "a\nb", "[/x]", "[red]x", "\u202ex", "\t=x", "\r@x"]
)
def test_names_of_devices_are_data(run: Run, name: str) -> None:
    record = replace(make(1.0, Problem(5, 6, 7)), device=name)
    Store().keep(record)
    cell = next(csv.reader(io.StringIO(records_csv([record]).splitlines()[1])))[0]
    assert cell[0] not in "=+-@"
    assert cell.isprintable()
    out = run("show").out
    assert all(line.isprintable() for line in out.splitlines())
    assert f"{name}, your own".encode("unicode_escape").decode() in out


class TestBest:
    """`show --best`: the fastest record of each product."""

    def test_has_one_line_for_each_product_over_all_devices(self, run: Run, store: Store) -> None:
        Store().keep(make(2000.0, Problem(5, 6, 7, trans_a=True), device="nvidia-a10"))
        records = json.loads(run("show", "--best", "--json").out)
        names = "m", "n", "k", "dtype", "trans_a", "trans_b", "accuracy"
        named = [[each["problem"].get(name) for name in names] for each in records]
        assert len(named) == len({*map(tuple, named)}) == len({r.problem for layer in store.layers() for r in layer})
        (mine,) = (
            each
            for each in records
            if each["problem"] == {**records[0]["problem"], "m": 1024, "n": 768, "k": 512, "dtype": "float"}
        )
        assert (mine["device"], mine["measurement"]["median_us"]) == ("nvidia-h200", 0.5)
        rows = list(csv.DictReader(io.StringIO(run("show", "--best", "--csv").out)))
        assert [row["device"] for row in rows] == [each["device"] for each in records]
        assert [row["dtype"] for row in rows] == sorted(row["dtype"] for row in rows)

    def test_of_one_device(self, run: Run, store: Store) -> None:
        records = json.loads(run("show", "--best", "--json", "--device-key", MINE).out)
        assert [each["measurement"]["median_us"] for each in records] == [5.0, 1234.5]

    @pytest.mark.parametrize(("width", "more"), [(80, ()), (120, ("GFLOP/s", "x vendor")), (40, ())])
    def test_fits_and_names_the_device(
        self, run: Run, store: Store, width: int, more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(width))
        long = "nvidia-rtx-pro-6000-blackwell-max-q"
        store.keep(make(0.25, Problem(5, 6, 7), device=long))
        title, head, _, *lines = run("show", "--best").out.splitlines()
        assert title == "the fastest of each product"
        assert {"M x N x K", "type", "us", "device", *more} <= {*re.split("  +", head)}
        (line,) = (line.split() for line in lines if line.startswith("5x6x7 ") and " float nn" in line)
        assert {"5x6x7", "0.2500", long} <= {*line}
        if width > 40:
            assert max(map(len, [head, *lines])) <= width


def test_names_in_recordings_are_data(run: Run, tmp_path: Path) -> None:
    hostile = ("[/x]", "[red]", "\x1b[2J", "a\nb", "=1+1")
    dimensions = (Dimension("[/x]\x1b", (1, *hostile)),)
    entries = {(row,): Entry("ok", 9.0 - row, (9.0 - row,)) for row in range(6)}
    write_cache_file(tmp_path / "run.json", Recording("\x1b[2J[/x]", "[/y]\n", (5,), dimensions, entries))
    ran = run("tune", "--device", f"replay:{tmp_path}/run.json", "--sampler", "exhaustive")
    assert ran.status == 0, ran.err
    assert all(line.isprintable() for line in ran.out.splitlines())
    assert r"[/y]\n 5, recorded on \x1b[2J[/x]" in ran.out
    for word in hostile:
        assert rf"[/x]\x1b={word}".encode("unicode_escape").decode().replace("\\\\", "\\") in ran.out


@pytest.mark.parametrize("us", [1e-300, 1e300])
def test_a_record_of_an_absurd_time_hides_no_other(run: Run, store: Store, us: float) -> None:
    assert store.keep(make(us, Problem(9, 9, 9), CONFIGS[0], MINE))
    ran = run("show", "--device-key", MINE)
    assert (ran.status, ran.err) == (0, "")
    assert "9x9x9" in ran.out
    assert "1024x768x512" in ran.out


def test_work_grows_with_the_number_of_records_and_not_with_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    cells: list[str] = []
    monkeypatch.setattr(tables, "plain", lambda text: cells.append(text) or text)

    def work(records: int) -> int:
        cells.clear()
        record_lines(80, [make(5.0, Problem(8, 8, 8))] * records)
        return len(cells)

    assert work(160) < 5 * work(40)
