"""The real trainers: Hugging Face's, accelerate and Lightning, each against its run without turns."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import crossover
from crossover import ArbiterProcess, Refused, start
from crossover.integrations.unwrapping import unwrapped
from crossover.status import read_status

NUM_STEPS = 8

# What the libraries do themselves, not the code under test.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture
def arbiter(tmp_path: Path) -> Iterator[ArbiterProcess]:
    with start(tmp_path / "trainer.sock", ("a",)) as process:
        yield process


class Rows(Dataset[dict[str, Tensor]]):
    """A few inputs and labels."""

    def __init__(self) -> None:
        drawn = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(32, 3, generator=drawn)
        self.labels = torch.randn(32, 2, generator=drawn)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"inputs": self.inputs[place], "labels": self.labels[place]}


class Net(nn.Module):
    """As Trainer wants it: its forward computes the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 2))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        outputs = self.layers(inputs)
        return {"loss": (outputs - labels).square().mean(), "logits": outputs}


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


class TestHuggingFace:
    @staticmethod
    def train(folder: Path, callbacks: list[Any], attaches: Path | None = None, **options: Any) -> list[Tensor]:
        from transformers import Trainer, TrainingArguments

        torch.manual_seed(3)
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        attachment = crossover.attach(model, optimizer, job="a", path=attaches) if attaches else None
        arguments = TrainingArguments(
            str(folder / "out"),
            per_device_train_batch_size=4,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            **{"max_steps": NUM_STEPS, "save_strategy": "no", **options},
        )
        trainer = Trainer(
            model,
            arguments,
            train_dataset=Rows(),
            eval_dataset=Rows(),
            callbacks=callbacks,
            optimizers=(optimizer, None),
        )
        trainer.train()
        if attachment is not None:
            assert attachment.statistics.num_turns >= NUM_STEPS
            attachment.close()
        return weights(model)

    @pytest.mark.parametrize(
        ("options", "num_pauses"),
        [
            ({}, 0),
            ({"eval_strategy": "steps", "eval_steps": 3}, 2),
            ({"save_strategy": "steps", "save_steps": 4}, 2),
            ({"gradient_accumulation_steps": 2, "max_grad_norm": 0.1}, 0),
        ],
        ids=["plain", "evaluations", "checkpoints", "accumulation and clipping"],
    )
    def test_a_trainer_with_the_callback_trains_what_it_trains_alone(
        self, arbiter: ArbiterProcess, tmp_path: Path, options: dict[str, Any], num_pauses: int
    ) -> None:
        from crossover.integrations.huggingface import CrossoverCallback

        callback = CrossoverCallback(job="a", path=arbiter.path)
        alone = self.train(tmp_path, [], **options)
        assert all(map(torch.equal, alone, self.train(tmp_path, [callback], **options)))
        assert callback.attachment is not None
        assert not callback.attachment.takes_turns
        num_micro_batches = options.get("gradient_accumulation_steps", 1)
        # One more for the last update, and one where a pause parts an update from the forward behind it.
        at_least = NUM_STEPS * num_micro_batches + 1
        assert at_least <= callback.attachment.statistics.num_turns <= at_least + num_pauses

    def test_nobody_waits_for_an_evaluation_before_the_first_step(
        self, arbiter: ArbiterProcess, tmp_path: Path
    ) -> None:
        from transformers import TrainerCallback

        from crossover.integrations.huggingface import CrossoverCallback

        class Watch(TrainerCallback):
            """Whether the job was out of the queue at each batch of an evaluation."""

            def __init__(self) -> None:
                self.passed: list[bool] = []

            def on_prediction_step(self, *_: Any, **__: Any) -> None:
                (token,) = read_status(arbiter.path).tokens
                self.passed += [seat.passed for seat in token.seats]

        watch = Watch()
        self.train(tmp_path, [CrossoverCallback(job="a", path=arbiter.path), watch], eval_on_start=True, max_steps=1)
        assert watch.passed
        assert all(watch.passed)

    def test_a_trainer_that_begins_again_is_attached_again(self, arbiter: ArbiterProcess) -> None:
        """With `auto_find_batch_size`, after a batch that did not fit into memory: nothing tells the callback."""
        from crossover.integrations.huggingface import CrossoverCallback

        callback = CrossoverCallback(job="a", path=arbiter.path)
        attachments = []
        for _ in range(2):
            model = Net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            callback.on_train_begin(None, None, None, model=model, optimizer=optimizer)
            attachments.append(callback.attachment)
        assert [one is not None and one.takes_turns for one in attachments] == [False, True]
        callback.on_train_end(None, None, None)

    def test_a_newcomers_line_in_front_of_the_trainer_trains_the_same(
        self, arbiter: ArbiterProcess, tmp_path: Path
    ) -> None:
        """The trainer zeroes gradients through other objects than the attached ones: every deferred step was lost."""
        alone = self.train(tmp_path, [])
        assert all(map(torch.equal, alone, self.train(tmp_path, [], attaches=arbiter.path)))


