"""Trials on a Ray cluster: the local executor's results to the bit, also after failures."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace

import pytest
from small_runs import carry_out, carry_out_here, results, smoke

from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.results import JobFiles

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'tensorprojection[ray]'")
cluster_utils = pytest.importorskip("ray.cluster_utils")

from tensorprojection.studies.executors import ray as module  # noqa: E402
from tensorprojection.studies.executors.local import run_jobs  # noqa: E402
from tensorprojection.studies.executors.ray import RayOptions, connected  # noqa: E402
from tensorprojection.studies.training.job import Epoch, Job, Restarted  # noqa: E402

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
    with connected(RayOptions(address, **options), config) as there:
        yield there


def files(folder):
    """What the run holds, but for what no two runs share."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name != "record.jsonl"
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


@pytest.mark.heavy
@pytest.mark.parametrize("kill", [remove, kill_trainers])
def test_a_node_or_a_worker_is_killed_in_the_middle(kill, cluster, tmp_path):
    """Its trial goes on elsewhere from its last epoch: the results are those of this machine."""
    config = smoke("oct", trials=2, models=("tpl2",), epochs=12)
    carry_out_here(config, tmp_path / "local")
    seen = []
    with nodes(cluster, 1, 1) as (_, doomed), executor(config, cluster.address) as there:

        def run_jobs(*given):
            for event in there.run_jobs(*given):
                seen.append(event)
                yield event
                if isinstance(event, Epoch) and sum(isinstance(e, Epoch) for e in seen) == 4:
                    kill(cluster, doomed)

        outcome = carry_out(config, tmp_path / "ray", execute=run_jobs)
    assert outcome.failures == ()
    assert [event for event in seen if isinstance(event, Restarted)]
    epochs = [(event.job, event.row["epoch"]) for event in seen if isinstance(event, Epoch)]
    assert len(epochs) == len(set(epochs)) == 24  # none that had arrived was trained again
    assert results(tmp_path / "ray").equals(results(tmp_path / "local"))
    assert files(tmp_path / "ray") == files(tmp_path / "local")


@pytest.mark.heavy
@pytest.mark.parametrize("study", ["oct", "chest", "kvasir"])
def test_images_are_sent_to_the_nodes(study, cluster, tmp_path):
    """By Ray's object store, with copies and features; the results are those of this machine."""
    config = smoke(study, trials=1)
    carry_out(config, tmp_path / "local")
    with nodes(cluster, 1, 1), executor(config, cluster.address) as there:
        assert there.places == 2
        carry_out(config, tmp_path / "ray", execute=there.run_jobs)
    assert results(tmp_path / "ray").equals(results(tmp_path / "local"))


def _wait_for_port(port):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)


@pytest.mark.heavy
def test_from_outside_of_the_cluster(tmp_path, monkeypatch):
    """By ray://, which starts a process for each that connects."""
    monkeypatch.setattr(module, "CONNECT_SECONDS", 90)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    head = {"num_cpus": 1, "include_dashboard": False, "ray_client_server_port": port}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
    config = smoke("oct", trials=1, models=("tpl2",))
    try:
        _wait_for_port(port)  # this server comes up after the cluster
        for attempt in range(5):
            try:
                with executor(config, f"ray://127.0.0.1:{port}") as there:
                    carry_out(config, tmp_path / "ray", execute=there.run_jobs)
                break
            except StudyError as error:  # Ray's server forks, and its child does not always start
                if "Initialization failure" not in str(error) or attempt == 4:
                    raise
    finally:
        made.shutdown()
    carry_out(config, tmp_path / "local")
    assert results(tmp_path / "ray").equals(results(tmp_path / "local"))


