#!/usr/bin/env python3
"""Models of many configurations, made by transformers and read by the project.

    configs.py BUILD FOLDER [COUNT [SEED]]     default 300 and 1; works in FOLDER

Each draw makes a GPT-2 or a Llama with random sizes, weights and fields, saves it with save_pretrained or as older versions
did, and knows what must follow: if all fields are implemented or change nothing, BUILD/tests/bench/logits prints the logits of
transformers; if one field changes them and is not implemented, the program refuses it and names the field. Nothing else may
happen. Every field of the two classes is varied; a field that the tables here do not have is a failure. Every eighth model
that is read is exported and loaded again: the same fields and the same bits of logits.

Bound: the same weights and positions in fp64 give the exact logits. Four samples say how far roundings in fp32 move them: the
error of transformers in fp32, and three times the exact logits with every weight changed by a relative 2^-24, up or down, as if
its products were rounded. Both programs round as many numbers, in other orders. In the worst case all errors come from one
badly conditioned number: then an error of 8 times the largest of four normal ones has a chance of 3 (0.8 / 8)^4, 1 in 3000.
"""
import copy
import json
import math
import os
import random
import shutil
import subprocess
import sys

os.environ.setdefault("TQDM_DISABLE", "1")
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

FIVE = int(transformers.__version__.split(".")[0]) >= 5

# Fields that no logits depend on, with values that must be read.
ANY = [True, False]
ID = [None, 0, 7, 299, 50256, -1]
GENERIC = {
    "return_dict": ANY, "output_hidden_states": ANY, "output_attentions": ANY, "torchscript": ANY, "use_cache": ANY,
    "use_bfloat16": ANY, "tf_legacy_loss": ANY, "chunk_size_feed_forward": [0, 3], "is_decoder": ANY, "pruned_heads": [{}, None],
    "is_encoder_decoder": [False], "tie_encoder_decoder": [False], "cross_attention_hidden_size": [None],
    "add_cross_attention": [False], "finetuning_task": [None, "mnli"], "problem_type": [None, "regression"],
    "task_specific_params": [None, {"text-generation": {"do_sample": True, "max_length": 50}}],
    "id2label": [{"0": "LABEL_0"}, {"0": "a, b}", "1": "\"c\""}], "label2id": [{"LABEL_0": 0}], "num_labels": [1, 5],
    "tokenizer_class": [None, "GPT2Tokenizer"], "prefix": [None, "Once"], "bos_token_id": ID, "eos_token_id": [*ID, [1, 2]],
    "pad_token_id": [None, 0, 7, 199, -1], "sep_token_id": ID, "decoder_start_token_id": ID, "forced_bos_token_id": ID, "forced_eos_token_id": ID,
    "max_length": [20, 400], "min_length": [0, 3], "do_sample": ANY, "early_stopping": ANY, "num_beams": [1, 4],
    "num_beam_groups": [1, 2], "diversity_penalty": [0.0, 0.5], "temperature": [1.0, 0.6], "top_k": [50, 0], "top_p": [1.0, 0.9],
    "typical_p": [1.0, 0.2], "repetition_penalty": [1.0, 1.2], "length_penalty": [1.0, 0.8], "no_repeat_ngram_size": [0, 3],
    "encoder_no_repeat_ngram_size": [0, 2], "bad_words_ids": [None, [[7]]], "num_return_sequences": [1, 3],
    "output_scores": ANY, "return_dict_in_generate": ANY, "remove_invalid_values": ANY, "suppress_tokens": [None, [3]],
    "begin_suppress_tokens": [None, [220]], "exponential_decay_length_penalty": [None, [15, 1.6]], "_name_or_path": ["", "a/b"],
    "transformers_version": ["4.1.0", "5.24.0"], "attn_implementation": [None, "eager"], "_attn_implementation_autoset": ANY,
    "gradient_checkpointing": ANY, "initializer_range": [0.02, 1.0], "predict_special": [False], "some_feature": [None, False],
    "n_special": [0], "empty_list": [[]], "empty_object": [{}], "empty_text": [""], "hidden_dropout": [0.0, 0.3],
    "partial_rotary_factor": [1.0], "is_causal": [True], "architectures": [["SomeModel"], None],
}
OF_GPT2 = {
    "summary_type": ["cls_index", "last"], "summary_use_proj": ANY, "summary_activation": [None, "tanh"],
    "summary_first_dropout": [0.1, 0], "summary_proj_to_labels": ANY, "predict_special_tokens": ANY, "output_past": ANY,
    "resid_pdrop": [0.0, 0.1], "embd_pdrop": [0.0, 0.1], "attn_pdrop": [0.0, 0.1], "scale_attn_weights": [True],
    "scale_attn_by_inverse_layer_idx": [False], "reorder_and_upcast_attn": [False],
}
OF_LLAMA = {"attention_dropout": [0.0, 0.1], "pretraining_tp": [1, 2], "attention_bias": [False], "mlp_bias": [False]}
# Fields that are part of what draw_gpt2 and draw_llama choose, or of how the file is written.
DRAWN = {"n_layer", "n_head", "n_embd", "n_inner", "n_positions", "vocab_size", "layer_norm_epsilon", "activation_function",
         "tie_word_embeddings", "model_type", "dtype", "torch_dtype", "num_hidden_layers", "num_attention_heads",
         "num_key_value_heads", "head_dim", "hidden_size", "intermediate_size", "max_position_embeddings", "rms_norm_eps",
         "hidden_act", "rope_theta", "rope_scaling", "rope_parameters"}

