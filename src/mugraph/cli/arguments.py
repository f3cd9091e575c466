"""What commands take: options that several share, the space of a search that they ask for, and functions named by a word."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mugraph.errors import InvalidInput

if TYPE_CHECKING:
    from mugraph.search import SearchSpace
    from mugraph.sizes.dims import Dim


@dataclass(slots=True)
class CommandSettings:
    """What `main` needs to know after a command failed."""

    traceback: bool = False


def _show_traceback(context: typer.Context, value: bool) -> bool:
    context.find_root().obj.traceback = value
    return value


Traceback = Annotated[
    bool, typer.Option("--traceback", help="Show the Python traceback of an error.", callback=_show_traceback, is_eager=True)
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Workers = Annotated[str, typer.Option(metavar="N|ray", help="Processes that search, or a Ray cluster: ray, or ray://HOST:PORT.")]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="N", help="Seed of every random choice, to replay one (default: a fresh one, which is recorded)."
    ),
]
Evidence = Annotated[
    str,
    typer.Option(
        metavar="bounded|tested",
        help="What kernels are kept for: a proof with a bound on its error, or also agreement in tests without one.",
    ),
]
Compiled = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Compile at most so many muGraphs, the first by predicted time (default: 16)."),
]
Candidates = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Prove at most so many muGraphs, the fastest (default: 3; with --no-profile 1)."),
]
MaxError = Annotated[
    float,
    typer.Option(metavar="P", show_default="2^-40", help="Largest probability that a wrong result passes verification."),
]
Batch = Annotated[int | None, typer.Option(min=1, metavar="N", help="Batch size of a built-in workload (default 8).")]
Dtype = Annotated[str | None, typer.Option(metavar="fp16|bf16|fp32", help="Element type of a built-in workload (default fp32).")]
Size = Annotated[
    str | None, typer.Option(metavar="NAME", help="Size of a built-in workload: full (default), figure (rmsnorm) or small.")
]
Norm = Annotated[
    str | None, typer.Option(metavar="rms|layer", help="Normalisation of qknorm: rms (default), or layer as in the paper.")
]
Kernels = Annotated[int | None, typer.Option(metavar="N", help="Search at most so many kernels.")]
BlockOperators = Annotated[int | None, typer.Option(metavar="N", help="Search block graphs of at most so many operators.")]
Grids = Annotated[str | None, typer.Option(metavar="LIST", help="Search these grids only, such as 128,8x16 (1: a single block).")]
Loops = Annotated[str | None, typer.Option(metavar="LIST", help="Search these for-loop ranges only, such as 1,16 (1: no loop).")]
Maps = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="NAME{MAP}",
        help="How grid and for-loop cut an input, or the output as `return`, such as 'x{x<->phi, i<->1}'; may be repeated.",
    ),
]
Cache = Annotated[
    str | None,
    typer.Option(metavar="MODE", help="Kept results: on, off, read-only, force (default: what $MUGRAPH_CACHE says, else on)."),
]
Target = Annotated[
    str | None,
    typer.Option(
        metavar="TARGET",
        help="What to optimize for: cpu, cuda:sm_90, triton:sm_90, ..., or cuda, the GPU here (default: where inputs lie).",
    ),
]
Budget = Annotated[
    float | None, typer.Option(min=0.0, metavar="SECONDS", help="Time the whole call may take (default: no limit).")
]
TrustSources = Annotated[
    bool, typer.Option("--trust-sources", help="Run the saved sources as they are, of whatever version and not compared.")
]


def check_word(option: str, word: str, known: Sequence[str]) -> None:
    """Raise InvalidInput, naming the option and the words it takes, for any other."""
    if word not in known:
        raise InvalidInput(f"{option} {word}: use one of {', '.join(known)}")


def processes_of(workers: str) -> int | str:
    """The processes that `--workers` asks for, no more than there are cores, or the Ray cluster; raises InvalidInput."""
    from mugraph.devices.host import available_cores

    if workers == "ray" or workers.startswith("ray://"):
        return workers
    if not workers.isdecimal() or int(workers) < 1:
        raise InvalidInput(f"--workers {workers}: use a number of processes, at least 1, or ray, or ray://HOST:PORT")
    if int(workers) > (cores := available_cores()):
        print(f"mugraph: --workers {workers} is more than there are cores; searching with {cores}", file=sys.stderr)
    return min(int(workers), cores)


Dynamic = Annotated[
    list[str] | None,
    typer.Option(
        "--dynamic",
        metavar="ARG:DIM=NAME:LOW:HIGH[:MULTIPLE]",
        help="A dimension of an argument whose size varies, as in x:0=batch:1:4096, for all sizes of which the question is then "
        "asked; NAME alone where its range was given before. May be repeated.",
    ),
]
_DYNAMIC = re.compile(r"(?P<argument>\w+):(?P<place>-?\d+)=(?P<name>[^:=]+)(:(?P<low>\d+):(?P<high>\d+)(:(?P<step>\d+))?)?")


def declaration_of(texts: Sequence[str], function: Any) -> dict[int | str, dict[int, Dim]]:
    """What `--dynamic x:0=batch:1:4096 --dynamic 1:0=batch` declares of the arguments of a function, which calls give by
    position; raises InvalidInput."""
    from mugraph.sizes.dims import Dim

    dims: dict[str, Dim] = {}
    declared: dict[int | str, dict[int, Dim]] = {}
    for text in texts:
        match = _DYNAMIC.fullmatch(text)
        if match is None:
            raise InvalidInput(
                f"--dynamic {text}: write argument, dimension, name and range, as in x:0=batch:1:4096 or 0:0=batch:8:64:8"
            )
        name, place, argument = match["name"], int(match["place"]), _position_of(match["argument"], function, text)
        if match["low"] is not None:
            dim = Dim(name, int(match["low"]), int(match["high"]), int(match["step"] or 1))
            if dims.setdefault(name, dim) != dim:
                raise InvalidInput(f"--dynamic {text}: {name} has another range before; give each range a name of its own")
        elif name not in dims:
            raise InvalidInput(f"--dynamic {text}: give the range of {name}, as in {match['argument']}:{place}={name}:1:4096")
        if declared.setdefault(argument, {}).setdefault(place, dims[name]) != dims[name]:
            raise InvalidInput(f"--dynamic {text}: dimension {place} of {match['argument']} has another name before")
    return declared


def _position_of(argument: str, function: Any, text: str) -> int:
    """The position of an argument, which is given by that or by name."""
    if argument.isdecimal():
        return int(argument)
    names = [*inspect.signature(getattr(function, "forward", function)).parameters]
    if argument not in names:
        raise InvalidInput(f"--dynamic {text}: the function has no argument {argument}; it has {', '.join(names)}")
    return names.index(argument)


_MAP = re.compile(r"\s*([\w.]+)\s*\{(.*)\}\s*")
T = TypeVar("T")


def space_of(
    kernels: int | None, block_operators: int | None, grids: str | None, loops: str | None, maps: Sequence[str]
) -> SearchSpace:
    """The space that `--kernels 1 --grids 128,8x16 --loops 1,16 --map 'x{i<->1}'` asks for; raises InvalidInput."""
    from mugraph.search import SearchSpace

    named: dict[str, str] = {}
    for text in maps:
        match = _MAP.fullmatch(text)
        if match is None or match[1] in named:
            raise InvalidInput(f"--map {text}: write each input once, with its map in braces, as in 'x{{x<->phi, i<->1}}'")
        named[match[1]] = match[2]
    return SearchSpace(kernels, block_operators, _listed("--grids", grids, _grid), _listed("--loops", loops, int), named)


def _listed(option: str, text: str | None, one: Callable[[str], T]) -> list[T] | None:
    """The members of a list written with commas."""
    if text is None:
        return None
    try:
        return [one(word) for word in text.split(",")]
    except ValueError:
        form = "8x16,128" if option == "--grids" else "1,16"
        raise InvalidInput(f"{option} {text}: write whole numbers with commas between them, as in {form}") from None


def _grid(word: str) -> tuple[int, ...]:
    return tuple(int(count) for count in word.split("x"))


@dataclass(frozen=True, slots=True)
class Subject:
    """A function to optimize; `resolve(**origin)` gives it again."""

    name: str
    description: str
    function: Any
    """A callable on PyTorch tensors, or a mugraph.Program."""
    inputs: Sequence[Any] | None
    """None for a Program, which knows its shapes."""
    origin: dict[str, Any]


def resolve(
    word: str, batch: int | None = None, dtype: str | None = None, size: str | None = None, norm: str | None = None
) -> Subject:
    """The workload, `FILE.py:function` or `FILE.onnx` that `word` names; raises InvalidInput for options that do not apply."""
    from mugraph.frontend.files import is_file_function

    check_subject(word)
    options = {"--batch": batch, "--dtype": dtype, "--size": size, "--norm": norm}
    if word.endswith(".onnx"):
        return _from_onnx(word, options)
    if is_file_function(word):
        return _from_file(word, options)
    from mugraph.frontend.workloads import workload

    builtin = workload(word)
    inputs = builtin.inputs(batch, dtype or "fp32", size or "full")
    origin = {"word": word, "batch": batch, "dtype": dtype, "size": size, "norm": norm}
    return Subject(word, builtin.description, builtin.function(norm), inputs, origin)


def check_subject(word: str) -> None:
    """Raise InvalidInput, with little to load, for a word that names no workload and no file that is there."""
    from mugraph.frontend.files import is_file_function, path_and_name
    from mugraph.frontend.workloads import WORKLOADS

    if is_file_function(word):
        path_and_name(word)
    elif word not in WORKLOADS and not word.endswith(".onnx"):
        raise InvalidInput(f"unknown workload {word!r}; use one of {', '.join(WORKLOADS)}, or FILE.py:function, or FILE.onnx")


def _from_file(word: str, options: Mapping[str, Any]) -> Subject:
    from mugraph.frontend.files import load_function
    from mugraph.ir.program import Program

    _refuse(options, f"{word} sets its sizes and types in example_inputs()")
    loaded = load_function(word)
    if isinstance(loaded.function, Program):
        return Subject(word, "a mugraph.Program", loaded.function, None, {"word": word})
    summary = (loaded.function.__doc__ or "a function of yours").strip().partition("\n")[0]
    return Subject(word, summary, loaded.function, loaded.example_inputs(), {"word": word})


def _from_onnx(word: str, options: Mapping[str, Any]) -> Subject:
    from mugraph.frontend.onnx import from_onnx

    _refuse(options, f"{word} has its sizes in it (mugraph.from_onnx gives them to open dimensions)")
    return Subject(word, "an ONNX model", from_onnx(word), None, {"word": word})


def _refuse(options: Mapping[str, Any], instead: str) -> None:
    """Raise InvalidInput for an option that only built-in workloads have."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise InvalidInput(f"{given[0]} applies to built-in workloads; {instead}")
