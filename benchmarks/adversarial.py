"""Near-miss pairs over every construct, and saved results tampered with: what the verdicts say of them.

    python benchmarks/evidence.py adversarial                          # all of it; a run that is repeated makes what is missing
    python benchmarks/evidence.py adversarial --only attention casts   # families whose name or construct has these words
    python benchmarks/evidence.py adversarial --seconds 600            # stop after ten minutes of processor time
    python benchmarks/evidence.py adversarial --judge                  # check what the families claim, too, at points

By construction a pair is equal, different, equal on a part of the inputs, or defined nowhere (`mugraph.testing.pairs`). Wrong
are: equivalent where there is a difference, or without the part on which it is so; different where there is none, or by a
witness that does not hold; a crash. Exit code 1 where an answer was wrong. Records go to `benchmarks/results/adversarial.json`,
by family, with a hash of the sources they were made by: those of other sources are made anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mugraph
from mugraph.testing.adversarial import FAULTS, PairResult, answer, row, summary
from mugraph.testing.pairs import FAMILIES, Family, Pair

Record = dict[str, Any]

RESULT = Path(__file__).parent / "results" / "adversarial.json"
_ASIDE = {"search", "lower", "targets", "runtime", "viewer", "cli"}
TAMPERED = 300
"""Folders that are tampered with."""


def main(arguments: Sequence[str]) -> int:
    """Make the records that are missing, print a summary, and return the exit code."""
    parser = argparse.ArgumentParser(
        "evidence.py adversarial", None, __doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=math.inf, help="processor time after which the run stops where it is")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="families whose name or construct contains a word")
    parser.add_argument("--most", type=int, help="pairs of each family, spread over it (default: all)")
    parser.add_argument("--budget", type=float, help="seconds that each question may take, where the verifier has a budget")
    parser.add_argument("--judge", action="store_true", help="check the truth of every pair at points, exactly or at 200 bits")
    parser.add_argument("--tampered", type=int, default=TAMPERED, help="saved folders to tamper with (0: none)")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    record = _read(options.output)
    until = time.process_time() + options.seconds
    wanted = [family for family in FAMILIES.values() if _named(family, options.only)]
    for made in _rows(wanted, record, options, until):
        record["families"][made["family"]] = made
        _write(record, options.output)
    if not options.only and time.process_time() < until:
        record["tampered"] = {"sources": sources(), **_tampered(options.tampered)}
    _write(record, options.output)
    print(json.dumps({"summary": record["summary"], "tampered": record.get("tampered")}, indent=1))
    return 1 if _misled(record) else 0


@cache
def sources() -> str:
    """A hash of the package, but for what no verdict depends on."""
    root = Path(mugraph.__file__).parent
    found = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root)
        if name.parts[0] not in _ASIDE:
            found.update(f"{name}\0".encode() + file.read_bytes())
    return found.hexdigest()[:16]


def _named(family: Family, words: Sequence[str]) -> bool:
    return not words or any(word in text for word in words for text in (family.name, family.construct))


def _read(file: Path) -> Record:
    """What is known of these sources."""
    record: Record = json.loads(file.read_text()) if file.exists() else {}
    families = {found["family"]: found for found in record.get("families", []) if found["sources"] == sources()}
    return {**record, "families": families}


def _write(record: Record, file: Path) -> None:
    families = [record["families"][name] for name in FAMILIES if name in record["families"]]
    record["summary"] = {"sources": sources(), "theorem prover": find_spec("z3") is not None, **summary(families)}
    lines = ",\n".join(json.dumps(found) for found in families)
    tampered = f'"tampered": {json.dumps(record["tampered"], indent=1)},\n' if "tampered" in record else ""
    file.parent.mkdir(exist_ok=True)
    file.write_text(f'{{"summary": {json.dumps(record["summary"], indent=1)},\n{tampered}"families": [\n{lines}\n]}}\n')


def _rows(families: Sequence[Family], record: Record, options: argparse.Namespace, until: float) -> Iterator[Record]:
    """The record of each family that is missing, as they come."""
    for number, family in enumerate(families, 1):
        pairs = _spread(family.pairs(), options.most)
        known = record["families"].get(family.name)
        if known is not None and known["pairs"] >= len(pairs) and ("claims contradicted" in known or not options.judge):
            continue
        if time.process_time() > until:
            return
        made = {"sources": sources(), **row(family, [PairResult(pair, answer(pair, options.budget)) for pair in pairs])}
        if options.judge:
            made["claims contradicted"] = _contradicted(pairs)
        faults = "".join(f", {made[name]} {name}" for name in FAULTS if made[name])
        told = f"{number} of {len(families)}, {family.name}: {made['answers']}{faults}, {made['median seconds']} s"
        print(told, file=sys.stderr, flush=True)
        yield made


def _spread(pairs: list[Pair], most: int | None) -> list[Pair]:
    """So many of them at equal distances."""
    count = len(pairs) if most is None else min(most, len(pairs))
    return [pairs[number * len(pairs) // count] for number in range(count)]


def _contradicted(pairs: Sequence[Pair]) -> list[str]:
    """Pairs that are not what their family claims."""
    from mugraph.testing.judgement import contradicted

    found = [(pair, contradicted(pair)) for pair in pairs]
    return [f"{pair.note}: {pair.truth}, but {shown}" for pair, shown in found if shown is not None]


def _tampered(count: int) -> Record:
    """What became of folders that were tampered with, equally many of each result."""
    if not count:
        return {"folders": 0}
    from mugraph.testing.tampered import reactions, saved_results
    from mugraph.testing.tampered import summary as counted

    with tempfile.TemporaryDirectory() as temporary:
        folders = list(saved_results(Path(temporary)))
        found = []
        for name, one in reactions(folders, count, random.Random(0)):
            found.append((name, one))
            if one.misled or one.crashed:
                print(f"tampered: {name}, {one}", file=sys.stderr, flush=True)
    return dict(counted(found))


def _misled(record: Record) -> bool:
    wrong = any(record["summary"][name] for name in FAULTS)
    tampered = record.get("tampered", {})
    claims = any(found.get("claims contradicted") for found in record["families"].values())
    return wrong or claims or bool(tampered.get("accepted though changed") or tampered.get("crashes"))
