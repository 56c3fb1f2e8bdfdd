"""Every figure of the pages below follows from a committed result.

`readme`, `index` and `performance` compute numbers from JSON files, and yield the sentences, table rows and lines of
output that state them. Each must stand in its page. Every other number of a page must stand, with its unit, in a page
to which the same sentence or table row links, or belong to a phrase of PAGES, whose numbers nobody measured. So a new
figure needs a line here, or a link to the page that says how it was measured.
"""

import importlib
import json
import math
import re
from collections.abc import Iterator
from functools import cache
from math import inf
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import pytest
import tilewright
from stored import shipped
from tilewright.cli.tables import table
from tilewright.codegen.families import parse
from tilewright.runtime.check.roofline import LAUNCH_US, rates_of
from tilewright.runtime.store.record import Record
from tilewright.tuner.bench.report import bench_columns, bench_json, bench_markdown, figure
from tilewright.tuner.bench.stored import read_bench

pytestmark = pytest.mark.fast

ROOT = Path(tilewright.__file__).resolve().parent
RESULTS = ROOT / "benchmarks" / "results"
H100, H200 = "nvidia-h100-80gb-hbm3", "nvidia-h200"

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^]]*)\]\(([^)#]*)[^)]*\)")
NAME = re.compile(r"`[^`]*`|^\$ .*|\b[A-Za-z_]\w*\d[\w.]*|\b\d+(?:x\d+)+\b|\b\d+\^\d+")
"""Code, commands, words with a digit, and shapes such as 64x64x65536 and 2047^3, whose digits are no figures."""
QUANTITY = re.compile(r"\d(?:[\d,.:-]*\d)?(?: to \d(?:[\d,.:-]*\d)?)?(?:%| (?:us|clocks|MHz|TFLOP/s)\b)?")
"""A number or a range, with its unit."""

Row = dict[str, Any]
"""A shape of a bench, as in its JSON file."""


@cache
def result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def bench(name: str, device: str = H100) -> Any:
    return result(f"{device}/{name}")


def shape(row: Row) -> str:
    return f"{row['m']}x{row['n']}x{row['k']}"


def ratio(row: Row) -> float:
    return float(row["ratio_cublas"])


def record(row: Row) -> Record:
    """The shipped record of a row's problem."""
    return shipped()[f"{H100}/{shape(row)} {row['dtype']} {row['trans']}"]


def mean(name: str, of: str = "cublas", device: str = H100) -> str:
    return figure(bench(name, device)[f"geomean_ratio_{of}"])


def when(name: str, device: str = H100) -> tuple[str, str]:
    """Day and time of a run."""
    day, _, hour = bench(name, device)["date"].partition("T")
    return day, hour[:5]


def span(values: list[float], digits: int, word: str = "to") -> str:
    return f"{min(values):.{digits}f} {word} {max(values):.{digits}f}"


def cells(*values: str) -> str:
    return "".join(f"| {value} " for value in values) + "|"


def readme() -> Iterator[str]:
    setting, rows = bench("float32")["versions"], bench("float32")["rows"]
    yield f"One NVIDIA H100 of 80 GB, {when('float32')[0]}, driver API {setting['driver']}, {setting['cublas']}"
    yield f"four of the {len(rows)} shapes of the public suite in float"
    yield f"the least and the most of the {len(rows)} are shown"
    columns = bench_columns(read_bench(RESULTS / H100 / "float32.json"))
    screen = "\n".join(line.plain for line in table(columns, 80)).splitlines()
    least, *_, second, most = map(shape, sorted(rows, key=ratio))
    shapes = [shape(rows[0]), most, least, second]
    yield from (next(line for line in screen if line.startswith(name)) for name in ["M x N", *shapes, "geometric mean"])
    ends = span([*map(ratio, bench("float64")["rows"])], 2)
    yield f"In double {mean('float64')} and {mean('float64', 'cublas_between')} times cuBLAS, from {ends}"
    yield f"and {mean('float64', 'cublaslt')} times cuBLASLt"
    grades = [bench(f"float32-{grade}") for grade in ("normwise", "elementwise")]
    alone, between = ([each[f"geomean_ratio_cublas{kind}"] for each in grades] for kind in ("", "_between"))
    yield f"the tensor cores ({when('float32-normwise')[0]}): {alone[0]:.2f} (`normwise`)"
    yield f"and {alone[1]:.2f} (`elementwise`) times SGEMM"
    yield f"at most {max(ratio(each) for grade in grades for each in grade['rows']):.2f}, and"
    yield f"{between[0]:.2f} and {between[1]:.2f} with a kernel in between"
    untuned = result("nvidia-h100-80gb-hbm3/untuned")
    over: dict[str, list[tuple[int, float]]] = {"float": [], "double": []}
    for row in untuned["rows"]:
        over[row["dtype"]].append((row["m"] * row["n"] * row["k"], row["cublas_us"] / row["predicted_us"]))
    single, double = (geometric_mean(times for _, times in each) for each in over.values())
    large = [times for products, times in over["float"] if products > 10**8]
    yield f"{len(untuned['rows'])} random shapes that nobody tuned, mostly small (H100s, {untuned['date']})"
    yield f"{single:.2f} times cuBLAS in float, but {span(large, 2)} in the {len(large)} of more than 10^8"
    yield f"multiply-adds, {double:.2f} in double"
    here, there = (sum(each.device == device for each in shipped().values()) for device in (H100, H200))
    yield f"{here} records for an H100 and {there} for an H200 ship"


def index() -> Iterator[str]:
    first, setting = bench("float32")["rows"][0], bench("float32")["versions"]
    yield f"takes {figure(first['ours_us'])} us on an NVIDIA H100, where cuBLAS takes {figure(ratio(first))} times"
    yield f"Over the {len(bench('float32')['rows'])} shapes of the public suite the geometric mean is {mean('float32')}"
    yield f"in float and {mean('float64')} in double, product after product"
    yield f"{when('float32')[0]}, driver API {setting['driver']}, {setting['cublas']}"


def performance() -> Iterator[str]:
    names = ("float32", "float64")
    runs = [bench(name) for name in names]
    rows, double = [row for run in runs for row in run["rows"]], {shape(row): row for row in runs[1]["rows"]}
    single = {shape(row): row for row in runs[0]["rows"]}
    first, setting, device = rows[0], runs[0]["versions"], runs[0]["device_facts"]
    yield f"{figure(first['ours_us'])} us and {figure(first['tflops'])} TFLOP/s, {figure(ratio(first))} times the speed"
    yield f"over the {len(single)} shapes of the public suite"
    yield f"{when('float32')[0]}, float {when('float32')[1]}, double {when('float64')[1]}"
    yield f"driver API {setting['driver']}, {setting['cublas']}"
    kinds = {"products back to back": "", "another library's kernel between two products": "_between"}
    for words, kind in {**kinds, "eager calls, waited for": "_eager"}.items():
        yield cells(words, *(mean(name, rival + kind) for name in names for rival in ("cublas", "cublaslt")))

    assert [row for row in rows if parse(row["config"]) != record(row).config] == []
    yield f"these {len(rows)} kernels are records of this device"

    yield f"({device['arch']}, {device['sm_count']} SMs at {device['clock_mhz']:.0f} MHz)"
    yield f"NVRTC {setting['compiler'].split()[1]}, CuPy {setting['cupy']}, a type on each"
    yield f"floats, {span([row['between_kernel_us'] for row in rows], 1)} us, no PDL"
    rates = rates_of(read_bench(RESULTS / H100 / "float32.json").device)
    peak = f"{rates.float_gflops / 1e3:.1f}"
    yield f"arithmetic ({peak} TFLOP/s in float, {rates.double_gflops / 1e3:.1f} in double)"
    yield f"memory ({rates.bandwidth_gbs / 1e3:.2f} TB/s) and {LAUNCH_US} us for a launch"

    heads = ("TFLOP/s", "floor", "x cuBLAS", "x cuBLASLt")
    yield cells("M x N x K", "float us", *heads, "double us", *heads)
    for pair in zip(single.values(), double.values(), strict=True):
        times = [(figure(row["ours_us"]), figure(row["tflops"]), f"{row['floor_share']:.1%}") for row in pair]
        both = [(figure(ratio(row)), figure(row["ratio_cublaslt"])) for row in pair]
        yield cells(shape(pair[0]), *times[0], *both[0], *times[1], *both[1])
    shares = [("", "", f"{run['geomean_floor_share']:.1%}") for run in runs]
    both = [(mean(name), mean(name, "cublaslt")) for name in names]
    yield cells("geometric mean", *shares[0], *both[0], *shares[1], *both[1])

    (*_, noisy), (*_, next_one, worst) = (sorted(run["rows"], key=lambda row: row["aa_spread"]) for run in runs)
    yield f"within {noisy['aa_spread']:.1%} of 1 in float, and in double within {next_one['aa_spread']:.1%}"
    yield f"but for {worst['m']}^3 with {worst['aa_spread']:.1%}"
    held = [row["clock_mhz"] for row in double.values() if row["held_back"]]
    yield f"between {span(held, 0, 'and')} MHz in {len(held)} of the {len(double)} rows"

    yield f"{when('float32', H200)[0]}, float {when('float32', H200)[1]}, double {when('float64', H200)[1]}"
    for words, kind in {**kinds, "eager calls, waited for": "_eager"}.items():
        yield cells(words, *(mean(name, rival + kind, H200) for name in names for rival in ("cublas", "cublaslt")))
    for name in (f"{name}-{trans}" for name in names for trans in ("nt", "tn", "tt")):
        least, (day, hour) = min(bench(name, H200)["rows"], key=ratio), when(name, H200)
        title, low = f"{least['dtype']}, {least['trans']}", f"{figure(ratio(least))}, {shape(least)}"
        yield cells(title, f"{day}, {hour}", mean(name, "cublas", H200), mean(name, "cublaslt", H200), low)

    squares = [f"{side}x{side}x{side}" for side in (2048, 4096, 8192)]
    yield f"{span([single[each]['tflops'] for each in squares], 1)} of {peak} TFLOP/s"
    middle = [f"{single[each]['tflops']:.1f}" for each in ("1024x768x512", "3072x1500x1024")]
    yield f"from {middle[0]} TFLOP/s (1024x768x512) to {middle[1]} (3072x1500x1024)"
    narrow = [f"{1 / single[each]['floor_share']:.2f}" for each in ("1x4096x4096", "16x4096x4096", "4096x16x4096")]
    yield f"1x4096x4096 takes {narrow[0]} times the memory's time, 16x4096x4096 {narrow[1]}, 4096x16x4096 {narrow[2]}"
    clocks = [double[each]["clock_mhz"] for each in ("2047x2047x2047", *squares)]
    yield f"from {device['clock_mhz']:.0f} to between {span(clocks, 0, 'and')} MHz"
    yield from searched()


def accuracy() -> Iterator[str]:
    files = {grade: f"float32-{grade}".removesuffix("-ieee") for grade in ("ieee", "elementwise", "normwise")}
    yield f"all that a product needs included (one NVIDIA H100, {when(files['normwise'])[0]})"
    for grade, name in files.items():
        first, large = (
            next(row for row in bench(name)["rows"] if shape(row) == each)
            for each in ("1024x768x512", "4096x4096x4096")
        )
        times = (f"{figure(row['ours_us'])} us, {figure(ratio(row))}" for row in (first, large))
        yield cells(f"`{grade}`", *times, mean(name), f"{first['error_over_bound']:.4f}")
    yield f"| {len(bench('float32')['rows'])} shapes of the public suite, mean |"


def searched() -> Iterator[str]:
    rows = result("nvidia-h100-80gb-hbm3/searches")["rows"]
    over = math.exp(math.fsum(math.log(row["after"]["us"] / row["before"]["us"]) for row in rows) / len(rows))
    most, tried = (median(row[when]["variants"] for row in rows) for when in ("before", "after"))
    before_s, after_s = (median(row[when]["seconds"] for row in rows) for when in ("before", "after"))
    variants = f"{over:.3f} of the time of winners among {most:g} variants, with {tried:g} variants in the median"
    yield f"{variants} and in {after_s:.0f} s instead of {before_s:.0f}"
    searches = [row for row in result("search/search")["rows"] if row["method"] == "tilewright gp"]
    medians = [f"{median(seed or inf for seed in row['to_95%']['per_seed']):g}" for row in searches]
    yield f"{' and '.join(medians)} evaluations to 95% of the optimum of two recorded spaces in the median"


def batches() -> Iterator[str]:
    """Sentences and rows of docs/batches.md."""
    document, on_h100 = (json.loads((RESULTS / key / "batches.json").read_text()) for key in (H200, H100))
    tables: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in document["rows"]:
        if row["kind"] == "left out":
            continue
        if row["kind"] == "ragged":
            graph, eager = (row[name] / row["our_us"] for name in ("cublas_us", "eager_us"))
            sizes = f"{row['m']:,} | {row['n']} | {row['k']}"
            yield f"| {row['batch']} | {sizes} | {row['our_us']:.1f} | {graph:.2f} | {eager:.2f} |"
            continue
        tables.setdefault((row["kind"], row["batch"] * (row["kind"] == "program"), row["m"], row["n"], row["k"]), {})[
            row["dtype"]
        ] = row
    for (kind, count, m, n, k), of_types in tables.items():
        cells = []
        for row, size in ((of_types["float"], 4), (of_types["double"], 8)):
            us, over = row["our_us"], row["cublas_us"] / row["our_us"]
            if kind == "square":
                family = row["config"].partition(":")[0]
                rate = 3 * n * n * row["batch"] * size / us / 1e6
                cells.append(f"{us:.1f} | {rate:.2f} | {over:.2f} | `{family}`")
            else:
                cells.append(f"{us:.4g} | {over:.2f} | {row['predicted_us'] / us:.2f}")
        yield (
            f"| {n} | {' | '.join(cells)} |"
            if kind == "square"
            else f"| {count:,} | {m}x{n}x{k} | {' | '.join(cells)} |"
        )
    squares, programs, h100_squares, h100_programs = (
        [of["summary"][f"{kind} {dtype}"] for dtype in ("float", "double")]
        for of in (document, on_h100)
        for kind in ("square", "program")
    )
    mean = "over cuBLAS, geometric mean"
    yield f"The geometric mean is {squares[0][mean]:.2f} in float and {squares[1][mean]:.2f} in double"
    yield f"{squares[0]['least triad share']:.0%} of that rate is the least up to 64"
    yield f"The geometric means are {programs[0][mean]:.2f} and {programs[1][mean]:.2f} times cuBLAS"
    allowed = min(each["over cuBLAS with the library allowed, least"] for each in (*squares, *programs))
    yield f"Where cuBLAS is allowed, {allowed:.3f} is the least of both tables"
    rows = [row for row in document["rows"] if row["kind"] == "left out"]
    untuned = [row["predicted_us"] / row["our_us"] for row in rows]
    yield f"takes {geometric_mean(untuned):.2f} times as long as the tuned one over {len(rows)} further batches"
    yield f"and {max(untuned):.2f} times at worst"
    means = [[each[mean] for each in pair] for pair in (h100_squares, h100_programs)]
    yield "{:.2f} and {:.2f} over the squares and {:.2f} and {:.2f} over these batches".format(*means[0], *means[1])


def of_batches() -> str:
    """The sentence of the README on batches."""
    document = json.loads((RESULTS / H200 / "batches.json").read_text())
    means = [document["summary"][f"square {dtype}"]["over cuBLAS, geometric mean"] for dtype in ("float", "double")]
    tiny = [row["cublas_us"] / row["our_us"] for row in document["rows"] if row["n"] == 3 and row["kind"] == "square"]
    return (
        f"Batches of squares from 3 to 128 in one call (one H200, {document['date'][:10]}, "
        f"[docs/batches.md](docs/batches.md)): "
        f"{means[0]:.2f} times cuBLAS in float, {means[1]:.2f} in double, {tiny[0]:.0f} and {tiny[1]:.0f} times at 3x3"
    )


BATCHES = [
    "(2, 1000, 3)", "(2, 3)", "(2, 2, 3, 3)", "a dimension of 1, or a missing one", "its step is 0",
    "16x16x16 float nn batch 100000 on NVIDIA H100 80GB HBM3, sm_90a, 132 SMs", "One NVIDIA H200, 2026-11-29",
    "On an H100 of 80 GB, on 2026-11-28", "NVRTC 13.0, cuBLAS 13.1", "2^31 - 1 products",
    "up to a million products or 1.5 GB", "33 in float", "reach 85%",
    "Adding two arrays of such a size moves 4.2 TB/s", "sizes up to 128", "up to some 80 in float",
    "in double up to 24", "such as 33", "33 and 65 in float take 0.70 and 0.71 of the time",
    "| one | 1 | what a single product takes |", "one of 100,000 products of 16x16, 90,000 take its kernel",
    "at least 32,768 elements of C for each SM: 16,896 of 16x16 on an H100", "2% longer than the best",
    "3% longer and at worst 18%",
    "that of 100,000 products serves it", "nvidia-h100-80gb-hbm3;",
    "(from 16x16x16 x100000)",
]  # fmt: skip
README = ["Python 3.11 or later", "takes about 135 MB", "process, in 20 seconds", "for m or n up to 32"]
METHOD = ["the best of its 16 suggestions", "at least 7 rounds", "above 1 is ours faster", "negation of 4096"]
PAGES = {
    "README.md": (lambda: [*readme(), of_batches()], README),
    "docs/batches.md": (batches, BATCHES),
    "docs/index.md": (index, []),
    "docs/performance.md": (performance, [*METHOD, "7 further rounds", "H100 of 80 GB", "two seconds a shape"]),
}
"""For each page the function that yields its results, and phrases whose numbers are no results: versions, sizes, dates,
settings of the method."""


def plain(text: str) -> str:
    return " ".join(text.replace("**", "").split())


def quantities(text: str) -> list[str]:
    return QUANTITY.findall(NAME.sub(" ", plain(LINK.sub(r"\1", text))))


def units(page: str) -> list[str]:
    """The paragraphs, list items, table rows and lines of output of a page, without commands and code."""
    text = BLOCK.sub(lambda block: block[2].replace("\n", "\n\n") if block[1] == "text" else "", page)
    return [plain(unit) for unit in re.split(r"\n\n+|\n(?=- |\|)", text)]


@pytest.mark.parametrize("name", PAGES)
def test_every_figure_follows_from_a_result(name: str) -> None:
    text, (results, settings), wrong = units((ROOT / name).read_text()), PAGES[name], []
    for sentence in map(plain, [*results(), *settings]):
        at = next((place for place, unit in enumerate(text) if sentence in unit), None)
        if at is None:
            wrong.append(f"the results say: {sentence}")
        else:
            text[at] = text[at].replace(sentence, " ", 1)
    for rest in (sentence for unit in text for sentence in re.split(r"(?<=\.) ", unit)):
        pages = [(ROOT / name).parent / target for _, target in LINK.findall(rest) if target.endswith(".md")]
        sources = {each for page in pages for each in quantities(page.read_text())}
        if missing := [each for each in quantities(rest) if each not in sources]:
            wrong.append(f"no result gives {', '.join(missing)} of: {rest}")
    assert not wrong, "\n".join(wrong)


def test_the_costs_of_grades_follow_from_results() -> None:
    """Most numbers of this page are formulas, so only its table is compared."""
    page = plain((ROOT / "docs" / "accuracy.md").read_text())
    assert [sentence for sentence in map(plain, accuracy()) if sentence not in page] == []


def test_the_summary_of_batches_follows_from_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    document, script = bench("batches"), importlib.import_module("batches")
    computed = script.summary_of(document["rows"])
    for name, figures in document["summary"].items():
        assert figures.items() <= computed[name].items()


@pytest.mark.parametrize(
    "path", sorted(RESULTS.glob("*/*float[36]*.json")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_means_and_pages_of_a_bench_follow_from_its_rows(path: Path) -> None:
    written, run = json.loads(path.read_text()), read_bench(path)
    computed = json.loads(bench_json(run))
    assert {key: value for key, value in written.items() if key.startswith("geomean")}.items() <= computed.items()
    assert [row for row, again in zip(written["rows"], computed["rows"], strict=True) if row != again] == []
    if not path.with_suffix(".md").exists():  # a page without a committed file is written on demand
        shown = path.stem in ("float32", "float64") and path.parent.name == "nvidia-h100-80gb-hbm3"
        assert not shown, "the site shows this page"
        return
    lines = [line for line in bench_markdown(run).splitlines() if line.startswith("|")]
    assert [line for line in path.with_suffix(".md").read_text().splitlines() if line.startswith("|")] == lines
