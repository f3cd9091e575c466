"""The lowered form: what every target's printer reads.

A kernel is a grid of independent blocks. A block runs the statements `before`, then `body` once per iteration of its
for-loop, then `after`. Statements read and write tiles: strided windows of buffers whose start moves with the block
and the iteration. Views, iterators and savers are gone: they are strides and starts. All arithmetic is in
fp32; buffers of other types are converted where they are read and written.

A block is one thread (a task of a CPU) or several, which share the elements of every statement among them and meet at
barriers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

from mugraph.devices.products import WARP
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Shape, Value
from mugraph.lower.counted_slices import FirstSlices
from mugraph.lower.phases import Phase
from mugraph.lower.places import START, Index, Swizzle
from mugraph.lower.scalar_expressions import Expression

MBARRIER_BYTES = 8
"""Bytes of a barrier in shared memory that counts threads and the bytes of bulk copies."""


class Memory(StrEnum):
    """Where a buffer lives: device memory, the memory one block shares (a cache-resident scratch on a CPU), or registers.

    A buffer in registers is a sum of products, each warp holding the fragments of it that its matrix unit adds to, or what a loop
    reduces to, each thread holding what it found for one result (`register_reductions.py`). One of `ROWS` has a number for each
    row of such fragments, which all lanes that hold some of the row have (`register_rows.py`).
    """

    DEVICE = "device"
    SHARED = "shared"
    REGISTERS = "registers"
    ROWS = "rows"

    @property
    def in_registers(self) -> bool:
        """Whether threads have elements of it to themselves."""
        return self in (Memory.REGISTERS, Memory.ROWS)


class Combine(StrEnum):
    """How values that meet in one element are combined."""

    SUM = "sum"
    MAX = "max"

    @property
    def identity(self) -> float:
        """The number that changes no other: what an accumulator starts with."""
        return {Combine.SUM: 0.0, Combine.MAX: -math.inf}[self]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of memory of `elements` elements; `offset` is its first byte in the block's shared memory."""

    name: str
    memory: Memory
    dtype: DType
    elements: int
    offset: int = 0

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self.elements * self.dtype.bytes


@dataclass(frozen=True, slots=True)
class TableRows:
    """What integers add to the places of a tile: element (i_0, i_1, ...) lies `stride` times element (i_0, i_1, ...) of `index`
    further on. The integers count `rows`; with `wraps`, negative ones from the end.
    """

    index: Tile
    stride: int
    rows: int
    wraps: bool = False


@dataclass(frozen=True, slots=True)
class Tile:
    """A window of a buffer: element (i_0, i_1, ...) is `sum_d strides[d] * i_d` elements behind `start`.

    In a swizzled tile that sum goes through `swizzle`; in one that looks up a table, integers add to it what `lookup` says.
    """

    buffer: str
    shape: Shape
    strides: tuple[int, ...]
    start: Index = START
    swizzle: Swizzle | None = None
    lookup: TableRows | None = None

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)


@dataclass(frozen=True, slots=True)
class StatementLabel:
    """What a statement computes: the operator of the block graph's node (`square_3`), or what it keeps of that node's value
    (`acc_5`, `largest_7`). Printers may use it as a name; nothing that is computed depends on it.
    """

    name: str
    node: int

    def __str__(self) -> str:
        return f"{self.name}_{self.node}"


@dataclass(frozen=True, slots=True)
class Elementwise:
    """`target = expression(sources)`, or combined with what the target holds; sources have the target's shape."""

    target: Tile
    sources: tuple[Tile, ...]
    expression: Expression
    combine: Combine | None = None
    label: StatementLabel | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Reduce:
    """`target[i...] = combine over r of expression(sources[i..., r])`; with `accumulate`, combined with the target too."""

    target: Tile
    sources: tuple[Tile, ...]
    expression: Expression
    combine: Combine
    accumulate: bool = False
    label: StatementLabel | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Scan:
    """`target[..., i, ...] = combination over j <= i of expression(sources[..., j, ...])` along dimension `dim` (`back`: j >= i).

    Sources have the target's shape. What runs is kept in double precision, and rounded where it is stored.
    """

    target: Tile
    sources: tuple[Tile, ...]
    expression: Expression
    op: str
    dim: int
    back: bool
    label: StatementLabel | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Panels:
    """How a product's factors stream through a ring: asynchronous copies of `depth` values of k, ahead of their use.

    `left` and `right` are the places of a panel of each factor in a slot of the ring; None for a factor that is read
    where it lies. With `grouped`, groups of four warps multiply, and the right factor's place has one dimension more: blocks
    of short rows, as they read it (`warp_groups.py`). With `boxed`, both places are such blocks, each a box that a tensor map
    describes (`tensor_maps.py`). Each of `parts` sets of warps multiplies as many values of k of a panel (`parts_of_panels.py`).
    """

    depth: int
    left: Tile | None
    right: Tile | None
    grouped: bool = False
    boxed: bool = False
    parts: int = 1

    @property
    def left_in_blocks(self) -> bool:
        """Whether the left factor's place is blocks of short rows."""
        return self.boxed

    @property
    def right_in_blocks(self) -> bool:
        """Whether the right factor's place is."""
        return self.grouped or self.boxed


