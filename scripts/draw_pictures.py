"""Draw the pictures of the documentation: `python scripts/draw_pictures.py [--search]`.

docs/pictures/NAME.program.txt and NAME.mugraph.txt are graphs as text, and NAME.svg is the picture of both. `--search`
finds the muGraphs anew, for the description of an H100, before it draws; no GPU is needed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mugraph.ir.graph import Graph
from mugraph.ir.text import parse_graph
from mugraph.results.viewer import picture

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
HEADINGS = ("The program, one operator after the other", "The discovered muGraph, one kernel")
WORKLOAD, DEVICE, BATCH, DTYPE = "rmsnorm", "cuda:sm_90", 16, "bf16"


def graphs(name: str) -> tuple[Graph, Graph]:
    """The program and the muGraph of a picture."""
    program, graph = (parse_graph((PICTURES / f"{name}.{kind}.txt").read_text()) for kind in ("program", "mugraph"))
    return program, graph


def drawn(name: str) -> str:
    """The text of the SVG file."""
    return picture(*graphs(name), HEADINGS)


def search() -> None:
    """Search for the muGraph, and keep it and the program as text."""
    from mugraph.devices import device_for
    from mugraph.frontend import trace
    from mugraph.frontend.workloads import workload
    from mugraph.lower.thread_graphs import construct
    from mugraph.search import search as search_mugraphs

    work = workload(WORKLOAD)
    program = trace(work.function(), work.inputs(BATCH, DTYPE, "full")).graph
    best = search_mugraphs(program, device_for(DEVICE)).candidates[0].graph
    for kind, graph in (("program", program), ("mugraph", construct(best))):
        (PICTURES / f"{WORKLOAD}.{kind}.txt").write_text(f"{graph}\n")


def main() -> None:
    """Draw every picture, after a search if asked for."""
    if "--search" in sys.argv[1:]:
        search()
    (PICTURES / f"{WORKLOAD}.svg").write_text(drawn(WORKLOAD))


if __name__ == "__main__":
    main()
