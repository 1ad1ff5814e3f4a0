"""Try what users, disks and signals do to the package, at random, and count what fails: `make campaign MINUTES=60`.

    python -m tests.campaigns --minutes 60 --jobs 2
    python -m tests.campaigns --only packed --seed 3 --try 1207     one try of a campaign

Each campaign runs in a process of its own. If a try ends that process, the try is a failure, and the campaign continues
after it. The exit code is 1 if anything failed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.campaigns import CAMPAIGNS, load
from tests.campaigns.campaign import Campaign

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Run the campaigns that the command line names, or all, and print a table."""
    parser = argparse.ArgumentParser(prog="tests.campaigns", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="wall time for all campaigns (default 10)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="campaigns at once (default: cores)")
    parser.add_argument("--only", action="append", choices=list(CAMPAIGNS), help="name of a campaign; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--try", type=int, dest="number", metavar="N", help="repeat one try of one campaign")
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)  # of a child process
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.only or list(CAMPAIGNS)
    if given.number is not None or given.seconds is not None:
        first = given.first if given.number is None else given.number
        tries = float("inf") if given.number is None else 1
        seconds = given.seconds or float("inf")
        campaign = Campaign(names[0], given.seed, seconds=seconds, tries=tries, first=first, record=given.record)
        load(names[0])(campaign)
        if given.record is None:
            print(json.dumps(campaign.report(), indent=2))
        sys.exit(bool(campaign.failures))
    weights = {name: CAMPAIGNS[name].weight for name in names}
    seconds = {
        name: given.minutes * 60 * given.jobs * weight / sum(weights.values()) for name, weight in weights.items()
    }
    longest_first = sorted(names, key=lambda name: -seconds[name])
    with ThreadPoolExecutor(given.jobs) as pool:
        found = dict(
            zip(longest_first, pool.map(lambda n: watch(n, given.seed, seconds[n]), longest_first), strict=True)
        )
    print(table({name: found[name] for name in names}))
    for name in names:
        for failure in found[name]["failures"]:
            print(f"FAILED {name}: {failure}")
    sys.exit(any(result["failures"] for result in found.values()))


def watch(name: str, seed: int, seconds: float) -> dict[str, Any]:
    """Run a campaign in a child process and return its report. Continue after a try that ends the process."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    figures: dict[str, float] = {}
    begun, first = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        while (left := seconds - (time.monotonic() - begun)) > 0:
            record = Path(folder) / "record.json"
            record.unlink(missing_ok=True)
            command = [sys.executable, "-m", "tests.campaigns", "--only", name, "--seed", str(seed)]
            command += ["--first", str(first), "--seconds", str(left), "--record", str(record)]
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            report = json.loads(record.read_text()) if record.exists() else {"next": first + 1}
            counts.update(report.get("counts", {}))
            failures += report.get("failures", [])
            for key, value in report.get("figures", {}).items():
                figures[key] = max(value, figures.get(key, value))
            if ended.returncode in (0, 1) and "Traceback" not in ended.stderr:
                break
            how = signal.Signals(-ended.returncode).name if ended.returncode < 0 else f"exit code {ended.returncode}"
            last = ended.stderr.strip().splitlines()[-1:] or [""]
            failures.append(f"try {report['next'] - 1} ended the process: {how} {last[0]}")
            first = report["next"]
            print(f"{name}: {failures[-1]}", file=sys.stderr)
    spent = time.monotonic() - begun
    return {"counts": counts, "failures": failures, "figures": figures, "seconds": spent}


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return the reports as a Markdown table."""
    lines = ["| campaign | tried | failed | seconds |", "| --- | --- | ---: | ---: |"]
    for name, report in found.items():
        tried = [f"{times:,} {kind}" for kind, times in report["counts"].items()]
        tried += [f"{key} {value:.2g}" for key, value in report["figures"].items()]
        lines.append(f"| {name} | {'; '.join(tried)} | {len(report['failures'])} | {report['seconds']:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
