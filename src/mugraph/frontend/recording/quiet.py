"""PyTorch's tracers without what they log, warn and print about what is refused in one line anyway."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import warnings
from collections.abc import Iterator

_NOISY_LOGGERS = ("torch._guards", "torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
_ONE_AT_A_TIME = threading.RLock()
"""torch.export changes the state of the process while it runs, as silencing it does: threads take turns."""


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Trace inside, in one thread at a time and in silence."""
    loggers = [logging.getLogger(name) for name in _NOISY_LOGGERS]
    with _ONE_AT_A_TIME:
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        try:
            silence = io.StringIO()
            with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
