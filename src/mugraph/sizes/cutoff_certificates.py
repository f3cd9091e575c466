"""What is written down of a proof for all sizes, so that `mugraph.checker.all_sizes` can repeat it (docs/verification.md)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from mugraph.frontend.comparison import Comparison, compared
from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.ir.graph import Graph
from mugraph.ir.serialize import graph_from_json, graph_to_json
from mugraph.sizes.cutoff_proofs import Answer, DecidedPart, Family, Question
from mugraph.sizes.dims import Dim, Sizes
from mugraph.sizes.size_templates import document_of, sampled_sizes, template_of, without_shifts
from mugraph.support.deadline import Deadline
from mugraph.verifier.certificate import power_of_two
from mugraph.verifier.random_tests import verify_graphs
from mugraph.version import __version__

FORMAT = 1


def certificate_of(question: Question, answer: Answer, *, max_error: float, seed: int | None) -> dict[str, Any]:
    """The certificate of an answer that functions are equivalent at all sizes: a JSON object.

    It has both programs with names for sizes, which are found out here, and proved again at the sizes that decide. Raises
    SizeMatters, saying why, where programs are of no one form, or random tests alone do not show that they are equal.
    """
    tests = _Tests(max_error, seed, question.deadline)
    parts = [_part(question, part, tests) for part in answer.parts]
    bound = float(max(test["certificate"]["error_bound"] for part in parts for test in part["tests"]))
    dims = [*question.declared.dims.values()]
    inputs, arguments = _inputs(question, answer.parts[-1])
    document = {
        "format": FORMAT,
        "claim": _claim(dims, bound),
        "version": __version__,
        "dimensions": [dim.to_json() for dim in dims],
        "places": places_of(question),
        "inputs": inputs,
        "arguments": arguments,
        "max_error": max_error,
        "error_bound": bound,
        "parts": parts,
    }
    plain: dict[str, Any] = json.loads(json.dumps(document))
    return plain


def pair_at(question: Question, families: Sequence[Family], sizes: Sizes) -> Comparison:
    """The programs of both functions at some sizes, as they are recorded for all sizes, or without families as they are."""
    args, kwargs = question.examples(sizes, families[0].cuts if families else ())
    plain = [_by_names(fn) for fn in question.functions] if kwargs else question.functions
    sides = [family.cut_program(args, kwargs) for family in families] or plain
    pair = compared(sides[0], sides[1], kwargs or args)
    if pair.mismatch is not None:
        raise SizeMatters(f"at {question.text(sizes)} {pair.mismatch}")
    return pair


def _by_names(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes its arguments in the order of their names, as what is recorded of it for all sizes does."""

    def called(**kwargs: Any) -> Any:
        return fn(**kwargs)

    return called


def _claim(dims: Sequence[Dim], bound: float) -> str:
    ranges = " and ".join(
        f"{dim.name} from {dim.low} to {dim.high}" + (f" by multiples of {dim.multiple_of}" if dim.multiple_of > 1 else "")
        for dim in dims
    )
    return (
        f"for all sizes within the declared ranges, {ranges}, the two programs are one function of real numbers wherever both "
        f"are defined; a pair that is not passes with probability at most {power_of_two(bound)}"
    )


def places_of(question: Question) -> list[list[int | str]]:
    """Which dimension of which argument has which name."""
    return [[argument, position, dim.name] for argument, of in question.declared.dynamic.items() for position, dim in of.items()]


def _inputs(question: Question, part: DecidedPart) -> tuple[list[list[int | str]], list[list[Any]]]:
    """The shapes of the functions' inputs, with names for sizes, and the ways to the arguments that the first of them are."""
    pair = pair_at(question, part.families, part.sizes[0])
    shapes: list[list[int | str]] = [[*node.output.shape] for node in pair.left.inputs()]
    for argument, tensor, position, dim in question.declared.places(question.args, question.kwargs):
        if (argument,) not in pair.arguments:
            raise SizeMatters(f"argument {argument!r} is no input of the programs")
        shapes[pair.arguments.index((argument,))][position % tensor.dim()] = dim.name
    arguments, cuts = ways_to_arguments(pair, part.families), len(part.families[0].cuts) if part.families else 0
    return shapes[: len(arguments)] + shapes[len(arguments) + cuts :], arguments


def ways_to_arguments(pair: Comparison, families: Sequence[Family]) -> list[list[Any]]:
    """Of the arguments that programs have in common, but for what stands for calls: the position or name, and the way inside."""
    cuts = len(families[0].cuts) if families else 0
    return [[*way] for way in pair.arguments[: len(pair.arguments) - cuts]]


class _Tests:
    """What random tests of two programs are asked for."""

    def __init__(self, max_error: float, seed: int | None, deadline: Deadline) -> None:
        self.max_error, self.seed, self.deadline = max_error, seed, deadline

    def of(self, sizes: Mapping[str, int], left: Graph, right: Graph) -> dict[str, Any]:
        """What a certificate says of two programs at some sizes; raises SizeMatters where tests do not show that they are
        equal."""
        verdict = verify_graphs(left, right, max_error=self.max_error, seed=self.seed, budget=self.deadline.remaining)
        if not verdict.equivalent or verdict.error_bound is None:
            at = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            raise SizeMatters(f"at {at}: tests alone do not show that its programs are equal: {verdict.reason}")
        return {
            "sizes": {**sizes},
            "left": graph_to_json(left),
            "right": graph_to_json(right),
            "certificate": verdict.certificate.to_json(),
        }


def _part(question: Question, part: DecidedPart, tests: _Tests) -> dict[str, Any]:
    """What is written of a part of the ranges."""
    names = [dim.name for dim in part.ranges]
    record: dict[str, Any] = {
        "ranges": {dim.name: [dim.low, dim.high, dim.multiple_of] for dim in part.ranges},
        "cuts": [[*cut.shape] for cut in part.families[0].cuts] if part.families else [],
        "cutoffs": None,
        "left": None,
        "right": None,
    }
    if not part.families:
        pairs = {sizes: pair_at(question, (), sizes) for sizes in part.sizes}
        made = [tests.of(dict(zip(names, sizes, strict=True)), pair.left, pair.right) for sizes, pair in pairs.items()]
        return {**record, "tests": made}
    given = tree_leaves((question.args, question.kwargs))
    fixed = [size for value in given if isinstance(value, torch.Tensor) for size in value.shape]
    sampled = {sizes: pair_at(question, part.families, sizes) for sizes in sampled_sizes(part.ranges, fixed)}
    templates = [
        template_of({sizes: without_shifts(graph) for sizes, graph in side.items()}, part.ranges)
        for side in (
            {sizes: pair.left for sizes, pair in sampled.items()},
            {sizes: pair.right for sizes, pair in sampled.items()},
        )
    ]
    made = []
    for sizes in part.sizes:
        chosen = dict(zip(names, sizes, strict=True))
        made.append(tests.of(chosen, *(graph_from_json(document_of(template, chosen)) for template in templates)))
    varying = [dim.name for dim in part.ranges if len(dim.sizes) > 1]
    found = {name: part.cutoff(name) for name in varying}
    cutoffs = {name: {"first": cutoff.first, "count": cutoff.count} for name, cutoff in found.items()}
    return {**record, "cutoffs": cutoffs, "left": templates[0], "right": templates[1], "tests": made}
