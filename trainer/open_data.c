/* open_data.c -- open the data of a run. Rank 0 reads and hashes the files of tokens that the
 * checkpoint to resume does not know; the other ranks take the hashes from rank 0, and read only
 * files that they do not see as rank 0 does. */
#include <stdlib.h>
#include <string.h>
#include "common/model/family.h"
#include "trainer/trainer.h"

/* How many digits are drawn. Samples of the test set have numbers far above any training set's. */
enum { DRAWN_DIGITS = 60000, DRAWN_TESTS = 10000 };
static const uint64_t FIRST_TEST = (uint64_t)1 << 40;

static fsdp_status open_images(trainer *t)
{
    const trainer_config *c = &t->cfg;
    const size_t n = c->synthetic_tokens > 0 ? (size_t)c->synthetic_tokens : DRAWN_DIGITS;
    const uint64_t seed = (uint64_t)c->seed;
    if (c->data_format != CORPUS_AUTO || c->data_mask || c->val_mask)
        return fsdp_error(FSDP_EINVAL, "leave --data-format, --data-mask and --val-mask out",
                          "--model %s reads images, which have neither tokens nor a mask",
                          t->model_cfg.family);
    TRY(c->data ? corpus_open_images(c->data, false, seed, &t->data)
                : corpus_digits(0, n, seed, &t->data));
    if (!c->val_data)
        return FSDP_OK;
    return strcmp(c->val_data, "digits") == 0
               ? corpus_digits(FIRST_TEST, DRAWN_TESTS, NO_SHUFFLE, &t->val_data)
               : corpus_open_images(c->val_data, true, NO_SHUFFLE, &t->val_data);
}

/* ---- files of tokens ------------------------------------------------------------------------- */

/* A corpus that options name, with its mask. */
typedef struct named_corpus {
    const char *path, *mask; /* mask: NULL if none */
    corpus_notes notes, mask_notes;
} named_corpus;

static void free_notes(named_corpus *n)
{
    corpus_notes_free(&n->notes);
    corpus_notes_free(&n->mask_notes);
}

static fsdp_status open_files(const trainer *t, const named_corpus *n, corpus *out)
{
    const trainer_config *c = &t->cfg;
    const size_t vocab = t->model_cfg.vocab_size;
    const bool is_bytes = !c->init_from || (vocab <= 256 && !tokenizer_in(c->init_from));
    const corpus_request request = {.path = n->path,
                                    .format = (corpus_format)c->data_format,
                                    .vocab_limit = vocab,
                                    .seq_len = (size_t)c->train.seq_len,
                                    .tokenizer = is_bytes ? NULL : c->init_from,
                                    .notes = n->notes.n_files > 0 ? &n->notes : NULL};
    TRY(corpus_open_file(&request, out));
    if (!n->mask)
        return FSDP_OK;
    return corpus_open_mask(n->mask, n->mask_notes.n_files > 0 ? &n->mask_notes : NULL, out);
}

/* Open the files on rank 0. If they are not those that a checkpoint knows, read them all. */
static fsdp_status open_first(const trainer *t, named_corpus *n, corpus *out)
{
    const fsdp_status status = open_files(t, n, out);
    if (status != FSDP_EMISMATCH)
        return status;
    fprintf(stderr, "note: %s as in the checkpoint\n", fsdp_error_get()->what);
    corpus_close(out);
    free_notes(n);
    return open_files(t, n, out);
}

static fsdp_status share_notes(comm *world, corpus_notes *notes)
{
    const bool is_first = comm_rank(world) == 0;
    TRY(ckpt_share(world, &notes->hash, sizeof notes->hash));
    TRY(ckpt_share(world, &notes->n_files, sizeof notes->n_files));
    TRY(ckpt_share(world, &notes->n_blocks, sizeof notes->n_blocks));
    if (!is_first) {
        notes->files = calloc(notes->n_files + 1, sizeof *notes->files);
        notes->blocks = calloc(notes->n_blocks + 1, sizeof *notes->blocks);
    }
    TRY(comm_agree(world, notes->files && notes->blocks
                              ? FSDP_OK
                              : fsdp_error(FSDP_ENOMEM, "", "data: no host memory")));
    TRY(ckpt_share(world, notes->files, notes->n_files * sizeof *notes->files));
    return ckpt_share(world, notes->blocks, notes->n_blocks * sizeof *notes->blocks);
}

static fsdp_status notes_of(const corpus *c, named_corpus *n)
{
    free_notes(n);
    TRY(corpus_notes_of(c, &n->notes));
    return c->mask ? corpus_notes_of(c->mask, &n->mask_notes) : FSDP_OK;
}

