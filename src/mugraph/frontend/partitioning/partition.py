"""Splitting a torch graph into LAX subprograms worth a search, and the rest (paper, Figure 1 and section 1).

Every call gets a level (`mugraph.frontend.partitioning.levels`), which never falls along a path. Connected calls of one level are
a candidate piece; contracted to one node each, they leave the graph without cycles, so pieces and the rest cannot wait for each
other. Between the levels the cut lies where the fewest bytes cross it: what is computed elementwise from a product stays with it,
a normalisation goes with the product that reads it.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from mugraph.errors import MugraphError
from mugraph.frontend.operators.attention import mask_of
from mugraph.frontend.operators.conversion import ROW
from mugraph.frontend.operators.torch_casts import note_roundings, tensor_of
from mugraph.frontend.partitioning.levels import levels_of
from mugraph.frontend.partitioning.library import LibraryKernel
from mugraph.frontend.rewriting.node_traits import (
    CallWork,
    Inspector,
    Traits,
    alone,
    computing_operators,
    described,
    inputs_of,
    isolated,
    mutates,
    program_of,
    share,
    work_of_call,
    work_of_program,
)
from mugraph.ir.graph import Graph, Tensor
from mugraph.ir.parts import objection

LARGEST = 4
"""Contractions in one piece: the search takes minutes for more."""
_BOUND_BY_MEMORY = 4.0
"""Floating-point operations per byte up to which reading a product's operands takes longer than multiplying them."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Piece:
    """A part of a torch graph that is a program: its calls in order, what they read, and what others read of it."""

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    program: Graph
    """Its inputs are called x0, x1, ... in the order of `inputs`, so that equal pieces are equal programs."""
    numbers: tuple[int, ...]
    """Which output of `program` each of `outputs` is."""
    torch_graph: fx.Graph
    """The calls, or equal ones, as a graph of their own, from `inputs` to `outputs`."""
    level: int
    images: frozenset[int] = frozenset()
    """Which inputs of `program` have the channels last that are the second dimension of what the piece reads."""
    image_results: frozenset[int] = frozenset()
    """Which outputs of `program` have those of what others read of the piece (`mugraph.frontend.partitioning.channels_last`)."""

    @property
    def copies(self) -> dict[fx.Node, fx.Node]:
        """What stands in `torch_graph` for its inputs and its calls."""
        own = [node for node in self.torch_graph.nodes if node.op != "output"]
        return dict(zip((*self.inputs, *self.nodes), own, strict=True))

    def of_copies(self, copies: Mapping[fx.Node, fx.Node]) -> Piece:
        """The same piece in another graph, which has copies of its calls and of what they read."""
        nodes, inputs, outputs = (tuple(copies[node] for node in nodes) for nodes in (self.nodes, self.inputs, self.outputs))
        return replace(self, nodes=nodes, inputs=inputs, outputs=outputs)

    @property
    def masks(self) -> tuple[int, ...]:
        """Which of `inputs` mask attention: the program holds only where none of them hides a row."""
        found = {unknown_mask(node) for node in self.nodes}
        return tuple(number for number, node in enumerate(self.inputs) if node in found)

    @property
    def causal_masks(self) -> tuple[Tensor, ...]:
        """Inputs [queries, keys] of the program after those of the piece: see `mugraph.frontend.operators.attention`."""
        return tuple(node.output for node in self.program.inputs()[len(self.inputs) :])

    @property
    def work(self) -> CallWork:
        """Bytes that kernels read and write at least, and floating-point operations of the program."""
        return work_of_program(self.program, (*self.inputs, *self.outputs))


@dataclass(frozen=True, slots=True)
class Left:
    """A call that stays with torch."""

    node: fx.Node
    reason: str
    level: int

    @property
    def work(self) -> CallWork:
        """What the call costs."""
        return work_of_call(self.node)


