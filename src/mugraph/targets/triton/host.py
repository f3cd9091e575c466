"""The function that runs a muGraph: it launches the generated kernels, and PyTorch computes what is pre-defined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mugraph.errors import UnsupportedOperator
from mugraph.ir.dtypes import DType
from mugraph.ir.graph import Graph, Node, Tensor, Value
from mugraph.ir.ops import GRAPH_DEFINED, ROUNDINGS
from mugraph.lower import needed_nodes
from mugraph.lower.exponents import least_of
from mugraph.lower.expressions import Source, apply_row, constant_of
from mugraph.lower.workspace import Workspace, plan_workspace
from mugraph.targets.triton.expressions import TORCH_FUNCTIONS, number, write_expression
from mugraph.targets.triton.kernel import TileKernel, value_names
from mugraph.targets.triton.tile import ELEMENT_TYPES


def host_lines(graph: Graph, kernels: Mapping[int, TileKernel]) -> list[str]:
    """The definition of `run`, which takes the graph's inputs and returns the list of its outputs."""
    names = value_names(graph)
    arguments = [names[Value(index)] for index, node in enumerate(graph.nodes) if node.is_input]
    device = f"{arguments[0]}.device" if arguments else '"cuda"'
    workspace = plan_workspace(graph)
    lines = [f"workspace = torch.empty({workspace.bytes}, dtype=torch.uint8, device={device})"] if workspace.offsets else []
    for index in needed_nodes(graph):
        node = graph.nodes[index]
        if node.op == GRAPH_DEFINED:
            lines += _launch(kernels[index], device, workspace)
        else:
            lines.append(f"{names[Value(index)]} = {_computed(graph, node, names)}  # {node.output}")
    results = ", ".join(names[value] for value in graph.outputs)
    return [f"def run({', '.join(arguments)}):", *(f"    {line}" for line in lines), f"    return [{results}]"]


def _launch(kernel: TileKernel, device: str, workspace: Workspace) -> list[str]:
    results = [(result, workspace.offsets.get(Value(kernel.index, number))) for number, result in enumerate(kernel.outputs)]
    allocations = [f"{result.name} = {_memory(result.tensor, device, offset)}" for result, offset in results]
    arguments = ", ".join(parameter.name for parameter in kernel.parameters)
    return [*allocations, f"{kernel.name}[({kernel.blocks},)]({arguments}, num_warps={kernel.warps})"]


def _memory(tensor: Tensor, device: str, offset: int | None) -> str:
    """Memory for a tensor: that from a byte of the workspace on, or its own."""
    if offset is None:
        return f"torch.empty({tensor.shape}, dtype={torch_type(tensor)}, device={device})"
    return f"workspace[{offset}:{offset + tensor.bytes}].view({torch_type(tensor)}).view({tensor.shape})"


def torch_type(tensor: Tensor) -> str:
    """PyTorch's name of a tensor's element type."""
    return "torch.float64" if tensor.dtype is DType.FP64 else f"torch.{ELEMENT_TYPES[tensor.dtype]}"


def _computed(graph: Graph, node: Node, names: Mapping[Value, str]) -> str:
    """A pre-defined operator in PyTorch: in fp32 and rounded to its type, but products of one type and views as they are."""
    operands = [names[value] for value in node.inputs]
    attributes = dict(node.attributes)
    match node.op:
        case "constant":
            return f"torch.tensor({number(constant_of(node).value)})"
        case "reshape":
            return f"{operands[0]}.reshape({node.output.shape}).contiguous()"
        case "transpose":
            return f"{operands[0]}.permute({attributes['permutation']}).contiguous()"
        case "matmul" if len({graph.tensor(value).dtype for value in node.inputs} | {node.output.dtype}) == 1:
            return f"torch.matmul({operands[0]}, {operands[1]})"
    if DType.FP64 in {node.output.dtype, *(graph.tensor(value).dtype for value in node.inputs)}:
        raise UnsupportedOperator(f"target triton computes in fp32 and cannot take fp64 tensors ({node.op}); cast to fp32")
    wide = [f"{operand}.float()" for operand in operands]
    return f"({_in_fp32(graph, node, wide)}).to({torch_type(node.output)})"


def _in_fp32(graph: Graph, node: Node, operands: Sequence[str]) -> str:
    match node.op:
        case "matmul":
            return f"{operands[0]} @ {operands[1]}"
        case "concat_matmul":
            return f"{operands[0]} @ {operands[2]} + {operands[1]} @ {operands[3]}"
        case "sum" | "max":
            dim, size = node.integer("dim"), node.integer("size")
            reduced = "sum" if node.op == "sum" else "amax"
            least = least_of(node)
            raised = "" if least is None else f".clamp(min={number(least)})"
            return f"{operands[0]}.unflatten({dim}, (-1, {size})).{reduced}({dim + 1}){raised}"
        case "repeat":
            shape = graph.tensor(node.inputs[0]).shape
            times = [node["times"] if dim == node["dim"] else 1 for dim in range(len(shape))]
            return f"{operands[0]}.repeat({tuple(times)})"
    if node.op == ROUNDINGS[DType.FP32]:
        return operands[0]
    expression = apply_row(node.op, [Source(position) for position in range(len(operands))])
    return write_expression(expression, operands, lambda part: part, TORCH_FUNCTIONS)
