/* lecture.c -- what overlap is worth: FSDP schedules of a 7B model on machines that are not there,
 * in virtual time.
 *
 *   lecture [--pictures]
 *
 * Nothing is measured and nothing runs but the simulator (virtual_time.h), so the figures are the
 * same everywhere. What they stand on:
 *
 *   model    of LLaMA 7B's shape: 32 blocks of 202.4 M parameters, width 4096, MLP 11008,
 * vocabulary 32000, embedding and head apart; one sequence of 4096 tokens per device compute  2
 * FLOP for a weight and token, 2 T T C for causal attention, backward twice that; H100 SXM's peak
 * of 989.4 TFLOP/s, of which half is reached; what touches memory only (embedding, AdamW: 28 bytes
 * for a parameter of the shard) at half of 3.35 TB/s network  bf16 weights are gathered, fp32
 * gradients reduced, in rings: a device sends (W-1)/W of a unit. NVLink 450 GB/s in a host of 8;
 * InfiniBand adapters of 50 GB/s, 1 to 8 of them for each host; 80 % of either is reached; 20 us a
 * collective in a host, 100 us over hosts host     50 us to issue one item (a block's kernels of
 * one pass, a collective, an event)
 *
 * Shares that are reached, and times of the host, are assumptions; peaks are those of the data
 * sheets. */
#include <stdio.h>
#include <string.h>
#include "common/base/options.h"
#include "common/observe/virtual_time_step.h"

enum { MOST_BLOCKS = 32, T = 4096, WIDTH = 4096, FF = 11008, VOCAB = 32000, COLUMNS = 88 };

static const double REACHED = 0.5, NETWORK_REACHED = 0.8;

typedef struct machine {
    const char *name;
    int n_ranks, n_adapters; /* of a host */
} machine;

typedef struct lecture_case {
    const char *name;
    virtual_prefetch prefetch;
    int limit, sync_after;
    bool one_stream, inline_compute;
} lecture_case;

/* A model on a machine. */
typedef struct setting {
    virtual_unit units[1 + MOST_BLOCKS];
    char names[MOST_BLOCKS][8];
    virtual_step_config step;
    virtual_config costs;
} setting;

static const machine MACHINES[] = {{"8 devices of one host, NVLink", 8, 8},
                                   {"128 devices, 8 adapters a host", 128, 8},
                                   {"128 devices, 4 adapters a host", 128, 4},
                                   {"128 devices, 1 adapter a host", 128, 1}};
enum { N_MACHINES = sizeof MACHINES / sizeof *MACHINES, PICTURED = 2, PICTURED_BLOCKS = 4 };

static const lecture_case CASES[] = {
    {"a  no prefetch", VIRTUAL_PREFETCH_NONE, 2, 0, false, false},
    {"b  implicit, limit 2", VIRTUAL_PREFETCH_IMPLICIT, 2, 0, false, false},
    {"b  implicit, limit 2, one stream", VIRTUAL_PREFETCH_IMPLICIT, 2, 0, true, false},
    {"c  backward, limit 2, one stream", VIRTUAL_PREFETCH_BACKWARD, 2, 0, true, false},
    {"c  both, limit 2", VIRTUAL_PREFETCH_BOTH, 2, 0, false, false},
    {"d  implicit, limit 1", VIRTUAL_PREFETCH_IMPLICIT, 1, 0, false, false},
    {"d  implicit, limit 3", VIRTUAL_PREFETCH_IMPLICIT, 3, 0, false, false},
    {"d  implicit, no limit", VIRTUAL_PREFETCH_IMPLICIT, 0, 0, false, false},
    {"d  both, limit 1, host not ahead", VIRTUAL_PREFETCH_BOTH, 1, 0, false, true},
    {"d  both, limit 2, host not ahead", VIRTUAL_PREFETCH_BOTH, 2, 0, false, true},
    {"d  both, limit 3, host not ahead", VIRTUAL_PREFETCH_BOTH, 3, 0, false, true},
    {"e  implicit, limit 2, a host sync", VIRTUAL_PREFETCH_IMPLICIT, 2, 1, false, false},
    {"e  both, limit 2, a host sync", VIRTUAL_PREFETCH_BOTH, 2, 1, false, false}};
enum { N_CASES = sizeof CASES / sizeof *CASES };

