"""The layers that docs/architecture.md draws are those of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

import mugraph
import mugraph.frontend

ROOT = Path(mugraph.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"
FOR_ALL = {"errors", "version"}
"""What every module may import."""
NOT_DRAWN = {"testing"}
"""What nobody runs but tests and benchmarks: it may import all."""
FACES = {"__init__", "__main__"}
"""Names for what stands in other modules."""


def drawn() -> dict[str, set[str]]:
    """What each box may import, by the first diagram of the page: all that arrows lead to."""
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


def modules() -> dict[str, Path]:
    """Every module of mugraph by its name without `mugraph.`; packages have the names of their folders."""
    files = sorted(ROOT.rglob("*.py"))
    names = (".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files)
    return dict(zip(names, files, strict=True))


def box_of(module: str) -> str:
    """The box of the diagram that a module stands in."""
    return module.partition(".")[0]


def imports(module: str, known: dict[str, Path]) -> Iterator[str]:
    """The modules of mugraph that one imports anywhere in its text, late imports and those for type checkers included."""
    for node in ast.walk(ast.parse(known[module].read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name.removeprefix("mugraph.") in known else node.module for name in inside]
        yield from (name.removeprefix("mugraph.") for name in names if name.startswith("mugraph."))


def test_the_diagram_knows_every_package_and_module() -> None:
    boxes = {box_of(module) for module in modules()} - FOR_ALL - NOT_DRAWN - FACES
    assert boxes == drawn().keys()


def test_modules_import_only_what_arrows_lead_to() -> None:
    below, known = drawn(), modules()
    pairs = [(module, name) for module in known if box_of(module) not in NOT_DRAWN | FACES for name in imports(module, known)]
    assert len(pairs) > 1000
    wrong = [
        (module, name)
        for module, name in pairs
        if box_of(name) not in FOR_ALL | {box_of(module)} and box_of(name) not in below.get(box_of(module), ())
    ]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    known = modules()
    graph = {module: {name for name in imports(module, known) if name != module} for module in known if module not in FACES}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_few_modules_stand_at_the_root() -> None:
    assert {module for module, file in modules().items() if file.parent == ROOT and file.name != "__init__.py"} <= {
        *("__main__", "api"),
        *FOR_ALL,
    }


def parts_of(package: str) -> dict[str, set[str]]:
    """The packages inside of one, each with those beside it that its modules import."""
    known, place = modules(), len(package.split("."))
    parts: dict[str, set[str]] = {}
    for module, file in known.items():
        if module.startswith(f"{package}.") and file.parent != known[package].parent:
            inside = parts.setdefault(module.split(".")[place], set())
            inside |= {name.split(".")[place] for name in imports(module, known) if name.startswith(f"{package}.")}
    return {part: names & parts.keys() - {part} for part, names in parts.items()}


def test_parts_of_the_frontend_import_only_those_that_stand_above_them_in_its_list() -> None:
    listed = re.findall(r"^- `(\w+)`:", mugraph.frontend.__doc__ or "", re.MULTILINE)
    parts = parts_of("frontend")
    assert sorted(listed) == sorted(parts)
    assert {part: names - set(listed[: listed.index(part)]) for part, names in parts.items()} == {part: set() for part in parts}


FRONTEND = ("calls", "onnx", "operators", "partitioning", "recording", "rewriting", "symbolic_sizes")


@pytest.mark.parametrize("package", ["frontend", *(f"frontend.{part}" for part in FRONTEND), "ir", "ir.ops"])
def test_packages_of_many_modules_say_what_is_in_them(package: str) -> None:
    known = modules()
    said = ast.get_docstring(ast.parse(known[package].read_text())) or ""
    inside = {name.removeprefix(f"{package}.").partition(".")[0] for name in known if name.startswith(f"{package}.")}
    assert inside <= set(re.findall(r"`(\w+)`", said))
