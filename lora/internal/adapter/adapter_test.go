package adapter

import (
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
)

// model lists the modules of a small model with a head of its own, or a tied one.
func model(tied bool) []Module {
	table := Module{Path: "model.embed_tokens", Tensor: "wte", Block: -1, Role: arch.Embed, In: 6, Out: 4, Table: true}
	list := []Module{table}
	for l, number := range []string{"0", "1", "10"} {
		for name, role := range map[string]arch.Role{"self_attn.q_proj": arch.Q, "mlp.up_proj": arch.Up} {
			path := "model.layers." + number + "." + name
			list = append(list, Module{Path: path, Tensor: path + ".weight", Block: l, Role: role, In: 4, Out: 4})
		}
	}

	slices.SortFunc(list[1:], func(a, b Module) int { return strings.Compare(a.Path, b.Path) })
	head := Module{Path: "lm_head", Tensor: "lm_head.weight", Block: -1, Role: arch.Head, In: 4, Out: 6}
	if tied {
		head.Tensor, head.Tied = "wte", true
	}
	return append(list, head)
}

// short gives the paths of modules without what all have.
func short(list []Module) string {
	var names []string
	for _, m := range list {
		n := strings.NewReplacer("model.layers.", "", "self_attn.", "", "mlp.", "", "model.", "").Replace(m.Path)
		names = append(names, n)
	}
	return strings.Join(names, " ")
}

// TestFits: which modules a configuration adapts, by PEFT's rules.
func TestFits(t *testing.T) {
	names := func(s ...string) Match { return Match{Names: s} }
	for _, c := range []struct {
		c         Config
		want      string
		unmatched string
	}{
		{c: Config{Targets: Match{All: true}}, want: "0.up_proj 0.q_proj 1.up_proj 1.q_proj 10.up_proj 10.q_proj"},
		{c: Config{Targets: names("q_proj")}, want: "0.q_proj 1.q_proj 10.q_proj"},
		{c: Config{Targets: names("proj")}, want: "", unmatched: "proj"}, // only behind a dot
		{c: Config{Targets: names("layers.1.self_attn.q_proj")}, want: "1.q_proj"},
		{c: Config{Targets: names("lm_head", "embed_tokens")}, want: "embed_tokens lm_head"},
		{c: Config{Targets: Match{Regex: `.*\.1\.self_attn.*`}}, want: "1.q_proj"},
		{c: Config{Targets: Match{Regex: `self_attn`}}, want: ""}, // of the whole path
		{c: Config{Targets: names("q_proj"), Layers: []int{1}}, want: "1.q_proj"},
		{c: Config{Targets: names("q_proj", "up_proj"), Layers: []int{10, 7}}, want: "10.up_proj 10.q_proj"},
		{c: Config{Targets: names("q_proj"), Layers: []int{0}, LayersPattern: []string{"layers"}}, want: "0.q_proj"},
		{c: Config{Targets: names("q_proj"), Layers: []int{0}, LayersPattern: []string{"h"}}, want: ""},
		// a restriction to some blocks does not hold for whole paths
		{c: Config{Targets: names("model.layers.1.self_attn.q_proj"), Layers: []int{0}}, want: "1.q_proj"},
		{c: Config{Targets: names("q_proj"), Exclude: names("1.self_attn.q_proj")}, want: "0.q_proj 10.q_proj"},
		{c: Config{Targets: names("q_proj"), Exclude: Match{Regex: `.*\.\d\..*`}}, want: "10.q_proj"},
		{c: Config{Targets: Match{All: true}, WholeModules: []string{"mlp"}}, want: "0.q_proj 1.q_proj 10.q_proj"},
		{
			c:    Config{Targets: Match{All: true}, WholeModules: []string{"layers.1"}},
			want: "0.up_proj 0.q_proj 10.up_proj 10.q_proj",
		},
		{c: Config{Targets: names("q_proj", "k_proj")}, want: "0.q_proj 1.q_proj 10.q_proj", unmatched: "k_proj"},
		// what is excluded is no mistake in the name
		{c: Config{Targets: names("q_proj"), Exclude: names("q_proj")}, want: ""},
	} {
		modules := model(false)
		list, unmatched, err := c.c.Fits(modules)
		order := func(m Module) int {
			return slices.IndexFunc(modules, func(o Module) bool { return o.Path == m.Path })
		}
		if err != nil || strings.Join(unmatched, " ") != c.unmatched {
			t.Errorf("%+v: unmatched %q, %v", c.c, unmatched, err)
		}
		if !slices.IsSortedFunc(list, func(a, b Module) int { return order(a) - order(b) }) {
			t.Errorf("%+v: not in the order of the model", c.c)
		}

		got, want := strings.Fields(short(list)), strings.Fields(c.want)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%+v: %q, want %q", c.c, got, want)
		}
	}
}

