/* Commands: many at once, each on its channel. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "account.h"
#include "agent.h"
#include "capture.h"
#include "spawn.h"

struct exec {
    struct exec *next;
    uint32_t channel, flags;
    pid_t supervisor; /* 0 once reaped */
    pid_t main; /* 0 until it is known, which it is of those with EXEC_WINDOW */
    uint32_t window; /* bytes of output that may be sent now */
    int ended; /* the main process has; its outcome waits until its output has left */
    struct outcome outcome;
    char *label; /* its arguments, for lists */
    struct ends ends;
    struct capture captures[2];
    int64_t started, deadline; /* monotonic ms; deadline 0: none */
    int answered;
    unsigned char *input;
    size_t input_used;
    int input_ended;
    size_t polled; /* index of this command's first pollfd, in the last fill */
};
static struct exec *execs;
static int supervisor_died; /* not by its own end */

static struct exec *find(uint32_t channel) {
    struct exec *at = execs;
    while (at && at->channel != channel) at = at->next;
    return at;
}

static void close_end(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static char **get_strings(struct reader *r) {
    uint32_t count = get_u32(r);
    if (count > r->left / 4) r->bad = 1;
    if (r->bad) return NULL;
    char **strings = must_alloc((count + 1) * sizeof *strings);
    for (uint32_t i = 0; i < count; i++) strings[i] = get_string(r);
    strings[count] = NULL;
    return strings;
}

static void free_strings(char **strings) {
    for (char **at = strings; at && *at; at++) free(*at);
    free(strings);
}

/* The arguments, one after the other with a space between, as much as fits. */
static char *make_label(char **argv) {
    size_t most = 4096, used = 0;
    char *label = must_alloc(most);
    label[0] = 0;
    for (; argv && *argv && used < most - 1; argv++) {
        int n = snprintf(label + used, most - used, used ? " %s" : "%s", *argv);
        used += n > 0 ? (size_t)n : 0;
    }
    return label;
}

static void start(uint32_t channel, uint32_t flags, uint32_t timeout_ms, uint32_t limit,
                  const struct command *command) {
    struct exec *exec = must_alloc(sizeof *exec);
    memset(exec, 0, sizeof *exec);
    exec->channel = channel;
    exec->flags = flags;
    exec->window = OUTPUT_WINDOW;
    exec->supervisor = spawn(command, &exec->ends);
    if (exec->supervisor < 0) {
        send_failed(channel, errno, "cannot start a process");
        free(exec);
        return;
    }
    exec->started = now_ms();
    exec->deadline = timeout_ms ? exec->started + timeout_ms : 0;
    exec->label = make_label(command->argv);
    for (int i = 0; i < 2; i++) capture_start(&exec->captures[i], limit);
    exec->next = execs;
    execs = exec;
}

/* u32 flags, u32 timeout in ms (0: none), u32 bytes of each stream kept, u32 rows and u32 columns
 * of the terminal, user (empty: root as the agent finds it), cwd, argv, environment. */
void exec_request(uint32_t channel, struct reader *r) {
    static struct account account;
    uint32_t flags = get_u32(r), timeout_ms = get_u32(r), limit = get_u32(r);
    struct command command = {
        .with_stdin = !!(flags & EXEC_STDIN),
        .reports_start = !!(flags & EXEC_WINDOW),
        .terminal = !!(flags & EXEC_TERMINAL),
    };
    command.rows = (uint16_t)get_u32(r);
    command.columns = (uint16_t)get_u32(r);
    char *user = get_string(r);
    command.cwd = get_string(r);
    command.argv = get_strings(r);
    command.envp = get_strings(r);
    int bad = r->bad || !command.argv[0] || find(channel);
    int error = !bad && *user ? account_find(user, &account) : 0;
    if (!bad && *user) command.account = &account;
    if (bad) send_failed(channel, EINVAL, "exec");
    else if (error) send_failed(channel, error, user);
    else start(channel, flags, timeout_ms, limit, &command);
    free(user);
    free(command.cwd);
    free_strings(command.argv);
    free_strings(command.envp);
}

/* The digests of a tree are streamed like a command's output. */
void tree_request(uint32_t channel, struct reader *r) {
    uint32_t timeout_ms = get_u32(r);
    char *root = get_string(r);
    struct command command = {.digest_root = root};
    if (r->bad) send_failed(channel, EINVAL, "tree");
    else start(channel, EXEC_STREAM, timeout_ms, CHUNK, &command);
    free(root);
}

void exec_stdin(uint32_t channel, struct reader *r) {
    struct exec *exec = find(channel);
    if (!exec) return; /* it ended; what was on its way is of no use */
    if (!r->left) {
        exec->input_ended = 1;
    } else if (exec->ends.in >= 0 && exec->input_used + r->left <= STDIN_WINDOW) {
        if (!exec->input) exec->input = must_alloc(STDIN_WINDOW);
        memcpy(exec->input + exec->input_used, r->data, r->left);
        exec->input_used += r->left;
    }
    if (exec->input_ended && !exec->input_used) close_end(&exec->ends.in);
}

/* u32 rows, u32 columns. The programs get SIGWINCH from us: not every kernel (gVisor's) sends it,
 * and those that do not ask for it never notice. */
void exec_resize(uint32_t channel, struct reader *r) {
    struct exec *exec = find(channel);
    struct winsize size = {0};
    size.ws_row = (uint16_t)get_u32(r);
    size.ws_col = (uint16_t)get_u32(r);
    if (!exec || r->bad || !(exec->flags & EXEC_TERMINAL) || exec->ends.out < 0) return;
    ioctl(exec->ends.out, TIOCSWINSZ, &size);
    if (exec->supervisor) kill_descendants(exec->supervisor, SIGWINCH);
}

/* u32: bytes of output that the host has taken. */
void exec_grant(uint32_t channel, struct reader *r) {
    struct exec *exec = find(channel);
    uint32_t taken = get_u32(r);
    if (!exec || r->bad) return;
    exec->window += taken < OUTPUT_WINDOW - exec->window ? taken : OUTPUT_WINDOW - exec->window;
}

/* A new epoch: the host may not listen to these yet, and says so by granting again. */
void exec_hold_windows(void) {
    for (struct exec *exec = execs; exec; exec = exec->next) exec->window = 0;
}

static void feed(struct exec *exec) {
    ssize_t n = write(exec->ends.in, exec->input, exec->input_used);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    size_t taken = n < 0 ? exec->input_used : (size_t)n; /* nobody reads: swallow it */
    exec->input_used -= taken;
    memmove(exec->input, exec->input + taken, exec->input_used);
    if (n < 0 || (exec->input_ended && !exec->input_used)) close_end(&exec->ends.in);
    frame_begin(CREDIT, exec->channel);
    put_u32((uint32_t)taken);
    frame_end();
}

/* Whether output must stay where it is: the host has granted no more or has not been told of the
 * process yet, or the outbox is full. */
static int is_held(const struct exec *exec) {
    if (!(exec->flags & EXEC_STREAM) || exec->answered) return 0;
    if ((exec->flags & EXEC_WINDOW) && (!exec->window || !exec->main)) return 1;
    return outbox_size() > OUTBOX_HIGH;
}

/* Reads once from a pipe. Returns 0 when nothing more is there now. */
static int take_output(struct exec *exec, int stream) {
    static unsigned char buffer[CHUNK];
    int *fd = stream ? &exec->ends.err : &exec->ends.out;
    int windowed = (exec->flags & EXEC_WINDOW) && !exec->answered;
    size_t most = windowed && exec->window < sizeof buffer ? exec->window : sizeof buffer;
    if (*fd < 0) return 0;
    ssize_t n = read(*fd, buffer, most);
    if (n < 0 && errno == EINTR) return 1;
    if (n < 0 && errno == EAGAIN) return 0;
    if (n <= 0) {
        close_end(fd);
        return 0;
    }
    if (exec->answered) return 1; /* a background child talks on; nobody listens any more */
    if (windowed) exec->window -= (uint32_t)n;
    if (exec->flags & EXEC_STREAM) send_output(exec->channel, (uint8_t)stream, buffer, (size_t)n);
    else capture_add(&exec->captures[stream], buffer, (size_t)n);
    return 1;
}

/* What the main process wrote before it ended is in the pipes by now; takes it out of them, as far
 * as the host lets us. Returns 0 while some of it must wait. The bound on reads is for children in
 * the background that never stop talking. */
static int drain(struct exec *exec) {
    for (int stream = 0; stream < 2; stream++)
        for (int reads = 0; reads < 32; reads++) {
            if ((exec->flags & EXEC_WINDOW) && !exec->window) return 0;
            if (!take_output(exec, stream)) break;
        }
    return 1;
}

static void answer(struct exec *exec, uint32_t how, int32_t value) {
    uint64_t dropped[2] = {0, 0};
    for (int stream = 0; stream < 2; stream++)
        dropped[stream] = capture_send(&exec->captures[stream], exec->channel, (uint8_t)stream);
    frame_begin(EXITED, exec->channel);
    put_u8((uint8_t)how);
    put_u32((uint32_t)value);
    put_u64((uint64_t)(now_ms() - exec->started));
    put_u64(dropped[0]);
    put_u64(dropped[1]);
    frame_end();
    exec->answered = 1;
    exec->deadline = 0;
    close_end(&exec->ends.in);
    close_end(&exec->ends.status);
    free(exec->input);
    exec->input = NULL;
    exec->input_used = 0;
}

static void finish(struct exec *exec, struct outcome outcome) {
    exec->ended = 1;
    exec->outcome = outcome;
    close_end(&exec->ends.status);
    if (drain(exec)) answer(exec, outcome.how, outcome.value);
}

static void take_status(struct exec *exec) {
    struct outcome outcome;
    ssize_t n = read(exec->ends.status, &outcome, sizeof outcome);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n != sizeof outcome) { /* somebody killed the supervisor */
        finish(exec, (struct outcome){EXIT_SIGNAL, SIGKILL});
    } else if (outcome.how == NOT_AN_EXIT) {
        exec->main = (pid_t)outcome.value;
        frame_begin(STARTED, exec->channel);
        put_u32((uint32_t)exec->main);
        frame_end();
    } else {
        finish(exec, outcome);
    }
}

