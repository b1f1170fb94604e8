package lora

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/hub"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lm/optim"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/kinds"
	"github.com/modelcompress/compress/lora/internal/mos"
)

// Kinds are the names of what can be trained.
var Kinds = []string{"lora", "mos", "vera", "prolora", "miss", "gralora", "shira", "rasa", "share", "full"}

// paired are the kinds with a trained factor on either side.
var paired = []string{"lora", "mos", "prolora", "gralora", "rasa", "share"}

// Schedules are the names of the learning rate's schedules.
var Schedules = optim.ScheduleNames

// Optimizers are the names of the optimisers. LOMO and AdaLomo are for kind full.
var Optimizers = []string{"adamw", "lomo", "adalomo"}

// Options of [Train] and [Tune]. The zero value trains a LoRA on all matrices of the blocks.
type Options struct {
	Kind string `json:"kind"` // lora (the default), mos, vera, prolora, miss, gralora, shira, rasa, share; full for Tune

	Rank    int     `json:"rank"`    // default 8; of mos less where the pools of a model with few blocks have less
	Alpha   float64 `json:"alpha"`   // default 16; the change is alpha/rank·B·A
	Dropout float64 `json:"dropout"` // of what enters A; default 0

	EquivalentRank int `json:"equivalent_rank,omitempty"` // mos: rank of the LoRA with as many parameters; default 2
	Shards         int `json:"shards,omitempty"`          // mos: per vector; default 4
	// mos: ranks of each block's own; default 1, of equivalent rank 1 none; -1 means none
	Private int `json:"private,omitempty"`
	// mos: balanced (the default: every shard is used), official, pure
	Sampling string `json:"sampling,omitempty"`
	// mos: B's shards are sampled with A's (no pair dissociation)
	Paired bool `json:"paired,omitempty"`

	RSLoRA     bool    `json:"rslora,omitempty"`      // scale alpha/√rank
	DoRA       bool    `json:"dora,omitempty"`        // lora: trained magnitudes
	OutputBias bool    `json:"output_bias,omitempty"` // lora: a trained bias beside B
	DInitial   float64 `json:"d_initial,omitempty"`   // vera: start of the scales; default 0.1
	Unshared   int     `json:"unshared,omitempty"`    // prolora: ranks that are not shared; default 1, -1 means 0
	InParts    int     `json:"in_parts,omitempty"`    // prolora: copies along the inputs; default 2
	OutParts   int     `json:"out_parts,omitempty"`   // prolora: copies along the outputs; default 2

	SharedRank int    `json:"rasa_k,omitempty"` // rasa: ranks that every block gives to the common pool; default 1
	Share      string `json:"share,omitempty"`  // share: factors that all blocks have in common: a (the default), b, ab
	// miss: columns of the trained factor, which repeat along the outputs (mini_r); default: as many as outputs
	MiniRank int `json:"mini_r,omitempty"`
	Parts    int `json:"gralora_k,omitempty"` // gralora: parts of each side of a matrix; default 2
	Hybrid   int `json:"hybrid_r,omitempty"`  // gralora: ranks of a plain LoRA beside the parts
	// shira: how the trained elements are chosen, see [ShiraMasks]; default random
	ShiraMask string `json:"shira_mask,omitempty"`

	// Targets are the matrices that get a change: roles (q, k, v, o, qkv, gate, up, gate_up, down), names
	// ("q_proj", "layers.0.mlp.up_proj"), or one regular expression of whole paths between slashes. Default:
	// all matrices of blocks.
	Targets      []string  `json:"targets,omitempty"`
	Exclude      []string  `json:"exclude,omitempty"`       // names, or one regular expression between slashes
	Layers       []int     `json:"layers,omitempty"`        // only these blocks
	RankPattern  []Pattern `json:"rank_pattern,omitempty"`  // lora
	AlphaPattern []Pattern `json:"alpha_pattern,omitempty"` // lora
	Whole        []string  `json:"modules_to_save,omitempty"`
	// KeepZeros leaves zeros of the base's matrices alone: a pruned model keeps its pattern, also when the
	// adapter is folded in. Of kind full the gradients are masked; an adapter's
	// change is masked in every pass, for which it is made whole: steps take longer. On the CPU only, and not with
	// DoRA.
	KeepZeros bool `json:"keep_zeros,omitempty"`
	// lora: in a tied model the token table and the head change alike
	Tie  bool   `json:"ensure_weight_tying,omitempty"`
	Bias string `json:"bias,omitempty"` // none (the default), all, lora_only

	Steps      int `json:"steps"`            // default: Epochs
	Epochs     int `json:"epochs,omitempty"` // passes over the data, instead of Steps; default: one
	Batch      int `json:"batch"`            // sequences per step; default 4
	MicroBatch int `json:"micro_batch"`      // sequences per pass through the model; default: all of a step
	// tokens per step at most, instead of Batch: short sequences fill it up, each by itself
	Pack    int  `json:"pack"`
	Ordered bool `json:"ordered"` // take sequences as they stand instead of at random
	// Sets are parts of the data, in their order, that are drawn in shares; nil: the data are one set. Each has passes
	// of its own. Without Steps a run draws as many sequences as those sets have that are drawn at all.
	Sets []Set   `json:"sets,omitempty"`
	LR   float64 `json:"lr"` // default 2e-4; kind full: 1e-5
	// by how much the learning rate of B's factors is that of A's (LoRA+); default: the same. Kinds lora, mos,
	// prolora, gralora, rasa and share
	LRRatio     float64 `json:"lr_ratio,omitempty"`
	Schedule    string  `json:"schedule"` // constant (the default), linear, cosine
	Warmup      int     `json:"warmup"`   // steps
	WeightDecay float64 `json:"weight_decay"`
	Clip        float64 `json:"clip"`      // global norm of the gradients; 0: none
	Optimizer   string  `json:"optimizer"` // adamw (the default), lomo, adalomo
	Beta1       float64 `json:"beta1"`     // adamw; default 0.9
	Beta2       float64 `json:"beta2"`     // adamw; default 0.999
	Seed        uint64  `json:"seed"`
	// bytes for kept activations: 0 half of what is free, -1 none (every block is computed twice); no influence
	// on results
	Memory int64 `json:"memory"`

	// Distil learns from a teacher; nil: from the tokens of the data.
	Distil *Distil `json:"distil,omitempty"`

	// Prefer learns which answers are better; nil: the tokens of the data. Batch and MicroBatch count pairs, or
	// answers.
	Prefer *Prefer `json:"prefer,omitempty"`

	Eval      *corpus.Windows `json:"-"`          // held-out data; nil: no evaluation
	EvalEvery int             `json:"eval_every"` // steps; default: only after the last
	KeepBest  bool            `json:"keep_best"`  // the result is that of the best evaluation; needs Eval and StateDir

	StateDir  string `json:"-"`          // folder for what an interrupted run goes on from; "": none
	SaveEvery int    `json:"save_every"` // steps between two states; default 50
	Resume    bool   `json:"-"`          // go on from the state in StateDir, if there is one

	Init *Adapter `json:"-"` // start from this adapter, with its kind and sizes
	// AllowOtherBase takes an Init that was trained on other weights.
	AllowOtherBase bool            `json:"allow_other_base,omitempty"`
	Each           func(Step)      `json:"-"` // after every step
	Note           func(e Eval)    `json:"-"` // after every evaluation
	Plan           func(r RunPlan) `json:"-"` // before the first step
	Remark         func(s string)  `json:"-"` // of what a user should know, one line each
}

