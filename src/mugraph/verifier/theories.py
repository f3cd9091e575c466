"""Equations between terms of a program, as questions to Z3.

Two theories, each sound and neither complete. *Pointwise*: at one index, elementwise operators are real arithmetic, `relu`
and `abs` are their definitions, and whatever is not elementwise is a number. *Tensors*: every operator is an uninterpreted
function on tensors, and the laws of arithmetic and properties of operators are axioms in first-order logic; sums and maxima
are functions, one for each set of axes.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from mugraph.errors import TargetUnavailable
from mugraph.ir.axes import AxisProgram, AxisSet
from mugraph.ir.ops import Kind, operator
from mugraph.ir.scalar import Scalar
from mugraph.verifier.properties import REDUCTIONS, Expression, Property

_MILLISECONDS = 400
"""Time for one question; what Z3 finds, it mostly finds within a few hundredths of a second."""

ARITHMETIC = "arithmetic"
"""What a proof rests on that needs no property."""

Pair = tuple[int, int]
"""Two terms of a program."""

_ONE, _ZERO, _MINUS_ONE = Scalar.of(1), Scalar.of(0), Scalar.of(-1)


def z3_installed() -> bool:
    """Whether Z3's Python interface is there."""
    return find_spec("z3") is not None


def z3_module() -> Any:
    """Z3's Python interface; raises TargetUnavailable with the remedy where it is not installed."""
    try:
        import z3
    except ImportError:
        raise TargetUnavailable("proofs from operator properties need Z3: pip install 'mugraph[prover]'") from None
    return z3


def pointwise(program: AxisProgram, goal: Pair, known: Sequence[Pair], properties: Sequence[Property]) -> tuple[str, ...] | None:
    """The definitions and properties by which the terms of `goal` are equal at every index, given that those of `known` are.

    None where Z3 finds no proof.
    """
    return _Pointwise(program, properties).prove(goal, known)


@dataclass(slots=True)
class _Pointwise:
    """Terms as real numbers at one index of all axes; of the properties, those without reductions take part."""

    program: AxisProgram
    properties: Sequence[Property]
    definitions: set[str] = field(default_factory=set)
    terms: dict[int, Any] = field(default_factory=dict)
    defined: list[Any] = field(default_factory=list)
    z3: Any = field(default_factory=z3_module)

    def prove(self, goal: Pair, known: Sequence[Pair]) -> tuple[str, ...] | None:
        question = [self.term(goal[0]) != self.term(goal[1]), *(self.term(x) == self.term(y) for x, y in known)]
        axioms = {fact.text: self.axiom(fact) for fact in self.properties if _is_rule(fact)}
        definitions = sorted(self.definitions)
        used = _refuted(self.z3.Solver(), [*question, *self.defined], axioms)
        return None if used is None else (*definitions, *used) or (ARITHMETIC,)

    def term(self, index: int) -> Any:
        if index not in self.terms:
            self.terms[index] = self.build(index)
        return self.terms[index]

    def build(self, index: int) -> Any:
        z3, term = self.z3, self.program.terms[index]
        if term.op in ("load", "contract", *REDUCTIONS):
            return z3.Real(f"t{index}")
        if term.is_constant:
            return self.constant(term.scalar)
        return self.apply(term.op, [self.term(i) for i in term.inputs])

    def apply(self, op: str, args: Sequence[Any]) -> Any:
        # by name: what Z3's theory of real numbers knows itself
        match op, args:
            case "add", [x, y]:
                return x + y
            case "sub", [x, y]:
                return x - y
            case "mul", [x, y]:
                return x * y
            case "square", [x]:
                return x * x
            case "div", [x, y]:
                self.defined.append(y != 0)
                return x / y
            case "relu", [x]:
                self.definitions.add("relu(x) is x where x > 0 and 0 elsewhere")
                return self.z3.If(x > 0, x, self.z3.RealVal(0))
            case "maximum", [x, y]:
                self.definitions.add("maximum(x, y) is x where x > y and y elsewhere")
                return self.z3.If(x > y, x, y)
            case "abs", [x]:
                self.definitions.add("abs(x) is x where x > 0 and -x elsewhere")
                return self.z3.If(x > 0, x, -x)
            case "less", [x, y]:
                self.definitions.add("less(x, y) is 1 where x < y and 0 elsewhere")
                return self.z3.If(x < y, self.z3.RealVal(1), self.z3.RealVal(0))
            case "equal", [x, y]:
                self.definitions.add("equal(x, y) is 1 where x = y and 0 elsewhere")
                return self.z3.If(x == y, self.z3.RealVal(1), self.z3.RealVal(0))
            case "select", [condition, x, y]:
                self.definitions.add("select(c, x, y) is y where c = 0 and x elsewhere")
                return self.z3.If(condition == 0, y, x)
            case "exp", [x]:
                power = self.function("exp", 1)(x)
                self.defined.append(power > 0)
                return power
        return self.function(op, len(args))(*args)

    def function(self, op: str, arity: int) -> Any:
        return self.z3.Function(op, *[self.z3.RealSort()] * (arity + 1))

    def axiom(self, fact: Property) -> Any:
        """The property for all reals, to be used where an operator is applied as on its left side."""
        bound = {name: self.z3.Real(f"?{name}") for name in sorted(fact.variables)}
        defined, self.defined = self.defined, []
        left, right = (self.expression(side, bound) for side in (fact.left, fact.right))
        conditions = [*self.defined, *(bound[name] > 0 for name in sorted(fact.positive))]
        self.defined = defined
        body = self.z3.Implies(self.z3.And(*conditions), left == right) if conditions else left == right
        return self.z3.ForAll(list(bound.values()), body, patterns=[left])

    def expression(self, expression: Expression, bound: dict[str, Any]) -> Any:
        if expression.name:
            return bound[expression.name]
        if expression.value is not None:
            return self.constant(expression.value)
        return self.apply(expression.op, [self.expression(arg, bound) for arg in expression.args])

    def constant(self, scalar: Scalar | None) -> Any:
        assert scalar is not None
        if not scalar.root:
            return self.z3.RealVal(str(scalar.value))
        root = self.z3.Real(str(scalar))
        self.defined += [root * root == self.z3.RealVal(str(abs(scalar.value))), root > 0 if scalar.value > 0 else root < 0]
        return root


