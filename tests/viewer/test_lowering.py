"""Pages tell how kernels were lowered: all passes of `mugraph explain`, each with the lines that it changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest

from mugraph.ir.graph import Graph
from mugraph.lower.pipeline import PIPELINE
from mugraph.results.data import Result
from mugraph.results.viewer import page
from mugraph.results.viewer.lowering import lowered_kernels
from mugraph.targets.machine import LOWERED, Machine, machine_for

from .results import discovered, result


@dataclass
class Run:
    """As much of an executable as pages ask here."""

    machine: Machine


@dataclass
class Shown:
    """As much of a result."""

    graph: Graph
    executable: Run


def test_changes_lead_from_the_first_form_to_the_last() -> None:
    machine = machine_for("cuda:sm_90")
    graph = discovered("rmsnorm")
    (kernel,) = lowered_kernels(cast(Result, Shown(graph, Run(machine))))
    names = [step.name for step in PIPELINE]
    assert [kernel.passes[0].name, *sorted([*(p.name for p in kernel.passes[1:]), *kernel.idle])] == [LOWERED, *sorted(names)]
    assert len(kernel.passes) > 2
    texts = {name: text.splitlines() for _, name, text in machine.explain(graph)}
    assert [line.text for line in kernel.passes[0].lines] == texts[LOWERED]
    order = [LOWERED, *names]
    for view in kernel.passes[1:]:
        before, after = texts[order[order.index(view.name) - 1]], texts[view.name]
        assert view.changed == sum(line.mark in ("+", "-") for line in view.lines) > 0
        assert [line.text for line in view.lines if line.mark == "-"] == [line for line in before if line not in after]
        assert {line.text for line in view.lines if line.mark == "+"} >= {line for line in after if line not in before}


@pytest.mark.parametrize("name", ["rmsnorm", "gqa"])
def test_the_page_has_every_kernel_as_it_was_lowered(name: str) -> None:
    opt = result(name)
    text = page(opt)
    assert '<section id="lowering">' in text
    for kernel in opt.executable.kernels:
        assert f"<h3>{kernel.name}</h3>" in text
        assert f"  kernel {kernel.name} grid(" in text
    body = text.split('<pre class="passes"', 1)[1].split("</pre>", 1)[0]
    assert body.count("\n") == len(next(lowered_kernels(opt)).passes[0].lines)
