"""Handwritten digits on many ranks: a small convolutional network, and all that Horovod can do to its gradients.

    hvdrun -np 4 python digits.py             one machine, four ranks
    %%hvdrun -np 4                            in a notebook, on ranks that stay:
    %run scripts/digits.py --use-adasum
    mpirun -np 4 python -m hvd_kernel.compat digits.py --fp16-allreduce     mpirun knows nothing of the name horovod

The data are scikit-learn's 1,797 digits of 8 by 8 pixels: no download, seconds instead of minutes.
"""

import argparse

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def arguments(given=None):
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.01, help="learning rate of one rank")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel in 16 bits")
    parser.add_argument("--use-adasum", action="store_true", help="combine gradients by Adasum instead of averaging")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0, help="divide by this before the sum")
    parser.add_argument("--use-mixed-precision", action="store_true", help="forward and backward in 16 bits")
    parser.add_argument("--no-cuda", action="store_true")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--threads", type=int, default=1, help="of each rank; another number sums in another order")
    return parser.parse_args(given)


def datasets():
    """Every fifth digit is for the test."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    test = torch.arange(len(labels)) % 5 == 0
    return TensorDataset(images[~test], labels[~test]), TensorDataset(images[test], labels[test])


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 16, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def distributed(model, args):
    """Wrap the optimizer: from here on every step is the step of all ranks together."""
    # The gradient is an average over all ranks' images, so the step may be as many times larger. Adasum finds the
    # length of the step itself.
    scale = 1 if args.use_adasum else hvd.size()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * scale, momentum=args.momentum)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # everybody starts from the same place
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )


def step(model, optimizer, scaler, images, labels):
    optimizer.zero_grad()
    if scaler is None:
        loss = F.cross_entropy(model(images), labels)
        loss.backward()  # each gradient leaves as soon as it is there
        optimizer.step()  # ... and has come back as an average before this moves anything
        return loss
    with torch.autocast(images.device.type, dtype=torch.float16):
        loss = F.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()  # small gradients would vanish in 16 bits
    optimizer.synchronize()  # unscale what all ranks have agreed on, so that all of them skip the same steps
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    scaler.update()
    return loss


def average(value, name):
    return hvd.allreduce(torch.as_tensor(value, dtype=torch.float64), name=name).item()


def test_of(model, data, device):
    """Loss and accuracy over the whole test set; each rank looks at its share."""
    images, labels = (part[hvd.rank() :: hvd.size()].to(device) for part in data.tensors)
    model.eval()
    with torch.no_grad():
        output = model(images)
    sums = torch.tensor([F.cross_entropy(output, labels, reduction="sum"), (output.argmax(1) == labels).sum()])
    loss, hits = (hvd.allreduce(sums.double(), name="test", op=hvd.Sum) / len(data)).tolist()
    return loss, hits


def main(given=None):
    args = arguments(given)
    hvd.init()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    cuda = torch.cuda.is_available() and not args.no_cuda
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count()) if cuda else torch.device("cpu")
    train, test = datasets()
    sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank(), seed=args.seed)
    loader = DataLoader(train, batch_size=args.batch_size, sampler=sampler)
    model = network().to(device)
    optimizer = distributed(model, args)
    scaler = torch.amp.GradScaler(device.type) if args.use_mixed_precision else None
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # another order, the same on all ranks
        model.train()
        for images, labels in loader:
            loss = step(model, optimizer, scaler, images.to(device), labels.to(device))
        tested, accuracy = test_of(model, test, device)
        trained = average(loss.detach().cpu(), "loss")
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {trained:.4f}, test loss {tested:.4f}, test accuracy {accuracy:.1%}")
    if hvd.rank() == 0:
        print(f"final loss {tested.hex()}")
    return tested


if __name__ == "__main__":
    main()
