"""``tpl demo``: speed, a swap with export, gradients and recorded results, in 90 seconds."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from torch import Tensor, nn

    from ..bench.measure import Times

OURS = "TensorProjection"
RACES = ("Kvasir-64 up", "Kvasir-64")  # the middle of the paper's U-Net, upward and downward
ROUNDS = 5
FOUND = ("oct-sizes", "chest-sizes", "kvasir")  # folders of runs in RESULTS
RESULTS = Path(__file__).parents[3] / "docs" / "results"  # of a clone; an installation has none
ONLINE = "https://github.com/tensorprojection/tensorprojection/blob/main/docs/results.md"

RUN_ALONE = """
import sys
sys.modules["tensorprojection"] = None  # an import of it would fail
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
x, expected = map(numpy.load, sys.argv[2:])
(found,) = session.run(None, {session.get_inputs()[0].name: x})
print(abs(found - expected).max())
"""


def demo(*, out: Path = Path("runs/demo")) -> None:
    """Show the layer's speed, a swap in a trained network, its gradient, and recorded results.

    Args:
        out: Where the network and the pages go.
    """
    import torch
    from rich.console import Console

    from ..studies.errors import StudyError

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StudyError(f"Could not write {out}: {error.strerror}.") from None
    torch.manual_seed(0)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.rule("1 of 4: time of a training step", align="left")
    ratios = race(console)
    console.rule("2 of 4: swap, train, fold, export", align="left")
    file = swap(console, out)
    console.rule("3 of 4: gradients", align="left")
    gradients(console)
    console.rule("4 of 4: real images", align="left")
    page = recorded(console, out)

    console.rule("In short", align="left")
    times = ", ".join(f"{name} {ratio:.1f}" for name, ratio in ratios.items())
    console.print(f"Time of a training step relative to this layer's: {times}.")
    console.print(f"After training the layer folds away: {file} runs without this package.")
    console.print("The gradient is finite where autograd through an SVD returns NaN.")
    console.print(f"\nOpen in a browser: {page}\n\nNext:")
    console.print("  tpl run oct                   # a first training on generated images: minutes")
    console.print("  tpl run images --data FOLDER  # your own images, one folder per class")
    console.print("  tpl bench --no-peers          # all the paper's layers, in NCHW and NHWC")


def race(console: Console) -> dict[str, float]:
    """Time the layer and its alternatives in turns; returns their times relative to the layer's."""
    from rich.live import Live

    from ..bench.cases import CASES
    from ..bench.measure import step, take_turns
    from ..bench.peers import PEERS

    peer = "geotorch" if find_spec("geotorch") else "textbook"
    label = {"geotorch": "geotorch", "textbook": "SVD and autograd"}[peer]
    ratios: dict[str, float] = {}
    for case in (case for name in RACES for case in CASES if case.name == name):
        assert case.replaces is not None
        x = case.input("NCHW")
        contenders = {
            OURS: step(case.layer(), x),
            case.replaced: step(case.replaces(), x),
            label: step(PEERS[peer](case), x),
        }
        times: Times = {name: [] for name in contenders}
        shapes = " → ".join("×".join(map(str, shape)) for shape in (case.source, case.target))
        title = f"{shapes}, batch {case.batch}, NCHW, forward and backward"
        with Live(console=console, auto_refresh=False) as live:
            for _ in range(ROUNDS):
                for name, seconds in take_turns(contenders, 1).items():
                    times[name] += seconds
                live.update(bars(title, times), refresh=True)
        console.print()
        for name in (case.replaced, label):
            value = median(times[name]) / median(times[OURS])
            ratios[name] = min(value, ratios.get(name, value))
    console.print(
        "MaxPool2d can be faster in NHWC, and on large maps: use the layer late in a network."
    )
    return ratios


