"""The settings of a run: every number that its results depend on.

One model for each study: :class:`RunConfig` has the settings that all studies share, and a study
with settings of its own derives from it. The fields are the settings of TOML files and the flags of
the command line, with their types, limits and descriptions.

Note [config.toml]: a run's folder has one file of settings. It is complete, and every reader of a
run uses it and nothing else. Its section ``run`` has the code, images and weights that the run
began with, and a checksum of all that the results depend on, so that a change by hand is noticed.
Paths may change: images and weights are compared by content.
"""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from .data.splits import SplitRule
from .errors import StudyError
from .results import checksum

if TYPE_CHECKING:
    from .study import Study

PHANTOMS = "phantoms"
CONFIG = "config.toml"
PACKAGE = Path(__file__).resolve().parents[1]
STUDY = ", study "  # stands before the digest of a user's own study
PATHS = ("data", "patients", "masks", "weights")  # relative to the file that has them
NONE = {"images": "all", "weights": "default"}  # TOML has no null: the word for None, else "none"

Precision = Literal["32-true", "bf16-mixed"]


class RunConfig(BaseModel):
    """The resolved configuration of a run, as ``config.toml`` holds it.

    >>> config = RunConfig(
    ...     study="oct", size=96, models=("base", "tpl1"), trials=3, epochs=8, batch=64,
    ...     learning_rate=1e-3,
    ... )
    >>> config.split, config.images
    ('image', None)

    The upper bounds are far beyond any study's use. They are there so that a typing mistake is
    reported in one line, before any memory or disk is used.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    study: str
    data: str = Field(
        PHANTOMS,
        description="Images: a folder as Kaggle ships it, an .npz file, or "
        '"phantoms", which are generated (the default).',
    )
    images: int | None = Field(
        None,
        ge=8,
        le=10_000_000,
        description="How many phantoms to generate, or how many real images to draw.",
    )
    size: int = Field(ge=16, le=4096, description="Side of the images in pixels.")
    skip_unreadable: bool = Field(
        False, description="Leave out corrupted image files, and count them."
    )
    split: SplitRule = Field(
        "image",
        description="Single images at random (default), whole patients, as the data set comes, or "
        "fixed: one random split for all trials.",
    )
    test_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the images for a test set, which neither trains nor chooses the "
        "epoch (default 0).",
    )
    patients: str | None = Field(
        None, description="CSV file with each image's patient: columns file and patient."
    )
    patient_pattern: str | None = Field(
        None,
        description=r"Regular expression for the patient in each file's name, such as 'P(\d+)_'.",
    )
    train_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the training set to use (default 1); validation stays whole.",
    )
    models: tuple[str, ...] = Field(
        min_length=1,
        strict=False,  # TOML and JSON have lists
        description="Networks, separated by commas; tpl summary lists them.",
    )
    trials: int = Field(
        ge=1, le=10_000, description="Repetitions, each with its own split and initial weights."
    )
    epochs: int = Field(ge=1, le=100_000, description="Epochs for each network.")
    batch: int = Field(ge=1, le=1_000_000, description="Batch size.")
    learning_rate: float = Field(gt=0, allow_inf_nan=False, description="Learning rate.")
    optimizer: Literal["adam", "adamw"] = Field(
        "adam", description="adam (default), or adamw, whose weight decay is decoupled."
    )
    weight_decay: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Weight decay of adamw (default 0)."
    )
    schedule: Literal["constant", "cosine"] = Field(
        "constant",
        description="Learning rate over the epochs: constant (default), or cosine, down to 0.",
    )
    seed: int = Field(0, ge=0, description="Seed of everything random.")
    threads: int = Field(
        1,
        ge=1,
        le=1024,
        description="Threads per process (default 1); changes the last bits of results.",
    )
    device: str = Field("cpu", description="cpu (default), cuda, cuda:1 …")
    precision: Precision = Field(
        "32-true", description="32-true (default), or bf16-mixed: half precision where it is safe."
    )

    @model_validator(mode="before")
    @classmethod
    def _read_none(cls, given: Any) -> Any:
        types = {name: get_args(field.annotation) for name, field in cls.model_fields.items()}
        words = {n: NONE.get(n, "none") for n, kinds in types.items() if type(None) in kinds}
        return {n: None if n in words and v == words[n] else v for n, v in given.items()}

    @model_validator(mode="after")
    def _weight_decay_of_adamw(self) -> Self:
        if self.weight_decay and self.optimizer != "adamw":
            raise ValueError("weight_decay needs optimizer adamw")
        return self

    @model_validator(mode="after")
    def _each_model_once(self) -> Self:
        repeated = {name for name in self.models if self.models.count(name) > 1}
        if repeated:
            raise ValueError(f"models are named twice: {', '.join(sorted(repeated))}")
        return self

    def as_settings(self) -> dict[str, Any]:
        """Return every setting in plain values, so that a preset has nothing to fill in."""
        found = self.model_dump(mode="json")
        return {n: NONE.get(n, "none") if v is None else v for n, v in found.items()}

    def as_toml(self, began: Began | None = None) -> bytes:
        """Return the content of a run's ``config.toml``; see Note [config.toml]."""
        settings, began = self.as_settings(), began or Began()
        about = {"code": began.code, "keep": began.keep, "inputs": dict(began.inputs)}
        section = {**about, "sha256": _checksum(settings, about)}
        return tomli_w.dumps({**settings, "run": section}).encode()


