"""Environments that hold some of the packages of this one, and no others."""

import venv
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement


def environment_with(folder, *packages):
    """The Python of a new environment with these packages and what they need, as links."""
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for installed in _with_requirements(packages):
        for place in {Path(file).parts[0] for file in installed.files} - {"..", "__pycache__"}:
            if not (site / place).exists():
                (site / place).symlink_to(installed.locate_file(place))
    return folder / "bin" / "python"


def _with_requirements(packages):
    found = {}
    asked_for = list(packages)
    while asked_for:
        name = asked_for.pop()
        if name not in found:
            found[name] = distribution(name)
            requirements = map(Requirement, found[name].requires or ())
            asked_for += [
                requirement.name
                for requirement in requirements
                if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            ]
    return found.values()
