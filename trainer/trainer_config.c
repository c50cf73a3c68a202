/* trainer_config.c -- see trainer_config.h. */
#include "trainer/trainer_config.h"
#include <stdlib.h>
#include <string.h>
#include "common/base/units.h"
#include "common/comm/comm.h"
#include "common/comm/transport/transport.h"
#include "common/data/data.h"
#include "common/model/family.h"
#include "common/ops/backends.h"
#include "common/simulate/virtual_time.h"
#include "common/weights/export.h"
#include "lab3_backward/reducer_setup.h"

/* The type of an option's field determines the option's kind. */
#define OPTION(text, field)                                                                        \
    .name = text, .offset = offsetof(trainer_config, field),                                       \
    .kind = _Generic(((trainer_config *)NULL)->field, int64_t: OPT_INT, double: OPT_DOUBLE,        \
                     const char *: OPT_STRING, bool: OPT_BOOL, int: OPT_ENUM)

enum { MAX_AUTO_BATCH = 8, MOST_DIGITS = 18 /* of an int64_t */ };
enum { NOT_GIVEN = -2 }; /* until resolved: the number's default depends on other options */

/* clang-format off */
const option_spec TRAINER_OPTIONS[] = {
    {OPTION("parallel", parallel), .def = "fsdp", .choices = "single|ddp|fsdp", .group = "Parallelism",
     .help = "one device, replicated parameters, or sharded ones"},
    {OPTION("sharding", sharding),
     .needs = {{.rule = "fsdp-size|plan-fsdp-size", .says = "--fsdp-size N", .at = "hybrid"}},
     .def = "full", .choices = "full|grad-op|none|hybrid|optimizer",
     .help = "reshard after forward (ZeRO-3), after backward (ZeRO-2), never, as full inside groups of --fsdp-size, or after the step "
             "(ZeRO-1: whole gradients, reduced once a step)"},
    {OPTION("fsdp-size", fsdp_size), .needs = {{.rule = "sharding=hybrid"}}, .max = 65536, .help = "ranks of a shard group with --sharding hybrid; shard groups replicate each other"},
    {OPTION("no-sync", no_sync), .def = "off", .bare = "all", .choices = "off|all|replicas",
     .help = "reduce gradients once a step, after its last micro-step, with all ranks or, inside shard groups as before, with replicas "
             "(alone: all)"},
    {OPTION("reshard-after", reshard_after),
     .needs = {{.rule = "parallel=fsdp&sharding!=none", .says = "--parallel fsdp and a --sharding that reshards", .at = "step"}},
     .def = "use", .choices = "use|step",
     .help = "when gathered units are freed: as --sharding says, or after the step's last micro-step, so that a step gathers once"},
    {OPTION("reshard-to", reshard_to),
     .needs = {{.rule = "parallel=fsdp&sharding=full|sharding=hybrid&reshard-after=use",
                .says = "--parallel fsdp, --sharding full or hybrid, and --reshard-after use (hybrid: with --fsdp-size N)"}},
     .min = 2, .max = 65536,
     .help = "after forward keep each unit once in every N neighbouring ranks, which gather it for backward among themselves (hpZ)"},
    {OPTION("optimizer-offload", optimizer_offload),
     .needs = {{.rule = "parallel=fsdp&sharding!=none", .says = "--parallel fsdp and a --sharding that shards"}},
     .help = "keep the optimizer's states in host memory, and stream them through the device in the update"},
    {OPTION("cpu-offload", cpu_offload),
     .needs = {{.rule = "parallel=fsdp&sharding!=none", .says = "--parallel fsdp and a --sharding that shards"}},
     .help = "keep parameter shards, sums of gradients and the optimizer's states in host memory; the device holds only what it computes with"},
    {OPTION("offload-piece", offload_piece_mib), .needs = {{.rule = "optimizer-offload|cpu-offload"}}, .def = "32", .min = 1.0 / 1024, .max = 1 << 20, .arg = "MiB",
     .help = "memory of one piece of offloaded arrays; two are on the device at a time"},
    {OPTION("wrap", wrap), .def = "block", .arg = "POLICY", .help = "units: block, sub-block, size:N (at least N elements) or model"},
    {OPTION("layout", layout),
     .needs = {{.rule = "parallel=fsdp", .at = "per-param"}},
     .def = "flat", .choices = "flat|per-param",
     .help = "what a rank keeps: a slice of a unit's flat array, or rows of each of its parameters"},
    {OPTION("prefetch", prefetch), .def = "auto", .choices = "none|backward|backward-post|forward|both|auto",
     .help = "in which passes a unit is gathered while the one before it computes (auto: where that pays)"},
    {OPTION("limit-all-gathers", limit_all_gathers), .def = "2", .min = 1, .max = PREFETCH_MAX_LIMIT,
     .help = "with --prefetch at most N + 1 units are gathered at a time, the root not counted"},
    {OPTION("bucket", bucket), .def = "block", .arg = "N|auto|block",
     .help = "gather and reduce neighbouring units as one, with at most N parameters (auto: the N whose planned step is shortest)"},
    {OPTION("gradient-checkpointing", checkpointing), .bare = "block", .arg = "SPEC",
     .help = "compute layers again before their backward instead of keeping their activations: block, attention or mlp; from:K: only "
             "in blocks from K on; every:K: only in every K-th block; for example mlp,from:6 (alone: block; auto: the set of last blocks with "
             "the least work that makes the run fit in memory)"},
    {OPTION("chunk-loss", chunk_loss), .bare = "1024", .min = 1, .max = MAX_TOKENS, .arg = "TOKENS",
     .help = "hold the logits of at most this many tokens at a time: the last layer computes logits, loss and gradients chunk by chunk in "
             "its backward (default 1024)"},
    {OPTION("reduction", reduction), .def = "fast", .choices = "fast|canonical", .help = "canonical: the same bits on any number of ranks"},
    {OPTION("param-dtype", param_dtype), .def = "fp32", .choices = "fp32|bf16",
     .help = "bf16: gather and compute with parameters in bf16 and keep activations in bf16; masters stay fp32"},
    {OPTION("reduce-dtype", reduce_dtype), .def = "fp32", .choices = "fp32|bf16",
     .help = "bf16: gradients are sent and summed in bf16, on one rank too"},
    {OPTION("device", device), .def = "cpu", .choices = BACKEND_CHOICES, .help = BACKEND_HELP},
    {OPTION("device-memory", device_memory_mib), .max = 1LL << 40, .arg = "MiB", .help = "limit of the device memory of one rank (0: all that is free)"},
    {OPTION("comm", comm), .def = "auto", .choices = "auto|self|mpi|shm|nccl|hccl",
     .help = "transport between ranks (auto: the device's own, nccl or hccl; without one shm inside hosts, mpi between them)"},
    {OPTION("ops", ops), .def = "fast", .choices = "fast|portable",
     .help = "maths: oneDNN and vector code, or plain C with the same bits on every machine"},
    {OPTION("model", family), .def = "auto", .choices = "auto|" MODEL_FAMILIES, .group = "Model",
     .help = "model family (auto: what --init-from has, or gpt2)"},
    {OPTION("size", size), .arg = "PRESET",
     .help = "gpt2: tiny, small, 124m, 355m, 774m, 1558m, xl-2l; llama: tiny, small, 124m, llama2-7b, -13b, -70b, llama3-8b, -70b, "
             "llama3.1-8b, -70b, -405b, cs336-xl; mnist: net, tiny (default: the first, or what --init-from has)"},
    {OPTION("n-layer", n_blocks), .max = 1000, .help = "blocks (0: the preset's)"},
    {OPTION("n-head", n_head), .max = 1000, .help = "attention heads (0: the preset's)"},
    {OPTION("n-kv-head", n_kv_head), .max = 1000, .help = "llama: heads of keys and values (0: the preset's, or --n-head)"},
    {OPTION("d-model", d_model), .max = 100000, .help = "width (0: the preset's)"},
    {OPTION("d-ff", d_ff), .max = 1000000, .help = "MLP width (0: the preset's; with --d-model 4 times that, llama: 8/3 of it, a multiple of 256)"},
    {OPTION("vocab-size", vocab_size), .max = 1000000, .help = "tokens (0: the preset's)"},
    {OPTION("n-positions", n_positions), .max = 1048576, .help = "rows of the position table, the longest --seq-len (0: the preset's)"},
    {OPTION("seq-len", train.seq_len), .def = "64", .min = 1, .max = 1048576, .group = "Training", .help = "tokens of a sequence"},
    {OPTION("batch-size", train.batch_size), .max = MAX_BATCH, .help = "sequences per rank and micro-step (0: 4, or what fits --global-batch)"},
    {OPTION("grad-accum", train.grad_accum), .max = 1048576, .help = "micro-steps per step (0: 1, or what fits --global-batch)"},
    {OPTION("global-batch", train.global_batch), .max = 1073741824, .help = "sequences per step over all ranks (0: from the two above)"},
    {OPTION("steps", train.steps), .def = "20", .max = 1e9, .help = "optimizer steps"},
    {OPTION("seed", seed), .def = "1", .max = 9e15, .help = "of the initial weights; mnist: also of the order of images and of dropout"},
    {OPTION("init-from", init_from), .arg = "DIR",
     .help = "start from the weights of a Hugging Face model or of --export: safetensors, and config.json, which sets the size"},
    {OPTION("freeze", freeze), .arg = "PATTERN,...", .help = "do not train parameters with such names, for example transformer.h.0.*: they are gathered, never reduced or updated"},
    {OPTION("optimizer", optimizer), .def = "adamw", .choices = "adamw|sgd|adadelta", .help = "update rule; sgd: plain, or with --momentum"},
    {OPTION("lr", train.lr), .def = "1e-3", .max = 1e3, .help = "peak learning rate"},
    {OPTION("min-lr", train.min_lr), .unset = NOT_GIVEN,
     .needs = {{.rule = "lr-schedule=cosine|lr-schedule=linear", .says = "--lr-schedule cosine or linear"}},
     .max = 1e3, .help = "learning rate at the end of cosine and linear (default 1e-4)"},
    {OPTION("lr-schedule", train.lr_schedule),
     .needs = {{.rule = "lr-step-size", .at = "step"}},
     .def = "cosine", .choices = "cosine|linear|step|constant",
     .help = "learning rate after the warm-up: down to --min-lr at the last step, or times --lr-gamma every --lr-step-size steps"},
    {OPTION("lr-step-size", train.lr_step_size), .needs = {{.rule = "lr-schedule=step"}}, .max = 1e9, .help = "steps, with --lr-schedule step"},
    {OPTION("lr-gamma", train.lr_gamma), .unset = NOT_GIVEN,
     .needs = {{.rule = "lr-schedule=step", .says = "--lr-schedule step and --lr-step-size N"}},
     .min = 1e-30, .max = 1, .help = "with --lr-schedule step (default 0.1)"},
    {OPTION("warmup-steps", train.warmup_steps), .def = "5", .max = 1e9, .help = "steps of linear warm-up"},
    {OPTION("weight-decay", train.weight_decay), .unset = NOT_GIVEN, .max = 1e3,
     .help = "of matrices: decoupled with AdamW (default 0.1), added to the gradient with sgd and Adadelta (default 0)"},
    {OPTION("beta1", train.beta1), .needs = {{.rule = "optimizer=adamw"}}, .def = "0.9", .max = 0.999999999, .help = "AdamW"},
    {OPTION("beta2", train.beta2), .needs = {{.rule = "optimizer=adamw"}}, .def = "0.95", .max = 0.999999999, .help = "AdamW"},
    {OPTION("eps", train.eps), .unset = NOT_GIVEN,
     .needs = {{.rule = "optimizer!=sgd", .says = "--optimizer adamw or adadelta"}},
     .min = 1e-30, .max = 1, .help = "AdamW (default 1e-8) and Adadelta (default 1e-6)"},
    {OPTION("momentum", train.momentum), .needs = {{.rule = "optimizer=sgd"}}, .max = 0.999999999, .help = "sgd (0: none)"},
    {OPTION("nesterov", train.nesterov),
     .needs = {{.rule = "momentum", .says = "--optimizer sgd and --momentum M"}},
     .help = "with --momentum: use Nesterov momentum"},
    {OPTION("rho", train.rho), .needs = {{.rule = "optimizer=adadelta"}}, .def = "0.9", .max = 0.999999999, .help = "Adadelta"},
    {OPTION("clip-grad", train.clip_grad), .def = "1", .max = 1e30, .help = "global norm (0: no clipping)"},
    {OPTION("no-grad-norm", no_grad_norm),
     .needs = {{.rule = "parallel=fsdp&optimizer=sgd&!momentum&!weight-decay|weight-decay=0&!optimizer-offload&!cpu-offload",
                .says = "--parallel fsdp and --optimizer sgd, without momentum, weight decay and offload"}, {.rule = "clip-grad=0"}},
     .help = "do not compute the gradients' norm; sgd needs the norm only for clipping, so with --clip-grad 0 a step has no all-reduce"},
    {OPTION("data", data), .needs = {{.rule = "synthetic=0"}}, .arg = "PATH", .group = "Data and files",
     .help = "a text file (bytes) or llm.c .bin shards (default: the system's licence texts); mnist: a folder with MNIST's files (default: digits are drawn)"},
    {OPTION("data-format", data_format), .needs = {{.rule = "data|val-data"}}, .def = "auto", .choices = CORPUS_FORMATS,
     .help = "what --data and --val-data are: bytes of a text, llm.c's shards, or tokens without a header (auto: a text or shards)"},
    {OPTION("data-mask", data_mask), .needs = {{.rule = "data"}}, .arg = "PATH",
     .help = "a byte for each token of --data: 0 if the token does not count as a target; the loss is the mean over the others"},
    {OPTION("synthetic", synthetic_tokens), .max = 1e9,
     .help = "train on N tokens of made-up text, or N drawn digits, the same on every machine, in place of --data"},
    {OPTION("val-data", val_data), .arg = "PATH", .help = "evaluate on this corpus; mnist: a folder with the t10k files, or digits: drawn digits that are not in the training set"},
    {OPTION("val-mask", val_mask), .needs = {{.rule = "val-data"}}, .arg = "PATH", .help = "the same for --val-data"},
    {OPTION("eval-every", train.eval_every), .needs = {{.rule = "val-data"}}, .max = 1e9, .help = "steps between evaluations (0: at the end)"},
    {OPTION("eval-batches", train.eval_batches), .needs = {{.rule = "val-data|eval-only"}}, .max = 1e9,
     .help = "global batches of an evaluation (0: 128 sequences, or all images); no sample counts twice"},
    {OPTION("eval-only", eval_only),
     .needs = {{.rule = "!save&!export-optimizer&!plan-device&!plan-prices&bucket!=auto|parallel!=fsdp",
                .says = "neither --save nor --export-optimizer, --plan-device, --plan-prices or --bucket auto"}},
     .help = "train nothing: evaluate the weights of --resume, --init-from or --seed on --val-data or, without it, on the training data"},
    {OPTION("loss-csv", train.loss_csv),
     .needs = {{.rule = "!eval-only", .says = "no --eval-only (which makes no steps)"}},
     .arg = "FILE", .help = "step,loss,grad_norm,lr,ms; in files, steps count from 0"},
    {OPTION("export-init", export_init_dir), .arg = "DIR", .help = "write the initial weights (safetensors)"},
    {OPTION("export", export_dir), .arg = "DIR", .help = "write the trained weights (safetensors)"},
    {OPTION("export-shard-size", train.export_shard_mib), .needs = {{.rule = "export|export-init"}}, .def = "4768", .min = 1, .max = 1LL << 40, .arg = "MiB",
     .help = "size limit of a file of weights; with several files, model.safetensors.index.json says where each tensor is"},
    {OPTION("export-optimizer", export_optimizer),
     .needs = {{.rule = "optimizer!=sgd|momentum", .says = "--optimizer adamw, adadelta, or sgd with --momentum"}},
     .arg = "FILE", .help = "write the full states of the optimizer (safetensors)"},
    {OPTION("save", save_dir), .arg = "DIR",
     .help = "write sharded checkpoints to DIR/step-N; SIGUSR1 asks for one, and SIGTERM for one and the end"},
    {OPTION("save-every", train.save_every), .needs = {{.rule = "save"}}, .max = 1e9, .help = "steps between checkpoints (0: at the end)"},
    {OPTION("save-async", train.save_async), .needs = {{.rule = "save"}},
     .help = "a step waits until its checkpoint is copied to host memory; a thread writes the copy while steps go on"},
    {OPTION("keep", keep), .needs = {{.rule = "save"}}, .def = "2", .max = 1e9, .arg = "K", .help = "checkpoints that --save leaves, the newest (0: all)"},
    {OPTION("resume", resume),
     .needs = {{.rule = "save", .at = "auto"}},
     .arg = "DIR|auto", .help = "go on from a checkpoint; auto: from the newest whole one of --save, if there is any"},
    {OPTION("resume-change", resume_change),
     .needs = {{.rule = "resume", .says = "--resume DIR"}},
     .arg = "NAME,...", .help = "what may differ from the run that saved: data, seq-len, schedule, ..."},
    {OPTION("stop-after", train.stop_after), .max = 1e9, .help = "end when N steps have been made, with the schedule of --steps (0: at the end)"},
    {OPTION("memory-report", memory_report), .arg = "FILE", .help = "peak bytes and traffic beside the planned, CSV"},
    {OPTION("profile", profile_dir),
     .needs = {{.rule = "!eval-only", .says = "no --eval-only (which makes no steps)"}},
     .arg = "DIR",
     .help = "count and time every operation after the first step: tables, pictures of steps, by rank a CSV and a trace"},
    {OPTION("snapshot", snapshot), .arg = "FILE",
     .help = "write the blocks of memory of rank 0's last step, a page for a browser, or CSV if FILE ends in .csv (with --plan: as planned)"},
    {OPTION("check-order", check_order), .help = "report work on two streams that touches the same memory while no event orders it"},
    {OPTION("digests", digests),
     .needs = {{.rule = "!eval-only", .says = "no --eval-only (which makes no steps)"}},
     .arg = "FILE",
     .help = "write hashes of parameters, layers' outputs and gradients for fsdp_compare --bisect; every step waits for the host"},
    {OPTION("digest-values", digest_values), .needs = {{.rule = "digests"}}, .arg = "STEP:UNIT", .help = "with --digests: also write the unit's elements in that step (from 0), for example 3:h.1"},
    {OPTION("print-shards", print_shards), .needs = {{.rule = "parallel=fsdp"}}, .help = "draw which rank holds which part of each parameter (with --plan: of the planned ranks)"},
    {OPTION("plan", plan), .help = "make three steps on a device that computes nothing, print memory and traffic, and stop"},
    {OPTION("plan-ranks", plan_ranks), .implies = "plan", .min = 1, .max = 1048576, .help = "--plan for a job of N ranks, from one process"},
    {OPTION("plan-fsdp-size", plan_fsdp_size), .implies = "plan",
     .needs = {{.rule = "parallel=fsdp&sharding=full|sharding=hybrid", .says = "--parallel fsdp and --sharding full or hybrid"}},
     .min = 1, .max = 1048576, .arg = "S", .help = "--plan for shard groups of S ranks"},
    {OPTION("plan-rank", plan_rank), .implies = "plan", .def = "-1", .min = -1, .max = 1048575, .arg = "R", .help = "--plan as rank R (-1: as rank 0, if it plans)"},
    {OPTION("plan-device", plan_device), .implies = "plan", .def = "none", .choices = "none|this|" VIRTUAL_DEVICE_CHOICES,
     .help = "--plan with times: of this machine, measured for half a second, or by published figures"},
    {OPTION("plan-prices", plan_prices), .implies = "plan", .needs = {{.rule = "plan-device=none"}}, .arg = "FILE", .help = "--plan with times of operations from a profile-rank-R.csv of --profile"},
    {OPTION("plan-link", plan_link), .implies = "plan",
     .needs = {{.rule = "plan-device|plan-prices|bucket=auto&plan-device|plan-prices|parallel=fsdp", .says = "--plan-device NAME or --plan-prices FILE"}},
     .arg = "RATE,LATENCY", .help = "--plan with a link of each rank, in bytes/s (1 to 1e18) and seconds (up to 1000), such as 12.5e9,20e-6"},
    {OPTION("plan-copies", plan_copies), .implies = "plan",
     .needs = {{.rule = "plan-device|plan-prices|bucket=auto&plan-device|plan-prices|parallel=fsdp", .says = "--plan-device NAME or --plan-prices FILE"}},
     .arg = "UP,DOWN,LATENCY",
     .help = "--plan with copies of offloaded arrays to the device and to the host, in bytes/s (1 to 1e18) and seconds (up to 1000), such as 25e9,25e9,10e-6"},
    {OPTION("plan-fit", plan_fit), .implies = "plan", .help = "--plan, then the largest batch and the fewest ranks that fit --device-memory or the --plan-device"},
    {0}};
