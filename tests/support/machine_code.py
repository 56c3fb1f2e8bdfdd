"""Compare the machine code for sm_90a of shipped records and drawn instances with machine_code.tsv, without a GPU.

    pip install -e '.[nvrtc]'                           # CuPy, and the NVRTC that compiled the file's kernels
    python tests/support/machine_code.py check          # whether the file is up to date: .ci/run does this
    python tests/support/machine_code.py write          # accept a change; --all compiles unchanged texts too
    python tests/support/machine_code.py compare REV    # a commit with the checkout; REV REV: two commits

A record has two kernels: the instance for its problem, and the one for operands that are not aligned. The file also
holds each kernel that prepares operands once, under its name.

Compiling all kernels takes minutes of processor time, and one compiler makes the same machine code of the same text. So
the file holds the facts of each kernel's machine code, and a seal: a digest of these facts and of the kernel's text.
`check` compiles kernels whose seal does not fit their text, and a few whose seal does. Comments, spaces and the
kernel's name do not count in the digest of a text: rewording a comment in a template breaks no seal. After any other
change of a text the file has to be written again. Where the machine code is the same as before, this changes the seals
alone, which are the last part of the file: a line that changes before it is a kernel with other machine code. A drawn
instance stays in the file until it is no longer legal, or a new family needs its place.

`compare` gets the texts of each commit from the commit's own version of this file, if it has one, and compiles for
both commits the kernels whose texts differ. It ends with status 1 if machine code differs. It takes seconds if few
texts differ, and some three minutes on two processors if all do.
"""

import argparse
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from nvrtc import MachineCode, compiled, variants
from quick import TYPICAL
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.fit import Fit
from tilewright.codegen.legality import fitted, serves
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import KernelSource
from tilewright.runtime.store.store import Store
from variants import instance_of, instance_text, product_families

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "machine_code.tsv"
TARGET = "sm_90a"
INSTALL = "pip install -e '.[nvrtc]'"
UNALIGNED = " unaligned"
"""Suffix of a record's device and problem that names its kernel for operands that are not aligned."""
DRAWN = 100
"""Number of drawn kernels in the file."""
COMPILED_AGAIN = 16
"""Number of kernels with unchanged text that `check` compiles all the same; the content of the file decides which."""
SEALS_A_LINE = 12
"""Number of seals in a line of the file."""
EMPTY = KernelSource("empty", 'extern "C" __global__ void empty() {}')
"""A kernel that is compiled to learn the version of NVRTC, which its binary holds."""
KINDS = ("machine code", "resources", "new", "gone", "config alone", "text alone")
"""Kinds of differences, in the order in which they are printed; the first two are differences of machine code."""
_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_VERSION = re.compile(r"NVRTC (\S+)$", re.MULTILINE)

Sources = dict[str, KernelSource]
"""Texts by their kernels, as `variants.instance_text` names them: `float nn exact 1x1x1 naive:8x32`."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel's text and machine code."""

    kernel: str
    """Dtype, transposes, edge, widths of vectors and config."""
    text: str
    """Digest of the text."""
    machine: MachineCode | None = None
    """Facts of the machine code; None where the kernel was not compiled."""


@dataclass(frozen=True, slots=True)
class Golden:
    """The golden file: a line for each kernel, then for each line a seal, its digest with the kernel's text."""

    compiler: str = ""
    """Version of NVRTC."""
    shipped: tuple[Entry, ...] = ()
    """Kernels of records that ship."""
    drawn: tuple[Entry, ...] = ()
    """Kernels of drawn instances."""
    seals: tuple[str, ...] = ()
    """Seals read from a file, whose entries have no text."""

    def entries(self, texts: Mapping[str, str]) -> dict[str, Entry]:
        """All entries by kernel. `texts` are digests by kernel, which the entries get where their seals fit them."""
        by_kernel = {}
        for entry, seal in zip((*self.shipped, *self.drawn), self.seals, strict=True):
            sealed = replace(entry, text=texts.get(entry.kernel, ""))
            by_kernel[entry.kernel] = sealed if _seal(sealed) == seal else entry
        return by_kernel

    @classmethod
    def parse(cls, text: str) -> "Golden":
        """The content of a file, from its text."""
        *_, shipped, drawn, seals = (part.splitlines()[1:] for part in re.split("^# ", text, flags=re.MULTILINE))
        version = _VERSION.search(text)
        compiler = version[1] if version else ""

        def entry(line: str) -> Entry:
            code, *numbers, kernel = line.split("\t")
            return Entry(kernel, "", MachineCode(code, *map(int, numbers), compiler))

        return cls(compiler, tuple(map(entry, shipped)), tuple(map(entry, drawn)), tuple(" ".join(seals).split()))

    def __str__(self) -> str:
        seals = list(map(_seal, (*self.shipped, *self.drawn)))
        return "\n".join([
            f"# Machine code for {TARGET}, written by tests/support/machine_code.py with NVRTC {self.compiler}",
            "# Shipped records: digest, registers of a thread, static shared bytes, local bytes of a thread, kernel",
            *map(_line, self.shipped),
            "# Drawn instances",
            *map(_line, self.drawn),
            "# Seals of the lines above",
            *(" ".join(seals[i : i + SEALS_A_LINE]) for i in range(0, len(seals), SEALS_A_LINE)),
            "",
        ])  # fmt: skip