class TestAccelerate:
    @staticmethod
    def train(path: Path | None, num_micro_batches: int, *, defer: bool = False) -> tuple[list[Tensor], int]:
        from accelerate import Accelerator

        torch.manual_seed(3)
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=num_micro_batches)
        model = Net()
        model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.05))
        schedule = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5))
        num_turns, attachment = 0, None
        if path is not None:
            attachment = crossover.attach(model, optimizer, job="a", path=path, defer=defer)
        for _ in range(NUM_STEPS):
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.randn(4, 3), torch.randn(4, 2))["loss"])
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        if attachment is not None:
            attachment.close()
            num_turns = attachment.statistics.num_turns
        return weights(model), num_turns

    @pytest.mark.parametrize("num_micro_batches", [1, 3])
    @pytest.mark.parametrize("defer", [False, True], ids=["exact", "deferred"])
    def test_one_line_behind_prepare_trains_what_it_trains_alone(
        self, arbiter: ArbiterProcess, num_micro_batches: int, defer: bool
    ) -> None:
        """`AcceleratedOptimizer` has no hooks of its own, and looks at `sync_gradients` when it steps."""
        alone, _ = self.train(None, num_micro_batches)
        shared, num_turns = self.train(arbiter.path, num_micro_batches, defer=defer)
        assert all(map(torch.equal, alone, shared))
        is_last_a_step = NUM_STEPS % num_micro_batches == 0
        assert num_turns == NUM_STEPS + (is_last_a_step and not defer)

    def test_a_gradient_scaler_that_captured_the_step_calls_the_new_one(self, arbiter: ArbiterProcess) -> None:
        from accelerate import Accelerator
        from accelerate.optimizer import AcceleratedOptimizer

        Accelerator(cpu=True).gradient_state._set_sync_gradients(True)  # one state per process, whatever ran before
        model = Net()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        optimizer = AcceleratedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), scaler=scaler)
        with crossover.attach(model, optimizer, job="a", path=arbiter.path) as attachment:
            for _ in range(3):
                scaler.scale(model(torch.ones(4, 3), torch.ones(4, 2))["loss"]).backward()
                before = weights(model)
                optimizer.step()
                assert not torch.equal(before[0], weights(model)[0])
                optimizer.zero_grad()
        assert attachment.statistics.num_turns == 4

    def test_wrapped_optimizers_are_unwrapped_to_the_last(self) -> None:
        from accelerate import Accelerator
        from accelerate.optimizer import AcceleratedOptimizer
        from lightning.pytorch.core.optimizer import LightningOptimizer

        Accelerator(cpu=True)
        inner = torch.optim.SGD(Net().parameters(), lr=0.1)
        assert unwrapped(AcceleratedOptimizer(inner)) is inner
        assert unwrapped(LightningOptimizer(inner)) is inner
        assert unwrapped(inner) is inner


class TestLightning:
    @staticmethod
    def train(folder: Path, callbacks: list[Any], *, manual: bool = False, **options: Any) -> list[Tensor]:
        import lightning

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

        class Module(lightning.LightningModule):
            """Two networks, as a GAN has them."""

            def __init__(self) -> None:
                super().__init__()
                self.automatic_optimization = not manual
                self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

            def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
                loss = (self.second(self.first(batch["inputs"])) - batch["labels"]).square().mean()
                if manual:
                    optimizers = self.optimizers()
                    self.manual_backward(loss)
                    for optimizer in optimizers:
                        optimizer.step()
                        optimizer.zero_grad()
                return loss

            def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
                self.log("loss", self.second(self.first(batch["inputs"])).mean())

            def configure_optimizers(self) -> Any:
                if not manual:
                    return torch.optim.AdamW(self.parameters(), lr=0.05)
                return [torch.optim.SGD(part.parameters(), lr=0.05) for part in (self.first, self.second)]

        torch.manual_seed(3)
        module = Module()
        loader = torch.utils.data.DataLoader(Rows(), batch_size=4)
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_epochs=2, callbacks=callbacks, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=str(folder), **options,
        )  # fmt: skip
        trainer.fit(module, loader, loader)
        return weights(module)

    @pytest.mark.parametrize("manual", [False, True], ids=["automatic", "manual"])
    def test_a_fit_with_the_callback_trains_what_it_trains_alone(
        self, arbiter: ArbiterProcess, tmp_path: Path, manual: bool
    ) -> None:
        from crossover.integrations.lightning import CrossoverLightningCallback

        callback = CrossoverLightningCallback(job="a", path=arbiter.path)
        alone = self.train(tmp_path, [], manual=manual)
        assert all(map(torch.equal, alone, self.train(tmp_path, [callback], manual=manual)))
        assert callback.attachment is not None
        # 2 epochs of 8 batches, the last update, and the validation between them.
        assert 17 <= callback.attachment.statistics.num_turns <= 18

    def test_with_manual_optimisation_under_a_wrapper_the_networks_are_attached(self) -> None:
        """A turn around the whole `training_step` lasted through the wait for the messages of its backward."""
        import lightning

        from crossover.integrations.lightning import models_of

        module = lightning.LightningModule()
        module.net, wrapper = nn.Linear(2, 2), nn.Sequential(module)
        assert models_of(wrapper, module) == (wrapper,)
        module.automatic_optimization = False
        assert models_of(wrapper, module) == (module.net,)
        module.scale = nn.Parameter(torch.ones(1))
        with pytest.raises(Refused, match=r"put them into an nn\.Module"):
            models_of(wrapper, module)
