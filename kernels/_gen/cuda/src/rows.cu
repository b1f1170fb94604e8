// Operations along rows and columns: norms, softmax, cross-entropy, their derivatives, and sums of columns. One block does a row;
// sums that decide something are carried in double, in an order that depends on the shape alone.
#include "device.h"

// NormArgs: dst of x with the weights w and b (absent: null). center: a layer norm; one: 1 + w.
struct NormArgs {
  Mat d, x;
  const char *w, *b;
  int type, center, one;
  float eps;
};

// moments gives mean (0 unless center) and 1/sqrt(variance + eps) of a row.
DEV void moments(const float* x, int n, int center, float eps, double& mean, double& r) {
  double s = 0;
  mean = 0;
  if (center) {
    for (int j = tid(); j < n; j += nthreads()) s += x[j];
    mean = blockReduce<Sum>(s, 0.0) / n;
    s = 0;
  }
  for (int j = tid(); j < n; j += nthreads()) {
    double v = x[j] - mean;
    s += v * v;
  }
  r = 1 / sqrt(blockReduce<Sum>(s, 0.0) / n + (double)eps);
}

KERNEL(norm_rows, NormArgs, 256, 4) {
  for (int i = bx(); i < a.x.rows; i += gx()) {
    const float* x = row<F32>(a.x, i);
    float* d = row<F32>(a.d, i);
    double mean, r;
    moments(x, a.x.cols, a.center, a.eps, mean, r);
    float scale = (float)r;
    for (int j = tid(); j < a.x.cols; j += nthreads()) {
      float w = load(a.w, a.type, j), v = a.center ? (float)(x[j] - mean) : x[j];
      v = v * scale * (a.one ? 1 + w : w);
      d[j] = a.b ? v + load(a.b, a.type, j) : v;
    }
    sync();  // dst may be x
  }
}

// NormBackArgs: gradients of a norm. factors receives 1/sqrt(variance + eps) and the mean of every row, for norm_back_weights.
struct NormBackArgs {
  Mat dx, dy, x;
  const char* w;
  double* factors;
  int type, center, one;
  float eps;
};

KERNEL(norm_back, NormBackArgs, 256, 4) {
  for (int i = bx(); i < a.x.rows; i += gx()) {
    const float *x = row<F32>(a.x, i), *dy = row<F32>(a.dy, i);
    float* dx = row<F32>(a.dx, i);
    int n = a.x.cols;
    double mean, r, g1 = 0, g2 = 0;
    moments(x, n, a.center, a.eps, mean, r);
    for (int j = tid(); j < n; j += nthreads()) {
      double g = dy[j] * ((double)load(a.w, a.type, j) + (a.one ? 1 : 0));
      g1 += g;
      g2 += g * (x[j] - mean);
    }
    g1 = a.center ? blockReduce<Sum>(g1, 0.0) / n : 0;
    g2 = blockReduce<Sum>(g2, 0.0) / n * r * r;
    for (int j = tid(); j < n; j += nthreads()) {
      double g = dy[j] * ((double)load(a.w, a.type, j) + (a.one ? 1 : 0));
      dx[j] = (float)(dx[j] + r * (g - g1 - (x[j] - mean) * g2));
    }
    if (tid() == 0) a.factors[2 * i] = r, a.factors[2 * i + 1] = mean;
  }
}

// ColumnArgs: sums over the rows of x, in slices of rows, into part [slices, 2·cols] (kind 0: x, 1: x², 2: y·n and y with
// n = (x - mean)·r from factors).
struct ColumnArgs {
  Mat x, y;
  const double* factors;
  double* part;
  int kind, slice;
};

