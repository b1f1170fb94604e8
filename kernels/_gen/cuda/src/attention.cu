// Causal attention without a stored score matrix, forward and backward, in float32. A block of 256 threads, 16×16, does 64 queries
// against 64 keys at a time; thread (y, x) has the queries 4y…4y+3 and the keys or channels x, x+16, x+32 ….
#include "device.h"

// AttentionArgs: strides in elements; heads lie qs and ks elements apart in a row. d is out, or the gradients dq, dk, dv.
struct AttentionArgs {
  Mat q, k, v, out, lse, dout, dq, dk, dv;
  float* mean;  // [tq, heads]: Σ dout·out; of few queries [tq, heads, parts, dim+2]: partial results
  i64 qs, ks;
  int heads, rep, dim, pos, window;
  float scale, cap;
  int part, parts;  // of few queries: keys of a part, and how many parts there are
};

const int side = 64, slice = 32;

// lowest is the first key that query i sees, highest the one after its last.
DEV int lowest(const AttentionArgs& a, int i) {
  int lo = a.window > 0 ? a.pos + i - a.window + 1 : 0;
  return lo > 0 ? lo : 0;
}
DEV int highest(const AttentionArgs& a, int i) { return a.pos + i + 1; }
DEV bool seen(const AttentionArgs& a, int i, int j) { return i < a.q.rows && j >= lowest(a, i) && j < highest(a, i); }

// stage copies the channels c0…c0+31 of 64 rows of a head to shared memory; what is outside is 0.
DEV void stage(float* s, const Mat& m, i64 head, int first, int rows, int c0, int dim) {
  for (int e = tid(); e < side * slice; e += 256) {
    int r = e / slice, c = e % slice;
    s[r * (slice + 1) + c] = first + r < rows && c0 + c < dim ? ((const float*)m.p)[(first + r) * m.stride + head + c0 + c] : 0;
  }
}

// products adds x·yᵀ over all channels to s: rows 4ty…, columns tx + 16·j.
DEV void products(float (&s)[4][4], const Mat& x, i64 xh, int x0, int xn, const Mat& y, i64 yh, int y0, int yn, int dim, float* xs, float* ys) {
  int ty = tid() / 16, tx = tid() % 16;
  for (int c0 = 0; c0 < dim; c0 += slice) {
    sync();
    stage(xs, x, xh, x0, xn, c0, dim);
    stage(ys, y, yh, y0, yn, c0, dim);
    sync();
    UNROLL4 for (int c = 0; c < slice; c++) {
      float xv[4], yv[4];
      UNROLL for (int i = 0; i < 4; i++) xv[i] = xs[(ty * 4 + i) * (slice + 1) + c];
      UNROLL for (int j = 0; j < 4; j++) yv[j] = ys[(tx + 16 * j) * (slice + 1) + c];
      UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int j = 0; j < 4; j++) s[i][j] += xv[i] * yv[j];
    }
  }
}

// accumulate adds p·y to o: p [64][65] in shared memory (transposed if T), y rows y0…, channels tx + 16·j of every slice. o has two
// channels of a thread for every slice. With edge, weights of 0 may belong to rows that are not seen, whose NaN must not count.
template <int C, bool T>
DEV void accumulate(float (&o)[4][C], const float* p, bool edge, const Mat& y, i64 yh, int y0, int yn, int dim, float* ys) {
  int ty = tid() / 16, tx = tid() % 16;
  UNROLL for (int q = 0; q < C / 2; q++) {
    if (q * slice >= dim) break;
    sync();
    stage(ys, y, yh, y0, yn, q * slice, dim);
    sync();
    UNROLL4 for (int r = 0; r < side; r++) {
      float u = ys[r * (slice + 1) + tx], v = ys[r * (slice + 1) + tx + 16];
      UNROLL for (int i = 0; i < 4; i++) {
        float w = T ? p[r * (side + 1) + ty * 4 + i] : p[(ty * 4 + i) * (side + 1) + r];
        if (edge && w == 0) continue;
        o[i][2 * q] += w * u;
        o[i][2 * q + 1] += w * v;
      }
    }
  }
}

// rowReduce combines a value of the 16 threads of a row, which are half of a warp.
template <class Op> DEV float rowReduce(float v) {
  for (int m = 8; m > 0; m >>= 1) v = Op::of(v, shflXor(v, m));
  return v;
}

