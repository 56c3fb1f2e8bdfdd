"""Projects in several languages and with several settings build emitted files with CMake and nvcc, and link them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from emitted import served
from tilewright.codegen.emit import Layout, emit

NVCC, CMAKE = shutil.which("nvcc"), shutil.which("cmake")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(NVCC is None or CMAKE is None, reason="nvcc or cmake is not installed"),
]
ROWS = [
    ("simt:32x32x8,thread=4x4,split_k=3", "256x256x4096", "float", "nn"),
    ("simt:64x64x8,pack_a,pack_b", "1021x1021x1021", "float", "nn"),
]
"""Kernels that share k, pack operands and are chosen by shape, which needs a lock, memory and logarithms."""
MAIN = """#include "mul.h"
#include <stdio.h>
int main(void)
{
    int status = mul_init();
    printf("%d %zu\\n", status, mul_workspace_size(256, 256, 4096));
    return 0;
}
"""
PLUGIN = '#include "mul.h"\nint plugin_init(void) { return mul_init(); }\n'
TARGETS = """add_executable(user main.{end})
target_link_libraries(user PRIVATE mul::mul)
add_library(plugin MODULE plugin.{end})
target_link_libraries(plugin PRIVATE mul::mul)
"""


def ran(*command: str | Path) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The emitted files, built and installed into a folder `prefix`."""
    folder = tmp_path_factory.mktemp("emitted")
    emit(served(ROWS), "mul", Layout(cmake=True)).write(folder / "mul")
    ran("cmake", "-S", folder / "mul", "-B", folder / "build")
    ran("cmake", "--build", folder / "build", "-j2")
    ran("cmake", "--install", folder / "build", "--prefix", folder / "prefix")
    return folder


def project(folder: Path, languages: str, brought: str, end: str) -> None:
    """A project of a program and a module that link the emitted library."""
    head = f"cmake_minimum_required(VERSION 3.18)\nproject(user LANGUAGES {languages})\n{brought}\n"
    (folder / "CMakeLists.txt").write_text(head + TARGETS.format(end=end))
    (folder / f"main.{end}").write_text(MAIN)
    (folder / f"plugin.{end}").write_text(PLUGIN)


@pytest.mark.parametrize(("languages", "brought", "end"), [
    ("C", "find_package(mul REQUIRED)", "c"),
    ("C", 'add_subdirectory("{files}/mul" mul)', "c"),
    ("CXX CUDA", 'set(CMAKE_CUDA_SEPARABLE_COMPILATION ON)\nadd_subdirectory("{files}/mul" mul)', "cpp"),
], ids=["C, installed", "C, its files", "separable compilation"])  # fmt: skip
def test_a_project_links_the_library(files: Path, tmp_path: Path, languages: str, brought: str, end: str) -> None:
    project(tmp_path, languages, brought.format(files=files), end)
    options = (f"-DCMAKE_PREFIX_PATH={files / 'prefix'}", "-DCMAKE_CUDA_ARCHITECTURES=90")
    ran("cmake", "-S", tmp_path, "-B", tmp_path / "built", *options)
    ran("cmake", "--build", tmp_path / "built", "-j2")
    status, bytes_ = ran(tmp_path / "built" / "user").split()
    assert int(status) >= 0  # without a GPU, the error of the runtime
    assert int(bytes_) > 0
    if end == "c":  # programs without a C++ runtime load such a module
        module = tmp_path / "built" / "libplugin.so"
        needed = [line for line in ran("ldd", module).splitlines() if "stdc++" in line or "libgcc" in line]
        assert needed == []
        undefined = ran("nm", "-u", "-D", module)
        assert not [line for line in undefined.splitlines() if "_Z" in line or "guard" in line or "gxx" in line]


FORTRAN = """program user
  use, intrinsic :: iso_c_binding
  implicit none
  interface
    integer(c_int) function mul_init() bind(c)
      import :: c_int
    end function
    integer(c_size_t) function mul_workspace_size(m, n, k) bind(c)
      import :: c_size_t, c_int64_t
      integer(c_int64_t), value :: m, n, k
    end function
  end interface
  print *, mul_init(), mul_workspace_size(256_c_int64_t, 256_c_int64_t, 4096_c_int64_t)
end program
"""


@pytest.mark.skipif(shutil.which("gfortran") is None, reason="gfortran is not installed")
def test_a_project_in_fortran_links_the_library(files: Path, tmp_path: Path) -> None:
    head = "cmake_minimum_required(VERSION 3.18)\nproject(user LANGUAGES Fortran C)\nfind_package(mul REQUIRED)\n"
    (tmp_path / "CMakeLists.txt").write_text(
        head + "add_executable(user main.f90)\ntarget_link_libraries(user PRIVATE mul::mul)\n"
    )
    (tmp_path / "main.f90").write_text(FORTRAN)
    ran("cmake", "-S", tmp_path, "-B", tmp_path / "built", f"-DCMAKE_PREFIX_PATH={files / 'prefix'}")
    ran("cmake", "--build", tmp_path / "built")
    status, bytes_ = ran(tmp_path / "built" / "user").split()
    assert int(status) >= 0
    assert int(bytes_) > 0


@pytest.mark.parametrize("layout", [Layout(), Layout(split=True)], ids=["whole", "split"])
def test_two_bundles_of_one_name_in_two_shared_objects_keep_apart(tmp_path: Path, layout: Layout) -> None:
    """A program that links both runs the kernels of each, and sees only public functions."""
    for trans in ("nn", "nt"):
        folder = tmp_path / trans
        emit(served([("tiled:16", "64x48x32", "float", trans)]), "gemm", layout).write(folder)
        (folder / "who.cu").write_text(
            '#include "gemm.h"\n'
            f'extern "C" const char* kernel_of_{trans}()\n'
            "{\n    static gemm_description description;\n    gemm_describe(64, 48, 32, &description);\n"
            "    return description.kernel;\n}\n"
        )
        sources = sorted(folder.glob("*.cu"))
        library = tmp_path / f"lib{trans}.so"
        ran("nvcc", "-O1", "-std=c++17", "-arch=sm_90a", "-shared", "-Xcompiler=-fPIC", "-cudart=shared",
            *sources, "-o", library)  # fmt: skip
        exported = {line.split()[-1] for line in ran("nm", "-D", "--defined-only", library).splitlines()}
        public = set(re.findall(r"^\w[\w* ]*\b(gemm\w*)\(", (folder / "gemm.h").read_text(), re.MULTILINE))
        assert {name for name in exported if "gemm" in name} == public
    main = tmp_path / "main.c"
    main.write_text(
        "#include <stdio.h>\nconst char* kernel_of_nn(void);\nconst char* kernel_of_nt(void);\n"
        'int main(void) { printf("%s %s\\n", kernel_of_nn(), kernel_of_nt()); return 0; }\n'
    )
    ran("cc", main, "-o", tmp_path / "main", f"-L{tmp_path}", "-lnn", "-lnt", f"-Wl,-rpath,{tmp_path}")
    nn, nt = ran(tmp_path / "main").split()
    assert ("_nn_" in nn, "_nt_" in nt) == (True, True)