// Set is a part of the data that is drawn with a weight.
type Set struct {
	Sequences int `json:"sequences"` // how many of the data it is
	// Weight over the sum of all weights is the share of the sequences that are drawn from it (of preferences: the
	// pairs or answers). The next is always of the set that is furthest behind its share, so that at no time one is a
	// whole sequence ahead of it.
	Weight float64 `json:"weight"`
}

// Pattern gives a rank or an alpha to the modules whose path ends in what the regular expression Key matches.
type Pattern struct {
	Key   string  `json:"key"`
	Value float64 `json:"value"`
}

// RunPlan is what a run is going to do.
type RunPlan struct {
	Steps     int   // in all
	Done      int   // by an earlier run
	Trainable int64 // parameters
	Dropped   int   // sequences without a token that counts, or preferences with such an answer
	// Earlier and Evals are the steps and evaluations of an earlier run.
	Earlier []Step
	Evals   []Eval
	// Zeros are those of the model as it is, nil where there are none: a pruned one loses its pattern unless
	// Options.KeepZeros keeps it.
	Zeros *Zeros
}

// or is v, or where that is zero d.
func or[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// withDefaults fills in what is not set.
func (o Options) withDefaults() Options {
	o.Kind = or(o.Kind, "lora")
	o.Alpha = or(o.Alpha, 16)
	if o.Kind != "mos" { // where it depends on the model
		o.Rank = or(o.Rank, 8)
	}

	switch o.Kind {
	case "mos":
		o.EquivalentRank = or(o.EquivalentRank, 2)
		o.Shards = or(o.Shards, 4)
		o.Sampling = or(o.Sampling, string(adapter.Balanced))

		// A rank that is private to its block is shared with no other: of an equivalent rank of 1 nothing would
		// be left to share.
		if o.Sampling == string(adapter.Pure) || o.Private == 0 && o.EquivalentRank == 1 {
			o.Private = -1
		}

		o.Private = or(o.Private, 1)
	case "vera":
		o.DInitial = or(o.DInitial, 0.1)
	case "prolora":
		o.Unshared, o.InParts, o.OutParts = or(o.Unshared, 1), or(o.InParts, 2), or(o.OutParts, 2)
	case "rasa":
		o.SharedRank = or(o.SharedRank, 1)
	case "share":
		o.Share = or(o.Share, string(adapter.ShareA))
	case "gralora":
		o.Parts = or(o.Parts, 2)
	case "shira":
		o.ShiraMask = or(o.ShiraMask, kinds.Random)
	}

	o.Batch, o.Schedule, o.Optimizer = or(o.Batch, 4), or(o.Schedule, "constant"), or(o.Optimizer, "adamw")
	o.LR = or(o.LR, map[bool]float64{false: 2e-4, true: 1e-5}[o.Kind == "full"])
	o.SaveEvery = or(o.SaveEvery, 50)
	if o.Prefer != nil {
		p := o.Prefer.withDefaults()
		o.Prefer = &p
	}

	return o
}

// AllPrivate reports whether the options ask for a Mixture of Shards all of whose ranks are private to their
// blocks, and which rank the LoRA has that this is in truth.
func (o Options) AllPrivate() (rank int, all bool) {
	if o.Init != nil {
		o = o.like(&o.Init.inner.Config)
	}
	o = o.withDefaults()
	return o.EquivalentRank, o.Kind == "mos" && o.Private >= o.EquivalentRank
}

// Validate returns every fault of the options. What depends on the model is checked by [Train].
func (o Options) Validate() error {
	o = o.withDefaults()
	var faults []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
		}
	}

	bad(!slices.Contains(Kinds, o.Kind), "kind %.100q; known: %s", o.Kind, strings.Join(Kinds, ", "))
	bad(!slices.Contains(Optimizers, o.Optimizer), "optimizer %.100q; known: %s", o.Optimizer,
		strings.Join(Optimizers, ", "))
	// Optimisers that update during the pass save the memory of gradients, which an adapter hardly has.
	bad(o.Optimizer != "adamw" && o.Kind != "full",
		"optimizer %s is for kind full: it keeps no gradients, which adapters are too small to profit from",
		o.Optimizer)
	bad(o.Optimizer != "adamw" && o.MicroBatch > 0,
		"optimizer %s updates during the pass, so a step cannot have several (micro_batch)", o.Optimizer)
	bad(o.Kind == "shira" && !slices.Contains(ShiraMasks, o.ShiraMask) && o.Init == nil, "shira mask %.60q; known: %s",
		o.ShiraMask, strings.Join(ShiraMasks, ", "))
	bad(o.Init == nil && o.Kind != "mos" &&
		(o.EquivalentRank != 0 || o.Shards != 0 || o.Private != 0 || o.Sampling != "" || o.Paired),
		"equivalent_rank, shards, private, sampling and paired are of kind mos, not %.100s", o.Kind)
	bad(o.MiniRank < 0 || o.Parts < 0 || o.Hybrid < 0, "mini_r %d, gralora_k %d, hybrid_r %d: sizes are not negative",
		o.MiniRank, o.Parts, o.Hybrid)
	bad(o.Rank < 0, "rank %d is negative", o.Rank)
	bad(!(o.Alpha > 0) || math.IsInf(o.Alpha, 0), "alpha %g is not a positive number", o.Alpha)
	bad(!(o.Dropout >= 0 && o.Dropout < 1), "dropout %g is not in [0, 1)", o.Dropout)
	bad(o.Steps < 0, "steps %d is negative", o.Steps)
	bad(o.Epochs < 0, "epochs %d is negative", o.Epochs)
	bad(o.Epochs > 0 && o.Steps > 0, "steps %d and epochs %d both say how long it goes", o.Steps, o.Epochs)
	bad(o.Batch < 1 || o.MicroBatch < 0 || o.Pack < 0, "batch %d, micro_batch %d, pack %d: sizes are positive", o.Batch,
		o.MicroBatch, o.Pack)
	faults = append(faults, o.checkSets())
	bad(!(o.LR >= 0) || math.IsInf(o.LR, 0), "learning rate %g is not a number ≥ 0", o.LR)
	bad(!(o.LRRatio >= 0) || math.IsInf(o.LRRatio, 0), "lr_ratio %g is not a positive number", o.LRRatio)
	bad(o.LRRatio != 0 && !slices.Contains(paired, o.Kind), "lr_ratio is for kinds that have a factor B beside A: %s",
		strings.Join(paired, ", "))
	bad(!(o.Clip >= 0) || math.IsInf(o.Clip, 0), "clip %g is not a number ≥ 0", o.Clip)
	bad(!(o.WeightDecay >= 0) || math.IsInf(o.WeightDecay, 0), "weight decay %g is not a number ≥ 0", o.WeightDecay)
	bad(o.Warmup < 0, "warmup %d is negative", o.Warmup)
	bad(!slices.Contains(optim.ScheduleNames, o.Schedule), "schedule %.100q; known: %s", o.Schedule,
		strings.Join(optim.ScheduleNames, ", "))
	bad(o.EvalEvery < 0 || o.SaveEvery < 0, "eval_every %d, save_every %d: steps are positive", o.EvalEvery,
		o.SaveEvery)
	bad(o.KeepBest && (o.Eval == nil || o.StateDir == ""),
		"keeping the best needs evaluation data and a folder for the state")
	bad(o.Resume && o.StateDir == "", "resuming needs the folder of the state")
	if o.Distil != nil {
		bad(o.Distil.Teacher == nil, "distillation needs a teacher")
		faults = append(faults, o.Distil.Validate())
	}
	if o.Prefer != nil {
		faults = append(faults, o.Prefer.Validate())
		bad(o.Distil != nil, "a training learns preferences or what a teacher predicts, not both")
		if o.Kind == "full" {
			faults = append(faults, failure.Hinted(fmt.Errorf("%w: preferences are learned by an adapter: their "+
				"reference is the model without it", ErrConfig), "--kind lora, then lora fold"))
		}
	}
	// DoRA's norm is that of the whole of W + sBA, which a mask cuts.
	bad(o.KeepZeros && o.DoRA, "keeping zeros goes with no DoRA, which divides by norms of the whole change")
	bad(o.Kind == "full" && (o.Init != nil || len(o.Targets)+len(o.Exclude)+len(o.Layers)+len(o.Whole) > 0),
		"kind full trains everything: no adapter to start from, no targets")

	for _, list := range [][]string{o.Targets, o.Exclude} {
		if _, err := matchOf(list); err != nil {
			faults = append(faults, err)
		}
	}

	return failure.Join(faults...)
}

