"""Fast loops over whole sequences. Each loop has a reference implementation, against which it is tested."""

from steadygrad.kernels.activations import (
    ACTIVATIONS,
    COMPLEX_MODRELU,
    SMOOTHED_COMPLEX_MODRELU,
    activate,
    complex_modrelu,
    modrelu,
)
from steadygrad.kernels.attention import attentive_unroll
from steadygrad.kernels.attention_operator import attentive_traced
from steadygrad.kernels.attention_types import Attention, Carried, Recurrence
from steadygrad.kernels.backend import describe, has_c, runs_in_c
from steadygrad.kernels.elman import ElmanInputs, Operator, elman_unroll, elman_unroll_reference, operator_unroll
from steadygrad.kernels.exponential import exponential_backward, exponential_forward
from steadygrad.kernels.gru import GRUInputs, gru_unroll, gru_unroll_reference
from steadygrad.kernels.lstm import LSTMInputs, lstm_unroll, lstm_unroll_reference
from steadygrad.kernels.native import trim
from steadygrad.kernels.plain import (
    at_least_single,
    autocasts,
    has_operator,
    in_own_precision,
    needs_plain,
    own_precision,
    portable,
    traced,
    wants_graph,
    with_graph,
)
from steadygrad.kernels.products import matmul
from steadygrad.kernels.shared import Shared
from steadygrad.kernels.steps import Steps
from steadygrad.kernels.stream import Chain, States, StreamLevel, streams_in_c
from steadygrad.kernels.traced import TracedSteps, padded_steps, untraced
from steadygrad.kernels.unroll import scanned, unroll, unroll_rows

__all__ = [
    "ACTIVATIONS",
    "COMPLEX_MODRELU",
    "SMOOTHED_COMPLEX_MODRELU",
    "Attention",
    "Carried",
    "Chain",
    "ElmanInputs",
    "GRUInputs",
    "LSTMInputs",
    "Operator",
    "Recurrence",
    "Shared",
    "States",
    "Steps",
    "StreamLevel",
    "TracedSteps",
    "activate",
    "at_least_single",
    "attentive_traced",
    "attentive_unroll",
    "autocasts",
    "complex_modrelu",
    "describe",
    "elman_unroll",
    "elman_unroll_reference",
    "exponential_backward",
    "exponential_forward",
    "gru_unroll",
    "gru_unroll_reference",
    "has_c",
    "has_operator",
    "in_own_precision",
    "lstm_unroll",
    "lstm_unroll_reference",
    "matmul",
    "modrelu",
    "needs_plain",
    "operator_unroll",
    "own_precision",
    "padded_steps",
    "portable",
    "runs_in_c",
    "scanned",
    "streams_in_c",
    "traced",
    "trim",
    "unroll",
    "unroll_rows",
    "untraced",
    "wants_graph",
    "with_graph",
]
