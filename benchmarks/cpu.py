"""Kernels for the CPU beside every runtime that packs constant weights: eager, inductor, frozen inductor, OpenVINO, ONNX Runtime.

    python benchmarks/cpu.py                                     # the six workloads, all batches, fp32 and bf16, all cores
    python benchmarks/cpu.py rmsnorm swiglu --batches 1 8 --dtypes bf16 --threads 1 2
    python benchmarks/cpu.py --programs                          # what is outside of the six
    python benchmarks/cpu.py --all --threads 1 2                 # the whole grid: hours; repeated, it goes on where it stopped

Protocol: one process for a case, in which every contestant holds the same weights and is called in bursts of 25, in random order,
with a pause of 50 ms between bursts, since pools of threads that spin disturb the next; the median of the bursts' medians counts.
Threads wait for their next work as libraries have it when nobody says otherwise (`--wait default`: awake for some milliseconds),
or asleep (`--wait passive`: `OMP_WAIT_POLICY=passive` and ONNX Runtime without spinning), as suits machines that are shared.
Outputs are compared with float64. OpenVINO and ONNX Runtime take part where they are installed (`scripts/setup torch,rivals`);
bf16 is OpenVINO's precision hint, with inputs and outputs in fp32. A row says what our calls run (`ran`: kernels, the
library's products, PyTorch's calls, or the function where nothing clearly faster was found), and which share of what it is bound
by it reaches, as that is measured in the same process (`cpu_limits.py`): reading what it must read, or the library's products.
Printed last are geometric means of the six and of others, the cells that are lost and those without a time of ours. Records go to
`benchmarks/results/cpu-rivals.json`, and are made again by other sources alone.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

import mugraph
from contestants import Call, by_inductor, compared, in_bursts, tensors
from cpu_limits import limits, what_ran
from kept import Record, answer_of, records
from mugraph.devices import device_for
from mugraph.devices.host import available_cores
from mugraph.frontend.workloads import WORKLOADS, workload

RESULT = Path(__file__).parent / "results" / "cpu-rivals.json"
BURSTS = 12
GIVEN = {"x", "h", "q", "k", "v"}
"""Names of what changes with every call; the other inputs of a workload are weights."""
BATCHES = {"gqa": (1, 8), "qknorm": (1, 8), "ntrans": (8, 64, 512)}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
OURS = "mugraph"
POLICY = "OMP_WAIT_POLICY"
WAITS = ("default", "passive")
LOST = 0.97
"""A ratio of the best rival's time to ours under which a case is lost."""
LIMIT = 1800.0
"""Seconds that a case may take beside ten times its budget."""
NAMED = ("case", "dtype", "batch", "threads", "wait")
"""What a case is called by in the table."""


