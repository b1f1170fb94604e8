package reportcmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/strictyaml"
)

// Input is the format of a file that verbs read and that users write. Keys of reports are in the schemas; recipes of
// merge and task files have pages of their own.
type Input struct {
	Name    string     `json:"name"`
	For     []string   `json:"for"`            // the verbs that read it
	Flag    string     `json:"flag,omitempty"` // of the first of them
	What    string     `json:"what"`
	Keys    []InputKey `json:"keys,omitempty"`
	Example string     `json:"example"`
}

// InputKey is a key of a file, a dot between it and the one that it stands below.
type InputKey struct {
	Name    string `json:"name"`
	Meaning string `json:"meaning"`
}

// keys are pairs of a name and its meaning.
func keys(pairs ...string) (list []InputKey) {
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, InputKey{pairs[i], pairs[i+1]})
	}
	return list
}

// Inputs are the formats; tests read every example with the reader that the verbs have, and compare the keys with its.
func Inputs() []Input {
	return []Input{
		{
			Name: "overrides", For: []string{"prune"}, Flag: "--overrides",
			What: "YAML, a list: what becomes of matrices that are treated otherwise than the rest. A matrix " +
				"follows the first entry whose match, roles and blocks all fit it.",
			Keys: keys("match", "regular expression somewhere in the name of the tensor; none: any",
				"roles", "list of q, k, v, o, gate, up, down; none: any",
				"blocks", "list of decoder layers, from 0, or from -1 backwards; none: any",
				"dense", "true: nothing is pruned there", "sparsity",
				"fraction of the weights that are pruned, below 1",
				"pattern", "N:M, N of every M consecutive inputs are pruned"),
			Example: "- {blocks: [0, -1], dense: true}\n- {roles: [down], sparsity: 0.3}\n" +
				"- {match: q_proj, pattern: \"2:4\"}\n",
		},
		{
			Name: "edits", For: []string{"edit", "editeval"}, Flag: "--edits",
			What: "JSON, a list of records, in EasyEdit's form below, or as CounterFact (requested_rewrite) and zsRE " +
				"(src, alt, answers, rephrase, loc, loc_ans) have them.",
			Keys: keys("prompt",
				"beginning of a sentence that the new answer completes, with the subject, or {} for it",
				"subject", "what the fact is about, as in the prompt; some methods do without",
				"target_new", "the new answer",
				"ground_truth", "the present answer, if it is known", "case_id", "a name or number, for reports",
				"rephrase_prompt", "the same in other words: one text, or a list", "rephrase", "more of them",
				"locality", "by a name of your choice, prompt and ground_truth of what must stay",
				"locality_prompt", "such prompts as a list, with locality_ground_truth",
				"locality_ground_truth", "their answers",
				"portability", "as locality, but of what follows from the new fact"),
			Example: `[{"prompt": "The Eiffel Tower stands in the city of", "subject": "The Eiffel Tower",
  "target_new": "Rome", "ground_truth": "Paris",
  "rephrase_prompt": "To see the Eiffel Tower, travel to",
  "locality": {"near": {"prompt": "The Louvre stands in the city of", "ground_truth": "Paris"}}}]
`,
		},
		{
			Name: "hparams", For: []string{"edit", "editeval"}, Flag: "--hparams",
			What: "YAML: hyper-parameters of an editor that replace its defaults, which --report shows. edit " +
				"remarks on keys that its method does not read.",
			Keys: keys("layers", "decoder layers to write to, from 0; values are optimised at the last",
				"steps", "iterations of an optimisation", "learning_rate", "of Adam",
				"weight_decay", "factor of |d|²/|v0|² in the loss", "clamp", "|d| is at most this times |v0|",
				"kl_factor", "weight of the divergence of the sentence about the subject",
				"reverse_kl", "KL(initial, edited) instead of KL(edited, initial)",
				"statistics", "ROME, R-ROME: use the covariance of keys, else the identity",
				"bare_key", "R-ROME: the prompt alone gives the key everywhere",
				"lambda", "MEMIT, PMET: weight of the covariance; 0: so that 95 % of an edit is taken up",
				"accumulate", "MEMIT, PMET: keys of earlier edits weigh like those of the batch",
				"settled",
				"MEMIT, PMET: a search ends once the answer has been top-1 so many times; 0: by loss and steps",
				"anchor", "bring values to one length (NAS)", "anchor_norm", "that length; 0: the mean over facts",
				"budget", "LyapLock: damage that edits may do, in multiples of the first batch's",
				"weight", "EMMET: weight of the covariance",
				"norm_lambda", "added to the diagonal of the covariance (EMMET, MEMIT, PMET)",
				"emmet_lambda", "EMMET: slack of the equality",
				"null_threshold", "AlphaEdit: eigenvalues below it span the null space; one, or one a layer",
				"l2", "AlphaEdit: ridge", "eps", "FT: largest change of an element, 0 none; GRACE: radius of a new key",
				"warm", "GRACE: values start at the present output", "rank", "LoRA", "rows",
				"WISE, MEMOIR: subject or answer",
				"threshold", "WISE, MEMOIR: from which likeness on a token is answered",
				"margin", "WISE: alpha, beta and gamma of the distances",
				"clip", "WISE, MEMOIR: length of a gradient at most; 0: any",
				"mask", "WISE: fraction of the elements that may change", "shard", "WISE: facts of a copy; 0: all",
				"top", "MEMOIR: fraction of the columns that a fact writes to",
				"matrices", "UltraEdit: roles of the matrices to write to, such as up:18-24",
				"templates", "groups of prefixes, {} is the prompt; the first is {} alone"),
			Example: "layers: [4, 5, 6]\nsteps: 25\nlearning_rate: 0.1\n",
		},
		{
			Name: "editeval-plan", For: []string{"editeval"},
			What: "YAML: editors by numbers of edits by what must not be lost. Paths count from the working " +
				"directory, then from the file. An entry of models, editors, tasks and texts is a text, or a map.",
			Keys: keys("models", "folders, or maps of path, name, adapter and experts",
				"editors", "methods, or maps of method, name, batch (a number or all) and hparams (see hparams)",
				"edits", "files of records (see edits)", "skip_invalid", "true: leave records with faults out",
				"counts",
				"numbers of edits after which everything is measured, upwards; none: 1, 10, 50, 100, 500, 1000",
				"seeds", "of the order of the edits; 0 is that of the files",
				"tasks", "task names or files, or maps of task, limit and num_fewshot", "data",
				"folders of tasks' data",
				"texts", "texts whose perplexity is measured, or maps of file, name and limit",
				"stats", "text for statistics of keys, or a map of file and tokens",
				"safety",
				"file of prompts that a model should refuse, or a map of file, column, limit, max_tokens and "+
					"refusals",
				"num_fewshot", "examples before each question", "limit", "documents of each task and text; 0: all",
				"bootstrap_iters", "for standard errors without a formula", "draws", "resamples of paired tests",
				"neighborhood", "prompts about other subjects of each record; 0: all",
				"fluency", "records whose prompts are continued", "drift", "prompts that drift is measured at; 0: 64",
				"bins", "columns of the retention matrix; 0: 10"),
			Example: "models: [./my-model]\neditors:\n  - memit\n  - {method: grace, hparams: {steps: 20}}\n" +
				"edits: facts.json\ncounts: [1, 10, 100]\ntasks:\n  - {task: arc_easy, limit: 200}\n",
		},
		{
			Name: "eval-plan", For: []string{"eval batch"},
			What: "YAML: models, each evaluated on the same tasks and compared with the first.",
			Keys: keys("models", "list of maps of path, name and adapter", "models.path", "folder",
				"models.name", "for tables; none: that of the folder", "models.adapter", "folder of an adapter",
				"tasks", "names or files", "data", "folders of the tasks' data",
				"num_fewshot", "examples before each question; none: as the tasks say", "limit",
				"documents of each task",
				"bootstrap_iters", "for standard errors without a formula",
				"max_length", "tokens of a sequence at most; none: the model's context",
				"apply_chat_template", "true, or the name of a template of the tokenizer",
				"fewshot_as_multiturn", "examples as turns of the conversation",
				"system_instruction", "system message of the conversation"),
			Example: "models:\n  - {path: ./my-model}\n  - {path: pruned, name: pruned}\ntasks: " +
				"[arc_easy]\nlimit: 200\n",
		},
		{
			Name: "run-plan", For: []string{"run"},
			What: "YAML: jobs that need each other's outputs. ${NAME} stands for a variable, ${jobs.NAME.out} and " +
				"${jobs.NAME.report} for what another job writes, ${matrix.KEY} for a value of the job's matrix.",
			Keys: keys("version", "1", "vars", "names with their texts", "jobs", "names with what they do",
				"jobs.verb", "as on the command line, such as prune or lora train", "jobs.args",
				"list of its arguments",
				"jobs.flags", "its flags without the dashes, a list where a flag takes several",
				"jobs.recipe", "a recipe written in place, instead of a file",
				"jobs.needs", "jobs that come first although nothing of theirs is named",
				"jobs.inputs", "further files that the job depends on",
				"jobs.out", "name of its output; none: that of the job",
				"jobs.matrix", "names with lists of values: the job is carried out for all combinations"),
			Example: "version: 1\nvars: {model: ./my-model}\njobs:\n  prune:\n    verb: prune\n" +
				"    matrix: {sparsity: [0.3, 0.5]}\n    args: [\"${model}\"]\n" +
				"    flags: {sparsity: \"${matrix.sparsity}\", calib: calib.txt}\n  ppl:\n    verb: ppl\n" +
				"    args: [\"${jobs.prune-0.5.out}\"]\n    flags: {data: test.txt}\n",
		},
	}
}