/* Open a corpus on all ranks; n's notes are then those of rank 0. All ranks fail or none. */
static fsdp_status open_shared(const trainer *t, named_corpus *n, corpus *out)
{
    comm *world = t->run.world;
    const bool is_first = comm_rank(world) == 0;
    TRY(comm_agree(world, is_first ? open_first(t, n, out) : FSDP_OK));
    TRY(comm_agree(world, is_first ? notes_of(out, n) : FSDP_OK));
    TRY(share_notes(world, &n->notes));
    if (n->mask)
        TRY(share_notes(world, &n->mask_notes));
    return comm_agree(world, is_first ? FSDP_OK : open_files(t, n, out));
}

/* ---- the data of a run ----------------------------------------------------------------------- */

/* The corpora that have no files of tokens: images, made-up tokens, or the licence texts. */
static fsdp_status open_here(trainer *t)
{
    const trainer_config *c = &t->cfg;
    const size_t vocab = t->model_cfg.vocab_size;
    const char *note = "";
    if (t->m.family->is_images)
        return open_images(t);
    if (c->data)
        return FSDP_OK;
    if (c->synthetic_tokens > 0) {
        /* Each rank has its own copy, in host memory that no ledger counts; the check of memory
         * runs later, so it finds this memory taken. */
        TRY(trainer_check_on_host(t, "--synthetic", (size_t)c->synthetic_tokens,
                                  "use a smaller corpus"));
        TRY(corpus_synthetic(0, (size_t)c->synthetic_tokens, vocab < 256 ? vocab : 256, &t->data));
    } else if (c->init_from && (vocab > 256 || tokenizer_in(c->init_from))) {
        return fsdp_error(FSDP_EINVAL,
                          "pass --data with tokens, which docs/models.md shows how to make",
                          "--data: got none, expected tokens of %s, whose vocabulary has %zu",
                          c->init_from, vocab);
    } else {
        TRY(corpus_open_texts(CORPUS_DEFAULT_DIR, (size_t)c->train.seq_len, &t->data, &note));
    }
    if (t->data.vocab_size > vocab)
        return fsdp_error(FSDP_EINVAL,
                          "pass a larger --vocab-size; with --init-from, other weights",
                          "%s has tokens up to %zu, --vocab-size is %zu", t->data.source,
                          t->data.vocab_size - 1, vocab);
    TRY(corpus_check_length(&t->data, (size_t)c->train.seq_len));
    if (*note && comm_rank(t->run.world) == 0)
        fprintf(stderr, "note: %s\n", note);
    return FSDP_OK;
}

/* Refuse tokens to train on and bytes to evaluate on, or the reverse. */
static fsdp_status check_alike(const trainer *t)
{
    const corpus *a = &t->data, *b = &t->val_data;
    const bool differ = (a->token_bytes == 1) != (b->token_bytes == 1);
    if (!b->files || !a->files || !differ)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "pass --val-data that was made as --data was",
                      "--val-data: got %s, expected %s as in --data",
                      b->token_bytes == 1 ? "bytes" : "tokens",
                      a->token_bytes == 1 ? "bytes" : "tokens");
}

static fsdp_status open_tokens(trainer *t, named_corpus *data, named_corpus *val)
{
    const trainer_config *c = &t->cfg;
    if (c->data)
        TRY(open_shared(t, data, &t->data));
    if (c->val_data)
        TRY(open_shared(t, val, &t->val_data));
    return comm_agree(t->run.world, check_alike(t));
}

fsdp_status trainer_open_data(trainer *t)
{
    const trainer_config *c = &t->cfg;
    named_corpus data = {.path = c->data, .mask = c->data_mask};
    named_corpus val = {.path = c->val_data, .mask = c->val_mask};
    ckpt_manifest saved = {0};
    TRY(comm_agree(t->run.world, open_here(t)));
    if (t->m.family->is_images)
        return FSDP_OK;
    if (c->resume && comm_rank(t->run.world) == 0)
        ckpt_source_peek(strcmp(c->resume, "auto") == 0 ? c->save_dir : c->resume, &saved);
    data.notes = saved.data;
    data.mask_notes = saved.mask;
    saved.data = saved.mask = (corpus_notes){0}; /* moved */
    ckpt_manifest_free(&saved);
    const fsdp_status status = open_tokens(t, &data, &val);
    t->store.data = data.notes; /* moved */
    t->store.mask = data.mask_notes;
    free_notes(&val);
    return status;
}