class Held(nn.Module):
    """A function of which some arguments are parameters."""

    def __init__(self, function: Callable[..., torch.Tensor], arguments: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.function, self.names = function, tuple(arguments)
        for name, tensor in arguments.items():
            if name not in GIVEN:
                self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        """The function of these and the parameters."""
        values = iter(given)
        return self.function(*(next(values) if name in GIVEN else getattr(self, name) for name in self.names))


@dataclass(frozen=True, slots=True)
class Case:
    """A module in evaluation mode and what it is called with."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights, or of the inputs of a module without any."""
        return next(each.dtype for each in (*self.module.parameters(), *self.inputs) if each.is_floating_point())

    def to(self, dtype: torch.dtype) -> Case:
        """The same with weights and inputs of another type; changes the module."""
        inputs = (each.to(dtype) if each.is_floating_point() else each for each in self.inputs)
        return Case(self.module.to(dtype), tuple(inputs))


# what is outside of the six workloads -------------------------------------------------------------------------------------


def _norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * gain


class Qkv(nn.Module):
    """RMSNorm and the three projections of attention."""

    def __init__(self, width: int = 2048, key: int = 512) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.q, self.k, self.v = (nn.Linear(width, size, bias=False) for size in (width, key, key))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The projections beside each other."""
        normed = _norm(x, self.gain)
        return torch.cat([self.q(normed), self.k(normed), self.v(normed)], -1)


class NormedLinear(nn.Module):
    """LayerNorm and a linear layer with offsets."""

    def __init__(self, width: int = 2048) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Its rows, normalised and multiplied."""
        result: torch.Tensor = self.linear(self.norm(x))
        return result


class SwiGlu(nn.Module):
    """The whole feed-forward part of a Llama-like layer."""

    def __init__(self, width: int = 2048, inner: int = 5632) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x plus what the layer makes of it."""
        normed = _norm(x, self.gain)
        made: torch.Tensor = self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))
        return x + made


class Softmax(nn.Module):
    """Softmax of long rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of each row."""
        return x.softmax(-1)


class Prefill(nn.Module):
    """Causal attention of 16 heads of 64."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """As PyTorch has it."""
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Pooling(nn.Module):
    """Weighted pooling of tokens: softmax of a score for each."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One row for each sequence."""
        scores: torch.Tensor = self.score(x)
        return (scores.softmax(1) * x).sum(1)


def _rows(*shape: int) -> Callable[[int], tuple[torch.Tensor, ...]]:
    return lambda batch: (torch.randn(batch, *shape),)


def _heads(tokens: int) -> Callable[[int], tuple[torch.Tensor, ...]]:
    return lambda batch: tuple(torch.randn(batch, 16, tokens, 64) for _ in range(3))


def _encoder(norm_first: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True, norm_first=norm_first)


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[torch.Tensor, ...]], tuple[int, ...]]] = {
    "rmsnorm-qkv": (Qkv, _rows(2048), (1, 8, 64, 512)),
    "layernorm-linear": (NormedLinear, _rows(2048), (1, 8, 64, 512)),
    "swiglu": (SwiGlu, _rows(2048), (1, 8, 64)),
    "softmax-32k": (Softmax, _rows(32768), (1, 8, 64)),
    "prefill-512": (Prefill, _heads(512), (1,)),
    "prefill-2048": (Prefill, _heads(2048), (1,)),
    "bert-layer": (lambda: _encoder(False), _rows(128, 768), (1,)),
    "vit-layer": (lambda: _encoder(True), _rows(197, 768), (1,)),
    "pooling": (Pooling, _rows(256, 1024), (1, 8)),
}


def case_of(name: str, batch: int, dtype: str) -> Case:
    """The module and inputs of a case, of one seed."""
    torch.manual_seed(0)
    if name in PROGRAMS:
        module, inputs, _ = PROGRAMS[name]
        return Case(module().eval().to(DTYPES[dtype]), tuple(each.to(DTYPES[dtype]) for each in inputs(batch)))
    row = workload(name)
    arguments = dict(zip(row.shapes(batch), row.inputs(batch, dtype), strict=True))
    given = tuple(tensor for name, tensor in arguments.items() if name in GIVEN)
    return Case(Held(row.function(), arguments).eval(), given)


# contestants --------------------------------------------------------------------------------------------------------------


def _called(function: Callable[..., Any], case: Case) -> Call:
    return lambda: function(*case.inputs)


def eager(case: Case, threads: int, budget: float) -> Call:
    """PyTorch as it is."""
    return _called(case.module, case)


def inductor(case: Case, threads: int, budget: float) -> Call:
    """`torch.compile` by default."""
    call: Call = by_inductor(case.module, case.inputs)
    return call


def frozen(case: Case, threads: int, budget: float) -> Call:
    """`torch.compile` with frozen weights, which it packs, and its most thorough search."""
    call: Call = by_inductor(case.module, case.inputs, freezing=True)
    return call


def openvino(case: Case, threads: int, budget: float) -> Call:
    """OpenVINO for least latency."""
    dtype = case.dtype
    return inferred(converted(case), case.inputs, dtype, threads)


def converted(case: Case) -> Any:
    """A case as a model of OpenVINO, in fp32; changes the module."""
    plain = case.to(torch.float32)
    shapes = [tuple(each.shape) for each in plain.inputs]
    return import_module("openvino").convert_model(plain.module, example_input=plain.inputs, input=shapes)


def inferred(
    model: Any,
    inputs: Sequence[torch.Tensor],
    dtype: torch.dtype,
    threads: int,
    prepare: Callable[[Any], None] | None = None,
) -> Call:
    """Calls of a model of OpenVINO that computes in `dtype`; `prepare` is given the request before each."""
    ov = import_module("openvino")
    precision = "bf16" if dtype is torch.bfloat16 else "f32"
    hints = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,
    }
    request = ov.Core().compile_model(model, "CPU", hints).create_infer_request()
    plain = (each.float() if each.is_floating_point() else each for each in inputs)
    given = dict(enumerate(ov.Tensor(each.numpy(), shared_memory=True) for each in plain))

    def call() -> list[torch.Tensor]:
        if prepare is not None:
            prepare(request)
        request.infer(given, share_inputs=True, share_outputs=True)
        return [torch.from_numpy(request.get_output_tensor(number).data) for number in range(len(model.outputs))]

    return call


