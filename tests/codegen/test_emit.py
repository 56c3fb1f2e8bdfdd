"""Emitted files: their texts, how they are written, and the names that their functions may have."""

import dataclasses
import fnmatch
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
from emitted import KERNELS, SHARED_K, TMA
from quick import TYPICAL
from tilewright.codegen.bundle import Served
from tilewright.codegen.emit import Layout, emit
from tilewright.codegen.emitted import Emitted
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.families import family_named, parse
from tilewright.codegen.leaf import Edge
from tilewright.codegen.problem import Problem
from tilewright.codegen.render import render
from tilewright.codegen.reserved import refuse
from variants import WHOLE, dtypes


@cache
def emitted(
    text: str = "tiled:16",
    name: str = "gemm",
    main: bool = True,
    dtype: str = "",
    trans: str = "nn",
    shape: str = WHOLE,
) -> Emitted:
    dtype = dtype or dtypes(family_named(text.partition(":")[0]))[0].value
    config = parse(text)
    row = Served(Problem.parse(shape, dtype, trans, config.accuracy), config, TYPICAL["sm_90a"])
    return emit(row, name, Layout(main=main))


# Text


MOST_LINES = {
    ("simt:64x96x32,slices=4,slice_barriers,stages=2,l2_prefetch", "float"): 900,
    ("dmma:96x64x16,warp=48x32,stages=4", "double"): 872,
    ("wgmma:128x64x64", "float"): 1600,
}
"""Largest number of lines of a bundle of one shape by config and type: users read the files that they check in."""


@pytest.mark.fast
@pytest.mark.parametrize(("kernel", "most"), MOST_LINES.items(), ids=str)
def test_a_bundle_of_one_shape_is_no_longer_than_it_has_to_be(kernel: tuple[str, str], most: int) -> None:
    text, dtype = kernel
    assert emitted(text, main=False, dtype=dtype).files[0][1].count("\n") <= most


@pytest.mark.fast
def test_files_are_named_after_the_function() -> None:
    assert [name for name, _ in emitted(name="mul", main=False).files] == ["mul.cu", "mul.h"]
    assert [name for name, _ in emitted(name="mul").files] == ["mul.cu", "mul.h", "mul_main.cu"]


@pytest.mark.fast
def test_self_test_changes_nothing_in_the_other_files() -> None:
    assert emitted(main=True).files[:2] == emitted(main=False).files


@pytest.mark.fast
@pytest.mark.parametrize(("text", "shape"), KERNELS)
def test_kernel_is_in_the_file_under_its_own_name_and_static(text: str, shape: str) -> None:
    """The kernel's text is that of the library. The constants that depend on the instance are left out, because two
    instances make the kernel a template over them."""
    config = parse(text)
    problem = Problem.parse(shape, dtypes(type(config))[0], accuracy=config.accuracy)
    kernel = render(problem, config, TYPICAL["sm_90a"])
    code = dict(emitted(text, shape=shape).files)["gemm.cu"]
    fitted = r"(?:^constexpr .*\n)*^constexpr bool kGuarded .*\n\n^\}  // namespace\n\nextern \"C\" "
    functions, body = re.split(fitted, kernel.code[kernel.code.index("namespace {") :], flags=re.MULTILINE)
    assert functions in code
    assert "static " + body.replace('extern "C"', "static") in code
    assert 'extern "C" __global__' not in code


NEEDS = {
    "naive:": 0,
    "tiled:16": 0,
    "simt:load=registers,stages=2,fragments=single": 0,
    "simt:": 80,
    "simt:split_k=2,reduce=cluster": 90,
    TMA["nn"]: 90,
    "skinny:": 0,
    "skinny:load=cp_async,stages=2": 80,
    "dmma:mma_k=4": 80,
    "dmma:": 90,
    "tf32x3:": 80,
    "tf32x3:split_k=2,reduce=cluster": 90,
}
"""Oldest architecture that can run a kernel, by config; 0 where all can."""


