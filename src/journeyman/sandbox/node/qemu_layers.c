/* Guest memory made of layers, for a QEMU that cannot be told to do it.
 *
 * Preloaded into QEMU's process. QEMU maps its guest's memory from a file, $JOURNEYMAN_RAM, which is
 * empty; here that one mapping becomes private zero pages with pieces of other files laid over them,
 * as $JOURNEYMAN_MEMORY/map says:
 *
 *     layer NAME                                   a file beside the map; numbered from 0
 *     PAGE COUNT LAYER PLACE                       guest pages held by a layer, at page PLACE of it
 *
 * Every piece is mapped copy-on-write, so that any number of machines share the layers' page cache
 * and none can change them. QEMU itself believes that the memory is shared (`share=on`): that is
 * how it is told, with the capability x-ignore-shared, to leave memory out of a saved state. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul
#define MAX_LAYERS 64

static const char *ram, *directory;
static char *memory;
static size_t memory_size;

static void fail(const char *what) {
    fprintf(stderr, "journeyman: cannot %s: %s\n", what, strerror(errno));
    _exit(90);
}

static void *system_mmap(void *at, size_t size, int protection, int flags, int fd, off64_t offset) {
    return (void *)syscall(SYS_mmap, at, size, protection, flags, fd, offset);
}

__attribute__((constructor)) static void start(void) {
    ram = getenv("JOURNEYMAN_RAM");
    directory = getenv("JOURNEYMAN_MEMORY");
    if (!ram || !directory) fail("find JOURNEYMAN_RAM and JOURNEYMAN_MEMORY");
}

static int open_layers(FILE *map, int *layers) {
    char name[256], path[4096];
    int count = 0;
    while (count < MAX_LAYERS && fscanf(map, " layer %255s", name) == 1) {
        snprintf(path, sizeof path, "%s/%s", directory, name);
        layers[count] = open(path, O_RDONLY | O_CLOEXEC);
        if (layers[count++] < 0) fail(path);
    }
    return count;
}

static void lay_pieces(char *base, size_t size, int protection) {
    char path[4096];
    int layers[MAX_LAYERS], layer;
    unsigned long page, pages, place;
    snprintf(path, sizeof path, "%s/map", directory);
    FILE *map = fopen(path, "re");
    if (!map && errno == ENOENT) return; /* a first start: memory is zero */
    if (!map) fail(path);
    int count = open_layers(map, layers), fields;
    while ((fields = fscanf(map, "%lu %lu %d %lu", &page, &pages, &layer, &place)) == 4) {
        errno = EINVAL;
        if (layer < 0 || layer >= count || (page + pages) * PAGE > size) fail("read the map");
        void *piece = system_mmap(base + page * PAGE, pages * PAGE, protection,
                                  MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, layers[layer],
                                  (off64_t)(place * PAGE));
        if (piece == MAP_FAILED) fail("map a piece of memory");
    }
    errno = EINVAL;
    if (fields != EOF) fail("read the map");
    fclose(map);
    for (int i = 0; i < count; i++) close(layers[i]);
    memory = base;
    memory_size = size;
}

static int is_ram(int fd) {
    struct stat mapped, wanted;
    return fd >= 0 && ram && !fstat(fd, &mapped) && !stat(ram, &wanted) &&
           mapped.st_ino == wanted.st_ino && mapped.st_dev == wanted.st_dev;
}

void *mmap64(void *at, size_t size, int protection, int flags, int fd, off64_t offset) {
    if (!is_ram(fd)) return system_mmap(at, size, protection, flags, fd, offset);
    int private = (flags & MAP_FIXED) | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *base = system_mmap(at, size, protection, private, -1, 0);
    if (base != MAP_FAILED) lay_pieces(base, size, protection);
    return base;
}

/* QEMU asks for huge pages. In a machine made of layers the first write to a byte would cost two
 * private megabytes. */
int madvise(void *at, size_t size, int advice) {
    int inside = memory && (char *)at >= memory && (char *)at < memory + memory_size;
    if (inside && advice == MADV_HUGEPAGE) return 0;
    return (int)syscall(SYS_madvise, at, size, advice);
}
