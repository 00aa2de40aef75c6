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

// TestCrewShowsFailure waits while workers end.
func TestCrewShowsFailure(t *testing.T) {
	t.Parallel()
	ended := &member{name: "D", err: errors.New("signal: aborted"), exited: make(chan struct{})}
	close(ended.exited)
	ended.stderr.WriteString("goroutine 1 [running]\n")
	c := crew{members: []*member{{name: "C", exited: make(chan struct{})}, ended}}
	never := func() (bool, error) { return false, nil }
	err := c.until(t.Context(), "the impossible", never)
	if !errors.Is(err, ended.err) || !strings.Contains(err.Error(), "worker D") || !strings.Contains(err.Error(), "goroutine 1") {
		t.Errorf("got %v", err)
	}
	ended.killed = true
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.until(ctx, "the impossible", never); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a worker that we killed: %v", err)
	}
}
