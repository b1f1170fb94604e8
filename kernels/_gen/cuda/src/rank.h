// Order of scores and selection within a row, by histograms of 11, 11 and 10 bits.
#pragma once
#include "device.h"

// key orders scores: -0 as +0, NaN above everything.
DEV u32 key(float s) {
  if (s != s) return 0xffffffff;
  u32 u = s == 0 ? 0 : bitsOf(s);
  return u ^ (u >> 31 ? 0xffffffff : 0x80000000);
}

DEV int shiftOf(int pass) { return pass == 0 ? 21 : pass == 1 ? 10 : 0; }
DEV u32 binsOf(int pass) { return pass == 2 ? 1023 : 2047; }

// pick finds the bin of the histogram that holds the element of this rank, and the rank within the bin. The block has at least
// 256 threads.
DEV void pick(const u32* histogram, u32 rank, u32& bin, u32& within) {
  SHARED(u32, found, 2);
  u32 sum = 0, total;
  if (tid() < 256)
    for (int k = 0; k < 8; k++) sum += histogram[tid() * 8 + k];
  u32 before = blockBefore(sum, total);
  if (tid() < 256 && rank >= before && rank < before + sum)
    for (int k = 0; k < 8; k++) {
      u32 n = histogram[tid() * 8 + k];
      if (rank >= before && rank < before + n) found[0] = tid() * 8 + k, found[1] = rank - before;
      before += n;
    }
  sync();
  bin = found[0], within = found[1];
  sync();
}

// dropLowest writes a row's keep mask that drops the lowest keys; of equal keys the lower column goes first. ITEMS > 0: the keys stay in
// registers, ITEMS for every thread, and keyOf gives the key of a column. WIDTH > 0: they are in local memory, so that the code of keyOf,
// which is a formula's, is there once, and it gives WIDTH keys at a time, of columns that lie nthreads() apart.
template <int ITEMS, int WIDTH, class F> DEV void dropLowest(u8* mask, int n, i64 drop, F keyOf) {
  SHARED(u32, histogram, 2048);
  const int held = ITEMS > 0 ? ITEMS : 1;
  if (drop <= 0 || drop >= n) {
    for (int j = tid(); j < n; j += nthreads()) mask[j] = drop <= 0;
    return;
  }
  u32 keys[held], prefix = 0, done = 0, rank = (u32)drop - 1, bin = 0;
  if (ITEMS > 0) {
    if constexpr (WIDTH > 0) {
      ROLLED for (int k = 0; k < held; k += WIDTH) {
        u32 some[WIDTH] = {};
        if (tid() + k * nthreads() < n) keyOf(tid() + k * nthreads(), some);
        UNROLL for (int e = 0; e < WIDTH; e++) keys[k + e] = some[e];
      }
    } else {
      UNROLL_BY(held) for (int k = 0; k < held; k++) {
        int j = tid() + k * nthreads();
        keys[k] = j < n ? keyOf(j) : 0;
      }
    }
  }
  for (int pass = 0; pass < 3; pass++) {
    int shift = shiftOf(pass);
    for (int b = tid(); b < 2048; b += nthreads()) histogram[b] = 0;
    sync();
    if (ITEMS > 0) {
      UNROLL_BY(WIDTH > 0 ? 4 : held) for (int k = 0; k < held; k++)
        if (tid() + k * nthreads() < n && (keys[k] & done) == prefix) addAtomic(&histogram[keys[k] >> shift & binsOf(pass)], 1);
    } else if constexpr (WIDTH == 0) {
      for (int j = tid(); j < n; j += nthreads()) {
        u32 v = keyOf(j);
        if ((v & done) == prefix) addAtomic(&histogram[v >> shift & binsOf(pass)], 1);
      }
    }
    sync();
    pick(histogram, rank, bin, rank);
    prefix |= bin << shift, done |= binsOf(pass) << shift;
  }
  // Of the elements equal to the threshold, the first rank+1 go.
  u32 need = rank + 1;
  bool all = need == histogram[bin];
  if (all && ITEMS > 0) {
    UNROLL_BY(WIDTH > 0 ? 4 : held) for (int k = 0; k < held; k++)
      if (tid() + k * nthreads() < n) mask[tid() + k * nthreads()] = keys[k] > prefix;
  } else {
    u32 passed = 0, total = 0;
    for (int base = 0, k = 0; base < n; base += nthreads(), k++) {
      int j = base + tid();
      u32 v;
      if constexpr (WIDTH > 0) v = keys[k];
      else v = j < n ? keyOf(j) : 0;
      u32 equal = j < n && v == prefix, before = 0;
      if (!all) before = passed + blockBefore(equal, total), passed += total;
      if (j < n) mask[j] = v > prefix || (equal && before >= need);
    }
  }
  sync();
}
