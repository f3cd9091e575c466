"""What tensors stand for, as text: the abstract expressions of the operator table written as formulas (paper, section 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from mugraph.ir.graph import Graph, Node
from mugraph.ir.ops import Scope, apply_call, operator

_LONGEST = 110
"""Characters after which a formula names an intermediate tensor instead of writing it out."""


class Binding(IntEnum):
    """How tightly a formula's outermost operation holds its parts together."""

    SUM = 0
    PRODUCT = 1
    ATOM = 2


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula, and how tightly it binds: what surrounds it decides whether it needs parentheses."""

    text: str
    binding: Binding = Binding.ATOM

    def within(self, binding: Binding) -> str:
        """The text as a part of something that binds as tightly as `binding`."""
        return self.text if self.binding >= binding else f"({self.text})"


class Writing:
    """Constructors of abstract expressions (`mugraph.ir.arithmetic.Abstraction`) that write them down as they are."""

    def constant(self, text: str) -> Formula:
        """An exact scalar, such as 1/4096 or sqrt(1/128)."""
        return Formula(text, Binding.ATOM if text.isdecimal() or text.startswith("sqrt") else Binding.SUM)

    def add(self, x: Formula, y: Formula) -> Formula:
        """x + y."""
        return Formula(f"{x.text} + {y.text}", Binding.SUM)

    def sub(self, x: Formula, y: Formula) -> Formula:
        """x - y."""
        return Formula(f"{x.text} - {y.within(Binding.PRODUCT)}", Binding.SUM)

    def mul(self, x: Formula, y: Formula) -> Formula:
        """x · y."""
        return Formula(f"{x.within(Binding.PRODUCT)} · {y.within(Binding.ATOM)}", Binding.PRODUCT)

    def div(self, x: Formula, y: Formula) -> Formula:
        """x / y."""
        return Formula(f"{x.within(Binding.PRODUCT)} / {y.within(Binding.ATOM)}", Binding.PRODUCT)

    def exp(self, x: Formula) -> Formula:
        """exp(x)."""
        return self.opaque("exp", x)

    def sqrt(self, x: Formula) -> Formula:
        """sqrt(x)."""
        return self.opaque("sqrt", x)

    def sum(self, n: int, x: Formula) -> Formula:
        """The sum over n elements."""
        return x if n == 1 else Formula(f"sum({n}, {x.text})")

    def opaque(self, name: str, *args: Formula) -> Formula:
        """A function by its name."""
        return Formula(f"{name}({', '.join(arg.text for arg in args)})")


def formulas(graph: Graph, names: Sequence[str], operands: Sequence[Formula] = ()) -> list[tuple[Formula, ...]]:
    """A formula for each output of each node; `names` stand in for nodes whose formulas grow long, `operands` for iterators.

    A tensor of a block has the formula of the whole tensor it is a tile of, sums being over what a block sees.
    """
    found: list[tuple[Formula, ...]] = []
    for node, name in zip(graph.nodes, names, strict=True):
        written = _written(graph, node, name, [found[value.node][value.output] for value in node.inputs], operands)
        found.append(tuple(_shortened(formula, name, number) for number, formula in enumerate(written)))
    return found


def _written(graph: Graph, node: Node, name: str, inputs: Sequence[Formula], operands: Sequence[Formula]) -> tuple[Formula, ...]:
    if node.is_input:
        return (Formula(name),)
    if node.is_iterator:
        operand = node["operand"]
        return (operands[operand] if isinstance(operand, int) and operand < len(operands) else Formula(name),)
    if node.body is not None:
        body = formulas(node.body, [f"{name}.%{index}" for index in range(len(node.body.nodes))], inputs)
        return tuple(body[value.node][value.output] for value in node.body.outputs)
    tensors = [graph.tensor(value) for value in node.inputs]
    call = apply_call(node.op, tensors, dict(node.attributes), Scope(graph.grid or graph.block, graph.loop))
    return (operator(node.op).express(Writing(), call, inputs),)


def _shortened(formula: Formula, name: str, output: int) -> Formula:
    if len(formula.text) <= _LONGEST:
        return formula
    return Formula(f"{name}.{output}" if output else name)
