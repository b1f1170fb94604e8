// Package hparams has the hyper-parameters of editing methods: the published ones, and rules for models that
// none are published for.
package hparams
