package leasetable_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
)

// interleaving is an order of the steps of two clients and the clock. Each operation of a client is
// two steps: the statement in a transaction, and the transaction's end.
type interleaving struct {
	from  initial
	ops   [2][]modelOp
	order []int // 0 and 1: the next step of that client; 2: the clock moves beyond the expiry of all grants
}

func (i interleaving) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s:", i.from.name)
	var done [2]int
	for _, who := range i.order {
		if who == 2 {
			b.WriteString(" clock")
			continue
		}
		op := i.ops[who][done[who]/2]
		verb := op.kind
		if done[who]%2 == 1 {
			verb = map[bool]string{true: "rollback", false: "commit"}[op.rollback]
		}
		fmt.Fprintf(&b, " %c:%s", 'A'+rune(who), verb)
		done[who]++
	}
	return b.String()
}

// feasible reports whether no client makes a step while its statement waits, and the model knows the
// outcome.
func (i interleaving) feasible() bool {
	m := i.from.state
	var done [2]int
	for _, who := range i.order {
		if who == 2 {
			m.now++
			continue
		}
		if m.tx[who].waits {
			return false
		}
		if done[who]%2 == 0 {
			m.begin(who, i.ops[who][done[who]/2])
		} else {
			m.end(who)
		}
		if m.unsure {
			return false
		}
		done[who]++
	}
	return true
}

// orders returns all orders of the steps of two clients, with n operations each, with and without a
// move of the clock.
func orders(n [2]int) (all [][]int) {
	var extend func(order []int, left [3]int)
	extend = func(order []int, left [3]int) {
		if left == [3]int{} {
			all = append(all, slices.Clone(order))
			return
		}
		for who := range left {
			if left[who] > 0 {
				next := left
				next[who]--
				extend(append(order, who), next)
			}
		}
	}
	extend(nil, [3]int{2 * n[0], 2 * n[1], 0})
	extend(nil, [3]int{2 * n[0], 2 * n[1], 1})
	return all
}

// programs returns all sequences of n operations.
func programs(n int, ops []modelOp) (all [][]modelOp) {
	if n == 0 {
		return [][]modelOp{nil}
	}
	for _, rest := range programs(n-1, ops) {
		for _, op := range ops {
			all = append(all, append(slices.Clone(rest), op))
		}
	}
	return all
}

// interleavings returns all feasible interleavings of two clients with n operations each.
func interleavings(n [2]int, ops []modelOp) (all []interleaving) {
	every := orders(n)
	for _, from := range initials {
		for _, a := range programs(n[0], ops) {
			for _, b := range programs(n[1], ops) {
				for _, order := range every {
					if i := (interleaving{from, [2][]modelOp{a, b}, order}); i.feasible() {
						all = append(all, i)
					}
				}
			}
		}
	}
	return all
}

// transactions returns the operations, with commits only or with rollbacks too.
func transactions(rollbacks bool) (all []modelOp) {
	for _, kind := range modelKinds {
		all = append(all, modelOp{kind: kind})
		if rollbacks {
			all = append(all, modelOp{kind, true})
		}
	}
	return all
}

// modelTTL is the duration of all grants. The clock moves by twice as much.
const modelTTL = time.Hour

// checker runs interleavings on a server, beside the model.
type checker struct {
	w        *world
	clients  [2]*session
	requests int
}

func newChecker(t *testing.T) *checker {
	t.Helper()
	w := newWorld(t)
	w.exec("SELECT setval($1::text::regclass, 10)", schema.Quote(w.schema)+".fencing_tokens") // above what prepare writes
	return &checker{w: w, clients: [2]*session{w.session("A"), w.session("B")}}
}

