"""Limits and instructions of each GPU generation, one row each."""

from dataclasses import dataclass

from .errors import ConfigError, nearest_of

REGISTERS_PER_SM = 65536
"""Number of 32-bit registers of an SM, of which the threads of a CTA have an equal share at most."""


@dataclass(frozen=True, slots=True)
class Arch:
    """Limits, rates and instructions of a generation of devices. Sizes are bytes, registers are 32-bit words."""

    name: str
    """`sm_90a` and so on as the compiler spells it, or `host`."""
    capability: tuple[int, int]
    """CUDA compute capability, (0, 0) for the processor."""
    smem_per_sm_bytes: int
    """Shared memory of one SM."""
    max_threads_per_sm: int
    """Threads that run on one SM at a time."""
    max_blocks_per_sm: int
    """CTAs that run on one SM at a time."""
    fma_per_cycle_float: int
    """Fused multiply-adds in float of one SM in one clock, tensor cores left out."""
    fma_per_cycle_double: int
    """Fused multiply-adds in double of one SM in one clock, tensor cores left out."""
    dmma_per_cycle: int = 0
    """Fused multiply-adds in double of the tensor cores of one SM in one clock, by the fastest instruction."""
    mma_per_cycle: int = 0
    """Fused multiply-adds of halves, summed in float, of the tensor cores of one SM in one clock, by mma.sync."""
    instructions: frozenset[str] = frozenset()
    """Instructions that families may require: cp.async, mma.m16n8k16, mma.m16n8k8 (TF32), dmma.m8n8k4, dmma.m16n8,
    cluster, tma and wgmma.mma_async. With griddepcontrol, kernels that follow each other are launched with PDL."""
    max_threads_per_block: int = 1024
    """Threads of one block."""
    registers_per_sm: int = REGISTERS_PER_SM
    """Registers of one SM, and the most that one CTA can hold."""
    smem_reserved_bytes: int = 1024
    """Shared memory that the system takes from each block."""

    @property
    def smem_per_block_bytes(self) -> int:
        """Most shared memory of one block, for a kernel that opts in to it."""
        return self.smem_per_sm_bytes - self.smem_reserved_bytes

    @property
    def is_host(self) -> bool:
        """True for the processor."""
        return self.name == "host"


_SINCE_SM_80 = frozenset(("cp.async", "mma.m16n8k16", "mma.m16n8k8", "dmma.m8n8k4"))
_SINCE_SM_90 = _SINCE_SM_80 | {"dmma.m16n8", "cluster", "tma", "griddepcontrol"}
"""Instructions of every GPU from compute capability 9.0 on."""

# Limits: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#technical-specifications-per-compute-capability
# Rates: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#throughput-of-native-arithmetic-instructions
# Instructions: https://docs.nvidia.com/cuda/parallel-thread-execution/#target-isa-notes of each one
_ROWS = (
    #    name, compute capability, shared bytes, threads and blocks per SM; FMA per cycle in float and in double, of
    #    tensor cores in double and in half; instructions
    Arch("sm_75", (7, 5), 64 << 10, 1024, 16, 64, 2, smem_reserved_bytes=0),
    Arch("sm_80", (8, 0), 164 << 10, 2048, 32, 64, 32, 64, 1024, _SINCE_SM_80),
    Arch("sm_86", (8, 6), 100 << 10, 1536, 16, 128, 2, 2, 256, _SINCE_SM_80),
    Arch("sm_89", (8, 9), 100 << 10, 1536, 24, 128, 2, 2, 256, _SINCE_SM_80),
    Arch("sm_90a", (9, 0), 228 << 10, 2048, 32, 128, 64, 128, 1280, _SINCE_SM_90 | {"wgmma.mma_async"}),
    Arch("sm_100", (10, 0), 228 << 10, 2048, 32, 128, 64, 64, 1024, _SINCE_SM_90),
    Arch("sm_120", (12, 0), 100 << 10, 1536, 24, 128, 2, 2, 256, _SINCE_SM_90),
    # The processor runs every instruction as a function in plain C++; its limits are those of a small GPU.
    Arch("host", (0, 0), 100 << 10, 2048, 32, 32, 16, 16, 64, _SINCE_SM_90 - {"griddepcontrol"} | {"wgmma.mma_async"}),
)

ARCHES: dict[str, Arch] = {row.name: row for row in _ROWS}
"""Every known generation by name."""


def arch_named(name: str) -> Arch:
    """The row called `name`; `sm_90` finds `sm_90a`. Raises ConfigError listing the known ones."""
    arch = ARCHES.get(name) or ARCHES.get(name + "a")
    if arch is None:
        raise ConfigError(f"arch must be one of {', '.join(ARCHES)}, got {name!r}{nearest_of(name, ARCHES)}")
    return arch
