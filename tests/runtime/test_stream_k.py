"""Stream-K for the remainder of the last wave: grid, rules, planted faults, and on a GPU the same bits."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from planted import PARTS, Planted, assert_caught
from products import on_device
from search_spaces import H200
from targets import TYPICAL
from tilewright.codegen.fit import Fit
from tilewright.codegen.legality import rejections
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.product.kernel import prepare
from tilewright.tuner.choose.model import Table
from variants import variant


@pytest.mark.parametrize(("shape", "per_sm", "sm_count", "own"), [
    ("64x64x64", 1, 5, 0),  # one tile for all
    ("256x64x64", 1, 5, 0),
    ("320x64x64", 1, 5, 5),  # nothing is over
    ("384x64x64", 1, 5, 5),
    ("1024x1024x64", 1, 5, 255),
    ("1024x1024x64", 3, 100, 0),
])  # fmt: skip
def test_a_cta_for_each_tile_but_those_that_are_over(shape: str, per_sm: int, sm_count: int, own: int) -> None:
    config, problem, ctas = variant("simt:", stream_k=per_sm), Problem.parse(shape), per_sm * sm_count
    assert config.launch_config(problem, sm_count).grid == (ctas + own, 1, 1)
    assert config.workspace_bytes(problem, sm_count) == ctas * (2 * 64 * 64 * 4 + 4)


@pytest.mark.parametrize(("text", "reason"), [
    ("simt:stream_k=4,reduce=cluster", "share out k by split_k"),
    ("simt:stream_k=4,load=cp_async,stages=3,l2_prefetch=1", "the CTA has one tile of C"),
    ("simt:stream_k=4,load=tma,block_k=32,k_inner_a=1", "one tile of C"),
])  # fmt: skip
def test_what_cannot_be_is_refused(text: str, reason: str) -> None:
    assert any(reason in each for each in rejections(Problem.parse("256"), variant(text), TYPICAL["sm_90a"]))


def test_the_model_sees_what_it_gains() -> None:
    plain = "dmma:128x128x16,warp=32x64,stages=3,fragments=double"
    for shape, least, most in (("3000", 0.85, 0.97), ("4096", 0.95, 1.0), ("4096x4224x4096", 1.0, 1.05)):
        problem = Problem.parse(shape, "double")
        configs = [variant(plain, stream_k=ctas) for ctas in (0, 1)]
        alone, shared = Table(configs, problem.dtype, H200).modelled_us(problem)
        assert least <= shared / alone <= most


# ---- Planted faults --------------------------------------------------------------------------------------------

LOOP = "simt:16x16x8,thread=2x4,stream_k=4"
SLICES = "simt:16x32x16,thread=4x4,lanes_m=4,slices=2,load=cp_async,stages=3,stream_k=1"
TENSOR = "dmma:16x16x8,warp=16x8,stages=3,raster=4,stream_k=4"
BACKWARDS = (
    "    const StreamK stream(",
    "    const uint3 it = blockIdx, blockIdx = {it.x < stream_ctas ? stream_ctas - 1 - it.x : it.x, 0, 0};\n"
    "    const StreamK stream(",
)
"""CTAs take their parts from the last one to the first: on the host, where they run in turn, what begins a tile comes
when all else is there."""
SHARED = "dmma:32x32x16,warp=32x16,stages=3,shared=1,stream_k=1"
SM_COUNTS = {SLICES: 7, SHARED: 5}
SHAPES = ((66, 36, 44), (64, 32, 96), (4, 4, 4), (68, 36, 8))
"""Tiles that are over and others, fewer tiles than CTAs, one vector, and tiles of C with one of k each."""
FAULTS = (
    ("one tile too few shared", "tiles_of_c % ctas)", "tiles_of_c % ctas - 1)", LOOP),
    ("no tile shared", "tiles_of_c < ctas ? tiles_of_c : tiles_of_c % ctas", "0", LOOP),
    ("C not written where k is 0", " : 1)\n", " : 0)\n", LOOP),
    ("tiles with a CTA begin at the first one", "(cta - ctas + shared)", "(cta - ctas)", LOOP),
    ("second tile of a part left out", "at += part;", "at = end;", LOOP),
    ("part begins where the tile does", "k_begin = Index(first_tile) * kBlockK;", "k_begin = 0;", LOOP),
    ("part goes on to the tile's end", "min(end - at, stream.tiles - first_tile)", "stream.tiles - first_tile", LOOP),
    ("whole tile taken for a part", "if (!whole && !reduce", "if (!reduce", SLICES),
    ("part taken for a whole tile", "if (!whole && !reduce", "if (false && !reduce", TENSOR),
    ("first to come taken for the last", "== all - part;", "== 0;", LOOP),
    ("counter not put back", "if (*last) *counter = 0;", "", LOOP),
    ("CTAs counted instead of tiles of k", "last, part, stream.tiles)", "last, 1, stream.tiles)", TENSOR),
    ("counters where accumulators are", "= counters + tile;", "= reinterpret_cast<unsigned*>(workspace) + tile;", LOOP),
    ("accumulators kept before all else is there", "load_acquire(counter) == stream.tiles - part", "true", TENSOR),
    ("end of a tile taken for its beginning", "at == begin && load_acquire(counter) ==", "load_acquire(counter) ==",
     LOOP),
    ("CTA that begins the tile added twice", "unsigned each = from + 1;", "unsigned each = from;", LOOP),
    ("CTA that ends the tile left out", "stream.begin(each) < end; ++each", "stream.begin(each + 1) < end; ++each",
     TENSOR),
    ("CTA that begins the tile not looked for", "while (stream.begin(from) > begin) --from;", "", LOOP),
    ("accumulators of a CTA taken for those of the tile before", "place(each, false)", "place(each, true)", SLICES),
    ("next tiles put down where others are read", "        __syncthreads();  // no thread reads what",
     "        // what", SHARED),
)  # fmt: skip
FAULTS_BACKWARDS = (
    (
        "counter not put back by who keeps its accumulators",
        "stream.tiles - part;\n        if (*last) *counter = 0;",
        "stream.tiles - part;",
        LOOP,
    ),
    ("kept accumulators read again", "if (!*last) {", "if (true) {", LOOP),
    ("own accumulators added to themselves", "unsigned from = cta;", "unsigned from = cta - 1;", LOOP),
)


def planted(
    name: str, text: str, old: str = "", new: str = "", dtype: str = "double", trans: str = "nn",
    before: tuple[str, str] = ("", ""),
) -> Planted:  # fmt: skip
    """With C in vectors as wide as those in the workspace, for which the checks' memory is aligned."""
    fit = Fit(variant(text), vec_c=2 if dtype == "double" else 4)
    return Planted(name, fit, old, new, dtype, trans, SHAPES, before, SM_COUNTS.get(text, 1))


