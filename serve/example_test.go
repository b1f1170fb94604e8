package serve_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"path/filepath"
	"strings"

	"github.com/modelcompress/compress/kernels/device"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/serve"
)

// A model answers as OpenAI's API does.
func ExampleHandler() {
	dev, err := device.Open("cpu", device.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()

	m, err := lm.Load(context.Background(), filepath.Join("..", "testdata", "nano", "base"), dev, lm.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()

	tok, err := m.Tokenizer()
	if err != nil {
		log.Fatal(err)
	}

	h, err := serve.Handler(serve.Models{{Name: "nano", LM: m, Tokenizer: tok}}, serve.Options{Memory: 64 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer h.Shutdown(context.Background())

	server := httptest.NewServer(h)
	defer server.Close()

	body := strings.NewReader(`{"model": "nano", "prompt": "Question: 14 + 6 =", "max_tokens": 4, "temperature": 0}`)
	r, err := server.Client().Post(server.URL+"/v1/completions", "application/json", body)
	if err != nil {
		log.Fatal(err)
	}
	defer r.Body.Close()

	text, err := io.ReadAll(r.Body)
	fmt.Println(r.Status, strings.Contains(string(text), `"finish_reason":`), err)
	// Output: 200 OK true <nil>
}
