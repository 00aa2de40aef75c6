package leasetable_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/leasetable"
)

func define(t *testing.T, c *leasetable.Client, d leasetable.Definition) {
	t.Helper()
	if err := c.Define(t.Context(), d); err != nil {
		t.Fatal(err)
	}
}

func TestDefinitionMatches(t *testing.T) {
	t.Parallel()
	for pattern, names := range map[string][2][]string{ // those that match, and others
		"a":       {{"a"}, {"", "b", "aa"}},
		"*":       {{"a", "a/b", "ä"}, nil},
		"a*":      {{"a", "ab", "a*"}, {"b", "ba"}},
		"*a":      {{"a", "ba", "aba"}, {"ab"}},
		"a*b*c":   {{"abc", "a-b-b-c", "abbc"}, {"ac", "abcd"}},
		"?":       {{"a", "ä"}, {"ab"}},
		"job/?/x": {{"job/1/x"}, {"job/12/x", "job//x"}},
		"%_":      {{"%_"}, {"ab"}},
	} {
		d := leasetable.Definition{Pattern: pattern}
		for i, all := range names {
			for _, name := range all {
				if d.Matches(name) != (i == 0) {
					t.Errorf("%q matches %q: %v", pattern, name, i != 0)
				}
			}
		}
	}
	all := []leasetable.Definition{{Pattern: "*"}, {Pattern: "job/*"}, {Pattern: "job/nightly"}}
	for name, want := range map[string]string{"x": "*", "job/x": "job/*", "job/nightly": "job/nightly"} {
		if d, ok := leasetable.DefinitionOf(all, name); !ok || d.Pattern != want {
			t.Errorf("%q is defined by %q, want %q", name, d.Pattern, want)
		}
	}
	if _, ok := leasetable.DefinitionOf(all[1:], "x"); ok {
		t.Error("a name that no pattern matches has a definition")
	}
}