// check runs an interleaving. The error is the first difference from the model, or a violated
// invariant.
func (c *checker) check(i interleaving) error {
	m := i.from.state
	tokens := map[int]int64{1: 1, 2: 2} // the server's token of each token of the model
	if err := c.prepare(m); err != nil {
		return err
	}
	defer func() {
		for n, s := range c.clients {
			if s.pending != nil { // only after a deviation
				s.end()
				c.clients[n] = c.w.session(s.name)
			} else if err := s.run("ROLLBACK"); err != nil {
				c.w.t.Error(err)
			}
		}
	}()
	others := c.clients[:]
	// finish compares the outcome of the statement of a client.
	finish := func(who int, want string) error {
		r, blocker, err := c.clients[who].await(others)
		if err != nil {
			return err
		}
		got, token := modelOutcome(m.tx[who].op.kind, r)
		if blocker != nil {
			got = "waits"
		}
		if got != want {
			return fmt.Errorf("%c %s: the server says %q, the model says %q (%v)", 'A'+rune(who), m.tx[who].op.kind, got, want, r.text())
		}
		if want == "granted" {
			for _, earlier := range tokens {
				if token <= earlier {
					return fmt.Errorf("the token %d comes after %d", token, earlier)
				}
			}
			tokens[m.tx[who].token] = token
		}
		return nil
	}
	var done [2]int
	for _, who := range i.order {
		if who == 2 {
			m.now++
			c.w.advance(2 * modelTTL)
			continue
		}
		s := c.clients[who]
		done[who]++
		if done[who]%2 == 1 {
			op := i.ops[who][done[who]/2]
			if err := s.run("BEGIN"); err != nil {
				return err
			}
			token := tokens[m.token[who]]
			want := m.begin(who, op)
			sql, args := c.statement(op.kind, s.name, token)
			s.start(sql, args...)
			if err := finish(who, want); err != nil {
				return err
			}
			continue
		}
		tx := m.tx[who]
		if tx.op.kind == "guard" && !tx.failed {
			// The write of the guarded transaction, and I4: its grant is still the current one.
			if err := s.run("INSERT INTO "+schema.Quote(c.w.schema)+".ledger VALUES ($1)", tokens[tx.token]); err != nil {
				return err
			}
		}
		continued := m.end(who)
		end := "COMMIT"
		if tx.op.rollback {
			end = "ROLLBACK"
		}
		if err := s.run(end); err != nil {
			return fmt.Errorf("%s: %w", end, err)
		}
		if continued != "" {
			if err := finish(1-who, continued); err != nil {
				return err
			}
		}
		if err := c.compare(m, tokens); err != nil {
			return fmt.Errorf("after %c %s: %w", 'A'+rune(who), end, err)
		}
		if tx.op.kind == "guard" && !tx.failed && !tx.op.rollback && m.row.exists && tx.token != m.row.token {
			return fmt.Errorf("I4: a guarded write with token %d was committed after the grant of %d", tokens[tx.token], tokens[m.row.token])
		}
	}
	return nil
}

// prepare writes the row of the model.
func (c *checker) prepare(m model) error {
	c.w.exec("DELETE FROM pglock.distributed_locks")
	c.w.exec("DELETE FROM pglock.ledger")
	c.w.advance(2 * modelTTL)
	if !m.row.exists {
		return nil
	}
	holder, expires := "NULL", "'-infinity'"
	if m.row.held {
		holder, expires = "'A'", "pglock.test_now() + interval '1 hour'"
	}
	c.w.exec(fmt.Sprintf(`INSERT INTO pglock.distributed_locks (name, token, version, holder, acquired_at, expires_at)
		VALUES ('n', %d, 1, %s, pglock.test_now(), %s)`, m.row.token, holder, expires))
	if m.now > 0 {
		c.w.advance(2 * modelTTL)
	}
	return nil
}

