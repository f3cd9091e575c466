"""The tables and figures of the paper's evaluation, its figures beside ours, as JSON, plots and one page of the docs.

    python benchmarks/paper.py                       # makes the parts whose sources have changed, then writes all
    python benchmarks/paper.py --only optimizer      # one part anew
    python benchmarks/paper.py --json                # what is written, on stdout

Writes `results/paper.json`, `docs/reproduction.md` and the plots it shows. Most parts read records that other benchmarks made,
and name them; `optimizer` compiles kernels and measures on the CPU at hand. The page is made of the JSON alone, and says what
cannot be shown without machines or systems that are not here.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import statistics
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from plots import bars

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
OUTPUT, PAGE, PLOTS = RESULTS / "paper.json", ROOT / "docs" / "reproduction.md", ROOT / "docs" / "plots"

WIDTH = 130
"""Of the lines of the page."""

Part = dict[str, Any]

SAID = {
    "rmsnorm": "A100 1.5, H100 1.9",
    "gated-mlp": "A100 1.5, H100 2.7 to 3.3",
    "lora": "1.1 to 2.4",
    "gqa": "up to 2.2",
    "qknorm": "up to 1.4",
    "ntrans": "behind TensorRT, ahead of the others",
}
"""How many times as fast as the best other system the paper says its kernels are (both GPUs where none is named)."""

MISSING_SYSTEMS = {
    "TensorRT": "not installed on the machine with the H100",
    "FlashAttention": "not installed there as a package; PyTorch's attention runs FlashAttention where it can",
    "FlashInfer": "not installed there",
    "Triton": "kernels by hand have not been timed yet; the paper's own are not at hand",
}
"""Systems that `gpu_rivals.py` has rivals of, and why the stored records have none; of those that have, nothing is missing."""

MISSING = (
    ("the A100 columns", "no A100 was at hand: for it there are predictions, and kernels that compile and run on the emulator"),
    ("TensorRT-LLM, TASO/PET", "not installed on the machine with the H100"),
    ("end-to-end models on a GPU", "models given to `torch.compile` have not been run on one yet"),
    ("a search of up to four hours", "searches end by themselves after seconds, see above"),
)
"""What the paper shows and this page does not."""


def benchmarks() -> Part:
    """The six programs, at batch 8."""
    from mugraph.frontend.workloads import WORKLOADS

    rows = [
        {
            "workload": w.name,
            "description": w.description,
            "model": w.architecture,
            "shapes": {k: list(s) for k, s in w.shapes(8).items()},
        }
        for w in WORKLOADS.values()
    ]
    return {"rows": rows}


def gpu() -> Part:
    """Microseconds of our kernels and of PyTorch's on the GPU that was measured, weights not in its cache."""
    found = _read("gpu-order.json")["records"]
    rows = []
    for record in found:
        ours = {entry["name"]: entry["cold"] for entry in record["candidates"] if entry.get("right") and "cold" in entry}
        rivals = {name: times["cold"] for name, times in record["rivals"].items() if times["cold"] is not None}
        numbered = {name: seconds for name, seconds in ours.items() if name.isdigit()}
        fastest = min(rivals, key=rivals.__getitem__)
        rows.append(
            {name: record[name] for name in ("workload", "norm", "dtype", "batch", "device")}
            | {"first": numbered["1"], "best": min(numbered.values()), "paper_graph": ours.get("paper")}
            | {"rival": fastest, "rival_seconds": rivals[fastest], "eager": rivals["torch eager"]}
            | {"ratio": rivals[fastest] / min(numbered.values()), "roofline": record["roofline_seconds"]}
            | {"systems": by_system(record["workload"], rivals)}
        )
    return {"rows": rows}


def by_system(workload: str, seconds: Mapping[str, float]) -> dict[str, float]:
    """The best time of each system's rivals for a workload, by their names."""
    from gpu_rivals import rivals
    from mugraph.frontend.workloads import WORKLOADS

    found: dict[str, float] = {}
    for rival in rivals(workload, WORKLOADS[workload].function()):
        if rival.name in seconds:
            found[rival.system] = min(seconds[rival.name], found.get(rival.system, math.inf))
    return found


