"""Records of long benchmarks: written to a JSON file one by one, and not made again by a run that is repeated.

A record carries a hash of the sources it was made by. Those of other sources stay in the file until they are made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

import mugraph

Record = dict[str, Any]
Case = dict[str, Any]
"""What a record is about, as keys of it: workload, dtype, batch, ..."""

PACKAGES = ("algebra", "devices", "frontend", "host", "ir", "lower", "pieces", "runtime", "search", "targets", "testing")
"""Of mugraph: those that decide which kernels are made, and what they are checked by."""


@cache
def sources(packages: tuple[str, ...] = PACKAGES) -> str:
    """A hash of every file of some packages, by default those that generated kernels and their checks come from."""
    root = Path(mugraph.__file__).parent
    files = sorted(file for package in packages for file in (root / package).rglob("*.*") if file.suffix in _TEXTS)
    found = hashlib.sha256()
    for file in files:
        found.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    return found.hexdigest()[:16]


_BETWEEN_WRITES = 9
"""Times as long as a write takes until the next one: the summary of thousands of records takes longer than a record."""
_TEXTS = (".py", ".h", ".cpp", ".json")


def records(
    cases: Sequence[Case],
    make: Callable[..., Record],
    output: Path | None,
    summary: Callable[[Sequence[Record]], Any],
    jobs: int = 1,
    seconds: float = math.inf,
) -> list[Record]:
    """The record of every case, in order: `make(**case)`, or what `output` has of it by the same sources.

    `output` is written after new records, as often as that takes a tenth of the time, and at the end: `summary` of those by these
    sources, and all records. Cases are made by `jobs` processes, where `make` has to be a function of a module. With one job no
    case is begun once so many `seconds` are over, and those that are left out are not among what is returned.
    """
    found, wanted = _known(cases, output), [_key(case, case) for case in cases]
    to_make = missing(cases, output)
    print(f"{len(cases) - len(to_make)} of {len(cases)} records are there already", file=sys.stderr, flush=True)
    due, end = 0.0, time.monotonic() + seconds
    in_time = itertools.takewhile(lambda _: time.monotonic() < end, to_make) if jobs == 1 else to_make

    def write() -> float:
        """Write everything; when to write again."""
        if output is None:
            return math.inf
        started = time.monotonic()
        ordered = [found[key] for key in wanted if key in found]
        ordered += [record for key, record in found.items() if key not in wanted]
        current = [record for record in ordered if record["sources"] == sources()]
        output.write_text(record_text(summary(current), ordered), encoding="utf-8")
        now = time.monotonic()
        return now + _BETWEEN_WRITES * (now - started)

    try:
        for case, record in _made(in_time, make, jobs):
            found[_key(case, case)] = case | {"sources": sources()} | record
            print(json.dumps(found[_key(case, case)]), file=sys.stderr, flush=True)
            if time.monotonic() >= due:
                due = write()
    finally:
        if to_make:
            write()
    return [found[key] for key in wanted if found.get(key, {}).get("sources") == sources()]


def answer_of(words: Sequence[str], limit: float, environment: Mapping[str, str] | None = None) -> Record:
    """The JSON object that a Python program, with its arguments, prints last; it ends with all that it started.

    Without one, a record with an `outcome` ("no answer" after `limit` seconds, "failed") and why.
    """
    command = [sys.executable, *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True) as process:
        try:
            said, complaints = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return {"outcome": "no answer", "why": f"after {limit:.0f} seconds"}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    try:
        answer: Record = json.loads(said.strip().splitlines()[-1])
    except (IndexError, ValueError):
        why = (complaints.strip().splitlines() or ["no message"])[-1]
        return {"outcome": "failed", "why": f"exit code {process.returncode}: {why}"}
    return answer


def missing(cases: Sequence[Case], output: Path | None) -> list[Case]:
    """The cases of which `output` has no record by these sources."""
    found = _known(cases, output)
    return [case for case in cases if found.get(_key(case, case), {}).get("sources") != sources()]


def _known(cases: Sequence[Case], output: Path | None) -> dict[str, Record]:
    """All records that `output` has, by their keys."""
    known = json.loads(output.read_text(encoding="utf-8"))["records"] if output is not None and output.exists() else []
    return {_key(record, cases[0]): record for record in known}


def record_text(summary: Any, ordered: Sequence[Record]) -> str:
    """What a file of records has: a summary, and a line for each record."""
    return f'{{"summary": {json.dumps(summary, indent=1)},\n"records": [\n' + ",\n".join(map(json.dumps, ordered)) + "\n]}\n"


def _key(record: Record, case: Case) -> str:
    return json.dumps([record.get(name) for name in case])


def _made(cases: Iterable[Case], make: Callable[..., Record], jobs: int) -> Iterator[tuple[Case, Record]]:
    """Each case with its record, as they come; with several jobs every one by a process of its own, which it alone can harm."""
    if jobs == 1:
        yield from ((case, make(**case)) for case in cases)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        running = {pool.submit(make, **case): case for case in cases}
        for done in as_completed(running):
            yield running[done], done.result()
