"""``PredictionExplorer``: the predictions of a run, the most confident mistakes first."""

import os
import shlex
from functools import cached_property
from typing import TYPE_CHECKING, Any

from labkit.analysis.predictions import Predictions, predictions_of_run, tested_split
from labkit.config.config import recorded_config
from labkit.errors import InputError
from labkit.figures import predictions as plots
from labkit.figures.widgets import live, run_directory_of, show
from labkit.run_directory import RunDirectory
from labkit.run_directory.checkpoints import checkpoint_steps

if TYPE_CHECKING:
    from labkit.analysis.network import Classifier

PAGE_SIZE = 16
ANY = "any class"


class PredictionExplorer:
    """Shows the most confident mistakes and, in JupyterLab, controls to look at any prediction.

    The controls choose the true and the predicted class, mistakes or all, a page, and one image, whose
    probabilities are drawn. With a run, a slider covers parts of the image with a square and shows how much
    the probability of the prediction falls; for this, the run's network is loaded when it is first needed.

    Args:
        run: a ``labkit.Run``, a run directory, a path or a name; or predictions alone.
        split: ``test`` or ``validation``; None: the split that the run was tested on.
        predictions: those of the run, where they have been read; None: read them.

    Raises InputError where the run has no predictions of the split.

    Example::

        PredictionExplorer(labkit.load_run("runs/first"))
    """

    def __init__(
        self,
        run: "RunDirectory | Predictions | str | os.PathLike[str] | Any",
        split: str | None = None,
        predictions: Predictions | None = None,
    ) -> None:
        self.run: RunDirectory | None = None
        if isinstance(run, Predictions):
            self.predictions = run
            return
        self.run = run_directory_of(run)
        self.predictions = predictions or predictions_of_run(
            self.run, tested_split(self.run) if split is None else split
        )

    def _ipython_display_(self) -> None:
        show(plots.wrong_predictions(self.predictions, PAGE_SIZE), self.widget)

    def detail(self, index: int, patch: int = 0) -> Any:
        """Return the figure of one prediction.

        Args:
            index: position of the example among the predictions.
            patch: side of the covering square in pixels; 0: without it.

        A network that can't be loaded is a line of text instead of the figure.
        """
        if not patch:
            return plots.prediction_detail(self.predictions, index)
        try:
            heat = self._occlusion(index, patch)
        except InputError as error:
            return plots.message(f"The network can't be loaded: {error}")
        return plots.prediction_detail(self.predictions, index, heat, patch)

    @cached_property
    def network(self) -> "Classifier":
        """The network that made the predictions. Raises InputError if it is gone or can't be loaded."""
        from labkit.analysis.network import load_network

        if self.run is None:
            raise InputError("only predictions were given; give the run")
        recorded_config(self.run)  # refuses a run of another program
        step = self.predictions.summary.get("checkpoint_step")
        if step not in checkpoint_steps(self.run.checkpoints_path):
            command = shlex.join(["labkit", "evaluate", str(self.run.path)])
            raise InputError(f"checkpoint of step {step} is gone; {command} makes new predictions")
        return load_network(self.run, str(step))

    def _occlusion(self, index: int, patch: int) -> Any:
        from labkit.analysis.network import occlusion_map

        network = self.network
        label = int(self.predictions.probabilities[index].argmax())
        return occlusion_map(network.probabilities, self.predictions.images[index], label, patch)

    def widget(self) -> Any:
        """Return the controls, a page of images, and one of them with its probabilities."""
        import ipywidgets

        predictions = self.predictions
        if predictions.are_numbers:
            return self._worst()
        # Not None: ipywidgets takes that for no choice, and shows an empty field.
        choices = [(ANY, -1), *((name, number) for number, name in enumerate(predictions.classes))]
        true = ipywidgets.Dropdown(options=choices, description="true")
        predicted = ipywidgets.Dropdown(options=choices, description="predicted")
        wrong_only = ipywidgets.Checkbox(True, description="mistakes only", indent=False)
        page = ipywidgets.BoundedIntText(1, min=1, max=1, description="page")
        image = ipywidgets.Dropdown(description="image")

        def draw_page() -> Any:
            of_true, of_predicted = (None if field.value < 0 else field.value for field in (true, predicted))
            indices = predictions.select(of_true, of_predicted, wrong_only.value)
            page.max = max(1, -(-len(indices) // PAGE_SIZE))
            page.description = f"page / {page.max}"
            shown = indices[(page.value - 1) * PAGE_SIZE : page.value * PAGE_SIZE]
            image.options = [
                (f"{number}: {predictions.names(predictions.has[index])}", int(index))
                for number, index in enumerate(shown, 1)
            ]
            image.index = 0 if len(shown) else None
            if not len(shown):
                return plots.message("No example matches this selection.")
            return plots.prediction_grid(predictions, shown)

        grid = live(draw_page, true, predicted, wrong_only, page)
        largest = max(min(self.predictions.images.shape[1:3]) // 2, 1)
        patch = ipywidgets.IntSlider(
            0, min=0, max=largest, step=max(2, largest // 8), description="cover", continuous_update=False,
            tooltip="side of the square that covers a part of the image, in pixels",
        )  # fmt: skip

        def draw_detail() -> Any:
            if image.value is None:
                return plots.message("No image is chosen.")
            return self.detail(image.value, patch.value)

        detail = live(draw_detail, image, *([patch] if self.run is not None else []))
        detail.children[-1].layout.display = None  # no static figure shows it
        return ipywidgets.VBox([grid, detail])

    def _worst(self) -> Any:
        """Return pages of images whose labels are numbers, the largest errors first."""
        import ipywidgets

        order, last = self.predictions.worst_first, max(1, -(-len(self.predictions) // PAGE_SIZE))
        page = ipywidgets.BoundedIntText(1, min=1, max=last, description=f"page / {last}")

        def draw() -> Any:
            shown = order[(page.value - 1) * PAGE_SIZE : page.value * PAGE_SIZE]
            return plots.prediction_grid(self.predictions, shown)

        return live(draw, page)
