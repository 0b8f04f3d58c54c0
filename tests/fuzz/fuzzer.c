/* What a fuzzing worker needs to be fast: which code ran (gcc's -fsanitize-coverage=trace-pc), and mutations.

   Preloaded, so that the instrumented modules find __sanitizer_cov_trace_pc; called with ctypes. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define MAP_BYTES 32768

static uint8_t now[MAP_BYTES];
static uint8_t seen[MAP_BYTES];
static uintptr_t before;
static uint64_t state = 1;

void __sanitizer_cov_trace_pc(void) {
    uintptr_t pc = (uintptr_t)__builtin_return_address(0);
    uintptr_t here = (pc >> 1) * UINT64_C(0x9E3779B97F4A7C15) >> 40;
    now[(here ^ before) & (MAP_BYTES - 1)]++;
    before = here >> 1;
}

/* Whether an edge, or how often it was taken (by powers of two), is new since the last call. */
int fuzzer_is_new(void) {
    int is_new = 0;
    uint64_t word;
    before = 0;
    for (size_t at = 0; at < MAP_BYTES; at += 8) {
        memcpy(&word, now + at, 8);
        if (!word) continue;
        for (size_t i = at; i < at + 8; i++) {
            if (!now[i]) continue;
            uint8_t bucket = (uint8_t)(1u << (31 - __builtin_clz(now[i])));
            if (!(seen[i] & bucket)) {
                seen[i] |= bucket;
                is_new = 1;
            }
        }
        memset(now + at, 0, 8);
    }
    return is_new;
}

void fuzzer_seed(uint64_t seed) { state = seed | 1; }

static uint64_t draw(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below ? (state >> 8) % below : 0;
}

static const uint64_t NUMBERS[] = {
    0, 1, 2, 3, 5, 6, 7, 8, 15, 16, 17, 63, 64, 127, 128, 255, 256, 1000, 32767, 32768, 65535, 65536, 1 << 20, 1 << 24,
    INT32_MAX - 1, INT32_MAX, UINT64_C(1) << 31, UINT32_MAX, UINT64_C(1) << 32, INT64_MAX / 1000, INT64_MAX / 1000 + 1,
    INT64_MAX, UINT64_C(1) << 63, UINT64_MAX - 1, UINT64_MAX,
};
#define A_NUMBER NUMBERS[draw(sizeof NUMBERS / sizeof *NUMBERS)]

static size_t put_varint(uint8_t *out, uint64_t value, int padding) {
    size_t size = 0;
    while (value > 127 && size < 9) {
        out[size++] = (uint8_t)(value | 128);
        value >>= 7;
    }
    out[size++] = (uint8_t)value;
    /* Longer than needed, up to one byte too long. */
    while (padding-- > 0 && size < 11) {
        out[size - 1] |= 128;
        out[size++] = 0;
    }
    return size;
}

static size_t put_inside(uint8_t *data, size_t size, size_t limit, size_t at, size_t removed, const uint8_t *bytes,
                         size_t added) {
    if (removed > size - at) removed = size - at;
    if (size - removed + added > limit) return size;
    memmove(data + at + added, data + at + removed, size - at - removed);
    memcpy(data + at, bytes, added);
    return size - removed + added;
}

static void put_u32(uint8_t *data, uint32_t value) {
    for (int i = 3; i >= 0; i--, value >>= 8) data[i] = (uint8_t)value;
}

/* Mutates `size` bytes in place, never beyond `limit`; `other` is another input to take from. The new size. */
size_t fuzzer_mutate(uint8_t *data, size_t size, size_t limit, const uint8_t *other, size_t other_size) {
    uint8_t bytes[64];
    uint64_t rounds = UINT64_C(1) << draw(4);
    while (rounds--) {
        size_t at = draw(size + 1), left = size - at, n;
        switch (draw(15)) {
        case 0:
            if (left) data[at] ^= (uint8_t)(1u << draw(8));
            break;
        case 1:
            if (left) data[at] = (uint8_t)draw(256);
            break;
        case 2:
            if (left) data[at] += (uint8_t)(draw(9) - 4);
            break;
        case 3: /* a number, over another one */
            n = put_varint(bytes, A_NUMBER, draw(4) ? 0 : (int)draw(11));
            for (left = at; left < size && left < at + 9 && data[left] & 128; left++) {}
            size = put_inside(data, size, limit, at, left - at + 1, bytes, n);
            break;
        case 4: /* a field */
            n = put_varint(bytes, (1 + draw(34)) << 3 | (draw(5) ? (draw(2) ? 2 : 0) : draw(8)), 0);
            n += put_varint(bytes + n, draw(2) ? draw(40) : A_NUMBER, 0);
            size = put_inside(data, size, limit, at, 0, bytes, n);
            break;
        case 5:
            if (left >= 4) put_u32(data + at, (uint32_t)A_NUMBER);
            break;
        case 6: /* a length that is nearly right */
            if (left >= 4) put_u32(data + at, (uint32_t)(left - 4 + draw(9) - 4));
            break;
        case 7: /* a field that grows, with its length */
            if (left && data[at] < 64) {
                n = 1 + draw(40);
                for (size_t i = 0; i < n; i++) bytes[i] = draw(3) ? (uint8_t)("aZ0=+/\xc3\xa4"[draw(8)]) : (uint8_t)draw(256);
                if (size + n <= limit) {
                    data[at] += (uint8_t)n;
                    size = put_inside(data, size, limit, at + 1, 0, bytes, n);
                }
            }
            break;
        case 8: /* a field that shrinks, with its length */
            if (left && data[at] && data[at] < 128) {
                n = 1 + draw(data[at]);
                if (left > n) {
                    data[at] -= (uint8_t)n;
                    size = put_inside(data, size, limit, at + 1, n, bytes, 0);
                }
            }
            break;
        case 9:
            size = put_inside(data, size, limit, at, 1 + draw(8), bytes, 0);
            break;
        case 10: /* some of it once more */
            n = draw(left + 1);
            n = n > 60 ? 60 : n;
            memcpy(bytes, data + at, n);
            size = put_inside(data, size, limit, draw(size + 1), 0, bytes, n);
            break;
        case 11:
            if (other_size) {
                size_t from = draw(other_size);
                n = 1 + draw(other_size - from);
                size = put_inside(data, size, limit, at, draw(2) ? n : 0, other + from, n);
            }
            break;
        case 12:
            if (!draw(8)) size = at;
            break;
        case 13: /* text that is and text that is not UTF-8 */
            n = draw(2) ? 2 : 4;
            memcpy(bytes, draw(2) ? "\xed\xa0\xc3\xa4" : "\xf4\x90\xe2\x82", 4);
            if (left >= n) memcpy(data + at, bytes, n);
            break;
        case 14:
            for (n = 0; n < 8; n++) bytes[n] = (uint8_t)draw(256);
            size = put_inside(data, size, limit, at, draw(4), bytes, draw(9));
            break;
        }
    }
    return size;
}
