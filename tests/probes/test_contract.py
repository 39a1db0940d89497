"""What every probe keeps: deterministic, lower is better, no trace, no global randomness."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from foreshock.catalog import members
from foreshock.core.errors import ConfigError, ProgramError
from foreshock.core.language import LanguageModel, Scored, Task, share_exact, task_losses
from foreshock.core.probe import Probe
from foreshock.lab.gpt import GPT, GPTConfig
from foreshock.lab.programs import next_byte_loss
from foreshock.snapshots.codec import digest
from foreshock.verification import data_to_strengthen, measure, score_tokens, shares_exact

LANGUAGE = LanguageModel(encode=lambda text: list(text.encode()), score=score_tokens, context=128)
BATCHES = torch.arange(4 * 2 * 17).reshape(4, 2, 17) % 256
BUILT: dict[str, Callable[[], Probe]] = {
    "held_out_loss": lambda: make("held_out_loss", batches=BATCHES, loss=next_byte_loss),
    "lm_eval": lambda: make("lm_eval", tasks=("none",), wrap=lambda model: model),
}
EXACT = ["arithmetic", "brackets", "copy", "retrieval"]


def make(name: str, **settings: Any) -> Probe:
    return members("probes")[name](**settings)


def built(name: str) -> Probe:
    return BUILT[name]() if name in BUILT else make(name, language=LANGUAGE, num_items=5)


def model() -> GPT:
    return GPT(GPTConfig(width=16, depth=1, heads=2), torch.Generator().manual_seed(0))


MEASURED = [name for name in members("probes") if name != "lm_eval"]


@pytest.mark.parametrize("name", MEASURED)
def test_it_measures_the_same_twice_and_leaves_no_trace(name: str) -> None:
    probe, net = built(name), model().train()
    before = digest(net.state_dict())
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    first = measure(net, [probe])
    drawn = random.random(), np.random.random(), float(torch.rand(()))
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert drawn == (random.random(), np.random.random(), float(torch.rand(())))
    assert first == measure(net, [built(name)])
    values = first[probe.capability]
    assert len(values) >= 2 and all(isinstance(one, float) and one > 0 for one in values)
    assert digest(net.state_dict()) == before and net.training


@pytest.mark.parametrize("name", members("probes"))
def test_it_says_what_teaches_it(name: str) -> None:
    assert members("probes")[name].strengthened_by
    assert data_to_strengthen([built(name).capability])


@pytest.mark.parametrize("name", EXACT)
def test_items_differ_and_depend_on_the_seed_alone(name: str) -> None:
    tasks = make(name, language=LANGUAGE).tasks()
    assert len(tasks) == 32 and len(set(tasks)) == 32
    assert tasks == make(name, language=LANGUAGE).tasks()
    assert tasks != make(name, language=LANGUAGE, seed=1).tasks()
    assert all(len(task.prompt) + len(task.answer) <= 128 for task in tasks)


def test_the_answers_are_right() -> None:
    for prompt, answer in make("arithmetic", language=LANGUAGE).tasks():
        for line in (prompt + answer).split("\n"):
            left, right = line.split("=")
            assert sum(map(int, left.split("+"))) == int(right)
    for prompt, answer in make("copy", language=LANGUAGE).tasks():
        first, second = (prompt + answer).split("\n")
        assert first == second
    for prompt, answer in make("retrieval", language=LANGUAGE).tasks():
        lines = (prompt + answer).split("\n")
        assert lines[-1] == lines[0] and len({line[:4] for line in lines[:-1]}) == 7
    for prompt, answer in make("brackets", language=LANGUAGE).tasks():
        for line in (prompt + answer).split("\n"):
            text = line
            while any(pair in text for pair in ("()", "[]", "{}", "x")):
                for pair in ("x", "()", "[]", "{}"):
                    text = text.replace(pair, "")
            assert text == ""


def test_the_loss_is_that_of_the_answer_alone() -> None:
    """Against a slow reference: one forward a task, one token at a time."""
    net = model().eval()
    tasks = [Task("ab", "cde"), Task("a much longer prompt", "x")]
    with torch.no_grad():
        found = task_losses(LANGUAGE, net, tasks)
        for task, value in zip(tasks, found, strict=True):
            prompt, answer = list(task.prompt.encode()), list(task.answer.encode())
            losses = []
            for place, token in enumerate(answer):
                logits = net(torch.tensor([prompt + answer[:place]]))[0, -1]
                losses.append(-float(logits.log_softmax(-1)[token]))
            assert value == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_the_share_that_is_right_counts_whole_answers() -> None:
    hits = [[1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 0, 1], [1, 1, 1, 0]]

    def score(_model: Any, rows: Any) -> list[Scored]:
        return [
            Scored(np.ones(len(row) - 1), np.array(hit, bool))
            for row, hit in zip(rows, hits, strict=True)
        ]

    language = LanguageModel(encode=lambda text: list(text.encode()), score=score, context=9)
    assert share_exact(language, None, [Task("ab", "cde")] * 4) == 0.5  # the prompt's do not count


def test_what_cannot_be_scored_is_refused() -> None:
    net = model()
    for task in (Task("", "a"), Task("a", ""), Task("a" * 100, "b" * 29)):
        with pytest.raises(ProgramError, match="a probe's task has"):
            task_losses(LANGUAGE, net, [task])
    short = LanguageModel(
        encode=LANGUAGE.encode,
        score=lambda _m, rows: [Scored(np.ones(1), np.ones(1, bool)) for _ in rows],
        context=9,
    )
    with pytest.raises(ProgramError, match="every token of a row"):
        task_losses(short, net, [Task("ab", "cd")])
    with pytest.raises(ProgramError, match="not logits of shape"):
        score_tokens(torch.nn.Flatten(), [[1, 2, 3]])
    for name in EXACT:
        with pytest.raises(ConfigError, match="num_items is 1"):
            make(name, language=LANGUAGE, num_items=1)


def test_texts_have_a_capability_each_and_none_is_measured_twice() -> None:
    code, english = (
        make("held_out_loss", batches=BATCHES, loss=next_byte_loss, text=text)
        for text in ("code", "english")
    )
    assert set(measure(model(), [code, english])) == {"held_out_loss/code", "held_out_loss/english"}
    with pytest.raises(ConfigError, match="two probes measure 'held_out_loss/code'"):
        measure(model(), [code, code])
    assert data_to_strengthen(["held_out_loss/code", "copy"]).startswith("code text; ")


def test_the_second_figure_is_there_for_exact_tasks_only() -> None:
    shares = shares_exact(model(), [built(name) for name in MEASURED])
    assert {name for name, share in shares.items() if share is not None} == set(EXACT)
