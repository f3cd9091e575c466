"""Moving data across the lanes of vectors, by shuffles whose constant indices depend on the number of lanes.

`fold_sum_H(a, b)` takes vectors made of blocks of 2H lanes, adds the halves of every block, and gives a's results
followed by b's. Folding L vectors pairwise down to one with H = L/2, ..., 1 sums each of them into one lane, in order.
"""

from __future__ import annotations

from collections.abc import Sequence

_COMBINED = {"sum": "{} + {}", "max": "vec_max({}, {})"}


def print_folds(lanes: int) -> str:
    """Definitions of `fold_sum_H`, `fold_max_H`, of `total_sum` and `total_max` over all lanes of one vector, and of `all_sum`
    and `all_max` over those of each of as many vectors as they have lanes."""
    parts = []
    for name, combined in _COMBINED.items():
        halves = _halves(lanes)
        parts += [_fold(name, combined, half, lanes) for half in halves]
        steps = " ".join(f"x = fold_{name}_{half}(x, x);" for half in halves)
        parts.append(f"INLINE float total_{name}(vec x) {{ {steps} return x[0]; }}")
        rows = fold_all([f"rows[{row}]" for row in range(lanes)], lanes, name)
        parts.append(f"INLINE vec all_{name}(const vec *rows) {{ return {rows}; }}")
    return "\n".join(parts) + "\n"


def print_interleaving(lanes: int) -> str:
    """Definitions of `INTERLEAVE_LOW` and `INTERLEAVE_HIGH`: the numbers of two vectors of 2L, alternating."""
    parts = []
    for name, start in (("LOW", 0), ("HIGH", lanes)):
        indices = ", ".join(f"{start + i}, {2 * lanes + start + i}" for i in range(lanes))
        parts.append(f"#define INTERLEAVE_{name}(a, b) __builtin_shufflevector(a, b, {indices})")
    return "\n".join(parts) + "\n"


def print_turning(lanes: int) -> str:
    """Definition of `turn`: rows that become columns, of as many vectors as they have lanes."""
    lines = []
    for half in _halves(lanes):
        for row in (row for row in range(lanes) if not row & half):
            low, high = (
                ", ".join(str((lane & ~half) + offset + lanes * bool(lane & half)) for lane in range(lanes))
                for offset in (0, half)
            )
            pair = f"rows[{row}], rows[{row + half}]"
            lines.append(f"a = __builtin_shufflevector({pair}, {low}), b = __builtin_shufflevector({pair}, {high});")
            lines.append(f"rows[{row}] = a, rows[{row + half}] = b;")
    body = "\n    ".join(["vec a, b;", *lines])
    return f"INLINE void turn(vec *rows)\n{{\n    {body}\n}}\n"


def fold_all(vectors: Sequence[str], lanes: int, name: str = "sum") -> str:
    """A C expression whose lane i is the sum, or the maximum, over the lanes of `vectors[i]`, for at most `lanes` vectors."""
    names = [*vectors, *["(vec){0}"] * (lanes - len(vectors))]
    for half in _halves(lanes):
        names = [_folded(name, half, first, second) for first, second in zip(names[::2], names[1::2], strict=True)]
    return names[0]


def _folded(name: str, half: int, first: str, second: str) -> str:
    zero = "(vec){0}"
    return zero if first == second == zero else f"fold_{name}_{half}({first}, {second})"


def _halves(lanes: int) -> list[int]:
    return [lanes >> step for step in range(1, lanes.bit_length())]


def _fold(name: str, combined: str, half: int, lanes: int) -> str:
    starts = [start + vector for vector in (0, lanes) for start in range(0, lanes, 2 * half)]
    low, high = (", ".join(str(start + offset + i) for start in starts for i in range(half)) for offset in (0, half))
    first, second = (f"__builtin_shufflevector(a, b, {indices})" for indices in (low, high))
    return f"INLINE vec fold_{name}_{half}(vec a, vec b) {{ return {combined.format(first, second)}; }}"
