"""Which parameters each layer's forward needs, directly or through the layers before it, as autograd's graph tells.

A layer's output knows where it comes from: every leaf below it that accumulates a gradient is a parameter that must
have arrived before the layer can be done. So branches are seen: a shortcut, or the three projections of attention, need
what came before them and not each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor


class ModuleGraph:
    """Collects, in one forward with gradients, what each layer needs. `names` maps a parameter's id to its name."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._below: dict[Any, frozenset[str]] = {}  # of autograd's nodes, which it keeps alive while it grows
        self.needs: dict[str, frozenset[str]] = {}

    def layer(self, own: Iterable[str], output: object) -> None:
        """A layer with parameters `own` gave `output`: a tensor, or tensors in tuples, lists or dicts."""
        found = frozenset[str]().union(*(self._reach(tensor.grad_fn) for tensor in _tensors(output)))
        for name in own:
            self.needs.setdefault(name, found | {name})  # the first use counts, as for its time

    def close(self) -> None:
        """The forward ended; autograd's nodes are let go."""
        self._below.clear()

    def _reach(self, root: Any) -> frozenset[str]:
        """Names of the parameters below a node, without recursion: graphs are deep."""
        stack = [] if root is None else [root]
        while stack:
            node = stack[-1]
            if node not in self._below:
                below = [child for child, _ in node.next_functions if child is not None]
                # Children first: the node stays on the stack and is looked at again when they are known.
                if fresh := [child for child in below if child not in self._below]:
                    stack += fresh
                    continue
                leaf = getattr(node, "variable", None)  # of a leaf: the tensor that accumulates
                own = {self._names[id(leaf)]} if id(leaf) in self._names else set[str]()
                self._below[node] = frozenset(own).union(*(self._below[child] for child in below))
            stack.pop()
        return frozenset() if root is None else self._below[root]


def _tensors(output: object) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, tuple | list) else ()
    return [tensor for part in parts for tensor in _tensors(part)]
