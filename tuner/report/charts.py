"""Charts as SVG for a page, with text as text, the page's colours and a tooltip on each mark. matplotlib is imported
late."""

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import escape

from ..bench.plot import Marks, Palette, chart_inches

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
_CELL = 2.5
"""Points of the page across and up a cell: dots in one cell are drawn as one."""
_MANY = 200
"""Largest number of dots that are drawn large."""
_MOST_DOTS = 2000
"""Most dots of a chart; where there are more, cells grow."""
_MARK = re.compile(r'<use href="([^"]*)" (x="[^"]*" y="[^"]*") style="[^"]*"/>')
"""A mark in the SVG of matplotlib."""
Dot = tuple[float, float, str]
"""Place across and up, and the tooltip."""


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart, drawn for each width."""

    title: str
    """Description, which is read out in place of the chart."""
    svgs: tuple[tuple[str, str], ...]
    """Name of each width, and markup."""


def chart(name: str, title: str, draw: Callable[[Any, Palette, bool], Marks], rows: int = 0) -> Chart:
    """The chart that `draw` puts on axes, for each width; `rows` labels, one below the other, make it taller. On a
    telephone, where nothing hovers, marks have no tooltips."""
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
            marks = [each for each in draw(axes, PALETTE, width == "narrow") if each[1]]
            for place, (line, _) in enumerate(marks):
                line.set_gid(f"marks{place}")
            text = io.StringIO()
            figure.savefig(text, format="svg", metadata={"Date": None})
        tooltips = [[""] * len(texts) if width == "narrow" else texts for _, texts in marks]
        svgs.append((width, _inline(text.getvalue(), f"{name}-{width}-", tooltips)))
    return Chart(title, tuple(svgs))


def _inline(svg: str, prefix: str, tooltips: Sequence[Sequence[str]]) -> str:
    """An SVG file as part of a page: without the parts that only files need, with names of its own, the page's colours
    and the tooltips of each group of marks."""
    svg = svg[svg.index("<svg") :].replace("xlink:href", "href")
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg))
    svg = re.sub(r'\bid="', f'id="{prefix}', svg)
    svg = svg.replace('href="#', f'href="#{prefix}').replace("url(#", f"url(#{prefix}")
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--font)", svg)
    svg = re.sub(r"(\d+\.\d)\d+(?=[ \"\n)])", r"\1", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    svg = re.sub(r"\n\s*", "\n", svg)
    for place, texts in enumerate(tooltips):
        svg = _with_tooltips(svg, f"{prefix}marks{place}", texts)
    return svg


def _with_tooltips(svg: str, name: str, texts: Sequence[str]) -> str:
    """The SVG with a text on each mark of a group, which all have one style: the group has it in their place."""
    before, _, group = svg.partition(f'id="{name}"')
    style = next(iter(re.findall(r'<use [^>]*style="([^"]*)"', group)), "")
    remaining = iter(texts)

    def mark(match: re.Match[str]) -> str:
        text = next(remaining)
        return f'<use href="{match[1]}" {match[2]}' + (f"><title>{escape(text)}</title></use>" if text else "/>")

    return before + f'style="{style}"' + _MARK.sub(mark, group, count=len(texts))


def dots(axes: Any, points: Sequence[Dot], place: int, label: str) -> Marks:
    """Draw dots with their tooltips. Dots that lie on each other are one, with the tooltip of the first.

    `place` chooses colour and shape. The axes' limits and scales must be set before.
    """
    from matplotlib.lines import Line2D

    if not points:
        return []
    spots = axes.transData.transform([(x, y) for x, y, _ in points])
    cell = _CELL
    while len(groups := _by_cell(spots / cell, points)) > _MOST_DOTS:
        cell *= 1.2
    xs, ys, texts = zip(*(group[0] for group in groups))
    marker, colour = "os"[place % 2], PALETTE.series[place % len(PALETTE.series)]
    style: dict[str, Any] = {"linestyle": "none", "marker": marker, "color": colour, "markeredgewidth": 0}
    size = (3.2 if len(groups) > _MANY else 6.0) - 0.6 * (place % 2)
    (line,) = axes.plot(xs, ys, markersize=size, alpha=0.65, zorder=2, **style)
    axes.add_line(Line2D([], [], markersize=5, label=label, **style))
    more = (f", and {len(group) - 1:,} more here" if len(group) > 1 else "" for group in groups)
    return [(line, list(map("".join, zip(texts, more))))]


def _by_cell(spots: Any, points: Sequence[Dot]) -> list[list[Dot]]:
    """The dots of each cell that has any; `spots` are their places in cells."""
    groups: dict[tuple[float, ...], list[Dot]] = {}
    for spot, point in zip(spots.round().tolist(), points):
        groups.setdefault(tuple(spot), []).append(point)
    return [*groups.values()]
