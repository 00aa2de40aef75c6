package backend_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
)

// story makes up the steps of a script from random numbers, and from what has happened so far.
type story struct {
	*rand.Rand
	names    []string // a name of no fixed kind, "any", is what the first step makes it
	capacity map[string]int
	grants   []*step // that were granted
}

// together are the names that calls want together.
var together = []string{"one+uno", "one+sem", "any+sem", "any+rw+uno", "one+rw+sem"}

func pick[T any](r *story, of ...T) T { return of[r.IntN(len(of))] }

// newStory is about one or two names in most cases, and most often those with permits, because the
// rare states of the fake need several steps about one name.
func newStory(seed, n uint64) *story {
	r := &story{Rand: rand.New(rand.NewPCG(seed, n)), capacity: map[string]int{"sem": 3}}
	for range pick(r, 1, 1, 2, 7) {
		r.names = append(r.names, pick(r, "one", "uno", "sem", "rw", "sem", "rw", "any"))
	}
	return r
}

// want returns a name with the permits that a call wants of it.
func (r *story) want(name string) string {
	kind := name
	if name == "any" {
		kind = pick(r, "one", "sem", "rw")
	}
	switch kind {
	case "sem":
		n := r.capacity["sem"]
		if name == "any" {
			n = max(r.capacity["any"], 3)
		}
		return fmt.Sprintf("%s/%d*%d", name, n, pick(r, 1, 1, 1, min(2, n), n))
	case "rw":
		return name + pick(r, "/r", "/r", "/r", "/w")
	}
	return name
}

// target returns a name, or several, with what a call wants.
func (r *story) target() string {
	names := []string{pick(r, r.names...)}
	if r.IntN(6) == 0 {
		names = strings.Split(pick(r, together...), "+")
	}
	for i, name := range names {
		names[i] = r.want(name)
	}
	return strings.Join(names, "+")
}

// grant returns one of the last grants, and one of its names, with the permits that were granted.
func (r *story) grant() (actor, name string, permits string, s *step) {
	if len(r.grants) == 0 {
		return "c1", r.names[0], r.names[0], &step{line: "c1 acquire " + r.names[0], batch: [][]slot{{{name: r.names[0]}}}}
	}
	s = r.grants[len(r.grants)-1-r.IntN(min(len(r.grants), 4))]
	targets := strings.Split(strings.Fields(s.line)[2], "+")
	permits = pick(r, targets...)
	name, _, _ = strings.Cut(permits, "/")
	return s.actor, name, permits, s
}

