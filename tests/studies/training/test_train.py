"""One network of one trial: its inputs, its metrics, and that it resumes."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from torch.nn import functional

from tensorprojection.studies.config import code_version, resolve
from tensorprojection.studies.data.cache import Stack, open_stored
from tensorprojection.studies.errors import StudyError
from tensorprojection.studies.inputs import samples_of
from tensorprojection.studies.networks.backbones import backbone, features_of
from tensorprojection.studies.oct import HOPE_BETA
from tensorprojection.studies.registry import STUDIES
from tensorprojection.studies.results import COUNTS, NOT_METRICS, JobFiles, as_line
from tensorprojection.studies.study import Study
from tensorprojection.studies.training import checkpoint
from tensorprojection.studies.training import train as training
from tensorprojection.studies.training.job import Epoch, Job, Notice, Step
from tensorprojection.studies.training.observer import read_observed
from tensorprojection.studies.training.seeds import batch_order, init_seed
from tensorprojection.studies.training.train import train


def smoke(name, **flags):
    known = STUDIES[name]
    return resolve(known, "smoke", None, flags)


def opened(name, **flags):
    """The study, its smoke configuration and its samples."""
    config, study = smoke(name, **flags), STUDIES[name]
    return study, config, study.open(config, study.prepare(config, 1, lambda *_: None))


class Events(list):
    """The events of a job, with its checkpoint at the end of each epoch."""

    def __init__(self):
        self.states = []

    def __call__(self, event):
        self.append(event)
        if isinstance(event, Epoch):
            self.states.append(checkpoint.load(event.saved.checkpoint, Path("here")))


def trained(folder, job, study, config, data, emit=None):
    """Train the job from the files in the folder on, and save it there; return its events."""
    files, events = JobFiles.of(folder, job.trial, job.model), Events()
    state, notices = checkpoint.resume(job, files)
    events.extend(notices)

    def save(event):
        if isinstance(event, Epoch):
            files.save(event.row, event.saved)
        (emit or events)(event)

    train(job, study, config, data, save, state)
    return events


def rows(folder, job, seconds=False):
    epochs = JobFiles.of(folder, job.trial, job.model).rows()
    return [{k: v for k, v in row.items() if seconds or k != "seconds"} for row in epochs]


def same_states(one, other):
    """Networks, optimizers and random numbers are equal to the bit."""
    assert one.network.keys() == other.network.keys()
    assert all(torch.equal(one.network[name], other.network[name]) for name in one.network)
    assert torch.equal(one.rng["cpu"], other.rng["cpu"])
    moments, others = one.optimizer["state"], other.optimizer["state"]
    assert moments.keys() == others.keys()
    for key in moments:
        assert all(torch.equal(moments[key][name], others[key][name]) for name in moments[key])
    return True


# What a network sees


class Recorder:
    """Samples that note which rows were asked for."""

    def __init__(self, data):
        self.data, self.asked, self.seen = data, [], []

    def split(self, trial):
        self.asked.append(trial)
        return self.data.split(trial)

    def batch(self, rows):
        self.seen.append(rows.tolist())
        return self.data.batch(rows)


@pytest.mark.parametrize("name", STUDIES)
def test_all_models_of_a_trial_see_the_same_rows_in_the_same_order(name, tmp_path):
    study, config, data = opened(name)
    seen = {}
    for trial, models in ((0, ("base",)), (1, study.models)):
        for model in models:
            recorder = Recorder(data)
            trained(tmp_path, Job(trial, model), study, config, recorder)
            assert recorder.asked == [trial]
            seen[trial, model] = recorder.seen
        assert all(seen[trial, model] == seen[trial, "base"] for model in models)
    assert seen[0, "base"] != seen[1, "base"]


@pytest.mark.parametrize("name", STUDIES)
def test_every_epoch_goes_through_all_training_rows_in_an_order_of_its_own(name, tmp_path):
    study, config, data = opened(name)
    recorder = Recorder(data)
    trained(tmp_path, Job(1, "base"), study, config, recorder)
    training_rows, validation_rows = (side.tolist() for side in data.split(1)[:2])
    seen = iter(recorder.seen[1:])  # after the first images, from which some networks start
    orders = []
    for epoch in (1, 2):
        order = []
        while len(order) < len(training_rows):
            batch = next(seen)
            left = len(training_rows) - len(order)
            assert len(batch) == min(config.batch, left)
            order += batch
        assert sorted(order) == sorted(training_rows)
        expected = batch_order(config.seed, 1, epoch, len(training_rows))
        assert order == np.array(training_rows)[expected].tolist()
        orders.append(order)
        validated = []
        while len(validated) < len(validation_rows):
            validated += next(seen)
        assert validated == validation_rows
        if name == "kvasir":  # three of them are looked at again, for the page
            assert set(next(seen)) <= set(validation_rows)
    assert orders[0] != orders[1]
    assert next(seen, None) is None


@pytest.mark.parametrize("name", ["chest", "kvasir"])
def test_no_copy_validates_nor_an_original_whose_copies_train(name):
    _, _, data = opened(name)
    count = len(data.originals)
    for trial in range(8):
        training_rows, validation, _ = data.split(trial)
        assert validation.max() < count
        copies = training_rows[training_rows >= count]
        originals = training_rows[training_rows < count]
        whose = set(data.of[copies - count].tolist())
        assert not whose & set(validation.tolist())
        assert not set(originals.tolist()) & set(validation.tolist())
        # All copies of what does not validate train.
        kept = ~np.isin(data.of, validation)
        assert set(copies.tolist()) == set((count + np.flatnonzero(kept)).tolist())
        if name == "chest":
            assert len(originals) + len(validation) == count
        else:
            assert len(originals) == 0
        assert len(set(training_rows.tolist())) == len(training_rows)


def test_an_init_from_data_has_training_images_of_all_classes(tmp_path, monkeypatch):
    """Also where the rows are sorted by class, as those of a folder are."""
    study, config, data = opened("oct", images=200, epochs=1)
    images = data.originals
    sort = np.argsort(images.labels, kind="stable")
    images = replace(images, images=images.images[sort], labels=images.labels[sort])
    data = replace(samples_of(config, images), preprocess=data.preprocess)
    monkeypatch.setattr(training, "FIRST", 24)
    recorder = Recorder(data)
    trained(tmp_path, Job(0, "mpca"), study, config, recorder)
    first = recorder.seen[0]
    assert len(first) == 24
    assert set(first) <= set(data.split(0)[0].tolist())
    assert set(images.labels[first].tolist()) == {0, 1, 2, 3}


# How networks start


class Starts:
    """A study whose networks' first weights are kept, and the random state that follows them."""

    def __init__(self, study):
        self.kept, self.after = [], []
        self.study = replace(study, network=self.network)
        self.make = study.network

    def network(self, *arguments):
        made = self.make(*arguments)
        self.kept.append({name: value.clone() for name, value in made.state_dict().items()})
        self.after.append(torch.get_rng_state())
        return made


