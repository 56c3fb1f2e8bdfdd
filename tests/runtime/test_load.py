"""The kernel that a shape gets: its record's, a near record's or the default; outdated records are checked again."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tilewright
from stored import make
from tilewright.codegen.errors import ConfigError, LaunchError
from tilewright.codegen.leaf import Edge
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.runtime.check.verify import Verdict, Verifier
from tilewright.runtime.device.detect import choose
from tilewright.runtime.device.host import HostDevice, HostLaunch
from tilewright.runtime.product import gemm as gemm_module
from tilewright.runtime.product import kernel as kernel_module
from tilewright.runtime.product import matmul as matmul_module
from tilewright.runtime.store.record import Record
from tilewright.runtime.store.store import Store
from tilewright.runtime.store.versions import versions_of
from variants import variant

PAD = "tiled:tile_width=8,edge=pad,skew=1,unroll=4"
PLAIN = "tiled:tile_width=8"


@pytest.fixture(autouse=True)
def kernels() -> dict[Any, Any]:
    """The library's kernels, which are cleared first, as another test had another store."""
    tilewright.clear()
    return tilewright._library._kernels


def stored(shape: str, text: str, versions: tuple[tuple[str, str], ...] | None = None) -> Record:
    """A record of the host in the test's own store, with today's versions unless others are passed."""
    info = choose("host")
    record = make(5.0, Problem.parse(shape), variant(text), info.key)
    today = versions_of(info, HostDevice().compiler)
    record = replace(record, versions=today if versions is None else versions)
    assert Store().keep(record)
    return record


def load(m: int, n: int, k: int, **options: Any) -> Any:
    return tilewright.load(m, n, k, device="host", **options)


def right(kernel: Callable[..., Any]) -> bool:
    problem = kernel.problem  # type: ignore[attr-defined]
    a, b = np.ones((problem.m, problem.k), "f4"), np.full((problem.k, problem.n), 2, "f4")
    return bool((kernel(a, b) == 2 * problem.k).all())


class TestLookUp:
    """Look-ups are exact, predicted or default."""

    def test_the_default_where_nothing_is_stored(self) -> None:
        kernel = load(20, 24, 16)
        assert kernel.origin == "default"
        assert kernel.config == variant("tiled")
        assert right(kernel)

    def test_the_record_of_the_shape(self) -> None:
        record = stored("20x24x16", PAD)
        stored("24x24x16", "naive")
        kernel = load(20, 24, 16)
        assert (kernel.origin, kernel.config) == ("exact", record.config)
        assert right(kernel)

    def test_the_nearest_record_with_guards_where_the_shape_needs_them(self) -> None:
        near = stored("24x24x16", PLAIN)
        stored("64x24x16", PAD)
        kernel = load(21, 24, 16)
        assert (kernel.origin, kernel.config) == ("predicted", near.config)
        assert kernel.kernel.fit.edge is Edge.BOUNDS  # 21 is no multiple of 8
        assert "(predicted (from 24x24x16))" in repr(kernel)
        assert right(kernel)
        exact = load(24, 24, 16)
        assert (exact.config, exact.kernel.fit.edge) == (near.config, Edge.EXACT)
        assert load(32, 24, 16).config == near.config
        assert "(predicted (from 64x24x16))" in repr(load(48, 24, 16))

    def test_records_of_other_types_and_transposes_do_not_count(self) -> None:
        stored("20x24x16", PAD)
        assert load(20, 24, 16, dtype="double").origin == "default"
        assert load(20, 24, 16, trans_b=True).origin == "default"

    def test_another_store(self, tmp_path: Path) -> None:
        record = stored("20x24x16", PAD)
        Store(tmp_path / "other").keep(replace(record, config=variant("naive")))
        assert load(20, 24, 16, store=tmp_path / "other").config.family == "naive"
        assert load(20, 24, 16, store=str(tmp_path / "none")).origin == "default"

    def test_a_kernel_describes_itself_and_one_of_the_processor_is_not_emitted(self) -> None:
        stored("20x24x16", PAD)
        kernel = load(20, 24, 16)
        assert repr(kernel).startswith("<tilewright kernel for 20x24x16 float nn on host")
        assert f"{kernel.config} (exact)" in repr(kernel)
        assert 'extern "C" __global__' in kernel.source
        assert kernel.device.selector == "host"
        with pytest.raises(ConfigError, match=r"was chosen for the processor: load it for a GPU"):
            kernel.emit("my_gemm")


