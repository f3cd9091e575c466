"""The Python file of a muGraph: its kernels, the function that runs them, and a run on random inputs.

The function `run` launches the generated kernels, and PyTorch computes what is pre-defined.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from mugraph.errors import UnsupportedOperator
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import VIEWS, Graph, Node, Tensor, Value
from mugraph.ir.ops import GRAPH_DEFINED, ROUNDINGS, is_reduction, operator
from mugraph.lower import needed_nodes
from mugraph.lower.exponents import least_of
from mugraph.lower.scalar_expressions import Source, apply_row, constant_of, row_of
from mugraph.lower.thread_graphs import is_elementwise
from mugraph.lower.workspace import Workspace, plan_workspace
from mugraph.targets.triton.expressions import HELPERS, TORCH_FUNCTIONS, TORCH_REDUCTIONS, number, write_expression
from mugraph.targets.triton.kernel import TileKernel, value_names
from mugraph.targets.triton.printer import kernel_lines

_HEADER = '''\
"""Triton kernels of a muGraph, and `run`, which computes it.

Run this file on a machine with a GPU, or anywhere in Triton's interpreter: TRITON_INTERPRET=1 python {name}.
A tile of [1, 12, 64] is a tensor of [16, 64]: dimensions of size 1 are left out, others padded to powers of two.
"""

'''

_IMPORTS = """\
import torch
import triton
import triton.language as tl
"""

_MAIN = """\
if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for result in run(*(torch.randn(shape, device=device).to(dtype) for shape, dtype in INPUTS)):
        print(list(result.shape), result.dtype, "mean", result.float().mean().item())
"""


def print_program(kernels: Sequence[TileKernel], name: str) -> str:
    """The text of the file `name` for all kernels of one kernel graph; raises UnsupportedOperator for what Triton cannot say.

    Of kernels that compute a number of slices it is the kernels alone.
    """
    graph = kernels[0].program
    definitions = ["\n".join(kernel_lines(kernel)) + "\n" for kernel in kernels]
    if any(kernel.form.slices is not None for kernel in kernels):
        return "\n\n".join([_IMPORTS, *_helpers(definitions), *definitions])
    run = "\n".join(host_lines(graph, {kernel.index: kernel for kernel in kernels})) + "\n"
    helpers = _helpers([*definitions, run])
    return "\n\n".join([_HEADER.format(name=name) + _IMPORTS, *helpers, *definitions, run, _inputs(graph), _MAIN])


def _helpers(bodies: Sequence[str]) -> list[str]:
    """The functions of `HELPERS` that texts call, and those that these call."""
    called: set[str] = set()
    while bodies:
        new = {function for function in HELPERS if function not in called and any(calls(function, body) for body in bodies)}
        called |= new
        bodies = [HELPERS[function] for function in new]
    return [text for function, text in HELPERS.items() if function in called]


def calls(function: str, body: str) -> bool:
    """Whether a text calls a function of its own module."""
    return re.search(rf"(?<![\w.]){function}\(", body) is not None


def _inputs(graph: Graph) -> str:
    """Shapes and types of the inputs, in order."""
    names = value_names(graph)
    rows = [
        f"    ({node.output.shape}, {torch_type(node.output)}),  # {names[Value(index)]}"
        for index, node in enumerate(graph.nodes)
        if node.is_input
    ]
    return "\n".join(["INPUTS = [", *rows, "]\n"])


def host_lines(graph: Graph, kernels: Mapping[int, TileKernel]) -> list[str]:
    """The definition of `run`, which takes the graph's inputs and returns the list of its outputs."""
    names = value_names(graph)
    arguments = [names[Value(index)] for index, node in enumerate(graph.nodes) if node.is_input]
    device = f"{arguments[0]}.device" if arguments else '"cuda"'
    workspace = plan_workspace(graph)
    lines = [f"workspace = torch.empty({workspace.bytes}, dtype=torch.uint8, device={device})"] if workspace.offsets else []
    allocated: set[Value] = set()
    for index in needed_nodes(graph):
        node = graph.nodes[index]
        if node.op == GRAPH_DEFINED:
            lines += _launch(kernels[index], device, workspace, allocated)
        else:
            lines.append(f"{names[Value(index)]} = {_computed(graph, node, names)}  # {node.output}")
    results = ", ".join(names[value] for value in graph.outputs)
    return [f"def run({', '.join(arguments)}):", *(f"    {line}" for line in lines), f"    return [{results}]"]