/* clang-format on */

fsdp_status trainer_config_parse(int argc, char **argv, trainer_config *cfg)
{
    *cfg = (trainer_config){0};
    TRY(options_parse(TRAINER_OPTIONS, "build/fsdp_train", argc, argv, cfg));
    TRY(backend_check(cfg->device));
    if (cfg->comm < COMM_NATIVE)
        return FSDP_OK;
    /* COMM_NATIVE has several names; each is valid for some devices. */
    const backend *b = backend_of(cfg->device);
    const char *wanted = cfg->comm == COMM_NATIVE ? "nccl" : "hccl";
    const char *has = b->native != NULL ? b->native->name : "no transport of its own";
    if (strcmp(wanted, has) != 0)
        return fsdp_error(FSDP_EINVAL, "run it with --comm auto, which takes what the device has",
                          "--comm %s: --device %s has %s", wanted, b->name, has);
    cfg->comm = COMM_NATIVE;
    return FSDP_OK;
}

/* ---- options whose text is parsed here ------------------------------------------------------- */

/* The value of text, if it is a decimal number of at most most_digits digits; else -1. */
static int64_t parse_count(const char *text, size_t most_digits)
{
    const size_t digits = strspn(text, "0123456789");
    const bool is_count = digits > 0 && digits <= most_digits && text[digits] == '\0';
    return is_count ? strtoll(text, NULL, 10) : -1;
}

