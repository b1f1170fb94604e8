package evalcmd

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/safefile"
)

// maxResults bounds the results of an earlier run.
const maxResults = 256 << 20

// widens tells whether a run gives all that the finished one that it continues has: with the same options, the
// same tasks or more, and as many documents or more. Anything else would replace figures by others, which is
// what --overwrite is for.
func (o *Options) widens(suite *task.Suite) error {
	if !o.Resume || o.Overwrite {
		return nil
	}

	file := filepath.Join(o.Out, resultsFile)
	text, err := safefile.ReadFile(file, maxResults)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}

	var before task.Results
	if err := json.Unmarshal(text, &before); err != nil {
		return cli.Usagef("--resume: %s is damaged: %w (HINT: choose another --out, or pass --overwrite)", file, err)
	}
	if other := o.differs(&before, suite.Tasks()); len(other) > 0 {
		return cli.Usagef("--resume: %s is finished, and this would replace it by something else: %s (HINT: choose "+
			"another --out, or pass --overwrite)", o.Out, strings.Join(other, "; "))
	}

	return nil
}

// differs lists what a finished run has that this one would not have.
func (o *Options) differs(before *task.Results, tasks []string) []string {
	var out []string
	add := func(bad bool, format string, args ...any) {
		if bad {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}

	for name := range before.Configs {
		add(!slices.Contains(tasks, name), "task %s was evaluated and now is not", name)
	}

	slices.Sort(out)
	was, now := before.Config, o.Task
	add(now.Limit > 0 && (was.Limit == 0 || now.Limit < was.Limit), "--limit was %s, now %d",
		orElse(was.Limit, "0, which is all"), now.Limit)
	add(shown(was.Shots) != shown(now.Shots), "--num-fewshot was %s, now %s", shown(was.Shots), shown(now.Shots))
	add(was.FewshotSeed != o.FewshotSeed, "--fewshot-seed was %d, now %d", was.FewshotSeed, o.FewshotSeed)
	add(shown(was.Special) != shown(now.Special), "--no-special was not the same")
	add(was.MaxLength != now.MaxLength, "--max-length was %d, now %d", was.MaxLength, now.MaxLength)
	system := ""
	if before.System != nil {
		system = *before.System
	}

	add(system != now.System, "--system-instruction was %q, now %q", system, now.System)
	add((before.ChatTemplate != nil) != (now.Chat != nil), "--apply-chat-template was %s",
		map[bool]string{true: "given, now it is not", false: "not given, now it is"}[before.ChatTemplate != nil])

	if before.ChatTemplate != nil && now.Chat != nil {
		add(*before.ChatTemplate != now.Chat.Template, "the chat template is another one")
		add(before.Multiturn != now.Chat.Multiturn, "--fewshot-as-multiturn was %t, now %t", before.Multiturn,
			now.Chat.Multiturn)
	}

	if !o.LogSamples {
		kept, _ := filepath.Glob(filepath.Join(o.Out, "samples_*.jsonl"))
		add(len(kept) > 0, "it has samples, now --log-samples is off")
	}

	return out
}

// shown is an option that may not be set.
func shown[T any](v *T) string {
	if v == nil {
		return "not given"
	}
	return fmt.Sprint(*v)
}

func orElse(n int, zero string) string {
	if n == 0 {
		return zero
	}
	return fmt.Sprint(n)
}

// unchanged tells whether a copy of kept answers has the size that it was copied with, so that nothing is lost with it.
func unchanged(dst, src string) bool {
	a, errA := os.Stat(dst)
	b, errB := os.Stat(src)
	return errA == nil && errB == nil && a.Size() == b.Size()
}

// answered tells whether a file of kept answers holds any, behind its first line.
func answered(file string) bool {
	f, err := safefile.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()

	r := bufio.NewReader(f)
	if _, err := r.ReadString('\n'); err != nil {
		return false
	}

	_, err = r.ReadByte()
	return err == nil
}
