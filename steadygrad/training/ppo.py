"""Proximal policy optimization (Schulman et al., 2017): episodes that an agent plays, their targets, and the loss."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import compress
from typing import Any, NamedTuple, Protocol

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from steadygrad.tasks import EnvironmentTask


class Agent(Protocol):
    """Protocol of an agent. Its method `walk` maps observations to outputs and the final recurrent state.

    The outputs are (batch, time, actions + 1): the logits of the actions, then the expected return.
    """

    training: bool

    def train(self, mode: bool = True) -> Any:
        """Set training mode, or evaluation mode if ``mode`` is False."""

    def parameters(self) -> Iterator[Any]:
        """Return an iterator over the parameters."""

    def walk(self, x: Tensor, state: Any = None, reset: Tensor | None = None) -> tuple[Tensor, Any]:
        """Return the outputs for observations x (batch, time, input_size) and the final recurrent state.

        ``state`` is the recurrent state to start from, or None. It is reset before each step where the Boolean mask
        ``reset`` (batch, time) is True.
        """

    def cached(self) -> AbstractContextManager[None]:
        """Return a context manager inside which the recurrent matrices are evaluated once."""

    def rows(self, state: Any, which: Tensor) -> Any:
        """Return the recurrent state of those sequences of the batch for which ``which`` (batch,) is True."""


class Episodes(NamedTuple):
    """Episodes that an agent has played: ``inputs`` (episodes, time, input_size), the others (episodes, time).

    All tensors are NaN after the end of an episode.
    """

    inputs: Tensor
    actions: Tensor
    log_probs: Tensor
    """Log-probabilities of the actions at the time they were taken."""
    values: Tensor
    """Expected returns, predicted by the agent."""
    rewards: Tensor

    @property
    def frames(self) -> int:
        """Number of time steps of all episodes, without padding."""
        return int((~self.rewards.isnan()).sum())

    def with_more(self, others: "Episodes") -> "Episodes":
        """Return these episodes followed by ``others``, padded with NaN to the same length."""
        time = max(self.rewards.shape[1], others.rewards.shape[1])

        def longer(part: Tensor) -> Tensor:
            return F.pad(part.movedim(1, -1), (0, time - part.shape[1]), value=torch.nan).movedim(-1, 1)

        return Episodes(*(torch.cat([longer(a), longer(b)]) for a, b in zip(self, others, strict=True)))


@torch.no_grad()
def play(
    task: EnvironmentTask,
    agent: Agent,
    seeds: Sequence[int],
    *,
    at_once: int | None = None,
    greedy: bool = False,
    device: torch.device | str = "cpu",
    progress: Callable[[float], object] = lambda share: None,
) -> Episodes:
    """Let an agent play one episode for each seed, in evaluation mode, and return them as `Episodes`.

    A seed determines the environment and, unless ``greedy``, the sampled actions.

    The episodes run as one batch of at most ``at_once``, by default all. When an episode is over, the next one takes
    its place, with the agent's state reset, or its place leaves the batch. ``progress`` is called after each time step
    with the share of the largest possible number of time steps that is done.
    """
    with acting(agent):
        places = min(len(seeds), at_once or len(seeds))
        worlds = [task.world() for _ in range(places)]
        luck = torch.stack([torch.rand(task.steps, generator=Generator().manual_seed(seed)) for seed in seeds])
        seen = torch.stack([world.begin(seed) for world, seed in zip(worlds, seeds, strict=False)])
        playing, age, waiting = torch.arange(places), torch.zeros(places, dtype=torch.int64), places
        fresh = torch.zeros(places, dtype=torch.bool)  # whose episode takes the place of another
        state, moments = None, []
        while True:
            mask = fresh[:, None].to(device) if fresh.any() else None
            outputs, state = agent.walk(seen[:, None].to(device), state, mask)
            outputs = outputs[:, 0].cpu()
            log_probs = outputs[:, :-1].log_softmax(-1)
            chosen = log_probs.argmax(-1) if greedy else sampled(log_probs, luck[playing, age])
            after = [world.act(action) for world, action in zip(worlds, chosen.tolist(), strict=True)]
            rewards = torch.tensor([reward for _, reward, _ in after])
            taken = log_probs.gather(1, chosen[:, None])[:, 0]
            results = (chosen.float(), taken, outputs[:, -1], rewards)
            moments.append(Moment(playing, age, seen, torch.stack(results, -1)))
            progress(len(moments) / (task.steps * -(-len(seeds) // places)))
            sights = [
                None if over or steps + 1 == task.steps else sight
                for (sight, _, over), steps in zip(after, age.tolist(), strict=True)
            ]
            playing, age = playing.clone(), age + 1
            for place, sight in enumerate(sights):
                if sight is None and waiting < len(seeds):
                    sights[place] = worlds[place].begin(seeds[waiting])
                    playing[place], age[place] = waiting, 0
                    waiting += 1
            go_on = torch.tensor([sight is not None for sight in sights])
            if not go_on.any():
                break
            seen, fresh = torch.stack([sight for sight in sights if sight is not None]), age[go_on] == 0
            if not go_on.all():
                worlds = list(compress(worlds, go_on.tolist()))
                playing, age, state = playing[go_on], age[go_on], agent.rows(state, go_on.to(device))
        return Episodes(*side_by_side(moments, len(seeds)))


@contextmanager
def acting(agent: Agent) -> Iterator[None]:
    """Context manager: the agent is in evaluation mode, and its recurrent matrices are evaluated once for all steps."""
    was_training = agent.training
    agent.train(False)
    try:
        with agent.cached():
            yield
    finally:
        agent.train(was_training)


def ppo_targets(task: EnvironmentTask, episodes: Episodes) -> Tensor:
    """Return the PPO targets (episodes, time, 5) of played episodes, NaN after the end of an episode.

    The five targets are the action, its log-probability when it was taken, the advantage, the return, and the reward.
    Advantages have mean 0 and standard deviation 1 over all steps.
    """
    gain = advantages(episodes.rewards, episodes.values, task.discount, task.trace)
    returns = gain + episodes.values
    own = gain[~gain.isnan()]
    gain = (gain - own.mean()) / (own.std(correction=0) + 1e-8)
    return torch.stack([episodes.actions, episodes.log_probs, gain, returns, episodes.rewards], dim=-1)


def ppo_loss(task: EnvironmentTask, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the PPO loss E[−min(r A, clip(r, 1 − ε, 1 + ε) A)] + c (V − R)² − β H,  r = π(a)/π_old(a), a scalar.

    The terms are means over all steps. ``outputs`` (episodes, time, actions + 1) are the logits of π and the expected
    return V. ``targets`` are those of `ppo_targets`: action a, log π_old(a), advantage A, return R, reward. H is the
    entropy of π. ε, c and β are the task's ``clip_ratio``, ``value_weight`` and ``entropy``.
    """
    policy, value, entropy, _ = ppo_terms(task, outputs, targets)
    return policy + task.value_weight * value - task.entropy * entropy


