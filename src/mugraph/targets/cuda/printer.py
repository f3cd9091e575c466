"""The CUDA C++ of lowered kernels: plain text without includes, over the device functions of `interface.h`.

Each kernel is one `extern "C"` function whose parameters are the device buffers, inputs first, each aligned to 16 bytes, and
then the tensor maps of some; a number of slices is itself one of the inputs. Its grid is one-dimensional, the last dimension of
the muGraph's grid varying fastest where blocks have no other order; shared memory is dynamic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mugraph.errors import UnsupportedOperator
from mugraph.lower import tiles
from mugraph.lower.fragments import on_matrix_units, takes_left_from_registers
from mugraph.lower.register_reductions import reduces_fragments, reduction_of
from mugraph.lower.register_rows import works_on_rows
from mugraph.lower.staging import arrival
from mugraph.lower.tensor_maps import tensor_maps
from mugraph.lower.tile_form import Bands, Elementwise, Kernel, Matmul, Memory, Reduce, Scan, Statement
from mugraph.lower.touched_tiles import touches_registers
from mugraph.targets.c_text import packaged_text, product_of
from mugraph.targets.cuda.async_pipeline import MAP_NAME, write_arrival, write_ring
from mugraph.targets.cuda.loops import print_elementwise, print_reduction, print_results
from mugraph.targets.cuda.matrix_units import write_last_wait, write_matrix_product, write_sums_of_parts
from mugraph.targets.cuda.register_accumulators import declare_held, print_held, print_row_reduction, print_rows
from mugraph.targets.cuda.slices import print_blocks, print_ends, require_whole_copies
from mugraph.targets.cuda.source import KernelText
from mugraph.targets.cuda.vector_units import write_vector_product

_FARTHEST = 2**31 - 1
"""Elements that indices within a tile can count: they are ints, only starts of tiles are longs."""


def print_program(kernels: Sequence[Kernel]) -> str:
    """The text of the kernels, to be compiled behind the device functions."""
    parts = [*(packaged_text(__package__, name) for name in ("runs.h", "fragments.h")), "namespace kernels {"]
    return "\n".join([*parts, *(_print_kernel(kernel) for kernel in kernels), "}\n"])


def _print_kernel(kernel: Kernel) -> str:
    _require_printable(kernel)
    text = KernelText(kernel)
    with text.block(
        f'extern "C" __global__ void __launch_bounds__({kernel.launched_threads}, {kernel.resident}) '
        f"{kernel.name}({_parameters(kernel)})"
    ):
        text.line("const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;")
        _print_coordinates(text)
        print_ends(text)
        _print_memory(text)
        if kernel.chained:
            text.line("griddepcontrol_wait();")
            text.line("griddepcontrol_launch_dependents();")
        declare_held(text)
        write_ring(text)
        body, after = len(kernel.before), len(kernel.before) + len(kernel.body)
        _print_part(text, kernel.before, 0)
        if kernel.body:
            write_arrival(text)
            with text.block(f"for (long l = 0; l < {kernel.loop}; ++l)"):
                _print_part(text, kernel.body, body)
            write_last_wait(text)
            write_sums_of_parts(text)
        _print_part(text, kernel.after, after)
    return "\n".join(text.lines) + "\n"


def _require_printable(kernel: Kernel) -> None:
    require_whole_copies(kernel)
    for statement in kernel.statements:
        if isinstance(statement, Scan):
            raise UnsupportedOperator(
                f"target cuda prints no running sums and products ({kernel.name}, {list(statement.target.shape)}); "
                "use target='cpu'"
            )
        for tile in (statement.target, *statement.sources):
            span = sum(abs(stride) * (size - 1) for stride, size in zip(tile.strides, tile.shape, strict=True))
            if span > _FARTHEST:
                raise UnsupportedOperator(
                    f"target cuda counts the elements of a tile in 32 bits ({kernel.name}, {tile.buffer} {list(tile.shape)}); "
                    "choose a larger grid"
                )


def _parameters(kernel: Kernel) -> str:
    """The kernel's parameters.

    What kernels before it may still write is not promised to stay as it is (`__restrict__`): the compiler might load it before
    the kernel waits for them.
    """
    promise = "" if kernel.chained else "__restrict__ "
    count = "" if kernel.slices is None else kernel.slices.count
    inputs = (
        f"const long long {name}" if name == count else f"const {kernel.buffer(name).dtype}_t *{promise}{name}"
        for name in kernel.inputs
    )
    outputs = (f"{kernel.buffer(name).dtype}_t *__restrict__ {name}" for name in kernel.outputs)
    maps = (f"TENSOR_MAP {MAP_NAME}{number}" for number in range(len(tensor_maps(kernel))))
    return ", ".join((*inputs, *outputs, *maps))


def _print_coordinates(text: KernelText) -> None:
    """The block's place in the grid, as `mugraph.lower.block_order.in_order` has it."""
    counts, bands = print_blocks(text), text.kernel.bands
    if bands is not None:
        _print_band(text, bands, counts)
    number = "blockIdx.x" if bands is None else "in_band / width"
    behind: list[str] = []
    """How many blocks there are along the dimensions behind that are counted already."""
    for dim in reversed(range(len(counts))):
        if bands is not None and dim == bands.dim:
            place, number = "band + in_band % width", "blockIdx.x"
        else:
            place = f"{number} / {product_of(behind)} % {counts[dim]}"
        text.line(f"const long g{dim} = {place};")
        behind.append(counts[dim])


