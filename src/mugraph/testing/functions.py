"""Random PyTorch functions over the supported operators, calls of them that their examples did not show, and what kernels answer.

An optimized function is called beside the function itself, which gives the reference in float64 and how far rounding explains.
"""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils._pytree import tree_flatten

from mugraph import superoptimize
from mugraph.errors import MugraphError

Shape = tuple[int, ...]
Step = tuple[str, tuple[int, ...], Any]
"""The name of an operation, which values it reads, and its parameter."""

SIZES = (1, 2, 3, 4, 5, 7, 8, 13, 16, 32)


@dataclass(frozen=True, slots=True)
class DrawnFunction:
    """A function of tensors called `names`, of which the last may be keywords, that holds `weights` and returns `outputs`.

    Values are numbered: arguments first, then weights, then the result of each step.
    """

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    weights: tuple[torch.Tensor, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    keywords: int
    """How many of the last arguments are given by keyword."""
    structure: str
    """What it returns: "tensor", "tuple" or "dict"."""

    def __call__(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        return self.evaluated(lambda operand: operand, *args, **kwargs)

    def evaluated(self, read: Callable[[torch.Tensor], torch.Tensor], *args: torch.Tensor, **kwargs: torch.Tensor) -> Any:
        """The results, where every step reads its operands through a function."""
        named = dict(zip(self.names, args, strict=False)) | kwargs
        values = [*(named[name] for name in self.names), *self.weights]
        for operation, operands, parameter in self.steps:
            values.append(OPERATIONS[operation](parameter, *(read(values[operand]) for operand in operands)))
        results = [values[number] for number in self.outputs]
        match self.structure:
            case "tensor":
                return results[0]
            case "dict":
                return {f"y{position}": result for position, result in enumerate(results)}
        return tuple(results)

    def call(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
        """Positional and keyword arguments of a call on these tensors; keywords in another order than the signature's."""
        positional = len(tensors) - self.keywords
        named = list(zip(self.names[positional:], tensors[positional:], strict=True))
        return tuple(tensors[:positional]), dict(reversed(named))

    def wide(self) -> DrawnFunction:
        """The function on doubles."""
        weights = tuple(weight.double() for weight in self.weights)
        return DrawnFunction(self.names, self.shapes, weights, self.steps, self.outputs, self.keywords, self.structure)

    def __str__(self) -> str:
        first = len(self.names) + len(self.weights)
        lines = [
            f"v{number} = {name} {list(shape)}" for number, (name, shape) in enumerate(zip(self.names, self.shapes, strict=True))
        ]
        lines += [f"v{len(self.names) + number} = weight {list(weight.shape)}" for number, weight in enumerate(self.weights)]
        for number, (operation, operands, parameter) in enumerate(self.steps, first):
            read = ", ".join(f"v{operand}" for operand in operands)
            lines.append(f"v{number} = {operation}({read}{'' if parameter is None else f'; {parameter}'})")
        return "\n".join([*lines, f"return {self.structure} of {', '.join(f'v{number}' for number in self.outputs)}"])


def _rms(dim: int, x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(dim, keepdim=True) + 1e-5)


def _turned(dim: int, x: torch.Tensor) -> torch.Tensor:
    """Halves exchanged, one with another sign, as positions are encoded by rotations."""
    first, second = torch.chunk(x, 2, dim)
    return torch.cat([-second, first], dim)


OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "add": lambda _, x, y: x + y,
    "sub": lambda _, x, y: x - y,
    "mul": lambda _, x, y: x * y,
    "divide by a square": lambda _, x, y: x / (y * y + 1),
    "maximum": lambda _, x, y: torch.maximum(x, y),
    "minimum": lambda _, x, y: torch.minimum(x, y),
    "the larger by a choice": lambda _, x, y: torch.where(x > y, x, y),
    "slope by a choice": lambda by, x: torch.where(x > 0, x, x * by),
    "clamp": lambda by, x: torch.clamp(x, -by, 2 * by),
    "leaky relu": lambda by, x: functional.leaky_relu(x, by),
    "elu": lambda _, x: functional.elu(x),
    "softplus": lambda _, x: functional.softplus(x),
    "matmul": lambda _, x, y: x @ y,
    "scale": lambda by, x: x * by,
    "shift": lambda by, x: x + by,
    "neg": lambda _, x: -x,
    "square": lambda _, x: x * x,
    "root of a square": lambda _, x: torch.sqrt(x * x + 1),
    "exp": lambda _, x: torch.exp(torch.tanh(x)),
    "log": lambda _, x: torch.log(x * x + 1),
    "tanh": lambda _, x: torch.tanh(x),
    "sigmoid": lambda _, x: torch.sigmoid(x),
    "relu": lambda _, x: torch.relu(x),
    "silu": lambda _, x: functional.silu(x),
    "gelu": lambda _, x: functional.gelu(x),
    "abs": lambda _, x: torch.abs(x),
    "sum": lambda dim, x: x.sum(dim, keepdim=True),
    "mean": lambda dim, x: x.mean(dim),
    "amax": lambda dim, x: x.amax(dim, keepdim=True),
    "softmax": lambda dim, x: torch.softmax(x, dim),
    "logsumexp": lambda dim, x: torch.logsumexp(x, dim, keepdim=True),
    "rms norm": _rms,
    "layer norm": lambda _, x: functional.layer_norm(x, x.shape[-1:]),
    "transpose": lambda _, x: x.transpose(-2, -1),
    "flatten": lambda _, x: x.reshape(-1, x.shape[-1]),
    "unsqueeze": lambda dim, x: x.unsqueeze(dim),
    "the first half": lambda dim, x: x.narrow(dim, 0, (x.shape[dim] + 1) // 2),
    "all but the first": lambda dim, x: x.narrow(dim, 1, x.shape[dim] - 1),
    "every other": lambda dim, x: x[(slice(None),) * dim + (slice(None, None, 2),)],
    "the last": lambda dim, x: x.select(dim, -1),
    "turned": _turned,
    "flip": lambda dim, x: x.flip(dim),
    "roll": lambda dim, x: x.roll(1, dim),
    "beside itself": lambda dim, x: torch.cat([x, x * 0.5], dim),
    "stacked": lambda dim, x: torch.stack([x, -x], dim),
    "gated": lambda dim, x: functional.glu(x, dim),
    "cat": lambda dim, x, y: torch.cat([x, y], dim),
    "padded": lambda value, x: functional.pad(x, (1, 2), value=value),
}

_UNARY = (
    "scale", "shift", "neg", "square", "root of a square", "exp", "log", "tanh", "sigmoid", "relu", "silu", "gelu", "abs",
    "clamp", "leaky relu", "elu", "softplus", "slope by a choice",
)  # fmt: skip
_BINARY = ("add", "sub", "mul", "divide by a square", "maximum", "minimum", "the larger by a choice")
_ALONG = ("sum", "mean", "amax", "softmax", "logsumexp", "rms norm")
_PARTS = (
    "the first half", "all but the first", "every other", "the last", "turned", "flip", "roll", "beside itself", "stacked",
    "gated",
)  # fmt: skip
_VIEWS = ("transpose", "flatten", "unsqueeze", "layer norm")
_MOST_ELEMENTS = 1 << 14


def random_function(seed: int, steps: tuple[int, int] = (3, 9)) -> DrawnFunction:
    """The function of a seed: between two numbers of steps, of which at least half read the result of the one before."""
    return _Growth(np.random.default_rng(seed)).function(steps)


class _Growth:
    """One function as it grows."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.values: list[torch.Tensor] = []
        self.arguments: list[int] = []
        """Values that depend on an argument, in order."""
        self.unread: list[int] = []
        """Arguments and weights that nothing has read yet."""
        self.steps: list[Step] = []

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def function(self, steps: tuple[int, int]) -> DrawnFunction:
        shapes = self.shapes()
        generator = torch.Generator().manual_seed(int(self.rng.integers(2**31)))
        weights = tuple(
            torch.randn(self.related(self.pick(shapes)), generator=generator) for _ in range(int(self.rng.integers(0, 3)))
        )
        self.values = [torch.randn(shape, generator=generator) for shape in shapes] + list(weights)
        self.arguments, self.unread = list(range(len(shapes))), list(range(len(self.values)))
        wanted = int(self.rng.integers(*steps))
        while len(self.steps) < wanted:
            self.step()
        count = self.pick((1, 1, 1, 2, 3))
        made = self.arguments[len(shapes) :]
        outputs = (made[-1], *(self.pick(made) for _ in range(count - 1)))
        return DrawnFunction(
            names=tuple(f"x{number}" for number in range(len(shapes))),
            shapes=shapes,
            weights=weights,
            steps=tuple(self.steps),
            outputs=outputs,
            keywords=int(self.rng.integers(0, len(shapes) + 1)) if self.rng.random() < 0.4 else 0,
            structure="tensor" if count == 1 else self.pick(("tuple", "dict")),
        )

    def shapes(self) -> tuple[Shape, ...]:
        """Shapes of one to four arguments: one of its own, the others like it, of its rows, or to be multiplied with it."""
        first = tuple(self.pick(SIZES) for _ in range(self.pick((1, 2, 2, 2, 3))))
        return (first, *(self.related(first) for _ in range(int(self.rng.integers(0, 4)))))

    def related(self, shape: Shape) -> Shape:
        choices: list[Shape] = [shape, shape, shape[-1:], (*shape[:-1], 1), tuple(1 for _ in shape)]
        if len(shape) > 1:
            choices += [(shape[-1], self.pick(SIZES)), (shape[-1], shape[-1]), (*shape[:-2], shape[-1], shape[-2])]
        return self.pick(choices)  # type: ignore[no-any-return]

    def step(self) -> None:
        """One more operation, most often of the last value and one not read yet, if it applies and what it gives is moderate."""
        first = self.arguments[-1] if self.steps and self.rng.random() < 0.8 else self.pick(self.arguments)
        second = self.pick(self.unread) if self.unread and self.rng.random() < 0.6 else int(self.rng.integers(len(self.values)))
        x = self.values[first]
        name = self.pick((*_UNARY, *_BINARY * 3, *_ALONG * 2, *_VIEWS, *_PARTS, "padded", "cat", "cat", *("matmul",) * 6))
        operands: tuple[int, ...] = (first,)
        parameter = None
        if name in _BINARY or name in ("matmul", "cat"):
            operands = (first, second) if self.rng.random() < 0.5 else (second, first)
        if name in (*_ALONG, *_PARTS, "unsqueeze", "cat"):
            parameter = int(self.rng.integers(max(1, x.dim())))
        elif name in ("padded", "scale", "shift", "clamp", "leaky relu", "slope by a choice"):
            parameter = self.pick((0.5, 2, 3, 1 / 3, 0.1, 1 / math.sqrt(8)))
        try:
            made = OPERATIONS[name](parameter, *(self.values[operand] for operand in operands))
        except (RuntimeError, IndexError, ValueError):
            return
        if 0 < made.numel() <= _MOST_ELEMENTS and made.dim() <= 4 and torch.isfinite(made).all() and made.abs().max() < 1e6:
            self.arguments.append(len(self.values))
            self.unread = [number for number in self.unread if number not in operands]
            self.values.append(made)
            self.steps.append((name, operands, parameter))


# --- calls -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """Tensors to call a function with, and what is unlike its examples."""

    what: str
    tensors: tuple[torch.Tensor, ...]


def examples(function: DrawnFunction, rng: np.random.Generator) -> FunctionCall:
    """Example inputs: now and then the same tensor, or views of one, wherever shapes are the same."""
    tensors = _normal(function.shapes, rng)
    if rng.random() < 0.3:
        tensors = _aliased(tensors)
    return FunctionCall("examples", tuple(tensors))


def calls(function: DrawnFunction, rng: np.random.Generator) -> Iterator[FunctionCall]:
    """Other values, other aliasing and other strides than those of the examples."""
    shapes = function.shapes
    yield FunctionCall("other values", tuple(_normal(shapes, rng)))
    yield FunctionCall("small values", tuple(1e-3 * tensor for tensor in _normal(shapes, rng)))
    yield FunctionCall("large values", tuple(100 * tensor for tensor in _normal(shapes, rng)))
    yield FunctionCall("zeros", tuple(torch.zeros(shape) for shape in shapes))
    for position in range(len(shapes)):
        tensors = _normal(shapes, rng)
        yield FunctionCall(
            f"argument {position} zero", (*tensors[:position], torch.zeros(shapes[position]), *tensors[position + 1 :])
        )
    for name, value in (("NaN", math.nan), ("inf", math.inf)):
        tensors = _normal(shapes, rng)
        tensors[0].reshape(-1)[: max(1, shapes[0][-1] if len(shapes[0]) > 1 else 1)] = value
        yield FunctionCall(f"{name} in the first row", tuple(tensors))
    yield from _aliasings(function, rng)
    yield from _layouts(function, rng)


def _normal(shapes: Sequence[Shape], rng: np.random.Generator) -> list[torch.Tensor]:
    return [torch.from_numpy(rng.normal(size=shape).astype(np.float32)) for shape in shapes]


def _aliased(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The first tensor of each shape for all of its shape."""
    first: dict[Shape, torch.Tensor] = {}
    return [first.setdefault(tuple(tensor.shape), tensor) for tensor in tensors]


def _aliasings(function: DrawnFunction, rng: np.random.Generator) -> Iterator[FunctionCall]:
    tensors = _normal(function.shapes, rng)
    if len(set(function.shapes)) < len(function.shapes):
        yield FunctionCall("one tensor in several places", tuple(_aliased(tensors)))
    buffer = torch.from_numpy(rng.normal(size=max(tensor.numel() for tensor in tensors) + len(tensors)).astype(np.float32))
    views = [buffer[offset : offset + tensor.numel()].view(tensor.shape) for offset, tensor in enumerate(tensors)]
    yield FunctionCall("views of one buffer", tuple(views))
    held = {tuple(weight.shape): weight for weight in function.weights}
    if any(tuple(tensor.shape) in held for tensor in tensors):
        yield FunctionCall("captured tensors as arguments", tuple(held.get(tuple(tensor.shape), tensor) for tensor in tensors))


def _layouts(function: DrawnFunction, rng: np.random.Generator) -> Iterator[FunctionCall]:
    layouts: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "transposed storage": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
        "reversed dimensions": lambda x: x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim()))),
        "every other element": lambda x: x.repeat_interleave(2, -1)[..., ::2],
        "an offset into storage": lambda x: torch.cat([torch.full((3,), 7.0), x.reshape(-1)])[3:].view(x.shape),
        "an expanded row": lambda x: x[:1].expand(x.shape),
        "an expanded column": lambda x: x[..., :1].expand(x.shape),
        "a part of a wider tensor": lambda x: torch.cat([x, x + 1], -1)[..., : x.shape[-1]],
    }
    for (what, layout), alone in itertools.product(layouts.items(), (False, True)):
        tensors = _normal(function.shapes, rng)
        changed = [layout(tensor) if not alone or position == 0 else tensor for position, tensor in enumerate(tensors)]
        if not alone or len(tensors) > 1:
            yield FunctionCall(f"{what}{' in the first argument' if alone else ''}", tuple(changed))


