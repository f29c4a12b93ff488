"""A study in a user's own file or module runs with all that the paper's studies have."""

import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import torch
from PIL import Image
from rich.console import Console
from small_runs import results, train_here
from torch import nn

from tensorprojection.cli.progress import Watch
from tensorprojection.studies import ImageKind, Study, load
from tensorprojection.studies.config import resolve
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.executors.base import JobTrainer
from tensorprojection.studies.registry import STUDIES, find_study, import_study, read_config
from tensorprojection.studies.run import run
from tensorprojection.studies.training.job import Epoch

# That the command line is read is what is meant here.
pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens")

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_study.py"
TINY = Path(__file__).parents[1] / "studies" / "tiny_study.py"
SMALL = ["--trials", "2", "--epochs", "2", "--images", "16", "--jobs", "1"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(tmp_path / "cache"))


def here(task_events=None):
    """An executor in this process, which is stopped after so many epochs."""

    def run_units(units, jobs, task):
        said = []

        def say(event):
            said.append(event)
            if sum(isinstance(e, Epoch) for e in said) == task_events:
                raise KeyboardInterrupt

        trainer = JobTrainer(task)
        for unit in units:
            yield train_here(trainer, unit, say)

    return run_units


def carry_out(config, folder, stop_after=None, **options):
    with Watch(Console(quiet=True)) as watch:
        study = find_study(config.study)
        return run(study, config, folder, 1, watch, execute=here(stop_after), **options)


