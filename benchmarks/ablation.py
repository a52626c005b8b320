"""What does each part of the fast recipe contribute?

Trains the preset `fast` with a short budget (half its width, few epochs), unchanged and with one change at a
time, and reports test accuracy and training time. All variants use the same seeds. Finished runs are reused.
Uses CIFAR-10 if it is available, else `shapes`.
"""

import statistics
from typing import Any

from benchmarks.common import add_runs_flag, fast_precisions, make_parser, prepared_data
from benchmarks.report import Figure, Report
from benchmarks.trainings import Trained, config_of, train_to_end
from labkit.config.presets import preset_values

AS_IT_IS = "as it is"
WITHOUT_MUON: dict[str, Any] = {
    # airbench94 (arXiv:2404.00498) has 11.5 and 0.0153 for 1,024 examples, divided by 1 + 1 / (1 - momentum).
    "optimizer": "sgd",
    "train_batch_size": 1024,
    "learning_rate": 1.5,
    "weight_decay": 1.33e-3,
    "one_cycle_peak": 0.23,
    "one_cycle_start": 0.2,
    "one_cycle_end": 0.07,
}
VARIANTS: dict[str, dict[str, Any]] = {
    AS_IT_IS: {},
    "first layer trained instead of whitening": {"whitening": False},
    "convolutions begin at random instead of as the identity": {"dirac": False},
    "offsets learn at the common rate": {"norm_bias_learning_rate_factor": 1.0},
    "offsets decay, too": {"weight_decay_of": "all"},
    "no label smoothing": {"label_smoothing": 0.0},
    "random flips instead of alternating": {"flip": "random"},
    "no Nesterov momentum": {"nesterov": False},
    "SiLU instead of GELU": {"activation": "silu"},
    "ReLU instead of GELU": {"activation": "relu"},
    "float32": {"precision": "float32"},
    "padding 4 instead of 2": {"crop_padding": 4},
    "cutout of 8 pixels": {"cutout_size": 8},
    "whole images throughout": {"progressive_resizing": None},
    "SGD for Muon, as in airbench94": WITHOUT_MUON,
}


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, of_resnet=False)
    parser.set_defaults(repeats=2)
    parser.add_argument("--epochs", type=float, default=4.0, help="epochs of every training")
    parser.add_argument("--width-factor", type=float, default=0.5, help="width factor of the network")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    add_runs_flag(parser, "ablation")
    options = parser.parse_args(arguments)
    manifest = prepared_data(options.data_dir)
    precision = fast_precisions()[-1]
    examples = round(options.epochs * manifest.count("train"))
    asked = {
        **preset_values("fast"),
        "precision": precision,
        "width_factor": options.width_factor,
        "validate_every_steps": 0,
    }
    chosen = {"dataset": manifest.dataset, "precision": precision}
    report = Report("ablation", __doc__, vars(options) | chosen)
    found: dict[str, list[Trained]] = {name: [] for name in options.variants}
    for seed in range(options.repeats):
        for name in options.variants:
            job_dir = options.runs / f"{name.replace(' ', '-')}-{seed}"
            values = {**asked, **VARIANTS[name], "seed": seed}
            values |= {"train_steps": max(1, round(examples / values["train_batch_size"]))}
            values |= {"epochs": None, "steps_range": None}
            found[name].append(train_to_end(config_of(manifest, job_dir, values)))
            print(f"seed {seed}, {name}: {found[name][-1].accuracy:.2f} %", flush=True)
    report.finish(figures(found), options.output)


def figures(found: dict[str, list[Trained]]) -> list[Figure]:
    """Return the accuracy and seconds of each variant and seed, the best variant first."""
    order = sorted(found, key=lambda name: -statistics.mean(run.accuracy for run in found[name]))
    rows = []
    for name in order:
        rows.append(Figure(f"{name}: test accuracy", "%", [run.accuracy for run in found[name]]))
        if name == AS_IT_IS:
            views = [100 * run.test["tta_accuracy"] for run in found[name] if run.test]
            rows.append(Figure(f"{name}, six views of each test image: test accuracy", "%", views))
        rows.append(Figure(f"{name}: training", "s", [run.seconds for run in found[name]]))
    return rows


if __name__ == "__main__":
    main()
