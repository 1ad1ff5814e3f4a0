"""Text that a trained language model generates."""

from collections.abc import Iterator
from itertools import islice

from steadygrad.models import LanguageModel
from steadygrad.tasks import TextTask
from steadygrad.training import RunDirectory, load_model, stream


def generate_text(
    directory: RunDirectory,
    prompt: str = "\n",
    length: int = 500,
    *,
    temperature: float = 1.0,
    seed: int = 0,
    weights: str = "best",
) -> Iterator[str]:
    """Yield strings: the prompt, then one for each of ``length`` tokens that a trained language model generates.

    With temperature 0 each token is the most likely one; with 1 tokens have the probabilities of the model. A
    memory of past states is emptied after every ``train.window`` tokens, as in training. Raise ValueError if the run is
    not on a text.
    """
    model, task, settings = load_model(directory, weights=weights)
    if not isinstance(task, TextTask) or not isinstance(model, LanguageModel):
        raise ValueError(f"generate expects a run on a text; {directory} is one on {settings.task['name']}")
    start = task.encode(prompt)
    tokens = model.generate(start, temperature, stream(seed, "generate"), window=settings.train.window)
    yield task.decode(start.tolist()).lstrip("\n")  # each word ends with a space, as generated words do
    for token in islice(tokens, length):
        yield task.decode([token])
