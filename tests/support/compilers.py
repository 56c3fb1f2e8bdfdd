"""A compiler that compiles nothing, and the folders of the cache in which its binaries lie."""

from dataclasses import dataclass, field
from pathlib import Path

from tilewright.codegen.source import KernelSource
from tilewright.runtime.device.cache import entry_key
from tilewright.runtime.device.protocol import Binary

SOURCE = KernelSource("gemm", "// text")
IMAGE = b"\x7fELF" + bytes(range(256))


@dataclass
class FakeCompiler:
    """A compiler that lists the folders of its builds and returns the same binary each time."""

    identity: str = "fake 1.0 -O2"
    suffix: str = "bin"
    error: Exception | None = None
    builds: list[str] = field(default_factory=list)

    def build(self, source: KernelSource, folder: str) -> Binary:
        self.builds.append(folder)
        if self.error is not None:
            raise self.error
        Path(folder, f"kernel.{self.suffix}").write_bytes(IMAGE)
        return Binary(IMAGE, registers=40, frame_bytes=8, smem_bytes=None, seconds=1.5)


def entry(root: Path, compiler: FakeCompiler, source: KernelSource = SOURCE) -> Path:
    """Folder of the cache's entry for a source."""
    key = entry_key(compiler, source)
    return root / key[:2] / key


def leftovers(root: Path) -> list[Path]:
    """Temporary files and folders of the cache, whose names begin with a dot."""
    return list(root.rglob(".*"))
