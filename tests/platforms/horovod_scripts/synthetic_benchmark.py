"""Images per second on random images, as a user of Horovod writes it."""

import argparse
import timeit
from pathlib import Path

import horovod.torch as hvd
import numpy as np
import torch
import torch.backends.cudnn
import torch.nn.functional as F  # noqa: N812
from torch import optim
from torchvision import models

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--model", default="resnet50")
parser.add_argument("--batch-size", type=int, default=2)
parser.add_argument("--num-warmup-batches", type=int, default=1)
parser.add_argument("--num-batches-per-iter", type=int, default=2)
parser.add_argument("--num-iters", type=int, default=2)
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--no-cuda", action="store_true")
parser.add_argument("--checkpoints", default=".")
args = parser.parse_args()
args.cuda = not args.no_cuda and torch.cuda.is_available()

hvd.init()
torch.manual_seed(hvd.rank())
torch.set_num_threads(1)
torch.backends.cudnn.benchmark = True
if args.cuda:
    torch.cuda.set_device(hvd.local_rank())

model = getattr(models, args.model)()
optimizer = optim.SGD(model.parameters(), lr=0.01 * hvd.size())
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=compression)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

data = torch.randn(args.batch_size, 3, 32, 32)
target = torch.LongTensor(args.batch_size).random_() % 1000


def benchmark_step():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(data), target)
    loss.backward()
    optimizer.step()


def log(text):
    if hvd.rank() == 0:
        print(text, flush=True)


log(f"Model: {args.model}")
log(f"Number of ranks: {hvd.size()}")
timeit.timeit(benchmark_step, number=args.num_warmup_batches)
rates = []
for iteration in range(args.num_iters):
    seconds = timeit.timeit(benchmark_step, number=args.num_batches_per_iter)
    rates.append(args.batch_size * args.num_batches_per_iter / seconds)
    log(f"Iter #{iteration}: {rates[-1]:.1f} img/sec per rank")
log(f"Img/sec per rank: {np.mean(rates):.1f} +-{1.96 * np.std(rates):.1f}")
log(f"Total img/sec on {hvd.size()} rank(s): {hvd.size() * np.mean(rates):.1f}")
torch.save({"model": model.state_dict()}, Path(args.checkpoints) / f"{hvd.rank()}-of-{hvd.size()}.pt")