def _print_band(text: KernelText, bands: Bands, counts: Sequence[str]) -> None:
    """Where the block's band begins and how wide it is, the last one as wide as is left, and the block's number in it."""
    count, behind = counts[bands.dim], counts[bands.dim + 1 :]
    is_whole = count.isdigit() and int(count) % bands.size == 0
    width = str(bands.size) if is_whole else f"{count} - band < {bands.size} ? {count} - band : {bands.size}"
    size = str(bands.size)
    text.line(
        f"const int inside = blockIdx.x % {product_of([count, *behind])}, band = inside / {product_of([size, *behind])} * {size};"
    )
    text.line(f"const int width = {width}, in_band = inside - band * {product_of(behind)};")


def _print_memory(text: KernelText) -> None:
    for buffer in text.kernel.buffers:
        if buffer.memory is Memory.SHARED:
            text.line(f"{buffer.dtype}_t *const {buffer.name} = ({buffer.dtype}_t *)(shared_memory() + {buffer.offset});")


def _print_part(text: KernelText, statements: Sequence[Statement], first: int) -> None:
    """Write the statements of a part, whose numbers count from `first`, and the barriers before them."""
    for number, statement in enumerate(statements, first):
        if number in text.kernel.barriers:
            if text.kernel.ring is None and text.kernel.staged and number == arrival(text.kernel):
                text.line("cp_async_wait<0>();")
            text.line("__syncthreads();")
        match statement:
            case Matmul():
                _print_product(text, statement)
            case Elementwise() if (reduction := reduction_of(text.kernel, statement)) is not None:
                print_results(text, statement, reduction)
            case Elementwise() if works_on_rows(text.kernel, statement):
                print_rows(text, statement)
            case Elementwise() if touches_registers(text.kernel, statement):
                print_held(text, statement)
            case Elementwise():
                print_elementwise(text, statement)
            case Reduce() if reduces_fragments(text.kernel, statement):
                print_row_reduction(text, statement)
            case Reduce():
                print_reduction(text, statement)


def _print_product(text: KernelText, product: Matmul) -> None:
    """Write a (batched) product: on matrix units where both factors are of 16 bits, else on vector units."""
    batch = product.target.shape[:-2]
    left, right = (tiles.broadcast(tile, (*batch, *tile.shape[-2:])) for tile in product.sources)
    product = replace(product, left=left, right=right)
    with text.block():
        if not takes_left_from_registers(text.kernel, product):
            text.pointer("a", left)
        text.pointer("b", right)
        if on_matrix_units(product):
            write_matrix_product(text, product)
        else:
            write_vector_product(text, product)