def starts(name, trial, tmp_path, models=None, **flags):
    """What each network starts from, by its name."""
    study, config, data = opened(name, epochs=1, **flags)
    made = {}
    for model in models or study.models:
        torch.manual_seed(len(made))  # whatever was drawn before
        spy = Starts(study)
        trained(tmp_path / str(trial), Job(trial, model), spy.study, config, data)
        (made[model],) = spy.kept
    return made


SHARED = {
    "oct": {"conv1", "conv2", "conv3", "conv4", "dense1", "dense2"},
    "chest": {"dense1", "dense2"},
    "kvasir": {"encoder1", "encoder4", "bottleneck", "decoder4", "up3", "decoder1", "output"},
}


@pytest.mark.parametrize("name", STUDIES)
def test_models_of_a_trial_share_the_init_of_common_layers(name, tmp_path):
    made = starts(name, 0, tmp_path)
    other = starts(name, 1, tmp_path, ("base",))["base"]
    base = made["base"]
    for model, start in made.items():
        common = {key for key in start if key in base and start[key].shape == base[key].shape}
        narrower = {"dense1"} if model.startswith("tpl2") else set()
        assert SHARED[name] - narrower <= {key.split(".")[0] for key in common}
        assert all(torch.equal(start[key], base[key]) for key in common), model
    for key in (key for key in base if base[key].ndim > 1):
        assert other[key].std() > 0
        assert not torch.equal(other[key], base[key])


@pytest.mark.parametrize("name", STUDIES)
def test_models_of_a_trial_share_random_draws_after_the_init(name, tmp_path):
    """So dropout leaves out the same for all of them."""
    study, config, data = opened(name, epochs=1)
    spy = Starts(study)
    for model in study.models:
        trained(tmp_path, Job(0, model), spy.study, config, data)
    assert len(spy.after) == len(study.models)
    assert all(torch.equal(state, spy.after[0]) for state in spy.after)


