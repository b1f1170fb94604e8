// Package editeval asks what editing facts into a language model does to everything else the model can do: it
// runs editors for growing numbers of edits, measures after each number how many of all edits so far still hold
// and what the model has lost on benchmark tasks, and tests every loss against the unedited model on the same
// documents.
//
// # Use
//
//	plan := editeval.Plan{
//		Editors: []editeval.Editor{{Method: "memit"}},
//		Edits:   []string{"facts.json"},
//		Counts:  []int{1, 10, 100},
//	}
//	plan.Tasks = []editeval.Task{{Entry: "arc_easy", Limit: 200}}
//	report, err := editeval.Run(ctx, model, plan, editeval.Options{Dir: "study"})
//
// The [Report] has a [Row] for every editor and count: the fraction of edits that hold, with its interval,
// paraphrases, neighbours, drift, and each task with the test against the unedited model; report.Summary says
// it in sentences. The model is in the end what it was.
//
// [Read] opens a plan, a YAML file, and [Run] carries it out on one model. What Run consists of can be called
// piece by piece, so that sequences of edits may run beside each other, each on a model of its own: [Open]
// reads and checks what a plan names, [Study.Prepare] fits it to a model, [Study.Base] measures the unedited
// model, [Study.Sequence] carries out one [Unit], and [Study.Report] puts together what lies in the folder.
//
// # Sequences
//
// A sequence is one editor on one model with one order of the edits. It visits the counts of the plan from the
// smallest to the largest: the state at one count is where the way to the next one begins, and nothing is
// edited twice. An editor that writes batches of b facts writes whole batches as it goes; where a count is no
// multiple of b, the rest is written as a smaller batch, measured, and taken out again, so that the state at a
// count never depends on the other counts. "all" writes every count as one batch into the untouched model. In
// the end everything is taken out, and it is checked that the model is what it was.
//
// # Resuming
//
// A sequence keeps its edits and what it has measured in the folder. The same call on the same folder goes on
// from there, after a crash at any point, and gives the same files: results hold no times, which are kept
// apart.
//
// # Conventions
//
//   - Edit metrics are those of package edit, over all edits so far; "held" is the fraction of edits whose new
//     answer is more probable than the old one.
//   - Ability is measured by package task; figures and standard errors are its. Differences are paired by
//     document: McNemar's exact test where documents are right or wrong, otherwise a bootstrap. Probabilities are
//     adjusted by Holm's method over all editors, counts and tasks of a model. A group of tasks, such as MMLU, is
//     one task with the documents of all of them.
//   - Intervals of fractions are Wilson's (1927), at 95 %.
//   - GRACE's codebook answers at every token during tasks, and at the last token of prompts in edit metrics, as
//     package edit has it.
//     What in-context editing puts before prompts is not put before those of tasks: its abilities are the
//     unedited model's.
package editeval
