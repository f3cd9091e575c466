"""How often elements of a program for every size are summed over its dimensions, and so at how many sizes two such programs
have to be equal to be so at all (docs/theory.md, "Cutoffs").

The verifier counts calls of PyTorch. Here operators of saved graphs are counted, by rules of their own: every element is a
numerator over a product of divisors, each of which has a name, so that a divisor of both programs is no factor of the other.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from mugraph.checker.checks import naming
from mugraph.checker.operators import OPERATORS
from mugraph.checker.saved_files import Json, Rejected, Undecided
from mugraph.checker.scans import SCANS
from mugraph.checker.size_templates import Size, terms_of
from mugraph.checker.zero_divisors import POSITIVE, UNKNOWN, ancestors, sign_of

Orders = Counter[str]
"""By the name of a dimension, the indices that are summed over plus the degree in its size."""
Shape = tuple[Size, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Divisor:
    """Something that elements are divided by: what it is, along which of their dimensions it varies, in its own order, and its
    order."""

    what: Any
    dims: tuple[int, ...]
    orders: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of a tensor of any size: a numerator over a product of divisors.

    The numerator is a sum, of the `orders`, of functions of elements of inputs that have its own indices along dimensions whose
    size varies, and of numbers that are polynomials in the sizes. It does not vary but along the dimensions `varies`.
    """

    shape: Shape
    varies: frozenset[int]
    orders: Orders = field(default_factory=Counter)
    divisors: Counter[Divisor] = field(default_factory=Counter)
    sign: int = UNKNOWN

    @property
    def is_local(self) -> bool:
        """Whether nothing is summed over a dimension of varying size, and no number has one in it."""
        return not any(self.orders.values()) and not self.divisors

    def placed(self, shape: Shape, place: Callable[[int], int]) -> Elements:
        """The same elements in a tensor of another shape, whose dimension `place(dim)` is their `dim`."""
        divisors: Counter[Divisor] = Counter()
        for divisor, times in self.divisors.items():
            divisors[replace(divisor, dims=tuple(map(place, divisor.dims)))] += times
        return replace(self, shape=shape, varies=frozenset(map(place, self.varies)), divisors=divisors)

    def times(self, other: Elements) -> Elements:
        """Products, of elements that have one shape."""
        divisors = self.divisors + other.divisors
        return Elements(self.shape, self.varies | other.varies, self.orders + other.orders, divisors)

    def over(self, common: Counter[Divisor]) -> tuple[Orders, frozenset[int]]:
        """Orders of the numerator over divisors that have all of its own among them, and along which dimensions it varies."""
        more = common - self.divisors
        return self.orders + orders_of(more), self.varies | _dims(more)

    def summed(self, dim: int, number: Size, is_whole: bool, what: Any) -> Elements:
        """Sums of so many neighbours along a dimension, of all if it `is_whole`; `what` names the result. Raises Undecided
        where each term has a divisor of its own, and their number varies."""
        along = Counter({each: times for each, times in self.divisors.items() if dim in each.dims})
        gone = frozenset({dim}) if is_whole else frozenset[int]()
        if not along:
            orders = self.orders + Counter({number: 1}) if isinstance(number, str) else self.orders
            return replace(self, varies=self.varies - gone, orders=orders)
        if isinstance(number, str):
            raise Undecided(f"it sums over {number} what is divided by another sum at each index of it")
        theirs, dims = orders_of(along), _dims(along) - gone
        product = Divisor(("product", what), tuple(sorted(dims)), _tuple(_multiple(theirs, number)))
        orders = self.orders + _multiple(theirs, number - 1)
        return Elements(self.shape, (self.varies | _dims(along)) - gone, orders, self.divisors - along + Counter([product]))

    def hidden(self, dims: frozenset[int], what: Any) -> Elements:
        """With one divisor for all, named by `what`, that varies along these dimensions."""
        if not self.divisors:
            return self
        return replace(
            self, divisors=Counter([Divisor(("product", what), tuple(sorted(dims)), _tuple(orders_of(self.divisors)))])
        )


def orders_of(divisors: Counter[Divisor]) -> Orders:
    """Orders of a product of divisors."""
    return sum((_multiple(Counter(dict(each.orders)), times) for each, times in divisors.items()), Counter[str]())


def _multiple(orders: Orders, number: int) -> Orders:
    return Counter({name: order * number for name, order in orders.items() if order * number})


def _tuple(orders: Orders) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(orders.items()))


def _dims(divisors: Iterable[Divisor]) -> frozenset[int]:
    return frozenset(dim for each in divisors for dim in each.dims)


