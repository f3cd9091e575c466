"""PyTorch's tracers without what they log, warn and print about what is refused in one line anyway."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

_NOISY_LOGGERS = ("torch._guards", "torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
_ONE_AT_A_TIME = threading.RLock()
"""torch.export changes the state of the process while it runs, as silencing it does: threads take turns."""


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Trace inside, in one thread at a time and in silence; what other threads print and log meanwhile is theirs."""
    ours = threading.get_ident()
    loggers = [logging.getLogger(name) for name in _NOISY_LOGGERS]

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != ours

    with _ONE_AT_A_TIME:
        for logger in loggers:
            logger.addFilter(is_of_others)
        out, errors = _OfOthers(sys.stdout, ours), _OfOthers(sys.stderr, ours)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            for logger in loggers:
                logger.removeFilter(is_of_others)


class _OfOthers:
    """A stream that drops what one thread writes; None, as where a program has no terminal, takes nothing."""

    def __init__(self, stream: Any, silent: int) -> None:
        self._stream, self._silent = stream, silent

    def write(self, text: str) -> int:
        """Write the text of another thread."""
        if self._stream is not None and threading.get_ident() != self._silent:
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what others wrote."""
        if self._stream is not None:
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
