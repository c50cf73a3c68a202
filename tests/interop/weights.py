#!/usr/bin/env python3
"""Weights that transformers made, through the trainer and back.

    weights.py make DIR DTYPE SHARD [MODEL]   random weights; SHARD: the most that a file has, as 20KB. MODEL: gpt2,
                                              llama (heads that share keys), llama31 (untied, scaled positions)
    weights.py same DIR OTHER            the same parameters, to the bit, of DIR in fp32
    weights.py logits DIR BUILD          transformers' logits beside those of BUILD/tests/bench/logits

Bound of logits: the same weights in double precision give the exact logits. Both programs round the same products and
sums to fp32, in different orders, so their errors have about the same spread. The largest of 256 normal errors lies between
2.25 and 4.5 standard deviations (each end fails in 1 of 500 cases), so the largest error here is at most twice the largest
error of transformers. The bound is 4 times: sums of another depth may have twice the spread.
"""
import os
import subprocess
import sys

os.environ.setdefault("TQDM_DISABLE", "1")
import torch


def config_of(model):
    from transformers import GPT2Config, LlamaConfig
    if model == "gpt2":
        return GPT2Config(n_layer=3, n_head=3, n_embd=48, n_inner=100, vocab_size=256, n_positions=80,
                          layer_norm_epsilon=1e-6, initializer_range=0.2, bos_token_id=0, eos_token_id=0)
    more = {"tie_word_embeddings": True}
    if model == "llama31":
        more = {"rope_theta": 500000.0, "head_dim": 10,
                "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                 "original_max_position_embeddings": 32}}
    return LlamaConfig(num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, hidden_size=48,
                       intermediate_size=100, vocab_size=256, max_position_embeddings=80, rms_norm_eps=1e-6,
                       initializer_range=0.2, bos_token_id=0, eos_token_id=0, **more)


def models():
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM


def make(folder, dtype, shard, model="gpt2"):
    torch.manual_seed(5)
    model = models().from_config(config_of(model)).to(getattr(torch, dtype))
    for p in model.parameters():  # biases and norms, too
        p.data += 0.1 * torch.randn_like(p)
    model.save_pretrained(folder, max_shard_size=shard)


def load(folder):
    return models().from_pretrained(folder).float()


def same(folder, other):
    mine, theirs = load(folder).state_dict(), load(other).state_dict()
    differ = [k for k in mine if mine[k].shape != theirs[k].shape or not torch.equal(mine[k], theirs[k])]
    if mine.keys() != theirs.keys() or differ:
        sys.exit(f"FAIL weights differ: {differ}")
    print("PASS weights: the same bits")


def logits(folder, build):
    tokens = [3, 141, 59, 26, 53, 58, 97, 93, 238, 46, 26, 43]
    words = [f"{build}/tests/bench/logits", folder, *map(str, tokens)]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    ours = torch.tensor([float(x) for x in printed.split()]).double()
    with torch.no_grad():
        theirs, exact = (load(folder).to(dtype)(torch.tensor([tokens])).logits[0, -1].double()
                         for dtype in (torch.float32, torch.float64))
    error, bound = float((ours - exact).abs().max()), 4 * float((theirs - exact).abs().max())
    verdict = "PASS" if error <= bound else "FAIL"
    print(f"{verdict} logits: largest error {error:.2g}, bound {bound:.2g}, largest logit {float(exact.abs().max()):.2g}")
    return verdict == "FAIL"


if __name__ == "__main__":
    sys.exit({"make": make, "same": same, "logits": logits}[sys.argv[1]](*sys.argv[2:]))