@dataclass(frozen=True, slots=True)
class Conditions:
    """Of two programs for every size: for each dimension the least size of a test, and at how many sizes tests decide.

    `positive` says that all divisors are positive wherever what is summed is defined; `analytic` that all is made of rational
    functions and exponentials of such, so that it does otherwise if there are values at those sizes at all. Programs that are
    `same` are so without a test.
    """

    cutoffs: Mapping[str, tuple[int, int]]
    positive: bool
    analytic: bool
    same: bool


def conditions_of(left: Json, right: Json, names: Sequence[str]) -> Conditions:
    """The conditions of the theorem for two templates, with the names of their dimensions.

    Raises Rejected for what are no two programs with inputs and outputs of the same shapes at every size, and Undecided where
    nothing follows for other sizes.
    """
    numbers: dict[Any, int] = {}
    walks, made = list[_Walk](), list[list[Elements]]()
    for side, template in (("left", left), ("right", right)):
        with naming(f"the program {side} with names for sizes"):
            walks.append(_Walk(template, names, numbers))
            made.append(walks[-1].results())
    ours, theirs = made
    inputs = [[node["outputs"] for node in template["nodes"] if node["op"] == "input"] for template in (left, right)]
    kinds = [[template["nodes"][i]["outputs"][0] for i, _ in template["outputs"]] for template in (left, right)]
    if inputs[0] != inputs[1] or kinds[0] != kinds[1]:
        raise Rejected("the programs left and right take or give tensors of different shapes or types")
    cutoffs = dict.fromkeys(names, (1, 1))
    for one, other in zip(ours, theirs, strict=True):
        common = one.divisors | other.divisors
        orders = one.over(common)[0] | other.over(common)[0]
        for name in names:
            first, count = cutoffs[name]
            cutoffs[name] = max(first, one.shape.count(name)), max(count, 1 + orders[name])
    same = walks[0].named_outputs == walks[1].named_outputs
    if same:
        cutoffs = dict.fromkeys(names, (1, 1))
    return Conditions(cutoffs, all(walk.positive for walk in walks), all(walk.analytic for walk in walks), same)


def orders_of_outputs(template: Json, names: Sequence[str]) -> tuple[list[tuple[Orders, Orders]], bool, bool]:
    """Of a template's outputs the orders of numerators and of what they are divided by; and as of `Conditions` whether all
    divisors are positive, and all is analytic. Raises what `conditions_of` raises."""
    walk = _Walk(template, names, {})
    return [(each.orders, orders_of(each.divisors)) for each in walk.results()], walk.positive, walk.analytic


class _Walk:
    """The elements of a template's tensors, node by node; nodes that compute the same in both templates have one number."""

    def __init__(self, template: Json, names: Sequence[str], numbers: dict[Any, int]) -> None:
        self.template, self.names, self.numbers = template, names, numbers
        self.elements: dict[int, Elements] = {}
        self.named: dict[int, int] = {}
        self.exponential: set[int] = set()
        self.positive = self.analytic = True

    @property
    def named_outputs(self) -> list[int]:
        """The numbers of what is returned."""
        return [self.named[index] for index, _ in self.template["outputs"]]

    def results(self) -> list[Elements]:
        """The elements of the outputs."""
        nodes = self.template["nodes"]
        needed = ancestors(nodes, {index for index, _ in self.template["outputs"]})
        inputs = 0
        for index, node in enumerate(nodes):
            if node["op"] == "input":
                self.named[index] = self._number("input", inputs)
                inputs += 1
            elif index in needed:
                attributes = json.dumps(node["attributes"], sort_keys=True)
                self.named[index] = self._number(node["op"], attributes, *(self.named[i] for i, _ in node["inputs"]))
            else:
                continue
            try:
                self.elements[index] = self._checked(node, self._computed(index, node))
            except Undecided as error:
                raise Undecided(f"operator {node['op']}: {error}") from None
            except Rejected as error:
                raise Rejected(f"operator {node['op']}: {error}") from None
        return [self.elements[index] for index, _ in self.template["outputs"]]

    def _number(self, *what: Any) -> int:
        return self.numbers.setdefault(what, len(self.numbers))

    def _checked(self, node: Json, elements: Elements) -> Elements:
        """Elements of a node, whose sizes are those that it says."""
        (tensor,) = node["outputs"]
        sizes = elements.shape
        if tensor.keys() != {"shape", "dtype"} or list(sizes) != tensor["shape"]:
            raise Rejected(f"it has shape {list(sizes)} at every size, not {tensor['shape']}")
        if not all(size in self.names if isinstance(size, str) else type(size) is int and size >= 1 for size in sizes):
            raise Rejected(f"sizes {list(sizes)} are neither numbers nor dimensions")
        return elements

    def _computed(self, index: int, node: Json) -> Elements:
        op, reads = node["op"], [self.elements[i] for i, _ in node["inputs"]]
        if "body" in node or op not in OPERATORS:
            raise Undecided("nothing is counted of it")
        if op in ("input", "constant"):
            return self._given(node)
        rule = _RULES.get(op)
        made = _function(node, reads) if rule is None else rule(self, index, node, reads)
        before = any(i in self.exponential for i, _ in node["inputs"])
        if before or op == "exp":
            self.exponential.add(index)
        if op not in _ANALYTIC or (op == "exp" and before) or _makes_booleans(node):
            self.analytic = False
        return replace(made, sign=sign_of(node, [each.sign for each in reads]))

    def _given(self, node: Json) -> Elements:
        attributes = node["attributes"]
        if node["op"] == "input":
            shape = tuple(attributes["shape"])
            return Elements(shape, _not_one(shape))
        terms = terms_of(attributes["value"])
        if terms is None:
            return Elements((), frozenset(), sign=sign_of(node, []))
        orders, divisors = Orders(), Counter[Divisor]()
        for name in {each for _, powers in terms for each in powers}:
            if name not in self.names:
                raise Rejected(f"{name} is no dimension")
            powers = [of.get(name, 0) for _, of in terms]
            divisors[Divisor(("size", name), (), ((name, 1),))] = under = max(0, -min(powers))
            orders[name] = max(0, *powers) + under
        positive = bool(terms) and all(number > 0 for number, _ in terms)
        return Elements((), frozenset(), orders, +divisors, POSITIVE if positive else UNKNOWN)