def cpu() -> Part:
    """Milliseconds of a call on a CPU."""
    found = _read("workloads-2-threads.json")
    rows = [
        {
            "workload": row["workload"],
            "dtype": row["dtype"],
            "batch": row["batch"],
            "seconds": row["latency"],
            "ratios": row["ratios"],
        }
        for row in found["rows"]
    ]
    return {"machine": found["machine"]["device"], "date": found["date"], "threads": found["threads"], "rows": rows}


def models() -> Part:
    """Milliseconds of a model's forward on a CPU."""
    read = [_read(name) for name in ("models-latency-small.json", "models-latency-full.json")]
    rows = [{"size": found["size"], "layers": found["layers"], **row} for found in read for row in found["rows"]]
    return {"machine": read[0]["machine"]["device"], "rows": rows}


WANTED = 200
"""Long programs that are asked for."""
SIZES = (30, 100, 200, math.inf)
"""Operators of the long programs that stand in a row together, from each on and below the next."""


def long_programs() -> Part:
    """What became of random long programs, by their operators."""
    found = _read("long-programs.json")["records"]
    ran = [record for record in found if "byte_share" in record]
    by_size = ([each for each in ran if first <= each["operators"] < behind] for first, behind in itertools.pairwise(SIZES))
    rows = [_of_long_programs(together) for together in by_size if together]
    failed = [record["number"] for record in found if record["outcome"] != "right"]
    budgets = sorted({record["budget"] for record in found})
    return {"programs": len(found), "wanted": WANTED, "budgets": budgets, "failed": failed, "rows": rows}


def _of_long_programs(found: Sequence[Part]) -> Part:
    """Programs of about one size together, of which there is one at least."""
    operators = [record["operators"] for record in found]
    return {
        "operators": [min(operators), max(operators)],
        "programs": len(found),
        "with_kernels": sum(record["programs"] > 0 for record in found),
        "with_bounds": sum(record["with_bounds"] for record in found),
        "parts": sum(record["programs"] for record in found),
        "largest_bound": max(record["largest_bound"] or 0.0 for record in found),
        "kernels_alone": sum(record["byte_share"] == 1 for record in found),
        **{name: statistics.median(record[name] for record in found) for name in ("byte_share", "processor_seconds")},
        "largest_error": max(record["error"] for record in found),
        "largest_model_error": max(record["model_error"] for record in found),
    }


def search() -> Part:
    """Seconds of the search against the limit of operators, where somebody has run the ablation."""
    from mugraph.experiments.search_ablation import PAPER_SECONDS

    files = [path for path in sorted(RESULTS.glob("*ablation*.json")) if "rows" in json.loads(path.read_text(encoding="utf-8"))]
    ours = [{"file": path.name, **json.loads(path.read_text(encoding="utf-8"))} for path in files]
    return {"paper": {str(limit): list(cells) for limit, cells in PAPER_SECONDS.items()}, "ours": ours}


def closures() -> Part:
    """Seconds of a whole search of each workload."""
    rows = [{name: row[name] for name in ("workload", "seconds", "candidates")} for row in _read("search.json")["workloads"]]
    return {"rows": rows}


def optimizer() -> Part:
    """The optimizer's ablation: GQA at batch 1 on two GPUs by counters and predictions, on this CPU by the clock."""
    from mugraph.devices import device_for
    from mugraph.experiments.optimizer_ablation import ablate, measure_on_cpu
    from mugraph.frontend import trace
    from mugraph.frontend.workloads import WORKLOADS
    from mugraph.search import search as search_program

    function, inputs = WORKLOADS["gqa"].function(), WORKLOADS["gqa"].inputs(1, "fp16")
    program = trace(function, inputs).graph
    predicted = {}
    for target in ("cuda:sm_80", "cuda:sm_90"):
        graph = search_program(program, device_for(target)).candidates[0].graph
        predicted[target] = {name: None if found is None else asdict(found) for name, found in ablate(graph, target)}
    inputs = WORKLOADS["gqa"].inputs(1, "fp32")
    best = search_program(trace(function, inputs).graph, device_for("cpu")).candidates
    graph = next(each.graph for each in best if all(kernel.body is not None for kernel in each.graph.kernels()))
    return {"predicted": predicted, "cpu": device_for("cpu").name, "measured": measure_on_cpu(graph, inputs)}


