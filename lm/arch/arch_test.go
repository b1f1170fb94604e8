package arch

import (
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every table uses only the vocabulary of the package, so that a typing mistake cannot change a model silently.
func TestTablesAreConsistent(t *testing.T) {
	for _, name := range Known() {
		t.Run(name, func(t *testing.T) {
			a, err := Lookup(name)
			if err != nil {
				t.Fatal(err)
			}

			if a.ModelType != name || a.Version != Version || len(a.Classes) == 0 {
				t.Errorf("head of the table: %q, version %d, classes %v", a.ModelType, a.Version, a.Classes)
			}

			for field, k := range a.Config {
				if !slices.Contains(Fields(), field) {
					t.Errorf("unknown field %q", field)
				}
				if k.Key == "" && k.Default == nil {
					t.Errorf("field %q has neither key nor value", field)
				}
			}

			checkTensors(t, a)
			checkStyle(t, a)
		})
	}
}

func checkTensors(t *testing.T, a *Arch) {
	t.Helper()
	seen := map[string]string{}
	for _, e := range a.Tensors {
		// A tensor may have two roles, of which a configuration has one.
		if when, twice := seen[e.Name]; twice && when != "!"+e.When && "!"+when != e.When {
			t.Errorf("%s: twice", e.Name)
		}

		seen[e.Name] = e.When

		vector := e.Role == Sinks || e.Role == RouterOffset // which go without a suffix
		if e.Part != "" && e.Part != "bias" ||
			!vector && !strings.HasSuffix(e.Name, map[string]string{"": ".weight", "bias": ".bias"}[e.Part]) {
			t.Errorf("%s: part %q", e.Name, e.Part)
		}

		for when := range strings.SplitSeq(e.When, " & ") {
			if when = strings.TrimPrefix(when, "!"); when != "" && !slices.Contains(Conditions(), when) {
				t.Errorf("%s: unknown condition %q", e.Name, e.When)
			}
		}

		for _, d := range e.Shape {
			if !slices.Contains(Dims(), d) {
				t.Errorf("%s: unknown dimension %q", e.Name, d)
			}
		}

		if want := map[bool]int{true: 2, false: 1}[e.Role.Linear() && e.Part == ""]; e.Role.Linear() &&
			len(e.Shape) != want {
			t.Errorf("%s: shape %v", e.Name, e.Shape)
		}

		if e.Role.Linear() != (e.PerBlock() && e.Role.Linear()) || e.PerExpert() && !e.PerBlock() {
			t.Errorf("%s: a matrix of a block is not in a block", e.Name)
		}
		if !strings.HasPrefix(e.Name, a.OptionalPrefix) && e.Role != Head {
			t.Errorf("%s: lacks the optional prefix", e.Name)
		}
	}

	for _, r := range []Role{Embed, O, Down, FinalNorm} {
		if !has(a, r) {
			t.Errorf("no tensor of role %s", r)
		}
	}

	if !has(a, AttnNorm) && !has(a, AttnPostNorm) || has(a, KVA) != (a.Config["kv_rank"].Key != "") {
		t.Error("norms, or the matrices of latent attention, are not what the fields say")
	}
	if a.Config["residual_multiplier"].Key != "" && (has(a, AttnPostNorm) || a.Config["parallel"].Key != "") {
		t.Error("branches that are scaled cannot be normed or parallel as well")
	}

	if has(a, QKV) == has(a, Q) || has(a, QKV) != (a.QKV != "") || has(a, QNorm) != (a.QKNorm != "") {
		t.Error("projections, their layout and their norms disagree")
	}
}

func checkStyle(t *testing.T, a *Arch) {
	t.Helper()

	if !slices.Contains([]Norm{RMS, RMSPlusOne, LayerNorm}, a.Norm) ||
		!slices.Contains([]QKNorm{"", PerHead, PerRow, OwnHead}, a.QKNorm) ||
		!slices.Contains([]QKVLayout{"", Blocks, HeadBlocks, Groups}, a.QKV) ||
		!slices.Contains([]Window{"", AllBlocks, EvenBlocks, FromBlock, Pattern, Unrotated}, a.Window) ||
		!slices.Contains([]RopeRule{"", RopeSliding, RopeListed}, a.RopeBlocks) ||
		!slices.Contains([]RouterKind{"", Sigmoid}, a.Router) ||
		!slices.Contains([]GateStyle{"", ClampedGate}, a.Gate) ||
		!slices.Contains([]Scale{"", SqrtHidden}, a.EmbedScale) {
		t.Errorf("unknown style: %q %q %q %q %q", a.Norm, a.QKNorm, a.QKV, a.Window, a.EmbedScale)
	}

	if a.Rope != nil && a.Rope.Style != "half" && a.Rope.Style != "interleaved" {
		t.Errorf("unknown rope style %q", a.Rope.Style)
	}
	if (a.Rope == nil) != has(a, Positions) {
		t.Error("positions are neither rotated nor learned, or both")
	}

	for _, b := range a.Buffers {
		if strings.Count(b, "{l}") != 1 {
			t.Errorf("buffer %q", b)
		}
	}
}

func TestLookupUnknownListsTheKnown(t *testing.T) {
	_, err := Lookup("mamba")
	if !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "llama") ||
		!strings.Contains(err.Error(), "qwen3_moe") {
		t.Fatalf("error %v", err)
	}
}

func TestBuffers(t *testing.T) {
	a, err := Lookup("gpt2")
	if err != nil {
		t.Fatal(err)
	}

	for name, want := range map[string]bool{
		"transformer.h.0.attn.bias": true, "h.11.attn.masked_bias": true, "transformer.h.x.attn.bias": false,
		"transformer.h..attn.bias": false, "transformer.h.0.attn.c_attn.bias": false, "": false,
	} {
		if got := a.IsBuffer(name); got != want {
			t.Errorf("IsBuffer(%q) = %v", name, got)
		}
	}
}

func TestExpand(t *testing.T) {
	if got := Expand("a.{l}.b.{e}.c", 12, 3); got != "a.12.b.3.c" {
		t.Fatal(got)
	}
}

// Rules and ignored keys are plain names, and no key is both read and ignored.
func TestKeysDoNotCollide(t *testing.T) {
	c, err := loadCommon()
	if err != nil {
		t.Fatal(err)
	}

	plain := regexp.MustCompile(`^[a-zA-Z0-9_]+$`)
	for _, name := range Known() {
		a, err := Lookup(name)
		if err != nil {
			t.Fatal(err)
		}

		ignored := append(slices.Clone(c.IgnoreKeys), a.IgnoreKeys...)
		for field, k := range a.Config {
			if slices.Contains(ignored, k.Key) {
				t.Errorf("%s: %s is read from %q, which is ignored", name, field, k.Key)
			}
		}

		for _, r := range append(slices.Clone(c.Refuse), a.Refuse...) {
			if !plain.MatchString(r.Key) || slices.Contains(ignored, r.Key) {
				t.Errorf("%s: rule for %q", name, r.Key)
			}

			for _, v := range r.Allow {
				if !json.Valid(v) {
					t.Errorf("%s: rule for %q allows %q", name, r.Key, v)
				}
			}
		}
	}
}

// has reports whether an architecture has a tensor of the role, whatever its condition.
func has(a *Arch, r Role) bool {
	return slices.ContainsFunc(a.Tensors, func(t Tensor) bool { return t.Role == r })
}
