"""Small programs whose best form takes algebra and several kernels: is that form found, starting from how one writes them?

    python benchmarks/forms.py                                      # all of them for an H100; a minute or two
    python benchmarks/forms.py --target cpu "two products"          # one of them for this machine
    python benchmarks/forms.py --construct factoring --json

Every program is searched as it is written and in the form that is chosen by hand (`mugraph.testing.forms`), each in a process
that knows nothing yet. The best plan of the chosen form is no worse than that form itself, one kernel for an operator or fused
as far as that pays; a program is lost where the best plan of the written one is predicted to take longer than that. Times are
those of the cost model. Beside them stands a rival: substitutions as in TASO, applied until no new program comes up
(`mugraph.testing.substitutions`), the best of all these with a library kernel for each matrix product and elementwise operators
fused. A program is beaten where that is predicted to be faster than what the search found. Results go to
`benchmarks/results/forms.json`, one entry for each target. Exits with 1 if any is lost, or beaten but by a form that is found and
dropped for its rounding errors.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mugraph.devices import Device, device_for
from mugraph.ir.graph import Graph
from mugraph.search import Options, SearchResult, search
from mugraph.search.structures import KNOWN
from mugraph.testing.forms import CASES, LESS_PRECISE
from mugraph.testing.substitution_costs import best_rewriting

FILE = Path(__file__).parent / "results" / "forms.json"
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Row:
    """A program: predicted seconds of what was found from each form, the kernels, and what the search of the written one took."""

    name: str
    construct: str
    found_seconds: float
    chosen_seconds: float
    kernels: list[str]
    search_cpu_seconds: float
    exhausted: bool
    rewritten_seconds: float
    rewritten: tuple[str, ...]
    """What rewriting makes of the program, output by output."""
    rewritten_states: int
    saturated: bool

    @property
    def lost(self) -> bool:
        """Whether the form chosen by hand is better than what was found."""
        return self.found_seconds > self.chosen_seconds * (1 + ROUNDING)

    @property
    def beaten(self) -> bool:
        """Whether what rewriting leads to is better than what was found."""
        return self.found_seconds > self.rewritten_seconds * (1 + ROUNDING)

    def __str__(self) -> str:
        found, chosen, rewritten = self.found_seconds * 1e6, self.chosen_seconds * 1e6, self.rewritten_seconds * 1e6
        verdict = f"lost by {100 * (found / chosen - 1):.2g} %" if self.lost else "found"
        verdict += f", beaten by {100 * (found / rewritten - 1):.2g} %" if self.beaten else ""
        ended = f"{self.rewritten_states}, {'saturated' if self.saturated else 'cut short'}"
        return (
            f"| {self.name} | {self.construct} | {found:.2f} | {chosen:.2f} | {' + '.join(self.kernels)} "
            f"| {self.search_cpu_seconds:.2f} | {'yes' if self.exhausted else 'no'} "
            f"| {rewritten:.2f} | {'; '.join(self.rewritten)} | {ended} | {verdict} |"
        )


def main() -> None:
    """Search what the command line names, print the table, and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", help="names of programs (default: all)")
    parser.add_argument("--construct", help="only programs of this construct")
    parser.add_argument("--target", default="cuda:sm_90")
    parser.add_argument("--seconds", type=float, default=20.0, help="limit of each closure, of cuts, and of each finer tier")
    parser.add_argument("--programs-rewritten", type=int, default=10_000, help="limit of programs that rewriting looks at")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.programs if name not in CASES]
    if unknown:
        parser.error(f"no program is called {unknown[0]!r}; there are: {', '.join(CASES)}")
    names = [name for name in arguments.programs or CASES if arguments.construct in (None, CASES[name].construct)]
    device = device_for(arguments.target)
    rows = []
    print(
        "| program | construct | found us | chosen us | kernels | search s | exhausted | rewritten us | as | programs | |\n"
        + "|---" * 11
        + "|",
        file=sys.stderr,
    )
    for name in names:
        rows.append(compared(name, device, arguments.seconds, arguments.programs_rewritten))
        print(rows[-1], file=sys.stderr, flush=True)
    lost = [row.name for row in rows if row.lost]
    beaten = [row.name for row in rows if row.beaten]
    better = sum(row.found_seconds < row.rewritten_seconds * (1 - ROUNDING) for row in rows)
    record = {
        "programs": len(rows),
        "found": len(rows) - len(lost),
        "lost": lost,
        "better than rewriting": better,
        "beaten by rewriting": beaten,
        "rewriting saturated": sum(row.saturated for row in rows),
        "rows": [asdict(row) for row in rows],
    }
    if not arguments.programs and arguments.construct is None:
        keep(arguments.target, record)
    summary = (
        f"{record['found']} of {len(rows)} found; lost: {', '.join(lost) or 'none'}; "
        f"better than rewriting: {better}; beaten by it: {', '.join(beaten) or 'none'}"
    )
    print(json.dumps(record) if arguments.json else summary)
    sys.exit(bool(lost) or any(name not in LESS_PRECISE for name in beaten))


def compared(name: str, device: Device, seconds: float, limit: int) -> Row:
    """One program in both forms, and what rewriting makes of it."""
    case = CASES[name]
    started = time.process_time()
    found = searched(case.graph(case.written), device, seconds)
    taken = time.process_time() - started
    chosen = searched(case.graph(case.chosen), device, seconds)
    kernels = [node.op for node in found.candidates[0].graph.kernels()] if found.candidates else []
    rival = best_rewriting(case.graph(case.written), device, limit)
    return Row(
        *(name, case.construct, best(found), best(chosen), kernels, taken, found.report.exhausted),
        *(rival.seconds, rival.formulas, rival.states, rival.saturated),
    )


def searched(graph: Graph, device: Device, seconds: float) -> SearchResult:
    """A search that knows nothing yet."""
    KNOWN.clear()
    return search(graph, device, options=Options(cut_seconds=seconds, closure_seconds=seconds, finer_tier_seconds=seconds))


def best(result: SearchResult) -> float:
    """Predicted seconds of the best candidate."""
    return min((candidate.cost for candidate in result.candidates), default=math.inf)


def keep(target: str, record: dict[str, Any]) -> None:
    """Put the results of a target beside those of others."""
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    FILE.write_text(json.dumps({**known, target: record}, indent=1) + "\n")


if __name__ == "__main__":
    main()
