"""Rendered CUDA text, and how it is launched."""

import hashlib
import math
from dataclasses import dataclass, replace

from .target import Target

PACKED_BYTES = 128
"""Bytes to whose multiples rows of a packed operand are aligned."""
PACK_THREADS = 256
"""Threads of a CTA of the kernel that packs."""
PACK_TILE = 64
"""Rows and columns that a CTA of the kernel that packs copies at a time."""
PAD_THREADS = 256
"""Threads of a CTA of the kernel that copies to padded buffers and back; each warp copies a row."""
MOST_PAD_CTAS = 4096
"""Most CTAs of the kernel that pads for a matrix; where it has more rows, a CTA goes on to further ones."""
TERM_THREADS = 128
"""Threads of a CTA of the kernel that splits operands into terms."""
TERM_ROWS = 32
"""Rows of op(A) or columns of op(B), stored across k, that a warp of the kernel that splits holds."""
TERM_HELD = 2048
"""Elements that a warp of the kernel that splits holds at a time."""
MOST_LIMITED = 16
"""Most CTAs of an SM for which a launch spreads its CTAs evenly over the SMs."""
SMEM_STEP = 128
"""Bytes in whose multiples an SM allocates shared memory."""


MOST_ALONG_Y = 65535
"""Most CTAs of a grid along y, and along z."""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """The launch of a kernel: grid, block and shared memory."""

    grid: tuple[int, int, int]
    """Blocks as (x, y, z)."""
    block: tuple[int, int, int]
    """Threads of a block as (x, y, z)."""
    dynamic_smem_bytes: int = 0
    """Shared memory passed at launch."""
    static_smem_bytes: int = 0
    """Shared memory that the kernel declares."""

    def limited(self, target: Target, ctas: int = 0) -> "LaunchConfig":
        """This launch with enough shared memory that an SM of the target holds no more CTAs than it has to. Without the
        limit, CTAs that PDL brings up while another kernel ends would crowd on the first free SMs. `ctas` is the number
        of CTAs that have work at a time, 0 for all."""
        arch, blocks = target.arch, -(-(ctas or self.ctas) // target.sm_count)
        if "griddepcontrol" not in arch.instructions or blocks > MOST_LIMITED:
            return self
        # The least shared memory with which one block more does not fit.
        smem = (arch.smem_per_sm_bytes // (blocks + 1) - arch.smem_reserved_bytes) // SMEM_STEP * SMEM_STEP + SMEM_STEP
        more = min(smem, arch.smem_per_block_bytes) - self.static_smem_bytes
        return replace(self, dynamic_smem_bytes=max(more, self.dynamic_smem_bytes))

    def batched(self, batch: int) -> "LaunchConfig":
        """This launch for each product of a batch: products lie along y, and from 65,536 on along z too. Fewer places
        than there are along z have no product."""
        along_z = -(-batch // MOST_ALONG_Y)
        return replace(self, grid=(self.grid[0], -(-batch // along_z), along_z))

    @property
    def ctas(self) -> int:
        """Blocks of the grid."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return math.prod(self.block)

    @property
    def smem_bytes(self) -> int:
        """Shared memory of a block."""
        return self.dynamic_smem_bytes + self.static_smem_bytes


@dataclass(frozen=True, slots=True)
class TensorBox:
    """The box of a stored matrix that one TMA copy brings."""

    rows: int
    """Stored rows."""
    cols: int
    """Elements of each row."""
    swizzled: bool
    """Whether its rows, 128 bytes each, are swizzled on the way: piece i of 16 bytes of row r comes to place
    i ^ (r % 8), so that reads down its rows meet no bank twice."""


@dataclass(frozen=True, slots=True)
class KernelSource:
    """CUDA C++ of one variant. The text serves every shape that its edge allows.

    Kernel arguments, in order: const Elem* matrix_a, int lda, const Elem* matrix_b, int ldb, Elem* matrix_c, int ldc,
    int m, int n, int k, Elem alpha, Elem beta; Elem* workspace and unsigned* counters where the config has them;
    unsigned stream_ctas, the CTAs that share the remainder, with stream-K; a tensor map of A and of B (CUtensorMap)
    with TMA; const char* terms where operands are split; for a batch the argument Batch, which
    `batch.Strides.argument` packs and which is the last one of the preparation too. Elem is the type of the elements;
    leading dimensions count elements. The workspace is aligned to 256 bytes; counters are zero before the first launch,
    and each launch leaves them zero. One launch at a time uses both.
    """

    name: str
    """Name of the kernel, C linkage."""
    code: str
    """Complete text of the translation unit."""
    preparation: "KernelSource | None" = None
    """Source of the kernel that comes first and writes what this one reads, None where this one reads A and B as they
    lie. It is compiled by itself, once for all configs that share it. By its template it is one of three:

    pad    copies matrices to padded buffers and back. It has PAD_THREADS threads along x, and a CTA for each
           PAD_THREADS / 32 rows of a copy or fewer. Its arguments are const Elem* matrix, int ld, int rows, int cols,
           Elem* copy, int ld, int rows, int cols of one matrix, then the same of another one, whose copy may be null.
           With a null copy all CTAs work for the first matrix, else every other CTA does.
    pack   copies operands to aligned rows of k. A CTA has PACK_THREADS threads along x and copies PACK_TILE x PACK_TILE
           elements. Its arguments are const Elem* matrix, int ld, Elem* copy, int copy_ld for each operand that is
           copied, then int m, int n, int k.
    split  splits A and B into terms. `mechanisms.split_terms.term_ctas` says how many CTAs it has, of TERM_THREADS
           threads along x. Its arguments are const Elem* matrix_a, int lda, const Elem* matrix_b, int ldb, char* terms,
           int m, int n, int k, then m, n and k rounded up to whole tiles, each unsigned; terms is aligned to 256
           bytes.
    """

    @property
    def digest(self) -> str:
        """SHA-256 of the text followed by the text of the preparation, in hexadecimal."""
        text = self.code + (self.preparation.code if self.preparation else "")
        return hashlib.sha256(text.encode()).hexdigest()


def packed_ld(extent: int, size_bytes: int) -> int:
    """Leading dimension, in elements of `size_bytes` bytes, of a packed operand whose rows hold `extent` of them: rows
    begin at multiples of PACKED_BYTES."""
    return -(-extent * size_bytes // PACKED_BYTES) * PACKED_BYTES // size_bytes
