#!/usr/bin/env python3
"""The net of PyTorch's tutorial of FSDP: its weights through the trainer and back, and a replay of training.

    mnist.py make DIR           random weights
    mnist.py replay IMAGES RUN [MADE]

Replays RUN, which is 10 steps of `fsdp_train --model mnist`, and compares losses, norms, weights and what a test set
says. run.sh has its options. RUN.init and RUN.final are what it exported, RUN.csv its losses, RUN.log what it printed;
IMAGES has MNIST's four files with drawn digits from number 0. MADE: what the run began with; RUN.init has its bits.

The order of images and what dropout leaves out are computed here by their definitions (data.h, ops.h); the rest is PyTorch,
in double precision.

Bounds. An error of a sum in fp32 is a few roundings of 6e-8; the largest difference of 12 runs was 4.1e-7, and the bound is 5
times that. But where the two largest elements of a pool, or 0 and the input of relu, lie closer than an error, the gradient
goes to another element than in double precision, and from then on weights differ by 1e-5 to 1e-3. Among the 120 images of the
tiny net this is rare: each has 1152 pools. The large net, with 9216, runs with portable sums, which are the same on every
machine, and begins with weights (seed 6) for which it does not happen: no two of a pool are closer than 2.8e-7.
"""
import csv
import json
import os
import re
import sys

import numpy
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

BATCH, SEED, BOUND = 12, 1, 2e-6


