"""MiniGrid: reach a place or find an object in partially observed rooms (Chevalier-Boisvert et al., 2018)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from steadygrad.tasks.environment import EnvironmentTask
from steadygrad.tasks.packages import import_optional

ENVIRONMENTS = {
    "Empty-5x5": 100,
    "Empty-6x6": 144,
    "Empty-8x8": 256,
    "Empty-16x16": 1024,
    "RedBlueDoors-6x6": 720,
    "RedBlueDoors-8x8": 1280,
    "GoToObject-6x6-N2": 180,
    "GoToObject-8x8-N2": 320,
    "MemoryS7": 245,
    "MemoryS9": 405,
    "MemoryS11": 605,
    "MemoryS13": 845,
    "GoToDoor-5x5": 100,
    "GoToDoor-6x6": 144,
    "GoToDoor-8x8": 256,
    "Fetch-5x5-N2": 125,
    "Fetch-6x6-N2": 180,
    "Fetch-8x8-N3": 320,
    "DoorKey-5x5": 250,
    "DoorKey-6x6": 360,
    "DoorKey-8x8": 640,
    "DoorKey-16x16": 2560,
}
"""Default maximum number of steps of each environment, stored here so that the package need not be installed."""
LEXICON = """
    a and at ball blue box door end fetch get go goal green grey hallway key matching must object of open purple red
    square the then to use yellow you
"""
WORDS = LEXICON.split()
"""All words of the missions of these environments."""
VIEW = 7
"""Depth and width of the agent's field of view, in squares."""
OWN = VIEW // 2 * VIEW + VIEW - 1
"""Index of the agent's own square in the field of view, column by column."""
DIRECTIONS = 4
AHEAD = [
    [(-dy * side + dx * ahead, dx * side + dy * ahead) for side in range(-3, 4) for ahead in range(VIEW - 1, -1, -1)]
    for dx, dy in ((1, 0), (0, 1), (-1, 0), (0, -1))
]
"""For each direction of the agent, the offsets (x, y) of the squares in its field of view."""
UNSEEN, EMPTY = (0, 0, 0), (1, 0, 0)


@dataclass(frozen=True)
class MiniGrid(EnvironmentTask, name="minigrid"):
    """Carry out a mission in a grid, seeing the 7 × 7 squares ahead. The reward is 1 − 0.9 t/t_max on success, else 0.

    Each square is given as object, colour and state. The agent's direction and the words of the mission may be added.

        input   get to the goal:  · · ┃ · ·   · K ┃ · ·   · · D · G    a key, a door, the goal, as they come into sight
        target  the action of each step: left, right, forward, pick up, drop, toggle or done
    """

    environment: str = "DoorKey-5x5"
    """Name of the environment in MiniGrid, without MiniGrid- and -v0."""
    limit: int | None = None
    """t_max, the maximum number of steps of an episode. None means the environment's default."""
    told: bool = True
    """If true, the inputs include the agent's direction and the mission. Otherwise these inputs are zero."""

    training: ClassVar[Mapping[str, Any]] = {
        "frames": 500_000,
        "batch": 8,
        "clip": 0.5,
        "evaluate_every": 320,
        "evaluate_examples": 100,
    }
    view: ClassVar[int] = VIEW
    kinds: ClassVar[tuple[int, ...]] = (11, 6, 3)
    others: ClassVar[int] = DIRECTIONS + len(WORDS)
    actions: ClassVar[int] = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("environment", ENVIRONMENTS)
        self.check_flags("told")
        if self.limit is not None:
            self.check(limit=1)

    @property
    def steps(self) -> int:
        """Largest number of steps of an episode."""
        return self.limit or ENVIRONMENTS[self.environment]

    def world(self) -> "Grid":
        return Grid(self.environment, self.steps, self.told)


