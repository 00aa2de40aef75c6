package leasetable_test

// The model of one lock and two clients, for TestInterleavings. It knows of row locks, of who waits
// for whom, and of the row before and after a commit. It does not know SQL.

// modelOp is a transaction with one statement of the protocol.
type modelOp struct {
	kind     string
	rollback bool
}

// modelKinds are the statements. A takeover is an acquire after the expiry.
var modelKinds = []string{"acquire_fast", "acquire_new", "acquire_full", "renew", "release", "handoff", "guard"}

// modelRow is the row of the lock. Time counts the moves of the clock: a grant outlives none.
type modelRow struct {
	exists  bool
	token   int // the first grant is 1
	held    bool
	expires int
}

func (r modelRow) live(now int) bool { return r.held && r.expires > now }

// lockMode is the strength of a row lock.
type lockMode int

const (
	noLock lockMode = iota
	keyShare
	noKeyUpdate
	forUpdate
)

// conflict is the table of the PostgreSQL manual, for the three modes of the protocol.
func conflict(a, b lockMode) bool {
	return a != noLock && b != noLock && (a == forUpdate || b == forUpdate || a == noKeyUpdate && b == noKeyUpdate)
}

// modelTx is the transaction of a client.
type modelTx struct {
	op      modelOp
	open    bool
	waits   bool // its statement waits for the other client
	failed  bool
	lock    lockMode
	maybe   bool // whether the lock is held depends on the plan
	changed bool
	row     modelRow // of a change
	token   int      // of a grant; of a guard: that which it checked
	began   int      // when
}

// model is the state of the lock.
type model struct {
	now       int
	row       modelRow // committed
	last      int      // the last token drawn by a grant
	tx        [2]modelTx
	token     [2]int // what the clients believe to hold, or held
	committed []int  // the tokens of committed guarded writes
	unsure    bool   // an outcome depended on a plan
}

// blocked reports whether the other transaction's row lock keeps this mode out.
func (m *model) blocked(mode lockMode, other *modelTx) bool {
	m.unsure = m.unsure || other.maybe && conflict(mode, noKeyUpdate)
	return conflict(mode, other.lock)
}

// initial is a state from which all interleavings start.
type initial struct {
	name  string
	state model
}

var initials = []initial{
	{"no row", model{last: 2, token: [2]int{1, 2}}},
	{"released", model{last: 2, token: [2]int{2, 1}, row: modelRow{exists: true, token: 2}}},
	{"held by A", model{last: 2, token: [2]int{2, 1}, row: modelRow{exists: true, token: 2, held: true, expires: 1}}},
	{"expired", model{last: 2, now: 1, token: [2]int{2, 1}, row: modelRow{exists: true, token: 2, held: true, expires: 1}}},
	{"shared by A and B", model{last: 2, token: [2]int{2, 2}, row: modelRow{exists: true, token: 2, held: true, expires: 1}}},
}

// begin runs the statement of op, and returns its outcome.
func (m *model) begin(c int, op modelOp) string {
	m.tx[c] = modelTx{op: op, open: true, began: m.now}
	return m.statement(c)
}

// statement runs or continues the statement of the client c. The outcome "waits" means that the
// other client must commit first.
func (m *model) statement(c int) string {
	tx, other := &m.tx[c], &m.tx[1-c]
	again := tx.waits
	tx.waits = false
	mine := m.row.exists && m.row.token == m.token[c]
	switch tx.op.kind {
	case "acquire_fast", "acquire_new", "acquire_full":
		full := tx.op.kind == "acquire_full"
		if !m.row.exists {
			switch {
			case tx.op.kind == "acquire_fast":
				return "nothing"
			case other.open && other.changed:
				tx.waits = true
				return "waits"
			}
			return m.grant(c)
		}
		if tx.op.kind == "acquire_new" {
			return "nothing"
		}
		if again && !m.blocked(forUpdate, other) { // the engine locks the row that it waited for before it looks at it
			tx.lock = forUpdate
		}
		busy := map[bool]string{true: "busy", false: "nothing"}[full]
		if m.row.live(m.now) || m.row.held && !full || m.blocked(forUpdate, other) {
			return busy
		}
		return m.grant(c)
	case "handoff":
		if !mine || !m.row.held || m.blocked(forUpdate, other) {
			return "nothing"
		}
		return m.grant(c)
	case "renew":
		if !mine || !m.row.held || m.blocked(noKeyUpdate, other) {
			return "nothing"
		}
		if !m.row.live(m.now) { // the server may compare the time before it locks the row, or after
			tx.maybe = true
			return "nothing"
		}
		tx.lock, tx.changed, tx.row = noKeyUpdate, true, m.row
		tx.row.expires = m.now + 1
		return "renewed"
	case "release":
		if !mine || !m.row.held {
			if again { // the server locks the new row before it looks at it
				tx.lock = noKeyUpdate
			}
			return "nothing"
		}
		if m.blocked(noKeyUpdate, other) {
			tx.waits = true
			return "waits"
		}
		tx.lock, tx.changed, tx.row = noKeyUpdate, true, m.row
		tx.row.held, tx.row.expires = false, 0
		return "released"
	default: // guard
		tx.token = m.token[c]
		if !mine || !m.row.live(m.now) {
			tx.failed = true
			return "stale"
		}
		if m.blocked(keyShare, other) {
			tx.waits = true
			return "waits"
		}
		tx.lock = keyShare
		return "guarded"
	}
}

func (m *model) grant(c int) string {
	m.last++
	tx := &m.tx[c]
	tx.lock, tx.changed, tx.token = forUpdate, true, m.last
	tx.row = modelRow{exists: true, token: m.last, held: true, expires: m.now + 1}
	if tx.op.kind == "acquire_new" { // it reads the clock before its insert, which may wait
		tx.row.expires = tx.began + 1
	}
	return "granted"
}

// end commits or rolls back. If the other client waited, it continues: its outcome is returned.
func (m *model) end(c int) (continued string) {
	tx := m.tx[c]
	if !tx.op.rollback {
		if tx.changed {
			m.row = tx.row
		}
		if tx.changed && tx.lock == forUpdate {
			m.token[c] = tx.token
		}
		if tx.op.kind == "guard" && !tx.failed {
			m.committed = append(m.committed, tx.token)
		}
	}
	m.tx[c] = modelTx{}
	if m.tx[1-c].waits {
		return m.statement(1 - c)
	}
	return ""
}