# Fields that must be refused. MADE: the model is made with them; WRITTEN: they are written into config.json.
MADE_GPT2 = [("activation_function", x) for x in ("gelu", "relu", "silu", "tanh")] + [
    ("scale_attn_weights", False), ("scale_attn_by_inverse_layer_idx", True), ("reorder_and_upcast_attn", True),
    ("add_cross_attention", True), ("tie_word_embeddings", False)]
MADE_LLAMA = [("hidden_act", x) for x in ("gelu", "relu", "gelu_new")] + [("attention_bias", True), ("mlp_bias", True)]
WRITTEN = [
    ("is_encoder_decoder", True), ("tie_encoder_decoder", True), ("pruned_heads", {"0": [0]}), ("is_causal", False),
    ("is_causal", None), ("cross_attention_hidden_size", 8), ("n_special", 3), ("auto_map", {"AutoModel": "a.B"}),
    ("quantization_config", {"bits": 4}), ("some_feature", True), ("logit_scale", 0.5), ("embedding_multiplier", 2.0),
    ("embedding_multiplier", 0), ("final_logit_softcapping", 30.0), ("sliding_window", 8), ("layer_types", ["sliding_attention"]),
    ("num_experts", 4), ("top_k_experts", 2), ("attention_multiplier", 1.0), ("partial_rotary_factor", 0.5),
    ("partial_rotary_factor", 0), ("loss_type", "x")]
WRITTEN_GPT2 = [("n_ctx", 5), ("rotary_dim", 4), ("layer_norm_epsilon", 0), ("n_layer", 1.5), ("scale_attn_weights", None)]
WRITTEN_LLAMA = [("rope_scaling", {"rope_type": "linear", "factor": 2.0}), ("rope_scaling", {"type": "dynamic", "factor": 2.0}),
                 ("rope_scaling", {"rope_type": "yarn", "factor": 2.0}), ("rope_scaling", {"rope_type": "default", "type": "llama3"}),
                 ("rope_parameters", {"rope_type": "default", "rope_theta": 7.0}), ("rope_scaling", {"rope_theta": 7.0}),
                 ("rope_parameters", {"rope_type": "longrope", "rope_theta": 10000.0}), ("rms_norm_eps", "1e-6"),
                 ("rope_parameters", {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5})]


def draw_gpt2(r):
    n_head = r.randint(1, 4)
    width = n_head * r.choice([4, 5, 8, 16])
    return {"n_layer": r.randint(1, 3), "n_head": n_head, "n_embd": width, "n_inner": r.choice([None, 4 * width, 10, 33]),
            "vocab_size": r.randint(200, 300), "n_positions": r.randint(13, 40),
            "layer_norm_epsilon": r.choice([1e-5, 1e-6, 1e-3, 0.1]),
            "activation_function": r.choice(["gelu_new", "gelu_pytorch_tanh"])}