def test_the_mpca_init_is_that_of_the_trials_training_features_and_learns(tmp_path):
    study, config, data = opened("chest")
    spy, recorder = Starts(study), Recorder(data)
    events = trained(tmp_path, Job(1, "tpl-mpca"), spy.study, config, recorder)
    first = recorder.seen[0]
    assert set(first) <= set(data.split(1)[0].tolist())
    features = data.batch(np.array(first))[0].double()
    vectors = (features - features.mean(0)).movedim(1, -1).flatten(0, -2)
    W = spy.kept[0]["projection.W1"].double()
    leading = torch.linalg.svd(vectors, full_matrices=False).S[: W.shape[1]]
    kept = (vectors @ W).square().sum() / leading.square().sum()
    assert kept.item() == pytest.approx(1, abs=1e-5)
    assert not torch.equal(events.states[-1].network["projection.W1"], W.float())


def test_the_fixed_projection_does_not_learn(tmp_path):
    study, config, data = opened("oct")
    spy = Starts(study)
    events = trained(tmp_path, Job(0, "dct-fixed"), spy.study, config, data)
    first, last = spy.kept[0], events.states[-1].network
    assert torch.equal(first["projection4.U2"], last["projection4.U2"])
    assert not torch.equal(first["conv4.weight"], last["conv4.weight"])


def test_chest_models_of_one_seed_have_one_init(tmp_path):
    one = starts("chest", 0, tmp_path / "a", ("tpl",))
    assert all(
        torch.equal(again, one["tpl"][key])
        for key, again in starts("chest", 0, tmp_path / "b", ("tpl",))["tpl"].items()
    )
    other = starts("chest", 0, tmp_path / "c", ("tpl",), seed=1)["tpl"]
    assert any(not torch.equal(other[key], one["tpl"][key]) for key in other)


def test_the_mpca_projection_is_of_the_trials_images_and_does_not_learn(tmp_path):
    study, config, data = opened("oct")
    seen = {}
    for trial in range(2):
        spy = Starts(study)
        events = trained(tmp_path, Job(trial, "mpca"), spy.study, config, data)
        frozen = [key for key in spy.kept[0] if key.startswith("projection4")]
        assert frozen
        first, last = spy.kept[0], events.states[-1].network
        assert all(torch.equal(first[key], last[key]) for key in frozen)
        assert not torch.equal(first["conv4.weight"], last["conv4.weight"])
        seen[trial] = torch.cat([first[key].flatten() for key in frozen])
    assert not torch.allclose(seen[0].abs(), seen[1].abs(), atol=1e-3)


# What it reports

METRICS = {
    "oct": ["loss", "accuracy", "f1", "sensitivity", "specificity", "auc"],
    "chest": ["loss", "accuracy", "f1", "sensitivity", "specificity", "auc"],
    "kvasir": ["loss", "dice", "iou", "mdice", "miou", "sensitivity", "specificity"],
}


@pytest.mark.parametrize("name", STUDIES)
def test_rows_and_events(name, tmp_path):
    study, config, data = opened(name)
    job = Job(0, "tpl1" if name == "oct" else "tpl")
    events = trained(tmp_path, job, study, config, data)
    kept = rows(tmp_path, job, seconds=True)
    assert [row["epoch"] for row in kept] == [1, 2]
    for row in kept:
        assert list(row) == ["epoch", "train_loss", *METRICS[name], *NOT_METRICS]
        assert all(
            isinstance(row[key], float) for key in row if key not in ("epoch", *COUNTS, "code")
        )
        assert row["code"] == code_version()
    assert [event.row for event in events if isinstance(event, Epoch)] == kept
    assert isinstance(events[-1], Epoch)
    steps = [event for event in events if isinstance(event, Step)]
    count = len(data.split(0)[0])
    assert sum(step.images for step in steps) == 2 * count
    assert math.isclose(sum(step.share for step in steps), 1)
    assert [step.epoch for step in steps] == sorted(step.epoch for step in steps)
    there = {path.name for path in (tmp_path / "trials" / "001").iterdir()}
    assert there == {f"{job.model}.{kind}" for kind in ("jsonl", "pt", "observed.npz")}


# The same by other means


