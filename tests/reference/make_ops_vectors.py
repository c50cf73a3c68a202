#!/usr/bin/env python3
"""make_ops_vectors.py -- write tests/reference/ops/ops.bin, what tests/unit/test_ops.c compares with.

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


def matmul():
    a, b, c = uniform(37, 70), uniform(70, 51), uniform(37, 51)
    put_case("matmul", a=a, b=b, c=c, out=a @ b, sum=c + a @ b)


def bias():
    x, b, d_out = uniform(7, 130), uniform(130), uniform(7, 130)
    out = x + b
    out.backward(d_out)
    put_case("bias", x=x, b=b, d_out=d_out, out=out, d_b=b.grad)


def embedding():
    tokens = torch.randint(0, 11, (3, 5))
    wte, wpe, d_out = uniform(11, 33), uniform(5, 33), uniform(3, 5, 33)
    out = F.embedding(tokens, wte) + wpe
    out.backward(d_out)
    put_case("embedding", tokens=tokens, wte=wte, wpe=wpe, d_out=d_out, out=out, d_wte=wte.grad,
             d_wpe=wpe.grad)


def layernorm():
    x, gain, b = uniform(6, 203), uniform(203), uniform(203)
    d_out, residual = uniform(6, 203), uniform(6, 203)
    out = F.layer_norm(x, (203,), gain, b, eps=1e-5)
    out.backward(d_out)
    put_case("layernorm", x=x, gain=gain, bias=b, d_out=d_out, residual=residual, out=out,
             d_x=x.grad + residual, d_gain=gain.grad, d_bias=b.grad)


def rmsnorm():
    x, gain, d_out, residual = uniform(6, 203), uniform(203), uniform(6, 203), uniform(6, 203)
    out = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * gain
    out.backward(d_out)
    put_case("rmsnorm", x=x, gain=gain, d_out=d_out, residual=residual, out=out,
             d_x=x.grad + residual, d_gain=gain.grad)


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


def attention(case, batch, seq_len, n_head, n_kv_head, head_dim, v_head_dim=None):
    v_head_dim = v_head_dim or head_dim
    q = uniform(batch, seq_len, n_head, head_dim)
    k, v = (uniform(batch, seq_len, n_kv_head, dim) for dim in (head_dim, v_head_dim))
    d_out = uniform(batch, seq_len, n_head, v_head_dim)
    scale = 1.0 / 2.0  # larger than 1/sqrt(D), for peaked rows
    group = n_head // n_kv_head
    kk, vv = (t.repeat_interleave(group, dim=2) for t in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, kk) * scale
    seen = torch.ones(seq_len, seq_len, dtype=torch.bool).tril()
    scores = scores.masked_fill(~seen, float("-inf"))
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), vv)
    out.backward(d_out)
    put_case(case, q=q, k=k, v=v, d_out=d_out, out=out, lse=scores.logsumexp(-1), d_q=q.grad,
             d_k=k.grad, d_v=v.grad)


def cross_entropy():
    logits = uniform(9, 301, scale=8.0)
    targets = torch.randint(0, 301, (9,))
    loss = F.cross_entropy(logits, targets, reduction="sum")
    loss.backward()
    put_case("cross_entropy", logits=logits, targets=targets, loss=loss, d_logits=logits.grad)


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


matmul()
bias()
embedding()
layernorm()
gelu()
attention("attention_gqa", batch=1, seq_len=70, n_head=4, n_kv_head=2, head_dim=10)
attention("attention_mha", batch=2, seq_len=9, n_head=3, n_kv_head=3, head_dim=8)
cross_entropy()
optimizers()
schedules()
rmsnorm()
rope()
swiglu()
conv2d()
max_pool2d()
relu()
attention("attention_narrow_v", batch=1, seq_len=40, n_head=4, n_kv_head=2, head_dim=6, v_head_dim=4)
attention("attention_wide_v", batch=2, seq_len=9, n_head=2, n_kv_head=1, head_dim=6, v_head_dim=9)
out = sys.argv[1] if len(sys.argv) > 1 else "tests/reference/ops/ops.bin"
with open(out, "wb") as f:
    f.write(b"OPSVEC1\n" + b"".join(records))
