#include "privilege.h"

#include <stdint.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define AGENT_ID 64999
#define CAP_KILL 5
#define CAP_SYS_ADMIN 21
#define CAP_SYS_TIME 25
#define CAPABILITY_VERSION_3 0x20080522

struct capability_header { uint32_t version; int pid; };
struct capability_data { uint32_t effective, permitted, inheritable; };
static int apart;

void privilege_step_aside(void) {
    struct capability_header header = {CAPABILITY_VERSION_3, 0};
    struct capability_data data[2];
    /* gVisor lets root open any /proc/PID/fd: an empty directory lies over ours. */
    mount("none", "/proc/1", "tmpfs", MS_RDONLY, "size=4096");
    if (getuid() || prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)) return;
    if (syscall(SYS_setresuid, AGENT_ID, AGENT_ID, AGENT_ID)) return;
    apart = 1;
    /* The change of user emptied the effective set; the permitted one was kept. */
    memset(data, 0, sizeof data);
    if (syscall(SYS_capget, &header, data)) _exit(75);
    for (int i = 0; i < 2; i++) data[i].effective = data[i].permitted;
    if (syscall(SYS_capset, &header, data)) _exit(75);
}

void privilege_for_command(void) {
    /* Refused, and pointless, where the agent never had them. */
    prctl(PR_CAPBSET_DROP, CAP_KILL, 0, 0, 0);
    prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0);
    prctl(PR_CAPBSET_DROP, CAP_SYS_TIME, 0, 0, 0);
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (apart && syscall(SYS_setresuid, 0, 0, 0)) _exit(76);
}

void give_to(struct owner owner, int fd) {
    if (apart && fchown(fd, owner.user, owner.group)) _exit(77);
}

void give_path_to(struct owner owner, const char *path) {
    /* A path that somebody moved meanwhile is theirs to worry about. */
    if (apart && lchown(path, owner.user, owner.group)) return;
}
