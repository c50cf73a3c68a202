/* power_cut.c -- what a power cut after each call may leave of the files that runs write.
 *
 *   power_cut check LOG ROOT OUT SEED VARIANTS       after every call, with so many random variants
 *   power_cut write LOG ROOT OUT SEED VARIANT CALL   one of these states, for a run to resume from
 *
 * LOG and LOG.data are the record by file_calls of runs that began with nothing below ROOT. The
 * calls before the power cut are repeated in memory. What fsync promised is there: a file's bytes
 * after an fsync of the file, a name after an fsync of its directory. The variant decides what else
 * is there, see cut(). The files are then written to OUT.
 *
 * check: if a run has gone on after a checkpoint (it printed a step, or finished), OUT/save has
 * this checkpoint or a newer one, whole. Every file that got its name by rename is one of the
 * versions with this name, has all its bytes, and is no older than the newest version after which a
 * run has gone on. Prints lines for errors, then "N power cuts, M states, K wrong". */
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "common/model/family.h"
#include "common/checkpoint/ckpt_source.h"

enum { NAME_BYTES = 128, MAX_CALLS = 8192, MAX_NODES = 1024, MAX_ENTRIES = 64, NEVER = 1 << 30 };
enum { RANDOM = 5 /* the first random variant */, MAX_STATES = 1 << 16 };

typedef enum kind { NAME_SET, NAME_GONE, BYTES, CUT_TO } kind;

/* What a call did to one file or directory, its node. */
typedef struct effect {
    kind kind;
    int call, node, target; /* target: the node of a name */
    int synced;             /* the call that put it on disk, or NEVER */
    char name[NAME_BYTES];
    uint64_t at, bytes;
    const char *text; /* for BYTES */
} effect;

typedef struct node {
    bool is_dir;
    int n; /* entries */
    struct {
        char name[NAME_BYTES];
        int node;
    } entries[MAX_ENTRIES];
    char *text; /* a file's text, and its bytes */
    uint64_t bytes, hash;
} node;

/* A file that got its name by rename. */
typedef struct version {
    int call, passed, node; /* passed: the first call after it that shows that a run went on */
    int64_t step;           /* of `latest`; else -1 */
    uint64_t hash;
    char path[PATH_MAX];
} version;

static effect effects[2 * MAX_CALLS];
static node nodes[MAX_NODES]; /* the first is the root */
static version versions[MAX_CALLS];
static char what[MAX_CALLS][NAME_BYTES]; /* each call, for messages */
static int n_effects, n_nodes, n_versions, n_calls;
static const char *root, *out;

static _Noreturn void stop(const char *why, const char *about)
{
    fprintf(stderr, "power_cut: %s: %s\n", why, about);
    exit(2);
}

/* ---- a tree in memory ------------------------------------------------------------------------ */

static int entry(int dir, const char *name)
{
    int i = 0;
    while (i < nodes[dir].n && strcmp(nodes[dir].entries[i].name, name) != 0)
        i++;
    return i;
}

static void resize(node *f, uint64_t bytes)
{
    f->text = realloc(f->text, bytes + 1);
    if (!f->text)
        stop("no memory", root);
    if (bytes > f->bytes)
        memset(f->text + f->bytes, 0, bytes - f->bytes);
    f->bytes = bytes;
}

/* zeroed: the file has its length, but the disk did not get the bytes. */
static void apply(const effect *e, uint64_t bytes, bool zeroed)
{
    node *f = &nodes[e->node];
    int i = entry(e->node, e->name);
    if (e->kind == NAME_SET) {
        if (i == MAX_ENTRIES)
            stop("too many names in a directory", e->name);
        f->n += i == f->n;
        f->entries[i].node = e->target;
        snprintf(f->entries[i].name, NAME_BYTES, "%s", e->name);
    } else if (e->kind == NAME_GONE) {
        if (i < f->n)
            f->entries[i] = f->entries[--f->n];
    } else if (e->kind == CUT_TO) {
        resize(f, e->at);
    } else {
        if (f->bytes < e->at + bytes)
            resize(f, e->at + bytes);
        if (!zeroed)
            memcpy(f->text + e->at, e->text, bytes);
    }
}