def _is_rule(fact: Property) -> bool:
    """Whether a property says what a function that Z3 does not know gives for any arguments."""
    plain = {"relu", "abs", "maximum", "less", "equal", "select", "add", "sub", "mul", "div", "square"}
    return not fact.reduces and fact.left.op not in plain and all(arg.name for arg in fact.left.args)


def _refuted(solver: Any, question: Sequence[Any], axioms: dict[str, Any]) -> tuple[str, ...] | None:
    """The labels of the axioms by which the question has no answer; None where Z3 does not find that."""
    solver.set("timeout", _MILLISECONDS)
    solver.set("auto_config", False)
    solver.set("mbqi", False)  # it looks for models, and only refutations are wanted
    solver.set("unsat_core", True)
    solver.add(*question)
    for label, axiom in axioms.items():
        solver.assert_and_track(axiom, label)
    if str(solver.check()) != "unsat":
        return None
    return tuple(sorted(map(str, solver.unsat_core())))


def by_properties(
    program: AxisProgram, goal: Pair, known: Sequence[Pair], laws: Sequence[Property], properties: Sequence[Property]
) -> tuple[str, ...] | None:
    """The properties by which the terms of `goal` are equal under the laws, given that those of `known` are.

    None where Z3 finds no proof.
    """
    for assumed in ([], laws):  # commutativity and associativity multiply terms: first without
        found = _Tensors(program, assumed, properties).prove(goal, known)
        if found is not None:
            return found
    return None


