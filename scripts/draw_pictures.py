"""Draw the pictures of the documentation: `python scripts/draw_pictures.py [--search] [NAME ...]`.

docs/pictures/NAME.program.txt and NAME.mugraph.txt are graphs as text, and NAME.svg is the picture of both. `--search`
finds the muGraphs anew, for the description of an H100, before it draws; no GPU is needed. Without names all are drawn.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mugraph.ir.graph import Graph
from mugraph.ir.text import parse_graph
from mugraph.results.viewer import picture

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
DEVICE, DTYPE = "cuda:sm_90", "bf16"
BATCHES = {"rmsnorm": 16, "gated-mlp": 8, "lora": 16, "gqa": 8, "qknorm": 8, "ntrans": 8}
"""The workloads that are drawn, and the batch of each."""


def graphs(name: str) -> tuple[Graph, Graph]:
    """The program and the muGraph of a picture."""
    program, graph = (parse_graph((PICTURES / f"{name}.{kind}.txt").read_text()) for kind in ("program", "mugraph"))
    return program, graph


def drawn(name: str) -> str:
    """The text of the SVG file."""
    program, graph = graphs(name)
    kernels = len(graph.kernels())
    found = "one kernel" if kernels == 1 else f"{kernels} kernels"
    return picture(program, graph, ("The program, one operator after the other", f"The discovered muGraph, {found}"))


def searched(name: str) -> tuple[Graph, Graph]:
    """The program, and the best muGraph that a search finds for it."""
    from mugraph.devices import device_for
    from mugraph.frontend import trace
    from mugraph.frontend.workloads import workload
    from mugraph.lower.thread_graphs import construct
    from mugraph.search import search as search_mugraphs

    work = workload(name)
    program = trace(work.function(), work.inputs(BATCHES[name], DTYPE, "full")).graph
    best = search_mugraphs(program, device_for(DEVICE)).candidates[0].graph
    return program, construct(best)


def search(name: str) -> None:
    """Search for the muGraph, and keep it and the program as text."""
    for kind, graph in zip(("program", "mugraph"), searched(name), strict=True):
        (PICTURES / f"{name}.{kind}.txt").write_text(f"{graph}\n")


def main() -> None:
    """Draw pictures, after a search if asked for."""
    words = sys.argv[1:]
    for name in [word for word in words if word in BATCHES] or BATCHES:
        if "--search" in words:
            search(name)
        (PICTURES / f"{name}.svg").write_text(drawn(name))


if __name__ == "__main__":
    main()
