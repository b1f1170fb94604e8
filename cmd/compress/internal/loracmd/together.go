package loracmd

import (
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/lora"
)

// Together shows what several adapters take at once.
type Together struct {
	Adapters []*lora.Inspection `json:"adapters"`
	Bytes    int64              `json:"bytes"`      // of all in memory, for a model that has them attached by name
	LoRA     int64              `json:"lora_bytes"` // that as many plain LoRAs of the same ranks take
}

// InspectAll shows what the folders of several adapters hold, and their memory together against that of plain factors.
func InspectAll(j *cli.Job, dirs []string, model string) (any, error) {
	r := &Together{}
	t := &report.Table{Columns: report.Columns("adapter", "kind", "rank", "parameters", "file", "in memory", "as LoRA")}
	for _, dir := range dirs {
		one, err := lora.Inspect(j.Ctx, dir, model)
		if err != nil {
			return nil, err
		}

		notes(j, one.Notes)
		r.Adapters = append(r.Adapters, one)
		r.Bytes = r.Bytes + one.Memory.Bytes
		r.LoRA = r.LoRA + one.Memory.LoRA
		t.Add(dir, one.Kind, one.Rank, cli.Thousands(one.Trained), cli.Size(one.Bytes), cli.Size(one.Memory.Bytes),
			cli.Size(one.Memory.LoRA))
	}

	t.Add("together", nil, nil, nil, nil, cli.Size(r.Bytes), cli.Size(r.LoRA))
	t.Note = "in memory: what the adapter takes beside its base, in F32, with others attached by name"
	j.Table(t)

	return r, nil
}
