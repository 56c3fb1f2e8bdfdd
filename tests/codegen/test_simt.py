"""The simt family: what its rules refuse, what its space holds, and what the compiler makes of it."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from pathlib import Path

import pytest
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.combine import combine
from tilewright.codegen.config import Config
from tilewright.codegen.families import FAMILIES, complete, rejections
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.render import render
from tilewright.runtime.device import DeviceInfo
from tilewright.runtime.estimate import pays
from tilewright.tuner.configspace import Choices, read_spaces
from variants import most_spilled_bytes, settled

SIMT = FAMILIES["simt"]
SM_90 = ARCHES["sm_90a"]
TARGETS = ("sm_80", "sm_90a", "sm_100", "sm_120")
SAMPLE = 24
"""Variants that are compiled for each target, beside those of deep tiles."""
DEEP = 4
"""Variants of deep tiles."""


def space(
    problem: Problem, arch: str = "sm_90a", spaces: tuple[Choices, ...] | None = None
) -> tuple[list[Config], Counter[str]]:
    """What the shipped space, or another, holds for a problem on a device of 132 multiprocessors."""
    (choices,) = (choices for choices in spaces or read_spaces() if choices.family == "simt")
    info = DeviceInfo("NVIDIA X", "cuda:0", ARCHES[arch], 132, 1980.0, 1 << 37, 60 << 20, 4800.0, "CUDA 13.0")
    values = dict(choices.parameters)
    return combine(problem, info.arch, SIMT, values, pays(problem, info, SIMT, values))


FEW_TILES = {"block_m": (64,), "block_n": (64, 128), "split_k": (1, 2)}


@lru_cache(maxsize=16)
def tried(problem: Problem, arch: str = "sm_90a", **values: tuple[int, ...]) -> list[Config]:
    """What the space holds of tiles, vectors and ways to share them out, or of fewer of them."""
    return space(problem, arch, settled("simt", **values))[0]


def usual(dtype: str) -> str:
    """A device that leaves products in this type to the family."""
    return "sm_90a" if dtype == "float" else "sm_120"


def reasons(
    text: str, problem: str = "1024", dtype: str = "float", trans: str = "nn", arch: str = "sm_90a"
) -> list[str]:
    config = complete(Config.parse(f"simt:{text}"))
    return list(rejections(Problem.parse(problem, dtype, trans), config, ARCHES[arch]))


@pytest.mark.parametrize(
    ("text", "problem", "dtype", "trans", "reason"),
    [
        ("block_m=16,thread_m=4,lanes_m=8", "1024", "float", "nn", "block_m 16 is a multiple of the rows of a warp"),
        ("block_n=16,thread_n=8,lanes_m=8", "1024", "float", "nn", "block_n 16 is a multiple of the columns of a"),
        ("stages=3", "1024", "float", "nn", "tiles that pass through registers use two stages, not 3"),
        ("vec_a=4", "64x64x30", "float", "nn", "vec_a 4 is at most 16 bytes and divides the stored rows of A"),
        ("vec_b=2", "64x63x64", "float", "nn", "vec_b 2 is at most 16 bytes and divides the stored rows of B"),
        ("vec_c=2", "64x63x64", "float", "nt", "vec_c 2 is at most 16 bytes and divides the stored rows of C"),
        ("vec_b=4", "1024", "double", "nn", "vec_b 4 is at most 16 bytes and divides the stored rows of B"),
        ("vec_c=2,b_k_inner=1", "1024", "float", "nt", "vec_c 2 is at most the neighbours in a row of C"),
        ("cp_async=1,vec_a=4", "1024", "float", "nn", "cp.async transposes A element by element: vec_a 4 is 1"),
        ("cp_async=1,vec_b=2", "1024", "float", "nt", "cp.async transposes B element by element: vec_b 2 is 1"),
        ("a_k_inner=1", "1024", "float", "tn", "k is innermost in the tiles of A only if stored rows of A run along k"),
        ("b_k_inner=1", "1024", "float", "nn", "k is innermost in the tiles of B only if stored rows of B run along k"),
        ("prefetch=1,slices=4,block_k=8,a_k_inner=1", "1024", "float", "nn", "block_k 8 is whole steps for each of 4"),
        ("block_m=128,block_n=16,lanes_m=16,thread_m=8,thread_n=8,block_k=32", "1024", "float", "nn", "copies"),
        ("block_m=256,block_n=128,thread_m=16,thread_n=8,block_k=32", "1024", "float", "nn", "at most 2560"),
        ("thread_m=8,thread_n=8,block_m=128,block_n=128,min_blocks=3", "1024", "float", "nn", "registers of 3"),
        ("thread_m=2,block_k=64,slices=16", "1024", "float", "nn", "thread_m 2 * thread_n 4 sums are whole vectors"),
        ("thread_m=8,thread_n=8,block_k=128,slices=2", "1024", "float", "nn", "a thread copies at most 32 elements"),
        ("min_blocks=8,block_m=128,block_n=128", "1024", "float", "nn", "threads and shared memory of 8 blocks fit"),
        ("apart=1", "1024", "float", "nn", "only one of several slices can go apart, not with slices 1"),
        ("block_m=32,block_n=32,slices=16,block_k=64,apart=1", "1024", "float", "nn", "has barriers for 15 slices of"),
        ("slices=4,apart=1,vec_b=4", "1024", "float", "nn", "copies whole vectors: block_k 8 in 4, vec_a 1, vec_b 4"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(text: str, problem: str, dtype: str, trans: str, reason: str) -> None:
    given = reasons(text, problem, dtype, trans)
    assert any(reason in each for each in given), given


def test_old_devices_have_no_cp_async() -> None:
    assert reasons("cp_async=1", arch="sm_75") == ["the device has cp.async"]


def test_padded_operands_are_aligned_whatever_the_problem() -> None:
    assert reasons("vec_a=4,vec_b=4,vec_c=4,edge=pad", "63x61x59") == []


def test_slices_of_a_warp_go_apart_without_barriers_by_number() -> None:
    sixteen = "block_m=16,block_n=32,thread_m=4,thread_n=4,lanes_m=4,block_k=64,cp_async=1,stages=3,slices=16,apart=1"
    assert reasons(sixteen) == []
    source = render(Problem.parse("1024"), complete(Config.parse(f"simt:{sixteen}")), SM_90)
    assert "void sync_slice() { __syncwarp(); }" in source.code
    assert "bar.sync" not in source.code


@pytest.mark.parametrize("k_inner", [0, 1])
def test_slices_that_go_apart_have_rows_of_their_own_in_shared_memory(k_inner: int) -> None:
    text = f"simt:block_m=64,block_n=32,block_k=32,slices=2,stages=3,cp_async=1,b_k_inner={k_inner},apart="
    together, apart = (
        render(Problem.parse("256x128x512", trans="nt"), complete(Config.parse(f"{text}{each}")), SM_90).launch
        for each in (0, 1)
    )
    tile_b = 4 * 3 * (32 * (32 + 4)) if not k_inner else 4 * 3 * (2 * 32 * (16 + 4))
    assert apart.static_smem_bytes + apart.dynamic_smem_bytes == 4 * 3 * (32 * (64 + 4)) + tile_b
    assert together.static_smem_bytes + together.dynamic_smem_bytes == 4 * 3 * (32 * (64 + 4) + 32 * (32 + 4))
    assert apart.block == together.block


@pytest.mark.parametrize(("dtype", "trans"), [("float", "nn"), ("double", "nn"), ("float", "tt")])
def test_the_space_is_large_enough_to_search_and_small_enough_to_list(dtype: str, trans: str) -> None:
    problem = Problem.parse("1024x768x512", dtype, trans)
    configs, pruned = space(problem, usual(dtype))
    assert 1000 <= len(configs) <= 20000
    assert len(set(configs)) == len(configs)
    assert sum(pruned.values()) + len(configs) > 10**8
    generator = random.Random(1)
    for config in generator.sample(configs, 200):
        assert complete(config) == config
        assert list(rejections(problem, config, SM_90)) == []


def test_double_is_left_to_faster_tensor_cores() -> None:
    cube = Problem.parse("1024", "double")
    few = {"block_m": (64,), "block_n": (64,), "split_k": (1,)}
    (choices,) = settled("simt", **few)
    left = [arch for arch in ARCHES if not combine(cube, ARCHES[arch], SIMT, dict(choices.parameters))[0]]
    assert left == ["sm_80", "sm_90a"]
    assert not any(some(cube, arch) for arch in left)


@pytest.mark.parametrize("shape", ["1", "100", "1023x769x511", "16x4096x4096", "64x64x65536", "8192", "1x4096x4096"])
def test_every_shape_has_something_to_try(shape: str) -> None:
    assert len(tried(Problem.parse(shape))) >= 10


def is_deep(config: Config) -> bool:
    return config.number("block_k") > 32


def is_larger(config: Config) -> bool:
    """Whether a tile may be deep only because its slices go apart."""
    deep_bytes = (config.number("block_m") + config.number("block_n")) * config.number("block_k") * 4
    small = config.number("block_m") * config.number("block_n") <= 32 * 64 and SIMT.threads(config) >= 256
    return config["apart"] == 1 and not (small and 24 << 10 <= (config.number("stages") - 1) * deep_bytes < 104 << 10)


@pytest.mark.parametrize("shape", ["1024x768x512", "2048", "4096", "5124x700x2048", "8192x8192x16", "100"])
def test_large_and_shallow_results_try_no_deep_tiles(shape: str) -> None:
    configs = tried(Problem.parse(shape), split_k=(1, 2, 4))
    assert len(configs) >= 10
    assert not any(c.number("stages") > 4 or c.number("slices") > 8 for c in configs)
    assert not any(is_deep(c) and c["apart"] == 0 for c in configs)


@pytest.mark.parametrize("shape", ["16x4096x4096", "4096x16x4096", "35x700x2048", "64x64x65536", "256", "512"])
def test_results_of_few_small_tiles_try_deep_ones_that_keep_much_on_its_way(shape: str) -> None:
    problem = Problem.parse(shape)
    configs = tried(problem)
    deep = [config for config in configs if is_deep(config) and not is_larger(config)]
    assert 0.05 * len(configs) < len(deep) < 0.5 * len(configs)
    assert {config["slices"] for config in deep} >= {4, 8, 16}
    for config in deep:
        stage = (config.number("block_m") + config.number("block_n")) * config.number("block_k") * 4
        assert 24 << 10 <= (config.number("stages") - 1) * stage < 104 << 10
        assert 256 <= SIMT.threads(config) <= 512
        assert SIMT.blocks(problem, config) <= 320


@pytest.mark.parametrize("shape", ["512", "1024x768x512", "1024", "64x4096x4096", "16x4096x4096", "4096"])
def test_slices_go_apart_where_each_has_steps_enough(shape: str) -> None:
    problem = Problem.parse(shape)
    configs = tried(problem)
    apart = [config for config in configs if config["apart"] == 1]
    assert bool(apart) == (shape not in ("16x4096x4096", "4096"))
    assert all(config.number("block_k") >= 8 * config.number("slices") and config["cp_async"] == 1 for config in apart)
    larger = [config for config in apart if is_deep(config) and is_larger(config)]
    assert bool(larger) == bool(apart)
    assert all(config["block_k"] == 64 and config["slices"] in (4, 8) for config in larger)
    assert all(config.number("block_m") * config.number("block_n") <= 64 * 128 for config in larger)
    # Where each has very many, that they go apart is not asked.
    many = [c for c in configs if c.number("slices") > 1 and c.number("block_k") >= 16 * c.number("slices")]
    assert all(c["apart"] == c["cp_async"] for c in many) or not apart


def test_long_rows_of_a_result_that_is_mostly_written_are_tried() -> None:
    def long(shape: str) -> bool:
        configs = space(Problem.parse(shape))[0]
        return any(config["lanes_m"] == 2 and config["thread_m"] == config["thread_n"] for config in configs)

    assert long("8192x8192x16")
    assert not long("4096x4096x64")


def test_large_parts_of_c_are_multiplied_row_after_row() -> None:
    """That leaves half as many multiply-adds with three operands to read, in the compiler's code for 16 x 8 sums."""
    tried = {
        (config["thread_m"], config["thread_n"], config["rows_first"], config["prefetch"])
        for config in space(Problem.parse("4096"))[0]
    }
    assert {(16, 8, 1, 0), (16, 8, 1, 1), (8, 8, 0, 0), (8, 8, 0, 1), (8, 8, 1, 1)} <= tried
    assert all(rows == (m > n) for m, n, rows, _ in tried if (m, n) != (8, 8))


