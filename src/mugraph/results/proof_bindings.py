"""What binds the files of a saved result to what was proved: files that are printed again, and a proof that is repeated.

Printers are deterministic: the text follows from the muGraph, this version of mugraph, and what the machine that prints says of
itself (`Machine.parameters`), which a manifest records. So saved sources, and the record of where tensors lie, are compared byte
by byte with what the saved muGraph gives, and it does not matter who wrote their hashes. Those printed on another host are
compared with its parameters; what runs is then printed for this one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mugraph.errors import UntrustedSources
from mugraph.ir.graph import Graph
from mugraph.runtime.placement import Placement, placement_of
from mugraph.targets.machine import recorded_machine
from mugraph.verifier import by_random_tests
from mugraph.verifier.certificate import Tests
from mugraph.version import __version__

PLACEMENT = "placement.json"
PROVING_SECONDS = 1.0
"""How long a proof is repeated before a saved muGraph is run; one test is always made."""


def printed(sources: Mapping[str, str], placement: Placement) -> dict[str, str]:
    """The text of the files that follow from a muGraph, by their places in a folder."""
    placed = {PLACEMENT: json.dumps(placement.to_json(), indent=1) + "\n"}
    return placed | {f"sources/{name}": text for name, text in sources.items()}


def printed_again(graph: Graph, target: str, printer: Mapping[str, Any]) -> dict[str, str]:
    """The same for a muGraph as the machine prints it that a manifest describes."""
    machine = recorded_machine(target, printer)
    launches = machine.lower(graph)
    return printed(machine.print([launch.kernel for launch in launches.values()]), placement_of(graph, launches))


def check_sources(files: Mapping[str, bytes], graph: Graph, manifest: Mapping[str, Any], where: object) -> None:
    """Raise UntrustedSources, naming the folder `where`, unless of its files those are right, byte by byte, that a muGraph gives.

    Only the version that printed them can say so. Raises TargetUnavailable for an unknown target, and what lowering and printing
    raise.
    """
    if manifest["version"] != __version__:
        raise UntrustedSources(
            f"the sources in {where} were printed by mugraph {manifest['version']}, cannot be compared with what {__version__} "
            "prints, and are not run; optimize again, or use --trust-sources (trust_sources=True) to run them as they are"
        )
    right = {name: text.encode() for name, text in printed_again(graph, manifest["target"], manifest["printer"]).items()}
    saved = {name: content for name, content in files.items() if name == PLACEMENT or name.startswith("sources/")}
    if different := sorted(name for name in {*right, *saved} if right.get(name) != saved.get(name)):
        raise UntrustedSources(
            f"{different[-1]} in {where} is not what mugraph {__version__} prints of graph.json, and is not run; "
            "optimize again (--trust-sources, trust_sources=True, runs it all the same)"
        )


def contradiction(program: Graph, graph: Graph, max_error: float) -> str:
    """Why a saved muGraph is not its program, by as many random tests as fit a second, and at least one; empty if they agree."""
    verdict = by_random_tests(program, graph, max_error=max_error, budget=PROVING_SECONDS)
    return "" if verdict.certificate.tests in (Tests.AGREED, Tests.UNFINISHED) else verdict.reason
