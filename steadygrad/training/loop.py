"""The training loop: updates, evaluations, checkpoints, and a result that records how the run ended."""

import math
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from steadygrad.layers.recurrent import State
from steadygrad.matrices import NonFiniteError
from steadygrad.training.callback import Callback
from steadygrad.training.checkpoint import packed, take_up
from steadygrad.training.data import stream
from steadygrad.training.directory import BEST, LAST, RunDirectory
from steadygrad.training.evaluate import evaluate, parameter_count, readings
from steadygrad.training.kinds import kind_of
from steadygrad.training.optimizers import Schedule, make_optimizer
from steadygrad.training.provenance import commit, versions
from steadygrad.training.settings import Settings
from steadygrad.training.stop import graceful_stop

CHECKPOINT_SECONDS = 20.0


class StopError(Exception):
    """Raised when the run is asked to stop, at a point where no completed update is lost."""


class DivergedError(Exception):
    """Raised when training diverges: the loss is NaN or above ``max_loss``, or a parameter is not finite."""


class Trainer:
    """Runs one training job: updates, evaluations, checkpoints.

    The constructor builds task, model and optimizer from the settings, and seeds torch's global generator.
    """

    def __init__(
        self,
        settings: Settings,
        directory: RunDirectory,
        callbacks: Sequence[Callback] = (),
        device: str | torch.device = "cpu",
    ) -> None:
        self.settings, self.directory, self.callbacks = settings, directory, callbacks
        self.device = torch.device(device)
        self.task = settings.build_task()
        self.options = settings.in_updates(self.task)
        torch.manual_seed(stream(settings.seed, "model").initial_seed())
        self.model = settings.build_model(self.task).to(self.device)
        self.optimizer = make_optimizer(self.model, self.options)
        self.schedule = Schedule(self.optimizer, self.options)
        self.batches = kind_of(self.task).batches(self.task, self.options, settings.seed)
        self.batches.ready()
        self.batches.attach(self.model, self.prepared)
        self.parameters = parameter_count(self.model)
        self.commit = commit()  # read now: the source tree may change during the run
        self.step = 0
        self.rows = 0
        self.state: State | None = None  # recurrent state, carried from window to window
        self.best: dict[str, Any] | None = None
        self.kept: dict[str, Tensor] = {}
        """weights of the best evaluation"""
        self.final: dict[str, Any] | None = None
        self.seconds_before = 0.0
        self.started = self.saved = time.perf_counter()
        self.last_loss: float | None = None
        self.asked = threading.Event()
        """set when the run is asked to stop"""
        self.max_loss = self.options.max_loss or 1e6 * self.task.guessing_loss or math.inf

    @property
    def is_over(self) -> bool:
        """Whether all updates are done or the training data, such as the frames of an agent, are used up."""
        return self.step >= self.options.steps or self.batches.is_over(self.step)

    @property
    def progress(self) -> tuple[int, int, str]:
        """Tuple of three: how much is done, the total, and the unit of both, "updates" or "frames"."""
        if self.options.frames is not None:
            return self.batches.counts()["frames"], self.options.frames, "frames"
        return self.step, self.options.steps, "updates"

    @property
    def seconds(self) -> float:
        """Seconds spent on this run, including the time before it was resumed."""
        return self.seconds_before + time.perf_counter() - self.started

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of the model's current weights, a dict by name."""
        return {key: value.detach().clone() for key, value in self.model.state_dict().items()}

    @property
    def best_weights(self) -> dict[str, Tensor]:
        """Weights of the best evaluation, a dict by name, or the current weights if there is none yet."""
        return self.kept or self.weights()

    def run(self) -> dict[str, Any]:
        """Resume from the checkpoint if there is one, train, and return the content of ``result.json`` as a dict."""
        take_up(self)
        try:
            return self.follow()
        finally:
            for callback in self.callbacks:
                callback.close()

    def follow(self) -> dict[str, Any]:
        """Train until the run is done, interrupted or diverged. Write the result, a dict, and return it."""
        for callback in self.callbacks:
            callback.begin(self)
        status, why = "done", None
        with graceful_stop() as self.asked:
            try:
                while not self.is_over and not self.solved():
                    self.stop_if_asked()
                    self.update()
                    if time.perf_counter() - self.saved > CHECKPOINT_SECONDS:
                        self.save()
            except StopError:
                status = "interrupted"
            except DivergedError as error:
                status, why = "diverged", str(error)
            if status != "diverged":  # a diverged run keeps its last good checkpoint
                self.save()
            else:
                self.directory.save_weights(self.shown_weights())
            result = self.result(status, why)
            if status == "done" and (test := self.test()) is not None:
                result["test"] = test
            self.directory.write_result(result)
        for callback in self.callbacks:
            callback.end(self, result)
        return result

    def stop_if_asked(self) -> None:
        """Raise StopError if the run was asked to stop."""
        if self.asked.is_set():
            raise StopError

    def prepared(self, share: float) -> None:
        """Report the share of a batch's preparation that is done. Raise StopError if the run was asked to stop."""
        self.tell("train", share)
        self.stop_if_asked()

    def update(self) -> None:
        """Run one update on a batch or a window of it. Log and evaluate if it is time. It may raise DivergedError."""
        logs = (self.step + 1) % self.options.log_every == 0
        loss, metrics = self.forward_and_backward(logs)
        norm = self.gradient_norm(logs)
        self.optimizer.step()
        self.step += 1
        self.last_loss = loss
        self.schedule.after_update(self.step)
        for callback in self.callbacks:
            callback.update(self, loss)
        if logs:
            found = self.task.conclude({"loss": loss, **metrics})
            self.log({"step": self.step, "split": "train", **found, "gradient_norm": norm, **self.batches.counts()})
        if self.step % self.options.evaluate_every == 0 or self.is_over:
            self.evaluate()

    def forward_and_backward(self, logs: bool) -> tuple[float, dict[str, float]]:
        """Compute the gradients of the next batch. Return the pair (loss, metrics).

        Without ``logs`` the metrics are an empty dict. The gradients are those of the loss and the model's penalty.
        Raise DivergedError if the loss is NaN or above ``max_loss``, or if a parameter is not finite.
        """
        self.optimizer.zero_grad(set_to_none=True)
        try:
            inputs, targets, goes_on = self.batches(self.step)
            inputs, targets = inputs.to(self.device), targets.to(self.device)
            outputs = self.outputs(inputs, goes_on)
        except NonFiniteError as error:
            raise self.diverged(f"a parameter is no longer finite ({error})", self.step + 1) from error
        loss = self.batches.loss(outputs, targets)
        value = loss.item()
        if not value <= self.max_loss:  # also catches NaN
            what = "is NaN" if math.isnan(value) else f"is {value:.3g}, above {self.max_loss:.3g}"
            raise self.diverged(f"the loss {what}", self.step + 1)
        (loss + self.model.penalty()).backward()
        return value, self.metrics(outputs, targets) if logs else {}

    def outputs(self, inputs: Tensor, goes_on: bool) -> Tensor:
        """Return the model's outputs. With truncated back-propagation, store the detached final state in ``state``."""
        outputs, state = self.model.walk(inputs, self.state if goes_on else None)
        if self.options.window is not None and state is not None:
            self.state = detached(state)
        return outputs

    @torch.no_grad()
    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return the metrics of a training batch; an empty dict for a window, unless the task measures windows."""
        meaningful = self.options.window is None or self.task.metrics_in_windows
        return self.batches.metrics(outputs, targets) if meaningful else {}

    def gradient_norm(self, wanted: bool) -> float | None:
        """Clip the gradient if ``clip`` is set. Return its norm before clipping, or None if nothing needs the norm."""
        if self.options.clip is not None:
            return torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip).item()
        if not wanted:
            return None
        return torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None]).item()

    def diverged(self, what: str, step: int | None = None) -> DivergedError:
        """Return a DivergedError whose message says at which update, what happened and what to try."""
        known = {p: name for name, p in self.model.named_parameters()}
        slow = [known[p] for g in self.optimizer.param_groups if g["name"] == "constrained" for p in g["params"]]
        ways = ["a smaller train.lr", *([f"a smaller train.lr_constrained (for {slow[0]})"] if slow else [])]
        advice = "try " + " or ".join([*ways, *([] if self.options.clip else ["train.clip 1.0"])])
        before = "" if self.last_loss is None else f"; the loss before was {self.last_loss:.3g}"
        return DivergedError(f"at update {step or self.step} {what}{before}; {advice}")

    def evaluate(self) -> None:
        """Evaluate on the validation split, log the result, and store the weights if they are the best so far.

        Raise DivergedError if the loss or a parameter is not finite.
        """
        try:
            found = self.evaluated("valid")
        except NonFiniteError as error:
            raise self.diverged(f"a parameter is no longer finite ({error})") from error
        row = {"step": self.step, "split": "valid", **found, **readings(self.model), **self.batches.counts()}
        improved = found["loss"] < (math.inf if self.best is None else self.best["loss"])
        if improved:
            self.best = {"step": self.step, **found}
            self.kept = self.weights()
        self.final = {"step": self.step, **found}
        self.log(row)
        if not math.isfinite(found["loss"]):
            raise self.diverged(f"the validation loss is {'NaN' if math.isnan(found['loss']) else 'infinite'}")
        # the extra evaluation at the end does not count, because a run that is extended later would not have had it
        if self.step % self.options.evaluate_every == 0:
            self.schedule.after_evaluation(improved)

    def evaluated(self, split: str) -> dict[str, float]:
        """Return the model's loss and metrics on a held-out split, "valid" or "test", as a dict by name."""
        options = self.options
        return evaluate(
            self.model,
            self.task,
            options.evaluate_examples,
            seed=self.settings.seed,
            split=split,
            batch=options.evaluate_batch,
            window=options.window,
            progress=partial(self.tell, split),
        )

    def tell(self, split: str, share: float) -> None:
        """Report to the callbacks which share of an evaluation, or of a round of episodes, is done."""
        for callback in self.callbacks:
            callback.evaluating(self, split, share)

    def test(self) -> dict[str, float] | None:
        """Return loss and metrics of the best weights on the test split; None for a task without a data set."""
        if not self.task.has_splits:
            return None
        last = self.weights()
        self.model.load_state_dict(self.best_weights)
        try:
            return self.evaluated("test")
        finally:
            self.model.load_state_dict(last)

    def solved(self) -> bool:
        """Return whether the score of the last evaluation has reached ``stop_at``."""
        goal, score = self.options.stop_at, (self.final or {}).get(self.task.score)
        if goal is None or score is None:
            return False
        return score >= goal if self.task.higher_is_better else score <= goal

    def log(self, row: dict[str, Any]) -> None:
        """Write a row, with ``seconds`` added, to ``metrics.jsonl`` and pass it to the callbacks."""
        row = row | {"seconds": round(self.seconds, 3)}
        self.directory.log(row)
        self.rows += 1
        for callback in self.callbacks:
            callback.row(self, row)

    # checkpoints and the result

    def shown_weights(self) -> dict[str, dict[str, Tensor]]:
        """Return a dict by file name with the best and the last weights, each a dict by name."""
        return {BEST: self.best_weights, LAST: self.model.state_dict()}

    def save(self) -> None:
        """Write the checkpoint, and the best and the last weights, to the run directory."""
        self.directory.save_weights(self.shown_weights(), packed(self))
        self.saved = time.perf_counter()

    def data(self) -> dict[str, str]:
        """Return the dict {"data": fingerprint of the training data}; an empty dict if the task has no fingerprint."""
        found = self.task.fingerprint
        return {} if found is None else {"data": found}

    def result(self, status: str, why: str | None) -> dict[str, Any]:
        """Return the content of ``result.json``, without the test, for a run that ended with this status."""
        return {
            **self.settings.complete(),
            "parameters": self.parameters,
            "seed": self.settings.seed,
            "steps": self.step,
            **self.batches.counts(),
            "best": self.best,
            "final": self.final,
            "score": self.task.score,
            "higher_is_better": self.task.higher_is_better,
            "guessing_loss": self.task.guessing_loss,
            "wall_seconds": round(self.seconds, 2),
            "threads": torch.get_num_threads(),
            "versions": versions(),
            "commit": self.commit,
            **self.data(),
            "status": status,
            **({} if why is None else {"why": why}),
        }


def detached(state: State) -> State:
    """Return a recurrent state without its gradient history."""
    return tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()
