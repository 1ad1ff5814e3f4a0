"""Papers' files without the checks of settings, which experiments/recipe.py makes."""

import pytest

from steadygrad import experiments
from steadygrad.catalog import papers


@pytest.mark.parametrize("name", papers.names())
def test_tables_rows_and_published_numbers_equal_those_of_recipes(name):
    file, paper = papers.load(name), experiments.load(name)
    assert file.header == paper.header
    found = [
        (table, row, content.caption, content.published(row))
        for table, content in file.tables.items()
        for row in content.rows
    ]
    assert found == [(r.table, r.row, r.caption, r.published) for r in paper.recipes]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("nnrn-2019", r"^no paper 'nnrn-2019'; known: .*; did you mean nnrnn-2019\?$"),
        ("demo/cop", r"^no table 'cop' in demo; known: copy; did you mean copy\?$"),
        ("demo/copy/lstmm", r"^no row 'lstmm' in demo/copy; known: nnrnn, lstm, rnn; did you mean lstm\?$"),
    ],
)
def test_unknown_paper_table_or_row_raises_value_error_with_closest_name(pattern, message):
    with pytest.raises(ValueError, match=message):
        papers.select(pattern)
