package runcmd

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/workers"
	"github.com/modelcompress/compress/internal/strictyaml"
)

// TestPlanFaults: every fault is a wrong use and names its line.
func TestPlanFaults(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	for name, c := range map[string]struct{ plan, want string }{
		"syntax":  {"version: 1\njobs: [", "plan.yaml:2"},
		"version": {"version: 2\njobs: {a: {verb: mix, args: [.]}}", "plan.yaml:1:10: version must be"},
		"no jobs": {"version: 1\njobs: {}", "jobs is empty"},
		"unknown key": {
			"version: 1\njob: {}\njobs: {a: {verb: mix, args: [.]}}",
			`plan.yaml:2:1: unknown key "job"`,
		},
		"unknown job key": {
			"version: 1\njobs:\n  a:\n    verb: mix\n    arg: [.]\n",
			`plan.yaml:5:5: unknown key "arg"`,
		},
		"unknown verb": {
			"version: 1\njobs:\n  a: {verb: mxi}\n",
			`plan.yaml:3:13: unknown verb "mxi"; did you mean "mix"?`,
		},
		"group":        {"version: 1\njobs:\n  a: {verb: deep}\n", `plan.yaml:3:13: verb "deep" is not complete`},
		"run in a run": {"version: 1\njobs:\n  a: {verb: run, args: [x]}\n", `unknown verb "run"`},
		"unknown flag": {
			"version: 1\njobs:\n  a: {verb: mix, args: [.], flags: {txet: 1}}\n",
			`plan.yaml:3:37: mix has no flag "txet"; did you mean "text"?`,
		},
		"bad value": {
			"version: 1\njobs:\n  a: {verb: mix, args: [.], flags: {n: many}}\n",
			`plan.yaml:3:40: flag n is "many": want a whole number`,
		},
		"bad bool": {
			"version: 1\njobs:\n  a: {verb: mix, args: [.], flags: {yes: perhaps}}\n",
			`want true or false`,
		},
		"empty value": {
			"version: 1\njobs:\n  a: {verb: mix, args: [.], flags: {text: ''}}\n",
			`flag text is empty`,
		},
		"list": {
			"version: 1\njobs:\n  a: {verb: mix, args: [.], flags: {text: [a, b]}}\n",
			`flag text takes one value`,
		},
		"own flag": {
			"version: 1\njobs:\n  a: {verb: mix, args: [.], flags: {out: x}}\n",
			`plan.yaml:3:37: flag out is given by the run itself`,
		},
		"arguments": {"version: 1\njobs:\n  a: {verb: mix}\n", `plan.yaml:3:3: job a: 0 arguments are given`},
		"value twice": {
			"version: 1\njobs:\n  a: {verb: mix, matrix: {s: [0.1, 0.2, 0.1]}, args: [.]}\n",
			`value "0.1" is twice in matrix key s`,
		},
		"no variable": {
			"version: 1\nvars: {modle: x}\njobs:\n  a: {verb: mix, args: [\"${model}\"]}\n",
			`plan.yaml:4:25: ${model}: there is no variable model; did you mean "modle"?`,
		},
		"later variable": {
			"version: 1\nvars: {a: \"${b}\", b: x}\njobs:\n  a: {verb: mix, args: [.]}\n",
			`there is no variable b`,
		},
		"open reference": {"version: 1\njobs:\n  a: {verb: mix, args: [\"${model\"]}\n", `a reference is ${NAME}`},
		"no job": {
			"version: 1\njobs:\n  a: {verb: mix, args: [\"${jobs.b.out}\"]}\n",
			`plan.yaml:3:25: ${jobs.b.out}: there is no job "b"`,
		},
		"itself": {
			"version: 1\njobs:\n  a: {verb: mix, args: [\"${jobs.a.out}\"]}\n",
			`a job cannot need itself`,
		},
		"needs itself": {"version: 1\njobs:\n  a: {verb: mix, args: [.], needs: [a]}\n", `a job cannot need itself`},
		"no such need": {
			"version: 1\njobs:\n  a: {verb: mix, args: [.], needs: [b]}\n",
			`needs: there is no job "b"`,
		},
		"field": {"version: 1\njobs:\n  a: {verb: mix, args: [.]}\n  b: {verb: mix, args: " +
			"[\"${jobs.a.log}\"]}\n", `a job has out and report`},
		"no output": {"version: 1\njobs:\n  a: {verb: count, args: [.]}\n  b: {verb: mix, args: " +
			"[\"${jobs.a.out}\"]}\n", `count has no output (HINT: ${jobs.a.report}`},
		"cycle": {
			"version: 1\njobs:\n  a: {verb: mix, args: [\"${jobs.b.out}\"]}\n  b: {verb: mix, args: " +
				"[\"${jobs.c.out}\"]}\n  c: {verb: mix, args: [.], needs: [a]}\n",
			`plan.yaml:3:3: jobs need each other: a needs b needs c needs a`,
		},
		"many": {"version: 1\njobs:\n  a: {verb: mix, args: [.], matrix: {n: [1, 2]}}\n  b: {verb: mix, " +
			"args: [\"${jobs.a.out}\"]}\n", `job a stands for 2 jobs: a-1, a-2 (HINT`},
		"matrix key": {
			"version: 1\njobs:\n  a: {verb: mix, args: [\"${matrix.m}\"], matrix: {n: [1, 2]}}\n",
			`the job's matrix has no key m`,
		},
		"empty matrix": {
			"version: 1\njobs:\n  a: {verb: mix, args: [.], matrix: {n: []}}\n",
			`matrix key n has no values`,
		},
		"names clash": {
			"version: 1\njobs:\n  a: {verb: mix, args: [.], matrix: {n: [\"2:4\", \"2_4\"]}}\n",
			`a-2_4.log is written by a-2_4 already`,
		},
		"outputs clash": {
			"version: 1\njobs:\n  a: {verb: mix, args: [.], out: b}\n  b: {verb: mix, args: [.]}\n",
			`job b: b is written by a already`,
		},
		"reserved": {
			"version: 1\njobs:\n  a: {verb: mix, args: [.], out: report.json}\n",
			`report.json is written by the run itself already`,
		},
		"leaves": {
			"version: 1\njobs:\n  a: {verb: mix, args: [.], out: ../b}\n",
			`plan.yaml:3:34: out "../b": a name in the folder`,
		},
		"hidden": {
			"version: 1\njobs:\n  a: {verb: mix, args: [.], out: .run}\n",
			`out ".run": a name in the folder`,
		},
		"masks outside": {
			"version: 1\njobs:\n  a: {verb: mix, args: [.], flags: {masks: m.safetensors}}\n",
			`flag masks writes a file: want ${dir}/NAME`,
		},
		"masks clash": {
			"version: 1\njobs:\n  a: {verb: mix, args: [.], flags: {masks: \"${dir}/a.log\"}}\n",
			`a.log is written by something else already`,
		},
		"job name": {"version: 1\njobs:\n  a/b: {verb: mix, args: [.]}\n", `job "a/b"`},
		"too many": {"version: 1\njobs:\n  a: {verb: mix, args: [.], matrix: {a: [1,2,3,4,5,6,7,8,9,0], b: " +
			"[1,2,3,4,5,6,7,8,9,0], c: [1,2,3,4,5,6,7,8,9,0], d: [1,2]}}\n", `more than 1000 jobs`},
		"recipe": {
			"version: 1\njobs:\n  a: {verb: merge, recipe: {merge_method: liner, models: [{model: x}]}}\n",
			`plan.yaml:3:29: recipe of a: `,
		},
		"no recipe": {"version: 1\njobs:\n  a: {verb: mix, recipe: {x: 1}}\n", `mix reads no recipe`},
		"no input":  {"version: 1\njobs:\n  a: {verb: mix, args: [nowhere]}\n", `job a: there is no nowhere`},
		"no data": {
			"version: 1\njobs:\n  a: {verb: mix, args: [.], flags: {data: nowhere}}\n",
			`job a: there is no nowhere`,
		},
		"no such input": {
			"version: 1\njobs:\n  a: {verb: mix, args: [.], inputs: nowhere}\n",
			`job a: there is no nowhere`,
		},
		"written out": {"version: 1\njobs:\n  a: {verb: mix, args: [.]}\n  b: {verb: mix, args: [.], flags: " +
			"{text: OUT/a}}\n", `is what job a writes (HINT: write ${jobs.a.out})`},
	} {
		var err error
		b, err := build("plan.yaml", []byte(strings.ReplaceAll(c.plan, "OUT", out)), verbs, nil)
		if err == nil {
			err = b.inspect(b.jobs, out)
		}
		if err == nil || !cli.IsUsage(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestSettles: matrices, references and documents come out as they should.
func TestSettles(t *testing.T) {
	b, err := build("plan.yaml", []byte(`version: 1
vars: {m: models, base: "${m}/base", five: "5"}
jobs:
  p:
    verb: mix
    matrix: &grid {method: [x, "y:z"], n: [1, 2]}
    args: ["${base}"]
    flags: {text: "${matrix.method}", n: "${matrix.n}", list: [a, "b,c"], yes: true}
  q: {verb: mix, matrix: *grid, args: ["${jobs.p.out}", "-1"], flags: {n: 7}}
  r: {verb: mix, args: ["${jobs.p-x-2.out}"], needs: [q]}
  s: {verb: report, args: ["${jobs.q.reports}", "${jobs.r.report}"], out: all.html}
  u: {verb: merge, recipe: {merge_method: linear, models: ["${jobs.p.outs}"], k: "${five}", l: "x${five}", t: "$${five}"}}
  v: {verb: mix, matrix: {method: [x]}, args: ["${m}"], needs: [p]}
`), verbs, map[string]string{"m": "elsewhere"})

	_ = b
	// the recipe is not one of merge; the rest is as it should be
	if err == nil || !strings.Contains(err.Error(), "recipe of u") {
		t.Fatal(err)
	}

	text := strings.NewReplacer("verb: merge, recipe: {merge_method: linear, ",
		"verb: merge, recipe: {merge_method: linear, parameters: {weight: 1}, ",
		"models: [\"${jobs.p.outs}\"], k: \"${five}\", l: \"x${five}\", t: \"$${five}\"",
		"models: [{model: \"${jobs.p-x-1.out}\", parameters: {weight: \"${five}\"}}]").Replace(`version: 1
vars: {m: models, base: "${m}/base", five: "5"}
jobs:
  p:
    verb: mix
    matrix: &grid {method: [x, "y:z"], n: [1, 2]}
    args: ["${base}"]
    flags: {text: "${matrix.method}", n: "${matrix.n}", list: [a, "b,c"], yes: true}
  q: {verb: mix, matrix: *grid, args: ["${jobs.p.out}", "-1"], flags: {n: 7}}
  r: {verb: mix, args: ["${jobs.p-x-2.out}"], needs: [q]}
  s: {verb: report, args: ["${jobs.q.reports}", "${jobs.r.report}"], out: all.html}
  u: {verb: merge, recipe: {merge_method: linear, models: ["${jobs.p.outs}"], k: "${five}", l: "x${five}", t: "$${five}"}}
  v: {verb: mix, matrix: {method: [x]}, args: ["${m}"], needs: [p]}
`)

	if b, err = build("plan.yaml", []byte(text), verbs, map[string]string{"m": "elsewhere"}); err != nil {
		t.Fatal(err)
	}

	var got []string
	for _, j := range b.jobs {
		line := strings.Join(j.arguments("DIR"), " ") + " <"
		for _, n := range j.needs {
			line += " " + n.name
		}
		got = append(got, line)
	}

	want := []string{
		"mix --out=DIR/p-x-1 --report=DIR/p-x-1.report.json elsewhere/base --text=x --n=1 --list=a --list=\"b,c\" " +
			"--yes=true <",
		"mix --out=DIR/p-x-2 --report=DIR/p-x-2.report.json elsewhere/base --text=x --n=2 --list=a --list=\"b,c\" " +
			"--yes=true <",
		"mix --out=DIR/p-y_z-1 --report=DIR/p-y_z-1.report.json elsewhere/base --text=y:z --n=1 --list=a " +
			"--list=\"b,c\" --yes=true <",
		"mix --out=DIR/p-y_z-2 --report=DIR/p-y_z-2.report.json elsewhere/base --text=y:z --n=2 --list=a " +
			"--list=\"b,c\" --yes=true <",
		"mix --out=DIR/q-x-1 --report=DIR/q-x-1.report.json --n=7 -- DIR/p-x-1 -1 < p-x-1",
		"mix --out=DIR/q-x-2 --report=DIR/q-x-2.report.json --n=7 -- DIR/p-x-2 -1 < p-x-2",
		"mix --out=DIR/q-y_z-1 --report=DIR/q-y_z-1.report.json --n=7 -- DIR/p-y_z-1 -1 < p-y_z-1",
		"mix --out=DIR/q-y_z-2 --report=DIR/q-y_z-2.report.json --n=7 -- DIR/p-y_z-2 -1 < p-y_z-2",
		"mix --out=DIR/r --report=DIR/r.report.json DIR/p-x-2 < p-x-2 q-x-1 q-x-2 q-y_z-1 q-y_z-2",
		"report --out=DIR/all.html --report=DIR/s.report.json DIR/q-x-1.report.json DIR/q-x-2.report.json " +
			"DIR/q-y_z-1.report.json DIR/q-y_z-2.report.json DIR/r.report.json < q-x-1 q-x-2 q-y_z-1 q-y_z-2 r",
		"merge --out=DIR/u --report=DIR/u.report.json DIR/u.recipe.yaml < p-x-1",
		"mix --out=DIR/v-x --report=DIR/v-x.report.json elsewhere < p-x-1 p-x-2 p-y_z-1 p-y_z-2",
	}

	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	u := b.jobs[slices.IndexFunc(b.jobs, func(j *job) bool { return j.name == "u" })]
	if doc := string(u.document("DIR")); !strings.Contains(doc, "model: DIR/p-x-1\n") ||
		!strings.Contains(doc, "weight: 5\n") {
		t.Errorf("document:\n%s", doc)
	}
}

// drawPlan draws a plan of jobs that need earlier ones, written in another order.
func drawPlan(t *rapid.T) string {
	n := rapid.IntRange(1, 9).Draw(t, "jobs")
	var lines []string
	for i := range n {
		args := []string{"IN"}
		for k := range i {
			if rapid.IntRange(0, 2).Draw(t, "edge") == 0 {
				args = append(args, fmt.Sprintf(`"${jobs.j%d.out}"`, k))
			}
		}

		lines = append(lines,
			fmt.Sprintf("  j%d: {verb: mix, args: [%s], flags: {n: %d}}", i, strings.Join(args, ", "), i))
	}

	rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "order"), 1)).Shuffle(n,
		func(i, k int) { lines[i], lines[k] = lines[k], lines[i] })
	return "version: 1\njobs:\n" + strings.Join(lines, "\n") + "\n"
}

