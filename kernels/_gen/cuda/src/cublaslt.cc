// A stand-in for cuBLASLt: products of bfloat16 matrices, column by column, in the order of the driver's stand-in.
#include <cstdint>
#include <cstring>

extern "C" {
void fakeQueue(void* stream, void (*work)(void*), void* data);

static int products, described, choices, refused, most;

// fakeRefuses makes the library have no algorithm for any shape.
void fakeRefuses() { refused = 1; }

// Preference is what algorithms must keep to, and Choice what the library answers.
struct Preference {
  uint64_t workspace;
  uint32_t alignment[4];
};
struct Choice {
  uint64_t algo[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
int cublasLtMatmulPreferenceCreate(void** p) {
  *p = new Preference{0, {256, 256, 256, 256}};
  described++;
  return 0;
}
int cublasLtMatmulPreferenceDestroy(void* p) {
  delete (Preference*)p;
  described--;
  return 0;
}
int cublasLtMatmulPreferenceSetAttribute(void* p, int attribute, const void* v, size_t n) {
  Preference* q = (Preference*)p;
  if (attribute == 1 && n == 8) memcpy(&q->workspace, v, 8);
  else if (attribute >= 5 && attribute <= 8 && n == 4) memcpy(&q->alignment[attribute - 5], v, 4);
  else return 7;
  return 0;
}
// The algorithm needs 4 MiB if it may have them, and says so in its own words, which a product checks.
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void* preference, int asked, Choice* c, int* found) {
  const Preference* p = (const Preference*)preference;
  if (asked != 1) return 7;
  if (refused) return 15;
  for (uint32_t a : p->alignment)
    if (a > 16) return 7;
  memset(c, 0, sizeof *c);
  c->workspace = p->workspace >= 4 << 20 ? 4 << 20 : 0;
  c->algo[0] = 0xa190, c->algo[7] = c->workspace;
  *found = 1, choices++;
  return 0;
}

struct Layout {
  int type;
  uint64_t rows, cols;
  int64_t lead;
};
struct Product {
  float alpha, beta;
  const uint16_t *a, *b;
  const float* c;
  float* d;
  Layout la, lb, ld;
  char* workspace;
  size_t size;
};

int cublasLtCreate(void** h) {
  *h = new int;
  described++;
  return 0;
}
int cublasLtDestroy(void* h) {
  delete (int*)h;
  described--;
  return 0;
}
int cublasLtMatmulDescCreate(void** d, int compute, int scale) {
  if (compute != 68 || scale != 0) return 7;
  *d = new int(0);
  described++;
  return 0;
}
int cublasLtMatmulDescDestroy(void* d) {
  delete (int*)d;
  described--;
  return 0;
}
int cublasLtMatmulDescSetAttribute(void* d, int attribute, const void* p, size_t n) {
  if (attribute != 3 || n != 4) return 7;
  memcpy(d, p, 4);
  return 0;
}
int cublasLtMatrixLayoutCreate(void** l, int type, uint64_t rows, uint64_t cols, int64_t lead) {
  if (lead < (int64_t)rows) return 7;
  *l = new Layout{type, rows, cols, lead};
  described++;
  return 0;
}
int cublasLtMatrixLayoutDestroy(void* l) {
  delete (Layout*)l;
  described--;
  return 0;
}

static float wide(uint16_t h) {
  uint32_t u = (uint32_t)h << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

static void multiply(void* data) {
  Product* p = (Product*)data;
  if (p->size > 0) memset(p->workspace, 0xAB, p->size);
  for (uint64_t j = 0; j < p->ld.cols; j++)
    for (uint64_t i = 0; i < p->ld.rows; i++) {
      float s = 0;
      for (uint64_t k = 0; k < p->la.rows; k++) s += wide(p->a[i * p->la.lead + k]) * wide(p->b[j * p->lb.lead + k]);
      float* d = p->d + j * p->ld.lead + i;
      *d = p->alpha * s + (p->beta == 0 ? 0 : p->beta * p->c[j * p->ld.lead + i]);
    }
  delete p;
}

// The first factor is transposed: d [n, m] = aᵀ·b with a [k, n] and b [k, m].
int cublasLtMatmul(void*, void* desc, const float* alpha, const void* a, Layout* la, const void* b, Layout* lb, const float* beta, const void* c, Layout*, void* d, Layout* ld, const uint64_t* algo, void* workspace, size_t size, void* stream) {
  if (algo == nullptr || algo[0] != 0xa190 || algo[7] != size || (size > 0 && workspace == nullptr)) return 7;
  if ((int)size > most) most = (int)size;
  if (*(int*)desc != 1 || la->type != 14 || lb->type != 14 || ld->type != 0 || la->rows != lb->rows || la->cols != ld->rows || lb->cols != ld->cols) return 7;
  products++;
  fakeQueue(stream, multiply, new Product{*alpha, *beta, (const uint16_t*)a, (const uint16_t*)b, (const float*)c, (float*)d, *la, *lb, *ld, (char*)workspace, size});
  return 0;
}

// fakeProducts counts products, objects that were not destroyed, and choices of algorithms; and gives the most memory that one used.
void fakeProducts(int* n) { n[0] = products, n[1] = described, n[2] = choices, n[3] = most; }
}