def norms() -> Part:
    """Predicted seconds of QKNorm by either norm, in one kernel and in several."""
    from mugraph.devices import device_for
    from mugraph.frontend import trace
    from mugraph.frontend.workloads import WORKLOADS
    from mugraph.search import search as search_program

    rows: list[Part] = []
    workload = WORKLOADS["qknorm"]
    for target, norm, batch in itertools.product(("cuda:sm_80", "cuda:sm_90"), workload.norm_names, (1, 8, 16)):
        program = trace(workload.function(norm), workload.inputs(batch, "fp16")).graph
        found = search_program(program, device_for(target)).candidates
        fewest = {one: [each.cost for each in found if (len(each.graph.kernels()) == 1) == one] for one in (True, False)}
        rows.append({"target": target, "norm": norm, "batch": batch, "one": min(fewest[True], default=None)})
        rows[-1] |= {"several": min(fewest[False], default=None)}
    return {"rows": rows}


def graphs() -> Part:
    """The paper's muGraphs beside the search's best."""
    rows = []
    for record in _read("paper-graphs.json")["records"]:
        found = {name: _of_graph(record[name]) for name in ("paper", "best")}
        rows.append({name: record[name] for name in ("graph", "target", "search")} | {"outcome": record.get("outcome"), **found})
    return {"rows": rows}


def _of_graph(graph: Part) -> Part:
    kernels = graph["kernels"]
    totals = {
        name: sum(kernel.get(name) or 0 for kernel in kernels)
        for name in ("device_bytes", "loaded_bytes", "operations", "loop_steps")
    }
    return {
        "seconds": graph["seconds"],
        "launches": len(kernels),
        "kernels": [{name: kernel.get(name) for name in ("grid", "loop", "rounds", "side_by_side")} for kernel in kernels],
        "shared_bytes": max((kernel["shared_bytes"] or 0 for kernel in kernels), default=0),
        **totals,
    }


def model() -> Part:
    """How well predicted times rank what was measured."""
    found: Part = _read("model-fit.json")
    return found


PARTS: dict[str, tuple[Callable[[], Part], Sequence[str]]] = {
    "benchmarks": (benchmarks, ("../../src/mugraph/frontend/workloads.py",)),
    "gpu": (gpu, ("gpu-order.json",)),
    "cpu": (cpu, ("workloads-2-threads.json",)),
    "models": (models, ("models-latency-small.json", "models-latency-full.json")),
    "long": (long_programs, ("long-programs.json",)),
    "search": (search, ("*ablation*.json", "../../src/mugraph/experiments/search_ablation.py")),
    "closures": (closures, ("search.json",)),
    "optimizer": (optimizer, ("../../src/mugraph/experiments/optimizer_ablation.py", "../../src/mugraph/devices/*.json")),
    "norms": (norms, ("../../src/mugraph/search/scheduling/*.py", "../../src/mugraph/devices/*.json")),
    "graphs": (graphs, ("paper-graphs.json",)),
    "model": (model, ("model-fit.json",)),
}
"""How each part is made, and the files it is made from, seen from the results."""


def made(only: str | None, known: dict[str, Part]) -> dict[str, Part]:
    """All parts: those known of whose files none has changed, others anew."""
    parts = {}
    for name, (make, files) in PARTS.items():
        digest = _digest(files)
        current = name in known and (known[name]["digest"] == digest or only not in (None, name))
        parts[name] = known[name] if current and only != name else {"digest": digest, **make()}
    return parts


def _digest(files: Iterable[str]) -> str:
    found = hashlib.sha256()
    for path in sorted(path for pattern in files for path in (ROOT / "benchmarks" / "results").glob(pattern)):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


# the page --------------------------------------------------------------------------------------------------------------


def plots(parts: dict[str, Part]) -> dict[str, str]:
    """The plots by the names of their files."""
    on_gpu: dict[str, dict[str, float]] = {}
    for row in parts["gpu"]["rows"]:
        if row["dtype"] == "bf16":
            on_gpu.setdefault(row["workload"], {})[f"batch {row['batch']}"] = row["ratio"]
    on_cpu: dict[str, dict[str, float]] = {}
    for row in parts["cpu"]["rows"]:
        on_cpu.setdefault(row["workload"], {})[row["dtype"]] = min(row["ratios"].values())
    return {
        "paper-gpu.svg": bars(on_gpu, "times as fast as the best of PyTorch: H100, bf16, fastest candidate"),
        "paper-cpu.svg": bars(on_cpu, "times as fast as the best of PyTorch: two CPU cores, batch 8"),
    }


