"""Random muGraphs on every target: what they mean in float64, beside what their kernels compute, and how far apart both may be.

A run ends in one of four ways: `equal`, within what rounding explains; `refused`, by a typed error before anything ran; `wrong`,
with another result or with a fault that an emulator found; or `crashed`. The last two must not be. Where a target's compiler is
here and its machine is not, its kernels can be `compiled` besides.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mugraph.errors import CompilationFailed, InvalidGraph, MugraphError
from mugraph.frontend.operators.torch_casts import TORCH_DTYPES
from mugraph.ir.arithmetic import Array
from mugraph.ir.dtypes import DType, round_to
from mugraph.ir.evaluate import evaluate
from mugraph.ir.float_arithmetic import FloatArithmetic
from mugraph.ir.graph import Graph, Value
from mugraph.ir.ops import ROUNDINGS
from mugraph.ir.validity import check
from mugraph.lower.flattening import flattened
from mugraph.lower.thread_graphs import construct
from mugraph.runtime import Executable
from mugraph.support.scratch import scratch_directory
from mugraph.targets.cpu.machine import Cpu
from mugraph.targets.cuda.emulated import EmulatedCuda
from mugraph.targets.cuda.machine import Cuda
from mugraph.targets.machine import Machine, machine_for
from mugraph.targets.triton.interpreted import InterpretedTriton
from mugraph.targets.triton.machine import TritonMachine
from mugraph.testing.mugraphs import LARGE, SMALL, MuGraphSpace, random_mugraph
from mugraph.testing.on_gpu import CudaOnGpu, TritonOnGpu

LARGEST_ERROR: Mapping[DType, float] = {DType.FP16: 3e-3, DType.BF16: 2e-2, DType.FP32: 1e-4}
"""What rounding explains, relative to the largest result."""

_Array = npt.NDArray[np.floating]


def relative_error(results: Iterable[_Array], exact: Iterable[_Array]) -> float:
    """The largest difference of results from exact ones, relative to the largest of each output; NaN where a result is NaN."""
    errors = [np.max(np.abs(got - wanted)) / np.max(np.abs(wanted)) for got, wanted in zip(results, exact, strict=True)]
    return float(np.max(errors))


TARGETS = ("cpu", "cuda", "triton")
"""Where kernels run: on this host, on the emulator of CUDA, and in Triton's interpreter."""
ON_GPU = ("cuda-on-gpu", "triton-on-gpu")
"""The same of both on the GPU that PyTorch sees, in the emulators' places."""
COMPILERS = ("cuda", "triton")
ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
"""Of GPUs, in turn."""

_TYPES = (
    (DType.FP32,),
    (DType.FP16,),
    (DType.BF16,),
    (DType.FP16, DType.FP32),
    (DType.BF16, DType.FP32),
    (DType.FP16, DType.BF16, DType.FP32),
)
_KERNELS = 4
_UNITS = {DType.FP64: 2.0**-53, DType.FP32: 2.0**-24, DType.FP16: 2.0**-11, DType.BF16: 2.0**-8}
"""Largest relative error of rounding to a type."""
_LEAST_NORMAL = {DType.FP16: 2.0**-14}
_MULTIPLE = 8
"""Beyond the bound of its type, a result may err this many times as much as when every operator errs by a unit of its type."""
_DETERMINED = 0.05
"""An output that rounding may change by more than this part of its largest element says nothing of a kernel."""


class Ending(StrEnum):
    """How a run ended."""

    EQUAL = "equal"
    REFUSED = "refused"
    WRONG = "wrong"
    CRASHED = "crashed"
    COMPILED = "compiled"


