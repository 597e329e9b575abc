"""How many images per second do the ranks train? ResNets on random images: no disk, only arithmetic and allreduce.

    hvdrun -np 2 python resnet50_synthetic.py --batch-size 8 --num-iters 3
    mpirun -np 4 python resnet50_synthetic.py --model resnet18

Rank 0 prints the throughput of one rank and of all of them; compare with a run of one rank to see what scaling costs.
"""

import argparse
import statistics
import time

import hvd_kernel.torch as hvd
import torch
from torch import nn
from torch.nn import functional as F

MODELS = {  # name -> (blocks of each stage, channels of the first stage, whether blocks are bottlenecks)
    "resnet18": ((2, 2, 2, 2), 64, False),
    "resnet34": ((3, 4, 6, 3), 64, False),
    "resnet50": ((3, 4, 6, 3), 64, True),
    "resnet101": ((3, 4, 23, 3), 64, True),
    "tiny": ((1, 1), 8, True),
}


class Block(nn.Module):
    """Two convolutions, or three with the middle one narrow (a bottleneck), and the way around them."""

    def __init__(self, channels_in, width, stride, bottleneck):
        super().__init__()
        out = width * 4 if bottleneck else width
        # (channels, kernel, stride) of each convolution
        plan = [(width, 1, 1), (width, 3, stride), (out, 1, 1)] if bottleneck else [(width, 3, stride), (out, 3, 1)]
        layers, channels = [], channels_in
        for number, (to, kernel, by) in enumerate(plan):
            layers += [nn.Conv2d(channels, to, kernel, by, kernel // 2, bias=False), nn.BatchNorm2d(to)]
            layers += [nn.ReLU()] if number < len(plan) - 1 else []
            channels = to
        self.body = nn.Sequential(*layers)
        same = channels_in == out and stride == 1
        around = [nn.Conv2d(channels_in, out, 1, stride, bias=False), nn.BatchNorm2d(out)]
        self.around = nn.Identity() if same else nn.Sequential(*around)

    def forward(self, images):
        return F.relu(self.body(images) + self.around(images))


def resnet(name, classes=1000):
    stages, width, bottleneck = MODELS[name]
    layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = width
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            stride = 2 if stage and block == 0 else 1  # each stage but the first halves the image
            layers.append(Block(channels, width << stage, stride, bottleneck))
            channels = (width << stage) * (4 if bottleneck else 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def arguments(given=None):
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--num-warmup-batches", type=int, default=10)
    parser.add_argument("--num-batches-per-iter", type=int, default=10, help="steps of one measurement")
    parser.add_argument("--num-iters", type=int, default=10, help="measurements")
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel in 16 bits")
    parser.add_argument("--no-cuda", action="store_true")
    parser.add_argument("--threads", type=int, default=1, help="of each rank, on the CPU")
    return parser.parse_args(given)


def main(given=None):
    args = arguments(given)
    hvd.init()
    torch.set_num_threads(args.threads)
    cuda = torch.cuda.is_available() and not args.no_cuda
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count()) if cuda else torch.device("cpu")
    torch.manual_seed(hvd.rank())  # every rank has images of its own; the broadcast makes the models equal
    model = resnet(args.model).to(device)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size()),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
    )
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size, device=device)
    labels = torch.randint(0, 1000, (args.batch_size,), device=device)

    def train(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        return loss.item()  # waits for the device: the time that is measured is all of the work

    def say(text):
        if hvd.rank() == 0:
            print(text, flush=True)

    say(f"model {args.model}, {args.batch_size} images per step, {hvd.size()} rank(s) on {device.type}")
    if args.num_warmup_batches:  # the first steps also allocate memory
        train(args.num_warmup_batches)
    rates = []
    for number in range(args.num_iters):
        began = time.perf_counter()
        loss = train(args.num_batches_per_iter)
        rates.append(args.batch_size * args.num_batches_per_iter / (time.perf_counter() - began))
        say(f"iteration {number}: {rates[-1]:.1f} img/s per rank")
    mine, spread = statistics.mean(rates), 1.96 * statistics.pstdev(rates)
    everybody = hvd.allgather(torch.tensor([mine]), name="rates")
    say(f"img/s per rank: {mine:.1f} +- {spread:.1f} (slowest {everybody.min():.1f}, fastest {everybody.max():.1f})")
    say(f"img/s in total on {hvd.size()} rank(s): {everybody.sum():.1f}")
    final = hvd.allreduce(torch.tensor(loss, dtype=torch.float64), name="loss").item()
    say(f"final loss {final.hex()}")
    return final


if __name__ == "__main__":
    main()
