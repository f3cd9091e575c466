"""How far the results of generated kernels may be from float64, and how far they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from mugraph.ir.dtypes import DType

LARGEST_ERROR: Mapping[DType, float] = {DType.FP16: 3e-3, DType.BF16: 2e-2, DType.FP32: 1e-4}
"""What rounding explains, relative to the largest result."""

_Array = npt.NDArray[np.floating]


def relative_error(results: Iterable[_Array], exact: Iterable[_Array]) -> float:
    """The largest difference of results from exact ones, relative to the largest of each output; NaN where a result is NaN."""
    errors = [np.max(np.abs(got - wanted)) / np.max(np.abs(wanted)) for got, wanted in zip(results, exact, strict=True)]
    return float(np.max(errors))
