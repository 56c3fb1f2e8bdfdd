"""Blocks that share out evenly the k of tiles left over: grid, rules, planted faults, and on a GPU the same bits."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from planted import BROKEN, PARTS, RIGHT, Planted, outcomes
from products import on_device
from tilewright.codegen.arch import ARCHES, arch_named
from tilewright.codegen.config import Config
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.families import complete, family_of, rejections
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.device.protocol import DeviceInfo
from tilewright.runtime.product.kernel import prepare
from tilewright.tuner.search.candidates import candidates, read_spaces
from tilewright.tuner.search.model import estimate_us

H200 = DeviceInfo("NVIDIA H200", "cuda", ARCHES["sm_90a"], 132, 1980.0, 141 * 10**9, 60 << 20, 4800.0, "13.0")
SMALLER = replace(H200, name="NVIDIA H100 PCIe", sm_count=114)


@pytest.mark.parametrize(("shape", "blocks", "own"), [
    ("64x64x64", 5, 0),  # one tile for all
    ("256x64x64", 5, 0),
    ("320x64x64", 5, 5),  # nothing is over
    ("384x64x64", 5, 5),
    ("1024x1024x64", 5, 255),
    ("1024x1024x64", 300, 0),
])  # fmt: skip
def test_a_block_for_each_tile_but_those_that_are_over(shape: str, blocks: int, own: int) -> None:
    config = complete(Config.parse(f"simt:stream_k={blocks}"))
    source = render(Problem.parse(shape), config, arch_named("sm_90a"))
    assert source.launch.grid == (blocks + own, 1, 1)
    assert source.workspace_bytes == blocks * (2 * 64 * 64 * 4 + 4)


@pytest.mark.parametrize(("text", "reason"), [
    ("simt:stream_k=4,split_k=2", "shares out k by itself"),
    ("simt:stream_k=4,cp_async=1,stages=3,warm_l2=1", "shares out k by itself"),
    ("dmma:stream_k=4,persistent=2", "shares none of them with others"),
    ("simt:stream_k=4,bulk=1,cp_async=1,vec_a=4,vec_b=4,block_k=32,a_k_inner=1", "has one part of one tile"),
])  # fmt: skip
def test_what_cannot_be_is_refused(text: str, reason: str) -> None:
    problem = Problem.parse("256", "double" if text.startswith("dmma") else "float")
    assert any(reason in each for each in rejections(problem, complete(Config.parse(text)), ARCHES["sm_90a"]))


def test_values_that_are_not_there_are_told_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^stream_k must be one of 0 to 1024, got 1025$"):
        complete(Config.parse("simt:stream_k=1025"))


@pytest.mark.parametrize("info", [H200, SMALLER])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_as_many_blocks_are_tried_as_the_device_runs_at_a_time(info: DeviceInfo, dtype: str) -> None:
    found = candidates(Problem.parse("3000", dtype), info, read_spaces()).configs
    tried = {(config["stream_k"], config["min_blocks"]) for config in found if config.family in ("simt", "dmma")}
    assert {stream for stream, _ in tried} >= {0, info.sm_count}
    assert all(stream in (0, info.sm_count * int(blocks)) for stream, blocks in tried)


@pytest.mark.parametrize("shape", ["1024x768x512", "64x64x65536", "4224x2048x200", "4096x16x4096"])
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_nothing_is_tried_where_it_cannot_pay(shape: str, dtype: str) -> None:
    for config in candidates(Problem.parse(shape, dtype), H200, read_spaces()).configs:
        assert config.family == "skinny" or config.family in ("naive", "tiled") or config["stream_k"] == 0


def test_the_model_sees_what_it_gains() -> None:
    plain = "dmma:block_m=128,block_n=128,block_k=16,warp_m=32,warp_n=64,stages=3,vec_a=2,vec_b=2,vec_c=2,prefetch=2"
    for shape, least, most in (("3000", 0.85, 0.95), ("4096", 0.95, 0.99), ("4096x4224x4096", 1.0, 1.05)):
        problem = Problem.parse(shape, "double")
        alone, shared = (complete(Config.parse(f"{plain},stream_k={blocks}")) for blocks in (0, 132))
        assert least <= estimate_us(problem, shared, H200) / estimate_us(problem, alone, H200) <= most


# ---- Planted faults --------------------------------------------------------------------------------------------

LOOP = "simt:edge=bounds,block_m=16,block_n=16,thread_m=2,thread_n=4,block_k=8,stream_k=4"
SLICES = (
    "simt:edge=bounds,block_m=16,block_n=32,thread_m=4,thread_n=4,lanes_m=4,block_k=16,slices=2,cp_async=1,stages=3,"
    "stream_k=7"
)
TENSOR = "dmma:edge=bounds,block_m=16,block_n=16,warp_m=16,warp_n=8,block_k=8,stages=3,prefetch=1,group_m=4,stream_k=4"
BACKWARDS = ("number = blockIdx.x;", "number = blockIdx.x < STREAM_K ? STREAM_K - 1 - blockIdx.x : blockIdx.x;")
"""Blocks take their parts from the last one to the first: on the host, where they run in turn, what begins a tile comes
when all else is there."""
STAGED = "dmma:edge=bounds,block_m=32,block_n=32,warp_m=32,warp_n=16,block_k=16,stages=3,staged_c=1,stream_k=5"
SHAPES = ((66, 36, 44), (64, 32, 96), (4, 4, 4), (68, 36, 8))
"""Tiles that are over and others, fewer tiles than blocks, one vector, and tiles of C with one of k each."""
FAULTS = (
    ("one tile too few shared", "parts % STREAM_K)", "parts % STREAM_K - 1)", LOOP),
    ("no tile shared", "parts < STREAM_K ? parts : parts % STREAM_K", "0", LOOP),
    ("C not written where k is 0", " : 1) {}", " : 0) {}", LOOP),
    ("tiles with a block begin at the first one", "(block - STREAM_K + shared)", "(block - STREAM_K)", LOOP),
    ("second tile of a part left out", "at += part;", "at = end;", LOOP),
    ("part begins where the tile does", "k_begin = Index(first_tile) * BLOCK_K;", "k_begin = 0;", LOOP),
    ("part goes on to the tile's end", "min(end - at, stream.tiles - first_tile)", "stream.tiles - first_tile", LOOP),
    ("whole tile taken for a part", "if (!whole && !add", "if (!add", SLICES),
    ("part taken for a whole tile", "if (!whole && !add", "if (false && !add", TENSOR),
    ("first to come taken for the last", "== all - part;", "== 0;", LOOP),
    ("counter not put back", "if (*last) *counter = 0;", "", LOOP),
    ("blocks counted instead of tiles of k", "last, part, stream.tiles)", "last, 1, stream.tiles)", TENSOR),
    ("counters where sums are", "Index(2 * STREAM_K) * THREADS * SHARE", "Index(0) * THREADS * SHARE", LOOP),
    ("sums kept before all else is there", "counted(counter) == stream.tiles - part", "true", TENSOR),
    ("end of a tile taken for its beginning", "at == begin && counted(counter) ==", "counted(counter) ==", LOOP),
    ("block that begins the tile added twice", "unsigned each = from + 1;", "unsigned each = from;", LOOP),
    ("block that ends the tile left out", "stream.begin(each) < end; ++each", "stream.begin(each + 1) < end; ++each",
     TENSOR),
    ("block that begins the tile not looked for", "while (stream.begin(from) > begin) --from;", "", LOOP),
    ("sums of a block taken for those of the tile before", "place(each, false)", "place(each, true)", SLICES),
    ("next tiles put down where others are read", "        __syncthreads();  // no thread reads what",
     "        // what", STAGED),
)  # fmt: skip
FAULTS_BACKWARDS = (
    (
        "counter not put back by who keeps its sums",
        "stream.tiles - part;\n        if (*last) *counter = 0;",
        "stream.tiles - part;",
        LOOP,
    ),
    ("kept sums read again", "if (!*last) {", "if (true) {", LOOP),
    ("own sums added to themselves", "unsigned from = block;", "unsigned from = block - 1;", LOOP),
)


def config_for(text: str, dtype: str = "double") -> Config:
    """With vectors as wide as those in the workspace, for which the checks' memory is aligned."""
    return complete(Config.parse(f"{text},vec_c={2 if dtype == 'double' else 4}"))


