"""Descriptions of machines: what one says, the units beside its threads, and the GPUs that the files of this package describe."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any

from mugraph.devices.capability import Architecture, Capability
from mugraph.ir.dtypes import DType


@dataclass(frozen=True, slots=True)
class Engines:
    """The units that generated kernels may use: those a machine has, or fewer, for results do not depend on them."""

    bulk_row_bytes: int = 0
    """From how many bytes on a row goes to shared memory as one bulk copy, whose bytes barriers there count (NVIDIA: sm_90 on);
    0: never."""
    warp_group_rows: int = 0
    """From how many rows on four warps multiply together, 64 rows at once, and read one factor from shared memory as they go on
    (NVIDIA: `wgmma`, sm_90 alone); 0: never."""
    tensor_maps: bool = False
    """Whether boxes of tensors, which tensor maps describe, may go to shared memory by one instruction each (NVIDIA: sm_90 on);
    kernels take them where that needs fewer issue slots."""
    producer_warps: bool = False
    """Whether a warp beside a block's threads copies for rings that units alone read, so that those threads need not meet."""
    early_launches: bool = False
    """Whether a kernel may be launched while the one before it in its muGraph ends, and waits for that itself (NVIDIA:
    programmatic dependent launch, sm_90 on)."""


NO_ENGINES = Engines()

PRODUCT_EFFICIENCY = 0.6
"""Share of a machine's rate that products in generated kernels reach on skinny tiles, unless its description knows better."""


class RightFactor(StrEnum):
    """What a product multiplies by, which decides how fast that is read."""

    PLAIN = "plain"
    """A matrix as it lies in memory."""
    PACKED = "packed"
    """Weights in the order in which products read them."""
    BATCHED = "batched"
    """Matrices of a batch that each stay in a multiprocessor's cache, and are copied there."""


@dataclass(frozen=True, slots=True)
class ProductRate:
    """Shares of a machine's rate that products reach, by their rows: `shares` has (rows, share), the fewest rows first.

    In between a share grows as a power of the rows; beyond the last it stays. Of fewer rows than the first it is less in
    proportion, as what multiplies sixteen rows at once takes as long for one.
    """

    shares: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, share: float, rows: int = 1) -> ProductRate:
        """A share that is reached from so many rows on."""
        return cls(((rows, share),))

    @property
    def first(self) -> int:
        """The rows of the first share: a library's products of fewer rows and fewer columns are slower by both."""
        return self.shares[0][0]

    @property
    def best(self) -> float:
        """The largest share."""
        return max(share for _, share in self.shares)

    def of_rows(self, rows: float) -> float:
        """The share of products of so many rows."""
        rows = max(rows, 1)
        if rows < self.first:
            return self.shares[0][1] * rows / self.first
        for (fewer, lower), (more, higher) in pairwise(self.shares):
            if rows < more:
                part = math.log(rows / fewer) / math.log(more / fewer)
                return float(lower * (higher / lower) ** part)
        return self.shares[-1][1]

    def reading(self, rows: int) -> float:
        """The part f of the time of products of so many rows that fewer rows take, too, as it goes to reading the other factor:
        half of the rows take (1 + f) / 2 of the time."""
        return min(max(0.0, self.of_rows(rows) / self.of_rows(rows / 2) - 1.0), 1.0)


@dataclass(frozen=True, slots=True)
class ProductRates:
    """The rates of products by the types of their elements, as far as they were measured."""

    kernels: Mapping[DType, ProductRate] = field(default_factory=dict, hash=False)
    """In generated kernels."""
    library: Mapping[DType, ProductRate] = field(default_factory=dict, hash=False)
    """By a vendor's library."""
    computed: Mapping[DType, float] = field(default_factory=dict, hash=False)
    """Seconds that an element of the right factor takes a kernel beyond its sums where the block computes it, if all
    multiprocessors shared it: it is fp32 then, and is turned and rounded on its way to the product."""


NOT_MEASURED = ProductRates()


