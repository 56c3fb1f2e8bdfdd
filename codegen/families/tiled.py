"""The `tiled` family: square tiles of A and B in shared memory, one thread an element of C."""

from dataclasses import dataclass

from ..config import Config
from ..cost import Cost
from ..fit import Fit
from ..leaf import EdgePolicy, option
from ..legality import Rule
from ..problem import DType


@dataclass(frozen=True, slots=True)
class TiledTile:
    """The tile of C that a CTA computes."""

    tile_width: int = option(16, 4, 8, 32, meaning="rows and columns of the tiles of A, B and C")
    skew: int = option(0, 1, meaning="unused elements after each row of a tile, against bank conflicts")
    unroll: int = option(8, 1, 2, 4, 16, 32, meaning="steps of a phase's multiply loop unrolled")


_RULES: tuple[Rule["TiledConfig"], ...] = (
    Rule(
        "unroll {c.tile.unroll} is at most tile_width {c.tile.tile_width}",
        lambda problem, config, target: config.tile.unroll <= config.tile.tile_width,
    ),
)


@dataclass(frozen=True, slots=True)
class TiledConfig(Config):
    """A variant of the family."""

    family = "tiled"
    title = "square tiles of A and B in shared memory, one thread an element of C"
    template = "tiled.cu.jinja"
    plain = "plain/tiled.cu.jinja"
    order = 1
    rules = _RULES
    joined = (("", ("tile_width",)),)

    tile: TiledTile = TiledTile()
    edge: EdgePolicy = option(EdgePolicy.FIT, meaning="what to do with shapes that the tiles do not divide")

    @property
    def block(self) -> tuple[int, int, int]:
        return self.tile.tile_width, self.tile.tile_width, 1

    @property
    def cta_tile(self) -> tuple[int, int, int]:
        return (self.tile.tile_width,) * 3

    def smem_bytes(self, dtype: DType) -> int:
        return 2 * self.tile.tile_width * (self.tile.tile_width + self.tile.skew) * dtype.size_bytes

    def cost(self, dtype: DType, fit: Fit) -> Cost:
        return Cost(smem_loads=1 + 1 / self.tile.tile_width)

    def registers(self, fit: Fit, dtype: DType) -> int:
        # Phases of the smallest tile are short enough for the compiler to unroll several of them.
        return 72 if self.tile.tile_width == 4 else 48 + self.tile.unroll // 2
