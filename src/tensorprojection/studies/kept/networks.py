"""Networks that a run keeps: safetensors files beside their rows.

What a network was made with is in the file's own header, so that there is no second file to lose,
and both are written whole or not at all. A network is kept before its epoch's checkpoint is: see
Note [Observed before the checkpoint] in observer.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from .. import checkpoint
from ..checkpoint import DamagedError
from ..config import RunConfig, checked, read_toml
from ..data.kinds import kind_of
from ..errors import StudyError
from ..files import write_whole
from ..record import read_record
from ..registry import STUDIES
from ..results import Row, UnitFiles
from .samples import read_samples

Keep = Literal["best", "last", "none"]

# Raised when a file's content changes its meaning.
FORMAT = "1"
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


# Keeping


class Keeper:
    """Keeps a unit's network after an epoch, if it is to be kept."""

    def __init__(self, keep: Keep, run: Path, config: RunConfig, trial: int, model: str) -> None:
        self.keep, self.config, self.trial, self.model = keep, config, trial, model
        self.file = network_file(run, trial, model)
        samples = read_samples(run)
        known = samples.class_names if samples else kind_of(config.study).class_names
        self.class_names = tuple(known)

    def take(self, network: nn.Module, row: Row) -> None:
        """The network after this epoch: the last is always kept, the best where it is better."""
        if self.keep == "none" or (self.keep == "best" and self._is_better_there(row)):
            return
        metrics = {k: v for k, v in row.items() if k not in ("epoch", "seconds", "code")}
        metadata = {
            "format": FORMAT,
            "config": json.dumps(self.config.as_settings()),
            "model": self.model,
            "trial": str(self.trial + 1),
            "epoch": str(row["epoch"]),
            "metrics": json.dumps(metrics),
            "class_names": json.dumps(self.class_names),
            "code": str(row["code"]),
            "keep": self.keep,
        }
        tensors = {
            name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()
        }
        write_whole(self.file, save(tensors, metadata))

    def _is_better_there(self, row: Row) -> bool:
        """Whether an earlier epoch was better; by the file itself, which a kill leaves whole.

        A file of this epoch or a later one is of a process that was killed, or of a training that
        was lost; what it would have kept comes again.
        """
        try:
            about = _about(self.file, _header(self.file))
        except (StudyError, FileNotFoundError):
            return False
        return bool(about.epoch < row["epoch"] and about.metrics["loss"] <= row["loss"])


def network_file(run: Path, trial: int, model: str) -> Path:
    """Where a unit's network is kept; trials count from 0."""
    return run / "trials" / f"{trial + 1:03d}" / f"{model}.safetensors"


# Reading


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
    about = min((_about_of(run, k, model) for k in asked), key=lambda a: a.metrics["loss"])
    file = network_file(run, about.trial - 1, model)
    if file.exists():
        state = _tensors(file)
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
    recorded = read_record(run).settings
    if recorded is not None:
        return checked(recorded, run / "record.json")
    return checked(read_toml(run / "config.toml"), run / "config.toml")


def _about_of(run: Path, trial: int, model: str) -> About:
    file = network_file(run, trial - 1, model)
    if file.exists():
        return _about(file, _header(file))
    rows = UnitFiles.of(run, trial - 1, model).rows()
    if not rows:
        raise StudyError(f"Expected epochs of {model} in trial {trial} of {run}, got none.")
    last, samples, config = rows[-1], read_samples(run), run_config(run)
    names = samples.class_names if samples else kind_of(config.study).class_names
    metrics = {k: v for k, v in last.items() if isinstance(v, float)}
    code = str(last.get("code", "unknown"))
    return About(config, model, trial, last["epoch"], metrics, tuple(names), code)


def _header(file: Path) -> dict[str, str]:
    if not file.is_file():
        raise FileNotFoundError(file)
    try:
        with safe_open(file, "pt") as opened:
            return dict(opened.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise StudyError(f"{file} is damaged ({error}). {AGAIN}") from None


def _about(file: Path, header: Mapping[str, str]) -> About:
    if header.get("format") != FORMAT:
        found = header.get("format", "none")
        raise StudyError(
            f"Expected a network of format {FORMAT} in {file}, got {found}: another version of "
            "tensorprojection, or another program, has written it. Use that one."
        )
    try:
        return About(
            checked(json.loads(header["config"]), file),
            header["model"],
            int(header["trial"]),
            int(header["epoch"]),
            json.loads(header["metrics"]),
            tuple(json.loads(header["class_names"])),
            header["code"],
        )
    except (KeyError, ValueError) as error:
        raise StudyError(f"{file} is damaged ({error}). {AGAIN}") from None


def _tensors(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, "pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
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
    config, study = about.config, STUDIES[about.config.study]
    if about.model not in study.models:
        raise StudyError(
            f"Expected a network of {', '.join(study.models)} in {file}, got {about.model}."
        )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        first = study.front(config).eval()(torch.rand(FIRST, 3, config.size, config.size))
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
        return f"Expected kept networks in {run}, got none: was it run with --keep none?"
    return f"Expected a network of {names} in {run}, got {model}."


AGAIN = "Remove it, and run the same command again."
