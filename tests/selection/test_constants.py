"""Weights that do not change: which inputs these are, what is made of them, and what becomes of them in saved results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import mugraph
from mugraph.checker import check_folder
from mugraph.devices import device_for
from mugraph.devices.device import ProductRate, ProductRates, RightFactor
from mugraph.errors import InvalidInput, UntrustedSources
from mugraph.frontend import trace
from mugraph.integrations import torch_compile
from mugraph.ir import DType, Graph
from mugraph.ir.program import Program
from mugraph.selection.problems import function_problem, program_problem
from mugraph.selection.whole_programs import searched_for
from mugraph.targets.cpu.packer import pack
from packed_first import packed_first


class Layer(nn.Module):
    """A linear layer, a captured matrix, and what could be a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 48, bias=False)
        self.matrix = torch.randn(48, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) @ self.matrix


@pytest.fixture(name="packed_first")
def _packed_first() -> Iterator[None]:
    with packed_first():
        yield


class LinearOf4Bits(nn.Module):
    """A linear layer that keeps two numbers in a byte, with scales and zero points of groups."""

    def __init__(self, weight: torch.Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(0, 256, (64, 64), dtype=torch.uint8) if weight is None else weight)
        self.register_buffer("scale", (torch.rand(64, 4) * 0.01 + 0.001).bfloat16())
        self.register_buffer("zero", torch.randint(0, 16, (64, 4), dtype=torch.uint8))
        self.weight: torch.Tensor
        self.scale: torch.Tensor
        self.zero: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        numbers = torch.stack((self.weight & 15, self.weight >> 4), -1).reshape(64, 4, 32).to(x.dtype)
        made = (numbers - self.zero.to(x.dtype)[..., None]) * self.scale.to(x.dtype)[..., None]
        return torch.nn.functional.linear(x, made.reshape(64, 128))


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ weight)


