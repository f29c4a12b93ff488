"""docs/guide/paper.md: every table, figure and equation of the paper has a command that works."""

import io
import re
import shlex
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from tensorprojection.cli.main import command_line
from tensorprojection.cli.settings import given_settings
from tensorprojection.studies.config import resolve
from tensorprojection.studies.registry import STUDIES

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "tensorprojection"
PAGE = ROOT / "docs" / "guide" / "paper.md"

pytestmark = pytest.mark.skipif(
    not PAGE.is_file(),
    reason="the documentation comes with a clone of the project, not with the package",
)
TEXT = PAGE.read_text("utf-8") if PAGE.is_file() else ""
COMMANDS = list(dict.fromkeys(re.findall(r"`(tpl (?:run|report|summary|data check) [^`]+)`", TEXT)))
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in re.findall(r"^\| .*\|$", TEXT, re.M)
]


def test_every_table_figure_and_equation_has_a_row():
    firsts = " | ".join(first for first, *_ in ROWS)
    found = {(what, int(n)) for what, n in re.findall(r"\b(Table|Figure) (\d+)", firsts)}
    for numbers in re.findall(r"Eq\. (\d+(?:(?: to |, | and )\d+)*)", firsts):
        ends = [int(n) for n in re.findall(r"\d+", numbers)]
        found |= {("Eq.", n) for n in (range(ends[0], ends[1] + 1) if "to" in numbers else ends)}
    assert found == {
        *(("Table", n) for n in range(1, 5)),
        *(("Figure", n) for n in range(1, 13)),
        *(("Eq.", n) for n in range(1, 20)),
    }
    for section in ("appendix A", "appendix B", "appendix C", "appendix D", "appendix F"):
        assert any(first.startswith(section) for first, *_ in ROWS)


def test_the_code_and_the_tests_that_are_named_exist():
    for name in re.findall(r"`(?:pytest|python) (\S+\.py)", TEXT):
        assert (ROOT / name).is_file(), name
    for row in ROWS:
        for name in re.findall(r"`([\w/]+\.py)`", row[-1]):
            assert (SOURCES / name).is_file() or (SOURCES / "studies" / name).is_file(), name


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_understood(command):
    tokens = shlex.split(command)[1:]
    _, bound, *_ = command_line(tokens).parse_args(tokens, exit_on_error=False, print_error=False)
    if tokens[0] in ("run", "summary"):
        study = STUDIES[bound.arguments.pop("study")]
        fields = study.settings.model_fields
        given = {name: value for name, value in bound.arguments.items() if name in fields}
        study.check_networks(resolve(study, "paper", None, given_settings(given)))


def test_the_hours_are_those_of_the_last_cell():
    import torch

    code = re.findall(r"```\{code-cell\} ipython3\n(from functools.*?)```", TEXT, re.S)[-1]
    with redirect_stdout(io.StringIO()):
        exec(code, scope := {"torch": torch})
    shown = {row[0]: row[2:4] for row in ROWS if row[1].startswith("`tpl run")}
    for name, hours in scope["runs"].items():
        assert [float(h.replace(",", "")) for h in shown.pop(name)] == [
            pytest.approx(h, rel=0.05, abs=0.5) for h in hours
        ]
    assert [*shown] == ["chest"]


SMALL = "--preset smoke --images 16 --epochs 1 --trials 2 --jobs 1 --keep none"


def images(kind, path):
    """A file of a few phantoms, as a command finds it."""
    made = kind.phantoms(16, seed=0, size=32)
    names = np.array(made.class_names)
    np.savez(path, images=made.images, labels=made.labels, class_names=names)
    return path


@pytest.mark.heavy  # nine runs, a minute or two
def test_every_command_runs_at_smoke_size_and_writes_what_the_page_says(tpl, tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        tokens = shlex.split(re.sub(r" --size \d+| --data \S+", "", command))[1:]
        if tokens[0] == "run":
            small = [SMALL if word == "paper" else word for word in tokens if word != "--preset"]
            tokens = shlex.split(" ".join(small).replace("--channels 64", "--channels 2"))
        if tokens[:2] == ["data", "check"]:
            kind = STUDIES[tokens[tokens.index("--study") + 1]].images
            tokens[2] = str(images(kind, tmp_path / f"{kind.name}.npz"))
        code, _, err = tpl(*tokens)
        assert code == 0, (command, err)
    named = re.findall(r"`(runs/\S+\.pdf)`", TEXT)
    assert len(named) == 10
    for name in named:
        for ending in (".pdf", ".png", ".svg"):
            assert Path(name).with_suffix(ending).stat().st_size > 1000
