/* fsdp_train_main.c -- the trainer: build/fsdp_train, alone or under fsdp_run or an MPI launcher.
 *
 * All ranks agree on errors before training and on errors of files: rank 0 prints one message, and
 * all ranks exit in order. Any other error during training may be one rank's own: that rank prints
 * the message and aborts the job. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#include "common/base/environment.h"
#include "common/base/openmp_settings.h"
#include "common/steps/train_export.h"
#include "common/model/family.h"
#include "trainer/trainer.h"
#include "trainer/uncaught.h"

enum { BY_SIGTERM = 128 + SIGTERM }; /* the exit status that a shell reports */

static void print_head(const trainer *t, bool was_done)
{
    const trainer_options *o = t->opt;
    const trainer_config *c = &t->cfg;
    printf("%s: %s %s, %zu parameters%s, %d rank%s, reduction %s%s, ops %s\n",
           TRAINER_WORD("parallel", c->parallel), t->model_cfg.family,
           o->size        ? o->size
           : o->init_from ? o->init_from
                          : t->m.family->presets[0].name,
           t->m.n_param_elems, o->param_dtype == DTYPE_BF16 ? " in bf16" : "",
           comm_size(t->run.world), comm_size(t->run.world) == 1 ? "" : "s",
           TRAINER_WORD("reduction", o->reduction), o->reduce_dtype == DTYPE_BF16 ? " in bf16" : "",
           t->run.ops->name);
    char samples[64] = "images";
    if (!t->data.images)
        snprintf(samples, sizeof samples, "sequences of %lld tokens", (long long)c->train.seq_len);
    printf("data: %s, %zu %s; a step is %lld %s (%lld per rank x %lld micro-steps)\n",
           fsdp_printable(t->data.source).text, t->data.n_tokens,
           t->data.images ? "images" : "tokens", (long long)c->train.global_batch, samples,
           (long long)c->train.batch_size, (long long)c->train.grad_accum);
    if (c->parallel == PARALLEL_FSDP && comm_size(t->run.world) > 1) {
        printf("prefetch: %s", TRAINER_WORD("prefetch", c->prefetch));
        if (c->prefetch != PREFETCH_NONE)
            printf(", at most %lld + 1 units gathered", (long long)o->limit_all_gathers);
        printf("%s\n", c->prefetch_auto ? " (auto: several ranks)" : "");
    }
    trainer_print_recompute(t, stdout);
    if (t->setup.first_step > 0)
        printf("resumed at step %lld%s\n", (long long)t->setup.first_step,
               o->init_from ? "; the weights of --init-from are not read" : "");
    if (was_done)
        printf("no step is left to make: nothing is evaluated, and files about steps, such as "
               "--loss-csv, stay as they are\n");
    if (t->opt->export_init_dir && t->setup.first_step > 0)
        printf("--export-init is not written: the run was resumed\n");
    fflush(stdout);
}

/* Print how much --check-order has checked. */
static fsdp_status print_order(const trainer *t)
{
    if (!t->order)
        return FSDP_OK;
    TRY(comm_agree(t->run.world, order_check_status(t->order)));
    order_figures f = order_check_read(t->order);
    if (comm_rank(t->run.world) == 0)
        printf("order: %llu launches, %llu memory blocks, %llu violations\n",
               (unsigned long long)f.launches, (unsigned long long)f.blocks,
               (unsigned long long)f.violations);
    return FSDP_OK;
}

static fsdp_status write_snapshot(const trainer *t)
{
    if (comm_rank(t->run.world) != 0)
        return FSDP_OK;
    return snapshot_write(t->snapshot, t->opt->snapshot, 0, comm_size(t->run.world));
}

/* Write the files and print the figures that follow the last step. */
static fsdp_status finish(trainer *t, const train_result *result, bool was_done)
{
    const int64_t first = t->setup.first_step, end = train_end(&t->cfg.train);
    const int64_t step = first > end ? first : end;
    if (!was_done)
        TRY(profile_run_write(t->profiled, stdout));
    if (!was_done && t->snapshot)
        TRY(comm_agree(t->run.world, write_snapshot(t)));
    if (t->opt->export_dir)
        TRY(train_export(&t->setup, TRAIN_WEIGHTS, t->opt->export_dir, step));
    if (t->opt->export_optimizer)
        TRY(train_export(&t->setup, TRAIN_STATES, t->opt->export_optimizer, step));
    if (!was_done)
        TRY(report_run(t, result, stdout));
    TRY(print_order(t));
    if (comm_rank(t->run.world) == 0 && end > first)
        printf("done: loss %.6f -> %.6f, %.1f ms per step (median)\n", result->first_loss,
               result->last_loss, result->ms_per_step);
    return FSDP_OK;
}

/* Finish the file of --digests. A file without rows must not replace an older file. */
static fsdp_status end_digests(trainer *t)
{
    if (!t->digests || digests_end(t->digests) == 0 || !t->digest_file.out)
        return FSDP_OK;
    return atomic_file_commit(&t->digest_file);
}

/* For failures outside of train_run: all ranks agree on failures of files, of values and of the
 * order check. */
static fsdp_status alike(train_result *result, fsdp_status status)
{
    result->failed_alike = status == FSDP_EIO || status == FSDP_EINVAL || status == FSDP_EORDER;
    return status;
}

