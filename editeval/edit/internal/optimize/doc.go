// Package optimize finds the vectors that make a model say something else when they are added to what it
// computes at one place, for many requests at once.
package optimize
