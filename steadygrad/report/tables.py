"""Tables of results, as rows of strings and in Markdown."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from steadygrad.duration import duration
from steadygrad.files import value_text
from steadygrad.records import TableRow
from steadygrad.report.runs import Run, labels

Rows = list[list[str]]
TRAINED = "trained: "
"""prefix of the setting on which weights were trained, in a table that also has other settings"""
SOUND = {"mse": "mse, dB²", "segsnr": "SegSNR, dB", "stoi": "STOI", "pesq": "PESQ", "padded_mse": "mse, padded"}
"""header of each column of sound scores"""
FEW = 6
"""number of row names that a line lists"""


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], right_from: int = 1) -> str:
    """Return a Markdown table as text. Columns from ``right_from`` on, counted from 0, are right-aligned."""
    rule = ["---" if i < right_from else "---:" for i in range(len(header))]
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(escaped(str(cell)) for cell in line) + " |" for line in lines)


def escaped(text: str) -> str:
    """Return the text of a Markdown table cell, with | escaped and line breaks replaced by spaces."""
    return text.replace("|", "\\|").replace("\n", " ")


def number(value: float | None) -> str:
    """Return a number as text with about three significant digits; "–" for None."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if abs(value) < 1e-3 or abs(value) >= 1e4:
        return f"{value:.2e}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def score(value: float | None) -> str:
    """Return a score as text with four decimals, or as `number` does if it is below 0.001; "–" for None."""
    return "–" if value is None else f"{value:.4f}" if abs(value) >= 1e-3 else number(value)


def runs_header_and_rows(runs: Sequence[Run], names: Sequence[str] | None = None) -> tuple[list[str], Rows]:
    """Return the header and the rows of a table of runs, one row for each run, as lists of strings.

    ``names`` are the names of the runs, by default their `labels`. A row has the best evaluation, which is the one with
    the lowest validation loss, and the test score of a data set.
    """
    tested = any(run.result.get("test") for run in runs)
    columns = ["best validation", "its loss", *(["test"] if tested else [])]
    header = ["run", "parameters", "updates", *columns, "guessing", "time", "ended"]
    rows = []
    for label, run in zip(names or labels(runs), runs, strict=True):
        result = run.result
        best, name = result.get("best") or {}, result["score"]
        test = (result.get("test") or {}).get(name)
        rows.append(
            [
                label,
                f"{result['parameters']:,}",
                f"{result['steps']:,}",
                f"{name} {score(best.get(name))}",
                number(best.get("loss")),
                *([f"{name} {score(test)}"] if tested else []),
                number(result["guessing_loss"]),
                duration(result["wall_seconds"]),
                result["status"],
            ]
        )
    return header, rows


def run_tests_header_and_rows(runs: Sequence[Run], names: Sequence[str] | None = None) -> tuple[list[str], Rows]:
    """Return the header and rows of a table of the runs' transfer tests, a row for each test, as lists of strings.

    ``names`` are as in `runs_header_and_rows`. Both lists are empty if no run has such tests.
    """
    rows = []
    for label, run in zip(names or labels(runs), runs, strict=True):
        name = run.result["score"]
        for test in run.tests:
            numbers: Mapping[str, Any] = test
            changes = ", ".join(f"{key} {value_text(value)}" for key, value in test["task"].items())
            result = f"not tested: {test['why']}" if "why" in test else f"{name} {score(numbers.get(name))}"
            rows.append([label, changes, result, number(numbers.get("loss")), f"{test['examples']:,}"])
    return (["run", "tested on", "result", "loss", "sequences"], rows) if rows else ([], [])


def sound_header_and_rows(runs: Sequence[Run], names: Sequence[str] | None = None) -> tuple[list[str], Rows]:
    """Return the header and rows of a table of the runs' sound scores, as lists of strings; empty if there are none.

    ``names`` are as in `runs_header_and_rows`.
    """
    pairs = zip(names or labels(runs), runs, strict=True)
    found = [(label, run.sound) for label, run in pairs if run.sound is not None]
    columns = [name for name in SOUND if any(name in sound for _, sound in found)]
    rows = [
        [label, *(number(sound.get(name)) for name in columns), str(len(scores["sentences"]))]
        for label, scores in found
        for sound in [cast(Mapping[str, Any], scores)]
    ]
    return (["run", *(SOUND[name] for name in columns), "sentences"], rows) if rows else ([], [])


