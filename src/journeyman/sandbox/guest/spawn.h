/* Starting one command below its supervisor. */
#ifndef JOURNEYMAN_SPAWN_H
#define JOURNEYMAN_SPAWN_H

#include <stdint.h>
#include <sys/types.h>

struct command {
    char *cwd, **argv, **envp;
    const char *digest_root; /* instead of argv: run digest_main on it */
};
/* What a supervisor reports about its main process, once, over the status pipe. */
struct outcome { uint32_t how; int32_t value; };
/* The agent's ends: in (or -1), out, err, status. */
struct ends { int in, out, err, status; };

/* Returns the supervisor's pid, or -1 with errno set. */
pid_t spawn(const struct command *command, int with_stdin, struct ends *ends);

#endif
