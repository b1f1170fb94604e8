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

DEV u32 keyOf(float v, const ScoreArgs& a) { return key(a.raw ? v : floatOf(bitsOf(v) & 0x7fffffff)); }
DEV u32 keyOf(float v, float col, const ScoreArgs& a) { return key(mulRound(a.raw ? v : floatOf(bitsOf(v) & 0x7fffffff), col)); }
template <int D> DEV u32 scoreKey(const typename Type<D>::T* x, const ScoreArgs& a, i64 j) {
  return a.col ? keyOf(at<D>(x, j), a.col[j], a) : keyOf(at<D>(x, j), a);
}

// chunked reports whether row i is whole chunks of 16 bytes, with its mask and the columns' factors.
template <int D> DEV bool chunked(const ScoreArgs& a, i64 i) {
  const int W = Chunked<D>::size;
  return a.x.cols % W == 0 && (u64)row<D>(a.x, i) % 16 == 0 && (u64)row<U8>(a.mask, i) % W == 0 && (u64)a.col % 16 == 0;
}

// Chunks is a row of scores that is whole chunks; a thread's lie nthreads() apart.
template <int D> struct Chunks {
  static const int width = Chunked<D>::size;
  const ScoreArgs& a;
  const typename Type<D>::T* x;
  MEMBER Chunks(const ScoreArgs& a, i64 i) : a(a), x(row<D>(a.x, i)) {}
  MEMBER int chunks() const { return a.x.cols / width; }
  MEMBER int chunk(int q) const { return tid() + q * nthreads(); }
  MEMBER int rounds() const { return (chunks() + nthreads() - 1) / nthreads(); }
  MEMBER bool any(int q) const { return chunk(q) < chunks(); }
  MEMBER bool has(int q, int) const { return any(q); }
  // keysAt computes the keys of chunk c.
  MEMBER void keysAt(i64 c, u32 (&k)[width]) const {
    Chunk raw = *(const Chunk*)(x + c * width);
    if (!a.col) {
      UNROLL for (int e = 0; e < width; e++) k[e] = keyOf(part<D>(raw, e), a);
      return;
    }
    UNROLL for (int f = 0; f < width; f += 4) {
      F4 col = *(const F4*)(a.col + c * width + f);
      UNROLL for (int e = 0; e < 4; e++) k[f + e] = keyOf(part<D>(raw, f + e), col.v[e], a);
    }
  }
  MEMBER void keys(int q, u32 (&k)[width]) const { keysAt(chunk(q), k); }
  MEMBER u32 one(i64 j) const { return scoreKey<D>(x, a, j); }
  // keepAt writes the mask of chunk c.
  DEV void keepAt(u8* mask, i64 c, const bool (&keep)[width]) {
    u32 w[width / 4] = {};
    UNROLL for (int e = 0; e < width; e++) w[e / 4] |= (u32)keep[e] << e % 4 * 8;
    if constexpr (width == 8) *(u64*)(mask + c * width) = w[0] | (u64)w[1] << 32;
    else *(u32*)(mask + c * width) = w[0];
  }
  MEMBER void keep(u8* mask, int q, const u32 (&k)[width], u32 threshold) const {
    bool above[width];
    UNROLL for (int e = 0; e < width; e++) above[e] = k[e] > threshold;
    keepAt(mask, chunk(q), above);
  }
};

// Columns is any row of scores, taken one at a time.
template <int D> struct Columns {
  static const int width = 1;
  const ScoreArgs& a;
  const typename Type<D>::T* x;
  MEMBER Columns(const ScoreArgs& a, i64 i) : a(a), x(row<D>(a.x, i)) {}
  MEMBER int column(int q) const { return tid() + q * nthreads(); }
  MEMBER int rounds() const { return (a.x.cols + nthreads() - 1) / nthreads(); }
  MEMBER bool any(int q) const { return column(q) < a.x.cols; }
  MEMBER bool has(int q, int) const { return any(q); }
  MEMBER void keys(int q, u32 (&k)[1]) const { k[0] = one(column(q)); }
  MEMBER u32 one(i64 j) const { return scoreKey<D>(x, a, j); }
  MEMBER void keep(u8* mask, int q, const u32 (&k)[1], u32 threshold) const { mask[column(q)] = k[0] > threshold; }
};

// selectRow drops the a.drop lowest of a row.
template <int D, int ITEMS> DEV void selectRow(const ScoreArgs& a) {
  SHARED(u32, histogram, 2048);
  for (int i = bx(); i < a.x.rows; i += gx()) {
    u8* mask = row<U8>(a.mask, i);
    if (chunked<D>(a, i)) dropLowest<ITEMS, false>(histogram, mask, a.x.cols, a.drop, Chunks<D>(a, i));
    else dropLowest<ITEMS == 16 ? 16 : 0, false>(histogram, mask, a.x.cols, a.drop, Columns<D>(a, i));  // 24 keys and as many addresses have no registers
  }
}

