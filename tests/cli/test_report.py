"""`tilewright report`: its pages say what was measured, stand alone, and turn none of their data into markup."""

import json
import re
import shlex
import stat
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import pytest
import tilewright
from commands import Run
from stored import DEVICE, INFO, PROBLEM, make
from tilewright.cli.commands import commands
from tilewright.codegen.families import parse
from tilewright.runtime.store.store import Store
from tilewright.tuner.recording.files import Entry, Recording, read_cache_file, write_cache_file
from tilewright.tuner.report import counters
from tilewright.tuner.search.space import Dimension

pytest.importorskip("matplotlib")
RESULTS = Path(tilewright.__file__).resolve().parent / "benchmarks/results/nvidia-h200"
RECORDED = RESULTS / "recordings/float-16x4096x4096.json.gz"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}$x^2$"
VOID = {"meta", "wbr", "input", "img", "br", "link"}
TWO_MB = 2_000_000
MINUTE = r"\d{4}-\d\d-\d\d \d\d:\d\d"


class Page(HTMLParser):
    """The elements of a page, its text, and the text of each table's cells."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open[-1:]):
            self.words.append(data)
        if "table" in self.open and self.tables[-1] and self.tables[-1][-1]:
            self.tables[-1][-1][-1] += data.strip()

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def assert_stands_alone(self) -> None:
        """Assert that the page is small, names no address, loads nothing and has one script."""
        assert "://" not in self.source
        assert "@import" not in self.source
        assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in self.elements}
        loaded = [attrs for _, attrs in self.elements if "src" in attrs]
        targets = {str(attrs["href"])[0] for _, attrs in self.elements if "href" in attrs}
        assert loaded == []
        assert targets <= {"#"}
        assert set(re.findall(r"url\((.)", self.source)) <= {"#"}
        assert [tag for tag, _ in self.elements].count("script") == 1
        assert not [name for _, attrs in self.elements for name in attrs if name.startswith("on")]
        names = [attrs["id"] for _, attrs in self.elements if "id" in attrs]
        assert len(names) == len(set(names))
        assert len(self.source.encode()) < TWO_MB


def reported(run: Run, tmp_path: Path, *arguments: str) -> Page:
    file = tmp_path / "page.html"
    ran = run("report", *arguments, "-o", str(file))
    assert (ran.status, ran.out) == (0, f"wrote {file}\n"), ran.err
    page = Page(file)
    page.assert_stands_alone()
    return page


def check_commands(page: Page) -> None:
    """Assert that the command line accepts every tilewright command on a page."""
    texts = [unescape(text) for text in re.findall(r'<pre class="command"><code>(.*?)</code>', page.source)]
    ours = [words for words in map(shlex.split, texts) if words[0] == "tilewright"]
    assert len(ours) >= 2
    for _, name, *words in ours:
        command = commands.get_command(click.Context(commands), name)
        assert command is not None
        command.make_context(name, words)


def table_with(page: Page, heading: str) -> list[list[str]]:
    """The table that has a column of this heading."""
    return next(table for table in page.tables if heading in table[0])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording with a quarter of RECORDED's trials, so that its pages are made sooner."""
    recording, path = read_cache_file(RECORDED), tmp_path_factory.mktemp("recorded") / "quarter.json"
    write_cache_file(path, replace(recording, entries=dict([*recording.entries.items()][::4])))
    return path


def test_a_recording_of_a_gpu(run: Run, tmp_path: Path, recorded: Path) -> None:
    page = reported(run, tmp_path, "--recording", str(recorded))
    recording = read_cache_file(recorded)
    record = Store(tmp_path).best(DEVICE, PROBLEM.__class__(16, 4096, 4096))
    assert record is not None
    assert record.measurement is not None
    for text in ("16x4096x4096 float nn on NVIDIA H200", str(record.config), f"{record.median_us:.2f} us", "waves"):
        assert text in page.text
    assert "FLOP for each byte that CTAs load or store" in page.text
    assert "PED-ANOVA" in page.text
    assert f"tilewright emit --shape 16x4096x4096 --dtype float --arch sm_90a --config {record.config}" in (page.text)
    trials = table_with(page, "x best")
    assert len(trials) == 1 + len(recording.entries)
    assert trials[1][0] == f"{recording.best_us:.2f}"
    assert all(len(row) == len(trials[0]) for row in trials)
    times = [float(row[0].replace(",", "")) for row in trials[1:]]
    assert times == sorted(times)
    assert [table[0][:2] for table in page.tables if "variant" in table[0]] == [
        ["us", "variant"]
    ] * 2  # for narrow screens
    assert [table[0][0] for table in page.tables if "registers" in table[0]] == ["us"]  # one number for each variant
    assert "quarter.json; 2026-11-21; compiler NVRTC 13.0." in page.text
    assert dict(record.versions)["generator"] in page.text
    assert page.source.count("<title>") > 100  # each dot has one
    check_commands(page)
    kernel = page.source[page.source.index("<summary>CUDA C++") :]
    assert "__global__" in kernel
    assert "kBlockN" in kernel  # a name in the figure at its head