def onnx_runtime(case: Case, threads: int, budget: float) -> Call:
    """ONNX Runtime, which has products of fp32 alone."""
    ort = import_module("onnxruntime")
    if case.dtype is not torch.float32:
        raise ValueError("its CPU kernels take no bf16")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")
        import_module("torch.onnx").register_custom_op_symbolic("aten::rms_norm", _rms_norm, 18)
        torch.onnx.export(case.module, case.inputs, str(file), dynamo=False)
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry("session.intra_op.allow_spinning", str(int(os.environ.get(POLICY) != "passive")))
        session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    feeds = {each.name: given.numpy() for each, given in zip(session.get_inputs(), case.inputs, strict=True)}
    return lambda: [torch.from_numpy(output) for output in session.run(None, feeds)]


def _rms_norm(graph: Any, x: Any, shape: Any, gain: Any, epsilon: Any) -> Any:
    """RMSNorm along the last dimension in operators of ONNX, since the exporter has none for it."""
    constants = (torch.tensor(2.0), epsilon.node().t("value").float(), torch.tensor([-1]))
    two, least, last = (graph.op("Constant", value_t=value) for value in constants)
    mean = graph.op("ReduceMean", graph.op("Pow", x, two), last, keepdims_i=1)
    return graph.op("Mul", graph.op("Div", x, graph.op("Sqrt", graph.op("Add", mean, least))), gain)


@dataclass(frozen=True, slots=True)
class Ours:
    """Calls of what mugraph found; of the module itself where that is nothing."""

    result: Any
    case: Case

    def __call__(self) -> Any:
        return self.result(*self.case.inputs)


def ours(case: Case, threads: int, budget: float) -> Ours:
    """What mugraph finds within so many seconds."""
    return Ours(mugraph.superoptimize(case.module, case.inputs, budget=budget, cache="off"), case)


CONTESTANTS: dict[str, Callable[[Case, int, float], Call]] = {
    OURS: ours,
    "eager": eager,
    "inductor": inductor,
    "inductor frozen": frozen,
    "OpenVINO": openvino,
    "ONNX Runtime": onnx_runtime,
}


def timed(make: Callable[[], Case], threads: int, budget: float, bursts: int = BURSTS) -> Record:
    """A case, which is made anew for each contestant, in this process: seconds of a call of each, its error, and why others are
    missing."""
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    reference = make().to(torch.float64)
    exact = tensors(reference.module(*reference.inputs))
    found: list[Ours] = []
    makers = {title: partial(_made, title, make, threads, budget, found) for title in CONTESTANTS}
    measured = compared(makers, exact, bursts)
    case = make()
    measured |= {"ran": what_ran(found[0].result.report) if found else None}
    if (least := limits(case.module, case.inputs)) is not None:
        measured |= {"limits": in_bursts(least.calls, bursts), "bound": least.bound}
    versions = {}
    for package in ("torch", "openvino", "onnxruntime"):
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    machine = {"system": platform.platform(), "python": platform.python_version(), **versions}
    return {"outcome": "timed", **measured, "machine": machine}


def _made(title: str, make: Callable[[], Case], threads: int, budget: float, found: list[Ours]) -> Call:
    """The calls of a contestant; ours are among what was `found`, too."""
    call = CONTESTANTS[title](make(), threads, budget)
    if isinstance(call, Ours):
        found.append(call)
    return call


def waiting(wait: str, threads: int) -> dict[str, str]:
    """The environment of a process whose threads, so many, wait for work like this."""
    kept = {name: value for name, value in os.environ.items() if name != POLICY}
    return kept | {"OMP_NUM_THREADS": str(threads)} | ({POLICY: wait} if wait == "passive" else {})


def made(*, case: str, batch: int, dtype: str, threads: int, wait: str, budget: float, device: str) -> Record:
    """The record of a case, by a process of its own, on this device."""
    words = [__file__, "--one", case, str(batch), dtype, str(threads), "--budget", str(budget)]
    return answer_of(words, LIMIT + 10 * budget, waiting(wait, threads))


# what is said of them -----------------------------------------------------------------------------------------------------


def ratio(row: Mapping[str, Any]) -> float | None:
    """Time of the best rival over ours; None where one of them is missing."""
    seconds = row.get("seconds", {})
    rivals = [taken for title, taken in seconds.items() if title != OURS]
    return min(rivals) / seconds[OURS] if OURS in seconds and rivals else None


