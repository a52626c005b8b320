"""The configuration of a run: one frozen dataclass per owner, checked when it is made.

Command-line flags and notebook parameters are derived from these fields (``fields_by_name``), so a
name, its type, default and help text stand here and nowhere else. Field names are unique over all
owners: a run can be described by a flat mapping of names to values.
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from labkit.architectures import APPLICATIONS, ARCHITECTURES, default_depth, resolved_depth
from labkit.errors import InputError
from labkit.fields import FieldInfo, FieldOwner, fields_of, option, unknown_name_error

__all__ = [
    "Config",
    "DataConfig",
    "DistributionConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RunConfig",
    "TransferConfig",
    "fields_by_name",
]


@dataclass(frozen=True)
class DataConfig(FieldOwner):
    """Which examples, in which batches, how distorted."""

    dataset: str = option(
        "auto",
        "auto takes CIFAR-10 if it is prepared, else downloads it, else the embedded shapes set; "
        "shapes_multilabel, embedded too, has several labels per image",
        choices=("auto", "cifar10", "shapes", "shapes_multilabel"),
    )
    data_dir: str | None = option(
        None, "folder of prepared data sets (None: <home>/data; see labkit doctor)", identity=False
    )
    train_batch_size: int = option(
        128, "examples per training step, over all replicas", minimum=1, maximum=2**17
    )
    eval_batch_size: int = option(
        100, "examples per evaluation step, over all replicas", minimum=1, maximum=2**17, identity=False
    )
    use_distortion_for_training: bool = option(True, "random crop and flip of the training images")
    crop_padding: int = option(
        4, "pixels added on each side of a training image before it is cropped", minimum=0, maximum=16
    )
    crop_padding_mode: str = option(
        "constant",
        "what is added: constant: black; reflect: the image mirrored",
        choices=("constant", "reflect"),
    )
    flip: str = option(
        "random",
        "training images left-right: random; alternating: each one every other epoch; none",
        choices=("random", "alternating", "none"),
    )
    cutout_size: int = option(
        0, "side, in pixels, of a square that is covered in each training image (0: none)", minimum=0
    )
    progressive_resizing: str | None = option(
        None,
        "smaller training images first: their side and up to which share of the run, such as 16:0.3,24:0.7 "
        "(None: all as they are)",
    )
    input_path: str = option(
        "auto",
        "memory: the whole split as one array; streaming: sharded files; auto: memory where it fits",
        choices=("auto", "memory", "streaming"),
    )
    shuffle_buffer_size: int = option(16384, "examples in the streaming path's shuffle buffer", minimum=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            shares = [0.0, *(share for size, share in self.image_sizes if size > 0)]
        except ValueError:
            shares = []
        ascending = all(before < share <= 1 for before, share in itertools.pairwise(shares))
        if not ascending or len(shares) != 1 + (self.progressive_resizing or "").count(":"):
            raise InputError(
                f"--progressive-resizing is {self.progressive_resizing!r}; allowed: a side in pixels, a "
                "colon, a share of the run (ascending, up to 1), comma-separated, for example 16:0.3,24:0.7"
            )

    @property
    def image_sizes(self) -> tuple[tuple[int, float], ...]:
        """The parts of ``progressive_resizing``: (side in pixels, share of the run up to which it holds)."""
        if self.progressive_resizing is None:
            return ()
        parts = [part.partition(":") for part in self.progressive_resizing.split(",")]
        return tuple((int(size), float(share)) for size, _, share in parts)


@dataclass(frozen=True)
class ModelConfig(FieldOwner):
    """Which network."""

    model: str = option("resnet", "architecture; see labkit models", choices=tuple(ARCHITECTURES))
    num_layers: int | None = option(
        None,
        "depth, for resnet 6n+2 with basic blocks, 9n+2 with bottleneck blocks (None: "
        + ", ".join(
            f"{name} {default_depth(name, 'basic')}" for name in ARCHITECTURES if name != "keras_application"
        )
        + ")",
        minimum=1,
    )
    width_factor: float = option(
        1.0, "multiplies the channels of wide_resnet (WRN-16-4: 4) and fast", minimum=0.125, below=100
    )
    activation: str = option("relu", "of the fast net; the others are as published", choices=("relu", "gelu"))
    whitening: bool = option(True, "the fast net's first convolution whitens the images and is frozen")
    dirac: bool = option(True, "the fast net's convolutions begin as the identity")
    application: str = option(
        APPLICATIONS[0],
        "which one of keras.applications, with --model keras_application",
        choices=APPLICATIONS,
    )
    resnet_version: int = option(1, "1: activation after the sum; 2: before the convolutions", choices=(1, 2))
    block: str = option("basic", "residual block", choices=("basic", "bottleneck"))
    batch_norm_decay: float = option(
        0.997, "share of the old moving statistics kept at each step", minimum=0, below=1
    )
    batch_norm_epsilon: float = option(1e-5, "added to the variance", minimum=1e-12)
    sync_batch_norm: bool = option(False, "statistics over the global batch instead of each replica's slice")
    data_format: str = option(
        "auto",
        "layout of the images on the device (auto: channels_first on GPUs, channels_last on CPUs)",
        choices=("auto", "channels_last", "channels_first"),
        identity=False,
    )
    precision: str = option(
        "float32",
        "arithmetic of the network; float64, slowly, shows what is rounding and what is not",
        choices=("float32", "mixed_bfloat16", "float64"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        depth = resolved_depth(
            self.model,
            self.num_layers,
            resnet_version=self.resnet_version,
            block=self.block,
            width_factor=self.width_factor,
        )
        for owner, names in {
            "fast": ("activation", "whitening", "dirac"),
            "keras_application": ("application",),
        }.items():
            for name in names if self.model != owner else ():
                info = fields_by_name()[name]
                if getattr(self, name) != info.default:
                    raise InputError(
                        f"{info.flag} is {getattr(self, name)!r}; allowed for {self.model}: {info.default!r} "
                        f"({owner} has others)"
                    )
        object.__setattr__(self, "num_layers", depth)  # so that what is recorded is the number

    @property
    def depth(self) -> int:
        """The number of layers; ``num_layers`` is never None once this is made."""
        assert self.num_layers is not None
        return self.num_layers

    def with_own_depth(self, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ``changes`` to this, with a depth that is the architecture's own left to the next one."""
        if "num_layers" in changes or self.num_layers != default_depth(self.model, self.block):
            return changes
        return {**changes, "num_layers": None}