@pytest.mark.fast
@pytest.mark.parametrize(("text", "arch"), NEEDS.items())
def test_an_architecture_older_than_the_kernel_needs_is_an_error(text: str, arch: int) -> None:
    errors = re.findall(
        r'#if defined\(__CUDA_ARCH__\) && __CUDA_ARCH__ < (\d+)0\n#error "(.+) needs sm_(\d+) or newer"\n#endif',
        dict(emitted(text).files)["gemm.cu"],
    )
    assert [(below, needed) for below, _, needed in errors] == [(str(arch), str(arch))] * bool(arch)
    code = dict(emitted(text).files)["gemm.cu"]
    (devices,) = re.findall(r"^    false, false, [48], (\d+, \w+), f\d\d_nn_shapes", code, re.MULTILINE)
    assert devices == f"{arch}, INT_MAX"


@pytest.mark.fast
@pytest.mark.parametrize(("text", "shape"), [*KERNELS, (TMA["nn"], WHOLE)])
def test_text_has_one_banner_and_nothing_that_the_kernel_lacks(text: str, shape: str) -> None:
    config, files = parse(text), emitted(text, shape=shape).files
    problem = Problem.parse(shape, dtypes(type(config))[0], accuracy=config.accuracy)
    fit = config.fit(problem)
    assert fit is not None
    for name, code in files:
        assert code.count("SPDX-License-Identifier: MIT") == 1
        assert len(re.findall(r"Written by tilewright|To write it again", code)) == 2
        (written,) = re.findall(r'--config\s+(?://\s+)?"([^"]*)"', code)
        assert parse(written) == config
        # Other macros would reach the files that include this one.
        defined = ["TILEWRIGHT_GEMM_H", "GEMM_VERSION"] if name.endswith(".h") else []
        assert re.findall(r"#define (\w+)", code) == defined
    kernel = re.sub(r"//.*", "", dict(files)["gemm.cu"])
    asserts = "\n".join(re.findall(r"static_assert\(.*", kernel))
    for word, present in {
        "slice": config.family == "simt" and config.get("slices") > 1,
        "kSplitK": config.split_ctas > 1,
        "stream": config.stream_ctas_per_sm > 0,
        "cluster": config.clustered,
    }.items():
        assert present or word not in asserts, word
    sections = {
        "tma_step": bool(config.boxes(problem)),
        "sum_step": config.has_workspace,
        "pad_step": fit.edge is Edge.PAD,
        "pack_step": any(config.packs),
        "term_step": config.terms > 0,
        "struct Step": fit.has_memory or bool(config.boxes(problem)),
        "struct StreamWorkspace": fit.has_memory,
        "ratios": False,
        "kSplitK": config.split_ctas > 1,
    }
    assert {word: word in kernel for word in sections} == sections
    constants = set(re.findall(r"\b(k[A-Z]\w*|[A-Z][A-Z0-9]*_?[A-Z0-9_]*)\b *=", kernel))
    for name in constants:
        assert len(re.findall(rf"\b{name}\b", kernel)) > 1, name


@pytest.mark.fast
@pytest.mark.parametrize("dtype", ["float", "double"])
def test_header_declares_the_functions(dtype: str) -> None:
    header = re.sub(r"\s+", " ", dict(emitted(dtype=dtype).files)["gemm.h"])
    matrices = f"const {dtype}* a, int64_t lda, const {dtype}* b, int64_t ldb, {dtype}* c, int64_t ldc, "
    parameters = f"{matrices}int64_t m, int64_t n, int64_t k, {dtype} alpha, {dtype} beta, "
    assert f"int gemm_run( {parameters}void* workspace, size_t workspace_bytes, cudaStream_t stream);" in header
    assert f"int gemm( {parameters}cudaStream_t stream);" in header
    assert "size_t gemm_workspace_size(int64_t m, int64_t n, int64_t k);" in header
    assert "int gemm_can_implement(int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc);" in header
    assert "int gemm_describe(int64_t m, int64_t n, int64_t k, gemm_description* description);" in header


