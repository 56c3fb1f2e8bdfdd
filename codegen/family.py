"""What a family of kernels is: its parameters, its constraints and what its variants need."""

from collections.abc import Callable
from dataclasses import dataclass

from .arch import Arch
from .config import Config, Value
from .problem import DType, Problem
from .source import LaunchConfig, TensorBox

__all__ = ["EDGE", "FAMILIES", "Constraint", "Family", "Parameter", "family_in"]

MAX_STATIC_SMEM_BYTES = 49152
"""Shared memory that every device lets a kernel declare; a kernel that needs more is given it at launch."""
SPLITS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 128)
"""How many blocks may share a tile of C."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One knob of a family."""

    name: str
    """Python name; the constant in CUDA is the same in capitals."""
    code: str
    """Letters that stand for it in a kernel's name."""
    choices: tuple[Value, ...]
    """Every value allowed, the default first."""
    meaning: str
    """What it does, for a person; becomes the comment beside the constant."""
    worth: Callable[[Problem, Value], bool] = lambda problem, value: True
    """False for a value that a search need not combine with others for a problem: it works, but is hopeless."""
    silent: bool = False
    """Whether a kernel's name leaves it out where it has its default: what is rarely used makes no name longer."""
    constant: bool = True
    """Whether the text has it as a constant; otherwise it only decides what the template writes."""

    @property
    def default(self) -> Value:
        """The value taken where none is given."""
        return self.choices[0]


