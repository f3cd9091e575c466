"""The results of searches, kept beyond the process: the structures of one program as one JSON document.

Nothing read back is trusted: a document that does not describe sketches of the very programs it names is ignored. That the
sketches compute what they should is the verifier's to say, as of any candidate.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from mugraph.errors import InvalidInput
from mugraph.ir.axes import AxisProgram, Slots, Term
from mugraph.ir.scalar import Scalar
from mugraph.search.closure.saturation import Leaf
from mugraph.search.closure.sketch import Sketch, SketchTuple, Step, check_step
from mugraph.search.closure.tiers import Tier
from mugraph.search.report import Pruning
from mugraph.search.structures import FoundStructure, Key, StructureCache
from mugraph.search.tasks import Options, canonical

KIND = "structures"
"""What the documents are called on a shelf."""

_log = logging.getLogger(__name__)


class Shelf(Protocol):
    """Where documents outlive the process; `mugraph.support.store.Store` is one."""

    def get(self, kind: str, key: str) -> dict[str, Any] | None:
        """The stored document, or None."""
        ...

    def put(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Store a document."""
        ...


@dataclass
class Notes:
    """The structures of `program` and its parts under `options`, between a shelf and the structures that a process knows."""

    shelf: Shelf
    program: AxisProgram
    options: Options

    def __post_init__(self) -> None:
        form, _ = canonical(self.program)
        what = json.dumps([_engine_digest(), _program_to_json(form), asdict(self.options)], sort_keys=True)
        self.key = hashlib.sha256(what.encode()).hexdigest()
        self.kept: dict[Key, FoundStructure] = {}

    def recall(self, known: StructureCache) -> None:
        """Load structures of earlier searches into the cache of this process; ignores a malformed document with a warning."""
        document = self.shelf.get(KIND, self.key)
        if document is None:
            return
        try:
            self.kept = dict(structures_from_json(document, self.options))
        except InvalidInput as error:
            _log.warning("the structures kept for a program are ignored: %s", error)
            return
        for key, structure in self.kept.items():
            known.put(key, structure)

    def keep(self, found: Mapping[Key, FoundStructure]) -> None:
        """Store the structures that a search used, unless all of them were loaded."""
        if any(self.kept.get(key) != structure for key, structure in found.items()):
            self.kept = {**self.kept, **found}
            about = f"structures of a program of {len(self.program.terms)} terms"
            self.shelf.put(KIND, self.key, {"about": about, **structures_to_json(self.kept)})


