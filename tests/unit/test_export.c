/* test_export.c -- weights on disk and back, damaged files, and text from an export. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/base/dtype.h"
#include "common/base/json.h"
#include "common/base/philox.h"
#include "common/model/init.h"
#include "common/weights/export.h"
#include "tests/unit/model_lib.h"
#include "tests/unit/unit_lib.h"
#include "trainer/tools/generate.h"

static const model_config SMALL = {.family = "gpt2",
                                   .n_blocks = 1,
                                   .n_head = 2,
                                   .d_model = 6,
                                   .d_ff = 14,
                                   .vocab_size = 11,
                                   .max_seq_len = 7};

/* ---- helpers -------------------------------------------------------------------------------- */

/* The whole file, NUL-terminated; the caller frees it. */
static char *read_file(const char *path, size_t *n_bytes)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *bytes = calloc(1, 1 << 20);
    *n_bytes = fread(bytes, 1, (1 << 20) - 1, f);
    fclose(f);
    return bytes;
}

/* The values of parameter p; one seed gives all parameters. The caller frees them. */
static float *values_of(const model *m, int p, uint64_t seed)
{
    float *x = malloc(m->params[p].elems * sizeof *x);
    philox_normal_fill(seed, (uint64_t)p, 0, m->params[p].elems, 0.3f, x);
    return x;
}

/* Exports m with the values of `seed`, in pieces of `piece` floats that cross parameters. */
static void export_seed(const model *m, const char *path, uint64_t seed, size_t piece)
{
    export_writer w;
    float *all = malloc(m->n_param_elems * sizeof *all), *next = all;
    for (int p = 0; p < m->n_params; p++) {
        if (m->params[p].tied_to != NOT_TIED)
            continue;
        float *x = values_of(m, p, seed);
        memcpy(next, x, m->params[p].elems * sizeof *x);
        next += m->params[p].elems;
        free(x);
    }
    OK(export_begin(m, path, UINT64_MAX, NULL, &w));
    for (size_t at = 0; at < m->n_param_elems; at += piece) {
        const size_t left = m->n_param_elems - at;
        OK(export_append(&w, all + at, left < piece ? left : piece));
    }
    OK(export_end(&w));
    free(all);
}

static void assert_holds_seed(const model *m, const char *path, uint64_t seed)
{
import r;
    OK(import_open(path, m, &r));
    for (int p = 0; p < m->n_params; p++) {
        if (m->params[p].tied_to != NOT_TIED)
            continue;
        float *expected = values_of(m, p, seed), *got = malloc(m->params[p].elems * sizeof *got);
        OK(import_read(&r, p, 0, m->params[p].elems, got));
        assert_memory_equal(got, expected, m->params[p].elems * sizeof *got);
        free(expected);
        free(got);
    }
    import_close(&r);
}

/* ---- writing -------------------------------------------------------------------------------- */

TEST(test_round_trip)
{
    model m;
    model_config config;
    const char *note;
    OK(model_create(&SMALL, &m));
    const char *path = in_dir("made");
    export_seed(&m, path, 1, m.n_param_elems);
    assert_holds_seed(&m, path, 1);
    export_seed(&m, path, 2, 5); /* over the old one */
    assert_holds_seed(&m, path, 2);
    assert_int_equal(files_like("made/*.tmp"), 0);
    OK(import_model_config(path, &config, &note));
    assert_string_equal(note, "");
    assert_string_equal(config.family, "gpt2");
    assert_int_equal(config.n_blocks, 1);
    assert_int_equal(config.n_head, 2);
    assert_int_equal(config.d_model, 6);
    assert_int_equal(config.d_ff, 14);
    assert_int_equal(config.vocab_size, 11);
    assert_int_equal(config.max_seq_len, 7);
    assert_true(config.norm_eps == 1e-5f);
    model_free(&m);
}

/* The format, byte by byte: a model of one block with the smallest sizes. */
TEST(test_format)
{
    static const model_config tiny = {.family = "gpt2",
                                      .n_blocks = 1,
                                      .n_head = 1,
                                      .d_model = 1,
                                      .d_ff = 2,
                                      .vocab_size = 3,
                                      .max_seq_len = 2};
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"transformer.wte.weight\":{\"dtype\":\"F32\",\"shape\":[3,1],\"data_offsets\":[0,12]},"
        "\"transformer.wpe.weight\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[12,20]},"
        "\"transformer.h.0.ln_1.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[20,24]}"
        ",";
    static const char last[] =
        "\"transformer.ln_f.bias\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[100,104]}}";
    model m;
    OK(model_create(&tiny, &m));
    assert_int_equal(m.n_param_elems, 26);
    export_seed(&m, in_dir("format"), 3, 7);
    size_t n_bytes;
    char *file = read_file(in_dir("format/model.safetensors"), &n_bytes);
    uint64_t header_bytes;
    memcpy(&header_bytes, file, 8);
    assert_int_equal(header_bytes % 8, 0);
    assert_int_equal(n_bytes, 8 + header_bytes + 26 * 4);
    assert_memory_equal(file + 8, header, sizeof header - 1);
    size_t text_bytes = header_bytes;
    while (file[8 + text_bytes - 1] == ' ')
        text_bytes--;
    assert_uint_in_range(header_bytes - text_bytes, 0, 7);
    assert_memory_equal(file + 8 + text_bytes - (sizeof last - 1), last, sizeof last - 1);
    float *wte = values_of(&m, 0, 3), *wpe = values_of(&m, 1, 3);
    assert_memory_equal(file + 8 + header_bytes, wte, 12);
    assert_memory_equal(file + 8 + header_bytes + 12, wpe, 8);
    file[8 + header_bytes] = '\0';
    assert_null(strstr(file + 8, "lm_head")); /* tied: stored once */
    free(wte);
    free(wpe);
    free(file);
    model_free(&m);
}

TEST(test_config_json)
{
    static const char *const expected[] = {"\"architectures\":\t[\"GPT2LMHeadModel\"]",
                                           "\"model_type\":\t\"gpt2\"",
                                           "\"n_layer\":\t1",
                                           "\"n_head\":\t2",
                                           "\"n_embd\":\t6",
                                           "\"n_inner\":\t14",
                                           "\"n_positions\":\t7",
                                           "\"vocab_size\":\t11",
                                           "\"bos_token_id\":\t10",
                                           "\"eos_token_id\":\t10",
                                           "\"attn_pdrop\":\t0",
                                           "\"embd_pdrop\":\t0",
                                           "\"resid_pdrop\":\t0",
                                           "\"activation_function\":\t\"gelu_new\"",
                                           "\"layer_norm_epsilon\":\t1e-05",
                                           "\"tie_word_embeddings\":\ttrue"};
    model m;
    size_t n_bytes;
    OK(model_create(&SMALL, &m));
    export_seed(&m, in_dir("json"), 3, 7);
    char *text = read_file(in_dir("json/config.json"), &n_bytes);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (strstr(text, expected[i]) == NULL)
            fail_msg("expected %s in %s", expected[i], text);
    free(text);
    model_free(&m);
}