def _launch(kernel: TileKernel, device: str, workspace: Workspace, allocated: set[Value]) -> list[str]:
    """The launch of a kernel, and before it memory for what it is the first to write, which is `allocated` then."""
    results = [(result, workspace.offsets.get(result.value)) for result in kernel.outputs if result.value not in allocated]
    allocated.update(result.value for result in kernel.outputs)
    allocations = [f"{result.name} = {_memory(result.tensor, device, offset)}" for result, offset in results]
    arguments = ", ".join(parameter.name for parameter in kernel.parameters)
    return [*allocations, f"{kernel.name}[({kernel.blocks},)]({', '.join([arguments, *_options(kernel)])})"]


def _options(kernel: TileKernel) -> Iterator[str]:
    """What a launch says beside the operands."""
    if not kernel.tuned:
        yield f"num_warps={kernel.warps}"
    if not kernel.fuses:
        yield "enable_fp_fusion=False"


def _memory(tensor: Tensor, device: str, offset: int | None) -> str:
    """Memory for a tensor: that from a byte of the workspace on, or its own."""
    if offset is None:
        return f"torch.empty({tensor.shape}, dtype={torch_type(tensor)}, device={device})"
    return f"workspace[{offset}:{offset + tensor.bytes}].view({torch_type(tensor)}).view({tensor.shape})"


def torch_type(tensor: Tensor) -> str:
    """PyTorch's name of a tensor's element type."""
    return f"torch.{tensor.dtype.torch_name}"


def _computed(graph: Graph, node: Node, names: Mapping[Value, str]) -> str:
    """A pre-defined operator in PyTorch: in fp32 and rounded to its type, but products of one type and views as they are."""
    operands = [names[value] for value in node.inputs]
    types = {node.output.dtype, *(graph.tensor(value).dtype for value in node.inputs)}
    if node.is_constant:
        return f"torch.tensor({number(constant_of(node).value)})"
    if node.op in VIEWS:
        return f"{operands[0]}.{_moved(graph, node)}.contiguous()"
    # by name: the only operator of any number of operands
    if node.op == "concat":
        return f"torch.cat([{', '.join(operands)}], dim={node.integer('dim')})"
    if len(operator(node.op).products) == 1 and len(types) == 1:
        return f"torch.matmul({', '.join(operands)})"
    if DType.FP64 in types:
        raise UnsupportedOperator(f"target triton computes in fp32 and cannot take fp64 tensors ({node.op}); cast to fp32")
    wide = [f"{operand}.float()" for operand in operands]
    return f"({_in_fp32(graph, node, wide)}).to({torch_type(node.output)})"


def _in_fp32(graph: Graph, node: Node, operands: Sequence[str]) -> str:
    row = operator(node.op)
    if row.products:
        return " + ".join(f"{operands[left]} @ {operands[right]}" for left, right in row.products)
    if is_reduction(node.op):
        dim, least = node.integer("dim"), least_of(node)
        raised = "" if least is None else f".clamp(min={number(least)})"
        groups = f"{operands[0]}.unflatten({dim}, (-1, {node.integer('size')}))"
        return f"{groups}.{TORCH_REDUCTIONS[node.op]}({dim + 1}){raised}"
    if node.op == ROUNDINGS[DType.FP32]:
        return operands[0]
    if not is_elementwise(node):
        return f"{operands[0]}.{_moved(graph, node)}"
    expression = apply_row(row_of(node), [Source(position) for position in range(len(operands))])
    return write_expression(expression, operands, lambda part: part, TORCH_FUNCTIONS)


def _moved(graph: Graph, node: Node) -> str:
    """The method of a tensor that moves its elements as an operator does."""
    # by name: each is one method of PyTorch's tensors, with arguments of its own.
    match node.op:
        case "reshape":
            return f"reshape({node.output.shape})"
        case "transpose":
            return f"permute({node.integers('permutation')})"
        case "slice":
            dim, start, size, step = (node.integer(name) for name in ("dim", "start", "size", "step"))
            first, span = min(start, start + (size - 1) * step), (size - 1) * abs(step) + 1
            turned = f".flip({dim})" if step < 0 else ""
            return f"narrow({dim}, {first}, {span})[{':, ' * dim}::{abs(step)}]{turned}"
        case "repeat":
            rank = len(graph.tensor(node.inputs[0]).shape)
            return f"repeat({tuple(node.integer('times') if dim == node.integer('dim') else 1 for dim in range(rank))})"
    raise UnsupportedOperator(f"target triton has no method of PyTorch's tensors for {node.op}")
