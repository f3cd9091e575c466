"""Gradients of model classes of `transformers` through `torch.compile(backend="mugraph")`, against float64.

    python benchmarks/trained_classes.py                          # all classes of benchmarks/model_classes.py, fp32
    python benchmarks/trained_classes.py llama bert --dtypes float32,bfloat16 --budget 20

Each class is small, with random weights, in evaluation mode, where nothing is drawn; the loss is a random linear function of its
floating-point outputs. Kernels run every piece that has any (`keep="all"`), forward and backward. Gradients of all parameters are
right that err, relative to the largest of the parameter, at most `kernelbench.ERRORS` times as much as eager PyTorch's do at
worst; parameters without a gradient have none in eager PyTorch either. A class runs in a process of its own. Records go to
`benchmarks/results/trained-classes.json`, one by one, and are not made again by the same sources.

Needs `pip install mugraph[models]`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import model_classes
from kept import Record
from kernelbench import ERRORS
from mugraph.integrations.torch_compile import backend, compilations

RESULT = Path(__file__).parent / "results" / "trained-classes.json"
STEPS = 2
"""Steps through the compiled model; the gradients of the last one count."""
SMALL = 1e-3
"""Gradients of a parameter that are all smaller than this, relative to the largest of the model, are measured by that."""

Gradients = Mapping[str, torch.Tensor]
Model = Callable[..., tuple[torch.Tensor, ...]]


def record(name: str, dtype: str, budget: float) -> Record:
    """What became of the gradients of a class."""
    torch.set_num_threads(2)
    try:
        model, inputs = model_classes.model_of(name, dtype)
        model.requires_grad_(True)
        given = inputs()
        exact = model_classes.exact(model)
        doubled = [tensor.double() if tensor.is_floating_point() else tensor for tensor in given]
        with torch.no_grad():
            weights = [torch.randn(tensor.shape, dtype=torch.float64) / tensor.numel() ** 0.5 for tensor in model(*given)]
        wanted, own = gradients(exact, exact, doubled, weights), gradients(model, model, given, weights)
    except Exception as failed:
        return {"outcome": "not trained by PyTorch", "why": model_classes.first_line(failed)}
    started = time.perf_counter()
    options: dict[str, Any] = {"budget": budget, "keep": "all"}
    compiled = torch.compile(model, backend=backend, options=options)
    for _ in range(STEPS):
        ours = gradients(model, compiled, given, weights)
    error, at = worst(ours, wanted)
    own_error, _ = worst(own, wanted)
    enough = max(ERRORS * own_error, 64 * torch.finfo(getattr(torch, dtype)).eps)
    return {
        "outcome": "right" if ours.keys() == own.keys() and error <= enough else "wrong",
        "seconds": time.perf_counter() - started,
        "error": error,
        "model_error": own_error,
        "at": at,
        "graphs": [{"pieces": len(each.results), "byte_share": each.partition.byte_share} for each in compilations],
    }


def gradients(model: nn.Module, call: Model, inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> Gradients:
    """Of the parameters of a model, by `call`, which runs it; those that have one, in float64."""
    model.zero_grad()
    outputs = zip(call(*inputs), weights, strict=True)
    sum((output.double() * weight).sum() for output, weight in outputs if output.requires_grad).backward()  # type: ignore[union-attr]
    return {name: each.grad.double().clone() for name, each in model.named_parameters() if each.grad is not None}


def worst(found: Gradients, wanted: Gradients) -> tuple[float, str]:
    """The largest error, relative to the largest gradient of the parameter; and of which one."""
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    errors = {
        name: float((found[name] - gradient).abs().max()) / max(float(gradient.abs().max()), SMALL * largest)
        for name, gradient in wanted.items()
        if name in found
    }
    at = max(errors, key=lambda name: (errors[name] != errors[name], errors[name]))
    return errors[at], at


def summary(found: Sequence[Record]) -> dict[str, Any]:
    """What the records say together."""
    return {
        "outcomes": dict(Counter(entry["outcome"] for entry in found)),
        "without_kernels": [_line(entry) for entry in found if not any(each["pieces"] for each in entry.get("graphs", []))],
        "not_right": [_line(entry) for entry in found if entry["outcome"] != "right"],
    }


def _line(entry: Record) -> str:
    if "error" not in entry:
        return f"{entry['name']} {entry['dtype']}: {entry['outcome']} ({entry['why']})"
    shares = ", ".join(f"{each['byte_share']:.0%}" for each in entry["graphs"])
    errors = f"{entry['error']:.1e} beside {entry['model_error']:.1e} in {entry['at']}"
    return f"{entry['name']} {entry['dtype']}: {entry['outcome']}, {errors}; {shares} of the bytes; {entry['seconds']:.0f} s"


def main(words: Sequence[str] | None = None) -> None:
    """Run the classes, write the records, print a line for each."""
    model_classes.run(words, model_classes.Script(__doc__ or "", __file__, record, _line, summary, RESULT, ["float32"]))


if __name__ == "__main__":
    main()
