"""Lightning: one callback.

    from crossover.integrations.lightning import CrossoverLightningCallback
    Trainer(…, callbacks=[CrossoverLightningCallback(job="bert")]).fit(module)

Lightning runs the whole `training_step` as the forward of what its strategy has wrapped. With automatic optimisation
that is the forward of a turn. With manual optimisation it holds forward, backward and step at once: a turn around it
would last through the wait for the gradients' messages, and two jobs whose workers come in different orders would wait
for each other for ever. There, and where nothing is wrapped, the module's own networks are attached instead.

Read against Lightning 2.6.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:  # the same library under its older name
    from pytorch_lightning import Callback  # type: ignore[assignment]

from crossover.attach import Attachment, attach
from crossover.errors import Refused


class CrossoverLightningCallback(Callback):
    """Attaches a `fit`'s job while it trains. `options` are those of `crossover.attach`, with names and units as there;
    after training, `attachment` has its statistics. Raises what `attach` raises, when training begins."""

    def __init__(self, job: str | None = None, **options: Any) -> None:
        self.attachment: Attachment | None = None
        self._job, self._options = job, options
        self._pause = ExitStack()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach."""
        models = models_of(trainer.model, pl_module)
        self.attachment = attach(models, tuple(trainer.optimizers), job=self._job, **self._options)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Leave the queue while all workers validate."""
        if self.attachment is not None and self.attachment.takes_turns:
            self._pause.enter_context(self.attachment.pause())

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Come back."""
        self._pause.close()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Detach."""
        if self.attachment is not None:
            self.attachment.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Leave at once: other workers may not have come so far."""
        self._pause.pop_all()
        if self.attachment is not None:
            self.attachment.abandon()


def models_of(wrapped: Any, pl_module: Any) -> tuple[Any, ...]:
    """What to attach: the strategy's model where one automatic forward is one training step, else the networks inside
    the LightningModule. Raises `Refused` where it has none, or parameters of its own that the strategy communicates:
    their messages could be waited for before the networks' gradients are there."""
    if wrapped is not pl_module and pl_module.automatic_optimization:
        return (wrapped,)
    networks = tuple(child for child in pl_module.children() if next(child.parameters(), None) is not None)
    if not networks or (wrapped is not pl_module and pl_module._parameters):
        raise Refused(
            f"{type(pl_module).__name__} computes with parameters of its own: put them into an nn.Module that "
            "training_step calls"
        )
    return networks
