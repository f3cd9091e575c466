"""The thread pool: the OpenMP runtime that PyTorch uses, so that one process has one pool."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import logging
from functools import cache
from pathlib import Path

_log = logging.getLogger(__name__)


@cache
def load_thread_pool() -> bool:
    """Make libgomp's symbols visible to kernels loaded later; False when there is none and kernels run on one thread."""
    for name in _candidates():
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            _log.info("cannot load %s: %s", name, error)
        else:
            return True
    _log.info("no OpenMP runtime found: kernels run on one thread")
    return False


def _candidates() -> list[str]:
    torch = importlib.util.find_spec("torch")
    bundled = sorted(Path(torch.origin).parent.glob("lib/libgomp*.so*")) if torch and torch.origin else []
    system = ctypes.util.find_library("gomp")
    return [*map(str, bundled), *([system] if system else [])]