FAULTS = (Ending.WRONG, Ending.CRASHED)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended, its largest error beside the one allowed, and the message of what went wrong or was refused."""

    ending: Ending
    share: float = 0.0
    message: str = ""

    @property
    def reason(self) -> str:
        """The message without numbers and names, so that messages of one kind are the same."""
        return re.sub(r"\d+", "N", re.sub(r"\([^()]*\)", "(...)", self.message))


@dataclass(frozen=True, slots=True)
class Trial:
    """A muGraph, inputs for it, its exact outputs for these, and by how much of its largest element each may be off."""

    graph: Graph
    inputs: tuple[Array, ...]
    exact: tuple[Array, ...]
    allowed: tuple[float, ...]


def trial_of_seed(seed: int, statistics: bool = False) -> Trial:
    """The trial of a number: up to four kernels, of any types that kernels take, one in 50 with fp64 among them.

    With `statistics`, most of their loops take sums or maxima of rows, half of them of large tensors.
    """
    rng = random.Random(seed)
    dtypes = (DType.FP32, DType.FP64) if rng.random() < 0.02 else rng.choice(_TYPES)
    large = 0.5 if statistics else 0.35
    space = replace(LARGE if rng.random() < large else SMALL, dtypes=dtypes, layouts=rng.random() < 0.3, statistics=statistics)
    return random_trial(rng, rng.randint(1, _KERNELS), space)


def random_trial(rng: random.Random, kernels: int, space: MuGraphSpace) -> Trial:
    """A random muGraph, whose tensors in memory are within the range of their types, its outputs no work of rounding."""
    while True:
        trial = trial_of(random_mugraph(rng, kernels, space), rng.randrange(2**32))
        if trial is not None:
            return trial


def trial_of(graph: Graph, seed: int) -> Trial | None:
    """A muGraph with standard normal inputs; None where these leave the range of a type or rounding decides an output."""
    normal = np.random.default_rng(seed)
    tensors = [node.output for node in graph.inputs()]
    inputs = tuple(round_to(t.dtype, normal.standard_normal(t.shape)).astype(np.float64) for t in tensors)
    everything = [Value(index, number) for index, node in enumerate(graph.nodes) for number in range(len(node.outputs))]
    values = evaluate(graph.with_nodes(graph.nodes, tuple(everything)), inputs, FloatArithmetic())
    if not all(
        graph.tensor(value).dtype.holds(2 * np.asarray(array)).all() for value, array in zip(everything, values, strict=True)
    ):
        return None
    exact = tuple(np.asarray(values[everything.index(value)]) for value in graph.outputs)
    coarsest = max(_types(graph), key=_UNITS.__getitem__)
    lost = [0.0] * len(exact)
    for _ in range(2):
        perturbed = evaluate(graph, inputs, _Perturbed(_UNITS[coarsest], normal))
        lost = [max(pair) for pair in zip(lost, errors(graph, perturbed, exact), strict=True)]
    allowed = tuple(max(LARGEST_ERROR.get(coarsest, LARGEST_ERROR[DType.FP32]), _MULTIPLE * each) for each in lost)
    return Trial(graph, inputs, exact, allowed) if max(allowed) <= _DETERMINED else None


def _types(graph: Graph) -> set[DType]:
    """The types that numbers of a muGraph are rounded to."""
    nodes = [node for _, node in graph.walk()]
    return {t.dtype for node in nodes for t in node.outputs} | {
        d for d, op in ROUNDINGS.items() for node in nodes if node.op == op
    }


def errors(graph: Graph, results: Sequence[Array], exact: Sequence[Array]) -> list[float]:
    """The largest error of each output, relative to its largest element; infinite where a result is not finite."""
    found = []
    for value, result, wanted in zip(graph.outputs, results, exact, strict=True):
        largest = max(float(np.abs(wanted).max()), _LEAST_NORMAL.get(graph.tensor(value).dtype, 1e-6))
        error = float(np.abs(np.asarray(result) - wanted).max()) / largest
        found.append(error if np.isfinite(error) else np.inf)
    return found


class _Perturbed(FloatArithmetic):
    """float64, but every operator errs by up to a unit of a coarser type, at random, and so do terms and factors.

    Terms, because two copies of a tensor may differ by one's rounding: their difference is then the work of rounding alone.
    """

    def __init__(self, unit: float, normal: np.random.Generator) -> None:
        super().__init__()
        self.unit, self.normal = unit, normal

    def off(self, x: Array) -> Array:
        return np.asarray(x * (1 + self.unit * self.normal.uniform(-1, 1, np.shape(x))))

    def add(self, x: Array, y: Array) -> Array:
        return self.off(super().add(self.off(x), self.off(y)))

    def sub(self, x: Array, y: Array) -> Array:
        return self.off(super().sub(self.off(x), self.off(y)))

    def mul(self, x: Array, y: Array) -> Array:
        return self.off(super().mul(x, y))

    def div(self, x: Array, y: Array) -> Array:
        return self.off(super().div(x, y))

    def exp(self, x: Array) -> Array:
        return self.off(super().exp(x))

    def sqrt(self, x: Array) -> Array:
        return self.off(super().sqrt(x))

    def sum(self, x: Array, axis: int) -> Array:
        return self.off(super().sum(self.off(x), axis))

    def matmul(self, x: Array, y: Array) -> Array:
        return self.off(super().matmul(self.off(x), self.off(y)))

    def opaque(self, name: str, *xs: Array) -> Array:
        return self.off(super().opaque(name, *map(self.off, xs)))


def machine_of(target: str, turn: int = 0) -> Machine:
    """What a target's kernels run on here; `turn` chooses the architecture of a GPU and the order of its warps."""
    if target == "cpu":
        return Cpu()
    architecture = ARCHITECTURES[turn % len(ARCHITECTURES)]
    name, _, on_gpu = target.partition("-")
    if name == "cuda":
        return (CudaOnGpu if on_gpu else EmulatedCuda)(Cuda.described(f"cuda:{architecture}"), seed=turn)
    return (TritonOnGpu if on_gpu else InterpretedTriton)(TritonMachine.described(f"triton:{architecture}"))


