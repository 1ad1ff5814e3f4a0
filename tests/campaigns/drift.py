"""Train every matrix for many updates and measure how far it drifts from its constraint.

python -m tests.campaigns.drift 100000     a table of all matrices after as many updates
"""

import sys

import torch

from steadygrad.matrices import COMPLEX, MATRICES, NonFiniteError, build
from tests.campaigns.campaign import Campaign
from tests.campaigns.violation import violation

NAMES = [name for name in [*MATRICES, *COMPLEX] if name != "free"]  # which has no constraint
RATES = {"realistic": 1e-3, "rough": 0.1}
"""learning rates of Adam"""
LOOK, NEW_TARGET = 100, 200
"""updates between two measurements, and between two targets"""


def run(campaign: Campaign) -> None:
    """Train one matrix in each try, for a random number of updates."""
    torch.set_num_threads(1)
    for random in campaign.tries():
        name = NAMES[campaign.number % len(NAMES)]
        updates = round(30 * 100 ** random.random())
        size = random.choice([1, 2, 3, 8, 31, 32])
        kind = random.choice(list(RATES))
        with campaign.expecting(f"{name} of size {size}, {kind} rate", NonFiniteError):
            (worst,), bound = drift(name, size, [(updates, RATES[kind])], seed=random.randrange(10**6))
            campaign.count("updates", updates)
            campaign.largest("largest share of the bound", worst / bound)
            if not worst <= bound:
                campaign.fail(f"{name} of size {size}: {worst:.3g} after {updates} updates at a {kind} rate")


def drift(name: str, size: int, phases: list[tuple[int, float]], seed: int = 0) -> tuple[list[float], float]:
    """Train a matrix towards random targets, in phases of so many updates at a rate.

    Return its largest violation in each phase, and the bound on it.
    """
    torch.manual_seed(seed)
    matrix = build(name, size, complex=name in COMPLEX)
    optimizer = torch.optim.Adam(matrix.parameters(), fused=True)
    worst, bound = [], 0.0
    for updates, rate in phases:
        optimizer.param_groups[0]["lr"] = rate
        seen = []
        for update in range(updates):
            if update % NEW_TARGET == 0:
                target = torch.randn(size, size) / size**0.5
            optimizer.zero_grad()
            W = matrix()
            W.backward(W.detach() - target - 0.1 * torch.randn(size, size))  # of ‖W − target − noise‖²/2
            optimizer.step()
            if update % LOOK == 0 or update == updates - 1:
                now, bound = violation(matrix, W)
                seen.append(now)
        worst.append(max(seen, key=lambda value: (value != value, value)))  # NaN counts as largest
    return worst, bound


def main() -> None:
    """Print a Markdown table of the largest violations of all matrices of size 32, or of those that are named.

    The last tenth of the updates has the rough rate.
    """
    torch.set_num_threads(1)
    updates = int(sys.argv[1])
    phases = [(updates - updates // 10, RATES["realistic"]), (updates // 10, RATES["rough"])]
    print("| matrix | bound | " + " | ".join(f"{count:,} updates at {rate:g}" for count, rate in phases) + " |")
    print("| --- | ---: | ---: | ---: |", flush=True)
    for name in sys.argv[2:] or NAMES:
        worst, bound = drift(name, 32, phases)
        print(f"| {name} | {bound:g} | {' | '.join(f'{value:.2g}' for value in worst)} |", flush=True)


if __name__ == "__main__":
    main()
