"""A picture of a bench: speed and ratio by shape. matplotlib, an extra, is imported when it is drawn."""

import importlib.util
import io
from pathlib import Path
from typing import Any

from ...codegen.errors import DeviceError, check
from ...runtime.files import write_output
from .rows import TITLES, BenchResult, BenchRow

SUFFIXES = (".svg", ".png", ".pdf")
_OURS = "#1b6ca8"
_COLOURS = {
    "cublas": "#e07b39", "cublaslt": "#7a9e3d", "numpy": "#e07b39", "hgemm3k": "#8e5ea2", "bgemm6k": "#b0467c",
    "tf32": "#c9a227",
}  # fmt: skip
_GREY = "#8a8f98"
_COARSE = (1.0, 2.0, 5.0)
_FINE = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 6.0, 7.0, 8.0, 9.0)
_ABOVE: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "frameon": False, "borderaxespad": 0.2}


def check_plot(path: Path) -> None:
    """Raises ConfigError for a file that is no .svg, .png or .pdf, DeviceError where matplotlib is missing."""
    check(path.suffix.lower() in SUFFIXES, f"--plot must be a file ending in {', '.join(SUFFIXES)}, got {path.name!r}")
    if importlib.util.find_spec("matplotlib") is None:
        raise DeviceError("--plot needs matplotlib; get it with pip install 'tilewright[plot]'")


def plot(result: BenchResult, path: Path) -> None:
    """Draw the rows that are ok. Raises as `check_plot` does, and OSError."""
    check_plot(path)
    from matplotlib.figure import Figure

    rows = [row for row in result.rows if row.ok]
    figure = Figure(figsize=(max(6.5, 2.0 + 0.42 * len(rows)), 7.6), layout="constrained")
    speed, ratio = figure.subplots(2, 1, sharex=True, height_ratios=(1.15, 1))
    keys = [key for key in result.setting.rivals if result.compared(key)]
    _draw_speed(speed, rows, keys)
    _draw_ratio(ratio, result, rows, keys)
    ratio.set_xticks(range(len(rows)), [_label(row) for row in rows], rotation=55, ha="right", rotation_mode="anchor")
    ratio.set_xlim(-0.6, len(rows) - 0.4)
    title = f"C = A B in {result.dtypes} on {result.device.name}, {result.date[:10]}"
    figure.suptitle(title, fontsize=12, x=0.01, ha="left")
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150, format=path.suffix.lower().removeprefix("."))
    write_output(path, drawn.getvalue())


def _label(row: BenchRow) -> str:
    problem = row.problem
    cube = problem.m == problem.n == problem.k
    return f"{problem.m}³" if cube else problem.shape.replace("x", "×")


def _draw_speed(axes: Any, rows: list[BenchRow], keys: list[str]) -> None:
    """Bars of ours and the rivals side by side, on a logarithmic scale: shapes differ a thousandfold."""
    names = ["ours", *keys]
    width = 0.82 / len(names)
    for place, name in enumerate(names):
        at, height = [], []
        for x, row in enumerate(rows):
            if tflops := row.tflops(row.us_of(name)):
                at.append(x + (place - (len(names) - 1) / 2) * width)
                height.append(tflops)
        colour, label = _COLOURS.get(name, _OURS), TITLES.get(name, "tilewright")
        axes.bar(at, height, width, color=colour, label=label, zorder=2)
    ceilings = [(x, tflops) for x, row in enumerate(rows) if (tflops := row.tflops(row.floor_us))]
    if ceilings:
        axes.errorbar(*zip(*ceilings), xerr=0.46, fmt="none", color="black", label="the device's limit", zorder=3)
    low = 0.6 * min((tflops for row in rows for name in names if (tflops := row.tflops(row.us_of(name)))), default=1.0)
    axes.set_yscale("log")
    axes.set_ylim(bottom=low)
    _ticks(axes, _COARSE)
    axes.set_ylabel("TFLOP/s")
    axes.legend(ncols=4, **_ABOVE)
    _tidy(axes)


def _draw_ratio(axes: Any, result: BenchResult, rows: list[BenchRow], keys: list[str]) -> None:
    """A dot a shape and rival with its interval, hollow with a kernel in between, and a line at 1."""
    step = 0.2
    series = [(key, kind) for key in keys for kind in ("", "between_") if result.geomean(key, f"{kind}ratio")]
    for place, (key, kind) in enumerate(series):
        shift = (place - (len(series) - 1) / 2) * step
        pairs = [(x, rival) for x, row in enumerate(rows) if (rival := row.rival(key))]
        dots = [(x, getattr(rival, f"{kind}ratio"), getattr(rival, f"{kind}interval")) for x, rival in pairs]
        found = [(x + shift, ratio, *within) for x, ratio, within in dots if within is not None]
        xs, ratios, lows, highs = zip(*found)
        below = [max(0.0, ratio - low) for ratio, low in zip(ratios, lows)]
        above = [max(0.0, high - ratio) for ratio, high in zip(ratios, highs)]
        words = ", a kernel in between" if kind else ", geometric mean"
        axes.errorbar(
            xs,
            ratios,
            yerr=(below, above),
            fmt="o" if key == keys[0] else "D",
            markersize=5 if key == keys[0] else 4,
            markerfacecolor="white" if kind else _COLOURS[key],
            capsize=2.5,
            elinewidth=1.2,
            color=_COLOURS[key],
            label=f"{TITLES[key]}{words} {result.geomean(key, f'{kind}ratio'):.3f}",
            zorder=3,
        )
    axes.axhline(1.0, color="black", linewidth=1.0, zorder=2)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    _ticks(axes, _FINE if high < 6 * low else _COARSE)
    axes.set_ylabel("speed of ours over theirs")
    if series:
        axes.legend(ncols=2, **_ABOVE)
    _tidy(axes)


def _ticks(axes: Any, digits: tuple[float, ...]) -> None:
    """Ticks of a logarithmic axis at these digits of each power of ten, as plain numbers."""
    low, high = axes.get_ylim()
    ticks = (digit * 10.0**power for power in range(-9, 6) for digit in digits)
    axes.set_yticks([tick for tick in ticks if low <= tick <= high])
    axes.set_ylim(low, high)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _tidy(axes: Any) -> None:
    axes.grid(axis="y", color="#e3e5e8", linewidth=0.8, zorder=0)
    axes.grid(axis="x", color="#f1f2f4", linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_GREY)
    axes.tick_params(color=_GREY, labelsize=9)