def test_every_config_has_a_scalar_twin_that_serves_any_alignment() -> None:
    for dtype, trans in (("float", "nn"), ("double", "nt"), ("float", "tn")):
        configs = tried(Problem.parse("1024", dtype, trans), usual(dtype), **FEW_TILES)
        odd = Problem.parse("1021x1019x1013", dtype, trans)
        for config in random.Random(2).sample(configs, 300):
            twin = SIMT.scalar(Config("simt", tuple((n, "bounds" if n == "edge" else v) for n, v in config.values)))
            assert SIMT.alignment(twin) == (1, 1, 1)
            assert list(rejections(odd, twin, SM_90)) == []
            assert SIMT.launch(odd, twin).block == SIMT.launch(odd, config).block


def test_source_tells_alignment_workspace_and_large_shared_memory() -> None:
    problem = Problem.parse("256x128x512")
    config = Config.parse(
        "simt:block_m=128,block_n=128,thread_m=8,thread_n=8,cp_async=1,a_k_inner=1,block_k=16,stages=4,"
        "vec_a=4,vec_b=2,vec_c=1,split_k=4"
    )
    source = render(problem, config, SM_90)
    assert source.alignment == (4, 2, 1)
    assert source.workspace_bytes == 2 * 4 * 128 * 128 * 4 + 2 * 4
    assert source.launch.grid == (8, 1, 1)
    assert source.launch.static_smem_bytes == 0
    assert source.launch.dynamic_smem_bytes == 4 * (128 * (16 + 4) + 16 * (128 + 4)) * 4
    assert "T* __restrict__ workspace" in source.code
    assert "extern __shared__" in source.code


