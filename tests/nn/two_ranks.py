"""Two processes that talk through gloo, as a test starts them."""

import datetime
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def as_rank(rank: int, folder: str) -> Iterator[None]:
    """In one of the two: they meet by a file in the folder."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=60),
    )
    yield
    torch.distributed.destroy_process_group()
