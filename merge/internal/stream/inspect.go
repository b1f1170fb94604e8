package stream

import (
	"context"

	"github.com/modelcompress/compress/merge/internal/method"
	"github.com/modelcompress/compress/safetensors"
)

// Inspect runs the passes of programs and nothing else: no output is computed or written. Progress gets the
// bytes that the outputs would have, group by group.
func Inspect(ctx context.Context, groups []Group, o Options) (*Result, error) {
	list := make([]Group, len(groups))
	for i, g := range groups {
		var bytes int64
		for _, it := range g.Items {
			own := *it
			own.Done = true
			bytes += own.Tensor.N * width(own.DType)
			list[i].Items = append(list[i].Items, &own)
		}

		list[i].Program, list[i].Census = counted(g.Program, bytes, o.Progress), g.Census.counted(bytes, o.Progress)
		// A group is run if something of it is to be written: a tensor without elements.
		list[i].Items = append(list[i].Items, &Item{
			Tensor: &method.Tensor{Name: g.Items[0].Tensor.Name, Shape: []int64{0}}, DType: safetensors.U8,
			Raw: []byte{},
		})
	}

	o.Progress = nil
	return Run(ctx, list, nil, o)
}

// counted tells about progress after the last pass of a program.
func counted(p *method.Program, bytes int64, progress func(int64)) *method.Program {
	if progress == nil {
		return p
	}
	own := *p
	own.Passes = append(own.Passes[:len(own.Passes):len(own.Passes)], method.Pass{
		Stride: 1 << 62, New: func() any { return struct{}{} }, Each: func(any, *method.Block) {},
		End: func([]any) ([]method.Pass, error) { progress(bytes); return nil, nil },
	})
	return &own
}

// counted tells about progress after the last part of a tensor.
func (c *Census) counted(bytes int64, progress func(int64)) *Census {
	if c == nil || progress == nil {
		return c
	}
	own := *c
	own.Done = func() { progress(bytes) }
	return &own
}
