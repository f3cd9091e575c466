"""Inputs that floating-point arithmetic is tried with: normal numbers of many scales, and rows known to do harm.

Programs have no value for negative numbers under roots and logarithms, and nothing would be compared there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mugraph.ir.arithmetic import Array
from mugraph.ir.dtypes import round_to
from mugraph.ir.graph import Graph, Shape
from mugraph.verifier.positive_inputs import positive_inputs

SCALES = (1e-3, 1e-1, 1.0, 10.0, 1e3)
"""Standard deviations of normal inputs."""

_PERIOD = (1 << 22) + 15
"""Normal numbers repeat after so many, a prime: no two rows, tiles or slices of a tensor are alike, and rounding is cheap."""

Pattern = Callable[[Array], Array]


def _equal_elements(normal: Array) -> Array:
    """Rows of one number each: sums grow with every term, and their rounding errors with them."""
    return np.broadcast_to(normal[..., :1], normal.shape) if normal.ndim else normal


def _one_huge_element(normal: Array) -> Array:
    """One element of each row a thousand times the others: what is small beside it gets lost."""
    if not normal.ndim:
        return normal
    huge = np.argmax(np.abs(normal), axis=-1, keepdims=True)
    factors = np.where(np.arange(normal.shape[-1]) == huge, np.float32(1e3), np.float32(1))
    return np.asarray(normal * factors)


def _mixed_signs(normal: Array) -> Array:
    """Numbers between 1 and 2 with alternating signs: sums of rows cancel."""
    if not normal.ndim:
        return normal
    signs = np.where(np.arange(normal.shape[-1]) % 2 == 0, np.float32(1), np.float32(-1))
    return np.asarray((1 + np.tanh(np.abs(normal))) * signs)


ADVERSARIAL: dict[str, Pattern] = {
    "rows of equal elements": _equal_elements,
    "one huge element per row": _one_huge_element,
    "alternating signs": _mixed_signs,
}
"""Kinds of rows that sums and exponentials are known to suffer from, made of normal numbers of standard deviation 1."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of inputs: normal numbers of standard deviation `scale`, or an adversarial `pattern` made of such."""

    scale: float
    pattern: str = ""

    @property
    def standard(self) -> bool:
        """Whether these are standard normal numbers."""
        return self.scale == 1 and not self.pattern

    def __str__(self) -> str:
        return self.pattern or f"input scale {self.scale:g}"


def kinds(scales: Sequence[float] = SCALES) -> Iterator[Kind]:
    """Normal numbers of these scales, and every pattern."""
    yield from map(Kind, scales)
    yield from (Kind(1.0, name) for name in ADVERSARIAL)


def arrays_for(graph: Graph, shapes: Sequence[Shape]) -> list[Array]:
    """One array without values per input of a kernel graph, of the `shapes` given and the type that holds the input's dtype."""
    dtypes = (node.output.dtype for node in graph.inputs())
    return [np.empty(shape, round_to(dtype, 0.0).dtype) for dtype, shape in zip(dtypes, shapes, strict=True)]


def fill(graph: Graph, arrays: Sequence[Array], kind: Kind, seed: int) -> None:
    """Fill contiguous arrays, one per input of a kernel graph, with numbers rounded to the inputs' dtypes.

    They lose their signs where roots and logarithms are taken of an input itself: it stands for a variance or a probability.
    """
    rng = np.random.default_rng([seed, 0xF10A7])
    positive = positive_inputs(graph)
    for number, (node, array) in enumerate(zip(graph.inputs(), arrays, strict=True)):
        normal = rng.standard_normal(min(_PERIOD, array.size), np.float32) * np.float32(kind.scale)
        if kind.pattern:
            array[...] = round_to(node.output.dtype, ADVERSARIAL[kind.pattern](np.resize(normal, array.shape)))
        else:
            _repeat(round_to(node.output.dtype, normal), array.reshape(-1))
        if number in positive:
            np.abs(array, out=array)


def _repeat(numbers: Array, into: Array) -> None:
    for start in range(0, into.size, _PERIOD):
        rest = into[start : start + _PERIOD]
        rest[...] = numbers[: rest.size]


def random_inputs(graph: Graph, seed: int, scale: float = 1.0) -> list[Array]:
    """One array per input of a kernel graph: normal numbers of standard deviation `scale`, rounded to the input's dtype."""
    arrays = arrays_for(graph, [node.output.shape for node in graph.inputs()])
    fill(graph, arrays, Kind(scale), seed)
    return arrays
