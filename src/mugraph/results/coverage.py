"""How much of a function runs as kernels: bytes, floating-point operations and time of muGraphs, library kernels and PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mugraph.devices.roofline import compulsory_bytes
from mugraph.ir.graph import Graph
from mugraph.ir.index_maps import Structure
from mugraph.ir.ops import OPERATORS, flops_of
from mugraph.support.schema import expect

_SECONDS = (float, None)
_AMOUNT = {"bytes": int, "flops": int, "seconds": _SECONDS}
_FORM = {
    "mugraphs": _AMOUNT,
    "library": _AMOUNT,
    "left": [{**_AMOUNT, "operator": str, "reason": str, "calls": int, "lines": [str]}],
    "pieces": int,
}
PACKED = "the library's kernels with packed weights"
"""What runs convolutions and linear layers that are in no muGraph, in words."""
_STILL = frozenset({Structure.VIEW, Structure.LEAF, Structure.BOUNDARY})
"""Structures of operators that compute nothing."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Bytes read and written, floating-point operations, and seconds of a call (None where nothing was timed)."""

    bytes: int = 0
    flops: int = 0
    seconds: float | None = None
    """Those of a program's muGraphs hold those of the library kernels that they call."""

    def __add__(self, other: Amount) -> Amount:
        timed = self.seconds is not None or other.seconds is not None
        seconds = (self.seconds or 0.0) + (other.seconds or 0.0) if timed else None
        return Amount(self.bytes + other.bytes, self.flops + other.flops, seconds)


