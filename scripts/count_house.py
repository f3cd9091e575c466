"""How the source tree stands, in numbers: files, layers, circles, names that repeat, and in how many places an operator is known.

    python scripts/count_house.py                    # of this checkout
    python scripts/count_house.py OTHER/src/mugraph  # of another one, to compare
    python scripts/count_house.py --json

Nothing is imported: the files are read. A *circle* is a set of modules that import each other, late imports and those for type
checkers included. A *comparison* holds an operator's name against something, as in `op == "matmul"` or `case "sum":`, outside
of the operator tables (`ir/ops/` and the checker's) and of what tests are made with. It is *explained* where a comment
`# by name: ...` on its line, or above it or a statement around it, says why the operator's row cannot say it. File and class
names may stand once in every target's own folder.
"""

from __future__ import annotations

import argparse
import ast
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parent.parent / "src" / "mugraph"
BOUNDARIES = ("graph_defined",)
"""Operators without a row."""
TABLES = ("ir/ops", "checker/", "testing/", "trials/")
TARGETS = ("cuda", "triton")
SAID = "# by name:"


def main() -> None:
    """Print the counts of the tree that is named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, help="a folder `mugraph` of sources")
    parser.add_argument("--json", action="store_true", help="one JSON object, with what was counted")
    options = parser.parse_args()
    found = counts(options.root)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        shown = f"{len(value)}: {', '.join(map(str, value))}" if isinstance(value, (list, dict)) else str(value)
        print(f"{name:>40}  {shown if len(shown) < 200 else shown[:197] + '...'}")


def counts(root: Path) -> dict[str, int | list[str] | dict[str, int]]:
    """Everything that is counted, by what it is called."""
    trees = {file: ast.parse(file.read_text()) for file in sorted(root.rglob("*.py"))}
    modules = {_module(file, root): tree for file, tree in trees.items()}
    lines = [len(file.read_text().splitlines()) for file in trees]
    shared = {file: tree for file, tree in trees.items() if not _in_folder_of_a_target(file, root)}
    compared = {str(file.relative_to(root)): _comparisons(tree, _operators(root)) for file, tree in trees.items()}
    outside = {file: nodes for file, nodes in compared.items() if nodes and not file.startswith(TABLES)}
    unexplained = {file: _unexplained(trees[root / file], nodes, (root / file).read_text()) for file, nodes in outside.items()}
    return {
        "files": len(trees),
        "lines": sum(lines),
        "files of at most 25 lines": sum(count <= 25 for count in lines),
        "modules at the root": [file.stem for file in trees if file.parent == root],
        "circles": _circles(modules),
        "packages that import each other": _circles(_rooms(modules)),
        "file names used more than once": _repeated(file.name for file in shared if file.name != "__init__.py"),
        "class names used more than once": _repeated(_classes(shared)),
        "comparisons with operators' names": sum(map(len, outside.values())),
        "of these, not explained": {file: number for file, number in unexplained.items() if number},
        "files that compare operators' names": len(outside),
        "files that name a GPU target": _naming_targets(trees, root),
    }


def _module(file: Path, root: Path) -> str:
    return ".".join(("mugraph", *file.relative_to(root).with_suffix("").parts)).removesuffix(".__init__")


def _imports(tree: ast.AST, known: Mapping[str, object]) -> Iterator[str]:
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else node.module for name in inside]
        yield from (name for name in names if name in known)


def _rooms(modules: Mapping[str, ast.AST]) -> dict[str, list[str]]:
    """Packages and root modules, each with those that it imports."""
    rooms: dict[str, list[str]] = {}
    for module, tree in modules.items():
        ours = ".".join(module.split(".")[:2])
        theirs = (".".join(name.split(".")[:2]) for name in _imports(tree, modules))
        rooms.setdefault(ours, []).extend(name for name in theirs if name != ours)
    return rooms


def _circles(graph: Mapping[str, ast.AST] | Mapping[str, list[str]]) -> list[str]:
    """Circles, found one by one: of each, one import is left out before the next is looked for."""
    edges = {name: set(links if isinstance(links, list) else _imports(links, graph)) - {name} for name, links in graph.items()}
    circles = []
    while True:
        try:
            TopologicalSorter(edges).prepare()
        except CycleError as error:
            circle = list(reversed(error.args[1]))  # each imports the next
            circles.append(" > ".join(circle))
            edges[circle[0]].discard(circle[1])
            continue
        return circles


def _repeated(names: Iterator[str]) -> dict[str, int]:
    return {name: number for name, number in Counter(names).most_common() if number > 1}


def _classes(trees: Mapping[Path, ast.AST]) -> Iterator[str]:
    for tree in trees.values():
        yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))


def _operators(root: Path) -> frozenset[str]:
    """The names of the rows of the operator table: the first argument of calls that make one."""
    makers = {"Operator", "_elementwise", "opaque", "_data", "_view"}
    (table,) = (file for file in (root / "ir" / "ops" / "table.py", root / "ir" / "ops.py") if file.exists())  # now, and of old
    calls = (node for node in ast.walk(ast.parse(table.read_text())) if isinstance(node, ast.Call))
    firsts = (call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id in makers and call.args)
    return frozenset(arg.value for arg in firsts if isinstance(arg, ast.Constant) and isinstance(arg.value, str)) | {*BOUNDARIES}


def _in_folder_of_a_target(file: Path, root: Path) -> bool:
    place = file.relative_to(root).parts
    return place[0] == "targets" and len(place) > 2


def _comparisons(tree: ast.AST, names: frozenset[str]) -> list[ast.expr]:
    """The comparisons, and the values of cases of a match, that hold something against an operator's name."""
    nodes = list(ast.walk(tree))
    compares = (node for node in nodes if isinstance(node, ast.Compare))
    cases = (node.value for node in nodes if isinstance(node, ast.MatchValue))
    return [
        *(node for node in compares if any(_holds(part, names) for part in (node.left, *node.comparators))),
        *(value for value in cases if _holds(value, names)),
    ]


