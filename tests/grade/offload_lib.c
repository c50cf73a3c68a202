/* offload_lib.c -- see offload_lib.h. */
#include "tests/grade/offload_lib.h"
#include <string.h>
#include <time.h>
#include "common/device/instruments/separate.h"
#include "lab2_forward/fsdp_setup.h"
#include "tests/grade/explain_lib.h"
#include "tests/unit/target_lib.h"

/* ---- what the upload stream has done --------------------------------------------------------- */

static atomic_int n_uploads;
static int n_issued;
static device_watch order_watch;

static uint64_t uploads_issued(void *self, const device_act *act)
{
    order_watch.issued(order_watch.self, act);
    const bool is_upload = act->kind == ACT_COPY && strcmp(stream_name(act->stream), "upload") == 0;
    n_issued += is_upload;
    return is_upload;
}

static void uploads_ran(void *self, const device_act *act)
{
    atomic_fetch_add(&n_uploads, 1);
}

void uploads_watch(fixture *fx)
{
    order_watch = order_check_watch(fx->g->order);
    atomic_store(&n_uploads, 0);
    n_issued = 0;
    device_set_watch(fx->dev, &(device_watch){.issued = uploads_issued, .ran = uploads_ran});
}

/* Fewer naps than the watchdog and the gate wait, so that this test says what is missing. */
void uploads_expect(fixture *fx, int n)
{
    enum { NAPS = 15000, NAP_US = 200 };
    for (int naps = 0; naps < NAPS && atomic_load(&n_uploads) < n; naps++) {
        (void)event_done(fx->f.given.offload->order); /* lets a scheduled device go on */
        nanosleep(&(struct timespec){0, NAP_US * 1000}, NULL);
    }
    const int got = atomic_load(&n_uploads);
    note(fx, EXPECT(n_issued >= n, "offload_bring each piece: it copies on `up`",
                    "offload_update: copies issued on `up`: got %d, expected %d", n_issued, n));
    note(fx, EXPECT(got == n,
                    got < n ? "`up` waits for nothing but the piece's `used`, never for compute"
                            : "the upload into a piece waits for its `used`, see offload_next",
                    "offload_update while compute stands still: copies uploaded: got %d, expected "
                    "%d: both pieces, and no more before an update has run",
                    got, n));
}

/* ---- pieces of a shard ----------------------------------------------------------------------- */

/* Gather a slice as type t. The block is longer than the slice, so a piece in the wrong place does
 * no harm. */
static fsdp_status gather_as(fixture *fx, dtype t)
{
    static float got[MAX_SHARD_ELEMS];
    static uint16_t rounded[MAX_SHARD_ELEMS];
    const size_t n = fx->f.units[UNIT_ROOT].layout.shard_elems, bytes = n * dtype_bytes(t);
    const bool is_bf16 = t == DTYPE_BF16;
    float *slice;
    TRY(device_alloc_f32(fx->compute, MEM_OTHER, 2 * n, "slice", &slice));
    TRY(stream_sync(fx->compute));
    TRY(RUNS_AHEAD(fx, "offload_gather", offload_gather(&fx->f, UNIT_ROOT, t, slice)));
    TRY(grade_read(fx->f.gather_stream, slice, bytes, is_bf16 ? (void *)rounded : got));
    for (size_t i = 0; i < n; i++) {
        const float x = fix_master(fx, UNIT_ROOT, fix_shard_begin(fx, UNIT_ROOT) + i);
        const float want = is_bf16 ? bf16_round(x) : x;
        got[i] = is_bf16 ? f32_from_bf16(rounded[i]) : got[i];
        note(fx,
             expect_f32(WHAT("offload_gather as %s: element %zu of the slice, in piece %zu of %zu",
                             is_bf16 ? "bf16" : "fp32", i, i / FLAT_ALIGN_ELEMS,
                             (n + FLAT_ALIGN_ELEMS - 1) / FLAT_ALIGN_ELEMS),
                        &got[i], &want, 1));
    }
    device_free(fx->compute, slice);
    return FSDP_OK;
}

static fsdp_status pieces_body(fixture *fx)
{
    const offload_config config = {
        .states = true, .shards = true, .piece_bytes = FLAT_ALIGN_ELEMS * sizeof(float)};
    TRY(offload_create(fx->dev, &config, &fx->f.given.offload));
    TRY(offload_open_ring(fx->f.given.offload, fsdp_most_shard_elems(&fx->f), 1));
    TRY(gather_as(fx, DTYPE_F32));
    TRY(gather_as(fx, DTYPE_BF16));
    TRY(stream_sync(fx->f.gather_stream));
    offload_free(fx->f.given.offload);
    fx->f.given.offload = NULL;
    return FSDP_OK;
}

