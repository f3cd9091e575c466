"""Kernels of the CPU that read inputs where integers say."""

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import mugraph
from mugraph.checker import Rejected, check_folder
from mugraph.checker.checks import _tested
from mugraph.checker.lookups import with_inputs_for_lookups
from mugraph.devices import device_for
from mugraph.errors import IndexOutOfRange, UnsupportedOperator
from mugraph.ir.cores import cores_of
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph
from mugraph.ir.serialize import graph_to_json
from mugraph.lower.check import check
from mugraph.lower.tile_text import format_kernel, parse_kernel
from mugraph.runtime import build
from mugraph.search import search
from mugraph.selection.inputs import runner
from mugraph.targets.machine import machine_for
from mugraph.verifier import float_check, recheck, verify_graphs


def normalised(shape: tuple[int, ...], dim: int, places: tuple[int, ...], dtype: str, negative: str) -> Graph:
    """Rows of what is looked up and scaled, over their root mean square."""
    program = mugraph.Program()
    table, integers = program.input("table", shape), program.input("places", places, dtype)
    found = table.apply("index_select", integers, dim=dim, negative=negative)
    scaled = found * program.input("gain", found.shape[-1:])
    program.output(scaled / (scaled.square().mean(-1, keepdim=True) + 1e-5).sqrt())
    return program.graph


def block(rows: int = 50, second: str = "position") -> Graph:
    """A layer norm, without a gain, of the sum of two lookups: what embeddings of language models begin with."""
    program = mugraph.Program()
    words, positions = program.input("words", (rows, 32)), program.input("positions", (rows, 32))
    word, position = program.input("word", (2, 6), "int64"), program.input("position", (2, 6), "int64")
    places = {"word": word, "position": position}[second]
    x = words.apply("index_select", word, dim=0, negative="refused")
    x = x + positions.apply("index_select", places, dim=0, negative="refused")
    centred = x - x.mean(-1, keepdim=True)
    program.output(centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt())
    return program.graph


CASES = [
    ((10, 8), 0, (2, 3), "int64", "refused"),
    ((10, 64), 0, (4, 3), "int32", "wrapped"),
    ((6, 10, 16), 1, (12,), "int64", "wrapped"),
    ((16, 10), 1, (4, 3), "int64", "refused"),  # integers run along the vectors
    ((10, 1), 0, (37,), "int64", "refused"),
    ((4, 5, 10), 1, (), "int64", "refused"),
]


@pytest.mark.parametrize(("shape", "dim", "places", "dtype", "negative"), CASES)
def test_kernels_read_where_integers_say(shape: Any, dim: int, places: Any, dtype: str, negative: str) -> None:
    program = normalised(shape, dim, places, dtype, negative)
    candidates = search(program, device_for("cpu"), budget=3).candidates
    rows, rng = shape[dim], np.random.default_rng(0)
    least = -rows if negative == "wrapped" else 0
    given = [
        rng.standard_normal(shape, np.float32),
        np.asarray(rng.integers(least, rows, places), dtype),
        rng.standard_normal(program.inputs()[2].output.shape, np.float32),
    ]
    (wanted,) = evaluate(program, [array.astype(np.float64) for array in given], FloatArithmetic())
    fused = 0
    for candidate in candidates[:4]:
        executable = build(candidate.graph)
        for kernel in executable.kernels:
            check(kernel)
            assert parse_kernel(format_kernel(kernel)) == kernel
        fused += len(executable.kernels) == 1 and bool(executable.kernels[0].integers)
        (found,) = executable(*given)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        for wrong in (rows, least - 1):
            outside = np.array(given[1])
            outside.reshape(-1)[-1:] = wrong
            with pytest.raises(IndexOutOfRange, match=f"index {wrong} at "):
                executable(given[0], outside, given[2])
    assert fused


@pytest.mark.parametrize("negative", ["refused", "wrapped"])
def test_rows_of_narrow_integers_may_lie_beyond_what_these_count(negative: str) -> None:
    rows, width = 65_600, 1 << 15
    program = mugraph.Program()
    table, places = program.input("table", (rows, width), "bool"), program.input("places", (3,), "int32")
    program.output(table.apply("index_select", places, dim=0, negative=negative) * 2)
    (candidate, *_) = search(program.graph, device_for("cpu"), budget=3).candidates
    given = np.zeros((rows, width), np.bool_)  # of which memory has only the pages that are touched
    given[rows - 1], given[3, 5] = True, True
    (found,) = build(candidate.graph)(given, np.array([rows - 1, 3, 0], np.int32))
    assert found.sum(1).tolist() == [2 * width, 2, 0]


