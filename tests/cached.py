"""Caches for package functions that return the same value each time. Some tests call them hundreds of times."""

from functools import cache
from typing import Any

from steadygrad.experiments import Recipe, defaults
from steadygrad.training import loop

commit = cache(loop.commit)
"""Asks git once per process, not at the start of every run."""

WORK: dict[int, tuple[Recipe, Any]] = {}


def work(recipe: Recipe, compute: Any = defaults.work) -> Any:
    """Return the work of a recipe. `nearest` sorts by it all recipes of the papers, which takes 60 ms.

    The key is the identity: recipes cannot be hashed, and `load` returns the same objects each time. The cache holds
    the recipe too, so that no other recipe can get its id.
    """
    if id(recipe) not in WORK:
        WORK[id(recipe)] = recipe, compute(recipe)
    return WORK[id(recipe)][1]