@pytest.mark.fast
@pytest.mark.parametrize(("trans", "stored"), [("nn", "m x k, k x n"), ("tt", "k x m, n x k")])
def test_header_tells_how_the_operands_of_its_example_are_stored(trans: str, stored: str) -> None:
    assert f"*a, *b, *c;  // on the device; {stored} and m x n" in dict(emitted(trans=trans).files)["gemm.h"]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("text", "nodes"), [("tiled:16,edge=pad", "kernel nodes"), (SHARED_K, "kernel and clear nodes")]
)
def test_header_tells_which_nodes_a_graph_gets(text: str, nodes: str) -> None:
    files = dict(emitted(text).files)
    assert f"adds {nodes} alone" in files["gemm.h"]
    assert ("cudaMemsetAsync(call.counters" in files["gemm.cu"], "cudaMemcpy" in files["gemm.cu"]) == (
        "clear" in nodes,
        False,
    )


@pytest.mark.fast
def test_header_and_self_test_have_the_bound_of_the_checks() -> None:
    files = dict(emitted().files)
    assert "gamma(2) |beta| |C| + (k + 4) d" in files["gemm.h"]
    assert "(k + 4.0) * double(std::numeric_limits<T>::denorm_min())" in files["gemm_main.cu"]


@pytest.mark.fast
def test_a_single_header_says_that_each_file_that_includes_it_has_its_own_kernels() -> None:
    row = Served(Problem.parse("64"), parse("tiled:16"), TYPICAL["sm_90a"])
    ((_, text),) = emit(row, "gemm", Layout(header_only=True)).files
    assert "each that includes this has kernels and kept workspaces of its own" in text
    assert "each that includes this" not in dict(emitted().files)["gemm.h"]


@pytest.mark.fast
@pytest.mark.parametrize(("dtype", "calls"), [("float", ["cublasSgemm"]), ("double", ["cublasDgemm"])])
def test_self_test_calls_the_library_for_its_own_types_alone(dtype: str, calls: list[str]) -> None:
    assert re.findall(r"cublas[SD]gemm", dict(emitted(dtype=dtype).files)["gemm_main.cu"]) == calls


@pytest.mark.fast
@pytest.mark.parametrize(
    ("arches", "since"),
    [(("sm_75",), "11.8"), (("sm_89",), "11.8"), (("sm_90a",), "12.0"), (("sm_80", "sm_120"), "12.8")],
)
def test_header_names_a_cuda_whose_compiler_knows_the_architectures(arches: tuple[str, ...], since: str) -> None:
    rows = [Served(Problem.parse("64"), parse("tiled:16"), TYPICAL[arch]) for arch in arches]
    assert f"Compile, with CUDA {since} or newer" in dict(emit(rows, "gemm").files)["gemm.h"]


@pytest.mark.fast
def test_types_and_transposes_name_functions_where_there_are_several() -> None:
    arch = TYPICAL["sm_90a"]
    rows = [
        Served(Problem.parse("64", dtype, trans), parse("tiled:16"), arch)
        for dtype, trans in (("float", "nn"), ("float", "nt"), ("double", "nn"))
    ]
    header = dict(emit(rows, "mul").files)["mul.h"]
    assert re.findall(r"int (\w+)_run\(", header) == ["mul_f32_nn", "mul_f32_nt", "mul_f64_nn"]
    header = dict(emit(rows[:2], "mul").files)["mul.h"]
    assert re.findall(r"int (\w+)_run\(", header) == ["mul_nn", "mul_nt"]
    assert len(re.findall(r"mul_init\(void\)", header)) == 1


@pytest.mark.fast
def test_bundles_of_different_products_have_different_names() -> None:
    def names(*problems: Problem) -> list[str]:
        rows = [Served(each, parse("tiled:16"), TYPICAL["sm_80"]) for each in problems]
        return [name for name, _ in emit(rows).files]

    assert names(Problem.parse("64x48x32", "double", "nt")) == ["gemm_f64_nt_64x48x32.cu", "gemm_f64_nt_64x48x32.h"]
    graded = Served(Problem.parse("64", accuracy="normwise"), parse("tiled:16"), TYPICAL["sm_80"])
    assert emit(graded).files[0][0] == "gemm_f32_nn_64x64x64_normwise.cu"
    several = [Problem.parse("64"), Problem.parse("65")]
    assert re.fullmatch(r"gemm_[0-9a-f]{8}\.cu", names(*several)[0])
    assert names(*several) != names(*several[:1], Problem.parse("66"))


