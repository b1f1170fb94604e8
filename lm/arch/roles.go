package arch

// Role is what a tensor does in the model.
type Role string

// The roles. Matrices of a block are "linears": they are what pruning, adapters and editing address.
const (
	Embed     Role = "embed"     // token table [vocab, embed_dim]
	EmbedIn   Role = "embed_in"  // from the token table's width to the hidden size, where they differ
	EmbedOut  Role = "embed_out" // and back, before the head
	Positions Role = "positions" // learned positions [rows, hidden]
	FinalNorm Role = "norm"      // norm before the head
	Head      Role = "head"      // output matrix [vocab, hidden], absent when tied to Embed

	AttnNorm     Role = "attn_norm"      // norm before attention
	MLPNorm      Role = "mlp_norm"       // norm before the MLP
	AttnPostNorm Role = "attn_post_norm" // norm of attention's output
	MLPPostNorm  Role = "mlp_post_norm"  // norm of the MLP's output
	QNorm        Role = "q_norm"         // norm of the queries
	KNorm        Role = "k_norm"         // norm of the keys

	Q   Role = "q"   // queries
	K   Role = "k"   // keys
	V   Role = "v"   // values
	QKV Role = "qkv" // q, k and v in one matrix, ordered as Arch.QKV says
	O   Role = "o"   // attention's output projection

	// Latent attention: queries, and keys with values, pass through a narrow matrix and a norm.
	QA      Role = "q_a"       // to the queries' latent
	QB      Role = "q_b"       // from it to the queries of all heads
	KVA     Role = "kv_a"      // to the latent of keys and values, and behind it the rotated channels of all keys
	KVB     Role = "kv_b"      // from it, for each head, to its unrotated key channels and its values
	QANorm  Role = "q_a_norm"  // norm of the queries' latent
	KVANorm Role = "kv_a_norm" // norm of the latent of keys and values

	Sinks Role = "sinks" // a score per head that takes part in the softmax and has no value [heads]

	Gate   Role = "gate"    // the activated half of a gated MLP
	Up     Role = "up"      // the other half, or the first matrix of a plain MLP
	GateUp Role = "gate_up" // both in one matrix: gate's rows first
	Down   Role = "down"    // the MLP's output matrix

	Router       Role = "router"         // mixture: one row per expert
	RouterOffset Role = "router_offset"  // added to the experts' scores for their choice alone [experts]
	SharedGate   Role = "shared_gate"    // the expert that every token visits
	SharedUp     Role = "shared_up"      // its other half
	SharedGateUp Role = "shared_gate_up" // both in one matrix
	SharedDown   Role = "shared_down"    // its output matrix
	SharedRouter Role = "shared_router"  // one row: its sigmoid weighs the shared expert
)

// Linear reports whether matrices of the role are linears of a block; routers, norms, tables and the head are not.
func (r Role) Linear() bool {
	switch r {
	case Q, K, V, QKV, O, QA, QB, KVA, KVB, Gate, Up, GateUp, Down, SharedGate, SharedUp, SharedGateUp, SharedDown:
		return true
	}
	return false
}

// Norm is the kind of normalisation.
type Norm string

// The kinds of normalisation.
const (
	RMS        Norm = "rms"          // x / sqrt(mean(x²) + eps) · w
	RMSPlusOne Norm = "rms_plus_one" // the same · (1 + w)
	LayerNorm  Norm = "layer"        // (x - mean) / sqrt(var + eps) · w + b
)

// QKNorm says over what queries and keys are normed.
type QKNorm string

// The ways to norm queries and keys.
const (
	PerHead QKNorm = "head" // every head by itself
	PerRow  QKNorm = "row"  // the whole projection of a token
	OwnHead QKNorm = "own"  // every head by itself, with weights of its own [heads, head_dim]
)

// QKVLayout is the order of the outputs of a fused projection.
type QKVLayout string

// The layouts of a fused projection.
const (
	Blocks     QKVLayout = "blocks"   // all of q, then all of k, then all of v
	HeadBlocks QKVLayout = "per_head" // for each head its q, k and v
	Groups     QKVLayout = "groups"   // for each key/value head the q of its query heads, its k and its v
)