// Readers are the verbs that read it, the first with its flag.
func (in Input) Readers() []string {
	list := slices.Clone(in.For)
	list[0] = strings.TrimSpace(list[0] + " " + in.Flag)
	return list
}

// InputReport is what schema --input finds.
type InputReport struct {
	Inputs []Input `json:"inputs"`
}

// InputFormats prints the formats of the files that a verb reads, or the one of a name; without either, the list.
func InputFormats(j *cli.Job, root *cobra.Command, word string) (any, error) {
	all := Inputs()
	if word == "" {
		for _, in := range all {
			j.Printf("%-14s %s\n", in.Name, strings.Join(in.Readers(), ", "))
		}
		j.Printf("recipes of merge: compress merge methods; task files and data: compress docs\n")
		return InputReport{all}, nil
	}

	list := slices.DeleteFunc(slices.Clone(all), func(in Input) bool {
		return in.Name != word && !slices.Contains(in.For, word)
	})
	if len(list) == 0 {
		known := []string{}
		for _, in := range all {
			known = append(known, in.Name)
		}
		if slices.Contains(SchemaVerbs(root), word) {
			return nil, cli.Usagef("%s reads no file with a format of its own (HINT: compress schema --input "+
				"lists those "+
				"that are described)", word)
		}
		return nil, cli.Usagef("no input file of the name or verb %.60q%s (HINT: compress schema --input lists them)",
			word, strictyaml.Suggest(word, known))
	}

	for i, in := range list {
		if i > 0 {
			j.Printf("\n")
		}
		j.Printf("%s", in)
	}
	return InputReport{list}, nil
}

// String is the format for a terminal.
func (in Input) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n%s\n\n", in.Name, strings.Join(in.Readers(), ", "), in.What)
	width := 0
	for _, k := range in.Keys {
		width = max(width, len(k.Name))
	}
	for _, k := range in.Keys {
		fmt.Fprintf(&b, "  %-*s  %s\n", width, k.Name, k.Meaning)
	}
	fmt.Fprintf(&b, "\n%s", in.Example)
	return b.String()
}
