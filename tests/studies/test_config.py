"""Settings from presets, files and flags; a mistake is an error of one line."""

import dataclasses
import math

import pytest

from tensorprojection.studies.config import RunConfig, own_settings, read_toml, resolve
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.registry import STUDIES, read_config


def settle(study="oct", preset="smoke", file=None, **flags):
    known = STUDIES[study]
    return resolve(known, preset, file, flags)


@pytest.fixture
def toml(tmp_path):
    """``toml("epochs = 3")``: a file with that text."""

    def write(text):
        path = tmp_path / "settings.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


# The paper's numbers: sections 3.1.2, 3.2 and 3.3.2

PAPER = {
    "oct": {
        "size": 96,
        "learning_rate": 1e-3,
        "batch": 300,
        "epochs": 20,
        "trials": 30,
        "models": ("base", "tpl1", "tpl2"),
        "split": "fixed",
    },
    "chest": {
        "size": 160,
        "learning_rate": 1e-4,
        "batch": 64,
        "epochs": 20,
        "trials": 30,
        "models": ("base", "tpl"),
        "dropout": 0.5,
        "backbone": "densenet121",
    },
    "kvasir": {
        "size": 128,
        "channels": 16,
        "learning_rate": 1e-3,
        "batch": 50,
        "epochs": 25,
        "trials": 30,
        "models": ("base", "tpl"),
        "copies": 20,
        "leaky": False,
    },
}
# What the paper leaves to the reader, and no preset changes.
COMMON = {
    "data": "phantoms",
    "split": "image",
    "train_share": 1.0,
    "test_share": 0.0,
    "skip_unreadable": False,
    "seed": 0,
    "threads": 1,
    "device": "cpu",
    "precision": "32-true",
    "optimizer": "adam",
    "weight_decay": 0.0,
    "schedule": "constant",
}


@pytest.mark.parametrize("study", PAPER)
def test_the_papers_numbers(study):
    got = settle(study, "paper").model_dump(exclude_none=True)
    assert got == {"study": study, **COMMON, **PAPER[study]}


@pytest.mark.parametrize("study", PAPER)
@pytest.mark.parametrize("preset", ["small", "smoke"])
def test_smaller_presets_keep_the_models_and_how_they_learn(study, preset):
    got, paper = settle(study, preset), settle(study, "paper")
    for name in {"models", "learning_rate", "dropout", "leaky"} & got.as_settings().keys():
        assert getattr(got, name) == getattr(paper, name)
    assert got.split == "image"  # redrawn in each trial
    assert got.images is not None
    assert got.trials < paper.trials


# What overrides what


def test_a_file_overrides_the_preset_and_flags_override_the_file(toml):
    file = toml('epochs = 7\nbatch = 5\nmodels = ["tpl2", "base"]')
    got = settle(file=file, batch=9, trials=None)
    smoke = settle()
    assert (got.epochs, got.batch, got.trials) == (7, 9, smoke.trials)
    assert got.models == ("tpl2", "base")
    changed = {"epochs": 7, "batch": 9, "models": ("tpl2", "base")}
    assert got == smoke.model_copy(update=changed)


def test_a_flag_that_is_false_or_zero_counts_as_given(toml):
    file = toml("leaky = true\nseed = 4")
    got = settle("kvasir", file=file, leaky=False, seed=0)
    assert (got.leaky, got.seed) == (False, 0)


def test_a_preset_in_the_file(toml):
    file = toml('study = "kvasir"\npreset = "paper"\ntrials = 2')
    assert settle("kvasir", None, file) == settle("kvasir", "paper", trials=2)


def test_a_preset_that_is_asked_for_overrides_that_of_the_file(toml):
    file = toml('preset = "paper"\ntrials = 4')
    assert settle("oct", "smoke", file) == settle("oct", "smoke", trials=4)


def test_the_preset_is_small_where_nothing_says_otherwise(toml):
    assert settle("oct", None) == settle("oct", "small")
    assert settle("oct", None, toml("")) == settle("oct", "small")


# Round trip


@pytest.mark.parametrize("study", PAPER)
@pytest.mark.parametrize("preset", ["paper", "small", "smoke"])
def test_what_a_run_writes_is_complete(study, preset, tmp_path):
    """No preset fills anything in when it is read again, and what is None says so."""
    config = settle(study, preset, seed=2**60, data='/a "quoted" path/µ\'')
    path = tmp_path / "config.toml"
    path.write_bytes(config.as_toml())
    assert read_config(path) == config
    for other in (None, "paper", "small", "smoke"):
        assert settle(study, other, path) == config
    bare = resolve(dataclasses.replace(STUDIES[study], presets={"small": {}}), None, path)
    assert bare == config
    own = own_settings(STUDIES[study].settings)
    assert list(read_toml(path)) == [*RunConfig.model_fields, *own]


def test_none_is_written_as_a_word():
    settings = settle("chest", "paper").as_settings()
    assert (settings["images"], settings["weights"]) == ("all", "default")


def test_all_images_can_be_asked_for_in_a_file(toml):
    assert settle("oct", "smoke", toml('images = "all"')).images is None


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        settle().epochs = 3


# Mistakes

