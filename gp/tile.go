package gp

import "sync/atomic"

// tiling cuts rows into pieces of work. It depends on the shape alone.
type tiling struct {
	rows  int // of a piece; the last may have fewer
	count int
}

const (
	tileSize = 1 << 15 // elements
	maxTiles = 128
)

// tiles cuts a matrix into pieces of about 2^15 elements, at most 128.
func tiles(rows, cols int) tiling {
	n := max(1, tileSize/max(1, cols), (rows+maxTiles-1)/maxTiles)
	return tiling{n, (rows + n - 1) / n}
}

// lower sets v to n where n is less.
func lower(v *atomic.Int64, n int64) {
	for old := v.Load(); n < old; old = v.Load() {
		if v.CompareAndSwap(old, n) {
			return
		}
	}
}
