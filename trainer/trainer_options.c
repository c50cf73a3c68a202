/* trainer_options.c -- see trainer_options.h. */
#include "trainer/trainer_options.h"
#include <string.h>
#include "common/comm/transport/transport.h"
#include "common/data/data.h"
#include "common/model/family.h"
#include "common/simulate/virtual_time.h"
#include "common/ops/backends.h"
#include "common/ops/optimizers.h"
#include "lab5_prefetch/prefetch.h"

#define DTYPES "fp32|bf16" /* as dtype counts them */

/* The type of an option's field determines the option's kind. */
#define OPTION(text, field)                                                                        \
    .name = text, .offset = offsetof(trainer_options, field),                                       \
    .kind = _Generic(((trainer_options *)NULL)->field, int64_t: OPT_INT, double: OPT_DOUBLE,        \
                     const char *: OPT_STRING, bool: OPT_BOOL, int: OPT_ENUM)

/* Which optimizers have an option, from their rows in update_rules.h; adamw, which has no row, is
 * first in each list. */
#define WORDS_0(...)
#define WORDS_1(...)                                   __VA_ARGS__
#define BETAS(kind, op, betas, ...)                    WORDS_##betas("|optimizer=" #op)
#define EPS(kind, op, betas, reads_eps, ...)           WORDS_##reads_eps("|optimizer=" #op)
#define DEFAULTS(kind, op, betas, reads_eps, eps, ...) WORDS_##reads_eps("; " #op " " #eps)

