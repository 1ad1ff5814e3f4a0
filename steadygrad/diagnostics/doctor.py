"""The doctor: measures a recurrent network on data, then reports in words what it found and what to try."""

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from steadygrad.diagnostics.flow import (
    STEPS,
    Jacobians,
    as_tuple,
    attends,
    half_life,
    jacobians,
    looking_at,
    shortened,
)
from steadygrad.diagnostics.gradients import gradient_norms, growth_back
from steadygrad.diagnostics.memory import attention_map
from steadygrad.layers import Cell
from steadygrad.matrices import Matrix, NonFiniteError
from steadygrad.matrices.measures import largest_singular_values, orthogonality_error, spectral_radius

SEQUENCES = 4
"""largest number of sequences of the batch that are measured"""
KEPT = 1e-3
"""growth or decay per step that is too small to matter at usual sequence lengths"""
SATURATED = 0.99
"""absolute value above which an output counts as saturated"""
LEAST = 2
"""smallest number of steps on which growth can be measured"""
DRIFTED = 1e-3
"""‖WᵀW − I‖ that is too large to be rounding in single precision"""


@dataclass(frozen=True)
class Finding:
    """One statement about a network in words: ``what`` was found, ``advice`` on what to try, and how ``sure`` it is.

    ``advice`` may be empty. ``str`` joins all three.
    """

    what: str
    advice: str
    sure: str
    """certain: follows from the numbers; likely: the sequences agree; unsure: the sequences disagree;
    from one sequence: there was no second sequence to compare with"""

    def __str__(self) -> str:
        return f"{self.what} ({self.sure}). {self.advice}".strip()


@dataclass(frozen=True)
class Diagnosis:
    """The result of `diagnose`: the measured ``numbers`` and the ``findings`` drawn from them. ``str`` gives both.

    ``name`` is the class of the network. ``numbers`` is a dict of means over the sequences (the keys of `measure`),
    with ``half_life``, ``sequences``, ``steps`` (measured), ``of_steps`` (of the whole sequences) and those of
    `matrix_numbers`.
    """

    name: str
    numbers: dict[str, float]
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        lines = [self.name, *(f"- {finding}" for finding in self.findings), ""]
        width = max(map(len, self.numbers))
        return "\n".join([*lines, *(f"{name:{width}}  {value:.4g}" for name, value in self.numbers.items())])


def diagnose(module: nn.Module, x: Tensor) -> Diagnosis:
    """Return a `Diagnosis` of why a recurrent ``module`` remembers or forgets on inputs like x.

    The module is called like torch.nn.RNN, GRU or LSTM. x has the shape that the module expects: (time, batch, inputs),
    (batch, time, inputs) with ``batch_first``, or (time, inputs) for one sequence. A few sequences are enough. They
    should resemble the training sequences and have the same length. The module is measured in evaluation mode and not
    changed. Raise ValueError for a bidirectional module or another shape of x, NonFiniteError for parameters or early
    states that are NaN or infinite.
    """
    batch = batch_first(module, x)
    sequences = pick(module, batch)
    return conclude(module, sequences, [measure(module, sequence) for sequence in sequences], batch.shape[1])


def conclude(module: nn.Module, sequences: list[Tensor], measured: list[dict[str, float]], of_steps: int) -> Diagnosis:
    """Return the `Diagnosis` of a module from what was ``measured`` on ``sequences``.

    ``measured`` has one dict of `measure` for each sequence (time, inputs). The sequences may be only the first steps
    of longer ones, which have ``of_steps`` steps.
    """
    numbers = {key: statistics.fmean(one[key] for one in measured) for key in measured[0]}
    numbers["half_life"] = half_life(numbers["exponent"])
    numbers |= {"sequences": len(sequences), "steps": len(sequences[0]), "of_steps": of_steps}
    numbers |= matrix_numbers(module)
    agreed = agreement([one["exponent"] for one in measured])
    findings = [finding for look in LOOKS for finding in look(numbers, agreed)]
    return Diagnosis(type(module).__name__, numbers, tuple(findings))


