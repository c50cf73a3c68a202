/* llmc_files.c -- write the files that llm.c's CPU trainer reads, from our initial weights and a
 * text.
 *
 *   build/fsdp_train --size 124m --parallel single --steps 0 --export-init INIT ...
 *   build/tests/bench/llmc_files INIT TEXT OUT
 *
 * OUT/gpt2_124M.bin: a header of 256 int32 (magic 20240326, version 3, positions, vocabulary,
 * blocks, heads, width, padded vocabulary, zeros), then the parameters in fp32, each kind of tensor
 * for all blocks before the next kind. A linear weight is [out, in] there and [in, out] here. Rows
 * of zeros pad the embedding to a multiple of 128 rows.
 * OUT/dev/data/tinyshakespeare/tiny_shakespeare_{train,val}.bin: token shards [data_impl.h]. That
 * trainer shuffles its batches of 4 sequences of 64 tokens. To make every order equal to ours, the
 * shard repeats the text's first 256 tokens, so that all batches are the same. So are the targets:
 * the last target is the first token. The names are fixed in llm.c's source; the contents are
 * not. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/data/data.h"
#include "common/model/family.h"
#include "common/weights/export.h"

enum {
    HEADER_INTS = 256,
    MODEL_MAGIC = 20240326,
    MODEL_VERSION = 3,
    SHARD_MAGIC = 20240520,
    SHARD_VERSION = 1,
    VOCAB_MULTIPLE = 128,
    BATCH = 4,
    SEQ_LEN = 64,
    REPEATS = 64, /* more batches than that trainer has steps */
    BATCH_TOKENS = BATCH * SEQ_LEN
};

static const char *const SHARDS[] = {"dev/data/tinyshakespeare/tiny_shakespeare_train.bin",
                                     "dev/data/tinyshakespeare/tiny_shakespeare_val.bin"};
static const char HINT[] = "llmc_files INIT TEXT OUT; see the head of tests/bench/llmc_files.c";

/* The 16 tensors in order: names after "transformer." or "transformer.h.BLOCK.". */
static const struct {
    const char *name;
    bool of_block, linear;
} TENSORS[] = {
    {"wte.weight", false, false},       {"wpe.weight", false, false},
    {"ln_1.weight", true, false},       {"ln_1.bias", true, false},
    {"attn.c_attn.weight", true, true}, {"attn.c_attn.bias", true, false},
    {"attn.c_proj.weight", true, true}, {"attn.c_proj.bias", true, false},
    {"ln_2.weight", true, false},       {"ln_2.bias", true, false},
    {"mlp.c_fc.weight", true, true},    {"mlp.c_fc.bias", true, false},
    {"mlp.c_proj.weight", true, true},  {"mlp.c_proj.bias", true, false},
    {"ln_f.weight", false, false},      {"ln_f.bias", false, false},
};
enum { N_TENSORS = sizeof TENSORS / sizeof *TENSORS, WTE = 0 };

static fsdp_status find_param(const model *m, size_t tensor, size_t block, const param_spec **out)
{
    char name[PARAM_NAME_BYTES], of_block[32] = "";
    if (TENSORS[tensor].of_block)
        snprintf(of_block, sizeof of_block, "h.%zu.", block);
    snprintf(name, sizeof name, "transformer.%s%s", of_block, TENSORS[tensor].name);
    for (int p = 0; p < m->n_params; p++) {
        *out = &m->params[p];
        if (strcmp(m->params[p].name, name) == 0)
            return FSDP_OK;
    }
    return fsdp_error(FSDP_EINVAL, HINT, "llmc_files: the model has no %s", name);
}

/* out [cols, rows] = in [rows, cols] transposed */
static void transpose(const float *in, size_t rows, size_t cols, float *out)
{
    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c++)
            out[c * rows + r] = in[r * cols + c];
}

static fsdp_status put(FILE *f, const void *values, size_t bytes)
{
    if (fwrite(values, 1, bytes, f) == bytes)
        return FSDP_OK;
    return fsdp_error(FSDP_EIO, "see that there is space left", "llmc_files: cannot write");
}

static size_t padded(size_t vocab)
{
    return (vocab + VOCAB_MULTIPLE - 1) / VOCAB_MULTIPLE * VOCAB_MULTIPLE;
}

/* work: two arrays of at least the largest tensor with its padding */
static fsdp_status put_tensor(FILE *f, const import *r, const param_spec *p, bool linear,
                              float *const work[2])
{
    TRY(import_read(r, (int)(p - r->m->params), 0, p->elems, work[0]));
    if (!linear)
        return put(f, work[0], p->elems * sizeof(float));
    transpose(work[0], p->dims[0], p->dims[1], work[1]);
    return put(f, work[1], p->elems * sizeof(float));
}

