"""`mugraph rebuild`: a saved result for another target, such as the GPU of the machine that it was taken to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mugraph.cli.arguments import Budget, Evidence, Json, MaxError, Seed, Traceback


def rebuild(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder written by `mugraph optimize -o` or `opt.save`.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OTHER", help="Save the result to this folder (also DIR).")],
    target: Annotated[str, typer.Option(metavar="TARGET", help="What to compile for (default: the GPU that is here).")] = "cuda",
    budget: Budget = None,
    seed: Seed = None,
    max_error: MaxError = 2**-40,
    evidence: Evidence = "bounded",
    no_profile: Annotated[bool, typer.Option("--no-profile", help="Measure nothing.")] = False,
    json_output: Json = False,
    traceback: Traceback = False,
) -> int:
    """Prove and compile the muGraph of a saved result for another target; nothing is searched."""
    from mugraph.cli.arguments import check_word
    from mugraph.devices import device_for
    from mugraph.results.places import check_replaceable

    check_word("--evidence", evidence, ("bounded", "tested"))
    device_for(target)
    check_replaceable(output)
    import mugraph
    from mugraph.cli.output import called_text, print_result, result_json
    from mugraph.selection.whole_programs import evidence_of
    from mugraph.support.progress import Reporter

    with Reporter() as reporter:
        opt = mugraph.rebuild(
            folder,
            target,
            budget,
            seed=seed,
            profile=not no_profile,
            progress=reporter,
            max_error=max_error,
            evidence=evidence_of(evidence),
        )
    opt.save(output)
    if json_output:
        print(json.dumps(result_json(opt)))
    else:
        print_result(opt)
        print(f"\nsaved to {output} for {opt.target}; read it back with mugraph.load({str(output)!r})")
        print(called_text(opt))
    return 0
