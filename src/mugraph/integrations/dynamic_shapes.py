"""Dimensions whose size is known only when the function is called.

Kernels are compiled for sizes. What is searched, verified and measured carefully is a small table of sizes; any other size of
the declared ranges is served, from its first call on, by the muGraph that won at the nearest size of the table: its structure is
known, so it is scheduled, compiled, proved and compared with float64 at the new size, and neither searched nor measured again.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from mugraph.api import superoptimize
from mugraph.errors import InvalidInput, ShapeMismatch, StorageError
from mugraph.frontend.calling import arguments_of
from mugraph.results.data import Shared
from mugraph.results.superoptimized import Superoptimized
from mugraph.search.constraints import SearchSpace
from mugraph.selection.qualification import Evidence

if TYPE_CHECKING:
    import torch

Sizes = tuple[int, ...]
"""One size for each declared dimension, in the order of their names."""


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of size `low` to `high`, both included; dimensions of one name have the same size in every call."""

    name: str
    low: int
    high: int

    def __post_init__(self) -> None:
        if not (isinstance(self.low, int) and isinstance(self.high, int) and 1 <= self.low <= self.high):
            raise InvalidInput(f"dimension {self.name} ranges from {self.low!r} to {self.high!r}; use 1 <= low <= high")

    def check(self, size: int) -> None:
        """Raise ShapeMismatch for a size that was not declared."""
        if not self.low <= size <= self.high:
            raise ShapeMismatch(
                f"dimension {self.name} has size {size}, declared from {self.low} to {self.high}; declare a wider range"
            )


Dynamic = Mapping[int | str, Mapping[int, Dim]]
"""For arguments, by position or name, which of their dimensions are dynamic."""


class DynamicSuperoptimized(Shared):
    """The result of `mugraph.superoptimize_dynamic`: call it like the function it replaces, with any declared sizes.

    The first call with new sizes compiles for them, which takes about a second; threads that need them wait for it.
    """

    def __init__(self, fn: Callable[..., Any], dynamic: Dynamic, settings: Mapping[str, Any]) -> None:
        self.fn, self.dynamic, self.settings = fn, dynamic, dict(settings)
        self.dims = _by_name(dynamic)
        self.table: dict[Sizes, Superoptimized] = {}
        """The sizes that were searched and measured."""
        self.specializations: dict[Sizes, Superoptimized] = {}
        """All sizes that were compiled for so far."""
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the muGraph for these sizes; raises ShapeMismatch for sizes outside the declared ranges."""
        return self.at(*args, **kwargs)(*args, **kwargs)

    def at(self, *args: Any, **kwargs: Any) -> Superoptimized:
        """The result for the sizes of these arguments, made now if they are new."""
        sizes = self.sizes_of(args, kwargs)
        if sizes not in self.specializations:
            with self._lock:
                if sizes not in self.specializations:
                    nearest = self.table[self.nearest(sizes)]
                    like = nearest.graph if nearest.is_one_program else None  # programs in a function are searched for each size
                    self.specializations[sizes] = self._optimized(args, kwargs, profile=False, like=like)
        return self.specializations[sizes]

    def sizes_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sizes:
        """The sizes of the declared dimensions; raises ShapeMismatch where they are out of range or disagree."""
        sizes: dict[str, int] = {}
        for argument, tensor, position, dim in self._places(args, kwargs):
            size = int(tensor.shape[position])
            dim.check(size)
            if sizes.setdefault(dim.name, size) != size:
                raise ShapeMismatch(f"dimension {dim.name} is {size} in argument {argument!r} and {sizes[dim.name]} before it")
        return tuple(sizes[name] for name in self.dims)

    def nearest(self, sizes: Sizes) -> Sizes:
        """The sizes of the table that differ by the smallest factors."""
        return min(self.table, key=lambda known: (sum(abs(math.log(n / m)) for n, m in zip(known, sizes, strict=True)), known))

    def fill(self, sizes: Sizes, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Search and measure at some sizes, on the example arguments repeated or cut to them."""
        chosen = dict(zip(self.dims, sizes, strict=True))
        positional, named = list(args), dict(kwargs)
        for argument, _, position, dim in self._places(args, kwargs):
            if isinstance(argument, str):
                named[argument] = _resized(named[argument], position, chosen[dim.name])
            else:
                positional[argument] = _resized(positional[argument], position, chosen[dim.name])
        self.table[sizes] = self.specializations[sizes] = self._optimized(positional, named)

    def _optimized(self, args: Sequence[Any], kwargs: Mapping[str, Any], **settings: Any) -> Superoptimized:
        if args and kwargs:
            raise InvalidInput("call with positional or with keyword arguments, not with both")
        return superoptimize(self.fn, kwargs or tuple(args), **{**self.settings, **settings})

    def _places(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[int | str, Any, int, Dim]]:
        """Argument, tensor, position and declaration of every dynamic dimension of a call."""
        for argument, dims in self.dynamic.items():
            given = argument in kwargs if isinstance(argument, str) else 0 <= argument < len(args)
            if not given:
                raise InvalidInput(f"argument {argument!r} has dynamic dimensions and is not in the call as it was declared")
            tensor = kwargs[argument] if isinstance(argument, str) else args[argument]
            shape = getattr(tensor, "shape", None)
            if shape is None:
                raise InvalidInput(f"argument {argument!r} has dynamic dimensions and is no tensor but a {type(tensor).__name__}")
            for position, dim in dims.items():
                if not -len(shape) <= position < len(shape):
                    raise InvalidInput(f"argument {argument!r} of shape {list(shape)} has no dimension {position}")
                yield argument, tensor, position, dim

    def __reduce__(self) -> NoReturn:
        raise StorageError("functions optimized for ranges of sizes cannot be pickled; save the results of its `table`")

    def __repr__(self) -> str:
        ranges = ", ".join(f"{dim.name} {dim.low}..{dim.high}" for dim in self.dims.values())
        return f"<DynamicSuperoptimized for {ranges}: {len(self.table)} sizes measured, {len(self.specializations)} compiled>"