@dataclass(frozen=True, slots=True)
class LeftCalls:
    """Calls of one operator that PyTorch makes for one reason, and the lines of Python that they come from."""

    operator: str
    reason: str
    calls: int
    amount: Amount
    lines: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The calls as JSON values."""
        named = {"operator": self.operator, "reason": self.reason, "calls": self.calls, "lines": list(self.lines)}
        return named | asdict(self.amount)


@dataclass(frozen=True, slots=True)
class Coverage:
    """What runs a function: `mugraphs` (graph-defined kernels), `library` (matrix products and the like that muGraphs call as
    they are), and what is `left` to PyTorch, most bytes first."""

    mugraphs: Amount
    library: Amount
    left: tuple[LeftCalls, ...]
    pieces: int = 1
    """Programs that run as kernels."""

    @property
    def torch(self) -> Amount:
        """Everything that PyTorch runs."""
        return sum((calls.amount for calls in self.left), Amount())

    @property
    def byte_share(self) -> float:
        """The part of all bytes that kernels read and write."""
        return self._share("bytes")

    @property
    def flop_share(self) -> float:
        """The part of all floating-point operations that kernels do."""
        return self._share("flops")

    @property
    def time_share(self) -> float | None:
        """The part of the time of a call that kernels take; None where nothing was timed."""
        timed = [amount.seconds is not None for amount in (self.mugraphs, self.library, self.torch)]
        return self._share("seconds") if any(timed) else None

    def untimed(self) -> Coverage:
        """The same without what anything takes."""
        left = tuple(replace(calls, amount=replace(calls.amount, seconds=None)) for calls in self.left)
        mugraphs, library = (replace(amount, seconds=None) for amount in (self.mugraphs, self.library))
        return replace(self, mugraphs=mugraphs, library=library, left=left)

    def _share(self, kind: str) -> float:
        ours, theirs = (getattr(amount, kind) or 0 for amount in (self.mugraphs + self.library, self.torch))
        whole = ours + theirs
        return ours / whole if whole else 0.0

    @property
    def without_mugraphs(self) -> str:
        """What runs a function that is found to be faster without any muGraph, in words; "" where muGraphs run some of it."""
        if self.pieces:
            return ""
        return f"{PACKED} and PyTorch's calls" if self.library.bytes else "PyTorch's calls, some of which are made in another way"

    def to_json(self) -> dict[str, Any]:
        """The coverage as JSON values."""
        return {
            "mugraphs": asdict(self.mugraphs),
            "library": asdict(self.library),
            "left": [calls.to_json() for calls in self.left],
            "pieces": self.pieces,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Coverage:
        """The coverage `to_json` wrote; raises TypeError for anything else."""
        expect(values, _FORM, "coverage")
        left = tuple(
            LeftCalls(item["operator"], item["reason"], item["calls"], _amount(item), tuple(item["lines"]))
            for item in values["left"]
        )
        return cls(_amount(values["mugraphs"]), _amount(values["library"]), left, values["pieces"])


def _amount(values: Mapping[str, Any]) -> Amount:
    return Amount(values["bytes"], values["flops"], values["seconds"])


def of_program(program: Graph, graph: Graph | None, reason: str = "") -> Coverage:
    """The coverage of a program that runs as `graph`, or None where PyTorch runs it for a reason."""
    whole = Amount(compulsory_bytes(program), flops_of(program))
    if graph is None:
        return Coverage(Amount(), Amount(), (LeftCalls("the function", reason, 1, whole),), 0)
    return Coverage(*divided(whole, graph), ())


def divided(whole: Amount, graph: Graph) -> tuple[Amount, Amount]:
    """What graph-defined kernels of a muGraph do of a program, and what library kernels: bytes in the ratio of their traffic."""
    defined, library, flops = 0, 0, 0
    for node in graph.kernels():
        traffic = sum(graph.tensor(value).bytes for value in node.inputs) + sum(tensor.bytes for tensor in node.outputs)
        if node.body is not None:
            defined += traffic
        elif OPERATORS[node.op].structure not in _STILL:
            library += traffic
            flops += flops_of(graph, [node])
    part = round(whole.bytes * library / max(defined + library, 1))
    called = Amount(part, min(flops, whole.flops))
    return Amount(whole.bytes - called.bytes, whole.flops - called.flops), called


def coverage_lines(coverage: Coverage, most: int = 10) -> Iterator[str]:
    """The coverage in words: shares, then what is left to PyTorch and why."""
    shares = [f"{coverage.byte_share:.0%} of the bytes", f"{coverage.flop_share:.0%} of the operations"]
    if coverage.time_share is not None:
        shares.append(f"{coverage.time_share:.0%} of the time")
    programs = f"{coverage.pieces} program{'s' * (coverage.pieces != 1)}"
    if not coverage.pieces and coverage.library.bytes:
        yield f"{PACKED} run {', '.join(shares)}; no muGraph runs"
    else:
        yield f"kernels run {', '.join(shares)} ({programs})"
    for calls in coverage.left[:most]:
        yield left_text(calls, coverage)
    if len(coverage.left) > most:
        yield f"and {len(coverage.left) - most} more kinds of calls"


def left_text(calls: LeftCalls, coverage: Coverage) -> str:
    """A kind of calls that PyTorch makes, in a line: how many, where, why."""
    whole = (coverage.mugraphs + coverage.library + coverage.torch).bytes
    where = f" ({', '.join(calls.lines[:3])}{', ...' * (len(calls.lines) > 3)})" if calls.lines else ""
    part = calls.amount.bytes / whole if whole else 0.0
    return f"PyTorch: {part:.0%} of the bytes in {calls.calls} x {calls.operator}{where}: {calls.reason}"


def ranked(calls: Sequence[LeftCalls]) -> tuple[LeftCalls, ...]:
    """Calls of one operator for one reason put together, most bytes first."""
    alike: dict[tuple[str, str], LeftCalls] = {}
    for call in calls:
        key = (call.operator, call.reason)
        known = alike.get(key)
        if known is None:
            alike[key] = call
            continue
        lines = tuple(dict.fromkeys((*known.lines, *call.lines)))
        alike[key] = LeftCalls(*key, known.calls + call.calls, known.amount + call.amount, lines)
    return tuple(sorted(alike.values(), key=lambda item: (-item.amount.bytes, -item.calls, item.operator)))


@dataclass(frozen=True, slots=True)
class CoverageRow:
    """What runs a part of a function, and its share of the whole's bytes, floating-point operations and time."""

    what: str
    bytes: str
    flops: str
    seconds: str
    why: str = ""
    """Why PyTorch runs it."""
    where: str = ""
    """The lines of Python that it comes from."""


def coverage_rows(coverage: Coverage) -> list[CoverageRow]:
    """A row for muGraphs, one for library kernels, and one for each kind of calls that PyTorch makes."""
    whole = coverage.mugraphs + coverage.library + coverage.torch

    def row(what: str, amount: Amount, why: str = "", where: str = "") -> CoverageRow:
        seconds = _share(amount.seconds, whole.seconds) if whole.seconds and amount.seconds is not None else ""
        return CoverageRow(what, _share(amount.bytes, whole.bytes), _share(amount.flops, whole.flops), seconds, why, where)

    called = "library kernels in them" if coverage.pieces else "library kernels, packed weights"
    mugraphs, library = row("muGraphs", coverage.mugraphs), row(called, coverage.library)
    if coverage.library.bytes and coverage.mugraphs.seconds is not None:  # they are timed together
        library = replace(library, seconds="above")
    rows = [mugraphs, library]
    rows += [
        row(f"PyTorch: {calls.calls} × {calls.operator}", calls.amount, calls.reason, ", ".join(calls.lines))
        for calls in coverage.left
    ]
    return [row for row, amount in zip(rows, (coverage.mugraphs, coverage.library), strict=False) if amount.bytes] + rows[2:]


def _share(part: float | None, whole: float | None) -> str:
    return f"{(part or 0) / whole:.0%}" if whole else ""
