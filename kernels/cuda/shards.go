//go:build linux && (amd64 || arm64)

package cuda

import "github.com/modelcompress/compress/kernels"

var _ kernels.Assembler = (*Device)(nil)

// shardArgs mirrors ShardArgs of map.cu.
type shardArgs struct {
	pool, x                     mat
	ids, targets, starts, order uintptr
	l, count                    int32
}

// shards checks the shapes and gives the shards of a row.
func shards(x, pool kernels.Mat, ids []int32) int {
	need(pool.Cols > 0 && x.Cols%pool.Cols == 0, "cuda: Assembler: a row is not a number of shards")
	l := x.Cols / pool.Cols
	need(len(ids) == x.Rows*l, "cuda: Assembler: not a number for every shard")
	need(inside(ids, pool), "cuda: Assembler: row id outside the pool")
	return l
}

// Assemble implements [kernels.Assembler].
func (d *Device) Assemble(dst, pool kernels.Mat, ids []int32) {
	l := shards(dst, pool, ids)
	if len(ids) == 0 {
		return
	}

	d.operate("Assemble", func() {
		list := d.ints(ids)
		args := shardArgs{pool: d.of(pool).mat(), x: d.of(dst).mat(), ids: list, l: int32(l), count: int32(len(ids))}
		launch(d, "map.assemble", plane(len(ids), pool.Cols, 512), &args)
		d.drop(list)
	}, []kernels.Mat{dst}, pool)

	changed(dst)
}

// Scatter implements [kernels.Assembler]: one thread adds all shards of an element, in the order of ids.
func (d *Device) Scatter(pool, src kernels.Mat, ids []int32) {
	l := shards(src, pool, ids)
	if len(ids) == 0 {
		return
	}

	d.operate("Scatter", func() {
		targets, starts, order := groups(ids)
		t := d.ints(targets)
		s := d.ints(starts)

		o := d.ints(order)
		args := shardArgs{
			pool: d.of(pool).mat(), x: d.of(src).mat(), targets: t, starts: s, order: o, l: int32(l),
			count: int32(len(targets)),
		}
		launch(d, "map.scatter", plane(len(targets), pool.Cols, 256), &args)
		d.drop(t)
		d.drop(s)
		d.drop(o)
	}, []kernels.Mat{pool}, src)

	changed(pool)
}
