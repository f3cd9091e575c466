"""`mugraph.superoptimize_dynamic`: a function for ranges of sizes, with the sizes that are searched given by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mugraph.api import superoptimize
from mugraph.frontend.calls.calling import arguments_of
from mugraph.search.constraints import SearchSpace
from mugraph.selection.evidence import Evidence
from mugraph.selection.target_of_inputs import target_of_inputs
from mugraph.sizes.dims import Declaration
from mugraph.sizes.dynamic_results import DynamicSuperoptimized
from mugraph.sizes.range_search import superoptimized_for_sizes


def superoptimize_dynamic(
    fn: Callable[..., Any],
    example_inputs: Any,
    dynamic: Declaration,
    *,
    table: Sequence[Mapping[str, int]] | None = None,
    target: str | None = None,
    budget: float | None = None,
    seed: int | None = None,
    max_error: float = 2**-40,
    evidence: Evidence = "bounded",
    space: SearchSpace | None = None,
) -> DynamicSuperoptimized:
    """Optimize `fn` for all sizes of its dynamic dimensions; the other parameters are those of `mugraph.superoptimize`.

    `dynamic` declares the dimensions, as in `{0: {0: Dim("batch", 1, 64)}}` for the first of the first argument. `table`
    lists the sizes, by name, that are searched and measured. By default it has the ends of each range, and of a single range its
    geometric middle; where the function acts on slices along its one dynamic dimension, also what keeps every size fast that is
    put together of these. `budget` is in seconds for the table together. Where sizes are not put together, `fn` is traced anew
    for every size, so it may depend on it. All sizes keep to `space`; a call with sizes at which nothing can lie in it raises
    InvalidInput.

    Raises InvalidInput for dimensions and arguments that do not exist, and what `mugraph.superoptimize` raises.
    """
    with target_of_inputs(target, example_inputs) as chosen:
        settings = {"target": chosen, "seed": seed, "max_error": max_error, "evidence": evidence, "space": space}
        return superoptimized_for_sizes(superoptimize, fn, arguments_of(example_inputs), dynamic, table, budget, settings)
