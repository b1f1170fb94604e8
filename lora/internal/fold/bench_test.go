package fold

import "testing"

// BenchmarkCompare measures what a change is compared by, in bytes of float32.
func BenchmarkCompare(b *testing.B) {
	now, was := make([]float32, 1<<14), make([]float32, 1<<14)
	for i := range was {
		was[i] = float32(i*7919%1000-500) / 3
		now[i] = was[i] + float32(i%3)
	}

	b.SetBytes(4 << 14)
	for b.Loop() {
		if new(Sums).compare(now, was) >= 0 {
			b.Fatal("not finite")
		}
	}
}
