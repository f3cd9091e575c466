"""Scores in registers on the emulator: right, clean, and every planted fault noticed."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

from lower.graphs import attention
from lower.test_layouts import emulated as counted
from lower.test_layouts import predicted
from lower.test_pipeline import kernel_of
from mugraph.devices import NO_ENGINES, Engines
from mugraph.ir import DType, Graph, GraphBuilder, Level
from mugraph.lower.fragments import holds_rows
from mugraph.lower.tile_form import Buffer, Memory
from mugraph.lower.warp_groups import uses_warp_groups
from mugraph.runtime import Executable
from mugraph.targets.cuda import emulated as emulated_cuda
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.emulator import Fault
from mugraph.targets.cuda.machine import Cuda
from mugraph.testing.kernel_faults import try_faults
from targets.plants import Plant, shows
from targets.test_cuda import ERRORS, emulated

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
MACHINES = {
    "groups": Cuda("sm_90", 200_000, engines=Engines(warp_group_rows=64, tensor_maps=True), multiprocessors=132),
    "warps": Cuda("sm_80", 160_000, engines=NO_ENGINES, multiprocessors=108),
}


def heads(count: int, queries: int, keys: int, dtype: DType) -> Graph:
    """`tanh(q k) v` of several heads in one block."""
    kernel = GraphBuilder(Level.KERNEL)
    shapes = {"q": (count, queries, 32), "k": (count, 32, keys), "v": (count, keys, 40)}
    inputs = [kernel.input(name, shape, dtype) for name, shape in shapes.items()]
    block = GraphBuilder(Level.BLOCK, grid=(1,))
    q, k, v = (block.iterator(n, kernel.tensor(each), (None,), None) for n, each in enumerate(inputs))
    shrunk = block.add("mul", block.add("matmul", q, k), block.constant(0.1, dtype))
    squares = block.add("mul", shrunk, shrunk)
    weights = block.add("div", shrunk, block.add("sqrt", block.add("add", squares, block.constant(1.0, dtype))))
    saved = block.add("output_saver", block.add("matmul", weights, v), omap=(0,))
    return kernel.build(kernel.graph_defined(block.build([saved]), inputs))


GRAPHS = {
    "a band for each warp": lambda dtype: attention(64, 128, 64, 2, dtype),
    "eight warps": lambda dtype: attention(128, 192, 32, 3, dtype),
    "rows that end within a band": lambda dtype: attention(50, 96, 40, 2, dtype),
    "odd rows": lambda dtype: attention(121, 64, 64, 2, dtype),
    "two bands for each warp": lambda dtype: attention(250, 64, 32, 2, dtype),
    "one iteration": lambda dtype: attention(64, 80, 64, 1, dtype),
    "masked": lambda dtype: attention(64, 96, 64, 2, dtype, masked=True),
    "masked rows that end within a band": lambda dtype: attention(55, 64, 64, 2, dtype, masked=True),
    "several panels": lambda dtype: attention(64, 192, 64, 2, dtype),
    "more than warps hold": lambda dtype: attention(64, 256, 64, 2, dtype),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", [DType.FP16, DType.BF16])
@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_are_right_and_clean(name: str, dtype: DType, machine: str) -> None:
    graph = GRAPHS[name](dtype)
    (launch,) = MACHINES[machine].lower(graph).values()
    assert holds_rows(launch.kernel) or machine == "groups" or name == "more than warps hold"
    for seed, apart in ((0, False), (3, True)):
        on = EmulatedCuda(MACHINES[machine], seed, apart=apart)
        assert emulated(graph, on) < ERRORS[dtype]
        assert on.findings == []


@pytest.mark.parametrize(("count", "queries", "keys"), [(4, 16, 32), (3, 9, 48), (2, 33, 16), (8, 16, 64)])
def test_heads_of_one_block_are_right_and_clean(count: int, queries: int, keys: int) -> None:
    graph = heads(count, queries, keys, DType.BF16)
    on = EmulatedCuda(MACHINES["warps"], 1, apart=True)
    (launch,) = on.lower(graph).values()
    assert holds_rows(launch.kernel)
    assert emulated(graph, on) < ERRORS[DType.BF16]
    assert on.findings == []


@pytest.mark.parametrize("machine", MACHINES)
def test_a_causal_mask_hides_what_comes_later(machine: str) -> None:
    queries = keys = 64
    graph = attention(queries, keys, 64, 1, DType.BF16, masked=True)
    q, k, v = (torch.randn(2, queries, 64, generator=torch.Generator().manual_seed(n)).bfloat16() for n in range(3))
    mask = torch.full((2, queries, keys), -torch.inf).triu(1).bfloat16()
    on = EmulatedCuda(MACHINES[machine], 2)
    (result,) = Executable(graph, on)(q, k, v, mask)
    scores = 0.25 * q.double() @ k.double().transpose(1, 2) + mask.double()
    torch.testing.assert_close(result.double(), scores.softmax(-1) @ v.double(), rtol=2e-2, atol=2e-2)
    assert on.findings == []


@pytest.mark.parametrize("name", ["a band for each warp", "eight warps", "odd rows", "more than warps hold"])
def test_warp_groups_take_part(name: str) -> None:
    (launch,) = MACHINES["groups"].lower(GRAPHS[name](DType.BF16)).values()
    assert uses_warp_groups(launch.kernel)
    assert holds_rows(launch.kernel)


def test_buffers_that_are_kept_apart_leave_the_ring_where_groups_find_it() -> None:
    (launch,) = MACHINES["groups"].lower(GRAPHS["eight warps"](DType.BF16)).values()
    kernel = launch.kernel
    assert kernel.ring is not None
    large = Buffer("large", Memory.SHARED, DType.FP32, 1 << 16)
    apart = emulated_cuda._apart(replace(kernel, buffers=(large, *kernel.buffers)))
    ring = apart.buffer(kernel.ring.buffer)
    assert ring.offset + ring.bytes <= 1 << 18 <= apart.buffer("large").offset + large.bytes
    assert [each.name for each in apart.buffers] == ["large", *(each.name for each in kernel.buffers)]


@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("masked", [False, True])
def test_the_emulator_counts_the_wavefronts_that_were_predicted(rows: int, masked: bool) -> None:
    kernel = kernel_of(attention(rows, 128, 64, 2, DType.BF16, masked=masked), 160_000)
    assert holds_rows(kernel)
    count = counted(kernel)
    assert predicted(kernel) == count.wavefronts
    assert count.bank_conflicts == 0


@pytest.mark.parametrize("machine", MACHINES)
def test_lanes_and_shuffles_are_places_for_faults(machine: str) -> None:
    graph = attention(50, 64, 32, 2, DType.BF16)
    inputs = [torch.randn(2, n, 32, generator=torch.Generator().manual_seed(n)).bfloat16() for n in (50, 64, 64)]
    trials = try_faults(graph, inputs, MACHINES[machine], most=4)
    assert {"shuffle", "lanes", "mask"} <= trials.keys()
    assert trials["shuffle"].tried == trials["shuffle"].places == 4, "two of a maximum, and two of a sum"
    assert [line for trial in trials.values() for line in trial.unnoticed] == []


PLANTS: dict[str, Plant] = {
    "halves of k exchanged": (
        r"fragment_of_sums<(\w+)>\((.*?), (\w+\[i\]\[.*?\]), (.*)\);",
        r"fragment_of_sums<\1>(\2, \4, \3);",
        set(),
    ),
    "one tile twice": (r"/ 8 \+ 1\]\);", "/ 8]);", set()),
    "rows exchanged within a tile": (r"part\[1\] = pack<T>\(first\[2\]", "part[1] = pack<T>(first[0]", set()),
    "lanes of a row do not meet": (r"total\[i\]\[r\] = total\[i\]\[r\] \+ shfl_xor\(total\[i\]\[r\], 1\);", "", set()),
    "half of the lanes do not add": (r"total\[i\]\[r\] = total\[i\]\[r\] \+ shfl_xor\(total\[i\]\[r\], 2\);", "", set()),
    "lanes of other rows meet": (r"shfl_xor\(total\[i\]\[r\], 2\)", "shfl_xor(total[i][r], 4)", set()),
    "half of the lanes find another maximum": (
        r"total\[i\]\[r\] = max\(total\[i\]\[r\], shfl_xor\(total\[i\]\[r\], 1\)\);",
        "",
        set(),
    ),
    "every lane stores": (r"if \(lane % 4 == 0\)", "if (true)", {Fault.RACE}),
    "rows beyond the last are stored": (r"if \(m < 50\)(?= \{\s*if \(lane)", "if (true)", {Fault.OUT_OF_BOUNDS}),
    "a maximum of the other row": (r"- (s\d+)\[i\]\[h / 2\]", r"- \1[i][1 - h / 2]", set()),
    "a factor of the other row": (
        r"(s\d+_held\[i\]\[j\]\[h\] \* s\d+)\[i\]\[h / 2\]",
        r"\1[i][1 - h / 2]",
        set(),
    ),
    "sums of products that are not rescaled": (r"(s\d+_held\[i\]\[j\]\[h\]) \* s\d+\[i\]\[h / 2\]", r"\1", set()),
    "sums of weights that are not rescaled": (r"(s\d+_held\[i\]\[r\]) \* s\d+\[i\]\[r\]", r"\1", set()),
    "a largest score that is not kept": (r"(s\d+)\[i\]\[r\] = s\d+\[i\]\[r\];", "", set()),
    "no mask": (r"(s\d+\[i\]\[j\]\[h\]) \+ pair\d\[h % 2\]", r"\1", set()),
    "rows of another warp": (
        r"const int m0 = warp(?=[^{]*\{\s*const int m = m0[^;]*;\s*if \(m < 50\))",
        "const int m0 = (warp ^ 1)",
        set(),
    ),
    "read before it is stored": (r"__syncthreads\(\);", "", {Fault.RACE, Fault.UNINITIALIZED}),
    "another column of the mask": (r"load_run<bf16_t, 2>\((pair\d), x(\d) \+ ", r"load_run<bf16_t, 2>(\1, x\2 + 2 + ", set()),
}


@pytest.mark.parametrize("fault", PLANTS)
def test_a_planted_fault_shows(fault: str) -> None:
    graph = attention(50, 128, 64, 2, DType.BF16, masked=True)
    assert shows(graph, EmulatedCuda(MACHINES["warps"], seed=1, apart=True), PLANTS[fault])