/* The node of an absolute path; -1: none. name: the path's last part; *dir: the node before it. */
static int find(const char *path, int *dir, char name[NAME_BYTES])
{
    int at = 0;
    *dir = 0;
    if (strncmp(path, root, strlen(root)) != 0)
        stop("not below the root", path);
    for (path += strlen(root); *path == '/' && at >= 0;) {
        size_t part = strcspn(++path, "/");
        snprintf(name, NAME_BYTES, "%.*s", (int)part, path);
        path += part;
        *dir = at;
        at = entry(at, name) < nodes[at].n ? nodes[at].entries[entry(at, name)].node : -1;
    }
    return *path ? -1 : at;
}

/* ---- reading the record ---------------------------------------------------------------------- */

static void add(effect e, const char *name)
{
    e.call = n_calls;
    e.synced = NEVER;
    snprintf(e.name, NAME_BYTES, "%s", name);
    apply(&e, e.bytes, false);
    effects[n_effects++] = e;
}

/* Notes a file named by rename; files in a checkpoint's .tmp directory have no final name yet. */
static void note_version(const char *path, int at)
{
    version *v = &versions[n_versions];
    if (nodes[at].is_dir || strstr(path + strlen(root), ".tmp"))
        return;
    *v = (version){.call = n_calls, .passed = NEVER, .node = at, .step = -1};
    snprintf(v->path, sizeof v->path, "%s", path);
    v->hash = XXH3_64bits(nodes[at].text, nodes[at].bytes);
    if (strcmp(path + strlen(root), "/save/latest") == 0 && nodes[at].bytes > 5)
        v->step = atoll(nodes[at].text + 5); /* step-N */
    n_versions++;
}

static void read_rename(const char *from, const char *to)
{
    char old[NAME_BYTES], name[NAME_BYTES];
    int dir, to_dir, at = find(from, &dir, old);
    find(to, &to_dir, name);
    if (at < 0 || dir != to_dir)
        stop("cannot replay the rename", from);
    add((effect){.kind = NAME_SET, .node = dir, .target = at}, name);
    add((effect){.kind = NAME_GONE, .node = dir}, old);
    note_version(to, at);
}

static void read_name(const char *call, int at, int dir, const char *name)
{
    if (strncmp(call, "unlink", 6) == 0 || strcmp(call, "rmdir") == 0) {
        add((effect){.kind = NAME_GONE, .node = dir}, name);
    } else if (at < 0) {
        if (n_nodes == MAX_NODES)
            stop("too many files", name);
        nodes[n_nodes].is_dir = strcmp(call, "mkdir") == 0;
        add((effect){.kind = NAME_SET, .node = dir, .target = n_nodes++}, name);
    } else if (strcmp(call, "truncating") == 0) {
        add((effect){.kind = CUT_TO, .node = at}, "");
    }
}

static void read_call(const char *call, const char *path, const char *to, effect bytes)
{
    char name[NAME_BYTES] = "";
    int dir = 0, at = *path == '/' ? find(path, &dir, name) : -1;
    bytes.node = at;
    if (strcmp(call, "say") == 0 || strcmp(call, "end") == 0) {
        for (int i = 0; i < n_versions; i++)
            versions[i].passed = versions[i].passed == NEVER ? n_calls : versions[i].passed;
    } else if (strcmp(call, "rename") == 0) {
        read_rename(path, to);
    } else if (strstr(" openat truncating mkdir unlink unlinkat rmdir ", call)) {
        read_name(call, at, dir, name);
    } else if (at < 0 || !strstr(" fsync ftruncate write pwrite64 ", call)) {
        stop("cannot replay a call of", call);
    } else if (strcmp(call, "fsync") == 0) {
        for (int i = 0; i < n_effects; i++)
            if (effects[i].node == at && effects[i].synced == NEVER)
                effects[i].synced = n_calls;
    } else {
        bytes.kind = strcmp(call, "ftruncate") == 0 ? CUT_TO : BYTES;
        add(bytes, "");
    }
    snprintf(what[n_calls++], NAME_BYTES, "%s %s", call, name);
}

