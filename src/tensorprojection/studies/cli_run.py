"""``tpl run``: a study of the paper, from one command."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from .config import Compression, Preset, Split, StudyName

CHEST = Group("Chest study")
KVASIR = Group("Kvasir study")
WHAT = Group("What is run", sort_key=0)
Keep = Literal["best", "last", "none"]  # as in kept/networks.py, which loads torch
HOW = Group("How it is run", sort_key=1)
MOST_JOBS = 1024


def run(
    study: Annotated[StudyName, Parameter(help="Which of the paper's studies.")],
    /,
    *,
    data: Annotated[
        str | None,
        Parameter(
            group=WHAT,
            help="Images: a folder as Kaggle ships it, a zip or tar file of one, an .npz file, or "
            '"phantoms", which are generated (the default).',
        ),
    ] = None,
    preset: Annotated[
        Preset | None,
        Parameter(
            group=WHAT,
            help="Where settings start: the paper's numbers, a size for a laptop (minutes; the "
            "default), or for a test (seconds).",
        ),
    ] = None,
    models: Annotated[
        str | None, Parameter(group=WHAT, help="Networks, with commas: tpl summary lists them.")
    ] = None,
    trials: Annotated[
        int | None, Parameter(group=WHAT, help="Repetitions, each with its own split and start.")
    ] = None,
    epochs: Annotated[
        int | None, Parameter(group=WHAT, help="Epochs a network is trained.")
    ] = None,
    batch: Annotated[int | None, Parameter(group=WHAT, help="Images a step.")] = None,
    learning_rate: Annotated[float | None, Parameter(group=WHAT, help="Adam's.")] = None,
    images: Annotated[
        int | None,
        Parameter(group=WHAT, help="How many phantoms, or how many drawn of the real images."),
    ] = None,
    size: Annotated[
        int | None,
        Parameter(
            group=WHAT, help="Side of the images in pixels; the paper's for kvasir: 128, 160, 192."
        ),
    ] = None,
    split: Annotated[
        Split | None,
        Parameter(
            group=WHAT,
            help="Images at random (default), whole patients, or as the data set is divided.",
        ),
    ] = None,
    train_share: Annotated[
        float | None,
        Parameter(
            group=WHAT,
            help="Share of the training side that is used, 1 by default; validation is whole.",
        ),
    ] = None,
    seed: Annotated[int | None, Parameter(group=WHAT, help="Of everything random.")] = None,
    config: Annotated[
        Path | None, Parameter(group=WHAT, help="A TOML file of settings; flags override it.")
    ] = None,
    backbone: Annotated[
        str | None,
        Parameter(group=CHEST, help="The frozen network: densenet121 or efficientnet-lite0."),
    ] = None,
    weights: Annotated[
        Path | None, Parameter(group=CHEST, help="A file of the frozen network's weights.")
    ] = None,
    dropout: Annotated[
        float | None, Parameter(group=CHEST, help="Before the last layer; 0 for none.")
    ] = None,
    channels: Annotated[
        int | None,
        Parameter(group=KVASIR, help="Of the first convolution; the paper's: 16 and 64."),
    ] = None,
    compression: Annotated[
        Compression | None,
        Parameter(group=KVASIR, help="Which projection beside the baseline: by 2, or by 4."),
    ] = None,
    copies: Annotated[
        int | None, Parameter(group=KVASIR, help="Augmented copies of each training image.")
    ] = None,
    leaky: Annotated[
        bool | None,
        Parameter(group=KVASIR, negative=(), help="LeakyReLU(0.1) after the projection."),
    ] = None,
    jobs: Annotated[
        int | None,
        Parameter(group=HOW, help="Processes; as many as fill the machine by default."),
    ] = None,
    threads: Annotated[
        int | None,
        Parameter(group=HOW, help="Threads of each process, 1 by default; changes the last bits."),
    ] = None,
    device: Annotated[
        str | None, Parameter(group=HOW, help="cpu (default), cuda, cuda:1 …")
    ] = None,
    skip_unreadable: Annotated[
        bool | None,
        Parameter(group=HOW, negative=(), help="Leave damaged image files out, and count them."),
    ] = None,
    unpack_limits: Annotated[
        float | None,
        Parameter(group=HOW, help="How many times as much as usual an archive may hold."),
    ] = None,
    out: Annotated[
        Path | None, Parameter(group=HOW, help="The run's folder; runs/STUDY-PRESET by default.")
    ] = None,
    keep: Annotated[
        Keep,
        Parameter(
            group=HOW,
            help="Which network of each training is kept: that with the least validation loss, the "
            "last, or none.",
        ),
    ] = "best",
    tensorboard: Annotated[
        bool,
        Parameter(group=HOW, negative=(), help="Write event files for TensorBoard as well."),
    ] = False,
    mix_versions: Annotated[
        bool,
        Parameter(
            group=HOW,
            negative=(),
            help="Go on with a run that another version of the code has begun; its table says so.",
        ),
    ] = False,
) -> None:
    """Train a study's networks over many trials, and draw the paper's curves.

    Stop it whenever you like, or let it be killed: the same command goes on from there, with the
    results of a run that never stopped.
    """
    from rich.console import Console

    from .cli_report import report
    from .config import preset_for, resolve
    from .data.sources import allow_archive
    from .errors import StudyError
    from .kept.tensorboard import Events
    from .progress import Watch
    from .registry import STUDIES
    from .results import RESULTS
    from .run import default_jobs
    from .run import run as carry_out

    chosen = None if models is None else tuple(m.strip() for m in models.split(",") if m.strip())
    if compression is not None:
        if study != "kvasir":
            raise StudyError(f"--compression is not a setting of the {study} study.")
        if chosen is not None:
            raise StudyError("Expected --models or --compression, got both.")
        chosen = ("base", "tpl" if compression == "normal" else "tpl-aggressive")
    flags: dict[str, Any] = {
        "data": _place(data),
        "models": chosen,
        "trials": trials,
        "epochs": epochs,
        "batch": batch,
        "learning_rate": learning_rate,
        "images": images,
        "size": size,
        "split": split,
        "train_share": train_share,
        "seed": seed,
        "backbone": backbone,
        "weights": None if weights is None else str(weights.resolve()),
        "dropout": dropout,
        "channels": channels,
        "copies": copies,
        "leaky": leaky,
        "threads": threads,
        "device": device,
        "skip_unreadable": skip_unreadable,
    }
    known = STUDIES[study]
    resolved = resolve(study, known.presets, tuple(known.models), preset, config, flags)
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise StudyError(f"Expected 1 to {MOST_JOBS} jobs, got {jobs}.")
    folder = out if out is not None else Path("runs") / f"{study}-{preset_for(preset, config)}"
    processes = jobs or default_jobs(resolved.threads, resolved.device)
    if unpack_limits is not None:
        allow_archive(resolved.data, unpack_limits)
    console = Console()
    try:
        with Watch(console) as watch, ExitStack() as open_files:
            also = open_files.enter_context(Events(folder)).show if tensorboard else _nothing
            outcome = carry_out(resolved, folder, processes, watch, mix_versions, keep, also)
    except KeyboardInterrupt as stop:
        console.print("Stopped. The same command goes on from here.")
        sys.exit(getattr(stop, "code", 130))
    if outcome.was_finished:
        console.print(f"{folder} is finished: nothing is left to train.", highlight=False)
    if (folder / RESULTS).exists():
        report(folder)
    if outcome.failures:
        print(
            f"tpl: {len(outcome.failures)} networks were not trained; see above.", file=sys.stderr
        )
        sys.exit(1)


def _nothing(event: object) -> None:
    """Nobody else wants to know."""


def _place(data: str | None) -> str | None:
    """Where the images are, whatever folder a later command is given in."""
    return data if data is None or data == "phantoms" else str(Path(data).resolve())