def test_the_table_of_trials_says_what_it_leaves_out(
    run: Run, tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.tuner.report.tables.ROOM_BYTES", 3000)
    page = reported(run, tmp_path, "--recording", str(recorded))
    shown = len(table_with(page, "x best")) - 1
    assert 5 < shown < 30
    assert f"{853 - shown:,} slower or failed ones are left out" in page.text


def test_tables_sort_and_charts_follow_the_scheme(run: Run, tmp_path: Path, recorded: Path) -> None:
    page = reported(run, tmp_path, "--recording", str(recorded))
    sortable = [attrs for tag, attrs in page.elements if tag == "table" and attrs.get("class") == "sortable"]
    heads = [tag for tag, _ in page.elements if tag == "th"]
    assert len(sortable) == 3
    assert 'querySelectorAll("table.sortable")' in page.source
    assert page.source.count("<button") > 0.6 * len(heads)
    assert "prefers-color-scheme: dark" in page.source
    svgs = re.findall(r"<svg.*?</svg>", page.source, re.DOTALL)
    assert len(svgs) == 4  # two charts at two widths
    colours = set(re.findall(r"#[0-9a-f]{6}\b", "".join(svgs)))
    assert colours == set()  # the page sets all colours
    assert all("<text" in svg and "var(--ink)" in svg for svg in svgs)


def names(trials: list[list[str]]) -> list[str]:
    """The variants of a table of trials, sorted: a recording rounds times, so the last digit shown may differ."""
    place = trials[0].index("variant")
    return sorted(row[place] for row in trials)


def test_a_tuning_of_the_processor(run: Run, tmp_path: Path) -> None:
    results, recording = tmp_path / "r.json", tmp_path / "rec.json"
    tuned = ("--shape", "24x20x16", "--trials", "6", "--seconds", "20", "--device", "host")
    assert run("tune", *tuned, "--json", str(results), "--record", str(recording)).status == 0
    page = reported(run, tmp_path, "--shape", "24x20x16")
    assert "these times say nothing about a GPU" in page.text
    assert re.search(rf"journal in the store; {MINUTE}\. ", page.text)
    assert re.search(r"compiler.*-std=c\+\+17.*driver.*generator\S+", page.text)
    assert "Roofline" not in page.text
    check_commands(page)
    (best,) = Store().layers()[0]
    tune, bench = (f"tilewright {name} --shape 24x20x16 --dtype float" for name in ("tune", "bench"))
    assert f"{tune} --trials 6 --device host" in page.text
    assert f"{bench} --config {best.config} --device host" in page.text
    trials = table_with(page, "x best")
    assert len(trials) == 7
    place = trials[0].index("err/bound")
    assert all(0 < float(row[place]) <= 1 for row in trials[1:])
    from_files = reported(run, tmp_path, "--results", str(results), "--recording", str(recording))
    duel = table_with(from_files, "x NumPy")
    assert len(duel) == 1 + len(json.loads(results.read_text())[0]["contenders"])
    assert duel[0][:2] == ["us", "variant"]
    assert "NumPy" in [row[1] for row in duel]
    assert re.search(rf"rec\.json; {MINUTE} UTC\. ", from_files.text)  # with the versions of the record
    assert re.search(rf" r\.json; {MINUTE} UTC\. ", from_files.text)
    assert names(table_with(from_files, "x best")) == names(trials)


def test_a_record_without_trials(run: Run, tmp_path: Path, own_folders: Path) -> None:
    page = reported(run, tmp_path, "--shape", "4096", "--device-key", DEVICE)
    assert "The trials of this tuning are not stored here" in page.text
    assert "Least times" in page.text
    assert "of this tuning only the winner is stored" in page.text


@pytest.mark.parametrize(
    ("device", "family", "words"),
    [
        ("NVIDIA ABACUS", "tiled", "This version has no facts of NVIDIA ABACUS: nothing is said on the limits"),
        (
            "NVIDIA H200",
            "abacus",
            "This version does not have the winner's variant: nothing is said on what limits it.",
        ),
    ],
)
def test_a_page_says_why_it_has_no_limits(run: Run, tmp_path: Path, device: str, family: str, words: str) -> None:
    dimensions = (Dimension("family", (family,)), Dimension("tile_width", (8,)))
    recording = Recording(device, "gemm float nn", (64, 64, 65), dimensions, {(0, 0): Entry("ok", 9.0)})
    write_cache_file(tmp_path / "r.json", recording)
    page = reported(run, tmp_path, "--recording", str(tmp_path / "r.json"))
    assert words in page.text
    assert "Least times" not in page.text
    assert "Roofline" not in page.text


def test_benches(run: Run, tmp_path: Path) -> None:
    files = [RESULTS / "float32.json", RESULTS / "float64.json"]
    page = reported(run, tmp_path, *(word for file in files for word in ("--bench", str(file))))
    for file in files:
        document = json.loads(file.read_text())
        assert f"{document['geomean_ratio_cublas']:.3f}" in page.text
        shapes = [f"{row['m']}x{row['n']}x{row['k']}" for row in document["rows"]]
        tables = [table for table in page.tables if [row[0] for row in table[1:-1]] == shapes]
        assert len(tables) == 2 - (file is files[1])  # both have the same shapes
        assert all(table[-1][0] == "geometric mean" for table in tables)
        page.tables.remove(tables[0])
        date, versions = document["date"], document["versions"]
        assert f"Measured {date[:10]} {date[11:16]} UTC; compiler {versions['compiler']}; " in page.text
        first = f"1024x768x512: {document['rows'][0]['ratio_cublas']:.3f} x cuBLAS ("
        assert page.source.count(f"<title>{first}") == 1
    check_commands(page)


def test_hostile_words_of_a_recording_stay_text(run: Run, tmp_path: Path) -> None:
    dimensions = (Dimension("family", ("tiled", HOSTILE)), Dimension(HOSTILE, ("absent", HOSTILE)))
    entries = {
        (1, 1): Entry("ok", 12.5, (12.5,)),
        (0, 1): Entry("crashed", reason=HOSTILE),
        (0, 0): Entry("ok", 10.0, (10.0,)),
    }
    recording = Recording(HOSTILE, "gemm float nn", (64, 64, 64), dimensions, entries)
    write_cache_file(tmp_path / "r.json", recording)
    page = reported(run, tmp_path, "--recording", str(tmp_path / "r.json"))
    assert f"64x64x64 float nn on {HOSTILE}" in page.text
    assert page.text.count(HOSTILE) >= 5
    assert "img" not in {tag for tag, _ in page.elements}


def test_hostile_words_of_a_bench_stay_text(run: Run, tmp_path: Path) -> None:
    document = json.loads((RESULTS / "float32.json").read_text())
    document["device_facts"]["name"] = document["date"] = HOSTILE
    document["versions"] = {HOSTILE: HOSTILE}
    document["missing"] = [HOSTILE]
    document["rows"] = document["rows"][:2]
    document["rows"][0] |= {"config": HOSTILE, "origin": HOSTILE, "notes": [HOSTILE]}
    document["rows"][1] |= {"status": "crashed", "reason": HOSTILE}
    (tmp_path / "b.json").write_text(json.dumps(document))
    page = reported(run, tmp_path, "--bench", str(tmp_path / "b.json"))
    assert page.text.count(HOSTILE) >= 7
    assert "img" not in {tag for tag, _ in page.elements}


def changed(**fields: Any) -> str:
    return json.dumps(json.loads((RESULTS / "float32.json").read_text()) | fields)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--shape, --recording, --results or --bench"),
        (("--shape", "9x9"), "'9x9'"),
        (("--shape", "9x9x0"), "a dimension is 0"),
        (("--shape", "7x7x7"), "nothing is stored of 7x7x7 float nn"),
        (("--recording", str(RECORDED), "--shape", "64"), f"{RECORDED} is of 16x4096x4096 float nn, not of 64x64x64"),
        (("--recording", "nowhere"), "cannot read the recording nowhere"),
        (("--shape", "1024x768x512", "--device-key", "abacus"), "on abacus: --device-key may be nvidia-h100-80gb-hbm3"),
        (("--results", "nowhere"), "cannot read the results nowhere: No such file"),
        (("--bench", "nowhere"), "cannot read the bench nowhere: No such file"),
        (("--bench", "~/nowhere"), f"cannot read the bench {Path.home()}/nowhere"),
        (("--bench", str(RECORDED)), "not what bench --json writes"),
        (("--results", str(RESULTS / "float32.json")), "not what tune --json writes: it is no list of results"),
        (("--bench", str(RESULTS / "float32.json"), "--shape", "64"), "--bench excludes --shape; leave out one"),
    ],
)
def test_bad_input_is_one_line(run: Run, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    ran = run("report", *arguments, "-o", str(tmp_path / "x.html"))
    assert ran.status == 2
    assert words in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "[" * 5000,
        changed(rows=[]),
        changed(rows=[{}]),
        changed(versions=3),
        changed(device_facts={"arch": "sm_1"}),
        changed(rows=[json.loads(changed())["rows"][0] | {"cublas_us": -1}]),
        changed(rows=[json.loads(changed())["rows"][0] | {"ours_us": "fast"}]),
        changed(rows=[json.loads(changed())["rows"][0] | {"ours_us": float("inf")}]),
        changed(rows=[json.loads(changed())["rows"][0] | {"cublas_us": 1e-308}]),
        changed(rows=[json.loads(changed())["rows"][0] | {"ratio_cublas_interval": [0, 1]}]),
    ],
)
def test_a_damaged_bench_is_one_line(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "b.json").write_text(text)
    ran = run("report", "--bench", str(tmp_path / "b.json"), "-o", str(tmp_path / "x.html"))
    assert ran.status == 2
    assert "b.json: not what bench --json writes: " in ran.err
    assert "indices" not in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_damaged_journal_gives_its_whole_lines(run: Run, tmp_path: Path, own_folders: Path) -> None:
    assert run("tune", "--shape", "16", "--trials", "4", "--seconds", "20", "--device", "host").status == 0
    (journal,) = (own_folders / "trials").glob("*.jsonl")
    whole = journal.read_text()
    first = json.loads(whole.splitlines()[1])["config"]
    times = [json.dumps({"config": first, "time_us": us, "status": "ok"}) for us in (float("inf"), 1e-300, -1)]
    bad = ['{"config":"tiled:9","time_us":1,"status":"ok"}', '{"point":[0],"time_us":1,"status":"ok"}', "[]", "\x00"]
    bad += ['{"config":3}']
    journal.write_text("\n".join([whole.splitlines()[0], *bad, *times, *whole.splitlines()[1:]]) + "\n")
    page = reported(run, tmp_path, "--shape", "16")
    assert len(table_with(page, "x best")) == 5


