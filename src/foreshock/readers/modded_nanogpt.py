"""Record logs of modded-nanogpt."""

from typing import ClassVar

from foreshock.core.text_reader import NUMBER, TextReader


class ModdedNanogpt(TextReader):
    """`step:12/5100 train_loss:9.0875 train_time:65ms step_avg:nanms`.

    The source of the program stands before its lines. `step_avg` is a time and not known in
    the first steps, which is no NaN of the training. Newer versions print `val_loss` alone.
    """

    name: ClassVar[str] = "modded_nanogpt"
    title: ClassVar[str] = "modded-nanogpt"
    specificity = 0.93
    hint = "step:"
    record = r"\bstep:(?P<step>\d+)/(?P<total_steps>\d+) (?=(?:train_|val_)(?:loss|time):)"
    pairs = rf" (train_loss|val_loss|grad_norm|lr):({NUMBER})(?= |\Z)"