// TestDefine: definitions are stored, replaced and deleted.
func TestDefine(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open()
	general := leasetable.Definition{Pattern: "*", Team: "platform", Purpose: "everything else"}
	job := leasetable.Definition{Pattern: "job/*", TTL: 90 * time.Second, Team: "billing", Purpose: "one run at a time"}
	define(t, c, general)
	define(t, c, job)
	version := func() string {
		return value[string](f, "SELECT xmin::text FROM pglock.lock_definitions WHERE pattern = 'job/*'")
	}
	before := version()
	define(t, f.open(), job)
	if version() != before {
		t.Error("the same definition was written again")
	}
	job.TTL = time.Minute
	define(t, c, job)
	if all, err := c.Definitions(t.Context()); err != nil || len(all) != 2 || all[0] != job || all[1] != general {
		t.Errorf("%+v, %v", all, err)
	}
	if err := c.Undefine(t.Context(), "job/*"); err != nil {
		t.Error(err)
	}
	if err := c.Undefine(t.Context(), "job/*"); !errors.Is(err, leasetable.ErrNotFound) {
		t.Errorf("Undefine again: %v", err)
	}
	for what, d := range map[string]leasetable.Definition{
		"a TTL that is too short": {Pattern: "p", TTL: time.Microsecond},
		"a negative TTL":          {Pattern: "p", TTL: -time.Second},
		"a long team":             {Pattern: "p", Team: strings.Repeat("x", 513)},
		"NUL in the purpose":      {Pattern: "p", Purpose: "a\x00b"},
	} {
		if err := c.Define(t.Context(), d); !errors.Is(err, leasetable.ErrInvalidOption) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, pattern := range []string{"", strings.Repeat("x", 513), "\xff"} {
		if err := c.Define(t.Context(), leasetable.Definition{Pattern: pattern}); !errors.Is(err, leasetable.ErrInvalidName) {
			t.Errorf("pattern %q: %v", pattern, err)
		}
		if err := c.Undefine(t.Context(), pattern); !errors.Is(err, leasetable.ErrInvalidName) {
			t.Errorf("Undefine %q: %v", pattern, err)
		}
	}
	if _, err := leasetable.Open(t.Context(), f.pool, leasetable.WithSchema(f.schema), leasetable.WithUndefined(7)); !errors.Is(err, leasetable.ErrInvalidOption) {
		t.Errorf("an unknown rule: %v", err)
	}
}

// TestUndefinedNames: a strict client refuses them with an error of its own, another one warns once a
// name, and one without the option does neither.
func TestUndefinedNames(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var log logBuffer
	strict, warns, allows := f.open(leasetable.WithUndefined(leasetable.UndefinedFails)), f.open(leasetable.WithUndefined(leasetable.UndefinedWarns), log.option()), f.open()
	define(t, allows, leasetable.Definition{Pattern: "job/*", TTL: 2 * time.Minute})
	for what, acquire := range map[string]func() error{
		"Acquire":    func() error { _, err := strict.Acquire(t.Context(), "jobs/1"); return err },
		"TryAcquire": func() error { _, err := strict.TryAcquire(t.Context(), "jobs/1"); return err },
		"Semaphore": func() error {
			_, err := semaphore(t, strict, "jobs/1", 2).Acquire(t.Context(), 1)
			return err
		},
		"AcquireAll": func() error {
			_, err := strict.AcquireAll(t.Context(), []string{"job/1", "jobs/1"})
			return err
		},
		"RLock": func() error { _, err := rwlock(t, strict, "jobs/1").RLock(t.Context()); return err },
	} {
		err := acquire()
		var undefined *leasetable.UndefinedError
		if !errors.Is(err, leasetable.ErrUndefined) || !errors.As(err, &undefined) || undefined.Name != "jobs/1" || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if n := value[int](f, "SELECT count(*) FROM pglock.distributed_locks WHERE name = 'jobs/1'"); n != 0 {
		t.Error("a refused acquire has made a row")
	}
	for range 2 {
		release(t, try(t, warns, "jobs/1"))
		release(t, try(t, warns, "job/1"))
	}
	if got := strings.Count(log.String(), "matches no definition"); got != 1 {
		t.Errorf("%d warnings: %s", got, log.String())
	}
	release(t, try(t, allows, "jobs/1"))

	l := try(t, strict, "job/1")
	if ttl := value[float64](f, "SELECT extract(epoch FROM expires_at - acquired_at)::float8 FROM pglock.distributed_locks WHERE name = 'job/1'"); ttl < 119 || ttl > 121 {
		t.Errorf("the TTL is %v s, not that of the definition", ttl)
	}
	release(t, l)
	l = try(t, strict, "job/1", leasetable.WithTTL(time.Minute))
	if ttl := value[float64](f, "SELECT extract(epoch FROM expires_at - acquired_at)::float8 FROM pglock.distributed_locks WHERE name = 'job/1'"); ttl > 61 {
		t.Errorf("the TTL is %v s, not that of the call", ttl)
	}
	release(t, l)

	define(t, allows, leasetable.Definition{Pattern: "job/2", TTL: 3 * time.Minute})
	l = tryAll(t, strict, []string{"job/1", "job/2"})
	if ttl := value[float64](f, "SELECT extract(epoch FROM expires_at - acquired_at)::float8 FROM pglock.distributed_locks WHERE name = 'job/2'"); ttl < 119 || ttl > 121 {
		t.Errorf("the TTL of several names is %v s, not the shortest of their definitions", ttl)
	}
	release(t, l)

	define(t, allows, leasetable.Definition{Pattern: "jobs/*"}) // seen at once, a second after the last look
	pgtest.Eventually(t, 10*time.Second, "the new definition", func() bool {
		l, err := strict.TryAcquire(t.Context(), "jobs/1")
		if err == nil {
			release(t, l)
		}
		return err == nil
	})
}

// TestDefinedNamesCostNoStatement: an acquire of a defined name reads no definitions once the client
// knows them.
func TestDefinedNamesCostNoStatement(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.open(leasetable.WithUndefined(leasetable.UndefinedFails))
	define(t, c, leasetable.Definition{Pattern: "*"})
	release(t, try(t, c, "n"))
	// A read would wait for this.
	tx := begin(t, f)
	if _, err := tx.Exec(t.Context(), f.named("LOCK TABLE pglock.lock_definitions IN ACCESS EXCLUSIVE MODE")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range 5 {
		l, err := c.Acquire(ctx, "n")
		if err != nil {
			t.Fatal(err)
		}
		release(t, l)
	}
	short, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if _, err := c.Definitions(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("control: a read does not wait: %v", err)
	}
}
