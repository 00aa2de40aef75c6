package once_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
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

// tally is the result of the rounds of a form.
type tally struct {
	Rounds, Killed, Answers, Unknown int
	Effects, Twice                   int // keys whose effect happened at least once, and more than once
	Differ                           int // keys with several answers
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
			base := job{
				URL: config.ConnString(), Role: config.ConnConfig.User, Password: config.ConnConfig.Password,
				Schema: f.schema, Form: how,
			}
			var mu sync.Mutex
			sum := tally{Rounds: rounds}
			var all sync.WaitGroup
			slots := make(chan struct{}, 4)
			for round := range rounds {
				j := base
				j.Key, j.Step = fmt.Sprintf("%d", round), steps[round%len(steps)]
				slots <- struct{}{}
				all.Go(func() {
					defer func() { <-slots }()
					one := f.round(j, clients)
					mu.Lock()
					defer mu.Unlock()
					sum.Killed += one.Killed
					sum.Answers += one.Answers
					sum.Unknown += one.Unknown
					sum.Effects += one.Effects
					sum.Twice += one.Twice
					sum.Differ += one.Differ
				})
			}
			all.Wait()
			t.Logf("%s: %+v", how, sum)
			switch {
			case how == control:
				if sum.Twice != rounds {
					t.Errorf("control: %+v", sum)
				}
			case sum.Twice > 0 || sum.Differ > 0 || sum.Killed == 0 || sum.Answers == 0:
				t.Errorf("%+v", sum)
			case how == doFail && sum.Unknown == 0:
				t.Errorf("no outcome was ever unknown: %+v", sum)
			case how != doFail && (sum.Effects != rounds || sum.Unknown > 0):
				t.Errorf("not every key has its answer: %+v", sum)
			}
		})
	}
}

// round kills a worker at a step, and repeats its call with two clients at once, and once more.
func (f fixture) round(j job, clients []*pglock.Client) (sum tally) {
	f.t.Helper()
	replies := make([]reply, 0, 4)
	first, killed := runWorker(f.t, j)
	if killed != (j.Step != "") && !strings.HasPrefix(j.Step, "during") { // the call may be over before that signal
		f.t.Errorf("%s: killed %q: %v", j.Form, j.Step, killed)
	}
	if killed {
		sum.Killed = 1
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
			sum.Unknown++
		default:
			sum.Answers++
			answers[r.Answer] = true
		}
	}
	n := f.effects(j.Key)
	if j.Form == control {
		n = min(n, len(answers)+1) // the calls above, and that of the worker
	}
	sum.Effects, sum.Twice, sum.Differ = min(n, 1), max(min(n-1, 1), 0), max(min(len(answers)-1, 1), 0)
	if n != 1 && j.Form != control && j.Form != doFail || n > 1 && j.Form == doFail {
		f.t.Errorf("%s, killed %q: %d effects, %+v", j.Form, j.Step, n, replies)
	}
	return sum
}
