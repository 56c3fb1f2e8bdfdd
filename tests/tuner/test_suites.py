"""Lists of shapes: the files of benchmarks/suites/, and the user's own in three formats."""

import os
from pathlib import Path

import pytest
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.problem import DType, Problem
from tilewright.tuner.bench import suites
from tilewright.tuner.bench.suites import suite_names, suite_problems

pytestmark = pytest.mark.fast

BAD = [
    ("mine.toml", "shapes = [", "Invalid value"),
    ("mine.toml", 'title = "x"', "it wants a list of shapes"),
    ("mine.toml", "shapes = []", "it wants a list of shapes"),
    ("mine.toml", "shapes = 5", "it wants a list of shapes"),
    ("mine.toml", 'shapes = ["5", 3]', "entry 2: an entry is MxNxK or has m, n and k, got 3"),
    ("mine.toml", 'shapes = ["3x3"]', "entry 1: shape must be MxNxK or one number, got '3x3'"),
    ("mine.toml", "shapes = [{m = 1, n = 2, k = 1979-05-27}]", "entry 1: k must be a whole number, got datetime.date"),
    ("mine.json", "[", "Expecting value"),
    ("mine.json", "[" * 200_000, "nested too deeply"),
    ("mine.json", '"5"', "it wants a list of shapes"),
    ("mine.json", '["5x0x5"]', "entry 1: a dimension is 0 in 5x0x5 float nn"),
    ("mine.json", '["5", {"m": 1, "n": 2}]', "entry 2: k must be a whole number, got None"),
    ("mine.json", '[{"m": 1, "n": 2.0, "k": 3}]', "entry 1: n must be a whole number, got 2.0"),
    ("mine.json", '[{"m": true, "n": 2, "k": 3}]', "entry 1: m must be a whole number, got True"),
    ("mine.json", '[{"m": 1, "n": 2, "k": -3}]', "entry 1: shape must be MxNxK or one number, got '1x2x-3'"),
    ("mine.json", '[{"m": 4294967296, "n": 2, "k": 3}]', "entry 1: m must be in 0..2^31-1, got 4294967296"),
    ("mine.json", '[{"m": 1, "n": 2, "k": 3, "dtype": "half"}]', "entry 1: dtype must be float or double, got 'half'"),
    ("mine.json", '[{"m": 1, "n": 2, "k": 3, "trans": ["n"]}]', "entry 1: trans must be nn, nt, tn or tt, got ['n']"),
    (
        "mine.json",
        '[{"m": 1, "n": 2, "k": 3, "type": 5}]',
        "entry 1: an entry has m, n, k, dtype, trans, accuracy, batch, got 'type'",
    ),
    ("mine.csv", "", "its first line must be m,n,k and perhaps ,dtype, ,trans, ,accuracy and ,batch, got ''"),
    (
        "mine.csv",
        "5,6,7\n",
        "its first line must be m,n,k and perhaps ,dtype, ,trans, ,accuracy and ,batch, got '5,6,7'",
    ),
    ("mine.csv", "m,n,k,m\n", "its first line must be"),
    ("mine.csv", "m,n,k\n5,6,7\n1,2\n", "line 3: k must be a whole number, got None"),
    ("mine.csv", "m,n,k\n\n1,2,3,4\n", "line 3: an entry is MxNxK or has m, n and k, got ['1', '2', '3', '4']"),
    ("mine.csv", 'm,n,k\n"1,2,3\n', "unexpected end of data"),
    ("mine.csv", "m,n,k\n5,=1+1,7\n", "line 2: n must be a whole number, got '=1+1'"),
    ("mine.csv", b"m,n,k\n\xff,1,1\n", "no UTF-8 text, from byte 6 on"),
]


def test_the_public_suite_has_its_shapes() -> None:
    shapes = [problem.shape for problem in suite_problems("public")]
    assert len(shapes) == len(set(shapes)) == 26
    assert shapes[0] == "1024x768x512"
    assert {"1x4096x4096", "64x64x65536", "65536x64x64", "3072x1500x1024"} < set(shapes)


