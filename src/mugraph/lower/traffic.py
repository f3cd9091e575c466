"""What accesses ask of memory: wavefronts of the banks of shared memory, sectors of device memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mugraph.lower.thread_mapping import WIDEST_ACCESS
from mugraph.lower.tile_form import Buffer, Memory, Tile
from mugraph.lower.warp_accesses import Places

_BANKS, _WORD = 32, 4
_SECTOR = 32
"""Bytes that device memory gives at once."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Turns in which shared memory serves a block's accesses, and sectors of device memory that each of them asks for.

    A wavefront gives every bank one 4-byte word. Sectors are counted warp access by warp access: one that several accesses
    ask for counts several times, as it does where coalescing fails.
    """

    wavefronts: float = 0.0
    sectors: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.wavefronts + other.wavefronts, self.sectors + other.sectors)

    def times(self, count: float) -> Traffic:
        """The same accesses `count` times."""
        return Traffic(self.wavefronts * count, self.sectors * count)

    @property
    def cost(self) -> float:
        """Both, in cycles of a multiprocessor's memory units, which serve one wavefront or one sector in each."""
        return self.wavefronts + self.sectors


NONE = Traffic()


def traffic_of(buffer: Buffer, tile: Tile, places: Places, elements: int = 1) -> Traffic:
    """The traffic of accesses [accesses, lanes] to runs of `elements` elements; of more than 16 bytes they are several."""
    moved = places if tile.swizzle is None else tile.swizzle(places)
    addresses = (moved + tile.start.constant) * buffer.dtype.bytes
    width = min(elements * buffer.dtype.bytes, WIDEST_ACCESS)
    parts = [addresses + part for part in range(0, elements * buffer.dtype.bytes, width)]
    if buffer.memory is Memory.SHARED:
        return Traffic(wavefronts=sum(wavefronts(part, width) for part in parts))
    return Traffic(sectors=sum(map(sectors, parts)))


def wavefronts(addresses: Places, width: int) -> int:
    """Wavefronts that serve accesses [accesses, lanes] of `width` bytes from byte addresses; wide lanes go in groups."""
    lanes = addresses.shape[1]
    group = min(lanes, max(1, _BANKS * _WORD // width))
    starts = addresses.reshape(-1, group, 1) + np.arange(0, width, _WORD)
    words = np.sort(starts.reshape(len(starts), -1) // _WORD, axis=1)
    slots = np.arange(len(words))[:, None] * _BANKS + words % _BANKS
    accesses = np.bincount(slots[_distinct(words)], minlength=len(words) * _BANKS)
    return int(accesses.reshape(-1, _BANKS).max(axis=1).sum())


def sectors(addresses: Places) -> int:
    """Sectors that accesses [accesses, lanes] touch, each of which lies in one."""
    return int(_distinct(np.sort(addresses // _SECTOR, axis=1)).sum())


def _distinct(ordered: Places) -> np.ndarray:
    """Where in each row a number stands that is not the one before."""
    distinct = np.ones(ordered.shape, bool)
    distinct[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return distinct