static fsdp_status put_model(FILE *f, const model *m, const import *r, float *const work[2])
{
    const model_config *c = &m->config;
    const int32_t header[HEADER_INTS] = {
        MODEL_MAGIC,      MODEL_VERSION,  (int)c->max_seq_len, (int)c->vocab_size,
        (int)c->n_blocks, (int)c->n_head, (int)c->d_model,     (int)padded(c->vocab_size)};
    TRY(put(f, header, sizeof header));
    for (size_t t = 0; t < N_TENSORS; t++) {
        for (size_t block = 0; block < (TENSORS[t].of_block ? c->n_blocks : 1); block++) {
            const param_spec *p = NULL;
            TRY(find_param(m, t, block, &p));
            TRY(put_tensor(f, r, p, TENSORS[t].linear, work));
        }
        if (t == WTE) {
            const size_t pad_elems = (padded(c->vocab_size) - c->vocab_size) * c->d_model;
            memset(work[0], 0, pad_elems * sizeof(float));
            TRY(put(f, work[0], pad_elems * sizeof(float)));
        }
    }
    return FSDP_OK;
}

static fsdp_status put_tokens(FILE *f, const char *text, size_t vocab)
{
    corpus c;
    TRY(corpus_open_file(
        &(corpus_request){.path = text, .vocab_limit = vocab, .seq_len = BATCH_TOKENS}, &c));
    const int32_t header[HEADER_INTS] = {SHARD_MAGIC, SHARD_VERSION, REPEATS * BATCH_TOKENS + 1};
    int32_t tokens[BATCH_TOKENS], targets[BATCH_TOKENS];
    uint16_t batch[BATCH_TOKENS];
    sample_read(&c, 0, BATCH_TOKENS, tokens, targets);
    corpus_close(&c);
    for (size_t i = 0; i < BATCH_TOKENS; i++) {
        if ((size_t)tokens[i] >= vocab)
            return fsdp_error(FSDP_EINVAL, "take another text",
                              "llmc_files: %s: token %zu: got %d, expected less than %zu", text, i,
                              tokens[i], vocab);
        batch[i] = (uint16_t)tokens[i];
    }
    TRY(put(f, header, sizeof header));
    for (size_t n = 0; n < REPEATS; n++)
        TRY(put(f, batch, sizeof batch));
    return put(f, batch, sizeof *batch);
}

/* Open DIR/name for writing; close_file gets the result of the writes. */
static fsdp_status open_file(const char *dir, const char *name, FILE **out)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    *out = fopen(path, "wb");
    return *out != NULL ? FSDP_OK
                        : fsdp_error(FSDP_EIO, HINT, "llmc_files: %s: %s", path, strerror(errno));
}

static fsdp_status close_file(FILE *f, fsdp_status status)
{
    if (fclose(f) != 0 && status == FSDP_OK)
        return fsdp_error(FSDP_EIO, "see that there is space left", "llmc_files: cannot write");
    return status;
}

static fsdp_status write_model(const model *m, const import *r, const char *out)
{
    size_t elems = padded(m->config.vocab_size) * m->config.d_model;
    for (int p = 0; p < m->n_params; p++)
        elems = m->params[p].elems > elems ? m->params[p].elems : elems;
    FILE *f;
    TRY(open_file(out, "gpt2_124M.bin", &f));
    float *work[2] = {malloc(elems * sizeof(float)), malloc(elems * sizeof(float))};
    fsdp_status status = work[0] != NULL && work[1] != NULL
                             ? put_model(f, m, r, work)
                             : fsdp_error(FSDP_ENOMEM, "", "llmc_files: no memory");
    free(work[1]);
    free(work[0]);
    return close_file(f, status);
}

static fsdp_status write_tokens(const char *text, size_t vocab, const char *out, const char *name)
{
    FILE *f;
    TRY(open_file(out, name, &f));
    return close_file(f, put_tokens(f, text, vocab));
}

static fsdp_status run(const char *init, const char *text, const char *out)
{
    model_config config;
    model m;
import r;
    const char *note;
    TRY(import_model_config(init, &config, &note));
    TRY(model_create(&config, &m));
    fsdp_status status = import_open(init, &m, &r);
    if (status == FSDP_OK) {
        status = write_model(&m, &r, out);
        import_close(&r);
    }
    for (int i = 0; i < 2 && status == FSDP_OK; i++)
        status = write_tokens(text, config.vocab_size, out, SHARDS[i]);
    model_free(&m);
    return status;
}

int main(int argc, char **argv)
{
    fsdp_status status =
        argc == 4 ? run(argv[1], argv[2], argv[3])
                  : fsdp_error(FSDP_EINVAL, HINT, "llmc_files: got %d arguments", argc - 1);
    if (status == FSDP_OK)
        return 0;
    fsdp_error_print(stderr, 0, 0);
    return 1;
}
