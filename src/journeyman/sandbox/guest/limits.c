#include "limits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"

#define PIDS_GROUP "/sys/fs/cgroup/pids/commands"

struct limits limits;
static int group = -1;

static int write_at(int dir, const char *name, uint64_t value) {
    char text[32];
    int length = snprintf(text, sizeof text, "%llu\n", (unsigned long long)value);
    int fd = openat(dir, name, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t n = write(fd, text, (size_t)length);
    close(fd);
    return n == length ? 0 : -1;
}

/* The group is reached through a descriptor; an empty directory mounted over it keeps commands,
 * which are root in here, from changing it. Without the group (bubblewrap) the host's own holds. */
void limits_start(void) {
    if (!limits.processes) return;
    if (mkdir(PIDS_GROUP, 0755) && errno != EEXIST) return;
    int dir = open(PIDS_GROUP, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) return;
    if (write_at(dir, "pids.max", limits.processes)) {
        close(dir);
        return;
    }
    group = dir;
    mount("none", "/sys/fs/cgroup", "tmpfs", MS_RDONLY, "size=4096");
}

void limits_allow_processes(int allow) {
    if (group >= 0) write_at(group, "pids.max", allow ? limits.processes : 1);
}

int limits_crowded(void) {
    char text[32] = "";
    int fd = group < 0 ? -1 : openat(group, "pids.current", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    if (read(fd, text, sizeof text - 1) < 0) text[0] = 0;
    close(fd);
    return strtoull(text, NULL, 10) > limits.processes / 2;
}

void limits_join(void) {
    if (group < 0) return;
    if (write_at(group, "cgroup.procs", (uint64_t)getpid())) _exit(74);
    close(group);
}

static void set(int resource, uint64_t value) {
    struct rlimit both = {value, value};
    if (value) setrlimit(resource, &both);
}

void limits_apply(void) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    set(RLIMIT_NOFILE, limits.open_files);
    set(RLIMIT_DATA, limits.process_bytes);
}
