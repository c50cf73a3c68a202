/* matrix_table_lib.c -- see matrix_table_lib.h. */
#include "tests/equivalence/matrix_table_lib.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "common/base/status.h"

const char MATRIX_BASE[] = "--synthetic 4096 --steps 4 --lr 3e-3 --warmup-steps 0 --check-order";

/* clang-format off */
const matrix_axis MATRIX_AXES[] = {
    {"reduction", MATRIX_RECIPE, {"--reduction canonical", "--reduction fast"}},
    {"strategy", MATRIX_TRIPLES, {"--sharding full", "--sharding grad-op", "--sharding none",
                                  "--sharding hybrid --fsdp-size %G", "--parallel ddp", "--sharding optimizer"}},
    {"layout", MATRIX_TRIPLES, {"--layout flat", "--layout per-param"}},
    {"prefetch", MATRIX_TRIPLES, {"--prefetch none", "--prefetch backward", "--prefetch backward-post",
                                  "--prefetch forward", "--prefetch both"}},
    {"recompute", MATRIX_TRIPLES, {"", "--gradient-checkpointing", "--gradient-checkpointing=attention,from:1",
                                   "--gradient-checkpointing=mlp,every:2", "--gradient-checkpointing=from:1"}},
    {"loss", MATRIX_FAST_RECIPE, {"", "--chunk-loss=5", "--chunk-loss=19", "--chunk-loss"}},
    {"no_sync", MATRIX_TRIPLES, {"", "--no-sync"}},
    {"reshard", 0, {"", "--reshard-after step", "--reshard-to %d"}},
    {"offload", 0, {"", "--optimizer-offload --offload-piece 0.02", "--cpu-offload --offload-piece 0.02", "--cpu-offload"}},
    {"freeze", MATRIX_RECIPE, {"", "--freeze transformer.w*,*.h.0.*,*.h.1.attn.*,*.h.1.ln_1.*", "--freeze *.bias",
                               "--freeze *.mlp.*,lm_head.weight"}},
    {"wrap", 0, {"--wrap block", "--wrap sub-block", "--wrap size:20000", "--wrap model"}},
    {"limit", 0, {"--limit-all-gathers 2", "--limit-all-gathers 1"}},
    {"bucket", 0, {"--bucket block", "--bucket 60000", "--bucket 1000000000"}},
    {"parameters", MATRIX_RECIPE, {"--param-dtype fp32", "--param-dtype bf16"}},
    {"sums", MATRIX_RECIPE, {"--reduce-dtype fp32", "--reduce-dtype bf16"}},
    {"optimizer", MATRIX_RECIPE, {"--optimizer adamw", "--optimizer sgd --lr 0.5", "--optimizer sgd --momentum 0.9 --lr 0.1",
                                  "--optimizer sgd --momentum 0.9 --nesterov --weight-decay 0.1 --lr 0.1",
                                  "--optimizer adadelta --lr 1"}},
    {"schedule", MATRIX_RECIPE, {"", "--lr-schedule linear", "--lr-schedule step --lr-step-size 2", "--lr-schedule constant"}},
    {"clip", MATRIX_RECIPE, {"--clip-grad 0.5", "--clip-grad 0"}},
    {"batch", 0, {"--batch-size 2 --grad-accum 4", "--batch-size 4 --grad-accum 2", "--batch-size 1 --grad-accum 8",
                  "--batch-size 8 --grad-accum 1", "--batch-size 2 --grad-accum 3"}},
    {"model", MATRIX_RECIPE, {"--seq-len 16", "--n-layer 3 --d-model 34 --n-head 2 --vocab-size 131 --seq-len 13", "%M",
                              "--model llama --n-head 3 --n-kv-head 1 --d-model 36 --seq-len 11",
                              "--model mnist --size tiny"}},
    {"evaluation", MATRIX_RECIPE, {"", "--val-data LICENSE --eval-every 1"}},
    {"maths", MATRIX_RECIPE, {"--ops fast", "--ops portable"}},
    {"digests", 0, {"", "--digests %Tdigests"}},
    {"files", 0, {"", "--seed 2 --init-from %Tweights --export %Texport", "--export %Texport --export-init %Tinit",
                   "--save %Tsaved --stop-after 2", "--save %Tsaved --save-every 1 --save-async"}},
    {"transport", MATRIX_COSTLY, {"--comm auto", "--comm shm", "--comm mpi"}},
    {"host", 0, {"", "FSDP_ASYNC_COMPUTE=1", "FSDP_SCHEDULE=%S", "FSDP_HOST_SYNC=1"}},
    {"memory", 0, {"", "FSDP_DEBUG_FILL=1"}},
    {"threads", 0, {"OMP_NUM_THREADS=1", "OMP_NUM_THREADS=2"}},
    {0}};
