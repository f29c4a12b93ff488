"""The figures as tables in the terminal and in Markdown, as JSON and as a bar chart."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from tensorprojection import ProjectionValueError, kernels

from .cases import INFER, TRAIN
from .measure import Ratio
from .peers import PEERS
from .run import (
    COMPILED,
    FOLDED,
    FROZEN,
    LIMIT,
    REPLACED,
    U_STEP,
    CaseRow,
    check_request,
    run_cases,
)
from .training import growth, training_steps


def run_and_report(
    *, suites: Sequence[str], rounds: int, only: str, peers: bool, out: Path
) -> None:
    check_request(suites, rounds, only, peers)
    _make_folder(out)  # before minutes of measuring
    console = Console()
    if not console.is_terminal:
        console = Console(width=220)
    rows = []
    with console.status("measuring …") as status:
        for row in run_cases(suites, rounds, only, peers):
            rows.append(row)
            status.update(f"{row.case} {row.memory_format}: {row.milliseconds:.2f} ms")
        whole = "train" in suites and not only
        steps = training_steps(max(rounds // 2, 5)) if whole else {}
        grown = growth(rounds) if whole else {}
    for task in tasks(rows):
        console.print(table(rows, task))
    others = list(_sentences(steps, grown))
    for sentence in others:
        console.print(sentence)
    record = {
        "machine": machine(),
        "rounds": rounds,
        "cases": [row.as_dict() for row in rows],
        "training_step": {name: asdict(value) for name, value in steps.items()},
        "growth": grown,
    }
    (out / "bench.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    (out / "bench.md").write_text(markdown(rows, others), encoding="utf-8")
    draw(rows, out / "bench.png")
    console.print(f"Written: bench.json, bench.md and bench.png in {out}")


def tasks(rows: list[CaseRow]) -> list[str]:
    return list(dict.fromkeys(row.task for row in rows))


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProjectionValueError(
            f"Expected --out to be a folder that can be written to, got {out}: {error.strerror}."
        ) from error


def _sentences(steps: dict[str, Ratio], grown: dict[str, list[float]]) -> Iterator[str]:
    yield f"{kernels()} Threads: {torch.get_num_threads()}."
    for memory_format, value in steps.items():
        yield f"OCT training step, {memory_format}: MaxPool model / TPL model {value}"
    for name, values in grown.items():
        factors = ", ".join(f"{v:.2f}" for v in values)
        yield f"doubling the {name}: time / work {factors} (1 = linear)"


COLUMNS = ["case", "batch", "shapes", "format", "ms", "replaced / this"]
TRAIN_COLUMNS = [f"{name} / this" for name in (*PEERS, "compiled", "limit")]
TRAIN_COLUMNS += ["U's share", "saved / output"]
INFER_COLUMNS = ["frozen / this", "folded / this", "limit / this"]


def columns(task: str) -> list[str]:
    return COLUMNS + (TRAIN_COLUMNS if task == TRAIN else INFER_COLUMNS)


def cells(row: CaseRow) -> list[str]:
    def ratio(name: str) -> str:
        return str(row.by_this.get(name, ""))

    first = [row.case, str(row.batch), row.shapes, row.memory_format, f"{row.milliseconds:.3g}"]
    first.append(f"{ratio(REPLACED)} {row.replaced}".strip())
    if row.task == INFER:
        return [*first, *map(ratio, (FROZEN, FOLDED, LIMIT))]
    share = f"{100 * row.by_this[U_STEP].median:.0f} %"
    return [*first, *map(ratio, (*PEERS, COMPILED, LIMIT)), share, f"{row.kept_by_output or 0:.2f}"]


def table(rows: list[CaseRow], task: str) -> Table:
    title = "forward and backward" if task == TRAIN else "forward in eval mode"
    title = f"{task.capitalize()}: {title}; median time (quartiles) relative to this layer's"
    result = Table(title=title)
    for column in columns(task):
        left = column in ("case", "shapes", "format")
        result.add_column(column, justify="left" if left else "right")
    for row in rows:
        if row.task == task:
            result.add_row(*cells(row))
    return result


def markdown(rows: list[CaseRow], sentences: list[str]) -> str:
    lines = []
    for task in tasks(rows):
        head = columns(task)
        body = [head, ["---"] * len(head), *(cells(row) for row in rows if row.task == task)]
        lines += [f"## {task.capitalize()}", *(f"| {' | '.join(line)} |" for line in body), ""]
    return "\n".join([*lines, *(f"- {sentence}" for sentence in sentences), ""])


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "compiled": bool(kernels()),
    }


COLOURS = ("#0072B2", "#999999", "#E69F00", "#56B4E9", "#009E73", "#CC79A7")


def draw(rows: list[CaseRow], path: Path) -> None:
    """Times relative to this layer's, one panel per task and format."""
    from matplotlib.figure import Figure

    panels: dict[tuple[str, int], list[CaseRow]] = {}
    for row in rows:
        last = int(row.memory_format in ("NHWC", "NDHWC"))
        panels.setdefault((row.task, last), []).append(row)
    across, down = len({last for _, last in panels}), len({task for task, _ in panels})
    height = 1 + 0.35 * max(map(len, panels.values()))
    width = 0.8 / (1 + len(PEERS))
    figure = Figure(figsize=(6.5 * across, height * down + 0.5), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).flat
    for (chosen_by, chosen), panel in zip(panels.items(), axes, strict=True):
        for k, name in enumerate((REPLACED, *PEERS)):
            found = [
                (y, row.by_this[name].median) for y, row in enumerate(chosen) if name in row.by_this
            ]
            panel.barh(
                [y + (k + 0.5) * width - 0.4 for y, _ in found],
                [value - 1 for _, value in found],
                0.9 * width,
                left=1,
                color=COLOURS[k % len(COLOURS)],
                label="the layer it replaces" if name == REPLACED else name,
            )
        panel.axvline(1, color="#D55E00", linewidth=2, label="this layer")
        panel.set_yticks(range(len(chosen)), [row.case for row in chosen])
        panel.invert_yaxis()
        panel.set_xscale("log")
        panel.set_xlabel("time relative to this layer; right of the line: slower than this layer")
        panel.set_title(f"{chosen_by[0].capitalize()}, channels {('first', 'last')[chosen_by[1]]}")
        panel.grid(axis="x", alpha=0.3)
        panel.set_axisbelow(True)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle("Side by side in one run")
    figure.savefig(path, dpi=120)
