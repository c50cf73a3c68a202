/* gpt2.h -- GPT-2 as Hugging Face's GPT2LMHeadModel, cut into layers.
 *
 *   embed     wte, wpe
 *   h.i.attn  ln_1, c_attn, c_proj:  x + proj(attn(ln x))
 *   h.i.mlp   ln_2, c_fc, c_proj:    x + proj(gelu(fc(ln x)))
 *   head      ln_f, lm_head (tied to wte)
 *
 * embed and head are the root unit (block -1). Linear weights are stored [in, out] (Conv1D), wte
 * and lm_head [V, C]. Parameters have the names of Hugging Face's checkpoints:
 * "transformer.h.0.ln_1.weight", "lm_head.weight". */
#pragma once
#include "common/model/unit.h"

/* gpt2_preset -- sizes by name: tiny (2 blocks, d 64, 2 heads), small (6 blocks, d 256, 8 heads:
 * 4.9M with the byte vocabulary), 124m, 355m, 774m, 1558m (the published four), xl-2l (2 blocks, d
 * 1600, 25 heads).
 *   errors  FSDP_EINVAL with the list of names */
fsdp_status gpt2_preset(const char *name, model_config *config);

/* gpt2_create -- the lists of layers and parameters; no memory for the parameters themselves.
 *   config  d_ff and norm_eps may be 0 for their usual values
 *   m       the caller's; owns the lists until model_free. It must not move: layers point back to
 *           it
 *   errors  FSDP_EINVAL (n_head does not divide d_model; zero or overflowing sizes); FSDP_ENOMEM */
fsdp_status gpt2_create(const model_config *config, model *m);