def _line(entry: Entry) -> str:
    machine = entry.machine
    assert machine is not None
    return f"{machine.code}\t{machine.registers}\t{machine.smem_bytes}\t{machine.local_bytes}\t{entry.kernel}"


def _seal(entry: Entry) -> str:
    return hashlib.sha256(f"{entry.text}\t{_line(entry)}".encode()).hexdigest()[:8]


# ---- Texts ---------------------------------------------------------------------------------------------------------


def text_digest(source: KernelSource, flags: Sequence[str] = ()) -> str:
    """Digest of eight digits of a text and of options of the compiler. Comments, spaces and the kernel's name do not
    count."""
    text = _COMMENT.sub(lambda match: match[1] or " ", source.code).replace(source.name, "kernel")
    lines = (" ".join(line.split()) for line in text.splitlines())
    return hashlib.sha256("\n".join([*flags, *filter(None, lines)]).encode()).hexdigest()[:8]


def of_records() -> dict[str, tuple[str, KernelSource]]:
    """Both kernels of each record that ships and their texts, by the record's device and problem."""
    texts, target = {}, TYPICAL[TARGET]
    for record in Store().both()[1]:
        problem = record.problem
        for aligned in (True, False):
            fit = fitted(problem, record.config, target, aligned)
            source = render(problem, fit.config, target, fit)
            label = f"{record.device} {problem}" + ("" if aligned else UNALIGNED)
            texts[label] = instance_text(problem, fit), source
    return texts


def is_legal(problem: Problem, fit: Fit) -> bool:
    """Whether an instance may serve a problem, with unaligned operands where its vectors are narrow."""
    config = fit.config
    return serves(config, problem, TYPICAL[TARGET]) and all(
        rule.holds(problem, config, fit) for rule in config.fit_rules
    )


def of_drawn(candidates: Iterable[str], shipped: Collection[str]) -> Sources:
    """Texts of the first DRAWN candidates that are legal and not shipped."""
    texts: Sources = {}
    for kernel in candidates:
        problem, fit = instance_of(kernel)
        if len(texts) < DRAWN and kernel not in shipped and is_legal(problem, fit):
            texts[kernel] = render(problem, fit.config, TYPICAL[TARGET], fit)
    return texts


def draw(before: Sequence[str]) -> list[str]:
    """Candidates of each family in turn: first those that were drawn before, then others of all dtypes and transposes.
    Each run draws the same."""
    generator, pools = random.Random(1), []
    for name, family in product_families().items():
        old = [kernel for kernel in before if instance_of(kernel)[1].config.family == name]
        pool = list(variants(family))
        pools.append(list(dict.fromkeys([*old, *generator.sample(pool, min(DRAWN, len(pool)))])))
    return [kernel for turn in itertools.zip_longest(*pools) for kernel in turn if kernel]


def all_sources(candidates: Iterable[str]) -> tuple[Sources, Sources]:
    """Texts of shipped records and of all kernels that prepare operands, and texts of drawn kernels."""
    shipped = dict(sorted(of_records().values(), key=lambda pair: pair[0]))
    drawn = dict(sorted(of_drawn(candidates, shipped).items()))
    return shipped | preparations([*shipped.values(), *drawn.values()]), drawn


def preparations(sources: Iterable[KernelSource]) -> Sources:
    """Texts of the kernels that prepare operands for these, by name."""
    by_name = {each.preparation.name: each.preparation for each in sources if each.preparation}
    return dict(sorted(by_name.items()))


# ---- Machine code --------------------------------------------------------------------------------------------------


