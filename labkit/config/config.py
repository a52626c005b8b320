"""The complete configuration of a run, its fields by name, and the one that a run directory records."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from labkit.config.architectures import model_name
from labkit.config.data import DataConfig
from labkit.config.distribution import DistributionConfig
from labkit.config.fields import FieldInfo, fields_of, plain
from labkit.config.model import ModelConfig, TransferConfig, fields_of_network
from labkit.config.optimizer import OptimizerConfig, spelled_optimizer
from labkit.config.run import RunConfig
from labkit.config.spellings import unknown_setting_error
from labkit.errors import InputError, short, unknown_name_error
from labkit.plurals import counted
from labkit.run_directory import RunDirectory
from labkit.run_directory.directory import CODE_FOLDER
from labkit.run_directory.summary import Described


@dataclass(frozen=True)
class Config:
    """The complete configuration of a run.

    Construction raises InputError for an invalid value or combination of values.
    """

    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    transfer: TransferConfig = dataclasses.field(default_factory=TransferConfig)
    distribution: DistributionConfig = dataclasses.field(default_factory=DistributionConfig)
    run: RunConfig = dataclasses.field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        for name, part in _OWNERS.items():
            if not isinstance(getattr(self, name), part):
                raise InputError(f"{name} is {short(getattr(self, name))}; allowed: a {part.__name__}")
        # Without simulation, the check of several comes after the one for too few GPUs, a clearer error.
        simulates = self.distribution.simulate_missing_gpus
        self.check_replicas((self.distribution.num_gpus if simulates else 1) or 1)
        if self.optimizer.warmup_steps > self.run.train_steps:
            raise InputError(
                f"--warmup-steps is {self.optimizer.warmup_steps}; "
                f"allowed: at most --train-steps, {self.run.train_steps}"
            )
        if self.data.balanced_sampling and self.optimizer.class_weights == "balanced":
            raise InputError(
                "--balanced-sampling is on with --class-weights balanced, which would raise small classes "
                "twice; leave one of them out"
            )
        if self.distribution.gradient_compression != "none" and self.model.precision == "float64":
            raise InputError(
                f"--gradient-compression is {self.distribution.gradient_compression} with --precision "
                "float64, which is there to show the effect of rounding; leave one of them out"
            )

    def check_replicas(self, num_replicas: int) -> None:
        """Raise InputError if ``num_replicas`` can't share a batch equally."""
        ghosts = self.data.ghost_batches
        for name, parts in (("train_batch_size", num_replicas * ghosts), ("eval_batch_size", num_replicas)):
            size = getattr(self.data, name)
            if size % parts:
                info = fields_by_name()[name]
                each = f" of {ghosts} ghost batches" if parts > num_replicas else ""
                out = "; or give --ghost-batches 1" if parts > num_replicas else ""
                near = max(1, round(size / parts)) * parts
                raise InputError(
                    f"{info.flag} is {size} with {counted(num_replicas, 'replica')}{each}; "
                    f"allowed: multiples of {parts}, for example {near}{out}"
                )

    @classmethod
    def from_flat(cls, values: Mapping[str, Any]) -> Self:
        """Return a configuration with these field values; other fields keep their defaults.

        Raises InputError for an unknown name (with what to write instead) or a value that isn't allowed.
        """
        return cls().replace(values)

    def replace(self, values: Mapping[str, Any]) -> Self:
        """Return a copy with new values of the named fields, whichever part holds them."""
        known = fields_by_name()
        _check_mapping(values)
        by_owner: dict[str, dict[str, Any]] = {}
        for name, value in by_field(values, num_gpus=self.distribution.num_gpus).items():
            by_owner.setdefault(known[name].owner, {})[name] = value
        if "model" in by_owner:
            by_owner["model"] = dict(self.model.with_own_depth(by_owner["model"]))
        if "optimizer" in by_owner:
            by_owner["optimizer"] = dict(self.optimizer.with_own_rate(by_owner["optimizer"]))
        owners = {
            owner: dataclasses.replace(getattr(self, owner), **changed) for owner, changed in by_owner.items()
        }
        return dataclasses.replace(self, **owners)

    def with_steps_for(self, examples: int) -> Self:
        """Return this with the steps that ``--epochs`` makes of a number of training examples."""
        run = self.run.with_steps_for(examples, self.data.images_per_step)
        return dataclasses.replace(self, run=run)

    def flat(self) -> dict[str, Any]:
        """Return all fields as one mapping."""
        return {name: getattr(getattr(self, info.owner), name) for name, info in fields_by_name().items()}

    def task_field(self) -> FieldInfo | None:
        """Return the first field that makes this process a task of a cluster; None if there is none."""
        values = self.flat()
        fields = (info for info in fields_by_name().values() if info.role == "task")
        return next((info for info in fields if values[info.name] is not None), None)

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return the configuration nested by owner, ready for ``json.dumps``."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Mapping[str, Any]]) -> Self:
        """Inverse of ``to_json``. Raises InputError for unknown names and bad values.

        Missing values, and a missing part ``transfer``, get their defaults.
        """
        return cls.from_flat(cls.recorded_values(value))

    @staticmethod
    def recorded_values(value: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the values in the JSON of a run, unchecked. Raises InputError for missing parts."""
        _check_mapping(value)
        owners = value.values()
        known = _OWNERS.keys() - {"transfer"} <= value.keys() <= _OWNERS.keys()
        if not known or not all(isinstance(owner, Mapping) for owner in owners):
            raise InputError(f"a configuration of a run has the parts {', '.join(_OWNERS)}, and no others")
        return {name: item for owner in owners for name, item in owner.items()}

    def identity(self) -> dict[str, Any]:
        """Return the fields that determine the training result; a run can't be resumed with other values.

        A file of code is named without its folder: its content decides (``labkit.parts.code``).
        """
        known = fields_by_name()
        return {
            name: known[name].canonical(value) for name, value in self.flat().items() if known[name].identity
        }

    def fingerprint(self, code: str = "") -> str:
        """Return 8 hexadecimal digits of a hash of ``identity()`` and the digest of files of code."""
        given = {name: value for name, value in self.identity().items() if value != _LATER.get(name, ...)}
        text = json.dumps(given, sort_keys=True) + code
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def differences(self, other: "Config") -> list[str]:
        """Return a readable line for each identity field in which ``other`` differs from this one."""
        if not isinstance(other, Config):
            raise InputError(f"other is {short(other)}; allowed: a labkit.Config")
        mine, theirs = self.identity(), other.identity()
        return [
            f"{fields_by_name()[name].flag} is {mine[name]!r} there, {theirs[name]!r} here"
            for name in mine
            if mine[name] != theirs[name]
        ]


def _check_mapping(values: Any) -> None:
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise InputError(f"a configuration is {short(values)}; allowed: a dict of values by name")


# Fields that older versions hadn't, with their defaults: with these, the same command finds the same run.
_LATER: dict[str, Any] = {
    "model_arguments": None,
    "bottleneck_stride": "first",
    "name_map": None,
    "optimizer_arguments": None,
    "loss_arguments": None,
    "class_weights": None,
    "metrics": None,
    "best_by": None,
    "accumulate_steps": 1,
    "ghost_batches": 1,
    "augment": None,
    "balanced_sampling": False,
    "cutmix_alpha": 0.0,
    "random_rotation": 0.0,
    "trivial_augment": False,
    "fold": None,
}

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


def field_aliases() -> dict[str, str]:
    """Return the field's name of each of its names: its own, and those in other programs."""
    return {alias: name for name, info in fields_by_name().items() for alias in (name, *info.aliases)}


def by_field(
    values: Mapping[str, Any], *, beside: Collection[str] = (), num_gpus: int | None = None
) -> dict[str, Any]:
    """Return ``values`` with each alias replaced by its field's name, such as ``lr`` by ``learning_rate``.

    A network's name, such as ``resnet20``, becomes its fields.

    Args:
        values: of fields, unchecked, by their names or aliases.
        beside: further names that are allowed, as they are.
        num_gpus: that of the training, where ``values`` don't give it.

    Raises InputError for an unknown name (with what to write instead), for two names of one field, and for a
    ``batch_size`` with several GPUs, which other programs count for each of them; and as ``with_network``.
    """
    known = fields_by_name()
    aliases = field_aliases()
    given: dict[str, str] = {}
    for name in values:
        field = name if name in beside else aliases.get(name)
        if field is None:
            raise unknown_setting_error("parameter", name, [*beside, *known], aliases)
        if field in given:
            raise InputError(f"{given[field]} and {name} are one setting; leave one of them out")
        given[field] = name
    named = {field: values[name] for field, name in given.items()}
    if "optimizer" in named:
        named["optimizer"] = spelled_optimizer(named["optimizer"])
    size, gpus = plain(named.get("train_batch_size")), plain(named.get("num_gpus", num_gpus))
    alias = given.get("train_batch_size", "train_batch_size")
    if alias != "train_batch_size" and isinstance(size, int) and isinstance(gpus, int) and gpus > 1:
        raise InputError(
            f"{alias} is {size}, which other programs count for each GPU and labkit over all {gpus}; "
            f"write --train-batch-size {size * gpus} for the same steps"
        )
    return with_network(named)


def with_network(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` of fields in which a network's name, such as ``resnet20``, has become its fields.

    A name that stands for two networks, such as ``resnet50``, stays, and ``ModelConfig`` refuses it. Raises
    InputError for one whose name holds what the other values give.
    """
    fields = fields_of_network(values.get("model"))
    other = [name for name, value in fields.items() if plain(values.get(name)) not in (None, value)]
    if twice := [name for name in other if name != "model"]:
        flag = fields_by_name()[twice[0]].flag
        raise InputError(f"--model {values['model']} holds {flag}, too; leave that out")
    return {**values, **fields}


def flags_of(values: Mapping[str, Any]) -> list[str]:
    """Return the arguments of ``labkit train`` that give these fields these values, in the fields' order.

    Raises InputError for an unknown name. The values aren't checked.

    Example::

        flags_of({"model": "vgg", "nesterov": True, "start_from": None})
        # ["--model", "vgg", "--nesterov", "--start-from", "none"]
    """
    values = by_field(values)
    given = [info for name, info in fields_by_name().items() if name in values]
    return [word for info in given for word in info.arguments(values[info.name])]


RECORDED_BY = "recorded_by"  # in the configuration of a run that another program trained


def recorded_by(run: RunDirectory) -> str:
    """Return with what another program recorded a run: ``labkit.start_run``; "" if labkit trained it."""
    try:
        return str(run.read_config().get(RECORDED_BY, ""))
    except InputError:  # whoever needs the configuration says it
        return ""


def recorded_config(run: RunDirectory) -> Config:
    """Return the configuration that a run was started with.

    Raises InputError if it is damaged, and for a run that labkit hasn't trained.
    """
    if by := recorded_by(run):
        raise InputError(
            f"{run.path} was recorded with {by}; labkit has its rows, but neither its network nor its data"
        )
    try:
        config = Config.from_json(run.read_config())
        return config.replace({name: str(run.code_path / value) for name, value in _code_of(config).items()})
    except InputError as error:
        reason = str(error)
        if str(run.path) not in reason:
            reason = f"{run.config_path} is damaged: {reason}"
        raise InputError(f"{reason}; restore the file from a copy") from None


def as_recorded(config: Config) -> Config:
    """Return the configuration as a run records it: files of code are named by where the run keeps them."""
    return config.replace({name: f"{CODE_FOLDER}/{value}" for name, value in _code_of(config).items()})


def _code_of(config: Config) -> dict[str, str]:
    """Return the values that name something in a file of code, without its folder, by field."""
    values, known = config.flat(), fields_by_name()
    return {
        name: info.canonical(values[name])
        for name, info in known.items()
        if info.code_of(values[name]) is not None
    }


def describe(recorded: Mapping[str, Any]) -> Described:
    """Return what a recorded configuration says, for a table of many runs.

    Only values that differ from the defaults are checked, and not how they go together: ``Config.from_json``
    takes several times as long.

    Raises InputError for missing parts, unknown names and values that aren't allowed.
    """
    if RECORDED_BY in recorded:  # by another program, whose settings have names of its own
        own = recorded.get("settings")
        own = own if isinstance(own, dict) else {}
        dataset, model = (str(own[name]) if name in own else None for name in ("dataset", "model"))
        return Described(dataset, model, own, own, str(recorded[RECORDED_BY]))
    defaults, known = _defaults()
    given = Config.recorded_values(recorded)
    settings: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise unknown_name_error("parameter", name, known)
        if value != defaults[name]:
            settings[name] = known[name].check(value)
    values = {**defaults, **given}
    changed = [(name, value) for name, value in settings.items() if known[name].owner == "model"]
    model = _model_name(tuple(changed))
    shown = {name: value for name, value in settings.items() if name not in PLACES}
    return Described(values["dataset"], model, shown, values)


PLACES = ("job_dir", "data_dir")  # where a run and its data lie on one machine says nothing about the run


@functools.cache
def _defaults() -> tuple[dict[str, Any], dict[str, Any]]:
    return Config().flat(), fields_by_name()


@functools.lru_cache(maxsize=1024)
def _model_name(changed: tuple[tuple[str, Any], ...]) -> str:
    return model_name(ModelConfig(**dict(changed)))
