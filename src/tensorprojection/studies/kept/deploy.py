"""A kept network for use elsewhere: one file that takes pixels, checked before it is there."""

from __future__ import annotations

import json
import logging
import secrets
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tensorprojection import (
    HOPE,
    FrozenProjection,
    TensorProjection,
    TransposeTensorProjection,
    fold,
)

from ..config import Place, own_settings
from ..data.stored import open_stored
from ..errors import StudyError
from ..registry import find_study
from .networks import About, KeptNetwork

Images = NDArray[np.uint8]

KINDS = (".pt2", ".onnx")
RECORD = "tensorprojection.json"
KEY = "tensorprojection"
TOLERANCE = 1e-5
MOST_CHECKED = 64  # validation images that an export is checked on
BATCH = 16
FORMAT = 1


def export(kept: KeptNetwork, to: Path, images: Images) -> float:
    """Write the network, folded, with what comes before it; returns the largest difference.

    Args:
        kept: the network.
        to: a file that is not there yet; its suffix says which kind it is, of ``KINDS``.
        images: validation images, on which it must agree with the original to ``TOLERANCE``.
    """
    check_target(to)
    x = pixels(images[:MOST_CHECKED])
    original = whole(kept.network, kept.about)
    expected = in_batches(original, x)
    front = find_study(kept.about.config.study).front(kept.about.config).eval()
    with torch.no_grad():
        example = front(x[:2])
        folded = fold(kept.network, example).model if _projects(kept.network) else kept.network
    deployed = nn.Sequential(front, folded).eval()
    part = to.with_name(f".{secrets.token_hex(8)}{to.suffix}")
    try:
        if to.suffix == ".pt2":
            _write_pt2(deployed, x[:2], part, kept.about)
        else:
            _write_onnx(deployed, x[:2], part, kept.about)
        written, _ = read_exported(part)
        difference = float((in_batches(written, x) - expected).abs().max())
        if not difference <= TOLERANCE:
            raise StudyError(
                f"The exported network differs from the original by {difference:.1e} on validation "
                f"images, more than {TOLERANCE:g}; {to} was not written."
            )
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)
        part.with_name(f"{part.name}.data").unlink(missing_ok=True)
    return difference


def _projects(network: nn.Module) -> bool:
    """Whether there is something to fold; a network with a pooling has nothing."""
    kinds = (TensorProjection, TransposeTensorProjection, FrozenProjection, HOPE)
    return any(isinstance(layer, kinds) for layer in network.modules())


def check_target(to: Path) -> None:
    """A new file of a known kind."""
    if to.suffix not in KINDS:
        raise StudyError(f"Expected a file that ends with {' or '.join(KINDS)}, got {to}.")
    check_new(to)


def check_new(to: Path) -> None:
    """A file that can be written, in a folder that is there, and not there yet."""
    if to.exists():
        raise StudyError(f"{to} is there already. Remove it, or choose another name.")
    if not to.parent.is_dir():
        raise StudyError(
            f"Expected a folder to write {to.name} to, got {to.parent}: none is there."
        )


def validation_images(kept: KeptNetwork) -> Images:
    """Those of the network's own trial, which it was not trained on."""
    config, study = kept.about.config, find_study(kept.about.config.study)
    inputs = study.prepare(config, 1, lambda what, done, of: None)
    _, validation = study.open(config, inputs).sides(kept.about.trial - 1)
    images: Images = open_stored(inputs.folders["images"]).images[validation]  # all originals
    return images


# From images to outputs


def whole(network: nn.Module, about: About) -> nn.Module:
    """From pixels to logits: what comes before the network, and the network."""
    return nn.Sequential(find_study(about.config.study).front(about.config), network).eval()


def pixels(images: Images) -> Tensor:
    """``(N, 1, H, W)`` of gray images, ``(N, 3, H, W)`` of others, in [0, 1]."""
    x = torch.from_numpy(np.ascontiguousarray(images)).float().div_(255)
    if x.ndim == 3:
        return x[:, None]
    return x.permute(0, 3, 1, 2).contiguous()


