/* The first program of a virtual machine, in its initramfs: loads drivers, mounts the disk and
 * becomes the agent. Its arguments come from the end of the kernel's command line:
 *
 *     -- TMP_BYTES [ARGUMENT OF THE AGENT ...]
 *
 * The agent lies beside it in the initramfs, so that disks do not depend on the agent's version.
 * On any failure it says why on the console and ends; the kernel then stops the machine. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#define DISK "/dev/vda"
#define PORTS "/sys/class/virtio-ports"
#define PORT_NAME "journeyman"
#define NEW_ROOT "/new"
#define WAIT_MS 20000
/* From <linux/fs.h> and <linux/ext4.h>, which musl does not carry. */
#define DEVICE_BYTES _IOR(0x12, 114, size_t)
#define RESIZE _IOW('f', 16, uint64_t)
#define BLOCK 4096

static void fail(const char *what) {
    dprintf(STDERR_FILENO, "journeyman: cannot %s: %s\n", what, strerror(errno));
    _exit(1);
}

static void make_dir(const char *path) {
    if (mkdir(path, 0755) && errno != EEXIST) fail(path);
}

static void mount_at(const char *type, const char *path, unsigned long flags, const char *data) {
    make_dir(path);
    if (mount(type, path, type, flags, data)) fail(path);
}

/* /modules/order names one module a line, each after those it needs. */
static void load_modules(void) {
    char line[128], path[160];
    FILE *order = fopen("/modules/order", "re");
    if (!order) fail("read /modules/order");
    while (fgets(line, sizeof line, order)) {
        line[strcspn(line, "\n")] = 0;
        snprintf(path, sizeof path, "/modules/%s", line);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST)) fail(path);
        close(fd);
    }
    fclose(order);
}

static void pause_briefly(void) {
    const struct timespec moment = {0, 5000000};
    nanosleep(&moment, NULL);
}

/* Devices appear some time after their driver. */
static void await(const char *path) {
    for (int waited = 0; access(path, F_OK); waited += 5) {
        if (waited > WAIT_MS) fail(path);
        pause_briefly();
    }
}

/* Writes the device path of the port that has our name. Returns 0 while there is none. */
static int find_port(char *path, size_t size) {
    char name[300], text[64];
    int found = 0;
    DIR *ports = opendir(PORTS);
    for (struct dirent *entry; ports && !found && (entry = readdir(ports));) {
        snprintf(name, sizeof name, PORTS "/%s/name", entry->d_name);
        int fd = open(name, O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        found = n >= (ssize_t)strlen(PORT_NAME) && !strncmp(text, PORT_NAME, strlen(PORT_NAME));
        if (found) snprintf(path, size, "/dev/%s", entry->d_name);
    }
    if (ports) closedir(ports);
    return found;
}

static int open_port(void) {
    char path[300];
    for (int waited = 0; !find_port(path, sizeof path); waited += 5) {
        if (waited > WAIT_MS) fail("find the port '" PORT_NAME "'");
        pause_briefly();
    }
    await(path);
    int port = open(path, O_RDWR);
    if (port < 0) fail(path);
    return port;
}

/* A few devices of our own: the kernel's directory would offer commands the raw disk and the
 * agent's port. */
static void make_devices(void) {
    static const struct { const char *name; int minor, major; } devices[] = {
        {"null", 3, 1}, {"zero", 5, 1}, {"full", 7, 1}, {"random", 8, 1}, {"urandom", 9, 1},
        {"tty", 0, 5},
    };
    char path[64];
    mount_at("tmpfs", NEW_ROOT "/dev", MS_NOSUID, "size=64k,mode=755");
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        snprintf(path, sizeof path, NEW_ROOT "/dev/%s", devices[i].name);
        dev_t number = makedev((unsigned)devices[i].major, (unsigned)devices[i].minor);
        if (mknod(path, S_IFCHR | 0666, number) || chmod(path, 0666)) fail(path);
    }
    mount_at("devpts", NEW_ROOT "/dev/pts", MS_NOSUID | MS_NOEXEC, "ptmxmode=666,mode=620");
    mount_at("tmpfs", NEW_ROOT "/dev/shm", MS_NOSUID | MS_NODEV, "mode=1777");
    if (symlink("pts/ptmx", NEW_ROOT "/dev/ptmx") || symlink("/proc/self/fd", NEW_ROOT "/dev/fd") ||
        symlink("/proc/self/fd/0", NEW_ROOT "/dev/stdin") ||
        symlink("/proc/self/fd/1", NEW_ROOT "/dev/stdout") ||
        symlink("/proc/self/fd/2", NEW_ROOT "/dev/stderr"))
        fail("make links in /dev");
}

