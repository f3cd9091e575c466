"""Elementwise statements and reductions: the elements shared out among the threads of a block.

Every thread takes runs of consecutive elements that it loads and stores at once. A reduction with few results gives
each of them to a group of neighbouring lanes, whose partial results meet by shuffles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from mugraph.lower.scalar_expressions import Constant
from mugraph.lower.thread_mapping import LoopDim, Share, elementwise_share, reduction_share, result_loops
from mugraph.lower.tile_form import Combine, Elementwise, Memory, Reduce, Tile
from mugraph.lower.warp_groups import held_registers
from mugraph.targets.c_text import scaled
from mugraph.targets.cuda.source import KernelText, number, write_expression

_UNROLLED_VALUES = 64
_FEWEST_VALUES = 16
"""Registers of a thread that operands of unrolled turns may take, and at least: sums that the kernel holds meanwhile count."""
COMBINED = {Combine.SUM: "{} + {}", Combine.MAX: "max({}, {})"}


def print_elementwise(text: KernelText, statement: Elementwise) -> None:
    """Write an elementwise statement."""
    share = elementwise_share(text.kernel, statement)
    dims, run = share.dims, share.run
    elements = math.prod(dim.size for dim in dims)
    with text.block():
        _pointers(text, statement)
        with each_turn(text, "e", "thread", elements // run, text.threads, run * (1 + len(statement.sources))):
            _coordinates(text, "e", dims, run)
            loads = [_load(text, f"x{n}", tile, n + 1, dims, run) for n, tile in enumerate(statement.sources)]
            address = _address(text, "target", statement.target, 0, dims)
            text.line(f"float y[{run}];")
            steps = _steps(dims, 0)
            if statement.combine is not None:
                text.load_run("y", statement.target, address, run, steps)
            with _each(text, run):
                value = write_expression(text, statement.expression, loads)
                combined = value if statement.combine is None else COMBINED[statement.combine].format("y[v]", value)
                text.line(f"y[v] = {combined};")
            if run == 1:
                text.store(statement.target, address, "y[0]")
            else:
                assert dims[-1].strides[0] == 1
                text.store_run(statement.target, address, "y", run, steps)


def print_reduction(text: KernelText, statement: Reduce) -> None:
    """Write a reduction; of one into registers, each thread adds to what it has of a result."""
    share = reduction_share(text.kernel, statement)
    run, held = share.run, text.buffer(statement.target).memory is Memory.REGISTERS
    *outer, reduced = share.dims
    combined = COMBINED[statement.combine]
    with text.block():
        _pointers(text, statement)
        with _each_result(text, share, outer):
            text.line(f"float total = {statement.target.buffer if held else number(statement.combine.identity)};")
            start, step = (f"thread % {share.group} * {run}", share.group * run) if share.group > 1 else ("0", run)
            with each_turn(text, f"i{len(outer)}", start, reduced.size, step, run * len(statement.sources)):
                dims = [*outer, reduced]
                loads = [_load(text, f"x{n}", tile, n + 1, dims, run) for n, tile in enumerate(statement.sources)]
                with _each(text, run):
                    value = write_expression(text, statement.expression, loads)
                    text.line(f"total = {combined.format('total', value)};")
            if held:
                text.line(f"{statement.target.buffer} = total;")
            else:
                address = _address(text, "target", statement.target, 0, outer)
                _store_total(text, share, statement, address)


def print_results(text: KernelText, statement: Elementwise, reduction: Reduce) -> None:
    """Write a statement that starts what threads have of a reduction's results, or copies the results out of registers."""
    target = statement.target
    if isinstance(statement.expression, Constant):
        text.line(f"{target.buffer} = {number(statement.expression.value)};")
        return
    share, results = reduction_share(text.kernel, reduction), result_loops(reduction, target)
    with text.block():
        text.pointer("target", target, written=True)
        with _each_result(text, share, results):
            text.line(f"float total = {reduction.target.buffer};")
            address = _address(text, "target", target, 1, results)
            _store_total(text, share, replace(reduction, target=target, accumulate=False), address)


@contextmanager
def _each_result(text: KernelText, share: Share, outer: Sequence[LoopDim]) -> Iterator[None]:
    """A loop over the results of a reduction that a group of lanes takes, the last of them again where there are no more."""
    results = math.prod(dim.size for dim in outer)
    with text.block(f"for (int o = 0; o < {results}; o += {text.threads // share.group})"):
        text.line(f"const int wanted = o + thread / {share.group}, e = wanted < {results} ? wanted : {results - 1};")
        _coordinates(text, "e", outer, 1)
        yield


