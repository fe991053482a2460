/* The guest agent: PID 1 of a sandbox. It speaks one framed, multiplexed protocol on stdin and
 * stdout (see ../wire/frames.py, the other end of every constant here).
 *
 * Rules: one thread; nothing here blocks except on local files; every buffer is bounded. */
#ifndef JOURNEYMAN_AGENT_H
#define JOURNEYMAN_AGENT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PROTOCOL_VERSION 2
#define MAX_PAYLOAD (1u << 20)
#define CHUNK (64u << 10)
/* Above this many unsent bytes, producers of streams and file contents wait. */
#define OUTBOX_HIGH (512u << 10)
#define STDIN_WINDOW (256u << 10)
#define OUTPUT_WINDOW (256u << 10)

enum frame_kind {
    /* host to guest */
    EPOCH = 1, QUIESCE = 2, EXEC = 3, STDIN = 4, KILL = 5, LIST_EXECS = 6, RESIZE = 7, GRANT = 8,
    READ = 10, WRITE_OPEN = 11, WRITE_DATA = 12, WRITE_COMMIT = 13, WRITE_ABORT = 14,
    STAT = 15, LIST = 16, MAKE_DIR = 17, REMOVE = 18, RENAME = 19, TREE = 20, RELIEVE = 21,
    /* guest to host */
    OK = 64, FAILED = 65, DATA = 66, END = 67, OUTPUT = 68, EXITED = 69, CREDIT = 70,
    STARTED = 71
};

/* A process with EXEC_WINDOW tells when it has started, and sends no more output than the host has
 * granted; one with EXEC_TERMINAL has a terminal for its stdin, stdout and stderr. */
enum exec_flag { EXEC_STREAM = 1, EXEC_STDIN = 2, EXEC_WINDOW = 4, EXEC_TERMINAL = 8 };
enum exit_how {
    EXIT_CODE = 0, EXIT_SIGNAL = 1, EXIT_TIMEOUT = 2, EXIT_NOT_STARTED = 3,
    NOT_AN_EXIT = 4 /* between agent and supervisor only: the value is the main process's id */
};

/* A cursor over one received payload. `bad` is set by any read past the end. */
struct reader { const unsigned char *data; size_t left; int bad; };
uint8_t get_u8(struct reader *r);
uint32_t get_u32(struct reader *r);
uint64_t get_u64(struct reader *r);
/* A NUL-terminated copy (u32 length, bytes); the caller frees it. NULL when bad or holding NUL. */
char *get_string(struct reader *r);

/* The outbox: frames not yet written to stdout. */
void frame_begin(uint8_t kind, uint32_t channel);
void put_u8(uint8_t value);
void put_u32(uint32_t value);
void put_u64(uint64_t value);
void put_bytes(const void *data, size_t length);
void put_string(const char *text);
void frame_end(void);
void send_ok(uint32_t channel);
void send_failed(uint32_t channel, int error, const char *what);
size_t outbox_size(void);
/* Writes what stdout takes now. Returns 0, or -1 when the host is gone. */
int outbox_flush(void);
extern int quiet; /* between QUIESCE and EPOCH nothing is written */

void *must_alloc(size_t size);
void *must_grow(void *old, size_t size);
int64_t now_ms(void);

struct pollfd;
/* Processes (exec.c) */
void exec_request(uint32_t channel, struct reader *r);
void exec_stdin(uint32_t channel, struct reader *r);
void exec_resize(uint32_t channel, struct reader *r);
void exec_grant(uint32_t channel, struct reader *r);
void exec_hold_windows(void);
void exec_kill(uint32_t channel, struct reader *r);
void exec_list(uint32_t channel);
void tree_request(uint32_t channel, struct reader *r);
size_t exec_poll_count(void);
size_t exec_poll_fill(struct pollfd *fds);
void exec_poll_handle(const struct pollfd *fds, size_t count);
void exec_reap(void);
int64_t exec_next_deadline(void);
void exec_check_deadlines(void);
void exec_shift_deadlines(int64_t by_ms);
/* Ends the biggest process outside the agent; answers with what it freed. */
void relieve_memory(uint32_t channel, struct reader *r);

/* Process trees (tree_kill.c) */
void kill_tree(pid_t supervisor);
void kill_descendants(pid_t supervisor, int number);
/* Kills every child of PID 1 that `keep` does not name; returns how many there were. */
size_t kill_children_but(int (*keep)(pid_t));
pid_t biggest_process(uint64_t *resident_pages);

/* Files (files.c, write.c) */
void file_read(uint32_t channel, struct reader *r);
void file_stat(uint32_t channel, struct reader *r);
void file_list(uint32_t channel, struct reader *r);
void file_make_dir(uint32_t channel, struct reader *r);
void file_remove(uint32_t channel, struct reader *r);
void file_rename(uint32_t channel, struct reader *r);
int file_reads_pending(void);
void file_reads_advance(void);
void file_reads_cancel(uint32_t channel);
void file_reads_cancel_all(void);
void write_open(uint32_t channel, struct reader *r);
void write_data(uint32_t channel, struct reader *r);
void write_commit(uint32_t channel);
void write_abort(uint32_t channel);
void write_abort_all(void);
struct owner;
int make_parents(char *path, struct owner owner);
struct owner get_owner(struct reader *r);

/* Digests of a whole tree (digest.c), run in a child: writes records to stdout. */
int digest_main(const char *root);

/* SHA-256 (sha256.c), FIPS 180-4 */
struct sha256 { uint32_t state[8]; uint64_t length; unsigned char block[64]; size_t used; };
void sha256_start(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t length);
void sha256_finish(struct sha256 *s, unsigned char out[32]);

/* Identity and entropy after every start and restore (epoch.c) */
void epoch_request(uint32_t channel, struct reader *r);
void quiesce_request(uint32_t channel);

#endif
