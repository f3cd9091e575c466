"""The layers that docs/architecture.md draws are those of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import mugraph

PACKAGES = Path(mugraph.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"
WITHOUT_A_LAYER = {"trials"}
"""What nobody runs but tests and benchmarks."""


def drawn() -> dict[str, set[str]]:
    """The packages that each may import, by the first diagram of the page: all that arrows lead to."""
    diagram = re.search(r"```mermaid\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert diagram is not None
    below: dict[str, set[str]] = {}
    for line in diagram.group(1).splitlines():
        names = [part.split("[")[0].strip() for part in line.split("-->")]
        for upper, lower in pairwise(names):
            below.setdefault(upper, set()).add(lower)
    for middle in TopologicalSorter(below).static_order():  # the lowest first; raises CycleError
        below[middle] = {lowest for lower in below.get(middle, set()) for lowest in {lower} | below[lower]}
    return below


def imports() -> Iterator[tuple[str, str]]:
    """(importing file, imported package) wherever a package of mugraph imports another."""
    for package in packages():
        for file in sorted((PACKAGES / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module is not None:
                    names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                for imported in {name.split(".")[1] for name in names if name.startswith("mugraph.")} & packages():
                    if imported != package:
                        yield str(file.relative_to(PACKAGES)), imported


def packages() -> set[str]:
    return {file.parent.name for file in PACKAGES.glob("*/__init__.py")}


def test_the_diagram_knows_every_package() -> None:
    assert packages() - WITHOUT_A_LAYER <= drawn().keys()


def test_packages_import_only_what_arrows_lead_to() -> None:
    below = drawn()
    found = [(file, imported) for file, imported in imports() if file.partition("/")[0] not in WITHOUT_A_LAYER]
    assert len(found) > 100
    assert [pair for pair in found if pair[1] not in below[pair[0].partition("/")[0]]] == []
