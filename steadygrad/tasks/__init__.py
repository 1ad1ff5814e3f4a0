"""Tasks that test memory: data, loss, metrics, and the loss of guessing. A task is one file and one line here."""

from steadygrad.tasks.adding import Adding
from steadygrad.tasks.copy import Copy
from steadygrad.tasks.denoise import Denoise
from steadygrad.tasks.parenthesis import Parenthesis
from steadygrad.tasks.task import Task

TASKS: dict[str, type[Task]] = {
    "copy": Copy,
    "adding": Adding,
    "denoise": Denoise,
    "parenthesis": Parenthesis,
}

__all__ = ["TASKS", "Adding", "Copy", "Denoise", "Parenthesis", "Task"]
