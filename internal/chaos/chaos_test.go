//go:build linux

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// The lengths of runs.
const (
	ttl          = 1500 * time.Millisecond
	lingeringTTL = 4 * ttl                // of nemeses that end connections silently: a slow machine needs time for new ones
	controlTTL   = 500 * time.Millisecond // shorter, so that leases are lost sooner
	shortRun     = 4 * time.Second
	longRun      = 16 * time.Second
	longMixedRun = 90 * time.Second
	controlRun   = 2 * time.Minute // at most: it ends with the first violation, which most strikes don't cause
	workers      = 4
	actors       = 3
)

// long reports whether each nemesis runs in full length, as in `make chaos`.
func long() bool { return os.Getenv("PGLOCK_CHAOS") != "" }

// seed returns the seed of this run, which the test logs.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := uint64(time.Now().UnixNano())
	if text := os.Getenv("PGLOCK_CHAOS_SEED"); text != "" {
		var err error
		if s, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("PGLOCK_CHAOS_SEED=%d", s)
	return s
}

// TestChaos runs workers beside each nemesis, and beside random pairs of them. It expects no
// violation of the promises. Without the protection there must be some. The short form runs the
// random pairs only.
func TestChaos(t *testing.T) { //nolint:tparallel // each nemesis has the machine for itself
	t.Parallel()
	all := []nemesis{mixed()}
	if long() {
		all = append(nemeses(), all...)
	}
	s := seed(t)
	var table []string
	for _, n := range all {
		t.Run(n.name, func(t *testing.T) {
			length := shortRun
			if long() {
				if length = longRun; n.name == mixed().name {
					length = longMixedRun
				}
			}
			v := n.run(t, protected, length, s)
			t.Log(v)
			if v.violations.total() > 0 {
				t.Errorf("%d violations: %+v\n%s", v.violations.total(), v.violations, v.story)
			}
			if v.grants < 20 || v.writes < 20 || v.operations < 50 {
				t.Errorf("the run shows little: %v", v)
			}
			control := n.run(t, n.control, controlRun, s)
			t.Logf("control, %s: %v", n.control, control)
			if control.violations.safety() == 0 {
				t.Errorf("control, %s: no violation", n.control)
			}
			table = append(table, fmt.Sprintf("| %s | %d | %d | %d | %d | %s: %d |", n.name, v.rounds, v.operations, v.losses,
				v.violations.total(), n.control, control.violations.safety()))
		})
	}
	t.Logf("\n| nemesis | rounds | operations | leases lost | violations | control |\n|---|---|---|---|---|---|\n%s", strings.Join(table, "\n"))
}

// run lets workers compete for that long while the nemesis strikes, and judges. With protection,
// every actor must be served afterwards. Without, the run ends with the first lost update.
func (n nemesis) run(t *testing.T, m mode, length time.Duration, seed uint64) verdict {
	t.Helper()
	job := assignment{Mode: m, Seed: seed, Actors: actors, TTL: ttl, Long: n.long}
	switch {
	case m != protected:
		job.TTL = controlTTL
	case n.linger:
		job.TTL, job.Linger = lingeringTTL, true
		length *= 2
	}
	strike := n.strike
	switch {
	case n.name == mixed().name && m == unfenced:
		strike, job.Only, n.fates = pauseMost, leaseName, nil // what shows most
	case n.fleet > 0 && m == unlocked:
		strike = idle // hardly a worker writes while a fleet connects again
	}
	a := newArena(t, job, n)
	if n.fleet > 0 {
		defer a.sail(n.fleet)()
	}
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	watch, endWatch := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { a.watchMachine(watch) })
	r := rand.New(rand.NewPCG(seed, 1))
	rounds := 0
	for ctx.Err() == nil || m == protected && rounds < n.rounds {
		if m != protected && a.lostUpdate(ctx) {
			break
		}
		strike(a, r)
		rounds++
	}
	a.calm()
	if m == protected {
		a.progress()
	}
	a.finish()
	endWatch()
	watching.Wait()
	v, err := a.judge(t.Context(), rounds)
	if err != nil {
		t.Fatal(err)
	}
	if n.fates != nil {
		t.Logf("%s: %v", m, n.fates)
	}
	return v
}

// lostUpdate reports whether the ledger shows one.
func (a *arena) lostUpdate(ctx context.Context) (lost bool) {
	err := a.admin.QueryRow(ctx, "SELECT (SELECT count(*) FROM entries) <> (SELECT sum(balance) FROM accounts)").Scan(&lost)
	return err == nil && lost
}