# --- optimized functions beside the functions themselves ----------------------------------------------------------------

_TOLERANCE = 1e-5
_OWN = 10
"""Times the error that the function itself makes in fp32: the bound that `mugraph.verifier.float_check` sets, too."""
_JOSTLED = 3
"""Evaluations in float64 with operands that are off by a rounding."""
_WRONG = 1e-3
"""Errors above the bound and above this are no rounding."""


@dataclass(frozen=True, slots=True)
class CallFinding:
    """What is the matter with one call."""

    kind: str
    """"wrong", "imprecise", "structure", "NaN lost", "infinite inputs", "crashed" or "refused"."""
    call: str
    text: str


def compared(seed: int, budget: float) -> dict[str, Any]:
    """Optimize the function of a seed and call it in every way: counts of calls, findings, and whether kernels were found.

    Nothing is measured, or kernels for a few elements would lose to PyTorch, and the function would be compared with itself.
    """
    function, rng = random_function(seed), np.random.default_rng([seed, 1])
    example = examples(function, rng)
    started = time.perf_counter()
    try:
        optimized = superoptimize(function, _arguments(function, example), "cpu", budget, seed=0, profile=False, cache="off")
    except MugraphError as error:
        return {
            "found": False,
            "calls": 0,
            "findings": [],
            "refused": f"{type(error).__name__}: {error}"[:300],
            "seconds": _since(started),
        }
    except Exception as error:
        crash = {"kind": "crashed", "call": "optimizing", "text": repr(error)[:300]}
        return {"found": False, "calls": 0, "findings": [crash], "refused": "", "seconds": _since(started)}
    findings, count = [], 0
    for call in calls(function, rng):
        count += 1
        found = finding(function, optimized, call)
        if found is not None:
            findings.append({"kind": found.kind, "call": found.call, "text": found.text})
    return {"found": optimized.report.found, "calls": count, "findings": findings, "refused": "", "seconds": _since(started)}


