package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/modelcompress/compress/internal/hub/hubtest"
)

// TestPull runs the command lines of testdata/hub against a hub on this machine that has the smallest shipped model.
func TestPull(t *testing.T) {
	h := hubtest.New(t)
	base := "../../testdata/nano/base"
	for _, name := range []string{"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} {
		text, err := os.ReadFile(filepath.Join(base, name))
		if err != nil {
			t.Fatal(err)
		}
		h.Files[name] = string(text)
	}
	h.Gated = true

	testscript.Run(t, testscript.Params{
		Dir: "testdata/hub",
		Setup: func(e *testscript.Env) error {
			e.Setenv("HF_ENDPOINT", h.URL)
			e.Setenv("HF_HOME", filepath.Join(e.WorkDir, "home"))
			e.Setenv("TOKEN", hubtest.Token)
			nano, err := filepath.Abs("../../testdata/nano")
			e.Setenv("NANO", nano)
			return err
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"code": exitCode, "json": jsonValue, "schema": fitsSchema,
		},
	})
}

// TestFetch runs the command lines of testdata/hubdata against a hub on this machine that has one data set.
func TestFetch(t *testing.T) {
	h := hubtest.New(t)
	h.Data = "openai/gsm8k"
	for _, split := range []string{"train", "test"} {
		h.Files["main/"+split+"-00000-of-00001.parquet"] = "records of " + split
	}

	testscript.Run(t, testscript.Params{
		Dir: "testdata/hubdata",
		Setup: func(e *testscript.Env) error {
			e.Setenv("HF_ENDPOINT", h.URL)
			e.Setenv("HF_HOME", filepath.Join(e.WorkDir, "home"))
			return nil
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"code": exitCode, "json": jsonValue, "schema": fitsSchema,
		},
	})
}
