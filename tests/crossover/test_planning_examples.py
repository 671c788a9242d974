"""The example profiles are what their `source` says: derived from the replay profiles, for 8 workers at 10 Gbit/s."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from crossover.planning import JobProfile, read_profile
from models.layer_profile import Profile, load_profile
from models.networks import find_network

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "profiles"
WORLD, RATE_BPS, BUCKET_BYTES = 8, 10e9, 25 << 20
NUMBER_BYTES = 4  # fp32
OPTIMIZER_NUMBERS = {"resnet50": 1, "vgg16": 1, "bert": 2}  # of state by parameter: momentum; Adam's two moments
REPLAY = {"resnet50": "resnet50-v100", "vgg16": "vgg16-v100", "bert": "bert_base-v100"}
TOKENS = {"bert": 128}
SOURCE = (
    "derived, not measured: layer times of models/profiles/{replay}.json (batch 32, fp32); gradients in reverse order "
    "of layers, sent as soon as 25 MiB are ready; ring all-reduce among 8 workers at 10 Gbit/s, 2·7/8 of the bytes "
    "a bucket, no latency; activations as estimated by models/networks.py; optimizer {optimizer}"
)


def derived(name: str) -> JobProfile:
    """What the file should hold."""
    replay = load_profile(REPLAY[name])
    parameters_bytes = NUMBER_BYTES * replay.num_parameters
    sample_bytes = find_network(replay.network).activation_bytes * TOKENS.get(name, 1)
    compute_s = round(replay.forward_s + replay.backward_s, 6)
    ring_s_per_byte = 2 * (WORLD - 1) / WORLD * 8 / RATE_BPS
    buckets = tuple(
        (min(round(at_s, 6), compute_s), round(size * ring_s_per_byte, 6)) for at_s, size in _buckets(replay)
    )
    end_s = 0.0
    for ready_s, link_s in buckets:
        end_s = max(end_s, ready_s) + link_s
    return JobProfile(
        name=name,
        compute_s=compute_s,
        communication_s=round(sum(link_s for _, link_s in buckets), 6),
        solo_s=round(end_s, 6),
        buckets=buckets,
        forward_s=round(replay.forward_s, 6),
        parameters_bytes=parameters_bytes,
        gradients_bytes=parameters_bytes,
        optimizer_bytes=OPTIMIZER_NUMBERS[name] * parameters_bytes,
        activations_bytes=sample_bytes * replay.batch_size,
        world=WORLD,
        source=SOURCE.format(replay=REPLAY[name], optimizer="Adam" if name == "bert" else "SGD with momentum"),
    )


def _buckets(replay: Profile) -> Iterator[tuple[float, int]]:
    """(ready after the step began, bytes)."""
    at_s, size = replay.forward_s, 0
    for layer in reversed(replay.layers):
        at_s += layer.backward_s
        size += NUMBER_BYTES * sum(math.prod(parameter.shape) for parameter in layer.parameters)
        if size >= BUCKET_BYTES:
            yield at_s, size
            size = 0
    if size:
        yield at_s, size


@pytest.mark.parametrize("name", REPLAY)
def test_an_example_profile_is_what_its_source_says(name: str) -> None:
    assert read_profile(FOLDER / f"{name}.json") == derived(name)
