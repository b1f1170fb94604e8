package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/modelcompress/compress"
	"github.com/modelcompress/compress/cmd/compress/internal/memory"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
)

// job is one run of a verb: the flags that all verbs have, and what the run says about itself.
type job struct {
	*app
	ctx   context.Context
	start time.Time
	dev   kernels.Device

	command string   // full name of the verb
	inputs  []string // files and folders that the command line names to be read

	device  string
	threads int
	seed    uint64
	quiet   bool
	json    bool
	report  string
}

// work does what a verb is for. It returns what goes into --json and --report: a struct or map with JSON tags.
type work func(j *job, args []string) (any, error)

// newVerb makes a command with the common flags around its work.
func (a *app) newVerb(use, short, long, example string, args cobra.PositionalArgs, do work) *cobra.Command {
	j := &job{app: a}
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Example: example, Args: checkArgs(args)}
	cmd.RunE = func(c *cobra.Command, args []string) error {
		a.working, j.command = true, c.CommandPath()
		j.ctx, j.start = c.Context(), time.Now()
		j.inputs = inputs(c, args)
		if err := errors.Join(checkEmpty(c, args), j.checkReport(c)); err != nil {
			return err
		}
		defer j.close()
		result, err := do(j, args)
		if err != nil {
			return err
		}
		return j.finish(result)
	}
	f := cmd.Flags()
	f.StringVar(&j.device, "device", "auto", "compute device: auto, cpu, ref (slow and plain) or cuda:N")
	f.IntVar(&j.threads, "threads", 0, "worker threads; 0 is one for each processor")
	f.Uint64Var(&j.seed, "seed", 0, "seed of everything that is drawn")
	f.BoolVarP(&j.quiet, "quiet", "q", false, "no progress and no remarks")
	f.BoolVar(&j.json, "json", false, "machine-readable output on stdout")
	f.StringVar(&j.report, "report", "", "also write the run's report to this JSON file")
	complete(cmd, "device", "auto", "cpu", "ref", "cuda:0")
	return cmd
}

// complete offers fixed words as a flag's values in the shell.
func complete(cmd *cobra.Command, flag string, words ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic("compress: completion for a flag that is not there")
	}
}

// open opens the device that the flags ask for, once.
func (j *job) open() (kernels.Device, error) {
	if j.dev != nil {
		return j.dev, nil
	}
	if most := max(1024, 8*runtime.NumCPU()); j.threads < 0 || j.threads > most {
		return nil, usagef("--threads %d: want 0 to %d", j.threads, most)
	}
	dev, err := device.Open(j.device, device.Options{Threads: j.threads})
	j.dev = dev
	return dev, err
}

func (j *job) close() {
	if j.dev != nil {
		j.dev.Close()
	}
}

// finish writes the machine-readable forms of a result.
func (j *job) finish(result any) error {
	if !j.json && j.report == "" {
		return nil
	}
	full, err := j.record(result)
	if err != nil {
		return err
	}
	if j.report != "" {
		if err := writeWhole(j.report, full); err != nil {
			return fmt.Errorf("report: %w", err)
		}
	}
	if j.json {
		if _, isRaw := result.(raw); isRaw {
			full, err = json.Marshal(result)
			full = append(full, '\n')
		}
		if err == nil {
			_, err = j.stdout.Write(full)
		}
	}
	return err
}

// raw marks a result that --json prints as it is, without the facts about the run.
type raw interface{ raw() }

// record is the result, as one flat object, with the facts about the run added where the result has no such key.
func (j *job) record(result any) ([]byte, error) {
	all := map[string]any{
		"command": j.command, "args": j.args, "version": compress.Version(), "seed": j.seed,
		"started": j.start.UTC().Format(time.RFC3339), "seconds": time.Since(j.start).Seconds(), "peak_memory_bytes": memory.Peak(),
	}
	if j.dev != nil {
		all["device"] = j.dev.Info()
		if f := device.Fallbacks(j.dev); len(f) > 0 {
			all["fallbacks"] = f
		}
	}
	data, err := json.Marshal(result)
	if err != nil {
		return nil, err
	}
	var own map[string]json.RawMessage
	if err := json.Unmarshal(data, &own); err != nil {
		own = map[string]json.RawMessage{"result": data}
	}
	for k, v := range own {
		all[k] = v
	}
	out, err := json.MarshalIndent(all, "", "  ")
	return append(out, '\n'), err
}

// writeWhole writes a file so that it is there completely or not at all. Pipes and devices are written directly.
func writeWhole(path string, data []byte) error {
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() && !st.IsDir() {
		return os.WriteFile(path, data, 0o644)
	}
	return renameio.WriteFile(path, data, 0o644)
}

// note writes a remark to stderr unless --quiet.
func (j *job) note(format string, args ...any) {
	if !j.quiet {
		fmt.Fprintf(j.stderr, format+"\n", args...)
	}
}

// out is where results for people go: nowhere with --json.
func (j *job) out() io.Writer {
	if j.json {
		return io.Discard
	}
	return j.stdout
}
