r"""Handwritten digits with DeepSpeed: an ordinary script, but for one line.

Alone, on two workers, by torchrun or by DeepSpeed's own launcher (neither needs ssh on one host):

    torchrun --nproc-per-node 2 --standalone examples/deepspeed_train.py --stage 2
    deepspeed --num_accelerators 2 --no_local_rank --master_port 29501 examples/deepspeed_train.py --stage 2

In turns with a second job on the same devices:

    crossover run a="torchrun --nproc-per-node 2 --standalone examples/deepspeed_train.py --stage 2" \
                  b="torchrun --nproc-per-node 2 --standalone examples/deepspeed_train.py --stage 1"
"""

import argparse
import hashlib
import time

import deepspeed
import torch
from sklearn.datasets import load_digits
from torch import nn

import crossover

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--stage", type=int, choices=(0, 1, 2), default=1)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--batch", type=int, default=32, help="images per worker and micro-batch")
parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per step")
parser.add_argument("--clip", type=float, default=0.0)
parser.add_argument("--warmup", type=int, default=10)
parser.add_argument("--job", default="digits")
args = parser.parse_args()

config = {
    "train_micro_batch_size_per_gpu": args.batch,
    "gradient_accumulation_steps": args.accumulate,
    "gradient_clipping": args.clip,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": args.warmup}},
    "zero_optimization": {"stage": args.stage},
}
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, stride=2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(576, 10),
)
deepspeed.init_distributed()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
crossover.attach(engine, job=args.job)

rank, world = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)[rank::world].to(engine.device) / 16
labels = torch.tensor(digits.target)[rank::world].to(engine.device)
order = torch.Generator().manual_seed(rank)

began_s = time.monotonic()
for _ in range(args.steps * args.accumulate):
    chosen = torch.randint(len(images), (args.batch,), generator=order)
    loss = nn.functional.cross_entropy(engine(images[chosen]), labels[chosen])
    engine.backward(loss)
    engine.step()
took_s = time.monotonic() - began_s

if rank == 0:
    weights = b"".join(parameter.detach().cpu().numpy().tobytes() for parameter in engine.module.parameters())
    print(f"loss {loss.item():.6f}")
    print(f"steps/s {args.steps / took_s:.1f}")
    print(f"sha256 {hashlib.sha256(weights).hexdigest()}")
deepspeed.comm.destroy_process_group()
