//go:build unix

package main

import (
	"encoding/json"
	"errors"
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
	for in, want := range map[string]string{
		"":                      "no assignment",
		"work!\n":               "assignment: invalid character",
		string(homeless) + "\n": "schema missing",
	} {
		var out strings.Builder
		status := work(strings.NewReader(in), &out)
		var e event
		if err := json.Unmarshal([]byte(out.String()), &e); err != nil {
			t.Errorf("%q: %q: %v", in, out.String(), err)
		}
		if status != exitFailed || e.Kind != failed || !strings.Contains(e.Error, want) {
			t.Errorf("%q: status %d, %+v, want %q", in, status, e, want)
		}
	}
}

func TestCrewShowsFailure(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	c := newCrew(newStory(&out))
	const why = "the disk is full"
	if err := c.take(event{Kind: failed, Error: why, from: &member{name: "C"}}); err == nil || !strings.Contains(err.Error(), why) {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(out.String(), "C    fails: "+why) {
		t.Errorf("the story is %q", out.String())
	}
	ended := &member{name: "D", err: errors.New("signal: aborted")}
	ended.stderr.WriteString("goroutine 1 [running]\n")
	err := c.take(event{Kind: exited, from: ended})
	if !errors.Is(err, ended.err) || !strings.Contains(err.Error(), "goroutine 1") {
		t.Errorf("got %v", err)
	}
	ended.killed = true
	if err := c.take(event{Kind: exited, from: ended}); err != nil {
		t.Errorf("a worker that we killed: %v", err)
	}
}