def ppo_terms(task: EnvironmentTask, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the terms of PPO: policy loss, squared error of values, entropy, and an estimate of KL(π_old ‖ π).

    They are a tuple of four scalar tensors. The arguments are those of `ppo_loss`.
    """
    real = ~targets[..., 0].isnan()
    outputs, (actions, before, gain, returns, _) = outputs[real], targets[real].unbind(-1)
    log_probs, values = outputs[:, :-1].log_softmax(-1), outputs[:, -1]
    change = log_probs.gather(1, actions.long()[:, None])[:, 0] - before
    ratio = change.exp()
    policy = -torch.min(ratio * gain, ratio.clamp(1 - task.clip_ratio, 1 + task.clip_ratio) * gain).mean()
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    return policy, (values - returns).square().mean(), entropy, (ratio - 1 - change).mean()


def ppo_metrics(task: EnvironmentTask, outputs: Tensor, targets: Tensor) -> dict[str, float]:
    """Return a dict of the mean total reward of an episode and the terms of PPO.

    The keys are ``reward``, ``policy_loss``, ``value_loss``, ``entropy`` and ``divergence``.
    """
    policy, value, entropy, divergence = (term.item() for term in ppo_terms(task, outputs, targets))
    found = {"policy_loss": policy, "value_loss": value, "entropy": entropy, "divergence": divergence}
    return {"reward": mean_reward(targets[..., -1]), **found}


def mean_reward(rewards: Tensor) -> float:
    """Return the total reward of an episode, averaged over episodes.

    ``rewards`` (episodes, time) are NaN after the end of an episode.
    """
    return rewards.nansum().item() / len(rewards)


def sampled(log_probs: Tensor, luck: Tensor) -> Tensor:
    """Return a sampled action (batch,) for each row of log-probabilities (batch, actions).

    ``luck`` (batch,) are uniform random numbers in [0, 1), at which the inverse distribution function is taken.
    """
    below = log_probs.exp().cumsum(-1) <= luck[:, None]
    return below.sum(-1).clamp(max=log_probs.shape[1] - 1)  # rounding may leave the sum below 1


def advantages(rewards: Tensor, values: Tensor, discount: float, trace: float) -> Tensor:
    """Return the advantages A_t = Σ_k (γλ)ᵏ δ_{t+k},  δ_t = r_t + γ V_{t+1} − V_t, (episodes, time).

    They are NaN after the end of an episode, where V is 0. ``discount`` is γ, ``trace`` λ. Rewards r and values V, the
    expected returns, are (episodes, time), NaN after the end.
    """
    real = ~rewards.isnan()
    rewards, values = rewards.where(real, 0), values.where(real, 0)
    deltas = rewards + discount * F.pad(values[:, 1:], (0, 1)) - values
    found = torch.zeros_like(deltas)
    following = found.new_zeros(len(found))
    for time in reversed(range(found.shape[1])):
        found[:, time] = following = deltas[:, time] + discount * trace * following
    return found.where(real, torch.nan)


class Moment(NamedTuple):
    """One time step of all running episodes: which they are, how many steps each had before, what it saw and did."""

    playing: Tensor
    age: Tensor
    seen: Tensor
    what: Tensor


def side_by_side(moments: Sequence[Moment], count: int) -> tuple[Tensor, ...]:
    """Return a tuple of tensors from the moments of all episodes: observations, and each result.

    The first tensor has the observations (episodes, time, input_size). The others (episodes, time) have one result
    each. All are NaN after the end of an episode. ``count`` is the number of episodes.
    """
    longest = 1 + max(int(moment.age.max()) for moment in moments)
    inputs = torch.full((count, longest, moments[0].seen.shape[1]), torch.nan)
    notes = torch.full((count, longest, moments[0].what.shape[1]), torch.nan)
    for playing, age, seen, what in moments:
        inputs[playing, age], notes[playing, age] = seen, what
    return inputs, *notes.unbind(-1)
