package taskfile

// Key is a key of a task file, for people.
type Key struct {
	Name    string `json:"name"`
	Within  string `json:"within"`  // the key that it stands below; "" at the top
	Default string `json:"default"` // "" where there is none
	Meaning string `json:"meaning"`
}

// keys is the table of what a definition of a task may say. TestKeys holds it to what is read.
var keys = []Key{
	{"task", "", "", "name of the task, by which runs and results call it; required"},
	{"task_alias", "", "", "name in tables of results"},
	{"tag", "", "", "names under which several tasks are asked for together"},
	{"include", "", "", "another file, whose keys count where this one has none"},
	{"metadata", "", "", "version is recorded with results; the rest is yours"},

	{
		"dataset_path", "", "by the files' names",
		"form of the data: json, csv, parquet, arrow or text; data are local files",
	},
	{"dataset_kwargs", "", "", "data_files and how they are read; required"},
	{
		"data_files", "dataset_kwargs", "",
		"the file, files or saved folder of each split: {test: FILE, train: FILE}; required",
	},
	{"field", "dataset_kwargs", "", "of a JSON file: the key under which the records are"},
	{"delimiter", "dataset_kwargs", "a comma", "of a CSV file: a comma or a tab"},
	{"sep", "dataset_kwargs", "a comma", "the same as delimiter"},
	{"split", "dataset_kwargs", "", "accepted, without effect"},
	{"trust_remote_code", "dataset_kwargs", "", "accepted, without effect: no code of a data set is run"},
	{"training_split", "", "", "split from which examples are drawn"},
	{"validation_split", "", "", "split that is scored where there is no test_split"},
	{"test_split", "", "", "split that is scored; this or validation_split is required"},
	{"fewshot_split", "", "", "split from which examples are drawn instead"},
	{"process_docs", "", "", "!function of the harness' own files, which are built in; Python of yours is not run"},

	{"output_type", "", GenerateUntil, "what is asked: multiple_choice, loglikelihood, loglikelihood_rolling or " +
		"generate_until"},
	{"doc_to_text", "", "", "the question: a column, or a Jinja template of columns; required but for rolling"},
	{"doc_to_target", "", "", "the right answer: a column, a template, or the number of the choice; required"},
	{"doc_to_choice", "", "", "the answers to choose from: a list, a column or a template; required " +
		"for multiple_choice"},
	{"description", "", "", "text before the examples of each prompt"},
	{"target_delimiter", "", "a blank", "text between question and answer"},
	{"gen_prefix", "", "", "text with which every answer begins"},
	{"num_fewshot", "", "0", "examples before each question"},
	{"fewshot_delimiter", "", "an empty line", "text between examples"},
	{"fewshot_config", "", "", "how examples differ from questions"},
	{"sampler", "fewshot_config", "default", "default (drawn by the seed) or first_n"},
	{"split", "fewshot_config", "fewshot_split", "split from which examples are drawn"},
	{"samples", "fewshot_config", "", "the examples themselves, as records"},
	{"fewshot_indices", "fewshot_config", "", "accepted, without effect, as in the harness"},
	{"doc_to_text", "fewshot_config", "that of the task", "as above, for examples"},
	{"doc_to_target", "fewshot_config", "that of the task", "as above, for examples"},
	{"doc_to_choice", "fewshot_config", "that of the task", "as above, for examples"},
	{"gen_prefix", "fewshot_config", "that of the task", "as above, for examples"},
	{"target_delimiter", "fewshot_config", "that of the task", "as above, for examples"},
	{"fewshot_delimiter", "fewshot_config", "that of the task", "as above, for examples"},
	{"process_docs", "fewshot_config", "that of the task", "as above, for examples"},

	{"generation_kwargs", "", "", "how texts are generated"},
	{"until", "generation_kwargs", "fewshot_delimiter", "texts that end an answer"},
	{"max_gen_toks", "generation_kwargs", "256", "tokens of an answer at most; max_new_tokens and " +
		"max_tokens are the same"},
	{"max_new_tokens", "generation_kwargs", "256", "see max_gen_toks"},
	{"max_tokens", "generation_kwargs", "256", "see max_gen_toks"},
	{"do_sample", "generation_kwargs", "false", "only false: sampled answers could not be repeated"},
	{"temperature", "generation_kwargs", "0", "0, or anything with do_sample: false"},
	{"repeats", "", "1", "answers to each question"},
	{"filter_list", "", "", "chains of filters that find the answer in a generated text"},
	{"name", "filter_list", "none", "name of the chain in results"},
	{"filter", "filter_list", "", "the steps, each with function and its settings: regex, " +
		"take_first, majority_vote, …"},
	{"process_results", "", "", "!function of the harness' own files, which are built in"},

	{"metric_list", "", "by output_type", "the metrics"},
	{"metric", "metric_list", "", "acc, acc_norm, exact_match, perplexity, …; required"},
	{"aggregation", "metric_list", "the metric's own", "how documents are put together: mean, perplexity, …"},
	{"higher_is_better", "metric_list", "the metric's own", "which way is better, for comparisons"},
	{"ignore_case", "metric_list", "false", "compare without case"},
	{"ignore_punctuation", "metric_list", "false", "compare without punctuation"},
	{"ignore_numbers", "metric_list", "false", "compare without digits"},
	{"regexes_to_ignore", "metric_list", "", "patterns that are taken out before texts are compared"},
	{"hf_evaluate", "metric_list", "false", "only false: the evaluate package is Python"},

	{"dataset_name", "", "", "accepted, without effect"},
	{"doc_to_decontamination_query", "", "", "accepted, without effect"},
	{"should_decontaminate", "", "", "accepted, without effect"},
	{"unsafe_code", "", "", "accepted, without effect: no code is run"},
	{"group", "", "", "accepted, without effect; a file whose task is a list defines a group"},
}

// Keys lists what a definition of a task may say.
func Keys() []Key { return append([]Key(nil), keys...) }