class TestSecondCall:
    """Everything but the product itself is done once."""

    @pytest.fixture
    def count(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, int]]:
        """A function that returns how often each expensive step was done."""
        counts = {"lookup": 0, "render": 0, "compile": 0, "load": 0, "allocate": 0, "launch": 0}

        def counted(name: str, owner: Any, attribute: str) -> None:
            real = getattr(owner, attribute)

            def wrapper(*args: Any, **options: Any) -> Any:
                counts[name] += 1
                return real(*args, **options)

            monkeypatch.setattr(owner, attribute, wrapper)

        counted("lookup", Store, "lookup")
        counted("render", kernel_module, "render")
        counted("compile", kernel_module, "compile_cached")
        counted("load", HostDevice, "load")
        counted("allocate", HostDevice, "allocate")
        counted("launch", HostLaunch, "__call__")
        return lambda: dict(counts)

    @pytest.mark.parametrize("text", ["tiled", PAD])
    def test_does_no_look_up_compile_or_allocation(self, text: str, count: Callable[[], dict[str, int]]) -> None:
        stored("20x24x16", text)
        a, b = np.ones((20, 16), "f4"), np.ones((16, 24), "f4")
        tilewright.matmul(a, b, device="host")
        first = count()
        assert (first["lookup"], first["render"], first["compile"]) == (1, 1, 1)
        assert first["allocate"] == (1 if text == PAD else 0)
        assert (tilewright.matmul(a, 2 * b, device="host") == 32).all()
        second = count()
        assert second.pop("launch") > first.pop("launch")
        assert second == first

    def test_of_a_loaded_kernel_is_one_launch(self, count: Callable[[], dict[str, int]]) -> None:
        kernel = load(20, 24, 16)
        before = count()
        assert right(kernel)
        assert count() == {**before, "launch": before["launch"] + 1}


class TestOutdatedRecords:
    """Records of another generator, driver or compiler are checked against the reference before they are used."""

    OLD = (("compiler", "old"), ("driver", "old"), ("generator", "old"))

    def test_one_that_still_passes_is_marked_with_todays_versions(self) -> None:
        record = stored("20x24x16", PAD, self.OLD)
        kernel = load(20, 24, 16)
        assert (kernel.origin, kernel.config) == ("exact", record.config)
        best = Store().best(record.device, record.problem)
        digest = render(record.problem, record.config, kernel.device).digest
        assert best == replace(record, versions=versions_of(kernel.device, HostDevice().compiler), digest=digest)

    def test_one_is_checked_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stored("20x24x16", PAD, self.OLD)
        load(20, 24, 16)
        monkeypatch.setattr(gemm_module, "Verifier", None)
        assert load(20, 24, 16).origin == "exact"

    def test_one_of_today_is_not_checked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stored("20x24x16", PAD)
        monkeypatch.setattr(gemm_module, "Verifier", None)
        assert load(20, 24, 16).origin == "exact"

    def test_one_of_another_generator_with_the_same_text_is_not_checked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = stored("20x24x16", PAD).problem
        kernel = load(20, 24, 16)
        today = versions_of(kernel.device, HostDevice().compiler)
        older = tuple((name, "old" if name == "generator" else version) for name, version in today)
        digest = render(problem, kernel.config, kernel.device).digest
        checked: list[object] = []
        monkeypatch.setattr(gemm_module, "Verifier", lambda *arguments: checked.append(1) or Verifier(*arguments))
        for versions, text, checks in ((older, digest, 0), (older, "other", 1), (older, "", 1), (self.OLD, digest, 1)):
            record = replace(stored("20x24x16", PAD, versions), digest=text)
            Store().keep(record, replace=True)
            checked.clear()
            assert load(20, 24, 16).origin == "exact"
            assert len(checked) == checks, (versions, text)

    def test_a_better_one_that_was_stored_meanwhile_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        record = stored("20x24x16", PAD, self.OLD)
        better = make(1.0, record.problem, variant(PLAIN), record.device)
        check = Verifier.check

        def slow(verifier: Verifier, kernel: Any) -> Verdict:
            Store().keep(better)
            return check(verifier, kernel)

        monkeypatch.setattr(Verifier, "check", slow)
        assert load(20, 24, 16).config == record.config
        assert Store().best(record.device, record.problem) == better

    def test_one_that_fails_gives_the_default_and_a_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        record = stored("20x24x16", PAD, self.OLD)

        def wrong(verifier: Verifier, kernel: object) -> Verdict:
            return Verdict(record.accuracy, "error 3 times its bound")  # type: ignore[arg-type]

        monkeypatch.setattr(Verifier, "check", wrong)
        with pytest.warns(UserWarning, match=r"for 20x24x16 float nn no longer works here \(error 3 times its bound\)"):
            kernel = load(20, 24, 16)
        assert kernel.origin == "default"
        assert right(kernel)
        assert Store().best(record.device, record.problem) == record  # so that a later tuning sees it

    def test_one_that_cannot_be_launched_gives_the_default_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stored("20x24x16", PAD, self.OLD)

        def broken(verifier: Verifier, kernel: object) -> Verdict:
            raise LaunchError("out of memory")

        monkeypatch.setattr(Verifier, "check", broken)
        with pytest.warns(UserWarning, match="out of memory"):
            assert load(20, 24, 16).origin == "default"

    def test_a_store_that_cannot_be_written_costs_a_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        record = stored("20x24x16", PAD, self.OLD)
        locks = Store().root / "locks"
        for lock in locks.iterdir():
            lock.unlink()
        locks.rmdir()
        locks.write_text("")  # a file where the folder has to be
        with pytest.warns(UserWarning, match="checked again, but not noted: cannot write"):
            kernel = load(20, 24, 16)
        assert kernel.config == record.config

    def test_matmul_checks_once_a_process(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stored("20x24x16", PAD, self.OLD)
        a, b = np.ones((20, 16), "f4"), np.ones((16, 24), "f4")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert (tilewright.matmul(a, b, device="host") == 16).all()
        monkeypatch.setattr(matmul_module, "load_on", None)
        assert (tilewright.matmul(a, b, device="host") == 16).all()
