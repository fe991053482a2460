/* Keeping the agent out of reach of what it runs.
 *
 * Commands are root in the sandbox, as people expect. Were the agent root too, `kill -9 1` or a
 * write to /proc/1/fd/1 would end the sandbox (gVisor does not shield PID 1 from signals). So the
 * agent lives under a user id of its own, with the capabilities it needs, and commands lack those
 * that would let them reach it: CAP_KILL and CAP_SYS_ADMIN. */
#ifndef JOURNEYMAN_PRIVILEGE_H
#define JOURNEYMAN_PRIVILEGE_H

#include <stdint.h>

/* In the agent, once. Where the id is not to be had (an unprivileged namespace) it stays root. */
void privilege_step_aside(void);
/* In a command, before it runs: root, without the agent's capabilities. */
void privilege_for_command(void);
/* Files the agent makes belong to whom the host names, never to the agent. */
struct owner { uint32_t user, group; };
void give_to(struct owner owner, int fd);
void give_path_to(struct owner owner, const char *path);

#endif