@dataclass(frozen=True, slots=True)
class Partition:
    """Pieces, library kernels and everything else: contracted to one call each, they leave the graph without cycles."""

    pieces: tuple[Piece, ...]
    left: tuple[Left, ...]
    library: tuple[LibraryKernel, ...] = ()
    traits: Mapping[fx.Node, Traits] = field(default_factory=dict)
    """What each call does that could be part of a program, whoever runs it."""

    @property
    def byte_share(self) -> float:
        """The part of all bytes read and written that kernels read and write."""
        return share([work.bytes for work in self._works], [left.work.bytes for left in self.left])

    @property
    def flop_share(self) -> float:
        """The part of all floating-point operations that are in kernels."""
        return share([work.flops for work in self._works], [left.work.flops for left in self.left])

    @property
    def _works(self) -> list[CallWork]:
        """What kernels cost."""
        return [piece.work for piece in self.pieces] + [kernel.work for kernel in self.library]

    def with_library(self, kernels: Iterable[LibraryKernel]) -> Partition:
        """The partition with library kernels for calls that are left to torch."""
        levels = {left.node: left.level for left in self.left}
        more = [replace(kernel, level=levels[kernel.product]) for kernel in kernels]
        taken = {node for kernel in more for node in kernel.nodes}
        return replace(self, left=tuple(left for left in self.left if left.node not in taken), library=(*self.library, *more))

    def reasons(self) -> Mapping[str, int]:
        """How many calls stay with torch, by operator and reason, most frequent first."""
        counted = Counter(f"{left.node.target}: {left.reason}" for left in self.left)
        return dict(counted.most_common())

    def without(self, steps: Iterable[Piece | LibraryKernel], reason: str) -> Partition:
        """The partition with the calls of these pieces and library kernels left to torch."""
        dropped = list(steps)
        more = [Left(node, reason, step.level) for step in dropped for node in step.nodes]
        pieces = tuple(piece for piece in self.pieces if piece not in dropped)
        library = tuple(kernel for kernel in self.library if kernel not in dropped)
        return replace(self, pieces=pieces, left=(*self.left, *more), library=library)

    def with_joined(self, joined: Iterable[Piece]) -> Partition:
        """The partition with pieces in the place of all pieces, library kernels and calls left to torch that they are made of."""
        more = tuple(joined)
        taken = {node for piece in more for node in piece.nodes}
        pieces = tuple(piece for piece in self.pieces if taken.isdisjoint(piece.nodes))
        library = tuple(kernel for kernel in self.library if taken.isdisjoint(kernel.nodes))
        left = tuple(left for left in self.left if left.node not in taken)
        return replace(self, pieces=(*pieces, *more), left=left, library=library)


@dataclass(frozen=True, slots=True)
class Known:
    """What was found out about calls on one target: equal ones, as of a model's layers, are looked at once, also where a graph is
    cut again."""

    calls: dict[str, Traits | str] = field(default_factory=dict)
    """As `Inspector` has it."""
    programs: dict[str, tuple[fx.Graph, Graph, list[int]]] = field(default_factory=dict)
    """By what describes calls, these as a graph of their own, their program, and which output of it each of their outputs is."""


def partition(
    graph: fx.Graph,
    device: str = "cpu",
    library: Sequence[LibraryKernel] = (),
    *,
    joined: Sequence[Piece] = (),
    lookups: bool | None = None,
    tangled: Container[frozenset[fx.Node]] = frozenset(),
    scans: bool | None = None,
    in_place: Container[fx.Node] = frozenset(),
    by_torch: Container[fx.Node] = frozenset(),
    known: Known | None = None,
) -> Partition:
    """Split a functional graph of ATen calls, whose nodes carry tensors without data in `meta["val"]`.

    Pieces hold calls on tensors of one kind of device, `cpu` or `cuda`, but for those of the `library` kernels and of pieces that
    are `joined` already, which it is up to the caller to see that nothing else waits for and is waited for by; library kernels
    with calls of these are left out. `lookups` says whether kernels read tables at integers, `scans` whether they have running
    sums and products, by default those of a CPU. Calls that are `tangled`, some with parts of tensors, are taken apart; those
    that torch makes `in_place` are left to it, and so are products that are to be `by_torch`. `known` is from earlier cuts for
    the same target.

    From the first call that changes an operand on, everything is left. Pieces hold at least two computing operators, of which one
    kernel can save what passes between them: the library is best at a lone product, unless memory bounds it, as at decode.
    """
    note_roundings(graph)
    calls = [node for node in graph.nodes if node.op == "call_function"]
    end = next((index for index, node in enumerate(calls) if mutates(node)), len(calls))
    own = device == "cpu"
    known = Known() if known is None else known
    inspector = Inspector(device, own if lookups is None else lookups, own if scans is None else scans, known.calls)
    masks = {mask for mask in map(unknown_mask, calls) if mask is not None}
    verdicts = {node: inspector.inspect(node) for node in calls[:end]}
    verdicts |= {mask: "it makes a mask, which is looked at before attention runs" for mask in masks if mask in verdicts}
    verdicts |= {node: "it is written into what the call changes" for node in verdicts if node in in_place}
    able = {node: verdict for node, verdict in verdicts.items() if isinstance(verdict, Traits)}
    verdicts |= {node: "PyTorch is as fast at it as kernels are predicted to be" for node in verdicts if node in by_torch}
    before = set(calls[:end])
    larger = {node for piece in joined for node in piece.nodes}
    called = [kernel for kernel in library if before.issuperset(kernel.nodes) and larger.isdisjoint(kernel.nodes)]
    verdicts |= {node: "a library kernel has it" for kernel in called for node in kernel.nodes}
    verdicts |= dict.fromkeys(larger, "a larger program has it")
    traits = {node: verdict for node, verdict in verdicts.items() if isinstance(verdict, Traits)}
    levels = levels_of(calls[:end], traits)
    _look_up_on_each_level(graph, traits, levels)
    splitter = _Splitter({node: traits[node] for node in graph.nodes if node in traits}, levels, known, tangled)
    pieces = [piece for nodes in splitter.components() for piece in splitter.pieces(nodes)]
    pieces += [replace(piece, level=max(levels[node] for node in piece.nodes)) for piece in joined]
    inside = larger.union(*(kernel.nodes for kernel in called))
    apart = {node: verdict for node, verdict in verdicts.items() if isinstance(verdict, str) and node not in inside}
    left = [Left(node, verdict, levels[node]) for node, verdict in apart.items()]
    last = 1 + max(levels.values(), default=0)
    after = [Left(node, "it runs after a call that changes its operands", last) for node in calls[end:]]
    kernels = tuple(replace(kernel, level=levels[kernel.product]) for kernel in called)
    return Partition(tuple(pieces), (*left, *splitter.left, *after), kernels, able | traits)


