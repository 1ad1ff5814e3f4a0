"""Training settings of a run, and their valid ranges."""

import math
from dataclasses import dataclass

from steadygrad.check import check_choice, check_integers, is_number

OPTIMIZERS = ("adam", "adagrad", "rmsprop", "rmsprop-tf", "rmsprop-theano", "sgd")
SMOOTHED = ("adam", "rmsprop", "rmsprop-tf", "rmsprop-theano")
"""optimizers that have a ``smoothing``"""
SCHEDULES = ("constant", "step", "plateau", "cosine")
COUNTS = (
    *("steps", "batch", "evaluate_every", "evaluate_examples", "evaluate_batch", "log_every"),
    *("lr_every", "examples", "window", "epochs", "frames"),
)
LARGEST = 1e30  # the largest float32 is 3.4e38
MOST_BATCHES = 10_000_000
"""largest number of batches of a fixed training set, whose order is in memory"""


@dataclass(frozen=True)
class Train:
    """Training settings: length, optimizer, learning rates, regularisation, data, evaluation."""

    steps: int = 2000
    """number of updates"""
    epochs: int | None = None
    """passes through a data set, instead of ``steps``; with an evaluation after each, instead of ``evaluate_every``"""
    batch: int = 50
    """sequences in an update"""
    optimizer: str = "adam"
    """adam, adagrad, rmsprop, sgd (no momentum), rmsprop-tf (of TensorFlow 1: the mean square starts at 1, ε is inside
    the square root) or rmsprop-theano (of the uRNN programs: the mean square starts at 0.001, ε is negligible)"""
    optimizer_constrained: str | None = None
    """optimizer of skew parts and reflectors; default: ``optimizer``"""
    lr: float = 1e-3
    """learning rate"""
    lr_constrained: float | None = None
    """learning rate of skew parts and reflectors, the parameters of orthogonal matrices; default: ``lr``"""
    smoothing: float | None = None
    """α of RMSprop or β₂ of Adam, for both optimizers if there are two; default: that of each optimizer"""
    beta1: float | None = None
    """β₁ of Adam, the decay rate of the mean gradient; default: 0.9"""
    decay_transients: float = 0.0
    """L2 weight decay of T of nnRNN, coupled: it is added to the gradient before the optimizer step"""
    decay_readout: float = 0.0
    """L2 weight decay of the readout matrix, in addition to ``weight_decay``"""
    decay_matrices: float = 0.0
    """L2 weight decay of free recurrent matrices, in addition to ``weight_decay``"""
    weight_decay: float = 0.0
    """L2 weight decay of all parameters except T of nnRNN, skew parts and reflectors"""
    clip: float | None = None
    """largest norm of the gradient; a larger gradient is scaled down to it"""
    schedule: str = "constant"
    """constant; step: learning rates are multiplied by ``lr_factor`` every ``lr_every`` updates; plateau: whenever the
    best validation loss has not improved; cosine: learning rates follow half a cosine, from their full value to 0"""
    lr_factor: float = 0.5
    """factor of the learning rates in the schedules step and plateau"""
    lr_every: int = 1000
    """updates between two changes of the learning rates in the schedule step"""
    examples: int | None = None
    """size of a fixed training set, whose batches come in a new order every epoch; default: always new sequences"""
    window: int | None = None
    """truncated back-propagation: one update per ``window`` time steps; the state is carried on, its gradient is not"""
    evaluate_every: int = 100
    """updates between two evaluations on the validation split"""
    evaluate_examples: int = 1000
    """validation sequences, for a task that generates its sequences"""
    evaluate_batch: int = 100
    """sequences in a batch of an evaluation"""
    log_every: int = 20
    """updates between two rows of training in metrics.jsonl"""
    max_loss: float | None = None
    """training loss above which a run has diverged; default: 10⁶ times the guessing loss, as bad starts may recover"""
    stop_at: float | None = None
    """end the run as soon as the task's score reaches this value in an evaluation"""
    frames: int | None = None
    """time steps that an agent plays, instead of ``steps``; the agent also learns from the last round of episodes"""

    def __post_init__(self) -> None:
        for name in COUNTS:
            if (count := getattr(self, name)) is not None:
                check_integers("Train", **{name: count})
        for name in ("lr", "lr_constrained", "clip", "max_loss", "lr_factor"):
            if (value := getattr(self, name)) is not None:
                check_positive(name, value)
        for name in ("weight_decay", "decay_transients", "decay_readout", "decay_matrices"):
            if not is_number(value := getattr(self, name), 0):
                raise ValueError(f"Train expects {name} to be at least 0; got {value!r}")
        self.check_optimizers()
        check_choice("Train", "schedule", self.schedule, SCHEDULES)
        if self.examples is not None and self.examples < self.batch:
            raise ValueError(f"Train expects examples for one batch of {self.batch} at least; got {self.examples}")
        if self.examples is not None and self.examples // self.batch > MOST_BATCHES:
            raise ValueError(
                f"Train expects examples for at most {MOST_BATCHES:,} batches of {self.batch}; got {self.examples}"
            )
        if self.epochs is not None and self.frames is not None:
            raise ValueError(f"Train expects either epochs or frames; got {self.epochs} and {self.frames}")
        if self.schedule == "cosine" and self.frames is not None:
            raise ValueError(f"Train expects steps or epochs for schedule cosine; got {self.frames} frames")

    def check_optimizers(self) -> None:
        """Raise ValueError unless the optimizers are known and use the settings that are given for them."""
        check_choice("Train", "optimizer", self.optimizer, OPTIMIZERS)
        if self.optimizer_constrained is not None:
            check_choice("Train", "optimizer_constrained", self.optimizer_constrained, OPTIMIZERS)
        if self.smoothing is not None and not (is_number(self.smoothing, 0, 1) and 0 < self.smoothing < 1):
            raise ValueError(f"Train expects smoothing above 0 and below 1; got {self.smoothing!r}")
        if self.beta1 is not None and not (is_number(self.beta1, 0, 1) and self.beta1 < 1):
            raise ValueError(f"Train expects beta1 of at least 0 and below 1; got {self.beta1!r}")
        for name, users in (("smoothing", SMOOTHED), ("beta1", ("adam",))):
            if getattr(self, name) is not None and not {self.optimizer, self.optimizer_constrained} & set(users):
                kinds = f"optimizer{'s' * (len(users) > 1)} {', '.join(users)}"
                raise ValueError(f"Train expects {name} with the {kinds} only; got {self.optimizer!r}")


def check_positive(name: str, value: float) -> None:
    """Raise ValueError unless the training setting is above 0 and at most `LARGEST`."""
    if not is_number(value, 0, math.inf) or value == 0:
        raise ValueError(f"Train expects {name} above 0; got {value!r}")
    if value > LARGEST:
        raise ValueError(f"Train expects {name} of at most {LARGEST:g}; got {value!r}")
