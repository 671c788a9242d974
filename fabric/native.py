"""The native fabric: ranks talk over what the machine has, here its loopback interface."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from fabric.cluster import Counters, FabricSpec, Host, check_host


class NativeCluster:
    """Hosts that are names only: each is this machine at 127.0.0.1."""

    def __init__(self, spec: FabricSpec) -> None:
        self._spec = spec
        self._hosts = tuple(
            Host(index=index, name="localhost", address="127.0.0.1", interface="lo") for index in range(spec.num_hosts)
        )

    @property
    def spec(self) -> FabricSpec:
        """What was asked for."""
        return self._spec

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts by index, all at the loopback address."""
        return self._hosts

    def enter(self, host: int) -> None:
        """Stay on this machine."""
        check_host(self._spec, host)

    def counters(self) -> tuple[Counters, ...] | None:
        """Return None: one loopback carries all hosts' bytes and other programs' too."""
        return None

    def close(self) -> None:
        """Do nothing: nothing was built."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class LockstepCluster(NativeCluster):
    """One host, on which one process is all ranks."""

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The first host alone."""
        return super().hosts[:1]
