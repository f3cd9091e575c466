"""The tables of docs/cpu-measured.md that records of `cpu.py`, `layers.py`, `model_rivals.py` and `cpu_growth.py` make, and its
plots.

    python benchmarks/cpu_page.py            # writes the page's tables and docs/plots/cpu-growth-*.svg anew
    python benchmarks/cpu_page.py --print    # prints them

A table stands on the page between two comments that have its name. Of a case that was measured more than once the latest run
counts, which stands first among the records. A share of a limit is time of the limit over time of ours: of reading what must be
read once where memory bounds a case, and of the library's products where arithmetic does (`cpu_limits.py`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cpu
import cpu_growth
import layers
import model_rivals
from cpu import CONTESTANTS, DTYPES, LOST, OURS, PROGRAMS
from mugraph.frontend.workloads import WORKLOADS
from plots import lines

ROOT = Path(__file__).parents[1]
PAGE, PLOTS = ROOT / "docs" / "cpu-measured.md", ROOT / "docs" / "plots"
AGAIN = cpu.RESULT.with_name("cpu-rivals-again.json")
AMX = cpu.RESULT.with_name("cpu-rivals-amx.json")
"""Cases on a processor with a matrix unit."""
WIDTH = 130
"""Columns of the page."""
REACHED = 0.9
"""The share of what bounds it that a case is to reach."""

Row = Mapping[str, Any]
Block = Callable[[], str]


# what records say -----------------------------------------------------------------------------------------------------


def rows_of(record: Path) -> list[Row]:
    """The records of a file that have a time of ours and of a rival; none where there is no file."""
    rows: list[Row] = json.loads(record.read_text(encoding="utf-8"))["records"] if record.exists() else []
    return [row for row in rows if cpu.ratio(row) is not None]


def latest(rows: Iterable[Row], names: Sequence[str]) -> list[Row]:
    """Of the rows that are called the same the first one."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), row)
    return [*found.values()]


def best_rival(row: Row) -> tuple[float, str]:
    """Seconds of the fastest rival, and its title."""
    return min((taken, title) for title, taken in row["seconds"].items() if title != OURS)


def grid(rows: Sequence[Row], heads: Sequence[str], column: str, label: Callable[[Any], str] = str, limits: bool = True) -> str:
    """A table with a line for what rows are called by `heads`, and for each value of `column` four cells: our milliseconds, those
    of the best rival, these over ours and, of `limits`, the share of what bounds the case."""
    values = sorted({row[column] for row in rows}, key=_place)
    known = {(tuple(row[head] for head in heads), row[column]): row for row in rows}
    some = ("best rival", "ratio", "reached") if limits else ("best rival", "ratio")
    titles = [*heads, *(title for value in values for title in (label(value), *some))]
    lines = []
    for name in sorted({name for name, _ in known}, key=lambda name: [*map(_place, name)]):
        cells = (cell for value in values for cell in _cells(known.get((name, value)), limits))
        lines.append([*map(str, name), *cells])
    return _table(titles, lines)


def _cells(row: Row | None, limits: bool) -> list[str]:
    """What a table says of a case; dashes where it was not measured."""
    if row is None:
        return ["-"] * (4 if limits else 3)
    seconds, title = best_rival(row)
    cells = [f"{row['seconds'][OURS] * 1e3:.3g}", f"{seconds * 1e3:.3g} {title}", _bold(cpu.ratio(row), LOST)]
    share = cpu.share_reached(row)
    return [*cells, "-" if share is None else f"{_bold(share, REACHED)} {row['bound']}"] if limits else cells


def _bold(number: float | None, least: float) -> str:
    """A ratio, in bold type where it is less than it should be."""
    assert number is not None
    return f"{number:.2f}" if number >= least else f"**{number:.2f}**"


def _place(value: Any) -> tuple[int, Any]:
    """What tables are ordered by: workloads and programs as they are listed, types, and numbers by size."""
    order = [*WORKLOADS, *PROGRAMS, *DTYPES]
    return (order.index(value), "") if value in order else (len(order), value)


def _table(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, ["---"] * len(titles), *lines))


def standing(rows: Sequence[Row], names: Sequence[str]) -> str:
    """What rows say together: how they stand beside the best rivals, and which miss the share of what bounds them."""
    return textwrap.fill(f"{beside_the_best(rows, names)} {shares(rows, names)}", WIDTH)