_LOADED = 3
"""Times `load_seconds` that a load takes in a memory that is busy: little is lost by more bytes on their way than it wants."""


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
    packs_weights: bool = False
    """Whether kernels read weights that do not change between calls in layouts of their own."""
    short_run_exponent: float = 1.0
    """How the cost of a transfer grows as its contiguous runs get shorter than `vector_bytes`: 1 where every run costs a whole
    one, less where the memory system hides part of it."""
    sector_bytes: int = 1
    """What memory transfers as a whole: shorter runs cost as much."""
    resident_threads: int = 1024
    """Threads of a block that hold registers at the same time: all of them on a GPU, the lanes of a vector on a CPU."""
    clock_hertz: float = 1e9
    """Of a multiprocessor, whose shared memory serves one access of a warp a turn; a boost clock, which loads may lower."""
    turn_share: float = 0.0
    """Part of a turn of shared memory that delays a multiprocessor's threads beside other work: by what lowered kernels wait for
    candidates are put in order (`mugraph.selection.lowered_order`); 0 where none was fitted."""
    load_seconds: float = 0.0
    """From one load that the threads of a block wait for to the next, which latency makes long; 0 where none is exposed."""
    resident_blocks: int = 1
    """Blocks that a multiprocessor runs side by side where their tiles leave room."""
    first_level_bytes: int = 0
    """What a block's tiles may take of a CPU's first-level cache, beyond which they move through the next one; 0 where that makes
    no difference."""
    shared_cache_bytes: int = 0
    """Of a GPU's last cache; 0 where that is not known."""
    shared_cache_partitions: int = 1
    """Of a GPU's last cache: each keeps what the multiprocessors beside it read, so that what all of them read is in each."""
    last_level_bytes: int = 0
    """Of a CPU's last cache: what a block reads beyond that comes from memory once more for the next one; 0 where blocks that run
    side by side read together."""
    product_efficiency: float = PRODUCT_EFFICIENCY
    """Share of `matmul_flops` that products in generated kernels reach."""
    product_rows: int = 0
    """Rows of the products that reach it, where blocks that have fewer of them reach less; else 0."""
    product_reading: float = 0.0
    """Part of the time of such a product that goes to reading weights, or to copying right factors that are none, which blocks
    with fewer rows take, too."""
    product_left: float = 0.0
    """Part of what an element of the right factor takes to be read that one of the left factor takes."""
    computed_factor_seconds: Mapping[DType, float] = field(default_factory=dict, hash=False)
    """`ProductRates.computed` of the factors that products multiply by; of types that are not there nothing."""
    library_products: Mapping[DType, ProductRate] = field(default_factory=dict, hash=False)
    """The rates of a library's products of elements of each dtype, where they were measured (`lower_bounds`)."""
    products: Mapping[RightFactor, ProductRates] = field(default_factory=dict, hash=False)
    """What both are in programs that multiply by factors of each kind; `multiplying` chooses."""
    operands_in_place: bool = False
    """Whether blocks read operands where they lie, through caches, instead of copying tiles into shared memory first."""
    fp8_products: DType = DType.FP32
    """What kernels multiply two inputs of fp8 in: a type of `matmul_flops` that has all of their numbers."""
    tf32_flops: float | None = None
    """As `matmul_flops`, of factors in TF32: what computed factors of fp16 are multiplied in; None where they stay in fp32."""
    scans: bool = False
    """Whether kernels for it may have running sums and products in them."""
    skips_iterations: bool = False
    """Whether kernels for it leave out the iterations of a for-loop that a mask leaves without effect."""
    engines: Engines = NO_ENGINES
    """Units beside the threads of a multiprocessor."""

    @property
    def common_cache_bytes(self) -> int:
        """Of a GPU's last cache, for what multiprocessors everywhere read, as each partition has a copy: what is larger comes
        from another partition or from memory again for later blocks; 0 where that is not known."""
        return self.shared_cache_bytes // self.shared_cache_partitions

    @property
    def bytes_in_flight(self) -> int:
        """Bytes that are to be on their way to a multiprocessor for memory to stay busy: bandwidth times the latency of loads
        that wait for others; 0 where no latency is known."""
        return int(self.busy_load_seconds * self.memory_bandwidth / self.multiprocessors)

    @property
    def busy_load_seconds(self) -> float:
        """Until what is loaded arrives where memory is busy; 0 where no latency is known."""
        return _LOADED * self.load_seconds

    def product_rate(self, left: DType, right: DType, result: DType) -> float:
        """Operations per second of products of inputs of two types, or of what is computed in these, whose results have a third:
        whole device, multiplied in the type of the result unless both factors are of fp8."""
        multiplied = self.fp8_products if left.is_fp8 and right.is_fp8 else result.of_arithmetic
        return self.matmul_flops.get(multiplied, self.matmul_flops[DType.FP32])

    def best_product_rate(self, read: Iterable[DType], result: DType) -> float:
        """The highest rate of any product of what is read, in these types, and of what is computed of it, up to a `result`."""
        return max(self.product_rate(dtype, dtype, dtype) for dtype in (*read, result))

    def multiplying(self, by: RightFactor, dtype: DType, rows: int, library_by: RightFactor | None = None) -> Device:
        """The machine as costs see it in programs whose products are all of so many rows of a dtype and factors of one kind.

        The kind may be another for a library (`library_by`); those that were not measured are as matrices that lie in memory.
        """
        kinds = RightFactor.PLAIN, by, library_by or by
        plain, own, library = (self.products.get(kind, NOT_MEASURED) for kind in kinds)
        kernels = own.kernels.get(dtype, plain.kernels.get(dtype))
        efficiency = self.product_efficiency if kernels is None else kernels.of_rows(rows)
        reading = kernels.reading(rows) if kernels is not None and by is not RightFactor.PLAIN else 0.0
        return replace(
            self,
            product_efficiency=efficiency,
            product_rows=rows if reading else 0,
            product_reading=reading,
            computed_factor_seconds=own.computed,
            product_left=float(reading > 0.0 and by is RightFactor.PACKED),  # beside a batch's, computed ones lie in tiles
            library_products={**plain.library, **library.library},
        )

    @property
    def operations_of_reading(self) -> float:
        """Operations in whose time a product reads an element of the weights, beside those of its sums (`operations_of_sums`)."""
        return 2.0 * self.product_rows * self.product_reading

    @property
    def operations_of_sums(self) -> float:
        """Operations that a product of two numbers and a sum count for, where reading weights counts by itself."""
        return 2.0 * (1.0 - self.product_reading)


