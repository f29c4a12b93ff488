"""The figures as a table in the terminal, as JSON and as a bar chart."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from tensorprojection import ProjectionValueError, kernels

from .measure import Ratio
from .run import CaseRow, check_request, run_cases
from .training import growth, training_steps


def run_and_report(*, rounds: int, only: str, peers: bool, out: Path) -> None:
    check_request(rounds, only, peers)
    _make_folder(out)  # before minutes of measuring
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    rows = []
    with console.status("measuring …") as status:
        for row in run_cases(rounds, only, peers):
            rows.append(row)
            status.update(f"{row.case} {row.memory_format}: {row.milliseconds:.2f} ms")
        steps = {} if only else training_steps(max(rounds, 5))
        grown = {} if only else growth(rounds)
    console.print(table(rows))
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


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ProjectionValueError(
            f"Expected --out to be a folder that can be written to, got {out}: {error.strerror}."
        ) from error


def _sentences(steps: dict[str, Ratio], grown: dict[str, list[float]]) -> Iterator[str]:
    yield str(kernels())
    for memory_format, value in steps.items():
        yield f"OCT training step, {memory_format}: TPL model / MaxPool model {value}"
    for name, values in grown.items():
        factors = ", ".join(f"{v:.2f}" for v in values)
        yield f"doubling the {name}: time / work {factors} (1 = linear)"


COLUMNS = ["case", "format", "ms", "to what it replaces", "textbook / this", "TCL / this"]
COLUMNS += ["geotorch / this", "this / limit", "U's share", "kept / output", "compiled / this"]


def cells(row: CaseRow) -> list[str]:
    return [
        row.case,
        row.memory_format,
        f"{row.milliseconds:.2f}",
        "" if row.to_replaced is None else f"{row.to_replaced} {row.replaced}",
        *(str(row.peers.get(name, "")) for name in ("textbook", "TCL", "geotorch")),
        str(row.to_limit),
        f"{100 * row.U_share.median:.0f} %",
        f"{row.kept_by_output:.2f}",
        "" if row.compiled is None else str(row.compiled),
    ]


def table(rows: list[CaseRow]) -> Table:
    result = Table(title="Forward and backward, float32; median ratio (quartiles) of one run")
    for column in COLUMNS:
        result.add_column(column, justify="left" if column in COLUMNS[:2] else "right")
    for row in rows:
        result.add_row(*cells(row))
    return result


def markdown(rows: list[CaseRow], sentences: list[str]) -> str:
    lines = [COLUMNS, ["---"] * len(COLUMNS), *map(cells, rows)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([text, "", *(f"- {sentence}" for sentence in sentences), ""])


def machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "compiled": bool(kernels()),
    }


def draw(rows: list[CaseRow], path: Path) -> None:
    """Times relative to this layer's, one panel per memory format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    formats = list(dict.fromkeys(row.memory_format for row in rows))
    figure, panels = plt.subplots(1, len(formats), figsize=(6.5 * len(formats), 4.8), squeeze=False)
    colours = {
        "textbook": "#999999",
        "TCL": "#E69F00",
        "geotorch": "#56B4E9",
        "replaced": "#0072B2",
    }
    for panel, memory_format in zip(panels[0], formats, strict=True):
        chosen = [row for row in rows if row.memory_format == memory_format]
        for k, (name, colour) in enumerate(colours.items()):
            for y, row in enumerate(chosen):
                value = _relative(row, name)
                if value is not None:
                    label = "the layer it replaces" if name == "replaced" else name
                    first = y == next(i for i, r in enumerate(chosen) if _relative(r, name))
                    panel.barh(
                        y + 0.3 - 0.2 * k, value, 0.18, color=colour, label=label if first else None
                    )
        panel.axvline(1, color="#D55E00", linewidth=2, label="this layer")
        panel.set_yticks(range(len(chosen)), [row.case for row in chosen])
        panel.invert_yaxis()
        panel.set_xscale("log")
        panel.set_xlabel(
            "time relative to this layer (log scale); right of the line: slower than this layer"
        )
        panel.set_title(memory_format)
        panel.grid(axis="x", alpha=0.3)
        panel.set_axisbelow(True)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)
    figure.suptitle("Forward and backward pass, float32, side by side in one run")
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _relative(row: CaseRow, name: str) -> float | None:
    if name == "replaced":
        return None if row.to_replaced is None else 1 / row.to_replaced.median
    return row.peers[name].median if name in row.peers else None