@pytest.mark.parametrize("part", range(PARTS))
def test_every_fault_is_caught_and_the_unfaulted_text_passes(part: int, tmp_path: Path) -> None:
    planted = [Planted(name, config_for(text), old, new, shapes=SHAPES) for name, old, new, text in FAULTS]
    planted += [
        Planted(name, config_for(text), old, new, shapes=SHAPES, before=BACKWARDS)
        for name, old, new, text in FAULTS_BACKWARDS
    ]
    for text, dtype, before in itertools.product(
        (LOOP, SLICES, TENSOR, STAGED), ("double", "float"), (("", ""), BACKWARDS)
    ):
        if text.startswith("simt") or dtype == "double":
            name, trans = f"unfaulted {text} {dtype} {before}", "tt" if before[0] else "nn"
            planted.append(Planted(name, config_for(text, dtype), "", "", dtype, trans, SHAPES, before))
    found = outcomes(planted[part::PARTS], tmp_path)
    passed = {name for name, outcome in found.items() if outcome == RIGHT}
    assert passed == {name for name in found if name.startswith("unfaulted")}, found
    assert BROKEN not in found.values(), found


# ---- Who comes last --------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("text", [LOOP, SLICES, TENSOR, STAGED, LOOP.replace("stream_k=4", "stream_k=999")])
@pytest.mark.parametrize("shape", ["66x36x4100", "700x900x1000"])
def test_who_comes_last_makes_no_difference(text: str, shape: str) -> None:
    """Forty launches on two streams: the same bits, and right ones."""
    device = open_device(choose("cuda").info)
    config = complete(Config.parse(text))
    problem = Problem.parse(shape, "double" if config.family == "dmma" else "float")
    kernel = prepare(device, problem, config)
    assert family_of(config).streams(config) > 0
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
