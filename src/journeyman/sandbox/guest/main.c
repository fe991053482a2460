/* The agent's loop: frames in, frames out, commands, timers, orphans. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent.h"
#include "limits.h"
#include "privilege.h"

static int wake[2];
static unsigned char *inbox;
static size_t inbox_used;

static void on_child(int number) {
    (void)number;
    int error = errno;
    /* A full pipe means a wake-up is pending already. */
    if (write(wake[1], "", 1) < 0) errno = error;
    errno = error;
}

static void dispatch(uint8_t kind, uint32_t channel, struct reader *r) {
    switch (kind) {
    case EPOCH: epoch_request(channel, r); break;
    case QUIESCE: quiesce_request(channel); break;
    case EXEC: exec_request(channel, r); break;
    case STDIN: exec_stdin(channel, r); break;
    case KILL: exec_kill(channel, r); break;
    case LIST_EXECS: exec_list(channel); break;
    case RESIZE: exec_resize(channel, r); break;
    case GRANT: exec_grant(channel, r); break;
    case READ: file_read(channel, r); break;
    case WRITE_OPEN: write_open(channel, r); break;
    case WRITE_DATA: write_data(channel, r); break;
    case WRITE_COMMIT: write_commit(channel); break;
    case WRITE_ABORT: write_abort(channel); break;
    case STAT: file_stat(channel, r); break;
    case LIST: file_list(channel, r); break;
    case MAKE_DIR: file_make_dir(channel, r); break;
    case REMOVE: file_remove(channel, r); break;
    case RENAME: file_rename(channel, r); break;
    case TREE: tree_request(channel, r); break;
    case RELIEVE: relieve_memory(channel, r); break;
    default: send_failed(channel, ENOSYS, "unknown frame"); break;
    }
}

/* Handles every whole frame of the inbox. A frame too large means a broken host: end. */
static void handle_inbox(void) {
    size_t at = 0;
    while (inbox_used - at >= 9) {
        struct reader header = {inbox + at, 9, 0};
        uint32_t length = get_u32(&header);
        uint8_t kind = get_u8(&header);
        uint32_t channel = get_u32(&header);
        if (length > MAX_PAYLOAD) _exit(71);
        if (inbox_used - at - 9 < length) break;
        struct reader payload = {inbox + at + 9, length, 0};
        dispatch(kind, channel, &payload);
        at += 9 + length;
    }
    memmove(inbox, inbox + at, inbox_used - at);
    inbox_used -= at;
}

static int read_host(void) {
    ssize_t n = read(STDIN_FILENO, inbox + inbox_used, MAX_PAYLOAD + 9 - inbox_used);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (n <= 0) return -1; /* the host is gone: so are we, and with PID 1 the whole sandbox */
    inbox_used += (size_t)n;
    handle_inbox();
    return 0;
}

static int poll_timeout(void) {
    int64_t next = exec_next_deadline();
    if (!quiet && file_reads_pending() && outbox_size() < OUTBOX_HIGH) return 0;
    if (quiet || !next) return -1;
    int64_t wait = next - now_ms();
    return wait < 0 ? 0 : wait > 1000000 ? 1000000 : (int)wait;
}

static void drain_wakeups(void) {
    char sink[256];
    while (read(wake[0], sink, sizeof sink) > 0) {}
}

/* One turn. Returns -1 when the host is gone. */
static int turn(void) {
    static struct pollfd *fds;
    fds = must_grow(fds, (3 + exec_poll_count()) * sizeof *fds);
    fds[0] = (struct pollfd){STDIN_FILENO, POLLIN, 0};
    fds[1] = (struct pollfd){outbox_size() && !quiet ? STDOUT_FILENO : -1, POLLOUT, 0};
    fds[2] = (struct pollfd){quiet ? -1 : wake[0], POLLIN, 0};
    size_t commands = quiet ? 0 : exec_poll_fill(fds + 3);
    int ready = poll(fds, 3 + commands, poll_timeout());
    if (ready < 0 && errno != EINTR) return -1;
    if (ready > 0) {
        if (commands) exec_poll_handle(fds + 3, commands);
        if (fds[2].revents) drain_wakeups();
        if (fds[0].revents && read_host()) return -1;
    }
    if (!quiet) {
        exec_check_deadlines();
        exec_reap();
        file_reads_advance();
    }
    return quiet ? 0 : outbox_flush();
}

int main(int argc, char **argv) {
    if (argc > 1) limits.processes = strtoull(argv[1], NULL, 10);
    if (argc > 2) limits.open_files = strtoull(argv[2], NULL, 10);
    if (argc > 3) limits.process_bytes = strtoull(argv[3], NULL, 10);
    signal(SIGPIPE, SIG_IGN);
    umask(022);
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK)) return 72;
    struct sigaction on = {.sa_handler = on_child, .sa_flags = SA_RESTART | SA_NOCLDSTOP};
    sigaction(SIGCHLD, &on, NULL);
    fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
    fcntl(STDOUT_FILENO, F_SETFL, O_NONBLOCK);
    mkdir("/run", 0755);
    mkdir("/run/journeyman", 0755);
    limits_start();
    privilege_step_aside();
    inbox = must_alloc(MAX_PAYLOAD + 9);
    while (!turn()) {}
    return 0;
}
