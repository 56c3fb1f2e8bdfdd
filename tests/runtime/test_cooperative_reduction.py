"""The cooperative split-K reduction: who takes part, planted faults on the host, and on a GPU how CTAs wait."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from planted import PARTS, Planted, assert_caught
from products import on_device
from targets import TYPICAL
from tilewright.codegen.fit import Fit
from tilewright.codegen.legality import fitted
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.runtime.device.cache import compile_cached
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.product.kernel import Kernel
from variants import variant


@pytest.mark.parametrize(("text", "ctas"), [
    ("simt:", 1), ("simt:split_k=6", 1), ("simt:split_k=8", 8), ("simt:split_k=12", 8),
    ("simt:split_k=16", 16), ("dmma:split_k=128", 16),
    ("dmma:split_k=8,reduce=cluster", 1), ("simt:block_m=32,block_n=32,split_k=8", 1),
    ("simt:block_m=32,block_n=32,split_k=16", 16), ("dmma:split_k=64,shared=1", 1), ("skinny:split_k=64", 1),
])  # fmt: skip
def test_how_many_ctas_add_up_a_part(text: str, ctas: int) -> None:
    config = variant(text)
    dtype = "double" if config.family == "dmma" else "float"
    assert config.cooperative_ctas == ctas
    code = render(Problem.parse("256", dtype), config, TYPICAL["sm_90a"]).code
    assert ("reduce_cooperative(" in code) == (ctas > 1)


# ---- Planted faults: on the host CTAs run one after the other, and all but the last of a tile give up -----------

LINES = "simt:32x32x8,thread=4x4,lanes_m=8,split_k=16"
SLICES = "simt:32x32x16,thread=4x4,lanes_m=8,slices=2,split_k=16"
UNEQUAL = "simt:16x48x32,thread=2x4,slices=4,split_k=24"
PIECES = "dmma:96x16x16,warp=48x16,stages=3,split_k=12"
MANY = "simt:64x64x8,thread=8x8,lanes_m=4,split_k=8"
TENSOR = "dmma:32x32x16,warp=32x16,stages=3,slices=2,split_k=24"
SHAPES = ((66, 36, 130), (64, 32, 256), (4, 4, 4))
"""Several tiles with ragged edges, whole tiles with a tile of k for each block, and one vector."""
FAULTS = (
    ("first to come taken for the last", "came(seen) == kSplitK - 1", "came(seen) == 0", LINES),
    ("parts that are left to the last forgotten", "parts |= left_to_last(seen);", "", LINES),
    ("another part left", "count(word, 256 * own)", "count(word, 512 * own)", LINES),
    ("part added up and left", "< kSplitK) parts = 0;", "< 0) parts = 0;", LINES),
    ("word not put back", "if (before / kGone == kSplitK - 1) *word = 0;", "", LINES),
    ("word put back by the first", "before / kGone == kSplitK - 1", "before / kGone == 0", LINES),
    ("word where accumulators are", "= counters + block", "= reinterpret_cast<unsigned*>(workspace) + block", LINES),
    ("accumulators of a CTA put down over another's", "tiles[split * kTile + g", "tiles[split / 2 * kTile + g", LINES),
    ("last part left out", "part < kReducers; ++part", "part < kReducers - 1; ++part", SLICES),
    ("last CTA of a thread left out", "? kTerms : 0", "? kTerms - 1 : 0", LINES),
    ("threads add up the same CTAs", "line * kTerms + term", "term", LINES),
    ("last line left out", "other < kAdders; ++other", "other < kAdders - 1; ++other", LINES),
    ("lines read before they are there", "= total[0];\n            __syncthreads();", "= total[0];", LINES),
    ("lines put down over those that are read", "if constexpr (kAdders > 1) {\n            __syncthreads();",
     "if constexpr (kAdders > 1) {", LINES),
    ("pieces of a thread read in one place", "part * kPart + first + i * kThreads];", "part * kPart + first];", PIECES),
    ("pieces written in one place", "at = part * kPart + first + i * kThreads;", "at = part * kPart + first;", PIECES),
    ("pieces beyond the part written", "if (kOwn * kThreads > kPart && first + i * kThreads >= kPart) break;", "",
     PIECES),
    ("piece written in the place of who adds it up", "at % kThreads, at", "int(threadIdx.x), at", LINES),
    ("accumulators taken for the first of a thread", "at / kThreads * kPiece);", "0);", PIECES),
    ("slice's accumulators taken for the first one's", "thread / kSliceThreads * kOut + e", "e", SLICES),
    ("warp's rows taken for the first one's", "warp / kWarpsN % kWarpsM * kWarpM, col", "0, col", PIECES),
    ("warp's columns taken for the first one's", "col0 + warp % kWarpsN * kWarpN", "col0", TENSOR),
    ("lane taken for another", "cols, thread % 32,", "cols, lane,", UNEQUAL),
    ("alpha ignored", "out[e] *= alpha", "out[e] *= Elem(1)", TENSOR),
)  # fmt: skip


def fit_for(text: str, dtype: str = "double") -> Fit:
    """With C in vectors as wide as those in the workspace, for which the checks' memory is aligned."""
    return Fit(variant(text), vec_c=2 if dtype == "double" or text == UNEQUAL else 4)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_fault_is_caught_and_the_unfaulted_text_passes(part: int, tmp_path: Path) -> None:
    planted = [Planted(name, fit_for(text), old, new, shapes=SHAPES) for name, old, new, text in FAULTS]
    unfaulted = (LINES, SLICES, UNEQUAL, PIECES, MANY, TENSOR)
    for text, dtype, trans in product(unfaulted, ("double", "float"), ("nn", "tt")):
        if text.startswith("simt") or (dtype, trans) == ("double", "nn"):
            name = f"unfaulted {text} {dtype} {trans}"
            planted.append(Planted(name, fit_for(text, dtype), dtype=dtype, trans=trans, shapes=SHAPES))
    assert_caught(planted[part::PARTS], tmp_path)


