"""Results of earlier runs: kept by what was asked for, and trusted only as far as they can be checked again.

A kept result is a muGraph with its certificate and the hash of its sources. Nothing kept is ever executed: the sources are
printed again from the muGraph, must have that hash, and the kernels are compared with float64 before they are used. The
certificate must speak of this program and this muGraph, and the proof behind it is repeated as far as it fits a second: most
do whole, and of the others at least one random test at full size is run. Who serves a model may do that afterwards.
"""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mugraph.devices import Device
from mugraph.errors import InvalidInput, MugraphError, StorageError
from mugraph.frontend.calls.calling import Calling
from mugraph.ir.graph import Graph
from mugraph.results.data import Candidate, Report, SpotCheck
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime import build
from mugraph.selection.contestants import Contestant
from mugraph.selection.qualification import Qualifier
from mugraph.support.store import Store, digest_of
from mugraph.verifier.certificate import digest as graph_digest
from mugraph.version import __version__

KIND = "result"
_UNHURRIED = 6
"""A call that took at most this part of its budget had time enough: no stage is given less than a fifth of what is left."""
_MUCH_MORE = 1.4
"""So many times the budget of a kept result is worth another search: the share of a piece varies with what is measured before."""
_STARVED = 4.0
"""So many times the seconds in which nothing was found are worth another search, as of a piece that had hardly any share."""
_PROVING_SECONDS = 1.0
_SHOWN = 4
"""Inputs that a line about a result names."""
_log = logging.getLogger(__name__)

Postpone = Callable[[Mapping[str, Any]], None]
"""Takes the document of a result that is to be tested afterwards."""