// Window says which blocks attend to a sliding window.
type Window string

// The window rules. An explicit layer_types in the configuration overrides them.
const (
	AllBlocks  Window = "all"        // every block
	EvenBlocks Window = "even"       // blocks 0, 2, 4, …
	FromBlock  Window = "from_layer" // blocks from the field window_from on
	Unrotated  Window = "unrotated"  // blocks that do not rotate queries and keys
	Pattern    Window = "pattern"    // all but every window_pattern-th block
)

// RopeRule says which blocks rotate queries and keys.
type RopeRule string

// The rules for rotation.
const (
	RopeSliding RopeRule = "sliding" // blocks that attend to a window
	// blocks with 1 in the list of the field rope_layers, otherwise all but every rope_interval-th
	RopeListed RopeRule = "listed"
)

// RouterKind is how a router's outputs become the scores of experts.
type RouterKind string

// Sigmoid scores every expert by itself. The choice adds the router's offset, and a group of experts counts as its
// two best; with the softmax, as its best.
const Sigmoid RouterKind = "sigmoid"

// GateStyle is how the halves of a gated MLP are joined.
type GateStyle string

// ClampedGate has gate and up alternate in one matrix: with g = min(gate, limit) and u = up within ±limit, the
// result is g·sigmoid(alpha·g)·(u + 1).
const ClampedGate GateStyle = "clamped"

// Scale is a factor on the embeddings.
type Scale string

// SqrtHidden multiplies embeddings by the square root of the hidden size.
const SqrtHidden Scale = "sqrt_hidden"

// Fields lists the configuration fields that tables may describe.
func Fields() []string {
	return []string{
		"vocab", "hidden", "embed_dim", "layers", "heads", "kv_heads", "head_dim", "inner", "positions", "eps",
		"activation", "tied", "parallel",
		"attention_bias", "mlp_bias", "qkv_bias", "enable_bias", "no_final_norm", "norm_first",
		"window", "use_window", "window_from", "query_scalar", "attn_softcap", "final_softcap", "clip_qkv",
		"scale_attn", "scale_by_layer", "attn_scale", "embed_multiplier", "residual_multiplier", "logit_scale",
		"logit_divisor", "window_pattern", "rope_layers", "rope_interval", "qk_norm",
		"multi_query", "grouped_kv", "parallel_norms",
		"q_rank", "kv_rank", "nope_dim", "rope_dim", "v_dim", "latent_eps",
		"experts", "top_k", "norm_top_k", "expert_inner", "shared_inner", "shared_experts", "sparse_step",
		"dense_layers", "dense_first", "mlp_types", "groups", "top_groups", "group_method", "routed_scale",
		"gate_alpha", "gate_limit",
	}
}

// Dims lists the dimension names that shapes are made of. q is heads·head_dim, kv is kv_heads·head_dim, qkv is
// q + 2·kv, gate_up is 2·inner, positions are the rows of the position table (offset included), one is 1. Of latent
// attention, qk are the queries of all heads, v their values, kv_a the latent with the rotated channels, kv_b what
// it expands to.
func Dims() []string {
	return []string{
		"vocab", "hidden", "embed_dim", "q", "kv", "qkv", "head_dim", "inner", "gate_up", "positions", "experts",
		"expert_inner", "shared_inner", "one", "heads", "kv_heads", "shared_gate_up",
		"qk", "v", "q_rank", "kv_rank", "kv_a", "kv_b",
	}
}

// Conditions lists what "when" may name: flags of the configuration; moe, which is true for blocks with a mixture;
// projected, which is true where the token table is not as wide as the stream; shared, where a mixture has a shared
// expert; two_norms, where parallel branches have a norm each; and q_latent, where queries have a latent.
func Conditions() []string {
	return []string{
		"tied", "attention_bias", "mlp_bias", "qkv_bias", "enable_bias", "no_final_norm", "projected",
		"moe", "parallel", "qk_norm", "shared", "two_norms", "q_latent",
	}
}
