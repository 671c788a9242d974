"""Record what compressors cost on the device at hand, for replay.

    python -m harness.predict.codec_recording [--device cuda] [--out models/profiles/codecs/NAME.json] [METHOD …]

One rank's compressor is driven as the engine does, with one message of all parameters of a network in their real shapes
(ResNet-50: 25.6 million elements), and told what equal ranks would send. Other ranks' payloads are this rank's own, but
for those of a merge, which come from other gradients. A file that exists is added to. `--derive` makes the profile of
a device that is not here from the one on the CPU, by its rate of copying (V100: 750 of 900 GB/s, as Jia et al.,
"Dissecting the NVIDIA Volta GPU", 2018, measured; not verified here).
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from baselines.api import Aggregate, Aggregated, Context, How, Message, Payload, Segment, State
from baselines.catalogue import CatalogueError
from baselines.strategy import Strategy, parse_strategy
from baselines.text import TextError
from harness.predict.codecs import codec_text
from models.codec_profile import CODECS, CodecProfile, StageTimes, load_codecs, on_device, save_codecs
from models.layer_profile import load_profile
from models.networks import find_network
from models.values import WorkloadError

NETWORK = "resnet50"
WORLDS = (2, 4, 8)
NUM_RUNS = 5
STEP = 1_000_000  # behind any warm-up
COPY_RATES = {"v100": ("Tesla V100", 750e9)}  # bytes read and written a second
METHODS = (
    "half",
    "half(dtype='bfloat16')",
    "topk(density=0.01)+error-feedback",
    "random-k(density=0.01)+error-feedback",
    "aji-heafield(density=0.01)+error-feedback",
    "dgc(density=0.001)+sgd(momentum=0.0)",
    "gtopk(density=0.01)+error-feedback+tree",
    "sbc(density=0.01)+error-feedback",
    "qsgd(bits=4, bucket=512)",
    "qsgd(bits=2, bucket=64)",
    "onebit+double-squeeze+error-feedback",
    "onebit(per='tensor')+double-squeeze+error-feedback",
    "onebit-adam(warmup_steps=1)+frozen-adam(freeze_after=1)",
    "powersgd(rank=1)+error-feedback",
    "powersgd(rank=4)+error-feedback",
)


def network_message(network: str = NETWORK) -> Message:
    """All parameters of a network as one message, in the order in which backward makes them ready."""
    profile = load_profile(find_network(network).profile)
    parameters = [p for layer in reversed(profile.layers) for p in layer.parameters]
    segments = (Segment(p.name, p.shape, 0, math.prod(p.shape), place) for place, p in enumerate(parameters))
    return Message(0, tuple(segments))


def record_method(
    strategy: Strategy, message: Message, *, device: str = "cpu", num_runs: int = NUM_RUNS
) -> Iterator[StageTimes]:
    """Times among each number of ranks, the best of `num_runs` in each stage; of the first one, which encodes whatever
    the number of ranks, the best of all."""
    rows = list(_rows(strategy, message, device, num_runs))
    first_s = min(row.stages_s[0] for row in rows)
    for row in rows:
        yield replace(row, stages_s=(first_s, *row.stages_s[1:]))


def _rows(strategy: Strategy, message: Message, device: str, num_runs: int) -> Iterator[StageTimes]:
    for world in WORLDS:
        # A fresh state per number of ranks: residuals of one must not warm up the next.
        timer = _Timer(strategy, message, device, world)
        runs = [timer.run(step) for step in range(num_runs + 1)][1:]  # the first one compiles
        yield StageTimes(
            world=world,
            stages_s=tuple(min(stages) / message.numel for stages in zip(*(run.stages_s for run in runs), strict=True)),
            merge_s=min(run.merge_s for run in runs) / message.numel,
        )


@dataclass(slots=True)
class _Run:
    """Seconds of one reduction."""

    stages_s: list[float] = field(default_factory=list)
    merge_s: float = 0.0


class _Timer:
    """Drives one rank's compressor, step after step, with the state that it keeps."""

    def __init__(self, strategy: Strategy, message: Message, device: str, world: int) -> None:
        self._strategy, self._message, self._device, self._world = strategy, message, device, world
        self._states = {s.name: self._new_state(s) for s in message.segments}
        self._generator = torch.Generator().manual_seed(0)  # on the CPU, as a rank's own
        self._codes: Payload = ()

    def _new_state(self, segment: Segment) -> State:
        return self._strategy.compression.init(segment.name, torch.zeros(segment.shape, device=self._device))

    def run(self, step: int) -> _Run:
        """One reduction of a new gradient."""
        run, timed = _Run(), self._reduction(self._gradient(step), self._states, STEP + step)
        answer: Aggregated | None = None
        while True:
            start_s = self._now_s()
            try:
                aggregate = next(timed) if answer is None else timed.send(answer)
            except StopIteration:
                run.stages_s.append(self._now_s() - start_s)
                return run
            run.stages_s.append(self._now_s() - start_s)
            if aggregate.merge is not None:
                run.merge_s = self._merge_s(aggregate, step)
            answer = Aggregated(self._answer(aggregate))

    def _gradient(self, seed: int) -> Tensor:
        generator = torch.Generator(self._device).manual_seed(seed)
        return torch.randn(self._message.numel, generator=generator, device=self._device).mul_(1e-3)

    def _reduction(self, grad: Tensor, states: dict[str, State], step: int):  # type: ignore[no-untyped-def]
        ctx = Context(0, self._world, step, self._message, self._generator, num_workers=self._world)
        return self._strategy.compression.reduce(grad, states, ctx)

    def _answer(self, aggregate: Aggregate) -> tuple[Payload, ...]:
        """What rank 0 of equal ranks is told. A server's reply is as large as what it was sent."""
        if aggregate.how is How.SCATTER:
            self._codes = aggregate.payload
            return ((aggregate.payload[0],),) * self._world
        if aggregate.how is How.CONCAT and self._codes:
            codes, self._codes = self._codes, ()
            return tuple((code,) for code in codes)
        return (aggregate.payload,) * (self._world if aggregate.how is How.CONCAT else 1)

    def _merge_s(self, aggregate: Aggregate, step: int) -> float:
        """Merging with what a rank with another gradient has; the clone is what a link would have received into."""
        assert aggregate.merge is not None
        states = {s.name: self._new_state(s) for s in self._message.segments}
        other = next(self._reduction(self._gradient(step + 1000), states, STEP))
        start_s = self._now_s()
        aggregate.merge(tuple(part.clone() for part in aggregate.payload), other.payload)
        return self._now_s() - start_s

    def _now_s(self) -> float:
        if self._device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()


