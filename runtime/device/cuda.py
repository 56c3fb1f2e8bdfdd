"""The `cuda` device: NVIDIA GPUs through CuPy. The only module that imports CuPy."""

import ctypes
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cupy
from cupy.cuda import nvrtc
from cupy_backends.cuda.api import driver
from cupy_backends.cuda.api.driver import CUDADriverError
from cupy_backends.cuda.api.runtime import CUDARuntimeError
from numpy.typing import NDArray

from ...codegen.arch import ARCHES, Arch
from ...codegen.config import MAX_STATIC_SMEM_BYTES
from ...codegen.errors import CompileError, DeviceError, DeviceFaultError, LaunchError, check
from ...codegen.problem import DType
from ...codegen.source import KernelSource, LaunchConfig, TensorBox
from ..locks import CachedProperty
from . import nvml
from .cache import compile_cached
from .cublas import Cublas
from .driver import (
    capture_of,
    driver_launch,
    driver_launches,
    encoded_map,
    end_of_graph,
    load_now,
    pdl_works,
    relaxed_capture,
    stream_identity,
)
from .elf import kernel_resources
from .protocol import Binary, Buffer, Device, DeviceInfo, Launcher
from .stopwatch import HOLD, HOLD_NAME, Stopwatch

# Errors, as CUresult and cudaError number them, after which the context still works; any other is sticky.
_RESOURCE_ERRORS = frozenset({1, 2, 9, 98, 200, 209, 218, 222, 300, 301, 400, 500, 701, 801, 900, 901})
_DYNAMIC_SMEM = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """Raise CUDA's errors as LaunchError, or as DeviceFaultError where the context is no longer usable."""
    try:
        yield
    except (CUDADriverError, CUDARuntimeError) as error:
        raise _error(what, error) from error
    except cupy.cuda.memory.OutOfMemoryError as error:
        raise LaunchError(f"{what}: {error}") from error


def _error(what: str, error: Any) -> LaunchError:
    kind = LaunchError if error.status in _RESOURCE_ERRORS else DeviceFaultError
    return kind(f"{what}: {error}")


@dataclass(frozen=True, slots=True)
class NvrtcCompiler:
    """A Compiler by NVRTC, straight to machine code; needs no GPU."""

    arch: str
    """Architecture, such as `sm_90a`."""
    suffix = "cubin"

    @property
    def flags(self) -> tuple[str, ...]:
        return (f"-arch={self.arch}", "-std=c++17")

    @property
    def identity(self) -> str:
        return f"nvrtc {'.'.join(map(str, nvrtc.getVersion()))} {' '.join(self.flags)}"

    def build(self, source: KernelSource, folder: str) -> Binary:
        start = time.perf_counter()
        program = nvrtc.createProgram(source.code, f"{source.name}.cu", (), ())
        try:
            try:
                nvrtc.compileProgram(program, self.flags)
            except nvrtc.NVRTCError as error:
                log = nvrtc.getProgramLog(program)
                first = next((line for line in log.splitlines() if "error" in line), str(error))
                raise CompileError(f"{source.name} does not compile: {first}", log) from error
            image = nvrtc.getCUBIN(program)
        finally:
            nvrtc.destroyProgram(program)
        Path(folder, "kernel.cubin").write_bytes(image)
        # NVRTC's log is empty where its own cache had the text, so the binary is read.
        resources = kernel_resources(image, source.name, ARCHES[self.arch].smem_reserved_bytes)
        return Binary(image, *resources, seconds=time.perf_counter() - start)


@cache
def cuda_infos() -> tuple[DeviceInfo, ...]:
    """Every NVIDIA GPU of this machine that CUDA can use, without creating a context.

    Raises DeviceError that names what is missing.
    """
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except CUDARuntimeError as error:
        raise DeviceError(f"CUDA cannot start: {error}") from error
    return tuple(_info(index) for index in range(count))


def _info(index: int) -> DeviceInfo:
    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(index)

    def attribute(name: str) -> int:
        return int(runtime.deviceGetAttribute(getattr(runtime, f"cudaDevAttr{name}"), index))

    capability = properties["major"], properties["minor"]
    version = runtime.driverGetVersion()
    return DeviceInfo(
        name=properties["name"].decode(),
        selector=f"cuda:{index}",
        arch=_arch(capability),
        sm_count=attribute("MultiProcessorCount"),
        clock_mhz=attribute("ClockRate") / 1e3,
        memory_bytes=int(properties["totalGlobalMem"]),
        l2_bytes=attribute("L2CacheSize"),
        # Both clock edges carry data: rate = 2 * clock (kHz) * width (bits) / 8.
        bandwidth_gbs=2 * attribute("MemoryClockRate") * attribute("GlobalMemoryBusWidth") / 8 / 1e6,
        driver=f"CUDA {version // 1000}.{version % 1000 // 10}",
        uuid=nvml.uuid(runtime.deviceGetPCIBusId(index)),
    )


