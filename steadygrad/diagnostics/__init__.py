"""Measurements that explain how a recurrent network behaves. Plotting is in `steadygrad.report`."""

from steadygrad.diagnostics.attention import (
    attention_gradients,
    cancelling_attention,
    dependency_depths,
    relay_attention,
    sparse_attention,
    sparse_attention_bound,
    uniform_attention,
    uniform_attention_rate,
)
from steadygrad.diagnostics.doctor import Diagnosis, Finding, diagnose, random_sequences
from steadygrad.diagnostics.fisher import (
    chain,
    delay_line_curve,
    feedforward_bound,
    fisher_memory_curve,
    fisher_memory_matrix,
    ganguli_bound,
)
from steadygrad.diagnostics.flow import (
    Jacobians,
    half_life,
    input_map,
    input_maps,
    jacobians,
    lyapunov_exponents,
    state_blocks,
)
from steadygrad.diagnostics.gates import GateBound, gate_bound
from steadygrad.diagnostics.gradients import batch_gradient_norms, gradient_norms
from steadygrad.diagnostics.memory import AttentionMap, attention_map
from steadygrad.diagnostics.portrait import observe, portrait, recurrent_matrices
from steadygrad.diagnostics.spectrum import Spectrum, power_norms, pseudospectral_radius, spectrum
from steadygrad.diagnostics.transients import LearnedSchur, learned_schur, trajectories, unit_triangular

__all__ = [
    "AttentionMap",
    "Diagnosis",
    "Finding",
    "GateBound",
    "Jacobians",
    "LearnedSchur",
    "Spectrum",
    "attention_gradients",
    "attention_map",
    "batch_gradient_norms",
    "cancelling_attention",
    "chain",
    "delay_line_curve",
    "dependency_depths",
    "diagnose",
    "feedforward_bound",
    "fisher_memory_curve",
    "fisher_memory_matrix",
    "ganguli_bound",
    "gate_bound",
    "gradient_norms",
    "half_life",
    "input_map",
    "input_maps",
    "jacobians",
    "learned_schur",
    "lyapunov_exponents",
    "observe",
    "portrait",
    "power_norms",
    "pseudospectral_radius",
    "random_sequences",
    "recurrent_matrices",
    "relay_attention",
    "sparse_attention",
    "sparse_attention_bound",
    "spectrum",
    "state_blocks",
    "trajectories",
    "uniform_attention",
    "uniform_attention_rate",
    "unit_triangular",
]
