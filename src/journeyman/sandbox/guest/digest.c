/* Digests of every file below a root. Symbolic links are reported, never followed. */
#include "agent.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[1 << 16];
static size_t root_length;

static void emit(const void *data, size_t length) { fwrite(data, 1, length, stdout); }

static void emit_u32(uint32_t value) { emit(&value, sizeof value); }

/* Record: u8 kind (f d l o), u32 mode, u64 size, 32 bytes sha256 (of the content, or of a link's
 * target), then the name relative to the root and a link's target, each u32 length and bytes. */
static void record(char kind, const struct stat *st, const unsigned char sha[32],
                   const char *target, size_t target_length) {
    uint64_t size = (uint64_t)st->st_size;
    const char *name = path + root_length;
    emit(&kind, 1);
    emit_u32(st->st_mode & 07777);
    emit(&size, sizeof size);
    emit(sha, 32);
    emit_u32((uint32_t)strlen(name));
    emit(name, strlen(name));
    emit_u32((uint32_t)target_length);
    emit(target, target_length);
}

static int digest_file(int dir, const char *name, struct stat *st) {
    static unsigned char buffer[CHUNK];
    unsigned char sha[32];
    struct sha256 state;
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? 0 : -1; /* gone meanwhile */
    sha256_start(&state);
    ssize_t n;
    uint64_t size = 0;
    while ((n = read(fd, buffer, sizeof buffer)) > 0) {
        sha256_add(&state, buffer, (size_t)n);
        size += (uint64_t)n;
    }
    close(fd);
    if (n < 0) return -1;
    sha256_finish(&state, sha);
    st->st_size = (off_t)size;
    record('f', st, sha, "", 0);
    return 0;
}

static int digest_link(int dir, const char *name, const struct stat *st) {
    char target[PATH_MAX];
    unsigned char sha[32];
    struct sha256 state;
    ssize_t n = readlinkat(dir, name, target, sizeof target);
    if (n < 0) return errno == ENOENT ? 0 : -1;
    sha256_start(&state);
    sha256_add(&state, target, (size_t)n);
    sha256_finish(&state, sha);
    record('l', st, sha, target, (size_t)n);
    return 0;
}

static int walk(int parent, const char *name, size_t length);

static int visit(int dir, const char *name, size_t length) {
    static const unsigned char none[32];
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW)) return errno == ENOENT ? 0 : -1;
    if (S_ISREG(st.st_mode)) return digest_file(dir, name, &st);
    if (S_ISLNK(st.st_mode)) return digest_link(dir, name, &st);
    record(S_ISDIR(st.st_mode) ? 'd' : 'o', &st, none, "", 0);
    return S_ISDIR(st.st_mode) ? walk(dir, name, length) : 0;
}

static int walk(int parent, const char *name, size_t length) {
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? 0 : -1;
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return -1;
    }
    int result = 0;
    for (struct dirent *entry; !result && (entry = readdir(dir));) {
        const char *child = entry->d_name;
        if (!strcmp(child, ".") || !strcmp(child, "..")) continue;
        size_t n = strlen(child);
        if (length + n + 2 > sizeof path) {
            errno = ENAMETOOLONG;
            result = -1;
            break;
        }
        path[length] = '/';
        memcpy(path + length + 1, child, n + 1);
        result = visit(fd, child, length + n + 1);
        path[length] = 0;
    }
    int error = errno;
    closedir(dir);
    errno = error;
    return result;
}

int digest_main(const char *root) {
    size_t length = strlen(root);
    while (length && root[length - 1] == '/') length--;
    if (length + 2 > sizeof path) return ENAMETOOLONG;
    memcpy(path, root, length);
    path[length] = 0;
    root_length = length + 1;
    /* The root itself may be a link the caller named on purpose; below it none is followed. */
    int fd = open(length ? path : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return errno;
    int result = walk(fd, ".", length);
    int error = errno;
    close(fd);
    if (result) return error ? error : EIO;
    return fflush(stdout) ? EIO : 0;
}