/* What a config.json says beside the sizes is written as it stands, in place of the defaults. */
TEST(test_config_taken)
{
    static const char source[] =
        "\n{ \"n_embd\" : 99,\"a\":[1 , {\"b\":\"},\\\"\"}]  , "
        "\"eos_token_id\"\n:\n7.0,\"\\u0041,}\":\"{\","
        "\"dtype\":\"x\",\"n_ctx\":7,\"activation_function\":\"gelu_pytorch_tanh\"}";
    static const char *const expected[] = {"\"n_embd\":\t6,\n",
                                           "\"a\":[1 , {\"b\":\"},\\\"\"}],\n",
                                           "\"eos_token_id\"\n:\n7.0,\n",
                                           "\"\\u0041,}\":\"{\",\n",
                                           "\"n_ctx\":7,\n",
                                           "\"gelu_pytorch_tanh\"\n}\n",
                                           "\"bos_token_id\":\t10,\n"};
    size_t n_bytes;
    mkdir(in_dir("config"), 0700);
    FILE *f = fopen(in_dir("config/taken"), "w");
    assert_non_null(f);
    model_write_config(&SMALL, source, f);
    fclose(f);
    char *text = read_file(in_dir("config/taken"), &n_bytes);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (strstr(text, expected[i]) == NULL)
            fail_msg("expected %s in %s", expected[i], text);
    assert_null(strstr(text, "99"));
    assert_null(strstr(text, "dtype\":\"x"));
    assert_null(strstr(text, "gelu_new"));
    free(text);
}

TEST(test_unfinished)
{
    model m;
    export_writer w;
    const float some[3] = {1, 2, 3};
    OK(model_create(&SMALL, &m));
    const char *path = in_dir("kept");
    export_seed(&m, path, 4, 100);
    OK(export_begin(&m, path, UINT64_MAX, NULL, &w));
    OK(export_append(&w, some, 3));
    assert_int_equal(files_like("kept/*.tmp"), 2);
    export_cancel(&w);
    assert_int_equal(files_like("kept/*.tmp"), 0);
    assert_holds_seed(&m, path, 4);
    OK(export_begin(&m, path, UINT64_MAX, NULL, &w));
    OK(export_append(&w, some, 3));
    assert_int_equal(export_end(&w), FSDP_ESTATE); /* floats are missing */
    assert_non_null(strstr(fsdp_error_get()->what, "floats are missing"));
    assert_int_equal(files_like("kept/*.tmp"), 0);
    assert_holds_seed(&m, path, 4);
    export_cancel(&w); /* it is closed already */
    write_bytes(in_dir("file"), "x", 1);
    REFUSED(FSDP_EIO, export_begin(&m, in_dir("file"), UINT64_MAX, NULL, &w), "file");
    assert_null(w.files);
    REFUSED(FSDP_EIO, export_begin(&m, in_dir("file/below"), UINT64_MAX, NULL, &w),
            "cannot make the directory");
    assert_int_equal(export_begin(&m, "/dev/full", UINT64_MAX, NULL, &w), FSDP_EIO);
    model_free(&m);
}

/* ---- reading -------------------------------------------------------------------------------- */

