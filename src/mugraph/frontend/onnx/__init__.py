"""ONNX models as programs, read with the onnx package.

- `model` reads a model; `rows` says what its operators mean, with `parts_of_tensors` for slices, concatenations and windows.
- `calls` is a node as rows see it.
"""

from mugraph.frontend.onnx.model import from_onnx, weights

__all__ = ["from_onnx", "weights"]
