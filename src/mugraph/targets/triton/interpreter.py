"""The process in which Triton interprets kernels: `python -m mugraph.targets.triton.interpreter`, with TRITON_INTERPRET=1.

Triton decides when it is imported whether functions are compiled or interpreted, so the two cannot live in one process.
Requests and answers are lines of JSON; before the first of them, null says that the process has started. A request names the
text of a generated file, a kernel of it, its blocks, those of them to run (null: all) and the seconds for that, its warps, and
a file of bytes with the tensors' offsets in it, numbers of elements and element types; the kernel works on these bytes in
place. One of them may be a number that the kernel takes itself; then memory may end within tiles, and reads outside of the
tensors are errors. What GPUs approximate is as inexact here.
"""

from __future__ import annotations

import functools
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from mugraph.targets.triton.approximations import approximate
from mugraph.targets.triton.compiler import module_of, triton_version


def interpret(request: dict[str, Any]) -> int:
    """Run one kernel, and return of how many blocks."""
    memory = np.memmap(request["file"], dtype=np.uint8, mode="r+")
    operands: list[Any] = []
    for offset, elements, name in request["tensors"]:
        dtype: torch.dtype = getattr(torch, name)
        operands.append(torch.from_numpy(memory[offset : offset + dtype.itemsize * elements]).view(dtype))
    watched: AbstractContextManager[None] = nullcontext()
    if (number := request["number"]) is not None:
        watched = _reads_inside([(start := operand.data_ptr(), start + operand.nbytes) for operand in operands])
        operands[number] = int(operands[number])
    kernel = getattr(module_of(request["source"]), request["kernel"])
    blocks, chosen = request["blocks"], request["chosen"]
    launch = functools.partial(kernel[(blocks if chosen is None else 1,)], *operands, num_warps=request["warps"])
    with watched:
        if chosen is None:
            launch()
        ran = blocks if chosen is None else _run_blocks(launch, chosen, blocks, request["seconds"])
    memory.flush()
    return ran


@contextmanager
def _reads_inside(ranges: Sequence[tuple[int, int]]) -> Iterator[None]:
    """Within it, what reads memory outside of these ranges of addresses raises IndexError."""
    from triton.runtime.interpreter import InterpreterBuilder, interpreter_builder

    def load(pointers: Any, mask: Any, *others: Any) -> Any:
        read = pointers.data[np.broadcast_to(mask.data, pointers.data.shape)].astype(np.int64)
        inside = np.any([(first <= read) & (read < last) for first, last in ranges], axis=0)
        if not inside.all():
            raise IndexError(f"{int((~inside).sum())} elements are read that lie in no operand")
        return InterpreterBuilder.create_masked_load(interpreter_builder, pointers, mask, *others)

    interpreter_builder.create_masked_load = load
    try:
        yield
    finally:
        del interpreter_builder.create_masked_load


def _run_blocks(launch: Callable[[], object], chosen: Sequence[int], blocks: int, seconds: float) -> int:
    """Run the chosen ones of a grid of `blocks` by launches of one block each, none after `seconds` but the first; how many."""
    from triton.runtime.interpreter import interpreter_builder

    begun = time.monotonic()
    for ran, block in enumerate(chosen):
        if ran > 0 and time.monotonic() - begun > seconds:
            return ran

        def set_grid_idx(x: int, y: int, z: int, block: int = block) -> None:
            interpreter_builder.grid_dim, interpreter_builder.grid_idx = (blocks, 1, 1), (block, 0, 0)

        interpreter_builder.set_grid_idx = set_grid_idx
        try:
            launch()
        finally:
            del interpreter_builder.set_grid_idx
    return len(chosen)


def main() -> None:
    """Answer requests until there are no more: how many blocks were run, or what went wrong.

    Ctrl-C is for the process that asks, which ends with the best it has by then.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    np.seterr(all="ignore")  # exp(-inf) and its like are what kernels mean
    triton_version()
    approximate()
    print(json.dumps(None), flush=True)
    for line in sys.stdin:
        try:
            answer: int | str = interpret(json.loads(line))
        except Exception as error:  # whatever a kernel raises is the answer
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
