/* hang_report.c -- see hang_report.h; comm_recorder_write writes what is read here.
 *
 * Calls are sorted, so that those of all ranks with one number of one group lie side by side. Where
 * one of them is running, or failed while it ran, that rank waits for the members of the group that
 * have not come. Those of them that wait nowhere themselves are what holds up the job. */
#include "trainer/tools/hang_report.h"
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 1 << 20, HEAD_LINES = 5 };

/* Ranks whose longest wait is shorter were at work; files further apart than that are told of. */
static const double SHORT_S = 1, SPREAD_S = 10;
static const char HINT[] = "set FSDP_HANG_DIR to an empty directory, and send SIGUSR2 to all ranks "
                           "of the job that hangs";

/* How far a rank has come with a call. */
typedef enum hang_seat { IN_IT, THROUGH, QUEUED, NOT_CALLED, NO_FILE, SEATS } hang_seat;

typedef struct hang_rank {
    bool there, stale;   /* its file; stale: one of an earlier run */
    bool waits, awaited; /* is in a call that others have not come to; has not come to one */
    hang_seat
        seat;    /* of the call that is looked at, SEATS: no member; IN_IT: print_ranks names it */
    int n_ranks; /* of its job */
    unsigned long long run; /* the ranks of a job have the same; 0: it is not known */
    double opened_s, written_s;
    char why[160];
} hang_rank;

/* The ranks whose calls are counted together. */
typedef struct hang_group {
    uint64_t number;
    char via[24]; /* the transport */
    int n_members;
    struct {
        bool is_member;
        uint64_t name, last_seq; /* in the rank's file; name 0: it is not there */
    } * of;                      /* [n_ranks] */
} hang_group;

typedef struct hang_call {
    int group, rank;
    hang_seat seat;
    uint64_t seq, hash;                /* hash: equal where the calls are */
    double issued_s, begun_s, ended_s; /* seconds before the file was written; -1: not yet */
    char words[168];
} hang_call;

typedef struct report {
    const char *dir;
    FILE *out;
    int n_ranks, n_groups, n_calls;
    hang_rank *ranks;
    hang_group *groups;
    hang_call *calls;
    bool failed; /* a file was written for a failure */
    double longest_s;
    int n_told;
} report;

/* ---- reading --------------------------------------------------------------------------------- */

/* One more element at the end of a list of n, zeroed; NULL: no memory. */
static void *append(void *list, int *n, size_t bytes)
{
    char **at = list, *grown = realloc(*at, ((size_t)*n + 1) * bytes);
    if (grown == NULL) {
        (void)fsdp_error(FSDP_ENOMEM, "", "no memory for the ranks' last calls");
        return NULL;
    }
    *at = grown;
    return memset(grown + (size_t)(*n)++ * bytes, 0, bytes);
}

static bool read_head(hang_rank *k, int rank, int n_line, const char *line)
{
    int number;
    switch (n_line) {
    case 1:
        return strcmp(line, "fsdp-hang 1\n") == 0;
    case 2:
        return sscanf(line, "rank %d of %d", &number, &k->n_ranks) == 2 && number == rank &&
               k->n_ranks > rank && k->n_ranks <= MOST_RANKS;
    case 3:
        return sscanf(line, "opened %lf run %llu", &k->opened_s, &k->run) == 2;
    case 4:
        return sscanf(line, "written %lf", &k->written_s) == 1;
    default:
        return sscanf(line, "why %159[^\n]", k->why) == 1;
    }
}

/* The group that another rank has named, or a new one; NULL: no memory. */
static hang_group *group_get(report *p, uint64_t number, const char *via)
{
    for (int i = 0; i < p->n_groups; i++)
        if (p->groups[i].number == number && strcmp(p->groups[i].via, via) == 0)
            return &p->groups[i];
    hang_group *g = append(&p->groups, &p->n_groups, sizeof *g);
    if (g == NULL)
        return NULL;
    g->number = number;
    memcpy(g->via, via, sizeof g->via);
    g->of = calloc((size_t)p->n_ranks, sizeof *g->of);
    return g->of != NULL ? g : NULL;
}

static bool read_group(report *p, int rank, const char *line)
{
    unsigned long long name, number, last;
    char via[24] = "";
    int at = 0, member, n, n_members = 0;
    if (sscanf(line, "group %llu %llx %23s last %llu ranks%n", &name, &number, via, &last, &at) <
            4 ||
        at == 0 || name == 0)
        return false;
    hang_group *g = group_get(p, number, via);
    bool is_new = g != NULL && g->n_members == 0;
    for (; g != NULL && sscanf(line + at, "%d%n", &member, &n) == 1; at += n, n_members++) {
        if (member < 0 || member >= p->n_ranks || g->of[member].is_member == is_new)
            return false; /* no rank, twice the same, or other ranks have another list */
        g->of[member].is_member = true;
    }
    if (g == NULL || !g->of[rank].is_member || (!is_new && n_members != g->n_members))
        return false;
    g->n_members = n_members;
    g->of[rank].name = name;
    g->of[rank].last_seq = last;
    return true;
}