/* The JSON with " in place of '; valid until the next call. */
static const char *quoted(const char *json)
{
    static char text[1024];
    snprintf(text, sizeof text, "%s", json);
    for (char *c = text; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    return text;
}

/* Writes a safetensors file with the header `json` and data_bytes zeros. */
static void write_tensors(const char *path, const char *json, size_t data_bytes)
{
    const uint64_t header_bytes = strlen(json);
    char *file = calloc(1, 8 + header_bytes + data_bytes);
    memcpy(file, &header_bytes, 8);
    memcpy(file + 8, json, header_bytes);
    mkdir(path, 0700);
    char name[PATH_MAX];
    snprintf(name, sizeof name, "%s/%s", path, EXPORT_WEIGHTS);
    write_bytes(name, file, 8 + header_bytes + data_bytes);
    free(file);
}

/* Opens a file with these tensors for a model of one parameter [2,3]. says: what is wrong; NULL:
 * nothing. */
static void check_tensors(const char *json, size_t data_bytes, const char *says)
{
    param_spec spec = {.name = "transformer.w",
                       .n_dims = 2,
                       .dims = {2, 3},
                       .elems = 6,
                       .cut = {.dims = {2, 3}, .elems = 6},
                       .tied_to = NOT_TIED};
    const model m = {.family = &GPT2_FAMILY, .n_params = 1, .params = &spec};
    float out[6];
import r;
    const char *path = in_dir("tensors");
    write_tensors(path, quoted(json), data_bytes);
    fsdp_status status = import_open(path, &m, &r);
    if (status == FSDP_OK)
        status = import_read(&r, 0, 0, 6, out);
    assert_refused(says ? FSDP_EINVAL : FSDP_OK, status, says, json);
    import_close(&r);
}

#define TENSOR(name, type, shape, range)                                                           \
    "'" name "':{'dtype':'" type "','shape':" shape ",'data_offsets':" range "}"
#define W(shape, range)    "{" TENSOR("transformer.w", "F32", shape, range) "}"
#define TYPED(type, range) "{" TENSOR("w", type, "[2,3]", range) "}"
#define TWO(first, second) "{" first "," second "}"

TEST(test_tensor_refused)
{
    static const char first[] = W("[2,3]", "[0,24]");
    check_tensors(first, 24, NULL);
    /* like the published checkpoints: without the prefix, with the masks of attention */
    check_tensors(TYPED("F32", "[0,24]"), 24, NULL);
    check_tensors(
        TWO(TENSOR("w", "F32", "[2,3]", "[4,28]"), TENSOR("h.0.attn.bias", "F32", "[1]", "[0,4]")),
        28, NULL);
    check_tensors(TYPED("BF16", "[0,12]"), 12, NULL);
    check_tensors(TYPED("F16", "[0,12]"), 12, NULL);
    check_tensors("{}", 0, "1 parameters without a tensor: transformer.w; 0 tensors");
    check_tensors("{" TENSOR("w2", "F32", "[6]", "[0,24]") "}", 24,
                  "transformer.w; 1 tensors of no parameter: w2");
    check_tensors(TWO(TENSOR("w", "F32", "[2,3]", "[0,24]"),
                      TENSOR("transformer.w", "F32", "[2,3]", "[24,48]")),
                  48, "transformer.w: the tensor comes twice");
    check_tensors(
        TWO(TENSOR("w", "F32", "[2,3]", "[0,24]"), TENSOR("w", "F32", "[2,3]", "[24,48]")), 48,
        "got the key \"w\" twice");
    check_tensors(
        TWO(TENSOR("w", "F32", "[2,3]", "[0,24]"), TENSOR("h.0.attn.bias", "F32", "[6]", "[0,24]")),
        24, "tensors that overlap");
    check_tensors("{'transformer.w':7}", 24, "data_offsets: expected two");
    check_tensors("{'transformer.w':{'data_offsets':[0,24]}}", 24, "dtype: got none, expected F32");
    check_tensors(TYPED("I64", "[0,48]"), 48, "dtype: got I64");
    check_tensors(TYPED("F64", "[0,48]"), 48, "dtype: got F64");
    check_tensors(TYPED("BF16", "[0,24]"), 24, "data_offsets: expected a range of 12 bytes");
    check_tensors(W("[3,2]", "[0,24]"), 24, "shape: got [3,2], expected [2,3]");
    check_tensors(W("[6]", "[0,24]"), 24, "shape: got [6]");
    static const char *const shapes[] = {W("[2,3,1]", "[0,24]"), W("[2.5,3]", "[0,24]"),
                                         W("'x'", "[0,24]")};
    for (int i = 0; i < 3; i++)
        check_tensors(shapes[i], 24, "shape");
    check_tensors(W("[2,3]", "[4,28]"), 28, "leave a gap");
    check_tensors(first, 23, "end elsewhere than the file");
    check_tensors(first, 25, "end elsewhere than the file");
    check_tensors(W("[2,3]", "[0,20]"), 20, "data_offsets: expected a range of 24");
    check_tensors(W("[2,3]", "[24,0]"), 24, "data_offsets: expected two");
    static const char *const ranges[] = {W("[2,3]", "[-24,0]"), W("[2,3]", "[1e300,1e300]"),
                                         W("[2,3]", "[0]"), W("[2,3]", "null")};
    for (int i = 0; i < 4; i++)
        check_tensors(ranges[i], 24, "data_offsets");
}

/* A tensor beside the parameter is ignored, or refused as one of no parameter. */
static void check_beside(const model_family *family, const char *name, bool is_ignored)
{
    param_spec spec = {.name = "w",
                       .n_dims = 2,
                       .dims = {2, 3},
                       .elems = 6,
                       .cut = {.dims = {2, 3}, .elems = 6},
                       .tied_to = NOT_TIED};
    const model m = {.family = family, .n_params = 1, .params = &spec};
    char json[256];
import r;
    snprintf(json, sizeof json,
             TWO(TENSOR("w", "F32", "[2,3]", "[0,24]"), TENSOR("%s", "U8", "[4]", "[24,28]")),
             name);
    write_tensors(in_dir("beside"), quoted(json), 28);
    fsdp_status status = import_open(in_dir("beside"), &m, &r);
    assert_refused(is_ignored ? FSDP_OK : FSDP_EINVAL, status, is_ignored ? NULL : name, name);
    import_close(&r);
}

/* Older versions of transformers stored tables: the masks of attention, the angles of positions. */
TEST(test_tables_ignored)
{
    static const char *const gpt2[] = {"h.0.attn.bias", "transformer.h.11.attn.bias",
                                       "h.3.attn.masked_bias", "transformer.h.0.attn.masked_bias"};
    static const char *const gpt2_not[] = {
        "h.0.attn.c_attn.gain", "h.0.attn.bias.weight", "h.0.crossattention.bias",
        "h.x.attn.bias",        "h.0.mlp.attn.bias",    "attn.bias",
        "h..attn.bias"};
    static const char *const llama[] = {"model.layers.1.self_attn.rotary_emb.inv_freq",
                                        "layers.0.self_attn.rotary_emb.inv_freq",
                                        "model.rotary_emb.inv_freq",
                                        "rotary_emb.inv_freq",
                                        "rotary_emb.cos_cached",
                                        "model.layers.0.self_attn.rotary_emb.sin_cached",
                                        "model.rotary_emb.original_inv_freq",
                                        "layers.0.self_attn.rotary_emb._cos_cached",
                                        "model.layers.0.self_attn.rotary_emb.freqs_cis",
                                        "layers.0.self_attn.rotary_emb.cos",
                                        "layers.0.self_attn.rotary_emb.cached_sin",
                                        "model.rotary_emb.full_attention_inv_freq",
                                        "layers.0.self_attn.rotary_pos_emb.inv_freq",
                                        "layers.3.self_attn.rotary.inv_freq",
                                        "rope.freqs",
                                        "freqs_cis"};
    static const char *const llama_not[] = {"model.rotary_emb.weight",
                                            "rotary_emb.inv_freq.weight",
                                            "my_rotary_emb.inv_freq",
                                            "model.inv_freq",
                                            "model.layers.0.self_attn.rotary_emb",
                                            "rotary_emb.w.inv_freq",
                                            "model.x.freqs_cis",
                                            "rotary_emb.w.x_inv_freq",
                                            "model.rope.cosine"};
    for (size_t i = 0; i < sizeof gpt2 / sizeof *gpt2; i++)
        check_beside(&GPT2_FAMILY, gpt2[i], true);
    for (size_t i = 0; i < sizeof gpt2_not / sizeof *gpt2_not; i++)
        check_beside(&GPT2_FAMILY, gpt2_not[i], false);
    for (size_t i = 0; i < sizeof llama / sizeof *llama; i++)
        check_beside(&LLAMA_FAMILY, llama[i], true);
    for (size_t i = 0; i < sizeof llama_not / sizeof *llama_not; i++)
        check_beside(&LLAMA_FAMILY, llama_not[i], false);
}

/* Parameters that are tied may be stored under the name of either. */
TEST(test_tied_names)
{
    param_spec specs[] = {{.name = "transformer.w",
                           .n_dims = 1,
                           .dims = {6},
                           .elems = 6,
                           .cut = {.dims = {6}, .elems = 6},
                           .tied_to = NOT_TIED},
                          {.name = "lm_head.w",
                           .n_dims = 1,
                           .dims = {6},
                           .elems = 6,
                           .cut = {.dims = {6}, .elems = 6},
                           .tied_to = 0}};
    const model m = {.family = &GPT2_FAMILY, .n_params = 2, .params = specs};
    static const char *const files[] = {
        "{" TENSOR("transformer.w", "F32", "[6]", "[0,24]") "}",
        "{" TENSOR("lm_head.w", "F32", "[6]", "[0,24]") "}",
        TWO(TENSOR("lm_head.w", "F32", "[6]", "[0,24]"), TENSOR("w", "F32", "[6]", "[24,48]")),
        TWO(TENSOR("h.0.attn.bias", "F32", "[6]", "[0,24]"),
            TENSOR("lm_head.w", "F16", "[6]", "[24,36]"))};
    static const size_t bytes[] = {24, 24, 48, 36};
    for (int i = 0; i < 4; i++) {
        float out[6] = {1};
import r;
        write_tensors(in_dir("tied"), quoted(files[i]), bytes[i]);
        OK(import_open(in_dir("tied"), &m, &r));
        OK(import_read(&r, 0, 0, 6, out));
        assert_true(out[0] == 0.0f);
        import_close(&r);
    }
}

/* A value that is not finite is refused with its file, tensor and element, in every type. */
TEST(test_values_finite)
{
    param_spec spec = {.name = "transformer.w",
                       .n_dims = 2,
                       .dims = {2, 3},
                       .elems = 6,
                       .cut = {.dims = {2, 3}, .elems = 6},
                       .tied_to = NOT_TIED};
    const model m = {.family = &GPT2_FAMILY, .n_params = 1, .params = &spec};
    static const struct {
        const char *type, *range, *says;
        size_t bytes;
        uint32_t value;
    } BAD[] = {{"F32", "[0,24]", "w[4]: got nan", 4, 0x7fc00000},
               {"F32", "[0,24]", "w[4]: got -inf, expected a finite number", 4, 0xff800000},
               {"BF16", "[0,12]", "w[4]: got inf", 2, 0x7f80},
               {"F16", "[0,12]", "w[4]: got nan", 2, 0x7e00}};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        char json[128], file[256] = "";
        float out[6];
import r;
        snprintf(json, sizeof json, "{" TENSOR("w", "%s", "[2,3]", "%s") "}", BAD[i].type,
                 BAD[i].range);
        const uint64_t header_bytes = strlen(json);
        memcpy(file, &header_bytes, 8);
        memcpy(file + 8, quoted(json), header_bytes);
        memcpy(file + 8 + header_bytes + 4 * BAD[i].bytes, &BAD[i].value, BAD[i].bytes);
        mkdir(in_dir("tensors"), 0700);
        write_bytes(in_dir("tensors/model.safetensors"), file, 8 + header_bytes + 6 * BAD[i].bytes);
        OK(import_open(in_dir("tensors"), &m, &r));
        OK(import_read(&r, 0, 0, 4, out)); /* a rank reads only its part */
        REFUSED(FSDP_EINVAL, import_read(&r, 0, 2, 4, out), BAD[i].says);
        assert_says("tensors/model.safetensors");
        import_close(&r);
    }
}