@pytest.mark.parametrize("split_k", [1, 12])
def test_a_cluster_has_two_to_eight_blocks(split_k: int) -> None:
    assert reasons(f"split_k={split_k},cluster=1") == [f"a cluster has 2 to 8 blocks, not {split_k}"]


@pytest.mark.parametrize(("arch", "allowed"), [("sm_80", False), ("sm_90a", True), ("sm_100", True), ("sm_120", True)])
def test_new_devices_have_clusters(arch: str, allowed: bool) -> None:
    given = reasons("split_k=4,cluster=1", arch=arch)
    assert given == ([] if allowed else ["the device has clusters"])


def test_a_cluster_adds_up_in_shared_memory_without_a_workspace() -> None:
    config = Config.parse("simt:block_m=64,block_n=64,block_k=8,split_k=3,slices=2,cluster=1")
    source = render(Problem.parse("256x128x512", "float"), config, SM_90)
    assert source.workspace_bytes == 0
    assert source.launch.grid == (4 * 2 * 3, 1, 1)
    assert source.launch.static_smem_bytes + source.launch.dynamic_smem_bytes == 2 * 64 * 64 * 4
    assert "__cluster_dims__(SPLIT_K, 1, 1)" in source.code
    assert "workspace" not in source.code


@pytest.mark.parametrize(("arch", "cluster"), [("sm_120", 1), ("sm_80", 0)])
def test_two_blocks_that_share_a_tile_form_a_cluster_where_there_are_some(arch: str, cluster: int) -> None:
    few = {"block_m": (32, 64, 96), "block_n": (32, 64, 128), "split_k": (1, 2, 3)}
    configs = tried(Problem.parse("512", "float"), arch, **few)
    of_two = [config for config in configs if (config["split_k"], config["tail"]) == (2, 1)]
    assert {config["cluster"] for config in of_two} == {cluster}
    assert {config["cluster"] for config in configs if config["split_k"] != 2} == {0}