def copy_s(numel: int, device: str) -> float:
    """One `copy_` between two float32 tensors that have been written to, seconds per element."""
    # Written to before they are timed, so that page faults are over.
    source, target = torch.ones(numel, device=device), torch.ones(numel, device=device)
    return _best_s(lambda: target.copy_(source), device) / numel


def _best_s(call: Callable[[], object], device: str, rounds: int = 8) -> float:
    times_s = []
    for _ in range(rounds):
        start_s = time.perf_counter()
        call()
        if device != "cpu":
            torch.cuda.synchronize()
        times_s.append(time.perf_counter() - start_s)
    # The least: other work on the machine only ever adds time.
    return min(times_s)


def device_name(device: str) -> str:
    """The device by a name that a reader knows."""
    if device != "cpu":
        return torch.cuda.get_device_name()
    models = [line.partition(":")[2].strip() for line in _cpu_info() if line.startswith("model name")]
    return f"one core of {models[0] if models else platform.processor() or platform.machine()}"


def _cpu_info() -> Sequence[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else ()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m harness.predict.codec_recording", description=__doc__)
    parser.add_argument("methods", nargs="*", default=METHODS, help="strategy texts; default: those of the suites")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--derive", choices=tuple(COPY_RATES), help="from the CPU's copies; records nothing")
    given = parser.parse_args()
    try:
        _record(given)
    except (CatalogueError, TextError, WorkloadError) as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"cannot write {given.out or CODECS} ({error.strerror}); name another file with --out")


def _record(given: argparse.Namespace) -> None:
    if given.derive:
        name, rate = COPY_RATES[given.derive]
        save_codecs(on_device(load_codecs(), name, 8 / rate), given.out or CODECS / f"{given.derive}.json")
        return
    out = given.out or CODECS / f"{given.device}.json"
    torch.set_num_threads(1)
    message = network_message()
    profile = load_codecs(str(out)) if out.is_file() else None
    for text, strategy in [(text, parse_strategy(text)) for text in given.methods or METHODS]:
        rows = tuple(record_method(strategy, message, device=given.device))
        methods = {**(profile.methods if profile else {}), codec_text(strategy.compression): rows}
        profile = CodecProfile(
            device=device_name(given.device),
            source=f"best of {NUM_RUNS} runs after one, one thread, torch {torch.__version__}, "
            f"{os.cpu_count()} cores shared with other work",
            network=NETWORK,
            num_elements=message.numel,
            copy_s=copy_s(message.numel, given.device),
            methods=methods,
        )
        save_codecs(profile, out)
        copies = [sum(row.stages_s) / profile.copy_s for row in rows]
        print(
            f"{text}: {', '.join(f'{c:.1f} copies among {r.world}' for c, r in zip(copies, rows, strict=True))}",
            flush=True,
        )


if __name__ == "__main__":
    main()