/* u32 channel to kill, u32 signal; 0 ends the whole tree. */
void exec_kill(uint32_t channel, struct reader *r) {
    uint32_t target = get_u32(r), number = get_u32(r);
    struct exec *exec = find(target);
    file_reads_cancel(target);
    if (!exec || !exec->supervisor) {
        send_failed(channel, ESRCH, "no such command");
        return;
    }
    if (number) kill_descendants(exec->supervisor, (int)number);
    else kill_tree(exec->supervisor);
    send_ok(channel);
}

/* One DATA frame for each command that lives: u32 channel, u32 supervisor, u8 main has ended, u32
 * flags, u32 main process, its arguments. */
void exec_list(uint32_t channel) {
    for (struct exec *exec = execs; exec; exec = exec->next) {
        if (!exec->supervisor) continue;
        frame_begin(DATA, channel);
        put_u32(exec->channel);
        put_u32((uint32_t)exec->supervisor);
        put_u8((uint8_t)exec->answered);
        put_u32(exec->flags);
        put_u32((uint32_t)exec->main);
        put_string(exec->label);
        frame_end();
    }
    frame_begin(END, channel);
    frame_end();
}

size_t exec_poll_count(void) {
    size_t count = 0;
    for (struct exec *exec = execs; exec; exec = exec->next) count += 4;
    return count;
}

