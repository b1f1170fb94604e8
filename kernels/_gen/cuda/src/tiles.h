// Tiles of attention on tensor cores: 64 rows in registers against 32 in shared memory, all as sums of three bfloat16.
#pragma once
#include "device.h"

const int tileQ = 64, tileK = 32;

// placeK is the index of 16 bytes in a tile [32][W]: chunks are exchanged so that 8 rows of a column meet all banks.
template <int W> DEV int placeK(int r, int chunk) { return (r * (W / 8) + (chunk ^ (r & 7))) * 8; }

// split writes two floats as three pairs of bfloat16, element e of a factor's fragment. What is not finite becomes NaN or stays.
DEV void split(u32 (&f)[3][4], int e, float x, float y) {
  UNROLL for (int p = 0; p < 3; p++) {
    u32 u = bitsOf(x), v = bitsOf(y);
    f[p][e] = u >> 16 | (v & 0xffff0000);
    x -= floatOf(u & 0xffff0000), y -= floatOf(v & 0xffff0000);
  }
}

// multiplyParts adds the products of parts to two tiles of 8 columns, the small ones first. A lane gives the place of 16 bytes of the second
// factor in its first plane.
DEV void multiplyParts(float (&c)[4], float (&d)[4], const u32 (&x)[3][4], const u16* plane, int size) {
  UNROLL for (int p = 2; p >= 0; p--) {
    u32 y[4];
    loadMatrices(y, plane + p * size);
    UNROLL for (int r = 2 - p; r >= 0; r--) multiply(c, x[r], y[0], y[1]), multiply(d, x[r], y[2], y[3]);
  }
}
