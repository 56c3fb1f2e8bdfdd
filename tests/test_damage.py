"""Files are damaged in 300 random ways. Commands print a line and no traceback, never hang, and lose nothing else."""

import contextlib
import gzip
import json
import random
import re
import time
import warnings
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from commands import Run, caller
from stored import make
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.families import parse
from tilewright.codegen.problem import Problem
from tilewright.runtime.store.store import Store
from tilewright.tuner.recording.entry import Entry
from tilewright.tuner.recording.files import Recording, write_cache_file
from tilewright.tuner.recording.journal import Journal
from tilewright.tuner.search.candidates import read_spaces
from tilewright.tuner.search.space import Dimension, Space

LIMIT_S = 5.0
OTHER = Problem(8, 8, 8)
DIMENSIONS = (Dimension("TILE", (16, 32, 64)), Dimension("ORDER", ("row", "column")))
SPACE = Space(DIMENSIONS, tuple((tile, order) for tile in range(3) for order in range(2)))
ENTRIES = {
    point: Entry("ok", 5.0 + row, (5.0 + row,), 0.5, 0.25) if row % 3 else Entry("timeout", bench_s=2.0, reason="slow")
    for row, point in enumerate(SPACE.points)
}
CONFIGS = [parse(f"tiled:{width},unroll={unroll}") for width in (8, 16, 32) for unroll in (1, 4)]
SPACE_FILE = b'family = "tiled"\n[parameters]\ntile_width = [4, 8]\nedge = ["bounds"]\nskew = [0]\nunroll = [4]\n'
SUITE_FILE = b'title = "mine"\nshapes = ["64", "1000x16x512", "3x4x5"]\n'
TOKENS = [
    b"1e999", b"-1", b"1" + b"0" * 30, b"1" + b"0" * 5000, b"NaN", b"true", b"null", b"[]", b"{}", b'""',
    b'"\\u001b[2J[/x]"', b'"=1+1"', b"[" * 3000, b"\x00", b"\xff\xfe", b"0.5", b'"' + b"x" * 3000 + b'"',
]  # fmt: skip
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:e-?\d+)?|true|false|null')