@pytest.mark.parametrize("name", suite_names())
def test_each_suite_can_be_read(name: str) -> None:
    problems = suite_problems(name, "double", "tn")
    assert {problem.dtype for problem in problems} == {DType.DOUBLE}
    assert {problem.trans for problem in problems} == ({"tn"} if name != "hard" else {"tn", "nt", "tt"})


def test_an_unknown_suite_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(ConfigError, match=r"ending in .toml, .json, .csv or one of hard, public, small, got '../x'"):
        suite_problems("../x")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.toml", 'shapes = ["3x4x5", {m = 6, n = 7, k = 8, dtype = "double"}, {m = 9, n = 9, k = 9, trans = "tt"}]'),
        ("b.toml", '[[shapes]]\nm=3\nn=4\nk=5\n[[shapes]]\nm=6\nn=7\nk=8\ndtype="f64"\n[[shapes]]\nm=9\nn=9\nk=9\n'
                   'trans="tt"'),
        ("c.json", '["3x4x5", {"m": 6, "n": 7, "k": 8, "dtype": "double"}, {"m": 9, "n": 9, "k": 9, "trans": "tt"}]'),
        ("D.JSON", '{"shapes": ["3x4x5", "3x4x5", {"m": 6, "n": 7, "k": 8, "dtype": "double"},'
                   '{"m": 9, "n": 9, "k": 9, "trans": "tt"}]}'),
        ("e.csv", "m,n,k,dtype,trans\n3,4,5\n6,7,8,double\n9,9,9,,tt\n"),
        ("f.csv", "\ufeffM, N, K, Trans, DType\r\n3, 4, 5,,\r\n\r\n6,7,8,,float64\r\n9,9,9,tt\r\n"),
    ],
)  # fmt: skip
def test_files_of_the_users_own(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert suite_problems(str(tmp_path / name), "float", "nt") == (
        Problem(3, 4, 5, trans_b=True),
        Problem(6, 7, 8, DType.DOUBLE, trans_b=True),
        Problem(9, 9, 9, trans_a=True, trans_b=True),
    )


@pytest.mark.parametrize(("name", "text", "words"), BAD)
def test_a_bad_file_is_refused_with_its_entry(tmp_path: Path, name: str, text: str | bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as raised:
        suite_problems(str(path))
    assert str(raised.value).startswith(f"suite {path}: ")
    assert str(raised.value).removeprefix(f"suite {path}: ").startswith(words) or ": " not in words
    assert words in str(raised.value)
    assert len(str(raised.value)) < 300


def test_a_file_may_lie_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine.csv").write_text("m,n,k\n5,6,7\n")
    assert [each.shape for each in suite_problems("~/mine.csv")] == ["5x6x7"]
    with pytest.raises(ConfigError) as raised:
        suite_problems("~/other.csv")
    reason = "No such file or directory; name another file"
    assert str(raised.value) == f"cannot read the suite {tmp_path}/other.csv: {reason}"


def test_large_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("m,n,k\n" + "".join(f"{size},1,1\n" for size in range(1, 12)))
    monkeypatch.setattr(suites, "MAX_PROBLEMS", 10)
    with pytest.raises(ConfigError, match="it has 11 shapes, 10 are taken at most"):
        suite_problems(str(path))
    path.write_bytes(b" " * (1 << 20) + b"5")
    with pytest.raises(ConfigError, match=r"cannot read the suite .*: larger than"):
        suite_problems(str(path))


BROKEN = [
    "shapes = [",
    'title = "x"',
    "shapes = []",
    "shapes = [3]",
    "shapes = 3",
    'shapes = ["3x"]',
    'shapes = ["99999999999"]',
    "shapes = [1" + "0" * 5000 + "]",
    "shapes = " + "[" * 5000,
    "\x00",
]


@pytest.mark.parametrize("text", [*BROKEN, None])
def test_a_broken_file_is_named(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"suite .*mine.toml: ") as caught:
        suite_problems(str(tmp_path / "mine.toml"))
    assert "\n" not in str(caught.value)


def test_a_pipe_is_no_suite(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mine.toml")
    with pytest.raises(ConfigError, match=r"suite .*mine.toml: not a regular file"):
        suite_problems(str(tmp_path / "mine.toml"))