size_t exec_poll_fill(struct pollfd *fds) {
    size_t used = 0;
    for (struct exec *exec = execs; exec; exec = exec->next) {
        int held = is_held(exec);
        exec->polled = used;
        /* poll() skips negative descriptors */
        fds[used++] = (struct pollfd){exec->input_used ? exec->ends.in : -1, POLLOUT, 0};
        fds[used++] = (struct pollfd){held ? -1 : exec->ends.out, POLLIN, 0};
        fds[used++] = (struct pollfd){held ? -1 : exec->ends.err, POLLIN, 0};
        /* The start of a process is told whether or not there is room for its output. */
        int wait = held && (exec->main || !(exec->flags & EXEC_WINDOW));
        fds[used++] = (struct pollfd){wait ? -1 : exec->ends.status, POLLIN, 0};
    }
    return used;
}

void exec_poll_handle(const struct pollfd *fds, size_t count) {
    for (struct exec *exec = execs; exec; exec = exec->next) {
        const struct pollfd *mine = fds + exec->polled;
        if (exec->polled + 4 > count) continue; /* started since */
        if (mine[0].revents && exec->ends.in >= 0 && exec->input_used) feed(exec);
        if (mine[1].revents) take_output(exec, 0);
        if (mine[2].revents) take_output(exec, 1);
        if (mine[3].revents && exec->ends.status >= 0) take_status(exec);
    }
}