// histogramAll counts, for one pass over the whole matrix, the keys that agree with the threshold's first bits.
template <int D> DEV void histogramAll(const ScoreArgs& a) {
  SHARED(u32, histogram, 2048);
  u32 prefix = (u32)a.state[0], done = a.pass == 0 ? 0 : ~0u << shiftOf(a.pass - 1), bins = binsOf(a.pass);
  int shift = shiftOf(a.pass);
  for (int b = tid(); b < 2048; b += nthreads()) histogram[b] = 0;
  sync();
  for (int i = by(); i < a.x.rows; i += gy()) {
    if (chunked<D>(a, i)) {
      Chunks<D> r(a, i);
      for (i64 c = (i64)bx() * nthreads() + tid(); c < r.chunks(); c += (i64)gx() * nthreads()) {
        u32 k[r.width];
        r.keysAt(c, k);
        UNROLL for (int e = 0; e < r.width; e++)
          if ((k[e] & done) == prefix) addAtomic(&histogram[k[e] >> shift & bins], 1);
      }
      continue;
    }
    const typename Type<D>::T* x = row<D>(a.x, i);
    for (i64 j = (i64)bx() * nthreads() + tid(); j < a.x.cols; j += (i64)gx() * nthreads()) {
      u32 v = scoreKey<D>(x, a, j);
      if ((v & done) == prefix) addAtomic(&histogram[v >> shift & bins], 1);
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
    u8* mask = row<U8>(a.mask, i);
    if (chunked<D>(a, i)) {
      Chunks<D> r(a, i);
      for (i64 c = (i64)bx() * nthreads() + tid(); c < r.chunks(); c += (i64)gx() * nthreads()) {
        u32 k[r.width];
        bool keep[r.width];
        r.keysAt(c, k);
        UNROLL for (int e = 0; e < r.width; e++) keep[e] = a.drop < 0 || k[e] > t;
        r.keepAt(mask, c, keep);
      }
      continue;
    }
    const typename Type<D>::T* x = row<D>(a.x, i);
    for (i64 j = (i64)bx() * nthreads() + tid(); j < a.x.cols; j += (i64)gx() * nthreads())
      mask[j] = a.drop < 0 || scoreKey<D>(x, a, j) > t;
  }
}

// others marks which of M keys are not among the n lowest; of equal ones the first are lower.
template <int M> DEV void others(const u32* keys, int n, bool* keep) {
  UNROLL for (int k = 0; k < M; k++) {
    int below = 0;
    UNROLL for (int q = 0; q < M; q++) below += keys[q] < keys[k] || (q < k && keys[q] == keys[k]);
    keep[k] = below >= n;
  }
}

// selectChunks drops the n lowest of every M columns of a row that is whole chunks and whole groups: one thread does the groups of a chunk, or the
// chunks of a group.
template <int D, int M> DEV void selectChunks(const ScoreArgs& a, int i) {
  const int W = Chunked<D>::size, size = M > W ? M : W;
  Chunks<D> r(a, i);
  for (int g = bx() * nthreads() + tid(); g < a.x.cols / size; g += gx() * nthreads()) {
    u32 keys[size];
    bool keep[size];
    UNROLL for (int h = 0; h < size / W; h++) r.keysAt(g * (size / W) + h, *(u32(*)[W])(keys + h * W));
    UNROLL for (int h = 0; h < size / M; h++) others<M>(keys + h * M, a.n, keep + h * M);
    UNROLL for (int h = 0; h < size / W; h++) r.keepAt(row<U8>(a.mask, i), g * (size / W) + h, *(bool(*)[W])(keep + h * W));
  }
}

// selectNM drops the n lowest of every m columns; one thread does a group. M > 0: m is M.
template <int D, int M> DEV void selectNM(const ScoreArgs& a) {
  int m = M > 0 ? M : a.m, groups = (a.x.cols + m - 1) / m;
  for (int i = by(); i < a.x.rows; i += gy()) {
    if constexpr (M > 0)
      if (a.x.cols % M == 0 && chunked<D>(a, i)) {
        selectChunks<D, M>(a, i);
        continue;
      }
    const typename Type<D>::T* x = row<D>(a.x, i);
    u8* mask = row<U8>(a.mask, i);
    for (int g = bx() * nthreads() + tid(); g < groups; g += gx() * nthreads()) {
      int lo = g * m, size = a.x.cols - lo < m ? a.x.cols - lo : m;
      if constexpr (M > 0) {
        u32 keys[M];
        bool keep[M];
        UNROLL for (int k = 0; k < M; k++) keys[k] = k < size ? scoreKey<D>(x, a, lo + k) : 0xffffffff;
        others<M>(keys, a.n, keep);
        UNROLL for (int k = 0; k < M; k++)
          if (k < size) mask[lo + k] = keep[k];
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
