"""Trials on a Ray cluster: the local executor's results to the bit, whatever dies meanwhile."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import pytest
from small_runs import carry_out, carry_out_here, results, smoke

from tensorprojection.studies.data.cache import DIGEST
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.oct import OCT
from tensorprojection.studies.results import UnitFiles
from tensorprojection.studies.trial.unit import Epoch

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'tensorprojection[ray]'")
cluster_utils = pytest.importorskip("ray.cluster_utils")

from tensorprojection.studies.execute import ray_cluster  # noqa: E402
from tensorprojection.studies.execute.protocol import Restarted, Task  # noqa: E402
from tensorprojection.studies.execute.ray import RayExecutor  # noqa: E402
from tensorprojection.studies.execute.ray_cluster import RayOptions, connected  # noqa: E402
from tensorprojection.studies.execute.ray_worker import Trainer  # noqa: E402

# Ray's own, about its own: sockets and processes that it closes when it is done.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# A node that is killed is found dead in seconds, not in half a minute.
QUICK = {"health_check_period_ms": 500, "health_check_failure_threshold": 3}


@pytest.fixture(scope="module")
def cluster():
    """A head that trains nothing; tests add the nodes that do."""
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": QUICK}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    yield made
    made.shutdown()


@contextmanager
def nodes(cluster, *cpus):
    """Nodes with so many CPUs each, which are gone afterwards."""
    added = [cluster.add_node(num_cpus=number, include_dashboard=False) for number in cpus]
    cluster.wait_for_nodes()
    try:
        yield added
    finally:
        for node in added:
            if node in cluster.worker_nodes:
                cluster.remove_node(node, allow_graceful=False)


@contextmanager
def executor(config, address, **options):
    chosen = RayOptions(address, **options)
    with connected(chosen) as until:
        yield RayExecutor(chosen, config, until)


def files(folder):
    """What the run holds, but for what no two runs share."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("record.json", ".lock")
    }


def remove(cluster, node):
    cluster.remove_node(node, allow_graceful=False)


def kill_trainers(_, node):
    """The processes that train on the node, which itself stays."""
    (raylet,) = node.all_processes["raylet"]
    parent = str(raylet.process.pid)
    listed = subprocess.run(["pgrep", "-P", parent, "-f", "ray::Trainer"], capture_output=True)
    assert listed.stdout
    for found in listed.stdout.split():
        os.kill(int(found), signal.SIGKILL)


@pytest.mark.parametrize("kill", [remove, pytest.param(kill_trainers, marks=pytest.mark.heavy)])
def test_a_node_or_a_worker_is_killed_in_the_middle(kill, cluster, tmp_path):
    """Its trial goes on elsewhere from its last epoch: the results are those of this machine."""
    config = smoke("oct", trials=2, models=("tpl2",), epochs=12)
    carry_out_here(config, tmp_path / "local")
    seen = []
    with nodes(cluster, 1, 1) as (_, doomed), executor(config, cluster.address) as there:

        def run_units(*given):
            for event in there.run_units(*given):
                seen.append(event)
                yield event
                if isinstance(event, Epoch) and sum(isinstance(e, Epoch) for e in seen) == 4:
                    kill(cluster, doomed)

        outcome = carry_out(config, tmp_path / "ray", execute=run_units)
    assert outcome.failures == ()
    assert [event for event in seen if isinstance(event, Restarted)]
    epochs = [(event.unit, event.row["epoch"]) for event in seen if isinstance(event, Epoch)]
    assert len(epochs) == len(set(epochs)) == 24  # none that had arrived was trained again
    assert results(tmp_path / "ray").equals(results(tmp_path / "local"))
    assert files(tmp_path / "ray") == files(tmp_path / "local")


@pytest.mark.heavy
@pytest.mark.parametrize("study", ["oct", "chest", "kvasir"])
def test_images_that_nodes_cannot_read_are_sent(study, cluster, tmp_path):
    """By Ray's object store, with copies and features; the results are those of this machine."""
    config = smoke(study, trials=1)
    carry_out(config, tmp_path / "local")
    with nodes(cluster, 1, 1), executor(config, cluster.address, paths=False) as there:
        assert there.places == 2
        carry_out(config, tmp_path / "ray", execute=there.run_units)
    assert results(tmp_path / "ray").equals(results(tmp_path / "local"))


def test_a_folder_of_the_same_path_counts_by_its_content(tmp_path):
    """As a worker sees it that has another data set, or a damaged one, at the driver's path."""
    config = smoke("oct", trials=1, models=("base",))
    inputs = OCT.prepare(config, 1, lambda *_: None)
    worker = Trainer(Task(config, inputs, tmp_path, "code"))
    folder = shutil.copytree(next(iter(inputs.folders.values())), tmp_path / "images")
    digest = (folder / DIGEST).read_text()
    assert worker.lacks({folder: digest}, paths=True) == []
    assert worker.lacks({folder: digest}, paths=False) == [folder]
    assert worker.lacks({folder: "of other images"}, paths=True) == [folder]
    largest = max(folder.glob("*.npy"), key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[-1] ^= 1
    largest.write_bytes(content)
    assert worker.lacks({folder: digest}, paths=True) == [folder]


def _wait_for_port(port):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)


