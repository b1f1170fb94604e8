// Task arithmetic in one pass over the models: differences to the base, cut by magnitude, weighted, with an election of signs; counts
// of conflicts; and an optimizer's step.
#include "rank.h"

const int models = 16, kinds = models + 1;

// CutState is a place in the order of magnitudes: elements whose magnitude (as bits) is above value are kept, and of the equal ones those
// before end. state as select_pick leaves it lies first.
struct CutState {
  u64 value, rank;
  i64 end;
};

// MergeArgs: models m of one type and shape as base; cuts may be null. stats (of conflicts): counts[p·17 + n] of elements with p
// positive and n negative differences that are kept.
struct MergeArgs {
  Mat d, base;
  Mat m[models];
  const CutState* cuts;
  u64* counts;
  double* part;  // of conflicts: Σ Σ|δ| and Σ |Σ δ| of every block
  float weight[models];
  u32 share[models], keyA[models], keyB[models];  // of random dropping: kept is what draws below share; 0 drops nothing
  float lambda;
  int count, consensus, normalise, outType;
  int whole;  // every row of d, base and m starts at 16 bytes
};

// draw is number i of a sequence of random numbers: a hash with two multiplications, keyed before and between them.
DEV u32 draw(u32 a, u32 b, u32 i) {
  u32 x = i * 0x9e3779b1 + a;
  x ^= x >> 16;
  x *= 0x7feb352d;
  x ^= x >> 15;
  x += b;
  x *= 0x846ca68b;
  return x ^ x >> 16;
}

// Kept tells which differences of model t to the base stay.
struct Kept {
  u32 share, keyA, keyB, least;
  i64 end;
  bool cut;
  MEMBER Kept(const MergeArgs& a, int t) : share(a.share[t]), keyA(a.keyA[t]), keyB(a.keyB[t]), least(0), end(0), cut(a.cuts != nullptr) {
    if (cut) least = (u32)a.cuts[t].value, end = a.cuts[t].end;
  }
  // of is v, the difference at an element with this number, or 0.
  MEMBER float of(float v, i64 number) const {
    if (share > 0 && draw(keyA, keyB, (u32)number) >= share) return 0;
    u32 size = bitsOf(v) & 0x7fffffff;
    return cut && (size < least || (size == least && number >= end)) ? 0 : v;
  }
};

// store writes the first n of a chunk's results from column j on.
template <int W> DEV void store(const MergeArgs& a, int i, i64 j, int n, bool whole, const float (&v)[W]) {
  if (a.outType == F32) {
    float* d = row<F32>(a.d, i) + j;
    UNROLL for (int e = 0; e < W; e += 4)
      if (whole) *(F4*)(d + e) = F4{v[e], v[e + 1], v[e + 2], v[e + 3]};
      else UNROLL for (int k = e; k < e + 4; k++)
        if (k < n) d[k] = v[k];
    return;
  }
  struct alignas(2 * W) Words {
    u32 w[W / 2];
  } words = {};
  UNROLL for (int e = 0; e < W; e++) words.w[e / 2] |= (u32)(a.outType == BF16 ? Type<BF16>::put(v[e]) : Type<F16>::put(v[e])) << e % 2 * 16;
  u16* d = row<BF16>(a.d, i) + j;
  if (whole) *(Words*)d = words;
  else UNROLL for (int e = 0; e < W; e++)
    if (e < n) d[e] = (u16)(words.w[e / 2] >> e % 2 * 16);
}

// mergeAll does a chunk of columns at a time. For an election the models are read a second time, from the cache.
template <int D> DEV void mergeAll(const MergeArgs& a) {
  const int W = Chunked<D>::size, batch = 4;
  for (int i = by(); i < a.base.rows; i += gy())
    for (i64 j = ((i64)bx() * nthreads() + tid()) * W; j < a.base.cols; j += (i64)gx() * nthreads() * W) {
      int n = a.base.cols - j < W ? (int)(a.base.cols - j) : W;
      bool whole = a.whole && n == W;
      Chunk base = chunkAt<D>(row<D>(a.base, i) + j, whole, 0, n);
      float sum[W] = {}, weights[W] = {}, elected[W] = {};
      ROLLED for (int round = 0; round <= (a.consensus != 0); round++) {
        UNROLL for (int e = 0; e < W; e++) elected[e] = sum[e], sum[e] = weights[e] = 0;
        ROLLED for (int first = 0; first < a.count; first += batch) {
          Chunk c[batch];  // all are on their way before the first is used
          UNROLL for (int k = 0; k < batch; k++)
            if (first + k < a.count) c[k] = chunkAt<D>(row<D>(a.m[first + k], i) + j, whole, 0, n);
          UNROLL for (int k = 0; k < batch; k++) {
            if (first + k >= a.count) break;
            Kept kept(a, first + k);
            float weight = a.weight[first + k];
            UNROLL for (int e = 0; e < W; e++) {
              float v = mulRound(weight, kept.of(part<D>(c[k], e) - part<D>(base, e), (i64)i * a.base.cols + j + e));
              if (round > 0 && !(elected[e] >= 0 ? v > 0 : v < 0)) continue;
              sum[e] = addRound(sum[e], v);
              weights[e] += weight;
            }
          }
        }
      }
      UNROLL for (int e = 0; e < W; e++) {
        if (a.normalise) sum[e] = sum[e] / (weights[e] == 0 ? 1 : weights[e]);
        sum[e] = addRound(part<D>(base, e), mulRound(a.lambda, sum[e]));
      }
      store(a, i, j, n, whole, sum);
    }
}

