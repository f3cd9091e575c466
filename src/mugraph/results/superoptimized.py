"""What users hold: a result to call, to save and to look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mugraph.frontend import require_torch
from mugraph.frontend.calls.calling import Calling
from mugraph.results.coverage import of_program
from mugraph.results.cuda_graphs import Graphed
from mugraph.results.data import Candidate, Result
from mugraph.results.serialization import read, save
from mugraph.runtime.executable import Executable


class Superoptimized(Result):
    """The result of `mugraph.superoptimize`: call it like the function it replaces.

    Outputs have the shapes, dtypes and structure of the original's. The kernels never modify their inputs, and calls
    from several threads do not disturb each other. There is no gradient. Copies (`copy.deepcopy`) are the result itself.
    """

    is_one_program = True
    """Whether the function is one program, as opposed to several with calls of PyTorch between (`mugraph.pieces.partitioned`)."""

    @property
    def results(self) -> tuple[Superoptimized, ...]:
        """The results of distinct programs: this one."""
        return (self,)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of all tensors that kernels are given, those that the function brings along being the last ones."""
        return tuple(self.program.input_names)

    def with_best(self, candidate: Candidate) -> Superoptimized:
        """The result with another of its `candidates` as the best one, compiled; what was measured of whole calls is left out."""
        others = (each for each in self.candidates if each is not candidate)
        executable, coverage = Executable(candidate.graph, self.executable.machine), of_program(self.program, candidate.graph)
        report = replace(self.report, comparison=None, coverage=coverage)
        return Superoptimized(
            self.program, candidate, (candidate, *others), report, executable, self.calling, self.target, self.origin
        )

    def bound_to(self, module: Callable[..., Any]) -> Superoptimized:
        """The result called as `module`, the module or function that it was made of: with its arguments alone.

        Parameters, buffers and what a function closes over are those of `module` by their names, on the device where they are,
        as they are in each call. So a result that was saved elsewhere, and loaded, is called as the one that was saved; that
        `module` computes the same `mugraph verify --certificate` decides, and nothing here. Raises InvalidInput and
        ShapeMismatch, naming the first argument or tensor of another name, shape or dtype, and InvalidInput for what is of no
        function.
        """
        require_torch("to bind a result to a module")
        from mugraph.frontend.calls.binding import bound_calling, inputs_of  # loads PyTorch

        calling = bound_calling(self.calling, inputs_of(self.program), len(self.program.outputs), module)
        return self.called_by(calling)

    def called_by(self, calling: Calling) -> Superoptimized:
        """The same result, called otherwise."""
        given = self.program, self.best, tuple(self.candidates), self.report, self.executable
        return Superoptimized(*given, calling, self.target, self.origin)

    def graphed(self, device: int | None = None, *, static_outputs: bool = False) -> Graphed:
        """The result as a CUDA graph on a GPU, by default torch's current one; see `mugraph.results.cuda_graphs.Graphed`.

        Arguments are copied into tensors of the graph. Outputs are copied from others, or, with `static_outputs`, are these,
        which the next call overwrites. Raises InvalidInput for a result that is not for GPUs, TargetUnavailable without one.
        """
        return Graphed(self, device, static_outputs)

    def save(self, path: str | Path) -> Path:
        """Write the result as a folder of JSON and sources, which `mugraph.load` reads (`mugraph.results.serialization`)."""
        return save(self, Path(path))

    def to_html(self) -> str:
        """The result as one self-contained HTML page: muGraph, evidence, costs, sources; see `mugraph.results.viewer`."""
        from mugraph.results.viewer import page  # templates and syntax colours are only loaded for those who look

        return page(self)

    def _repr_html_(self) -> str:
        """What notebooks show: the page of `to_html` in a frame."""
        from mugraph.results.viewer import notebook_html  # as above

        return notebook_html(self)

    def __repr__(self) -> str:
        kernels = len(self.graph.kernels())
        return (
            f"<Superoptimized for {self.target}: {kernels} kernel{'s' * (kernels != 1)}, {'found' if self.found else 'original'}>"
        )


def load_program(path: str | Path, trust_sources: bool = False) -> Superoptimized:
    """Read back the folder that a result of one program was saved to, and compile its muGraph for this machine.

    The result is called with one tensor per input of its program, in order: the function's tensors first, then the
    parameters of a module; or as the function itself, once it is `bound_to` that. What the function computes of no tensor is in
    the folder. The saved sources must be what the muGraph gives when it is printed again, and the muGraph is tested against the
    program for up to a second, before anything is compiled. `trust_sources` instead compiles the sources as they are, which is
    right for folders that nobody else could write to, and needed for those of another version.

    Raises InvalidInput naming the file when a file was changed, is missing, contradicts another or is from another format;
    UntrustedSources for sources that are not those of the muGraph; StorageError when a file cannot be read.
    """
    return read(Superoptimized, Path(path), trust_sources)
