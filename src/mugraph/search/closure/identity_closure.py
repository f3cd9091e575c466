"""The closure of a program as it is written: its own terms, and no other tensors.

It needs no time, and some derivation makes the outputs whatever the program is. So it stands for a closure that was cut short
before any output was reached: of squares of sums of products there are too many subexpressions to get to the whole.
"""

from __future__ import annotations

from mugraph.ir.axes import Term
from mugraph.search.closure.saturation import Closure, Edge, Leaf, Saturation


class Transcription(Saturation):
    """Runs a closure that holds the tensors of the program alone; loops and kernels are read off it as off any other."""

    def run(self) -> Closure:
        """A node for every term, equal ones once."""
        node_of: list[int] = []
        for index, term in enumerate(self.program.terms):
            edge = self._edge(term, [node_of[i] for i in term.inputs])
            node = self._intern(self.context.mask(term.axes), self.expressions.of_terms[index], self.values[index])
            self._link(edge, node)
            node_of.append(node)
        self.closure.goals = [[node_of[term]] for term, _ in self.program.outputs]
        return self.closure

    def _edge(self, term: Term, operands: list[int]) -> Edge:
        """The operator of a term on the nodes of its operands."""
        if term.op == "load":
            return Edge("load", (), -1, leaf=Leaf(term.source, term.slots))
        nodes, reduced = self.closure.nodes, self.context.mask(term.reduced)
        if term.op != "contract" or nodes[operands[0]].mask != nodes[operands[1]].mask:
            return Edge(term.op, tuple(operands), -1, reduced, scalar=term.scalar)
        left, right = (nodes[operand] for operand in operands)  # operands with the same axes have a product, but no contraction
        expr = self.expressions.express(self.expressions.build, "mul", (left.expr, right.expr))
        assert expr is not None
        product = self._intern(left.mask, expr, self.arith.mul(left.value, right.value))
        self._link(Edge("mul", tuple(operands), -1), product)
        return Edge("sum", (product,), -1, reduced)
