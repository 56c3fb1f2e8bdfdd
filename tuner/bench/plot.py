"""Charts of a bench: ratios and speeds by shape, for a file and for a page. matplotlib, an extra, is imported late."""

import importlib.util
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...codegen.errors import DeviceError, check
from ...runtime.files import write_output
from .rows import TITLES, BenchResult, BenchRow

Marks = list[tuple[Any, Sequence[str]]]
"""Drawn lines of marks, each with the tooltips of its marks."""
SUFFIXES = (".svg", ".png", ".pdf")
"""Endings of the files that `plot` writes."""
_MARKERS = ("o", "D", "s")
"""matplotlib's markers, which the rivals take in turn."""
_LANE = 0.62
"""Height of all marks of one shape, as a share of the distance between two shapes."""
_WIDTH = 10.0
"""Inches across a plot."""
_MARGIN = 1.2
"""Inches of a chart's height beside its lines of text."""
_LINE_INCHES = 0.24
"""Inches of a chart's height for each line of text."""


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours of a chart."""

    ink: str
    """Colour of text and of lines that matter."""
    muted: str
    """Colour of axes and of limits."""
    series: tuple[str, ...]
    """Colours of the compared series, ours first, used in turn."""


_PRINTED = Palette("#000000", "#8a8f98", ("#1b6ca8", "#e07b39", "#7a9e3d", "#8e5ea2", "#c9a227"))
"""Colours of a plot on white."""


def check_matplotlib(user: str) -> None:
    """Raise DeviceError where matplotlib, which `user` needs, is missing."""
    missing = importlib.util.find_spec("matplotlib") is None
    check(not missing, f"{user} needs matplotlib; get it with pip install 'tilewright[plot]'", DeviceError)


def check_plot(path: Path) -> None:
    """Raise ConfigError for a file that is no .svg, .png or .pdf, DeviceError where matplotlib is missing."""
    check(path.suffix.lower() in SUFFIXES, f"--plot must be a file ending in {', '.join(SUFFIXES)}, got {path.name!r}")
    check_matplotlib("--plot")


def plot(result: BenchResult, path: Path) -> None:
    """Draw the rows that are ok, at least one, into a file. Raises as `check_plot` does, and OSError."""
    check_plot(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, 2 * chart_inches(lines_of(result))), layout="constrained")
    speeds, ratios = figure.subplots(2, 1)
    for axes, draw in ((speeds, draw_speeds), (ratios, draw_ratios)):
        axes.grid(True, color="#e3e5e8", zorder=0)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        draw(result, axes, _PRINTED, narrow=False)
    title = f"C = A B in {result.dtypes} on {result.device.name}, {result.date[:10]}"
    figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150, format=path.suffix.lower().removeprefix("."))
    write_output(path, drawn.getvalue())


def lines_of(result: BenchResult) -> int:
    """Most lines of text below each other in a chart of a bench: one for each shape, and the legend's."""
    return sum(row.ok for row in result.rows) + 2 * len(result.setting.rivals)


def chart_inches(lines: int) -> float:
    """Height in inches of a chart with this number of text lines, one below the other."""
    return _MARGIN + _LINE_INCHES * lines