@dataclass(frozen=True)
class OptimizerConfig(FieldOwner):
    """How the weights move."""

    optimizer: str = option(
        "sgd",
        "sgd: with momentum; muon: for the kernels of convolutions, with sgd for the rest",
        choices=("sgd", "muon"),
    )
    muon_learning_rate: float = option(0.24, "of muon's kernels; the schedule is the others' one", minimum=0)
    muon_momentum: float = option(0.6, "of muon's kernels", minimum=0, below=1)
    learning_rate: float = option(0.1, "initial value of the schedule, peak for one_cycle", minimum=0)
    learning_rate_schedule: str = option(
        "steps",
        "steps: x1, 0.1, 0.01, 0.002 from epochs 0, 82, 123, 300; cosine; one_cycle; constant",
        choices=("steps", "cosine", "one_cycle", "constant"),
    )
    warmup_steps: int = option(0, "steps over which the schedule is scaled up linearly from zero", minimum=0)
    one_cycle_peak: float = option(
        0.25, "share of the run after which one_cycle is at its peak", minimum=0, below=1
    )
    one_cycle_start: float = option(0.0, "of the peak: where one_cycle begins to rise", minimum=0, below=1)
    one_cycle_end: float = option(0.0, "of the peak: where one_cycle ends", minimum=0, below=1)
    momentum: float = option(0.9, "share of the velocity kept at each step", minimum=0, below=1)
    nesterov: bool = option(False, "Nesterov momentum")
    weight_decay: float = option(2e-4, "coefficient of the weight decay", minimum=0)
    weight_decay_mode: str = option(
        "l2",
        "l2: decay * w is added to the gradient; decoupled: w shrinks by learning_rate * decay * w",
        choices=("l2", "decoupled"),
    )
    decay_norm_and_bias: bool = option(True, "decay normalization parameters and biases too")
    norm_bias_learning_rate_factor: float = option(
        1.0, "of the learning rate, for the offsets of batch normalization", minimum=0
    )
    lookahead_every_steps: int = option(
        0, "steps between two moves of the weights towards their slow average (0: none)", minimum=0
    )
    lookahead_decay: float = option(
        0.95, "share of the slow average that a step keeps at the end of the run", minimum=0, below=1
    )
    loss: str = option(
        "softmax",
        "cross-entropy; softmax: one label per image; sigmoid: several, each for itself",
        choices=("softmax", "sigmoid"),
    )
    label_smoothing: float = option(
        0.0,
        "probability mass spread evenly over the classes (sigmoid: over yes and no of each label)",
        minimum=0,
        below=1,
    )
    gradient_clip_norm: float | None = option(
        None, "largest global norm of the gradient (None: no clipping)", minimum=1e-12
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer == "muon" and self.learning_rate == 0:
            raise InputError("--learning-rate is 0.0; allowed with --optimizer muon: above 0")
        for name in ("muon_learning_rate", "muon_momentum") if self.optimizer != "muon" else ():
            info = fields_by_name()[name]
            if getattr(self, name) != info.default:
                raise InputError(
                    f"{info.flag} is {getattr(self, name)!r}; allowed with --optimizer {self.optimizer}: "
                    f"{info.default!r}"
                )


@dataclass(frozen=True)
class TransferConfig(FieldOwner):
    """What a run begins with, and what of it stays as it is."""

    start_from: str | None = option(
        None,
        "initial weights, where name and shape fit: a run (its best checkpoint), a .keras file, or imagenet "
        "for a network of keras.applications (None: random ones)",
    )
    freeze: str | None = option(
        None,
        "stages or layers that are not trained, statistics included: names or patterns, comma-separated, "
        "such as stem,stage1 or stage*_norm* (None: everything is trained)",
    )
    unfreeze_every_steps: int = option(
        0, "steps after which the uppermost frozen stage thaws, again and again (0: none does)", minimum=0
    )
    head_learning_rate_factor: float = option(
        1.0, "of the learning rate, for the layer that gives the logits", minimum=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.start_from == "":
            raise InputError("--start-from is empty; name a run or a .keras file, or leave it out")
        if self.freeze is not None and not all(self.freeze_patterns):
            raise InputError(
                f"--freeze is {self.freeze!r}; allowed: names or patterns, comma-separated, none empty"
            )
        if self.unfreeze_every_steps and self.freeze is None:
            raise InputError(
                f"--unfreeze-every-steps is {self.unfreeze_every_steps} without --freeze; nothing can thaw: "
                "name what is frozen, for example --freeze 'stem,stage*'"
            )

    @property
    def freeze_patterns(self) -> list[str]:
        """The patterns of ``freeze``, one by one."""
        return [] if self.freeze is None else [part.strip() for part in self.freeze.split(",")]


@dataclass(frozen=True)
class DistributionConfig(FieldOwner):
    """On which devices."""

    num_gpus: int | None = option(
        None,
        "GPUs to use, one replica each; 0: the CPU (None: as many as there are)",
        minimum=0,
        identity=False,
    )
    simulate_missing_gpus: bool = option(
        False, "where there are fewer GPUs, run the replicas on logical CPU devices", identity=False
    )
    variable_strategy: str = option(
        "CPU",
        "where gradients are reduced and the update is made when there are several replicas",
        choices=("CPU", "GPU"),
        identity=False,
    )
    sync: bool = option(
        False, "in a cluster: synchronous training; one process is always synchronous", identity=False
    )
    num_intra_threads: int = option(
        0, "threads inside one operation (0: TensorFlow's choice)", minimum=0, maximum=1024, identity=False
    )
    num_inter_threads: int = option(
        0, "operations at the same time (0: TensorFlow's choice)", minimum=0, maximum=1024, identity=False
    )
    allow_soft_placement: bool = option(
        True, "place operations that a device can't run elsewhere", identity=False
    )
    log_device_placement: bool = option(False, "log where each operation runs", identity=False)
    worker_hosts: str | None = option(
        None, "cluster without TF_CONFIG: host:port of each worker, comma-separated", identity=False
    )
    ps_hosts: str | None = option(
        None, "cluster without TF_CONFIG: host:port of each parameter server, comma-separated", identity=False
    )
    job_name: str | None = option(
        None, "cluster without TF_CONFIG: what this process is", choices=("worker", "ps"), identity=False
    )
    task_index: int | None = option(
        None, "cluster without TF_CONFIG: which worker or server this process is", minimum=0, identity=False
    )
    bind: str = option(
        "127.0.0.1",
        "address on which this process's server listens in a cluster; 0.0.0.0: on every one",
        identity=False,
    )
    variable_placement: str = option(
        "round_robin",
        "over parameter servers: round_robin: in turn; greedy: to the server with the fewest bytes",
        choices=("round_robin", "greedy"),
        identity=False,
    )
    rendezvous_seconds: float = option(
        120.0, "how long the tasks of a cluster wait for each other at the start", minimum=1, identity=False
    )
    peer_timeout_seconds: float = option(
        15.0, "silence after which another task of the cluster counts as lost", minimum=2, identity=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_gpus == 0 and self.variable_strategy == "GPU":
            raise InputError(
                "--variable-strategy is 'GPU' with --num-gpus 0; allowed: 'CPU', or one GPU or more"
            )


@dataclass(frozen=True)
class RunConfig(FieldOwner):
    """How long, where to, what is written when."""

    job_dir: str | None = option(
        None, "run directory (None: <home>/runs/<name made from the configuration>)", identity=False
    )
    train_steps: int = option(80000, "training steps of the whole run", minimum=1, maximum=10**9)
    seed: int = option(0, "decides initial weights, epoch order and distortion", minimum=0, below=2**31)
    deterministic: bool = option(False, "bit-identical results for one seed, at some cost of speed")
    log_every_steps: int = option(100, "steps between two lines on the console", minimum=1, identity=False)
    validate_every_steps: int | None = option(
        None, "steps between two validations (None: once an epoch; 0: at the end only)", minimum=0
    )
    checkpoint_every_steps: int | None = option(
        None, "steps between two checkpoints (None: by seconds only)", minimum=1, identity=False
    )
    checkpoint_every_seconds: float | None = option(
        300.0, "seconds between two checkpoints (None: by steps only)", minimum=0, identity=False
    )
    keep_checkpoints: int = option(
        2, "newest checkpoints kept, beside the best on validation", minimum=1, identity=False
    )
    evaluate_test: bool = option(True, "evaluate the test set when training is done", identity=False)
    test_time_augmentation: str = option(
        "none",
        "views of each test image that are averaged, beside the plain result: mirror: two; "
        "mirror_and_shift: six",
        choices=("none", "mirror", "mirror_and_shift"),
        identity=False,
    )
    histograms_every_steps: int = option(
        0, "steps between two sets of weight histograms in events/ (0: none)", minimum=0, identity=False
    )
    write_graph: bool = option(False, "write the step's graph to events/", identity=False)
    write_images: bool = option(False, "write a batch of distorted images to events/", identity=False)


@dataclass(frozen=True)
class Config:
    """The whole configuration of a run.

    Raises InputError, on construction, for a value or a combination that can't be run.
    """

    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    transfer: TransferConfig = dataclasses.field(default_factory=TransferConfig)
    distribution: DistributionConfig = dataclasses.field(default_factory=DistributionConfig)
    run: RunConfig = dataclasses.field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        # Without simulation the devices are looked for first: too few of them is the better message.
        if self.distribution.num_gpus and self.distribution.simulate_missing_gpus:
            self.check_replicas(self.distribution.num_gpus)
        if self.optimizer.warmup_steps > self.run.train_steps:
            raise InputError(
                f"--warmup-steps is {self.optimizer.warmup_steps}; "
                f"allowed: at most --train-steps, {self.run.train_steps}"
            )

    def check_replicas(self, num_replicas: int) -> None:
        """Raise InputError where the batch sizes can't be divided over ``num_replicas``."""
        for name in ("train_batch_size", "eval_batch_size"):
            size = getattr(self.data, name)
            if size % num_replicas:
                info = fields_by_name()[name]
                near = max(1, round(size / num_replicas)) * num_replicas
                raise InputError(
                    f"{info.flag} is {size} with {num_replicas} replicas; "
                    f"allowed: multiples of {num_replicas}, for example {near}"
                )

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> Self:
        """Make a configuration from field names and values; the rest keeps its defaults.

        Raises InputError for an unknown name (with the nearest known one) or a value that isn't allowed.
        """
        return cls().replace(values)

    def replace(self, values: Mapping[str, Any]) -> Self:
        """Return a copy in which the named fields, of whichever owner, have new values."""
        known = fields_by_name()
        by_owner: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            if name not in known:
                raise unknown_name_error("parameter", name, known)
            by_owner.setdefault(known[name].owner, {})[name] = value
        if "model" in by_owner:
            by_owner["model"] = dict(self.model.with_own_depth(by_owner["model"]))
        owners = {
            owner: dataclasses.replace(getattr(self, owner), **changed) for owner, changed in by_owner.items()
        }
        return dataclasses.replace(self, **owners)

    def flat(self) -> dict[str, Any]:
        """Return all fields as one mapping."""
        return {name: getattr(getattr(self, info.owner), name) for name, info in fields_by_name().items()}

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return the configuration nested by owner, ready for ``json.dumps``."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Mapping[str, Any]]) -> Self:
        """Inverse of ``to_json``. Raises InputError for unknown names and bad values.

        A part or a value that is missing, since an older labkit wrote the text, has its default.
        """
        owners = value.values()
        known = bool(value) and value.keys() <= _OWNERS.keys()
        if not known or not all(isinstance(owner, Mapping) for owner in owners):
            raise InputError(f"a configuration of a run has the parts {', '.join(_OWNERS)}, and no others")
        return cls.from_flat({name: item for owner in owners for name, item in owner.items()})

    def identity(self) -> dict[str, Any]:
        """Return the fields that decide what is trained; two runs that differ here are two runs."""
        return {name: value for name, value in self.flat().items() if fields_by_name()[name].identity}

    def fingerprint(self) -> str:
        """Return 8 hexadecimal digits of a hash of ``identity()``."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:8]

    def differences(self, other: "Config") -> list[str]:
        """Return, for people, the identity fields in which ``other`` differs from this one."""
        mine, theirs = self.identity(), other.identity()
        return [
            f"{fields_by_name()[name].flag} is {mine[name]!r} there, {theirs[name]!r} here"
            for name in mine
            if mine[name] != theirs[name]
        ]


_OWNERS: dict[str, type] = {
    "data": DataConfig,
    "model": ModelConfig,
    "optimizer": OptimizerConfig,
    "transfer": TransferConfig,
    "distribution": DistributionConfig,
    "run": RunConfig,
}


def fields_by_name() -> dict[str, FieldInfo]:
    """Return every field of every owner by its name, in order of declaration."""
    return {info.name: info for owner in _OWNERS.values() for info in fields_of(owner)}
