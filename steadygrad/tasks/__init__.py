"""Tasks define data, a loss, metrics and the loss of guessing. A new task is one file and one line here, its import."""

# isort: off
# `TASKS` lists the tasks in the order of these imports.
from steadygrad.tasks.copy import Copy as Copy
from steadygrad.tasks.adding import Adding as Adding
from steadygrad.tasks.denoise import Denoise as Denoise
from steadygrad.tasks.parenthesis import Parenthesis as Parenthesis
from steadygrad.tasks.pixels import PixelMNIST as PixelMNIST
from steadygrad.tasks.ptb import CharPTB as CharPTB
from steadygrad.tasks.ptb import WordPTB as WordPTB
from steadygrad.tasks.timit import TIMIT as TIMIT
from steadygrad.tasks.relational.same_different import SameDifferent as SameDifferent
from steadygrad.tasks.relational.match_to_sample import RMTS as RMTS
from steadygrad.tasks.relational.distribution import DistributionOfN as DistributionOfN
from steadygrad.tasks.relational.identity_rules import IdentityRules as IdentityRules
from steadygrad.tasks.relational.same_different import SameDifferent6 as SameDifferent6
from steadygrad.tasks.relational.match_to_sample import RMTS3 as RMTS3
from steadygrad.tasks.relational.identity_rules import IdentityRules4 as IdentityRules4
from steadygrad.tasks.relational.comparison import Comparison as Comparison
from steadygrad.tasks.relational.comparison import TransitiveComparison as TransitiveComparison
from steadygrad.tasks.relational.games import RelationalGame as RelationalGame
from steadygrad.tasks.minigrid import MiniGrid as MiniGrid
# isort: on

from steadygrad.tasks.dataset import SPLITS as SPLITS
from steadygrad.tasks.dataset import DataTask as DataTask
from steadygrad.tasks.dataset import ExampleTask as ExampleTask
from steadygrad.tasks.dataset import TextTask as TextTask
from steadygrad.tasks.environment import EnvironmentTask as EnvironmentTask
from steadygrad.tasks.relational.objects import ObjectTask as ObjectTask
from steadygrad.tasks.task import TASKS as TASKS
from steadygrad.tasks.task import Batch as Batch
from steadygrad.tasks.task import BatchList as BatchList
from steadygrad.tasks.task import Task as Task
