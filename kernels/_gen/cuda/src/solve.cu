// Cholesky factors and triangular systems in double, in blocks of 32 columns, every block in three launches.
#include "device.h"

const int nb = 32;

// SolveArgs: a is n×n, row major, of which the lower triangle counts; b is n×m. at is the first index of the block at hand. failed
// receives the lowest index whose pivot is not positive.
struct SolveArgs {
  double *a, *b;
  u64* failed;
  i64 strideA, strideB;
  int n, m, at, back;
};

DEV int least(int x, int y) { return x < y ? x : y; }

// cholesky_block, one block of threads, factors the block on the diagonal.
KERNEL(cholesky_block, SolveArgs, 256, 1) {
  SHARED(double, s, nb * (nb + 1));
  int size = least(nb, a.n - a.at);
  double* d = a.a + a.at * a.strideA + a.at;
  for (int e = tid(); e < size * size; e += 256) s[e / size * (nb + 1) + e % size] = d[e / size * a.strideA + e % size];
  sync();
  for (int k = 0; k < size; k++) {
    double pivot = s[k * (nb + 1) + k];
    if (!(pivot > 0) && tid() == 0) minAtomic(a.failed, (u64)(a.at + k));
    double root = sqrt(pivot);
    sync();
    if (tid() >= k && tid() < size) s[tid() * (nb + 1) + k] = tid() == k ? root : s[tid() * (nb + 1) + k] / root;
    sync();
    int rest = size - k - 1;
    for (int e = tid(); e < rest * rest; e += 256) {
      int i = k + 1 + e / rest, j = k + 1 + e % rest;
      if (j <= i) s[i * (nb + 1) + j] -= s[i * (nb + 1) + k] * s[j * (nb + 1) + k];
    }
    sync();
  }
  for (int e = tid(); e < size * size; e += 256)
    if (e % size <= e / size) d[e / size * a.strideA + e % size] = s[e / size * (nb + 1) + e % size];
}

// triangle copies the factor's block on the diagonal to shared memory.
DEV void triangle(double* s, const SolveArgs& a, int size) {
  const double* d = a.a + a.at * a.strideA + a.at;
  for (int e = tid(); e < size * size; e += nthreads()) s[e / size * (nb + 1) + e % size] = d[e / size * a.strideA + e % size];
  sync();
}

// cholesky_panel: the rows below the block, one thread each.
KERNEL(cholesky_panel, SolveArgs, 64, 4) {
  SHARED(double, s, nb * (nb + 1));
  triangle(s, a, nb);
  i64 i = a.at + nb + (i64)bx() * 64 + tid();
  if (i >= a.n) return;
  double x[nb], *p = a.a + i * a.strideA + a.at;
  UNROLL for (int j = 0; j < nb; j++) x[j] = p[j];
  UNROLL for (int j = 0; j < nb; j++) {
    double v = x[j];
    UNROLL for (int k = 0; k < nb; k++)
      if (k < j) v -= x[k] * s[j * (nb + 1) + k];
    x[j] = v / s[j * (nb + 1) + j];
    p[j] = x[j];
  }
}

// subtract takes a 32×32 tile of u·v off c: u has rows of its own, v is [32, …] or, if turned, [… , 32]. The threads are 256.
DEV void subtract(double* c, i64 strideC, int rows, int cols, const double* u, i64 strideU, bool turnedU, const double* v, i64 strideV, bool turnedV, int inner) {
  SHARED(double, us, nb * (nb + 1));
  SHARED(double, vs, nb * (nb + 1));
  int tx = tid() % 32, ty = tid() / 32;
  for (int r = ty; r < nb; r += 8) {
    us[r * (nb + 1) + tx] = r < rows && tx < inner ? (turnedU ? u[tx * strideU + r] : u[r * strideU + tx]) : 0;
    vs[r * (nb + 1) + tx] = r < inner && tx < cols ? (turnedV ? v[tx * strideV + r] : v[r * strideV + tx]) : 0;
  }
  sync();
  for (int r = ty; r < rows; r += 8) {
    double sum = 0;
    UNROLL4 for (int k = 0; k < nb; k++) sum += us[r * (nb + 1) + k] * vs[k * (nb + 1) + tx];
    if (tx < cols) c[r * strideC + tx] -= sum;
  }
}

// cholesky_rest: what is right of and below the block, tile by tile of the lower triangle.
KERNEL(cholesky_rest, SolveArgs, 256, 2) {
  if (bx() > by()) return;
  i64 i = a.at + nb + (i64)by() * nb, j = a.at + nb + (i64)bx() * nb;
  subtract(a.a + i * a.strideA + j, a.strideA, least(nb, a.n - i), least(nb, a.n - j), a.a + i * a.strideA + a.at, a.strideA, false,
           a.a + j * a.strideA + a.at, a.strideA, true, nb);
}

// solve_block: the block's rows of b, one thread a column: forward L·y = b, back Lᵀ·x = y.
KERNEL(solve_block, SolveArgs, 64, 4) {
  SHARED(double, s, nb * (nb + 1));
  int size = least(nb, a.n - a.at);
  triangle(s, a, size);
  i64 j = (i64)bx() * 64 + tid();
  if (j >= a.m) return;
  double* b = a.b + a.at * a.strideB + j;
  for (int q = 0; q < size; q++) {
    int r = a.back ? size - 1 - q : q;
    double v = b[r * a.strideB];
    for (int k = 0; k < q; k++) {
      int c = a.back ? size - 1 - k : k;
      v -= (a.back ? s[c * (nb + 1) + r] : s[r * (nb + 1) + c]) * b[c * a.strideB];
    }
    b[r * a.strideB] = v / s[r * (nb + 1) + r];
  }
}

// solve_rest: the rows after the block (before it, going back), tile by tile.
KERNEL(solve_rest, SolveArgs, 256, 2) {
  i64 i = a.back ? (i64)by() * nb : a.at + nb + (i64)by() * nb, j = (i64)bx() * nb;
  const double* u = a.back ? a.a + a.at * a.strideA + i : a.a + i * a.strideA + a.at;
  subtract(a.b + i * a.strideB + j, a.strideB, a.back ? nb : least(nb, a.n - i), least(nb, a.m - j), u, a.strideA, a.back != 0,
           a.b + a.at * a.strideB + j, a.strideB, false, least(nb, a.n - a.at));
}
