"""The README's code runs, each block by itself, as a reader would run it."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize(
    ("block", "printed"),
    list(
        zip(
            BLOCKS,
            [
                "256 parameters",
                "TensorProjection((32, 96, 96) -> (20, 48, 48)",
                "parameters of the model",
            ],
            strict=True,
        )
    ),
)
def test_each_block_runs_alone(block, printed, capsys):
    exec(compile(block, str(README), "exec"), {})
    assert printed in capsys.readouterr().out


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)]+)\)", README.read_text("utf-8")))
def test_what_it_links_to_is_there(link):
    assert (README.parent / link).exists()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_files_it_names_are_there(page):
    text = (README.parent / page).read_text(encoding="utf-8")
    named = re.findall(r"\b(?:tests|docs|benchmarks|examples)/[\w/]+\.(?:py|md)\b", text)
    assert named
    assert [name for name in named if not (README.parent / name).exists()] == []
