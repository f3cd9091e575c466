"""What calls of a torch graph are predicted to take: as one program, and one by one as PyTorch makes them.

Of programs it is a roofline, by the rates of the device that plans of a search are predicted with too: tensors that cross the
program's border move once, products run at the best rate there is. It is rather too low than too high: what is not predicted to
pay is not searched, and of what is, kernels are timed. Calls with products that were timed here take what was measured, and a
program with one takes as much longer than the roofline as the fastest that was measured of it.

A row of a product is made by all blocks. What reduces such rows in the same kernel, or multiplies them once more, must have each
of them whole in one block, which reads the whole second factor then; or the product is stored, and read again by another kernel.
A sum of what is linear in a product needs no product: the search sums a factor up first.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import fx

from mugraph.devices import Device
from mugraph.frontend.operators.torch_casts import DTYPES, tensor_of
from mugraph.frontend.rewriting.node_traits import Contraction, Inspector, Traits, bytes_of, bytes_of_call
from mugraph.ir.dtypes import DType
from mugraph.search.partition.lower_bounds import best_efficiency, library_seconds
from mugraph.search.scheduling.cost_table import NOT_HIDDEN, NOT_TAKEN

_UNTIMED_SAVING = 0.05
"""The part of the time of torch's calls, which is predicted rather too low, that kernels must be predicted to save untimed."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds that a product was measured to take on this machine."""

    seconds: float
    """By what runs it."""
    least: float
    """By whoever is the fastest at it: kernels of programs are not expected to be faster, beyond what they save of traffic."""


@dataclass(slots=True)
class KnownForms:
    """Seconds of programs by their forms, on one device: equal layers are looked at once."""

    seconds: dict[tuple[int, ...], float] = field(default_factory=dict)
    numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    """Of what can be said of a call by itself, in the order in which it was met."""

    def number(self, *said: object) -> int:
        """The number of what is said."""
        return self.numbers.setdefault(said, len(self.numbers))


class _Call(NamedTuple):
    """The number of what a call is by itself, what it reads, and the bytes that it gives."""

    kind: int
    sources: tuple[fx.Node, ...]
    size: int


