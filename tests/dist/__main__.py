"""``python tests/dist dist/*``: each distribution installed into an empty environment, and tried.

The index is asked for what they depend on, as for a user; pip's own settings hold ($PIP_CONSTRAINT).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

TRY = Path(__file__).with_name("try_layer.py")


def try_one(path: Path, kernels: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = next(Path(folder).glob("[bS]*/python*"))  # bin, or Scripts
        pip = [python, "-m", "pip", "--disable-pip-version-check"]

        def run(*command: object) -> str:
            words = [str(word) for word in command]
            return subprocess.run(words, cwd=folder, check=True, stdout=subprocess.PIPE).stdout.decode()

        before = packages(run(*pip, "list", "--format", "json"))
        run(*pip, "install", "--quiet", path)
        added = packages(run(*pip, "list", "--format", "json")) - before
        if added != {"tensorprojection", "numpy"}:
            sys.exit(f"{path.name} alone should install NumPy alone, installed {sorted(added)}.")
        run(*pip, "install", "--quiet", f"{path}[torch]")
        print(f"{path.name}: {run(python, '-W', 'error', TRY, *['--kernels'] * kernels)}", end="")


def packages(listed: str) -> set[str]:
    return {package["name"] for package in json.loads(listed)}


def main(paths: list[Path]) -> None:
    wheels = [path for path in paths if path.suffix == ".whl"]
    if len(wheels) != 1 or len(paths) != 2:
        sys.exit(f"Expected a wheel and a source distribution, got {[path.name for path in paths]}.")
    if "-linux_" in wheels[0].name:
        sys.exit(f"An index refuses {wheels[0].name}: its libraries need more than glibc.")
    for path in paths:
        try_one(path, kernels=not wheels[0].stem.endswith("-any"))


if __name__ == "__main__":
    main([Path(argument).resolve() for argument in sys.argv[1:]])
