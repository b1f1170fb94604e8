// Package task evaluates language models on benchmark tasks by the conventions of lm-evaluation-harness 0.4.13:
// the same prompts, tokens, likelihoods, filters, metrics and standard errors, from the same task files, and
// adds paired comparisons, audits and a cache that knows which model answered.
//
// # Use
//
// [Load] takes tasks, [Run] evaluates a model on them. [OpenFolder] writes what comes out into a folder from which an
// interrupted or wider evaluation goes on; [Compare] tests the differences between two such folders. [RunBatch]
// evaluates the models of a [Plan] on its tasks and compares them.
//
//	suite, err := task.Load([]string{"arc_easy", "my-task.yaml"})
//	folder, err := task.OpenFolder("scores", task.FolderOptions{Samples: true})
//	results, err := folder.Run(ctx, model, tok, suite, task.Options{Limit: 200})
//	accuracy := results.Results["arc_easy"]["acc,none"]
//
// # Tasks
//
// [Load] takes names, files, folders and patterns. A task file has the harness' keys: multiple_choice,
// loglikelihood, loglikelihood_rolling and generate_until, templates in a part of Jinja, examples, filters,
// metrics, groups, tags and include. Data come from local files (JSON, JSON Lines, CSV, TSV, Parquet, Arrow, text). Of
// the Python functions that definitions call, the usual ones are built in; any other is an error, as are
// unknown keys, filters and metrics.
//
// # Conventions
//
//   - Special tokens are added as the tokenizer does it by itself, unless [Options].Special says otherwise; a
//     text that begins with the start token gets no second one. An empty context is the start token, or the end
//     token where there is no start token.
//   - A continuation's tokens are those behind as many tokens as its context has by itself. White space at the
//     end of the context counts as the continuation's.
//   - A sequence longer than the context is cut from the left, and counted in the audit.
//   - acc_norm divides by characters, acc_bytes by bytes of the choice without the delimiter.
//   - A likelihood that is not a finite number is never the best, and counted; the harness would take it for the
//     best one.
//   - fewshot_indices has no effect, as in the harness; the audit names it.
//   - The standard error of a group is the pooled one where its tasks are weighted by size, and sqrt(Σ se²)/k of
//     its k tasks where they
//     are not (weight_by_size: false), which 0.4.13 does and versions before it did not.
//   - A group written inside of another one is called outer::inner, and so is a task that is defined there alone.
//   - Likelihoods are natural logarithms, computed in F32 with sums in F64.
//
// # Cost
//
// Requests are ordered so that those with a common beginning are neighbours; what they share is computed once.
// Memory holds one task's documents, prompts and token ids (four bytes for each token of each request; choices
// of one token share theirs with the context) and the activations of about 2048 tokens. It grows with the first
// documents until these fill a pass; from there on a document of four choices behind ten examples, 150 tokens each,
// takes 12 KB until its task is done.
package task