def bars(title: str, times: Times) -> Table:
    """Return a bar per contender: the median time, and its ratio to this layer's."""
    from rich.bar import Bar
    from rich.table import Table

    medians = {name: median(seconds) for name, seconds in times.items()}
    longest = max(medians.values())
    table = Table(title=title, box=None, show_header=False, title_justify="left")
    for name, seconds in medians.items():
        colour = "green" if name == OURS else "bright_black"
        bar = Bar(longest, 0, seconds, width=32, color=colour)
        ratio = "" if name == OURS else f"{seconds / medians[OURS]:.1f} ×"
        table.add_row(name, bar, f"{1e3 * seconds:.1f} ms", ratio)
    return table


def swap(console: Console, out: Path) -> str:
    """Swap the last pool of a trained CNN, train an epoch, fold, export, and run the file alone."""
    import numpy as np
    import torch
    from torch import nn

    import tensorprojection as tp

    from ..studies.data.phantoms import oct_phantoms

    made = oct_phantoms(256, size=48)
    images = torch.from_numpy(made.images).float()[:, None] / 255
    labels = torch.from_numpy(made.labels).long()
    network: nn.Module = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 12 * 12, 4),
    )  # fmt: skip
    train(network, images, labels, epochs=3)
    console.print('>>> network, report = tp.replace(network, "5", example_input=images[:1])')
    network, replaced = tp.replace(network, "5", example_input=images[:1])
    console.print(str(replaced))
    train(network, images, labels, epochs=1)
    console.print(">>> folded, report = tp.fold_projections(network.eval(), images[:2])")
    folded, report = tp.fold_projections(network.eval(), images[:2])
    console.print(str(report))

    needed = ("onnx", "onnxscript", "onnxruntime")
    if not all(map(find_spec, needed)):
        console.print("To export it to ONNX: pip install 'tensorprojection[onnx]'")
        return "the network"
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    files = [out / "network.onnx", out / "input.npy", out / "output.npy"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's exporter, about itself
        torch.onnx.export(folded, (images[:8],), str(files[0]), dynamo=True, verbose=False)
    np.save(files[1], images[:8].numpy())
    np.save(files[2], network(images[:8]).detach().numpy())
    command = [sys.executable, "-c", RUN_ALONE, *map(str, files)]
    alone = subprocess.run(command, capture_output=True, text=True, check=True)
    console.print(f"{files[0]} in a process that cannot import tensorprojection:")
    console.print(
        f"its output differs from the trained network's by at most {float(alone.stdout):.0e}"
    )
    return str(files[0])


def train(network: nn.Module, images: Tensor, labels: Tensor, epochs: int) -> None:
    import torch

    optimizer = torch.optim.Adam(network.parameters())
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(32):
            loss = torch.nn.functional.cross_entropy(network(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def gradients(console: Console) -> None:
    """Take one step from an orthonormal W, with autograd through an SVD and with this layer."""
    import torch

    from ..bench.cases import CASES
    from ..bench.peers import PEERS

    case = next(case for case in CASES if case.name == "OCT-1")
    x = torch.randn(4, *case.source)
    for name, layer in (("autograd through an SVD", PEERS["textbook"](case)), (OURS, case.layer())):
        Ws = [W for W in layer.parameters() if W.numel() > 0]
        for W in Ws:
            torch.nn.init.eye_(W)  # orthonormal columns: all singular values are 1
        layer(x).square().mean().backward()
        torch.optim.Adam(Ws).step()
        wrong, count = sum(int(W.isnan().sum()) for W in Ws), sum(W.numel() for W in Ws)
        console.print(f"One step from an orthonormal W, {name}: {wrong} of {count} weights are NaN")


def recorded(console: Console, out: Path) -> str:
    """Print what the recorded runs found and write their pages; returns the page to open."""
    from ..studies.report import page, tables
    from ..studies.report.run import read_run

    if not RESULTS.is_dir():
        console.print(f"The rows of the recorded runs come with a clone of the project: {ONLINE}")
        return ONLINE
    pages = []
    for name in FOUND:
        run = read_run(RESULTS / name)
        console.print(f"{run.title}. {tables.headline(run)}")
        pages.append(page.write(run, out / name))
        console.print(f"  {pages[-1]}")
    return str(pages[0])
