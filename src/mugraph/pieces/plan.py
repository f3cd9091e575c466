"""What runs for which part of a torch graph: programs as kernels, convolutions and linear layers by the library with packed
weights, the rest by PyTorch.

A linear layer can be part of a program or a kernel of the library, which is the faster at a lone product. Large products that
kernels would not make faster are cut around to begin with (`mugraph.pieces.products_apart`). Of the others programs come first,
and must beat PyTorch's calls with packed weights in them. Where one does not, the library has its linear layers, and what stands
around these is cut once more. Then what is predicted to be faster together is tried as larger programs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import fx

from mugraph.devices import Device, device_for
from mugraph.frontend.calls.in_place import ways_in_place
from mugraph.frontend.partitioning.channels_last import with_channels_last
from mugraph.frontend.partitioning.library import LibraryKernel, convolutions, linear_layers
from mugraph.frontend.partitioning.partition import Known, Partition, Piece, partition
from mugraph.frontend.partitioning.splice import can_run, spliced
from mugraph.ir.parts import has_parts
from mugraph.pieces.image_layouts import Layout, as_recorded
from mugraph.pieces.joined_pieces import Joiner, Outcomes
from mugraph.pieces.library_ways import Ways
from mugraph.pieces.other_ways import Way, other_ways
from mugraph.pieces.packed_memory import packed_by_kernels, within_memory
from mugraph.pieces.packed_weights import packed
from mugraph.pieces.piece_optimizer import GraphsByForm, Optimizer
from mugraph.pieces.piece_outcomes import PieceOutcome
from mugraph.pieces.products_apart import ProductsApart, large_layers
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime import Executable
from mugraph.selection.structure_key import form_of
from mugraph.support.deadline import Deadline
from mugraph.support.progress import Event

_log = logging.getLogger("mugraph.torch_compile")
_SEARCHED = "it is still searched"
_FIRST = 0.7
"""The part of the budget for programs with linear layers in them where the library could have these, or on images as they are
recorded where they may have their channels last."""
_AS_CUT = 0.6
"""The part of what is left of it for programs as rules cut them, where some others are predicted to be faster together."""
_TURNED = 0.6
"""The part of what is left of it for programs on images with channels last: whole calls are compared with the rest."""
_WAITED = 0.5
"""The part of the budget by which no search goes on for better kernels of what kernels run already, where calls wait for it."""
_SMALL = 0.1
"""The part of the budget for a small program before large layers are timed."""


OwnKernels = dict[tuple[tuple[fx.Node, ...], int], Executable]
"""By the calls of a piece and the identity of its kernels, these with weights of their own."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What runs for which part of a torch graph."""

    partition: Partition
    results: Mapping[Piece, Superoptimized]
    layout: Layout = Layout.CONTIGUOUS
    """How images lie between convolutions that are library kernels."""
    lost: Mapping[Piece, str] = field(default_factory=dict)
    """Why PyTorch runs programs of the graph all the same."""
    others: Mapping[fx.Node, Way] = field(default_factory=dict)
    """Calls that PyTorch is asked for otherwise."""
    before: Mapping[str, int] = field(default_factory=dict)
    """The `losses` of an earlier process, which are not cut out again."""
    larger: int | None = None
    """How many larger programs were searched that might have run in the place of steps; None where none was looked for."""

    def spliced(
        self, module: fx.GraphModule, own: OwnKernels | None = None, written: Mapping[fx.Node, fx.Node] | None = None
    ) -> fx.GraphModule:
        """The graph with calls of kernels in the place of the programs, which are those of `own` for what earlier plans had.

        `written` is as in `ways_in_place`: what is written in place is when nothing else can run, as a call may raise.
        """
        own = {} if own is None else own
        kernels = {piece: _own(piece, self.results[piece], own) for piece in self.partition.pieces}
        library = {kernel: packed(kernel, self.layout) for kernel in self.partition.library}
        arrange = self.layout.of if self.layout is Layout.CHANNELS_LAST else None
        in_place = ways_in_place(module.graph, written or {})
        others = {**self.others, **in_place}
        return spliced(module, self.partition, kernels, library, arrange, as_recorded, others, late=in_place)

    @property
    def has_kernels(self) -> bool:
        """Whether anything is not just as PyTorch is asked for it."""
        return bool(self.partition.pieces or self.partition.library or self.others)

    @property
    def losses(self) -> Counter[str]:
        """Programs that PyTorch runs all the same, by a line that says why, with how many there are."""
        lines = (f"a piece of {len(piece.nodes)} calls stays with torch: {reason}" for piece, reason in self.lost.items())
        return Counter(self.before) + Counter(lines)

    def without_kernels(self, reason: str) -> Plan:
        """The plan of which PyTorch runs everything."""
        whole = self.partition
        return replace(self, partition=whole.without((*whole.pieces, *whole.library), reason), results={}, others={})


