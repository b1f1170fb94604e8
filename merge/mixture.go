package merge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/modelcompress/compress/internal/build"
	"github.com/modelcompress/compress/internal/hub"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/merge/internal/job"
	"github.com/modelcompress/compress/merge/internal/moe"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/internal/recipe"
	"github.com/modelcompress/compress/safetensors"
)

// Ways in which models can be unfit for a mixture of experts.
var (
	ErrMixture = moe.ErrModels
	ErrExpert  = moe.ErrTensor
)

// MixtureOptions are the choices that a mixture's recipe does not make. The zero value is ready, but for the device.
type MixtureOptions struct {
	// runs the base for gates of hidden states; nil if none are needed
	Device kernels.Device `json:"-"`
	// CPU threads to compute with; 0: one for each processor (GOMAXPROCS). The output does not depend on it
	Threads int `json:"threads,omitempty"`
	// bytes of anonymous memory for buffers; 0: DefaultMemory. It does not depend on that either
	Memory   int64  `json:"memory,omitempty"`
	Seed     uint64 `json:"seed"`                // of random gates and of noise
	DType    string `json:"dtype,omitempty"`     // of the output; "": as the recipe says, or else the base's
	MaxShard int64  `json:"max_shard,omitempty"` // bytes per file; 0: no bound
	// Layout is "split" (the default), a tensor per matrix of an expert, or "fused", all experts of a layer in
	// one tensor.
	Layout string `json:"layout,omitempty"`
	// AllowSame accepts experts that are all the same model, which only makes sense before training.
	AllowSame bool           `json:"allow_same,omitempty"`
	Overwrite bool           `json:"-"` // replace an existing checkpoint once the new one is complete
	Resume    bool           `json:"-"` // continue an interrupted run with the same recipe, inputs and options
	Progress  func(Progress) `json:"-"` // called by several goroutines, one at a time. May be nil
}

// MixtureReport says what a mixture was made of. It lies in the output as merge.json.
type MixtureReport struct {
	Version    string         `json:"version"`
	Job        string         `json:"job,omitempty"` // hash of recipe, choices and the inputs' names and sizes
	Kind       string         `json:"kind"`          // mixtral, qwen or qwen3
	Models     []string       `json:"models"`
	Experts    int            `json:"experts"`
	Gate       string         `json:"gate_mode"`
	Options    MixtureOptions `json:"options"`
	Tensors    int            `json:"tensors"`
	Parameters int64          `json:"parameters"`
	BytesOut   int64          `json:"bytes_out"`
	Warnings   []string       `json:"warnings,omitempty"`
	Recipe     string         `json:"recipe"`
	Seconds    float64        `json:"-"`
}