// next returns a step. All times of the protocol are multiples of the unit, except timing.HeadGrace, its half.
func (r *story) next() string {
	client, target := pick(r, "c1", "c2", "c3"), r.target()
	actor, name, permits, of := r.grant()
	ttl := " ttl " + pick(r, "6s", "9s", "1h")
	single := !of.together()
	switch r.IntN(48) {
	case 0, 1, 2:
		return client + " acquire " + target + ttl
	case 3, 4:
		return client + " fast " + target + ttl
	case 5:
		return client + pick(r, " fast ", " acquire ") + target + ttl + pick(r, " barge", " new")
	case 6, 7, 8:
		return client + " join " + target
	case 9, 10, 11:
		return client + pick(r, " fast ", " acquire ", " acquire ") + target + ttl + " ticket"
	case 12:
		return client + " refresh " + target
	case 13, 14:
		return client + " leave " + target
	case 15:
		return client + " forget " + target
	case 16, 17, 18, 19:
		if of.permits() {
			return actor + " permits " + permits
		}
		return actor + " release " + name
	case 20:
		return "time expire " + name + " of " + actor
	case 21, 22, 23:
		return client + " wait " + target + pick(r, "", " ticket", " again") + " holding " + name
	case 24:
		return client + " end " + target
	case 25:
		return actor + " acquire " + strings.Fields(of.line)[2] + " again"
	case 26, 27:
		return "time advance " + pick(r, "3s", "3s", "6s", "30s")
	case 28, 29:
		if single {
			return actor + " handoff " + name + " to " + pick(r, "c1", "c2", "c3") + ttl
		}
	case 30:
		return "adopter adopt " + name + " of " + actor + ttl
	case 31, 32:
		if single && strings.Contains(permits, "/r") {
			return actor + " upgrade " + name + "/w"
		}
	case 33:
		return actor + pick(r, " guard ", " bind ") + name
	case 34:
		if !of.permits() {
			return actor + " label " + name + " labels " + pick(r, "{}", `{"a":"1"}`, `{"b":"2"}`) + " limit " + pick(r, "8", "9", "16", "17", "64")
		}
	case 35:
		return actor + pick(r, " check ", " has ") + name
	case 36:
		return actor + " undo " + name
	case 37:
		if r.IntN(2) == 0 {
			name = pick(r, r.names...)
		}
		return fmt.Sprint(client, " resize ", name, " ", 2+r.IntN(3))
	case 38:
		if !of.permits() {
			return actor + " release " + name + " minhold " + pick(r, "6s", "9s", "1h")
		}
	case 39:
		return actor + " renew " + name + ttl
	case 40:
		return client + pick(r, " revoke ", " revoke ", " await ") + name + " of " + actor
	case 41:
		return client + " ask " + name + " of " + actor
	case 42:
		if single && of.permits() {
			return actor + " keep " + name + " 1"
		}
	case 43:
		return client + " watch " + name
	case 44:
		return client + " quit"
	}
	return client + " acquire " + target + ttl
}

var resized = regexp.MustCompile(`^\d+ before$`)

// note notes what has happened.
func (r *story) note(s *step, answer string) {
	switch {
	case strings.HasPrefix(answer, "granted") && (s.verb == "acquire" || s.verb == "fast" || s.verb == "upgrade"):
		r.grants = append(r.grants, s)
	case strings.HasPrefix(answer, "granted") && s.verb == "handoff":
		to := *s
		to.actor = s.options["to"]
		r.grants = append(r.grants, &to)
	case s.verb == "resize" && resized.MatchString(answer):
		r.capacity[s.names()[0]], _ = strconv.Atoi(s.options["n"])
	}
}

// TestTheFakeIsLikeTheServer: both are given the same random steps, and answer in the same words.
func TestTheFakeIsLikeTheServer(t *testing.T) {
	t.Parallel()
	seeds := uint64(4) // each has its schema
	if os.Getenv("PGLOCK_CHAOS") != "" {
		seeds = 20
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			server, fake := drivers[0].empty(t), drivers[2].empty(t)
			for n := range uint64(30) {
				compare(t, newStory(seed, n), newWorld(server()), fake)
			}
		})
	}
}

// compare tells a story to the server, and in a bubble to the fake.
func compare(t *testing.T, r *story, server *world, empty func() tables) {
	t.Helper()
	asked, told := make(chan *step), make(chan string) // of no bubble, so its time stands still meanwhile
	defer close(asked)
	ctx := t.Context()
	go func() {
		for s := range asked {
			told <- server.say(ctx, s)
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		fake := newWorld(empty())
		var script strings.Builder
		for range 150 {
			line := r.next()
			s, err := parseStep(line)
			locktest.OK(t, err)
			asked <- s
			time.Sleep(time.Microsecond) //nolint:forbidigo // of the bubble: no two times are the same
			want, got := <-told, fake.say(t.Context(), s)
			if s.verb == "wait" { // one of several cycles
				want, got = word(want == "no deadlock", want, "a deadlock"), word(got == "no deadlock", got, "a deadlock")
			}
			fmt.Fprintf(&script, "%s = %s\n", line, want)
			r.note(s, want)
			if got != want || strings.HasPrefix(want, "error") {
				t.Fatalf("the fake answers %q to the last of\n%s", got, script.String())
			}
		}
	})
}