def _own(piece: Piece, result: Superoptimized, own: OwnKernels) -> Executable:
    key = (piece.nodes, id(result.executable))
    if key not in own:
        own[key] = result.executable.with_own_weights()
    return own[key]


@dataclass
class _Cutter:
    """Cuts a graph by rules, around pieces that are `joined` already."""

    graph: fx.Graph
    device: str
    """The kind of device that its tensors are on."""
    target: Device
    joined: tuple[Piece, ...] = ()
    in_place: Container[fx.Node] = frozenset()
    """The calls that PyTorch makes in place."""
    apart: ProductsApart = field(default_factory=ProductsApart)
    known: Known = field(default_factory=Known)

    def cut(self, library: Sequence[LibraryKernel], tangled: Container[frozenset[fx.Node]] = frozenset()) -> Partition:
        """The partition with some library kernels, and calls that are taken apart.

        What is joined is not where something else waits for it, and it for that.
        """
        around = self._cut(library, tangled, self.joined)
        return around if can_run(self.graph, around) else self._cut(library, tangled, ())

    def _cut(
        self, library: Sequence[LibraryKernel], tangled: Container[frozenset[fx.Node]], joined: Sequence[Piece]
    ) -> Partition:
        return partition(
            self.graph,
            self.device,
            (*self.apart.library, *library),
            joined=joined,
            lookups=self.target.operands_in_place,
            tangled=tangled,
            scans=self.target.scans,
            in_place=self.in_place,
            by_torch=self.apart.by_torch,
            known=self.known,
        )


def plans(
    module: fx.GraphModule,
    device: str,
    optimizer: Optimizer,
    deadline: Deadline,
    graphs: GraphsByForm | None = None,
    why: str = "",
    improved: Callable[[Plan], None] | None = None,
    written: Mapping[fx.Node, fx.Node] | None = None,
) -> list[Plan]:
    """Plans of a graph for a kind of device, the same but for how images lie between convolutions.

    `graphs` is as in `Optimizer.outcomes`, and has the muGraphs that are found here afterwards; `why` tells who waits why the
    graph is cut. `improved` is given plans with the programs that kernels run so far, images being contiguous; `written` is as in
    `ways_in_place`.
    """
    tell = optimizer.tell
    in_place = ways_in_place(module.graph, written or {})
    planner = _Planner.of(module.graph, device, optimizer, deadline, dict(graphs or {}), improved, in_place)
    whole = planner.cut_around_known()
    tell(Event("partition", f"{len(whole.pieces)} program{'s' * (len(whole.pieces) != 1)}{why}", deadline.elapsed))
    joins = bool(planner.joiner.proposed(whole, {}))
    as_cut = Deadline(deadline.share(_AS_CUT if joins else 1.0))
    whole, outcomes = planner.programs(whole, as_cut)
    whole, outcomes = planner.with_layers(whole, outcomes, as_cut)
    whole, outcomes = planner.joined(whole, outcomes, joins)
    made = planner.laid_out(whole, outcomes)
    others = _others([plan.partition for plan in made], optimizer, deadline)
    larger = len(planner.joiner.searched) if planner.joiner.joins(whole.traits) else None
    made = planner.searched_on([replace(plan, others=others, larger=larger) for plan in made])
    if graphs is not None:
        _remember(graphs, outcomes, made)
    return made


