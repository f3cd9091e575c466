"""What runs a function of rows: results of one dimension, called with all rows of two in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from mugraph.sizes.chunk_plans import ChunkPlan
from mugraph.sizes.rows import Rows

if TYPE_CHECKING:
    from mugraph.sizes.row_functions import RowFunction


class OfOneDimension(Protocol):
    """A result for a range of sizes of one dimension, made of the function `fn`."""

    fn: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def plan(self, size: int) -> ChunkPlan: ...
    @property
    def claim(self) -> str: ...


R = TypeVar("R", bound=OfOneDimension)


@dataclass(frozen=True, slots=True)
class RowCall:
    """What answers calls with these sizes of two dimensions by a result for all rows in one."""

    rows: Rows
    sizes: tuple[int, int]
    result: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns; raises ShapeMismatch where an argument has other sizes, and what the result raises."""
        positional, named = self.rows.merged(self.sizes, args, kwargs)
        return self.rows.parted(self.sizes, self.result(*positional, **named))


@dataclass(frozen=True, slots=True)
class RowResults(Generic[R]):
    """A function of rows, and its result with one of the first dimension and all rows in the second."""

    function: RowFunction
    result: R

    def plan(self, sizes: Sequence[int]) -> ChunkPlan:
        """How the rows of two sizes are covered; raises ShapeMismatch for sizes that were not declared."""
        return self.result.plan(self.function.rows.count(sizes))

    def run(self, sizes: Mapping[str, int]) -> Callable[..., Any]:
        """What answers calls with these sizes, by name: the function itself where that is faster than any kernels."""
        first, second = (sizes[dim.name] for dim in self.function.rows.dims)
        if not self.plan((first, second)).chunks:
            return self.result.fn
        return RowCall(self.function.rows, (first, second), self.result)

    @property
    def claim(self) -> str:
        """For which sizes results hold, and why, in words."""
        return f"{self.function.claim}. With 1 of {self.function.rows.first.name}, {self.result.claim}"
