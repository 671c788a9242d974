"""A scheduler that grants at once and writes down what it is asked."""

from collections.abc import Callable

from crossover import Extent, Lease, LeaseLost, TurnTaking


class Diary(TurnTaking):
    """`lost` are the generations whose release comes too late."""

    def __init__(self, extent: Extent = Extent.BACKWARD, lost: frozenset[int] = frozenset()) -> None:
        self.events: list[str] = []
        self._extent, self._lost = extent, lost
        self._num_leases = 0
        self.has_left = False
        self.on_release: Callable[[], object] = lambda: None

    @property
    def extent(self) -> Extent:
        return self._extent

    def acquire(self, *, aside: bool = False) -> Lease:
        assert not self.has_left
        self._num_leases += 1
        self.events.append("aside" if aside else "acquire")
        return Lease(self._num_leases, 0, 0.25)

    def release(self, lease: Lease) -> None:
        self.events.append("release")
        self.on_release()
        if lease.generation in self._lost:
            raise LeaseLost(f"lease {lease.generation} was withdrawn")

    def skip(self, num_rounds: int) -> None:
        raise AssertionError("a keeper skips nothing")

    def pause(self) -> None:
        self.events.append("pause")

    def resume(self) -> None:
        self.events.append("resume")

    def leave(self) -> None:
        self.has_left = True
