"""Names of settings in other programs: those that work here too, and what to write instead of the others.

A name of the same meaning is an alias of a configuration's field. A name of another meaning, or of something
that labkit doesn't have, is answered. They come from TensorFlow's programs of 2017, Keras, PyTorch, timm,
Lightning and Hugging Face.
"""

import re
from collections.abc import Iterable

from labkit.errors import InputError, nearest

_EVALUATE = "a run is evaluated by: labkit evaluate RUN"
_EVERY_EXAMPLE = "labkit evaluate counts every example once; leave it out"
_INPUT = "labkit sizes the input by itself; leave it out, or see --input-path"
_SCHEDULE = "choose the whole schedule with --learning-rate-schedule"

# Other names of exactly the same meaning, by field. They work wherever the field's own name does.
ALIASES = {
    "accumulate_steps": "gradient_accumulation_steps accumulate_grad_batches grad_accum accum_steps",
    "adamw_beta1": "adam_beta1 beta1 beta_1",
    "adamw_beta2": "adam_beta2 beta2 beta_2",
    "callback_arguments": "callback_argument callbacks_arguments",
    "callbacks": "callback",
    "checkpoint_every_seconds": "save_interval_secs",
    "class_weights": "class_weight",
    "cutmix_alpha": "cutmix",
    "cutout_size": "cutout",
    "dataset": "dataset_name",
    "dropout_rate": "dropout drop_rate dropout_prob",
    "ema_decay": "moving_average_decay",
    "epochs": "num_epochs n_epochs nb_epochs max_epochs num_train_epochs train_epochs",
    "eval_batch_size": "val_batch_size test_batch_size",
    "gradient_clip_norm": "max_grad_norm clip_grad_norm global_clipnorm",
    "job_dir": "train_dir model_dir output_dir save_dir run_dir",
    "label_smoothing": "label_smooth label_smoothing_factor",
    "learning_rate": "lr initial_learning_rate learning_rate_init init_lr initial_lr",
    "learning_rate_schedule": "schedule scheduler lr_schedule lr_scheduler lr_scheduler_type",
    "log_every_steps": "log_frequency log_every log_every_n_steps log_interval logging_steps print_freq",
    "mixup_alpha": "mixup",
    "model": "arch architecture model_name net network",
    "model_arguments": "model_argument",
    "momentum": "sgd_momentum",
    "nesterov": "use_nesterov nesterov_momentum",
    "num_gpus": "gpus ngpus n_gpus",
    "num_layers": "depth layers n_layers",
    "optimizer": "opt optim optimiser",
    "random_rotation": "rotation_range",
    "seed": "random_seed random_state rng_seed",
    "staircase_epochs": "num_epochs_per_decay",
    "staircase_factor": "learning_rate_decay_factor",
    "sync": "sync_replicas",
    "task_index": "task_id",
    "train_batch_size": "batch_size batch bs b",
    "train_steps": "max_steps steps num_steps total_steps num_train_steps iterations iters max_iter",
    "trivial_augment": "trivialaugment trivial_augment_wide ta_wide",
    "use_distortion_for_training": "augmentation data_augmentation",
    "warmup_steps": "num_warmup_steps",
    "weight_decay": "wd weight_decay_rate",
    "width_factor": "widen_factor width_multiplier",
    "xla": "jit_compile",
}

# Flags of the tutorial (cifar10_train.py, cifar10_eval.py, cifar10_multi_gpu_train.py), of cifar10_estimator,
# and of the distributed trainers.
INSTEAD = {
    "--checkpoint-dir": f"{_EVALUATE}, with the directory of the run as RUN",
    "--checkpoint-path": "name the run or .keras file to start from with --start-from",
    "--download-only": "prepare a data set with: labkit data prepare",
    "--eval-data": "name the split with: labkit evaluate RUN --split test",
    "--eval-dir": f"{_EVALUATE}, which writes into the run's directory",
    "--eval-interval-secs": "labkit evaluate RUN --watch evaluates each checkpoint when it appears",
    "--eval-steps": f"{_EVERY_EXAMPLE}, or write --validate-every-steps",
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
    "--use-bottleneck": "write --block bottleneck",
    "--use-fp16": "write --precision mixed_bfloat16",
    "--use-gpu": "GPUs are used where there are any; --num-gpus 0 trains on the CPU",
}

