"""Peak memory, against sums done by hand."""

from __future__ import annotations

import pytest

from mugraph.ir.liveness import peak_bytes
from mugraph.ir.text import parse_graph


def peak(text: str, in_place: bool = False) -> int:
    return peak_bytes(parse_graph(text), in_place)


def test_a_kernel_graphs_inputs_and_outputs_live_throughout() -> None:
    chain = """kernel_graph {
        X: fp32[10] = input
        Y: fp32[100] = input
        %2: fp32[10] = exp(X)
        %3: fp32[10] = exp(%2)
        %4: fp32[10] = exp(%3)
        return %2, %4 }"""
    assert peak(chain) == 4 * (10 + 100 + 10 + 10 + 10)


def test_a_block_tensor_dies_with_its_last_reader() -> None:
    chain = """block_graph {
        %0: fp32[10] = input_iterator(#0) {}
        %1: fp32[20] = repeat(%0) dim=0 times=2
        %2: fp32[20] = exp(%1)
        %3: fp32[20] = exp(%2)
        %4: fp32[20] = output_saver(%3) {}
        return %4 }"""
    assert peak(chain) == 4 * (20 + 20)


def test_a_view_keeps_the_memory_it_looks_at_alive_and_takes_none() -> None:
    graph = """block_graph {
        %0: fp32[10] = input_iterator(#0) {}
        %1: fp32[10] = exp(%0)
        %2: fp32[2, 5] = reshape(%1)
        %3: fp32[5, 2] = transpose(%2) permutation=(1, 0)
        %4: fp32[10] = exp(%0)
        %5: fp32[5, 2] = exp(%3)
        %6: fp32[10] = output_saver(%4) {}
        %7: fp32[5, 2] = output_saver(%5) {}
        return %6, %7 }"""
    assert peak(graph) == 4 * (10 + 10 + 10)


ACCUMULATING = """block_graph loop(i=4) {
    | %0: fp32[10] = input_iterator(#0) {i<->0}
      %1: fp32[10] = accumulate(%0) combine=sum
    | %2: fp32[100] = input_iterator(#1) {i<->0}
    | %3: fp32[100] = exp(%2)
      %4: fp32[100] = accumulate(%3) combine=sum
      %5: fp32[10] = output_saver(%1) {}
      %6: fp32[100] = output_saver(%4) {}
    return %5, %6 }"""


def test_accumulators_live_as_long_as_the_loop() -> None:
    assert peak(ACCUMULATING) == 4 * (10 + 100 + 100 + 100)


def test_iterators_take_nothing_where_operands_are_read_in_place() -> None:
    assert peak(ACCUMULATING, in_place=True) == 4 * (10 + 100 + 100)


def test_an_operand_carried_past_the_loop_is_that_operand() -> None:
    graph = """block_graph loop(i=4) {
        | %0: fp32[10] = input_iterator(#0) {i<->phi}
        | %1: fp32[10] = input_iterator(#1) {i<->0}
          %2: fp32[10] = accumulate(%0) combine=max
          %3: fp32[10] = accumulate(%1) combine=sum
          %4: fp32[10] = add(%2, %3)
          %5: fp32[10] = output_saver(%4) {}
        return %5 }"""
    assert peak(graph) == 4 * 30
    assert peak(graph, in_place=True) == 4 * 20


@pytest.mark.parametrize(("level", "expected"), [("kernel", 2 * 10 * 3), ("block", 2 * 10 + 4 * 10 + 4 * 10)])
def test_what_a_block_computes_is_kept_in_fp32(level: str, expected: int) -> None:
    source = "input" if level == "kernel" else "input_iterator(#0) {}"
    result = "%2" if level == "kernel" else "%3"
    saver = "" if level == "kernel" else "%3: bf16[10] = output_saver(%2) {}"
    graph = f"""{level}_graph {{
        %0: bf16[10] = {source}
        %1: bf16[10] = exp(%0)
        %2: bf16[10] = add(%1, %0)
        {saver} return {result} }}"""
    assert peak(graph) == expected


def test_a_thread_graph_of_elementwise_operators_streams() -> None:
    chain = """thread_graph {{
        %0: fp32[8, 8] = input_iterator(#0) {{}}
        %1: fp32[{shape}] = {op}
        %2: fp32[{shape}] = output_saver(%1) {{}}
        return %2 }}"""
    assert peak(chain.format(shape="8, 8", op="exp(%0)")) == 2 * 4
    assert peak(chain.format(shape="8, 1", op="sum(%0) dim=1 size=8")) == 2 * 4
    reread = """thread_graph {
        %0: fp32[8, 8] = input_iterator(#0) {}
        %1: fp32[8, 1] = sum(%0) dim=1 size=8
        %2: fp32[8, 8] = div(%0, %1)
        %3: fp32[8, 8] = output_saver(%2) {}
        return %3 }"""
    assert peak(reread) == 4 * (64 + 8 + 64)