def test_sums_pass_through_shared_memory_only_where_rows_of_the_result_allow_no_vectors() -> None:
    staged = {
        shape: {c["staged_c"] for c in tried(Problem.parse(shape), **FEW_TILES)}
        for shape in ("1024x767x512", "1024x766x512")
    }
    assert staged == {"1024x767x512": {0, 1}, "1024x766x512": {0}}


def test_a_cluster_writes_its_own_sums() -> None:
    reason = "blocks of a cluster write their own sums: others still read their shared memory"
    assert reasons("split_k=4,cluster=1,staged_c=1") == [reason]
    assert reasons("split_k=4,slices=2,staged_c=1") == []


def test_atomics_are_for_blocks_that_share_tiles_in_memory() -> None:
    assert reasons("atomic=1") == ["sums are added by atomics where blocks share out k: split_k 1 is above 1"]
    assert reasons("atomic=1,split_k=4,cluster=1") == ["blocks of a cluster add up in shared memory, not by atomics"]
    assert reasons("atomic=1,split_k=64,slices=2,staged_c=1") == []


def test_atomics_take_one_tile_of_memory_and_say_that_bits_differ() -> None:
    problem = Problem.parse("256x128x4096")
    atomic, ordered = (render(problem, Config.parse(f"simt:split_k=64,atomic={each}"), SM_90) for each in (1, 0))
    assert atomic.workspace_bytes == 8 * (64 * 64 * 4 + 4)
    assert ordered.workspace_bytes == 64 * 8 * 64 * 64 * 4 + 8 * 9 * 4
    sentence = "are not the same to the bit: blocks add their sums in the order in which they come"
    assert (sentence in atomic.code, sentence in ordered.code) == (True, False)
    assert "red.relaxed.gpu.global.add.v4.f32" in atomic.code


