"""A process that optimizes programs for another one, which serves a model meanwhile.

It is `python -m mugraph.selection.search_process`. The search is Python and holds its interpreter, for which every call of a
model would wait; so it has an interpreter of its own, and gives way to the other process. Requests and answers are lines of
JSON. A request names a number of threads, a program, settings, a store, and a budget in seconds or the document of a result that
is to be tested; the answer is a document, what speaks against the given one, or what went wrong, with the number of the request:
whatever else libraries print there is skipped. The process ends when its input does, whatever it is doing, so that none outlives
the one that asks.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TextIO

from mugraph import errors
from mugraph.errors import MugraphError, TargetUnavailable
from mugraph.ir.graph import Graph
from mugraph.ir.serialize import graph_from_json, graph_to_json
from mugraph.search import SearchSpace
from mugraph.selection.whole_programs import OptimizationSettings, contradiction_of, document_of
from mugraph.support.scratch import remove_scratch_of
from mugraph.support.stopping import Stopped
from mugraph.support.store import Store, cache_directory

_NICE = 5
"""By how much the process is nicer than the one that asks."""


class SearchProcess:
    """The process as the one that asks has it, started with the first program; call it from one thread at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._numbers = itertools.count()
        self._changes = threading.Lock()
        self.closed = False

    def __call__(self, program: Graph, budget: float | None, wanted: OptimizationSettings) -> Mapping[str, Any]:
        """The document of the result for a program.

        Raises what the search raises, TargetUnavailable where the process cannot be started or ends, Stopped when closed.
        """
        document: Mapping[str, Any] = self._answer({**_request(program, wanted), "budget": budget})
        return document

    def start(self) -> None:
        """Have the process there with what it imports, which takes seconds that no budget is for. Raises what a search does."""
        self._answer({"threads": _threads()})

    def contradiction(self, program: Graph, document: Mapping[str, Any], wanted: OptimizationSettings) -> str:
        """What speaks against a kept result by all its tests; "" if nothing does. Raises what a search does."""
        return str(self._answer({**_request(program, wanted), "document": document}))

    def rest(self) -> None:
        """End the process, which gives back its memory; the next program starts another one."""
        with self._changes:
            process, self._process = self._process, None
        if process is not None:
            _end(process)

    def close(self) -> None:
        """End the process for good; a call that waits for it raises Stopped."""
        self.closed = True
        self.rest()

    def abandon(self) -> None:
        """Leave the process to the one that this one was forked of."""
        self._changes = threading.Lock()
        process, self._process = self._process, None
        for stream in () if process is None else (process.stdin, process.stdout):
            if stream is not None:
                os.close(stream.fileno())

    def _answer(self, request: Mapping[str, Any]) -> Any:
        answer = self._asked({**request, "number": next(self._numbers)})
        if "error" in answer:
            raise _error(answer)
        return answer["answer"]

    def _asked(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{json.dumps(request)}\n")
            process.stdin.flush()
            for line in process.stdout:
                answer = _parsed(line)
                if answer.get("number") == request["number"]:
                    return answer
        except (OSError, ValueError):  # it has ended, or its pipes were closed
            pass
        self.rest()
        self.check()
        raise TargetUnavailable(f"the process that searches ended with status {process.wait()}")

    def check(self) -> None:
        """Raise Stopped if it was closed."""
        if self.closed:
            raise Stopped

    def _started(self) -> subprocess.Popen[str]:
        with self._changes:
            self.check()
            if self._process is None:
                self._process = _new_process()
            return self._process


def _new_process() -> subprocess.Popen[str]:
    """One that imports what this one would; Ctrl-C is for this one. Raises TargetUnavailable where none can be started."""
    if not sys.executable or getattr(sys, "frozen", False):  # a program with Python in it would be started once more
        raise TargetUnavailable("no process can be started to search in: this one is no Python interpreter's")
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "mugraph.selection.search_process"],  # without the working directory
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
            start_new_session=True,
        )
    except OSError as error:
        raise TargetUnavailable(f"no process can be started to search in: {error}") from error


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and its compilers, remove what they were writing, and close its pipes; a thread that reads them reads
    their end first."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
    remove_scratch_of(process.pid, (Path(tempfile.gettempdir()), cache_directory() / "objects"))
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # nobody takes what was not written yet
                pipe.close()


def _request(program: Graph, wanted: OptimizationSettings) -> dict[str, Any]:
    settings = {
        field.name: getattr(wanted, field.name) for field in fields(wanted) if field.name not in ("cache", "like", "space")
    }
    store = Store.of(wanted.cache)
    return {
        "program": graph_to_json(program),
        "settings": settings,
        "like": [*map(graph_to_json, wanted.like)],
        "space": None if wanted.space is None else wanted.space.to_json(),
        "store": [str(store.directory.absolute()), store.mode, store.max_bytes],
        "threads": _threads(),
    }


def _threads() -> int | None:
    """The number of threads that PyTorch was told to use."""
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def _parsed(line: str) -> Mapping[str, Any]:
    """An answer; nothing for a line that is none."""
    with contextlib.suppress(ValueError):
        answer = json.loads(line)
        if isinstance(answer, dict):
            return answer
    return {}


def _error(answer: Mapping[str, Any]) -> Exception:
    """What the search raised: an error of ours, or one that is a defect, with its traceback as text."""
    kind = getattr(errors, str(answer["error"]), None)
    if isinstance(kind, type) and issubclass(kind, MugraphError):
        return kind(answer["text"])
    return RuntimeError(answer["text"])


# --- in the process ----------------------------------------------------------------------------------------------------


def _answer(request: Mapping[str, Any]) -> Any:
    """The answer to a request: a document, or what speaks against the one that is given; None to one that names no program."""
    if request["threads"] is not None:
        import torch  # which the process that asks has loaded, too

        torch.set_num_threads(request["threads"])
    if "program" not in request:
        return None
    directory, mode, size = request["store"]
    wanted = OptimizationSettings(**{**request["settings"], "constants": tuple(request["settings"]["constants"])})
    wanted = replace(
        wanted,
        cache=Store(Path(directory), mode, size),
        like=tuple(map(graph_from_json, request["like"])),
        space=None if request["space"] is None else SearchSpace(**request["space"]),
    )
    program = graph_from_json(request["program"])
    if "document" in request:
        return contradiction_of(program, request["document"], wanted)
    return document_of(program, request["budget"], wanted)


def _answered(line: str) -> dict[str, Any]:
    request = json.loads(line)
    number = {"number": request["number"]}
    try:
        return {**number, "answer": _answer(request)}
    except MugraphError as error:
        return {**number, "error": type(error).__name__, "text": str(error)}
    except Exception:  # whatever a search raises is the answer
        return {**number, "error": "", "text": traceback.format_exc()}


def _requests(lines: TextIO) -> queue.SimpleQueue[str]:
    """The lines of a stream as they come; its end is that of the process."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in lines:
            waiting.put(line)
        os._exit(0)

    threading.Thread(target=read, name="mugraph-requests", daemon=True).start()
    return waiting


def main() -> None:
    """Answer requests until there are no more."""
    if hasattr(os, "nice"):
        os.nice(_NICE)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    waiting = _requests(sys.stdin)
    while True:  # the empty line ends what was printed before
        print(f"\n{json.dumps(_answered(waiting.get()))}", file=answers, flush=True)


if __name__ == "__main__":
    main()
