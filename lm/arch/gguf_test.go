package arch

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

// described gives the architectures that files of llama.cpp spell.
func described(t *testing.T) []*Arch {
	t.Helper()
	var list []*Arch
	for _, name := range Known() {
		a, err := Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		if a.GGUF != nil {
			list = append(list, a)
		}
	}
	if len(list) < 25 {
		t.Fatalf("%d architectures", len(list))
	}
	return list
}

func TestGGUFSources(t *testing.T) {
	for _, a := range described(t) {
		for i := range a.Tensors {
			sources := a.Sources(&a.Tensors[i])
			if len(sources) == 0 {
				t.Errorf("%s: nothing is known of where files have %s", a.ModelType, a.Tensors[i].Name)
			}
			for _, s := range sources {
				checkSource(t, a, &a.Tensors[i], s)
			}
		}

		for key := range a.GGUF.Tensors {
			role, _, _ := strings.Cut(key, "/")
			if !slices.ContainsFunc(a.Tensors, func(x Tensor) bool { return string(x.Role) == role }) {
				t.Errorf("%s: a source for the role %s, which no tensor has", a.ModelType, key)
			}
		}
	}
}

func checkSource(t *testing.T, a *Arch, x *Tensor, s GGUFSource) {
	t.Helper()
	if s.Alternate && (len(s.Parts) < 2 || a.Gate != ClampedGate) {
		t.Errorf("%s: %s: parts that take turns", a.ModelType, x.Name)
	}
	for _, p := range s.Parts {
		if strings.Contains(p.Name, "{l}") != x.PerBlock() {
			t.Errorf("%s: %s in %s: only one has the number of a block", a.ModelType, x.Name, p.Name)
		}
		if !slices.Contains([]string{"", "q", "k", "v", "gate", "up"}, p.Rows) {
			t.Errorf("%s: %s: unknown rows %q of %s", a.ModelType, x.Name, p.Rows, p.Name)
		}
		if strings.ContainsAny(p.Name, " #'+~") || GGUFIgnores(p.Name) {
			t.Errorf("%s: %s: %q is no name", a.ModelType, x.Name, p.Name)
		}
	}
}

func TestGGUFFields(t *testing.T) {
	for _, a := range described(t) {
		for field, k := range a.GGUF.Fields {
			if !slices.Contains(Fields(), field) {
				t.Errorf("%s: unknown field %q", a.ModelType, field)
			}
			if _, ok := a.Config[field]; !ok {
				t.Errorf("%s: %s is not in the configuration", a.ModelType, field)
			}
			if k.Key == "" && (k.Also != "" || k.Minus != "" || k.Cases != nil) {
				t.Errorf("%s: %s has rules for a key that it does not name", a.ModelType, field)
			}
		}

		// What a configuration must have, a file must have too.
		for field, k := range a.Config {
			g, ok := a.GGUFField(field)
			if k.Key != "" && k.Default == nil && field != "vocab" && !ok && len(k.Also) == 0 &&
				!slices.Contains([]string{"rope_layers", "dense_layers", "mlp_types"}, field) {
				t.Errorf("%s: nothing is known of where files have %s", a.ModelType, field)
			}
			if ok && g.Required && g.Absent != nil {
				t.Errorf("%s: %s is required, and its absence means something", a.ModelType, field)
			}
		}

		for _, rules := range []map[string]json.RawMessage{a.GGUF.Values, a.GGUF.Each} {
			for key := range rules {
				if slices.ContainsFunc(Fields(), func(f string) bool { return a.Config[f].Key == key && key != "" }) {
					t.Errorf("%s: %s is a field", a.ModelType, key)
				}
			}
		}
	}
}

// TestGGUFNames: architectures of one name are told apart, and every name leads to one of them.
func TestGGUFNames(t *testing.T) {
	for _, name := range GGUFNames() {
		list, err := ByGGUF(name)
		if err != nil || len(list) == 0 {
			t.Fatal(name, err)
		}

		var conditions []string
		for _, a := range list {
			if len(list) > 1 && a.GGUF.When == "" || slices.Contains(conditions, a.GGUF.When) {
				t.Errorf("%s: %s is not told apart", name, a.ModelType)
			}
			conditions = append(conditions, a.GGUF.When)
		}
	}

	_, err := ByGGUF("mamba9")
	if !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "command-r, ") {
		t.Error(err)
	}
}

// TestGGUFWrites: what files are written with is known: keys that a field of the table has, or that say what they are.
func TestGGUFWrites(t *testing.T) {
	for _, a := range described(t) {
		seen := map[string]bool{}
		for _, w := range a.GGUFWrites() {
			if seen[w.Key] || strings.ContainsAny(w.Key, " ~?=*") || w.Unless != nil && !json.Valid(w.Unless) {
				t.Errorf("%s: %q", a.ModelType, w.Key)
			}
			seen[w.Key] = true
		}
		if !a.GGUFWritable() {
			continue
		}

		// What a file must have is written.
		for field, k := range a.Config {
			if g, ok := a.GGUFField(field); ok && g.Required && k.Key != "" && !seen[g.Key] {
				t.Errorf("%s: files must have %s, and are written without it", a.ModelType, g.Key)
			}
		}
	}
}

// TestGGUFWritten: the way in which a tensor is written is the marked one, where its condition holds.
func TestGGUFWritten(t *testing.T) {
	text := []byte(`{"model_type": "falcon", "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, ` +
		`"num_attention_heads": 2, "num_kv_heads": 1, "new_decoder_architecture": true}`)
	for name, config := range map[string]string{
		"blk.{l}.attn_norm_2.weight": string(text),
		"blk.{l}.attn_norm.weight":   strings.Replace(string(text), "true", "false", 1),
	} {
		c, err := ParseConfig("config.json", []byte(config))
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(c.Arch.Tensors, func(x Tensor) bool { return x.Role == AttnNorm && c.Holds(x.When, 0) })
		if s, ok := c.GGUFWritten(&c.Arch.Tensors[i], 0); !ok || s.Parts[0].Name != name {
			t.Errorf("%v, %v, expected %s", s, ok, name)
		}
	}
}
