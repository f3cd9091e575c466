"""Places for the boxes and arrows of an acyclic graph: layers from top to bottom, few crossings, short and straight arrows.

The method is Sugiyama's: nodes get layers, long edges are cut by a waypoint in each layer they pass, layers are ordered
by the mean place of neighbours, and coordinates minimise the squared horizontal distance along edges. An edge is
vertical where it passes a layer and curved between layers only, so it never runs through a box. All lengths are in pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

Point = tuple[float, float]

_SIDE = 18.0
"""Between boxes of a layer."""
_WAYPOINT = 6.0
"""Width a passing edge takes."""
_GAP, _GAP_MOST, _SLOPE = 26.0, 64.0, 0.12
"""Between layers: at least, at most, and how it grows with the longest way sideways."""
_BAND_GAP = 30.0
"""What the gap between two bands has more."""
_ORDER_SWEEPS, _PLACE_SWEEPS = 12, 40
_STRAIGHT = 4.0
"""How much more a bend at a waypoint weighs than one at a box."""


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow from the bottom of box `source` to the top of box `target`; ends lie at these fractions of the boxes' widths."""

    source: int
    target: int
    exit: float = 0.5
    entry: float = 0.5


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """The x of the right side."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """The y of the lower side."""
        return self.top + self.height


@dataclass(frozen=True, slots=True)
class Layering:
    """Where everything is: a box per node, and for each edge the ends of its vertical pieces, from source to target.

    `bands` has the rectangle around each band's layers, in order; the empty bands are left out.
    """

    boxes: tuple[Box, ...]
    routes: tuple[tuple[Point, ...], ...]
    bands: dict[int, Box]
    width: float
    height: float


def arrange(sizes: Sequence[tuple[float, float]], edges: Sequence[Arrow], bands: Sequence[int] | None = None) -> Layering:
    """Place boxes of these sizes (width, height), given in topological order.

    `bands` numbers groups of nodes that take layers of their own, group 0 above group 1 and so on; no edge may lead to a
    lower number.
    """
    bands = [0] * len(sizes) if bands is None else bands
    layers = _layers(len(sizes), edges, bands)
    net = _Net(sizes, edges, layers)
    net.order()
    net.place()
    return net.arrangement(bands)


def _layers(count: int, edges: Sequence[Arrow], bands: Sequence[int]) -> list[int]:
    """A layer for each node: as high as its sources allow, then as low as its targets do, where that shortens edges."""
    sources: list[list[int]] = [[] for _ in range(count)]
    targets: list[list[int]] = [[] for _ in range(count)]
    for edge in edges:
        sources[edge.target].append(edge.source)
        targets[edge.source].append(edge.target)
    layers = [0] * count
    last: dict[int, int] = {}
    start = 0
    for band in sorted(set(bands)):
        members = [node for node in range(count) if bands[node] == band]
        for node in members:
            layers[node] = max((layers[source] + 1 for source in sources[node]), default=start)
            layers[node] = max(layers[node], start)
        last[band] = max(layers[node] for node in members)
        start = last[band] + 1
    for node in reversed(range(count)):
        if targets[node] and len(targets[node]) >= len(sources[node]):
            lowest = min(layers[target] - 1 for target in targets[node])
            layers[node] = max(layers[node], min(lowest, last[bands[node]]))
    return layers


@dataclass(frozen=True, slots=True)
class _Link:
    """A piece of an edge between neighbouring layers; shifts are from the centres of its ends."""

    upper: int
    lower: int
    upper_shift: float
    lower_shift: float
    weight: float


class _Net:
    """The boxes and waypoints of a drawing, by number: boxes first."""

    def __init__(self, sizes: Sequence[tuple[float, float]], edges: Sequence[Arrow], layers: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self.layer_of = list(layers)
        self.links: list[_Link] = []
        self.trunks: dict[tuple[int, float], list[int]] = {}
        self.chains = [self._chain(edge) for edge in edges]
        self.edges = edges
        self.layers: list[list[int]] = [[] for _ in range(max(self.layer_of, default=-1) + 1)]
        for member, layer in enumerate(self.layer_of):
            self.layers[layer].append(member)
        self.above: list[list[_Link]] = [[] for _ in self.sizes]
        self.below: list[list[_Link]] = [[] for _ in self.sizes]
        for link in self.links:
            self.above[link.lower].append(link)
            self.below[link.upper].append(link)
        self.centre = [0.0] * len(self.sizes)

    def _chain(self, edge: Arrow) -> list[int]:
        """The members an edge passes, its ends included. Edges that leave a box at one place share the waypoints of their way."""
        trunk = self.trunks.setdefault((edge.source, edge.exit), [])
        exit_shift = (edge.exit - 0.5) * self.sizes[edge.source][0]
        entry_shift = (edge.entry - 0.5) * self.sizes[edge.target][0]
        passed = self.layer_of[edge.target] - self.layer_of[edge.source] - 1
        while len(trunk) < passed:
            waypoint, last = len(self.sizes), trunk[-1] if trunk else edge.source
            self.sizes.append((_WAYPOINT, 0.0))
            self.layer_of.append(self.layer_of[last] + 1)
            self.links.append(_Link(last, waypoint, 0.0 if trunk else exit_shift, 0.0, _STRAIGHT**2 if trunk else _STRAIGHT))
            trunk.append(waypoint)
        chain = [edge.source, *trunk[:passed], edge.target]
        self.links.append(_Link(chain[-2], edge.target, 0.0 if passed else exit_shift, entry_shift, _STRAIGHT if passed else 1.0))
        return chain

    # --- order within layers ---

    def order(self) -> None:
        """Order each layer by the mean place of its neighbours, downwards and upwards in turn; keep the fewest crossings."""
        best, fewest = [list(layer) for layer in self.layers], self._crossings()
        for sweep in range(_ORDER_SWEEPS):
            if fewest == 0:
                break
            downwards = sweep % 2 == 0
            for layer in self.layers if downwards else reversed(self.layers):
                self._sort(layer, downwards)
            for layer in self.layers:
                self._exchange(layer)
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(layer) for layer in self.layers], crossings
        self.layers = best

    def _sort(self, layer: list[int], downwards: bool) -> None:
        place = self._places()
        keys = {}
        for position, member in enumerate(layer):
            links = self.above[member] if downwards else self.below[member]
            ends = [self._upper_place(link, place) if downwards else self._lower_place(link, place) for link in links]
            keys[member] = sum(ends) / len(ends) if ends else float(position)
        layer.sort(key=keys.__getitem__)

    def _exchange(self, layer: list[int]) -> None:
        """Let neighbours in a layer change places where that removes crossings."""
        place = self._places()
        for position, (left, right) in enumerate(pairwise(layer)):
            left = layer[position]  # it may just have come from further left
            if self._crossed(left, right, place) > self._crossed(right, left, place):
                layer[position], layer[position + 1] = right, left

    def _crossed(self, left: int, right: int, place: dict[int, int]) -> int:
        """Crossings of the links of two members of a layer, if `left` is left of `right`."""
        above = [[self._upper_place(link, place) for link in self.above[member]] for member in (left, right)]
        below = [[self._lower_place(link, place) for link in self.below[member]] for member in (left, right)]
        return sum(one > other for ones, others in (above, below) for one in ones for other in others)

    def _crossings(self) -> int:
        place = self._places()
        by_layer: list[list[tuple[float, float]]] = [[] for _ in self.layers]
        for link in self.links:
            by_layer[self.layer_of[link.upper]].append((self._upper_place(link, place), self._lower_place(link, place)))
        return sum(_inversions([lower for _, lower in sorted(ends)]) for ends in by_layer)

    def _places(self) -> dict[int, int]:
        return {member: position for layer in self.layers for position, member in enumerate(layer)}

    def _upper_place(self, link: _Link, place: dict[int, int]) -> float:
        return place[link.upper] + link.upper_shift / (self.sizes[link.upper][0] + 1)

    def _lower_place(self, link: _Link, place: dict[int, int]) -> float:
        return place[link.lower] + link.lower_shift / (self.sizes[link.lower][0] + 1)

    # --- coordinates ---

    def place(self) -> None:
        """Centres that minimise the weighted squares of the links' ways sideways, one layer at a time, without overlap."""
        for layer in self.layers:
            self._separate(layer, [0.0] * len(layer), [1.0] * len(layer))
        for sweep in range(_PLACE_SWEEPS):
            for layer in self.layers if sweep % 2 == 0 else reversed(self.layers):
                wanted, weights = zip(*map(self._wanted, layer), strict=True)
                self._separate(layer, wanted, weights)
        for waypoints in self.trunks.values():
            self._straighten(waypoints)

    def _straighten(self, waypoints: Sequence[int]) -> None:
        """Let edges pass their layers at one x, where boxes and other edges leave room for that."""
        bounds = [self._room(waypoint) for waypoint in waypoints]
        lowest, highest = max((low for low, _ in bounds), default=0.0), min((high for _, high in bounds), default=0.0)
        if waypoints and lowest <= highest:
            mean = sum(self.centre[waypoint] for waypoint in waypoints) / len(waypoints)
            for waypoint in waypoints:
                self.centre[waypoint] = min(max(mean, lowest), highest)

    def _room(self, waypoint: int) -> tuple[float, float]:
        """Between which centres a waypoint may lie, its neighbours in the layer staying where they are."""
        layer = self.layers[self.layer_of[waypoint]]
        position = layer.index(waypoint)
        low, high = -inf, inf
        if position > 0:
            low = self.centre[layer[position - 1]] + self._distance(layer[position - 1], waypoint)
        if position + 1 < len(layer):
            high = self.centre[layer[position + 1]] - self._distance(waypoint, layer[position + 1])
        return low, high

    def _distance(self, left: int, right: int) -> float:
        """Between the centres of neighbours in a layer, at least."""
        return (self.sizes[left][0] + self.sizes[right][0]) / 2 + _SIDE

    def _wanted(self, member: int) -> tuple[float, float]:
        """The centre that the neighbours of a box or waypoint want for it, and how much."""
        ends = [(self.centre[k.upper] + k.upper_shift - k.lower_shift, k.weight) for k in self.above[member]]
        ends += [(self.centre[k.lower] + k.lower_shift - k.upper_shift, k.weight) for k in self.below[member]]
        weight = sum(weight for _, weight in ends)
        return (sum(end * weight for end, weight in ends) / weight, weight) if weight else (self.centre[member], 1.0)

    def _separate(self, layer: Sequence[int], wanted: Sequence[float], weights: Sequence[float]) -> None:
        """The centres nearest to the wanted ones (weighted squares) at which the layer's boxes keep their order and distance."""
        offsets = [0.0]
        for one, next_one in pairwise(layer):
            offsets.append(offsets[-1] + self._distance(one, next_one))
        shifted = [centre - offset for centre, offset in zip(wanted, offsets, strict=True)]
        for member, offset, base in zip(layer, offsets, _nondecreasing(shifted, weights), strict=True):
            self.centre[member] = base + offset

    # --- the result ---

    def arrangement(self, bands: Sequence[int]) -> Layering:
        """Boxes and routes, moved so that everything begins at (0, 0)."""
        tops, bottoms = self._layer_extents(bands)
        left = min((centre - size[0] / 2 for centre, size in zip(self.centre, self.sizes, strict=True)), default=0.0)
        self.centre = [centre - left for centre in self.centre]
        right = max((centre + size[0] / 2 for centre, size in zip(self.centre, self.sizes, strict=True)), default=0.0)
        boxes = []
        for node in range(len(bands)):
            (width, height), layer = self.sizes[node], self.layer_of[node]
            top = (tops[layer] + bottoms[layer] - height) / 2
            boxes.append(Box(self.centre[node] - width / 2, top, width, height))
        routes = tuple(
            self._route(edge, chain, boxes, tops, bottoms) for edge, chain in zip(self.edges, self.chains, strict=True)
        )
        return Layering(tuple(boxes), routes, self._band_boxes(bands, tops, bottoms), right, max(bottoms, default=0.0))

    def _layer_extents(self, bands: Sequence[int]) -> tuple[list[float], list[float]]:
        band_of = {self.layer_of[node]: band for node, band in enumerate(bands)}
        sideways = [0.0] * len(self.layers)
        for link in self.links:
            way = abs(self.centre[link.upper] + link.upper_shift - self.centre[link.lower] - link.lower_shift)
            sideways[self.layer_of[link.upper]] = max(sideways[self.layer_of[link.upper]], way)
        tops, bottoms, top = [], [], 0.0
        for number, layer in enumerate(self.layers):
            tops.append(top)
            bottoms.append(top + max(self.sizes[member][1] for member in layer))
            top = bottoms[-1] + min(_GAP + _SLOPE * sideways[number], _GAP_MOST)
            if band_of.get(number) != band_of.get(number + 1):
                top += _BAND_GAP
        return tops, bottoms

    def _route(
        self, edge: Arrow, chain: Sequence[int], boxes: Sequence[Box], tops: Sequence[float], bottoms: Sequence[float]
    ) -> tuple[Point, ...]:
        source, target = boxes[edge.source], boxes[edge.target]
        start, end = source.left + edge.exit * source.width, target.left + edge.entry * target.width
        points = [(start, source.bottom), (start, bottoms[self.layer_of[edge.source]])]
        for waypoint in chain[1:-1]:
            x, layer = self.centre[waypoint], self.layer_of[waypoint]
            points += [(x, tops[layer]), (x, bottoms[layer])]
        return (*points, (end, tops[self.layer_of[edge.target]]), (end, target.top))

    def _band_boxes(self, bands: Sequence[int], tops: Sequence[float], bottoms: Sequence[float]) -> dict[int, Box]:
        found = {}
        for band in sorted(set(bands)):
            own = {self.layer_of[node] for node, other in enumerate(bands) if other == band}
            members = [member for layer in own for member in self.layers[layer]]
            left = min(self.centre[member] - self.sizes[member][0] / 2 for member in members)
            right = max(self.centre[member] + self.sizes[member][0] / 2 for member in members)
            found[band] = Box(left, tops[min(own)], right - left, bottoms[max(own)] - tops[min(own)])
        return found


def _nondecreasing(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The nondecreasing sequence nearest to `values` in weighted squares: neighbours out of order share their mean."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            mean, heavier, count = pools.pop()
            total = heavier + pool[1]
            pool = ((mean * heavier + pool[0] * pool[1]) / total, total, count + pool[2])
        pools.append(pool)
    return [mean for mean, _, count in pools for _ in range(count)]


def _inversions(values: Sequence[float]) -> int:
    """Pairs of values in the wrong order."""
    return sum(earlier > later for position, later in enumerate(values) for earlier in values[:position])
