"""Names of emitted functions: those that macros, C, CUDA or systems have are refused, others are not."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tilewright.codegen.errors import ConfigError
from tilewright.codegen.reserved import refuse

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
    """All that are defined once these headers are read."""
    return re.findall(r"#define (\w+)", preprocessed(compiler, *arguments, "-dM", "-E", text=text))


def test_every_macro_of_the_headers_of_c_and_posix_is_refused() -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    there = "".join(f"#if __has_include(<{header}.h>)\n#include <{header}.h>\n#endif\n" for header in HEADERS)
    found = macros(compiler, "-x", "c", "-std=gnu17", "-D_GNU_SOURCE", text=there)
    assert len(found) > 1000
    assert [name for name in found if not taken(name)] == []


def test_every_macro_of_the_headers_of_cuda_is_refused() -> None:
    compiler = shutil.which("g++")
    if compiler is None or not (CUDA / "cuda_runtime.h").exists():
        pytest.skip("needs g++ and the headers of CUDA")
    text = "#include <cuda.h>\n#include <cuda_runtime.h>\n#include <cuda_fp16.h>\n"
    found = macros(compiler, "-x", "c++", "-std=c++17", f"-I{CUDA}", text=text)
    assert any(name.startswith("cu") for name in found)
    assert [name for name in found if not taken(name)] == []


def test_every_header_that_headers_read_is_refused() -> None:
    compiler = shutil.which("g++")
    if compiler is None or not (CUDA / "cuda_runtime.h").exists():
        pytest.skip("needs g++ and the headers of CUDA")
    text = "#include <algorithm>\n#include <cstdlib>\n#include <mutex>\n#include <cuda_runtime.h>\n"
    found = preprocessed(compiler, "-x", "c++", f"-I{CUDA}", "-M", text=text)
    headers = re.findall(r"/(?:include|x86_64-linux-gnu|aarch64-linux-gnu)/(\w+)\.h\b", found)
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
def test_names_that_others_have(name: str) -> None:
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
