"""Loaded results that are called as the module or function that they were made of."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mugraph
from mugraph.checker import check_folder
from mugraph.cli import main
from mugraph.errors import InvalidInput, MugraphError, ShapeMismatch
from mugraph.pieces.partitioned import Partitioned
from mugraph.runtime import Executable
from mugraph.targets.emulator import emulator_of
from mugraph.targets.machine import machine_for

X = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(1))


class Attention(nn.Module):
    """Causal attention with a parameter that has the name of a constant, and numbers that it writes down."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.constant_0 = nn.Parameter(torch.randn(width))

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> dict[str, Any]:
        q, k, v = self.qkv(x * self.constant_0).chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True) * scale
        return {"y": y + torch.tensor([1.0, 2.0]).repeat(8), "scale": scale}


class Tied(nn.Module):
    """What is no program, with tied weights, a buffer that a call changes, and constants of several types."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(40, 16), nn.Linear(16, 40, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("count", torch.zeros(1))
        self.count: torch.Tensor

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.count += 1
        y = (self.embedding(tokens) * 0.1).exp().cumsum(-1)
        seen = torch.ones(8, 8, dtype=torch.bool).tril()
        mixed = (y @ y.mT / 6).masked_fill(~seen, -math.inf).softmax(-1) @ y
        return self.head(mixed), torch.where(seen, torch.arange(8), -1).sort().values, tokens[torch.tensor([1, 0])]


@pytest.fixture(autouse=True)
def _parameters_are_the_same_in_any_order_of_tests() -> None:
    torch.manual_seed(0)


def optimized(module: nn.Module, x: torch.Tensor) -> mugraph.Superoptimized:
    with torch.no_grad():
        return mugraph.superoptimize(module.eval(), (x,), budget=300.0, profile=False, cache="off")


def same(result: Any, module: Any, *inputs: Any) -> None:
    ours, theirs = copy.deepcopy(module), copy.deepcopy(module)
    with torch.no_grad():
        wanted, given = theirs(*inputs), result.bound_to(ours)(*inputs)
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close([*ours.buffers()], [*theirs.buffers()])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    opt = optimized(Attention(), X)
    assert opt.is_one_program
    return opt.save(tmp_path_factory.mktemp("bound") / "attention")


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    opt = optimized(Tied(), torch.randint(40, (2, 8)))
    assert isinstance(opt, Partitioned)
    return opt.save(tmp_path_factory.mktemp("bound") / "tied")


def test_constants_are_no_arguments_of_what_is_loaded(folder: Path) -> None:
    module, loaded = Attention(), mugraph.load(folder)
    assert loaded.input_names[-1] == "constant_0_2"
    with torch.no_grad():
        given = loaded(X, module.constant_0, module.qkv.weight, module.qkv.bias)
        torch.testing.assert_close(given, module(X), rtol=1e-4, atol=1e-5)
        trusted = mugraph.load(folder, trust_sources=True)
        torch.testing.assert_close(trusted.bound_to(module)(X), module(X), rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidInput, match=r"call with 4 tensors in this order: x, constant_0, qkv.weight, qkv.bias$"):
        loaded(X)
    assert check_folder(folder).reached


def test_a_result_is_bound_to_modules(folder: Path) -> None:
    loaded = mugraph.load(folder)
    for module in (Attention(), Attention()):
        same(loaded, module, X)
    bound = loaded.bound_to(module)
    with torch.no_grad():
        module.qkv.weight.mul_(0.5)  # changed in place
        module.constant_0 = nn.Parameter(torch.randn(16))  # and replaced
        for args, named in (((X,), {}), ((), {"x": X}), ((X, 1.0), {}), ((X,), {"scale": 1.0})):
            torch.testing.assert_close(bound(*args, **named), module(X), rtol=1e-4, atol=1e-5)
        with pytest.raises(InvalidInput, match=r"argument scale was 1\.0 when optimized, not 2\.0"):
            bound(X, 2.0)
        with pytest.raises(ShapeMismatch, match="argument x is"):
            bound(X[:1])
        module.double()
        with pytest.raises(ShapeMismatch, match=r"tensor constant_0 of the function is torch\.float64"):
            bound(X)


class Renamed(Attention):
    def forward(self, tokens: torch.Tensor, scale: float = 1.0) -> dict[str, Any]:
        return super().forward(tokens, scale)


class OtherDefault(Attention):
    def forward(self, x: torch.Tensor, scale: float = 3.0) -> dict[str, Any]:
        return super().forward(x, scale)


@pytest.mark.parametrize(
    ("module", "error", "words"),
    [
        (
            Attention(8),
            ShapeMismatch,
            r"tensor constant_0 of the function is torch\.float32 \[8\], optimized for torch\.float32 \[16\]",
        ),
        (Attention().half(), ShapeMismatch, r"tensor constant_0 of the function is torch\.float16"),
        (nn.Linear(16, 16), InvalidInput, "Linear takes"),
        (Renamed(), InvalidInput, "Attention takes the tensors x, and Renamed tokens"),
        (nn.Sequential(Attention()), InvalidInput, "Sequential takes|takes the tensors x"),
        (lambda x, scale=1.0: x, InvalidInput, "Attention reads a tensor constant_0, and <lambda> has none"),
        (3, InvalidInput, "bound to a module or function, not to a int"),
    ],
)
def test_what_does_not_fit_is_named(folder: Path, module: Any, error: type[MugraphError], words: str) -> None:
    with pytest.raises(error, match=words):
        mugraph.load(folder).bound_to(module)


def test_constants_of_the_call_are_those_that_were_traced(folder: Path) -> None:
    module = OtherDefault()
    bound = mugraph.load(folder).bound_to(module)
    with torch.no_grad():
        torch.testing.assert_close(bound(X, scale=1.0), module(X, scale=1.0), rtol=1e-4, atol=1e-5)
        with pytest.raises(InvalidInput, match=r"argument scale was 1\.0"):
            bound(X)


def test_functions_of_which_parts_are_programs_are_bound_too(tied: Path, tmp_path: Path) -> None:
    tokens, loaded = torch.randint(40, (2, 8)), mugraph.load(tied)
    same(loaded, Tied(), tokens)
    with pytest.raises(InvalidInput, match="call with 3 tensors in this order"):
        loaded(tokens)
    module = Tied()
    loaded.bound_to(module).save(tmp_path / "again")
    for name in ("mugraph.json", "constants.json"):
        assert (tmp_path / "again" / name).read_text() == (tied / name).read_text()
    module.head.weight = nn.Parameter(torch.randn(40, 16))
    with pytest.raises(InvalidInput, match=r"embedding\.weight and head\.weight were one tensor when the function was traced"):
        loaded.bound_to(module)


def test_functions_bring_along_what_they_close_over(tmp_path: Path) -> None:
    def made(scale: torch.Tensor) -> Callable[..., Any]:
        table = torch.linspace(0, 1, 16)  # captured, and not computed by the function: its values are not saved

        def scaled(x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x * scale + torch.arange(16) * 0.1, -1) * table

        return scaled

    function, other = made(torch.randn(16)), made(torch.randn(16))
    opt = mugraph.superoptimize(function, (X,), budget=120.0, profile=False, cache="off")
    loaded = mugraph.load(opt.save(tmp_path / "function"))
    assert [constant.name for constant in loaded.calling.constants] == [loaded.input_names[-1]]
    for each in (function, other):
        torch.testing.assert_close(loaded.bound_to(each)(X), each(X), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(opt.bound_to(each)(X), each(X), rtol=1e-4, atol=1e-5)


def of_one_program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    positions = torch.arange(16) * 0.1
    return torch.softmax(x + positions, -1), positions


def of_parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    positions, others = (torch.arange(32) * 0.1).chunk(2)
    return torch.softmax(x + positions * others, -1).sort(-1).values, positions, positions, torch.arange(3)


@pytest.mark.parametrize("function", [of_one_program, of_parts])
def test_who_writes_to_a_returned_constant_changes_no_later_call(function: Callable[..., Any], tmp_path: Path) -> None:
    opt = mugraph.superoptimize(function, (X,), budget=120.0, profile=False, cache="off")
    assert opt.is_one_program == (function is of_one_program)
    loaded = mugraph.load(opt.save(tmp_path / "positions"))
    for result in (opt, loaded, loaded.bound_to(function)):
        for returned in result(X):
            returned.fill_(7)
        torch.testing.assert_close(result(X), function(X), rtol=1e-4, atol=1e-5)


def test_what_is_bound_shares_constants(folder: Path, tied: Path) -> None:
    for place, module in ((folder, Attention), (tied, Tied)):
        loaded = mugraph.load(place)
        one, other = loaded.bound_to(module()), loaded.bound_to(module())
        again = one.bound_to(module())
        count = len(loaded.calling.constants)
        for first, *others in list(zip(*(each.calling.captured for each in (one, other, again)), strict=True))[-count:]:
            assert all(each is first for each in others)


def test_a_program_brings_nothing_along(tmp_path: Path) -> None:
    program = mugraph.Program()
    program.output(program.input("x", (8, 16)).exp())
    opt = mugraph.superoptimize(program, profile=False, cache="off")
    folder = opt.save(tmp_path / "program")
    assert not (folder / "constants.json").exists()
    with pytest.raises(InvalidInput, match="does not say how its function is called"):
        mugraph.load(folder).bound_to(torch.exp)


def changed(folder: Path, to: Path, name: str, change: Callable[[Any], Any]) -> Path:
    """A copy with another document, and the hash that it has."""
    for file in folder.rglob("*"):
        if file.is_file():
            (to / file.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
            (to / file.relative_to(folder)).write_bytes(file.read_bytes())
    document = json.loads((to / name).read_text())
    content = json.dumps(change(document) or document).encode()
    (to / name).write_bytes(content)
    manifest = json.loads((to / "mugraph.json").read_text())
    manifest["files"][name] = hashlib.sha256(content).hexdigest()
    (to / "mugraph.json").write_text(json.dumps(manifest))
    return to


def renamed(constants: dict[str, Any]) -> dict[str, Any]:
    return {f"other_{name}": value for name, value in constants.items()}


@pytest.mark.parametrize(
    "change",
    [renamed, lambda read: read["constant_0_2"].update(dtype="float64"), lambda read: read["constant_0_2"].update(shape=[64]),
     lambda read: read["constant_0_2"].update(shape=[float(size) for size in read["constant_0_2"]["shape"]]),
     lambda read: read["constant_0_2"].update(more=1),
     lambda read: dict(reversed(read.items())), lambda read: {"x": read["constant_0_2"], **read}, lambda read: [1]],
)  # fmt: skip
def test_forged_constants_are_refused_by_the_loader_and_the_checker(
    folder: Path, tmp_path: Path, change: Callable[[Any], Any]
) -> None:
    forged = changed(folder, tmp_path / "forged", "constants.json", change)
    with pytest.raises(InvalidInput, match=r"constants\.json"):
        mugraph.load(forged)
    assert main(["verify", "--certificate", str(forged), "--json"]) == 1


@pytest.mark.parametrize("entry", [{"captured": 3}, {"captured": [[3]]}, {"strides": [3]}, {"function": None}])
def test_a_malformed_signature_is_refused(folder: Path, tmp_path: Path, entry: dict[str, Any]) -> None:
    forged = changed(folder, tmp_path / "forged", "report.json", lambda read: read["signature"].update(entry))
    with pytest.raises(InvalidInput, match=r"report\.json is incomplete or malformed"):
        mugraph.load(forged)


@pytest.mark.parametrize(
    "entry",
    [
        {"arguments": None},
        {"arguments": {"output": 0}},
        {"arguments": {"tuple": [{"tuple": [{"output": 7}]}, {"dict": {}}]}},
        {"arguments": {"tuple": [{"tuple": [{"copy": 0}]}, {"dict": {}}]}},
        {"captured": [["a"]] * 9},
        {"captured": [[], [], []]},
    ],
)
def test_a_signature_that_does_not_fit_binds_nothing(folder: Path, tmp_path: Path, entry: dict[str, Any]) -> None:
    loaded = mugraph.load(changed(folder, tmp_path / "forged", "report.json", lambda read: read["signature"].update(entry)))
    with pytest.raises(InvalidInput):
        loaded.bound_to(Attention())


def test_folders_of_the_format_before_take_constants_as_further_inputs(folder: Path, tmp_path: Path) -> None:
    older = changed(folder, tmp_path / "older", "report.json", lambda read: read.pop("signature") and None)
    values = mugraph.load(folder).calling.constants
    (older / "constants.json").unlink()
    manifest = json.loads((older / "mugraph.json").read_text())
    manifest["format"] = 3
    del manifest["files"]["constants.json"]
    (older / "mugraph.json").write_text(json.dumps(manifest))
    module, loaded = Attention(), mugraph.load(older)
    assert check_folder(older).reached
    with torch.no_grad():
        given = loaded(X, module.constant_0, module.qkv.weight, module.qkv.bias, *(each.tensor() for each in values))
        torch.testing.assert_close(given, module(X), rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidInput, match="does not say how its function is called"):
        loaded.bound_to(module)


FUNCTIONS = """
import torch
import torch.nn.functional as F


