// Instructions of processors as functions, named as LLVM's intrinsics for them. Sources: Intel 64 and IA-32 Architectures
// Software Developer's Manual, volume 2 (AMX, AVX512-BF16); Arm Architecture Reference Manual for A-profile (USDOT, SDOT,
// TBX). A use that a processor would trap ends the process with a message.

#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define EMULATED extern "C" __attribute__((visibility("default")))

namespace {

// bfloat16 instructions take denormals as zeros, give zeros for them and round to nearest even, whatever MXCSR says.
class Flushing {
    unsigned saved = _mm_getcsr();
    static void set(unsigned word) { asm volatile("ldmxcsr %0" ::"m"(word) : "memory"); }

   public:
    Flushing() { set(0x9FC0); }
    ~Flushing() { set(saved); }
};

struct Tile {
    int rows = 0, row_bytes = 0;
    alignas(64) uint8_t bytes[16][64];  // zeros outside of its rows and columns
};

thread_local bool configured = false;
thread_local Tile tiles[8];

[[noreturn]] void fault(const char *what) {
    std::fprintf(stderr, "emulated processor: %s\n", what);
    std::abort();
}

void require(bool holds, const char *what) {
    if (!holds) fault(what);
}

Tile &used(int number) {
    require(configured, "a tile is used before tiles are configured");
    require(number >= 0 && number < 8 && tiles[number].rows && tiles[number].row_bytes, "a tile has no shape");
    return tiles[number];
}

void check_product(const Tile &sums, const Tile &x, const Tile &y) {
    require(&sums != &x && &sums != &y && &x != &y, "two operands of a product are one tile");
    require(sums.rows == x.rows && sums.row_bytes == y.row_bytes && x.row_bytes == 4 * y.rows, "shapes of a product");
}

float as_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Fixed numbers of columns, for vectors: all beyond a tile's are zeros.
__attribute__((noinline)) void add_bfloat16_products(Tile &sums, const Tile &x, const Tile &y) {
    for (int m = 0; m < sums.rows; ++m) {
        uint32_t words[16], pairs[16];
        float total[16], even[16] = {}, odd[16] = {};
        std::memcpy(words, x.bytes[m], 64);
        for (int k = 0; k < y.rows; ++k) {
            float left = as_float(words[k] << 16), right = as_float(words[k] & 0xFFFF0000u);
            std::memcpy(pairs, y.bytes[k], 64);
            for (int n = 0; n < 16; ++n) {
                even[n] = __builtin_fmaf(left, as_float(pairs[n] << 16), even[n]);
                odd[n] = __builtin_fmaf(right, as_float(pairs[n] & 0xFFFF0000u), odd[n]);
            }
        }
        std::memcpy(total, sums.bytes[m], 64);
        for (int n = 0; n < 16; ++n) total[n] += even[n] + odd[n];
        std::memcpy(sums.bytes[m], total, 64);
    }
}

__attribute__((noinline)) void add_byte_products(Tile &sums, const Tile &x, const Tile &y) {
    for (int m = 0; m < sums.rows; ++m) {
        uint32_t total[16];
        std::memcpy(total, sums.bytes[m], 64);
        for (int k = 0; k < y.rows; ++k) {
            const uint8_t *left = x.bytes[m] + 4 * k;
            const int8_t *right = reinterpret_cast<const int8_t *>(y.bytes[k]);
            for (int n = 0; n < 16; ++n)
                total[n] += left[0] * right[4 * n] + left[1] * right[4 * n + 1] + left[2] * right[4 * n + 2] +
                            left[3] * right[4 * n + 3];
        }
        std::memcpy(sums.bytes[m], total, 64);
    }
}

}  // namespace

EMULATED void emulated_x86_ldtilecfg(const uint8_t *words) {
    require(words[0] == 1 && words[1] == 0, "the configuration of tiles has another palette, or a row to begin with");
    for (int i = 2; i < 16; ++i) require(words[i] == 0, "reserved bytes of a configuration of tiles are not zero");
    for (int i = 0; i < 16; ++i) {
        int row_bytes = words[16 + 2 * i] | words[17 + 2 * i] << 8, rows = words[48 + i];
        require(i < 8 || (rows == 0 && row_bytes == 0), "more than eight tiles are configured");
        require(rows <= 16 && row_bytes <= 64, "a tile of more than 16 rows of 64 bytes is configured");
        require((rows == 0) == (row_bytes == 0), "a tile is configured with rows or columns only");
        if (i < 8) {
            std::memset(&tiles[i], 0, sizeof(Tile));
            tiles[i].rows = rows;
            tiles[i].row_bytes = row_bytes;
        }
    }
    configured = true;
}

EMULATED void emulated_x86_tilerelease() { configured = false; }

EMULATED int emulated_tiles_in_use() { return configured; }

