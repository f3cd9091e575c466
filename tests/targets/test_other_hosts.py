"""Kernels for hosts that this is not: compiled for Linux and macOS on x86-64 and ARM, and run for ARM in an emulator of it.

Zig compiles (the extra `compiler`), qemu's user mode runs (Debian: qemu-user); all of it is in the nightly suite.
"""

from __future__ import annotations

import ctypes
import importlib.util
import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mugraph.errors import TargetUnavailable
from mugraph.ir import DType, Graph
from mugraph.lower.tile_form import Kernel
from mugraph.runtime import Executable
from mugraph.targets.cpu import Vectors
from mugraph.targets.cpu.compiler import find_compiler, flags_for
from mugraph.targets.cpu.machine import Cpu
from runtime.block_graphs import many_kernels
from targets.test_cpu import UNARY, normal_inputs, products, reference, unary_functions

ARM = Vectors(lanes=4, registers=32)
OTHERS = [("aarch64-linux-gnu", "linux", ARM), ("aarch64-macos", "darwin", ARM), ("x86_64-macos", "darwin", Vectors(4, 16))]

zig = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="the extra compiler is not installed")
emulated = pytest.mark.skipif(shutil.which("qemu-aarch64") is None, reason="qemu-aarch64 is not installed (Debian: qemu-user)")


def compiled(source: str, target: str, flags: Sequence[str], output: Path) -> Path:
    text = output.with_suffix(".c")
    text.write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "ziglang", "cc", "-target", target, *flags, str(text), "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return output


@dataclass(frozen=True)
class EmulatedArm(Cpu):
    """An ARM host whose programs qemu runs: each call reads its inputs from a file and leaves its outputs in another."""

    folder: Path = Path()

    def load(self, kernels: Sequence[Kernel], sources: Any, cache_directory: Path | None) -> dict[str, Any]:
        cases = "\n".join(case_of(number, kernel) for number, kernel in enumerate(kernels))
        main = MAIN.replace("CASES", cases)
        flags = ["-O3", "-std=gnu11", "-w", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing"]
        program = compiled("\n".join([*sources.values(), main]), "aarch64-linux-musl", flags, self.folder / "kernels")
        return {kernel.name: partial(self._called, program, number, kernel) for number, kernel in enumerate(kernels)}

    def _called(self, program: Path, number: int, kernel: Kernel, *pointers: int) -> None:
        sizes = [kernel.buffer(name).bytes for name in (*kernel.inputs, *kernel.outputs)]
        read = b"".join(ctypes.string_at(p, size) for p, size in zip(pointers, sizes[: len(kernel.inputs)], strict=False))
        done = subprocess.run(["qemu-aarch64", str(program), str(number)], input=read, capture_output=True, check=True)
        written = done.stdout
        for pointer, size in zip(pointers[len(kernel.inputs) :], sizes[len(kernel.inputs) :], strict=True):
            ctypes.memmove(pointer, written, size)
            written = written[size:]
        assert not written


MAIN = """
extern long read(int, void *, unsigned long), write(int, const void *, unsigned long);
extern int atoi(const char *);
static void fill(char *p, long n) { while (n) { long k = read(0, p, n); if (k <= 0) __builtin_trap(); p += k; n -= k; } }
static void drain(char *p, long n) { while (n) { long k = write(1, p, n); if (k <= 0) __builtin_trap(); p += k; n -= k; } }
int main(int count, char **words)
{
    switch (atoi(words[1])) {
CASES
    }
    return 0;
}
"""


def case_of(number: int, kernel: Kernel) -> str:
    """A case of the driver's switch: memory for every buffer of the caller's, filled, one call, the outputs written."""
    names = [f"b{i}" for i in range(len(kernel.inputs) + len(kernel.outputs))]
    sizes = [kernel.buffer(name).bytes for name in (*kernel.inputs, *kernel.outputs)]
    lines = [
        f"char *{name} = aligned_alloc(64, {max(64, -(-size // 64) * 64)});" for name, size in zip(names, sizes, strict=True)
    ]
    split = len(kernel.inputs)
    lines += [f"fill({name}, {size});" for name, size in zip(names[:split], sizes[:split], strict=True)]
    lines.append(f"{kernel.name}({', '.join(f'(void *){name}' for name in names)});")
    lines += [f"drain({name}, {size});" for name, size in zip(names[split:], sizes[split:], strict=True)]
    return f"    case {number}: {{ {' '.join(lines)} break; }}"


@zig
@pytest.mark.slow
@pytest.mark.parametrize(("target", "platform", "vectors"), OTHERS, ids=[target for target, _, _ in OTHERS])
def test_kernels_link_for_other_hosts(target: str, platform: str, vectors: Vectors, tmp_path: Path) -> None:
    for number, graph in enumerate((many_kernels(7, 12, DType.FP32), products(), unary_functions(100))):
        machine = Cpu(vectors)
        (source,) = machine.print([launch.kernel for launch in machine.lower(graph).values()]).values()
        flags = [flag for flag in flags_for(platform) if flag != "-march=native"]
        compiled(source, target, flags, tmp_path / f"kernels{number}.so")


@zig
@emulated
@pytest.mark.slow
@pytest.mark.parametrize("graph", [many_kernels(7, 12, DType.FP32), products()], ids=["kernels", "products"])
def test_kernels_compute_on_arm(graph: Graph, tmp_path: Path) -> None:
    inputs = normal_inputs(graph)
    results = Executable(graph, EmulatedArm(ARM, folder=tmp_path))(*inputs)
    for result, expected in zip(results, reference(graph, inputs), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-5)


@zig
@emulated
@pytest.mark.slow
def test_functions_are_as_accurate_on_arm(tmp_path: Path) -> None:
    points = np.concatenate([np.linspace(-20, 20, 997), [0.0, math.inf, -math.inf, math.nan, 200.0, -200.0]]).astype(np.float32)
    graph = unary_functions(points.size)
    here = Executable(graph, Cpu())(points)
    there = Executable(graph, EmulatedArm(ARM, folder=tmp_path))(points)
    for name, ours, theirs in zip(UNARY, there, here, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=5e-7, atol=1e-37, err_msg=name)


def test_windows_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    find_compiler.cache_clear()
    with pytest.raises(TargetUnavailable, match=r"Windows.*WSL"):
        find_compiler()
    find_compiler.cache_clear()