def beside_the_best(rows: Sequence[Row], names: Sequence[str]) -> str:
    """How rows stand beside the best rivals, and which are lost."""
    ratios = {_called(row, names): _ratio(row) for row in rows}
    mean = statistics.geometric_mean(ratios.values())
    lost = [f"{name} ({ratio:.3g})" for name, ratio in ratios.items() if ratio < LOST]
    said = f"{_counted(len(ratios), 'cell')}: {mean:.2f} in the geometric mean, {min(ratios.values()):.2f} at least; "
    return f"{said}under {LOST}: {', '.join(lost) or 'none'}."


def shares(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Which rows reach the share of what bounds them that they should, and which do not."""
    told, unknown = list[str](), sum(cpu.share_reached(row) is None for row in rows)
    for bound, what in (("reading", "bound by memory"), ("products", "bound by arithmetic")):
        of = [(_called(row, names), share) for row in rows if row.get("bound") == bound and (share := cpu.share_reached(row))]
        missed = [f"{name} ({share:.3g})" for name, share in of if share < REACHED]
        if of:
            reach = f"Of those {what} {len(of) - len(missed)} of {len(of)} reach {REACHED:.0%} of {bound}"
            told.append(f"{reach}; under it: {', '.join(missed)}." if missed else f"{reach}.")
    if unknown:
        told.append(f"Limits of {unknown} were not measured.")
    return " ".join(told)


def _ratio(row: Row) -> float:
    return cpu.ratio(row) or 0.0


def _called(row: Row, names: Sequence[str]) -> str:
    return " ".join(str(row[name]) for name in names)


# blocks of the page ---------------------------------------------------------------------------------------------------


def of_cases(cases: Iterable[str], threads: int, record: Path | None = None) -> list[Row]:
    """The latest records of cases, of a file of them, by so many threads that wait as libraries have it by default."""
    rows = [row for row in rows_of(record or cpu.RESULT) if row["case"] in set(cases) and row["threads"] == threads]
    return latest((row for row in rows if row.get("wait") == "default"), cpu.NAMED)


def of_a_matrix_unit() -> list[Row]:
    """The latest records of all cases by two threads of a processor with a matrix unit."""
    return of_cases((*WORKLOADS, *PROGRAMS), 2, AMX)


def of_models(threads: int | None = None) -> list[Row]:
    """The latest records of whole models, those of most threads first: all, or by so many threads that wait by default."""
    rows = latest(rows_of(model_rivals.RESULT), model_rivals.NAMED)
    rows = [row for row in rows if threads is None or (row["threads"], row["wait"]) == (threads, "default")]
    return sorted(
        rows, key=lambda row: [(-row["threads"], ""), *(_place(row[name]) for name in ("model", "phase", "size", "dtype"))]
    )


def beside_rivals(cases: Iterable[str], threads: int, record: Path | None = None) -> str:
    """Cases, of a file of records, by so many threads that wait as libraries have it by default."""
    rows = of_cases(cases, threads, record)
    if not rows:
        return _NOTHING
    limits = any(cpu.share_reached(row) is not None for row in rows)
    return f"{grid(rows, ('case', 'batch'), 'dtype', limits=limits)}\n\n{standing(rows, ('case', 'batch', 'dtype'))}"


def with_a_matrix_unit() -> str:
    """All cases by two threads of a processor with a matrix unit."""
    return beside_rivals((*WORKLOADS, *PROGRAMS), 2, AMX)


def measured_again() -> str:
    """Cases that later runs measured once more, each by itself."""
    rows = rows_of(AGAIN)
    names = ("case", "batch", "dtype", "threads", "wait")
    titles = (*names, "budget, s", "ms", "best rival", "ratio", "reached", "ran")
    lines = [[*(str(row[name]) for name in (*names, "budget")), *_cells(row, True), row.get("ran") or "-"] for row in rows]
    return f"{_table(titles, lines)}\n\n{textwrap.fill(shares(rows, names[:3]), WIDTH)}"


def whole_models() -> str:
    """Steps of whole models: tokens a second of every contestant."""
    rows, names = of_models(), ("model", "layers", "phase", "size", "dtype", "threads", "wait")
    if not rows:
        return _NOTHING
    lines = []
    for row in rows:
        rates = (model_rivals.rate(row, title) for title in CONTESTANTS)
        cells = ("-" if each is None else f"{each:.3g}" for each in rates)
        lines.append([*(str(row[name]) for name in names), *cells, _bold(_ratio(row), LOST)])
    said = textwrap.fill(beside_the_best(rows, ("model", "size", "dtype", "threads")), WIDTH)
    return f"{_table((*names, *CONTESTANTS, 'ratio'), lines)}\n\n{said}"


def whole_layers() -> str:
    """Whole layers as one call to `superoptimize`: seconds of its parts, memory, proof, and times of calls."""
    records: list[Row] = json.loads(layers.RESULT.read_text(encoding="utf-8"))["records"] if layers.RESULT.exists() else []
    records = [row for row in records if "failed" not in row]
    order = [*layers.CASES]
    lines = [_layer(row) for row in sorted(records, key=lambda row: (order.index(row["case"]), row["dtype"], row["budget"]))]
    heads = ("layer", "type", "threads", "budget", "whole", "first proof", "search", "compile", "proof", "GiB", "bound", "bytes")
    return _table((*heads, "ms", *(f"over {title}" for title in _BESIDE_LAYERS)), lines) if lines else _NOTHING


_BESIDE_LAYERS = ("eager", "inductor", "inductor frozen")


def _layer(row: Row) -> list[str]:
    """What the table says of a layer; "function" for a share of bytes where nothing clearly faster than it was found."""
    seconds = (row["seconds"], row["first_proof_seconds"], *(row[f"{part}_seconds"] for part in ("search", "compile", "verify")))
    parts = ("-" if each is None else f"{each:.1f}" for each in seconds)
    calls = row["seconds_of_a_call"]
    over = ("-" if title not in calls else _bold(calls[title] / calls[OURS], LOST) for title in _BESIDE_LAYERS)
    bound = "-" if not row["bounds"] else f"{max(row['bounds']):.0e}"
    share = f"{row['byte_share']:.0%}" if row["found"] else "function"
    named = (row["case"], row["dtype"], str(row["threads"]), f"{row['budget']:g}")
    return [*named, *parts, f"{row['peak_bytes'] / 2**30:.1f}", bound, share, f"{calls[OURS] * 1e3:.3g}", *over]


def summary() -> str:
    """How each group of cases stands beside the best rivals in each type, with links to the tables of the groups."""
    titles = ("what", "type", "cells", "geometric mean", "worst cell", f"under {LOST}")
    lines = []
    for title, group in GROUPS.items():
        rows = group.rows()
        for dtype in DTYPES:
            if of := [row for row in rows if row["dtype"] == dtype]:
                ratios, worst = [_ratio(row) for row in of], min(of, key=_ratio)
                mean, lost = statistics.geometric_mean(ratios), sum(ratio < LOST for ratio in ratios)
                least = f"{_bold(_ratio(worst), LOST)} {_called(worst, group.names)}"
                lines.append([f"[{title}](#{group.section})", dtype, str(len(of)), f"{mean:.2f}", least, str(lost)])
    return _table(titles, lines) if lines else _NOTHING


def growth(case: str) -> str:
    """A program as its size and the number of threads grow, a table and plots for each type."""
    rows = [row for row in latest(rows_of(cpu_growth.RESULT), cpu_growth.NAMED) if row["case"] == case]
    made = []
    for dtype in DTYPES:
        if of := [row for row in rows if row["dtype"] == dtype]:
            drawn = [f"![{case} in {dtype} by {_threads(threads)}](plots/{name})" for name, threads in _plotted(of)]
            made += [f"{case} in {dtype}, milliseconds:", grid(of, ("size",), "threads", _threads), by_threads(of), *drawn]
    return "\n\n".join(part for part in made if part) or _NOTHING


def by_threads(rows: Sequence[Row]) -> str:
    """How many times as fast more threads are than the fewest, of us and of the best rivals; empty where they are as many."""
    times: dict[int, dict[int, tuple[float, float]]] = {}
    for row in rows:
        times.setdefault(row["size"], {})[row["threads"]] = row["seconds"][OURS], best_rival(row)[0]
    few, many = min(row["threads"] for row in rows), max(row["threads"] for row in rows)
    both = [(of[few], of[many]) for of in times.values() if {few, many} <= of.keys()] if few < many else []
    if not both:
        return ""
    ours, theirs = ([one[side] / other[side] for one, other in both] for side in (0, 1))
    ranges = (f"{min(of):.2f} to {max(of):.2f}" for of in (ours, theirs))
    said = f"{_threads(many)} are {next(ranges)} times as fast as {_threads(few)}, and the best rivals {next(ranges)} times"
    return textwrap.fill(f"{said} ({len(both)} sizes).", WIDTH)


def plots() -> dict[str, str]:
    """The plots of growth by the names of their files: milliseconds of every contestant over the sizes."""
    rows = latest(rows_of(cpu_growth.RESULT), cpu_growth.NAMED)
    return {
        name: lines(
            {
                title: [(row["size"], row["seconds"][title] * 1e3) for row in of if title in row["seconds"]]
                for title in CONTESTANTS
                if any(title in row["seconds"] for row in of)
            },
            cpu_growth.GROWTHS[of[0]["case"]].name,
            f"milliseconds of a call: {of[0]['case']}, {of[0]['dtype']}, {_threads(of[0]['threads'])}",
        )
        for name, of in _series(rows).items()
    }


def _plotted(rows: Sequence[Row]) -> list[tuple[str, int]]:
    """The plots that rows are in, and the threads of each."""
    return [(name, of[0]["threads"]) for name, of in _series(rows).items()]


def _series(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each plot by the name of its file; none of a single size."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(f"cpu-growth-{row['case']}-{row['dtype']}-{row['threads']}.svg", []).append(row)
    return {name: of for name, of in found.items() if len({row["size"] for row in of}) > 1}


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count > 1)


_threads = partial(_counted, what="thread")


_NOTHING = "No record is there so far."


class Group(NamedTuple):
    """Cases that the summary has together: their rows, what these are called by, and the section of the page with all of them."""

    rows: Callable[[], list[Row]]
    names: tuple[str, ...]
    section: str


GROUPS = {
    "six workloads, two threads": Group(partial(of_cases, WORKLOADS, 2), ("case", "batch"), "the-six-workloads-two-threads"),
    "other programs, two threads": Group(partial(of_cases, PROGRAMS, 2), ("case", "batch"), "other-programs-two-threads"),
    "six workloads, one thread": Group(partial(of_cases, WORKLOADS, 1), ("case", "batch"), "the-six-workloads-one-thread"),
    "with a matrix unit, two threads": Group(of_a_matrix_unit, ("case", "batch"), "with-a-matrix-unit"),
    "whole models, two threads": Group(partial(of_models, 2), ("model", "size"), "whole-models"),
}

BLOCKS: dict[str, Block] = {
    "summary": summary,
    "the six workloads, two threads": partial(beside_rivals, WORKLOADS, 2),
    "other programs, two threads": partial(beside_rivals, PROGRAMS, 2),
    "the six workloads, one thread": partial(beside_rivals, WORKLOADS, 1),
    "measured again": measured_again,
    "with a matrix unit": with_a_matrix_unit,
    "whole layers": whole_layers,
    "whole models": whole_models,
    **{f"growth of {case}": partial(growth, case) for case in cpu_growth.GROWTHS},
}
"""What the page has of each name between its comments."""


def page(text: str, blocks: Mapping[str, Block] = BLOCKS) -> str:
    """A page with its blocks made anew; raises ValueError for a block that is not there once."""
    for name, make in blocks.items():
        first, last = (f"<!-- {mark}: {name} -->" for mark in ("benchmarks/cpu_page.py", "end"))
        if text.count(first) != 1 or text.count(last) != 1:
            raise ValueError(f"the page has no place for {name!r}, between {first} and {last}")
        before, _, rest = text.partition(first)
        behind = rest.partition(last)[2]
        text = f"{before}{first}\n\n{make()}\n\n{last}{behind}"
    return text


def main(words: Sequence[str] | None = None) -> None:
    """Write the page and its plots, or print the page's blocks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", help="print the tables, and write nothing")
    options = parser.parse_args(words)
    if options.print:
        print("\n\n".join(f"{name}\n\n{make()}" for name, make in BLOCKS.items()))
        return
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for name, drawn in plots().items():
        (PLOTS / name).write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
