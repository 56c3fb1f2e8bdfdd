"""Launches of a product by the library and by functions of emitted files, recorded and not carried out.

Emitted functions are compiled for the processor, with empty kernels, and with fake_cuda in place of CUDA's runtime.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from emitted import COMPILER, FAKE, HEADERS, kernels_in
from tilewright.codegen.bundle import Served
from tilewright.codegen.emit import COUNTER_BYTES, emit
from tilewright.codegen.fit import Fit
from tilewright.codegen.problem import DType, Problem
from tilewright.codegen.render import render
from tilewright.codegen.source import PACKED_BYTES, KernelSource, LaunchConfig
from tilewright.runtime.device.host import HostDevice
from tilewright.runtime.device.known import KNOWN
from tilewright.runtime.device.protocol import Binary, Launcher
from tilewright.runtime.product.kernel import Kernel

GPU = KNOWN["nvidia-h200"]
"""The device of every launch; only the number of SMs varies."""
A, B, C, WORKSPACE = (1 << bit for bit in (40, 41, 42, 43))
"""Addresses of the matrices and of the workspace of emitted functions; no memory is there."""
_BUFFER, _BUFFER_STEP = 1 << 50, 1 << 44
"""Address of the first buffer that the library allocates, and bytes from one buffer to the next."""
_LINE_BYTES = 256
"""Alignment in bytes of the parts of an emitted function's workspace."""


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch of a kernel."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    dynamic_smem_bytes: int
    codes: str
    """Types of the arguments, as `ParameterBlock` has them."""
    arguments: tuple[str, ...]
    """Values of the arguments, without tensor maps; addresses are those of the emitted function."""


@dataclass(frozen=True, slots=True)
class Work:
    """The workspace and the launches of one product."""

    config: str
    """Text of the config."""
    workspace_bytes: int
    """Bytes of the smallest workspace with which an emitted function computes the product."""
    clears: int
    """Number of times that an emitted function clears counters: where the workspace begins with too few of them."""
    launches: tuple[Launched, ...]


# ---- The library


class _Recorder(HostDevice):
    """A GPU that records launches and allocations."""

    def __init__(self, sm_count: int) -> None:
        super().__init__()
        self.info = replace(GPU, sm_count=sm_count)
        self.allocated: list[int] = []
        self.launches: list[tuple[str, LaunchConfig, str, tuple[Any, ...]]] = []

    def load(self, binary: Binary, name: str) -> Any:
        def bound(how: LaunchConfig, codes: str) -> Launcher:
            return lambda stream, *values: self.launches.append((name, how, codes, values))

        return SimpleNamespace(bound=bound)

    def allocate(self, nbytes: int, stream: int | None = None) -> Any:
        self.allocated.append(nbytes)
        return SimpleNamespace(pointer=_BUFFER + _BUFFER_STEP * (len(self.allocated) - 1), nbytes=nbytes)

    def zero(self, buffer: Any, nbytes: int, stream: int) -> None:
        """Clear nothing, as no memory is there."""


@cache
def _source(fit: Fit, dtype: DType, trans: str) -> KernelSource:
    """Source of an instance, which is the same for every size."""
    return render(Problem.parse("1", dtype, trans), fit.config, GPU, fit)


def by_library(problem: Problem, fit: Fit, sm_count: int, counters_first: bool) -> Work:
    """The work of a `Kernel` on a device of `sm_count` SMs.

    Addresses in buffers are translated to addresses in the workspace of an emitted function. This begins with
    COUNTER_BYTES of counters where a kernel of the bundle needs counters, as `counters_first` says. Then come more
    counters, if those are too few, partial tiles, and copies.
    """
    gpu, config = _Recorder(sm_count), fit.config
    kernel = Kernel(gpu, problem, fit, _source(fit, problem.dtype, problem.trans), Binary(b""))
    lds = (max(1, cols) for _, cols in (problem.stored_a, problem.stored_b, (problem.m, problem.n)))
    kernel.laid(*lds)(0, False, A, B, C, 1.0, 1.0)
    buffers = gpu.allocated  # partial tiles, copies, counters; only a kernel with a workspace has tiles and counters
    counters = buffers[-1] if config.has_workspace else 0
    assert counters == 4 * config.counters(problem, sm_count)
    partial_tiles = buffers[0] if config.has_workspace else 0
    copies = buffers[int(config.has_workspace)] if len(buffers) > 2 * config.has_workspace else 0

    own_counters = _lines(counters) if counters > COUNTER_BYTES else 0
    counters_at = WORKSPACE + (COUNTER_BYTES if own_counters else 0)
    tiles_at = WORKSPACE + (COUNTER_BYTES if counters_first else 0) + own_counters
    copies_at = tiles_at + _lines(partial_tiles)
    # Buffers of packed copies have PACKED_BYTES more, for their alignment.
    copied = copies - PACKED_BYTES if any(config.packs) else _lines(copies)

    def placed(address: int) -> int:
        buffer, offset = divmod(address - _BUFFER, _BUFFER_STEP)
        if buffer < 0:
            return address
        starts = [tiles_at] * config.has_workspace + [copies_at] * (copies > 0) + [counters_at] * config.has_workspace
        return starts[buffer] + offset

    def text(code: str, value: Any) -> str:
        return f"{value:g}" if code in "fd" else str(placed(value) if code == "Q" else value)

    launches = []
    for name, how, codes, values in gpu.launches:
        arguments = tuple(text(code, value) for code, value in zip(codes, values, strict=True) if code != "m")
        launches.append(Launched(name, how.grid, how.block, how.dynamic_smem_bytes, codes, arguments))
    needed = copies_at + copied - WORKSPACE if buffers else 0
    return Work(str(config), needed, int(own_counters > 0), tuple(launches))


