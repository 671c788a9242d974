"""The torch.distributed backend `paced`: every operation is complete when it has run *and* its link has carried it.

    register()
    dist.init_process_group("paced", store=store, rank=rank, world_size=size, pg_options=Pacing(link, carrier))

With real peers a group of gloo (NCCL for tensors on a GPU) does the work. With virtual peers this rank is the only one
and gets what equal peers would give (`harness.paced.equal_peers`). A group's collectives are one flow on the link and
are carried in order; what it sends from rank to rank is another one.

A message from rank to rank takes the sender's link, and is handed over when that has carried it: a receiver that
waited since long before does not have it sooner. Groups made by `new_group` are on the link of the default group.

Source: torch.distributed's third-party backends (`Backend.register_backend`), written against torch 2.13.
"""

# mypy: disable-error-code="override, assignment"
# torch's stubs give each operation several forms; a group in Python is called with one of them.

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllreduceOptions, BarrierOptions

from fabric.cluster import FabricError
from fabric.collectives import Collective
from fabric.paced import PACED
from harness.paced import equal_peers
from harness.paced.carried import DEVICES, CarriedGroup
from harness.paced.equal_peers import refusal
from harness.paced.pacing import Pacing
from harness.paced.work import Both, PacedWork, follow

_SUM, _BARRIER = AllreduceOptions(), BarrierOptions()


def register() -> None:
    """Make the backend known to torch.distributed. May be called again."""
    if PACED not in dist.Backend.backend_list:
        dist.Backend.register_backend(PACED, _create, extended_api=True, devices=list(DEVICES))


def _create(asked: Any, pacing: Pacing | None) -> PacedGroup:
    """torch's call for each new group."""
    if pacing is None:
        world = dist.group.WORLD
        if not isinstance(world, PacedGroup):
            raise FabricError(
                "the backend 'paced' needs a link: give init_process_group pg_options=Pacing(link, carrier), or start "
                "the script under `crossover-bench pace`"
            )
        pacing = world.pacing
    inner = None if pacing.is_virtual else _inner_group(asked.store, asked.group_rank, asked.group_size, asked.timeout)
    return PacedGroup(asked.group_id, asked.group_rank, asked.group_size, pacing, inner)


def _inner_group(store: dist.Store, rank: int, size: int, timeout: timedelta) -> dist.ProcessGroup:
    group = dist.ProcessGroup(store, rank, size)
    kinds = dist.ProcessGroup.BackendType
    group._set_default_backend(kinds.GLOO)
    gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
    group._register_backend(torch.device("cpu"), kinds.GLOO, gloo)
    # Both backends in one group, so that CPU and GPU tensors take the same paced group.
    if torch.cuda.is_available() and dist.is_nccl_available():
        options = dist.ProcessGroupNCCL.Options()
        nccl = dist.ProcessGroupNCCL(store, rank, size, options)
        group._register_backend(torch.device("cuda"), kinds.NCCL, nccl)
    return group


