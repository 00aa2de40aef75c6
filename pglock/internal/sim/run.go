package sim

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock/pglock-go/internal/random"
)

// Result is what a run has shown.
type Result struct {
	Seed     uint64
	Failures []string
	Faults   []Fault  // that happened
	Trace    []string // if it was asked for
	Grants   int
}

// one lets one world run at a time: its seed is that of all random times of the program, and its
// goroutines take turns on one processor, or their order would be another one each time.
var one sync.Mutex

// run runs a world, in a bubble of its own.
func run(t *testing.T, p plan, trace bool, body func(w *World)) (r Result) {
	one.Lock()
	defer one.Unlock()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	defer debug.SetGCPercent(debug.SetGCPercent(800)) // the heap of a world is small
	synctest.Test(t, func(*testing.T) {
		w := newWorld(p)
		w.tracing = trace
		defer random.Replace(w.random)()
		r = w.live(body)
	})
	return r
}

// live is the life of a world.
func (w *World) live(body func(w *World)) Result {
	body(w)
	go w.disrupt()
	w.watch(Length)
	w.mu.Lock()
	w.judge.starved(Starved)
	w.mu.Unlock()
	w.work.end()
	w.await()
	time.Sleep(LeastEnd)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge.look(event{op: "end"})
	granted := w.judge.end()
	return Result{Seed: w.plan.seed, Failures: w.failures, Faults: w.happened, Trace: w.trace, Grants: granted}
}

// watch lets the judge look at what takes time, for d.
func (w *World) watch(d time.Duration) {
	time.Sleep(time.Microsecond / 3) // between the instants at which others wake
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(tick)
		w.mu.Lock()
		w.judge.tick()
		w.mu.Unlock()
	}
}

// await waits until all processes have left.
func (w *World) await() {
	left := make(chan struct{})
	go func() { w.slots.Wait(); close(left) }()
	select { // if both are ready, either is right
	case <-left:
	case <-time.After(LongestEnd):
		w.Failf("I9: a process does not end")
		panic(w.failures[len(w.failures)-1]) // the bubble can't end either
	}
}

// Bounds of the last part of a run, which has no faults.
const (
	Starved  = 15 * time.Second // of a wait
	LeastEnd = time.Second      // for messages that are on their way

	LongestEnd = 3 * time.Minute // of a process

	tick = 250 * time.Millisecond // between two looks at what takes time
)

// Simulate runs worlds as pglocktest.Simulate says, and fails t with the first one that fails.
func Simulate(t *testing.T, body func(w *World)) {
	t.Helper()
	first, seeds, limit := uint64(1), uint64(200), 2*time.Second
	others := func() uint64 { return 0 }
	if text := os.Getenv("PGLOCK_SIM"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			t.Fatalf("PGLOCK_SIM=%q is no duration: write 30s or 10m", text)
		}
		first, seeds, limit = uint64(time.Now().UnixNano()), math.MaxUint64, d // other worlds each time
		if os.Getenv("PGLOCK_SEED") == "" {
			others = beside(t)
		}
	}
	if text := os.Getenv("PGLOCK_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("PGLOCK_SEED=%q is no number", text)
		}
		first, seeds = seed, 1
	}
	began := time.Now()
	failure, runs := Search(t, first, seeds, limit, body)
	if failure != "" {
		t.Error(failure)
	} else {
		runs += others()
	}
	logRate(t, runs, began)
}

// logRate says how many worlds have run since began, and at which rate, on all processors together.
func logRate(t *testing.T, runs uint64, began time.Time) {
	t.Helper()
	t.Logf("%d worlds, %.0f simulated seconds a second", runs, float64(runs)*Length.Seconds()/time.Since(began).Seconds())
}

