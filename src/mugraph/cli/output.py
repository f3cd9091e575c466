"""What the commands print: a result as text with a table of times, and as one JSON object."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mugraph.cli.arguments import Subject
from mugraph.devices import device_for, roofline_seconds
from mugraph.ir.graph import Graph
from mugraph.results.coverage import Coverage, coverage_lines, coverage_rows
from mugraph.results.data import Rejection
from mugraph.results.summary import bound_text, compared_text, floats_text, outcome_text, seconds_text, spot_check_text
from mugraph.results.superoptimized import Superoptimized
from mugraph.runtime.baselines import EAGER, OURS, BaselineComparison
from mugraph.selection.reasons import NOTHING_FASTER
from mugraph.version import __version__

_SHOWN = 8
"""Inputs that a line names."""
_NUMBER = re.compile(r"\d[\d.]*(e[+-]\d+)?")


def optimization_json(subject: Subject, opt: Superoptimized, comparison: BaselineComparison | None) -> dict[str, Any]:
    """The JSON object of `mugraph optimize --json`."""
    return {"workload": subject.name, **result_json(opt), **comparison_json(comparison)}


def result_json(opt: Superoptimized) -> dict[str, Any]:
    """A result as JSON values; times in seconds."""
    report = opt.report
    common = {
        "found": opt.found,
        "coverage": None if report.coverage is None else coverage_json(report.coverage),
        "search_seconds": report.seconds,
        "exhausted": report.exhausted,
        "exhausted_what": report.exhausted_what,
        "space": report.space,
        "rejected": [f"{rejection.stage}: {rejection.reason}" for rejection in report.rejected],
        "compile_seconds": report.compile_seconds,
        "verify_seconds": report.verify_seconds,
        "measure_seconds": report.measure_seconds,
        "target": opt.target,
        "versions": _versions(),
    }
    if opt.is_one_program:
        return common | _program_json(opt)
    return common | {"programs": [_program_json(result) | {"found": result.found} for result in opt.results]}


def coverage_json(coverage: Coverage) -> dict[str, Any]:
    """A coverage as JSON values, with its shares."""
    shares = {"bytes": coverage.byte_share, "flops": coverage.flop_share, "seconds": coverage.time_share}
    return {"in_kernels": shares, **coverage.to_json()}


def _program_json(opt: Superoptimized) -> dict[str, Any]:
    report = opt.report
    return {
        "recalled": report.recalled,
        "kernels": len(opt.graph.kernels()),
        "block_operators": [body.operator_count() for body in _bodies(opt.graph)],
        "first_found_seconds": report.first_found_seconds,
        "states": report.states,
        "not_searched": list(report.search.get("not_searched", ())),
        "verified": opt.certificate.accepted,
        "outcome": opt.certificate.outcome,
        "error_bound": opt.certificate.error_bound,
        "max_relative_error": opt.best.max_relative_error,
        "spot_check": None if opt.best.spot_check is None else opt.best.spot_check.to_json(),
        "predicted": opt.best.cost,
        "latency": opt.best.latency,
        "roofline": roofline_seconds(opt.program, device_for(opt.target)),
        "device": device_for(opt.target).name,
        "placement": opt.executable.placement.to_json(),
        "packed_bytes": opt.executable.packed_bytes,
        "gpu_kernels": [asdict(figures) for figures in opt.executable.resources],
        "candidates": len(opt.candidates),
        "dtype": str(opt.program.inputs()[0].output.dtype),
        "shapes": {str(node["name"]): list(node.output.shape) for node in opt.program.inputs()},
    }


def comparison_json(comparison: BaselineComparison | None) -> dict[str, Any]:
    """Measured times as JSON values; no baselines when nothing was measured."""
    if comparison is None:
        return {"speedup": None, "baselines": {}, "ratios": {}, "unavailable": {}}
    return {
        "latency": comparison.latency,
        "speedup": comparison.speedup,
        "baselines": comparison.baselines,
        "ratios": comparison.ratios,
        "unavailable": comparison.unavailable,
    }


def print_optimization(subject: Subject, opt: Superoptimized, comparison: BaselineComparison | None, output: Path | None) -> None:
    """The human report of `mugraph optimize`."""
    report = opt.report
    print(f"{subject.name}: {subject.description}")
    print(_found(opt, comparison) if opt.found else _nothing_found(opt))
    if not opt.is_one_program:
        print()
        print_result(opt)
        if comparison is not None:
            print()
            print_comparison(comparison)
        _print_saved(opt, output)
        return
    if report.recalled:
        print("by an earlier run, whose result was kept and checked again; --cache force searches anew")
    for padding in report.search.get("paddings", ()):
        print(padding)
    print()
    print_result(opt)
    if comparison is not None:
        print()
        print_comparison(comparison)
    print()
    _print_search(opt)
    _print_saved(opt, output)


def _print_saved(opt: Superoptimized, output: Path | None) -> None:
    if output is not None:
        print(f"\nsaved to {output}; read it back with mugraph.load({str(output)!r}) or `mugraph show {output}`")
        print(called_text(opt))
        print(f"look at it as a page with `mugraph show {output} --html FILE`")


def _found(opt: Superoptimized, comparison: BaselineComparison | None) -> str:
    """How many kernels compute the program, and how fast, in a line."""
    line = _found_what(opt)
    if comparison is None or comparison.latency is None or not comparison.baselines:
        return line
    best, seconds = min(comparison.baselines.items(), key=lambda item: item[1])
    ratio = comparison.ratios[best]
    beside = f"{ratio:.2f} times faster than" if ratio >= 1 else f"{1 / ratio:.2f} times slower than"
    ours, theirs = seconds_text(comparison.latency), seconds_text(seconds)
    return f"{line}: a call takes {ours}, {beside} the best of PyTorch ({best}, {theirs})"


def _found_what(opt: Superoptimized) -> str:
    if not opt.is_one_program:
        coverage = opt.report.coverage
        if coverage is not None and (runs := coverage.without_mugraphs):
            return f"found no muGraph: {runs} run the function"
        programs = 0 if coverage is None else coverage.pieces
        return f"found kernels for {programs} program{'s' * (programs != 1)} in the function; PyTorch runs the rest"
    kernels, operators = sum(node.body is not None for node in opt.graph.nodes), len(opt.program.kernels())
    calls = len(opt.graph.kernels()) - kernels
    parts = f"{kernels} kernel{'s' * (kernels != 1)}" + (
        f" and {calls} call{'s' * (calls != 1)} of the array library" if calls else ""
    )
    return f"found {parts} for the program's {operators} operators"


def _print_search(opt: Superoptimized) -> None:
    """What the search covered, what it left out, and why candidates were dropped; its words are those of the glossary."""
    report = opt.report
    if report.search.get("refused"):
        print(report.exhausted_what)
        return
    print(f"searched {report.states} tensors in {report.seconds:.2f} s (words: docs/glossary.md)")
    print(f"  {'exhausted' if report.exhausted else 'not exhausted'}: {report.exhausted_what}")
    for words in report.search.get("not_searched", ()):
        print(f"  not searched: {words}")
    for line in dropped(report.rejected):
        print(f"  {line}")


def _nothing_found(opt: Superoptimized) -> str:
    """That the result runs what was there, what was compared, and whether the time ran out."""
    comparison, coverage = opt.report.comparison, opt.report.coverage
    if comparison is None or comparison.latency is None or EAGER not in comparison.baselines:
        reasons = () if coverage is None else dict.fromkeys(calls.reason for calls in coverage.left)
        why = "".join(f": {reason}" for reason in reasons if len(reasons) == 1 and reason != NOTHING_FASTER)
        return f"nothing better than the original program was found{why}; the result runs the original"
    ours, own = seconds_text(comparison.latency), seconds_text(comparison.baselines[EAGER])
    return (
        f"nothing clearly faster was found: calls take {ours}, those of the function itself {own}; the result calls the function"
    )


def dropped(rejections: Iterable[Rejection]) -> list[str]:
    """Why candidates were dropped: a line for those whose reasons differ in numbers only."""
    alike: dict[tuple[str, str], list[Rejection]] = {}
    for rejection in rejections:
        alike.setdefault((rejection.stage, _NUMBER.sub("", rejection.reason)), []).append(rejection)
    lines = []
    for first, *others in alike.values():
        count = "a candidate" if not others else f"{1 + len(others)} candidates"
        lines.append(f"dropped {count} ({first.stage}): {first.reason}{', and the like' if others else ''}")
    return lines


def print_result(opt: Superoptimized) -> None:
    """What runs the function where it is no program; of each program its muGraph, where its tensors lie, and the verdict."""
    if not opt.is_one_program:
        if opt.report.coverage is not None:
            print_coverage(opt.report.coverage)
        for number, result in enumerate(opt.results):
            print(f"\nprogram {number}")
            print_result(result)
        return
    print(opt.executable.placement)
    if packed := opt.executable.packed_bytes:
        print(f"\nweights are kept packed, too, which takes {packed / 2**20:.1f} MiB")
    print(f"\n{outcome_text(opt.certificate)}; {bound_text(opt.certificate)}")
    for constant, written in opt.certificate.readings:
        print(f"the constant {written!r} was read as {constant}")
    if opt.certificate.floats is not None:
        print(floats_text(opt.certificate.floats))
        if compared := compared_text(opt.best):
            print(compared)
    if opt.best.spot_check is not None:
        print(spot_check_text(opt.best.spot_check))
    if opt.best.latency is not None:
        predicted = "" if opt.best.cost is None else f", predicted {seconds_text(opt.best.cost)}"
        print(f"measured {seconds_text(opt.best.latency)} per call on {opt.target}{predicted}")
    elif opt.best.cost is not None:
        bound = seconds_text(roofline_seconds(opt.program, device_for(opt.target)))
        print(f"predicted {seconds_text(opt.best.cost)} per call on {opt.target}; no schedule can take less than {bound}")
    _print_resources(opt)


def _print_resources(opt: Superoptimized) -> None:
    for kernel in opt.executable.resources:
        blocks = " x ".join(map(str, kernel.grid))
        print(
            f"{kernel.name}: {blocks} blocks of {kernel.threads} threads, {kernel.registers} registers, "
            f"{kernel.shared_bytes} bytes of shared memory, {kernel.spill_bytes} bytes spilled"
            + "".join(f", {engine}" for engine in kernel.engines)
        )


def called_text(opt: Superoptimized) -> str:
    """How what is read back of a saved result is called, in a line."""
    names, constants = opt.input_names, len(opt.calling.constants)
    given = names[: len(names) - constants]
    brought = f"; it has {', '.join(names[len(given) :])} itself" if constants else ""
    record = opt.calling.signature_record
    line = f"what is read back is called with {_first_of(given)}{brought}"
    if record is None or not record.captured:
        return line
    own = given[: len(given) - len(record.captured)]
    return f"{line}; and after .bound_to(module) with {_first_of(own)}"


def _first_of(names: Sequence[str]) -> str:
    """Names in a line, or the first of many."""
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def print_coverage(coverage: Coverage) -> None:
    """What runs a function, as a table, most bytes first."""
    from rich.console import Console
    from rich.table import Table

    print(next(iter(coverage_lines(coverage))))  # no title, which would be broken at the width of the table
    table = Table()
    for column in ("what", "bytes", "operations", "time", "why"):
        number = column in ("bytes", "operations", "time")
        table.add_column(column, justify="right" if number else "left", no_wrap=column == "what", overflow="fold")
    for row in coverage_rows(coverage):
        table.add_row(row.what, row.bytes, row.flops, row.seconds, f"{row.why} ({row.where})" if row.where else row.why)
    Console().print(table)


def print_comparison(comparison: BaselineComparison) -> None:
    """The table of measured times; a ratio below 1 is a case mugraph loses."""
    from rich.console import Console
    from rich.table import Table

    print("median time per call, interleaved rounds in one process")
    table = Table()
    for column in ("", "time", "mugraph is"):
        table.add_column(column, justify="left" if not column else "right")
    if comparison.latency is not None:
        table.add_row(OURS, seconds_text(comparison.latency), "")
    for name, seconds in sorted(comparison.baselines.items(), key=lambda item: item[1]):
        ratio = comparison.ratios[name]
        table.add_row(name, seconds_text(seconds), f"{ratio:.2f}x faster" if ratio >= 1 else f"{1 / ratio:.2f}x slower")
    for name in comparison.unavailable:
        table.add_row(name, "could not run", "")
    Console().print(table)
    for name, reason in comparison.unavailable.items():
        print(f"{name}: {reason}")


def _bodies(graph: Graph) -> list[Graph]:
    """The block graphs of a kernel graph's graph-defined kernels, in order."""
    return [node.body for node in graph.kernels() if node.body is not None]


def _versions() -> dict[str, str]:
    versions = {"mugraph": __version__, "python": platform.python_version()}
    for package in ("numpy", "torch"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
