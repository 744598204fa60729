"""Folders of the repository that a wheel carries inside the package: workflows/ and dashboards/."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def data_parent(name: str) -> Path:
    """The folder that holds the folder `name`: the package of a wheel, else the checkout."""
    return PACKAGE if (PACKAGE / name).is_dir() else PACKAGE.parents[1]