@dataclass(frozen=True, slots=True)
class PredictedCost:
    """Predicts seconds of calls on a device; `traits` has those that programs can express, `measured` those that were timed.

    `known` may be shared with other costs on the same device.
    """

    device: Device
    traits: Mapping[fx.Node, Traits]
    measured: Mapping[fx.Node, Measured] = field(default_factory=dict)
    known: KnownForms = field(default_factory=KnownForms, compare=False)
    _calls: dict[fx.Node, _Call] = field(default_factory=dict, init=False, compare=False)

    def of_program(self, nodes: Sequence[fx.Node]) -> float:
        """Seconds of calls, in topological order, as one program."""
        form = self._form(nodes)
        seconds = self.known.seconds.get(form)
        if seconds is None:
            seconds = self.known.seconds[form] = self._of_program(nodes)
        return seconds

    def _form(self, nodes: Sequence[fx.Node]) -> tuple[int, ...]:
        """All that what calls take as one program depends on: what each is, what it reads, and whether others read it."""
        places: dict[fx.Node, int] = {}
        outside: dict[fx.Node, int] = {}
        readers = [0] * len(nodes)
        form = [len(nodes)]
        for place, node in enumerate(nodes):
            call = self._call(node)
            form.append(call.kind)
            for source in call.sources:
                if source in places:
                    readers[places[source]] += 1
                    form.append(places[source])
                else:
                    form.append(-1 - outside.setdefault(source, len(outside)))
            places[node] = place
        form += [len(node.users) > inside for node, inside in zip(nodes, readers, strict=True)]
        form += [self._call(source).size for source in outside]
        return tuple(form)

    def _call(self, node: fx.Node) -> _Call:
        """A call or an input by itself."""
        if node not in self._calls:
            sources, size = tuple(node.all_input_nodes), bytes_of(node)
            traits, measured = self.traits.get(node), self.measured.get(node)
            said = traits, measured, _dtype(node), self._rate(node), size, bytes_of_call(node), len(sources), bool(node.users)
            self._calls[node] = _Call(self.known.number(*said), sources, size)
        return self._calls[node]

    def _of_program(self, nodes: Sequence[fx.Node]) -> float:
        vanishing, reduced = self._vanishing(nodes), self._reduced(nodes)
        stored = reduced - vanishing
        if not stored:
            return self._in_one_kernel(nodes, vanishing, ())
        whole_rows = [(node, each) for node in nodes if node in stored for each in self.traits[node].contractions]
        rest = self._beside(nodes, stored)
        apart = self.of_calls(stored) + (self._in_one_kernel(rest, vanishing, ()) if rest else 0.0)
        return min(apart, self._in_one_kernel(nodes, vanishing, whole_rows))

    def of_calls(self, nodes: Iterable[fx.Node]) -> float:
        """Seconds of calls that PyTorch makes one by one, the same in whatever order they come."""
        return math.fsum(map(self._of_call, nodes))

    def arithmetic_intensity(self, node: fx.Node) -> float:
        """How many times as long as its operands and result are moved a call multiplies at the best rate there is."""
        compute = sum(each.flops for each in self.traits[node].contractions) / (best_efficiency(self.device) * self._rate(node))
        return compute * self.device.memory_bandwidth / max(bytes_of_call(node), 1)

    def _of_call(self, node: fx.Node) -> float:
        known = self.measured.get(node)
        return self._modelled(node) if known is None else known.seconds

    def _modelled(self, node: fx.Node) -> float:
        """What a call takes by the description of the device."""
        moved, contractions = bytes_of_call(node), self.traits[node].contractions if node in self.traits else ()
        if len(contractions) > 1:
            return self.of_program([node])
        for each in contractions:
            rows, columns = each.batch * each.rows, each.batch * each.columns
            return library_seconds(self.device, _dtype(node), rows, columns, each.inner, each.flops, moved, batch=each.batch)
        return moved / self.device.memory_bandwidth + self.device.launch_seconds if moved else 0.0

    def _in_one_kernel(
        self, nodes: Sequence[fx.Node], vanishing: Collection[fx.Node], whole_rows: Collection[tuple[fx.Node, Contraction]]
    ) -> float:
        """Seconds of one kernel whose blocks have whole rows of some products; infinite where no row fits."""
        device, read, at_once = self.device, 0.0, self.device.multiprocessors
        for node, each in whole_rows:
            row, rows = each.columns * _dtype(node).bytes, each.batch * each.rows
            if row > device.shared_memory_bytes:
                return math.inf
            blocks = max(min(rows, device.multiprocessors), rows / (device.shared_memory_bytes // row))
            read += blocks * each.inner * row
            at_once = min(at_once, rows)
        products = ((node, each) for node in nodes if node not in vanishing for each in self.traits[node].contractions)
        compute = sum(each.flops / (best_efficiency(device) * self._rate(node)) for node, each in products)
        idle = device.multiprocessors / at_once
        seconds = self._seconds(self._crossing(nodes) * (1 + NOT_TAKEN * (idle - 1)), read, compute * idle)
        return seconds + math.fsum(self._beyond_model(node) for node in nodes if node not in vanishing)

    def _beyond_model(self, node: fx.Node) -> float:
        """Seconds that a product takes beyond what the description of the device says, whoever runs it."""
        known = self.measured.get(node)
        return 0.0 if known is None else max(0.0, known.least - self._modelled(node))

    def _beside(self, nodes: Sequence[fx.Node], stored: Collection[fx.Node]) -> list[fx.Node]:
        """The calls without some, and without views that only these read."""
        apart = set(stored)
        for node in reversed(nodes):
            if not self.traits[node].computes and node.users and apart.issuperset(node.users):
                apart.add(node)
        return [node for node in nodes if node not in apart]

    def _seconds(self, moved: float, read: float, compute: float) -> float:
        """Seconds of traffic with memory and caches and of arithmetic, the slowest of which hides the others, and of a launch."""
        parts = (moved / self.device.memory_bandwidth, read / self.device.cache_bandwidth, compute)
        return max(parts) + NOT_HIDDEN * (sum(parts) - max(parts)) + self.device.launch_seconds

    def _crossing(self, nodes: Sequence[fx.Node]) -> float:
        """Bytes that calls read of others and that others read of them; of tables what is looked up, and of others the parts."""
        inside = set(nodes)
        sources = dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in inside)
        read = sum(min(bytes_of(source), self._taken(source, inside)) for source in sources)
        return read + sum(bytes_of(node) for node in nodes if not inside.issuperset(node.users))

    def _taken(self, source: fx.Node, inside: Collection[fx.Node]) -> float:
        """Bytes that calls look up in a tensor, or take apart of it; infinite where one reads all of it."""
        readers = [(user, self.traits[user]) for user in source.users if user in inside]
        return sum(bytes_of(user) if traits.looks_up or traits.moves else math.inf for user, traits in readers)

    def _reduced(self, nodes: Sequence[fx.Node]) -> set[fx.Node]:
        """The calls with products that others of the calls reduce, or need whole to multiply them once more."""
        inside = set(nodes)
        behind: dict[fx.Node, tuple[bool, frozenset[Contraction]]] = {}
        found = set()
        for node in reversed(nodes):
            reduces, later = False, frozenset[Contraction]()
            for user in inside.intersection(node.users):
                traits, (reduced, contractions) = self.traits[user], behind[user]
                reduces |= reduced or (traits.reduces and not traits.contractions)
                later |= contractions.union(traits.contractions)
            behind[node] = reduces, later
            own = self.traits[node].contractions
            if own and (reduces or not all(each.feeds(other) for each in own for other in later)):
                found.add(node)
        return found

    def _vanishing(self, nodes: Sequence[fx.Node]) -> set[fx.Node]:
        """The calls with products of which nothing is read but sums of what is linear in them."""
        inside = set(nodes)
        summed: set[fx.Node] = set()
        for node in reversed(nodes):
            read_in_sums = node.users and all(user in inside and (user in summed or self._sums(user)) for user in node.users)
            if read_in_sums and self.traits[node].linear and not self._sums(node):
                summed.add(node)
        return {node for node in summed if self.traits[node].contractions}

    def _sums(self, node: fx.Node) -> bool:
        traits = self.traits[node]
        return traits.linear and traits.reduces and not (traits.contractions or traits.scans)

    def _rate(self, node: fx.Node) -> float:
        """Of a product: what a call reads first are its factors, or a sum that is in no type of fp8."""
        types = [_dtype(source) for source in node.all_input_nodes[:2]]
        left, right = types if len(types) == 2 else (_dtype(node),) * 2
        return self.device.product_rate(left, right, _dtype(node))


def seconds_of_calls(nodes: Sequence[fx.Node], device: Device) -> float:
    """Predicted seconds on a device of calls that are a program, as PyTorch makes them one by one."""
    return _cost_of(nodes, device).of_calls(nodes)


def arithmetic_intensity(node: fx.Node, device: Device) -> float:
    """How many times as long as its operands and result are moved on a device a product multiplies at its best rate."""
    return _cost_of([node], device).arithmetic_intensity(node)


class Saving(NamedTuple):
    """What is predicted to be saved at best of the seconds that `calls` take one by one, where they are one program, and which
    part of these it is."""

    seconds: float
    share: float
    calls: float


def saving(nodes: Sequence[fx.Node], device: Device) -> Saving:
    """What is predicted to be saved of calls that are a program; all where nothing is known of some, as of calls of several
    products, which are taken to be made as programs are."""
    cost = _cost_of(nodes, device)
    one_by_one = cost.of_calls(nodes)
    known = all(node in cost.traits and len(cost.traits[node].contractions) < 2 for node in nodes)
    if not (one_by_one and known):
        return Saving(one_by_one, 1.0, one_by_one)
    seconds = one_by_one - cost.of_program(nodes)
    return Saving(seconds, seconds / one_by_one, one_by_one)


def share_saved(nodes: Sequence[fx.Node], device: Device) -> float:
    """The part of `saving`."""
    return saving(nodes, device).share


def _cost_of(nodes: Sequence[fx.Node], device: Device) -> PredictedCost:
    """Predicts calls that are a program, which draw no more of memory than generated kernels were measured to draw."""
    tensor = tensor_of(nodes[0])
    inspector = Inspector("cpu" if tensor is None else tensor.device.type)
    verdicts = {node: inspector.inspect(node) for node in nodes}
    traits = {node: verdict for node, verdict in verdicts.items() if isinstance(verdict, Traits)}
    drawn = min(device.memory_bandwidth, device.cache_bandwidth)
    return PredictedCost(replace(device, memory_bandwidth=drawn), traits)


def _dtype(node: fx.Node) -> DType:
    """The type of what a call gives; that of a computation where it is no tensor."""
    tensor = tensor_of(node)
    return DType.FP32 if tensor is None else DTYPES.get(tensor.dtype, DType.FP32)


def not_predicted_to_pay(nodes: Sequence[fx.Node], seconds: float, device: Device) -> str:
    """Why torch makes calls whose kernels are predicted to take so many seconds on a device; "" where kernels run them."""
    by_torch = seconds_of_calls(nodes, device)
    if seconds < (1 - _UNTIMED_SAVING) * by_torch:
        return ""
    ours, theirs = (f"{1e6 * each:.1f}" for each in (seconds, by_torch))
    return f"nothing is timed here, and kernels are predicted to take {ours} microseconds, torch's calls {theirs} ({device.name})"
