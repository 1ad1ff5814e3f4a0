"""Make tables from the numbers of a run, the dict that is also written as JSON."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.contenders import Size

Result = dict[str, Any]
Naming = Callable[[Result], str]


@dataclass(frozen=True)
class Table:
    title: str
    header: list[str]
    rows: list[list[str]]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        rule = ["---", *["---:"] * (len(self.header) - 1)]
        lines = ["| " + " | ".join(cells) + " |" for cells in (self.header, rule, *self.rows)]
        heading = [f"**{self.title}**", ""] if self.title else []
        notes = ["", *self.notes] if self.notes else []
        return "\n".join([*heading, *lines, *notes])


def show_markdown(tables: Iterable[Table]) -> None:
    print("\n\n".join(table.markdown() for table in tables))


def show_rich(tables: Iterable[Table]) -> None:
    from rich.console import Console  # needed only on a terminal
    from rich.table import Table as RichTable

    console = Console(highlight=False)
    for table in tables:
        drawn = RichTable(*table.header[:1])
        for name in table.header[1:]:
            drawn.add_column(name, justify="right")
        for row in table.rows:
            drawn.add_row(*row)
        console.print(table.title, style="bold")
        console.print(drawn, *table.notes, sep="\n", end="\n\n")


def full(result: Result) -> Iterator[Table]:
    """Yield all tables of a run."""
    yield where(result)
    if parts := result.get("steps"):
        yield columns("Training step (ms)", parts, size_of, "milliseconds", with_range)
        yield ratios("Training step, ratios", parts, size_of)
        yield bounds(parts)
    if parts := result.get("matrices"):
        yield columns("A matrix, forward + backward after an update (ms)", parts, order_of, "milliseconds", with_range)
        yield ratios("A matrix, ratios", parts, order_of)
    if parts := result.get("memory"):
        yield columns("Peak memory of one training step (MB)", parts, size_of, "megabytes", number)
        yield ratios("Peak memory, ratios", parts, size_of)


def compact(result: Result) -> Iterator[Table]:
    """Yield the tables of the README: medians of the main ratios, and the machine on which they were measured."""
    note = (conditions(result),)
    by_index: dict[int, Result] = {}
    for prefix, part in (("", "steps"), ("peak memory, ", "memory")):
        for found in result.get(part, []):
            merged = by_index.setdefault(found["index"], {"size": found["size"], "ratios": []})
            merged["ratios"] += [ratio | {"label": prefix + ratio["label"]} for ratio in chief(found)]
    if by_index:
        table = ratios("", list(by_index.values()), size_of, median)
        yield Table("", ["batch, time, hidden, input", *table.header[1:]], table.rows, note)
    if found := result.get("matrices"):
        table = ratios("", [part | {"ratios": chief(part)} for part in found], order_of, median)
        yield Table("", ["one matrix, forward + backward", *table.header[1:]], table.rows, () if by_index else note)


def chief(part: Result) -> list[Result]:
    return [ratio for ratio in part["ratios"] if ratio["compact"]]


def conditions(result: Result) -> str:
    """Return one sentence on the machine and the method."""
    machine, versions = result["machine"], result["versions"]
    return (
        f"{machine['cpu']}, {machine['threads']} threads, {machine['instruction_set']}, torch {versions['torch']}; "
        "medians of ratios within interleaved rounds."
    )


def where(result: Result) -> Table:
    machine = result["machine"]
    facts = {**machine, **result["versions"]}
    notes = {
        "A quick run: too short to conclude anything from.": result["settings"]["quick"],
        "Others were using this machine when the run began, so the ranges are wide.": busy(machine),
    }
    rows = [[name, str(value)] for name, value in facts.items()]
    return Table("Where", ["what", "value"], rows, tuple(note for note, applies in notes.items() if applies))


def busy(machine: Result) -> bool:
    return (machine["load_before"] or 0) > 0.3 * machine["cores"]


def bounds(parts: list[Result]) -> Table:
    """Return a table that compares the limit with the peak rate of the machine."""
    quantities: dict[str, Callable[[Result], str]] = {
        "fastest loop": lambda part: part["limit"],
        "limit (ms)": lambda part: number(part["milliseconds"]["limit"]["median"]),
        "flop bound (ms)": lambda part: number(part["flop_bound_milliseconds"]),
        "torch.mm 1024³, fastest (Gflop/s)": lambda part: number(part["probe_gflops"]),
    }
    rows = [[name, *(cell(part) for part in parts)] for name, cell in quantities.items()]
    missing = {name: reason for part in parts for name, reason in part["missing"].items()}
    notes = tuple(f"Not measured: {name} ({reason})." for name, reason in missing.items())
    return Table("The limit", ["", *map(size_of, parts)], rows, notes)


def columns(title: str, parts: list[Result], name_of: Naming, key: str, cell: Callable[[Any], str]) -> Table:
    """Return a table with one column for each part and one row for each name under ``key``."""
    names = list(dict.fromkeys(name for part in parts for name in part[key]))
    rows = [[name, *(cell(part[key][name]) if name in part[key] else "–" for part in parts)] for name in names]
    return Table(title, ["", *map(name_of, parts)], rows)


def with_range(spread: Result) -> str:
    span = f" ({number(spread['low'])}–{number(spread['high'])})" if "low" in spread else ""
    return median(spread) + span


def with_verdict(ratio: Result) -> str:
    if ratio["bound"] is None:
        return with_range(ratio)
    sign, otherwise = ("≤", "above") if ratio["at_most"] else ("≥", "below")
    return f"{with_range(ratio)} {sign} {ratio['bound']:g} {'ok' if ratio['holds'] else otherwise}"


def ratios(title: str, parts: list[Result], name_of: Naming, cell: Callable[[Result], str] = with_verdict) -> Table:
    by_label = [part | {"cells": {ratio["label"]: ratio for ratio in part["ratios"]}} for part in parts]
    return columns(title, by_label, name_of, "cells", cell)


def size_of(part: Result) -> str:
    return str(Size(**part["size"]))


def order_of(part: Result) -> str:
    return f"N = {part['order']}"


def median(spread: Result) -> str:
    return number(spread["median"])


def number(value: float) -> str:
    """Format a number with three significant digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
