/* Limits on what commands may use, set once by the host on the agent's command line. */
#ifndef JOURNEYMAN_LIMITS_H
#define JOURNEYMAN_LIMITS_H

#include <stdint.h>

struct limits { uint64_t processes, open_files, process_bytes; };
extern struct limits limits;

/* Prepares the group that bounds the number of processes, where the kernel has one for us. */
void limits_start(void);
/* Whether new processes may be made at all; for ending a fork bomb. */
void limits_allow_processes(int allow);
/* Whether more than half of the allowed processes exist. */
int limits_crowded(void);
/* In a supervisor: joins that group. What it forks from here on counts. */
void limits_join(void);
/* In a command: resource limits. */
void limits_apply(void);

#endif