static fsdp_status train(trainer *t, train_result *result)
{
    const int64_t first_step = t->setup.first_step;
    /* no step is left: keep the files that the earlier run wrote; only exports may be missing */
    const bool was_done =
        first_step > 0 && first_step >= train_end(&t->cfg.train) && !t->opt->eval_only;
    if (comm_rank(t->run.world) == 0)
        print_head(t, was_done);
    if (t->opt->export_init_dir && first_step == 0) /* a resumed run wrote it at step 0 */
        TRY(alike(result, train_export(&t->setup, TRAIN_WEIGHTS, t->opt->export_init_dir, 0)));
    const fsdp_status status = train_run(t->loop, result);
    result->failed_alike = result->failed_alike || status == FSDP_EORDER;
    if (status != FSDP_OK && t->order) /* a missing event may be the cause of the failure */
        TRY(order_check_status(t->order));
    TRY(status);
    TRY(alike(result, comm_agree(t->run.world, end_digests(t))));
    if (result->ended_early) {
        if (comm_rank(t->run.world) == 0)
            printf("ended by SIGTERM; --resume auto goes on from what was saved\n");
        return FSDP_OK;
    }
    return alike(result, finish(t, result, was_done));
}

static void print_error(int rank, int world_size)
{
    fsdp_error_info e = *fsdp_error_get();
    if (e.status == FSDP_ENOMEM && !*e.hint)
        snprintf(e.hint, sizeof e.hint,
                 "use a smaller --size, --batch-size or --seq-len, or more ranks; --plan "
                 "prints what a run needs");
    fsdp_error_set(&e);
    fflush(stdout);
    fsdp_error_print(stderr, rank, world_size);
}

static fsdp_status print_help(void)
{
    return options_print_help(
        TRAINER_OPTIONS, "fsdp_train [OPTION...]",
        "Trains a language model on one device, by data parallelism or by FSDP.\n"
        "Alone: one process. Several ranks: build/fsdp_run -n 4 build/fsdp_train ..., or under "
        "MPICH's mpiexec.");
}

/* Run everything from the options to the last report. result->failed_alike: all ranks return this
 * failure; if false, it may be this rank's own. */
static fsdp_status run(trainer *t, bool help, train_result *result)
{
    result->failed_alike = true;
    TRY(trainer_check_program(t));
    TRY(comm_same(t->run.world, "--help", help ? "given" : "not given"));
    if (help)
        return comm_rank(t->run.world) == 0 ? print_help() : FSDP_OK;
    TRY(trainer_prepare(t));
    if (t->opt->print_shards)
        TRY(comm_agree(t->run.world,
                       comm_rank(t->run.world) == 0 ? print_shards(t, stdout) : FSDP_OK));
    if (t->opt->plan) {
        if (comm_rank(t->run.world) == 0)
            report_plan(t, stdout);
        return FSDP_OK;
    }
    TRY(trainer_allocate(t));
    return train(t, result);
}

/* Print the error, if any, and free the trainer. Only rank 0 prints an error that all ranks return.
 * Returns the exit status. */
static int leave(trainer *t, fsdp_status status, const train_result *result)
{
    const int rank = comm_rank(t->run.world);
    if (status != FSDP_OK && (rank == 0 || !result->failed_alike))
        print_error(rank, comm_size(t->run.world));
    if (status != FSDP_OK && !result->failed_alike) {
        train_discard(t->loop);
        atomic_file_cancel(&t->digest_file);
        comm_abort(t->run.world, EXIT_FAILURE);
    }
    trainer_free(t);
    if (status != FSDP_OK)
        return EXIT_FAILURE;
    if (fsdp_flush_stdout("send the output elsewhere; the files of this run are complete") ==
        FSDP_OK)
        return result->ended_early ? BY_SIGTERM : EXIT_SUCCESS;
    fsdp_error_print(stderr, 0, 0);
    return EXIT_FAILURE;
}

/* If a standard file is closed, the next file opened would get its number, and output would be
 * written to it: to a loss file, or to memory that ranks share. Open /dev/null for reading instead,
 * so that such writes fail. */
static void fill_standard_files(void)
{
    int fd;
    while ((fd = open("/dev/null", O_RDONLY)) >= 0 && fd <= STDERR_FILENO)
        ;
    close(fd);
}

int main(int argc, char **argv)
{
    comm_take_signals(false);
    fill_standard_files();
    openmp_settings(argv);
    uncaught_report();
    trainer_options options;
    trainer t = {.opt = &options};
    signal(SIGPIPE, SIG_IGN); /* a failed write is reported instead */
    signal(SIGXFSZ, SIG_IGN);
    const int launched = comm_launched_ranks();
    const fsdp_status parsed = trainer_options_parse(argc, argv, &options);
    const bool help = parsed == FSDP_HELP;
    const bool alone = launched == 1 || (help && comm_launched_apart());
    const fsdp_status checked =
        parsed == FSDP_OK ? environment_check(comm_launched_rank() == 0) : parsed;
    t.refused = *fsdp_error_get();
    if (alone && help && print_help() == FSDP_OK)
        return EXIT_SUCCESS;
    if (parsed == FSDP_OK && options.save_dir)
        comm_take_signals(true);
    if (stack_check() != FSDP_OK || (alone && checked != FSDP_OK) ||
        trainer_connect(&t) != FSDP_OK) { /* there is no group yet: each failing rank prints */
        if (help && print_help() == FSDP_OK)
            return EXIT_SUCCESS;
        print_error(comm_launched_rank(), alone ? 0 : launched);
        return EXIT_FAILURE;
    }
    train_result result = {0};
    fsdp_status status = run(&t, help, &result);
    return leave(&t, status, &result);
}