def line(row: Mapping[str, Any]) -> str:
    """A row of the table, milliseconds of a call."""
    return f"| {' | '.join((*(str(row[name]) for name in NAMED), *cells(row)))} |"


def cells(row: Mapping[str, Any]) -> list[str]:
    """What a row says of its case, under the heads CELLS: milliseconds of a call of each contestant, and the rest."""
    seconds, found = row.get("seconds", {}), ratio(row)
    times = [f"{seconds[title] * 1e3:.3g}" if title in seconds else "-" for title in CONTESTANTS]
    last = row.get("why", row.get("missing", {}).get(OURS, "-")) if found is None else f"{found:.2f}"
    return [*times, row.get("ran") or "-", reached(row), last]


CELLS = (*CONTESTANTS, "ran", "reached", "best rival / ours")


def reached(row: Mapping[str, Any]) -> str:
    """The share of what a row is bound by that our calls reach, and what that is; "-" where one of them was not measured."""
    share = share_reached(row)
    return "-" if share is None else f"{share:.2f} of {row['bound']}"


def share_reached(row: Mapping[str, Any]) -> float | None:
    """The share of what a row is bound by that our calls reach; None where one of them was not measured."""
    bound, seconds = row.get("bound"), row.get("seconds", {})
    limit: float | None = row["limits"][bound] / seconds[OURS] if bound and OURS in seconds else None
    return limit


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows in Markdown; below it what they have in common, and those that are lost or were not measured."""
    titles = (*NAMED, *CELLS)
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles), *map(line, rows), "", json.dumps(summary(rows), indent=1)]
    lost = [line(row) for row in rows if (found := ratio(row)) is not None and found < LOST]
    unknown = [line(row) for row in rows if ratio(row) is None]
    return "\n".join([*lines, "", f"{len(lost)} lost:", *lost, "", f"{len(unknown)} not measured:", *unknown])


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the rows of the six workloads say together, and those of other programs."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if (found := ratio(row)) is not None:
            groups.setdefault("other programs" if row["case"] in PROGRAMS else "workloads", []).append(found)
    return {group: standing(ratios) for group, ratios in groups.items()}


def standing(ratios: Sequence[float]) -> dict[str, float]:
    """Times of the best rivals over ours, together."""
    return {
        "cases": len(ratios),
        "geometric_mean": math.exp(statistics.fmean(map(math.log, ratios))),
        "least": min(ratios),
        "lost": sum(each < LOST for each in ratios),
    }


def cases(options: argparse.Namespace) -> Iterator[Record]:
    """Each case with each of its batches, or of those asked for."""
    every = [*WORKLOADS, *PROGRAMS] if options.all else list(PROGRAMS if options.programs else WORKLOADS)
    device = device_for("cpu").name
    for wait, threads, name in itertools.product(options.wait, options.threads, options.names or every):
        known = PROGRAMS[name][2] if name in PROGRAMS else BATCHES.get(name, (1, 8, 64, 512))
        for batch, dtype in itertools.product(options.batches or known, options.dtypes):
            case = {"case": name, "batch": batch, "dtype": dtype, "threads": threads, "wait": wait}
            yield case | {"budget": options.budget, "device": device}


def main(words: Sequence[str] | None = None) -> None:
    """Run each case in a process of its own, write the records, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CASE", help=f"of {', '.join((*WORKLOADS, *PROGRAMS))}")
    parser.add_argument("--programs", action="store_true", help="all programs that are outside of the six workloads")
    parser.add_argument("--all", action="store_true", help="the six workloads and these programs")
    parser.add_argument("--batches", nargs="+", type=int)
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=list(DTYPES))
    parser.add_argument("--threads", nargs="+", type=int, default=[available_cores()])
    parser.add_argument("--wait", nargs="+", default=["default"], choices=WAITS, help="how threads wait for work")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of each search")
    parser.add_argument("--record", type=Path, default=RESULT, help="a file of JSON that records are kept in")
    parser.add_argument("--one", nargs=4, metavar=("CASE", "BATCH", "DTYPE", "THREADS"), help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.one is not None:
        name, batch, dtype, threads = options.one
        print(json.dumps(timed(partial(case_of, name, int(batch), dtype), int(threads), options.budget)))
        return
    if unknown := [name for name in options.names if name not in (*WORKLOADS, *PROGRAMS)]:
        parser.error(f"no case {unknown[0]}; use some of {' '.join((*WORKLOADS, *PROGRAMS))}")
    print(table(records(list(cases(options)), made, options.record, summary)))


if __name__ == "__main__":
    main()
