"""Functions in users' files, named as FILE.py:function on the command line.

The file is run, because its author asked for that; `example_inputs()` in it gives the tensors to call the function with.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from mugraph.errors import InvalidInput
from mugraph.ir.program import Program

EXAMPLE_INPUTS = "example_inputs"


@dataclass(frozen=True, slots=True)
class FileFunction:
    """A function, module or Program from a file."""

    path: Path
    name: str
    function: Callable[..., Any] | Program
    module: ModuleType

    def example_inputs(self) -> tuple[Any, ...]:
        """What the file's `example_inputs()` returns, as positional arguments; nothing for a Program.

        Raises InvalidInput when the file has no such function, when it fails, and when it gives no arguments, or others than the
        function takes.
        """
        if isinstance(self.function, Program):
            return ()
        make = getattr(self.module, EXAMPLE_INPUTS, None)
        if not callable(make):
            remedy = f"add one that returns the arguments of {self.name}"
            raise InvalidInput(f"{self.path} has no function {EXAMPLE_INPUTS}(); {remedy}")
        with _blaming(self.path, f"{EXAMPLE_INPUTS}()"):
            inputs = make()
        if hasattr(inputs, "dtype"):  # a lone tensor is a sequence of its rows, which nobody means
            return (inputs,)
        if not isinstance(inputs, (tuple, list, Mapping)):
            raise InvalidInput(f"{EXAMPLE_INPUTS}() of {self.path} returns {type(inputs).__name__}; return a tuple of tensors")
        return self._by_position(inputs)

    def _by_position(self, inputs: Sequence[Any] | Mapping[str, Any]) -> tuple[Any, ...]:
        function: Any = self.function
        given, named = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
        try:
            signature = inspect.signature(getattr(function, "forward", function))
        except ValueError:  # of a function of C
            return (*given, *named.values())
        what = f"{EXAMPLE_INPUTS}() of {self.path} gives {len(inputs)} argument{'s' * (len(inputs) != 1)}"
        try:
            bound = signature.bind(*given, **named)
        except TypeError as error:
            remedy = "put functions of different arguments into different files"
            raise InvalidInput(f"{what}, {self.name} takes {signature}: {error}; {remedy}") from None
        if named:
            bound = _with_defaults_between(bound)
        if bound.kwargs:
            raise InvalidInput(
                f"{what}, of which {self.name} takes {', '.join(bound.kwargs)} by name alone; wrap it in a function"
            )
        return bound.args


def _with_defaults_between(bound: inspect.BoundArguments) -> inspect.BoundArguments:
    """The arguments and those before one of them that are not given; a call may leave out what comes behind all."""
    last = list(bound.signature.parameters).index(list(bound.arguments)[-1]) + 1
    bound.apply_defaults()
    return inspect.BoundArguments(bound.signature, OrderedDict(itertools.islice(bound.arguments.items(), last)))


def is_file_function(text: str) -> bool:
    """Whether `text` has the form FILE.py:function."""
    return ".py:" in text or text.endswith(".py")


def path_and_name(text: str) -> tuple[Path, str]:
    """The parts of FILE.py:function. Raises InvalidInput for a text that is none, and for a file that is not there."""
    file, _, name = text.rpartition(":")
    if not file.endswith(".py") or not name:
        raise InvalidInput(f"{text!r} does not name a function; write FILE.py:function")
    path = Path(file)
    if not path.is_file():
        raise InvalidInput(f"there is no file {file}")
    return path, name


def load_function(text: str) -> FileFunction:
    """The function that FILE.py:function names.

    Raises InvalidInput for a file that is not there, that is not Python or fails when run, and for a name that is not
    there or cannot be called.
    """
    file, name = path_and_name(text)
    module = _run(file)
    function = getattr(module, name, None)
    if function is None:
        raise InvalidInput(f"{file} has no function {name!r}; it has {_callables(module) or 'none'}")
    if inspect.isclass(function):
        raise InvalidInput(f"{file}:{name} is a class; make an instance in the file and name that")
    if not callable(function) and not isinstance(function, Program):
        raise InvalidInput(f"{file}:{name} is of type {type(function).__name__}; name a function, a module or a Program")
    return FileFunction(file, name, function, module)


_ran: ContextVar[dict[Path, ModuleType] | None] = ContextVar("ran", default=None)
"""Files that `each_file_once` has seen, as modules."""


_NUMBERS = itertools.count()
"""Of the files that ran: Dynamo takes modules of one name for one module, and files of one name lie in many folders."""


@contextlib.contextmanager
def each_file_once() -> Iterator[None]:
    """Functions of one file that are loaded inside share its tensors and classes, as they do where it is imported."""
    token = _ran.set({})
    try:
        yield
    finally:
        _ran.reset(token)


def _run(path: Path) -> ModuleType:
    """The file as a module; like a script, it can import what stands beside it, and what it prints goes to stderr."""
    ran = _ran.get()
    if ran is not None and path.resolve() in ran:
        return ran[path.resolve()]
    spec = spec_from_file_location(f"mugraph_file_{path.stem}_{next(_NUMBERS)}", path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} cannot be loaded as Python")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickled functions look their module up there
    beside = str(path.resolve().parent)
    sys.path.insert(0, beside)
    try:
        with _blaming(path, "the file"):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(beside)
    if ran is not None:
        ran[path.resolve()] = module
    return module


@contextlib.contextmanager
def _blaming(path: Path, what: str) -> Iterator[None]:
    """Turn whatever a user's file raises into one line that names the place in it; keep stdout for results."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except SyntaxError as error:
        raise InvalidInput(f"{error.filename or path}:{error.lineno or 1} is not Python: {error.msg}") from error
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
        place = f"{path}:{lines[-1]}" if lines else str(path)
        reason = str(error).strip().splitlines() or ["no message"]
        raise InvalidInput(f"{place}: {what} fails with {type(error).__name__}: {reason[0]}") from error


def _callables(module: ModuleType) -> str:
    """The functions a file defines itself, for a message."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return ", ".join(name for name in own if callable(vars(module)[name]) and name != EXAMPLE_INPUTS)