def _arch(capability: tuple[int, int]) -> Arch:
    # Machine code runs on later minor versions of its major one, so the latest row that is not newer serves.
    rows = [a for a in ARCHES.values() if a.capability[0] == capability[0] and a.capability <= capability]
    check(bool(rows), f"GPUs of compute capability {capability[0]}.{capability[1]} are not supported", DeviceError)
    return max(rows, key=lambda row: row.capability)


class CudaBuffer:
    """Device memory from CuPy's pool."""

    def __init__(self, nbytes: int) -> None:
        with _translated(f"allocating {nbytes} bytes"):
            self._memory = cupy.cuda.alloc(max(1, nbytes))
        self.nbytes, self.pointer = nbytes, int(self._memory.ptr)

    def array(self, dtype: str, shape: tuple[int, ...], offset_bytes: int = 0) -> Any:
        return cupy.ndarray(shape, dtype, self._memory + offset_bytes)


class GraphBuffer:
    """Device memory from the driver, also while a graph is being captured."""

    def __init__(self, nbytes: int, zeroed: bool, stream: cupy.cuda.Stream) -> None:
        with relaxed_capture(), _translated(f"allocating {nbytes} bytes for a graph"):
            # A pool might return memory that earlier work on some stream still uses.
            self.nbytes, self.pointer = nbytes, int(cupy.cuda.runtime.malloc(max(1, nbytes)))
            weakref.finalize(self, _free, self.pointer).atexit = False
            if zeroed:
                cupy.cuda.runtime.memsetAsync(self.pointer, 0, nbytes, stream.ptr)
                stream.synchronize()

    def array(self, dtype: str, shape: tuple[int, ...], offset_bytes: int = 0) -> Any:
        memory = cupy.cuda.UnownedMemory(self.pointer, self.nbytes, self)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, offset_bytes))


def _free(pointer: int) -> None:
    with relaxed_capture():
        cupy.cuda.runtime.free(pointer)


class CudaFunction:
    """A loaded kernel."""

    def __init__(self, binary: Binary, name: str, pdl: bool, enter: Callable[[], None]) -> None:
        self.name = name
        self._pdl, self._enter = pdl, enter
        self._module = cupy.cuda.function.Module()
        self._module.load(binary.image)
        self._function = self._module.get_function(name)
        load_now(self._function.ptr)
        self._smem_allowed = 0

    def bound(self, launch: LaunchConfig, codes: str) -> Launcher:
        smem = launch.dynamic_smem_bytes
        with _translated(f"preparing {self.name}"):
            if smem + launch.static_smem_bytes > MAX_STATIC_SMEM_BYTES and smem > self._smem_allowed:
                driver.funcSetAttribute(self._function.ptr, _DYNAMIC_SMEM, smem)
                self._smem_allowed = smem
        return driver_launch(self._function.ptr, launch, codes, self._pdl, self._enter, self._failed)

    def _failed(self, status: int) -> LaunchError:
        # A launch holds this method, so that the module stays loaded.
        return _error(f"launching {self.name}", CUDADriverError(status))


def _current_stream() -> int:
    return int(cupy.cuda.get_current_stream().ptr)