// checkSets finds what is wrong with the weights of sets.
func (o Options) checkSets() error {
	sum := 0.0
	for _, s := range o.Sets {
		if !(s.Weight >= 0) || math.IsInf(s.Weight, 0) {
			return fmt.Errorf("%w: weight %g of a set of data is not a number ≥ 0", ErrConfig, s.Weight)
		}
		sum += s.Weight
	}

	switch {
	case len(o.Sets) > 0 && sum == 0:
		return fmt.Errorf("%w: all %d sets of data have weight 0, so that nothing is trained on", ErrConfig,
			len(o.Sets))
	case math.IsInf(sum, 0):
		return fmt.Errorf("%w: the weights of the sets of data add up to more than a number holds", ErrConfig)
	}
	return nil
}

// roles are the names of roles that targets may use.
var roles = []arch.Role{
	arch.Q, arch.K, arch.V, arch.O, arch.QKV, arch.QA, arch.QB, arch.KVA, arch.KVB,
	arch.Gate, arch.Up, arch.GateUp, arch.Down,
	arch.SharedGate, arch.SharedUp, arch.SharedGateUp, arch.SharedDown, arch.Embed, arch.Head,
}

// baseName is what an adapter calls its base: the name on the hub of one from the hub's cache, also of a GGUF file
// there, which PEFT finds on any machine; otherwise its path.
func baseName(dir string) string {
	if n, ok := hub.Of(dir); ok {
		return n.ID()
	}
	return dir
}