/* clang-format on */

static int smallest_divisor(int world_size)
{
    for (int s = 2; s < world_size; s++)
        if (world_size % s == 0)
            return s;
    return 2;
}

static bool has_no_groups(const matrix_place *at)
{
    return at->world_size > 1 && at->world_size % matrix_group_size(at->world_size) != 0;
}

/* A shard group of all ranks cannot be divided into several groups of %d ranks. */
static bool has_no_near(const matrix_place *at)
{
    const int near = smallest_divisor(at->world_size);
    return at->world_size == 1 || near >= at->world_size || at->world_size % near != 0;
}

static bool has_no_near_hybrid(const matrix_place *at)
{
    const int near = smallest_divisor(at->world_size), group = matrix_group_size(at->world_size);
    return !has_no_near(at) && (near >= group || group % near != 0);
}

static bool has_groups(const matrix_place *at)
{
    return at->world_size > 1 && !has_no_groups(at);
}

static bool has_near(const matrix_place *at)
{
    return !has_no_near(at);
}

static bool has_ranks(const matrix_place *at)
{
    return at->world_size > 1;
}

static bool has_no_portable(const matrix_place *at)
{
    return !at->has_portable;
}

static bool has_portable(const matrix_place *at)
{
    return at->has_portable;
}

static bool has_no_mpi(const matrix_place *at)
{
    return at->no_mpi;
}

static bool has_host_memory(const matrix_place *at)
{
    return strcmp(at->device, "cpu") == 0;
}

static bool has_own_memory(const matrix_place *at)
{
    return !has_host_memory(at);
}

const matrix_refusal MATRIX_REFUSALS[] = {
    {"--*-offload*", NULL, "pass --device separate", has_host_memory},
    {"--*-offload*", "--sharding none", "a --sharding that shards", has_own_memory},
    {"--*-offload*", "--parallel ddp", "a --sharding that shards", has_own_memory},
    {"--sharding hybrid*", NULL, "a shard group's size that divides the number", has_no_groups},
    {"--ops portable", NULL, "--ops fast", has_no_portable},
    {"--comm mpi", NULL, "fsdp_run", has_no_mpi},
    {"--reshard-to %d", NULL, "pass the ranks of a host", has_no_near},
    {"--reshard-to %d", "--sharding hybrid*", "pass the ranks of a host", has_no_near_hybrid},
    {"--reshard-to %d", "--sharding grad-op", "--sharding full or hybrid", has_near},
    {"--reshard-to %d", "--sharding none", "--sharding full or hybrid", has_near},
    {"--reshard-to %d", "--sharding optimizer", "--sharding full or hybrid", has_near},
    {"--reshard-to %d", "--parallel ddp", "--sharding full or hybrid", has_near},
    {"--reshard-to %d", "--reshard-after step",
     "--sharding full or hybrid, and --reshard-after use", has_near},
    {"--reshard-after step", "--sharding none", "leave --reshard-after step out", NULL},
    {"--reshard-after step", "--parallel ddp", "leave --reshard-after step out", NULL},
    {"--no-sync", "--batch-size 2 --grad-accum 3", "power of two", NULL},
    {"--sharding optimizer", "--batch-size 2 --grad-accum 3", "power of two", NULL},
    {"--no-sync=replicas", NULL, "--sharding hybrid --fsdp-size N", NULL},
    {"--no-sync=replicas", "--sharding hybrid*", "--reduction fast and", has_groups},
    {"--gradient-checkpointing=block,mlp", NULL, "such as mlp,from:1", NULL},
    {"--gradient-checkpointing=from:0,from:1", NULL, "such as mlp,from:1", NULL},
    {"--gradient-checkpointing=mlp,", NULL, "such as mlp,from:1", NULL},
    {"--gradient-checkpointing=from:+1", NULL, "such as mlp,from:1", NULL},
    {"--layout per-param", "--parallel ddp", "or leave --layout per-param out", NULL},
    {"--no-sync=replicas", "--parallel ddp", "or leave --no-sync=replicas out", NULL},
    {"--gradient-checkpointing=from:99", NULL, "such as mlp,from:1", NULL},
    {"--gradient-checkpointing=every:99", NULL, "some of blocks 0 to 1", NULL},
    {"--gradient-checkpointing=every:2,from:1", "--n-layer 1", "some of blocks 0 to 0", NULL},
    {"--gradient-checkpointing=every:2,from:2", "--n-layer 3", "such as mlp,from:1", NULL},
    {"--gradient-checkpointing=heads", NULL, "expected auto, or block", NULL},
    {"--freeze nothing", NULL, "transformer.", NULL},
    {"--model mnist*", NULL, "has no operation", has_no_portable}, /* an NPU: no convolution */
    {"--model mnist*", "--gradient-checkpointing=attention*", "leave attention and mlp out", NULL},
    {"--model mnist*", "--gradient-checkpointing=mlp,every*", "leave attention and mlp out", NULL},
    {"--model mnist*", "--freeze transformer*", "conv1.weight", NULL},
    {"--model mnist*", "--freeze *.mlp*", "conv1.weight", NULL},
    {"--model mnist*", "--seed 2*", NULL, NULL}, /* the seed orders images and drops elements */
    {"--model mnist*", "--val-data LICENSE*", "MNIST's files", has_portable}, /* a text */
    {"--model llama*", "--freeze transformer*", "model.", NULL},              /* names of GPT-2's */
    {"--model llama*", "--freeze [*].bias", "model.", NULL},                  /* it has none */
    {"--digest-values 0:h.0", NULL, "pass --digests FILE", NULL},
    {"--parallel single", NULL, "--parallel single without a launcher", has_ranks},
    {"--sharding hybrid --fsdp-size 1", NULL, "--sharding none, which replicates", has_ranks},
    {"--comm self", NULL, "leave --comm out", has_ranks},
    {"--sharding hybrid", NULL, "pass --fsdp-size N", NULL},
    {"--sharding [!h]*", "--fsdp-size 2", "pass --sharding hybrid", NULL},
    {"--reduction canonical", "--batch-size 3", "--batch-size 4 --grad-accum 8", NULL},
    {"--data LICENSE", NULL, "leave --data out", NULL}, /* MATRIX_BASE has --synthetic */
    {"--resume auto", NULL, "pass --save DIR", NULL},
    {"--save-async", NULL, "pass --save DIR", NULL},
    {0}};

