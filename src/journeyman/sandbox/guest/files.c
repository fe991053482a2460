/* Reading, listing and changing files. Paths are the guest's; every error carries its errno. */
#include "agent.h"
#include "privilege.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct reading { struct reading *next; uint32_t channel; int fd; uint64_t left; };
static struct reading *readings;

/* One path argument, or NULL after having answered. */
static char *path_argument(uint32_t channel, struct reader *r) {
    char *path = get_string(r);
    if (!path) send_failed(channel, EINVAL, "path");
    return path;
}

void file_read(uint32_t channel, struct reader *r) {
    uint64_t limit = get_u64(r);
    char *path = path_argument(channel, r);
    if (!path) return;
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    int error = fd < 0 ? errno : 0;
    if (!error && fstat(fd, &st)) error = errno;
    if (!error && S_ISDIR(st.st_mode)) error = EISDIR;
    else if (!error && !S_ISREG(st.st_mode)) error = EINVAL;
    if (!error && (uint64_t)st.st_size > limit) error = EFBIG;
    if (error) {
        if (fd >= 0) close(fd);
        send_failed(channel, error, path);
    } else {
        struct reading *reading = must_alloc(sizeof *reading);
        *reading = (struct reading){readings, channel, fd, limit};
        readings = reading;
    }
    free(path);
}

int file_reads_pending(void) { return readings != NULL; }

/* Sends the next chunk of one file. Returns 1 when that file is done. */
static int advance(struct reading *reading) {
    static unsigned char buffer[CHUNK];
    ssize_t n = read(reading->fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) return 0;
    if (n < 0) {
        send_failed(reading->channel, errno, "read");
        return 1;
    }
    if ((uint64_t)n > reading->left) {
        send_failed(reading->channel, EFBIG, "read");
        return 1;
    }
    reading->left -= (uint64_t)n;
    frame_begin(n ? DATA : END, reading->channel);
    put_bytes(buffer, (size_t)n);
    frame_end();
    return n == 0;
}

void file_reads_advance(void) {
    for (struct reading **at = &readings; *at && outbox_size() < OUTBOX_HIGH;) {
        struct reading *reading = *at;
        if (advance(reading)) {
            *at = reading->next;
            close(reading->fd);
            free(reading);
        } else {
            at = &reading->next;
        }
    }
}

void file_reads_cancel(uint32_t channel) {
    for (struct reading **at = &readings; *at; at = &(*at)->next) {
        struct reading *reading = *at;
        if (reading->channel != channel) continue;
        *at = reading->next;
        close(reading->fd);
        free(reading);
        return;
    }
}

void file_reads_cancel_all(void) {
    while (readings) file_reads_cancel(readings->channel);
}

static char kind_of(mode_t mode) {
    return S_ISREG(mode) ? 'f' : S_ISDIR(mode) ? 'd' : S_ISLNK(mode) ? 'l' : 'o';
}

struct owner get_owner(struct reader *r) {
    struct owner owner;
    owner.user = get_u32(r);
    owner.group = get_u32(r);
    return owner;
}

/* u8 kind, u32 mode, u32 user, u32 group, u64 size, u64 mtime in ns, name, link target. */
static void put_entry(int dir, const char *name, const struct stat *st) {
    char target[PATH_MAX] = "";
    if (S_ISLNK(st->st_mode)) {
        ssize_t n = readlinkat(dir, name, target, sizeof target - 1);
        target[n < 0 ? 0 : n] = 0;
    }
    put_u8((uint8_t)kind_of(st->st_mode));
    put_u32(st->st_mode & 07777);
    put_u32(st->st_uid);
    put_u32(st->st_gid);
    put_u64((uint64_t)st->st_size);
    put_u64((uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec);
    put_string(name);
    put_string(target);
}

/* u8 whether links are followed, path. */
void file_stat(uint32_t channel, struct reader *r) {
    int follow = get_u8(r);
    char *path = path_argument(channel, r);
    if (!path) return;
    struct stat st;
    if (follow ? stat(path, &st) : lstat(path, &st)) {
        send_failed(channel, errno, path);
    } else {
        frame_begin(OK, channel);
        put_entry(AT_FDCWD, path, &st);
        frame_end();
    }
    free(path);
}

void file_list(uint32_t channel, struct reader *r) {
    char *path = path_argument(channel, r);
    if (!path) return;
    DIR *dir = opendir(path);
    if (!dir) {
        send_failed(channel, errno, path);
        free(path);
        return;
    }
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct stat st;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW)) continue; /* gone */
        frame_begin(DATA, channel);
        put_entry(dirfd(dir), entry->d_name, &st);
        frame_end();
    }
    closedir(dir);
    frame_begin(END, channel);
    frame_end();
    free(path);
}

/* Creates the parents of `path`, which is changed and put back. Returns an errno or 0. */
int make_parents(char *path, struct owner owner) {
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        int made = !mkdir(path, 0755);
        int error = errno, failed = !made && error != EEXIST;
        if (made) give_path_to(owner, path);
        *slash = '/';
        if (failed) return error;
    }
    return 0;
}

/* u32 user, u32 group, path. */
void file_make_dir(uint32_t channel, struct reader *r) {
    struct owner owner = get_owner(r);
    char *path = path_argument(channel, r);
    if (!path) return;
    struct stat st;
    int error = make_parents(path, owner);
    if (!error && mkdir(path, 0755)) error = errno;
    else if (!error) give_path_to(owner, path);
    if (error == EEXIST && !stat(path, &st) && S_ISDIR(st.st_mode)) error = 0;
    if (error) send_failed(channel, error, path);
    else send_ok(channel);
    free(path);
}

/* Removes `name` below `dir` with all it holds, never through a link. Returns an errno or 0. */
static int remove_tree(int dir, const char *name, int depth) {
    if (!unlinkat(dir, name, 0)) return 0;
    if (errno != EISDIR && errno != EPERM) return errno;
    if (depth > 1000) return ELOOP;
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return errno;
    DIR *inside = fdopendir(fd);
    if (!inside) {
        close(fd);
        return ENOMEM;
    }
    int error = 0;
    for (struct dirent *entry; !error && (entry = readdir(inside));)
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            error = remove_tree(fd, entry->d_name, depth + 1);
    closedir(inside);
    if (!error && unlinkat(dir, name, AT_REMOVEDIR)) error = errno;
    return error;
}

void file_remove(uint32_t channel, struct reader *r) {
    char *path = path_argument(channel, r);
    if (!path) return;
    int error = remove_tree(AT_FDCWD, path, 0);
    if (error) send_failed(channel, error, path);
    else send_ok(channel);
    free(path);
}

/* u32 user, u32 group of directories that are made for it, paths from and to. */
void file_rename(uint32_t channel, struct reader *r) {
    struct owner owner = get_owner(r);
    char *from = path_argument(channel, r);
    if (!from) return;
    char *to = path_argument(channel, r);
    if (to) {
        int error = make_parents(to, owner);
        if (!error && rename(from, to)) error = errno;
        if (error) send_failed(channel, error, from);
        else send_ok(channel);
        free(to);
    }
    free(from);
}
