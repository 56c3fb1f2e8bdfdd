"""The help of every command: whole sentences, whole on a screen of 80 columns, as tests/golden/help.txt has it."""

import inspect
import re

import click
import pytest
from tilewright.cli.commands import commands

pytestmark = pytest.mark.fast

COLUMNS = 80
FRAGMENT = re.compile(r"(About|As|At|By|For|From|In|It|Of|On|Only|Or|That|The same|These|Those|To|What|Whose|With)\b")
"""First words of a text that leans on the line before it, or on the name of its option."""
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


@pytest.mark.parametrize("option", OPTIONS)
def test_the_help_of_an_option_is_a_sentence(option: str) -> None:
    assert is_sentence(OPTIONS[option])
    assert not FRAGMENT.match(OPTIONS[option])


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
