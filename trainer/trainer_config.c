/* trainer_config.c -- see trainer_config.h. */
#include "trainer/trainer_config.h"
#include <stdlib.h>
#include <string.h>
#include "common/base/units.h"
#include "common/model/family.h"
#include "common/ops/optimizers.h"
#include "common/weights/export.h"
#include "lab3_backward/reducer_setup.h"

enum { MAX_AUTO_BATCH = 8, MOST_DIGITS = 18 /* of an int64_t */ };

/* ---- options whose text is parsed here ------------------------------------------------------- */

/* The value of text, if it is a decimal number of at most most_digits digits; else -1. */
static int64_t parse_count(const char *text, size_t most_digits)
{
    const size_t digits = strspn(text, "0123456789");
    const bool is_count = digits > 0 && digits <= most_digits && text[digits] == '\0';
    return is_count ? strtoll(text, NULL, 10) : -1;
}

static fsdp_status parse_wrap(const char *text, trainer_config *cfg)
{
    const bool is_size = strncmp(text, "size:", 5) == 0;
    const int policy = options_choice(WRAP_POLICIES("|", "size:N", "|"), is_size ? "size:N" : text);
    const int64_t least = is_size ? parse_count(text + 5, MOST_DIGITS) : 1;
    if (policy < 0 || least < 1)
        return fsdp_error(
            FSDP_EINVAL, "pass --wrap block, --wrap sub-block, --wrap size:100000 or --wrap model",
            "--wrap: got '%s', expected " WRAP_POLICIES(", ", "size:N with N >= 1", ", or "), text);
    cfg->wrap = (wrap_policy)policy;
    cfg->wrap_min_elems = (size_t)least;
    return FSDP_OK;
}

static fsdp_status parse_bucket(const char *text, trainer_config *cfg)
{
    const int choice = options_choice("block|auto", text);
    const int64_t max_elems = choice < 0 ? parse_count(text, MOST_DIGITS) : 0;
    if (choice < 0 && max_elems < 1)
        return fsdp_error(FSDP_EINVAL, "pass --bucket 20000000, --bucket auto or --bucket block",
                          "--bucket: got '%s', expected block, auto or a number of parameters",
                          text);
    cfg->bucket_auto = choice == 1 && cfg->parallel == PARALLEL_FSDP;
    cfg->bucket_elems = (size_t)max_elems;
    return FSDP_OK;
}

/* Parse a word of --gradient-checkpointing; false: it is unknown or given twice. */
static bool parse_recompute_word(const char *word, recompute_spec *spec)
{
    const int part = options_choice("nothing|block|attention|mlp", word);
    if (part > RECOMPUTE_NOTHING && spec->part == RECOMPUTE_NOTHING)
        spec->part = (recompute_part)part;
    else if (strncmp(word, "from:", 5) == 0 && spec->from == NOT_GIVEN)
        spec->from = (int)parse_count(word + 5, 9);
    else if (strncmp(word, "every:", 6) == 0 && spec->every == NOT_GIVEN)
        spec->every = (int)parse_count(word + 6, 9);
    else
        return false;
    return true;
}

/* Parse "attention,from:4": a part, and the blocks in which it is recomputed. */
static fsdp_status parse_recompute(const char *text, int n_blocks, trainer_config *cfg)
{
    recompute_spec *spec = &cfg->recompute;
    char words[64], *rest = words; /* a longer text has unknown or repeated words */
    bool is_known = true;
    if (!text)
        return FSDP_OK;
    *spec = (recompute_spec){RECOMPUTE_NOTHING, NOT_GIVEN, NOT_GIVEN};
    cfg->recompute_auto = strcmp(text, "auto") == 0;
    snprintf(words, sizeof words, "%s", cfg->recompute_auto ? "block" : text);
    for (const char *word; is_known && (word = strsep(&rest, ",")) != NULL;)
        is_known = parse_recompute_word(word, spec);
    spec->part = spec->part ? spec->part : RECOMPUTE_BLOCK;
    spec->from = spec->from == NOT_GIVEN ? 0 : spec->from;
    spec->every = spec->every == NOT_GIVEN ? 1 : spec->every;
    if (is_known && spec->from >= 0 && spec->every > 0 &&
        n_blocks / spec->every * spec->every > spec->from)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "leave the text out, or choose blocks, such as mlp,from:0",
                      "--gradient-checkpointing: got '%s', expected auto, or block, attention or "
                      "mlp, from:K, every:K, which choose some of blocks 0 to %d",
                      text, n_blocks - 1);
}

