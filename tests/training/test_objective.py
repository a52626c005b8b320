"""Losses and metrics of Keras and of one's own, and weights of classes."""

import json
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import sklearn.metrics
import tensorflow as tf

import labkit
from labkit.config import Config
from labkit.errors import InputError
from labkit.parts.code import allow, named_object
from labkit.parts.objects import as_files
from labkit.run_directory.metrics import Selection, selection_metric
from labkit.training import scores
from labkit.training.losses import SOFTMAX, softmax_cross_entropy
from labkit.training.objective import loss_of, note_of_negative_loss
from tests import own_nets

OWN = Path(own_nets.__file__)


@pytest.fixture(autouse=True)
def allowed():
    allow({str(OWN): OWN.read_bytes()})


@pytest.fixture
def several(shapes):
    return replace(shapes, multi_label=True)


def of(manifest, **values):
    return loss_of(Config.from_flat(values), manifest)


def batch(count=64, classes=10, several=False):
    random = np.random.default_rng(3)
    logits = random.normal(size=(count, classes)).astype(np.float32)
    labels = random.integers(0, 2, logits.shape) if several else random.integers(0, classes, count)
    return labels.astype(np.int32), logits


def test_losses_of_keras_are_its_own_values(shapes, several):
    labels, logits = batch()
    hot = np.eye(10, dtype=np.float32)[labels]
    focal = keras.losses.CategoricalFocalCrossentropy(gamma=3, from_logits=True, reduction=None)
    ours = of(shapes, loss="focal", loss_arguments="gamma=3").per_example(tf.constant(labels), logits, 0.0)
    np.testing.assert_allclose(ours, focal(hot, logits), rtol=1e-6)
    hinge = keras.losses.CategoricalHinge(reduction=None)
    ours = of(shapes, loss="categorical_hinge").per_example(tf.constant(labels), logits, 0.0)
    np.testing.assert_allclose(ours, hinge(hot, logits), rtol=1e-6)
    labels, logits = batch(several=True)
    focal = keras.losses.BinaryFocalCrossentropy(from_logits=True, reduction=None)
    ours = of(several, loss="focal").per_example(tf.constant(labels), tf.constant(logits), 0.0)
    np.testing.assert_allclose(ours, focal(labels, logits), rtol=1e-5)


@pytest.mark.parametrize("name", ["plain_loss", "TemperedLoss"])
def test_a_loss_of_ones_own_is_the_loss_of_steps_and_evaluations(shapes, name):
    loss = of(shapes, loss=f"{OWN}:{name}", loss_arguments="scale=2.0")
    labels, logits = batch(5000)
    scaled = logits if name == "plain_loss" else 2.0 * logits
    expected = softmax_cross_entropy(tf.constant(labels), tf.constant(scaled)).numpy()
    expected *= 2.0 if name == "plain_loss" else 1.0
    mean, accuracy = loss.step_metrics_of(tf.constant(labels), tf.constant(logits), 0.0, len(labels))
    assert float(mean) == pytest.approx(expected.mean(), rel=1e-5)
    found = loss.scores(labels, logits)
    assert found["loss"] == pytest.approx(expected.mean(), rel=1e-5)
    assert found["accuracy"] == pytest.approx(float(accuracy)) == SOFTMAX.scores(labels, logits)["accuracy"]


