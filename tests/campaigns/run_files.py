"""Damaged and odd files in a run's directory. A command gives one clear line or the right result, and loses nothing."""

import contextlib
import io
import json
import random
import shutil
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from steadygrad.cli.main import main
from steadygrad.experiments import defaults, observer
from steadygrad.training import loop
from tests import cached
from tests.campaigns.campaign import Campaign
from tests.campaigns.runs import different, outcome, scratch, train_words

SHORT, LONG = 8, 10
"""updates of the run, and of the run that extends it"""
ROW = Path("demo/copy/rnn/seed-0")
"""the run of `reproduce`"""
VALUES = (None, True, -1, 0, 10**300, 1e308, float("nan"), "", "a" * 5000, "\x1b[31m", [], {}, [[]], {"a": {}})
COMMANDS = {
    "evaluate": 6,
    "resume": 6,
    "extend": 3,
    "diagnose": 2,
    "generate": 2,
    "report": 3,
    "page": 1,
    "reproduce": 1,
}
"""commands and how often each is drawn"""
OF_REPORT = ("report", "page")


def run(campaign: Campaign) -> None:
    """Damage a file of a run and call a command, many times."""
    torch.set_num_threads(1)
    quick = patch.object(observer, "SEQUENCES", 2), patch.object(loop, "commit", lambda: None)
    with quick[0], quick[1], patch.object(defaults, "work", cached.work), scratch() as folder:
        bases = {name: Path(folder, name) for name in ("train", "reproduce", "extended")}
        call(train_words("rnn", "copy", SHORT, bases["train"]))
        call(["reproduce", "demo/copy/rnn", "--scale", "smoke", "--out", str(bases["reproduce"]), "--threads", "1"])
        shutil.copytree(bases["train"], bases["extended"])
        call([*train_words("rnn", "copy", LONG, bases["extended"]), "--resume"])
        right: dict[str, Any] = {}
        for chance in campaign.tries():
            command = chance.choices(list(COMMANDS), list(COMMANDS.values()))[0]
            base = bases["reproduce" if command == "reproduce" else "train"]
            place = Path(folder, "place")
            if command not in right:
                right[command] = fresh(base, place) and call(words_of(command, place))
            fresh(base, place)
            own = place / ROW if command == "reproduce" else place
            what, proven = damage(own, chance)
            before = contents(own)
            code, out, error = call(words_of(command, place))
            campaign.count("files" if proven else "files without a manifest")
            fault = judge(command, code, error, before, contents(own))
            if not fault and proven and not code:
                fault = compare(command, out, right[command][1], own, bases["extended"])
            if fault:
                campaign.fail(f"{command}, {what}: {fault}")


def fresh(base: Path, place: Path) -> bool:
    """Copy a run to the place where it is damaged."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(base, place)
    return True


def words_of(command: str, place: Path) -> list[str]:
    """Return the words of a command."""
    page = str(place.with_name("page.html"))
    return {
        "evaluate": ["evaluate", str(place), "--examples", "3", "--json", "--threads", "1"],
        "resume": [*train_words("rnn", "copy", SHORT, place), "--resume"],
        "extend": [*train_words("rnn", "copy", LONG, place), "--resume"],
        "diagnose": ["diagnose", str(place)],
        "generate": ["generate", str(place), "--length", "3"],
        "report": ["report", str(place)],
        "page": ["report", str(place), "-o", page],
        "reproduce": ["reproduce", "demo/copy/rnn", "--scale", "smoke", "--out", str(place), "--threads", "1"],
    }[command]


def call(words: list[str]) -> tuple[Any, str, str]:
    """Run the command line in this process. Return its exit code, or the exception, and its output and errors."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            code: Any = main(words)
        except SystemExit as ended:
            code = ended.code
        except Exception as found:
            code = found
    return code, out.getvalue(), error.getvalue()


def contents(folder: Path) -> dict[str, Any]:
    """Return the content of each file of a folder by name."""
    return {
        path.name: path.read_bytes() if path.is_file() else "no file"
        for path in folder.iterdir()
        if path.name != ".lock"
    }


