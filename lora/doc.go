// Package lora trains low-rank adapters of language models and handles their files: LoRA and its variants, and
// Mixture of Shards, which gives the quality of LoRA with several times fewer parameters by letting all blocks
// share pools of shards.
//
// # Use
//
//	adapter, err := lora.Train(ctx, model, windows, lora.Options{Steps: 200, Schedule: "cosine"})
//	err = adapter.Save("adapter", false)
//	undo, err := adapter.Attach(model) // it answers with the adapter until undo is called
//	report, err := lora.Fold(ctx, base, "adapter", "folded", lora.FoldOptions{})
//
// The adapter's [Report] has loss, rate and norm of the gradients at every step, evaluations, and what was
// trained on which data. Open reads an adapter again, ours or PEFT's; Combine, Extract and Export work on the
// files alone. Checkpoints with quantised weights are refused.
//
// # Training
//
// [Train] makes an adapter for a frozen model; [Tune] trains every parameter in place. Both follow torch and
// PEFT step for step, as the tests check, and depend on nothing but their inputs: not on threads, micro-batches
// (up to rounding) or how much of the activations is kept. An interrupted run goes on from Options.StateDir
// with the same bits.
//
// Kinds, with W [out, in] frozen and the change s·B·A of rank r:
//
//	mos      A and B are made of rows of pools that all decoder layers share (see Options for e, r, l, p); s = alpha/r
//	lora     A and B are trained themselves; with RSLoRA s = alpha/√r; with DoRA the rows of the sum get
//	         trained lengths
//	vera     A = diag(d)·A₀, B = diag(b)·B₀ with random frozen A₀, B₀ for all modules; d and b are trained
//	prolora  narrow factors repeated along the channels with their ranks rotated
//	miss     one trained factor D [r, out] behind sums of the inputs i, i+r, i+2r, …; s = 1
//	gralora  the matrix in k × k parts, each with factors of rank r/k; s = alpha/(r + plain ranks beside them)
//	shira    r·(in + out) elements of W at places that are chosen once; s = 1
//	rasa     r - k ranks of a block's own and k of every block in a pool, [B B_S]·diag(d)·[A; A_S]; s = 1, d begins
//	         with half of alpha over the ranks of either part
//	share    A, B or both are the same in all blocks; s = alpha/r
//	full     every parameter, with Tune
//
// The switches of Mixture of Shards: Sampling "pure" shares everything, Paired turns pair dissociation off,
// Shards 1 turns sharding of vectors off, Private -1 turns private ranks off, and Rank = EquivalentRank =
// Private is LoRA, bit by bit.
//
// # Data
//
// [Read] turns text, records and conversations into sequences whose labels mask what is only context. Sequences
// of a step run one after another in one matrix without padding, and none sees another: Options.Pack fills a
// step with short ones.
//
// # Distillation
//
// With [Options].Distil a training learns what a teacher predicts: a model at hand ([NewTeacher]), or what it has said
// about the data in a file ([WriteTeacher], [OpenTeacher]), which is 388 bytes a token and needs no teacher in memory.
// With KeepZeros it is how a pruned model is healed.
//
// # Files
//
// LoRA, MiSS, GraLoRA and SHiRA are written as PEFT writes them, and read from what it wrote. The other kinds have
// folders of their own with the same two files; [Export] makes a plain LoRA of any, exactly. A Mixture of Shards is
// adapter_config.json (peft_type MOS) and adapter_model.safetensors with mos.TYPE.pool_A [n, in/l], pool_B [n, out/l],
// index_A and index_B I32 [L, r, l]: the lists are data, nothing has to be sampled again.
//
// # Tied models
//
// Where the head is the token table, a change of one leaves the other as the base has it, in training, attached
// and folded; the folded checkpoint is no longer tied. With Options.Tie (PEFT's ensure_weight_tying) both
// change alike, with the same parameters, whose gradients of both uses are added up and which an optimiser
// updates once. (PEFT 0.21.2 shares the memory of two low-rank factors in that case, but keeps an Adam state
// for each use, and so updates them twice a step; modules that are trained whole it updates once.)
//
// # Many adapters
//
// [Bank] keeps adapters of one base by name, in the memory of their parameters, and runs batches in which every
// sequence has its own.
package lora
