"""Where data sets are found that the package does not ship."""

import os
from pathlib import Path

VARIABLE = "STEADYGRAD_DATA"
"""names a folder with one folder for each data set"""


def data_set(name: str) -> Path | None:
    """The folder of a data set, if it is there."""
    root = os.environ.get(VARIABLE)
    folder = Path(root, name) if root else None
    return folder if folder is not None and folder.is_dir() else None


def needed_data_set(who: str, name: str) -> Path:
    folder = data_set(name)
    if folder is None:
        root = os.environ.get(VARIABLE)
        raise ValueError(f"{who} expects a folder {name} in the one that ${VARIABLE} names; got {root or 'nothing'}")
    return folder