class Net(torch.nn.Module):
    """Layers and forward as in the tutorial; `drop` takes dropout's place while it is set."""

    def __init__(self, channels=32, width=128):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, channels, 3, 1)
        self.conv2 = torch.nn.Conv2d(channels, 2 * channels, 3, 1)
        self.fc1 = torch.nn.Linear(2 * channels * 144, width)
        self.fc2 = torch.nn.Linear(width, 10)

    def logits(self, x, drop=lambda x, layer, p: x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = torch.flatten(drop(F.max_pool2d(x, 2), 1, 0.25), 1)
        return self.fc2(drop(F.relu(self.fc1(x)), 2, 0.5))

    def loss(self, x, labels, **how):
        return F.nll_loss(F.log_softmax(self.logits(x, **how), dim=1), labels)


def make(folder):
    torch.manual_seed(6)
    net = Net()
    os.makedirs(folder)
    save_file(net.state_dict(), f"{folder}/model.safetensors", {"format": "pt"})
    sizes = {"channels": net.conv1.out_channels, "hidden_size": net.fc1.out_features, "num_labels": 10}
    json.dump({"model_type": "mnist", **sizes}, open(f"{folder}/config.json", "w"))


def load(folder):
    sizes = json.load(open(f"{folder}/config.json"))
    net = Net(sizes["channels"], sizes["hidden_size"])
    net.load_state_dict(load_file(f"{folder}/model.safetensors"))  # all names and shapes
    return net


def read(folder, which):
    """MNIST's files, normalised as in the tutorial."""
    data = [open(f"{folder}/{which}-{kind}-ubyte", "rb").read() for kind in ("images-idx3", "labels-idx1")]
    pixels = torch.from_numpy(numpy.frombuffer(data[0], numpy.uint8, offset=16).reshape(-1, 1, 28, 28).copy())
    labels = torch.from_numpy(numpy.frombuffer(data[1], numpy.uint8, offset=8).copy()).long()
    return (pixels.float() / 255 - 0.1307) / 0.3081, labels


def philox(seed, stream, call):
    """Philox 4x32-10; the four words of each call, in a last dimension. [Salmon et al. 2011]"""
    stream, call = numpy.broadcast_arrays(numpy.asarray(stream, numpy.uint64), numpy.asarray(call, numpy.uint64))
    low, half = numpy.uint64(0xFFFFFFFF), numpy.uint64(32)
    c = [call & low, call >> half, stream & low, stream >> half]
    for i in range(10):
        keys = [(k + i * w) & 0xFFFFFFFF for k, w in ((seed, 0x9E3779B9), (seed >> 32, 0xBB67AE85))]
        p0, p1 = c[0] * numpy.uint64(0xD2511F53), c[2] * numpy.uint64(0xCD9E8D57)
        c = [p1 >> half ^ c[1] ^ numpy.uint64(keys[0]), p1 & low, p0 >> half ^ c[3] ^ numpy.uint64(keys[1]), p0 & low]
    return numpy.stack(c, -1)


def dropper(seed, first):
    """Dropout for samples first, first + 1, ... of a run."""

    def drop(x, layer, p):
        samples = numpy.arange(first, first + len(x), dtype=numpy.uint64)[:, None]
        width = x[0].numel()
        fours = numpy.arange((width + 3) // 4, dtype=numpy.uint64) + numpy.uint64((layer + 1) << 32)
        words = philox(seed, fours, samples).reshape(len(x), -1)[:, :width]
        kept = torch.from_numpy(words >= int(p * 2**32)).reshape(x.shape)
        return torch.where(kept, x / (1 - p), torch.zeros((), dtype=x.dtype))

    return drop


def place(seed, k, n):
    """Which image sample k of the run is: a Feistel network of the numbers below a power of 4, until it is below n."""
    epoch, x = divmod(k, n)
    half = next(h for h in range(1, 33) if 4**h >= n)
    while True:
        for turn in range(4):
            left, right = x >> half, x % 2**half
            word = turn << 32 | right
            x = right << half | left ^ int(philox(seed, 1 << 63 | epoch, word // 4)[word % 4]) % 2**half
        if x < n:
            return x


def same(folder, other):
    mine, theirs = load(folder).state_dict(), load(other).state_dict()
    bad = mine.keys() != theirs.keys() or not all(torch.equal(mine[k], theirs[k]) for k in mine)
    print("FAIL weights differ" if bad else "PASS weights: the same bits")
    return bad


def train(net, rows, images, labels):
    """Returns the worst relative differences."""
    optimizer = torch.optim.Adadelta(net.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.7)
    worst = {"loss": 0.0, "grad_norm": 0.0, "lr": 0.0}
    for step, row in enumerate(rows):
        numbers = [place(SEED, k, len(labels)) for k in range(step * BATCH, (step + 1) * BATCH)]
        optimizer.zero_grad()
        loss = net.loss(images[numbers], labels[numbers], drop=dropper(SEED, step * BATCH))
        loss.backward()
        norm = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in net.parameters()]))
        for name, theirs in (("loss", loss), ("grad_norm", norm), ("lr", schedule.get_last_lr()[0])):
            worst[name] = max(worst[name], abs(float(row[name]) / float(theirs) - 1))
        optimizer.step()
        schedule.step()
    print(f"     torch {torch.__version__}: last loss {float(loss):.6f} after {step + 1} steps of {BATCH} images")
    return worst


def replay(folder, run, made=None):
    (images, labels), test = ((x.double(), y) for x, y in (read(folder, "train"), read(folder, "t10k")))
    failed = [same(made, f"{run}.init")] if made else []
    net = load(f"{run}.init").double()
    worst = train(net, csv.DictReader(open(f"{run}.csv")), images, labels)
    theirs, ours = (torch.cat([p.double().flatten() for p in x.state_dict().values()]) for x in (net, load(f"{run}.final")))
    worst["weights"] = float((theirs - ours).norm() / ours.norm())
    loss, right, n = re.findall(r"val loss (\S+)  accuracy (\S+)%  \((\d+) images\)", open(f"{run}.log").read())[-1]
    with torch.no_grad():
        x, y = (part[: int(n)] for part in test)
        worst["loss of a test set"] = abs(float(loss) / float(net.loss(x, y)) - 1)
        percent = f"{100 * float((net.logits(x).argmax(1) == y).double().mean()):.2f}"
    failed.append(percent != right)
    print(f"{'FAIL' if failed[-1] else 'PASS'} accuracy: {right}% of {n} images, PyTorch's {percent}%")
    for name, got in worst.items():
        failed.append(not got <= BOUND)
        print(f"{'FAIL' if failed[-1] else 'PASS'} replay {name}: worst relative difference {got:.3g}, bound {BOUND:.3g}")
    return any(failed)


if __name__ == "__main__":
    sys.exit({"make": make, "replay": replay}[sys.argv[1]](*sys.argv[2:]))
