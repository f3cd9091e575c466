"""What is optimized: a program or a traced function, how it is called, and tensors to run it on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mugraph.errors import InvalidInput
from mugraph.frontend.calls.calling import Calling, Positional, arguments_of
from mugraph.host.tensor_state import is_traceable
from mugraph.ir.graph import Graph, Level
from mugraph.ir.program import Program
from mugraph.selection.inputs import random_tensors, torch_runner
from mugraph.selection.own_function import OwnCall
from mugraph.targets.machine import Machine
from mugraph.verifier.float_checks import Runner

if TYPE_CHECKING:
    from mugraph.frontend.calls.pytree import Traced

ExampleInputs = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """What the user gave: a program, how it is called, tensors to run it on, and itself, to be called and to measure rounding."""

    program: Graph
    calling: Calling
    inputs: list[Any]
    baseline: Runner | None = None
    own: OwnCall | None = None
    name: str = "program"
    """What people call it."""
    constants: frozenset[str] = frozenset()
    """Names of the inputs that do not change between calls, and may be packed."""
    timed_rival: Callable[[], float] | None = None
    """Gives the seconds of a call of what kernels are to beat, where that is neither the function nor the program."""

    def own_on(self, machine: Machine) -> OwnCall | None:
        """The call of the user's function on tensors where the machine's kernels read them; None where there is none."""
        return None if self.own is None else self.own.on(machine, self.inputs)


def program_problem(program: Program | Graph, example_inputs: ExampleInputs | None) -> Problem:
    """The problem that a program is, on random tensors unless some are given; raises InvalidInput for what is none."""
    graph = program.graph if isinstance(program, Program) else program
    if graph.level is not Level.KERNEL:
        raise InvalidInput(f"only a kernel graph can be optimized, not a {graph.level} graph")
    if not graph.input_names:
        raise InvalidInput("the program reads nothing, so its outputs are constants; give it an input")
    constants = frozenset(str(graph.nodes[index]["name"]) for index in graph.constants)
    graph = graph.with_constants(()) if constants else graph
    calling = Positional.of(graph)
    given = example_inputs is not None
    inputs = calling.flatten(*arguments_of(example_inputs)) if given else random_tensors(graph, seed=0)
    return Problem(graph, calling, inputs, name=type(program).__name__.lower(), constants=constants)


def function_problem(traced: Traced, fn: Callable[..., Any], example_inputs: ExampleInputs) -> Problem:
    """The problem that a traced PyTorch function is."""
    args, kwargs = arguments_of(example_inputs)
    tensors, own = traced.values(args, kwargs), OwnCall(fn, args, kwargs)
    given = len(traced.arguments.tensors)
    brought = zip(traced.inputs[given:], tensors[given:], strict=True)
    weights = frozenset(name for name, tensor in brought if _is_weight(tensor))
    runner = torch_runner(fn, traced, tensors[:given])
    return Problem(traced.graph, traced, tensors, runner, own, traced.name, weights)


def _is_weight(tensor: Any) -> bool:
    """Whether a tensor that a function brings along is taken to be the same in later calls: larger ones may be caches. What may
    change without a trace, as tensors made in inference mode, would be packed in every call."""
    return is_traceable(tensor) and (tensor.dim() == 2 or type(tensor).__name__ == "Parameter")
