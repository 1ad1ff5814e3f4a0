"""Reproduction of papers: recipes with settings and published numbers, and the runs that we compare with them."""

from steadygrad.catalog.papers import bibtex, names
from steadygrad.experiments.defaults import nearest, settings_for
from steadygrad.experiments.observer import Observer, recurrent_part, trained_layer
from steadygrad.experiments.queue import run_missing
from steadygrad.experiments.recipe import SCALES, Paper, Recipe, every, load, select
from steadygrad.experiments.reproduce import reproduce, seeds_of, summary
from steadygrad.experiments.stored import StoredResults

__all__ = [
    "SCALES",
    "Observer",
    "Paper",
    "Recipe",
    "StoredResults",
    "bibtex",
    "every",
    "load",
    "names",
    "nearest",
    "recurrent_part",
    "reproduce",
    "run_missing",
    "seeds_of",
    "select",
    "settings_for",
    "summary",
    "trained_layer",
]
