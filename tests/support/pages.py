"""Pages of the reference that are generated from the code: the command line, and every parameter of a config.

`python tests/golden/regenerate.py` writes them, and the tests of the golden files compare them with the code.
"""

import ast
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import click
from tilewright.cli.commands import commands
from tilewright.codegen.config import Config
from tilewright.codegen.families import families
from tilewright.codegen.leaf import Leaf
from tilewright.codegen.legality import COMMON
from tilewright.codegen.mechanisms.split import PARTS

_WRITTEN = "<!-- Written by tests/golden/regenerate.py from the code: change the code. -->\n"
_PLACED = re.compile(r"([,:] (?:not )?)?\{c\.(?:\w+\.)*(\w+)\},?")


def reference_pages() -> dict[str, str]:
    """Text of each page by its path from the root of the checkout."""
    return {"docs/reference/commands.md": commands_page(), "docs/reference/parameters.md": parameters_page()}


def commands_page() -> str:
    """Every command with its options."""
    lines = [
        "# Command line",
        "",
        _WRITTEN,
        "This page lists every command and every option, as `--help` does. [Library and command",
        "line](../using.md#from-the-command-line) shows how commands are used together. `tune` is `tilewright tune`.",
        "",
        *_listed(str(commands.help).split("\n\n")[1]),
    ]
    for name, command in sorted(commands.commands.items()):
        lines += ["", f"## tilewright {name}", "", *_help(str(command.help)), "", *_options(name, command)]
    return "\n".join(lines) + "\n"


def _help(text: str) -> Iterator[str]:
    """Help of a command: examples as a block of code, other paragraphs as they are."""
    for number, paragraph in enumerate(inspect.cleandoc(text).split("\n\n")):
        if number:
            yield ""
        if paragraph.startswith("\b"):
            yield from ("```text", *textwrap.dedent(paragraph.removeprefix("\b").strip("\n")).splitlines(), "```")
        else:
            yield from _listed(paragraph)


def _options(name: str, command: click.Command) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if record is None:
            continue
        names, meaning = record
        default = re.search(r"  \[default: ([^;]*)(?:; (.*))?\]$", meaning)
        meaning = meaning[: default.start()] if default else meaning
        sentence = (
            f" The default is `{default[1]}`" + f", of `{default[2]}`" * bool(default[2]) + "." if default else ""
        )
        yield from _listed(f"`{names}`: {_escaped(meaning)}{sentence}", "- ")


def parameters_page() -> str:
    """Every parameter of every family, with its values, the words among them, and the rules."""
    lines = [
        "# Parameters of a config",
        "",
        _WRITTEN,
        *_listed(
            "A config names a family, its tile, and what differs from the family's defaults: "
            "`simt:128x256x8,thread=16x8,stream_k=1`. A switch is written by its name alone or as `name=1`. Vectors "
            "and guards follow from the problem and have no parameter. "
            "[The glossary](../../CONTRIBUTING.md#glossary) explains the words."
        ),
        "",
        *_listed(
            "A config that breaks a rule is never compiled. A name in a rule that is no parameter, such as `least_k`, "
            "follows from the parameters. Every family keeps these rules:"
        ),
        "",
        *(f"- {_rule(rule.reason)}" for rule in COMMON),
    ]
    words: dict[str, type[enum.Enum]] = {}
    for name, family in families().items():
        lines += ["", f"## {name}", "", *_family(family)]
        words |= {leaf.name: type(leaf.default) for leaf in family.leaves() if isinstance(leaf.default, enum.Enum)}
    lines += ["", "## Words", ""]
    for parameter, kind in sorted(words.items()):
        meanings = _meanings(kind)
        lines += [f"- `{parameter}`" + ("" if meanings else f": {', '.join(f'`{each.value}`' for each in kind)}")]
        lines += [line for word, text in meanings.items() for line in _listed(f"`{word}`: {text}", "    - ")]
    lines += ["- `parts`", *(f"    - of `{mode}`: {_span(parts)}" for mode, parts in PARTS.items())]
    return "\n".join(lines) + "\n"


def _family(family: type[Config]) -> Iterator[str]:
    yield from _listed(f"{family.title[0].upper()}{family.title[1:]}. The default config is `{_written(family)}`.")
    yield from ("", "| parameter | values | default | meaning |", "| --- | --- | --- | --- |")
    for leaf in family.leaves():
        yield f"| `{leaf.name}` | {_values(leaf)} | `{leaf.plain(leaf.default)}` | {_escaped(leaf.meaning)} |"
    rules = [_rule(rule.reason) for rule in (*family.rules, *family.fit_rules)]
    if rules:
        yield from ("", "Rules:", "", *(line for rule in rules for line in _listed(rule, "- ")))


def _written(family: type[Config]) -> str:
    """Text of the default config, in which some parameters are joined to one."""
    values = dict(family().values)
    joined = [(key, "x".join(str(values[name]) for name in names)) for key, names in family.joined]
    return f"{family.family}:" + ",".join(f"{key}={value}" if key else value for key, value in joined)


def _values(leaf: Leaf) -> str:
    if isinstance(leaf.choices, range):
        return _span(leaf.choices)
    plain = [leaf.plain(choice) for choice in leaf.choices]
    return ", ".join(map(str, sorted(plain) if all(isinstance(each, int) for each in plain) else plain))


def _span(values: range) -> str:
    return f"{values[0]} to {values[-1]}" if len(values) > 1 else str(values[0])


def _rule(reason: str) -> str:
    """Sentence of a rule, with names of parameters in place of the values of a config."""
    text = re.sub(r"\b(\w+) \{c\.(?:\w+\.)*\1\}", r"`\1`", reason)
    text = _PLACED.sub(lambda match: "" if match[1] else f"`{match[2]}`", text)
    named = text.startswith(("k ", "cp.async"))
    return f"{text if named else text[0].upper() + text[1:]}."


def _meanings(kind: type[enum.Enum]) -> dict[str, str]:
    """Docstring of each member by its value, read from the source."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    meanings = {}
    for member, text in zip(definition.body, definition.body[1:]):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            name: Any = member.targets[0]
            meanings[str(kind[name.id].value)] = " ".join(str(text.value.value).split())
    return meanings


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _listed(text: str, mark: str = "") -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), 120, initial_indent=mark, subsequent_indent=" " * len(mark),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
