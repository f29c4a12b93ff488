"""``tpl``, as its user meets it: help, mistakes, Ctrl-C, and what a command prints."""

import inspect
import io
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import polars as pl
import pytest

import tensorprojection
from tensorprojection.cli import data as cli_data
from tensorprojection.cli import main as cli
from tensorprojection.cli.report import report
from tensorprojection.cli.terminal import Stopped, raising_once
from tensorprojection.studies.config import resolve
from tensorprojection.studies.registry import STUDIES
from tensorprojection.studies.results import JobFiles
from tensorprojection.studies.run import Outcome
from tensorprojection.studies.training.job import Failed, Job

# That the command line is read is what is meant here.
pytestmark = pytest.mark.filterwarnings("ignore:Cyclopts application invoked without tokens")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory, monkeypatch):
    """In an empty folder, with an empty cache and room for long lines."""
    folder = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.setenv("TENSORPROJECTION_CACHE", str(folder / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(folder)
    return folder


# Help


def test_help_names_every_command(tpl):
    code, out, err = tpl("--help")
    assert (code, err) == (0, "")
    for command in ("run", "report", "summary", "data", "bench"):
        assert f" {command} " in out
    assert tpl()[:2] == (0, out)


COMMANDS = {
    "report": report,
    "bench": cli.bench,
    "data get": cli_data.get,
    "data check": cli_data.check,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_flag_and_says_what_it_does(command, tpl):
    code, out, err = tpl(*command.split(), "--help")
    assert (code, err) == (0, "")
    function = COMMANDS[command]
    assert inspect.getdoc(function).splitlines()[0] in " ".join(out.split())
    words = set(out.replace("│", " ").replace(",", " ").split())
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            flag = parameter.name.removeprefix("as_").replace("_", "-")
            assert f"--{flag}" in words
        else:
            assert parameter.name.upper() in words


def flags_in(help_text):
    return {word for word in help_text.replace("│", " ").split() if word.startswith("--")}


@pytest.mark.parametrize("study", STUDIES)
def test_every_setting_of_a_run_has_its_flag(study, tpl):
    """Those of a file and those of the command line are the same; but see preset and config."""
    code, out, err = tpl("run", study, "--help")
    assert (code, err) == (0, "")
    settings = STUDIES[study].settings.model_fields.keys() - {"study"}
    others = {"preset", "config", "jobs", "out", "mix_versions", "trial"}
    others |= {"executor", "address", "cpus_per_trial", "gpus_per_trial"}
    others |= {"keep", "tensorboard"}
    assert flags_in(out) == {f"--{name.replace('_', '-')}" for name in settings | others}


def test_help_without_a_study_has_the_flags_of_all(tpl):
    studies = (*STUDIES, "images")
    everything = set().union(*(flags_in(tpl("run", study, "--help")[1]) for study in studies))
    assert flags_in(tpl("run", "--help")[1]) == everything


def test_help_of_a_summary(tpl):
    assert flags_in(tpl("summary", "oct", "--help")[1]) == {"--size", "--models"}
    every = flags_in(tpl("summary", "--help")[1])
    assert {"--channels", "--leaky", "--backbone", "--dropout"} < every
    assert not {"--copies", "--weights", "--epochs"} & every  # they change no network


def test_a_study_that_comes_after_its_flags(tpl, asked):
    assert tpl("run", "--preset", "smoke", "--leaky", "kvasir")[0] == 0
    assert tpl("run", "--preset", "smoke", "--leaky", "oct")[2] == (
        "tpl: leaky is not a setting of the oct study.\n"
    )
    ((config, *_),) = asked
    assert config.leaky


def test_version(tpl):
    assert tpl("--version")[:2] == (0, f"{tensorprojection.__version__}\n")


# Mistakes

MISTAKES = [
    (["fly"], "fly"),
    (["run"], "STUDY"),
    (["run", "mnist"], "mnist"),
    (["run", "oct", "--epoch", "3"], "--epoch"),
    (["run", "oct", "--epochs", "many"], "many"),
    (["run", "oct", "--epochs"], "--epochs"),
    (["run", "oct", "--preset", "huge"], "huge"),
    (["run", "oct", "--split", "half"], "half"),
    (["run", "oct", "--epochs", "0"], "epochs: input should be greater than or equal to 1"),
    (["run", "oct", "--models", "base,tpl9"], "Expected models of base, tpl1, tpl2"),
    (["run", "oct", "--models", ","], "models: tuple should have at least 1 item"),
    (["run", "oct", "--models", "base,base"], "Models are named twice: base"),
    (["run", "oct", "--jobs", "0"], "--jobs"),
    (["run", "oct", "--jobs", "9999"], "--jobs"),
    (["run", "oct", "--trials", "0"], "trials: input should be greater than or equal to 1, got 0"),
    (["run", "oct", "--trials", "30000000"], "trials: input should be less than or equal to"),
    (["run", "oct", "--size", "20000"], "size: input should be less than or equal to 4096"),
    (["run", "kvasir", "--copies", "100000000"], "copies: input should be less than or equal to"),
    (["run", "oct", "--preset", "smoke", "--out", "x" * 300], "File name too long"),
    (["run", "oct", "--config", "x" * 300], "File name too long"),
    (["run", "oct", "--preset", "smoke", "--data", "x" * 300], "File name too long"),
    (["run", "chest", "--preset", "smoke", "--weights", "x" * 300], "File name too long"),
    (["report", "x" * 300], "File name too long"),
    (["report", "runs", "--out", "x" * 300], "runs: there is no such folder"),
    (["run", "oct", "--device", "abacus"], "The device 'abacus' cannot be used"),
    (["run", "oct", "--executor", "abacus"], "abacus"),
    (["run", "oct", "--address", "auto"], "--address is for --executor ray only"),
    (["run", "oct", "--precision", "half"], "half"),
    (["run", "oct", "--channels", "16"], "Unknown option: --channels"),
    (["run", "oct", "--config", "none.toml"], "Could not read none.toml: No such file"),
    (["run", "oct", "--data", "nowhere"], "nowhere: No such file"),
    (["run", "oct", "--size", "40"], "Expected a size divisible by 16, got 40"),
    (["run", "chest", "--size", "80"], "Expected a size divisible by 32, got 80"),
    (["run", "kvasir", "--size", "40"], "Expected a size divisible by 16, got 40"),
    (["run", "oct", "--preset", "smoke", "--split", "as-shipped"], "Split by image"),
    (
        ["run", "chest", "--preset", "smoke", "--backbone", "vgg"],
        "Expected a backbone of densenet121, efficientnet-lite0, got 'vgg'",
    ),
    (
        ["run", "chest", "--preset", "smoke", "--weights", "none.pth"],
        "none.pth: No such file or directory",
    ),
    (["report"], "FOLDER"),
    (["report", "nowhere"], "nowhere: there is no such folder"),
    (["report", "."], "Expected the folder of a run, got .: it has no config.toml"),
    (["watch", "."], "Expected the folder of a run, got .: it has no config.toml"),
    (["watch", "nowhere"], "nowhere: there is no such folder"),
    (["export", ".", "--model", "tpl1", "--to", "m.pt2"], "which has no trials in it"),
    (["export", ".", "--model", "tpl1", "--to", "m.bin"], "ends with .onnx or .pt2, got m.bin"),
    (["export", ".", "--model", "tpl1", "--to", "no/m.pt2"], "got no: none is there"),
    (["predict", "m.pt2"], "Expected image files, or folders of them, got none."),
    (["predict", "m.jpg", "x.png"], "Expected an .onnx file or the folder of a run, got m.jpg"),
    (["predict", "m.pt2", "x.png"], "Expected an .onnx file or the folder of a run, got m.pt2"),
    (["predict", "m.onnx", "x.png"], "Could not read m.onnx: No such file or directory"),
    (["predict", "m.pt2", "x.png", "--model", "tpl1"], "--model and --trial are for the folder"),
    (["predict", "m.pt2", "x.png", "--trial", "3"], "--model and --trial are for the folder"),
    (["predict", ".", "x.png"], "Expected --model beside the folder of a run"),
    (["predict", "m.pt2", "x.png", "--csv", "no/x.csv"], "got no: none is there"),
    (["evaluate", ".", "--data", "x.npz"], "which has no trials in it"),
    (["summary", "mnist"], "mnist"),
    (["summary", "oct", "--size", "50"], "50"),
    (["summary", "oct", "--models", "base,tpl9"], "Expected models of base, tpl1, tpl2"),
    (["summary", "oct", "--dropout", "0"], "--dropout"),
    (["summary", "kvasir", "--copies", "3"], "--copies"),
    (["summary", "chest", "--weights", "x"], "--weights"),
    (["summary", "images"], "Expected a folder of images or an .npz file as --data, got none"),
    (["data"], None),
    (["data", "check", "nowhere.npz"], "nowhere.npz"),
    (["data", "check", "nowhere.npz", "--split", "half"], "half"),
    (["data", "get", "mnist"], "mnist"),
]


@pytest.mark.parametrize(("arguments", "says"), MISTAKES, ids=lambda part: str(part)[:50])
def test_a_mistake_gives_one_line_and_exit_code_2(arguments, says, tpl, elsewhere):
    code, out, err = tpl(*arguments)
    if says is None:  # no mistake: a group of commands alone shows its help
        assert (code, err) == (0, "")
        assert "Usage" in out
        return
    assert code == 2
    assert out == ""
    assert err.startswith("tpl: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert says in err
    assert "Traceback" not in err
    assert not list(elsewhere.rglob("trials"))


def test_a_file_of_settings_with_a_mistake(tpl, elsewhere):
    (elsewhere / "mine.toml").write_text("epochs = 3\nepoch = 4\n")
    code, _, err = tpl("run", "oct", "--config", "mine.toml")
    assert (code, err) == (2, "tpl: epoch is not a setting of the oct study.\n")


# tpl run


def resolve_smoke(study, **flags):
    known = STUDIES[study]
    return resolve(known, "smoke", None, flags)


@pytest.fixture
def asked(monkeypatch):
    """Nothing is trained: the configuration, folder and jobs that would have been."""
    calls = []

    def note(study, config, folder, jobs, watch, *others, **options):
        calls.append((config, folder, jobs))
        return Outcome(folder, False, ())

    monkeypatch.setattr("tensorprojection.studies.run.run", note)
    return calls


def test_flags_become_the_configuration(tpl, asked, elsewhere):
    (elsewhere / "images").mkdir()
    arguments = "--preset smoke --trials 5 --models base,tpl2 --learning-rate 0.01 --seed 3"
    arguments += " --data images --skip-unreadable --jobs 7 --out here"
    assert tpl("run", "oct", *arguments.split())[0] == 0
    expected = resolve_smoke(
        "oct",
        trials=5,
        models=("base", "tpl2"),
        learning_rate=0.01,
        seed=3,
        data=str(elsewhere / "images"),  # whatever folder a later command is given in
        skip_unreadable=True,
    )
    ((config, folder, jobs),) = asked
    assert config == expected
    assert (str(folder), jobs) == ("here", 7)


def test_flags_of_one_study(tpl, asked):
    tpl("run", "chest", "--preset", "smoke", "--dropout", "0")
    tpl("run", "kvasir", "--preset", "smoke", "--leaky", "--copies", "3", "--channels", "8")
    chest, kvasir = (config for config, _, _ in asked)
    assert chest == resolve_smoke("chest", dropout=0.0)
    assert kvasir == resolve_smoke("kvasir", leaky=True, copies=3, channels=8)


def test_where_a_run_goes_by_default(tpl, asked, elsewhere):
    """The folder has the preset's name, whether a flag or a file chose it."""
    (elsewhere / "mine.toml").write_text('preset = "paper"\n')
    tpl("run", "oct")
    tpl("run", "oct", "--preset", "smoke")
    tpl("run", "oct", "--config", "mine.toml")
    tpl("run", "oct", "--config", "mine.toml", "--preset", "smoke")
    folders = [str(folder) for _, folder, _ in asked]
    assert folders == ["runs/oct-small", "runs/oct-smoke", "runs/oct-paper", "runs/oct-smoke"]
    assert [config.size for config, _, _ in asked] == [96, 32, 96, 32]
    assert asked[3][0] == resolve_smoke("oct")


def test_the_papers_settings_on_phantoms_are_not_the_papers_results(tpl, asked, elsewhere):
    (elsewhere / "images").mkdir()
    (elsewhere / "mine.toml").write_text('preset = "paper"\n')
    for given in (["--preset", "paper"], ["--config", "mine.toml"]):
        code, out, _ = tpl("run", "kvasir", *given)
        assert code == 0
        assert out.startswith("Not the paper's images: these are phantoms, which are generated.")
        assert "need --data" in out
    assert "paper" not in tpl("run", "kvasir")[1]
    assert "paper" not in tpl("run", "kvasir", "--preset", "paper", "--data", "images")[1]


def test_ctrl_c_says_how_to_go_on(tpl, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("tensorprojection.studies.run.run", interrupted)
    code, out, err = tpl("run", "oct", "--preset", "smoke")
    assert code == 130
    assert out == "Stopped. The same command continues from here.\n"
    assert err == ""


# Ctrl-C, SIGTERM, and what a terminal cannot show


def command(*arguments, **options):
    """The command in a process of its own, and of its own group, with its output in files."""
    return subprocess.Popen(
        [sys.executable, "-m", "tensorprojection", *map(str, arguments)],
        start_new_session=True,
        # As in a terminal: what runs these tests in the background may ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


@pytest.mark.parametrize("seconds", [0.3, 1.0])
def test_ctrl_c_in_the_first_seconds(seconds, elsewhere):
    """Long before it can do anything: while torch is imported."""
    with open(elsewhere / "output", "w+") as output:
        process = command("run", "oct", "--preset", "smoke", stdout=output, stderr=output)
        time.sleep(seconds)
        for _ in range(3):
            os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) == 130
        output.seek(0)
        assert output.read() == "tpl: stopped.\n"


def test_the_first_signal_stops_and_the_others_wait():
    numbers = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
        with raising_once():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        cleaned = []

        def work():
            with raising_once():
                try:
                    signal.raise_signal(signal.SIGTERM)
                finally:
                    for number in numbers:
                        signal.raise_signal(number)
                    cleaned.append(True)

        with pytest.raises(Stopped) as stopped:
            work()
        assert stopped.value.code == 143
        assert cleaned
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def living(group):
    """The processes of that group, zombies apart."""
    listed = subprocess.run(
        ["ps", "-e", "-o", "pgid=,stat=,pid="], capture_output=True, text=True, check=True
    ).stdout
    rows = (line.split() for line in listed.splitlines())
    return [pid for pgid, stat, pid in rows if int(pgid) == group and not stat.startswith("Z")]


SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.mark.heavy  # on a busy machine it may take minutes
@pytest.mark.parametrize(("number", "code"), SIGNALS, ids=["Ctrl-C", "SIGTERM"])
def test_three_signals_in_a_row_while_workers_train(number, code, elsewhere):
    """In a terminal: the cursor comes back, no process stays, and one line says how to go on."""
    ours, theirs = pty.openpty()
    settings = ["--preset", "smoke", "--epochs", "5000", "--models", "base", "--jobs", "2"]
    process = command("run", "oct", *settings, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while not re.search(rb"epoch \d+/5000", shown):  # any: the bar does not show them all
        shown += os.read(ours, 4096)
    for _ in range(3):
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        time.sleep(0.05)
    with suppress(OSError):  # which ends the output of a terminal
        while more := os.read(ours, 4096):
            shown += more
    assert process.wait(timeout=60) == code
    text = shown.decode()
    assert "Traceback" not in text
    assert text.count("Stopped. The same command continues from here.") == 1
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") >= 0  # shown again after it was hidden
    deadline = time.monotonic() + 30
    while living(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not living(process.pid)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_output_that_lacks_our_characters(encoding, monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding=encoding))
    command = ["tpl", "summary", "oct", "--size", "32", "--models", "tpl2"]
    monkeypatch.setattr(sys, "argv", command)
    with suppress(SystemExit):
        cli.main()
    sys.stdout.flush()
    text = shown.getvalue().decode(encoding)
    assert ("32 x 32" if encoding == "ascii" else "32 × 32") in text
    assert "TensorProjection" in text


def test_networks_that_were_not_trained_make_the_exit_code_1(tpl, monkeypatch):
    failures = tuple(Failed(Job(0, model), "diverged") for model in ("base", "tpl1"))

    def failed(study, config, folder, *others, **options):
        return Outcome(folder, False, failures)

    monkeypatch.setattr("tensorprojection.studies.run.run", failed)
    code, out, err = tpl("run", "oct", "--preset", "smoke")
    assert (code, out) == (1, "")
    assert err == "tpl: 2 networks were not trained; see above.\n"


@pytest.fixture
def finished(tmp_path):
    """The folder of a finished smoke run, made by hand."""
    config = resolve_smoke("oct")
    for trial in range(config.trials):
        for model in config.models:
            files = JobFiles.of(tmp_path, trial, model)
            files.lines.parent.mkdir(parents=True, exist_ok=True)
            files.write(
                [
                    {
                        "epoch": epoch,
                        "train_loss": 1.0 / epoch,
                        "loss": 0.25 + trial,
                        "accuracy": 0.5,
                        "f1": 0.5,
                        "seconds": 0.1,
                        "train_images": 45,
                        "validation_images": 19,
                        "code": "0.1.0 abc, torch 2",
                    }
                    for epoch in (1, 2)
                ]
            )
    (tmp_path / "config.toml").write_bytes(config.as_toml())
    return tmp_path


@pytest.fixture
def undrawn(monkeypatch):
    """Figures take seconds to draw, and have their own tests."""
    drawn = []
    monkeypatch.setattr(
        "tensorprojection.studies.report.charts.write", lambda *where: drawn.append(where)
    )
    return drawn


def test_a_finished_run_is_not_trained_again(finished, tpl, undrawn):
    code, out, err = tpl("run", "oct", "--preset", "smoke", "--out", finished)
    assert (code, err) == (0, "")
    assert "is finished: nothing is left to train." in " ".join(out.split())
    assert (finished / "results.parquet").exists()
    assert "TensorProjection 2" in out
    assert [where for _, where in undrawn] == [finished / "figures"]
    assert not (finished / ".owner").exists()


def test_a_table_of_before_the_last_units_end_is_completed(finished, tpl, undrawn):
    """A run may be killed when its last unit is done, and its results are not gathered yet."""
    again = ("run", "oct", "--preset", "smoke", "--out", finished)
    tpl(*again)
    table = pl.read_parquet(finished / "results.parquet")
    table.head(11).write_parquet(finished / "results.parquet")
    tpl(*again)
    assert pl.read_parquet(finished / "results.parquet").height == 12
    written = (finished / "results.parquet").stat().st_mtime_ns
    tpl(*again)
    assert (finished / "results.parquet").stat().st_mtime_ns == written


def test_other_settings_for_a_finished_run(finished, tpl):
    code, out, err = tpl("run", "oct", "--preset", "smoke", "--batch", "4", "--out", finished)
    assert (code, out) == (2, "")
    assert err.startswith(f"tpl: {finished} was started with batch = 16, not 4.")


def test_a_corrupted_configuration(finished, tpl):
    path = finished / "config.toml"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith("trials")))
    code, _, err = tpl("run", "oct", "--preset", "smoke", "--out", finished)
    assert code == 2
    assert err.startswith(f"tpl: {path} is not as the run wrote it: its checksum does not fit.")


def test_report_writes_to_out(finished, tpl, undrawn, tmp_path):
    tpl("run", "oct", "--preset", "smoke", "--out", finished)
    code, out, err = tpl("report", finished, "--out", tmp_path / "paper")
    assert (code, err) == (0, "")
    assert undrawn[-1][1] == tmp_path / "paper" / "figures"
    assert str(tmp_path / "paper" / "table.md") in out


# tpl summary, tpl data


def test_summary_as_tables(tpl):
    code, out, err = tpl("summary", "oct", "--size", "32")
    assert (code, err) == (0, "")
    assert "OCT, 32 × 32: tpl2" in out


@pytest.fixture
def npz(tmp_path):
    """``npz(duplicate=True)``: a file of eight OCT images, of which two may be the same."""

    def write(duplicate=False):
        images = np.random.default_rng(0).integers(0, 256, (8, 32, 32), dtype=np.uint8)
        if duplicate:
            images[6] = images[1]  # of another class
        path = tmp_path / "images.npz"
        np.savez(
            path,
            images=images,
            labels=np.arange(8) % 4,
            class_names=np.array(["CNV", "DME", "DRUSEN", "NORMAL"]),
        )
        return path

    return write


def test_data_check(npz, tpl):
    code, out, err = tpl("data", "check", npz())
    assert (code, err) == (0, "")
    assert "8 images" in out
    assert "No problem found." in out


def test_data_check_of_a_split_that_the_images_do_not_have(npz, tpl):
    code, out, _ = tpl("data", "check", npz(), "--split", "patient")
    assert code == 1
    assert "A split by patient needs each image's patient" in " ".join(out.split())


def test_data_check_with_a_problem(npz, tpl):
    code, out, _ = tpl("data", "check", npz(duplicate=True))
    assert code == 1
    assert "Problem" in out
    assert "Traceback" not in out
