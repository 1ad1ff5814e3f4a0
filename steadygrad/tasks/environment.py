"""Reinforcement-learning tasks: inputs depend on the actions of an agent."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from steadygrad.check import is_number
from steadygrad.tasks.task import Task

BOUNDS = {"discount": 1.0, "trace": 1.0, "clip_ratio": 1.0, "entropy": 1e6, "value_weight": 1e6}
"""Largest allowed value of each setting. The smallest is 0."""


class World(Protocol):
    """An environment. It runs one episode after another."""

    def begin(self, seed: int) -> Tensor:
        """Start an episode that the seed determines. Return the first observation (input_size,)."""

    def act(self, action: int) -> tuple[Tensor, float, bool]:
        """Take an action. Return the next observation, the reward, and whether the episode is over."""


class Agent(Protocol):
    """A model that maps observations to (batch, time, actions + 1): logits of the actions and the expected return."""

    training: bool

    def train(self, mode: bool = True) -> Any: ...

    def parameters(self) -> Iterator[Any]: ...

    def walk(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]: ...

    def rows(self, state: Any, which: Tensor) -> Any:
        """Return the state of the selected sequences of the batch."""


class Episodes(NamedTuple):
    """Episodes that an agent has played: tensors (episodes, time, …), NaN after the end of an episode."""

    inputs: Tensor
    actions: Tensor
    log_probs: Tensor
    """Log-probabilities of the actions at the time they were taken."""
    values: Tensor
    """Expected returns, predicted by the agent."""
    rewards: Tensor

    @property
    def frames(self) -> int:
        """Return the number of time steps, without padding."""
        return int((~self.rewards.isnan()).sum())

    def with_more(self, others: "Episodes") -> "Episodes":
        """Return these episodes followed by ``others``, padded with NaN to the same length."""
        time = max(self.rewards.shape[1], others.rewards.shape[1])

        def longer(part: Tensor) -> Tensor:
            return F.pad(part.movedim(1, -1), (0, time - part.shape[1]), value=torch.nan).movedim(-1, 1)

        return Episodes(*(torch.cat([longer(a), longer(b)]) for a, b in zip(self, others, strict=True)))


@dataclass(frozen=True)
class EnvironmentTask(Task):
    """Base class. Agents learn from whole episodes by proximal policy optimization (Schulman et al., 2017).

    Inputs (episodes, time, input_size) and targets (episodes, time, 5) are NaN after the end of an episode. The
    five targets are the action, its log-probability when it was taken, the advantage, the return, and the reward.
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
        self.check(episodes=1, round_frames=1, passes=1)
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
        return self.actions + 1

    @property
    def guessing_loss(self) -> float:
        """Return 1, the loss (1 − reward) of an agent that never reaches the goal."""
        return 1.0

    def world(self) -> World:
        """Return a new environment."""
        raise NotImplementedError

    def sample(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        who = type(self).__name__
        raise ValueError(f"{who} has no sequences of its own, because they depend on an agent; call play instead")

    @torch.no_grad()
    def play(
        self,
        agent: Agent,
        seeds: Sequence[int],
        *,
        greedy: bool = False,
        device: torch.device | str = "cpu",
        progress: Callable[[float], object] = lambda share: None,
    ) -> Episodes:
        """Play one episode for each seed, which determines the environment and, unless ``greedy``, the sampled actions.

        The episodes run as one batch; an episode that is over leaves the batch. ``progress`` is called after each time
        step with the share of the maximum episode length that is done.
        """
        was_training = agent.training
        agent.train(False)
        try:
            worlds = [self.world() for _ in seeds]
            luck = torch.stack([torch.rand(self.steps, generator=Generator().manual_seed(seed)) for seed in seeds])
            seen = torch.stack([world.begin(seed) for world, seed in zip(worlds, seeds, strict=True)])
            playing, state, moments = torch.arange(len(seeds)), None, []
            for time in range(self.steps):
                outputs, state = agent.walk(seen[:, None].to(device), state)
                outputs = outputs[:, 0].cpu()
                log_probs = outputs[:, :-1].log_softmax(-1)
                chosen = log_probs.argmax(-1) if greedy else drawn(log_probs, luck[playing, time])
                after = [worlds[i].act(action) for i, action in zip(playing.tolist(), chosen.tolist(), strict=True)]
                rewards = torch.tensor([reward for _, reward, _ in after])
                taken = log_probs.gather(1, chosen[:, None])[:, 0]
                moments.append((playing, seen, torch.stack([chosen.float(), taken, outputs[:, -1], rewards], -1)))
                progress((time + 1) / self.steps)
                go_on = torch.tensor([not over for _, _, over in after])
                if not go_on.any():
                    break
                seen = torch.stack([sight for sight, _, over in after if not over])
                if not go_on.all():
                    playing, state = playing[go_on], agent.rows(state, go_on.to(device))
            return Episodes(*side_by_side(moments, len(seeds)))
        finally:
            agent.train(was_training)

    def shown(self, model: Agent, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of episodes that the model plays, cut to the length of the shortest."""
        seeds = torch.randint(2**62, (batch,), generator=generator).tolist()
        episodes = self.play(model, seeds, device=next(model.parameters()).device)
        shortest = int((~episodes.rewards.isnan()).sum(1).min())
        return episodes.inputs[:, :shortest], self.targets(episodes)[:, :shortest]

    def targets(self, episodes: Episodes) -> Tensor:
        """Return the targets for training. Advantages have mean 0 and standard deviation 1 over all steps."""
        gain = advantages(episodes.rewards, episodes.values, self.discount, self.trace)
        returns = gain + episodes.values
        own = gain[~gain.isnan()]
        gain = (gain - own.mean()) / (own.std(correction=0) + 1e-8)
        return torch.stack([episodes.actions, episodes.log_probs, gain, returns, episodes.rewards], dim=-1)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """E[−min(r A, clip(r, 1 − ε, 1 + ε) A)] + c (V − R)² − β H,  r = π(a)/π_old(a): means over all steps."""
        policy, value, entropy, _ = self.terms(outputs, targets)
        return policy + self.value_weight * value - self.entropy * entropy

    def terms(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the policy loss, the squared error of values, the entropy, and an estimate of KL(π_old ‖ π)."""
        real = ~targets[..., 0].isnan()
        outputs, (actions, before, gain, returns, _) = outputs[real], targets[real].unbind(-1)
        log_probs, values = outputs[:, :-1].log_softmax(-1), outputs[:, -1]
        change = log_probs.gather(1, actions.long()[:, None])[:, 0] - before
        ratio = change.exp()
        policy = -torch.min(ratio * gain, ratio.clamp(1 - self.clip_ratio, 1 + self.clip_ratio) * gain).mean()
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        return policy, (values - returns).square().mean(), entropy, (ratio - 1 - change).mean()

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        policy, value, entropy, divergence = (term.item() for term in self.terms(outputs, targets))
        found = {"policy_loss": policy, "value_loss": value, "entropy": entropy, "divergence": divergence}
        return {"reward": self.reward(targets[..., -1]), **found}

    def reward(self, rewards: Tensor) -> float:
        """Return the mean reward of an episode, from rewards (episodes, time) that are NaN after the end."""
        return rewards.nansum().item() / len(rewards)

    def conclude(self, means: dict[str, float]) -> dict[str, float]:
        """Return the metrics with the loss 1 − reward. The loss of PPO does not show how good an agent is."""
        return means | {"loss": 1 - means["reward"]}


def drawn(log_probs: Tensor, luck: Tensor) -> Tensor:
    """Sample one action per row of (batch, actions), by inverse transform of the uniform numbers ``luck`` (batch,)."""
    below = log_probs.exp().cumsum(-1) <= luck[:, None]
    return below.sum(-1).clamp(max=log_probs.shape[1] - 1)  # rounding may leave the sum below 1


def advantages(rewards: Tensor, values: Tensor, discount: float, trace: float) -> Tensor:
    """A_t = Σ_k (γλ)ᵏ δ_{t+k},  δ_t = r_t + γ V_{t+1} − V_t; (episodes, time), NaN after the end, where V is 0."""
    real = ~rewards.isnan()
    rewards, values = rewards.where(real, 0), values.where(real, 0)
    deltas = rewards + discount * F.pad(values[:, 1:], (0, 1)) - values
    found = torch.zeros_like(deltas)
    following = found.new_zeros(len(found))
    for time in reversed(range(found.shape[1])):
        found[:, time] = following = deltas[:, time] + discount * trace * following
    return found.where(real, torch.nan)


def side_by_side(moments: Sequence[tuple[Tensor, Tensor, Tensor]], count: int) -> tuple[Tensor, ...]:
    """Turn the records of each time step (running episodes, observations, results) into tensors (episodes, time, …)."""
    _, seen, what = moments[0]
    inputs = torch.full((count, len(moments), seen.shape[1]), torch.nan)
    notes = torch.full((count, len(moments), what.shape[1]), torch.nan)
    for time, (playing, seen, what) in enumerate(moments):
        inputs[playing, time], notes[playing, time] = seen, what
    return inputs, *notes.unbind(-1)