fsdp_status offload_pieces(grade *g)
{
    static const fix_param param = {.unit = UNIT_ROOT, .elems = 397};
    static const fix_spec spec = {
        .n_units = 1, .n_params = 1, .params = &param, .used_elems = {397}, .async_compute = true};
    return fixture_run(g, &spec, pieces_body);
}

/* ---- whole runs ------------------------------------------------------------------------------ */

/* Bytes in use between steps, on the device and, by category, on the host. */
typedef struct between {
    device *dev;
    ledger_figures on_device, on_host;
} between;

static void look_between(void *ctx)
{
    between *b = ctx;
    b->on_device = ledger_read(device_ledger(b->dev));
    b->on_host = ledger_read(device_host_ledger(b->dev));
}

static const run_config BASE = {.fsdp = true,
                                .model = GPT2_CONFIG(2, 2, 24, 67, 8),
                                .mode = GRAD_ACC_CANONICAL,
                                .batch = 1,
                                .seq_len = 8,
                                .grad_accum = 3,
                                .steps = 3,
                                .lr = 1e-2,
                                .clip_norm = 0.5f,
                                .seed = 5};
enum { PIECE_BYTES = 4096 };

/* Bytes of arrays between steps, relative to the parameters' bytes without offload. */
static fsdp_status expect_between(const between *plain, const between *b, bool shards)
{
    const size_t *dev = b->on_device.issued_bytes, *host = b->on_host.issued_bytes;
    const size_t *all = plain->on_device.issued_bytes;
    const size_t params = all[MEM_PARAMS_SHARD];
    const struct {
        const char *what;
        size_t got, want;
    } rows[] = {
        {"shards on the device", dev[MEM_PARAMS_SHARD], shards ? 0 : params},
        {"shards on the host", host[MEM_PARAMS_SHARD], shards ? params : 0},
        {"moments on the host", host[MEM_OPTIMIZER], all[MEM_OPTIMIZER]},
        {"pieces between steps", dev[MEM_OPTIMIZER], shards ? 2 * PIECE_BYTES : 0},
        {"gradients on the device between steps", dev[MEM_GRADS_SHARD], 0},
        {"pieces in an update", b->on_device.issued_peak_bytes[MEM_OPTIMIZER], 2 * PIECE_BYTES}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        TRY(expect_size(WHAT("bytes of %s", rows[i].what), rows[i].got, rows[i].want));
    const size_t got = b->on_device.issued_peak_bytes[MEM_GRADS_SHARD];
    const size_t finished = all[MEM_GRADS_SHARD];
    return EXPECT(!shards || got < finished,
                  "grad_finish and grad_park one unit after the other; download each sum when it "
                  "is complete, and free it",
                  "peak of gradients on the device in a step: got %zu bytes, expected less than "
                  "all units' finished gradients, %zu",
                  got, finished);
}

static fsdp_status run_one(grade *g, run_config config, between *b, run_result *out)
{
    comm *c;
    device_config dc = {.backend = target_backend()->device,
                        .index = target_index(),
                        .n_threads = 1,
                        .debug_fill = true};
    if (device_memory_is_host(g->dev)) /* only a device with its own memory */
        dc.backend = &device_separate;
    TRY(comm_schedule_seed(&dc.schedule_seed));
    TRY(device_open(&dc, &b->dev));
    const device_watch watch = order_check_watch(g->order);
    device_set_watch(b->dev, &watch);
    const comm_config cc = target_comm(8);
    TRY(comm_open(b->dev, &cc, &c));
    config.ops = g->ops;
    config.after_step = look_between;
    config.ctx = b;
    fsdp_status status = run_training(b->dev, c, &config, out);
    comm_close(c);
    device_close(b->dev);
    return status;
}

/* One configuration three times: without offload, with the optimizer's states on the host, with
 * everything on the host. */
static fsdp_status compare_runs(grade *g, const run_config *config)
{
    run_result want, got;
    between plain, b;
    TRY(run_one(g, *config, &plain, &want));
    fsdp_status status = FSDP_OK;
    for (int shards = 0; shards < 2 && status == FSDP_OK; shards++) {
        run_config on_host = *config;
        on_host.offload =
            (offload_config){.states = true, .shards = shards == 1, .piece_bytes = PIECE_BYTES};
        TRY(run_one(g, on_host, &b, &got));
        status = expect_same_run(shards ? "states and shards on the host" : "states on the host",
                                 &got, &want, (size_t)want.steps);
        if (status == FSDP_OK)
            status = expect_between(&plain, &b, shards == 1);
        run_result_free(&got);
    }
    run_result_free(&want);
    return status;
}

fsdp_status offload_runs(grade *g)
{
    run_config config = BASE;
    TRY(compare_runs(g, &config));
    if (run_hybrid_size(g->world_size) == 0)
        return FSDP_OK;
    config.sharding = SHARDING_HYBRID;
    return compare_runs(g, &config);
}
