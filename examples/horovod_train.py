r"""Handwritten digits with Horovod: an ordinary script, but for one line.

Alone, on two workers:

    OMP_NUM_THREADS=1 horovodrun --gloo -np 2 python examples/horovod_train.py

In turns with a second job on the same devices:

    export OMP_NUM_THREADS=1
    crossover run a="horovodrun --gloo -np 2 python examples/horovod_train.py --seed 1" \
                  b="horovodrun --gloo -np 2 python examples/horovod_train.py --seed 2"
"""

import argparse
import hashlib
import time

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn

import crossover

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--batch", type=int, default=32, help="images per worker and micro-batch")
parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per step")
parser.add_argument("--clip", type=float, default=None, help="the largest norm of the gradients")
parser.add_argument("--halve-every", type=int, default=50, help="steps until the learning rate is halved")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--job", default="digits")
args = parser.parse_args()

hvd.init()
torch.manual_seed(args.seed)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, stride=2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(576, 10),
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(
    torch.optim.AdamW(model.parameters(), lr=1e-3),
    named_parameters=model.named_parameters(),
    backward_passes_per_step=args.accumulate,
)
crossover.attach(model, optimizer, job=args.job)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, args.halve_every, gamma=0.5)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)[hvd.rank() :: hvd.size()] / 16
labels = torch.tensor(digits.target)[hvd.rank() :: hvd.size()]
order = torch.Generator().manual_seed(args.seed * hvd.size() + hvd.rank())

began_s = time.monotonic()
for _ in range(args.steps):
    optimizer.zero_grad()
    for _ in range(args.accumulate):
        chosen = torch.randint(len(images), (args.batch,), generator=order)
        loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen]) / args.accumulate
        loss.backward()
    if args.clip is None:
        optimizer.step()
    else:
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        with optimizer.skip_synchronize():
            optimizer.step()
    schedule.step()
took_s = time.monotonic() - began_s

if hvd.rank() == 0:
    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    print(f"loss {loss.item():.6f}\nsteps/s {args.steps / took_s:.1f}\nsha256 {hashlib.sha256(weights).hexdigest()}")
hvd.shutdown()
