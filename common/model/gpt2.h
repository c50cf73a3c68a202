/* gpt2.h -- GPT-2 as Hugging Face's GPT2LMHeadModel, cut into layers.
 *
 * Layers: "embed" (wte, wpe), then per block "h.i.attn" (ln_1, c_attn, c_proj: x + proj(attn(ln
 * x))) and "h.i.mlp" (ln_2, c_fc, c_proj: x + proj(gelu(fc(ln x)))), then "head" (ln_f, lm_head
 * tied to wte). embed and head are the root unit (block -1). Linear weights are stored [in, out]
 * (Conv1D), wte and lm_head [V, C]. Parameter names are those of the Hugging Face checkpoint
 * ("transformer.h.0.ln_1.weight", "lm_head.weight").                                             */
#pragma once
#include "common/model/unit.h"

/* gpt2_preset -- sizes by name: tiny (2 blocks, d 64, 2 heads), small (6 blocks, d 256, 8 heads:
 * 4.9M with the byte vocabulary), 124m, 355m, 774m, 1558m (the published four), xl-2l (2 blocks,
 * d 1600, 25 heads).
 *   errors  FSDP_EINVAL with the list of names                                                   */
fsdp_status gpt2_preset(const char *name, model_config *config);
/* gpt2_preset_names -- "tiny|small|...", for --help. */
const char *gpt2_preset_names(void);

/* gpt2_create -- the layer list; no parameter memory. m: caller's struct, owner of the lists until
 * model_free. The struct must not move (layers point back to it).
 *   errors  FSDP_EINVAL (n_head does not divide d_model; zero or overflowing sizes); FSDP_ENOMEM */
fsdp_status gpt2_create(const model_config *config, model *m);