template <int D> DEV void conflicts(const MergeArgs& a) {
  SHARED(u32, bins, kinds * kinds);
  for (int b = tid(); b < kinds * kinds; b += nthreads()) bins[b] = 0;
  sync();
  double mass = 0, net = 0;
  for (int i = by(); i < a.base.rows; i += gy())
    for (i64 j = (i64)bx() * nthreads() + tid(); j < a.base.cols; j += (i64)gx() * nthreads()) {
      float base = at<D>(row<D>(a.base, i), j);
      double sum = 0;
      int p = 0, n = 0;
      for (int t = 0; t < a.count; t++) {
        float v = Kept(a, t).of(at<D>(row<D>(a.m[t], i), j) - base, (i64)i * a.base.cols + j);
        p += v > 0, n += v < 0;
        sum += v, mass += fabs((double)v);
      }
      net += fabs(sum);
      if (p + n > 0) addAtomic(&bins[p * kinds + n], 1);
    }
  mass = blockReduce<Sum>(mass, 0.0), net = blockReduce<Sum>(net, 0.0);
  for (int b = tid(); b < kinds * kinds; b += nthreads())
    if (bins[b] > 0) addAtomic(&a.counts[b], (u64)bins[b]);
  i64 block = (i64)by() * gx() + bx();
  if (tid() == 0) a.part[2 * block] = mass, a.part[2 * block + 1] = net;
}

// CutArgs: a cut at the keep largest magnitudes of m - base. histogram has 3·2048 counts, zeroed.
struct CutArgs {
  Mat base, m;
  CutState* cut;
  u32* histogram;
  i64 keep;
  int pass, whole;  // whole: rows start at 16 bytes
};

template <int D> DEV u32 magnitude(const CutArgs& a, int i, i64 j) {
  return bitsOf(at<D>(row<D>(a.m, i), j) - at<D>(row<D>(a.base, i), j)) & 0x7fffffff;
}

template <int D> DEV void cutHistogram(const CutArgs& a) {
  SHARED(u32, histogram, 2048);
  const int W = Chunked<D>::size;
  u32 prefix = (u32)a.cut->value, done = a.pass == 0 ? 0 : ~0u << shiftOf(a.pass - 1), bins = binsOf(a.pass);
  int shift = shiftOf(a.pass);
  for (int b = tid(); b < 2048; b += nthreads()) histogram[b] = 0;
  sync();
  for (int i = by(); i < a.m.rows; i += gy())
    for (i64 j = ((i64)bx() * nthreads() + tid()) * W; j < a.m.cols; j += (i64)gx() * nthreads() * W) {
      int n = a.m.cols - j < W ? (int)(a.m.cols - j) : W;
      Chunk m = chunkAt<D>(row<D>(a.m, i) + j, a.whole && n == W, 0, n), base = chunkAt<D>(row<D>(a.base, i) + j, a.whole && n == W, 0, n);
      UNROLL for (int e = 0; e < W; e++) {
        u32 v = bitsOf(part<D>(m, e) - part<D>(base, e)) & 0x7fffffff;
        if (e < n && (v & done) == prefix) addAtomic(&histogram[v >> shift & bins], 1);
      }
    }
  sync();
  for (int b = tid(); b < 2048; b += nthreads())
    if (histogram[b] > 0) addAtomic(&a.histogram[a.pass * 2048 + b], histogram[b]);
}

