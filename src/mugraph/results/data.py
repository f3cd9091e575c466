"""The data of a result: the verified muGraphs, how they were found, what was run of their kernels, and the best one compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NoReturn, Self, TypedDict, TypeVar

from mugraph.errors import StorageError
from mugraph.frontend.calls.calling import Calling
from mugraph.ir.graph import Graph
from mugraph.ir.serialize import graph_from_json, graph_to_json
from mugraph.results.coverage import Coverage
from mugraph.results.words import extent, seconds_text
from mugraph.runtime import Executable
from mugraph.runtime.baselines import BaselineComparison
from mugraph.runtime.benchmarking import Duel
from mugraph.support.schema import expect
from mugraph.verifier import Certificate

R = TypeVar("R")

_FORM = {"on": str, "ran": int, "blocks": int, "largest_error": (float, None), "missed": str, "where": str, "scales": [float]}


@dataclass(frozen=True, slots=True)
class SpotCheck:
    """What running blocks of printed kernels `on` an emulator of their machine showed: `ran` of all `blocks` of their grids."""

    on: str
    ran: int
    blocks: int
    largest_error: float | None
    """Of any output of a kernel against float64, relative to its largest, for standard normal inputs; None where nothing was
    compared."""
    missed: str
    """Which kernels were not run or compared, and why; empty where each was."""
    fault: str = ""
    """What is wrong with a kernel; empty where nothing is known to be."""
    where: str = ""
    """Which blocks of each kernel's grid were run on standard normal inputs."""
    scales: tuple[float, ...] = ()
    """Standard deviations of the normal inputs for which results were compared; of all but 1, those of the first blocks."""

    def to_json(self) -> dict[str, Any]:
        """The evidence as JSON values; kernels with a fault are not kept."""
        return {name: value for name, value in asdict(self).items() if name in _FORM} | {"scales": [*self.scales]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SpotCheck:
        """What `to_json` wrote; raises TypeError for anything else."""
        compared = values.get("largest_error") is not None
        record = {"where": "", "scales": [1.0] * compared, **values}  # earlier ones do not say where, nor of which inputs
        expect(record, _FORM, "spot_check")
        return cls(**{**{name: record[name] for name in _FORM}, "scales": tuple(record["scales"])})


_SECONDS = (float, None)
_MEASURED = {"cost": _SECONDS, "latency": _SECONDS}
_REPORT = {
    **dict.fromkeys(("found", "interrupted", "recalled"), bool),
    **dict.fromkeys(("compile_seconds", "measure_seconds", "verify_seconds", "total_seconds"), float),
    **dict.fromkeys(("proposed", "seed"), int),
    "original_latency": _SECONDS,
    "comparison": (dict, None),
    "coverage": (dict, None),
    "space": (str, None),
    "rejected": [{"stage": str, "reason": str, "cost": _SECONDS, "unfinished": bool}],
    "search": {"seconds": float, "first_found_seconds": _SECONDS, "states": int, "exhausted": bool, "exhausted_what": str},
}
_SEARCH = {
    "pruned": {str: int},
    "paddings": [str],
    "not_searched": [str],
    "settled": bool,
    "tiers": [
        {
            **dict.fromkeys(("closures", "states", "edges", "derivations"), int),
            "tier": str,
            "exhausted": bool,
            "bound": (int, None),
        }
    ],
}
"""What a search may say besides."""


@dataclass(frozen=True, slots=True, repr=False)
class Candidate:
    """A muGraph that was proved equivalent to the program and agrees with float64 arithmetic."""

    graph: Graph
    cost: float | None
    """Seconds the cost model predicts on the target; None for the original program."""
    latency: float | None
    """Median of the measured seconds per call; on several threads of a CPU, of the three calls in a row that waited least for
    other processes, or the least of calls that take more than ten milliseconds. None when it was not profiled."""
    certificate: Certificate
    spot_check: SpotCheck | None = None
    """What running its printed kernels here showed, where the target's machine is not; None where that was not called for."""

    def __repr__(self) -> str:
        """One line: what each kernel is, and what it costs; `print(candidate.graph)` shows the muGraph."""
        kernels, predicted, measured = _cells(self)
        return f"<Candidate: {kernels}; predicted {predicted}, measured {measured}>"

    @property
    def max_relative_error(self) -> float | None:
        """Largest error against float64 for standard normal inputs, relative to the output's largest magnitude; None for an
        original program when the budget left no time to measure it."""
        return None if self.certificate.floats is None else self.certificate.floats.max_relative_error

    @property
    def error_ratio(self) -> float | None:
        """That error relative to the one the original program makes in its own precision; None where it makes none."""
        return None if self.certificate.floats is None else self.certificate.floats.error_ratio

    def to_json(self) -> dict[str, Any]:
        """The candidate as JSON values."""
        return {**self.measurements(), "graph": graph_to_json(self.graph), "certificate": self.certificate.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Candidate:
        """The candidate `to_json` wrote; raises KeyError, TypeError, InvalidInput or InvalidGraph for anything else."""
        graph, certificate = graph_from_json(values["graph"]), Certificate.from_json(values["certificate"])
        return cls.measured(graph, certificate, values)

    @classmethod
    def measured(cls, graph: Graph, certificate: Certificate, values: Mapping[str, Any]) -> Candidate:
        """A candidate with the `measurements` in a JSON object; raises TypeError where they are none."""
        expect(values, _MEASURED, "a candidate")
        spot_check = values.get("spot_check")
        checked = None if spot_check is None else SpotCheck.from_json(spot_check)
        return cls(graph, values["cost"], values["latency"], certificate, checked)

    def measurements(self) -> dict[str, Any]:
        """All but the graph and its certificate, as JSON values."""
        spot_check = None if self.spot_check is None else self.spot_check.to_json()
        return {"cost": self.cost, "latency": self.latency, "spot_check": spot_check}


class Candidates(tuple[Candidate, ...]):
    """Verified muGraphs, best first: a tuple that a terminal shows as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        if not self:
            return "no candidates"
        rows = [("", "kernels", "predicted", "measured")]
        rows += [(str(number), *_cells(candidate)) for number, candidate in enumerate(self)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _cells(candidate: Candidate) -> tuple[str, str, str]:
    """Grid and loop of each kernel, predicted and measured time; a dash where a time is not known."""
    kernels = "; ".join(node.op if node.body is None else extent(node.body) for node in candidate.graph.kernels())
    predicted, measured = ("-" if each is None else seconds_text(each) for each in (candidate.cost, candidate.latency))
    return kernels, predicted, measured


@dataclass(frozen=True, slots=True)
class Rejection:
    """A muGraph the search proposed and that was dropped."""

    stage: str
    """`compile`, `measure` where its rival is far faster, `verify`, `float`, or `text` where the printed kernels failed when they
    were run without their machine."""
    reason: str
    cost: float | None
    unfinished: bool = False
    """Whether nothing speaks against it but that the budget ended."""


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """How a result came about. All times are wall-clock seconds."""

    found: bool
    """Whether a muGraph was found that is clearly faster than the user's function, or for a program than its operators one by
    one; otherwise the result runs the original."""
    search: dict[str, Any]
    """The search's own report, as JSON values."""
    proposed: int
    """muGraphs the search proposed."""
    rejected: tuple[Rejection, ...]
    compile_seconds: float
    measure_seconds: float
    verify_seconds: float
    total_seconds: float
    """Of the whole call."""
    original_latency: float | None
    """Median seconds of a call of the original, warm: of the user's own function or, of what was given as a program, of its
    operators one by one, as candidates are timed. None when it was not timed."""
    seed: int
    """Of everything random in the call but proofs, whose certificates record their own."""
    interrupted: bool = False
    """Whether Ctrl-C ended a stage: the result is the best so far."""
    recalled: bool = False
    """Whether the result was kept from an earlier run, which all numbers then speak of."""
    space: str | None = None
    """The part of the search space that was asked for, in words; None for all of it."""
    comparison: BaselineComparison | None = None
    """Whole calls of the best candidate beside those of the user's function, in eager mode and, if that was asked for, under
    torch.compile. None where they were not timed on the same machine, and for programs."""
    coverage: Coverage | None = None
    """How much of the function kernels run; None in results of earlier versions."""

    def __repr__(self) -> str:
        """One line: whether something was found, from how many muGraphs, in how much time."""
        outcome = "found" if self.found else "nothing better found"
        if self.found and self.coverage is not None and (runs := self.coverage.without_mugraphs):
            outcome = f"found no muGraph: {runs} run the function"
        dropped = f"{self.proposed} muGraphs proposed, {len(self.rejected)} dropped"
        return f"<Report: {outcome}; {dropped}; {seconds_text(self.total_seconds)} in all>"

    @property
    def baselines(self) -> Mapping[str, Duel]:
        """The rounds against each way to run the user's function, by name: `.speedup`, `.ours` and `.theirs` in seconds."""
        return {} if self.comparison is None else self.comparison.duels

    @property
    def seconds(self) -> float:
        """Time of the search."""
        return float(self.search["seconds"])

    @property
    def first_found_seconds(self) -> float | None:
        """Time until the search had its first muGraph; None when it found none."""
        seconds = self.search["first_found_seconds"]
        return None if seconds is None else float(seconds)

    @property
    def states(self) -> int:
        """Tensors the search visited; prefixes of graphs, if it enumerated graphs."""
        return int(self.search["states"])

    @property
    def exhausted(self) -> bool:
        """Whether the search covered the space that `exhausted_what` describes completely."""
        return bool(self.search["exhausted"])

    @property
    def exhausted_what(self) -> str:
        """The covered space in words."""
        covered = str(self.search["exhausted_what"])
        return covered if self.space is None else f"{covered}, within the space asked for: {self.space}"

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        parts = {"comparison": self.comparison, "coverage": self.coverage}
        return asdict(self) | {name: None if part is None else part.to_json() for name, part in parts.items()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Report:
        """The report `to_json` wrote; raises KeyError or TypeError for anything else."""
        rejected = [{"unfinished": False, **item} for item in values["rejected"]]
        values = {"comparison": None, "coverage": None, **values, "rejected": rejected}  # what those of earlier versions lack
        expect(values, _REPORT, "report")
        expect(values["search"], {name: form for name, form in _SEARCH.items() if name in values["search"]}, "report.search")
        comparison = None if values["comparison"] is None else BaselineComparison.from_json(values["comparison"])
        coverage = None if values["coverage"] is None else Coverage.from_json(values["coverage"])
        dropped = tuple(Rejection(**item) for item in rejected)
        return cls(**{**values, "rejected": dropped, "comparison": comparison, "coverage": coverage})


class Shared:
    """What copies share: compiled kernels that nothing changes. Models that hold such can be copied, and not pickled."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise StorageError(
            f"a {type(self).__name__} holds compiled kernels and cannot be pickled; use save(folder) and mugraph.load(folder)"
        )


def calling_directly(kind: type[R], fn: Callable[..., Any]) -> type[R]:
    """The class of results whose calls are those of `fn`, as directly as Python allows: it looks `__call__` up in the class."""
    return type(kind.__name__, (kind,), {"__call__": staticmethod(fn), "__module__": kind.__module__})


class Result(Shared):
    """A program, the muGraphs that were verified for it, and the best one compiled, to be called like the function."""

    def __init__(
        self,
        program: Graph,
        best: Candidate,
        candidates: tuple[Candidate, ...],
        report: Report,
        executable: Executable,
        calling: Calling,
        target: str,
        origin: Mapping[str, Any] | None = None,
        own: Callable[..., Any] | None = None,
    ) -> None:
        self.program = program
        """The original, as a kernel graph of pre-defined operators."""
        self.best = best
        self.candidates = Candidates(candidates)
        """Verified muGraphs, best first; empty when none was found."""
        self.report = report
        self.executable = executable
        self.calling = calling
        self.target = target
        """What `graph` was compiled for."""
        self.origin = dict(origin or {})
        """Where the program came from, as JSON values: kept for `mugraph bench` on a saved result."""
        self.own = own
        """The user's function, where nothing better was found: calls are its calls. None in what was read from a folder."""
        if own is not None:
            self.__class__ = calling_directly(type(self), own)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the best muGraph; raises ShapeMismatch or InvalidInput when called with other tensors than optimized for.

        Where nothing better than the user's function was found, this is a call of that function.
        """
        inputs = self.calling.plain(args, kwargs)
        outputs = None if inputs is None else self.executable.recognized(inputs)
        if inputs is None or outputs is None:
            inputs = self.calling.flatten(args, kwargs)
            outputs = self.executable(*inputs)
        return self.calling.unflatten(outputs, inputs)

    @property
    def graph(self) -> Graph:
        """The muGraph that runs: the best one, at kernel level."""
        return self.best.graph

    @property
    def found(self) -> bool:
        """Whether `graph` is a discovered muGraph rather than the original program."""
        return self.report.found

    @property
    def certificate(self) -> Certificate:
        """What was proved about `graph`, and with which error bound."""
        return self.best.certificate

    @property
    def sources(self) -> dict[str, str]:
        """Generated source by file name."""
        return dict(self.executable.sources)


class StageSeconds(TypedDict):
    """Seconds of the stages behind the search, by the names they have in a report."""

    compile_seconds: float
    measure_seconds: float
    verify_seconds: float


def stage_seconds(reports: Sequence[Report]) -> StageSeconds:
    """The seconds of several reports together."""
    return {
        "compile_seconds": sum(report.compile_seconds for report in reports),
        "measure_seconds": sum(report.measure_seconds for report in reports),
        "verify_seconds": sum(report.verify_seconds for report in reports),
    }