def draw_ratios(result: BenchResult, axes: Any, palette: Palette, narrow: bool) -> Marks:
    """Draw a mark and interval for each shape and rival, hollow for times with a kernel in between, and a line at 1."""
    drawn: Marks = []
    rows = [row for row in result.rows if row.ok]
    series = [
        (place, key, kind, mean)
        for place, key in enumerate(result.setting.rivals, start=1)
        for kind in ("", "between_")
        if (mean := result.geomean(key, f"{kind}ratio")) is not None
    ]
    ends = [1.0]
    for number, (place, key, kind, mean) in enumerate(series):
        shift = ((number + 0.5) / len(series) - 0.5) * _LANE
        rivals = [(y, rival) for y, row in enumerate(rows) if (rival := row.rival(key))]
        marks = [(y, getattr(rival, f"{kind}ratio"), getattr(rival, f"{kind}interval")) for y, rival in rivals]
        points = [(y, ratio, *within) for y, ratio, within in marks if within]
        if not points:  # a file may have ratios without intervals
            continue
        words = f"x {TITLES[key]}" + (", a kernel in between" if kind else "")
        texts = [f"{rows[y].problem.title}: {r:.3f} {words} ({low:.3f}..{high:.3f})" for y, r, low, high in points]
        ys, ratios, lows, highs = zip(*points)
        ends += [*lows, *highs]
        below = [max(0.0, ratio - low) for ratio, low in zip(ratios, lows)]
        above = [max(0.0, high - ratio) for ratio, high in zip(ratios, highs)]
        colour = palette.series[place % len(palette.series)]
        bars = axes.errorbar(
            ratios,
            [y + shift for y in ys],
            xerr=(below, above),
            fmt=_MARKERS[(place - 1) % len(_MARKERS)],
            markersize=5,
            color=colour,
            markerfacecolor="none" if kind else colour,
            elinewidth=1,
            label=f"{TITLES[key]}, {'a kernel in between' if kind else 'geometric mean'} {mean:.3f}",
            zorder=3,
        )
        drawn.append((bars.lines[0], texts))
    axes.axvline(1.0, color=palette.ink, linewidth=1.2, zorder=2)
    low, high = _limits(ends)
    near = (1, 1.5, 2, 3, 5) if narrow else (1, 1.1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 7, 8, 9)
    axes.set(xscale="log", xlim=(low, high))
    plain_ticks(axes.xaxis, low, high, near if high < 8 * low else (1, 2, 5))
    _label_rows(axes, rows)
    axes.set_xlabel("their time over ours" if narrow else "their time over ours: above 1 is ours faster")
    if series:
        legend(axes, 1 if narrow else 2)
    return drawn


def draw_speeds(result: BenchResult, axes: Any, palette: Palette, narrow: bool) -> Marks:
    """Draw a mark for each shape and library, and the device's limit."""
    drawn: Marks = []
    rows = [row for row in result.rows if row.ok]
    names = ("ours", *result.setting.rivals)
    speeds = {
        name: [(y, tflops) for y, row in enumerate(rows) if (tflops := row.tflops(row.us_of(name)))] for name in names
    }
    limits = [(y, tflops) for y, row in enumerate(rows) if (tflops := row.tflops(row.floor_us))]
    low, high = _limits([tflops for points in (*speeds.values(), limits) for _, tflops in points])
    axes.set(xscale="log", xlim=(low, high))
    plain_ticks(axes.xaxis, low, high, (1,) if narrow else (1, 2, 5))
    for place, (name, points) in enumerate(speeds.items()):
        shift = (place - (len(names) - 1) / 2) * 0.22
        ys, xs = zip(*((y + shift, x) for y, x in points)) if points else ((), ())
        marker, size = ("*", 9) if name == "ours" else (_MARKERS[(place - 1) % len(_MARKERS)], 5)
        style = {"markersize": size, "markeredgewidth": 0, "color": palette.series[place % len(palette.series)]}
        title = TITLES.get(name, "tilewright")
        (line,) = axes.plot(xs, ys, marker, label=title, zorder=3, **style)
        drawn.append((line, [f"{rows[y].problem.title}: {title} {tflops:.4g} TFLOP/s" for y, tflops in points]))
    if limits:
        ys, xs = zip(*limits)
        style = {"markersize": 14, "markeredgewidth": 2, "color": palette.muted}
        (line,) = axes.plot(xs, ys, "|", label="the device's limit", zorder=2, **style)
        texts = [f"{rows[y].problem.title}: at most {tflops:.4g} TFLOP/s on this device" for y, tflops in limits]
        drawn.append((line, texts))
    _label_rows(axes, rows)
    axes.set_xlabel("TFLOP/s")
    legend(axes, 2 if narrow else 4)
    return drawn


def _label_rows(axes: Any, rows: Sequence[BenchRow]) -> None:
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [row.problem.title for row in rows])


def _limits(values: Sequence[float]) -> tuple[float, float]:
    return min(values) / 1.15, max(values) * 1.15


def plain_ticks(axis: Any, low: float, high: float, digits: Sequence[float] = (1, 2, 5)) -> None:
    """Set ticks of a logarithmic axis at these digits of each power of ten, as plain numbers."""
    ticks = (digit * 10.0**power for power in range(-9, 9) for digit in digits)
    axis.set_ticks([tick for tick in ticks if low <= tick <= high])
    axis.set_ticks([], minor=True)
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}")


def legend(axes: Any, columns: int) -> None:
    """Put a legend above the axes."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderaxespad=0.2, columnspacing=1.2)
