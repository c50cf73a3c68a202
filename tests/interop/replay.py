#!/usr/bin/env python3
"""Replay a run of build/fsdp_train in PyTorch and compare losses, gradient norms and weights.

    build/fsdp_train ... --data TEXT --export-init INIT --export FINAL --loss-csv LOSS.csv
    python3 tests/interop/replay.py --init INIT --final FINAL --csv LOSS.csv --data TEXT \
        --seq-len T --global-batch G --steps N [--lr ... as given to the trainer]

The model is Hugging Face's AutoModelForCausalLM loaded from INIT, so the export is checked too. Recipe, data order
and schedule are those of the trainer (see its --help and README.md). Exits 0 when every relative
difference stays below its bound, 1 otherwise.

Bounds. Both sides compute in fp32 and add in different orders. One fp32 rounding is 6e-8; losses near
init agree to a few of them. AdamW divides by sqrt(v): where a gradient is near zero its sign may flip, which moves a
weight by up to lr. Such weights hardly move the loss, so --tol-loss (2e-5 relative) holds over 20 steps; weights
are compared in the 2-norm of the whole model, where few flips do not count.

--dtype bf16-exact replays --param-dtype bf16 as the trainer defines it: fp32 masters, every parameter rounded to bf16
for the model; all arithmetic in fp32, but every activation that an operation stores is rounded to bf16 once, and so is
every gradient of one. A linear layer with its bias and the residual is one operation, and so is attention; its
backward works from the rounded output. Statistics, loss and gradients of parameters stay fp32. --dtype bf16-mixed is
what PyTorch users run (FSDP's MixedPrecision): the module's weights cast to bf16, so that PyTorch's own operations store
bf16, and logits cast to fp32 for the loss. It rounds more often (within GELU, between a product and the residual,
attention's probabilities), and its gradients of parameters are bf16, too, where the trainer's leave a layer in fp32.
run.sh names the bounds of both.

--reduce-dtype bf16 replays the trainer's (not with bf16-mixed): the gradient of every call of the model, and every
sum of two such, is rounded to bf16. --reduction canonical: a call is one sequence, sums are the balanced tree over the
sequences of the batch, the embedding's and the head's use of the tied weight are summed apart and added in fp32 at the
end. --reduction fast: a call is --batch-size sequences, sums grow in their order, which is that of micro-steps and ranks.

--freeze replays the trainer's: requires_grad is False for the parameters of these names. --gradient-checkpointing wraps
each block in torch.utils.checkpoint. --ranks W --micro-steps A replays no_sync: each of W ranks adds up the gradients of A
micro-steps of neighbouring sequences before the ranks' sums are added.

--data-mask replays the trainer's: a byte for each token, 0 if it does not count as a target. The loss is the mean over the
targets of the global batch that count.
"""
import argparse
import csv
import fnmatch
import math
import sys

import os

