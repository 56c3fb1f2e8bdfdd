"""Rivals: the libraries that a device's kernels can be compared with, and the products of each."""

import platform
from collections.abc import Iterable
from importlib import metadata

from ...codegen.errors import DeviceError
from ...codegen.problem import Grade, Problem
from ...runtime.device.cublaslt import cublaslt_name
from ...runtime.device.protocol import Device, Elements, Launch
from ...runtime.store.versions import versions_of
from .concatenated import Concatenated
from .rows import TITLES, Setting

_OF_GRADE = {Grade.NORMWISE: ("hgemm3k", "tf32"), Grade.ELEMENTWISE: ("bgemm6k", "tf32")}
"""Further rivals of float products, by accuracy."""


def setting(device: Device, grades: Iterable[Grade] = ()) -> Setting:
    """The rivals on a device for problems of these grades of accuracy, and the versions of all libraries."""
    missing = []
    rivals: dict[str, str] = {}
    with device.entered():
        for key in ("numpy",) if device.info.arch.is_host else ("cublas", "cublaslt"):
            try:
                rivals[key] = cublaslt_name() if key == "cublaslt" else device.vendor_name
            except DeviceError as error:
                missing.append(f"{TITLES[key]} is not timed: {error}")
    versions = dict(versions_of(device.info, device.compiler))
    versions |= {"python": platform.python_version(), device.xp.__name__: device.xp.__version__, **rivals}
    if "cublaslt" in rivals:
        versions["nvmath-python"] = metadata.version("nvmath-python")
    more = [key for grade in Grade if grade in set(grades) for key in _OF_GRADE.get(grade, ())]
    keys = (*rivals, *(dict.fromkeys(more) if "cublas" in rivals else ()))
    return Setting(keys, tuple(sorted(versions.items())), tuple(missing))


def meets(key: str, problem: Problem) -> bool:
    """Whether a rival is compared on this problem."""
    special = {each for keys in _OF_GRADE.values() for each in keys}
    return key not in special or key in _OF_GRADE.get(problem.accuracy, ())


def rival(device: Device, problem: Problem, key: str) -> Launch:
    """The launch of one product by any rival but cuBLASLt, which has several kernels. Raises DeviceError, LaunchError
    and CompileError."""
    if key == "tf32":
        return device.vendor(problem, Elements.TF32)
    if key in ("hgemm3k", "bgemm6k"):
        return Concatenated(device, problem, problem.accuracy).launch
    return device.vendor(problem)
