"""The C source of lowered kernels.

Each kernel is a function that runs blocks of the grid, and exports what a call has to know of it (`kernel` in `region.h`). The
threads that run the kernels of a call together take parts of a contiguous share each, and then what others have left of theirs,
or blocks in turn where those behind a length have nothing to do; each keeps its block's shared memory on its own stack. Blocks
that may leave iterations out take different times: there every thread takes the next one when it is done, the last ones, to
which causal masks leave most, first. A kernel that looks tables up says which of `Kernel.integers` are not what they must be:
where there are any, none runs of the kernels that are one region.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cache
from importlib import resources

from mugraph.lower.phases import Phase
from mugraph.lower.tile_form import Buffer, Elementwise, Kernel, Matmul, Memory, Reduce, Scan, Statement
from mugraph.targets.cpu.folds import print_folds, print_interleaving, print_turning
from mugraph.targets.cpu.growing import (
    Bounded,
    compact_strides,
    dims_along,
    growing_buffers,
    is_compact,
    iterations,
    reading,
    statements_of,
    usual_strides,
)
from mugraph.targets.cpu.left_copies import print_left_copies
from mugraph.targets.cpu.loops import print_loops, print_stored_and_reduced
from mugraph.targets.cpu.matmul import print_matmul
from mugraph.targets.cpu.read_ahead import steps_ahead
from mugraph.targets.cpu.scans import print_scan, print_scans
from mugraph.targets.cpu.skips import print_idle, print_memory, print_skips
from mugraph.targets.cpu.slices import blocks_of, has_part, operands_by_row, print_rows, rows_in_turn
from mugraph.targets.cpu.source import Vectors, Writer

_PRELUDE = ("prelude", "region", "elementary")
_STACK_BYTES = 1 << 18
"""Shared memory up to this size lives on the thread's stack, whose pages are warm; more comes from the heap."""
_SERIAL_WORK = 1 << 17
"""Elements touched, about 10 microseconds, below which waking the other threads costs more than it gains."""


def print_program(kernels: Sequence[Kernel], vectors: Vectors) -> str:
    """One C file with what is exported of each kernel, and `run_kernels`, which runs them."""
    lanes = vectors.lanes
    parts = [
        f"#define LANES {lanes}\n",
        *map(header, _PRELUDE),
        print_folds(lanes),
        print_interleaving(lanes),
        print_turning(lanes),
        print_scans(lanes),
    ]
    return "\n".join([*parts, *(_print_kernel(kernel, vectors) for kernel in kernels)])


@cache
def header(name: str) -> str:
    """The text of a header of this package."""
    return resources.files(__package__).joinpath(f"{name}.h").read_text(encoding="utf-8")


def _print_kernel(kernel: Kernel, vectors: Vectors) -> str:
    dtypes = {buffer.name: buffer.dtype for buffer in kernel.buffers}
    device = frozenset((*kernel.inputs, *kernel.outputs))
    scratch = {each.name: range(each.offset, each.offset + each.bytes) for each in kernel.buffers if each.memory is Memory.SHARED}
    writer = Writer(vectors, dtypes, device, usual_strides(kernel), scratch, steps_ahead(kernel))
    print_idle(writer, kernel)
    compact = bool(compact_strides(kernel))
    given = "void **arguments, worker *worker"
    any_strides = f"INLINE void {kernel.name}_any({given}, const int compact)"
    with writer.block(any_strides if compact else f"static void {kernel.name}_blocks({given})"):
        _print_memory(writer, kernel)
        print_memory(writer, kernel)
        print_left_copies(writer, kernel)
        along = dims_along(kernel)
        with writer.block(_blocks_in_turn(writer, kernel)):
            _print_coordinates(writer, kernel, along)
            print_rows(writer, kernel)
            with reading(writer, kernel, Phase.BEFORE):
                _print_statements(writer, statements_of(kernel, Phase.BEFORE))
            for run in iterations(writer, kernel):
                with writer.block(run.loop), reading(writer, kernel, Phase.BODY):
                    if run.whole:
                        print_skips(writer, kernel)
                    _print_statements(writer, run.body)
            with reading(writer, kernel, Phase.AFTER):
                _print_statements(writer, statements_of(kernel, Phase.AFTER))
    if compact:
        writer.line(f"static void {kernel.name}_blocks({given}) {{ {kernel.name}_any(arguments, worker, 0); }}")
        writer.line(f"static void {kernel.name}_compact({given}) {{ {kernel.name}_any(arguments, worker, 1); }}")
    _print_exported(writer, kernel)
    return "\n".join(writer.lines) + "\n"