os.environ.setdefault("TQDM_DISABLE", "1")
import torch
import torch.utils.checkpoint
from transformers import AutoModelForCausalLM


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--init", required=True)
    p.add_argument("--final")
    p.add_argument("--csv", required=True)
    p.add_argument("--data", required=True)
    p.add_argument("--seq-len", type=int, required=True)
    p.add_argument("--global-batch", type=int, required=True)
    p.add_argument("--steps", type=int, required=True)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--min-lr", type=float, default=1e-4)
    p.add_argument("--warmup-steps", type=int, default=5)
    p.add_argument("--weight-decay", type=float, default=0.1)
    p.add_argument("--beta1", type=float, default=0.9)
    p.add_argument("--beta2", type=float, default=0.95)
    p.add_argument("--eps", type=float, default=1e-8)
    p.add_argument("--clip-grad", type=float, default=1.0)
    p.add_argument("--dtype", choices=["fp32", "bf16-exact", "bf16-mixed"], default="fp32")
    p.add_argument("--reduce-dtype", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--reduction", choices=["fast", "canonical"], default="fast")
    p.add_argument("--batch-size", type=int, default=1)
    p.add_argument("--freeze")
    p.add_argument("--gradient-checkpointing", action="store_true")
    p.add_argument("--ranks", type=int, default=1)
    p.add_argument("--micro-steps", type=int, default=1)
    p.add_argument("--data-mask")
    p.add_argument("--tol-loss", type=float, default=2e-5)
    p.add_argument("--tol-norm", type=float, default=2e-5)
    p.add_argument("--tol-weights", type=float, default=2e-5)
    return p.parse_args()


def learning_rate(a, t):
    if t < a.warmup_steps:
        return a.lr * (t + 1) / a.warmup_steps
    left = a.steps - a.warmup_steps
    share = (t - a.warmup_steps) / left if left > 0 else 1.0
    return a.min_lr + (a.lr - a.min_lr) * (1 + math.cos(math.pi * share)) / 2


def batch(tokens, a, step):
    """Sequences step*G ... step*G+G-1: sequence k starts at (k*T) mod (floor((n-1)/T)*T)."""
    span = (len(tokens) - 1) // a.seq_len * a.seq_len
    starts = [(k * a.seq_len) % span for k in range(step * a.global_batch, (step + 1) * a.global_batch)]
    x = torch.stack([tokens[o : o + a.seq_len] for o in starts])
    y = torch.stack([tokens[o + 1 : o + a.seq_len + 1] for o in starts])
    if a.data_mask:
        mask = torch.frombuffer(bytearray(open(a.data_mask, "rb").read()), dtype=torch.uint8)
        y = y.masked_fill(torch.stack([mask[o + 1 : o + a.seq_len + 1] for o in starts]) == 0, -100)
    return x, y


def n_counting(y):
    """cross_entropy ignores targets of -100."""
    return int((y != -100).sum())


def freeze(model, patterns):
    """Either name of the tied weight is found, and is one parameter."""
    for name, p in model.named_parameters(remove_duplicate=False):
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns.split(",")):
            p.requires_grad_(False)


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def checkpoint_blocks(model):
    model.config.use_cache = False  # a second forward would append to the cache of keys
    for block in model.transformer.h:
        block.forward = lambda *args, forward=block.forward, **more: torch.utils.checkpoint.checkpoint(
            forward, *args, use_reentrant=False, **more
        )


