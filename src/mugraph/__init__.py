"""mugraph: a multi-level superoptimizer for tensor programs.

    opt = mugraph.superoptimize(fn, example_inputs)   # search, verify, compile, measure
    opt(*inputs)                                      # the fastest verified muGraph

    @mugraph.optimize                                 # the same at the first call of each kind
    def fn(x, w): ...

The names below are imported on first use, so that `import mugraph` is quick and works without PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mugraph.version import __version__

if TYPE_CHECKING:
    from mugraph.api import load, optimize_graph, rebuild, superoptimize, verify
    from mugraph.errors import MugraphError
    from mugraph.frontend.onnx import from_onnx
    from mugraph.integrations.decorator import optimize
    from mugraph.integrations.dynamic_shapes import superoptimize_dynamic
    from mugraph.integrations.torch_operator import torch_operator
    from mugraph.ir.graph import Graph
    from mugraph.ir.program import Program
    from mugraph.results.superoptimized import Superoptimized
    from mugraph.search import SearchSpace
    from mugraph.sizes.dims import Dim
    from mugraph.sizes.dynamic_results import DynamicSuperoptimized

__all__ = [
    "Dim",
    "DynamicSuperoptimized",
    "Graph",
    "MugraphError",
    "Program",
    "SearchSpace",
    "Superoptimized",
    "__version__",
    "from_onnx",
    "load",
    "optimize",
    "optimize_graph",
    "rebuild",
    "superoptimize",
    "superoptimize_dynamic",
    "torch_operator",
    "verify",
]

_HOMES = {
    "Dim": "mugraph.sizes.dims",
    "DynamicSuperoptimized": "mugraph.sizes.dynamic_results",
    "Graph": "mugraph.ir.graph",
    "MugraphError": "mugraph.errors",
    "Program": "mugraph.ir.program",
    "SearchSpace": "mugraph.search",
    "Superoptimized": "mugraph.results.superoptimized",
    "from_onnx": "mugraph.frontend.onnx",
    "load": "mugraph.api",
    "optimize": "mugraph.integrations.decorator",
    "optimize_graph": "mugraph.api",
    "rebuild": "mugraph.api",
    "superoptimize": "mugraph.api",
    "superoptimize_dynamic": "mugraph.integrations.dynamic_shapes",
    "torch_operator": "mugraph.integrations.torch_operator",
    "verify": "mugraph.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mugraph' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