# ---- CTAs that wait for each other ------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("text", [LINES, SLICES, PIECES, MANY, TENSOR, SLICES.replace("split_k=16", "split_k=128")])
@pytest.mark.parametrize("shape", ["66x36x4100", "700x900x2000"])  # tiles of which all run at a time, and a few do
def test_who_waits_and_who_gives_up_makes_no_difference(text: str, shape: str) -> None:
    """CTAs that wait, that give up at once, and that give up or not as it comes, on two streams: the same bits."""
    device = open_device(choose("cuda"))
    config = variant(text)
    problem = Problem.parse(shape, "double" if config.family == "dmma" else "float")
    xp, rng = device.xp, np.random.default_rng(5)
    name = problem.dtype.numpy_name
    a, b = (xp.asarray(rng.random(stored), dtype=name) for stored in (problem.stored_a, problem.stored_b))
    fit = fitted(problem, config, device.info)
    source = render(problem, config, device.info, fit)
    patience = "kPatience = 1 << 18"
    assert patience in source.code

    seen = set()
    for clocks in ("1 << 18", "0", "2000"):
        text_of = replace(source, code=source.code.replace(patience, f"kPatience = {clocks}"))
        kernel = Kernel(device, problem, fit, text_of, compile_cached(device.compiler, text_of))
        streams = [xp.cuda.Stream(non_blocking=True, priority=priority) for priority in (0, -1)]
        made = [[xp.empty((problem.m, problem.n), name) for _ in range(20)] for _ in streams]
        xp.cuda.Device().synchronize()
        for each in range(20):
            for stream, results in zip(streams, made, strict=True):
                with stream:
                    kernel.launch(*map(on_device, (a, b, results[each])))
        xp.cuda.Device().synchronize()
        seen |= {xp.asnumpy(result).tobytes() for results in made for result in results}
    assert len(seen) == 1
    wanted = xp.asnumpy(a).astype(float) @ xp.asnumpy(b).astype(float)
    (bits,) = seen
    got = np.frombuffer(bits, name).reshape(wanted.shape)
    assert np.abs(got - wanted).max() < problem.k * float(np.finfo(name).eps) * wanted.max()
