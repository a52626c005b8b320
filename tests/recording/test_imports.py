"""``labkit import``: logs of other programs become runs with every number; damage is counted."""

import json

import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.util.tensor_util import make_tensor_proto

import labkit
from labkit.commands import main as cli
from labkit.data.tfrecord import _frames
from tests.commands.in_process import refused


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def scalar(step: int, /, **values) -> bytes:
    shown = [
        Summary.Value(tag=tag.replace("__", "/"), tensor=value)
        if isinstance(value, TensorProto)
        else Summary.Value(tag=tag.replace("__", "/"), simple_value=value)
        for tag, value in values.items()
    ]
    return Event(step=step, wall_time=1.7e9 + step, summary=Summary(value=shown)).SerializeToString()


def write_events(folder, records: list[bytes], cut: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = _frames(records)
    (folder / "events.out.tfevents.1.host").write_bytes(content[: len(content) - cut])


def test_a_csv_file_of_keras(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("epoch,accuracy,loss,val_accuracy,val_loss\n0,0.1,2.5,0.2,2.0\n1,0.5,nan,0.4,1.0\n")
    assert cli.main(["import", "csv", str(path), "--step", "epoch"]) == 0
    run = labkit.load_run("log")
    assert run.state == "finished"
    assert run.metrics()["accuracy"].tolist() == [0.1, 0.5]
    assert np.isnan(run.metrics()["loss"][1])
    assert run.status.message == ""  # NaN is a value, and nothing is left out
    assert run.metrics("validation")["loss"].tolist() == [2.0, 1.0]
    assert cli.main(["show", "log"]) == 0


@pytest.mark.parametrize("name", ["step", "resumed_at_step", "not_finite"])
def test_a_column_by_a_name_that_rows_need_is_left_out_and_told(tmp_path, name):
    path = tmp_path / "log.csv"  # Lightning's CSVLogger writes epoch and step
    path.write_text(f"epoch,{name},loss\n1,49,2.5\n2,99,2.0\n")
    assert cli.main(["import", "csv", str(path), "--step", "epoch"]) == 0
    run = labkit.load_run("log")
    assert run.metrics()["step"].tolist() == [1, 2] and run.metrics()["loss"].tolist() == [2.5, 2.0]
    assert run.status.message == f"left out: 2 × value of {name}, a name that rows need"
    write_events(tmp_path / "logs", [scalar(5, **{name: 3.0, "loss": 1.5})])
    assert cli.main(["import", "tensorboard", str(tmp_path / "logs")]) == 0
    assert labkit.load_run("logs").metrics()["step"].tolist() == [5]


def test_accuracies_in_percent_become_fractions_and_nothing_is_called_damaged(tmp_path, capsys):
    path = tmp_path / "log.csv"
    path.write_text("step,accuracy,val_accuracy\n1,55.5,44\n2,1,0.5\n3,400,-1\n")
    assert cli.main(["import", "csv", str(path)]) == 0
    told = "left out: 2 × accuracy that is neither 0 to 1 nor 0 to 100; "
    told += "accuracies of train, validation are in percent: divided by 100"
    assert told in capsys.readouterr().out
    run = labkit.load_run("log")
    assert run.status.message == told
    assert run.metrics()["accuracy"][:2].tolist() == [0.555, 0.01]
    assert run.metrics("validation")["accuracy"][:2].tolist() == [0.44, 0.005]
    assert cli.main(["show", "log", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["damage"] == []


def test_a_tag_that_tells_its_split_is_of_that_one_in_any_folder(tmp_path):
    write_events(tmp_path / "logs" / "train", [scalar(1, Loss__train=1.0, Loss__val=2.0, speed=3.0)])
    write_events(tmp_path / "logs" / "val", [scalar(1, speed=4.0)])
    assert cli.main(["import", "tensorboard", str(tmp_path / "logs")]) == 0
    run = labkit.load_run("logs")
    assert [run.metrics(split)["loss"][0] for split in ("train", "validation")] == [1.0, 2.0]
    assert [run.metrics(split)["speed"][0] for split in ("train", "validation")] == [3.0, 4.0]


def test_one_split_may_be_in_percent_alone(tmp_path, capsys):
    path = tmp_path / "log.csv"
    path.write_text("step,accuracy,val_accuracy,test_accuracy\n1,0.5,55,1.2\n2,nan,nan,1\n3,1,60,1\n")
    assert cli.main(["import", "csv", str(path)]) == 0
    assert "accuracies of test, validation are in percent" in capsys.readouterr().out
    run = labkit.load_run("log")
    assert run.metrics()["accuracy"][[0, 2]].tolist() == [0.5, 1.0]
    assert run.metrics("validation")["accuracy"][[0, 2]].tolist() == [0.55, 0.6]
    assert run.evaluations("test")["accuracy"].tolist() == [0.012, 0.01, 0.01]


def test_semicolons_spaces_and_repeated_steps(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("step; loss ;val loss;note\n1;2.5;2;a\n2;2;1;\n2;1.5;1;\n")
    assert cli.main(["import", "csv", str(path)]) == 0
    run = labkit.load_run("log")
    assert run.metrics()["loss"].tolist() == [2.5, 1.5]
    assert run.metrics("validation")["loss"].tolist() == [2.0, 1.0]
    assert run.status.message == "left out: 1 × earlier value of a step, 1 × text in note, at first 'a'"


def test_cells_with_a_decimal_comma_are_named(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("step;loss\n1;3\n2;2,5\n3;1.234,5\n4;-\n")
    assert cli.main(["import", "csv", str(path)]) == 0
    told = "1 × text in loss, at first '-', 2 × text in loss, at first '2,5': write a point, no comma"
    assert labkit.load_run("log").status.message == f"left out: {told}"


def test_a_csv_file_of_labkit_comes_back(tmp_path):
    with labkit.start_run("first") as made:
        for step in range(1, 6):
            made.log(step, loss=1 / step)
        made.log(5, split="validation", loss=0.5, accuracy=0.25)
    path = tmp_path / "first.csv"
    assert cli.main(["metrics", "first", "--output", str(path)]) == 0
    assert cli.main(["import", "csv", str(path), "--name", "again"]) == 0
    for split in ("train", "validation"):
        before, after = labkit.load_run("first").metrics(split), labkit.load_run("again").metrics(split)
        assert before["loss"].tolist() == after["loss"].tolist()
        assert before["step"].tolist() == after["step"].tolist()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loss,accuracy\n1,2\n", ["no column 'step'", "loss, accuracy", "--step"]),
        ("step,loss\n1.5,2\n", ["line 2", "step is '1.5'", "whole number"]),
        ("step,loss\nx,2\n", ["line 2", "step is 'x'"]),
        ("step,split,loss\n1,../x,2\n", ["line 2", "split is '../x'", "a name"]),
        ("step,loss\n1,high\n", ["no row with a number", "text in loss, at first 'high'"]),
        ("step;a;b\n1;2,5;2,6\n", ["text in a, at first '2,5': write a point, no comma"]),
        ("", ["no column 'step'", "none"]),
        ("step,größe\n1,2\n".encode("latin-1"), ["bad.csv isn't UTF-8; save it as UTF-8"]),
        ("step,loss\n1,2\n".encode("utf-16"), ["bad.csv isn't UTF-8; save it as UTF-8"]),
        ("step,loss\n1,0,5\n", ["line 2", "more cells", "2 of line 1", "with a point, no comma"]),
        ("step,loss,loss\n1,2,3\n", ["names a column twice"]),
        ("step,loss,Loss\n1,2,3\n", ["names a column twice"]),
    ],
)
def test_what_is_no_table_of_steps_is_refused(tmp_path, home, text, words):
    path = tmp_path / "bad.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    line = refused("import", "csv", path)
    assert all(word in line for word in words), line
    assert not (home / "runs").exists()


def test_two_columns_of_one_split_stay_two_metrics(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("step,train_loss,loss,val_loss\n1,3.0,9.0,5.0\n2,2.0,8.0,4.0\n")
    assert cli.main(["import", "csv", str(path)]) == 0
    run = labkit.load_run("log")
    assert run.metrics()["loss"].tolist() == [9, 8] and run.metrics()["train_loss"].tolist() == [3, 2]
    assert run.metrics("validation")["loss"].tolist() == [5, 4]


def test_event_files_as_keras_and_pytorch_write_them(tmp_path):
    logs = tmp_path / "logs"
    write_events(
        logs / "fit" / "train", [scalar(s, epoch_loss=make_tensor_proto(np.float32(9 - s))) for s in range(3)]
    )
    write_events(
        logs / "fit" / "validation",
        [scalar(s, epoch_loss=make_tensor_proto(np.float32(5))) for s in range(3)],
    )
    torch = [scalar(s, Loss__train=100.0 if s == 7 else 1.0, Accuracy__val=s / 10) for s in range(10)]
    write_events(logs / "torch", torch)
    assert cli.main(["import", "tensorboard", str(logs)]) == 0
    fit, torch = labkit.load_run("logs-fit"), labkit.load_run("logs-torch")
    assert fit.metrics()["loss"].tolist() == [9, 8, 7]
    assert fit.metrics("validation")["loss"].tolist() == [5, 5, 5]
    assert torch.metrics()["loss"].max() == 100  # no point is left out
    assert torch.metrics("validation")["accuracy"] == pytest.approx(np.arange(10) / 10)
    assert torch.metrics()["wall_time"].tolist() == [1.7e9 + s for s in range(10)]


def test_damage_and_other_values_are_left_out_and_counted(tmp_path):
    picture = Summary.Value(tag="x", image=Summary.Image(height=1, width=1, encoded_image_string=b"x"))
    records = [scalar(s, loss=float(s)) for s in range(20)]
    records.append(Event(step=3, summary=Summary(value=[picture])).SerializeToString())
    records.append(scalar(-1, loss=1.0))
    write_events(tmp_path / "logs", [*records, scalar(21, loss=1.0)], cut=3)
    file = next((tmp_path / "logs").iterdir())
    content = bytearray(file.read_bytes())
    content[len(_frames(records[:5])) + 20] ^= 0xFF  # within the sixth event
    file.write_bytes(content)
    assert cli.main(["import", "tensorboard", str(tmp_path / "logs")]) == 0
    run = labkit.load_run("logs")
    assert run.metrics()["step"].tolist() == [s for s in range(20) if s != 5]
    assert run.status.message == (
        "left out: 1 × damaged event, 1 × half event, 1 × other value, 1 × value of a step that is none"
    )


def test_a_value_that_a_step_has_twice_is_none_that_is_left_out(tmp_path):
    """As in the log of PyTorch Lightning, which has a line for the training and one for the validation."""
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,train_loss,val_loss\n0,9,2.0,\n0,9,,1.5\n1,19,1.0,\n1,19,,0.5\n")
    assert cli.main(["import", "csv", str(path), "--name", "lightning"]) == 0
    run = labkit.load_run("lightning")
    assert run.metrics("validation")["loss"].tolist() == [1.5, 0.5]
    assert run.metrics()["epoch"].tolist() == [0, 1]
    assert run.status.message == ""


def test_a_run_that_is_there_stays(tmp_path):
    write_events(tmp_path / "logs", [scalar(1, loss=1.0)])
    assert cli.main(["import", "tensorboard", str(tmp_path / "logs")]) == 0
    assert "holds a run" in refused("import", "tensorboard", tmp_path / "logs")
    assert cli.main(["import", "tensorboard", str(tmp_path / "logs"), "--overwrite"]) == 0
    assert "no event file" in refused("import", "tensorboard", tmp_path / "home")
    assert "not there" in refused("import", "tensorboard", tmp_path / "nowhere")


def test_where_keras_wrote_the_training_by_epochs_alone_validation_has_epochs_too(tmp_path):
    """As its callback does by default: update_freq="epoch"."""
    epochs = [scalar(epoch, epoch_loss=2.0 - epoch) for epoch in range(2)]
    write_events(tmp_path / "tb" / "train", epochs)
    seen = [scalar(step, evaluation_loss_vs_iterations=1.5) for step in (50, 100)]
    write_events(tmp_path / "tb" / "validation", [*seen, *epochs])
    assert cli.main(["import", "tensorboard", str(tmp_path / "tb")]) == 0
    run = labkit.load_run("tb")
    for split in ("train", "validation"):
        assert run.metrics(split)["step"].tolist() == [0, 1]
        assert run.metrics(split)["loss"].tolist() == [2, 1]
    assert run.status.message == "left out: 2 × value of a step beside those of epochs"


def test_validation_is_found_in_the_folder_of_the_training_as_keras_wrote_it_before_2(tmp_path):
    names = {
        "batch_loss": 3.0,
        "batch_acc": 0.1,
        "epoch_loss": 2.0,
        "epoch_val_loss": 1.5,
        "epoch_val_acc": 0.5,
    }
    write_events(tmp_path / "tb", [scalar(step, **names) for step in range(2)])
    assert cli.main(["import", "tensorboard", str(tmp_path / "tb")]) == 0
    run = labkit.load_run("tb")
    assert run.metrics()["loss"].tolist() == [2, 2]
    assert run.metrics("validation")["loss"].tolist() == [1.5, 1.5]
    assert run.metrics("validation")["acc"].tolist() == [0.5, 0.5]
    assert run.status.message == "left out: 4 × value of a step beside those of epochs"


def test_a_damaged_length_is_told_as_damage_and_a_link_that_leads_away_is_not_read(tmp_path):
    write_events(tmp_path / "logs", [scalar(s, loss=1.0) for s in range(9)])
    file = next((tmp_path / "logs").iterdir())
    content = bytearray(file.read_bytes())
    content[len(_frames([scalar(s, loss=1.0) for s in range(5)])) + 6] = 1
    file.write_bytes(content)
    write_events(tmp_path / "elsewhere", [scalar(100, loss=1.0)])
    (tmp_path / "logs" / "tfevents").symlink_to(next((tmp_path / "elsewhere").iterdir()))
    assert cli.main(["import", "tensorboard", str(tmp_path / "logs")]) == 0
    run = labkit.load_run("logs")
    assert run.metrics()["step"].tolist() == list(range(5))
    assert run.status.message == "left out: 1 × damaged event with all that follows"


def test_what_keras_names_by_batches_and_epochs_is_a_loss_by_steps(tmp_path):
    of_epoch = scalar(1, epoch_loss=9.0)
    steps = [scalar(step, batch_loss=1 / step) for step in (10, 20)]
    write_events(tmp_path / "tb" / "train", [*steps, of_epoch, scalar(0, epoch_learning_rate=0.1)])
    seen = scalar(20, evaluation_loss_vs_iterations=2.0)
    write_events(tmp_path / "tb" / "validation", [seen, of_epoch, scalar(1, epoch_accuracy=0.5)])
    assert cli.main(["import", "tensorboard", str(tmp_path / "tb")]) == 0
    run = labkit.load_run("tb")
    assert run.metrics()["loss"].tolist() == pytest.approx([0.1, 0.05])
    assert run.metrics("validation")["loss"].tolist() == [2.0]
    assert run.metrics()["step"].tolist() == [10, 20]
    assert "4 × value of an epoch beside those of steps" in run.status.message