def test_sums_that_pass_through_shared_memory_need_room_for_a_row_of_each_thread() -> None:
    text = "simt:block_m=64,block_n=128,thread_m=2,thread_n=8,block_k=8,staged_c={}"
    bytes_of = [SIMT.smem_bytes(DType.FLOAT, complete(Config.parse(text.format(staged)))) for staged in (0, 1)]
    # 4 x 4 warps of 8 rows; each 32 wide and, so that four rows of a write meet in no bank, 8 spare.
    assert bytes_of == [2 * 8 * (64 + 4 + 128 + 4) * 4, 16 * 8 * (32 + 8) * 4]


# ---- What the compiler makes of it -----------------------------------------------------------------------------


@cache
def some(problem: Problem, target: str) -> list[Config]:
    """What the shipped space holds with a few of its tiles."""
    (choices,) = (choices for choices in read_spaces() if choices.family == "simt")
    few = {"block_m": (48, 64, 96, 128), "block_n": (64, 96, 128), "split_k": (1, 2, 4, 24)}
    return combine(problem, ARCHES[target], SIMT, dict(choices.parameters) | few)[0]


ENDINGS = (
    ("block_m=128,block_n=256,block_k=16,thread_m=16,thread_n=8,lanes_m=4,stages=3,cp_async=1,prefetch=1,staged_c=1",
     "float"),
    ("block_m=64,block_n=64,block_k=16,thread_m=8,thread_n=8,lanes_m=4,prefetch=1,staged_c=1", "float"),
    ("block_m=64,block_n=32,block_k=16,thread_m=4,thread_n=4,slices=4,split_k=4,staged_c=1", "double"),
    ("block_m=64,block_n=64,block_k=16,thread_m=8,thread_n=4,vec_b=4,vec_c=4,prefetch=1,split_k=64,atomic=1",
     "float"),
)  # fmt: skip


def sample() -> list[tuple[str, str, str, str]]:
    """Config, dtype, transposes and target: the same variants for every target that can run them, and some of
    clusters."""
    generator = random.Random(3)
    rows = []
    for dtype, trans, count in (("float", "nn", 10), ("float", "nt", 5), ("float", "tn", 3), ("double", "nn", 6)):
        problem = Problem.parse("1024", dtype, trans)
        targets = [target for target in TARGETS if some(problem, target)]
        common = set.intersection(*(set(some(problem, target)) for target in targets))
        rows += [(str(c), dtype, trans) for c in generator.sample(sorted(common, key=str), count)]
    assert len(rows) == SAMPLE
    deep = [config for config in space(Problem.parse("16x4096x4096"))[0] if is_deep(config)]
    rows += [(str(c), "float", "nn") for c in generator.sample(deep, DEEP)]
    clustered = [each for each in some(Problem.parse("1024"), "sm_90a") if each["cluster"] == 1]
    rows += [(str(config), "float", "nn") for config in generator.sample(clustered, 4)]
    apart = [each for each in some(Problem.parse("512"), "sm_90a") if each["apart"] == 1]
    rows += [(str(config), "float", "nn") for config in generator.sample(apart, 6)]
    rows += [(f"simt:{text}", dtype, "nn") for text, dtype in ENDINGS]
    return [(*row, target) for row in rows for target in TARGETS if not reasons_of(*row, target)]


def reasons_of(text: str, dtype: str, trans: str, target: str) -> list[str]:
    """Why a target cannot hold a variant."""
    return reasons(text.removeprefix("simt:"), dtype=dtype, trans=trans, arch=target)


def test_nothing_spills_and_resources_are_as_predicted() -> None:
    pytest.importorskip("cupy")
    rows = sample()
    workers = min(4, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(_compiled, (rows[i::workers] for i in range(workers))))
    for part, start in zip(parts, range(workers)):
        for (text, dtype, trans, target), said in zip(rows[start::workers], part, strict=True):
            registers, smem_bytes, spilled = said
            config, problem = complete(Config.parse(text)), Problem.parse("1024", dtype, trans)
            assert spilled <= most_spilled_bytes(config, target), (text, target)
            assert registers <= SIMT.registers(DType.parse(dtype), config), (text, target)
            assert smem_bytes == SIMT.launch(problem, config).static_smem_bytes, (text, target)


def _compiled(rows: list[tuple[str, str, str, str]]) -> list[list[int]]:
    script = Path(__file__).with_name("compile_variants.py")
    done = subprocess.run([sys.executable, script], input=json.dumps(rows), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    compiled: list[list[int]] = json.loads(done.stdout)
    return compiled
