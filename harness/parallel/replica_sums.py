"""A stage's gradients summed over its replicas by the engine, in the job's packing, ordering, compression and exchange.

The gradients of a step are all there when the stage is to be updated, so nothing of their way hides behind a pass. A
weight that two stages share is summed apart and plainly: the replicas of both are no group of either.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from baselines.strategy import Strategy
from harness.engine.engine import Engine
from harness.engine.transport import ProcessGroupTransport
from harness.trace import Recorder


class ReplicaSums:
    """One replica's side. `ranks` are all replicas of the stage, ascending; each makes its own at the same time."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        ranks: Sequence[int],
        strategy: Strategy,
        recorder: Recorder,
        seed: int,
    ) -> None:
        self._parameters, self._num_replicas = tuple(parameters), len(ranks)
        # Groups of these ranks alone: others do not stop here, and could not join.
        transport = ProcessGroupTransport.of(strategy, ranks=ranks)
        self._engine = Engine(nn.ParameterList(parameters), strategy, transport, recorder=recorder, seed=seed)

    def sum_gradients(self) -> None:
        """Replace each parameter's gradient by the sum over replicas. Raises: EngineError if communication failed."""
        # As after a backward in which nothing was sent: the engine announces all gradients at once.
        self._engine.begin_step()
        self._engine.end_backward()
        self._engine.wait()
        for parameter in self._parameters:
            assert parameter.grad is not None, "the engine gives every parameter a gradient"
            parameter.grad.mul_(self._num_replicas)  # the engine's are means

    @property
    def num_sent_bytes(self) -> float:
        """All payload bytes so far."""
        return float(sum(self._engine.traffic.wire_bytes.values()))

    @property
    def num_messages(self) -> int:
        """All messages so far."""
        return self._engine.traffic.num_messages

    def close(self) -> None:
        """End its threads and groups."""
        self._engine.close()
