"""Kernels that emitted files are tested with."""

from tilewright.codegen.families import families, family_named
from variants import ODD, WHOLE, dtypes, edges

KERNELS = [kernel for family in families() for kernel in edges(family)]
KERNELS += [
    ("simt:64x64x8,thread=4,load=registers,stages=2,fragments=single", ODD),
    ("simt:split_k=3,l2_prefetch,min_ctas=2", ODD),
    ("simt:pack_a,pack_b", "1022x766x510"),
    ("simt:64x64x32,slices=4,slice_barriers,split_k=2,reduce=cluster", ODD),
    ("simt:stream_k=1", WHOLE),
    ("simt:64x64x16,thread=4,slices=2,split_k=12", ODD),
    ("dmma:persistent=4", ODD),
    ("dmma:stream_k=1", ODD),
    ("tf32x3:split_k=3,promote=16", ODD),
]
"""Configs, each with the shape whose instance is emitted."""
SERVED = [
    (text, shape, dtype.value) for text, shape in KERNELS for dtype in dtypes(family_named(text.partition(":")[0]))
]
"""Every kernel in every type that its family computes in."""
TMA = {
    trans: "simt:32x16x64,load=tma,stages=3,thread=4,slices=2,split_k=2,"
    f"k_inner_a={int(trans[0] == 'n')},k_inner_b={int(trans[1] == 't')}"
    for trans in ("nn", "nt", "tn", "tt")
}
"""A kernel fed by TMA for each of the transposes: k lies in its tiles as it does in memory."""
