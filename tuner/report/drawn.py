"""Charts of a tuning: its roofline, and the search over time."""

import math
from typing import Any

from ...runtime.check.roofline import Rates
from ...runtime.device.protocol import DeviceInfo
from ..bench.plot import Palette, legend, plain_ticks
from ..bench.report import figure
from ..bench.rows import TITLES
from .charts import Chart, chart, dots
from .tuning import Tuning
from .variant import intensity, l2_gbs

_FAR = 12.0
"""Factor on the best time above which the search's chart leaves a trial out: naive variants would flatten it."""


def roofline(tuning: Tuning, gpu: DeviceInfo, rates: Rates) -> Chart | None:
    """Chart of GFLOP/s over operations a byte, with a dot for each variant under the roofs; None where this version
    does not have the winner's config."""
    problem, gflops = tuning.problem, rates.gflops(tuning.problem.dtype)
    memory_gbs, cache_gbs = rates.bandwidth_gbs, l2_gbs(gpu)
    groups: dict[str, list[tuple[float, float]]] = {}
    for trial in tuning.fastest:
        if trial.config is not None and trial.entry.time_us:
            point = intensity(problem, trial.config), problem.flops / trial.entry.time_us / 1e3
            groups.setdefault(trial.config.family, []).append(point)
    config, _, us = tuning.winner
    if config is None:
        return None
    best = intensity(problem, config), problem.flops / us / 1e3
    points = [best, *(point for group in groups.values() for point in group)]
    left, right = min(x for x, _ in points) / 1.6, max(x for x, _ in points) * 2.5
    right = max(right, 3 * gflops / memory_gbs)
    bottom, top = min(y for _, y in points) / 1.6, gflops * 1.6

    def draw(axes: Any, palette: Palette, narrow: bool) -> None:
        axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
        plain_ticks(axes.xaxis, left, right, (1,) if narrow else (1, 2, 5))
        plain_ticks(axes.yaxis, bottom, top, (1,) if narrow else (1, 2, 5))
        for place, (family, group) in enumerate(sorted(groups.items())):
            dots(axes, group, place, family)
        line = {"color": palette.ink, "zorder": 3}
        for rate, style, name in ((memory_gbs, "-", "device memory"), (cache_gbs, "--", "L2 cache, a model")):
            label = f"{name}, {rate / 1e3:.2g} TB/s"
            axes.plot((left, gflops / rate), (left * rate, gflops), style, linewidth=1.2, label=label, **line)
        label = f"arithmetic, {gflops / 1e3:.1f} TFLOP/s"
        axes.plot((gflops / cache_gbs, right), (gflops,) * 2, linewidth=2.2, label=label, **line)
        vendor_us = tuning.record.vendor_us if tuning.record else None
        if vendor_us:
            label, height = f"{TITLES['cublas']}, {figure(vendor_us)} us", problem.flops / vendor_us / 1e3
            axes.axhline(height, color=palette.muted, linewidth=1.2, linestyle=":", label=label, zorder=1)
        axes.plot(*best, "*", markersize=15, color=palette.ink, markeredgewidth=0, label="the winner", zorder=4)
        axes.set_xlabel("FLOP for each byte that CTAs load or store")
        axes.set_ylabel("GFLOP/s")
        legend(axes, 1 if narrow else 3)

    return chart("roofline", "Roofline: speed of every variant under the limits of the device", draw)


def search(tuning: Tuning) -> Chart:
    """Chart of the time of each trial, and of the best so far, over the trials."""
    best_us = min(trial.entry.time_us or math.inf for trial in tuning.fastest)
    tried = [(trial.number, trial.entry.time_us) for trial in tuning.trials if trial.entry.time_us]
    shown = [(number, us) for number, us in tried if us <= _FAR * best_us]
    failed = [trial.number for trial in tuning.trials if not trial.entry.time_us]
    steps: list[tuple[float, float]] = []
    for number, us in tried:
        if not steps or us < steps[-1][1]:
            steps.append((number, us))
    last = len(tuning.trials)
    low, high = best_us / 1.1, 1.15 * max([us for _, us in shown])

    def draw(axes: Any, palette: Palette, narrow: bool) -> None:
        axes.set(yscale="log", xlim=(0.8, 1.15 * last) if last > 100 else (0, last + 1), ylim=(low, high))
        if last > 100:
            axes.set_xscale("log")
            plain_ticks(axes.xaxis, 1, 1.15 * last, (1,) if narrow else (1, 2, 5))
        plain_ticks(axes.yaxis, low, high, (1, 1.5, 2, 3, 5, 7) if high < 20 * low else (1, 2, 5))
        dots(axes, shown, 0, "a trial")
        xs, ys = zip(*steps, (last, steps[-1][1]))
        axes.step(xs, ys, where="post", color=palette.ink, linewidth=1.8, label="best so far", zorder=3)
        dots(axes, [(number, low * 1.02) for number in failed], 1, "failed")
        axes.set_xlabel("trial")
        axes.set_ylabel("us")
        legend(axes, 3)

    return chart("search", "The search: time of each trial, and the best so far", draw)