@pytest.mark.heavy
def test_from_outside_of_the_cluster(tmp_path, monkeypatch):
    """By ray://, which starts a process for each that connects."""
    monkeypatch.setattr(ray_cluster, "CONNECT_SECONDS", 90)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    head = {"num_cpus": 1, "include_dashboard": False, "ray_client_server_port": port}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    config = smoke("oct", trials=1, models=("tpl2",))
    try:
        _wait_for_port(port)  # this server comes up after the cluster
        with executor(config, f"ray://127.0.0.1:{port}", paths=False) as there:
            carry_out(config, tmp_path / "ray", execute=there.run_units)
    finally:
        made.shutdown()
    carry_out(config, tmp_path / "local")
    assert results(tmp_path / "ray").equals(results(tmp_path / "local"))


@pytest.mark.heavy
def test_a_run_goes_from_here_to_ray_and_back(cluster, tmp_path):
    """More epochs each time, and a file of lines that was lost is there again."""
    models = ("base", "tpl2")
    with nodes(cluster, 2), executor(smoke("oct"), cluster.address) as there:
        for epochs, execute in ((2, None), (4, there.run_units), (6, None), (6, there.run_units)):
            config = smoke("oct", trials=1, models=models, epochs=epochs)
            if epochs == 6 and execute:
                UnitFiles.of(tmp_path / "mixed", 0, "tpl2").lines.unlink()
            assert carry_out(config, tmp_path / "mixed", execute=execute).failures == ()
    carry_out(smoke("oct", trials=1, models=models, epochs=6), tmp_path / "local")
    assert results(tmp_path / "mixed").equals(results(tmp_path / "local"))
    assert files(tmp_path / "mixed") == files(tmp_path / "local")


@pytest.mark.heavy
def test_a_damaged_checkpoint_is_trained_anew(cluster, tmp_path):
    config = smoke("oct", trials=1, models=("tpl2",))
    carry_out(config, tmp_path / "ray")
    before, kept = results(tmp_path / "ray"), UnitFiles.of(tmp_path / "ray", 0, "tpl2")
    kept.checkpoint.write_bytes(b"damaged")
    kept.lines.unlink()
    seen = []
    with nodes(cluster, 1), executor(config, cluster.address) as there:

        def run_units(*given):
            for event in there.run_units(*given):
                seen.append(event)
                yield event

        carry_out(config, tmp_path / "ray", execute=run_units)
    assert any("trained anew" in getattr(event, "text", "") for event in seen)
    assert results(tmp_path / "ray").equals(before)


@pytest.mark.heavy
def test_the_driver_is_killed_and_the_same_command_goes_on(tmp_path):
    """On a cluster of its own, which ends with it: nothing is left running."""
    settings = ["--preset", "smoke", "--epochs", "40", "--models", "base,tpl2", "--trials", "1"]
    command = [sys.executable, "-m", "tensorprojection", "run", "oct", *settings]
    command += ["--executor", "ray", "--jobs", "2", "--out", str(tmp_path / "killed")]
    lines = UnitFiles.of(tmp_path / "killed", 0, "base").lines
    with open(tmp_path / "output", "w") as output:
        process = subprocess.Popen(command, start_new_session=True, stdout=output, stderr=2)
    wait_for(lambda: lines.exists() or process.poll() is not None)
    assert process.poll() is None, (tmp_path / "output").read_text()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    epochs = len(UnitFiles.of(tmp_path / "killed", 0, "base").rows())
    assert 0 < epochs < 40
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Continuing: 0 of 2 done" in done.stdout
    carry_out(smoke("oct", trials=1, models=("base", "tpl2"), epochs=40), tmp_path / "local")
    assert results(tmp_path / "killed").equals(results(tmp_path / "local"))
    wait_for(lambda: not workers_in(process.pid))


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def workers_in(session):
    """Processes of that session, which a command started for itself."""
    listed = subprocess.run(["ps", "-o", "pid=", "-s", str(session)], capture_output=True)
    return listed.stdout.split()


# Bad input: one line, in less than half a minute


def one_line(match):
    return pytest.raises(StudyError, match=rf"^[^\n]*{match}[^\n]*$")


@contextmanager
def within_half_a_minute():
    """Not a measurement of speed: what would wait for ever must end by itself."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < 30


@contextmanager
def connecting(address):
    with connected(RayOptions(address)):
        yield


@pytest.mark.parametrize(
    ("address", "match"),
    [
        ("nonsense", "Expected `address` auto, host:port or ray://host:port, got nonsense"),
        ("http://here:80", "Expected `address`"),
        ("127.0.0.1:1", r"Nothing answers at 127.0.0.1:1 \(Connection refused\)"),
        ("ray://127.0.0.1:1", "Nothing answers at ray://127.0.0.1:1"),
        ("no-such-host.invalid:6379", "Nothing answers at no-such-host.invalid:6379"),
    ],
)
def test_an_address_that_does_not_answer(address, match):
    with within_half_a_minute(), one_line(match), connecting(address):
        pass


@pytest.mark.heavy
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_something_else_listens(scheme):
    """It takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{scheme}127.0.0.1:{server.getsockname()[1]}"
        with within_half_a_minute(), one_line("Ray"), connecting(address):
            pass


