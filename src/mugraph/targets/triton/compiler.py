"""Triton kernels to machine code, for an architecture that need not be here."""

from __future__ import annotations

import re
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mugraph.errors import CompilationFailed, ExceedsMemory, TargetUnavailable
from mugraph.targets.cuda.nvrtc import Cubin, Resources, resources_of
from mugraph.targets.triton import TileKernel
from mugraph.targets.triton.compile_cache import kept_by_hash
from mugraph.targets.triton.modules import module_of, triton_version

_ALIGNMENT = [["tt.divisibility", 16]]
"""Of every address, in bytes: without it there are no asynchronous copies. Arrays that are not aligned so are copied first."""
_compiling = threading.Lock()


@dataclass(frozen=True, slots=True)
class CompiledTriton:
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
    def cubin(self) -> Cubin:
        """The machine code, for whoever loads it."""
        return Cubin(self.handle.asm["cubin"], self.architecture, "")

    @property
    def threads(self) -> int:
        """Threads of a block."""
        metadata = self.handle.metadata
        return int(metadata.num_warps * metadata.warp_size)

    @property
    def parameters(self) -> int:
        """Pointers that the kernel takes: to its operands, then to scratch memory, of which versions of Triton have up to two."""
        declared: str
        (declared,) = re.findall(rf"\.entry {re.escape(self.name)}\((.*?)\)", self.handle.asm["ptx"], re.DOTALL)
        return declared.count(".param")

    @property
    def resources(self) -> Resources:
        """What the assembler says of the kernel; it is asked again for its report, which Triton does not keep."""
        from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

        capability = int(self.architecture.removeprefix("sm_"))
        with TemporaryDirectory(prefix="mugraph-") as folder:
            source = Path(folder, "kernel.ptx")
            source.write_text(self.handle.asm["ptx"], encoding="utf-8")
            command = [get_ptxas(capability).path, "-v", f"--gpu-name={sm_arch_from_capability(capability)}"]
            done = subprocess.run(
                [*command, str(source), "-o", str(Path(folder, "kernel.cubin"))], capture_output=True, text=True, check=False
            )
        if done.returncode:
            raise CompilationFailed(f"ptxas rejected {self.name} for {self.architecture}: {done.stderr.strip().splitlines()[0]}")
        return resources_of(done.stderr)[self.name]


def compile_kernel(kernel: TileKernel, source: str, architecture: str, shared_bytes: int) -> CompiledTriton:
    """Compile one kernel of a generated file for `sm_80`, `sm_90`, ...; the result is kept with its hash.

    Raises TargetUnavailable without triton or when it is told to interpret, CompilationFailed when it rejects the kernel,
    ExceedsMemory when a block needs more than `shared_bytes` of shared memory, which Triton does not mind here.
    """
    version = triton_version()
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if triton.knobs.runtime.interpret:
        raise TargetUnavailable("Triton compiles nothing while TRITON_INTERPRET is set; unset it, and set it to run the file")
    signature = {parameter.pointer: f"*{parameter.tensor.dtype}" for parameter in kernel.parameters}
    attributes = {(position,): _ALIGNMENT for position in range(len(signature))}
    target = GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32)
    options = {"num_warps": kernel.warps, "enable_fp_fusion": True}
    try:
        with _compiling, kept_by_hash():  # Triton's caches are not made for threads
            function = getattr(module_of(source), kernel.name)
            handle = triton.compile(ASTSource(function, signature, {}, attributes), target=target, options=options)
    except Exception as error:
        # The errors of its stages share no base class; each one's first line says what is wrong.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CompilationFailed(f"triton {version} rejected {kernel.name} for {architecture}: {reason}") from error
    compiled = CompiledTriton(kernel.name, architecture, handle)
    if compiled.shared_bytes > shared_bytes:
        raise ExceedsMemory(
            f"clause 2 (memory): {kernel.name} takes {compiled.shared_bytes} bytes of shared memory, "
            f"a block of {architecture} has {shared_bytes}; choose another schedule or target"
        )
    return compiled
