"""Numbers that explain a network. No plotting here."""

from steadygrad.diagnostics.doctor import Diagnosis, Finding, diagnose
from steadygrad.diagnostics.fisher import (
    chain,
    delay_line_curve,
    feedforward_bound,
    fisher_memory_curve,
    fisher_memory_matrix,
)
from steadygrad.diagnostics.flow import (
    Jacobians,
    gradient_norms,
    half_life,
    input_map,
    input_maps,
    jacobians,
    lyapunov_exponents,
    state_blocks,
)
from steadygrad.diagnostics.gates import GateBound, gate_bound
from steadygrad.diagnostics.portrait import observe, portrait, recurrent_matrices
from steadygrad.diagnostics.spectrum import Spectrum, power_norms, pseudospectral_radius, spectrum
from steadygrad.diagnostics.transients import LearnedSchur, learned_schur, trajectories, unit_triangular

__all__ = [
    "Diagnosis",
    "Finding",
    "GateBound",
    "Jacobians",
    "LearnedSchur",
    "Spectrum",
    "chain",
    "delay_line_curve",
    "diagnose",
    "feedforward_bound",
    "fisher_memory_curve",
    "fisher_memory_matrix",
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
    "recurrent_matrices",
    "spectrum",
    "state_blocks",
    "trajectories",
    "unit_triangular",
]