def page(parts: dict[str, Part]) -> str:
    """The page of the documentation."""
    programs = map(_program, parts["benchmarks"]["rows"])
    sections = (
        "# The paper's evaluation, repeated\n\n"
        "Made by `python benchmarks/paper.py` from the records in `benchmarks/results/`; every figure of ours stands in\n"
        "`benchmarks/results/paper.json`. The paper's figures are those of its text: its plots are not read off.",
        _section("Programs", _table(("", "program", "model", "shapes at batch 8"), programs)),
        _gpu_section(parts["gpu"]),
        _cpu_section(parts["cpu"]),
        _models_section(parts["models"]),
        _long_section(parts["long"]),
        _search_section(parts["search"], parts["closures"]),
        _optimizer_section(parts["optimizer"]),
        _norms_section(parts["norms"]),
        _graphs_section(parts["graphs"]),
        _model_section(parts["model"]),
        _section("Not shown", _table(("in the paper", "why not here"), (*_missing_systems(parts["gpu"]), *MISSING))),
    )
    return "\n\n".join(section.rstrip() for section in sections) + "\n"


def _program(row: Part) -> tuple[str, ...]:
    shapes = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in row["shapes"].items())
    return row["workload"], row["description"], row["model"], shapes


def _gpu_section(part: Part) -> str:
    rows = [
        (
            *(_name(row), row["dtype"], str(row["batch"])),
            *(_us(row[name]) for name in ("roofline", "best", "first", "paper_graph", "rival_seconds")),
            *(row["rival"], f"{row['ratio']:.2f}", SAID[row["workload"]]),
        )
        for row in part["rows"]
    ]
    head = (
        "",
        "type",
        "batch",
        "roofline",
        "ours",
        "predicted best",
        "paper's muGraph",
        "best rival",
        "which",
        "faster",
        "paper says",
    )
    prose = (
        f"Microseconds of a call on an {part['rows'][0]['device']}, weights and caches not in its L2 cache (`python "
        "benchmarks/gpu_order.py`). `ours` is the fastest candidate, `predicted best` the one that a search without a GPU "
        "returned when "
        "it was measured. Rivals are eager PyTorch, `torch.compile` and, for QKNorm, its attention function, in CUDA graphs; "
        "the paper "
        "compares with more systems and says how many times as fast its kernels are as the best of them. QKNorm was measured "
        "with its "
        "RMS norm alone; with the paper's layer norm there are predictions, below."
    )
    plot = "![How many times as fast as PyTorch](plots/paper-gpu.svg)"
    return _section("Kernels on a GPU", prose, plot, _table(head, rows), *_systems(part))


def _systems(part: Part) -> Iterator[str]:
    """How many times as fast the fastest candidate is as each system's best; nothing where PyTorch was the only one."""
    systems = sorted({system for row in part["rows"] for system in row["systems"]})
    if len(systems) < 2:
        return
    rows = [
        (
            *(_name(row), row["dtype"], str(row["batch"])),
            *(f"{row['systems'][system] / row['best']:.2f}" if system in row["systems"] else "" for system in systems),
        )
        for row in part["rows"]
    ]
    yield "How many times as fast `ours` is as the best of each system's rivals (`benchmarks/gpu_rivals.py`):"
    yield _table(("", "type", "batch", *systems), rows)


def _missing_systems(part: Part) -> Iterator[tuple[str, str]]:
    timed = {system for row in part["rows"] for system in row["systems"]}
    return ((system, why) for system, why in MISSING_SYSTEMS.items() if system not in timed)


def _name(row: Part) -> str:
    return f"{row['workload']} ({row['norm']})" if row["norm"] else str(row["workload"])


def _cpu_section(part: Part) -> str:
    rows = [
        (
            *(row["workload"], row["dtype"], str(row["batch"]), f"{1e3 * row['seconds']:.2f}"),
            *(f"{ratio:.2f}" for ratio in row["ratios"].values()),
        )
        for row in part["rows"]
    ]
    head = ("", "type", "batch", "ms", *(f"against {name}" for name in part["rows"][0]["ratios"]))
    prose = (
        f"{part['machine']}, {part['threads']} threads, {part['date']} (`python benchmarks/workloads.py`); the paper has no "
        "CPU. PyTorch "
        "packs no weights here, which it can where they are frozen."
    )
    plot = "![How many times as fast as PyTorch](plots/paper-cpu.svg)"
    return _section("Kernels on a CPU", prose, plot, _table(head, rows))


