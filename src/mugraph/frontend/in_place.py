"""Values of tensors that a call changes, written where they lie: a cache takes new keys without being copied.

A functional graph gives what a tensor holds afterwards as a tensor of its own. Where all that it does with the old one is to put
something into a part of it, and that is the value it has in the end, the part can be written at once: no other call reads what
was there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from mugraph.frontend.pytree import lies_alike
from mugraph.frontend.torch_casts import tensor_of

aten = torch.ops.aten
InPlace = Callable[..., torch.Tensor]
"""Called with all arguments of an operator of a functional graph, changes the first one and returns it."""


def _into(part: Callable[..., torch.Tensor]) -> InPlace:
    """What copies a tensor into a part of another one."""

    def write(target: torch.Tensor, source: torch.Tensor, *where: Any) -> torch.Tensor:
        part(target, *where).copy_(source)
        return target

    return write


IN_PLACE: Mapping[object, InPlace] = {
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_put.default: aten.index_put_.default,
    aten.select_scatter.default: _into(aten.select.int),
    aten.slice_scatter.default: _into(aten.slice.Tensor),
}
"""By operator that gives a tensor of which a part is another one."""


def ways_in_place(graph: fx.Graph, written: Mapping[fx.Node, fx.Node]) -> dict[fx.Node, InPlace]:
    """The calls of a functional graph that can be made in place, each with how: called with all arguments.

    `written` has the values of placeholders behind the call.
    """
    return {value: IN_PLACE[value.target] for target, value in written.items() if _can_be_written(target, value)}


def _can_be_written(target: fx.Node, value: fx.Node) -> bool:
    """Whether a placeholder is read by the call that gives its value afterwards alone, as what this puts a part into.

    The value must lie as its readers were recorded with it, which the functional call of some operators does not leave as it was.
    """
    if value.target not in IN_PLACE or value.args[0] is not target or target.op != "placeholder":
        return False
    alone = set(target.users) == {value} and value.all_input_nodes.count(target) == 1
    before, after = tensor_of(target), tensor_of(value)
    if not alone or before is None or after is None:
        return False
    return before.dtype is after.dtype and lies_alike(before, after.stride())
