/* Keys of JSON, compared by words of eight characters. */
#ifndef SPARK_MQ_SOURCE_JSON_CHARACTERS_H
#define SPARK_MQ_SOURCE_JSON_CHARACTERS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A known key, of a wanted field or of an unwanted member. */
typedef struct {
    unsigned char *text; /* with its quotes */
    ptrdiff_t size;
    ptrdiff_t needed;  /* characters that must remain; more than can exist for a key that payloads may escape */
    uint64_t first[2]; /* its first characters, one for each set byte of `mask` */
    uint64_t mask[2];
    uint64_t last[2]; /* its last characters, if it has at least sixteen */
    int slot;         /* index of its field; negative for none */
    int next;         /* index of the key that followed it last time; negative if unknown */
} json_key;

/* Return whether a text of at least sixteen characters begins with a key. */
static inline int json_begins(const json_key *key, const unsigned char *at) {
    uint64_t one, other;
    memcpy(&one, at, 8);
    memcpy(&other, at + 8, 8);
    if (((one ^ key->first[0]) & key->mask[0]) | ((other ^ key->first[1]) & key->mask[1]))
        return 0;
    if (key->size <= 16)
        return 1;
    if (key->size > 32)
        return memcmp(at + 16, key->text + 16, key->size - 16) == 0;
    memcpy(&one, at + key->size - 16, 8);
    memcpy(&other, at + key->size - 8, 8);
    return one == key->last[0] && other == key->last[1];
}

/* Return whether a text begins with a key, including its quotes. */
static inline int json_is_key(const json_key *key, const unsigned char *at, const unsigned char *end,
                              const unsigned char *limit) {
    if (end - at < key->needed)
        return 0;
    return limit - at < 16 ? memcmp(at, key->text, key->size) == 0 : json_begins(key, at);
}

/* Return whether all bytes are ASCII. */
static inline int json_is_ascii(const unsigned char *data, ptrdiff_t size) {
    uint64_t words[4], found = 0;
    ptrdiff_t at;
    if (size < 32) {
        for (at = 0; at < size; at++)
            found |= data[at];
        return found < 0x80;
    }
    for (at = 0; size - at > 32; at += 32) {
        memcpy(words, data + at, 32);
        found |= words[0] | words[1] | words[2] | words[3];
    }
    /* The last 32 bytes, some of them for the second time. */
    memcpy(words, data + size - 32, 32);
    found |= words[0] | words[1] | words[2] | words[3];
    return !(found & 0x8080808080808080u);
}

#endif
