/* Bounded output: the first and the last `half` bytes are kept, what lies between is counted. */
#ifndef JOURNEYMAN_CAPTURE_H
#define JOURNEYMAN_CAPTURE_H

#include <stddef.h>
#include <stdint.h>

struct capture {
    unsigned char *head, *tail;
    size_t half, head_used, head_capacity, tail_used, tail_at;
    uint64_t total;
};
void capture_start(struct capture *c, size_t limit);
void capture_add(struct capture *c, const unsigned char *data, size_t length);
/* Sends what was kept as OUTPUT frames of `stream` and frees it. Returns the bytes dropped. */
uint64_t capture_send(struct capture *c, uint32_t channel, uint8_t stream);
void send_output(uint32_t channel, uint8_t stream, const unsigned char *data, size_t length);

#endif