@pytest.mark.fast
def test_functions_for_batches_are_emitted_only_for_a_batched_layout() -> None:
    row = Served(Problem.parse("64"), parse("tiled:16"), TYPICAL["sm_90a"])
    plain, batched = (dict(emit(row, layout=Layout(main=True, batched=each)).files) for each in (False, True))
    assert [*batched] == [name.replace("64x64x64", "64x64x64_batched") for name in plain]
    declared = re.findall(r"64_batched_(\w+)\(", batched["gemm_f32_nn_64x64x64_batched.h"])
    assert {"run_batched", "run_pointers", "workspace_size_batched", "run", "workspace_size"} <= {*declared}
    assert not any(re.search(r"(?i)batch", text) for text in (plain["gemm_f32_nn_64x64x64.h"],))
    code = plain["gemm_f32_nn_64x64x64.cu"]
    assert "run_batched" not in code
    (kernel,) = re.findall(r"^namespace \w+::tiled.*?^}  // namespace \w+::", code, re.MULTILINE | re.DOTALL)
    assert "atch" not in kernel
    assert "--batched" in batched["gemm_f32_nn_64x64x64_batched.cu"].partition("#include")[0]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("shape", "batch", "config", "batched", "message"),
    [
        (
            "64",
            7,
            "tiled:16",
            False,
            r"64x64x64 float nn batch 7 is a batch: pass Layout\(batched=True\) \(--batched\)",
        ),
        ("1024x768x512", 1, TMA["nn"], True, "TMA copies the matrices of one product"),
        ("1024x768x512", 7, TMA["nn"], True, "nn batch 7 on sm_90a; required: TMA copies the matrices of one product"),
        ("16", 7, "small:", False, r"batch 7 is a batch: pass Layout\(batched=True\)"),
    ],
)
def test_a_kernel_that_serves_no_batch_is_refused_in_one_line(
    shape: str, batch: int, config: str, batched: bool, message: str
) -> None:
    row = Served(Problem.parse(shape, batch=batch), parse(config), TYPICAL["sm_90a"])
    with pytest.raises(ConfigError, match=message) as error:
        emit(row, layout=Layout(batched=batched))
    assert "\n" not in str(error.value)


@pytest.mark.fast
def test_the_text_of_a_kernel_does_not_depend_on_the_batch_it_was_chosen_for() -> None:
    """A bundle says for which batches its kernels were chosen. It has no recorded time of a product."""

    def files(batch: int, origin: str = "as given", us: float = 0.0) -> dict[str, str]:
        row = Served(Problem.parse("16", batch=batch), parse("small:16x2x2"), TYPICAL["sm_90a"], origin, us)
        return dict(emit(row, "gemm", Layout(main=True, batched=True)).files)

    def code(text: str) -> list[str]:
        return [line for line in text.splitlines() if "given" not in line and not line.startswith("//")]

    assert code(files(1)["gemm.cu"]) == code(files(100_000)["gemm.cu"])
    tuned = files(100_000, "tuned on a GPU", 584.0)
    assert '"for batches of 100,000: tuned on a GPU, 584.00 us", 0, 0}' in tuned["gemm.cu"]
    assert "for batches of 100,000: tuned on a GPU, 584.00 us" in tuned["gemm.h"]
    assert "--batch 100000" in tuned["gemm.cu"].partition("#include")[0]


