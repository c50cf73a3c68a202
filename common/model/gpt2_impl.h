/* gpt2_impl.h -- what gpt2.c (lists) and gpt2_stages.c (arithmetic) share. Private to them. */
#pragma once
#include "common/model/gpt2.h"

/* A stage's own parameter order: indices into stage_io.params and .grads. */
enum { EMBED_WTE, EMBED_WPE, EMBED_N_PARAMS };
enum {
    ATTN_LN_GAIN,
    ATTN_LN_BIAS,
    ATTN_QKV_WEIGHT, /* [C, 3C] */
    ATTN_QKV_BIAS,
    ATTN_PROJ_WEIGHT, /* [C, C] */
    ATTN_PROJ_BIAS,
    ATTN_N_PARAMS
};
enum {
    MLP_LN_GAIN,
    MLP_LN_BIAS,
    MLP_FC_WEIGHT, /* [C, F] */
    MLP_FC_BIAS,
    MLP_PROJ_WEIGHT, /* [F, C] */
    MLP_PROJ_BIAS,
    MLP_N_PARAMS
};
enum { HEAD_LN_GAIN, HEAD_LN_BIAS, HEAD_WEIGHT, HEAD_N_PARAMS };

/* gpt2_*_stage -- fill the four functions of a stage. */
void gpt2_embed_stage(stage *st);
void gpt2_attn_stage(stage *st);
void gpt2_mlp_stage(stage *st);
void gpt2_head_stage(stage *st);
