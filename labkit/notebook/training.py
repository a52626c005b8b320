"""Train from the notebook, in its own process or in a cluster that it starts and follows."""

from labkit.cluster.local import LocalCluster
from labkit.config import Config
from labkit.notebook.background import launch
from labkit.notebook.parameters import Parameters
from labkit.notebook.prepared import PreparedCluster, PreparedHere
from labkit.training.plan import TrainResult, looked_up_again
from labkit.training.train import train as train_as_planned

__all__ = ["train", "train_by_cluster"]


def train(prepared: PreparedHere | PreparedCluster, parameters: Parameters) -> TrainResult:
    """Train the run to its end, or resume it. Interrupting the cell saves a checkpoint and stops.

    Raises InputError if the run can't be trained, ClusterFailed if a cluster doesn't finish the training.
    """
    if isinstance(prepared, PreparedHere):
        return train_as_planned(looked_up_again(prepared.plan))
    return train_by_cluster(prepared.config, prepared.cluster, overwrite=parameters.overwrite)


def train_by_cluster(config: Config, cluster: LocalCluster, *, overwrite: bool = False) -> TrainResult:
    """Train in several processes on this machine, and show their output and progress.

    The processes end when this one does, even if it is killed. SIGINT, SIGTERM and SIGHUP ask them to save
    and end; a second signal kills them. Call this function from the main thread, which gets the signals.

    Args:
        config: of the training.
        cluster: the processes to start.
        overwrite: discards an existing run instead of resuming it.

    Raises InputError if the run can't be trained, ClusterFailed if the cluster doesn't finish the training.
    """
    training = launch(config, cluster, overwrite=overwrite)
    training.follow()
    return training.result()
