"""Whether two functions compute the same, of which only parts are programs (docs/verification.md).

What is no program is a call of PyTorch, of which nothing is known but that equal operands give equal results. So calls of one
operator with the same numbers, whose operands are shown to be equal, have one result, an unknown tensor that both functions read;
every other call has a result of its own. Functions that are equal for all values of these unknown tensors are equal. Where that
is not shown, a witness decides: inputs at which both functions, run in float64, are far apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from mugraph.errors import MugraphError
from mugraph.frontend.calls.pytree import same_value
from mugraph.frontend.captured_tensors import SIGN_READERS, Captured, classes_of_equal, has_negative_zeros
from mugraph.frontend.comparison import Values, as_stored
from mugraph.frontend.operators.torch_casts import (
    DTYPES,
    FLOATS,
    arguments_of_call,
    draws_random_numbers,
    name_of,
    tensor_of,
    widened,
)
from mugraph.frontend.rewriting.constants import UNWRITTEN
from mugraph.frontend.rewriting.node_traits import program_of
from mugraph.ir.graph import Graph, Value
from mugraph.ir.readings import readings
from mugraph.pieces.compared_function import ComparedFunction, Kind, Variable
from mugraph.support.deadline import Deadline
from mugraph.support.seeds import seed_or_fresh
from mugraph.verifier import Verdict, prover
from mugraph.verifier.certificate import Certificate, Outcome, ProvedPiece, Tests, digest
from mugraph.verifier.counterexamples import Counterexample

_UNKNOWN = frozenset({"as_strided", *UNWRITTEN})
"""Operators whose results do not follow from the elements of their operands."""
_CASTS = frozenset({"_to_copy", "type_as"})
_QUESTIONS = 64
"""Pairs of tensors that the error asked for is divided among."""
_FAR = 1e-3
"""Relative to the largest element, a distance that no rounding of float64 makes."""
_NEAR = 1e-7
_DRAWS = 3
"""Random inputs at which a difference is looked for."""
_CHANGES: Sequence[Callable[[torch.Tensor], torch.Tensor]] = (
    torch.clone,
    torch.abs,
    lambda x: -x.abs(),
    lambda x: 100 * x,
    lambda x: x / 100,
)
"""Of random numbers, for inputs at which functions may have a value."""


def verified_in_pieces(
    functions: tuple[Any, Any],
    example_inputs: Any,
    *,
    properties: Sequence[str] = (),
    max_error: float = 2**-40,
    seed: int | None = None,
    deadline: Deadline,
    refusal: str,
) -> Verdict:
    """The answer for two functions that PyTorch can record and that are not compared as wholes: `refusal` says why.

    Raises what `mugraph.verify` raises for functions that cannot be recorded.
    """
    first, second = (ComparedFunction.of(function, example_inputs) for function in functions)
    drawn = seed_or_fresh(seed)
    mismatch = first.different_arguments(second) or first.different_results(second)
    if mismatch is not None:
        return _verdict(first, second, Outcome.DIFFERENT, mismatch, max_error, drawn, Counterexample(mismatch))
    return _Comparison((first, second), tuple(properties), max_error, drawn, deadline, refusal).verdict()


Place = tuple[ComparedFunction, fx.Node]
"""A tensor or a call, and the function that it is in."""


@dataclass(eq=False)
class _Comparison:
    """Two functions while it is found out which of their calls have equal results."""

    sides: tuple[ComparedFunction, ComparedFunction]
    properties: tuple[str, ...]
    max_error: float
    seed: int
    deadline: Deadline
    refusal: str
    numbers: Iterator[int] = field(default_factory=itertools.count)
    kinds: dict[Variable, torch.Tensor] = field(default_factory=dict)
    """By variable, a tensor without data."""
    known: dict[Variable, torch.Tensor] = field(default_factory=dict)
    """Tensors that only one function captures."""
    shared: list[str] = field(default_factory=list)
    """Operators of the calls that both functions make."""
    verdicts: list[Verdict] = field(default_factory=list)
    """Of pairs that had to be shown equal, and were."""
    same: dict[str, Certificate] = field(default_factory=dict)
    """Of pairs that are one and the same program, by its digest."""
    in_vain: int = 0
    """Pairs that were not shown equal: each might have been by an error."""

    def verdict(self) -> Verdict:
        """The answer."""
        self._bind_inputs()
        self._bind_calls()
        first, second = self.sides
        pairs = list(zip(first.outputs, second.outputs, strict=True))
        unlike = next(
            (number for number, (one, other) in enumerate(pairs) if not self.equal((first, one), (second, other))), None
        )
        if unlike is None:
            verdict, nowhere = self._equivalent(), self._without_values()
            return verdict.undecided(nowhere) if verdict.equivalent and nowhere else verdict
        found = self._witness()
        if found is not None:
            return _verdict(first, second, Outcome.DIFFERENT, str(found), self.max_error, self.seed, found, self._question())
        own = dict.fromkeys(name_of(node) for side in self.sides for node in side.unknown_calls())
        missing = f"with calls of {', '.join(own)} that are no programs" if own else f"part by part, for {self.refusal}"
        reason = f"undecided: result {unlike} is not shown to be equal, {missing}"
        return _verdict(first, second, Outcome.UNDECIDED, reason, self.max_error, self.seed, question=self._question())

    def equal(self, one: Place, other: Place) -> bool:
        """Whether two tensors, or numbers that calls give, are shown to be equal, whatever the variables hold."""
        bound = [side.variables.get(node) for side, node in (one, other)]
        if bound[0] is not None and bound[0] == bound[1]:
            return True
        if any(tensor_of(node) is None for _, node in (one, other)):
            return False
        kinds = [Kind.of(node.meta["val"]) for _, node in (one, other)]
        if kinds[0] != kinds[1]:
            return False
        if kinds[0].dtype not in DTYPES:
            return False
        try:
            left, right = (self._program(side, node) for side, node in (one, other))
        except (MugraphError, KeyError):  # it reads something that no program takes
            return False
        if digest(left) == digest(right):
            self.same[digest(left)] = Certificate.of_itself(digest(left), self.max_error / _QUESTIONS, self.seed)
            return True
        return self._verified(left, right)

    def _verified(self, left: Graph, right: Graph) -> bool:
        joint = [variable for variable, kind in self.kinds.items() if kind.dtype in DTYPES]
        known = {number: self.known[variable] for number, variable in enumerate(joint) if variable in self.known}
        verdict = prover.verify(
            *as_stored(left, right),
            properties=self.properties,
            max_error=self.max_error / _QUESTIONS,
            seed=self.seed,
            budget=self.deadline.remaining,
            known=Values(known),
        )
        if not verdict.equivalent:
            self.in_vain += 1
        else:
            read = tuple(dict.fromkeys((*readings(left), *readings(right))))
            self.verdicts.append(replace(verdict, certificate=replace(verdict.certificate, readings=read)))
        return bool(verdict.equivalent)

    def _program(self, side: ComparedFunction, result: fx.Node) -> Graph:
        """What a tensor is as a program of all variables that are numbers."""
        graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        placeholders: dict[Variable, fx.Node] = {}
        for variable, kind in self.kinds.items():
            if kind.dtype in DTYPES:
                placeholders[variable] = graph.placeholder(f"v{variable}")
                placeholders[variable].meta["val"] = kind
        for node in _needed(result, side.variables):
            bound = side.variables.get(node)
            copies[node] = graph.node_copy(node, copies.__getitem__) if bound is None else placeholders[bound]
        graph.output((copies[result],))
        return program_of(graph)[0]

    # --- variables -----------------------------------------------------------------------------------------------------

    def _bind_inputs(self) -> None:
        first, second = self.sides
        for place, node in first.arguments.items():
            self._bind([(first, node), (second, second.arguments[place])])
        captured = [
            [Captured(node.name, number, tensor) for number, (node, tensor) in enumerate(side.captured.items())]
            for side in self.sides
        ]
        nodes = [list(side.captured) for side in self.sides]
        signs_count = any(name_of(node) in SIGN_READERS for side in self.sides for node in side.nodes)
        for members in classes_of_equal(*captured):
            bound = [(side, own[each.input]) for side, own, some in zip(self.sides, nodes, members, strict=True) for each in some]
            variable = self._bind(bound)
            tensor = next(each.tensor for some in members for each in some)
            finite = tensor.dtype in DTYPES and bool(widened(tensor).isfinite().all())
            exact = finite and not (signs_count and has_negative_zeros(tensor))
            if exact and not all(members):
                self.known[variable] = tensor

    def _bind_calls(self) -> None:
        """Give the results of calls variables, those of equal calls of either function the same."""
        distinct: list[Place] = []
        for side in self.sides:
            for call in side.unknown_calls():
                known = next((other for other in distinct if self._same_call((side, call), other)), None)
                if known is None:
                    distinct.append((side, call))
                elif known[0] is not side:
                    self.shared.append(name_of(call))
                self._bind_results((side, call), known)

    def _same_call(self, one: Place, other: Place) -> bool:
        """Whether two calls have equal results, since their operands are shown to be equal."""
        (side, call), (where, known) = one, other
        if call.target is not known.target or draws_random_numbers(call) or name_of(call) in _UNKNOWN:
            return False
        if not isinstance(call.target, torch._ops.OpOverload):  # it runs other graphs
            return False
        ours, theirs = (_flat(arguments_of_call(node)) for node in (call, known))
        if [isinstance(each, fx.Node) for each in ours] != [isinstance(each, fx.Node) for each in theirs]:
            return False
        pairs = list(zip(ours, theirs, strict=True))
        values = all(same_value(*pair) for pair in pairs if not isinstance(pair[0], fx.Node))
        return values and all(self.equal((side, mine), (where, yours)) for mine, yours in pairs if isinstance(mine, fx.Node))

    def _bind_results(self, place: Place, known: Place | None) -> None:
        """Variables for what a call gives: those of a `known` call that gives the same, or new ones."""
        side, call = place
        if tensor_of(call) is not None:
            self._bind([place], None if known is None else known[0].variables[known[1]])
            return
        if not isinstance(call.meta.get("val"), (tuple, list)):  # a number, which calls alone read
            side.variables[call] = next(self.numbers) if known is None else known[0].variables[known[1]]
            return
        variables = [next(self.numbers) for _ in call.meta["val"]] if known is None else known[0].parts[known[1]]
        side.parts[call] = variables
        for use in call.users:
            if name_of(use) == "getitem":
                self._bind([(side, use)], variables[use.args[1]])  # type: ignore[index]

    def _bind(self, tensors: Sequence[Place], variable: Variable | None = None) -> Variable:
        variable = next(self.numbers) if variable is None else variable
        self.kinds[variable] = tensors[0][1].meta["val"]
        for side, node in tensors:
            side.variables[node] = variable
        return variable

    # --- answers -------------------------------------------------------------------------------------------------------

    def _equivalent(self) -> Verdict:
        proofs = [*self.same.values(), *(verdict.certificate for verdict in self.verdicts)]
        pieces = tuple(ProvedPiece(Value(number, 0), Value(number, 0), (), proof) for number, proof in enumerate(proofs))
        base = _verdict(*self.sides, Outcome.EQUIVALENT, "", self.max_error, self.seed, question=self._question())
        certificate = replace(base.certificate, tests=Tests.AGREED)
        if pieces:
            certificate = replace(certificate, pieces=pieces, passed_over=self.in_vain)
        else:  # both make the same calls, and return what these give
            calls = f"calls of {' and '.join(side.name for side in self.sides)}"
            certificate = replace(certificate, left=calls, right=calls)
        bound = None if any(proof.error_bound is None for proof in proofs) else certificate.bound_of_entries
        if bound is None or bound > self.max_error:
            pairs = len(pieces) + self.in_vain
            reason = f"undecided: {pairs} pairs were compared, and no bound below {self.max_error:.1e} covers them all"
            return _verdict(*self.sides, Outcome.UNDECIDED, reason, self.max_error, self.seed, question=self._question())
        read = tuple(dict.fromkeys(item for verdict in self.verdicts for item in verdict.certificate.readings))
        used = tuple(dict.fromkeys(name for verdict in self.verdicts for name in verdict.properties))
        domains = dict.fromkeys(verdict.domain for verdict in self.verdicts if verdict.domain)
        return replace(
            base,
            certificate=replace(certificate, error_bound=bound, readings=read),
            properties=used,
            domain=" and ".join(domains),
        )

    def _question(self) -> str:
        side = self.sides[0]
        placeholders = side.recorded.placeholders
        called = dict(zip(placeholders, side.recorded.calling.inputs, strict=True))
        names = ", ".join(called[node] for node in side.arguments.values())
        question = f"for all values of {names}, and of the tensors that both functions bring along"
        if self.known:
            question += "; those that one of them brings along have their present values"
        counted = {name: self.shared.count(name) for name in self.shared}
        calls = ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counted.items())
        return f"{question}; what PyTorch computes by {calls} of equal operands is equal" if calls else question

    def _witness(self) -> Counterexample | None:
        """A place at which the functions are far apart in float64; None where none is found, or float64 says nothing."""
        calls = [node for side in self.sides for node in side.nodes]
        if any(draws_random_numbers(node) or name_of(node) in _CASTS | _UNKNOWN for node in calls):
            return None
        for draw in range(_DRAWS):
            inputs = self._drawn(self.seed + draw)
            try:
                results = [self._run(side, inputs) for side in self.sides]
                moved = [self._run(side, _nearby(inputs)) for side in self.sides]
            except Exception:
                return None
            for number, (one, other, *near) in enumerate(zip(*results, *moved, strict=True)):
                if (found := _far_apart(number, one, other, near)) is not None:
                    arrays = tuple(inputs[place].numpy() for place in inputs if inputs[place].dtype is torch.float64)
                    recipe = {"seed": self.seed + draw, "distribution": "normal"}
                    return replace(found, inputs=arrays, recipe=recipe)
        return None

    def _without_values(self) -> str:
        """Which element of a result exists at no input that was tried, in one of the functions at least, and why that is no
        equality; empty where there is none. Results that are one variable are the same number, or none, in both."""
        sides = self.sides
        bound = [[side.variables.get(node) for node in side.outputs] for side in sides]
        looked = [number for number, (ours, its) in enumerate(zip(*bound, strict=True)) if ours is None or ours != its]
        missing: dict[int, list[torch.Tensor]] = {}
        if not looked:
            return ""
        for draw, change in enumerate(_CHANGES):
            drawn = self._drawn(self.seed + draw)
            inputs = {place: change(x) if x.dtype is torch.float64 else x for place, x in drawn.items()}
            try:
                results = [self._run(side, inputs) for side in sides]
            except Exception:  # a call that refuses such numbers: nothing is known of values
                return ""
            for number in looked:
                now = [side[number].isnan() for side in results]
                missing[number] = [was & new for was, new in zip(missing.get(number, now), now, strict=True)]
            looked = [number for number in looked if any(bool(each.any()) for each in missing[number])]
            if not looked:
                return ""
        for number in looked:
            ours, its = missing[number]
            if bool((ours ^ its).any()) or bool((ours & its).all()):
                where = "one" if bool((ours ^ its).any()) else "either"
                return f"result {number} is no number in {where} of them at any input that was tried, computed in float64"
        return ""

    def _drawn(self, seed: int) -> dict[tuple[Any, ...], torch.Tensor]:
        """Random numbers for the arguments that are floating-point tensors, the examples for others."""
        generator = torch.Generator().manual_seed(seed % 2**63)
        side = self.sides[0]
        placeholders = side.recorded.placeholders
        examples = dict(zip(placeholders, side.inputs, strict=True))
        return {
            place: torch.randn(node.meta["val"].shape, generator=generator, dtype=torch.float64)
            if node.meta["val"].dtype in FLOATS
            else examples[node].cpu()
            for place, node in side.arguments.items()
        }

    def _run(self, side: ComparedFunction, inputs: Mapping[tuple[Any, ...], torch.Tensor]) -> list[torch.Tensor]:
        given = {node: inputs[place] for place, node in side.arguments.items()}
        given |= {node: _in_float64(tensor) for node, tensor in side.captured.items()}
        placeholders = side.recorded.placeholders
        with torch.no_grad():
            return list(side.recorded.module(*(given[node].clone() for node in placeholders)))


def _needed(result: fx.Node, bound: Mapping[fx.Node, Variable]) -> list[fx.Node]:
    """What a tensor is computed of, in order, back to bound tensors; raises KeyError where it reads an unbound input."""
    order: dict[fx.Node, None] = {}
    pending = [(result, False)]
    while pending:
        node, done = pending.pop()
        if done:
            order[node] = None
        elif node not in order:
            pending.append((node, True))
            if node not in bound:
                if node.op == "placeholder":
                    raise KeyError(node.name)
                pending.extend((source, False) for source in node.all_input_nodes)
    return list(order)


def _flat(arguments: Sequence[Any]) -> list[Any]:
    """Nodes and values in arguments, one after the other, with the lengths of lists between them."""
    flat: list[Any] = []
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            flat += [len(argument), *_flat(argument)]
        else:
            flat.append(argument)
    return flat


def _nearby(inputs: Mapping[tuple[Any, ...], torch.Tensor]) -> dict[tuple[Any, ...], torch.Tensor]:
    """Inputs that differ from these by about as much as fp32 rounds: what flips there hangs on roundings."""
    generator = torch.Generator().manual_seed(0)
    return {
        place: tensor + tensor * torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * _NEAR
        if tensor.dtype is torch.float64
        else tensor
        for place, tensor in inputs.items()
    }


def _in_float64(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().double() if tensor.dtype in FLOATS else tensor.cpu()


def _far_apart(number: int, one: torch.Tensor, other: torch.Tensor, moved: Sequence[torch.Tensor]) -> Counterexample | None:
    """An element in which two results differ, also by what they are (`moved`) at inputs nearby; None where there is none."""
    if one.shape != other.shape or not one.numel():
        return None
    left, right = one.double(), other.double()
    finite = left.isfinite() & right.isfinite()
    if not bool(finite.any()):
        return None
    largest = max(float(left[finite].abs().max()), float(right[finite].abs().max()))
    enough = _FAR * largest if one.dtype.is_floating_point else 0.5
    steady = [(was - now.double()).abs() <= enough / 10 for was, now in zip((left, right), moved, strict=True)]
    distance = torch.where(finite & steady[0] & steady[1], (left - right).abs(), 0.0)
    if not bool((distance > enough).any()):
        return None
    flat = int(distance.argmax())
    index = tuple(int(place) for place in torch.unravel_index(torch.tensor(flat), tuple(one.shape)))
    values = float(left.reshape(-1)[flat]), float(right.reshape(-1)[flat])
    text = f"result {number} at {list(index)} is {values[0]:.6g} in one and {values[1]:.6g} in the other, computed in float64"
    return Counterexample(text, number, index, *values, arithmetic="float64")


def _verdict(
    first: ComparedFunction,
    second: ComparedFunction,
    outcome: Outcome,
    reason: str,
    max_error: float,
    seed: int,
    witness: Counterexample | None = None,
    question: str = "",
) -> Verdict:
    left, right = (f"calls of {side.name}" for side in (first, second))
    tests = Tests.DIFFERED if outcome is Outcome.DIFFERENT else Tests.UNFINISHED
    certificate = Certificate(left, right, seed, max_error, (), 0, (), None, (), None, outcome, tests, reason)
    return Verdict(certificate, witness, question=question)
