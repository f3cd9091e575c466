"""Optimized functions beside the functions themselves, called as their examples did not show."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten

from mugraph import superoptimize
from mugraph.errors import MugraphError
from mugraph.testing.functions import DrawnFunction, FunctionCall, calls, examples, random_function

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
