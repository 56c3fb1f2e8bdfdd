"""`tilewright emit`: files for other projects."""

import re
import shlex
from pathlib import Path

import pytest
from commands import Run
from stored import INFO, make
from tilewright.codegen.problem import Problem
from tilewright.runtime.store.store import Store


@pytest.fixture
def store_options(tmp_path: Path) -> tuple[str, ...]:
    """Options that name a store with one record, of an A10, and a folder to write to."""
    Store(tmp_path / "own").keep(make(10.0, Problem(24, 20, 16), device="nvidia-a10"))
    return ("--store", str(tmp_path / "own"), "-o", str(tmp_path / "new" / "out"))


def test_what_ships_for_an_architecture_needs_no_gpu(run: Run, tmp_path: Path) -> None:
    ran = run("emit", "--shape", "4096", "--arch", "sm_90a", "-o", str(tmp_path))
    assert ran.status == 0
    assert re.search(
        r"^4096x4096x4096 float nn for sm_90a: simt:.*\(tuned on nvidia-h200, [\d,.]+ us\)$", ran.out, re.M
    )
    assert ran.err == "note: sm_90a: records of nvidia-h200 (--device-key names another: nvidia-h100-80gb-hbm3)\n"
    assert "tuned on nvidia-h200" in (tmp_path / "gemm_f32_nn_4096x4096x4096.h").read_text()


@pytest.mark.parametrize(
    ("options", "most_lines"), [((), 900), (("--dtype", "double"), 950), (("--accuracy", "normwise"), 1660)]
)
def test_a_bundle_of_one_shape_is_short(run: Run, tmp_path: Path, options: tuple[str, ...], most_lines: int) -> None:
    """A person reads these files and checks them in: the tuned kernel, the general kernel and the launcher."""
    ran = run("emit", "--shape", "1024x768x512", "--arch", "sm_90a", *options, "-o", str(tmp_path))
    assert ran.status == 0, ran.err
    (code,) = tmp_path.glob("*.cu")
    assert 0.9 * most_lines < len(code.read_text().splitlines()) <= most_lines


def test_the_nearest_tuned_shape_is_named(run: Run, store_options: tuple[str, ...], tmp_path: Path) -> None:
    ran = run("emit", "--shape", "24x20x16", "--shape", "25x20x16", "--arch", "sm_86", "--name", "gemm", *store_options)
    assert ran.status == 0
    assert "24x20x16 float nn for sm_86: tiled:4,unroll=1 (tuned on nvidia-a10, 10.00 us)" in ran.out
    assert "25x20x16 float nn for sm_86: tiled:4,unroll=1 (as tuned for 24x20x16 on nvidia-a10)" in ran.out
    assert sorted(path.name for path in (tmp_path / "new" / "out").iterdir()) == ["gemm.cu", "gemm.h"]


def test_where_nothing_was_tuned_a_model_chooses_and_a_note_says_so(run: Run, tmp_path: Path) -> None:
    ran = run("emit", "--shape", "1000", "--arch", "sm_120", "-o", str(tmp_path))
    assert ran.status == 0
    assert "(predicted by what was measured for other shapes)" in ran.out
    assert ran.err == "note: nothing was tuned for sm_120: a model chooses as for nvidia-geforce-rtx-5090\n"


def test_one_of_several_devices_of_an_architecture_is_named(run: Run, store_options: tuple[str, ...]) -> None:
    store = Store(Path(store_options[1]))
    for n in (20, 30):
        store.keep(make(5.0, Problem(24, n, 16), device="nvidia-geforce-rtx-3090"))
    ran = run("emit", "--shape", "24x20x16", "--arch", "sm_86", *store_options)
    assert "tuned on nvidia-geforce-rtx-3090, 5.00 us" in ran.out
    assert ran.err == ("note: sm_86: records of nvidia-geforce-rtx-3090 (--device-key names another: nvidia-a10)\n")
    ran = run("emit", "--shape", "24x20x16", "--device-key", "nvidia-a10", *store_options)
    assert (ran.err, "tuned on nvidia-a10, 10.00 us" in ran.out) == ("", True)


def test_a_device_of_the_users_own_is_named_with_its_architecture(run: Run, store_options: tuple[str, ...]) -> None:
    Store(Path(store_options[1])).keep(make(5.0, Problem(24, 20, 16), device="nvidia-abacus"))
    ran = run("emit", "--shape", "24x20x16", "--device-key", "nvidia-abacus", *store_options)
    assert (ran.status, ran.err.count("\n")) == (2, 1)
    assert "name its architecture by --arch" in ran.err
    ran = run("emit", "--shape", "24x20x16", "--device-key", "nvidia-abacus", "--arch", "sm_86", *store_options)
    assert "tuned on nvidia-abacus, 5.00 us" in ran.out