def judge(command: str, code: Any, error: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return what is wrong with the end of a command, or with the files that it left; an empty string if nothing is."""
    if isinstance(code, BaseException):
        last = code.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        where = f" in {last.tb_frame.f_code.co_filename}:{last.tb_lineno}" if last is not None else ""
        return f"traceback: {type(code).__name__}: {str(code)[:200]}{where}"
    if code not in (0, 2) and not (command == "reproduce" and code == 1):
        return f"exit code {code}: {error[:300]}"
    if code == 2 and not error.strip().splitlines()[-1].startswith("steadygrad: "):
        return f"no clear line: {error[:300]}"
    if lost := before.keys() - after.keys():
        return f"lost {', '.join(lost)}"
    changed = [name for name in before if before[name] != after[name]]
    return f"refused, but changed {', '.join(changed)}" if code == 2 and changed else ""


def compare(command: str, out: str, right: str, run: Path, extended: Path) -> str:
    """Return how the result of a command differs from the right one; an empty string if it does not."""
    if command == "extend":
        names = different(outcome(run), outcome(extended))
        return f"silently other {names}" if names else ""
    if command == "resume" or command in OF_REPORT:
        return ""  # prints times, or is judged by the tests of the report
    if command == "reproduce":
        return "" if table_of(out) == table_of(right) else f"silently other numbers: {out[:500]}"
    return "" if out == right else f"silently other numbers: {out[:300]}"


def table_of(out: str) -> list[str]:
    """Return the printed lines of the row, without the last column, which is the time."""
    return [line.rsplit(maxsplit=2)[0] for line in out.splitlines() if line.startswith("rnn")]


# damage


def damage(folder: Path, chance: random.Random) -> tuple[str, bool]:
    """Damage a file of a run. Return what was done, and whether the manifest still proves the files."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and path.name != ".lock")
    name = chance.choice(names)
    path = folder / name
    kinds = [flip, flip, truncate, delete, replace_by_folder, binary, nested, empty, append]
    if path.suffix in (".json", ".jsonl"):
        kinds += [change_json] * 6
    if path.suffix == ".toml":
        kinds += [change_toml] * 4
    kind = chance.choice(kinds)
    proven = chance.random() < 0.6 and not (name == "manifest.json" and kind is delete)
    if not proven:
        (folder / "manifest.json").unlink()
        if name == "manifest.json":
            return "manifest.json removed", False
    kind(path, chance)
    removed = kind is delete or name == "manifest.json"
    return f"{kind.__name__} {name}{'' if proven else ' without manifest'}", proven and not removed


def flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def truncate(path: Path, chance: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(len(content))])


def delete(path: Path, chance: random.Random) -> None:
    path.unlink()


def replace_by_folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


def binary(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(chance.randrange(1, 300)))


def nested(path: Path, chance: random.Random) -> None:
    sign = chance.choice(["[", '{"a":', "a = ["])
    path.write_text(sign * chance.choice([50, 2000, 100_000]))


def empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


def append(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes() + chance.choice([b"\n", b"\0", b"{}\n", b'{"step": -1}\n', b"\xff\xfe\n"]))


def change_json(path: Path, chance: random.Random) -> None:
    """Replace or remove a value somewhere in a JSON file, or in a row of a log."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = chance.randrange(len(lines))
    value = json.loads(lines[number])
    place, inner = value, value
    while isinstance(inner, dict | list) and inner and (inner is value or chance.random() < 0.7):
        place = inner
        key = chance.choice(list(inner)) if isinstance(inner, dict) else chance.randrange(len(inner))
        inner = inner[key]
    if isinstance(place, dict) and chance.random() < 0.3:
        del place[key]
    else:
        place[key] = chance.choice(VALUES)
    lines[number] = json.dumps(value)
    path.write_text("\n".join(lines) + "\n")


def change_toml(path: Path, chance: random.Random) -> None:
    """Replace the value of a setting, also by a deeply nested one, or remove it, or give an unknown one."""
    lines = path.read_text().splitlines()
    number = chance.choice([number for number, line in enumerate(lines) if " = " in line])
    key = lines[number].partition(" = ")[0]
    others = ["-1", "0", "1e400", "true", '"x"', "[]", "{}", '"\\u001b[31m"', "nan", "1979-05-27"]
    depth = chance.choice([20, 25, 200, 400, 2000])
    others += ["[" * depth + "]" * depth, "{ a = " * depth + "1" + " }" * depth]
    lines[number] = chance.choice([f"{key} = {other}" for other in others] + ["", "unknown = 1"])
    path.write_text("\n".join(lines) + "\n")