// TestChosenRefuses: entries without a module, settings that leave none, and patterns that are none.
func TestChosenRefuses(t *testing.T) {
	names := func(s ...string) Match { return Match{Names: s} }
	for what, c := range map[string]struct {
		c    Config
		want error
	}{
		"an unknown name":      {Config{Targets: names("q_proj", "k_proj")}, ErrTarget},
		"nothing left":         {Config{Targets: names("q_proj"), Exclude: names("q_proj")}, ErrTarget},
		"a broken regex":       {Config{Targets: Match{Regex: "("}}, ErrConfig},
		"a broken exclusion":   {Config{Targets: names("q_proj"), Exclude: Match{Regex: "["}}, ErrConfig},
		"a regex and blocks":   {Config{Targets: Match{Regex: ".*"}, Layers: []int{0}}, ErrConfig},
		"a pattern, no blocks": {Config{Targets: names("q_proj"), LayersPattern: []string{"layers"}}, ErrConfig},
		"a broken pattern": {Config{
			Targets: names("q_proj"), Layers: []int{0}, LayersPattern: []string{"("},
		}, ErrConfig},
		"an endless regex": {Config{Targets: Match{Regex: strings.Repeat("a", maxPattern+1)}}, ErrConfig},
	} {
		if list, err := c.c.Chosen(model(false)); !errors.Is(err, c.want) || list != nil {
			t.Errorf("%s: %v, %v", what, list, err)
		}
	}
}