KERNEL(columns, ColumnArgs, 256, 4) {
  // A block does 32 columns; its 8 warps take every eighth row of a slice.
  SHARED(double, sums, 512);
  int lane = tid() % 32, warp = tid() / 32, n = a.x.cols;
  i64 j = (i64)bx() * 32 + lane;
  int lo = by() * a.slice, hi = lo + a.slice < a.x.rows ? lo + a.slice : a.x.rows;
  double s = 0, t = 0;
  if (j < n)
    for (int i = lo + warp; i < hi; i += 8) {
      double v = row<F32>(a.x, i)[j];
      if (a.kind == 0) s += v;
      if (a.kind == 1) s += v * v;
      if (a.kind == 2) {
        double g = row<F32>(a.y, i)[j];
        s += g * (v - a.factors[2 * i + 1]) * a.factors[2 * i];
        t += g;
      }
    }
  sums[tid()] = s, sums[256 + tid()] = t;
  sync();
  if (warp == 0 && j < n) {
    for (int k = 1; k < 8; k++) s += sums[32 * k + lane], t += sums[256 + 32 * k + lane];
    double* p = a.part + (i64)by() * 2 * n;
    p[j] = s;
    p[n + j] = t;
  }
}

// FoldArgs: acc[j] += Σ part[s, from + j] over the slices.
struct FoldArgs {
  const double* part;
  char* acc;
  i64 width, from;
  int cols, slices, f64;
};

KERNEL(fold, FoldArgs, 256, 4) {
  for (i64 j = (i64)bx() * nthreads() + tid(); j < a.cols; j += (i64)gx() * nthreads()) {
    double s = 0;
    for (int k = 0; k < a.slices; k++) s += a.part[k * a.width + a.from + j];
    if (a.f64) ((double*)a.acc)[j] += s;
    else ((float*)a.acc)[j] = (float)(((float*)a.acc)[j] + s);
  }
}

// SoftmaxArgs: rows of x. labels (or null): the gradient and loss of cross-entropy. loss may be null.
struct SoftmaxArgs {
  Mat d, x;
  const int* labels;
  double* loss;
  float scale;
};

// partition gives the highest value of a row (at least the lowest float) and Σ exp(x - highest), reading the row once.
DEV void partition(const float* x, int n, float& top, double& sum) {
  float m = -3.402823466e38f;
  double s = 0;
  for (int j = tid(); j < n; j += nthreads()) {
    float v = x[j];
    if (v > m) {
      s = s * expf(m - v) + 1;
      m = v;
    } else {
      s += expf(v - m);
    }
  }
  top = blockReduce<Max>(m, m);
  sum = blockReduce<Sum>(s * expf(m - top), 0.0);
}

KERNEL(softmax, SoftmaxArgs, 256, 4) {
  for (int i = bx(); i < a.x.rows; i += gx()) {
    const float* x = row<F32>(a.x, i);
    float *d = row<F32>(a.d, i), top;
    double sum;
    partition(x, a.x.cols, top, sum);
    double inverse = 1 / sum;
    for (int j = tid(); j < a.x.cols; j += nthreads()) d[j] = (float)(expf(x[j] - top) * inverse);
  }
}

KERNEL(cross_entropy, SoftmaxArgs, 256, 4) {
  for (int i = bx(); i < a.x.rows; i += gx()) {
    int label = a.labels[i];
    const float* x = row<F32>(a.x, i);
    float top = 0;
    double sum = 1;
    if (label >= 0) {
      partition(x, a.x.cols, top, sum);
      if (tid() == 0 && a.loss) a.loss[i] = log(sum) + ((double)top - x[label]);
    } else if (tid() == 0 && a.loss) {
      a.loss[i] = 0;
    }
    if (!a.d.p) continue;
    sync();  // d may be x
    float* d = row<F32>(a.d, i);
    double inverse = 1 / sum;
    for (int j = tid(); j < a.x.cols; j += nthreads())
      d[j] = label < 0 ? 0 : (float)(a.scale * (expf(x[j] - top) * inverse - (j == label)));
  }
}

// SoftmaxBackArgs: dx = y·(dy - Σ dy·y).
struct SoftmaxBackArgs {
  Mat dx, dy, y;
};

KERNEL(softmax_back, SoftmaxBackArgs, 256, 4) {
  for (int i = bx(); i < a.y.rows; i += gx()) {
    const float *y = row<F32>(a.y, i), *dy = row<F32>(a.dy, i);
    float* dx = row<F32>(a.dx, i);
    double s = 0;
    for (int j = tid(); j < a.y.cols; j += nthreads()) s += (double)dy[j] * y[j];
    s = blockReduce<Sum>(s, 0.0);
    for (int j = tid(); j < a.y.cols; j += nthreads()) dx[j] = (float)(y[j] * (dy[j] - s));
  }
}
