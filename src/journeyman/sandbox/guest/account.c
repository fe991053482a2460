#include "account.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent.h"

static const struct passwd *look_up(const char *name) {
    const struct passwd *found = getpwnam(name);
    char *end;
    unsigned long number = strtoul(name, &end, 10);
    if (!found && *name && !*end) found = getpwuid((uid_t)number);
    return found;
}

int account_find(const char *name, struct account *account) {
    errno = 0;
    const struct passwd *found = look_up(name);
    if (!found) return ENOENT;
    account->user = found->pw_uid;
    account->group_count = MOST_GROUPS;
    if (getgrouplist(found->pw_name, found->pw_gid, account->groups, &account->group_count) < 0)
        account->group_count = MOST_GROUPS; /* in more than fit: those have been filled in */
    snprintf(account->name, sizeof account->name, "%s", found->pw_name);
    snprintf(account->home, sizeof account->home, "%s", *found->pw_dir ? found->pw_dir : "/");
    snprintf(account->shell, sizeof account->shell, "%s",
             *found->pw_shell ? found->pw_shell : "/bin/sh");
    return 0;
}

void account_become(const struct account *account) {
    gid_t primary = account->groups[0];
    if (setgroups((size_t)account->group_count, account->groups) ||
        setresgid(primary, primary, primary) ||
        setresuid(account->user, account->user, account->user))
        _exit(76);
}

static int holds(char **environment, const char *name) {
    size_t length = strlen(name);
    for (; *environment; environment++)
        if (!strncmp(*environment, name, length) && (*environment)[length] == '=') return 1;
    return 0;
}

char **account_environment(const struct account *account, char **given) {
    const char *names[] = {"HOME", "USER", "LOGNAME", "SHELL"};
    const char *values[] = {account->home, account->name, account->name, account->shell};
    size_t count = 0;
    while (given[count]) count++;
    char **all = must_alloc((count + 5) * sizeof *all);
    memcpy(all, given, count * sizeof *all);
    for (size_t i = 0; i < 4; i++) {
        if (holds(given, names[i])) continue;
        size_t size = strlen(names[i]) + strlen(values[i]) + 2;
        all[count] = must_alloc(size);
        snprintf(all[count++], size, "%s=%s", names[i], values[i]);
    }
    all[count] = NULL;
    return all;
}
