/* Atomic writes: a temporary file beside the target, renamed over it on commit. */
#include "agent.h"
#include "privilege.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct writing {
    struct writing *next;
    uint32_t channel;
    int fd, error;
    mode_t mode;
    struct owner owner;
    char *target, *temporary;
};
static struct writing *writings;

static struct writing *find(uint32_t channel) {
    struct writing *at = writings;
    while (at && at->channel != channel) at = at->next;
    return at;
}

static void drop(struct writing *writing, int keep) {
    struct writing **at = &writings;
    while (*at != writing) at = &(*at)->next;
    *at = writing->next;
    if (writing->fd >= 0) close(writing->fd);
    if (!keep && writing->temporary) unlink(writing->temporary);
    free(writing->target);
    free(writing->temporary);
    free(writing);
}

/* A link that was named is written through, as an editor would; a dangling one is replaced. */
static char *resolve(char *path) {
    char real[PATH_MAX];
    struct stat st;
    if (lstat(path, &st) || !S_ISLNK(st.st_mode) || !realpath(path, real)) return path;
    free(path);
    char *copy = must_alloc(strlen(real) + 1);
    return strcpy(copy, real);
}

static int open_temporary(struct writing *writing) {
    struct stat st;
    if (!stat(writing->target, &st) && S_ISDIR(st.st_mode)) return EISDIR;
    int error = make_parents(writing->target, writing->owner);
    if (error) return error;
    char *slash = strrchr(writing->target, '/');
    size_t dir = slash ? (size_t)(slash - writing->target) + 1 : 0;
    writing->temporary = must_alloc(dir + 64);
    memcpy(writing->temporary, writing->target, dir);
    snprintf(writing->temporary + dir, 64, ".journeyman-write-%u-%lld", writing->channel,
             (long long)now_ms());
    writing->fd = open(writing->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (writing->fd >= 0) {
        give_to(writing->owner, writing->fd);
        return 0;
    }
    error = errno;
    free(writing->temporary);
    writing->temporary = NULL;
    return error;
}

/* u32 mode, u32 user, u32 group, path. */
void write_open(uint32_t channel, struct reader *r) {
    uint32_t mode = get_u32(r);
    struct owner owner = get_owner(r);
    char *path = get_string(r);
    if (!path || find(channel)) {
        free(path);
        send_failed(channel, EINVAL, "path");
        return;
    }
    struct writing *writing = must_alloc(sizeof *writing);
    *writing = (struct writing){writings, channel, -1, 0, mode & 07777, owner, resolve(path), NULL};
    writings = writing;
    /* The first error is kept and answered on commit: the host streams without waiting. */
    writing->error = open_temporary(writing);
}

void write_data(uint32_t channel, struct reader *r) {
    struct writing *writing = find(channel);
    if (!writing || writing->error) return;
    while (r->left) {
        ssize_t n = write(writing->fd, r->data, r->left);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            writing->error = errno;
            ftruncate(writing->fd, 0); /* give the space back at once */
            return;
        }
        r->data += n;
        r->left -= (size_t)n;
    }
}

void write_commit(uint32_t channel) {
    struct writing *writing = find(channel);
    if (!writing) {
        send_failed(channel, EBADF, "no such write");
        return;
    }
    int error = writing->error;
    if (!error && fchmod(writing->fd, writing->mode)) error = errno;
    if (!error && rename(writing->temporary, writing->target)) error = errno;
    if (error) send_failed(channel, error, writing->target);
    else send_ok(channel);
    drop(writing, !error);
}

void write_abort(uint32_t channel) {
    struct writing *writing = find(channel);
    if (writing) drop(writing, 0);
}

void write_abort_all(void) {
    while (writings) drop(writings, 0);
}
