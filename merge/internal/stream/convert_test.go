package stream

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/safetensors"
)

// kept is a sink that keeps what it gets.
type kept struct {
	mu   sync.Mutex
	data map[string][]byte
}

func (k *kept) Position(string) int64 { return 8 }

func (k *kept) WriteAt(name string, p []byte, off int64) error {
	k.mu.Lock()
	defer k.mu.Unlock()

	if need := int(off) + len(p); len(k.data[name]) < need {
		k.data[name] = append(k.data[name], make([]byte, need-len(k.data[name]))...)
	}
	copy(k.data[name][off:], p)
	return nil
}

// stored is one element as a file has it, by the definition of its type.
func stored(v float32, d safetensors.DType) []byte {
	switch d {
	case safetensors.BF16:
		return binary.LittleEndian.AppendUint16(nil, kernels.ToBF16(v))
	case safetensors.F16:
		return binary.LittleEndian.AppendUint16(nil, kernels.ToF16(v))
	case safetensors.F64:
		return binary.LittleEndian.AppendUint64(nil, math.Float64bits(float64(v)))
	}
	return binary.LittleEndian.AppendUint32(nil, math.Float32bits(v))
}

// TestRunConverts: what is copied element by element has the bytes of each element's own conversion, for every type and
// for sizes around the blocks and segments, with any number of workers; where a mask is 0 it is 0.
func TestRunConverts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, method.BlockSize - 1, method.BlockSize + 1, method.SegmentSize + 7} {
		values, mask := make([]byte, 0, 4*n), make([]byte, 0, 4*n)
		for range n {
			v := float32(math.Ldexp(rng.NormFloat64(), rng.IntN(12)-6))
			values = append(values, stored(v, safetensors.F32)...)
			m := float32(rng.IntN(2))
			mask = append(mask, stored(m, safetensors.F32)...)
		}

		for _, d := range []safetensors.DType{safetensors.F32, safetensors.BF16, safetensors.F16, safetensors.F64} {
			for _, masked := range []bool{false, true} {
				var want []byte
				for i := range n {
					v := math.Float32frombits(binary.LittleEndian.Uint32(values[4*i:]))
					if masked && binary.LittleEndian.Uint32(mask[4*i:]) == 0 {
						v = 0
					}
					want = append(want, stored(v, d)...)
				}

				for _, workers := range []int{1, 3} {
					it := item(t, "w", values, nil)
					it.DType = d
					if masked {
						src, err := NewMapped(mask, safetensors.F32, 0, nil)
						if err != nil {
							t.Fatal(err)
						}
						it.Mask = src
					}

					out := &kept{data: map[string][]byte{}}
					if _, err := Run(t.Context(), groups(it), out, Options{Threads: workers}); err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(out.data["w"], want) {
						t.Errorf("%d elements to %s, masked %v, %d workers", n, d, masked, workers)
					}
				}
			}
		}
	}
}

// TestBudget: more workers take more memory, and never more than is allowed; what one worker needs is the least.
func TestBudget(t *testing.T) {
	list := groups(item(t, "small", make([]byte, 400), nil), item(t, "large", make([]byte, 4<<20), nil))
	last := int64(0)
	for workers := 1; workers <= 8; workers *= 2 {
		n, err := Budget(list, Options{Threads: workers, Memory: 1 << 40})
		if err != nil || n <= last {
			t.Errorf("%d workers take %d bytes, fewer %d: %v", workers, n, last, err)
		}

		for _, allowed := range []int64{n, n - 1} {
			if got, err := Budget(list, Options{Threads: workers, Memory: allowed}); err == nil && got > allowed {
				t.Errorf("%d bytes of %d allowed", got, allowed)
			}
		}
		last = n
	}

	if _, err := Budget(list, Options{Threads: 4, Memory: 1 << 10}); err == nil {
		t.Error("a kilobyte is enough")
	}
}
