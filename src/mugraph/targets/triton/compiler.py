"""Generated Python files to machine code, for an architecture that need not be here.

A file is a module of the very text whose hash was checked, and what Triton compiles of it is kept in mugraph's cache, in a
directory of the user's own. Triton would write it beside a list of the files, and read both back as they are. Here every file
has its hash with it: a group of which one file is missing, damaged or elsewhere counts as absent, and is compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import inspect
import logging
import os
import re
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.abc import InspectLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from mugraph.errors import CompilationFailed, ExceedsMemory, StorageError, TargetUnavailable
from mugraph.host.objects import substitute_directory
from mugraph.ir.dtypes import DType
from mugraph.support.private_directories import make_private
from mugraph.support.scratch import scratch_directory
from mugraph.support.store import cache_directory
from mugraph.targets.cuda.nvrtc import Cubin, Resources, resources_of
from mugraph.targets.triton import TileKernel
from mugraph.targets.triton.kernel import Parameter
from mugraph.targets.triton.units import AMD, Units

_log = logging.getLogger(__name__)
_ALIGNMENT = ["tt.divisibility", 16]
"""Of every address, in bytes: without it there are no asynchronous copies. Arrays that are not aligned so are copied first."""
_RANGE = ["tt.pointer_range", 32]
"""Of addresses of tensors whose bytes 32 bits count: AMD's buffer instructions add such numbers to one address."""
_REGISTER = 4
"""Bytes of a register of a lane."""
_OTHER_NAMES = {DType.BOOL: "i1", DType.INT8: "i8", DType.UINT8: "u8", DType.E4M3: "fp8e4nv", DType.E5M2: "fp8e5"}
"""What Triton calls types that have another name here."""
_DOT = re.compile(r"\btt\.dot\b")
"""A product of matrices in Triton's own form of a kernel."""
_compiling = threading.Lock()


@dataclass(frozen=True, slots=True)
class CompiledTriton(ABC):
    """A kernel for one architecture; `handle` is Triton's own object, which can be launched where there is such a GPU."""

    name: str
    architecture: str
    handle: Any

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, in bytes."""
        size: int = self.handle.metadata.shared
        return size

    @property
    def threads(self) -> int:
        """Threads of a block."""
        metadata = self.handle.metadata
        return int(metadata.num_warps * metadata.warp_size)

    @property
    @abstractmethod
    def resources(self) -> Resources:
        """What the assembler says of the kernel."""


@dataclass(frozen=True, slots=True)
class NvidiaKernel(CompiledTriton):
    """One for a GPU of NVIDIA."""

    @property
    def cubin(self) -> Cubin:
        """The machine code, for whoever loads it."""
        return Cubin(self.handle.asm["cubin"], variant_of(self.architecture), "")

    @property
    def parameters(self) -> int:
        """Pointers that the kernel takes: to its operands, then to scratch memory, of which versions of Triton have up to two."""
        declared: str
        (declared,) = re.findall(rf"\.entry {re.escape(self.name)}\((.*?)\)", self.handle.asm["ptx"], re.DOTALL)
        return declared.count(".param")

    @property
    def resources(self) -> Resources:
        """What the assembler says of the kernel; it is asked again for its report, which Triton does not keep."""
        from triton.backends.nvidia.compiler import get_ptxas

        capability = int(self.architecture.removeprefix("sm_"))
        with scratch_directory("mugraph-ptxas-") as folder:
            source = Path(folder, "kernel.ptx")
            source.write_text(self.handle.asm["ptx"], encoding="utf-8")
            command = [get_ptxas(capability).path, "-v", f"--gpu-name={variant_of(self.architecture)}"]
            done = subprocess.run(
                [*command, str(source), "-o", str(Path(folder, "kernel.cubin"))], capture_output=True, text=True, check=False
            )
        if done.returncode:
            raise CompilationFailed(f"ptxas rejected {self.name} for {self.architecture}: {done.stderr.strip().splitlines()[0]}")
        return resources_of(done.stderr)[self.name]


@dataclass(frozen=True, slots=True)
class AmdKernel(CompiledTriton):
    """One for a GPU of AMD."""

    @property
    def text(self) -> str:
        """The kernel in the assembler's language, with the metadata of its machine code."""
        text: str = self.handle.asm["amdgcn"]
        return text

    @property
    def resources(self) -> Resources:
        """What the metadata of the machine code says: vector registers, of which those for sums of matrix units are some, and how
        many of them were spilled by each lane, once to store and once to load."""
        spilled, stack = self._counted("vgpr_spill_count"), self._counted("private_segment_fixed_size")
        return Resources(self._counted("vgpr_count"), self.shared_bytes, 2 * _REGISTER * spilled, stack)

    def _counted(self, what: str) -> int:
        """An entry of the metadata (LLVM, User Guide for AMDGPU Backend: code object metadata)."""
        found = re.findall(rf"^ +\.{what}: +(\d+)$", self.text, re.MULTILINE)
        if len(found) != 1:
            raise CompilationFailed(f"the code of {self.name} for {self.architecture} does not say its {what} once")
        return int(found[0])