@pytest.mark.fast
def test_shapes_that_cannot_be_one_bundle_are_refused() -> None:
    row = Served(Problem.parse("64"), parse("tiled:16"), TYPICAL["sm_90a"])
    with pytest.raises(ConfigError, match="64x64x64 float nn is given twice for sm_90a"):
        emit([row, row])
    batch = dataclasses.replace(row, problem=dataclasses.replace(row.problem, batch=9))
    with pytest.raises(ConfigError, match="64x64x64 float nn is given twice for sm_90a"):
        emit([row, batch], layout=Layout(batched=True))
    with pytest.raises(ConfigError, match=r"small:16x2x2 is for batches: pass Layout\(batched=True\) \(--batched\)"):
        emit(dataclasses.replace(row, config=parse("small:")))
    with pytest.raises(ConfigError, match="float nt has no shape for sm_80"):
        emit(
            [
                row,
                Served(row.problem, row.config, TYPICAL["sm_80"]),
                Served(Problem.parse("64", "float", "nt"), row.config, row.target),
            ]
        )
    with pytest.raises(ConfigError, match="at least one shape"):
        emit([])
    with pytest.raises(ConfigError, match="for one architecture"):
        emit([row, dataclasses.replace(row, target=TYPICAL["sm_80"])], layout=Layout(header_only=True))


@pytest.mark.fast
def test_each_kernel_is_in_a_bundle_once() -> None:
    arch = TYPICAL["sm_90a"]
    rows = [Served(Problem.parse(shape), parse("simt:64x64x16"), arch) for shape in ("65", "129", "65x3x7")]
    code = dict(emit(rows, "gemm").files)["gemm.cu"]
    assert len(re.findall("__global__ void", code)) == 1
    wide = [Served(Problem.parse(shape), parse("simt:64x64x16"), arch) for shape in ("68", "132")]
    code = dict(emit([*wide, *rows], "gemm").files)["gemm.cu"]
    assert len(re.findall("__global__ void", code)) == 1
    instances = re.findall(r"const void\*>\((gemm_\w+<.*>)\)", code)
    assert len(instances) == len(set(instances)) == 2  # the instance without vectors is the general kernel too


@pytest.mark.fast
def test_an_architecture_has_a_file_of_its_own() -> None:
    rows = [Served(Problem.parse("65"), parse("simt:64x64x16"), TYPICAL[arch]) for arch in ("sm_90a", "sm_80")]
    emitted = emit(rows, "gemm", Layout(cmake=True))
    names = ["gemm.cu", "gemm.h", "gemm_impl.h", "gemm_sm_80.cu", "gemm_sm_90a.cu", "CMakeLists.txt", "gemm.pc.in"]
    assert [name for name, _ in emitted.files] == names
    assert "__global__" not in emitted.files[0][1]
    built = re.findall(r"(gemm\w*) PROPERTIES CUDA_ARCHITECTURES ([^\s)]+)", dict(emitted.files)["CMakeLists.txt"])
    assert built == [("gemm_sm_80", "80"), ("gemm_sm_90a", "90a-real"), ("gemm_main", "80")]  # PTX for later devices
    split = emit(
        [
            *rows,
            Served(Problem.parse("63"), parse("tiled:16"), TYPICAL["sm_80"]),
            Served(Problem.parse("63"), parse("tiled:16"), TYPICAL["sm_90a"]),
        ],
        "gemm",
        Layout(split=True),
    )
    units = [re.sub(r"_[0-9a-f]{8}\.cu", "", name) for name, _ in split.files if name.startswith("gemm_sm")]
    kernels = "simt_f32_nn_64x64x16", "tiled_f32_nn_16x16x16"
    assert units == [f"gemm_{arch}_{kernel}" for arch in ("sm_80", "sm_90a") for kernel in kernels]


@pytest.mark.fast
@pytest.mark.parametrize("arches", [("sm_90a",), ("sm_80", "sm_90a")])
@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize("count", [1, 4])
def test_commands_at_the_head_compile_each_file_for_its_architecture(
    arches: tuple[str, ...], split: bool, count: int
) -> None:
    texts = ("naive:8x32", "tiled:8", "tiled:16", "tiled:32")[:count]
    rows = [
        Served(Problem.parse(str(64 + i)), parse(text), TYPICAL[arch])
        for arch in arches
        for i, text in enumerate(texts)
    ]
    files = dict(emit(rows, "gemm", Layout(main=True, split=split)).files)
    compiled = {
        name: arch
        for arch, patterns in re.findall(r"nvcc .*?(?:-arch=(\w+) )?-c (.*)", files["gemm.h"])
        for pattern in patterns.split()
        for name in fnmatch.filter(files, pattern)
    }
    kernels = {name for name, code in files.items() if "__global__" in code and name != "gemm_main.cu"}
    assert set(compiled) == kernels | {"gemm.cu"}
    for name in kernels:
        assert compiled[name] == (re.findall(r"_(sm_\d+a?)", name) or arches)[0]
    (linked,) = re.findall(r"nvcc .*-o gemm_main", files["gemm_main.cu"])
    assert ("-arch=" in linked, "gemm*.o gemm_main.cu" in linked) == (len(arches) == 1, len(arches) > 1)