@dataclass(frozen=True, slots=True)
class Strips:
    """How a right factor lies that was packed for its product: `depth` rows of it after another, each such panel in strips of
    `width` columns, a strip row by row. The last panel may have fewer rows, the last strip of a panel fewer columns. With `pairs`
    two rows are one, in which every number of the first stands before that of the second, and with `fours` four rows are.
    """

    depth: int
    width: int
    pairs: bool = False
    fours: bool = False

    @property
    def together(self) -> int:
        """Rows that are one."""
        return 4 if self.fours else 2 if self.pairs else 1


@dataclass(frozen=True, slots=True)
class Dequantization:
    """What the numbers of a packed right factor stand for: each for `slope * number + offset`.

    `number` is an expression of Source(0), the element that lies there; `slope` and `offset` are of `sources`, every row of which
    counts for `group` values of k. These lie in strips like the factor's, of as many columns.
    """

    number: Expression
    slope: Expression
    offset: Expression
    sources: tuple[Tile, ...]
    group: int


@dataclass(frozen=True, slots=True)
class Matmul:
    """`target[..., m, n] = left[..., m, k] @ right[..., k, n]`; with `accumulate`, added to the target.

    `dtype` is the type of both factors in the muGraph: they may be rounded to it, but with `tf32` no further than to TF32, which
    keeps as many bits as fp16 and has the range of fp32. With `panels`, factors stream through the kernel's ring, and the
    block's threads meet at a barrier before each panel is used. With `strips`, the right factor's last two dimensions are no
    strides, but as many elements in that order, and with `dequantized` these are not the factor's own.
    """

    target: Tile
    left: Tile
    right: Tile
    dtype: DType
    accumulate: bool = False
    panels: Panels | None = None
    tf32: bool = False
    strips: Strips | None = None
    dequantized: Dequantization | None = None
    label: StatementLabel | None = field(default=None, compare=False)

    @property
    def sources(self) -> tuple[Tile, ...]:
        """The two factors, and what the right one's slopes and offsets are computed of."""
        return (self.left, self.right, *(self.dequantized.sources if self.dequantized is not None else ()))


Statement = Elementwise | Reduce | Scan | Matmul


@dataclass(frozen=True, slots=True)
class Integers:
    """An input of integers that must lie from `least` up to, but not at, `rows`: kernels look a table up there."""

    buffer: str
    least: int
    rows: int


@dataclass(frozen=True, slots=True)
class Ring:
    """The `stages` slots of `slot` elements in a shared buffer that panels pass through, in the order of their use.

    The copies into one slot are issued while the `ahead` panels before it wait or are being used. With `bulk`, the
    engine for bulk copies makes them, by rows or boxes, and behind the slots lies a barrier for each, which counts its bytes.
    Products of the `lag` panels before the one in use may still read their slots (`warp_groups.py`). With a `producer`, a warp
    beside the block's threads issues the copies, and slots have a second barrier each, which counts the warps that have done
    with their panel (`producer_warps.py`).
    """

    buffer: str
    stages: int
    slot: int
    bulk: bool = False
    lag: int = 0
    producer: bool = False

    @property
    def ahead(self) -> int:
        """Panels whose copies are issued before the first one is used."""
        return self.stages if self.producer else self.stages - 1 - self.lag

    @property
    def barriers(self) -> int:
        """Barriers in shared memory, behind the slots."""
        return self.stages * (self.bulk + self.producer)

    def bytes(self, dtype: DType) -> int:
        """Bytes of slots for elements of `dtype` and of their barriers."""
        return self.stages * self.slot * dtype.bytes + self.barriers * MBARRIER_BYTES


@dataclass(frozen=True, slots=True)
class Staged:
    """A tile of an input that asynchronous copies bring, row-major, to a shared buffer: one that every iteration reads anew to
    slots in turn, one that a kernel without a loop reads late to the only slot. Statements name it by that buffer, from the first
    element of the slot on."""

    buffer: str
    source: Tile


@dataclass(frozen=True, slots=True)
class Load:
    """A window of an input that the muGraph's node `node` reads as one tile, in the part of the kernel where it does so.

    Statements read it where it lies, in other dimensions perhaps; a target that computes on whole tiles reads it once.
    """

    node: int
    tile: Tile
    phase: Phase


@dataclass(frozen=True, slots=True)
class Skip:
    """An iteration may be left out where all elements of a tile of an input are `value`: it would change no accumulator.

    It would not wherever what it computes of finite numbers is finite (`mugraph.lower.skipped_iterations`).
    """

    tile: Tile
    value: float