static bool read_call(report *p, int rank, const char *line)
{
    static const char *const states[] = {"running", "failed", "done", "issued"};
    static const hang_seat seats[] = {IN_IT, IN_IT, THROUGH, QUEUED};
    unsigned long long name, seq, hash;
    char state[12];
    hang_call c = {.rank = rank, .seat = SEATS};
    if (sscanf(line, "call %llu %llu %11s %lf %lf %lf %llx %167[^\n]", &name, &seq, state,
               &c.issued_s, &c.begun_s, &c.ended_s, &hash, c.words) != 8)
        return false;
    for (int i = 0; i < 4; i++)
        c.seat = strcmp(state, states[i]) == 0 ? seats[i] : c.seat;
    while (c.group < p->n_groups && p->groups[c.group].of[rank].name != name)
        c.group++;
    c.seq = seq;
    c.hash = hash;
    hang_call *added = NULL;
    if (c.seat != SEATS && c.group < p->n_groups)
        added = append(&p->calls, &p->n_calls, sizeof *added);
    if (added != NULL)
        *added = c;
    return added != NULL;
}

/* The rank's file; head: only who it is and of when. */
static fsdp_status read_file(report *p, int rank, bool head)
{
    char path[PATH_MAX], *line = NULL;
    size_t room = 0;
    int n_line = 0;
    bool good = true, ended = false;
    (void)snprintf(path, sizeof path, "%s/rank-%05d.txt", p->dir, rank);
    FILE *in = fopen(path, "re");
    if (in == NULL)
        return fsdp_error(FSDP_EIO, HINT, "cannot read %s: %s", path, strerror(errno));
    while (good && !(head && n_line == HEAD_LINES) && getline(&line, &room, in) > 0) {
        bool was_end = ended;
        ended = strcmp(line, "end\n") == 0;
        if (++n_line <= HEAD_LINES)
            good = read_head(&p->ranks[rank], rank, n_line, line);
        else if (!ended)
            good = strncmp(line, "group", 5) == 0 ? read_group(p, rank, line)
                                                  : read_call(p, rank, line);
        good = good && !was_end;
    }
    free(line);
    fclose(in);
    p->ranks[rank].there = true;
    if (good && (head ? n_line == HEAD_LINES : ended))
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, HINT, "%s: line %d is damaged%s", path, n_line,
                      good ? ", or the last of a file that is cut off" : "");
}

static fsdp_status read_heads(report *p)
{
    int rank, at;
    fsdp_status status = FSDP_OK;
    DIR *dir = opendir(p->dir);
    if (dir == NULL)
        return fsdp_error(FSDP_EIO, HINT, "cannot read %s: %s", p->dir, strerror(errno));
    for (struct dirent *e; status == FSDP_OK && (e = readdir(dir)) != NULL;) {
        at = 0;
        if (sscanf(e->d_name, "rank-%7d.txt%n", &rank, &at) != 1 || at == 0 ||
            e->d_name[at] != '\0' || rank < 0 || rank >= MOST_RANKS)
            continue;
        while (p->n_ranks <= rank && status == FSDP_OK)
            if (append(&p->ranks, &p->n_ranks, sizeof *p->ranks) == NULL)
                status = FSDP_ENOMEM;
        if (status == FSDP_OK)
            status = read_file(p, rank, true);
    }
    closedir(dir);
    return status;
}

/* The rank that began last is of the latest run. A file of another run is an earlier one's; where
 * the launcher does not tell runs apart, so is one that was written before that rank began. */
static fsdp_status read_all(report *p)
{
    hang_rank latest = {0};
    int n_ranks = 0;
    TRY(read_heads(p));
    for (int r = 0; r < p->n_ranks; r++)
        latest = p->ranks[r].opened_s > latest.opened_s ? p->ranks[r] : latest;
    for (int r = 0; r < p->n_ranks; r++) {
        hang_rank *k = &p->ranks[r];
        bool older = k->run != latest.run || (k->run == 0 && k->written_s < latest.opened_s);
        k->stale = k->there && older;
        k->there = k->there && !k->stale;
        n_ranks = k->there && n_ranks == 0 ? k->n_ranks : n_ranks;
        if (k->there && k->n_ranks != n_ranks)
            return fsdp_error(FSDP_EINVAL, HINT, "%s: files of jobs of %d and of %d ranks", p->dir,
                              n_ranks, k->n_ranks);
    }
    if (n_ranks == 0)
        return fsdp_error(FSDP_EIO, HINT, "%s: no rank has left a file there", p->dir);
    while (p->n_ranks < n_ranks)
        if (append(&p->ranks, &p->n_ranks, sizeof *p->ranks) == NULL)
            return FSDP_ENOMEM;
    p->n_ranks = n_ranks; /* those behind are stale */
    for (int r = 0; r < n_ranks; r++)
        if (p->ranks[r].there)
            TRY(read_file(p, r, false));
    return FSDP_OK;
}

