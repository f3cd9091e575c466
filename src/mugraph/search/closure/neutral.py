"""Maxima that change nothing: a softmax written with its row maximum is the program without it.

Programs subtract row maxima to keep exp in range. If the outputs stay the same in the field when a maximum is replaced by
an unrelated random row value, it is neutral: the search drops it, works on the plain program, and derives the shifts that the
kernels it finds need (`mugraph.search.closure.stabilize`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mugraph.algebra.fields import FieldArithmetic, FieldValue
from mugraph.search.axes import AxisProgram, pruned
from mugraph.search.closure.context import Context
from mugraph.search.closure.saturation import TinyInputs


def without_neutral_maxima(program: AxisProgram, arith: FieldArithmetic, inputs: TinyInputs) -> AxisProgram:
    """The program with every subtraction of a neutral maximum replaced by what it subtracts from."""
    context = Context.of(program, None)
    for index, term in enumerate(program.terms):
        if term.op == "max" and _neutral(program, index, context, arith, inputs):
            program = _dropped(program, index)
    return pruned(program)


def _neutral(program: AxisProgram, index: int, context: Context, arith: FieldArithmetic, inputs: TinyInputs) -> bool:
    users = [term for term in program.terms if index in term.inputs]
    if not all(term.op == "sub" and term.inputs[1] == index != term.inputs[0] for term in users):
        return False
    values = inputs.evaluate(program, context, arith)
    rng = np.random.default_rng((inputs.seed, index))
    other = arith.random(values[index].p.shape, rng)
    replaced = inputs.evaluate(program, context, arith, {index: other})
    return all(_equal(values[term], replaced[term]) for term, _ in program.outputs)


def _equal(x: FieldValue, y: FieldValue) -> bool:
    return bool(np.array_equal(x.p, y.p))


def _dropped(program: AxisProgram, maximum: int) -> AxisProgram:
    """Readers of `x - max` read x."""
    plain = {i: term.inputs[0] for i, term in enumerate(program.terms) if term.op == "sub" and term.inputs[1] == maximum}
    terms = tuple(replace(term, inputs=tuple(plain.get(i, i) for i in term.inputs)) for term in program.terms)
    outputs = tuple((plain.get(term, term), slots) for term, slots in program.outputs)
    return AxisProgram(terms, outputs, program.sizes)
