package leasetable_test

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
)

// schedules is the directory of the scripts. Its README.md describes their language.
const schedules = "../testdata/schedules"

// schedule is a script.
type schedule struct {
	steps  []step
	breaks []mutation
}

// step is a line of a script: a statement in a session, and what it must return.
type step struct {
	line           int
	session        string // empty: the step is the world's
	verb           string // empty: the waiting statement of the session goes on
	args           []string
	options        map[string]string
	want           string
	hasExpectation bool
}

// mutation is a change of a statement. The script must notice it.
type mutation struct {
	line                int
	name, before, after string
}

var (
	stepLine  = regexp.MustCompile(`^([A-Z])(?:\s+(.*?))?\s*(?:->\s*(.*))?$`)
	breakLine = regexp.MustCompile(`^break (\w+): (.*?) => ?(.*)$`)
)

// parse reads a script.
func parse(text string) (schedule, error) {
	var s schedule
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if m := breakLine.FindStringSubmatch(line); m != nil {
			s.breaks = append(s.breaks, mutation{i + 1, m[1], m[2], m[3]})
			continue
		}
		st := step{line: i + 1, options: map[string]string{}}
		if strings.HasPrefix(line, "clock ") {
			st.verb, st.args = "clock", strings.Fields(line)[1:]
		} else if m := stepLine.FindStringSubmatch(line); m != nil {
			st.session, st.want, st.hasExpectation = m[1], strings.Join(strings.Fields(m[3]), " "), strings.Contains(line, "->")
			words := strings.Fields(m[2])
			if len(words) > 0 {
				st.verb = words[0]
				if st.verb == "sql" {
					st.args = []string{strings.TrimSpace(strings.TrimPrefix(m[2], "sql"))}
					words = nil
				}
			}
			for _, word := range words[min(1, len(words)):] {
				if key, value, ok := strings.Cut(word, "="); ok {
					st.options[key] = value
				} else {
					st.args = append(st.args, word)
				}
			}
		} else {
			return s, fmt.Errorf("line %d: neither a step nor a break: %s", i+1, line)
		}
		s.steps = append(s.steps, st)
	}
	if len(s.steps) == 0 {
		return s, fmt.Errorf("it has no step")
	}
	return s, nil
}

// performance is one run of a schedule.
type performance struct {
	w        *world
	sessions []*session
	waiting  map[string]step  // by session: the step whose statement waits
	numbers  map[string]int64 // of the tokens t1, t2, … and the tickets k1, k2, …
	requests int
}

// perform runs a script in the world. The error is the first deviation.
func (w *world) perform(s schedule) error {
	w.reset()
	p := &performance{w: w, waiting: map[string]step{}, numbers: map[string]int64{}}
	defer func() {
		for _, s := range p.sessions {
			s.end()
		}
	}()
	for _, st := range s.steps {
		if err := p.step(st); err != nil {
			return fmt.Errorf("line %d: %w", st.line, err)
		}
	}
	for name := range p.waiting {
		return fmt.Errorf("at the end, %s still waits", name)
	}
	return nil
}

func (p *performance) session(name string) *session {
	for _, s := range p.sessions {
		if s.name == name {
			return s
		}
	}
	s := p.w.session(name)
	p.sessions = append(p.sessions, s)
	return s
}

func (p *performance) step(st step) error {
	if st.verb == "clock" {
		d, err := time.ParseDuration(st.args[0])
		if err == nil {
			p.w.advance(d)
		}
		return err
	}
	s := p.session(st.session)
	if st.verb == "" {
		began, ok := p.waiting[s.name]
		if !ok {
			return fmt.Errorf("%s has no statement that waits", s.name)
		}
		began.want, began.hasExpectation = st.want, st.hasExpectation
		delete(p.waiting, s.name)
		return p.finish(s, began)
	}
	if _, ok := p.waiting[s.name]; ok {
		return fmt.Errorf("%s still waits", s.name)
	}
	sql, args, err := p.statement(s, st)
	if err != nil {
		return err
	}
	s.start(sql, args...)
	return p.finish(s, st)
}

// finish compares the outcome of the statement of s with the expectation.
func (p *performance) finish(s *session, st step) error {
	r, blocker, err := s.await(p.sessions)
	if err != nil {
		return err
	}
	var got string
	switch {
	case blocker != nil:
		got = "waits for " + blocker.name
		p.waiting[s.name] = st
	case r.err != nil && r.code() == "":
		return r.err
	case r.err != nil:
		got = "error " + r.code()
	default:
		got = outcome(st.verb, r.rows)
		if st.verb == "heard" {
			got = s.heard()
		}
	}
	if !st.hasExpectation {
		if r.err != nil || blocker != nil {
			return fmt.Errorf("%s %s: got %q: %v", s.name, st.verb, got, r.text())
		}
		return nil
	}
	if err := p.match(got, st.want); err != nil {
		return fmt.Errorf("%s %s: got %q, want %q: %w (%v)", s.name, st.verb, got, st.want, err, r.text())
	}
	return nil
}

