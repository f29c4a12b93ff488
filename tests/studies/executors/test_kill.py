"""After a kill at any moment, a run continues with the results of one that never stopped."""

import os
import random
import resource
import signal
import subprocess
import sys
import time

import pytest
from small_runs import carry_out, carry_out_here, results, smoke, train_here

from tensorprojection.studies.config import code_version
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.executors.base import JobTrainer, Task
from tensorprojection.studies.registry import STUDIES
from tensorprojection.studies.results import JobFiles
from tensorprojection.studies.training.job import Done, Job

# One job, killed many times


@pytest.fixture(scope="module", params=[("chest", "tpl"), ("kvasir", "tpl")], ids=lambda p: p[0])
def job(request):
    """Chest has dropout and so random numbers to restore; the U-Net has batch statistics."""
    name, model = request.param
    config, study = smoke(name, epochs=6), STUDIES[name]
    return Job(1, model), (study, config, study.prepare(config, 1, lambda *_: None))


def epochs(folder, job):
    rows = JobFiles.of(folder, job.trial, job.model).rows()
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def in_a_child(call):
    """Fork a process that makes the call; it exits 0 when that returns."""
    pid = os.fork()
    if pid == 0:
        try:
            call()
            os._exit(0)
        finally:
            os._exit(1)
    return pid


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_one_job_killed_many_times(job, tmp_path):
    what, task = job

    def run(folder):
        trainer = JobTrainer(Task(*task, tmp_path / folder, code_version(), "best"))
        assert train_here(trainer, what) == Done(what)

    run("whole")  # here, which imports what is imported late: no child spends its life on that
    started = time.monotonic()
    run("timed")
    seconds = time.monotonic() - started

    draw, kills, status = random.Random(0), 0, None
    while status != 0:
        assert kills < 100
        child = in_a_child(lambda: run("killed"))
        # At any point of an epoch, and later and later, so that one comes through in the end.
        time.sleep(draw.uniform(0, (0.2 + 0.1 * kills) * seconds))
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        kills += status != 0
    assert kills >= 2
    assert epochs(tmp_path / "killed", what) == epochs(tmp_path / "whole", what)
    left = {path.name for path in (tmp_path / "killed").rglob("*.*")}
    kept = {f"{what.model}.{kind}" for kind in ("jsonl", "pt", "safetensors", "observed.npz")}
    assert left == kept | {name for name in left if name.endswith(".part")}


# The whole command


COMMAND = [sys.executable, "-m", "tensorprojection", "run", "oct", "--preset", "smoke"]
SETTINGS = ["--epochs", "6", "--models", "base,tpl2"]


def test_the_command_killed_alone_and_with_its_workers(tmp_path):
    """Alone: its workers must then end by themselves, and the next one waits for them."""
    config = smoke("oct", epochs=6, models=("base", "tpl2"))
    carry_out_here(config, tmp_path / "whole")
    for kill, lines, jobs in ((os.kill, 1, 2), (os.killpg, 8, 1)):
        process = _start(tmp_path, jobs)
        while process.poll() is None and _lines(tmp_path / "killed") < lines:
            time.sleep(0.01)
        kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, (tmp_path / "output").read_text()
    assert not carry_out_here(config, tmp_path / "killed").was_finished
    assert results(tmp_path / "killed").equals(results(tmp_path / "whole"))


@pytest.mark.heavy
def test_the_command_killed_at_random(tmp_path):
    """Later and later, so that it comes through in the end."""
    carry_out(smoke("oct", epochs=6, models=("base", "tpl2")), tmp_path / "whole")
    draw, ended = random.Random(1), []
    for attempt in range(20):
        process = _start(tmp_path, jobs=2)
        try:
            process.wait(timeout=3 + 2 * attempt + draw.uniform(0, 3))
        except subprocess.TimeoutExpired:
            kill = os.killpg if attempt % 2 else os.kill
            kill(process.pid, signal.SIGKILL)
        ended.append(process.wait())
        if ended[-1] == 0:
            break
        assert ended[-1] == -signal.SIGKILL, (tmp_path / "output").read_text()
    assert ended[-1] == 0
    assert len(ended) >= 2
    assert results(tmp_path / "killed").equals(results(tmp_path / "whole"))


