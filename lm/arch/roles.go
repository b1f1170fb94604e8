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

	Gate   Role = "gate"    // the activated half of a gated MLP
	Up     Role = "up"      // the other half, or the first matrix of a plain MLP
	GateUp Role = "gate_up" // both in one matrix: gate's rows first
	Down   Role = "down"    // the MLP's output matrix

	Router       Role = "router"        // mixture: one row per expert
	SharedGate   Role = "shared_gate"   // the expert that every token visits
	SharedUp     Role = "shared_up"     // its other half
	SharedDown   Role = "shared_down"   // its output matrix
	SharedRouter Role = "shared_router" // one row: its sigmoid weighs the shared expert
)

// Linear reports whether matrices of the role are linears of a block; routers, norms, tables and the head are not.
func (r Role) Linear() bool {
	switch r {
	case Q, K, V, QKV, O, Gate, Up, GateUp, Down, SharedGate, SharedUp, SharedDown:
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
)

// QKVLayout is the order of the outputs of a fused projection.
type QKVLayout string

// The layouts of a fused projection.
const (
	Blocks     QKVLayout = "blocks"   // all of q, then all of k, then all of v
	HeadBlocks QKVLayout = "per_head" // for each head its q, k and v
)

// Window says which blocks attend to a sliding window.
type Window string

// The window rules. An explicit layer_types in the configuration overrides them.
const (
	AllBlocks  Window = "all"        // every block
	EvenBlocks Window = "even"       // blocks 0, 2, 4, …
	FromBlock  Window = "from_layer" // blocks from the field window_from on
)

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
		"scale_attn", "scale_by_layer",
		"experts", "top_k", "norm_top_k", "expert_inner", "shared_inner", "sparse_step", "dense_layers",
	}
}

// Dims lists the dimension names that shapes are made of. q is heads·head_dim, kv is kv_heads·head_dim, qkv is
// q + 2·kv, gate_up is 2·inner, positions are the rows of the position table (offset included), one is 1.
func Dims() []string {
	return []string{
		"vocab", "hidden", "embed_dim", "q", "kv", "qkv", "head_dim", "inner", "gate_up", "positions", "experts",
		"expert_inner", "shared_inner", "one",
	}
}

// Conditions lists what "when" may name: flags of the configuration; moe, which is true for blocks with a mixture; and
// projected, which is true where the token table is not as wide as the stream.
func Conditions() []string {
	return []string{
		"tied", "attention_bias", "mlp_bias", "qkv_bias", "enable_bias", "no_final_norm", "projected",
		"moe",
	}
}
