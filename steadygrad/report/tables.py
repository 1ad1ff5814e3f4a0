"""Results as tables in markdown."""

from collections.abc import Iterable, Sequence
from typing import Any

from steadygrad.report.runs import Run, labels

Rows = list[list[str]]


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]], right_from: int = 1) -> str:
    """A table; columns from ``right_from`` on are aligned to the right."""
    rule = ["---" if i < right_from else "---:" for i in range(len(header))]
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(escaped(str(cell)) for cell in line) + " |" for line in lines)


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def number(value: float | None) -> str:
    """Three digits, as short as can be."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    return f"{value:.2e}" if abs(value) < 1e-3 or abs(value) >= 1e4 else f"{value:.3g}"


def score(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}" if abs(value) >= 1e-3 else number(value)


def clock(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def runs_header_and_rows(runs: Sequence[Run]) -> tuple[list[str], Rows]:
    """One row a run: its score and loss at the best evaluation, beside the loss of guessing."""
    header = ["run", "parameters", "updates", "score", "loss", "guessing", "time", "ended"]
    rows = []
    for label, run in zip(labels(runs), runs, strict=True):
        result = run.result
        best, name = result.get("best") or {}, result["score"]
        rows.append(
            [
                label,
                f"{result['parameters']:,}",
                f"{result['steps']:,}",
                f"{name} {score(best.get(name))}",
                number(best.get("loss")),
                number(result["guessing_loss"]),
                clock(result["wall_seconds"]),
                result["status"],
            ]
        )
    return header, rows


def paper_header_and_rows(table: Sequence[dict[str, Any]]) -> tuple[list[str], Rows]:
    """A paper's numbers beside ours: the median over seeds, and their range where there are several."""
    metric = table[0]["metric"]
    scores = {run["score"]["name"] for row in table for run in row["runs"] if run.get("score")} - {
        metric,
        "loss",
        "mse",
    }
    header = ["row", "parameters", f"paper: {metric}", f"ours: {metric}", *sorted(scores), "seeds", "time"]
    rows = []
    for row in table:
        if row["missing"]:
            cells = [row["row"], row["printed_parameters"] or "–", number(row["published"]), f"needs {row['missing']}"]
            rows.append([*cells, *("–" for _ in scores), "–", "–"])
            continue
        found = [run["value"] for run in row["runs"] if run["value"] is not None]
        ours = number(row["ours"])
        if len(found) > 1:
            ours += f" ({number(min(found))} … {number(max(found))})"
        ended = [run["status"] for run in row["runs"] if run["status"] != "done"]
        seeds = str(sum(run["status"] == "done" for run in row["runs"]))
        seeds += "".join(f", {ended.count(status)} {status}" for status in dict.fromkeys(ended))
        count = f"{row['parameters']:,}" if row["parameters"] else "–"
        if row["printed_parameters"]:
            count += f" ({row['printed_parameters']})"
        extra = [median_score(row, name) for name in sorted(scores)]
        rows.append([row["row"], count, number(row["published"]), ours, *extra, seeds, clock(row["seconds"])])
    return header, rows


def median_score(row: dict[str, Any], name: str) -> str:
    values = sorted(
        run["score"]["valid"]
        for run in row["runs"]
        if run.get("score", {}).get("name") == name and run["score"]["valid"]
    )
    if not values:
        return "–"
    middle = values[len(values) // 2]
    return score(middle) if len(values) == 1 else f"{score(middle)} ({score(values[0])} … {score(values[-1])})"


def paper_table(table: Sequence[dict[str, Any]]) -> str:
    """With its caption, the loss of guessing, and what was made smaller."""
    first = table[0]
    lines = [first["caption"], ""]
    guesses = sorted({row["guessing_loss"] for row in table if row["guessing_loss"] is not None})
    if guesses:
        lines[0] += f". Guessing: {', '.join(number(value) for value in guesses)}."
    lines.append(markdown(*paper_header_and_rows(table)))
    lines.append(
        f"\nScale: {first['scale']}. Ours: the {first['attained']}imum over evaluations, the median of all seeds."
    )
    reduced = {row["reduced"] for row in table if row["reduced"]}
    if reduced:
        lines.append("Smaller than in the paper: " + "; ".join(sorted(reduced)) + ".")
    lines += [f"- {row['row']}: {row['note']}" for row in table if row["note"]]
    lines += [
        f"- {row['row']}, seed {run['seed']}: {run['status']}: {run['why']}"
        for row in table
        for run in row["runs"]
        if run.get("why")
    ]
    return "\n".join(lines) + "\n"