@pytest.mark.fast
def test_header_says_whether_its_command_writes_the_same_kernels_again() -> None:
    rows = [Served(Problem.parse(shape), parse("tiled:16"), TYPICAL["sm_90a"]) for shape in ("64", "65")]
    tuned = [dataclasses.replace(row, origin="tuned on a device") for row in rows]
    for served, again in ((rows, False), (rows[:1], True), (tuned, True), ([rows[0], tuned[1]], False)):
        header = dict(emit(served, "gemm").files)["gemm.h"]
        assert ("To write it again:" in header, "with kernels that are looked up:" in header) == (again, not again)


@pytest.mark.fast
def test_same_input_gives_the_same_bytes() -> None:
    assert emitted("tiled:16,edge=pad") == emitted.__wrapped__("tiled:16,edge=pad")


@pytest.mark.fast
def test_empty_problem_gets_a_self_test_with_work_to_do() -> None:
    row = Served(Problem(0, 5, 0), parse("tiled:16"), TYPICAL["sm_80"])
    files = dict(emit(row, "gemm", Layout(main=True)).files)
    assert "{16, 5, 16}," in files["gemm_main.cu"]


@pytest.mark.fast
@pytest.mark.parametrize("name", ["", "1a", "a b", "../a", "a/b", "int", "é", "a" * 65, 'a"', "a\n"])
def test_name_that_is_no_identifier_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name must"):
        emitted(name=name)


@pytest.mark.fast
@pytest.mark.parametrize(
    "name",
    (
        "main malloc sqrtf memcpy index read errno cudaMalloc _a __a math stdio cuda_runtime float4 dim3 INT_MAX "
        "T Index A lda blend kTileWidth std random_matrix require Kernel run "
        "con NUL com1 lpt9 exit EXIT Cuda nvrtc MPI major linux INFINITY I errno TRUE near"
    ).split(),
)
def test_name_that_would_clash_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^name must .*got '{name}'$"):
        emitted(name=name)


@pytest.mark.fast
@pytest.mark.parametrize("name", ["gemm", "my_sgemm", "matmul", "my_project_gemm_1024", "Gemm", "dgemm_nt"])
def test_usual_names_are_free(name: str) -> None:
    for text in (KERNELS[-1][0], "tiled:16,edge=pad", "simt:pack_a,pack_b", TMA["nn"]):
        emitted(text, name, main=False)


@pytest.mark.fast
def test_the_name_of_the_kernel_is_taken() -> None:
    kernel = render(Problem.parse("1024x768x512"), parse("tiled:16"), TYPICAL["sm_90a"]).name
    with pytest.raises(ConfigError, match=rf"name must differ from the kernel's, got '{kernel}'"):
        emitted(name=kernel)


@pytest.mark.fast
def test_config_that_cannot_serve_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"dmma.* cannot serve .*the tensor cores multiply double"):
        emit(Served(Problem.parse("100"), parse("dmma:"), TYPICAL["sm_90a"]))


# Files


@pytest.mark.fast
def test_files_are_written_and_written_again(tmp_path: Path) -> None:
    files = emitted()
    paths = files.write(tmp_path / "new" / "folder")
    assert [(path.name, path.read_bytes().decode()) for path in paths] == list(files.files)
    assert files.write(tmp_path / "new" / "folder") == paths
    assert sorted(path.name for path in paths[0].parent.iterdir()) == ["gemm.cu", "gemm.h", "gemm_main.cu"]


