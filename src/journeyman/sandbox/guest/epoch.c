/* What must change after every start and restore, before anything is served. */
#include "agent.h"
#include "privilege.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* From <linux/random.h>, which musl does not carry. */
struct entropy { int bits, size; unsigned char bytes[64]; };
#define ADD_ENTROPY _IOW('R', 0x03, int[2])
#define BOOT_ID "/proc/sys/kernel/random/boot_id"
#define RESEED _IO('R', 0x07)

static int64_t quiesced_at;

static void overwrite(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0444);
    if (fd < 0) return;
    give_to((struct owner){0, 0}, fd);
    /* A short write leaves a wrong identity, which the host checks by reading it back. */
    if (write(fd, text, strlen(text)) != (ssize_t)strlen(text)) unlink(path);
    close(fd);
}

/* The kernel draws a boot id once and cannot be told another: a file lies over it. */
static void change_boot_id(const char *boot) {
    static int mounted;
    char line[64];
    snprintf(line, sizeof line, "%.60s\n", boot);
    overwrite("/run/journeyman/boot_id", line);
    if (!mounted) mount("/run/journeyman/boot_id", BOOT_ID, NULL, MS_BIND, NULL);
    mounted = 1;
}

/* Credits entropy where the kernel lets us (a virtual machine); elsewhere the host kernel or
 * gVisor serves fresh numbers, and mixing in through /dev/urandom is harmless. */
static int feed_entropy(const unsigned char *seed, size_t length) {
    int fd = open("/dev/urandom", O_WRONLY | O_CLOEXEC);
    if (fd < 0) return errno;
    struct entropy pool = {0, 0, {0}};
    if (length > sizeof pool.bytes) length = sizeof pool.bytes;
    pool.bits = (int)(8 * length);
    pool.size = (int)length;
    memcpy(pool.bytes, seed, length);
    int error = 0;
    if (ioctl(fd, (int)ADD_ENTROPY, &pool)) {
        if (write(fd, seed, length) < 0) error = errno;
    } else {
        ioctl(fd, RESEED);
    }
    close(fd);
    return error;
}

static void set_clock(uint64_t host_ns) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t guest_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    int64_t off = (int64_t)host_ns - guest_ns;
    if (off < 50000000 && off > -50000000) return;
    struct timespec right = {(time_t)(host_ns / 1000000000u), (long)(host_ns % 1000000000u)};
    clock_settime(CLOCK_REALTIME, &right); /* refused under gVisor, whose clock is the host's */
}

/* u64 epoch, u64 wall clock in ns, u32+seed, hostname, machine id, boot id ("" keeps the last).
 * Answer: u32 protocol version, u64 epoch, u64 guest wall clock in ns, 16 fresh random bytes. */
void epoch_request(uint32_t channel, struct reader *r) {
    uint64_t epoch = get_u64(r), host_ns = get_u64(r);
    uint32_t length = get_u32(r);
    if (r->bad || length > r->left || length < 32) {
        send_failed(channel, EINVAL, "seed");
        return;
    }
    const unsigned char *seed = r->data;
    r->data += length;
    r->left -= length;
    char *host = get_string(r), *machine = get_string(r), *boot = get_string(r);
    int error = r->bad ? EINVAL : feed_entropy(seed, length);
    unsigned char fresh[16];
    if (!error && getentropy(fresh, sizeof fresh)) error = errno;
    if (!error) {
        set_clock(host_ns);
        if (*host && sethostname(host, strlen(host))) error = errno;
        if (*host) overwrite("/etc/hostname", host);
        if (*machine) overwrite("/etc/machine-id", machine);
        if (*boot) change_boot_id(boot);
    }
    if (!r->bad && *boot) { /* a new life: half-done transfers belong to the old one */
        write_abort_all();
        file_reads_cancel_all();
    }
    exec_hold_windows();
    if (quiesced_at) exec_shift_deadlines(now_ms() - quiesced_at);
    quiesced_at = 0;
    quiet = 0;
    if (error) {
        send_failed(channel, error, "epoch");
    } else {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        frame_begin(OK, channel);
        put_u32(PROTOCOL_VERSION);
        put_u64(epoch);
        put_u64((uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
        put_bytes(fresh, sizeof fresh);
        frame_end();
    }
    free(host);
    free(machine);
    free(boot);
}

/* Everything sent so far leaves, then nothing until the next EPOCH: a snapshot taken in between
 * holds no half-written frame. */
void quiesce_request(uint32_t channel) {
    send_ok(channel);
    while (outbox_size()) {
        struct pollfd room = {STDOUT_FILENO, POLLOUT, 0};
        if (poll(&room, 1, -1) < 0 && errno != EINTR) _exit(73);
        if (outbox_flush()) _exit(73);
    }
    quiesced_at = now_ms();
    quiet = 1;
}