def oct_base(p, x):
    """The paper's table, as functions of float64 weights by name."""
    for k in range(1, 5):
        x = functional.conv2d(x, p[f"conv{k}.weight"], p[f"conv{k}.bias"], padding=1)
        x = functional.max_pool2d(x.clamp(min=0), 2)
    x = (x.flatten(1) @ p["dense1.weight"].T + p["dense1.bias"]).clamp(min=0)
    return x @ p["dense2.weight"].T + p["dense2.bias"]


def adam(p, gradients, m, v, step, rate):
    """Kingma & Ba (2015), algorithm 1."""
    for name, g in gradients.items():
        m[name] = 0.9 * m[name] + 0.1 * g
        v[name] = 0.999 * v[name] + 0.001 * g * g
        direction = (m[name] / (1 - 0.9**step)) / ((v[name] / (1 - 0.999**step)).sqrt() + 1e-7)
        p[name] = p[name] - rate * direction


def test_an_epoch_is_adam_on_the_mean_cross_entropy(tmp_path):
    """Against float64, with losses added image by image; the last batch is smaller."""
    study, config, data = opened("oct", epochs=1, batch=15)
    spy, job = Starts(study), Job(1, "base")
    trained(tmp_path, job, spy.study, config, data)
    (row,) = rows(tmp_path, job)

    p = {name: value.double() for name, value in spy.kept[0].items()}
    m = {name: torch.zeros_like(value) for name, value in p.items()}
    v = {name: torch.zeros_like(value) for name, value in p.items()}
    pixels = torch.from_numpy(data.originals.images.astype(np.float64) / 255)[:, None]
    pixels = pixels.repeat(1, 3, 1, 1)
    labels = torch.tensor(np.array(data.originals.labels))
    training_rows, validation, _ = data.split(1)
    order = training_rows[batch_order(config.seed, 1, 1, len(training_rows))]
    assert len(order) % 15 != 0
    losses = []
    for step, start in enumerate(range(0, len(order), 15), start=1):
        chosen = order[start : start + 15]
        leaves = {name: value.requires_grad_() for name, value in p.items()}
        logs = oct_base(leaves, pixels[chosen]).log_softmax(1)
        each = -logs[range(len(chosen)), labels[chosen]]
        gradients = torch.autograd.grad(each.mean(), list(leaves.values()))
        losses += each.tolist()
        p = {name: value.detach() for name, value in p.items()}
        adam(p, dict(zip(p, gradients, strict=True)), m, v, step, config.learning_rate)

    logs = oct_base(p, pixels[validation]).log_softmax(1)
    actual, predicted = labels[validation], logs.argmax(1)
    assert row["train_loss"] == pytest.approx(sum(losses) / len(order), abs=1e-6)
    expected = -logs[range(len(validation)), actual].mean().item()
    assert row["loss"] == pytest.approx(expected, abs=1e-6)
    accuracy = (actual == predicted).double().mean().item()
    assert row["accuracy"] == pytest.approx(accuracy, abs=1e-6)
    f1 = f1_score(actual, predicted, average="weighted", zero_division=0)
    assert row["f1"] == pytest.approx(f1, abs=1e-6)


@pytest.mark.parametrize(("name", "model"), [("chest", "base"), ("kvasir", "tpl")])
def test_validation_is_without_dropout_and_with_running_statistics(name, model, tmp_path):
    study, config, data = opened(name)
    events = trained(tmp_path, Job(0, model), study, config, data)
    _, validation, _ = data.split(0)
    x, y = data.batch(validation)
    network = study.network(config, model, x)
    epochs = [event.row for event in events if isinstance(event, Epoch)]
    for row, state in zip(epochs, events.states, strict=True):
        network.load_state_dict(state.network)
        metrics = study.metrics()
        with torch.no_grad():
            metrics.update(network.eval()(x), y)  # in one batch
        measured = {key: row[key] for key in METRICS[name]}
        assert measured == pytest.approx(metrics.compute(), abs=1e-5)


