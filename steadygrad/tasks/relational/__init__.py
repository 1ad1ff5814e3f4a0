"""Tasks whose answer depends on the relations between objects, not on the objects themselves."""

from steadygrad.tasks.relational.comparison import Comparison, TransitiveComparison
from steadygrad.tasks.relational.distribution import DistributionOfN
from steadygrad.tasks.relational.games import RelationalGame
from steadygrad.tasks.relational.identity_rules import IdentityRules, IdentityRules4
from steadygrad.tasks.relational.match_to_sample import RMTS, RMTS3
from steadygrad.tasks.relational.objects import ObjectTask
from steadygrad.tasks.relational.same_different import SameDifferent, SameDifferent6

__all__ = [
    "RMTS",
    "RMTS3",
    "Comparison",
    "DistributionOfN",
    "IdentityRules",
    "IdentityRules4",
    "ObjectTask",
    "RelationalGame",
    "SameDifferent",
    "SameDifferent6",
    "TransitiveComparison",
]