def _parallel(kernel: Kernel) -> str:
    """Whether all threads run blocks, in C: of first slices a call may have so few that one thread is done before others wake."""
    work = math.prod(kernel.grid) * _work(kernel)
    if math.prod(kernel.grid) == 1 or work <= _SERIAL_WORK:
        return "0"
    return "1" if kernel.slices is None else has_part(kernel, _SERIAL_WORK / work)


def _blocks_in_turn(writer: Writer, kernel: Kernel) -> str:
    """The head of the loop over the blocks that a thread runs."""
    if operands_by_row(kernel):
        return rows_in_turn(writer, kernel)
    if kernel.skips:
        return "for (long block; (block = next_from_last(worker)) >= 0;)"
    if kernel.growing is not None and dims_along(kernel):  # some may lie behind a length
        writer.line("const long blocks = worker->task->blocks, threads = worker->threads;")
        writer.line("while (next_turn(worker))")
        return "for (long block = worker->first; block < blocks; block += threads)"
    writer.line("while (next_part(worker))")
    return "for (long block = worker->first, last = worker->last; block < last; ++block)"


def _work(kernel: Kernel) -> int:
    """Elements that one block reads and multiplies: a rough measure of its time."""
    return _elements(kernel.before) + kernel.loop * _elements(kernel.body) + _elements(kernel.after)


def _elements(statements: Sequence[Statement]) -> int:
    total = 0
    for statement in statements:
        size = math.prod(statement.target.shape)
        match statement:
            case Matmul():
                size *= statement.left.shape[-1]
            case Reduce():
                size *= statement.sources[0].shape[-1] if statement.sources else 1
        total += size
    return total


def _on_heap(kernel: Kernel) -> bool:
    return kernel.shared_bytes > _STACK_BYTES