@dataclass(frozen=True, slots=True)
class Constraint:
    """Something that must hold before a config is worth compiling."""

    reason: str
    """One sentence a person reads; `{name}` is replaced by the parameter's value."""
    holds: Callable[[Problem, Config, Arch], bool]
    """True where the config may be used."""
    check: str | None = None
    """The same rule over the constants in CUDA, rendered as a static_assert where it can be said there."""

    def sentence(self, config: Config) -> str:
        """The reason with the config's values filled in; `{multiples}` is what exact edges ask of m, n and k."""
        multiples = ", ".join(map(str, family_in(config).multiples(config)))
        return self.reason.format(**dict(config.values), multiples=multiples)


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of kernel: one template, its parameters and constraints."""

    name: str
    """Word that users type."""
    title: str
    """One line on how it works."""
    template: str
    """File under templates/."""
    parameters: tuple[Parameter, ...]
    """Its knobs, in the order in which names and files spell them."""
    constraints: tuple[Constraint, ...]
    """Its own rules; those that every family shares are in COMMON."""
    block: Callable[[Config], tuple[int, int, int]]
    """Threads of a block as (x, y, z)."""
    tile: Callable[[Config], tuple[int, int, int]]
    """Rows and columns of C that a block computes, and the depth of k that one of its phases covers."""
    smem_elements: Callable[[Config], int]
    """Elements of shared memory of a block."""
    registers: Callable[[DType, Config], int]
    """Registers a thread needs, an estimate from above."""
    reuse: Callable[[Config], tuple[int, int]]
    """How often an element of A and of B, once loaded from global memory, is used by its block."""
    smem_loads: Callable[[Config], float] = lambda config: 0.0
    """Elements read from shared memory for one multiply-add of one thread, broadcasts counted as loads."""
    overhead: Callable[[DType, Config], float] = lambda dtype, config: 1.0
    """Instructions of a warp for each of its multiply-adds, beside that: loads, addresses, loops. An estimate."""
    tail_cycles: Callable[[Config], float] = lambda config: 0.0
    """Clocks in which a block adds up the sums of its own warps after its steps of k. An estimate."""
    in_flight: Callable[[Config], int] = lambda config: 0
    """Elements that a thread keeps on their way from memory, for a family that memory limits; else 0."""
    ahead: Callable[[Config], int] = lambda config: 0
    """Tiles that a block has on their way while it works on one, for a family whose blocks wait for them; else 0."""
    alone: Callable[[Problem, Config], int] = lambda problem, config: 0
    """Elements that a block moves before and after its main loop, with little else on their way."""
    advice: tuple[Constraint, ...] = ()
    """What makes a variant hopeless though it works: for searches, nothing else keeps to it."""
    alignment: Callable[[Config], tuple[int, int, int]] = lambda config: (1, 1, 1)
    """Elements of which the pointer, the leading dimension and the stored row of A, B and C are multiples."""
    splits: Callable[[Config], int] = lambda config: 1
    """Blocks that share a tile of C."""
    tail: Callable[[Config], int] = lambda config: 1
    """Which tiles of C they share: the last one of so many parts of all, rounded up."""
    persistent: Callable[[Config], int] = lambda config: 1
    """Tiles of C that a block computes one after the other."""
    streams: Callable[[Config], int] = lambda config: 0
    """How many blocks share out evenly the k of the tiles of C that are over when each has as many as the others, 0
    where none do."""
    sharers: Callable[[Config], int] = lambda config: 1
    """How many of those that share a tile add up a part of it each; 1 where the last one adds up all."""
    clustered: Callable[[Config], bool] = lambda config: False
    """Whether those form a cluster and add up in each other's shared memory, not in device memory."""
    packs: Callable[[Config], tuple[bool, bool]] = lambda config: (False, False)
    """Whether A and B are copied first, to rows of k that are aligned."""
    atomic: Callable[[Config], bool] = lambda config: False
    """Whether those add up in one tile of device memory, in the order in which they come: never quite the same bits."""
    early: Callable[[Config], bool] = lambda config: False
    """Whether the next kernel on the stream may come up while this one ends. It is launched then with so much shared
    memory that a multiprocessor holds no more of its blocks than it needs to."""
    uneven: Callable[[Config], bool] = lambda config: False
    """Whether a thread's part of C has a side that is no power of two: what the model says of it is less sure."""
    loaders: Callable[[Config], int] = lambda config: 0
    """Threads of a block that copy and do not multiply, the last ones."""
    boxes: Callable[[Problem, Config], tuple[TensorBox, ...]] = lambda problem, config: ()
    """What bulk tensor copies bring of A and of B at a time; none where the kernel has none."""
    scalar: Callable[[Config], Config] = lambda config: config
    """The config with vectors of one element, which serves any alignment with the same tiles."""

    tensor_cores: bool = False
    """Whether its multiply-adds run on the tensor cores: only those in double do."""

    def fma_per_cycle(self, dtype: DType, arch: Arch) -> int:
        """Multiply-adds of a multiprocessor in one clock, at best."""
        if self.tensor_cores:
            return arch.dmma_per_cycle
        return arch.fma_per_cycle_float if dtype is DType.FLOAT else arch.fma_per_cycle_double

    def threads(self, config: Config) -> int:
        """Threads of a block."""
        x, y, z = self.block(config)
        return x * y * z

    def smem_bytes(self, dtype: DType, config: Config) -> int:
        """Shared memory of a block in bytes."""
        return self.smem_elements(config) * dtype.size_bytes

    def smem_bytes_per_fma(self, dtype: DType, config: Config) -> float:
        """Bytes of shared memory traffic for one multiply-add."""
        return self.smem_loads(config) * dtype.size_bytes

    def blocks(self, problem: Problem, config: Config) -> int:
        """Blocks of the grid."""
        tiles, streams = self.tiles(problem, config), self.streams(config)
        if streams:
            return streams + tiles - streamed_tiles(tiles, streams)
        return -(-tiles // self.persistent(config)) + self.shared_tiles(problem, config) * (self.splits(config) - 1)

    def tiles(self, problem: Problem, config: Config) -> int:
        """Tiles of C."""
        tile_m, tile_n, _ = self.tile(config)
        return -(-problem.m // tile_m) * -(-problem.n // tile_n)

    def shared_tiles(self, problem: Problem, config: Config) -> int:
        """Tiles of C that `splits` blocks share; the others have a block each."""
        return -(-self.tiles(problem, config) // self.tail(config))

    def launch(self, problem: Problem, config: Config) -> LaunchConfig:
        """Grid and block for one problem. The grid is one-dimensional: no dimension of C meets the limit on y."""
        smem = self.smem_bytes(problem.dtype, config)
        static = smem if smem <= MAX_STATIC_SMEM_BYTES else 0
        return LaunchConfig((self.blocks(problem, config), 1, 1), self.block(config), smem - static, static)

    def has_workspace(self, config: Config) -> bool:
        """Whether blocks that share a tile of C add up in device memory of the kernel's own."""
        return self.streams(config) > 0 or (self.splits(config) > 1 and not self.clustered(config))

    def workspace_bytes(self, problem: Problem, config: Config) -> int:
        """Device memory of the kernel's own, zero before the first launch: where blocks add up in it, the sums of each,
        or of all those of a tile of C by atomics, and a counter for each tile of C; else 0."""
        if not self.has_workspace(config):
            return 0
        tile_m, tile_n, _ = self.tile(config)
        if self.streams(config):
            return self.streams(config) * (2 * tile_m * tile_n * problem.dtype.size_bytes + 4)
        shared = self.shared_tiles(problem, config)
        sums = shared * (1 if self.atomic(config) else self.splits(config)) * tile_m * tile_n
        return sums * problem.dtype.size_bytes + shared * 4

    def multiples(self, config: Config) -> tuple[int, int, int]:
        """What m, n and k must be multiples of where the edge is exact, and are padded to where it is pad."""
        return self.tile(config)

    def traffic_bytes(self, problem: Problem, config: Config) -> float:
        """Bytes that the blocks load and store if no cache helps: the tile's reuse alone."""
        reuse_a, reuse_b = self.reuse(config)
        loads = problem.m * problem.n * problem.k * (1 / reuse_a + 1 / reuse_b)
        return (loads + problem.m * problem.n) * problem.dtype.size_bytes


def streamed_tiles(tiles: int, blocks: int) -> int:
    """How many of so many tiles of C so many blocks share out evenly: what is over when each has as many as the others,
    or all there are."""
    return tiles if tiles < blocks else tiles % blocks


FAMILIES: dict[str, Family] = {}
"""Every family by name; families.py fills it."""


def family_in(config: Config) -> Family:
    """The family of a config that is known to have one."""
    return FAMILIES[config.family]


EDGE = Parameter(
    "edge",
    "e",
    ("bounds", "exact", "pad"),
    "outside the matrix: bounds = guarded, exact = never reached, pad = operands lie in zero-framed buffers",
    constant=False,
)
"""What a kernel does at the edges of the matrices; every family has it."""
