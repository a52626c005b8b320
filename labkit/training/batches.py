"""The training batches of a session, as its step takes them."""

from collections.abc import Iterator
from typing import Any

from labkit.config import DataConfig
from labkit.data.inputs import InputShare, choose_input_path
from labkit.data.loading import load_split
from labkit.data.pipeline import Distortion, train_dataset
from labkit.training.session import Session

__all__ = ["training_batches"]


def training_batches(session: Session, *, start_step: int, stop_step: int) -> Iterator[Any]:
    """Return (images, labels) of steps ``start_step`` … ``stop_step`` - 1, distributed over the replicas."""
    config, manifest, plan = session.config, session.manifest, session.plan
    path = choose_input_path(manifest, config.data.input_path)
    arrays = load_split(manifest, "train") if path == "memory" else None
    share = InputShare(
        num_replicas=plan.num_replicas,
        first_replica=plan.worker_number * plan.num_local_replicas,
        num_local_replicas=plan.num_local_replicas,
    )
    # With parameter servers the coordinator makes the batches and sends them with the steps.
    distributing = session.evaluation_strategy if plan.asynchronous_workers else session.strategy
    return iter(
        distributing.distribute_datasets_from_function(
            lambda _: train_dataset(
                manifest,
                global_batch_size=config.data.train_batch_size,
                seed=config.run.seed,
                start_step=start_step,
                stop_step=stop_step,
                distortion=distortion_of(config.data),
                # The step does that, where batches go over a network.
                standardized=plan.asynchronous_workers == 0,
                input_path=path,
                share=share,
                arrays=arrays,
            )
        )
    )


def distortion_of(data: DataConfig) -> Distortion | None:
    """Return how training images are distorted, None where they aren't."""
    if not data.use_distortion_for_training:
        return None
    return Distortion(data.crop_padding, data.crop_padding_mode, data.flip, data.cutout_size)