@dataclass
class _Planner:
    """Decides stage by stage what runs for which part of a graph.

    Between stages go the partition so far and what became of its pieces.
    """

    optimizer: Optimizer
    deadline: Deadline
    """Of all stages."""
    known: GraphsByForm
    """MuGraphs that are known, as in `Optimizer.outcomes`."""
    improved: Callable[[Plan], None] | None
    ways: Ways
    cutter: _Cutter
    joiner: Joiner
    layers: Sequence[LibraryKernel]
    """The linear layers that the library could have."""
    tangled: set[frozenset[fx.Node]] = field(default_factory=set)
    """Calls of programs that are taken apart."""

    @classmethod
    def of(
        cls,
        graph: fx.Graph,
        device: str,
        optimizer: Optimizer,
        deadline: Deadline,
        known: GraphsByForm,
        improved: Callable[[Plan], None] | None,
        in_place: Container[fx.Node],
    ) -> _Planner:
        """The planner of a graph, in which PyTorch makes the calls of `in_place` in place."""
        ways = _ways(graph, device, optimizer, deadline)
        cutter = _Cutter(graph, device, device_for(optimizer.options.target), in_place=in_place)
        layers = () if optimizer.library is None else linear_layers(graph.nodes, device)
        return cls(optimizer, deadline, known, improved, ways, cutter, Joiner(graph, optimizer, cutter.known), layers)

    @property
    def images(self) -> tuple[LibraryKernel, ...]:
        """The convolutions that are library kernels."""
        return tuple(self.ways.layouts)

    def cut_around_known(self) -> Partition:
        """The graph cut by rules, around products that kernels would not make faster, and around larger programs that are
        predicted to be faster by far and that kernels run."""
        whole = self.cutter.cut(self.images)
        large = large_layers(self.layers, whole.pieces, self.optimizer)
        self._something_small(large)
        apart = ProductsApart.of(large, self.optimizer, self.deadline)
        if apart != self.cutter.apart:
            self.cutter.apart = apart.within(within_memory(apart.library))
            whole = self.cutter.cut(self.images)
        if ahead := self.joiner.ahead(whole, self.known, self.deadline):
            self.cutter.joined = ahead
            whole = self.cutter.cut(self.images)
        return whole

    def _something_small(self, large: Sequence[LibraryKernel]) -> None:
        """Optimize a small program that will stand beside large layers, before these are timed: something is proved soon."""
        library = self.optimizer.library
        if library is None or all(library.known_seconds(layer) for layer in large):
            return
        apart = ProductsApart(by_torch=frozenset(layer.product for layer in large))
        pieces = replace(self.cutter, apart=apart).cut(self.images).pieces
        small = self.optimizer.smallest(pieces)
        self.optimizer.outcomes(small, self.known, Deadline(self.deadline.share(_SMALL)), once=True, until=self.deadline)

    def programs(self, whole: Partition, deadline: Deadline) -> tuple[Partition, Outcomes]:
        """Optimize the programs; those with parts of tensors that come to nothing are taken apart."""
        options = self.optimizer.options
        may_lose = self.layers and options.profile and options.keep == "faster"
        first = Deadline(deadline.share(_FIRST if may_lose or self.ways.turn_images else 1.0))
        outcomes = self._in_passing(whole, first)
        for retried in (False, True):
            while (more := _tangled(outcomes, self.tangled, retried) - self.tangled) and not self._ends(first):
                self.tangled |= more
                whole = self.cutter.cut(self.images, self.tangled)
                outcomes = self._in_passing(whole, first)
            outcomes = self._outcomes(whole, first)
        self.joiner.refused |= self.tangled
        return whole, outcomes

    def with_layers(self, whole: Partition, outcomes: Outcomes, deadline: Deadline) -> tuple[Partition, Outcomes]:
        """Give the linear layers that are in no program that runs to the library, and cut the rest anew around them."""
        library = self.optimizer.library
        if library is None or not self.layers:
            return whole, outcomes
        free = {node for piece, outcome in outcomes.items() if not outcome.runs for node in piece.nodes}
        layers = linear_layers(free.union(left.node for left in whole.left), self.cutter.device)
        if self.optimizer.options.profile:  # of all: programs that are cut anew around some may come to nothing
            timed = library.faster((*layers, *self.layers) if layers else (), deadline, self.optimizer.tell)
            given = self.cutter.apart.library
            fitting = within_memory([*given, *(each for each in timed if each in layers)])
            layers = tuple(each for each in fitting if each not in given)
        if free.isdisjoint(layer.product for layer in layers):
            return whole.with_library(layers), outcomes
        whole = self.cutter.cut((*self.images, *layers), self.tangled)
        return whole, self._outcomes(whole, deadline)

    def joined(self, whole: Partition, outcomes: Outcomes, joins: bool) -> tuple[Partition, Outcomes]:
        """Put larger programs in the place of steps where their kernels are faster; `joins` says whether any may be."""
        if joins:  # those whose time ran out come before what may be faster
            outcomes = self._outcomes(whole, self.deadline)
        whole, outcomes = self.joiner.joined(whole, outcomes, self.known, self.deadline)
        return whole, self._outcomes(whole, self.deadline)  # and what is left is for them, too

    def laid_out(self, whole: Partition, outcomes: Outcomes) -> list[Plan]:
        """The plans for each way that images may lie between convolutions."""
        choices = self.ways.choices(whole)
        plans = (_laid_out(self.cutter.graph, *choice, outcomes, self.optimizer, self.known, self.deadline) for choice in choices)
        return [_with_layers_of_lost(plan, self.cutter.device, self.optimizer, self.deadline) for plan in plans]

    def searched_on(self, made: Sequence[Plan]) -> list[Plan]:
        """The plans with what is found in the time that is left for programs whose search was cut short; whoever waits is given
        the first one before."""
        pieces = [*dict.fromkeys(piece for plan in made for piece in plan.partition.pieces)]
        if not self.optimizer.cut_short(pieces, self.known):
            return [*made]
        if self.improved is not None and made[0].layout is Layout.CONTIGUOUS:
            self.improved(made[0])
        deadline = self.deadline.part(_WAITED) if self.optimizer.waited_for else self.deadline
        outcomes = dict(zip(pieces, self.optimizer.searched_on(pieces, self.known, deadline), strict=True))
        return [replace(plan, results=_results(plan.partition.pieces, outcomes)) for plan in made]

    def _in_passing(self, whole: Partition, deadline: Deadline) -> Outcomes:
        """What becomes of pieces that are tried but once; whoever waits is told of those that kernels run so far."""
        decided = _so_far(whole, self.ways, self.improved)
        outcomes = self.optimizer.outcomes(whole.pieces, self.known, deadline, once=True, decided=decided, until=self.deadline)
        return _by_piece(whole, outcomes)

    def _outcomes(self, whole: Partition, deadline: Deadline) -> Outcomes:
        return _by_piece(whole, self.optimizer.outcomes(whole.pieces, self.known, deadline, until=self.deadline))

    def _ends(self, deadline: Deadline) -> bool:
        return deadline.passed or self.optimizer.interrupted


