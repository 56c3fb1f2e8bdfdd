"""Completion in a shell: values of options, and scripts that let values have colons, commas and `=`.

Completion runs at each press of a key: nothing here imports NumPy or Optuna, opens a device or writes a file.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

if TYPE_CHECKING:
    from ..codegen.config import Config
    from ..codegen.leaf import Leaf

Completer = Callable[[click.Context, click.Parameter, str], list["CompletionItem[str]"]]

_SUITE_ENDINGS = (".toml", ".json", ".csv")


def of_words(*words: str) -> Completer:
    """Completion of a value among some words."""
    return lambda context, parameter, incomplete: _beginning(incomplete, words)


def of_devices(*words: str) -> Completer:
    """Completion of a device's selector: some words, and every GPU that the driver shows."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> "list[CompletionItem[str]]":
        from ..runtime.device.nvml import gpu_count

        return _beginning(incomplete, (*words, *(f"cuda:{index}" for index in range(gpu_count()))))

    return complete


def device_keys(context: click.Context, parameter: click.Parameter, incomplete: str) -> "list[CompletionItem[str]]":
    """Completion of the key of a device, among those whose facts ship."""
    from ..runtime.device.known import KNOWN

    return _beginning(incomplete, KNOWN)


def suites(context: click.Context, parameter: click.Parameter, incomplete: str) -> "list[CompletionItem[str]]":
    """Completion of a suite: names of those that ship and files of shapes in the current folder, else any path."""
    from ..tuner.bench.suites import suite_names

    here = (path.name for path in Path().iterdir() if path.suffix.lower() in _SUITE_ENDINGS)
    return _beginning(incomplete, (*suite_names(), *sorted(here))) or [CompletionItem(incomplete, type="file")]


def configs(context: click.Context, parameter: click.Parameter, incomplete: str) -> "list[CompletionItem[str]]":
    """Completion of a variant: a family, then names and values of its parameters; values that the text joins by `x`
    are completed one after another."""
    from ..codegen.families import families

    name, colon, text = incomplete.partition(":")
    if not colon:
        return [CompletionItem(f"{each}:", part=True) for each in families() if each.startswith(name)]
    if name not in families():
        return []
    *before, word = text.split(",")
    head = ",".join([*before, ""])
    present = {each.partition("=")[0] for each in before if each[:1].isalpha()}
    words = _words(families()[name], word, present, tile=not before)
    return [CompletionItem(f"{name}:{head}{each}", part=_is_part(each)) for each in words]


def _words(kind: "type[Config]", word: str, present: set[str], *, tile: bool) -> list[str]:
    """Continuations of a word of a config's text: `edge` to `edge=`, `edge=` to `edge=pad`, the tile `64x` to
    `64x32x`."""
    joined = dict(kind.joined)
    key, equals, value = word.partition("=")
    if equals or (tile and not key[:1].isalpha()):
        key, value = (key, value) if equals else ("", word)
        names = joined.get(key, (key,))
        leaves = [leaf for each in names for leaf in kind.leaves() if leaf.name == each]
        texts = [f"{key}{equals}{each}" for each in _values(leaves, value, _modes(kind).get(key, ()))]
        return texts if equals or word else [*texts, *_names(kind, "", present)]
    return _names(kind, word, present)


def _names(kind: "type[Config]", word: str, present: set[str]) -> list[str]:
    joined = {name: key for key, names in kind.joined for name in names}
    modes = [] if present & _modes(kind).keys() else [f"{mode}=" for mode in _modes(kind)]
    keys = []
    for leaf in kind.leaves():
        key = joined.get(leaf.name, leaf.name)
        if key and leaf.name not in ("mode", "parts") and key not in present:
            keys.append(key if leaf.choices == (False, True) and not leaf.default else f"{key}=")
    return [each for each in dict.fromkeys([*keys, *modes]) if each.startswith(word)]


def _modes(kind: "type[Config]") -> dict[str, Sequence[int]]:
    """Numbers of parts of each work decomposition that a family's text may name."""
    from ..codegen.mechanisms.split import USUAL_PARTS

    modes = next((leaf.choices for leaf in kind.leaves() if leaf.name == "mode"), ())
    return {mode.value: USUAL_PARTS[mode] for mode in modes if USUAL_PARTS[mode] != (1,)}


def _values(leaves: "Sequence[Leaf]", text: str, parts: Sequence[int]) -> list[str]:
    """Values that begin with a text: of one parameter, of several joined by `x`, or numbers of parts."""
    if parts or not leaves:
        return [str(each) for each in parts if str(each).startswith(text)]
    *before, last = text.split("x") if len(leaves) > 1 else [text]
    if len(before) >= len(leaves):
        return []
    leaf, end = leaves[len(before)], "x" if len(before) + 1 < len(leaves) else ""
    head = "".join(f"{each}x" for each in before)
    choices = sorted(leaf.plain(each) for each in leaf.choices) if end or before else map(leaf.plain, leaf.choices)
    return [f"{head}{each}{end}" for each in map(str, choices) if each.startswith(last)]


def _is_part(text: str) -> bool:
    """Whether more must follow a text before it is a value."""
    return text.endswith(("=", ":")) or (text.endswith("x") and text[-2:-1].isdigit())


def _beginning(incomplete: str, words: Iterable[str]) -> "list[CompletionItem[str]]":
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


class _Bash(BashComplete):
    """Completion in Bash, which splits words at colons and `=`: the whole line is read instead, and answers begin after
    the last of these characters. No blank follows a part of a value."""

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n' type value
    for completion in $(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \
%(complete_var)s=bash_complete "$1"); do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) COMPREPLY=(); compopt -o dirnames ;;
            file) COMPREPLY=(); compopt -o default ;;
            part) COMPREPLY+=("$value"); compopt -o nospace ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        from ..runtime import settings

        line, breaks = settings.completed_line()
        _, *words = split_arg_string(line) or [""]
        self._word = "" if not words or line[-1:].isspace() else words.pop()
        self._breaks = "".join(each for each in ":=" if each in breaks)
        return words, self._word

    def format_completion(self, item: "CompletionItem[str]") -> str:
        skipped = len(self._word) - len("".join(takewhile(lambda each: each not in self._breaks, reversed(self._word))))
        option, equals, _ = self._word.partition("=")
        if equals and option.startswith("-"):
            skipped -= len(option) + 1  # click completes the value alone
        return f"{'part' if item.part else item.type},{item.value[max(0, skipped) :]}"


class _Zsh(ZshComplete):
    """Completion in Zsh, in which no blank follows a part of a value."""

    source_template = ZshComplete.source_template.replace(
        "        compadd -U -V unsorted -a completions\n",
        "        local -a parts=(${(M)completions:#*([:=]|[0-9]x)})\n"
        "        completions=(${completions:#*([:=]|[0-9]x)})\n"
        "        compadd -U -V unsorted -S '' -a parts\n"
        "        compadd -U -V unsorted -a completions\n",
    )


class _Fish(FishComplete):
    """Completion in Fish, with values that have commas. Fish itself writes no blank after a colon or `=`."""

    source_template = FishComplete.source_template.replace('(string split ","', '(string split --max 1 ","')


for _shell in (_Bash, _Zsh, _Fish):
    add_completion_class(_shell)
