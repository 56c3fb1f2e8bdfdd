"""Text on a screen: tables in which no number is cut, lines that wrap, and no control character."""

import csv
import errno
import io
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from .values import is_stdout_taken

if TYPE_CHECKING:  # NumPy takes long to import, and a message needs none of it
    from ..tuner.bench.report import Column

WIDTH = 120
"""Most characters of a line of prose, and characters of a line where the screen's width is unknown."""
_GAP = "  "
"""Text between two columns."""


class _Console(Console):
    """Console that raises BrokenPipeError where nobody reads its output."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, where rich would end the process."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def new_console() -> Console:
    """Console of standard output, or of stderr where a file's text goes to standard output. Its width is COLUMNS, else
    the terminal's; a pipe or a file has 120 columns."""
    taken = is_stdout_taken()
    if (sys.stderr if taken else sys.stdout).isatty():
        return _Console(stderr=taken)
    width = shutil.get_terminal_size((WIDTH, 25)).columns
    return _Console(stderr=taken, width=width, force_interactive=False)


def plain(text: str) -> str:
    """A text with its control characters written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 record`, `2 records`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def csv_line(cells: Iterable[object]) -> str:
    """A line of comma-separated values, whose texts no terminal obeys and no spreadsheet takes for a formula."""
    line = io.StringIO()
    safe = (_csv_cell(cell) if isinstance(cell, str) else cell for cell in cells)
    csv.writer(line, lineterminator="\n").writerow(safe)
    return line.getvalue()


def _csv_cell(text: str) -> str:
    return f"'{plain(text)}" if text[:1] in tuple("=+-@") else plain(text)


def say(console: Console, *lines: str | Text, style: str = "") -> None:
    """Print lines of prose, wrapped to the console; a Text is printed as it is."""
    room = min(console.width, WIDTH) - 2
    for line in lines:
        text = line if isinstance(line, Text) else Text("\n  ".join(wrapped(plain(line), room)), style)
        text.rstrip()
        console.print(text, soft_wrap=True)


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a text, broken at blanks and between the settings of a variant; a piece that is wider than a line is
    cut."""
    lines = [""]
    for piece in _pieces(text):
        if lines[-1] and len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
        while len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return [line.rstrip() for line in lines]


def _pieces(text: str) -> list[str]:
    # A comma before a digit is no break: 45,123 is one number.
    return re.split(r"(?<= )|(?<=,)(?=[a-z])", text)


def shortened(variant: str, width: int) -> str:
    """A variant on one line, with as many whole settings as there is room for."""
    if len(variant) <= width:
        return variant
    settings = variant.split(",")
    while len(settings) > 1 and len(",".join(settings)) + len(",...") > width:
        settings.pop()
    return ",".join(settings) + ",..."


def table(columns: "Sequence[Column]", width: int) -> list[Text]:
    """The head and the rows of a table in `width` columns. Only the last column may have cells that wrap.

    Columns of rank 0 are always shown, the others in the order of their ranks while there is room, all of one rank
    together. Empty columns are left out. No cell is cut: where even rank 0 is too wide, so are the lines.
    """
    columns = [column for column in columns if any(map(str, column.cells))]
    shown = {0}
    for rank in sorted({column.rank for column in columns} - {0}):
        if _total([column for column in columns if column.rank in {*shown, rank}]) <= width:
            shown.add(rank)
    columns = [column for column in columns if column.rank in shown]
    widths = [_least(column) for column in columns]
    widths[-1] = min(_widest(columns[-1]), widths[-1] + max(0, width - _total(columns)))
    head = _row(columns, widths, [Text(column.heading, "bold") for column in columns])
    head.append("\n" + _GAP.join("-" * each for each in widths))
    rows = zip(*(column.cells for column in columns), strict=True)
    return [head, *(_row(columns, widths, [_text(cell) for cell in row]) for row in rows)]


def _text(cell: str | Text) -> Text:
    return cell.copy() if isinstance(cell, Text) else Text(plain(cell))


def _widest(column: "Column") -> int:
    return max(len(_text(cell)) for cell in (column.heading, *column.cells))


def _least(column: "Column") -> int:
    if not column.wraps_at:
        return _widest(column)
    pieces = (len(piece.rstrip()) for cell in column.cells for piece in _pieces(_text(cell).plain))
    return min(_widest(column), max(column.wraps_at, len(column.heading), *pieces))


def _total(columns: "Sequence[Column]") -> int:
    return sum(_least(column) for column in columns) + len(_GAP) * (len(columns) - 1)


def _row(columns: "Sequence[Column]", widths: list[int], cells: list[Text]) -> Text:
    if columns[-1].wraps_at:
        indent = " " * (sum(widths[:-1]) + len(_GAP) * (len(widths) - 1))
        cells[-1] = Text(f"\n{indent}".join(wrapped(cells[-1].plain, widths[-1])))
    for column, width, cell in zip(columns, widths, cells):
        cell.pad_left(0 if column.left else width - len(cell))
        cell.pad_right(width - len(cell) if column is not columns[-1] else 0)
    return Text(_GAP).join(cells)
