package stream

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"

	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/safetensors"
)

// collected is a sink that holds what is written.
type collected struct {
	mu   sync.Mutex
	data []byte
}

func (k *collected) Position(string) int64 { return 0 }

func (k *collected) WriteAt(_ string, p []byte, off int64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	copy(k.data[off:], p)
	return nil
}

// sparse is a source of values many of which are 0, some of them -0.
func sparse(t *testing.T, rng *rand.Rand, n int64, zeros float64) (Source, []float32) {
	t.Helper()
	x, data := make([]float32, n), make([]byte, 4*n)
	for i := range x {
		x[i] = float32(rng.IntN(5) + 1)
		if rng.Float64() < zeros {
			x[i] = float32(math.Copysign(0, rng.Float64()-0.5))
		}
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(x[i]))
	}

	src, err := NewMapped(data, safetensors.F32, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	return src, x
}

// TestZerosAreCounted: all zeros of a small matrix and those of the sample of a large one, in the inputs and in the
// output; all that the mask keeps, and what the method would have made of it; the same for any number of workers.
func TestZerosAreCounted(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 1))
	for _, shape := range [][]int64{{40, 30}, {256, 256}, {300, 300}, {900, 600}} {
		n := shape[0] * shape[1]
		first, x := sparse(t, rng, n, 0.3)
		second, y := sparse(t, rng, n, 0.5)
		mask, keep := sparse(t, rng, n, 0.2)

		want := Zeros{Elements: n, Models: []string{"a", "b", "base"}, Inputs: make([]int64, 3)}
		out := make([]float32, n)
		for i := range out {
			out[i] = x[i] + y[i]
			if keep[i] == 0 {
				want.Kept++
				if out[i] != 0 {
					want.Restored++
				}
				out[i] = 0
			}

			if n > 1<<16 && i%16381 >= 64 { // of a large matrix runs of 64 at this distance
				continue
			}
			want.Sampled++
			for j, v := range []float32{x[i], y[i]} {
				if v == 0 {
					want.Inputs[j]++
				}
			}
			if out[i] == 0 {
				want.Output++
			}
		}

		for _, workers := range []int{1, 2, 7} {
			it := &Item{
				Tensor: &method.Tensor{Name: "w", Shape: shape, N: n, Inputs: []method.Input{{}, {}}},
				DType:  safetensors.F32, X: []Source{first, second}, Mask: mask, Models: []string{"a", "b", "base"},
			}
			p := &method.Program{Apply: func(b *method.Block) {
				for i := range b.Out {
					b.Out[i] = b.X[0][i] + b.X[1][i]
				}
			}}

			var got *Zeros
			to := &collected{data: make([]byte, 4*n)}
			_, err := Run(t.Context(), []Group{{Items: []*Item{it}, Program: p}}, to, Options{
				Threads: workers, Noted: func(_ string, n Note) error { got = n.Zeros; return nil },
			})
			if err != nil {
				t.Fatal(err)
			}

			if got == nil || !reflect.DeepEqual(*got, want) {
				t.Errorf("%v with %d workers:\n got %+v\nwant %+v", shape, workers, got, want)
			}
			for i, v := range out {
				if b := math.Float32frombits(binary.LittleEndian.Uint32(to.data[4*i:])); b != v {
					t.Fatalf("%v: element %d is %v, want %v", shape, i, b, v)
				}
			}
		}
	}
}

// TestMemoryBoundsWorkers: a run has as many workers as the memory has room for, not one less, and the budget is what
// they and the largest group take; where one is too many, the error says what would do.
func TestMemoryBoundsWorkers(t *testing.T) {
	list := groups(item(t, "small", values(100), nil), item(t, "large", values(3*method.BlockSize), nil))
	list[1].Program = &method.Program{Memory: 1 << 20, Apply: list[1].Program.Apply}
	one, err := Budget(list, Options{Threads: 1, Memory: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}

	for memory := one - 3; memory < one+(4<<20); memory += 99_991 {
		o, buffers, err := fit(list, Options{Threads: 9, Memory: memory})
		if memory < one {
			if !errors.Is(err, ErrMemory) {
				t.Errorf("%d bytes: %v", memory, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%d bytes, %d are enough: %v", memory, one, err)
		}

		_, most := largest(list)
		if buffers != reserve(list, o.Threads) || buffers+most > memory {
			t.Errorf("%d workers take %d bytes of %d", o.Threads, buffers+most, memory)
		}
		if o.Threads < 9 && reserve(list, o.Threads+1)+most <= memory {
			t.Errorf("%d bytes have room for more than %d workers", memory, o.Threads)
		}
	}
}
