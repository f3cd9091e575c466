"""Element types in torch's words and ours."""

from __future__ import annotations

import torch

from mugraph.ir.dtypes import DType

DTYPES = {
    torch.float16: DType.FP16,
    torch.bfloat16: DType.BF16,
    torch.float32: DType.FP32,
    torch.float64: DType.FP64,
}

TORCH_DTYPES = {dtype: torch_dtype for torch_dtype, dtype in DTYPES.items()}