/* Of two tied tensors, the one with the value that is not finite is named, and not the other. */
TEST(test_tied_finite)
{
    static const char json[] =
        TWO(TENSOR("w", "F32", "[6]", "[0,24]"), TENSOR("lm_head.w", "F16", "[6]", "[24,36]"));
    param_spec specs[] = {{.name = "transformer.w",
                           .dims = {6},
                           .elems = 6,
                           .cut = {.dims = {6}, .elems = 6},
                           .tied_to = NOT_TIED,
                           .next_use = 1},
                          {.name = "lm_head.w",
                           .dims = {6},
                           .elems = 6,
                           .cut = {.dims = {6}, .elems = 6},
                           .tied_to = 0}};
    const model m = {.family = &GPT2_FAMILY, .n_params = 2, .params = specs};
    static const struct {
        size_t at, bytes;
        uint32_t value;
        const char *says;
    } BAD[] = {{16, 4, 0x7fc00000, "safetensors: w[4]: got nan, expected a finite number"},
               {24 + 8, 2, 0xfc00, "safetensors: lm_head.w[4]: got -inf, expected a finite number"},
               {24 + 8, 2, 0x7e00, "safetensors: lm_head.w[4]: got nan, expected a finite number"}};
    specs[0].n_dims = specs[1].n_dims = 1;
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        float out[6];
        size_t bytes;
import r;
        write_tensors(in_dir("tied"), quoted(json), 36);
        char *file = read_file(in_dir("tied/model.safetensors"), &bytes);
        memcpy(file + bytes - 36 + BAD[i].at, &BAD[i].value, BAD[i].bytes);
        write_bytes(in_dir("tied/model.safetensors"), file, bytes);
        free(file);
        OK(import_open(in_dir("tied"), &m, &r));
        OK(import_read(&r, 0, 0, 4, out)); /* a rank reads only its part */
        REFUSED(FSDP_EINVAL, import_read(&r, 0, 2, 4, out), BAD[i].says);
        assert_string_equal(fsdp_error_get()->hint,
                            "pass weights whose values are all finite numbers");
        import_close(&r);
    }
}

static void assert_header_refused(const void *bytes, size_t n_bytes, const char *part)
{
    safetensors r;
    write_bytes(in_dir("header.safetensors"), bytes, n_bytes);
    assert_int_equal(safetensors_open(in_dir("header.safetensors"), "HINT", &r), FSDP_EINVAL);
    assert_null(r.header);
    assert_says(part);
    assert_says("header.safetensors");
}

TEST(test_header_refused)
{
    static const struct {
        const char *bytes;
        size_t n_bytes;
        const char *says;
    } BAD[] = {{"", 0, "got 0 bytes, expected at least 8"},
               {"1234567", 7, "got 7 bytes"},
               {"\3\0\0\0\0\0\0\0{}", 10, "header length: got 3, expected at most 2"},
               {"\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "header length"},
               {"\0\0\0\0\0\0\0\0{}", 10, "no JSON object"},
               {"\2\0\0\0\0\0\0\0[]", 10, "no JSON object"},
               {"\2\0\0\0\0\0\0\0{a", 10, "no JSON object"},
               {"\4\0\0\0\0\0\0\0{} x", 12, "text after the object"},
               {"\4\0\0\0\0\0\0\0{}\0{", 12, "text after the object"},
               {"\2\0\0\0\0\0\0\0{}1", 11, "end elsewhere than the file"}};
    safetensors r;
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++)
        assert_header_refused(BAD[i].bytes, BAD[i].n_bytes, BAD[i].says);
    char *large = calloc(1, 8 + JSON_MAX_BYTES + 1);
    memcpy(large, &(uint64_t){JSON_MAX_BYTES + 1}, 8);
    assert_header_refused(large, 8 + JSON_MAX_BYTES + 1, "expected at most 16777216");
    free(large);
    REFUSED(FSDP_EIO, safetensors_open(in_dir("nowhere"), "HINT", &r), "No such file");
    mkdir(in_dir("header"), 0700);
    REFUSED(FSDP_EIO, safetensors_open(in_dir("header"), "HINT", &r), "not a regular file");
    safetensors_close(&r); /* it is closed already */
}

