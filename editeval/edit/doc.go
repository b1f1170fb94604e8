// Package edit writes facts into language models and takes them out again: fine-tuning of one matrix (FT, FT-L,
// FT-M), ROME, R-ROME, MEMIT (MEMIT with a memory, ENCORE), PMET, EMMET, AlphaEdit (NAS), LyapLock, UltraEdit, GRACE,
// low-rank fine-tuning and in-context editing.
//
// # Use
//
// [Read] opens a file of edits (CounterFact, zsRE or EasyEdit form), [New] prepares a method for a model,
// [Editing.Apply] edits, and [Editing.Undo] goes back to an earlier state, byte for byte. [ApplyFolder], [UndoFolder]
// and [VerifyFolder] do so with the checkpoint in a folder, and keep what a later run goes on from. [Encoder] turns
// requests into token ids, [Editing.Judge] measures what an edit achieved, [Trace] where a model keeps a fact.
//
//	set, err := edit.Read("facts.json")
//	hp, err := edit.Defaults("ft-m", model.Config())
//	x := &edit.Encoder{Tokenizer: tok, Templates: hp.Templates}
//	e, err := edit.New(model, edit.Options{Method: "ft-m", HParams: &hp})
//	fact, err := x.Record(&set.Records[0])
//	err = e.Apply(ctx, []edit.Encoded{fact}, nil)
//	judged, err := e.Judge(ctx, x, set.Records) // judged.Stats["efficacy_success"].Mean
//	err = e.Undo(0)                             // the model as it was
//
// # Conventions
//
//   - W is [out, in]: y = W·x + b. A key k is the input of a decoder layer's MLP down-projection, a value v its
//     output, both at the last token of the subject. Layers count from 0.
//   - Tokens of a target are those that prompt + " " + target has more than the prompt; that they continue the
//     prompt's tokens is checked.
//   - The subject's last token is the last one whose characters touch the subject.
//   - Prefixes ("templates") are a fixed, explicit list: nothing is sampled.
//   - Statistics, solves and sums of deltas are float64. A weight is its stored value plus all deltas, rounded to
//     the type it is stored in.
//
// Formulas are those of the published code, cited at each method.
package edit
