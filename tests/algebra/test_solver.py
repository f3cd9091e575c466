"""Cross-check with the paper's procedure, Z3 on A_eq and A_sub: only a proof can disagree with the oracle."""

from __future__ import annotations

from typing import Any

import pytest

from mugraph.algebra import Algebra, Oracle

from .rewriting import AXIOMS, BINARY, UNARY, Tree, build
from .test_oracle import EXAMPLES

z3 = pytest.importorskip("z3")

_EFFORT = 300_000
"""Of Z3, in its own units, which are the same on every machine: ten times what the hardest of its proofs here takes."""


class Theory:
    """The axioms of the paper's Table 2 over an uninterpreted sort, with integer reduction factors."""

    def __init__(self) -> None:
        self.sort = z3.DeclareSort("E")
        self.functions: dict[str, Any] = {op: z3.Function(op, self.sort, self.sort) for op in UNARY}
        self.functions |= {op: z3.Function(op, self.sort, self.sort, self.sort) for op in BINARY}
        self.functions["sum"] = z3.Function("sum", z3.IntSort(), self.sort, self.sort)
        self.related = z3.Function("subexpr", self.sort, self.sort, z3.BoolSort())
        self.solver = z3.Solver()
        self.solver.set("rlimit", _EFFORT)
        self.solver.add(*self._equations(), *self._subexpressions())

    def term(self, tree: Tree | int) -> Any:
        if isinstance(tree, int):
            return z3.IntVal(tree)
        if isinstance(tree, str):
            return z3.Int(tree[1:]) if tree == "?i" else z3.Const(tree.removeprefix("?"), self.sort)
        return self.functions[str(tree[0])](*map(self.term, tree[1:]))

    def proves(self, e: Tree, target: Tree) -> bool:
        """Whether Z3 derives subexpr(e, target) with that effort."""
        self.solver.push()
        self.solver.add(z3.Not(self.related(self.term(e), self.term(target))))
        answer = self.solver.check()
        self.solver.pop()
        return bool(answer == z3.unsat)

    def _equations(self) -> list[Any]:
        x, y, z = z3.Consts("x y z", self.sort)
        i, j = z3.Ints("i j")
        total = self.functions["sum"]
        found = []
        for left, right in AXIOMS:
            bound = [i, x, y, z] if "?i" in str(left) else [x, y, z]
            found.append(z3.ForAll(bound, self.term(left) == self.term(right)))
        found.append(z3.ForAll([x], x == total(1, x)))
        found.append(z3.ForAll([x, i, j], total(i, total(j, x)) == total(i * j, x)))
        return found

    def _subexpressions(self) -> list[Any]:
        x, y, z = z3.Consts("x y z", self.sort)
        i = z3.Int("i")
        found = [z3.ForAll([x], self.related(x, self.functions[op](x))) for op in UNARY]
        for op in BINARY:
            result = self.functions[op](x, y)
            found.append(z3.ForAll([x, y], z3.And(self.related(x, result), self.related(y, result))))
        found.append(z3.ForAll([x, i], self.related(x, self.functions["sum"](i, x))))
        found.append(z3.ForAll([x], self.related(x, x)))
        chain = z3.And(self.related(x, y), self.related(y, z))
        found.append(z3.ForAll([x, y, z], z3.Implies(chain, self.related(x, z))))
        return found


def _constants_apart(tree: Tree) -> Tree:
    """Inputs under names that no axiom quantifies over."""
    if isinstance(tree, str):
        return f"input_{tree}"
    return (tree[0], *(part if isinstance(part, int) else _constants_apart(part) for part in tree[1:]))


def _check(pairs: list[tuple[Tree, Tree]]) -> int:
    """The number of facts Z3 proves; it may prove none that the oracle denies."""
    theory, proved = Theory(), 0
    for e, target in pairs:
        algebra = Algebra()
        admitted = Oracle(algebra, [build(algebra, target)]).admits(build(algebra, e))
        if theory.proves(_constants_apart(e), _constants_apart(target)):
            assert admitted, f"Z3 proves subexpr({e}, {target}), the oracle denies it"
            proved += 1
    return proved


def test_z3_proves_nothing_that_the_oracle_denies() -> None:
    denied = [(e, target) for e, target, expected in EXAMPLES if not expected]
    assert _check(denied) == 0


def test_z3_proves_most_of_what_the_oracle_admits() -> None:
    admitted = [(e, target) for e, target, expected in EXAMPLES if expected]
    assert _check(admitted) >= len(admitted) * 3 // 4