@dataclass(frozen=True, slots=True)
class _Stream:
    """Another library's stream, in the protocol that CuPy takes."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class CudaDevice(Device):
    """One NVIDIA GPU. Creates its CUDA context at the first use of memory or a kernel."""

    xp: Any = cupy
    current = staticmethod(cupy.cuda.runtime.getDevice)
    capturing = staticmethod(cupy.cuda.runtime.streamIsCapturing)

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info
        self.compiler = NvrtcCompiler(info.arch.name)
        self._device = cupy.cuda.Device(int(info.selector.partition(":")[2]))

    def entered(self) -> AbstractContextManager[Any]:
        entered: AbstractContextManager[Any] = self._device
        return entered

    def load(self, binary: Binary, name: str) -> CudaFunction:
        with self._device, _translated(f"loading {name}"):
            check(driver_launches(), "the driver is older than CUDA 11.8: install a later one", DeviceError)
            return CudaFunction(binary, name, self._pdl, self._enter)

    def _enter(self) -> None:
        """Make the device's context the current one of this thread."""
        self._device.use()
        cupy.cuda.runtime.free(0)

    @CachedProperty
    def _pdl(self) -> bool:
        """Whether a kernel may start while the one before it still runs: our kernels wait by themselves."""
        supported = "griddepcontrol" in self.info.arch.instructions
        return supported and pdl_works(cupy.cuda.runtime.driverGetVersion())

    def allocate(self, nbytes: int, stream: int | None = None) -> CudaBuffer:
        """Memory from CuPy's pool, aligned to 512 bytes."""
        with self._device, nullcontext() if stream is None else self.on_stream(stream):
            return CudaBuffer(nbytes)

    def graph_memory(self, nbytes: int, zeroed: bool) -> GraphBuffer:
        with self._device:
            return GraphBuffer(nbytes, zeroed, self._clearing)

    @CachedProperty
    def _clearing(self) -> cupy.cuda.Stream:
        """A stream on which nothing is captured."""
        with relaxed_capture():
            return cupy.cuda.Stream(non_blocking=True)

    def end_of_graph(self, stream: int) -> Callable[[], bool]:
        return end_of_graph(stream)

    def zero(self, buffer: Buffer, nbytes: int, stream: int) -> None:
        with self._device, _translated("clearing"):
            cupy.cuda.runtime.memsetAsync(buffer.pointer, 0, nbytes, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        with self._device, _translated("copying"):
            runtime = cupy.cuda.runtime
            runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDeviceToDevice, stream)

    def to_numpy(self, array: Any) -> NDArray[Any]:
        with self._device, _translated("copying from the device"):
            copied: NDArray[Any] = cupy.asnumpy(array)
            return copied

    def tensor_map(self, pointer: int, rows: int, cols: int, ld: int, dtype: DType, box: TensorBox) -> bytes:
        return encoded_map(pointer, rows, cols, ld, dtype, box)

    def stream(self) -> int:
        return _current_stream()

    def on_stream(self, stream: int) -> AbstractContextManager[Any]:
        if stream == _current_stream():
            return nullcontext()
        adopt = getattr(cupy.cuda.Stream, "from_external", None)  # from CuPy 14 on
        context: AbstractContextManager[Any] = adopt(_Stream(stream)) if adopt else cupy.cuda.ExternalStream(stream)
        return context

    def identity(self, stream: int, capturing: bool) -> tuple[int, int]:
        # The driver has no number for a stream that is captured, whose handle stays the same meanwhile.
        return (capture_of(stream)[0], stream) if capturing else (0, stream_identity(stream))

    def synchronize(self) -> None:
        with self._device, _translated("running"):
            cupy.cuda.get_current_stream().synchronize()

    def elapsed_us(self, run: Callable[[], None]) -> float:
        with self._device, _translated("timing"):
            return self._stopwatch.elapsed_us(run)

    @CachedProperty
    def _stopwatch(self) -> Stopwatch:
        source, launch = KernelSource(HOLD_NAME, HOLD), LaunchConfig((1, 1, 1), (1, 1, 1))
        hold = self.load(compile_cached(self.compiler, source), HOLD_NAME).bound(launch, "Q")
        return Stopwatch(
            lambda us: hold(_current_stream(), int(us * 1e3)),
            cupy.cuda.Event(),
            cupy.cuda.Event(),
            lambda start, end: float(cupy.cuda.get_elapsed_time(start, end)) * 1e3,
        )

    def capture(self, run: Callable[[], None], first: Callable[[], None] | None = None) -> Callable[[], None]:
        with self._device, _translated("capturing"):
            stream = cupy.cuda.Stream(non_blocking=True)
            with stream:
                (first or run)()
                stream.synchronize()
                stream.begin_capture()
                try:
                    run()
                finally:
                    graph = stream.end_capture()

        def replay() -> None:
            with self._device, _translated("running"):
                graph.launch(cupy.cuda.get_current_stream())

        return replay

    def blas(self) -> Cublas:
        with self._device, _translated("starting cuBLAS"), _cublas_present():
            return _cublas()

    @property
    def vendor_name(self) -> str:
        with self._device, _translated("starting cuBLAS"), _cublas_present():
            from cupy_backends.cuda.libs import cublas

            version = cublas.getVersion(cupy.cuda.device.get_cublas_handle())
            return f"cuBLAS {version // 10000}.{version // 100 % 100}.{version % 100}"

    def clock_mhz(self) -> float | None:
        return nvml.clock_mhz(self._device.pci_bus_id)

    def held_back(self) -> bool:
        return nvml.held_back(self._device.pci_bus_id)


@contextmanager
def _cublas_present() -> Iterator[None]:
    try:
        yield
    except (ImportError, OSError, AttributeError) as error:
        raise DeviceError(f"cuBLAS cannot be loaded ({error}); the extras cuda12 and cuda13 bring it") from error


def _cublas() -> Cublas:
    """A new handle on the current device, without CuPy's wrapper, which sets the stream at each call: that resets the
    workspace, and a captured call would allocate inside the graph."""
    from cupy_backends.cuda.libs import cublas

    try:
        handle = cublas.create()
    except cublas.CUBLASError as error:
        raise DeviceError(f"cuBLAS cannot start: {error}") from error
    library = ctypes.CDLL(f"libcublas.so.{cublas.getVersion(handle) // 10000}")  # loaded already, by CuPy
    return Cublas(library, handle)
