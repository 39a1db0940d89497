import itertools
import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreshock.core.errors import ConfigError, StreamError
from foreshock.data.feistel import feistel, feistel_array, mix64
from foreshock.data.order import Order, SourceShare, StageOrder


def stage(name="s", num_samples=None, repeats=1, shares=None, **sizes):
    sources = tuple(
        SourceShare(name=n, num_samples=size, share=shares[n] if shares else None)
        for n, size in sizes.items()
    )
    return StageOrder(name=name, sources=sources, num_samples=num_samples, repeats=repeats)


@given(size=st.integers(1, 2000), key=st.integers(0, 2**64 - 1))
@settings(max_examples=60, deadline=None)
def test_feistel_is_a_bijection_and_the_array_form_agrees(size, key):
    images = [feistel(i, size, key) for i in range(size)]
    assert sorted(images) == list(range(size))
    assert feistel_array(np.arange(size), size, key).tolist() == images


@pytest.mark.parametrize("size", [10**12, 2**40, 2**40 + 1, 2**62])
def test_feistel_at_sizes_no_table_could_hold(size):
    points = [0, 1, 2, size // 2, size - 2, size - 1]
    images = feistel_array(np.array(points), size, key=11)
    assert images.tolist() == [feistel(i, size, 11) for i in points]
    assert len(set(images.tolist())) == len(points)
    assert images.min() >= 0
    assert images.max() < size


@pytest.mark.parametrize(("index", "size"), [(-1, 5), (5, 5), (0, 0), (0, 2**62 + 1)])
def test_feistel_refuses_what_lies_outside(index, size):
    with pytest.raises(StreamError, match=r"index=|size="):
        feistel(index, size, key=0)
    with pytest.raises(StreamError, match=r"indices|size="):
        feistel_array(np.array([index]), size, key=0)


@pytest.mark.parametrize("size", [3, 4])
def test_every_permutation_of_a_few_elements_is_equally_likely(size):
    keys = range(6000)
    seen = Counter(tuple(feistel(i, size, mix64(k)) for i in range(size)) for k in keys)
    expected = len(keys) / math.factorial(size)
    chi_square = sum(
        (seen[p] - expected) ** 2 / expected for p in itertools.permutations(range(size))
    )
    freedom = math.factorial(size) - 1
    assert (chi_square - freedom) / math.sqrt(2 * freedom) < 4


def test_the_order_shows_no_lattice():
    size = 65_536
    images = feistel_array(np.arange(size), size, key=5)
    # An LCG permutation has one constant difference (mod size); a random one has many.
    differences = np.unique(np.diff(images) % size).size
    assert abs(differences / size - (1 - 1 / math.e)) < 0.01
    # Each stretch of the order must draw evenly from the whole of the data.
    means = images.reshape(256, 256).mean(axis=1)
    assert means.std() == pytest.approx(size / math.sqrt(12) / 16, rel=0.2)
    assert abs(np.corrcoef(images[:-1], images[1:])[0, 1]) < 4 / math.sqrt(size)


def test_without_weights_each_repeat_is_an_epoch_in_a_new_permutation():
    order = Order([stage(repeats=3, web=40, code=7)], seed=1)
    assert order.total == 141
    epochs = [[order.locate(47 * r + i) for i in range(47)] for r in range(3)]
    everything = Counter({("web", i) for i in range(40)} | {("code", i) for i in range(7)})
    for epoch in epochs:
        assert Counter((s.source, s.index) for s in epoch) == everything
    assert epochs[0] != epochs[1] != epochs[2]


def test_quotas_by_largest_remainder():
    # 10 * (5, 3, 1)/9 = 5.56, 3.33, 1.11: floors 5, 3, 1, the one left goes to the first.
    weights = {"a": 5, "b": 3, "c": 1}
    assert stage(num_samples=10, shares=weights, a=50, b=50, c=50).quotas == (6, 3, 1)
    # Thirds: equal remainders, so the earlier source.
    assert stage(num_samples=4, shares={"a": 1, "b": 1, "c": 1}, a=9, b=9, c=9).quotas == (2, 1, 1)


@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=4),
    weights=st.lists(st.floats(1, 5), min_size=4, max_size=4),
    num_samples=st.integers(20, 120),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_weighted_sources_get_their_quota_and_visit_their_samples_evenly(
    sizes, weights, num_samples, seed
):
    names = [f"s{i}" for i in range(len(sizes))]
    shares = dict(zip(names, weights, strict=False))
    mixed = stage(
        num_samples=num_samples,
        repeats=3,
        shares=shares,
        **dict(zip(names, sizes, strict=True)),
    )
    order = Order([mixed], seed)
    visits = Counter()
    for repeat in range(3):
        positions = range(repeat * num_samples, (repeat + 1) * num_samples)
        found = [order.locate(p) for p in positions]
        assert Counter(s.source for s in found) == dict(zip(names, mixed.quotas, strict=True))
        visits.update((s.source, s.index) for s in found)
        for name, size in zip(names, sizes, strict=True):
            per_sample = [visits[name, i] for i in range(size)]
            assert max(per_sample) - min(per_sample) <= 1