def example_inputs():
    return (torch.randn(8, 16),)


def windowed(x):
    seen = (torch.arange(8)[:, None] - torch.arange(8)).abs() < 3
    return (x @ x.mT).masked_fill(~seen, float("-inf")).softmax(-1)


def wider(x):
    seen = (torch.arange(8)[:, None] - torch.arange(8)).abs() < 4
    return (x @ x.mT).masked_fill(~seen, float("-inf")).softmax(-1)
"""


def test_the_command_says_how_it_is_called_and_compares_constants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "functions.py", str(tmp_path / "out")
    file.write_text(FUNCTIONS)
    assert main(["optimize", f"{file}:windowed", "-o", out, "--no-profile", "--cache", "off"]) in (0, 1)
    line = "what is read back is called with x; it has constant_0 itself"
    assert line in capsys.readouterr().out
    assert main(["show", out, "--no-open"]) == 0
    assert line in capsys.readouterr().out
    assert main(["verify", "--certificate", out, f"{file}:windowed"]) == 0
    capsys.readouterr()
    assert main(["verify", "--certificate", out, f"{file}:wider"]) == 1
    assert "does not compute the constant constant_0" in capsys.readouterr().out
    assert main(["bench", out, "--trust-origin", "--rounds", "2"]) == 0


PARTS = """
import torch


