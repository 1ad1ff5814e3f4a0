"""Training batches for reinforcement learning: rounds of episodes that the model plays, and passes through each."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Generator, Tensor, nn

from steadygrad.tasks import Batch, EnvironmentTask
from steadygrad.training.data import Batches, stream
from steadygrad.training.options import Train
from steadygrad.training.ppo import Agent, Episodes, mean_reward, play, ppo_loss, ppo_metrics, ppo_targets


class Experience(Batches):
    """Batches of episodes, played by the model with the weights that it had at the beginning of a round.

    A batch therefore depends on more than its number, and the episodes of the current round are part of a checkpoint.
    """

    task: EnvironmentTask

    def __init__(self, task: EnvironmentTask, train: Train, seed: int) -> None:
        super().__init__(task, train, seed)
        who = type(task).__name__
        for name in ("window", "examples"):
            if (value := getattr(train, name)) is not None:
                raise ValueError(f"{who} is trained on whole episodes and expects no {name}; got {value}")
        self.updates = updates_per_round(task, train)
        self.round = -1
        self.frames = 0
        self.inputs = self.targets = torch.empty(0)

    @classmethod
    def in_updates(cls, task: EnvironmentTask, train: Train) -> Train:
        """Return the training settings with frames converted to updates: the largest number that they may take."""
        if train.frames is None:
            return super().in_updates(task, train)
        rounds = -(-train.frames // max(task.round_frames, task.episodes))
        return replace(train, steps=rounds * updates_per_round(task, train))

    @staticmethod
    def examples(task: EnvironmentTask, model: Any, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return inputs (batch, time, input_size) and PPO targets (batch, time, 5) of episodes that the model plays.

        They are cut to the length of the shortest episode.
        """
        seeds = torch.randint(2**62, (batch,), generator=generator).tolist()
        episodes = play(task, model, seeds, device=next(model.parameters()).device)
        shortest = int((~episodes.rewards.isnan()).sum(1).min())
        return episodes.inputs[:, :shortest], ppo_targets(task, episodes)[:, :shortest]

    def attach(self, model: nn.Module, progress: Callable[[float], object]) -> None:
        """Store the model that plays. ``progress`` is called with the share of a batch of episodes that is played."""
        self.model, self.progress = cast(Agent, model), progress

    def ready(self) -> None:
        """Raise an error early if the environment cannot be made."""
        self.task.world()

    @property
    def updates_per_round(self) -> int:
        """Number of updates between two times that episodes are played."""
        return self.updates

    def __call__(self, step: int) -> Batch:
        """Return the batch of update ``step``. Play the episodes of its round first if necessary."""
        number, place = divmod(step, self.updates)
        if number != self.round:
            self.play(number)
        through, part = divmod(place, self.updates // self.task.passes)
        order = torch.randperm(len(self.inputs), generator=stream(self.seed, "order", number, through))
        which = order.tensor_split(self.updates // self.task.passes)[part]
        longest = int((~self.targets[which, :, 0].isnan()).sum(1).max())
        return Batch(self.inputs[which, :longest], self.targets[which, :longest])

    def play(self, number: int) -> None:
        """Play the episodes of round ``number`` and store them, at least ``task.round_frames`` time steps in all."""
        episodes = self.play_batch(number, 0)
        while episodes.frames < self.task.round_frames:
            episodes = episodes.with_more(self.play_batch(number, len(episodes.rewards)))
        self.round, self.frames = number, self.frames + episodes.frames
        self.inputs, self.targets = episodes.inputs, ppo_targets(self.task, episodes)

    def play_batch(self, number: int, first: int) -> Episodes:
        """Play ``task.episodes`` episodes of round ``number`` as one batch, from episode ``first`` on. Return them."""
        which = range(first, first + self.task.episodes)
        seeds = [stream(self.seed, "train", number, i).initial_seed() for i in which]
        device = next(self.model.parameters()).device
        return play(self.task, self.model, seeds, device=device, progress=self.progress)

    def is_over(self, step: int) -> bool:
        """Return whether ``train.frames`` frames have been played and ``step`` updates end a round.

        Without ``train.frames`` it is False.
        """
        limit = self.train.frames
        return limit is not None and self.frames >= limit and step % self.updates == 0

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the PPO loss of a batch."""
        return ppo_loss(self.task, outputs, targets)

    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return a dict of the mean total reward of an episode and the terms of the PPO loss, as `ppo_metrics` does."""
        return ppo_metrics(self.task, outputs, targets)

    def counts(self) -> dict[str, int]:
        """Return the dict {"frames": number of time steps played so far}."""
        return {"frames": self.frames}

    def state(self) -> dict[str, Tensor]:
        played = torch.tensor([self.round, self.frames])
        return {"played": played, "inputs": self.inputs, "targets": self.targets}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.round, self.frames = state["played"].tolist()
        self.inputs, self.targets = state["inputs"], state["targets"]


def updates_per_round(task: EnvironmentTask, train: Train) -> int:
    """Return the number of updates in a round, between two times that episodes are played."""
    return task.passes * -(-task.episodes // train.batch)


def evaluate_policy(
    model: nn.Module,
    task: EnvironmentTask,
    examples: int,
    *,
    seed: int,
    split: str,
    batch: int,
    window: int | None,
    progress: Callable[[float], object],
) -> dict[str, float]:
    """Play ``examples`` episodes and return a dict of ``reward`` and ``loss``.

    ``reward`` is the total reward of an episode, averaged over episodes. The loss is 1 − reward, not the loss of PPO.
    ``batch`` episodes are played at once. ``window`` is ignored. Training never uses the seeds of these episodes.
    """
    agent = cast(Agent, model)
    device = next(model.parameters()).device
    seeds = [stream(seed, split, number).initial_seed() for number in range(examples)]
    episodes = play(task, agent, seeds, at_once=batch, greedy=task.greedy, device=device, progress=progress)
    progress(1.0)
    return task.conclude({"reward": mean_reward(episodes.rewards)})