/* Every fp16, against the sum of its bits' values in double. */
TEST(test_f16)
{
    for (uint32_t h = 0; h < 65536; h++) {
        const int e = (int)(h >> 10 & 31), f = (int)(h & 1023);
        const double size = e == 31 && f == 0 ? (double)INFINITY
                            : e > 0           ? ldexp(1024 + f, e - 25)
                                              : ldexp(f, -24);
        const float got = f32_from_f16((uint16_t)h);
        if (e == 31 && f != 0)
            assert_true(isnan(got));
        else
            assert_true((double)got == (h >> 15 ? -size : size) && !signbit(got) == !(h >> 15));
    }
}

/* Elements 2 to 4 of a tensor of each type, and a tied tensor that must be the same. */
TEST(test_import_types)
{
    static const char json[] = "{" TENSOR("a", "F16", "[5]", "[0,10]") "," TENSOR(
        "b", "BF16", "[5]", "[10,20]") "," TENSOR("c", "F32", "[5]",
                                                  "[20,40]") "," TENSOR("lm_head.weight", "F32",
                                                                        "[5]", "[40,60]") "}";
    param_spec specs[4] = {{.name = "transformer.a", .tied_to = NOT_TIED},
                           {.name = "transformer.b", .tied_to = NOT_TIED},
                           {.name = "transformer.c", .tied_to = NOT_TIED, .next_use = 3},
                           {.name = "lm_head.weight", .tied_to = 2}};
    for (int p = 0; p < 4; p++) {
        specs[p].n_dims = 1;
        specs[p].dims[0] = specs[p].elems = specs[p].cut.dims[0] = specs[p].cut.elems = 5;
    }
    const model m = {.family = &GPT2_FAMILY, .n_params = 4, .params = specs};
    struct {
        uint64_t header_bytes;
        char header[sizeof json - 1];
        uint8_t data[60];
    } __attribute__((packed)) file = {.header_bytes = sizeof json - 1};
    static const uint16_t f16[] = {0, 0, 0x3c01, 0x8001, 0x7bff},
                          bf16[] = {0, 0, 0x3f81, 0x8001, 0};
    static const float f32[] = {0, 0, 1.5f, -3, 7};
    static const float expected[3][3] = {
        {1 + 0x1p-10f, -0x1p-24f, 65504}, {1 + 0x1p-7f, -0x1p-133f, 0}, {1.5f, -3, 7}};
    memcpy(file.header, quoted(json), sizeof file.header);
    memcpy(file.data, f16, 10);
    memcpy(file.data + 10, bf16, 10);
    memcpy(file.data + 20, f32, 20);
    memcpy(file.data + 40, f32, 20);
    mkdir(in_dir("types"), 0700);
    float got[3];
import r;
    for (int p = 0; p < 3; p++) {
        write_bytes(in_dir("types/model.safetensors"), &file, sizeof file);
        OK(import_open(in_dir("types"), &m, &r));
        OK(import_read(&r, p, 2, 3, got));
        import_close(&r);
        assert_memory_equal(got, expected[p], sizeof got);
    }
    file.data[40 + 3 * 4] ^= 1; /* element 3 of lm_head */
    write_bytes(in_dir("types/model.safetensors"), &file, sizeof file);
    OK(import_open(in_dir("types"), &m, &r));
    OK(import_read(&r, 2, 4, 1, got)); /* element 3 is not read */
    REFUSED(FSDP_EINVAL, import_read(&r, 2, 2, 3, got),
            "lm_head.weight[3]: got -3.00000024, expected -3 as in transformer.c");
    import_close(&r);
}

/* An export in several files, then with errors in some of them. */
TEST(test_index)
{
    model m;
    export_writer w;
import r;
    OK(model_create(&SMALL, &m));
    const char *path = in_dir("split");
    export_seed(&m, path, 9, 7);
    float *values = calloc(m.n_param_elems, sizeof *values);
    OK(export_begin(&m, path, 400, NULL, &w));
    OK(export_append(&w, values, m.n_param_elems));
    OK(export_end(&w));
    assert_int_equal(files_like("split/model.safetensors"), 0); /* the earlier one is gone */
    const int n = files_like("split/model-*.safetensors");
    assert_uint_in_range(n, 3, 8);
    OK(import_open(path, &m, &r));
    assert_int_equal(r.n_files, n);
    size_t bytes;
    for (int i = 0; i < n; i++) /* a tensor is never cut, so a file of more than 400 has one */
        assert_true(r.files[i].data_bytes <= 400 || cJSON_GetArraySize(r.files[i].header) == 2);
    import_close(&r);
    free(values);
    char *index = read_file(in_dir("split/model.safetensors.index.json"), &bytes);
    write_bytes(in_dir("split/model.safetensors"), "", 0);
    REFUSED(FSDP_EINVAL, import_open(path, &m, &r),
            "got model.safetensors and model.safetensors.index.json, expected one");
    unlink(in_dir("split/model.safetensors"));
    static const struct {
        const char *file;
        fsdp_status status;
        const char *says;
    } BAD[] = {{"model-00002", FSDP_EINVAL,
                "got no tensor transformer.wte.weight, which the index says it has"},
               {"../el-00001", FSDP_EINVAL,
                "transformer.wte.weight: expected the name of a file beside the index"},
               {"nonel-00001", FSDP_EIO, "nonel-0000"}};
    char *first = strstr(index, "model-00001");
    for (int i = 0; i < 3; i++) {
        memcpy(first, BAD[i].file, strlen(BAD[i].file));
        write_bytes(in_dir("split/model.safetensors.index.json"), index, bytes);
        REFUSED(BAD[i].status, import_open(path, &m, &r), BAD[i].says);
    }
    free(index);
    export_seed(&m, path, 9, 7); /* in one file: the others are gone */
    assert_int_equal(files_like("split/model*"), 1);
    assert_holds_seed(&m, path, 9);
    model_free(&m);
}

/* New files replace old files of the same names. If one cannot be replaced, no index may mix new
 * files with old ones. */
TEST(test_index_retired)
{
    model m;
    export_writer w;
    char second[PATH_MAX];
    OK(model_create(&SMALL, &m));
    const char *path = in_dir("retired");
    float *values = calloc(m.n_param_elems, sizeof *values);
    for (int time = 0; time < 2; time++) {
        OK(export_begin(&m, path, 400, NULL, &w));
        OK(export_append(&w, values, m.n_param_elems));
        snprintf(second, sizeof second, "%s/model-00002-of-%05d.safetensors", path, w.n_weights);
        if (time == 1) {
            assert_int_equal(unlink(second), 0);
            assert_int_equal(mkdir(second, 0777), 0);
        }
        assert_int_equal(export_end(&w), time == 0 ? FSDP_OK : FSDP_EIO);
        assert_int_equal(files_like("retired/*.json"), time == 0 ? 2 : 1);
    }
    rmdir(second);
    free(values);
    model_free(&m);
}

static bool opendir_fails;