var numbered = regexp.MustCompile(`^([tk])([0-9]+)$`)

// match compares word by word. A word like t1 names the number in that place. Numbers grow with
// their names.
func (p *performance) match(got, want string) error {
	g, w := strings.Fields(got), strings.Fields(want)
	if len(g) != len(w) {
		return fmt.Errorf("%d words instead of %d", len(g), len(w))
	}
	for i, word := range w {
		m := numbered.FindStringSubmatch(word)
		if m == nil {
			if g[i] != word {
				return fmt.Errorf("%q instead of %q", g[i], word)
			}
			continue
		}
		n, err := strconv.ParseInt(g[i], 10, 64)
		if err != nil {
			return err
		}
		if known, ok := p.numbers[word]; ok && known != n {
			return fmt.Errorf("%s was %d and is %d", word, known, n)
		}
		p.numbers[word] = n
		for other, number := range p.numbers {
			o := numbered.FindStringSubmatch(other)
			if o[1] != m[1] {
				continue
			}
			a, _ := strconv.Atoi(o[2])
			b, _ := strconv.Atoi(m[2])
			if (a < b) != (number < n) || (a > b) != (number > n) {
				return fmt.Errorf("%s is %d and %s is %d: their order is wrong", other, number, word, n)
			}
		}
	}
	return nil
}

// request returns a new request, or the one with a name.
func (p *performance) request(st step) string {
	if name := st.options["request"]; name != "" {
		return fmt.Sprintf("00000000-0000-4000-9000-%012x", []byte(name))
	}
	p.requests++
	return fmt.Sprintf("00000000-0000-4000-8000-%012d", p.requests)
}

