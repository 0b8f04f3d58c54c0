/* CRC-32 as in zlib, of data of any length and alignment.
 *
 * On processors with carry-less multiplication (x86-64 with PCLMULQDQ), 64 bytes are folded at a time: data is a
 * polynomial, and a part of it may be replaced by a congruent one modulo the generator, some bytes further on. The last
 * 16 bytes, and all data on other processors, go through tables, eight bytes at a time. The method is that of V. Gopal
 * et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009), section "Reflected
 * data"; the constants are powers of x modulo 0x04C11DB7, bits reversed.
 */
#ifndef SPARK_MQ_SOURCE_CRC32_H
#define SPARK_MQ_SOURCE_CRC32_H

#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__) && defined(__GNUC__)
#define CRC32_CAN_FOLD 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define CRC32_CAN_FOLD 0
#endif

static uint32_t crc32_tables[8][256];
static int crc32_folds = 0;

/* Fills the tables; once, before anything else. */
static void crc32_begin(void) {
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1)));
        crc32_tables[0][n] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t n = 0; n < 256; n++) {
            uint32_t crc = crc32_tables[k - 1][n];
            crc32_tables[k][n] = crc32_tables[0][crc & 0xFF] ^ (crc >> 8);
        }
#if CRC32_CAN_FOLD
    /* Not __builtin_cpu_supports: zig's run-time library lacks what it links to. */
    unsigned int eax, ebx, ecx, edx;
    crc32_folds = __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx >> 1 & 1); /* PCLMULQDQ */
#endif
}

/* By bytes, so that it is the same on machines of either byte order. */
static inline uint32_t crc32_load(const unsigned char *data) {
    return data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
}

static uint32_t crc32_by_tables(uint32_t crc, const unsigned char *data, size_t size) {
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t low = crc ^ crc32_load(data), high = crc32_load(data + 4);
        crc = crc32_tables[7][low & 0xFF] ^ crc32_tables[6][low >> 8 & 0xFF] ^ crc32_tables[5][low >> 16 & 0xFF] ^
              crc32_tables[4][low >> 24] ^ crc32_tables[3][high & 0xFF] ^ crc32_tables[2][high >> 8 & 0xFF] ^
              crc32_tables[1][high >> 16 & 0xFF] ^ crc32_tables[0][high >> 24];
    }
    for (; size; data++, size--)
        crc = crc32_tables[0][(crc ^ *data) & 0xFF] ^ (crc >> 8);
    return crc;
}

#if CRC32_CAN_FOLD
#define CRC32_TARGET __attribute__((target("pclmul,sse2")))

CRC32_TARGET static inline __m128i crc32_fold(__m128i folded, __m128i powers, __m128i next) {
    __m128i low = _mm_clmulepi64_si128(folded, powers, 0x00), high = _mm_clmulepi64_si128(folded, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

#define CRC32_AT(n) _mm_loadu_si128((const __m128i *)(data + 16 * (n)))

/* Of 64 bytes at least. */
CRC32_TARGET static uint32_t crc32_by_folding(uint32_t crc, const unsigned char *data, size_t size) {
    const __m128i over_64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), over_16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    __m128i a = _mm_xor_si128(CRC32_AT(0), _mm_cvtsi32_si128((int)crc)), b = CRC32_AT(1), c = CRC32_AT(2), d = CRC32_AT(3);
    unsigned char rest[16];
    for (data += 64, size -= 64; size >= 64; data += 64, size -= 64) {
        a = crc32_fold(a, over_64, CRC32_AT(0));
        b = crc32_fold(b, over_64, CRC32_AT(1));
        c = crc32_fold(c, over_64, CRC32_AT(2));
        d = crc32_fold(d, over_64, CRC32_AT(3));
    }
    a = crc32_fold(crc32_fold(crc32_fold(a, over_16, b), over_16, c), over_16, d);
    for (; size >= 16; data += 16, size -= 16)
        a = crc32_fold(a, over_16, CRC32_AT(0));
    _mm_storeu_si128((__m128i *)rest, a);
    return crc32_by_tables(crc32_by_tables(0, rest, 16), data, size);
}
#endif

static inline uint32_t crc32_of(const unsigned char *data, ptrdiff_t size) {
#if CRC32_CAN_FOLD
    if (size >= 64 && crc32_folds)
        return ~crc32_by_folding(~0u, data, (size_t)size);
#endif
    return ~crc32_by_tables(~0u, data, (size_t)size);
}

#endif
