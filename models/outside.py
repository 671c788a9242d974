"""A network from outside the tree, named `path/to/file.py:NAME`.

NAME is a `Network`, or a function `build(shape: SampleShape, dropout: float) -> nn.Module` of an image classifier. The
file is imported as any program that you start: only name one that you trust. Its imports find the files beside it, as
`python FILE.py` does, also where those have the names of this project's packages (`models`, `analysis`, …).
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from models.network import Kind, Network, SampleShape
from models.values import WorkloadError

_CHECKOUT = Path(__file__).resolve().parent.parent
IMAGE_SIZE, NUM_CLASSES = 224, 1_000  # of ImageNet, for a plain function; a `Network` says its own


def is_outside(name: str) -> bool:
    """Whether a network's name leads out of the tree."""
    return ".py:" in name


@cache
def network_outside(name: str) -> Network:
    """The network that `FILE.py:NAME` stands for, called so, since that finds it again; the file is imported once.

    Raises: WorkloadError if the file, the name or what it stands for will not do, with the reason.
    """
    file, _, attribute = name.rpartition(":")
    path = Path(file).expanduser()
    if not path.is_file():
        raise WorkloadError(f"network {name!r}: there is no file {file!r}; write FILE.py:NAME")
    found = getattr(_imported(path), attribute, None)
    if isinstance(found, Network):
        return replace(found, name=name)
    if not callable(found):
        raise WorkloadError(
            f"network {name!r}: {attribute!r} in {path.name} is {type(found).__name__}; define it as a function "
            "build(shape, dropout) that returns a torch module, or as a models.network.Network"
        )
    return _of_function(name, found)


def _imported(path: Path) -> ModuleType:
    path = path.resolve()
    name = f"outside_{path.stem}_{hashlib.sha256(bytes(path)).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "a .py file has a loader"
    sys.modules[name] = module = importlib.util.module_from_spec(spec)  # dataclasses look their module up by name
    try:
        with _importing_from(path.parent):
            spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise WorkloadError(f"{path} cannot be imported ({type(error).__name__}: {error}); correct the file") from error
    return module


@contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    """Within, imports look into `folder` first. Afterwards they look there last, for what the network imports later."""
    own = set() if folder == _CHECKOUT else {init.parent.name for init in _CHECKOUT.glob("*/__init__.py")}
    shadowed = {name for name in own if (folder / name).is_dir() or (folder / f"{name}.py").exists()}

    def of_shadowed() -> list[str]:
        return [name for name in sys.modules if name.partition(".")[0] in shadowed]

    hidden = {name: sys.modules.pop(name) for name in of_shadowed()}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
        for name in of_shadowed():
            del sys.modules[name]
        sys.modules.update(hidden)


def _of_function(name: str, build: Callable[[SampleShape, float], nn.Module]) -> Network:
    shape = SampleShape(size=IMAGE_SIZE, num_classes=NUM_CLASSES)
    try:
        model = build(shape, 0.0)
        activation_bytes = _saved_bytes(model, shape)
    except Exception as error:
        raise WorkloadError(
            f"network {name!r}: build({shape}, 0.0) and one forward pass failed with {error!r}; correct it, or give a "
            "models.network.Network that says what it eats"
        ) from error
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    return Network(
        name=name,
        summary=f"from outside, {num_parameters:,} parameters",
        kind=Kind.IMAGES,
        build=build,
        data=("synthetic", "imagefolder"),
        image_size=IMAGE_SIZE,
        num_classes=NUM_CLASSES,
        dropout=0.0,
        num_parameters=num_parameters,
        activation_bytes=activation_bytes,
        layer_of=lambda module: module,
    )


def _saved_bytes(model: nn.Module, shape: SampleShape) -> int:
    """What a forward pass of one sample keeps for backward, parameters aside."""
    own = {parameter.data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model.eval()(torch.zeros(1, shape.channels, shape.size, shape.size))
    return sum(kept.values())
