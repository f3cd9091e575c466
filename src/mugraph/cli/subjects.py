"""From a word on the command line to a function and tensors to call it with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mugraph.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Subject:
    """A function to optimize; `resolve(**origin)` gives it again."""

    name: str
    description: str
    function: Any
    """A callable on PyTorch tensors, or a mugraph.Program."""
    inputs: Sequence[Any] | None
    """None for a Program, which knows its shapes."""
    origin: dict[str, Any]


def resolve(
    word: str, batch: int | None = None, dtype: str | None = None, size: str | None = None, norm: str | None = None
) -> Subject:
    """The workload, `FILE.py:function` or `FILE.onnx` that `word` names; raises InvalidInput for options that do not apply."""
    from mugraph.frontend.files import is_file_function

    options = {"--batch": batch, "--dtype": dtype, "--size": size, "--norm": norm}
    if word.endswith(".onnx"):
        return _from_onnx(word, options)
    if is_file_function(word):
        return _from_file(word, options)
    from mugraph.frontend.workloads import workload

    found = workload(word)
    inputs = found.inputs(batch, dtype or "fp32", size or "full")
    origin = {"word": word, "batch": batch, "dtype": dtype, "size": size, "norm": norm}
    return Subject(word, found.description, found.function(norm), inputs, origin)


def _from_file(word: str, options: Mapping[str, Any]) -> Subject:
    from mugraph.frontend.files import load_function
    from mugraph.ir.program import Program

    _refuse(options, f"{word} sets its sizes and types in example_inputs()")
    loaded = load_function(word)
    if isinstance(loaded.function, Program):
        return Subject(word, "a mugraph.Program", loaded.function, None, {"word": word})
    summary = (loaded.function.__doc__ or "a function of yours").strip().partition("\n")[0]
    return Subject(word, summary, loaded.function, loaded.example_inputs(), {"word": word})


def _from_onnx(word: str, options: Mapping[str, Any]) -> Subject:
    from mugraph.frontend.onnx import from_onnx

    _refuse(options, f"{word} has its sizes in it (mugraph.from_onnx gives them to open dimensions)")
    return Subject(word, "an ONNX model", from_onnx(word), None, {"word": word})


def _refuse(options: Mapping[str, Any], instead: str) -> None:
    """Raise InvalidInput for an option that only built-in workloads have."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise InvalidInput(f"{given[0]} applies to built-in workloads; {instead}")