EMULATED void emulated_x86_tilezero(int tile) { std::memset(used(tile).bytes, 0, sizeof tiles[tile].bytes); }

EMULATED void emulated_x86_tileloadd64(int tile, const uint8_t *address, int64_t stride) {
    Tile &to = used(tile);
    for (int m = 0; m < to.rows; ++m) std::memcpy(to.bytes[m], address + m * stride, to.row_bytes);
}

EMULATED void emulated_x86_tilestored64(int tile, uint8_t *address, int64_t stride) {
    const Tile &from = used(tile);
    for (int m = 0; m < from.rows; ++m) std::memcpy(address + m * stride, from.bytes[m], from.row_bytes);
}

EMULATED void emulated_x86_tdpbusd(int sums, int left, int right) {
    check_product(used(sums), used(left), used(right));
    add_byte_products(tiles[sums], tiles[left], tiles[right]);
}

EMULATED void emulated_x86_tdpbf16ps(int sums, int left, int right) {
    check_product(used(sums), used(left), used(right));
    Flushing rounds;
    add_bfloat16_products(tiles[sums], tiles[left], tiles[right]);
}

#define VECTOR(name, element, lanes) typedef element name __attribute__((vector_size(sizeof(element) * (lanes))))

// Pairs of bfloat16 as words. The pair's upper products are added before its lower ones.
#define DOT_OF_BFLOAT16(lanes)                                                                                         \
    VECTOR(Floats##lanes, float, lanes);                                                                               \
    VECTOR(Words##lanes, uint32_t, lanes);                                                                             \
    __attribute__((noinline)) static void dot##lanes(Floats##lanes *sums, const Words##lanes *x, const Words##lanes *y) { \
        for (int i = 0; i < (lanes); ++i) {                                                                            \
            float odd = __builtin_fmaf(as_float((*x)[i] & 0xFFFF0000u), as_float((*y)[i] & 0xFFFF0000u), (*sums)[i]);   \
            (*sums)[i] = __builtin_fmaf(as_float((*x)[i] << 16), as_float((*y)[i] << 16), odd);                         \
        }                                                                                                              \
    }

#define DOT_OF_BFLOAT16_OF_BITS(lanes, bits)                                                                           \
    DOT_OF_BFLOAT16(lanes)                                                                                             \
    EMULATED Floats##lanes emulated_x86_avx512bf16_dpbf16ps_##bits(Floats##lanes sums, Words##lanes x, Words##lanes y) { \
        Flushing rounds;                                                                                               \
        dot##lanes(&sums, &x, &y);                                                                                     \
        return sums;                                                                                                   \
    }

DOT_OF_BFLOAT16_OF_BITS(4, 128)
DOT_OF_BFLOAT16_OF_BITS(8, 256)
DOT_OF_BFLOAT16_OF_BITS(16, 512)

static uint16_t rounded(uint32_t bits) {
    uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude < 0x00800000) return bits >> 16 & 0x8000;
    if (magnitude > 0x7F800000) return bits >> 16 | 0x40;
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

VECTOR(Halves16, uint16_t, 16);
VECTOR(Halves32, uint16_t, 32);

EMULATED Words8 emulated_x86_avx512bf16_cvtneps2bf16_512(Words16 x) {
    Halves16 found;
    for (int i = 0; i < 16; ++i) found[i] = rounded(x[i]);
    return reinterpret_cast<Words8>(found);
}

EMULATED Words16 emulated_x86_avx512bf16_cvtne2ps2bf16_512(Words16 upper, Words16 lower) {
    Halves32 found;
    for (int i = 0; i < 16; ++i) found[i] = rounded(lower[i]), found[16 + i] = rounded(upper[i]);
    return reinterpret_cast<Words16>(found);
}

VECTOR(Words, uint32_t, 4);
VECTOR(Bytes, uint8_t, 16);

EMULATED Words emulated_aarch64_neon_usdot_v4i32_v16i8(Words sums, Bytes x, Bytes y) {
    for (int i = 0; i < 16; ++i) sums[i / 4] += x[i] * static_cast<int8_t>(y[i]);
    return sums;
}

EMULATED Words emulated_aarch64_neon_sdot_v4i32_v16i8(Words sums, Bytes x, Bytes y) {
    for (int i = 0; i < 16; ++i) sums[i / 4] += static_cast<int8_t>(x[i]) * static_cast<int8_t>(y[i]);
    return sums;
}

EMULATED Bytes emulated_aarch64_neon_tbx4_v16i8(Bytes otherwise, Bytes a, Bytes b, Bytes c, Bytes d, Bytes index) {
    const Bytes table[] = {a, b, c, d};
    for (int i = 0; i < 16; ++i)
        if (index[i] < 64) otherwise[i] = table[index[i] / 16][index[i] % 16];
    return otherwise;
}
