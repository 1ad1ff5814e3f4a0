"""Write results/enrnn-2020/timit/references.json: scores of predictions without learning, on the sample of TIMIT.

STEADYGRAD_DATA=folder python docs/speech.py
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Generator, Tensor, nn

from steadygrad import files
from steadygrad.tasks import TIMIT
from steadygrad.tasks.speech_quality import score_predictions

REFERENCES = Path(__file__).parent.parent / "results" / "enrnn-2020" / "timit" / "references.json"


class Rule(nn.Module):
    """Wrap a function from inputs to predictions (1, time, 129) as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs)


def references() -> dict[str, dict[str, float]]:
    task = TIMIT(corpus="sample")
    found = {
        "the mean frame of the training data": Rule(torch.zeros_like),
        "the last frame again": Rule(lambda inputs: inputs),
        **{
            f"the right one, with normal errors of {variance} dB²": with_errors(task, variance)
            for variance in (5.4, 0.13)
        },
    }
    return {
        name: {key: number for key, number in score_predictions(rule, task).items() if key != "sentences"}
        for name, rule in found.items()
    }


def with_errors(task: TIMIT, variance: float) -> Rule:
    """Return a rule that predicts the targets, sentence by sentence, with normal noise in dB."""
    generator, sentences = Generator().manual_seed(0), iter(task.part("test").frames)

    def right(inputs: Tensor) -> Tensor:
        decibels = next(sentences)[1:]
        return task.normalise(decibels + variance**0.5 * torch.randn(decibels.shape, generator=generator))[None]

    return Rule(right)


if __name__ == "__main__":
    files.write(REFERENCES, json.dumps(references(), indent=1, ensure_ascii=False) + "\n")
    print(REFERENCES.read_text("utf-8"))