static char *read_data(const char *log)
{
    char path[PATH_MAX];
    struct stat st;
    snprintf(path, sizeof path, "%s.data", log);
    FILE *f = fopen(path, "re");
    if (!f || fstat(fileno(f), &st) != 0)
        stop("cannot read", path);
    char *data = malloc((size_t)st.st_size + 1);
    if (!data || fread(data, 1, (size_t)st.st_size, f) != (size_t)st.st_size)
        stop("cannot read", path);
    fclose(f);
    return data;
}

/* The bytes stay for the effects. */
static void read_runs(const char *log)
{
    char line[3 * PATH_MAX], call[32], from[PATH_MAX], to[PATH_MAX];
    const char *data = read_data(log);
    FILE *f = fopen(log, "re");
    nodes[n_nodes++].is_dir = true;
    while (f && fgets(line, sizeof line, f)) {
        effect e = {.kind = BYTES};
        uint64_t data_at = 0;
        int n = sscanf(line, "%31s %4095s %4095s %" SCNu64 " %" SCNu64 " %" SCNu64, call, from, to,
                       &e.at, &e.bytes, &data_at);
        if (n_calls == MAX_CALLS || (n != 6 && strcmp(call, "end") != 0))
            stop("cannot replay", line);
        e.text = data + data_at;
        read_call(call, from, to, e);
    }
    if (!f || n_versions == 0)
        stop("nothing is recorded in", log);
    fclose(f);
}

/* ---- one state ------------------------------------------------------------------------------- */

static unsigned choice(uint64_t seed, int variant, int calls, int i)
{
    uint64_t key[4] = {seed, (uint64_t)variant, (uint64_t)calls, (uint64_t)i};
    return (unsigned)(XXH3_64bits(key, sizeof key) % 4);
}

/* Builds the tree after so many calls. Effects that were not synced: variant 0 has none, 1 all, 2
 * names without bytes, 3 names and zeros for bytes, 4 bytes without names. The random variants
 * choose for each call: a rename is done or not; a write is done, left zeros, or ended halfway. */
static void cut(uint64_t seed, int variant, int calls)
{
    for (int i = 0; i < n_nodes; i++) {
        free(nodes[i].text);
        nodes[i] = (node){.is_dir = nodes[i].is_dir};
    }
    for (int i = 0; i < n_effects && effects[i].call < calls; i++) {
        const effect *e = &effects[i];
        bool is_name = e->kind == NAME_SET || e->kind == NAME_GONE, random = variant >= RANDOM;
        unsigned luck = random ? choice(seed, variant, calls, e->call) : 0;
        if (e->synced < calls || variant == 1 || (random && luck < 2) ||
            (is_name ? variant == 2 || variant == 3 : variant == 4))
            apply(e, e->bytes, false);
        else if (e->kind == BYTES && (variant == 3 || luck == 2))
            apply(e, e->bytes, true);
        else if (e->kind == BYTES && random)
            apply(e, e->bytes / 2, false);
    }
    for (int i = 0; i < n_nodes; i++)
        nodes[i].hash = nodes[i].is_dir ? 0 : XXH3_64bits(nodes[i].text, nodes[i].bytes);
}

static uint64_t tree_hash(int at, uint64_t hash)
{
    for (int i = 0; i < nodes[at].n; i++) {
        int child = nodes[at].entries[i].node;
        const char *name = nodes[at].entries[i].name;
        hash = XXH3_64bits_withSeed(name, strlen(name), hash ^ nodes[child].hash);
        hash = nodes[child].is_dir ? tree_hash(child, hash + 1) : hash;
    }
    return hash;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *at)
{
    (void)st;
    (void)flag;
    (void)at;
    return remove(path);
}

static void write_tree(int at, const char *path)
{
    char child[PATH_MAX];
    if (mkdir(path, 0777) != 0)
        stop("cannot create", path);
    for (int i = 0; i < nodes[at].n; i++) {
        node *f = &nodes[nodes[at].entries[i].node];
        snprintf(child, sizeof child, "%s/%s", path, nodes[at].entries[i].name);
        if (f->is_dir) {
            write_tree(nodes[at].entries[i].node, child);
            continue;
        }
        int fd = open(child, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 || write(fd, f->text ? f->text : "", f->bytes) != (ssize_t)f->bytes)
            stop("cannot write", child);
        close(fd);
    }
}

/* ---- what must be there ---------------------------------------------------------------------- */

