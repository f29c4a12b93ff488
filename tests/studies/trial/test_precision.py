"""In which precision a network is trained: Lightning Fabric does the same on several devices."""

import pytest
import torch
from small_runs import carry_out, carry_out_here, results, smoke
from torch import nn

from tensorprojection import TensorProjection
from tensorprojection.studies.execute import parallel
from tensorprojection.studies.execute.choose import executor
from tensorprojection.studies.execute.local import run_units
from tensorprojection.studies.execute.parallel import Devices
from tensorprojection.studies.execute.protocol import UnitTrainer
from tensorprojection.studies.trial.precision import output_of

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
    assert network[1].orthogonality_error() < 2e-3  # bfloat16 has three digits: 1e-2 and more


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_full_precision_is_the_networks_own(dtype):
    network, x = Looked().to(dtype), torch.randn(5, 1, 8, 8, dtype=dtype)
    assert torch.equal(output_of(network, x, smoke("oct")), network(x))
    assert set(network.seen) == {dtype}


def test_it_needs_no_executor_of_its_own():
    """One process for each core, as without it."""
    with executor(smoke("oct", precision=MIXED), None, Devices()) as chosen:
        assert chosen.execute is run_units


@pytest.mark.skipif(
    parallel.find_spec("lightning_fabric") is None,
    reason="Lightning Fabric is not installed: pip install 'tensorprojection[ddp]'",
)
@pytest.mark.parametrize(("study", "models"), [("oct", ("tpl2", "hope")), ("chest", ("tpl",))])
def test_one_device_gives_what_fabric_gives(study, models, tmp_path):
    """To the bit: whether one or several devices train is no setting of a run."""
    from lightning_fabric import Fabric

    from tensorprojection.studies.trial.parallel import Parallel

    def by_fabric(units, jobs, task):
        trainer = UnitTrainer(task, Parallel(Fabric(accelerator="cpu", devices=1, precision=MIXED)))
        return (trainer(unit, lambda event: None) for unit in units)

    config = smoke(study, trials=1, models=models, precision=MIXED)
    carry_out_here(config, tmp_path / "own")
    carry_out(config, tmp_path / "fabric", execute=by_fabric)
    assert results(tmp_path / "own").equals(results(tmp_path / "fabric"))
    carry_out_here(smoke(study, trials=1, models=models), tmp_path / "fine")
    coarse, fine = results(tmp_path / "own")["loss"], results(tmp_path / "fine")["loss"]
    assert (coarse != fine).all()
    assert (coarse - fine).abs().max() < 0.02
