"""Numbers that explain a network. No plotting here."""

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
    jacobians,
    lyapunov_exponents,
)

__all__ = [
    "Jacobians",
    "chain",
    "delay_line_curve",
    "feedforward_bound",
    "fisher_memory_curve",
    "fisher_memory_matrix",
    "gradient_norms",
    "half_life",
    "input_map",
    "jacobians",
    "lyapunov_exponents",
]
