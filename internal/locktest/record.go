package locktest

import (
	"log/slog"
	"testing"
	"time"
)

// Attr returns an attribute of a record, or the zero value if there is none of type T.
func Attr[T any](r slog.Record, key string) (v T) {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == key {
			v, _ = a.Value.Any().(T)
		}
		return true
	})
	return v
}

// Error returns the attribute "error" of a record, or nil if there is none.
func Error(r slog.Record) error { return Attr[error](r, "error") }

// Receive returns the next value from c. It ends the test if none comes.
func Receive[T any](tb testing.TB, c <-chan T) (v T) {
	tb.Helper()
	select {
	case v = <-c:
	case <-time.After(Patience):
		tb.Fatal("nothing came")
	}
	return v
}
