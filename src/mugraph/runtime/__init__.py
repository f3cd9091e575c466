"""Running muGraphs on this machine: compile, load, launch, measure."""

from mugraph.runtime.executable import Executable, build
from mugraph.runtime.measurement import measure

__all__ = ["Executable", "build", "measure"]
