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
    """The workload or `FILE.py:function` that `word` names; raises InvalidInput for options that do not apply to it."""
    from mugraph.frontend.files import is_file_function

    if is_file_function(word):
        return _from_file(word, {"--batch": batch, "--dtype": dtype, "--size": size, "--norm": norm})
    from mugraph.frontend.workloads import workload

    found = workload(word)
    inputs = found.inputs(batch, dtype or "fp32", size or "full")
    origin = {"word": word, "batch": batch, "dtype": dtype, "size": size, "norm": norm}
    return Subject(word, found.description, found.function(norm), inputs, origin)


def _from_file(word: str, options: Mapping[str, Any]) -> Subject:
    from mugraph.frontend.files import load_function
    from mugraph.ir.program import Program

    given = [name for name, value in options.items() if value is not None]
    if given:
        raise InvalidInput(f"{given[0]} applies to built-in workloads; {word} sets its sizes in example_inputs()")
    loaded = load_function(word)
    if isinstance(loaded.function, Program):
        return Subject(word, "a mugraph.Program", loaded.function, None, {"word": word})
    summary = (loaded.function.__doc__ or "a function of yours").strip().partition("\n")[0]
    return Subject(word, summary, loaded.function, loaded.example_inputs(), {"word": word})
