package lora

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/safetensors"
)

// The same work in two folders, whose adapters name their base by another path each, gives the same bytes.
func TestFoldedBytesDoNotDependOnPlaces(t *testing.T) {
	var outs [2][]byte
	var jobs [2]string
	for i := range outs {
		work := t.TempDir()
		base := filepath.Join(work, "base")
		if err := os.CopyFS(base, os.DirFS(filepath.Join("..", "testdata", "nano", "base"))); err != nil {
			t.Fatal(err)
		}

		other := filepath.Join(work, "other")
		adapter := filepath.Join(work, "adapter")
		out := filepath.Join(work, "out")
		tuned(t, base, other, 3)

		if _, err := Extract(t.Context(), base, other, adapter,
			ExtractOptions{Rank: 4, Targets: []string{"q_proj"}}); err != nil {
			t.Fatal(err)
		}

		if _, err := Fold(t.Context(), base, adapter, out, FoldOptions{}); err != nil {
			t.Fatal(err)
		}

		f, err := safetensors.Open(filepath.Join(out, "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}

		jobs[i] = f.Metadata()["compress.job"]
		f.Close()
		if outs[i], err = os.ReadFile(filepath.Join(out, "model.safetensors")); err != nil {
			t.Fatal(err)
		}
	}

	if jobs[0] == "" || jobs[0] != jobs[1] || !bytes.Equal(outs[0], outs[1]) {
		t.Errorf("jobs %q and %q", jobs[0], jobs[1])
	}
}

// What an adapter computes from counts in the identity of the work of folding it.
func TestSettingsCountInTheJobOfAFold(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "adapter_model.safetensors"), []byte("weights"), 0o666); err != nil {
		t.Fatal(err)
	}

	seen := map[string]string{}
	for _, text := range []string{
		`{"peft_type":"LORA","r":8,"lora_alpha":16}`,
		`{"peft_type":"LORA","r":8,"lora_alpha":16.5}`, `{"peft_type":"LORA","r":9}`,
	} {
		for _, base := range []string{`"/a/base"`, `"b"`, `null`} {
			config := text[:len(text)-1] + `,"base_model_name_or_path":` + base + `}`
			if err := os.WriteFile(filepath.Join(dir, "adapter_config.json"), []byte(config), 0o666); err != nil {
				t.Fatal(err)
			}

			sum, err := contents(dir)
			if err != nil {
				t.Fatal(err)
			}

			job := foldJob("base", sum, FoldOptions{})
			if was, ok := seen[job]; ok && was != text {
				t.Errorf("%s and %s are the same job", was, text)
			}

			seen[job] = text
		}
	}

	if len(seen) != 3 {
		t.Errorf("%d jobs, want 3", len(seen))
	}
}
