"""The networks that a run has saved: load, export, predict, evaluate."""

from __future__ import annotations

import csv
import hashlib
import io
import logging
import secrets
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from tensorprojection import (
    FrozenProjection,
    TensorProjection,
    TransposeTensorProjection,
    fold_projections,
)

from .config import PATHS, STUDY, RunConfig, own_settings
from .data.cache import open_stored
from .data.decode import UnreadableError, fit, open_image
from .data.images import ImageSet
from .data.read import read_regular
from .data.sources import open_images
from .errors import StudyError
from .files import write_whole
from .inputs import Samples, load_images, pixels, samples_of
from .network_file import About, read_network, score
from .registry import config_of, find_study, read_config
from .results import HELD_OUT, JobFiles, write_results
from .study import Study
from .training.observer import Observer, encode_observed
from .training.train import computed, output_of

Trial = int | Literal["best"]
Network = Callable[[Tensor], Tensor]

PROJECTIONS = (TensorProjection, TransposeTensorProjection, FrozenProjection)
FIRST = 16  # images for a network that is initialized from data; the saved values replace it
SUFFIXES = (".onnx", ".pt2")
KEY = "tensorprojection"  # of the record in an exported file
TOLERANCE = 1e-4
MOST_CHECKED = 64  # validation images that an export is checked on
BATCH, CHUNK = 16, 64  # images in the network, and in memory, at once
MOST_BYTES = 2**31  # of an exported file


# Loading


@dataclass(frozen=True)
class Trained:
    """A saved network, in evaluation mode."""

    network: nn.Module
    study: Study[Any]
    config: RunConfig
    about: About

    def from_pixels(self) -> nn.Module:
        """Return the network with its preprocessing: from pixels in [0, 1] to logits."""
        return nn.Sequential(self.study.preprocess(self.config), self.network).eval()


def load_network(
    run: Path, model: str, trial: Trial = "best", own: Study[Any] | None = None
) -> Trained:
    """Return a network of a run; see :func:`tensorprojection.studies.load`."""
    saved = saved_networks(run)
    files = [file for (k, name), file in saved.items() if name == model and trial in ("best", k)]
    if not files:
        listed = ", ".join(f"{name} of trial {k}" for k, name in saved) or "none"
        what = model if trial == "best" else f"{model} of trial {trial}"
        raise StudyError(f"Expected a saved network of {what} in {run}, got {listed}.")
    read = [(*read_network(file), file) for file in files]
    return _rebuilt(*min(read, key=lambda found: score(found[0].metrics)), own)


def saved_networks(run: Path) -> dict[tuple[int, str], Path]:
    """Return the files of a run's networks by trial, from 1, and model."""
    if not (run / "trials").is_dir():
        what = "has no trials in it" if run.is_dir() else "is not there"
        raise StudyError(f"Expected the folder of a run, got {run}, which {what}.")
    found = {
        (int(file.parent.name), file.stem): file
        for file in run.glob("trials/[0-9]*/*.safetensors")
        if file.parent.name.isdigit()
    }
    return dict(sorted(found.items()))


def _rebuilt(about: About, state: dict[str, Tensor], file: Path, own: Study[Any] | None) -> Trained:
    config = config_of(about.config, file, own)
    study = find_study(config.study)
    if study.source is not None:
        then, now = about.code.partition(STUDY)[2], study.source.sha256[:12]
        if then != now:
            raise StudyError(
                f"{file} was trained with other code than {study.reference} has now (sha256 "
                f"{then or 'unknown'}, now {now}). Name the file as it was then."
            )
    try:
        study.title_of(about.model)
    except StudyError as error:
        raise StudyError(f"{file}: {error}") from None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(0)
        channels = 1 if study.images.mode == "L" else 3
        pixels = torch.rand(FIRST, channels, config.size, config.size)
        network = study.network(config, about.model, study.preprocess(config).eval()(pixels))
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        first = " ".join(str(error).splitlines()[:2])
        raise StudyError(
            f"{file} is not of this version's {about.model} ({first}). Use the version of "
            f"tensorprojection that trained it ({about.code})."
        ) from None
    return Trained(network.eval(), study, config, about)


# Exporting


