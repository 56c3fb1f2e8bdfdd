"""Where type checkers find `tilewright.torch`, whose code lies in `frameworks/`: at the root it would hide torch."""

from tilewright.frameworks.torch import Linear as Linear
from tilewright.frameworks.torch import matmul as matmul
