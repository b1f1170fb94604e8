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

// dropLowest writes a row's keep mask that drops the lowest keys; of equal keys the lower column goes first. R gives a thread's keys in rounds
// of R::width: keys of a round, the columns they belong to, and whether those are below n; one is the key of a column. ITEMS > 0: no
// row has more rounds than ITEMS / R::width, and keys are computed once and kept; with LOCAL in local memory, so that the code of R::keys, which is a
// formula's, is there once.
//
// The first of up to three histograms (2048 counts) spans what lies between the least and the greatest key, so that neighbours seldom count in
// the same bin.
template <int ITEMS, bool LOCAL, class R> DEV void dropLowest(u32* histogram, u8* mask, int n, i64 drop, const R& r) {
  const int W = R::width, held = ITEMS > 0 ? ITEMS / W : 1;
  if (drop <= 0 || drop >= n) {
    for (int j = tid(); j < n; j += nthreads()) mask[j] = drop <= 0;
    return;
  }
  u32 kept[held * W], low = 0, high = 0;  // low: the greatest complement of a key
  int rounds = ITEMS > 0 ? held : r.rounds();
  UNROLL_BY(LOCAL ? 1 : held) for (int q = 0; q < rounds; q++) {
    u32 k[W] = {};
    if (r.any(q)) r.keys(q, k);
    UNROLL for (int e = 0; e < W; e++) {
      if (ITEMS > 0) kept[q * W + e] = k[e];
      if (r.has(q, e)) low = ~k[e] > low ? ~k[e] : low, high = k[e] > high ? k[e] : high;
    }
  }
  low = ~blockReduce<Max>(low, 0u), high = blockReduce<Max>(high, 0u) - low;
  // From here on keys count from the least. What is outside the row counts as the greatest: it is never below the threshold, and where that is the
  // greatest the columns decide.
  UNROLL_BY(LOCAL ? 1 : held) for (int q = 0; q < (ITEMS > 0 ? rounds : 0); q++)
    UNROLL for (int e = 0; e < W; e++) kept[q * W + e] = r.has(q, e) ? kept[q * W + e] - low : high;
  u32 prefix = 0, span = high, rank = (u32)drop - 1, bin = 0;
  int shift = 32;
  while (shift > 0 && high >> (shift - 1) == 0) shift--;  // bits that are not decided
  do {
    u32 bins = shift >= 11 ? 2047 : (1u << shift) - 1;
    shift = shift > 11 ? shift - 11 : 0;
    for (int b = tid(); b < 2048; b += nthreads()) histogram[b] = 0;
    sync();
    UNROLL_BY(LOCAL ? 4 : held) for (int q = 0; q < rounds; q++) {
      u32 k[W] = {};
      if (ITEMS == 0 && r.any(q)) r.keys(q, k);
      UNROLL for (int e = 0; e < W; e++) {
        u32 v = ITEMS > 0 ? kept[q * W + e] : k[e] - low;
        if ((ITEMS > 0 || r.has(q, e)) && v - prefix <= span) addAtomic(&histogram[v >> shift & bins], 1);
      }
    }
    sync();
    pick(histogram, rank, bin, rank);
    prefix |= bin << shift, span = (1u << shift) - 1;
  } while (shift > 0);
  // Of the elements equal to the threshold, the first rank+1 go.
  u32 need = rank + 1;
  if (need == histogram[bin]) {
    UNROLL_BY(LOCAL ? 4 : held) for (int q = 0; q < rounds; q++) {
      if (!r.any(q)) break;
      u32 k[W] = {};
      if (ITEMS == 0) r.keys(q, k);
      UNROLL for (int e = 0; e < W; e++) k[e] = ITEMS > 0 ? kept[q * W + e] : k[e] - low;
      r.keep(mask, q, k, prefix);
    }
  } else {
    u32 passed = 0, total = 0;
    for (int base = 0, k = 0; base < n; base += nthreads(), k++) {
      int j = base + tid();
      u32 v;
      if constexpr (LOCAL) v = kept[k];
      else v = j < n ? r.one(j) - low : 0;
      u32 equal = j < n && v == prefix, before = passed + blockBefore(equal, total);
      passed += total;
      if (j < n) mask[j] = v > prefix || (equal && before >= need);
    }
  }
  sync();
}
