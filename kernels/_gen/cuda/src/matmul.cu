// Matrix products. pack writes a factor as one to three bfloat16 planes whose sum is the factor (float32 has 24 significant bits,
// three planes have 8 each), rows along the summed index; gemm multiplies planes on tensor cores and adds the products of the
// pairs of planes that matter in float32. So one kernel serves every combination of element types, without rounding a factor.
#include "device.h"

// PackArgs: planes [planes][rows][width] of x, transposed if so. width is a multiple of 8; what x does not fill is 0.
struct PackArgs {
  Mat x;
  u16* d;
  i64 plane, width;
  int type, planes, transposed, rounded;
};

// split gives piece k of v: the first 8 significant bits, the next 8, the last 8. A value that is not finite is its first piece.
DEV u16 piece(float v, int k) {
  for (;; k--) {
    u32 u = bitsOf(v), head = u & 0xffff0000;
    if ((u & 0x7f800000) == 0x7f800000) return k > 0 ? 0 : (u & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (u16)(u >> 16);
    if (k == 0) return (u16)(u >> 16);
    v -= floatOf(head);
  }
}

DEV void putPieces(const PackArgs& a, i64 at, float v) {
  if (a.rounded) {
    a.d[at] = Type<BF16>::put(v);
    return;
  }
  for (int k = 0; k < a.planes; k++) a.d[k * a.plane + at] = piece(v, k);
}

// pack does rows (of x) by blockIdx.y, columns by blockIdx.x.
KERNEL(pack, PackArgs, 256, 4) {
  for (int i = by(); i < a.x.rows; i += gy())
    for (i64 j = (i64)bx() * nthreads() + tid(); j < a.width; j += (i64)gx() * nthreads())
      putPieces(a, i * a.width + j, j < a.x.cols ? load(a.x.p, a.type, i * a.x.stride + j) : 0);
}

// pack_transposed does a tile of 32×32 at a time, through shared memory.
KERNEL(pack_transposed, PackArgs, 256, 4) {
  SHARED(float, tile, 32 * 33);
  int lane = tid() % 32, warp = tid() / 32;
  i64 j0 = (i64)bx() * 32;  // columns of x: rows of the planes
  for (i64 i0 = (i64)by() * 32; i0 < a.width; i0 += (i64)gy() * 32) {
    for (int k = warp; k < 32; k += 8)
      tile[k * 33 + lane] = i0 + k < a.x.rows && j0 + lane < a.x.cols ? load(a.x.p, a.type, (i0 + k) * a.x.stride + j0 + lane) : 0;
    sync();
    for (int k = warp; k < 32; k += 8)
      if (j0 + k < a.x.cols && i0 + lane < a.width) putPieces(a, (j0 + k) * a.width + i0 + lane, tile[lane * 33 + k]);
    sync();
  }
}

// GemmArgs: d[m,n] = Σ over pairs of planes, Σ_k a[m,k]·b[n,k] (+ bias[n]) (+ d[m,n]). pairs has 4 bits for every pair: the plane of
// a and, above, that of b. Rows of a and b start at 16 bytes; k is a multiple of 8.
struct GemmArgs {
  Mat d;
  const u16 *a, *b;
  const char* bias;
  u64 pairs;
  i64 planeA, planeB, strideA, strideB;
  int k, count, biasType, add;
};

const int tileK = 32, stages = 3;

// place is the index of 16 bytes in a tile of 32 columns: chunks are exchanged so that 8 rows of a column meet all banks.
DEV int place16(int r, int chunk) { return (r * 4 + (chunk ^ (r >> 1 & 3))) * 8; }

// fetch starts the copy of 128 rows × 32 columns.
DEV void fetch(u16* shared, const u16* p, i64 stride, i64 first, int rows, int k0, int k) {
  UNROLL for (int q = 0; q < 2; q++) {
    int c = tid() + q * 256, r = c / 4, chunk = c % 4;
    bool take = first + r < rows && k0 + chunk * 8 < k;
    copy16(shared + place16(r, chunk), take ? p + (first + r) * stride + k0 + chunk * 8 : p, take);
  }
}

// gemm: a block does 128×128 elements, a warp 64×32, with copies two tiles ahead. Blocks that run at one time share rows of both factors: they
// follow each other down groups of 8, then to the right, so that a wide product reads each row of b once for 1,024 rows of a.
KERNEL(gemm, GemmArgs, 256, 2) {
  SHARED(u16, tiles, stages * 256 * tileK);
  int lane = tid() % 32, warp = tid() / 32;
  i64 id = (i64)by() * gx() + bx(), span = (i64)gx() * 8, left = gy() - id / span * 8, down = left < 8 ? left : 8;
  i64 m0 = (id / span * 8 + id % span % down) * 128, n0 = id % span / down * 128;
  int wm = warp / 4 * 64, wn = warp % 4 * 32;
  float c[4][4][4];
  UNROLL for (int i = 0; i < 4; i++)
    UNROLL for (int j = 0; j < 4; j++)
      UNROLL for (int q = 0; q < 4; q++) c[i][j][q] = 0;
  int perPair = (a.k + tileK - 1) / tileK, total = perPair * a.count;
  int pair = 0, step = 0;  // of the next copy
  auto next = [&](int t) {
    if (t < total) {
      int which = (int)(a.pairs >> 4 * pair);
      u16* s = tiles + t % stages * 256 * tileK;
      fetch(s, a.a + (which & 3) * a.planeA, a.strideA, m0, a.d.rows, step * tileK, a.k);
      fetch(s + 128 * tileK, a.b + (which >> 2 & 3) * a.planeB, a.strideB, n0, a.d.cols, step * tileK, a.k);
      if (++step == perPair) step = 0, pair++;
    }
    copyCommit();
  };
  for (int t = 0; t < stages - 1; t++) next(t);
  for (int t = 0; t < total; t++) {
    copyWait<stages - 2>();
    sync();
    next(t + stages - 1);
    const u16 *as = tiles + t % stages * 256 * tileK, *bs = as + 128 * tileK;
    UNROLL for (int h = 0; h < 2; h++) {
      u32 af[4][4], bf[2][4];
      UNROLL for (int i = 0; i < 4; i++)
        loadMatrices(af[i], as + place16(wm + i * 16 + lane % 16, h * 2 + lane / 16));
      UNROLL for (int j = 0; j < 2; j++)
        loadMatrices(bf[j], bs + place16(wn + j * 16 + lane % 8 + lane / 16 * 8, h * 2 + lane / 8 % 2));
      UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int j = 0; j < 4; j++) multiply(c[i][j], af[i], bf[j / 2][j % 2 * 2], bf[j / 2][j % 2 * 2 + 1]);
    }
  }
  UNROLL for (int i = 0; i < 4; i++)
    UNROLL for (int j = 0; j < 4; j++)
      UNROLL for (int q = 0; q < 4; q++) {
        i64 r = m0 + wm + i * 16 + lane / 4 + q / 2 * 8, s = n0 + wn + j * 8 + lane % 4 * 2 + q % 2;
        if (r >= a.d.rows || s >= a.d.cols) continue;
        float* d = row<F32>(a.d, r) + s;
        float v = c[i][j][q];
        if (a.bias) v += load(a.bias, a.biasType, s);
        *d = a.add ? *d + v : v;
      }
}

