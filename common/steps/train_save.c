/* train_save.c -- the checkpoints of the training loop; see train_impl.h. */
#include "common/steps/loss_csv.h"
#include "common/steps/train_impl.h"

void train_discard(train_loop *l)
{
    atomic_file_cancel(&l->csv);
}

static fsdp_status save_csv(train_loop *l)
{
    const train_config *c = l->setup->cfg;
    return loss_csv_save(&l->csv, c->opt->loss_csv, l->next_read, l->next_read < train_end(c));
}

/* Begin a checkpoint, or finish the one in flight. If this publishes a checkpoint, publish the loss
 * file first; if that fails, no checkpoint is published. */
static fsdp_status write_files(train_loop *l, bool begins)
{
    const train_setup *setup = l->setup;
    const bool completes = !begins || !setup->store->async;
    if (setup->observer.pause)
        setup->observer.pause(setup->observer.self);
    comm_set_patience(setup->run->world, TRAIN_FILES_TIMES);
    fsdp_status status = comm_agree(setup->run->world, completes ? save_csv(l) : FSDP_OK);
    if (!begins)
        status = ckpt_save_finish(setup->store, status);
    else if (status == FSDP_OK)
        status = setup->engine->save(setup->engine->self, setup->store, l->next_read);
    comm_set_patience(setup->run->world, 1);
    /* all ranks have agreed on these; other errors may be one rank's own */
    l->failed_alike = status == FSDP_EIO || status == FSDP_EINVAL;
    return status;
}

fsdp_status train_save(train_loop *l)
{
    const train_setup *setup = l->setup;
    if (ckpt_async_in_flight(setup->store->async)) {
        if (comm_rank(setup->run->world) == 0)
            fprintf(stderr,
                    "note: the checkpoint of step %lld waits until the one before it is written\n",
                    (long long)l->next_read);
        TRY(write_files(l, false));
    }
    l->writing = true; /* later steps report when writing has ended */
    return write_files(l, true);
}

fsdp_status train_end_save(train_loop *l, bool at_end)
{
    const ckpt_store *store = l->setup->store;
    if (!store || !ckpt_async_in_flight(store->async) || (l->writing && !at_end))
        return FSDP_OK;
    return write_files(l, false);
}

fsdp_status train_save_unmade(train_loop *l)
{
    const train_setup *setup = l->setup;
    bool is_saved = true;
    if (setup->store && setup->first_step >= train_end(setup->cfg))
        TRY(ckpt_store_has(setup->store, setup->first_step, &is_saved));
    if (is_saved)
        return FSDP_OK;
    train_discard(l); /* keep an old loss file */
    return train_save(l);
}
