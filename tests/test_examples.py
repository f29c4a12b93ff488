"""The examples run, and print what their docstrings promise."""

import ast
import re
import runpy
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PACKAGE = "tensorprojection"


@pytest.fixture
def example():
    if not EXAMPLES.is_dir():
        pytest.skip("the examples come with a clone of the project, not with the package")

    def run(name, *arguments):
        return runpy.run_path(str(EXAMPLES / name))["main"](list(map(str, arguments)))

    return run


def test_autoencoder(example, tmp_path, capsys):
    picture = tmp_path / "pictures.png"
    options = ["--train", 96, "--test", 32, "--epochs", 200, "--sides", 12, 10, "--out", picture]
    example("autoencoder.py", *options)
    text = capsys.readouterr().out
    start = float(re.search(r"random projection +(\S+)", text)[1])
    (trained, seen), (mpca, mpca_seen) = (
        tuple(map(float, re.search(rf"{name} +(\S+) +(\S+)", text).groups()))
        for name in ("tied autoencoder", "MPCA")
    )
    # MPCA is the optimum on the training images, and the autoencoder comes close to it.
    assert mpca <= trained < 1.1 * mpca < 0.3
    assert mpca_seen < 1.1 * seen < 0.5 * start
    with Image.open(picture) as image:
        assert image.width > 600
        assert len(image.convert("L").getcolors()) > 100


@pytest.mark.parametrize(
    "file",
    sorted(ROOT.glob("benchmarks/*.py")) + sorted(ROOT.glob("examples/**/*.py")),
    ids=lambda f: f.name,
)
def test_names_that_are_imported_exist(file):
    """Also in a benchmark that takes too long for a test, or needs a GPU."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        of_ours = isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE)
        if of_ours and not node.module.startswith(f"{PACKAGE}.keras"):
            module = import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    import_module(f"{node.module}.{alias.name}")