@dataclass(frozen=True, slots=True)
class GrowingInput:
    """An input that has, along dimension `axis` of its `shape`, only `more` elements more than a call says.

    `strides` are those of its dimensions: arguments of the kernel (`mugraph.lower.argument_strides`), the last one 1.
    """

    buffer: str
    shape: Shape
    axis: int
    more: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """What the statements of a phase read of a growing input: so many elements from a start on, in each of its dimensions.

    Where the input ends within it, they read the shared buffer `copy` instead, which has 0 in the place of the rest; without one
    they stop there.
    """

    source: GrowingInput
    phase: Phase
    starts: tuple[Index, ...]
    extents: Shape
    copy: str = ""


@dataclass(frozen=True, slots=True)
class CutOff:
    """How the statements of a phase stop where inputs end: of `extent` elements from `start` on they compute those that are held,
    which are all up to `more` elements more than the length.

    `dims` has for each statement the dimension of its points along which it stops: one of its target's, or behind these the one
    that it reduces or sums over. It is None for one that has nothing to do with the axis of the inputs.
    """

    phase: Phase
    start: Index
    extent: int
    more: int
    dims: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Growing:
    """The inputs of a kernel whose lengths are arguments, and what is read of them.

    If there are `ends`, an iteration that begins at least so many elements behind the length in each does nothing. If there are
    `held`, one that ends at most so many elements behind it in each may run `body` in the place of the kernel's. With `cut_off`
    statements of a phase read what is held and nothing else, and there are no copies. `sizes` is the input that has the
    arguments: the length and then the strides.
    """

    windows: tuple[Window, ...]
    ends: tuple[tuple[Index, int], ...]
    held: tuple[tuple[Index, int], ...]
    body: tuple[Statement, ...]
    sizes: str
    cut_off: CutOff | None = None


@dataclass(frozen=True, slots=True)
class Bands:
    """An order of blocks: `size` neighbours along dimension `dim` of the grid run one after the other before any dimension behind
    it goes on, and the last band has what is left. Dimensions before `dim` go on last."""

    dim: int
    size: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch: `inputs` and `outputs` name the device buffers its caller supplies, in order.

    A block has `threads` threads; `barriers` are the numbers (in the order of `statements`) of those before which its
    threads wait for each other; `resident` blocks are to run beside each other on a multiprocessor. `loads` stand in the order
    of the block graph. `tensors` says where those of the block graph lie that lie in buffers: one that moves has an entry for
    each place, in this order. Nothing that runs depends on it. Where one of `skips` holds an iteration may be left out, or run.
    `growing` says which inputs have lengths that are arguments, `slices` that the number of these is one. Blocks are numbered by
    `bands`, or with the last dimension of the grid fastest. A kernel that is `chained` may be launched before the kernels before
    it in its muGraph are over: it waits for these, and lets the next one be launched.
    """

    name: str
    grid: tuple[int, ...]
    loop: int
    buffers: tuple[Buffer, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    before: tuple[Statement, ...]
    body: tuple[Statement, ...]
    after: tuple[Statement, ...]
    threads: int = 1
    barriers: frozenset[int] = frozenset()
    ring: Ring | None = None
    staged: tuple[Staged, ...] = ()
    resident: int = 1
    loads: tuple[Load, ...] = ()
    tensors: tuple[tuple[Value, Tile], ...] = ()
    skips: tuple[Skip, ...] = ()
    growing: Growing | None = None
    slices: FirstSlices | None = None
    bands: Bands | None = None
    chained: bool = False

    @property
    def statements(self) -> tuple[Statement, ...]:
        """All statements in the order they first run."""
        return (*self.before, *self.body, *self.after)

    def of_phase(self, phase: Phase) -> tuple[Statement, ...]:
        """The statements of a phase."""
        return (self.before, self.body, self.after)[phase]

    def with_phase(self, phase: Phase, statements: tuple[Statement, ...]) -> Kernel:
        """The kernel with other statements in a phase."""
        parts = [self.before, self.body, self.after]
        parts[phase] = statements
        return replace(self, before=parts[0], body=parts[1], after=parts[2])

    @property
    def launched_threads(self) -> int:
        """Threads that a block is launched with: those that share its statements, and the warp that copies for them if any."""
        return self.threads + (WARP if self.ring is not None and self.ring.producer else 0)

    @property
    def shared_bytes(self) -> int:
        """Shared memory one block needs, in bytes."""
        return max((b.offset + b.bytes for b in self.buffers if b.memory is Memory.SHARED), default=0)

    @property
    def integers(self) -> tuple[Integers, ...]:
        """What the inputs of integers must be that statements look tables up at."""
        lookups = [tile.lookup for statement in self.statements for tile in statement.sources if tile.lookup is not None]
        ranges = (Integers(each.index.buffer, -each.rows if each.wraps else 0, each.rows) for each in lookups)
        return tuple(dict.fromkeys(ranges))

    def buffer(self, name: str) -> Buffer:
        """The buffer called `name`."""
        return next(buffer for buffer in self.buffers if buffer.name == name)

    @property
    def arriving(self) -> frozenset[str]:
        """The shared buffers that asynchronous copies write, from before the first statement until behind the last."""
        ring = () if self.ring is None else (self.ring.buffer,)
        return frozenset((*ring, *(staged.buffer for staged in self.staged)))
