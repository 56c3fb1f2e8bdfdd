"""Errors by kind of data as JSON, as lines of text and as a table."""

import itertools
import math
from typing import Any

from ...codegen.problem import Grade
from .rows import TITLES, BenchResult, BenchRow, KindError, finite

_OURS = "ours"


def error_kinds_json(row: BenchRow) -> dict[str, Any] | None:
    """The worst errors in units of u, `elementwise` and `normwise`, by kind of data and contender; an error that is not
    finite is null. None where no errors were measured."""
    document: dict[str, dict[str, dict[str, float | None]]] = {}
    for each in row.error_kinds:
        errors = {"elementwise": finite(each.elementwise), "normwise": finite(each.normwise)}
        document.setdefault(each.kind, {})[each.contender] = errors
    return document or None


def error_kinds_of(document: Any) -> list[KindError]:
    """The errors that `error_kinds_json` wrote. Raises AttributeError, KeyError, TypeError or ValueError for any
    other document."""
    return [
        KindError(kind, contender, *(_number(errors[measure]) for measure in ("elementwise", "normwise")))
        for kind, contenders in (document or {}).items()
        for contender, errors in contenders.items()
    ]


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def kinds_lines(result: BenchResult) -> list[str]:
    """A line for each grade of accuracy with the worst errors of all rows, by the grade's own measure."""
    lines = []
    for grade in (Grade.ELEMENTWISE, Grade.NORMWISE):
        rows = [row for row in result.rows if row.problem.accuracy is grade and row.error_kinds]
        worst: dict[str, dict[str, float]] = {}
        for each in (each for row in rows for each in row.error_kinds):
            error = each.normwise if grade is Grade.NORMWISE else each.elementwise
            of_kind = worst.setdefault(each.kind, {})
            of_kind[each.contender] = max(error, of_kind.get(each.contender, 0.0))
        unit = "u times norms of row and column" if grade is Grade.NORMWISE else "u |A||B|"
        words = ", ".join(f"{kind} {_beside(errors)}" for kind, errors in worst.items())
        lines += [f"worst errors in {unit}, ours (theirs): {words}"] if worst else []
    return lines


def _beside(errors: dict[str, float]) -> str:
    """Our error, and in brackets the first library's."""
    theirs = [f" ({error:.2g})" for name, error in errors.items() if name != _OURS]
    return f"{errors[_OURS]:.2g}{''.join(theirs[:1])}"


def kinds_table(result: BenchResult) -> list[list[str]]:
    """A head, then a row for each shape and kind of data, with each contender's errors by elements and by norms; empty
    where no errors were measured."""
    names = list(dict.fromkeys(each.contender for row in result.rows for each in row.error_kinds))
    if not names:
        return []
    head = [f"{TITLES.get(name, name)}, {unit}" for name in names for unit in ("u |A||B|", "u by norms")]
    rows = []
    for shape, row in zip(result.names, result.rows):
        by = {(each.kind, each.contender): each for each in row.error_kinds}
        for kind in dict.fromkeys(each.kind for each in row.error_kinds):
            errors = [by.get((kind, name)) for name in names]
            pairs = ((f"{each.elementwise:.3g}", f"{each.normwise:.3g}") if each else ("", "") for each in errors)
            rows.append([shape, kind, *itertools.chain.from_iterable(pairs)])
    return [["M x N x K", "data", *head], *rows]