DEV float capped(float s, float cap) { return cap == 0 ? s : cap * tanhf(s / cap); }

// keep is what a score that is not seen gets: its exponential is 0 for every maximum.
const float unseen = -3.402823466e38f;

template <int C> DEV void forward(const AttentionArgs& a) {
  SHARED(float, xs, side * (slice + 1));
  SHARED(float, ys, side * (slice + 1));
  SHARED(float, ps, side * (side + 1));
  int ty = tid() / 16, tx = tid() % 16, h = by(), i0 = (gx() - 1 - bx()) * side;
  i64 qh = h * a.qs, kh = h / a.rep * a.ks;
  float o[4][C], top[4], sum[4];
  UNROLL for (int i = 0; i < 4; i++) {
    top[i] = unseen, sum[i] = 0;
    UNROLL for (int c = 0; c < C; c++) o[i][c] = 0;
  }
  int last = i0 + side < a.q.rows ? i0 + side : a.q.rows, end = highest(a, last - 1);
  for (int j0 = lowest(a, i0) / side * side; j0 < end; j0 += side) {
    float s[4][4] = {};
    products(s, a.q, qh, i0, a.q.rows, a.k, kh, j0, end, a.dim, xs, ys);
    UNROLL for (int i = 0; i < 4; i++) {
      float high = top[i];
      UNROLL for (int j = 0; j < 4; j++) {
        bool see = seen(a, i0 + ty * 4 + i, j0 + tx + 16 * j);
        s[i][j] = capped(a.scale * s[i][j], a.cap);
        if (see && s[i][j] > high) high = s[i][j];
      }
      high = rowReduce<Max>(high);
      float factor = expf(top[i] - high), part = 0;
      UNROLL for (int j = 0; j < 4; j++) {
        float p = seen(a, i0 + ty * 4 + i, j0 + tx + 16 * j) ? expf(s[i][j] - high) : 0;
        part += p;
        ps[(ty * 4 + i) * (side + 1) + tx + 16 * j] = p;
      }
      sum[i] = sum[i] * factor + rowReduce<Sum>(part);
      top[i] = high;
      UNROLL for (int c = 0; c < C; c++) o[i][c] *= factor;
    }
    accumulate<C, false>(o, ps, !seen(a, i0, j0 + side - 1) || !seen(a, i0 + side - 1, j0), a.v, kh, j0, end, a.dim, ys);
  }
  UNROLL for (int i = 0; i < 4; i++) {
    int r = i0 + ty * 4 + i;
    if (r >= a.q.rows) continue;
    float* d = row<F32>(a.out, r) + h * a.dim;
    UNROLL for (int c = 0; c < C; c++)
      if (c / 2 * slice + c % 2 * 16 + tx < a.dim) d[c / 2 * slice + c % 2 * 16 + tx] = o[i][c] / sum[i];
    if (a.lse.p && tx == 0) row<F32>(a.lse, r)[h] = top[i] + logf(sum[i]);
  }
}

// attention_mean: mean[i, h] = Σ_c dout·out; one warp does one query and head.
KERNEL(attention_mean, AttentionArgs, 256, 4) {
  i64 n = (i64)bx() * 8 + tid() / 32;
  if (n >= (i64)a.q.rows * a.heads) return;
  i64 i = n / a.heads, h = n % a.heads;
  const float *x = row<F32>(a.dout, i) + h * a.dim, *y = row<F32>(a.out, i) + h * a.dim;
  float s = 0;
  for (int c = tid() % 32; c < a.dim; c += 32) s += x[c] * y[c];
  s = warpReduce<Sum>(s);
  if (tid() % 32 == 0) a.mean[n] = s;
}

// weights makes of the scores s and of dp = dout·vᵀ the weights p and the score gradients ds, the scale included.
DEV void weights(const AttentionArgs& a, float s, float dp, int i, int j, int h, float& p, float& ds) {
  p = ds = 0;
  if (!seen(a, i, j)) return;
  float t = capped(a.scale * s, a.cap);
  p = expf(t - row<F32>(a.lse, i)[h]);
  ds = a.scale * p * (dp - a.mean[(i64)i * a.heads + h]);
  if (a.cap != 0) ds *= (1 - t / a.cap) * (1 + t / a.cap);
}

