/* shm_map.c -- peers' shared blocks in this address space.
 *
 *   shm_map_get -> read -> shm_map_put ... -> shm_map_free_all
 *
 * Mapping a block costs two system calls and a fault for every few pages, and a training step reads
 * the same blocks again and again, so mappings are kept. A mapping of a block that its owner has
 * freed takes no memory, because the block is then a hole in the owner's file. If there are too
 * many mappings, the least recently used one is dropped. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include "common/base/page.h"
#include "common/comm/transport/shm_impl.h"

enum { MOST_MAPPINGS = 512 };

typedef struct mapping {
    TAILQ_ENTRY(mapping) order;
    int member;
    uint64_t offset, bytes;
    char *at;
    int readers;
} mapping;

TAILQ_HEAD(mapping_list, mapping);

static pthread_mutex_t maps_lock = PTHREAD_MUTEX_INITIALIZER;   /* guards maps and n_maps */
static struct mapping_list maps = TAILQ_HEAD_INITIALIZER(maps); /* least recently used first */
static int n_maps;

static mapping *find(int member, uint64_t offset)
{
    mapping *m;
    TAILQ_FOREACH_REVERSE(m, &maps, mapping_list, order)
    {
        if (m->member == member && m->offset == offset)
            return m;
    }
    return NULL;
}

static void drop(mapping *m)
{
    TAILQ_REMOVE(&maps, m, order);
    n_maps--;
    munmap(m->at, m->bytes);
    free(m);
}

static void drop_oldest(void)
{
    mapping *m;
    TAILQ_FOREACH(m, &maps, order)
    {
        if (m->readers == 0) {
            drop(m);
            return;
        }
    }
}

static mapping *map_new(int member, uint64_t offset, uint64_t bytes)
{
    mapping *m = calloc(1, sizeof *m);
    if (m == NULL)
        return NULL;
    m->at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, shm_self.peer[member].file, (off_t)offset);
    if (m->at == MAP_FAILED) {
        free(m);
        return NULL;
    }
    m->member = member;
    m->offset = offset;
    m->bytes = bytes;
    TAILQ_INSERT_TAIL(&maps, m, order);
    if (++n_maps > MOST_MAPPINGS)
        drop_oldest();
    return m;
}

const char *shm_map_get(int member, uint64_t offset, uint64_t bytes)
{
    pthread_mutex_lock(&maps_lock);
    mapping *m = find(member, offset);
    if (m == NULL)
        m = map_new(member, offset, bytes);
    if (m != NULL) {
        m->readers++;
        TAILQ_REMOVE(&maps, m, order);
        TAILQ_INSERT_TAIL(&maps, m, order);
    }
    pthread_mutex_unlock(&maps_lock);
    if (m != NULL)
        return m->at;
    const char *hint = "use --comm mpi, or a larger limit on address space (ulimit -v)";
    (void)fsdp_error(FSDP_ENOMEM, page_hint(errno, hint),
                     "shm: cannot map %llu bytes of rank %d: %s", (unsigned long long)bytes,
                     comm_world_rank(&shm_self.team, member), strerror(errno));
    return NULL;
}

void shm_map_put(int member, uint64_t offset)
{
    pthread_mutex_lock(&maps_lock);
    mapping *m = find(member, offset);
    FSDP_ASSERT(m != NULL && m->readers > 0);
    m->readers--;
    pthread_mutex_unlock(&maps_lock);
}

void shm_map_free_all(void)
{
    pthread_mutex_lock(&maps_lock);
    while (!TAILQ_EMPTY(&maps))
        drop(TAILQ_FIRST(&maps));
    pthread_mutex_unlock(&maps_lock);
}
