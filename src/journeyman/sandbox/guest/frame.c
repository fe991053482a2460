/* Reading payloads and writing frames. Frame: u32 payload length, u8 kind, u32 channel, payload;
 * little-endian throughout. */
#include "agent.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int quiet = 0;
static unsigned char *outbox;
static size_t outbox_start, outbox_end, outbox_capacity, frame_start;

void *must_alloc(size_t size) { return must_grow(NULL, size); }

void *must_grow(void *old, size_t size) {
    void *grown = realloc(old, size ? size : 1);
    if (!grown) _exit(70); /* PID 1 without memory: the host sees the sandbox end */
    return grown;
}

int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static const unsigned char *take(struct reader *r, size_t length) {
    if (r->bad || r->left < length) {
        r->bad = 1;
        return NULL;
    }
    const unsigned char *at = r->data;
    r->data += length;
    r->left -= length;
    return at;
}

uint8_t get_u8(struct reader *r) {
    const unsigned char *at = take(r, 1);
    return at ? *at : 0;
}

uint32_t get_u32(struct reader *r) {
    uint32_t value = 0;
    const unsigned char *at = take(r, sizeof value);
    if (at) memcpy(&value, at, sizeof value);
    return value;
}

uint64_t get_u64(struct reader *r) {
    uint64_t value = 0;
    const unsigned char *at = take(r, sizeof value);
    if (at) memcpy(&value, at, sizeof value);
    return value;
}

char *get_string(struct reader *r) {
    uint32_t length = get_u32(r);
    const unsigned char *at = take(r, length);
    if (!at || memchr(at, 0, length)) {
        r->bad = 1;
        return NULL;
    }
    char *copy = must_alloc((size_t)length + 1);
    memcpy(copy, at, length);
    copy[length] = 0;
    return copy;
}

static void append(const void *data, size_t length) {
    if (outbox_end + length > outbox_capacity) {
        memmove(outbox, outbox + outbox_start, outbox_end - outbox_start);
        outbox_end -= outbox_start;
        frame_start -= outbox_start;
        outbox_start = 0;
        if (outbox_end + length > outbox_capacity) {
            outbox_capacity = (outbox_end + length) * 2;
            outbox = must_grow(outbox, outbox_capacity);
        }
    }
    memcpy(outbox + outbox_end, data, length);
    outbox_end += length;
}

void frame_begin(uint8_t kind, uint32_t channel) {
    frame_start = outbox_end;
    put_u32(0);
    put_u8(kind);
    put_u32(channel);
}

void put_u8(uint8_t value) { append(&value, sizeof value); }
void put_u32(uint32_t value) { append(&value, sizeof value); }
void put_u64(uint64_t value) { append(&value, sizeof value); }
void put_bytes(const void *data, size_t length) { append(data, length); }

void put_string(const char *text) {
    put_u32((uint32_t)strlen(text));
    append(text, strlen(text));
}

void frame_end(void) {
    uint32_t length = (uint32_t)(outbox_end - frame_start - 9);
    memcpy(outbox + frame_start, &length, sizeof length);
}

void send_ok(uint32_t channel) {
    frame_begin(OK, channel);
    frame_end();
}

void send_failed(uint32_t channel, int error, const char *what) {
    frame_begin(FAILED, channel);
    put_u32((uint32_t)error);
    put_string(what);
    frame_end();
}

size_t outbox_size(void) { return outbox_end - outbox_start; }

int outbox_flush(void) {
    while (outbox_start < outbox_end) {
        ssize_t n = write(STDOUT_FILENO, outbox + outbox_start, outbox_end - outbox_start);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return 0;
        if (n < 0) return -1;
        outbox_start += (size_t)n;
    }
    outbox_start = outbox_end = 0;
    if (outbox_capacity > 4 * OUTBOX_HIGH) { /* give back what a burst took */
        free(outbox);
        outbox = NULL;
        outbox_capacity = 0;
    }
    return 0;
}