C = TypeVar("C", bound=RunConfig)


@dataclass(frozen=True)
class Began:
    """The beginning of a run: the code, digests of images and weights, which networks it saves."""

    code: str = "unknown"
    inputs: Mapping[str, str] = field(default_factory=dict)
    keep: str = "none"


def _checksum(settings: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    fixed = {name: value for name, value in settings.items() if name not in PATHS}
    return checksum({**fixed, "run": about})


def own_settings(settings: type[RunConfig]) -> dict[str, FieldInfo]:
    """Return the settings that only this study has."""
    shared = RunConfig.model_fields
    return {name: field for name, field in settings.model_fields.items() if name not in shared}


def absolute(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the settings with paths made absolute, relative to the folder."""

    def path(name: str, value: Any) -> Any:
        word = name not in PATHS or value in (PHANTOMS, NONE.get(name, "none"))
        return value if word or not isinstance(value, str) else str((folder / value).resolve())

    return {name: path(name, value) for name, value in settings.items()}


# Reading


def resolve(
    study: Study[C],
    preset: str | None = None,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    trained_here: bool = True,
) -> C:
    """Return the configuration from a preset, then a file, then flags; the later has precedence.

    Args:
        study: whose settings they are.
        preset: the preset; see :func:`preset_for`.
        file: TOML with any of the settings.
        flags: those given; None stands for one that is not.
        trained_here: True if the device must be one of this machine's.
    """
    given = read_toml(file)
    if given.pop("study", study.reference) not in (study.reference, study.name):
        raise StudyError(f"Expected a configuration of the {study.name} study in {file}.")
    chosen = preset_for(preset, file, study)
    given.pop("preset", None)
    if chosen not in tuple(study.presets):  # a file's may not even be hashable
        raise StudyError(f"Expected a preset of {', '.join(study.presets)}, got {chosen!r}.")
    given |= {name: value for name, value in (flags or {}).items() if value is not None}
    config = checked(study, {**study.presets[chosen], **given, "study": study.reference})
    for model in config.models:
        study.title_of(model)
    if trained_here:
        _check_device(config.device)
    return config


def preset_for(asked: str | None, file: Path | None, study: Study[Any]) -> Any:
    """Return the preset that is asked for, or the file's, or small, or the study's first."""
    usual = "small" if "small" in study.presets else next(iter(study.presets))
    return read_toml(file).get("preset", usual) if asked is None else asked


def read_toml(file: Path | None) -> dict[str, Any]:
    """Return the settings of a TOML file; if a run wrote it, they must be as the run wrote them."""
    if file is None:
        return {}
    settings = _parse(file)
    if "run" in settings:
        settings, _ = _verified(settings, file)
    return absolute(settings, file.parent)


def read_run(run: Path) -> tuple[dict[str, Any], Began]:
    """Return the settings of the run in that folder, and what it began with.

    ``StudyError`` if the folder is not a run's, or if its settings are not those that it wrote.
    """
    if not run.is_dir():
        raise StudyError(f"Expected the folder of a run, got {run}: there is no such folder.")
    file = run / CONFIG
    if not file.exists():
        raise StudyError(f"Expected the folder of a run, got {run}: it has no {CONFIG}.")
    return _verified(_parse(file), file)


def _verified(settings: dict[str, Any], file: Path) -> tuple[dict[str, Any], Began]:
    about = settings.pop("run", None)
    if not isinstance(about, dict):
        raise StudyError(
            f"{file} has no section [run]: no run has written it. Settings of your own go to "
            "another file: tpl run STUDY --config FILE."
        )
    if about.pop("sha256", None) != _checksum(settings, about):
        raise StudyError(
            f"{file} is not as the run wrote it: its checksum does not fit. Put back what was "
            "changed by hand. To use it as settings of another run, remove its section [run]."
        )
    return settings, Began(str(about.get("code")), about.get("inputs", {}), str(about.get("keep")))


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyError(f"Could not read {file}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StudyError(f"Expected TOML in {file}: {error}.") from None


def checked(study: Study[C], settings: Mapping[str, Any], file: Path | None = None) -> C:
    """Return the study's configuration of these settings; an error names the file they are from."""
    try:
        return study.settings(**settings)
    except ValidationError as error:
        where = "" if file is None else f"{file}: "
        raise StudyError(f"{where}{first_problem(error, study.name)}") from None


def first_problem(error: ValidationError, study: str) -> str:
    """Return one line for the first of pydantic's complaints."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    what = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"{where} is not a setting of the {study} study."
    if problem["type"] == "missing":
        return f"{where} is missing."
    if not where:
        return f"{what[0].upper()}{what[1:]}."
    return f"{where}: {what[0].lower()}{what[1:]}, got {problem['input']!r}."


def _check_device(device: str) -> None:
    import torch  # here, as reading a configuration does not need it

    try:
        torch.zeros(1, device=torch.device(device)).item()  # "meta" has tensors, but no values
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise StudyError(f"The device {device!r} cannot be used: {first}") from None


# The version of the code that trains: a table must not silently compare two versions


def code_version(study: Study[Any] | None = None) -> str:
    """Return all that decides the bits of a result beside settings and data.

    These are the package's version and git revision, the compiled kernels in use, the versions of
    torch and NumPy, and torch's instruction set; and for a user's own study a digest of its file.
    """
    source = None if study is None else study.source
    return _package() + ("" if source is None else f"{STUDY}{source.sha256[:12]}")


@cache
def _package() -> str:
    import torch

    import tensorprojection

    kernels = tensorprojection.kernels()
    return (
        f"{tensorprojection.__version__}{git_revision()}, "
        f"kernels {kernels.variant if kernels else 'off'}, "
        f"torch {version('torch')} {torch.backends.cpu.get_cpu_capability()}, "
        f"numpy {version('numpy')}"
    )


@cache
def git_revision() -> str:
    """Return the last revision of what trains, as "+abc1234"; empty if it is not in git.

    A change that is not committed adds ".dirty". The command line and the report train nothing.
    """

    def git(*arguments: str) -> str:
        paths = ["--", ".", ":!cli", ":!bench", ":!studies/report"]
        command = ["git", "-C", str(PACKAGE), *arguments, *paths]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
        return done.stdout.strip()

    try:
        found = git("log", "-1", "--format=%h")
        changed = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"+{found}{'.dirty' if changed else ''}" if found else ""
