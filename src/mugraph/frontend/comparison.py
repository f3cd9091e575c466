"""What two functions are compared on: one list of inputs for both, and outputs that correspond (docs/verification.md).

The arguments are the tensors of the example call, each an input of its own, found in both functions by its place in the call: its
position or its name. The tensors that a function captures (parameters, buffers, closures, globals, default arguments) are
constants: what one function captures and the other too, the same tensor or an equal one, is one input of both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mugraph.errors import InvalidInput, ShapeMismatch
from mugraph.frontend.calls.calling import arguments_of, unused_name
from mugraph.frontend.calls.structures import Container, ReturnedTensor, Structure, difference, outputs_of
from mugraph.frontend.captured_tensors import SIGN_READERS, Captured, classes_of_equal, has_negative_zeros
from mugraph.ir.arithmetic import Array
from mugraph.ir.builder import GraphBuilder
from mugraph.ir.dtypes import DType
from mugraph.ir.editing import without_dead_nodes
from mugraph.ir.graph import Graph, Level, Value
from mugraph.ir.ops import ROUNDINGS, Kind, operator
from mugraph.ir.program import Program

if TYPE_CHECKING:  # PyTorch is loaded for functions only
    from mugraph.frontend.calls.pytree import Traced

Subject = Callable[..., Any] | Program | Graph


@dataclass(frozen=True, slots=True)
class Match:
    """Captured tensors, by name, that are one input of the comparison."""

    left: tuple[str, ...]
    right: tuple[str, ...]
    how: str
    """`identity`: they are one tensor; `value`: they are equal, bit by bit; `name` or `order`: they were asked to correspond,
    whatever their values; `alone`: only one of the functions has it."""

    def __str__(self) -> str:
        return " = ".join(dict.fromkeys((*self.left, *self.right)))


class Values(Mapping[int, Array]):
    """Input number -> its present value as a float64 array, converted when it is asked for."""

    def __init__(self, tensors: Mapping[int, Any]) -> None:
        self._tensors = dict(tensors)

    def __getitem__(self, number: int) -> Array:
        return np.asarray(self._tensors[number].double().cpu().numpy())

    def __iter__(self) -> Iterator[int]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two programs on the same inputs, in the same order, whose outputs correspond one to one.

    Where `mismatch` is a sentence, the functions differ whatever their tensors hold: what they take or return is not alike, and
    the graphs are as they were traced. `question` says what is compared where inputs of `fixed` have their present value, and
    `present_question` where all captured tensors have it.
    """

    left: Graph
    right: Graph
    arguments: tuple[tuple[Any, ...], ...]
    """Where in the example call the first inputs stand: position or name, then the way inside containers."""
    fixed: Mapping[int, Array]
    """Values of the captured tensors that only one of the functions has."""
    present: Mapping[int, Array]
    """Values of all captured tensors, also of those that are one input of both."""
    matched: tuple[Match, ...]
    mismatch: str | None
    question: str
    present_question: str


def compared(
    fn_a: Subject | Traced, fn_b: Subject | Traced, example_inputs: Any = None, *, for_all_weights: bool = False
) -> Comparison:
    """What `verify(fn_a, fn_b, example_inputs)` has to decide; subjects and examples are those of `mugraph.superoptimize`. Either
    may have been traced before, with the same examples.

    With `for_all_weights`, captured tensors correspond by their names, where those of one function are all the other's too, else
    by order; they must agree in shape and dtype, and everything is asked for all their values. Raises InvalidInput where they
    cannot correspond, and what `superoptimize` raises for functions and examples.
    """
    sides = (_side(fn_a, example_inputs), _side(fn_b, example_inputs))
    mismatch = _different_arguments(*sides) or _different_outputs(*sides)
    if mismatch is not None:
        return Comparison(sides[0].graph, sides[1].graph, (), {}, {}, (), mismatch, mismatch, mismatch)
    shared = _by_name_or_order(*sides) if for_all_weights else _by_value(*sides)
    joint = _Joint.of(sides, shared)
    left, right = as_stored(*(joint.graph(number, side) for number, side in enumerate(sides)))
    places, arguments = tuple(sides[0].arguments), _arguments(*sides)
    if for_all_weights:
        question = _for_all(arguments, shared)
        return Comparison(left, right, places, {}, {}, tuple(group.match for group in shared), None, question, question)
    values = {joint.first + number: group.tensor for number, group in enumerate(shared)}
    alone = {number: values[number] for number, group in enumerate(shared, joint.first) if group.match.how == "alone"}
    matched = tuple(group.match for group in shared if group.match.how != "alone")
    questions = _at_present(arguments, shared), _with_present_values(arguments, shared)
    return Comparison(left, right, places, Values(alone), Values(values), matched, None, *questions)