// config is the part of the options that an adapter keeps, for the modules of a base: roles become names.
func (o Options) config(base string, modules []adapter.Module) (adapter.Config, error) {
	c := adapter.Config{
		Kind: adapter.Kind(o.Kind), Base: base, Rank: o.Rank, Alpha: o.Alpha, Dropout: o.Dropout, RSLoRA: o.RSLoRA,
		DoRA: o.DoRA, OutputBias: o.OutputBias,
		Biases: adapter.Biases(or(o.Bias, string(adapter.NoBias))), Layers: o.Layers, WholeModules: o.Whole,
		Tying: o.Tie, TaskType: "CAUSAL_LM", Init: "true",
		MoS: adapter.MoSConfig{
			EquivalentRank: o.EquivalentRank, Shards: o.Shards, Private: max(o.Private, 0), PairDissociation: !o.Paired,
			Sampling: adapter.Sampling(o.Sampling),
		},
		KeepZeros: o.KeepZeros,
		VeRA:      adapter.VeRAConfig{DInitial: o.DInitial},
		PRoLoRA:   adapter.PRoLoRAConfig{Unshared: max(o.Unshared, 0), InParts: o.InParts, OutParts: o.OutParts},
		MiSS:      adapter.MiSSConfig{Mini: o.MiniRank},
		GraLoRA:   adapter.GraLoRAConfig{Parts: o.Parts, Hybrid: o.Hybrid},
		SHiRA:     adapter.SHiRAConfig{Mask: o.ShiraMask},
		RaSA:      adapter.RaSAConfig{Shared: o.SharedRank},
		Share:     adapter.Sharing(o.Share),
	}

	for _, p := range o.RankPattern {
		c.RankPattern = append(c.RankPattern, adapter.Pattern(p))
	}
	for _, p := range o.AlphaPattern {
		c.AlphaPattern = append(c.AlphaPattern, adapter.Pattern(p))
	}

	var err error
	if c.Targets, err = targetsOf(o.Targets, modules); err != nil {
		return c, err
	}
	if c.Exclude, err = matchOf(o.Exclude); err != nil {
		return c, err
	}

	if c.Kind == adapter.MoS && c.Rank == 0 {
		c.Rank, err = o.mosRank(&c, modules)
	}

	return c, err
}