/* ---- model and batch ------------------------------------------------------------------------- */

/* The options of size, and what they set. */
static const struct {
    const char *option;
    size_t given, set; /* offsets in trainer_options and model_config */
} SIZES[] = {
#define SIZE(option, given, set)                                                                   \
    {                                                                                              \
        option, offsetof(trainer_options, given), offsetof(model_config, set)                      \
    }
    SIZE("n-layer", n_blocks, n_blocks),
    SIZE("n-head", n_head, n_head),
    SIZE("n-kv-head", n_kv_head, n_kv_head),
    SIZE("d-model", d_model, d_model),
    SIZE("d-ff", d_ff, d_ff),
    SIZE("vocab-size", vocab_size, vocab_size),
    SIZE("n-positions", n_positions, max_seq_len),
};
enum { N_SIZES = sizeof SIZES / sizeof *SIZES };

static size_t *size_at(model_config *mc, int i)
{
    return (size_t *)((char *)mc + SIZES[i].set);
}

/* Set the sizes in *mc that options give. */
static fsdp_status set_sizes(const trainer_options *o, model_config *mc)
{
    const int number = o->family > 0 ? o->family - 1 : 0; /* 0 is auto */
    const char *family = o->init_from ? mc->family : model_family_at(number)->name;
    if (o->size || !o->init_from)
        TRY(model_preset(family, o->size, mc));
    if (o->d_model > 0 && !o->init_from)
        mc->d_ff = 0; /* model_complete computes it unless --d-ff is given */
    if (o->n_head > 0 && !o->init_from)
        mc->n_kv_head = 0;
    for (int i = 0; i < N_SIZES; i++) {
        const int64_t given = *(const int64_t *)((const char *)o + SIZES[i].given);
        if (given > 0)
            *size_at(mc, i) = (size_t)given;
    }
    return FSDP_OK;
}

static const char SIZES_HINT[] = "leave the options of size out, or pass other weights";

/* Check that options of size only repeat the config.json of --init-from. */
static fsdp_status check_sizes(const trainer_options *o, model_config *is)
{
    model_config asked = *is;
    if (o->family > 0 && strcmp(model_family_at(o->family - 1)->name, is->family) != 0)
        return fsdp_error(FSDP_EINVAL, "leave --model out, or pass other weights",
                          "--model: got %s, expected %s, which %s/config.json has",
                          model_family_at(o->family - 1)->name, is->family, o->init_from);
    if (set_sizes(o, &asked) != FSDP_OK) /* there is no such --size */
        return fsdp_error(FSDP_EINVAL, SIZES_HINT, "%s", fsdp_error_get()->what);
    for (int i = 0; i < N_SIZES; i++) {
        const size_t got = *size_at(&asked, i), expected = *size_at(is, i);
        if (got != 0 && got != expected) /* 0 follows from other sizes */
            return fsdp_error(
                FSDP_EINVAL, SIZES_HINT, "--%s%s: got %zu, expected %zu, which %s/config.json has",
                SIZES[i].option, o->size ? " or --size" : "", got, expected, o->init_from);
    }
    return FSDP_OK;
}

