"""`steadygrad.diagnostics.theory` from Python: numbers, tables and the figures of the same names."""

import pytest

from steadygrad.diagnostics import theory
from steadygrad.report import theory_figures

SMALL = {
    "fisher": {"size": 8},
    "transients": {"size": 8, "samples": 4},
    "powers": {"size": 3, "steps": 40},
    "attention": {"eigenvalues": [0.5], "kappa": [2], "depth": 1, "steps": 40},
}


@pytest.mark.parametrize("name", SMALL)
def test_theory_result_has_tables_and_figure_arguments(tmp_path, name):
    found = getattr(theory, name)(**SMALL[name])
    for table in found.tables:
        assert [list(record) for record in table.records()] == [list(table.columns)] * len(table.rows)
        assert all(isinstance(cell, str) for row in table.cells() for cell in row)
    path = getattr(theory_figures, name)(**found.curves, path=tmp_path / "figure.svg")
    assert path.exists()


def test_powers_table_matches_binomial_coefficients():
    (table,) = theory.powers(size=2, x=2.0, steps=30).tables
    ((size, degree, slope, norm, leading),) = table.rows
    assert (size, degree, leading) == (2, 1, 60)
    assert norm == pytest.approx(60, rel=1e-3)
    assert slope == pytest.approx(1, rel=1e-2)