def test_the_hope_penalty_is_minimised_but_is_no_part_of_the_loss(tmp_path):
    """One batch of all images: the first loss is that of the start, the first step has it all."""
    study, config, data = opened("oct", epochs=1, batch=64)
    spy, job = Starts(study), Job(0, "hope")
    events = trained(tmp_path, job, spy.study, config, data)
    (row,) = rows(tmp_path, job)

    torch.manual_seed(init_seed(config.seed, 0))
    network = study.network(config, "hope", torch.empty(0))
    network.to(memory_format=torch.channels_last)
    order = data.split(0)[0][batch_order(config.seed, 0, 1, len(data.split(0)[0]))]
    x, y = data.batch(order)
    loss = functional.cross_entropy(network(x), y)
    assert row["train_loss"] == pytest.approx(loss.item(), abs=1e-6)
    U = network.hope4.U
    angles = functional.cosine_similarity(U[:, :, None], U[:, None, :], dim=0).abs()
    (loss + HOPE_BETA * angles.triu(1).sum()).backward()
    after = events.states[-1].network
    # Adam's first step is the sign of the gradient, where that is not tiny.
    clear = U.grad.abs() > 1e-5
    assert clear.double().mean() > 0.9
    moved = after["hope4.U"] - U.detach()
    expected = -config.learning_rate * U.grad.sign()
    torch.testing.assert_close(moved[clear], expected[clear], atol=1e-5, rtol=0)

    class Plain(Study):
        open = type(study).open

    plain = Plain(**vars(study))
    without = trained(tmp_path / "plain", job, plain, config, data)
    assert without[-1].row["train_loss"] == row["train_loss"]
    assert not torch.equal(without.states[-1].network["hope4.U"], after["hope4.U"])


def test_only_hope_has_a_penalty():
    study, config, data = opened("oct")
    first, _ = data.batch(data.split(0)[0])
    for model in study.models:
        penalty = study.penalty(study.network(config, model, first))
        assert (penalty is not None) == (model == "hope")


class Uncached:
    """The chest study's samples without a cache: the frozen network runs for every batch."""

    def __init__(self, data, name, inputs):
        self.data, self.name, self.seen = data, name, []
        sets = [open_stored(inputs.folders[kind]).images for kind in ("images", "copies")]
        self.images = Stack(sets)
        self.network = backbone(name)

    def split(self, trial):
        return self.data.split(trial)

    def batch(self, rows):
        self.seen.append(rows.tolist())
        images = self.images.take(rows)
        return torch.from_numpy(features_of(self.network, images)), self.data.batch(rows)[1]


@pytest.mark.parametrize("model", ["base", "tpl"])
def test_features_from_the_cache_train_as_those_computed_on_the_fly(model, tmp_path):
    study, config, data = opened("chest")
    job = Job(0, model)
    inputs = study.prepare(config, 1, lambda *_: None)
    cached, uncached = Recorder(data), Uncached(data, config.backbone, inputs)
    trained(tmp_path / "cached", job, study, config, cached)
    trained(tmp_path / "uncached", job, study, config, uncached)
    assert cached.seen == uncached.seen
    pairs = zip(rows(tmp_path / "cached", job), rows(tmp_path / "uncached", job), strict=True)
    for one, other in pairs:
        assert one == pytest.approx(other, abs=1e-4)


# Going on


class StopError(Exception):
    """Stands in for a kill."""


def stopping(kind, epoch):
    """Ends the training when it says that, of the given epoch."""

    def say(event):
        at = event.row["epoch"] if isinstance(event, Epoch) else event.epoch
        if isinstance(event, kind) and at == epoch:
            raise StopError

    return say


RESUMED = [
    ("oct", "tpl2"),
    ("oct", "mpca"),
    ("oct", "mpca-batch"),
    ("chest", "tpl"),
    ("kvasir", "tpl"),
]


@pytest.mark.parametrize(("name", "model"), RESUMED)
def test_resumed_from_every_epoch_it_is_the_uninterrupted_one(name, model, tmp_path):
    """Chest has dropout and so random numbers to restore; the U-Net has batch statistics.

    Chest is stopped in each epoch, the others in the second.
    """
    study, config, data = opened(name, epochs=3)
    job = Job(1, model)
    whole = trained(tmp_path / "whole", job, study, config, data)
    for kind in (Epoch, Step):
        for k in range(1, 4) if name == "chest" else (2,):
            folder = tmp_path / f"{kind.__name__}-{k}"
            with pytest.raises(StopError):
                trained(folder, job, study, config, data, stopping(kind, k))
            torch.manual_seed(k)  # a new process has other random numbers
            rest = trained(folder, job, study, config, data)
            done = k if kind is Epoch else k - 1
            trained_then = [e.row["epoch"] for e in rest if isinstance(e, Epoch)]
            assert trained_then == list(range(done + 1, 4))
            assert rows(folder, job) == rows(tmp_path / "whole", job)
            assert not rest.states or same_states(rest.states[-1], whole.states[-1])