def as_stored(left: Graph, right: Graph) -> tuple[Graph, Graph]:
    """Two kernel graphs whose results are the numbers that are stored, if one of them rounds: what is stored is rounded, too.

    `x.half()` and `x.half() * 1` return the same numbers of fp16; the first rounds nothing that it reads, and the second does.
    """
    nodes = [node for graph in (left, right) for _, node in graph.walk()]
    if not any(node.op in ROUNDINGS.values() for node in nodes):
        return left, right
    types = {tensor.dtype for node in nodes for tensor in node.outputs}
    return _stored(left, types), _stored(right, types)


def _stored(graph: Graph, types: Collection[DType]) -> Graph:
    """A graph whose outputs are rounded to their types, where these lack numbers of some of `types`."""
    builder = GraphBuilder(graph.level)
    for node in graph.nodes:
        builder.append(node)
    outputs = []
    for value in graph.outputs:
        dtype = graph.tensor(value).dtype
        exact = all(dtype.contains(other) for other in types) or _holds_numbers_of(graph, value, dtype)
        outputs.append(value if exact else builder.add(ROUNDINGS[dtype], value))
    return builder.build(outputs)


def _holds_numbers_of(graph: Graph, value: Value, dtype: DType) -> bool:
    """Whether a value is an input of a type or rounded to it, but for the places of its elements."""
    node = graph.nodes[value.node]
    while not node.is_input and node.body is None and operator(node.op).kind is Kind.DATA and len(node.inputs) == 1:
        node = graph.nodes[node.inputs[0].node]
    return node.op == ROUNDINGS[dtype] or (node.is_input and dtype.contains(node.output.dtype))


# --- one function or program ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two functions: its graph, which input each tensor of the example call is, what it captures and returns."""

    graph: Graph
    arguments: Mapping[tuple[Any, ...], int]
    """By place in the example call (position or name, then keys inside containers) the input of the graph."""
    captured: tuple[Captured, ...]
    returned: Structure
    is_program: bool
    """Programs return tensors one after the other, whatever the other function puts them into."""

    def argument(self, place: tuple[Any, ...]) -> tuple[str, str]:
        """Name and kind (shape and dtype) of an argument."""
        number = self.arguments[place]
        return self.graph.input_names[number], str(self.graph.inputs()[number].output)


def _side(fn: Subject | Traced, example_inputs: Any) -> _Side:
    if isinstance(fn, Program | Graph):
        return _of_program(fn.graph if isinstance(fn, Program) else fn, example_inputs)
    if callable(fn):
        if example_inputs is None:
            raise InvalidInput("give example_inputs, a tuple of tensors of the shapes and dtypes to compare on")
        from mugraph.frontend import trace  # PyTorch is loaded for functions only

        fn = trace(fn, example_inputs)
    if not hasattr(fn, "graph"):
        raise InvalidInput(f"cannot compare a {type(fn).__name__}; give a function of PyTorch tensors or a mugraph.Program")
    return _of_traced(fn, example_inputs)


def _of_program(graph: Graph, example_inputs: Any) -> _Side:
    if graph.level is not Level.KERNEL:
        raise InvalidInput(f"only kernel graphs can be compared, not a {graph.level} graph")
    if not graph.input_names:
        raise InvalidInput("the program reads nothing, so its outputs are constants; give it an input")
    args, kwargs = ((), {}) if example_inputs is None else arguments_of(example_inputs)
    if example_inputs is not None:
        _check_examples(graph, args, kwargs)
    places = [(name,) if kwargs else (number,) for number, name in enumerate(graph.input_names)]
    outputs = tuple(ReturnedTensor(number, tensor) for number, tensor in enumerate(graph.output_tensors))
    return _Side(graph, {place: number for number, place in enumerate(places)}, (), Container(tuple, None, None, outputs), True)