def compiler_flags() -> tuple[str, ...]:
    """The options with which NVRTC is called."""
    from tilewright.runtime.device.cuda import NvrtcCompiler

    return NvrtcCompiler(TARGET).flags


def compiler_version() -> str:
    """The version of NVRTC that compiles here. Ends the program where there is none."""
    try:
        return compiled([(EMPTY, TARGET)])[0].compiler
    except RuntimeError as error:
        sys.exit(f"NVRTC does not compile here ({error}): {INSTALL}")


def machine_codes(sources: Mapping[str, KernelSource]) -> dict[str, MachineCode]:
    """Machine code by label; equal texts are compiled once."""
    texts = list(dict.fromkeys(sources.values()))
    facts = dict(zip(texts, compiled([(text, TARGET) for text in texts]), strict=True))
    return {label: facts[text] for label, text in sources.items()}


def digests(sources: Sources) -> dict[str, str]:
    """Digests of texts by their kernels."""
    flags = compiler_flags()
    return {kernel: text_digest(source, flags) for kernel, source in sources.items()}


def current(entries: Mapping[str, Entry], sources: Sources, again: int, seed: str = "") -> dict[str, Entry]:
    """Entries of the kernels as they are now. Kernels whose text changed are compiled, and `again` of the others."""
    texts = digests(sources)
    same = [kernel for kernel, text in texts.items() if kernel in entries and entries[kernel].text == text]
    trusted = set(same) - set(random.Random(seed).sample(same, min(again, len(same))))
    machine = machine_codes({kernel: source for kernel, source in sources.items() if kernel not in trusted})
    print(f"{len(machine)} of {len(sources)} kernels compiled")
    return {
        kernel: entries[kernel] if kernel in trusted else Entry(kernel, text, machine[kernel])
        for kernel, text in texts.items()
    }


# ---- Differences ---------------------------------------------------------------------------------------------------


def difference(before: Entry | None, after: Entry | None) -> tuple[str, str]:
    """The kind of a difference, empty where there is none, and the facts that differ."""
    if before is None or after is None:
        return ("gone" if before else "new"), ""
    kind, details = "", []
    if before.kernel != after.kernel:
        kind, details = "config alone", [f"{before.kernel} -> {after.kernel}"]
    if before.text != after.text:
        kind = "text alone"
    old, new = before.machine, after.machine
    if old and new and old != new:
        kind = "machine code" if old.code != new.code else "resources"
        pairs = {name: (getattr(old, name), getattr(new, name)) for name in ("registers", "smem_bytes", "local_bytes")}
        details += [f"{name} {pair[0]} -> {pair[1]}" for name, pair in pairs.items() if pair[0] != pair[1]]
        details += ["of the same text"] if before.text == after.text else []
    return kind, ", ".join(details)


