// Package site looks into a model where it is edited, adds vectors there, and has the arithmetic on vectors
// that editing shares.
package site
