"""What the commands print: a result as text with a table of times, and as one JSON object."""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mugraph import __version__
from mugraph.baselines import OURS, Comparison
from mugraph.cli.subjects import Subject
from mugraph.devices import device_for, roofline_seconds
from mugraph.ir.graph import Graph
from mugraph.result import Superoptimized
from mugraph.verifier import Certificate, FloatReport

if TYPE_CHECKING:
    from mugraph.runtime.cuda.figures import KernelFigures


def optimization_json(subject: Subject, opt: Superoptimized, comparison: Comparison | None) -> dict[str, Any]:
    """The JSON object of `mugraph optimize --json`."""
    return {"workload": subject.name, **result_json(opt), **comparison_json(comparison)}


def result_json(opt: Superoptimized) -> dict[str, Any]:
    """A result as JSON values; times in seconds."""
    report = opt.report
    return {
        "found": opt.found,
        "recalled": opt.report.recalled,
        "kernels": len(opt.graph.kernels()),
        "block_operators": [body.operator_count() for body in _bodies(opt.graph)],
        "search_seconds": report.seconds,
        "first_found_seconds": report.first_found_seconds,
        "states": report.states,
        "exhausted": report.exhausted,
        "exhausted_what": report.exhausted_what,
        "verified": opt.certificate.accepted,
        "error_bound": opt.certificate.error_bound,
        "max_relative_error": opt.best.max_relative_error,
        "predicted": opt.best.cost,
        "latency": opt.best.latency,
        "roofline": roofline_seconds(opt.program, device_for(opt.target)),
        "gpu_kernels": [asdict(figures) for figures in _gpu_figures(opt)],
        "candidates": len(opt.candidates),
        "rejected": [f"{rejection.stage}: {rejection.reason}" for rejection in report.rejected],
        "compile_seconds": report.compile_seconds,
        "verify_seconds": report.verify_seconds,
        "measure_seconds": report.measure_seconds,
        "target": opt.target,
        "dtype": str(opt.program.inputs()[0].output.dtype),
        "shapes": {str(node["name"]): list(node.output.shape) for node in opt.program.inputs()},
        "versions": _versions(),
    }


def comparison_json(comparison: Comparison | None) -> dict[str, Any]:
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


def print_optimization(subject: Subject, opt: Superoptimized, comparison: Comparison | None, output: Path | None) -> None:
    """The human report of `mugraph optimize`."""
    report = opt.report
    print(f"{subject.name}: {subject.description}")
    searched = "exhausted" if report.exhausted else "not exhausted"
    print(f"searched {report.states} tensors in {report.seconds:.2f} s ({searched}: {report.exhausted_what})")
    if report.recalled:
        print("by an earlier run, whose result was kept and checked again; --cache force searches anew")
    for padding in report.search.get("paddings", ()):
        print(padding)
    if not opt.found:
        print("nothing better than the original program was found; the result runs the original")
    for rejection in report.rejected:
        print(f"dropped a candidate ({rejection.stage}): {rejection.reason}")
    print()
    print_result(opt)
    if comparison is not None:
        print()
        print_comparison(comparison)
    if output is not None:
        print(f"\nsaved to {output}; read it back with mugraph.load({str(output)!r}) or `mugraph show {output}`")


def print_result(opt: Superoptimized) -> None:
    """The muGraph and the verdict on it."""
    print(opt.graph)
    verdict = "verified equivalent to the program at full size" if opt.certificate.accepted else "NOT verified"
    print(f"\n{verdict}; {bound_text(opt.certificate)}")
    if opt.certificate.floats is not None:
        print(floats_text(opt.certificate.floats))
    if opt.best.latency is not None:
        predicted = "" if opt.best.cost is None else f", predicted {_time(opt.best.cost)}"
        print(f"measured {_time(opt.best.latency)} per call on {opt.target}{predicted}")
    elif opt.best.cost is not None:
        bound = roofline_seconds(opt.program, device_for(opt.target))
        print(f"predicted {_time(opt.best.cost)} per call on {opt.target}; no schedule can take less than {_time(bound)}")
    _print_gpu_figures(opt)


def _gpu_figures(opt: Superoptimized) -> Sequence[KernelFigures]:
    """What the generated kernels take of a GPU; empty for other targets."""
    if not opt.target.startswith("cuda:"):
        return ()
    from mugraph.runtime.cuda.figures import kernel_figures

    return kernel_figures(opt.executable)


def _print_gpu_figures(opt: Superoptimized) -> None:
    for kernel in _gpu_figures(opt):
        blocks = " x ".join(map(str, kernel.grid))
        print(
            f"{kernel.name}: {blocks} blocks of {kernel.threads} threads, {kernel.registers} registers, "
            f"{kernel.shared_bytes} bytes of shared memory, {kernel.spill_bytes} bytes spilled"
            + "".join(f", {engine}" for engine in kernel.engines)
        )


def print_comparison(comparison: Comparison) -> None:
    """The table of measured times; a ratio below 1 is a case mugraph loses."""
    from rich.console import Console
    from rich.table import Table

    print("median time per call, interleaved rounds in one process")
    table = Table()
    for column in ("", "time", "mugraph is"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row(OURS, _time(comparison.latency), "")
    for name, seconds in sorted(comparison.baselines.items(), key=lambda item: item[1]):
        ratio = comparison.ratios[name]
        table.add_row(name, _time(seconds), f"{ratio:.2f}x faster" if ratio >= 1 else f"{1 / ratio:.2f}x slower")
    for name in comparison.unavailable:
        table.add_row(name, "could not run", "")
    Console().print(table)
    for name, reason in comparison.unavailable.items():
        print(f"{name}: {reason}")


def bound_text(certificate: Certificate) -> str:
    """A certificate's error bound in words."""
    if certificate.error_bound is None:
        return certificate.reason
    if certificate.error_bound == 0:
        return "a wrong graph cannot pass"
    return f"a wrong graph would pass with probability at most 2^{math.log2(certificate.error_bound):.0f}"


def floats_text(floats: FloatReport) -> str:
    """What the comparison with float64 found, in words."""
    ratio = "" if floats.error_ratio is None else f", {floats.error_ratio:.1f} times the original program's own"
    worst = max(floats.scales, key=lambda entry: max(entry.errors))
    lines = [
        f"largest error against float64, relative to the output: {floats.max_relative_error:.1e}{ratio}",
        f"of {len(floats.scales)} kinds of inputs the worst is {worst.inputs}: {max(worst.errors):.1e}",
    ]
    if floats.blamed:
        lines.append(f"most of it: {floats.blamed}")
    return "\n".join(lines)


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


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1 or unit == "us":
            return f"{seconds * scale:.3g} {unit}"
    raise AssertionError("unreachable: microseconds take every rest")