template <int C> DEV void backQueries(const AttentionArgs& a) {
  SHARED(float, xs, side * (slice + 1));
  SHARED(float, ys, side * (slice + 1));
  SHARED(float, ps, side * (side + 1));
  int ty = tid() / 16, tx = tid() % 16, h = by(), i0 = (gx() - 1 - bx()) * side;
  i64 qh = h * a.qs, kh = h / a.rep * a.ks, oh = (i64)h * a.dim;
  float o[4][C];
  UNROLL for (int i = 0; i < 4; i++)
    UNROLL for (int c = 0; c < C; c++) o[i][c] = 0;
  int last = i0 + side < a.q.rows ? i0 + side : a.q.rows, end = highest(a, last - 1);
  for (int j0 = lowest(a, i0) / side * side; j0 < end; j0 += side) {
    float s[4][4] = {}, dp[4][4] = {};
    products(s, a.q, qh, i0, a.q.rows, a.k, kh, j0, end, a.dim, xs, ys);
    products(dp, a.dout, oh, i0, a.q.rows, a.v, kh, j0, end, a.dim, xs, ys);
    UNROLL for (int i = 0; i < 4; i++)
      UNROLL for (int j = 0; j < 4; j++) {
        float p, ds;
        weights(a, s[i][j], dp[i][j], i0 + ty * 4 + i, j0 + tx + 16 * j, h, p, ds);
        ps[(ty * 4 + i) * (side + 1) + tx + 16 * j] = ds;
      }
    accumulate<C, false>(o, ps, false, a.k, kh, j0, end, a.dim, ys);
  }
  UNROLL for (int i = 0; i < 4; i++) {
    int r = i0 + ty * 4 + i;
    UNROLL for (int c = 0; c < C; c++)
      if (r < a.q.rows && c / 2 * slice + c % 2 * 16 + tx < a.dim) row<F32>(a.dq, r)[qh + c / 2 * slice + c % 2 * 16 + tx] = o[i][c];
  }
}

// backKeys gives dk (K) or dv of 64 keys of one key head, over its query heads and the queries in order.
template <int C, bool K> DEV void backKeys(const AttentionArgs& a) {
  SHARED(float, xs, side * (slice + 1));
  SHARED(float, ys, side * (slice + 1));
  SHARED(float, ps, side * (side + 1));
  int ty = tid() / 16, tx = tid() % 16, g = by(), j0 = bx() * side;
  const Mat& d = K ? a.dk : a.dv;
  i64 kh = g * a.ks;
  float o[4][C];
  UNROLL for (int i = 0; i < 4; i++)
    UNROLL for (int c = 0; c < C; c++) o[i][c] = 0;
  int first = j0 - a.pos > 0 ? j0 - a.pos : 0, end = a.q.rows;
  if (a.window > 0 && j0 + side - 1 + a.window - a.pos < end) end = j0 + side - 1 + a.window - a.pos;
  for (int h = g * a.rep; h < (g + 1) * a.rep; h++)
    for (int i0 = first / side * side; i0 < end; i0 += side) {
      float s[4][4] = {}, dp[4][4] = {};
      products(s, a.q, h * a.qs, i0, a.q.rows, a.k, kh, j0, a.k.rows, a.dim, xs, ys);
      if (K) products(dp, a.dout, (i64)h * a.dim, i0, a.q.rows, a.v, kh, j0, a.v.rows, a.dim, xs, ys);
      UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int j = 0; j < 4; j++) {
          float p, ds;
          weights(a, s[i][j], dp[i][j], i0 + ty * 4 + i, j0 + tx + 16 * j, h, p, ds);
          ps[(ty * 4 + i) * (side + 1) + tx + 16 * j] = K ? ds : p;
        }
      accumulate<C, true>(o, ps, false, K ? a.q : a.dout, K ? h * a.qs : (i64)h * a.dim, i0, a.q.rows, a.dim, ys);
    }
  UNROLL for (int i = 0; i < 4; i++) {
    int r = j0 + ty * 4 + i;
    UNROLL for (int c = 0; c < C; c++)
      if (r < d.rows && c / 2 * slice + c % 2 * 16 + tx < a.dim) row<F32>(d, r)[kh + c / 2 * slice + c % 2 * 16 + tx] = o[i][c];
  }
}