def _by_piece(whole: Partition, outcomes: Sequence[PieceOutcome]) -> Outcomes:
    return dict(zip(whole.pieces, outcomes, strict=True))


def _remember(graphs: GraphsByForm, outcomes: Outcomes, made: Sequence[Plan]) -> None:
    """Keep the muGraphs that were found by the form of their programs; that time was wanting is no answer."""
    found = {piece: outcome.result for piece, outcome in outcomes.items() if outcome.result is not None and not outcome.ran_out}
    for results in (*(plan.results for plan in made), found):
        for piece, result in results.items():
            graphs.setdefault(form_of(piece.program), result.graph)


def _so_far(
    whole: Partition, ways: Ways, improved: Callable[[Plan], None] | None
) -> Callable[[Mapping[Piece, PieceOutcome]], None] | None:
    """Tells of the plan of a graph that is cut from what is known of its pieces."""
    partition, layout = ways.choices(whole)[0]
    if improved is None or layout is not Layout.CONTIGUOUS:
        return None
    return lambda outcomes: improved(_decided(partition, layout, outcomes))


def _decided(whole: Partition, layout: Layout, outcomes: Mapping[Piece, PieceOutcome]) -> Plan:
    """The plan of a graph that is cut from what became of its pieces, or of some of them."""
    lost = {
        piece: outcomes[piece].reason if piece in outcomes else _SEARCHED for piece in whole.pieces if not _runs(piece, outcomes)
    }
    for piece, reason in lost.items():
        whole = whole.without([piece], reason)
    return Plan(whole, _results(whole.pieces, outcomes), layout, lost)


