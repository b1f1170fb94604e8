package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/internal/hub"
)

// DataDir is the variable of the environment that names a folder with texts which go by their names.
const DataDir = "COMPRESS_DATA"

// Uses of a text, by which the part of a data set is chosen.
const (
	ToMeasure = "test"  // perplexity, and what is decided by it
	ToLearn   = "train" // calibration, statistics, training
)

// textMark marks flags that take texts, with their use.
const textMark = "compress-text"

// Texts marks flags that name texts, which may be data sets known by name; use is [ToMeasure] or [ToLearn].
func Texts(cmd *cobra.Command, use string, flags ...string) {
	for _, flag := range flags {
		if err := cmd.Flags().SetAnnotation(flag, textMark, []string{use}); err != nil {
			panic("compress: a mark for a flag that is not there")
		}
	}
}

// dataset is a data set of the Hugging Face hub that papers measure on.
type dataset struct {
	names       []string
	id          hub.Name
	train, test string // files of the repository
	join        bool   // records are lines of texts: windows of calibration are taken of one long text
}

// datasets are those known by name. Files are those of the repositories as they are.
var datasets = []dataset{
	{
		[]string{"wikitext2", "wikitext-2"},
		hub.Name{Owner: "Salesforce", Repo: "wikitext"},
		"wikitext-2-raw-v1/train-00000-of-00001.parquet", "wikitext-2-raw-v1/test-00000-of-00001.parquet", true,
	},
	{
		[]string{"wikitext103", "wikitext-103"},
		hub.Name{Owner: "Salesforce", Repo: "wikitext"},
		"wikitext-103-raw-v1/train-00000-of-00002.parquet", "wikitext-103-raw-v1/test-00000-of-00001.parquet", true,
	},
	{
		[]string{"c4"},
		hub.Name{Owner: "allenai", Repo: "c4"},
		"en/c4-train.00000-of-01024.json.gz", "en/c4-validation.00000-of-00008.json.gz", false,
	},
}

// DatasetNames are the names by which data sets are known.
func DatasetNames() (list []string) {
	for _, d := range datasets {
		list = append(list, d.names[0])
	}
	return list
}

// file is the part of a data set for a use.
func (d *dataset) file(use string) string {
	if use == ToMeasure {
		return d.test
	}
	return d.train
}

// fetch is the command that gets the part.
func (d *dataset) fetch(use string) string {
	return fmt.Sprintf("hf download %s %s --repo-type dataset", d.id.ID(), d.file(use))
}

// findData puts files in the place of the names of data sets that flags have. What was given stands in the report's
// args, as for models. Nothing is downloaded.
func (j *Job) findData(c *cobra.Command) error {
	for _, f := range changed(c) {
		use := f.Annotations[textMark]
		if use == nil {
			continue
		}

		joined := false
		err := replaceValues(f, func(text string) (string, error) {
			path, join, err := findText(text, use[0])
			if err == nil && path != text {
				j.note(path, text)
				joined = joined || join
			}
			return path, err
		})
		if err != nil {
			return fmt.Errorf("--%s %w", f.Name, err)
		}

		// As papers take it, unless the user says so himself, which then is nothing new.
		if join := c.Flags().Lookup("join"); joined && f.Name == "calib" && join != nil {
			if err := join.Value.Set("true"); err != nil {
				return err
			}
		}
	}
	return nil
}

// note says what a name stands for, and keeps it for cards.
func (j *Job) note(path, text string) {
	j.Aside(text + ": " + path)
	if j.typed == nil {
		j.typed = map[string]string{}
	}
	j.typed[path] = text
}

// replaceValues changes every value of a flag.
func replaceValues(f *pflag.Flag, change func(string) (string, error)) error {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		texts := slices.Clone(list.GetSlice())
		for i := range texts {
			var err error
			if texts[i], err = change(texts[i]); err != nil {
				return err
			}
		}
		return list.Replace(texts)
	}

	was := f.Value.String()
	text, err := change(was)
	if err != nil || text == was {
		return err
	}
	if once, ok := f.Value.(*single); ok {
		return once.Value.Set(text)
	}
	return f.Value.Set(text)
}

// findText finds what a text names: a file or folder of that path, one in the folder of [DataDir], or a known data set
// in the hub's cache. Anything else stays as it is, for its reader to say what is wrong with it.
func findText(text, use string) (path string, join bool, err error) {
	if _, err := os.Stat(text); err == nil || strings.ContainsAny(text, `/\`) {
		return text, false, nil
	}

	var known *dataset
	for i := range datasets {
		if slices.Contains(datasets[i].names, strings.ToLower(text)) {
			known = &datasets[i]
		}
	}
	join = known != nil && known.join

	if dir := os.Getenv(DataDir); dir != "" {
		if path, ok := besides(dir, text, use); ok {
			return path, join, nil
		}
	}
	if known == nil {
		return text, false, nil
	}

	if snapshot, ok := known.id.FindData(hub.CacheDir()); ok {
		path := filepath.Join(snapshot, filepath.FromSlash(known.file(use)))
		if _, err := os.Stat(path); err == nil {
			return path, join, nil
		}
	}

	return "", false, failure.Hinted(Usagef("%s: neither a file nor in the hub's cache, and nothing is downloaded here",
		text), known.fetch(use)+"; or name a file of your own, text or JSONL")
}

// besides looks for a text by its name in a folder: NAME-train.jsonl, say, then NAME.jsonl, or a folder NAME with
// train.jsonl or with files of no split.
func besides(dir, name, use string) (string, bool) {
	for _, base := range []string{name + "-" + use, filepath.Join(name, use), name} {
		for _, end := range []string{".jsonl", ".jsonl.gz", ".json.gz", ".parquet", ".txt", ""} {
			path := filepath.Join(dir, base+end)
			if _, err := os.Stat(path); err == nil {
				return path, true
			}
		}
	}
	return "", false
}

// DataThere says what is wrong with the path of a text before any work: nothing with a pattern, which is looked at when
// it is read.
func DataThere(path string) error {
	if _, err := os.Stat(path); err != nil && !(errors.Is(err, fs.ErrNotExist) && strings.ContainsAny(path, "*?")) {
		return err
	}
	return nil
}