def test_a_small_quota_takes_another_subset_next_time_and_with_another_seed():
    mixed = stage(num_samples=20, repeats=2, shares={"a": 1, "b": 1}, a=100, b=100)

    def subset(seed, repeat):
        found = [Order([mixed], seed).locate(20 * repeat + i) for i in range(20)]
        return {s.index for s in found if s.source == "a"}

    assert subset(0, 0).isdisjoint(subset(0, 1))
    assert subset(0, 0) != subset(1, 0)


def test_stages_follow_each_other_and_the_last_may_be_endless():
    order = Order([stage("warm", a=5), stage("main", repeats=None, a=5, b=3)], seed=0)
    assert order.total is None
    assert {order.locate(p).stage for p in range(5)} == {"warm"}
    assert {order.locate(p).stage for p in range(5, 5 + 8)} == {"main"}
    far = 5 + 8 * 10**9
    assert sorted(order.locate(far + i)[1:] for i in range(8)) == [
        *[("a", i) for i in range(5)],
        *[("b", i) for i in range(3)],
    ]


def test_a_report_recomputes_ids_from_json():
    mixed = stage("m", num_samples=12, repeats=None, shares={"a": 0.3, "b": 0.7}, a=9, b=9)
    order = Order([stage("w", a=9), mixed], seed=3)
    copy = Order.from_description(json.loads(json.dumps(order.describe())))
    assert [copy.locate(p) for p in range(100)] == [order.locate(p) for p in range(100)]
    assert copy.fingerprint == order.fingerprint
    assert Order([stage("w", a=9), mixed], seed=4).fingerprint != order.fingerprint


def test_the_order_of_a_seed_is_part_of_the_format():
    # If this fails, old runs would resume in another order: raise FORMAT, do not edit the list.
    order = Order([stage(num_samples=6, repeats=2, shares={"a": 1, "b": 2}, a=3, b=5)], seed=7)
    found = " ".join(f"{s.source}{s.index}" for s in map(order.locate, range(12)))
    assert found == "b0 b4 b3 a0 a2 b1 b0 a0 a1 b2 b2 b3"


@pytest.mark.parametrize("description", [{}, {"format": "foreshock-order-0"}])
def test_an_unknown_format_is_refused(description):
    with pytest.raises(StreamError, match="format"):
        Order.from_description(description)


def test_a_malformed_description_is_refused():
    good = Order([stage(a=3)], seed=0).describe()
    for damage in ({"stages": [{"name": "x"}]}, {"stages": [{**good["stages"][0], "odd": 1}]}):
        with pytest.raises(StreamError, match="description"):
            Order.from_description({**good, **damage})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Order([], 0), "one or more"),
        (lambda: Order([stage(a=3), stage(a=3)], 0), "name of its own"),
        (lambda: Order([stage("x", repeats=None, a=3), stage("y", a=3)], 0), "endless"),
        (lambda: Order([stage("x", a=3), stage("y", a=4)], 0), "one dataset"),
        (stage, "one or more"),
        (lambda: stage(a=0), "hold no samples"),
        (lambda: stage(a=3, repeats=0), "repeats=0"),
        (lambda: stage(a=3, num_samples=0), "num_samples=0"),
        (lambda: stage(a=3, b=3, shares={"a": 1, "b": None}), "or none"),
        (lambda: stage(a=3, b=3, shares={"a": 1, "b": 0}), "above 0"),
        (lambda: stage(a=3, b=3, shares={"a": 1, "b": float("nan")}), "finite"),
        (lambda: stage(a=3, b=3, shares={"a": 1000, "b": 1}), "rounds to 0"),
    ],
)
def test_what_makes_no_order_is_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def test_positions_outside_are_refused():
    order = Order([stage(a=3)], seed=0)
    for position in (-1, 3):
        with pytest.raises(StreamError, match=f"position={position}"):
            order.locate(position)
