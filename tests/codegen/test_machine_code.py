"""The golden file of machine code, and what decides which kernels are compiled for it: no compiler is needed here."""

from dataclasses import replace

import machine_code
import pytest
from machine_code import GOLDEN, TARGET, Entry, Golden, current, difference, text_digest
from nvrtc import MachineCode, assert_facts_as_predicted
from tilewright.codegen.families import families, parse
from tilewright.codegen.source import KernelSource
from tilewright.runtime.store.store import Store

TEXT = GOLDEN.read_text()
FILE = Golden.parse(TEXT)
CODE = '// gemm_a: "quoted"\n__global__ void gemm_a(int n) {\n  asm("bar.sync 1; // here");\n}\n'
MACHINE = MachineCode("0123456789abcdef", 32, 1024, 0, "13.5.37")
ENTRY = Entry("float nn tiled:16", "01234567", MACHINE)


def test_a_file_is_read_as_it_was_written() -> None:
    entries = {label: replace(ENTRY, kernel=label) for label in ("float nn tiled:8", "float nn tiled:16")}
    shipped, drawn = entries.values()
    text = str(Golden("13.5.37", (shipped,), (drawn,)))
    texts = dict.fromkeys(entries, ENTRY.text)
    assert Golden.parse(text).entries(texts) == entries
    # Where the text is another one, or the line was edited, the seal does not fit.
    for broken in (
        Golden.parse(text).entries(texts | {drawn.kernel: "89abcdef"}),
        Golden.parse(text.replace("\t0\tfloat nn tiled:16", "\t8\tfloat nn tiled:16")).entries(texts),
    ):
        assert broken[shipped.kernel] == shipped
        assert broken[drawn.kernel].text == ""


def test_it_holds_the_kernel_of_every_record_that_ships_and_drawn_ones_of_every_family() -> None:
    records = Store().both()[1]
    shipped = {f"{each.problem.dtype.value} {each.problem.trans} {each.config}" for each in records}
    assert shipped == {entry.kernel for entry in FILE.shipped}
    assert len(FILE.drawn) == machine_code.DRAWN
    drawn = [entry.kernel.split(" ", 2) for entry in FILE.drawn]
    assert {parse(config).family for _, _, config in drawn} == set(families())
    assert {dtype for dtype, _, _ in drawn} == {"float", "double"}
    assert {trans for _, trans, _ in drawn} == {"nn", "nt", "tn", "tt"}


def test_its_kernels_take_what_their_configs_predict() -> None:
    entries = (*FILE.shipped, *FILE.drawn)
    rows = [(config, dtype, trans, TARGET) for dtype, trans, config in (each.kernel.split(" ", 2) for each in entries)]
    assert_facts_as_predicted(rows, [each.machine for each in entries if each.machine])


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
    (replace(ENTRY, kernel="float nn tiled:8"), ("config alone", "float nn tiled:16 -> float nn tiled:8")),
    (replace(ENTRY, machine=replace(MACHINE, code="0" * 16, registers=40), text="89abcdef"),
     ("machine code", "registers 32 -> 40")),
    (replace(ENTRY, machine=replace(MACHINE, local_bytes=8), text="89abcdef"), ("resources", "local_bytes 0 -> 8")),
    (replace(ENTRY, machine=replace(MACHINE, code="0" * 16)), ("machine code", "of the same text")),
    (replace(ENTRY, machine=replace(MACHINE, compiler="13.0.88")), ("", "")),
])  # fmt: skip
def test_differences_have_kinds(changed: Entry | None, expected: tuple[str, str]) -> None:
    assert difference(ENTRY, changed) == expected


def test_what_changed_is_compiled_and_some_of_what_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {str(i): KernelSource(f"kernel_{i}", f"int {i};") for i in range(100)}
    entries = {label: Entry(label, text_digest(source), MACHINE) for label, source in sources.items()}
    entries["7"] = replace(entries["7"], text="of before")
    del entries["8"]
    other = replace(MACHINE, registers=1)
    monkeypatch.setattr(machine_code, "compiler_flags", lambda: ())
    monkeypatch.setattr(machine_code, "machine_codes", lambda chosen: dict.fromkeys(chosen, other))
    found = current(entries, sources, 5, "seed")
    assert {label: each.text for label, each in found.items()} == {k: text_digest(v) for k, v in sources.items()}
    compiled = {label for label, each in found.items() if each.machine == other}
    assert len(compiled) == 2 + 5
    assert {"7", "8"} < compiled
    assert compiled != {label for label, each in current(entries, sources, 5, "2").items() if each.machine == other}


def test_another_version_of_the_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "compiler_version", lambda: "13.0.88")
    with pytest.raises(SystemExit, match=rf"of NVRTC {FILE.compiler}, and 13.0.88 compiles: pip install"):
        machine_code.check()
