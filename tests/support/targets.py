"""A target of each architecture, for tests that care for no device."""

from tilewright.codegen.arch import ARCHES
from tilewright.codegen.target import Target
from tilewright.runtime.device.known import typical

_HOST = Target(
    arch=ARCHES["host"], sm_count=2, clock_mhz=3e3, memory_bytes=1 << 34, l2_bytes=1 << 25, bandwidth_gbs=20.0
)

TYPICAL: dict[str, Target] = {name: _HOST if arch.is_host else typical(arch) for name, arch in ARCHES.items()}
"""The typical device of each architecture by the name of that."""
