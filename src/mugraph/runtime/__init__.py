"""Running muGraphs on this machine: compile, load, launch, measure."""

from mugraph.runtime.benchmarking import measure
from mugraph.runtime.executable import Executable, build

__all__ = ["Executable", "build", "measure"]