def _store_total(text: KernelText, share: Share, reduction: Reduce, address: str) -> None:
    """Put together the totals of the lanes of a group, of which one stores the result in the target."""
    combined, results = COMBINED[reduction.combine], math.prod(reduction.target.shape)
    for mask in _halvings(share.group):
        text.line(f"total = {combined.format('total', f'shfl_xor(total, {mask})')};")
    with text.block(f"if (wanted < {results}" + (f" && thread % {share.group} == 0)" if share.group > 1 else ")")):
        total = combined.format(text.loaded(reduction.target, address), "total") if reduction.accumulate else "total"
        text.store(reduction.target, address, total)


@contextmanager
def each_turn(text: KernelText, counter: str, start: str, end: int, step: int, values: int) -> Iterator[None]:
    """A loop over `counter` from `start`, below `step`, to `end` by `step`; a turn holds `values` values in registers.

    Where all threads take the same number of turns the compiler is told it, and unrolls them: the loads of several turns are
    on their way together, for none waits for what another one stores. Where that is one it sees no loop.
    """
    turns = end // step
    if end == step:
        with text.block():
            text.line(f"const int {counter} = {start};")
            yield
    elif end % step == 0 and turns > 1:
        free = max(_FEWEST_VALUES, _UNROLLED_VALUES - text.kernel.resident * held_registers(text.kernel))
        unrolled = max(1, min(turns, free // values))
        text.line(f"#pragma unroll {unrolled}")
        with text.block(f"for (int turn = 0; turn < {turns}; ++turn)"):
            text.line(f"const int {counter} = {start} + turn * {step};")
            yield
    else:
        with text.block(f"for (int {counter} = {start}; {counter} < {end}; {counter} += {step})"):
            yield


def _halvings(group: int) -> Iterator[int]:
    mask = group // 2
    while mask:
        yield mask
        mask //= 2


def _pointers(text: KernelText, statement: Elementwise | Reduce) -> None:
    if text.buffer(statement.target).memory is not Memory.REGISTERS:
        text.pointer("target", statement.target, written=True)
    for position, tile in enumerate(statement.sources):
        text.pointer(f"x{position}", tile)


def _coordinates(text: KernelText, counter: str, dims: Sequence[LoopDim], run: int) -> None:
    """Declare i0, i1, ...: the place in each dimension of element `counter`, or of run `counter` of the last dimension."""
    inner = 1
    for position in reversed(range(len(dims))):
        size = dims[position].size // run if position == len(dims) - 1 else dims[position].size
        index = counter if inner == 1 else f"{counter} / {inner}"
        index = index if position == 0 else f"{index} % {size}"
        times = f" * {run}" if run > 1 and position == len(dims) - 1 else ""
        text.line(f"const int i{position} = {index}{times};")
        inner *= size


def _address(text: KernelText, pointer: str, tile: Tile, tile_number: int, dims: Sequence[LoopDim]) -> str:
    return text.element(pointer, tile, [scaled(dim.strides[tile_number], f"i{position}") for position, dim in enumerate(dims)])


def _load(text: KernelText, name: str, tile: Tile, tile_number: int, dims: Sequence[LoopDim], run: int) -> str:
    """Declare the elements of a run of a source (one where it repeats); the text of element v."""
    address = _address(text, name, tile, tile_number, dims)
    if dims[-1].strides[tile_number] == 0 or run == 1:
        text.line(f"const float e{name} = {text.loaded(tile, address)};")
        return f"e{name}"
    text.line(f"float e{name}[{run}];")
    text.load_run(f"e{name}", tile, address, run, _steps(dims, tile_number))
    return f"e{name}[v]"


def _steps(dims: Sequence[LoopDim], tile_number: int) -> list[int]:
    """How far apart runs begin in a tile, but for those along the last dimension, which follow each other."""
    return [dim.strides[tile_number] for dim in dims[:-1]]


def _each(text: KernelText, run: int) -> AbstractContextManager[None]:
    """A loop over the elements v of a run."""
    text.line("#pragma unroll")
    return text.block(f"for (int v = 0; v < {run}; ++v)")