def _not_one(shape: Shape) -> frozenset[int]:
    return frozenset(dim for dim, size in enumerate(shape) if size != 1)


def _dim_of(node: Json, shape: Shape) -> int:
    dim = node["attributes"]["dim"]
    if type(dim) is not int or not 0 <= dim < len(shape):
        raise Rejected(f"there is no dimension {dim}")
    return dim


# --- elementwise -------------------------------------------------------------------------------------------------------


def _broadcast(*shapes: Shape) -> Shape:
    """The shape of a result; raises Rejected for shapes that do not fit at every size."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    sizes = [{*column} - {1} for column in zip(*padded, strict=True)]
    if any(len(there) > 1 for there in sizes):
        raise Rejected(f"shapes {' and '.join(str(list(shape)) for shape in shapes)} do not broadcast at every size")
    return tuple(there.pop() if there else 1 for there in sizes)


def _together(*operands: Elements) -> list[Elements]:
    """Operands in the dimensions of an elementwise result."""
    shape = _broadcast(*(each.shape for each in operands))
    return [each.placed(shape, lambda dim, more=len(shape) - len(each.shape): more + dim) for each in operands]  # type: ignore[misc]


def _added(walk: _Walk, index: int, node: Json, reads: list[Elements]) -> Elements:
    return _either(*_together(*reads))


def _most(counted: Iterable[Counter[T]]) -> Counter[T]:
    """Of everything as many as the one has that has the most."""
    most, *others = counted
    for each in others:
        most = most | each
    return most


def _either(*parts: Elements) -> Elements:
    """A sum of tensors of one shape, or one or another of them by the element, over all divisors that one has."""
    common = _most(each.divisors for each in parts)
    over = [each.over(common) for each in parts]
    orders = _most(each for each, _ in over)
    return Elements(parts[0].shape, frozenset().union(*(varies for _, varies in over)), orders, common)


def _multiplied(walk: _Walk, index: int, node: Json, reads: list[Elements]) -> Elements:
    x, y = _together(*reads)
    return x.times(y)


def _squared(walk: _Walk, index: int, node: Json, reads: list[Elements]) -> Elements:
    return reads[0].times(reads[0])


def _divided(walk: _Walk, index: int, node: Json, reads: list[Elements]) -> Elements:
    """Divisors of both cancel; the numerator below is a divisor unless it is local."""
    x, y = _together(*reads)
    both = x.divisors & y.divisors
    left, moved = x.divisors - both, y.divisors - both
    orders, varies = x.orders + orders_of(moved), x.varies | _dims(moved)
    if not any(y.orders.values()):
        return Elements(x.shape, varies | y.varies, orders, left)
    walk.positive &= y.sign == POSITIVE
    divisor = Divisor(("numerator", walk.named[node["inputs"][1][0]]), tuple(sorted(y.varies)), _tuple(y.orders))
    return Elements(x.shape, varies, orders, left + Counter([divisor]))


def _cast(walk: _Walk, index: int, node: Json, reads: list[Elements]) -> Elements:
    """The same numbers, but for booleans."""
    return _function(node, reads) if _makes_booleans(node) else reads[0]


def _makes_booleans(node: Json) -> bool:
    return bool(node["op"] == "cast" and node["attributes"]["dtype"]["dtype"] == "bool")


def _function(node: Json, reads: list[Elements]) -> Elements:
    """Elements of which nothing but what they are functions of is known."""
    row = OPERATORS[node["op"]]
    if row.function is None and node["op"] not in (*_MORE_FUNCTIONS, "cast"):
        raise Undecided("nothing is counted of it")
    if not all(each.is_local for each in reads):
        raise Undecided("it is no sum, product or quotient of sums over a dimension of varying size")
    operands = _together(*reads)
    return Elements(operands[0].shape, frozenset().union(*(each.varies for each in operands)))


# --- along dimensions --------------------------------------------------------------------------------------------------


def _summed(walk: _Walk, index: int, node: Json, reads: list[Elements]) -> Elements:
    (x,), number = reads, node["attributes"]["size"]
    dim = _dim_of(node, x.shape)
    made = x.summed(dim, number, number == x.shape[dim], walk.named[index])
    return replace(made, shape=_grouped(x.shape, dim, number))


def _grouped(shape: Shape, dim: int, number: Size) -> Shape:
    """A shape with neighbours along a dimension in one."""
    size = shape[dim]
    if number == size:
        return (*shape[:dim], 1, *shape[dim + 1 :])
    if isinstance(size, str) or isinstance(number, str) or number < 1 or size % number:
        raise Rejected(f"dimension {dim} of {list(shape)} has no groups of {number}")
    return (*shape[:dim], size // number, *shape[dim + 1 :])


def _along(walk: _Walk, index: int, node: Json, reads: list[Elements]) -> Elements:
    """Maxima and scans along a dimension of fixed size, of local elements."""
    (x,) = reads
    dim = _dim_of(node, x.shape)
    if isinstance(x.shape[dim], str) or not x.is_local:
        raise Undecided(f"it is no sum over {x.shape[dim]}, or one of sums")
    number = node["attributes"].get("size", 1)
    return Elements(_grouped(x.shape, dim, number), x.varies - ({dim} if number == x.shape[dim] else set()))


def _matrix_product(walk: _Walk, index: int, node: Json, reads: list[Elements]) -> Elements:
    """A product of elements with dimensions [..., rows, inner, columns], summed over the inner one."""
    x, y = reads
    if min(len(x.shape), len(y.shape)) < 2 or x.shape[-1] != y.shape[-2]:
        raise Rejected(f"there is no matrix product of {list(x.shape)} and {list(y.shape)} at every size")
    batch = _broadcast(x.shape[:-2], y.shape[:-2])
    inner, shape = len(batch) + 1, (*batch, x.shape[-2], x.shape[-1], y.shape[-1])
    rows = x.placed(shape, lambda dim: dim + inner + 1 - len(x.shape))
    columns = y.placed(shape, lambda dim: dim + inner + 2 - len(y.shape) - (dim < len(y.shape) - 2))
    product = rows.times(columns).summed(inner, shape[inner], True, walk.named[index])
    return product.placed((*batch, shape[-3], shape[-1]), lambda dim: dim - (dim > inner))


# --- places ------------------------------------------------------------------------------------------------------------


def _transposed(walk: _Walk, index: int, node: Json, reads: list[Elements]) -> Elements:
    (x,), order = reads, node["attributes"]["permutation"]
    if sorted(order) != list(range(len(x.shape))):
        raise Rejected(f"{order} is no permutation")
    return x.placed(tuple(x.shape[dim] for dim in order), order.index)


def _reshaped(walk: _Walk, index: int, node: Json, reads: list[Elements]) -> Elements:
    """Dimensions of varying size stay whole; fixed ones between two of them are put together and apart."""
    (x,), shape = reads, tuple(node["attributes"]["shape"])
    ours, theirs = _runs(x.shape), _runs(shape)
    if [(name, size) for name, size, _ in ours] != [(name, size) for name, size, _ in theirs]:
        raise Undecided(f"a dimension of varying size does not stay whole from {list(x.shape)} to {list(shape)}")
    place: dict[int, int] = {}
    group: dict[int, frozenset[int]] = {}
    for (_, _, mine), (_, _, its) in zip(ours, theirs, strict=True):
        of_run = frozenset(its)
        group |= dict.fromkeys(mine, of_run)
        if [x.shape[dim] for dim in mine] == [shape[dim] for dim in its]:
            place |= dict(zip(mine, its, strict=True))
    if all(dim in place for dim in x.varies | _dims(x.divisors)):
        return x.placed(shape, place.__getitem__)

    def spread(dims: Iterable[int]) -> frozenset[int]:
        return frozenset().union(*(group[dim] for dim in dims))

    made = x.hidden(spread(_dims(x.divisors)), walk.named[index])
    return replace(made, shape=shape, varies=spread(x.varies))


def _runs(shape: Shape) -> list[tuple[str, int, list[int]]]:
    """Dimensions of varying size, each in turn with the fixed ones behind it: its name, the product of these, and dimensions
    other than those of one element. What is varying stands in a run of its own."""
    runs: list[tuple[str, int, list[int]]] = [("", 1, [])]
    for dim, size in enumerate(shape):
        if isinstance(size, str):
            runs += [(size, 1, [dim]), ("", 1, [])]
        elif size != 1:
            _, product, dims = runs[-1]
            runs[-1] = "", product * size, [*dims, dim]
    return runs


def _repeated(walk: _Walk, index: int, node: Json, reads: list[Elements]) -> Elements:
    (x,), times = reads, node["attributes"]["times"]
    dim = _dim_of(node, x.shape)
    size = x.shape[dim]
    if times == 1 or size == 1:
        return replace(x, shape=(*x.shape[:dim], size if times == 1 else times, *x.shape[dim + 1 :]))
    if isinstance(size, str) or isinstance(times, str):
        raise Undecided(f"it repeats what varies along {size} {times} times")
    return _replaced(walk, index, x, dim, size * times)


def _sliced(walk: _Walk, index: int, node: Json, reads: list[Elements]) -> Elements:
    (x,), attributes = reads, node["attributes"]
    dim = _dim_of(node, x.shape)
    start, number, step = attributes["start"], attributes["size"], attributes["step"]
    if isinstance(x.shape[dim], str) or not all(type(each) is int for each in (start, number, step)):
        raise Undecided(f"it tells positions along {x.shape[dim]} apart")
    return _replaced(walk, index, x, dim, number)


def _replaced(walk: _Walk, index: int, x: Elements, dim: int, size: int) -> Elements:
    """Elements in other places along a dimension, which has another size."""
    shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
    gone = frozenset({dim} if size == 1 else ())
    made = x.hidden(_dims(x.divisors) - gone, walk.named[index]) if dim in _dims(x.divisors) else x
    return replace(made, shape=shape, varies=x.varies - gone)


def _joined(walk: _Walk, index: int, node: Json, reads: list[Elements]) -> Elements:
    dim = _dim_of(node, reads[0].shape)
    around = {(*x.shape[:dim], *x.shape[dim + 1 :]) for x in reads}
    sizes = [x.shape[dim] for x in reads if len(x.shape) == len(reads[0].shape)]
    if len(around) > 1 or len(sizes) < len(reads):
        raise Rejected("tensors that are put together differ in other dimensions")
    if any(isinstance(size, str) for size in sizes):
        raise Undecided("it puts together what has positions of varying number")
    shape = (*reads[0].shape[:dim], sum(int(size) for size in sizes), *reads[0].shape[dim + 1 :])
    parts = [replace(x, shape=shape) for x in reads]
    if any(dim in _dims(x.divisors) for x in parts):
        dims = _dims(each for x in parts for each in x.divisors)
        orders = _most(orders_of(x.divisors) for x in parts)
        one = Counter([Divisor(("product", walk.named[index]), tuple(sorted(dims)), _tuple(orders))])
        parts = [replace(x, divisors=one) for x in parts]
    made = _either(*parts)
    return replace(made, varies=made.varies | _not_one(shape) & {dim})


_Rule = Callable[[_Walk, int, Json, list[Elements]], Elements]
_MORE_FUNCTIONS = ("exp", "sqrt", "maximum")
_RULES: dict[str, _Rule] = {
    "add": _added, "sub": _added, "mul": _multiplied, "square": _squared, "div": _divided, "cast": _cast,
    "sum": _summed, "max": _along, **dict.fromkeys(SCANS, _along), "matmul": _matrix_product,
    "transpose": _transposed, "reshape": _reshaped, "repeat": _repeated, "slice": _sliced, "concat": _joined,
}  # fmt: skip
"""The elements that an operator makes of those it reads; others are functions of local elements."""
_ANALYTIC = frozenset(
    {"add", "sub", "mul", "square", "div", "cast", "sum", "matmul", "exp", "transpose", "reshape", "repeat", "slice", "concat"}
)
"""What gives rational functions of what it reads, and exponentials."""
