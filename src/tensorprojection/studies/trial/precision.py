"""In which precision a network is computed: one place, for training and validation alike."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..config import RunConfig


def output_of(network: nn.Module, x: Tensor, config: RunConfig) -> Tensor:
    """The network's output; with bf16-mixed computed in bfloat16 where that is safe, then float32.

    Parameters, their gradients and the optimizer are what they are without it, as with Lightning
    Fabric, which does the same where several devices train.
    """
    output: Tensor
    if config.precision == "32-true":
        output = network(x)
        return output
    with torch.autocast(x.device.type, torch.bfloat16):
        output = network(x)
    return output.float()