// statement returns the SQL and the arguments of a step.
func (p *performance) statement(s *session, st step) (string, []any, error) {
	var bad error
	arg := func(i int) string {
		if i >= len(st.args) {
			bad = fmt.Errorf("%s: argument %d is missing", st.verb, i+1)
			return ""
		}
		return st.args[i]
	}
	number := func(word string) int64 {
		n, ok := p.numbers[word]
		if !ok {
			bad = fmt.Errorf("%s: %s is not known yet", st.verb, word)
		}
		return n
	}
	ticket := func() int64 {
		switch word := st.options["ticket"]; word {
		case "":
			return leasetable.NoTicket
		case "none":
			return leasetable.BargeTicket
		default:
			return number(word)
		}
	}
	duration := func(option string, d time.Duration) int64 {
		if text := st.options[option]; text != "" {
			var err error
			if d, err = time.ParseDuration(text); err != nil {
				bad = err
			}
		}
		return d.Microseconds()
	}
	us := func() int64 { return duration("ttl", time.Minute) }
	keep := func() int64 { return duration("keep", timing.KeepTicket) }
	near := func() int64 {
		n, err := strconv.ParseInt(cmp.Or(st.options["near"], "1000"), 10, 64)
		bad = errors.Join(bad, err)
		return n
	}
	slots := func() (names []string, permits, weights []int) { // "m,n:1/2" is m, and one of two permits of n
		for _, word := range strings.Split(arg(0), ",") {
			name, share, shared := strings.Cut(word, ":")
			weight, capacity := 1, 0
			if n, err := fmt.Sscanf(share, "%d/%d", &weight, &capacity); shared && n != 2 {
				bad = fmt.Errorf("%s: %q is not WEIGHT/CAPACITY: %w", st.verb, share, err)
			}
			names, permits, weights = append(names, name), append(permits, capacity), append(weights, weight)
		}
		return names, permits, weights
	}
	sql, args := p.w.sql[st.verb], []any(nil)
	switch st.verb {
	case "begin", "commit", "rollback":
		sql = st.verb
	case "sql":
		sql = testClock(p.w.schema).Replace(strings.ReplaceAll(arg(0), "pglock.", schema.Quote(p.w.schema)+"."))
	case "listen": // to the notifications of this session's tickets
		sql = fmt.Sprintf("DO $$ BEGIN LISTEN %s; LISTEN %s; END $$", schema.Quote(s.client()), schema.Quote(s.client()+schema.NextSuffix))
	case "heard":
		sql = "SELECT"
	case "stall": // the inserts of this session wait while another one stops them
		sql = "SET test.stall = on"
	case "stop":
		sql, args = "SELECT pg_advisory_lock($1)", []any{p.w.key}
	case "resume":
		sql, args = "SELECT pg_advisory_unlock($1)", []any{p.w.key}
	case "guard", "bind":
		sql = "SELECT " + schema.Quote(p.w.schema) + "." + st.verb + "($1, $2)"
		args = []any{arg(0), number(arg(1))}
	case "acquire_fast", "acquire_new":
		args = []any{arg(0), s.name, p.request(st), "{}", us(), ticket()}
	case "acquire_permit":
		names, permits, weights := slots()
		args = []any{names[0], s.name, p.request(st), "{}", us(), ticket(), permits[0], weights[0]}
	case "acquire_all":
		names, _, _ := slots()
		args = []any{names, s.name, p.request(st), "{}", us(), ticket()}
	case "acquire_full", "acquire_fast_batch", "acquire_batch":
		args = []any{[]string{arg(0)}, []string{s.name}, []string{p.request(st)}, []string{"{}"}, []int64{us()}, []int64{ticket()}}
	case "peek":
		args = []any{[]string{arg(0)}, []string{p.request(st)}, []int64{ticket()}}
	case "renew":
		args = []any{[]string{arg(0)}, []int64{number(arg(1))}, []int64{us()}, nil}
	case "check_grants":
		args = []any{[]string{arg(0)}, []int64{number(arg(1))}}
	case "release":
		args = []any{arg(0), number(arg(1)), duration("hold", 0), true}
	case "release_batch":
		args = []any{[]string{arg(0)}, []int64{number(arg(1))}, []int64{duration("hold", 0)}, true}
	case "resize_permits":
		capacity, err := strconv.Atoi(arg(1))
		bad = errors.Join(bad, err)
		args = []any{arg(0), capacity, true}
	case "release_permit":
		args = []any{arg(0), number(arg(1)), true}
	case "release_permits":
		args = []any{strings.Split(arg(0), ","), number(arg(1)), true}
	case "keep_permits":
		n, err := strconv.Atoi(arg(2))
		bad = errors.Join(bad, err)
		args = []any{arg(0), number(arg(1)), n, true}
	case "handoff":
		args = []any{arg(0), number(arg(1)), p.request(st), s.name, "{}", us(), s.client()}
	case "upgrade_permits":
		args = []any{arg(0), number(arg(1)), p.request(st), s.name, "{}", us()}
	case "adopt":
		args = []any{[]string{arg(0)}, []int64{number(arg(1))}, []int64{us()}, s.name}
	case "revoke":
		args = []any{[]string{arg(0)}, p.request(st), true}
	case "revoke_grant", "request_release":
		args = []any{arg(0), number(arg(1)), "a reason", "channel", false}
	case "await_guards":
		args = []any{arg(0), number(arg(1)), true}
	case "join_queue":
		w := 1
		if text := st.options["weight"]; text != "" {
			w, _ = strconv.Atoi(text)
		}
		args = []any{arg(0), w, s.client(), us(), s.name, duration("waited", 0), near()}
	case "join_all":
		names, _, weights := slots()
		args = []any{names, weights, s.client() + "/1", us(), keep(), s.name, duration("waited", 0), true}
	case "refresh_tickets":
		args = []any{[]string{s.client() + st.options["of"]}, []string{arg(0)}, []int64{us()}, keep(), []int64{near()}}
	case "watch":
		args = []any{arg(0), s.client(), us()}
	case "leave_queue":
		args = []any{[]string{arg(0)}, s.client(), number(arg(1)), true}
	case "prune":
		args = []any{duration("idle", 0), 0, 1000, schema.Quote(p.w.schema) + ".distributed_locks"}
	case "acquire_slots":
		names, permits, weights := slots()
		args = []any{names, permits, weights, p.request(st), s.name, "{}", us(), ticket(), true}
	default:
		return "", nil, fmt.Errorf("there is no step %q", st.verb)
	}
	return sql, args, bad
}

// position puts that of a waiter into words.
func position(ticket, overflow, lost, ahead, free any) string {
	state, where := "held", fmt.Sprint("ticket ", ticket)
	if free == true {
		state = "free"
	}
	switch {
	case lost == true:
		return "skipped"
	case overflow == true:
		where = "overflow"
	}
	return fmt.Sprintf("%s behind %v %s", where, ahead, state)
}

