"""Flags of TensorFlow's programs of 2017 that have no equal here, and what to write instead.

Those of the tutorial (``cifar10_train.py``, ``cifar10_eval.py``, ``cifar10_multi_gpu_train.py``), of
``cifar10_estimator``, and of the distributed trainers. Those with an equal are ``aliases`` of the
configuration's fields.
"""

__all__ = ["INSTEAD"]

_EVALUATE = "a run is evaluated by: labkit evaluate RUN"
_EVERY_EXAMPLE = "labkit evaluate counts every example once; leave it out"
_INPUT = "labkit sizes the input by itself; leave it out, or see --input-path"
_SCHEDULE = "choose the whole schedule with --learning-rate-schedule"

INSTEAD = {
    "--checkpoint-dir": f"{_EVALUATE}, with the directory of the run as RUN",
    "--checkpoint-path": "name the run or .keras file to start from with --start-from",
    "--download-only": "prepare a data set with: labkit data prepare",
    "--eval-data": "name the split with: labkit evaluate RUN --split test",
    "--eval-dir": f"{_EVALUATE}, which writes into the run's directory",
    "--eval-interval-secs": "labkit evaluate RUN --watch evaluates each checkpoint when it appears",
    "--eval-steps": _EVERY_EXAMPLE,
    "--epochs-per-eval": "write --validate-every-steps, counted in steps",
    "--existing-servers": "each task starts its own server; leave it out",
    "--fine-tune": "name the run or .keras file to start from with --start-from",
    "--input-queue-memory-factor": _INPUT,
    "--learning-rate-decay-type": _SCHEDULE,
    "--num-clones": "write --num-gpus",
    "--num-examples": _EVERY_EXAMPLE,
    "--num-preprocess-threads": _INPUT,
    "--num-readers": _INPUT,
    "--pretrained-model-checkpoint-path": "name the run or .keras file to start from with --start-from",
    "--protocol": "tasks talk over gRPC; leave it out",
    "--replicas-to-aggregate": "--sync waits for every worker; leave it out",
    "--resnet-size": "write --num-layers",
    "--run-once": "labkit evaluate RUN evaluates once unless --watch is given; leave it out",
    "--save-summaries-secs": "scalars are written at each step; leave it out",
    "--subset": "name the split with: labkit evaluate RUN --split test",
    "--train-epochs": "write --train-steps, counted in steps",
    "--use-bottleneck": "write --block bottleneck",
    "--use-fp16": "write --precision mixed_bfloat16",
    "--use-gpu": "GPUs are used where there are any; --num-gpus 0 trains on the CPU",
}
