"""Limits and instructions of each GPU generation, one row each."""

from dataclasses import dataclass

from .errors import ConfigError, check


@dataclass(frozen=True, slots=True)
class Arch:
    """What a generation of devices can hold and do. Sizes are bytes, registers are 32-bit words."""

    name: str
    """`sm_90a` and so on as the compiler spells it, or `host`."""
    capability: tuple[int, int]
    """CUDA compute capability, (0, 0) for the processor."""
    smem_per_block_bytes: int
    """Most shared memory of one block, opted in."""
    smem_per_sm_bytes: int
    """Shared memory of one SM."""
    max_threads_per_sm: int
    """Threads that run on one SM at a time."""
    max_blocks_per_sm: int
    """CTAs that run on one SM at a time."""
    fma_per_cycle_float: int
    """Fused multiply-adds in float of one SM in one clock, tensor cores left out."""
    fma_per_cycle_double: int
    """The same in double."""
    dmma_per_cycle: int = 0
    """Fused multiply-adds in double of its tensor cores in one clock, by the fastest of its instructions."""
    instructions: frozenset[str] = frozenset()
    """What families may ask for: cp.async, dmma.m8n8k4, dmma.m16n8, cluster, tma, wgmma; griddepcontrol: kernels that
    follow each other are launched with PDL."""
    max_threads_per_block: int = 1024
    """Threads of one block."""
    registers_per_sm: int = 65536
    """Registers of one SM, and the most that one CTA can hold."""
    registers_per_thread: int = 255
    """Most registers of one thread."""
    static_smem_bytes: int = 49152
    """Shared memory that a block can declare statically."""
    smem_reserved_bytes: int = 1024
    """Shared memory that the system takes from each block."""

    def __post_init__(self) -> None:
        # A row proves itself: a typing slip in the table must not become a wrong pruning.
        check(self.static_smem_bytes <= self.smem_per_block_bytes, f"{self.name}: shared bytes of a block")
        check(self.smem_per_block_bytes <= self.smem_per_sm_bytes, f"{self.name}: shared bytes of an SM")
        check(self.max_threads_per_block <= self.max_threads_per_sm, f"{self.name}: threads")
        check(self.max_threads_per_sm % 32 == 0, f"{self.name}: threads come in warps of 32")
        dmma = any(name.startswith("dmma.") for name in self.instructions)
        check(dmma == bool(self.dmma_per_cycle), f"{self.name}: DMMA rate")
        check(self.fma_per_cycle_float % 32 == 0, f"{self.name}: float lanes come in groups of 32")

    @property
    def is_host(self) -> bool:
        """True for the processor."""
        return self.name == "host"


def _gpu(
    name: str,
    capability: tuple[int, int],
    smem_kb: int,
    threads: int,
    blocks: int,
    fma: tuple[int, int, int],
    *instructions: str,
    reserved_kb: int = 1,
) -> Arch:
    smem_bytes = smem_kb * 1024, reserved_kb * 1024
    return Arch(
        name=name,
        capability=capability,
        smem_per_block_bytes=smem_bytes[0] - smem_bytes[1],
        smem_per_sm_bytes=smem_bytes[0],
        max_threads_per_sm=threads,
        max_blocks_per_sm=blocks,
        fma_per_cycle_float=fma[0],
        fma_per_cycle_double=fma[1],
        dmma_per_cycle=fma[2],
        instructions=frozenset(instructions),
        smem_reserved_bytes=smem_bytes[1],
    )


_SINCE_SM_90 = "cp.async", "dmma.m8n8k4", "dmma.m16n8", "cluster", "tma", "griddepcontrol"
"""What every GPU has from compute capability 9.0 on."""

# Limits: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#technical-specifications-per-compute-capability
# Rates: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#throughput-of-native-arithmetic-instructions
# Instructions: https://docs.nvidia.com/cuda/parallel-thread-execution/#target-isa-notes of each one
_ROWS = (
    #    name, compute capability, KB of shared memory, threads and blocks per SM, FMA per cycle in float and double
    _gpu("sm_75", (7, 5), 64, 1024, 16, (64, 2, 0), reserved_kb=0),
    _gpu("sm_80", (8, 0), 164, 2048, 32, (64, 32, 64), "cp.async", "dmma.m8n8k4"),
    _gpu("sm_86", (8, 6), 100, 1536, 16, (128, 2, 2), "cp.async", "dmma.m8n8k4"),
    _gpu("sm_89", (8, 9), 100, 1536, 24, (128, 2, 2), "cp.async", "dmma.m8n8k4"),
    _gpu("sm_90a", (9, 0), 228, 2048, 32, (128, 64, 128), *_SINCE_SM_90, "wgmma"),
    _gpu("sm_100", (10, 0), 228, 2048, 32, (128, 64, 64), *_SINCE_SM_90),
    _gpu("sm_120", (12, 0), 100, 1536, 24, (128, 2, 2), *_SINCE_SM_90),
    # The processor runs every instruction as a function in plain C++; its limits are those of a small GPU.
    Arch("host", (0, 0), 101376, 102400, 2048, 32, 32, 16, 16, frozenset(_SINCE_SM_90) - {"griddepcontrol"}),
)

ARCHES: dict[str, Arch] = {row.name: row for row in _ROWS}
"""Every known generation by name."""


def arch_named(name: str) -> Arch:
    """The row called `name`; `sm_90` finds `sm_90a`. Raises ConfigError listing the known ones."""
    found = ARCHES.get(name) or ARCHES.get(name + "a")
    if found is None:
        raise ConfigError(f"arch must be one of {', '.join(ARCHES)}, got {name!r}")
    return found
