"""The site as it is built without executing its notebooks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Pages by name, read; a warning of the build is a failure."""
    for package in ("sphinx", "furo", "myst_nb", "latex2mathml", "bs4"):
        pytest.importorskip(package)
    if not (ROOT / "docs" / "conf.py").exists():
        pytest.skip("the documentation comes with a clone of the project, not with the package")
    from bs4 import BeautifulSoup

    out = tmp_path_factory.mktemp("docs")
    options = ["-q", "-W", "--keep-going", "-D", "nb_execution_mode=off", "-d", str(out / "trees")]
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, str(ROOT / "docs"), str(out / "html")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-8000:]
    pages = {
        str(path.relative_to(out / "html")): BeautifulSoup(path.read_text("utf-8"), "html.parser")
        for path in sorted((out / "html").rglob("*.html"))
    }
    return Site(out / "html", pages)


class Site:
    """The folder of the built site, and its pages by name."""

    def __init__(self, folder, pages):
        self.folder, self.pages = folder, pages

    def ids(self, name):
        return {tag["id"] for tag in self.pages[name].find_all(id=True)}
