"""`mugraph ablate`: what each part of mugraph contributes, by leaving it out."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from mugraph.cli.options import Json, Traceback

app = typer.Typer(help="Measure what each part contributes, by leaving it out.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def frame() -> None:
    """Measure what each part contributes, by leaving it out."""


@app.command("search")
def search(
    limits: Annotated[list[int] | None, typer.Option("--limit", metavar="N", help="Limits of block operators (5 to 11).")] = None,
    seconds: Annotated[float, typer.Option(metavar="S", help="Time limit of a cell.")] = 60.0,
    shape: Annotated[
        tuple[int, int, int], typer.Option(metavar="ROWS HIDDEN COLUMNS", help="Sizes of the RMSNorm that is searched.")
    ] = (4, 12, 10),
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Processes where there may be several.")] = 2,
    json_output: Json = False,
    traceback: Traceback = False,
) -> int:
    """The paper's Table 4: both engines against the limit of block operators."""
    from mugraph.ablation import Ablation, table, to_json
    from mugraph.progress import Event, Reporter

    ablation = Ablation(shape, seconds, workers)
    cells = []
    spent = 0.0
    with Reporter() as reporter:
        for limit, name, cell in ablation.run(limits or range(5, 12)):
            cells.append((limit, name, cell))
            spent += cell.seconds
            reporter(Event(f"{limit} operators, {name}", str(cell), spent))
    print(json.dumps(to_json(ablation, cells)) if json_output else table(cells))
    return 0
