"""Selection of the device that a user means, and opening it."""

import importlib.util
import re
import warnings
from functools import cache

from ...codegen.errors import DeviceError, check, check_type
from . import nvml
from .host import HostDevice
from .host_compiler import HostCompiler
from .host_info import host_info
from .protocol import Compiler, Device, DeviceInfo

_SELECTOR = re.compile(r"auto|host|cuda(:\d{1,3})?")
_INSTALL = "pip install 'tilewright[cuda13]' (or [cuda12] for a CUDA 12 driver)"


def choose(selector: str) -> DeviceInfo:
    """The device called auto, cuda, cuda:N or host; touches no device.

    auto is the first GPU, else the processor, with a warning where it passes over a GPU that it cannot use. A GPU that
    was selected is never replaced by the processor. Raises DeviceError, in one line that names what is missing and how
    to get it.
    """
    if not isinstance(selector, str) or not _SELECTOR.fullmatch(selector):
        remedy = "the processor is 'host', a GPU 'cuda' or 'cuda:1'"
        raise DeviceError(f"device must be auto, cuda, cuda:N or host, got {selector!r}: {remedy}")
    if selector.startswith("cuda"):
        infos = _cuda_infos()
        index = int(selector.partition(":")[2] or 0)
        check(index < len(infos), f"device {selector} does not exist: this machine has {len(infos)} GPUs", DeviceError)
        return infos[index]
    if selector == "auto" and nvml.gpu_count():
        try:
            return _cuda_infos()[0]
        except DeviceError as error:
            text = f"an NVIDIA GPU is present but not used: {error}; going on with the host device"
            warnings.warn(text, stacklevel=2)
    return host_info()


def available() -> tuple[tuple[DeviceInfo, ...], str]:
    """Every device of this machine, and the reason why no GPU is among them, empty if there are some."""
    try:
        return (*_cuda_infos(), host_info()), ""
    except DeviceError as error:
        return (host_info(),), str(error)


def _cuda_infos() -> tuple[DeviceInfo, ...]:
    if importlib.util.find_spec("cupy") is None:
        missing = "" if nvml.gpu_count() else "no NVIDIA driver answers, and "
        raise DeviceError(f"device cuda: {missing}CuPy is not installed; get it with {_INSTALL}")
    check(nvml.gpu_count() > 0, "device cuda: no NVIDIA GPU or driver answers on this machine", DeviceError)
    try:
        from .cuda import cuda_infos
    except ImportError as error:
        raise DeviceError(f"device cuda: CuPy cannot be loaded ({error}); get it with {_INSTALL}") from error
    infos = cuda_infos()
    check(bool(infos), "device cuda: CUDA shows no GPU (is CUDA_VISIBLE_DEVICES set?)", DeviceError)
    return infos


def device_of(selector: str) -> Device:
    """The device that auto, cuda, cuda:N or host selects, opened once. Raises DeviceError, ArgumentTypeError."""
    check_type("device", selector, str, "auto, cuda, cuda:N or host")
    return _opened(selector)


@cache
def _opened(selector: str) -> Device:
    info = choose(selector)
    return open_device(info) if info.selector == selector else _opened(info.selector)


def open_device(info: DeviceInfo) -> Device:
    """Open a device. Raises DeviceError."""
    if info.arch.is_host:
        return HostDevice()
    from .cuda import CudaDevice

    return CudaDevice(info)


def compiler_for(info: DeviceInfo) -> Compiler:
    """The compiler for a device, which is not opened. Raises DeviceError."""
    if info.arch.is_host:
        return HostCompiler()
    from .cuda import NvrtcCompiler

    return NvrtcCompiler(info.arch.name)
