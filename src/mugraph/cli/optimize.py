"""`mugraph optimize`: discover, verify, compile, and time against PyTorch."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from mugraph.cli.arguments import (
    Batch,
    BlockOperators,
    Budget,
    Cache,
    Candidates,
    Compiled,
    Dtype,
    Evidence,
    Grids,
    Json,
    Kernels,
    Loops,
    Maps,
    MaxError,
    Norm,
    Seed,
    Size,
    Target,
    Traceback,
    Workers,
)

if TYPE_CHECKING:
    from mugraph.ir.graph import Graph
    from mugraph.search import SearchSpace
    from mugraph.selection.evidence import Evidence as KindOfEvidence
    from mugraph.selection.proposals import Engine
    from mugraph.support.progress import ProgressCallback


class _Settings(TypedDict):
    """What a search and a muGraph of the user's have in common."""

    seed: int | None
    profile: bool
    progress: ProgressCallback
    max_error: float
    evidence: KindOfEvidence
    baselines: bool


class _Wanted(TypedDict):
    """What is searched, and how much of what is found is compiled and proved."""

    search: Engine
    space: SearchSpace
    compiled: int | None
    candidates: int | None
    constants: Sequence[str]


def optimize(
    workload: Annotated[
        str,
        typer.Argument(metavar="WORKLOAD", help="rmsnorm, gated-mlp, lora, gqa, qknorm, ntrans, FILE.py:function, FILE.onnx."),
    ],
    batch: Batch = None,
    dtype: Dtype = None,
    size: Size = None,
    norm: Norm = None,
    target: Target = None,
    budget: Budget = None,
    json_output: Json = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="Save the result to this folder.")] = None,
    seed: Seed = None,
    max_error: MaxError = 2**-40,
    evidence: Evidence = "bounded",
    no_profile: Annotated[bool, typer.Option("--no-profile", help="Measure nothing; rank by predicted time.")] = False,
    search: Annotated[
        str, typer.Option(metavar="ENGINE", help="closure, or enumerate (Algorithm 1, tiny programs).")
    ] = "closure",
    kernels: Kernels = None,
    block_operators: BlockOperators = None,
    grids: Grids = None,
    loops: Loops = None,
    maps: Maps = None,
    graph: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Search nothing: prove and compile the muGraph whose text is in this file."),
    ] = None,
    constant: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="An input that is the same in most calls: it may be kept packed.")
    ] = None,
    workers: Workers = "1",
    compiled: Compiled = None,
    candidates: Candidates = None,
    cache: Cache = None,
    traceback: Traceback = False,
) -> int:
    """Discover, verify and compile fused kernels."""
    from mugraph.cli.arguments import processes_of

    _check_options(workload, target, output, evidence, search, cache)
    number = processes_of(workers)
    from mugraph.api import optimize_graph, superoptimize
    from mugraph.cli.arguments import resolve, space_of
    from mugraph.cli.output import optimization_json, print_optimization
    from mugraph.selection.proposals import engine_of
    from mugraph.selection.whole_programs import evidence_of
    from mugraph.support.progress import Reporter

    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no part of the answer
        subject = resolve(workload, batch, dtype, size, norm)
        space = space_of(kernels, block_operators, grids, loops, maps or ())
        written = None if graph is None else _text_of(graph)
        with Reporter() as reporter:
            given = (subject.function, subject.inputs, target, budget)
            settings = _Settings(
                seed=seed,
                profile=not no_profile,
                progress=reporter,
                max_error=max_error,
                evidence=evidence_of(evidence),
                baselines=not no_profile,
            )
            if written is not None:
                numbers = {"--compiled": compiled, "--candidates": candidates}
                _refuse_limits(space, search, workers, cache, constant, numbers)
                opt = optimize_graph(_parsed(written, graph), *given, **settings)
            else:
                engine, named = engine_of(search), constant or ()
                wanted = _Wanted(search=engine, space=space, compiled=compiled, candidates=candidates, constants=named)
                opt = superoptimize(*given, workers=number, cache=cache, **wanted, **settings)
            opt.origin.update(subject.origin)
            if output is not None:
                opt.save(output)
    comparison = opt.report.comparison
    if json_output:
        print(json.dumps(optimization_json(subject, opt, comparison)))
    else:
        print_optimization(subject, opt, comparison, output)
    return 0 if opt.found else 1


def _check_options(workload: str, target: str | None, output: Path | None, evidence: str, search: str, cache: str | None) -> None:
    """Raise what is wrong with options by themselves, before anything that takes seconds to load."""
    from mugraph.cli.arguments import check_subject, check_word
    from mugraph.devices import device_for
    from mugraph.support.store import Mode

    check_word("--evidence", evidence, ("bounded", "tested"))
    check_word("--search", search, ("closure", "enumerate"))
    if cache is not None:
        check_word("--cache", cache, tuple(Mode))
    if target is not None:
        device_for(target)
    if output is not None:
        from mugraph.results.places import check_replaceable

        check_replaceable(output)
    check_subject(workload)


def _text_of(file: Path) -> str:
    """The text in a file; raises InvalidInput for what is none."""
    from mugraph.errors import InvalidInput

    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror or error}; give the file of a muGraph's text") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{file} is not UTF-8 text; give the file of a muGraph's text") from None


def _parsed(text: str, file: Path | None) -> Graph:
    """The muGraph that the text of a file stands for; raises InvalidInput, naming the file, where it breaks the grammar."""
    from mugraph.errors import InvalidInput
    from mugraph.ir.text import parse_graph

    try:
        return parse_graph(text)
    except InvalidInput as error:
        raise InvalidInput(f"{file}: {error}") from None


def _refuse_limits(
    space: SearchSpace,
    search: str,
    workers: str,
    cache: str | None,
    constants: Sequence[str] | None,
    numbers: Mapping[str, int | None],
) -> None:
    """Raise InvalidInput where a muGraph is given beside what would have been searched."""
    from mugraph.errors import InvalidInput

    given = {"limits of a space": bool(space), "--search": search != "closure", "--workers": workers != "1"}
    given |= {"--cache": cache is not None, "--constant": bool(constants)}
    given |= {option: number is not None for option, number in numbers.items()}
    for option, is_given in given.items():
        if is_given:
            raise InvalidInput(f"--graph gives the muGraph, and nothing is searched: leave out {option}")