/* clang-format off */
const option_spec TRAINER_OPTIONS[] = {
    {OPTION("parallel", parallel), .def = "fsdp", .choices = "single|ddp|fsdp", .group = "Parallelism", .help = "one device, replicated parameters, or sharded ones"},
    {OPTION("sharding", sharding), .def = "full", .choices = "full|grad-op|none|hybrid|optimizer",
     .needs = {{.rule = "fsdp-size|plan-fsdp-size", .says = "--fsdp-size N", .at = "hybrid"}},
     .help = "reshard after forward (ZeRO-3), after backward (ZeRO-2), never, as full inside groups of --fsdp-size, or after the step "
             "(ZeRO-1: whole gradients, reduced once a step)"},
    {OPTION("fsdp-size", fsdp_size), .needs = {{.rule = "sharding=hybrid"}}, .max = 65536, .help = "ranks of a shard group with --sharding hybrid; shard groups replicate each other"},
    {OPTION("tp", tp), .def = "1", .min = 1, .max = 128, .needs = {{.rule = "tp=1|parallel=fsdp", .says = "--parallel fsdp"}},
     .help = "tensor parallelism: this many neighbouring ranks share out the blocks of every matrix (1: none)"},
    {OPTION("tp-blocks", tp_blocks), .fact = "tp-blocks", .max = 128,
     .help = "blocks of heads, of MLP columns and of the vocabulary; a sum over blocks has the same bits on any --tp that divides their number "
             "(0: --tp)"},
    {OPTION("sequence-parallel", sequence_parallel), .needs = {{.rule = "tp!=1", .says = "--tp N"}},
     .help = "cut norms and the arrays between layers by tokens among the tp ranks: the same bits in less memory"},
    {OPTION("no-sync", no_sync), .def = "off", .bare = "all", .choices = "off|all|replicas",
     .help = "reduce gradients once a step, after its last micro-step, with all ranks or, inside shard groups as before, with replicas "
             "(alone: all)"},
    {OPTION("reshard-after", reshard_after), .def = "use", .choices = "use|step",
     .needs = {{.rule = "parallel=fsdp&sharding!=none", .says = "--parallel fsdp and a --sharding that reshards", .at = "step"}},
     .help = "when gathered units are freed: as --sharding says, or after the step's last micro-step, so that a step gathers once"},
    {OPTION("reshard-to", reshard_to), .min = 2, .max = 65536,
     .needs = {{.rule = "parallel=fsdp&sharding=full|sharding=hybrid&reshard-after=use",
                .says = "--parallel fsdp, --sharding full or hybrid, and --reshard-after use (hybrid: with --fsdp-size N)"}},
     .help = "after forward keep each unit once in every N neighbouring ranks, which gather it for backward among themselves (hpZ)"},
    {OPTION("optimizer-offload", optimizer_offload), .needs = {{.rule = "parallel=fsdp&sharding!=none", .says = "--parallel fsdp and a --sharding that shards"}},
     .help = "keep the optimizer's states in host memory, and stream them through the device in the update"},
    {OPTION("cpu-offload", cpu_offload), .needs = {{.rule = "parallel=fsdp&sharding!=none", .says = "--parallel fsdp and a --sharding that shards"}},
     .help = "keep parameter shards, sums of gradients and the optimizer's states in host memory; the device holds only what it computes with"},
    {OPTION("offload-piece", offload_piece_mib), .needs = {{.rule = "optimizer-offload|cpu-offload"}}, .def = "32", .min = 1.0 / 1024, .max = 1 << 20, .arg = "MiB",
     .help = "memory of one piece of offloaded arrays; two are on the device at a time"},
    {OPTION("wrap", wrap), .def = "block", .arg = "POLICY", .help = "units: " WRAP_POLICIES(", ", "size:N (at least N elements)", " or ")},
    {OPTION("layout", layout), .def = "flat", .choices = "flat|per-param", .needs = {{.rule = "parallel=fsdp", .at = "per-param"}},
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
    {OPTION("reduction", reduction), .fact = "reduction", .def = "fast", .choices = "fast|canonical", .help = "canonical: the same bits on any number of ranks"},
    {OPTION("param-dtype", param_dtype), .fact = "param-dtype", .def = "fp32", .choices = DTYPES,
     .help = "bf16: gather and compute with parameters in bf16 and keep activations in bf16; masters stay fp32"},
    {OPTION("reduce-dtype", reduce_dtype), .fact = "reduce-dtype", .def = "fp32", .choices = DTYPES,
     .help = "bf16: gradients are sent and summed in bf16, on one rank too"},
    {OPTION("device", device), .def = "cpu", .choices = BACKEND_CHOICES, .help = BACKEND_HELP},
    {OPTION("device-memory", device_memory_mib), .max = 1LL << 40, .arg = "MiB", .help = "limit of the device memory of one rank (0: all that is free)"},
    {OPTION("comm", comm), .def = "auto", .choices = "auto|self|mpi|shm|nccl|hccl",
     .help = "transport between ranks (auto: the device's own, nccl or hccl; without one shm inside hosts, mpi between them)"},
    {OPTION("ops", ops), .def = "fast", .choices = "fast|portable", .help = "maths: vector code and oneDNN, or plain C with the same bits on every machine"},
    {OPTION("model", family), .fact = "model", .def = "auto", .choices = "auto|" MODEL_FAMILIES, .group = "Model",
     .help = "model family (auto: what --init-from has, or gpt2)"},
    {OPTION("size", size), .fact = "model", .arg = "PRESET",
     .help = "preset of the model (default: the first, or what --init-from has); an unknown name is answered with all of them"},
    {OPTION("n-layer", n_blocks), .fact = "model", .max = 1000, .help = "blocks (0: the preset's)"},
    {OPTION("n-head", n_head), .fact = "model", .max = 1000, .help = "attention heads (0: the preset's)"},
    {OPTION("n-kv-head", n_kv_head), .fact = "model", .max = 1000, .help = "llama: heads of keys and values (0: the preset's, or --n-head)"},
    {OPTION("d-model", d_model), .fact = "model", .max = 100000, .help = "width (0: the preset's)"},
    {OPTION("d-ff", d_ff), .fact = "model", .max = 1000000, .help = "MLP width (0: the preset's; with --d-model 4 times that, llama: 8/3 of it, a multiple of 256)"},
    {OPTION("vocab-size", vocab_size), .fact = "model", .max = 1000000, .help = "tokens (0: the preset's)"},
    {OPTION("n-positions", n_positions), .fact = "model", .max = 1048576, .help = "rows of the position table, the longest --seq-len (0: the preset's)"},
    {OPTION("seq-len", seq_len), .fact = "seq-len", .def = "64", .min = 1, .max = 1048576, .group = "Training", .help = "tokens of a sequence"},
    {OPTION("batch-size", batch_size), .fact = "global-batch", .max = MAX_BATCH, .help = "sequences per rank and micro-step (0: 4, or what fits --global-batch)"},
    {OPTION("grad-accum", grad_accum), .fact = "global-batch", .max = 1048576, .help = "micro-steps per step (0: 1, or what fits --global-batch)"},
    {OPTION("global-batch", global_batch), .fact = "global-batch", .max = 1073741824, .help = "sequences per step over all ranks (0: from the two above)"},
    {OPTION("steps", steps), .fact = "schedule", .def = "20", .max = 1e9, .help = "optimizer steps"},
    {OPTION("seed", seed), .fact = "seed", .def = "1", .max = 9e15, .help = "of the initial weights; mnist: also of the order of images and of dropout"},
    {OPTION("init-from", init_from), .fact = "model", .arg = "DIR",
     .help = "start from the weights of a Hugging Face model or of --export: safetensors, and config.json, which sets the size"},
    {OPTION("freeze", freeze), .fact = "freeze", .arg = "PATTERN,...", .help = "do not train parameters with such names, for example transformer.h.0.*: they are gathered, never reduced or updated"},
    {OPTION("optimizer", optimizer), .fact = "optimizer", .def = "adamw", .choices = OPTIMIZER_CHOICES, .help = "update rule; sgd: plain, or with --momentum"},
    {OPTION("lr", train.lr), .fact = "schedule", .def = "1e-3", .max = 1e3, .help = "peak learning rate"},
    {OPTION("min-lr", min_lr), .fact = "schedule", .unset = NOT_GIVEN, .max = 1e3,
     .needs = {{.rule = "lr-schedule=cosine|lr-schedule=linear"}},
     .help = "learning rate at the end of cosine and linear (default " TEXT(DEFAULT_MIN_LR) ")"},
    {OPTION("lr-schedule", train.lr_schedule), .fact = "schedule", .def = "cosine", .choices = "cosine|linear|step|constant", .needs = {{.rule = "lr-step-size", .at = "step"}},
     .help = "learning rate after the warm-up: down to --min-lr at the last step, or times --lr-gamma every --lr-step-size steps"},
    {OPTION("lr-step-size", train.lr_step_size), .fact = "schedule", .needs = {{.rule = "lr-schedule=step"}}, .max = 1e9, .help = "steps, with --lr-schedule step"},
    {OPTION("lr-gamma", lr_gamma), .fact = "schedule", .unset = NOT_GIVEN, .min = 1e-30, .max = 1,
     .needs = {{.rule = "lr-schedule=step", .says = "--lr-schedule step and --lr-step-size N"}},
     .help = "with --lr-schedule step (default " TEXT(DEFAULT_LR_GAMMA) ")"},
    {OPTION("warmup-steps", train.warmup_steps), .fact = "schedule", .def = "5", .max = 1e9, .help = "steps of linear warm-up"},
    {OPTION("weight-decay", weight_decay), .fact = "weight-decay", .unset = NOT_GIVEN, .max = 1e3,
     .help = "of matrices: decoupled with adamw (default " TEXT(ADAMW_WEIGHT_DECAY) "), else added to the gradient (default 0)"},
    {OPTION("beta1", train.beta1), .fact = "betas", .needs = {{.rule = "optimizer=adamw" UPDATE_RULES(BETAS)}}, .def = "0.9", .max = 0.999999999, .help = "decay of the average of gradients"},
    {OPTION("beta2", train.beta2), .fact = "betas", .needs = {{.rule = "optimizer=adamw" UPDATE_RULES(BETAS)}}, .def = "0.95", .max = 0.999999999, .help = "decay of the average of their squares"},
    {OPTION("eps", eps), .fact = "eps", .unset = NOT_GIVEN, .min = 1e-30, .max = 1, .needs = {{.rule = "optimizer=adamw" UPDATE_RULES(EPS)}},
     .help = "added to divisors (default " TEXT(ADAMW_EPS) UPDATE_RULES(DEFAULTS) ")"},
    {OPTION("momentum", train.momentum), .fact = "momentum", .needs = {{.rule = "optimizer=sgd"}}, .max = 0.999999999, .help = "sgd (0: none)"},
    {OPTION("nesterov", train.nesterov), .fact = "momentum", .needs = {{.rule = "momentum", .says = "--optimizer sgd and --momentum M"}},
     .help = "with --momentum: use Nesterov momentum"},
    {OPTION("rho", train.rho), .fact = "rho", .needs = {{.rule = "optimizer=adadelta"}}, .def = "0.9", .max = 0.999999999, .help = "decay of the averages of squares"},
    {OPTION("clip-grad", train.clip_grad), .fact = "clip-grad", .def = "1", .max = 1e30, .help = "global norm (0: no clipping)"},
    {OPTION("no-grad-norm", no_grad_norm),
     .needs = {{.rule = "parallel=fsdp&optimizer=sgd&!momentum&!weight-decay|weight-decay=0&!optimizer-offload&!cpu-offload",
                .says = "--parallel fsdp and --optimizer sgd, without momentum, weight decay and offload"}, {.rule = "clip-grad=0"}},
     .help = "do not compute the gradients' norm; sgd needs the norm only for clipping, so with --clip-grad 0 a step has no all-reduce"},
    {OPTION("data", data), .fact = "data", .needs = {{.rule = "synthetic=0"}}, .arg = "PATH", .group = "Data and files",
     .help = "a text file (bytes) or llm.c .bin shards (default: the system's licence texts); mnist: a folder with MNIST's files (default: digits are drawn)"},
    {OPTION("data-format", data_format), .needs = {{.rule = "data|val-data"}}, .def = "auto", .choices = CORPUS_FORMATS,
     .help = "what --data and --val-data are: bytes of a text, llm.c's shards, or tokens without a header (auto: a text or shards)"},
    {OPTION("data-mask", data_mask), .fact = "mask", .needs = {{.rule = "data"}}, .arg = "PATH",
     .help = "a byte for each token of --data: 0 if the token does not count as a target; the loss is the mean over the others"},
    {OPTION("synthetic", synthetic_tokens), .fact = "data", .max = 1e9,
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
    {OPTION("loss-csv", train.loss_csv), .arg = "FILE", .needs = {{.rule = "!eval-only", .says = "no --eval-only (which makes no steps)"}},
     .help = "step,loss,grad_norm,lr,ms; in files, steps count from 0"},
    {OPTION("export-init", export_init_dir), .arg = "DIR", .help = "write the initial weights (safetensors)"},
    {OPTION("export", export_dir), .arg = "DIR", .help = "write the trained weights (safetensors)"},
    {OPTION("export-shard-size", train.export_shard_mib), .needs = {{.rule = "export|export-init"}}, .def = "4768", .min = 1, .max = 1LL << 40, .arg = "MiB",
     .help = "size limit of a file of weights; with several files, model.safetensors.index.json says where each tensor is"},
    {OPTION("export-optimizer", export_optimizer), .arg = "FILE", .needs = {{.rule = "optimizer!=sgd|momentum", .says = "--momentum, or another --optimizer than sgd"}},
     .help = "write the full states of the optimizer (safetensors)"},
    {OPTION("save", save_dir), .arg = "DIR", .help = "write sharded checkpoints to DIR/step-N; SIGUSR1 asks for one, and SIGTERM for one and the end"},
    {OPTION("save-every", train.save_every), .needs = {{.rule = "save"}}, .max = 1e9, .help = "steps between checkpoints (0: at the end)"},
    {OPTION("save-async", train.save_async), .needs = {{.rule = "save"}},
     .help = "a step waits until its checkpoint is copied to host memory; a thread writes the copy while steps go on"},
    {OPTION("keep", keep), .needs = {{.rule = "save"}}, .def = "2", .max = 1e9, .arg = "K", .help = "checkpoints that --save leaves, the newest (0: all)"},
    {OPTION("resume", resume), .arg = "DIR|auto", .needs = {{.rule = "save", .at = "auto"}},
     .help = "go on from a checkpoint; auto: from the newest whole one of --save, if there is any"},
    {OPTION("resume-change", resume_change), .arg = "NAME,...", .needs = {{.rule = "resume", .says = "--resume DIR"}},
     .help = "what may differ from the run that saved: data, seq-len, schedule, ..."},
    {OPTION("stop-after", train.stop_after), .max = 1e9, .help = "end when N steps have been made, with the schedule of --steps (0: at the end)"},
    {OPTION("memory-report", memory_report), .arg = "FILE", .help = "peak bytes and traffic beside the planned, CSV"},
    {OPTION("profile", profile_dir), .arg = "DIR", .needs = {{.rule = "!eval-only", .says = "no --eval-only (which makes no steps)"}},
     .help = "count and time every operation after the first step: tables, pictures of steps, by rank a CSV and a trace"},
    {OPTION("snapshot", snapshot), .arg = "FILE",
     .help = "write the blocks of memory of rank 0's last step, a page for a browser, or CSV if FILE ends in .csv (with --plan: as planned)"},
    {OPTION("check-order", check_order), .help = "report work on two streams that touches the same memory while no event orders it"},
    {OPTION("digests", digests), .arg = "FILE", .needs = {{.rule = "!eval-only", .says = "no --eval-only (which makes no steps)"}},
     .help = "write hashes of parameters, layers' outputs and gradients for fsdp_compare --bisect; every step waits for the host"},
    {OPTION("digest-values", digest_values), .needs = {{.rule = "digests"}}, .arg = "STEP:UNIT", .help = "with --digests: also write the unit's elements in that step (from 0), for example 3:h.1"},
    {OPTION("print-shards", print_shards), .needs = {{.rule = "parallel=fsdp"}}, .help = "draw which rank holds which part of each parameter (with --plan: of the planned ranks)"},
    {OPTION("plan", plan), .help = "make three steps on a device that computes nothing, print memory and traffic, and stop"},
    {OPTION("plan-ranks", plan_ranks), .implies = "plan", .min = 1, .max = 1048576, .help = "--plan for a job of N ranks, from one process"},
    {OPTION("plan-fsdp-size", plan_fsdp_size), .implies = "plan", .min = 1, .max = 1048576, .arg = "S",
     .needs = {{.rule = "parallel=fsdp&sharding=full|sharding=hybrid", .says = "--parallel fsdp and --sharding full or hybrid"}},
     .help = "--plan for shard groups of S ranks"},
    {OPTION("plan-rank", plan_rank), .implies = "plan", .def = "-1", .min = -1, .max = 1048575, .arg = "R", .help = "--plan as rank R (-1: as rank 0, if it plans)"},
    {OPTION("plan-device", plan_device), .implies = "plan", .def = "none", .choices = "none|this|" VIRTUAL_DEVICE_CHOICES,
     .help = "--plan with times: of this machine, measured for half a second, or by published figures"},
    {OPTION("plan-prices", plan_prices), .implies = "plan", .needs = {{.rule = "plan-device=none"}}, .arg = "FILE", .help = "--plan with times of operations from a profile-rank-R.csv of --profile"},
    {OPTION("plan-link", plan_link), .implies = "plan", .arg = "RATE,LATENCY",
     .needs = {{.rule = "plan-device|plan-prices|bucket=auto&plan-device|plan-prices|parallel=fsdp", .says = "--plan-device NAME or --plan-prices FILE"}},
     .help = "--plan with a link of each rank, in bytes/s (1 to 1e18) and seconds (up to 1000), such as 12.5e9,20e-6"},
    {OPTION("plan-copies", plan_copies), .implies = "plan", .arg = "UP,DOWN,LATENCY",
     .needs = {{.rule = "plan-device|plan-prices|bucket=auto&plan-device|plan-prices|parallel=fsdp", .says = "--plan-device NAME or --plan-prices FILE"}},
     .help = "--plan with copies of offloaded arrays to the device and to the host, in bytes/s (1 to 1e18) and seconds (up to 1000), such as 25e9,25e9,10e-6"},
    {OPTION("plan-fit", plan_fit), .implies = "plan", .help = "--plan, then the largest batch and the fewest ranks that fit --device-memory or the --plan-device"},
    {0}};
/* clang-format on */

fsdp_status trainer_options_parse(int argc, char **argv, trainer_options *o)
{
    *o = (trainer_options){0};
    TRY(options_parse(TRAINER_OPTIONS, "build/fsdp_train", argc, argv, o));
    TRY(backend_check(o->device));
    if (o->comm < COMM_NATIVE)
        return FSDP_OK;
    /* COMM_NATIVE has several names; each is valid for some devices. */
    const backend *b = backend_of(o->device);
    const char *wanted = o->comm == COMM_NATIVE ? "nccl" : "hccl";
    const char *has = b->native != NULL ? b->native->name : "no transport of its own";
    if (strcmp(wanted, has) == 0)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, "run it with --comm auto, which takes what the device has",
                      "--comm %s: --device %s has %s", wanted, b->name, has);
}

comm_backend trainer_comm(const trainer_options *o)
{
    return o->comm > COMM_NATIVE ? COMM_NATIVE : (comm_backend)o->comm;
}
