// Package crew runs loops on several goroutines.
package crew

import (
	"sync/atomic"

	"github.com/modelcompress/compress/internal/mapped"
)

// Tiling cuts rows into pieces of work. It depends on the shape alone.
type Tiling struct {
	Rows  int // of a piece; the last may have fewer
	Count int
}

const (
	tileSize = 1 << 15 // elements
	maxTiles = 128
)

// Tiles cuts a matrix into pieces of about 2^15 elements, at most 128.
func Tiles(rows, cols int) Tiling {
	n := max(1, tileSize/max(1, cols), (rows+maxTiles-1)/maxTiles)
	return Tiling{n, (rows + n - 1) / n}
}

// Run calls f for every piece in [0, count), each goroutine with what scratch gave it.
func Run[T any](threads, count int, scratch func() T, f func(s T, piece int)) {
	var next atomic.Int64
	work := func() {
		s := scratch()
		for i := int(next.Add(1)) - 1; i < count; i = int(next.Add(1)) - 1 {
			f(s, i)
		}
	}
	var wg mapped.Group
	for range min(threads, count) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
}

// Lower sets v to n where n is less.
func Lower(v *atomic.Int64, n int64) {
	for old := v.Load(); n < old; old = v.Load() {
		if v.CompareAndSwap(old, n) {
			return
		}
	}
}
