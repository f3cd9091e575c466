"""The description of one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mugraph.devices.engines import NO_ENGINES, Engines
from mugraph.ir.dtypes import DType


@dataclass(frozen=True, slots=True)
class Device:
    """A machine as schedules and costs see it: how much fits, and how fast it moves and computes.

    A *multiprocessor* runs one block at a time as far as limits go: a streaming multiprocessor of a GPU, a core of a CPU.
    """

    name: str
    target: str
    """What it was asked for as: `cpu`, `cuda:sm_90`, ..."""
    multiprocessors: int
    shared_memory_bytes: int
    """Per block; on a CPU the part of a core's L2 cache that a block's tiles may fill."""
    register_bytes: int
    """Per block."""
    device_memory_bytes: int
    memory_bandwidth: float
    """Bytes per second from DRAM, whole device."""
    cache_bandwidth: float
    """Bytes per second from the last shared cache, whole device: what generated kernels draw from it."""
    matmul_flops: Mapping[DType, float] = field(hash=False)
    """Matrix multiplication on operands of each dtype, accumulated in at least fp32: operations per second, whole device."""
    vector_flops: float
    """Elementwise operations per second, whole device: as generated kernels do them, operands and results in their tiles."""
    launch_seconds: float
    """Per kernel."""
    iteration_seconds: float
    """Per operator in a for-loop and iteration of a block, beyond the work itself: time of the threads, not of what copies."""
    threads_per_block_max: int
    vector_bytes: int
    """Contiguous bytes the innermost dimension of a tile should have for memory to stream at full rate."""
    short_run_exponent: float = 1.0
    """How the cost of a transfer grows as its contiguous runs get shorter than `vector_bytes`: 1 where every run costs a whole
    one, less where the memory system hides part of it."""
    sector_bytes: int = 1
    """What memory transfers as a whole: shorter runs cost as much."""
    resident_threads: int = 1024
    """Threads of a block that hold registers at the same time: all of them on a GPU, the lanes of a vector on a CPU."""
    clock_hertz: float = 1e9
    """Of a multiprocessor, whose shared memory serves one access of a warp a turn; a boost clock, which loads may lower."""
    resident_blocks: int = 1
    """Blocks that a multiprocessor runs side by side where their tiles leave room."""
    operands_in_place: bool = False
    """Whether blocks read operands where they lie, through caches, instead of copying tiles into shared memory first."""
    tf32_flops: float | None = None
    """As `matmul_flops`, of factors in TF32: what computed factors of fp16 are multiplied in; None where they stay in fp32."""
    engines: Engines = NO_ENGINES
    """Units beside the threads of a multiprocessor."""
