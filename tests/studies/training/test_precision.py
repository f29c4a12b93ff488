"""The precision in which a network is trained."""

from dataclasses import replace

import pytest
import torch
from small_runs import carry_out_here, results, smoke
from torch import nn

from tensorprojection import TensorProjection
from tensorprojection.studies.registry import STUDIES
from tensorprojection.studies.training.job import Job
from tensorprojection.studies.training.train import output_of, set_up, validate

MIXED = "bf16-mixed"


class Looked(nn.Sequential):
    """A network that notes in which type its convolution computes."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 4, 3, padding="same"),
            TensorProjection((4, 8, 8), (2, 4, 4)),
            nn.Flatten(),
            nn.Linear(32, 3),
        )
        self.seen = []
        self[0].register_forward_hook(lambda layer, given, made: self.seen.append(made.dtype))


def test_half_precision_where_it_is_safe_and_float32_everywhere_else():
    network, x = Looked(), torch.randn(5, 1, 8, 8)
    output = output_of(network, x, smoke("oct", precision=MIXED))
    output.sum().backward()
    assert network.seen == [torch.bfloat16]
    assert output.dtype == torch.float32
    assert {p.dtype for p in network.parameters()} == {torch.float32}
    assert {p.grad.dtype for p in network.parameters()} == {torch.float32}


def test_U_is_made_in_float32_also_there():
    """What comes out differs from float64 by the rounding of U, x and z, and no more."""
    layer = TensorProjection((4, 8, 8), (2, 4, 4))
    x = torch.randn(5, 4, 8, 8)
    z = output_of(layer, x, smoke("oct", precision=MIXED))
    U1, U2, U3 = (U.to(torch.bfloat16).double() for U in layer.double().projections())
    expected = torch.einsum("nchw,ca,hb,wd->nabd", x.to(torch.bfloat16).double(), U1, U2, U3)
    assert (z - expected).abs().max() <= 2**-6 * expected.abs().max()
    assert z.equal(z.to(torch.bfloat16).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_full_precision_is_the_networks_own(dtype):
    network, x = Looked().to(dtype), torch.randn(5, 1, 8, 8, dtype=dtype)
    assert torch.equal(output_of(network, x, smoke("oct")), network(x))
    assert set(network.seen) == {dtype}


def test_training_and_validation_are_both_computed_so(tmp_path):
    for name, precision in (("coarse", MIXED), ("fine", "32-true")):
        carry_out_here(
            smoke("oct", trials=1, models=("tpl2",), precision=precision), tmp_path / name
        )
    coarse, fine = results(tmp_path / "coarse"), results(tmp_path / "fine")
    for metric in ("train_loss", "loss"):
        assert (coarse[metric] != fine[metric]).all()
        assert (coarse[metric] - fine[metric]).abs().max() < 0.02
    study, config = STUDIES["oct"], smoke("oct", precision=MIXED)
    data = study.open(config, study.prepare(config, 1, lambda *_: None))
    state = set_up(Job(0, "base"), study, config, data)
    plain = replace(state, config=smoke("oct"))
    rows = state.rows.validation
    assert validate(state, rows)["loss"] != validate(plain, rows)["loss"]