@pytest.mark.heavy
def test_a_run_goes_from_here_to_ray_and_back(cluster, tmp_path):
    """More epochs each time, and a file of lines that was lost is there again."""
    models = ("base", "tpl2")
    with nodes(cluster, 2):
        for epochs, on_ray in ((2, False), (4, True), (6, False), (6, True)):
            config = smoke("oct", trials=1, models=models, epochs=epochs)
            if epochs == 6 and on_ray:
                JobFiles.of(tmp_path / "mixed", 0, "tpl2").lines.unlink()
            with executor(config, cluster.address) if on_ray else nullcontext() as there:
                execute = there.run_jobs if on_ray else run_jobs
                assert carry_out(config, tmp_path / "mixed", execute=execute).failures == ()
    carry_out(smoke("oct", trials=1, models=models, epochs=6), tmp_path / "local")
    assert results(tmp_path / "mixed").equals(results(tmp_path / "local"))
    assert files(tmp_path / "mixed") == files(tmp_path / "local")


@pytest.mark.heavy
def test_a_corrupted_checkpoint_is_trained_again(cluster, tmp_path):
    config = smoke("oct", trials=1, models=("tpl2",))
    carry_out(config, tmp_path / "ray")
    before, kept = results(tmp_path / "ray"), JobFiles.of(tmp_path / "ray", 0, "tpl2")
    kept.checkpoint.write_bytes(b"damaged")
    kept.lines.unlink()
    seen = []
    with nodes(cluster, 1), executor(config, cluster.address) as there:

        def run_jobs(*given):
            for event in there.run_jobs(*given):
                seen.append(event)
                yield event

        carry_out(config, tmp_path / "ray", execute=run_jobs)
    assert any("trained from epoch 1" in getattr(event, "text", "") for event in seen)
    assert results(tmp_path / "ray").equals(before)


SETTINGS = ["--preset", "smoke", "--epochs", "40", "--models", "base,tpl2", "--trials", "1"]
COMMAND = [sys.executable, "-m", "tensorprojection", "run", "oct", *SETTINGS]


@pytest.mark.heavy
@pytest.mark.parametrize("whose", ["the command", "raylet"])
def test_a_process_is_killed_and_the_same_command_goes_on(whose, tmp_path):
    """On a cluster of its own, which ends with it: nothing is left running, or in the way."""
    command = [*COMMAND, "--executor", "ray", "--jobs", "2", "--out", str(tmp_path / "killed")]
    lines = JobFiles.of(tmp_path / "killed", 0, "base").lines
    with open(tmp_path / "output", "w") as output:
        process = subprocess.Popen(command, start_new_session=True, stdout=output, stderr=output)
    wait_for(lambda: lines.exists() or process.poll() is not None)
    text = (tmp_path / "output").read_text
    assert process.poll() is None, text()
    if whose == "raylet":
        listed = subprocess.run(["pgrep", "-s", str(process.pid), "raylet"], capture_output=True)
        for found in listed.stdout.split():
            os.kill(int(found), signal.SIGKILL)
        assert process.wait(timeout=120) == 1, text()
        assert "the connection to Ray has ended" in text()
        assert "tpl: 1 networks were not trained; see above." in text()
        assert "Traceback" not in text()
    else:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert 0 < len(JobFiles.of(tmp_path / "killed", 0, "base").rows()) < 40
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), "RAY_TMPDIR": "/tmp"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Continuing: 0 of 2 done" in done.stdout
    assert not list(temporary.glob("tpl-*"))
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


# Bad input: one line


def one_line(match):
    return pytest.raises(StudyError, match=rf"^[^\n]*{match}[^\n]*$")


@contextmanager
def connecting(address):
    with connected(RayOptions(address), smoke("oct")):
        yield


@pytest.mark.heavy
@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_that_does_not_answer(address):
    with one_line(f"connect to Ray at {address}: "), connecting(address):
        pass