@pytest.mark.usefixtures("packed_first")
def test_weights_of_4_bits_are_packed_saved_and_checked(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer, x = LinearOf4Bits(), torch.randn(4, 128).bfloat16()

    def right(result: torch.Tensor, of: LinearOf4Bits = layer) -> bool:
        wanted = of(x.double())
        return bool((result.double() - wanted).abs().max() < 1e-2 * wanted.abs().max())

    with torch.no_grad():
        opt = mugraph.superoptimize(layer, (x,), cache="off", budget=60.0)
        assert opt.executable.packed_bytes == 64 * 128 // 2 + 64 * 4 * (2 + 1)
        assert opt.certificate.accepted
        assert right(opt(x))
        for tensor, change in ((layer.weight, 17), (layer.scale, 0.1), (layer.zero, 3)):
            tensor[5, 2] += change
            assert right(opt(x))
        loaded = mugraph.load(opt.save(tmp_path / "saved"))
        assert loaded.executable.packed_bytes == opt.executable.packed_bytes
        assert right(loaded(x, layer.weight, layer.scale, layer.zero))
        assert (check_folder(tmp_path / "saved").error_bound or 1) < 1e-12
        unpacked = mugraph.superoptimize(layer, (x,), cache="off", budget=60.0, pack=False)
        assert not unpacked.executable.packs
        assert right(unpacked(x))
        tied = LinearOf4Bits(layer.weight)
        with mock.patch("mugraph.runtime.packed_operands.pack", side_effect=pack) as packs:
            for _ in range(2):
                assert right(loaded(x, tied.weight, tied.scale, tied.zero), tied)
        assert packs.call_count == 2  # its scales and zero points: its weight is the other's


@pytest.mark.parametrize("mode", [nullcontext, torch.inference_mode])
def test_what_may_change_without_a_trace_is_not_packed(mode: type[AbstractContextManager[None]]) -> None:
    """It would be packed in every call."""
    with mode():
        layer, inputs = Layer().eval(), (torch.randn(4, 64),)
        problem = function_problem(trace(layer, inputs), layer, inputs)
    assert len(problem.constants) == (2 if mode is nullcontext else 0)


@pytest.mark.usefixtures("packed_first")
def test_parameters_and_captured_matrices_are_packed_saved_and_checked(tmp_path: Path) -> None:
    layer, x = Layer().eval(), torch.randn(4, 64)
    with torch.no_grad():
        opt = mugraph.superoptimize(layer, (x,), cache="off", budget=60.0)
        assert opt.executable.packs
        assert {opt.graph.nodes[index]["name"] for index in opt.graph.constants} == {"linear.weight", "matrix"}
        assert not opt.program.constants
        assert "packed in panels" in str(opt.executable.placement)
        torch.testing.assert_close(opt(x), layer(x))
        layer.linear.weight.mul_(3.0)
        layer.matrix = torch.randn(48, 32)
        torch.testing.assert_close(opt(x), layer(x))
        loaded = mugraph.load(opt.save(tmp_path / "saved"))
        assert loaded.executable.packed_bytes == opt.executable.packed_bytes
        torch.testing.assert_close(loaded(x, layer.linear.weight.detach(), layer.matrix), layer(x))
        assert mugraph.load(tmp_path / "saved", trust_sources=True).executable.packs
        with (
            mock.patch("mugraph.targets.cpu.packed_factors._LONGEST", 16),
            pytest.raises(UntrustedSources, match="packs otherwise"),
        ):
            mugraph.load(tmp_path / "saved", trust_sources=True)
    checked = subprocess.run(
        [sys.executable, "-m", "mugraph", "verify", "--certificate", str(tmp_path / "saved"), "--json"],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stderr
    json.loads(checked.stdout)


@pytest.mark.usefixtures("packed_first")
def test_arguments_are_packed_where_they_are_named() -> None:
    x, weight = torch.randn(4, 64), torch.randn(64, 48)
    assert not mugraph.superoptimize(product, (x, weight), cache="off").executable.packs
    assert not mugraph.superoptimize(product, (x, weight), cache="off", constants=("weight",), pack=False).executable.packs
    opt = mugraph.superoptimize(product, (x, weight), cache="off", constants=("weight",))
    assert opt.executable.packs
    for changed in (weight, weight.add_(1.0), torch.randn(64, 48)):
        torch.testing.assert_close(opt(x, changed), product(x, changed))
    optimized = mugraph.optimize(product, cache="off", constants=["weight"])
    with torch.no_grad():
        torch.testing.assert_close(optimized(x, weight), product(x, weight))
    (answer,) = optimized.answers.values()
    assert isinstance(answer.result, mugraph.Superoptimized)
    assert answer.result.executable.packs


@pytest.mark.usefixtures("packed_first")
def test_programs_say_what_is_constant_or_are_told() -> None:
    program = mugraph.Program()
    x, weight = program.input("x", (4, 64)), program.input("weight", (64, 48))
    program.output((x @ weight).relu())
    for given, names in ((program.graph.with_constants(["weight"]), ()), (program, ("weight",))):
        opt = mugraph.superoptimize(given, cache="off", constants=names)
        assert opt.executable.packs
        assert not opt.program.constants
        assert not mugraph.superoptimize(given, cache="off", constants=names, pack=False).executable.packs


@pytest.mark.parametrize("names", [("wieght",), "weight", (3,), 3])
def test_what_is_no_name_of_an_input_is_refused(names: Any) -> None:
    with pytest.raises(InvalidInput, match="constants"):
        mugraph.superoptimize(product, (torch.randn(4, 64), torch.randn(64, 48)), constants=names)


@pytest.mark.usefixtures("packed_first")
def test_layers_of_one_kind_keep_their_own_weights_in_torch_compile() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain, self.linear = nn.Parameter(torch.randn(64)), nn.Linear(64, 64, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            product: torch.Tensor = self.linear(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.gain)
            return x + product.relu()

    torch.manual_seed(0)
    blocks, x = [Block() for _ in range(3)], torch.randn(4, 64)
    model = nn.Sequential(*blocks).eval()
    options: dict[str, Any] = {"keep": "all", "cache": "off", "budget": 60.0}
    with torch.inference_mode(), mock.patch("mugraph.pieces.library_ways.Library.faster", return_value=()):
        compiled = torch.compile(model, backend="mugraph", options=options)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            blocks[1].linear.weight.mul_(0.5)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    results = torch_compile.compilations[-1].results.values()
    assert any(result.executable.packs for result in results)


def test_products_are_searched_for_packed_weights_where_they_multiply_by_nothing_else() -> None:
    packed = ProductRates({DType.FP32: ProductRate.of(0.9)})
    device = replace(device_for("cpu"), products={RightFactor.PACKED: packed})
    p = Program()
    x, w, v = p.input("x", (4, 16), DType.FP32), p.input("w", (8, 16), DType.FP32), p.input("v", (8, 8), DType.FP32)
    p.output((x @ w.transpose(-2, -1)).silu() @ v)
    elementwise = Program()
    elementwise.output(elementwise.input("x", (4, 16), DType.FP32).silu())

    def efficiency(program: Graph, *constants: str) -> float:
        problem = replace(program_problem(program, None), constants=frozenset(constants))
        return searched_for(problem, device).product_efficiency

    assert efficiency(p.graph, "w", "v") == 0.9
    assert efficiency(p.graph, "w") == efficiency(p.graph, "x", "w") == efficiency(p.graph) == device.product_efficiency
    assert efficiency(elementwise.graph, "x") == device.product_efficiency
