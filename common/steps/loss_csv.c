/* loss_csv.c -- see loss_csv.h. */
#include "common/steps/loss_csv.h"
#include <errno.h>
#include <string.h>

/* Copy the rows of the old file for steps before `step`. Fails if the file exists but cannot be
 * read, because the commit would replace it. */
static fsdp_status copy_rows(atomic_file *csv, int64_t step)
{
    char row[256];
    FILE *old = fopen(csv->path, "re");
    if (!old && errno == ENOENT)
        return FSDP_OK;
    while (old && fgets(row, sizeof row, old)) {
        int end = 0; /* length of the row; an editor may have removed the last newline */
        long long at;
        if (sscanf(row, "%lld,%*[^,],%*[^,],%*[^,],%*f%n", &at, &end) == 1 && end > 0 && at < step)
            fprintf(csv->out, "%.*s\n", end, row);
    }
    int why = errno;
    bool read = old && !ferror(old);
    if (old)
        fclose(old);
    return read ? FSDP_OK
                : fsdp_error(FSDP_EIO, "make it readable or pass another --loss-csv path",
                             "cannot read %s, whose rows this run goes on from: %s", csv->path,
                             strerror(why));
}

fsdp_status loss_csv_open(atomic_file *csv, const char *path, int64_t step)
{
    TRY(atomic_file_open(csv, path, "pass a --loss-csv path that can be written"));
    fprintf(csv->out, "step,loss,grad_norm,lr,ms\n");
    return step > 0 && *csv->tmp ? copy_rows(csv, step) : FSDP_OK;
}

fsdp_status loss_csv_row(atomic_file *csv, const loss_row *row)
{
    fprintf(csv->out, "%lld,%.9g,%.9g,%.9g,%.3f\n", (long long)row->step, (double)row->loss,
            (double)row->norm, row->lr, row->ms);
    if (fflush(csv->out) != 0)
        return fsdp_error(FSDP_EIO, "free some space or pass another --loss-csv",
                          "cannot write %s: %s", csv->path, strerror(errno));
    return FSDP_OK;
}

fsdp_status loss_csv_save(atomic_file *csv, const char *path, int64_t next_step, bool goes_on)
{
    if (!csv->out || !*csv->tmp)
        return FSDP_OK;
    TRY(atomic_file_commit(csv));
    return goes_on ? loss_csv_open(csv, path, next_step) : FSDP_OK;
}
