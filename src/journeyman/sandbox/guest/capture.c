#include "capture.h"

#include <stdlib.h>
#include <string.h>

#include "agent.h"

void capture_start(struct capture *c, size_t limit) {
    memset(c, 0, sizeof *c);
    c->half = limit / 2 ? limit / 2 : 1;
}

static void add_head(struct capture *c, const unsigned char *data, size_t length) {
    if (c->head_used + length > c->head_capacity) {
        c->head_capacity = (c->head_used + length) * 2;
        if (c->head_capacity > c->half) c->head_capacity = c->half;
        c->head = must_grow(c->head, c->head_capacity);
    }
    memcpy(c->head + c->head_used, data, length);
    c->head_used += length;
}

static void add_tail(struct capture *c, const unsigned char *data, size_t length) {
    if (!c->tail) c->tail = must_alloc(c->half);
    if (length > c->half) {
        data += length - c->half;
        length = c->half;
    }
    while (length) {
        size_t n = c->half - c->tail_at;
        if (n > length) n = length;
        memcpy(c->tail + c->tail_at, data, n);
        c->tail_at = (c->tail_at + n) % c->half;
        c->tail_used = c->tail_used + n > c->half ? c->half : c->tail_used + n;
        data += n;
        length -= n;
    }
}

void capture_add(struct capture *c, const unsigned char *data, size_t length) {
    c->total += length;
    size_t n = c->half - c->head_used;
    if (n > length) n = length;
    if (n) add_head(c, data, n);
    if (length > n) add_tail(c, data + n, length - n);
}

void send_output(uint32_t channel, uint8_t stream, const unsigned char *data, size_t length) {
    while (length) {
        size_t n = length > CHUNK ? CHUNK : length;
        frame_begin(OUTPUT, channel);
        put_u8(stream);
        put_bytes(data, n);
        frame_end();
        data += n;
        length -= n;
    }
}

uint64_t capture_send(struct capture *c, uint32_t channel, uint8_t stream) {
    uint64_t dropped = c->total - c->head_used - c->tail_used;
    send_output(channel, stream, c->head, c->head_used);
    if (c->tail_used == c->half) { /* the ring wrapped, or is just full: oldest byte first */
        send_output(channel, stream, c->tail + c->tail_at, c->half - c->tail_at);
        send_output(channel, stream, c->tail, c->tail_at);
    } else {
        send_output(channel, stream, c->tail, c->tail_used);
    }
    free(c->head);
    free(c->tail);
    c->head = c->tail = NULL;
    return dropped;
}
