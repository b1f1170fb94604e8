// Causal attention on tensor cores, for heads of up to 128 channels: tiles of 64 queries against 32 keys, scores and weights in
// registers, sums in float32. Factors are not rounded: keys and values come as three bfloat16 planes each (matmul.cu's pack), a query
// or weight is split in registers, and of the nine products of parts the six above 2^-24 of the whole are added, the small ones first.
//
// Of a tile of 32 keys, 2·3·2·32·W bytes come from memory (48 KiB with W = 128 channels) for 4·64·32·W operations on 64 queries: 21
// operations a byte, of which a tensor core does six times as many. Blocks of one head follow each other, so that its planes come from
// the cache, and copies of the next keys and values run while
// the tensor cores work.
#include "tiles.h"

// FlashArgs: keys [tk][channels] and values [channels][tk] as planes, from key first on; qs and ks elements lie between heads.
struct FlashArgs {
  Mat q, out, lse;
  const u16 *k, *v;
  i64 planeK, planeV, strideK, strideV;
  i64 qs, ks;
  int rep, dim, pos, window, first, keys;
  float scale, cap;
};

// What is not seen gets the weight 0; a maximum starts at unseen.
const float unseen = -3.402823466e38f;

DEV int lowest(const FlashArgs& a, int i) {
  int lo = a.window > 0 ? a.pos + i - a.window + 1 : 0;
  return lo > 0 ? lo : 0;
}
DEV bool seen(const FlashArgs& a, int i, int j) { return i < a.q.rows && j >= lowest(a, i) && j <= a.pos + i; }

// placeV is the index of 16 bytes in a tile of values [W][32], as placeK (tiles.h) is for one of keys.
DEV int placeV(int r, int chunk) { return (r * 4 + (chunk ^ (r >> 1 & 3))) * 8; }

// fetchK and fetchV start the copies of a thread's part of a tile; what lies outside is 0.
template <int W> DEV void fetchK(const FlashArgs& a, u16* s, i64 head, int j0) {
  ROLLED for (int p = 0; p < 3; p++)
    ROLLED for (int c = tid(); c < tileK * W / 8; c += 128) {
      int r = c / (W / 8), chunk = c % (W / 8), j = j0 - a.first + r;
      bool take = j < a.keys && chunk * 8 < a.dim;
      copy16(s + p * tileK * W + placeK<W>(r, chunk), take ? a.k + p * a.planeK + j * a.strideK + head + chunk * 8 : a.k, take);
    }
  copyCommit();
}
template <int W> DEV void fetchV(const FlashArgs& a, u16* s, i64 head, int j0) {
  ROLLED for (int p = 0; p < 3; p++)
    ROLLED for (int c = tid(); c < tileK * W / 8; c += 128) {
      int r = c / 4, chunk = c % 4, j = j0 - a.first + chunk * 8;
      bool take = j < a.strideV && r < a.dim;
      copy16(s + p * tileK * W + placeV(r, chunk), take ? a.v + p * a.planeV + (head + r) * a.strideV + j : a.v, take);
    }
  copyCommit();
}

DEV bool infinite(u16 v) { return (v & 0x7f80) == 0x7f80; }

// cleared sets NaN and infinities in a thread's part of the first plane of a tile to 0, and reports whether any thread met one: they
// must not meet parts that are 0, or weights of 0 of queries that do not see them. infinities and spoil make up for it.
template <int W, bool K> DEV bool cleared(u16* s) {
  bool found = false;
  ROLLED for (int c = tid(); c < tileK * W / 8; c += 128) {
    u16* p = s + (K ? placeK<W>(c / (W / 8), c % (W / 8)) : placeV(c / 4, c % 4));  // what this thread copied
    struct alignas(16) Four {
      u32 w[4];
    } four = *(const Four*)p;
    bool bad = false;
    UNROLL for (int k = 0; k < 4; k++) bad |= infinite((u16)four.w[k]) | infinite((u16)(four.w[k] >> 16));
    if (!bad) continue;
    found = true;
    ROLLED for (int k = 0; k < 8; k++)
      if (infinite(p[k])) p[k] = 0;
  }
  return syncOr(found);
}