def in_batches(network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([network(part) for part in x.split(BATCH)])


# The files


def preprocessing(about: About) -> dict[str, Any]:
    """How images become input, and what the output is; a part of every exported file."""
    study = find_study(about.config.study)
    kind, size = study.images, about.config.size
    channels = 1 if kind.mode == "L" else 3
    # What is this study's own, such as which frozen network; not where a file was.
    own = {
        name: getattr(about.config, name)
        for name, field in own_settings(study.settings).items()
        if not any(isinstance(m, Place) for m in field.metadata)
    }
    return {
        "format": FORMAT,
        "study": study.name,
        "model": about.model,
        "trial": about.trial,
        "epoch": about.epoch,
        "metrics": dict(about.metrics),
        "code": about.code,
        "settings": own,
        "size": size,
        "mode": kind.mode,
        "masks": kind.masks,
        "class_names": list(about.class_names),
        "input": f"float32 (N, {channels}, {size}, {size}): "
        + ("gray" if kind.mode == "L" else "RGB")
        + ", resized bilinearly with antialiasing and without keeping the aspect ratio, "
        "8 bits divided by 255",
        "output": "logits of the mask, (N, 1, H, W)" if kind.masks else "logits of the classes",
    }


def _write_pt2(network: nn.Module, x: Tensor, path: Path, about: About) -> None:
    with _quiet():
        record = json.dumps(preprocessing(about))
        torch.export.save(_program(network, x), path, extra_files={RECORD: record})


def _program(network: nn.Module, x: Tensor) -> torch.export.ExportedProgram:
    """For any number of images at once."""
    shapes = ({0: torch.export.Dim("batch", min=1, max=4096)},)
    with torch.no_grad():
        return torch.export.export(network, (x,), dynamic_shapes=shapes, strict=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporters speak of themselves, and of packages that they would like to have."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _write_onnx(network: nn.Module, x: Tensor, path: Path, about: About) -> None:
    try:
        import onnx
        import onnxruntime  # noqa: F401  # the check needs it
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise StudyError(
            f"An .onnx file needs {error.name}: pip install onnx onnxruntime onnxscript."
        ) from None
    with _quiet():
        written = torch.onnx.export(_program(network, x), dynamo=True, verbose=False)
    assert written is not None
    model = written.model_proto
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps(preprocessing(about))
    onnx.save(model, str(path))


def read_exported(path: Path) -> tuple[Callable[[Tensor], Tensor], dict[str, Any]]:
    """The network of an exported file, and its preprocessing."""
    if path.suffix not in KINDS:
        raise StudyError(
            f"Expected a network: a {' or '.join(KINDS)} file, or the folder of a run, got {path}."
        )
    if not path.is_file():
        raise StudyError(f"Expected an exported network, got {path}: there is no such file.")
    try:
        run, record = _read_pt2(path) if path.suffix == ".pt2" else _read_onnx(path)
        known = json.loads(record)
    except StudyError:
        raise
    except Exception as error:  # readers of both kinds raise whatever they run into
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise StudyError(f"Could not read {path} as an exported network: {first}") from None
    if known.get("format") != FORMAT:
        raise StudyError(
            f"Expected a network of tpl export, format {FORMAT}, in {path}, got "
            f"{known.get('format', 'none')}: export it again with this version."
        )
    return run, known


def _read_pt2(path: Path) -> tuple[Callable[[Tensor], Tensor], str]:
    extra = {RECORD: ""}
    program = torch.export.load(path, extra_files=extra)
    return cast(Callable[[Tensor], Tensor], program.module()), extra[RECORD] or "{}"


def _read_onnx(path: Path) -> tuple[Callable[[Tensor], Tensor], str]:
    try:
        import onnxruntime
    except ModuleNotFoundError:
        raise StudyError("An .onnx file needs onnxruntime: pip install onnxruntime.") from None
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def run(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {name: x.numpy()})[0])

    record = session.get_modelmeta().custom_metadata_map.get(KEY, "{}")
    return run, record
