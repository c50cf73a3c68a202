/* fuzz_bin.c -- damaged files through everything that reads them: token shards, texts, config.json,
 * safetensors, checkpoints.
 *
 *   fuzz_bin [TRIES [SEED [FIRST_TRY]]]        1000 tries of each kind
 *
 * A file is refused with a message and a hint, or what is read from it is in range. The hash of a
 * checkpoint file covers the whole file, so a file with the right hash is the original. No
 * descriptor and no mapping is left. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "common/checkpoint/ckpt_source.h"
#include "common/data/data.h"
#include "common/model/family.h"
#include "common/weights/export.h"
#include "lab1_flatparam/flat_param.h"
#include "lab4_optimizer/checkpoint.h"
#include "tests/cli/fuzz_lib.h"

enum {
    SHARD_TOKENS = 300,
    HEADER_WORDS = 256,
    N_PIECES = 3,
    N_VALUES = 40,
    N_ARRAYS = 3,
    STEP = 7
};

static const model_config CONFIG = {
    .family = "gpt2", .n_blocks = 1, .n_head = 2, .d_model = 8, .vocab_size = 16, .max_seq_len = 8};

static void path_in(const fuzz *f, const char *name, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%s/%s", f->dir, name);
}

/* ---- corpora --------------------------------------------------------------------------------- */

static blob good_shard(fuzz *f)
{
    struct {
        int32_t header[HEADER_WORDS];
        uint16_t tokens[SHARD_TOKENS];
    } file = {.header = {20240520, 1, SHARD_TOKENS}};
    for (int i = 0; i < SHARD_TOKENS; i++)
        file.tokens[i] = (uint16_t)fuzz_below(f, 256);
    return blob_of(&file, sizeof file);
}

/* Reads all of the corpus, sequence by sequence, and places far beyond its end. */
static void read_corpus(fuzz *f, const corpus *c, size_t vocab_limit, size_t seq_len)
{
    static int32_t tokens[1024], targets[1024];
    size_t n_places = (c->n_tokens - 1) / seq_len;
    FUZZ_EXPECT(f, c->vocab_size <= vocab_limit || c->token_bytes == 1);
    for (size_t k = 0; k < n_places + 2; k++) {
        sample_read(c, k < n_places ? k : fuzz_next(f), seq_len, tokens, targets);
        for (size_t t = 0; t < seq_len; t++) {
            FUZZ_EXPECT(f, tokens[t] >= 0 && (size_t)tokens[t] < vocab_limit);
            FUZZ_EXPECT(f, targets[t] >= 0 && (size_t)targets[t] < vocab_limit);
            FUZZ_EXPECT(f, t + 1 == seq_len || targets[t] == tokens[t + 1]);
        }
    }
}

static void try_corpus(fuzz *f)
{
    static const size_t VOCABS[] = {1, 100, 256, 257, 50257, 65536},
                        LENGTHS[] = {1, 2, 16, 299, 300, 1000};
    static const char *const NAMES[] = {"c.bin", "c.txt", "c"};
    size_t vocab = VOCABS[fuzz_below(f, 6)], seq_len = LENGTHS[fuzz_below(f, 6)];
    const char *name = NAMES[fuzz_below(f, 3)];
    char path[PATH_MAX];
    path_in(f, name, path);
    blob b = good_shard(f);
    if (fuzz_chance(f, 95))
        blob_mutate(f, &b);
    blob_write(&b, path);
    snprintf(f->input, sizeof f->input, "%s, %zu bytes, vocabulary %zu, sequences of %zu", name,
             b.n, vocab, seq_len);
    bool by_dir = fuzz_chance(f, 10) && strcmp(name, "c.bin") == 0;
    corpus c;
    const corpus_request request = {.path = by_dir ? f->dir : path,
                                    .format = (corpus_format)fuzz_below(f, 5),
                                    .vocab_limit = vocab,
                                    .seq_len = seq_len};
    fsdp_status status = corpus_open_file(&request, &c);
    if (status == FSDP_OK)
        read_corpus(f, &c, vocab, seq_len);
    else
        fuzz_expect_error(f, status);
    corpus_close(&c); /* a refused corpus is empty */
    remove(path);
    blob_end(f, &b);
}

/* ---- exports --------------------------------------------------------------------------------- */

typedef struct export_files {
    model m;
    char dir[PATH_MAX], config_path[PATH_MAX], weights_path[PATH_MAX];
    blob config, weights;
    float *values; /* exactly the largest parameter, so the sanitizer sees a longer write */
} export_files;

static void make_export(fuzz *f, export_files *e)
{
    export_writer w;
    path_in(f, "export", e->dir);
    path_in(f, "export/config.json", e->config_path);
    path_in(f, "export/model.safetensors", e->weights_path);
    FUZZ_EXPECT(f, model_create(&CONFIG, &e->m) == FSDP_OK);
    float *zeros = calloc(e->m.n_param_elems, sizeof *zeros);
    FUZZ_EXPECT(f, export_begin(&e->m, e->dir, UINT64_MAX, NULL, &w) == FSDP_OK);
    FUZZ_EXPECT(f, export_append(&w, zeros, e->m.n_param_elems) == FSDP_OK);
    FUZZ_EXPECT(f, export_end(&w) == FSDP_OK);
    free(zeros);
    e->config = blob_read(e->config_path);
    e->weights = blob_read(e->weights_path);
}

