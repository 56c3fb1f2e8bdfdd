"""Charts as SVG for a page: text stays text, colours are the page's. matplotlib, an extra, is imported when they are
drawn."""

import importlib.util
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...codegen.errors import DeviceError, check

INK, MUTED, GRID, PAPER = "#000001", "#000002", "#000003", "#000004"
SERIES = ("#000011", "#000012", "#000013", "#000014", "#000015")
"""Stand-ins for the page's colours, which differ by day and night: what is drawn in one has its variable instead."""
_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper"} | {
    colour: f"series-{place}" for place, colour in enumerate(SERIES, 1)
}
SIZES = {"wide": (10.5, 4.9), "narrow": (4.1, 4.6)}
"""Inches of a chart on a screen and on a telephone; the page shows the one that fits."""
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tilewright",
    "font.size": 10,
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "path.simplify": False,
    "path.snap": False,
}
_DOTS = 2.5
"""Points of the page nearer than which two dots are one."""
_MANY = 200
"""Dots from which on they are small."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart, drawn for each width."""

    title: str
    """What it shows: read out in place of it."""
    svgs: tuple[tuple[str, str], ...]
    """Name of the width, and markup."""


def check_charts() -> None:
    """Raise DeviceError where matplotlib is missing."""
    missing = importlib.util.find_spec("matplotlib") is None
    check(not missing, "a report needs matplotlib; get it with pip install 'tilewright[plot]'", DeviceError)


def chart(name: str, title: str, draw: Callable[[Any, bool], None], rows: int = 0) -> Chart:
    """What `draw` puts on axes, told whether they are narrow; `rows` of labels below each other make them taller."""
    import matplotlib
    from matplotlib.figure import Figure

    found = []
    for width, (across, up) in SIZES.items():
        with matplotlib.rc_context(_STYLE):
            figure = Figure(figsize=(across, 1.2 + 0.24 * rows if rows else up), layout="constrained")
            figure.patch.set_alpha(0)
            axes = figure.subplots()
            axes.grid(True, linewidth=0.6, zorder=0)
            axes.set_axisbelow(True)
            draw(axes, width == "narrow")
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None})
        found.append((width, _inline(text.getvalue(), f"{name}-{width}-")))
    return Chart(title, tuple(found))


def _inline(svg: str, prefix: str) -> str:
    """An SVG file as part of a page: without what only files need, its names its own, its colours the page's."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg))
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = svg.replace('href="#', f'href="#{prefix}').replace("url(#", f"url(#{prefix}")
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--font)", svg)
    svg = re.sub(r"(\d+\.\d)\d+(?=[ \"\n)])", r"\1", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    return re.sub(r"\n\s*", "\n", svg)


def dots(axes: Any, points: Sequence[tuple[float, float]], place: int, label: str) -> None:
    """Many dots as one line of strokes with hardly a length, few bytes each; those that lie on each other are one.

    `place` gives colour and shape, which alternates. The axes' limits and scales are as they will be.
    """
    from matplotlib.lines import Line2D

    if not points:
        return
    spots = axes.transData.transform(points)
    kept = {tuple(cell): tuple(spot) for cell, spot in zip((spots / _DOTS).round().tolist(), spots.tolist())}
    cap, marker = (("round", "o"), ("projecting", "s"))[place % 2]
    colour = SERIES[place % len(SERIES)]
    none = float("nan")
    strokes = [end for x, y in kept.values() for end in ((x - 0.15, y), (x + 0.15, y), (none, none))]
    xs, ys = axes.transData.inverted().transform(strokes).T
    size = (3.2 if len(kept) > _MANY else 6.0) - 0.6 * (place % 2)
    axes.plot(xs, ys, color=colour, linewidth=size, solid_capstyle=cap, alpha=0.65, zorder=2)
    axes.add_line(Line2D([], [], linestyle="none", marker=marker, markersize=5, color=colour, label=label))


def plain_ticks(axis: Any, low: float, high: float, digits: Sequence[float] = (1, 2, 5)) -> None:
    """Ticks of a logarithmic axis at these digits of each power of ten, as plain numbers."""
    ticks = (digit * 10.0**power for power in range(-9, 9) for digit in digits)
    axis.set_ticks([tick for tick in ticks if low <= tick <= high])
    axis.set_ticks([], minor=True)
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}")


def legend(axes: Any, columns: int) -> None:
    """A legend above the axes."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderaxespad=0.2, columnspacing=1.2)
