"""`mugraph optimize`: discover, verify, compile, and time against PyTorch."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from mugraph.cli.options import Batch, Budget, Cache, Dtype, Json, MaxError, Norm, Seed, Size, Target, Traceback, Workers


def optimize(
    workload: Annotated[
        str,
        typer.Argument(metavar="WORKLOAD", help="rmsnorm, gated-mlp, lora, gqa, qknorm, ntrans, FILE.py:function, FILE.onnx."),
    ],
    batch: Batch = None,
    dtype: Dtype = None,
    size: Size = None,
    norm: Norm = None,
    target: Target = "cpu",
    budget: Budget = None,
    json_output: Json = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="Save the result to this folder.")] = None,
    seed: Seed = 0,
    max_error: MaxError = 2**-40,
    no_profile: Annotated[bool, typer.Option("--no-profile", help="Measure nothing; rank by predicted time.")] = False,
    search: Annotated[
        str, typer.Option(metavar="ENGINE", help="closure, or enumerate (Algorithm 1, tiny programs).")
    ] = "closure",
    workers: Workers = "1",
    cache: Cache = None,
    traceback: Traceback = False,
) -> int:
    """Discover, verify and compile fused kernels."""
    from mugraph.api import engine_of, superoptimize
    from mugraph.baselines import compare
    from mugraph.cli.subjects import resolve
    from mugraph.cli.summary import optimization_json, print_optimization
    from mugraph.folder import check_replaceable
    from mugraph.progress import Event, Reporter

    with contextlib.redirect_stdout(sys.stderr):  # what the user's code prints is no part of the answer
        subject = resolve(workload, batch, dtype, size, norm)
        if output is not None:
            check_replaceable(output)
        with Reporter() as reporter:
            opt = superoptimize(
                subject.function,
                subject.inputs,
                target,
                budget,
                seed=seed,
                profile=not no_profile,
                progress=reporter,
                max_error=max_error,
                search=engine_of(search),
                workers=int(workers) if workers.isdecimal() else workers,
                cache=cache,
            )
            opt.origin.update(subject.origin)
            if output is not None:
                opt.save(output)
            comparison = None
            machine = opt.executable.machine
            if not no_profile and subject.inputs is not None and machine.available and not opt.report.interrupted:
                reporter(Event("compare", "compiling and timing the PyTorch baselines", opt.report.total_seconds))
                inputs = machine.moved(subject.inputs)
                comparison = compare(functools.partial(opt, *inputs), subject.function, inputs, machine=machine)
    if json_output:
        print(json.dumps(optimization_json(subject, opt, comparison)))
    else:
        print_optimization(subject, opt, comparison, output)
    return 0 if opt.found else 1
