"""The C compiler: find one, learn the host's vector unit from it, compile shared objects into a cache, and load them."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from mugraph.errors import CompilationFailed, TargetUnavailable
from mugraph.host.objects import kept_object, loaded_object, rebuilt_object
from mugraph.support.stopping import run
from mugraph.support.store import cache_directory
from mugraph.targets.cpu import Vectors

_OPTIMIZATION = "-O3"
_PASSES = (
    "-O1",
    "-fexpensive-optimizations",
    "-fgcse",
    "-frerun-cse-after-loop",
    "-fcse-follow-jumps",
    "-fpeel-loops",
    "-ftree-loop-vectorize",
)
"""What of GCC's `-O3` makes kernels faster, in three quarters of its time, as timed on x86-64: `-fexpensive-optimizations`
contracts products and sums, the next three find what loops over tiles compute twice, `-fpeel-loops` unrolls loops of few
iterations, and the last takes the loops that are not written as vectors, as those that pack."""
_FLAGS = (
    "-march=native",
    "-std=gnu11",
    "-fPIC",
    "-shared",
    "-w",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-strict-aliasing",
)
_REGISTERS = "-fira-loop-pressure"
"""What GCC has to be told: that constants of a store behind a loop are not to have registers which sums in the loop need."""
_ARRAYS = "-DEMULATED_TILES"
"""Registers of the matrix unit are arrays: kernels that were made where it may be used run where the system does not let us."""
_LATE_SYMBOLS = "-Wl,-undefined,dynamic_lookup"
"""On macOS: the thread pool's functions are looked up when an object is loaded, as they are everywhere else."""

_log = logging.getLogger(__name__)


def flags_for(platform: str, optimization: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """The flags of every compiler on a platform as `sys.platform` names it; most optimize as much as they can."""
    late = (_LATE_SYMBOLS,) if platform == "darwin" else ()
    return (*((_OPTIMIZATION,) if optimization is None else optimization), *_FLAGS, *late)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler's command, and the macros it predefines for this host (they name its version and vector unit)."""

    command: tuple[str, ...]
    macros: str

    @property
    def vectors(self) -> Vectors:
        """The widest vector unit the compiler uses for this host."""
        if "__AVX512F__" in self.macros:
            pairs = "__AVX512BF16__" in self.macros
            return Vectors(16, 32, pairs, tiles=pairs and "__AMX_BF16__" in self.macros and may_use_tiles())
        if "__AVX__" in self.macros:
            return Vectors(lanes=8, registers=16)
        return Vectors(lanes=4, registers=32 if "__aarch64__" in self.macros else 16)

    @property
    def flags(self) -> tuple[str, ...]:
        """Its flags for this host."""
        gcc = "__clang__" not in self.macros
        passes = _PASSES if gcc and "__x86_64__" in self.macros else None  # elsewhere their kernels were not timed
        arrays = (_ARRAYS,) if "__AMX_BF16__" in self.macros and not may_use_tiles() else ()
        return (*flags_for(sys.platform, passes), *((_REGISTERS,) if gcc else ()), *arrays)

    def key(self, source: str) -> str:
        """Name of the shared object of a source: a hash of the source, the flags, the compiler and the host."""
        parts = (source, *self.flags, *self.command, self.macros)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@cache
def find_compiler() -> Compiler:
    """The system's C compiler, or the one of the `ziglang` package.

    Raises TargetUnavailable when there is neither, and on Windows, whose C has other integers than the kernels are printed for.
    """
    if sys.platform == "win32":
        raise TargetUnavailable("target cpu is for Linux and macOS; on Windows use WSL, or search for a GPU: --target cuda:sm_90")
    for command in _commands():
        probe = subprocess.run([*command, "-march=native", "-dM", "-E", "-x", "c", os.devnull], capture_output=True, text=True)
        if probe.returncode == 0:
            return Compiler(command, probe.stdout)
    raise TargetUnavailable("target cpu needs a C compiler: install gcc or clang, or run `pip install ziglang`")


def _commands() -> list[tuple[str, ...]]:
    compilers = [(path,) for path in map(shutil.which, ("cc", "gcc", "clang")) if path]
    zig = [(sys.executable, "-m", "ziglang", "cc")] if importlib.util.find_spec("ziglang") else []
    return [*compilers, *zig]


_ARCH_PRCTL = 158
"""The number of a system call of Linux on x86-64."""
_REQUEST_PERMISSION, _TILE_DATA = 0x1023, 18


@cache
def may_use_tiles() -> bool:
    """Whether the system lets this process use the registers of the matrix unit (AMX), for which it has to be asked once."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


def load_shared(source: str, cache: Path | None = None) -> ctypes.CDLL:
    """A C source, compiled unless the cache holds its object, and loaded; an object that the loader refuses is compiled again.

    A cache that cannot be used (read-only, full, open to others) is replaced by a folder of this process, with a warning in
    the log. Raises CompilationFailed when the compiler rejects the source, TargetUnavailable when there is no compiler.
    """
    compiler = find_compiler()
    path = (cache or cache_directory()) / "objects" / f"{compiler.key(source)}.so"
    compiled = partial(_compile, compiler, source)
    try:
        return loaded_object(kept_object(path, compiled), path)
    except OSError as error:
        _log.warning("the compiled object %s cannot be loaded (%s); it is compiled again", path, error)
        return loaded_object(rebuilt_object(path, compiled), path)


def _compile(compiler: Compiler, source: str, path: Path) -> None:
    text = path.with_name("kernels.c")
    text.write_text(source, encoding="utf-8")
    command = [*compiler.command, *compiler.flags, str(text), "-o", str(path)]
    done = run(command, {**os.environ, "TMPDIR": str(path.parent)})  # where what it leaves, if it is killed, is removed
    if "No space left" in done.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if done.returncode != 0:
        file = Path(tempfile.mkdtemp(prefix="mugraph-")) / "kernels.c"
        file.write_text(source, encoding="utf-8")
        reason = first_error(done.stderr)
        raise CompilationFailed(f"{compiler.command[0]} rejected a generated kernel ({reason}); please report it with {file}")


def first_error(messages: str) -> str:
    """The line of a compiler's messages that says what is wrong."""
    return next((line for line in messages.splitlines() if "error" in line), "no message")
