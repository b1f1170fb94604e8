package grads

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/hostmat"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
)

// f32 is values as a file has them.
func f32(values ...float32) []byte {
	b := kernels.NewHost(kernels.F32, len(values))
	copy(b.F32(), values)
	return b.Bytes()
}

// TestRoundedOnTheWay: gradients that go to a file and come back are those that stay in memory, cut off at the largest
// F16; every number of threads writes the same.
func TestRoundedOnTheWay(t *testing.T) {
	raw := f32(0, 1e-9, 0.1, 1, 1000.25, maxF16, maxF16+40, 1e30)
	l := lm.Linear{Name: "a.weight", In: 4, Out: 2}
	inMemory, err := Rounded(l, raw, kernels.F32, false)
	if err != nil || inMemory.Rows != 2 || inMemory.Cols != 4 {
		t.Fatalf("%+v %v", inMemory, err)
	}

	for _, threads := range []int{1, 3} {
		filed, err := rounded(raw, threads)
		if err != nil || !bytes.Equal(filed, inMemory.Buf.Bytes()) {
			t.Errorf("%d threads: %v, want %v, %v", threads, filed, inMemory.Buf.Bytes(), err)
		}

		back, err := Rounded(l, filed, kernels.F16, false)
		if err != nil || !bytes.Equal(back.Buf.Bytes(), filed) {
			t.Errorf("read again: %v, want %v, %v", back.Buf.Bytes(), filed, err)
		}
	}

	if last := kernels.FromF16(inMemory.Buf.U16()[7]); last != maxF16 {
		t.Errorf("1e30 became %g", last)
	}

	exact, err := Rounded(l, raw, kernels.F32, true)
	if err != nil || !bytes.Equal(exact.Buf.Bytes(), raw) {
		t.Errorf("exact: %v %v", exact.Buf.Bytes(), err)
	}
}

// TestRoundedRefuses: a root of squares is no negative number; the error says which element it is. What is not
// finite is refused after the way through a file too.
func TestRoundedRefuses(t *testing.T) {
	l := lm.Linear{Name: "a.weight", In: 3, Out: 2}
	for _, bad := range []float32{-1, float32(math.NaN()), float32(math.Inf(1))} {
		raw := f32(1, 1, 1, 1, 1, bad)
		_, err := Rounded(l, raw, kernels.F32, true)
		if !errors.Is(err, hostmat.ErrNonFinite) || !strings.Contains(err.Error(), "[1, 2]") {
			t.Errorf("%g: %v", bad, err)
		}

		filed, err := rounded(raw, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Rounded(l, filed, kernels.F16, false); !errors.Is(err, hostmat.ErrNonFinite) {
			t.Errorf("%g from a file: %v", bad, err)
		}
	}
}

// TestRoundedNothing: a matrix without any gradient is none.
func TestRoundedNothing(t *testing.T) {
	out, err := Rounded(lm.Linear{In: 2, Out: 1}, f32(0, float32(math.Copysign(0, -1))), kernels.F32, false)
	if err != nil || !out.IsZero() {
		t.Errorf("%+v %v", out, err)
	}
}

// TestName: the tensor of a file that belongs to a matrix.
func TestName(t *testing.T) {
	if got := Name(lm.Linear{Name: "model.layers.0.q_proj.weight"}); got != "model.layers.0.q_proj.G" {
		t.Error(got)
	}
}