@pytest.mark.skipif(not EXAMPLE.is_file(), reason="examples come with a clone of the project")
def test_the_example_runs_from_the_command_line(tmp_path, tpl, monkeypatch):
    """Its worker, in a process of its own, imports the file; it is found again from anywhere."""
    assert len(EXAMPLE.read_text().splitlines()) < 60
    monkeypatch.chdir(EXAMPLE.parent)
    code, out, err = tpl("run", EXAMPLE.name, *SMALL, "--width", "4", "--out", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert (code, err) == (0, "")
    frame = pl.read_parquet(tmp_path / "run" / "results.parquet")
    assert frame["study"].unique().to_list() == ["stripes"]
    assert sorted(frame.select("model", "trial", "epoch").rows()) == [
        (model, trial, epoch) for model in ("base", "tpl") for trial in (1, 2) for epoch in (1, 2)
    ]
    assert "Stripes, 32 × 32, phantoms: validation accuracy" in out
    assert (tmp_path / "run" / "figures" / "overview.png").is_file()
    again = read_config(tmp_path / "run" / "config.toml")
    assert again.width == 4
    assert carry_out(again, tmp_path / "run").was_finished


@pytest.mark.skipif(not EXAMPLE.is_file(), reason="examples come with a clone of the project")
def test_a_run_of_the_example_that_is_stopped_goes_on_to_the_bit(tmp_path):
    flags = {"trials": 2, "epochs": 2, "images": 16}
    config = resolve(import_study(str(EXAMPLE)), None, None, flags)
    carry_out(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        carry_out(config, tmp_path / "stopped", stop_after=3)
    assert not (tmp_path / "stopped" / "trials" / "002").exists()
    carry_out(config, tmp_path / "stopped")
    assert results(tmp_path / "stopped").equals(results(tmp_path / "whole"))


def test_real_images_of_ones_own(tmp_path, tpl):
    """A folder for each class, alone or in train, val and test; nothing else is declared."""
    for name, level in (("light", 200), ("dark", 40)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for k in range(8):
            Image.new("L", (20, 24), level + k).save(tmp_path / "images" / name / f"{k}.png")
    study = import_study(str(TINY))
    config = resolve(study, None, None, {"data": str(tmp_path / "images"), "images": 16})
    carry_out(config, tmp_path / "run")
    assert results(tmp_path / "run").height == 2
    code, out, _ = tpl("data", "check", tmp_path / "images", "--study", TINY)
    assert code == 0
    assert "tiny, 16 images" in " ".join(out.split())


DECLARED = """
class Declared(Study):
    def copies(self, config):
        return Copies({{"light": 0, "dark": 2}}, Augmentation(rotation=10, flip_horizontal=True))

    {method}

TINY = Declared(**vars(TINY))
"""
PREPROCESS = "def preprocess(self, config): return nn.AvgPool2d(2)"
FROZEN = 'def frozen(self, config): return Frozen("efficientnet-lite0")'


@pytest.mark.parametrize("method", [PREPROCESS, FROZEN], ids=["preprocess", "frozen"])
def test_copies_and_layers_before_the_network_are_declared(method, tmp_path):
    """The layers are those of training as well as those of a prediction."""
    width = "(config.size // 2)**2" if method == PREPROCESS else "1280"
    text = TINY.read_text().replace("config.size**2", width)
    names = "Augmentation, Copies, Frozen, ImageKind"
    (tmp_path / "mine.py").write_text(
        text.replace("import ImageKind", f"import {names}") + DECLARED.format(method=method)
    )
    study = import_study(str(tmp_path / "mine.py"))
    config = resolve(study, None, None, {"size": 32, "epochs": 1})
    study.check_networks(config)
    assert not carry_out(config, tmp_path / "run").failures
    data = study.open(config, study.prepare(config, 1, lambda *_: None))
    training, validation, _ = data.split(0)
    assert len(training) - data.count_originals(training) == 2 * (
        data.count_originals(training) // 2
    )
    assert max(validation) < 16
    network = load(tmp_path / "run", "base", study=study)
    made = study.images.phantoms(16, seed=config.seed, size=32)
    x = torch.from_numpy(made.images[validation])[:, None].float() / 255
    before = study.preprocess(config).eval()
    with torch.no_grad():
        assert torch.allclose(network(before(x)), network(data.batch(validation)[0]), atol=1e-5)


def test_the_studys_file_is_part_of_the_code(tmp_path):
    """A run is not carried on by another version of it in silence, wherever the file lies."""
    file = tmp_path / "mine.py"
    shutil.copy(TINY, file)
    config = resolve(import_study(str(file)), None, None, {"epochs": 1})
    carry_out(config, tmp_path / "run")
    moved = tmp_path / "elsewhere" / "mine.py"
    moved.parent.mkdir()
    shutil.copy(TINY, moved)
    again = resolve(import_study(str(moved)), None, None, {"epochs": 2})
    carry_out(again, tmp_path / "run")
    assert results(tmp_path / "run").height == 2
    changed = tmp_path / "changed" / "mine.py"
    changed.parent.mkdir()
    changed.write_text(TINY.read_text() + "\n# another version\n")
    other = resolve(import_study(str(changed)), None, None, {"epochs": 3})
    with pytest.raises(StudyError, match=r"was begun with .*, study .* but here is"):
        carry_out(other, tmp_path / "run")


def test_settings_of_ones_own_are_checked_like_all_others(tmp_path, tpl):
    command = ["run", EXAMPLE, *SMALL, "--out", tmp_path / "run"]
    code, _, err = tpl(*command, "--width", "0")
    assert code == 2
    assert err == "tpl: width: input should be greater than or equal to 1, got 0.\n"
    (tmp_path / "a.toml").write_text('width = "8"')
    code, _, err = tpl(*command, "--config", tmp_path / "a.toml")
    assert (code, "width: input should be a valid integer, got '8'" in err) == (2, True)
    assert tpl(*command, "--backbone", "densenet121")[0] == 2


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ((FROZEN, PREPROCESS), "cannot override preprocess"),
        (("phantoms = partial(light_and_dark)",), "Expected phantoms to be a function"),
        (('copies = lambda self, config: Copies({"light": 1}, None)',), "for each of the classes"),
    ],
    ids=["frozen and preprocess", "phantoms", "copies"],
)
def test_what_a_study_declares_is_checked(changes, says, tmp_path, tpl):
    own = "\n    ".join(change for change in changes if not change.startswith("phantoms"))
    text = TINY.read_text().replace("import ImageKind", "import Copies, Frozen, ImageKind")
    if FROZEN in changes:
        text = text.replace("config.size**2", "1280")
    text += f"\nclass Declared(Study):\n    {own or 'pass'}\n\nTINY = Declared(**vars(TINY))\n"
    if "phantoms" in changes[0]:
        text += "from functools import partial\nfrom dataclasses import replace\n"
        text += "made = replace(TINY.images, phantoms=partial(TINY.images.phantoms))\n"
        text += "TINY = replace(TINY, images=made)\n"
    (tmp_path / "mine.py").write_text(text)
    code, _, err = tpl("run", tmp_path / "mine.py", "--out", tmp_path / "run", "--size", "32")
    assert (code, err.count("\n"), says in err) == (2, 1, True), err


WRONG = [
    ("nowhere.py", None, "Expected a file with a Study at .*nowhere.py, got none"),
    ("a.py", "import os\n1 / 0\n", "Could not import .*a.py: ZeroDivisionError in line 2"),
    ("a.py", "x = (\n", "Could not import .*a.py: SyntaxError"),
    ("a.py", "raise SystemExit(0)\n", "Could not import .*a.py: SystemExit in line 1: 0"),
    ("a.py", "x = 3\n", "Expected one Study in .*a.py, got none"),
    ("a.py:MINE", "x = 3\n", "Expected a Study named MINE in .*a.py, got none"),
    ("no.such:THING", None, "Expected a study of oct, .* got 'no.such:THING'"),
    ("mnist", None, "Expected a study of oct, chest, kvasir, images, or a .py .* got 'mnist'"),
]


@pytest.mark.parametrize(("reference", "text", "message"), WRONG, ids=lambda part: str(part)[:20])
def test_a_mistake_in_a_study_is_an_error_of_one_line(
    reference, text, message, tmp_path, tpl, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "a.py").write_text(text)
    code, _, err = tpl("run", reference)
    assert code == 2
    assert err.startswith("tpl: ")
    assert err.count("\n") == 1
    with pytest.raises(StudyError, match=message):
        import_study(reference)


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "a/b", ".x", "", "x" * 101, "a\nb", "a b"])
def test_names_that_are_not_names_of_files_are_refused(name):
    images = ImageKind("mine", ("a", "b"))
    with pytest.raises(StudyError, match="Expected names of studies and models of"):
        Study("mine", "Mine", images, {"base": "a", name: "b"}, lambda *_: nn.Identity(), {})
    with pytest.raises(StudyError, match="Expected names of studies and models of"):
        Study(name, "Mine", images, {"base": "a"}, lambda *_: nn.Identity(), {})