class PacedGroup(CarriedGroup):
    """The operations, which are torch's own: each says what it costs and what it gives."""

    # ---- collectives

    def allreduce(self, tensors: list[Tensor], opts: Any = _SUM) -> PacedWork:
        """In place, of one tensor."""
        return self._reduce(Collective.ALL_REDUCE, tensors, opts, lambda inner: inner.allreduce(tensors, opts))

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any) -> PacedWork:
        """In place, of several tensors as one operation on the link."""
        return self._reduce(
            Collective.ALL_REDUCE, tensors, opts, lambda inner: inner.allreduce_coalesced(tensors, opts)
        )

    def reduce(self, tensors: list[Tensor], opts: Any) -> PacedWork:
        """To one root; with virtual peers the other ranks' tensors stay as they are."""
        is_root = opts.rootRank == self._own_rank
        return self._reduce(Collective.REDUCE, tensors, opts, lambda inner: inner.reduce(tensors, opts), keeps=is_root)

    def _reduce(
        self,
        collective: Collective,
        tensors: list[Tensor],
        opts: Any,
        really: Callable[[dist.ProcessGroup], dist.Work],
        *,
        keeps: bool = True,
    ) -> PacedWork:
        known = "" if self._inner is not None else equal_peers.known_reduction(opts.reduceOp, self._num_ranks)
        return self._run(
            collective,
            _nbytes(tensors),
            tensors,
            on=tensors[0],
            virtually=lambda: equal_peers.reduced(tensors if keeps else [], known, self._num_ranks),
            really=really,
        )

    def broadcast(self, tensors: list[Tensor], opts: Any) -> PacedWork:
        """From one root. Raises: FabricError if the root is a virtual peer."""
        self._check_root(opts.rootRank, "a broadcast")
        return self._run(
            Collective.BROADCAST,
            _nbytes(tensors),
            tensors,
            on=tensors[0],
            virtually=lambda: None,
            really=lambda inner: inner.broadcast(tensors, opts),
        )

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> PacedWork:
        """`outputs` [inputs][ranks] from `inputs`, each input as large as each of its outputs."""
        return self._gather_all(outputs, outputs, inputs, lambda inner: inner.allgather(outputs, inputs, opts))

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> PacedWork:
        """torch gives one list of outputs per rank; `_gather_all` takes one per input."""
        by_input = [list(of_input) for of_input in zip(*outputs, strict=True)]
        return self._gather_all(
            outputs, by_input, inputs, lambda inner: inner.allgather_coalesced(outputs, inputs, opts)
        )

    def all_gather_single(self, output: Tensor, source: Tensor, opts: Any) -> PacedWork:
        """Into one tensor: `output` [ranks · numel] from `source` [numel]."""
        return self._gather_all(
            output, [self._parts(output)], [source], lambda inner: inner._allgather_base(output, source, opts)
        )

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> PacedWork:
        """Several of `all_gather_single` as one operation on the link."""
        return self._gather_all(
            outputs,
            [self._parts(output) for output in outputs],
            inputs,
            lambda inner: inner.allgather_into_tensor_coalesced(outputs, inputs, opts),
        )

    def _gather_all(
        self,
        answer: Any,
        outputs: Sequence[Sequence[Tensor]],
        inputs: Sequence[Tensor],
        really: Callable[[dist.ProcessGroup], dist.Work],
    ) -> PacedWork:
        pairs = list(zip(outputs, inputs, strict=True))
        if self._inner is None:
            for parts, source in pairs:
                equal_peers.check_copies(parts, source, self._own_rank)
        return self._run(
            Collective.ALL_GATHER,
            _nbytes(inputs),
            answer,
            on=inputs[0],
            virtually=lambda: [output.copy_(source.view_as(output)) for parts, source in pairs for output in parts],
            really=really,
        )

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> PacedWork:
        """To one root, which alone has `outputs` [1][ranks]."""
        if self._inner is None and outputs:
            equal_peers.check_copies(outputs[0], inputs[0], self._own_rank)
        return self._run(
            Collective.GATHER,
            _nbytes(inputs),
            outputs,
            on=inputs[0],
            virtually=lambda: [output.copy_(inputs[0].view_as(output)) for parts in outputs for output in parts],
            really=lambda inner: inner.gather(outputs, inputs, opts),
        )

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> PacedWork:
        """From one root, which alone has `inputs` [1][ranks]. Raises: FabricError if the root is a virtual peer."""
        self._check_root(opts.rootRank, "a scatter")
        return self._run(
            Collective.SCATTER,
            _nbytes(outputs),
            outputs,
            on=outputs[0],
            virtually=lambda: outputs[0].copy_(inputs[0][self._own_rank]),
            really=lambda inner: inner.scatter(outputs, inputs, opts),
        )

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> PacedWork:
        """`inputs` [1][ranks]; each rank keeps the sum of its own. Raises: FabricError among virtual peers."""
        return self._scatter_sums(inputs[0], outputs, lambda inner: inner.reduce_scatter(outputs, inputs, opts))

    def reduce_scatter_single(self, output: Tensor, source: Tensor, opts: Any) -> PacedWork:
        """From one tensor: `output` [numel] from `source` [ranks · numel]. Raises: FabricError among virtual peers."""
        return self._scatter_sums([source], output, lambda inner: inner._reduce_scatter_base(output, source, opts))

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> PacedWork:
        """Several of `reduce_scatter_single` as one operation on the link. Raises: FabricError among virtual peers."""
        return self._scatter_sums(
            inputs, outputs, lambda inner: inner.reduce_scatter_tensor_coalesced(outputs, inputs, opts)
        )

    def _scatter_sums(
        self, inputs: Sequence[Tensor], answer: Any, really: Callable[[dist.ProcessGroup], dist.Work]
    ) -> PacedWork:
        if self._inner is None:
            raise refusal("a reduce-scatter, after which each rank keeps another part of the sum")
        return self._run(
            Collective.REDUCE_SCATTER, _nbytes(inputs), answer, on=inputs[0], virtually=lambda: None, really=really
        )

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any) -> PacedWork:
        """A tensor to and from each rank. Raises: FabricError among virtual peers."""
        sizes = [[_nbytes([tensor]) for tensor in tensors] for tensors in (inputs, outputs)]
        return self._all_to_all(sizes, inputs[0], outputs, lambda inner: inner.alltoall(outputs, inputs, opts))

    def all_to_all_single(
        self, output: Tensor, source: Tensor, output_splits: list[int], input_splits: list[int], opts: Any
    ) -> PacedWork:
        """One tensor each way, cut at `input_splits` and `output_splits` (empty: equal parts) of the first dimension.
        Raises: FabricError among virtual peers."""
        sizes = [
            _split_bytes(tensor, splits, self._num_ranks)
            for tensor, splits in ((source, input_splits), (output, output_splits))
        ]
        return self._all_to_all(
            sizes,
            source,
            output,
            lambda inner: inner.alltoall_base(output, source, output_splits, input_splits, opts),
        )

    def _all_to_all(
        self,
        sizes: Sequence[Sequence[float]],
        on: Tensor,
        answer: Any,
        really: Callable[[dist.ProcessGroup], dist.Work],
    ) -> PacedWork:
        """`sizes` are bytes to and from each rank; a link carries both ways at once, so the fuller one counts."""
        if self._inner is None:
            raise refusal("an all-to-all, in which each rank gets another part")
        busiest = max(sum(of_rank) - of_rank[self._own_rank] for of_rank in sizes)
        return self._run(Collective.ALL_TO_ALL, busiest, answer, on=on, virtually=lambda: None, really=really)

    def barrier(self, opts: Any = _BARRIER) -> PacedWork:
        """Carries no bytes, so it costs the link's start-up times alone."""
        return self._run(
            Collective.BARRIER, 0, [], on=None, virtually=lambda: None, really=lambda inner: inner.barrier(opts)
        )

    # ---- from rank to rank

    def send(self, tensors: list[Tensor], to: int, tag: int) -> PacedWork:
        """Take the sender's link first, then hand the tensors over; among virtual peers nobody receives them."""
        both = Both(tensors, tensors[0])
        inner = self._inner
        if inner is None:
            both.carried(None)
        else:
            self._to_send.append((both, lambda: inner.send(tensors, to, tag)))

        def paid(error: FabricError | None) -> None:
            both.paid(error)
            if inner is not None:
                self._hand_over()

        self._pay((self._number, "send"), Collective.TRANSFER, _nbytes(tensors), tensors[0], paid)
        return PacedWork(both.future)

    def _hand_over(self) -> None:
        """Hand over what has been carried, oldest first: answers of a flow come in order, threads need not."""
        try:
            # Held until it is handed over: gloo matches messages of one tag in the order in which it gets them.
            with self._handing_over:
                both, send = self._to_send.popleft()
                work = send()
            # No longer held: who is told may send the next message at once.
            follow(work, both.carried, None, self._on_device)
        except Exception as error:  # noqa: BLE001  reaches whoever waits; this is the link's thread
            both.carried(error)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> dist.Work:
        """Costs nothing here: the sender has paid. Raises: FabricError among virtual peers."""
        if self._inner is None:
            raise refusal(f"a message from rank {source}")
        return self._inner.recv(tensors, source, tag)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> dist.Work:
        """As `recv`, from whoever sends first. Raises: FabricError among virtual peers."""
        if self._inner is None:
            raise refusal("a message from any rank")
        return self._inner.recv_anysource(tensors, tag)

    def _parts(self, whole: Tensor) -> list[Tensor]:
        return list(whole.view(-1).chunk(self._num_ranks))

    # Names that torch before 2.13 calls the same operations by.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _nbytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _split_bytes(tensor: Tensor, splits: Sequence[int], size: int) -> list[float]:
    """Bytes for each rank; without `splits` an equal part."""
    total = _nbytes([tensor])
    if not splits:
        return [total / size] * size
    return [total * split / max(1, sum(splits)) for split in splits]