def agreement(exponents: list[float]) -> str:
    """Return how reliable the mean of the exponents is: "likely", "unsure" or "from one sequence".

    These are values of `Finding.sure`. The mean is "likely" if the standard deviation of the exponents is at most 0.001
    or 10 % of the mean.
    """
    if len(exponents) < 2:
        return "from one sequence"
    spread = statistics.pstdev(exponents)
    return "likely" if spread <= max(KEPT, 0.1 * abs(statistics.fmean(exponents))) else "unsure"


def random_sequences(module: nn.Module, size: int, steps: int = 200) -> Tensor:
    """Return normal random inputs with ``size`` features for a ``module`` that is to be diagnosed.

    The shape is (steps, 4, size), or (4, steps, size) if the module has batch_first. Dtype and device are those of the
    parameters. The seed is fixed. Raise ValueError if the module cannot be called like torch.nn.GRU.
    """
    like = next(module.parameters(), torch.zeros(()))
    x = torch.randn(SEQUENCES, steps, size, generator=torch.Generator().manual_seed(1)).to(like)
    x = x if getattr(module, "batch_first", False) else x.transpose(0, 1)
    try:
        with torch.no_grad():
            output, _ = module(x)
    except (RuntimeError, TypeError, ValueError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(
            f"diagnose expects a module that is called as torch.nn.GRU is; with {size} inputs: {reason}"
        ) from error
    if not isinstance(output, Tensor) or output.shape[:2] != x.shape[:2]:
        raise ValueError("diagnose expects a module whose first output has a row for each step, as torch.nn.GRU's")
    return x


def batch_first(module: nn.Module, x: Tensor) -> Tensor:
    """Return the input x of a module in the shape (batch, time, inputs).

    x is (time, inputs), (time, batch, inputs), or (batch, time, inputs) if the module has batch_first. Raise ValueError
    for any other number of dimensions, or if there is no sequence.
    """
    if x.dim() not in (2, 3):
        raise ValueError(f"diagnose expects x of 2 or 3 dimensions; got shape {tuple(x.shape)}")
    batch = x[None] if x.dim() == 2 else x if getattr(module, "batch_first", False) else x.transpose(0, 1)
    if not len(batch):
        raise ValueError(f"diagnose expects at least one sequence; got x of shape {tuple(x.shape)}")
    return batch


def pick(module: nn.Module, batch: Tensor) -> list[Tensor]:
    """Return the sequences of a batch (batch, time, inputs) that `diagnose` measures, as a list of (time, inputs).

    They are the first `SEQUENCES` sequences, cut to `STEPS` steps. For a large network they are fewer and shorter.
    """
    batch = batch[:SEQUENCES, :STEPS]
    steps = len(shortened(module, batch[0]))
    return list(batch[: max(1, SEQUENCES * steps // batch.shape[1]), :steps])


def measure(module: nn.Module, x: Tensor, flow: Jacobians | None = None) -> dict[str, float]:
    """Return measurements of a module along one sequence x (time, inputs) as a dict of floats by name.

    The keys are those of `jacobian_numbers`, or of `attention_numbers` for a layer that attends to its past states, and
    ``saturated`` (share of outputs above 0.99 in size; 0 unless all are at most 1), ``silent`` (share of outputs that
    are 0) and ``state_size``. Measurements go up to the first non-finite step; NonFiniteError as in `check_measurable`.
    ``flow`` is the sequence's Jacobians, if known.
    """
    with looking_at(module), torch.no_grad():
        batch = x[None] if getattr(module, "batch_first", False) else x[:, None]
        output, state = module(batch)
    steps = finite_steps(output.reshape(len(x), -1))
    if not attends(module):
        flow = flow or jacobians(module, x)
        steps = min(steps, finite_steps(flow.state.flatten(1)))
    if steps < len(x):
        check_measurable(module, steps, len(x))
        return measure(module, x[:steps])
    bounded = float(output.abs().max()) <= 1 + 1e-6
    return {
        **(attention_numbers(module, x) if flow is None else jacobian_numbers(flow)),
        "saturated": float((output.abs() > SATURATED).double().mean()) if bounded else 0.0,
        "silent": float((output.abs() < 1e-6).double().mean()),
        "state_size": float(sum(part.numel() for part in as_tuple(state))),
    }


def finite_steps(of_steps: Tensor) -> int:
    """Return how many rows of a matrix (time, ·), one per step, come before the first row with NaN or infinity."""
    return int(of_steps.isfinite().all(dim=1).long().cumprod(dim=0).sum())


def check_measurable(module: nn.Module, steps: int, of: int) -> None:
    """Raise NonFiniteError if a parameter is not finite or fewer than `LEAST` steps are finite.

    ``steps`` is the number of finite steps, ``of`` the number of all steps. Otherwise the network overflows only later,
    and the finite steps can be measured.
    """
    broken = [name for name, parameter in module.named_parameters() if not parameter.isfinite().all()]
    if broken or steps < LEAST:
        why = (
            f"NaN or infinity is in {', '.join(broken)}" if broken else "its parameters are finite, so it grows at once"
        )
        raise NonFiniteError(
            f"diagnose expects finite states; {type(module).__name__} has NaN or infinite states "
            f"from step {steps} of {of} on: {why}"
        )


def jacobian_numbers(flow: Jacobians) -> dict[str, float]:
    """Return three measurements of a sequence's Jacobians as a dict.

    They are ``exponent``, the largest Lyapunov exponent, ``kept_directions``, the share of exponents above −0.001, and
    ``input_gain``, the mean norm of ∂s_t/∂x_t.
    """
    return {
        "exponent": float(flow.exponents[0]),
        "kept_directions": float((flow.exponents > -KEPT).double().mean()),
        "input_gain": float(largest_singular_values(flow.input).mean()),
    }


def attention_numbers(layer: nn.Module, x: Tensor) -> dict[str, float]:
    """Return measurements of a layer that attends to its past states, along one sequence x (time, inputs), as a dict.

    ``exponent`` is the mean growth of log gradient norms per step back. For each level (stacked layer) i,
    ``attention_reach cells.i`` is how many steps back it attends on average, and ``attention_to_kept cells.i`` the
    share of attention to states kept as relevant, if the memory keeps such states.
    """
    numbers = {"exponent": growth_back(gradient_norms(layer, x))}
    for level, found in enumerate(attention_map(layer, x)):
        numbers[f"attention_reach cells.{level}"] = found.reach
        if (share := found.share_of_kept) is not None:
            numbers[f"attention_to_kept cells.{level}"] = share
    return numbers


@torch.no_grad()
def matrix_numbers(module: nn.Module) -> dict[str, float]:
    """Return a dict of ``spectral_radius <name>`` for every recurrent matrix of a module, by the name of its weight.

    Square blocks of a weight are called ``weight_hh_l0[0]`` and so on. A matrix that should be orthogonal also has
    ``orthogonality_error <name>``, and in half precision ``rounding <name>``, the error to expect.
    """
    found = {}
    for name, part in module.named_modules():
        if isinstance(part, Matrix):
            W = part.value()
            found[f"spectral_radius {name}"] = spectral_radius(W)
            if part.orthogonal:
                found[f"orthogonality_error {name}"] = orthogonality_error(W)
                if (rounding := len(W) * torch.finfo(W.dtype).eps) > DRIFTED:  # half precision
                    found[f"rounding {name}"] = rounding
    names: dict[Tensor, str] = {parameter: name for name, parameter in module.named_parameters()}
    for weight in [weight for part in module.modules() if isinstance(part, Cell) for weight in part.kinds()]:
        blocks = weight.split(weight.shape[1]) if weight in names else ()  # a tool may have put another in its place
        for i, W in enumerate(blocks):
            found[f"spectral_radius {names[weight]}" + (f"[{i}]" if len(blocks) > 1 else "")] = spectral_radius(W)
    return found


def memory(numbers: dict[str, float], agreed: str) -> Iterator[Finding]:
    """Yield one finding: how gradients grow or shrink over the whole sequence length.

    ``numbers`` are those of a `Diagnosis`. If the sequences are longer than the measured steps, the growth per step is
    extrapolated. ``agreed`` becomes ``sure`` of the finding: a string from `agreement`.
    """
    exponent, steps, measured = numbers["exponent"], numbers["of_steps"], numbers["steps"]
    first = "" if measured == steps else f", as measured on the first {measured:.0f} of {steps:.0f} steps"
    change = math.exp(min(exponent * steps, 700.0))
    if abs(exponent) * max(steps, STEPS) <= KEPT * STEPS:
        yield Finding(f"Nothing is lost: perturbations of the state neither grow nor shrink{first}", "", agreed)
    elif -math.log(2) < exponent * steps < math.log(10):
        text = f"Little is lost: over {steps:.0f} steps gradients change by a factor of {change:.2g}{first}"
        yield Finding(text, "", agreed)
    elif exponent > 0:
        every = math.log(10) / exponent
        yield Finding(
            f"Gradients grow tenfold every {every:.3g} steps, by {change:.2g} over {steps:.0f}{first}",
            "Clip them (train.clip 1.0) or take a layer whose matrix stays orthogonal: scornn, exprnn.",
            agreed,
        )
    else:
        every = -math.log(10) / exponent
        half = numbers["half_life"]
        gone = f"half of what it knew is gone after {half:.3g}, effective memory is about {every:.0f} steps"
        longer = (
            "an orthogonal or gated-orthogonal layer (nnrnn, enrnn, ncgru), attention over past states (relrnn, "
            "rellstm), or a larger forget_bias."
        )
        if any(key.startswith("attention_reach") for key in numbers):
            gone = "that is the mean of all states, and those that are attended to lose less"
            longer = "keep more states (relevant), or attend to all (memrnn, memlstm)."
        yield Finding(
            f"Gradients shrink tenfold every {every:.3g} steps; {gone}{first}",
            f"That is enough for sequences of {steps:.0f} steps." if every > steps else f"For longer memory: {longer}",
            agreed,
        )


def saturation(numbers: dict[str, float], agreed: str) -> Iterator[Finding]:
    """Yield a finding if more than 20 % of the states are saturated, and one if more than half of them are zero.

    ``numbers`` are those of a `Diagnosis`. ``agreed`` is not used: these findings are certain.
    """
    if numbers["saturated"] > 0.2:
        yield Finding(
            f"{100 * numbers['saturated']:.0f} % of the states are saturated (above {SATURATED} in size)",
            "No gradient passes through a saturated unit: smaller weights, smaller inputs, or modReLU instead of tanh.",
            "certain",
        )
    if numbers["silent"] > 0.5:
        yield Finding(
            f"{100 * numbers['silent']:.0f} % of the states are zero",
            "These units carry nothing: start the bias higher, or make the inputs larger.",
            "certain",
        )


def constraint(numbers: dict[str, float], agreed: str) -> Iterator[Finding]:
    """Yield a finding for each matrix that should be orthogonal and is not.

    ``numbers`` are those of a `Diagnosis`. ``agreed`` is not used: these findings are certain.
    """
    for key, error in numbers.items():
        kind, _, name = key.partition(" ")
        if kind == "orthogonality_error" and not error <= numbers.get(f"rounding {name}", DRIFTED):
            yield Finding(
                f"{name} is no longer orthogonal: ‖WᵀW − I‖ = {error:.1e}",
                "It drifted. Solve exactly more often (reset_every) or use the exponential or the exact Cayley map.",
                "certain",
            )


def attention(numbers: dict[str, float], agreed: str) -> Iterator[Finding]:
    """Yield a finding for each level that attends to past states: how many steps back on average.

    ``numbers`` are those of a `Diagnosis`. ``agreed`` is not used: these findings are certain.
    """
    for key, reach in numbers.items():
        kind, _, name = key.partition(" ")
        if kind == "attention_reach":
            kept = numbers.get(f"attention_to_kept {name}")
            share = "" if kept is None else f", {100 * kept:.0f} % of its attention goes to states kept as relevant"
            yield Finding(f"{name} attends to states {reach:.3g} steps back on average{share}", "", "certain")


LOOKS: tuple[Callable[[dict[str, float], str], Iterator[Finding]], ...] = (memory, attention, saturation, constraint)