/* Commands that had ended while their output waited for the host. */
static void finish_drained(void) {
    for (struct exec *exec = execs; exec; exec = exec->next)
        if (exec->ended && !exec->answered && drain(exec))
            answer(exec, exec->outcome.how, exec->outcome.value);
}

/* Forgets commands that were answered, whose tree is gone and whose pipes are closed. */
static void forget_finished(void) {
    for (struct exec **at = &execs; *at;) {
        struct exec *exec = *at;
        if (exec->answered && !exec->supervisor) {
            close_end(&exec->ends.out);
            close_end(&exec->ends.err);
            *at = exec->next;
            free(exec->label);
            free(exec);
        } else {
            at = &exec->next;
        }
    }
}

static int is_supervisor(pid_t pid) {
    for (struct exec *exec = execs; exec; exec = exec->next)
        if (exec->supervisor == pid) return 1;
    return 0;
}

/* A command that kills its own supervisor would escape its time-out: what then falls to PID 1
 * is ended. */
static void end_strays(void) {
    static int64_t last;
    if (!supervisor_died) return;
    if (now_ms() - last < 20) return;
    last = now_ms();
    if (!kill_children_but(is_supervisor)) supervisor_died = 0;
}

void exec_reap(void) {
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (struct exec *exec = execs; exec; exec = exec->next) {
            if (exec->supervisor != pid) continue;
            exec->supervisor = 0;
            if (WIFSIGNALED(status)) supervisor_died = 1;
        }
    finish_drained();
    end_strays();
    forget_finished();
}

int64_t exec_next_deadline(void) {
    int64_t next = 0;
    for (struct exec *exec = execs; exec; exec = exec->next)
        if (exec->deadline && (!next || exec->deadline < next)) next = exec->deadline;
    return next;
}

void exec_check_deadlines(void) {
    int64_t now = now_ms();
    for (struct exec *exec = execs; exec; exec = exec->next) {
        if (!exec->deadline || now < exec->deadline) continue;
        if (exec->supervisor) kill_tree(exec->supervisor);
        exec->deadline = 0;
        finish(exec, (struct outcome){EXIT_TIMEOUT, 0});
    }
}

void exec_shift_deadlines(int64_t by_ms) {
    for (struct exec *exec = execs; exec; exec = exec->next) {
        exec->started += by_ms;
        if (exec->deadline) exec->deadline += by_ms;
    }
}

/* u64: the smallest size worth killing. Answer: u32 pid, u64 bytes; both 0 where none was. */
void relieve_memory(uint32_t channel, struct reader *r) {
    uint64_t least = get_u64(r), pages;
    pid_t biggest = biggest_process(&pages);
    uint64_t bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    if (bytes < least) biggest = 0;
    if (biggest) kill(biggest, SIGKILL);
    frame_begin(OK, channel);
    put_u32((uint32_t)biggest);
    put_u64(biggest ? bytes : 0);
    frame_end();
}
