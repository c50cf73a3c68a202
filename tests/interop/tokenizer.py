#!/usr/bin/env python3
"""Makes a tokenizer of 400 tokens from a text, as transformers saves one: tokenizer.py TEXT DIR."""
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

text, folder = sys.argv[1:]
made = Tokenizer(models.BPE())
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
made.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
made.train([text], trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder)