/* The image is small; the disk, and with it the file system, is as large as the sandbox may fill. */
static void grow(void) {
    uint64_t bytes = 0;
    int disk = open(DISK, O_RDONLY | O_CLOEXEC), root = open(NEW_ROOT, O_RDONLY | O_CLOEXEC);
    if (disk < 0 || root < 0 || ioctl(disk, (int)DEVICE_BYTES, &bytes)) fail("measure the disk");
    uint64_t blocks = bytes / BLOCK;
    if (ioctl(root, (int)RESIZE, &blocks)) fail("grow the file system");
    close(root);
    close(disk);
}

/* Commands are root. What makes the kernel run programs or stop for root is read-only for them. */
static void close_kernel_interfaces(void) {
    unsigned long plain = MS_NOSUID | MS_NOEXEC | MS_NODEV;
    mount_at("sysfs", NEW_ROOT "/sys", plain | MS_RDONLY, NULL);
    if (mount(NEW_ROOT "/proc/sys", NEW_ROOT "/proc/sys", NULL, MS_BIND, NULL) ||
        mount(NULL, NEW_ROOT "/proc/sys", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | plain, NULL) ||
        mount("/dev/null", NEW_ROOT "/proc/sysrq-trigger", NULL, MS_BIND, NULL))
        fail("close /proc");
}

static void mount_root(const char *tmp_bytes) {
    char size[64];
    snprintf(size, sizeof size, "size=%s,mode=1777", tmp_bytes);
    await(DISK);
    make_dir(NEW_ROOT);
    if (mount(DISK, NEW_ROOT, "ext4", MS_NOATIME, NULL)) fail("mount " DISK);
    mount_at("proc", NEW_ROOT "/proc", MS_NOSUID | MS_NOEXEC | MS_NODEV, NULL);
    grow();
    close_kernel_interfaces();
    mount_at("tmpfs", NEW_ROOT "/run", MS_NOSUID | MS_NODEV, "mode=755");
    mount_at("tmpfs", NEW_ROOT "/tmp", MS_NOSUID | MS_NODEV, size);
    mount_at("tmpfs", NEW_ROOT "/sys/fs/cgroup", MS_NOSUID | MS_NOEXEC | MS_NODEV, "mode=755");
    make_dir(NEW_ROOT "/sys/fs/cgroup/pids");
    if (mount("cgroup", NEW_ROOT "/sys/fs/cgroup/pids", "cgroup", 0, "pids")) fail("mount pids");
    make_devices();
}

/* The initramfs is memory: what it held is removed before it is left. */
static void leave_initramfs(void) {
    DIR *modules = opendir("/modules");
    for (struct dirent *entry; modules && (entry = readdir(modules));)
        unlinkat(dirfd(modules), entry->d_name, 0);
    if (modules) closedir(modules);
    unlink("/init");
    unlink("/agent");
    if (chdir(NEW_ROOT) || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
        fail("change to the new root");
}

static void start_loopback(void) {
    struct ifreq request = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request)) fail("bring up the loopback interface");
    close(fd);
}

/* What neither the agent nor a command has any business with, such as loading modules, is out of
 * reach for every process from here on. The rest is what a container's root has, and what the
 * agent needs to set clock and host name. */
static void drop_capabilities(void) {
    static const int kept[] = {
        0 /* CHOWN */, 1 /* DAC_OVERRIDE */, 3 /* FOWNER */, 4 /* FSETID */, 5 /* KILL */,
        6 /* SETGID */, 7 /* SETUID */, 8 /* SETPCAP */, 10 /* NET_BIND_SERVICE */,
        18 /* SYS_CHROOT */, 21 /* SYS_ADMIN */, 25 /* SYS_TIME */, 29 /* AUDIT_WRITE */,
        31 /* SETFCAP */,
    };
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability, 0, 0, 0) >= 0; capability++) {
        int keep = 0;
        for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) keep |= kept[i] == capability;
        if (!keep && prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)) fail("drop capabilities");
    }
}

int main(int argc, char **argv) {
    static char *const environment[] = {
        "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", NULL};
    if (argc < 2) {
        errno = EINVAL;
        fail("start without TMP_BYTES");
    }
    int agent = open("/agent", O_RDONLY | O_CLOEXEC);
    if (agent < 0) fail("open the agent");
    mount_at("devtmpfs", "/dev", 0, NULL);
    mount_at("proc", "/proc", 0, NULL);
    mount_at("sysfs", "/sys", 0, NULL);
    int console = open("/dev/console", O_WRONLY);
    if (console >= 0) dup2(console, STDERR_FILENO);
    load_modules();
    mount_root(argv[1]);
    int port = open_port();
    leave_initramfs();
    start_loopback();
    drop_capabilities();
    int nothing = open("/dev/null", O_WRONLY);
    dup2(port, STDIN_FILENO);
    dup2(port, STDOUT_FILENO);
    if (nothing > STDERR_FILENO) close(nothing);
    if (port > STDERR_FILENO) close(port);
    argv[1] = "agent";
    syscall(SYS_execveat, agent, "", argv + 1, environment, AT_EMPTY_PATH);
    fail("start the agent");
}
