"""Maxima that change nothing: a softmax written with its row maximum is the program without it.

Programs subtract row maxima to keep exp in range. If the outputs stay the same in the field when a maximum is replaced by
an unrelated random row value, it is neutral: the search drops it, works on the plain program, and derives the shifts that the
kernels it finds need (`mugraph.search.closure.safe_softmax`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mugraph.algebra.fields import FieldArithmetic, FieldValue
from mugraph.ir.axes import AxisProgram, Term, pruned
from mugraph.search.closure.saturation import TinyInputs
from mugraph.search.closure.semantic import Context


def without_neutral_maxima(program: AxisProgram, arith: FieldArithmetic, inputs: TinyInputs) -> AxisProgram:
    """The program with every subtraction of a neutral maximum replaced by what it subtracts from."""
    context = Context.of(program, None)
    for index, term in enumerate(program.terms):
        if term.op == "max" and _neutral(program, index, context, arith, inputs):
            program = _dropped(program, index)
    return pruned(program)


def _neutral(program: AxisProgram, index: int, context: Context, arith: FieldArithmetic, inputs: TinyInputs) -> bool:
    """Whether the outputs are the same with an unrelated random row value in place of a maximum.

    Where all that reads the differences are exponentials, that scales them by a random row value instead; where they are
    exponentials of exponentials, which are random functions, only the latter shows it.
    """
    users = [i for i, term in enumerate(program.terms) if index in term.inputs]
    if not all(_subtracts(program.terms[i], index) for i in users):
        return False
    values = inputs.evaluate(program, context, arith)
    other = arith.random(values[index].p.shape, np.random.default_rng((inputs.seed, index)))
    readers = [i for i, term in enumerate(program.terms) if not set(users).isdisjoint(term.inputs)]
    changed = {index: other}
    if all(program.terms[i].op == "exp" for i in readers) and not any(term in users for term, _ in program.outputs):
        factor = FieldValue(other.p, None)
        changed = {i: arith.mul(values[i], factor) for i in readers}
    replaced = inputs.evaluate(program, context, arith, changed)
    return all(_equal(values[term], replaced[term]) for term, _ in program.outputs)


def _subtracts(term: Term, maximum: int) -> bool:
    return term.op == "sub" and term.inputs[1] == maximum != term.inputs[0]


def _equal(x: FieldValue, y: FieldValue) -> bool:
    return bool(np.array_equal(x.p, y.p))


def _dropped(program: AxisProgram, maximum: int) -> AxisProgram:
    """Readers of `x - max` read x."""
    plain = {i: term.inputs[0] for i, term in enumerate(program.terms) if term.op == "sub" and term.inputs[1] == maximum}
    terms = tuple(replace(term, inputs=tuple(plain.get(i, i) for i in term.inputs)) for term in program.terms)
    outputs = tuple((plain.get(term, term), slots) for term, slots in program.outputs)
    return AxisProgram(terms, outputs, program.sizes)
