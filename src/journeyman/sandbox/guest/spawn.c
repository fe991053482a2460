#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "account.h"
#include "agent.h"
#include "limits.h"
#include "privilege.h"

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

extern char **environ;

static void complain(const char *what, const char *name, int error) {
    dprintf(STDERR_FILENO, "cannot %s '%s': %s\n", what, name, strerror(error));
}

/* The command itself: never returns. */
static void become(const struct command *command, const int stdio[3]) {
    sigset_t none;
    const struct account *account = command->account;
    const char *cwd = account && !*command->cwd ? account->home : command->cwd;
    setsid();
    if (command->terminal) ioctl(stdio[0], TIOCSCTTY, 0);
    for (int fd = 0; fd < 3; fd++)
        if (dup2(stdio[fd], fd) < 0) _exit(126);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGCHLD, SIG_DFL);
    limits_apply();
    privilege_for_command();
    if (account) account_become(account);
    if (command->digest_root) _exit(digest_main(command->digest_root));
    if (chdir(cwd)) {
        complain("change to directory", cwd, errno);
        _exit(126);
    }
    /* execvp searches this PATH */
    environ = account ? account_environment(account, command->envp) : command->envp;
    execvp(command->argv[0], command->argv);
    int error = errno;
    complain("run", command->argv[0], error);
    _exit(error == ENOENT ? 127 : 126);
}

static void report(int status_fd, uint32_t how, int32_t value) {
    struct outcome outcome = {how, value};
    if (write(status_fd, &outcome, sizeof outcome) != sizeof outcome) _exit(1);
}

static void report_end(int status_fd, int status) {
    if (WIFSIGNALED(status)) report(status_fd, EXIT_SIGNAL, WTERMSIG(status));
    else report(status_fd, EXIT_CODE, WEXITSTATUS(status));
}

/* Adopts and reaps every orphan of the command, and ends with the last of them. */
static void supervise(const struct command *command, int stdio[3], int status_fd) {
    prctl(PR_SET_NAME, "supervisor");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    signal(SIGCHLD, SIG_DFL);
    pid_t main = fork();
    if (main == 0) become(command, stdio);
    if (main < 0) {
        report(status_fd, EXIT_NOT_STARTED, errno);
        _exit(0);
    }
    if (command->reports_start) report(status_fd, NOT_AN_EXIT, main);
    for (int fd = 0; fd < 3; fd++) close(stdio[fd]);
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, 0);
        if (pid < 0 && errno == EINTR) continue;
        if (pid < 0) _exit(0);
        if (pid == main) {
            report_end(status_fd, status);
            close(status_fd);
        }
    }
}

static void close_all(int pipes[4][2]) {
    for (int i = 0; i < 4; i++)
        for (int end = 0; end < 2; end++)
            if (pipes[i][end] >= 0) close(pipes[i][end]);
}

/* One end for the agent to read and write, one for the command's three. */
static int open_terminal(int pipes[4][2], const struct command *command) {
    struct winsize size = {command->rows, command->columns, 0, 0};
    char name[64];
    int ours = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (ours < 0) return -1;
    pipes[1][0] = ours;
    if (grantpt(ours) || unlockpt(ours) || ptsname_r(ours, name, sizeof name)) return -1;
    ioctl(ours, TIOCSWINSZ, &size);
    int theirs = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (theirs < 0) return -1;
    pipes[1][1] = theirs;
    pipes[0][0] = fcntl(theirs, F_DUPFD_CLOEXEC, 0);
    pipes[0][1] = fcntl(ours, F_DUPFD_CLOEXEC, 0);
    pipes[2][1] = fcntl(theirs, F_DUPFD_CLOEXEC, 0);
    if (command->account && fchown(theirs, command->account->user, (gid_t)-1)) {
        /* A program that opens /dev/tty has the descriptors it inherits all the same. */
    }
    return pipe2(pipes[3], O_CLOEXEC);
}

static int open_pipes(int pipes[4][2], const struct command *command) {
    if (command->terminal) return open_terminal(pipes, command);
    if (command->with_stdin) {
        if (pipe2(pipes[0], O_CLOEXEC)) return -1;
    } else {
        pipes[0][0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (pipes[0][0] < 0) return -1;
    }
    for (int i = 1; i < 4; i++)
        if (pipe2(pipes[i], O_CLOEXEC)) return -1;
    return 0;
}

/* The agent's own descriptors are no command's business. Those marked close-on-exec would do as
 * well, but a supervisor never execs. One system call for each gap: a loop over every possible
 * descriptor would cost more than all the rest of a command. */
static void keep_only(const int kept[4]) {
    unsigned first = 0;
    for (;;) {
        unsigned next = ~0u;
        for (int i = 0; i < 4; i++)
            if ((unsigned)kept[i] >= first && (unsigned)kept[i] < next) next = (unsigned)kept[i];
        if (next > first) syscall(SYS_close_range, first, next == ~0u ? next : next - 1, 0);
        if (next == ~0u) return;
        first = next + 1;
    }
}

pid_t spawn(const struct command *command, struct ends *ends) {
    int pipes[4][2] = {{-1, -1}, {-1, -1}, {-1, -1}, {-1, -1}};
    if (open_pipes(pipes, command)) {
        int error = errno;
        close_all(pipes);
        errno = error;
        return -1;
    }
    int theirs[4] = {pipes[0][0], pipes[1][1], pipes[2][1], pipes[3][1]};
    pid_t pid = fork();
    if (pid == 0) {
        limits_join();
        keep_only(theirs);
        supervise(command, theirs, theirs[3]);
    }
    int error = errno;
    for (int i = 0; i < 4; i++) close(theirs[i]);
    *ends = (struct ends){pipes[0][1], pipes[1][0], pipes[2][0], pipes[3][0]};
    if (pid < 0) {
        int opened[4] = {ends->in, ends->out, ends->err, ends->status};
        for (int i = 0; i < 4; i++)
            if (opened[i] >= 0) close(opened[i]);
        errno = error;
        return -1;
    }
    int ours[4] = {ends->in, ends->out, ends->err, ends->status};
    for (int i = 0; i < 4; i++)
        if (ours[i] >= 0) fcntl(ours[i], F_SETFL, O_NONBLOCK);
    return pid;
}