static fsdp_status resolve_model(const trainer_options *o, trainer_config *cfg, model_config *mc)
{
    if (o->init_from)
        TRY(import_model_config(o->init_from, mc, &cfg->init_note));
    TRY(o->init_from ? check_sizes(o, mc) : set_sizes(o, mc));
    mc->tp_blocks = (size_t)(o->tp_blocks > 0 ? o->tp_blocks : o->tp);
    TRY(model_complete(mc));
    if (model_family_find(mc->family)->is_images)
        cfg->train.seq_len = 1;
    const long long seq_len = cfg->train.seq_len;
    if ((size_t)seq_len % mc->tp_blocks != 0)
        return fsdp_error(FSDP_EINVAL, "pass a --seq-len that --tp-blocks divides",
                          "--seq-len: got %lld, expected a multiple of --tp-blocks, %zu", seq_len,
                          mc->tp_blocks);
    if ((size_t)seq_len <= mc->max_seq_len)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL,
                      o->init_from ? "pass a smaller --seq-len, or other weights"
                                   : "pass --n-positions with as many, or a smaller --seq-len",
                      "--seq-len: got %lld, expected at most %zu, the positions of the model",
                      seq_len, mc->max_seq_len);
}

/* Fill in whichever of --global-batch, --batch-size and --grad-accum were not given. */
static fsdp_status resolve_batch(train_config *c, int n_ranks)
{
    int64_t per_rank = c->global_batch / n_ranks;
    if (c->global_batch == 0) {
        c->batch_size = c->batch_size ? c->batch_size : 4;
        c->grad_accum = c->grad_accum ? c->grad_accum : 1;
        c->global_batch = n_ranks * c->batch_size * c->grad_accum;
        return FSDP_OK;
    }
    if (c->global_batch % n_ranks != 0)
        return fsdp_error(FSDP_EINVAL, "pass a --global-batch that the number of ranks divides",
                          "--global-batch: got %lld, expected a multiple of %d ranks",
                          (long long)c->global_batch, n_ranks);
    if (c->batch_size == 0 && c->grad_accum > 0)
        c->batch_size = per_rank / c->grad_accum;
    if (c->batch_size == 0)
        for (c->batch_size = MAX_AUTO_BATCH; per_rank % c->batch_size != 0;)
            c->batch_size /= 2;
    if (c->grad_accum == 0)
        c->grad_accum = per_rank / c->batch_size;
    if (n_ranks * c->batch_size * c->grad_accum == c->global_batch)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL,
                      "pass a --global-batch that world size * --batch-size * --grad-accum gives, "
                      "or leave the last two out",
                      "--global-batch: got %lld, expected a multiple of %d ranks * batch-size %lld "
                      "* grad-accum %lld",
                      (long long)c->global_batch, n_ranks, (long long)c->batch_size,
                      (long long)c->grad_accum);
}

/* Check the batch. In a canonical sum, the leaves that a rank adds alone must form a complete tree.
 * They are the sequences of a micro-step or, with --no-sync, of a step. */
static fsdp_status check_batch(const trainer_options *o, const trainer_config *cfg)
{
    const long long batch = cfg->train.batch_size, seq_len = cfg->train.seq_len;
    const bool is_late = cfg->no_sync;
    const long long leaves = is_late ? batch * cfg->train.grad_accum : batch;
    if (batch > MAX_BATCH || batch * seq_len > MAX_TOKENS)
        return fsdp_error(FSDP_EINVAL, "pass a smaller --batch-size and a larger --grad-accum",
                          "--batch-size: got %lld sequences of %lld tokens, expected at most %d "
                          "sequences and %d tokens",
                          batch, seq_len, MAX_BATCH, MAX_TOKENS);
    if (o->reduction == GRAD_ACC_CANONICAL && (leaves & (leaves - 1)) != 0)
        return fsdp_error(FSDP_EINVAL,
                          is_late ? "pass powers of two, such as --batch-size 4 --grad-accum 8, "
                                    "or --reduction fast"
                                  : "pass --batch-size 1 and a larger --grad-accum, or "
                                    "--reduction fast",
                          "--batch-size%s: got %lld, expected a power of two with --reduction "
                          "canonical",
                          is_late ? " * --grad-accum, with --no-sync" : "", leaves);
    return FSDP_OK;
}