// beside runs the same test in a process for each further processor, because a world has only one.
// The result waits for them, and returns how many worlds they have run.
func beside(t *testing.T) func() (runs uint64) {
	t.Helper()
	const further = "PGLOCK_SIM_FURTHER"
	var processes []*exec.Cmd
	for range runtime.NumCPU() - 1 {
		c := exec.CommandContext(t.Context(), os.Args[0], "-test.v", "-test.timeout=0", "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$")
		c.Env, c.Stdout, c.Stderr = append(os.Environ(), further+"=1"), &bytes.Buffer{}, os.Stderr
		if os.Getenv(further) == "" && c.Start() == nil { // without it, the test is slower
			processes = append(processes, c)
		}
	}
	return func() (runs uint64) {
		for _, c := range processes {
			err, out := c.Wait(), fmt.Sprint(c.Stdout)
			if err != nil {
				t.Errorf("in another process: %v\n%s", err, out)
			}
			if m := regexp.MustCompile(`: (\d+) worlds`).FindStringSubmatch(out); m != nil {
				n, _ := strconv.ParseUint(m[1], 10, 64) // digits
				runs += n
			}
		}
		return runs
	}
}

// Search runs the worlds of seeds from first on, as many as that or as fit into the time limit, and
// describes the first one that fails; an empty failure: none did.
func Search(t *testing.T, first, seeds uint64, limit time.Duration, body func(w *World)) (failure string, runs uint64) {
	began := time.Now()
	for ; runs < seeds && (runs == 0 || time.Since(began) < limit); runs++ {
		p := newPlan(first + runs)
		if r := run(t, p, false, body); len(r.Failures) > 0 {
			return fmt.Sprintf("%s\tPGLOCK_SEED=%d go test -run '^%s$' .", explain(t, p, r, body), first+runs, t.Name()), runs + 1
		}
	}
	return "", runs
}

// explain describes a run that has failed, by as few faults as are enough.
func explain(t *testing.T, p plan, r Result, body func(w *World)) string {
	again := func(faults []Fault, trace bool) (r2 Result, same bool) {
		r2 = run(t, p.with(faults), trace, body)
		return r2, len(r2.Failures) > 0 && rule(r2.Failures[0]) == rule(r.Failures[0])
	}
	faults := shrink(r.Faults, func(fewer []Fault) bool { _, same := again(fewer, false); return same })
	traced, same := again(faults, true)
	if !same {
		traced, faults = run(t, p, true, body), r.Faults
	}
	var text strings.Builder
	fmt.Fprintf(&text, "seed %d fails: %s\n", r.Seed, r.Failures[0])
	fmt.Fprintf(&text, "%d of its %d faults are enough:\n", len(faults), len(r.Faults))
	for _, f := range faults {
		fmt.Fprintf(&text, "\t%v\n", f)
	}
	text.WriteString("what happens with these:\n")
	at := slices.IndexFunc(traced.Trace, func(s string) bool { return strings.Contains(s, "VIOLATION") })
	for _, line := range about(traced.Trace[:max(at+1, 0)]) {
		fmt.Fprintf(&text, "\t%s\n", line)
	}
	return text.String()
}

// rule returns what a failure says up to its first colon: the promise that was broken.
func rule(failure string) string {
	_, text, _ := strings.Cut(failure, ": ")
	text, _, _ = strings.Cut(text, ":")
	return text
}

// about returns the last lines of a trace that ends with a violation, and of a name if it is about
// one.
func about(trace []string) []string {
	if len(trace) > 0 {
		if parts := strings.SplitN(trace[len(trace)-1], `"`, 3); len(parts) == 3 && parts[1] != "" {
			name := `"` + parts[1] + `"`
			trace = slices.DeleteFunc(trace, func(line string) bool {
				return strings.Contains(line, `"`) && !strings.Contains(line, name) && !strings.Contains(line, faultLine)
			})
		}
	}
	return trace[max(0, len(trace)-60):]
}

// shrink returns as few of the faults as still fail, by leaving out smaller and smaller parts of
// them (Zeller's ddmin), with a bound on the number of runs.
func shrink(faults []Fault, fails func([]Fault) bool) []Fault {
	if fails(nil) {
		return nil
	}
	const most = 100
	runs := 0
	for size := len(faults) / 2; size > 0 && runs < most; size /= 2 {
		for from := 0; from < len(faults) && runs < most; {
			fewer := slices.Concat(faults[:from], faults[min(from+size, len(faults)):])
			if runs++; fails(fewer) {
				faults = fewer
			} else {
				from += size
			}
		}
	}
	return faults
}
