"""Tensors without data that have one symbolic size: what a graph with several sizes is written over to, to be looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext, StrictMinMaxConstraint
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from mugraph.frontend.symbolic_sizes.axes import SizeMatters

_HINT = 61
"""What the symbol stands for where PyTorch wants a number, no more common than others."""
_ENDLESS = 1 << 62
"""The largest size where none is given."""
_PARTS = 16
"""Into so many parts a range is divided for an operator that asks about its size, at most."""


class OneSymbol:
    """A symbol of its own, `size`, for all sizes from `low` to `high`, and tensors that have it. Where both are the same it is
    that number."""

    def __init__(self, low: int = 2, high: int = _ENDLESS) -> None:
        self.low, self.high = low, high
        self._unasked: OneSymbol | None = None
        """Another symbol for all of the range, of which no operator that was called with it has asked anything."""
        hint = min(max(_HINT, low), high)
        with _disable_current_modes():
            real = torch.empty(hint)
        self._environment = ShapeEnv()
        self._mode = FakeTensorMode(shape_env=self._environment)
        if low == high:
            self.size: Any = low
            return
        ends = StrictMinMaxConstraint(vr=ValueRanges(low, int_oo if high == _ENDLESS else high), warn_only=False)
        context: Any = StatelessSymbolicContext([DimDynamic.DYNAMIC], constraint_sizes=[ends])
        self.size = self._mode.from_tensor(real, source=ConstantSource("size"), symbolic_context=context).shape[0]
        self._symbol = self.size.node.expr  # which it may be no longer once something was asked

    def called(self, operator: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What an operator makes of tensors that have the symbol, at all of its sizes.

        Where it asks about the size, what it makes is known of those alone that answer as the number does which stands for the
        symbol. So sizes on either side of an answer are looked at by themselves, and must have the same, as where PyTorch asks
        how large a batch is to choose a library. Raises SizeMatters where that is not so, or sizes are not parted by bounds.
        """
        (first, made), *others = self._outcomes(operator, args, kwargs)
        for part, other in others:
            if part._form(made, first) != part._form(other, part):
                raise SizeMatters(f"it makes something else of sizes {part._said} than of {first._said}")
        return tree_map(partial(self._taken, other=first), made)

    def like(self, tensor: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
        """A contiguous tensor of another shape, of the same type and on the same device."""
        with _disable_current_modes(), self._mode:
            return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)

    def _outcomes(
        self, operator: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[tuple[OneSymbol, Any]]:
        """What an operator makes in parts of the range in which it asks nothing, those with a symbol first."""
        found = list[tuple[OneSymbol, Any]]()
        parts = [self._unasked or OneSymbol(self.low, self.high)]
        while parts:
            part = parts.pop()
            given, named = tree_map(partial(part._taken, other=self), (tuple(args), dict(kwargs)))
            with _disable_current_modes(), part._mode:
                made = operator(*given, **named)
            if part._environment.guards:
                parts += part._parted(room=_PARTS - len(found) - len(parts))
            else:
                found.append((part, made))
        self._unasked = found[0][0] if len(found) == 1 else None
        return sorted(found, key=lambda each: each[0].low == each[0].high)

    def _parted(self, room: int) -> Iterator[OneSymbol]:
        """Symbols for the sizes that answer what was asked as this one's number does, and for those below and above; raises
        SizeMatters where these are all, or where there is no `room` for them."""
        known = self._environment.var_to_range[self._symbol]
        low, high = int(known.lower), _ENDLESS if known.upper is int_oo else int(known.upper)
        if (low, high) == (self.low, self.high) or room < 3:
            raise SizeMatters(f"it asks whether {self._environment.guards[-1].expr}, which is not so at all sizes")
        return (OneSymbol(*ends) for ends in ((self.low, low - 1), (low, high), (high + 1, self.high)) if ends[0] <= ends[1])

    def _taken(self, leaf: Any, other: OneSymbol) -> Any:
        """A tensor or a number of another symbol, with this one in its place; anything else as it is."""
        if isinstance(leaf, torch.SymFloat | torch.SymBool):
            raise SizeMatters(f"a number is {leaf}")
        if not isinstance(leaf, torch.Tensor):
            return self._number(leaf, other) if isinstance(leaf, torch.SymInt) else leaf
        shape, strides = ([self._number(number, other) for number in numbers] for numbers in (leaf.shape, leaf.stride()))
        with _disable_current_modes(), self._mode:
            return torch.empty_strided(shape, strides, dtype=leaf.dtype, device=leaf.device)

    def _number(self, number: Any, other: OneSymbol) -> Any:
        """A polynomial of another symbol as one of this; raises SizeMatters for what is none."""
        if not isinstance(number, torch.SymInt):
            return int(number)
        formula = number.node.expr
        if not formula.free_symbols:
            return int(formula)
        polynomial = formula.as_poly(other._symbol)
        if polynomial is None or not all(coefficient.is_Integer for coefficient in polynomial.all_coeffs()):
            raise SizeMatters(f"a size is {formula}")
        made: Any = 0
        for coefficient in polynomial.all_coeffs():
            made = made * self.size + int(coefficient)
        return made

    def _form(self, made: Any, other: OneSymbol) -> list[Any]:
        """What values of another symbol are with this one in its place, to be compared."""
        return [self._said_of(leaf, other) for leaf in tree_flatten(made)[0]]

    def _said_of(self, leaf: Any, other: OneSymbol) -> Any:
        if isinstance(leaf, torch.Tensor):
            sizes = [_formula(self._number(number, other)) for number in (*leaf.shape, *leaf.stride())]
            return leaf.dtype, leaf.device, sizes
        return _formula(self._number(leaf, other)) if isinstance(leaf, torch.SymInt) else leaf

    @property
    def _said(self) -> str:
        """The range in words."""
        return f"from {self.low} on" if self.high == _ENDLESS else f"from {self.low} to {self.high}"


def _formula(number: Any) -> Any:
    return number.node.expr if isinstance(number, torch.SymInt) else number
