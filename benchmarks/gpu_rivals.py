"""What people run who want a workload fast on a GPU: rivals, each optional, and compared with float64 before it is timed.

A rival is made for a workload's inputs once: weights are put together, plans are made and compilers run then, and calls do what
is left. What is not installed, refuses a workload or is wrong is named with its reason and not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from mugraph.frontend.operators.torch_casts import DTYPES
from mugraph.frontend.workload_functions import EPSILON
from mugraph.frontend.workloads import WORKLOADS
from mugraph.runtime.baselines import COMPILE_MODES, EAGER
from mugraph.testing.mugraph_runs import LARGEST_ERROR

Function = Callable[..., torch.Tensor]
Inputs = Sequence[torch.Tensor]
Make = Callable[[Inputs], Function]
"""Makes a rival for inputs of some shapes; weights are read then, and must not change."""

WORKSPACE_BYTES = 256 << 20
"""That FlashInfer plans in."""


@dataclass(frozen=True, slots=True)
class Rival:
    """A rival for one workload, and the system it is of: the packages `needs` are imported before it is made."""

    system: str
    name: str
    make: Make
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Offers:
    """The rivals that run and are right, why others do not, and the errors of all that ran, relative to the largest result."""

    functions: Mapping[str, Function]
    refused: Mapping[str, str]
    errors: Mapping[str, float]


# attention ----------------------------------------------------------------------------------------------------------------


def _normed(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], eps=EPSILON)


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x


Norm = Callable[[torch.Tensor], torch.Tensor]


def _by_backend(backend: SDPBackend | None, norm: Norm, inputs: Inputs) -> Function:
    """PyTorch's attention by one of its backends, or the one that it takes."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if backend is None:
            return F.scaled_dot_product_attention(norm(q), norm(k), v)
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(norm(q), norm(k), v)

    return attend


def _one_query(q: torch.Tensor) -> torch.Tensor:
    """Queries [batch, heads, queries, width] as [batch, heads * queries, width]: heads of one token, of which some share keys."""
    return q.reshape(q.shape[0], -1, q.shape[-1])


def _by_flash_attention(norm: Norm, inputs: Inputs) -> Function:
    """FlashAttention's decoding, which splits keys; queries that share keys are heads of one token."""
    decode = import_module("flash_attn").flash_attn_with_kvcache

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        token = _one_query(norm(q)).unsqueeze(1)
        mixed: torch.Tensor = decode(token, norm(k).transpose(1, 2), v.transpose(1, 2))
        return mixed.reshape(q.shape)

    return attend


def _by_flashinfer(norm: Norm, inputs: Inputs) -> Function:
    """FlashInfer's batched decoding, planned once: the keys of each sequence are one page."""
    flashinfer, (q, k, _) = import_module("flashinfer"), inputs
    batch, heads, keys, width = k.shape
    counts = partial(torch.arange, dtype=torch.int32, device=q.device)
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=q.shape[2] > 1)
    full = torch.full((batch,), keys, dtype=torch.int32, device=q.device)
    wrapper.plan(counts(batch + 1), counts(batch), full, heads * q.shape[2], heads, width, keys, q_data_type=q.dtype)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = wrapper.run(_one_query(norm(q)), (norm(k), v))
        return mixed.reshape(q.shape)

    return attend


# products -----------------------------------------------------------------------------------------------------------------


def _norm_and_library(norm: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], inputs: Inputs) -> Function:
    """A kernel for the norm and the library's product."""
    return lambda x, g, w: norm(x, g) @ w


def _rms_norm(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], g, EPSILON)


def _rms_norm_of_flashinfer(inputs: Inputs) -> Function:
    norm = import_module("flashinfer").norm.rmsnorm
    return _norm_and_library(lambda x, g: norm(x, g, EPSILON), inputs)