def draw_llama(r):
    n_kv = r.randint(1, 3)
    n_head = n_kv * r.randint(1, 3)
    head_dim = r.choice([None, 4, 6, 10, 16])
    width = r.choice([22, 24, 30, 46]) if head_dim and not FIVE else n_head * r.choice([2, 4, 6, 8])
    return {"num_hidden_layers": r.randint(1, 3), "num_attention_heads": n_head, "num_key_value_heads": n_kv,
            "head_dim": head_dim, "hidden_size": width, "intermediate_size": r.randint(5, 70), "vocab_size": r.randint(200, 300),
            "max_position_embeddings": r.randint(13, 64), "rms_norm_eps": r.choice([1e-5, 1e-6, 1e-2]),
            "hidden_act": r.choice(["silu", "swish"]), "tie_word_embeddings": r.choice(ANY)}


def draw_rope(r):
    """A base and a scaling of rotary positions, or None."""
    scaling = {"rope_type": "llama3", "factor": r.choice([8.0, 2.5]), "low_freq_factor": 1.0,
               "high_freq_factor": r.choice([4.0, 2.0]), "original_max_position_embeddings": r.choice([8, 16, 32])}
    return r.choice([10000.0, 500000.0, 100.0]), r.choice([None, scaling])


def spell_rope(r, theta, scaling):
    """The fields of config.json in one of the spellings of versions 4 and 5."""
    plain = scaling or {"rope_type": "default"}
    older = dict(plain, type=plain["rope_type"])
    if r.random() < 0.5:
        older.pop("rope_type")
    newer = dict(plain, rope_theta=theta)
    return r.choice([
        {"rope_theta": theta, "rope_scaling": scaling}, {"rope_theta": theta, "rope_scaling": older},
        {"rope_parameters": newer}, {"rope_theta": theta, "rope_parameters": newer},
        {"rope_theta": theta, "rope_scaling": plain, "rope_parameters": newer},
        {"rope_theta": theta, "rope_scaling": {}, "rope_parameters": newer}, {"rope_scaling": newer}])


def frequencies(head_dim, theta, scaling):
    """Of rotary positions, in fp64."""
    freq = theta ** (-torch.arange(0, head_dim, 2).double() / head_dim)
    if not scaling:
        return freq
    low, high, factor = (scaling[k] for k in ("low_freq_factor", "high_freq_factor", "factor"))
    turns = scaling["original_max_position_embeddings"] * freq / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return freq * (kept + (1 - kept) / factor)