def flipped(data: bytes, chance: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(chance.choice((1, 1, 3, 20))):
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    return bytes(damaged)


def cut(data: bytes, chance: random.Random) -> bytes:
    begin, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    return chance.choice((data[:end], data[begin:], data[:begin] + data[end:]))


def swapped(data: bytes, chance: random.Random) -> bytes:
    """Swap two lines or other pieces, or copy one over the other."""
    pieces = data.split(b"\n") if chance.random() < 0.5 else re.split(rb"(?<=,)", data)
    one, other = chance.randrange(len(pieces)), chance.randrange(len(pieces))
    pieces[one], pieces[other] = pieces[other], pieces[one] if chance.random() < 0.7 else pieces[other]
    return (b"\n" if b"\n" not in pieces[0] and data.count(b"\n") + 1 == len(pieces) else b"").join(pieces)


def retyped(data: bytes, chance: random.Random) -> bytes:
    """Replace one or two words or numbers by ones of another type or size."""
    for _ in range(chance.choice((1, 1, 2))):
        token = chance.choice(list(_TOKEN.finditer(data)) or [re.match(b"", data)])
        assert token is not None
        data = data[: token.start()] + chance.choice(TOKENS) + data[token.end() :]
    return data


def packed(data: bytes, chance: random.Random) -> bytes:
    """Compress with gzip, and perhaps damage the result."""
    return chance.choice((flipped, cut, lambda data, chance: data))(gzip.compress(data), chance)


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (flipped, cut, swapped, retyped, packed)


class Damaged:
    """Files of each kind, and for each kind the commands and functions that use it once it is damaged."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.folder, self.run = folder, run
        self.store = Store(folder / "store")
        for problem in (Problem(16, 12, 8), OTHER):
            self.store.keep(make(5.0, problem, device="host-abacus"))
        self.record = next(path for path in (folder / "store" / "records").iterdir() if b'"m": 16' in path.read_bytes())
        self.journal = folder / "trials.jsonl"
        written = Journal(self.journal, "gemm")
        for config, entry in zip(CONFIGS, ENTRIES.values(), strict=True):
            written.add(config, entry, datetime(2026, 1, 2))
        self.recording = folder / "run.json"
        write_cache_file(self.recording, Recording("a device", "gemm", (64, 32, 16), DIMENSIONS, ENTRIES))
        (folder / "spaces").mkdir()
        self.space = folder / "spaces" / "mine.toml"
        self.space.write_bytes(SPACE_FILE)
        self.suite = folder / "mine.toml"
        self.suite.write_bytes(SUITE_FILE)
        self.whole = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def command(self, *arguments: str, statuses: tuple[int, ...], named: str = "") -> str:
        ran = self.run(*arguments)
        assert ran.status in statuses, (ran.status, ran.err)
        assert "Traceback" not in ran.err
        assert "unexpected" not in ran.err
        assert all(line.startswith(("tilewright: ", "note: ")) for line in ran.err.splitlines())
        assert all(line.isprintable() for line in (ran.out + ran.err).splitlines())
        if ran.status:
            assert ran.err.count("\n") >= 1
            assert named in ran.err
        return ran.out

    def use_record(self) -> None:
        out = self.command("show", "--store", str(self.store.root), "--csv", statuses=(0,))
        assert "host-abacus,8x8x8" in out
        self.command("show", "--store", str(self.store.root), statuses=(0,))

    def use_journal(self) -> None:
        opened = Journal(self.journal, "gemm")
        assert all(config == parse(str(config)) for config in opened.entries)  # damage may have changed a config
        assert len(opened.entries) <= len(CONFIGS)
        opened.add(CONFIGS[-1], Entry("ok", 1.5), datetime(2026, 1, 2))
        assert CONFIGS[-1] in Journal(self.journal, "gemm").entries

    def use_recording(self) -> None:
        replay = ("tune", "--device", f"replay:{self.recording}", "--sampler", "random", "--trials", "6")
        self.command(*replay, statuses=(0, 1, 2), named="")

    def use_space(self) -> None:
        spaces = None
        with contextlib.suppress(ConfigError):
            spaces = read_spaces(self.space.parent)
        if spaces is None:
            with pytest.raises(ConfigError, match=re.escape(str(self.space))):
                read_spaces(self.space.parent)

    def use_suite(self) -> None:
        arguments = ("emit", "--suite", str(self.suite), "--arch", "sm_80", "-o", str(self.folder / "out"))
        self.command(*arguments, statuses=(0, 2), named=str(self.suite))

    def try_one(self, seed: int) -> None:
        chance = random.Random(seed)
        kind = ("record", "journal", "recording", "space", "suite")[seed % 5]
        path: Path = getattr(self, kind)
        damage = DAMAGES[seed // 5 % len(DAMAGES)]
        bad = damage(self.whole[path], chance)
        path.write_bytes(bad)
        begin = time.monotonic()
        getattr(self, f"use_{kind}")()
        assert time.monotonic() - begin < LIMIT_S
        aside = list(path.parent.glob(f"{path.name}*.corrupt"))
        assert all(each.read_bytes() == bad for each in aside)  # the damaged file is kept for the user to look at
        for each in aside:
            each.unlink()
        changed = [p for p, data in self.whole.items() if p != path and p.read_bytes() != data]
        assert changed == []
        path.unlink(missing_ok=True)
        path.write_bytes(self.whole[path])


@pytest.mark.parametrize(
    "seeds", [range(50), *(pytest.param(range(n, n + 50), marks=pytest.mark.slow) for n in range(50, 300, 50))],
    ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}",
)  # fmt: skip
def test_damage_affects_only_the_damaged_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], seeds: range) -> None:
    damaged = Damaged(tmp_path, caller(capsys))
    with warnings.catch_warnings(record=True):  # the journal warns; the command line prints notes
        warnings.simplefilter("always")
        for seed in seeds:
            try:
                damaged.try_one(seed)
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise


def test_damages_change_files() -> None:
    data = json.dumps({"a": [1, 2.5, "x"], "b": None}, indent=1).encode()
    for damage in DAMAGES:
        assert sum(damage(data, random.Random(seed)) != data for seed in range(20)) >= 10
