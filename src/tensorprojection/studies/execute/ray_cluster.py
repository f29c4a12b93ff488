"""A Ray cluster to train on: connected to, or started here, and checked before a run begins.

Whatever is wrong is reported in one line within half a minute. Ray itself waits for minutes for an
address that does not answer, and forever for a node with room.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from ..code_version import STUDY, code_version
from ..config import RunConfig
from ..errors import StudyError

ANSWER_SECONDS = 5.0  # for a connection
CONNECT_SECONDS = 20.0  # for Ray to find out whether that is a cluster
CHECK_SECONDS = 27.0  # for all of that, and for the nodes to say what they have installed
NODE_SECONDS = 5.0  # which they have at the least
LOCAL_ADDRESS = "auto"


@dataclass(frozen=True)
class RayOptions:
    """Where trials go, and the resources that each gets.

    Args:
        address: of a cluster: ``auto`` for that of this machine, ``host:port``, ``ray://host:port``;
            None starts one here, which ends with the run.
        cpus: of a node, for one trial; None for as many as it has threads.
        gpus: of a node, for one trial; None for one where the device is cuda, else none.
        paths: whether a node may read images from the driver's path, where it has the same content
            there; otherwise they are sent.
    """

    address: str | None = None
    cpus: float | None = None
    gpus: float | None = None
    paths: bool = True

    def resources(self, config: RunConfig) -> dict[str, float]:
        """What one trial of this run needs."""
        for name, given in (("`cpus_per_trial`", self.cpus), ("`gpus_per_trial`", self.gpus)):
            if given is not None and not 0 <= given < 10_000:
                raise StudyError(f"Expected {name} of 0 or more, got {given}.")
        on_gpu = config.device.startswith("cuda")
        gpus = self.gpus if self.gpus is not None else float(on_gpu)
        if bool(gpus) != on_gpu:
            raise StudyError(
                f"Expected `gpus_per_trial` with `device` cuda only, got {gpus:g} with `device` "
                f"{config.device}."
            )
        if on_gpu and config.device != "cuda":
            raise StudyError(
                f"Expected `device` cuda on Ray, which chooses the GPU, got {config.device}."
            )
        if gpus > 1 and gpus % 1:
            raise StudyError(f"Expected a share of a GPU or whole GPUs per trial, got {gpus:g}.")
        cpus = self.cpus if self.cpus is not None else float(config.threads)
        return {"CPU": cpus, "GPU": gpus}


@contextmanager
def connected(options: RayOptions) -> Iterator[float]:
    """Connected to the cluster while in here; one that was started for this ends with it.

    Yields the time, by ``time.monotonic``, until which its nodes may say what they have.
    """
    until = time.monotonic() + CHECK_SECONDS
    if find_spec("ray") is None:
        raise StudyError(
            "`executor` ray needs Ray, which is not installed: pip install 'tensorprojection[ray]'"
        )
    import ray

    if ray.is_initialized():
        raise StudyError("This process is connected to a Ray cluster already: disconnect first.")
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Of a cluster that is started here. Ray's niceness of 15 would have its trials wait for every
    # other process of the machine; those of the local executor do not.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        if options.address is None:
            ray.init(address="local", include_dashboard=False, **settings)
        else:
            _check_answers(options.address)
            ray.init(address=options.address, **settings)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise StudyError(
            f"Could not connect to Ray at {options.address or 'a cluster of its own'}: "
            f"{first_line(error)}"
        ) from error
    try:
        yield until
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """A ``StudyError`` where nobody answers there, or nobody who is a Ray cluster."""
    if address != LOCAL_ADDRESS:
        given = address if "://" in address else f"//{address}"
        try:
            parts = urlsplit(given)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if host is None or port is None or parts.scheme not in ("", "ray"):
            raise StudyError(
                f"Expected `address` auto, host:port or ray://host:port, got {address}."
            )
        try:
            socket.create_connection((host, port), timeout=ANSWER_SECONDS).close()
        except OSError as error:
            raise StudyError(
                f"Nothing answers at {address} ({error.strerror or error}). Is the cluster up, and "
                "is that its address? Without `address` one is started here."
            ) from error
    # In a process of its own, as a call that waits inside of Ray cannot be interrupted.
    what = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False); ray.nodes()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", what, address],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CONNECT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise StudyError(
            f"What answers at {address} is no Ray cluster, or is too busy: it has said nothing for "
            f"{CONNECT_SECONDS:.0f} s."
        ) from None
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "Error" in line]
        last = said[-1].partition(": ")[2].strip() if said else "Ray ended without a reason"
        if "grpc" in last:
            last += ". An address with ray:// needs it: pip install 'tensorprojection[ray]'"
        raise StudyError(f"Could not connect to Ray at {address}: {last}")


@dataclass(frozen=True)
class Node:
    """A node of the cluster and what it has."""

    id: str
    name: str
    resources: dict[str, float]

    def fits(self, needed: dict[str, float]) -> int:
        """How many trials it has room for."""
        rooms = [
            int((self.resources.get(name, 0.0) + 1e-9) // amount)
            for name, amount in needed.items()
            if amount
        ]
        return min(rooms, default=int(self.resources.get("CPU", 0.0)))


def alive() -> list[Node]:
    """The cluster's nodes."""
    import ray

    listed: Any = ray.nodes  # without types
    return [
        Node(found["NodeID"], found["NodeManagerAddress"], found["Resources"])
        for found in listed()
        if found["Alive"]
    ]


