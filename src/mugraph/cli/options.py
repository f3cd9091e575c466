"""Options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(slots=True)
class Settings:
    """What `main` needs to know after a command failed."""

    traceback: bool = False


def _show_traceback(context: typer.Context, value: bool) -> bool:
    context.find_root().obj.traceback = value
    return value


Traceback = Annotated[
    bool, typer.Option("--traceback", help="Show the Python traceback of an error.", callback=_show_traceback, is_eager=True)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Workers = Annotated[str, typer.Option(metavar="N|ray", help="Processes that search, or a Ray cluster: ray, or ray://HOST:PORT.")]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="N", help="Seed of every random choice, to replay one (default: a fresh one, which is recorded)."
    ),
]
Evidence = Annotated[
    str,
    typer.Option(
        metavar="bounded|tested",
        help="What kernels are kept for: a proof with a bound on its error, or also agreement in tests without one.",
    ),
]
MaxError = Annotated[
    float,
    typer.Option(metavar="P", show_default="2^-40", help="Largest probability that a wrong result passes verification."),
]
Batch = Annotated[int | None, typer.Option(min=1, metavar="N", help="Batch size of a built-in workload (default 8).")]
Dtype = Annotated[str | None, typer.Option(metavar="fp16|bf16|fp32", help="Element type of a built-in workload (default fp32).")]
Size = Annotated[
    str | None, typer.Option(metavar="NAME", help="Size of a built-in workload: full (default), figure (rmsnorm) or small.")
]
Norm = Annotated[
    str | None, typer.Option(metavar="rms|layer", help="Normalisation of qknorm: rms (default), or layer as in the paper.")
]
Kernels = Annotated[int | None, typer.Option(metavar="N", help="Search at most so many kernels.")]
BlockOperators = Annotated[int | None, typer.Option(metavar="N", help="Search block graphs of at most so many operators.")]
Grids = Annotated[str | None, typer.Option(metavar="LIST", help="Search these grids only, such as 128,8x16 (1: a single block).")]
Loops = Annotated[str | None, typer.Option(metavar="LIST", help="Search these for-loop ranges only, such as 1,16 (1: no loop).")]
Maps = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="NAME{MAP}",
        help="How grid and for-loop cut an input, or the output as `return`, such as 'x{x<->phi, i<->1}'; may be repeated.",
    ),
]
Cache = Annotated[
    str | None,
    typer.Option(metavar="MODE", help="Kept results: on, off, read-only, force (default: what $MUGRAPH_CACHE says, else on)."),
]
Target = Annotated[str, typer.Option(metavar="TARGET", help="What to optimize for: cpu, cuda:sm_90, triton:sm_90, ...")]
Budget = Annotated[
    float | None, typer.Option(min=0.0, metavar="SECONDS", help="Time the whole call may take (default: no limit).")
]
TrustSources = Annotated[
    bool, typer.Option("--trust-sources", help="Run the saved sources as they are, of whatever version and not compared.")
]
