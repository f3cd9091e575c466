"""Plans once more, with what they subtract taken twice where that makes them more precise, and scheduled anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from mugraph.search.closure.sketch import Recipe
from mugraph.search.kernels import Kernel, KernelSearch
from mugraph.search.partition.plans import Plan, Stage
from mugraph.search.partition.rounding_model import Rehearsal
from mugraph.search.scheduling.cost import RecipeCost


def refined(plans: Iterable[Plan], rehearsal: Rehearsal, kernels: KernelSearch) -> Iterator[Plan]:
    """For each structure among the plans its more precise form, if there is one, under the best schedules of that.

    Partial results are left as they are: their schedules belong together.
    """
    seen: set[tuple[Recipe, ...]] = set()

    def kernels_of(kernel: Kernel, recipe: Recipe) -> Iterator[Kernel]:
        """Kernels of another recipe that reads and writes what `kernel` does, best first."""
        sources = tuple(kernels.tensor_of(leaf.source).dtype for leaf in recipe.leaves)
        cost = RecipeCost(recipe, sources, kernel.outputs, kernels.device)
        scheduler = kernels.scheduler([kernel.sizes], frame=kernels.space.frame(()))
        for found in scheduler.best_of_each((cost,), kernels.options.schedules_per_recipe):
            yield Kernel.of(found, kernel.sizes)

    for plan in plans:
        recipes = rehearsal.centred(plan)
        if recipes not in seen and all(len(stage.kernel.sizes) == len(kernels.whole.sizes) for stage in plan.stages):
            seen.add(recipes)
            yield from _scheduled(plan, recipes, kernels_of)


def _scheduled(plan: Plan, recipes: Sequence[Recipe], kernels_of: Callable[[Kernel, Recipe], Iterator[Kernel]]) -> Iterator[Plan]:
    """The plan with other recipes, whose launches have the best schedules each, then the second best, and so on."""
    changed: dict[int, list[Kernel]] = {}
    for position, (stage, recipe) in enumerate(zip(plan.stages, recipes, strict=True)):
        if isinstance(stage.kernel, Kernel) and recipe != stage.kernel.recipe:
            changed[position] = list(kernels_of(stage.kernel, recipe))
    if not all(changed.values()):
        return
    for place in range(max(map(len, changed.values()), default=0)):
        stages: list[Stage] = list(plan.stages)
        for position, found in changed.items():
            stages[position] = replace(stages[position], kernel=found[min(place, len(found) - 1)])
        yield Plan(tuple(stages))