COMMANDS = [
    ("report", "DIR"),
    ("watch", "DIR", "--once"),
    ("predict", "DIR", "x.png", "--model", "base"),
    ("evaluate", "DIR", "--data", "x.npz"),
    ("export", "DIR", "--model", "base", "--to", "x.onnx"),
]


NETWORKS = [
    ("None", "base fails for images of 16 × 16: AttributeError: 'NoneType' "),
    ("nn.Flatten()", "base has no parameters, so there is nothing to train."),
    ("nn.Linear(config.size, 3)", "Expected base to give shape (2, 2) for two images, got (2, 1, "),
    ("nn.Linear(5, 2)", "base fails for images of 16 × 16: RuntimeError: mat1"),
]


@pytest.mark.parametrize(("network", "says"), NETWORKS, ids=lambda part: str(part)[:16])
def test_a_network_that_cannot_be_trained_is_refused(network, says, tmp_path, tpl):
    text = TINY.read_text().replace("    width =", f"    return {network}\n    width =")
    (tmp_path / "mine.py").write_text(text)
    code, out, err = tpl("run", tmp_path / "mine.py", "--out", tmp_path / "run")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"tpl: {says}")
    assert not (tmp_path / "run").exists()


ONE_BY_ONE = """
import sys
from tensorprojection.cli.main import main
for arguments in {commands!r}:
    sys.argv = ["tpl", *arguments]
    try:
        main()
    except SystemExit:
        pass
"""


def test_code_that_a_runs_folder_names_is_not_run(tmp_path):
    """A folder that somebody hands over is data: its settings may name any file."""
    file, folder, ran = tmp_path / "mine.py", tmp_path / "run", tmp_path / "ran"
    shutil.copy(TINY, file)
    carry_out(resolve(import_study(str(file)), None, None, {"epochs": 1}), folder)
    file.write_text(f"open({str(ran)!r}, 'w')\n{TINY.read_text()}")

    def call(commands):
        named = [[part.replace("DIR", str(folder)) for part in command] for command in commands]
        arguments = [sys.executable, "-c", ONE_BY_ONE.format(commands=named)]
        done = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, timeout=300)
        assert "Traceback" not in done.stderr
        assert "run only if you name its file. Add --study FILE" in done.stderr

    call(COMMANDS)
    assert not ran.exists()


def test_the_papers_studies_are_found_by_name():
    assert all(find_study(name) is study for name, study in STUDIES.items())
