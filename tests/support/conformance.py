"""Tests that every family of kernels passes, in classes from which the tests of each family derive."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, cycle, groupby, product
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from planted import SHAPES, Fault, Planted, Shape, assert_caught
from products import (
    SCALARS,
    QuickDevice,
    bits,
    check,
    check_askew,
    check_batch,
    check_groups,
    check_sizes,
    guarded,
    instance,
    integers,
    prepared,
    run,
    scaled_integers,
    sized,
    with_infinity,
)
from quick import TYPICAL, compile_together
from tilewright.codegen.bundle import Served
from tilewright.codegen.config import Config
from tilewright.codegen.emit import emit
from tilewright.codegen.families import family_named
from tilewright.codegen.leaf import Edge
from tilewright.codegen.legality import rejections, serves
from tilewright.codegen.problem import DType, Grade, Problem, Ragged
from tilewright.runtime.check.verify import Verifier
from tilewright.runtime.device.detect import choose, open_device
from tilewright.runtime.device.protocol import Device
from tilewright.runtime.product.kernel import Kernel, prepare
from variants import changed, coarse, variant

Pair = tuple[str, str]
"""An element type and the transposes: `("float", "nt")`."""
SLOW = pytest.mark.slow


class Refusal(NamedTuple):
    """A config that cannot serve a problem, and words of the reason that the rules give."""

    text: str
    reason: str
    shape: str = "1024"
    trans: str = "nn"


def _case(value: object, slow: object) -> Any:
    return pytest.param(value, marks=SLOW if slow else ())


class ProductConformance:
    """Products of every family on a device. A subclass lists the configs.

    Products of small whole numbers are exact, so that every bit of C is compared. All memory around the matrices is
    NaN. Texts of configs are written without the name of the family.
    """

    family = ""
    configs: Mapping[str, str] = MappingProxyType({})
    """Text of a config for each path through the template, by a name for what is special in it."""
    fast_configs: Sequence[str] = ()
    """Names of the configs that every run tries; tests of the others are slow. Empty for all configs."""
    turns: tuple[tuple[Pair, ...], ...] = ()
    """Types and transposes that the configs take in turn. With slow tests, every config takes all of them."""
    sm_counts: Mapping[str, int] = MappingProxyType({})
    """SMs of the device by the name of a config that needs more than one."""
    step = 1
    """Number of elements of which every row must be a multiple."""
    wide = False
    """Whether the instance with vectors is tried at all sizes, because the family has no other."""
    vectors = True
    """Whether kernels read vectors, which need aligned operands."""
    least_k = 0
    """Smallest k for which a kernel multiplies in the way of its family."""
    selector = "host"

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run tests with a `name` for each config, tests with a `turn` for each turn, and so on."""
        for argument, cases in {
            "name": [_case(name, self.fast_configs and name not in self.fast_configs) for name in self.configs],
            "turn": [_case(turn, turn > 0) for turn in range(len(self.turns))],
            "batched": [_case(name, place > 0) for place, name in enumerate(self.configs)],
        }.items():
            if argument in metafunc.fixturenames:
                metafunc.parametrize(argument, cases)

    # ---- Types, configs and sizes of the tests, which a subclass may change ----------------------------------------

    @property
    def types(self) -> list[str]:
        """Types that the family computes in."""
        return list(dict.fromkeys(dtype for turn in self.turns for dtype, _ in turn))

    def config(self, text: str, trans: str = "nn") -> Config:
        """The config of a text. A subclass may adapt it to the transposes."""
        return variant(f"{self.family}:{text}")

    def sizes(self, tile: Shape, turn: int) -> list[Shape]:
        """Sizes just below, at and above those of a tile."""
        return list(product(*((1, t - 1, t, t + 1, 2 * t + 3) for t in tile)))

    def vector_sizes(self, edge: Edge, tile: Shape) -> list[Shape]:
        """Sizes at which kernels use vectors: ragged tiles, a single vector, and whole tiles."""
        m, n, k = tile
        deep = -(-self.least_k // k) * k
        if edge is Edge.EXACT:
            return [(2 * m, n, deep + 3 * k)]
        return [(4 * (m // 4) + 4, max(4, 4 * (n // 4) - 4), deep + k + 4), (4, 4, 4)]

    # ---- Kernels -----------------------------------------------------------------------------------------------------

    def device(self, name: str) -> Device:
        """The device on which a config is tried."""
        if self.selector != "host":
            return open_device(choose(self.selector))
        return QuickDevice(sm_count=self.sm_counts.get(name, 1))

    def problem(self, config: Config, shape: Sequence[int], pair: Pair) -> Problem:
        """A problem in a grade that the config serves for any k, with sizes rounded up to multiples of `step`."""
        m, n, k = (-(-size // self.step) * self.step for size in shape)
        grade = Grade.IEEE if config.accuracy is Grade.IEEE else Grade.NORMWISE
        return Problem.parse(f"{m}x{n}x{k}", *pair, grade)

    def pairs(self, name: str, turn: int = 0) -> list[Pair]:
        """Types and transposes of a turn that a config serves."""
        turns = self.turns[(list(self.configs).index(name) + turn) % len(self.turns)]
        config = self.config(self.configs[name])
        return [
            pair for pair in turns if serves(config, self.problem(config, (1024, 1024, 1024), pair), TYPICAL["host"])
        ]

    def kernels(self, name: str, turn: int = 0) -> list[Kernel]:
        """Instances of a config that serve any size, one for each pair of type and transposes. They are compiled
        together, once for all the tests of this config."""
        device, instances = self.device(name), []
        for pair in self.pairs(name, turn):
            config = self.config(self.configs[name], pair[1])
            instances.append((self.problem(config, config.cta_tile, pair), guarded(config, *pair, self.wide)))
        if self.selector == "host":
            compile_together(instances)
        return [instance(device, *each) for each in instances]

    def kernel(self, name: str, *shape: int) -> Kernel:
        """The first of these instances, for some sizes."""
        return self.resized(self.kernels(name)[0], *shape)

    def resized(self, kernel: Kernel, *shape: int) -> Kernel:
        """The same instance for other sizes."""
        pair = kernel.problem.dtype.value, kernel.problem.trans
        return prepared(kernel, self.problem(kernel.config, shape, pair))

    # ---- Products ----------------------------------------------------------------------------------------------------

    def test_edge_grid(self, name: str, turn: int) -> None:
        """Each type meets all sizes around a tile; its transposes take them in turn."""
        kernels = self.kernels(name, turn)
        tile = kernels[0].config.cta_tile
        for _, of_type in groupby(kernels, lambda kernel: kernel.problem.dtype):
            check_sizes(list(of_type), self.sizes(tile, turn))
        for kernel, k in product(kernels, (0, 2)):
            other = prepare(kernel.device, sized(kernel.problem, tile[0] + 1, 3, k), kernel.config, aligned=False)
            assert other.source == prepared(kernel, other.problem).source
            for alpha, beta in SCALARS:
                check(other, alpha, beta, 7)

    def test_vectors(self, name: str, turn: int) -> None:
        """Vectors divide the rows, in guarded kernels and in kernels of whole tiles. Where other strides misalign the
        rows, the unaligned instance of the same tiles serves them."""
        kernels, device = self.kernels(name, turn), self.device(name)
        edges = (Edge.BOUNDS, Edge.EXACT)
        instances = [
            (sized(kernel.problem, *sizes), kernel.config)
            for edge, kernel in (product(edges, kernels) if turn else zip(cycle(edges), kernels))
            for sizes in self.vector_sizes(edge, kernel.config.cta_tile)
        ]
        if self.selector == "host":
            compile_together(instances)
        for (problem, config), (alpha, beta) in product(instances, SCALARS):
            kernel = prepare(device, problem, config)
            for extra in (0, 8) if kernel.fit.edge is Edge.EXACT else (0, 8, 1, 7):
                check(kernel, alpha, beta, extra)

    def test_operands_that_start_askew_are_served_by_the_unaligned_instance(self) -> None:
        config, dtype = self.config(next(iter(self.configs.values()))), self.types[0]
        problem = self.problem(config, (36, 40, 44 + self.least_k), (dtype, "nn"))
        kernel = check_askew(4 if dtype == "float" else 8, lambda device: prepare(device, problem, config))
        assert (max(kernel.fit.alignment) > 1) == (kernel._unaligned is not None) == self.vectors
        assert kernel._unaligned is None or kernel._unaligned.fit.alignment == (1, 1, 1)

    def test_a_batch(self, batched: str) -> None:
        """A batch lies along two dimensions, with gaps between rows and matrices. A config that serves no batch is
        refused for this reason."""
        pair = self.pairs(batched)[0]
        config, device = self.config(self.configs[batched], pair[1]), self.device(batched)
        m, n, k = config.cta_tile
        problem = replace(self.problem(config, (m + 1, max(1, n - 1), self.least_k + 2 * k + 1), pair), batch=6)
        reasons = list(rejections(problem, config.unaligned, TYPICAL["host"]))
        if reasons:
            assert any("not of a batch" in reason for reason in reasons), reasons
            return
        kernel = prepare(device, problem, config, aligned=False)
        for alpha, beta in SCALARS:
            check_batch(kernel, alpha, beta)

    @pytest.mark.parametrize("ragged", ["m", "k"])
    def test_groups(self, batched: str, ragged: Ragged) -> None:
        """Groups divide m or k. Some are empty, single rows or parts of tiles, and they outnumber the lanes of a warp.
        A config that serves no groups is refused for this reason."""
        device, text = self.device(batched), self.configs[batched]
        pairs, config = self.pairs(batched), self.config(text, self.pairs(batched)[0][1])
        tile_m, tile_n, tile_k = config.cta_tile
        tile = tile_m if ragged == "m" else tile_k
        ends = [*accumulate((0, 1, 0, tile, tile + 1, 2 * tile - 1, *[0] * 30, 1, 1, 0))]
        m, n, k = ends[-1] + tile // 2, tile_n + 1, self.least_k + 2 * tile_k + 1
        shape = (m, n, k) if ragged == "m" else (tile_m + 1, n, m)
        problem = replace(self.problem(config, shape, pairs[0]), batch=len(ends), ragged=ragged)
        reasons = list(rejections(problem, config, TYPICAL["host"]))
        if reasons:
            assert any(
                "groups of a ragged batch" in reason.lower() or "not of a batch" in reason for reason in reasons
            ), reasons
            return
        for pair, aligned in zip([*pairs, pairs[0]], cycle((False, True))):
            of_pair = self.config(text, pair[1])
            flags = {"trans_a": pair[1][0] == "t", "trans_b": pair[1][1] == "t"}
            kernel = prepare(device, replace(problem, dtype=DType.parse(pair[0]), **flags), of_pair, aligned)
            for alpha, beta in SCALARS:
                check_groups(kernel, ends, alpha, beta, 3 if kernel.fit.alignment == (1, 1, 1) else 4)

    def test_accuracy(self, name: str) -> None:
        """Errors stay within the bound of the grade, and within a tighter bound that shortened sums would exceed."""
        kernel = self.kernel(name, 65, 70, 300)
        problem = replace(kernel.problem, accuracy=kernel.config.accuracy)
        verdict = Verifier(kernel.device, problem).check(kernel.launch)
        assert verdict.reason == ""
        assert 0 < verdict.accuracy.worst <= 1
        # Bounds are (k + 2) u |A||B|, and here 4 sqrt(k + 2) u |A||B|; split terms stay far below theirs.
        k = kernel.problem.k
        assert verdict.accuracy.worst <= (0.1 if kernel.config.accuracy is not Grade.IEEE else 4 / (k + 2) ** 0.5)

    def test_special_values_come_out_where_ieee_arithmetic_puts_them(self, name: str) -> None:
        for each in self.kernels(name):
            kernel = self.resized(each, 75, 70, 150)
            a, b, expected = with_infinity(kernel.problem)
            kind = np.dtype(kernel.problem.dtype.numpy_name)
            c = np.zeros(expected.shape, kind)
            got = run(kernel.device, kernel, a.astype(kind), b.astype(kind), c, 1.0, 0.0, 3 * self.step)
            assert np.array_equal(got, expected.astype(kind), equal_nan=True)
            assert np.isfinite(got).any(axis=1).sum() == len(got) - 1  # all rows but one have finite elements

    def test_operands_are_not_read_where_alpha_or_k_is_zero(self, name: str) -> None:
        for sizes, alpha in (((40, 30, self.least_k + 40), 0.0), ((40, 30, 0), 1.0)):
            kernel = self.kernel(name, *sizes)
            a, b, c = integers(kernel.problem, 5)
            a[...], b[...] = np.nan, np.nan
            assert np.array_equal(run(kernel.device, kernel, a, b, c, alpha, 1.5), 1.5 * c)
            assert np.array_equal(run(kernel.device, kernel, a, b, c, alpha, 0.0), 0 * c)

    def test_bits_depend_on_the_operands_alone_and_counters_end_at_zero(self, name: str) -> None:
        """Bits are the same in each run, and whether or not accumulators pass through shared memory."""
        kernel = self.kernel(name, 33, 18, 200)
        assert len({bits(kernel) for _ in range(3 if kernel.device.info.arch.is_host else 100)}) == 1
        if dict(kernel.config.values).get("shared"):
            self._assert_same_bits_without_shared_memory(name)
        config, problem, sm_count = kernel.config, kernel.problem, kernel.device.info.sm_count
        workspace = config.workspace_bytes(problem, sm_count)
        if not kernel.fit.has_memory:
            assert workspace == 0
            assert kernel._scratch is None
        elif workspace and kernel.device.info.arch.is_host:
            assert kernel._scratch is not None
            (scratch,) = kernel._scratch._streams.values()
            tiles, *copies, counters = scratch.buffers
            assert bool(copies) == any(config.packs)
            assert tiles.nbytes + counters.nbytes == workspace
            if config.split_ctas > 1:
                assert counters.nbytes == 4 * config.tiles(problem)
            assert not counters.array("uint8", (counters.nbytes,)).any()

    def _assert_same_bits_without_shared_memory(self, name: str) -> None:
        device, pairs = self.device(name), self.pairs(name)
        for pair, shape in zip((pairs[0], pairs[-1]), ((67, 71, 43), (67, 70, 43))):
            config = self.config(self.configs[name], pair[1])
            problem = self.problem(config, shape, pair)
            both = [(problem, changed(config, shared=shared)) for shared in (0, 1)]
            compile_together(both)
            assert len({bits(prepare(device, *each), 0.7) for each in both}) == 1


class KernelConformance(ProductConformance):
    """Tests of every family: products on the host device, rules, emitted text, and planted faults that the checks of
    products must catch."""

    refused: tuple[Refusal, ...] = ()
    """Configs that the rules refuse for sm_90a."""
    instruction: str | None = None
    """Instruction that the default config needs."""
    faults: tuple[Fault, ...] = ()
    """Faults to plant, each of which must be caught."""
    unfaulted: tuple[str, ...] = ()
    """Configs in which faults are planted. Without a fault they must pass the same checks."""
    unfaulted_trans: Sequence[str] = ("nn", "tt")
    unfaulted_widths: Sequence[bool] = (False, True)
    """The instances that are checked without a fault: without and with vectors. A kernel with a workspace is checked
    only with vectors, because the other checks align all memory, the workspace too, to one element."""
    fault_parts = 2
    """Number of tests among which the faults are dealt out; all but the first are slow."""
    slow_faults = False
    """Whether all tests of faults are slow."""
    cpu_limit_s = 20.0
    """Seconds of the processor after which a kernel with a fault counts as endless."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        ProductConformance.pytest_generate_tests(self, metafunc)
        for argument, cases in {
            "refusal": self.refused,
            "kind": [_case(kind, kind > 0) for kind in range(len(self.types))],
            "part": [_case(part, self.slow_faults or part > 0) for part in range(self.fault_parts)],
        }.items():
            if argument in metafunc.fixturenames:
                metafunc.parametrize(argument, cases)

    def fault_shapes(self, config: Config) -> tuple[Shape, ...]:
        """Sizes at which kernels with a fault run: ragged tiles, whole tiles, and one element."""
        return SHAPES

    # ---- Rules, devices and emitted text -----------------------------------------------------------------------------

    @pytest.mark.fast
    def test_impossible_configs_are_refused(self, refusal: Refusal) -> None:
        config, dtype = variant(f"{self.family}:{refusal.text}"), self.types[0]
        problem = Problem.parse(refusal.shape, dtype, refusal.trans, config.accuracy)
        reasons = list(rejections(problem, config, TYPICAL["sm_90a"]))
        assert any(refusal.reason in reason for reason in reasons), reasons

    @pytest.mark.fast
    @pytest.mark.parametrize("arch", TYPICAL)
    def test_the_default_serves_every_device_that_has_the_instruction(self, arch: str) -> None:
        target, config = TYPICAL[arch], family_named(self.family)()
        problem = coarse(Problem.parse("1x2x3", self.types[-1]))
        has = self.instruction is None or self.instruction in target.arch.instructions
        has &= config.smem_bytes(problem.dtype) <= target.arch.smem_per_block_bytes
        assert serves(config, problem, target) == has

    @pytest.mark.fast
    def test_emitted_files_hold_the_kernel(self) -> None:
        config = self.config(next(iter(self.configs.values())))
        problem = self.problem(config, (1024, 768, 512), (self.types[0], "nn"))
        files = dict(emit(Served(problem, config, TYPICAL["sm_90a"]), "emitted").files)
        assert set(files) == {"emitted.cu", "emitted.h"}
        assert f"gemm_{self.family}_{problem.dtype.code}_nn" in files["emitted.cu"]
        assert str(config) in files["emitted.cu"]

    # ---- Planted faults ----------------------------------------------------------------------------------------------

    def planted(self, fault: Fault, dtype: str) -> Planted:
        """The fault in the text of a kernel of this type, or of the only type in which it makes a difference."""
        config, dtype = self.config(fault.config or self.unfaulted[0], fault.trans), fault.only or dtype
        return Planted(
            fault.name, guarded(config, dtype, fault.trans, fault.wide or self.wide), fault.old, fault.new, dtype,
            fault.trans, fault.shapes or self.fault_shapes(config), fault.before, special=fault.special,
            cpu_limit_s=self.cpu_limit_s,
        )  # fmt: skip

    def without_fault(self) -> Iterator[Fault]:
        """Kernels without a fault, which must pass the checks."""
        for text, trans, wide in product(self.unfaulted, self.unfaulted_trans, self.unfaulted_widths):
            if wide or not self.config(text, trans).has_workspace:
                yield Fault(f"unfaulted {text} {trans} {wide}", "", "", text, trans, wide)

    def test_every_fault_is_caught_and_the_unfaulted_text_passes(self, kind: int, part: int, tmp_path: Path) -> None:
        """Each fault is planted in one of the types; slow tests plant it in the other."""
        types = self.types[kind:] + self.types[:kind]
        planted = [
            self.planted(fault, types[place % len(types)])
            for place, fault in enumerate(self.faults)
            if not (kind and fault.only)
        ]
        for dtype, fault in product(() if kind else self.types, self.without_fault()):
            planted.append(replace(self.planted(fault, dtype), name=f"{fault.name} {dtype}"))
        assert_caught(planted[part :: self.fault_parts], tmp_path)


class TermConformance(KernelConformance):
    """Tests of families that split floats into terms. Products of whole numbers in which every term counts are exact,
    and so are products of numbers that no terms can hold."""

    precise = True
    """Whether products of the smallest and largest numbers are rounded correctly, not only close."""

    def test_every_term_and_power_of_two_counts(self, name: str, turn: int) -> None:
        for each, which in product(self.kernels(name, turn), range(3)):
            m, n, k = each.config.cta_tile
            depth = (self.least_k + 3, max(64, self.least_k) + k, self.least_k + 77)[which]
            wide = prepared(each, sized(each.problem, m + 5, n + 7, depth))
            a, b, c, expected = scaled_integers(wide.problem, which)
            assert np.array_equal(run(wide.device, wide, a, b, c, 1.0, 0.0, which), expected.astype(np.float32))
            assert np.array_equal(
                run(wide.device, wide, a, b, c, 0.5, -1.0, 7), (0.5 * expected - c).astype(np.float32)
            )

    def test_the_smallest_and_largest_numbers(self, name: str) -> None:
        kernel = self.kernel(name, 33, 20, 130)
        a_shape, b_shape = kernel.problem.stored_a, kernel.problem.stored_b
        for one, other in (
            (2.0**-149, 2.0**20), (2.0**-149, 2.0**-20), (-(2.0**-140), 2.0**127), (3.0e38, 2.0**-60),
            (3.4028235e38, 1.0), (2.0**-126, 2.0**-10), (3.0e38, 3.0e38), (2.0**-126, 2.0**-23),
            (2.0**-100, 2.0**-100), (0.0, 3.4028235e38), (3.4028235e38, 0.0), (-0.0, 1.0),
            (2.0**-102 * (2 - 2.0**-23), 2.0**127), (2.0**-104 * 1.0000001, 2.0**100),
        ):  # fmt: skip
            a, b = np.zeros(a_shape, np.float32), np.zeros(b_shape, np.float32)
            op_a, op_b = (a.T if kernel.problem.trans_a else a), (b.T if kernel.problem.trans_b else b)
            op_a[:, 5], op_b[5], op_b[6] = one, other, other
            op_a[7] = 0
            got = run(kernel.device, kernel, a, b, np.zeros((33, 20), np.float32), 1.0, 0.0)
            with np.errstate(over="ignore", under="ignore"):
                expected = np.float64(np.float32(one)) * np.float64(np.float32(other))
                rounded = np.float32(expected)
            assert (got[7] == 0).all(), (one, other)
            others = np.delete(got, 7, axis=0)
            if not self.precise and np.isfinite(rounded) and abs(expected) >= 2.0**-126:
                assert (abs(others - expected) <= 2.0**-21 * abs(expected)).all(), (one, other)  # terms cut off
            else:
                assert (others == rounded).all(), (one, other)
