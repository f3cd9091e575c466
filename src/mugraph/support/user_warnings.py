"""Warnings that point at the user's line, not at ours."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import FrameType

from mugraph.errors import GradientsDropped, MugraphWarning

_PACKAGE = str(Path(__file__).parent.parent)


def _ours() -> tuple[str, ...]:
    """Where files lie that no user wrote: ours, and PyTorch's, through which modules are called."""
    torch = sys.modules.get("torch")
    return (_PACKAGE,) if torch is None or torch.__file__ is None else (_PACKAGE, str(Path(torch.__file__).parent))


def warn_user(text: str, category: type[MugraphWarning]) -> None:
    """Warn as from the innermost line outside of mugraph and PyTorch: Python shows a text once for each such line."""
    if sys.version_info >= (3, 12):
        warnings.warn(text, category, skip_file_prefixes=_ours())
        return
    depth, ours = 1, _ours()
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(ours):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(text, category, stacklevel=depth)


def warn_of_gradient(what: str) -> None:
    """Warn that kernels give `what`, which requires a gradient, none."""
    warn_user(
        f"{what} requires a gradient, and the kernels that read it give none: call them under torch.inference_mode() or "
        "torch.no_grad(), or train with the original function (mugraph.optimize runs it where gradients are recorded)",
        GradientsDropped,
    )
