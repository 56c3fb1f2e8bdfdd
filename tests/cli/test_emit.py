"""`tilewright emit`: a .cu and .h pair."""

from pathlib import Path

from commands import Run
from stored import make
from tilewright.codegen.problem import Problem
from tilewright.runtime.device.detect import choose
from tilewright.runtime.store.store import Store


def test_the_tuned_kernel(run: Run, tmp_path: Path) -> None:
    Store(tmp_path / "kept").keep(make(10.0, Problem(24, 20, 16), device=choose("host").info.key))
    where = ("--store", str(tmp_path / "kept"), "--device", "host", "-o", str(tmp_path / "new" / "out"))
    ran = run("emit", "--shape", "24x20x16", *where)
    assert ran.status == 0
    assert "(exact, host" in ran.out
    assert sorted(path.name for path in (tmp_path / "new" / "out").iterdir()) == ["gemm.cu", "gemm.h"]
    assert "(nearest 24x20x16, host" in run("emit", "--shape", "25x20x16", *where, "--name", "near").out


def test_a_config_by_name_with_its_self_test(run: Run, tmp_path: Path) -> None:
    config = "tiled:8,edge=exact"
    options = ("--arch", "sm_80", "--dtype", "double", "--name", "my_gemm", "--main", "-o", str(tmp_path))
    ran = run("emit", "--config", config, *options)
    assert ran.status == 0
    assert "tiled:8,edge=exact (as given" in ran.out
    names = ["my_gemm.cu", "my_gemm.h", "my_gemm_main.cu"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert "double beta, void* stream);" in (tmp_path / "my_gemm.h").read_text()


def test_what_was_edited_by_hand_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    command = ("emit", "--shape", "5", "--device", "host", "-o", str(tmp_path))
    assert run(*command).status == 0
    assert run(*command).status == 0
    edited = (tmp_path / "gemm.cu").read_text() + "// mine\n"
    (tmp_path / "gemm.cu").write_text(edited)
    ran = run(*command)
    assert ran.status == 2
    assert "gemm.cu" in ran.err
    assert (tmp_path / "gemm.cu").read_text() == edited
    assert run(*command, "--overwrite").status == 0