def places(needed: dict[str, float]) -> int:
    """How many trials the cluster has room for at once; a ``StudyError`` where it is none."""
    nodes = alive()
    room = sum(node.fits(needed) for node in nodes)
    if room:
        return room
    for name, flag in (("GPU", "`gpus_per_trial`"), ("CPU", "`cpus_per_trial`")):
        most = max((node.resources.get(name, 0.0) for node in nodes), default=0.0)
        if most < needed[name]:
            raise StudyError(
                f"One trial needs {needed[name]:g} {name}, but of the cluster's nodes "
                f"({len(nodes)}) the largest has {most:g}. Choose a smaller {flag}, or add a node."
            )
    raise StudyError("No node of the cluster has both the CPUs and the GPUs that one trial needs.")


def check_nodes(needed: dict[str, float], study: str, until: float) -> None:
    """A ``StudyError`` where a node that could get a trial does not have the code that is here."""
    seconds = max(until - time.monotonic(), NODE_SECONDS)
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = code_version(study)
    nodes = [node for node in alive() if node.fits(needed)]
    ask = ray.remote(num_cpus=0)(_by_value(_installed))
    asked = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node.id, soft=False)
        asked[ask.options(scheduling_strategy=there).remote(study)] = node
    ready, silent = ray.wait(list(asked), num_returns=len(asked), timeout=seconds)
    for answer in ready:
        name = asked[answer].name
        try:
            found = ray.get(answer)
        except ray.exceptions.RayError as error:
            raise StudyError(f"Node {name} cannot be used: {first_line(error)}") from error
        if found is None:
            raise StudyError(
                f"Node {name} does not have tensorprojection, or not all that it needs: pip "
                f"install 'tensorprojection[ray,studies]' there, of version {here}."
            )
        if found != here and _of_package(found) == _of_package(here):
            raise StudyError(
                f"Node {name} does not have {study} as it is here. Put the same file there, under "
                "the same path."
            )
        if found != here:
            raise StudyError(
                f"Node {name} has tensorprojection {found}, but here is {here}. Install the same "
                "there: results of two versions are not mixed."
            )
    if silent and not ready:  # a slow one among others is asked again by the worker that it gets
        raise StudyError(
            f"Node {asked[silent[0]].name} has not answered for {seconds:.0f} s. Remove it "
            "from the cluster, or see to it that it can start processes."
        )


def _of_package(version: str) -> str:
    """A version of the code without that of a user's own study."""
    return version.partition(STUDY)[0]


def _installed(study: str) -> str | None:
    """The code of the node that this runs on; sent whole, also to nodes without the package.

    What it imports is light: a busy node takes half a minute to import torch.
    """
    from importlib.util import find_spec

    try:
        from tensorprojection.studies.code_version import code_version
    except ImportError:
        return None
    needed = ("torch", "numpy", "polars", "pydantic", "filelock")
    return code_version(study) if all(map(find_spec, needed)) else None


def _by_value(function: Callable[[str], str | None]) -> Callable[[str], str | None]:
    """The function as Ray sends those of a script: with its code, not as the name of a module."""
    function.__module__ = "__main__"
    return function


def first_line(error: BaseException) -> str:
    """The first line of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