@pytest.mark.heavy
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_something_else_listens(scheme):
    """It takes connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{scheme}127.0.0.1:{server.getsockname()[1]}"
        with one_line("Ray"), connecting(address):
            pass


def test_without_ray(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with one_line(r"pip install 'tensorprojection\[ray\]'"), connecting(None):
        pass


@pytest.mark.parametrize(
    ("options", "device", "match"),
    [
        ({"gpus": 0.5}, "cpu", "only with --device cuda .* got 1 and 0.5 with --device cpu"),
        ({"gpus": 1.5}, "cuda", "a share of a GPU or whole GPUs .* got 1 and 1.5"),
        ({"cpus": -1}, "cpu", "Expected 0 or more --cpus-per-trial .* got -1 and 0"),
        ({}, "cuda:1", ".Ray chooses its number.* with --device cuda:1"),
    ],
)
def test_what_one_trial_cannot_be_given(options, device, match):
    config = smoke("oct").model_copy(update={"device": device})
    with one_line(match):
        RayOptions(**options).resources(config)


@pytest.mark.parametrize(("cpus", "gpus"), [(8, 0), (1, 1), (4, 0.5)])
def test_too_few_cpus_or_gpus(cpus, gpus, monkeypatch):
    there = [{"Resources": {"CPU": 4.0}}, {"Resources": {"CPU": 1.0, "GPU": 0.5}}]
    monkeypatch.setattr(module, "_alive", lambda: there)
    has = "4 CPU and 0 GPU; 1 CPU and 0.5 GPU"
    with one_line(f"One trial needs {cpus} CPU and {gpus} GPU, but no node .* has both: {has}"):
        module.places({"CPU": cpus, "GPU": gpus})
    assert module.places({"CPU": 2, "GPU": 0}) == 2
    assert module.places({"CPU": 0.5, "GPU": 0.25}) == 2


@pytest.mark.heavy
def test_a_node_that_has_other_code(cluster, tmp_path):
    """The first job ends the run: no other could be trained."""
    config = smoke("oct", trials=1, models=("base",))
    with nodes(cluster, 1), executor(config, cluster.address) as there:

        def run_jobs(jobs, count, task):
            return there.run_jobs(jobs, count, replace(task, code="0.1 abc"))

        (failed,) = carry_out(config, tmp_path, execute=run_jobs).failures
    assert failed.stop
    assert re.match("its process has other code than the run: .*, not 0.1 abc", failed.why)
    assert "\n" not in failed.why


@pytest.mark.heavy
def test_a_node_without_the_package(cluster):
    """A worker that cannot start ends the run; one that dies is replaced."""

    class Trainer:
        def __init__(self):
            raise ModuleNotFoundError("No module named 'tensorprojection'")

        def event(self):
            pass

    job = Job(0, "base")
    with nodes(cluster, 1):
        ray.init(address=cluster.address, log_to_driver=False)
        try:
            with pytest.raises(ray.exceptions.RayError) as raised:
                ray.get(ray.remote(Trainer).remote().event.remote())
        finally:
            ray.shutdown()
    lost = module._lost(job, raised.value)
    assert lost.fatal
    assert lost.how == (
        "a worker could not start: ModuleNotFoundError: No module named 'tensorprojection'"
    )


@pytest.mark.heavy
def test_a_cluster_whose_nodes_are_gone(cluster, tmp_path):
    """The run ends with a line, and what was computed is saved."""
    config = smoke("oct", trials=1, models=("base",))
    with nodes(cluster, 1) as (node,), executor(config, cluster.address) as there:
        cluster.remove_node(node, allow_graceful=False)
        outcome = carry_out(config, tmp_path, execute=there.run_jobs)
    assert [failure.stop for failure in outcome.failures] == [True]
    assert "no worker has started for 30 s. One trial needs 1 CPU " in outcome.failures[0].why


def test_impossible_resources_of_a_trial_are_refused_before_a_cluster_is_started(monkeypatch):
    monkeypatch.setattr(module, "start_process", lambda *_: pytest.fail("it was started"))
    with one_line("gpus-per-trial"), connected(RayOptions(gpus=1), smoke("oct")):
        pass