@pytest.mark.parametrize("part", range(PARTS))
def test_every_fault_is_caught_and_the_unfaulted_text_passes(part: int, tmp_path: Path) -> None:
    kernels = [planted(name, text, old, new) for name, old, new, text in FAULTS]
    kernels += [planted(name, text, old, new, before=BACKWARDS) for name, old, new, text in FAULTS_BACKWARDS]
    for text, dtype, before in itertools.product(
        (LOOP, SLICES, TENSOR, SHARED), ("double", "float"), (("", ""), BACKWARDS)
    ):
        if text.startswith("simt") or dtype == "double":
            name, trans = f"unfaulted {text} {dtype} {before}", "tt" if before[0] else "nn"
            kernels.append(planted(name, text, "", "", dtype, trans, before))
    assert_caught(kernels[part::PARTS], tmp_path)


# ---- Who comes last --------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("text", [LOOP, SLICES, TENSOR, SHARED, LOOP.replace("stream_k=4", "stream_k=1")])
@pytest.mark.parametrize("shape", ["66x36x4100", "700x900x1000"])
def test_who_comes_last_makes_no_difference(text: str, shape: str) -> None:
    """Forty launches on two streams: the same bits, and right ones."""
    device = open_device(choose("cuda"))
    config = variant(text)
    problem = Problem.parse(shape, "double" if config.family == "dmma" else "float")
    kernel = prepare(device, problem, config)
    xp, rng = device.xp, np.random.default_rng(5)
    name = problem.dtype.numpy_name
    a, b = (xp.asarray(rng.random(stored), dtype=name) for stored in (problem.stored_a, problem.stored_b))
    streams = [xp.cuda.Stream(non_blocking=True, priority=priority) for priority in (0, -1)]
    made = [[xp.empty((problem.m, problem.n), name) for _ in range(20)] for _ in streams]
    xp.cuda.Device().synchronize()
    for each in range(20):
        for stream, results in zip(streams, made, strict=True):
            with stream:
                kernel.launch(*map(on_device, (a, b, results[each])))
    xp.cuda.Device().synchronize()
    seen = {xp.asnumpy(result).tobytes() for results in made for result in results}
    assert len(seen) == 1
    wanted = xp.asnumpy(a).astype(float) @ xp.asnumpy(b).astype(float)
    got = np.frombuffer(seen.pop(), name).reshape(wanted.shape)
    assert np.abs(got - wanted).max() < problem.k * float(np.finfo(name).eps) * wanted.max()
