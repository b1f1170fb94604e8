package openmodel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/cli/clitest"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/merge/mediate"
)

// TestWeightsTextSaysAll: the text of weights names every expert that answers with its weight, and no other.
func TestWeightsTextSaysAll(t *testing.T) {
	names := []string{"sums", "news", "tales"}
	weight := rapid.SampledFrom([]float64{0, 0, 1, .5, .25, -1, 2})
	rapid.Check(t, func(t *rapid.T) {
		w := rapid.SliceOfN(weight, 3, 3).Draw(t, "weights")
		text := WeightsText(names, w)

		got := make([]float64, len(names))
		for part := range strings.SplitSeq(text, ",") {
			name, value, ok := strings.Cut(part, "=")
			switch i := slices.Index(names, name); {
			case name == "dense":
			case i < 0:
				t.Fatalf("%v: %s", w, text)
			case !ok:
				got[i] = 1
			default:
				if _, err := fmt.Sscan(value, &got[i]); err != nil {
					t.Fatal(err)
				}
			}
		}

		if !slices.Equal(got, w) {
			t.Errorf("%v is written %q", w, text)
		}
	})

	if got := WeightsText(names, []float64{1, .5, 0}); got != "sums=1,news=0.5" {
		t.Error(got)
	}
	if got := WeightsText(names, []float64{0, 1. / 3, 0}); got != "news=0.3333" {
		t.Error(got)
	}
}

// TestPoliciesThatAreNone: what is no number, or out of its range, is refused whatever else is right.
func TestPoliciesThatAreNone(t *testing.T) {
	for _, text := range []string{
		"certain=NaN", "cover=1.1", "soften=Inf", "soften=-1", "most=-1", "outside=", "outside", "Certain=1",
		"certain =1",
	} {
		p := mediate.Policy{}
		err := setPolicy(&p, text)
		if text == "outside=" || text == "outside" { // which is what it is without
			if err != nil || p.Outside != "" {
				t.Errorf("%s: %v", text, err)
			}
			continue
		}
		if !cli.IsUsage(err) {
			t.Errorf("%s: %+v, %v", text, p, err)
		}
	}

	p := mediate.Policy{Cover: .5}
	if err := setPolicy(&p, ""); err != nil || p.Cover != .5 {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestOrdinaryFolders: of a folder that is not mediated experts cannot be chosen, and there is nothing to ask them.
func TestOrdinaryFolders(t *testing.T) {
	base, err := filepath.Abs("../../../../testdata/nano/base")
	if err != nil {
		t.Fatal(err)
	}

	open := func(choice string) clitest.Said {
		return clitest.Run(t, func(j *cli.Job) (any, error) {
			m, err := Open(j, base, lm.Options{}, Options{Experts: choice})
			if err != nil {
				return nil, err
			}
			return m.Experts == nil && m.Adapter == nil, m.Close()
		})
	}

	for _, choice := range []string{"", Auto} {
		if said := open(choice); said.Code != 0 || said.Result != true {
			t.Errorf("%q: %+v", choice, said)
		}
	}
	for _, choice := range []string{"dense", "sums", Likeliest} {
		clitest.Refused(t, open(choice), "--experts "+choice+": "+base+" is no mediated folder")
	}

	var none *Experts
	text, err := none.EnterFor(t.Context(), nil)
	if err != nil || text != "" || none.Used() != nil || none.Router() != nil || none.Close() != nil {
		t.Error("no experts are none to ask")
	}
}

// TestIdentities: what acts on a model beside its weights changes its identity, and what does not act does not.
func TestIdentities(t *testing.T) {
	model := t.TempDir()
	adapter := t.TempDir()
	other := t.TempDir()
	write := func(dir, name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	id := func(o Options) string {
		t.Helper()
		parts, err := Identity(t.Context(), model, o)
		if err != nil {
			t.Fatal(err)
		}
		return cli.Fingerprint(parts...)
	}

	for _, dir := range []string{adapter, other} {
		write(dir, "adapter_config.json", "{}")
		write(dir, "adapter_model.safetensors", "weights")
		write(dir, "README.md", dir)
	}

	plain := id(Options{})
	if plain != id(Options{Experts: "sums"}) {
		t.Error("a choice of experts that are not there counts")
	}
	if with := id(Options{Adapter: adapter}); with == plain || with != id(Options{Adapter: other}) {
		t.Error("adapters of the same bytes, and none")
	}

	before := id(Options{Adapter: adapter})
	write(adapter, "adapter_config.json", `{"r": 8}`)
	if id(Options{Adapter: adapter}) == before {
		t.Error("the settings of an adapter do not count")
	}
	if _, err := Identity(
		t.Context(),
		model,
		Options{Adapter: filepath.Join(model, "none")},
	); !errors.Is(
		err,
		os.ErrNotExist,
	) {
		t.Error(err)
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Identity(ended, model, Options{Adapter: adapter}); !errors.Is(err, context.Canceled) {
		t.Errorf("after an interrupt: %v", err)
	}
	if OnlyWeights(model, filepath.Join(model, "config.json"), "/nowhere") != nil {
		t.Error("folders without a journal of edits have nothing beside their weights")
	}
}
