//go:build race

package sim

func init() { worlds = 3 } //nolint:gochecknoinits // the race detector takes twenty times as long
