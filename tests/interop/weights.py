#!/usr/bin/env python3
"""Weights that transformers made, through the trainer and back.

    weights.py make DIR DTYPE SHARD      a GPT-2 with random weights; SHARD: the most that a file has, as 20KB
    weights.py same DIR OTHER            the same parameters, to the bit, of DIR in fp32
    weights.py logits DIR BUILD          transformers' logits beside those of BUILD/tests/bench/logits

Bound of logits: both compute in fp32 and add in different orders. In three blocks of width 48 the largest
difference seen is 7.5e-7 of the largest logit; the bound is 2e-6.
"""
import os
import subprocess
import sys

os.environ.setdefault("TQDM_DISABLE", "1")
import torch
from transformers import GPT2Config, GPT2LMHeadModel


def make(folder, dtype, shard):
    torch.manual_seed(5)
    config = GPT2Config(n_layer=3, n_head=3, n_embd=48, n_inner=100, vocab_size=256, n_positions=80,
                        layer_norm_epsilon=1e-6, initializer_range=0.2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).to(getattr(torch, dtype))
    for p in model.parameters():  # biases and norms, too
        p.data += 0.1 * torch.randn_like(p)
    model.save_pretrained(folder, max_shard_size=shard)


def load(folder):
    return GPT2LMHeadModel.from_pretrained(folder).float()


def same(folder, other):
    mine, theirs = load(folder).state_dict(), load(other).state_dict()
    differ = [k for k in mine if mine[k].shape != theirs[k].shape or not torch.equal(mine[k], theirs[k])]
    if mine.keys() != theirs.keys() or differ:
        sys.exit(f"FAIL weights differ: {differ}")
    print("PASS weights: the same bits")


def logits(folder, build):
    tokens = [3, 141, 59, 26, 53, 58, 97, 93, 238, 46, 26, 43]
    words = [f"{build}/tests/bench/logits", folder, *map(str, tokens)]
    got = torch.tensor([float(x) for x in subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()])
    with torch.no_grad():
        expected = load(folder)(torch.tensor([tokens])).logits[0, -1]
    relative = float((got - expected).abs().max() / expected.abs().max())
    verdict = "PASS" if relative < 2e-6 else "FAIL"
    print(f"{verdict} logits: largest difference {relative:.2g} of the largest logit, bound 2e-06")
    if verdict == "FAIL":
        sys.exit(1)


{"make": make, "same": same, "logits": logits}[sys.argv[1]](*sys.argv[2:])