// cut_pick, one block, extends the cut by the bits of a pass.
KERNEL(cut_pick, CutArgs, 256, 1) {
  u32 bin, rank = a.pass == 0 ? (u32)((i64)a.m.rows * a.m.cols - a.keep) : (u32)a.cut->rank;
  u64 value = a.cut->value;
  pick(a.histogram + a.pass * 2048, rank, bin, rank);
  if (tid() == 0) a.cut->value = value | (u64)bin << shiftOf(a.pass), a.cut->rank = rank;
}

// cutChunks is the number of pieces in which elements equal to a cut are counted, each by a block, of cutLeast elements or more; a bin of
// the first histogram, which is no longer needed, takes the count of each.
const int cutChunks = 2048, cutLeast = 256;

DEV i64 chunkOf(const CutArgs& a) {
  i64 chunk = ((i64)a.m.rows * a.m.cols + cutChunks - 1) / cutChunks;
  return chunk > cutLeast ? chunk : cutLeast;
}

// equalTo is how many elements have the magnitude of the cut, and keptOf how many of them are kept.
DEV u32 equalTo(const CutArgs& a) { return a.histogram[2 * 2048 + ((u32)a.cut->value & binsOf(2))]; }
DEV u32 keptOf(const CutArgs& a) { return equalTo(a) - (u32)a.cut->rank; }

// cutTies counts the elements equal to the cut in every chunk, unless all are kept.
template <int D> DEV void cutTies(const CutArgs& a) {
  u32 value = (u32)a.cut->value, found = 0;
  if (keptOf(a) == equalTo(a)) return;
  i64 n = (i64)a.m.rows * a.m.cols, chunk = chunkOf(a), lo = bx() * chunk, hi = lo + chunk < n ? lo + chunk : n;
  for (i64 e = lo + tid(); e < hi; e += nthreads()) found += magnitude<D>(a, (int)(e / a.m.cols), e % a.m.cols) == value;
  found = blockReduce<Sum>(found, 0u);
  if (tid() == 0) a.histogram[bx()] = found;
  for (int rest = gx() + bx() * nthreads() + tid(); rest < cutChunks; rest += gx() * nthreads()) a.histogram[rest] = 0;
}

// cutEnd, one block, finds how far the elements equal to the cut are kept.
template <int D> DEV void cutEnd(const CutArgs& a) {
  u32 value = (u32)a.cut->value, take = keptOf(a);
  i64 n = (i64)a.m.rows * a.m.cols;
  if (take == equalTo(a)) {
    if (tid() == 0) a.cut->end = n;
    return;
  }
  u32 at, rank, passed = 0, total;
  pick(a.histogram, take - 1, at, rank);
  i64 lo = at * chunkOf(a), hi = lo + chunkOf(a) < n ? lo + chunkOf(a) : n;
  for (i64 base = lo; base < hi && passed <= rank; base += nthreads()) {
    i64 e = base + tid();
    u32 is = e < hi && magnitude<D>(a, (int)(e / a.m.cols), e % a.m.cols) == value;
    u32 before = passed + blockBefore(is, total);
    if (is && before == rank) a.cut->end = e + 1;
    passed += total;
  }
}

#define MERGE(name, D)                                               \
  KERNEL(merge_##name, MergeArgs, 256, 2) { mergeAll<D>(a); }        \
  KERNEL(conflicts_##name, MergeArgs, 256, 2) { conflicts<D>(a); }   \
  KERNEL(cut_hist_##name, CutArgs, 256, 4) { cutHistogram<D>(a); }   \
  KERNEL(cut_ties_##name, CutArgs, 256, 4) { cutTies<D>(a); }        \
  KERNEL(cut_end_##name, CutArgs, 256, 1) { cutEnd<D>(a); }
MERGE(f32, F32)
MERGE(bf16, BF16)
MERGE(f16, F16)

// AdamArgs: one step of AdamW on p with gradient g and moments m and v, all F32 of n elements.
struct AdamArgs {
  float *p, *m, *v;
  const float* g;
  i64 n;
  float scale, decay, rise1, beta2, rise2, root2, eps, step;
};

KERNEL(adamw, AdamArgs, 256, 4) {
  for (i64 i = (i64)bx() * nthreads() + tid(); i < a.n; i += (i64)gx() * nthreads()) {
    float g = mulRound(a.g[i], a.scale), p = mulRound(a.p[i], a.decay), m = a.m[i], v = a.v[i];
    m = addRound(m, mulRound(a.rise1, g - m));
    v = addRound(mulRound(a.beta2, v), mulRound(mulRound(a.rise2, g), g));
    a.m[i] = m, a.v[i] = v;
    a.p[i] = addRound(p, mulRound(a.step, m / (sqrtf(v) / a.root2 + a.eps)));
  }
}
