"""Benchmarks import each other by name; their folder comes last, for tests have packages of the same names."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
