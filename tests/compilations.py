"""What compilers make of the text of GPU kernels, kept for all processes and runs of the tests.

Tests have no store of results, in which users' machine code lies; objects of the CPU target and of Triton are kept in any case.
An entry is found by the text, by the compiler, and by the flags and the Python code that it is called with: what a change of any
of these could break is compiled again.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import zlib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from inspect import getsource
from pathlib import Path

from mugraph.support.store import Store
from mugraph.targets.cuda import nvrtc
from mugraph.targets.cuda.emulator import toolchain
from mugraph.targets.cuda.nvrtc import Cubin

_LENGTH_BYTES = 8
"""Of the number that says how long a log is, which stands before the code."""


class Compilations:
    """Bytes by what they were made of, in a store."""

    def __init__(self, directory: Path) -> None:
        self._store = Store(directory)

    def kept(self, kind: str, parts: tuple[str, ...], make: Callable[[], bytes]) -> bytes:
        """What `make` returns, which is called only where nothing of that kind was made of the same parts before."""
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        match self._store.get(kind, key):
            case {"made": str(text)}:
                return zlib.decompress(base64.b64decode(text))
        made = make()
        self._store.put(kind, key, {"made": base64.b64encode(zlib.compress(made, 1)).decode()})
        return made

    def cubins(self) -> Callable[[str, str], Cubin]:
        """`nvrtc._compile` as it is now, kept."""
        compile_text = nvrtc._compile

        def made(text: str, architecture: str) -> bytes:
            cubin = compile_text(text, architecture)
            log = cubin.log.encode()
            return len(log).to_bytes(_LENGTH_BYTES, "little") + log + cubin.code

        @functools.cache
        def kept(text: str, architecture: str) -> Cubin:
            parts = (text, architecture, getsource(compile_text), nvrtc.compiler_version(), _nvrtc_package())
            content = self.kept("cubin", parts, lambda: made(text, architecture))
            begin = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
            return Cubin(content[begin:], architecture, content[_LENGTH_BYTES:begin].decode())

        return kept

    def objects(self) -> Callable[[str, Path], bytes]:
        """`toolchain._compiled` as it is now, kept."""
        compile_text = toolchain._compiled

        def kept(text: str, folder: Path) -> bytes:
            parts = (text, getsource(compile_text), *toolchain._KERNEL_FLAGS, toolchain._compiler(), toolchain._version())
            return self.kept("object", parts, lambda: compile_text(text, folder))

        return kept


@functools.cache
def _nvrtc_package() -> str:
    """The version of the package that brings NVRTC, whose own number leaves out what a release mends."""
    try:
        return version("nvidia-cuda-nvrtc")
    except PackageNotFoundError:
        return ""