static fsdp_status parse_wrap(trainer_config *cfg)
{
    const bool is_size = strncmp(cfg->wrap, "size:", 5) == 0;
    const char *choice = is_size ? "size:N" : cfg->wrap;
    cfg->wrap_policy = options_choice("block|sub-block|size:N|model", choice);
    cfg->wrap_min_elems = is_size ? parse_count(cfg->wrap + 5, MOST_DIGITS) : 1;
    if (cfg->wrap_policy >= 0 && cfg->wrap_min_elems > 0)
        return FSDP_OK;
    return fsdp_error(
        FSDP_EINVAL, "pass --wrap block, --wrap sub-block, --wrap size:100000 or --wrap model",
        "--wrap: got '%s', expected block, sub-block, size:N with N >= 1, or model", cfg->wrap);
}

static fsdp_status parse_bucket(trainer_config *cfg)
{
    const int choice = options_choice("block|auto", cfg->bucket);
    const int64_t max_elems = choice < 0 ? parse_count(cfg->bucket, MOST_DIGITS) : 0;
    if (choice < 0 && max_elems < 1)
        return fsdp_error(FSDP_EINVAL, "pass --bucket 20000000, --bucket auto or --bucket block",
                          "--bucket: got '%s', expected block, auto or a number of parameters",
                          cfg->bucket);
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
static fsdp_status parse_recompute(trainer_config *cfg, int n_blocks)
{
    recompute_spec *spec = &cfg->recompute;
    char words[64], *rest = words; /* a longer text has unknown or repeated words */
    bool is_known = true;
    if (!cfg->checkpointing)
        return FSDP_OK;
    *spec = (recompute_spec){RECOMPUTE_NOTHING, NOT_GIVEN, NOT_GIVEN};
    cfg->recompute_auto = strcmp(cfg->checkpointing, "auto") == 0;
    snprintf(words, sizeof words, "%s", cfg->recompute_auto ? "block" : cfg->checkpointing);
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
                      cfg->checkpointing, n_blocks - 1);
}

