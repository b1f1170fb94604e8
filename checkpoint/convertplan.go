package checkpoint

import (
	"strings"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/safetensors"
)

// plan decides the form of every tensor and gives the new configuration.
func (r *rewriter) plan() (*orderedjson.Object, error) {
	config, err := readConfig(r.src.Path())
	if err != nil {
		return nil, err
	}

	if err := r.listItems(isPacked(config)); err != nil {
		return nil, err
	}

	if r.Pack {
		if err := r.choosePacked(config); err != nil {
			return nil, err
		}
	}

	for i := range r.items {
		t := &r.items[i]
		r.report.Cast += count(t.from != t.to)
		r.report.Packed += count(t.pack)
		r.report.Unpacked += count(t.packed != nil && !t.pack)
	}

	return r.newConfig(config)
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// listItems lists the model's tensors in the order of the source; a packed matrix stands where its first part stood.
func (r *rewriter) listItems(isPacked bool) error {
	parts := map[string]*packed{}
	if isPacked {
		var err error
		if parts, err = packedParts(r.src); err != nil {
			return err
		}
	}

	layout := r.src.Layout(0)
	seen := map[*packed]bool{}
	for _, name := range r.src.Names() {
		info, _ := r.src.Info(name)
		t := item{name: name, from: info.DType, shape: info.Shape, shard: layout.ShardOf[name]}
		if p := parts[name]; p != nil {
			if seen[p] {
				continue
			}
			if err := p.check(r.ctx, r.src); err != nil {
				return err
			}

			seen[p] = true
			t.name = p.module + ".weight"
			t.from = p.dtype
			t.shape = []int64{p.rows, p.cols}
			t.packed = p
		}

		if t.to = t.from; r.DType != 0 && dtype.IsFloat(t.from) {
			t.to = r.DType
		}

		t.rows, t.cols = 1, 1
		for _, n := range t.shape {
			t.rows *= n
		}
		if len(t.shape) == 2 && t.rows > 0 {
			t.rows, t.cols = t.shape[0], t.shape[1]
		}

		r.items = append(r.items, t)
	}

	return nil
}

// choosePacked counts the zeros of the blocks' matrices and packs those that become smaller.
func (r *rewriter) choosePacked(config *orderedjson.Object) error {
	roles, err := rolesOf(weights.Place(r.src.Path(), "config.json"), config)
	if err != nil {
		return err
	}

	for i := range r.items {
		t := &r.items[i]
		r.env.progress("counting zeros", int64(i), int64(len(r.items)))
		r.params += product(t.shape)
		if !roles.linear(t.name) || len(t.shape) != 2 || !dtype.IsFloat(t.to) || product(t.shape) == 0 {
			continue
		}

		k := &packer{size: t.to.Bits() / 8, cols: int(t.cols)}
		if err := r.stream(t, func(p []byte) error {
			k.mask = k.mask[:0]
			for ; len(p) > 0; p = p[k.cols*k.size:] {
				k.mark(p[:k.cols*k.size])
			}
			return nil
		}); err != nil {
			return err
		}

		if t.nonZero = k.total; packedSize(t.rows, t.cols, k.total, k.size) < t.rows*t.cols*int64(k.size) {
			t.pack = true
			r.zeros += t.rows*t.cols - k.total
			r.off24 = r.off24 || k.off24
		}
	}

	return nil
}

func product(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

func module(name string) string { return strings.TrimSuffix(name, ".weight") }

// layout is the plan in the writer's terms.
func (r *rewriter) layout() ([]safetensors.Info, safetensors.DirOptions) {
	var infos []safetensors.Info
	shards := map[string]string{}
	add := func(t *item, name string, d safetensors.DType, shape ...int64) {
		infos = append(infos, safetensors.Info{Name: name, DType: d, Shape: shape})
		shards[name] = t.shard
	}

	for i := range r.items {
		t := &r.items[i]
		if !t.pack {
			add(t, t.name, t.to, t.shape...)
			continue
		}

		m := module(t.name)
		add(t, m+partShape, safetensors.I64, 2)
		add(t, m+partRowOffsets, safetensors.I64, t.rows)
		add(t, m+partValues, t.to, t.nonZero)
		add(t, m+partBitmask, safetensors.U8, t.rows, (t.cols+7)/8)
	}

	if r.MaxShard >= 0 {
		return infos, safetensors.DirOptions{MaxShardSize: r.MaxShard}
	}

	layout := r.src.Layout(0)
	if layout.ShardOf != nil {
		layout.ShardOf = shards // by the names here
	}
	return infos, layout
}