/* In place of the library's. */
DIR *opendir(const char *path)
{
    if (!opendir_fails)
        return fdopendir(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    errno = EMFILE;
    return NULL;
}

/* An export into a folder that cannot be listed may leave weights of an earlier one, so it fails
 * before config.json, and names all options that export. */
TEST(test_folder_not_listed)
{
    model m;
    export_writer w;
    OK(model_create(&SMALL, &m));
    float *values = calloc(m.n_param_elems, sizeof *values);
    for (int fails = 0; fails < 2; fails++) {
        OK(export_begin(&m, in_dir("unlisted"), UINT64_MAX, NULL, &w));
        OK(export_append(&w, values, m.n_param_elems));
        unlink(in_dir("unlisted/config.json"));
        opendir_fails = fails;
        assert_int_equal(export_end(&w), fails ? FSDP_EIO : FSDP_OK);
        opendir_fails = false;
        assert_int_equal(files_like("unlisted/config.json"), !fails);
    }
    assert_says("cannot remove weights of an earlier export from ");
    assert_says("unlisted: Too many open files");
    assert_non_null(
        strstr(fsdp_error_get()->hint, "--export, --export-init or --export-optimizer"));
    free(values);
    model_free(&m);
}

static fsdp_status read_config(const char *json, model_config *out, const char **note)
{
    mkdir(in_dir("config"), 0700);
    write_bytes(in_dir("config/config.json"), quoted(json), strlen(json));
    return import_model_config(in_dir("config"), out, note);
}

static void refuses_config(const char *json, const char *part)
{
    model_config c;
    const char *note;
    REFUSED(FSDP_EINVAL, read_config(json, &c, &note), part);
}

#define SIZES "'n_layer':2,'n_head':2,'n_positions':8,'vocab_size':9"
#define E4    "{" SIZES ",'n_embd':4"

TEST(test_config_refused)
{
    model_config c;
    const char *note;
    OK(read_config(E4 ",'n_inner':null,'embd_pdrop':0.1}", &c, &note));
    assert_int_equal(c.d_ff, 16);
    assert_non_null(strstr(note, "there is no dropout"));
    refuses_config("{" SIZES "}", "\"n_embd\" is missing");
    refuses_config("{" SIZES ",'n_embd':0}", "\"n_embd\": expected a whole number");
    refuses_config("{" SIZES ",'n_embd':1.5}", "n_embd");
    refuses_config("{" SIZES ",'n_embd':1e99}", "n_embd");
    refuses_config("{" SIZES ",'n_embd':'4'}", "n_embd");
    refuses_config(E4 ",'n_inner':-1}", "n_inner");
    refuses_config(E4 ",'model_type':'bert'}", "got \"bert\", expected one of " MODEL_FAMILIES);
    refuses_config(E4 ",'model_type':'llama'}", "\"num_hidden_layers\" is missing");
    refuses_config(E4 ",'activation_function':'relu'}", "relu");
    refuses_config(E4 ",'tie_word_embeddings':false}", "got false, expected true");
    refuses_config(E4 ",'tie_word_embeddings':'true'}", "got \"true\", expected true");
    refuses_config(E4 ",'scale_attn_weights':false}", "true");
    refuses_config(E4 ",'scale_attn_weights':null}", "got null, expected true");
    OK(read_config(E4 ",'reorder_and_upcast_attn':null}", &c, &note));
    refuses_config(E4 ",'layer_norm_epsilon':0}", "got 0");
    refuses_config(E4 ",'layer_norm_epsilon':'1e-6'}", "\"layer_norm_epsilon\": got \"1e-6\"");
    refuses_config(E4 ",'reorder_and_upcast_attn':true}", "false");
    OK(read_config(E4 ",'rotary':null}", &c, &note));
    refuses_config(E4 ",'n_layer n_head':1}", "got a field");
    refuses_config(E4 ",'n_ctx':7}", "\"n_ctx\": got 7");
    OK(read_config(E4 ",'n_ctx':8,'id2label':{}}", &c, &note));
    refuses_config(E4 ",'rotary':8}", "\"rotary\": got a field");
    refuses_config(E4 ",'n_embd':6}", "\"n_embd\" twice");
    refuses_config(E4 "} {}", "text after the object");
    refuses_config("", "no JSON object");
    refuses_config("[1]", "no JSON object");
    REFUSED(FSDP_EIO, import_model_config(in_dir("nowhere"), &c, &note),
            "config.json: No such file");
}

/* Fields that ask for nothing, and fields that change no logits; others are refused by name. */
TEST(test_config_unknown)
{
    model_config c;
    const char *note;
    OK(read_config(E4 ",'n_special':0,'predict_special_tokens':true,'rotary':false,'x':'','y':[],"
                      "'z':{}}",
                   &c, &note));
    assert_string_equal(note, "");
    OK(read_config(E4 ",'hidden_dropout':0.5}", &c, &note));
    assert_non_null(strstr(note, "there is no dropout"));
    OK(read_config(E4 ",'return_dict':false,'output_attentions':true,'chunk_size_feed_forward':7,"
                      "'is_decoder':true,'tokenizer_class':'T','prefix':'p','cls_token_id':3,"
                      "'max_length':20,'do_sample':true,'top_k':50,'top_p':0.5,'temperature':0.7,"
                      "'repetition_penalty':1.5,'num_beams':4,'torch_dtype':'bfloat16',"
                      "'_attn_implementation_autoset':true,'bad_words_ids':[[1]],'summary_x':1,"
                      "'unsloth_version':'2025','transformers.js_config':{'dtype':'q4'},"
                      "'is_llama_config':true}",
                   &c, &note));
    static const char *const refused[] = {"'n_special':3",
                                          "'is_encoder_decoder':true",
                                          "'pruned_heads':{'0':[1]}",
                                          "'is_causal':false",
                                          "'logit_scale':0",
                                          "'attention_multiplier':1",
                                          "'rope_factor':0",
                                          "'auto_map':{'a':'b'}",
                                          "'top_kk':1",
                                          "'quantization_config':{'bits':4}",
                                          "'sliding_window':0",
                                          "'x_factor':0.5",
                                          "'add_cross_attention':true"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char json[128], name[64];
        snprintf(json, sizeof json, E4 ",%s}", refused[i]);
        sscanf(refused[i], "'%63[a-z_]", name);
        refuses_config(json, name);
    }
}

#define LLAMA_SIZES                                                                                \
    "{'model_type':'llama','num_hidden_layers':2,'num_attention_heads':4,"                         \
    "'hidden_size':16,'intermediate_size':24,'max_position_embeddings':32,'vocab_size':9"
#define SCALING                                                                                    \
    ",'rope_scaling':{'rope_type':'llama3','factor':8,'low_freq_factor':1,"                        \
    "'high_freq_factor':4,'original_max_position_embeddings':16}"

/* What Llama's files say in addition to GPT-2's: heads of keys, rotary positions, their scaling. */
TEST(test_llama_config)
{
    model_config c;
    const char *note;
    OK(read_config(LLAMA_SIZES ",'num_key_value_heads':2,'rope_theta':500000.0" SCALING "}", &c,
                   &note));
    assert_int_equal(c.n_kv_head, 2);
    assert_true(c.untied && c.rope_theta == 500000.0f && c.norm_eps == 1e-6f);
    assert_true(c.rope_factor == 8 && c.rope_low == 1 && c.rope_high == 4);
    assert_int_equal(c.rope_original, 16);
    OK(read_config(LLAMA_SIZES ",'rope_parameters':{'rope_type':'default','rope_theta':7}}", &c,
                   &note));
    assert_true(c.rope_theta == 7.0f && c.rope_factor == 0.0f && c.n_kv_head == 4);
    refuses_config(LLAMA_SIZES ",'rope_scaling':{'rope_type':'yarn'}}",
                   "got \"yarn\", expected \"llama3\"");
    refuses_config(LLAMA_SIZES ",'rope_scaling':{'rope_type':'llama3'}}", "\"factor\": got none");
    refuses_config(LLAMA_SIZES ",'rope_scaling':{'type':'linear','factor':4.0}}",
                   "got \"linear\", expected \"llama3\"");
    refuses_config(LLAMA_SIZES ",'rope_scaling':{'factor':4.0}}", "got none, expected");
    refuses_config(LLAMA_SIZES ",'rope_scaling':3}", "got none, expected");
    refuses_config(LLAMA_SIZES ",'rope_parameters':{'rope_theta':1e30}}",
                   "\"rope_theta\": got 1e+30, expected a number above 0 and below 1e+12");
    refuses_config(LLAMA_SIZES ",'rope_scaling':{'rope_type':'llama3','factor':8,"
                               "'low_freq_factor':4,'high_freq_factor':4,"
                               "'original_max_position_embeddings':16}}",
                   "high_freq_factor above low_freq_factor");
    refuses_config(LLAMA_SIZES ",'attention_bias':true}", "got true");
    refuses_config(LLAMA_SIZES ",'hidden_act':'gelu'}", "expected \"silu\"");
    refuses_config(LLAMA_SIZES ",'sliding_window':4096}", "\"sliding_window\": got a");
    refuses_config(LLAMA_SIZES ",'num_key_value_heads':3}", "n-kv-head 3 does not divide n-head 4");
    refuses_config(LLAMA_SIZES ",'head_dim':5}", "heads of width 5, expected an even number");
    OK(read_config(LLAMA_SIZES ",'partial_rotary_factor':1.0,'pretraining_tp':2,"
                               "'hidden_act':'swish'}",
                   &c, &note));
    refuses_config(LLAMA_SIZES ",'partial_rotary_factor':0.5}", "\"partial_rotary_factor\": got a");
    refuses_config(LLAMA_SIZES ",'partial_rotary_factor':0}", "\"partial_rotary_factor\": got a");
    refuses_config(LLAMA_SIZES ",'sliding_window':16,'use_sliding_window':false}",
                   "\"sliding_window\": got a");
    /* an explicit head_dim needs no width that the heads divide */
    OK(read_config("{'model_type':'llama','num_hidden_layers':2,'num_attention_heads':3,"
                   "'hidden_size':16,'head_dim':8,'intermediate_size':24,"
                   "'max_position_embeddings':32,'vocab_size':9}",
                   &c, &note));
    assert_int_equal(c.head_dim, 8);
    refuses_config("{'model_type':'llama','num_hidden_layers':2,'num_attention_heads':3,"
                   "'hidden_size':16,'intermediate_size':24,'max_position_embeddings':32,"
                   "'vocab_size':9}",
                   "n-head 3 does not divide d-model 16");
}

#define NEWER                                                                                      \
    ",'rope_parameters':{'rope_type':'llama3','rope_theta':%s,'factor':%s,'low_freq_factor':1,"    \
    "'high_freq_factor':4,'original_max_position_embeddings':16}"

/* The spellings of versions 4 and 5 of transformers, each alone and both, alike or not. */
TEST(test_rope_spellings)
{
    static const struct {
        const char *more, *theta, *factor, *says; /* says: NULL: it is read */
    } CASES[] = {
        {NEWER, "7", "8", NULL},
        {",'rope_theta':7" SCALING NEWER, "7", "8", NULL},
        {",'rope_theta':7" SCALING NEWER, "7", "9",
         "\"rope_parameters\" contradicts \"rope_scaling"},
        {",'rope_theta':8" SCALING NEWER, "7", "8", "\"rope_parameters\" contradicts \"rope_theta"},
        {SCALING NEWER, "7", "8", "\"rope_parameters\" contradicts \"rope_scaling"},
        {",'rope_theta':7,'rope_scaling':{}" NEWER, "7", "8", NULL},
        {",'rope_theta':7,'rope_scaling':{'rope_type':'default'}" NEWER, "7", "8",
         "\"rope_parameters\" contradicts \"rope_scaling"},
    };
    model_config c;
    const char *note;
    char json[600], more[400];
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        snprintf(more, sizeof more, CASES[i].more, CASES[i].theta, CASES[i].factor);
        snprintf(json, sizeof json, LLAMA_SIZES "%s}", more);
        assert_refused(CASES[i].says ? FSDP_EINVAL : FSDP_OK, read_config(json, &c, &note),
                       CASES[i].says, json);
        if (!CASES[i].says)
            assert_true(c.rope_theta == 7 && c.rope_factor == 8 && c.rope_original == 16);
    }
    refuses_config(LLAMA_SIZES ",'rope_scaling':{'rope_type':'default','type':'llama3'}}",
                   "\"rope_scaling\" contradicts itself: rope_type");
    refuses_config(LLAMA_SIZES ",'rope_parameters':{'rope_type':'default','partial_rotary_factor':"
                               "0.5}}",
                   "\"partial_rotary_factor\": got a field");
    refuses_config(LLAMA_SIZES ",'rope_scaling':[1,2]}",
                   "\"rope_scaling\": \"rope_type\": got none");
    OK(read_config(LLAMA_SIZES ",'rope_scaling':{'type':'llama3','factor':8,'low_freq_factor':1,"
                               "'high_freq_factor':4,'attention_factor':null}}",
                   &c, &note));
    assert_int_equal(c.rope_original, 32); /* max_position_embeddings */
}

