"""Known devices, for which kernels are emitted on any machine."""

from collections.abc import Mapping

from ...codegen.arch import ARCHES, Arch, arch_named
from ...codegen.errors import check
from .protocol import DeviceInfo

_GB, _MB = 10**9, 1 << 20


def _known(name: str, arch: str, sms: int, mhz: float, gb: int, l2_mb: int, gbs: float) -> DeviceInfo:
    return DeviceInfo(
        name=name,
        selector="cuda",
        arch=ARCHES[arch],
        sm_count=sms,
        clock_mhz=mhz,
        memory_bytes=gb * _GB,
        l2_bytes=l2_mb * _MB,
        bandwidth_gbs=gbs,
        driver="unknown",
    )


# Figures are from NVIDIA's data sheets and architecture papers, names from the driver. Devices that were measured have
# the memory rate of the driver, so that look-ups by key and on the device agree. The first device of an architecture
# is its typical one.
_DEVICES = (
    #       name, arch, SMs, highest MHz, GB, MB of L2, GB/s
    _known("Tesla T4", "sm_75", 40, 1590, 16, 4, 320),
    _known("NVIDIA A100-SXM4-80GB", "sm_80", 108, 1410, 80, 40, 2039),
    _known("NVIDIA A100-PCIE-40GB", "sm_80", 108, 1410, 40, 40, 1555),
    _known("NVIDIA GeForce RTX 3090", "sm_86", 82, 1695, 24, 6, 936),
    _known("NVIDIA A10", "sm_86", 72, 1695, 24, 6, 600),
    _known("NVIDIA L40S", "sm_89", 142, 2520, 48, 96, 864),
    _known("NVIDIA GeForce RTX 4090", "sm_89", 128, 2520, 24, 72, 1008),
    _known("NVIDIA H200", "sm_90a", 132, 1980, 141, 60, 4814.304),
    _known("NVIDIA H100 80GB HBM3", "sm_90a", 132, 1980, 80, 50, 3352.32),
    _known("NVIDIA H100 PCIe", "sm_90a", 114, 1755, 80, 50, 2000),
    _known("NVIDIA B200", "sm_100", 148, 1965, 180, 126, 7700),
    _known("NVIDIA GeForce RTX 5090", "sm_120", 170, 2407, 32, 96, 1792),
)

CLUSTER_SHARE = {3: 117 / 132, 4: 120 / 132, 5: 110 / 132, 6: 102 / 132, 8: 120 / 132}
"""Largest fraction of the SMs that have one CTA each at a time, by the CTAs of a cluster; 1 for other sizes.

A cluster stays within a group of SMs (a GPC), of which some remain idle; with one cluster more, some SMs have two CTAs.
Source: measured on an H200; other devices with clusters are taken to have the same fractions."""

KNOWN: dict[str, DeviceInfo] = {info.key: info for info in _DEVICES}
"""Known devices by key."""


def typical(arch: Arch) -> DeviceInfo:
    """The typical device of an architecture; there is one for each but the host's."""
    return next(info for info in _DEVICES if info.arch == arch)


def target_named(name: str) -> DeviceInfo:
    """The target of a name: a device by its key, such as `nvidia-a100-sxm4-80gb`, or the typical device of an
    architecture, such as `sm_80`. This machine need not have the device.

    Raises ConfigError listing the names.
    """
    if name in KNOWN:
        return KNOWN[name]
    names = ", ".join([*(arch for arch in ARCHES if arch != "host"), *KNOWN])
    check(name != "host" and (name in ARCHES or f"{name}a" in ARCHES), f"target must be one of {names}, got {name!r}")
    return typical(arch_named(name))


def of_arch(arch: Arch, recorded: Mapping[str, int]) -> list[DeviceInfo]:
    """The devices of an architecture that have records, the one with most first; `recorded` counts records by key."""
    infos = (info for info in KNOWN.values() if info.arch == arch and info.key in recorded)
    return sorted(infos, key=lambda info: -recorded[info.key])
