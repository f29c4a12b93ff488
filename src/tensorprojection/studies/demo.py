"""The paper's OCT network on phantom images: MaxPooling beside TensorProjection.

Run it with ``make demo``, or ``python -m tensorprojection.studies.demo --help``. Each network is
trained in a process of its own with one thread, all on the same images in the same order: two such
processes get about twice as much done as one with two threads.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor, nn

from .data import ImageSet
from .data.phantoms import oct as phantoms
from .models import oct_cnn

LABELS = {
    "base": "MaxPooling",
    "tpl1": "TensorProjection 1",
    "tpl2": "TensorProjection 2",
}
# Okabe and Ito's colours, with markers and dashes for those who see none.
STYLES = {
    "base": ("#0072B2", "o", "-"),
    "tpl1": ("#D55E00", "s", "-"),
    "tpl2": ("#009E73", "^", "--"),
}

# The paper's 300 would leave four steps an epoch of this few images.
BATCH = 16
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Options:
    epochs: int = 8
    images: int = 1600
    out: Path = Path("runs/demo")
    seed: int = 0


@dataclass(frozen=True)
class Step:
    """So many more training images are done."""

    model: str
    images: int


@dataclass(frozen=True)
class Epoch:
    """What a network reaches on the validation images after an epoch."""

    model: str
    epoch: int
    loss: float
    accuracy: float
    seconds: float  # of processor time, so that networks trained side by side compare
    parameters: int


Event = Step | Epoch


# Training


def make_images(options: Options) -> ImageSet:
    return phantoms.make(options.images, seed=options.seed)


def split(images: ImageSet) -> tuple[ImageSet, ImageSet]:
    """Three quarters to train with, the rest to validate. Phantoms come shuffled and balanced."""
    cut = len(images) * 3 // 4
    return images.select(range(cut)), images.select(range(cut, len(images)))


def train(model: str, images: ImageSet, options: Options, report: Callable[[Event], None]) -> None:
    """Train one network and report every step and epoch."""
    training, validation = split(images)
    torch.manual_seed(options.seed)
    network = oct_cnn(model, size=images.images.shape[1])
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    parameters = sum(p.numel() for p in network.parameters())
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    # A generator of its own: the order of batches is then the same for every network.
    order = torch.Generator().manual_seed(options.seed)
    for epoch in range(1, options.epochs + 1):
        started = time.process_time()
        network.train()
        for x, y in batches(training, torch.randperm(len(training), generator=order)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
            report(Step(model, len(y)))
        loss, accuracy = validate(network, validation)
        seconds = time.process_time() - started
        report(Epoch(model, epoch, loss, accuracy, seconds, parameters))


def validate(network: nn.Module, images: ImageSet) -> tuple[float, float]:
    """Mean cross-entropy and the share of right answers."""
    network.eval()
    loss = right = 0.0
    with torch.inference_mode():
        for x, y in batches(images, torch.arange(len(images))):
            logits = network(x)
            loss += nn.functional.cross_entropy(logits, y, reduction="sum").item()
            right += (logits.argmax(1) == y).sum().item()
    return loss / len(images), right / len(images)


def batches(images: ImageSet, order: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Images in [0, 1] as three equal channels, channels last, and their labels."""
    pixels, labels = torch.from_numpy(images.images), torch.from_numpy(images.labels)
    for rows in order.split(BATCH):
        gray = pixels[rows].float().div_(255)
        x = gray[:, None].expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)
        yield x, labels[rows]


# Side by side


def train_all(options: Options) -> Iterator[Event]:
    """Train every network at once, a process each, and pass on what they report."""
    context = multiprocessing.get_context("spawn")
    events: multiprocessing.Queue[Event] = context.Queue()
    workers = {
        model: context.Process(target=_work, args=(model, options, events), daemon=True)
        for model in LABELS
    }
    with _settings_to_inherit():
        for worker in workers.values():
            worker.start()
    try:
        unfinished = set(workers)
        while unfinished:
            try:
                event = events.get(timeout=1)
            except queue.Empty:
                for model in unfinished:
                    if code := workers[model].exitcode:
                        sys.exit(f"Training {model} ended early, exit code {code}.")
                continue
            if isinstance(event, Epoch) and event.epoch == options.epochs:
                unfinished.remove(event.model)
            yield event
    finally:
        for worker in workers.values():
            worker.terminate()
            worker.join()


@contextmanager
def _settings_to_inherit() -> Iterator[None]:
    """What processes started in here take over: Ctrl-C is the parent's, and freed memory is kept.

    By default glibc's malloc gives every large block back and gets it anew, page by page, at each
    step: on a network of this size that takes nearly as long as the arithmetic.
    """
    environment = dict(os.environ)
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**25))
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**30))
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)
        os.environ.clear()
        os.environ.update(environment)


def _work(model: str, options: Options, events: multiprocessing.Queue[Event]) -> None:
    torch.set_num_threads(1)
    # Made here anew, which is quicker than to send them: a start would wait until they are read.
    train(model, make_images(options), options, events.put)


# What is seen


