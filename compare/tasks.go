//go:build ignore

// Command tasks says what this project makes of task files, for tasks.py: it reads paths, one a line, and prints for
// each what was wrong with it, or the first prompt of its task with what is asked and what is right.
package main

import (
	"bufio"
	"encoding/json"
	"log"
	"os"

	"github.com/modelcompress/compress/editeval/task"
)

// answer is what is said about a file.
type answer struct {
	File       string            `json:"file"`
	Error      string            `json:"error,omitempty"`
	Checked    []task.Checked    `json:"checked,omitempty"`
	Definition []task.Definition `json:"definition,omitempty"`
}

func main() {
	shots := 2
	out := bufio.NewWriter(os.Stdout)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		a := ask(in.Text(), shots)
		if err := json.NewEncoder(out).Encode(a); err != nil {
			log.Fatal(err)
		}
	}

	if err := out.Flush(); err != nil {
		log.Fatal(err)
	}
}

// ask reads a file and makes the prompts of its task.
func ask(file string, shots int) answer {
	a := answer{File: file}
	suite, err := task.Load([]string{file})
	if err == nil {
		a.Checked, err = suite.Check(task.Options{Shots: &shots, Limit: 1})
	}
	if err == nil {
		a.Definition, err = task.Definitions([]string{file})
	}
	if err != nil {
		a.Error = err.Error()
	}

	return a
}
