"""Networks that a run has kept, made again for use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ..config import RunConfig
from ..errors import StudyError
from ..network_file import AGAIN, read_header, read_tensors, score
from ..record import check_begun, read_record
from ..registry import config_of, find_study, read_config
from ..results import UnitFiles
from ..samples import read_samples
from ..trial import checkpoint
from ..trial.checkpoint import DamagedError

# Images that a network is made from which starts from data; the kept values then take their place.
FIRST = 16


@dataclass(frozen=True)
class About:
    """What is known of a kept network."""

    config: RunConfig
    model: str
    trial: int  # from 1, as in the folders' names
    epoch: int
    metrics: Mapping[str, float]  # at that epoch
    class_names: tuple[str, ...]
    code: str


@dataclass(frozen=True)
class KeptNetwork:
    """A network as it was kept, for evaluation, and what is known of it."""

    network: nn.Module
    about: About


def load_network(run: Path, model: str, trial: int | Literal["best"] = "best") -> KeptNetwork:
    """A network of a run, in evaluation mode.

    Where none was kept, its checkpoint serves: the network after the last epoch.

    Args:
        run: the folder of the run.
        model: its name.
        trial: its number, from 1; "best": the trial in which the validation loss was lowest.
    """
    known = trials_of(run, model)
    if not known:
        raise StudyError(_nothing(run, model))
    if trial != "best" and trial not in known:
        listed = ", ".join(map(str, known))
        raise StudyError(f"Expected a trial of {listed} for {model} in {run}, got {trial}.")
    asked = known if trial == "best" else [trial]
    about = min((_about_of(run, k, model) for k in asked), key=lambda a: score(a.metrics))
    file = UnitFiles.of(run, about.trial - 1, model).network
    if file.exists():
        state = read_tensors(file)
    else:
        file = UnitFiles.of(run, about.trial - 1, model).checkpoint
        state = _checkpoint(file)
    return KeptNetwork(_made(about, state, file), about)


def trials_of(run: Path, model: str) -> list[int]:
    """The trials, from 1, that have a network of that name, kept or in a checkpoint."""
    check_is_run(run)
    found = {
        int(path.parent.name)
        for suffix in ("safetensors", "pt")
        for path in run.glob(f"trials/[0-9]*/*.{suffix}")
        if path.stem == model and path.parent.name.isdigit()
    }
    return sorted(found)


def check_is_run(run: Path) -> None:
    if not run.is_dir():
        raise StudyError(f"Expected the folder of a run, got {run}: there is no such folder.")
    if not (run / "trials").is_dir():
        raise StudyError(f"Expected the folder of a run, got {run}, which has no trials in it.")


def run_config(run: Path) -> RunConfig:
    """The settings of a run, by its record or its ``config.toml``."""
    check_begun(run)
    recorded = read_record(run).settings
    if recorded is not None:
        return config_of(recorded, run / "record.json")
    return read_config(run / "config.toml")


def _about_of(run: Path, trial: int, model: str) -> About:
    file = UnitFiles.of(run, trial - 1, model).network
    if file.exists():
        return _about(file)
    rows = UnitFiles.of(run, trial - 1, model).rows()
    if not rows:
        raise StudyError(f"Expected epochs of {model} in trial {trial} of {run}, got none.")
    last, samples, config = rows[-1], read_samples(run), run_config(run)
    names = samples.class_names if samples else find_study(config.study).images.class_names
    metrics = {k: v for k, v in last.items() if isinstance(v, float)}
    code = str(last.get("code", "unknown"))
    return About(config, model, trial, last["epoch"], metrics, tuple(names), code)


def _about(file: Path) -> About:
    header = read_header(file)
    try:
        return About(
            config_of(json.loads(header["config"]), file),
            header["model"],
            int(header["trial"]),
            int(header["epoch"]),
            json.loads(header["metrics"]),
            tuple(json.loads(header["class_names"])),
            header["code"],
        )
    except (KeyError, ValueError) as error:
        raise StudyError(f"{file} is damaged ({error}). {AGAIN}") from None


def _checkpoint(file: Path) -> dict[str, Any]:
    try:
        found = checkpoint.load(file)
    except DamagedError as error:
        raise StudyError(f"{error}. {AGAIN}") from None
    if found is None:
        raise StudyError(f"{file} is gone. {AGAIN}")
    return found.network


def _made(about: About, state: Mapping[str, Any], file: Path) -> nn.Module:
    config, study = about.config, find_study(about.config.study)
    if about.model not in study.models:
        raise StudyError(
            f"Expected a network of {', '.join(study.models)} in {file}, got {about.model}."
        )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        channels = 1 if study.images.mode == "L" else 3
        pixels = torch.rand(FIRST, channels, config.size, config.size)
        first = study.front(config).eval()(pixels)
        network = study.network(config, about.model, first)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        first_line = " ".join(str(error).splitlines()[:2])
        raise StudyError(
            f"{file} is not of this version's {about.model} ({first_line}). Use the version of "
            f"tensorprojection that trained it ({about.code})."
        ) from None
    return network.eval()


def _nothing(run: Path, model: str) -> str:
    stems = {p.stem for p in run.glob("trials/[0-9]*/*.safetensors")}
    names = ", ".join(sorted(stems | {p.stem for p in run.glob("trials/[0-9]*/*.pt")}))
    if not names:
        return f"Expected kept networks in {run}, got none: was it run with `keep none`?"
    return f"Expected a network of {names} in {run}, got {model}."
