"""What users hold of a function of which only parts are programs: a result to call, to save and to look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mugraph.frontend.calls.binding import Input, bound_calling
from mugraph.pieces.data import PartitionedResult
from mugraph.pieces.saved_pieces import read, rebuilt_pieces, save
from mugraph.results.superoptimized import Superoptimized
from mugraph.support.deadline import Deadline


class Partitioned(PartitionedResult):
    """What `mugraph.superoptimize` returns for a function of which only parts are programs: call it like the function.

    `pieces` are the programs in the order in which they run, each with a result of its own (`pieces[0].result.graph`,
    `.certificate`); `report.coverage` says what PyTorch runs and why. What only results of one program have, such as `graph`,
    raises SeveralPrograms. Tensors that the function changes are changed by calls, as the function does.
    """

    def save(self, path: str | Path) -> Path:
        """Write the result as a folder, which `mugraph.load` reads where PyTorch is installed (`mugraph.pieces.saved_pieces`)."""
        return save(self, Path(path))

    def bound_to(self, module: Callable[..., Any]) -> Partitioned:
        """The result called as `module`, the module or function that it was made of, as `Superoptimized.bound_to` says."""
        recorded = self.cut.recorded
        inputs = [
            Input(name, tuple(node.meta["val"].shape), node.meta["val"].dtype)
            for name, node in zip(recorded.calling.inputs, recorded.placeholders, strict=True)
        ]
        calling = bound_calling(recorded.calling, inputs, recorded.returned, module)
        cut = replace(self.cut, recorded=replace(recorded, calling=calling))
        return Partitioned(cut, self.report, self.target, self.origin)

    def to_html(self) -> str:
        """The result as one self-contained HTML page: what runs what and why, then the page of each program."""
        from mugraph.pieces.page import page  # templates are only loaded for those who look

        return page(self)

    def _repr_html_(self) -> str:
        """What notebooks show: the page of `to_html` in a frame."""
        from mugraph.results.viewer.pages import framed  # as above

        return framed(self.to_html(), self.name)


def load(path: Path, trust_sources: bool = False) -> Partitioned:
    """Read back the folder that `save` wrote; raises what `mugraph.load` raises."""
    return read(Partitioned, path, trust_sources)


def rebuilt(folder: Path, target: str, rebuilt_program: Callable[[Path], Superoptimized], deadline: Deadline) -> Partitioned:
    """The saved result with each of its programs rebuilt for a target; raises what `mugraph.rebuild` raises."""
    return rebuilt_pieces(Partitioned, folder, target, rebuilt_program, deadline)


def with_report(result: Partitioned, own: Callable[..., Any] | None, **changes: Any) -> Partitioned:
    """The same result with another report."""
    return Partitioned(result.cut, replace(result.report, **changes), result.target, result.origin, own)