// FewArgs: products with few rows in x, which read the weight once.
struct FewArgs {
  Mat d, x, w;
  const char* bias;
  int biasType, add, k, vec;
};

const int fewRows = 4;

DEV void storeFew(const FewArgs& a, int i, i64 n, float v) {
  if (a.bias) v += load(a.bias, a.biasType, n);
  float* d = row<F32>(a.d, i) + n;
  *d = a.add ? *d + v : v;
}

// eightOf reads 8 elements that start at 16 bytes.
template <int D> DEV void eightOf(const typename Type<D>::T* p, float (&v)[8]) {
  struct alignas(16) Eight {
    typename Type<D>::T e[8];
  } x = *(const Eight*)p;
  UNROLL for (int k = 0; k < 8; k++) v[k] = Type<D>::get(x.e[k]);
}

// few_nt: a warp does one row of w [n,k] for up to four rows of x.
template <int D> DEV void fewNT(const FewArgs& a) {
  int lane = tid() % 32;
  i64 n = (i64)bx() * (nthreads() / 32) + tid() / 32;
  if (n >= a.d.cols) return;
  const typename Type<D>::T* w = row<D>(a.w, n);
  float sum[fewRows] = {0, 0, 0, 0};
  if (a.vec) {
    for (int k = lane * 8; k < a.k; k += 256) {
      float wv[8], xv[8];
      eightOf<D>(w + k, wv);
      UNROLL for (int i = 0; i < fewRows; i++)
        if (i < a.x.rows) {
          eightOf<F32>(row<F32>(a.x, i) + k, xv);
          UNROLL for (int q = 0; q < 8; q++) sum[i] += wv[q] * xv[q];
        }
    }
  } else {
    for (int k = lane; k < a.k; k += 32) {
      float wv = Type<D>::get(w[k]);
      UNROLL for (int i = 0; i < fewRows; i++)
        if (i < a.x.rows) sum[i] += wv * row<F32>(a.x, i)[k];
    }
  }
  UNROLL for (int i = 0; i < fewRows; i++) {
    sum[i] = warpReduce<Sum>(sum[i]);
    if (i < a.x.rows && lane == 0) storeFew(a, i, n, sum[i]);
  }
}

// few_nn: a block does 32 columns of w [k,n], its 8 warps take every eighth row.
template <int D> DEV void fewNN(const FewArgs& a) {
  SHARED(float, part, 8 * 32 * fewRows);
  int lane = tid() % 32, warp = tid() / 32;
  i64 n = (i64)bx() * 32 + lane;
  float sum[fewRows] = {0, 0, 0, 0};
  if (n < a.d.cols)
    for (int k = warp; k < a.k; k += 8) {
      float wv = at<D>(row<D>(a.w, k), n);
      UNROLL for (int i = 0; i < fewRows; i++)
        if (i < a.x.rows) sum[i] += wv * row<F32>(a.x, i)[k];
    }
  UNROLL for (int i = 0; i < fewRows; i++) part[(i * 8 + warp) * 32 + lane] = sum[i];
  sync();
  if (warp < a.x.rows && n < a.d.cols) {
    float s = 0;
    for (int k = 0; k < 8; k++) s += part[(warp * 8 + k) * 32 + lane];
    storeFew(a, warp, n, s);
  }
}

#define FEW(name, D)                                       \
  KERNEL(few_nt_##name, FewArgs, 256, 4) { fewNT<D>(a); }  \
  KERNEL(few_nn_##name, FewArgs, 256, 4) { fewNN<D>(a); }
FEW(f32, F32)
FEW(bf16, BF16)
FEW(f16, F16)

// no_product: without a sum (k = 0) a product is its bias, or what was there.
KERNEL(no_product, FewArgs, 256, 4) {
  for (int i = by(); i < a.d.rows; i += gy())
    for (i64 j = (i64)bx() * nthreads() + tid(); j < a.d.cols; j += (i64)gx() * nthreads()) storeFew(a, i, j, 0);
}
