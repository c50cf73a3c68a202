#!/usr/bin/env python3
"""make_ops_vectors.py -- write tests/reference/ops/ops.bin, which tests/unit/test_ops_values.c reads.

    python3 tests/reference/make_ops_vectors.py [OUT]

Inputs are fp32. Results, forward and by autograd, are computed by PyTorch in float64 from those
inputs and then rounded to fp32, so their own error is half a last place. Run it again only when a
case is added; the file is committed, and neither building nor testing needs PyTorch.

File: the 8 bytes "OPSVEC1\\n", then records: name (48 bytes, zero-filled), elements (uint64), data
(fp32), all little-endian. Token numbers are stored as fp32 too (exact below 2^24).
"""
import struct
import sys

import torch
import torch.nn.functional as F

torch.manual_seed(20240607)
records = []


def put(name, tensor):
    data = tensor.detach().to(torch.float32).contiguous().reshape(-1)
    records.append(struct.pack("<48sQ", name.encode(), data.numel()) + data.numpy().tobytes())


def uniform(*shape, scale=1.0):
    """fp32 values in [-scale, scale), as float64 leaves that record gradients."""
    x = ((torch.rand(*shape, dtype=torch.float32) * 2 - 1) * scale).to(torch.float64)
    return x.requires_grad_()


def put_case(case, **tensors):
    for name, tensor in tensors.items():
        put(f"{case}/{name}", tensor)


def embedding():
    tokens = torch.randint(0, 11, (3, 5))
    wte, wpe, d_out = uniform(11, 33), uniform(5, 33), uniform(3, 5, 33)
    out = F.embedding(tokens, wte) + wpe
    out.backward(d_out)
    put_case("embedding", tokens=tokens, wte=wte, wpe=wpe, d_out=d_out, out=out, d_wte=wte.grad,
             d_wpe=wpe.grad)


def rope():
    """transformers' fp32 angles; sine and cosine in float64."""
    x, d_out = uniform(1, 4, 3, 16), uniform(1, 4, 3, 16)
    inv_freq = 1.0 / (10000.0 ** (torch.arange(0, 16, 2, dtype=torch.int64).float() / 16))
    angle = (torch.arange(4).float()[:, None] * inv_freq[None, :]).to(torch.float64)
    cos = torch.cat([angle.cos(), angle.cos()], -1)[None, :, None, :]
    sin = torch.cat([angle.sin(), angle.sin()], -1)[None, :, None, :]
    out = x * cos + torch.cat([-x[..., 8:], x[..., :8]], -1) * sin
    out.backward(d_out)
    put_case("rope", x=x, inv_freq=inv_freq, d_out=d_out, out=out, d_x=x.grad)


def swiglu():
    gate, up, d_out = uniform(300, scale=12.0), uniform(300), uniform(300)
    out = F.silu(gate) * up
    out.backward(d_out)
    put_case("swiglu", gate=gate, up=up, d_out=d_out, out=out, d_gate=gate.grad, d_up=up.grad)


def conv2d():
    x, w, b = uniform(2, 3, 9, 8), uniform(5, 3, 3, 3), uniform(5)
    d_out = uniform(2, 5, 7, 6)
    out = F.conv2d(x, w, b)
    out.backward(d_out)
    put_case("conv2d", x=x, w=w, b=b, d_out=d_out, out=out, d_x=x.grad, d_w=w.grad, d_b=b.grad)


def max_pool2d():
    """Halves: most windows have several largest elements. The last row has no partner."""
    x = (torch.randint(-2, 3, (3, 7, 8)).to(torch.float64) / 2).requires_grad_()
    d_out = uniform(3, 3, 4)
    out = F.max_pool2d(x, 2)
    out.backward(d_out)
    put_case("max_pool2d", x=x, d_out=d_out, out=out, d_x=x.grad)


def relu():
    x = torch.cat([uniform(60), torch.tensor([0.0, -0.0, 1e-40, -1e-40], dtype=torch.float64)])
    x = x.detach().requires_grad_()
    d_out = uniform(64)
    out = F.relu(x)
    out.backward(d_out)
    put_case("relu", x=x, d_out=d_out, out=out, d_x=x.grad)


def gelu():
    x = torch.cat([uniform(250, scale=4.0), uniform(45, scale=12.0),
                   torch.tensor([0.0, -0.0, 1e-30, -30.0, 30.0], dtype=torch.float64)])
    x = x.detach().requires_grad_()
    d_out = uniform(300)
    out = F.gelu(x, approximate="tanh")
    out.backward(d_out)
    put_case("gelu", x=x, d_out=d_out, out=out, d_x=x.grad)


def optimizers():
    start, grads = uniform(53), [uniform(53).detach() for _ in range(3)]
    put_case("optim", start=start, grad0=grads[0], grad1=grads[1], grad2=grads[2])
    for name, make in [
        ("adamw", lambda p: torch.optim.AdamW([p], lr=1e-2, betas=(0.9, 0.95), eps=1e-8,
                                              weight_decay=0.1)),
        ("sgd", lambda p: torch.optim.SGD([p], lr=1e-2, weight_decay=0.1)),
        ("momentum", lambda p: torch.optim.SGD([p], lr=1e-2, weight_decay=0.1, momentum=0.9)),
        ("nesterov", lambda p: torch.optim.SGD([p], lr=1e-2, weight_decay=0.1, momentum=0.9,
                                               nesterov=True)),
        ("adadelta", lambda p: torch.optim.Adadelta([p], lr=0.5, rho=0.9, eps=1e-6,
                                                    weight_decay=0.1)),
    ]:
        p = start.detach().clone().requires_grad_()
        optimizer = make(p)
        for grad in grads:
            p.grad = grad.clone()
            norm = torch.nn.utils.clip_grad_norm_([p], 2.0)
            optimizer.step()
        put_case("optim", **{name: p})
    put_case("optim", norm=norm)  # of grad2, before clipping


def schedules():
    """The rates of 16 steps, of which 4 warm up."""
    schedule = torch.optim.lr_scheduler
    for name, make in [
        ("cosine", lambda o: schedule.CosineAnnealingLR(o, 12, eta_min=1e-3)),
        ("linear", lambda o: schedule.LinearLR(o, 1.0, 0.1, total_iters=12)),
        ("step", lambda o: schedule.StepLR(o, 5, gamma=0.3)),
        ("constant", lambda o: schedule.ConstantLR(o, 1.0)),
    ]:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-2)
        warmup = schedule.LinearLR(optimizer, 1 / 4, 1.0, total_iters=3)
        rates = schedule.SequentialLR(optimizer, [warmup, make(optimizer)], [4])
        lrs = []
        for _ in range(16):
            lrs.append(rates.get_last_lr()[0])
            optimizer.step()
            rates.step()
        put(f"lr/{name}", torch.tensor(lrs, dtype=torch.float64))


embedding()
gelu()
optimizers()
schedules()
rope()
swiglu()
conv2d()
max_pool2d()
relu()
out = sys.argv[1] if len(sys.argv) > 1 else "tests/reference/ops/ops.bin"
with open(out, "wb") as f:
    f.write(b"OPSVEC1\n" + b"".join(records))
