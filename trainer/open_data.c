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
    const trainer_options *o = t->opt;
    const size_t n = o->synthetic_tokens > 0 ? (size_t)o->synthetic_tokens : DRAWN_DIGITS;
    const uint64_t seed = (uint64_t)o->seed;
    if (o->data_format != CORPUS_AUTO || o->data_mask || o->val_mask)
        return fsdp_error(FSDP_EINVAL, "leave --data-format, --data-mask and --val-mask out",
                          "--model %s reads images, which have neither tokens nor a mask",
                          t->model_cfg.family);
    TRY(o->data ? corpus_open_images(o->data, false, seed, &t->data)
                : corpus_digits(0, n, seed, &t->data));
    if (!o->val_data)
        return FSDP_OK;
    return strcmp(o->val_data, "digits") == 0
               ? corpus_digits(FIRST_TEST, DRAWN_TESTS, NO_SHUFFLE, &t->val_data)
               : corpus_open_images(o->val_data, true, NO_SHUFFLE, &t->val_data);
}

/* Whether the run that saved read packed tokens: these are fewer than the bytes of their files. */
static bool had_tokens(const ckpt_manifest *saved)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < saved->data.n_files; i++)
        bytes += saved->data.files[i].bytes;
    return bytes > strtoull(ckpt_about_value(&saved->about, "data"), NULL, 10);
}

/* Whose tokens the data must have; NULL: nobody's, so that the bytes of a text will do. */
static const char *tokens_of(const trainer *t, const ckpt_manifest *saved)
{
    const char *from = t->opt->init_from;
    if (from && (t->model_cfg.vocab_size > 256 || tokenizer_in(from)))
        return from;
    return had_tokens(saved) ? "the checkpoint" : NULL;
}

/* ---- files of tokens ------------------------------------------------------------------------- */

/* Open the files on rank 0. If the checkpoint knows other files, read all of them. */
static fsdp_status open_first(corpus_request request, corpus *out)
{
    const fsdp_status status = corpus_open_file(&request, out);
    if (status != FSDP_EMISMATCH)
        return status;
    fprintf(stderr, "note: %s as in the checkpoint\n", fsdp_error_get()->what);
    request.notes = request.mask_notes = (corpus_notes){0};
    return corpus_open_file(&request, out);
}

/* Copy rank 0's notes to the other ranks, whose notes are empty. */
static fsdp_status share_notes(comm *world, corpus_notes *notes)
{
    corpus_notes all = *notes;
    TRY(ckpt_share(world, &all, sizeof all));
    if (comm_rank(world) != 0) {
        *notes = all;
        notes->files = calloc(all.n_files + 1, sizeof *all.files);
        notes->blocks = calloc(all.n_blocks + 1, sizeof *all.blocks);
    }
    TRY(comm_agree(world, notes->files && notes->blocks
                              ? FSDP_OK
                              : fsdp_error(FSDP_ENOMEM, "", "data: no host memory")));
    TRY(ckpt_share(world, notes->files, all.n_files * sizeof *all.files));
    return ckpt_share(world, notes->blocks, all.n_blocks * sizeof *all.blocks);
}

/* Open a corpus on all ranks; all fail or none.
 *   known  rank 0: the files of a checkpoint; set on the other ranks, whose notes were empty */
static fsdp_status open_shared(const trainer *t, const char *path, const char *mask,
                               ckpt_manifest *known, corpus *out)
{
    comm *world = t->run.world;
    const bool is_first = comm_rank(world) == 0;
    corpus_request request = {.path = path,
                              .mask = mask,
                              .format = (corpus_format)t->opt->data_format,
                              .vocab_limit = t->model_cfg.vocab_size,
                              .seq_len = (size_t)t->cfg.train.seq_len,
                              .tokenizer = tokens_of(t, known),
                              .notes = known->data,
                              .mask_notes = known->mask};
    if (!path || t->m.family->is_images)
        return FSDP_OK;
    TRY(comm_agree(world, is_first ? open_first(request, out) : FSDP_OK));
    TRY(share_notes(world, is_first ? &out->notes : &known->data));
    if (mask)
        TRY(share_notes(world, is_first ? &out->mask->notes : &known->mask));
    request.notes = known->data;
    request.mask_notes = known->mask;
    return comm_agree(world, is_first ? FSDP_OK : corpus_open_file(&request, out));
}

