package quantize

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/lm/corpus"
)

// TestTypes: in a folder of several schemes every matrix has the values that a folder of its scheme alone has, the
// configuration names the matrices that are not as most, and later rules count.
func TestTypes(t *testing.T) {
	rules := []TypeRule{
		{Pattern: "*.down_proj", Type: "w4a16"},
		{Pattern: "down_proj", Type: "w8a16"},
		{Pattern: "model.layers.0.self_attn.k_proj", Type: "fp8_dynamic"},
		{Pattern: "v_proj", Type: "mxfp4a16"},
	}
	schemeOf := func(name string) string {
		switch {
		case strings.HasSuffix(name, ".down_proj.weight"):
			return "w8a16"
		case name == "model.layers.0.self_attn.k_proj.weight":
			return "fp8_dynamic"
		case strings.HasSuffix(name, ".v_proj.weight"):
			return "mxfp4a16"
		}
		return "w4a16"
	}

	run := func(scheme string, rules []TypeRule) (*weights.Source, *Report, string) {
		out := filepath.Join(t.TempDir(), "out")
		o := options(t, scheme, RTN, out)
		o.Types = rules
		r, err := Model(ctx, open(t, nano, 2), corpus.Windows{}, o)
		if err != nil {
			t.Fatal(err)
		}
		src, err := weights.Open(ctx, out)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = src.Close() })
		return src, r, out
	}

	mixed, r, out := run("w4a16", rules)
	alone := map[string]*weights.Source{}
	for _, m := range r.Matrices {
		s := schemeOf(m.Name)
		if alone[s] == nil {
			alone[s], _, _ = run(s, nil)
		}
		if !slices.Equal(values(t, mixed, m.Name), values(t, alone[s], m.Name)) {
			t.Errorf("%s differs from that of %s", m.Name, s)
		}
		if m.Scheme != s {
			t.Errorf("%s is reported as %q, want %q", m.Name, m.Scheme, s)
		}
	}
	if len(alone) != 4 {
		t.Fatalf("%d schemes", len(alone))
	}
	if !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.Contains(n, "vLLM") }) {
		t.Errorf("nothing is said of the values' other scheme: %q", r.Notes)
	}

	var config struct {
		Quantization struct {
			Format string
			Groups map[string]struct {
				Targets []string
				Format  string
			} `json:"config_groups"`
		} `json:"quantization_config"`
	}
	text, err := os.ReadFile(filepath.Join(out, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	q := config.Quantization
	if q.Format != mixedFormat || len(q.Groups) != 4 || !slices.Equal(q.Groups["group_0"].Targets, []string{"Linear"}) {
		t.Errorf("%+v", q)
	}
	for name, g := range q.Groups {
		if g.Format == "" {
			t.Errorf("%s has no format", name)
		}
	}

	// one layout: no formats of groups, which readers before 0.12 do not know
	_, _, out = run("w4a16", rules[1:2])
	if text, err = os.ReadFile(filepath.Join(out, "config.json")); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), `"format": "pack-quantized"`) || strings.Contains(string(text), mixedFormat) {
		t.Errorf("%s", text)
	}
}

// TestTypesRefused: rules that name nothing, schemes of files, unknown ones, and layouts that cannot stand together.
func TestTypesRefused(t *testing.T) {
	for _, c := range []struct {
		scheme string
		rule   TypeRule
		want   error
	}{
		{"w4a16", TypeRule{"down", "w8a16"}, ErrOptions},
		{"w4a16", TypeRule{"down_proj", "q8_0"}, ErrOptions},
		{"w4a16", TypeRule{"down_proj", "w3a16"}, ErrScheme},
		{"w4a16", TypeRule{"down_proj", "gptq"}, ErrOptions},
		{"gptq", TypeRule{"down_proj", "w8a16"}, ErrOptions},
		{"w4a16", TypeRule{"[", "w8a16"}, ErrOptions},
		{"w4a16", TypeRule{"", "w8a16"}, ErrOptions},
	} {
		o := options(t, c.scheme, RTN, filepath.Join(t.TempDir(), "out"))
		o.Types = []TypeRule{c.rule}
		if err := Check(ctx, open(t, nano, 1), corpus.Windows{}, o); !errors.Is(err, c.want) {
			t.Errorf("%s with %+v: %v", c.scheme, c.rule, err)
		}
	}
}
