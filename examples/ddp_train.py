r"""Handwritten digits with torch DistributedDataParallel: an ordinary script, but for one line.

Alone, on two workers:

    torchrun --nproc-per-node 2 --standalone examples/ddp_train.py

In turns with a second job on the same devices:

    crossover run a="torchrun --nproc-per-node 2 --standalone examples/ddp_train.py --seed 1" \
                  b="torchrun --nproc-per-node 2 --standalone examples/ddp_train.py --seed 2"
"""

import argparse
import contextlib
import hashlib
import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import crossover

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--batch", type=int, default=32, help="images per worker and micro-batch")
parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per step")
parser.add_argument("--clip", type=float, default=None, help="the largest norm of the gradients")
parser.add_argument("--halve-every", type=int, default=50, help="steps until the learning rate is halved")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--job", default="digits")
parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: one GPU per worker")
args = parser.parse_args()

dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
if args.device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(args.seed)
network = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, stride=2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(576, 10),
).to(args.device)
model = DistributedDataParallel(network)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
crossover.attach(model, optimizer, job=args.job)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, args.halve_every, gamma=0.5)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)[rank::world].to(args.device) / 16
labels = torch.tensor(digits.target)[rank::world].to(args.device)
order = torch.Generator().manual_seed(args.seed * world + rank)

began_s = time.monotonic()
for _ in range(args.steps):
    optimizer.zero_grad()
    for micro_batch in range(1, args.accumulate + 1):
        chosen = torch.randint(len(images), (args.batch,), generator=order)
        with contextlib.nullcontext() if micro_batch == args.accumulate else model.no_sync():
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen]) / args.accumulate
            loss.backward()
    if args.clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    optimizer.step()
    schedule.step()
took_s = time.monotonic() - began_s

if rank == 0:
    weights = b"".join(value.cpu().numpy().tobytes() for value in network.state_dict().values())
    print(f"loss {loss.item():.6f}\nsteps/s {args.steps / took_s:.1f}\nsha256 {hashlib.sha256(weights).hexdigest()}")
dist.barrier()  # a rank that leaves at once may abort: gloo's thread still lets go of the last sum's tensors
dist.destroy_process_group()