def _since(started: float) -> float:
    return round(time.perf_counter() - started, 2)


def _arguments(function: DrawnFunction, example: FunctionCall) -> Any:
    """Example inputs of `superoptimize`, which takes positional or keyword arguments."""
    args, kwargs = function.call(example.tensors)
    return kwargs if not args else tuple(example.tensors)


def finding(function: DrawnFunction, optimized: Any, call: FunctionCall) -> CallFinding | None:
    """What is wrong with the optimized function's answer to a call, None where nothing is."""
    args, kwargs = function.call(call.tensors)
    if args:
        args, kwargs = call.tensors, {}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected, expected_structure = tree_flatten(function(*args, **kwargs))
        wide = [x.double() for x in args], {name: x.double() for name, x in kwargs.items()}
        reference, _ = tree_flatten(function.wide()(*wide[0], **wide[1]))
        jostled = [tree_flatten(function.wide().evaluated(_Jostling(seed), *wide[0], **wide[1]))[0] for seed in range(_JOSTLED)]
        before = [tensor.clone() for tensor in call.tensors]
        try:
            given, structure = tree_flatten(optimized(*args, **kwargs))
        except MugraphError as error:
            return CallFinding("refused", call.what, str(error)[:300])
        except Exception as error:
            return CallFinding("crashed", call.what, repr(error)[:300])
    if structure != expected_structure or [x.shape for x in given] != [x.shape for x in expected]:
        return CallFinding("structure", call.what, f"{structure} for {expected_structure}")
    if [x.dtype for x in given] != [x.dtype for x in expected]:
        return CallFinding("structure", call.what, f"{[x.dtype for x in given]} for {[x.dtype for x in expected]}")
    if any(not torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in zip(before, call.tensors, strict=True)):
        return CallFinding("wrong", call.what, "an argument was changed")
    return _difference(call, given, [expected, *jostled], reference)