def test_without_ray(monkeypatch):
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None)
    with one_line(r"pip install 'tensorprojection\[ray\]'"), connecting(None):
        pass


@pytest.mark.parametrize(
    ("options", "device", "match"),
    [
        ({"gpus": 0.5}, "cpu", "Expected `gpus_per_trial` with `device` cuda only"),
        ({"gpus": 1.5}, "cuda", "a share of a GPU or whole GPUs"),
        ({"cpus": -1}, "cpu", "Expected `cpus_per_trial` of 0 or more, got -1"),
        ({}, "cuda:1", "Expected `device` cuda on Ray, which chooses the GPU, got cuda:1"),
    ],
)
def test_what_one_trial_cannot_be_given(options, device, match):
    config = smoke("oct").model_copy(update={"device": device})
    with one_line(match):
        RayOptions(**options).resources(config)


@pytest.mark.parametrize(
    ("cpus", "gpus", "match"),
    [
        (8, 0, "One trial needs 8 CPU, but of the cluster's nodes .2. the largest has 4"),
        (1, 1, "One trial needs 1 GPU, but of the cluster's nodes .2. the largest has 0.5"),
        (4, 0.5, "No node of the cluster has both"),
    ],
)
def test_too_few_cpus_or_gpus(cpus, gpus, match, monkeypatch):
    there = [
        ray_cluster.Node("a", "a", {"CPU": 4.0}),
        ray_cluster.Node("b", "b", {"CPU": 1.0, "GPU": 0.5}),
    ]
    monkeypatch.setattr(ray_cluster, "alive", lambda: there)
    with one_line(match):
        ray_cluster.places({"CPU": cpus, "GPU": gpus})
    assert ray_cluster.places({"CPU": 2, "GPU": 0}) == 2
    assert ray_cluster.places({"CPU": 0.5, "GPU": 0.25}) == 2


@pytest.mark.heavy
def test_a_cluster_with_other_code_or_without_it(cluster, monkeypatch):
    """What the nodes have is asked for before anything is prepared."""
    config = smoke("oct")
    with nodes(cluster, 1), connected(RayOptions(cluster.address)) as until:
        there = ray_cluster.code_version(config.study)
        with monkeypatch.context() as patch:
            patch.setattr(ray_cluster, "code_version", lambda study: "0.1 abc, torch 1.0")
            with one_line(f"has tensorprojection {re.escape(there)}, but here is 0.1 abc"):
                RayExecutor(RayOptions(cluster.address), config, until)
        with monkeypatch.context() as patch:
            patch.setattr(ray_cluster, "code_version", lambda study: f"{there}, study 0123")
            with one_line(f"does not have {config.study} as it is here. Put the same file there"):
                RayExecutor(RayOptions(cluster.address), config, until)
        with monkeypatch.context() as patch:
            patch.setattr(ray_cluster, "_installed", lambda study: None)
            with within_half_a_minute(), one_line("does not have tensorprojection"):
                RayExecutor(RayOptions(cluster.address), config, until)


@pytest.mark.heavy
def test_a_node_that_says_nothing(cluster, monkeypatch):
    """It is waited for as long as is left of what connecting and asking may take together."""
    monkeypatch.setattr(ray_cluster, "_installed", lambda study: time.sleep(3600))
    with (
        nodes(cluster, 1),
        within_half_a_minute(),
        one_line("has not answered for [0-9]+ s"),
        executor(smoke("oct"), cluster.address),
    ):
        pass


@pytest.mark.heavy
def test_a_cluster_whose_nodes_are_gone(cluster, tmp_path, monkeypatch):
    """The run ends with a line, and what was computed is kept."""
    from tensorprojection.studies.execute import ray as execute

    monkeypatch.setattr(execute, "PLACE_SECONDS", 3.0)
    config = smoke("oct", trials=1, models=("base",))
    with nodes(cluster, 1) as (node,), executor(config, cluster.address) as there:
        cluster.remove_node(node, allow_graceful=False)
        outcome = carry_out(config, tmp_path, execute=there.run_units)
    assert [failure.stop for failure in outcome.failures] == [True]
    assert "no worker has started for 3 s. One trial needs 1 CPU," in outcome.failures[0].why


def test_what_one_trial_cannot_be_given_is_said_before_a_cluster_is_started(monkeypatch):
    from tensorprojection.studies.execute import choose
    from tensorprojection.studies.execute.parallel import Devices

    monkeypatch.setattr(choose, "connected", lambda options: pytest.fail("it was started"))
    with one_line("gpus_per_trial"), choose.executor(smoke("oct"), RayOptions(gpus=1), Devices()):
        pass
