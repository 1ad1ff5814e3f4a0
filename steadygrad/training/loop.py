"""The training loop: updates, evaluations, checkpoints, and a result that records how the run ended."""

import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from steadygrad.files import METRICS, RESULT, RunError
from steadygrad.layers.recurrent import State, as_tuple
from steadygrad.matrices import Matrix, NonFiniteError
from steadygrad.models import PolicyModel
from steadygrad.tasks import DataTask, EnvironmentTask, TextTask
from steadygrad.training.callback import Callback
from steadygrad.training.data import Batches, stream
from steadygrad.training.directory import BEST, CHECKPOINT, LAST, Checkpoint, RunDirectory
from steadygrad.training.evaluate import check_data, evaluate, parameter_count, walk
from steadygrad.training.experience import Experience
from steadygrad.training.optimizers import Schedule, make_optimizer
from steadygrad.training.provenance import commit, versions
from steadygrad.training.settings import Settings
from steadygrad.training.stop import graceful_stop

CHECKPOINT_SECONDS = 20.0


class StopError(Exception):
    """Raised when the run is asked to stop, at a point where no completed update is lost."""


class DivergedError(Exception):
    """Raised when training diverges: the loss is NaN or above ``max_loss``, or a parameter is not finite."""


def train(
    settings: Settings,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    device: str | torch.device = "cpu",
) -> Mapping[str, Any]:
    """Train in the directory ``out`` until the run is done, diverges or is interrupted. Return its ``result.json``.

    With ``resume`` a stopped run continues from its last checkpoint, exactly as if it had not been stopped.
    """
    directory = RunDirectory(out)
    trainer = Trainer(settings, directory, callbacks, device)  # first: an invalid setting then leaves no directory
    directory.refuse(settings, resume)
    directory.path.mkdir(parents=True, exist_ok=True)
    with directory.locked():
        directory.begin(settings, resume)
        result = directory.result()
        if result is None or not is_over(result, settings):
            return trainer.run()
        trainer.catch_up(result)
        return result


def is_over(result: Mapping[str, Any], settings: Settings) -> bool:
    """Return whether the run needs no more training. A run that diverged would only diverge again."""
    if result["status"] == "done":
        return length(result["train"]) >= length(asdict(settings.train))
    return result["status"] == "diverged"


def length(train: Mapping[str, Any]) -> tuple[int, int]:
    """Return the length of training as (epochs or frames, 0), or (0, updates) if neither is given."""
    other = train.get("epochs") or train.get("frames") or 0
    return (other, 0 if other else train["steps"])