/* ---- plan and mesh --------------------------------------------------------------------------- */

/* Parse a text such as "12.5e9,20e-6": n - 1 rates, and a latency. */
static bool parse_link(const char *text, double *const *numbers, int n)
{
    static const double LIMITS[][2] = {{LEAST_BYTES_PER_S, MOST_BYTES_PER_S}, {0, MOST_LATENCY_S}};
    for (int i = 0; i < n; i++) {
        char word[64];
        const bool is_last = i + 1 == n;
        const char *end = is_last ? text + strlen(text) : strchr(text, ',');
        if (!end || end - text >= (ptrdiff_t)sizeof word)
            return false;
        snprintf(word, sizeof word, "%.*s", (int)(end - text), text);
        if (!options_number(word, LIMITS[is_last][0], LIMITS[is_last][1], numbers[i]))
            return false;
        text = end + 1;
    }
    return true;
}

/* Parse the options of numbers about the machine of a plan. */
static fsdp_status parse_machine(const trainer_options *o, trainer_config *cfg)
{
    virtual_link *up = &cfg->upload, *down = &cfg->download;
    double *const link[] = {&cfg->link.bytes_per_s, &cfg->link.latency_s};
    double *const copies[] = {&up->bytes_per_s, &down->bytes_per_s, &up->latency_s};
    char ranges[96];
    snprintf(ranges, sizeof ranges, "bytes/s from %g to %g and seconds up to %g", LEAST_BYTES_PER_S,
             MOST_BYTES_PER_S, MOST_LATENCY_S);
    if (o->plan_link && !parse_link(o->plan_link, link, 2))
        return fsdp_error(FSDP_EINVAL,
                          "pass bytes per second and seconds: --plan-link 12.5e9,20e-6",
                          "--plan-link: got '%s', expected RATE,LATENCY, %s", o->plan_link, ranges);
    if (o->plan_copies && !parse_link(o->plan_copies, copies, 3))
        return fsdp_error(
            FSDP_EINVAL, "pass bytes per second, twice, and seconds: --plan-copies 25e9,25e9,1e-5",
            "--plan-copies: got '%s', expected UP,DOWN,LATENCY, %s", o->plan_copies, ranges);
    down->latency_s = up->latency_s;
    return FSDP_OK;
}

static fsdp_status resolve_plan(const trainer_options *o, trainer_config *cfg)
{
    cfg->plan_rank = o->plan_rank < 0 ? 0 : (int)o->plan_rank;
    if (cfg->plan_rank >= cfg->n_ranks)
        return fsdp_error(FSDP_EINVAL, "ranks count from 0; --plan-ranks says how many there are",
                          "--plan-rank: got %d, expected less than %d", cfg->plan_rank,
                          cfg->n_ranks);
    return parse_machine(o, cfg);
}

int trainer_config_data_ranks(const trainer_config *cfg)
{
    int n = cfg->n_ranks;
    for (int a = 0; a < N_AXES; a++)
        n /= cfg->axes[a] > 0 ? cfg->axes[a] : 1;
    return n;
}

static fsdp_status check_axes(const trainer_config *cfg)
{
    if (trainer_config_data_ranks(cfg) * cfg->axes[AXIS_TP] == cfg->n_ranks)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "pass a --tp that divides the number of ranks",
                      "--tp: got %d, expected a divisor of %d ranks", cfg->axes[AXIS_TP],
                      cfg->n_ranks);
}

int trainer_config_shard_size(const trainer_config *cfg)
{
    if (cfg->parallel != PARALLEL_FSDP)
        return 1;
    return sharding_shard_size(cfg->sharding, trainer_config_data_ranks(cfg), cfg->fsdp_size);
}