// TestIdle: settings without effect are mistakes.
func TestIdle(t *testing.T) {
	base := Config{Targets: Match{Names: []string{"q_proj"}}}
	for what, c := range map[string]struct {
		change func(c *Config)
		want   error
	}{
		"none":                 {func(*Config) {}, nil},
		"a block":              {func(c *Config) { c.Layers = []int{0} }, nil},
		"a block too many":     {func(c *Config) { c.Layers = []int{3} }, ErrTarget},
		"a negative block":     {func(c *Config) { c.Layers = []int{-1} }, ErrTarget},
		"an unknown exclusion": {func(c *Config) { c.Exclude.Names = []string{"q_proj", "k_proj"} }, ErrTarget},
		"an idle regex":        {func(c *Config) { c.Exclude.Regex = "x" }, ErrTarget},
		"a useful regex":       {func(c *Config) { c.Exclude.Regex = `.*\.10\..*` }, nil},
		"an idle rank":         {func(c *Config) { c.RankPattern = []Pattern{{"up_proj", 2}} }, ErrTarget},
		"an idle alpha":        {func(c *Config) { c.AlphaPattern = []Pattern{{"q_proj", 2}, {"k", 2}} }, ErrTarget},
		"useful patterns":      {func(c *Config) { c.RankPattern = []Pattern{{"q_proj", 2}} }, nil},
		"a broken pattern":     {func(c *Config) { c.RankPattern = []Pattern{{"(", 2}} }, ErrConfig},
	} {
		cfg := base
		c.change(&cfg)
		if err := cfg.Idle(model(false)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
}

// TestRankAlpha: of several patterns the first counts; a key stands for the end of a path from a dot on.
func TestRankAlpha(t *testing.T) {
	c := Config{
		Rank: 8, Alpha: 16,
		RankPattern:  []Pattern{{`layers\.0\..*`, 2}, {"q_proj", 4}},
		AlphaPattern: []Pattern{{"_proj", 99}, {"q_proj", 32}},
	}
	of, err := c.RankAlpha()
	if err != nil {
		t.Fatal(err)
	}

	for path, want := range map[string][2]float64{
		"model.layers.0.self_attn.q_proj": {2, 32}, "model.layers.1.self_attn.q_proj": {4, 32},
		"model.layers.1.mlp.up_proj": {8, 16}, "q_proj": {4, 32},
	} {
		if r, a := of(path); float64(r) != want[0] || a != want[1] {
			t.Errorf("%s: rank %d, alpha %g, want %v", path, r, a, want)
		}
	}

	for _, c := range []struct {
		c    Config
		want float64
	}{
		{Config{Kind: LoRA}, 4}, {Config{Kind: LoRA, RSLoRA: true}, 8}, {Config{Kind: VeRA}, 1}, {Config{Kind: MoS}, 4},
	} {
		if s := c.c.ScaleOf(4, 16); math.Abs(s-c.want) > 1e-15 {
			t.Errorf("%+v: scale %g, want %g", c.c, s, c.want)
		}
	}
}

// pair makes plain factors with numbers.
func pair(m Module, rank int, from float32) *Low {
	f := Plain{A: NewParam(m.Path+".A", rank, m.In), B: NewParam(m.Path+".B", m.Out, rank)}
	for _, p := range []*Param{f.A, f.B} {
		for i := range p.Data() {
			from += 0.5
			p.Data()[i] = from
		}
	}
	return &Low{Module: m, Rank: rank, Alpha: 1, Scale: 1, Factors: f}
}

// TestParams: every parameter once, whoever shares it, frozen ones only among all; counts and the largest rank.
func TestParams(t *testing.T) {
	list := model(false)
	l, twin := pair(list[1], 3, 0), &Low{Module: list[2], Rank: 3}
	twin.Factors = Twin{l.Factors.(Plain)}
	l.Bias = NewParam("bias", 1, 4)
	frozen := NewParam("frozen", 2, 2)
	frozen.Frozen = true

	a := &Adapter{Low: []*Low{l, twin, pair(list[3], 5, 1)}}
	a.Whole = []*Whole{{Value: frozen}, {Value: l.Bias}}
	a.Rows = []*Rows{{Value: NewParam("rows", 2, 4)}}

	var all, trained []string
	for _, p := range a.Params() {
		all = append(all, p.Name)
	}
	for _, p := range a.Trainable() {
		trained = append(trained, p.Name)
	}
	if len(all) != 7 || len(trained) != 6 || slices.Contains(trained, "frozen") {
		t.Errorf("%q, trained %q", all, trained)
	}
	if n := a.Count(); n != 3*4*2+4+5*4*2+8 {
		t.Errorf("%d trained elements", n)
	}
	if a.MaxRank() != 5 || a.Find(list[3].Path) != a.Low[2] || a.Find("x") != nil {
		t.Error("the largest rank, or a module, is not found")
	}

	p := a.Low[0].Factors.(Plain).A
	p.Clear()
	p.Grad.Buf.F32()[1] = 3
	before := p.Grad.Buf
	p.Clear()
	if p.Grad.Buf != before || p.Grad.Buf.F32()[1] != 0 {
		t.Error("a gradient is not cleared in its place")
	}
}

// TestTwin: what a head that follows its table assembles and learns is that of the table, turned around.
func TestTwin(t *testing.T) {
	l := pair(model(true)[0], 2, 0)
	f := l.Factors.(Plain)
	twin := Twin{f}
	a, bt := hostMat(2, 4), hostMat(2, 6)
	twin.Assemble(a, bt)
	x, y := l.Pair() // [2, 6], [4, 2]
	for r := range 2 {
		if !slices.Equal(bt.RowF32(r), x.RowF32(r)) {
			t.Error("the head's B is not the table's A")
		}
		for i := range 4 {
			if a.RowF32(r)[i] != y.RowF32(i)[r] {
				t.Error("the head's A is not the table's B")
			}
		}
	}

	f.A.Clear()
	f.B.Clear()
	l.Scatter(bt, a)
	twin.Scatter(a, bt)
	for i, v := range f.A.Grad.Buf.F32() {
		if v != 2*f.A.Data()[i] {
			t.Fatal("gradients of both uses do not add up")
		}
	}
}

// TestTie: with ensure_weight_tying a change of the table is one of the head too; equal ones share their parameters,
// different ones stay apart; of the head alone there is none.
func TestTie(t *testing.T) {
	list := model(true)
	table, head := list[0], list[len(list)-1]

	a := &Adapter{Config: Config{Tying: true}, Low: []*Low{pair(table, 2, 0)}}
	if err := a.Tie(list); err != nil || len(a.Low) != 2 || a.Apart(table.Tensor) {
		t.Errorf("table alone: %v, %d changes, apart %v", err, len(a.Low), a.Apart(table.Tensor))
	}

	equal := pair(head, 2, 0)
	own, of := equal.Factors.(Plain), a.Low[0].Factors.(Plain)
	transpose(own.A.Value, of.B.Value)
	transpose(own.B.Value, of.A.Value)
	a = &Adapter{Config: Config{Tying: true}, Low: []*Low{a.Low[0], equal}}
	if err := a.Tie(list); err != nil || a.Apart(table.Tensor) || a.Count() != 2*(6+4) {
		t.Errorf("equal ones: %v, apart %v, %d parameters", err, a.Apart(table.Tensor), a.Count())
	}

	a = &Adapter{Config: Config{Tying: true}, Low: []*Low{pair(table, 2, 0), pair(head, 2, 9)}}
	if err := a.Tie(list); err != nil || !a.Apart(table.Tensor) {
		t.Errorf("different ones: %v, apart %v", err, a.Apart(table.Tensor))
	}

	a = &Adapter{Config: Config{Tying: true}, Low: []*Low{pair(head, 2, 9)}}
	if err := a.Tie(list); !errors.Is(err, ErrFile) {
		t.Errorf("the head alone: %v", err)
	}

	a = &Adapter{Config: Config{Tying: true}, Low: []*Low{pair(table, 2, 9)}}
	a.Low[0].Magnitude = NewParam("m", 1, 4)
	if err := a.Tie(list); !errors.Is(err, ErrUnsupported) {
		t.Errorf("with DoRA: %v", err)
	}

	// Whole tensors likewise: one becomes two of the same numbers.
	for _, tensor := range []string{table.Tensor, TiedHead} {
		w := &Whole{Tensor: tensor, Key: tensor, Value: NewParam(tensor, 6, 4), Shape: []int64{6, 4}}
		a = &Adapter{Config: Config{Tying: true}, Whole: []*Whole{w}}
		if !a.Apart(table.Tensor) {
			t.Errorf("%s alone is not apart", tensor)
		}
		if err := a.Tie(list); err != nil || len(a.Whole) != 2 || a.Whole[0].Value != a.Whole[1].Value ||
			a.Apart(table.Tensor) {
			t.Errorf("%s whole: %v, %+v", tensor, err, a.Whole)
		}
	}

	// Without the setting nothing is tied, and a change of one alone is a change apart.
	a = &Adapter{Low: []*Low{pair(table, 2, 0)}}
	if err := a.Tie(list); err != nil || len(a.Low) != 1 || !a.Apart(table.Tensor) {
		t.Errorf("not asked for: %v, %d changes", err, len(a.Low))
	}
}

// TestCheckpoint: the modules of a base in a folder, as they are stored.
func TestCheckpoint(t *testing.T) {
	for name, want := range map[string]struct {
		modules, linear int
		tied            bool
		turned          string
	}{
		"base-llama":     {modules: 3*7 + 2, linear: 3 * 7},
		"base-llamatied": {tied: true},
		"base-gpt2":      {modules: 2*4 + 2, linear: 2 * 4, tied: true, turned: "c_attn"},
	} {
		c, err := OpenCheckpoint(t.Context(), filepath.Join("..", "..", "testdata", "peft", name))
		if err != nil {
			t.Fatal(err)
		}

		linear, tied := 0, false
		for _, m := range c.Modules {
			if m.Linear() {
				linear++
			}
			tied = tied || m.Tied

			shape, ok := c.Tensors.Shape(m.Tensor)
			in, out := shape[1], shape[0]
			if m.Transposed || m.Table {
				in, out = out, in
			}
			if !ok || int64(m.In) != in || int64(m.Out) != out {
				t.Errorf("%s: %s has %d inputs and %d outputs, stored %v", name, m.Path, m.In, m.Out, shape)
			}
			if want.turned != "" && strings.HasSuffix(m.Path, want.turned) && !m.Transposed {
				t.Errorf("%s: %s is not known to be transposed", name, m.Path)
			}
		}
		if want.modules > 0 && (len(c.Modules) != want.modules || linear != want.linear) || tied != want.tied {
			t.Errorf("%s: %d modules, %d linear, tied %v", name, len(c.Modules), linear, tied)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}

	if _, err := OpenCheckpoint(t.Context(), t.TempDir()); err == nil {
		t.Error("an empty folder is a base")
	}
}

// TestPair: copies in PEFT's orientation, whatever the factors are made of.
func TestPair(t *testing.T) {
	l := pair(model(false)[1], 3, 0)
	a, b := l.Pair()
	f := l.Factors.(Plain)
	if !slices.Equal(a.Buf.F32(), f.A.Data()) || !slices.Equal(b.Buf.F32(), f.B.Data()) {
		t.Error("the factors are others")
	}
	if a.Buf.F32()[0]++; f.A.Data()[0] == a.Buf.F32()[0] {
		t.Error("a factor is the parameter's own memory")
	}

	dst := kernels.MatOf(kernels.NewHost(kernels.F32, 6), 3, 2)
	src := kernels.MatOf(kernels.WrapF32([]float32{1, 2, 3, 4, 5, 6}), 2, 3)
	transpose(dst, src)
	if !slices.Equal(dst.Buf.F32(), []float32{1, 4, 2, 5, 3, 6}) {
		t.Errorf("transposed: %v", dst.Buf.F32())
	}
}
