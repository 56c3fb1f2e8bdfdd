"""Charts as SVG for a page, with text as text and the page's colours. matplotlib, an extra, is imported late."""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..bench.plot import Palette, chart_inches

PALETTE = Palette("#000001", "#000002", ("#000011", "#000012", "#000013", "#000014", "#000015"))
_GRID = "#000003"
"""Stand-ins for the page's colours, which differ by day and night: in the page each is a variable of its style."""
_VARIABLES = {PALETTE.ink: "ink", PALETTE.muted: "muted", _GRID: "grid"} | {
    colour: f"series-{place}" for place, colour in enumerate(PALETTE.series, 1)
}
SIZES = {"wide": (10.5, 4.9), "narrow": (4.1, 4.6)}
"""Inches across and up of a chart on a screen and on a telephone; the page shows the one that fits."""
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tilewright",
    "font.size": 10,
    "text.parse_math": False,
    "text.color": PALETTE.ink,
    "axes.labelcolor": PALETTE.ink,
    "axes.edgecolor": PALETTE.muted,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": PALETTE.muted,
    "xtick.labelcolor": PALETTE.ink,
    "ytick.color": PALETTE.muted,
    "ytick.labelcolor": PALETTE.ink,
    "grid.color": _GRID,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "path.simplify": False,
    "path.snap": False,
}
_DOTS = 2.5
"""Points of the page; dots that are nearer to each other are drawn as one."""
_MANY = 200
"""Largest number of dots that are drawn large."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart, drawn for each width."""

    title: str
    """Description, which is read out in place of the chart."""
    svgs: tuple[tuple[str, str], ...]
    """Name of each width, and markup."""


def chart(name: str, title: str, draw: Callable[[Any, Palette, bool], None], rows: int = 0) -> Chart:
    """The chart that `draw` puts on axes, for each width; `rows` labels, one below the other, make it taller."""
    import matplotlib
    from matplotlib.figure import Figure

    svgs = []
    for width, (across, up) in SIZES.items():
        with matplotlib.rc_context(_STYLE):
            figure = Figure(figsize=(across, chart_inches(rows) if rows else up), layout="constrained")
            figure.patch.set_alpha(0)
            axes = figure.subplots()
            axes.grid(True, linewidth=0.6, zorder=0)
            axes.set_axisbelow(True)
            draw(axes, PALETTE, width == "narrow")
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None})
        svgs.append((width, _inline(text.getvalue(), f"{name}-{width}-")))
    return Chart(title, tuple(svgs))


def _inline(svg: str, prefix: str) -> str:
    """An SVG file as part of a page: without what only files need, with names of its own and the page's colours."""
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
    """Draw dots as one line of very short strokes, few bytes each; dots that lie on each other are one.

    `place` chooses colour and shape. The axes' limits and scales must be set before.
    """
    from matplotlib.lines import Line2D

    if not points:
        return
    spots = axes.transData.transform(points)
    distinct = {tuple(cell): tuple(spot) for cell, spot in zip((spots / _DOTS).round().tolist(), spots.tolist())}
    cap, marker = (("round", "o"), ("projecting", "s"))[place % 2]
    colour = PALETTE.series[place % len(PALETTE.series)]
    none = float("nan")
    strokes = [end for x, y in distinct.values() for end in ((x - 0.15, y), (x + 0.15, y), (none, none))]
    xs, ys = axes.transData.inverted().transform(strokes).T
    size = (3.2 if len(distinct) > _MANY else 6.0) - 0.6 * (place % 2)
    axes.plot(xs, ys, color=colour, linewidth=size, solid_capstyle=cap, alpha=0.65, zorder=2)
    axes.add_line(Line2D([], [], linestyle="none", marker=marker, markersize=5, color=colour, label=label))
