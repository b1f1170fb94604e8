package task

import (
	"fmt"
	"path"
	"regexp"
	"slices"
)

// Origin says where a data file of a shipped task comes from. Data do not come with this package: most may not be
// passed on, and some must not appear in the texts that models learn from.
type Origin struct {
	Pattern string `json:"pattern"`           // by which the task names it
	Dataset string `json:"dataset,omitempty"` // data set of the Hugging Face hub; empty: the file is elsewhere
	File    string `json:"file,omitempty"`    // of the data set
	URL     string `json:"url,omitempty"`     // of the file, or of an archive that holds it, if it is not on the hub
	Inside  string `json:"inside,omitempty"`  // name in that archive, a .zip
	As      string `json:"as"`                // where it is looked for, in the folder of the data
}

// Command is a line for a shell that gets the file into a folder.
func (o *Origin) Command(dir string) string {
	to := path.Join(dir, o.As)
	switch {
	case o.Dataset != "":
		return fmt.Sprintf("hf download %s %s --repo-type dataset --local-dir %s/.hf && mkdir -p %s && mv %s/.hf/%s %s",
			o.Dataset, o.File, dir, path.Dir(to), dir, o.File, to)
	case o.Inside != "":
		return fmt.Sprintf("curl -L -o %s.zip %s && mkdir -p %s && unzip -p %s.zip %s > %s", path.Base(o.As), o.URL,
			path.Dir(to), path.Base(o.As), o.Inside, to)
	}
	return fmt.Sprintf("curl -L --create-dirs -o %s %s", to, o.URL)
}

// origin is a row of the table: what a pattern matches stands in the other texts as $1, $2.
type origin struct {
	pattern                        string
	dataset, file, url, inside, as string
}

// origins are where publishers are known to have them; nobody promises that they stay there, and a file that is not
// there is an error that names its place. Parts of the hub's data sets are Parquet files.
var origins = compiled([]origin{
	{`arc/(ARC-\w+)-Test\.\*`, "allenai/ai2_arc", part("$1/test"), "", "", "arc/$1-Test.parquet"},
	{`arc/(ARC-\w+)-Dev\.\*`, "allenai/ai2_arc", part("$1/validation"), "", "", "arc/$1-Dev.parquet"},
	{`arc/(ARC-\w+)-Train\.\*`, "allenai/ai2_arc", part("$1/train"), "", "", "arc/$1-Train.parquet"},
	{`boolq/train\.\*`, "google/boolq", part("data/train"), "", "", "boolq/train.parquet"},
	{`boolq/dev\.\*`, "google/boolq", part("data/validation"), "", "", "boolq/dev.parquet"},
	{`commonsenseqa/train\*\.\*`, "tau/commonsense_qa", part("data/train"), "", "", "commonsenseqa/train.parquet"},
	{`commonsenseqa/dev\*\.\*`, "tau/commonsense_qa", part("data/validation"), "", "", "commonsenseqa/dev.parquet"},
	{`gsm8k/(train|test)\.\*`, "openai/gsm8k", part("main/$1"), "", "", "gsm8k/$1.parquet"},
	{`hellaswag/hellaswag_train\.\*`, "Rowan/hellaswag", part("data/train"), "", "", "hellaswag/hellaswag_train.parquet"},
	{
		`hellaswag/hellaswag_val\.\*`, "Rowan/hellaswag", part("data/validation"), "", "",
		"hellaswag/hellaswag_val.parquet",
	},
	{
		`lambada/lambada_test\*\.\*`, "EleutherAI/lambada_openai", "data/lambada_test.jsonl", "", "",
		"lambada/lambada_test.jsonl",
	},
	{`mmlu/(test|dev)/(\w+)_(?:test|dev)\.\*`, "cais/mmlu", part("$2/$1"), "", "", "mmlu/$1/${2}_$1.parquet"},
	{`openbookqa/(train|test)\.\*`, "allenai/openbookqa", part("main/$1"), "", "", "openbookqa/$1.parquet"},
	{`openbookqa/dev\.\*`, "allenai/openbookqa", part("main/validation"), "", "", "openbookqa/dev.parquet"},
	{
		`truthfulqa/mc_task\.\*`, "truthfulqa/truthful_qa", part("multiple_choice/validation"), "", "",
		"truthfulqa/mc_task.parquet",
	},
	{`winogrande/train_xl\.\*`, "allenai/winogrande", part("winogrande_xl/train"), "", "", "winogrande/train_xl.parquet"},
	{`winogrande/dev\.\*`, "allenai/winogrande", part("winogrande_xl/validation"), "", "", "winogrande/dev.parquet"},
	{
		`bbh/(.+\.(?:json|txt))`, "", "", "https://raw.githubusercontent.com/suzgunmirac/BIG-Bench-Hard/main/$1", "",
		"bbh/$1",
	},
	{`piqa/(.+\.(?:jsonl|lst))`, "", "", "https://yonatanbisk.com/piqa/data/$1", "", "piqa/$1"},
	{
		`siqa/(.+\.(?:jsonl|lst))`, "", "",
		"https://storage.googleapis.com/ai2-mosaic/public/socialiqa/socialiqa-train-dev.zip", "socialiqa-train-dev/$1",
		"siqa/$1",
	},
	{
		`wikitext/wiki\.test\.raw`, "", "",
		"https://huggingface.co/datasets/ggml-org/ci/resolve/main/wikitext-2-raw-v1.zip",
		"wikitext-2-raw/wiki.test.raw", "wikitext/wiki.test.raw",
	},
})

// part is the one file of a split as the hub names it.
func part(split string) string { return split + "-00000-of-00001.parquet" }

type compiledOrigin struct {
	*regexp.Regexp
	origin
}

func compiled(list []origin) (out []compiledOrigin) {
	for _, o := range list {
		out = append(out, compiledOrigin{regexp.MustCompile("^" + o.pattern + "$"), o})
	}
	return out
}

// OriginOf says where the data file comes from that a shipped task names by a pattern; false for any other.
func OriginOf(pattern string) (Origin, bool) {
	for _, o := range origins {
		at := o.FindStringSubmatchIndex(pattern)
		if at == nil {
			continue
		}
		fill := func(text string) string { return string(o.ExpandString(nil, text, pattern, at)) }
		return Origin{
			Pattern: pattern, Dataset: o.dataset, File: fill(o.file), URL: fill(o.url), Inside: fill(o.inside),
			As: fill(o.as),
		}, true
	}
	return Origin{}, false
}

// Origins says where the data of tasks come from, those of the members of groups and tags too, each file once. Entries
// are as those of [Load]. Files of tasks that are not shipped are left out.
func Origins(entries []string) ([]Origin, error) {
	s, err := Load(entries)
	if err != nil {
		return nil, err
	}

	var list []Origin
	for _, name := range s.tasks {
		for _, o := range describe(s.lib, name).Origins {
			if !slices.Contains(list, o) {
				list = append(list, o)
			}
		}
	}
	return list, nil
}
