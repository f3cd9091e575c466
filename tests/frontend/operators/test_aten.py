"""Every row of the ATen table means what PyTorch's operator of that name computes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from mugraph.errors import UnsupportedOperator
from mugraph.frontend.operators.aten import ROWS
from mugraph.ir.program import Program

from ..agreement import positive, random, run

aten = torch.ops.aten
X, Y = random(3, 4, seed=1), random(3, 4, seed=2)
ROW, SCALAR = random(4, seed=3), random(seed=4)
BATCH = random(2, 3, 4, seed=5)
M = random(4, 5, seed=6)
UNIT = random(3, 4, seed=7).sigmoid()
IMAGES = random(2, 3, 4, 6, seed=8)
PATCHES = ([1, 1], [0, 0], [1, 1], False, [0, 0])
"""Strides, paddings and dilations of a convolution that is pointwise."""


def case(name: str, *args: Any, **kwargs: Any) -> Any:
    return pytest.param(
        name, args, kwargs, id=f"{name}{[tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args]}{kwargs or ''}"
    )


SPECIAL = torch.tensor(
    [[math.nan, math.inf, -math.inf, 0.0], [-0.0, 1.0, math.nan, -1.0], [2.0, -math.inf, math.inf, 0.5]]
).double()
OTHERS = torch.tensor([[1.0, math.inf, math.inf, -0.0], [0.0, 1.0, math.nan, math.nan], [3.0, -math.inf, 1.0, 0.25]]).double()
HALVES = torch.tensor([[0.5, 1.5, 2.5, -0.5], [-1.5, -2.5, 3.0, -4.0], [8388609.0, -0.75, 1e30, 0.25]]).double()
EDGES = torch.tensor([[-3.0, 3.0, -2.999, 2.999], [0.0, math.inf, -math.inf, math.nan], [-3.001, 3.001, 1.0, -1.0]]).double()
HIDDEN = torch.tensor([[-math.inf] * 4, [1.0, -math.inf, -2.0, -math.inf], [0.0, 1.0, 2.0, 3.0]]).double()
HUGE = torch.tensor([[math.inf] * 3, [math.inf, -math.inf, 1.0], [3.4e38, -3.4e38, -math.inf], [-3.4e38] * 3]).double()
OF_ONE = (
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
    *("exp2", "expm1", "log1p", "erf", "erfc"),
    *("floor", "ceil", "trunc", "round", "frac", "sinc", "signbit", "special_entr"),
)
OF_TWO = (
    *("atan2", "copysign", "fmod", "remainder", "floor_divide", "fmax", "fmin", "hypot", "logaddexp", "logaddexp2", "ldexp"),
    "special_xlog1py",
)
MASK, SECOND = random(3, 4, seed=9) > 0, random(3, 4, seed=10) > 0
NONE = torch.zeros(3, 4, dtype=torch.bool)
COMPARISONS = [
    case(name, *operands)
    for name in ("lt", "le", "gt", "ge", "eq", "ne")
    for operands in ((X, Y), (X, 0), (X, X), (SPECIAL, OTHERS), (OTHERS, SPECIAL), (SPECIAL, math.inf), (SPECIAL, 1.0), (X, ROW))
]

NORMED = aten.native_layer_norm(BATCH, [3, 4], random(3, 4), random(3, 4), 1e-3)[1:]
ROWS_NORMED = aten.native_layer_norm(BATCH, [4], None, None, 1e-5)[1:]
OF_GROUPS = (random(2, 6, 5), aten.native_group_norm(random(2, 6, 5), None, None, 2, 6, 5, 3, 1e-5))
OF_BATCH = aten._native_batch_norm_legit(BATCH, None, None, True, 0.1, 1e-5)[1:]
HEADS = tuple(random(2, 3, 5, 4, seed=seed) for seed in range(4))
ATTENDED = aten._scaled_dot_product_flash_attention_for_cpu(*HEADS[1:], scale=0.3)
SHARING = (random(2, 6, 5, 4), random(2, 6, 5, 4, seed=1), random(2, 3, 7, 4, seed=2), random(2, 3, 7, 4, seed=3))
SHARED = aten._scaled_dot_product_flash_attention_for_cpu(*SHARING[1:])
GRADIENTS = [
    case("tanh_backward", X, Y.tanh()), case("sigmoid_backward", X, UNIT), case("threshold_backward", X, Y, 0),
    case("threshold_backward", X, SPECIAL, 0.5), case("silu_backward", X, 5 * Y),
    *(case("gelu_backward", X, x, approximate=how) for x in (3 * Y, 30 * Y, 1e-6 * Y) for how in ("none", "tanh")),
    *(case("mish_backward", X, x) for x in (Y, 30 * Y)),
    case("elu_backward", X, 1, 1, 1, False, Y), case("elu_backward", X, 0.5, 1.5, 2.0, False, SPECIAL),
    case("elu_backward", X, 0.5, 1.5, 2.0, True, aten.elu(Y, 0.5, 1.5, 2.0)),
    case("leaky_relu_backward", X, SPECIAL, 0.3, False),
    *(case("hardtanh_backward", X, x, -0.5, 0.5) for x in (Y, HALVES)),
    *(case(name, X, x) for name in ("hardsigmoid_backward", "hardswish_backward") for x in (4 * Y, EDGES)),
    case("softplus_backward", X, Y, 1, 20), case("softplus_backward", X, -100 * Y, 2.0, 20.0),
    *(case(name, X, x, 0.5) for name in ("hardshrink_backward", "softshrink_backward") for x in (Y, HALVES)),
    case("glu_backward", X[:, :2], X, 1), case("glu_backward", BATCH[:1], BATCH, 0),
    case("native_dropout_backward", X, MASK, 1.25), case("native_dropout_backward", SPECIAL, MASK, 2.0),
    case("_softmax_backward_data", X, Y.softmax(1), 1, X.dtype), case("_softmax_backward_data", X, Y.softmax(0), 0, X.dtype),
    case("_log_softmax_backward_data", X, Y.log_softmax(1), 1, torch.float64),
    case("mse_loss_backward", SCALAR, X, Y, 1), case("mse_loss_backward", SCALAR, X, Y, 2), case("mse_loss_backward", Y, X, Y, 0),
    *(case(f"{name}_loss_backward", SCALAR, X, Y, 1, 0.7) for name in ("huber", "smooth_l1")),
    *(case(f"{name}_loss_backward", Y, X, Y.round(), 0, 1.5) for name in ("huber", "smooth_l1")),
    case("smooth_l1_loss_backward", SCALAR, X, Y, 2, 0.0),
    *(case(f"{name}_loss_backward", X, SPECIAL, OTHERS, 0, 0.7) for name in ("huber", "smooth_l1")),
    case("native_layer_norm_backward", BATCH + 1, BATCH, [3, 4], *NORMED, random(3, 4), random(3, 4), [True, True, True]),
    case("native_layer_norm_backward", BATCH.exp(), BATCH, [4], *ROWS_NORMED, None, None, [True, False, False]),
    case("native_layer_norm_backward", BATCH.exp(), BATCH, [4], *ROWS_NORMED, ROW, ROW, [False, True, True]),
    case("native_group_norm_backward", OF_GROUPS[1][0].exp(), OF_GROUPS[0], *OF_GROUPS[1][1:], random(6), 2, 6, 5, 3, [True] * 3),
    case("native_group_norm_backward", OF_GROUPS[0], OF_GROUPS[0], *OF_GROUPS[1][1:], None, 2, 6, 5, 3, [True, False, False]),
    case("native_batch_norm_backward", BATCH.exp(), BATCH, random(3), None, None, *OF_BATCH, True, 1e-5, [True] * 3),
    case("native_batch_norm_backward", BATCH.exp(), BATCH, None, random(3), positive(3), None, None, False, 1e-5, [True] * 3),
    case("slice_backward", X, [3, 6], 1, 1, 5, 1), case("slice_backward", X, [5, 4], -2, 2, 2**63 - 1, 1),
    case("select_backward", X, [3, 2, 4], 1, 0), case("select_backward", X, [3, 4, 5], -1, -1),
    case("_scaled_dot_product_flash_attention_for_cpu_backward", *HEADS, *ATTENDED, 0.0, False, scale=0.3),
    case("_scaled_dot_product_flash_attention_for_cpu_backward", *SHARING, *SHARED, 0.0, False),
]  # fmt: skip
"""Of gradients: what a loss changes by with results, operands, and what was kept of the forward calls."""

KEPT = {torch.bool: "bool", torch.int32: "int32", torch.int64: "int64"}
"""The types of inputs that are not taken in fp64."""
CASES = [
    case("embedding", X, torch.tensor([[2, 0], [1, 1]])), case("embedding", X, torch.tensor([1]).int(), 1),
    case("index_select", X, -1, torch.tensor([3, 0, 3])), case("index", X, [None, torch.tensor([[0, -1], [-4, 3]])]),
    case("add", X, Y), case("add", X, ROW), case("add", X, 2.5), case("add", X, Y, alpha=3), case("add", X, 2, alpha=0.5),
    case("sub", X, Y), case("sub", X, 1.5), case("sub", X, Y, alpha=2),
    case("rsub", X, 2.0), case("rsub", X, Y, alpha=0.25),
    case("mul", X, Y), case("mul", X, X), case("mul", X, 0.125), case("mul", X, SCALAR),
    case("div", X, positive(3, 4)), case("div", X, 3), case("div", X, positive(3, 1)),
    case("true_divide", X, positive(3, 4)),
    case("neg", X), case("reciprocal", positive(3, 4)), case("square", X),
    case("pow", X, 2), case("pow", X, 3), case("pow", X, 5), case("pow", X, 1), case("pow", X, -2),
    case("pow", positive(3, 4), 0.5), case("pow", positive(3, 4), -0.5), case("pow", positive(3, 4), 1.5),
    case("sqrt", positive(3, 4)), case("rsqrt", positive(3, 4)), case("exp", X), case("log", positive(3, 4)), case("abs", X),
    *(case(name, operand) for name in ("log2", "log10") for operand in (positive(3, 4), 1e-8 * positive(3, 4), SPECIAL)),
    *(case(name, operand) for name in OF_ONE for operand in (X, 0.2 * X, 1e-6 * X, 30 * X, SPECIAL, HALVES)),
    *(
        case(name, *operands)
        for name in OF_TWO
        for operands in ((X, Y), (5 * X, Y), (X, ROW), (SPECIAL, OTHERS), (OTHERS, SPECIAL), (HALVES, 0.5 * OTHERS), (X, SCALAR))
    ),
    *(case(name, x, y) for name in ("fmod", "remainder", "floor_divide", "copysign") for x in (X, SPECIAL) for y in (0.3, -2)),
    *(
        case("div", *operands, rounding_mode=mode)
        for mode in ("floor", "trunc")
        for operands in ((5 * X, Y), (SPECIAL, OTHERS), (X, 0.1))
    ),
    case("div", torch.tensor([1.0, -1.0, 0.3]).double(), torch.tensor([0.1, 0.1, 0.1]).double(), rounding_mode="floor"),
    case("remainder", 7.5, X), case("pow", positive(3, 4), 0.3), case("pow", positive(3, 4), X), case("pow", 2, X),
    case("pow", 3.5, X),
    case("pow", SPECIAL, OTHERS), case("pow", OTHERS, SPECIAL), case("pow", X, 1.75),
    case("round", 100 * X, decimals=0), case("round", X, decimals=2), case("round", 100 * X, decimals=-1),
    case("logit", UNIT), case("logit", UNIT, 0.3), case("logit", SPECIAL), case("heaviside", SPECIAL, OTHERS),
    case("addcmul", X, Y, ROW), case("addcmul", X, Y, X, value=0.3), case("addcdiv", X, Y, positive(3, 4), value=-2),
    case("sigmoid", X), case("silu", X), case("relu", X), case("tanh", X), case("gelu", X), case("gelu", X, approximate="tanh"),
    case("lerp", X, Y, 0.3), case("lerp", X, Y, SCALAR), case("clamp_min", X, 0.3), case("clamp", X, 0),
    case("clamp", X, min=0.5), case("clamp", X, -0.3, 0.4), case("clamp", X, max=-0.2), case("clamp", X, -1e30),
    case("clamp", X, Y),
    case("clamp", X, None, Y), case("clamp", X, -math.inf, 0.5), case("clamp", X, 1.0, -1.0), case("clamp_max", X, 0.25),
    case("clamp_min", X, Y), case("maximum", X, Y), case("maximum", X, ROW), case("minimum", X, Y), case("maximum", X, X),
    case("hardtanh", X), case("hardtanh", X, -0.2, 0.7), case("relu6", 8 * X), case("hardsigmoid", 4 * X),
    case("hardswish", 4 * X),
    case("leaky_relu", X), case("leaky_relu", X, 0.3), case("prelu", BATCH, random(3)), case("prelu", ROW, random(1)),
    case("_prelu_kernel", X, random(1, 4)), case("threshold", X, 0, 0), case("selu", X),
    case("elu", X), case("elu", 1e-5 * X), case("elu", X, 0.5, 1.5, 2.0), case("celu", X), case("celu", X, 0.7),
    case("softplus", X), case("softplus", X, 2.0), case("softplus", -100 * X), case("mish", X), case("mish", 30 * X),
    case("log_sigmoid", X), case("log_sigmoid_forward", X),
    case("mm", X, M), case("bmm", BATCH, random(2, 4, 6)),
    case("matmul", BATCH, M), case("matmul", ROW, M), case("matmul", X, ROW), case("matmul", ROW, ROW), case("matmul", M.T, X.T),
    case("linear", X, M.T), case("linear", BATCH, M.T, random(5)), case("linear", X, ROW),
    case("addmm", random(5), X, M), case("addmm", random(3, 5), X, M, beta=2, alpha=0.5),
    case("baddbmm", random(2, 3, 6), BATCH, random(2, 4, 6)),
    case("sum", X), case("sum", X, [1]), case("sum", BATCH, [0, -1], True), case("sum", random(3, 1), [1]),
    case("mean", X), case("mean", X, [-1], True), case("mean", BATCH, [1, 2]),
    case("amax", X, [1]), case("amax", BATCH, [0, 2], True), case("amax", X), case("max", X), case("max", BATCH, 1),
    case("max", BATCH, -1, True), case("max", X, Y), case("amin", X, [1]), case("amin", X), case("min", X), case("min", BATCH, 1),
    case("min", BATCH, -1, True), case("min", X, Y),
    case("sum", SCALAR, [0]), case("mean", SCALAR, [-1], True), case("amax", SCALAR, [0]), case("softmax", SCALAR, -1),
    case("logsumexp", SCALAR, [0]), case("linalg_vector_norm", SCALAR, 2, [0]), case("transpose", SCALAR, 0, -1),
    case("var", X, [1]), case("var", X, [0], False), case("var", X, True), case("var", X, False),
    case("var", BATCH, [1, 2], correction=0, keepdim=True), case("std", X, [1]), case("std", X, [1], correction=0),
    case("var_mean", X, False), case("var_mean", X, [1], True, True), case("var_mean", X, [0], correction=0),
    case("linalg_vector_norm", X, 1, [1]), case("linalg_vector_norm", X, math.inf), case("linalg_vector_norm", X, -math.inf, [0]),
    case("linalg_vector_norm", X), case("linalg_vector_norm", X, 2, [-1], True),
    case("softmax", X, -1), case("softmax", BATCH, 1), case("_softmax", X, 0, False),
    case("log_softmax", X, -1), case("_log_softmax", BATCH * 1000, 1, False),
    case("logsumexp", X, [1]), case("logsumexp", BATCH * 1000, [0, -1], True), case("softmax", X * 1000, 0),
    case("logsumexp", HIDDEN, [1]), case("logsumexp", HIDDEN, [1], True), case("logsumexp", HIDDEN, [0, 1]),
    *(case("logsumexp", operand, *rest) for operand in (SPECIAL, OTHERS) for rest in ([[1]], [[0], True], [[0, 1]])),
    case("logsumexp", HUGE, [1]), case("logsumexp", HUGE, [0], True),
    *(case("logsumexp", SPECIAL[:, :1], *rest) for rest in ([[1]], [[-1], True])), case("logsumexp", OTHERS[:1, 1:2], [0, 1]),
    case("layer_norm", BATCH, [4]), case("layer_norm", BATCH, [3, 4], random(3, 4), random(3, 4), 1e-3),
    case("group_norm", random(2, 6, 5), 3), case("group_norm", random(2, 6, 5, 2), 2, random(6), random(6), 1e-3),
    case("native_group_norm", random(2, 6, 5), random(6), None, 2, 6, 5, 3, 1e-5),
    case("_native_batch_norm_legit_no_training", BATCH, random(3), random(3), random(3), positive(3), 0.1, 1e-5),
    case("_native_batch_norm_legit", BATCH, random(3), None, True, 0.1, 1e-5),
    case("rms_norm", X, [4]), case("rms_norm", BATCH, [3, 4], random(3, 4), 1e-3), case("rms_norm", X * 1e-8, [4]),
    case("norm", X, 2, [1]), case("norm", X, 1, [0], True), case("norm", X),
    case("_native_batch_norm_legit_functional", BATCH, random(3), None, random(3), positive(3), True, 0.1, 1e-5),
    *(case("linalg_vector_norm", x, order, [1]) for x in (X, SPECIAL) for order in (0, 3, 0.5, -1, -2.5)),
    *(case("dist", X, other, order) for other in (Y, ROW) for order in (2.0, 1.0, 3.0, math.inf, 0.0)), case("dist", X, Y),
    *(case("_cdist_forward", X, random(5, 4), order, None) for order in (2.0, 1.0, 0.0, math.inf, 3.0)),
    case("_cdist_forward", BATCH, random(2, 5, 4), 2.0, 2), case("nansum", SPECIAL), case("nansum", SPECIAL, [1], True),
    case("aminmax", X), case("aminmax", X, dim=1), case("aminmax", BATCH, dim=-2, keepdim=True),
    case("std_mean", X, False), case("std_mean", X, [1], True, True), case("std_mean", X, [0], correction=0),
    case("mv", X, ROW), case("dot", ROW, ROW),
    case("addr", X, random(3), ROW), case("addr", ROW, random(3), ROW, beta=0.5, alpha=2), case("addr", X, X[:, 0], ROW, beta=0),
    case("addbmm", random(3, 6), BATCH, random(2, 4, 6)), case("addbmm", random(6), BATCH, random(2, 4, 6), beta=2, alpha=3),
    case("glu", X), case("glu", BATCH, 0), case("deg2rad", 90 * X), case("rad2deg", X),
    case("slice_scatter", X, Y[:, :2], 1, 1, 3), case("slice_scatter", X, Y), case("slice_scatter", X, Y[1:], 0, -2),
    case("select_scatter", X, ROW, 0, -1), case("select_scatter", BATCH, Y[:2, :3], -1, 2),
    case("pixel_shuffle", random(2, 12, 3, 2), 2), case("pixel_shuffle", random(9, 1, 2), 3),
    case("pixel_unshuffle", random(2, 3, 4, 6), 2), case("pixel_unshuffle", random(1, 6, 3), 3),
    case("upsample_nearest2d", IMAGES, [8, 18]), case("upsample_nearest2d", IMAGES, None, [2.0, 1.0]),
    case("fill", X, 0.5), case("fill", X, SCALAR), case("zeros_like", X), case("ones_like", X),
    case("binary_cross_entropy_with_logits", 30 * X, UNIT), case("binary_cross_entropy_with_logits", X, UNIT, UNIT, None, 0),
    case("binary_cross_entropy_with_logits", X, UNIT, None, positive(4), 2), case("soft_margin_loss", 40 * X, Y.sign()),
    case("soft_margin_loss", X, Y.sign(), 0), *GRADIENTS,
    case("mse_loss", X, Y), case("mse_loss", X, Y, 0), case("mse_loss", X, Y, 2),
    case("huber_loss", 3 * X, Y), case("huber_loss", X, Y, 2, 0.3), case("smooth_l1_loss", 3 * X, Y),
    case("smooth_l1_loss", X, Y, 0, 0.25), case("smooth_l1_loss", X, Y, 1, 0.0),
    case("binary_cross_entropy", UNIT, random(3, 4).sigmoid()), case("binary_cross_entropy", UNIT, UNIT, positive(3, 4), 2),
    case("binary_cross_entropy", random(3, 4).gt(0).double(), UNIT),
    case("avg_pool1d", BATCH, [2]), case("avg_pool2d", IMAGES, [2, 3]), case("avg_pool2d", IMAGES, [2], [2, 2], 0, True),
    case("avg_pool2d", IMAGES, [2, 3], [2, 3], 0, False, True, 5), case("avg_pool3d", random(2, 3, 4, 6, 2), [2, 3, 1]),
    case("max_pool1d", BATCH, [2]), case("max_pool2d", IMAGES, [2]), case("max_pool3d", random(2, 3, 4, 6, 2), [2, 3, 1]),
    case("max_pool2d_with_indices", IMAGES, [2, 6], [2, 6]), case("max_pool3d_with_indices", random(2, 4, 6, 2), [2]),
    case("max_pool2d", IMAGES, [2], [1]), case("max_pool2d", IMAGES, [3, 2], [2, 3], [1, 0]),
    case("max_pool1d", BATCH, [3], [1], [1]),
    case("max_pool2d", IMAGES, [2, 2], [2, 1], [0, 1], [2, 3]), case("max_pool2d", IMAGES, [3], [3], [0], [1], True),
    case("max_pool3d", random(2, 5, 4, 3), [2, 2, 2]), case("max_pool2d", IMAGES, [3], [2], [1], [1], True),
    case("avg_pool2d", IMAGES, [3], [2]), case("avg_pool2d", IMAGES, [3, 2], [1], [1, 0]), case("avg_pool1d", BATCH, [3]),
    case("avg_pool2d", IMAGES, [3], [2], [1], False, False), case("avg_pool2d", IMAGES, [3], [2], [1], True, True),
    case("avg_pool2d", IMAGES, [2], [3], [1], True, False), case("avg_pool3d", random(2, 5, 4, 3), [2], [2], [0], True),
    case("avg_pool2d", IMAGES, [3], [1], [1], False, True, 7), case("avg_pool1d", BATCH, [2], [2], [1], True, True),
    case("adaptive_avg_pool1d", BATCH, [2]), case("adaptive_avg_pool2d", IMAGES, [2, 3]),
    case("_adaptive_avg_pool2d", IMAGES, [4, 1]),
    case("adaptive_avg_pool3d", random(2, 3, 4, 6, 2), [1, 2, 2]), case("_adaptive_avg_pool3d", random(2, 3, 4, 6, 2), [1, 1, 1]),
    case("convolution", IMAGES, random(5, 3, 1, 1), None, *PATCHES, 1),
    case("convolution", IMAGES, random(5, 3, 1, 1), random(5), *PATCHES, 1),
    case("convolution", IMAGES, random(5, 3, 2, 3), random(5), [2, 3], *PATCHES[1:], 1),
    case("convolution", random(2, 4, 6, 6), random(6, 2, 2, 2), random(6), [2, 2], *PATCHES[1:], 2),
    case("convolution", random(2, 4, 6), random(8, 1, 3), None, [3], [0], [1], False, [0], 4),
    case("convolution", random(1, 2, 2, 4, 2), random(3, 2, 2, 2, 2), random(3), [2] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1),
    case("scaled_dot_product_attention", random(2, 3, 5, 4), random(2, 3, 7, 4), random(2, 3, 7, 6)),
    case("scaled_dot_product_attention", random(5, 4), random(7, 4), random(7, 4), scale=0.3),
    case("scaled_dot_product_attention", random(2, 6, 5, 4), random(2, 3, 7, 4), random(2, 3, 7, 6), enable_gqa=True),
    case("_scaled_dot_product_flash_attention_for_cpu", random(2, 3, 5, 4), random(2, 3, 7, 4), random(2, 3, 7, 4)),
    case("_scaled_dot_product_flash_attention_for_cpu", *(random(2, h, 7, 4) for h in (6, 3, 3)), 0.0, False, scale=0.3),
    *COMPARISONS,
    case("where", MASK, X, Y), case("where", MASK, SPECIAL, OTHERS), case("where", MASK[:1], X, SCALAR),
    case("where", MASK, X, 0.5), case("where", MASK, -math.inf, X), case("masked_fill", X, MASK, -math.inf),
    case("masked_fill", X, MASK[0], 0.0), case("masked_fill", SPECIAL, MASK, math.nan), case("masked_fill", X, NONE, SCALAR),
    *(case(name, MASK, SECOND) for name in ("logical_and", "logical_or", "logical_xor")),
    *(case(name, MASK, SECOND) for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__")),
    *(case(name, SPECIAL, MASK) for name in ("logical_and", "logical_or", "logical_xor")),
    case("logical_not", MASK), case("logical_not", SPECIAL), case("bitwise_not", MASK),
    case("any", MASK), case("any", MASK, 1), case("any", SPECIAL, 0, True), case("all", MASK, 1), case("all", SPECIAL),
    case("all", ~NONE, 0, True), case("sign", SPECIAL), case("isnan", SPECIAL), case("isinf", SPECIAL), case("isfinite", SPECIAL),
    case("nan_to_num", SPECIAL), case("nan_to_num", SPECIAL, 0.5, 2.0, -3.0), case("xlogy", UNIT, UNIT),
    case("xlogy", SPECIAL, OTHERS), case("xlogy", SPECIAL, 2.0), case("threshold", X, 0.3, 20.0),
    case("threshold", SPECIAL, 0.5, -1.0), case("hardshrink", X, 0.4), case("softshrink", X, 0.4), case("mul", MASK, SECOND),
    case("mul", MASK, X), case("sum", MASK.double(), [1]), case("full_like", X, -math.inf), case("maximum", MASK, SECOND),
    case("sgn", SPECIAL), case("native_layer_norm", BATCH, [4], None, None, 1e-5),
    case("native_layer_norm", BATCH, [3, 4], random(3, 4), random(3, 4), 1e-3),
    case("_fused_rms_norm", X, [4], None, 1e-5), case("_fused_rms_norm", BATCH, [3, 4], random(3, 4), None),
    case("view", X, [2, 6]), case("view", X, [-1]), case("_unsafe_view", X, [6, 2]),
    case("transpose", BATCH, 0, -1), case("permute", BATCH, [2, 0, -2]), case("t", X), case("t", ROW),
    case("unsqueeze", X, 1), case("unsqueeze", X, -1),
    case("squeeze", random(1, 3, 1)), case("squeeze", random(1, 3, 1), 0), case("squeeze", random(1, 3, 1), [0, -1]),
    case("squeeze", X, 1),
    case("expand", random(3, 1), [2, 3, 4]), case("expand", ROW, [3, -1]),
    case("full_like", X, 1.5),
    case("slice", X, 1, 1, 3), case("slice", BATCH, -1, 0, None, 2), case("slice", X, 0, -2), case("select", BATCH, 1, -1),
    case("narrow", X, 1, 1, 2), case("narrow", X, 1, -3, 2), case("split", BATCH, 2, 2), case("split", BATCH, 2, 1),
    case("split_with_sizes", X, [1, 3], 1), case("unsafe_split", X, 2), case("chunk", X, 3, 1), case("unsafe_chunk", X, 2, 0),
    case("unsafe_split_with_sizes", X, [2, 1]), case("unbind", BATCH, 1), case("cat", [X, Y, random(1, 4)]), case("cat", [X], 1),
    case("cat", [BATCH, random(2, 3, 1), BATCH], -1), case("stack", [X, Y], 1), case("stack", [X, Y], -1),
    case("constant_pad_nd", X, [1, 2]), case("constant_pad_nd", X, [1, 0, 0, 2], 1.5),
    case("constant_pad_nd", X, [-1, 2, -1, -1]),
    case("flip", BATCH, [0, -1]), case("roll", X, [1], [1]), case("roll", X, [5, -1], [0, 1]), case("roll", X, [5]),
    case("cumsum", X, 0), case("cumsum", BATCH, -2), case("cumsum", random(), 0), case("cumprod", BATCH, 0),
    case("flip", random(), [0]), case("unfold", random(), 0, 1, 1),
    case("unfold", BATCH, -1, 2, 1), case("unfold", X, 1, 3, 2), case("reflection_pad1d", BATCH, [2, 1]),
    case("reflection_pad2d", IMAGES, [1, 2, 3, 0]), case("reflection_pad3d", random(2, 3, 4, 2), [1, 0, 2, 1, 1, 1]),
    case("replication_pad1d", BATCH, [2, 1]), case("replication_pad2d", IMAGES, [1, 0, 0, 2]),
    case("replication_pad3d", random(2, 3, 4, 2), [1, 0, 2, 1, 1, 1]),
    case("repeat", X, [2, 1]), case("repeat", X, [2, 3, 1]), case("repeat", ROW, [2]),
    case("repeat_interleave", X, 2), case("repeat_interleave", BATCH, 3, 1), case("repeat_interleave", X, 2, -1),
    case("slice", X, 1, 0, 4), case("slice", X, 0, 0, 2**63 - 1), case("select", random(1, 4), 0, 0),
    case("select", random(3, 1), -1, -1),
    case("alias", X), case("clone", X), case("detach", X),
    case("_to_copy", X), case("type_as", X, Y),
]  # fmt: skip


def apply_row(name: str, *args: Any, **kwargs: Any) -> tuple[Program, Any, list[torch.Tensor]]:
    """A row applied to inputs of a new program in place of tensors."""
    program = Program()
    tensors: list[torch.Tensor] = []

    def as_input(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        tensors.append(value)
        return program.input(f"x{len(tensors)}", tuple(value.shape), KEPT.get(value.dtype, "fp64"))

    inputs, options = tree_map(as_input, (args, kwargs))
    return program, ROWS[name](*inputs, **options), tensors


@pytest.mark.parametrize(("name", "args", "kwargs"), CASES)
def test_a_row_computes_what_the_operator_computes(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    program, result, tensors = apply_row(name, *args, **kwargs)
    results = result if isinstance(result, tuple | list) else (result,)
    program.output(*(value for value in results if value is not None))
    theirs = getattr(torch.ops.aten, name)(*args, **kwargs)
    given = theirs if isinstance(theirs, tuple | list) else (theirs,)
    expected = [wanted for wanted, value in zip(given, results, strict=True) if value is not None]
    for ours, wanted in zip(run(program.graph, tensors), expected, strict=True):
        torch.testing.assert_close(ours, wanted.double(), rtol=1e-12, atol=1e-12, equal_nan=True)


def test_every_row_has_a_case() -> None:
    only_takes_a_tuple_apart = {"getitem"}
    of_whole_numbers = {"bitwise_right_shift", "__rshift__", "_weight_int8pack_mm"}  # tests/runtime/test_whole_weights.py
    of_whole_numbers |= {"dequantize_per_channel", "dequantize_per_channel_group"}  # there, too
    of_fp8 = {"_scaled_mm"}  # tests/runtime/test_fp8.py
    assert {parameters.values[0] for parameters in CASES} | only_takes_a_tuple_apart | of_whole_numbers | of_fp8 == set(ROWS)


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "why"),
    [
        ("div", (X, Y), {"rounding_mode": "up"}, "use 'trunc' or 'floor'"),
        ("softplus", (X, 1.0, 1.0), {}, "threshold of 1.0"),
        ("_cdist_forward", (random(400, 400), random(400, 400), 2.0, None), {}, "does not write"),
        ("slice_scatter", (X, X[:, ::2], 1, 0, 4, 2), {}, "write to neighbours"),
        ("slice_backward", (X, [3, 8], 1, 0, 8, 2), {}, "write to neighbours"),
        ("softplus_backward", (X, Y, 1.0, 1.0), {}, "threshold of 1.0"),
        ("upsample_nearest2d", (IMAGES, [5, 6]), {}, "no multiples"),
        ("scaled_dot_product_attention", (X, X, X, random(3, 3)), {}, "masked"),
        ("scaled_dot_product_attention", (X, X, X), {"is_causal": True}, "masked"),
        ("scaled_dot_product_attention", (X, X, X, None, 0.1), {}, "dropout"),
        ("repeat_interleave", (X, Y), {}, "one number"),
        ("slice", (X, 1, 2, 2), {}, "without elements"),
        ("split_with_sizes", (X, [4, 0], 1), {}, "without elements"),
        ("constant_pad_nd", (X, [-2, -2]), {}, "leaves nothing"),
        ("constant_pad_nd", (X, [0, 1], math.inf), {}, "no number of the operator table"),
    ],
)
def test_a_row_refuses_what_the_table_has_no_operator_for(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], why: str
) -> None:
    with pytest.raises(UnsupportedOperator, match=why):
        apply_row(name, *args, **kwargs)


def operators(name: str, *args: Any, **kwargs: Any) -> list[str]:
    program, result, _ = apply_row(name, *args, **kwargs)
    program.output(result)
    return [node.op for node in program.graph.nodes if node.op not in ("input", "constant")]


def test_a_tensor_times_its_sigmoid_is_one_operator() -> None:
    program = Program()
    x = program.input("x", (3, 4))
    assert program.node(ROWS["mul"](x, x.sigmoid())).op == "silu"
    assert program.node(ROWS["mul"](x.sigmoid(), x)).op == "silu"
    assert program.node(ROWS["mul"](x.exp(), x.sigmoid())).op == "mul"


@pytest.mark.parametrize("keepdim", [True, False])
def test_logsumexp_of_one_element_is_that_element(keepdim: bool) -> None:
    assert not {"exp", "log", "maximum"}.intersection(operators("logsumexp", X[:, :1], [1], keepdim))


def test_heads_that_share_keys_are_more_queries_not_more_keys() -> None:
    shared = operators(
        "scaled_dot_product_attention", random(2, 6, 5, 4), random(2, 3, 7, 4), random(2, 3, 7, 4), enable_gqa=True
    )
    assert "repeat" not in shared


def test_expansions_that_broadcasting_makes_unnecessary_vanish() -> None:
    program = Program()
    x, row = program.input("x", (3, 4)), program.input("row", (4,))
    expanded = row.expand(2, 3, 4)
    assert program.node(ROWS["mul"](x, row.expand(3, 4))).inputs == (x.value, row.value)
    assert program.node(ROWS["add"](x, ROWS["full_like"](x, 2))).output.shape == (3, 4)
    assert program.node(ROWS["mul"](expanded, expanded.exp())).output.shape == (2, 3, 4)
    assert program.node(ROWS["sub"](x.unsqueeze(0), expanded)).output.shape == (2, 3, 4)
