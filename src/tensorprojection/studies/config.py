"""What a run is: every number that its results depend on, checked and written down."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from .errors import StudyError

StudyName = Literal["oct", "chest", "kvasir"]
Preset = Literal["smoke", "small", "paper"]
Split = Literal["image", "patient", "as-shipped"]
Compression = Literal["normal", "aggressive"]


# How a file says "None", which TOML cannot: a setting that is left out comes from a preset.
NONE = {"images": "all", "weights": "default"}


class RunConfig(BaseModel):
    """The resolved configuration of a run, as ``config.toml`` holds it.

    The upper bounds are far beyond any study's use. They are there so that a slip of the finger is
    told in one line, before memory or disk are asked for.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    study: StudyName
    data: str = "phantoms"
    images: int | None = Field(None, ge=8, le=10_000_000)
    size: int = Field(ge=16, le=4096)
    skip_unreadable: bool = False
    split: Split = "image"
    train_share: float = Field(1.0, gt=0, le=1)
    models: tuple[str, ...] = Field(min_length=1)
    trials: int = Field(ge=1, le=10_000)
    epochs: int = Field(ge=1, le=100_000)
    batch: int = Field(ge=1, le=1_000_000)
    learning_rate: float = Field(gt=0, allow_inf_nan=False)
    seed: int = Field(0, ge=0)
    threads: int = Field(1, ge=1, le=1024)
    device: str = "cpu"
    # chest
    backbone: str | None = None
    weights: str | None = None
    dropout: float | None = Field(None, ge=0, lt=1)
    # kvasir
    channels: int | None = Field(None, ge=1, le=4096)
    copies: int | None = Field(None, ge=1, le=1000)
    leaky: bool | None = None

    @field_validator(*NONE, mode="before")
    @classmethod
    def _none(cls, value: Any, info: ValidationInfo) -> Any:
        return None if value == NONE[str(info.field_name)] else value

    @model_validator(mode="after")
    def _own_settings_only(self) -> Self:
        own = OWN_SETTINGS[self.study]
        for settings in OWN_SETTINGS.values():
            for name in settings:
                given = getattr(self, name) is not None
                if name not in own and given:
                    raise ValueError(f"{name} is not a setting of the {self.study} study")
        for name in own:
            if getattr(self, name) is None and name not in NONE:
                raise ValueError(f"{name} is missing")
        repeated = {name for name in self.models if self.models.count(name) > 1}
        if repeated:
            raise ValueError(f"models are named twice: {', '.join(sorted(repeated))}")
        return self

    def as_settings(self) -> dict[str, Any]:
        """Every setting of the study in plain values; none is left out, also not where it is None.

        So nothing is left for a preset to fill in when they are read again.
        """
        others = {
            name
            for study, settings in OWN_SETTINGS.items()
            for name in settings
            if study != self.study
        }
        found = self.model_dump(mode="json", exclude=others)
        return {name: NONE[name] if value is None else value for name, value in found.items()}

    def as_toml(self) -> bytes:
        return tomli_w.dumps(self.as_settings()).encode()


# Settings that only one study has; None everywhere else.
OWN_SETTINGS: dict[str, tuple[str, ...]] = {
    "oct": (),
    "chest": ("backbone", "weights", "dropout"),
    "kvasir": ("channels", "copies", "leaky"),
}


def resolve(
    study: str,
    presets: Mapping[str, Mapping[str, Any]],
    known_models: tuple[str, ...],
    preset: Preset | None,
    file: Path | None,
    flags: Mapping[str, Any],
) -> RunConfig:
    """The configuration from a preset, then a file, then flags, each overriding the one before.

    Args:
        study: its name.
        presets: the study's settings by preset.
        known_models: the study's models.
        preset: where to start; see :func:`preset_for`.
        file: TOML with any of the settings.
        flags: those given; None stands for one that is not.
    """
    given = {} if file is None else read_toml(file)
    if given.pop("study", study) != study:
        raise StudyError(f"Expected a configuration of the {study} study in {file}.")
    chosen = preset_for(preset, file)
    given.pop("preset", None)
    if chosen not in tuple(presets):  # of which a file's may not even be hashable
        raise StudyError(f"Expected a preset of {', '.join(presets)}, got {chosen!r}.")
    merged = {**presets[chosen], **_absolute(given, file)}
    merged |= {name: value for name, value in flags.items() if value is not None}
    try:
        config = RunConfig(study=study, **merged)  # type: ignore[arg-type]
    except ValidationError as error:
        raise StudyError(_first_problem(error)) from None
    unknown = [name for name in config.models if name not in known_models]
    if unknown:
        raise StudyError(f"Expected models of {', '.join(known_models)}, got {', '.join(unknown)}.")
    _check_device(config.device)
    return config


def _absolute(given: Mapping[str, Any], file: Path | None) -> dict[str, Any]:
    """The settings with a file's paths seen from the file, wherever a command is given."""
    found = dict(given)
    for name in ("data", "weights"):
        value = found.get(name)
        if (
            file is not None
            and isinstance(value, str)
            and value not in ("phantoms", NONE.get(name))
        ):
            found[name] = str((file.parent / value).resolve())
    return found


def preset_for(asked: Preset | None, file: Path | None) -> Any:
    """The preset that is asked for, or else the file's, or else the small one; not checked."""
    if asked is not None:
        return asked
    return "small" if file is None else read_toml(file).get("preset", "small")


def read_toml(file: Path) -> dict[str, Any]:
    """The settings of a TOML file."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyError(f"Could not read {file}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise StudyError(f"Expected TOML in {file}: {error}.") from None


def read_config(file: Path) -> RunConfig:
    """The configuration that a run wrote."""
    return checked(read_toml(file), file)


def checked(settings: Mapping[str, Any], file: Path) -> RunConfig:
    """The configuration of these settings, which that file holds."""
    try:
        return RunConfig(**settings)
    except ValidationError as error:
        raise StudyError(f"{file}: {_first_problem(error)}") from None


def _first_problem(error: ValidationError) -> str:
    """One line for the first of pydantic's complaints."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    what = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        return f"{where} is not a setting of a run."
    if problem["type"] == "missing":
        return f"{where} is missing."
    if not where:
        return f"{what[0].upper()}{what[1:]}."
    return f"{where}: {what[0].lower()}{what[1:]}, got {problem['input']!r}."


def _check_device(device: str) -> None:
    import torch  # late, as whoever reads a configuration does not need it

    try:
        torch.zeros(1, device=torch.device(device)).item()  # "meta" has tensors, but no values
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise StudyError(f"The device {device!r} cannot be used: {first}") from None
