"""A callback that records how it is called; also a file for ``--callbacks``."""

import json

import labkit


class Recorder(labkit.Callback):
    """Writes its calls beside the run directory when the training ends."""

    def __init__(self):
        self.calls = []

    def on_start(self, training):
        self.calls.append(["start", training.step])

    def before_step(self, training, step):
        self.calls.append(["before", step])

    def after_step(self, training, row):
        self.calls.append(["after", row["step"], row["loss"]])
        return {"twice_the_loss": 2 * row["loss"]}

    def after_validation(self, training, row):
        self.calls.append(["validation", row["step"]])
        return {"seen": row["step"]}

    def after_checkpoint(self, training, step, path):
        assert (path / "state.json").is_file()
        self.calls.append(["checkpoint", step])

    def on_end(self, training, state):
        self.calls.append(["end", state])
        with open(f"{training.run.path}.calls.json", "w") as file:
            json.dump(self.calls, file)


callbacks = [Recorder()]