/* ---- one call of a group --------------------------------------------------------------------- */

static int by_group_and_number(const void *a, const void *b)
{
    const hang_call *x = a, *y = b;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (x->seq != y->seq)
        return x->seq < y->seq ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* How many ranks have the call: theirs are those from c on. */
static int same_call(const hang_call *c, const hang_call *end)
{
    int n = 1;
    while (c + n < end && c[n].seq == c->seq)
        n++;
    return n;
}

/* Fill the ranks' seats; returns how many members have not come. */
static int seats_fill(report *p, const hang_call *c, int n)
{
    const hang_group *g = &p->groups[c->group];
    int n_absent = 0;
    for (int r = 0, i = 0; r < p->n_ranks; r++) {
        hang_seat *seat = &p->ranks[r].seat;
        if (i < n && c[i].rank == r)
            *seat = c[i++].seat;
        else if (!g->of[r].is_member)
            *seat = SEATS;
        else if (!p->ranks[r].there)
            *seat = NO_FILE;
        else
            *seat = g->of[r].last_seq >= c->seq ? THROUGH : NOT_CALLED;
        n_absent += *seat == QUEUED || *seat == NOT_CALLED || *seat == NO_FILE;
    }
    return n_absent;
}

/* "  in it: ranks 0-2 5": those with this seat, if there are any. */
static void print_ranks(const report *p, const char *before, hang_seat seat, const char *after)
{
    int n_with = 0;
    for (int r = 0; r < p->n_ranks; r++)
        n_with += p->ranks[r].seat == seat;
    if (n_with == 0)
        return;
    fprintf(p->out, n_with == 1 ? "%srank" : "%sranks", before);
    for (int r = 0, last; r < p->n_ranks; r = last + 1) {
        for (last = r; last + 1 < p->n_ranks && p->ranks[last + 1].seat == seat; last++)
            ;
        if (p->ranks[r].seat == seat)
            fprintf(p->out, last > r ? " %d-%d" : " %d", r, last);
        else
            last = r;
    }
    fprintf(p->out, "%s\n", after);
}

/* What the rank called last in the group. */
static void print_last(const report *p, int rank, int group)
{
    uint64_t last = p->groups[group].of[rank].last_seq;
    fprintf(p->out, "    the last call of rank %d there: ", rank);
    for (int i = 0; i < p->n_calls; i++) {
        const hang_call *c = &p->calls[i];
        if (c->rank == rank && c->group == group && c->seq == last) {
            fprintf(p->out, "%s, %.3f s before\n", c->words, c->issued_s);
            return;
        }
    }
    fprintf(p->out, last > 0 ? "#%llu\n" : "none\n", (unsigned long long)last);
}

/* The call, which n ranks have; somebody waits in it. */
static void tell_call(report *p, const hang_call *c, int n)
{
    const hang_group *g = &p->groups[c->group];
    double wait_s = 0;
    int n_absent = seats_fill(p, c, n);
    for (int i = 0; i < n; i++)
        if (c[i].seat == IN_IT)
            wait_s = fmax(wait_s, c[i].begun_s - fmax(c[i].ended_s, 0));
    fprintf(p->out, "%s, %d ranks over %s, for %.3f s:\n", c->words, g->n_members, g->via, wait_s);
    print_ranks(p, "  in it: ", IN_IT, "");
    print_ranks(p, "  through: ", THROUGH, "");
    print_ranks(p, "  behind: ", QUEUED, ", issued, but its stream has not come to it");
    print_ranks(p, "  behind: ", NOT_CALLED, ", not called");
    print_ranks(p, "  behind: ", NO_FILE, ", no file");
    for (int r = 0; r < p->n_ranks; r++) {
        hang_rank *k = &p->ranks[r];
        k->awaited = k->awaited || (k->seat >= QUEUED && k->seat < SEATS);
        if (k->seat == NOT_CALLED)
            print_last(p, r, c->group);
    }
    if (n_absent == 0)
        fprintf(p->out, "  nobody is behind: the data is under way\n");
    p->longest_s = fmax(p->longest_s, wait_s);
    p->n_told++;
}

/* ---- all calls ------------------------------------------------------------------------------- */

/* Of each group the first call that somebody waits in for others, else the first that is under way;
 * and the first that the ranks do not have alike. */
static void tell_group(report *p, const hang_call *c, const hang_call *end)
{
    const hang_call *waited = NULL, *differs = NULL, *from = NULL;
    bool waited_absent = false;
    for (int n; c < end; c += n) {
        bool in_it = false;
        n = same_call(c, end);
        for (int i = 0; i < n; i++) {
            in_it = in_it || c[i].seat == IN_IT;
            if (differs == NULL && c[i].hash != c->hash) {
                differs = &c[i];
                from = c;
            }
        }
        bool absent = in_it && seats_fill(p, c, n) > 0;
        for (int i = 0; absent && i < n; i++)
            p->ranks[c[i].rank].waits |= c[i].seat == IN_IT;
        if (in_it && (waited == NULL || absent > waited_absent)) {
            waited = c;
            waited_absent = absent;
        }
    }
    if (differs != NULL) {
        fprintf(p->out, "ranks disagree: rank %d called %s, rank %d called %s\n", from->rank,
                from->words, differs->rank, differs->words);
        p->n_told++;
    } else if (waited != NULL) {
        tell_call(p, waited, same_call(waited, end));
    }
}

/* Who has written, and what the first one says that did so for a failure. */
static void tell_files(report *p)
{
    double first_s = INFINITY, last_s = 0;
    for (int r = 0; r < p->n_ranks; r++) {
        hang_rank *k = &p->ranks[r];
        k->seat = k->there ? IN_IT : k->stale ? THROUGH : NO_FILE;
        first_s = k->there ? fmin(first_s, k->written_s) : first_s;
        last_s = k->there ? fmax(last_s, k->written_s) : last_s;
    }
    print_ranks(p, "files of ", IN_IT, "");
    print_ranks(p, "no file of ", NO_FILE, ": dead or stopped, or never there");
    print_ranks(p, "only a file of an earlier run of ", THROUGH, "");
    for (int r = 0; r < p->n_ranks && !p->failed; r++) {
        p->failed = p->ranks[r].there && strncmp(p->ranks[r].why, "SIG", 3) != 0;
        if (p->failed)
            fprintf(p->out, "rank %d says: %s\n", r, p->ranks[r].why);
    }
    if (last_s - first_s > SPREAD_S)
        fprintf(p->out,
                "note: the last file was written %.0f s after the first; if the job went on in "
                "between, send all ranks SIGUSR2 again\n",
                last_s - first_s);
}

/* Nobody has made a call: in comm_open all ranks wait for those that are not there. */
static void tell_opening(report *p)
{
    bool any_missing = false;
    for (int r = 0; r < p->n_ranks; r++) {
        p->ranks[r].awaited = !p->ranks[r].there;
        any_missing = any_missing || !p->ranks[r].there;
    }
    if (!any_missing)
        return;
    fprintf(p->out, "no rank has made a call: in comm_open each waits for all\n");
    p->longest_s = INFINITY;
    p->n_told++;
}

/* Who is awaited and waits for nobody; where all wait, who is awaited. */
static void tell_verdict(report *p)
{
    int n_free = 0, n_awaited = 0;
    for (int r = 0; r < p->n_ranks; r++) {
        n_awaited += p->ranks[r].awaited;
        n_free += p->ranks[r].awaited && !p->ranks[r].waits;
    }
    for (int r = 0; r < p->n_ranks; r++) {
        hang_rank *k = &p->ranks[r];
        k->seat = k->awaited && (n_free == 0 || !k->waits) ? IN_IT : SEATS;
    }
    if (n_awaited > 0)
        print_ranks(p, "=> ", IN_IT,
                    n_free == 0  ? " wait for each other: the order of their calls differs"
                    : n_free > 1 ? " are behind: the others wait for them"
                                 : " is behind: the others wait for it");
}

static fsdp_status tell(report *p)
{
    tell_files(p);
    if (p->n_calls == 0)
        tell_opening(p);
    else
        qsort(p->calls, (size_t)p->n_calls, sizeof *p->calls, by_group_and_number);
    for (int i = 0, begin = 0; i < p->n_calls; i++) {
        if (i + 1 < p->n_calls && p->calls[i + 1].group == p->calls[i].group)
            continue;
        tell_group(p, p->calls + begin, p->calls + i + 1);
        begin = i + 1;
    }
    if (p->failed || (p->n_told > 0 && p->longest_s >= SHORT_S)) {
        tell_verdict(p);
        return FSDP_OK;
    }
    return fsdp_error(FSDP_EINVAL, "send the ranks SIGUSR2 when they stand still",
                      "%s: no rank has been in a call for %g s or longer: they were at work",
                      p->dir, SHORT_S);
}

fsdp_status hang_report(const char *dir, FILE *out)
{
    report p = {.dir = dir, .out = out};
    fsdp_status status = read_all(&p);
    if (status == FSDP_OK)
        status = tell(&p);
    for (int i = 0; i < p.n_groups; i++)
        free(p.groups[i].of);
    free(p.groups);
    free(p.calls);
    free(p.ranks);
    return status;
}