/* ---- model and batch ------------------------------------------------------------------------- */

static void set_if_given(int64_t given, size_t *field)
{
    if (given > 0)
        *field = (size_t)given;
}

/* Set the sizes in *mc that options give. */
static fsdp_status set_sizes(const trainer_config *cfg, model_config *mc)
{
    const int number = cfg->family > 0 ? cfg->family - 1 : 0; /* 0 is auto */
    const char *family = cfg->init_from ? mc->family : model_family_at(number)->name;
    if (cfg->size || !cfg->init_from)
        TRY(model_preset(family, cfg->size, mc));
    if (cfg->d_model > 0 && !cfg->init_from)
        mc->d_ff = 0; /* model_complete computes it unless --d-ff is given */
    if (cfg->n_head > 0 && !cfg->init_from)
        mc->n_kv_head = 0;
    set_if_given(cfg->n_blocks, &mc->n_blocks);
    set_if_given(cfg->n_head, &mc->n_head);
    set_if_given(cfg->d_model, &mc->d_model);
    set_if_given(cfg->n_kv_head, &mc->n_kv_head);
    set_if_given(cfg->d_ff, &mc->d_ff);
    set_if_given(cfg->vocab_size, &mc->vocab_size);
    set_if_given(cfg->n_positions, &mc->max_seq_len);
    return FSDP_OK;
}