def _look_up_on_each_level(graph: fx.Graph, traits: dict[fx.Node, Traits], levels: dict[fx.Node, int]) -> None:
    """Give programs on other levels that read what is looked up lookups of their own, which `traits` and `levels` then have too:
    to read rows of a table again takes as long as to read a copy of them, which nobody needs to write then."""
    for node in [node for node, own in traits.items() if own.looks_up and not own.computes]:
        if node.users and all(user in traits for user in node.users):
            levels[node] = min(levels[user] for user in node.users)
        others: dict[int, fx.Node] = {}
        for user in [user for user in node.users if user in traits and levels[user] != levels[node]]:
            if levels[user] not in others:
                with graph.inserting_after(node):
                    again = others[levels[user]] = graph.node_copy(node)
                traits[again], levels[again] = traits[node], levels[user]
            user.replace_input_with(node, others[levels[user]])


def unknown_mask(node: fx.Node) -> fx.Node | None:
    """The mask of a call of attention, unless it was known when the graph was recorded."""
    return None if ROW in node.meta else mask_of(node)


def piece_of(nodes: Sequence[fx.Node], level: int, known: Known | None = None) -> Piece:
    """The piece that calls are, in topological order; `known` has the programs of earlier ones.

    Raises MugraphError where they are no program.
    """
    inside, programs = set(nodes), {} if known is None else known.programs
    outputs = tuple(node for node in nodes if any(user not in inside for user in node.users))
    inputs = inputs_of(nodes)
    kind = described(nodes, inputs, outputs)
    if kind not in programs:
        graph, _ = isolated(nodes, outputs)
        programs[kind] = (graph, *program_of(graph))
    graph, program, numbers = programs[kind]
    return Piece(tuple(nodes), tuple(inputs), outputs, program, tuple(numbers), graph, level)