#define ATTENTION(dim, C, blocks)                                                       \
  KERNEL(attention_##dim, AttentionArgs, 256, blocks) { forward<C>(a); }                \
  KERNEL(attention_dq_##dim, AttentionArgs, 256, blocks) { backQueries<C>(a); }         \
  KERNEL(attention_dk_##dim, AttentionArgs, 256, blocks) { backKeys<C, true>(a); }      \
  KERNEL(attention_dv_##dim, AttentionArgs, 256, blocks) { backKeys<C, false>(a); }
ATTENTION(64, 4, 2)
ATTENTION(128, 8, 2)
ATTENTION(256, 16, 1)

DEV float blockMost(const float* v, int n) {
  float most = v[0];
  for (int k = 1; k < n; k++) most = v[k] > most ? v[k] : most;
  return most;
}

// attention_few: few queries and many keys, as in generation. A block of 128 threads does one query head (blockIdx.y), one query
// (blockIdx.z) and a part of the keys, a warp one key at a time; the parts' results are joined by attention_join.
KERNEL(attention_few, AttentionArgs, 128, 4) {
  SHARED(float, tops, 4);
  SHARED(float, sums, 4);
  SHARED(float, outs, 4 * 256);
  int lane = tid() % 32, warp = tid() / 32, h = by(), i = bz();
  i64 kh = h / a.rep * a.ks;
  const float* q = row<F32>(a.q, i) + h * a.qs;
  int lo = lowest(a, i) + bx() * a.part, end = highest(a, i), hi = lo + a.part < end ? lo + a.part : end;
  float qv[8], o[8], top = unseen, sum = 0;
  UNROLL for (int c = 0; c < 8; c++) qv[c] = lane + 32 * c < a.dim ? q[lane + 32 * c] : 0, o[c] = 0;
  for (int j = lo + warp; j < hi; j += 4) {
    const float *k = row<F32>(a.k, j) + kh, *v = row<F32>(a.v, j) + kh;
    float s = 0;
    UNROLL for (int c = 0; c < 8; c++)
      if (lane + 32 * c < a.dim) s += qv[c] * k[lane + 32 * c];
    s = capped(a.scale * warpReduce<Sum>(s), a.cap);
    float high = s > top ? s : top, old = expf(top - high), p = expf(s - high);
    sum = sum * old + p, top = high;
    UNROLL for (int c = 0; c < 8; c++)
      if (lane + 32 * c < a.dim) o[c] = o[c] * old + p * v[lane + 32 * c];
  }
  if (lane == 0) tops[warp] = top, sums[warp] = sum;
  UNROLL for (int c = 0; c < 8; c++) outs[warp * 256 + lane + 32 * c] = o[c];
  sync();
  float* out = a.mean + (((i64)i * a.heads + h) * a.parts + bx()) * (a.dim + 2);
  top = blockMost(tops, 4);
  sum = 0;
  for (int w = 0; w < 4; w++) sum += sums[w] * expf(tops[w] - top);
  for (int c = tid(); c < a.dim; c += 128) {
    float v = 0;
    for (int w = 0; w < 4; w++) v += outs[w * 256 + c] * expf(tops[w] - top);
    out[2 + c] = v;
  }
  if (tid() == 0) out[0] = top, out[1] = sum;
}

// attention_join: a block does one query head and one query.
KERNEL(attention_join, AttentionArgs, 128, 4) {
  int h = by(), i = bz();
  const float* in = a.mean + ((i64)i * a.heads + h) * a.parts * (a.dim + 2);
  float top = unseen, sum = 0;
  for (int p = 0; p < a.parts; p++) top = in[p * (a.dim + 2)] > top ? in[p * (a.dim + 2)] : top;
  for (int p = 0; p < a.parts; p++) sum += in[p * (a.dim + 2) + 1] * expf(in[p * (a.dim + 2)] - top);
  for (int c = tid(); c < a.dim; c += 128) {
    float v = 0;
    for (int p = 0; p < a.parts; p++) v += in[p * (a.dim + 2) + 2 + c] * expf(in[p * (a.dim + 2)] - top);
    row<F32>(a.out, i)[h * a.dim + c] = v / sum;
  }
  if (a.lse.p && tid() == 0) row<F32>(a.lse, i)[h] = top + logf(sum);
}
