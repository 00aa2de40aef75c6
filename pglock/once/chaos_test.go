package once_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pglock/pglock-go/pglock"
)

// runWorker runs a job in a process of its own. killed is true if the process was.
func runWorker(t *testing.T, j job) (r reply, killed bool) {
	t.Helper()
	input, err := json.Marshal(j)
	if err != nil {
		t.Error(err)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), workerVariable+"="+string(input))
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == -1:
		return reply{}, true
	case err != nil:
		t.Errorf("%s, %q: %v: %s", j.Form, j.Step, err, &stderr)
	default:
		if err := json.Unmarshal(stdout.Bytes(), &r); err != nil || r.Error != "" {
			t.Errorf("%s, %q: %v, %s", j.Form, j.Step, err, r.Error)
		}
	}
	return r, false
}

// TestChaosKilledAtEachStep: a process is killed at each step of a call, and others repeat the call.
// The effect never happens twice, and all answers are the same. With Tx, and with Do and WithLookup,
// each key gets its answer. In the control, without once, each repeated call repeats the effect.
func TestChaosKilledAtEachStep(t *testing.T) {
	t.Parallel()
	for _, how := range []form{doFail, doAsk, inTx, control} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			steps := how.steps()
			rounds := len(steps)
			if os.Getenv("PGLOCK_CHAOS") != "" {
				rounds = 200
			}
			f := newFixture(t)
			clients := []*pglock.Client{f.client(pglock.WithTTL(leaseTTL)), f.client(pglock.WithTTL(leaseTTL))}
			config := f.pool.Config()
			var killed, unknown atomic.Int64
			var all sync.WaitGroup
			slots := make(chan struct{}, 4)
			for round := range rounds {
				j := job{
					URL: config.ConnString(), Role: config.ConnConfig.User, Password: config.ConnConfig.Password,
					Schema: f.schema, Form: how, Key: strconv.Itoa(round), Step: steps[round%len(steps)],
				}
				slots <- struct{}{}
				all.Go(func() {
					defer func() { <-slots }()
					f.round(j, clients, &killed, &unknown)
				})
			}
			all.Wait()
			t.Logf("%s: %d rounds, %d killed, %d unknown", how, rounds, killed.Load(), unknown.Load())
			if killed.Load() == 0 || (unknown.Load() > 0) != (how == doFail) {
				t.Errorf("%d were killed, and %d outcomes were unknown", killed.Load(), unknown.Load())
			}
		})
	}
}

// round kills a worker at a step, repeats its call with two clients at once, and once more, and checks
// the effects and the answers of the key.
func (f fixture) round(j job, clients []*pglock.Client, killed, unknown *atomic.Int64) {
	f.t.Helper()
	first, dead := runWorker(f.t, j)
	if dead != (j.Step != "") && !strings.HasPrefix(j.Step, "during") { // the call may be over before that signal
		f.t.Errorf("%s: killed %q: %v", j.Form, j.Step, dead)
	}
	var replies []reply
	if dead {
		killed.Add(1)
	} else {
		replies = append(replies, first)
	}
	found := make(chan reply, len(clients))
	for _, c := range clients {
		go func() { found <- j.call(f.t.Context(), c, f.pool) }()
	}
	for range clients {
		replies = append(replies, <-found)
	}
	replies = append(replies, j.call(f.t.Context(), clients[0], f.pool))
	answers := map[int64]bool{}
	for _, r := range replies {
		switch {
		case r.Error != "":
			f.t.Errorf("%s, %q: %s", j.Form, j.Step, r.Error)
		case r.Unknown:
			unknown.Add(1)
		default:
			answers[r.Answer] = true
		}
	}
	n := f.effects(j.Key)
	twice := n > 1 || len(answers) > 1
	if twice != (j.Form == control) || n == 0 && j.Form != doFail {
		f.t.Errorf("%s, killed %q: %d effects, %+v", j.Form, j.Step, n, replies)
	}
}