static void free_export(export_files *e)
{
    model_free(&e->m);
    blob_free(&e->config);
    blob_free(&e->weights);
}

static void try_config(fuzz *f, const export_files *e)
{
    blob b = blob_damaged(f, &e->config, e->config_path);
    model_config mc;
    model m = {0};
    const char *note;
    fsdp_status status = import_model_config(e->dir, &mc, &note);
    if (status == FSDP_OK) {
        FUZZ_EXPECT(f, mc.n_blocks > 0 && mc.n_head > 0 && mc.d_model > 0 && mc.d_ff > 0 &&
                           mc.vocab_size > 0);
        FUZZ_EXPECT(f, mc.norm_eps > 0.0f && mc.norm_eps < 1.0f);
        if (mc.n_blocks < 1000) /* a larger number is valid too, but slow */
            status = model_create(&mc, &m);
    }
    if (status != FSDP_OK)
        fuzz_expect_error(f, status);
    model_free(&m);
    blob_end(f, &b);
}

static void try_weights(fuzz *f, const export_files *e)
{
    blob b = blob_of(e->weights.bytes, e->weights.n);
    size_t header_end = 8;
    memcpy(&header_end, b.bytes, 8);
    size_t data_bytes = b.n - 8 - header_end;
    b.n = 8 + header_end; /* damage the header; the tensors after it are zeros */
    blob_mutate(f, &b);
    size_t n = data_bytes < b.capacity - b.n ? data_bytes : b.capacity - b.n;
    memset(b.bytes + b.n, 0, n);
    b.n += fuzz_chance(f, 90) ? n : fuzz_below(f, n);
    blob_write(&b, e->weights_path);
    snprintf(f->input, sizeof f->input, "%.*s", (int)(b.n < 1508 ? b.n - 8 : 1500),
             b.n > 8 ? (char *)b.bytes + 8 : "");
import r;
    fsdp_status status = import_open(e->dir, &e->m, &r);
    for (int p = 0; p < e->m.n_params && status == FSDP_OK; p++) {
        if (e->m.params[p].tied_to != NOT_TIED)
            continue;
        float *out = malloc(e->m.params[p].elems * sizeof *out);
        status = import_read(&r, p, 0, e->m.params[p].elems, out);
        free(out);
    }
    if (status != FSDP_OK)
        fuzz_expect_error(f, status);
    import_close(&r);
    blob_end(f, &b);
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

typedef struct ckpt_files {
    model m;
    char dir[PATH_MAX], manifest_path[PATH_MAX], file_path[PATH_MAX];
    blob manifest, file;
    ckpt_id id;
    ckpt_sum sum;
    flat_layout layout; /* for the first two parameters */
} ckpt_files;

static void make_checkpoint(fuzz *f, ckpt_files *c)
{
    FUZZ_EXPECT(f, model_create(&CONFIG, &c->m) == FSDP_OK);
    c->id = (ckpt_id){.run = "0123456789abcdef",
                      .step = STEP,
                      .n_files = 1,
                      .n_arrays = N_ARRAYS,
                      .optimizer = optimizer_of(OPTIMIZER_ADAMW),
                      .shape = ckpt_shape(&c->m)};
    ckpt_piece pieces[N_PIECES] = {{.param = 0, .begin = 0, .elems = 8},
                                   {.param = 0, .begin = 8, .elems = 12},
                                   {.param = 1, .begin = 0, .elems = 20}};
    float values[N_VALUES];
    for (int i = 0; i < N_VALUES; i++)
        values[i] = (float)i;
    ckpt_out out;
    path_in(f, "checkpoint", c->dir);
    path_in(f, "checkpoint/manifest.json", c->manifest_path);
    path_in(f, "checkpoint/rank-00000.safetensors", c->file_path);
    mkdir(c->dir, 0755);
    const ckpt_pieces list = {.pieces = pieces, .n_pieces = N_PIECES};
    FUZZ_EXPECT(f, ckpt_out_open(c->dir, &c->id, &c->m, &list, &out) == FSDP_OK);
    for (int k = 0; k < N_ARRAYS; k++)
        for (int i = 0; i < N_PIECES; i++)
            FUZZ_EXPECT(f, ckpt_out_write(&out, &pieces[i], k, values) == FSDP_OK);
    FUZZ_EXPECT(f, ckpt_out_finish(&out, &c->sum) == FSDP_OK);
    ckpt_out_close(&out);
    ckpt_manifest manifest = {.id = c->id, .files = &c->sum};
    ckpt_about_add(&manifest.about, "model", true, "tiny");
    ckpt_about_add(&manifest.about, "seed", false, "1");
    FUZZ_EXPECT(f, ckpt_manifest_write(c->dir, &manifest) == FSDP_OK);
    c->manifest = blob_read(c->manifest_path);
    c->file = blob_read(c->file_path);
    const int params[2] = {0, 1};
    const size_t elems[2] = {c->m.params[0].elems, c->m.params[1].elems};
    FUZZ_EXPECT(f, flat_layout_build(2, params, elems,
                                     (flat_align){FLAT_ALIGN_ELEMS, FLAT_ALIGN_ELEMS}, 2,
                                     &c->layout) == FSDP_OK);
}

static void free_checkpoint(ckpt_files *c)
{
    model_free(&c->m);
    blob_free(&c->manifest);
    blob_free(&c->file);
    flat_layout_free(&c->layout);
}

static void try_manifest(fuzz *f, const ckpt_files *c)
{
    blob b = blob_damaged(f, &c->manifest, c->manifest_path);
    ckpt_manifest m;
    fsdp_status status = ckpt_manifest_read(c->dir, &m);
    if (status != FSDP_OK)
        fuzz_expect_error(f, status);
    else
        FUZZ_EXPECT(f, m.id.step >= 0 && m.id.n_files >= 1 && m.about.n <= CKPT_MAX_FACTS &&
                           m.id.n_arrays >= 1 && m.id.n_arrays <= 1 + OPTIM_MAX_STATES);
    ckpt_manifest_free(&m);
    blob_end(f, &b);
}

/* Every entry lies in the model and in the file, also if its hash is not compared. */
static void read_tensors(fuzz *f, const ckpt_files *c, ckpt_source *src)
{
    size_t n_elems = 0;
    float *shard = malloc(c->layout.shard_elems * sizeof *shard);
    for (size_t i = 0; i < src->entries.n; i++) {
        const ckpt_entry *e = &src->entries.list[i];
        ckpt_piece piece = e->piece;
        FUZZ_EXPECT(f, piece.param >= 0 && piece.param < c->m.n_params && e->array < N_ARRAYS);
        FUZZ_EXPECT(f, piece.begin + piece.elems <= c->m.params[piece.param].elems);
        float *values = malloc((size_t)piece.elems * sizeof *values);
        const ckpt_pieces in = {.pieces = &piece, .values = values, .n_pieces = 1};
        FUZZ_EXPECT(f,
                    ckpt_source_read(src, e, piece.begin, (size_t)piece.elems, values) == FSDP_OK);
        for (int r = 0; r < c->layout.world_size; r++)
            FUZZ_EXPECT(f, ckpt_unpack(&c->layout, r, &in, shard, &n_elems) == FSDP_OK);
        free(values);
    }
    free(shard);
}

static void try_checkpoint(fuzz *f, const ckpt_files *c)
{
    blob b = blob_of(c->file.bytes, c->file.n);
    if (fuzz_chance(f, 98))
        blob_mutate(f, &b);
    blob_write(&b, c->file_path);
    bool same = b.n == c->file.n && memcmp(b.bytes, c->file.bytes, b.n) == 0;
    snprintf(f->input, sizeof f->input, "%zu bytes of %zu%s", b.n, c->file.n,
             same ? ", unchanged" : "");
    ckpt_sum sum;
    uint64_t diverged;
    ckpt_source src = {0};
    snprintf(src.dir, sizeof src.dir, "%s", c->dir);
    FUZZ_EXPECT(f, ckpt_file_sum(c->file_path, &sum, &diverged) == FSDP_OK);
    FUZZ_EXPECT(f, (sum.bytes == c->sum.bytes && sum.xxh3 == c->sum.xxh3) == same);
    fsdp_status status = ckpt_file_list(c->dir, &c->id, &c->m, &src.entries);
    if (status == FSDP_OK)
        read_tensors(f, c, &src);
    else
        fuzz_expect_error(f, status);
    FUZZ_EXPECT(f, status == FSDP_OK || !same);
    ckpt_source_close(&src);
    blob_end(f, &b);
}

/* ---- main ------------------------------------------------------------------------------------ */

#define TRIES(f, call)                                                                             \
    for (long i = (f)->first_try; i < (f)->first_try + (f)->tries && !(f)->failed; i++) {          \
        fuzz_try((f), i);                                                                          \
        call;                                                                                      \
    }

int main(int argc, char **argv)
{
    static fuzz f;
    static export_files e;
    static ckpt_files c;
    fuzz_open(&f, argc, argv, 1000);
    fuzz_group(&f, "corpora");
    TRIES(&f, try_corpus(&f));
    fuzz_group(&f, "config.json");
    make_export(&f, &e);
    TRIES(&f, try_config(&f, &e));
    fuzz_group(&f, "safetensors");
    TRIES(&f, try_weights(&f, &e));
    free_export(&e);
    fuzz_group(&f, "checkpoint manifest.json");
    make_checkpoint(&f, &c);
    TRIES(&f, try_manifest(&f, &c));
    fuzz_group(&f, "checkpoint files");
    TRIES(&f, try_checkpoint(&f, &c));
    free_checkpoint(&c);
    return fuzz_close(&f);
}
