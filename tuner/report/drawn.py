"""Charts of a tuning: its roofline, and the search over time."""

import math
from typing import Any

from ...codegen.config import Config
from ...runtime.check.roofline import Rates
from ...runtime.device.protocol import DeviceInfo
from ..bench.plot import Marks, Palette, legend, plain_ticks
from ..bench.report import figure
from ..bench.rows import TITLES
from .charts import Chart, Dot, chart, dots
from .tuning import Trial, Tuning, shortened
from .variant import intensity, l2_gbs

_FAR = 12.0
"""Factor on the best time above which the search's chart leaves a trial out: naive variants would flatten it."""


def roofline(tuning: Tuning, gpu: DeviceInfo, rates: Rates) -> Chart | None:
    """Chart of GFLOP/s over operations a byte, with a dot for each variant under the roofs; None where this version has
    no config of the tuning."""
    problem, gflops = tuning.problem, rates.gflops(tuning.problem.dtype)
    memory_gbs, cache_gbs = rates.bandwidth_gbs, l2_gbs(gpu)

    def dot(config: Config, us: float, text: str) -> Dot:
        return intensity(problem, config), problem.flops / us / 1e3, text

    groups: dict[str, list[Dot]] = {}
    for trial in tuning.fastest:
        if trial.config is not None and trial.entry.time_us:
            groups.setdefault(trial.config.family, []).append(dot(trial.config, trial.entry.time_us, _text(trial)))
    config, variant, us = tuning.winner
    winner = [dot(config, us, f"the winner: {figure(us)} us, {variant}")] if config else []
    points = [*winner, *(point for group in groups.values() for point in group)]
    if not points:
        return None
    once = problem.flops / problem.bytes
    speeds, reuses = [y for _, y, _ in points], [once, *(x for x, _, _ in points)]
    # The bend of each roof is within the chart, however few the variants are.
    left, right = min(gflops / cache_gbs / 4, *reuses) / 1.6, 2 * max(gflops / memory_gbs, *reuses)
    bottom, top = min(gflops / 50, min(speeds) / 1.6), gflops * 1.6

    def draw(axes: Any, palette: Palette, narrow: bool) -> Marks:
        axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
        plain_ticks(axes.xaxis, left, right, (1,) if narrow or right > 1000 * left else (1, 2, 5))
        plain_ticks(axes.yaxis, bottom, top, (1,) if narrow else (1, 2, 5))
        marks = [each for place, name in enumerate(sorted(groups)) for each in dots(axes, groups[name], place, name)]
        line = {"color": palette.ink, "zorder": 3}
        for rate, style, name in ((memory_gbs, "-", "device memory"), (cache_gbs, "--", "L2 cache, a model")):
            label = f"{name}, {rate / 1e3:.2g} TB/s"
            axes.plot((left, gflops / rate), (left * rate, gflops), style, linewidth=1.2, label=label, **line)
        label = f"arithmetic, {gflops / 1e3:.1f} TFLOP/s"
        axes.plot((gflops / cache_gbs, right), (gflops,) * 2, linewidth=2.2, label=label, **line)
        dotted = {"color": palette.muted, "linewidth": 1.2, "linestyle": ":", "zorder": 1}
        vendor_us = tuning.record.vendor_us if tuning.record else None
        if vendor_us:
            label = f"{TITLES['cublas']}, {figure(vendor_us)} us"
            axes.axhline(problem.flops / vendor_us / 1e3, label=label, **dotted)
        axes.axvline(once, label="each matrix moved once", **dotted | {"linestyle": "-."})
        for x, y, text in winner:
            star = {"markersize": 15, "color": palette.ink, "markeredgewidth": 0, "zorder": 4}
            marks.append((axes.plot(x, y, "*", label="the winner", **star)[0], [text]))
        axes.set_xlabel("FLOP for each byte that CTAs load or store")
        axes.set_ylabel("GFLOP/s")
        legend(axes, 1 if narrow else 3)
        return marks

    return chart("roofline", "Roofline: speed of every variant under the limits of the device", draw)


def _text(trial: Trial) -> str:
    """Tooltip of a trial."""
    us = trial.entry.time_us
    return f"trial {trial.number:,}: {f'{figure(us)} us' if us else trial.entry.status}, {shortened(trial.variant, 90)}"


def search(tuning: Tuning) -> Chart:
    """Chart of the time of each trial, and of the best so far, over the trials."""
    best_us = min(trial.entry.time_us or math.inf for trial in tuning.fastest)
    tried = [(t.number, t.entry.time_us, _text(t)) for t in tuning.trials if t.entry.time_us]
    shown = [each for each in tried if each[1] <= _FAR * best_us]
    steps: list[tuple[float, float]] = []
    for number, us, _ in tried:
        if not steps or us < steps[-1][1]:
            steps.append((number, us))
    last = len(tuning.trials)
    low, high = best_us / 1.1, 1.15 * max(us for _, us, _ in shown)
    failed = [(trial.number, low * 1.02, _text(trial)) for trial in tuning.trials if not trial.entry.time_us]

    def draw(axes: Any, palette: Palette, narrow: bool) -> Marks:
        axes.set(yscale="log", xlim=(0.8, 1.15 * last) if last > 100 else (0, last + 1), ylim=(low, high))
        if last > 100:
            axes.set_xscale("log")
            plain_ticks(axes.xaxis, 1, 1.15 * last, (1,) if narrow else (1, 2, 5))
        plain_ticks(axes.yaxis, low, high, (1, 1.5, 2, 3, 5, 7) if high < 20 * low else (1, 2, 5))
        marks = dots(axes, shown, 0, "a trial")
        xs, ys = zip(*steps, (last, steps[-1][1]))
        axes.step(xs, ys, where="post", color=palette.ink, linewidth=1.8, label="best so far", zorder=3)
        marks += dots(axes, failed, 1, "failed")
        axes.set_xlabel("trial")
        axes.set_ylabel("us")
        legend(axes, 3)
        return marks

    return chart("search", "The search: time of each trial, and the best so far", draw)
