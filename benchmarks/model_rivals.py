"""Whole models at decode and prefill beside eager PyTorch, inductor, frozen inductor, OpenVINO and ONNX Runtime.

    python benchmarks/models.py rivals                                     # all models, fp32 and bf16, all cores: many hours
    python benchmarks/models.py rivals llama-1b --phases decode --sizes 1024 --dtypes bf16 --threads 1 2
    python benchmarks/models.py rivals qwen3-0.6b --layers 4               # the first four layers, with embedding and head
    python benchmarks/models.py rivals --scale 16 --layers 2 --budget 10   # every width divided by 16: does everything run?

Models (`model_steps.py`) have the sizes of published ones and random weights. A case is one step: `decode` is the last of so many
tokens, behind a cache of the others, `prefill` a prompt of so many, of which the logits of the last token are computed (nGPT: of
all; BERT: the features of all tokens). Every call is the same step, and returns the logits and all layers' new keys and values.

A cache grows or is static, as each contestant is faster: `growing` puts new keys behind those that it is given in a tensor of its
own, `static` writes them into the last place of a larger one, `stateful` is OpenVINO's own, which grows by up to 24 tokens. The
protocol is that of `benchmarks/cpu.py`: one process for a case, all contestants with the same weights, bursts in random order.
Outputs are compared with the model in float64, or in fp32 where that would take more than a quarter of the free memory; stateful
models give logits alone. Cases that are lost are printed last. Records go to `benchmarks/results/model-rivals.json`, and are not
made again by the same sources.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import cpu
from contestants import Call, compared, first_line, in_bursts
from cpu import Case
from kept import Record, answer_of, records
from layers import DTYPES, Join, appended
from model_steps import MODELS, PHASES, Step, written
from mugraph.devices.host import available_cores

RESULT = Path(__file__).parent / "results" / "model-rivals.json"
SIZES = {"decode": (128, 1024, 4096), "prefill": (128, 512)}
"""Tokens with which a step is done."""
BURSTS = 5
GROWTH = 25
"""Calls after which a cache that grows by itself is what it was."""
LIMIT = 3600.0
"""Seconds that a case may take beside ten times its budget."""
NAMED = ("model", "phase", "size", "dtype", "threads", "wait", "layers")
"""What a case is called by in the table."""


# contestants --------------------------------------------------------------------------------------------------------------


class Whole(nn.Module):
    """A model that returns, beside the logits, its whole caches instead of what is new in them."""

    def __init__(self, make: Callable[[Join], nn.Module]) -> None:
        super().__init__()
        self.caches: list[Tensor] = []
        self.model = make(self._appended)

    def _appended(self, cached: Tensor, new: Tensor) -> Tensor:
        self.caches.append(appended(cached, new))
        return self.caches[-1]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """What the model is called with."""
        self.caches.clear()
        logits, *_ = self.model(*inputs)
        return logits, *self.caches


def stateful(step: Step, threads: int) -> Call:
    """OpenVINO with caches that it keeps and lets grow itself; every GROWTH calls they are what they were."""
    ids, *caches = step.case().inputs
    whole = Whole(lambda join: step.case(join).module)
    model = cpu.converted(Case(whole, (ids, *caches)))
    for number, cache in enumerate(caches, 1):
        model.inputs[number].get_tensor().set_names({f"past{number}"})
        model.outputs[number].get_tensor().set_names({f"present{number}"})
        model.reshape({f"past{number}": [1, cache.shape[1], -1, cache.shape[3]]})
    names = {f"past{number}": f"present{number}" for number in range(1, len(caches) + 1)}
    import_module("openvino._offline_transformations").apply_make_stateful_transformation(model, names)
    kept = {f"past{number}present{number}": cache.float().numpy() for number, cache in enumerate(caches, 1)}
    calls = itertools.count()

    def prepare(request: Any) -> None:
        if next(calls) % GROWTH == 0:
            for state in request.query_state():
                state.state = import_module("openvino").Tensor(kept[state.name])

    return cpu.inferred(model, (ids,), DTYPES[step.dtype], threads, prepare)


def forms(title: str, step: Step, threads: int, budget: float) -> dict[str, Callable[[], Call]]:
    """The ways in which a contestant may run a step, by how it keeps keys and values."""
    make = cpu.CONTESTANTS[title]
    ways: dict[str, Callable[[], Call]] = {"growing": lambda: make(step.case(), threads, budget)}
    if step.phase == "decode" and make is cpu.openvino:
        ways["stateful"] = lambda: stateful(step, threads)
    elif step.phase == "decode" and make is not cpu.onnx_runtime:  # both import what a module returns, not what it changes
        ways["static"] = lambda: make(step.case(written, 1), threads, budget)
    return ways


@dataclass(slots=True)
class Fastest:
    """Makes the call of the fastest way, and remembers which that was, and why others were not made."""

    ways: dict[str, Callable[[], Call]]
    chosen: str = ""
    refused: dict[str, str] = field(default_factory=dict)

    def __call__(self) -> Call:
        """The call; raises what the first way raised where none can be made."""
        best: tuple[float, str, Call] | None = None
        failures: list[Exception] = []
        for way, make in self.ways.items():
            try:
                call = make()
                found = (in_bursts({way: call}, 1)[way], way, call)
            except Exception as failure:  # as in `compared`
                failures.append(failure)
                self.refused[way] = first_line(failure)
                continue
            best = min(best or found, found, key=lambda each: each[0])
        if best is None:
            raise failures[0]
        _, self.chosen, call = best
        return call


def measured(case: Record) -> Record:
    """A case in this process: seconds of a step of each contestant, its error, and why others are missing."""
    threads, budget = case["threads"], case["budget"]
    step = Step(**{each.name: case[each.name] for each in fields(Step)})
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    precision, exact = step.exact()
    makers = {title: Fastest(forms(title, step, threads, budget)) for title in case["contestants"]}
    found = compared(makers, exact, BURSTS)
    caches = {title: maker.chosen for title, maker in makers.items() if step.phase == "decode" and maker.chosen}
    refused = {f"{title}, {way}": why for title, maker in makers.items() for way, why in maker.refused.items()}
    weights = sum(weight.numel() * weight.element_size() for weight in step.weights.values())
    return {"outcome": "timed", **found, "caches": caches, "refused": refused, "exact_in": precision, "weight_bytes": weights}


def made(**case: Any) -> Record:
    """The record of a case, by a process of its own."""
    environment = cpu.waiting(case["wait"], case["threads"])
    return answer_of([__file__, "--one", json.dumps(case)], LIMIT + 10 * case["budget"], environment)


# what is said of them -----------------------------------------------------------------------------------------------------


def rate(entry: Record, title: str) -> float | None:
    """Tokens per second of a contestant; None where it has none."""
    seconds = entry.get("seconds", {}).get(title)
    return None if seconds is None else (1 if entry["phase"] == "decode" else entry["size"]) / seconds


def line(entry: Record) -> str:
    """A row of the table, tokens per second."""
    rates = [rate(entry, title) for title in cpu.CONTESTANTS]
    found = cpu.ratio(entry)
    cells = ["-" if each is None else f"{each:.3g}" for each in rates]
    last = entry.get("why", "-") if found is None else f"{found:.2f}"
    names = (f"{entry[name]}" for name in NAMED)
    return f"| {' | '.join((*names, *cells, last))} |"


def table(found: Sequence[Record]) -> str:
    """The records in Markdown, tokens per second; below it the cases that are lost."""
    titles = (*NAMED, *cpu.CONTESTANTS, "best rival / ours")
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles), *map(line, found)]
    lost = [line(entry) for entry in found if "seconds" in entry and (cpu.ratio(entry) or 0.0) < cpu.LOST]
    return "\n".join([*lines, "", json.dumps(summary(found), indent=1), "", f"{len(lost)} lost:", *lost])


def summary(found: Sequence[Record]) -> dict[str, Any]:
    """What the records of each phase say together."""
    ratios: dict[str, list[float]] = {}
    for entry in found:
        known = cpu.ratio(entry)
        if known is not None:
            ratios.setdefault(f"{entry['phase']} {entry['dtype']}", []).append(known)
    return {what: cpu.standing(each) for what, each in ratios.items()}


def main(words: Sequence[str] | None = None) -> None:
    """Run the cases, write the records, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"of {' '.join(MODELS)}")
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=list(PHASES))
    parser.add_argument("--sizes", nargs="+", type=int, help="tokens with which a step is done")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--threads", nargs="+", type=int, default=[available_cores()])
    parser.add_argument("--wait", nargs="+", default=["default"], choices=cpu.WAITS, help="how threads wait for work")
    parser.add_argument("--layers", type=int, help="the first layers alone")
    parser.add_argument("--scale", type=int, default=1, help="what widths and vocabularies are divided by")
    parser.add_argument("--contestants", nargs="+", choices=cpu.CONTESTANTS, default=list(cpu.CONTESTANTS))
    parser.add_argument("--budget", type=float, default=120.0, help="seconds to optimize a model, once for each kind of cache")
    parser.add_argument("--record", type=Path, default=RESULT, help="a file of JSON that records are kept in")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.one is not None:
        print(json.dumps(measured(options.one)))
        return
    if unknown := [name for name in options.models if name not in MODELS]:
        parser.error(f"no model {unknown[0]}; use some of {' '.join(MODELS)}")
    print(table(records(list(cases(options)), made, options.record, summary)))


def cases(options: argparse.Namespace) -> Iterator[Record]:
    """What is asked for, as far as models have it."""
    names = options.models or MODELS
    every = (options.wait, options.threads, names, options.phases, options.dtypes)
    for wait, threads, name, phase, dtype in itertools.product(*every):
        family = MODELS[name]
        for size in (options.sizes or SIZES[phase]) if phase in family.phases else ():
            step = Step(name, phase, size, dtype, min(options.layers or family.layers, family.layers), options.scale)
            how = {"threads": threads, "wait": wait, "budget": options.budget}
            yield {**asdict(step), **how, "contestants": options.contestants}


if __name__ == "__main__":
    main()
