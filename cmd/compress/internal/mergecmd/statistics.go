package mergecmd

import (
	"context"
	"os"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/merge"
)

// StatisticsOptions are the flags of the verb statistics.
type StatisticsOptions struct {
	Kind, Data, Out, Memory string
	Samples, SeqLen         int
}

// StatisticsResult says what was collected.
type StatisticsResult struct {
	Kind    string `json:"kind"`
	Out     string `json:"out"`
	Bytes   int64  `json:"bytes"`
	Windows int    `json:"windows"`
	SeqLen  int    `json:"seqlen"`
	Data    string `json:"data_hash"`
}

// Statistics collects the statistics of a model.
func Statistics(j *cli.Job, path string, o StatisticsOptions) (any, error) {
	collect := map[string]func(context.Context, *lm.Model, corpus.Windows, string, merge.StatisticsOptions) error{
		"fisher": merge.Fisher, "gram": merge.Gram,
	}[o.Kind]
	if collect == nil {
		return nil, cli.Usagef("--kind %q; known: fisher, gram", o.Kind)
	}

	memory, err := cli.Bytes("memory", o.Memory)
	if err != nil {
		return nil, err
	}

	place := cli.Place{
		Flag: "out", Path: o.Out, What: "statistics",
		Own: func(path string) bool { return strings.HasSuffix(path, ".safetensors") }, Inputs: j.Inputs, Seeks: true,
	}
	to, err := place.Target()
	if err != nil {
		return nil, err
	}

	m, err := j.Load(path, lm.Options{Decode: true})
	if err != nil {
		return nil, err
	}
	defer m.Close()

	w, err := j.Sample(m, o.Data, corpus.SampleOptions{Samples: o.Samples, SeqLen: o.SeqLen, Join: true})
	if err != nil {
		return nil, err
	}

	bar := j.Bars()
	err = collect(j.Ctx, m, w, to, merge.StatisticsOptions{Memory: memory, Progress: func(done, total int64) {
		bar.Show(
			o.Kind, done, total)
	}})

	bar.End()
	if err != nil {
		return nil, err
	}

	r := StatisticsResult{Kind: o.Kind, Out: o.Out, Windows: len(w.IDs), SeqLen: w.SeqLen, Data: w.Hash}
	if st, err := os.Stat(o.Out); err == nil {
		r.Bytes = st.Size()
	}

	j.Printf("%s of %d windows of %d tokens: %s in %s\n", r.Kind, r.Windows, r.SeqLen, cli.Size(r.Bytes), r.Out)
	return r, nil
}
