// Package moe makes a mixture of experts of dense models, from recipes in the form that mergekit-moe reads: the MLPs of
// the experts side by side behind a router, everything else from the base.
//
//	base_model: path
//	gate_mode: hidden            # hidden (the default), hidden_last, hidden_avg, cheap_embed, random, uniform_random
//	dtype: bfloat16              # default: the base's
//	experts_per_token: 2
//	architecture: mixtral        # mixtral, qwen, qwen3; default: the first that fits
//	experts:
//	- source_model: path
//	  positive_prompts: ["…"]
//	  negative_prompts: ["…"]
//	  noise_scale: 0.0           # normal noise on the expert's matrices
//	  residual_scale: 1.0        # factor on its down projections
//	shared_experts: […]          # qwen: exactly one, which every token visits
//
// # Gates
//
// The row of expert e in the router of layer l is, of unit length, the mean over its positive prompts less the
// mean over its negative ones of: the hidden state that enters the layer at the last token (hidden,
// hidden_last), or its mean over the tokens (hidden_avg). cheap_embed takes the sum of the token table's rows
// over all prompts, of unit length before and after the subtraction, for every layer alike. random samples from a
// normal distribution, uniform_random between ±1/√hidden. Prompts begin with the tokenizer's start token.
// Unlike in the original program hidden states are computed in float32. As in the original hidden_avg fills the
// prompts of an expert up to one length, with start tokens in front that attend to nothing, and averages over
// these too; give prompts of equal length to avoid that.
//
// # Layouts
//
// Mixtures are written with a tensor per matrix of an expert, which every program reads; with the layout "fused" as the
// original writes them, with all experts of a layer in one tensor, gate rows before up rows.
package moe
