#!/usr/bin/env python3
"""The peer of build/fsdp_train: the same model, tokens and recipe in PyTorch, timed step by step.

    build/fsdp_train ... --data TEXT --steps 0 --export-init INIT
    python tests/bench/peer_torch.py --parallel single --init INIT --data TEXT ...
    torchrun --nproc-per-node 2 tests/bench/peer_torch.py --parallel ddp|fsdp ...

A plain GPT-2 (scaled_dot_product_attention, fused cross entropy, tied head), or transformers' LlamaForCausalLM where INIT
holds a Llama. It starts from the trainer's own initial weights and reads the same sequences in the same order, so that the losses must agree: a peer that
computes something else would show. `fsdp` is FSDP2: fully_shard on every block and on the root,
`--param-dtype bf16` its MixedPrecisionPolicy (compute and all-gather in bf16, reduction in fp32); for `single`
and `ddp` bf16 is autocast. The optimizer is torch.optim.AdamW, --adamw fused, foreach or for-loop; gradients are clipped by
their global norm. A step is timed from taking its tokens to the end of the optimizer and includes the mean of the loss over
the ranks, as the trainer's does.

--compile: torch.compile of the model, for fsdp and ddp of each block; a step's time is then worth reading from the fourth on.
--device cuda: on GPUs, one for each rank, over NCCL; the time of a step ends when its loss is on the host. TF32 stays off.

Prints one line like the trainer's last; --csv FILE holds step,loss,grad_norm,ms. --threads: of every rank.
"""
import argparse
import json
import math
import os
import statistics
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--parallel", choices=["single", "ddp", "fsdp"], default="single")
    p.add_argument("--param-dtype", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--init", required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--seq-len", type=int, default=64)
    p.add_argument("--global-batch", type=int, default=4)
    p.add_argument("--grad-accum", type=int, default=1)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--adamw", choices=["fused", "foreach", "for-loop"], default="fused")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--csv")
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--min-lr", type=float, default=1e-4)
    p.add_argument("--warmup-steps", type=int, default=5)
    p.add_argument("--weight-decay", type=float, default=0.1)
    p.add_argument("--clip-grad", type=float, default=1.0)
    return p.parse_args()


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, inner = c["n_embd"], c["n_inner"]
        self.n_head = c["n_head"]
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (a.view(b, t, self.n_head, -1).transpose(1, 2) for a in self.c_attn(self.ln_1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte = nn.Embedding(c["vocab_size"], c["n_embd"])
        self.wpe = nn.Embedding(c["n_positions"], c["n_embd"])
        self.h = nn.ModuleList(Block(c) for _ in range(c["n_layer"]))
        self.ln_f = nn.LayerNorm(c["n_embd"])
        self.lm_head = nn.Linear(c["n_embd"], c["vocab_size"], bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, x, y):
        h = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        for block in self.h:
            h = block(h)
        logits = self.lm_head(self.ln_f(h))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), y.reshape(-1))


class Llama(nn.Module):
    def __init__(self, directory):
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM
        self.lm = LlamaForCausalLM._from_config(LlamaConfig.from_pretrained(directory), attn_implementation="sdpa")

    @property
    def h(self):
        return self.lm.model.layers

    def forward(self, x, y):
        logits = self.lm(input_ids=x, use_cache=False).logits
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), y.reshape(-1))


# names of the model's parameters and of GPT2LMHeadModel's export; a Linear there is stored [in, out]
RENAMED = {"attn_proj": "attn.c_proj", "mlp_proj": "mlp.c_proj", "c_attn": "attn.c_attn", "c_fc": "mlp.c_fc"}


def load_model(directory):
    with open(f"{directory}/config.json") as f:
        config = json.load(f)
    gpt2 = config["model_type"] == "gpt2"
    model = GPT2(config) if gpt2 else Llama(directory)
    path = f"{directory}/model.safetensors"
    with open(path, "rb") as f:
        header_bytes = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(header_bytes))
    data = np.memmap(path, np.uint8, "r", 8 + header_bytes)
    with torch.no_grad():
        for name, p in model.named_parameters():
            theirs = "transformer." + ".".join(RENAMED.get(part, part) for part in name.split(".")) if gpt2 else name[len("lm."):]
            begin, end = header[theirs]["data_offsets"]
            value = torch.from_numpy(np.array(data[begin:end]).view(np.float32).reshape(header[theirs]["shape"]))
            stored_in_out = gpt2 and name.split(".")[-2] in RENAMED and value.dim() == 2
            p.copy_(value.T if stored_in_out else value)
    return model


def learning_rate(a, t):
    if t < a.warmup_steps:
        return a.lr * (t + 1) / a.warmup_steps
    left = a.steps - a.warmup_steps
    share = (t - a.warmup_steps) / left if left > 0 else 1.0
    return a.min_lr + (a.lr - a.min_lr) * (1 + math.cos(math.pi * share)) / 2


