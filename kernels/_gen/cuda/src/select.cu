// Selection by rank: keys ordered as the scores, thresholds by histograms of 11, 11 and 10 bits, ties by column.
#include "rank.h"

// ScoreArgs: |x|·col (col may be null), or x·col with raw; and a mask of the same shape.
struct ScoreArgs {
  Mat mask, x;
  const float* col;
  i64 drop;
  u32* histogram;  // of select_all: 3·2048 counts, zeroed
  u64* state;      // of select_all: prefix, rank
  int raw, pass, n, m;
};

template <int D> DEV u32 scoreKey(const typename Type<D>::T* x, const ScoreArgs& a, i64 j) {
  float v = at<D>(x, j);
  if (!a.raw) v = floatOf(bitsOf(v) & 0x7fffffff);
  if (a.col) v = mulRound(v, a.col[j]);
  return key(v);
}

// selectRow drops the a.drop lowest of a row.
template <int D, int ITEMS> DEV void selectRow(const ScoreArgs& a) {
  for (int i = bx(); i < a.x.rows; i += gx()) {
    const typename Type<D>::T* x = row<D>(a.x, i);
    dropLowest<ITEMS, 0>(row<U8>(a.mask, i), a.x.cols, a.drop, [&](int j) { return scoreKey<D>(x, a, j); });
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
