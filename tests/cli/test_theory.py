"""`steadygrad theory`: the tables it prints, the figures it draws, the input it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import steadygrad
from steadygrad.cli.main import main

FAST = {
    "fisher": ["--size", "12"],
    "transients": ["--size", "12", "--samples", "20"],
    "powers": ["--size", "3", "--steps", "40"],
    "attention": ["--steps", "60", "--eigenvalues", "-0.5", "0.4", "--kappa", "1", "3", "--depth", "1"],
}


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words):
        code = main(["theory", *map(str, words), "--threads", "1"])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def tables(run):
    def call(*words):
        code, out, err = run(*words, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)["tables"]

    return call


@pytest.mark.parametrize("what", FAST)
def test_theory_docs_page_contains_printed_tables(run, what):
    """When this fails: docs/theory.md has an old table."""
    page = (Path(steadygrad.__file__).parent.parent / "docs" / "theory.md").read_text("utf-8")
    code, out, err = run(what)
    assert (code, err) == (0, "")
    assert "\n".join(line.rstrip() for line in out.strip().splitlines()) in page


def test_fisher_prints_table_6(run):
    code, out, err = run("fisher")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["0.95"], ["1"], ["1.05"])]
    assert len(rows) == 12
    assert ["1", "0.005", "0", "5.301", "5.30", "+0.0"] in rows
    assert ["1.05", "0", "0.2", "20.84", "20.5", "+1.6"] in rows
    assert ["1.05", "0.005", "0.2", "20.88", "20.4", "+2.4"] in rows
    assert all(abs(float(difference)) < 2.5 for *_, difference in rows)
    assert "Ganguli's bound for 100 units is 100." in out
    assert "more care than an inverse in double precision" in out


def test_fisher_of_other_size_has_no_published_values(tables):
    (rows,) = tables("fisher", "--size", 12).values()
    assert len(rows) == 12
    assert {(row["printed"], row["difference, %"]) for row in rows} == {(None, None)}
    assert all(1 < row["J_tot"] < 12 for row in rows)


def test_transients_vanish_after_chain_length(tables):
    (rows,) = tables("transients", *FAST["transients"]).values()
    assert [row["at 12"] for row in rows] == [0] * 6
    grown = {(row["α"], row["β"]): row["largest"] for row in rows}
    assert grown[0.95, 0] == grown[1, 0] == pytest.approx(1)  # at the start
    assert grown[1.05, 0.005] > grown[1.05, 0] > 1


def test_power_norm_slope_equals_polynomial_degree(tables):
    (rows,) = tables("powers", "--size", 4, "--x", 2, "--steps", 800).values()
    assert [row["slope"] for row in rows] == pytest.approx([row["N"] - 1 for row in rows], rel=0.01)
    for row in rows:
        assert row["‖Wᵏ‖"] == pytest.approx(row["C(k, N−1) xᴺ⁻¹"], rel=0.02)


def test_attention_table_matches_theoretical_rates_and_bounds(tables):
    uniform, sparse = tables("attention", "--steps", 600, "--kappa", 1, 4, "--depth", 2).values()
    assert [row["λ"] for row in uniform] == [-0.5, 0, 0.3, 0.5, 0.6]
    for row in uniform:
        assert row["slope"] == pytest.approx(row["λ/(1−λ) − 1"], abs=0.005)
        assert row["Ω(1/T)"] == ("no" if row["λ"] < 0 else "yes")
    assert [row["no attention: steps to 1e-06"] for row in uniform] == [20, 1, 12, 20, 28]
    *relays, cancelled = sparse
    assert [(row["κ"], row["d"]) for row in relays] == [(kappa, d) for kappa in (1, 4) for d in (0, 1, 2)]
    for row in relays:
        assert row["gradient"] > row["λᵈ/κᵈ⁺¹"]
        assert row["to d − 1"] == (pytest.approx(1 / row["κ"]) if row["d"] else None)
    assert (cancelled["λ"], cancelled["d"], cancelled["gradient"]) == (-0.5, 1, 0)


@pytest.mark.parametrize(
    ("what", "words"),
    [("fisher", "bound, 12"), ("transients", "norm"), ("powers", "degree 2"), ("attention", "κ = 3")],
)
def test_every_theory_command_writes_figure(run, tmp_path, what, words):
    path = tmp_path / "deep" / "figure.svg"
    code, out, err = run(what, *FAST[what], "-o", path)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"drawn in {path}"
    assert words in path.read_text("utf-8")
    assert [found.name for found in path.parent.iterdir()] == ["figure.svg"]


def test_json_output_has_figure_path(run, tmp_path):
    path = tmp_path / "p.png"
    assert json.loads(run("powers", *FAST["powers"], "--json", "-o", path)[1])["figure"] == str(path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert json.loads(run("powers", *FAST["powers"], "--json")[1])["figure"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fisher --size 1", "theory fisher expects --size from 2 to 120; got 1"),
        ("fisher --size 200", "theory fisher expects --size from 2 to 120; got 200"),
        ("fisher --samples 3", "unknown argument '--samples'"),
        ("fisher --size 4 -o figure.gif", "theory fisher expects -o FILE.png or FILE.svg or FILE.pdf; got figure.gif"),
        ("transients --samples 0", "theory transients expects --samples from 2 to 1000; got 0"),
        ("powers --x -1", "theory powers expects --x above 0 and up to 10; got -1"),
        ("powers --x nan", "got nan"),
        ("attention --eigenvalues 0.5 1", "expects --eigenvalues between -1 and 1; got 0.5, 1"),
        ("attention --kappa 0", "expects --kappa from 1 to 100; got 0"),
        ("attention --layer.hidden_size 3", "unknown argument '--layer.hidden_size'"),
    ],
)
def test_invalid_input_exits_2_with_one_line_and_writes_no_files(run, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*words.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("words", "message"), [("", "required"), ("gravity", "invalid choice: 'gravity'")])
def test_argparse_error_is_one_line(capsys, words, message):
    with pytest.raises(SystemExit) as ended:
        main(["theory", *words.split()])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err


def test_help_needs_no_torch():
    code = (
        "import sys; from steadygrad.cli.main import main\n"
        "try: main(['theory', 'fisher', '--help'])\n"
        "finally: print(*(name for name in ('torch', 'matplotlib') if name in sys.modules))"
    )
    root = Path(steadygrad.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert "--size N" in done.stdout
    assert done.stdout.splitlines()[-1] == ""