def _models_section(part: Part) -> str:
    rows = [
        (
            *(row["model"], row["size"], f"{100 * row['share of bytes']:.0f} %"),
            *(f"{row[name]:.1f}" for name in ("mugraph ms", "eager ms", "torch.compile ms")),
            *(f"{row[name]:.2f}" for name in ("against eager", "against torch.compile")),
        )
        for row in part["rows"]
    ]
    head = ("model", "size", "bytes in our kernels", "ms", "eager", "torch.compile", "against eager", "against torch.compile")
    prose = (
        f"A forward of {part['rows'][0]['layers']} layers on the {part['machine']} (`python benchmarks/models.py latency`). "
        "The paper, "
        "on GPUs and for whole models: 0.9 to 1.9 times as fast as PyTorch."
    )
    return _section("Models end to end", prose, _table(head, rows))


def _long_section(part: Part) -> str:
    rows = [
        (
            *(f"{row['operators'][0]} to {row['operators'][1]}", str(row["programs"]), str(row["with_kernels"])),
            *(str(row["kernels_alone"]), f"{100 * row['byte_share']:.0f} %", str(row["parts"]), str(row["with_bounds"])),
            *(f"{row['largest_bound']:.1e}", f"{row['largest_error']:.1e}", f"{row['largest_model_error']:.1e}"),
            f"{row['processor_seconds']:.1f}",
        )
        for row in part["rows"]
    ]
    head = ("operators", "programs", "with kernels", "run by kernels alone", "bytes in kernels", "parts", "with a bound")
    budgets = " or ".join(f"{budget:g}" for budget in part["budgets"])
    failed = f"Wrong or failed are those of the numbers {', '.join(map(str, part['failed']))}."
    prose = (
        f"The paper has none. {part['programs']} random programs (`python benchmarks/long_programs.py`) of {part['wanted']}, "
        f"residual streams through drawn layers, each with a budget of {budgets} s of the clock, on two cores that up to ten "
        "processes shared, and without measuring. Parts are programs that are proved one by one; PyTorch or the library runs "
        "what has no kernels, or none with a bound. Bytes in kernels, the library's among them, and seconds of processors are "
        "medians, errors the largest against float64, relative to the largest element, of the results and of the models in "
        f"fp32. {failed if part['failed'] else 'None is wrong, and none failed.'}"
    )
    more = ("largest bound", "error", "error of the model", "processor seconds")
    return _section("Long programs", prose, _table((*head, *more), rows))


def _search_section(part: Part, closures: Part) -> str:
    mirage = [(limit, *cells) for limit, cells in part["paper"].items()]
    times = [(row["workload"], f"{row['seconds']:.2f}", str(row["candidates"])) for row in closures["rows"]]
    nothing = "Ours: `mugraph ablate search --json`; no run at real size is stored yet, a small one is in [search.md](search.md)."
    return _section(
        "Search time and its ablation",
        "The paper's seconds for RMSNorm, against the limit of operators in a block graph:",
        _table(("operators", "Mirage", "without threads", "without abstract expressions"), mirage),
        *(map(_ours, part["ours"]) if part["ours"] else (nothing,)),
        "Mirage takes up to four hours for a program. Here a search of all kernels and their cuts takes, on two cores of a "
        "CPU (`python "
        "benchmarks/search.py`):",
        _table(("", "seconds", "candidates"), times),
    )


def _ours(found: Part) -> str:
    names = list(dict.fromkeys(name for row in found["rows"] for name in row["cells"]))
    rows = [(str(row["limit"]), *(_cell(row["cells"].get(name)) for name in names)) for row in found["rows"]]
    limit = f"grids {found.get('grids')}, loops {found.get('loops')}, at most {found.get('seconds')} s a cell (`{found['file']}`)"
    clocks = "processor seconds of all processes, or in brackets those of the clock of a busy machine"
    title = f"Ours, of shape {found.get('shape')}, {limit}, in {clocks}:"
    return f"{title}\n\n{_table(('operators', *names), rows)}"


def _cell(cell: Part | None) -> str:
    """Processor seconds, or where these were not taken, in brackets those of a clock."""
    if cell is None:
        return ""
    processor = cell.get("cpu_seconds")
    seconds = f"({cell['seconds']:.1f})" if processor is None else f"{processor:.1f}"
    return f"{'' if cell['exhausted'] else '> '}{seconds}"


