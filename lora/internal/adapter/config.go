package adapter

import "math"

// Kind is how the factors of an adapter are made.
type Kind string

// The kinds.
const (
	LoRA    Kind = "lora"    // factors are trained themselves
	MoS     Kind = "mos"     // Mixture of Shards: rows of pools that all blocks share
	VeRA    Kind = "vera"    // frozen random factors that all modules share, trained scales of their rows
	PRoLoRA Kind = "prolora" // rotated copies of smaller factors
	MiSS    Kind = "miss"    // sums of the inputs, r apart, times one trained factor
	GraLoRA Kind = "gralora" // a pair of factors for each of k × k parts of a matrix
	SHiRA   Kind = "shira"   // elements of the matrix at places that are chosen once
	RaSA    Kind = "rasa"    // some ranks of a module's own, and a pool of ranks that all blocks weigh
	Share   Kind = "share"   // ShareLoRA: all blocks have A, B or both in common
)

// Biases says which biases of the base are trained.
type Biases string

// The choices.
const (
	NoBias   Biases = "none"
	AllBias  Biases = "all"       // every tensor whose name ends in bias
	LoRABias Biases = "lora_only" // those of adapted modules
)

// Config is what an adapter's configuration file says.
type Config struct {
	Kind    Kind
	Base    string // base_model_name_or_path
	Rank    int    // r, of modules that no pattern names
	Alpha   float64
	Dropout float64 // of what goes into A, in training

	RSLoRA     bool // scale alpha/√rank
	DoRA       bool
	OutputBias bool // lora_bias: a trained bias beside B
	Biases     Biases

	Targets       Match
	Exclude       Match
	Layers        []int    // layers_to_transform; nil: all
	LayersPattern []string // names of the path part before the block's number
	RankPattern   []Pattern
	AlphaPattern  []Pattern
	WholeModules  []string // modules_to_save
	Tying         bool     // ensure_weight_tying: the table of a tied model and its head change alike
	TaskType      string
	Init          string // init_lora_weights as text: "true", "gaussian", …; how the start was made

	MoS     MoSConfig
	VeRA    VeRAConfig
	PRoLoRA PRoLoRAConfig
	MiSS    MiSSConfig
	GraLoRA GraLoRAConfig
	SHiRA   SHiRAConfig
	RaSA    RaSAConfig
	Share   Sharing

	// KeepZeros: where a matrix of the base is zero, the adapter changes nothing, so that a pruned base keeps
	// its pattern. PEFT does not know this.
	KeepZeros bool

	// Base fingerprints, of native files: what the base's configuration and tensors hash to; "" where not known.
	BaseHash string
}

// MoSConfig is the part of a configuration that Mixture of Shards has.
type MoSConfig struct {
	EquivalentRank   int      // e: the rank of the LoRA with as many parameters
	Shards           int      // l: shards per vector
	Private          int      // p: ranks of each block's own
	PairDissociation bool     // B's shards are sampled apart from A's
	Sampling         Sampling // how shards are sampled
}

// Sampling is how the shards of blocks are sampled from a pool.
type Sampling string

// The ways.
const (
	Official Sampling = "official" // at random without repetition inside one list
	Balanced Sampling = "balanced" // the same, and every shard is used equally often, give or take one
	Pure     Sampling = "pure"     // every block uses the whole pool in order
)

// VeRAConfig is the part of a configuration that VeRA has.
type VeRAConfig struct {
	DInitial float64 // start of the scales of A's rows
	Seed     uint64  // of the frozen factors, which are stored all the same
}

// PRoLoRAConfig is the part of a configuration that PRoLoRA has.
type PRoLoRAConfig struct {
	Unshared int // u: ranks that are not shared
	InParts  int // m: copies along the inputs
	OutParts int // n: copies along the outputs
}

// RaSAConfig is the part of a configuration that RaSA has.
type RaSAConfig struct {
	Shared int // k: ranks that every block gives to the pool
}

// Sharing says which factors all blocks of a kind of projection have in common under ShareLoRA.
type Sharing string

// The choices.
const (
	ShareA    Sharing = "a"
	ShareB    Sharing = "b"
	ShareBoth Sharing = "ab"
)

// MiSSConfig is the part of a configuration that MiSS has.
type MiSSConfig struct {
	Mini int // mini_r: columns of the factor, which repeat along the outputs; 0: as many as outputs
}

// GraLoRAConfig is the part of a configuration that GraLoRA has.
type GraLoRAConfig struct {
	Parts  int // k: parts along the inputs, and along the outputs
	Hybrid int // ranks of a plain LoRA beside the parts
}

// SHiRAConfig is the part of a configuration that SHiRA has.
type SHiRAConfig struct {
	Mask string  // how the places were chosen
	Seed *uint64 // of random places; nil: not known
}

// Match chooses modules by their paths, by PEFT's rules. The zero value matches nothing.
type Match struct {
	Names []string // a module fits whose path equals an entry or ends in "." and the entry
	Regex string   // of the whole path
	All   bool     // every linear but the head
}

// IsZero reports whether nothing is matched.
func (m Match) IsZero() bool { return len(m.Names) == 0 && m.Regex == "" && !m.All }

// Pattern gives a value to the modules whose path fits `^(.*\.)?(Key)$`; of several the first counts.
type Pattern struct {
	Key   string
	Value float64
}

// ScaleOf is the factor on the product of a module's factors.
func (c *Config) ScaleOf(rank int, alpha float64) float64 {
	switch {
	case c.Kind == VeRA || c.Kind == MiSS || c.Kind == SHiRA || c.Kind == RaSA:
		return 1
	case c.Kind == GraLoRA:
		return alpha / float64(c.Rank+c.GraLoRA.Hybrid)
	case c.RSLoRA:
		return alpha / math.Sqrt(float64(rank))
	}
	return alpha / float64(rank)
}