def test_a_loss_that_can_take_probabilities_is_told_that_it_gets_logits(shapes):
    labels, logits = batch()
    expected = softmax_cross_entropy(tf.constant(labels), tf.constant(logits))
    for function in (own_nets.of_probabilities, keras.losses.sparse_categorical_crossentropy):
        with as_files({"loss": function}) as flags:
            path = Path(flags["loss"].rpartition(":")[0])
            allow({str(path): path.read_bytes()})
            found = of(shapes, **flags).per_example(tf.constant(labels), tf.constant(logits), 0.0)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_class_weights_are_those_of_scikit_learn_and_count_in_training_alone(shapes):
    labels, logits = batch()
    plain = of(shapes).per_example(tf.constant(labels), tf.constant(logits), 0.0).numpy()
    given = of(shapes, class_weights={"ring": 3, shapes.classes.index("disc"): 0.5})
    weights = np.ones(10)
    weights[[shapes.classes.index("ring"), shapes.classes.index("disc")]] = 3, 0.5
    hot = tf.constant(np.eye(10, dtype=np.float32)[labels])
    for targets in (tf.constant(labels), hot):
        weighted = given.of_training(targets, tf.constant(logits), 0.0)
        np.testing.assert_allclose(weighted, plain * weights[labels], rtol=1e-5)
    assert given.scores(labels, logits) == of(shapes).scores(labels, logits)
    # In shapes all classes have as many images.
    np.testing.assert_allclose(of(shapes, class_weights="balanced").class_weights, np.ones(10))


def test_metrics_are_those_of_scikit_learn(shapes):
    labels, logits = batch(300)
    logits[::7] = 0  # equal values
    found = of(shapes, metrics="auc, f1_macro,balanced_accuracy,auc").scores(labels, logits)
    shares, predicted = scores.softmax(logits), logits.argmax(axis=1)
    assert found["auc"] == pytest.approx(sklearn.metrics.roc_auc_score(labels, shares, multi_class="ovr"))
    assert found["f1_macro"] == pytest.approx(sklearn.metrics.f1_score(labels, predicted, average="macro"))
    balanced = sklearn.metrics.balanced_accuracy_score(labels, predicted)
    assert found["balanced_accuracy"] == pytest.approx(balanced)
    labels, logits[:, 4:] = labels % 4, -100.0  # classes that are neither there nor predicted
    expected = sklearn.metrics.f1_score(labels, logits.argmax(axis=1), average="macro")
    assert scores.macro_f1(labels, logits) == pytest.approx(expected)
    labels, logits = batch(300, several=True)
    assert scores.auc(labels, logits) == pytest.approx(sklearn.metrics.roc_auc_score(labels, logits))


def test_metrics_of_ones_own_and_of_keras(shapes):
    labels, logits = batch(5000)
    found = of(shapes, metrics=f"{OWN}:METRICS").scores(labels, logits)
    assert list(found) == ["loss", "accuracy", "top5_accuracy", "among_two", "top3", "auc"]
    best = np.argsort(-logits, axis=1)
    assert found["among_two"] == pytest.approx((best[:, :2] == labels[:, None]).any(axis=1).mean())
    assert found["top3"] == pytest.approx((best[:, :3] == labels[:, None]).any(axis=1).mean())
    told = of(shapes, metrics=f"{OWN}:of_probabilities").scores(labels, logits)
    assert told["of_probabilities"] == pytest.approx(told["loss"], rel=1e-5)
    both = of(shapes, metrics=f"f1_macro, {OWN}:among_two ,auc").scores(labels, logits)
    assert list(both) == ["loss", "accuracy", "top5_accuracy", "f1_macro", "auc", "among_two"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"loss": f"{OWN}:mean_loss"}, "without a mean over the batch"),
        ({"loss": f"{OWN}:labels_as_loss"}, "no gradient"),
        ({"loss": f"{OWN}:centred_loss"}, "gives two images other losses without their batch"),
        ({"loss": f"{OWN}:counting_loss"}, "or when it is called again"),
        ({"loss": f"{OWN}:branching_loss"}, "failed for labels .*OperatorNotAllowedInGraphError"),
        ({"loss": f"{OWN}:OwnCall"}, "has its own __call__, which labkit doesn't call"),
        ({"loss": f"{OWN}:plain_loss", "loss_arguments": "gamma=1"}, "'gamma'"),
        ({"loss": f"{OWN}:plain_loss", "cutmix_alpha": 1.0}, "plain_loss with mixup or CutMix, .* shares"),
        ({"loss": "focal", "loss_arguments": "from_logits=False"}, "from_logits=True"),
        ({"metrics": f"{OWN}:whole_batches"}, "allowed: a number, or one for each image"),
        ({"metrics": f"{OWN}:OWN_NUMBER"}, "has 3"),
        ({"metrics": f"{OWN}:NoResult"}, r"no_result has no result\(\)"),
        ({"metrics": f"{OWN}:OF_LOGITS"}, "gets probabilities; leave from_logits out"),
        ({"metrics": f"{OWN}:THEIRS"}, "has categorical_accuracy, Keras's function of probabilities"),
        ({"metrics": f"{OWN}:accuracy"}, "a name that labkit's own rows have"),
        ({"metrics": f"{OWN}:f1_micro"}, "a name that labkit's own rows have"),  # would choose checkpoints
        (
            {"metrics": f"{OWN}:FALLS", "best_by": "categorical_crossentropy"},
            "lowest is best.* ends in error",
        ),
        ({"class_weights": {"bird": 2}}, "'bird'"),
        ({"class_weights": {"0": 2, "disc": 3}}, "has '0' and 'disc' for the class 'disc'; give one"),
        ({"best_by": "auc"}, "have: loss, accuracy, top5_accuracy"),
    ],
)
def test_what_gives_no_loss_or_metric_is_refused_in_one_line(shapes, values, words):
    with pytest.raises(InputError, match=words) as caught:
        of(shapes, **values)
    assert "\n" not in str(caught.value)