/* ---- figures -------------------------------------------------------------------------------- */

static double compute_s(const virtual_device *d, double flops, double bytes)
{
    return virtual_work_roof(d, 0, &(timeline_item){.flops = flops, .bytes = bytes});
}

static void set_network(setting *s, const machine *m, const virtual_device *d)
{
    s->costs = (virtual_config){
        .link = {.latency_s = 20e-6, .bytes_per_s = NETWORK_REACHED * d->peer_bytes_per_s},
        .host_link = {.latency_s = 100e-6,
                      .bytes_per_s = NETWORK_REACHED * m->n_adapters * d->network_bytes_per_s},
        .ranks_per_host = 8};
}

static void set_model(setting *s, const machine *m, int n_blocks, const virtual_device *d)
{
    const double products = 4.0 * WIDTH * WIDTH + 3.0 * WIDTH * FF, block = products + 2.0 * WIDTH;
    const double table = (double)VOCAB * WIDTH, root = 2 * table + WIDTH;
    const double sent = (m->n_ranks - 1.0) / m->n_ranks;
    const double block_flops = 2.0 * T * products + 2.0 * T * T * WIDTH;
    const double head_flops = 2.0 * T * table;
    s->units[0] = (virtual_unit){.name = "root",
                                 .gather_bytes = 2 * sent * root,
                                 .reduce_bytes = 4 * sent * root,
                                 .forward_s = compute_s(d, 0, 4.0 * T * WIDTH),
                                 .backward_s = compute_s(d, 0, 4 * table)};
    for (int b = 0; b < n_blocks; b++) {
        snprintf(s->names[b], sizeof s->names[b], "h.%d", b);
        s->units[1 + b] = (virtual_unit){.name = s->names[b],
                                         .gather_bytes = 2 * sent * block,
                                         .reduce_bytes = 4 * sent * block,
                                         .forward_s = compute_s(d, block_flops, 0),
                                         .backward_s = compute_s(d, 2 * block_flops, 0)};
    }
    s->step = (virtual_step_config){
        .n_ranks = m->n_ranks,
        .units = s->units,
        .n_units = 1 + n_blocks,
        .head_forward_s = compute_s(d, head_flops, 0),
        .head_backward_s = compute_s(d, 2 * head_flops, 0),
        .optimizer_s = compute_s(d, 0, 28 * (root + n_blocks * block) / m->n_ranks)};
}

static void set_up(setting *s, const machine *m, int n_blocks)
{
    const virtual_device d = virtual_device_h100(REACHED);
    set_network(s, m, &d);
    set_model(s, m, n_blocks, &d);
}

static void set_case(setting *s, const lecture_case *c)
{
    s->step.prefetch = c->prefetch;
    s->step.limit = c->limit;
    s->step.sync_after = c->sync_after * s->step.n_units / 2;
    s->step.one_stream = c->one_stream;
    s->costs.inline_compute = c->inline_compute;
}

/* ---- tables --------------------------------------------------------------------------------- */

static void print_head(const setting *s, const machine *m)
{
    const virtual_unit *block = &s->units[1];
    virtual_link link = m->n_ranks > s->costs.ranks_per_host ? s->costs.host_link : s->costs.link;
    printf("\n%s. A block in ms: forward %.2f, backward %.2f, gather %.2f, reduction %.2f\n\n",
           m->name, 1e3 * block->forward_s, 1e3 * block->backward_s,
           1e3 * virtual_link_s(link, block->gather_bytes),
           1e3 * virtual_link_s(link, block->reduce_bytes));
    printf("| %-34s | step ms | exposed ms | %% of step | units held |\n"
           "|------------------------------------|--------:|-----------:|----------:|"
           "-----------:|\n",
           "schedule");
}

static fsdp_status print_table(const machine *m)
{
    setting s;
    virtual_figures f = {0};
    set_up(&s, m, MOST_BLOCKS);
    print_head(&s, m);
    for (int k = 0; k < N_CASES; k++) {
        set_case(&s, &CASES[k]);
        TRY(virtual_step_predict(&s.step, &s.costs, &f));
        printf("| %-34s | %7.2f | %10.2f | %9.1f | %10d |\n", CASES[k].name, 1e3 * f.step_s,
               1e3 * f.exposed_s, 100 * f.exposed_s / f.step_s, f.peak_units);
    }
    double least_s = f.compute_s + f.floor_s;
    printf("| %-34s | %7.2f | %10.2f | %9.1f | %10s |\n", "   no schedule is better than",
           1e3 * least_s, 1e3 * f.floor_s, 100 * f.floor_s / least_s, "");
    return FSDP_OK;
}

