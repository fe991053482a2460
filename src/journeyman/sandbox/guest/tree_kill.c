/* Walking /proc to end whole process trees.
 *
 * Every command runs below a supervisor that is a child subreaper, so a descendant stays below it
 * however often it forks, starts sessions or clears its environment. */
#include "agent.h"
#include "limits.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct process { pid_t pid, parent; char state; uint64_t resident_pages; int inside; };
struct table { struct process *rows; size_t count, capacity; };

static int read_process(const char *pid, struct process *process) {
    char name[64], text[1024];
    snprintf(name, sizeof name, "/proc/%s/stat", pid);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    char *after = strrchr(text, ')'); /* the command name may hold anything */
    if (!after) return 0;
    int parent = 0;
    long long resident = 0;
    if (sscanf(after + 1, " %c %d", &process->state, &parent) != 2) return 0;
    /* rss is field 24: 22 fields after the name, the first two just read */
    char *field = after + 1;
    for (int i = 0; field && i < 22; i++) {
        field = strchr(field + 1, ' ');
    }
    if (field) sscanf(field, "%lld", &resident);
    process->pid = atoi(pid);
    process->parent = parent;
    process->resident_pages = resident > 0 ? (uint64_t)resident : 0;
    process->inside = 0;
    return 1;
}

static void read_table(struct table *table) {
    DIR *proc = opendir("/proc");
    table->count = 0;
    if (!proc) return;
    for (struct dirent *entry; (entry = readdir(proc));) {
        if (!isdigit((unsigned char)entry->d_name[0])) continue;
        if (table->count == table->capacity) {
            table->capacity = table->capacity ? table->capacity * 2 : 64;
            table->rows = must_grow(table->rows, table->capacity * sizeof *table->rows);
        }
        table->count += (size_t)read_process(entry->d_name, &table->rows[table->count]);
    }
    closedir(proc);
}

/* Marks the living descendants of `root`; returns how many there are. */
static size_t mark_descendants(struct table *table, pid_t root) {
    size_t marked = 0;
    for (int changed = 1; changed;) {
        changed = 0;
        for (size_t i = 0; i < table->count; i++) {
            struct process *row = &table->rows[i];
            if (row->inside || row->state == 'Z' || row->pid == root) continue;
            int below = row->parent == root;
            for (size_t j = 0; !below && j < table->count; j++)
                below = table->rows[j].inside && table->rows[j].pid == row->parent;
            if (!below) continue;
            row->inside = 1;
            marked++;
            changed = 1;
        }
    }
    return marked;
}

static void signal_marked(const struct table *table, int number) {
    for (size_t i = 0; i < table->count; i++)
        if (table->rows[i].inside) kill(table->rows[i].pid, number);
}

void kill_tree(pid_t supervisor) {
    static struct table table;
    const struct timespec pause = {0, 2000000};
    /* What forks faster than we walk is kept from forking. That can fail a fork of an innocent
     * neighbour, so only where it is needed. */
    int frozen = limits_crowded();
    if (frozen) limits_allow_processes(0);
    for (int round = 0; round < 500; round++) {
        read_table(&table);
        if (!mark_descendants(&table, supervisor)) break;
        signal_marked(&table, SIGKILL);
        if (round == 2 && !frozen) {
            limits_allow_processes(0);
            frozen = 1;
        }
        nanosleep(&pause, NULL);
    }
    if (frozen) limits_allow_processes(1);
}

void kill_descendants(pid_t supervisor, int number) {
    static struct table table;
    read_table(&table);
    mark_descendants(&table, supervisor);
    signal_marked(&table, number);
}

size_t kill_children_but(int (*keep)(pid_t)) {
    static struct table table;
    size_t killed = 0;
    read_table(&table);
    for (size_t i = 0; i < table.count; i++) {
        struct process *row = &table.rows[i];
        if (row->parent != 1 || row->state == 'Z' || keep(row->pid)) continue;
        kill(row->pid, SIGKILL);
        killed++;
    }
    return killed;
}

pid_t biggest_process(uint64_t *resident_pages) {
    static struct table table;
    pid_t biggest = 0;
    *resident_pages = 0;
    read_table(&table);
    for (size_t i = 0; i < table.count; i++) {
        struct process *row = &table.rows[i];
        /* Children of PID 1 are supervisors: tiny, and needed to end what is below them. */
        if (row->pid == 1 || row->parent <= 1 || row->state == 'Z') continue;
        if (row->resident_pages < *resident_pages) continue;
        biggest = row->pid;
        *resident_pages = row->resident_pages;
    }
    return biggest;
}
