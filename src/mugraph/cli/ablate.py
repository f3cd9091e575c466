"""`mugraph ablate`: what each part of mugraph contributes, by leaving it out."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from mugraph.cli.arguments import Batch, Dtype, Grids, Json, Loops, Size, Traceback

app = typer.Typer(help="Measure what each part contributes, by leaving it out.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def frame() -> None:
    """Measure what each part contributes, by leaving it out."""


@app.command("search")
def search(
    limits: Annotated[list[int] | None, typer.Option("--limit", metavar="N", help="Limits of block operators (5 to 11).")] = None,
    seconds: Annotated[float, typer.Option(metavar="S", help="Time limit of a cell.")] = 600.0,
    shape: Annotated[
        tuple[int, int, int], typer.Option(metavar="ROWS HIDDEN COLUMNS", help="Sizes of the RMSNorm that is searched.")
    ] = (16, 1024, 4096),
    grids: Grids = "16,32,64,128,256",
    loops: Loops = "1,4,8,16,32,64",
    target: Annotated[str, typer.Option(metavar="TARGET", help="cpu, cuda:sm_80, cuda:sm_90, ...")] = "cuda:sm_80",
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Processes where there may be several.")] = 2,
    json_output: Json = False,
    traceback: Traceback = False,
) -> int:
    """The paper's Table 4: both engines against the limit of block operators."""
    from mugraph.cli.arguments import space_of
    from mugraph.experiments.search_ablation import Ablation, table, to_json
    from mugraph.support.progress import Event, Reporter

    space = space_of(None, None, grids, loops, ())
    ablation = Ablation(shape, seconds, workers, target, space.allowed_grids or (), tuple(space.loops or ()))
    cells = []
    spent = 0.0
    with Reporter() as reporter:
        for limit, name, cell in ablation.run(limits or range(5, 12)):
            cells.append((limit, name, cell))
            spent += cell.seconds
            reporter(Event(f"{limit} operators, {name}", str(cell), spent))
    print(json.dumps(to_json(ablation, cells)) if json_output else table(cells))
    return 0


@app.command("optimizer")
def optimizer(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", help="As of `mugraph optimize`.")] = "gqa",
    batch: Batch = 1,
    dtype: Dtype = "bf16",
    size: Size = None,
    target: Annotated[str, typer.Option(metavar="TARGET", help="cuda:sm_80, cuda:sm_90, ...")] = "cuda:sm_80",
    json_output: Json = False,
    traceback: Traceback = False,
) -> int:
    """The paper's Figure 13: what the best kernels take when one optimization is left out."""
    from mugraph.cli.arguments import resolve
    from mugraph.devices import device_for
    from mugraph.errors import InvalidInput
    from mugraph.experiments.optimizer_ablation import ablate, table, to_json
    from mugraph.frontend import trace
    from mugraph.search import search as search_program

    subject = resolve(workload, batch, dtype, size, None)
    if subject.inputs is None:
        raise InvalidInput(f"{workload} is not a PyTorch function; name a workload or FILE.py:function")
    candidates = search_program(trace(subject.function, subject.inputs).graph, device_for(target)).candidates
    best = next((candidate.graph for candidate in candidates if any(node.body for node in candidate.graph.kernels())), None)
    if best is None:
        raise InvalidInput(f"no kernel is generated for {workload} on {target}; there is nothing to leave out")
    rows = list(ablate(best, target))
    print(json.dumps({"workload": subject.name, "target": target, **to_json(rows)}) if json_output else table(rows))
    return 0