void trainer_config_mesh(const trainer_config *cfg, int size[N_AXES])
{
    memcpy(size, cfg->axes, N_AXES * sizeof *size);
    size[AXIS_SHARD] = trainer_config_shard_size(cfg);
}

static double given_or(double given, double otherwise)
{
    return given == NOT_GIVEN ? otherwise : given;
}

/* What the training loop is told. resolve_model and resolve_batch complete it. */
static train_config resolve_recipe(const trainer_options *o)
{
    const optimizer_rule *rule = optimizer_of((optimizer_kind)o->optimizer);
    return (train_config){.opt = &o->train,
                          .seq_len = o->seq_len,
                          .steps = o->eval_only ? 0 : o->steps,
                          .batch_size = o->batch_size,
                          .grad_accum = o->grad_accum,
                          .global_batch = o->global_batch,
                          .min_lr = given_or(o->min_lr, DEFAULT_MIN_LR),
                          .lr_gamma = given_or(o->lr_gamma, DEFAULT_LR_GAMMA),
                          .weight_decay = given_or(o->weight_decay, rule->weight_decay),
                          .eps = given_or(o->eps, rule->eps)};
}

#define LINK_OR_RANKS "--plan-link RATE,LATENCY or several ranks, which measure their link"

/* Refuse options that lack what depends on the number of ranks; rows have all other needs. */
static fsdp_status check_needs(const trainer_options *o, const trainer_config *cfg, int world_size)
{
    const bool has_replicas = cfg->parallel == PARALLEL_FSDP && cfg->sharding == SHARDING_HYBRID &&
                              trainer_config_shard_size(cfg) < trainer_config_data_ranks(cfg);
    const bool measures_link = world_size > 1 && !o->plan_prices;
    const bool has_link =
        cfg->n_ranks == 1 || o->plan_link || measures_link || o->plan_device >= PLAN_FIRST_DEVICE;
    if (o->no_sync == NO_SYNC_REPLICAS && (!has_replicas || o->reduction == GRAD_ACC_CANONICAL))
        return options_lack(
            "--no-sync=replicas",
            "--reduction fast and --sharding hybrid --fsdp-size N, of several groups");
    if (o->plan_prices && !has_link)
        return options_lack("--plan-prices", "--plan-link RATE,LATENCY");
    if (o->plan_device == PLAN_THIS_DEVICE && !has_link)
        return options_lack("--plan-device this", LINK_OR_RANKS);
    return cfg->bucket_auto && !has_link ? options_lack("--bucket auto", LINK_OR_RANKS) : FSDP_OK;
}

/* Check the sizes of shard groups and near groups, and the batch. */
fsdp_status trainer_config_check(const trainer_options *o, const trainer_config *cfg)
{
    const char *option = o->plan_fsdp_size > 0 ? "--plan-fsdp-size" : "--fsdp-size";
    const int w = trainer_config_data_ranks(cfg), s = trainer_config_shard_size(cfg);
    const long long near = o->reshard_to;
    if (cfg->parallel == PARALLEL_FSDP && cfg->sharding == SHARDING_HYBRID && s == 1 && w > 1)
        return fsdp_error(FSDP_EINVAL, "pass --sharding none, which replicates everything",
                          "%s: got 1, expected at least 2 ranks to a shard group", option);
    if (w % s != 0)
        return fsdp_error(FSDP_EINVAL, "pass a shard group's size that divides the number of ranks",
                          "%s: got shard groups of %d, expected a divisor of %d ranks", option, s,
                          w);
    if (near > 0 && (near >= s || s % near != 0))
        return fsdp_error(
            FSDP_EINVAL,
            "pass the ranks of a host, if that is such a divisor, or leave --reshard-to out",
            "--reshard-to: got %lld, expected a divisor of %d, the ranks of a shard "
            "group, and less than all",
            near, s);
    return check_batch(o, cfg);
}

