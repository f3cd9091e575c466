"""Calls of PyTorch's operators, by name: those that torch tags as its core, and those that models and losses use most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

aten = torch.ops.aten
ROWS, COLUMNS = 12, 16


class Call(NamedTuple):
    """A function of tensors that calls one operator, and its inputs in fp32, integers or booleans."""

    function: Callable[..., Any]
    inputs: tuple[torch.Tensor, ...]


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


X, Y = _random(ROWS, COLUMNS), _random(ROWS, COLUMNS, seed=1)
ROW, SQUARE, M = _random(COLUMNS), _random(ROWS, ROWS), _random(COLUMNS, 8)
UNIT, POSITIVE, OTHER_UNIT = X.sigmoid(), X.abs() + 0.5, Y.sigmoid()
MASK, OTHER_MASK = X > 0, Y > 0
WHOLE, OTHER_WHOLE = (10 * X).long(), (5 * Y).long()
PLACES, LABELS = torch.arange(ROWS) * 5 % COLUMNS, torch.arange(ROWS) * 7 % COLUMNS
EACH = WHOLE.abs() % ROWS
SIGNS = torch.where(ROW[:ROWS] > 0, 1.0, -1.0)
SIGNAL, IMAGES, VOLUMES = _random(2, 4, 10), _random(2, 4, 8, 10), _random(2, 4, 4, 6, 8)
BATCH, OTHER_BATCH = _random(3, 4, 8), _random(3, 8, 5)
HEADS, KEYS = _random(2, 3, 6, 8), _random(2, 3, 9, 8)
FILTERS = _random(6, 4, 3, 3)
GRID = torch.tanh(_random(2, 5, 6, 2))
TOKENS, BAGS = torch.tensor([[2, 5, 0], [7, 7, 1]]), torch.tensor([0, 2])
TABLE = _random(20, 8)


def _named(name: str) -> Callable[..., Any]:
    return getattr(torch, name)  # type: ignore[no-any-return]  # a function of torch


def _with(function: Callable[..., Any], *arguments: Any, **options: Any) -> Callable[..., Any]:
    """The function with further arguments behind its tensors."""
    return lambda *tensors: function(*tensors, *arguments, **options)


_OF_ONE = (
    *("abs", "acos", "asin", "atan", "asinh", "atanh", "ceil", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "exp2", "expm1"),
    *("floor", "frac", "isfinite", "isinf", "isnan", "log1p", "neg", "reciprocal", "relu", "round", "sigmoid", "sign", "signbit"),
    *("sin", "sinc", "sinh", "square", "tan", "tanh", "trunc", "logit", "deg2rad", "rad2deg", "i0", "nan_to_num", "positive"),
    *("logical_not", "special_entr", "special_erfcx", "special_ndtr", "special_log_ndtr", "special_i1", "angle"),
)
_POSITIVE = ("log", "log2", "log10", "sqrt", "rsqrt", "lgamma", "digamma")
_OF_TWO = (
    *("add", "sub", "mul", "div", "maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "copysign", "fmod", "remainder"),
    *("eq", "ne", "lt", "le", "gt", "ge", "logaddexp", "logaddexp2", "rsub", "xlogy", "ldexp", "heaviside", "nextafter"),
    *("floor_divide", "logical_and", "logical_or", "logical_xor", "dist", "float_power", "isclose"),
)
_ALONG = (
    *(
        "sum",
        "mean",
        "amax",
        "amin",
        "prod",
        "var",
        "std",
        "var_mean",
        "std_mean",
        "norm",
        "logsumexp",
        "argmax",
        "argmin",
        "max",
    ),
    *("min", "median", "nanmedian", "mode", "any", "all", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "softmax"),
    *("log_softmax", "sort", "argsort", "nansum", "nanmean", "count_nonzero", "diff", "aminmax", "unbind", "flip"),
)
_ACTIVATIONS = (
    *("relu6", "gelu", "silu", "mish", "elu", "selu", "celu", "softplus", "softsign", "tanhshrink", "logsigmoid", "hardtanh"),
    *("hardsigmoid", "hardswish", "leaky_relu", "softshrink", "hardshrink", "rrelu"),
)
_BACKWARD = {
    "_adaptive_avg_pool2d_backward": Call(lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), (_random(2, 4, 4, 5), IMAGES)),
    "avg_pool2d_backward": Call(
        lambda g, x: aten.avg_pool2d_backward(g, x, [2, 2], [2, 2], [0, 0], False, True, None), (_random(2, 4, 4, 5), IMAGES)
    ),
    "max_pool2d_with_indices_backward": Call(
        lambda g, x: aten.max_pool2d_with_indices_backward(
            g, x, [2, 2], [2, 2], [0, 0], [1, 1], False, aten.max_pool2d_with_indices(x, [2, 2])[1]
        ),
        (_random(2, 4, 4, 5), IMAGES),
    ),
    "convolution_backward": Call(
        lambda g, x, w: aten.convolution_backward(g, x, w, [6], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]),
        (_random(2, 6, 6, 8), IMAGES, FILTERS),
    ),
    "embedding_dense_backward": Call(lambda g, t: aten.embedding_dense_backward(g, t, 20, -1, False), (_random(2, 3, 8), TOKENS)),
    "native_layer_norm_backward": Call(
        lambda g, x: aten.native_layer_norm_backward(
            g,
            x,
            [COLUMNS],
            x.mean(1, keepdim=True),
            x.var(1, unbiased=False, keepdim=True).rsqrt(),
            None,
            None,
            [True, False, False],
        ),
        (Y, X),
    ),
    "native_group_norm_backward": Call(
        lambda g, x: aten.native_group_norm_backward(
            g,
            x,
            x.reshape(4, -1).mean(1).reshape(2, 2),
            x.reshape(4, -1).var(1, unbiased=False).rsqrt().reshape(2, 2),
            None,
            2,
            4,
            80,
            2,
            [True, False, False],
        ),
        (_random(2, 4, 8, 10, seed=1), IMAGES),
    ),
    "_softmax_backward_data": Call(lambda g, x: aten._softmax_backward_data(g, x.softmax(1), 1, x.dtype), (Y, X)),
    "tanh_backward": Call(lambda g, x: aten.tanh_backward(g, x.tanh()), (Y, X)),
    "sigmoid_backward": Call(lambda g, x: aten.sigmoid_backward(g, x.sigmoid()), (Y, X)),
    "gelu_backward": Call(lambda g, x: aten.gelu_backward(g, x), (Y, X)),
    "silu_backward": Call(lambda g, x: aten.silu_backward(g, x), (Y, X)),
    "threshold_backward": Call(lambda g, x: aten.threshold_backward(g, x, 0), (Y, X)),
}
_VIEWS = {
    "alias": Call(lambda x: aten.alias(x), (X,)),
    "as_strided": Call(lambda x: torch.as_strided(x, (4, 5), (16, 2), 1), (X,)),
    "diagonal": Call(torch.diagonal, (SQUARE,)),
    "expand": Call(lambda x: x.expand(3, ROWS, COLUMNS), (X,)),
    "permute": Call(lambda x: x.permute(2, 0, 1), (BATCH,)),
    "select": Call(lambda x: x.select(1, 3), (X,)),
    "slice": Call(lambda x: x[2:9, ::3], (X,)),
    "split_with_sizes": Call(lambda x: torch.split(x, [3, 9], 0), (X,)),
    "chunk": Call(lambda x: torch.chunk(x, 3, 1), (X,)),
    "squeeze": Call(lambda x: x.squeeze(1), (_random(5, 1, 4),)),
    "unsqueeze": Call(lambda x: x.unsqueeze(1), (X,)),
    "view": Call(lambda x: x.view(4, -1), (X,)),
    "transpose": Call(lambda x: x.transpose(0, 1), (X,)),
    "movedim": Call(lambda x: x.movedim(0, 2), (BATCH,)),
    "unfold": Call(lambda x: x.unfold(1, 4, 2), (X,)),
    "narrow": Call(lambda x: x.narrow(0, 2, 5), (X,)),
    "flatten": Call(lambda x: x.flatten(1), (BATCH,)),
    "view_as_complex": Call(lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(ROWS, 8, 2)) * 1j), (X,)),
}
_PARTS = {
    "cat": Call(lambda x, y: torch.cat([x, y], 1), (X, Y)),
    "stack": Call(lambda x, y: torch.stack([x, y], 1), (X, Y)),
    "constant_pad_nd": Call(lambda x: F.pad(x, (1, 2, 0, 3), value=0.5), (X,)),
    "reflection_pad1d": Call(lambda x: F.pad(x, (2, 3), mode="reflect"), (SIGNAL,)),
    "reflection_pad2d": Call(lambda x: F.pad(x, (2, 3, 1, 0), mode="reflect"), (IMAGES,)),
    "reflection_pad3d": Call(lambda x: F.pad(x, (2, 3, 1, 0, 1, 1), mode="reflect"), (VOLUMES,)),
    "replication_pad2d": Call(lambda x: F.pad(x, (2, 3, 1, 0), mode="replicate"), (IMAGES,)),
    "replication_pad3d": Call(lambda x: F.pad(x, (2, 3, 1, 0, 1, 1), mode="replicate"), (VOLUMES,)),
    "circular_pad": Call(lambda x: F.pad(x, (2, 3), mode="circular"), (SIGNAL,)),
    "repeat": Call(lambda x: x.repeat(2, 3), (X,)),
    "repeat_interleave": Call(lambda x: x.repeat_interleave(3, 1), (X,)),
    "roll": Call(lambda x: x.roll((2, -3), (0, 1)), (X,)),
    "tril": Call(torch.tril, (X,)),
    "triu": Call(_with(torch.triu, 1), (X,)),
    "pixel_shuffle": Call(_with(F.pixel_shuffle, 2), (IMAGES,)),
    "pixel_unshuffle": Call(_with(F.pixel_unshuffle, 2), (IMAGES,)),
    "channel_shuffle": Call(_with(F.channel_shuffle, 2), (IMAGES,)),
    "select_scatter": Call(lambda x, y: torch.select_scatter(x, y, 0, 3), (X, ROW)),
    "slice_scatter": Call(lambda x, y: torch.slice_scatter(x, y, 0, 2, 6), (X, Y[:4])),
    "meshgrid": Call(lambda x, y: torch.meshgrid(x, y, indexing="ij"), (ROW, ROW[:5])),
}
_PLACES = {
    "embedding": Call(F.embedding, (TOKENS, TABLE)),
    "_embedding_bag": Call(lambda t, w, b: F.embedding_bag(t, w, b), (TOKENS.flatten(), TABLE, BAGS)),
    "gather": Call(lambda x, i: torch.gather(x, 1, i), (X, EACH)),
    "index": Call(lambda x, i: x[i], (X, PLACES % ROWS)),
    "index_select": Call(lambda x, i: x.index_select(1, i), (X, PLACES)),
    "index_put": Call(lambda x, i, y: x.index_put((i,), y), (X, torch.tensor([1, 4, 2]), Y[:3])),
    "index_add": Call(lambda x, i, y: x.index_add(0, i, y), (X, torch.tensor([1, 4, 1]), Y[:3])),
    "index_copy": Call(lambda x, i, y: x.index_copy(0, i, y), (X, torch.tensor([1, 4, 2]), Y[:3])),
    "index_fill": Call(lambda x, i: x.index_fill(0, i, 0.5), (X, torch.tensor([1, 4]))),
    "take_along_dim": Call(lambda x, i: torch.take_along_dim(x, i, 1), (X, EACH)),
    "scatter": Call(lambda x, i, y: x.scatter(0, i, y), (X, torch.arange(ROWS)[:, None].expand(-1, COLUMNS).flip(0), Y)),
    "scatter_add": Call(lambda x, i, y: x.scatter_add(0, i, y), (X, EACH, Y)),
    "scatter_reduce": Call(lambda x, i, y: x.scatter_reduce(0, i, y, "amax"), (X, EACH, Y)),
    "masked_scatter": Call(lambda x, m, y: x.masked_scatter(m, y), (X, MASK, Y)),
    "masked_fill": Call(lambda x, m: x.masked_fill(m, 0.5), (X, MASK)),
    "masked_select": Call(torch.masked_select, (X, MASK)),
    "nonzero": Call(torch.nonzero, (MASK,)),
    "where": Call(torch.where, (MASK, X, Y)),
    "bucketize": Call(lambda x, b: torch.bucketize(x, b), (X, torch.linspace(-2, 2, 7))),
    "searchsorted": Call(lambda b, x: torch.searchsorted(b, x), (torch.linspace(-2, 2, 7), X)),
    "one_hot": Call(_with(F.one_hot, COLUMNS), (LABELS,)),
    "bincount": Call(_with(torch.bincount, minlength=COLUMNS), (LABELS,)),
    "unique": Call(torch.unique, (LABELS,)),
    "histc": Call(_with(torch.histc, 8, -2.0, 2.0), (X,)),
    "isin": Call(torch.isin, (LABELS, PLACES[:4])),
    "topk": Call(_with(torch.topk, 3), (X,)),
    "kthvalue": Call(_with(torch.kthvalue, 3), (X,)),
    "quantile": Call(_with(torch.quantile, 0.25, dim=1), (X,)),
    "renorm": Call(_with(torch.renorm, 2, 0, 1.5), (X,)),
}
_PRODUCTS = {
    "mm": Call(torch.mm, (X, M)),
    "bmm": Call(torch.bmm, (BATCH, OTHER_BATCH)),
    "matmul": Call(torch.matmul, (BATCH, OTHER_BATCH[0])),
    "mv": Call(torch.mv, (X, ROW)),
    "dot": Call(torch.dot, (ROW, ROW + 1)),
    "outer": Call(torch.outer, (ROW, ROW + 1)),
    "addmm": Call(_with(torch.addmm, beta=0.5, alpha=2), (_random(8), X, M)),
    "addmv": Call(torch.addmv, (_random(ROWS), X, ROW)),
    "addr": Call(torch.addr, (X, _random(ROWS), ROW)),
    "baddbmm": Call(torch.baddbmm, (_random(3, 4, 5), BATCH, OTHER_BATCH)),
    "addbmm": Call(torch.addbmm, (_random(4, 5), BATCH, OTHER_BATCH)),
    "linear": Call(F.linear, (X, M.T.contiguous(), _random(8))),
    "bilinear": Call(F.bilinear, (X, Y[:, :8].contiguous(), _random(5, COLUMNS, 8))),
    "einsum": Call(lambda x, y: torch.einsum("bik,bkj->bij", x, y), (BATCH, OTHER_BATCH)),
    "tensordot": Call(_with(torch.tensordot, 1), (X, M)),
    "kron": Call(torch.kron, (_random(3, 4), _random(2, 5))),
    "cross": Call(torch.linalg.cross, (_random(8, 3), _random(8, 3, seed=1))),
    "trace": Call(torch.trace, (SQUARE,)),
    "matrix_power": Call(_with(torch.linalg.matrix_power, 3), (0.3 * SQUARE,)),
    "convolution": Call(_with(F.conv2d, None, 1, 1), (IMAGES, FILTERS)),
    "conv1d": Call(F.conv1d, (SIGNAL, _random(6, 4, 3))),
    "conv3d": Call(F.conv3d, (VOLUMES, _random(5, 4, 2, 2, 2))),
    "conv_transpose2d": Call(F.conv_transpose2d, (IMAGES, _random(4, 6, 2, 2))),
    "scaled_dot_product_attention": Call(F.scaled_dot_product_attention, (HEADS, KEYS, KEYS + 1)),
    "_cdist_forward": Call(torch.cdist, (X, Y[:7])),
    "cdist_1": Call(_with(torch.cdist, 1.0), (X, Y[:7])),
    "_pdist_forward": Call(F.pdist, (X,)),
    "cosine_similarity": Call(F.cosine_similarity, (X, Y)),
    "pairwise_distance": Call(F.pairwise_distance, (X, Y)),
    "inverse": Call(torch.linalg.inv, (SQUARE + 12 * torch.eye(ROWS),)),
    "cholesky": Call(torch.linalg.cholesky, (SQUARE @ SQUARE.T + 12 * torch.eye(ROWS),)),
    "solve": Call(torch.linalg.solve, (SQUARE + 12 * torch.eye(ROWS), X)),
    "det": Call(torch.det, (SQUARE,)),
    "_fft_r2c": Call(lambda x: torch.view_as_real(torch.fft.rfft(x)), (X,)),
    "_fft_c2r": Call(_with(torch.fft.irfft, COLUMNS), (X,)),
}
_NORMS = {
    "native_layer_norm": Call(_with(F.layer_norm, (COLUMNS,)), (X,)),
    "native_group_norm": Call(_with(F.group_norm, 2), (IMAGES,)),
    "_native_batch_norm_legit": Call(F.instance_norm, (IMAGES,)),
    "_native_batch_norm_legit_no_training": Call(F.batch_norm, (IMAGES, _random(4), _random(4).abs() + 0.5)),
    "rms_norm": Call(_with(F.rms_norm, (COLUMNS,)), (X,)),
    "local_response_norm": Call(_with(F.local_response_norm, 2), (IMAGES,)),
    "normalize": Call(F.normalize, (X,)),
    "_softmax": Call(_with(torch.softmax, 0), (X,)),
    "_log_softmax": Call(_with(torch.log_softmax, 0), (X,)),
    "softmin": Call(_with(F.softmin, 1), (X,)),
    "glu": Call(F.glu, (X,)),
    "prelu": Call(F.prelu, (IMAGES, _random(4))),
    "native_dropout": Call(_with(F.dropout, 0.5, True), (X,)),
}
_IMAGES = {
    "avg_pool1d": Call(_with(F.avg_pool1d, 2), (SIGNAL,)),
    "avg_pool2d": Call(_with(F.avg_pool2d, 2), (IMAGES,)),
    "avg_pool3d": Call(_with(F.avg_pool3d, 2), (VOLUMES,)),
    "max_pool1d": Call(_with(F.max_pool1d, 3, 1, 1), (SIGNAL,)),
    "max_pool2d_with_indices": Call(_with(F.max_pool2d, 3, 2, 1), (IMAGES,)),
    "max_pool3d_with_indices": Call(_with(F.max_pool3d, 2), (VOLUMES,)),
    "_adaptive_avg_pool2d": Call(_with(F.adaptive_avg_pool2d, (4, 5)), (IMAGES,)),
    "_adaptive_avg_pool3d": Call(_with(F.adaptive_avg_pool3d, (2, 3, 4)), (VOLUMES,)),
    "adaptive_avg_pool1d": Call(_with(F.adaptive_avg_pool1d, 5), (SIGNAL,)),
    "adaptive_max_pool2d": Call(_with(F.adaptive_max_pool2d, (4, 5)), (IMAGES,)),
    "lp_pool2d": Call(_with(F.lp_pool2d, 2.0, 2), (IMAGES,)),
    "col2im": Call(_with(F.fold, (4, 5), (2, 2)), (_random(2, 16, 12),)),
    "im2col": Call(_with(F.unfold, (2, 2)), (IMAGES,)),
    "grid_sampler_2d": Call(_with(F.grid_sample, align_corners=False), (IMAGES, GRID)),
    "upsample_bilinear2d": Call(_with(F.interpolate, None, 2, "bilinear"), (IMAGES,)),
    "upsample_nearest2d": Call(_with(F.interpolate, None, 2), (IMAGES,)),
    "upsample_bicubic2d": Call(_with(F.interpolate, None, 2, "bicubic"), (IMAGES,)),
}
_LOSSES = {
    **{name: Call(getattr(F, name), (X, Y)) for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")},
    "binary_cross_entropy": Call(F.binary_cross_entropy, (UNIT, OTHER_UNIT)),
    "binary_cross_entropy_with_logits": Call(F.binary_cross_entropy_with_logits, (X, OTHER_UNIT)),
    "cross_entropy": Call(F.cross_entropy, (X, LABELS)),
    "cross_entropy_of_shares": Call(F.cross_entropy, (X, OTHER_UNIT)),
    "nll_loss": Call(F.nll_loss, (X.log_softmax(1), LABELS)),
    "kl_div": Call(_with(F.kl_div, reduction="batchmean"), (X.log_softmax(1), Y.softmax(1))),
    "hinge_embedding_loss": Call(F.hinge_embedding_loss, (X, torch.where(MASK, 1.0, -1.0))),
    "cosine_embedding_loss": Call(F.cosine_embedding_loss, (X, Y, SIGNS)),
    "margin_ranking_loss": Call(F.margin_ranking_loss, (X, Y, torch.where(MASK, 1.0, -1.0))),
    "triplet_margin_loss": Call(F.triplet_margin_loss, (X, Y, X + 0.5 * Y)),
    "soft_margin_loss": Call(F.soft_margin_loss, (X, torch.where(MASK, 1.0, -1.0))),
    "multilabel_soft_margin_loss": Call(F.multilabel_soft_margin_loss, (X, MASK.float())),
    "multi_margin_loss": Call(F.multi_margin_loss, (X, LABELS)),
    "poisson_nll_loss": Call(F.poisson_nll_loss, (X, POSITIVE)),
    "gaussian_nll_loss": Call(F.gaussian_nll_loss, (X, Y, POSITIVE)),
    "ctc_loss": Call(
        lambda x, t: F.ctc_loss(x.log_softmax(-1), t, torch.tensor([ROWS]), torch.tensor([3])),
        (_random(ROWS, 1, COLUMNS), torch.tensor([[3, 5, 2]])),
    ),
}
_OTHERS = {
    "acosh": Call(torch.acosh, (POSITIVE + 1,)),
    "softmax_of_rows": Call(_with(torch.softmax, -1), (X,)),
    "clamp": Call(_with(torch.clamp, -0.5, 0.5), (X,)),
    "clamp_min": Call(_with(torch.clamp_min, 0.25), (X,)),
    "clamp_of_tensors": Call(torch.clamp, (X, Y - 1, Y + 1)),
    "pow": Call(_with(torch.pow, 3), (X,)),
    "pow_of_tensors": Call(torch.pow, (POSITIVE, Y)),
    "pow_of_number": Call(lambda x: torch.pow(2.5, x), (X,)),
    "lerp": Call(_with(torch.lerp, 0.3), (X, Y)),
    "addcmul": Call(torch.addcmul, (X, Y, X + Y)),
    "addcdiv": Call(torch.addcdiv, (X, Y, POSITIVE)),
    "bitwise_and": Call(torch.bitwise_and, (WHOLE, OTHER_WHOLE)),
    "bitwise_or": Call(torch.bitwise_or, (MASK, OTHER_MASK)),
    "bitwise_xor": Call(torch.bitwise_xor, (WHOLE, OTHER_WHOLE)),
    "bitwise_not": Call(torch.bitwise_not, (MASK,)),
    "add_of_integers": Call(lambda x, y: x + 3 * y, (WHOLE, OTHER_WHOLE)),
    "clone": Call(torch.clone, (X,)),
    "copy": Call(lambda x, y: aten.copy(x, y), (X, Y)),
    "_to_copy": Call(lambda x: x.to(torch.bfloat16).float(), (X,)),
    "to_integer": Call(lambda x: x.long(), (X,)),
    "arange": Call(lambda x: x + torch.arange(COLUMNS), (X,)),
    "linspace": Call(lambda x: x + torch.linspace(0, 1, COLUMNS, dtype=x.dtype), (X,)),
    "empty": Call(lambda x: torch.empty(3, 4, dtype=x.dtype).fill_(2) + x[:3, :4], (X,)),
    "empty_strided": Call(lambda x: torch.empty_strided((3, 4), (4, 1), dtype=x.dtype).zero_() + x[:3, :4], (X,)),
    "fill": Call(lambda x: aten.fill(x, 0.5), (X,)),
    "full": Call(lambda x: torch.full((COLUMNS,), 0.5, dtype=x.dtype) * x, (X,)),
    "full_like": Call(_with(torch.full_like, 1.5), (X,)),
    "ones_like": Call(lambda x: torch.ones_like(x) - x, (X,)),
    "eye": Call(lambda x: x + torch.eye(ROWS, dtype=x.dtype), (SQUARE,)),
    "scalar_tensor": Call(lambda x: x * torch.scalar_tensor(2.5, dtype=x.dtype), (X,)),
    "rand": Call(lambda x: x + torch.rand(COLUMNS), (X,)),
    "randn": Call(lambda x: x + torch.randn(COLUMNS), (X,)),
    "randperm": Call(lambda x: x[torch.randperm(ROWS)], (X,)),
    "bernoulli": Call(torch.bernoulli, (MASK.float(),)),
    "multinomial": Call(_with(torch.multinomial, 1), (F.one_hot(LABELS, COLUMNS).float(),)),
    "_local_scalar_dense": Call(lambda x: x.sum().item(), (X,)),
    "number_within": Call(lambda x: x * x.sum().item(), (X,)),
    "sym_size": Call(lambda x: x / x.shape[0], (X,)),
    "sym_stride": Call(lambda x: x * x.stride(0), (X,)),
    "sym_numel": Call(lambda x: x * x.numel(), (X,)),
    "sym_is_contiguous": Call(lambda x: x * (2 if x.is_contiguous() else 3), (X,)),
    "resize_": Call(lambda x: x.clone().resize_(4, 48), (X,)),
    "sym_storage_offset": Call(lambda x: x + x.storage_offset(), (X,)),
    "mvlgamma": Call(_with(torch.mvlgamma, 2), (POSITIVE + 2,)),
    "polygamma": Call(lambda x: torch.polygamma(1, x), (POSITIVE,)),
    "igamma": Call(torch.igamma, (POSITIVE, POSITIVE + 1)),
    "allclose": Call(torch.allclose, (X, Y)),
    "equal": Call(torch.equal, (X, Y)),
    "cov": Call(torch.cov, (X,)),
    "corrcoef": Call(torch.corrcoef, (X,)),
    "trapezoid": Call(torch.trapezoid, (X,)),
    "vander": Call(_with(torch.vander, 4), (ROW,)),
    "lstm_cell": Call(
        lambda x, h, c, w, u: aten.lstm_cell(x, [h, c], w, u),
        (X, _random(ROWS, 8), _random(ROWS, 8), _random(32, 16), _random(32, 8)),
    ),
    "gru_cell": Call(lambda x, h, w, u: torch.gru_cell(x, h, w, u), (X, _random(ROWS, 8), _random(24, 16), _random(24, 8))),
    "in_place": Call(lambda x: x.clone().mul_(2).add_(1), (X,)),
    "of_its_argument": Call(lambda x: x.mul_(2), (X,)),
    "branch": Call(lambda x: x + 1 if float(x.sum()) > 0 else x - 1, (X,)),
}

CALLS: dict[str, Call] = {
    **{name: Call(_named(name), (0.3 * X.tanh(),)) for name in _OF_ONE if not name.startswith("special_")},
    **{name: Call(getattr(torch.special, name[8:]), (X.abs(),)) for name in _OF_ONE if name.startswith("special_")},
    **{name: Call(_named(name), (POSITIVE,)) for name in _POSITIVE},
    **{name: Call(_named(name), (X, POSITIVE if name == "xlogy" else Y)) for name in _OF_TWO},
    **{name: Call(_with(_named(name), 1), (X,)) for name in _ALONG if name not in ("aminmax", "norm", "flip", "diff")},
    "flip": Call(_with(torch.flip, [1]), (X,)),
    "diff": Call(torch.diff, (X,)),
    "aminmax": Call(_with(torch.aminmax, dim=1), (X,)),
    "norm": Call(_with(torch.linalg.vector_norm, 2, 1), (X,)),
    "norm_3": Call(_with(torch.linalg.vector_norm, 3, 1), (X,)),
    **{name: Call(getattr(F, name), (X,)) for name in _ACTIVATIONS},
    **_VIEWS, **_PARTS, **_PLACES, **_PRODUCTS, **_NORMS, **_IMAGES, **_LOSSES, **_OTHERS, **_BACKWARD,
}  # fmt: skip
"""By the name of the operator, or of what is called in another way than by it alone."""