@dataclass
class _Splitter:
    """From connected calls of one level to pieces of a useful size."""

    traits: Mapping[fx.Node, Traits]
    levels: Mapping[fx.Node, int]
    known: Known
    tangled: Container[frozenset[fx.Node]] = frozenset()
    left: list[Left] = field(default_factory=list)

    def components(self, nodes: Sequence[fx.Node] | None = None) -> list[list[fx.Node]]:
        """The calls (all, unless given), in groups that are connected on their level.

        Of all calls, products of one tensor are a group too: who computes them together reads it once.
        """
        group: dict[fx.Node, list[fx.Node]] = {}

        def join(first: fx.Node, second: fx.Node) -> None:
            if group[first] is not group[second]:
                smaller, larger = sorted((group[first], group[second]), key=len)
                larger.extend(smaller)
                group.update(dict.fromkeys(smaller, larger))

        inside = set(self.traits if nodes is None else nodes)
        for node in self.traits if nodes is None else nodes:
            group[node] = [node]
            for source in node.all_input_nodes:
                if source in inside and self.levels[source] == self.levels[node]:
                    join(source, node)
        if nodes is None:
            for first, second in self._siblings():
                join(first, second)
        order = {node: index for index, node in enumerate(self.traits)}
        distinct = {id(members): members for members in group.values()}
        return [sorted(members, key=order.__getitem__) for members in distinct.values()]

    def _siblings(self) -> Iterator[tuple[fx.Node, fx.Node]]:
        """Pairs of products of one level that multiply the same tensor, or views of it."""
        known: dict[tuple[fx.Node, int], fx.Node] = {}
        for node, traits in self.traits.items():
            for factor in node.all_input_nodes if traits.contractions else ():
                while factor in self.traits and not self.traits[factor].computes and len(factor.all_input_nodes) == 1:
                    (factor,) = factor.all_input_nodes
                yield known.setdefault((factor, self.levels[node]), node), node

    def pieces(self, nodes: list[fx.Node]) -> list[Piece]:
        """The pieces of one group; what is in none of them joins `left`. A call of more contractions than are searched otherwise,
        as the gradient of attention, is taken apart by nobody."""
        kept = self._trimmed(nodes)
        contractions = sum(len(self.traits[node].contractions) for node in kept)
        if contractions > LARGEST and sum(bool(self.traits[node].contractions) for node in kept) > 1:
            return self._branches(kept, contractions)
        if not any(self.traits[node].computes for node in kept):
            self._leave(kept, "it computes nothing that could be put into one kernel with something else")
            return []
        try:
            piece = self._piece(kept)
        except MugraphError as error:
            self._leave(kept, str(error))
            return []
        if why := objection(piece.program):
            return self._around_parts(kept, why)
        if frozenset(kept) in self.tangled:
            return self._before_parts(kept)
        if not self._useful(piece):
            self._leave(kept, "there is nothing to put into one kernel with it")
            return []
        return [piece]

    def _around_parts(self, nodes: list[fx.Node], why: str) -> list[Piece]:
        """Pieces of a group without the calls that put tensors together or take them apart, which stay where they are; if there
        are none, calls that compute something of parts are pieces of their own."""
        inside = set(nodes)
        moving = _with_results({node for node in nodes if self.traits[node].moves}) & inside
        apart = moving or _with_results({node for node in nodes if self.traits[node].parts}) & inside
        if len(nodes) == 1 or not apart:
            self._leave(nodes, why)
            return []
        stages: dict[fx.Node, int] = {}  # as in `_branches`
        for node in nodes:
            sources = [source for source in node.all_input_nodes if source in stages]
            stages[node] = max((stages[source] + (node in apart or source in apart) for source in sources), default=0)
        self._leave(moving, f"it moves parts of tensors; {why}")
        groups: dict[tuple[int, bool], list[fx.Node]] = {}
        for node in nodes:
            if node not in moving:
                groups.setdefault((stages[node], node in apart), []).append(node)
        return [piece for group in groups.values() for part in self.components(group) for piece in self.pieces(part)]

    def _before_parts(self, nodes: list[fx.Node]) -> list[Piece]:
        """Pieces of a group of which nothing was found together: what comes before any part is moved, and the rest; around calls
        that move parts, where nothing comes before."""
        behind: set[fx.Node] = set()
        for node in nodes:
            if self.traits[node].moves or not behind.isdisjoint(node.all_input_nodes):
                behind.add(node)
        before = [node for node in nodes if node not in behind]
        if not before or not behind:
            return self._around_parts(nodes, "nothing was found of all of it together")
        groups = before, [node for node in nodes if node in behind]
        return [piece for group in groups for part in self.components(group) for piece in self.pieces(part)]

    def _branches(self, nodes: list[fx.Node], contractions: int) -> list[Piece]:
        """Pieces of a group that is too large: what several of its results are made from, what joins them, and the rest."""
        shared, joined = self._shared(nodes), self._joined(nodes)
        kinds = {node: 0 if node in shared else 2 if node in joined else 1 for node in nodes}
        stages: dict[fx.Node, int] = {}  # never falling along a path, so that what follows from other kinds is another part
        for node in nodes:
            sources = [source for source in node.all_input_nodes if source in stages]
            stages[node] = max((stages[source] + (kinds[source] != kinds[node]) for source in sources), default=0)
        for node in nodes:  # what is looked up stands beside what reads it first
            if self.traits[node].looks_up and (readers := [user for user in node.users if user in stages]):
                stages[node], kinds[node] = min((stages[user], kinds[user]) for user in readers)
        groups: dict[tuple[int, int], list[fx.Node]] = {}
        for node in nodes:
            groups.setdefault((stages[node], kinds[node]), []).append(node)
        parts = [part for _, group in sorted(groups.items(), key=lambda item: item[0]) for part in self.components(group)]
        if len(parts) == 1:
            self._leave(nodes, f"one of {contractions} contractions that depend on each other; at most {LARGEST} are searched")
            return []
        return [piece for part in parts for piece in self.pieces(part)]

    def _shared(self, nodes: Sequence[fx.Node]) -> set[fx.Node]:
        """The calls without contraction that more than one contraction or result of the group is made from."""
        inside = set(nodes)
        reached: dict[fx.Node, set[fx.Node]] = {}
        for node in reversed(nodes):
            users = [user for user in node.users if user in inside]
            reached[node] = set().union(*(reached[user] for user in users))
            if self.traits[node].contractions or not users:
                reached[node] = {node}
        shared = {node for node in nodes if len(reached[node]) > 1}
        return shared | {node for node in nodes if not alone(node) and not shared.isdisjoint(node.all_input_nodes)}

    def _joined(self, nodes: Sequence[fx.Node]) -> set[fx.Node]:
        """The calls that are made from more contractions than one piece may have."""
        above: dict[fx.Node, set[fx.Node]] = {}
        for node in nodes:
            own = {node} if self.traits[node].contractions else set()
            above[node] = own.union(*(above[source] for source in node.all_input_nodes if source in above))
        counts = {node: sum(len(self.traits[source].contractions) for source in above[node]) for node in nodes}
        return {node for node in nodes if counts[node] > LARGEST}

    def _trimmed(self, nodes: Sequence[fx.Node]) -> list[fx.Node]:
        """Without first views that others read too, and final calls that are views or made of what is read outside anyway."""
        kept = dict.fromkeys(nodes)
        for node in reversed(nodes):
            traits = self.traits[node]
            if traits.pinned or traits.reduces or not alone(node) or any(user in kept for user in node.users):
                continue
            sources = [source for source in node.all_input_nodes if source in kept]
            exported = all(any(user not in kept for user in source.users) for source in sources)
            if exported or not (traits.computes or self._lays_out(node, kept)):
                del kept[node]
                self._leave([node], "a cheap last step on what others read too")
        for node in nodes:
            if node in kept and self._shared_view(node, kept):
                del kept[node]
                self._leave([node], "a view of what others read too")
        return list(kept)

    def _lays_out(self, node: fx.Node, kept: Container[fx.Node]) -> bool:
        """Whether a call writes what a kernel computes in another order, in which the kernel can write it at once."""
        copies = isinstance(node.target, torch._ops.OpOverload) and not node.target.is_view
        return copies and any(source in kept for source in node.all_input_nodes)

    def _shared_view(self, node: fx.Node, kept: Container[fx.Node]) -> bool:
        """Whether a call gives what kernels read as it lies in memory: to others, too, or of one part of a tensor."""
        tensor = tensor_of(node)
        if tensor is None or not tensor.is_contiguous() or self.traits[node].computes or not alone(node):
            return False
        if any(source in kept for source in node.all_input_nodes):
            return False
        apart = self.traits[node].moves and getattr(node.target, "is_view", False)  # another part is the same program then
        return apart or any(user not in kept for user in node.users)

    def _useful(self, piece: Piece) -> bool:
        """Whether there is something to fuse, or products that memory bounds."""
        traits = [self.traits[node] for node in piece.nodes]
        if any(trait.looks_up for trait in traits) and any(trait.computes for trait in traits):
            return True  # what is looked up need not be written first
        if sum(trait.computes for trait in traits) + sum(len(trait.contractions) > 1 for trait in traits) > 1:
            return True
        if any(trait.scans for trait in traits):
            return True  # of which PyTorch's takes an element at a time
        if not any(trait.contractions for trait in traits):
            return computing_operators(piece.program) > 1  # such as a softmax or a norm, which PyTorch may run in several passes
        work = piece.work
        return work.flops <= _BOUND_BY_MEMORY * work.bytes

    def _piece(self, nodes: Sequence[fx.Node]) -> Piece:
        return piece_of(nodes, self.levels[nodes[0]], self.known)

    def _leave(self, nodes: Iterable[fx.Node], reason: str) -> None:
        self.left.extend(Left(node, reason, self.levels[node]) for node in nodes)


def _with_results(calls: set[fx.Node]) -> set[fx.Node]:
    """The calls, and what is read of those that give several tensors, which no piece has without them."""
    return calls | {user for node in calls for user in node.users if user.target is operator.getitem}