@pytest.mark.parametrize("name", STUDIES)
def test_the_test_set_neither_trains_nor_validates_and_is_measured_at_the_lowest_loss(
    name, tmp_path
):
    model = {"oct": "tpl-8x2x2", "chest": "conv-16", "kvasir": "tpl"}[name]
    study, config, data = opened(name, epochs=4, test_share=0.2, learning_rate=0.01)
    recorder = Recorder(data)
    job = Job(1, model)
    trained(tmp_path / "recorded", job, study, config, recorder)
    trained(tmp_path / "whole", job, study, config, data)
    split = data.split(1)
    held = set(split.test.tolist())
    used = [set(batch) for batch in recorder.seen if not set(batch) & held]
    assert set().union(*used) == {*split.train.tolist(), *split.validation.tolist()}
    assert all(set(batch) <= held for batch in recorder.seen if set(batch) & held)
    found = rows(tmp_path / "whole", job)
    lowest = math.inf
    for row in found:
        assert row["test_images"] == len(held)
        measured = {n for n in row if n.startswith("test_")} - {"test_images"}
        if row["loss"] < lowest:
            assert {f"test_{metric.name}" for metric in study.measured} <= measured
            lowest = row["loss"]
        else:
            assert not measured
    (start, *_) = [row for row in found if row["loss"] == lowest]
    assert 0 <= start["test_loss"] < math.inf
    with pytest.raises(StopError):  # resumed, it is the same
        trained(tmp_path / "again", job, study, config, data, stopping(Epoch, 2))
    trained(tmp_path / "again", job, study, config, data)
    assert rows(tmp_path / "again", job) == found


def test_the_test_scores_are_those_of_the_network_on_these_images(tmp_path):
    study, config, data = opened("oct", epochs=1, test_share=0.2)
    events = trained(tmp_path, Job(0, "base"), study, config, data)
    (row,) = rows(tmp_path, Job(0, "base"))
    network = study.network(config, "base", torch.empty(0))
    network.load_state_dict(events.states[-1].network)
    x, labels = data.batch(data.split(0).test)
    with torch.no_grad():
        logits = network.eval()(x)
    assert row["test_accuracy"] == (logits.argmax(1) == labels).double().mean().item()
    expected = torch.nn.functional.cross_entropy(logits.double(), labels).item()
    assert row["test_loss"] == pytest.approx(expected, rel=1e-5)


def test_without_a_test_set_nothing_changes(tmp_path):
    study, config, data = opened("oct")
    trained(tmp_path / "a", Job(0, "tpl1"), study, config, data)
    found = rows(tmp_path / "a", Job(0, "tpl1"))
    assert not any(name.startswith("test_") for row in found for name in row)

    class Two(Recorder):
        def split(self, trial):
            return self.data.split(trial)[:2]

    trained(tmp_path / "b", Job(0, "tpl1"), study, config, Two(data))
    assert rows(tmp_path / "b", Job(0, "tpl1")) == found


@pytest.mark.parametrize(("name", "model"), [("chest", "tpl"), ("kvasir", "tpl")])
def test_more_epochs_later_are_those_of_one_run_that_had_them_at_once(name, model, tmp_path):
    study, config, data = opened(name, epochs=4)
    job = Job(1, model)
    whole = trained(tmp_path / "whole", job, study, config, data)
    fewer = config.model_copy(update={"epochs": 2})
    trained(tmp_path / "more", job, study, fewer, data)
    torch.manual_seed(9)
    rest = trained(tmp_path / "more", job, study, config, data)
    assert [event.row["epoch"] for event in rest if isinstance(event, Epoch)] == [3, 4]
    assert rows(tmp_path / "more", job) == rows(tmp_path / "whole", job)
    assert same_states(rest.states[-1], whole.states[-1])


# Damage


