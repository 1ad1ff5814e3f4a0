"""Training batches for reinforcement learning: rounds of episodes that the model plays, and passes through each."""

from collections.abc import Callable

import torch
from torch import Tensor

from steadygrad.models import PolicyModel
from steadygrad.tasks import Batch, EnvironmentTask, Episodes
from steadygrad.training.data import Batches, stream
from steadygrad.training.options import Train
from steadygrad.training.settings import updates_a_round


class Experience(Batches):
    """Batches of episodes, played by the model with the weights that it had at the beginning of a round.

    A batch therefore depends on more than its number, and the episodes of the current round are part of a checkpoint.
    ``progress`` is called with the share that is done of the episodes being played.
    """

    task: EnvironmentTask

    def __init__(
        self, task: EnvironmentTask, train: Train, seed: int, model: PolicyModel, progress: Callable[[float], object]
    ) -> None:
        who = type(task).__name__
        for name in ("window", "examples"):
            if (value := getattr(train, name)) is not None:
                raise ValueError(f"{who} is trained on whole episodes and expects no {name}; got {value}")
        self.task, self.train, self.seed, self.model, self.progress = task, train, seed, model, progress
        self.updates = updates_a_round(task, train)
        self.round = -1
        self.frames = 0
        self.inputs = self.targets = torch.empty(0)

    def ready(self) -> None:
        self.task.world()

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
        """Play the episodes of a round, at least ``task.round_frames`` time steps in all."""
        episodes = self.some(number, 0)
        while episodes.frames < self.task.round_frames:
            episodes = episodes.with_more(self.some(number, len(episodes.rewards)))
        self.round, self.frames = number, self.frames + episodes.frames
        self.inputs, self.targets = episodes.inputs, self.task.targets(episodes)

    def some(self, number: int, first: int) -> Episodes:
        """Play ``task.episodes`` episodes of a round as one batch, from episode ``first`` on."""
        which = range(first, first + self.task.episodes)
        seeds = [stream(self.seed, "train", number, i).initial_seed() for i in which]
        device = next(self.model.parameters()).device
        return self.task.play(self.model, seeds, device=device, progress=self.progress)

    def is_over(self, step: int) -> bool:
        """Return whether all frames have been played and the model has learned from the last round."""
        limit = self.train.frames
        return limit is not None and self.frames >= limit and step % self.updates == 0

    def counts(self) -> dict[str, int]:
        return {"frames": self.frames}

    def state(self) -> dict[str, Tensor]:
        played = torch.tensor([self.round, self.frames])
        return {"played": played, "inputs": self.inputs, "targets": self.targets}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.round, self.frames = state["played"].tolist()
        self.inputs, self.targets = state["inputs"], state["targets"]