// TestAnyGraph: whatever the graph, the number of count and the place where a run was broken off, the outputs
// are the same, each job is done once, and none before what it needs (the stand-in for programs fails where an
// input is not there).
func TestAnyGraph(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir := t.TempDir()
		in := filepath.Join(dir, "in")
		if err := os.WriteFile(in, []byte("one"), 0o666); err != nil {
			rt.Fatal(err)
		}

		plan := strings.ReplaceAll(drawPlan(rt), "IN", in)
		sums := map[int]map[string]string{}
		for _, count := range []int{1, rapid.IntRange(2, 4).Draw(rt, "workers")} {
			out := filepath.Join(dir, fmt.Sprint("out", count))
			s := &stand{t: t}
			if count > 1 { // one job fails at first
				bad := fmt.Sprint("j", rapid.IntRange(0, 8).Draw(rt, "bad"))
				s.fail = func(job string, _ []string) (int, error) { return map[bool]int{true: 1}[job == bad], nil }
				_, _, _ = try(t, t.Context(), plan,
					Options{
						Out: out, Where: workers.Where{Workers: count}, program: s.run, straight: true,
						KeepGoing: rapid.Bool().Draw(rt, "keep going"),
					})
				s.fail = nil
				s.ran = slices.DeleteFunc(s.ran, func(j string) bool { return j == bad })
			}

			rep, said, err := try(t, t.Context(), plan,
				Options{Out: out, Where: workers.Where{Workers: count}, program: s.run, straight: true})
			if err != nil {
				rt.Fatalf("%v\n%s\n%s", err, plan, said)
			}

			sums[count] = map[string]string{}

			for _, row := range rep.Jobs {
				text, err := os.ReadFile(filepath.Join(row.Out, "sum"))
				if err != nil || !row.ready() {
					rt.Fatalf("%v %+v", err, row)
				}
				sums[count][row.Name] = string(text)
			}

			if ran := strings.Fields(s.begun()); len(ran) != len(rep.Jobs) {
				rt.Fatalf("%d workers: began %q of %d jobs", count, ran, len(rep.Jobs))
			}
		}

		for count, got := range sums {
			for name, sum := range got {
				if sums[1][name] != sum {
					rt.Fatalf("%d workers: %s differs\n%s", count, name, plan)
				}
			}
		}
	})
}

