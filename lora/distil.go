package lora

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/lora/internal/batches"
	"github.com/modelcompress/compress/lora/internal/distil"
)

// Distil makes a training learn what a teacher predicts instead of the tokens of the data: the loss of a token is
// τ²·KL(softmax(z_teacher/τ) ‖ softmax(z_student/τ)) + α times its cross-entropy, z being logits. Held-out data is
// still measured by its cross-entropy.
type Distil struct {
	Teacher *Teacher `json:"-"` // whose predictions are learned
	// Temperature is τ: default 1, or what a cache was made with; above 1 the unlikely tokens count more.
	Temperature float64 `json:"temperature"`
	// Top is how many tokens of each row, the teacher's likeliest, count by themselves; all others count as one event.
	// Default 64, or what a cache has; -1: all, of a teacher without a cache.
	Top int `json:"top"`
	// CE is α, the weight of the cross-entropy; default 0.
	CE float64 `json:"ce"`

	// Of is the fingerprint of the teacher, which the training writes here, with Cached where it is one from a file,
	// and the bytes of that for a token.
	Of            string  `json:"teacher"`
	Cached        bool    `json:"cached"`
	BytesPerToken float64 `json:"bytes_per_token,omitempty"`
}

// defaultTop is how many tokens of a row count by themselves.
const defaultTop = 64

// withDefaults fills in what is not set.
func (d Distil) withDefaults() Distil {
	if c := d.Teacher.cached(); c != nil {
		d.Temperature, d.Top = or(d.Temperature, c.Temperature), or(d.Top, c.Top)
	}
	d.Temperature, d.Top = or(d.Temperature, 1), or(d.Top, defaultTop)
	return d
}

// validate lists the faults of the settings.
func (d Distil) validate(bad func(wrong bool, format string, args ...any)) {
	bad(!(d.Temperature > 0) || math.IsInf(d.Temperature, 0), "temperature %g of the distillation is not a positive "+
		"number", d.Temperature)
	bad(d.Top < 1 && d.Top != -1, "the likeliest %d tokens of the teacher: want 1 or more, or all", d.Top)
	bad(!(d.CE >= 0) || math.IsInf(d.CE, 0), "weight %g of the cross-entropy is not a number ≥ 0", d.CE)

	c := d.Teacher.cached()
	if c == nil {
		return
	}
	bad(d.Temperature != c.Temperature, "%s was made at temperature %g, asked for is %g", d.Teacher.path, c.Temperature,
		d.Temperature)
	bad(d.Top == -1, "all tokens of the teacher: %s has the likeliest %d of each row", d.Teacher.path, c.Top)
	bad(d.Top > 0 && d.Top != c.Top, "%s has the likeliest %d tokens of each row, asked for are %d", d.Teacher.path,
		c.Top, d.Top)
}

// Validate returns every fault of the settings.
func (d Distil) Validate() error {
	var faults []error
	d.withDefaults().validate(func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
		}
	})
	return errors.Join(faults...)
}

// Teacher is a model that others learn from with [Distil]: at hand, or what it has said about some data in a file.
type Teacher struct {
	model *lm.Model
	cache *distil.Cache
	path  string
}

// ErrTeacher: a teacher does not fit a student, or a file is not what a teacher has said about these data.
var ErrTeacher = failure.Misuse("the teacher does not fit", "")

// NewTeacher is a model at hand, which runs over each batch before the student does. It must stay open.
func NewTeacher(m *lm.Model) *Teacher { return &Teacher{model: m, path: m.Path()} }

// OpenTeacher opens a file that [WriteTeacher] has made, and checks its sums.
func OpenTeacher(path string) (*Teacher, error) {
	c, err := distil.OpenCache(path)
	if err != nil {
		return nil, teacherError(err)
	}
	return &Teacher{cache: c, path: path}, nil
}

// Close closes the file of a teacher; one at hand stays open.
func (t *Teacher) Close() error {
	if t.cache == nil {
		return nil
	}
	return t.cache.Close()
}

// Fingerprint is that of the model (see [lm.Model.Fingerprint]).
func (t *Teacher) Fingerprint(ctx context.Context) (string, error) {
	if t.cache != nil {
		return t.cache.Teacher, nil
	}
	return t.model.Fingerprint(ctx)
}

// cached is the file; nil for a teacher at hand, and for none.
func (t *Teacher) cached() *distil.Cache {
	if t == nil {
		return nil
	}
	return t.cache
}

// teacherError makes what is wrong with a cache an error about what was asked for.
func teacherError(err error) error {
	if errors.Is(err, distil.ErrCache) {
		return fmt.Errorf("%w: %w", ErrTeacher, err)
	}
	return err
}