// infinities tells what the keys that were cleared contribute to a thread's 16 scores, 2 bits for each: +∞, -∞, or both, which is NaN.
DEV u32 infinities(const FlashArgs& a, i64 qh, i64 kh, int i0, int j0) {
  u32 all = 0;
  ROLLED for (int e = 0; e < 16; e++) {
    int i = i0 + e / 2 % 2 * 8, j = j0 + e / 4 * 8 + e % 2;
    if (!seen(a, i, j)) continue;
    const float* q = row<F32>(a.q, i) + qh;
    const u16* k = a.k + (j - a.first) * a.strideK + kh;
    ROLLED for (int c = 0; c < a.dim; c++) {
      if (!infinite(k[c])) continue;
      float v = q[c] * Type<BF16>::get(k[c]);
      all |= (v > 0 ? 1u : v < 0 ? 2u : 3u) << 2 * e;
    }
  }
  return all;
}
DEV float fixedBy(float v, u32 how) { return how == 0 ? v : floatOf(how == 1 ? 0x7f800000 : how == 2 ? 0xff800000 : 0x7fc00000); }

// spoil adds the values that were cleared to the channels of a query that a thread stores: their weights are above 0.
DEV void spoil(const FlashArgs& a, float* d, i64 kh, int i, int col) {
  ROLLED for (int c = col; c < a.dim; c += c % 2 ? 7 : 1) {
    const u16* v = a.v + (kh + c) * a.strideV - a.first;
    ROLLED for (int j = lowest(a, i); j <= a.pos + i; j++)
      if (infinite(v[j])) d[c] += Type<BF16>::get(v[j]);
  }
}

DEV float quadMax(float v) {
  v = Max::of(v, shflXor(v, 1));
  return Max::of(v, shflXor(v, 2));
}
DEV float quadSum(float v) {
  v += shflXor(v, 1);
  return v + shflXor(v, 2);
}

