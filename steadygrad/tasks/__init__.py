"""Tasks define data, a loss, metrics and the loss of guessing. A new task is one file and one line in `TASKS`."""

from steadygrad.tasks.adding import Adding
from steadygrad.tasks.copy import Copy
from steadygrad.tasks.dataset import SPLITS, DataTask, ExampleTask, TextTask
from steadygrad.tasks.denoise import Denoise
from steadygrad.tasks.environment import EnvironmentTask
from steadygrad.tasks.minigrid import MiniGrid
from steadygrad.tasks.parenthesis import Parenthesis
from steadygrad.tasks.pixels import PixelMNIST
from steadygrad.tasks.ptb import CharPTB, WordPTB
from steadygrad.tasks.relational import (
    RMTS,
    RMTS3,
    Comparison,
    DistributionOfN,
    IdentityRules,
    IdentityRules4,
    ObjectTask,
    RelationalGame,
    SameDifferent,
    SameDifferent6,
    TransitiveComparison,
)
from steadygrad.tasks.task import Batch, BatchList, Task
from steadygrad.tasks.timit import TIMIT

TASKS: dict[str, type[Task]] = {
    "copy": Copy,
    "adding": Adding,
    "denoise": Denoise,
    "parenthesis": Parenthesis,
    "pixel-mnist": PixelMNIST,
    "char-ptb": CharPTB,
    "word-ptb": WordPTB,
    "timit": TIMIT,
    "same-different": SameDifferent,
    "rmts": RMTS,
    "distribution-of-n": DistributionOfN,
    "identity-rules": IdentityRules,
    "same-different-6": SameDifferent6,
    "rmts-3": RMTS3,
    "identity-rules-4": IdentityRules4,
    "comparison": Comparison,
    "transitive-comparison": TransitiveComparison,
    "relational-game": RelationalGame,
    "minigrid": MiniGrid,
}

__all__ = [
    "RMTS",
    "RMTS3",
    "SPLITS",
    "TASKS",
    "TIMIT",
    "Adding",
    "Batch",
    "BatchList",
    "CharPTB",
    "Comparison",
    "Copy",
    "DataTask",
    "Denoise",
    "DistributionOfN",
    "EnvironmentTask",
    "ExampleTask",
    "IdentityRules",
    "IdentityRules4",
    "MiniGrid",
    "ObjectTask",
    "Parenthesis",
    "PixelMNIST",
    "RelationalGame",
    "SameDifferent",
    "SameDifferent6",
    "Task",
    "TextTask",
    "TransitiveComparison",
    "WordPTB",
]