@pytest.mark.fast
def test_own_untouched_files_are_replaced_by_another_kernel(tmp_path: Path) -> None:
    emitted("naive:").write(tmp_path)
    (path, *_) = emitted("tiled:16").write(tmp_path)
    assert "kTileWidth" in path.read_text()


@pytest.mark.fast
def test_a_file_of_another_bundle_stays(tmp_path: Path) -> None:
    one, two = (
        emit(Served(Problem.parse("64"), parse("tiled:16"), TYPICAL["sm_90a"]), name, Layout(cmake=True))
        for name in ("one", "two")
    )
    one.write(tmp_path)
    with pytest.raises(ConfigError, match=r"CMakeLists.txt is of one: not overwritten"):
        two.write(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["CMakeLists.txt", "one.cu", "one.h", "one.pc.in"]
    two.write(tmp_path, overwrite=True)
    assert "project(two " in (tmp_path / "CMakeLists.txt").read_text()


@pytest.mark.fast
def test_line_ends_of_a_checkout_are_no_edit(tmp_path: Path) -> None:
    (path, *_) = emitted().write(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    emitted().write(tmp_path)


@pytest.mark.fast
@pytest.mark.parametrize("edit", ["foreign", "edited", "digest", "binary", "empty"])
@pytest.mark.parametrize("which", ["gemm.cu", "gemm.h", "gemm_main.cu"])
def test_foreign_and_edited_files_stay_and_nothing_else_is_written(tmp_path: Path, edit: str, which: str) -> None:
    (tmp_path / which).write_text(dict(emitted().files)[which])
    text = (tmp_path / which).read_text()
    content = {
        "foreign": b"int main() {}\n",
        "edited": (text + "// mine\n").encode(),
        "digest": re.sub(r"(file digest )\w", r"\1z", text).encode(),
        "binary": b"\xff\x00\xfe",
        "empty": b"",
    }[edit]
    (tmp_path / which).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{which} is not tilewright's or was edited since: not overwritten without"):
        emitted().write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [which]
    assert (tmp_path / which).read_bytes() == content
    emitted().write(tmp_path, overwrite=True)
    assert (tmp_path / which).read_text() == text


@pytest.mark.fast
@pytest.mark.timeout(20)  # opening a pipe to read it would wait for a writer
@pytest.mark.parametrize("kind", ["pipe", "device", "gigabytes"])
def test_a_special_file_stays_and_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "gemm.cu"
    {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "gigabytes": lambda: (path.touch(), os.truncate(path, 5 << 30)),
    }[kind]()
    before = path.lstat()
    with pytest.raises(ConfigError, match=r"gemm.cu is not tilewright's or was edited since: not overwritten without"):
        emitted().write(tmp_path)
    assert path.lstat() == before
    emitted().write(tmp_path, overwrite=True)
    assert path.read_text() == dict(emitted().files)["gemm.cu"]


@pytest.mark.fast
@pytest.mark.parametrize("exists", [True, False])
def test_link_may_be_replaced_but_is_never_followed(tmp_path: Path, exists: bool) -> None:
    outside = tmp_path / "outside.cu"
    if exists:
        outside.write_text(emitted().files[0][1])
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "gemm.cu").symlink_to(outside)
    with pytest.raises(ConfigError, match="not overwritten"):
        emitted("naive:").write(folder)
    emitted("naive:").write(folder, overwrite=True)
    assert not (folder / "gemm.cu").is_symlink()
    assert outside.exists() == exists
    assert not exists or outside.read_text() == emitted().files[0][1]


@pytest.mark.fast
@pytest.mark.parametrize("name", ["../a.cu", "/a.cu", "a/b.cu", "a.py", ".cu", "a.cu\n", "", "..", "con.h.sh"])
def test_filename_with_a_folder_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="not the name of an emitted file"):
        Emitted(((name, ""),))


@pytest.mark.fast
def test_folder_in_the_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gemm.h").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        emitted().write(tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["gemm.h"]


@pytest.mark.fast
def test_file_in_the_place_of_the_folder_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        emitted().write(tmp_path / "file")


# ---- Names that macros, C, CUDA or systems take -----------------------------------------------------------------


