// Gradients of causal attention on tensor cores, for heads of up to 128 channels, without atomic additions: one kernel goes through the keys
// for 64 queries and gives dq, one through the queries of a group of heads for 64 keys and gives dk and dv, in one order. Both
// compute the weights anew from the LSE. Factors are not rounded, as in flash.cu: the moving side comes as three bfloat16 planes, the
// 64 rows and the weights are split in registers.
//
// Of 32 moving rows, 2·3·2·32·W bytes come to shared memory (48 KiB with W = 128, of which two blocks fit every processor) for 6·64·32·W
// operations (dq) or 8·64·32·W (dk and dv). The 64 rows themselves are read again for every tile, from the first cache.
#include "tiles.h"

// BackArgs: x, y of 64 rows (queries: q, dout, with dx = dq; or keys: k, v, with dx, dy = dk, dv), and planes s, t of the others (k, v from key first
// on; or q, dout), count rows. xs, ys, ss, ts elements lie between heads. lse and mean are [queries, heads].
struct BackArgs {
  Mat x, y, dx, dy, lse, mean;
  const u16 *s, *t;
  i64 planeS, planeT, strideS, strideT;
  i64 xs, ys, ss, ts;
  int rep, dim, pos, window, first, count;
  float scale, cap;
};

DEV int lowest(const BackArgs& a, int i) {
  int lo = a.window > 0 ? a.pos + i - a.window + 1 : 0;
  return lo > 0 ? lo : 0;
}

// fetch starts the copies of a thread's part of a tile of rows j0…j0+31; what lies outside is 0.
template <int W> DEV void fetch(const BackArgs& a, u16* s, const u16* planes, i64 plane, i64 stride, i64 head, int j0) {
  ROLLED for (int p = 0; p < 3; p++)
    ROLLED for (int c = tid(); c < tileK * W / 8; c += 128) {
      int r = c / (W / 8), chunk = c % (W / 8), j = j0 + r;
      bool take = j < a.count && chunk * 8 < a.dim;
      copy16(s + p * tileK * W + placeK<W>(r, chunk), take ? planes + p * plane + j * stride + head + chunk * 8 : planes, take);
    }
  copyCommit();
}

// across adds the products of a warp's 16 rows of m with the 32 rows of a tile to s.
template <int W> DEV void across(const BackArgs& a, float (&s)[4][4], const Mat& m, i64 head, int mine, const u16* tile) {
  int lane = tid() % 32, col = lane % 4 * 2;
  ROLLED for (int c = 0; c * 16 < a.dim; c++) {  // unrolled, its loads would come first and take the registers
    u32 x[3][4];
    UNROLL for (int e = 0; e < 4; e++) {
      int i = mine + e % 2 * 8, ch = c * 16 + e / 2 * 8 + col;
      bool take = i < m.rows && ch < a.dim;
      const float* p = row<F32>(m, take ? i : 0) + head + ch;
      split(x, e, take ? p[0] : 0, take ? p[1] : 0);
    }
    UNROLL for (int n = 0; n < 2; n++)
      multiplyParts(s[2 * n], s[2 * n + 1], x, tile + placeK<W>(n * 16 + lane % 8 + lane / 16 * 8, c * 2 + lane / 8 % 2), tileK * W);
  }
}

// along adds weights [16][32] times a tile to o.
template <int W> DEV void along(const BackArgs& a, float (&o)[W / 8][4], const float (&s)[4][4], const u16* tile) {
  int lane = tid() % 32;
  u32 x[2][3][4];
  UNROLL for (int k = 0; k < 2; k++)
    UNROLL for (int e = 0; e < 4; e++) split(x[k], e, s[2 * k + e / 2][e % 2 * 2], s[2 * k + e / 2][e % 2 * 2 + 1]);
  UNROLL for (int n = 0; n < W / 16; n++) {
    if (n * 16 >= a.dim) break;
    float t[2][4];
    UNROLL for (int e = 0; e < 4; e++) t[0][e] = t[1][e] = 0;
    UNROLL for (int k = 0; k < 2; k++) {
      const u16* plane = tile + placeK<W>(k * 16 + lane % 16, n * 2 + lane / 16);
      UNROLL for (int p = 2; p >= 0; p--) {
        u32 y[4];
        loadTransposed(y, plane + p * tileK * W);
        UNROLL for (int r = 2 - p; r >= 0; r--) multiply(t[0], x[k][r], y[0], y[1]), multiply(t[1], x[k][r], y[2], y[3]);
      }
    }
    UNROLL for (int e = 0; e < 4; e++) o[2 * n][e] += t[0][e], o[2 * n + 1][e] += t[1][e];
  }
}

// weigh makes of a score and of dout·v the weight, and the score's gradient with the scale.
DEV void weigh(const BackArgs& a, float& s, float& dp, int i, int j, int queries, float lse, float mean) {
  bool see = i < queries && j <= a.pos + i && j >= lowest(a, i);
  float t = a.scale * s;
  if (a.cap != 0) t = a.cap * tanhf(t / a.cap);
  float p = see ? expf(t - lse) : 0, ds = a.scale * p * (dp - mean);
  if (a.cap != 0) ds *= (1 - t / a.cap) * (1 + t / a.cap);
  s = p, dp = see ? ds : 0;
}

// put stores a warp's 16 rows.
template <int W> DEV void put(const BackArgs& a, const Mat& d, i64 head, int mine, const float (&o)[W / 8][4]) {
  int col = tid() % 4 * 2;
  UNROLL for (int r = 0; r < 2; r++) {
    int i = mine + r * 8;
    if (i >= d.rows) continue;
    float* p = row<F32>(d, i) + head;
    UNROLL for (int n = 0; n < W / 8; n++)
      UNROLL for (int e = 0; e < 2; e++)
        if (n * 8 + col + e < a.dim) p[n * 8 + col + e] = o[n][2 * r + e];
  }
}

