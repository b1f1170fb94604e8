package modelcmd

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/openmodel"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/mediate"
)

// recipe mediates two experts with a router.
const recipe = `merge_method: mediate
dtype: float32
base_model: NANO/base
models: [{model: NANO/news, name: news}, {model: NANO/sums, name: sums}]
parameters: {select: all, PARAMETERS, router: {prompts: {news: NANO/tasks/prompts/news.jsonl, sums: NANO/tasks/prompts/sums.jsonl}}}
`

// prompts that the router tells apart, cut to one length.
var prompts = []string{
	"The city where Nils Corvin was born is", "Question: 13 - 3 =\nAnswer: 10\n\nQuestion: 12",
	"Nils Corvin works as a painter in the city", "Question: 14 - 2 =\nAnswer: 12\n\n",
}

// TestForwardOfRoutedSequences: what comes out for each sequence is what it gets alone, in its place, whether
// one pass with several experts is cheaper (factors of low rank that are in no cache) or not possible (the
// token table is routed as well).
func TestForwardOfRoutedSequences(t *testing.T) {
	nano, err := filepath.Abs("../../../../testdata/nano")
	if err != nil {
		t.Fatal(err)
	}

	words, err := tokenizer.Load(filepath.Join(nano, "base"))
	if err != nil {
		t.Fatal(err)
	}

	var ids [][]int32
	for _, p := range prompts {
		text, err := words.Encode(p, tokenizer.EncodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, text[:6])
	}

	dev := cpu.New(cpu.Options{})
	defer dev.Close()

	for _, c := range []struct {
		parameters string
		together   bool
		tolerance  float64
	}{
		// sums of float32 products in another order, through a few layers; logits are of the order of 10
		{"keep: {lowrank: 2}", true, 2e-3},
		{"keep: 0.1, route_embeddings: true", false, 0},
	} {
		dir := filepath.Join(t.TempDir(), "mediated")
		r, err := merge.Parse("test.yaml",
			[]byte(strings.NewReplacer("NANO", nano, "PARAMETERS", c.parameters).Replace(recipe)))
		if err != nil {
			t.Fatal(err)
		}

		o := merge.Options{Device: dev, Mediator: mediate.Mediator()}
		if _, err := merge.Models(t.Context(), r, dir, o); err != nil {
			t.Fatal(err)
		}

		check(t, dev, dir, ids, c.together, c.tolerance)
	}
}

func check(t *testing.T, dev kernels.Device, dir string, ids [][]int32, together bool, tolerance float64) {
	t.Helper()
	m, err := lm.Load(t.Context(), dir, dev, lm.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()

	j := &cli.Job{Ctx: t.Context()}
	experts, err := openmodel.OpenExperts(j, m, openmodel.Likeliest)
	if err != nil {
		t.Fatal(err)
	}
	defer experts.Close()

	groups, err := experts.Groups(t.Context(), ids)
	if err != nil || len(groups) != 2 {
		t.Fatalf("%d groups, want 2: %v", len(groups), err)
	}

	if got, err := experts.Together(ids, groups); got != together || err != nil {
		t.Errorf("%s: together %v, want %v: %v", dir, got, together, err)
	}

	o := lm.ForwardOptions{Logits: true, Hidden: true}
	if _, err := routed(j, m, experts, ids, o, true); err == nil || !strings.Contains(err.Error(), "--grad") {
		t.Errorf("gradient of two sets of weights: %v", err)
	}

	all, err := routed(j, m, experts, ids, o, false)
	if err != nil {
		t.Fatal(err)
	}

	same := func(what string, a, b []float32) {
		for i := range b {
			if !(math.Abs(float64(a[i]-b[i])) <= tolerance) {
				t.Fatalf("%s, element %d: %v, alone %v", what, i, a[i], b[i])
			}
		}
	}

	loss := 0.0
	for i, seq := range ids {
		if _, err := experts.Enter(t.Context(), seq); err != nil {
			t.Fatal(err)
		}

		one, err := m.Forward(t.Context(), [][]int32{seq}, o)
		if err != nil {
			t.Fatal(err)
		}

		for p := range seq {
			same("logits", all.Logits.RowF32(i*len(seq)+p), one.Logits.RowF32(p))
			for h := range one.Hidden {
				same("hidden", all.Hidden[h].RowF32(i*len(seq)+p), one.Hidden[h].RowF32(p))
			}
		}

		if tolerance == 0 && !slices.Equal(all.LossPerToken[i], one.LossPerToken[0]) {
			t.Errorf("losses of sequence %d: %v, alone %v", i, all.LossPerToken[i], one.LossPerToken[0])
		}

		loss += one.Loss / float64(len(ids))
	}

	// the order of additions
	if want := len(ids) * (len(ids[0]) - 1); all.Counted != want || math.Abs(all.Loss-loss) > tolerance+1e-12 {
		t.Errorf("loss %v over %d, want %v over %d", all.Loss, all.Counted, loss, want)
	}
}