@functools.cache
def _engine_digest() -> str:
    """A hash of the sources that decide which structures are found; after any change to them, stored structures are ignored."""
    package = Path(__file__).parent.parent
    files = sorted(file for part in ("search", "algebra", "ir") for file in (package / part).rglob("*.py"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def structures_to_json(structures: Mapping[Key, FoundStructure]) -> dict[str, Any]:
    """Structures as JSON values; every step and program is written once."""
    programs: dict[AxisProgram, int] = {}
    steps: dict[Step, int] = {}

    def sketch(sketch: Sketch) -> list[Any]:
        return [[steps.setdefault(step, len(steps)) for step in sketch.steps], list(sketch.goals)]

    written = [
        {
            "program": programs.setdefault(program, len(programs)),
            "tier": tier.name,
            "loop_axis": loop_axis,
            "sketches": [sketch(each) for each in structure.sketches],
            "safe_sketches": [sketch(each) for each in structure.safe_sketches],
            "pruned": {reason.name: count for reason, count in structure.pruned},
            "states": structure.states,
            "edges": structure.edges,
            "saturated": structure.saturated,
            "complete": structure.complete,
            "operators": structure.operators,
            "seconds": structure.seconds,
            "given": structure.given,
            "timed_out": structure.timed_out,
        }
        for (program, tier, loop_axis, _), structure in structures.items()
    ]
    return {
        "programs": [_program_to_json(program) for program in programs],
        "steps": [_step_to_json(step) for step in steps],
        "structures": written,
    }


def structures_from_json(document: Mapping[str, Any], options: Options) -> Iterator[tuple[Key, FoundStructure]]:
    """What `structures_to_json` wrote, as found under `options`; raises InvalidInput for anything else."""
    try:
        programs = [_program_from_json(value) for value in document["programs"]]
        steps = [_step_from_json(value) for value in document["steps"]]
        for value in document["structures"]:
            program, loop_axis = programs[value["program"]], value["loop_axis"]
            sketches, safe = (
                SketchTuple(_sketch(program, loop_axis, [steps[i] for i in chosen], goals) for chosen, goals in value[name])
                for name in ("sketches", "safe_sketches")
            )
            pruned = tuple(sorted((Pruning[name], int(count)) for name, count in value["pruned"].items()))
            structure = FoundStructure(
                sketches=sketches,
                safe_sketches=safe,
                states=int(value["states"]),
                edges=int(value["edges"]),
                saturated=bool(value["saturated"]),
                complete=bool(value["complete"]),
                operators=int(value["operators"]),
                pruned=pruned,
                seconds=float(value["seconds"]),
                given=float(value["given"]),
                timed_out=bool(value["timed_out"]),
            )
            yield (program, Tier[value["tier"]], loop_axis, options), structure
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"this is no document of structures ({type(error).__name__}: {error})") from None


def _program_to_json(program: AxisProgram) -> dict[str, Any]:
    terms = [
        [t.op, list(t.inputs), sorted(t.axes), sorted(t.reduced), t.source, t.slots, None if t.scalar is None else str(t.scalar)]
        for t in program.terms
    ]
    finer = sorted(sorted(axes) for axes in program.finer)
    return {
        "terms": terms, "outputs": program.outputs, "axes": len(program.sizes), "finer": finer, "projective": program.projective,
    }  # fmt: skip


def _program_from_json(value: Mapping[str, Any]) -> AxisProgram:
    terms: list[Term] = []
    for op, inputs, axes, reduced, source, slots, scalar in value["terms"]:
        exact = None if scalar is None else Scalar.parse(scalar)
        terms.append(Term(op, _below(inputs, len(terms)), frozenset(axes), frozenset(reduced), int(source), _slots(slots), exact))
    outputs = tuple((int(term), _slots(slots)) for term, slots in value["outputs"])
    _below([term for term, _ in outputs], len(terms))
    finer = frozenset(frozenset(axes) for axes in value["finer"])
    program = AxisProgram(tuple(terms), outputs, (0,) * int(value["axes"]), finer, bool(value["projective"]))
    mentioned = frozenset[int]().union(*(term.axes | term.reduced for term in terms))
    _below(mentioned, len(program.sizes))
    return program


def _step_to_json(step: Step) -> list[Any]:
    leaf = None if step.leaf is None else [step.leaf.source, step.leaf.slots]
    scalar = None if step.scalar is None else str(step.scalar)
    return [step.op, step.inputs, sorted(step.axes), step.in_loop, sorted(step.reduced), leaf, scalar, step.whole]


def _step_from_json(value: Any) -> Step:
    op, inputs, axes, in_loop, reduced, leaf, scalar, whole = value
    read = None if leaf is None else Leaf(int(leaf[0]), _slots(leaf[1]))
    exact = None if scalar is None else Scalar.parse(scalar)
    return Step(op, tuple(map(int, inputs)), frozenset(axes), bool(in_loop), frozenset(reduced), read, exact, bool(whole))


def _slots(value: Any) -> Slots:
    return tuple(tuple(map(int, slot)) for slot in value)


def _below(indices: Any, limit: int) -> tuple[int, ...]:
    if not all(isinstance(index, int) and 0 <= index < limit for index in indices):
        raise InvalidInput(f"indices {list(indices)} are not all below {limit}")
    return tuple(indices)


# --- sketches of the programs they are kept for ---------------------------------------------------------------------------


def _sketch(program: AxisProgram, loop_axis: int | None, steps: list[Step], goals: list[int]) -> Sketch:
    """The sketch, if its steps fit together and make tensors over the axes of the program's outputs."""
    for index, step in enumerate(steps):
        check_step(step, [steps[operand] for operand in _below(step.inputs, index)], loop_axis)
        if step.leaf is not None and not any(step.leaf == Leaf(term.source, term.slots) for _, term in program.loads()):
            raise InvalidInput("a sketch loads what its program does not")
    outputs = [program.terms[term].axes for term, _ in program.outputs]
    computed = [steps[goal].axes for goal in _below(goals, len(steps))]
    exported = len(computed) - len(outputs)
    if (
        computed[: len(outputs)] != outputs
        or exported not in (0, int(program.projective))
        or any(steps[i].in_loop for i in goals)
    ):
        raise InvalidInput("a sketch does not make the outputs of its program")
    return Sketch(tuple(steps), tuple(goals), loop_axis)
