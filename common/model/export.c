/* export.c -- writes safetensors with Hugging Face's names and the config.json that goes with it.
 *
 *   export_begin -> export_append ... -> export_end | export_cancel
 *
 * The two files get their names, weights first, after both are on disk. A crash between the two
 * renames leaves new weights beside the old config.json. */
#include "common/model/export.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char HINT[] = "check the path given to --export, and the space left there";

static fsdp_status write_failed(const export_writer *w)
{
    return fsdp_error(FSDP_EIO, HINT, "export: %s: write: %s", w->weights.path, strerror(errno));
}

/* ---- the two JSON texts --------------------------------------------------------------------- */

/* What stands before the tensors, owned by the caller; NULL: no memory. *elems: all floats. */
static char *weights_head(const model *m, size_t *head_bytes, size_t *elems)
{
    cJSON *header = cJSON_CreateObject();
    cJSON *meta = cJSON_AddObjectToObject(header, SAFETENSORS_METADATA);
    bool ok = meta != NULL && cJSON_AddStringToObject(meta, "format", "pt") != NULL;
    uint64_t at_bytes = 0;
    for (int p = 0; p < m->n_params && ok; p++)
        if (m->params[p].tied_to == NOT_TIED)
            ok = safetensors_add(header, m->params[p].name, m->params[p].dims, m->params[p].n_dims,
                                 &at_bytes);
    char *head = ok ? safetensors_head(header, head_bytes) : NULL;
    cJSON_Delete(header);
    *elems = (size_t)at_bytes / sizeof(float);
    return head;
}

/* An error of out shows when the file is synced. */
static void write_config(FILE *out, const model_config *c)
{
    char eps[32];
    for (int digits = 1; digits <= 9; digits++) { /* the shortest that is this float: 1e-05 */
        snprintf(eps, sizeof eps, "%.*g", digits, (double)c->norm_eps);
        if (strtof(eps, NULL) == c->norm_eps)
            break;
    }
    fprintf(out,
            "{\n"
            "\t\"architectures\":\t[\"GPT2LMHeadModel\"],\n"
            "\t\"model_type\":\t\"gpt2\",\n"
            "\t\"n_layer\":\t%zu,\n"
            "\t\"n_head\":\t%zu,\n"
            "\t\"n_embd\":\t%zu,\n"
            "\t\"n_inner\":\t%zu,\n"
            "\t\"n_positions\":\t%zu,\n"
            "\t\"vocab_size\":\t%zu,\n",
            c->n_blocks, c->n_head, c->d_model, c->d_ff, c->max_seq_len, c->vocab_size);
    /* GPT-2 ends a text with its last token; in the byte vocabulary that is byte 255 */
    fprintf(out,
            "\t\"bos_token_id\":\t%zu,\n"
            "\t\"eos_token_id\":\t%zu,\n"
            "\t\"attn_pdrop\":\t0,\n"
            "\t\"embd_pdrop\":\t0,\n"
            "\t\"resid_pdrop\":\t0,\n"
            "\t\"initializer_range\":\t0.02,\n"
            "\t\"activation_function\":\t\"gelu_new\",\n"
            "\t\"layer_norm_epsilon\":\t%s,\n"
            "\t\"tie_word_embeddings\":\ttrue,\n"
            "\t\"torch_dtype\":\t\"float32\"\n"
            "}\n",
            c->vocab_size - 1, c->vocab_size - 1, eps);
}

/* ---- writing -------------------------------------------------------------------------------- */

static fsdp_status open_files(const model *m, const char *dir, export_writer *w)
{
    size_t head_bytes;
    TRY(atomic_make_dir(dir, HINT));
    TRY(atomic_file_open_in(&w->config, dir, EXPORT_CONFIG, HINT));
    write_config(w->config.out, &m->config);
    TRY(atomic_file_open_in(&w->weights, dir, EXPORT_WEIGHTS, HINT));
    char *head = weights_head(m, &head_bytes, &w->expected_elems);
    if (head == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "export: no host memory");
    bool ok = fwrite(head, 1, head_bytes, w->weights.out) == head_bytes;
    free(head);
    return ok ? FSDP_OK : write_failed(w);
}

fsdp_status export_begin(const model *m, const char *dir, export_writer *w)
{
    FSDP_ASSERT(dir[0] != '\0');
    *w = (export_writer){0};
    fsdp_status status = open_files(m, dir, w);
    if (status != FSDP_OK)
        export_cancel(w);
    return status;
}

fsdp_status export_append(void *writer, const float *values, size_t elems)
{
    export_writer *w = writer;
    FSDP_ASSERT(elems <= w->expected_elems - w->written_elems);
    if (fwrite(values, sizeof *values, elems, w->weights.out) != elems)
        return write_failed(w);
    w->written_elems += elems;
    return FSDP_OK;
}

static fsdp_status publish(export_writer *w)
{
    if (w->written_elems != w->expected_elems)
        return fsdp_error(FSDP_ESTATE, "", "export: %s: got %zu floats, expected %zu",
                          w->weights.path, w->written_elems, w->expected_elems);
    TRY(atomic_file_sync(&w->config));
    TRY(atomic_file_sync(&w->weights));
    TRY(atomic_file_commit(&w->weights));
    return atomic_file_commit(&w->config);
}

fsdp_status export_end(export_writer *w)
{
    fsdp_status status = publish(w);
    export_cancel(w);
    return status;
}

void export_cancel(export_writer *w)
{
    atomic_file_cancel(&w->weights);
    atomic_file_cancel(&w->config);
}
