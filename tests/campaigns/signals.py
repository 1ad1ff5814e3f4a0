"""Real `steadygrad train` processes that are hit by signals at random moments and resumed until they are done."""

import os
import random
import signal
import time
from pathlib import Path

from tests.campaigns.campaign import Campaign
from tests.campaigns.runs import Server, different, outcome, scratch, train_words

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGSTOP)
MOST = 12
"""largest number of signals in a run"""
RUNS = (("rnn", "copy", 40), ("nnrnn", "adding", 24), ("lstm", "copy", 32))
"""layer, task and updates"""


def run(campaign: Campaign) -> None:
    """Compare runs that are interrupted and resumed with undisturbed ones."""
    with Server() as server, scratch() as folder:
        undisturbed = {}
        for chance in campaign.tries():
            place, kind = Path(folder, str(campaign.number)), chance.choice(RUNS)
            place.mkdir()
            if kind not in undisturbed:
                words = train_words(*kind, Path(folder, "-".join(map(str, kind))))
                begun = time.monotonic()
                server.start(words, place / "log")
                if code := server.wait():
                    raise AssertionError(f"exit code {code}: {(place / 'log').read_text()}")
                undisturbed[kind] = outcome(Path(words[-1])), time.monotonic() - begun
            expected, seconds = undisturbed[kind]
            words = [*train_words(*kind, place / "run"), "--resume"]
            left = chance.randint(1, MOST)
            while left:
                process = server.start(words, place / "log")
                left -= strike(campaign, chance, process, seconds)
                if server.wait() == 0:
                    break
            else:
                server.start(words, place / "log")
                server.wait()
            said = (place / "log").read_text()
            if "Traceback" in said:
                campaign.fail(said[said.index("Traceback") :][-1000:])
            elif not (place / "run").exists() or (names := different(outcome(place / "run"), expected)):
                campaign.fail(f"{kind} differs in {names if (place / 'run').exists() else 'all'}: {said[-500:]}")
            else:
                campaign.count("runs")


def strike(campaign: Campaign, chance: random.Random, process: int, seconds: float) -> int:
    """Send a signal to a process after a random time. Return 1 if it was still there."""
    number = chance.choice(SIGNALS)
    time.sleep(chance.uniform(0, seconds / 4))  # several signals for each run
    try:
        os.kill(process, number)
        if number == signal.SIGSTOP:
            time.sleep(chance.uniform(0, 0.02))
            os.kill(process, signal.SIGCONT)
    except ProcessLookupError:
        return 0
    campaign.count(number.name if number != signal.SIGSTOP else "SIGSTOP and SIGCONT")
    return 1
