"""Scalar expressions as Triton text, from the templates of the operator table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mugraph.errors import UnsupportedOperator
from mugraph.lower.exact_quotients import EXACT_QUOTIENT
from mugraph.lower.scalar_expressions import Apply, Constant, Expression, Source, subexpressions
from mugraph.targets.triton.elementary import ELEMENTARY

TRITON_FUNCTIONS: Mapping[str, str] = {
    **{name: f"tl.{name}" for name in ("abs", "cos", "erf", "exp2", "log", "log2", "sin")},
    **{name: name for name in ("equal", "exp", "floor", "less", "round_bf16", "round_fp16", "select", "tanh", "truth")},
    **{name: name for name in ("acos", "asin", "atan2", "copysign", "erfc", "expm1", "fmod", "log1p", "pow", "rint")},
    "max": "maximum",
    "sqrt": "tl.sqrt_rn",
    "times": "times",
}
"""What the functions in templates are called in kernels; those without a module are written into the file."""

TORCH_FUNCTIONS: Mapping[str, str] = {
    **{name: f"torch.{name}" for name in ("abs", "erf", "exp", "log", "sqrt", "tanh")},
    **{name: f"torch.{name}" for name in ("acos", "asin", "cos", "erfc", "exp2", "expm1", "floor", "log1p", "log2", "sin")},
    **{name: f"{name}_of" for name in ("atan2", "copysign", "fmod", "pow")},
    "rint": "torch.round",
    "equal": "is_equal",
    "less": "is_less",
    "max": "larger",
    "round_bf16": "rounded_to_bf16",
    "round_fp16": "rounded_to_fp16",
    "select": "selected",
    "truth": "is_true",
}
"""What they are called on tensors of PyTorch."""

_OF_TWO = '''\
def {0}_of(x, y):
    """torch.{0} of two, of which one may be a number."""
    x, y = (a if isinstance(a, torch.Tensor) else torch.tensor(a, dtype=torch.float32) for a in (x, y))
    return torch.{0}(x, y)
'''

TORCH_REDUCTIONS: Mapping[str, str] = {"max": "amax", "sum": "sum"}
"""What reductions are called there."""

HELPERS: Mapping[str, str] = {
    "to_tf32": '''\
@triton.jit
def to_tf32(x):
    """The nearest numbers of TF32: `tl.dot` would only leave out the bits that TF32 does not have. NaN stays NaN."""
    bits = x.to(tl.int32, bitcast=True)
    size = tl.minimum(bits & 0x7FFFFFFF, 0x7FFFEFFF) + 0x1000
    return ((size & -0x2000) | (bits & -0x80000000)).to(tl.float32, bitcast=True)
''',
    "times": '''\
@triton.jit
def times(x, y):
    """x * y, as x * y - 0: the compiler may take sums of x * y for `tl.dot` in TF32, wrongly."""
    return tl.fma(x, y, tl.full((), -0x80000000, tl.int32).to(tl.float32, bitcast=True))
''',
    "tuned": '''\
def tuned(*configurations):
    """Times configurations at the first launch and keeps the fastest; where there is no GPU there is only the first."""
    return triton.autotune(list(configurations[: len(configurations) if torch.cuda.is_available() else 1]), key=[])
''',
    "round_fp16": '''\
@triton.jit
def round_fp16(x):
    """The nearest numbers of fp16."""
    return x.to(tl.float16).to(tl.float32)
''',
    "round_bf16": '''\
@triton.jit
def round_bf16(x):
    """The nearest numbers of bf16, by bits, since a cast there and back is the compiler's to leave out; NaN stays NaN."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    nearest = (size + 0x7FFF + ((size >> 16) & 1)) & -0x10000
    return tl.where(size > 0x7F800000, bits, nearest | (bits & -0x80000000)).to(tl.float32, bitcast=True)
''',
    "rounded_to_fp16": '''\
def rounded_to_fp16(x):
    """The nearest numbers of fp16, in the type of x."""
    return x.half().to(x.dtype)
''',
    "rounded_to_bf16": '''\
def rounded_to_bf16(x):
    """The nearest numbers of bf16, in the type of x."""
    return x.bfloat16().to(x.dtype)
''',
    "less": '''\
@triton.jit
def less(x, y):
    """1 where x is less than y, else 0."""
    return (x < y).to(tl.float32)
''',
    "equal": '''\
@triton.jit
def equal(x, y):
    """1 where x and y are equal, else 0."""
    return (x == y).to(tl.float32)
''',
    "truth": '''\
@triton.jit
def truth(x):
    """1 where x is not 0, else 0."""
    return (x != 0.0).to(tl.float32)
''',
    "select": '''\
@triton.jit
def select(condition, x, y):
    """x where the condition is not 0, else y."""
    return tl.where(condition != 0.0, x, y)
''',
    "is_less": '''\
def is_less(x, y):
    """1 where x is less than y, else 0; one of them may be a number."""
    return torch.as_tensor(x < y).float()
''',
    "is_equal": '''\
def is_equal(x, y):
    """1 where x and y are equal, else 0; one of them may be a number."""
    return torch.as_tensor(x == y).float()