def superoptimize_dynamic(
    fn: Callable[..., Any],
    example_inputs: Any,
    dynamic: Dynamic,
    *,
    table: Sequence[Mapping[str, int]] | None = None,
    target: str = "cpu",
    budget: float | None = None,
    seed: int | None = None,
    max_error: float = 2**-40,
    evidence: Evidence = "bounded",
    space: SearchSpace | None = None,
) -> DynamicSuperoptimized:
    """Optimize `fn` for all sizes of its dynamic dimensions; the other parameters are those of `mugraph.superoptimize`.

    `dynamic` declares the dimensions, as in `{0: {0: Dim("batch", 1, 64)}}` for the first of the first argument. `table`
    lists the sizes, by name, that are searched and measured; by default the ends of each range, and of a single range its
    geometric middle. `budget` is in seconds for the table together. `fn` is traced anew for every size, so it may depend on it.
    All sizes keep to `space`; a call with sizes at which nothing can lie in it raises InvalidInput.

    Raises InvalidInput for dimensions and arguments that do not exist, and what `mugraph.superoptimize` raises.
    """
    args, kwargs = arguments_of(example_inputs)
    settings = {"target": target, "seed": seed, "max_error": max_error, "evidence": evidence, "space": space}
    result = DynamicSuperoptimized(fn, dynamic, settings)
    result.sizes_of(args, kwargs)
    entries = _entries(result.dims, table)
    result.settings["budget"] = None if budget is None else budget / len(entries)
    for sizes in entries:
        result.fill(sizes, args, kwargs)
    return result


def _by_name(dynamic: Dynamic) -> dict[str, Dim]:
    dims: dict[str, Dim] = {}
    for dim in (dim for of_argument in dynamic.values() for dim in of_argument.values()):
        if dims.setdefault(dim.name, dim) != dim:
            raise InvalidInput(f"dimension {dim.name} is declared with two ranges; give each range a name of its own")
    if not dims:
        raise InvalidInput("no dimension is dynamic; declare one, or use mugraph.superoptimize")
    return dims


def _entries(dims: Mapping[str, Dim], table: Sequence[Mapping[str, int]] | None) -> list[Sizes]:
    """The sizes of the table, each once."""
    if table is None:
        ends = [[dim.low, dim.high] for dim in dims.values()]
        if len(dims) == 1:
            (dim,) = dims.values()
            ends[0].append(min(dim.high, 2 ** round(math.log2(dim.low * dim.high) / 2)))
        return sorted(set(itertools.product(*ends)))
    if not table:
        raise InvalidInput("an empty table; list at least one size")
    for sizes in table:
        if sizes.keys() != dims.keys():
            raise InvalidInput(f"the table gives sizes of {', '.join(sizes)}; the dynamic dimensions are {', '.join(dims)}")
        for name, size in sizes.items():
            dims[name].check(size)
    return list(dict.fromkeys(tuple(sizes[name] for name in dims) for sizes in table))


def _resized(tensor: torch.Tensor, position: int, size: int) -> torch.Tensor:
    """The tensor repeated or cut to a size along one dimension."""
    import torch

    return tensor.index_select(position, torch.arange(size) % tensor.shape[position])