def outcome(trial: Trial, machine: Machine) -> RunOutcome:
    """How a muGraph fares on a machine."""
    executable = _built(trial.graph, machine)
    if isinstance(executable, RunOutcome):
        return executable
    try:
        return _compared(trial, executable)
    except Exception as error:  # whatever it is, it is what is looked for
        return RunOutcome(Ending.CRASHED, message=f"{type(error).__name__}: {error}")


def compiled(graph: Graph, compiler: str, turn: int = 0) -> RunOutcome:
    """Whether a target's own compiler takes the kernels of a muGraph."""
    made = _built(graph, machine_for(f"{compiler}:{ARCHITECTURES[turn % len(ARCHITECTURES)]}"))
    return made if isinstance(made, RunOutcome) else RunOutcome(Ending.COMPILED)


def constructed(trial: Trial, machines: Sequence[Machine]) -> RunOutcome:
    """Whether a muGraph with generated thread graphs is valid, and means just what it did without any.

    A machine prints both alike, or in another order of nodes; then what it prints is run.
    """
    try:
        flat = flattened(trial.graph)
        made = construct(flat)
        check(made)
        means = [evaluate(graph, trial.inputs, FloatArithmetic()) for graph in (flat, made)]
        if not all(np.array_equal(one, other) for one, other in zip(*means, strict=True)):
            return RunOutcome(Ending.WRONG, message="outputs differ in float64")
        others = [machine for machine in machines if _text(trial.graph, machine) != _text(made, machine)]
    except Exception as error:  # as above
        return RunOutcome(Ending.CRASHED, message=f"{type(error).__name__}: {error}")
    runs = [outcome(replace(trial, graph=made), machine) for machine in others]
    return next((run for run in runs if run.ending is not Ending.EQUAL), RunOutcome(Ending.EQUAL))


def _text(graph: Graph, machine: Machine) -> object:
    """What a machine prints of a muGraph, or why it refuses it."""
    try:
        return machine.print([launch.kernel for launch in machine.lower(graph).values()])
    except MugraphError as error:
        return str(error)


def _built(graph: Graph, machine: Machine) -> Executable | RunOutcome:
    """A valid muGraph's kernels, or how they were refused; that it or its lowered form is invalid, or its text, is a defect."""
    with scratch_directory("mugraph-trial-") as folder:
        try:
            return Executable(graph, machine, cache_directory=Path(folder))
        except Exception as error:  # as above
            is_defect = type(error) is InvalidGraph or isinstance(error, CompilationFailed)
            is_refusal = isinstance(error, MugraphError) and not is_defect
            return RunOutcome(Ending.REFUSED if is_refusal else Ending.CRASHED, message=f"{type(error).__name__}: {error}")


def _compared(trial: Trial, executable: Executable) -> RunOutcome:
    dtypes = [node.output.dtype for node in trial.graph.inputs()]
    given = [torch.from_numpy(array).to(TORCH_DTYPES[dtype]) for array, dtype in zip(trial.inputs, dtypes, strict=True)]
    results: list[Any] = executable(*given)
    if findings := getattr(executable.machine, "findings", []):
        return RunOutcome(Ending.WRONG, message=str(findings[0]))
    for value, result in zip(trial.graph.outputs, results, strict=True):
        tensor = trial.graph.tensor(value)
        if tuple(result.shape) != tensor.shape or result.dtype is not TORCH_DTYPES[tensor.dtype]:
            return RunOutcome(
                Ending.WRONG, message=f"a result of shape {list(result.shape)} and {result.dtype} in place of {tensor}"
            )
    if not all(np.array_equal(tensor.double().numpy(), array) for tensor, array in zip(given, trial.inputs, strict=True)):
        return RunOutcome(Ending.WRONG, message="an input was written to")
    found = errors(trial.graph, [result.double().numpy() for result in results], trial.exact)
    share = max(error / allowed for error, allowed in zip(found, trial.allowed, strict=True))
    message = f"outputs err by {[f'{error:.2g}' for error in found]} of their largest" if share > 1 else ""
    return RunOutcome(Ending.WRONG if share > 1 else Ending.EQUAL, share, message)
