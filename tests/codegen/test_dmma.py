"""The dmma family: what its rules refuse, what its space holds, and what the compiler makes of it."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from stored import INFO
from tilewright.codegen.arch import ARCHES
from tilewright.codegen.config import Config
from tilewright.codegen.families import FAMILIES, complete, rejections
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.render import render
from tilewright.runtime.device.detect import choose
from tilewright.tuner.search.candidates import candidates, read_spaces
from tilewright.tuner.search.legal import combine
from variants import most_spilled_bytes, settled

DMMA = FAMILIES["dmma"]
SM_90 = ARCHES["sm_90a"]
TARGETS = ("sm_80", "sm_90a", "sm_100", "sm_120")
LARGEST = "block_m=128,block_n=128,warp_m=64,warp_n=32,block_k=16"


def space(problem: Problem, arch: str = "sm_90a") -> tuple[list[Config], Counter[str]]:
    """What the shipped space holds for a problem."""
    (choices,) = (choices for choices in read_spaces() if choices.family == "dmma")
    return combine(problem, ARCHES[arch], DMMA, dict(choices.parameters))


def some(problem: Problem, arch: str = "sm_90a", split_k: tuple[int, ...] = (1, 2)) -> list[Config]:
    """What the space holds for few ways to share out k: every tile and every vector."""
    (choices,) = settled("dmma", split_k=split_k, tail=(1,))
    return combine(problem, ARCHES[arch], DMMA, dict(choices.parameters))[0]


def reasons(text: str, problem: str = "1024", dtype: str = "double", arch: str = "sm_90a") -> list[str]:
    config = complete(Config.parse(f"dmma:{text}"))
    return list(rejections(Problem.parse(problem, dtype), config, ARCHES[arch]))


@pytest.mark.parametrize(
    ("text", "problem", "reason"),
    [
        ("block_m=16,warp_m=32", "1024", "block_m 16 is a multiple of warp_m 32"),
        ("block_n=8,warp_n=16", "1024", "block_n 8 is a multiple of warp_n 16"),
        ("warp_m=64,warp_n=64", "1024", "a thread holds at most 64 elements of C"),
        ("vec_a=2", "64x64x31", "vec_a 2 is at most 16 bytes and divides the stored rows of A"),
        ("vec_b=2", "64x63x64", "vec_b 2 is at most 16 bytes and divides the stored rows of B"),
        ("vec_c=2", "64x63x64", "vec_c 2 is at most 16 bytes and divides the stored rows of C"),
        ("block_k=8,slices=2", "1024", "block_k 8 is whole steps for each of 2 slices"),
        ("block_k=8,mma_k=16", "1024", "block_k 8 is whole steps for each of 1 slices"),
        ("block_k=8,prefetch=2", "1024", "prefetch 2 takes an even number of steps of k for each slice"),
        ("block_m=256,block_n=8,warp_m=64,warp_n=8,block_k=32", "1024", "copies at most 32 elements"),
        (
            "copy_groups=2,prefetch=1",
            "1024",
            "copies in 2 groups go with operands that are read beside others",
        ),
        ("copy_groups=4,prefetch=2,warp_m=16,warp_n=16,vec_a=2,vec_b=2", "1024", "copy_groups 4 is at most the copies"),
        ("persistent=2,split_k=2", "1024", "a block of 2 tiles of C shares none of them with others, split_k 2"),
        ("persistent=3,slices=2", "1024", "a block of 3 tiles of C has no shared memory free for the sums of 2 slices"),
        ("persistent=16,block_n=8,warp_n=8", "2147483584x4096x8", "blocks of 16 tiles of C count fewer than 2^31"),
        (f"{LARGEST},min_blocks=2", "1024", "registers of 2 blocks fit on a multiprocessor"),
        ("stages=5,block_k=32,min_blocks=3", "1024", "threads and shared memory of 3 blocks fit"),
        ("block_m=256,block_n=256,warp_m=64,block_k=32,stages=5", "1024", "shared memory of a block stays within"),
    ],
)
def test_what_cannot_be_is_refused(text: str, problem: str, reason: str) -> None:
    given = reasons(text, problem)
    assert any(reason in each for each in given), given


@pytest.mark.parametrize(("shape", "tried"), [("1024x768x512", False), ("2048", False), ("512", True), ("256", True)])
def test_deep_tiles_are_for_results_of_few_small_tiles(shape: str, tried: bool) -> None:
    configs = some(Problem.parse(shape, "double"), split_k=(1, 2, 4, 16))
    assert len(configs) >= 50
    deep = [config for config in configs if config.number("block_k") > 32]
    assert bool(deep) == tried
    assert all(config in deep for config in configs if config.number("slices") > 4)
    assert all(config.number("block_m") * config.number("block_n") <= 32 * 64 for config in deep)


def test_rows_that_threads_cannot_share_out_evenly_are_refused() -> None:
    config = complete(Config.parse("dmma:block_m=96,warp_m=48"))
    for trans, reasons in (("nn", []), ("tn", ["threads share out the rows of a tile of A evenly"])):
        assert list(rejections(Problem.parse("1024", "double", trans), config, SM_90)) == reasons


def test_float_is_refused_and_has_no_space() -> None:
    assert "the tensor cores multiply double" in reasons("", dtype="float")
    assert space(Problem.parse("1024"))[0] == []


@pytest.mark.parametrize(
    ("arch", "sizes"), [("sm_75", []), ("sm_80", [4]), ("sm_90a", [8, 16, 4]), ("host", [8, 16, 4])]
)
def test_each_device_has_its_instructions(arch: str, sizes: list[int]) -> None:
    assert [size for size in (8, 16, 4) if not reasons(f"mma_k={size}", arch=arch)] == sizes


def test_the_space_takes_the_instructions_that_run_at_full_rate() -> None:
    cube = Problem.parse("1024", "double")
    assert {(config["mma_k"], config["prefetch"]) for config in some(cube)} == set(product((8, 16), (1, 2)))
    assert {config["mma_k"] for config in some(cube, "sm_80")} == {4}
    assert space(cube, "sm_75")[0] == []


@pytest.mark.parametrize(("shape", "groups"), [("512", {1}), ("2048", {1, 2, 4})])
def test_copies_of_long_products_are_spread_among_others(shape: str, groups: set[int]) -> None:
    configs = some(Problem.parse(shape, "double"))
    assert {config["copy_groups"] for config in configs} == groups
    assert all(config["prefetch"] == 2 for config in configs if config["copy_groups"] != 1)
    assert {config["copy_groups"] for config in some(Problem.parse(shape, "double"), "sm_100")} == {1}


@pytest.mark.parametrize(
    ("shape", "tried"),
    [("65536x64x64", {1, 2, 4}), ("4096x4096x512", {1}), ("200x200x64", {1}), ("8192x8192x16", {1, 2, 4})],
)
def test_blocks_compute_several_tiles_where_many_have_a_short_k(shape: str, tried: set[int]) -> None:
    problem = Problem.parse(shape, "double")
    configs = some(problem)
    assert {config["persistent"] for config in configs} == tried
    assert all(DMMA.blocks(problem, config) >= 256 for config in configs if config["persistent"] != 1)


def test_the_processor_does_not_search_what_helps_blocks_that_run_at_once() -> None:
    on_host = candidates(Problem.parse("2048x2048x64", "double"), choose("host").info, read_spaces()).configs
    tried = [config for config in on_host if config.family == "dmma"]
    assert {(config["persistent"], config["stream_c"], config["copy_groups"]) for config in tried} == {(1, 0, 1)}


@pytest.mark.parametrize(("shape", "blocks"), [("512x192x64", 6), ("513x192x64", 7), ("64", 1)])
def test_a_block_takes_tiles_a_grid_apart(shape: str, blocks: int) -> None:
    config = Config.parse("dmma:block_m=64,block_n=64,stages=3,persistent=4,staged_c=1")
    source = render(Problem.parse(shape, "double"), config, SM_90)
    assert source.launch.grid == (blocks, 1, 1)
    assert "block += gridDim.x" in source.code
    assert "ceil(m / 64) * ceil(n / 64) / 4, rounded up" in source.code
    # Sums pass through memory of their own: the stages are filled meanwhile.
    plain, passing = (
        DMMA.smem_bytes(DType.DOUBLE, complete(Config.parse(f"dmma:stages=3,{more}")))
        for more in ("persistent=4", "persistent=4,staged_c=1")
    )
    assert passing > plain == 3 * 16 * (64 + 64) * 8


@pytest.mark.parametrize("trans", ["nn", "nt", "tn", "tt"])
def test_the_space_is_large_enough_to_search_and_small_enough_to_list(trans: str) -> None:
    problem = Problem.parse("1024x768x512", "double", trans)
    configs, pruned = space(problem)
    # The ways to share out some tiles alone are many here; on a device those are left that even out its work.
    assert 1000 <= sum((config["tail"], config["stream_k"]) == (1, 0) for config in configs) <= 5000
    on_device = candidates(problem, INFO, read_spaces()).configs
    assert 500 <= sum(config.family == "dmma" for config in on_device) <= 5000
    assert len(set(configs)) == len(configs)
    assert sum(pruned.values()) + len(configs) > 10**6
    for config in random.Random(1).sample(configs, 100):
        assert complete(config) == config
        assert list(rejections(problem, config, SM_90)) == []


@pytest.mark.parametrize("shape", ["1", "100", "2047", "16x4096x4096", "64x64x65536", "8192", "8192x8192x16"])
def test_every_shape_has_something_to_try(shape: str) -> None:
    assert len(some(Problem.parse(shape, "double"), split_k=(1, 2, 4, 16))) >= 50  # of more in the whole space


def test_every_config_has_a_scalar_twin_that_serves_any_alignment() -> None:
    configs, _ = space(Problem.parse("1024", "double", "nt"))
    odd = Problem.parse("1021x1019x1013", "double", "nt")
    for config in random.Random(2).sample(configs, 300):
        twin = DMMA.scalar(Config("dmma", tuple((n, "bounds" if n == "edge" else v) for n, v in config.values)))
        assert DMMA.alignment(twin) == (1, 1, 1)
        assert list(rejections(odd, twin, SM_90)) == []
        assert DMMA.launch(odd, twin).block == DMMA.launch(odd, config).block


def test_source_tells_alignment_workspace_and_large_shared_memory() -> None:
    config = Config.parse(f"dmma:{LARGEST},stages=4,vec_a=2,vec_b=2,split_k=4")
    source = render(Problem.parse("256x128x512", "double"), config, SM_90)
    assert source.alignment == (2, 2, 1)
    assert source.workspace_bytes == 2 * 4 * 128 * 128 * 8 + 2 * 4
    assert source.launch.grid == (8, 1, 1)
    assert source.launch.static_smem_bytes == 0
    assert source.launch.dynamic_smem_bytes == 4 * 16 * (128 + 128) * 8
    assert "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64" in source.code


@pytest.mark.parametrize("split_k", [1, 12])
def test_a_cluster_has_two_to_eight_blocks(split_k: int) -> None:
    assert reasons(f"split_k={split_k},cluster=1") == [f"a cluster has 2 to 8 blocks, not {split_k}"]


@pytest.mark.parametrize(("arch", "allowed"), [("sm_80", False), ("sm_90a", True), ("sm_100", True), ("sm_120", True)])
def test_new_devices_have_clusters(arch: str, allowed: bool) -> None:
    given = reasons("split_k=4,cluster=1,mma_k=4", arch=arch)
    assert given == ([] if allowed else ["the device has clusters"])


def test_a_cluster_adds_up_in_shared_memory_without_a_workspace() -> None:
    config = Config.parse("dmma:block_m=64,block_n=64,block_k=16,split_k=3,slices=2,cluster=1")
    source = render(Problem.parse("256x128x512", "double"), config, SM_90)
    assert source.workspace_bytes == 0
    assert source.launch.grid == (4 * 2 * 3, 1, 1)
    assert source.launch.static_smem_bytes + source.launch.dynamic_smem_bytes == 2 * 64 * 64 * 8
    assert "__cluster_dims__(SPLIT_K, 1, 1)" in source.code
    assert "workspace" not in source.code


@pytest.mark.parametrize(("arch", "cluster"), [("sm_120", 1), ("sm_80", 0)])
def test_two_blocks_that_share_a_tile_form_a_cluster_where_there_are_some(arch: str, cluster: int) -> None:
    configs = some(Problem.parse("256x256x16384", "double"), arch, (1, 2, 3, 8, 32))
    of_two = [config for config in configs if config["split_k"] == 2]
    assert {config["cluster"] for config in of_two} == {cluster}
    assert {config["cluster"] for config in configs if config["split_k"] != 2} == {0}


def test_sums_pass_through_shared_memory_only_where_rows_of_the_result_allow_no_vectors() -> None:
    for shape, staged in (("1024x767x512", {0, 1}), ("1024x766x512", {0})):
        assert {config["staged_c"] for config in some(Problem.parse(shape, "double"))} == staged
    reason = "blocks of a cluster write their own sums: others still read their shared memory"
    assert reasons("split_k=4,cluster=1,staged_c=1") == [reason]


# ---- What the compiler makes of it -----------------------------------------------------------------------------

BEST = (
    f"{LARGEST},stages=4,prefetch=1",
    "block_m=128,block_n=64,warp_m=64,warp_n=32,block_k=16,stages=3,prefetch=1,min_blocks=2",
    "block_m=64,block_n=64,warp_m=32,warp_n=32,block_k=16,stages=4,prefetch=1",
    "block_m=64,block_n=32,warp_m=32,warp_n=32,block_k=32,stages=4,slices=4,prefetch=1",
    f"{LARGEST},stages=4,prefetch=1,staged_c=1",
    "block_m=64,block_n=32,warp_m=32,warp_n=32,block_k=32,stages=4,slices=4,prefetch=1,split_k=4,staged_c=1",
    "block_m=64,block_n=64,warp_m=32,warp_n=32,block_k=16,stages=4,prefetch=1,split_k=64,atomic=1",
    "block_m=64,block_n=64,warp_m=32,warp_n=32,block_k=32,stages=4,slices=2,prefetch=2,split_k=8",
)
"""What large and middle sizes are expected to need: these must be compiled for each target besides a sample."""


def sample() -> list[tuple[str, str, str, str]]:
    """Config, dtype, transposes and target."""
    generator = random.Random(3)
    rows = []
    for target in TARGETS:
        for trans, count in (("nn", 3), ("nt", 1), ("tn", 1), ("tt", 1)):
            configs = space(Problem.parse("1024", "double", trans), target)[0]
            rows += [(str(config), "double", trans, target) for config in generator.sample(configs, count)]
    for mma_k, min_blocks in product((8, 16), (1, 3)):  # where two sets of operands leave the fewest registers
        wanted = {"mma_k": mma_k, "min_blocks": min_blocks, "prefetch": 2}.items()
        configs = [each for each in space(Problem.parse("1024", "double"))[0] if wanted <= dict(each.values).items()]
        rows += [(str(config), "double", "nn", "sm_90a") for config in generator.sample(configs, 3)]
    clustered = [each for each in space(Problem.parse("512x512x1024", "double"))[0] if each["cluster"] == 1]
    rows += [(str(config), "double", "nn", "sm_90a") for config in generator.sample(clustered, 8)]
    lasting = [each for each in some(Problem.parse("8192x8192x16", "double")) if each["persistent"] != 1]
    for config, target in product(generator.sample(lasting, 6), TARGETS[1:]):
        if not list(rejections(Problem.parse("1024", "double"), config, ARCHES[target])):
            rows.append((str(config), "double", "nn", target))
    for trans in ("nn", "tn"):
        shared = [each for each in space(Problem.parse("2048", "double", trans))[0] if each["stream_k"] != 0]
        rows += [(str(config), "double", trans, "sm_90a") for config in generator.sample(shared, 6)]
    rows += [(str(complete(Config.parse(f"dmma:{text},mma_k=8"))), "double", "nn", "sm_90a") for text in BEST]
    rows.append((str(complete(Config.parse("dmma:mma_k=16,block_k=32,prefetch=1"))), "double", "nt", "sm_90a"))
    return rows


def test_nothing_spills_and_resources_are_as_predicted() -> None:
    pytest.importorskip("cupy")
    rows = sample()
    workers = min(4, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(_compiled, (rows[i::workers] for i in range(workers))))
    for part, start in zip(parts, range(workers)):
        for (text, _, trans, target), said in zip(rows[start::workers], part, strict=True):
            registers, smem_bytes, spilled = said
            config, problem = Config.parse(text), Problem.parse("1024", "double", trans)
            assert spilled <= most_spilled_bytes(config, target, "double"), (text, target)
            assert registers <= DMMA.registers(DType.DOUBLE, config), (text, target)
            assert smem_bytes == DMMA.launch(problem, config).static_smem_bytes, (text, target)


def _compiled(rows: list[tuple[str, str, str, str]]) -> list[list[int]]:
    script = Path(__file__).with_name("compile_variants.py")
    done = subprocess.run([sys.executable, script], input=json.dumps(rows), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    compiled: list[list[int]] = json.loads(done.stdout)
    return compiled


# ---- Where copies go, as dmma_tile.cu.jinja computes it from each thread's first ---------------------------------


Numbers = NDArray[np.int64]


def misplaced(along: bool, depth: int, extent: int, vec: int, threads: int) -> int:
    """Copies of a tile that do not go to where their row and column of it are read."""
    spare = 4 if extent % 16 else 0
    width, height, pitch = (depth, extent, depth) if along else (extent, depth, extent + spare)
    per_row = width // vec

    def swap(row: Numbers) -> Numbers:
        if along:
            return row // 2 % 2 * 4 if depth == 8 else row % 4 * 4
        return 0 * row if spare else row % 4 * 4

    number = np.arange(height * per_row)  # of the copies, each thread's from its own number on
    thread = number % threads
    row, col = thread // per_row, thread % per_row * vec
    place = row * pitch + (col ^ swap(row))
    further, right = (number - thread) // per_row, (number - thread) % per_row * vec
    to = (place ^ swap(further)) + further * pitch + right
    own, at = number // per_row, number % per_row * vec
    return int(np.count_nonzero(to != own * pitch + (at ^ swap(own))))


def test_copies_go_where_they_are_read() -> None:
    """For every way of copying that the space holds, with and without vectors, of whole and of odd shapes."""
    ways = set()
    for shape, trans in product(("1024", "1023x769x511", "64x64x65536", "16x4096x4096"), ("nn", "tt")):
        problem = Problem.parse(shape, "double", trans)
        for config in some(problem):
            threads, depth = DMMA.threads(config), config.number("block_k")
            for side, along in (("a", trans == "nn"), ("b", trans == "tt")):
                extent = config.number("block_m" if side == "a" else "block_n")
                ways |= {(along, depth, extent, vec, threads) for vec in (1, config.number(f"vec_{side}"))}
    assert len(ways) > 100
    assert {way: misplaced(*way) for way in ways if misplaced(*way)} == {}


def test_three_rows_at_a_time_are_refused() -> None:
    """96 threads and rows of 32: the chunks of later rows would not be swapped as those of the first."""
    text = "block_m=48,block_n=96,warp_m=48,warp_n=32,block_k=32"
    assert reasons(text, "1023x769x511") == ["threads share out the rows of a tile of A evenly"]
    assert misplaced(True, 32, 48, 1, 96) > 0
    assert reasons(text.replace("block_k=32", "block_k=16"), "1023x769x511") == []