// compare compares the row, and the committed writes, with the model.
func (c *checker) compare(m model, tokens map[int]int64) error {
	var got string
	c.w.scan(&got, `SELECT coalesce((SELECT format('%s %s %s', l.token, l.holder IS NOT NULL, l.holder IS NOT NULL AND l.expires_at > pglock.test_now())
			FROM pglock.distributed_locks AS l WHERE l.name = 'n'), 'no row') || (SELECT format(', %s writes', count(*)) FROM pglock.ledger)`)
	want := "no row"
	if m.row.exists {
		letter := map[bool]string{true: "t", false: "f"}
		want = fmt.Sprintf("%d %s %s", tokens[m.row.token], letter[m.row.held], letter[m.row.live(m.now)])
	}
	if want += fmt.Sprintf(", %d writes", len(m.committed)); got != want {
		return fmt.Errorf("the server has %q, the model %q", got, want)
	}
	return nil
}

// statement returns the SQL of an operation, for the client's token.
func (c *checker) statement(kind, holder string, token int64) (string, []any) {
	c.requests++
	request, us := fmt.Sprintf("00000000-0000-4000-8000-%012d", c.requests), modelTTL.Microseconds()
	switch kind {
	case "acquire_fast", "acquire_new":
		return c.w.sql[kind], []any{"n", holder, request, "{}", us, int64(leasetable.NoTicket)}
	case "acquire_full":
		return c.w.sql[kind], []any{[]string{"n"}, []string{holder}, []string{request}, []string{"{}"}, []int64{us}, []int64{leasetable.NoTicket}}
	case "renew":
		return c.w.sql[kind], []any{[]string{"n"}, []int64{token}, []int64{us}, nil}
	case "release":
		return c.w.sql[kind], []any{"n", token, int64(0), true}
	case "handoff":
		return c.w.sql[kind], []any{"n", token, request, holder, "{}", us, "client"}
	}
	return "SELECT " + schema.Quote(c.w.schema) + ".guard('n', $1)", []any{token}
}

// modelOutcome puts the reply of the server into the words of the model.
func modelOutcome(kind string, r reply) (outcome string, token int64) {
	words := map[string]string{"acquire_fast": "granted", "acquire_new": "granted", "acquire_full": "granted", "handoff": "granted", "renew": "renewed", "release": "released", "guard": "guarded"}
	switch {
	case r.code() == "PGL01":
		return "stale", 0
	case r.err != nil:
		return "error " + r.code(), 0
	case len(r.rows) == 0:
		return "nothing", 0
	}
	row := r.rows[0]
	if kind == "acquire_full" {
		i := slices.IndexFunc(r.rows, func(r []any) bool { return r[1] == "granted" })
		if i < 0 {
			return fmt.Sprint(row[1]), 0
		}
		row = []any{r.rows[i][2]}
	}
	if kind == "acquire_new" {
		row = row[1:]
	}
	if words[kind] == "granted" {
		token, _ = row[0].(int64)
	}
	return words[kind], token
}

// seed returns that of PGLOCK_CHAOS_SEED, or a new one.
func seed(t *testing.T) *rand.Rand {
	t.Helper()
	n, err := strconv.ParseUint(os.Getenv("PGLOCK_CHAOS_SEED"), 10, 64)
	if err != nil {
		n = rand.Uint64N(1 << 32)
	}
	t.Logf("PGLOCK_CHAOS_SEED=%d", n)
	return rand.New(rand.NewPCG(n, 0))
}

// TestChaosInterleavings runs the interleavings of two clients' transactions on one lock, each with
// one statement, on the server and in the model. Short: 500 of those with one transaction each.
// Long: all of them, and all of those with two transactions of one client.
func TestChaosInterleavings(t *testing.T) {
	t.Parallel()
	random := seed(t)
	all := interleavings([2]int{1, 1}, transactions(true))
	total := len(all)
	random.Shuffle(total, func(i, j int) { all[i], all[j] = all[j], all[i] })
	if os.Getenv("PGLOCK_CHAOS") == "" {
		all = all[:500]
	} else {
		more := interleavings([2]int{2, 1}, transactions(false))
		total += len(more)
		all = append(all, more...)
	}
	c := newChecker(t)
	run, violations := 0, 0
	begin := time.Now()
	for _, i := range all {
		run++
		if err := c.check(i); err != nil {
			t.Errorf("%v: %v", i, err)
			if violations++; violations == 10 {
				break
			}
		}
	}
	t.Logf("%d of %d interleavings in %v, %d violations", run, total, time.Since(begin).Round(time.Second), violations)
}

