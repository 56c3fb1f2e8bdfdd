"""Machine code: the golden file, the kernels that are compiled for it, and a sample of variants for four targets."""

import random
from dataclasses import replace

import machine_code
import pytest
from machine_code import GOLDEN, TARGET, Entry, Golden, current, difference, is_legal, text_digest
from nvrtc import TARGETS, MachineCode, Row, assert_as_predicted, assert_facts_as_predicted, variants
from quick import TYPICAL
from tilewright.codegen.config import Config
from tilewright.codegen.legality import serves
from tilewright.codegen.mechanisms.blocked import registers_held_to
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import KernelSource
from tilewright.runtime.device.cache import compile_cached
from tilewright.runtime.device.elf import code_digest
from tilewright.runtime.store.store import Store
from variants import instance_of, instance_text, product_families, variant

TEXT = GOLDEN.read_text()
FILE = Golden.parse(TEXT)
INSTANCES = [entry for entry in (*FILE.shipped, *FILE.drawn) if " " in entry.kernel]
"""Kernels that multiply. Kernels that prepare operands have names of one word."""
CODE = '// gemm_a: "quoted"\n__global__ void gemm_a(int n) {\n  asm("bar.sync 1; // here");\n}\n'
MACHINE = MachineCode("0123456789abcdef", 32, 1024, 0, "13.5.37")
MOST_SPILLED_BYTES = 96
"""Largest local memory of a thread of a kernel in the file. Instances for unaligned operands spill most."""
ENTRY = Entry("float nn exact 1x1x1 tiled:16", "01234567", MACHINE)


def test_a_file_is_read_as_it_was_written() -> None:
    entries = {label: replace(ENTRY, kernel=label) for label in ("float nn exact 1x1x1 tiled:8", ENTRY.kernel)}
    shipped, drawn = entries.values()
    text = str(Golden("13.5.37", (shipped,), (drawn,)))
    texts = dict.fromkeys(entries, ENTRY.text)
    assert Golden.parse(text).entries(texts) == entries
    # The seal does not fit where the text changed or the line was edited.
    for broken in (
        Golden.parse(text).entries(texts | {drawn.kernel: "89abcdef"}),
        Golden.parse(text.replace(f"\t0\t{ENTRY.kernel}", f"\t8\t{ENTRY.kernel}")).entries(texts),
    ):
        assert broken[shipped.kernel] == shipped
        assert broken[drawn.kernel].text == ""


def label(problem: Problem, config: Config, aligned: bool = True) -> str:
    fit = config.fit(problem, aligned)
    assert fit
    return instance_text(problem, fit)


def test_the_file_holds_both_kernels_of_every_shipped_record_and_drawn_kernels_of_every_family() -> None:
    records = Store().both()[1]
    shipped = {label(each.problem, each.config, aligned) for each in records for aligned in (True, False)}
    assert shipped == {entry.kernel for entry in INSTANCES if entry in FILE.shipped}
    assert len(FILE.drawn) == machine_code.DRAWN
    drawn = [instance_of(entry.kernel) for entry in FILE.drawn]
    assert {fit.config.family for _, fit in drawn} == set(product_families())
    assert {problem.dtype for problem, _ in drawn} == set(DType)
    assert {problem.trans for problem, _ in drawn} == {"nn", "nt", "tn", "tt"}
    assert all(is_legal(*each) for each in drawn)


def test_kernels_that_searches_try_take_the_predicted_registers_and_memory() -> None:
    tuned = {label(each.problem, each.config) for each in Store().both()[1]}
    entries = [each for each in INSTANCES if each in FILE.drawn or each.kernel in tuned]
    rows = [(each.kernel, TARGET) for each in entries]
    assert_facts_as_predicted(rows, [each.machine for each in entries if each.machine])


def test_every_kernel_stays_within_its_launch_bounds_and_spills_little() -> None:
    for entry in INSTANCES:
        (problem, fit), machine = instance_of(entry.kernel), entry.machine
        assert machine
        assert machine.registers <= registers_held_to(fit.config), entry.kernel
        assert machine.smem_bytes == fit.config.launch_config(problem, 132).static_smem_bytes, entry.kernel
        assert machine.local_bytes <= MOST_SPILLED_BYTES, entry.kernel


@pytest.mark.parametrize(("old", "new", "same"), [
    ("quoted", "other words", True),
    ("  asm", "\n    asm", True),
    ("}", "/* a\ncomment */ }  // another", True),
    ("gemm_a", "gemm_b", True),
    ("; // here", ";", False),
    ("int n", "int m", False),
    ("{\n", "{\n#pragma unroll\n", False),
])  # fmt: skip
def test_comments_spaces_and_names_do_not_count_in_a_text(old: str, new: str, same: bool) -> None:
    name = "gemm_b" if new == "gemm_b" else "gemm_a"
    changed = KernelSource(name, CODE.replace(old, new))
    assert (text_digest(changed) == text_digest(KernelSource("gemm_a", CODE))) == same


