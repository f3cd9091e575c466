"""Products on matrix units: every warp multiplies fragments of 16 x 16 by 16 x 8 into sums it keeps in registers.

Fragments come by ldmatrix where a factor lies in shared memory in 16 bits and one of its dimensions is contiguous;
otherwise lanes gather their elements, whatever the strides, type and memory. In TF32 a fragment takes twice the registers,
and what came in 16 bits is widened there. Warp groups load the left factor alike, and tell where the right one lies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mugraph.devices.products import COLUMNS, DEPTH, ROWS, WARP
from mugraph.lower.bulk_copies import row_elements
from mugraph.lower.fragments import PAIR, WarpTiles, comes_by_ldmatrix, product_tiles, takes_left_from_registers, warp_tiles
from mugraph.lower.parts_of_panels import FRAGMENT, parted_products, sums_of_lane
from mugraph.lower.tile_form import Matmul, Memory, Panels, Tile
from mugraph.lower.tiles import run_along
from mugraph.lower.warp_groups import GROUP, ROW_COUNT, columns_first, group_tiles, left_in_slot, runs_on
from mugraph.targets.c_text import scaled, sum_of
from mugraph.targets.cuda.matrices import (
    FRAGMENT_PLACE,
    covers,
    own_task,
    panel_offsets,
    write_batch_offsets,
    write_each_fragment,
    write_panel_pointers,
    write_place,
    write_result,
)
from mugraph.targets.cuda.source import KernelText, swizzle_type

_ALTERNATING = 4
"""Up to so many fragments of sums, a warp has two sets of them in turn: a product need not wait for the one before it."""
_FRAGMENT_REGISTERS = 48
"""Registers of a thread for fragments of factors that lie where their loads take long."""
_GROUP_DEPTH = 64
"""Most values of k whose part of the left factor a group holds in registers at once."""
_SLOT_PRODUCTS = 16
"""Products of a panel whose places a group knows when it is compiled."""
_PANELS_TOGETHER = 2
"""Of a loop behind which its sum is read: in one of single panels, the assembler adds a wait for each product."""


def write_matrix_product(text: KernelText, product: Matmul) -> None:
    """Write a product over the pointers `a` and `b`; its factors have the target's batch dimensions."""
    grouped = product.panels is not None and product.panels.grouped
    split = group_tiles(product.target.shape, text.threads) if grouped else None
    work = _Work(text, product, split or product_tiles(text.kernel, product))
    if product.panels is not None:
        work.write_streamed(product.panels)
    else:
        work.write_in_place()


def write_last_wait(text: KernelText) -> None:
    """Wait for the products of the loop's last panel, where an iteration leaves them to the next one."""
    sums = [s.target.buffer for s in text.kernel.body if isinstance(s, Matmul) and runs_on(text.kernel, s)]
    if sums:
        _write_wait(text, sums, 0)


