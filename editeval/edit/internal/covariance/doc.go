// Package covariance collects, keeps and factors the covariance of the keys of a model.
package covariance