MISTAKES = [
    ("oct", {"epoch": 3}, "epoch is not a setting of the oct study."),
    ("oct", {"trials": "many"}, "trials: input should be a valid integer, got 'many'."),
    ("oct", {"trials": "3"}, "trials: input should be a valid integer, got '3'."),
    ("oct", {"trials": True}, "trials: input should be a valid integer, got True."),
    ("oct", {"trials": 2.5}, "trials: input should be a valid integer, got 2.5."),
    ("oct", {"models": "base"}, "models: input should be a valid tuple, got 'base'."),
    ("oct", {"models": [1]}, "models.0: input should be a valid string, got 1."),
    ("oct", {"models": []}, "models: tuple should have at least 1 item .*"),
    ("oct", {"trials": 0}, "trials: input should be greater than or equal to 1, got 0."),
    ("oct", {"epochs": -1}, "epochs: input should be greater than or equal to 1, got -1."),
    ("oct", {"batch": 0}, "batch: input should be greater than or equal to 1, got 0."),
    ("oct", {"images": 7}, "images: input should be greater than or equal to 8, got 7."),
    ("oct", {"size": 15}, "size: input should be greater than or equal to 16, got 15."),
    ("oct", {"seed": -1}, "seed: input should be greater than or equal to 0, got -1."),
    ("oct", {"threads": 0}, "threads: input should be greater than or equal to 1, got 0."),
    ("oct", {"learning_rate": 0}, "learning_rate: input should be greater than 0, got 0."),
    ("oct", {"learning_rate": math.nan}, "learning_rate: .* got nan."),
    ("oct", {"learning_rate": math.inf}, "learning_rate: .* finite .* got inf."),
    ("oct", {"split": "half"}, "split: input should be 'image', .* got 'half'."),
    ("chest", {"dropout": 1}, "dropout: input should be less than 1, got 1."),
    ("kvasir", {"copies": 0}, "copies: input should be greater than or equal to 1, got 0."),
    ("oct", {"dropout": 0.5}, "dropout is not a setting of the oct study."),
    ("oct", {"leaky": False}, "leaky is not a setting of the oct study."),
    ("chest", {"channels": 16}, "channels is not a setting of the chest study."),
    ("kvasir", {"backbone": "densenet121"}, "backbone is not a setting of the kvasir study."),
    ("oct", {"models": ["base", "tpl1", "base"]}, "Models are named twice: base."),
    ("oct", {"models": ["base", "tpl3", "x"]}, "Expected models of base, .* got tpl3."),
    ("chest", {"models": ["tpl2"]}, "Expected models of base, tpl, .*, got tpl2."),
    ("oct", {"trials": 30_000_000}, "trials: input should be less than or equal to 10000, .*"),
    ("oct", {"size": 20_000}, "size: input should be less than or equal to 4096, got 20000."),
    ("kvasir", {"copies": 10**8}, "copies: input should be less than or equal to 1000, .*"),
    ("oct", {"images": 10**12}, "images: input should be less than or equal to 10000000, .*"),
    ("oct", {"images": "some"}, "images: input should be a valid integer, got 'some'."),
    ("kvasir", {"channels": 10**9}, "channels: input should be less than or equal to 4096, .*"),
    ("oct", {"device": "abacus"}, "The device 'abacus' cannot be used: .*"),
    ("oct", {"device": ""}, "The device '' cannot be used: .*"),
    ("oct", {"device": "cuda:99"}, "The device 'cuda:99' cannot be used: .*"),
    ("oct", {"device": "meta"}, "The device 'meta' cannot be used: .*"),
]


@pytest.mark.parametrize(("study", "wrong", "message"), MISTAKES, ids=lambda part: str(part)[:40])
def test_a_mistake_is_an_error_of_one_line(study, wrong, message):
    with pytest.raises(StudyError, match=f"^{message}$") as raised:
        settle(study, **wrong)
    assert "\n" not in str(raised.value)


FILES = [
    ("epochs 3", "Expected TOML in .*settings.toml: .*"),
    (b"\xff\xfe\x00", "Expected TOML in .*settings.toml: .*"),
    ("epoch = 3", "epoch is not a setting of the oct study."),
    ('epochs = "x"', "epochs: input should be a valid integer, got 'x'."),
    ('trials = "3"', "trials: input should be a valid integer, got '3'."),
    ("[run]\nepochs = 3", ".*settings.toml is not as the run wrote it: .*"),
    ("[other]\nepochs = 3", "other is not a setting of the oct study."),
    ("weight_decay = 0.1", "Weight_decay needs optimizer adamw."),
    ('study = "chest"', "Expected a configuration of the oct study in .*settings.toml."),
    ('preset = "huge"', "Expected a preset of paper, small, smoke, got 'huge'."),
    ("preset = [1]", r"Expected a preset of paper, small, smoke, got \[1\]."),
    ("copies = 3", "copies is not a setting of the oct study."),
]


@pytest.mark.parametrize(("text", "message"), FILES, ids=lambda part: str(part)[:20])
def test_a_file_that_is_wrong(text, message, toml):
    with pytest.raises(StudyError, match=f"^{message}$") as raised:
        settle("oct", None, toml(text))
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(StudyError, match=r"Could not read .*none.toml: No such file"):
        settle(file=tmp_path / "none.toml")
    with pytest.raises(StudyError, match=r"Could not read .*: Is a directory"):
        settle(file=tmp_path)


def test_a_files_paths_are_seen_from_the_file(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('data = "images/oct.npz"\n')
    assert settle(file=file).data == str(tmp_path / "images" / "oct.npz")
    file.write_text('data = "phantoms"\n')
    assert settle(file=file).data == "phantoms"
