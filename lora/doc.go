// Package lora trains low-rank adapters of language models and handles their files: LoRA and its variants, and Mixture of
// Shards, which gives the quality of LoRA with several times fewer parameters by letting all blocks share pools of shards.
package lora