// outcome puts the rows of a statement into words.
func outcome(verb string, rows [][]any) string {
	if len(rows) == 0 {
		switch verb {
		case "begin", "commit", "rollback", "stall", "listen", "sql":
			return "done"
		}
		return "nothing"
	}
	row := rows[0]
	text := func(v any) string {
		if v == nil || v == "" {
			return "-"
		}
		return fmt.Sprint(v)
	}
	refused := func(outcome, holder, ahead, invalid any) string {
		words := []string{text(outcome)}
		if outcome == "busy" {
			words = append(words, text(holder))
			if n := text(ahead); n != "0" {
				words = append(words, "behind", n)
			}
		}
		if invalid == true {
			words = append(words, "invalid")
		}
		return strings.Join(words, " ")
	}
	switch verb {
	case "begin", "commit", "rollback", "stall", "stop", "resume", "guard", "bind", "watch":
		return "done"
	case "acquire_fast_batch", "acquire_new", "acquire_batch":
		return "granted " + text(row[1])
	case "acquire_slots", "upgrade_permits":
		if row[1] == "granted" {
			return "granted " + text(row[2])
		}
		return refused(row[1], row[3], row[5], row[6])
	case "acquire_fast", "acquire_permit", "acquire_all", "handoff":
		return "granted " + text(row[0])
	case "acquire_full": // of two rows, granted counts
		if i := slices.IndexFunc(rows, func(r []any) bool { return r[1] == "granted" }); i >= 0 {
			return "granted " + text(rows[i][2])
		}
		return refused(row[1], row[3], row[5], row[6])
	case "peek":
		return refused("busy", row[2], row[4], row[5])
	case "renew":
		return "renewed " + text(row[1])
	case "adopt":
		return "renewed"
	case "check_grants":
		if row[2] == true {
			return "live"
		}
		return "revoked"
	case "release", "release_permit", "release_permits", "keep_permits", "leave_queue", "await_guards", "revoke", "release_batch":
		if row[len(row)-1] == true {
			return "done and notified"
		}
		return "done"
	case "revoke_grant", "request_release":
		if row[1] == true {
			return map[string]string{"revoke_grant": "revoked", "request_release": "asked"}[verb]
		}
		return "nothing"
	case "resize_permits":
		return "was " + text(row[0])
	case "refresh_tickets":
		return position(row[2], row[3], row[4], row[5], row[6]) + map[bool]string{true: " overdue"}[row[8] == true]
	case "join_queue":
		return position(row[0], row[1], false, row[2], row[3])
	case "join_all":
		ahead, free := int64(0), true
		for _, r := range rows {
			ahead, free = max(ahead, r[1].(int64)), free && r[2] == true
		}
		return position(row[0], false, false, ahead, free)
	case "prune":
		return "deleted " + text(row[1])
	}
	var words []string // of a query of the script
	for _, r := range rows {
		for _, v := range r {
			words = append(words, text(v))
		}
	}
	return strings.Join(words, " ")
}

// TestSchedules runs the scripts in testdata/schedules. Each of them must pass, and must notice
// each of its breaks.
func TestSchedules(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(schedules, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	w := newWorld(t)
	steps, breaks := 0, 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		base := filepath.Base(file)
		s, err := parse(string(text))
		if err != nil {
			t.Errorf("%s: %v", base, err)
			continue
		}
		if err := w.perform(s); err != nil {
			t.Errorf("%s: %v", base, err)
			continue
		}
		steps += len(s.steps)
		for _, m := range s.breaks {
			undo := w.mutate(m.name, m.before, m.after)
			if err := w.perform(s); err == nil {
				t.Errorf("%s: line %d: the break is not noticed", base, m.line)
			} else {
				t.Logf("%s: break in line %d: %v", base, m.line, err)
			}
			undo()
			breaks++
		}
		if len(s.breaks) == 0 && !strings.Contains(string(text), "Control:") {
			t.Errorf("%s: it has neither a break nor a control", base)
		}
	}
	t.Logf("%d schedules, %d steps, %d breaks", len(files), steps, breaks)
}

// TestSchedulesNoticeDeviations is the control of the runner: each of these scripts is wrong.
func TestSchedulesNoticeDeviations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, text := range map[string]string{
		"another outcome":  "A acquire_full n -> busy B",
		"no wait":          "A acquire_full n -> waits for B",
		"an error":         "A sql SELECT 1/0 -> 1",
		"an unknown token": "A release n t1 -> done",
		"another token":    "A acquire_full n -> granted t1\nA release n t1 -> done\nA acquire_fast n -> granted t1",
		"a token too late": "A acquire_full n -> granted t2\nA release n t2 -> done\nA acquire_fast n -> granted t1",
		"an open wait":     "A begin\nA acquire_full n -> granted t1\nB acquire_full n -> waits for A",
		"a missing wait":   "A begin\nA acquire_full n -> granted t1\nB acquire_full n -> nothing",
		"nothing to await": "A -> granted t1",
		"an unknown step":  "A dance -> done",
	} {
		s, err := parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.perform(s); err == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
	for _, text := range []string{"", "nonsense"} {
		if _, err := parse(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}