def test_a_value_for_each_class_is_none_for_each_image(shapes):
    """Also of five classes: with five images to try it on, such a loss was trained with another scale."""
    five = replace(shapes, classes=shapes.classes[:5])
    for values in ({"loss": f"{OWN}:of_each_class"}, {"metrics": f"{OWN}:of_each_class"}):
        with pytest.raises(InputError, match=r"returned.*\[5\]"):
            of(five, **values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"metrics": "auc,accurate"}, "--metrics has 'accurate'"),
        ({"class_weights": "nowhere.json"}, "No such file"),
        ({"class_weights": 3}, "is 3; allowed: balanced, a JSON file, or its text"),
        ({"class_weights": {"disc": -1}}, "none below 0"),
        ({"class_weights": {"disc": 0}}, "one above"),
        ({"loss_arguments": "gamma=1"}, "none but --label-smoothing"),
        ({"loss": "focal", "label_smoothing": 0.1}, "--loss-arguments label_smoothing"),
    ],
)
def test_what_never_fits_is_refused_before_tensorflow(values, words):
    with pytest.raises(InputError, match=words):
        Config.from_flat(values)


def test_a_file_of_class_weights_is_recorded_by_its_content(tmp_path):
    (tmp_path / "weights.json").write_text(json.dumps({"b c": 2, "a": 1.5}))
    config = Config.from_flat({"class_weights": tmp_path / "weights.json"})
    assert config == Config.from_flat({"class_weights": {"a": 1.5, "b c": 2}})