// TestCheckerOfInterleavings is the control: each of these defects is found.
func TestCheckerOfInterleavings(t *testing.T) {
	t.Parallel()
	random := seed(t)
	c := newChecker(t)
	all := interleavings([2]int{1, 1}, transactions(false))
	// A guard meets the fast path only after a release.
	var afterRelease []interleaving
	for _, order := range orders([2]int{1, 2}) {
		i := interleaving{initials[4], [2][]modelOp{{{kind: "guard"}}, {{kind: "release"}, {kind: "acquire_fast"}}}, order}
		if i.feasible() {
			afterRelease = append(afterRelease, i)
		}
	}
	for _, defect := range []mutation{
		{0, "acquire_fast", "FOR UPDATE SKIP LOCKED", "FOR NO KEY UPDATE SKIP LOCKED"},
		{0, "acquire_fast", "SKIP LOCKED", ""},
		{0, "acquire_fast", "AND f.holder IS NULL", ""},
		{0, "acquire_new", "AND NOT EXISTS (SELECT FROM pglock.distributed_locks AS d WHERE d.name = a.name)\n", ""},
		{0, "lock_gates", "d.name = lock_names[i] FOR UPDATE", "d.name = lock_names[i] FOR NO KEY UPDATE"},
		{0, "grant_slots", ", newest + 1);\n    began", ", newest + 1); token := newest;\n    began"},
		{0, "judge_slot", "CASE WHEN d.expires_at >", "CASE WHEN '-infinity' >"},
		{0, "renew", "AND l.expires_at >", "AND 'infinity' >"},
		{0, "renew", "FOR NO KEY UPDATE", "FOR UPDATE"},
		{0, "release", "AND l.token = $2::bigint", "AND $2::bigint > 0"},
		{0, "release", "AND l.holder IS NOT NULL", ""},
		{0, "handoff", "FOR UPDATE SKIP LOCKED", "FOR NO KEY UPDATE SKIP LOCKED"},
		{0, "handoff", "AND f.token = $2::bigint", "AND $2::bigint > 0"},
		{0, "check_fence", "FOR KEY SHARE", ""},
	} {
		defect.before = strings.ReplaceAll(defect.before, "pglock.", schema.Quote(c.w.schema)+".")
		// A defect of a statement shows in the interleavings with that statement.
		kind := map[string]string{"check_fence": "guard", "lock_gates": "acquire_full", "judge_slot": "acquire_full", "grant_slots": "acquire_full"}[defect.name]
		if kind == "" {
			kind = defect.name
		}
		var with []interleaving
		for _, i := range all {
			if i.ops[0][0].kind == kind || i.ops[1][0].kind == kind {
				with = append(with, i)
			}
		}
		with = append(with, afterRelease...)
		random.Shuffle(len(with), func(i, j int) { with[i], with[j] = with[j], with[i] })
		undo := c.w.mutate(defect.name, defect.before, defect.after)
		var found error
		tried := 0
		for ; found == nil && tried < len(with); tried++ {
			if err := c.check(with[tried]); err != nil {
				found = fmt.Errorf("%v: %w", with[tried], err)
			}
		}
		undo()
		if found == nil {
			t.Errorf("%s: %q → %q: not found in %d interleavings", defect.name, defect.before, defect.after, tried)
			continue
		}
		t.Logf("%s: %q → %q: found in interleaving %d: %v", defect.name, defect.before, defect.after, tried, found)
	}
}