class Record(BaseModel):
    """The metadata of an exported file: how images become its input, what its output means."""

    model_config = ConfigDict(ser_json_inf_nan="constants")

    study: str
    model: str
    trial: int
    epoch: int
    metrics: dict[str, float]
    code: str
    settings: dict[str, Any]
    size: int = Field(ge=1, le=4096)
    mode: Literal["L", "RGB"]
    masks: bool
    class_names: tuple[str, ...] = Field(min_length=1)
    input: str
    output: str

    @classmethod
    def of(cls, trained: Trained) -> Record:
        study, config, about = trained.study, trained.config, trained.about
        kind, size = study.images, config.size
        channels, colour = (1, "gray") if kind.mode == "L" else (3, "RGB")
        # The study's own settings, such as the frozen network's name; not the paths of files.
        own = [name for name in own_settings(study.settings) if name not in PATHS]
        return cls(
            study=study.name,
            **about.model_dump(include={"model", "trial", "epoch", "metrics", "code"}),
            settings={name: getattr(config, name) for name in own},
            size=size,
            mode=kind.mode,
            masks=kind.masks,
            class_names=about.class_names,
            input=f"float32 (N, {channels}, {size}, {size}): {colour}, resized bilinearly with "
            "antialiasing and without keeping the aspect ratio, 8 bits divided by 255",
            output="logits of the mask, (N, 1, H, W)" if kind.masks else "logits of the classes",
        )


def check_new(to: Path, suffixes: Sequence[str] = ()) -> None:
    """Raise a ``StudyError`` unless the file is new, in a folder that is there, of these kinds."""
    if suffixes and to.suffix not in suffixes:
        raise StudyError(f"Expected a file that ends with {' or '.join(suffixes)}, got {to}.")
    if to.exists():
        raise StudyError(f"{to} is there already. Remove it, or choose another name.")
    if not to.parent.is_dir():
        raise StudyError(
            f"Expected a folder to write {to.name} to, got {to.parent}: none is there."
        )


def export(trained: Trained, to: Path) -> float:
    """Write the network, folded, with its preprocessing, to a new file; return the largest error.

    It must agree with the original on validation images of its own trial, to ``TOLERANCE`` of the
    largest output.
    """
    x = pixels(_validation_images(trained)[:MOST_CHECKED]).contiguous()
    expected = in_batches(trained.from_pixels(), x)
    network, preprocess = trained.network, trained.study.preprocess(trained.config).eval()
    if any(isinstance(layer, PROJECTIONS) for layer in network.modules()):
        with torch.no_grad():
            network = fold_projections(network, preprocess(x[:2])).model
    deployed = nn.Sequential(preprocess, network).eval()
    part = to.with_name(f".{secrets.token_hex(8)}{to.suffix}")
    try:
        with warnings.catch_warnings():  # of the exporters, about themselves
            warnings.simplefilter("ignore")
            write = _write_onnx if to.suffix == ".onnx" else _write_pt2
            written = write(_program(deployed, x[:2]), part, Record.of(trained).model_dump_json())
        difference = float((in_batches(written, x) - expected).abs().max())
        if not difference <= (most := TOLERANCE * float(expected.abs().max())):
            raise StudyError(
                f"The exported network differs from the original by {difference:.1e} on validation "
                f"images, more than {most:.1e}; {to} was not written."
            )
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)
    return difference


def _validation_images(trained: Trained) -> NDArray[np.uint8]:
    config, study = trained.config, trained.study
    inputs = study.prepare(config, 1, lambda what, done, of: None)
    if "images" not in inputs.folders:
        raise StudyError(f"The {study.name} study has no images to check an export on.")
    _, validation, *_ = study.open(config, inputs).split(trained.about.trial - 1)
    images: NDArray[np.uint8] = open_stored(inputs.folders["images"]).images[validation]
    return images


def _program(network: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    """Trace the network for any number of images, without the paths of this machine's files."""
    shapes = ({0: torch.export.Dim("batch", min=1, max=4096)},)
    with torch.no_grad():
        program = torch.export.export(network, (x,), dynamic_shapes=shapes, strict=False)
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)
            node.meta.pop("from_node", None)
    return program


def _write_pt2(program: torch.export.ExportedProgram, path: Path, record: str) -> Network:
    torch.export.save(program, path, extra_files={f"{KEY}.json": record})
    return torch.export.load(path).module()  # its own file, written just now


def _write_onnx(program: torch.export.ExportedProgram, path: Path, record: str) -> Network:
    try:
        import onnx
        import onnxruntime  # noqa: F401  # the check needs it
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise StudyError(
            f"An .onnx file needs {error.name}: pip install 'tensorprojection[onnx]'."
        ) from None
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # not about optional packages
    written = torch.onnx.export(program, dynamo=True, verbose=False)
    assert written is not None
    model = written.model_proto
    for part in (*model.graph.node, *model.functions, model.graph, model):
        del part.metadata_props[:]  # stack traces, with the paths of this machine's files
        part.doc_string = ""
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, record
    onnx.save(model, str(path))
    return read_onnx(path)[0]


