"""The text that the host device compiles: the emitted text but for the section of instructions, which twins replace."""

import re
import runpy
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from machine_code import GOLDEN, Golden
from quick import TYPICAL
from tilewright.codegen.errors import CompileError
from tilewright.codegen.families import parse
from tilewright.codegen.fit import Fit
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import instances, render
from tilewright.codegen.source import KernelSource
from tilewright.runtime.device import host_compiler
from tilewright.runtime.device.host_compiler import HostCompiler, translation_unit
from tilewright.tuner.bench import concatenated
from variants import WHOLE, coarse, edges, instance_of, product_families, variant

ROOT = Path(__file__).parents[2]
BEGIN = f"// ---- Instructions (PTX) {'-' * 89}\n"
END = f"// ---- The kernel {'-' * 97}\n"
TARGET = TYPICAL["sm_90a"]
TRANS = ("nn", "nt", "tn", "tt")
TWINS = Path(host_compiler.__file__).with_name("host").joinpath("instructions.h").read_text()
FUNCTION = re.compile(r"^__device__ __forceinline__ [\w *]+?(\w+)\(", re.MULTILINE)
DYNAMIC = re.compile(r" *extern __shared__ __align__\((16|1024)\) Elem shared\[\];")


@cache
def regenerate() -> dict[str, Any]:
    """The names of the script that writes golden files."""
    return runpy.run_path(str(ROOT / "tests" / "golden" / "regenerate.py"))


def golden() -> dict[str, str]:
    """Every golden file that a device compiles, and headers that are emitted beside them."""
    files: dict[str, str] = regenerate()["golden_files"]()
    return {name: text for name, text in files.items() if name.endswith((".cu", ".cuh", ".h"))}


CONFIGS = (
    "simt:pack_a=1", "simt:pack_b=1", "simt:pack_a=1,pack_b=1", "simt:split_k=4,reduce=cluster", "simt:stream_k=1",
    "simt:load=cp_async,stages=3,split_k=12,slices=2", "dmma:l2_prefetch=1",
    "dmma:split_k=12,mma_k=4", "dmma:64x64x16,fragments=double,interleave=2",
    "skinny:load=cp_async,stages=4,l2_prefetch=1", "skinny:split_k=4", "mma:scheme=bf16x6,promote=32,evict_first=1",
    "wgmma:128x64x32,stages=4,ordered=1", "wgmma:64x64x64,scheme=bf16x6,stages=2,promote=32", "tf32x3:interleave=2",
)  # fmt: skip


def kernels() -> Iterator[KernelSource]:
    """Texts of golden files, of every family at edges of matrices, of further configs, and drawn ones."""
    golden_kernels: dict[str, tuple[str, str]] = regenerate()["KERNELS"]
    rows = [(parse(text), shape, "nn") for text, shape in golden_kernels.values()]
    more = [*(pair for family in product_families() for pair in edges(family)), *((text, WHOLE) for text in CONFIGS)]
    rows += [(variant(text), shape, trans) for (text, shape), trans in product(more, TRANS)]
    for config, shape, trans in rows:
        dtype = "double" if config.family == "dmma" else "float"
        yield render(coarse(Problem.parse(shape, dtype, trans)), config, TARGET)
    for entry in Golden.parse(GOLDEN.read_text()).drawn:
        problem, fit = instance_of(entry.kernel)
        yield render(problem, fit.config, TARGET, fit)


@cache
def sources() -> dict[str, KernelSource]:
    """The texts of `kernels()` by their digests, and the texts of all preparations that they need."""
    texts = {source.digest: source for source in kernels()}
    preparations = {each.preparation.digest: each.preparation for each in texts.values() if each.preparation}
    return texts | preparations


def parts(text: str) -> tuple[str, str, str]:
    """The text before the section of instructions, the section, and the text after it. The test fails unless there is
    one section."""
    assert text.count(BEGIN) == text.count(END) == 1
    before, _, rest = text.partition(BEGIN)
    section, _, after = rest.partition(END)
    assert section
    assert after
    return before, BEGIN + section + END, after


@pytest.mark.fast
def test_there_are_kernels_of_every_family_and_all_that_prepare() -> None:
    names = {source.name for source in sources().values()}
    assert len(names) > 200
    for family in product_families():
        assert any(name.startswith(f"gemm_{family}_") for name in names), family
    for first in ("pad_f32", "pack_a", "pack_b", "pack_ab", "split_fp16x3", "split_bf16x6"):
        assert any(name.startswith(first) for name in names), first