def _results(pieces: Sequence[Piece], outcomes: Mapping[Piece, PieceOutcome]) -> dict[Piece, Superoptimized]:
    return {piece: result for piece in pieces if (result := outcomes[piece].result) is not None}


def _runs(piece: Piece, outcomes: Mapping[Piece, PieceOutcome]) -> bool:
    return piece in outcomes and outcomes[piece].runs


def _tangled(outcomes: Outcomes, before: Collection[frozenset[fx.Node]], retried: bool) -> set[frozenset[fx.Node]]:
    """The calls of each program with parts of tensors that no kernels were found for; unless `retried`, not of those that only
    time was wanting for, and that are part of what was taken apart `before`."""
    found: set[frozenset[fx.Node]] = set()
    for piece, outcome in outcomes.items():
        nodes = frozenset(piece.nodes)
        if not outcome.runs and has_parts(piece.program):
            waits = outcome.ran_out and not retried and any(nodes < larger for larger in before)
            found |= set() if waits else {nodes}
    return found


def _laid_out(
    graph: fx.Graph,
    whole: Partition,
    layout: Layout,
    decided: Outcomes,
    optimizer: Optimizer,
    graphs: GraphsByForm,
    deadline: Deadline,
) -> Plan:
    """The plan of a graph that is cut for one layout of images; what became of its programs was `decided` for contiguous ones."""
    if layout is Layout.CHANNELS_LAST:
        whole = with_channels_last(graph, whole)
    new = [piece for piece in whole.pieces if piece not in decided]
    until = Deadline(deadline.share(_TURNED))
    return _decided(
        whole, layout, dict(decided) | dict(zip(new, optimizer.outcomes(new, graphs, until, until=deadline), strict=True))
    )


def _with_layers_of_lost(plan: Plan, device: str, optimizer: Optimizer, deadline: Deadline) -> Plan:
    """The plan with library kernels for the linear layers of programs that came to nothing after the graph was cut anew."""
    lost = {node for piece in plan.lost for node in piece.nodes}
    layers = linear_layers(lost.intersection(left.node for left in plan.partition.left), device)
    if optimizer.library is None or not layers:
        return plan
    if optimizer.options.profile:
        layers = optimizer.library.faster(layers, deadline, optimizer.tell)
    fitting = within_memory([*plan.partition.library, *layers], packed_by_kernels(plan.results))
    return replace(plan, partition=plan.partition.with_library(each for each in layers if each in fitting))


def _others(partitions: Sequence[Partition], optimizer: Optimizer, deadline: Deadline) -> dict[fx.Node, Way]:
    """How PyTorch is asked for calls that it makes in some way that a graph is cut, where that was measured to be faster."""
    if optimizer.library is None or not optimizer.options.profile:
        return {}
    calls = {left.node for part in partitions for left in part.left}
    return optimizer.library.faster_ways(other_ways(calls), deadline)


def _ways(graph: fx.Graph, device: str, optimizer: Optimizer, deadline: Deadline) -> Ways:
    """The convolutions that are library kernels."""
    if optimizer.library is None:
        return Ways({})
    images = convolutions(graph, device)
    if not optimizer.options.profile:
        return Ways.untimed(images)
    return Ways.of(images, optimizer.library, deadline, optimizer.tell)