def test_options_of_the_compiler_count() -> None:
    source = KernelSource("gemm_a", CODE)
    assert text_digest(source, ("-arch=sm_90a",)) != text_digest(source, ("-arch=sm_90a", "-use_fast_math"))


@pytest.mark.parametrize(("changed", "expected"), [
    (ENTRY, ("", "")),
    (None, ("gone", "")),
    (replace(ENTRY, text="89abcdef"), ("text alone", "")),
    (replace(ENTRY, kernel="float nn exact 1x1x1 tiled:8"),
     ("config alone", "float nn exact 1x1x1 tiled:16 -> float nn exact 1x1x1 tiled:8")),
    (replace(ENTRY, machine=replace(MACHINE, code="0" * 16, registers=40), text="89abcdef"),
     ("machine code", "registers 32 -> 40")),
    (replace(ENTRY, machine=replace(MACHINE, local_bytes=8), text="89abcdef"), ("resources", "local_bytes 0 -> 8")),
    (replace(ENTRY, machine=replace(MACHINE, code="0" * 16)), ("machine code", "of the same text")),
    (replace(ENTRY, machine=replace(MACHINE, compiler="13.0.88")), ("", "")),
])  # fmt: skip
def test_differences_have_kinds(changed: Entry | None, expected: tuple[str, str]) -> None:
    assert difference(ENTRY, changed) == expected


def test_changed_kernels_are_compiled_and_some_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {str(i): KernelSource(f"kernel_{i}", f"int {i};") for i in range(100)}
    entries = {label: Entry(label, text_digest(source), MACHINE) for label, source in sources.items()}
    entries["7"] = replace(entries["7"], text="of before")
    del entries["8"]
    other = replace(MACHINE, registers=1)
    monkeypatch.setattr(machine_code, "compiler_flags", lambda: ())
    monkeypatch.setattr(machine_code, "machine_codes", lambda chosen: dict.fromkeys(chosen, other))
    after = current(entries, sources, 5, "seed")
    assert {label: each.text for label, each in after.items()} == {k: text_digest(v) for k, v in sources.items()}
    compiled = {label for label, each in after.items() if each.machine == other}
    assert len(compiled) == 2 + 5
    assert {"7", "8"} < compiled
    assert compiled != {label for label, each in current(entries, sources, 5, "2").items() if each.machine == other}


def test_another_version_of_the_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "compiler_version", lambda: "13.0.88")
    with pytest.raises(SystemExit, match=rf"of NVRTC {FILE.compiler}, and 13.0.88 compiles: pip install"):
        machine_code.check()


# ---- A sample of all variants, compiled without a GPU -----------------------------------------------------------


VARIANTS = 50
"""Number of variants that are compiled for each target."""


def sample() -> list[Row]:
    """Variants, the same in each run and for each target that can run them, and equally many of each family."""
    generator = random.Random(1)
    texts = []
    for i, family in enumerate(product_families().values()):
        count = VARIANTS // len(product_families()) + (i < VARIANTS % len(product_families()))
        texts += generator.sample(list(variants(family)), count)
    rows = [(text, target) for text in texts for target in TARGETS]
    return [row for row in rows if is_offered(*row)]


def is_offered(text: str, target: str) -> bool:
    """Whether the target can run the instance."""
    problem, fit = instance_of(text)
    return serves(fit.config, problem, TYPICAL[target])


# This is one test, so that tests in several processes do not compile the sample more than once.
@pytest.mark.nvrtc
def test_compiled_variants_take_the_predicted_registers_and_memory() -> None:
    rows = sample()
    assert len(rows) > VARIANTS * (len(TARGETS) - 2)
    assert {instance_of(text)[1].config.family for text, _ in rows} == set(product_families())
    assert_as_predicted(rows)


@pytest.mark.nvrtc
def test_the_same_code_under_two_names_is_one() -> None:
    from tilewright.runtime.device.cuda import NvrtcCompiler

    def digest(text: str) -> str:
        source = render(Problem(32, 32, 32), variant(text), TYPICAL["sm_90a"])
        return code_digest(compile_cached(NvrtcCompiler("sm_90a"), source).image, source)

    # Tiles divide the shape, so that no guard is left, and pad differs only by the kernel that copies.
    assert digest("tiled:16,unroll=16") == digest("tiled:16,unroll=16")
    assert digest("tiled:16,unroll=16") != digest("tiled:16,unroll=1")
    assert digest("tiled:16") != digest("tiled:16,edge=pad")