@dataclass(slots=True)
class _Tensors:
    """Terms as functions on tensors, of a sort of their own."""

    program: AxisProgram
    laws: Sequence[Property]
    properties: Sequence[Property]
    z3: Any = field(default_factory=z3_module)
    sort: Any = None
    terms: dict[int, Any] = field(default_factory=dict)
    constants: dict[Scalar, Any] = field(default_factory=dict)
    operators: set[str] = field(default_factory=set)
    reduced: dict[str, set[AxisSet]] = field(default_factory=lambda: {name: set() for name in REDUCTIONS})

    def __post_init__(self) -> None:
        self.sort = self.z3.DeclareSort("Tensor")

    def prove(self, goal: Pair, known: Sequence[Pair]) -> tuple[str, ...] | None:
        question = [self.term(goal[0]) != self.term(goal[1]), *(self.term(x) == self.term(y) for x, y in known)]
        chosen = self.relevant()
        laws = [axiom for law in self.laws for axiom in self.axioms(law)]
        named = {f"{fact.text} #{n}": axiom for fact in chosen for n, axiom in enumerate(self.axioms(fact))}
        used = _refuted(self.z3.SimpleSolver(), [*question, *laws, *self.facts()], named)
        return None if used is None else tuple(sorted({label.rpartition(" #")[0] for label in used})) or (ARITHMETIC,)

    def relevant(self) -> list[Property]:
        """Properties one side of which can occur: all its operators outside LAX are among those met so far."""
        known, chosen = set(self.operators), []
        grown = True
        while grown:
            grown = False
            for property_ in self.properties:
                sides = [self.outside(property_, side) for side in (property_.left, property_.right)]
                if property_ not in chosen and any(side <= known for side in sides if side):
                    chosen.append(property_)
                    known |= sides[0] | sides[1]
                    grown = True
        return chosen

    def outside(self, property_: Property, side: Expression) -> frozenset[str]:
        ops = property_.operators(side)
        return frozenset(op for op in ops if op not in REDUCTIONS and operator(op).kind is Kind.OPAQUE) | (ops & {"max"})

    # --- terms ---

    def term(self, index: int) -> Any:
        if index not in self.terms:
            self.terms[index] = self.build(index)
        return self.terms[index]

    def build(self, index: int) -> Any:
        term = self.program.terms[index]
        if term.op == "load":
            return self.z3.Const(f"x{index}", self.sort)
        if term.is_constant:
            assert term.scalar is not None
            return self.constant(term.scalar)
        args = [self.term(i) for i in term.inputs]
        if term.op == "contract":
            return self.reduce("sum", term.reduced, self.apply("mul", *args))
        if term.op in REDUCTIONS:
            return self.reduce(term.op, term.reduced, args[0])
        return self.apply(term.op, *args)

    def constant(self, scalar: Scalar) -> Any:
        if scalar not in self.constants:
            self.constants[scalar] = self.z3.Const(f"c{scalar}", self.sort)
        return self.constants[scalar]

    def apply(self, op: str, *args: Any) -> Any:
        """An elementwise operator; differences and squares are sums and products."""
        self.operators.add(op)
        # by name: differences and squares are written as sums and products
        if op == "sub":
            return self.apply("add", args[0], self.apply("mul", args[1], self.constant(_MINUS_ONE)))
        if op == "square":  # by name: as above
            return self.apply("mul", args[0], args[0])
        return self.z3.Function(op, *[self.sort] * (len(args) + 1))(*args)

    def reduce(self, op: str, axes: AxisSet, x: Any) -> Any:
        self.operators.add(op)
        self.reduced[op].add(axes)
        return self.reduction(op, axes)(x)

    def reduction(self, op: str, axes: AxisSet) -> Any:
        return self.z3.Function(f"{op}{sorted(axes)}", self.sort, self.sort)

    def predicate(self, name: str) -> Any:
        return self.z3.Function(name, self.sort, self.z3.BoolSort())

    # --- axioms ---

    def axioms(self, property_: Property) -> list[Any]:
        """The property in first-order logic, once for each set of axes that its reductions may run over."""
        ops = {part.op for side in (property_.left, property_.right) for part, _ in side.walk()} & set(REDUCTIONS)
        if not ops:
            return [self.axiom(property_, frozenset())]
        return [self.axiom(property_, axes) for axes in set[AxisSet]().union(*(self.reduced[op] for op in ops))]

    def axiom(self, property_: Property, axes: AxisSet) -> Any:
        z3 = self.z3
        names = sorted(property_.variables)
        bound = {name: z3.Const(f"?{name}", self.sort) for name in names}
        left, right = (self.expression(side, bound, axes) for side in (property_.left, property_.right))
        conditions = [self.predicate("positive")(bound[name]) for name in sorted(property_.positive)]
        conditions += [self.predicate(f"constant{sorted(axes)}")(bound[name]) for name in sorted(property_.constant)]
        equation = left == right
        return z3.ForAll(list(bound.values()), z3.Implies(z3.And(*conditions), equation) if conditions else equation)

    def expression(self, expression: Expression, bound: dict[str, Any], axes: AxisSet) -> Any:
        if expression.name:
            return bound[expression.name]
        if expression.value is not None:
            return self.constant(expression.value)
        args = [self.expression(arg, bound, axes) for arg in expression.args]
        if expression.op in REDUCTIONS:
            return self.reduction(expression.op, axes)(*args)
        return self.apply(expression.op, *args)

    def facts(self) -> list[Any]:
        """What holds of the terms themselves: which are positive, which do not vary along axes, and sums of constants."""
        z3 = self.z3
        x, y = z3.Consts("?x ?y", self.sort)
        for scalar in (_ONE, _ZERO, _MINUS_ONE):
            self.constant(scalar)
        positive = self.predicate("positive")
        found = [positive(constant) for scalar, constant in self.constants.items() if scalar.value > 0]
        exp = z3.Function("exp", self.sort, self.sort)
        found.append(z3.ForAll([x], positive(exp(x)), patterns=[exp(x)]))
        all_axes = set[AxisSet]().union(*self.reduced.values())
        for axes in all_axes:
            constant = self.predicate(f"constant{sorted(axes)}")
            terms = [term for index, term in self.terms.items() if not self.program.terms[index].axes & axes]
            found += [constant(term) for term in [*terms, *self.constants.values()]]
            for op in ("mul", "add"):
                both = z3.Function(op, *[self.sort] * 3)(x, y)
                found.append(z3.ForAll([x, y], z3.Implies(z3.And(constant(x), constant(y)), constant(both)), patterns=[both]))
        for op, sets in self.reduced.items():
            found += [axiom for a in sets for b in sets if not a & b for axiom in self.nested(op, a, b)]
        multiply = z3.Function("mul", *[self.sort] * 3)
        for (a, x), (b, y) in itertools.product(self.constants.items(), repeat=2):
            if a * b in self.constants:
                found.append(multiply(x, y) == self.constants[a * b])
        return found

    def nested(self, op: str, first: AxisSet, second: AxisSet) -> list[Any]:
        """Reductions over disjoint axes may change places, and are one reduction over both."""
        x = self.z3.Const("?x", self.sort)
        outer, inner = self.reduction(op, first), self.reduction(op, second)
        found = [self.z3.ForAll([x], outer(inner(x)) == inner(outer(x)))] if first != second else []
        if first | second in self.reduced[op]:
            found.append(self.z3.ForAll([x], outer(inner(x)) == self.reduction(op, first | second)(x)))
        return found