def micro_batch(tokens, a, step, micro, rank, world):
    """Sequence k starts at (k*T) mod (floor((n-1)/T)*T); micro-step m of rank r holds b of them [data.h]."""
    b = a.global_batch // (world * a.grad_accum)
    first = step * a.global_batch + micro * world * b + rank * b
    span = (len(tokens) - 1) // a.seq_len * a.seq_len
    starts = [(k * a.seq_len) % span for k in range(first, first + b)]
    return (torch.stack([tokens[o : o + a.seq_len] for o in starts]),
            torch.stack([tokens[o + 1 : o + a.seq_len + 1] for o in starts]))


def parallelise(a, model):
    """The model as it is trained, and the parameters that the optimizer sees."""
    if a.compile:
        for module in [model] if a.parallel == "single" else model.h:
            module.compile(dynamic=False)
    if a.parallel == "ddp":
        from torch.nn.parallel import DistributedDataParallel
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    if a.parallel == "fsdp":
        try:
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        except ImportError:  # PyTorch 2.5 and older
            from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard
        options = {}
        if a.param_dtype == "bf16":
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        from torch.distributed.device_mesh import init_device_mesh
        mesh = init_device_mesh(a.device, (dist.get_world_size(),))
        for block in model.h:
            fully_shard(block, mesh=mesh, **options)
        return fully_shard(model, mesh=mesh, **options)
    return model


def make_optimizer(a, model):
    decay = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": a.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    kind = {"fused": {"fused": True}, "foreach": {"foreach": True}, "for-loop": {"foreach": False}}[a.adamw]
    return torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, 0.95), eps=1e-8, **kind)


def set_sync(a, model, last):
    """No communication of gradients but in the last micro-step."""
    if a.parallel == "ddp":
        model.require_backward_grad_sync = last
    elif a.parallel == "fsdp":
        model.set_requires_gradient_sync(last)


def train_step(a, step, model, optimizer, tokens, rank, world):
    loss_sum = torch.zeros((), device=a.device)
    for micro in range(a.grad_accum):
        x, y = micro_batch(tokens, a, step, micro, rank, world)
        set_sync(a, model, micro == a.grad_accum - 1)
        cast = a.param_dtype == "bf16" and a.parallel != "fsdp"
        with torch.autocast(a.device, torch.bfloat16, enabled=cast):
            loss = model(x, y) / a.grad_accum
        loss.backward()
        loss_sum += loss.detach()
    if world > 1:
        dist.all_reduce(loss_sum)
    norm = nn.utils.clip_grad_norm_(model.parameters(), a.clip_grad)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(a, step)
    optimizer.step()
    optimizer.zero_grad()
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return loss_sum.item() / world, norm.item()


def main():
    a = parse()
    if a.threads:
        torch.set_num_threads(a.threads)
    rank, world = 0, 1
    if a.parallel != "single":
        dist.init_process_group("nccl" if a.device == "cuda" else "gloo")
        rank, world = dist.get_rank(), dist.get_world_size()
    if a.device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    tokens = torch.from_numpy(np.fromfile(a.data, np.uint8).astype(np.int64)).to(a.device)
    model = parallelise(a, load_model(a.init).to(a.device))
    optimizer = make_optimizer(a, model)
    rows = []
    for step in range(a.steps):
        start = time.perf_counter()
        loss, norm = train_step(a, step, model, optimizer, tokens, rank, world)
        rows.append((step, loss, norm, (time.perf_counter() - start) * 1e3))
        if rank == 0:
            print(f"step {step + 1}/{a.steps}  loss {loss:.4f}  {rows[-1][3]:.1f} ms", flush=True)
    if rank == 0:
        if a.csv:
            with open(a.csv, "w") as f:
                f.write("step,loss,grad_norm,ms\n")
                f.writelines(f"{s},{loss:.9g},{norm:.9g},{ms:.3f}\n" for s, loss, norm, ms in rows)
        ms = statistics.median(r[3] for r in rows)
        print(f"torch {torch.__version__}, {a.parallel}{', compiled' if a.compile else ''}, {a.param_dtype}, {world} ranks of "
              f"{torch.get_num_threads()} threads, AdamW {a.adamw}")
        if a.device == "cuda":
            print(f"memory: {torch.cuda.max_memory_allocated() / 1e9:.2f} GB at its peak, "
                  f"{torch.cuda.max_memory_reserved() / 1e9:.2f} GB reserved")
        print(f"done: loss {rows[0][1]:.6f} -> {rows[-1][1]:.6f}, {ms:.1f} ms per step (median)")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