def write_sums_of_parts(text: KernelText) -> None:
    """Add up behind the loop what sets of warps summed: all but the first leave theirs in the ring."""
    for product in parted_products(text.kernel):
        split = warp_tiles(product.target.shape, text.threads // WARP)
        assert text.kernel.ring is not None
        assert product.panels is not None
        tasks, parts, held = split.tasks, product.panels.parts, f"{product.target.buffer}[i][j][h]"

        def place(left_by: str, split: WarpTiles = split) -> str:
            return f"sums[(({left_by}) * {sums_of_lane(split)} + (i * {split.across} + j) * {FRAGMENT} + h) * {WARP} + lane]"

        with text.block():
            text.line(f"float *const sums = (float *){text.kernel.ring.buffer};")
            text.line("__syncthreads();")
            with text.block(f"if ({tasks} <= warp && warp < {tasks * parts})"):
                write_each_fragment(text, split)
                text.line(f"    {place(f'warp - {tasks}')} = {held};")
            text.line("__syncthreads();")
            with text.block(f"for (int part = 0; part < {parts - 1} && warp < {tasks}; ++part)"):
                write_each_fragment(text, split)
                text.line(f"    {held} += {place(f'part * {tasks} + warp')};")


def _write_wait(text: KernelText, sums: Sequence[str], pending: int) -> None:
    """Wait until all products of groups, which add to `sums`, but those of the `pending` newest panels are done."""
    text.line(f"wgmma_wait<{pending}>();")
    for sum_ in sums:
        text.line(f"wgmma_registers({sum_}[0]);")


@dataclass(frozen=True, slots=True)
class _Work:
    text: KernelText
    product: Matmul
    split: WarpTiles

    # the whole product ---------------------------------------------------------------------------------------------------

    def write_in_place(self) -> None:
        """Factors are read where they lie; warps take tasks in turn."""
        text, product, depth = self.text, self.product, self.product.left.shape[-1]
        if self.in_registers:
            header = f"if (warp < {self.split.tasks})"
        else:
            text.pointer("c", product.target, written=True)
            header = f"for (int task = warp; task < {self.split.tasks}; task += {text.threads // WARP})"
        with text.block(header):
            write_place(text, self.split, "warp" if self.in_registers else "task")
            write_batch_offsets(text, self.in_memory({"a": product.left, "b": product.right}))
            sum_ = self.declare_sum()
            text.line("#pragma unroll" if self.left_in_registers else f"#pragma unroll {self.steps_together}")
            with text.block(f"for (int k = 0; k < {depth}; k += {DEPTH})"):
                self.multiply(sum_, product.left, product.right)
            self.finish(sum_)

    def write_streamed(self, panels: Panels) -> None:
        """Factors, or one of them, pass through the ring; every warp has one task at most and keeps its sums throughout."""
        text, product = self.text, self.product
        assert text.kernel.ring is not None
        if not self.in_registers:
            text.pointer("c", product.target, written=True)
        busy = self.split.busy * panels.parts
        active = f"if (warp < {busy})" if busy < text.threads // WARP else ""
        write_place(text, self.split, f"(warp % {self.split.tasks})" if panels.parts > 1 else own_task(self.split))
        sum_ = self.declare_sum()
        steps, tiles = panels.depth // DEPTH // panels.parts, self.split.down * self.split.across
        alternating = not panels.grouped and steps > 1 and tiles <= _ALTERNATING
        if alternating:
            text.line(f"float other[{self.split.down}][{self.split.across}][4] = {{}};")
        awaited = left_in_slot(product) and text.kernel.ring.lag > 0 and not runs_on(text.kernel, product)
        if awaited:
            text.line(f"#pragma unroll {_PANELS_TOGETHER}")
        elif self.left_in_registers:
            text.line("#pragma unroll")
        with text.block(f"for (int panel = 0; panel < {product.left.shape[-1] // panels.depth}; ++panel)"):
            write_panel_pointers(text, product, panels)
            left, right = panels.left or product.left, panels.right or product.right
            factors = {"a": _matrix(left) if panels.left_in_blocks and panels.left else left}
            if not panels.grouped:
                factors["b"] = _matrix(right) if panels.right_in_blocks and panels.right else right
            write_batch_offsets(text, self.in_memory(factors), panel_offsets(product, panels))
            with text.block(active):
                if left_in_slot(product):
                    self.multiply_in_slot(sum_, left, right, panels.depth)
                elif panels.grouped:
                    self.multiply_together(sum_, left, right, panels.depth)
                else:
                    self.multiply_panel([sum_, "other"] if alternating else [sum_], left, right, panels)
        with text.block(active):
            if alternating:
                write_each_fragment(text, self.split)
                text.line(f"    {sum_}[i][j][h] += other[i][j][h];")
            if awaited:
                _write_wait(text, [sum_], 0)
            self.finish(sum_)

    @property
    def steps_together(self) -> int:
        """How many steps of 16 values of k have their fragments in registers at once, so that loads do not wait for products."""
        each = (4 * self.split.down + 2 * self.split.across) * (2 if self.product.tf32 else 1)
        return max(1, _FRAGMENT_REGISTERS // each)

    @property
    def in_registers(self) -> bool:
        """Whether the target is a sum that outlives this product in registers."""
        return self.text.buffer(self.product.target).memory is Memory.REGISTERS

    @property
    def left_in_registers(self) -> bool:
        """Whether lanes hold the left factor: all loops over its columns are unrolled, as registers have no addresses."""
        return takes_left_from_registers(self.text.kernel, self.product)

    def in_memory(self, factors: dict[str, Tile]) -> dict[str, Tile]:
        """The factors without one in registers."""
        return {name: tile for name, tile in factors.items() if self.text.buffer(tile).memory is not Memory.REGISTERS}

    def declare_sum(self) -> str:
        """The name of the sums, which start from 0 unless they go on."""
        if not self.in_registers:
            self.text.line(f"float sum[{self.split.down}][{self.split.across}][4] = {{}};")
            return "sum"
        sum_ = self.product.target.buffer
        if not self.product.accumulate:
            write_each_fragment(self.text, self.split)
            self.text.line(f"    {sum_}[i][j][h] = 0.0f;")
        return sum_

    def finish(self, sum_: str) -> None:
        if not self.in_registers:
            write_batch_offsets(self.text, {"c": self.product.target})
            self.store(sum_, self.product.target, self.product.accumulate)

    # one step ------------------------------------------------------------------------------------------------------------

    def multiply(self, sum_: str, left: Tile, right: Tile, suffix: str = "") -> None:
        """Add the products of 16 values of k, from `k` on."""
        text, split = self.text, self.split
        each = 2 if self.product.tf32 else 1
        text.line(f"unsigned left[{split.down}][{4 * each}], right[{split.across}][{2 * each}];")
        text.line("#pragma unroll")
        with text.block(f"for (int i = 0; i < {split.down}; ++i)"):
            self.load_left(left, f"a{suffix}", f"m0 + {ROWS} * i", "left[i]")
        text.line("#pragma unroll")
        with text.block(f"for (int j = 0; j < {split.across}; ++j)"):
            self.load_right(right, f"b{suffix}")
        text.line("#pragma unroll")
        with text.block(f"for (int i = 0; i < {split.down}; ++i)"):
            text.line("#pragma unroll")
            with text.block(f"for (int j = 0; j < {split.across}; ++j)"):
                text.line(f"multiply_fragments<{self.element}>({sum_}[i][j], left[i], right[j]);")

    def multiply_panel(self, sums: Sequence[str], left: Tile, right: Tile, panels: Panels) -> None:
        """Add the products of a panel, or of the warp's part of one, to sums in turn."""
        text, depth = self.text, panels.depth // panels.parts
        text.line("#pragma unroll" if self.left_in_registers else "UNROLLED_STEPS")
        with text.block(f"for (int step = 0; step < {depth // DEPTH}; ++step)"):
            first = f"warp / {self.split.tasks} * {depth} + " if panels.parts > 1 else ""
            text.line(f"const int k = {first}{DEPTH} * step;")
            if len(sums) > 1:
                text.line(f"auto &into = step % 2 == 0 ? {sums[0]} : {sums[1]};")
            self.multiply("into" if len(sums) > 1 else sums[0], left, right, "_panel")

    def multiply_together(self, sum_: str, left: Tile, right: Tile, depth: int) -> None:
        """Add the products of a panel as a group of warps, and wait for them: the slot may be filled again."""
        text = self.text
        together = math.gcd(depth, _GROUP_DEPTH)
        each = f"for (int k = first, step = 0; step < {together // DEPTH}; k += {DEPTH}, ++step)"
        if self.left_in_registers:
            text.line("#pragma unroll")
        with text.block(f"for (int first = 0; first < {depth}; first += {together})"):
            text.line(f"unsigned left[{together // DEPTH}][4];")
            text.line("#pragma unroll")
            with text.block(each):
                self.load_left(left, "a_panel", "m0", "left[step]", "0")
            text.line(f"wgmma_registers({sum_}[0]);")
            text.line("wgmma_registers(left);")
            text.line("wgmma_fence();")
            text.line("#pragma unroll")
            with text.block(each):
                text.line(f"{self.group_product(right)}({sum_}[0], left[step], {self.shared_matrix('b_panel', 'n0', right)});")
            text.line("wgmma_commit();")
            _write_wait(text, [sum_], 0)

    def multiply_in_slot(self, sum_: str, left: Tile, right: Tile, depth: int) -> None:
        """Add the products of a panel as a group of warps that reads both factors in the slot.

        Where the ring lags, those of the panel before are waited for alone. The panel that has been multiplied is left.
        """
        text = self.text
        assert text.kernel.ring is not None
        text.line(f"wgmma_registers({sum_}[0]);")
        text.line("wgmma_fence();")
        text.line(f"#pragma unroll {_SLOT_PRODUCTS}")
        with text.block(f"for (int k = 0; k < {depth}; k += {DEPTH})"):
            rows = self.shared_matrix("a_panel", f"(m0 - warp % {GROUP} * {ROWS})", left, along_k=True)
            text.line(f"{self.group_product(right)}({sum_}[0], {rows}, {self.shared_matrix('b_panel', 'n0', right)});")
        text.line("wgmma_commit();")
        _write_wait(text, [sum_], text.kernel.ring.lag)
        if text.kernel.ring.producer:
            text.line(f"leave_panel(used - {1 + text.kernel.ring.lag});")

    def group_product(self, right: Tile) -> str:
        """The function that a group multiplies 16 values of k by."""
        return f"wgmma_m64k16<{self.product.dtype}_t, {self.split.across * COLUMNS}, {str(columns_first(right)).lower()}>"

    def shared_matrix(self, pointer: str, first: str, place: Tile, along_k: bool = False) -> str:
        """Where 16 values of k lie of the rows of a left factor (`along_k`), or the columns of a right one, from `first` on."""
        wide, block = row_elements(place), place.strides[0]
        row_bytes, leading = wide * self.product.dtype.bytes, 0
        if along_k or not columns_first(place):
            corner = f"k / {wide} * {block} + {first} * {wide} + k % {wide}"
        else:
            corner, leading = f"{first} / {wide} * {block} + k * {wide}", block * self.product.dtype.bytes
        return f"wgmma_matrix<{row_bytes}>({pointer} + {corner}, {leading}, {ROW_COUNT * row_bytes})"

    def load_left(self, tile: Tile, pointer: str, first: str, into: str, band: str = "i") -> None:
        """A fragment of 16 rows from `first` on, band number `band` of the warp's."""
        row, column = tile.strides[-2:]
        rows = self.product.left.shape[-2]
        if self.left_in_registers:
            panels, held = self.product.panels, f"{tile.buffer}[{band}]"
            k = "k" if panels is None else f"({panels.depth} * panel + k)"
            tiles = f"{held}[{k} / {COLUMNS}], {held}[{k} / {COLUMNS} + 1]"
            self.text.line(f"fragment_of_sums<{self.element}>({into}, {tiles});")
        elif self.by_ldmatrix(tile, -1, inner=-1):
            place = _clamped(f"{first} + lane % {ROWS}", rows, 1, self.is_whole)
            along = self.along(tile, -1, "k + lane / 16 * 8")
            address = self.text.element(pointer, tile, ["a_batch", scaled(row, f"({place})"), *along])
            self.load_matrices("ldmatrix", 4, into, address)
        elif self.by_ldmatrix(tile, -2, inner=-1):
            place = _clamped(f"{first} + lane / 8 % 2 * 8", rows, 8, self.is_whole)
            line = scaled(column, "(k + lane % 8 + lane / 16 * 8)")
            address = self.text.element(pointer, tile, ["a_batch", *self.along(tile, -2, place), line])
            self.load_matrices("ldmatrix_transposed", 4, into, address)
        else:
            corner = sum_of(["a_batch", scaled(row, f"({first})"), scaled(column, "k")])
            limits = f"{rows} - ({first}), {tile.shape[-1]} - k"
            self.gather("gather_left", into, tile, -1, f"{pointer}, {corner}, {row}, {column}, {limits}")

    def load_right(self, tile: Tile, pointer: str) -> None:
        """right[j] from columns n0 + 8 j on."""
        row, column = tile.strides[-2:]
        columns, first = self.product.right.shape[-1], f"n0 + {COLUMNS} * j"
        if self.by_ldmatrix(tile, -2, inner=-2):
            place = _clamped(f"{first} + lane % {COLUMNS}", columns, 1, self.is_whole)
            along = self.along(tile, -2, "k + lane / 8 % 2 * 8")
            address = self.text.element(pointer, tile, ["b_batch", scaled(column, f"({place})"), *along])
            self.load_matrices("ldmatrix", 2, "right[j]", address)
        elif self.by_ldmatrix(tile, -1, inner=-2):
            place = _clamped(first, columns, 8, self.is_whole)
            line = scaled(row, "(k + lane % 16)")
            address = self.text.element(pointer, tile, ["b_batch", *self.along(tile, -1, place), line])
            self.load_matrices("ldmatrix_transposed", 2, "right[j]", address)
        else:
            corner = sum_of(["b_batch", scaled(column, f"({first})"), scaled(row, "k")])
            limits = f"{columns} - ({first}), {tile.shape[-2]} - k"
            self.gather("gather_right", "right[j]", tile, -2, f"{pointer}, {corner}, {column}, {row}, {limits}")

    def along(self, tile: Tile, contiguous: int, index: str) -> list[str]:
        """The terms of an index along the rows of a factor, which blocks cut where its panels are boxed."""
        panels = self.product.panels
        boxed = panels is not None and panels.boxed and tile in (panels.left, panels.right)
        if not boxed or tile.shape[0] == 1:
            return [index]
        wide = tile.shape[contiguous]
        return [scaled(tile.strides[0], f"(({index}) / {wide})"), f"({index}) % {wide}"]

    def load_matrices(self, function: str, count: int, into: str, address: str) -> None:
        """Registers of `count` matrices of 8 x 8."""
        if not self.product.tf32:
            self.text.line(f"{function}<{count}>({into}, {address});")
            return
        self.text.line(f"unsigned pairs[{count}];")
        self.text.line(f"{function}<{count}>(pairs, {address});")
        self.text.line(f"widen<{self.product.dtype}_t>({into}, pairs);")

    def gather(self, function: str, part: str, tile: Tile, inner: int, where: str) -> None:
        """Registers of a factor that ldmatrix cannot read, whose k is dimension `inner`."""
        run, end = run_along(tile, inner, PAIR), self.text.end(tile)
        if end:
            where = f"{where}, {end}"
            others = (stride for dim, stride in enumerate(tile.strides) if dim != inner % tile.rank and tile.shape[dim] > 1)
            run = run if self.text.lie_in_one_slice(tile, run, others) else 1
        self.text.line(f"{function}<{self.element}, {swizzle_type(tile)}, {run}>({part}, {where});")

    @property
    def element(self) -> str:
        """The type that is multiplied."""
        return "tf32_t" if self.product.tf32 else f"{self.product.dtype}_t"

    @property
    def is_whole(self) -> bool:
        """Whether all tasks together cover the target and nothing beyond."""
        return covers(self.split, self.product.target)

    def by_ldmatrix(self, tile: Tile, contiguous: int, inner: int) -> bool:
        """Whether ldmatrix can read a factor whose k is dimension `inner`, in rows along dimension `contiguous`."""
        return comes_by_ldmatrix(tile, self.text.buffer(tile), self.product.dtype, contiguous, inner)

    def store(self, sum_: str, target: Tile, accumulate: bool) -> None:
        """Write the elements of the sums that lie inside the target."""
        text = self.text
        rows, columns = target.shape[-2:]
        write_each_fragment(text, self.split)
        with text.block():
            text.line(FRAGMENT_PLACE)
            with text.block("" if self.is_whole else f"if (m < {rows} && n < {columns})"):
                write_result(text, target, "m", "n", f"{sum_}[i][j][h]", accumulate)


def _matrix(place: Tile) -> Tile:
    """A place in blocks, without the dimension that counts these: its panel is of one matrix."""
    return replace(place, shape=place.shape[1:], strides=place.strides[1:])


def _clamped(index: str, size: int, run: int, inside: bool) -> str:
    """An index of a run of elements, moved back to the last run where it may lie beyond: nothing of those is kept."""
    return index if inside else f"min({index}, {size - run})"