@dataclass(frozen=True, slots=True)
class ResultCache:
    """The place in a store where the result for one program, device and choice of settings is kept.

    `settings` are all that decide the result but the `budget` in seconds (None: no limit): a result that was found
    within less than is now allowed is not good enough, unless its search had come to an end and no later stage was hurried.
    Where a budget is a share of what was `asked` for several programs, shares vary, and what was asked is compared; that nothing
    was found for lack of time is kept then, too, and with `unfinished` that is an answer. With `anew` what is kept is no answer,
    and stays where it is the faster one. `name` is what people call the program. Proofs are repeated at once unless `postpone`
    takes that over.
    """

    store: Store
    program: Graph
    device: Device
    settings: Mapping[str, Any]
    budget: float | None
    name: str = "program"
    postpone: Postpone | None = None
    asked: float | None = None
    unfinished: bool = False
    anew: bool = False

    @property
    def key(self) -> str:
        """What identifies the question, this version of mugraph included."""
        settings = json.dumps(dict(self.settings), sort_keys=True)
        return digest_of(graph_digest(self.program), repr(self.device), settings, __version__, package_digest())

    def keep(self, result: Superoptimized) -> None:
        """Keep a result for later runs, unless there is none for lack of time: they go on from the structures found so far."""
        document = self.document(result)
        if self.anew and not (result.found and _latency(result.best.latency) < self._latency_of_kernels()):
            return
        if result.found or _unhurried(document) or (self.asked is not None and not self._has_kernels()):
            self.store.put(KIND, self.key, document)

    def _has_kernels(self) -> bool:
        """Whether there is more in this place than that nothing was found."""
        with suppress(KeyError, TypeError):  # of what is none
            document = self.store.get(KIND, self.key)
            return document is not None and bool(document["report"]["found"])
        return False

    def _latency_of_kernels(self) -> float:
        """Seconds that the kernels in this place took; infinite where there are none."""
        with suppress(KeyError, TypeError):  # of what is no document
            document = self.store.get(KIND, self.key)
            if document is not None and document["report"]["found"]:
                return _latency(document["best"]["latency"])
        return math.inf

    def document(self, result: Superoptimized) -> dict[str, Any]:
        """A result as JSON values, which `checked` reads."""
        return {
            "about": self._about(result),
            "best": result.best.to_json(),
            "candidates": [candidate.to_json() for candidate in result.candidates],
            "report": result.report.to_json(),
            "sources": result.executable.digest,
            "budget": self.budget,
            "asked": self.budget if self.asked is None else self.asked,
        }

    def _about(self, result: Superoptimized) -> str:
        """A line for who lists what is kept: the program with its inputs, the target, and how it ended."""
        inputs = [f"{name} {node.output}" for name, node in zip(self.program.input_names, self.program.inputs(), strict=True)]
        shown = ", ".join([*inputs[:_SHOWN], *["..."] * (len(inputs) > _SHOWN)])
        kernels = len(result.graph.kernels())
        ending = f"{kernels} kernel{'s' * (kernels != 1)}" if result.found else "nothing better found"
        return f"{self.name}({shown}) for {result.target}: {ending}"

    def recalled(self, qualifier: Qualifier, calling: Calling, own: Callable[..., Any] | None = None) -> Superoptimized | None:
        """The kept result, compiled and compared with float64 here; None, with a line in the log, if it is no good.

        `own` is the user's function, which runs where nothing better was found.
        """
        document = self.store.get(KIND, self.key)
        if document is None or self.anew:
            return None
        try:
            if not self._sufficient(document):
                return None
            return self.checked(document, qualifier, calling, own)
        except (KeyError, TypeError, MugraphError) as error:
            _log.warning("the cached result %s is not used (%s); searching again", self.key[:12], error)
            return None

    def checked(
        self, document: Mapping[str, Any], qualifier: Qualifier, calling: Calling, own: Callable[..., Any] | None = None
    ) -> Superoptimized:
        """The result of `document`, compiled and compared with float64 here.

        Raises KeyError, TypeError and MugraphError for what is none, or none for this program.
        """
        best = kept = Candidate.from_json(document["best"])
        certificate = best.certificate
        if (certificate.left, certificate.right) != (graph_digest(self.program), graph_digest(best.graph)):
            raise InvalidInput("its certificate speaks of other graphs")
        report = replace(Report.from_json(document["report"]), recalled=True)
        if report.found and not (certificate.accepted or (qualifier.evidence == "tested" and certificate.agreed)):
            raise InvalidInput("its certificate accepts nothing")
        executable = build(best.graph, qualifier.target)
        if executable.digest != document["sources"]:
            raise InvalidInput("its muGraph gives other sources now")
        entry = Contestant(best.graph, best.cost, executable)
        if report.found and self.postpone is not None:
            best = self._glanced_at(qualifier, entry, best)
            self.postpone(document)
        elif report.found or self.postpone is None:
            best = self._tested(qualifier, entry, best, report.found)
        others = (kept if item == document["best"] else Candidate.from_json(item) for item in document["candidates"])
        return Superoptimized(
            self.program, best, tuple(others), report, executable, calling, qualifier.target, own=None if report.found else own
        )

    def _tested(self, qualifier: Qualifier, entry: Contestant, best: Candidate, found: bool) -> Candidate:
        """A candidate whose proof was repeated, and whose kernels were compared with float64; raises InvalidInput."""
        if found:
            qualifier.tell("recall", "testing the proof of the result of an earlier run again")
            contradiction = qualifier.contradicted(entry, _PROVING_SECONDS)
            _raise_if(f"its muGraph does not compute the program: {contradiction}" if contradiction else "")
        qualifier.tell("recall", "comparing the result of an earlier run with float64 again")
        floats = qualifier.floats(entry)
        _raise_if("" if floats.stable or not found else f"it disagrees with float64 here: {floats.reason}")
        checked = self._spot_checked(qualifier, entry, best) if found else best.spot_check
        return replace(best, certificate=replace(best.certificate, floats=floats), spot_check=checked)

    def _glanced_at(self, qualifier: Qualifier, entry: Contestant, best: Candidate) -> Candidate:
        """A candidate whose kernels were compared with float64 on usual numbers alone; raises InvalidInput."""
        qualifier.tell("recall", "comparing the result of an earlier run with float64 briefly")
        floats = qualifier.floats(entry, brief=True)
        _raise_if("" if floats.stable else f"it disagrees with float64 here: {floats.reason}")
        return replace(best, spot_check=self._spot_checked(qualifier, entry, best))

    def _spot_checked(self, qualifier: Qualifier, entry: Contestant, best: Candidate) -> SpotCheck | None:
        checked = best.spot_check
        if checked is None or checked.missed:
            checked = qualifier.spot_checked(entry)
        _raise_if(f"its kernels are not right: {checked.fault}" if checked is not None and checked.fault else "")
        return checked

    def forget(self) -> None:
        """Leave nothing kept in this place."""
        with suppress(StorageError, InvalidInput):
            self.store.remove(KIND, self.key)

    def _sufficient(self, document: Mapping[str, Any]) -> bool:
        """Whether a kept result answers the question: it was found, or nothing was, in as much time."""
        if _unhurried(document):
            return True
        if not document["report"]["found"]:
            starved = self.budget is None or self.budget > _STARVED * document["budget"]
            if starved or not self.unfinished:
                return False
        budget = self.budget if self.asked is None else self.asked
        return budget is not None and budget <= _MUCH_MORE * document["asked"]


def _raise_if(wrong: str) -> None:
    if wrong:
        raise InvalidInput(wrong)


def _latency(measured: float | None) -> float:
    return math.inf if measured is None else float(measured)


def _unhurried(document: Mapping[str, Any]) -> bool:
    """Whether more time would have changed nothing."""
    kept, report = document["budget"], document["report"]
    ended = report["search"]["exhausted"] or (report["found"] and report["search"].get("settled", False))
    return kept is None or bool(ended and _UNHURRIED * report["total_seconds"] <= kept)


@functools.cache
def package_digest() -> str:
    """A hash of mugraph's own files: whatever of it changes, results are found anew."""
    package = Path(__file__).parents[1]
    files = sorted(file for file in package.rglob("*") if file.is_file() and file.suffix not in (".pyc", ".pyo"))
    return digest_of(*(part for file in files for part in (str(file.relative_to(package)), digest_of(file.read_bytes().hex()))))