def test_a_block_of_embeddings_is_one_kernel_that_is_proved(tmp_path: Any) -> None:
    program = block()
    result = mugraph.superoptimize(program, budget=20, profile=False, cache="off")
    (kernel,) = result.graph.kernels()
    assert kernel.body is not None
    assert len(result.executable.kernels) == 1
    assert len(result.executable.kernels[0].integers) == 2
    assert result.certificate.accepted
    recheck(result.certificate, program, result.graph)
    result.save(tmp_path / "saved")
    assert check_folder(tmp_path / "saved").reached
    words, positions = torch.randn(50, 32), torch.randn(50, 32)
    word, position = torch.randint(0, 50, (2, 6)), torch.randint(0, 50, (2, 6))
    loaded = mugraph.load(tmp_path / "saved")
    wanted = torch.nn.functional.layer_norm(words[word] + positions[position], (32,), eps=1e-5)
    for each in (result, loaded):
        torch.testing.assert_close(each(words, positions, word, position), wanted, rtol=1e-4, atol=1e-5)
    word[1, 2] = 50
    with pytest.raises(IndexError, match=r"index 50 at \[8\]"):
        result(words, positions, word, position)


def test_another_table_or_other_integers_are_found() -> None:
    program = block()
    cores = cores_of(program)
    assert cores is not None
    assert verify_graphs(program, cores.around(cores.cores[0])).equivalent
    other = block(second="word")
    assert verify_graphs(program, other, seed=0).equivalent is False
    swapped = Graph(program.level, tuple(exchanged(program)), program.outputs)
    verdict = verify_graphs(program, swapped, seed=0)
    assert verdict.equivalent is False
    assert not float_check(runner(build(swapped)), program).stable
    assert float_check(runner(build(program)), program).stable


def exchanged(program: Graph) -> list[Any]:
    """The nodes of a program that looks up the first table at the second integers, and the other way round."""
    lookups = [node for node in program.nodes if node.op == "index_select"]
    first, second = (node.inputs[1] for node in lookups)
    other = {first: second, second: first}
    return [
        replace(node, inputs=(node.inputs[0], other[node.inputs[1]])) if node.op == "index_select" else node
        for node in program.nodes
    ]


def test_a_difference_at_equal_places_is_no_answer() -> None:
    program, other = block(rows=5), block(rows=5, second="word")
    assert verify_graphs(program, other, seed=0).equivalent is None


def test_the_checker_takes_what_is_looked_up() -> None:
    program = block()
    other = Graph(program.level, tuple(exchanged(program)), program.outputs)
    documents: list[dict[str, Any]] = [graph_to_json(graph) for graph in (program, other)]
    left, right = (document["graph"] for document in documents)
    ours, theirs = with_inputs_for_lookups(left, right)
    names = [node["attributes"]["name"] for node in ours["nodes"] if node["op"] == "input"]
    assert names == [node["attributes"]["name"] for node in theirs["nodes"] if node["op"] == "input"]
    assert len(names) == 4
    assert ours != theirs
    place = next(index for index, node in enumerate(left["nodes"]) if node["op"] == "add")
    lookup = next(node for node in left["nodes"] if node["op"] == "index_select")
    lookup["inputs"][0] = [place, 0]
    with pytest.raises(Rejected, match="reads what is no input"):
        with_inputs_for_lookups(left, left)


def test_the_checker_finds_other_integers(tmp_path: Any) -> None:
    result = mugraph.superoptimize(block(), budget=10, profile=False, cache="off")
    result.save(tmp_path / "saved")
    program, graph = (json.loads((tmp_path / "saved" / f"{name}.json").read_text()) for name in ("program", "graph"))
    lookups = [node for node in graph["graph"]["nodes"] if node["op"] == "index_select"]
    lookups[0]["inputs"][1], lookups[1]["inputs"][1] = lookups[1]["inputs"][1], lookups[0]["inputs"][1]
    left, right = with_inputs_for_lookups(program["graph"], graph["graph"])
    certificate = {"difference": {}, "max_error": 2**-40}
    with pytest.raises(Rejected, match=r"is not what program\.json computes"):
        _tested(left, right, certificate, None, random.Random(0), lambda line: None)


@pytest.mark.parametrize("target", ["cuda:sm_90", "triton:sm_90"])
def test_gpus_refuse_lookups(target: str) -> None:
    program = block()
    with pytest.raises(UnsupportedOperator, match=r"index_select: kernels of .* read no integers; look up before"):
        search(program, device_for(target), budget=2)
    found = search(program, device_for("cpu"), budget=3).candidates[0].graph
    with pytest.raises(UnsupportedOperator, match=r"index_select .*: kernels of GPUs read no integers"):
        machine_for(target).lower(found)


@pytest.mark.parametrize("dim", [0, 1])
def test_running_sums_of_what_is_looked_up(dim: int) -> None:
    class Sums(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(50, 24)

        def forward(self, index: torch.Tensor) -> torch.Tensor:
            return torch.cumsum(self.table(index), dim)

    module, index = Sums().eval(), torch.randint(0, 50, (19,))
    with torch.no_grad():
        opt = mugraph.superoptimize(module, (index,), cache="off", profile=False)
        assert opt.found
        torch.testing.assert_close(opt(index), module(index))
