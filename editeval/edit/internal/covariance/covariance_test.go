package covariance

import (
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/editeval/edit/internal/site"
	"github.com/modelcompress/compress/internal/linalg"
)

// definite is the second moment of n random vectors and so symmetric; positive definite where n is at least its size.
func definite(size, n int) linalg.Matrix {
	random := rand.New(rand.NewPCG(uint64(size), uint64(n)))
	m := linalg.New(size, size)
	for range n {
		v := make([]float64, size)
		for i := range v {
			v[i] = random.NormFloat64()
		}
		for i := range v {
			for j := range v {
				m.Set(i, j, m.At(i, j)+v[i]*v[j]/float64(n))
			}
		}
	}
	return m
}

// TestMomentsAreKept: what is read is what was written, bit for bit; any bit that has changed since is found.
func TestMomentsAreKept(t *testing.T) {
	m := definite(5, 12)
	m.Set(2, 1, math.Copysign(0, -1))
	m.Set(1, 2, math.Copysign(0, -1))
	path := filepath.Join(t.TempDir(), "m")
	if err := saveMoments(path, m); err != nil {
		t.Fatal(err)
	}

	got, err := loadMoments(path, 5)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		for j := range 5 {
			if math.Float64bits(got.At(i, j)) != math.Float64bits(m.At(i, j)) {
				t.Errorf("element %d, %d: %g, want %g", i, j, got.At(i, j), m.At(i, j))
			}
		}
	}

	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	for at := 0; at < len(good); at += 7 {
		bad := append([]byte(nil), good...)
		bad[at] ^= 4
		if err := os.WriteFile(path, bad, 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := loadMoments(path, 5); !errors.Is(err, site.ErrStatistics) {
			t.Errorf("byte %d changed: %v", at, err)
		}
	}

	longer := append(good[:len(good):len(good)], 0)
	for name, text := range map[string][]byte{"cut": good[:len(good)-1], "longer": longer} {
		if err := os.WriteFile(path, text, 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := loadMoments(path, 5); !errors.Is(err, site.ErrStatistics) {
			t.Errorf("%s: %v", name, err)
		}
	}

	if err := os.WriteFile(path, good, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := loadMoments(path, 6); !errors.Is(err, site.ErrStatistics) {
		t.Errorf("of another size: %v", err)
	}
	if _, err := loadMoments(path+"x", 5); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
}

// TestKeyTellsApart: model, data and block all count, and where one ends and the next begins.
func TestKeyTellsApart(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range []Statistics{{Model: "ab", Data: "c"}, {Model: "a", Data: "bc"}, {Data: "abc"}, {Model: "abc"}} {
		for _, block := range []int{0, 1, 256} {
			key := s.key(block)
			if seen[key] {
				t.Errorf("%+v, block %d: the key of another", s, block)
			}
			if seen[key] = true; s.key(block) != key {
				t.Error("a key is not always the same")
			}
		}
	}
}

// TestSolve: C times the solution is the key again. 1e-12 is far above the roundings of 6 × 6 sums in float64 times the
// condition of these matrices, some hundreds.
func TestSolve(t *testing.T) {
	c := &Covariance{Stats: map[int]linalg.Matrix{3: definite(6, 60)}}
	keys := definite(6, 9)
	x, err := c.Solve(3, keys)
	if err != nil || len(c.Damped) != 0 {
		t.Fatalf("damped %v, %v", c.Damped, err)
	}

	m := c.Stats[3]
	for r := range keys.Rows {
		for i := range 6 {
			if got := site.Dot(m.Row(i), x.Row(r)); math.Abs(got-keys.At(r, i)) > 1e-12 {
				t.Errorf("key %d, value %d: %g, want %g", r, i, got, keys.At(r, i))
			}
		}
	}
}

// TestTooFewTokens: three tokens cannot fill six dimensions; what was added to the diagonal is said, once.
func TestTooFewTokens(t *testing.T) {
	c := &Covariance{Stats: map[int]linalg.Matrix{0: definite(6, 3)}}
	for range 2 {
		x, err := c.Solve(0, definite(6, 9))
		if err != nil || x.CheckFinite() != nil {
			t.Fatal(err)
		}
	}
	if len(c.Damped) != 1 || c.Damped[0].Layer != 0 || !(c.Damped[0].Share > 0) {
		t.Errorf("%+v", c.Damped)
	}
}

// TestMomentsThatAreNotThere: each way of having none is an error of the same kind.
func TestMomentsThatAreNotThere(t *testing.T) {
	bad := definite(2, 4)
	bad.Set(0, 0, math.NaN())
	some := &Covariance{Stats: map[int]linalg.Matrix{0: definite(2, 4), 1: bad}}
	for name, f := range map[string]func() (linalg.Matrix, error){
		"none":          func() (linalg.Matrix, error) { return (&Covariance{}).Moments(0, 2) },
		"another layer": func() (linalg.Matrix, error) { return some.Moments(2, 2) },
		"another width": func() (linalg.Matrix, error) { return some.Moments(0, 3) },
	} {
		if _, err := f(); !errors.Is(err, site.ErrStatistics) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := some.Moments(1, 2); err == nil {
		t.Error("a NaN is taken")
	}
	if _, err := some.Moments(0, 2); err != nil {
		t.Error(err)
	}
}
