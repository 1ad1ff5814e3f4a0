"""The loops compute what the layer computes, and growth is measured, judged and left out as it says."""

import copy
import json

import pytest
import torch

from benchmarks import attention
from benchmarks.attention import LONG, LOOPS, OURS, SHORT, TORCH, Growth, Loops, contenders, key, tables
from benchmarks.contenders import Size
from benchmarks.timing import interleave
from steadygrad.diagnostics import attention_map
from steadygrad.layers import RelRNN


def test_python_loops_match_layer_outputs_and_gradients():
    layer = RelRNN(3, 5, short=3, relevant=2).double()
    layer.weight_score_l0.data *= 40  # so that attention chooses
    loops = Loops(copy.deepcopy(layer))
    x, G = torch.randn(15, 4, 3, dtype=torch.float64), torch.randn(15, 4, 5, dtype=torch.float64)
    kept = [attention_map(layer, x[:, b])[0].kept_at_end.tolist() for b in range(4)]
    assert len({tuple(states) for states in kept}) > 1  # sequences choose on their own
    ours, theirs = layer(x)[0], loops(x)[0]
    torch.testing.assert_close(ours, theirs)
    ours.backward(G)
    theirs.backward(G)
    for one, other in zip(layer.parameters(), loops.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_update_benchmark_times_all_three_contenders():
    timings = interleave(list(contenders(Size(2, 6, 4, 3))), seconds=0, least=1, warmup=1, turn=0)
    assert all(timings.spread(name).median > 0 for name in (OURS, LOOPS, TORCH))


def growth_with_one_layer(lengths, seconds, bytes, name="sab"):
    found = Growth(lengths)
    for length in lengths[:-1]:
        found.add(name, length, 0, {"seconds": seconds, "bytes": bytes})
    return found


def test_length_is_skipped_if_quadratic_extrapolation_exceeds_limits():
    found = growth_with_one_layer([100, 300], 2.0, 10)
    assert found.too_much("sab", 100, 0.1, 1) is None  # nothing to judge by
    assert found.too_much("sab", 300, 18.0, 90) is None
    assert "take up to 18 s" in found.too_much("sab", 300, 17.9, 90)
    assert "need up to" in found.too_much("sab", 300, 18.0, 89)


def test_lengths_after_a_skipped_length_are_skipped():
    found = growth_with_one_layer([100, 300, 600], 2.0, 10)
    found.left_out["sab", 300] = "too long"
    assert found.too_much("sab", 600, 1e9, 1e9) == "too long"


def test_growth_row_takes_ratios_within_each_round():
    found = Growth([SHORT, LONG])
    for round, slow in enumerate((1.0, 3.0, 1.0)):  # the machine was busy in the second
        for length, seconds in ((SHORT, 0.5), (LONG, 2.0)):
            found.add("rnn", length, round, {"seconds": slow * seconds, "bytes": length * 2**20})
    row = found.row("rnn")
    assert row["ratio"]["seconds"]["median"] == row["ratio"]["seconds"]["most"] == 4
    assert row["ratio"]["megabytes"] == 4
    assert row["megabytes"] == {SHORT: 1000, LONG: 4000}
    found.left_out["rnn", LONG] = "why"
    row = found.row("rnn")
    assert row["ratio"] == {"seconds": None, "megabytes": None}
    assert row["left_out"] == {LONG: "why"}


@pytest.fixture
def fake_processes(monkeypatch):
    """Processes that need as many seconds as bytes, and die of a length of 3."""
    asked = []

    def measured(name, length, threads):
        asked.append(key(name, length))
        if length == 3:
            raise RuntimeError("it failed (-9): the system ended it")
        return {"seconds": 1.0 * length, "bytes": length * 2**20}

    monkeypatch.setattr(attention, "in_fresh_process", measured)
    return asked


def test_growth_command_prints_table_and_writes_json_and_figure(fake_processes, tmp_path, capsys):
    target, figure = tmp_path / "a.json", tmp_path / "a.svg"
    options = ["--only", "growth", "--layers", "rnn,relrnn", "--lengths", "2,1,3,4", "--rounds", "2", "--threads", "1"]
    attention.main([*options, "--json", str(target), "--figure", str(figure)])
    both = ["rnn 1", "relrnn 1", "rnn 2", "relrnn 2"]
    assert fake_processes == [*both, "rnn 3", "relrnn 3", *both]  # what failed once is not tried again
    said = capsys.readouterr().out
    assert "| relrnn | 1 | 2 | – | – | – |" in said
    assert "rnn, T = 4: left out; it failed (-9): the system ended it" in said
    found = json.loads(target.read_text())
    assert found["growth"]["rows"][1]["megabytes"] == {"1": 1.0, "2": 2.0}
    assert found["versions"]["torch"]
    assert figure.read_text().startswith("<?xml")
    attention.main(["--load", str(target)])
    assert capsys.readouterr().out == said


def test_fresh_process_measures_seconds_and_bytes():
    """Measure a small layer in a real process."""
    found = attention.in_fresh_process("relrnn", 5, 1)
    assert found["seconds"] > 0
    assert found["bytes"] > 0


def test_failing_process_raises_exit_code_and_last_stderr_line(monkeypatch, tmp_path):
    """The error has the exit code and the last line of stderr.

    A script that imports nothing stands in for the benchmark, whose own error is checked in this process.
    """
    with pytest.raises(KeyError, match="unheard-of"):
        attention.main(["--one", "unheard-of", "5"])
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "attention.py").write_text("import sys\nraise KeyError(sys.argv[2])\n")
    monkeypatch.setattr(attention, "ROOT", tmp_path)
    with pytest.raises(RuntimeError, match=r"it failed \(1\): KeyError: 'unheard-of'"):
        attention.in_fresh_process("unheard-of", 5, 1)


def test_update_table_has_milliseconds_and_ratios():
    ratios = {"a / b": {"median": 2.0}}
    size = {"batch": 10, "time": 220, "hidden": 128, "inputs": 10}
    (table,) = tables({"update": {"size": size, "seconds": {"a": {"median": 0.02}}, "ratios": ratios}})
    assert (table.rows, table.notes) == ([["a", "20.0"]], ("a / b: 2",))


@pytest.mark.parametrize("words", [["--layers", "rnn,gpt"], ["--lengths", "5,0"], ["--figure", "nowhere/a.svg"]])
def test_invalid_arguments_exit_with_error(words, capsys):
    with pytest.raises(SystemExit):
        attention.main(words)
    assert "expects" in capsys.readouterr().err
