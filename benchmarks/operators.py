"""The operators of PyTorch, alone and between others: which are kernels, which stay with PyTorch, is any refused or wrong?

    python benchmarks/operators.py                    # all calls, some minutes
    python benchmarks/operators.py prod cdist         # some of them
    python benchmarks/operators.py --table            # the record as the table of docs/coverage.md

`operator_cases.py` has the calls: every operator that torch tags as its core, and others that models and losses use. Each
is optimized without measuring, so that kernels run wherever there are any: alone, which tells where it runs, and between
elementwise calls. Both are called on the inputs and compared with the function in fp64: right is what errs at most ERRORS
times as much as the function itself, or by ROUNDING of the largest element. Random numbers are drawn from the same seed and
compared with the function's own. Records go to `benchmarks/results/operators.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch.utils._pytree import tree_leaves, tree_map

import mugraph
from kept import Record, records
from operator_cases import CALLS

RESULT = Path(__file__).parent / "results" / "operators.json"
ERRORS, ROUNDING = 8.0, 1e-5
BUDGET = 6.0
RANDOM = frozenset({"rand", "randn", "randperm", "native_dropout", "rrelu"})
"""Calls whose random numbers differ with the type that they are drawn in."""
KINDS = {
    "kernels": "kernels alone",
    "library": "kernels of the library, packed",
    "partly": "kernels and PyTorch",
    "moves": "PyTorch alone, for nothing is computed; kernels where their neighbours are",
    "late": "PyTorch: a program, of which nothing was found within the budget",
    "torch": "PyTorch, between kernels",
    "refused": "nothing: a typed error names the line that PyTorch cannot record",
}
"""Where a call runs, and what the table says of that."""
NOTHING_COMPUTED = ("a cheap last step", "a view of what", "it computes nothing", "it moves parts", "there is nothing to put")
NOTHING_FOUND = ("nothing clearly faster", "the time ran out")
"""Beginnings of what coverage says of calls that stay with PyTorch, some of which are part of kernels in other functions."""

Function = Callable[..., Any]


def among_others(function: Function) -> Function:
    """The function of a first tensor that is computed, and something computed of what it gives."""

    def surrounded(*inputs: torch.Tensor) -> Any:
        first = next((number for number, value in enumerate(inputs) if value.is_floating_point()), None)
        given = [0.75 * value + 0.25 * value if number == first else value for number, value in enumerate(inputs)]
        return tree_map(_halved, function(*given))

    return surrounded


def _halved(result: Any) -> Any:
    return result * 0.5 + 1 if isinstance(result, torch.Tensor) and result.is_floating_point() else result


def core() -> set[str]:
    """The names of the operators that torch tags as its core."""
    found = set()
    for name in {schema.name for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")}:
        packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
        if packet is not None and any(torch.Tag.core in getattr(packet, each).tags for each in packet.overloads()):
            found.add(packet.__name__)
    return found


def outcome(name: str) -> Record:
    """Where a call runs, and what became of it alone and between others."""
    function, inputs = CALLS[name]
    alone = _outcome(name, function, inputs)
    if alone["outcome"] != "right":
        return alone
    around = _outcome(name, among_others(function), inputs)
    if around["outcome"] != "right":
        return around | {"where": alone["where"], "why": f"between others: {around['why']}"}
    return alone | {"error": max(alone["error"], around["error"])}


def _outcome(name: str, function: Function, inputs: Sequence[torch.Tensor]) -> Record:
    with torch.no_grad():
        try:
            opt = mugraph.superoptimize(function, _copies(inputs), budget=BUDGET, profile=False, cache="off", seed=0)
        except mugraph.MugraphError as error:
            return {"outcome": "refused", "why": f"{type(error).__name__}: {error}"}
        except Exception as error:
            return {"outcome": "crashed", "why": f"optimizing: {error!r}"}
        try:
            return _where(opt) | _compared(name, function, opt, inputs)
        except Exception as error:
            return {"outcome": "crashed", "why": f"calling: {error!r}"}


def _copies(inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.clone() for tensor in inputs)


def _where(opt: Any) -> Record:
    coverage = opt.report.coverage
    left = [] if coverage is None else [call for call in coverage.left if call.operator != "getitem"]
    left.sort(key=lambda call: call.reason.startswith(NOTHING_COMPUTED))
    why = {"why": f"{left[0].operator}: {left[0].reason}"} if left else {}
    if not left:
        return {"where": "kernels" if coverage is None or not coverage.library.bytes else "library"}
    return {"where": "partly" if opt.found else "torch"} | why


def _compared(name: str, function: Function, opt: Function, inputs: Sequence[torch.Tensor]) -> Record:
    given = _seeded(opt, inputs)
    own = _seeded(function, inputs)
    wide = [tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs]
    exact = own if name in RANDOM else _seeded(function, wide)
    if [_kind(value) for value in given] != [_kind(value) for value in own]:
        return {"outcome": "wrong", "why": f"{[_kind(value) for value in given]} for {[_kind(value) for value in own]}"}
    worst = 0.0
    for ours, theirs, right in zip(given, own, exact, strict=True):
        off, allowed = _distance(ours, right), _distance(theirs, right)
        worst = max(worst, off)
        if not off <= max(ERRORS * allowed, ROUNDING):
            return {"outcome": "wrong", "why": f"it errs by {off:.1e} of the largest element, the function by {allowed:.1e}"}
    return {"outcome": "right", "error": worst}


def _seeded(function: Function, inputs: Sequence[torch.Tensor]) -> list[Any]:
    torch.manual_seed(0)
    return tree_leaves(function(*_copies(inputs)))


def _kind(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


def _distance(ours: Any, right: Any) -> float:
    """Of the largest element; infinite where other elements are NaN or infinite, 0 of what is not asked for."""
    if right is None:
        return 0.0
    ours, right = (torch.as_tensor(value).detach() for value in (ours, right))
    ours, right = (value.resolve_conj() if value.is_complex() else value.double() for value in (ours, right))
    if ours.shape != right.shape:
        return float("inf")
    same = (ours == right) | (ours.isnan() & right.isnan())
    if bool(same.all()):
        return 0.0
    finite = right.isfinite() & ours.isfinite()
    if not bool((finite | same).all()):
        return float("inf")
    return float((ours - right)[finite].abs().max()) / (float(right[finite].abs().max()) or 1.0)


def _place(entry: Record) -> str:
    """Of KINDS."""
    where, reason = str(entry.get("where", entry["outcome"])), str(entry.get("why")).partition(": ")[2]
    if where != "torch":
        return where
    return "moves" if reason.startswith(NOTHING_COMPUTED) else "late" if reason.startswith(NOTHING_FOUND) else where


def summary(found: Sequence[Record]) -> dict[str, Any]:
    """What the records say together."""
    names = core()
    return {
        "calls": len(found),
        "core": len([entry for entry in found if entry["name"] in names]),
        "where": {where: sum(_place(entry) == where for entry in found) for where in KINDS},
        "where_core": {where: sum(_place(entry) == where and entry["name"] in names for entry in found) for where in KINDS},
        "refused": [f"{entry['name']}: {entry['why']}" for entry in found if entry["outcome"] == "refused"],
        "wrong": [f"{entry['name']}: {entry['why']}" for entry in found if entry["outcome"] in ("wrong", "crashed")],
    }


def table(found: Sequence[Record]) -> str:
    """The calls by where they run; those of torch's core are printed bold in Markdown."""
    names = core()
    lines = ["| runs as | how many | which |", "|---|---|---|"]
    for where, words in KINDS.items():
        which = [entry["name"] for entry in found if _place(entry) == where]
        said = ", ".join(f"**{name}**" if name in names else name for name in sorted(which, key=str.lower))
        lines.append(f"| {words} | {len(which)} | {said} |")
    return "\n".join(lines)


def main() -> None:
    """Make the records and print the summary; the exit code is 1 where a call is wrong or crashes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="calls by name")
    parser.add_argument("--table", action="store_true", help="print the record as a table in Markdown")
    parser.add_argument("--record", type=Path, help="a file of JSON that records are kept in")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads((options.record or RESULT).read_text(encoding="utf-8"))["records"]))
        return
    if unknown := [name for name in options.names if name not in CALLS]:
        parser.error(f"no call {unknown[0]}; use some of {' '.join(CALLS)}")
    torch.set_num_threads(1)
    output = options.record or (None if options.names else RESULT)
    found = records([{"name": name} for name in options.names or CALLS], outcome, output, summary)
    said = summary(found)
    print(json.dumps(said, indent=1))
    sys.exit(1 if said["wrong"] else 0)


if __name__ == "__main__":
    main()
