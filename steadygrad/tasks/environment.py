"""Reinforcement-learning tasks: inputs depend on the actions of an agent."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Generator, Tensor

from steadygrad.check import is_number
from steadygrad.tasks.task import Task

BOUNDS = {"discount": 1.0, "trace": 1.0, "clip_ratio": 1.0, "entropy": 1e6, "value_weight": 1e6}
"""Largest allowed value of each setting. The smallest is 0."""
MOST_EPISODES, MOST_FRAMES = 10_000, 10_000_000
"""Largest ``episodes`` and ``round_frames``. Each episode has a world in memory, and a round is stored as a whole."""


class World(Protocol):
    """Protocol of a reinforcement-learning environment that runs one episode after another."""

    def begin(self, seed: int) -> Tensor:
        """Start an episode, which the seed determines. Return the first observation (input_size,)."""

    def act(self, action: int) -> tuple[Tensor, float, bool]:
        """Take an action. Return the next observation, the reward, and whether the episode is over."""


@dataclass(frozen=True)
class EnvironmentTask(Task):
    """Base class of reinforcement-learning tasks. Agents learn from whole episodes by PPO (Schulman et al., 2017).

    Inputs (episodes, time, input_size) are NaN after the end of an episode. The task holds the settings of the
    environment and of the optimization. The algorithm is in `steadygrad.training.ppo`. There are no sequences without
    an agent: `sample`, `sample_unseen`, `held_out_batches`, `loss` and `metrics` cannot be used.
    """

    episodes: int = 32
    """Number of episodes played in parallel, as one batch."""
    round_frames: int = 2048
    """The agent plays episodes until it has played at least this many time steps, then learns from them: one round."""
    passes: int = 4
    """Passes through a round, each in a new order. An update uses ``train.batch`` of every ``episodes`` episodes."""
    discount: float = 0.99
    """γ of the return Σ γᵏ r_{t+k}."""
    trace: float = 0.95
    """λ of the advantage: 0 relies on expected returns, 1 on observed returns."""
    clip_ratio: float = 0.2
    """ε of the clipping: the loss gains nothing when the probability ratio of an action moves beyond 1 ± ε."""
    entropy: float = 0.01
    """Weight β of the entropy bonus in the loss."""
    value_weight: float = 0.5
    """Weight c of the squared error of expected returns in the loss."""
    greedy: bool = False
    """If true, evaluations take the most likely action. Otherwise they sample actions, as training does."""

    score: ClassVar[str] = "reward"
    higher_is_better: ClassVar[bool] = True

    view: ClassVar[int]
    """Side of the agent's field of view: it sees ``view`` × ``view`` squares."""
    kinds: ClassVar[tuple[int, ...]]
    """Number of values of each integer feature of a square. The features of all squares come first in the inputs."""
    others: ClassVar[int]
    """Number of further inputs, which follow the squares."""
    actions: ClassVar[int]

    def __post_init__(self) -> None:
        self.check(MOST_EPISODES, episodes=1)
        self.check(MOST_FRAMES, round_frames=1)
        self.check(passes=1)
        self.check_flags("greedy")
        for name, most in BOUNDS.items():
            value = getattr(self, name)
            if not is_number(value, 0, most):
                who = type(self).__name__
                raise ValueError(f"{who} expects {name} to be a number from 0 to {most:g}; got {value!r}")

    @property
    def input_size(self) -> int:
        return self.view**2 * len(self.kinds) + self.others

    @property
    def output_size(self) -> int:
        """Number of outputs of an agent: a logit for each action, and the expected return."""
        return self.actions + 1

    @property
    def guessing_loss(self) -> float:
        """Loss (1 − reward) of an agent that never reaches the goal: 1."""
        return 1.0

    def world(self) -> World:
        """Return a new environment in which an agent can play episodes."""
        raise NotImplementedError

    def sample(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Raise ValueError: the sequences depend on an agent, so episodes must be played."""
        who = type(self).__name__
        raise ValueError(f"{who} has no sequences of its own, because they depend on an agent; play episodes instead")

    def conclude(self, means: dict[str, float]) -> dict[str, float]:
        """Return the dict of metrics with ``loss`` = 1 − ``reward``. The loss of PPO does not rate an agent."""
        return means | {"loss": 1 - means["reward"]}
