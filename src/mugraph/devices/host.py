"""The CPU mugraph is running on, as far as the operating system tells; cpu.json supplies what it does not."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mugraph.devices.device import NOT_MEASURED, Device, ProductRate, ProductRates, RightFactor
from mugraph.devices.measured_host import keep_measured, measured_rates, processor_name
from mugraph.ir.dtypes import DType

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_PROCESSOR = Path("/proc/cpuinfo")
_MEMORY = Path("/proc/meminfo")
_SCHEDULED = Path("/proc/self/schedstat")
_RESERVE = 0.25
"""The part of the memory that is left free by what is kept only because it may be wanted again."""
_NONE: Mapping[str, Any] = MappingProxyType({})


def host_cpu() -> Device:
    """This host as a device: a block is one core's task, its shared memory half of that core's L2 cache. Its tiles have half of
    the first-level cache, through whose other half goes what it reads and writes in place.

    It has the cores that kernels run on: no more than PyTorch was told to use threads.
    """
    return _host_of(kernel_threads())


@cache
def _host_of(cores: int) -> Device:
    facts, isa = _described()
    measured = measured_rates(processor_name(_PROCESSOR), isa)
    rates = merged(isa, measured or {})
    memory = facts["memory"] | rates.get("memory", {})
    products = product_rates(rates.get("products", {}), isa.get("computed_factor_seconds_of_core", {}), cores)
    return Device(
        name=f"{platform.machine()} CPU, {cores} cores, {isa['name']}{'' if measured is None else ', measured'}",
        target="cpu",
        multiprocessors=cores,
        shared_memory_bytes=cache_bytes(_CACHES, 2, memory["l2_bytes_unknown"]) // 2,
        register_bytes=isa["vector_registers"] * isa["vector_bytes"],
        device_memory_bytes=_physical_memory(memory["bytes_unknown"]),
        memory_bandwidth=min(cores * memory["bandwidth_per_core"], memory["bandwidth_most"]),
        cache_bandwidth=cores * memory["cache_bandwidth_per_core"],
        matmul_flops={DType.parse(dtype): cores * rate for dtype, rate in rates["matmul_flops_per_core"].items()},
        vector_flops=cores * isa["vector_flops_per_core"],
        launch_seconds=facts["launch_seconds"],
        iteration_seconds=facts["iteration_seconds"],
        threads_per_block_max=facts["threads_per_block_max"],
        vector_bytes=facts["stream_bytes"],
        short_run_exponent=facts["short_run_exponent"],
        resident_threads=isa["vector_bytes"] // DType.FP32.bytes,
        first_level_bytes=memory["first_level_bytes"] // 2,
        last_level_bytes=cache_bytes(_CACHES, 3, memory["l3_bytes_unknown"]),
        library_products=products.get(RightFactor.PLAIN, NOT_MEASURED).library,
        products=products,
        operands_in_place=True,
        packs_weights=True,
        scans=True,
        skips_iterations=True,
    )


def _described() -> tuple[dict[str, Any], dict[str, Any]]:
    """What the table says of all hosts, and of those with this one's instruction set."""
    facts = json.loads((resources.files("mugraph.devices") / "cpu.json").read_text(encoding="utf-8"))
    return facts, instruction_set(facts["instruction_sets"], processor_features(_PROCESSOR))


def keep_rates(rates: Mapping[str, Any]) -> None:
    """Keep what was measured of this host (`measured_host`): `host_cpu` has it from then on."""
    keep_measured(processor_name(_PROCESSOR), _described()[1], rates)
    _host_of.cache_clear()


def measured_about() -> str | None:
    """What is said of what was measured of this host; None where costs have the rates of the table."""
    measured = measured_rates(processor_name(_PROCESSOR), _described()[1])
    return None if measured is None else str(measured["about"])