class Grid:
    """One of MiniGrid's environments, with each observation as one tensor (input_size,).

    ``name`` is a key of `ENVIRONMENTS`, ``steps`` the maximum length of an episode. Without ``told``, the inputs for
    direction and mission are zero.
    """

    def __init__(self, name: str, steps: int, told: bool) -> None:
        package = partial(import_optional, "minigrid", extra="minigrid")
        package("minigrid")  # the import registers its environments
        made = package("gymnasium").make(f"MiniGrid-{name}-v0", max_steps=steps, disable_env_checker=True)
        self.environment: Any = made.unwrapped
        self.environment.gen_obs = self.look
        self.wall = package("minigrid.core.world_object").Wall()
        self.told, self.asked = told, np.zeros(len(WORDS), np.float32)

    def begin(self, seed: int) -> Tensor:
        """Start an episode, which the seed determines. Return the first observation (input_size,)."""
        sight, _ = self.environment.reset(seed=seed)
        if self.told:
            self.asked = bag(sight["mission"])
        return self.row(sight)

    def act(self, action: int) -> tuple[Tensor, float, bool]:
        """Take an action. Return the next observation, the reward, and whether the episode is over."""
        sight, reward, terminated, truncated, _ = self.environment.step(action)
        return self.row(sight), float(reward), bool(terminated or truncated)

    def row(self, sight: Mapping[str, Any]) -> Tensor:
        """Return an observation of MiniGrid (image, direction, mission) as one tensor (input_size,)."""
        direction = np.zeros(DIRECTIONS, np.float32)
        direction[sight["direction"]] = self.told
        return torch.from_numpy(np.concatenate([sight["image"].ravel(), direction, self.asked], dtype=np.float32))

    def look(self) -> dict[str, Any]:
        """Return the current observation, as MiniGrid's own gen_obs does, but faster.

        It is a dict with ``image`` (7, 7, 3), ``direction`` and ``mission``. gen_obs takes most of the time of a step.
        """
        environment, grid = self.environment, self.environment.grid
        cells, width, height = grid.grid, grid.width, grid.height
        x, y = map(int, environment.agent_pos)
        squares = [
            cells[(y + b) * width + x + a] if 0 <= x + a < width and 0 <= y + b < height else self.wall
            for a, b in AHEAD[environment.agent_dir]
        ]
        there = [True] * len(squares) if environment.see_through_walls else visible(squares)
        squares[OWN] = environment.carrying  # a carried object is shown in the agent's own square
        codes = [
            (UNSEEN if not seen else EMPTY if square is None else square.encode())
            for square, seen in zip(squares, there, strict=True)
        ]
        image = np.array(codes, np.uint8).reshape(VIEW, VIEW, 3)
        return {"image": image, "direction": environment.agent_dir, "mission": environment.mission}


def visible(squares: list[Any]) -> list[bool]:
    """Return which squares of the field of view are visible, as a list of booleans.

    ``squares`` are its 49 objects, None for an empty square, column by column. Light spreads from the agent's row to
    the farthest row; opaque squares, such as walls and closed doors, stop it.
    """
    there = [False] * len(squares)
    lit = 1 << VIEW // 2
    for row in reversed(range(VIEW)):
        opaque = sum(
            1 << column
            for column, square in enumerate(squares[row::VIEW])
            if square is not None and not square.see_behind()
        )
        lit, beyond = spread(lit, opaque)
        there[row::VIEW] = [bool(lit >> column & 1) for column in range(VIEW)]
        lit = beyond
    return there


@cache
def spread(lit: int, opaque: int) -> tuple[int, int]:
    """Return the lit squares of a row of the view, and of the next row, as bit masks of columns.

    ``lit`` are the squares of the row that the previous row lights. Light spreads sideways and to the next row. The
    squares ``opaque`` can be lit but pass no light on.
    """
    beyond = 0
    for columns, side in ((range(VIEW - 1), 1), (range(VIEW - 1, 0, -1), -1)):
        for column in columns:
            if (lit & ~opaque) >> column & 1:
                lit |= 1 << column + side
                beyond |= 1 << column | 1 << column + side
    return lit, beyond


def bag(mission: str) -> np.ndarray:
    """Return the words of a mission as an array: 1 for each of `WORDS` that it contains, else 0.

    Raise ValueError for a word that is not one of `WORDS`.
    """
    words = mission.split()
    if unknown := [word for word in words if word not in WORDS]:
        raise ValueError(f"MiniGrid expects missions in the words {', '.join(WORDS)}; got {', '.join(unknown)}")
    return np.array([word in words for word in WORDS], np.float32)