int matrix_group_size(int world_size)
{
    for (int s = world_size / 2; s > 1; s--)
        if (world_size % s == 0)
            return s;
    return world_size == 1 ? 1 : 2;
}

/* Unusual shapes: heads of odd widths, and sequences that are no multiple of a kernel's block. */
static int write_model(int number, char *out, int chars)
{
    const uint64_t x = ((uint64_t)number * 0x9E3779B97F4A7C15u) >> 8;
    const int layers = 2 + (int)(x % 2), heads = 1 + (int)(x / 3 % 4);
    const int width = 3 + (int)(x / 12 % 15);
    return snprintf(out, (size_t)chars,
                    "--n-layer %d --n-head %d --d-model %d --vocab-size %d --seq-len %d", layers,
                    heads, heads * width, 128 + (int)(x / 180 % 129), 3 + (int)(x / 23220 % 22));
}

static int write_mark(char mark, const matrix_place *at, int number, const char *folder, char *out,
                      int chars)
{
    switch (mark) {
    case 'W':
        return snprintf(out, (size_t)chars, "%d", at->world_size);
    case 'G':
        return snprintf(out, (size_t)chars, "%d", matrix_group_size(at->world_size));
    case 'd':
        return snprintf(out, (size_t)chars, "%d", smallest_divisor(at->world_size));
    case 'S':
        return snprintf(out, (size_t)chars, "%d", number);
    case 'T':
        return snprintf(out, (size_t)chars, "%s/%d-", folder, number);
    default:
        FSDP_ASSERT_EQ(mark, 'M');
        return write_model(number, out, chars);
    }
}

void matrix_write(const char *words, const matrix_place *at, int number, const char *folder,
                  char *out, int chars)
{
    int used = 0;
    for (const char *c = words; *c; c++) {
        if (*c == '%')
            used += write_mark(*++c, at, number, folder, out + used, chars - used);
        else
            out[used++] = *c;
        FSDP_ASSERT(used < chars);
    }
    out[used] = '\0';
}