@pytest.mark.fast
def test_the_host_compiles_the_emitted_text_but_for_the_section_of_instructions() -> None:
    for source in sources().values():
        before, section, after = parts(source.code)
        unit = translation_unit(source)
        head = f'#line 1 "{source.name}.cu"\n'
        assert unit.startswith(head + before)
        declared, exports = unit.removeprefix(head + before).split("\n" * section.count("\n"), 1)
        # The rest is the same, byte for byte, but for the declaration that no macro turns into C++.
        assert exports.endswith(")\n")
        lines = exports.split("\n")
        for ours, theirs in zip(after.split("\n"), lines):
            assert ours == theirs or DYNAMIC.fullmatch(ours), ours
        assert [line for line in lines[after.count("\n") + 1 :] if not line.startswith("TILEWRIGHT_EXPORT(")] == [""]
        # In the section's place, functions of the same names are declared in as many lines.
        names = list(dict.fromkeys(FUNCTION.findall(section)))
        assert names
        assert declared == "".join(f"using tilewright_host::instructions::{name}; " for name in names)
        assert {name for name in names if not re.search(rf"\b{name}(\(|;)", TWINS)} == set()


@pytest.mark.fast
def test_all_assembly_of_a_text_is_in_its_section_and_nothing_else_is() -> None:
    for source in sources().values():
        before, section, after = parts(source.code)
        for rest in (before, after):
            assert set(re.findall(r'\basm\b[^"]*"[^"]*"', rest)) <= {'asm volatile(""'}, source.name
        assert "asm" in section
        inside = re.sub(r"^(//.*|#.*|template <.*>.*|__device__ .*|    .*|[{}])?\n", "", section, flags=re.MULTILINE)
        assert inside == "", source.name


@pytest.mark.fast
def test_no_text_mentions_the_host() -> None:
    texts = {source.name: source.code for source in sources().values()} | golden()
    shipped = [*ROOT.glob("templates/**/*.jinja"), Path(concatenated.__file__).with_name("concatenated.cu")]
    assert len(shipped) > 50
    texts |= {str(path): path.read_text() for path in shipped}
    assert [name for name, text in texts.items() if "tilewright_host" in text.lower()] == []


@pytest.mark.fast
def test_a_text_of_several_instances_has_one_section() -> None:
    problem = Problem.parse("1020x764x516")
    config = variant("simt:64x64x16,load=cp_async,stages=3")
    fits: list[Fit | None] = [config.fit(problem), config.fit(problem, aligned=False)]
    several = instances(problem, [fit for fit in fits if fit])
    assert len({source.code for source in several}) == 1
    assert len(several) == 2
    parts(several[0].code)


# ---- What must not compile -----------------------------------------------------------------------------------------

KERNEL = 'extern "C" __global__ void kernel(int* out)\n{\n    rest();\n    *out = 1;\n}\n'
INSTRUCTION = '__device__ __forceinline__ void rest()\n{\n    asm volatile("nanosleep.u32 100;");\n}\n'
TRAILING = '__device__ __forceinline__ void rest() { asm volatile("" ::: "memory"); }\n'


@pytest.mark.fast
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (INSTRUCTION + KERNEL, "kernel: line 3 has an instruction outside of the section for them"),
        (BEGIN + TRAILING + END + INSTRUCTION + KERNEL, "kernel: line 6 has an instruction outside"),
        (BEGIN + INSTRUCTION + KERNEL, "a section of instructions has no beginning or no end"),
        (INSTRUCTION + END + KERNEL, "a section of instructions has no beginning or no end"),
    ],
)
def test_an_instruction_outside_of_a_section_is_refused(text: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        translation_unit(KernelSource("kernel", text))


def test_an_instruction_without_a_twin_does_not_compile(tmp_path: Path) -> None:
    text = BEGIN + INSTRUCTION + END + KERNEL
    with pytest.raises(CompileError, match=r"rest.*has not been declared|no member named 'rest'"):
        HostCompiler().build(KernelSource("kernel", text), str(tmp_path))
    # It does not compile even where nothing calls it.
    with pytest.raises(CompileError, match=r"rest.*has not been declared|no member named 'rest'"):
        HostCompiler().build(KernelSource("kernel", text.replace("    rest();\n", "")), str(tmp_path))


def test_a_text_without_instructions_needs_no_section(tmp_path: Path) -> None:
    HostCompiler().build(KernelSource("kernel", TRAILING + KERNEL), str(tmp_path))


def test_lines_of_a_text_keep_their_numbers(tmp_path: Path) -> None:
    source = render(Problem.parse("64"), parse("naive:8x32"), TYPICAL["host"])
    line = source.code.count("\n", 0, source.code.index("Elem acc = 0;")) + 1
    broken = KernelSource(source.name, source.code.replace("Elem acc = 0;", "Elem acc = unknown;"))
    with pytest.raises(CompileError, match=rf"{source.name}.cu:{line}:\d+: error"):
        HostCompiler().build(broken, str(tmp_path))