/* Version 4 of transformers cannot load a rope_scaling without a type: an export writes none as
 * null, and its own in place of its source's. */
TEST(test_rope_written)
{
    static const struct {
        float factor;
        const char *source, *expected;
    } CASES[] = {{0, NULL, ",\n\t\"rope_scaling\":\tnull\n}"},
                 {0, "{\"rope_scaling\":{}}", ",\n\t\"rope_scaling\":\tnull\n}"},
                 {8, "{\"rope_scaling\":null}",
                  ",\n\t\"rope_scaling\":\t{\n\t\t\"rope_type\":\t\"llama3\",\n"
                  "\t\t\"factor\":\t8.0,\n\t\t\"low_freq_factor\":\t1.0,\n"
                  "\t\t\"high_freq_factor\":\t4.0,\n"
                  "\t\t\"original_max_position_embeddings\":\t16\n\t}\n}"}};
    size_t n_bytes;
    mkdir(in_dir("config"), 0700);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const model_config c = {.family = "llama",
                                .rope_factor = CASES[i].factor,
                                .rope_low = 1,
                                .rope_high = 4,
                                .rope_original = 16};
        FILE *f = fopen(in_dir("config/rope"), "w");
        assert_non_null(f);
        model_write_config(&c, CASES[i].source, f);
        fclose(f);
        char *text = read_file(in_dir("config/rope"), &n_bytes);
        if (strstr(text, CASES[i].expected) == NULL)
            fail_msg("expected %s in %s", CASES[i].expected, text);
        free(text);
    }
}