static const char SIZES_HINT[] = "leave the options of size out, or pass other weights";

/* Check that options of size only repeat the config.json of --init-from. */
static fsdp_status check_sizes(const trainer_config *cfg, const model_config *is)
{
    model_config asked = *is;
    if (cfg->family > 0 && strcmp(model_family_at(cfg->family - 1)->name, is->family) != 0)
        return fsdp_error(FSDP_EINVAL, "leave --model out, or pass other weights",
                          "--model: got %s, expected %s, which %s/config.json has",
                          model_family_at(cfg->family - 1)->name, is->family, cfg->init_from);
    if (set_sizes(cfg, &asked) != FSDP_OK) /* there is no such --size */
        return fsdp_error(FSDP_EINVAL, SIZES_HINT, "%s", fsdp_error_get()->what);
    const struct {
        const char *option;
        size_t got, expected;
    } sizes[] = {{"n-layer", asked.n_blocks, is->n_blocks},
                 {"n-head", asked.n_head, is->n_head},
                 {"n-kv-head", asked.n_kv_head, is->n_kv_head},
                 {"d-model", asked.d_model, is->d_model},
                 {"d-ff", asked.d_ff, is->d_ff},
                 {"vocab-size", asked.vocab_size, is->vocab_size},
                 {"n-positions", asked.max_seq_len, is->max_seq_len}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].got != 0 && /* 0 follows from other sizes */
            sizes[i].got != sizes[i].expected)
            return fsdp_error(FSDP_EINVAL, SIZES_HINT,
                              "--%s%s: got %zu, expected %zu, which %s/config.json has",
                              sizes[i].option, cfg->size ? " or --size" : "", sizes[i].got,
                              sizes[i].expected, cfg->init_from);
    return FSDP_OK;
}

