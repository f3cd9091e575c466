"""Whether the programs of a certificate for all sizes are those of two functions, at every size (docs/theory.md, "Cutoffs").

What PyTorch records of a function is a quotient of sums at every size, and so is a program with names for sizes: they are the
same where they are at as many sizes as decide about these two.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mugraph.frontend.symbolic_sizes.axes import SizeMatters
from mugraph.frontend.symbolic_sizes.count_rules import Returned
from mugraph.frontend.symbolic_sizes.index_counts import Counts, Cutoff, Quotient, Sums, cutoffs
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph
from mugraph.ir.serialize import graph_from_json, graph_to_json
from mugraph.sizes.cutoff_certificates import pair_at, places_of, ways_to_arguments
from mugraph.sizes.cutoff_proofs import DecidedPart, Family, Question, chosen_sizes
from mugraph.sizes.dims import Dim, Sizes
from mugraph.sizes.size_templates import document_of
from mugraph.verifier.generic_inputs import without_generic_values
from mugraph.verifier.random_tests import verify_graphs

Orders = Callable[[Any, Sequence[str]], tuple[Sequence[tuple[Counts, Counts]], bool, bool]]
"""Of a program with names for sizes, and these: orders of numerators and denominators of its outputs, by an independent count;
whether all divisors are positive; whether all is analytic."""


def check_programs(question: Question, document: Mapping[str, Any], orders: Orders, decided: Sequence[DecidedPart] = ()) -> None:
    """Raise SizeMatters unless the programs of a certificate that was checked are those of the two functions, at every size.

    `decided` are parts of the question whose functions are recorded already. Raises what PyTorch's recording raises.
    """
    said = {"dimensions": [dim.to_json() for dim in question.declared.dims.values()], "places": places_of(question)}
    if other := [entry for entry, own in said.items() if document[entry] != own]:
        raise SizeMatters(f"the {other[0]} of the certificate are others than those that are asked about")
    known = {part.ranges: part.families for part in decided}
    for record, ranges in zip(document["parts"], question.parts, strict=True):
        if record["cutoffs"] is None:
            for test in record["tests"]:
                _check_equal(
                    question, (), tuple(test["sizes"].values()), [graph_from_json(test[side]) for side in _SIDES], document
                )
            continue
        families = known.get(ranges) or question.families_of(ranges)
        _check_family(question, families, record, ranges, orders, document)


_SIDES = ("left", "right")
Kind = tuple[tuple[int, ...], DType]
"""Shape and type of a tensor."""


def _check_family(
    question: Question,
    families: Sequence[Family],
    record: Mapping[str, Any],
    ranges: Sequence[Dim],
    orders: Orders,
    document: Mapping[str, Any],
) -> None:
    """Whether two recorded functions are the programs with names for sizes, in a part of the ranges."""
    names = [dim.name for dim in ranges if len(dim.sizes) > 1]
    counted = [orders(record[side], names) for side in _SIDES]
    found: dict[str, Cutoff] = {}
    for family, (bounds, _, _) in zip(families, counted, strict=True):
        if len(bounds) != len(family.counted.outputs):
            raise SizeMatters("its program gives other tensors than the results of the function and operands of its calls")
        for returned, of in zip(family.counted.outputs, bounds, strict=True):
            for name, cutoff in _deciding(returned, *of).items():
                found[name] = found[name] | cutoff if name in found else cutoff
    doubtful = [not (family.has_values and positive) for family, (_, positive, _) in zip(families, counted, strict=True)]
    if any(
        doubt and not (family.counted.analytic and analytic)
        for doubt, family, (_, _, analytic) in zip(doubtful, families, counted, strict=True)
    ):
        raise SizeMatters("it divides by a sum over an axis of varying size that may be 0, and is no analytic function")
    chosen = [*itertools.product(*chosen_sizes(ranges, found))]
    for sizes in chosen:
        at = dict(zip((dim.name for dim in ranges), sizes, strict=True))
        graphs = [graph_from_json(document_of(record[side], at)) for side in _SIDES]
        _check_equal(question, families, sizes, graphs, document, doubtful)
    question.check_recorded(families, chosen[-1])


def _deciding(returned: Returned, numerator: Counts, denominator: Counts) -> dict[str, Cutoff]:
    """The cutoffs for what is recorded of a function and a quotient of sums of these orders."""
    return cutoffs(returned.bounds, Quotient(Sums(numerator), Sums(denominator)), returned.shape)


def _check_equal(
    question: Question,
    families: Sequence[Family],
    sizes: Sizes,
    programs: Sequence[Graph],
    document: Mapping[str, Any],
    doubtful: Sequence[bool] = (False, False),
) -> None:
    """Raise SizeMatters unless functions are these programs at some sizes, and have values where that is in doubt."""
    pair = pair_at(question, families, sizes)
    if document["arguments"] != ways_to_arguments(pair, families):
        raise SizeMatters("the arguments of the certificate are others than those of the functions")
    for own, program, doubt in zip((pair.left, pair.right), programs, doubtful, strict=True):
        if _kinds(own) != _kinds(program):
            raise SizeMatters(f"at {question.text(sizes)} its program takes or gives other tensors")
        if graph_to_json(own) != graph_to_json(program):
            verdict = verify_graphs(own, program, budget=question.deadline.remaining)
            if not verdict.equivalent or verdict.error_bound is None:
                raise SizeMatters(f"at {question.text(sizes)} its program is another one: {verdict.reason}")
        if doubt and (reason := without_generic_values(own, program)):
            raise SizeMatters(f"at {question.text(sizes)} it may have a value nowhere: {reason}")


def _kinds(graph: Graph) -> tuple[list[Kind], list[Kind]]:
    """Shapes and types of the tensors that a graph takes, and of those that it gives."""
    taken, given = [node.output for node in graph.inputs()], [graph.tensor(value) for value in graph.outputs]
    return [(each.shape, each.dtype) for each in taken], [(each.shape, each.dtype) for each in given]
