"""Tables and figures from result files alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import steadygrad
from steadygrad.cli.main import main
from steadygrad.experiments import select, summary
from steadygrad.report import figures, runs, tables
from steadygrad.report.thinning import Curve
from steadygrad.scores import read_listen, read_transfer
from tests.campaigns import report_files

RESULTS = Path(__file__).parents[2] / "results"


def write_run(folder, layer="gru", task="copy", seed=0, hidden=8, score="accuracy", values=(2.0, 1.0), **result):
    folder.mkdir(parents=True)
    rows = [{"step": 10 * i, "split": "valid", "loss": v, score: v / 2, "seconds": i} for i, v in enumerate(values, 1)]
    rows.append({"step": 1, "split": "train", "loss": 9.0, "seconds": 0})
    found = {
        "layer": {"name": layer, "hidden_size": hidden},
        "task": {"name": task, "delay": 5},
        "train": {"steps": 1500},
        "seed": seed,
        "parameters": 18953,
        "steps": 1500,
        "best": {"step": 20, "loss": 0.00054, score: 0.98765},
        "final": {"step": 10 * len(values), "loss": 0.00054, score: 0.98765} if values else None,
        "score": score,
        "higher_is_better": True,
        "guessing_loss": 0.17329,
        "wall_seconds": 125.4,
        "status": "done",
    }
    (folder / "result.json").write_text(json.dumps(found | result))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def is_png(path):
    content = path.read_bytes()
    return content.startswith(b"\x89PNG\r\n\x1a\n") and len(content) > 10_000


# tables


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.0, "0"),
        (0.98765, "0.988"),
        (1.0, "1"),
        (-0.25, "-0.25"),
        (123.4, "123"),
        (0.001, "0.001"),
        (0.00054321, "5.43e-04"),
        (-0.00054321, "-5.43e-04"),
        (12345.0, "1.23e+04"),
    ],
)
def test_numbers_have_three_digits(value, text):
    assert tables.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.98765, "0.9877"), (1, "1.0000"), (0.0005, "5.00e-04"), (0.0, "0")]
)
def test_scores_have_four_decimals(value, text):
    assert tables.score(value) == text


def test_markdown_aligns_numbers_and_escapes_bars():
    text = tables.markdown(["row", "loss"], [["a|b", "1"], ["two\nlines", 2]])
    assert text == "| row | loss |\n| --- | ---: |\n| a\\|b | 1 |\n| two lines | 2 |"
    assert tables.markdown(["a", "b", "c"], [], right_from=2).splitlines()[1] == "| --- | --- | ---: |"


def test_runs_table_has_one_row_per_run(tmp_path):
    write_run(tmp_path / "a", "nnrnn")
    write_run(tmp_path / "b", "lstm", status="diverged", best=None)
    header, rows = tables.runs_header_and_rows(runs.find([tmp_path]))
    assert header == ["run", "parameters", "updates", "best validation", "its loss", "guessing", "time", "ended"]
    assert rows == [
        ["nnrnn", "18,953", "1,500", "accuracy 0.9877", "5.40e-04", "0.173", "2 min 05 s", "done"],
        ["lstm", "18,953", "1,500", "accuracy –", "–", "0.173", "2 min 05 s", "diverged"],
    ]


def test_runs_table_has_test_column_for_data_sets(tmp_path):
    write_run(tmp_path / "a", "nnrnn", test={"loss": 0.5, "accuracy": 0.25})
    write_run(tmp_path / "b", "lstm", status="diverged")
    header, rows = tables.runs_header_and_rows(runs.find([tmp_path]))
    assert header[3:6] == ["best validation", "its loss", "test"]
    assert [row[3:6] for row in rows] == [
        ["accuracy 0.9877", "5.40e-04", "accuracy 0.2500"],
        ["accuracy 0.9877", "5.40e-04", "accuracy –"],
    ]


def paper_row(row="nnrnn", values=(0.5,), scores=None, status="done", **rest):
    scores = scores or [0.9] * len(values)
    found = [
        {
            "seed": i,
            "status": status,
            "value": v,
            "score": {"name": "accuracy", "value": s},
            "parameters": 18953,
            "guessing_loss": 0.17329,
            "seconds": 61.0,
        }
        for i, (v, s) in enumerate(zip(values, scores, strict=True))
    ]
    return {
        "paper": "p",
        "table": "t",
        "row": row,
        "caption": "Copy, T = 200",
        "layer": row,
        "scale": "desk",
        "reduced": "",
        "metric": "loss",
        "attained": "min",
        "counts": "best",
        "printed_parameters": "18.9K",
        "parameters": 18953,
        "guessing_loss": 0.17329,
        "published": 0.001,
        "ours": None,
        "runs": found,
        "seconds": 61.0,
        "note": "",
    } | rest


def cell(rows, column):
    header, body = tables.paper_header_and_rows(rows)
    assert {len(row) for row in body} == {len(header)}
    return [row[next(i for i, name in enumerate(header) if name.startswith(column))] for row in body]


def test_paper_table_has_published_and_measured_values():
    rows = [paper_row(values=(0.25,), ours=0.25), paper_row("lstm", published=None, values=(0.5,), ours=0.5)]
    assert cell(rows, "row") == ["nnrnn", "lstm"]
    assert cell(rows, "paper: loss") == ["0.001", "–"]
    assert cell(rows, "ours: loss") == ["0.25", "0.5"]
    assert cell(rows, "parameters") == ["18,953 (18.9K)"] * 2
    assert cell(rows, "accuracy") == ["0.9000"] * 2
    assert cell(rows, "seeds") == ["1"] * 2
    assert cell(rows, "time") == ["1 min 01 s"] * 2


def test_several_seeds_are_a_median_and_a_range():
    rows = [paper_row(values=(0.3, 0.1, 0.2), ours=0.2, scores=[0.0, 0.4, 0.2])]
    assert cell(rows, "ours: loss") == ["0.2 (0.1 … 0.3)"]
    assert cell(rows, "accuracy") == ["0.2000 (0 … 0.4000)"]
    assert cell(rows, "seeds") == ["3"]
    assert cell([paper_row(values=(0.1, 0.3), ours=0.2, scores=[0.2, 0.4])], "accuracy") == ["0.3000 (0.2000 … 0.4000)"]


def test_a_score_of_zero_is_a_score():
    assert cell([paper_row(scores=[0.0])], "accuracy") == ["0"]


def test_rows_without_value_show_reason():
    failed = paper_row("lstm", values=(None,), status="failed", parameters=None)
    failed["runs"][0] |= {"why": "no | disk", "score": None}
    rows = [paper_row(ours=0.5), failed, paper_row("ornn", values=(), parameters=None)]
    assert cell(rows, "ours: loss") == ["0.5", "–", "not run"]
    assert cell(rows, "accuracy") == ["0.9000", "–", "–"]
    assert cell(rows, "seeds") == ["1", "0, 1 failed", "–"]
    text = tables.paper_table(rows)
    assert "- lstm, seed 0: failed: no | disk" in text


def test_paper_table_has_caption_scale_and_notes():
    text = tables.paper_table([paper_row(ours=0.5, reduced="steps 100", note="their only seed")])
    assert text.startswith("Copy, T = 200. Loss of guessing: 0.173.\n\n| row | parameters |")
    assert "| nnrnn | " in text
    assert "desk: steps 100" in text
    assert "- nnrnn: their only seed" in text
    assert text.endswith("\n")


def test_paper_table_names_smoke_scale():
    text = tables.paper_table([paper_row(ours=0.5, reduced="steps 2", scale="smoke")])
    assert "smoke: steps 2" in text
    assert "desk" not in text


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({}, "the evaluation with the lowest validation loss"),
        ({"counts": "extreme"}, "the smallest value of all evaluations"),
        ({"counts": "extreme", "attained": "max"}, "the largest value of all evaluations"),
        ({"counts": "last", "attained": "max"}, "the last evaluation"),
        ({"counts": "test"}, "the test split, with the weights of the lowest validation loss"),
        (
            {"values": (0.1, 0.2)},
            "the evaluation with the lowest validation loss; of several seeds the median and the range",
        ),
    ],
)
def test_paper_notes_say_which_evaluation_counts(row, words):
    (note,) = tables.paper_notes([paper_row(**row)])
    assert note == f"Our numbers: {words}."


def test_paper_notes_list_reduced_settings_per_row():
    rows = [paper_row("enrnn", reduced="examples 20")]
    rows += [paper_row(name, reduced="examples 20, steps 40") for name in ("lstm", "scornn")]
    rows += [paper_row("gru", values=(), reduced="batch 3"), paper_row("rnn")]  # not run; as in the paper
    assert tables.paper_notes(rows)[1:] == [
        "Scale desk, enrnn: examples 20.",
        "Scale desk, lstm, scornn: examples 20, steps 40.",
    ]


@pytest.mark.parametrize(
    ("many", "few", "where"),
    [
        (40, 0, ""),
        (6, 1, ", many-0, many-1, many-2, many-3, many-4, many-5"),
        (7, 1, ", all but few-0"),
        (40, 7, ", all but few-0, few-1, few-2, few-3, few-4, few-5, few-6"),
        (40, 8, ", all but few-0, few-1, few-2, few-3, few-4, few-5 and 2 more"),
        (8, 9, ", many-0, many-1, many-2, many-3, many-4, many-5 and 2 more"),
    ],
)
def test_paper_notes_abbreviate_long_row_lists(many, few, where):
    rows = [paper_row(f"many-{i}", reduced="steps 40") for i in range(many)]
    rows += [paper_row(f"few-{i}") for i in range(few)]
    assert tables.paper_notes(rows)[1:] == [f"Scale desk{where}: steps 40."]


@pytest.mark.parametrize(
    ("published", "value", "attained", "expected"),
    [
        (0.0204, 0.020396, "max", "pass"),
        (0.0204, 0.020444, "min", "pass"),
        (1.0, 0.9995, "max", "pass"),
        (1.0, 0.9994, "max", "miss"),
        (0.5, 0.495, "max", "miss"),  # shown with all its digits
        (0.5, 0.5051, "min", "miss"),
        (5.43e-4, 5.434e-4, "min", "pass"),
        (123.0, 123.4, "min", "pass"),
        (0.0, 1e-9, "min", "miss"),
    ],
)
def test_verdict_compares_rounded_values(published, value, attained, expected):
    row = paper_row(values=(value,), published=published, attained=attained)
    assert tables.verdict(row) == expected


def test_verdict_is_omitted_for_different_task():
    assert tables.verdict(paper_row(same_task=True)) == "miss"
    assert tables.verdict(paper_row(same_task=False)) == "–"
    (timit, *_), (adding, *_) = (select(f"enrnn-2020/{table}") for table in ("timit", "adding"))
    rows = [summary(recipe, scale, [0], Path("nowhere")) for recipe in (timit, adding) for scale in ("desk", "paper")]
    assert [row["same_task"] for row in rows] == [False, True, True, True]


# the same weights on other settings


def transfer_row(row="lstm", theirs=(0.64, None), ours=((0.5, 0.25),), **rest):
    """Trained on delay 100, with accuracy 0.99 printed for it; ``ours`` by seed for delays 200 and 400."""
    names = ["delay 200", "delay 400"]
    found = paper_row(row, values=[1.0] * len(ours), metric="accuracy", attained="max", published=0.99)
    for run, values in zip(found["runs"], ours, strict=True):
        run["transfer"] = [{"name": n, "value": v, "examples": 500} for n, v in zip(names, values, strict=True)]
    tests = [{"name": name, "published": value} for name, value in zip(names, theirs, strict=True)]
    return found | {"trained_on": "delay 100", "transfer": tests} | rest


def test_transfer_table_has_one_column_per_setting():
    rows = [transfer_row(), transfer_row("relrnn", (0.99, 0.98), ((1.0, 0.5), (0.75, 0.0), (0.5, 0.25)))]
    header, body = tables.transfer_header_and_rows(rows)
    assert header == ["accuracy: paper / ours", "trained: delay 100", "delay 200", "delay 400"]
    assert body == [
        ["lstm", "0.99 / 1", "0.64 / 0.5", "– / 0.25"],
        ["relrnn", "0.99 / 1 (1 … 1)", "0.99 / 0.75 (0.5 … 1)", "0.98 / 0.25 (0 … 0.5)"],
    ]


def test_transfer_table_shows_dash_for_missing_values():
    """Not run, not built, no number; a row that is not tested on a setting has an empty cell."""
    other = [{"name": "delay 7", "published": 0.5}]
    rows = [
        transfer_row("none", ours=((None, None),)),
        transfer_row("waits", ours=()),
        transfer_row("sab", ours=(), missing="layer sab"),
        transfer_row("short", ours=(), transfer=other, trained_on="delay 5"),
    ]
    header, body = tables.transfer_header_and_rows(rows)
    assert header[1:] == ["trained: delay 100", "trained: delay 5", "delay 200", "delay 400", "delay 7"]
    assert body == [
        ["none", "0.99 / 1", "", "0.64 / –", "– / –", ""],
        ["waits", "0.99 / –", "", "0.64 / –", "– / –", ""],
        ["sab", "0.99 / –", "", "0.64 / –", "– / –", ""],
        ["short", "", "0.99 / –", "", "", "0.5 / –"],
    ]


def test_transfer_table_names_settings_in_rows_if_they_differ():
    """A column a setting would leave most of the table empty."""
    test = [{"name": "delay 200", "published": 0.5}]
    rows = [transfer_row(f"net-{T}", trained_on=f"delay {T}", transfer=test) for T in (100, 50)]
    header, body = tables.transfer_header_and_rows(rows)
    assert header == ["accuracy: paper / ours", "trained", "tested"]
    assert body == [[f"net-{T}", f"delay {T}: 0.99 / 1", "delay 200: 0.5 / 0.5"] for T in (100, 50)]


def test_transfer_table_without_published_values_shows_ours_only():
    header, body = tables.transfer_header_and_rows([transfer_row(theirs=(None, None), published=None)])
    assert header[0] == "accuracy"
    assert body == [["lstm", "1", "0.5", "0.25"]]


def test_paper_table_text_contains_transfer_table_and_note():
    text = tables.paper_table([transfer_row(), paper_row("plain", metric="accuracy")])
    first, second = (part for part in text.split("\n\n") if part.startswith("| "))
    assert first.startswith("| row | parameters | paper: accuracy | ours: accuracy |")
    assert second.splitlines()[0] == "| accuracy: paper / ours | trained: delay 100 | delay 200 | delay 400 |"
    assert second.splitlines()[2:] == ["| lstm | 0.99 / 1 | 0.64 / 0.5 | – / 0.25 |"]
    assert "weights of the lowest validation loss, 500 sequences a number." in text


def test_failed_transfer_evaluations_are_explained_in_notes():
    row = transfer_row(ours=((0.5, None), (None, None)))
    first, second = (run["transfer"] for run in row["runs"])
    for test in (first[1], *second):
        test["why"] = "no memory"
    assert tables.transfer_header_and_rows([row])[1] == [["lstm", "0.99 / 1 (1 … 1)", "0.64 / 0.5", "– / –"]]
    assert tables.paper_notes([row])[-2:] == [
        "- lstm, seed 0, delay 400: not tested: no memory",
        "- lstm, seed 1, delay 200, delay 400: not tested: no memory",
    ]


def test_paper_table_without_transfer_has_one_table():
    assert tables.transfer_header_and_rows([paper_row(), paper_row("lstm", transfer=[])]) == ([], [])
    text = tables.paper_table([paper_row()])
    assert sum(part.startswith("| ") for part in text.split("\n\n")) == 1
    assert "other settings" not in text


# runs


def test_runs_are_found_at_any_depth(tmp_path):
    for name in ("a/b/seed-1", "a/b/seed-0", "c"):
        write_run(tmp_path / name)
    found = runs.find([tmp_path / "a", str(tmp_path / "c")])
    assert [run.path for run in found] == [tmp_path / name for name in ("a/b/seed-0", "a/b/seed-1", "c")]
    assert (found[0].layer, found[0].task, found[0].seed) == ("gru", "copy", 0)


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^no runs in .*: a run has a result.json$"):
        runs.find([tmp_path])
    with pytest.raises(ValueError, match=r"^report expects folders with runs; .*nowhere is not a folder$"):
        runs.find([tmp_path / "nowhere"])
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file is not a folder"):
        runs.find([tmp_path / "file"])


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"layer": 3}', "\xff"])
def test_invalid_result_file_raises_value_error_with_path(tmp_path, content):
    write_run(tmp_path / "run")
    (tmp_path / "run" / "result.json").write_text(content, "latin-1")
    with pytest.raises(ValueError, match=r"run/result.json is not a run's result: "):
        runs.find([tmp_path])


def test_all_runs_unreadable_is_an_error_with_the_reasons(tmp_path):
    for number in range(12):
        write_run(tmp_path / f"{number:02}")
        (tmp_path / f"{number:02}" / "result.json").write_text("{")
    with pytest.raises(ValueError, match=r"^no run could be read: .*00/result.json is not .*; and 2 more$"):
        runs.find_all([tmp_path])


def test_truncated_or_missing_metrics_file_is_tolerated(tmp_path):
    write_run(tmp_path / "a", values=(3.0, 2.0, 1.0))
    metrics = tmp_path / "a" / "metrics.jsonl"
    metrics.write_text(metrics.read_text()[:-30])
    write_run(tmp_path / "b")
    (tmp_path / "b" / "metrics.jsonl").unlink()
    one, other = runs.find_all([tmp_path]).runs
    assert one.curve("loss") == Curve([10, 20, 30], [3.0, 2.0, 1.0], 3)
    assert one.notes == ()
    assert other.curve("loss") == Curve()


def test_curve_omits_missing_values(tmp_path):
    write_run(tmp_path / "run", values=(3.0, 2.0))
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 30, "split": "valid", "loss": null, "accuracy": 0.5}\n')
        file.write('{"step": 40, "split": "valid", "loss": 1, "accuracy": null}\n')
    (run,) = runs.find([tmp_path])
    assert run.curve("loss") == Curve([10, 20, 40], [3.0, 2.0, 1], 3)
    assert run.curve("accuracy") == Curve([10, 20, 30], [1.5, 1.0, 0.5], 3)
    assert run.curve("mse") == Curve()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([{"layer": "gru"}, {"layer": "lstm"}], ["gru", "lstm"]),
        ([{}], ["gru"]),
        ([{"seed": 0}, {"seed": 1}], ["gru seed 0", "gru seed 1"]),
        ([{"hidden": 8}, {"hidden": 9}], ["gru 8", "gru 9"]),
        ([{"task": "copy"}, {"task": "adding"}], ["gru copy", "gru adding"]),
        ([{"hidden": 8}, {"hidden": 9}, {"hidden": 9, "seed": 1}], ["gru 8 seed 0", "gru 9 seed 0", "gru 9 seed 1"]),
        ([{"layer": "gru"}, {"layer": "lstm"}, {"seed": 1}], ["gru seed 0", "lstm seed 0", "gru seed 1"]),
    ],
)
def test_labels_are_shortest_distinguishing_names(tmp_path, given, expected):
    found = [runs.read(write_run(tmp_path / str(i), **options)) for i, options in enumerate(given)]
    assert runs.labels(found) == expected


def test_labels_of_identical_settings_use_folders(tmp_path):
    found = [runs.read(write_run(tmp_path / name)) for name in ("x/a", "x/b/c", "x/b/d")]
    assert runs.labels(found) == ["a", "b/c", "b/d"]


# figures


def test_curves_writes_png(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"gru-{seed}", seed=seed)
    write_run(tmp_path / "lstm", "lstm", status="diverged", values=())
    path = figures.curves(runs.find([tmp_path]), tmp_path / "new" / "curves.png", "Copy [T = 200] | $x")
    assert path == tmp_path / "new" / "curves.png"
    assert is_png(path)


def test_curves_of_mse_have_one_panel(tmp_path, monkeypatch):
    drawn = []
    finish = figures.finish
    monkeypatch.setattr(
        figures, "finish", lambda axis, metric, found: drawn.append((axis, metric)) or finish(axis, metric, found)
    )
    write_run(tmp_path / "a" / "0", "lstm", "adding", score="mse")
    write_run(tmp_path / "a" / "1", "nnrnn", "adding", score="mse", seed=1, guessing_loss=0.2)
    assert is_png(figures.curves(runs.find([tmp_path / "a"]), tmp_path / "a.png"))
    assert [metric for _, metric in drawn] == ["loss"]
    (axis,) = (axis for axis, _ in drawn)
    assert axis.get_yscale() == "log"
    assert axis.get_legend_handles_labels()[1] == ["lstm", "nnrnn"]
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in axis.get_lines()]
    assert lines[:2] == [([10, 20], [2.0, 1.0])] * 2
    assert axis.get_lines()[0].get_marker() == ""


def test_single_evaluation_is_drawn_as_marker(tmp_path, monkeypatch):
    axes = []
    monkeypatch.setattr(figures, "finish", lambda axis, metric, found: axes.append(axis))
    write_run(tmp_path / "once", values=(2.0,))
    assert is_png(figures.curves(runs.find([tmp_path / "once"]), tmp_path / "a.png"))
    assert [line.get_marker() for axis in axes for line in axis.get_lines()] == ["o"] * len(axes)


@pytest.mark.parametrize(("values", "whole"), [((0.2, 0.9), True), ((0.2, 2.1), False)])
def test_axis_is_0_to_1_only_for_values_within(tmp_path, values, whole):
    rows = [{"step": step, "split": "valid", "loss": 1.0, "bpc": value} for step, value in enumerate(values)]
    run = runs.Run(tmp_path, {"guessing_loss": 1.0}, runs.thinned(rows, {"bpc"}))
    _, axis = figures.plt.subplots()
    axis.plot(run.curve("bpc").x, run.curve("bpc").y)
    figures.finish(axis, "bpc", [run])
    low, high = axis.get_ylim()
    assert (low < 0 < 1 < high < 1.1) == whole
    assert low <= min(values) <= max(values) <= high
    figures.plt.close()


def test_seeds_share_colour_and_legend_entry(tmp_path, monkeypatch):
    axes = []
    finish = figures.finish
    monkeypatch.setattr(figures, "finish", lambda axis, metric, found: axes.append(axis) or finish(axis, metric, found))
    for layer in ("gru", "lstm"):
        for seed in (0, 1):
            write_run(tmp_path / f"{layer}-{seed}", layer, seed=seed)
    figures.curves(runs.find([tmp_path]), tmp_path / "curves.png")
    colours = [line.get_color() for line in axes[0].get_lines()]
    assert colours[0] == colours[1] != colours[2] == colours[3]
    assert axes[0].get_legend_handles_labels()[1] == ["gru", "lstm", "guessing"]
    assert [line.get_color() for line in axes[1].get_lines()] == colours[:4]


def test_curves_of_many_rows_have_panels_per_task(tmp_path, monkeypatch):
    """More than there are colours: a row of panels for each task, and other lines where colours come again."""
    axes = []
    finish = figures.finish
    monkeypatch.setattr(
        figures, "finish", lambda axis, metric, found: axes.append((axis, found)) or finish(axis, metric, found)
    )
    for delay, guess in ((5, 0.1), (6, 0.2)):
        for number in range(9):
            path = write_run(tmp_path / f"{delay}-{number}" / "seed-0", guessing_loss=guess) / "result.json"
            task = {"task": {"name": "copy", "delay": delay, "held_out": number}}
            path.write_text(json.dumps(json.loads(path.read_text()) | task))
    figures.curves(runs.find([tmp_path]), tmp_path / "curves.png")
    assert [axis.get_title() for axis, _ in axes] == [f"copy, delay {delay}" for delay in (5, 5, 6, 6)]
    for (axis, found), delay in zip(axes, (5, 5, 6, 6), strict=True):
        assert {run.result["task"]["delay"] for run in found} == {delay}
        assert [line.get_label() for line in axis.get_lines()[:9]] == [f"{delay}-{number}" for number in range(9)]
        assert len({(line.get_color(), line.get_linestyle()) for line in axis.get_lines()[:9]}) == 9
    figures.curves(runs.find([tmp_path / f"5-{number}" for number in range(8)]), tmp_path / "curves.png")
    assert [axis.get_title() for axis, _ in axes[4:]] == ["", ""]  # enough colours


def test_report_imports_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"  # importing it fails
        "from steadygrad.report import figures, problem_figures, runs, tables\n"
        "print(figures.curves.__name__, [m for m in sys.modules if m.startswith('torch.')])"
    )
    root = Path(steadygrad.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "curves []"


def run_with_scores(folder):
    """A small run with transfer tests and sound scores, as the campaign of report files has it."""
    folder.mkdir()
    for name, value in report_files.contents().items():
        if name != "table.json":
            (folder / name).write_text(report_files.text_of(name, value))
    return folder


def test_tests_on_other_settings_and_sound_scores_are_shown(tmp_path, capsys):
    folder = run_with_scores(tmp_path / "run")
    assert main(["report", str(folder), "-o", str(tmp_path / "page.html")]) == 0
    assert main(["report", str(folder), "-o", str(tmp_path / "page.md")]) == 0
    printed, page, text = (
        capsys.readouterr().out,
        (tmp_path / "page.html").read_text(),
        (tmp_path / "page.md").read_text(),
    )
    assert "problem" not in printed
    assert "| gru | delay 9 | accuracy 0.5000 | 1 | 20 |" in text.replace(" ---: ", "")
    assert "| gru | delay 99 | not tested: no memory | – | 20 |" in text
    assert "| gru | 43.4 | 4.28 | – | 28.9 | 1 |" in text
    for cell in ("delay 9", "not tested: no memory", "SegSNR, dB", "28.9"):
        assert cell in page
        assert cell in printed


def test_tests_of_other_weights_are_not_shown_but_named(tmp_path):
    """A run that was extended after its tests has other weights than they."""
    folder = run_with_scores(tmp_path / "run")
    content = report_files.contents()["transfer.json"] | {"step": 20}
    (folder / "transfer.json").write_text(json.dumps(content))
    (run,) = runs.find_all([folder]).runs
    assert run.tests == []
    words = "has tests of the best weights of update 20, but the best weights are of update 30; they are not shown"
    assert run.notes == (f"{folder / 'transfer.json'} {words}",)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("transfer.json", {"tests": [3]}, "is not what transfer writes: tests[0] expects a dict; got 3; remove it to"),
        ("transfer.json", {"tests": [{"task": {}, "examples": 3}]}, "task expects at least one option; got {}"),
        ("transfer.json", {"tests": [{"task": {"a": 1}, "examples": 3, "loss": "x"}]}, "a finite number or null for"),
        ("transfer.json", {"weights": "first"}, "weights expects 'best' or 'last'; got 'first'"),
        ("listen.json", {"mse": "x"}, "is not what listen --json prints: mse expects a finite number or null; got 'x'"),
        ("listen.json", {"sentences": [{"sentence": "a", "pesq": []}]}, "a finite number or null for each metric"),
    ],
)
def test_damaged_scores_are_a_line_and_the_run_is_shown(tmp_path, name, change, words):
    folder = run_with_scores(tmp_path / "run")
    (folder / name).write_text(json.dumps(report_files.contents()[name] | change))
    found = runs.find_all([folder])
    (note,) = found.runs[0].notes
    assert note.startswith(str(folder / name))
    assert words in note
    assert note.endswith("; the run is shown without it")


def test_stored_scores_are_valid():
    """Those in results/, with all their numbers."""
    for path in RESULTS.glob("**/transfer.json"):
        assert read_transfer(path)["tests"]
    assert [read_listen(path)["mse"] for path in RESULTS.glob("**/listen.json")]
