"""Random tensors for a program, and kernels run on NumPy arrays: types that NumPy lacks travel as float32 or in torch."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from mugraph.errors import InvalidInput
from mugraph.host.array_interface import Arrays
from mugraph.host.arrays import torch_arrays
from mugraph.host.numpy_arrays import NUMPY
from mugraph.ir.arithmetic import Array
from mugraph.ir.graph import Graph
from mugraph.runtime import Executable
from mugraph.verifier.float_checks import (
    InputKind,
    Runner,
    UpdatingRunner,
    operator_by_operator,
    repeating_numbers,
)
from mugraph.verifier.updates import Update

if TYPE_CHECKING:
    from mugraph.frontend.calls.pytree import Traced


def random_tensors(program: Graph, seed: int) -> list[Any]:
    """One tensor per input of a kernel graph, of standard normal numbers; NumPy arrays unless it lacks one of their types."""
    library, tensors = _library(program), [node.output for node in program.inputs()]
    numbers = repeating_numbers(program, [tensor.shape for tensor in tensors], InputKind(1.0), seed)
    return list(map(library.repeated, numbers, tensors))


def traceable(program: Graph, inputs: Sequence[Any]) -> list[Any]:
    """The inputs as tensors of PyTorch, where it is installed: of NumPy arrays nobody knows whether they changed."""
    if not all(isinstance(array, np.ndarray) for array in inputs) or find_spec("torch") is None:
        return list(inputs)
    return _converted(program, inputs, torch_arrays())


def hidden_elements(program: Graph, inputs: Sequence[Any]) -> dict[str, Array]:
    """Where inputs of two dimensions or more are -inf, as masks are, by name: booleans of their shapes; others are left out.

    Raises InvalidInput for an input without values.
    """
    found: dict[str, Array] = {}
    for name, node, array in zip(program.input_names, program.inputs(), inputs, strict=True):
        if getattr(array, "is_meta", False):
            raise InvalidInput(
                f"argument {name} is on meta and has no numbers, of which kernels are timed; give a tensor on the CPU"
            )
        if node.output.dtype.is_floating and len(node.output.shape) > 1 and not array.min() > -np.inf:  # NaN or -inf
            hidden = np.asarray(array == -np.inf)
            if hidden.any():
                found[name] = hidden
    return found


def runner(executable: Executable) -> UpdatingRunner:
    """The kernels as the float check runs them: float arrays in (rounded to the inputs' dtypes), float arrays out."""
    return _Kernels(executable)


class _Kernels:
    """Kernels with the tensors that they were called with last, which are filled again for the next call."""

    def __init__(self, executable: Executable) -> None:
        self._executable, self._library = executable, _library(executable.graph)
        self._tensors = [node.output for node in executable.graph.inputs()]
        self._held: list[Any] = [None] * len(self._tensors)

    def __call__(self, *arrays: Array) -> Sequence[Array]:
        self._held[:] = map(self._library.refilled, self._held, arrays, self._tensors)
        return self._outputs()

    def updated(self, arrays: Sequence[Array], updates: Mapping[int, Update]) -> Sequence[Array]:
        """The outputs where inputs of types that NumPy lacks are what they were but for their updates."""
        for number, (held, array, tensor) in enumerate(zip(self._held, arrays, self._tensors, strict=True)):
            change = None if tensor.dtype.is_numpys else updates.get(number)
            self._held[number] = (
                self._library.refilled(held, array, tensor)
                if change is None
                else self._library.updated(held, change.shape, change.index, change.numbers, tensor)
            )
        return self._outputs()

    def _outputs(self) -> Sequence[Array]:
        machine = self._executable.machine
        operands = machine.moved(self._held)
        return [machine.arrays(operands).to_numpy(output) for output in self._executable(*operands)]


def torch_runner(fn: Callable[..., Any], traced: Traced, examples: Sequence[Any]) -> Runner | None:
    """The PyTorch function itself, to compare rounding errors with; None where it closes over tensors that are not a
    module's, which cannot be replaced by others. A function that refuses some numbers is run operator by operator on these; the
    runner raises InvalidInput where it refuses those of `examples`, a tensor per argument, too."""
    import torch

    from mugraph.frontend.calls.objects import leaves_of
    from mugraph.host.wide_products import WideProducts

    names = [source.name for source in traced.sources]
    if names and not (isinstance(fn, torch.nn.Module) and all(_holds(fn, name) for name in names)):
        return None
    library = torch_arrays()

    def run(*arrays: Array) -> Sequence[Array]:
        tensors = _converted(traced.graph, arrays, library)
        own, captured = tensors[: len(tensors) - len(names)], dict(zip(names, tensors[len(tensors) - len(names) :], strict=True))
        call = functools.partial(_call_with, fn, captured) if names else fn
        with torch.no_grad(), WideProducts():
            try:
                returned = leaves_of(traced.arguments.call(call, own))
            except Exception as error:  # tracing lets pass what computing does not, such as products of two dtypes
                if _runs(functools.partial(traced.arguments.call, fn, examples)):
                    return operator_by_operator(traced.graph)(*arrays)
                why = f"{type(error).__name__}: {error}".splitlines()[0]
                raise InvalidInput(f"{traced.name} cannot be run on tensors like its example inputs: {why}") from error
        places = {number: leaf for leaf, number in zip(returned, traced.results.numbers, strict=True) if number is not None}
        return [library.to_numpy(places[number]) for number in range(len(traced.graph.outputs))]

    return run


def _runs(call: Callable[[], Any]) -> bool:
    try:
        call()
    except Exception:  # whatever a function of the user's raises
        return False
    return True


def _holds(module: Any, name: str) -> bool:
    """Whether a tensor of that name can be replaced for a call."""
    import torch

    try:
        return isinstance(operator.attrgetter(name)(module), torch.Tensor)
    except AttributeError:
        return False


def _call_with(module: Any, parameters: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
    from torch.func import functional_call

    return functional_call(module, dict(parameters), args, kwargs)


def _library(program: Graph) -> Arrays:
    """PyTorch's, where NumPy lacks a type, or its products are not those that weights are packed for."""
    tensors = [node.output for node in program.inputs()] + list(program.output_tensors)
    return torch_arrays() if program.constants or not all(tensor.dtype.is_numpys for tensor in tensors) else NUMPY


def _converted(program: Graph, arrays: Sequence[Array], library: Arrays) -> list[Any]:
    return [library.from_numpy(array, node.output) for node, array in zip(program.inputs(), arrays, strict=True)]
