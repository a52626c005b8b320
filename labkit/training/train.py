"""``train`` and ``evaluate`` do what a plan says."""

from typing import Any

from labkit.startup.quiet_import import import_tensorflow
from labkit.training.plan import EvaluationPlan, RunPlan, TrainingPlan, TrainResult, finished_result


def train(plan: RunPlan) -> TrainResult:
    """Train the run of ``plan`` to its last step, from its newest checkpoint if it has one.

    Raises InputError, before the run is changed, if another process is writing it, if its checkpoints belong
    to other data or can't be restored, or if the network can't be trained with this configuration; PeerLost
    if the cluster loses a task that it needs.
    """
    if plan.run_state == "finished":
        return finished_result(plan.run)
    if not isinstance(plan, TrainingPlan):
        raise TypeError("the plan has no devices; plan_training makes one that has")
    import_tensorflow()
    if plan.task is not None:
        from labkit.training.session import train_as_task

        return train_as_task(plan, plan.task)
    from labkit.training.session import train_alone

    return train_alone(plan)


def evaluate(plan: EvaluationPlan, split: str, checkpoint: str = "best") -> dict[str, Any]:
    """Evaluate a checkpoint on ``split``, and write its predictions for the dashboard.

    Args:
        plan: of the run.
        split: ``test``, ``validation`` or ``train``.
        checkpoint: ``best`` (on validation, or the newest without validation), ``last``, or a step.

    Returns the content of ``predictions/<split>.json``. The metrics are added to the run's, once for each
    split and step. Raises InputError if the checkpoint is missing or belongs to other data.
    """
    import_tensorflow()
    from labkit.training.follow import evaluate_checkpoint

    return evaluate_checkpoint(plan, split, checkpoint)
