/* Keys of JSON, and what is skipped of it, by sixteen characters at a time.
 *
 * Every x86-64 compares sixteen characters at once (SSE2). What is skipped here is what most payloads have; the rest,
 * and all of it on other processors, is left to the general way, with the same result.
 */
#ifndef SPARK_MQ_SOURCE_JSON_CHARACTERS_H
#define SPARK_MQ_SOURCE_JSON_CHARACTERS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A key that is known: of a field, or one that payloads have and nobody wants. */
typedef struct {
    unsigned char *text; /* with its quotes */
    ptrdiff_t size;
    ptrdiff_t least;   /* so many characters are needed for it: more than there can be if payloads have it escaped */
    uint64_t first[2]; /* its first characters, as many as `mask` has bytes that are set */
    uint64_t mask[2];
    uint64_t last[2]; /* its last ones, if it has sixteen */
    int slot;         /* which field it is; negative for none */
    int next;         /* which key follows it, as the last payload had them; negative if that is not known */
} json_key;

/* Whether sixteen characters, and those behind them, begin with a key. */
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

/* Whether a key stands at `at`, with its quotes. */
static inline int json_is_key(const json_key *key, const unsigned char *at, const unsigned char *end,
                              const unsigned char *limit) {
    if (end - at < key->least)
        return 0;
    return limit - at < 16 ? memcmp(at, key->text, key->size) == 0 : json_begins(key, at);
}

#if defined(SPARK_MQ_NO_SIXTEEN)
#define JSON_HAS_SIXTEEN 0
#elif defined(__GNUC__) && defined(__SSE2__)
#define JSON_HAS_SIXTEEN 1
#include <emmintrin.h>

/* Which of sixteen characters are no digits, a bit each; what is behind them is none. */
static inline uint64_t json_no_digits(const unsigned char *text) {
    /* Bytes are compared as signed ones: digits become the lowest ten. */
    __m128i moved = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)text), _mm_set1_epi8((char)('0' + 128)));
    return (uint32_t)_mm_movemask_epi8(_mm_cmpgt_epi8(moved, _mm_set1_epi8(9 - 128))) | 0x10000;
}

/* Where the first quote is among sixteen characters; negative if a backslash or a control character comes before it. */
static inline ptrdiff_t json_quote(const unsigned char *text) {
    const __m128i all = _mm_loadu_si128((const __m128i *)text);
    const uint64_t quotes = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(all, _mm_set1_epi8('"'))) | 0x10000;
    const __m128i other = _mm_or_si128(_mm_cmpeq_epi8(all, _mm_set1_epi8('\\')),
                                       _mm_cmpeq_epi8(_mm_min_epu8(all, _mm_set1_epi8(0x1F)), all));
    return (uint32_t)_mm_movemask_epi8(other) & (quotes - 1) ? -1 : (ptrdiff_t)__builtin_ctzll(quotes);
}
#else
#define JSON_HAS_SIXTEEN 0
#endif

#if JSON_HAS_SIXTEEN
/* So many characters are looked at of a member: of a key that was learnt, at most 66. */
enum { JSON_MARGIN = 128 };

/* Behind a value that is a short string without escapes, a number of few digits, a boolean or null, perhaps behind the
 * payload if it does not end in it; NULL for any other. The next 64 characters must be there. */
static inline unsigned char *json_skip_short(unsigned char *at) {
    unsigned char first = *at;
    ptrdiff_t count;
    if (first == '"') {
        count = json_quote(at + 1);
        return count >= 0 && at[1 + count] == '"' ? at + 2 + count : NULL;
    }
    if (first == '-')
        first = *++at;
    if ((unsigned char)(first - '0') <= 9) {
        uint64_t others = json_no_digits(at);
        count = __builtin_ctzll(others);
        if (first == '0' && count > 1)
            return NULL;
        at += count;
        if (*at == '.') {
            others >>= count + 1;
            if (!others || others & 1)
                return NULL;
            at += 1 + __builtin_ctzll(others);
        }
        /* More digits than were looked at, or an exponent. */
        return (unsigned char)(*at - '0') <= 9 || (*at | 0x20) == 'e' ? NULL : at;
    }
    if (at[-1] == '-')
        return NULL; /* -Infinity, or nothing */
    if (memcmp(at, "true", 4) == 0 || memcmp(at, "null", 4) == 0)
        return at + 4;
    return memcmp(at, "false", 5) == 0 ? at + 5 : NULL;
}

/* Behind the members that come as they are expected, are not wanted, and have a short value. `at` is where a member
 * begins, and `expected` where the key stands that begins it. */
static inline unsigned char *json_skip_members(json_key *keys, int **expected, unsigned char *at,
                                               const unsigned char *end, const unsigned char *limit) {
    if (limit - at < JSON_MARGIN)
        return at;
    const unsigned char *const last = limit - end >= JSON_MARGIN ? end : limit - JSON_MARGIN;
    while (at < last) {
        int found = **expected;
        unsigned char *after;
        if (found < 0 || keys[found].slot >= 0)
            return at;
        if (!json_begins(keys + found, at)) {
            found = keys[found].next;
            if (found < 0 || keys[found].slot >= 0 || !json_begins(keys + found, at))
                return at;
        }
        after = at + keys[found].size;
        if (*after != ':')
            return at;
        after++;
        if (*after == ' ')
            after++;
        after = json_skip_short(after);
        if (after == NULL || *after != ',')
            return at;
        after++;
        if (*after == ' ')
            after++;
        at = after;
        *expected = &keys[found].next;
    }
    return at;
}
#else
#define json_skip_members(keys, expected, at, end, limit) (at)
#endif

/* Whether all bytes are ASCII. */
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
    /* The last ones, some of them once more. */
    memcpy(words, data + size - 32, 32);
    found |= words[0] | words[1] | words[2] | words[3];
    return !(found & 0x8080808080808080u);
}

#endif