_PROCESSES = (
    "labkit cluster local --workers N -- train starts N processes; for more machines see docs/clusters.md"
)
_VALIDATE = "--validate-every-steps sets when to validate, counted in steps"
_PATIENCE = "--early-stopping-patience counts validations without a better result"
_SAVE = "--checkpoint-every-steps and --checkpoint-every-seconds set when to save"
_PICTURES = "--dataset names a prepared data set; labkit data prepare --images DIR prepares your own pictures"
_HELD_OUT = "splits are made when a data set is prepared: labkit data prepare --validation-size N"
_BATCH = "--train-batch-size counts the images of one step over all replicas"

# Names without dashes or underscores at the front, and what to write instead of them.
ANSWERS = {
    name: answer
    for names, answer in (
        ("gpu gpu_id gpu_ids device_id", "--num-gpus says how many GPUs to use, CUDA_VISIBLE_DEVICES which"),
        ("device devices cuda no_cuda use_cuda use_cpu cpu accelerator",
         "GPUs are used where there are any; --num-gpus says how many, and 0 trains on the CPU"),
        ("workers num_workers data_workers dataloader_num_workers",
         "images are read by threads; labkit cluster local --workers N -- train trains with N processes"),
        ("threads num_threads cpus num_cpus", "--num-intra-threads and --num-inter-threads set the threads"),
        ("nodes num_nodes nnodes nproc_per_node world_size rank local_rank dist_url dist_backend "
         "master_addr master_port strategy distribution_strategy distributed ddp", _PROCESSES),
        ("global_batch_size total_batch_size per_device_train_batch_size "
         "per_device_batch_size per_gpu_batch_size micro_batch_size", _BATCH),
        ("per_device_eval_batch_size",
         "--eval-batch-size counts the images of an evaluation step over all replicas"),
        ("steps_per_epoch",
         "an epoch is all training images once; --epochs or --train-steps sets the length of the run"),
        ("max_time", "a run ends by its steps or epochs, not by time; see --train-steps and --epochs"),
        ("data data_path data_root root dataset_dir dataset_path train_data train_data_dir image_dir "
         "image_folder images imagefolder", _PICTURES),
        ("num_classes n_classes classes", "the data set says how many classes there are; leave it out"),
        ("image_size img_size imgsz input_size input_shape resolution",
         "the size is set when a data set is prepared: labkit data prepare --image-size N"),
        ("val_split validation_split val_size validation_size valid_size test_split test_size split",
         _HELD_OUT),
        ("folds kfold cross_validation",
         "--fold 1/5 trains on the first of five folds; labkit compare can train on each"),
        ("out output out_dir log_dir logdir logging_dir results_dir default_root_dir work_dir exp_dir",
         "--job-dir is the directory of the run, with its checkpoints and its logs"),
        ("name run_name exp_name experiment project", "a run has the name of its directory, --job-dir"),
        ("resume resume_from resume_from_checkpoint auto_resume initial_epoch",
         "labkit resume RUN continues a run, and so does the same command with the same --job-dir"),
        ("ckpt ckpt_path checkpoint checkpoint_file weights load_weights pretrained finetune init_from "
         "pretrained_model",
         "--start-from takes initial weights; labkit resume RUN continues a run"),
        ("width", "--width-factor multiplies the channels of wide_resnet, fast and fast_residual"),
        ("backbone", "--model names the network"),
        ("freeze_layers freeze_backbone freeze_base", "--freeze names the stages or layers to hold fixed"),
        ("base_lr blr", "--learning-rate is the rate itself, whatever the batch size"),
        ("lr_decay lr_decay_rate gamma step_size lr_step_size milestones decay_steps lrf min_lr lr_min t_max",
         "--learning-rate-schedule chooses how the learning rate changes; see labkit train --help-all"),
        ("warmup warmup_epochs warmup_ratio lr_warmup_epochs warmup_proportion",
         "--warmup-steps sets the warm-up, counted in steps"),
        ("sample_weight pos_weight balanced", "--class-weights says how much the images of a class count"),
        ("loss_fn loss_function criterion",
         "--loss names it, such as softmax, focal or mse, or FILE.py:NAME"),
        ("metric", "loss and accuracy are always measured; --metrics names further ones"),
        ("amp fp16 bf16 half mixed_precision dtype autocast",
         "--precision sets the number format, such as mixed_bfloat16"),
        ("patience early_stopping early_stop early_stopping_rounds", _PATIENCE),
        ("eval_every eval_interval eval_freq val_interval val_every val_check_interval validation_freq "
         "validate_every evaluate_every validate_every_epochs check_val_every_n_epoch test_every", _VALIDATE),
        ("save_every save_freq save_interval save_steps checkpoint_every checkpoint_interval save_strategy "
         "save_best_only", _SAVE),
        ("save_total_limit save_top_k max_to_keep keep",
         "--keep-checkpoints sets how many are kept, beside the best"),
        ("verbose quiet progress_bar", "--log-every-steps sets how often a line is printed"),
        ("tensorboard wandb report_to logger tracker",
         "every run writes its metrics for labkit dashboard and labkit tensorboard; leave it out"),
        ("profile profiler", "labkit profile measures a step; --profile-steps FIRST:LAST traces a run"),
        ("ema use_ema swa model_ema", "--ema-decay averages the weights, for example 0.999"),
        ("tta", "--test-time-augmentation averages several views of each test image"),
        ("randaugment rand_augment aa auto_augment autoaugment",
         "labkit has none; --trivial-augment comes nearest"),
        ("bn_momentum batch_norm_momentum",
         "--batch-norm-decay is the fraction kept at each step: Keras's momentum, or 1 minus PyTorch's"),
        ("betas adam_betas", "--adamw-beta1 and --adamw-beta2 are the two"),
        ("eps epsilon adam_eps adam_epsilon",
         "--optimizer-arguments epsilon=1e-7 sets it for adam and others of Keras"),
        ("bn_eps batch_norm_eps", "--batch-norm-epsilon is added to the variance"),
        ("l1 l2 l2_reg regularization reg", "--weight-decay sets the decay of the weights"),
        ("grad_clip clip_grad gradient_clip_val clipnorm clip_norm clipvalue clip",
         "--gradient-clip-norm limits the global norm of the gradient"),
        ("shuffle drop_last pin_memory prefetch prefetch_factor cache buffer_size shuffle_buffer",
         "images are shuffled and read ahead by labkit itself; leave it out"),
        ("compile torch_compile jit", "--xla compiles the step with XLA"),
        ("channels_last memory_format", "--data-format sets the layout of the images on the device"),
        ("dry_run debug fast_dev_run smoke_test", "--preset smoke is a quick check that training works"),
        ("force overwrite_output_dir", "--overwrite deletes the run that is there and starts anew"),
        ("config cfg config_file hparams", "settings are flags; --preset starts from a named run"),
    )
    for name in names.split()
}  # fmt: skip


def unknown_setting_error(
    kind: str, name: object, known: Iterable[str], aliases: Iterable[str] = ()
) -> InputError:
    """Return an InputError that says what to write instead of the name of a setting of a training.

    Args:
        kind: what the name is called there, such as ``parameter``.
        name: as it was given: ``use_fp16`` or ``--use-fp16``.
        known: the names that are allowed, written like ``name``.
        aliases: other names that are allowed, which are told only for a misspelling of one.
    """
    words = re.sub(r"[-_\W]+", "_", str(name).lower()).strip("_")
    flag = "--" + words.replace("_", "-")
    if flag in INSTEAD:
        return InputError(f"{name} is a flag of older programs; {INSTEAD[flag]}")
    if words in ANSWERS:
        return InputError(f"unknown {kind} {name!r}; {ANSWERS[words]}")
    near = nearest(str(name), known) or nearest(str(name), aliases)
    return InputError(
        f"unknown {kind} {name!r}; " + (f"did you mean {near!r}?" if near else "see labkit train --help-all")
    )
