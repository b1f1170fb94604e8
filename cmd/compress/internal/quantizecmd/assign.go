package quantizecmd

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/internal/report"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/quantize"
	"github.com/modelcompress/compress/quantize/imatrix"
)

// Assign are the settings of a choice among several levels.
type Assign struct {
	Size        string // "4.5bpw" or "90MB"
	By          string
	Generations int
	Offspring   int
}

// several reports whether --to names levels to choose from.
func (o *Options) several() bool { return strings.Contains(o.To, ",") }

// assignOptions turns flags into the library's options.
func (o *Options) assignOptions() (quantize.AssignOptions, error) {
	a := quantize.AssignOptions{
		Levels: strings.Split(o.To, ","), By: o.Assign.By, Group: o.Quantize.Group, Ignore: o.Quantize.Ignore,
		Generations: o.Assign.Generations, Offspring: o.Assign.Offspring,
	}
	for i, name := range a.Levels {
		a.Levels[i] = strings.ToLower(strings.TrimSpace(name))
	}

	var err error
	if a.Fixed, err = o.rules("*.down_proj=w8a16"); err != nil {
		return a, err
	}
	switch bits, isBits := strings.CutSuffix(o.Assign.Size, "bpw"); {
	case o.Assign.Size == "":
		return a, cli.Usagef("--to %s: give --size, such as 4.5bpw or 90MB: what all may take together", o.To)
	case isBits:
		a.BitsPerWeight, err = strconv.ParseFloat(bits, 64)
		if err != nil || !(a.BitsPerWeight > 0) || a.BitsPerWeight > 64 {
			return a, cli.Usagef("--size %s: want bits a weight such as 4.5bpw, or bytes such as 90MB", o.Assign.Size)
		}
	default:
		if a.Bytes, err = cli.Bytes("size", o.Assign.Size); err != nil {
			return a, err
		}
	}
	if o.Calib == "" {
		return a, cli.Usagef("--to %s: no calibration data, by which matrices are told apart (HINT: give --calib FILE)",
			o.To)
	}
	return a, a.Validate()
}

// intoFile reports whether a GGUF file is written, and not a folder.
func (o *Options) intoFile() (bool, error) {
	if !o.several() {
		s, err := quantize.SchemeByName(o.To)
		return s.File(), err
	}
	a, err := o.assignOptions()
	if err != nil {
		return false, err
	}
	return a.IntoFile()
}

// checkSingle refuses flags that belong to a choice where there is none.
func (o *Options) checkSingle() error {
	if a := o.Assign; a.Size != "" || a.By != "" || a.Generations != 0 || a.Offspring != 0 {
		return cli.Usagef("--size, --assign, --generations and --offspring go with several levels, such as --to " +
			"q4_k,q5_k,q6_k")
	}
	return nil
}

// assignable checks the flags of a choice and of what is done with it.
func (o *Options) assignable() error {
	a, err := o.assignOptions()
	if err != nil {
		return err
	}
	into, err := o.intoFile()
	if err != nil {
		return err
	}

	// As if there were one level: what cannot be said of that is wrong of several.
	one := *o
	one.Assign = Assign{}
	if into {
		one.To, one.Calib = "q8_0", ""
		return Check(one)
	}
	for _, level := range a.Levels {
		if level == quantize.Keep {
			continue
		}
		one.To = level
		if err := Check(one); err != nil {
			return err
		}
	}
	return nil
}

// assign chooses what each matrix becomes.
func (o *Options) assign(j *cli.Job, path string) error {
	a, err := o.assignOptions()
	if err != nil {
		return err
	}
	if err := Vacant(j, path, *o); err != nil {
		return err
	}
	if err := openmodel.OnlyWeights(path); err != nil {
		return err
	}
	m, err := j.Load(path, lm.Options{Stream: true})
	if err != nil {
		return err
	}
	defer m.Close()

	calib, err := o.Windows(j, m)
	if err != nil {
		return err
	}
	if o.Imatrix != "" {
		if a.Importance, err = imatrix.Read(o.Imatrix); err != nil {
			return err
		}
	}

	a.Seed = j.Seed
	if a.By == quantize.BySearch {
		done, err := o.openJournal(j, m, calib.Hash, a)
		if err != nil {
			return err
		}
		defer done.Close()
		a.Known = func(key string) (float64, bool) { v, ok := done.Done[key]; return v, ok }
		a.Note = done.Add
	}

	bar := j.Bars()
	defer bar.End()
	a.Step = func(s quantize.AssignStep) { bar.Show(s.Stage, int64(s.Done), int64(s.Of)) }
	if o.assigned, err = quantize.Assign(j.Ctx, m, calib, a); err != nil {
		return err
	}
	bar.End()
	o.printAssignment(j)
	return nil
}

// journalPath is where a search notes what it has measured, until the output is complete.
func (o *Options) journalPath() string { return o.Quantize.Out + ".assign.journal" }

// openJournal opens the journal of a search: with --resume that of an interrupted one.
func (o *Options) openJournal(j *cli.Job, m *lm.Model, text string, a quantize.AssignOptions) (
	*cli.Journal[float64], error,
) {
	model, err := m.Fingerprint(j.Ctx)
	if err != nil {
		return nil, err
	}
	return cli.Measurements(o.journalPath(), o.Quantize.Resume, o.Quantize.Overwrite, "quantize",
		cli.Fingerprint(model, text, a, a.Importance))
}

// printAssignment shows what was chosen beside what single levels would be.
func (o *Options) printAssignment(j *cli.Job) {
	a := o.assigned
	columns := []string{"", "size", "bits a weight|%.3f", "predicted KL, nats|%.5f"}
	if a.Measured != nil {
		columns = append(columns, "measured|%.5f")
	}
	t := &report.Table{Columns: report.Columns(columns...)}
	for _, u := range a.Uniform {
		t.Add("all "+u.Level, cli.Size(u.Bytes), u.Bits, u.Predicted)
	}
	if a.Measured == nil {
		t.Add("chosen", cli.Size(a.Bytes), a.Bits, a.Predicted)
	} else {
		t.Add("chosen", cli.Size(a.Bytes), a.Bits, a.Predicted, *a.Measured)
	}

	parts := map[string]int{}
	for _, p := range a.Parts {
		parts[p.Level] += len(p.Names)
	}
	var words []string
	seen := map[string]bool{}
	for _, p := range a.Parts {
		if !seen[p.Level] {
			seen[p.Level] = true
			words = append(words, fmt.Sprintf("%d %s", parts[p.Level], p.Level))
		}
	}
	t.Note = strings.Join(words, ", ")
	if a.Start != nil {
		t.Note += fmt.Sprintf("; the search came from %.5f nats", *a.Start)
	}
	j.Table(t)
}