def write_weights(r, model, folder, prefix):
    """The tensors as older versions wrote them: names without the prefix, tables, either name of a tied weight."""
    tensors = {k: v.clone().contiguous() for k, v in model.state_dict().items()}
    embed = "transformer.wte.weight" if prefix == "transformer." else "model.embed_tokens.weight"
    if model.config.tie_word_embeddings:
        tensors.pop(r.choice(["lm_head.weight", embed, "neither"]), None)
    for i in range(r.randint(0, 2)):
        if prefix == "transformer.":
            tensors[f"transformer.h.{i}.attn.bias"] = torch.ones(1, 1, 5, 5, dtype=torch.bool)
            tensors[f"transformer.h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
        else:
            tensors[r.choice(["model.", f"model.layers.{i}.self_attn."]) + "rotary_emb." + r.choice(["inv_freq", "cos_cached"])] = \
                torch.ones(4, dtype=torch.int64)
    if r.random() < 0.5:
        tensors = {k.removeprefix(prefix): v for k, v in tensors.items()}
    names, n_files = list(tensors), r.randint(1, 3)
    r.shuffle(names)
    parts = [names[i::n_files] for i in range(n_files)]
    files = ["model.safetensors"] if n_files == 1 else [f"part-{i}.safetensors" for i in range(n_files)]
    for file, part in zip(files, parts):
        save_file({k: tensors[k] for k in part}, f"{folder}/{file}", metadata={"format": "pt"})
    if n_files > 1:
        index = {"metadata": {}, "weight_map": {k: f for f, part in zip(files, parts) for k in part}}
        json.dump(index, open(f"{folder}/model.safetensors.index.json", "w"))


def make(r, folder):
    """Save a model; returns it, the field that must be refused or None, the tokens, and the fields written beside the sizes."""
    is_gpt2 = r.random() < 0.5
    fields = draw_gpt2(r) if is_gpt2 else draw_llama(r)
    theta, scaling = draw_rope(r)
    bad = r.random() < 1 / 3
    made = bad and r.random() < 0.4
    field, value = r.choice((MADE_GPT2 if is_gpt2 else MADE_LLAMA) if made else
                            WRITTEN + (WRITTEN_GPT2 if is_gpt2 else WRITTEN_LLAMA)) if bad else (None, None)
    if bad and not made and field.startswith("rope_"):
        theta, scaling = 10000.0, None
    arguments = dict(fields, **({field: value} if made else {}))
    if not is_gpt2:
        arguments.update({"rope_parameters": dict(scaling or {"rope_type": "default"}, rope_theta=theta)} if FIVE else
                         {"rope_theta": theta, "rope_scaling": scaling and dict(scaling)})
    config = (GPT2Config if is_gpt2 else LlamaConfig)(initializer_range=0.2, bos_token_id=0, eos_token_id=0, **arguments)
    dtype = r.choice([torch.float32, torch.bfloat16, torch.float16])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for p in model.parameters():  # biases and norms, too
            p.copy_((p + 0.1 * torch.randn_like(p)).to(dtype))
    if not is_gpt2:
        model.frequencies = frequencies(config.head_dim, theta, scaling)
        assert torch.allclose(model.frequencies.float(), model.model.rotary_emb.inv_freq, rtol=1e-5)
    stored = copy.deepcopy(model).to(dtype)  # model keeps its tables of positions in fp32
    stored.save_pretrained(folder, max_shard_size=r.choice(["5GB", "20KB"]))
    if r.random() < 0.5:
        for name in os.listdir(folder):
            if "safetensors" in name:
                os.remove(f"{folder}/{name}")
        write_weights(r, stored, folder, "transformer." if is_gpt2 else "model.")
    tables = {**GENERIC, **(OF_GPT2 if is_gpt2 else OF_LLAMA)}
    beside = {k: r.choice(tables[k]) for k in r.sample(sorted(tables), 12) if not made or k != field}
    path = f"{folder}/config.json"
    written = json.load(open(path))
    for name in ("dtype", "torch_dtype"):
        written.pop(name, None)
    beside.update(r.choice([{}, {"dtype": "bfloat16"}, {"torch_dtype": "float16"}]))
    if is_gpt2 and r.random() < 0.5:
        beside["n_ctx"] = fields["n_positions"]
    if not is_gpt2:
        for name in ("rope_theta", "rope_scaling", "rope_parameters"):
            written.pop(name, None)
        written.update(spell_rope(r, theta, scaling) if not (bad and field.startswith("rope_")) else {"rope_theta": theta})
        if fields["head_dim"] is None and r.random() < 0.5:
            written.pop("head_dim")
    written.update(beside)
    if bad and not made:
        written[field] = value
    json.dump(written, open(path, "w"), indent=r.choice([None, 2]))
    tokens = [r.randrange(fields["vocab_size"]) for _ in range(12)]
    for name in ("architectures", "dtype", "torch_dtype"):
        beside.pop(name, None)
    return model, field, tokens, beside


def logits_of(model, tokens, dtype, noise=0.0):
    model = copy.deepcopy(model).to(dtype)
    for p in model.parameters():
        p.data *= 1 + noise * (2.0 * torch.randint(0, 2, p.shape) - 1) if noise else 1
    if dtype == torch.float64 and model.config.model_type == "llama":  # transformers computes these in fp32 in any case
        angles = torch.arange(len(tokens)).double()[:, None] * model.frequencies
        angles = torch.cat((angles, angles), -1)[None]
        model.model.rotary_emb.forward = lambda x, position_ids, *more: (angles.cos(), angles.sin())
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0, -1].double()