class _Jostling:
    """Operands as fp32 may hold them: each element off by up to one unit in the last place."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, operand: torch.Tensor) -> torch.Tensor:
        off = 2 * torch.rand(operand.shape, generator=self.generator, dtype=operand.dtype) - 1
        return operand * (1 + torch.finfo(torch.float32).eps * off)


def _difference(
    call: FunctionCall,
    given: Sequence[torch.Tensor],
    rounded: Sequence[Sequence[torch.Tensor]],
    reference: Sequence[torch.Tensor],
) -> CallFinding | None:
    """The first output that is further from the function in float64 than rounding explains.

    That is what eager makes, the first of `rounded`, and what moves every operand by a unit in the last place.

    Where eager overflows, nothing is asked.
    """
    for number, (ours, exact, *others) in enumerate(zip(given, reference, *rounded, strict=True)):
        eager = others[0]
        defined = torch.isfinite(eager) & torch.isfinite(exact)
        if (torch.isnan(eager) & torch.isnan(exact) & ~torch.isnan(ours)).any():
            return CallFinding("NaN lost", call.what, f"output {number} is a number where the function's is none")
        if not defined.any():
            continue
        scale = exact[defined].abs().max().item()
        mine, *own = ((x[defined].double() - exact[defined]).abs().max().item() for x in (ours, *others))
        if not torch.isfinite(ours[defined]).all():
            kind = "wrong" if all(torch.isfinite(tensor).all() for tensor in call.tensors) else "infinite inputs"
            return CallFinding(kind, call.what, f"output {number} is not finite where the function's is")
        error, theirs = (x / scale if scale else x for x in (mine, max(own)))
        if error > max(_TOLERANCE, _OWN * theirs):
            kind = "wrong" if error > max(_WRONG, _OWN * _OWN * theirs) else "imprecise"
            return CallFinding(kind, call.what, f"output {number}: relative error {error:.2g}, the function's own {theirs:.2g}")
    return None
