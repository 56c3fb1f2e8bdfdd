"""The help of every command, as tests/golden/help.txt has it, and completion in a shell."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class
from tilewright.cli import values
from tilewright.cli.commands import commands, tune
from tilewright.codegen.families import families, parse
from tilewright.codegen.leaf import Leaf
from tilewright.codegen.mechanisms.split import USUAL_PARTS
from tilewright.runtime.device import nvml
from tilewright.tuner.bench.suites import suite_names

# ---- Help: whole sentences, whole on a screen of 80 columns -----------------------------------------------------


COLUMNS = 80
FRAGMENT = re.compile(r"(About|As|At|By|For|From|In|It|Of|On|Only|Or|That|The same|These|Those|To|What|Whose|With)\b")
"""First words of a text that makes no sense without the line before it or the name of its option."""
OPTIONS = {
    f"{name} {max(option.opts, key=len)}": option.help or ""
    for name, command in commands.commands.items()
    for option in command.params
    if isinstance(option, click.Option)
}


def screen(name: str = "") -> str:
    parent = commands.make_context("tilewright", [], resilient_parsing=True, terminal_width=COLUMNS - 2)
    if not name:
        return commands.get_help(parent)
    command = commands.commands[name]
    return command.get_help(command.make_context(name, [], parent, resilient_parsing=True))


def is_sentence(text: str) -> bool:
    return bool(re.fullmatch(r"(?s)[A-Z].*[A-Za-z0-9)]\.", text)) and ".." not in text


@pytest.mark.fast
@pytest.mark.parametrize("name", ["", *commands.commands])
def test_nothing_is_cut(name: str) -> None:
    text = screen(name)
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert "..." not in text.partition("\n")[2]
    words = " ".join(text.split())
    if name:
        helps = [help_ for option, help_ in OPTIONS.items() if option.partition(" ")[0] == name]
    else:
        helps = [command.short_help or "" for command in commands.commands.values()]
    assert [each for each in helps if each not in words] == []


@pytest.mark.fast
@pytest.mark.parametrize("option", OPTIONS)
def test_the_help_of_an_option_is_a_sentence(option: str) -> None:
    assert is_sentence(OPTIONS[option])
    assert not FRAGMENT.match(OPTIONS[option])


@pytest.mark.fast
@pytest.mark.parametrize("name", commands.commands)
def test_the_help_of_a_command_is_sentences_and_examples(name: str) -> None:
    command = commands.commands[name]
    first, *paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    assert is_sentence(first)
    assert not FRAGMENT.match(first)
    assert command.short_help == first
    for paragraph in paragraphs:
        examples = paragraph.removeprefix("\b\n") if paragraph.startswith("\b") else ""
        assert is_sentence(paragraph) or examples
        assert all(line.startswith(("tune ", "tilewright ")) for line in examples.splitlines())


# ---- Completion: what is offered where, that it is quick, and that it writes nothing ----------------------------


SLOW = {"jinja2", "numpy", "optuna", "rich"}
"""Packages that take long to import."""


def offered(line: str, shell: str = "zsh") -> list[str]:
    """Values that a shell offers for the end of a line, without names of files."""
    entry: click.Command = tune if line.startswith("tune ") else commands
    kind = get_completion_class(shell)
    assert kind is not None
    *before, incomplete = line.split(" ")
    completer = kind(entry, {}, before[0], "_COMPLETE")
    return [item.value for item in completer.get_completions(before[1:], incomplete) if item.type == "plain"]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tilewright e", ["emit", "explain"]),
        ("tune --dt", ["--dtype"]),
        ("tune --dtype ", ["float", "double"]),
        ("tilewright show --dtype d", ["double"]),
        ("tune --trans t", ["tn", "tt"]),
        ("tune --accuracy n", ["normwise"]),
        ("tune --device r", ["replay:"]),
        ("tune --sampler ", ["local", "gp", "tpe", "random", "exhaustive", "optuna:"]),
        ("tilewright emit --arch sm_9", ["sm_90a"]),
        ("tilewright explain --device-key nvidia-h2", ["nvidia-h200"]),
        ("tune --suite h", ["hard"]),
        ("tune --config n", ["naive:"]),
        ("tune --config naive:8x32,", ["naive:8x32,unroll=", "naive:8x32,edge="]),
        ("tune --config naive:8x32,e", ["naive:8x32,edge="]),
        ("tune --config naive:8x32,edge=p", ["naive:8x32,edge=pad"]),
        ("tune --config naive:3", ["naive:32x"]),
        ("tune --config naive:32x12", ["naive:32x128"]),
        ("tune --config naive:32x32x", []),
        ("tune --config tiled:16,s", ["tiled:16,skew"]),
        ("tune --config tiled:16,skew,s", []),
        ("tune --config simt:64x64x8,thread=4x8", ["simt:64x64x8,thread=4x8"]),
        ("tune --config simt:64x64x8,stream_k=", [f"simt:64x64x8,stream_k={parts}" for parts in (1, 2, 3, 4)]),
        ("tune --config simt:64x64x8,stream_k=2,split", []),
        ("tune --config none:", []),
        ("tune --shape 64 --config tiled:16 --rep", ["--replace"]),
        ("tune --shape nonsense --seed x --csv /nowhere/at/all --rep", ["--replace"]),
    ],
)
def test_what_is_offered(line: str, words: list[str]) -> None:
    assert offered(line) == words


@pytest.mark.fast
def test_the_gpus_that_the_driver_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "gpu_count", lambda: 2)
    assert offered("tilewright bench --device ") == ["auto", "cuda", "host", "cuda:0", "cuda:1"]


@pytest.mark.fast
def test_every_family_with_all_its_parameters() -> None:
    assert offered("tilewright bench --config ") == [f"{name}:" for name in families()]
    for name, kind in families().items():
        names = {each.removesuffix("=").rpartition(",")[2] for each in offered(f"tune --config {name}:1,")}
        joined = {part: key for key, parts in kind.joined for part in parts}
        own: list[Leaf] = [leaf for leaf in kind.leaves() if leaf.name not in ("mode", "parts")]
        modes = {mode.value for mode in USUAL_PARTS if mode.value != "none"} if len(own) < len(kind.leaves()) else set()
        assert names == {joined.get(leaf.name, leaf.name) for leaf in own} - {""} | modes


@pytest.mark.fast
def test_a_config_that_is_completed_to_its_end_is_valid() -> None:
    for name in families():
        text = f"{name}:"
        while not text[-1].isdigit():
            text = offered(f"tune --config {text}")[0]
        assert str(parse(text)).startswith(f"{name}:")


@pytest.mark.fast
def test_suites_and_files_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "b.toml", "c.txt"):
        Path(name).touch()
    assert offered("tune --suite ") == [*suite_names(), "a.csv", "b.toml"]
    kind = get_completion_class("bash")
    assert kind is not None
    others = kind(tune, {}, "tune", "_").get_completions(["--suite"], "/else")
    assert [item.type for item in others] == ["file"]


@pytest.mark.fast
def test_completion_tries_no_file_that_the_line_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(values, "check_output", lambda name, path: pytest.fail(f"{name} is tried"))
    assert offered(f"tune --json {tmp_path}/x --csv - --rep") == ["--replace"]


@pytest.mark.fast
def test_scripts_allow_commas_in_values_and_add_no_blank() -> None:
    """The scripts are click's with parts replaced, which another version of click may lack."""
    for shell, change in (("zsh", "compadd -U -V unsorted -S '' -a parts"), ("fish", "string split --max 1")):
        kind = get_completion_class(shell)
        assert kind is not None
        assert change in kind(tune, {}, "tune", "_TUNE_COMPLETE").source()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_takes_a_config_as_one_word(tmp_path: Path) -> None:
    """Bash splits words at `:` and `=`, and an offer replaces the last part. No file is written."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "bin").mkdir()
    for name, entry in (("tune", "main_tune"), ("tilewright", "main")):
        program = tmp_path / "bin" / name
        program.write_text(f"#!{sys.executable}\nfrom tilewright.cli import {entry}\n{entry}()\n")
        program.chmod(0o755)
    lines = ("tune --config naive:8x32,ed", "tune --config=naive:8x32,edge=p", "tilewright dev", "tune --store /et")
    script = f"""
        export PATH={tmp_path}/bin:$PATH
        source <(_TUNE_COMPLETE=bash_source tune) && source <(_TILEWRIGHT_COMPLETE=bash_source tilewright) || exit
        compopt() {{ echo "$2"; }}
        while read -r COMP_LINE; do
            COMP_POINT=${{#COMP_LINE}} COMPREPLY=()
            "_${{COMP_LINE%% *}}_completion" "${{COMP_LINE%% *}}"
            echo "${{COMPREPLY[@]}}"
        done
    """
    folders = {name: str(tmp_path / "empty" / name) for name in ("HOME", "TILEWRIGHT_CACHE", "TILEWRIGHT_STORE")}
    done = subprocess.run(
        ["bash", "-c", script], input="\n".join(lines) + "\n", cwd=tmp_path / "empty", env={**os.environ, **folders},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.split("\n") == ["nospace", "8x32,edge=", "pad", "devices", "dirnames", "", ""]
    assert done.stderr == ""
    assert list((tmp_path / "empty").iterdir()) == []


def test_nothing_slow_is_imported() -> None:
    code = """
import os, sys
os.environ |= {"_TUNE_COMPLETE": "zsh_complete", "COMP_WORDS": sys.argv[1], "COMP_CWORD": "4"}
from tilewright.cli import main_tune
try:
    main_tune([])
finally:
    print(*sys.modules, file=sys.stderr)
"""
    line = "tune --json /nowhere/x --config simt:"
    done = subprocess.run([sys.executable, "-c", code, line], capture_output=True, text=True, timeout=60, check=True)
    assert "simt:64x" in done.stdout.split()
    assert SLOW & set(done.stderr.split()) == set()
