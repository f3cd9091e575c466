"""The paper's muGraphs in examples/paper: valid, proved, compiled for the CPU and two GPUs, and proposed by the search."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import mugraph
from mugraph import SearchSpace
from mugraph.devices import device_for
from mugraph.frontend import trace
from mugraph.frontend.handwritten import in_place_of
from mugraph.ir.graph import Graph
from mugraph.ir.text import parse_graph
from mugraph.ir.validity import check
from mugraph.search import search
from mugraph.testing.containment import way
from mugraph.testing.paper import WRITTEN_FOR
from mugraph.verifier import verify_graphs

TARGETS = ("cpu", "cuda:sm_80", "cuda:sm_90")
PAPER = Path(__file__).parent.parent / "examples" / "paper"
NAMES = sorted(WRITTEN_FOR)
LARGE = {"gqa": {8192: 512, 32: 2}, "qknorm": {4096: 512, 32: 4, 8: 2}}
"""Where a proof at full size takes long, the sizes that stand for others: keys, their parts, heads, samples."""


def text(name: str) -> str:
    return (PAPER / f"{name}.mugraph").read_text()


def smaller(name: str) -> str:
    """The muGraph over fewer keys and heads: numbers in it that are sizes or counts, exchanged all at once."""
    sizes = LARGE.get(name, {})
    lines = [line for line in text(name).splitlines() if not line.startswith("//")]
    exchanged = (
        re.sub(r"(?<![\w%./])\d+(?!\w)", lambda number: str(sizes.get(int(number[0]), number[0])), line) for line in lines
    )
    return "\n".join(exchanged)


def tensors_for(name: str, graph: Graph) -> Sequence[torch.Tensor]:
    """Tensors of the shapes that a muGraph reads, for results of order 1."""
    generator = torch.Generator().manual_seed(0)
    shapes = (node.output.shape for node in graph.inputs())
    filled = [torch.randn(shape, generator=generator) for shape in shapes]
    scaled = [tensor * tensor.shape[0] ** -0.5 if tensor.dim() == 2 and name != "ntrans" else tensor for tensor in filled]
    return [tensor.half() for tensor in scaled]


def test_every_file_is_one_of_them() -> None:
    assert sorted(file.stem for file in PAPER.glob("*.mugraph")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_is_valid_at_full_size_for_its_program(name: str) -> None:
    program = trace(WRITTEN_FOR[name].function, WRITTEN_FOR[name].inputs).graph
    for target in TARGETS:
        check(in_place_of(program, text(name), device_for(target)), device_for(target))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_it_is_proved_compiled_and_run(name: str, target: str) -> None:
    graph = parse_graph(smaller(name))
    function, tensors = WRITTEN_FOR[name].function, tensors_for(name, graph)
    opt = mugraph.optimize_graph(graph, function, tensors, target, profile=False)
    assert opt.certificate.accepted
    assert [node.body is not None for node in opt.graph.kernels()] == [True] * len(graph.kernels())
    if target == "cpu":
        (result,) = opt.executable(*tensors)
        wanted = function(*(tensor.double() for tensor in tensors))
        torch.testing.assert_close(result.double(), wanted, rtol=2e-2, atol=2e-2)
    else:
        assert opt.best.spot_check is not None
        assert opt.best.spot_check.ran
        assert not opt.best.spot_check.fault


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name in LARGE])
def test_it_is_proved_at_full_size(name: str) -> None:
    program = trace(WRITTEN_FOR[name].function, WRITTEN_FOR[name].inputs).graph
    assert verify_graphs(program, in_place_of(program, text(name), device_for("cuda:sm_80"))).equivalent


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90"])
@pytest.mark.parametrize("name", ["rmsnorm", "lora", "gated_mlp", "ntrans"])
def test_the_search_proposes_it_in_the_space_around_it(name: str, target: str) -> None:
    program = trace(WRITTEN_FOR[name].function, WRITTEN_FOR[name].inputs).graph
    written = in_place_of(program, text(name), device_for(target))
    found = search(program, device_for(target), space=SearchSpace.of(written)).candidates
    ways: dict[object, int] = {}
    assert way(written, ways) in [way(candidate.graph, ways) for candidate in found]


def test_the_figure_of_rmsnorm_is_the_papers() -> None:
    (kernel,) = parse_graph(text("rmsnorm")).kernels()
    assert kernel.body is not None
    assert (kernel.body.grid, kernel.body.loop, kernel.body.operator_count()) == ((128,), 16, 11)


@pytest.mark.parametrize("name", NAMES)
def test_the_command_in_it_names_its_workload(name: str) -> None:
    (command,) = re.findall(r"mugraph optimize (.*)", text(name))
    subject = WRITTEN_FOR[name]
    size = ["--size", subject.size] if subject.size != "full" else []
    norm = ["--norm", subject.norm] if subject.norm is not None else []
    words = [subject.workload, *size, *norm, "--dtype", "fp16", "--target", "cuda:sm_80"]
    assert sorted(command.split()) == sorted([*words, "--graph", f"examples/paper/{name}.mugraph"])
