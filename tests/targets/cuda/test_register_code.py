"""Machine code of attention in registers: it holds what it is said to, in registers, and fences what other units read."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from lower.graphs import attention
from mugraph.ir import DType, Graph
from mugraph.lower import construct
from mugraph.lower.fragments import holds_rows
from mugraph.lower.warp_groups import uses_warp_groups
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.cuda.nvrtc import SOURCE_NAME, compile_cubin
from targets.cuda.test_code_lints import steps, unfenced
from targets.cuda.test_machine_code import DISASSEMBLER, LOCAL_MEMORY, code_of
from targets.test_register_rows import random_attention
from targets.test_register_scores import GRAPHS, heads

pytest.importorskip("cuda.core", reason="kernels are compiled by NVRTC; pip install 'mugraph[cuda]'")
pytestmark = pytest.mark.skipif(DISASSEMBLER is None, reason="there is no nvdisasm; Triton's package has one")

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
FULL: dict[str, Callable[[DType], Graph]] = {
    "64 keys of 128 numbers": lambda dtype: attention(64, 128, 128, 2, dtype),
    "96 keys of 64 numbers": lambda dtype: attention(64, 192, 64, 2, dtype),
    "128 keys of 32 numbers": lambda dtype: attention(64, 256, 32, 2, dtype),
}
"""As much as warps hold: with more of either, kernels spilled on some of the architectures."""
GROUPS: dict[str, Callable[[DType], Graph]] = {
    "64 keys of 128 numbers": FULL["64 keys of 128 numbers"],
    "128 keys of 64 numbers": lambda dtype: attention(64, 256, 64, 2, dtype),
    "128 keys of 128 numbers": lambda dtype: attention(64, 256, 128, 2, dtype),
}
"""What groups hold, on sm_90."""
OTHERS: dict[str, Callable[[DType], Graph]] = {
    **{name: GRAPHS[name] for name in ("eight warps", "odd rows", "masked")},
    "heads in one block": lambda dtype: heads(4, 16, 32, dtype),
    "a random one": lambda dtype: random_attention(random.Random(1)),
}
WARPS = [(DType.FP16, "sm_80"), (DType.FP16, "sm_100"), (DType.BF16, "sm_100"), (DType.FP16, "sm_120")]


def lint(graph: Graph, architecture: str, tmp_path: Path) -> tuple[bool, str]:
    """Whether some kernel of a muGraph holds rows in registers, and the code; raises AssertionError where it spills or lacks a
    fence."""
    machine = Cuda.of(f"cuda:{architecture}")
    kernels = [launch.kernel for launch in machine.lower(construct(graph)).values()]
    compiled = compile_cubin(machine.print(kernels)[SOURCE_NAME], machine.architecture)
    code = code_of(compiled, tmp_path)
    assert {name: each.spill_bytes for name, each in compiled.resources.items()} == dict.fromkeys(compiled.resources, 0)
    assert all(each.stack_bytes == 0 for each in compiled.resources.values())
    assert LOCAL_MEMORY.search(code) is None
    # threads may copy what they read themselves, a mask: units read what boxes bring
    copied = {"a panel"} if "copied" in steps(code) else set()
    assert {*unfenced(code)} <= copied
    assert ("multiplied" in steps(code)) == any(map(uses_warp_groups, kernels))
    return any(map(holds_rows, kernels)), code


@pytest.mark.parametrize(("dtype", "architecture"), WARPS)
@pytest.mark.parametrize("name", FULL)
def test_as_much_as_warps_hold_is_in_registers(name: str, dtype: DType, architecture: str, tmp_path: Path) -> None:
    held, _ = lint(FULL[name](dtype), architecture, tmp_path)
    assert held


@pytest.mark.parametrize("name", GROUPS)
def test_as_much_as_groups_hold_is_in_registers(name: str, tmp_path: Path) -> None:
    held, code = lint(GROUPS[name](DType.BF16), "sm_90", tmp_path)
    assert held
    assert "multiplied" in steps(code)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", OTHERS)
def test_rows_of_all_kinds_are_in_registers(name: str, architecture: str, tmp_path: Path) -> None:
    lint(OTHERS[name](DType.BF16), architecture, tmp_path)


@pytest.mark.parametrize("keys", [256, 224])
def test_more_than_warps_hold_stays_in_shared_memory_and_spills_nothing(keys: int, tmp_path: Path) -> None:
    held, _ = lint(attention(64, keys, 64, 2, DType.FP16), "sm_100", tmp_path)
    assert not held
