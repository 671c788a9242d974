"""What a forked child must not share with its parent: a seat, and locks that its parent's threads may hold.

A child computes out of turn. It may attach a job of its own.
"""

import os
from typing import Protocol
from weakref import WeakSet


class Inherited(Protocol):
    """An object of which a forked child gets a copy."""

    def become_childs(self) -> None:
        """In the child, before it runs anything else: share nothing with the parent any more."""


_objects: WeakSet[Inherited] = WeakSet()


def separate_at_fork(one: Inherited) -> None:
    """Have `one.become_childs()` called in every process that this one forks."""
    _objects.add(one)


def _separate() -> None:
    for one in tuple(_objects):
        one.become_childs()


os.register_at_fork(after_in_child=_separate)