def read_onnx(path: Path) -> tuple[Network, Record]:
    """Return the network of an exported file, and its record. Nothing in the file is unpickled."""
    if path.suffix != ".onnx":
        raise StudyError(f"Expected an .onnx file or the folder of a run, got {path}.")
    try:
        import onnxruntime

        content = read_regular(path, MOST_BYTES)
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        given = session.get_modelmeta().custom_metadata_map.get(KEY)
        if given is None:
            raise StudyError(f"Expected a network of tpl export in {path}, got another.")
        record = Record.model_validate_json(given)
    except ModuleNotFoundError:
        raise StudyError(
            "An .onnx file needs onnxruntime: pip install 'tensorprojection[onnx]'."
        ) from None
    except StudyError:
        raise
    except OSError as error:
        raise StudyError(f"Could not read {path}: {error.strerror}.") from None
    except Exception as error:  # onnxruntime raises errors of its own kinds
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise StudyError(f"Expected a network of tpl export in {path}: {first_line}") from None
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0]), record


# From images to outputs


def in_batches(network: Network, x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([network(part) for part in x.split(BATCH)])


# Predicting


@dataclass(frozen=True)
class Prediction:
    """The probabilities by class of one file, or its mask at the image's own size."""

    file: Path
    probabilities: tuple[float, ...] = ()
    mask: Image.Image | None = None

    @property
    def best(self) -> int:
        return int(np.argmax(self.probabilities))


def image_files(given: Sequence[Path]) -> list[Path]:
    """Return the files that are named, and those in the folders that are named."""
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            found += sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        else:
            found.append(path)
    if not found:
        raise StudyError("Expected image files, or folders of them, got none.")
    return found


def predict(
    network: Network, record: Record, files: Sequence[Path]
) -> tuple[list[Prediction], list[tuple[Path, str]]]:
    """Return the network's prediction for each file, and the files without one, with the reason."""
    found: list[Prediction] = []
    without: list[tuple[Path, str]] = []
    for start in range(0, len(files), CHUNK):
        images, read = [], []
        for file in files[start : start + CHUNK]:
            try:
                image = open_image(str(file))
                images.append(fit(image, record.size, record.mode))
                read.append((file, image.size))
            except UnreadableError as error:
                without.append((file, str(error)))
        if not images:
            continue
        logits = in_batches(network, pixels(np.stack(images)).contiguous()).double()
        expected = (1, record.size, record.size) if record.masks else (len(record.class_names),)
        if logits.shape[1:] != expected:
            raise StudyError(
                f"Expected outputs of shape {expected}, got {tuple(logits.shape[1:])}."
            )
        for (file, size), output in zip(read, logits, strict=True):
            if not output.isfinite().all():
                without.append((file, "has no prediction: the network's output is not finite"))
            elif record.masks:
                mask = Image.fromarray(np.where(output[0] > 0, 255, 0).astype(np.uint8))
                found.append(Prediction(file, mask=mask.resize(size, Image.Resampling.NEAREST)))
            else:
                found.append(Prediction(file, tuple(output.softmax(dim=0).tolist())))
    return found, without


def as_csv(record: Record, found: Sequence[Prediction]) -> str:
    """Return a line for each file: its class, and the probability of every class."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["file", "class", *record.class_names])
    for p in found:
        shares = (f"{share:.6f}" for share in p.probabilities)
        writer.writerow([p.file, record.class_names[p.best], *shares])
    return buffer.getvalue()


def write_masks(found: Sequence[Prediction], folder: Path) -> None:
    """Write each mask as ``NAME_mask.png``; refuse to replace a file."""
    targets = [folder / f"{p.file.stem}_mask.png" for p in found]
    for k, target in enumerate(targets):
        if target.exists() or target in targets[:k]:
            why = "it is there already" if target.exists() else "two images would have it"
            raise StudyError(f"Could not write {target}: {why}. Choose another folder for masks.")
    folder.mkdir(parents=True, exist_ok=True)
    for prediction, target in zip(found, targets, strict=True):
        assert prediction.mask is not None
        prediction.mask.save(target, "PNG")


# Evaluating


def evaluate(run: Path, data: Path, out: Path, own: Study[Any] | None = None) -> tuple[str, ...]:
    """Measure every network of the run on these images; return what the user should know.

    The new folder is like that of a run of one epoch, which is the one that each network is from.
    """
    saved = saved_networks(run)
    if out.exists():
        raise StudyError(f"{out} is there already. Remove it, or choose another folder.")
    config = read_config(run / "config.toml", own)
    study = find_study(config.study)
    images = open_images(study.images, data, size=config.size).images
    jobs = [(k, model) for model in config.models for k in range(1, config.trials + 1)]
    networks = [
        _rebuilt(*read_network(saved[job]), saved[job], own) for job in jobs if job in saved
    ]
    if not networks:
        raise StudyError(f"Expected saved networks in {run}, got none: it ran with --keep none.")
    # Only predictions are observed: the layers are those of the run's own page.
    observers = [Observer() for _ in networks]
    measured_on = samples_of(config, images)
    measured = _measure(networks, observers, measured_on)
    title, notices = _seen(study, config, images, data.name)
    out.mkdir(parents=True)
    rows = []
    for one, metrics, observer in zip(networks, measured, observers, strict=True):
        about = one.about
        named = {"study": study.name, "model": about.model, "trial": about.trial, "epoch": 1}
        then = {"train_loss": about.metrics["train_loss"], "kept_at_epoch": about.epoch}
        rows.append({**named, **metrics, **then, "code": about.code})
        file = JobFiles.of(out, about.trial - 1, about.model).observed
        file.parent.mkdir(parents=True, exist_ok=True)
        seen = observer.arrays(measured_on, np.arange(len(images)), networks[0].about.class_names)
        write_whole(file, encode_observed(1, seen))
    # One set of images for all trials, which is what this split stands for.
    settings = {"split": "as-shipped", "epochs": 1, "data": str(data)}
    write_whole(out / "config.toml", config.model_copy(update=settings).as_toml())
    write_whole(out / HELD_OUT, title.encode())
    write_results(out, pl.DataFrame(rows))
    lacking = [f"{model} of trial {k}" for k, model in jobs if (k, model) not in saved]
    if lacking:
        notices += (f"Not evaluated, as no network is saved: {', '.join(lacking)}.",)
    return notices


def _seen(
    study: Study[Any], config: RunConfig, images: ImageSet, name: str
) -> tuple[str, tuple[str, ...]]:
    """Compare the images with those of the run; return a title for them, and notices."""
    try:
        of_run = load_images(study.images, config).images
    except StudyError as error:
        return f"images of {name}", (
            f"The images of the run are not there, so it is unknown if {name} has some of them: "
            f"{error}",
        )
    known = {_digest(image): row for row, image in enumerate(of_run.images)}
    rows = [known[digest] for image in images.images if (digest := _digest(image)) in known]
    if not rows:
        return f"held-out images of {name}", ()
    data = study.open(config, study.prepare(config, 1, lambda what, done, of: None))
    most = 0
    for trial in range(config.trials):
        _, *measured = data.split(trial)  # the others train
        most = max(most, int((~np.isin(rows, np.concatenate(measured))).sum()))
    count = f"{len(rows):,} of {len(images):,}"
    return f"images of {name}, {count} from the run", (
        f"{count} images of {name} are among the run's own. A network was trained on up to "
        f"{most:,} of them; the others may have chosen its epoch: these results are not held-out "
        "results.",
    )


def _digest(image: NDArray[np.uint8]) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(image).data).digest()


def _measure(
    networks: list[Trained], observers: list[Observer], data: Samples
) -> list[dict[str, float]]:
    """Measure all networks at once, as their preprocessing may take longer than they do."""
    study, config = networks[0].study, networks[0].config
    preprocess = study.preprocess(config).eval()
    metrics = [study.metrics() for _ in networks]
    count = len(data.originals)
    with torch.inference_mode():
        for start in range(0, count, CHUNK):
            x, y = data.batch(np.arange(start, min(start + CHUNK, count)))
            x = preprocess(x)
            for one, own, observer in zip(networks, metrics, observers, strict=True):
                output = output_of(one.network, x, config)
                if not output.isfinite().all():
                    about = one.about
                    raise StudyError(
                        f"The output of {about.model} of trial {about.trial} is not finite."
                    )
                own.update(output, y)
                observer.update(output, y)
    names = networks[0].about.class_names
    return [computed(own, names) for own in metrics]
