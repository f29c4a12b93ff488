import contextlib
import http.server
import io
import json
import threading
import zipfile
from pathlib import Path

import kagglehub
import kagglehub.exceptions
import kagglesdk.kaggle_env
import pytest
import requests

from tensorprojection.cli import data as cli_data
from tensorprojection.studies.errors import StudyError


def get(study, out=None):
    """Run ``tpl data get``; return the folder that it prints."""
    flags = () if out is None else ("--out", str(out))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        cli_data.app(["get", study, *flags], result_action="return_value")
    return Path(printed.getvalue().rstrip("\n"))


@pytest.fixture
def fails(monkeypatch):
    def with_error(error):
        def download(handle, **options):
            raise error

        monkeypatch.setattr(kagglehub, "dataset_download", download)

    return with_error


def answer(status):
    response = requests.Response()
    response.status_code = status
    return response


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            requests.ConnectionError("no route"),
            "images: no route. Kaggle needs a login",
        ),
        (
            kagglehub.exceptions.KaggleApiHTTPError("403\n\nlong", response=answer(403)),
            "images: 403. Kaggle .*accept the data set's terms",
        ),
        (kagglehub.exceptions.DataCorruptionError("bad sum\nof data"), "images: bad sum. "),
        (FileExistsError("output_dir is not empty: x."), "output_dir is not empty: x. "),
        (OSError(28, "No space left on device", "big.zip"), "No space left on device"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_failures_say_what_to_do_by_hand(fails, error, message):
    fails(error)
    with pytest.raises(StudyError, match=message) as caught:
        get("oct")
    line = str(caught.value)
    assert "https://www.kaggle.com/datasets/paultimothymooney/kermany2018" in line
    assert line.endswith("tpl data check FOLDER")
    assert "\n" not in line


def test_an_interrupt_is_not_swallowed(fails):
    fails(KeyboardInterrupt())
    with pytest.raises(SystemExit) as end:
        get("oct")
    assert end.value.code == 130


@pytest.mark.parametrize(
    ("study", "handle"),
    [
        ("oct", "paultimothymooney/kermany2018"),
        ("chest", "tawsifurrahman/covid19-radiography-database"),
        ("kvasir", "debeshjha1/kvasirseg"),
    ],
)
def test_what_is_asked_for(monkeypatch, tmp_path, study, handle):
    asked = []
    monkeypatch.setattr(
        kagglehub,
        "dataset_download",
        lambda handle, **options: asked.append((handle, options)) or "/there",
    )
    assert get(study) == Path("/there")
    get(study, tmp_path)
    assert asked == [(handle, {}), (handle, {"output_dir": str(tmp_path)})]


def test_unknown_study():
    with pytest.raises(StudyError, match="a study of oct, chest, kvasir"):
        get("mnist")


@pytest.fixture
def kaggle(monkeypatch, tmp_path):
    """A stand-in for Kaggle on this machine; ``kaggle["status"]`` is how it answers."""
    state = {"status": 200, "asked": []}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("Kvasir-SEG/images/a.jpg", b"picture")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            state["asked"].append(self.path)
            if self.path.endswith("GetDataset"):
                body, kind = json.dumps({"currentVersionNumber": 3}).encode(), "application/json"
            else:
                body, kind = archive.getvalue(), "application/zip"
            self.send_response(state["status"])
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setitem(
        kagglesdk.kaggle_env._env_to_endpoint,
        kagglesdk.kaggle_env.KaggleEnv.PROD,
        f"http://127.0.0.1:{server.server_port}",
    )
    for name in ("KAGGLE_USERNAME", "KAGGLE_KEY", "KAGGLE_API_TOKEN", "KAGGLE_API_ENVIRONMENT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KAGGLEHUB_CACHE", str(tmp_path / "kagglehub"))
    monkeypatch.setenv("KAGGLE_CONFIG_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


# kagglehub and its client leave sockets to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class TestAgainstAStandIn:
    def test_download(self, kaggle, tmp_path):
        assert (get("kvasir", tmp_path / "out") / "Kvasir-SEG/images/a.jpg").read_bytes()
        assert [path.rpartition("/")[2] for path in kaggle["asked"]] == [
            "GetDataset",
            "DownloadDataset",
        ]
        assert (get("kvasir") / "Kvasir-SEG/images/a.jpg").is_file()

    def test_refusal(self, kaggle):
        kaggle["status"] = 403
        with pytest.raises(StudyError, match=r"403 Client Error.*accept the data set's terms"):
            get("kvasir")

    def test_no_connection(self, kaggle, monkeypatch):
        monkeypatch.setitem(
            kagglesdk.kaggle_env._env_to_endpoint,
            kagglesdk.kaggle_env.KaggleEnv.PROD,
            "http://127.0.0.1:9",
        )
        with pytest.raises(StudyError, match="Connection refused"):
            get("kvasir")

    def test_a_folder_in_use(self, kaggle, tmp_path):
        (tmp_path / "mine.txt").write_text("keep")
        with pytest.raises(StudyError, match="output_dir is not empty"):
            get("kvasir", tmp_path)
        assert (tmp_path / "mine.txt").read_text() == "keep"