template <int N> DEV void clear(float (&o)[N][4]) {
  UNROLL for (int n = 0; n < N; n++)
    UNROLL for (int e = 0; e < 4; e++) o[n][e] = 0;
}

template <int W> DEV void backQueries(const BackArgs& a) {
  SHARED(u16, ks, 3 * tileK * W);
  SHARED(u16, vs, 3 * tileK * W);
  int lane = tid() % 32, col = lane % 4 * 2, h = by(), i0 = (gx() - 1 - bx()) * tileQ, mine = i0 + tid() / 32 * 16 + lane / 4;
  i64 ss = h / a.rep * a.ss, ts = h / a.rep * a.ts;
  float o[W / 8][4], lse[2], mean[2];
  clear(o);
  UNROLL for (int r = 0; r < 2; r++) {
    bool is = mine + r * 8 < a.x.rows;
    lse[r] = is ? row<F32>(a.lse, mine + r * 8)[h] : 0, mean[r] = is ? row<F32>(a.mean, mine + r * 8)[h] : 0;
  }
  int last = i0 + tileQ < a.x.rows ? i0 + tileQ : a.x.rows, end = a.pos + last, j0 = lowest(a, i0) / tileK * tileK;
  fetch<W>(a, vs, a.t, a.planeT, a.strideT, ts, j0 - a.first);
  fetch<W>(a, ks, a.s, a.planeS, a.strideS, ss, j0 - a.first);
  for (; j0 < end; j0 += tileK) {
    copyWait<0>();
    sync();
    float s[4][4], dp[4][4];
    clear(s), clear(dp);
    across<W>(a, s, a.x, h * a.xs, mine, ks);
    across<W>(a, dp, a.y, h * a.ys, mine, vs);
    sync();
    fetch<W>(a, vs, a.t, a.planeT, a.strideT, ts, j0 + tileK - a.first);
    UNROLL for (int n = 0; n < 4; n++)
      UNROLL for (int e = 0; e < 4; e++) weigh(a, s[n][e], dp[n][e], mine + e / 2 * 8, j0 + n * 8 + col + e % 2, a.x.rows, lse[e / 2], mean[e / 2]);
    along<W>(a, o, dp, ks);
    sync();
    fetch<W>(a, ks, a.s, a.planeS, a.strideS, ss, j0 + tileK - a.first);
  }
  copyWait<0>();
  put<W>(a, a.dx, h * a.xs, mine, o);
}

template <int W> DEV void backKeys(const BackArgs& a) {
  SHARED(u16, qs, 3 * tileK * W);
  SHARED(u16, os, 3 * tileK * W);
  int lane = tid() % 32, col = lane % 4 * 2, g = by(), j0 = bx() * tileQ, mine = j0 + tid() / 32 * 16 + lane / 4;
  float dk[W / 8][4], dv[W / 8][4];
  clear(dk), clear(dv);
  int begin = (j0 - a.pos > 0 ? j0 - a.pos : 0) / tileK * tileK, tiles = 0;
  i64 end = a.count;
  if (a.window > 0 && j0 + (i64)tileQ - 1 + a.window - a.pos < end) end = j0 + (i64)tileQ - 1 + a.window - a.pos;
  if (begin < end) tiles = ((int)end - begin + tileK - 1) / tileK;
  if (tiles > 0) {
    fetch<W>(a, os, a.t, a.planeT, a.strideT, g * a.rep * a.ts, begin);
    fetch<W>(a, qs, a.s, a.planeS, a.strideS, g * a.rep * a.ss, begin);
  }
  for (int k = 0; k < a.rep * tiles; k++) {  // number k % tiles of head k / tiles of the group
    int h = g * a.rep + k / tiles, i0 = begin + k % tiles * tileK;
    int next = k + 1 < a.rep * tiles ? k + 1 : k, nh = g * a.rep + next / tiles, ni = begin + next % tiles * tileK;
    copyWait<0>();
    sync();
    float s[4][4], dp[4][4];
    clear(s), clear(dp);
    across<W>(a, s, a.x, g * a.xs, mine, qs);
    across<W>(a, dp, a.y, g * a.ys, mine, os);
    UNROLL for (int n = 0; n < 4; n++)
      UNROLL for (int e = 0; e < 4; e++) {
        int i = i0 + n * 8 + col + e % 2, known = i < a.count ? i : 0;
        weigh(a, s[n][e], dp[n][e], i, mine + e / 2 * 8, a.count, row<F32>(a.lse, known)[h], row<F32>(a.mean, known)[h]);
      }
    along<W>(a, dv, s, os);
    sync();
    fetch<W>(a, os, a.t, a.planeT, a.strideT, nh * a.ts, ni);
    along<W>(a, dk, dp, qs);
    sync();
    fetch<W>(a, qs, a.s, a.planeS, a.strideS, nh * a.ss, ni);
  }
  copyWait<0>();
  put<W>(a, a.dx, g * a.xs, mine, dk);
  put<W>(a, a.dy, g * a.ys, mine, dv);
}

KERNEL(flash_dq_64, BackArgs, 128, 3) { backQueries<64>(a); }
KERNEL(flash_dq_128, BackArgs, 128, 2) { backQueries<128>(a); }
KERNEL(flash_dkv_64, BackArgs, 128, 2) { backKeys<64>(a); }
KERNEL(flash_dkv_128, BackArgs, 128, 2) { backKeys<128>(a); }