def _gates(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def _one_product(gates: Norm, inputs: Inputs) -> Function:
    """Both projections by one product of the library, whose weights were put beside each other."""
    both = torch.cat(tuple(inputs[1:]), 1)
    return lambda x, w_gate, w_up: gates(x @ both)


def _gates_of_flashinfer(inputs: Inputs) -> Function:
    return _one_product(import_module("flashinfer").activation.silu_and_mul, inputs)


def _added_adapter(inputs: Inputs) -> Function:
    """The layer and the adapter's first product as one, the second added where it is computed."""
    _, w, a, _ = inputs
    both, columns = torch.cat((w, a), 1), w.shape[1]

    def adapted(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        wide = x @ both
        return torch.addmm(wide[:, :columns], wide[:, columns:], b)

    return adapted


# compilers, and kernels by hand -------------------------------------------------------------------------------------------


def _compiled(function: Function, mode: str, inputs: Inputs) -> Function:
    return torch.compile(function, mode=mode)


def _by_tensorrt(function: Function, inputs: Inputs) -> Function:
    """TensorRT through PyTorch's compiler, in the types that the tensors have, however small a part of the program."""
    import_module("torch_tensorrt")
    options: dict[str, Any] = {"use_explicit_typing": True, "min_block_size": 1}
    compiled: Function = torch.compile(function, backend="torch_tensorrt", dynamic=False, options=options)
    return compiled


def _by_hand(name: str, inputs: Inputs) -> Function:
    """A Triton kernel of `triton_rivals.py`."""
    function: Function = getattr(import_module("triton_rivals"), name)
    return function


_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def _attention(norm: Norm) -> tuple[Rival, ...]:
    return (
        Rival("PyTorch", "scaled_dot_product_attention", partial(_by_backend, None, norm)),
        *(Rival("PyTorch", f"attention, {name}", partial(_by_backend, backend, norm)) for name, backend in _BACKENDS.items()),
        Rival("FlashInfer", "FlashInfer decode", partial(_by_flashinfer, norm), ("flashinfer",)),
        Rival("FlashAttention", "FlashAttention decode", partial(_by_flash_attention, norm), ("flash_attn",)),
    )


OF_WORKLOADS: Mapping[str, tuple[Rival, ...]] = {
    "rmsnorm": (
        Rival("PyTorch", "rms_norm and cuBLAS", partial(_norm_and_library, _rms_norm)),
        Rival("FlashInfer", "FlashInfer's norm and cuBLAS", _rms_norm_of_flashinfer, ("flashinfer",)),
        Rival("Triton", "Triton by hand", partial(_by_hand, "rmsnorm_linear"), ("triton",)),
    ),
    "gated-mlp": (
        Rival("PyTorch", "one cuBLAS product", partial(_one_product, _gates)),
        Rival("FlashInfer", "one cuBLAS product and FlashInfer's gate", _gates_of_flashinfer, ("flashinfer",)),
        Rival("Triton", "Triton by hand", partial(_by_hand, "gated_mlp"), ("triton",)),
    ),
    "lora": (Rival("PyTorch", "two cuBLAS products", _added_adapter),),
    "gqa": _attention(_as_it_is),
    "qknorm": _attention(_normed),
    "ntrans": (Rival("Triton", "Triton by hand", partial(_by_hand, "ntrans"), ("triton",)),),
}
"""By workload, what is written for it; every workload also has its function as it is and by compilers."""

SYSTEMS = ("PyTorch", "TensorRT", "FlashInfer", "FlashAttention", "Triton")


def rivals(workload: str, function: Function, modes: Sequence[str] = tuple(COMPILE_MODES)) -> tuple[Rival, ...]:
    """All rivals of a workload whose function is that one, PyTorch's compiler in some modes."""
    return (
        Rival("PyTorch", EAGER, lambda inputs: function),
        *(Rival("PyTorch", name, partial(_compiled, function, COMPILE_MODES[name])) for name in modes),
        Rival("TensorRT", "TensorRT", partial(_by_tensorrt, function), ("torch_tensorrt",)),
        *(OF_WORKLOADS[workload] if function is WORKLOADS[workload].function() else ()),
    )


def offers(found: Sequence[Rival], inputs: Inputs, exact: torch.Tensor) -> Offers:
    """The rivals that can be made for inputs and give `exact`, the result in float64, as closely as their type allows."""
    functions: dict[str, Function] = {}
    refused: dict[str, str] = {}
    errors: dict[str, float] = {}
    allowed = LARGEST_ERROR[DTYPES[inputs[0].dtype]]
    for rival in found:
        try:
            for package in rival.needs:
                import_module(package)
            function = rival.make(inputs)
            with torch.no_grad():
                result = function(*inputs)
            errors[rival.name] = _error(result, exact)
        except Exception as error:  # whatever a package or a compiler raises is the reason
            refused[rival.name] = f"{type(error).__name__}: {error}"[:200]
            continue
        if errors[rival.name] <= allowed:
            functions[rival.name] = function
        else:
            refused[rival.name] = (
                f"wrong: its error is {errors[rival.name]:.1e} of the largest result, and {allowed:.1e} is allowed"
            )
    return Offers(functions, refused, errors)


def _error(result: Any, exact: torch.Tensor) -> float:
    """Relative to the largest result; infinite where it is no number or of another shape."""
    if result.shape != exact.shape or not torch.isfinite(result).all():
        return float("inf")
    return float(((result.double() - exact).abs().max() / exact.abs().max()).item())
