// Selection by rank: keys ordered as the scores, thresholds by histograms of 11, 11 and 10 bits, ties by column.
#include "device.h"

// ScoreArgs: |x|·col (col may be null), or x·col with raw; and a mask of the same shape.
struct ScoreArgs {
  Mat mask, x;
  const float* col;
  i64 drop;
  u32* histogram;  // of select_all: 3·2048 counts, zeroed
  u64* state;      // of select_all: prefix, rank
  int raw, pass, n, m;
};

// key orders scores: -0 as +0, NaN above everything.
DEV u32 key(float s) {
  if (s != s) return 0xffffffff;
  u32 u = s == 0 ? 0 : bitsOf(s);
  return u ^ (u >> 31 ? 0xffffffff : 0x80000000);
}

template <int D> DEV u32 scoreKey(const typename Type<D>::T* x, const ScoreArgs& a, i64 j) {
  float v = at<D>(x, j);
  if (!a.raw) v = floatOf(bitsOf(v) & 0x7fffffff);
  if (a.col) v = mulRound(v, a.col[j]);
  return key(v);
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

// selectRow drops the a.drop lowest of a row. ITEMS > 0: the keys of a row stay in registers, ITEMS for every thread.
template <int D, int ITEMS> DEV void selectRow(const ScoreArgs& a) {
  SHARED(u32, histogram, 2048);
  const int held = ITEMS > 0 ? ITEMS : 1;
  int n = a.x.cols;
  for (int i = bx(); i < a.x.rows; i += gx()) {
    const typename Type<D>::T* x = row<D>(a.x, i);
    u8* mask = row<U8>(a.mask, i);
    if (a.drop <= 0 || a.drop >= n) {
      for (int j = tid(); j < n; j += nthreads()) mask[j] = a.drop <= 0;
      continue;
    }
    u32 keys[held], prefix = 0, done = 0, rank = (u32)a.drop - 1, bin = 0;
    if (ITEMS > 0) {
      UNROLL for (int k = 0; k < held; k++) {
        int j = tid() + k * nthreads();
        keys[k] = j < n ? scoreKey<D>(x, a, j) : 0;
      }
    }
    for (int pass = 0; pass < 3; pass++) {
      int shift = shiftOf(pass);
      for (int b = tid(); b < 2048; b += nthreads()) histogram[b] = 0;
      sync();
      if (ITEMS > 0) {
        UNROLL for (int k = 0; k < held; k++)
          if (tid() + k * nthreads() < n && (keys[k] & done) == prefix) addAtomic(&histogram[keys[k] >> shift & binsOf(pass)], 1);
      } else {
        for (int j = tid(); j < n; j += nthreads()) {
          u32 v = scoreKey<D>(x, a, j);
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
      UNROLL for (int k = 0; k < held; k++)
        if (tid() + k * nthreads() < n) mask[tid() + k * nthreads()] = keys[k] > prefix;
    } else {
      u32 passed = 0, total = 0;
      for (int base = 0; base < n; base += nthreads()) {
        int j = base + tid();
        u32 v = j < n ? scoreKey<D>(x, a, j) : 0, equal = j < n && v == prefix, before = 0;
        if (!all) before = passed + blockBefore(equal, total), passed += total;
        if (j < n) mask[j] = v > prefix || (equal && before >= need);
      }
    }
    sync();
  }
}

// histogramAll counts, for one pass over the whole matrix, the keys that agree with the threshold's first bits.
template <int D> DEV void histogramAll(const ScoreArgs& a) {
  SHARED(u32, histogram, 2048);
  u32 prefix = (u32)a.state[0], done = a.pass == 0 ? 0 : ~0u << shiftOf(a.pass - 1);
  int shift = shiftOf(a.pass);
  for (int b = tid(); b < 2048; b += nthreads()) histogram[b] = 0;
  sync();
  for (int i = by(); i < a.x.rows; i += gy()) {
    const typename Type<D>::T* x = row<D>(a.x, i);
    for (i64 j = (i64)bx() * nthreads() + tid(); j < a.x.cols; j += (i64)gx() * nthreads()) {
      u32 v = scoreKey<D>(x, a, j);
      if ((v & done) == prefix) addAtomic(&histogram[v >> shift & binsOf(a.pass)], 1);
    }
  }
  sync();
  for (int b = tid(); b < 2048; b += nthreads())
    if (histogram[b] > 0) addAtomic(&a.histogram[a.pass * 2048 + b], histogram[b]);
}

// select_pick, one block, extends the threshold by the bits of a pass.
KERNEL(select_pick, ScoreArgs, 256, 1) {
  u32 bin, rank = a.pass == 0 ? (u32)a.drop : (u32)a.state[1];
  u64 prefix = a.state[0];
  pick(a.histogram + a.pass * 2048, rank, bin, rank);
  if (tid() == 0) a.state[0] = prefix | bin << shiftOf(a.pass), a.state[1] = rank;
}

// maskAll keeps what is above the threshold.
template <int D> DEV void maskAll(const ScoreArgs& a) {
  u32 t = (u32)a.state[0];
  for (int i = by(); i < a.x.rows; i += gy()) {
    const typename Type<D>::T* x = row<D>(a.x, i);
    u8* mask = row<U8>(a.mask, i);
    for (i64 j = (i64)bx() * nthreads() + tid(); j < a.x.cols; j += (i64)gx() * nthreads())
      mask[j] = a.drop < 0 || scoreKey<D>(x, a, j) > t;
  }
}

// selectNM drops the n lowest of every m columns; one thread does a group. M > 0: m is M.
template <int D, int M> DEV void selectNM(const ScoreArgs& a) {
  int m = M > 0 ? M : a.m, groups = (a.x.cols + m - 1) / m;
  for (int i = by(); i < a.x.rows; i += gy()) {
    const typename Type<D>::T* x = row<D>(a.x, i);
    u8* mask = row<U8>(a.mask, i);
    for (int g = bx() * nthreads() + tid(); g < groups; g += gx() * nthreads()) {
      int lo = g * m, size = a.x.cols - lo < m ? a.x.cols - lo : m;
      u32 keys[M > 0 ? M : 1];
      if (M > 0) {
        UNROLL for (int k = 0; k < M; k++) keys[k] = k < size ? scoreKey<D>(x, a, lo + k) : 0xffffffff;
        UNROLL for (int k = 0; k < M; k++) {
          int below = 0;
          UNROLL for (int q = 0; q < M; q++) below += keys[q] < keys[k] || (q < k && keys[q] == keys[k]);
          if (k < size) mask[lo + k] = below >= a.n;
        }
      } else {
        for (int k = 0; k < size; k++) {
          u32 v = scoreKey<D>(x, a, lo + k);
          int below = 0;
          for (int q = 0; q < size && below < a.n; q++) {
            u32 o = scoreKey<D>(x, a, lo + q);
            below += o < v || (q < k && o == v);
          }
          mask[lo + k] = below >= a.n;
        }
      }
    }
  }
}

#define SELECT(name, D)                                                       \
  KERNEL(select_rows_##name##_16, ScoreArgs, 256, 3) { selectRow<D, 16>(a); } \
  KERNEL(select_rows_##name##_24, ScoreArgs, 512, 2) { selectRow<D, 24>(a); } \
  KERNEL(select_rows_##name##_0, ScoreArgs, 512, 2) { selectRow<D, 0>(a); }   \
  KERNEL(select_hist_##name, ScoreArgs, 256, 4) { histogramAll<D>(a); }       \
  KERNEL(select_mask_##name, ScoreArgs, 256, 4) { maskAll<D>(a); }            \
  KERNEL(select_nm_##name##_4, ScoreArgs, 256, 4) { selectNM<D, 4>(a); }      \
  KERNEL(select_nm_##name##_8, ScoreArgs, 256, 4) { selectNM<D, 8>(a); }      \
  KERNEL(select_nm_##name##_0, ScoreArgs, 256, 4) { selectNM<D, 0>(a); }
SELECT(f32, F32)
SELECT(bf16, BF16)
SELECT(f16, F16)
