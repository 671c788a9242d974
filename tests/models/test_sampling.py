"""Ranks see disjoint, seeded, complete shards."""

from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from models.data.sampling import Shard, generator_for, index_batches
from models.data.sources import Digits
from models.values import WorkloadError


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 30), st.integers(0, 100))
def test_an_epoch_deals_every_sample_at_most_once_and_equally(world: int, batch: int, extra: int, seed: int) -> None:
    num_samples = world * batch + extra
    num_batches = num_samples // (world * batch)
    seen: list[int] = []
    for rank in range(world):
        shard = Shard(num_samples=num_samples, batch_size=batch, rank=rank, world=world, seed=seed)
        for epoch, indices in islice(index_batches(shard), num_batches):
            assert (epoch, len(indices)) == (0, batch)
            seen += indices
        assert next(islice(index_batches(shard), num_batches, None))[0] == 1
    assert len(seen) == len(set(seen)) == num_batches * world * batch
    assert set(seen) <= set(range(num_samples))


def test_epochs_and_seeds_shuffle_differently_and_repeat() -> None:
    def epochs(seed: int) -> list[list[int]]:
        shard = Shard(num_samples=64, batch_size=64, rank=0, world=1, seed=seed)
        return [indices for _, indices in islice(index_batches(shard), 2)]

    first, second = epochs(0)
    assert sorted(first) == sorted(second) == list(range(64))
    assert first != second
    assert epochs(0) == [first, second]
    assert epochs(1)[0] != first


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=3), st.integers(0, 2))
def test_generators_of_neighbouring_keys_differ(keys: list[int], position: int) -> None:
    other = list(keys)
    other[position % len(keys)] ^= 1
    assert generator_for(*keys).initial_seed() == generator_for(*keys).initial_seed()
    assert generator_for(*keys).initial_seed() != generator_for(*other).initial_seed()


def test_a_batch_larger_than_the_data_is_refused_with_both_numbers() -> None:
    with pytest.raises(WorkloadError, match=r"batch_size 8 on 2 ranks wants 16 samples per step, the data has 15"):
        Shard(num_samples=15, batch_size=8, rank=0, world=2, seed=0)


def test_a_rank_outside_the_world_is_refused() -> None:
    with pytest.raises(WorkloadError, match="rank 2 is not in a world of 2"):
        Shard(num_samples=15, batch_size=1, rank=2, world=2, seed=0)


def test_digits_are_those_of_scikit_learn() -> None:
    ours, theirs = Digits.load(8), load_digits()
    images = torch.tensor(theirs.images, dtype=torch.float32).unsqueeze(1)
    assert torch.equal(ours.images, (images / 16.0 - 0.3053) / 0.3760)
    assert torch.equal(ours.labels, torch.tensor(theirs.target))


def test_a_shifted_digit_is_the_digit_somewhere_else_and_held_out_ones_stay() -> None:
    """Where nothing falls off the edge, the sum over an image is what it was."""
    plain, moved = Digits.load(8), Digits.load(8, most_shift=1)
    batch, other = next(moved.batches(0, 1, 3)).inputs[0], next(plain.batches(0, 1, 3)).inputs[0]
    assert batch.shape == other.shape
    assert not torch.equal(batch, other)
    candidates = torch.stack([torch.roll(other, (down, right), (2, 3)) for down in (-1, 0, 1) for right in (-1, 0, 1)])
    inner = (slice(None), slice(None), slice(1, -1), slice(1, -1))
    found = (candidates[(slice(None), *inner)] == batch[inner]).flatten(2).all(dim=2).any(dim=0)
    assert bool(found.all())
    assert torch.equal(next(iter(moved.held_out())).inputs[0], next(iter(plain.held_out())).inputs[0])


def test_shifts_repeat_by_seed_and_differ_between_ranks() -> None:
    data = Digits.load(8, most_shift=1)
    assert torch.equal(next(data.batches(0, 2, 5)).inputs[0], next(data.batches(0, 2, 5)).inputs[0])
    assert not torch.equal(next(data.batches(0, 2, 5)).inputs[0], next(data.batches(1, 2, 5)).inputs[0])
