// Package serve answers requests for models over HTTP, in the manner of OpenAI's API, as vLLM and llama.cpp's server
// understand it.
//
//	h, err := serve.Handler(serve.Models{{Name: "nano", LM: m, Tokenizer: tok}}, serve.Options{})
//	http.ListenAndServe("127.0.0.1:8080", h)
//
// # How requests are computed
//
// Each open model has one loop that takes steps. A step runs the next token of every sequence that generates, and with
// what is left of [Options].StepTokens parts of prompts, a page of each in turn, so that a long prompt keeps neither
// those who generate nor short prompts waiting (continuous batching: Yu et al., "Orca", 2022; chunked prompts: Agrawal
// et al., "Sarathi-Serve", 2024). Keys and values lie in a [lm.Batch]: prompts that begin alike are computed once.
// Requests of different adapters on one model take steps in turn, each with its own attached.
//
// Where memory for keys and values ends, the latest request gives its own up, and computes them again later. No answer
// depends on that, nor on who else is there: on a CPU it is the same to the last bit (see [lm.Batch]).
package serve
