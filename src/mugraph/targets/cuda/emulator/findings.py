"""What the emulator finds wrong with a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Fault(Enum):
    """Kinds of faults, in the order of the emulator's `Kind`; the value says what happened."""

    RACE = "touches what {other} touched with no barrier between them, and one of them writes"
    IN_FLIGHT = "touches what an asynchronous copy of {other} may still write"
    UNINITIALIZED = "reads what nobody has written"
    OUT_OF_BOUNDS = "leaves its memory"
    MISALIGNED = "is not aligned to its size"
    INPUT_WRITTEN = "writes to an input"
    DIVERGENCE = "waits for what never comes"
    UNWRITTEN = "was never written"
    UNFENCED = "gives an asynchronous unit what {other} wrote with no proxy fence behind it"
    REGISTERS = "gives registers to an asynchronous unit with no fence before"
    UNFINISHED = "is still being copied when the block ends"
    DISAGREEMENT = "names another matrix than the first thread of its group"
    EARLY = "is touched before the thread has waited for the kernels before this one"


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a kernel, as it was first met; `count` says how often the same line repeated it.

    `place` is `shared memory` (with the buffers there, where they are known), `input 0`, `output 1`, ... or `an unknown
    address`, and `offset` the first byte in it. `barriers` is how many barriers the block had passed, `line` the line of the
    kernels' text, `other` the thread of the earlier access.
    """

    fault: Fault
    kernel: str
    place: str
    offset: int
    bytes: int
    block: int
    thread: int
    other: int | None
    barriers: int
    line: int | None
    count: int

    def __str__(self) -> str:
        line = "" if self.line is None else f", line {self.line}"
        if self.fault is Fault.UNWRITTEN:
            return f"{self.kernel}: {self.place} {self.fault.value} at byte {self.offset} ({self.count} elements in all)"
        who = f"{self.kernel}{line}: thread {self.thread} of block {self.block}, after {self.barriers} barriers,"
        what = self.fault.value.format(other="nobody" if self.other is None else f"thread {self.other}")
        if self.fault in (Fault.DIVERGENCE, Fault.REGISTERS, Fault.DISAGREEMENT):
            return f"{who} {what}"
        repeated = "" if self.count == 1 else f" ({self.count} times)"
        return f"{who} at byte {self.offset} of {self.place} ({self.bytes} bytes) {what}{repeated}"
