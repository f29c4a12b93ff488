"""The README's code runs, block after block, as a reader would run it."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_code_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    printed = capsys.readouterr().out
    assert "TensorProjection((32, 96, 96) -> (20, 48, 48)" in printed
    assert "parameters of the model" in printed


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)]+)\)", README.read_text("utf-8")))
def test_what_it_links_to_is_there(link):
    assert (README.parent / link).exists()