def _unexplained(tree: ast.AST, comparisons: Sequence[ast.expr], text: str) -> int:
    """How many of the comparisons have no comment `by name:` on their line, or above them or a statement or case around them."""
    lines = text.splitlines()
    said: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.match_case, ast.expr)):
            around = node.pattern if isinstance(node, ast.match_case) else node
            first, last = (
                around.lineno,
                max(getattr(part, "end_lineno", 0) for part in ast.walk(node) if hasattr(part, "end_lineno")),
            )
            if _said_above(lines, first):
                said.update(range(first, last + 1))
    return sum(SAID not in lines[node.lineno - 1] and node.lineno not in said for node in comparisons)


def _said_above(lines: Sequence[str], line: int) -> bool:
    """Whether the comment that ends on the line above, if there is one, says it."""
    above = takewhile(lambda text: text.lstrip().startswith("#"), reversed(lines[: line - 1]))
    return any(SAID in text for text in above)


def _holds(node: ast.expr, names: frozenset[str]) -> bool:
    if isinstance(node, ast.Constant):
        return node.value in names
    return isinstance(node, (ast.Tuple, ast.Set, ast.List)) and any(_holds(part, names) for part in node.elts)


def _naming_targets(trees: Mapping[Path, ast.AST], root: Path) -> list[str]:
    """Files outside of a target's own folder with a string that begins with the name of a GPU target, documentation aside."""
    found = []
    for file, tree in trees.items():
        place = file.relative_to(root).parts
        if place[0] in ("targets", "testing", "trials") or place[:2] in (("runtime", "cuda"), ("runtime", "triton")):
            continue
        strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
        if any(text in TARGETS or text.startswith(tuple(f"{name}:" for name in TARGETS)) for text in strings if "\n" not in text):
            found.append("/".join(place))
    return found


if __name__ == "__main__":
    main()