/* ---- pictures ------------------------------------------------------------------------------- */

/* What a stream does at a time: the last character of a unit's name, a dot while it waits. */
static char sign_at(const timeline_view *v, int stream, double at_s)
{
    for (int64_t i = 0; i < v->n_items; i++) {
        const timeline_item *it = &v->items[i];
        if (it->stream != stream || it->kind == TIMELINE_SYNC || it->begin_s > at_s ||
            it->end_s <= at_s)
            continue;
        if (it->kind == TIMELINE_WAIT)
            return stream == 0 ? '.' : ' ';
        return it->unit[0] ? it->unit[strlen(it->unit) - 1] : 'A';
    }
    return ' ';
}

/* In a picture a collective begins when its bytes begin to move, so that a link does one thing at a
 * time there. */
static void show_moving(virtual_result *result)
{
    for (int64_t i = 0; i < result->views[0].n_items; i++)
        if (result->views[0].items[i].kind == TIMELINE_COLLECTIVE)
            result->items[i].begin_s = result->moved_s[0][i];
}

/* The one place that draws. */
static void draw(const timeline_view *v, double end_s)
{
    for (int stream = 0; stream < v->n_streams; stream++) {
        char line[COLUMNS + 1] = {0};
        for (int x = 0; x < COLUMNS; x++)
            line[x] = sign_at(v, stream, (x + 0.5) * end_s / COLUMNS);
        printf("  %-8s%s\n", v->streams[stream], line);
    }
}

static fsdp_status print_pictures(const machine *m)
{
    printf("\n%d blocks on %s, one rank. t: root, 0 to %d: blocks, A: AdamW, dots: the compute "
           "stream waits\n",
           PICTURED_BLOCKS, m->name, PICTURED_BLOCKS - 1);
    setting s;
    set_up(&s, m, PICTURED_BLOCKS);
    double longest_s = 0; /* that of the first case */
    for (int k = 0; k < N_CASES; k++) {
        virtual_step step;
        virtual_result result;
        set_case(&s, &CASES[k]);
        TRY(virtual_step_create(&s.step, &step));
        fsdp_status status = virtual_time_run(step.views, m->n_ranks, &s.costs, &result);
        virtual_step_free(&step);
        TRY(status);
        longest_s = result.end_s > longest_s ? result.end_s : longest_s;
        printf("\n%s: %.2f ms\n", CASES[k].name, 1e3 * result.end_s);
        show_moving(&result);
        draw(&result.views[0], longest_s);
        virtual_time_free(&result);
    }
    return FSDP_OK;
}

/* ---- the program ---------------------------------------------------------------------------- */

typedef struct lecture_options {
    bool pictures;
} lecture_options;

static const option_spec OPTIONS[] = {{.name = "pictures",
                                       .kind = OPT_BOOL,
                                       .offset = offsetof(lecture_options, pictures),
                                       .group = "Output",
                                       .help = "draw each schedule, too, for a model of 4 blocks"},
                                      {0}};

static fsdp_status run(const lecture_options *o)
{
    printf("A 7B model, one sequence of %d tokens a device, on H100 SXM; by formula\n", T);
    for (int k = 0; k < N_MACHINES; k++)
        TRY(print_table(&MACHINES[k]));
    return o->pictures ? print_pictures(&MACHINES[PICTURED]) : FSDP_OK;
}

int main(int argc, char **argv)
{
    lecture_options o = {0};
    fsdp_status status = options_parse(OPTIONS, "lecture", argc, argv, &o);
    const int failed = status == FSDP_EINVAL ? 2 : 1;
    if (status == FSDP_HELP)
        status = options_print_help(OPTIONS, "lecture", "what overlap is worth, in virtual time");
    else if (status == FSDP_OK)
        status = run(&o);
    if (status != FSDP_OK)
        fsdp_error_print(stderr, 0, 0);
    return status == FSDP_OK ? 0 : failed;
}