// CheckMixture opens the models of a recipe and says what Mix would write, without computing gates or writing anything.
func CheckMixture(ctx context.Context, r Recipe, o MixtureOptions) (report *MixtureReport, err error) {
	m, err := r.openMixture(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	return newMixtureReport(job.Handle(r).Mixture(), m, o, ""), nil
}

// openMixture checks the options and opens the models.
func (r Recipe) openMixture(ctx context.Context, o MixtureOptions) (*moe.Mixture, error) {
	if job.Handle(r).Mixture() == nil {
		return nil, job.Faultf(job.Handle(r).Recipe().Path, "no mixture of experts")
	}

	dtype, err := o.validate()
	if err != nil {
		return nil, err
	}
	places := recipe.Places{Recipe: filepath.Dir(job.Handle(r).Recipe().Path), Cache: hub.CacheDir()}
	m, err := moe.Open(ctx, job.Handle(r).Mixture(), places,
		moe.Options{
			Layout: o.Layout, Seed: o.Seed, Threads: o.Threads, Memory: o.Memory, DType: dtype,
			AllowSame: o.AllowSame,
		})
	return m, job.Faulty(err)
}

// Mix makes a mixture of experts in the folder dst: weights, configuration, the base's tokenizer, a model card and a
// manifest. Interruptions are treated as by Models.
func Mix(ctx context.Context, r Recipe, dst string, o MixtureOptions) (report *MixtureReport, err error) {
	start := time.Now()
	config := job.Handle(r).Mixture()
	if o.Device == nil && config != nil && r.NeedsDevice() {
		return nil, fmt.Errorf("gate_mode %s runs the base and needs a device: %w", config.Gate, ErrOption)
	}

	ctx = weights.Recorded(ctx, new(weights.Record))
	m, err := r.openMixture(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()

	for _, dir := range m.Dirs() {
		if err := output.Apart(dir, dst); err != nil {
			return nil, err
		}
	}

	key, err := mixtureJob(job.Handle(r).Mixture(), m, o)
	if err != nil {
		return nil, err
	}

	if err := m.Gates(ctx, o.Device); err != nil {
		return nil, err
	}

	out, err := output.Open(dst, output.Options{
		Overwrite: o.Overwrite, Resume: o.Resume, Job: key, Tensors: m.Layout(),
		MaxShard: o.MaxShard, Readers: o.Threads,
	})
	if err != nil {
		return nil, err
	}

	report = newMixtureReport(job.Handle(r).Mixture(), m, o, key)
	if out.Complete() {
		return report, nil
	}

	if err := mix(ctx, m, out, report, o.Progress); err != nil {
		if stage.Resumable(ctx, err) {
			return nil, errors.Join(err, out.Suspend())
		}
		return nil, errors.Join(err, out.Abort())
	}

	report.Seconds = time.Since(start).Seconds()
	return report, nil
}

// validate checks the options and gives the output's type.
func (o MixtureOptions) validate() (safetensors.DType, error) {
	common := Options{Threads: o.Threads, Memory: o.Memory, MaxShard: o.MaxShard, DType: o.DType}
	errs := []error{common.Validate()}
	if o.Layout != "" && o.Layout != moe.Split && o.Layout != moe.Fused {
		errs = append(errs, fmt.Errorf("layout %.50q: want split or fused: %w", o.Layout, ErrOption))
	}
	dtype, _ := job.DType(o.DType) // Validate has its error
	return dtype, errors.Join(errs...)
}

// mix writes into an open output and finishes it.
func mix(ctx context.Context, m *moe.Mixture, out *output.Folder, report *MixtureReport,
	progress func(Progress),
) error {
	var done int64
	var one sync.Mutex
	show := func(n int64) {
		one.Lock()
		defer one.Unlock()
		done += n
		if progress != nil {
			progress(Progress{Done: done, Total: report.BytesOut})
		}
	}

	for _, t := range m.Layout() {
		if size, err := t.DType.ByteSize(t.Shape); err == nil && out.Done(t.Name) {
			show(size)
		}
	}

	if err := m.Run(ctx, out, show); err != nil {
		return err
	}

	return out.Finish(func(dir string) error {
		what := [2]string{
			fmt.Sprintf("A mixture of %d experts (%s, gates: %s)", report.Experts, report.Kind, report.Gate),
			fmt.Sprintf("%d tensors, %d parameters; seed %d.", report.Tensors, report.Parameters, report.Options.Seed),
		}

		manifest, err := json.MarshalIndent(report, "", "  ")
		if err != nil {
			return err
		}

		return errors.Join(m.WriteSide(dir),
			output.WriteFile(filepath.Join(dir, "README.md"),
				output.MixtureCard(report.Models, what, weights.Remarks(ctx), report.Recipe)),
			output.WriteFile(filepath.Join(dir, output.ManifestName), append(manifest, '\n')))
	})
}

// newMixtureReport says what is going to be written.
func newMixtureReport(c *moe.Config, m *moe.Mixture, o MixtureOptions, key string) *MixtureReport {
	o.Threads, o.Memory = 0, 0
	r := &MixtureReport{
		Version: build.Version(), Job: output.JobKept(key), Kind: m.Family, Experts: len(c.Experts), Gate: c.Gate,
		Options:  o,
		Warnings: m.Warnings, Recipe: string(c.Text),
	}

	for _, ref := range c.References() {
		r.Models = append(r.Models, ref.String())
	}

	for _, t := range m.Layout() {
		r.Tensors++
		r.Parameters += safetensors.Info{Shape: t.Shape}.Elements()
		if size, err := t.DType.ByteSize(t.Shape); err == nil {
			r.BytesOut += size
		}
	}

	return r
}

// mixtureJob identifies a run: the recipe, the choices that change the output, and the inputs by path, size and time.
func mixtureJob(c *moe.Config, m *moe.Mixture, o MixtureOptions) (string, error) {
	o.Threads, o.Memory = 0, 0
	return output.JobOf(map[string]any{
		"format": 2, "version": build.Version(), "mixture": string(c.Text),
		"options": o,
	},
		m.Files())
}
