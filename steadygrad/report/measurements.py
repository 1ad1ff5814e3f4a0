"""The measurements of networks in the files of a run: their types, and readers that check them."""

from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from steadygrad.files import RunError
from steadygrad.records import Rows, Rule, read_json, read_lines


def is_triangle(rows: list[list[Any]]) -> bool:
    """Return whether the rows are those of a lower triangular matrix up to the diagonal."""
    return bool(rows) and all(len(row) == place for place, row in enumerate(rows, 1))


def is_square(rows: list[list[Any]]) -> bool:
    """Return whether the rows are those of a square matrix."""
    return bool(rows) and all(len(row) == len(rows) for row in rows)


def are_exponents(rows: list[list[float | None]]) -> bool:
    """Return whether each entry of ``rows`` is None or between −323.4 and 308, as logarithms of positive doubles are.

    The rows are lists of base-10 logarithms of norms, as in a `LogarithmMap`. None stands for the norm 0.
    """
    return all(value is None or -323.4 < value < 308 for row in rows for value in row)


def are_images(images: list[list[list[str]]]) -> bool:
    """Return whether each image has one or three channels, all of the same size, of hexadecimal digits."""
    return all(
        len(channels) in (1, 3)
        and len({len(channel) for channel in channels}) == 1
        and len({len(line) for channel in channels for line in channel}) == 1
        and all(line and set(line) <= set("0123456789abcdef") for channel in channels for line in channel)
        for channels in images
    )


Positive = Annotated[int, Rule(lambda value: value > 0, "a positive integer")]
Numbers = Annotated[list[float | None], Rule(bool, "at least one number")]
TRIANGLE = Rule(is_triangle, "rows of 1, 2, 3, … numbers")
LogarithmMap = Annotated[list[list[float | None]], TRIANGLE, Rule(are_exponents, "logarithms to base 10 of doubles")]
"""base-10 logarithms of norms, row by row up to the diagonal; null for the norm 0"""


class Eigenvalues(TypedDict):
    """Eigenvalues of a recurrent matrix as [real parts, imaginary parts], for a real matrix those with Im ≥ 0."""

    eigenvalues: Annotated[
        list[list[float]],
        Rule(lambda parts: len(parts) == 2 and len(parts[0]) == len(parts[1]) > 0, "two lists of the same length"),
    ]
    complex: NotRequired[bool]


class MatrixObservation(Eigenvalues):
    """A recurrent matrix during training: eigenvalues, distance from orthogonal, departure from normality."""

    orthogonality_error: float | None
    departure: float | None


class MatrixPortrait(Eigenvalues):
    """A recurrent matrix after training: eigenvalues and norms of its powers."""

    powers: Numbers


class AttentionObservation(TypedDict):
    """Attention of one level (stacked layer) along a sequence, measured during training.

    ``reach`` is the mean number of steps that attention goes back. ``share_of_kept`` is the share of attention to the
    states that the memory keeps as relevant; None if the memory has no place for them. ``kept_at_end`` are the time
    steps, counted from 0, of the states that are kept as relevant after the last step.
    """

    reach: float | None
    share_of_kept: float | None
    kept_at_end: list[int]


class AttentionPortrait(AttentionObservation):
    """Attention of one level after training: an `AttentionObservation` with the keys ``map`` and ``kept`` added.

    ``map`` is log₁₀ |α| of the attention α of each step (row) to each state (column), or of blocks of steps and states.
    ``kept`` is a list of [state, first step, last step], one for each period in which a state is kept as relevant.
    """

    map: LogarithmMap
    kept: Annotated[list[list[int]], Rule(lambda stays: all(len(stay) == 3 for stay in stays), "lists of 3 integers")]


class GateObservation(TypedDict):
    """Gates during training: measured steps, whether the bound holds, the largest gain of a step and its bound.

    The gain of a step is ‖∂h_t/∂h_{t−1}‖, and the bound that of theorem 1 of NC-GRU.
    """

    steps: int
    holds: bool
    largest: float | None
    largest_bound: float | None


class GatePortrait(TypedDict):
    """Gates after training: the gain ‖∂h_t/∂h_{t−1}‖ of each step (``true``) and its upper ``bound``."""

    true: Numbers
    bound: Numbers


class SchurPortrait(TypedDict):
    """A learned Schur form Λ + T: T row by row, the angles and moduli of Λ, and how large T is.

    nnRNN's matrix is P (Λ + T) Pᵀ: Λ has the rotations, and T is lower triangular. With ``T_every`` above 1, an entry
    of ``T`` stands for a block of that many rows and columns.
    """

    T: Annotated[list[list[float]], TRIANGLE]
    T_every: NotRequired[Positive]
    angles: list[float]
    moduli: Annotated[list[float], Rule(bool, "at least one number")]
    transient_share: float
    mean_by_subdiagonal: list[float | None]


class Finding(TypedDict):
    """A finding of `diagnose` as texts: what was found, what to try, and how sure the finding is."""

    what: str
    advice: str
    sure: str


class Similarity(TypedDict):
    """How a network relates the objects of one problem, with images of the objects.

    ``matrix`` has the relation of each pair of objects, ``answer`` is the right answer, ``answered`` the network's.
    """

    matrix: Annotated[list[list[float | None]], Rule(is_square, "the rows of a square matrix")]
    images: Annotated[list[list[list[str]]], Rule(are_images, "images as lines of hexadecimal digits")]
    answer: int
    answered: int


class Observation(TypedDict):
    """A row of ``observations.jsonl``: measurements of a network during training, or why they failed."""

    step: int
    failed: NotRequired[str]
    matrices: NotRequired[dict[str, MatrixObservation]]
    gates: NotRequired[GateObservation]
    attention: NotRequired[list[AttentionObservation]]


class Portrait(TypedDict, total=False):
    """The content of ``portrait.json`` that is drawn: measurements of a trained network on one sequence."""

    step: int
    failed: str
    every: Positive
    input_maps: Annotated[dict[str, LogarithmMap], Rule(bool, "at least one map")]
    attention: Annotated[list[AttentionPortrait], Rule(bool, "at least one level")]
    output_gradients: Numbers
    loss_gradients: Numbers
    batch_gradients: Numbers
    exponents: Numbers
    numbers: dict[str, float | None]
    findings: list[Finding]
    matrices: dict[str, MatrixPortrait]
    schur: dict[str, SchurPortrait]
    gates: Annotated[
        GatePortrait, Rule(lambda found: len(found["true"]) == len(found["bound"]), "as many gains as bounds")
    ]
    similarity: Similarity


def read_portrait(path: Path) -> dict[str, Any]:
    """Return the content of a run's ``portrait.json``. Raise RunError if it is invalid."""
    portrait: dict[str, Any] = read_json(path, Portrait, "a portrait")
    if portrait.keys() & {"input_maps", "attention"} and "every" not in portrait:
        raise RunError(f"{path} is not a portrait: portrait has no every")
    return portrait


def read_observations(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's ``observations.jsonl``, without an incomplete last row.

    Raise RunError if a row is invalid. All rows must have the same matrices and the same number of levels with
    attention, unless measuring failed.
    """
    what = "a run's observations"
    rows = list(read_lines(path, Rows(Observation).fault, what))
    for key in ("matrices", "attention"):
        parts = [(row["step"], row[key]) for row in rows if key in row]
        for step, part in parts:
            first = parts[0][1]
            if (part.keys() != first.keys()) if key == "matrices" else (len(part) != len(first)):
                raise RunError(f"{path} is not {what}: {key} at update {step} are others than in the first row")
    return rows