def _print_memory(writer: Writer, kernel: Kernel) -> None:
    outputs, own = set(kernel.outputs), growing_buffers(kernel) | operands_by_row(kernel).keys()
    for number, name in enumerate((*kernel.inputs, *kernel.outputs)):
        dtype = writer.dtypes[name]
        const = "" if name in outputs else "const "
        whole = "whole_" if name in own else ""
        writer.line(f"{const}{dtype}_t *const restrict {whole}{name} = arguments[{number}];")
    size = -(-kernel.shared_bytes // 64) * 64
    if _on_heap(kernel):
        writer.allocated("char", "shared", size)
    elif size:
        writer.line(f"char memory[{size}] __attribute__((aligned(64))), *shared = memory;")
    if size:
        writer.line("ESCAPED(shared);")
    for buffer in kernel.buffers:
        if buffer.memory is Memory.SHARED:
            _print_shared(writer, buffer)


def _print_shared(writer: Writer, buffer: Buffer) -> None:
    writer.line(f"{buffer.dtype}_t *const {buffer.name} = ({buffer.dtype}_t *)(shared + {buffer.offset});")


def _print_coordinates(writer: Writer, kernel: Kernel, slowest: Collection[int]) -> None:
    """The block's place in the grid; of the dimensions that are not to be the slowest, and of those, the last varies fastest."""
    inner = 1
    for dim in sorted(range(len(kernel.grid)), key=lambda dim: (dim in slowest, -dim)):
        writer.line(f"const long g{dim} = block / {inner} % {kernel.grid[dim]};")
        inner *= kernel.grid[dim]


def _print_statements(writer: Writer, statements: Sequence[Bounded]) -> None:
    statements = _with_fills_first(writer, statements)
    done = 0
    while done < len(statements):
        if _printed_in_one_loop(writer, statements[done : done + 2]):
            done += 2
        else:
            _print_statement(writer, statements[done])
            done += 1


def _with_fills_first(writer: Writer, statements: Sequence[Bounded]) -> list[Bounded]:
    """Statements with what fills the target of a reduction before the statement whose result is reduced, if that touches none of
    it: both of these may be one loop then."""
    ordered = list(statements)
    for place in range(1, len(ordered) - 1):
        before, fill, reduction = (each.statement for each in ordered[place - 1 : place + 2])
        if (
            isinstance(before, Elementwise)
            and isinstance(fill, Elementwise)
            and isinstance(reduction, Reduce)
            and not fill.sources
            and fill.target.buffer == reduction.target.buffer
            and not any(writer.share_bytes(fill.target, tile) for tile in (before.target, *before.sources))
        ):
            ordered[place - 1 : place + 1] = ordered[place], ordered[place - 1]
    return ordered


def _printed_in_one_loop(writer: Writer, both: Sequence[Bounded]) -> bool:
    match [(each.statement, each.dim) for each in both]:
        case [(Elementwise() as stored, None), (Reduce() as reduction, None)]:
            return print_stored_and_reduced(writer, stored, reduction)
        case [(Elementwise() as stored, int()), (Reduce() as reduction, int() as dim)] if dim < reduction.target.rank:
            return print_stored_and_reduced(writer, stored, reduction, dim)
    return False


def _print_statement(writer: Writer, bounded: Bounded) -> None:
    match bounded.statement:
        case Matmul() as product:
            print_matmul(writer, product, bounded.dim)
        case Scan() as scan:
            print_scan(writer, scan)
        case Elementwise() | Reduce() as statement:
            print_loops(writer, statement, bounded.dim)


def _print_exported(writer: Writer, kernel: Kernel) -> None:
    """What a call has to know: how the blocks are run, and which integers are not what they must be."""
    blocks = f"{kernel.name}_blocks"
    with writer.block(f"static void {kernel.name}_prepare(void **arguments, task *task)"):
        for name in _asked_of_calls(kernel):
            writer.line(f"const int64_t *const {name} = arguments[{kernel.inputs.index(name)}];")
        chosen = f"{is_compact(kernel)} ? {kernel.name}_compact : {blocks}" if compact_strides(kernel) else blocks
        writer.line(f"task->run = {chosen};")
        writer.line(f"task->parallel = {_parallel(kernel)};")
        writer.line(f"task->blocks = {blocks_of(kernel)};")
    if kernel.integers:
        with writer.block(f"static long {kernel.name}_refused(void **arguments)"):
            for number, each in enumerate(kernel.integers, start=1):
                buffer = kernel.buffer(each.buffer)
                given = f"arguments[{kernel.inputs.index(each.buffer)}], {buffer.elements}, {each.least}, {each.rows}"
                writer.line(f"if (first_outside_{buffer.dtype}({given})) return {number};")
            writer.line("return 0;")
    refused = f"{kernel.name}_refused" if kernel.integers else "0"
    writer.line(f"const kernel {kernel.name} = {{{kernel.name}_prepare, {refused}}};")


def _asked_of_calls(kernel: Kernel) -> list[str]:
    """The inputs that say of a call how blocks are run: how many slices there are, and the length and strides of inputs."""
    slices = [] if kernel.slices is None else [kernel.slices.count]
    return slices if kernel.growing is None else [*slices, kernel.growing.sizes]