NCU = """#!/bin/sh
echo '==PROF== Connected to process 1'
echo '"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"'
echo '"0","gemm_x","GPU Speed Of Light Throughput","Duration","ns","21,504"'
echo '"0","gemm_x","GPU Speed Of Light Throughput","","",""'
echo '"0","gemm_x","Memory Workload Analysis","Memory Throughput","byte/s","122,740,425,531.91"'
echo '"0","gemm_x","Occupancy","Achieved Occupancy","%","18.7"'
echo '"0","gemm_x","Memory Workload Analysis","L2 Hit Rate","%","83.1"'
"""
REFUSED = """#!/bin/sh
echo '==ERROR== ERR_NVGPUCTRPERM - no permission to access the counters'
exit 1
"""


@pytest.mark.parametrize(
    ("program", "words"),
    [("", "PATH has no ncu"), (REFUSED, "gave no counters: ==ERROR== ERR_NVGPUCTRPERM"), (NCU, "")],
)
def test_counters(
    run: Run, tmp_path: Path, own_folders: Path, monkeypatch: pytest.MonkeyPatch, program: str, words: str
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    if program:
        (folder / "ncu").write_text(program)
        (folder / "ncu").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(counters, "available", lambda: ((INFO,), ""))
    Store(own_folders).keep(make(10.0, config=parse("tiled:16")))
    file = tmp_path / "page.html"
    ran = run("report", "--shape", "1024x768x512", "--device-key", DEVICE, "--ncu", "-o", str(file))
    assert ran.status == 0
    page = Page(file)
    page.assert_stands_alone()
    assert words in page.text
    assert words in ran.err
    assert len(ran.err.splitlines()) == bool(words)
    if not words:
        assert table_with(page, "counter")[1:] == [
            ["GPU Speed Of Light Throughput"],
            ["Duration", "21.50", "us"],
            ["Memory Workload Analysis"],
            ["Memory Throughput", "122.7", "GB/s"],
            ["L2 Hit Rate", "83.1", "%"],
            ["Occupancy"],
            ["Achieved Occupancy", "18.7", "%"],
        ]


def test_counters_are_of_the_gpu_that_was_tuned(run: Run, tmp_path: Path) -> None:
    ran = run("report", "--shape", "4096", "--device-key", DEVICE, "--ncu", "-o", str(tmp_path / "page.html"))
    assert ran.status == 0
    assert ran.err.count("\n") == 1
    assert "--ncu needs" in ran.err


def test_without_matplotlib_it_says_how_to_get_it(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ran = run("report", "--recording", str(RECORDED), "-o", str(tmp_path / "page.html"))
    assert (ran.status, ran.err) == (
        2,
        "tilewright: a report needs matplotlib; get it with pip install 'tilewright[plot]'\n",
    )
