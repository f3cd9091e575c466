"""What `mugraph.verify` answers to pairs whose relation is known, and which of its answers are wrong."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mugraph import verify
from mugraph.errors import MugraphError
from mugraph.frontend.comparison import compared
from mugraph.testing.pairs import Family, Pair, Truth
from mugraph.verifier import Outcome, Verdict

EQUIVALENT, UNDECIDED, REFUSED, CRASHED = "equivalent", "undecided", "refused", "crashed"
DIFFERENT = "different"

WRONG_ACCEPTANCE, WRONG_REFUTATION, CRASH = "wrong acceptance", "wrong refutation", "crash"
FAULTS = (WRONG_ACCEPTANCE, WRONG_REFUTATION, CRASH)
"""Answers that must not be given."""

_SAYS_EMPTY = ("empty", "nowhere", "no input", "no point")


@dataclass(frozen=True, slots=True)
class PairAnswer:
    """One answer: `text` is its reason or counterexample, `domain` the inputs it speaks of; seconds are of the processor.

    `replayed` says whether the witness of a difference held when it was evaluated again, None where that could not be asked.
    """

    outcome: str
    seconds: float
    text: str = ""
    domain: str = ""
    replayed: bool | None = None
    bounded: bool = False


def answer(pair: Pair, budget: float | None = None) -> PairAnswer:
    """What `verify` says of a pair; what it raises for a reason of the user's is `refused`, anything else `crashed`."""
    started = time.process_time()
    try:
        verdict = verify(pair.left, pair.right, pair.inputs, budget=budget, **pair.options)
    except MugraphError as error:
        return PairAnswer(REFUSED, time.process_time() - started, f"{type(error).__name__}: {error}")
    except Exception as error:
        return PairAnswer(CRASHED, time.process_time() - started, repr(error))
    seconds = time.process_time() - started
    return PairAnswer(
        outcome=verdict.outcome.value,
        seconds=seconds,
        text=str(verdict.counterexample or verdict.reason),
        domain=verdict.domain,
        replayed=_replayed(pair, verdict) if verdict.outcome is Outcome.DIFFERENT else None,
        bounded=verdict.error_bound is not None,
    )


def _replayed(pair: Pair, verdict: Verdict) -> bool | None:
    """Whether the witness shows the difference again on the graphs that were compared; None where there is none to evaluate."""
    comparison = compared(pair.left, pair.right, pair.inputs, for_all_weights=bool(pair.options.get("for_all_weights")))
    if comparison.mismatch is not None:
        return True
    if verdict.counterexample is None:
        return None
    return verdict.counterexample.replay(comparison.left, comparison.right)


def fault(truth: Truth, given: PairAnswer) -> str:
    """What is wrong with an answer, empty where nothing is.

    An equality that holds on a part must be said with the part; on no input at all, with that. A difference of functions that
    are equal wherever both are defined is one of their domains, and no wrong answer.
    """
    if given.outcome == CRASHED:
        return CRASH
    if given.outcome == EQUIVALENT:
        named = {Truth.DIFFERENT: False, Truth.PART: bool(given.domain), Truth.EMPTY: _says_empty(given.domain)}
        return "" if named.get(truth, True) else WRONG_ACCEPTANCE
    if given.outcome == DIFFERENT and (truth is Truth.EQUAL or given.replayed is False):
        return WRONG_REFUTATION
    return ""


def _says_empty(domain: str) -> bool:
    return any(word in domain.lower() for word in _SAYS_EMPTY)


@dataclass(frozen=True, slots=True)
class PairResult:
    """A pair, by family and note, and the answer to it."""

    pair: Pair
    answer: PairAnswer

    @property
    def fault(self) -> str:
        return fault(self.pair.truth, self.answer)


def row(family: Family, results: Iterable[PairResult]) -> dict[str, Any]:
    """The record of a family: counts by truth and outcome, faults, times, and the first pairs that are to be looked at."""
    results = list(results)
    faults = Counter(result.fault for result in results if result.fault)
    seconds = [result.answer.seconds for result in results]
    differences = [result.answer for result in results if result.answer.outcome == DIFFERENT]
    return {
        "family": family.name,
        "construct": family.construct,
        "pairs": len(results),
        "answers": {
            truth.value: dict(Counter(result.answer.outcome for result in results if result.pair.truth is truth))
            for truth in Truth
            if any(result.pair.truth is truth for result in results)
        },
        **{name: faults[name] for name in FAULTS},
        "without a bound": sum(given.answer.outcome == EQUIVALENT and not given.answer.bounded for given in results),
        "null sets not named": sum(_unnamed_null_set(result) for result in results),
        "witnesses replayed": sum(given.replayed is True for given in differences),
        "witnesses that could not be replayed": sum(given.replayed is None for given in differences),
        "median seconds": round(statistics.median(seconds), 4),
        "worst seconds": round(max(seconds), 4),
        "seconds": [round(value, 4) for value in seconds],
        "to look at": [_sentence(result) for result in results if _noteworthy(result)][:_EXAMPLES],
    }


_EXAMPLES = 8


def _unnamed_null_set(result: PairResult) -> bool:
    return result.pair.truth is Truth.NEARLY and result.answer.outcome == EQUIVALENT and not result.answer.domain


def _noteworthy(result: PairResult) -> bool:
    """Whether an answer is wrong, or falls short of what there was to be said."""
    expected = {Truth.EQUAL: EQUIVALENT, Truth.READING: EQUIVALENT, Truth.DIFFERENT: DIFFERENT}.get(result.pair.truth)
    return bool(result.fault) or (expected is not None and result.answer.outcome != expected)


def _sentence(result: PairResult) -> str:
    given = result.answer
    fault_found = f" ({result.fault})" if result.fault else ""
    return f"{result.pair.note}: {result.pair.truth}, {given.outcome}{fault_found}: {given.text[:240]}"


def summary(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """All families together: faults, what of the equal pairs is undecided, and times."""
    rows = list(rows)
    answers: Counter[tuple[str, str]] = Counter()
    for found in rows:
        for truth, outcomes in found["answers"].items():
            answers.update({(truth, outcome): count for outcome, count in outcomes.items()})
    seconds = [value for found in rows for value in found["seconds"]]
    taken = sum(answers[Truth.EQUAL, outcome] for outcome in (EQUIVALENT, DIFFERENT, UNDECIDED))
    return {
        "families": len(rows),
        "pairs": sum(found["pairs"] for found in rows),
        "answers": {truth.value: _outcomes(answers, truth) for truth in Truth},
        **{name: sum(found[name] for found in rows) for name in FAULTS},
        "undecided of the equal pairs within the table": round(answers[Truth.EQUAL, UNDECIDED] / max(1, taken), 4),
        **{name: sum(found[name] for found in rows) for name in _COUNTS},
        "median seconds": round(statistics.median(seconds), 4) if seconds else None,
        "worst seconds": round(max(seconds), 4) if seconds else None,
        "families of a median above a second": sorted(found["family"] for found in rows if found["median seconds"] > 1),
        "families with wrong answers": {name: {found["family"]: found[name] for found in rows if found[name]} for name in FAULTS},
    }


_COUNTS = ("without a bound", "null sets not named", "witnesses replayed", "witnesses that could not be replayed")


def _outcomes(answers: Mapping[tuple[str, str], int], truth: Truth) -> dict[str, int]:
    return {outcome: count for (of, outcome), count in sorted(answers.items()) if of == truth}