def export_differs(build, folder, model, tokens, beside):
    """What is wrong with an export of the model, or None."""
    out = folder + ".out"
    done = subprocess.run([f"{build}/fsdp_train", "--parallel", "single", "--init-from", folder, "--steps", "0", "--synthetic", "999",
                           "--seq-len", "8", "--batch-size", "1", "--export", out], capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr
    written = json.load(open(f"{out}/config.json"))
    differ = [k for k in beside if k not in written or written[k] != beside[k]]
    if differ:
        return f"the export has other fields: {differ}"
    # transformers itself refuses some of the fields beside the sizes, such as num_return_sequences without num_beams
    json.dump({k: v for k, v in written.items() if k not in beside}, open(f"{out}/config.json", "w"))
    again = AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager").eval()
    if not torch.equal(logits_of(again, tokens, torch.float32), logits_of(model, tokens, torch.float32)):
        return "the export has other logits"
    return None


def judge(build, folder, drawn, exports):
    """What is wrong, or None; and the ratio of the error to the bound, or 0."""
    model, field, tokens, beside = drawn
    done = subprocess.run([f"{build}/tests/bench/logits", folder, *map(str, tokens)], capture_output=True, text=True)
    if field:
        if done.returncode == 1 and f'"{field}"' in done.stderr:
            return None, 0
        return f"status {done.returncode}, expected a refusal that names {field}: {done.stderr}", 0
    if done.returncode != 0:
        return f"status {done.returncode}, expected logits: {done.stderr}", 0
    ours = torch.tensor([float(x) for x in done.stdout.split()]).double()
    theirs, exact = logits_of(model, tokens, torch.float32), logits_of(model, tokens, torch.float64)
    if ours.shape != exact.shape:
        return f"{len(ours)} logits", 0
    rounded = [theirs] + [logits_of(model, tokens, torch.float64, 2.0 ** -24) for _ in range(3)]
    bound = 8 * max(float((x - exact).abs().max()) for x in rounded)
    ratio = float((ours - exact).abs().max()) / bound
    if not ratio <= 1:
        return f"other logits: {ratio:.3g} times the bound {bound:.2g}", ratio
    return export_differs(build, folder, model, tokens, beside) if exports else None, ratio


def main(build, work, count=300, seed=1):
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    r = random.Random(int(seed))
    torch.manual_seed(int(seed))
    unknown = sorted((set(GPT2Config().to_dict()) - set(OF_GPT2) | set(LlamaConfig().to_dict()) - set(OF_LLAMA)) - set(GENERIC) - DRAWN)
    n_equal = n_refused = n_exports = n_failed = 0
    worst = 0.0
    for i in range(int(count)):
        folder = f"{work}/{i}"
        drawn = make(r, folder)
        exports = not drawn[1] and n_equal % 8 == 0
        wrong, ratio = judge(build, folder, drawn, exports)
        worst = max(worst, ratio)
        n_exports += exports
        n_equal += not wrong and not drawn[1]
        n_refused += not wrong and bool(drawn[1])
        if wrong:
            n_failed += 1
            print(f"FAIL config {i} of seed {seed}: {wrong.strip()}")
            print("     " + " ".join(open(f"{folder}/config.json").read().split()))
        for name in (folder, folder + ".out"):
            shutil.rmtree(name, ignore_errors=True)
    if unknown:
        print(f"FAIL configs: fields of transformers {transformers.__version__} that are not varied: {unknown}")
    enough = n_equal >= int(count) / 2 and n_refused >= int(count) / 5  # 2/3 and 1/3 are drawn
    print(f"{'PASS' if enough and not n_failed else 'FAIL'} configs: of {count} (seed {seed}, transformers {transformers.__version__}) "
          f"{n_equal} equal, {n_refused} refused, {n_failed} neither; {n_exports} exported; largest error {worst:.2g} of the bound")
    return bool(unknown or n_failed or not enough)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
