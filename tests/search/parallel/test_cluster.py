"""A Ray cluster of several nodes on this machine: the same results, also when a node is killed in the middle of a search."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mugraph
from mugraph.devices import device_for
from mugraph.errors import TargetUnavailable
from mugraph.search import search
from mugraph.search.executors import RayCluster
from mugraph.search.structures import KNOWN, FoundStructure

from ..programs import PAPER
from .items import PATIENT, attention_items

CPU = device_for("cpu")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster: a head node without cores for items, and two nodes with one each."""
    ray: Any = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    cluster_utils: Any = pytest.importorskip("ray.cluster_utils")

    source = str(Path(mugraph.__file__).parents[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]))
        cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rmsnorm", "lora"])
def test_a_cluster_finds_what_one_process_finds(nodes: Any, name: str) -> None:
    found = []
    for workers in (1, "ray"):
        KNOWN.clear()
        result = search(PAPER[name](), CPU, workers=workers, options=PATIENT)
        assert result.report.exhausted
        assert result.report.cuts_complete
        found.append(([(c.graph, c.cost) for c in result.candidates], result.report.states))
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("retries", [4, 0], ids=["Ray retries", "the pool retries"])
def test_a_node_killed_in_the_middle_of_an_item_costs_a_retry(nodes: Any, monkeypatch: pytest.MonkeyPatch, retries: int) -> None:
    monkeypatch.setattr("mugraph.search.executors._RETRIES", retries)
    while len(nodes.worker_nodes) > 1:
        nodes.remove_node(next(iter(nodes.worker_nodes)))
    pool: RayCluster[FoundStructure] = RayCluster()
    tasks = [pool.submit(item) for item, _ in attention_items()]
    while not any(task.future is not None and task.future.done() for task in tasks):
        pool.dispatch()  # the node is always one item ahead: when it has finished one, it is searching the next
    nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
    nodes.add_node(num_cpus=1)
    found = [task.result(float("inf"), lambda stage, states: None) for task in tasks]
    pool.close()
    assert found == [wanted for _, wanted in attention_items()]
    assert bool(pool.losses) == (retries == 0)


def test_without_ray_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(TargetUnavailable, match=r"pip install mugraph\[ray\]"):
        RayCluster()