def flip(path, count=64):
    """The file with so many bytes of its middle changed."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    for place in range(middle, middle + count):
        content[place] ^= 0xFF
    path.write_bytes(content)


def stopped_after(epoch, folder, *what):
    with pytest.raises(StopError):
        trained(folder, *what, stopping(Epoch, epoch))


def corrupt(path, how):
    if how == "gone":
        path.unlink()
    elif how == "flipped":
        flip(path, 1)
    else:
        content = path.read_bytes()
        path.write_bytes(content[: 0 if how == "empty" else len(content) // 3])


@pytest.fixture(scope="module")
def chest(tmp_path_factory):
    """A job of three epochs, and the folder of its training that nothing disturbed."""
    what, folder = (Job(0, "tpl"), *opened("chest", epochs=3)), tmp_path_factory.mktemp("whole")
    trained(folder, *what)
    return what, folder


@pytest.mark.parametrize("file", ["checkpoint", "lines"])
@pytest.mark.parametrize("how", ["flipped", "empty", "truncated", "gone"])
def test_a_corrupted_file_is_named_and_its_job_trained_again(file, how, chest, tmp_path):
    what, whole = chest
    stopped_after(2, tmp_path / "run", *what)
    path = getattr(JobFiles.of(tmp_path / "run", 0, "tpl"), file)
    corrupt(path, how)
    events = trained(tmp_path / "run", *what)
    (notice,) = [event for event in events if isinstance(event, Notice)]
    assert notice.text.startswith(str(path))
    assert notice.text.endswith("It is trained from epoch 1 on.")
    assert [event.row["epoch"] for event in events if isinstance(event, Epoch)] == [1, 2, 3]
    assert rows(tmp_path / "run", what[0]) == rows(whole, what[0])


@pytest.mark.parametrize("epoch", [1, 3])
@pytest.mark.parametrize("written", [0, 1, 2, 3])
def test_killed_between_the_files_of_an_epoch(epoch, written, chest, tmp_path, monkeypatch):
    """No row is lost, none is there twice, and the files are those of a job never killed."""
    what, undisturbed = chest
    job = what[0]
    files = JobFiles.of(tmp_path / "run", job.trial, job.model)
    save = JobFiles.save

    def killed(self, row, saved):
        """Write so many files in the order of JobFiles.save, and half of the next line."""
        if row["epoch"] < epoch:
            save(self, row, saved)
            return
        self.lines.parent.mkdir(parents=True, exist_ok=True)
        if written > 0:
            self.observed.write_bytes(saved.observed)
            with open(self.lines, "ab") as file:
                file.write(as_line(row) if written > 1 else as_line(row)[:20])
        if written > 2:
            self.checkpoint.write_bytes(saved.checkpoint)
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(JobFiles, "save", killed)
        with pytest.raises(StopError):
            trained(tmp_path / "run", *what)
    trained(tmp_path / "run", *what)
    assert rows(tmp_path / "run", job) == rows(undisturbed, job)
    whole = JobFiles.of(undisturbed, job.trial, job.model)
    assert same_states(
        checkpoint.load(files.checkpoint.read_bytes(), files.checkpoint),
        checkpoint.load(whole.checkpoint.read_bytes(), whole.checkpoint),
    )
    one, other = read_observed(files.observed), read_observed(whole.observed)
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[k], other[k]) for k in one)


def test_a_checkpoint_of_another_network_is_an_error_of_one_line(tmp_path):
    study, config, data = opened("chest", epochs=2)
    stopped_after(1, tmp_path, Job(0, "tpl"), study, config, data)
    files = JobFiles.of(tmp_path, 0, "tpl")
    files.checkpoint.rename(JobFiles.of(tmp_path, 0, "base").checkpoint)
    files.lines.rename(JobFiles.of(tmp_path, 0, "base").lines)
    with pytest.raises(StudyError, match=r"base\.pt is not of this network .*Remove it") as raised:
        trained(tmp_path, Job(0, "base"), study, config, data)
    assert "\n" not in str(raised.value)


def test_dropout_draws_matter(tmp_path):
    """The test above could not fail where random numbers had no effect."""
    study, config, data = opened("chest", epochs=1)
    job = Job(0, "base")
    trained(tmp_path / "with", job, study, config, data)
    trained(tmp_path / "without", job, study, config.model_copy(update={"dropout": 0.0}), data)
    assert rows(tmp_path / "with", job) != rows(tmp_path / "without", job)


# What goes wrong


@pytest.mark.parametrize("name", ["oct", "chest"])
def test_a_network_that_diverges_is_named(name, tmp_path):
    study, config, data = opened(name, learning_rate=1e30)
    with pytest.raises(StudyError, match=r"trial 2 base: .*diverged.*--learning-rate") as e:
        trained(tmp_path, Job(1, "base"), study, config, data)
    assert "\n" not in str(e.value)
    assert not list(tmp_path.rglob("*.jsonl"))
    assert not list(tmp_path.rglob("*.pt"))  # a checkpoint of NaNs would only fail again


def with_network(study, make):
    return replace(study, network=lambda *given: make(study.network(*given)))


def test_the_first_parameter_that_is_not_finite_is_named(tmp_path):
    study, config, data = opened("oct")

    def broken(network):
        with torch.no_grad():
            network.conv2.bias[3] = math.nan
            network.dense1.bias[0] = math.inf
        return network

    says = r"the training loss is nan in epoch 1: training has diverged; conv2\.bias is not finite"
    with pytest.raises(StudyError, match=says):
        trained(tmp_path, Job(0, "base"), with_network(study, broken), config, data)


class Returns(torch.nn.Module):
    """A network whose output is something else."""

    def __init__(self, network, change):
        super().__init__()
        self.network, self.change = network, change

    def forward(self, x):
        return self.change(self.network(x))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda network: None, "Expected an nn.Module from the study's network, got NoneType"),
        (lambda network: torch.nn.Flatten(), "Expected a network with parameters to train"),
        (lambda network: Returns(network, lambda y: None), "a tensor from the network, got None"),
        (lambda network: Returns(network, lambda y: (y, y)), "a tensor from the network, got tup"),
        (
            lambda network: Returns(network, lambda y: y[:, :2]),
            r"output of shape \(16, 2\) does not fit targets of shape \(16,\)",
        ),
        (
            lambda network: Returns(network, lambda y: y.repeat(1, 2)),
            r"output of shape \(16, 8\) does not fit targets of shape \(16,\)",
        ),
    ],
)
def test_a_network_that_cannot_be_trained_gives_one_line(make, says, tmp_path):
    study, config, data = opened("oct")
    with pytest.raises(StudyError, match=says) as raised:
        trained(tmp_path, Job(0, "base"), with_network(study, make), config, data)
    assert "\n" not in str(raised.value)


# Optimizers


def test_adamw_decays_the_weights_and_adam_does_not(tmp_path):
    study, config, data = opened("oct", epochs=1)
    norms = {}
    for decay in (0.0, 0.5):
        other = config.model_copy(update={"optimizer": "adamw", "weight_decay": decay})
        events = trained(tmp_path / str(decay), Job(0, "base"), study, other, data)
        norms[decay] = events.states[-1].network["dense1.weight"].norm().item()
    plain = trained(tmp_path / "adam", Job(0, "base"), study, config, data)
    # Without decay AdamW is Adam; with it each of the steps shrinks every weight.
    steps = math.ceil(len(data.split(0)[0]) / config.batch)
    assert plain.states[-1].network["dense1.weight"].norm().item() == norms[0.0]
    expected = norms[0.0] * (1 - config.learning_rate * 0.5) ** steps
    assert norms[0.5] == pytest.approx(expected, rel=1e-3)
    assert norms[0.5] < norms[0.0]


def test_a_cosine_schedule_goes_from_the_rate_towards_zero(tmp_path):
    study, config, data = opened("oct", epochs=4, schedule="cosine")
    events = trained(tmp_path, Job(0, "base"), study, config, data)
    rates = [state.optimizer["param_groups"][0]["lr"] for state in events.states]
    reference = torch.optim.SGD([torch.zeros(1)], lr=config.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(reference, T_max=4)
    expected = []
    for _ in range(4):
        expected.append(reference.param_groups[0]["lr"])
        reference.step()
        schedule.step()
    assert rates == pytest.approx(expected)


def test_a_validation_loss_that_is_not_finite_is_named(tmp_path):
    study, config, data = opened("oct")

    class Metrics:
        def update(self, output, target):
            pass

        def compute(self):
            return {"loss": math.inf, "accuracy": 0.5}

    class Broken(type(study)):
        def metrics(self):
            return Metrics()

    with pytest.raises(StudyError, match="trial 1 base: loss is inf after epoch 1: training has"):
        trained(tmp_path, Job(0, "base"), Broken(**vars(study)), config, data)


@pytest.mark.parametrize(
    ("name", "size", "rule"), [("oct", 40, 16), ("chest", 80, 32), ("kvasir", 40, 16)]
)
def test_a_size_that_the_networks_cannot_take_is_refused_before_training(name, size, rule):
    config = smoke(name, size=size)
    with pytest.raises(StudyError, match=f"Expected a size divisible by {rule}.*, got {size}"):
        STUDIES[name].check_networks(config)


def test_a_unit_that_has_finished_is_not_trained_again(tmp_path):
    study, config, data = opened("oct")
    events = []
    for _ in range(2):
        trained(tmp_path, Job(0, "base"), study, config, data, events.append)
    assert sum(isinstance(event, Epoch) for event in events) == config.epochs