static device *dev;
static comm *world;
static model m;
static int n_wrong;

static void wrong(int variant, int calls, const char *path, const char *why)
{
    if (n_wrong++ < 5)
        printf("after call %d (%s), variant %d: %s: %s\n", calls, what[calls - 1], variant,
               path + strlen(root), why);
}

static void check_versions(int variant, int calls)
{
    char name[NAME_BYTES];
    int dir;
    for (int i = 0; i < n_versions && versions[i].call < calls; i++) {
        const version *v = &versions[i], *held = NULL;
        int at = find(v->path, &dir, name);
        for (int j = 0; j < n_versions && versions[j].call < calls; j++)
            if (strcmp(versions[j].path, v->path) == 0 && at == versions[j].node)
                held = &versions[j];
        if (at >= 0 && (!held || nodes[at].hash != held->hash))
            wrong(variant, calls, v->path, "has not all of its bytes");
        else if (v->passed < calls && (!held || held->call < v->call))
            wrong(variant, calls, v->path, held ? "is an old one" : "is lost");
    }
}

/* The newest checkpoint that a run went on after; -1: none. */
static int64_t promised_step(int calls)
{
    int64_t step = -1;
    for (int i = 0; i < n_versions; i++)
        if (versions[i].passed < calls && versions[i].step > step)
            step = versions[i].step;
    return step;
}

static void check_checkpoint(int variant, int calls, int64_t promised)
{
    char dir[PATH_MAX];
    ckpt_source src;
    const ckpt_store now = {.world = world, .m = &m, .optimizer = optimizer_of(OPTIMIZER_ADAMW)};
    nftw(out, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    write_tree(0, out);
    snprintf(dir, sizeof dir, "%s/save", out);
    if (ckpt_source_open(&now, dir, true, NULL, &src) != FSDP_OK)
        wrong(variant, calls, root, fsdp_error_get()->what);
    else if (promised >= 0 && (!*src.dir || src.manifest.id.step < promised))
        wrong(variant, calls, root, "a checkpoint is lost");
    ckpt_source_close(&src);
}

static void check_all(uint64_t seed, int n_random)
{
    static uint64_t seen[MAX_STATES];
    int n_cuts = 0, n_states = 0;
    for (int calls = 1; calls <= n_calls; calls++)
        for (int variant = 0; variant < RANDOM + n_random; variant++, n_cuts++) {
            cut(seed, variant, calls);
            check_versions(variant, calls);
            int64_t promised = promised_step(calls);
            uint64_t hash = tree_hash(0, (uint64_t)promised);
            int i = n_states - 1;
            while (i >= 0 && seen[i] != hash)
                i--;
            if (i >= 0 || n_states == MAX_STATES)
                continue;
            seen[n_states++] = hash;
            check_checkpoint(variant, calls, promised);
        }
    printf("%d power cuts, %d states, %d wrong\n", n_cuts, n_states, n_wrong);
}

int main(int argc, char **argv)
{
    const model_config config = {.family = "gpt2", /* of tests/cli/inject.sh */
                                 .n_blocks = 1,
                                 .n_head = 2,
                                 .d_model = 16,
                                 .vocab_size = 256,
                                 .max_seq_len = 256};
    if (argc < 7) {
        fprintf(stderr, "usage: power_cut check|write LOG ROOT OUT SEED VARIANTS [CALL]\n");
        return 2;
    }
    root = argv[3];
    out = argv[4];
    read_runs(argv[2]);
    if (device_open(&(device_config){.backend = &device_cpu, .n_threads = 1}, &dev) != FSDP_OK ||
        comm_open(dev, &(comm_config){.backend = COMM_SELF}, &world) != FSDP_OK ||
        model_create(&config, &m) != FSDP_OK)
        stop("cannot begin", fsdp_error_get()->what);
    if (strcmp(argv[1], "check") == 0) {
        check_all(strtoull(argv[5], NULL, 10), atoi(argv[6]));
    } else {
        cut(strtoull(argv[5], NULL, 10), atoi(argv[6]), atoi(argv[7]));
        write_tree(0, out);
    }
    model_free(&m);
    comm_close(world);
    device_close(dev);
    return n_wrong > 0;
}