HEADERS = (
    "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic "
    "stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time uchar wchar wctype dirent dlfcn fcntl "
    "libgen poll pthread sched strings syslog termios unistd sys/mman sys/socket sys/stat sys/time sys/types sys/wait"
).split()
CUDA = Path("/usr/local/cuda/include")


def taken(name: str) -> bool:
    try:
        refuse(name)
    except ConfigError:
        return True
    return False


def preprocessed(compiler: str, *arguments: str, text: str) -> str:
    command = [compiler, *arguments, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=60).stdout


def macros(compiler: str, *arguments: str, text: str) -> list[str]:
    """Names of all macros that a text and the headers that it includes define."""
    return re.findall(r"#define (\w+)", preprocessed(compiler, *arguments, "-dM", "-E", text=text))


def test_every_macro_of_the_headers_of_c_and_posix_is_refused() -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    text = "".join(f"#if __has_include(<{header}.h>)\n#include <{header}.h>\n#endif\n" for header in HEADERS)
    names = macros(compiler, "-x", "c", "-std=gnu17", "-D_GNU_SOURCE", text=text)
    assert len(names) > 1000
    assert [name for name in names if not taken(name)] == []


def test_every_macro_of_the_headers_of_cuda_is_refused() -> None:
    compiler = shutil.which("g++")
    if compiler is None or not (CUDA / "cuda_runtime.h").exists():
        pytest.skip("needs g++ and the headers of CUDA")
    text = "#include <cuda.h>\n#include <cuda_runtime.h>\n#include <cuda_fp16.h>\n"
    names = macros(compiler, "-x", "c++", "-std=c++17", f"-I{CUDA}", text=text)
    assert any(name.startswith("cu") for name in names)
    assert [name for name in names if not taken(name)] == []


def test_every_header_that_headers_read_is_refused() -> None:
    compiler = shutil.which("g++")
    if compiler is None or not (CUDA / "cuda_runtime.h").exists():
        pytest.skip("needs g++ and the headers of CUDA")
    text = "#include <algorithm>\n#include <cstdlib>\n#include <mutex>\n#include <cuda_runtime.h>\n"
    rule = preprocessed(compiler, "-x", "c++", f"-I{CUDA}", "-M", text=text)
    headers = re.findall(r"/(?:include|x86_64-linux-gnu|aarch64-linux-gnu)/(\w+)\.h\b", rule)
    assert "endian" in headers
    assert [name for name in headers if not taken(name)] == []


@pytest.mark.parametrize(
    "name",
    "typeof typeof_unqual restrict inline thread_local M_PI M_PIf CON con Com1 LPT9 NULL errno major linux unix I "
    "PRId64 atomicCAS clock64 float4 make_float2 tex2D cublasSgemm cuMemAlloc cuda_gemm nv_gemm sinpi rsqrtf GEMM A1 "
    "exit _gemm tilewright_gemm stdio and_eq clean help install test Threads "
    "sgemm Sgemm dgemm_ saxpy ddot cblas_sgemm xerbla xerbla_ sgesv dgesv_ cgemm3m strsm dsyrk idamax dznrm2 dpotrf "
    "dgetrs dgeqrf dsyevd dgees lapacke_dgesv dgemmt dgemmtr dlamch dlange_ slacpy lsame ilaenv domatcopy".split(),
)
def test_names_that_are_taken(name: str) -> None:
    assert taken(name)


@pytest.mark.parametrize(
    "name",
    "gemm sgemm_nt Gemm my_gemm mul product MyGemm dgemm_nt gemmF32 strassen issue to_c dot int8_gemm a cores stride "
    "sparse dense space stream step spmm solve general "
    f"{'a' * 64}".split(),
)
def test_names_that_are_free(name: str) -> None:
    assert not taken(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "1a",
        "a b",
        "a-b",
        "a;b",
        "a\n",
        "../a",
        "é",
        "a" * 65,
        "int",
        "template",
        "co_await",
        "*/",
        "a//",
        '"',
    ],
)
def test_hostile_identifier_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name must"):
        refuse(name)
