"""`steadygrad train` processes that are killed inside a file operation, also between the halves of a write."""

import signal
from pathlib import Path

from tests.campaigns.campaign import Campaign
from tests.campaigns.runs import Server, different, outcome, scratch, train_words

UPDATES = (8, 12)
"""updates of a run, and of the run that extends it"""
MOST = 6
"""largest number of kills in a run"""
OPERATIONS = 150
"""a kill comes within this many operations after the start of a process"""


def run(campaign: Campaign) -> None:
    """Compare runs that are killed in a write, resumed and extended with an undisturbed one."""
    with Server() as server, scratch() as folder:
        log, expected = Path(folder, "log"), Path(folder, "expected")
        commands = [["rnn", "copy", steps] for steps in UPDATES]
        for command in commands:
            server.start([*train_words(*command, expected), "--resume"], log)
            if server.wait():
                raise AssertionError(log.read_text())
        for chance in campaign.tries():
            log.unlink()
            place, kills = Path(folder, str(campaign.number)), chance.randint(1, MOST)
            for command in commands:
                words = [*train_words(*command, place), "--resume"]
                code = -signal.SIGKILL
                while code == -signal.SIGKILL:
                    server.start(words, log, chance.randrange(OPERATIONS) if kills else None)
                    code = server.wait()
                    if code == -signal.SIGKILL:
                        kills -= 1
                        campaign.count("kills")
            said = log.read_text()
            if code or "Traceback" in said:
                campaign.fail(f"exit code {code}: {said[-1000:]}")
            elif names := different(outcome(place), outcome(expected)):
                campaign.fail(f"{names} differ")
            else:
                campaign.count("runs")