// mosRank is the rank of a Mixture of Shards that asks for none: 8, or all that the smallest of its pools has; with
// pure sharing the latter. A pool has as many blocks as have matrices of its kind, which are few in a model whose
// first blocks alone are dense.
func (o Options) mosRank(c *adapter.Config, modules []adapter.Module) (int, error) {
	chosen, _, err := c.Fits(modules)
	if err != nil {
		return 0, err
	}

	// What cannot be chosen, or cannot share a pool, is an error of its own later on.
	types, _ := mos.Types(chosen)
	blocks := 0
	for _, t := range types {
		if n := len(t.Modules); blocks == 0 || n < blocks {
			blocks = n
		}
	}

	private := max(o.Private, 0)
	if most := private + (o.EquivalentRank-private)*blocks; most < 8 || o.Sampling == string(adapter.Pure) {
		return max(most, 1), nil
	}

	return 8, nil
}

// matchOf reads names, or one regular expression between slashes.
func matchOf(list []string) (adapter.Match, error) {
	for _, s := range list {
		if len(s) < 2 || s[0] != '/' || s[len(s)-1] != '/' {
			continue
		}
		if len(list) > 1 {
			return adapter.Match{}, fmt.Errorf("%w: a regular expression (%.100s) stands alone", ErrConfig, s)
		}
		if _, err := regexp.Compile(s[1 : len(s)-1]); err != nil {
			return adapter.Match{}, fmt.Errorf("%w: %w", ErrConfig, err)
		}

		return adapter.Match{Regex: s[1 : len(s)-1]}, nil
	}

	return adapter.Match{Names: list}, nil
}

// targetsOf turns roles into the names that the matrices of the base have.
func targetsOf(list []string, modules []adapter.Module) (adapter.Match, error) {
	if len(list) == 0 || len(list) == 1 && strings.EqualFold(list[0], "all-linear") {
		return adapter.Match{All: true}, nil
	}

	match, err := matchOf(list)
	// A regular expression is about paths, where roles mean nothing.
	if err != nil || match.Regex != "" {
		return match, err
	}

	var names []string
	for _, s := range list {
		found := namesOf(arch.Role(s), modules)
		// A role that this model has no matrix for may still be the name of one.
		if !slices.Contains(roles, arch.Role(s)) || len(found) == 0 {
			found = []string{s}
		}

		for _, n := range found {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}

	return adapter.Match{Names: names}, nil
}

// namesOf lists the shortest names that take the modules of a role and no others.
func namesOf(role arch.Role, modules []adapter.Module) []string {
	var names []string
	for _, m := range modules {
		if m.Role != role {
			continue
		}

		n := m.Path
		for at := strings.LastIndexByte(m.Path, '.'); at >= 0; at = strings.LastIndexByte(m.Path[:at], '.') {
			short := m.Path[at+1:]
			if !slices.ContainsFunc(modules,
				func(o adapter.Module) bool { return o.Role != role && strings.HasSuffix(o.Path, "."+short) }) {
				n = short
				break
			}
		}

		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}

	return names
}
