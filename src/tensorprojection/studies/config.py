"""The settings of a run: every number that its results depend on.

One model for each study: :class:`RunConfig` has the settings that all studies share, and a study
with settings of its own derives from it. The fields are the settings of TOML files and the flags of
the command line, with their types, limits and descriptions.

Note [config.toml]: a run's folder has one file of settings. It is complete, and every reader of a
run believes it and nothing else. Its section ``run`` says what the run began with, and has a
checksum of all that the results depend on, so that a change by hand is noticed. Paths may change:
images and weights are compared by content.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from .data.splits import Split
from .errors import StudyError
from .results import checksum

if TYPE_CHECKING:
    from .study import Study

PHANTOMS = "phantoms"
PRESETS = ("smoke", "small", "paper")
CONFIG = "config.toml"
MOVABLE = ("data", "patients", "weights")  # paths that may change; the content is compared

Precision = Literal["32-true", "bf16-mixed"]


@dataclass(frozen=True)
class Absent:
    """The word for None in a file, as TOML has none: a setting left out comes from the preset."""

    word: str = "none"


@dataclass(frozen=True)
class Place:
    """A setting that is a path, relative to the file that has it, unless it is this word."""

    but: str | None = None


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
    data: Annotated[str, Place(PHANTOMS)] = Field(
        PHANTOMS,
        description="Images: a folder as Kaggle ships it, an .npz file, or "
        '"phantoms", which are generated (the default).',
    )
    images: Annotated[int | None, Absent("all")] = Field(
        None,
        ge=8,
        le=10_000_000,
        description="How many phantoms to generate, or how many real images to draw.",
    )
    size: int = Field(ge=16, le=4096, description="Side of the images in pixels.")
    skip_unreadable: bool = Field(
        False, description="Leave out damaged image files, and say how many."
    )
    split: Split = Field(
        "image",
        description="Single images at random (default), whole patients, or as the data set comes.",
    )
    patients: Annotated[str | None, Place()] = Field(
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
    def _absent(cls, given: Any) -> Any:
        words = {name: word for name in cls.model_fields if (word := absent_word(cls, name))}
        if not isinstance(given, Mapping):
            return given
        return {
            name: None if name in words and value == words[name] else value
            for name, value in given.items()
        }

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
        return {
            name: absent_word(type(self), name) if value is None else value
            for name, value in found.items()
        }

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
    fixed = {name: value for name, value in settings.items() if name not in MOVABLE}
    return checksum({**fixed, "run": about})


def own_settings(settings: type[RunConfig]) -> dict[str, FieldInfo]:
    """The settings that only this study has."""
    shared = RunConfig.model_fields
    return {name: field for name, field in settings.model_fields.items() if name not in shared}


def absent_word(settings: type[RunConfig], name: str) -> str | None:
    """What stands for None in a file; None where the setting cannot be None."""
    field = settings.model_fields[name]
    if type(None) not in getattr(field.annotation, "__args__", ()):
        return None
    return next((m.word for m in field.metadata if isinstance(m, Absent)), Absent().word)


def absolute(settings: type[RunConfig], name: str, value: Any, folder: Path) -> Any:
    """The setting; a path is made absolute, relative to the folder."""
    field = settings.model_fields.get(name)
    place = next((m for m in field.metadata if isinstance(m, Place)), None) if field else None
    if place is None or not isinstance(value, str):
        return value
    if value in (place.but, absent_word(settings, name)):
        return value
    return str((folder / value).resolve())


def resolve(
    study: Study[C],
    preset: str | None = None,
    file: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    trained_here: bool = True,
) -> C:
    """The configuration from a preset, then a file, then flags, each overriding the one before.

    Args:
        study: whose settings they are.
        preset: where to start; see :func:`preset_for`.
        file: TOML with any of the settings.
        flags: those given; None stands for one that is not.
        trained_here: whether the device must be one of this machine's.
    """
    given = {} if file is None else read_toml(file)
    if given.pop("study", study.reference) not in (study.reference, study.name):
        raise StudyError(f"Expected a configuration of the {study.name} study in {file}.")
    chosen = preset_for(preset, file, study)
    given.pop("preset", None)
    if chosen not in tuple(study.presets):  # what a file says may not even be hashable
        raise StudyError(f"Expected a preset of {', '.join(study.presets)}, got {chosen!r}.")
    if file is not None:
        given = {n: absolute(study.settings, n, v, file.parent) for n, v in given.items()}
    merged = {**study.presets[chosen], **given}
    merged |= {name: value for name, value in (flags or {}).items() if value is not None}
    config = checked(study, {**merged, "study": study.reference})
    unknown = [name for name in config.models if name not in study.models]
    if unknown:
        raise StudyError(f"Expected models of {', '.join(study.models)}, got {', '.join(unknown)}.")
    if trained_here:
        _check_device(config.device)
    return config


def preset_for(asked: str | None, file: Path | None, study: Study[Any] | None = None) -> Any:
    """The preset that is asked for, or else the file's, or else the small one; not checked.

    A study without a small one starts from its first.
    """
    if asked is not None:
        return asked
    usual = "small" if study is None or "small" in study.presets else next(iter(study.presets))
    return usual if file is None else read_toml(file).get("preset", usual)


def read_toml(file: Path) -> dict[str, Any]:
    """Return the settings of a TOML file; if it is a run's, they must be as the run wrote them."""
    settings = _parse(file)
    if "run" in settings:
        settings, _ = _verified(settings, file)
    return settings


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
            f"{file} has no section [run], so that no run has written it. Settings of your own go "
            "to another file: tpl run STUDY `config FILE`."
        )
    expected = about.pop("sha256", None)
    if expected != _checksum(settings, about):
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
    """The study's configuration of these settings, which that file holds."""
    try:
        return study.settings(**settings)
    except ValidationError as error:
        where = "" if file is None else f"{file}: "
        raise StudyError(f"{where}{_first_problem(error, study)}") from None


def _first_problem(error: ValidationError, study: Study[Any]) -> str:
    """One line for the first of pydantic's complaints."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    what = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"{where} is not a setting of the {study.name} study."
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
