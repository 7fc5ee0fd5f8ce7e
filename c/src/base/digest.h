// digest.h - BLAKE2b with 32 bytes and without a key (RFC 7693), to compare contents of files.
#ifndef GB_BASE_DIGEST_H
#define GB_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define GB_DIGEST_SIZE 32

// The state of a hash whose bytes come in pieces. gb_digest_begin initializes it. It owns nothing.
struct gb_digest {
    uint64_t chain[8];
    uint64_t count;     // compressed bytes
    uint8_t block[128]; // pending bytes; the last block is compressed differently
    size_t used;        // bytes of `block`
};

void gb_digest_begin(struct gb_digest * digest);
void gb_digest_add(struct gb_digest * digest, const void * data, size_t size);
void gb_digest_end(struct gb_digest * digest, uint8_t result[GB_DIGEST_SIZE]);

#endif // GB_BASE_DIGEST_H
