"""Tasks that are a world to act in: what comes next depends on what an agent does."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from steadygrad.tasks.task import Task

BOUNDS = {"discount": 1.0, "trace": 1.0, "clip_ratio": 1.0, "entropy": 1e6, "value_weight": 1e6}
"""the largest values; 0 is the least"""


class World(Protocol):
    """One place to act in, for one episode after another."""

    def begin(self, seed: int) -> Tensor:
        """A fresh start, a function of the seed: what is seen first (input_size,)."""

    def act(self, action: int) -> tuple[Tensor, float, bool]:
        """What is seen next, the reward, and whether this was the end."""


class Agent(Protocol):
    """A model that says (batch, time, actions + 1) of what it sees: logits of actions, and the return it expects."""

    training: bool

    def train(self, mode: bool = True) -> Any: ...

    def parameters(self) -> Iterator[Any]: ...

    def walk(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]: ...

    def rows(self, state: Any, which: Tensor) -> Any:
        """The state of some sequences of the batch."""


class Episodes(NamedTuple):
    """What was played, (episodes, time, …); NaN behind the end of an episode."""

    inputs: Tensor
    actions: Tensor
    log_probs: Tensor
    """of the actions taken, when they were taken"""
    values: Tensor
    """the returns that were expected"""
    rewards: Tensor

    @property
    def frames(self) -> int:
        return int((~self.rewards.isnan()).sum())

    def with_more(self, others: "Episodes") -> "Episodes":
        """Both, one behind the other."""
        time = max(self.rewards.shape[1], others.rewards.shape[1])

        def longer(part: Tensor) -> Tensor:
            return F.pad(part.movedim(1, -1), (0, time - part.shape[1]), value=torch.nan).movedim(-1, 1)

        return Episodes(*(torch.cat([longer(a), longer(b)]) for a, b in zip(self, others, strict=True)))


@dataclass(frozen=True)
class EnvironmentTask(Task):
    """Base class. Agents learn by proximal policy optimization (Schulman et al., 2017) from whole episodes.

    Inputs (episodes, time, input_size) and targets (episodes, time, 5) are NaN behind the end of an episode. Targets
    are the action, its log-probability when it was taken, the advantage, the return, and the reward.
    """

    episodes: int = 32
    """played side by side"""
    round_frames: int = 2048
    """an agent plays again and again until there are so many steps; then it learns from these episodes"""
    passes: int = 4
    """through all of a round, each in a new order; an update has ``train.batch`` of every ``episodes``"""
    discount: float = 0.99
    """γ of a return Σ γᵏ r_{t+k}"""
    trace: float = 0.95
    """λ of the advantage: 0 trusts expected returns, 1 those that came"""
    clip_ratio: float = 0.2
    """ε: beyond 1 ± ε a change of an action's probability is no longer rewarded"""
    entropy: float = 0.01
    """what a policy gets for the entropy of its actions"""
    value_weight: float = 0.5
    """of the squared error of expected returns"""
    greedy: bool = False
    """whether the likeliest action is taken in evaluations, else one by chance as in training"""

    score: ClassVar[str] = "reward"
    higher_is_better: ClassVar[bool] = True

    view: ClassVar[int]
    """an agent sees so many squares in both directions …"""
    kinds: ClassVar[tuple[int, ...]]
    """… and so many kinds of each of these features of a square, as whole numbers, the first of the inputs"""
    others: ClassVar[int]
    """other inputs, plain numbers"""
    actions: ClassVar[int]

    def __post_init__(self) -> None:
        self.check(episodes=1, round_frames=1, passes=1)
        self.check_flags("greedy")
        for name, most in BOUNDS.items():
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
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
        """Of somebody who never gets there."""
        return 1.0

    def world(self) -> World:
        raise NotImplementedError

    def sample(self, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        who = type(self).__name__
        raise ValueError(f"{who} has no sequences of its own: what comes depends on an agent, so it is to be played")

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
        """An episode from each seed, which decides about the world and, unless ``greedy``, the luck of the actions.

        They go side by side, as one batch; whoever has ended leaves it. ``progress`` hears which share of the longest
        episode possible is over.
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
        """Episodes that it plays, all as long as the shortest."""
        seeds = torch.randint(2**62, (batch,), generator=generator).tolist()
        episodes = self.play(model, seeds, device=next(model.parameters()).device)
        shortest = int((~episodes.rewards.isnan()).sum(1).min())
        return episodes.inputs[:, :shortest], self.targets(episodes)[:, :shortest]

    def targets(self, episodes: Episodes) -> Tensor:
        """What is to be learned from these: advantages have mean 0 and deviation 1 over all of them."""
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
        """Of the loss: policy, squared error of values, entropy; and how far the policy is from that which played."""
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
        """Of an episode, on average; (episodes, time) with NaN behind the end."""
        return rewards.nansum().item() / len(rewards)

    def conclude(self, means: dict[str, float]) -> dict[str, float]:
        """What PPO minimises tells nobody how good an agent is: as loss there is 1 − reward."""
        return means | {"loss": 1 - means["reward"]}


def drawn(log_probs: Tensor, luck: Tensor) -> Tensor:
    """Of each row (batch, actions) the action at which the sum of probabilities passes a number from 0 to 1."""
    below = log_probs.exp().cumsum(-1) <= luck[:, None]
    return below.sum(-1).clamp(max=log_probs.shape[1] - 1)  # rounding may leave the sum below 1


def advantages(rewards: Tensor, values: Tensor, discount: float, trace: float) -> Tensor:
    """A_t = Σ_k (γλ)ᵏ δ_{t+k},  δ_t = r_t + γ V_{t+1} − V_t; (episodes, time), NaN behind the end, where V is 0."""
    real = ~rewards.isnan()
    rewards, values = rewards.where(real, 0), values.where(real, 0)
    deltas = rewards + discount * F.pad(values[:, 1:], (0, 1)) - values
    found = torch.zeros_like(deltas)
    following = found.new_zeros(len(found))
    for time in reversed(range(found.shape[1])):
        found[:, time] = following = deltas[:, time] + discount * trace * following
    return found.where(real, torch.nan)


def side_by_side(moments: Sequence[tuple[Tensor, Tensor, Tensor]], count: int) -> tuple[Tensor, ...]:
    """Step by step which episodes went on, what was seen and what came of it → (episodes, time, …) of each."""
    _, seen, what = moments[0]
    inputs = torch.full((count, len(moments), seen.shape[1]), torch.nan)
    notes = torch.full((count, len(moments), what.shape[1]), torch.nan)
    for time, (playing, seen, what) in enumerate(moments):
        inputs[playing, time], notes[playing, time] = seen, what
    return inputs, *notes.unbind(-1)
