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

	inputs := map[string]input{}
	for l := range m.Blocks() {
		if err := collect(ctx, m, l, states, len(windows.IDs), inputs, step); err != nil {
			return nil, fmt.Errorf("block %d: %w", l, err)
		}
		m.ReleaseBlock(l, false)
	}

	out := &imatrix.File{Datasets: []string{data}, Chunks: len(windows.IDs), ChunkSize: windows.SeqLen}
	for _, t := range export.Tensors {
		if e, ok := entryFor(t, inputs); ok {
			out.Entries = append(out.Entries, e)
		}
	}
	slices.SortFunc(out.Entries, func(a, b imatrix.Entry) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
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

// input is what flowed into a matrix of a block.
type input struct {
	squares []float64 // sums over tokens
	tokens  int64
}

// collect runs a block in place and keeps the sums of its matrices' inputs.
func collect(ctx context.Context, m *lm.Model, l int, states *actstats.States, sequences int, inputs map[string]input,
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
		one := input{squares: make([]float64, lin.In), tokens: in.Tokens}
		for j, s := range in.SumSquares {
			one.squares[j] = s * float64(in.Sequences)
		}
		inputs[lin.Name] = one
	}
	return nil
}

// entryFor gathers what flowed into the matrices that a tensor of the file is made of: one, or the experts of a block.
// Those that lie one above another in a matrix read the same.
func entryFor(t *ggufmodel.Target, inputs map[string]input) (imatrix.Entry, bool) {
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
		if !ok || len(in.squares) != e.Inputs {
			return e, false
		}
		for _, s := range in.squares {
			e.Sums = append(e.Sums, float32(s))
		}
		e.Counts = append(e.Counts, in.tokens)
	}
	return e, true
}
