/* Whose rights a command has. */
#ifndef JOURNEYMAN_ACCOUNT_H
#define JOURNEYMAN_ACCOUNT_H

#include <limits.h>
#include <sys/types.h>

#define MOST_GROUPS 64

struct account {
    uid_t user;
    gid_t groups[MOST_GROUPS]; /* the first is the primary one */
    int group_count;
    char name[64], home[PATH_MAX], shell[PATH_MAX];
};

/* By name or by number, as the guest's own files have it. Returns an errno or 0. */
int account_find(const char *name, struct account *account);
/* In a child: takes on that user's rights and none else. Ends it where that is refused. */
void account_become(const struct account *account);
/* HOME, USER, LOGNAME and SHELL where the environment, which NULL ends, leaves them out. */
char **account_environment(const struct account *account, char **given);

#endif