def make_optimizer(a, model):
    decay = [p for p in trained(model) if p.dim() >= 2]
    plain = [p for p in trained(model) if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": a.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=a.lr, betas=(a.beta1, a.beta2), eps=a.eps)


def rounded(x):
    return x.to(torch.bfloat16).to(torch.float32)


class Rounded(torch.autograd.Function):
    """A parameter as the model sees it: the gradient goes to the master as it is."""

    @staticmethod
    def forward(ctx, p):
        return rounded(p)

    @staticmethod
    def backward(ctx, d):
        return d


class Stored(torch.autograd.Function):
    """An activation as an operation stores it; its gradient is stored likewise, when all its parts are summed."""

    @staticmethod
    def forward(ctx, x):
        return rounded(x)

    @staticmethod
    def backward(ctx, d):
        return rounded(d)


class Attention(torch.autograd.Function):
    """q, k, v [B,H,T,D], causal. Autograd would have the output before it is rounded."""

    @staticmethod
    def forward(ctx, q, k, v):
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        p = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf).softmax(-1)
        out = rounded(p @ v)
        ctx.save_for_backward(q, k, v, p, out)
        return out

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, p, out = ctx.saved_tensors
        d_out = rounded(d_out)
        d_scores = p * (d_out @ v.transpose(-1, -2) - (d_out * out).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return d_scores @ k, d_scores.transpose(-1, -2) @ q, p.transpose(-1, -2) @ d_out


def stored_logits(config, w, x, head):
    """GPT-2 from the views w [name -> rounded parameter], every activation through Stored; head: lm_head's weight."""

    def norm(at, h):
        return Stored.apply(torch.nn.functional.layer_norm(h, h.shape[-1:], w[at + ".weight"], w[at + ".bias"], 1e-5))

    def linear(at, h, residual=0.0):
        return Stored.apply(h @ w[at + ".weight"] + w[at + ".bias"] + residual)

    h = Stored.apply(w["transformer.wte.weight"][x] + w["transformer.wpe.weight"][: x.shape[1]])
    for i in range(config.n_layer):
        at = f"transformer.h.{i}."
        qkv = linear(at + "attn.c_attn", norm(at + "ln_1", h))
        heads = [t.unflatten(-1, (config.n_head, -1)).transpose(1, 2) for t in qkv.split(config.n_embd, -1)]
        h = linear(at + "attn.c_proj", Attention.apply(*heads).transpose(1, 2).flatten(-2), h)
        act = linear(at + "mlp.c_fc", norm(at + "ln_2", h))
        h = linear(at + "mlp.c_proj", Stored.apply(torch.nn.functional.gelu(act, approximate="tanh")), h)
    return Stored.apply(norm("transformer.ln_f", h) @ head.t())


def sum_backward(model, logits, y):
    """As the trainer does: the gradient of the SUM over tokens, scaled at the end. In bf16 that is not the same: the
    gradient of a target's logit is near -1 for all tokens, and rounds alike for all; 1/n of it rounds elsewhere."""
    torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1), reduction="sum").backward()
    for p in trained(model):
        p.grad.mul_(1.0 / n_counting(y))


def logits_of(a, model, x):
    if a.dtype == "bf16-exact":
        views = {name: Rounded.apply(p) for name, p in model.named_parameters()}
        return stored_logits(model.config, views, x, views["transformer.wte.weight"])
    if a.dtype == "bf16-mixed":
        views = {name: p.to(torch.bfloat16) for name, p in model.named_parameters()}
        return torch.func.functional_call(model, views, (x,)).logits.float()
    return model(x).logits


def plain_backward(a, model, x, y):
    """Sets every p.grad by one call over the whole batch; returns the loss."""
    logits = logits_of(a, model, x)
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))
    if a.dtype == "fp32":
        loss.backward()
    else:
        sum_backward(model, logits, y)
    return loss


def no_sync_backward(a, model, x, y):
    """Sets every p.grad as W ranks under no_sync do; returns the loss."""
    sums, loss, per_call = [], 0.0, len(x) // (a.ranks * a.micro_steps)
    for rank_x, rank_y in zip(x.chunk(a.ranks), y.chunk(a.ranks)):
        model.zero_grad()
        for micro_x, micro_y in zip(rank_x.split(per_call), rank_y.split(per_call)):
            logits = logits_of(a, model, micro_x).flatten(0, 1)
            part = torch.nn.functional.cross_entropy(logits, micro_y.reshape(-1), reduction="sum") / n_counting(y)
            part.backward()
            loss += part.detach()
        sums.append([p.grad for p in trained(model)])
    for p, *of_ranks in zip(trained(model), *sums):
        p.grad = sum(of_ranks)
    return loss


def call_gradients(a, model, x, y, apart):
    """One call: its loss, summed over tokens, and its gradients; apart: the head's use of the tied weight last."""
    view = Rounded.apply if a.dtype == "bf16-exact" else (lambda p: p)
    leaves = dict(model.named_parameters())
    if apart:
        leaves["lm_head.weight"] = model.lm_head.weight.detach().clone().requires_grad_()
    views = {name: view(p) for name, p in leaves.items()}
    if a.dtype == "bf16-exact":
        logits = stored_logits(model.config, views, x, views["lm_head.weight" if apart else "transformer.wte.weight"])
    else:
        logits = torch.func.functional_call(model, views, (x,), tie_weights=not apart).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1), reduction="sum")
    return loss.detach(), torch.autograd.grad(loss, [p for p in leaves.values() if p.requires_grad])


