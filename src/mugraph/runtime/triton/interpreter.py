"""The process in which Triton interprets kernels: `python -m mugraph.runtime.triton.interpreter`, with TRITON_INTERPRET=1.

Triton decides when it is imported whether functions are compiled or interpreted, so the two cannot live in one process. Requests
and answers are lines of JSON. A request names a generated file's text, a kernel of it, its blocks and warps, and a file of
bytes with the tensors' offsets in it, shapes and element types; the kernel works on these bytes in place.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch

from mugraph.runtime.triton.modules import module_of


def interpret(request: dict[str, Any]) -> None:
    """Run one kernel."""
    memory = np.memmap(request["file"], dtype=np.uint8, mode="r+")
    tensors = []
    for offset, shape, name in request["tensors"]:
        dtype: torch.dtype = getattr(torch, name)
        size = dtype.itemsize * int(np.prod(shape))
        tensors.append(torch.from_numpy(memory[offset : offset + size]).view(dtype).reshape(shape))
    kernel = getattr(module_of(request["source"]), request["kernel"])
    kernel[(request["blocks"],)](*tensors, num_warps=request["warps"])
    memory.flush()


def main() -> None:
    """Answer requests until there are no more: null, or what went wrong."""
    np.seterr(all="ignore")  # exp(-inf) and its like are what kernels mean
    for line in sys.stdin:
        try:
            interpret(json.loads(line))
            answer = None
        except Exception as error:  # whatever a kernel raises is the answer
            answer = f"{type(error).__name__}: {error}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