/* ---- the data of a run ----------------------------------------------------------------------- */

/* Open a corpus without files of tokens: images, made-up tokens, or the licence texts.
 *   tokens  as of tokens_of */
static fsdp_status open_here(trainer *t, const char *tokens)
{
    const trainer_options *o = t->opt;
    const size_t vocab = t->model_cfg.vocab_size;
    const char *note = "";
    if (t->m.family->is_images)
        return open_images(t);
    if (o->data)
        return FSDP_OK;
    if (o->synthetic_tokens > 0) {
        /* Each rank has its own copy, in host memory that no ledger counts; the check of memory
         * runs later, so it finds this memory taken. */
        TRY(trainer_check_on_host(t, "--synthetic", (size_t)o->synthetic_tokens,
                                  "use a smaller corpus"));
        TRY(corpus_synthetic(0, (size_t)o->synthetic_tokens, vocab < 256 ? vocab : 256, &t->data));
    } else if (tokens && (o->eval_only ? o->val_data == NULL : t->cfg.train.steps > 0)) {
        return fsdp_error(
            FSDP_EINVAL, "pass --data with tokens, which docs/models.md shows how to make",
            "--data: got none, expected tokens of %s, whose vocabulary has %zu", tokens, vocab);
    } else {
        TRY(corpus_open_texts(CORPUS_DEFAULT_DIR, (size_t)t->cfg.train.seq_len, &t->data, &note));
    }
    if (t->data.vocab_size > vocab)
        return fsdp_error(FSDP_EINVAL,
                          "pass a larger --vocab-size; with --init-from, other weights",
                          "%s has tokens up to %zu, --vocab-size is %zu", t->data.source,
                          t->data.vocab_size - 1, vocab);
    TRY(corpus_check_length(&t->data, (size_t)t->cfg.train.seq_len));
    if (*note && comm_rank(t->run.world) == 0)
        fprintf(stderr, "note: %s\n", note);
    return FSDP_OK;
}

/* Refuse tokens to train on and bytes to evaluate on, or the reverse. */
static fsdp_status check_alike(const trainer *t)
{
    const corpus *a = &t->data, *b = &t->val_data;
    const bool differ = (a->token_bytes == 1) != (b->token_bytes == 1);
    if (!b->files || !a->files || !differ || !t->opt->data)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "pass --val-data that was made as --data was",
                      "--val-data: got %s, expected %s as in --data",
                      b->token_bytes == 1 ? "bytes" : "tokens",
                      a->token_bytes == 1 ? "bytes" : "tokens");
}

fsdp_status trainer_open_data(trainer *t)
{
    const trainer_options *o = t->opt;
    ckpt_manifest known = {0};
    if (o->resume && comm_rank(t->run.world) == 0)
        ckpt_source_peek(strcmp(o->resume, "auto") == 0 ? o->save_dir : o->resume, &known);
    fsdp_status status = comm_agree(t->run.world, open_here(t, tokens_of(t, &known)));
    IF_OK(status, open_shared(t, o->data, o->data_mask, &known, &t->data));
    ckpt_manifest_free(&known); /* a checkpoint knows nothing of --val-data */
    IF_OK(status, open_shared(t, o->val_data, o->val_mask, &known, &t->val_data));
    ckpt_manifest_free(&known);
    t->store.data = o->data ? &t->data : NULL;
    TRY(status);
    return comm_agree(t->run.world, check_alike(t));
}
