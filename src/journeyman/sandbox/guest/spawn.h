/* Starting one command below its supervisor. */
#ifndef JOURNEYMAN_SPAWN_H
#define JOURNEYMAN_SPAWN_H

#include <stdint.h>
#include <sys/types.h>

struct command {
    char *cwd, **argv, **envp; /* an empty cwd is the account's home */
    const char *digest_root;   /* instead of argv: run digest_main on it */
    const struct account *account; /* NULL: root, with the environment as it is */
    int with_stdin, reports_start, terminal;
    uint16_t rows, columns; /* of the terminal */
};
/* What a supervisor reports about its main process, over the status pipe: its end, and where that
 * is asked for, its start. */
struct outcome { uint32_t how; int32_t value; };
/* The agent's ends: in (or -1), out, err, status. Of a terminal in and out are the same thing, and
 * err is -1. */
struct ends { int in, out, err, status; };

/* Returns the supervisor's pid, or -1 with errno set. */
pid_t spawn(const struct command *command, struct ends *ends);

#endif