def _optimizer_section(part: Part) -> str:
    rows: list[tuple[str, ...]] = []
    for target, variants in part["predicted"].items():
        full = variants["all optimizations"]
        for name, found in variants.items():
            if found is None:
                rows.append((target, name, "does not fit", *[""] * 5))
                continue
            slower = 100 * (found["predicted_seconds"] / full["predicted_seconds"] - 1)
            counters = (str(found["barriers"]), f"{found['wavefronts']:.0f}", str(found["shared_bytes"]), str(found["registers"]))
            rows.append((target, name, *counters, _us(found["predicted_seconds"]), f"{slower:+.1f} %"))
    head = ("", "", "barriers", "turns of shared memory", "shared bytes", "registers", "predicted us", "slower")
    full, stored = part["measured"]["all optimizations"], part["measured"]["no thread graphs"]
    return _section(
        "The optimizer's ablation",
        "GQA at batch 1, each optimization left out alone (`mugraph ablate optimizer`). The paper, on an A100: 5 to 70 % "
        "slower. Ours "
        "counts what each optimization lowers, for one block of every kernel, and the cost model makes times of that; nothing "
        "was timed "
        "on a GPU. The predicted differences are far below what the paper measured: the model lets turns and barriers pass "
        "while blocks "
        "wait for memory, and knows of no registers.",
        _table(head, rows),
        f"Measured on the {part['cpu']} in fp32, where thread graphs are the one optimization of the four: {1e3 * full:.3f} "
        "ms with "
        f"them, {1e3 * stored:.3f} ms without ({100 * (stored / full - 1):+.1f} %).",
    )


def _norms_section(part: Part) -> str:
    rows = [
        (row["target"].removeprefix("cuda:"), row["norm"], str(row["batch"]), _us(row["one"]), _us(row["several"]))
        for row in part["rows"]
    ]
    prose = (
        "The paper's QKNorm has layer norms, Chameleon's; the measured one above has RMS norms. Predicted microseconds "
        "of both in "
        "fp16, of the best candidate in one kernel, as in the paper's figure, and of the best in several. Of the RMS "
        "norm at batch 8 an H100 took 182.7 in one kernel and 184.3 in two (bf16, by earlier sources: "
        "[cuda-measured.md](cuda-measured.md#on-an-h100))."
    )
    return _section("QKNorm by either norm", prose, _table(("", "norm", "batch", "one kernel", "several"), rows))


def _graphs_section(part: Part) -> str:
    lines = [line for row in part["rows"] if row["target"] != "cpu" for line in _graph_rows(row)]
    head = (
        *("", "", "whose", "predicted us", "launches", "grid, loop", "rounds", "side by side", "MB", "MB loaded", "Mflop"),
        *("loop steps", "KB shared", "place", "verdict"),
    )
    return _section(
        "The paper's muGraphs",
        "The paper's figures as written in `examples/paper`, beside the search's best, with what the cost model makes its "
        "times of "
        "(`python benchmarks/paper_graphs.py`): rounds of blocks on the multiprocessors and how many run side by side there, "
        "bytes "
        "through device memory, bytes that blocks load in all, operations, and operators that a block meets in its loop. "
        "`place` is that "
        "of the paper's muGraph among the sixteen candidates of the whole search, where it is among them.",
        _table(head, lines),
        "\n".join(_reasons(part["rows"])),
    )


def _reasons(rows: Sequence[Part]) -> Iterable[str]:
    """For every GPU and muGraph of the paper that is predicted to be slower, what it has more of than the search's best."""
    named = {
        "launches": "launches",
        "device_bytes": "bytes through device memory",
        "loaded_bytes": "bytes loaded by blocks",
        "operations": "operations",
        "loop_steps": "operators met in loops",
    }
    for row in rows:
        slower = row["paper"]["seconds"] / row["best"]["seconds"]
        if row["target"] == "cpu" or slower < 1.02:
            continue
        more = [
            f"{words} {row['paper'][name] / row['best'][name]:.2f} times"
            if row["best"][name]
            else f"{words} {row['paper'][name]} to 0"
            for name, words in named.items()
            if row["paper"][name] > 1.02 * row["best"][name]
        ]
        yield (
            f"- {row['graph']} on {row['target'].removeprefix('cuda:')}: the paper's is predicted {slower:.2f} times as long, "
            "with more "
            f"of: {', '.join(more) if more else 'nothing that is counted here; its blocks fill the multiprocessors less evenly'}."
        )