def variant_of(architecture: str) -> str:
    """The variant of `sm_80`, `sm_90`, ... that Triton makes machine code for."""
    from triton.backends.nvidia.compiler import sm_arch_from_capability

    variant: str = sm_arch_from_capability(int(architecture.removeprefix("sm_")))
    return variant


def compile_kernel(kernel: TileKernel, source: str, architecture: str, shared_bytes: int) -> CompiledTriton:
    """Compile one kernel of a generated file for `sm_80`, `sm_90`, ..., `gfx942`, ...; the result is kept with its hash.

    Raises TargetUnavailable without triton or when it is told to interpret, CompilationFailed when it rejects the kernel,
    ExceedsMemory when a block needs more than `shared_bytes` of shared memory, which Triton does not mind here.
    """
    version = triton_version()
    import triton
    from triton.compiler import ASTSource

    if triton.knobs.runtime.interpret:
        raise TargetUnavailable("Triton compiles nothing while TRITON_INTERPRET is set; unset it, and set it to run the file")
    gpu_target, kind = _target(architecture, kernel.units)
    signature = {parameter.argument: _type_of(parameter) for parameter in kernel.parameters}
    attributes = {
        (position,): _attributes(parameter, gpu_target.backend)
        for position, parameter in enumerate(kernel.parameters)
        if not parameter.is_number
    }
    options = {"num_warps": kernel.warps, "enable_fp_fusion": kernel.fuses}
    try:
        with _compiling, kept_by_hash():  # Triton's caches are not made for threads
            function = getattr(module_of(source), kernel.name)
            handle = triton.compile(ASTSource(function, signature, {}, attributes), target=gpu_target, options=options)
    except Exception as error:
        # The errors of its stages share no base class; each one's first line says what is wrong.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CompilationFailed(f"triton {version} rejected {kernel.name} for {architecture}: {reason}") from error
    _check_dots(kernel.name, inspect.getsource(function.fn), handle.asm["ttir"])
    compiled = kind(kernel.name, architecture, handle)
    if compiled.shared_bytes > shared_bytes:
        raise ExceedsMemory(
            f"clause 2 (memory): {kernel.name} takes {compiled.shared_bytes} bytes of shared memory, "
            f"a block of {architecture} has {shared_bytes}; choose another schedule or target"
        )
    return compiled


def _check_dots(name: str, definition: str, compiled: str) -> None:
    """Raise CompilationFailed where the compiler multiplies matrices that a kernel's definition does not (`TIMES`)."""
    written, made = definition.count("tl.dot("), len(_DOT.findall(compiled))
    if made > written:
        raise CompilationFailed(
            f"triton {triton_version()} makes {made} products of matrices of {name}, whose text has {written}: "
            "it takes sums for them, wrongly perhaps; use another version of Triton"
        )


def _target(architecture: str, units: Units) -> tuple[Any, type[NvidiaKernel | AmdKernel]]:
    """What Triton calls an architecture, and what it makes for it."""
    from triton.backends.compiler import GPUTarget

    if architecture in AMD:
        return GPUTarget("hip", architecture, units.lanes), AmdKernel
    return GPUTarget("cuda", int(architecture.removeprefix("sm_")), units.lanes), NvidiaKernel


