"""What to do about each class of finding, the most useful first."""

from foreshock.inspection.finding import RunClass, RunFinding
from foreshock.inspection.statement import deciding

_ADVICE: dict[RunClass, tuple[str, ...]] = {
    RunClass.NAN: (
        "Stop: every later step trains on NaN. Go back to the last checkpoint before {onset}.",
        "Check that the weights and optimizer moments of that checkpoint are finite.",
        "Run the same batch once in fp32: if it is finite there, the range of the precision is "
        "too small; if not, look at the batch and the learning rate.",
    ),
    RunClass.LOSS_SCALE_COLLAPSE: (
        "Under fp16 each halving is a skipped step: find what overflows (largest attention "
        "logit, largest activation) in the steps before {onset}.",
        "Train in bf16 where the hardware has it, or keep attention and softmax in fp32.",
        "Go back to a checkpoint before {onset}; a scale below 1 does not recover by itself.",
    ),
    RunClass.DIVERGENCE: (
        "Go back to a checkpoint well before {onset}, not to the last one.",
        "Replay the same batches from an older checkpoint: if they pass, it is state and data "
        "together: skip them; if not, lower the learning rate.",
        "Record the update norm and the largest attention logit: they move before the loss.",
    ),
    RunClass.GRAD_NORM_EXPLOSION: (
        "Look at the batches from {onset} on, and at the norm of each layer.",
        "Clip by a limit that follows the median of the norm; a fixed one far above it does "
        "nothing.",
    ),
    RunClass.RECOVERING_SPIKE: (
        "Keep a checkpoint from before {onset} until the level after it is proved as good.",
        "Look at the samples of the step before the loss moved; the same step in a run of the "
        "same data order tells whether it is the data (`--compare`).",
        "Watch whether such spikes come closer together: then lower beta2 or the learning rate.",
    ),
    RunClass.PLATEAU: (
        "Check that labels are not all masked, and that gradients reach every parameter.",
        "Overfit one batch: a model that cannot do that has a bug, not a learning rate.",
        "Then try a third of the learning rate, and a longer warm-up.",
    ),
    RunClass.RESTART_DISCONTINUITY: (
        "Compare optimizer state, learning rate and data position before and after {onset}.",
        "A loss that is lower after a restart sees data that it has seen before.",
    ),
    RunClass.SHIFT: (
        "Compare the evaluation before and after {onset}: a level that moves in training alone "
        "is the order or the mix of the data.",
    ),
    RunClass.EVAL_ONLY_NAN: (
        "Training is healthy: look at the evaluation code, its precision and its labels.",
    ),
}


def advise(finding: RunFinding) -> tuple[str, ...]:
    """Advice for the class of a finding, with its step filled in."""
    episode = deciding(finding)
    onset = f"step {episode.onset_step}" if episode is not None else "the trouble"
    return tuple(line.format(onset=onset) for line in _ADVICE.get(finding.run_class, ()))
