// Package peft reads and writes adapter folders in the layout of the PEFT library's LoRA: adapter_config.json and
// adapter_model.safetensors.
//
// [Read] compares the configuration, the tensors and the modules of the base with each other: every module that
// is targeted has both factors, every tensor belongs to a module that is targeted, ranks and shapes agree.
// Options that change what a model computes are followed or refused, keys that only mattered for the training
// are passed over, and keys that are not known are refused unless they are empty. Nothing in a file is run, and
// no link out of the folder is followed.
//
// [Write] writes any kind of adapter as plain LoRA, with the keys only that every version of the library knows.
package peft
