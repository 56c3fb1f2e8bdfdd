"""`tilewright devices`: the devices that kernels can run on."""

import json
from pathlib import Path

import click

from ..codegen.problem import DType
from ..runtime.device import launcher
from ..runtime.device.detect import available
from ..runtime.device.protocol import DeviceInfo
from ..runtime.store.codec import packed
from ..tuner.bench.report import Column, save
from .tables import new_console, say, table


def devices_command(json_file: Path | None) -> None:
    """Print the devices."""
    infos, missing = available()
    if json_file:
        save(json_file, json.dumps([{"key": info.key, **packed(info, whole=False)} for info in infos], indent=1) + "\n")
    else:
        console = new_console()
        say(console, *table(_columns(infos), console.width))
        if not all(info.arch.is_host for info in infos):
            click.echo(f"launcher: {launcher.described()}")
    if missing:
        click.echo(f"no GPU: {missing.removeprefix('device cuda: ')}", err=True)


def _columns(infos: tuple[DeviceInfo, ...]) -> list[Column]:
    return [
        Column("device", [info.selector for info in infos], left=True),
        Column("arch", [info.arch.name for info in infos], left=True),
        Column("SMs", [str(info.sm_count) for info in infos]),
        Column("MHz", [f"{info.clock_mhz:.0f}" for info in infos], 2),
        *(Column(f"{t.value} GFLOP/s", [f"{info.peak_gflops(t):,.0f}" for info in infos]) for t in DType),
        Column("GB", [f"{info.memory_bytes / 1e9:.1f}" for info in infos], 1),
        Column("GB/s", [f"{info.bandwidth_gbs:,.0f}" for info in infos]),
        Column("L2 MB", [f"{info.l2_bytes / 2**20:.0f}" for info in infos], 3),
        Column("KB a CTA", [f"{info.arch.smem_per_block_bytes / 1024:.0f}" for info in infos], 4),
        Column("name", [info.name for info in infos], left=True, wraps_at=16),
    ]
