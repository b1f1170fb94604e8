package quantize

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/actstats"
	"github.com/modelcompress/compress/internal/ggufmodel"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/quantize/imatrix"
)

// Importance runs text through a model and sums the squares of what flows into each of its matrices, by the names that
// these have in a GGUF file: llama.cpp's importance matrix. Blocks are run one after another, with one in memory at a
// time. Where llama.cpp begins every chunk with the token for the beginning of a text, the windows must too; see
// [Beginnings]. Sums are in float64, and float32 in the result. data is the name of the text, for the file.
func Importance(ctx context.Context, m *lm.Model, windows corpus.Windows, data string, step func(Step)) (
	*imatrix.File, error,
) {
	if len(windows.IDs) == 0 {
		return nil, fmt.Errorf("importance matrix: %w", ErrNoCalibration)
	}

	export, err := exportOf(ctx, m)
	if err != nil {
		return nil, err
	}

	const batchTokens = 8192
	states, err := actstats.NewStates(ctx, m, windows.IDs, batchTokens)
	if err != nil {
		return nil, err
	}
	defer states.Free()

	inputs := map[string]Input{}
	for l := range m.Blocks() {
		if err := collect(ctx, m, l, states, len(windows.IDs), inputs, step); err != nil {
			return nil, fmt.Errorf("block %d: %w", l, err)
		}
		m.ReleaseBlock(l, false)
	}

	return fileOf(export, inputs, data, windows), nil
}

// ImportanceOf makes the importance matrix of what flowed into a model's matrices, by the names of their tensors.
func ImportanceOf(ctx context.Context, m *lm.Model, inputs map[string]Input, data string, windows corpus.Windows) (
	*imatrix.File, error,
) {
	export, err := exportOf(ctx, m)
	if err != nil {
		return nil, err
	}
	return fileOf(export, inputs, data, windows), nil
}