def _lines(nbytes: int) -> int:
    return -(-nbytes // _LINE_BYTES) * _LINE_BYTES


# ---- Emitted functions


@dataclass(frozen=True, slots=True)
class Question:
    """A product for a bundle to compute."""

    bundle: str
    """Name of the bundle."""
    problem: Problem
    sm_count: int
    """SMs of the device."""
    expected: Work
    """The work as the library does it, which has the types of the arguments."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The work of a bundle, and the workspace that its functions announce."""

    status: int
    """Status of the call, 0 for success."""
    work: Work
    workspace_size: int
    """Bytes that the function `_workspace_size` returns."""
    described_bytes: int
    """Bytes of workspace in the description by the function `_describe`."""


_KERNELS = re.compile(
    r"^namespace \w+::(\w+) \{\n.*?^((?:const Kernel row.*?)?^\}  // namespace \w+::\1$)",
    re.DOTALL | re.MULTILINE,
)
_HEAD = """
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>
#include <cuda_runtime.h>
"""
_FUNCTIONS = r"""
namespace {

std::vector<std::string> codes;  // of the launches to come
std::string launches;            // as text

template <typename T>
std::string text(const char* format, const void* argument)
{
    char value[40];
    snprintf(value, sizeof value, format, *static_cast<const T*>(argument));
    return value;
}

std::string text(char code, const void* argument)
{
    if (!argument) return "missing";
    if (code == 'Q') return text<unsigned long long>("%llu", argument);
    if (code == 'I') return text<unsigned>("%u", argument);
    if (code == 'i') return text<int>("%d", argument);
    return code == 'f' ? text<float>("%g", argument) : text<double>("%g", argument);
}

struct Kernel { const void* function; const char* name; unsigned cluster; };

void add(const Kernel& kernel)
{
    const std::string name = kernel.name;
    fake::kernels[kernel.function] = {kernel.cluster, [name](const cudaLaunchConfig_t& how, void** arguments) {
        const dim3 grid = how.gridDim, block = how.blockDim;
        const std::string types = codes.empty() ? "" : codes.front();
        if (!codes.empty()) codes.erase(codes.begin());
        char sizes[200];
        snprintf(
            sizes, sizeof sizes, "%u,%u,%u %u,%u,%u %zu", grid.x, grid.y, grid.z, block.x, block.y, block.z,
            how.dynamicSmemBytes);
        launches += "\t" + name + " " + sizes + " " + types;
        for (size_t i = 0; i < types.size(); ++i) {
            if (types[i] != 'm') launches += " " + text(types[i], arguments[i]);
        }
        return [] { return static_cast<const char*>(nullptr); };
    }};
}

template <typename T, typename Run, typename Size, typename Describe, typename Description>
void answer(
    Run run, Size size, Describe describe, Description description, bool trans_a, bool trans_b, long m, long n, long k,
    size_t bytes, int too_small)
{
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);  // nothing is cleared
    const std::vector<std::string> types = codes;
    const auto ld = [](long width) { return width ? width : 1; };
    const auto multiply = [&](size_t workspace_bytes) {
        codes = types;
        launches.clear();
        fake::calls.clear();
        return run(
            reinterpret_cast<T*>(1ll << 40), ld(trans_a ? m : k), reinterpret_cast<T*>(1ll << 41), ld(trans_b ? k : n),
            reinterpret_cast<T*>(1ll << 42), ld(n), m, n, k, 1, 1, reinterpret_cast<void*>(1ll << 43), workspace_bytes,
            stream);
    };
    if (multiply(bytes) == too_small || (bytes && multiply(bytes - 1) != too_small)) {
        size_t least = 0, most = size_t(1) << 42;
        while (least < most) {
            const size_t middle = least + (most - least) / 2;
            multiply(middle) == too_small ? least = middle + 1 : most = middle;
        }
        bytes = least;
    }
    const int status = multiply(bytes);
    cudaGraph_t graph;
    cudaStreamEndCapture(stream, &graph);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    describe(m, n, k, &description);
    printf(
        "%d\t%zu\t%zu\t%zu\t%ld\t%s%s\n", status, size(m, n, k), description.workspace_bytes, bytes,
        fake::calls["cudaMemsetAsync"], description.config, launches.c_str());
}

}  // namespace
"""
_MAIN = r"""
int main()
{
    static const Kernel kernels[] = {
@kernels@
    };
    for (const Kernel& kernel : kernels) add(kernel);
    const int sm_counts[] = {@sm_counts@};
    fake::static_smem = 0;
    fake::devices = sizeof sm_counts / sizeof sm_counts[0];
    for (int device = 0; device < fake::devices; ++device) {
        cudaSetDevice(device);
        fake::sm_count = sm_counts[device];
@inits@
    }
    int product, device;
    long m, n, k;
    size_t bytes;
    std::string types;
    while (std::cin >> product >> device >> m >> n >> k >> bytes >> types) {
        cudaSetDevice(device);
        codes.clear();
        for (std::stringstream words(types); std::getline(words, types, ',');) codes.push_back(types);
        switch (product) {
@cases@
        }
    }
}
"""


def by_bundles(bundles: Mapping[str, Sequence[Served]], questions: Sequence[Question], folder: Path) -> list[Answer]:
    """Answers of bundles, which one program holds, to questions."""
    sm_counts = list(dict.fromkeys(each.sm_count for each in questions))
    products: list[tuple[str, DType, str]] = []
    units, kernels, inits, cases = list[str](), list[str](), list[str](), list[str]()
    for name, served in bundles.items():
        files = dict(emit(served, name).files)
        (folder / f"{name}.h").write_text(files[f"{name}.h"])
        unit, rows = _without_kernels(files[f"{name}.cu"], f"{name}_impl")
        units.append(unit)
        kernels += rows
        inits.append(f"        if ({name}_init()) return 1;")
        functions = re.findall(r"size_t (\w+)_workspace_size\(", files[f"{name}.h"])
        kinds = dict.fromkeys((each.problem.dtype, each.problem.trans) for each in served)
        for function, (dtype, trans) in zip(functions, kinds, strict=True):
            names = f"{function}_run, {function}_workspace_size, {function}_describe, {name}_description{{}}"
            flags = f"{int(trans[0] == 't')}, {int(trans[1] == 't')}"
            call = f"answer<{dtype.value}>({names}, {flags}, m, n, k, bytes, {name.upper()}_WORKSPACE_TOO_SMALL)"
            cases.append(f"        case {len(products)}: {call}; break;")
            products.append((name, dtype, trans))
    main = _MAIN.replace("@sm_counts@", ", ".join(map(str, sm_counts)))
    for mark, lines in (("@kernels@", kernels), ("@inits@", inits), ("@cases@", cases)):
        main = main.replace(mark, "\n".join(lines))
    source, program = folder / "unit.cpp", folder / "program"
    source.write_text("".join((_HEAD, *units, _FUNCTIONS, main)))
    command = [str(COMPILER), "-std=c++20", "-O0", "-w", f"-I{FAKE}", f"-I{HEADERS}", f"-I{folder}"]
    done = subprocess.run([*command, str(source), "-o", str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    queries = []
    for each in questions:
        product = products.index((each.bundle, each.problem.dtype, each.problem.trans))
        sizes = f"{each.problem.m} {each.problem.n} {each.problem.k} {each.expected.workspace_bytes}"
        types = ",".join(launched.codes for launched in each.expected.launches)
        queries.append(f"{product} {sm_counts.index(each.sm_count)} {sizes} {types}\n")
    done = subprocess.run([program], input="".join(queries), capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    return [_answer(line) for line in done.stdout.splitlines()]


def _without_kernels(text: str, namespace: str) -> tuple[str, list[str]]:
    """The text of a bundle's functions with empty kernels, and the text of a `Kernel` for each of these."""
    rows = list[str]()

    def emptied(match: re.Match[str]) -> str:
        kernels = kernels_in(match[0])
        for kernel, cluster in kernels:
            name = kernel.partition("<")[0]
            rows.append(f'{{(const void*){namespace}::{match[1]}::{kernel}, "{name}", {cluster}}},')
        heads = dict.fromkeys(("template <auto...> " if "<" in k else "", k.partition("<")[0]) for k, _ in kernels)
        empty = "".join(f"{template}void {kernel}() {{}}\n" for template, kernel in heads)
        return f"namespace {namespace}::{match[1]} {{\n{empty}{match[2]}"

    return _KERNELS.sub(emptied, text), rows


def _answer(line: str) -> Answer:
    status, workspace_size, described, needed, clears, config, *launches = line.split("\t")
    work = Work(config, int(needed), int(clears), tuple(map(_launched, launches)))
    return Answer(int(status), work, int(workspace_size), int(described))


def _launched(text: str) -> Launched:
    kernel, grid, block, smem, codes, *arguments = text.split(" ")
    sizes = (tuple(map(int, each.split(","))) for each in (grid, block))
    return Launched(kernel, *sizes, int(smem), codes, tuple(arguments))