def _start(folder, jobs):
    command = [*COMMAND, *SETTINGS, "--jobs", str(jobs), "--out", str(folder / "killed")]
    # Its output goes to a file: a pipe would be kept open by workers that outlive it.
    with open(folder / "output", "w") as output:
        return subprocess.Popen(command, start_new_session=True, stdout=output, stderr=output)


def _lines(run):
    """How many epochs are on disk."""
    return sum(len(path.read_bytes().splitlines()) for path in run.rglob("*.jsonl"))


# One trial for each process, as a job array of a queue has it


@pytest.mark.heavy
def test_four_trials_by_four_processes_one_of_them_killed(tmp_path):
    config, folder = smoke("oct", models=("base",), epochs=4, trials=4), tmp_path / "array"
    carry_out_here(config, tmp_path / "whole")

    def start(trial):
        command = [*COMMAND, "--models", "base", "--epochs", "4", "--trials", "4", "--jobs", "1"]
        command += ["--trial", str(trial), "--out", str(folder)]
        with open(tmp_path / f"output-{trial}", "w") as output:
            return subprocess.Popen(command, stdout=output, stderr=output)

    def text(trial):
        return (tmp_path / f"output-{trial}").read_text()

    processes = {trial: start(trial) for trial in (1, 2, 3, 4)}
    doomed = JobFiles.of(folder, 2, "base").lines
    while processes[3].poll() is None and not doomed.exists():
        time.sleep(0.01)
    processes[3].send_signal(signal.SIGSTOP)  # so that it does not end before the second asks
    with pytest.raises(StudyError, match=r"The trial 3 of .* is in use by another process"):
        carry_out_here(config, folder, trial=3)
    processes[3].kill()
    assert processes[3].wait() == -signal.SIGKILL, text(3)
    for trial in (1, 2, 4):
        assert processes[trial].wait() == 0, text(trial)
    assert not carry_out_here(config, folder, trial=3).failures
    assert results(folder).equals(results(tmp_path / "whole"))
    assert carry_out_here(config, folder).was_finished


# A full disk


def test_a_full_disk_stops_the_run_and_keeps_what_was_there(tmp_path):
    """A limit on the size of files stands in for the disk: larger writes fail."""
    carry_out_here(smoke("oct", trials=1, models=("base",)), tmp_path)
    before = results(tmp_path)
    command = [*COMMAND, "--trials", "1", "--models", "base,tpl1", "--out", str(tmp_path)]

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    # Without `make coverage`, whose own file would not find room either.
    environment = {name: value for name, value in os.environ.items() if "COV" not in name}
    options = {"capture_output": True, "text": True, "env": environment}
    done = subprocess.run(command, preexec_fn=limit, **options)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"tpl: Could not read or write {tmp_path}")
    assert line.endswith(": File too large.")
    assert "Traceback" not in done.stdout + done.stderr
    assert results(tmp_path).equals(before)
    assert not list(tmp_path.rglob("*.part"))
    carry_out_here(smoke("oct", trials=1, models=("base", "tpl1")), tmp_path)
    assert results(tmp_path).filter(model="base").equals(before)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
def test_a_full_standard_output_is_named(tmp_path):
    command = [*COMMAND, "--trials", "1", "--epochs", "1", "--models", "base"]
    with open("/dev/full", "w") as full:
        options = {"stdout": full, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
        done = subprocess.run(command, **options)
    says = "tpl: Could not write to the standard output: No space left on device.\n"
    assert (done.returncode, done.stderr) == (2, says)