def _graph_rows(row: Part) -> Iterable[tuple[str, ...]]:
    for whose, words in (("paper", "the paper's"), ("best", "the search's")):
        found, first = row[whose], whose == "paper"
        kernels = found["kernels"]
        yield (
            *((row["graph"], row["target"].removeprefix("cuda:")) if first else ("", "")),
            *(words, _us(found["seconds"]), str(found["launches"])),
            "; ".join(f"{'x'.join(map(str, k['grid']))}, {k['loop']}" if k["grid"] is not None else "library" for k in kernels),
            *("; ".join(str(k[name] or "") for k in kernels) for name in ("rounds", "side_by_side")),
            *(f"{found[name] / 1e6:.1f}" for name in ("device_bytes", "loaded_bytes")),
            *(f"{found['operations'] / 1e6:.0f}", str(found["loop_steps"]), f"{found['shared_bytes'] / 1024:.0f}"),
            *((str(row["search"]["place"] or ""), str(row["outcome"])) if first else ("1", "")),
        )


def _model_section(part: Part) -> str:
    named = {"before": "when they were measured", "roofs": "by roofs and a launch alone", "described": "now"}
    named |= {"fitted": "fitted to all", "held_out": "each workload by the others"}
    shares = ("ordered", "regret", "largest_regret", "error")
    means = [
        (words, f"{mean['correlation']:.2f}", *(f"{100 * mean[name]:.1f} %" for name in shares))
        for name, words in named.items()
        for mean in (part["mean"][name],)
    ]
    by_case = {name: {row["case"]: row for row in rows} for name, rows in part["order"].items()}
    worse = [case for case, row in by_case["described"].items() if row["regret"] > by_case["roofs"][case]["regret"]]
    each = [
        (case, *(text for name in ("roofs", "described", "held_out") for text in _ranked(by_case[name][case])))
        for case in by_case["before"]
    ]
    return _section(
        "Is the predicted order the measured one?",
        f"{part['points']} candidates on the H100, cold (`python benchmarks/fit_model.py`): Spearman's correlation of "
        "predicted and "
        "measured times within a combination, the share of the pairs whose times differ by more than a twentieth that are in the "
        "right order, how much slower than the fastest the first predicted one is (mean and largest), "
        "and the "
        "median error of the time itself. Constants no datasheet has were fitted; held out, each workload is predicted by "
        "constants "
        "that were fitted without it. Before the model knew what threads wait for, it had roofs and a launch alone. Where all "
        "candidates of a combination take the same time within a twentieth, as of RMSNorm at batch 1, their correlation says "
        "nothing.",
        _table(("", "correlation", "in order", "regret", "largest", "error"), means),
        _table(("", "roofs alone", "regret", "now", "regret", "held out", "regret"), each),
        f"The first choice is worse than by roofs alone for {', '.join(worse) if worse else 'none'}. All "
        "these candidates were proposed by the "
        "constants of that day; what is proposed now and was not then has not been measured.",
    )


def _ranked(row: Part) -> tuple[str, str]:
    return f"{row['correlation']:.2f}", f"{100 * row['regret']:.1f} %"


def _section(title: str, *blocks: str) -> str:
    """A heading, and blocks of prose, which is wrapped, tables and pictures."""
    parts = (block if block.startswith(("|", "!", "- ")) or "\n" in block else textwrap.fill(block, WIDTH) for block in blocks)
    return "\n\n".join((f"## {title}", *parts))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _us(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e6 * seconds:.1f}"


def main() -> None:
    """Make what is missing, and write all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(PARTS), metavar="PART", help=f"make this part anew: {', '.join(PARTS)}")
    parser.add_argument("--json", action="store_true", help="print what is written")
    options = parser.parse_args()
    known = json.loads(OUTPUT.read_text(encoding="utf-8"))["parts"] if OUTPUT.exists() else {}
    parts = made(options.only, known)
    text = json.dumps({"paper_says": SAID, "parts": parts}, indent=1)
    OUTPUT.write_text(text + "\n", encoding="utf-8")
    PAGE.write_text(page(parts), encoding="utf-8")
    for name, drawn in plots(parts).items():
        (PLOTS / name).write_text(drawn, encoding="utf-8")
    if options.json:
        print(text)


if __name__ == "__main__":
    main()