/* The net for MNIST has one size. What is written is read again. */
#define MNIST_SIZES "{'model_type':'mnist','channels':4,'hidden_size':16"

TEST(test_mnist_config)
{
    model_config c, again;
    const char *note;
    OK(model_preset("mnist", NULL, &c));
    OK(model_complete(&c));
    mkdir(in_dir("config"), 0777);
    FILE *f = fopen(in_dir("config/config.json"), "w");
    assert_non_null(f);
    model_write_config(&c, NULL, f);
    fclose(f);
    OK(import_model_config(in_dir("config"), &again, &note));
    assert_memory_equal(&again, &c, sizeof c);
    assert_int_equal(again.d_model, 32);
    assert_int_equal(again.d_ff, 128);
    refuses_config("{'model_type':'mnist'}", "\"channels\" is missing");
    refuses_config(MNIST_SIZES ",'num_labels':100}", "vocab-size is 100, expected 10");
    refuses_config(MNIST_SIZES ",'num_labels':10,'image_size':32}",
                   "\"image_size\": got 32, expected 28");
    refuses_config(MNIST_SIZES ",'num_labels':10,'dropout':[0.1,0.5]}",
                   "\"dropout\": got [0.1,0.5], expected [0.25,0.5]");
    refuses_config(MNIST_SIZES ",'num_labels':10,'kernel':5}",
                   "\"kernel\": got a field that the net for MNIST here does not have");
}

/* ---- text ----------------------------------------------------------------------------------- */

TEST(test_pick_token)
{
    /* x: probabilities 1/2, 1/4, 1/4 at temperature 1; 4/6, 1/6, 1/6 at 1/2. With top_k = 2 the
     * first of the two equal ones takes part: 2/3, 1/3. order: greedy takes the first of the equal
     * ones; token 0 is out. far: no overflow, because the largest is subtracted. */
    static const float x[] = {0.69314718f, 0, 0}, order[] = {1, 3, 2, 3}, far[] = {-1e30f, 500, 88};
    static const struct {
        const float *logits;
        size_t vocab, top_k;
        double temperature, u;
        int32_t token;
    } CASES[] = {{x, 3, 0, 1.0, 0.01, 0},       {x, 3, 0, 1.0, 0.49, 0},
                 {x, 3, 0, 1.0, 0.51, 1},       {x, 3, 0, 1.0, 0.74, 1},
                 {x, 3, 0, 1.0, 0.76, 2},       {x, 3, 0, 1.0, 1.0 - 0x1p-33, 2},
                 {x, 3, 0, 0.5, 0.66, 0},       {x, 3, 0, 0.5, 0.68, 1},
                 {x, 3, 2, 1.0, 0.66, 0},       {x, 3, 2, 1.0, 0.68, 1},
                 {x, 3, 2, 1.0, 0.999, 1},      {x, 3, 1, 1.0, 0.999, 0},
                 {x, 3, 99, 1.0, 0.999, 2},     {order, 4, 0, 0.0, 0.9, 1},
                 {order, 4, 3, 1.0, 0.999, 3},  {order, 4, 3, 1.0, 0.001, 1},
                 {order, 4, 0, 1e-300, 0.6, 3}, {far, 3, 0, 1.0, 0.999, 1}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        float work[16];
        int32_t token = -1;
        OK(pick_token(&(pick_args){.logits = CASES[i].logits,
                                   .work = work,
                                   .vocab = CASES[i].vocab,
                                   .top_k = CASES[i].top_k,
                                   .temperature = CASES[i].temperature,
                                   .u = CASES[i].u},
                      &token));
        assert_int_equal(token, CASES[i].token);
    }
    const float bad[] = {0.0f, NAN};
    int32_t token;
    REFUSED(FSDP_EINVAL, pick_token(&(pick_args){.logits = bad, .vocab = 2}, &token),
            "logit of token 1: got");
}

/* Compares generator_logits with the rows of one whole forward pass. Row t does not depend on later
 * tokens (causal). Portable operations sum in one order for every shape, so the bits are the
 * same. */
TEST(test_generator)
{
    rig r;
    generator *g;
import reader;
    export_writer w;
    const size_t T = 7, V = 11;
    rig_open(&r,
             &(rig_config){.model = &SMALL, .ops = ops_cpu_portable(), .batch = 1, .seq_len = T});
    const char *path = in_dir("generator");
    OK(export_begin(&r.m, path, UINT64_MAX, NULL, &w));
    for (int p = 0; p + 1 < r.m.n_params; p++)
        OK(export_append(&w, r.views.params[p], r.m.params[p].elems));
    OK(export_end(&w));
    rig_forward(&r, false, true);
    OK(import_open(path, &r.m, &reader));
    OK(generator_create(&r.m, r.dev, r.o, &reader, SIZE_MAX, &g));
    float logits[11];
    for (size_t n = 1; n <= T; n++) {
        OK(generator_logits(g, r.tokens, n, logits));
        assert_memory_equal(logits, (float *)r.logits + (n - 1) * V, sizeof logits);
    }
    int32_t longer[9] = {5, 5}; /* the model sees the last seven */
    memcpy(longer + 2, r.tokens, T * sizeof *longer);
    OK(generator_logits(g, longer, 9, logits));
    assert_memory_equal(logits, (float *)r.logits + (T - 1) * V, sizeof logits);
    longer[8] = 11; /* last: the error stays with the stream */
    assert_int_equal(generator_logits(g, longer, 9, logits), FSDP_EINVAL);
    generator_free(g);
    import_close(&reader);
    rig_close(&r); /* device_close asserts that nothing is left */
}

/* ---- main ----------------------------------------------------------------------------------- */

int main(void)
{
    return tests_run(temp_dir_make, temp_dir_remove);
}