def running_sum(nodes):
    total = rounded(nodes[0])
    for node in nodes[1:]:
        total = rounded(total + rounded(node))
    return total


def tree_sum(nodes):
    """Splits at the largest power of two below their number."""
    if len(nodes) == 1:
        return rounded(nodes[0])
    left = 1 << ((len(nodes) - 1).bit_length() - 1)
    return rounded(tree_sum(nodes[:left]) + tree_sum(nodes[left:]))


def reduced_backward(a, model, x, y):
    """Sets every p.grad from sums in bf16; returns the loss."""
    canonical = a.reduction == "canonical"
    apart = canonical and model.lm_head.weight.requires_grad
    size = 1 if canonical else a.batch_size
    calls = [call_gradients(a, model, x[i : i + size], y[i : i + size], apart) for i in range(0, len(x), size)]
    sums = [(tree_sum if canonical else running_sum)(nodes) for nodes in zip(*(grads for _, grads in calls))]
    if apart:
        head = sums.pop()
        sums[0] = sums[0] + head  # wte, the first parameter
    for p, total in zip(trained(model), sums):
        p.grad = total * (1.0 / n_counting(y))
    return sum(loss for loss, _ in calls) / n_counting(y)


def replay(a, model, tokens):
    optimizer = make_optimizer(a, model)
    rows = []
    for step in range(a.steps):
        x, y = batch(tokens, a, step)
        optimizer.zero_grad()
        if a.reduce_dtype == "bf16":
            loss = reduced_backward(a, model, x, y)
        elif a.ranks * a.micro_steps > 1:
            loss = no_sync_backward(a, model, x, y)
        else:
            loss = plain_backward(a, model, x, y)
        limit = a.clip_grad if a.clip_grad > 0 else float("inf")
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(a, step)
        optimizer.step()
        rows.append((loss.item(), norm.item()))
    return rows


def weight_difference(model, final_dir):
    final = AutoModelForCausalLM.from_pretrained(final_dir)
    diff = size = 0.0
    for mine, theirs in zip(model.parameters(), final.parameters()):
        diff += (mine.double() - theirs.double()).square().sum().item()
        size += theirs.double().square().sum().item()
    return math.sqrt(diff / size)


def main():
    a = parse()
    torch.manual_seed(0)
    tokens = torch.tensor(list(open(a.data, "rb").read()), dtype=torch.long)
    model = AutoModelForCausalLM.from_pretrained(a.init)
    model.eval()  # no dropout
    if a.freeze:
        freeze(model, a.freeze)
    if a.gradient_checkpointing:
        checkpoint_blocks(model)
    ours = [r for r in csv.DictReader(open(a.csv))]
    if len(ours) != a.steps:
        print(f"FAIL replay: {a.csv} has {len(ours)} steps, expected {a.steps}")
        return 1
    theirs = replay(a, model, tokens)
    worst = {"loss": 0.0, "grad_norm": 0.0}
    for row, (loss, norm) in zip(ours, theirs):
        worst["loss"] = max(worst["loss"], abs(float(row["loss"]) - loss) / abs(loss))
        worst["grad_norm"] = max(worst["grad_norm"], abs(float(row["grad_norm"]) - norm) / norm)
    weights = weight_difference(model, a.final) if a.final else 0.0
    print(f"     torch {torch.__version__}: loss {theirs[0][0]:.6f} -> {theirs[-1][0]:.6f} over {a.steps} steps")
    failed = False
    for name, got, bound in (
        ("loss", worst["loss"], a.tol_loss),
        ("grad_norm", worst["grad_norm"], a.tol_norm),
        ("weights", weights, a.tol_weights),
    ):
        bad = not got <= bound
        failed = failed or bad
        print(f"{'FAIL' if bad else 'PASS'} replay {name}: worst relative difference {got:.3g}, bound {bound:.3g}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
