"""OpenNMT-py: the cross entropy of a step, and validations."""

from tests.readers.reading import first, points, run_of

TEXT = """\
[2024-05-08 04:06:17,722 INFO] Step 50/9000; acc:  12.00; ppl: 26.87; xent: 3.25; lr: 1.00000; \
11270/8704 tok/s;      4 sec
[2024-05-08 04:06:22,054 INFO] Step 100/9000; acc:  26.11; ppl: 13.24; xent: nan; lr: 1.00000; \
10925/8489 tok/s;      9 sec
[2024-05-08 04:06:23,000 INFO] Validation perplexity: 5.5
[2024-05-08 04:06:23,001 INFO] Validation accuracy: 44.5
[2024-05-08 04:06:23,002 INFO] Model is improving ppl: inf --> 5.5.
[2024-05-08 04:06:25,202 INFO] Step 150/9000; acc:  39.07; ppl:  7.69; xent: 2.00; lr: 1.00000; \
15020/11663 tok/s;     12 sec
"""


def test_the_cross_entropy_is_the_loss(tmp_path) -> None:
    run = run_of(tmp_path, TEXT, "opennmt")
    assert points(run, "loss") == [(50, 3.25), (100, None), (150, 2.0)]
    assert points(run, "eval_ppl") == [(100, 5.5)]
    assert points(run, "lr") == [(50, 1.0), (100, 1.0), (150, 1.0)]
    assert run.total_steps == 9000
    assert first(tmp_path, TEXT) == "opennmt"