def merged(isa: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table with what was measured in its place: shares that were not are of the rate that is there now.

    Kernels multiply one row by vectors, and read a number for each that they multiply: timed, that would be memory's rate, which
    costs know by itself. They are taken to be as fast as at elementwise operators, which would take the place of products else.
    Right factors of a batch are copied for any number of rows, so that fewer than were timed take as long.
    """
    rates = dict(isa)
    if not measured:
        return rates
    before, now = isa["matmul_flops_per_core"], isa["matmul_flops_per_core"] | measured["matmul_flops_per_core"]
    one_row = {("kernels", kind) for kind in RightFactor if kind is not RightFactor.BATCHED}
    kinds: dict[str, Any] = {}
    for kind in {**isa.get("products", {}), **measured["products"]}:
        described, own = (source.get(kind, {}) for source in (isa.get("products", {}), measured["products"]))
        kinds[kind] = {
            who: {
                dtype: {rows: min(1.0, share * before[dtype] / now[dtype]) for rows, share in shares.items()}
                for dtype, shares in described.get(who, {}).items()
            }
            | {
                dtype: ({"1": min(1.0, isa["vector_flops_per_core"] / now[dtype])} if (who, kind) in one_row else {}) | shares
                for dtype, shares in own.get(who, {}).items()
            }
            for who in {**described, **own}
        }
    return rates | {"memory": measured["memory"], "matmul_flops_per_core": now, "products": kinds}


def product_rates(
    kinds: dict[str, Any], computed: Mapping[str, float] = _NONE, cores: int = 1
) -> dict[RightFactor, ProductRates]:
    """The rates of products of a description: by what is multiplied by, who multiplies, the type, and rows. Of a batch's right
    factors those that blocks compute take a core so many seconds an element."""

    def rate(shares: Mapping[str, float]) -> ProductRate:
        return ProductRate(tuple(sorted((int(rows), share) for rows, share in shares.items())))

    def by_type(shares: Mapping[str, Mapping[str, float]]) -> dict[DType, ProductRate]:
        return {DType.parse(dtype): rate(own) for dtype, own in shares.items()}

    def of_both(kernels: Mapping[str, Any] = _NONE, library: Mapping[str, Any] = _NONE) -> ProductRates:
        return ProductRates(by_type(kernels), by_type(library))

    rates = {RightFactor(kind): of_both(**both) for kind, both in kinds.items()}
    if computed:
        seconds = {DType.parse(dtype): seconds / cores for dtype, seconds in computed.items()}
        rates[RightFactor.BATCHED] = replace(rates.get(RightFactor.BATCHED, NOT_MEASURED), computed=seconds)
    return rates


def available_cores() -> int:
    """Cores this process may run on, which a container or `taskset` makes fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def kernel_threads() -> int:
    """Threads that kernels run on: those of PyTorch's pool where it is loaded, one for each core at most."""
    threads = getattr(sys.modules.get("torch"), "get_num_threads", available_cores)  # which PyTorch has late while it is loaded
    return min(available_cores(), int(threads()))


def free_memory() -> int:
    """Bytes that this machine can give a process without swapping, as far as it says; else all that it has."""
    with suppress(OSError, ValueError, IndexError):
        for line in _MEMORY.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return host_cpu().device_memory_bytes


def memory_lasts() -> bool:
    """Whether there is room for what is kept only because it may be wanted again."""
    return free_memory() > _RESERVE * host_cpu().device_memory_bytes


def slowdown() -> float:
    """Seconds that pass for each that this process computes, as others have the cores: its waits for a core so far tell, and 1
    where the system does not."""
    with suppress(OSError, ValueError):
        computed, waited = (int(part) for part in _SCHEDULED.read_text(encoding="utf-8").split()[:2])
        return 1 + waited / max(computed, 1)
    return 1.0


_TOGETHER = 1.5
"""Power of the slowdown by which calls on several threads are slowed down: they end with their last thread."""


def slowdown_of_calls() -> float:
    """The same for calls on all threads that kernels run on.

    On two threads at a load of 6, a product took 4 to 4.7 times as long as alone, while this process waited 1.6 to 2.2 times as
    long as it computed.
    """
    return slowdown() ** (_TOGETHER if kernel_threads() > 1 else 1)


def seconds_when_busy(seconds: float, calls: float) -> float:
    """What takes so many seconds on a quiet machine takes on this one, as busy as it is, and no less than calls on all threads do
    that take `calls` seconds there."""
    return max(seconds * slowdown(), calls * slowdown_of_calls())


def processor_features(cpuinfo: Path) -> frozenset[str]:
    """The instruction-set flags Linux reports for the first core; empty where there is no such file."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def instruction_set(rows: list[dict[str, Any]], features: frozenset[str]) -> dict[str, Any]:
    """The first row all of whose required features are present; the last row requires none."""
    return next(row for row in rows if features.issuperset(row["requires"]))


def cache_bytes(caches: Path, level: int, unknown: int) -> int:
    """Size of the first core's cache of a level as Linux reports it, or `unknown`."""
    for index in sorted(caches.glob("index*")):
        try:
            if (index / "level").read_text().strip() == str(level):
                return _size((index / "size").read_text().strip())
        except (OSError, ValueError):
            continue
    return unknown


def _size(text: str) -> int:
    """`1024K` or `2M` in bytes."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def _physical_memory(unknown: int) -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return unknown