// TeacherOptions of [WriteTeacher].
type TeacherOptions struct {
	Temperature float64                 // default 1
	Top         int                     // default 64
	Anew        bool                    // begin anew where another work is unfinished, instead of refusing
	Progress    func(done, total int64) // tokens; nil: nobody wants to know
}

// WriteTeacher runs a teacher over data and writes what it says about every token that counts to a .safetensors file:
// the likeliest tokens, their log probabilities in BF16 and that of all others, 388 bytes a token with 64. Trainings on
// the same data, in any order and for any number of passes, then need no teacher in memory. The student, which may be
// closed again, is looked at for its vocabulary alone. Interrupted, the same call goes on to the same bytes; what is
// unfinished there of something else is refused (ErrTeacher), and so is a finished file (fs.ErrExist). The memory is
// that of a pass over 4,096 tokens; with [lm.Options.Stream] the teacher's weights are there block by block.
func WriteTeacher(ctx context.Context, teacher, student *lm.Model, data corpus.Windows, path string,
	o TeacherOptions,
) error {
	d := Distil{Temperature: o.Temperature, Top: o.Top}.withDefaults()
	if err := d.Validate(); err != nil {
		return err
	}
	if d.Top == -1 {
		return fmt.Errorf("%w: a file has the likeliest tokens of the teacher, not all", ErrConfig)
	}

	r, err := d.resident(teacher, student, data)
	if err != nil {
		return err
	}
	return teacherError(distil.WriteCache(ctx, r, batches.Data{IDs: data.IDs, Labels: data.Labels}, path,
		distil.WriteOptions{Anew: o.Anew, Progress: o.Progress}))
}

// resident is a teacher at hand for a student.
func (d Distil) resident(teacher, student *lm.Model, data corpus.Windows) (*distil.Resident, error) {
	vocab, err := common(teacher, student)
	if err != nil {
		return nil, err
	}

	// Where positions have a table there are no more; rotations go on, if not to what the teacher was trained on.
	c := teacher.Config()
	table := slices.ContainsFunc(c.Arch.Tensors, func(t arch.Tensor) bool { return t.Role == arch.Positions })
	if most := c.MaxPositions; table && most > 0 && data.SeqLen > most {
		return nil, failure.Hinted(fmt.Errorf("%w: %s has %d positions, and the data sequences of %d tokens",
			ErrTeacher, teacher.Path(), most, data.SeqLen), "a smaller --seqlen")
	}

	return &distil.Resident{
		Model: teacher, Vocab: vocab, Temperature: d.Temperature, Top: min(max(d.Top, 0), vocab),
	}, nil
}

// common is how many tokens both models have, of the same tokenizer. Tables may be filled up with rows that no token
// has, and of larger models of a family are.
func common(teacher, student *lm.Model) (int, error) {
	a, b := student.Config().Vocab, teacher.Config().Vocab
	here, err := tokenizerOf(student)
	if err != nil {
		return 0, err
	}
	there, err := tokenizerOf(teacher)
	if err != nil {
		return 0, err
	}

	what := ""
	switch {
	case here != nil && there != nil:
		what = here.Difference(there)
	case a != b:
		what = fmt.Sprintf("%d tokens here and %d there", a, b)
	}
	if what != "" {
		return 0, failure.Hinted(fmt.Errorf("%w: %s has another tokenizer than %s: %s", ErrTeacher, teacher.Path(),
			student.Path(), what), "a teacher of the student's family, such as the model that it was made of")
	}

	return min(a, b), nil
}

// tokenizerOf is that of a model; nil where it has none.
func tokenizerOf(m *lm.Model) (*tokenizer.Tokenizer, error) {
	tok, err := m.Tokenizer()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return tok, err
}

// distil makes the loss of a run; nil without a teacher.
func (o *Options) distil(ctx context.Context, m *lm.Model, data corpus.Windows) (*distil.Loss, error) {
	if o.Distil == nil {
		return nil, nil
	}

	d := o.Distil.withDefaults()
	t := d.Teacher
	var err error
	if d.Of, err = t.Fingerprint(ctx); err != nil {
		return nil, err
	}

	l := &distil.Loss{Settings: distil.Settings{Temperature: d.Temperature, Top: max(d.Top, 0), CE: d.CE}}
	if c := t.cache; c != nil {
		if err := c.Fit(batches.Data{IDs: data.IDs, Labels: data.Labels}, m.Config().Vocab); err != nil {
			return nil, teacherError(err)
		}
		d.Cached = true
		d.BytesPerToken = float64(c.Size()) / float64(c.Rows)
		l.Source = c
	} else if l.Source, err = d.resident(t.model, m, data); err != nil {
		return nil, err
	}

	o.Distil = &d
	return l, nil
}