def score_tables(runs: Sequence[Run], names: Sequence[str] | None = None) -> list[tuple[str, list[str], Rows]]:
    """Return the tables of transfer tests and of sound scores that the runs have: (title, header, rows) of each."""
    found = {
        "Tests on other settings": run_tests_header_and_rows(runs, names),
        "Sound quality": sound_header_and_rows(runs, names),
    }
    return [(title, header, rows) for title, (header, rows) in found.items() if rows]


def paper_header_and_rows(table: Sequence[TableRow]) -> tuple[list[str], Rows]:
    """Return the header and rows of a paper's numbers next to ours, as lists of strings.

    Ours are the median over seeds, with the range if there are several.
    """
    metric = table[0]["metric"]
    scores = {run["score"]["name"] for row in table for run in row["runs"] if run.get("score")}
    scores -= {metric, "loss", "mse"}
    printed = any(row["published"] is not None for row in table)
    columns = [f"paper: {metric}", f"ours: {metric}"] if printed else [metric]
    header = ["row", "parameters", *columns, *sorted(scores), "seeds", "scale", "time a run"]
    rows = []
    for row in table:
        count = f"{row['parameters']:,}" if row["parameters"] else "–"
        if row["printed_parameters"]:
            count += f" ({row['printed_parameters']})"
        extra = [spread(scores_of(row, name), score) for name in sorted(scores)]
        theirs = [number(row["published"])] if printed else []
        rows.append([row["row"], count, *theirs, ours(row), *extra, *ending(row)])
    return header, rows


def transfer_header_and_rows(table: Sequence[TableRow]) -> tuple[list[str], Rows]:
    """Return the header and rows, as lists of strings, of tests on settings that the weights were not trained on.

    Each setting has a column with the paper's number / ours. The setting of training comes first. If every row has one
    test and the rows differ in their setting of training, the settings are in the cells instead. Both lists are empty
    if no row has such tests.
    """
    rows = [row for row in table if row.get("transfer")]
    if not rows:
        return [], []
    printed = any(test["published"] is not None for row in rows for test in row["transfer"])
    cells = [transfer_cells(row, printed) for row in rows]
    corner = f"{rows[0]['metric']}: paper / ours" if printed else rows[0]["metric"]
    if len({row["trained_on"] for row in rows}) > 1 and all(len(row["transfer"]) == 1 for row in rows):
        pairs = [[f"{name.removeprefix(TRAINED)}: {value}" for name, value in found.items()] for found in cells]
        return [corner, "trained", "tested"], [[row["row"], *pair] for row, pair in zip(rows, pairs, strict=True)]
    columns = sorted(dict.fromkeys(name for found in cells for name in found), key=lambda name: TRAINED not in name)
    body = [[row["row"], *(found.get(name, "") for name in columns)] for row, found in zip(rows, cells, strict=True)]
    return [corner, *columns], body


def transfer_cells(row: TableRow, printed: bool) -> dict[str, str]:
    """Return a dict, by column, of a row's cells in the table of transfer tests. ``printed``: with paper's number."""
    values = {f"{TRAINED}{row['trained_on']}": (row["published"], [run["value"] for run in row["runs"]])}
    for test in row["transfer"]:
        done = [one for run in row["runs"] for one in run.get("transfer", []) if one["name"] == test["name"]]
        values[test["name"]] = test["published"], [one["value"] for one in done]
    found = {name: spread([v for v in ours if v is not None], number) for name, (_, ours) in values.items()}
    return {name: f"{number(theirs)} / {found[name]}" for name, (theirs, _) in values.items()} if printed else found


def ours(row: TableRow) -> str:
    """Return our numbers for a paper's row as text, median and range; "not run" without runs, "–" without numbers."""
    if not row["runs"]:
        return "not run"
    return spread([run["value"] for run in row["runs"] if run["value"] is not None], number)


def ending(row: TableRow) -> list[str]:
    """Return the last three cells of a paper's row: number of seeds, scale and median time of a run.

    The first counts runs that are done, then runs of each other status, as in "2, 1 diverged".
    """
    if not row["runs"]:
        return ["–", "–", "–"]
    ended = [run["status"] for run in row["runs"]]
    others = [status for status in dict.fromkeys(ended) if status != "done"]
    seeds = ", ".join([str(ended.count("done")), *(f"{ended.count(status)} {status}" for status in others)])
    seconds = [run["seconds"] for run in row["runs"] if run["seconds"] is not None]
    return [seeds, row["scale"], duration(statistics.median(seconds)) if seconds else "–"]


def scores_of(row: TableRow, name: str) -> list[float]:
    """Return the values of the score ``name`` of all runs of a row that have it."""
    found = [run["score"] for run in row["runs"] if run.get("score") and run["score"]["name"] == name]
    return [one["value"] for one in found if one["value"] is not None]


def spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    """Return the median of values as text, with the range if there are several. ``form`` formats a number."""
    if not values:
        return "–"
    middle = form(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({form(min(values))} … {form(max(values))})"


def paper_table(table: Sequence[TableRow]) -> str:
    """Return a paper's table in Markdown, with its caption, the loss of guessing and its notes."""
    guesses = sorted({row["guessing_loss"] for row in table if row["guessing_loss"] is not None})
    guessing = f" Loss of guessing: {', '.join(number(value) for value in guesses)}." if guesses else ""
    caption = f"{table[0]['caption']}.{guessing}"
    found = [paper_header_and_rows(table), transfer_header_and_rows(table)]
    parts = [part for header, rows in found if rows for part in (markdown(header, rows), "")]
    return "\n".join([caption, "", *parts, *paper_notes(table)]) + "\n"


def paper_notes(table: Sequence[TableRow]) -> list[str]:
    """Return the notes below a table, a list of lines: evaluation, reductions, remarks, why numbers are missing."""
    lines = [evaluation_note(table)]
    tests = [done for row in table for run in row["runs"] for done in run.get("transfer", []) if not done.get("why")]
    counts = ", ".join(map(str, sorted({done["examples"] for done in tests})))
    if tests:
        weights = "the last weights" if table[0]["counts"] == "last" else "weights of the lowest validation loss"
        lines.append(f"Tests on other settings: {weights}, {counts} sequences a number.")
    lines += reductions(table)
    lines += [f"- {row['row']}: {row['note']}" for row in table if row["note"]]
    return lines + [f"- {trouble}" for trouble in troubles(table)]


def evaluation_note(table: Sequence[TableRow]) -> str:
    """Return a sentence that says which evaluation the numbers of a table come from: best, last, test or extreme."""
    shown = {
        "best": "the evaluation with the lowest validation loss",
        "last": "the last evaluation",
        "test": "the test split, with the weights of the lowest validation loss",
        "extreme": f"the {'smallest' if table[0]['attained'] == 'min' else 'largest'} value of all evaluations",
    }[table[0]["counts"]]
    several = any(len(row["runs"]) > 1 for row in table)
    return f"Our numbers: {shown}{'; of several seeds the median and the range' if several else ''}."


def reductions(table: Sequence[TableRow]) -> list[str]:
    """Return lines that say what each scale changed and, unless it applies to all rows that were run, in which rows."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in table:
        if row["runs"]:
            groups.setdefault((row["scale"], row["reduced"]), []).append(row["row"])
    run = [name for names in groups.values() for name in names]
    lines = []
    for (scale, changes), names in sorted(groups.items()):
        others = [name for name in run if name not in names]
        where = f", {listed(names, others)}" if others else ""
        lines += [f"Scale {scale}{where}: {changes}."] if changes else []
    return lines


def listed(names: Sequence[str], others: Sequence[str]) -> str:
    """Return ``names`` as text, separated by commas, or "all but" and then ``others``, the names that are not meant.

    "all but" is used if there are more than `FEW` names and fewer others. A long list ends with "and N more".
    """
    but = "all but " if len(names) > FEW and len(others) < len(names) else ""
    shown = others if but else names
    rest = f" and {len(shown) - FEW} more" if len(shown) > FEW + 1 else ""  # one name is as short as "1 more"
    return but + ", ".join(shown[:FEW] if rest else shown) + rest


def troubles(table: Sequence[TableRow]) -> list[str]:
    """Return lines that say why runs, or their tests on other settings, have no number."""
    lines = []
    for row in table:
        for run in row["runs"]:
            who = f"{row['row']}, seed {run['seed']}"
            lines += [f"{who}: {run['status']}: {run['why']}"] if run.get("why") else []
            failed = [test for test in run.get("transfer", []) if test.get("why")]
            for why in dict.fromkeys(str(test["why"]) for test in failed):
                names = [test["name"] for test in failed if str(test["why"]) == why]
                lines.append(f"{who}, {', '.join(names)}: not tested: {why}")
    return lines


def verdict(row: TableRow) -> str:
    """Return "pass" if our median, rounded as in the table, is at least as good as the printed number, else "miss".

    Return "–" if a number is missing, at the smoke scale, or if the scale changes the task.
    """
    values = [run["value"] for run in row["runs"] if run["value"] is not None]
    if row["published"] is None or not values or row["scale"] == "smoke" or not row.get("same_task", True):
        return "–"
    ours, theirs = float(number(statistics.median(values))), float(number(row["published"]))
    better = ours <= theirs if row["attained"] == "min" else ours >= theirs
    return "pass" if better else "miss"