''',
    "is_true": '''\
def is_true(x):
    """1 where x is not 0, else 0."""
    return (x != 0).float()
''',
    "selected": '''\
def selected(condition, x, y):
    """x where the condition is not 0, else y; some of them may be numbers."""
    return torch.where(torch.as_tensor(condition != 0, device=getattr(x, "device", getattr(y, "device", None))), x, y)
''',
    "maximum": '''\
@triton.jit
def maximum(x, y):
    """The larger of two; NaN where one of them is."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
''',
    **{f"{name}_of": _OF_TWO.format(name) for name in ("atan2", "copysign", "fmod", "pow")},
    **ELEMENTARY,
    "larger": '''\
def larger(x, y):
    """The larger of two, of which one may be a number; NaN where one of them is."""
    x, y = (a if isinstance(a, torch.Tensor) else torch.tensor(a, dtype=torch.float32) for a in (x, y))
    return torch.maximum(x, y)
''',
    "tanh": '''\
@triton.jit
def tanh(x):
    """Hyperbolic tangent; its series near 0, where the quotient would cancel."""
    decay = tl.exp(-2.0 * tl.abs(x))
    quotient = (1.0 - decay) / (1.0 + decay)
    square = x * x
    series = x * (1.0 + square * (-1 / 3 + square * (2 / 15 + square * (-17 / 315 + square * (62 / 2835)))))
    return tl.where(tl.abs(x) < 0.3, series, tl.where(x < 0.0, -quotient, quotient))
''',
}
"""Functions that Triton and PyTorch lack, by name."""

TRITON_MAXIMUM = "tl.maximum({0}, {1})"
"""The larger of two, or the one that is not NaN."""

TIMES = "times({0}, {1})"
"""A product of three dimensions or more.

Up to version 3.7, Triton's compiler (its pass TritonCombineOps) takes sums of x[:, :, None] * y[None, :, :], from 16 rows and
columns on, for `tl.dot` in TF32: whichever dimension is summed, and with few values of k, which matrix units add several times.
"""

APPROXIMATE_EXPONENTIAL = "tl.exp({0})"
"""An exponential whose relative error grows with the exponent: 3e-7 + 7e-8 |x| at most."""

_TEXTS = {EXACT_QUOTIENT: "tl.div_rn({0}, {1})"}
"""Of templates that mean more in Triton than they say: other quotients may be two units in the last place off."""

_LONGEST = 60
"""Characters of an argument that is written in place; longer ones get a name."""
_CALL = re.compile(r"(?<![\w.])([a-z]\w*)\(")
_SUFFIX = re.compile(r"(?<=[\d.])f\b")


def number(value: float) -> str:
    """A Python literal of exactly the value rounded to fp32, and no larger: Triton takes what exceeds fp32 for fp64."""
    rounded = np.float32(value)
    if not np.isfinite(rounded):
        return f'float("{rounded}")'
    shortest = str(rounded)
    return shortest if abs(float(shortest)) <= float(np.finfo(np.float32).max) else repr(float(rounded))


def scalar(value: float) -> str:
    """A number as a tensor without dimensions, for where no other operand is a tensor: a literal has no type."""
    return f"tl.full((), {number(value)}, tl.float32)"


def write_expression(
    expression: Expression,
    sources: Sequence[str],
    named: Callable[[str], str],
    functions: Mapping[str, str] = TRITON_FUNCTIONS,
    constant: Callable[[float], str] = scalar,
) -> str:
    """The text of an expression; `named` writes a line that gives a text a name, for arguments that are long or used twice.

    Numbers are literals beside tensors, and tensors where none is; `constant` is the text of one that is the whole expression.
    """
    match expression:
        case Source(index):
            return sources[index]
        case Constant(value):
            return constant(value)
        case Apply(template, arguments):
            beside = number if any(isinstance(part, Source) for part in subexpressions(expression)) else scalar
            texts = [write_expression(argument, sources, named, functions, beside) for argument in arguments]
            for position, text in enumerate(texts):
                used = template.count(f"{{{position}}}")
                if re.search(rf"\w\(\{{{position}\}}\)", template):
                    texts[position] = text = unwrapped(text)
                if len(text) > _LONGEST or (used > 1 and not re.fullmatch(r"[\w.]+", text)):
                    texts[position] = named(unwrapped(text))
            return in_python(_TEXTS.get(template, template), functions).format(*texts)


def in_python(template: str, functions: Mapping[str, str]) -> str:
    """A template of the C family as one of Python; raises UnsupportedOperator for a function that has no name there."""

    def renamed(call: re.Match[str]) -> str:
        if call[1] not in functions:
            raise UnsupportedOperator(f"target triton has no function {call[1]!r}; name it in its table of functions")
        return f"{functions[call[1]]}("

    return _CALL.sub(renamed, _SUFFIX.sub("", template))


def unwrapped(text: str) -> str:
    """The text without its outermost parentheses, if these belong together."""
    if not text.startswith("("):
        return text
    depth = 0
    for position, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return text[1:-1] if position == len(text) - 1 else text
    return text