def _type_of(parameter: Parameter) -> str:
    """What Triton calls the type of an argument; of a number the lower half of the 64 bits that a launch has is taken."""
    dtype = parameter.tensor.dtype
    return "i32" if parameter.is_number else f"*{_OTHER_NAMES.get(dtype, str(dtype))}"


def _attributes(parameter: Parameter, backend: str) -> list[Sequence[object]]:
    """What the compiler is told of a pointer, as Triton finds it out by itself at a launch."""
    counted = backend == "hip" and parameter.tensor.bytes < 2**31
    return [_ALIGNMENT, _RANGE] if counted else [_ALIGNMENT]


# generated files as modules ---------------------------------------------------------------------------------------


def triton_version() -> str:
    """The version of Triton; raises TargetUnavailable without it."""
    try:
        import triton
    except ImportError as error:
        raise TargetUnavailable(
            f"target triton compiles with triton, which does not import ({error}); run `pip install 'mugraph[triton]'`"
        ) from None
    version: str = triton.__version__
    return version


def module_of(source: str) -> ModuleType:
    """The module of a generated file. The same text gives the same module; nothing is read from or written to a disk.

    Triton compiles the text of a function that Python's `inspect` finds, which asks the module's loader for it.
    """
    name = f"mugraph_triton_{hashlib.sha256(source.encode()).hexdigest()}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_loader(name, _Loader(source), origin=f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        module.__file__ = spec.origin
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


class _Loader(InspectLoader):
    """A loader of one module from its text."""

    def __init__(self, source: str) -> None:
        self.source = source

    def get_source(self, fullname: str) -> str:
        """The text, for Python's `inspect` and `linecache`."""
        return self.source

    def get_code(self, fullname: str) -> CodeType:
        """The compiled text, under the name of the file that `inspect` looks for."""
        return self.source_to_code(self.source, f"{fullname}.py")


# what was compiled before -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def kept_by_hash() -> Iterator[None]:
    """Within it, Triton keeps what it compiles in mugraph's cache, and takes nothing from there that is not what was written.

    A cache that cannot be used is replaced by a folder of this process, with a warning in the log.
    """
    import triton

    directory = cache_directory() / "triton"
    try:
        make_private(directory)
    except (OSError, StorageError) as error:
        directory = Path(substitute_directory(directory, str(error)).name)
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(directory)
        triton.knobs.cache.manager_class = _manager()
        yield


@cache
def _manager() -> type[Any]:
    """The class of caches that Triton makes one of for each kernel."""
    from triton.runtime.cache import FileCacheManager

    class HashedFiles(FileCacheManager):  # type: ignore[misc]  # Triton is not typed
        """Triton's files, each with the SHA-256 of its name and content beside it."""

        def put(self, data: str | bytes, filename: str, binary: bool = True) -> str:
            path: str = super().put(data, filename, binary)
            super().put(_digest(Path(path)), f"{filename}.sha256", False)
            return path

        def get_file(self, filename: str) -> str | None:
            path: str | None = super().get_file(filename)
            return path if path is not None and _is_whole(Path(path)) else None

        def get_group(self, filename: str) -> dict[str, str] | None:
            if self.get_file(f"__grp__{filename}") is None:
                return None
            group: dict[str, str] = super().get_group(filename) or {}
            whole = filename in group and all(os.path.dirname(path) == self.cache_dir for path in group.values())
            return group if whole and all(_is_whole(Path(path)) for path in group.values()) else None

    return HashedFiles


def _is_whole(path: Path) -> bool:
    try:
        if path.with_name(f"{path.name}.sha256").read_text() == _digest(path):
            return True
    except (OSError, UnicodeDecodeError):
        pass  # as good as another hash
    _log.warning("the compiled kernel %s is damaged; it is compiled again", path)
    return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.name.encode() + b"\0" + path.read_bytes()).hexdigest()