_NVIDIA_FILES = (
    *("a100.json", "a100_80gb.json", "l40s.json", "rtx4090.json", "h100.json", "h100_pcie.json", "h200.json"),
    *("b200.json", "b300.json", "rtx5090.json"),
)
_AMD_FILES = ("mi300x.json", "mi355x.json", "rx7900xtx.json")


def gpu(architecture: str) -> Device | None:
    """NVIDIA's usual GPU of an architecture such as `sm_90`, or a particular one such as `sm_90:h200`; None for another name."""
    return _gpus(_NVIDIA_FILES).get(architecture)


def any_gpu(architecture: str) -> Device | None:
    """The same of AMD's GPUs, too, as in `gfx942` and `gfx942:mi300x`."""
    return gpu(architecture) or _gpus(_AMD_FILES).get(architecture)


def architectures() -> tuple[str, ...]:
    """Every architecture, and every architecture with a model, that there is a description of an NVIDIA GPU of."""
    return tuple(_gpus(_NVIDIA_FILES))


def all_architectures() -> tuple[str, ...]:
    """The same of AMD's GPUs, too."""
    return (*architectures(), *_gpus(_AMD_FILES))


@dataclass(frozen=True, slots=True)
class ReportedGpu:
    """A GPU as its driver reports it: `shared_memory_bytes` are those that a block may have."""

    name: str
    capability: Capability
    multiprocessors: int
    shared_memory_bytes: int


def architecture_of(reported: ReportedGpu) -> str | None:
    """The architecture with the model, where NVIDIA's GPU is one that is described; else the latest whose code it runs and whose
    blocks have no more shared memory. None where there is neither."""
    words = set(re.split(r"[\s-]+", reported.name))
    descriptions = _descriptions(_NVIDIA_FILES)
    named = [d for d in descriptions if words.issuperset(d["reported_as"]) and d["multiprocessors"] == reported.multiprocessors]
    if named:
        architectures: list[str] = max(named, key=lambda description: len(description["reported_as"]))["architectures"]
        return next(architecture for architecture in architectures if ":" in architecture)
    fitting = [
        (Architecture.of(name).least, name)
        for name, device in _gpus(_NVIDIA_FILES).items()
        if ":" not in name
        and Architecture.of(name).runs_on(reported.capability)
        and device.shared_memory_bytes <= reported.shared_memory_bytes
    ]
    return max(fitting)[1] if fitting else None


@cache
def _descriptions(files: tuple[str, ...]) -> tuple[dict[str, Any], ...]:
    folder = resources.files("mugraph.devices")
    return tuple(json.loads((folder / file).read_text(encoding="utf-8")) for file in files)


@cache
def _gpus(files: tuple[str, ...]) -> dict[str, Device]:
    return {name: _described(description) for description in _descriptions(files) for name in description["architectures"]}


def _described(description: dict[str, Any]) -> Device:
    fields = {key: value for key, value in description.items() if key not in ("architectures", "reported_as", "sources")}
    fields["matmul_flops"] = {DType.parse(dtype): float(rate) for dtype, rate in fields["matmul_flops"].items()}
    engines = Engines(**fields.pop("engines", {}))
    return Device(target="", engines=engines, **fields)