def test_the_gpu_of_the_machine_is_the_target_where_none_is_named(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.cli.options.choose", lambda selector: INFO)
    ran = run("emit", "--shape", "1024", "-o", str(tmp_path))
    assert "1024x1024x1024 float nn for sm_90a" in ran.out
    assert "tuned on nvidia-h200" in ran.out


@pytest.mark.parametrize(
    "options",
    [
        ("--shape", "1024", "--arch", "sm_90a"),
        ("--shape", "24x20x16", "--device-key", "nvidia-a10", "--store", "own"),
        ("--config", "tiled:16", "--arch", "sm_80", "--arch", "sm_90a"),
        ("--suite", "my own.toml", "--arch", "sm_80"),
    ],
    ids=["tuned", "store", "config", "suite"],
)
def test_the_command_of_a_file_writes_the_same_file(
    run: Run, store_options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my own.toml").write_text('title = "mine"\nshapes = ["64", "100x16x52"]\n')
    assert run("emit", *options).status == 0
    path = min(Path().glob("gemm*.cu"), key=lambda each: len(each.name))  # the one with the functions
    (again,) = re.findall(r"tilewright (emit .*)", path.read_text())
    ran = run(*shlex.split(again), "-o", "again")
    assert (ran.status, Path("again", path).read_text()) == (0, path.read_text()), ran.err


def test_a_suite_in_both_types_as_a_project(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('title = "mine"\nshapes = ["64", "1000x16x512"]\n')
    command = ("emit", "--name", "mul", "--suite", str(tmp_path / "own.toml"), "--dtype", "float", "--dtype", "double")
    ran = run(*command, "--arch", "sm_80", "--arch", "sm_90a", "--cmake", "--main", "-o", str(tmp_path / "out"))
    assert ran.status == 0
    names = "CMakeLists.txt mul.cu mul.h mul.pc.in mul_impl.h mul_main.cu mul_sm_80.cu mul_sm_90a.cu".split()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    assert ran.out.count(" for sm_80: ") == ran.out.count(" for sm_90a: ") == 4
    (again,) = re.findall(r"tilewright (emit .*)", (tmp_path / "out" / "mul_main.cu").read_text())
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert run(*again.split(), "-o", str(tmp_path / "out")).status == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_suite_of_several_types_is_written_again_by_its_command(run: Run, tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("m,n,k,dtype,trans\n64,64,64,,\n100,16,52,double,nt\n")
    command = ("emit", "--suite", str(tmp_path / "own.csv"), "--shape", "65", "--trans", "tn", "--arch", "sm_80")
    ran = run(*command, "--name", "gemm", "-o", str(tmp_path / "out"))
    assert ran.status == 0, ran.err
    assert ran.out.count(" for sm_80: ") == 3
    (again,) = re.findall(r"tilewright (emit .*)", (tmp_path / "out" / "gemm.cu").read_text())
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert run(*again.split(), "-o", str(tmp_path / "out")).status == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_config_by_name_with_its_self_test(run: Run, tmp_path: Path) -> None:
    config = "tiled:8"
    options = ("--arch", "sm_80", "--dtype", "double", "--name", "my_gemm", "--main", "-o", str(tmp_path))
    ran = run("emit", "--config", config, *options)
    assert (ran.status, ran.err) == (0, "")  # no note on whose records choose
    assert "8x8x8 double nn for sm_80: tiled:8 (as given)" in ran.out
    names = ["my_gemm.cu", "my_gemm.h", "my_gemm_main.cu"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert "double alpha, double beta, cudaStream_t stream);" in (tmp_path / "my_gemm.h").read_text()


def test_a_header_alone(run: Run, tmp_path: Path) -> None:
    assert run("emit", "--shape", "64", "--arch", "sm_80", "--header-only", "-o", str(tmp_path)).status == 0
    assert [path.name for path in tmp_path.iterdir()] == ["gemm_f32_nn_64x64x64.cuh"]


def test_a_file_edited_by_hand_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    command = ("emit", "--shape", "5", "--arch", "sm_80", "--name", "gemm", "-o", str(tmp_path))
    assert run(*command).status == 0
    assert run(*command).status == 0
    edited = (tmp_path / "gemm.cu").read_text() + "// mine\n"
    (tmp_path / "gemm.cu").write_text(edited)
    ran = run(*command)
    assert ran.status == 2
    assert "gemm.cu" in ran.err
    assert (tmp_path / "gemm.cu").read_text() == edited
    assert run(*command, "--overwrite").status == 0


def test_a_full_disk_leaves_the_files_as_they_were(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("emit", "--arch", "sm_80", "--name", "gemm", "-o", str(tmp_path))
    assert run(*command, "--shape", "64", "--main").status == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    written = []

    def full(path: Path, data: bytes) -> Path:
        if path.name == "gemm_main.cu":
            raise OSError(28, "No space left on device", str(path))
        written.append(path.name)
        return original(path, data)

    from tilewright.codegen import emitted

    original = emitted.written_aside
    monkeypatch.setattr(emitted, "written_aside", full)
    ran = run(*command, "--config", "tiled:32", "--main")
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert f"{tmp_path}/gemm_main.cu" in ran.err
    assert "No space left on device" in ran.err
    assert written == ["gemm.cu", "gemm.h"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_kernel_that_serves_no_batch_gives_way(run: Run, tmp_path: Path) -> None:
    """Products with a narrow C have records of kernels that copy by TMA, and those serve no batch."""
    command = ("emit", "--shape", "4096x16x4096", "--arch", "sm_90a", "-o", str(tmp_path))
    assert "load=tma" in run(*command).out
    ran = run(*command, "--batched")
    assert (ran.status, "load=tma" in ran.out) == (0, False)
    assert re.search(r"^4096x16x4096 float nn for sm_90a: \w+:.* \(predicted by", ran.out, re.MULTILINE)


def test_kernels_are_chosen_for_a_batch(run: Run, tmp_path: Path) -> None:
    """A batch is named by --batch, or by an entry of a suite."""
    suite = tmp_path / "suite.csv"
    suite.write_text("m,n,k,batch\n16,16,16,100000\n100,200,300,1\n")
    where = "--device-key", "nvidia-h100-80gb-hbm3"
    for name, products in (("own", ("--shape", "16", "--batch", "100000")), ("suite", ("--suite", str(suite)))):
        ran = run("emit", *products, *where, "--name", "gemm", "-o", str(tmp_path / name))
        assert ran.status == 0, ran.err
        assert re.search(r"^16x16x16 float nn batch 100000 for sm_90a: small:", ran.out, re.MULTILINE)
        assert "gemm_run_batched(" in (tmp_path / name / "gemm.h").read_text()
    command = (tmp_path / "own" / "gemm.cu").read_text().partition("#include")[0]
    written = re.search(r"tilewright (emit .*)", command)
    assert written is not None
    assert run(*shlex.split(written[1]), "-o", str(tmp_path / "own")).status == 0


def test_a_variant_of_one_shape_needs_that_shape(run: Run, tmp_path: Path) -> None:
    command = "emit", "--config", "small:16x2x2", "--batch", "10", "--arch", "sm_90a", "-o", str(tmp_path)
    ran = run(*command)
    assert (ran.status, ran.err) == (2, "tilewright: small:16x2x2 is for one shape: name it by --shape\n")
    assert run(*command, "--shape", "16").status == 0


def test_several_variants_are_emitted_together(run: Run, tmp_path: Path) -> None:
    configs = "--config", "tiled:16", "--config", "naive:8x32"
    ran = run("emit", *configs, "--arch", "sm_80", "-o", str(tmp_path / "own"))
    assert ran.status == 0, ran.err
    assert "16x16x16 float nn for sm_80: tiled:16 (as given)" in ran.out
    assert "8x32x1 float nn for sm_80: naive:8x32 (as given)" in ran.out
    options = "--shape", "100", "--shape", "200", "--arch", "sm_80", "-o", str(tmp_path / "shapes")
    ran = run("emit", *configs, *options)
    assert ran.status == 0, ran.err
    assert "100x100x100 float nn for sm_80: tiled:16 (as given)" in ran.out
    assert "200x200x200 float nn for sm_80: naive (as given)" in ran.out.replace("naive:8x32", "naive")
    for more in (("--shape", "100"), ("--shape", "100", "--shape", "200", "--dtype", "float", "--dtype", "double")):
        ran = run("emit", *configs, *more, "--arch", "sm_80", "-o", str(tmp_path / "refused"))
        assert (ran.status, ran.out) == (2, "")
        assert ran.err.startswith("tilewright: --config names 2 variants for ")