// A warp has 16 queries; lane l has rows l/4 and l/4 + 8, and of every 8 columns 2·(l%4) and the next.
template <int W> DEV void flash(const FlashArgs& a) {
  SHARED(u16, ks, 3 * tileK * W);
  SHARED(u16, vs, 3 * tileK * W);
  int lane = tid() % 32, h = by(), i0 = (gx() - 1 - bx()) * tileQ, mine = i0 + tid() / 32 * 16 + lane / 4, col = lane % 4 * 2;
  i64 kh = h / a.rep * a.ks;
  float q[W / 16][8], o[W / 8][4], top[2] = {unseen, unseen}, sum[2] = {0, 0};
  bool spoilt = false;  // whether a value is not finite
  UNROLL for (int c = 0; c < W / 16; c++)
    UNROLL for (int e = 0; e < 8; e++) {
      int i = mine + e / 2 % 2 * 8, ch = c * 16 + e / 4 * 8 + col + e % 2;
      q[c][e] = i < a.q.rows && ch < a.dim ? row<F32>(a.q, i)[h * a.qs + ch] : 0;
    }
  UNROLL for (int n = 0; n < W / 8; n++)
    UNROLL for (int e = 0; e < 4; e++) o[n][e] = 0;
  int last = i0 + tileQ < a.q.rows ? i0 + tileQ : a.q.rows, end = a.pos + last, j0 = lowest(a, i0) / tileK * tileK;
  fetchK<W>(a, ks, kh, j0);
  fetchV<W>(a, vs, kh, j0);
  for (; j0 < end; j0 += tileK) {
    copyWait<1>();
    bool special = cleared<W, true>(ks);
    float s[4][4];
    UNROLL for (int n = 0; n < 4; n++)
      UNROLL for (int e = 0; e < 4; e++) s[n][e] = 0;
    UNROLL for (int c = 0; c < W / 16; c++) {
      if (c * 16 >= a.dim) break;
      u32 x[3][4];
      UNROLL for (int e = 0; e < 4; e++) split(x, e, q[c][2 * e], q[c][2 * e + 1]);
      UNROLL for (int n = 0; n < 2; n++)
        multiplyParts(s[2 * n], s[2 * n + 1], x, ks + placeK<W>(n * 16 + lane % 8 + lane / 16 * 8, c * 2 + lane / 8 % 2), tileK * W);
    }
    u32 fixed = special ? infinities(a, h * a.qs, kh, mine, j0 + col) : 0;
    sync();
    fetchK<W>(a, ks, kh, j0 + tileK);
    bool edge = j0 < lowest(a, last - 1) || j0 + tileK - 1 > a.pos + i0 || last < i0 + tileQ;
    UNROLL for (int r = 0; r < 2; r++) {
      float high = top[r];
      u32 hidden = 0;
      UNROLL for (int n = 0; n < 4; n++)
        UNROLL for (int e = 2 * r; e < 2 * r + 2; e++) {
          float v = s[n][e];
          if (fixed) v = fixedBy(v, fixed >> (n * 4 + e) * 2 & 3);
          v *= a.scale;
          s[n][e] = v = a.cap == 0 ? v : a.cap * tanhf(v / a.cap);
          if (edge && !seen(a, mine + r * 8, j0 + n * 8 + col + e % 2)) hidden |= 1u << (n * 2 + e % 2);
          else if (v > high) high = v;
        }
      high = quadMax(high);
      float factor = expf(top[r] - high), part = 0;
      UNROLL for (int n = 0; n < 4; n++)
        UNROLL for (int e = 2 * r; e < 2 * r + 2; e++) {
          s[n][e] = hidden >> (n * 2 + e % 2) & 1 ? 0 : expf(s[n][e] - high);
          part += s[n][e];
        }
      sum[r] = sum[r] * factor + quadSum(part);
      top[r] = high;
      UNROLL for (int n = 0; n < W / 8; n++) o[n][2 * r] *= factor, o[n][2 * r + 1] *= factor;
    }
    u32 x[2][3][4];
    UNROLL for (int k = 0; k < 2; k++)
      UNROLL for (int e = 0; e < 4; e++) split(x[k], e, s[2 * k + e / 2][e % 2 * 2], s[2 * k + e / 2][e % 2 * 2 + 1]);
    copyWait<1>();
    spoilt |= cleared<W, false>(vs);
    UNROLL for (int n = 0; n < W / 16; n++) {
      if (n * 16 >= a.dim) break;
      float t[2][4];
      UNROLL for (int e = 0; e < 4; e++) t[0][e] = t[1][e] = 0;
      UNROLL for (int k = 0; k < 2; k++)
        multiplyParts(t[0], t[1], x[k], vs + placeV(n * 16 + lane % 8 + lane / 16 * 8, k * 2 + lane / 8 % 2), tileK * W);
      UNROLL for (int e = 0; e < 4; e++) o[2 * n][e] += t[0][e], o[2 * n + 1][e] += t[1][e];
    }
    sync();
    fetchV<W>(a, vs, kh, j0 + tileK);
  }
  copyWait<0>();
  UNROLL for (int r = 0; r < 2; r++) {
    int i = mine + r * 8;
    if (i >= a.q.rows) continue;
    float* d = row<F32>(a.out, i) + (i64)h * a.dim;
    UNROLL for (int n = 0; n < W / 8; n++)
      UNROLL for (int e = 0; e < 2; e++)
        if (n * 8 + col + e < a.dim) d[n * 8 + col + e] = o[n][2 * r + e] / sum[r];
    if (a.lse.p && lane % 4 == 0) row<F32>(a.lse, i)[h] = top[r] + logf(sum[r]);
    if (spoilt) spoil(a, d, kh, i, col);
  }
}

KERNEL(flash_64, FlashArgs, 128, 2) { flash<64>(a); }
KERNEL(flash_128, FlashArgs, 128, 2) { flash<128>(a); }
