"""How an earlier process cut a graph, and which parts of it kernels ran: a later one need not find that out again.

Cutting a graph by rules, joining steps and asking of every program that was tried what became of it takes most of what is left to
do where everything is kept. A kept plan says which calls were one program in the end. It is no evidence: the programs are made of
the calls anew, must be those that were decided about, and their kernels are recalled, compared with float64 and tested as ever.
Where anything of it is not as it was (a result or a duel is gone, kernels are refused, other layers were timed), the graph is cut
as if nothing were kept.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from mugraph.devices import device_for
from mugraph.devices.targets import target_row
from mugraph.errors import InvalidInput
from mugraph.frontend.operators.torch_casts import draws_random_numbers, has_effects, note_roundings
from mugraph.frontend.partitioning.library import LibraryKernel, convolutions, is_constant, linear_layers
from mugraph.frontend.partitioning.partition import Known, Left, Partition, Piece, piece_of
from mugraph.frontend.partitioning.splice import Step, can_run, in_order, nodes_of
from mugraph.frontend.rewriting.node_traits import mutates
from mugraph.pieces.image_layouts import Layout
from mugraph.pieces.other_ways import other_ways
from mugraph.pieces.packed_memory import packed_by_kernels, within_memory
from mugraph.pieces.piece_duels import torch_here
from mugraph.pieces.piece_optimizer import Optimizer
from mugraph.pieces.plan import Plan
from mugraph.pieces.whole_calls import text_of_calls
from mugraph.results.superoptimized import Superoptimized
from mugraph.selection.result_cache import package_digest
from mugraph.support.deadline import Deadline
from mugraph.support.store import Store, digest_of
from mugraph.version import __version__

KIND = "plan"
"""What the store calls plans."""

_log = logging.getLogger("mugraph.torch_compile")


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """The place in a store of the plan of one graph that is ready to be cut, for who has as much time as was had for it."""

    store: Store
    key: str
    graph: fx.Graph
    nodes: tuple[fx.Node, ...]
    """Those of the graph before it is cut, by which a plan names them; cutting gives some calls a second time."""
    layers: tuple[LibraryKernel, ...]
    """The linear layers that the library could have."""
    optimizer: Optimizer

    @classmethod
    def of(
        cls, graph: fx.Graph, optimizer: Optimizer, written: Mapping[fx.Node, fx.Node], calls: str | None = None
    ) -> KeptPlan | None:
        """The place for a graph with these `calls`, as text where that is known; `written` is as in `ways_in_place`.

        None where it is cut anew: who serves a model meanwhile decides by other measurements, and a function is given the time
        that it was given.
        """
        options = optimizer.options
        if not optimizer.waited_for:
            return None
        chosen = (options.keep, options.profile, options.pack, options.evidence, options.seed, options.max_error, options.space)
        here = (repr(device_for(options.target)), *torch_here(), __version__, package_digest())
        constants = [node.name for node in graph.nodes if node.op == "placeholder" and is_constant(node)]
        behind = [(argument.name, value.name) for argument, value in written.items()]
        asked = repr((options.target, chosen, constants, behind))
        key = digest_of(text_of_calls(graph) if calls is None else calls, asked, *here)
        layers = linear_layers(graph.nodes, target_row(options.target).tensors)
        return cls(Store.of(options.cache), key, graph, (*graph.nodes,), layers, optimizer)

    def recalled(self, deadline: Deadline) -> Plan | None:
        """The plan of an earlier process, with results that were kept; None, with a line in the log, where it does not hold."""
        document = self.store.get(KIND, self.key)
        if document is None:
            return None
        try:
            if _seconds(self.optimizer.options.budget) > _seconds(document["budget"]):
                return None
            return self._plan(document, deadline)
        except Exception as error:  # whatever a document says: there is another way
            self._without_repeated()
            _log.info("a graph is cut anew, as it was before does not hold any more: %s: %s", type(error).__name__, error)
            return None

    def keep(self, plan: Plan) -> None:
        """Keep a plan that later processes would make as well: more time would show no more of what PyTorch runs, and images lie
        as they were recorded."""
        pieces = (*plan.partition.pieces, *plan.lost)
        plain = plan.layout is Layout.CONTIGUOUS and not any(piece.images or piece.image_results for piece in pieces)
        if plain and not self.optimizer.may_go_on(pieces):
            with suppress(InvalidInput):  # it is made anew
                self.store.put(KIND, self.key, self._document(plan))

    # --- as JSON values ---

    def _document(self, plan: Plan) -> dict[str, Any]:
        """A plan as `_plan` reads it; raises InvalidInput where cutting the graph did more to it than to repeat calls."""
        numbers = {node: number for number, node in enumerate(self.nodes)}
        repeated = [node for node in self.graph.nodes if node not in numbers]
        sources = [numbers[_original(node, numbers)] for node in repeated]
        numbers |= {node: len(self.nodes) + number for number, node in enumerate(repeated)}

        def listed(nodes: Iterable[fx.Node]) -> list[int]:
            return [numbers[node] for node in nodes]

        cut, left = plan.partition, dict[tuple[str, int], list[int]]()
        for each in cut.left:
            left.setdefault((each.reason, each.level), []).append(numbers[each.node])
        return {
            "about": f"a graph of {len(self.nodes)} nodes, {len(cut.pieces)} programs of it in kernels",
            "budget": self.optimizer.options.budget,
            "repeated": [[source, listed(node.users)] for source, node in zip(sources, repeated, strict=True)],
            "pieces": [[piece.level, self.optimizer.key(piece), listed(piece.nodes)] for piece in cut.pieces],
            "given": [self.optimizer.seconds_given(piece) for piece in cut.pieces],
            "library": [[kernel.level, *(listed(filter(None, part)) for part in _parts(kernel))] for kernel in cut.library],
            "left": [[reason, level, nodes] for (reason, level), nodes in left.items()],
            "others": listed(plan.others),
            "losses": dict(plan.losses),
            "timed": self._timed_layers(),
        }

    def _plan(self, document: Mapping[str, Any], deadline: Deadline) -> Plan:
        """The plan of a document. Raises InvalidInput where it does not hold any more, and anything where it is none."""
        if document["timed"] != self._timed_layers():
            raise InvalidInput("other linear layers were timed")
        nodes, known = self._with_repeated(document["repeated"]), Known()
        note_roundings(self.graph)

        def those(numbers: Iterable[int]) -> tuple[fx.Node, ...]:
            return tuple(nodes[number] for number in numbers)

        keys = {piece_of(those(numbers), int(level), known): key for level, key, numbers in document["pieces"]}
        if any(self.optimizer.key(piece) != key for piece, key in keys.items()):
            raise InvalidInput("a program is another one")
        library = tuple(_kernel(level, *map(those, parts)) for level, *parts in document["library"])
        left = (Left(node, str(reason), int(level)) for reason, level, numbers in document["left"] for node in those(numbers))
        cut = Partition(tuple(keys), tuple(left), library)
        self._check(cut)
        others = other_ways(those(document["others"]))
        if len(others) < len(document["others"]):
            raise InvalidInput("a call has no other way")
        given = (None if seconds is None else float(seconds) for seconds in document["given"])
        results = self._results(dict(zip(cut.pieces, given, strict=True)), deadline)
        if len(within_memory(library, packed_by_kernels(results))) < len(library):
            raise InvalidInput("there is less memory")
        return Plan(cut, results, others=others, before={str(why): int(count) for why, count in document["losses"].items()})

    def _with_repeated(self, repeated: Sequence[Sequence[Any]]) -> list[fx.Node]:
        """The nodes of the graph, and behind them calls that are made a second time for some of their readers."""
        nodes = [*self.nodes]
        for number, readers in repeated:
            source = nodes[number]
            if number >= len(self.nodes) or source.op != "call_function" or _in_turn(source):
                raise InvalidInput(f"{source.name} is not made a second time")
            with self.graph.inserting_after(source):
                again = self.graph.node_copy(source)
            for reader in readers:
                nodes[reader].replace_input_with(source, again)
            nodes.append(again)
        return nodes

    def _without_repeated(self) -> None:
        """Make the graph again what it was before calls of it were made a second time."""
        known = set(self.nodes)
        for again in [node for node in self.graph.nodes if node not in known]:
            again.replace_all_uses_with(_original(again, known))
            self.graph.erase_node(again)

    def _results(self, pieces: Mapping[Piece, float | None], deadline: Deadline) -> dict[Piece, Superoptimized]:
        """What runs the programs, which had so many seconds; raises InvalidInput where kernels do not run them all, or that had
        to be found out now."""
        results = dict[Piece, Superoptimized]()
        for piece, outcome in self.optimizer.as_kept(pieces, deadline):
            if outcome is None:
                raise InvalidInput("what it rests on was not kept")
            if outcome.result is None or not outcome.runs:
                raise InvalidInput(f"PyTorch runs a program: {outcome.reason}")
            results[piece] = outcome.result
        return results

    def _check(self, cut: Partition) -> None:
        """Raise InvalidInput unless each call of the graph is in one step, no steps wait for each other, calls that change what
        others see keep their order, and the library is asked for what it has."""
        steps: tuple[Step, ...] = (*cut.pieces, *cut.left, *cut.library)
        calls = Counter(node for step in steps for node in nodes_of(step))
        if calls != Counter(node for node in self.graph.nodes if node.op == "call_function"):
            raise InvalidInput("it has other calls")
        if not can_run(self.graph, cut):
            raise InvalidInput("steps wait for each other")
        made = [node for step in in_order(self.graph, cut) for node in nodes_of(step)]
        asked = [node for node in self.graph.nodes if node.op == "call_function"]
        first = next((number for number, node in enumerate(asked) if mutates(node)), len(asked))
        if made[first:] != asked[first:] or [*filter(_in_turn, made)] != [*filter(_in_turn, asked)]:
            raise InvalidInput("calls take other turns")
        if not {_parts(kernel) for kernel in cut.library} <= self._of_library():
            raise InvalidInput("the library has no such kernel")

    def _of_library(self) -> set[tuple[tuple[fx.Node | None, ...], ...]]:
        """The parts of kernels that the library could have: linear layers also without the activation behind them."""
        device = target_row(self.optimizer.options.target).tensors
        layers = linear_layers(self.graph.nodes, device)
        alone = (replace(layer, activation=None) for layer in layers)
        return {_parts(kernel) for kernel in (*convolutions(self.graph, device), *layers, *alone)}

    def _timed_layers(self) -> int:
        """How many linear layers of the graph were timed, which decides who has them."""
        library = self.optimizer.library
        return 0 if library is None else sum(library.known_seconds(layer) is not None for layer in self.layers)


def _in_turn(node: fx.Node) -> bool:
    """Whether others see when a call is made."""
    return mutates(node) or draws_random_numbers(node) or has_effects(node)


def _seconds(budget: float | None) -> float:
    return math.inf if budget is None else float(budget)


def _original(node: fx.Node, known: Container[fx.Node]) -> fx.Node:
    """The call that another one repeats, which stands right behind it; raises InvalidInput where it does not."""
    source = node.prev
    while source not in known and source.op == "call_function":
        source = source.prev
    if source not in known or (source.target, source.args, source.kwargs) != (node.target, node.args, node.kwargs):
        raise InvalidInput(f"{node.name} repeats no call")
    return source


def _parts(kernel: LibraryKernel) -> tuple[tuple[fx.Node | None, ...], ...]:
    """The calls of a library kernel by what they do there."""
    return (kernel.product,), kernel.affine, (kernel.sum,), (kernel.activation,)


def _kernel(level: int, product: Sequence[fx.Node], affine: Sequence[fx.Node], *others: Sequence[fx.Node]) -> LibraryKernel:
    """The library kernel of such calls."""
    (only,), (added, activation) = product, (next(iter(part), None) for part in others)
    return LibraryKernel(only, tuple(affine), added, activation, int(level))