class Trainer:
    """Runs one training job: updates, evaluations, checkpoints."""

    def __init__(
        self, settings: Settings, directory: RunDirectory, callbacks: Sequence[Callback], device: str | torch.device
    ) -> None:
        self.settings, self.directory, self.callbacks = settings, directory, callbacks
        self.device = usable(device)
        self.task = settings.build_task()
        self.options = settings.in_updates(self.task)
        torch.manual_seed(stream(settings.seed, "model").initial_seed())
        self.model = settings.build_model(self.task).to(self.device)
        self.optimizer = make_optimizer(self.model, self.options)
        self.schedule = Schedule(self.optimizer, self.options)
        self.batches = self.source()
        self.batches.ready()
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

    def source(self) -> Batches:
        """Return the training data: batches of the task, or episodes that the model plays."""
        if not isinstance(self.task, EnvironmentTask):
            return Batches(self.task, self.options, self.settings.seed)
        assert isinstance(self.model, PolicyModel)
        return Experience(self.task, self.options, self.settings.seed, self.model, self.playing)

    @property
    def is_over(self) -> bool:
        """Return whether all updates are done or the training data are used up."""
        return self.step >= self.options.steps or self.batches.is_over(self.step)

    @property
    def progress(self) -> tuple[int, int, str]:
        """Return how much is done, the total, and the unit: updates or frames."""
        if self.options.frames is not None:
            return self.batches.counts()["frames"], self.options.frames, "frames"
        return self.step, self.options.steps, "updates"

    @property
    def seconds(self) -> float:
        """Return the seconds spent on this run, including the time before it was resumed."""
        return self.seconds_before + time.perf_counter() - self.started

    def weights(self) -> dict[str, Tensor]:
        """Return a copy of the current weights."""
        return {key: value.detach().clone() for key, value in self.model.state_dict().items()}

    @property
    def best_weights(self) -> dict[str, Tensor]:
        """Return the weights of the best evaluation, or the current weights if there is none yet."""
        return self.kept or self.weights()

    def run(self) -> dict[str, Any]:
        """Resume from the checkpoint if there is one, train, and return the result."""
        if checkpoint := self.directory.checkpoint():
            self.restore(checkpoint)
        else:
            self.directory.drop(METRICS)
        self.directory.drop(RESULT)
        try:
            return self.follow()
        finally:
            for callback in self.callbacks:
                callback.close()

    def follow(self) -> dict[str, Any]:
        """Train until the run is done, interrupted or diverged. Write and return the result."""
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
                self.directory.save_weights(BEST, self.best_weights)
                self.directory.save_weights(LAST, self.model.state_dict())
            result = self.result(status, why)
            if status == "done" and (test := self.test()) is not None:
                result["test"] = test
            self.directory.write_result(result)
        for callback in self.callbacks:
            callback.end(self, result)
        return result

    def catch_up(self, result: Mapping[str, Any]) -> None:
        """Call `end` of the callbacks that lack it for a finished run, if the weights of the run can be loaded."""
        late = [callback for callback in self.callbacks if callback.lacks(self, result)]
        if not late:
            return
        try:
            self.kept = self.directory.load_weights(BEST)
            for weights in (self.kept, self.directory.load_weights(LAST)):
                self.model.load_state_dict(weights)
        except (RunError, RuntimeError):  # missing, or of an older version: the result is still valid
            return
        self.step = result["steps"]
        try:
            for callback in late:
                callback.begin(self)
                callback.end(self, result)
        finally:
            for callback in late:
                callback.close()

    def stop_if_asked(self) -> None:
        if self.asked.is_set():
            raise StopError

    def playing(self, share: float) -> None:
        """Report the progress of a round of episodes, and stop if asked. A resumed run plays the round again."""
        self.tell("train", share)
        self.stop_if_asked()

    def update(self) -> None:
        """Run one update on a batch or on a window of it. Log and evaluate if it is time."""
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
        """Compute the gradients of the next batch. Return its loss and, if it ``logs``, its metrics."""
        self.optimizer.zero_grad(set_to_none=True)
        try:
            inputs, targets, goes_on = self.batches(self.step)
            inputs, targets = inputs.to(self.device), targets.to(self.device)
            outputs = self.outputs(inputs, goes_on)
        except NonFiniteError as error:
            raise DivergedError(self.story(f"a parameter is no longer finite ({error})", self.step + 1)) from error
        loss = self.task.loss(outputs, targets)
        value = loss.item()
        if not value <= self.max_loss:  # also catches NaN
            words = "is not a number" if math.isnan(value) else f"is {value:.3g}, above {self.max_loss:.3g}"
            raise DivergedError(self.story(f"the loss {words}", self.step + 1))
        (loss + self.model.penalty()).backward()
        return value, self.metrics(outputs, targets) if logs else {}

    def outputs(self, inputs: Tensor, goes_on: bool) -> Tensor:
        """Return the outputs of the model. With truncated back-propagation, keep the detached final state."""
        outputs, state = walk(self.model, inputs, self.state if goes_on else None)
        if self.options.window is not None and state is not None:
            self.state = detached(state)
        return outputs

    @torch.no_grad()
    def metrics(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return the metrics of the training batch; an empty dict for a window, except for windows of text.

        Other windows may not contain the time steps that the metrics measure.
        """
        whole = self.options.window is None or isinstance(self.task, TextTask)
        return self.task.metrics(outputs, targets) if whole else {}

    def gradient_norm(self, wanted: bool) -> float | None:
        """Clip the gradient if ``clip`` is set. Return its norm before clipping, or None if nothing needs the norm."""
        if self.options.clip is not None:
            return torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip).item()
        if not wanted:
            return None
        return torch.nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None]).item()

    def story(self, what: str, step: int | None = None) -> str:
        """Return the message of a divergence: at which update, what happened, and what to try."""
        advice = "try a smaller train.lr" + ("" if self.options.clip else " or train.clip 1.0")
        before = "" if self.last_loss is None else f"; the loss before was {self.last_loss:.3g}"
        return f"at update {step or self.step} {what}{before}; {advice}"

    def evaluate(self) -> None:
        """Evaluate on the validation split, log the result, and keep the weights if they are the best so far."""
        try:
            found = self.evaluated("valid")
        except NonFiniteError as error:
            raise DivergedError(self.story(f"a parameter is no longer finite ({error})")) from error
        row = {"step": self.step, "split": "valid", **found, **readings(self.model), **self.batches.counts()}
        improved = found["loss"] < (math.inf if self.best is None else self.best["loss"])
        if improved:
            self.best = {"step": self.step, **found}
            self.kept = self.weights()
        self.final = {"step": self.step, **found}
        self.log(row)
        if math.isnan(found["loss"]):
            raise DivergedError(self.story("the validation loss is not a number"))
        # the extra evaluation at the end does not count, because a run that is extended later would not have had it
        if self.step % self.options.evaluate_every == 0:
            self.schedule.after_evaluation(improved)

    def evaluated(self, split: str) -> dict[str, float]:
        """Return loss and metrics on a held-out split."""
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
        """Report to the callbacks which share of an evaluation or round is done."""
        for callback in self.callbacks:
            callback.evaluating(self, split, share)

    def test(self) -> dict[str, float] | None:
        """Return loss and metrics of the best weights on the test split; None for a task without a data set."""
        if not isinstance(self.task, DataTask):
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
        """Write a row to ``metrics.jsonl`` and pass it to the callbacks."""
        row = row | {"seconds": round(self.seconds, 3)}
        self.directory.log(row)
        self.rows += 1
        for callback in self.callbacks:
            callback.row(self, row)

    # checkpoints and the result

    def save(self) -> None:
        """Write the checkpoint, and the best and the last weights."""
        tensors = {f"model.{key}": value for key, value in self.model.state_dict().items()}
        tensors |= {f"best.{key}": value for key, value in self.kept.items()}
        numbers: dict[str, Any] = {}
        for index, state in self.optimizer.state_dict()["state"].items():
            for key, value in state.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{index}.{key}"] = value
                else:
                    numbers[f"{index}.{key}"] = value
        tensors["random"] = torch.get_rng_state()
        if self.device.type == "cuda":
            tensors["random_cuda"] = torch.cuda.get_rng_state(self.device)
        for index, value in enumerate(as_tuple(self.state)):
            tensors[f"state.{index}"] = value
        tensors |= {f"batches.{key}": value for key, value in self.batches.state().items()}
        state = {
            "step": self.step,
            "rows": self.rows,
            "best": self.best,
            "final": self.final,
            "seconds": self.seconds,
            "cuts": self.schedule.cuts,
            "last_loss": self.last_loss,
            "optimizer": numbers,
            **self.data(),
        }
        self.directory.save_checkpoint(tensors, state)
        self.directory.save_weights(BEST, self.best_weights)
        self.directory.save_weights(LAST, self.model.state_dict())
        self.saved = time.perf_counter()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint. Remove the metrics that were logged after it."""
        tensors, state = checkpoint
        check_data(str(self.directory), state, self.task)
        try:
            self.model.load_state_dict(part(tensors, "model."))
            self.kept = part(tensors, "best.") if state["best"] else {}
            saved: dict[int, dict[str, Any]] = {}
            for key, value in [*part(tensors, "optimizer.").items(), *state["optimizer"].items()]:
                index, name = key.split(".", 1)
                saved.setdefault(int(index), {})[name] = value
            self.optimizer.load_state_dict(self.optimizer.state_dict() | {"state": saved})
            self.schedule.take_up(state["step"], state["cuts"])
            torch.set_rng_state(tensors["random"])
            if self.device.type == "cuda" and "random_cuda" in tensors:  # the run may have begun on another device
                torch.cuda.set_rng_state(tensors["random_cuda"], self.device)
            states = part(tensors, "state.")
            carried = tuple(states[str(index)].to(self.device) for index in range(len(states)))  # in numerical order
            self.state = (carried[0] if len(carried) == 1 else carried) if carried else None
            self.batches.restore(part(tensors, "batches."))
            self.step, self.rows, self.seconds_before = state["step"], state["rows"], state["seconds"]
            self.best, self.final, self.last_loss = state["best"], state["final"], state["last_loss"]
        except (KeyError, ValueError, RuntimeError) as error:
            path = self.directory.file(CHECKPOINT)
            raise RunError(f"{path} does not fit these settings: {str(error).splitlines()[0]}") from error
        self.directory.keep_rows(self.rows)

    def data(self) -> dict[str, str]:
        """Return the fingerprint of the training data as ``data``; an empty dict if the task has none."""
        found = self.task.fingerprint if isinstance(self.task, DataTask) else None
        return {} if found is None else {"data": found}

    def result(self, status: str, why: str | None) -> dict[str, Any]:
        """Return the content of ``result.json``, without the test."""
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


def usable(device: str | torch.device) -> torch.device:
    """Return the device, or raise ValueError if this machine does not have it or it is the meta device."""
    try:
        found = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"training expects a device that is here; got {device}: {str(error).splitlines()[0]}"
        ) from None
    if found.type == "meta":
        raise ValueError(f"training expects a device that has numbers; got {device}")
    return found


def readings(model: nn.Module) -> dict[str, float]:
    """Return the readings of the model's matrices. If several matrices have the same reading, return the largest."""
    found: dict[str, float] = {}
    for module in model.modules():
        if isinstance(module, Matrix):
            found |= {key: max(value, found.get(key, value)) for key, value in module.readings().items()}
    return found


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with the prefix, by the rest of their names."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def detached(state: State) -> State:
    return tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()
