"""What logs call things: from a column's label to the signal that it measures."""

import re
from functools import lru_cache

_LABELS: dict[str, tuple[str, ...]] = {
    # Earlier labels are preferred where a log has several of one signal.
    "loss": (
        "loss", "lm_loss", "train_loss", "training_loss", "train_loss_step", "loss_step",
        "crossentropyloss", "cross_entropy_loss", "ce_loss", "lm_loss_value", "total_loss",
        "train_ce", "per_token_loss", "losses_total_loss", "loss_total", "actor_loss",
        "act_loss", "actor_pg_loss", "policy_loss", "global_avg_loss", "global_avg_lm_loss",
        "step_loss", "average_loss", "train_loss_epoch", "learning_loss", "trl", "pg_loss",
        "box_loss", "loss_train", "batch_loss", "running_loss", "loss_avg", "mean_loss",
        "reduced_train_loss", "epoch_loss", "avr_loss", "avg_loss", "xent",
        "loss_current", "loss_average",
    ),
    "grad_norm": (
        "grad_norm", "gradnorm", "total_grad_norm", "gnorm", "global_grad_norm", "grad_norm_mean",
        "gradient_norm", "global_norm", "norm", "grad_norm_global", "grad_2_0_norm_total",
        "grad_2_norm_total", "actor_grad_norm", "raw_grad_norm", "pre_clip_norm", "grad_l2_norm",
        "total_norm", "gradnorm_total", "epoch_gnorm",
    ),
    "lr": (
        "lr", "learning_rate", "cur_lr", "current_lr", "lr_group_0", "learning_rate_group0",
        "lr_pg0", "x_lr0", "lr_adam", "lr_adamw", "lr_sgd", "lr_adam_pg1", "lr_adamw_pg1",
        "lr_sgd_pg1", "epoch_lr",
    ),
    "loss_scale": (
        "loss_scale", "scale", "scaler", "loss_scaler", "scaling_sens", "grad_scale",
        "epoch_loss_scale",
    ),
    "eval_loss": (
        "eval_loss", "val_loss", "valid_loss", "validation_loss", "test_loss", "tel", "dev_loss",
        "evaluation_loss", "loss_val", "loss_eval", "val_lm_loss", "lm_loss_validation",
    ),
    "eval_grad_norm": (),
    "param_norm": ("param_norm", "params_norm", "weight_norm", "parameter_norm"),
    "update_ratio": ("update_ratio",),
    "clip_share": ("clip_share",),
    "max_attention_logit": ("max_attention_logit", "max_logit", "attn_max_logit"),
    "epoch": ("epoch", "epochs"),
    "num_skipped": (
        "skipped", "number_of_skipped_iterations", "num_skipped", "skipped_iterations",
        "skipped_steps", "skipped_iters",
    ),
    "num_nan": ("number_of_nan_iterations", "nan_iterations"),
}  # fmt: skip

STEP_LABELS = (
    "step", "global_step", "steps", "iteration", "iter", "trainer_global_step", "current_steps",
    "train_global_step", "_step", "num_updates", "update", "updates", "train_step", "batch",
    "training_global_step", "training_step", "iterations", "iter_num", "current_step",
    "optimizer_step", "opt_step", "update_step", "completed_steps", "num_steps", "n_iter", "it",
    "itr", "iters", "trainer_step", "global_steps", "step_num", "metadata_step_num",
    "global_iter", "global_iteration", "cur_step", "cur_iter",
)  # fmt: skip
"""Labels of a column that counts steps, preferred first."""

COSTS = (
    r"(?i)(?:\b|_)(?:eta|ips|mfu|fps|t?flops|total_flos|times?|timing|timestamp|seconds|secs"
    r"|runtime|elapsed|speed|throughput|mem|memory)(?:\b|_)"
    r"|\B_cost\b|\bdata\b|per_(?:sec|step_time|npu|device|gpu|card)|tokens_seen|num_tokens"
)
"""Found in labels of what a step took (time, memory, throughput): no signals."""

_TRAIN = re.compile(
    r"\A(?:train|training|optim|optimizer|perf|losses|metrics|actor|loss_metrics|tr)[_/. ]+"
)
_EVAL = re.compile(r"\A(?:eval|val|valid|validation|test|dev)[_/. :]+|[_/. ](?:val|eval|valid)\Z")
_JOINTS = re.compile(r"[^a-z0-9]+")
_MAX_LABEL = 120
_PLACES = {
    label: (signal, place)
    for signal, labels in _LABELS.items()
    for place, label in enumerate(labels)
}


@lru_cache(maxsize=4096)
def signal_of(label: str) -> tuple[str, int]:
    """The signal that a label names, and how far down the list of its labels it stands.

    Unknown labels keep their own name, in lower_snake_case, at place 1,000; what is
    evaluated carries `eval_`.

    >>> signal_of("lm loss"), signal_of("train/grad_norm"), signal_of("val/loss")
    (('loss', 1), ('grad_norm', 0), ('eval_loss', 1))
    >>> signal_of("MTP loss")
    ('mtp_loss', 1000)
    """
    lowered = label[:_MAX_LABEL].strip().lower()
    plain = _plain(lowered)
    if plain in _PLACES:
        return _PLACES[plain]
    for pattern, wanted in ((_EVAL, "eval_"), (_TRAIN, "")):
        rest = pattern.sub("", lowered)
        if rest == lowered:
            continue
        inner, place = _PLACES.get(_plain(_TRAIN.sub("", rest)), ("", 1000))
        if wanted and inner == "loss":
            return "eval_loss", place + 3
        if wanted and _plain(rest):
            return f"eval_{_plain(rest)}", 1000
        if inner:
            return inner, place
    return plain or "unnamed", 1000


def is_step(label: str) -> bool:
    """Whether a label names a counter of steps.

    >>> is_step("global_step"), is_step("train/global_step"), is_step("step_time")
    (True, True, False)
    """
    return _plain(label.strip().lower()) in _STEP_PLACES


def step_place(label: str) -> int:
    """How far down the list of step labels a label stands; 1,000 if it is none of them.

    >>> step_place("step") < step_place("trainer/global_step") < step_place("_step")
    True
    """
    lowered = label.strip().lower()
    if lowered in STEP_LABELS:
        return STEP_LABELS.index(lowered)
    return _STEP_PLACES.get(_plain(lowered), 1000)


def _plain(lowered: str) -> str:
    return _JOINTS.sub("_", lowered).strip("_")


_STEP_PLACES = {_plain(label): place for place, label in reversed(list(enumerate(STEP_LABELS)))}
