"""From kernel text to a library of this machine: the host's C++ compiler, with race instrumentation and our own callbacks."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from mugraph.errors import CompilationFailed, TargetUnavailable
from mugraph.host.objects import kept_object
from mugraph.support.stopping import run
from mugraph.support.store import cache_directory
from mugraph.targets.c_text import packaged_text
from mugraph.targets.cpu.compiler import first_error
from mugraph.targets.cuda.device import interface
from mugraph.targets.cuda.nvrtc import SOURCE_NAME

_text = partial(packaged_text, __package__)

_MACHINE = ("fibers.cpp", "block.cpp", "memory.cpp", "units.cpp", "mbarriers.cpp", "wgmma.cpp", "wavefronts.cpp", "launch.cpp")
_HEADERS = ("fibers.h", "block.h", "memory.h", "findings.h", "units.h", "mbarriers.h", "wgmma.h", "wavefronts.h")
_MACHINE_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-r", "-nostdlib")
_KERNEL_FLAGS = (
    "-std=c++17",
    # More optimization merges accesses, and a merged access is not the one a GPU makes.
    "-O1",
    "-g1",
    "-fPIC",
    "-w",
    "-fsanitize=thread",
    # Variables a kernel forgot to set hold about -1.7e38 instead of a lucky zero.
    "-ftrivial-auto-var-init=pattern",
)


def build_library(source: str, folder: Path) -> Path:
    """The shared library of kernels and the emulator, written into `folder`.

    Raises TargetUnavailable without a C++ compiler, CompilationFailed when it rejects the kernels.
    """
    code, machine, library = folder / "kernels.o", folder / "emulator.o", folder / "kernels.so"
    machine.write_bytes(_machine())
    code.write_bytes(_compiled(emulated_text(source), folder))
    _run(("-shared", *_linker()), str(code), str(machine), "-o", str(library))
    return library


def _compiled(text: str, folder: Path) -> bytes:
    """The object file of kernels between emulated definitions, made in `folder`."""
    file, code = folder / "emulated.cpp", folder / "kernels.o"
    file.write_text(text, encoding="utf-8")
    _run(_KERNEL_FLAGS, "-c", str(file), "-o", str(code))
    return code.read_bytes()


def emulated_text(source: str) -> str:
    """What the host compiler gets: the same interface and kernels as the GPU's compiler, between emulated definitions."""
    return f'{_text("builtins.h")}\n{interface()}\n{_text("functions.h")}\n#line 1 "{SOURCE_NAME}"\n{source}'


def source_lines(library: Path, sites: Sequence[int]) -> list[int | None]:
    """The line of the kernel text that each instruction, given by its place in the library, was made from."""
    tool = shutil.which("addr2line")
    if tool is None or not sites:
        return [None] * len(sites)
    # A site is where a call returns to; the call stands just before it.
    calls = dict.fromkeys(hex(site - 1) for site in sites)
    done = subprocess.run([tool, "-a", "-i", "-e", str(library), *calls], capture_output=True, text=True)
    # Each address is repeated on a line of its own, before the places it was made from. Inlined device functions come first.
    places = {
        hex(int(address, 16)): text for address, text in re.findall(r"^(0x[0-9a-f]+)\n((?:(?!0x).*\n)*)", done.stdout, re.M)
    }
    kernel_line = re.compile(rf"{re.escape(SOURCE_NAME)}:(\d+)(?: .*)?$", re.M)
    lines = (kernel_line.search(places.get(hex(site - 1), "")) for site in sites)
    return [None if line is None else int(line[1]) for line in lines]


@cache
def _compiler() -> str:
    path = shutil.which("g++")
    if path is None or sys.platform != "linux":
        raise TargetUnavailable("checking CUDA kernels on a CPU needs g++ on Linux: install it (Debian: g++), or use a container")
    return path


@cache
def _version() -> str:
    """What the compiler says of itself."""
    return subprocess.run([_compiler(), "-v"], capture_output=True, text=True).stderr


@cache
def _linker() -> tuple[str, ...]:
    """The flag of a linker that is quicker than the compiler's own, where there is one."""
    return ("-fuse-ld=gold",) if shutil.which("ld.gold") else ()


@cache
def _machine() -> bytes:
    """The compiled emulator, an object file, kept in the user's cache by its sources and the compiler."""
    texts = [_text(name) for name in (*_HEADERS, *_MACHINE)]
    key = hashlib.sha256("\0".join((_compiler(), _version(), *_MACHINE_FLAGS, *texts)).encode()).hexdigest()
    return kept_object(cache_directory() / "objects" / f"emulator-{key[:32]}.o", _compile_machine)


def _compile_machine(path: Path) -> None:
    for name in (*_HEADERS, *_MACHINE):
        path.with_name(name).write_text(_text(name), encoding="utf-8")
    _run(_MACHINE_FLAGS, *(str(path.with_name(name)) for name in _MACHINE), "-o", str(path))


def _run(flags: tuple[str, ...], *arguments: str) -> None:
    done = run([_compiler(), *flags, *arguments])
    if done.returncode != 0:
        reason = first_error(done.stderr)
        raise CompilationFailed(f"{_compiler()} rejected CUDA kernels to be checked on a CPU: {reason}")