/* ---- from options to settings ---------------------------------------------------------------- */

/* --sharding optimizer is short for grad-op, --no-sync and --reshard-after step. */
static void resolve_sharding(const trainer_options *o, trainer_config *cfg)
{
    const bool late = o->sharding == SHARDING_OPTIMIZER;
    const bool in_groups = o->plan_fsdp_size > 0 && o->sharding == SHARDING_FULL;
    cfg->sharding = late        ? SHARDING_GRAD_OP
                    : in_groups ? SHARDING_HYBRID
                                : (sharding_strategy)o->sharding;
    /* a rank whose shard group is itself keeps everything */
    if (trainer_config_data_ranks(cfg) == 1 && cfg->n_ranks > 1 && cfg->sharding != SHARDING_HYBRID)
        cfg->sharding = SHARDING_NONE;
    cfg->fsdp_size = (int)(o->plan_fsdp_size > 0 ? o->plan_fsdp_size : o->fsdp_size);
    cfg->no_sync = o->no_sync == NO_SYNC_ALL || (late && o->parallel == PARALLEL_FSDP);
    cfg->offloads = o->optimizer_offload || o->cpu_offload;
}

/* How units are prefetched and what is recomputed, if gradients are computed at all. */
static fsdp_status resolve_passes(const trainer_options *o, int n_blocks, trainer_config *cfg)
{
    TRY(parse_recompute(o->checkpointing, n_blocks, cfg));
    /* Measured (make bench BENCH=overlap): with shared memory, and all cores computing, a step with
     * `both` takes from 4% more to 9% less time than with `none`; over 1 Gbit/s a quarter less. */
    const prefetch_mode pays = cfg->n_ranks > 1 ? PREFETCH_BOTH : PREFETCH_NONE;
    cfg->prefetch_auto = o->prefetch == PREFETCH_AUTO;
    cfg->prefetch = cfg->prefetch_auto ? pays : (prefetch_mode)o->prefetch;
    if (!cfg->forward_only)
        return FSDP_OK;
    cfg->recompute = (recompute_spec){RECOMPUTE_NOTHING, 0, 1};
    cfg->recompute_auto = cfg->prefetch_auto = false;
    cfg->prefetch = PREFETCH_NONE;
    return FSDP_OK;
}

fsdp_status trainer_config_resolve(const trainer_options *o, int world_size, trainer_config *cfg,
                                   model_config *model_cfg)
{
    *cfg = (trainer_config){.train = resolve_recipe(o),
                            .parallel = (enum trainer_parallel)o->parallel,
                            .n_ranks = o->plan_ranks > 0 ? (int)o->plan_ranks : world_size,
                            .makes_digests = o->digests != NULL};
    cfg->axes[AXIS_TP] = (int)o->tp;
    TRY(check_axes(cfg));
    resolve_sharding(o, cfg);
    TRY(parse_wrap(o->wrap, cfg));
    TRY(parse_bucket(o->bucket, cfg));
    cfg->is_timed = o->plan_device != PLAN_NO_DEVICE || o->plan_prices || cfg->bucket_auto;
    cfg->forward_only =
        cfg->train.steps == 0 && !o->save_dir && !o->export_optimizer && !cfg->is_timed;
    TRY(check_needs(o, cfg, world_size));
    TRY(resolve_plan(o, cfg));
    TRY(resolve_model(o, cfg, model_cfg));
    TRY(resolve_passes(o, (int)model_cfg->n_blocks, cfg));
    if (cfg->parallel == PARALLEL_SINGLE && cfg->n_ranks > 1)
        return fsdp_error(FSDP_EINVAL, "run build/fsdp_train --parallel single without a launcher",
                          "--parallel single: got %d ranks, expected 1", cfg->n_ranks);
    TRY(resolve_batch(&cfg->train, trainer_config_data_ranks(cfg)));
    TRY(trainer_config_check(o, cfg));
    return trainer_check_change(o->resume_change);
}
