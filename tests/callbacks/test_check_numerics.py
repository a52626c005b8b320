"""``CheckNumerics`` names the tensor, keeps the state before the step, and a replay shows the same."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import labkit
from labkit.callbacks.builtin import CheckNumerics
from labkit.callbacks.callback import TrainingView
from labkit.callbacks.calls import Calls
from labkit.config import Config
from labkit.distributed.synchronous import SynchronousEngine
from labkit.errors import InputError
from labkit.optim.network import state_variables
from labkit.run_directory import write_json_atomic
from labkit.run_directory.disk import discard
from labkit.run_directory.metrics import MetricsWriter
from labkit.training.checkpoints import CheckpointStore
from labkit.training.checks import check_together
from labkit.training.network import Network, training_batches
from labkit.training.plan import plan_training
from labkit.training.session import describe_environment
from tests.tiny import prepare_tiny

STEPS = 6


def _train(tmp_path, **fields):
    """Run steps as the loop does, with ``CheckNumerics``. Returns plan, run, rows, states and failure."""
    settings = {
        "dataset": "shapes",
        "data_dir": str(tmp_path / "data"),
        "job_dir": str(tmp_path / "run"),
        "num_layers": 8,
        "train_batch_size": 12,
        "train_steps": STEPS,
        "num_gpus": 0,
        "deterministic": True,
    }
    prepare_tiny(tmp_path / "data")
    plan = plan_training(Config.from_flat(settings | fields))
    run = plan.run
    run.create()
    write_json_atomic(run.config_path, plan.config.to_json())
    write_json_atomic(run.environment_path, describe_environment(plan))
    network = Network(plan.config, plan.manifest, plan.devices, plan.data_format)
    network.begin()
    batches = training_batches(network, start_step=0, stop_step=STEPS)
    engine = SynchronousEngine(network.steps, batches, step=0)

    def keep_state(folder, checkpoint, step):
        store = CheckpointStore(folder, keep=1)
        store.save(checkpoint, network.state_after(step))
        return store.path(step)

    training = TrainingView(network, run, keep_state)
    calls = Calls([CheckNumerics()], training, heartbeat=lambda _: None, say=lambda _: None)
    calls.on_start()
    rows, states = [], []
    while len(rows) < STEPS and not calls.failure:
        calls.before_step(len(rows) + 1)
        variables = state_variables(network.model, network.optimizer)
        states.append([variable.numpy() for variable in variables])
        result = engine.next_step()
        row = {"split": "train", "step": result.step, **result.metrics, "learning_rate": result.learning_rate}
        assert calls.after_step(row) == {}
        rows.append(row)
    calls.on_end("failed")
    writer = MetricsWriter(run.metrics_path)
    writer.append(rows)
    writer.close()
    return plan, run, rows, states, calls.failure


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_diverges_says_where_and_a_replay_shows_the_same(tmp_path):
    plan, run, rows, states, failure = _train(tmp_path, learning_rate=1e8)
    step = len(rows)
    assert failure.startswith(
        f"step {step}: the first Infinity is in the forward pass, in the batch variance of "
    )
    assert "(BatchNormalization), made by the operation FusedBatchNormV3" in failure
    assert f"kept in numerics/step-{step - 1:08d}: labkit replay {run.path} --step {step};" in failure
    assert run.numerics_steps() == [step - 1]
    assert run.checkpoint_steps() == []  # nothing that a resume would take

    # The state that was kept is the one before the step, bit by bit.
    kept = Network(plan.config, plan.manifest, plan.devices, plan.data_format)
    status = kept.checkpoint().read(str(run.numerics_path / f"step-{step - 1:08d}" / "variables"))
    status.assert_consumed()
    for variable, value in zip(state_variables(kept.model, kept.optimizer), states[-1], strict=True):
        assert variable.numpy().tobytes() == value.tobytes()
    assert int(kept.step) == step - 1

    made = labkit.load_run(run.path).replay(step)
    assert (made.start, made.steps_before) == (f"numerics/step-{step - 1:08d}", 0)
    assert made.loss_is_equal
    assert made.first_non_finite.sentence() in failure
    earlier = labkit.load_run(run.path).replay(step - 1)
    assert earlier.start == "the initial weights"
    assert earlier.loss_is_equal
    assert earlier.first_non_finite is None

    discard(run)
    assert not run.numerics_path.exists()


@pytest.mark.long
def test_the_first_tensor_is_found_in_every_phase(tmp_path):
    """Forward, backward, update and state, each made non-finite by hand in one network."""
    from labkit.data.batch_of_step import batch_of_step
    from labkit.inspection.diagnosis import diagnose_step
    from labkit.optim.network import TrainedNetwork

    manifest = prepare_tiny(tmp_path)
    config = Config.from_flat(
        {"dataset": "shapes", "model": "tutorial_cnn", "train_batch_size": 4, "data_format": "channels_last"}
    )
    network = TrainedNetwork(config, manifest, "channels_last")
    batch = batch_of_step(manifest, config.data, seed=0, step=1)
    variables = state_variables(network.model, network.optimizer)
    finite = [variable.numpy() for variable in variables]

    class Plain:
        @staticmethod
        def of_training(labels, logits, smoothing):
            return tf.reduce_sum(logits, axis=1)

    class RootOfZero(Plain):
        """Finite, but its slope isn't."""

        @staticmethod
        def of_training(labels, logits, smoothing):
            return tf.reduce_sum(tf.sqrt(0.0 * logits), axis=1)

    def first(before, after, loss=Plain, batch=batch):
        network.load(before, 0)
        return diagnose_step(network, batch, config, num_replicas=2, loss=loss, before=before, after=after)[1]

    assert first(finite, finite) is None
    name = network.model.trainable_variables[2].path.split("/")[-2]
    broken = [value.copy() for value in finite]
    broken[2].flat[0] = np.nan
    found = first(broken, finite)
    assert (found.phase, found.value, found.layer) == ("state", "NaN", name)
    found = first(finite, broken)
    assert (found.phase, found.value, found.layer) == ("update", "NaN", name)
    huge = [value.copy() for value in finite]
    huge[0][...] = 3e38
    found = first(huge, huge)
    assert (found.phase, found.layer_type, found.operation) == ("forward", "Conv2D", found.operation)
    found = first(finite, finite, RootOfZero)
    assert (found.phase, found.tensor, found.layer) == ("backward", "gradient of the output", "logits")
    assert found.sentence(2).endswith("on replica 0")

    # The forward pass of replica 1 comes before the backward pass of replica 0.
    images = batch.standardized.copy()
    images[-1] = np.nan
    found = first(finite, finite, RootOfZero, dataclasses.replace(batch, standardized=images))
    assert (found.phase, found.value, found.tensor, found.replica) == ("forward", "NaN", "images", 1)


def test_asynchronous_workers_refuse_it():
    config = Config.from_flat({"check_numerics": True})
    with pytest.raises(InputError, match="--check-numerics is not available in asynchronous training"):
        check_together(config, num_workers=2, asynchronous=True)


def test_it_does_not_make_another_run():
    assert Config.from_flat({"check_numerics": True}).fingerprint() == Config().fingerprint()
