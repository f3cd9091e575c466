"""Writing text of the C family: indented lines, indices of tiles, literals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

import numpy as np

from mugraph.lower.argument_strides import digits, has_arguments
from mugraph.lower.places import Index


@cache
def packaged_text(package: str, name: str) -> str:
    """A file of C family text that a package brings along."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


@dataclass(slots=True, kw_only=True)
class Text:
    """Collects lines of source text."""

    lines: list[str] = field(default_factory=list)
    depth: int = 0

    def line(self, text: str) -> None:
        """Append one line at the current indentation."""
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def block(self, header: str = "", end: str = "") -> Iterator[None]:
        """Lines written inside stand between braces after `header`; `end` follows the closing one."""
        self.line(f"{header} {{".lstrip())
        self.depth += 1
        yield
        self.depth -= 1
        self.line(f"}}{end}")


def index_terms(index: Index, iteration: str = "l") -> list[str]:
    """The terms of an index; `g0`, `g1`, `g2` are the block's coordinates and `iteration` names the iteration."""
    names = [f"g{position}" for position in range(len(index.grid))]
    terms = [scaled(coefficient, name) for coefficient, name in zip((*index.grid, index.loop), (*names, iteration), strict=True)]
    constant = [number_text(index.constant)] if index.constant else []
    return [*(term for term in terms if term), *constant]


def scaled(coefficient: int, name: str) -> str:
    """`coefficient * name`, or nothing for zero."""
    if coefficient == 0:
        return ""
    return name if coefficient == 1 else f"{number_text(coefficient)} * {name}"


def number_text(coefficient: int) -> str:
    """A number, or a sum of multiples of arguments `stride0`, `stride1`, ..."""
    if not has_arguments(coefficient):
        return str(coefficient)
    parts = [str(digit) if number is None else scaled(digit, f"stride{number}") for number, digit in digits(coefficient).items()]
    return parts[0] if len(parts) == 1 and " " not in parts[0] else f"({' + '.join(parts)})"


def sum_of(terms: list[str]) -> str:
    """Terms joined by +, empty ones dropped."""
    return " + ".join(term for term in terms if term)


def product_of(numbers: Sequence[str]) -> str:
    """The product of numbers, or of numbers and names, in parentheses where it is no number."""
    known = str(math.prod(int(number) for number in numbers if number.isdigit()))
    names = [number for number in numbers if not number.isdigit()]
    return f"({' * '.join([known, *names])})" if names else known


def literal(value: float) -> str:
    """A C float literal with exactly the value of `value` rounded to fp32."""
    rounded = float(np.float32(value))
    if np.isinf(rounded):
        return "__builtin_inff()" if rounded > 0 else "-__builtin_inff()"
    return f"{rounded.hex()}f"
