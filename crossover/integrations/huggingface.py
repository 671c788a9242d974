"""Hugging Face `Trainer`: one callback.

    from crossover.integrations.huggingface import CrossoverCallback
    Trainer(…, callbacks=[CrossoverCallback(job="bert")]).train()

The trainer wraps model and optimizer only in `train()`, so that is where the callback attaches them. It hands callbacks
the model inside DistributedDataParallel; hooks belong on that one anyway. Around evaluations and checkpoints, which all
workers come to at the same step, the job is out of the queue, and so it is before its first step: trainers evaluate
there (`eval_on_start`), and skip the batches of a run that they resume.

Read against transformers 5.23 and accelerate 1.15.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from transformers import TrainerCallback

from crossover.attach import Attachment, attach
from crossover.errors import Refused


class CrossoverCallback(TrainerCallback):
    """Attaches a `Trainer`'s job while it trains. `options` are those of `crossover.attach`, with names and units as
    there; after training, `attachment` has its statistics. Raises what `attach` raises, when training begins."""

    def __init__(self, job: str | None = None, **options: Any) -> None:
        self.attachment: Attachment | None = None
        self._job, self._options = job, options
        self._pause = ExitStack()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attach, out of the queue; anew where a trainer begins again with a smaller batch (`auto_find_batch_size`)."""
        if self.attachment is not None:
            self._pause.pop_all()
            self.attachment.abandon()
        if getattr(args, "deepspeed", None):
            raise Refused("Trainer hides its DeepSpeed engine from callbacks: attach the engine in a loop of your own")
        self.attachment = attach(kwargs["model"], kwargs["optimizer"], job=self._job, **self._options)
        self._pause.enter_context(self.attachment.pause())

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Come back from an evaluation or a checkpoint, or come for the first time."""
        self._pause.close()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the queue where the trainer is about to evaluate or save. Its own callbacks, which come first, have
        decided that from the step's number: all workers decide the same."""
        if self.attachment is not None and (control.should_evaluate or control.should_save):
            self._pause.close()
            self._pause.enter_context(self.attachment.pause())

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """As at the end of a step."""
        self.on_step_end(args, state, control, **kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Detach."""
        self._pause.pop_all()  # who leaves for good need not come back first
        if self.attachment is not None:
            self.attachment.close()