// fileOf gives inputs the names of a GGUF file's tensors.
func fileOf(e *ggufmodel.Export, inputs map[string]Input, data string, windows corpus.Windows) *imatrix.File {
	out := &imatrix.File{Datasets: []string{data}, Chunks: len(windows.IDs), ChunkSize: windows.SeqLen}
	for _, t := range e.Tensors {
		if e, ok := entryFor(t, inputs); ok {
			out.Entries = append(out.Entries, e)
		}
	}
	slices.SortFunc(out.Entries, func(a, b imatrix.Entry) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// InputsOf gives what an importance matrix says of the matrices of a model's blocks, by the names of their tensors.
// Entries that are missing are an error around [imatrix.ErrOther] that counts them and names the first, and so are
// entries of other sizes.
func InputsOf(ctx context.Context, m *lm.Model, f *imatrix.File) (map[string]Input, error) {
	export, err := exportOf(ctx, m)
	if err != nil {
		return nil, err
	}

	linears := map[string]lm.Linear{}
	for l := range m.Blocks() {
		for _, lin := range m.Linears(l) {
			linears[lin.Name] = lin
		}
	}

	inputs := map[string]Input{}
	var missing []string
	for _, t := range export.Tensors {
		e, ok := f.Entry(t.Name)
		for i, name := range t.Sources {
			lin, matrix := linears[name]
			if _, twice := inputs[name]; !matrix || twice || !t.Matrix {
				continue
			}
			if !ok {
				missing = append(missing, t.Name)
				continue
			}
			if inputs[name], err = inputOf(e, t, lin, i); err != nil {
				return nil, err
			}
		}
	}

	missing = slices.Compact(missing)
	missing = slices.DeleteFunc(missing, func(name string) bool { return complete(export, name, inputs) })
	if len(missing) > 0 {
		return nil, fmt.Errorf("%w: %d matrices of this model have no entry; the first is %q",
			imatrix.ErrOther, len(missing), missing[0])
	}
	return inputs, nil
}

// complete reports whether all that a tensor is made of has an entry under another name.
func complete(e *ggufmodel.Export, name string, inputs map[string]Input) bool {
	i := slices.IndexFunc(e.Tensors, func(t *ggufmodel.Target) bool { return t.Name == name })
	return !slices.ContainsFunc(e.Tensors[i].Sources, func(source string) bool {
		_, ok := inputs[source]
		return !ok
	})
}

// inputOf takes what an entry says of a tensor's source.
func inputOf(e *imatrix.Entry, t *ggufmodel.Target, lin lm.Linear, source int) (Input, error) {
	if e.Inputs != t.Cols() {
		if err := e.Split(t.Cols()); err != nil {
			return Input{}, err
		}
	}
	mats := 1
	if len(t.Shape) == 3 {
		mats = int(t.Shape[0])
	}
	n := e.Matrices()
	if e.Inputs != lin.In || n != mats && n != 1 {
		return Input{}, fmt.Errorf("%w: entry %q is of %d matrices of %d inputs, and the tensor has %d of %d",
			imatrix.ErrOther, e.Name, n, e.Inputs, mats, lin.In)
	}

	matrix := min(source*mats/len(t.Sources), n-1)
	in := Input{Squares: make([]float64, lin.In), Tokens: e.Count(matrix)}
	for j, s := range e.Sums[matrix*lin.In:][:lin.In] {
		in.Squares[j] = float64(s)
	}
	return in, nil
}

// exportOf plans the GGUF file of a model, whose names an importance matrix has.
func exportOf(ctx context.Context, m *lm.Model) (*ggufmodel.Export, error) {
	source, err := weights.Open(ctx, m.Path())
	if err != nil {
		return nil, err
	}
	defer source.Close()
	return source.Export(ggufmodel.ExportOptions{AllowExtra: true})
}

// Beginnings puts the token that begins a text at the beginning of every window, in the place of what is there, as
// llama.cpp does where a model's tokenizer adds one. It returns false, and does nothing, where it does not.
func Beginnings(ctx context.Context, m *lm.Model, windows *corpus.Windows) (bool, error) {
	export, err := exportOf(ctx, m)
	if err != nil {
		return false, err
	}

	first, ok := beginning(export.Metadata)
	if !ok {
		return false, nil
	}
	for _, ids := range windows.IDs {
		ids[0] = first
	}
	return true, nil
}

// beginning is the token that begins every text; false where there is none.
func beginning(meta gguf.Metadata) (int32, bool) {
	add, _ := meta.Get("tokenizer.ggml.add_bos_token")
	id, has := meta.Get("tokenizer.ggml.bos_token_id")
	n, whole := id.Uint()
	said, boolean := add.Bool()
	if !boolean { // without a word about it, files of SentencePiece's kind have it added, and others not
		model, _ := meta.Get("tokenizer.ggml.model")
		kind, _ := model.Text()
		said = kind == "llama"
	}
	return int32(n), has && whole && said
}

// Input is what flowed into a matrix.
type Input struct {
	Squares []float64 // Σ x² over tokens, for each input
	Tokens  int64     // that reached the matrix
}

// collect runs a block in place and keeps the sums of its matrices' inputs.
func collect(ctx context.Context, m *lm.Model, l int, states *actstats.States, sequences int, inputs map[string]Input,
	step func(Step),
) error {
	linears := m.Linears(l)
	stats, err := actstats.New(m.Device(), linears, actstats.SumSquares, sequences, 0)
	if err != nil {
		return err
	}
	defer stats.Free()

	err = states.Advance(ctx, l, stats.Hooks(), func(done, of int) {
		if step != nil {
			step(Step{Stage: Statistics, Block: l, Done: done, Of: of})
		}
	})
	if err == nil {
		err = stats.Err()
	}
	if err != nil {
		return err
	}

	for _, lin := range linears {
		in, err := stats.Of(lin)
		if err != nil {
			return err
		}
		one := Input{Squares: make([]float64, lin.In), Tokens: in.Tokens}
		for j, s := range in.SumSquares {
			one.Squares[j] = s * float64(in.Sequences)
		}
		inputs[lin.Name] = one
	}
	return nil
}

// entryFor gathers what flowed into the matrices that a tensor of the file is made of: one, or the experts of a block.
// Those that lie one above another in a matrix read the same.
func entryFor(t *ggufmodel.Target, inputs map[string]Input) (imatrix.Entry, bool) {
	if !t.Matrix || len(t.Sources) == 0 {
		return imatrix.Entry{}, false
	}

	mats := 1
	if len(t.Shape) == 3 {
		mats = int(t.Shape[0])
	}
	e := imatrix.Entry{Name: t.Name, Inputs: t.Cols()}
	for i := range mats {
		in, ok := inputs[t.Sources[i*len(t.Sources)/mats]]
		if !ok || len(in.Squares) != e.Inputs {
			return e, false
		}
		for _, s := range in.Squares {
			e.Sums = append(e.Sums, float32(s))
		}
		e.Counts = append(e.Counts, in.Tokens)
	}
	return e, true
}