// FuzzPlan: no plan, however odd, does harm; one that is taken has its jobs in an order that suits their needs,
// and names that stay in the folder.
func FuzzPlan(f *testing.F) {
	f.Add([]byte(chain))
	f.Add([]byte("version: 1\njobs:\n  a: {verb: mix, args: [.], matrix: {a: [1,2,3], b: [x, y]}, out: " +
		"\"o-${matrix.a}-${matrix.b}\"}\n" +
		"  b: {verb: mix, args: [\"${jobs.a.outs}\"]}\n"))
	f.Add([]byte("version: 1\nvars: {a: &x b, c: \"${a}${a}\"}\njobs:\n  a: {verb: merge, recipe: {merge_method: " +
		"slerp, base_model: \"${c}\", models: [*x], parameters: {t: 0.5}}}\n"))
	f.Add([]byte("version: 1\njobs:\n  a: {verb: deep inner, args: [a], needs: b, inputs: [c]}\n  b: {verb: report, " +
		"args: [a], out: b.md}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := build("plan.yaml", text, verbs, nil)
		if err != nil {
			if !cli.IsUsage(err) {
				t.Fatalf("%v", err)
			}
			return
		}

		done := map[*job]bool{}
		for _, j := range b.jobs {
			for _, n := range j.needs {
				if !done[n] {
					t.Fatalf("%s comes before %s", j.name, n.name)
				}
			}

			done[j] = true

			for _, n := range append(j.files(), j.extra...) {
				if filepath.Base(n) != n || strings.HasPrefix(n, ".") {
					t.Fatalf("%s writes %q", j.name, n)
				}
			}

			if _, err := strictyaml.Parse("recipe", j.document("DIR")); j.recipe != nil && err != nil {
				t.Fatalf("%s: %v\n%s", j.name, err, j.document("DIR"))
			}
		}
	})
}
