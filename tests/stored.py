"""A result as training writes it, for tests of what reads results."""

RESULT = {
    "layer": {"name": "gru"},
    "task": {"name": "copy"},
    "train": {"steps": 20},
    "seed": 0,
    "parameters": 39,
    "steps": 20,
    "best": None,
    "final": None,
    "score": "accuracy",
    "guessing_loss": 0.2,
    "wall_seconds": 1.5,
    "status": "done",
}