def watch(events: Iterable[Event], options: Options, console: Console) -> list[Epoch]:
    """Show progress as it comes, bars in a terminal and lines elsewhere; return the epochs."""
    epochs = []
    with _bars(options, console) as advance:
        for event in events:
            advance(event)
            if isinstance(event, Epoch):
                epochs.append(event)
    return epochs


@contextmanager
def _bars(options: Options, console: Console) -> Iterator[Callable[[Event], None]]:
    if not console.is_terminal:

        def line(event: Event) -> None:
            if isinstance(event, Epoch):
                console.print(
                    f"{event.model}  epoch {event.epoch}/{options.epochs}  "
                    f"validation loss {event.loss:.3f}  accuracy {event.accuracy:.3f}"
                )

        yield line
        return

    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    total = options.images * 3 // 4 * options.epochs
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, TaskID] = {
            model: progress.add_task(label, total=total, note="starting")
            for model, label in LABELS.items()
        }

        def bar(event: Event) -> None:
            task = tasks[event.model]
            if isinstance(event, Step):
                progress.advance(task, event.images)
            else:
                note = f"epoch {event.epoch}/{options.epochs}  accuracy {event.accuracy:.3f}"
                progress.update(task, note=note)

        yield bar


def table(epochs: Sequence[Epoch]) -> Table:
    """One row a network: its size, what it reached, and what an epoch costs."""
    result = Table(
        title="Validation, on phantoms that were not trained on",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    result.add_column("\nnetwork", no_wrap=True)
    for name in (
        "\nparameters",
        "accuracy\nbest",
        "\nlast",
        "loss\nbest",
        "\nlast",
        "CPU s\n/epoch",
    ):
        result.add_column(name, justify="right", no_wrap=True)
    for model, label in LABELS.items():
        own = [e for e in epochs if e.model == model]
        result.add_row(
            label,
            f"{own[-1].parameters:,}",
            f"{max(e.accuracy for e in own):.3f}",
            f"{own[-1].accuracy:.3f}",
            f"{min(e.loss for e in own):.3f}",
            f"{own[-1].loss:.3f}",
            f"{sum(e.seconds for e in own) / len(own):.1f}",
        )
    return result


def draw(epochs: Sequence[Epoch], images: ImageSet, path: Path) -> None:
    """The figure: an image of each class, and loss and accuracy by epoch."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure = plt.figure(figsize=(9, 6.6), layout="constrained")
    halves = figure.add_gridspec(2, 1, height_ratios=(1, 1.5))
    strip, curves = figure.add_subfigure(halves[0]), figure.add_subfigure(halves[1])
    strip.suptitle("Phantom OCT scans, one of each class")
    for k, axes in enumerate(strip.subplots(1, len(images.class_names))):
        assert images.labels is not None
        axes.imshow(images.images[images.labels.tolist().index(k)], cmap="gray", vmin=0, vmax=255)
        axes.set_title(images.class_names[k], fontsize=10)
        axes.set_axis_off()
    for axes, metric in zip(curves.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for model, (colour, marker, dash) in STYLES.items():
            own = [e for e in epochs if e.model == model]
            axes.plot(
                [e.epoch for e in own],
                [getattr(e, metric) for e in own],
                color=colour,
                marker=marker,
                linestyle=dash,
                label=LABELS[model],
            )
        axes.set(xlabel="epoch", ylabel=f"validation {metric}")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    options = _read(arguments)
    console = Console()
    started = time.perf_counter()
    console.print(
        f"The paper's OCT network, trained on {options.images * 3 // 4} phantom images and "
        f"validated on {options.images - options.images * 3 // 4}, with three ways to shrink its "
        "last feature map: MaxPooling 2 × 2, TensorProjection to the same 32 × 6 × 6 (1), and to "
        "20 × 6 × 6 (2)."
    )
    try:
        epochs = watch(train_all(options), options, console)
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    console.print(table(epochs))
    path = options.out / "demo.png"
    draw(epochs, make_images(options), path)
    console.print(f"Figure: {path}  ({time.perf_counter() - started:.0f} s in all)", soft_wrap=True)
    return 0


def _read(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m tensorprojection.studies.demo",
        description="Train the paper's OCT network on phantom images, with MaxPooling and with "
        "TensorProjection side by side.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--epochs", type=int, default=Options.epochs, help="epochs to train")
    parser.add_argument(
        "--images", type=int, default=Options.images, help="phantoms; a quarter is for validation"
    )
    parser.add_argument("--out", type=Path, default=Options.out, help="folder for the figure")
    parser.add_argument("--seed", type=int, default=Options.seed, help="of phantoms and networks")
    options = Options(**vars(parser.parse_args(arguments)))
    if options.epochs < 1:
        parser.error(f"--epochs must be at least 1, got {options.epochs}.")
    if options.images < 16:
        parser.error(f"--images must be at least 16, got {options.images}.")
    if options.seed < 0:
        parser.error(f"--seed must not be negative, got {options.seed}.")
    return options


if __name__ == "__main__":
    sys.exit(main())