def _check_examples(graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise InvalidInput or ShapeMismatch for examples that a program does not take, by position or by name."""
    names = graph.input_names
    if (kwargs and kwargs.keys() != set(names)) or (not kwargs and len(args) != len(names)):
        raise InvalidInput(f"give the program {len(names)} tensors, in this order or by these names: {', '.join(names)}")
    given = [kwargs[name] for name in names] if kwargs else args
    for node, name, value in zip(graph.inputs(), names, given, strict=True):
        if not hasattr(value, "shape"):
            raise InvalidInput(f"input {name} must be a tensor, not {type(value).__name__}")
        if tuple(value.shape) != node.output.shape:
            raise ShapeMismatch(f"input {name} has shape {list(node.output.shape)}, the example {list(value.shape)}")


def _of_traced(traced: Traced, example_inputs: Any) -> _Side:
    from mugraph.frontend.calls.pytree import places_of_tensors
    from mugraph.frontend.recording.returned import structure_from

    args, kwargs = arguments_of(example_inputs)
    places, values = places_of_tensors(args, kwargs), traced.values(args, kwargs)
    given = [*traced.arguments.given(args, kwargs), *(None for _ in traced.sources)]
    arguments = {places[which]: number for number, which in enumerate(given) if which is not None}
    captured = [number for number, which in enumerate(given) if which is None]
    names = traced.graph.input_names
    tensors = traced.graph.output_tensors
    leaves = (
        place.constant if place.number is None else ReturnedTensor(place.number, tensors[place.number])
        for place in traced.results.places
    )
    returned = structure_from(traced.results.structure, leaves)
    brought = tuple(Captured(names[number], number, values[number].detach()) for number in captured)
    return _Side(traced.graph, arguments, brought, returned, False)


# --- what must agree before values are compared ------------------------------------------------------------------------


def _different_arguments(left: _Side, right: _Side) -> str | None:
    if left.arguments.keys() != right.arguments.keys():
        counts = (len(side.arguments) for side in (left, right))
        return "one takes {} tensors, the other {}".format(*counts)
    for place in left.arguments:
        (name, kind), (_, other) = left.argument(place), right.argument(place)
        if kind != other:
            return f"one takes {name} as {kind}, the other as {other}"
    return None


def _different_outputs(left: _Side, right: _Side) -> str | None:
    def same(one: object, other: object) -> bool:
        from mugraph.frontend.calls.pytree import same_value  # programs return tensors alone, and need no PyTorch

        return same_value(one, other)

    first, second = left.returned, right.returned
    if left.is_program or right.is_program:
        first, second = (side.returned if side.is_program else _without_containers(side.returned) for side in (left, right))
    return difference(first, second, same)


def _without_containers(structure: Structure) -> Structure:
    """The leaves of a structure one after the other, as programs return them."""
    return Container(tuple, None, None, tuple(_leaves(structure)))


def _leaves(structure: Structure) -> Iterator[Any]:
    if not isinstance(structure, Container):
        yield structure
        return
    for part in structure.parts:
        yield from _leaves(part)


# --- which captured tensors correspond ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Group:
    """Captured tensors of the two functions that become one input."""

    members: tuple[tuple[Captured, ...], tuple[Captured, ...]]
    how: str

    @property
    def tensor(self) -> Any:
        """The value they have now."""
        return (*self.members[0], *self.members[1])[0].tensor

    @property
    def is_finite(self) -> bool:
        """Whether they hold numbers only now, and neither infinities nor NaN."""
        import torch

        from mugraph.frontend.operators.torch_casts import widened

        if self.tensor.is_meta:
            return True
        return bool(torch.isfinite(torch.stack(torch.aminmax(widened(self.tensor.detach())))).all())

    @property
    def match(self) -> Match:
        """The group by names."""
        left, right = (tuple(captured.name for captured in members) for members in self.members)
        return Match(left, right, self.how)


def _by_value(left: _Side, right: _Side) -> list[_Group]:
    """Captured tensors that are one tensor, or equal bit by bit.

    Equal ones that are not the same on both sides become one input, all of them: whatever is shown for it holds for the values
    they have now, and no choice of partners could be a wrong one.
    """
    groups: list[_Group] = []
    for ours, theirs in classes_of_equal(left.captured, right.captured):
        by_memory: dict[Any, tuple[list[Captured], list[Captured]]] = {}
        for number, members in enumerate((ours, theirs)):
            for captured in members:
                by_memory.setdefault(captured.memory, ([], []))[number].append(captured)
        same = all(one and other for one, other in by_memory.values())
        if same or not (ours and theirs):
            how = "identity" if same else "alone"
            groups.extend(_Group((tuple(one), tuple(other)), how) for one, other in by_memory.values())
        else:
            groups.append(_Group((tuple(ours), tuple(theirs)), "value"))
    for group in groups:
        if group.how == "alone" and group.tensor.is_meta:
            raise InvalidInput(f"tensor {group.match} has no values (it is on the meta device); use for_all_weights=True")
        if group.how == "alone" and not group.is_finite:
            what = f"tensor {group.match} holds infinities or NaN, of which nothing can be proved, and only one function has it"
            raise InvalidInput(f"{what}; give it to both, or use for_all_weights=True")
        if group.how == "alone" and has_negative_zeros(group.tensor) and any(map(_reads_signs, (left.graph, right.graph))):
            what = f"tensor {group.match} holds -0.0, whose sign is no part of proofs, and only one function has it"
            raise InvalidInput(f"{what}; give it to both, or use for_all_weights=True")
    return groups


def _reads_signs(graph: Graph) -> bool:
    return any(node.op in SIGN_READERS for _, node in graph.walk())


def _by_name_or_order(left: _Side, right: _Side) -> list[_Group]:
    """Captured tensors by their names, where one function has all that the other has, else in the order of the programs."""
    ours, theirs = ({captured.name: captured for captured in side.captured} for side in (left, right))
    if ours.keys() <= theirs.keys() or theirs.keys() <= ours.keys():
        pairs = [(ours.get(name), theirs.get(name)) for name in {**ours, **theirs}]
        how = "name"
    elif len(ours) == len(theirs):
        pairs, how = list(zip(ours.values(), theirs.values(), strict=True)), "order"
    else:
        captured = f"one function captures {', '.join(ours)}, the other {', '.join(theirs)}"
        raise InvalidInput(f"for_all_weights: {captured}; give them the same names, or as many")
    for one, other in pairs:
        if one is not None and other is not None:
            _check_alike(one, other)
    return [_Group(((one,) if one else (), (other,) if other else ()), how) for one, other in pairs]


def _check_alike(one: Captured, other: Captured) -> None:
    kinds = [f"{captured.name} ({captured.tensor.dtype} {list(captured.tensor.shape)})" for captured in (one, other)]
    if (one.tensor.dtype, one.tensor.shape) != (other.tensor.dtype, other.tensor.shape):
        raise InvalidInput(f"for_all_weights: {kinds[0]} of one function cannot be {kinds[1]} of the other")


# --- one list of inputs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Joint:
    """The inputs of both graphs: the arguments in the order of the first function, then what is captured."""

    inputs: tuple[tuple[str, tuple[int, ...], Any], ...]
    """Name, shape and dtype."""
    numbers: tuple[Mapping[int, int], Mapping[int, int]]
    """For each of the two functions: by input of its graph, the joint input."""
    first: int
    """The first input that is captured."""

    @classmethod
    def of(cls, sides: tuple[_Side, _Side], groups: Sequence[_Group]) -> _Joint:
        """The arguments of the two functions, place by place, and one input for each group."""
        inputs: list[tuple[str, tuple[int, ...], Any]] = []
        numbers: tuple[dict[int, int], dict[int, int]] = ({}, {})
        members: list[tuple[tuple[int, ...], ...]] = []
        members += [tuple((side.arguments[place],) for side in sides) for place in sides[0].arguments]
        members += [tuple(tuple(captured.input for captured in some) for some in group.members) for group in groups]
        for joint, parts in enumerate(members):
            number, own = next((number, own) for number, some in enumerate(parts) for own in some)
            node = sides[number].graph.inputs()[own]
            taken = {name for name, _, _ in inputs}
            inputs.append((unused_name(str(node["name"]), taken), node.output.shape, node.output.dtype))
            for number, some in enumerate(parts):
                numbers[number].update(dict.fromkeys(some, joint))
        return cls(tuple(inputs), numbers, len(sides[0].arguments))

    def graph(self, number: int, side: _Side) -> Graph:
        """The graph of a function on these inputs, with one output for each tensor that it returns."""
        builder = GraphBuilder(Level.KERNEL)
        joint = [builder.input(name, shape, dtype) for name, shape, dtype in self.inputs]
        own = itertools.count()
        moved: dict[Value, Value] = {}
        for index, node in enumerate(side.graph.nodes):
            if node.is_input:
                moved[Value(index)] = joint[self.numbers[number][next(own)]]
                continue
            first = builder.append(replace(node, inputs=tuple(moved[value] for value in node.inputs)))
            moved.update((Value(index, place), Value(first.node, place)) for place in range(len(node.outputs)))
        returned = [moved[side.graph.outputs[output.number]] for output in outputs_of(side.returned)]
        return without_dead_nodes(builder.build(returned))


# --- what was asked -------------------------------------------------------------------------------------------------------


def _arguments(left: _Side, right: _Side) -> str:
    """The arguments by name: `x, y`; where the names of programs stand in another order, which was compared with which."""
    pairs = [(left.argument(place)[0], right.argument(place)[0]) for place in left.arguments]
    ours, theirs = zip(*pairs, strict=True) if pairs else ((), ())
    text = "for all values of " + _list("the argument", "the arguments", ours)
    if ours != theirs and set(ours) == set(theirs):
        text += f" (by position: {', '.join(f'{one} with {other}' for one, other in pairs)})"
    return text


def _for_all(arguments: str, groups: Sequence[_Group]) -> str:
    if not groups:
        return arguments
    how = "name" if groups[0].how == "name" else "order"
    return (
        f"{arguments} and of all captured tensors, which correspond by {how}: {', '.join(str(group.match) for group in groups)}"
    )


def _at_present(arguments: str, groups: Sequence[_Group]) -> str:
    matched = [str(group.match) for group in groups if group.how != "alone"]
    alone = _told_apart([group for group in groups if group.how == "alone"])
    text = arguments
    if matched:
        text += " and of " + _list("the captured tensor", "the captured tensors", matched) + ", which both functions have"
        if unreal := [str(group.match) for group in groups if group.how != "alone" and not group.is_finite]:
            text += f" (real numbers, not the infinities or NaN that {', '.join(unreal)} {_holds(unreal)} now)"
    if alone:
        text += f"; {', '.join(alone)} {'has its present value' if len(alone) == 1 else 'have their present values'}"
    return text


def _with_present_values(arguments: str, groups: Sequence[_Group]) -> str:
    names = _told_apart(groups)
    return (
        f"{arguments}, with the present values of {_list('the captured tensor', 'the captured tensors', names)}"
        if names
        else arguments
    )


def _told_apart(groups: Sequence[_Group]) -> list[str]:
    """The groups by name; names that occur twice with the function that they are of."""
    names = [str(group.match) for group in groups]
    sides = ["the first" if group.members[0] else "the second" for group in groups]
    return [name if names.count(name) == 1 else f"{name} of {side}" for name, side in zip(names, sides, strict=True)]


def _holds(names: Sequence[str]) -> str:
    return "holds" if len(names) == 1 else "hold"


def _list(one: str, several: str, names: Sequence[str]) -> str:
    return f"{one if len(names) == 1 else several} {', '.join(names)}"