def example_inputs():
    return (torch.randn(8, 16),)


def sorted_rows(x):
    positions = torch.arange(16) * 0.1
    return torch.softmax(x + positions, -1).sort(-1).values, torch.softmax(x - positions, -1).sort(-1).values
"""


def swapped(report: dict[str, Any]) -> None:
    report["structure"]["tuple"].reverse()


@pytest.mark.parametrize(
    ("document", "change", "words"),
    [
        ("report.json", swapped, "returns its tensors in another structure than report.json says"),
        ("constants.json", dict.clear, "does not compute the constant"),
    ],
)
def test_the_command_compares_what_functions_of_parts_return_and_bring_along(
    tmp_path: Path, document: str, change: Callable[[Any], Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "parts.py", tmp_path / "out"
    file.write_text(PARTS)
    assert main(["optimize", f"{file}:sorted_rows", "-o", str(out), "--no-profile", "--cache", "off"]) in (0, 1)
    assert main(["verify", "--certificate", str(out), f"{file}:sorted_rows"]) == 0
    forged = changed(out, tmp_path / "forged", document, change)
    capsys.readouterr()
    assert main(["verify", "--certificate", str(forged), f"{file}:sorted_rows"]) == 1
    assert words in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_results_for_a_gpu_bring_their_constants_along(tmp_path: Path) -> None:
    pytest.importorskip("cuda.core", reason="kernels for a GPU are compiled with cuda-core")
    with torch.no_grad():
        opt = mugraph.superoptimize(Attention().eval(), (X,), "cuda:sm_90", 20.0, profile=False, cache="off")
    loaded, module = mugraph.load(opt.save(tmp_path / "gpu")), Attention()
    emulator: Any = emulator_of(machine_for("cuda:sm_90"))
    loaded.executable = Executable(loaded.graph, emulator)
    with torch.no_grad():
        torch.testing.assert_close(loaded.bound_to(module)(X)["y"], module(X)["y"], rtol=1e-2, atol=1e-3)
    assert emulator.findings == []
