"""``labkit.train``, ``labkit.evaluate``, ``labkit.prepare_data``: the commands as functions."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from labkit.config import Config
from labkit.config.fields import argument, has_type, plain
from labkit.data.manifest import Manifest
from labkit.data.recipe import requested_config
from labkit.errors import InputError, short
from labkit.parts.code import note_of_code
from labkit.parts.objects import as_files
from labkit.run import Run, checkpoint_name, load_run, tensorflow_left_as_it_was
from labkit.run_directory import RunDirectory

if TYPE_CHECKING:
    from labkit.callbacks.callback import Callback
    from labkit.data.request import PrepareResult
    from labkit.experiments.range_test import RangeTest


def train(
    config: Config | None = None,
    *,
    preset: str | None = None,
    overwrite: bool = False,
    accept_changed_code: bool = False,
    callbacks: "Sequence[Callback] | str | os.PathLike[str] | None" = None,
    **flags: Any,
) -> Run:
    """Train a run to its end and return it; an interrupted run continues from its last checkpoint.

    The same call finds the same run again: without ``job_dir`` the directory's name follows from the
    configuration. A run that is finished is returned at once.

    Args:
        config: where to start from; None: ``preset``, or what ``labkit train`` takes without one.
        preset: a named set of values, as with ``labkit train --preset``; not together with ``config``.
        overwrite: delete the run that is in the directory and start anew.
        accept_changed_code: continue a run though a file of your own code has changed since; the run keeps
            the old file, too.
        callbacks: objects of classes derived from ``labkit.Callback``, called during the training; or the
            path of a Python file that defines such a list, or ``FILE.py:NAME``, as with ``--callbacks``.
        **flags: any flag of ``labkit train`` by its name, such as ``num_layers=20`` for ``--num-layers 20``.
            They take precedence over ``config`` and ``preset``. ``model`` may also be a Keras model, or a
            function ``(input_shape, num_classes)`` that returns one; ``optimizer`` a Keras optimizer, whose
            learning rate is then kept unless a schedule is given; ``loss`` a function (labels, logits) or a
            Keras loss; ``metrics`` a list; ``augment`` a function (images, seeds); ``model_arguments`` and
            the like dicts.

    Returns the run. Its ``state`` is ``finished``, ``interrupted`` (Ctrl-C: saved, the same call continues)
    or ``failed`` (the loss became NaN, or a callback failed; ``run.status.message`` says which and when).

    Raises InputError, before anything is written, for an unknown name (with the nearest one) and for a value
    that isn't allowed.

    Example::

        run = labkit.train(preset="smoke", train_steps=50)
        run.metrics("test")["accuracy"]
    """
    from labkit.experiments.batch_size import with_measured
    from labkit.training.plan import plan_training
    from labkit.training.train import train as train_as_planned

    overwrite = argument("overwrite", overwrite, bool)
    accept_changed_code = argument("accept_changed_code", accept_changed_code, bool)
    if isinstance(callbacks, str | os.PathLike):
        flags["callbacks"], callbacks = callbacks, None
    with tensorflow_left_as_it_was(), as_files(flags) as given:
        request = functools.partial(_configuration, config, preset)
        configuration = with_measured(request, given, overwrite=overwrite)
        plan = plan_training(
            configuration,
            overwrite=overwrite,
            accept_changed_code=accept_changed_code,
            callbacks=() if callbacks is None else callbacks,
        )
        if plan.run_state != "finished":
            print(plan.data_note)
        result = train_as_planned(plan)
    if not result.did_work:
        print(result.message)
    return Run(result.run.path)


def _configuration(
    config: Config | None,
    preset: str | None,
    flags: Mapping[str, Any],
    announce: Callable[[str], None] = print,
) -> Config:
    if isinstance(config, str):
        text = short(config)[:60]
        raise InputError(f"config is {text}; for a preset write preset={text}, for a run job_dir={text}")
    if config is not None and not isinstance(config, Config):
        raise InputError(
            f"config is {type(config).__name__}; allowed: a labkit.Config, or flags by name, **values"
        )
    if config is not None and preset is not None:
        raise InputError(f"preset is {short(preset)} beside a configuration; give one of the two")
    if config is not None:
        return config.replace(flags)
    return requested_config(preset, flags, announce=announce)


def find_learning_rate(
    config: Config | None = None, *, preset: str | None = None, **flags: Any
) -> "RangeTest":
    """Find a learning rate for a training: raise it over 100 steps, each with its own batch, and look.

    The rate grows from 1e-5 to 100, or until the loss explodes. The rate at which the smoothed loss falls
    fastest is suggested (Smith, 2017). No run is written.

    Args:
        config, preset, flags: what to train, as with ``labkit.train``.

    Returns ``rates`` and ``losses``, float64 [steps], ``smoothed``, ``suggestion`` (None where the loss
    doesn't fall) and its ``reason``; ``labkit.figures.range_test`` draws it.

    Raises InputError, before anything is computed, as ``labkit.train`` does.
    """
    from labkit.experiments.batch_size import with_measured
    from labkit.experiments.range_test import range_test

    with tensorflow_left_as_it_was(), as_files(flags) as given:
        return range_test(with_measured(functools.partial(_configuration, config, preset), given))


def evaluate(
    run: "str | os.PathLike[str] | Run",
    *,
    split: str = "test",
    checkpoint: str | int = "best",
    data_dir: str | os.PathLike[str] | None = None,
    eval_batch_size: int | None = None,
    num_intra_threads: int | None = None,
    test_time_augmentation: Literal["none", "mirror", "mirror_and_shift"] | None = None,
) -> dict[str, Any]:
    """Evaluate a checkpoint of a run on every example of a split, and keep its predictions with the run.

    Args:
        run: A run, its directory, or its name as ``labkit runs`` lists it.
        split: Examples to evaluate: ``test``, ``validation`` or ``train``.
        checkpoint: Checkpoint to evaluate: ``best`` (on validation; the newest where nothing was
            validated), ``last``, or a step.
        data_dir: Folder of prepared data sets. Default: the run's.
        eval_batch_size: Examples in a step. Default: the run's.
        num_intra_threads: Threads within one operation. 0 lets TensorFlow choose. Default: the run's, or
            those of this process where TensorFlow is already running.
        test_time_augmentation: Averages the predictions for several views of each image, beside the plain
            result. Default: the run's.

    Returns ``split``, ``examples``, ``checkpoint_step``, ``loss`` (mean, in nats), ``accuracy`` (0 to 1), the
    other metrics of the run's loss, ``classes``, and ``per_class``, a list with one mapping for each class.
    The images and probabilities are in ``load_run(run).predictions(split, checkpoint_step)`` afterwards.

    Raises InputError where the run, the checkpoint or the data set is missing, or a value isn't allowed.
    """
    found = run if isinstance(run, Run) else load_run(run)
    split, checkpoint = argument("split", split, str), checkpoint_name(checkpoint)
    folder = argument("data_dir", data_dir, os.PathLike, optional=True)
    from labkit.training.plan import plan_evaluation
    from labkit.training.train import evaluate as evaluate_as_planned

    with tensorflow_left_as_it_was():
        plan = plan_evaluation(
            RunDirectory(found.path),
            split,
            data_dir=folder,
            eval_batch_size=eval_batch_size,
            num_intra_threads=num_intra_threads,
            test_time_augmentation=test_time_augmentation,
            checkpoint=checkpoint,
        )
        if plan.data_note:
            print(plan.data_note)
        metrics = evaluate_as_planned(plan, split, checkpoint)
    if note := note_of_code(plan.run, metrics["checkpoint_step"]):
        print(note)
    return metrics


def prepare_data(
    dataset: str | None = None,
    *,
    train: Any = None,
    validation: Any = None,
    test: Any = None,
    class_names: Sequence[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    images: str | os.PathLike[str] | None = None,
    npz: str | os.PathLike[str] | None = None,
    tfrecords: str | os.PathLike[str] | None = None,
    name: str | None = None,
    image_size: int | None = None,
    resize: str | None = None,
    skip_damaged: bool = False,
    archive: str | os.PathLike[str] | None = None,
    validation_size: int | None = None,
    classes: Sequence[str | int] | None = None,
    train_examples: int | None = None,
    url: str | None = None,
) -> Manifest:
    """Prepare a data set for training: get the images, check them, write TFRecords. Prints what it does.

    A second call checks the files and writes nothing.

    Args:
        dataset: Data set to prepare: ``cifar10``, ``cifar100``, ``cifar100_coarse`` (20 groups of classes),
            ``mnist``, ``fashion_mnist``, ``svhn``; ``shapes``, ``shapes_multilabel`` or ``shapes_size``,
            which labkit draws (with one label, several labels, and a number for each image); or images of
            your own that were prepared before. Default: ``cifar10``, or what ``--images``, ``--npz`` or
            ``--tfrecords`` holds.
        train: examples of your own, of which the data set ``dataset`` is made: a pair of arrays (images,
            labels), a dict of arrays with ``image``, ``label`` and columns of what else is known of each
            image (texts, numbers or dates, for ``labkit evaluate --by``), or what gives one example after the
            other. Images are uint8, or floats from 0 to 1 or from 0 to 255, [n, height, width] or with 1
            or 3 channels in a fourth dimension. Labels are whole numbers from 0, [n], or zeros and ones,
            [n, classes]: with several ones in a row, an image has several labels. Examples one after the
            other come from an iterable, a sequence, a ``tf.data.Dataset``, a data set of PyTorch or
            Hugging Face, or a function that returns one of these: pairs (image, label), or dicts with
            ``image`` or ``img`` and ``label``, ``labels`` or ``fine_label``, whose other entries become
            columns. An image is a picture of Pillow or an array.
        validation, test: examples for these splits, given in the same way. Default: a tenth of ``train`` for
            each.
        class_names: Names of the classes of arrays or examples, in the order of the labels, on the command
            line separated by commas. Default: those that the examples have (``classes`` of PyTorch,
            ``features`` of Hugging Face), as prepared before, else the numbers.
        data_dir: Folder of prepared data sets. Default: ``<home>/data``.
        images: Prepares images of your own: a folder with a folder for each class (or ``train/``,
            ``validation/`` and ``test/`` with such folders), or a CSV file with the columns path,label, or
            with numbers in place of the label, such as path,age.
        npz: Prepares the arrays of an .npz file, such as x_train, y_train, x_test and y_test, or train_images
            and train_labels.
        tfrecords: Prepares the TFRecords that cifar10_estimator's script of 2017 wrote: the folder with
            train.tfrecords, validation.tfrecords and eval.tfrecords. Their split is kept.
        name: Name of the data set made from ``--images``, ``--npz`` or ``--tfrecords``, for ``--dataset``.
            Default: the name of the folder or file.
        image_size: Side of the images in pixels, 8 to 1024; up to 64 they are stored as pixels, above as
            JPEG. Default: that of the files if all are equal squares of up to 64, otherwise 64, or less where
            they are smaller.
        resize: What happens to images that are not square: ``crop`` keeps the centre, ``letterbox`` keeps all
            of them between black bars. Default: as prepared before, else ``crop``.
        skip_damaged: Leaves out files that cannot be read as images, and lists them in the manifest. Without
            it they are an error.
        archive: Reads cifar-10-python.tar.gz, cifar-10-binary.tar.gz or an extracted folder instead of
            downloading CIFAR-10; the same for CIFAR-100. For MNIST and Fashion-MNIST it is the .npz file or
            the folder of the four files, for SVHN the folder of the two files.
        validation_size: Training examples to hold out for validation. Default: as prepared before, else a
            tenth (5000 of CIFAR-10).
        classes: Keeps only these classes, in this order: names or numbers, on the command line separated by
            commas. Needs ``--data-dir`` or a source of your own; folders of ``--images`` that are named here
            are classes, whatever they are called. Default: as prepared before, else all.
        train_examples: Keeps only this many training examples, with the classes in proportion. Needs
            ``--data-dir``. Default: as prepared before, else all.
        url: Downloads from this address instead of the published one.

    Returns what was prepared: ``directory``, ``classes``, ``image_shape``, and ``splits`` with the number of
    examples of each.

    Raises InputError for a value that isn't allowed, and where the images can't be had or written.
    """
    from labkit.data.prepare import prepare

    given = {"train": train, "validation": validation, "test": test}
    examples = {split: part for split, part in given.items() if part is not None}
    if examples and train is None:
        raise InputError(f"{next(iter(examples))} is given without train; give examples to train on, too")
    show = _shown_once()
    result = prepare(
        argument("dataset", dataset, str, optional=True),
        argument("data_dir", data_dir, os.PathLike, optional=True),
        archive=argument("archive", archive, os.PathLike, optional=True),
        validation_size=argument("validation_size", validation_size, int, optional=True),
        classes=None if classes is None else _class_names(classes),
        train_examples=argument("train_examples", train_examples, int, optional=True),
        url=argument("url", url, str, optional=True),
        progress=show,
        examples=examples or None,
        class_names=None if class_names is None else _class_names(class_names, "class_names"),
        images=argument("images", images, os.PathLike, optional=True),
        npz=argument("npz", npz, os.PathLike, optional=True),
        tfrecords=argument("tfrecords", tfrecords, os.PathLike, optional=True),
        name=argument("name", name, str, optional=True),
        image_size=argument("image_size", image_size, int, optional=True),
        resize=argument("resize", resize, str, optional=True),
        skip_damaged=argument("skip_damaged", skip_damaged, bool),
    )
    return _told(result, show)


def correct_data(
    dataset: str,
    *,
    name: str,
    marks: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> Manifest:
    """Make a data set of another one and of what people marked in it: right labels, and images left out.

    The other images keep their pixels, their order and their splits. The data set that is corrected stays as
    it is. A second call with the same marks checks the files and writes nothing.

    Args:
        dataset: Data set to correct, as ``labkit data list`` names it.
        name: Name of the new data set, for ``--dataset``.
        marks: File of marks. Default: those made in the dashboard, in ``NAME.marks.json`` beside the data
            set's folder.
        data_dir: Folder of prepared data sets, of both. Default: ``<home>/data``.

    Returns what was prepared, as :func:`prepare_data` does. Its ``source`` says what was changed.

    Raises InputError where nothing is marked, for marks of other data, for rows and classes that aren't
    there, where a split or a class would be left empty, and for the name of another data set.
    """
    from labkit.data.prepare import correct

    show = _shown_once()
    result = correct(
        argument("dataset", dataset, str),
        argument("name", name, str),
        argument("marks", marks, os.PathLike, optional=True),
        argument("data_dir", data_dir, os.PathLike, optional=True),
        progress=show,
    )
    return _told(result, show)


def _shown_once() -> Callable[[str], None]:
    """Return what prints each line the first time that it is said."""
    shown: list[str] = []

    def show(line: str) -> None:
        if line not in shown:
            shown.append(line)
            print(line, flush=True)

    return show


def _told(result: "PrepareResult", show: Callable[[str], None]) -> Manifest:
    for message in result.messages:
        show(message)
    if not result.did_work:
        show("every shard verified; nothing left to do")
    return result.manifest


def _class_names(classes: Any, argument: str = "classes") -> list[str]:
    names = classes.tolist() if hasattr(classes, "tolist") else classes  # an array's
    names = [plain(name) for name in names] if isinstance(names, list | tuple) else []
    if not names or not all(has_type(name, int) or isinstance(name, str) for name in names):
        raise InputError(f"{argument} is {short(classes)}; allowed: a list of names or numbers")
    return [str(name).strip() for name in names]
