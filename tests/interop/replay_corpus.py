#!/usr/bin/env python3
"""Regenerates the synthetic corpus (common/data/synthetic.c) and the data order (data.h) in Python.

    replay_corpus.py --seed 1 --tokens 10000 --vocab 256            prints the first 32 and a hash
    replay_corpus.py --seed 1 --tokens 10000 --vocab 256 --out F    also writes F as an llm.c shard
    replay_corpus.py --check                                        compares with the fixtures below

Other oracles import it: tokens(seed, n, vocab), sequence(corpus, k, seq_len), philox_u32(...).
"""
import argparse
import sys

import numpy as np

M0, M1, W0, W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85
MASK = np.uint64(0xFFFFFFFF)
NOISE, AFTER_ONE, AFTER_TWO = 0, 1, 2


def philox_words(seed, stream, indices):
    """philox_u32(seed, stream, i) for every i of an array [Salmon et al. 2011]."""
    indices = np.asarray(indices, np.uint64)
    call = indices // np.uint64(4)
    c = [call & MASK, call >> np.uint64(32),
         np.full_like(call, stream & 0xFFFFFFFF), np.full_like(call, stream >> 32)]
    key0, key1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        product0, product1 = c[0] * np.uint64(M0), c[2] * np.uint64(M1)
        c = [(product1 >> np.uint64(32)) ^ c[1] ^ np.uint64(key0), product1 & MASK,
             (product0 >> np.uint64(32)) ^ c[3] ^ np.uint64(key1), product0 & MASK]
        key0, key1 = (key0 + W0) & 0xFFFFFFFF, (key1 + W1) & 0xFFFFFFFF
    return np.choose((indices % np.uint64(4)).astype(np.int64), c).astype(np.uint32)


def philox_u32(seed, stream, index):
    return int(philox_words(seed, stream, [index])[0])


def skewed_symbol(word, vocab):
    u = word >> 16
    u = (u * u) >> 16
    u = (u * u) >> 16
    return (u * vocab) >> 16


def tokens(seed, n, vocab):
    """The first n tokens, as a numpy array of uint16."""
    noise = philox_words(seed, NOISE, np.arange(n))
    words = {}  # (stream, index) -> word: contexts repeat

    def word(stream, index):
        if (stream, index) not in words:
            words[stream, index] = philox_u32(seed, stream, index)
        return words[stream, index]

    out = np.zeros(n, np.uint16)
    a = b = 0
    for i in range(n):
        r = int(noise[i])
        choice = r >> 28
        context = 4 * (a * vocab + b)
        if choice < 8:
            w = word(AFTER_ONE, b)
        elif choice < 12:
            w = word(AFTER_TWO, context)
        elif choice < 14:
            w = word(AFTER_TWO, context + 1)
        elif choice == 14:
            w = word(AFTER_TWO, context + 2)
        else:
            w = (r << 4) & 0xFFFFFFFF
        a, b = b, skewed_symbol(w, vocab)
        out[i] = b
    return out


def sequence(corpus, k, seq_len):
    """tokens [T], targets [T] of sequence number k."""
    places = (len(corpus) - 1) // seq_len
    o = (k * seq_len) % (places * seq_len)
    return corpus[o:o + seq_len], corpus[o + 1:o + seq_len + 1]


def fnv1a(values):
    """FNV-1a over the tokens as little-endian 16-bit numbers."""
    h = 0xCBF29CE484222325
    for byte in np.asarray(values, "<u2").tobytes():
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h


def write_shard(path, values):
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(values)
    with open(path, "wb") as f:
        f.write(header.tobytes())
        f.write(np.asarray(values, "<u2").tobytes())


# The literals of tests/unit/test_data.c.
FIXTURES = [
    # seed, tokens, vocab, first 32, hash of all
    (1, 10000, 256,
     [0, 0, 170, 3, 76, 33, 246, 0, 0, 170, 3, 128, 188, 2, 0, 0,
      0, 170, 3, 12, 8, 14, 187, 4, 0, 0, 170, 2, 0, 0, 170, 3],
     0xd10d9cfc8d8fc707),
    (123456789012345, 4000, 50257,
     [6744, 28065, 171, 199, 0, 10195, 5361, 940, 2069, 41392, 7415, 6789, 713, 170, 6, 1655,
      25707, 3795, 49800, 0, 10195, 5361, 940, 2069, 21222, 0, 1122, 4082, 227, 55, 11164, 21],
     0xa95735321599730a),
    (7, 2000, 3,
     [0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0,
      0, 1, 2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2],
     0xfc27cc11d9afc136),
]


def check():
    for seed, n, vocab, first, expected_hash in FIXTURES:
        t = tokens(seed, n, vocab)
        if list(t[:32]) != first or fnv1a(t) != expected_hash:
            print(f"FAIL seed {seed}, {n} tokens, vocab {vocab}: got {list(map(int, t[:32]))}, "
                  f"hash {fnv1a(t):#018x}")
            return 1
    print(f"ok: {len(FIXTURES)} fixtures")
    return 0


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--tokens", type=int, default=10000)
    p.add_argument("--vocab", type=int, default=256)
    p.add_argument("--out")
    p.add_argument("--check", action="store_true")
    args = p.parse_args()
    if args.check:
        return check()
    t = tokens(args.seed, args.tokens, args.vocab)
    print(" ".join(str(int(x)) for x in t[:32]))
    print(f"hash {fnv1a(t):#018x}")
    if args.out:
        write_shard(args.out, t)
    return 0


if __name__ == "__main__":
    sys.exit(main())
