import hashlib
import re
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from monai.networks.nets.densenet import DenseNet121
from torch import nn

from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.networks import backbones
from tensorprojection.studies.networks.backbones import BACKBONES, backbone
from tensorprojection.studies.networks.layers import Normalise

LITE = "efficientnet-lite0"


@pytest.fixture(scope="module")
def densenet():
    """A stand-in for the trained network: random, with statistics that differ by layer."""
    torch.manual_seed(1)
    network = DenseNet121(spatial_dims=2, in_channels=3, out_channels=1000).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1, 0.1)
            nn.init.normal_(module.bias, 0, 0.1)
            nn.init.normal_(module.running_mean, 0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return network


def torchvision_state(network, old):
    """The network's weights under torchvision's names; the old ones are those of its files."""
    state = {}
    for name, value in network.state_dict().items():
        if old and name.endswith("num_batches_tracked"):
            continue
        name = name.replace("class_layers.out.", "classifier.").replace(".layers.", ".")
        if old:
            name = re.sub(r"(denselayer\d+\.(?:norm|conv))([12])", r"\1.\2", name)
        state[name] = value
    return state


@pytest.fixture(scope="module")
def densenet_file(densenet, tmp_path_factory):
    """As torchvision's file is: the old names in the old format, and the hash in its name."""
    path = tmp_path_factory.mktemp("weights") / "file.pth"
    torch.save(torchvision_state(densenet, True), path, _use_new_zipfile_serialization=False)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return path.rename(path.with_name(f"densenet121-{digest[:8]}.pth"))


def assert_same_features(network, densenet):
    x = torch.rand(1, 3, 64, 64)
    known = BACKBONES["densenet121"]
    with torch.no_grad():
        expected = densenet.features(Normalise(known.mean, known.std)(x)).relu()
        got = network(x)
    assert expected.std() > 0.01
    # Channels come first in one and last in the other, so sums have another order.
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4 * float(expected.max()))


def test_densenet_from_torchvisions_file(densenet, densenet_file):
    network = backbone("densenet121", densenet_file)
    assert_same_features(network, densenet)
    assert not any(p.requires_grad for p in network.parameters())
    assert not any(m.training for m in network.modules())


def test_densenet_from_todays_names_in_a_file_without_hash(densenet, tmp_path):
    torch.save(torchvision_state(densenet, False), tmp_path / "mine.pth")
    assert_same_features(backbone("densenet121", tmp_path / "mine.pth"), densenet)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty torch.hub folder."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "home" / "hub" / "checkpoints"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture
def served(densenet_file, hub, monkeypatch):
    """The stand-in's file behind the address that DenseNet's weights are fetched from."""
    handler = partial(Quiet, directory=str(densenet_file.parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        at = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(backbones, "DENSENET121_URL", f"{at}/{densenet_file.name}")
        yield at
        server.shutdown()
        thread.join()


def test_weights_are_downloaded_once(densenet_file, served, hub, monkeypatch):
    found = backbones.find_weights("densenet121")
    assert found == hub / densenet_file.name
    assert found.read_bytes() == densenet_file.read_bytes()
    monkeypatch.setattr(backbones, "DENSENET121_URL", f"http://127.0.0.1:9/{densenet_file.name}")
    assert backbones.find_weights("densenet121") == found


def test_a_download_of_another_hash_is_refused(densenet_file, served, hub, monkeypatch):
    (densenet_file.parent / "densenet121-00000000.pth").write_bytes(b"other")
    monkeypatch.setattr(backbones, "DENSENET121_URL", f"{served}/densenet121-00000000.pth")
    with pytest.raises(
        StudyError, match=r"\(its sha256 does not begin with 00000000\)\. Fetch http"
    ):
        backbones.find_weights("densenet121")
    assert not list(hub.glob("*"))


def test_without_weights_both_remedies_are_named_on_one_line(served, hub, monkeypatch):
    address = f"{served}/densenet121-a639ec97.pth"  # which is not there
    monkeypatch.setattr(backbones, "DENSENET121_URL", address)
    with pytest.raises(StudyError) as caught:
        backbone("densenet121")
    text = str(caught.value)
    assert "\n" not in text
    assert f"Fetch {address} elsewhere and pass the file as weights" in text
    assert "efficientnet-lite0" in text


def test_no_connection_to_the_server(hub, monkeypatch):
    monkeypatch.setattr(backbones, "DENSENET121_URL", "http://127.0.0.1:9/densenet121-a639ec97.pth")
    with pytest.raises(StudyError, match=r"Could not download .*refused.*as weights"):
        backbone("densenet121")


def test_files_that_are_not_the_weights(densenet_file, tmp_path):
    whole = densenet_file.read_bytes()

    cut = tmp_path / densenet_file.name
    cut.write_bytes(whole[:-1000])
    with pytest.raises(StudyError, match=f"sha256 begins with {densenet_file.name[12:20]}.*{cut}"):
        backbone("densenet121", cut)

    nameless = tmp_path / "cut.pth"
    nameless.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StudyError, match=f"as torch.save writes it, got {nameless}"):
        backbone("densenet121", nameless)

    lite = BACKBONES[LITE].find()
    with pytest.raises(
        StudyError, match=rf"densenet121 in {lite}, but: Missing key.* \"conv0.weight\""
    ):
        backbone("densenet121", lite)

    with pytest.raises(StudyError, match=r"Could not read the weights .*gone.pth: No such file"):
        backbone("densenet121", tmp_path / "gone.pth")


def test_weights_that_do_not_fit(tmp_path):
    state = torch.load(BACKBONES[LITE].find(), weights_only=True)
    name = "_bn1.bias"
    changes = [
        ({name: None}, f'Missing key(s) in state_dict: "{name}".'),
        ({name: torch.zeros(3)}, f"size mismatch for {name}: "),
        ({"a": torch.zeros(1)}, 'Unexpected key(s) in state_dict: "a".'),
    ]
    for change, rule in changes:
        changed = {k: v for k, v in (state | change).items() if v is not None}
        torch.save(changed, tmp_path / "file.pth")
        expected = f"the weights of {LITE} in {tmp_path / 'file.pth'}, but: {rule}"
        with pytest.raises(StudyError, match=re.escape(expected)) as error:
            backbone(LITE, tmp_path / "file.pth")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [torch.zeros(2), [3]])
def test_a_file_of_something_else(content, tmp_path):
    torch.save(content, tmp_path / "file.pth")
    with pytest.raises(StudyError, match="Expected a file of weights"):
        backbone(LITE, tmp_path / "file.pth")


def test_lite_features_are_those_its_own_top_classifies(capsys):
    network = backbone(LITE)
    normalise, inner = network[0], network[1].network
    x = torch.rand(2, 1, 160, 160)
    with torch.no_grad():
        features = network(x)
        assert features.shape == (2, BACKBONES[LITE].channels, 5, 5)
        torch.testing.assert_close(inner._fc(features.mean((2, 3))), inner(normalise(x)))
    assert capsys.readouterr() == ("", "")


def test_the_normalisations():
    """Gray becomes three equal channels; levels are normalised as in the networks' training."""
    colour = torch.tensor([0, 127, 255]).reshape(1, 3, 1, 1) / 255
    lite = [-127 / 128, 0, 1]
    imagenet = [-0.485 / 0.229, (127 / 255 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    for name, expected in ((LITE, lite), ("densenet121", imagenet)):
        normalise = Normalise(BACKBONES[name].mean, BACKBONES[name].std)
        found = normalise(colour).flatten()
        torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-6)
        gray = torch.rand(2, 1, 8, 8)
        torch.testing.assert_close(normalise(gray), normalise(gray.expand(-1, 3, -1, -1)))
        assert normalise(gray).is_contiguous(memory_format=torch.channels_last)


def test_making_a_backbone_leaves_the_random_numbers_alone():
    before = torch.get_rng_state()
    backbone(LITE)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_name():
    with pytest.raises(StudyError, match="backbone of densenet121, efficientnet-lite0, got 'vgg'"):
        backbone("vgg")