static fsdp_status resolve_model(trainer_config *cfg, model_config *mc)
{
    if (cfg->init_from)
        TRY(import_model_config(cfg->init_from, mc, &cfg->init_note));
    TRY(cfg->init_from ? check_sizes(cfg, mc) : set_sizes(cfg, mc));
    TRY(model_complete(mc));
    if (model_family_find(mc->family)->is_images)
        cfg->train.seq_len = 1;
    const long long seq_len = cfg->train.seq_len;
    if ((size_t)seq_len <= mc->max_seq_len)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL,
                      cfg->init_from ? "pass a smaller --seq-len, or other weights"
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
static fsdp_status check_batch(const trainer_config *cfg)
{
    const long long batch = cfg->train.batch_size, seq_len = cfg->train.seq_len;
    const bool is_late = cfg->no_sync == NO_SYNC_ALL;
    const long long leaves = is_late ? batch * cfg->train.grad_accum : batch;
    if (batch > MAX_BATCH || batch * seq_len > MAX_TOKENS)
        return fsdp_error(FSDP_EINVAL, "pass a smaller --batch-size and a larger --grad-accum",
                          "--batch-size: got %lld sequences of %lld tokens, expected at most %d "
                          "sequences and %d tokens",
                          batch, seq_len, MAX_BATCH, MAX_TOKENS);
    if (cfg->reduction == GRAD_ACC_CANONICAL && (leaves & (leaves - 1)) != 0)
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

/* A number in the text of an option. */
typedef struct part {
    double *at, min, max;
} part;

/* Parse numbers with the character `between` between them: "12.5e9,20e-6" or "3:1.5". */
static bool parse_parts(const char *text, char between, const part *parts, int n)
{
    for (int i = 0; i < n; i++) {
        char word[64];
        const char *end = i + 1 < n ? strchr(text, between) : text + strlen(text);
        if (!end || end - text >= (ptrdiff_t)sizeof word)
            return false;
        snprintf(word, sizeof word, "%.*s", (int)(end - text), text);
        if (!options_number(word, parts[i].min, parts[i].max, parts[i].at))
            return false;
        text = end + 1;
    }
    return true;
}

#define RATE    LEAST_BYTES_PER_S, MOST_BYTES_PER_S
#define LATENCY 0, MOST_LATENCY_S

/* Parse the options of numbers about the machine of a plan. */
static fsdp_status parse_machine(trainer_config *cfg)
{
    const part link[] = {{&cfg->link_bytes_per_s, RATE}, {&cfg->link_latency_s, LATENCY}};
    const part copies[] = {{&cfg->upload_bytes_per_s, RATE},
                           {&cfg->download_bytes_per_s, RATE},
                           {&cfg->copy_latency_s, LATENCY}};
    char ranges[96];
    snprintf(ranges, sizeof ranges, "bytes/s from %g to %g and seconds up to %g", LEAST_BYTES_PER_S,
             MOST_BYTES_PER_S, MOST_LATENCY_S);
    if (cfg->plan_link && !parse_parts(cfg->plan_link, ',', link, 2))
        return fsdp_error(
            FSDP_EINVAL, "pass bytes per second and seconds: --plan-link 12.5e9,20e-6",
            "--plan-link: got '%s', expected RATE,LATENCY, %s", cfg->plan_link, ranges);
    if (cfg->plan_copies && !parse_parts(cfg->plan_copies, ',', copies, 3))
        return fsdp_error(
            FSDP_EINVAL, "pass bytes per second, twice, and seconds: --plan-copies 25e9,25e9,1e-5",
            "--plan-copies: got '%s', expected UP,DOWN,LATENCY, %s", cfg->plan_copies, ranges);
    return FSDP_OK;
}

static fsdp_status resolve_plan(trainer_config *cfg)
{
    const int w = cfg->n_ranks;
    if (cfg->plan_rank < 0)
        cfg->plan_rank = 0;
    if (cfg->plan_rank >= w)
        return fsdp_error(FSDP_EINVAL, "ranks count from 0; --plan-ranks says how many there are",
                          "--plan-rank: got %lld, expected less than %d", (long long)cfg->plan_rank,
                          w);
    return parse_machine(cfg);
}

int trainer_config_shard_size(const trainer_config *cfg)
{
    if (cfg->parallel != PARALLEL_FSDP)
        return 1;
    return sharding_shard_size((sharding_strategy)cfg->sharding, cfg->n_ranks, (int)cfg->fsdp_size);
}

static void set_default(double *field, double value)
{
    *field = *field == NOT_GIVEN ? value : *field;
}

/* Fill in the numbers that were not given with the defaults of the optimizer. */
static void resolve_recipe(train_config *c, int optimizer)
{
    set_default(&c->min_lr, 1e-4);
    set_default(&c->lr_gamma, 0.1);
    set_default(&c->weight_decay, optimizer == OPTIMIZER_ADAMW ? 0.1 : 0);
    set_default(&c->eps, optimizer == OPTIMIZER_ADADELTA ? 1e-6 : 1e-8);
}

#define LINK_OR_RANKS "--plan-link RATE,LATENCY or several ranks, which measure their link"

/* Refuse options that lack what depends on the number of ranks; rows have all other needs. */
static fsdp_status check_needs(const trainer_config *c, int world_size)
{
    const bool has_replicas = c->parallel == PARALLEL_FSDP && c->sharding == SHARDING_HYBRID &&
                              trainer_config_shard_size(c) < c->n_ranks;
    const bool measures_link = world_size > 1 && !c->plan_prices;
    const bool has_link =
        c->n_ranks == 1 || c->plan_link || measures_link || c->plan_device >= PLAN_FIRST_DEVICE;
    if (c->no_sync == NO_SYNC_REPLICAS && (!has_replicas || c->reduction == GRAD_ACC_CANONICAL))
        return options_lack(
            "--no-sync=replicas",
            "--reduction fast and --sharding hybrid --fsdp-size N, of several groups");
    if (c->plan_prices && !has_link)
        return options_lack("--plan-prices", "--plan-link RATE,LATENCY");
    if (c->plan_device == PLAN_THIS_DEVICE && !has_link)
        return options_lack("--plan-device this", LINK_OR_RANKS);
    return c->bucket_auto && !has_link ? options_lack("--bucket auto", LINK_OR_RANKS) : FSDP_OK;
}

/* Check the sizes of shard groups and near groups, and the batch. */
fsdp_status trainer_config_check(const trainer_config *cfg)
{
    const char *option = cfg->plan_fsdp_size > 0 ? "--plan-fsdp-size" : "--fsdp-size";
    const int w = cfg->n_ranks, s = trainer_config_shard_size(cfg);
    const long long near = cfg->reshard_to;
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
    return check_batch(cfg);
}

fsdp_status trainer_config_resolve(trainer_config *cfg, int world_size, model_config *model_cfg)
{
    cfg->keeps_grads = cfg->digests != NULL;
    cfg->n_ranks = cfg->plan_ranks > 0 ? (int)cfg->plan_ranks : world_size;
    TRY(parse_wrap(cfg));
    TRY(parse_bucket(cfg));
    if (cfg->plan_fsdp_size > 0) {
        cfg->fsdp_size = cfg->plan_fsdp_size;
        cfg->sharding = cfg->sharding == SHARDING_FULL ? SHARDING_HYBRID : cfg->sharding;
    }
    if (cfg->sharding == SHARDING_OPTIMIZER) {
        const bool is_fsdp = cfg->parallel == PARALLEL_FSDP;
        cfg->sharding = SHARDING_GRAD_OP;
        cfg->no_sync = is_fsdp && cfg->no_sync == NO_SYNC_OFF ? NO_SYNC_ALL : cfg->no_sync;
        cfg->reshard_after = is_fsdp ? RESHARD_AFTER_STEP : cfg->reshard_after;
    }
    if (cfg->eval_only)
        cfg->train.steps = 0;
    cfg->is_timed = cfg->plan_device != PLAN_NO_DEVICE || cfg->plan_prices || cfg->bucket_auto;
    cfg->forward_only =
        cfg->train.steps == 0 && !cfg->save_dir && !cfg->export_optimizer && !cfg->is_timed;
    TRY(check_needs(cfg, world_size));
    resolve_recipe(&cfg->train, cfg->optimizer);
    TRY(resolve_plan(cfg));
    TRY(resolve_model(cfg, model_cfg));
    TRY(parse_recompute(cfg, (int)model_cfg->n_blocks));
    if (cfg->parallel == PARALLEL_SINGLE && cfg->n_ranks > 1)
        return fsdp_error(FSDP_EINVAL, "run build/fsdp_train --parallel single without a launcher",
                          "--parallel single: got %d ranks, expected 1", cfg->n_ranks);
    TRY(resolve_batch(&cfg->train, cfg->n_ranks));
    TRY(trainer_config_check(cfg));
    /* Measured (make bench BENCH=overlap): with shared memory, and all cores computing, a step with
     * `both` takes from 4% more to 9% less time than with `none`; over 1 Gbit/s a quarter less. */
    cfg->prefetch_auto = cfg->prefetch == PREFETCH_AUTO;
    if (cfg->prefetch_auto)
        cfg->prefetch = cfg->n_ranks > 1 ? PREFETCH_BOTH : PREFETCH_NONE;
    TRY(trainer_check_change(cfg->resume_change));
    if (!cfg->forward_only)
        return FSDP_OK;
    cfg->recompute = (recompute_spec){RECOMPUTE_NOTHING, 0, 1};
    cfg->recompute_auto = cfg->prefetch_auto = false;
    cfg->prefetch = PREFETCH_NONE;
    cfg->resume_change = TRAINER_MAY_CHANGE; /* only the weights of the saved run are used */
    return FSDP_OK;
}
