"""Trials on a Ray cluster: the local executor's results to the bit, whatever dies meanwhile."""

from contextlib import contextmanager

import pytest
from small_runs import carry_out, results, smoke

from tensorprojection.studies.trial.unit import Epoch

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'tensorprojection[ray]'")
cluster_utils = pytest.importorskip("ray.cluster_utils")

from tensorprojection.studies.execute.protocol import Restarted  # noqa: E402
from tensorprojection.studies.execute.ray import RayExecutor  # noqa: E402
from tensorprojection.studies.execute.ray_cluster import RayOptions, connected  # noqa: E402

# Ray's own, about its own: sockets and processes that it closes when it is done.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# A node that is killed is found dead in seconds, not in half a minute.
QUICK = {"health_check_period_ms": 500, "health_check_failure_threshold": 3}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TENSORPROJECTION_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


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
    chosen = RayOptions(address, **options)
    with connected(chosen):
        yield RayExecutor(chosen, config)


def files(folder):
    """What the run holds, but for what no two runs share."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("record.json", ".lock")
    }


def test_a_node_is_killed_in_the_middle(cluster, tmp_path):
    """Its trial goes on elsewhere from its last epoch: the results are those of this machine."""
    config = smoke("oct", trials=2, models=("tpl2",), epochs=12)
    carry_out(config, tmp_path / "local")
    seen = []
    with nodes(cluster, 1, 1) as (_, doomed), executor(config, cluster.address) as there:

        def run_units(*given):
            for event in there.run_units(*given):
                seen.append(event)
                yield event
                if isinstance(event, Epoch) and sum(isinstance(e, Epoch) for e in seen) == 4:
                    cluster.remove_node(doomed, allow_graceful=False)

        outcome = carry_out(config, tmp_path / "ray", execute=run_units)
    assert outcome.failures == ()
    assert [event for event in seen if isinstance(event, Restarted)]
    epochs = [(event.unit, event.row["epoch"]) for event in seen if isinstance(event, Epoch)]
    assert len(epochs) == len(set(epochs)) == 24  # none that had arrived was trained again
    assert results(tmp_path / "ray").equals(results(tmp_path / "local"))
    assert files(tmp_path / "ray") == files(tmp_path / "local")
