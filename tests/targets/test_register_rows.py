"""Numbers of rows in registers on the emulator: random attention beside float64, and iterations that a mask hides."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

import pytest
import torch

from lower.graphs import attention
from mugraph.ir import DType, Graph, GraphBuilder, Level, Value
from mugraph.lower import cooperative, lower
from mugraph.lower.check import check
from mugraph.lower.skipped_iterations import with_skips
from mugraph.lower.tile_form import Memory
from mugraph.runtime import Executable
from mugraph.targets.cuda.emulated import EmulatedCuda
from targets.test_cuda import ERRORS, emulated
from targets.test_register_scores import MACHINES

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator compiles kernels with g++")
PROGRAMS = 12


def random_attention(draw: random.Random) -> Graph:
    """Attention of several heads in a block, of odd numbers of queries: an online softmax, or sums or maxima that nothing
    rescales, with a mask or without."""
    dtype, loop, count = draw.choice((DType.FP16, DType.BF16)), draw.randint(1, 3), draw.choice((1, 1, 2, 3, 4))
    queries = draw.randint(max(1, 48 // count), 128 // count)
    taken, width, values = 16 * draw.randint(1, 4), 16 * draw.randint(1, 4), 8 * draw.randint(1, 8)
    kernel, keys = GraphBuilder(Level.KERNEL), taken * loop
    shapes = {"q": (2 * count, queries, width), "k": (2 * count, width, keys), "v": (2 * count, keys, values)}
    if draw.random() < 0.5:
        shapes["mask"] = (2 * count, queries, keys)
    inputs = [kernel.input(name, shape, dtype) for name, shape in shapes.items()]
    block = GraphBuilder(Level.BLOCK, grid=(2,), loop=loop)
    along = (None, 2, 1, 2)[: len(inputs)]
    tiles = [block.iterator(n, kernel.tensor(inputs[n]), (0,), dim) for n, dim in enumerate(along)]
    scores = block.add("mul", block.add("matmul", *tiles[:2]), block.constant(0.25, dtype))
    scores = block.add("add", scores, tiles[3]) if "mask" in shapes else scores
    result = _reduced(block, draw, scores, tiles[2], dtype)
    return kernel.build(kernel.graph_defined(block.build([block.add("output_saver", result, omap=(0,))]), inputs))


def _reduced(block: GraphBuilder, draw: random.Random, scores: Value, values: Value, dtype: DType) -> Value:
    """What comes of scores [heads, queries, keys] and values [heads, keys, columns] of an iteration."""
    rows = {"dim": 2, "size": block.tensor(scores).shape[2]}
    largest = block.add("max", scores, **rows, **draw.choice(({}, {"least": "lowest"})))
    match draw.choice(("softmax", "softmax", "sums", "maxima")):
        case "softmax":
            weights = block.add("exp", block.add("sub", scores, largest))
            total = block.add("accumulate_rescaled", block.add("sum", weights, **rows), largest)
            return block.add("div", block.add("accumulate_rescaled", block.add("matmul", weights, values), largest), total)
        case "sums":
            weights = block.add("sigmoid", scores)
            total = block.add("accumulate", block.add("sum", weights, **rows), combine="sum")
        case _:
            weights = block.add("tanh", block.add("sub", scores, largest))
            total = block.add("exp", block.add("accumulate", block.add("tanh", largest), combine="max"))
    mixed = block.add("accumulate", block.add("matmul", weights, values), combine="sum")
    return block.add("div", mixed, block.add("add", total, block.constant(1.0, dtype)))


@pytest.mark.parametrize("machine", MACHINES)
def test_random_attention_is_right_and_clean(machine: str) -> None:
    draw, held = random.Random(machine), 0
    for seed in range(PROGRAMS):
        graph = random_attention(draw)
        on = EmulatedCuda(MACHINES[machine], seed, apart=bool(seed % 2))
        (launch,) = on.lower(graph).values()
        check(launch.kernel)
        held += any(buffer.memory is Memory.ROWS for buffer in launch.kernel.buffers)
        assert emulated(graph, on, seed) < ERRORS[graph.inputs()[0].output.dtype], graph
        assert on.findings == [], graph
    assert held > PROGRAMS // 3


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("hidden", range(3))
def test_an_iteration_that_a_mask_hides_changes_no_bit(hidden: int, machine: str) -> None:
    """It is left out or run: of the keys that are left the same kernel makes the same numbers."""
    queries, taken, width = 64, 32, 32
    generator = torch.Generator().manual_seed(hidden)
    q, k, v = (torch.randn(2, size, width, generator=generator).bfloat16() for size in (queries, 3 * taken, 3 * taken))
    mask = torch.randn(2, queries, 3 * taken, generator=generator).bfloat16()
    behind = torch.arange(3 * taken) // taken == hidden
    mask[..., behind] = -torch.inf
    results = []
    for loop, seen in ((3, behind | True), (2, ~behind)):
        graph = attention(queries, loop * taken, width, loop, DType.BF16, masked=True, bounded=True)
        on = EmulatedCuda(MACHINES[machine], seed=1)
        (launch,) = lower(graph).values()
        told = cooperative(with_skips(launch, graph).kernel, on.machine.shared_bytes, engines=on.machine.engines)
        assert [skip.value for skip in told.skips] == [-torch.inf]
        assert any(buffer.memory is Memory.ROWS for buffer in told.buffers)
        check(told)
        lowered = Executable(graph, on, launches={node: replace(launch, kernel=told) for node in on.lower(graph)})
        results.append(lowered(q, k[:, seen], v[:, seen], mask[:, :, seen])[0])
        assert on.findings == []
    assert torch.equal(*results)
    scores = 0.25 * q.double() @ k.double().transpose(1, 2) + mask.double()
    torch.testing.assert_close(results[0].double(), scores.softmax(-1) @ v.double(), rtol=2e-2, atol=2e-2)
