//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
)

func TestWorkerReportsFailure(t *testing.T) {
	t.Parallel()
	homeless, err := json.Marshal(assignment{Name: "A", URL: pgtest.URL(t), Schema: pgtest.SchemaName(t), Locked: true, TTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for job, want := range map[string]string{
		"":               "unexpected end of JSON input",
		"work!":          "invalid character",
		string(homeless): "schema missing",
	} {
		var errs strings.Builder
		if status := work(job, nil, io.Discard, &errs); status != exitFailed || !strings.Contains(errs.String(), want) {
			t.Errorf("%q: status %d, %q, want %q", job, status, errs.String(), want)
		}
	}
}

// TestAwaitShowsFailure: a wait ends with the failure of a worker, unless the demo killed it.
func TestAwaitShowsFailure(t *testing.T) {
	t.Parallel()
	p := performance{events: make(chan event, 1), killed: "C"}
	for _, name := range []string{"C", "D"} {
		p.events <- event{Worker: name, Kind: exited, Reasons: []string{"signal: aborted", "goroutine 1 [running]"}}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := p.await(ctx, "the impossible", 1, 0, granted)
		cancel()
		if name == p.killed && !errors.Is(err, context.DeadlineExceeded) ||
			name != p.killed && (err == nil || err.Error() != "worker D: signal: aborted: goroutine 1 [running]") {
			t.Errorf("worker %s: got %v", name, err)
		}
	}
}
