// digest.c - BLAKE2b as in RFC 7693. Words are read byte by byte, so every machine computes the
// same digest.
#include "base/digest.h"

#include <string.h>

enum { ROUNDS = 12, BLOCK = 128 };

static const uint64_t initial[8] = {
    0x6a09e667f3bcc908,
    0xbb67ae8584caa73b,
    0x3c6ef372fe94f82b,
    0xa54ff53a5f1d36f1,
    0x510e527fade682d1,
    0x9b05688c2b3e6c1f,
    0x1f83d9abfb41bd6b,
    0x5be0cd19137e2179,
};

// The order of a block's words in each round. Round 10 is as round 0, round 11 as round 1.
static const uint8_t order[10][16] = {
    { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 },
    { 14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3 },
    { 11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4 },
    { 7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8 },
    { 9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13 },
    { 2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9 },
    { 12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11 },
    { 13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10 },
    { 6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5 },
    { 10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0 },
};

static inline uint64_t rotate(uint64_t x, int n) { return x >> n | x << (64 - n); }

static inline uint64_t read_word(const uint8_t * p) {
    uint64_t x = 0;
    for (int i = 7; i >= 0; i--) {
        x = x << 8 | p[i];
    }
    return x;
}

// Mixes two words of the block into a column or a diagonal of the state.
static inline void mix(uint64_t * a, uint64_t * b, uint64_t * c, uint64_t * d, uint64_t x, uint64_t y) {
    *a += *b + x;
    *d = rotate(*d ^ *a, 32);
    *c += *d;
    *b = rotate(*b ^ *c, 24);
    *a += *b + y;
    *d = rotate(*d ^ *a, 16);
    *c += *d;
    *b = rotate(*b ^ *c, 63);
}

// `count`: bytes up to the end of this block. `last`: no block follows.
static void compress(struct gb_digest * digest, const uint8_t * block, uint64_t count, int last) {
    uint64_t v[16], words[16];
    for (int i = 0; i < 8; i++) {
        v[i] = digest->chain[i];
        v[i + 8] = initial[i];
    }
    for (int i = 0; i < 16; i++) {
        words[i] = read_word(block + 8 * i);
    }
    v[12] ^= count;
    v[14] = last ? ~v[14] : v[14];
    for (int r = 0; r < ROUNDS; r++) {
        const uint8_t * o = order[r % 10];
        for (int i = 0; i < 4; i++) {
            mix(&v[i], &v[4 + i], &v[8 + i], &v[12 + i], words[o[2 * i]], words[o[2 * i + 1]]);
        }
        for (int i = 0; i < 4; i++) {
            mix(&v[i], &v[4 + (i + 1) % 4], &v[8 + (i + 2) % 4], &v[12 + (i + 3) % 4], words[o[8 + 2 * i]],
                words[o[8 + 2 * i + 1]]);
        }
    }
    for (int i = 0; i < 8; i++) {
        digest->chain[i] ^= v[i] ^ v[i + 8];
    }
}

void gb_digest_begin(struct gb_digest * digest) {
    *digest = (struct gb_digest){ .count = 0 };
    memcpy(digest->chain, initial, sizeof(initial));
    digest->chain[0] ^= 0x01010000 ^ GB_DIGEST_SIZE; // a plain hash of this many bytes, without a key
}

// Compresses a full block only when another byte comes, because the last block is compressed
// differently.
void gb_digest_add(struct gb_digest * digest, const void * data, size_t size) {
    const uint8_t * p = data;
    while (size > 0) {
        if (digest->used == BLOCK) {
            digest->count += BLOCK;
            compress(digest, digest->block, digest->count, 0);
            digest->used = 0;
        }
        for (; digest->used == 0 && size > BLOCK; p += BLOCK, size -= BLOCK) {
            digest->count += BLOCK;
            compress(digest, p, digest->count, 0);
        }
        const size_t n = size < BLOCK - digest->used ? size : BLOCK - digest->used;
        memcpy(digest->block + digest->used, p, n);
        digest->used += n;
        p += n;
        size -= n;
    }
}

void gb_digest_end(struct gb_digest * digest, uint8_t result[GB_DIGEST_SIZE]) {
    memset(digest->block + digest->used, 0, BLOCK - digest->used);
    compress(digest, digest->block, digest->count + digest->used, 1);
    for (int i = 0; i < GB_DIGEST_SIZE; i++) {
        result[i] = (uint8_t) (digest->chain[i / 8] >> 8 * (i % 8));
    }
}
