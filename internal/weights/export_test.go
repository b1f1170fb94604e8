package weights_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/ggufmodel"
	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/lm/tokenizer"
)

// refused lists the families whose configurations say what llama.cpp has no word for, by the word in the error.
var refused = map[string]string{
	"deepseek_v3": "MScale 0.8", "gemma3": "scales of attention", "glm": "attn_q.weight",
	"gpt_oss":       "limit of the gates (swiglu_limit) 2",
	"glm4_moe_lite": "has a glm4_moe_lite",
}

// TestExport: a folder, written as a GGUF file and opened again, has the same tensors bit for bit, under the same names
// where experts have tensors of their own.
func TestExport(t *testing.T) {
	folders, err := filepath.Glob("../../lm/testdata/families/*")
	if err != nil || len(folders) < 20 {
		t.Fatal("no checkpoints", err)
	}
	for _, folder := range append(folders, "../../testdata/nano/base") {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			src, err := weights.Open(t.Context(), folder)
			if err != nil {
				t.Fatal(err)
			}
			defer src.Close()

			out := filepath.Join(t.TempDir(), "model.gguf")
			plan, err := src.Export(ggufmodel.ExportOptions{})
			if word, ok := refused[filepath.Base(folder)]; ok {
				if !errors.Is(err, ggufmodel.ErrUnwritable) || !strings.Contains(err.Error(), word) {
					t.Error(err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			o := ggufmodel.WriteOptions{Read: src.RowReader(plan), Window: 64}
			if err := plan.Write(t.Context(), out, o); err != nil {
				t.Fatal(err)
			}

			back, err := weights.Open(t.Context(), out)
			if err != nil {
				t.Fatal(err)
			}
			defer back.Close()
			compare(t, src, back, plan)
		})
	}
}

// compare compares parameters, read as the plan of the first source names them.
func compare(t *testing.T, src, back *weights.Source, plan *ggufmodel.Export) {
	t.Helper()
	again, err := back.Export(ggufmodel.ExportOptions{})
	if err != nil {
		t.Fatal(err)
	}

	for _, target := range plan.Tensors {
		for _, name := range target.Sources {
			want, have := whole(t, src, plan, name), whole(t, back, again, name)
			if !slices.Equal(want, have) {
				t.Errorf("%s: other values in %s", name, target.Name)
			}
		}
	}
	if len(again.Tensors) != len(plan.Tensors) {
		t.Errorf("%d tensors the second time, %d the first", len(again.Tensors), len(plan.Tensors))
	}
	// What the other architecture does not say.
	said := []string{"general.name", "granitemoe.rope.scaling.finetuned"}
	for _, e := range plan.Metadata {
		if v, _ := again.Metadata.Get(e.Key); v != e.Value && !slices.Contains(said, e.Key) {
			t.Errorf("%s: %v the second time, %v the first", e.Key, v, e.Value)
		}
	}
}

// whole reads a parameter by its rows.
func whole(t *testing.T, s *weights.Source, plan *ggufmodel.Export, name string) []float32 {
	t.Helper()
	part := plan.Stored(name)
	shape := part.Shape
	if shape == nil {
		info, _ := s.Info(name)
		shape = info.Shape
	}
	rows, cols := 1, int(shape[len(shape)-1])
	for _, d := range shape[:len(shape)-1] {
		rows *= int(d)
	}

	values := make([]float32, rows*cols)
	if err := s.RowReader(plan)(name, values, 0, rows); err != nil {
		t.Fatal(err)
	}
	if dtype.NonFinite(values) >= 0 {
		t.Fatal(name, "is not finite")
	}

	return values
}

// journal notes tensors in memory.
type journal struct{ noted []string }

var errStop = errors.New("stopped")

func (j *journal) Done(name string) (bool, error) { return slices.Contains(j.noted, name), nil }

func (j *journal) Note(names []string) error {
	j.noted = append(j.noted, names...)
	return nil
}

// TestExportContinues: a run that ends early is continued by one with the same journal, which reads nothing again that
// was noted, and the file is that of a run without a fault.
func TestExportContinues(t *testing.T) {
	src, err := weights.Open(t.Context(), "../../lm/testdata/families/granitemoeshared")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	plan, err := src.Export(ggufmodel.ExportOptions{FileType: 32})
	if err != nil {
		t.Fatal(err)
	}

	folder := t.TempDir()
	half := func(target *ggufmodel.Target) (ggufmodel.Encoding, error) {
		if target.Matrix {
			return ggufmodel.Encoding{Type: gguf.BF16}, nil
		}
		return ggufmodel.Encoding{Type: gguf.F32}, nil
	}
	straight := filepath.Join(folder, "straight.gguf")
	straightly := ggufmodel.WriteOptions{Read: src.RowReader(plan), As: half}
	if err := plan.Write(t.Context(), straight, straightly); err != nil {
		t.Fatal(err)
	}

	broken := filepath.Join(folder, "broken.gguf")
	j := &journal{}
	o := ggufmodel.WriteOptions{Read: src.RowReader(plan), As: half, Journal: j, Threads: 1}
	reads := 0
	o.Read = func(name string, dst []float32, first, n int) error {
		if reads++; reads > 12 {
			return errStop
		}
		return src.RowReader(plan)(name, dst, first, n)
	}
	if err := plan.Write(t.Context(), broken, o); !errors.Is(err, errStop) {
		t.Fatal(err)
	}
	if _, err := os.Stat(broken); err == nil {
		t.Fatal("an unfinished file has its name")
	}

	noted := slices.Clone(j.noted)
	if len(noted) < 3 {
		t.Errorf("%d tensors were noted", len(noted))
	}
	o.Read = func(name string, dst []float32, first, n int) error {
		for _, target := range plan.Tensors {
			if slices.Contains(noted, target.Name) && slices.Contains(target.Sources, name) &&
				!strings.Contains(name, "input_linear") { // of which two tensors are made
				t.Errorf("%s is read again", name)
			}
		}
		return src.RowReader(plan)(name, dst, first, n)
	}
	if err := plan.Write(t.Context(), broken, o); err != nil {
		t.Fatal(err)
	}

	want, err := os.ReadFile(straight)
	if err != nil {
		t.Fatal(err)
	}
	if have, err := os.ReadFile(broken); err != nil || string(have) != string(want) {
		t.Error("the file differs from that of one run", err)
	}
}

// TestExportTokenizer: a text has the same tokens by the folder's tokenizer and by that of the file, and back again.
func TestExportTokenizer(t *testing.T) {
	const folder = "../../testdata/nano/base"
	src, err := weights.Open(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	plan, err := src.Export(ggufmodel.ExportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "model.gguf")
	if err := plan.Write(t.Context(), out, ggufmodel.WriteOptions{Read: src.RowReader(plan)}); err != nil {
		t.Fatal(err)
	}

	mine, err := tokenizer.Load(folder)
	if err != nil {
		t.Fatal(err)
	}
	files, err := tokenizer.Load(out)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../testdata/nano/text/test.txt")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, " caf\u00e9 \u4e2d\u6587 12345 \t\n\n <s> </s> <|endoftext|>"...)

	for _, o := range []tokenizer.EncodeOptions{{}, {NoSpecial: true}} {
		want, err := mine.Encode(string(text), o)
		if err != nil {
			t.Fatal(err)
		}
		have, err := files.Encode(string(text), o)
		if err != nil || !slices.Equal(have, want) {
			t.Errorf("%v: %d tokens, %v, expected %d", o, len(have), err, len(want))
		}
	}
}

// TestExportEnds: a context that ends leaves nothing.
func TestExportEnds(t *testing.T) {
	src, err := weights.Open(t.Context(), "../../testdata/nano/base")
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	plan, err := src.Export(ggufmodel.ExportOptions{})
	if err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	folder := t.TempDir()
	err = plan.Write(ctx, filepath.Join(folder, "model.gguf"), ggufmodel.WriteOptions{
		Read: func(name string, dst []float32, first, n int) error {
			cancel()
			return src.RowReader(plan)(name, dst, first, n)
		},
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
}
