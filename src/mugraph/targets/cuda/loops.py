"""Elementwise statements and reductions: the elements shared out among the threads of a block.

Every thread takes runs of consecutive elements that it loads and stores at once. A reduction with few results gives
each of them to a group of neighbouring lanes, whose partial results meet by shuffles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from mugraph.lower.lanes import lanes_per_result
from mugraph.lower.lowered import Combine, Elementwise, Reduce, Tile
from mugraph.targets.cuda.source import WIDEST_ACCESS, KernelText, number, write_expression
from mugraph.targets.dims import Dim, loops_of
from mugraph.targets.source import scaled, sum_of

_NEUTRAL = {Combine.SUM: 0.0, Combine.MAX: -math.inf}
_COMBINED = {Combine.SUM: "{} + {}", Combine.MAX: "max({}, {})"}
_LONGEST_RUN = 8


def print_elementwise(text: KernelText, statement: Elementwise) -> None:
    """Write an elementwise statement."""
    dims = _fastest_last(text, statement)
    tiles = (statement.target, *statement.sources)
    elements = math.prod(dim.size for dim in dims)
    run = _longest_run(text, tiles, dims, elements // text.threads)
    with text.block():
        _pointers(text, statement)
        with text.block(f"for (int e = thread; e < {elements // run}; e += {text.threads})"):
            _coordinates(text, "e", dims, run)
            loads = [_load(text, f"x{n}", tile, n + 1, dims, run) for n, tile in enumerate(statement.sources)]
            address = _address("target", 0, dims)
            text.line(f"float y[{run}];")
            if statement.combine is not None:
                text.line(f"load_run<{text.dtype(statement.target)}_t, {run}>(y, {address});")
            with _each(text, run):
                value = write_expression(text, statement.expression, loads)
                combined = value if statement.combine is None else _COMBINED[statement.combine].format("y[v]", value)
                text.line(f"y[v] = {combined};")
            _store(text, address, statement.target, dims[-1].strides[0], run)


def print_reduction(text: KernelText, statement: Reduce) -> None:
    """Write a reduction."""
    *kept, reduced = loops_of(statement)
    results = math.prod(dim.size for dim in kept)
    group = lanes_per_result(text.threads, results, reduced.size)
    run = _longest_run(text, statement.sources, [*kept, reduced], reduced.size // group)
    combined = _COMBINED[statement.combine]
    with text.block():
        _pointers(text, statement)
        together = text.threads // group
        with text.block(f"for (int o = 0; o < {results}; o += {together})"):
            text.line(f"const int wanted = o + thread / {group}, e = wanted < {results} ? wanted : {results - 1};")
            _coordinates(text, "e", kept, 1)
            depth = len(kept)
            text.line(f"float total = {number(_NEUTRAL[statement.combine])};")
            start, step = (f"thread % {group} * {run}", group * run) if group > 1 else ("0", run)
            with text.block(f"for (int i{depth} = {start}; i{depth} < {reduced.size}; i{depth} += {step})"):
                dims = [*kept, reduced]
                loads = [_load(text, f"x{n}", tile, n + 1, dims, run) for n, tile in enumerate(statement.sources)]
                with _each(text, run):
                    value = write_expression(text, statement.expression, loads)
                    text.line(f"total = {combined.format('total', value)};")
            for mask in _halvings(group):
                text.line(f"total = {combined.format('total', f'shfl_xor(total, {mask})')};")
            address = _address("target", 0, kept)
            dtype = text.dtype(statement.target)
            with text.block(f"if (wanted < {results}" + (f" && thread % {group} == 0)" if group > 1 else ")")):
                total = combined.format(f"to_float(*({address}))", "total") if statement.accumulate else "total"
                text.line(f"*({address}) = from_float<{dtype}_t>({total});")


# dimensions ---------------------------------------------------------------------------------------------------------


def _fastest_last(text: KernelText, statement: Elementwise) -> list[Dim]:
    """The loops, the one along which most memory traffic is consecutive last; device memory counts for more."""
    tiles = (statement.target, *statement.sources)

    def consecutive(dim: Dim) -> int:
        weights = (1 if text.is_shared(tile) else 4 for tile in tiles)
        return sum(weight for weight, stride in zip(weights, dim.strides, strict=True) if stride == 1)

    dims = loops_of(statement)
    fastest = max(dims, key=consecutive)
    return [*(dim for dim in dims if dim is not fastest), fastest]


def _longest_run(text: KernelText, tiles: Sequence[Tile], dims: Sequence[Dim], share: int) -> int:
    """Elements a thread takes at once along the last dimension: what alignment allows, no more than its `share`."""
    last = dims[-1]
    first = len(last.strides) - len(tiles)
    run = math.gcd(last.size, _LONGEST_RUN)
    for position, tile in enumerate(tiles, first):
        if last.strides[position] == 0:
            continue
        if last.strides[position] != 1:
            return 1
        aligned = text.aligned_elements(tile, [dim.strides[position] for dim in dims[:-1]])
        run = run if aligned * text.dtype(tile).bytes == WIDEST_ACCESS else min(run, aligned)
    while run > max(share, 1):
        run //= 2
    return run


def _halvings(group: int) -> Iterator[int]:
    mask = group // 2
    while mask:
        yield mask
        mask //= 2


# text ----------------------------------------------------------------------------------------------------------------


def _pointers(text: KernelText, statement: Elementwise | Reduce) -> None:
    text.pointer("target", statement.target, written=True)
    for number_, tile in enumerate(statement.sources):
        text.pointer(f"x{number_}", tile)


def _coordinates(text: KernelText, counter: str, dims: Sequence[Dim], run: int) -> None:
    """Declare i0, i1, ...: the place in each dimension of element `counter`, or of run `counter` of the last dimension."""
    inner = 1
    for position in reversed(range(len(dims))):
        size = dims[position].size // run if position == len(dims) - 1 else dims[position].size
        index = counter if inner == 1 else f"{counter} / {inner}"
        index = index if position == 0 else f"{index} % {size}"
        times = f" * {run}" if run > 1 and position == len(dims) - 1 else ""
        text.line(f"const int i{position} = {index}{times};")
        inner *= size


def _address(pointer: str, tile_number: int, dims: Sequence[Dim]) -> str:
    return sum_of([pointer, *(scaled(dim.strides[tile_number], f"i{position}") for position, dim in enumerate(dims))])


def _load(text: KernelText, name: str, tile: Tile, tile_number: int, dims: Sequence[Dim], run: int) -> str:
    """Declare the elements of a run of a source (one where it repeats); the text of element v."""
    address, dtype = _address(name, tile_number, dims), text.dtype(tile)
    if dims[-1].strides[tile_number] == 0 or run == 1:
        text.line(f"const float e{name} = to_float(*({address}));")
        return f"e{name}"
    text.line(f"float e{name}[{run}];")
    text.line(f"load_run<{dtype}_t, {run}>(e{name}, {address});")
    return f"e{name}[v]"


def _each(text: KernelText, run: int) -> AbstractContextManager[None]:
    """A loop over the elements v of a run."""
    text.line("#pragma unroll")
    return text.block(f"for (int v = 0; v < {run}; ++v)")


def _store(text: KernelText, address: str, target: Tile, stride: int, run: int) -> None:
    if run == 1:
        text.line(f"*({address}) = from_float<{text.dtype(target)}_t>(y[0]);")
    else:
        assert stride == 1
        text.line(f"store_run<{text.dtype(target)}_t, {run}>({address}, y);")
