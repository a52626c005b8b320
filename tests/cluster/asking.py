"""For --callbacks: records its calls, and asks for a validation after step 25."""

from tests.training.recorder import Recorder


class Asking(Recorder):
    def after_step(self, training, row):
        if row["step"] == 25:
            training.request_validation()
        return super().after_step(training, row)


callbacks = [Asking()]