def test_objects_are_the_same_as_flags(tmp_path):
    focal = keras.losses.CategoricalFocalCrossentropy(gamma=1.0, from_logits=True)
    with as_files({"loss": focal, "metrics": [own_nets.among_two, "auc"]}) as flags:
        assert flags["loss"] == "focal" and flags["loss_arguments"]["gamma"] == 1.0
        path, _, name = flags["metrics"].rpartition(":")
        assert name == "METRICS" and "METRICS = [among_two, 'auc']" in Path(path).read_text()
    with as_files({"metrics": [keras.metrics.TopKCategoricalAccuracy(3, name="top3"), "auc"]}) as flags:
        path, _, name = flags["metrics"].rpartition(":")
        allow({path: Path(path).read_bytes()})
        first, auc = named_object("--metrics", f"{path}:{name}")
        assert (type(first).__name__, first.name, first.k, auc) == (
            "TopKCategoricalAccuracy",
            "top3",
            3,
            "auc",
        )
    with as_files({"metrics": [keras.metrics.AUC(multi_label=True)]}) as flags:
        assert "AUC.from_config({" in Path(flags["metrics"].rpartition(":")[0]).read_text()
    with as_files({"metrics": ["TopKCategoricalAccuracy", "auc"]}) as flags:
        path, _, name = flags["metrics"].rpartition(":")
        allow({path: Path(path).read_bytes()})
        first, auc = named_object("--metrics", f"{path}:{name}")
        assert (first.k, auc) == (5, "auc")
    with as_files({"loss": keras.losses.Huber(delta=0.5)}) as flags:
        assert (flags["loss"], flags["loss_arguments"]) == ("huber", {"delta": 0.5})
    plain = keras.losses.CategoricalCrossentropy(from_logits=True)
    with as_files({"loss": plain, "label_smoothing": 0.1}) as flags:
        assert flags == {"loss": "softmax", "label_smoothing": 0.1}
    without_one = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=1)
    with as_files({"loss": own_nets.TemperedLoss()}) as flags:
        assert flags == {"loss": f"{OWN}:TemperedLoss", "loss_arguments": {}}
    no_config = own_nets.TemperedLoss(2.0)  # its get_config has no scale, so a run would have trained with 1
    probabilities = keras.losses.CategoricalFocalCrossentropy()
    for loss in (probabilities, keras.losses.Poisson(), without_one, 3, no_config):
        with pytest.raises(InputError, match="^loss is"), as_files({"loss": loss}):
            pass
    for twice in ({"loss_arguments": {"gamma": 3}}, {"loss_arguments": "gamma=3"}):
        with pytest.raises(InputError, match="^loss_arguments is given"), as_files({"loss": focal, **twice}):
            pass


def test_losses_may_have_the_names_of_keras():
    for name, own in (
        ("CategoricalFocalCrossentropy", "focal"),
        ("sparse_categorical_crossentropy", "softmax"),
        ("mean_absolute_error", "mae"),
        ("Huber", "huber"),
    ):
        assert Config.from_flat({"loss": name}).optimizer.loss == own
    with pytest.raises(
        InputError, match="allowed: one of softmax, sigmoid"
    ):  # Keras's is a mean over classes
        Config.from_flat({"loss": "binary_crossentropy"})


@pytest.mark.parametrize(("name", "lines"), [("negative_loss", 1), ("plain_loss", 0)])
def test_a_loss_below_0_is_said_at_the_start(shapes, name, lines):
    config = Config.from_flat({"loss": f"{OWN}:{name}"})
    assert len(note_of_negative_loss(config, of(shapes, loss=f"{OWN}:{name}"), shapes)) == lines


def test_the_best_checkpoint_is_chosen_by_the_named_metric():
    selection = Selection()
    rows = [(1, 0.9, 2.0), (2, 0.8, 1.0), (3, 0.95, 1.5)]
    for step, accuracy, loss in rows:
        selection.add({"step": step, "accuracy": accuracy, "loss": loss, "best_by": "loss"})
    assert selection.step == 2
    assert selection_metric({"accuracy": 0.5, "best_by": "gone"}) == -np.inf


def test_an_assertion_in_a_compiled_step_says_what_and_where(shapes, tmp_path):
    """It holds for the few images on which a loss is tried before the training, not for a batch."""
    settings = {"preset": "smoke", "evaluate_test": False, "job_dir": tmp_path / "run"}
    with pytest.raises(tf.errors.InvalidArgumentError):
        labkit.train(loss=own_nets.loss_that_asserts, **settings)
    told = labkit.load_run(tmp_path / "run").status.message
    before, _, _ = OWN.read_text().partition('message="too many images"')
    assert "assertion failed: [too many images]" in told
    assert told.endswith(f"({OWN}, line {before.count(chr(10)) + 1})")


def test_steps_that_run_eagerly_show_their_values_to_ones_own_code(shapes, tmp_path):
    """So a breakpoint in a loss or a model is reached in each step."""
    settings = {"preset": "smoke", "evaluate_test": False, "validate_every_steps": 0, "train_batch_size": 16}
    tf.config.run_functions_eagerly(True)
    try:
        labkit.train(loss=own_nets.loss_that_looks, train_steps=3, job_dir=tmp_path / "run", **settings)
    finally:
        tf.config.run_functions_eagerly(False)
    assert named_object("--loss", f"{OWN}:SEEN").count(16) == 3
