"""FILE.py:function: what is loaded, and what is said when it cannot be."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mugraph.cli import main
from mugraph.errors import InvalidInput
from mugraph.frontend.files import each_file_once, is_file_function, load_function
from mugraph.ir.program import Program

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(text: str) -> str:
        path = tmp_path / "user.py"
        path.write_text(text)
        return str(path)

    return write_file


def test_a_function_and_its_inputs(write: Write) -> None:
    file = write("def example_inputs():\n    return 2, 3\n\ndef add(x, y):\n    return x + y\n")
    loaded = load_function(f"{file}:add")
    assert loaded.function(*loaded.example_inputs()) == 5  # type: ignore[operator]  # a Program cannot be called
    assert loaded.name == "add"


def test_inputs_by_name(write: Write) -> None:
    file = write(
        "def example_inputs():\n    return {'y': 3, 'x': 2}\ndef power(x, z=1, y=0):\n    return x**y + z\n"
        "def scaled(x, y, z=1):\n    return x**y * z\ndef named(x, *, y):\n    return x**y\nclass Module:\n"
        "    def __call__(self, *args):\n        return self.forward(*args)\n"
        "    def forward(self, x, y):\n        return x**y\nmodule = Module()\n"
    )
    assert load_function(f"{file}:power").example_inputs() == (2, 1, 3)
    assert load_function(f"{file}:module").example_inputs() == (2, 3)
    assert load_function(f"{file}:scaled").example_inputs() == (2, 3), (
        "what another function of the file has by default is not given"
    )
    with pytest.raises(InvalidInput, match="gives 2 arguments, of which named takes y by name alone; wrap it in a function"):
        load_function(f"{file}:named").example_inputs()


def test_functions_of_one_file_share_what_is_in_it(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(
        "from typing import NamedTuple\nimport torch\nW = torch.randn(8, 4)\nclass Pair(NamedTuple):\n    first: torch.Tensor\n"
        "def f(x):\n    return Pair((x @ W).relu())\ndef g(x):\n    return Pair((x @ W).clamp(min=0))\n"
        "def example_inputs():\n    return (torch.randn(2, 8),)\n"
    )
    with each_file_once():
        first, second = load_function(f"{file}:f"), load_function(f"{file}:g")
    assert first.module is second.module
    assert load_function(f"{file}:f").module is not first.module, "the file may have been changed"
    assert main(["verify", f"{file}:f", f"{file}:g", "--seed", "1"]) == 0
    assert "equivalent" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["exp", "sin"])
def test_dynamo_tells_files_of_one_name_apart(write: Write, name: str) -> None:
    file = write(f"from torch import ones, {name}\ndef example_inputs(): return ones(2)\ndef f(x): return {name}(x)\n")
    loaded = load_function(f"{file}:f")
    call: Any = loaded.function
    program = torch._dynamo.export(lambda x: call(x))(*loaded.example_inputs()).graph_module
    torch.testing.assert_close(program(torch.ones(2)), getattr(torch, name)(torch.ones(2)))


def test_a_lone_tensor_is_one_argument(write: Write) -> None:
    file = write("import torch\ndef example_inputs():\n    return torch.ones(3, 4)\ndef f(x):\n    return x\n")
    (tensor,) = load_function(f"{file}:f").example_inputs()
    assert tensor.shape == (3, 4)


def test_what_stands_beside_the_file_can_be_imported(write: Write, tmp_path: Path) -> None:
    (tmp_path / "beside_the_file.py").write_text("VALUE = 7\n")
    path_before = list(sys.path)
    file = write("from beside_the_file import VALUE\ndef f():\n    return VALUE\n")
    assert load_function(f"{file}:f").function() == 7  # type: ignore[operator]  # a Program cannot be called
    assert sys.path == path_before


def test_a_program_needs_no_example_inputs(write: Write) -> None:
    file = write("import mugraph\nprogram = mugraph.Program()\nprogram.output(program.input('X', (2, 2)).exp())\n")
    loaded = load_function(f"{file}:program")
    assert isinstance(loaded.function, Program)
    assert loaded.example_inputs() == ()


def test_what_a_file_prints_does_not_reach_stdout(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    file = write("print('loading')\ndef example_inputs():\n    print('making')\n    return ()\ndef f():\n    pass\n")
    load_function(f"{file}:f").example_inputs()
    assert capsys.readouterr() == ("", "loading\nmaking\n")


def test_windows_paths_and_workload_names_are_told_apart() -> None:
    assert is_file_function(r"C:\models\norm.py:f")
    assert is_file_function("norm.py")
    assert not is_file_function("gated-mlp")


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("def f(): pass", "g", "has no function 'g'; it has f"),
        ("x = 1", "g", "has no function 'g'; it has none"),
        ("f = 3", "f", "user.py:f is of type int"),
        ("class f: pass", "f", "user.py:f is a class; make an instance"),
        ("def f(:\n    pass", "f", "user.py:1 is not Python"),
        ("x = 1\nx = x / 0", "f", "user.py:2: the file fails with ZeroDivisionError: division by zero"),
        ("import no_such_module", "f", "user.py:1: the file fails with ModuleNotFoundError: No module named 'no_such_module'"),
        ("import sys\nsys.exit(3)", "f", "user.py:2: the file fails with SystemExit: 3"),
    ],
)
def test_files_that_do_not_have_the_function(write: Write, text: str, name: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        load_function(f"{write(text)}:{name}")


def test_the_line_at_fault_is_named_for_relative_paths_too(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(write("x = 1\nx = x / 0"))
    monkeypatch.chdir(path.parent)
    with pytest.raises(InvalidInput, match=f"{path.name}:2: the file fails"):
        load_function(f"{path.name}:f")


@pytest.mark.parametrize(
    ("example_inputs", "words"),
    [
        ("", r"has no function example_inputs\(\); add one that returns the arguments of f"),
        ("example_inputs = 3", r"has no function example_inputs\(\)"),
        ("def example_inputs(): return 3", r"example_inputs\(\) of .* returns int; return a tuple of tensors"),
        (
            "def example_inputs():\n    return [][1]",
            r"user.py:3: example_inputs\(\) fails with IndexError: list index out of range",
        ),
        (
            "def example_inputs(): return 1, 2",
            r"gives 2 arguments, f takes \(x\): too many .*; put functions of different arguments",
        ),
        ("def example_inputs(): return {'y': 1}", r"gives 1 argument, f takes \(x\): missing a required argument: 'x'"),
        ("def example_inputs(n): return (n,)", r"example_inputs\(\) fails with TypeError: .*missing 1 required"),
    ],
)
def test_files_without_usable_example_inputs(write: Write, example_inputs: str, words: str) -> None:
    loaded = load_function(f"{write(f'def f(x): return x{chr(10)}{example_inputs}')}:f")
    with pytest.raises(InvalidInput, match=words):
        loaded.example_inputs()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("missing.py:f", "there is no file missing.py"),
        ("missing.py", "write FILE.py:function"),
        ("missing.py:", "write FILE.py:function"),
        ("model.txt:f", "write FILE.py:function"),
    ],
)
def test_names_that_are_no_functions_in_files(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        load_function(text)