def differences(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> Counter[str]:
    """Print each difference, then the number of each kind. Returns these numbers."""
    rows = [(*difference(before.get(label), after.get(label)), label) for label in sorted({**before, **after})]
    rows = [each for each in rows if each[0]]
    for kind, detail, label in sorted(rows, key=lambda each: KINDS.index(each[0])):
        print(f"{kind:<12}  {label}" + (f": {detail}" if detail else ""))
    counts = Counter(kind for kind, _, _ in rows)
    totals = ", ".join(f"{kind} {counts[kind]}" for kind in KINDS if counts[kind])
    print(f"{len({**before, **after})} compared: {totals or 'nothing differs'}")
    return counts


# ---- Commands ------------------------------------------------------------------------------------------------------


def check() -> int:
    """Compare the kernels as they are now with the golden file."""
    text = GOLDEN.read_text()
    golden, version = Golden.parse(text), compiler_version()
    if version != golden.compiler:
        sys.exit(f"{GOLDEN.name} is of NVRTC {golden.compiler}, and {version or 'an unknown one'} compiles: {INSTALL}")
    shipped, drawn = all_sources(entry.kernel for entry in golden.drawn)
    before = golden.entries(digests(shipped | drawn))
    differ = differences(before, current(before, shipped | drawn, COMPILED_AGAIN, seed=text))
    if differ:
        print("If this is intended, accept it: python tests/support/machine_code.py write")
    return 1 if differ else 0


def write(everything: bool) -> int:
    """Write the golden file. Kernels of unchanged texts keep their machine code, unless `everything` is compiled."""
    golden = Golden.parse(GOLDEN.read_text()) if GOLDEN.exists() else Golden()
    version = compiler_version()
    shipped, drawn = all_sources(draw([entry.kernel for entry in golden.drawn]))
    before = golden.entries(digests(shipped | drawn))
    after = current({} if everything or version != golden.compiler else before, shipped | drawn, 0)
    differences(before, after)
    written = Golden(version, tuple(after[kernel] for kernel in shipped), tuple(after[kernel] for kernel in drawn))
    GOLDEN.write_text(str(written))
    return 0


def compare(revisions: Sequence[str]) -> int:
    """Compare two commits, or one with the checkout."""
    print(f"NVRTC {compiler_version()}")
    with tempfile.TemporaryDirectory() as folder:
        before, after = (_Side(name, Path(folder, str(i))) for i, name in enumerate((*revisions, "")[:2]))
        texts = before.answer("texts"), after.answer("texts")
        changed = [label for label in texts[0] if label in texts[1] and texts[0][label][1] != texts[1][label][1]]
        print(f"{len(changed)} of {len({**texts[0], **texts[1]})} texts differ; compiling them of both", flush=True)
        machine = before.answer("compile", changed), after.answer("compile", changed)
    entries = [
        {label: Entry(*text, MachineCode(*codes[label]) if label in codes else None) for label, text in each.items()}
        for each, codes in zip(texts, machine)
    ]
    counts = differences(*entries)
    return 1 if counts["machine code"] or counts["resources"] else 0


class _Side:
    """A commit, or the checkout where the name is empty, as a package that a process of its own imports."""

    def __init__(self, revision: str, folder: Path) -> None:
        self._name, self._folder, package = revision or "the checkout", folder, folder / "tilewright"
        folder.mkdir()
        if revision:
            archive = folder / "commit.zip"
            command = ["git", "-C", str(ROOT), "archive", "--format=zip", f"--output={archive}", revision]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{revision}: {done.stderr.strip()}")
            shutil.unpack_archive(archive, package)
        else:
            package.symlink_to(ROOT)
        script = package / "tests" / "support" / Path(__file__).name
        self._script = script if script.exists() else Path(__file__)

    def answer(self, command: str, labels: Sequence[str] = ()) -> dict[str, Any]:
        """Output of the commit's own version of this file, or of this file with the commit's package if it has none."""
        environment = os.environ | {"PYTHONPATH": str(self._folder)}
        call = [sys.executable, str(self._script), command]
        done = subprocess.run(
            call, input=json.dumps(labels), capture_output=True, text=True, check=False, env=environment
        )
        if done.returncode:
            _, _, last = done.stderr.strip().rpartition("\n")
            sys.exit(f"{self._name}: {last}")
        output: dict[str, Any] = json.loads(done.stdout)
        return output


def labelled() -> dict[str, tuple[str, KernelSource]]:
    """Kernels and their texts by the labels of `compare`: a record's device and problem, a drawn kernel, or the name of
    a kernel that prepares operands."""
    records = of_records()
    drawn = [entry.kernel for entry in Golden.parse(GOLDEN.read_text()).drawn]
    texts = of_drawn(drawn, {kernel for kernel, _ in records.values()})
    first = preparations([*(source for _, source in records.values()), *texts.values()])
    return records | {kernel: (kernel, source) for kernel, source in {**texts, **first}.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="compare what the kernels are now with the golden file")
    writing = commands.add_parser("write", help="write the golden file")
    writing.add_argument("--all", action="store_true", help="compile kernels whose text did not change too")
    comparing = commands.add_parser("compare", help="compare two commits, or one with the checkout")
    comparing.add_argument("revisions", nargs="+", metavar="REV", help="a commit, or two")
    commands.add_parser("texts", help="for compare: kernels and digests of texts, as JSON")
    commands.add_parser("compile", help="for compare: machine code of the labels in the JSON on standard input")
    options = parser.parse_args()
    if options.command == "check":
        return check()
    if options.command == "write":
        return write(options.all)
    if options.command == "compare":
        if len(options.revisions) > 2:
            parser.error(f"compare takes one REV or two, got {len(options.revisions)}")
        return compare(options.revisions)
    texts, flags = labelled(), compiler_flags()
    if options.command == "texts":
        json.dump({label: (kernel, text_digest(text, flags)) for label, (kernel, text) in texts.items()}, sys.stdout)
    else:
        codes = machine_codes({label: texts[label][1] for label in json.load(sys.stdin)})
        json.dump({label: astuple(each) for label, each in codes.items()}, sys.stdout)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, ConfigError) as error:  # a kernel that does not compile, a record that is not legal
        sys.exit(str(error))
